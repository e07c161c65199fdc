/* Generated from src/devstream_alloc.h by `make headers`. Edit the files in src/, not this one. */
/* devstream_alloc.h - a caching allocator for device and pinned memory.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_alloc.h"
   in exactly one C file, and #include "devstream_alloc.h" in all other files that use it. Put
   devstream.h beside it, and link as described in devstream.h.

   Allocation is ordered on a stream. Work that is enqueued on the stream after the allocation may
   use the memory. Later allocations of the same stream may reuse freed memory at once, without
   waiting.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_alloc.h"
       #include <stdio.h>
       int main(void) {
           ds_stream s;
           void *p;
           if (ds_stream_create(NULL, &s) < 0 || ds_mem_alloc(1 << 20, s, &p) < 0 ||
               ds_fill(p, 0, 1, 1 << 20, s) < 0 || ds_mem_free(p) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("%zu bytes are cached\n", ds_mem_get_reserved(ds_device_current()));
           return ds_shutdown() < 0;
       }

   Environment, read once at the first call: DEVSTREAM_ALLOC_CONF, "option:value,option:value" in
   the grammar of PYTORCH_CUDA_ALLOC_CONF (ds_mem_configure_text lists the options).

   Contents: configuration; allocation; pools; limits and shortage; statistics; history and
   snapshots; pinned host memory; resources; sharing between processes; debugging; implementation.

   Rules beyond devstream.h's:
   - Any thread may free a block, at any place in the stream's program order. The call never waits.
   - If other streams use a block, record each use by ds_mem_record_use. The block is reused after
     these streams have passed their last use.
   - During a capture, memory comes from a pool that belongs to the graph (ds_pool_desc,
     ds_capture_set_pool).
   - Host functions and callbacks may only call functions marked "Callable anywhere". */
#include "devstream.h"

#ifndef DEVSTREAM_ALLOC_H_INCLUDED
#define DEVSTREAM_ALLOC_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- configuration --------------------------------------------------------------------------- */

/** Reuse of freed blocks of other streams, if the allocating stream has no fitting block. */
typedef enum ds_mem_reuse {
    DS_REUSE_NEVER = 0, /**< blocks stay with their stream (torch, CuPy) */
    /** if memory is short, the allocating stream waits for the stream of a fitting block */
    DS_REUSE_ON_SHORTAGE = 1,
    DS_REUSE_ALWAYS = 2 /**< also before more memory is reserved */
} ds_mem_reuse;

/** Extent of the statistics (ds_mem_config.statistics). */
typedef enum ds_mem_statistics_level {
    DS_STATISTICS_FULL = 0,   /**< current values, peaks and totals */
    DS_STATISTICS_CURRENT = 1 /**< current values only; peaks and totals do not change */
} ds_mem_statistics_level;

/** Source of device memory. */
typedef enum ds_mem_backend {
    DS_MEM_NATIVE = 0,      /**< this allocator's cache */
    DS_MEM_DRIVER_POOL = 1, /**< the driver's own stream-ordered pool (cudaMallocAsync) */
    /** every allocation calls the driver; a free waits for the block's stream and for recorded uses
        (for debugging) */
    DS_MEM_UNCACHED = 2
} ds_mem_backend;

/** Policy of a device's memory or of a pool. Initialise it by ds_mem_config_default(), _torch() or
    _cupy(), then change members; a zeroed policy is not valid. Sizes are in bytes. Members have
    PyTorch's names if PyTorch has the option. */
typedef struct ds_mem_config {
    int backend; /**< a ds_mem_backend */
    /** 1: segments grow in reserved address space if the device supports virtual memory. If the
        system refuses the address space (RLIMIT_AS), segments are plain and a warning is logged */
    int expandable_segments;
    /** 1: exact best fit; among equal blocks that of the oldest segment, in it the lowest address
        (torch, CuPy: the lowest address). 0: near best fit; the block freed last among equal
        blocks (faster) */
    int best_fit_by_address;
    /** 1: small and large requests share segments (CuPy) */
    int single_pool;
    int reuse; /**< a ds_mem_reuse, for blocks of other streams */
    /** 1: every allocation polls blocks in use by other streams (torch); 0: only if no other block
        fits */
    int poll_on_alloc;
    int statistics; /**< a ds_mem_statistics_level */
    /** 0: no checks. 1: all structures are checked at each call that allocates or frees memory of
        the driver (cache misses, ds_mem_trim, ds_mem_empty_cache, ds_pool_empty_cache). 2: also at
        every allocation, free and recorded use */
    int debug;
    /** 1: freed memory is filled with 0xDB in stream order. If other streams or processes use a
        block, or its stream has ended, the fill comes after these uses, before the block's reuse.
        Uncached blocks with recorded uses are not filled: they return to the driver */
    int poison;
    /** size of the guard directly behind the requested bytes (rounded up to 4), multiple of 512.
        Filled at allocation, checked at free; the check waits for the stream and recorded uses.
        While a capture is open, and in a graph's pool, neither guards nor poison are written */
    size_t guard_bytes;
    /** blocks of at least this size are not split for smaller requests; SIZE_MAX: no limit */
    size_t max_split_size;
    /** such blocks serve only requests that are smaller by at most this many bytes */
    size_t max_non_split_rounding;
    /** size of a segment, or of a growing segment's page, for requests up to 1 MiB */
    size_t small_segment_size;
    /** as small_segment_size, for larger requests. Requests of at least half this size get their
        own segment */
    size_t large_segment_size;
    /** minimum size of a new plain segment: the reserved bytes divided by this; 0: off */
    unsigned segment_growth;
    /** fraction of the limit; above it, unused segments are freed by age; 0: off */
    double garbage_collection_threshold;
    /** per power of two from 1 MiB: log2 of the number of divisions, plus one; 0: off */
    unsigned char roundup_power2_divisions[16];
    /** limit as a fraction of the device's memory (per_process_memory_fraction); 1: no limit */
    double memory_fraction;
    size_t limit; /**< limit in bytes; 0: no limit. The smaller of the two limits applies */
    /** 1: a request above the limit is refused without a driver call and counted in
        num_oom_rejections */
    int throw_on_cudamalloc_oom;
    /** 1: during a capture, memory used by other streams of the capture is reused after these uses,
        regardless of `reuse` */
    int graph_capture_record_stream_reuse;
    /** address space of a growing segment: a multiple of the device's memory, or bytes if at least
        2 MiB */
    double expandable_segments_reserve;
    /* All devices share the pinned memory. The members below, poll_on_alloc and debug apply to
       pinned memory as last set for any device. */
    /** pinned requests up to this size are rounded up to a power of two; 0: no rounding */
    size_t pinned_max_round_threshold;
    /** larger pinned blocks are freed to the driver if no capture is open; SIZE_MAX: all are
        cached */
    size_t pinned_max_cached_size;
    /** size of pinned segments shared by blocks of up to a quarter of it; 0: 1 MiB, and sizes
        rounded to powers of two do not share */
    size_t pinned_reserve_segment_size;
    /** 1: pinned memory is ordinary memory registered with the driver */
    int pinned_use_cuda_host_register;
    /** threads that touch its pages; power of two up to 128 */
    unsigned pinned_num_register_threads;
    uint64_t reserved[16]; /**< 0 */
} ds_mem_config;

/** Returns devstream's default policy, which keeps fragmentation low: growing segments if the
    device supports virtual memory, else few large segments. */
DSDEF ds_mem_config ds_mem_config_default(void);
/** Returns PyTorch's defaults: its sizes, segments and reuse rules. */
DSDEF ds_mem_config ds_mem_config_torch(void);
/** Returns the policy of CuPy's memory pool: one pool per stream, segments of the requested size,
    no sharing. */
DSDEF ds_mem_config ds_mem_config_cupy(void);
/** Sets the policy of a device for later calls; existing blocks and segments do not change. backend
    may be changed only while the device has no block. DS_ERR_INVALID_VALUE: the error names the
    invalid member, and the old policy remains. */
DSDEF DS_MUST_USE ds_result ds_mem_configure(ds_device device, const ds_mem_config *config);
/** Sets the policy of all present and later devices from a text in the grammar of
    PYTORCH_CUDA_ALLOC_CONF. Options are those of PyTorch, and:
    - preset:(default|torch|cupy), which must be first
    - reuse:(never|on_shortage|always), statistics:(full|current)
    - limit:(bytes|P%): bytes set `limit` and reset memory_fraction, P% does the reverse
    - debug, poison, guard_bytes, segment_growth, single_pool, best_fit_by_address, poll_on_alloc

    As in PyTorch, each text first resets max_split_size, roundup_power2_divisions and the garbage
    collection threshold. DS_ERR_INVALID_VALUE: the error names the first wrong character, and the
    old policy remains. */
DSDEF DS_MUST_USE ds_result ds_mem_configure_text(const char *text);
/** Parses such a text into *config, which must hold a valid policy. Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_mem_config_parse(const char *text, ds_mem_config *config);
/** Returns the current policy of a device. */
DSDEF DS_MUST_USE ds_result ds_mem_get_config(ds_device device, ds_mem_config *out);

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

/* ---- limits and shortage --------------------------------------------------------------------- */

/** Sets the limit of the memory reserved on a device, in bytes. The smaller of this limit and
    ds_mem_set_fraction applies. 0: no limit; also resets the fraction. */
DSDEF DS_MUST_USE ds_result ds_mem_set_limit(ds_device device, size_t bytes);
/** Returns the effective limit in bytes; 0: no limit. Callable anywhere after the first use of the
    allocator on the device. */
DSDEF DS_MUST_USE ds_result ds_mem_get_limit(ds_device device, size_t *out);
/** Limits the reserved memory to a fraction (0 to 1) of the device's memory, as
    torch.cuda.set_per_process_memory_fraction does. 1: only the limit of ds_mem_set_limit
    applies. */
DSDEF DS_MUST_USE ds_result ds_mem_set_fraction(ds_device device, double fraction);
/** Returns the fraction; 1 if no fraction was set. */
DSDEF DS_MUST_USE ds_result ds_mem_get_fraction(ds_device device, double *out);

/** Called before an allocation fails, after all other attempts to find memory. May call
    ds_mem_free, but not ds_mem_alloc. Returns 1 if it has freed memory, else 0. Runs on the
    allocating thread, without locks held. */
typedef int (*ds_mem_shortage_fn)(ds_device device, size_t size, void *user);
/** Adds a shortage callback for all devices and threads. Callbacks are invoked in the order of
    their addition. */
DSDEF DS_MUST_USE ds_result ds_mem_add_shortage_callback(ds_mem_shortage_fn fn, void *user);
/** Removes a shortage callback. Another thread may still be inside an earlier invocation.
    DS_ERR_INVALID_VALUE: the callback was not added with this `user`. */
DSDEF DS_MUST_USE ds_result ds_mem_remove_shortage_callback(ds_mem_shortage_fn fn, void *user);
/** Called after an allocation has failed for lack of memory. In bytes: the needed size, the limit
    or the device's memory, and the free part of it. */
typedef void (*ds_mem_oom_fn)(ds_device device, size_t needed, size_t total, size_t free,
                              void *user);
/** Adds an out-of-memory callback, invoked before the allocation returns its error. It must not
    call devstream. */
DSDEF DS_MUST_USE ds_result ds_mem_add_oom_callback(ds_mem_oom_fn fn, void *user);
/** Removes an out-of-memory callback, by the rules of ds_mem_remove_shortage_callback.
    DS_ERR_INVALID_VALUE: the callback was not added with this `user`. */
DSDEF DS_MUST_USE ds_result ds_mem_remove_oom_callback(ds_mem_oom_fn fn, void *user);
/** Returns the full report of the thread's last out-of-memory error; ds_error_get_last() has its
    short form. Contains sums, the largest free block, fragmentation, the ten largest owners, and a
    hint. "" if there was no such error. Valid until the thread's next out-of-memory error. */
DSDEF const char *ds_mem_get_last_report(void);

/* ---- statistics ------------------------------------------------------------------------------ */

/** Statistics of one quantity. */
typedef struct ds_mem_stat {
    int64_t current;   /**< current value */
    int64_t peak;      /**< maximum since the start or the last reset */
    int64_t allocated; /**< sum of all increases */
    int64_t freed;     /**< sum of all decreases */
} ds_mem_stat;

/** Index by the kind of a block's segment. */
enum {
    DS_STAT_ALL = 0,   /**< both kinds */
    DS_STAT_SMALL = 1, /**< segments for requests up to 1 MiB */
    DS_STAT_LARGE = 2  /**< segments for larger requests */
};

/** torch.cuda.memory_stats as a struct; arrays are indexed by DS_STAT_ALL, DS_STAT_SMALL,
    DS_STAT_LARGE.

    For the same program, every backend counts the same blocks, block bytes, retries and rejections.
    This requires a policy without leftover bytes in blocks, and shortages at the same requests.
    Segments, reserved bytes, split blocks and driver calls depend on the backend. Without a cache
    each block is a segment. Memory kept by the driver's own pool counts as reserved and is queried
    with the statistics; totals count blocks only. */
typedef struct ds_mem_stats {
    ds_mem_stat allocation[3]; /**< allocated blocks */
    ds_mem_stat segment[3];    /**< plain segments */
    /** blocks allocated, or freed but still in use by another stream */
    ds_mem_stat active[3];
    ds_mem_stat inactive_split[3];       /**< free blocks in plain segments with blocks in use */
    ds_mem_stat allocated_bytes[3];      /**< bytes of the allocated blocks */
    ds_mem_stat reserved_bytes[3];       /**< bytes allocated from the driver */
    ds_mem_stat active_bytes[3];         /**< bytes of the active blocks */
    ds_mem_stat inactive_split_bytes[3]; /**< bytes of the inactive split blocks */
    ds_mem_stat requested_bytes[3];      /**< requested bytes of active blocks */
    ds_mem_stat oversize_allocations;    /**< requests of max_split_size or more */
    ds_mem_stat oversize_segments;       /**< segments of max_split_size or more */
    int64_t num_alloc_retries;           /**< allocations retried after freeing the cache */
    int64_t num_ooms;                    /**< out-of-memory errors */
    /** waits for all pending blocks of a device; those of one pool (ds_pool_empty_cache) are not
        counted */
    int64_t num_sync_all_streams;
    int64_t num_device_alloc;   /**< driver calls that allocate memory */
    int64_t num_device_free;    /**< driver calls that free memory */
    int64_t num_oom_rejections; /**< requests refused without a driver call */
    int64_t max_split_size;     /**< -1: no limit */
    /** bytes by which byte peaks may exceed the exact value; 0 if only one thread has allocated
        since their reset */
    int64_t peak_bound;
    int64_t peak_bound_count; /**< the same bound for peaks of counts */
    uint64_t reserved[48];    /**< 0 */
} ds_mem_stats;

/** Returns the statistics of a device over all its pools; all 0 before its first use.
    DS_DEVICE_HOST: pinned memory (ds_mem_pinned_get_stats). */
DSDEF DS_MUST_USE ds_result ds_mem_get_stats(ds_device device, ds_mem_stats *out);
/** Returns the statistics of one pool. After the pool's destruction, returns its peaks, totals and
    remaining blocks until a later pool takes its slot. */
DSDEF DS_MUST_USE ds_result ds_pool_get_stats(ds_pool pool, ds_mem_stats *out);
/** Returns one value by torch's name, such as "allocated_bytes.all.current" or "num_ooms".
    "allocated.all.current" is an alias of "allocation.all.current". */
DSDEF DS_MUST_USE ds_result ds_mem_stats_get_by_name(const ds_mem_stats *stats, const char *name,
                                                     int64_t *out);
/** Returns the name with the index (from 0) in alphabetical order, or NULL after the last. Callable
    anywhere. */
DSDEF const char *ds_mem_stats_get_name(size_t index);
/** Resets peaks to the current values. */
DSDEF DS_MUST_USE ds_result ds_mem_reset_peak_stats(ds_device device);
/** Resets totals and counters to 0. */
DSDEF DS_MUST_USE ds_result ds_mem_reset_accumulated_stats(ds_device device);
/** Returns allocated_bytes.all.current; 0 for a device that was never used. */
DSDEF size_t ds_mem_get_allocated(ds_device device);
/** Returns allocated_bytes.all.peak. */
DSDEF size_t ds_mem_get_max_allocated(ds_device device);
/** Returns reserved_bytes.all.current. */
DSDEF size_t ds_mem_get_reserved(ds_device device);
/** Returns reserved_bytes.all.peak. */
DSDEF size_t ds_mem_get_max_reserved(ds_device device);
/** Returns the bytes reserved and used by the driver's own pool of a device (DS_MEM_DRIVER_POOL,
    ds_resource_create_driver_pool). Counts all users of the pool. Either pointer may be NULL. */
DSDEF DS_MUST_USE ds_result ds_mem_get_driver_pool_info(ds_device device, size_t *out_reserved,
                                                        size_t *out_used);
/** Writes the table of torch.cuda.memory_summary to write_fn, line by line. It equals torch's
    except for devstream's name in the title. */
DSDEF DS_MUST_USE ds_result ds_mem_write_summary(ds_device device, int abbreviated,
                                                 ds_write_fn write_fn, void *user);
/** Writes the processes that use the device and their memory, as torch.cuda.list_gpu_processes
    does. For a GPU, uses NVML (see ds_device_get_utilization); without NVML, the text states its
    absence. For a CPU device, lists the processes that share its memory (ds_mem_export,
    ds_mem_import), with the shared bytes. */
DSDEF DS_MUST_USE ds_result ds_mem_write_processes(ds_device device, ds_write_fn write_fn,
                                                   void *user);

/* ---- history and snapshots ------------------------------------------------------------------- */

/** Parameters of ds_mem_history_start; zero means default. */
typedef struct ds_mem_history_desc {
    size_t entries;       /**< number of newest entries kept per device; 0: 65,536 */
    unsigned skip;        /**< DS_HISTORY_SKIP(action) of actions not to record */
    uint64_t reserved[4]; /**< 0 */
} ds_mem_history_desc;

/** Actions in the history; snapshots use torch's names. */
typedef enum ds_mem_action {
    DS_ACTION_ALLOC = 0,      /**< a block was allocated */
    DS_ACTION_FREE_REQUESTED, /**< the program freed a block */
    DS_ACTION_FREE_COMPLETED, /**< the memory of a freed block can be reused */
    DS_ACTION_SEGMENT_ALLOC,  /**< memory was allocated from the driver */
    DS_ACTION_SEGMENT_FREE,   /**< memory was freed to the driver */
    DS_ACTION_SEGMENT_MAP,    /**< pages were added to a growing segment */
    DS_ACTION_SEGMENT_UNMAP,  /**< pages were removed from a growing segment */
    DS_ACTION_SNAPSHOT,       /**< a snapshot was taken */
    DS_ACTION_OOM,            /**< an allocation failed */
    DS_ACTION_ANNOTATION      /**< ds_mem_annotate */
} ds_mem_action;

/** Mask for ds_mem_history_desc.skip; combine masks by |. */
#define DS_HISTORY_SKIP(action) (1u << (action))
/** Starts to record the history of all devices, with file, line and label. Discards the old
    history. Labels are not copied: labels of recorded blocks must stay valid until the next
    start. */
DSDEF DS_MUST_USE ds_result ds_mem_history_start(const ds_mem_history_desc *desc);
/** Stops recording. The history remains for snapshots until the next start. */
DSDEF DS_MUST_USE ds_result ds_mem_history_stop(void);
/** Adds a text (copied, at most 255 bytes) to the history of a device. Does nothing without history
    and observer. */
DSDEF DS_MUST_USE ds_result ds_mem_annotate(ds_device device, const char *text);

/** One entry of the history. */
typedef struct ds_mem_event {
    ds_mem_action action; /**< action */
    /** address of the block or segment; DS_ACTION_OOM: free bytes of the device */
    uint64_t address;
    uint64_t bytes;    /**< requested bytes of a block; size of a segment */
    uint64_t stream;   /**< ds_stream_get_id of the stream */
    uint64_t time_ns;  /**< time of the monotonic clock */
    ds_site site;      /**< call site; for a free, the site of the allocation */
    const char *label; /**< label of the block, or the annotation */
    ds_pool pool;      /**< 0: the default pool */
} ds_mem_event;

/** Observes every entry, also without recorded history. Runs under the allocator's locks and must
    not call devstream. */
typedef void (*ds_mem_event_fn)(ds_device device, const ds_mem_event *event, void *user);
/** Adds an observer, invoked for the entries of all devices. */
DSDEF DS_MUST_USE ds_result ds_mem_add_event_callback(ds_mem_event_fn fn, void *user);
/** Removes an observer. */
DSDEF DS_MUST_USE ds_result ds_mem_remove_event_callback(ds_mem_event_fn fn, void *user);

/** Formats of a snapshot. */
typedef enum ds_mem_format {
    DS_SNAPSHOT_PICKLE = 0, /**< format of pytorch.org/memory_viz and torch's tools */
    DS_SNAPSHOT_JSON = 1,   /**< the same data as JSON; docs/memory.md has the schema */
    /** one page with a drawing; opens in a browser without a network */
    DS_SNAPSHOT_HTML = 2
} ds_mem_format;

enum { DS_SNAPSHOT_NO_HISTORY = 1 /**< only segments and blocks */ };

/** Writes segments, blocks and history of all devices by calls of write_fn. pool.id not 0: of one
    pool. May be called on any thread at any time, also during a capture. Allocations on a device
    wait while its data is copied, but not while the data is written. */
DSDEF DS_MUST_USE ds_result ds_mem_write_snapshot(ds_mem_format format, unsigned flags,
                                                  ds_pool pool, ds_write_fn write_fn, void *user);
/** Writes a snapshot of all devices to a file and replaces an existing file. DS_ERR_SYSTEM: the
    file cannot be written. */
DSDEF DS_MUST_USE ds_result ds_mem_write_snapshot_file(ds_mem_format format, unsigned flags,
                                                       const char *path);
/** Invokes fn for every block of a device, live or not, in the order of addresses. DS_DEVICE_HOST:
    blocks of pinned memory. fn runs under the allocator's locks and must not call devstream. */
DSDEF DS_MUST_USE ds_result ds_mem_for_each_block(ds_device device, ds_mem_block_fn fn, void *user);

/* ---- pinned host memory ---------------------------------------------------------------------- */

/** Allocates cached pinned host memory for all devices. Uninitialised, aligned to 512 bytes (to 4
    KiB from a size of 4 KiB), and usable at once. size 0 sets *out to NULL and returns DS_OK. Does
    not wait for devices, but a driver may wait while it pins memory. May be called during a
    capture. Errors after the cache was freed: DS_ERR_OUT_OF_MEMORY, or DS_ERR_LIMIT_EXCEEDED if
    only the limit prevents the allocation. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_alloc(size_t size, void **out);
/** Frees a block. The memory is not reused before all recorded uses are complete. Does not block.
    Deferred in user code. NULL is allowed. DS_ERR_INVALID_VALUE: any other pointer that is not the
    start of a block, or a second free. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_free(void *ptr);
/** Records a use of the block by a stream of any device (ptr: any address inside the block). Call
    it after the stream's last use. On a capturing stream, the block belongs to the graph: it is not
    reused before the last graph and executable with the use are destroyed. Does nothing for NULL.
    DS_ERR_INVALID_VALUE: ptr is not inside a block. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_record_use(void *ptr, ds_stream stream);
/** Sets *out to 1 if the address lies inside an allocated block of the cache, else to 0 (result of
    record_event of torch's CachingHostAllocator). */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_owns(const void *ptr, int *out);
/** Frees all cached pinned memory without pending uses. Does not block. *out_released (may be
    NULL): bytes. DS_ERR_CAPTURE_UNSUPPORTED while a capture is open. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_empty_cache(size_t *out_released);
/** Limits the reserved pinned memory, in bytes; 0: no limit. Memory reserved before the call
    remains. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_set_limit(size_t bytes);

/** Durations of driver calls, in microseconds. */
typedef struct ds_mem_duration {
    int64_t total; /**< sum */
    int64_t max;   /**< longest call */
    int64_t min;   /**< shortest call */
    int64_t count; /**< number of calls */
    int64_t avg;   /**< total / count */
} ds_mem_duration;

/** torch.cuda.host_memory_stats as a struct. All values are exact for any number of threads, also
    peaks. */
typedef struct ds_mem_pinned_stats {
    ds_mem_stat allocations;     /**< allocated blocks */
    ds_mem_stat allocated_bytes; /**< bytes of live and cached blocks */
    /** blocks allocated, or freed but still in use by a stream */
    ds_mem_stat active_requests;
    ds_mem_stat active_bytes;        /**< bytes of these blocks */
    ds_mem_duration host_alloc_time; /**< of calls that allocate */
    ds_mem_duration host_free_time;  /**< of calls that free */
    int64_t num_host_alloc;          /**< calls that allocate */
    int64_t num_host_free;           /**< calls that free */
    uint64_t reserved[16];           /**< 0 */
} ds_mem_pinned_stats;

/** Returns the statistics of pinned memory. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_get_stats(ds_mem_pinned_stats *out);
/** Resets peaks to the current values. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_reset_peak_stats(void);
/** Resets totals to 0. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_reset_accumulated_stats(void);

/* ---- resources ------------------------------------------------------------------------------- */

/** Allocates size bytes (never 0) for work enqueued on the stream from now on. alignment is a power
    of two; 0: the resource's usual alignment, at least 256. */
typedef ds_result (*ds_resource_alloc_fn)(void *user, size_t size, size_t alignment,
                                          ds_stream stream, void **out);
/** Frees memory of ds_resource_alloc_fn with the size of its allocation. stream: the stream of the
    last use; zeroed: all work that uses the memory is complete. */
typedef ds_result (*ds_resource_free_fn)(void *user, void *ptr, size_t size, ds_stream stream);

/** Source of memory, as RMM's device_memory_resource: two functions and their user pointer. The
    functions below create resources that all threads may use. A program may also fill in its own
    resource. A copy is the same resource. Adaptors take their memory from another resource
    (upstream) and may be nested to any depth. */
struct ds_resource {
    ds_resource_alloc_fn alloc_fn; /**< required */
    ds_resource_free_fn free_fn;   /**< required */
    void *user;                    /**< passed to both */
};

/** Allocates from a resource. size 0 sets *out to NULL and returns DS_OK. DS_ERR_OUT_OF_MEMORY: the
    resource is exhausted. DS_ERR_LIMIT_EXCEEDED: a limit of ds_resource_create_limit or the
    allocator prevents the allocation. DS_ERR_INVALID_VALUE: the alignment is not a power of two or
    exceeds the resource's maximum. Other results come from functions of the program. */
DSDEF DS_MUST_USE ds_result ds_resource_alloc(const ds_resource *resource, size_t size,
                                              size_t alignment, ds_stream stream, void **out);
/** Frees memory of the resource. NULL is allowed. */
DSDEF DS_MUST_USE ds_result ds_resource_free(const ds_resource *resource, void *ptr, size_t size,
                                             ds_stream stream);

/** Creates a resource of ds_device_alloc and ds_device_free: every free waits for the device. */
DSDEF DS_MUST_USE ds_result ds_resource_create_device(ds_device device, ds_resource *out);
/** Creates a resource of a pool. 0: the pool of ds_mem_alloc (ds_pool_push, or the default pool of
    the stream's device). */
DSDEF DS_MUST_USE ds_result ds_resource_create_pool(ds_pool pool, ds_resource *out);
/** Creates a resource of the driver's own pool of the stream's device (cudaMallocAsync). */
DSDEF DS_MUST_USE ds_result ds_resource_create_driver_pool(ds_resource *out);
/** Creates a resource of functions of the program. */
DSDEF DS_MUST_USE ds_result ds_resource_create_functions(ds_resource_alloc_fn alloc_fn,
                                                         ds_resource_free_fn free_fn, void *user,
                                                         ds_resource *out);

/** Creates an adaptor that limits the bytes allocated at a time. DS_ERR_LIMIT_EXCEEDED: an
    allocation above the limit. */
DSDEF DS_MUST_USE ds_result ds_resource_create_limit(const ds_resource *upstream, size_t bytes,
                                                     ds_resource *out);
/** Creates an adaptor that counts for ds_resource_get_stats. */
DSDEF DS_MUST_USE ds_result ds_resource_create_stats(const ds_resource *upstream, ds_resource *out);
/** Creates an adaptor that writes one line of CSV per call. The first line is the header
    "time_us,action,pointer,size,stream". The time comes from the monotonic clock. The action is
    allocate, free or allocate_failure; stream is ds_stream_get_id, 0 for no stream. Lines are
    written one at a time; if write_fn asks to stop, logging ends. */
DSDEF DS_MUST_USE ds_result ds_resource_create_log(const ds_resource *upstream,
                                                   ds_write_fn write_fn, void *user,
                                                   ds_resource *out);
/** Called if the upstream is out of memory for size bytes. Returns 1 to retry, 0 to fail. May call
    devstream. */
typedef int (*ds_resource_failure_fn)(size_t size, void *user);
/** Creates an adaptor that invokes fn if memory is short, and retries as long as fn returns 1. */
DSDEF DS_MUST_USE ds_result ds_resource_create_on_failure(const ds_resource *upstream,
                                                          ds_resource_failure_fn fn, void *user,
                                                          ds_resource *out);
/** Creates an adaptor that aligns allocations of at least `threshold` bytes to `alignment`, a power
    of two. Alignments requested by the caller are kept for all sizes. */
DSDEF DS_MUST_USE ds_result ds_resource_create_aligned(const ds_resource *upstream,
                                                       size_t alignment, size_t threshold,
                                                       ds_resource *out);

/** Statistics of ds_resource_create_stats. */
typedef struct ds_resource_stats {
    ds_mem_stat bytes;       /**< requested bytes */
    ds_mem_stat allocations; /**< number of allocations */
    uint64_t reserved[8];    /**< 0 */
} ds_resource_stats;

/** Returns the statistics since the creation of the resource, or since the innermost push. */
DSDEF DS_MUST_USE ds_result ds_resource_get_stats(const ds_resource *resource,
                                                  ds_resource_stats *out);
/** Starts new statistics at 0 until the matching pop. Nests up to 16 deep. DS_ERR_ILLEGAL_STATE: a
    deeper push. */
DSDEF DS_MUST_USE ds_result ds_resource_push_stats(const ds_resource *resource);
/** Returns the statistics since the matching push (out may be NULL), and adds them to the outer
    statistics. DS_ERR_ILLEGAL_STATE if no push is open. */
DSDEF DS_MUST_USE ds_result ds_resource_pop_stats(const ds_resource *resource,
                                                  ds_resource_stats *out);

/** Destroys a resource and zeroes *resource. Later calls on its copies return an error.
    DS_ERR_ILLEGAL_STATE: memory of the resource is allocated (also by a pool), or an adaptor uses
    it. A resource filled in by the program is only zeroed. */
DSDEF DS_MUST_USE ds_result ds_resource_destroy(ds_resource *resource);

/* ---- sharing between processes --------------------------------------------------------------- */

/** Handle of a block for other processes: bytes that can be sent to them. */
typedef struct ds_ipc_mem_handle {
    unsigned char bytes[256]; /**< opaque; read by ds_mem_import only */
} ds_ipc_mem_handle;

/** Writes the handle by which other processes import the block around `ptr` (any address inside).
    May be called repeatedly. Work enqueued on the block's stream before the call is ordered before
    the importer's work. Keep the block until a process has imported it: the free of a block without
    importers invalidates the handle. Memory of an imported block is reused only after all importers
    have closed it or ended; the free does not wait. Does not block, except for the block's stream
    if 1,000 blocks are already exported. DS_ERR_INVALID_VALUE: the block's pool is not shareable
    (ds_pool_desc), or the block was imported. DS_ERR_LIMIT_EXCEEDED: 16,384 blocks and segments are
    exported. */
DSDEF DS_MUST_USE ds_result ds_mem_export(const void *ptr, ds_ipc_mem_handle *out);
/** Imports a block of another process on a device of the same type. *out is the address in this
    process that corresponds to the exported `ptr`. Later work on `stream`, a stream of that device,
    waits for the work before the export. Other streams must be ordered after `stream`. Repeated
    imports of a block share one mapping. Each import needs a ds_mem_import_close.

    Errors: DS_ERR_LIMIT_EXCEEDED (62 processes already share the block), DS_ERR_PEER_DIED (the
    exporter has ended), DS_ERR_INVALID_HANDLE (the exporter has freed the block),
    DS_ERR_ILLEGAL_STATE (exported by this process), DS_ERR_CROSS_DRIVER (memory of another device
    type), DS_ERR_DEVICE_MISMATCH (stream of another device), DS_ERR_CAPTURE_UNSUPPORTED (the stream
    captures), DS_ERR_UNSUPPORTED (handle of a newer devstream). */
DSDEF DS_MUST_USE ds_result ds_mem_import(ds_device device, const ds_ipc_mem_handle *handle,
                                          ds_stream stream, void **out);
/** Closes one import of the block that contains `ptr`, after the last use on the stream (of any
    device of the driver). The exporter may reuse the memory after the work enqueued on the stream
    so far. Does not block, except for a failed stream. Errors: DS_ERR_INVALID_VALUE (not an
    imported block), DS_ERR_CROSS_DRIVER (stream of another driver), DS_ERR_CAPTURE_UNSUPPORTED (the
    stream captures). */
DSDEF DS_MUST_USE ds_result ds_mem_import_close(void *ptr, ds_stream stream);
/** Returns freed blocks without importers to their pools, and closes unused imported segments.
    Exports, imports, closes, frees and memory shortages do the same implicitly. May be called at
    any time. */
DSDEF DS_MUST_USE ds_result ds_mem_ipc_collect(void);

/* ---- debugging ------------------------------------------------------------------------------- */

/** Checks all structures of a device's allocator (DS_DEVICE_HOST: of pinned memory). Also checks
    its statistics, pool statistics and limit counters against the sums over its blocks.
    DS_ERR_ILLEGAL_STATE: a structure is damaged; the error names it. */
DSDEF DS_MUST_USE ds_result ds_mem_validate(ds_device device);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES

static inline DS_MUST_USE ds_result ds_at_mem_configure(const char *file_, int line_,
        ds_device device_, const ds_mem_config *config_) {
    return ds_site_set(file_, line_), (ds_mem_configure)(device_, config_);
}
#define ds_mem_configure(...) ds_at_mem_configure(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_configure_text(const char *file_, int line_,
        const char *text_) {
    return ds_site_set(file_, line_), (ds_mem_configure_text)(text_);
}
#define ds_mem_configure_text(...) ds_at_mem_configure_text(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_config_parse(const char *file_, int line_,
        const char *text_, ds_mem_config *config_) {
    return ds_site_set(file_, line_), (ds_mem_config_parse)(text_, config_);
}
#define ds_mem_config_parse(...) ds_at_mem_config_parse(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_get_config(const char *file_, int line_,
        ds_device device_, ds_mem_config *out_) {
    return ds_site_set(file_, line_), (ds_mem_get_config)(device_, out_);
}
#define ds_mem_get_config(...) ds_at_mem_get_config(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_alloc(const char *file_, int line_,
        size_t size_, ds_stream stream_, void **out_) {
    return ds_site_set(file_, line_), (ds_mem_alloc)(size_, stream_, out_);
}
#define ds_mem_alloc(...) ds_at_mem_alloc(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_alloc_with(const char *file_, int line_,
        const ds_mem_request *request_, void **out_) {
    return ds_site_set(file_, line_), (ds_mem_alloc_with)(request_, out_);
}
#define ds_mem_alloc_with(...) ds_at_mem_alloc_with(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_free(const char *file_, int line_,
        void *ptr_) {
    return ds_site_set(file_, line_), (ds_mem_free)(ptr_);
}
#define ds_mem_free(...) ds_at_mem_free(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_record_use(const char *file_, int line_,
        void *ptr_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_mem_record_use)(ptr_, stream_);
}
#define ds_mem_record_use(...) ds_at_mem_record_use(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_record_stream(const char *file_, int line_,
        void *ptr_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_mem_record_stream)(ptr_, stream_);
}
#define ds_mem_record_stream(...) ds_at_mem_record_stream(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_get_block(const char *file_, int line_,
        const void *ptr_, ds_mem_block *out_) {
    return ds_site_set(file_, line_), (ds_mem_get_block)(ptr_, out_);
}
#define ds_mem_get_block(...) ds_at_mem_get_block(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_empty_cache(const char *file_, int line_,
        ds_device device_, size_t *out_released_) {
    return ds_site_set(file_, line_), (ds_mem_empty_cache)(device_, out_released_);
}
#define ds_mem_empty_cache(...) ds_at_mem_empty_cache(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_empty_stream_cache(const char *file_, int line_,
        ds_stream stream_, size_t *out_released_) {
    return ds_site_set(file_, line_), (ds_mem_empty_stream_cache)(stream_, out_released_);
}
#define ds_mem_empty_stream_cache(...) ds_at_mem_empty_stream_cache(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_trim(const char *file_, int line_,
        ds_device device_, size_t keep_, size_t *out_released_) {
    return ds_site_set(file_, line_), (ds_mem_trim)(device_, keep_, out_released_);
}
#define ds_mem_trim(...) ds_at_mem_trim(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_create(const char *file_, int line_,
        const ds_pool_desc *desc_, ds_pool *out_) {
    return ds_site_set(file_, line_), (ds_pool_create)(desc_, out_);
}
#define ds_pool_create(...) ds_at_pool_create(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_destroy(const char *file_, int line_,
        ds_pool pool_) {
    return ds_site_set(file_, line_), (ds_pool_destroy)(pool_);
}
#define ds_pool_destroy(...) ds_at_pool_destroy(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_push(const char *file_, int line_,
        ds_pool pool_) {
    return ds_site_set(file_, line_), (ds_pool_push)(pool_);
}
#define ds_pool_push(...) ds_at_pool_push(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_pop(const char *file_, int line_) {
    return ds_site_set(file_, line_), (ds_pool_pop)();
}
#define ds_pool_pop() ds_at_pool_pop(__FILE__, __LINE__)

static inline DS_MUST_USE ds_result ds_at_capture_set_pool(const char *file_, int line_,
        ds_stream stream_, ds_pool pool_) {
    return ds_site_set(file_, line_), (ds_capture_set_pool)(stream_, pool_);
}
#define ds_capture_set_pool(...) ds_at_capture_set_pool(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_get_use_count(const char *file_, int line_,
        ds_pool pool_, int *out_) {
    return ds_site_set(file_, line_), (ds_pool_get_use_count)(pool_, out_);
}
#define ds_pool_get_use_count(...) ds_at_pool_get_use_count(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_get_id(const char *file_, int line_,
        ds_pool pool_, uint64_t out_id_[2]) {
    return ds_site_set(file_, line_), (ds_pool_get_id)(pool_, out_id_);
}
#define ds_pool_get_id(...) ds_at_pool_get_id(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_empty_cache(const char *file_, int line_,
        ds_pool pool_, size_t *out_released_) {
    return ds_site_set(file_, line_), (ds_pool_empty_cache)(pool_, out_released_);
}
#define ds_pool_empty_cache(...) ds_at_pool_empty_cache(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_save(const char *file_, int line_,
        ds_pool pool_, ds_pool_checkpoint **out_) {
    return ds_site_set(file_, line_), (ds_pool_save)(pool_, out_);
}
#define ds_pool_save(...) ds_at_pool_save(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_restore(const char *file_, int line_,
        ds_pool pool_, const ds_pool_checkpoint *checkpoint_, ds_mem_block_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_pool_restore)(pool_, checkpoint_, fn_, user_);
}
#define ds_pool_restore(...) ds_at_pool_restore(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_check_live(const char *file_, int line_,
        ds_pool pool_, void *const *ptrs_, size_t count_) {
    return ds_site_set(file_, line_), (ds_pool_check_live)(pool_, ptrs_, count_);
}
#define ds_pool_check_live(...) ds_at_pool_check_live(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_set_limit(const char *file_, int line_,
        ds_device device_, size_t bytes_) {
    return ds_site_set(file_, line_), (ds_mem_set_limit)(device_, bytes_);
}
#define ds_mem_set_limit(...) ds_at_mem_set_limit(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_get_limit(const char *file_, int line_,
        ds_device device_, size_t *out_) {
    return ds_site_set(file_, line_), (ds_mem_get_limit)(device_, out_);
}
#define ds_mem_get_limit(...) ds_at_mem_get_limit(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_set_fraction(const char *file_, int line_,
        ds_device device_, double fraction_) {
    return ds_site_set(file_, line_), (ds_mem_set_fraction)(device_, fraction_);
}
#define ds_mem_set_fraction(...) ds_at_mem_set_fraction(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_get_fraction(const char *file_, int line_,
        ds_device device_, double *out_) {
    return ds_site_set(file_, line_), (ds_mem_get_fraction)(device_, out_);
}
#define ds_mem_get_fraction(...) ds_at_mem_get_fraction(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_add_shortage_callback(const char *file_, int line_,
        ds_mem_shortage_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_add_shortage_callback)(fn_, user_);
}
#define ds_mem_add_shortage_callback(...) ds_at_mem_add_shortage_callback(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_remove_shortage_callback(const char *file_, int line_,
        ds_mem_shortage_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_remove_shortage_callback)(fn_, user_);
}
#define ds_mem_remove_shortage_callback(...) ds_at_mem_remove_shortage_callback(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_add_oom_callback(const char *file_, int line_,
        ds_mem_oom_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_add_oom_callback)(fn_, user_);
}
#define ds_mem_add_oom_callback(...) ds_at_mem_add_oom_callback(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_remove_oom_callback(const char *file_, int line_,
        ds_mem_oom_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_remove_oom_callback)(fn_, user_);
}
#define ds_mem_remove_oom_callback(...) ds_at_mem_remove_oom_callback(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_get_stats(const char *file_, int line_,
        ds_device device_, ds_mem_stats *out_) {
    return ds_site_set(file_, line_), (ds_mem_get_stats)(device_, out_);
}
#define ds_mem_get_stats(...) ds_at_mem_get_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_pool_get_stats(const char *file_, int line_,
        ds_pool pool_, ds_mem_stats *out_) {
    return ds_site_set(file_, line_), (ds_pool_get_stats)(pool_, out_);
}
#define ds_pool_get_stats(...) ds_at_pool_get_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_stats_get_by_name(const char *file_, int line_,
        const ds_mem_stats *stats_, const char *name_, int64_t *out_) {
    return ds_site_set(file_, line_), (ds_mem_stats_get_by_name)(stats_, name_, out_);
}
#define ds_mem_stats_get_by_name(...) ds_at_mem_stats_get_by_name(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_reset_peak_stats(const char *file_, int line_,
        ds_device device_) {
    return ds_site_set(file_, line_), (ds_mem_reset_peak_stats)(device_);
}
#define ds_mem_reset_peak_stats(...) ds_at_mem_reset_peak_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_reset_accumulated_stats(const char *file_, int line_,
        ds_device device_) {
    return ds_site_set(file_, line_), (ds_mem_reset_accumulated_stats)(device_);
}
#define ds_mem_reset_accumulated_stats(...) ds_at_mem_reset_accumulated_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_get_driver_pool_info(const char *file_, int line_,
        ds_device device_, size_t *out_reserved_, size_t *out_used_) {
    return ds_site_set(file_, line_), (ds_mem_get_driver_pool_info)(device_, out_reserved_, out_used_);
}
#define ds_mem_get_driver_pool_info(...) ds_at_mem_get_driver_pool_info(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_write_summary(const char *file_, int line_,
        ds_device device_, int abbreviated_, ds_write_fn write_fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_write_summary)(device_, abbreviated_, write_fn_, user_);
}
#define ds_mem_write_summary(...) ds_at_mem_write_summary(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_write_processes(const char *file_, int line_,
        ds_device device_, ds_write_fn write_fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_write_processes)(device_, write_fn_, user_);
}
#define ds_mem_write_processes(...) ds_at_mem_write_processes(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_history_start(const char *file_, int line_,
        const ds_mem_history_desc *desc_) {
    return ds_site_set(file_, line_), (ds_mem_history_start)(desc_);
}
#define ds_mem_history_start(...) ds_at_mem_history_start(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_history_stop(const char *file_, int line_) {
    return ds_site_set(file_, line_), (ds_mem_history_stop)();
}
#define ds_mem_history_stop() ds_at_mem_history_stop(__FILE__, __LINE__)

static inline DS_MUST_USE ds_result ds_at_mem_annotate(const char *file_, int line_,
        ds_device device_, const char *text_) {
    return ds_site_set(file_, line_), (ds_mem_annotate)(device_, text_);
}
#define ds_mem_annotate(...) ds_at_mem_annotate(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_add_event_callback(const char *file_, int line_,
        ds_mem_event_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_add_event_callback)(fn_, user_);
}
#define ds_mem_add_event_callback(...) ds_at_mem_add_event_callback(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_remove_event_callback(const char *file_, int line_,
        ds_mem_event_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_remove_event_callback)(fn_, user_);
}
#define ds_mem_remove_event_callback(...) ds_at_mem_remove_event_callback(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_write_snapshot(const char *file_, int line_,
        ds_mem_format format_, unsigned flags_, ds_pool pool_, ds_write_fn write_fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_write_snapshot)(format_, flags_, pool_, write_fn_, user_);
}
#define ds_mem_write_snapshot(...) ds_at_mem_write_snapshot(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_write_snapshot_file(const char *file_, int line_,
        ds_mem_format format_, unsigned flags_, const char *path_) {
    return ds_site_set(file_, line_), (ds_mem_write_snapshot_file)(format_, flags_, path_);
}
#define ds_mem_write_snapshot_file(...) ds_at_mem_write_snapshot_file(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_for_each_block(const char *file_, int line_,
        ds_device device_, ds_mem_block_fn fn_, void *user_) {
    return ds_site_set(file_, line_), (ds_mem_for_each_block)(device_, fn_, user_);
}
#define ds_mem_for_each_block(...) ds_at_mem_for_each_block(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_alloc(const char *file_, int line_,
        size_t size_, void **out_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_alloc)(size_, out_);
}
#define ds_mem_pinned_alloc(...) ds_at_mem_pinned_alloc(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_free(const char *file_, int line_,
        void *ptr_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_free)(ptr_);
}
#define ds_mem_pinned_free(...) ds_at_mem_pinned_free(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_record_use(const char *file_, int line_,
        void *ptr_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_record_use)(ptr_, stream_);
}
#define ds_mem_pinned_record_use(...) ds_at_mem_pinned_record_use(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_owns(const char *file_, int line_,
        const void *ptr_, int *out_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_owns)(ptr_, out_);
}
#define ds_mem_pinned_owns(...) ds_at_mem_pinned_owns(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_empty_cache(const char *file_, int line_,
        size_t *out_released_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_empty_cache)(out_released_);
}
#define ds_mem_pinned_empty_cache(...) ds_at_mem_pinned_empty_cache(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_set_limit(const char *file_, int line_,
        size_t bytes_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_set_limit)(bytes_);
}
#define ds_mem_pinned_set_limit(...) ds_at_mem_pinned_set_limit(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_get_stats(const char *file_, int line_,
        ds_mem_pinned_stats *out_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_get_stats)(out_);
}
#define ds_mem_pinned_get_stats(...) ds_at_mem_pinned_get_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_reset_peak_stats(const char *file_, int line_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_reset_peak_stats)();
}
#define ds_mem_pinned_reset_peak_stats() ds_at_mem_pinned_reset_peak_stats(__FILE__, __LINE__)

static inline DS_MUST_USE ds_result ds_at_mem_pinned_reset_accumulated_stats(const char *file_, int line_) {
    return ds_site_set(file_, line_), (ds_mem_pinned_reset_accumulated_stats)();
}
#define ds_mem_pinned_reset_accumulated_stats() ds_at_mem_pinned_reset_accumulated_stats(__FILE__, __LINE__)

static inline DS_MUST_USE ds_result ds_at_resource_alloc(const char *file_, int line_,
        const ds_resource *resource_, size_t size_, size_t alignment_, ds_stream stream_, void **out_) {
    return ds_site_set(file_, line_), (ds_resource_alloc)(resource_, size_, alignment_, stream_, out_);
}
#define ds_resource_alloc(...) ds_at_resource_alloc(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_free(const char *file_, int line_,
        const ds_resource *resource_, void *ptr_, size_t size_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_resource_free)(resource_, ptr_, size_, stream_);
}
#define ds_resource_free(...) ds_at_resource_free(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_device(const char *file_, int line_,
        ds_device device_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_device)(device_, out_);
}
#define ds_resource_create_device(...) ds_at_resource_create_device(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_pool(const char *file_, int line_,
        ds_pool pool_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_pool)(pool_, out_);
}
#define ds_resource_create_pool(...) ds_at_resource_create_pool(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_driver_pool(const char *file_, int line_,
        ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_driver_pool)(out_);
}
#define ds_resource_create_driver_pool(...) ds_at_resource_create_driver_pool(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_functions(const char *file_, int line_,
        ds_resource_alloc_fn alloc_fn_, ds_resource_free_fn free_fn_, void *user_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_functions)(alloc_fn_, free_fn_, user_, out_);
}
#define ds_resource_create_functions(...) ds_at_resource_create_functions(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_limit(const char *file_, int line_,
        const ds_resource *upstream_, size_t bytes_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_limit)(upstream_, bytes_, out_);
}
#define ds_resource_create_limit(...) ds_at_resource_create_limit(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_stats(const char *file_, int line_,
        const ds_resource *upstream_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_stats)(upstream_, out_);
}
#define ds_resource_create_stats(...) ds_at_resource_create_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_log(const char *file_, int line_,
        const ds_resource *upstream_, ds_write_fn write_fn_, void *user_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_log)(upstream_, write_fn_, user_, out_);
}
#define ds_resource_create_log(...) ds_at_resource_create_log(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_on_failure(const char *file_, int line_,
        const ds_resource *upstream_, ds_resource_failure_fn fn_, void *user_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_on_failure)(upstream_, fn_, user_, out_);
}
#define ds_resource_create_on_failure(...) ds_at_resource_create_on_failure(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_create_aligned(const char *file_, int line_,
        const ds_resource *upstream_, size_t alignment_, size_t threshold_, ds_resource *out_) {
    return ds_site_set(file_, line_), (ds_resource_create_aligned)(upstream_, alignment_, threshold_, out_);
}
#define ds_resource_create_aligned(...) ds_at_resource_create_aligned(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_get_stats(const char *file_, int line_,
        const ds_resource *resource_, ds_resource_stats *out_) {
    return ds_site_set(file_, line_), (ds_resource_get_stats)(resource_, out_);
}
#define ds_resource_get_stats(...) ds_at_resource_get_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_push_stats(const char *file_, int line_,
        const ds_resource *resource_) {
    return ds_site_set(file_, line_), (ds_resource_push_stats)(resource_);
}
#define ds_resource_push_stats(...) ds_at_resource_push_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_pop_stats(const char *file_, int line_,
        const ds_resource *resource_, ds_resource_stats *out_) {
    return ds_site_set(file_, line_), (ds_resource_pop_stats)(resource_, out_);
}
#define ds_resource_pop_stats(...) ds_at_resource_pop_stats(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_resource_destroy(const char *file_, int line_,
        ds_resource *resource_) {
    return ds_site_set(file_, line_), (ds_resource_destroy)(resource_);
}
#define ds_resource_destroy(...) ds_at_resource_destroy(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_export(const char *file_, int line_,
        const void *ptr_, ds_ipc_mem_handle *out_) {
    return ds_site_set(file_, line_), (ds_mem_export)(ptr_, out_);
}
#define ds_mem_export(...) ds_at_mem_export(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_import(const char *file_, int line_,
        ds_device device_, const ds_ipc_mem_handle *handle_, ds_stream stream_, void **out_) {
    return ds_site_set(file_, line_), (ds_mem_import)(device_, handle_, stream_, out_);
}
#define ds_mem_import(...) ds_at_mem_import(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_import_close(const char *file_, int line_,
        void *ptr_, ds_stream stream_) {
    return ds_site_set(file_, line_), (ds_mem_import_close)(ptr_, stream_);
}
#define ds_mem_import_close(...) ds_at_mem_import_close(__FILE__, __LINE__, __VA_ARGS__)

static inline DS_MUST_USE ds_result ds_at_mem_ipc_collect(const char *file_, int line_) {
    return ds_site_set(file_, line_), (ds_mem_ipc_collect)();
}
#define ds_mem_ipc_collect() ds_at_mem_ipc_collect(__FILE__, __LINE__)

static inline DS_MUST_USE ds_result ds_at_mem_validate(const char *file_, int line_,
        ds_device device_) {
    return ds_site_set(file_, line_), (ds_mem_validate)(device_);
}
#define ds_mem_validate(...) ds_at_mem_validate(__FILE__, __LINE__, __VA_ARGS__)

#endif

#endif /* DEVSTREAM_ALLOC_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_ALLOC_H_IMPLEMENTED)
#define DEVSTREAM_ALLOC_H_IMPLEMENTED
#ifndef __cplusplus

/* alloc/internal.h - functions of the allocator that other layers use.

   Declares the functions of the allocator that tensors and collectives use, beyond the public ones.

   Invariants: If a function fails, it sets the error.
   Locks: Callers hold none; ds__mem_operand and ds__pinned_operand take the lock of an arena.
   Threads: any. */

/* Reads the environment and enters the module at the first use. */
static ds_result ds__mem_setup(void);

/* Notes that a stream, which the caller has pinned, uses memory. Memory of other sources, and
   memory of the stream itself, needs no note. In a capture, the program must keep the memory. */
static ds_result ds__mem_operand(void *ptr, ds__stream *s, ds_stream stream);
/* Notes that a stream uses pinned memory. */
static ds_result ds__pinned_operand(void *ptr, ds_stream stream);

/* Destroys an event of the library's own; a zero handle is allowed. */
static void ds__use_event_destroy(ds_event event);

/* State of the current call while a function of the program runs. */
typedef struct ds__outside {
    const char *fn;
    ds_site site;
    ds_capture_mode mode;
    int mute;
} ds__outside;

/* Called before and after a function of the program. Calls in the function report their own
   errors. */
static ds__outside ds__outside_begin(void);
static void ds__outside_end(ds__outside o);

/* alloc/types.h - types and policy of the caching allocator.

   Defines the structures of the allocator: block (ds__mem_block), segment, arena, pool
   (ds__mem_pool), device (ds__mem_dev), stream use (ds__stream_use), bins and counters. Most rooms
   of alloc/ include it.

   Policy:
    1. An arena holds the free memory of one stream in one pool, under a lock of its own. A pool
       has an arena for each stream.
    2. A segment is memory from the driver, divided into blocks. It is plain, or it grows page
       by page in reserved address space.
    3. An allocation takes the best fitting free block of its arena and splits it. A free merges
       the block with its free neighbours.
    4. A freed block that other streams used is pending until the events of these uses are
       complete. An allocation without another block takes a pending one and makes its stream
       wait for the events.
    5. Free blocks of ended streams go to the first stream in need of memory.
    6. A table with two levels maps addresses, in granules of 2 MiB, to segments, and is read
       without a lock. Descriptions of segments and arenas stay until ds_shutdown, so a late
       look-up reads valid objects.
    7. Fast path: a thread remembers the arena of the stream on which it allocated last. An
       arena keeps freed blocks apart and unmerged (parked), for the next requests of their
       sizes: up to 16 small ones of each of 64 sizes, and the last one of all others. They are
       merged before a request grows the memory in use. Peaks are checked when the headroom
       below them is used up.
    8. A use by another stream gets its event from the one thread that claims the use. This
       happens at ds_mem_record_use, at the free, or at the end of the stream.
    9. A free without a cache may be impossible for now, because a capture is open or a stream's
       work is not done. It is deferred, and later calls try again.
   10. The host waits for events recorded outside of captures, not for streams, so a capture may
       begin meanwhile. If no such event can be recorded and no capture is open, the device is
       synchronised.

   Invariants: The blocks of a segment fill its address space without gaps, in the order of
   addresses. Sizes of blocks are multiples of 512 (DS__UNIT). A claimed block is in no bin: it is
   parked, or one thread works on it without the lock. A segment's `arena` is NULL if its
   description is not in use.
   Locks: the order is an arena's `giving`, its `grow`, the device's `lock`, arenas' `lock`,
   ds__memory_state.registry. ds__memory_state.lock comes before the device's `lock`. More than one
   arena's `lock` is held only with the device's. The driver must not be called with a spinning lock
   held. Observers (ds_mem_add_event_callback) may run under all of these but the registry's.
   Threads: any. Atomic members may be read without a lock. */

#define DS__UNIT ((size_t)512)
#define DS__SMALL_LIMIT ((size_t)1 << 20) /* requests up to this are small */
#define DS__MIB ((size_t)1 << 20)

enum { DS__SMALL = 0, DS__LARGE = 1 };

typedef struct ds__mem_block ds__mem_block;
typedef struct ds__segment ds__segment;
typedef struct ds__arena ds__arena;
typedef struct ds__mem_pool ds__mem_pool;
typedef struct ds__mem_dev ds__mem_dev;

typedef struct ds__hold ds__hold;

/* The last use of a block by another stream than the arena's. */
typedef struct ds__stream_use {
    struct ds__stream_use *next;
    ds_stream stream;
    uint64_t stream_id; /* ds_stream_get_id; only in the first use of a lent block */
    ds_event event;
    ds__hold *hold;   /* pinned memory: a use in a capture, which has no event */
    int64_t device;   /* ds__device_key of the event's device */
    uint64_t capture; /* the capture in which the event was recorded; 0: none */
    /* 1: the stream has ended, and its event could not be recorded before */
    uint8_t lost;
    /* 1: the event is recorded; 0: it will be, at the free (ds_mem_record_stream) or after a
       capture; or DS__RECORDING */
    _Atomic uint8_t recorded;
} ds__stream_use;

#define DS__RECORDING 2 /* a thread records the event now */

/* Describes a part of a segment: 104 bytes. */
struct ds__mem_block {
    char *ptr;
    size_t size;
    size_t asked;
    ds__mem_block *prev;      /* neighbour in the segment, at lower addresses */
    ds__mem_block *next;      /* neighbour in the segment, at higher addresses */
    ds__mem_block *list_prev; /* in the bin (free), in the list of pending blocks, or of holes */
    /* in the list of `list_prev`; of a live block: in the list of its granule */
    ds__mem_block *list_next;
    ds__segment *seg;
    ds__stream_use *uses;
    const char *label;
    const char *file;
    uint32_t line;

    union {
        struct {
            uint8_t state;    /* a ds_mem_state */
            uint8_t exported; /* 1: other processes may use the block */
            /* 1: the block is live on another stream than the arena's, or was so until the free;
               this stream has the first one of `uses` */
            uint8_t lent;
            /* 1: the block is in no bin, because it is parked, or a thread works on it without the
               lock */
            uint8_t claimed;
        };

        uint32_t flags; /* the four members above as one number */
    };

    uint16_t bin;     /* of a free block */
    uint8_t oversize; /* 1: counted among the blocks of max_split_size or more */
    uint8_t stale;    /* 1: freed, and must be poisoned before the next use */
    /* of a live block: the bytes behind the requested ones that were filled with DS__GUARD */
    uint32_t guarded;
};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define DS__FLAGS(state, claimed) ((uint32_t)(state) | (uint32_t)(claimed) << 24)
#else
#define DS__FLAGS(state, claimed) ((uint32_t)(state) << 24 | (uint32_t)(claimed))
#endif
enum {
    DS__FLAGS_LIVE = DS__FLAGS(DS_BLOCK_LIVE, 0),
    DS__FLAGS_PARKED = DS__FLAGS(DS_BLOCK_FREE, 1)
};

/* log2 of the granule of segments with many blocks, and of the parts of a sub-table; the number of
   blocks from which on a granule gets a sub-table. */
enum { DS__DENSE_SHIFT = 16, DS__SUB_TABLE_BITS = 5, DS__SUB_TABLE_FROM = 8 };

/* The live blocks of a granule with many blocks, by the part in which they start. */
typedef struct ds__sub_table {
    struct ds__sub_table *next; /* in the list of a segment, or of unused ones */
    ds__mem_block *at[1 << DS__SUB_TABLE_BITS];
} ds__sub_table;

struct ds__segment {
    ds__segment *next; /* in the arena's list; not in use: in ds__memory_state.free_segments */
    ds__segment *prev; /* in the arena's list */
    ds__arena *_Atomic arena; /* NULL: not in use */
    char *base;
    size_t size;   /* address space */
    size_t mapped; /* bytes of memory in the address space */
    size_t page;   /* growing: the unit of mapping; plain: 0 */
    ds__mem_block *first;
    /* for each granule of 1 << shift bytes, the list of the live blocks that start there; lowest
       bit: a ds__sub_table instead */
    ds__mem_block **granule;
    ds__sub_table *sub_tables;
    unsigned shift;
    uint8_t kind;     /* DS__SMALL or DS__LARGE */
    uint8_t source;   /* DS__FROM_* */
    uint8_t oversize; /* 1: counted among the segments of max_split_size or more */
    /* 1: has one block of a backend without a cache; the free of the block ends the segment */
    uint8_t direct;
    /* 1: the memory is being given back, so other segments may get its addresses; guarded by the
       registry's lock */
    uint8_t leaving;
    /* the stream that was passed to the upstream; growing: the size of pages that the policy had */
    uint64_t native;
    uint64_t serial; /* number of the segment, which orders the blocks of different segments */
};

#define DS__WATCHED (1u << 31) /* bit of ds__mem_dev.watch: there are observers */

/* The sources of a segment's memory: the driver's plain memory, reserved address space, a pool's
   upstream, the driver's own pool, shareable memory, pinned and registered memory. */
enum {
    DS__FROM_DRIVER = 0,
    DS__FROM_SPACE,
    DS__FROM_UPSTREAM,
    DS__FROM_ASYNC,
    DS__FROM_SHARE,
    DS__FROM_PINNED,
    DS__FROM_REGISTERED
};

/* Free blocks by size: 32 classes between two powers of two. */
#define DS__BINS 1536

typedef struct ds__bins {
    uint64_t summary;
    uint64_t map[DS__BINS / 64];
    ds__mem_block *head[DS__BINS];
} ds__bins;

/* Counts that change at every allocation and free, by kind of segment. */
enum {
    DS__ALLOCATION = 0,
    DS__ALLOCATED_BYTES,
    DS__REQUESTED_BYTES,
    DS__COUNTED,
    DS__ACTIVE = DS__COUNTED,
    DS__ACTIVE_BYTES,
    DS__METRICS
};

typedef struct ds__tally {
    struct {
        int64_t now[DS__COUNTED];
        int64_t total[DS__COUNTED];
        int64_t pending[2]; /* blocks and bytes that are active and not allocated */
    } kind[2];

    /* of both kinds, small, large; see ds__tally_peak for active blocks */
    int64_t peak[3][DS__METRICS];
} ds__tally;

/* The counts that may be added in a kind, or in both, before peaks must be checked. */
typedef struct ds__headroom {
    int64_t of[DS__COUNTED];
    /* blocks and bytes that have become pending since; they become headroom again when they are
       done, blocks that were pending before do not */
    int64_t owed[2];
} ds__headroom;

/* A count of driver calls or plain segments, which changes rarely. */
typedef struct ds__meter {
    _Atomic int64_t now;
    _Atomic int64_t peak;
    _Atomic int64_t total;
    _Atomic int64_t freed;
} ds__meter;

enum { DS__SEGMENT = 0, DS__RESERVED, DS__SPLIT, DS__SPLIT_BYTES, DS__METERS };

/* Statistics of a device or a pool. */
typedef struct ds__domain {
    /* all counts, while one thread allocates; later the counts up to then, and the peaks */
    ds__tally tally;
    int64_t freed_base[2][DS__METRICS]; /* total - now at the last reset of totals */
    int64_t frozen[2][DS__METRICS];     /* frees when totals stopped */
    /* the largest number of arenas that had room since peaks were reset; peaks may be too high by
       their rooms */
    int64_t sharers;
    ds__meter meter[2][DS__METERS];
    ds__meter all[DS__METERS];
    ds__meter oversize_allocations;
    ds__meter oversize_segments;
    _Atomic int64_t retries;
    _Atomic int64_t ooms;
    _Atomic int64_t syncs;
    _Atomic int64_t driver_allocs;
    _Atomic int64_t driver_frees;
    _Atomic int64_t rejections;
} ds__domain;

/* Freed blocks of one size that stay unmerged, for the next requests of this size. */
typedef struct ds__parked {
    ds__mem_block *first; /* linked by list_prev */
    uint32_t size;        /* of a quick list: the size of the blocks that enter it */
    uint32_t count;
} ds__parked;

/* Small blocks up to DS__QUICK_LIMIT bytes are parked in quick lists, which are chosen by size and
   have up to DS__QUICK_DEPTH blocks. Of other blocks, the last freed one of a kind is parked. */
#define DS__QUICK_LIMIT ((size_t)96 << 10)

enum { DS__QUICK_BITS = 6, DS__QUICK_LISTS = 1 << DS__QUICK_BITS, DS__QUICK_DEPTH = 16 };

enum { DS__PARKED_SLOTS = DS__QUICK_LISTS + 2 };

#define DS__ALIASES 3 /* further handles that an arena stores */

struct ds__arena {
    ds__spinlock lock;
    _Atomic uint8_t orphan; /* 1: the stream has ended */
    uint8_t exact;          /* 1: counts in the domains' tallies; 0: in its own */
    /* 1: the pool has poison, guards or debug from 2 on */
    _Atomic uint8_t watched;
    uint8_t slow;      /* 1: requests do not take the fast path */
    uint8_t slow_free; /* 1: frees do not take the fast path */
    uint8_t fresh;     /* ds__wanted.fresh of the request that searches the arena */
    uint8_t full;      /* 1: totals and peaks are counted */
    uint8_t own_pool;  /* 1: the pool is not the device's default one */
    uint8_t measured;  /* `full` or `own_pool`: `room` is kept */
    ds__mem_pool *pool;
    ds__mem_dev *dev;
    uint64_t stream_id; /* ds_stream_get_id */
    ds_stream stream;
    const void *identity; /* the driver's queue: wrappers of one stream share an arena */
    ds_event end;         /* of an orphan: behind the work of its stream */

    /* further handles of the stream (ds_stream_wrap) on which memory was allocated */
    struct {
        ds_stream stream;
        uint64_t id;
    } alias[DS__ALIASES];

    uint8_t crowded; /* 1: there were more than DS__ALIASES further handles */
    ds__arena *next; /* in the pool's list */
    ds__segment *segments;
    ds__mem_block *pending; /* the list from the oldest block to the newest */
    ds__mem_block *pending_last;
    /* blocks of backends without a cache that wait for another attempt to free them; linked by
       list_next */
    ds__mem_block *deferred;
    ds__mem_block *deferred_last;
    size_t deferred_count;
    size_t pending_bytes;
    size_t free_bytes;
    ds__mem_block *holes[2];             /* unmapped blocks, in the order of addresses */
    ds__parked parked[DS__PARKED_SLOTS]; /* see ds__parked_at */
    uint64_t quick_used;                 /* bits of the quick lists that may hold blocks */
    ds__tally own;
    ds__tally *tally;         /* the tally in use: the device's if `exact`, else `own` */
    ds__headroom own_room[3]; /* small, large, both */
    ds__headroom *room;       /* the headroom in use: the device's if `exact`, else `own_room` */
    /* the pool's counter of requests; NULL: garbage is not collected */
    _Atomic uint32_t *requests;
    ds__mem_block *spare_blocks; /* unused descriptions */
    ds__stream_use *spare_uses;
    ds__sub_table *spare_sub_tables;
    /* held while the segments change, but not while the host waits for the device */
    ds__mutex grow;
    ds__bins bins[2];
    /* held before `grow` while memory is given back, also while the host waits for the device; an
       allocation must not wait for it */
    ds__mutex giving;
};

struct ds__mem_pool {
    uint64_t id;        /* handle: index + 1 and generation; 0: a device's default pool */
    uint64_t name[2];   /* the identifier of ds_pool_get_id */
    ds__mem_pool *next; /* in the device's list */
    ds__mem_dev *dev;
    ds_mem_config config; /* for threads with the lock of an arena or of the device */
    /* a copy of the configuration without limits, for all other threads (ds__pool_policy) */
    const ds_mem_config *_Atomic policy;
    ds_upstream_alloc_fn alloc_fn;
    ds_upstream_free_fn free_fn;
    ds_resource upstream;
    uint8_t has_upstream; /* 1: `upstream`, or alloc_fn and free_fn, are set */
    uint8_t no_split;
    uint8_t shareable;
    _Atomic uint8_t use_on_oom;
    _Atomic uint8_t dead; /* 1: ds_pool_destroy was called */
    /* derived from the configuration: */
    uint8_t rounds;   /* 1: roundup_power2_divisions is set */
    uint8_t coarse;   /* 1: neither best_fit_by_address nor single_pool */
    uint8_t oversize; /* 1: max_split_size is set */
    uint8_t watched;  /* 1: poison, guards or debug from 2 on */
    uint8_t full;     /* 1: totals are counted */
    uint8_t direct;   /* 1: a backend without a cache */
    /* requests for large plain blocks in all arenas while garbage is collected: the clock of the
       ages of free blocks */
    _Atomic uint32_t requests;
    /* by kind: the smallest rest of a plain block that is cut off */
    size_t split_above[2];
    _Atomic size_t reserved;
    size_t limit;
    _Atomic int owners; /* increased, and compared with 0, under the device's lock */
    /* the owners that are captures and graphs: they use free memory too */
    _Atomic int graphs;
    char *label;
    ds__arena *arenas;
    ds__domain stats;
};

/* An event of the history. */
typedef struct ds__history_event {
    uint64_t address;
    uint64_t bytes;
    uint64_t stream;
    uint64_t time_ns; /* in the ring: ticks */
    uint64_t pool;
    const char *file;
    const char *label;
    uint32_t line;
    uint32_t action;
} ds__history_event;

struct ds__mem_dev {
    /* the thread that allocates (&ds__tls), while there is only one; then &ds__no_owner */
    _Atomic(void *) owner;
    _Atomic unsigned watch; /* bits of the actions that are reported */
    ds__headroom room[3];   /* of all exact arenas */
    ds__mutex lock;         /* guards the lists of pools and arenas */
    ds_device device;
    size_t total;          /* the device's memory */
    _Atomic int has_space; /* growing segments: 1 can, 0 cannot, -1 not asked yet */
    /* 1: the system had no address space for a growing segment, and a warning was logged */
    _Atomic int space_missed;
    ds__mem_pool main; /* the default pool; main.next: the others */
    ds__domain stats;  /* of all pools */
    _Atomic size_t reserved;
    _Atomic size_t limit; /* 0: none */
    ds__spinlock history_lock;
    ds__history_event *history;
    size_t history_room; /* entries */
    size_t history_at;   /* index of the next entry */
    _Atomic uint64_t history_count;
    /* uses whose events are recorded later, at the free or at the end of a stream */
    _Atomic int64_t late_uses;
    _Atomic uint8_t async; /* 1: the driver's own pool was used */
    /* the bytes of blocks from the driver's own pool; ds__async_surplus has the rest of the pool */
    _Atomic size_t async_bytes;
    int64_t async_peak[2]; /* peak of reserved bytes including the driver's pool: all, large */
    /* calls between ds__move_begin and ds__move_end: the number now, and from bit 32 on the number
       of all calls so far */
    _Atomic uint64_t moving;
    _Atomic int deferred; /* number of deferred blocks in all arenas */
    /* handle of ds__direct_giver's stream; 0: not made yet */
    _Atomic uint64_t giver;
};

/* alloc/config.h - allocator options: presets, checks, sizes.

   Defines the presets ds_mem_config_default, ds_mem_config_torch and ds_mem_config_cupy. Lists the
   options (ds__config_options), and checks configurations (ds__config_check).
   ds__config_round_size, ds__config_segment_size and ds__config_reserve_size compute from a
   configuration the sizes of blocks, of plain segments and of reserved address space.

   Invariants: A configuration is accepted only with the exact size of ds_mem_config in its first
   member. The size of a block is a multiple of 512. A size too large to round becomes the
   largest multiple of 512.
   Locks: none.
   Threads: any; results depend on the arguments only, and errors go to the calling thread. */

DSDEF ds_mem_config(ds_mem_config_default)(void) {
    ds_mem_config c;
    memset(&c, 0, sizeof c);
    c.backend = DS_MEM_NATIVE;
    c.expandable_segments = 1;
    c.reuse = DS_REUSE_ON_SHORTAGE;
    c.max_split_size = SIZE_MAX;
    c.max_non_split_rounding = 20 * DS__MIB;
    c.small_segment_size = 2 * DS__MIB;
    c.large_segment_size = 8 * DS__MIB;
    c.segment_growth = 4;
    c.memory_fraction = 1;
    c.expandable_segments_reserve = 1.125;
    c.pinned_max_cached_size = SIZE_MAX;
    c.pinned_num_register_threads = 1;
    return c;
}

DSDEF ds_mem_config(ds_mem_config_torch)(void) {
    ds_mem_config c = (ds_mem_config_default)();
    c.expandable_segments = 0;
    c.best_fit_by_address = 1;
    c.reuse = DS_REUSE_NEVER;
    c.poll_on_alloc = 1;
    c.large_segment_size = 20 * DS__MIB;
    c.segment_growth = 0;
    c.pinned_max_round_threshold = SIZE_MAX;
    return c;
}

DSDEF ds_mem_config(ds_mem_config_cupy)(void) {
    ds_mem_config c = (ds_mem_config_torch)();
    c.single_pool = 1;
    c.poll_on_alloc = 0;
    return c;
}

enum {
    DS__IS_BOOL,
    DS__IS_MB,
    DS__IS_BYTES,
    DS__IS_COUNT,
    DS__IS_CHOICE,
    DS__IS_OPEN,
    DS__IS_CLOSED,
    DS__IS_DIVISIONS,
    DS__IS_RESERVE,
    DS__IS_LIMIT,
    DS__IS_PRESET,
    DS__IS_FIXED /* only the value that devstream implements */
};

typedef struct ds__config_option {
    const char *name;
    int kind;
    size_t offset;
    uint64_t low;  /* MB, bytes, count: the smallest value */
    uint64_t high; /* MB, bytes, count: the largest value; bool, choice: the largest number */
    /* DS__IS_CHOICE: the choices in the order of their numbers, each with a bar behind it.
       DS__IS_FIXED: the only value, a bar, and the reason */
    const char *choices;
} ds__config_option;

#define DS__AT(member) offsetof(ds_mem_config, member)
static const ds__config_option ds__config_options[] = {
    { "preset", DS__IS_PRESET, 0, 0, 0, "default|torch|cupy|" },
    { "backend", DS__IS_CHOICE, DS__AT(backend), 0, DS_MEM_UNCACHED,
      "native|cudaMallocAsync|uncached|" },
    { "max_split_size_mb", DS__IS_MB, DS__AT(max_split_size), 1, UINT64_MAX, NULL },
    { "max_non_split_rounding_mb", DS__IS_MB, DS__AT(max_non_split_rounding), 1, UINT64_MAX, NULL },
    { "large_segment_size_mb", DS__IS_MB, DS__AT(large_segment_size), 2, 1 << 20, NULL },
    { "garbage_collection_threshold", DS__IS_OPEN, DS__AT(garbage_collection_threshold), 0, 0,
      NULL },
    { "roundup_power2_divisions", DS__IS_DIVISIONS, 0, 0, 0, NULL },
    { "expandable_segments", DS__IS_BOOL, DS__AT(expandable_segments), 0, 1, NULL },
    { "expandable_segments_reserve", DS__IS_RESERVE, DS__AT(expandable_segments_reserve), 0, 0,
      NULL },
    { "expandable_segments_reserve_by_class", DS__IS_FIXED, 0, 0, 0,
      "|streams have no classes; use expandable_segments_reserve" },
    { "release_lock_on_cudamalloc", DS__IS_FIXED, 0, 0, 0,
      "True|the driver is always called without a lock that other streams need" },
    { "per_process_memory_fraction", DS__IS_CLOSED, DS__AT(memory_fraction), 0, 0, NULL },
    { "throw_on_cudamalloc_oom", DS__IS_BOOL, DS__AT(throw_on_cudamalloc_oom), 0, 1, NULL },
    { "graph_capture_record_stream_reuse", DS__IS_BOOL, DS__AT(graph_capture_record_stream_reuse),
      0, 1, NULL },
    { "pinned_use_cuda_host_register", DS__IS_BOOL, DS__AT(pinned_use_cuda_host_register), 0, 1,
      NULL },
    { "pinned_num_register_threads", DS__IS_COUNT, DS__AT(pinned_num_register_threads), 1, 128,
      NULL },
    { "pinned_use_background_threads", DS__IS_FIXED, 0, 0, 0,
      "False|events are queried at allocations, without a thread" },
    { "pinned_reserve_segment_size_mb", DS__IS_MB, DS__AT(pinned_reserve_segment_size), 1, 1 << 20,
      NULL },
    { "pinned_max_round_threshold_mb", DS__IS_MB, DS__AT(pinned_max_round_threshold), 0, UINT64_MAX,
      NULL },
    { "pinned_max_cached_size_mb", DS__IS_MB, DS__AT(pinned_max_cached_size), 0, UINT64_MAX, NULL },
    { "pinned_free_catch_all", DS__IS_FIXED, 0, 0, 0,
      "False|an error of the driver at a free is always reported" },
    { "reuse", DS__IS_CHOICE, DS__AT(reuse), 0, DS_REUSE_ALWAYS, "never|on_shortage|always|" },
    { "statistics", DS__IS_CHOICE, DS__AT(statistics), 0, DS_STATISTICS_CURRENT, "full|current|" },
    { "limit", DS__IS_LIMIT, 0, 0, 0, NULL },
    { "debug", DS__IS_CHOICE, DS__AT(debug), 0, 2, "0|1|2|" },
    { "poison", DS__IS_BOOL, DS__AT(poison), 0, 1, NULL },
    { "guard_bytes", DS__IS_BYTES, DS__AT(guard_bytes), 0, 1 << 30, NULL },
    { "segment_growth", DS__IS_COUNT, DS__AT(segment_growth), 0, UINT32_MAX, NULL },
    { "single_pool", DS__IS_BOOL, DS__AT(single_pool), 0, 1, NULL },
    { "best_fit_by_address", DS__IS_BOOL, DS__AT(best_fit_by_address), 0, 1, NULL },
    { "poll_on_alloc", DS__IS_BOOL, DS__AT(poll_on_alloc), 0, 1, NULL }
};
#define DS__OPTIONS (sizeof ds__config_options / sizeof ds__config_options[0])

#define DS__LARGEST_DIVISIONS 64 /* 1 + log2 of 2^63 */
/* expandable_segments_reserve: values from here on are bytes, smaller ones a multiple */
#define DS__RESERVE_BYTES ((double)(2 * DS__MIB))

/* Checks the options in bytes. */
static ds_result ds__config_check_sizes(const ds_mem_config *c) {
    DS__REQUIRE(c->guard_bytes % DS__UNIT == 0 && c->guard_bytes <= (size_t)1 << 30,
                "guard_bytes is %zu; it must be a multiple of 512, at most 1 GiB", c->guard_bytes);
    DS__REQUIRE(c->small_segment_size && c->small_segment_size % (2 * DS__MIB) == 0 &&
                    c->small_segment_size <= (size_t)1 << 40,
                "small_segment_size is %zu; it must be a multiple of 2 MiB, at most 1 TiB",
                c->small_segment_size);
    DS__REQUIRE(c->large_segment_size && c->large_segment_size % (2 * DS__MIB) == 0 &&
                    c->large_segment_size <= (size_t)1 << 40,
                "large_segment_size is %zu; it must be a multiple of 2 MiB, at most 1 TiB",
                c->large_segment_size);
    DS__REQUIRE(c->max_split_size >= c->large_segment_size,
                "max_split_size is %zu, less than large_segment_size, %zu", c->max_split_size,
                c->large_segment_size);
    DS__REQUIRE(c->max_non_split_rounding >= c->large_segment_size,
                "max_non_split_rounding is %zu, less than large_segment_size, %zu",
                c->max_non_split_rounding, c->large_segment_size);
    DS__REQUIRE(c->pinned_reserve_segment_size % 4096 == 0,
                "pinned_reserve_segment_size is %zu; it must be a multiple of 4096",
                c->pinned_reserve_segment_size);
    return DS_OK;
}

/* Checks fractions, counts and divisions. */
static ds_result ds__config_check_numbers(const ds_mem_config *c) {
    double threshold = c->garbage_collection_threshold;
    double reserve = c->expandable_segments_reserve;
    unsigned threads = c->pinned_num_register_threads;
    DS__REQUIRE(threshold >= 0 && threshold < 1,
                "garbage_collection_threshold is %g; it must be 0, or above 0 and below 1",
                threshold);
    DS__REQUIRE(c->memory_fraction >= 0 && c->memory_fraction <= 1,
                "memory_fraction is %g; it must be from 0 to 1", c->memory_fraction);
    DS__REQUIRE((reserve > 0 && reserve <= 1024) ||
                    (reserve >= DS__RESERVE_BYTES && reserve <= 1e18),
                "expandable_segments_reserve is %g; it must be a multiple of the device's memory "
                "above 0 and up to 1024, or 2 MiB or more in bytes",
                reserve);
    DS__REQUIRE(threads >= 1 && threads <= 128 && (threads & (threads - 1)) == 0,
                "pinned_num_register_threads is %u; it must be a power of two up to 128", threads);
    for (size_t i = 0; i < sizeof c->roundup_power2_divisions; i++)
        DS__REQUIRE(c->roundup_power2_divisions[i] <= DS__LARGEST_DIVISIONS,
                    "roundup_power2_divisions[%zu] is %u; it is 1 + log2 of a number, at most %d",
                    i, (unsigned)c->roundup_power2_divisions[i], DS__LARGEST_DIVISIONS);
    return DS_OK;
}

/* Checks a configuration. If a member is out of its range, returns DS_ERR_INVALID_VALUE, and the
   error names the member and its value. */
DS__SEAM static ds_result ds__config_check(const ds_mem_config *c) {
    DS__REQUIRE(c, "config is NULL");
    DS__REQUIRE_RESERVED("ds_mem_config", c);

    for (size_t i = 0; i < DS__OPTIONS; i++) {
        const ds__config_option *o = &ds__config_options[i];
        int value = 0;
        if (o->kind == DS__IS_BOOL || o->kind == DS__IS_CHOICE)
            memcpy(&value, (const char *)c + o->offset, sizeof value);
        DS__REQUIRE(value >= 0 && (unsigned)value <= o->high, "%s is %d; it must be from 0 to %d",
                    o->name, value, (int)o->high);
    }
    ds_result r = ds__config_check_sizes(c);
    return r < 0 ? r : ds__config_check_numbers(c);
}

/* Rounds up n to the next of 2^log2_divisions equal steps between two powers of two. Returns the
   largest multiple of 512 if there is no such step. */
static size_t ds__round_by_power2(size_t n, unsigned log2_divisions) {
    const size_t largest = SIZE_MAX & ~(DS__UNIT - 1);
    if ((n & (n - 1)) == 0)
        return n;
    size_t below = (size_t)1 << (63 - __builtin_clzll(n));
    size_t step = log2_divisions < 64 ? below >> log2_divisions : 0;
    if (step == 0) /* more divisions than bytes */
        step = below;
    return n <= largest - (step - 1) ? (n + step - 1) & ~(step - 1) : largest;
}

/* Returns the entry of roundup_power2_divisions for a size: 1 + log2 of the divisions. 0 is off,
   and so is 1, a single division (pytorch#161139). */
static inline unsigned ds__config_divisions_of(const ds_mem_config *c, size_t n) {
    int power = 63 - __builtin_clzll(n) - 20;
    if (power < 0)
        power = 0;
    return c->roundup_power2_divisions[power < 15 ? power : 15];
}

/* Returns the size of the block for n bytes, n > 0. For sizes too large to round, returns the
   largest multiple of 512. */
DS__SEAM static inline size_t ds__config_round_size(const ds_mem_config *c, size_t n) {
    if (n < DS__UNIT)
        return DS__UNIT;
    unsigned coded = ds__config_divisions_of(c, n);
    if (DS__UNLIKELY(coded > 1) && coded - 1 < 55 && n > DS__UNIT << (coded - 1))
        return ds__round_by_power2(n, coded - 1);
    return n <= SIZE_MAX - (DS__UNIT - 1) ? (n + DS__UNIT - 1) & ~(DS__UNIT - 1)
                                          : SIZE_MAX & ~(DS__UNIT - 1);
}

/* Returns the size of the plain segment for a block of this size, before segment_growth. */
DS__SEAM static size_t ds__config_segment_size(const ds_mem_config *c, int kind, size_t rounded) {
    const size_t unit = 2 * DS__MIB;
    if (c->single_pool)
        return rounded;
    if (kind == DS__SMALL && rounded <= c->small_segment_size)
        return c->small_segment_size;
    if (rounded < c->large_segment_size / 2)
        return c->large_segment_size;
    return rounded <= SIZE_MAX - (unit - 1) ? (rounded + unit - 1) & ~(unit - 1) : rounded;
}

/* Returns the bytes of address space of a growing segment on a device with `total` bytes, in whole
   pages. If the option is in bytes, the size is at most 9/8 of the device's memory. */
DS__SEAM static size_t ds__config_reserve_size(const ds_mem_config *c, size_t total, size_t page) {
    double bytes = c->expandable_segments_reserve;
    double most = (double)total * 1.125;
    if (bytes < DS__RESERVE_BYTES)
        bytes *= (double)total;
    else if (bytes > most)
        bytes = most;
    size_t pages = bytes < 1e18 ? (size_t)(bytes / (double)page) : (size_t)1e18 / page;
    return (pages ? pages : 1) * page;
}

/* alloc/config_token.h - tokens and numbers of allocator options.

   Splits an option text into tokens (ds__config_token_next): a token is one of , : [ ] or a word.
   White space is ignored everywhere, even inside a word. ds__config_number_parse and
   ds__config_real_parse read the number in a word. ds__config_refuse reports an error at a place of
   the text.

   Invariants: an error shows the character's number, the text from there on and the text before.
   Numbers do not depend on the program's locale.
   Locks: takes none. ds__config_refuse may call the program's log function, under the locks that
   the callers of config_text.h hold.
   Threads: any. */

typedef struct ds__config_text {
    const char *text;
    size_t start;  /* of the token */
    size_t at;     /* behind the token */
    int kind;      /* , : [ ] or 'w'; 0: the end */
    char word[64]; /* the text of the token; longer words are cut, and match no option or number */
    /* starts of the values that are compared with other options; SIZE_MAX: not in the text */
    size_t split_at;    /* max_split_size_mb */
    size_t rounding_at; /* max_non_split_rounding_mb */
    size_t large_at;    /* large_segment_size_mb */
} ds__config_text;

static int ds__config_is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int ds__config_is_sign(char c) {
    return c == ',' || c == ':' || c == '[' || c == ']';
}

/* Reads the next token. */
static void ds__config_token_next(ds__config_text *t) {
    size_t n = 0;
    while (ds__config_is_space(t->text[t->at]))
        t->at++;
    t->start = t->at;
    char c = t->text[t->at];
    if (!c || ds__config_is_sign(c)) {
        t->kind = c;
        t->at += c != 0;
        t->word[0] = c;
        t->word[1] = 0;
        return;
    }

    t->kind = 'w';
    for (; t->text[t->at] && !ds__config_is_sign(t->text[t->at]); t->at++)
        if (!ds__config_is_space(t->text[t->at]) && n < sizeof t->word - 1)
            t->word[n++] = t->text[t->at];
    t->word[n] = 0;
}

/* Sets the error of a text, which is not empty: the number of the character at `at`, the text from
   there on, the text in front, and the formatted reason. */
__attribute__((format(DS__PRINTF, 3, 4), cold, noinline)) static ds_result ds__config_refuse(
    const ds__config_text *t, size_t at, const char *format, ...) {
    char what[256];
    char here[32];
    char before[32];
    size_t n = strlen(t->text);
    size_t from = at > 24 ? at - 24 : 0;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(here, sizeof here, "%.24s%s", t->text + at, n - at > 24 ? "..." : "");
    snprintf(before, sizeof before, "%s%.*s", from ? "..." : "", (int)(at - from), t->text + from);
    for (char *c = here; *c; c++)
        if (ds__config_is_space(*c))
            *c = ' ';
    for (char *c = before; *c; c++)
        if (ds__config_is_space(*c))
            *c = ' ';
    const char *quote = here[0] ? "\"" : "";
    const char *shown = here[0] ? here : "the end";
    if (!before[0])
        return ds__fail(DS_ERR_INVALID_VALUE, "allocator options, character %zu, %s%s%s: %s",
                        at + 1, quote, shown, quote, what);
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "allocator options, character %zu, %s%s%s after \"%s\": %s", at + 1, quote,
                    shown, quote, before, what);
}

/* Reads the next token, which must be of this kind. */
static ds_result ds__config_token_expect(ds__config_text *t, int kind, const char *what) {
    ds__config_token_next(t);
    return t->kind == kind ? DS_OK : ds__config_refuse(t, t->start, "expected %s", what);
}

/* Parses a whole number of digits only. Returns 0 if the word is none, or too large. */
static int ds__config_number_parse(const char *word, uint64_t *out) {
    uint64_t n = 0;
    if (!*word)
        return 0;
    for (; *word; word++) {
        if (*word < '0' || *word > '9' || __builtin_mul_overflow(n, (uint64_t)10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*word - '0'), &n))
            return 0;
    }
    *out = n;
    return 1;
}

static int ds__config_is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Parses an exponent such as e-1. Returns the number of characters, or 0 if there is none. */
static size_t ds__config_exponent_parse(const char *word, int *out) {
    int exponent = 0;
    int minus = 0;
    size_t i = 1;
    *out = 0;
    if (word[0] != 'e' && word[0] != 'E')
        return 0;
    if (word[i] == '-' || word[i] == '+')
        minus = word[i++] == '-';
    if (!ds__config_is_digit(word[i]))
        return 0;
    for (; ds__config_is_digit(word[i]); i++)
        if (exponent < 1000)
            exponent = exponent * 10 + (word[i] - '0');
    *out = minus ? -exponent : exponent;
    return i;
}

/* Parses 12, 0.5, .5, or 5e-1, in all locales. Returns the number of characters, or 0 if there is
   no number. Numbers of up to 15 digits have the value that C gives them. */
static size_t ds__config_real_parse(const char *word, double *out) {
    double value = 0;
    double scale = 1;
    int digits = 0;
    int places = 0;
    int exponent;
    const char *point = NULL;
    size_t i = 0;
    for (; ds__config_is_digit(word[i]) || (word[i] == '.' && !point); i++) {
        if (word[i] == '.') {
            point = word + i;
            continue;
        }
        value = value * 10 + (word[i] - '0');
        digits++;
        places += point != NULL;
    }
    if (!digits)
        return 0;
    i += ds__config_exponent_parse(word + i, &exponent);
    places -= exponent;
    for (int k = places < 0 ? -places : places; k > 0 && scale < 1e300; k--)
        scale *= 10;
    *out = places < 0 ? value * scale : value / scale;
    return i;
}

/* alloc/config_text.h - allocator options as text.

   Reads the grammar of PYTORCH_CUDA_ALLOC_CONF for DEVSTREAM_ALLOC_CONF, ds_mem_configure_text
   and ds_mem_config_parse. ds__config_read applies a text to a configuration; config_token.h splits
   the text into tokens.

   Invariants: On an error the configuration is unchanged. As in PyTorch, each text first resets
   max_split_size, garbage_collection_threshold and roundup_power2_divisions. The option `preset`
   must be the first.
   Locks: takes none. Callers may hold ds__memory_state.lock or all locks of a device, so the
   program's log function may be called under these locks.
   Threads: any. ds_mem_config_parse does not initialise the library. */

/* Reads a multiple of the device's memory such as 0.5, or bytes such as 40G. */
static ds_result ds__config_read_reserve(ds__config_text *t, double *out) {
    double value = 0;
    size_t n = ds__config_real_parse(t->word, &value);
    int bytes = n && t->word[n] == 'G' && !t->word[n + 1];
    if (bytes)
        value *= 1024.0 * 1024.0 * 1024.0;
    if (!n || (t->word[n] && !bytes) || !(value > 0) ||
        (bytes ? value < DS__RESERVE_BYTES || value > 1e18 : value > 1024))
        return ds__config_refuse(
            t, t->start,
            "expected a fraction of the device's memory such as 0.5, or gigabytes such as 40G");
    *out = value;
    return DS_OK;
}

/* Reads a number of divisions, as 1 + log2. `zero`: 0 is allowed, and gives 0. */
static ds_result ds__config_read_division(ds__config_text *t, int zero, unsigned char *out) {
    uint64_t n;
    if (t->kind != 'w' || !ds__config_number_parse(t->word, &n) || (n & (n - 1)) != 0 ||
        (n == 0 && !zero))
        return ds__config_refuse(t, t->start, "the divisions must be a power of two%s",
                                 zero ? ", or 0 for none" : "");
    *out = n ? (unsigned char)(1 + __builtin_ctzll(n)) : 0;
    return DS_OK;
}

/* The intervals read so far. */
typedef struct ds__config_intervals {
    unsigned char *out; /* 16 entries */
    size_t last;        /* index of the last interval */
    int first;          /* 1: no interval was read */
} ds__config_intervals;

/* Parses the lower end of an interval: a power of two in MiB. */
static int ds__config_boundary_parse(const ds__config_text *t, uint64_t *out) {
    return t->kind == 'w' && ds__config_number_parse(t->word, out) && *out &&
           (*out & (*out - 1)) == 0;
}

/* Reads an interval and its divisions, such as 64:8. The first interval covers smaller sizes too,
   and > all sizes behind the last one. */
static ds_result ds__config_read_interval(ds__config_text *t, ds__config_intervals *v) {
    uint64_t boundary = 0;
    unsigned char coded = 0;
    int rest = t->kind == 'w' && !strcmp(t->word, ">");
    if (!rest && !ds__config_boundary_parse(t, &boundary))
        return ds__config_refuse(
            t, t->start, "expected an interval, which is a power of two in MiB, or '>', or ']'");
    ds_result r = ds__config_token_expect(t, ':', "':' and the divisions");
    if (r < 0)
        return r;
    ds__config_token_next(t);
    r = ds__config_read_division(t, 1, &coded);
    if (r < 0)
        return r;

    if (rest) {
        for (size_t i = v->last + 1; i < 16; i++)
            v->out[i] = coded;
        return DS_OK;
    }
    size_t index = (size_t)__builtin_ctzll(boundary);
    if (index > 15)
        index = 15;
    for (size_t i = v->first ? 0 : index; i <= index; i++)
        v->out[i] = coded;
    v->first = 0;
    v->last = index;
    return DS_OK;
}

/* Reads divisions: 4, or a list of intervals such as [64:8,256:4,>:1]. An interval is 2^i MiB to
   twice that. */
static ds_result ds__config_read_divisions(ds__config_text *t, unsigned char out[16]) {
    unsigned char coded = 0;
    ds_result r = DS_OK;
    if (t->kind != '[') {
        r = ds__config_read_division(t, 0, &coded);
        if (r == DS_OK)
            memset(out, coded, 16);
        return r;
    }

    ds__config_intervals v = { out, 0, 1 };
    for (ds__config_token_next(t); t->kind != ']';) {
        r = ds__config_read_interval(t, &v);
        if (r < 0)
            return r;
        ds__config_token_next(t);
        if (t->kind == ',')
            ds__config_token_next(t);
        else if (t->kind != ']')
            return ds__config_refuse(t, t->start, "expected ',' or ']'");
    }
    return DS_OK;
}

/* Reads a limit in bytes, or a part of the device's memory such as 40%. As in CuPy, each of them
   replaces the other, and 0 and 0% are no limit. */
static ds_result ds__config_read_limit(ds__config_text *t, ds_mem_config *c) {
    uint64_t bytes;
    double percent = 0;
    size_t n = ds__config_real_parse(t->word, &percent);
    if (n && t->word[n] == '%' && !t->word[n + 1] && percent <= 100) {
        c->memory_fraction = percent > 0 ? percent / 100 : 1;
        c->limit = 0;
        return DS_OK;
    }
    if (!ds__config_number_parse(t->word, &bytes))
        return ds__config_refuse(t, t->start, "expected a number of bytes, or 0%% to 100%%");
    c->limit = bytes;
    c->memory_fraction = 1;
    return DS_OK;
}

/* Returns the Levenshtein distance of a word and an option, whose name has at most 62 characters:
   letters to add, remove or change. */
static unsigned ds__config_word_distance(const char *a, const char *b) {
    unsigned row[64];
    size_t n = strlen(b);
    for (size_t k = 0; k <= n; k++)
        row[k] = (unsigned)k;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t k = 1; k <= n; k++) {
            unsigned best = diagonal + (a[i] != b[k - 1]);
            if (row[k] + 1 < best)
                best = row[k] + 1;
            if (row[k - 1] + 1 < best)
                best = row[k - 1] + 1;
            diagonal = row[k];
            row[k] = best;
        }
    }
    return row[n];
}

/* Reports an unknown option, with the most similar one. */
static ds_result ds__config_option_unknown(const ds__config_text *t) {
    const ds__config_option *nearest = NULL;
    unsigned best = (unsigned)strlen(t->word) / 3 + 1;
    for (size_t i = 0; i < DS__OPTIONS; i++) {
        unsigned d = ds__config_word_distance(t->word, ds__config_options[i].name);
        if (d < best) {
            best = d;
            nearest = &ds__config_options[i];
        }
    }
    if (nearest)
        return ds__config_refuse(t, t->start, "there is no option '%s'; is %s meant?", t->word,
                                 nearest->name);
    return ds__config_refuse(t, t->start,
                             "there is no option '%s'; ds_mem_configure_text lists them", t->word);
}

/* Returns the index of the word among the choices, or -1. */
static int ds__config_choice_find(const char *choices, const char *word) {
    size_t n = strlen(word);
    for (int i = 0; *choices; i++) {
        size_t length = strcspn(choices, "|");
        if (length == n && !memcmp(choices, word, n))
            return i;
        choices += length + 1;
    }
    return -1;
}

/* Reads a whole number of MiB, bytes, or without a unit. */
static ds_result ds__config_read_whole(ds__config_text *t, const ds__config_option *o, void *to) {
    const uint64_t most = SIZE_MAX / DS__MIB;
    uint64_t n;
    if (t->kind != 'w' || !ds__config_number_parse(t->word, &n) || n < o->low || n > o->high) {
        const char *unit = "";
        if (o->kind == DS__IS_MB)
            unit = " of MiB";
        else if (o->kind == DS__IS_BYTES)
            unit = " of bytes";
        if (o->high == UINT64_MAX)
            return ds__config_refuse(t, t->start, "expected a number%s, %llu or more", unit,
                                     (unsigned long long)o->low);
        return ds__config_refuse(t, t->start, "expected a number%s from %llu to %llu", unit,
                                 (unsigned long long)o->low, (unsigned long long)o->high);
    }
    if (o->kind == DS__IS_MB)
        *(size_t *)to = (n < most ? n : most) * DS__MIB;
    else if (o->kind == DS__IS_BYTES)
        *(size_t *)to = n;
    else
        *(unsigned *)to = (unsigned)n;
    return DS_OK;
}

/* Reads a number from 0 to 1, with or without the ends. */
static ds_result ds__config_read_part(ds__config_text *t, const ds__config_option *o, double *to) {
    double value = 0;
    size_t n = ds__config_real_parse(t->word, &value);
    int open = o->kind == DS__IS_OPEN;
    if (!n || t->word[n] || value > 1 || (open && (value <= 0 || value >= 1)))
        return ds__config_refuse(t, t->start,
                                 open ? "expected a number above 0 and below 1"
                                      : "expected a number from 0 to 1");
    *to = value;
    return DS_OK;
}

/* Reads one of the option's choices, as its index. */
static ds_result ds__config_read_choice(ds__config_text *t, const ds__config_option *o, int *to) {
    int choice = ds__config_choice_find(o->choices, t->word);
    if (t->kind != 'w' || choice < 0)
        return ds__config_refuse(t, t->start, "expected one of %.*s", (int)strlen(o->choices) - 1,
                                 o->choices);
    *to = choice;
    return DS_OK;
}

/* Accepts the only value of an option that PyTorch has and devstream does not implement. */
static ds_result ds__config_read_fixed(const ds__config_text *t, const ds__config_option *o) {
    int length = (int)strcspn(o->choices, "|");
    const char *why = o->choices + length + 1;
    if (length == 0)
        return ds__config_refuse(t, t->start, "%s is not supported: %s", o->name, why);
    if (strlen(t->word) == (size_t)length && !memcmp(t->word, o->choices, (size_t)length))
        return DS_OK;
    return ds__config_refuse(t, t->start, "%s must be %.*s: %s", o->name, length, o->choices, why);
}

/* Replaces the configuration by a preset. */
static ds_result ds__config_read_preset(ds__config_text *t, const ds__config_option *o,
                                        ds_mem_config *c) {
    int choice = 0;
    ds_result r = ds__config_read_choice(t, o, &choice);
    if (r < 0)
        return r;
    if (choice == 0)
        *c = (ds_mem_config_default)();
    else
        *c = choice == 1 ? (ds_mem_config_torch)() : (ds_mem_config_cupy)();
    return DS_OK;
}

/* Reads the value of an option; its first token is the current one. */
static ds_result ds__config_read_value(ds__config_text *t, const ds__config_option *o,
                                       ds_mem_config *c) {
    void *to = (char *)c + o->offset;
    switch (o->kind) {
    case DS__IS_BOOL:
        if (strcmp(t->word, "True") && strcmp(t->word, "False"))
            return ds__config_refuse(t, t->start, "expected True or False");
        *(int *)to = t->word[0] == 'T';
        return DS_OK;
    case DS__IS_FIXED:
        return ds__config_read_fixed(t, o);
    case DS__IS_CHOICE:
        return ds__config_read_choice(t, o, to);
    case DS__IS_OPEN:
    case DS__IS_CLOSED:
        return ds__config_read_part(t, o, to);
    case DS__IS_DIVISIONS:
        return ds__config_read_divisions(t, c->roundup_power2_divisions);
    case DS__IS_RESERVE:
        return ds__config_read_reserve(t, to);
    case DS__IS_LIMIT:
        return ds__config_read_limit(t, c);
    case DS__IS_PRESET:
        return ds__config_read_preset(t, o, c);
    default:
        return ds__config_read_whole(t, o, to);
    }
}

/* Checks values whose range depends on other options or is no interval. `at`: the start of the
   value. */
static ds_result ds__config_read_checked(ds__config_text *t, const ds__config_option *o,
                                         const ds_mem_config *c, size_t at) {
    if (o->offset == DS__AT(max_split_size) && o->kind == DS__IS_MB)
        t->split_at = at;
    if (o->offset == DS__AT(max_non_split_rounding) && o->kind == DS__IS_MB)
        t->rounding_at = at;
    if (o->offset == DS__AT(large_segment_size) && o->kind == DS__IS_MB) {
        t->large_at = at;
        if (c->large_segment_size % (2 * DS__MIB))
            return ds__config_refuse(t, at, "expected an even number of MiB");
    }
    if (o->offset == DS__AT(pinned_num_register_threads) &&
        (c->pinned_num_register_threads & (c->pinned_num_register_threads - 1)))
        return ds__config_refuse(t, at, "expected a power of two up to 128");
    if (o->offset == DS__AT(guard_bytes) && c->guard_bytes % DS__UNIT)
        return ds__config_refuse(t, at, "expected a multiple of 512");
    return DS_OK;
}

/* Checks options that depend on the size of large segments. */
static ds_result ds__config_read_compared(const ds__config_text *t, const ds_mem_config *c) {
    size_t mb = c->large_segment_size / DS__MIB;
    if (c->max_split_size < c->large_segment_size) /* the text has set it */
        return ds__config_refuse(
            t, t->split_at, "max_split_size_mb must be at least %zu, the size of large segments",
            mb);
    if (c->max_non_split_rounding >= c->large_segment_size)
        return DS_OK;
    if (t->rounding_at != SIZE_MAX)
        return ds__config_refuse(
            t, t->rounding_at,
            "max_non_split_rounding_mb must be at least %zu, the size of large segments", mb);
    return ds__config_refuse(t, t->large_at,
                             "large_segment_size_mb must be at most %zu, max_non_split_rounding",
                             c->max_non_split_rounding / DS__MIB);
}

/* Reads one "option:value"; the current token is the option. */
static ds_result ds__config_read_option(ds__config_text *t, ds_mem_config *c, int first) {
    const ds__config_option *o = NULL;
    for (size_t i = 0; i < DS__OPTIONS && !o; i++)
        if (!strcmp(t->word, ds__config_options[i].name))
            o = &ds__config_options[i];
    if (t->kind != 'w')
        return ds__config_refuse(t, t->start, "expected an option");
    if (!o)
        return ds__config_option_unknown(t);
    if (o->kind == DS__IS_PRESET && !first)
        return ds__config_refuse(t, t->start, "preset sets all options, so it must be the first");
    ds_result r = ds__config_token_expect(t, ':', "':' and a value");
    if (r < 0)
        return r;
    ds__config_token_next(t);
    size_t at = t->start;
    r = ds__config_read_value(t, o, c);
    return r < 0 ? r : ds__config_read_checked(t, o, c, at);
}

/* Applies a text to a configuration. Resets three options first, as PyTorch does. If the text is
   invalid, the configuration is unchanged and the error is set. */
static ds_result ds__config_read(const char *text, ds_mem_config *config) {
    ds__config_text t = { text, 0, 0, 0, "", SIZE_MAX, SIZE_MAX, SIZE_MAX };
    ds_mem_config c = *config;
    ds_result r = DS_OK;
    c.max_split_size = SIZE_MAX;
    c.garbage_collection_threshold = 0;
    memset(c.roundup_power2_divisions, 0, sizeof c.roundup_power2_divisions);
    ds__config_token_next(&t);
    for (int first = 1; r == DS_OK && t.kind; first = 0) {
        r = ds__config_read_option(&t, &c, first);
        if (r < 0)
            break;
        ds__config_token_next(&t);
        if (t.kind == ',')
            ds__config_token_next(&t);
        else if (t.kind)
            r = ds__config_refuse(&t, t.start, "expected ',' and the next option");
    }
    if (r == DS_OK)
        r = ds__config_read_compared(&t, &c);
    if (r == DS_OK)
        r = ds__config_check(&c);
    if (r == DS_OK)
        *config = c;
    return r;
}

DSDEF ds_result(ds_mem_config_parse)(const char *text, ds_mem_config *config) {
    ds__tls.fn = "ds_mem_config_parse";
    ds__tls.site = ds__site_take(&ds__tls);
    DS__REQUIRE(text, "text is NULL");
    ds_result r = ds__config_check(config);
    return r < 0 ? r : ds__config_read(text, config);
}

/* alloc/state.h - global and per-thread state of the allocator.

   Defines the global state (ds__memory_state) and the state of each thread (ds__memory_thread):
   pushed pools, labels, running upstreams. ds__mem_device_at finds a device that was used.

   Invariants: A device gets its record once that is complete, and only ds_shutdown removes it.
   Pools that were pushed before a ds_shutdown do not count (ds__pool_push_count). `root` is read
   without a lock and changes under `registry` only.
   Locks: ds__memory_state.lock guards the configuration, the pools with handles and the lists of
   callbacks. It comes before ds__history_state.lock, a device's lock and the arenas' locks.
   `registry` guards `root`, `sorted`, `free_segments`, `kept` and `policies`, and may be taken
   under all of them. `leaving` guards `closing` and `leavers`; it is taken alone or under
   ds__memory_state.lock.
   Threads: any. ds__memory_thread belongs to its thread. */

/* A callback of the program; `fn` is cast to its type before it is invoked. */
typedef struct ds__callback {
    void (*fn)(void);
    void *user;
} ds__callback;

typedef struct ds__callback_list {
    ds__callback *entries;
    size_t count;
    size_t room;
} ds__callback_list;

static struct {
    ds__mutex lock;        /* guards the members below that are not atomic, if no other lock does */
    ds_mem_config config;  /* of devices that are used later */
    int configured;        /* 1: the environment was read */
    ds_result conf_result; /* of reading the environment */
    /* the segments of granules of 2 MiB, in leaves of 16 GiB; lowest bit: several segments share
       the granule */
    ds__segment *_Atomic *_Atomic root[1 << 13];
    ds__mutex registry;
    ds__segment **sorted; /* all segments, by address */
    size_t sorted_count;
    size_t sorted_room;
    uint64_t serial;
    ds__segment *free_segments;
    struct ds__kept *kept;           /* memory that is freed at shutdown only */
    struct ds__mem_policy *policies; /* all policies so far, guarded by `registry` */
    ds__mem_pool **pools;            /* the pools with handles */
    uint32_t pool_count;
    size_t pool_room;
    uint64_t next_pool;
    ds__callback_list shortage; /* ds_mem_shortage_fn, guarded by `lock` */
    ds__callback_list oom;      /* ds_mem_oom_fn, guarded by `lock` */
    uint64_t tick_base;         /* ds__ticks at the first use */
    uint64_t tick_base_ns;      /* ds__now_ns at the first use */
    int closing;                /* 1: ds_shutdown frees the pools */
    ds__mutex leaving;          /* guards `closing` and `leavers` */
    ds__condition left;         /* `leavers` has become 0 */
    /* destroyed graphs that are releasing their pools, on a thread of CUDA's */
    int leavers;
    _Atomic uint64_t legacy[DS__MAX_DEVICES]; /* CUDA: the legacy streams, see ds__expect_end */
} ds__memory_state = { .lock = DS__MUTEX_INIT,
                       .registry = DS__MUTEX_INIT,
                       .leaving = DS__MUTEX_INIT,
                       .left = DS__CONDITION_INIT };

#define DS__POOL_PUSHES 32
#define DS__LABELS 32

static _Thread_local struct {
    uint32_t epoch; /* ds__g.epoch for which `arena` and `pools` are valid */
    /* the stream of the thread's last allocation, its slot and its arena; NULL: none */
    uint64_t stream;
    ds__slot *slot;
    ds__arena *arena;
    unsigned labels;
    unsigned pools;
    unsigned in_shortage;
    int upstream_empty;              /* 1: an upstream gave no memory for the current request */
    const struct ds__inside *inside; /* the upstreams that the thread is inside of */
    const char *label[DS__LABELS];
    ds_pool pool[DS__POOL_PUSHES];
} ds__memory_thread;

/* Returns the number of pools that the thread has pushed. After a shutdown, resets the state of the
   thread first. */
static unsigned ds__pool_push_count(void) {
    if (ds__memory_thread.epoch != ds__g.epoch) {
        ds__memory_thread.epoch = ds__g.epoch;
        ds__memory_thread.pools = 0;
        ds__memory_thread.stream = 0;
        ds__memory_thread.arena = NULL;
    }
    return ds__memory_thread.pools;
}

/* Returns the allocator's record of a device, or NULL if the device was not used. */
static ds__mem_dev *ds__mem_device_at(int backend, int index) {
    return index >= 0 && index < DS__MAX_DEVICES
               ? atomic_load_explicit(ds__module_device(DS__MODULE_ALLOC, backend, index),
                                      memory_order_acquire)
               : NULL;
}

/* The functions that the core calls. shutdown.h defines the value, because ds__mem_shutdown uses
   every room. */
static const ds__module ds__mem_module;

/* Its address as ds__mem_dev.owner: several threads have allocated, so no thread owns the
   device. */
static const char ds__no_owner;

/* alloc/util.h - helpers of all rooms; labels.

   Has helpers for many rooms: calls of public functions for the allocator's own purposes
   (DS__KEEPING), and memory that stays until ds_shutdown (ds__kept_alloc). ds__mem_dev_lock takes
   the device's lock, ds__arena_lock that of an arena; ds__hold_captures holds back new captures.
   ds__block_list_in and ds__block_list_out link blocks into the lists of an arena.
   ds__direct_giver is the allocator's own stream for memory of ended streams. It implements
   ds_mem_label_push and ds_mem_label_pop.

   Invariants: Memory of ds__kept_alloc is freed by ds__mem_shutdown only, so an old pointer still
   finds an object of its type. DS__KEEPING keeps the name and call site of the user's call.
   ds__tls.upper_locked is above 0 while these functions hold the device's lock or ds__g.begin;
   no destructor of the user's runs then.
   Locks: ds__kept_alloc takes the registry's lock, also under an arena's; ds__kept_alloc_unlocked
   expects it. No capture begins between ds__hold_captures and ds__let_captures (ds__g.begin). The
   driver may be called under ds__g.begin. ds__native_of, ds__own_fill and ds__any_stream call the
   driver and expect no spinning lock.
   Threads: any. Labels belong to the calling thread. */

/* The first step of a public function whose result depends on what is free: makes the frees that
   were postponed. */
#define DS__MEM_ENTER(fn)                        \
    do {                                         \
        DS__ENTER(fn);                           \
        ds__postponed_run(DS__POSTPONED_MEMORY); \
    } while (0)

/* Orders blocks: by segment in the order in which they were made, so that a program sees the
   same order independent of addresses; then by address. */
static inline int ds__block_is_earlier(const ds__mem_block *a, const ds__mem_block *b) {
    return a->seg == b->seg ? a->ptr < b->ptr : a->seg->serial < b->seg->serial;
}

/* Links a block into a list between two neighbours. `before` is NULL at the head, `at` is NULL at
   the end. */
static inline void ds__block_list_in(ds__mem_block **head, ds__mem_block *b, ds__mem_block *before,
                                     ds__mem_block *at) {
    b->list_prev = before;
    b->list_next = at;
    if (at)
        at->list_prev = b;
    if (before)
        before->list_next = b;
    else
        *head = b;
}

/* Unlinks a block from its list. The links of the block itself stay. */
static inline void ds__block_list_out(ds__mem_block **head, const ds__mem_block *b) {
    if (b->list_next)
        b->list_next->list_prev = b->list_prev;
    if (b->list_prev)
        b->list_prev->list_next = b->list_next;
    else
        *head = b->list_next;
}

/* Returns the stream of an arena, or a zero handle if the stream has ended. The stream changes
   when wrapped streams come and go. */
static ds_stream ds__arena_stream(ds__arena *a) {
    ds_stream stream = { 0 };
    ds__spinlock_lock(&a->lock);
    if (!a->orphan)
        stream = a->stream;
    ds__spinlock_unlock(&a->lock);
    return stream;
}

/* Returns the driver's stream of an arena, for upstreams, or NULL if the stream has ended. */
static void *ds__native_of(ds__arena *a) {
    void *native = NULL;
    ds__stream *s = ds__pin(&ds__g.streams, ds__arena_stream(a).id);
    if (!s)
        return NULL;
    if (s->driver->stream_native(s->native, &native) < 0)
        native = NULL;
    ds__stream_unpin(s);
    return native;
}

/* Fills memory for the allocator's own purposes: with poison, or as a guard. */
static ds_result ds__own_fill(ds_stream stream, void *ptr, uint32_t value, size_t size) {
    ds_result r;
    DS__KEEPING(r, (ds_fill)(ptr, value, sizeof value, size / sizeof value, stream));
    return r;
}

/* Returns the legacy stream of the device, pinned. On failure returns NULL and sets the error. */
static ds__stream *ds__any_stream(ds_device device) {
    ds_stream handle = { 0 };
    ds_result r;
    DS__KEEPING(r, (ds_stream_get_legacy)(device, &handle));
    return r < 0 ? NULL : ds__stream_pin(handle);
}

/* Returns the allocator's own stream of a device, pinned, or NULL if it cannot be made. Memory of
   ended streams is given back on this stream. */
static ds__stream *ds__direct_giver(ds__mem_dev *dev) {
    ds_stream made = { 0 };
    uint64_t none = 0;
    if (!atomic_load(&dev->giver) &&
        ds__stream_create(dev->device, DS__STREAM_NEW, 0, 0, NULL, &made) == DS_OK &&
        !atomic_compare_exchange_strong(&dev->giver, &none, made.id))
        ds__stream_end(made); /* another thread was faster */
    return ds__pin(&ds__g.streams, atomic_load(&dev->giver));
}

/* Returns the code of the thread's last error, for callers of functions that return an object. */
static ds_result ds__mem_error(void) {
    return ds__tls.code < 0 ? ds__tls.code : DS_ERR_OUT_OF_MEMORY;
}

static int ds__is_shortage(ds_result r) {
    return r == DS_ERR_OUT_OF_MEMORY || r == DS_ERR_LIMIT_EXCEEDED;
}

/* The waits that are allowed to a call that gives back blocks of backends without a cache: none in
   an allocation, the driver's own free of plain memory in a free, all in a flush. */
enum { DS__WAIT_NONE = 0, DS__WAIT_DEVICE, DS__WAIT_ALL };

/* Header of memory that stays until shutdown. An old pointer still leads to an object of its
   type. */
typedef struct ds__kept {
    struct ds__kept *next;
    uint64_t pad;
} ds__kept;

/* Returns zeroed memory that stays until shutdown, or NULL. The registry is locked. */
static void *ds__kept_alloc_unlocked(size_t size) {
    ds__kept *k = ds__host_alloc(sizeof *k + size);
    if (!k)
        return NULL;
    k->next = ds__memory_state.kept;
    ds__memory_state.kept = k;
    return k + 1;
}

static void *ds__kept_alloc(size_t size) {
    ds__mutex_lock(&ds__memory_state.registry);
    void *p = ds__kept_alloc_unlocked(size);
    ds__mutex_unlock(&ds__memory_state.registry);
    return p;
}

static void ds__mem_dev_lock(ds__mem_dev *dev) {
    ds__mutex_lock(&dev->lock);
    ds__tls.upper_locked++;
}

static void ds__mem_dev_unlock(ds__mem_dev *dev) {
    ds__tls.upper_locked--;
    ds__mutex_unlock(&dev->lock);
}

static void ds__arena_lock(ds__arena *a) {
    ds__spinlock_lock(&a->lock);
}

static void ds__arena_unlock(ds__arena *a) {
    ds__spinlock_unlock(&a->lock);
}

/* Holds back new captures until ds__let_captures: between the check for captures and work that
   must not be captured. Destructors of the program wait too, because they could free blocks. */
static void ds__hold_captures(void) {
    ds__rwlock_read(&ds__g.begin);
    ds__tls.upper_locked++;
}

static void ds__let_captures(void) {
    ds__tls.upper_locked--;
    ds__rwlock_end_read(&ds__g.begin);
}

/* Returns the label of the thread that was pushed last, or NULL. Of more than DS__LABELS labels,
   the last ones are not stored. */
static const char *ds__mem_label(void) {
    unsigned n = ds__memory_thread.labels < DS__LABELS ? ds__memory_thread.labels : DS__LABELS;
    return n ? ds__memory_thread.label[n - 1] : NULL;
}

DSDEF void(ds_mem_label_push)(const char *label) {
    if (ds__memory_thread.labels < DS__LABELS)
        ds__memory_thread.label[ds__memory_thread.labels] = label;
    ds__memory_thread.labels++;
}

DSDEF void(ds_mem_label_pop)(void) {
    if (ds__memory_thread.labels)
        ds__memory_thread.labels--;
}

/* alloc/history_state.h - state of history and observers.

   Holds the settings of the history and the list of observers (ds__history_state).
   ds__history_apply tells a device which events to report. ds__mem_history_join lets a new device
   take part in the history. ds__mem_tell passes an event to all observers.

   Invariants: An event is recorded on a device only if its bit in dev->watch is set. DS__WATCHED
   is set there while observers exist. After ds__history_apply has returned, no event of the old
   setting enters the ring. Inside of an observer, calls of devstream are refused
   (ds__tls.in_callback), except functions callable anywhere. Function name and call site of the
   outer call are restored afterwards.
   Locks: ds__history_state.lock is taken before all locks of the allocator except
   ds__memory_state.lock. It guards the settings, the sizes of all rings and the annotations.
   ds__history_state.watch is taken after all other locks, around the calls of observers.
   dev->history_lock guards one ring; ds__history_state.watch and the history lock are not nested.
   ds__history_apply and ds__history_swap expect ds__history_state.lock. The program's memory and
   log functions may be called under it.
   Threads: any. ds__mem_history_join runs on the thread that uses a device first, under
   ds__memory_state.lock. An observer runs on the thread that reports the event. */

typedef struct ds__config_remark ds__config_remark;

/* The text of an annotation. */
struct ds__config_remark {
    ds__config_remark *next;
    /* the number of events up to the annotation; the ring has overwritten the annotation after as
       many further events as it has entries */
    uint64_t until;
    char text[256];
};

static struct {
    ds__mutex lock; /* guards the members up to `watch`, and the sizes of all rings */
    int on;
    size_t entries;
    unsigned actions; /* bits of the recorded actions */
    /* from the monotonic clock to the time of day; set by the first snapshot, for all snapshots */
    int64_t to_wall_ns;

    struct {
        ds__config_remark *first;
        ds__config_remark *last;
    } remarks[DS_BACKEND_COUNT][DS__MAX_DEVICES];

    ds__mutex watch;
    ds__callback_list observers; /* ds_mem_event_fn, guarded by `watch` */
} ds__history_state = { .lock = DS__MUTEX_INIT, .watch = DS__MUTEX_INIT };

/* Runs a statement for each device that was used: `dev` is its record, ds__b its backend, ds__i its
   index. */
#define DS__EACH_MDEVICE(dev)                                                                   \
    for (int ds__b = 0; ds__b < DS_BACKEND_COUNT; ds__b++)                                      \
        for (int ds__i = 0; ds__i < DS__MAX_DEVICES; ds__i++)                                   \
            for (ds__mem_dev *dev = ds__mem_device_at(ds__b, ds__i), *ds__once = dev; ds__once; \
                 ds__once = NULL)

/* Passes an event to all observers. */
static void ds__mem_tell(ds__mem_dev *dev, const ds__history_event *e) {
    ds_mem_event event = { .action = (ds_mem_action)e->action,
                           .address = e->address,
                           .bytes = e->bytes,
                           .stream = e->stream,
                           .time_ns = e->time_ns,
                           .site = { e->file, (int)e->line },
                           .label = e->label,
                           .pool = { e->pool } };
    ds__mutex_lock(&ds__history_state.watch);
    ds__user_code g = ds__user_code_begin();
    for (size_t i = 0; i < ds__history_state.observers.count; i++) {
        const ds__callback *observer = &ds__history_state.observers.entries[i];
        ((ds_mem_event_fn)observer->fn)(dev->device, &event, observer->user);
    }
    ds__user_code_end(&g);
    ds__mutex_unlock(&ds__history_state.watch);
}

/* Sets the events that the device reports. ds__history_state.lock is held. After the return, no
   event of the old setting enters the ring. */
static void ds__history_apply(ds__mem_dev *dev) {
    ds__mutex_lock(&ds__history_state.watch);
    unsigned watch = (ds__history_state.on && dev->history_room ? ds__history_state.actions : 0) |
                     (ds__history_state.observers.count || ds__observer_is_set() ? DS__WATCHED : 0);
    ds__mutex_unlock(&ds__history_state.watch);
    ds__spinlock_lock(&dev->history_lock);
    atomic_store(&dev->watch, watch);
    ds__spinlock_unlock(&dev->history_lock);
}

/* Replaces the ring of a device, and returns the old one. */
static ds__history_event *ds__history_swap(ds__mem_dev *dev, ds__history_event *ring, size_t room) {
    ds__spinlock_lock(&dev->history_lock);
    ds__history_event *old = dev->history;
    dev->history = ring;
    dev->history_room = room;
    dev->history_at = 0;
    atomic_store_explicit(&dev->history_count, 0, memory_order_relaxed);
    ds__spinlock_unlock(&dev->history_lock);
    return old;
}

/* Lets a new device take part in a history that was started before. */
static void ds__mem_history_join(ds__mem_dev *dev) {
    ds__mutex_lock(&ds__history_state.lock);
    if (ds__history_state.on && !dev->history_room) {
        ds__history_event *ring = ds__host_alloc(ds__history_state.entries * sizeof *ring);
        if (ring)
            ds__history_swap(dev, ring, ds__history_state.entries);
        else
            ds__log_write(DS_LOG_WARNING, DS_ERR_OUT_OF_MEMORY,
                          "no memory for the history of a device: it is not recorded");
    }
    ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
}

/* alloc/history_ring.h - recording one event.

   Records an event of the allocator in the history ring of the device and passes the event to
   the observers (ds__mem_note). ds__note_block and ds__note_free record events of blocks,
   ds__note_segment events of segments.
   ds__ticks reads the processor's clock; ds__ticks_ns converts ticks to the monotonic clock.
   ds__stream_of tells on which stream a block was allocated.

   Invariants: dev->watch is checked again under the ring's lock, so nothing enters the ring
   after ds_mem_history_stop has returned. `history_at` is history_count modulo history_room.
   Times in the ring are ticks and are converted when they are read.
   Locks: Callers may hold arena locks and the device lock. All notes take dev->history_lock.
   ds__mem_note releases that lock and then invokes observers under ds__history_state.watch. So
   user code may run under the caller's locks. ds__note_block expects the arena's lock, or a new
   block of the calling thread. The driver is not called.
   Threads: any thread that works in the allocator. */

/* Returns the time of the monotonic clock at which the processor's clock showed `ticks`. */
static uint64_t ds__ticks_ns(uint64_t ticks) {
    uint64_t now = ds__now_ns();
    uint64_t now_ticks = ds__os_ticks();
    if (now_ticks <= ds__memory_state.tick_base || ticks >= now_ticks)
        return now;
    double scale = (double)(now - ds__memory_state.tick_base_ns) /
                   (double)(now_ticks - ds__memory_state.tick_base);
    return now - (uint64_t)((double)(now_ticks - ticks) * scale);
}

/* Returns the next entry of the ring, which has room, and counts an event. The ring's lock is
   held. */
static inline ds__history_event *ds__ring_next(ds__mem_dev *dev) {
    ds__history_event *e = &dev->history[dev->history_at];
    /* history_count % history_room, without a division */
    if (++dev->history_at == dev->history_room)
        dev->history_at = 0;
    atomic_store_explicit(&dev->history_count,
                          atomic_load_explicit(&dev->history_count, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    return e;
}

/* Returns whether the ring records all of these actions. The ring's lock is held: no event enters
   the ring after ds_mem_history_stop has returned. */
static inline int ds__ring_takes(const ds__mem_dev *dev, unsigned actions) {
    unsigned watch = atomic_load_explicit(&dev->watch, memory_order_relaxed);
    return (watch & actions) == actions && DS__LIKELY(dev->history_room != 0);
}

/* Records an event of the device in the ring and passes it to the observers. Sets the time of the
   event. Locks of arenas may be held. */
static void ds__mem_note(ds__mem_dev *dev, const ds__history_event *event) {
    unsigned watch = atomic_load_explicit(&dev->watch, memory_order_relaxed);
    if (DS__LIKELY(!(watch & (1u << event->action | DS__WATCHED))))
        return;
    ds__history_event e = *event;
    e.time_ns = ds__os_ticks();
    ds__spinlock_lock(&dev->history_lock);
    if (ds__ring_takes(dev, 1u << e.action))
        *ds__ring_next(dev) = e;
    ds__spinlock_unlock(&dev->history_lock);
    if (DS__LIKELY(!(watch & DS__WATCHED)))
        return;
    e.time_ns = ds__ticks_ns(e.time_ns);
    ds__mem_tell(dev, &e);
}

/* Returns the number of the stream on which a block was allocated. */
static uint64_t ds__stream_of(const ds__arena *a, const ds__mem_block *b) {
    return DS__UNLIKELY(b->lent && b->uses) ? b->uses->stream_id : a->stream_id;
}

/* Returns the handle of the stream on which a block was allocated, or zero if it has ended. */
static ds_stream ds__stream_handle_of(const ds__arena *a, const ds__mem_block *b) {
    if (DS__UNLIKELY(b->lent && b->uses))
        return b->uses->stream;
    return a->orphan ? (ds_stream){ 0 } : a->stream;
}

/* Returns the kind of occurrence that the observers of the core get for an action on a block. */
static int ds__seen_kind(ds_mem_action action) {
    if (action == DS_ACTION_ALLOC)
        return DS__SEEN_ALLOC;
    return action == DS_ACTION_FREE_REQUESTED ? DS__SEEN_FREE : DS__SEEN_FREE_DONE;
}

/* Passes an action on a block to the observers of the core. The arena is locked, or no other thread
   knows the block. */
__attribute__((cold, noinline)) static void ds__observe_block(const ds__arena *a,
                                                              ds_mem_action action,
                                                              const ds__mem_block *b) {
    ds__observer_notify(&(ds__seen){ .kind = ds__seen_kind(action),
                                     .ptr = b->ptr,
                                     .bytes = b->asked,
                                     .room = b->size,
                                     .device = a->dev->device,
                                     .stream = ds__stream_handle_of(a, b),
                                     .label = b->label });
}

/* Writes an event of a block. Each member is written on its own: a copy of a whole entry would load
   more bytes at once than were stored just before, and wait for these stores. */
static inline void ds__block_event_write(ds__history_event *e, const ds__arena *a,
                                         ds_mem_action action, const ds__mem_block *b,
                                         uint64_t time) {
    e->address = (uint64_t)(uintptr_t)b->ptr;
    e->bytes = b->asked;
    e->stream = ds__stream_of(a, b);
    e->time_ns = time;
    e->pool = a->pool->id;
    e->file = b->file;
    e->label = b->label;
    e->line = b->line;
    e->action = (uint32_t)action;
}

/* Records an action on a block and passes it to all observers. */
static void ds__note_block(ds__arena *a, ds_mem_action action, const ds__mem_block *b) {
    ds__mem_dev *dev = a->dev;
    unsigned watch = atomic_load_explicit(&dev->watch, memory_order_relaxed);
    if (DS__UNLIKELY(watch & DS__WATCHED)) {
        ds__history_event e;
        ds__block_event_write(&e, a, action, b, 0);
        ds__mem_note(dev, &e);
    } else if (watch & 1u << action) {
        uint64_t time = ds__os_ticks();
        ds__spinlock_lock(&dev->history_lock);
        if (ds__ring_takes(dev, 1u << action))
            ds__block_event_write(ds__ring_next(dev), a, action, b, time);
        ds__spinlock_unlock(&dev->history_lock);
    }
    if (ds__observer_is_set())
        ds__observe_block(a, action, b);
}

/* Records that a segment, or a part of it, came from the driver or went back. */
static void ds__note_segment(const ds__arena *a, ds_mem_action action, const char *base,
                             size_t size) {
    ds__mem_note(a->dev, &(ds__history_event){ .address = (uint64_t)(uintptr_t)base,
                                               .bytes = size,
                                               .stream = a->stream_id,
                                               .pool = a->pool->id,
                                               .file = ds__tls.site.file,
                                               .line = (uint32_t)ds__tls.site.line,
                                               .action = (uint32_t)action });
}

/* Records both events of a free that is complete at once. */
static void ds__note_free(ds__arena *a, const ds__mem_block *b, unsigned watch) {
    const unsigned both = 1u << DS_ACTION_FREE_REQUESTED | 1u << DS_ACTION_FREE_COMPLETED;
    if (DS__UNLIKELY((watch & both) != both || (watch & DS__WATCHED))) {
        ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
        ds__note_block(a, DS_ACTION_FREE_COMPLETED, b);
        return;
    }
    ds__mem_dev *dev = a->dev;
    uint64_t time = ds__os_ticks();
    ds__spinlock_lock(&dev->history_lock);
    if (ds__ring_takes(dev, both)) {
        ds__block_event_write(ds__ring_next(dev), a, DS_ACTION_FREE_REQUESTED, b, time);
        ds__block_event_write(ds__ring_next(dev), a, DS_ACTION_FREE_COMPLETED, b, time);
    }
    ds__spinlock_unlock(&dev->history_lock);
}

/* alloc/counters.h - counters and peaks.

   Counts allocated, requested and pending blocks and bytes of arenas, pools and devices, with
   their peaks. ds__count_alloc, ds__count_free, ds__count_pending and ds__count_done count one
   block each. ds__counter_room_ready and ds__has_room tell whether an arena may count now; locks.h
   makes an arena ready. ds__counter_fold moves the counts of arenas to the domains. ds__meter_add
   counts segments and reserved bytes.

   Policy:
   1. While one thread allocates on a device, every call counts in the device's tally and peaks
      are exact.
   2. As soon as a second thread comes, each arena counts for itself and has room for a number of
      further bytes and blocks (ds__headroom).
   3. Peaks are raised in advance to the value that all rooms together allow. So a peak is never
      too low, and at most too high by the room.
   4. When an arena has used its room, room is given out anew with all arenas stopped
      (ds__share_room). The block that needs more room is counted meanwhile, so new peaks include
      the block whatever other threads do.

   Invariants: An exact arena counts in the device's tally, and only the thread in dev->owner may
   do so. All other arenas count in their own tally. A block is counted only after
   ds__counter_room_ready or ds__has_room was true under the same lock, or with all locks held.
   Totals are counted only if statistics are full. After ds__counter_fold every arena counts
   exactly, and the search for a thread that allocates alone begins anew.
   Locks: The functions that count expect the arena's lock. ds__share_room, ds__counter_fold and the
   functions of domains expect all locks. Meters need no lock; neither the driver nor user code
   is called.
   Threads: any thread that holds the expected lock. */

#define DS__ROOM_BYTES ((int64_t)2 << 20)
#define DS__ROOM_COUNT 64

static inline void ds__counter_peak_raise(int64_t *peak, int64_t now) {
    if (now > *peak)
        *peak = now;
}

/* Raises the peaks of a domain that one thread counts in, and sets `room`, if not NULL, to the
   difference between counts and peaks. */
__attribute__((noinline)) static void ds__at_peak(ds__tally *t, ds__headroom *room) {
    for (int m = 0; m < DS__METRICS; m++) {
        int from = m < DS__ACTIVE ? m : m - DS__ACTIVE;
        int both = 0;
        int64_t now[3];
        for (int k = 0; k < 2; k++)
            now[1 + k] = t->kind[k].now[from] + (m < DS__ACTIVE ? 0 : t->kind[k].pending[from]);
        now[both] = now[1] + now[2];
        for (int k = 0; k < 3; k++) {
            ds__counter_peak_raise(&t->peak[k][m], now[k]);
            if (!room)
                continue;
            int64_t left = t->peak[k][m] - now[k];
            int64_t *at = &room[k == both ? 2 : k - 1].of[from];
            if (m < DS__ACTIVE || left < *at)
                *at = left;
        }
    }
    for (int k = 0; room && k < 3; k++)
        memset(room[k].owed, 0, sizeof room[k].owed);
}

/* Adds with one instruction. The fence prevents vector loads, which would wait for the single
   stores before them. */
static inline void ds__counter_add(int64_t *at, int64_t by) {
    *at += by;
    DS__COMPILER_FENCE();
}

/* Counts a new block in a tally, with totals if statistics are full. */
__attribute__((always_inline)) static inline void ds__tally_up(ds__tally *t, int kind, int64_t size,
                                                               int64_t asked, int full) {
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATION], 1);
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATED_BYTES], size);
    ds__counter_add(&t->kind[kind].now[DS__REQUESTED_BYTES], asked);
    if (!full)
        return;
    ds__counter_add(&t->kind[kind].total[DS__ALLOCATION], 1);
    ds__counter_add(&t->kind[kind].total[DS__ALLOCATED_BYTES], size);
    ds__counter_add(&t->kind[kind].total[DS__REQUESTED_BYTES], asked);
}

/* A change of the counts of one kind: allocated blocks and bytes, requested bytes, and pending
   blocks and bytes. */
typedef struct ds__count_change {
    int64_t count;
    int64_t size;
    int64_t asked;
    int64_t pending;
    int64_t pending_bytes;
} ds__count_change;

/* Changes the allocated and the pending counts of a tally, but neither totals nor peaks. */
__attribute__((always_inline)) static inline void ds__tally_move(ds__tally *t, int kind,
                                                                 ds__count_change by) {
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATION], by.count);
    ds__counter_add(&t->kind[kind].now[DS__ALLOCATED_BYTES], by.size);
    ds__counter_add(&t->kind[kind].now[DS__REQUESTED_BYTES], by.asked);
    if (!by.pending && !by.pending_bytes)
        return;
    ds__counter_add(&t->kind[kind].pending[0], by.pending);
    ds__counter_add(&t->kind[kind].pending[1], by.pending_bytes);
}

/* Uses up headroom. The result is below 0 if a peak is passed. */
__attribute__((always_inline)) static inline int64_t ds__room_less(ds__headroom *r, int64_t count,
                                                                   int64_t size, int64_t asked) {
    ds__counter_add(&r->of[DS__ALLOCATION], -count);
    ds__counter_add(&r->of[DS__ALLOCATED_BYTES], -size);
    ds__counter_add(&r->of[DS__REQUESTED_BYTES], -asked);
    return r->of[DS__ALLOCATION] | r->of[DS__ALLOCATED_BYTES] | r->of[DS__REQUESTED_BYTES];
}

/* Counts an allocated block. The arena is locked and ready. */
__attribute__((always_inline)) static inline void ds__count_alloc(ds__arena *a, int kind,
                                                                  int64_t size, int64_t asked) {
    int full = a->full;
    ds__tally_up(a->tally, kind, size, asked, full);
    if (DS__LIKELY(a->measured) &&
        DS__UNLIKELY((ds__room_less(&a->room[kind], 1, size, asked) |
                      ds__room_less(&a->room[2], 1, size, asked)) < 0) &&
        a->exact && full)
        ds__at_peak(a->tally, a->room);
    if (DS__UNLIKELY(a->own_pool) && a->exact) {
        ds__tally_up(&a->pool->stats.tally, kind, size, asked, full);
        if (full)
            ds__at_peak(&a->pool->stats.tally, NULL);
    }
}

/* Changes the allocated and the pending counts. The arena is locked and ready. */
__attribute__((always_inline)) static inline void ds__count_move(ds__arena *a, int kind,
                                                                 ds__count_change by) {
    ds__tally_move(a->tally, kind, by);
    if (DS__UNLIKELY(a->own_pool) && a->exact)
        ds__tally_move(&a->pool->stats.tally, kind, by);
}

/* Counts that live blocks end or are cut: by `count` blocks, `size` bytes and `asked` requested
   bytes. */
__attribute__((always_inline)) static inline void ds__count_less(ds__arena *a, int kind,
                                                                 int64_t count, int64_t size,
                                                                 int64_t asked) {
    ds__count_move(a, kind, (ds__count_change){ -count, -size, -asked, 0, 0 });
    if (DS__UNLIKELY(!a->measured))
        return;
    ds__room_less(&a->room[kind], -count, -size, -asked);
    ds__room_less(&a->room[2], -count, -size, -asked);
}

/* Lets an arena count in the domains (exact) or for itself. All is locked, or no other thread
   knows the arena. */
static void ds__count_in(ds__arena *a, int exact) {
    a->exact = (uint8_t)exact;
    a->tally = exact ? &a->dev->stats.tally : &a->own;
    a->room = exact ? a->dev->room : a->own_room;
}

/* Counts a block that was freed and that no stream uses. */
static inline void ds__count_free(ds__arena *a, int kind, int64_t size, int64_t asked) {
    ds__count_less(a, kind, 1, size, asked);
}

/* Counts a block that was freed and that streams still use. */
static void ds__count_pending(ds__arena *a, int kind, int64_t size) {
    ds__count_move(a, kind, (ds__count_change){ -1, -size, 0, 1, size });
    for (int k = kind; k < 3; k += 2 - kind) {
        a->room[k].owed[0]++;
        a->room[k].owed[1] += size;
    }
}

/* Counts a pending block that no stream uses any more. */
static void ds__count_done(ds__arena *a, int kind, int64_t size, int64_t asked) {
    ds__count_move(a, kind, (ds__count_change){ 0, 0, -asked, -1, -size });
    for (int k = kind; k < 3; k += 2 - kind) {
        ds__headroom *r = &a->room[k];
        int64_t count = r->owed[0] > 0;
        int64_t bytes = size < r->owed[1] ? size : r->owed[1];
        r->owed[0] -= count;
        r->owed[1] -= bytes;
        ds__room_less(r, -count, -bytes, -asked);
    }
}

/* Adds to a meter and raises its peak. No lock is needed. */
static void ds__meter_add(ds__meter *m, int64_t by) {
    int64_t now = atomic_fetch_add_explicit(&m->now, by, memory_order_relaxed) + by;
    int64_t peak = atomic_load_explicit(&m->peak, memory_order_relaxed);
    atomic_fetch_add_explicit(by > 0 ? &m->total : &m->freed, by > 0 ? by : -by,
                              memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &m->peak, &peak, now, memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* Adds to a meter of the device and, for other pools than the default one, of the pool. */
static void ds__counter_meters_add(ds__arena *a, int kind, int meter, int64_t by) {
    if (!by)
        return;
    ds__meter_add(&a->dev->stats.meter[kind][meter], by);
    ds__meter_add(&a->dev->stats.all[meter], by);
    if (a->pool == &a->dev->main)
        return;
    ds__meter_add(&a->pool->stats.meter[kind][meter], by);
    ds__meter_add(&a->pool->stats.all[meter], by);
}

#define DS__COUNT_CALL(a, what, by)                                                      \
    do {                                                                                 \
        atomic_fetch_add_explicit(&(a)->dev->stats.what, by, memory_order_relaxed);      \
        if ((a)->pool != &(a)->dev->main)                                                \
            atomic_fetch_add_explicit(&(a)->pool->stats.what, by, memory_order_relaxed); \
    } while (0)

/* Adds a tally's counts to `now` and, if not NULL, to `total`. Active blocks were allocated, so
   both have the same totals. */
static void ds__tally_read(const ds__tally *t, int64_t now[2][DS__METRICS],
                           int64_t total[2][DS__METRICS]) {
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < DS__METRICS; m++) {
            int from = m < DS__ACTIVE ? m : m - DS__ACTIVE;
            now[k][m] += t->kind[k].now[from] + (m < DS__ACTIVE ? 0 : t->kind[k].pending[from]);
            if (total)
                total[k][m] += t->kind[k].total[from];
        }
}

/* Returns a peak. An active one is at least as high as the peak of allocated blocks. */
static int64_t ds__tally_peak(const ds__tally *t, int k, int m) {
    int64_t peak = t->peak[k][m];
    int64_t allocated = m < DS__ACTIVE ? 0 : t->peak[k][m - DS__ACTIVE];
    return allocated > peak ? allocated : peak;
}

/* Sums up the counts of a domain: the device's, or a pool's (`only`). All is locked. */
static void ds__domain_now(ds__mem_dev *dev, ds__mem_pool *only, int64_t now[2][DS__METRICS],
                           int64_t total[2][DS__METRICS]) {
    memset(now, 0, 2 * sizeof now[0]);
    if (total)
        memset(total, 0, 2 * sizeof total[0]);
    ds__tally_read(only ? &only->stats.tally : &dev->stats.tally, now, total);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = only && p != only ? NULL : p->arenas; a; a = a->next)
            ds__tally_read(&a->own, now, total);
}

static int ds__is_bytes(int metric) {
    return metric != DS__ALLOCATION && metric != DS__ACTIVE;
}

/* Raises the peaks of a domain to the counts that its arenas may reach with their rooms. `room`: by
   kind, counts (0) and bytes (1). All is locked. */
static void ds__domain_peaks(ds__domain *d, int64_t now[2][DS__METRICS], int64_t room[2][2]) {
    for (int m = 0; m < DS__METRICS; m++) {
        int b = ds__is_bytes(m);
        for (int k = 0; k < 2; k++)
            ds__counter_peak_raise(&d->tally.peak[1 + k][m], now[k][m] + room[k][b]);
        ds__counter_peak_raise(&d->tally.peak[0][m],
                               now[0][m] + now[1][m] + room[0][b] + room[1][b]);
    }
}

/* Returns how much may be added in a kind, or in all (2), before a peak rises: bytes (1) or counts
   (0). */
static int64_t ds__below_peak(const ds__domain *d, int64_t now[2][DS__METRICS], int kind,
                              int bytes) {
    int64_t least = INT64_MAX;
    for (int m = 0; m < DS__METRICS; m++) {
        if (ds__is_bytes(m) != bytes)
            continue;
        int64_t left = kind < 2 ? ds__tally_peak(&d->tally, 1 + kind, m) - now[kind][m]
                                : ds__tally_peak(&d->tally, 0, m) - now[0][m] - now[1][m];
        if (left < least)
            least = left;
    }
    return least;
}

/* Computes the room of each arena of the default pool, by kind, in counts (0) and bytes (1): the
   usual room, and an equal part of the difference between the device's counts and peaks. All is
   locked. */
static void ds__room_divide(const ds__mem_dev *dev, int64_t now[2][DS__METRICS], int arenas,
                            int64_t share[2][2]) {
    for (int b = 0; b < 2; b++) {
        int64_t usual = b ? DS__ROOM_BYTES : DS__ROOM_COUNT;
        int64_t left = ds__below_peak(&dev->stats, now, 2, b) - 2 * arenas * usual;
        for (int k = 0; k < 2; k++) {
            int64_t more = ds__below_peak(&dev->stats, now, k, b) - arenas * usual;
            int64_t most = k ? left : left / 2;
            if (more > most)
                more = most;
            if (more < 0)
                more = 0;
            share[k][b] = usual + more / arenas;
            left -= more;
        }
    }
}

/* Gives each arena of a pool the room `share` and lets the arena count for itself. Adds the rooms
   to `sum`, by kind, in counts and bytes. Returns the number of arenas. All is locked. */
static int64_t ds__pool_room_set(ds__mem_pool *p, int64_t share[2][2], int64_t sum[2][2]) {
    int64_t members = 0;
    for (ds__arena *a = p->arenas; a; a = a->next, members++) {
        ds__count_in(a, 0);
        /* shares are by kind */
        a->own_room[2] =
            (ds__headroom){ { INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 2 }, { 0, 0 } };
        for (int k = 0; k < 2; k++) {
            int64_t bytes = share[k][1];
            a->own_room[k] = (ds__headroom){ { share[k][0], bytes, bytes }, { 0, 0 } };
            sum[k][0] += share[k][0];
            sum[k][1] += bytes;
        }
    }
    return members;
}

/* Gives room to all arenas of a device, and lets them count for themselves. All is locked. */
static void ds__share_room(ds__mem_dev *dev) {
    int64_t now[2][DS__METRICS];
    int64_t usual[2][2] = { { DS__ROOM_COUNT, DS__ROOM_BYTES },
                            { DS__ROOM_COUNT, DS__ROOM_BYTES } };
    int64_t share[2][2];
    int64_t all[2][2] = { { 0, 0 }, { 0, 0 } };
    int arenas = 0;
    atomic_store(&dev->owner, (void *)(uintptr_t)&ds__no_owner);
    ds__domain_now(dev, NULL, now, NULL);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            arenas++;
    ds__room_divide(dev, now, arenas, share);

    (void)ds__pool_room_set(&dev->main, share, all);
    for (ds__mem_pool *p = dev->main.next; p; p = p->next) {
        int64_t in_pool[2][DS__METRICS];
        int64_t sum[2][2] = { { 0, 0 }, { 0, 0 } };
        int64_t members = ds__pool_room_set(p, usual, sum);
        for (int k = 0; k < 2; k++)
            for (int b = 0; b < 2; b++)
                all[k][b] += sum[k][b];
        if (!p->full)
            continue;
        ds__domain_now(dev, p, in_pool, NULL);
        ds__domain_peaks(&p->stats, in_pool, sum);
        ds__counter_peak_raise(&p->stats.sharers, members);
    }

    /* without full statistics, peaks do not change */
    if (!dev->main.full)
        return;
    ds__domain_peaks(&dev->stats, now, all);
    ds__counter_peak_raise(&dev->stats.sharers, arenas);
}

/* Adds an arena's own counts to the tally of a domain. */
static void ds__tally_fold(ds__tally *to, const ds__tally *from) {
    for (int k = 0; k < 2; k++) {
        for (int m = 0; m < DS__COUNTED; m++) {
            to->kind[k].now[m] += from->kind[k].now[m];
            to->kind[k].total[m] += from->kind[k].total[m];
        }
        for (int m = 0; m < 2; m++)
            to->kind[k].pending[m] += from->kind[k].pending[m];
    }
}

/* Moves the counts of all arenas to the domains, and lets the arenas count there. All is locked. */
static void ds__counter_fold(ds__mem_dev *dev) {
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next) {
            ds__tally_fold(&dev->stats.tally, &a->own);
            if (p != &dev->main)
                ds__tally_fold(&p->stats.tally, &a->own);
            memset(&a->own, 0, sizeof a->own);
            ds__count_in(a, 1);
        }
    memset(dev->room, 0, sizeof dev->room);
    if (dev->main.full)
        ds__at_peak(&dev->stats.tally, dev->room);
    atomic_store(&dev->owner, NULL);
}

/* Returns whether the calling thread is the only one that allocates on the device, as the first
   one or as before. Then the arenas count in the domains. */
static int ds__counter_room_claim(ds__mem_dev *dev) {
    void *none = NULL;
    if (!atomic_compare_exchange_strong(&dev->owner, &none, (void *)&ds__tls))
        return none == (void *)&ds__tls;
    return 1;
}

/* Returns whether the arena, which is locked, may count a change of `size` bytes. */
static inline int ds__counter_room_ready(ds__arena *a, int kind, int64_t size) {
    if (DS__LIKELY(a->exact))
        return atomic_load_explicit(&a->dev->owner, memory_order_relaxed) == (void *)&ds__tls;
    return a->room[kind].of[DS__ALLOCATED_BYTES] >= size && a->room[kind].of[DS__ALLOCATION] > 0;
}

/* Returns whether the arena, which is locked, may count a new block. The requested bytes are
   checked too: a free gives back the bytes of its own request, which may be fewer. */
static inline int ds__has_room(ds__arena *a, int kind, int64_t size, int64_t asked) {
    return ds__counter_room_ready(a, kind, size) &&
           (DS__LIKELY(a->exact) || a->room[kind].of[DS__REQUESTED_BYTES] >= asked);
}

/* alloc/address.h - look-up of a segment by address.

   Finds the segment of an address for frees and queries (ds__segment_of). A two-level table
   serves most look-ups: a root of leaves of 16 GiB, each with an entry for every 2 MiB
   (granule). If several segments share a granule, ds__segment_shared searches the sorted list of
   all segments. ds__address_granules_set enters and removes the granules of a segment.

   Invariants: A leaf stays until shutdown. A granule that two segments have used keeps the mark
   for shared granules (the lowest bit) until shutdown. A look-up may return a segment that was
   given back, so the caller must compare `arena` again under the arena's lock.
   ds__segment_shared skips segments marked by ds__segment_leaves: the driver may give their
   addresses to new segments.
   Locks: The table is read without a lock. ds__segment_shared and ds__segment_leaves take the
   registry lock (ds__memory_state.registry), the innermost lock. ds__address_granules_set and
   ds__sorted_after expect the registry lock. The program's memory functions may be called under the
   registry lock, the driver is not.
   Threads: any thread may look up an address while other threads add and remove segments. */

#define DS__GRANULE_BITS 21

/* Returns the entry of an address in the table, or NULL if its leaf was never made. */
static inline ds__segment *_Atomic *ds__granule_at(uintptr_t address) {
    if (address >> 47) /* not an address of user space */
        return NULL;
    ds__segment *_Atomic *leaf =
        atomic_load_explicit(&ds__memory_state.root[address >> 34], memory_order_acquire);
    return leaf ? &leaf[address >> DS__GRANULE_BITS & 8191] : NULL;
}

/* Returns the index of the first segment that starts behind the address. The registry is locked. */
static size_t ds__sorted_after(uintptr_t address) {
    size_t low = 0;
    size_t high = ds__memory_state.sorted_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)ds__memory_state.sorted[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ds__segment *ds__segment_shared(const void *ptr);

/* Returns the segment of an address, or NULL. The segment may have been given back. */
static inline ds__segment *ds__segment_of(const void *ptr) {
    ds__segment *_Atomic *at = ds__granule_at((uintptr_t)ptr);
    ds__segment *s = at ? atomic_load_explicit(at, memory_order_acquire) : NULL;
    return DS__LIKELY(((uintptr_t)s & 1) == 0) ? s : ds__segment_shared(ptr);
}

/* Searches the list of all segments, for addresses in a shared granule. */
__attribute__((noinline)) static ds__segment *ds__segment_shared(const void *ptr) {
    ds__segment *s;
    ds__mutex_lock(&ds__memory_state.registry);
    size_t i = ds__sorted_after((uintptr_t)ptr);
    while (i > 0 && ds__memory_state.sorted[i - 1]->leaving)
        i--;
    s = i > 0 ? ds__memory_state.sorted[i - 1] : NULL;
    ds__mutex_unlock(&ds__memory_state.registry);
    return s;
}

/* Sets whether the memory of a segment is being given back. */
static void ds__segment_leaves(ds__segment *s, int leaves) {
    ds__mutex_lock(&ds__memory_state.registry);
    s->leaving = (uint8_t)leaves;
    ds__mutex_unlock(&ds__memory_state.registry);
}

/* Enters the granules of [at, at + size) for the segment, or removes them. Returns 0 without host
   memory. The registry is locked. */
static int ds__address_granules_set(ds__segment *seg, char *at, size_t size, int in) {
    for (uintptr_t g = (uintptr_t)at >> DS__GRANULE_BITS,
                   end = ((uintptr_t)at + size - 1) >> DS__GRANULE_BITS;
         g <= end; g++) {
        uintptr_t address = g << DS__GRANULE_BITS;
        if (address >> 47)
            return 0;
        if (!atomic_load_explicit(&ds__memory_state.root[address >> 34], memory_order_relaxed)) {
            void *leaf = in ? ds__kept_alloc_unlocked(8192 * sizeof(ds__segment *)) : NULL;
            if (!leaf)
                return 0;
            atomic_store_explicit(&ds__memory_state.root[address >> 34], leaf,
                                  memory_order_release);
        }
        ds__segment *_Atomic *entry = ds__granule_at(address);
        ds__segment *s = atomic_load_explicit(entry, memory_order_relaxed);
        /* an entry of another segment becomes shared, until shutdown */
        if (in)
            s = s && s != seg ? (ds__segment *)(void *)((char *)seg + 1) : seg;
        else if (s == seg)
            s = NULL;
        atomic_store_explicit(entry, s, memory_order_release);
    }
    return 1;
}

/* alloc/bins.h - free blocks of an arena, sorted by size.

   Puts free blocks into bins: one for each size below 32 KiB, then 32 for each power of two.
   ds__bin_best_fit finds the best fitting block for a request, or nearly the best if
   best_fit_by_address is off. ds__too_large applies max_split_size and max_non_split_rounding to
   plain segments; ds__segment_is_growing tells which segments grow.

   Invariants: A block is in a bin exactly if its state is free and it is not claimed. The bit of a
   bin is set exactly if the bin holds a block. A bit of the summary is set exactly if its word
   of the map is not 0. `free_bytes` is the sum of the blocks in bins. Blocks in front of an
   unmapped block are in the last bin (DS__EDGE), which is used last.
   Locks: Every function expects the arena's lock, takes none, and calls neither the driver nor
   user code.
   Threads: any thread that holds the arena's lock. */

/* Returns the bin of blocks with `size` bytes. */
static inline unsigned ds__bin_of_size(size_t size) {
    size_t u = size / DS__UNIT;
    if (u < 64)
        return (unsigned)u;
    unsigned e = 63u - (unsigned)__builtin_clzll(u);
    return 64 + (e - 6) * 32 + (unsigned)(u >> (e - 5) & 31);
}

/* The bin of all free blocks in front of an unmapped block. Such a block can still grow, so it is
   used last. */
#define DS__EDGE (DS__BINS - 1u)

/* Returns the bin of a free block. */
static inline unsigned ds__bin_of(const ds__mem_block *b) {
    return DS__UNLIKELY(b->next && b->next->state == DS_BLOCK_UNMAPPED) ? DS__EDGE
                                                                        : ds__bin_of_size(b->size);
}

/* Returns whether a neighbour, which may be NULL, is in a bin: it is free and not claimed. */
static inline int ds__block_is_binned(const ds__mem_block *b) {
    return b && b->state == DS_BLOCK_FREE && !b->claimed;
}

/* Puts a free block into its bin: at its place by size and address, or in front. */
static inline void ds__bin_in(ds__arena *a, ds__mem_block *b, int by_address) {
    ds__bins *bins = &a->bins[b->seg->kind];
    unsigned i = ds__bin_of(b);
    ds__mem_block *before = NULL;
    ds__mem_block *at = bins->head[i];
    b->bin = (uint16_t)i;
    if (by_address)
        while (at && (at->size < b->size || (at->size == b->size && ds__block_is_earlier(at, b)))) {
            before = at;
            at = at->list_next;
        }
    a->free_bytes += b->size;
    if (!bins->head[i]) {
        bins->map[i / 64] |= (uint64_t)1 << i % 64;
        bins->summary |= (uint64_t)1 << i / 64;
    }
    ds__block_list_in(&bins->head[i], b, before, at);
}

/* Takes a block out of its bin. */
static inline void ds__bin_out(ds__arena *a, ds__mem_block *b) {
    ds__bins *bins = &a->bins[b->seg->kind];
    unsigned i = b->bin;
    ds__block_list_out(&bins->head[i], b);
    a->free_bytes -= b->size;
    if (bins->head[i])
        return;

    bins->map[i / 64] &= ~((uint64_t)1 << i % 64);
    if (!bins->map[i / 64])
        bins->summary &= ~((uint64_t)1 << i / 64);
}

/* Sorts the blocks of all bins. Called if best_fit_by_address is switched on. */
static void ds__bins_sort(ds__arena *a) {
    for (int kind = 0; kind < 2; kind++)
        for (unsigned i = 0; i < DS__BINS; i++) {
            ds__mem_block *rest = a->bins[kind].head[i];
            a->bins[kind].head[i] = NULL;
            while (rest) {
                ds__mem_block *b = rest;
                rest = b->list_next;
                a->free_bytes -= b->size; /* ds__bin_in adds them */
                ds__bin_in(a, b, 1);
            }
        }
}

static inline int ds__segment_is_growing(const ds__segment *s) {
    return s->page != 0;
}

/* Returns whether a free block is too large for a request of `size` bytes, as PyTorch decides:
   a block of max_split_size or more serves only requests that large, and must not exceed the
   request by max_non_split_rounding. */
static int ds__too_large(const ds__mem_pool *p, size_t block, size_t size) {
    size_t limit = p->config.max_split_size;
    return size < limit ? block >= limit : block - size >= p->config.max_non_split_rounding;
}

/* Returns the first bin from `i` on that holds a block, or DS__BINS. `i` is at most DS__EDGE. */
static inline unsigned ds__bin_next_used(const ds__bins *bins, unsigned i) {
    unsigned w = i / 64;
    uint64_t bits = bins->map[w] & ~(uint64_t)0 << i % 64;
    if (!bits) {
        uint64_t words = bins->summary & ~(uint64_t)0 << (w + 1);
        if (!words)
            return DS__BINS;
        w = (unsigned)__builtin_ctzll(words);
        bits = bins->map[w];
    }
    return w * 64 + (unsigned)__builtin_ctzll(bits);
}

/* Returns the smallest of the first `looks` blocks of a list that have `size` bytes or more, or
   NULL. In a sorted list this is the first such block. */
static inline ds__mem_block *ds__bin_smallest(ds__mem_block *b, size_t size, int looks,
                                              int is_sorted) {
    ds__mem_block *best = NULL;
    for (; b && looks > 0; b = b->list_next, looks--) {
        if (b->size < size || (best && b->size >= best->size))
            continue;
        best = b;
        /* no later block can be better */
        if (is_sorted || b->size == size)
            break;
    }
    return best;
}

#define DS__LOOKS 16 /* candidates in one bin, unless the fit must be exact */

/* Returns the free block that fits best, or nearly; NULL: none fits, or the policy forbids the
   best one. */
static inline ds__mem_block *ds__bin_best_fit(ds__arena *a, int kind, size_t size) {
    ds__bins *bins = &a->bins[kind];
    const ds__mem_pool *p = a->pool;
    int exact = p->config.best_fit_by_address;
    unsigned i = ds__bin_of_size(size);
    if (i >= DS__EDGE)
        return NULL;

    /* blocks of the request's own bin may be too small, later ones are not, except at the edge */
    ds__mem_block *best = ds__bin_smallest(bins->head[i], size, exact ? INT_MAX : DS__LOOKS, exact);
    if (!best) {
        i = ds__bin_next_used(bins, i + 1);
        if (i == DS__BINS)
            return NULL;
        if (DS__UNLIKELY(i == DS__EDGE))
            best = ds__bin_smallest(bins->head[i], size, INT_MAX, 0);
        else
            best = ds__bin_smallest(bins->head[i], size, DS__LOOKS + 1, exact);
        if (!best)
            return NULL;
    }

    if (DS__UNLIKELY(p->oversize) && !a->fresh && !ds__segment_is_growing(best->seg) &&
        ds__too_large(p, best->size, size))
        return NULL;
    return best;
}

/* alloc/block.h - blocks: cut, merge, park, take, find.

   Manages the blocks of an arena. ds__block_take serves a request from the bins and splits the
   block; ds__merge_in makes a block free and merges it with free neighbours. ds__block_park keeps
   freed blocks unmerged for the next requests of their sizes. ds__find_live finds the live block
   of an address and locks its arena.

   Policy of parking: A small block up to DS__QUICK_LIMIT enters a quick list if the block that
   was freed there before had the same size. Of other blocks, the last freed one of a kind is
   parked. All blocks of the quick lists are merged if the best free block is at the edge of the
   mapped memory or if there is none. So parking hardly changes how much memory an arena needs.

   Invariants: The blocks of a segment cover its address space without gaps. Two neighbours are
   never both free and not claimed. Each live block is in the granule table of its segment; a
   crowded granule may have a sub-table (ds__sub_table). A parked block is free and claimed, and
   stays in the granule table. Descriptions stay until shutdown, so a late look-up reads a valid
   object.
   Locks: Functions that change a block expect the arena's lock. ds__find_live takes that lock
   and keeps it if a block was found. New descriptions take the registry lock and may call the
   program's memory functions under both locks. No driver call is made.
   Threads: any thread that holds the arena's lock; ds__find_live: any thread. */

/* Gets new descriptions of blocks. Returns 0 without host memory. */
__attribute__((noinline)) static int ds__mem_blocks_add(ds__arena *a) {
    enum { MANY = 64 };

    ds__mem_block *many = ds__kept_alloc(MANY * sizeof *many);
    if (!many)
        return 0;
    for (int i = 0; i < MANY; i++) {
        many[i].list_next = a->spare_blocks;
        a->spare_blocks = &many[i];
    }
    return 1;
}

/* Returns an unused description of a block, or NULL without host memory. */
static inline ds__mem_block *ds__mem_block_create(ds__arena *a) {
    if (DS__UNLIKELY(!a->spare_blocks) && !ds__mem_blocks_add(a))
        return NULL;
    ds__mem_block *b = a->spare_blocks;
    a->spare_blocks = b->list_next;
    return b;
}

/* Returns a description to the arena's stock. */
static inline void ds__mem_block_destroy(ds__arena *a, ds__mem_block *b) {
    b->seg = NULL;
    b->list_next = a->spare_blocks;
    a->spare_blocks = b;
}

/* Cuts a block, which is in no list, behind `size` bytes. Returns the rest, which has the state
   of the block, or NULL without host memory. */
static inline ds__mem_block *ds__block_cut(ds__arena *a, ds__mem_block *b, size_t size) {
    ds__mem_block *rest = ds__mem_block_create(a);
    if (DS__UNLIKELY(!rest))
        return NULL;
    rest->bin = 0;
    rest->ptr = b->ptr + size;
    rest->size = b->size - size;
    rest->asked = 0;
    rest->seg = b->seg;
    rest->uses = NULL;
    rest->flags = DS__FLAGS(b->state, 0);
    rest->oversize = rest->stale = 0;
    rest->prev = b;
    rest->next = b->next;
    if (b->next)
        b->next->prev = rest;
    b->next = rest;
    b->size = size;
    return rest;
}

/* Merges a block with its next neighbour, which is in no list. */
static inline void ds__block_absorb_next(ds__arena *a, ds__mem_block *b) {
    ds__mem_block *next = b->next;
    b->size += next->size;
    b->next = next->next;
    if (b->next)
        b->next->prev = b;
    ds__mem_block_destroy(a, next);
}

/* Returns whether a segment has other blocks beside this one. */
static inline int ds__is_split(const ds__mem_block *b) {
    return b->prev || b->next;
}

/* Counts a change of the free blocks in plain segments that are partly in use. */
static void ds__count_split(ds__arena *a, int kind, int64_t count, int64_t bytes) {
    ds__counter_meters_add(a, kind, DS__SPLIT, count);
    ds__counter_meters_add(a, kind, DS__SPLIT_BYTES, bytes);
}

/* Returns the sub-table that an entry of a granule table leads to, or NULL. */
static inline ds__sub_table *ds__sub_table_of(const ds__mem_block *entry) {
    return (uintptr_t)entry & 1 ? (ds__sub_table *)((uintptr_t)entry - 1) : NULL;
}

/* Returns the list of the live blocks near an address: of those that start in the same granule of
   the segment, or in the same part of the granule if the granule has a sub-table. */
static inline ds__mem_block **ds__live_at(const ds__segment *s, const char *ptr) {
    size_t offset = (size_t)(ptr - s->base);
    ds__mem_block **at = &s->granule[offset >> s->shift];
    ds__sub_table *table = ds__sub_table_of(*at);
    size_t part = offset >> (s->shift - DS__SUB_TABLE_BITS) & ((1 << DS__SUB_TABLE_BITS) - 1);
    return table ? &table->at[part] : at;
}

/* Gives a crowded granule a sub-table. Without host memory, the granule stays as it is. */
__attribute__((noinline)) static void ds__sub_table_add(ds__arena *a, ds__segment *s,
                                                        ds__mem_block **entry) {
    if (!a->spare_sub_tables) {
        enum { MANY = 8 };

        ds__sub_table *many = ds__kept_alloc(MANY * sizeof *many);
        if (!many)
            return;
        for (int i = 0; i < MANY; i++) {
            many[i].next = a->spare_sub_tables;
            a->spare_sub_tables = &many[i];
        }
    }
    ds__sub_table *table = a->spare_sub_tables;
    a->spare_sub_tables = table->next;
    memset(table, 0, sizeof *table);
    table->next = s->sub_tables;
    s->sub_tables = table;
    ds__mem_block *b = *entry;
    *entry = (ds__mem_block *)((uintptr_t)table + 1);
    while (b) {
        ds__mem_block *next = b->list_next;
        ds__mem_block **at = ds__live_at(s, b->ptr);
        b->list_next = *at;
        *at = b;
        b = next;
    }
}

/* Enters a live block in the granule table of its segment. */
static inline void ds__live_in(ds__arena *a, ds__mem_block *b) {
    ds__segment *s = b->seg;
    ds__mem_block **at = ds__live_at(s, b->ptr);
    b->list_next = *at;
    *at = b;
    if (s->shift != DS__DENSE_SHIFT)
        return;
    int many = 0;
    for (const ds__mem_block *one = b; one && many < DS__SUB_TABLE_FROM; one = one->list_next)
        many++;
    if (DS__UNLIKELY(many == DS__SUB_TABLE_FROM) &&
        at == &s->granule[(size_t)(b->ptr - s->base) >> s->shift])
        ds__sub_table_add(a, s, at);
}

/* Removes a block from the granule table of its segment. */
static inline void ds__live_out(ds__mem_block *b) {
    ds__mem_block **at = ds__live_at(b->seg, b->ptr);
    while (*at != b)
        at = &(*at)->list_next;
    *at = b->list_next;
}

/* Returns the clock of the ages of free blocks: the pool's number of requests. */
static inline uint32_t ds__arena_count_request(const ds__arena *a) {
    return a->requests ? atomic_load_explicit(a->requests, memory_order_relaxed) : 0;
}

/* Makes a block, which is in no list, free and merges it with its free neighbours. Returns the
   merged block. */
static inline ds__mem_block *ds__merge_in(ds__arena *a, ds__mem_block *b) {
    ds__mem_block *prev = b->prev;
    ds__mem_block *next = b->next;
    int64_t count = 0;
    int64_t bytes = 0;
    int plain = !ds__segment_is_growing(b->seg);
    if (ds__block_is_binned(prev)) {
        count--;
        bytes -= (int64_t)prev->size;
        ds__bin_out(a, prev);
        ds__block_absorb_next(a, prev);
        b = prev;
    }
    if (ds__block_is_binned(next)) {
        count--;
        bytes -= (int64_t)next->size;
        ds__bin_out(a, next);
        ds__block_absorb_next(a, b);
    }
    b->state = DS_BLOCK_FREE;
    if (DS__UNLIKELY(plain)) {
        if (ds__is_split(b)) {
            count++;
            bytes += (int64_t)b->size;
        }
        if (count || bytes)
            ds__count_split(a, b->seg->kind, count, bytes);
        b->asked = ds__arena_count_request(a); /* its age, for garbage collection */
    }
    ds__bin_in(a, b, a->pool->config.best_fit_by_address);
    return b;
}

/* Merges a block that was parked with its free neighbours. Free bytes do not include parked
   blocks. */
static void ds__block_unpark(ds__arena *a, ds__mem_block *b) {
    b->claimed = 0;
    ds__live_out(b);
    (void)ds__merge_in(a, b);
}

/* Returns where a block of this size is parked: in a quick list, or else where the last freed block
   of the kind is. */
static inline ds__parked *ds__parked_at(ds__arena *a, int kind, size_t size) {
    if (kind != DS__SMALL || size > DS__QUICK_LIMIT)
        return &a->parked[DS__QUICK_LISTS + kind];
    uint32_t hash = (uint32_t)(size / DS__UNIT) * UINT32_C(0x9e3779b1);
    return &a->parked[hash >> (32 - DS__QUICK_BITS)];
}

/* Unparks all blocks of a list. */
static void ds__parked_flush(ds__arena *a, ds__parked *list) {
    ds__mem_block *b = list->first;
    list->first = NULL;
    list->count = 0;
    while (b) {
        ds__mem_block *next = b->list_prev;
        ds__block_unpark(a, b);
        b = next;
    }
}

/* Unparks the blocks of all quick lists. */
static void ds__quick_flush(ds__arena *a) {
    for (uint64_t left = a->quick_used; left; left &= left - 1)
        ds__parked_flush(a, &a->parked[__builtin_ctzll(left)]);
    a->quick_used = 0;
}

static void ds__unpark_all(ds__arena *a) {
    ds__quick_flush(a);
    for (int kind = 0; kind < 2; kind++)
        ds__parked_flush(a, &a->parked[DS__QUICK_LISTS + kind]);
}

/* Merges a freed block that does not enter its quick list: the list is full, or was of another
   size until now. So sizes that do not return soon are merged at once. */
__attribute__((noinline)) static void ds__quick_refuse(ds__arena *a, ds__parked *list,
                                                       ds__mem_block *b) {
    if (list->size != b->size) {
        ds__parked_flush(a, list);
        list->size = (uint32_t)b->size;
    }
    ds__block_unpark(a, b);
}

/* Parks a freed block for the next request of its size. */
static inline void ds__block_park(ds__arena *a, ds__mem_block *b, int kind) {
    ds__parked *list = ds__parked_at(a, kind, b->size);
    ds__mem_block *before = list->first;
    b->flags = DS__FLAGS_PARKED;
    if (list >= &a->parked[DS__QUICK_LISTS]) {
        b->list_prev = NULL;
        list->first = b;
        if (DS__UNLIKELY(before != NULL))
            ds__block_unpark(a, before);
        return;
    }
    if (DS__UNLIKELY(list->size != b->size || list->count == DS__QUICK_DEPTH)) {
        ds__quick_refuse(a, list, b);
        return;
    }
    b->list_prev = before;
    list->first = b;
    list->count++;
    if (!before)
        a->quick_used |= (uint64_t)1 << (list - a->parked);
}

/* Makes a block live for a request of `asked` bytes, with the label and call site of the
   thread. */
__attribute__((always_inline)) static inline void ds__block_mark_live(ds__mem_block *b,
                                                                      size_t asked) {
    b->state = DS_BLOCK_LIVE;
    b->asked = asked;
    b->label = DS__UNLIKELY(ds__memory_thread.labels) ? ds__mem_label() : NULL;
    b->file = ds__tls.site.file;
    b->line = (uint32_t)ds__tls.site.line;
}

static inline void ds__block_mark_live_counted(ds__arena *a, ds__mem_block *b, size_t asked) {
    ds__block_mark_live(b, asked);
    ds__count_alloc(a, b->seg->kind, (int64_t)b->size, (int64_t)asked);
}

/* Takes a parked block of the request's size, or returns NULL. The block stays in the granule
   table. */
__attribute__((always_inline)) static inline ds__mem_block *ds__take_parked(ds__arena *a, int kind,
                                                                            size_t size,
                                                                            size_t asked) {
    ds__parked *list = ds__parked_at(a, kind, size);
    ds__mem_block *b = list->first;
    if (!b || b->size != size)
        return NULL;
    list->first = b->list_prev;
    list->count--;
    b->flags = DS__FLAGS_LIVE;
    ds__block_mark_live(b, asked);
    ds__count_alloc(a, kind, (int64_t)size, (int64_t)asked);
    return b;
}

static void ds__count_oversize(ds__arena *a, int64_t by) {
    ds__meter_add(&a->dev->stats.oversize_allocations, by);
    if (a->pool != &a->dev->main)
        ds__meter_add(&a->pool->stats.oversize_allocations, by);
}

/* Returns whether a block of `size` bytes may be cut off a free block: the rest must be worth
   keeping, and blocks of max_split_size or more stay whole in plain segments. */
static inline int ds__block_may_split(const ds__mem_pool *p, const ds__mem_block *b, size_t size) {
    int kind = b->seg->kind;
    int growing = ds__segment_is_growing(b->seg);
    if (b->size - size < (growing ? DS__UNIT : p->split_above[kind]))
        return 0;
    return growing || kind == DS__SMALL || size < p->config.max_split_size;
}

/* Provides a spare description for ds__block_cut. Returns 0 without host memory. */
static inline int ds__block_spare_ensure(ds__arena *a) {
    return DS__LIKELY(a->spare_blocks != NULL) || ds__mem_blocks_add(a);
}

/* Counts that a block of a plain segment was taken. `whole`: its size before a rest was cut off.
   `was_split`: 1 if the block had neighbours then. */
static inline void ds__block_plain_count(ds__arena *a, const ds__mem_block *b, size_t whole,
                                         int was_split) {
    int kind = b->seg->kind;
    int64_t rest = (int64_t)(whole - b->size);
    ds__count_split(a, kind, (rest > 0) - was_split, rest - (was_split ? (int64_t)whole : 0));
    if (a->requests && kind == DS__LARGE)
        atomic_fetch_add_explicit(a->requests, 1, memory_order_relaxed);
}

/* Merges the blocks of all quick lists and returns the free block that fits best, or NULL. */
__attribute__((noinline)) static ds__mem_block *ds__quick_best_fit(ds__arena *a, int kind,
                                                                   size_t size) {
    ds__quick_flush(a);
    return ds__bin_best_fit(a, kind, size);
}

/* Returns the free block that fits a request best, or NULL. Parked blocks are merged first: the
   last freed one always, those of the quick lists before the request uses more of a segment. */
static inline ds__mem_block *ds__block_best_fit(ds__arena *a, int kind, size_t size) {
    ds__parked *last = &a->parked[DS__QUICK_LISTS + kind];
    if (last->first)
        ds__parked_flush(a, last);
    ds__mem_block *b = ds__bin_best_fit(a, kind, size);
    if (DS__LIKELY(b && b->bin != DS__EDGE) || kind != DS__SMALL || !a->quick_used)
        return b;
    return ds__quick_best_fit(a, kind, size);
}

/* Takes a free block from the bins for a request and gives the rest back. Returns NULL if no block
   fits, or without host memory for a description. The arena has room to count the block. */
__attribute__((noinline)) static ds__mem_block *ds__block_take_best(ds__arena *a, int kind,
                                                                    size_t size, size_t asked) {
    ds__mem_block *b = ds__block_best_fit(a, kind, size);
    if (DS__UNLIKELY(!b))
        return NULL;

    const ds__mem_pool *p = a->pool;
    int split = DS__LIKELY(!p->no_split) && ds__block_may_split(p, b, size);
    if (DS__UNLIKELY(split && !ds__block_spare_ensure(a))) /* before anything has changed */
        return NULL;
    size_t whole = b->size;
    int was_split = ds__is_split(b);
    ds__bin_out(a, b);
    if (split)
        ds__bin_in(a, ds__block_cut(a, b, size), p->config.best_fit_by_address);
    if (DS__UNLIKELY(!ds__segment_is_growing(b->seg)))
        ds__block_plain_count(a, b, whole, was_split);

    ds__live_in(a, b);
    ds__block_mark_live_counted(a, b, asked);
    if (DS__UNLIKELY(b->size >= p->config.max_split_size)) {
        b->oversize = 1;
        ds__count_oversize(a, 1);
    }
    return b;
}

/* Takes a parked block of the request's size, or else the best fitting one. */
static ds__mem_block *ds__block_take(ds__arena *a, int kind, size_t size, size_t asked) {
    ds__mem_block *b = ds__take_parked(a, kind, size, asked);
    return b ? b : ds__block_take_best(a, kind, size, asked);
}

/* Returns the block with the last start up to `ptr` in a list of live blocks, or NULL. */
static inline ds__mem_block *ds__live_last(ds__mem_block *b, const char *ptr) {
    ds__mem_block *best = NULL;
    for (; b; b = b->list_next)
        if (b->ptr <= ptr && (!best || b->ptr > best->ptr))
            best = b;
    return best;
}

/* Returns the live block that an address is inside of, or NULL. The address lies in the segment,
   and the arena is locked. Searches the lists backwards for the last start of a block. */
static ds__mem_block *ds__block_around(const ds__segment *s, const char *ptr) {
    const char *place = ptr;
    for (;;) {
        ds__mem_block *best = ds__live_last(*ds__live_at(s, place), ptr);
        if (best)
            return ptr < best->ptr + best->size && best->state == DS_BLOCK_LIVE ? best : NULL;

        size_t offset = (size_t)(place - s->base);
        int is_fine = ds__sub_table_of(s->granule[offset >> s->shift]) != NULL;
        unsigned shift = is_fine ? s->shift - DS__SUB_TABLE_BITS : s->shift;
        size_t start = offset >> shift << shift; /* of the addresses of the list */
        if (start == 0)
            return NULL;
        place = s->base + start - 1;
    }
}

/* Returns the live block that starts at an address (exact) or contains it, or NULL. The arena is
   locked. */
static inline ds__mem_block *ds__block_find(const ds__segment *s, const char *ptr, int exact) {
    if ((uintptr_t)ptr - (uintptr_t)s->base >= s->size)
        return NULL;
    for (ds__mem_block *b = *ds__live_at(s, ptr); b; b = b->list_next)
        if (b->ptr == ptr && b->state == DS_BLOCK_LIVE)
            return b;
    return exact ? NULL : ds__block_around(s, ptr);
}

/* Returns the live block of an address and its arena, which is locked then. If there is none,
   returns NULL and nothing is locked. */
__attribute__((always_inline)) static inline ds__mem_block *ds__find_live(const void *ptr,
                                                                          int exact,
                                                                          ds__arena **out_arena) {
    ds__segment *s = ds__segment_of(ptr);
    ds__arena *a = s ? atomic_load_explicit(&s->arena, memory_order_acquire) : NULL;
    if (!a)
        return NULL;
    ds__arena_lock(a);
    ds__mem_block *b = atomic_load_explicit(&s->arena, memory_order_acquire) == a
                           ? ds__block_find(s, ptr, exact)
                           : NULL;
    if (!b)
        ds__arena_unlock(a);
    *out_arena = a;
    return b;
}

/* alloc/locks.h - stopping a device; room for counts.

   Takes and releases the locks of a device with all its arenas (ds__mem_lock_all). With all
   locks held, no thread allocates or frees on the device. ds__make_ready and ds__count_begin
   let an arena count a block (counters.h), and stop the device if the room for counts is used
   up.

   Invariants: After ds__mem_lock_all no block of the device is parked. The lists of pools and
   arenas change only under the device lock, so ds__mem_unlock_all releases the locks that were
   taken. While a thread holds the device lock (ds__tls.upper_locked), ds__retired_reclaim does
   nothing on that thread.
   Locks: order in the allocator: `giving` of an arena, `grow` of the arena, the device lock, arena
   locks, the registry lock. Arena locks are spinlocks, held for short steps; a thread holds several
   of them only by ds__mem_lock_all. Drivers must be called without a spinlock; arena.h and
   record_use.h have exceptions. ds__make_ready expects the arena's lock and releases it;
   ds__arena_lock_ready returns with that lock held. ds__count_begin expects that lock and may
   return 1 with all locks of the device held; ds__count_end releases the locks.
   Threads: any. */

/* Stops the device: no thread allocates or frees on it until ds__mem_unlock_all. */
static void ds__mem_lock_all(ds__mem_dev *dev) {
    ds__mem_dev_lock(dev);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next) {
            ds__arena_lock(a);
            ds__unpark_all(a);
        }
}

static void ds__mem_unlock_all(ds__mem_dev *dev) {
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            ds__arena_unlock(a);
    ds__mem_dev_unlock(dev);
}

/* Gives the arena room to count a change of `size` bytes. The arena is locked, and is unlocked
   afterwards, so the caller must check again. */
__attribute__((noinline)) static void ds__make_ready(ds__arena *a, int kind, int64_t size) {
    int exact = a->exact;
    ds__arena_unlock(a);
    if (exact && ds__counter_room_claim(a->dev))
        return;
    ds__mem_lock_all(a->dev);
    /* another thread may have done so */
    if (!ds__counter_room_ready(a, kind, size))
        ds__share_room(a->dev);
    ds__mem_unlock_all(a->dev);
}

/* Locks the arena and gives it room to count changes that need none of the headroom. */
static void ds__arena_lock_ready(ds__arena *a, int kind) {
    ds__arena_lock(a);
    while (!ds__counter_room_ready(a, kind, 0)) {
        ds__make_ready(a, kind, 0);
        ds__arena_lock(a);
    }
}

/* Lets the arena, which is locked, count a block. If there is no room, locks all until
   ds__count_end and returns 1: new peaks then include the block and nothing else. The arena may be
   unlocked meanwhile. */
__attribute__((noinline)) static int ds__count_begin(ds__arena *a, int kind, int64_t size,
                                                     int64_t asked) {
    while (!ds__has_room(a, kind, size, asked)) {
        int exact = a->exact;
        ds__arena_unlock(a);
        if (!exact || !ds__counter_room_claim(a->dev)) {
            ds__mem_lock_all(a->dev);
            return 1;
        }
        ds__arena_lock(a);
    }
    return 0;
}

/* Ends ds__count_begin, which has returned `all`, and releases its locks. */
static void ds__count_end(ds__arena *a, int all) {
    if (!all) {
        ds__arena_unlock(a);
        return;
    }
    ds__share_room(a->dev);
    ds__mem_unlock_all(a->dev);
}

/* alloc/pool.h - devices and pools: creation, look-up, policies.

   Makes the allocator's record of a device at its first use (ds__mem_device), and makes or
   reuses pools (ds__mem_pool_create). ds__mem_setup reads DEVSTREAM_ALLOC_CONF at the first use and
   enters the functions for stream end and shutdown. ds__mem_pool_apply sets a pool's configuration
   and derives the flags of the pool and its arenas. ds__mem_pool_of returns the pool of a handle.
   ds__pool_policy returns the configuration to code without a lock. ds__mem_pool_own and
   ds__mem_pool_disown count the owners of a pool: its handle, pushes, captures and graphs.

   Invariants: Device records, pools and policies stay until ds_shutdown, so a late reader finds
   a valid object. A stored policy never changes; equal policies are stored once, up to
   differences in padding. Limits are not part of it. A pool without owners and memory may
   become a new pool, with a new number. dev->limit follows from `limit` and `memory_fraction` of
   the device's configuration. If DEVSTREAM_ALLOC_CONF is invalid, each call of ds__mem_setup
   reads the variable again and returns the error.
   Locks: ds__memory_state.lock first; under it the device's lock, the arenas' locks and the
   registry's, ds__history_state.lock for a new device, and ds__memory_state.leaving for
   ds__mem_setup. ds__mem_device calls the driver under ds__memory_state.lock, for the properties of
   the device. ds__mem_pool_at and ds__mem_pool_reuse expect ds__memory_state.lock.
   ds__mem_pool_apply expects the device stopped (ds__mem_lock_all), or a pool without arenas.
   Threads: any thread. An existing device is found without a lock. ds__mem_closing(1) runs on
   the thread of ds_shutdown and waits for threads that release the pool of a graph.
   ds__mem_pool_disown also runs on a thread of CUDA's when a graph ends, and takes no lock. */

/* Copies the flags of a pool to an arena, where every call reads them. The arena is locked, or no
   other thread knows it. */
static void ds__arena_apply(ds__arena *a) {
    const ds__mem_pool *p = a->pool;
    a->watched = p->watched;
    a->full = p->full;
    a->own_pool = p != &p->dev->main;
    a->measured = a->full || a->own_pool;
    a->slow = p->watched || p->direct || p->config.poll_on_alloc;
    /* stays set, because earlier blocks may be counted as oversize */
    if (a->slow || p->oversize)
        a->slow_free = 1;
    a->requests = p->config.garbage_collection_threshold > 0 ? &a->pool->requests : NULL;
}

/* Makes an arena without a stream and links it into the pool's list. Returns NULL without host
   memory. The device is locked, or no other thread knows the pool. */
static ds__arena *ds__arena_create(ds__mem_pool *p) {
    ds__arena *a = ds__kept_alloc(sizeof *a);
    if (!a)
        return NULL;
    ds__mutex_init(&a->grow);
    ds__mutex_init(&a->giving);
    a->pool = p;
    a->dev = p->dev;
    ds__arena_apply(a);
    ds__count_in(a, atomic_load(&p->dev->owner) != (void *)(uintptr_t)&ds__no_owner);
    a->next = p->arenas;
    p->arenas = a;
    return a;
}

/* A copy of a policy that stays until shutdown. */
typedef struct ds__mem_policy {
    struct ds__mem_policy *next;
    uint64_t pad;
    ds_mem_config config;
} ds__mem_policy;

/* Returns the stored copy of a policy, which is the same one for equal policies. Limits are not
   part of it, because they change on their own. Without host memory returns NULL and sets the
   error. */
static const ds_mem_config *ds__policy_intern(const ds_mem_config *config) {
    ds_mem_config c;
    memcpy(&c, config, sizeof c); /* different padding only costs a further copy */
    c.limit = 0;
    c.memory_fraction = 1;
    ds__mutex_lock(&ds__memory_state.registry);
    ds__mem_policy *k = ds__memory_state.policies;
    while (k && memcmp(&k->config, &c, sizeof c) != 0)
        k = k->next;
    if (!k) {
        k = ds__kept_alloc_unlocked(sizeof *k);
        if (k) {
            memcpy(&k->config, &c, sizeof c);
            k->next = ds__memory_state.policies;
            ds__memory_state.policies = k;
        }
    }
    ds__mutex_unlock(&ds__memory_state.registry);
    if (!k)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a policy");
    return k ? &k->config : NULL;
}

/* Returns the policy of a pool, for callers without a lock. It stays valid until shutdown. */
static const ds_mem_config *ds__pool_policy(ds__mem_pool *p) {
    return atomic_load_explicit(&p->policy, memory_order_acquire);
}

/* Returns the smallest rest of a large plain block that is worth keeping. */
static size_t ds__config_split_above(const ds_mem_config *c) {
    if (c->single_pool)
        return DS__UNIT;
    return c->segment_growth ? 64 * 1024 : DS__MIB + 1;
}

/* Sets a pool's configuration and the members that follow from it. The device is locked with all
   arenas of the pool, or no other thread knows the pool. Without host memory returns 0 and sets the
   error. */
static int ds__mem_pool_apply(ds__mem_pool *p, const ds_mem_config *config) {
    const ds_mem_config *policy = ds__policy_intern(config);
    if (!policy)
        return 0;
    int sorts = config->best_fit_by_address && !p->config.best_fit_by_address;
    atomic_store_explicit(&p->policy, policy, memory_order_release);
    p->config = *config;
    p->rounds = 0;
    for (int i = 0; i < 16; i++) {
        if (config->roundup_power2_divisions[i])
            p->rounds = 1;
    }
    p->coarse = !config->best_fit_by_address && !config->single_pool;
    p->oversize = config->max_split_size != SIZE_MAX;
    p->watched = config->poison || config->guard_bytes || config->debug > 1;
    /* the same level for a device and its pools */
    p->full = p->dev->main.config.statistics == DS_STATISTICS_FULL;
    p->direct = config->backend != DS_MEM_NATIVE;
    p->split_above[DS__SMALL] = DS__UNIT;
    p->split_above[DS__LARGE] = ds__config_split_above(config);
    for (ds__arena *a = p->arenas; a; a = a->next) {
        ds__arena_apply(a);
        if (sorts)
            ds__bins_sort(a);
    }
    return 1;
}

/* Returns the current configuration of a device. */
static ds_mem_config ds__config_of(ds__mem_dev *dev) {
    ds__mem_dev_lock(dev);
    ds_mem_config c = dev->main.config;
    ds__mem_dev_unlock(dev);
    return c;
}

/* Returns the configuration of devices that are used later. */
static ds_mem_config ds__usual_config(void) {
    ds__mutex_lock(&ds__memory_state.lock);
    ds_mem_config c = ds__memory_state.config;
    ds__mutex_unlock(&ds__memory_state.lock);
    return c;
}

/* Returns the smaller one of a configuration's limits in bytes; 0: none. */
static size_t ds__config_limit(const ds_mem_config *c, size_t total) {
    size_t by_fraction = c->memory_fraction < 1 ? (size_t)(c->memory_fraction * (double)total) : 0;
    size_t limit = c->limit;
    /* a fraction of 0 allows nothing, but a limit of 0 is none */
    if (c->memory_fraction < 1 && by_fraction == 0)
        by_fraction = 1;
    if (by_fraction && (!limit || by_fraction < limit))
        limit = by_fraction;
    return limit;
}

/* Sets the device's limit from its configuration. */
static void ds__mem_limit(ds__mem_dev *dev) {
    atomic_store(&dev->limit, ds__config_limit(&dev->main.config, dev->total));
}

/* Sets whether ds_shutdown frees the pools now. If so, waits for graphs that release their
   pools. */
static void ds__mem_closing(int closing) {
    ds__mutex_lock(&ds__memory_state.leaving);
    ds__memory_state.closing = closing;
    while (closing && ds__memory_state.leavers)
        ds__condition_wait(&ds__memory_state.left, &ds__memory_state.leaving);
    ds__mutex_unlock(&ds__memory_state.leaving);
}

/* Reads the environment and enters the module at the first use. */
static ds_result ds__mem_setup(void) {
    ds__mutex_lock(&ds__memory_state.lock);
    if (!ds__memory_state.tick_base) {
        ds__memory_state.tick_base_ns = ds__now_ns();
        ds__memory_state.tick_base = ds__os_ticks();
    }
    if (!ds__memory_state.configured) {
        const char *text = getenv("DEVSTREAM_ALLOC_CONF");
        ds__memory_state.config = ds_mem_config_default();
        ds__memory_state.conf_result =
            text && *text ? ds__config_read(text, &ds__memory_state.config) : DS_OK;
        if (ds__memory_state.conf_result < 0)
            ds__fail_append(ds__memory_state.conf_result,
                            " (in the environment's DEVSTREAM_ALLOC_CONF)");
        ds__memory_state.configured = ds__memory_state.conf_result == DS_OK;
        ds__mem_closing(0);
        ds__module_add(DS__MODULE_ALLOC, &ds__mem_module);
    }
    ds_result r = ds__memory_state.conf_result;
    ds__mutex_unlock(&ds__memory_state.lock);
    return r;
}

/* Makes the record of a device with `total` bytes of memory. Returns NULL without host memory. */
static ds__mem_dev *ds__mem_dev_create(ds_device device, size_t total,
                                       const ds_mem_config *config) {
    ds__mem_dev *dev = ds__kept_alloc(sizeof *dev);
    if (!dev)
        return NULL;
    ds__mutex_init(&dev->lock);
    dev->device = device;
    dev->total = total;
    dev->has_space = -1;
    dev->main.dev = dev;
    dev->main.owners = 1;
    return ds__mem_pool_apply(&dev->main, config) ? dev : NULL;
}

/* Makes the record of a device and publishes it. On failure returns NULL and sets the error.
   ds__memory_state.lock is held. */
static ds__mem_dev *ds__mem_device_create(ds_device device) {
    ds_device_properties properties;
    if (ds__driver_of(device)->device_properties(device.index, &properties) < 0)
        return NULL;
    ds__mem_dev *dev =
        ds__mem_dev_create(device, properties.total_memory, &ds__memory_state.config);
    if (!dev) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the allocator of a device");
        return NULL;
    }
    ds__mem_limit(dev);
    atomic_store_explicit(ds__module_device(DS__MODULE_ALLOC, ds__backend_of(device), device.index),
                          dev, memory_order_release);
    ds__mem_history_join(dev);
    return dev;
}

/* Returns the record of a device (resolved), which is made at the first use. On failure returns
   NULL and sets the error. */
static ds__mem_dev *ds__mem_device(ds_device device) {
    int backend = ds__backend_of(device);
    ds__mem_dev *dev = ds__mem_device_at(backend, device.index);
    if (DS__LIKELY(dev != NULL))
        return dev;
    if (ds__mem_setup() < 0)
        return NULL;
    ds__mutex_lock(&ds__memory_state.lock);
    dev = ds__mem_device_at(backend, device.index);
    if (!dev)
        dev = ds__mem_device_create(device);
    ds__mutex_unlock(&ds__memory_state.lock);
    return dev;
}

/* Sets *out to the record of a device, or to NULL if the device was not used, and returns DS_OK. */
static ds_result ds__mem_used(ds_device device, ds__mem_dev **out) {
    *out = NULL;
    DS__RESOLVE(device);
    *out = ds__mem_device_at(ds__backend_of(device), device.index);
    return DS_OK;
}

/* Returns the pool of a handle, or NULL. A destroyed pool is found until a new pool reuses its
   object. ds__memory_state.lock is held. */
static ds__mem_pool *ds__mem_pool_at(ds_pool pool) {
    uint32_t index = (uint32_t)pool.id;
    ds__mem_pool *p = index >= 1 && index <= ds__memory_state.pool_count
                          ? ds__memory_state.pools[index - 1]
                          : NULL;
    return p && p->id == pool.id ? p : NULL;
}

/* Returns the pool of a handle. If there is none, returns NULL and sets the error. The object stays
   until shutdown, so it needs no reference. */
static ds__mem_pool *ds__mem_pool_of(ds_pool pool) {
    ds__mutex_lock(&ds__memory_state.lock);
    ds__mem_pool *p = ds__mem_pool_at(pool);
    if (p && p->dead)
        p = NULL;
    ds__mutex_unlock(&ds__memory_state.lock);
    if (!p)
        ds__fail(DS_ERR_INVALID_HANDLE, pool.id ? "the pool was destroyed or never existed"
                                                : "no pool was given (the handle is zero)");
    return p;
}

/* Returns the first arena of a pool. Arenas are only added, in front, so the list behind it may be
   read without a lock. */
static ds__arena *ds__first_arena(ds__mem_dev *dev, ds__mem_pool *p) {
    ds__mem_dev_lock(dev);
    ds__arena *a = p->arenas;
    ds__mem_dev_unlock(dev);
    return a;
}

/* Returns the pool behind `p` in the device's list, or the default pool if `p` is NULL. */
static ds__mem_pool *ds__next_pool(ds__mem_dev *dev, ds__mem_pool *p) {
    ds__mem_dev_lock(dev);
    p = p ? p->next : &dev->main;
    ds__mem_dev_unlock(dev);
    return p;
}

/* Sets the members of a new pool except its configuration and its label. The number of a pool is
   never used again, even after a shutdown. The pool of a capture has the capture's number as name.
   No other thread knows the pool, or the device is stopped. */
static void ds__mem_pool_begin(ds__mem_pool *p, uint32_t slot, const ds_pool_desc *desc,
                               uint64_t capture) {
    uint64_t number = ++ds__memory_state.next_pool;
    p->id = number << 32 | slot;
    p->name[0] = capture;
    p->name[1] = capture ? 0 : number;
    p->alloc_fn = desc->alloc_fn;
    p->free_fn = desc->free_fn;
    p->upstream = desc->upstream ? *desc->upstream : (ds_resource){ 0 };
    p->has_upstream = desc->alloc_fn || desc->upstream;
    p->use_on_oom = desc->use_on_oom != 0;
    p->no_split = desc->no_split != 0;
    p->shareable = desc->shareable != 0;
    p->limit = desc->limit;
    p->owners = 1;
    p->dead = 0;
}

/* Returns whether a segment of the arena has memory. The arena is locked. */
static int ds__arena_has_memory(const ds__arena *a) {
    for (const ds__segment *s = a->segments; s; s = s->next)
        if (s->mapped)
            return 1;
    return 0;
}

/* Makes a new pool of one without owners and memory, or returns NULL. So programs that capture
   again and again need no further host memory. ds__memory_state.lock is held. */
static ds__mem_pool *ds__mem_pool_reuse(ds__mem_dev *dev, const ds_mem_config *config,
                                        const ds_pool_desc *desc, char *label, uint64_t capture) {
    ds__mem_pool *found = NULL;
    ds__mem_lock_all(dev);
    for (ds__mem_pool *p = dev->main.next; p && !found; p = p->next) {
        int empty = p->owners == 0;
        for (const ds__arena *a = p->arenas; a && empty; a = a->next)
            empty = !ds__arena_has_memory(a);
        if (empty)
            found = p;
    }
    if (found && !ds__policy_intern(config))
        found = NULL;
    if (found) {
        ds__counter_fold(dev); /* the device keeps the counts of the pool */
        memset(&found->stats, 0, sizeof found->stats);
        ds__host_free(found->label);
        found->label = label;
        ds__mem_pool_begin(found, (uint32_t)found->id, desc, capture);
        (void)ds__mem_pool_apply(found, config);
    }
    ds__mem_unlock_all(dev);
    return found;
}

/* Makes a pool in a new object and enters it in the list of pools and of the device. Returns NULL
   without host memory. ds__memory_state.lock is held. */
static ds__mem_pool *ds__mem_pool_add(ds__mem_dev *dev, const ds_mem_config *config,
                                      const ds_pool_desc *desc, char *label, uint64_t capture) {
    ds__mem_pool *p = ds__kept_alloc(sizeof *p);
    if (!p || !ds__array_reserve(&ds__memory_state.pools, sizeof *ds__memory_state.pools,
                                 ds__memory_state.pool_count, 1, &ds__memory_state.pool_room))
        return NULL;
    p->dev = dev;
    ds__mem_dev_lock(dev);
    int applied = ds__mem_pool_apply(p, config);
    if (applied) {
        p->label = label;
        ds__memory_state.pools[ds__memory_state.pool_count++] = p;
        ds__mem_pool_begin(p, ds__memory_state.pool_count, desc, capture);
        p->next = dev->main.next;
        dev->main.next = p;
    }
    ds__mem_dev_unlock(dev);
    return applied ? p : NULL;
}

/* Makes a pool with one owner, for the capture of this number, if the number is not 0. Of `desc`
   the device and the configuration are not used. Without host memory returns NULL and sets the
   error. */
static ds__mem_pool *ds__mem_pool_create(ds__mem_dev *dev, const ds_mem_config *config,
                                         const ds_pool_desc *desc, uint64_t capture) {
    char *label = desc->label ? ds__copy_text(desc->label, 255) : NULL;
    ds__mem_pool *p = NULL;
    if (label || !desc->label) {
        ds__mutex_lock(&ds__memory_state.lock);
        p = ds__mem_pool_reuse(dev, config, desc, label, capture);
        if (!p)
            p = ds__mem_pool_add(dev, config, desc, label, capture);
        ds__mutex_unlock(&ds__memory_state.lock);
    }
    if (!p) {
        ds__host_free(label);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a pool");
    }
    return p;
}

/* Adds an owner to a pool. */
static void ds__mem_pool_own(ds__mem_pool *p) {
    ds__mem_dev_lock(p->dev);
    p->owners++;
    ds__mem_dev_unlock(p->dev);
}

/* Removes an owner. A flush empties pools without owners. Takes no lock, because CUDA ends graphs
   on a thread of its own. */
static void ds__mem_pool_disown(ds__mem_pool *p) {
    atomic_fetch_sub(&p->owners, 1);
}

/* alloc/stream_use.h - uses of blocks by other streams, and their events.

   Manages stream uses (ds__stream_use). ds__stream_use_create takes one with an event from the
   arena's stock, and ds__stream_uses_destroy returns a list of them. ds__uses_done tells whether
   uses are done; ds__uses_awaited makes the host wait for them. ds__capture_of returns the capture
   of a stream. ds__use_claim decides which thread records the event of a use. ds__record_uses
   records the events that are missing at a free.

   Invariants: `recorded` is 1 if the event is recorded or not needed any more, and
   DS__RECORDING while one thread records it. An event stays with the device of its first
   record. Only a thread for which ds__use_claim returned 1 records the event of a use. A use
   inside a capture counts as done once no capture is open, because the graph
   orders it. A query that fails for another reason than failed work does not count as done.
   Locks: ds__stream_uses_destroy expects the arena's lock. The others may call the driver and
   expect no spinning lock. ds__record_held and ds__record_uses_held expect new captures to be held
   back (ds__g.begin); ds__record_now and ds__record_uses do so themselves.
   Threads: any. ds__uses_awaited and ds__device_wait block the host. */

/* Destroys an event of the allocator; a zero handle is allowed. */
static void ds__use_event_destroy(ds_event event) {
    ds__event *e = event.id ? ds__pin(&ds__g.events, event.id) : NULL;
    if (!e)
        return;
    ds__table_invalidate(&ds__g.events, e);
    ds__event_unpin(e);
}

/* Prepares a use, or makes one if `u` is NULL, with an event that can be recorded on the device.
   Without host memory returns NULL and sets the error. */
static ds__stream_use *ds__stream_use_done(ds__stream_use *u, ds_device device) {
    if (!u)
        u = ds__kept_alloc(sizeof *u);
    if (!u) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to record a use");
        return NULL;
    }
    /* an event stays with the device of its first record */
    if (u->event.id && u->device != ds__device_key(device)) {
        ds__use_event_destroy(u->event);
        u->event.id = 0;
    }
    u->next = NULL;
    u->recorded = 0;
    u->lost = 0;
    u->capture = 0;
    u->device = ds__device_key(device);
    /* the description is lost until shutdown */
    if (!u->event.id && ds__event_create(0, NULL, &u->event) < 0)
        u = NULL;
    return u;
}

/* Returns a use from the arena's stock, or a new one. Without host memory returns NULL and sets the
   error. The arena is not locked. */
static ds__stream_use *ds__stream_use_create(ds__arena *a, ds_device device) {
    ds__arena_lock(a);
    ds__stream_use *u = a->spare_uses;
    if (u)
        a->spare_uses = u->next;
    ds__arena_unlock(a);
    return ds__stream_use_done(u, device);
}

/* Returns a list of uses to the arena's stock. Their events stay and are recorded again. The arena
   is locked. */
static void ds__stream_uses_destroy(ds__arena *a, ds__stream_use *u) {
    while (u) {
        ds__stream_use *next = u->next;
        u->next = a->spare_uses;
        a->spare_uses = u;
        u = next;
    }
}

/* Queries an event. Returns DS_OK for an event that was destroyed or never recorded. */
static ds_result ds__event_ask(ds_event event) {
    ds__event *e = ds__pin(&ds__g.events, event.id);
    void *native = e ? atomic_load_explicit(&e->native, memory_order_acquire) : NULL;
    ds_result r = native ? e->driver->event_query(native) : DS_OK;
    if (e)
        ds__event_unpin(e);
    return r;
}

#define DS__BROKEN UINT64_MAX /* an invalidated capture, or one that cannot be queried */

/* Returns the capture of a stream, 0 if there is none, or DS__BROKEN. */
static uint64_t ds__capture_of(ds__stream *s) {
    ds_capture_info info;
    if (DS__LIKELY(!ds__captures_open()))
        return 0;
    memset(&info, 0, sizeof info);
    if (s->driver->capture_query(s->native, &info) != DS_OK)
        return DS__BROKEN;
    if (info.status == DS_CAPTURE_NONE)
        return 0;
    return info.status == DS_CAPTURE_ACTIVE ? info.id : DS__BROKEN;
}

/* Returns the capture of a stream by its handle, as ds__capture_of. */
static uint64_t ds__capture_of_handle(ds_stream stream) {
    ds__stream *s = ds__captures_open() ? ds__pin(&ds__g.streams, stream.id) : NULL;
    uint64_t capture = s ? ds__capture_of(s) : 0;
    if (s)
        ds__stream_unpin(s);
    return capture;
}

/* Returns whether the stream captures. */
static int ds__is_capturing(ds__stream *s) {
    ds_capture_info info;
    memset(&info, 0, sizeof info);
    return s->driver->capture_query(s->native, &info) == DS_OK && info.status != DS_CAPTURE_NONE;
}

/* Returns 1 to the one thread that must record the use's event and then set `recorded`. Returns 0
   if the event is recorded; waits while another thread records it. */
static int ds__use_claim(ds__stream_use *u) {
    for (;;) {
        uint8_t was = 0;
        if (atomic_compare_exchange_strong(&u->recorded, &was, DS__RECORDING))
            return 1;
        if (was == 1)
            return 0;
        ds__processor_pause();
    }
}

/* Records the event of a use after a capture. Returns 0 if a capture is open, or on an error. New
   captures are held back. */
static int ds__record_held(ds__stream_use *u) {
    if (ds__captures_open())
        return 0;
    if (!ds__use_claim(u))
        return 1;
    ds__tls.mute++;
    ds_result r = ds__event_record(u->event, u->stream, DS__OP_RECORD);
    ds__tls.mute--;
    u->recorded = r == DS_OK || r == DS_ERR_FAILED; /* a failed stream needs no event */
    /* the stream has ended, and its end did not record the event */
    if (r == DS_ERR_INVALID_HANDLE)
        u->lost = 1;
    return u->recorded;
}

/* As ds__record_held; holds back new captures itself. */
static int ds__record_now(ds__stream_use *u) {
    if (ds__captures_open())
        return 0;
    ds__hold_captures();
    int recorded = ds__record_held(u);
    ds__let_captures();
    return recorded;
}

/* Records the events of all uses that have none, at the current end of their streams. Uses in
   another capture than the block's get their events later. New captures are held back, and the
   block is in no list. */
static ds_result ds__record_uses_held(ds__mem_block *b) {
    for (ds__stream_use *u = b->uses; u; u = u->next) {
        if (!ds__use_claim(u))
            continue;
        uint64_t capture = ds__capture_of_handle(u->stream);
        /* the use is work before the capture; its event is recorded after the capture */
        if (capture && capture != u->capture) {
            u->recorded = 0;
            continue;
        }
        u->capture = capture;
        ds_result r = ds__event_record(u->event, u->stream, DS__OP_RECORD);
        /* the stream has ended, and its end did not record the event */
        if (r == DS_ERR_INVALID_HANDLE) {
            u->lost = 1;
            u->recorded = 0;
            continue;
        }
        u->recorded = r >= 0;
        if (r < 0)
            return r;
    }
    return DS_OK;
}

/* As ds__record_uses_held; holds back new captures itself, if an event is missing. */
static ds_result ds__record_uses(ds__mem_block *b) {
    const ds__stream_use *u = b->uses;
    while (u && u->recorded == 1)
        u = u->next;
    if (!u)
        return DS_OK;
    ds__hold_captures();
    ds_result r = ds__record_uses_held(b);
    ds__let_captures();
    return r;
}

/* Returns whether the uses of a block are done. Uses of failed streams or devices are done, and
   uses in captures that are over, because the graph orders them. No lock is held. */
static int ds__uses_done(ds__stream_use *u) {
    for (; u; u = u->next) {
        if (DS__UNLIKELY(u->recorded != 1) && !ds__record_now(u))
            return 0;
        if (DS__UNLIKELY(u->capture)) {
            if (ds__captures_open())
                return 0;
            continue;
        }
        ds_result r = ds__event_ask(u->event);
        /* other errors do not tell whether the work is done */
        if (r != DS_OK && r != DS_ERR_FAILED)
            return 0;
    }
    return 1;
}

/* Waits for all work of a device; `key`: ds__device_key. The host blocks. */
static ds_result ds__device_wait(int64_t key) {
    ds_device d = { (int32_t)(key >> 32), (int32_t)(key & INT32_MAX) };
    return ds__driver_of(d)->device_synchronize(d.index);
}

/* Waits for the uses of a block. The host blocks. Returns 0 if a capture or an error prevents that.
   No lock is held. */
static int ds__uses_awaited(ds__stream_use *u) {
    for (; u; u = u->next) {
        if (u->recorded != 1 && !ds__record_now(u)) {
            if (!u->lost || ds__captures_open() || ds__device_wait(u->device) < 0)
                return 0;
            u->recorded = 1;
            continue;
        }
        if (u->capture) {
            if (ds__captures_open())
                return 0;
            continue;
        }
        ds_result r = ds__event_sync(u->event, DS__FOREVER);
        if (r != DS_OK && r != DS_ERR_FAILED && r != DS_ERR_CAPTURED_EVENT)
            return 0;
    }
    return 1;
}

/* alloc/arena.h - arenas: one per stream and pool.

   Finds or makes the arena of a stream in a pool (ds__arena_main, ds__arena_in) and prepares
   arenas for the end of their stream (ds__mem_stream_gone). ds__arena_drain waits for the work
   of an arena's stream.

   Invariants: Wrappers of one native stream share an arena in each pool; the arena stores up to
   three further handles as aliases. An arena stays until shutdown. When its stream ends,
   an arena becomes an orphan; `end` is an event behind the stream's work, or 0 if there is none.
   An orphan without memory may serve a new stream.
   Locks: ds__arena_main and ds__arena_in take the device lock; ds__arena_of and ds__arena_join
   expect that lock. Arena locks are taken one at a time inside the device lock. Driver calls run
   under the device lock. ds__arena_drain expects no lock, or `grow` of the arena.
   Threads: any caller's thread. ds__arena_drain blocks the host. ds__mem_stream_gone is called
   by ds_stream_destroy, and by ds__retired_reclaim for the streams of ended threads. */

/* Returns the index of the alias with this stream number (0: a free entry), or DS__ALIASES. */
static int ds__arena_alias_find(const ds__arena *a, uint64_t id) {
    int i = 0;
    while (i < DS__ALIASES && a->alias[i].id != id)
        i++;
    return i;
}

/* Returns the index of the first stored alias, or DS__ALIASES. */
static int ds__arena_alias_first(const ds__arena *a) {
    int i = 0;
    while (i < DS__ALIASES && !a->alias[i].id)
        i++;
    return i;
}

/* Stores a further handle of the arena's stream, which was wrapped several times. So the arena
   stays in use when one handle ends. The device is locked. */
static void ds__arena_join(ds__arena *a, ds__stream *s, ds_stream handle) {
    if (a->stream_id == s->id)
        return;
    ds__stream *first = ds__pin(&ds__g.streams, a->stream.id);
    if (!first) { /* the first handle has ended */
        ds__arena_lock(a);
        a->stream = handle;
        a->stream_id = s->id;
        ds__arena_unlock(a);
        return;
    }

    ds__stream_unpin(first);
    if (ds__arena_alias_find(a, s->id) < DS__ALIASES)
        return;
    int i = ds__arena_alias_find(a, 0);
    if (i == DS__ALIASES) {
        a->crowded = 1;
        return;
    }
    a->alias[i].stream = handle;
    a->alias[i].id = s->id;
}

/* Removes a handle that ends. Returns 1 if the stream goes on under another handle. The device is
   locked. */
static int ds__arena_part(ds__arena *a, const ds__stream *s) {
    if (!s->borrowed)
        return 0;
    int i = ds__arena_alias_find(a, s->id);
    if (i < DS__ALIASES) {
        a->alias[i].id = 0;
        return 1;
    }
    if (a->stream_id != s->id)
        return 1;
    i = ds__arena_alias_first(a);
    if (i == DS__ALIASES && !a->crowded)
        return 0;

    ds__arena_lock(a);
    if (i == DS__ALIASES) {
        a->stream.id = 0;
    } else {
        a->stream = a->alias[i].stream;
        a->stream_id = a->alias[i].id;
        a->alias[i].id = 0;
    }
    ds__arena_unlock(a);
    return 1;
}

/* The stream of an arena, or the end of an ended one. It may change once the arena is unlocked; but
   while a block of the arena is taken, no other stream takes the arena over. */
typedef struct ds__owner {
    ds_stream stream;
    ds_event end;
    int orphan;
} ds__owner;

static ds__owner ds__owner_of(ds__arena *a) {
    ds__arena_lock(a);
    ds__owner o = { a->stream, a->end, a->orphan };
    ds__arena_unlock(a);
    return o;
}

/* Prepares for the end of a per-thread stream of CUDA. Only its own thread can enqueue work there;
   after the end of that thread, the legacy stream waits for all of this work. So the handle of the
   legacy stream is made when the allocator first sees a per-thread stream. */
static void ds__expect_end(const ds__stream *s) {
    if (DS__LIKELY(s->kind != DS__STREAM_PER_THREAD) || s->device.type != DS_DEVICE_CUDA ||
        atomic_load(&ds__memory_state.legacy[s->device.index]))
        return;
    ds_stream legacy;
    ds__tls.mute++;
    if (ds__stream_legacy_get(s->device, &legacy) == DS_OK)
        atomic_store(&ds__memory_state.legacy[s->device.index], legacy.id);
    ds__tls.mute--;
}

/* Gives an arena to a stream. The device is locked; the arena too, if it had a stream before. */
static void ds__arena_assign(ds__arena *a, const ds__stream *s, ds_stream handle,
                             const void *identity) {
    a->stream = handle;
    a->stream_id = s->id;
    a->identity = identity;
    ds__arena_apply(a);
}

/* Gives the arena of an ended stream to a new one, if the arena has no memory. So programs that
   create and destroy streams need no further arenas. Returns 0 if the arena has memory or a stream.
   The device is locked. */
static int ds__arena_take_over(ds__arena *a, const ds__stream *s, ds_stream handle,
                               const void *identity) {
    ds_event end = { 0 };
    ds__arena_lock(a);
    int empty = a->orphan && !ds__arena_has_memory(a);
    if (empty) {
        end = a->end;
        a->end.id = 0;
        a->orphan = a->crowded = a->slow_free = 0;
        memset(a->alias, 0, sizeof a->alias);
        ds__arena_assign(a, s, handle, identity);
    }
    ds__arena_unlock(a);
    ds__use_event_destroy(end);
    return empty;
}

/* Returns the arena of a stream in a pool. At the first use, takes the arena of an ended stream or
   makes one. Without host memory returns NULL and sets the error. The device is locked. */
static ds__arena *ds__arena_of(ds__mem_pool *p, ds__stream *s, ds_stream handle) {
    const void *identity = s->driver->stream_identity(s->native);
    ds__expect_end(s);
    for (ds__arena *a = p->arenas; a; a = a->next)
        if (!a->orphan && (a->stream_id == s->id || a->identity == identity)) {
            ds__arena_join(a, s, handle);
            return a;
        }
    for (ds__arena *a = p->arenas; a; a = a->next)
        if (ds__arena_take_over(a, s, handle, identity))
            return a;

    ds__arena *a = ds__arena_create(p);
    if (a)
        ds__arena_assign(a, s, handle, identity);
    else
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the allocator of a stream");
    return a;
}

/* Returns the arena of a stream in the device's default pool. The stream stores the arena. On
   failure returns NULL and sets the error. */
static ds__arena *ds__arena_main(ds__stream *s, ds_stream handle) {
    ds__arena *a = atomic_load_explicit(&s->module[DS__MODULE_ALLOC], memory_order_acquire);
    if (a)
        return a;
    ds__mem_dev *dev = ds__mem_device(s->device);
    if (!dev)
        return NULL;
    ds__mem_dev_lock(dev);
    a = ds__arena_of(&dev->main, s, handle);
    ds__mem_dev_unlock(dev);
    if (a)
        atomic_store_explicit(&s->module[DS__MODULE_ALLOC], a, memory_order_release);
    return a;
}

/* Returns the arena of a stream in a pool other than the device's default one. On failure returns
   NULL and sets the error. */
static ds__arena *ds__arena_in(ds__mem_pool *p, ds__stream *s, ds_stream handle) {
    ds__mem_dev_lock(p->dev);
    ds__arena *a = ds__arena_of(p, s, handle);
    ds__mem_dev_unlock(p->dev);
    return a;
}

/* Records the end of a stream: on the stream, or for a per-thread stream whose thread has ended on
   the legacy stream. */
static ds_result ds__record_end(ds_event event, const ds__stream *s, ds_stream handle) {
    ds__tls.mute++;
    ds_result r = ds__event_record(event, handle, DS__OP_RECORD);
    ds_stream legacy = { s->device.type == DS_DEVICE_CUDA
                             ? atomic_load(&ds__memory_state.legacy[s->device.index])
                             : 0 };
    if (r < 0 && s->kind == DS__STREAM_PER_THREAD && legacy.id && !ds__captures_open())
        r = ds__event_record(event, legacy, DS__OP_RECORD);
    ds__tls.mute--;
    return r;
}

#define DS__LATE_USES 32 /* that are claimed at once */

/* Claims uses of a block by an ending stream that have no event, as far as `out` has room for them.
   Returns how many `out` has now. The arena is locked. */
static size_t ds__block_claim_late(ds__mem_block *b, ds_stream stream, ds__stream_use **out,
                                   size_t count) {
    if (b->state != DS_BLOCK_LIVE && b->state != DS_BLOCK_PENDING)
        return count;
    for (ds__stream_use *u = b->uses; u && count < DS__LATE_USES; u = u->next)
        if (u->stream.id == stream.id && !u->lost && ds__use_claim(u))
            out[count++] = u;
    return count;
}

/* Records the events of all uses by an ending stream that have none, in an arena. A thread that
   frees a block waits for the claimed uses, so they stay while no lock is held. */
static void ds__arena_record_late(ds__arena *a, const ds__stream *s, ds_stream stream) {
    ds__stream_use *late[DS__LATE_USES];
    size_t count;
    do {
        count = 0;
        ds__arena_lock(a);
        for (ds__segment *g = a->segments; g; g = g->next)
            for (ds__mem_block *b = g->first; b && count < DS__LATE_USES; b = b->next)
                count = ds__block_claim_late(b, stream, late, count);
        ds__arena_unlock(a);
        for (size_t i = 0; i < count; i++) {
            ds__stream_use *u = late[i];
            u->lost = ds__record_end(u->event, s, stream) < 0;
            u->recorded = !u->lost; /* another thread may free the use after that */
        }
    } while (count == DS__LATE_USES);
}

/* Records the events of all uses by an ending stream that have none, on all devices. */
static void ds__record_late(const ds__stream *s, ds_stream stream) {
    for (int k = 0; k < DS_BACKEND_COUNT * DS__MAX_DEVICES; k++) {
        ds__mem_dev *dev = ds__mem_device_at(k / DS__MAX_DEVICES, k % DS__MAX_DEVICES);
        if (!dev || !atomic_load(&dev->late_uses))
            continue;
        ds__mem_dev_lock(dev);
        for (ds__mem_pool *p = &dev->main; p; p = p->next)
            for (ds__arena *a = p->arenas; a; a = a->next)
                ds__arena_record_late(a, s, stream);
        ds__mem_dev_unlock(dev);
    }
}

/* Makes the arena an orphan, with an event behind the work of its stream if that can be recorded.
   The device is locked. */
static void ds__arena_orphan(ds__arena *a, ds__stream *s, ds_stream handle) {
    ds_event end = { 0 };
    if (!ds__capture_of(s) && ds__event_create(0, NULL, &end) == DS_OK &&
        ds__record_end(end, s, handle) < 0) {
        ds__use_event_destroy(end);
        end.id = 0;
    }
    ds__arena_lock(a);
    a->end = end; /* threads that have taken a block of the arena read it */
    a->identity = NULL;
    a->orphan = 1;
    ds__arena_unlock(a);
}

/* Prepares the arenas of a stream for its end. Any stream may use their free memory behind the
   current work of the stream. Called by ds_stream_destroy. */
static void ds__mem_stream_gone(ds__stream *s) {
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(s->device), s->device.index);
    ds_stream handle = { ds__handle_of(&s->slot) };
    ds__record_late(s, handle); /* blocks of other devices too */
    if (!dev)
        return;
    const void *identity = s->driver->stream_identity(s->native);
    ds__mem_dev_lock(dev);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            if (!a->orphan && (a->stream_id == s->id || a->identity == identity) &&
                !ds__arena_part(a, s))
                ds__arena_orphan(a, s, handle);
    ds__mem_dev_unlock(dev);
}

/* Waits for the work that may use the arena's free memory. The host blocks. Returns 0 if the work
   is not known to be done. */
static int ds__arena_drain(ds__arena *a) {
    ds_result r;
    ds__owner o = ds__owner_of(a);
    ds__tls.relaxed++;
    /* `grow` may be held, so ds__retired_reclaim must not run destructors of the program */
    ds__tls.upper_locked++;
    if (o.orphan && o.end.id) {
        r = ds__event_sync(o.end, DS__FOREVER);
    } else { /* a wait for the stream would invalidate a capture that begins on it meanwhile */
        ds__stream_use *u = ds__stream_use_create(a, a->dev->device);
        r = u ? ds__event_record_outside(u->event, o.stream) : DS_NOT_READY;
        if (r == DS_OK)
            r = ds__event_sync(u->event, DS__FOREVER);
        ds__arena_lock(a);
        ds__stream_uses_destroy(a, u);
        ds__arena_unlock(a);
    }
    /* the stream has ended without an event, or is another thread's per-thread stream */
    if (r < 0 && r != DS_ERR_FAILED && !ds__captures_open())
        r = ds__driver_of(a->dev->device)->device_synchronize(a->dev->device.index);
    ds__tls.upper_locked--;
    ds__tls.relaxed--;
    return r == DS_OK || r == DS_ERR_FAILED;
}

/* alloc/callbacks.h - lists of the program's callbacks for shortage, out of memory and events.

   ds__callback_add and ds__callback_remove change a list. ds__callback_get returns one entry, so
   that the caller invokes the function without a lock. ds__callback_clear empties a list at
   shutdown.

   Invariants: entries keep the order in which they were added.
   Locks: ds__memory_state.lock guards the lists for shortage and out of memory,
   ds__history_state.watch the list for events. No function here expects the lock to be held.
   Threads: any. A callback for shortage or out of memory that was removed may still run on another
   thread. */

/* Adds an entry; `lock` guards the list. DS_ERR_INVALID_VALUE: its function is NULL. */
static ds_result ds__callback_add(ds__callback_list *list, ds__mutex *lock, ds__callback entry) {
    DS__REQUIRE(entry.fn, "fn is NULL");
    ds_result r = ds__mem_setup(); /* then ds_shutdown empties the list */
    if (r < 0)
        return r;

    ds__mutex_lock(lock);
    int room =
        ds__array_reserve(&list->entries, sizeof *list->entries, list->count, 1, &list->room);
    if (room)
        list->entries[list->count++] = entry;
    ds__mutex_unlock(lock);

    return room ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a callback");
}

/* Removes the first entry with this function and argument; `lock` guards the list. */
static ds_result ds__callback_remove(ds__callback_list *list, ds__mutex *lock, ds__callback entry) {
    size_t i = 0;

    ds__mutex_lock(lock);
    while (i < list->count &&
           (list->entries[i].fn != entry.fn || list->entries[i].user != entry.user))
        i++;
    int found = i < list->count;
    if (found) {
        list->count--;
        memmove(&list->entries[i], &list->entries[i + 1],
                (list->count - i) * sizeof *list->entries);
    }
    ds__mutex_unlock(lock);

    return found ? DS_OK
                 : ds__fail(DS_ERR_INVALID_VALUE,
                            "the callback was not added with this user pointer");
}

/* Returns the entry at this index; its function is NULL after the last one. */
static ds__callback ds__callback_get(const ds__callback_list *list, size_t index) {
    ds__callback entry = { NULL, NULL };
    ds__mutex_lock(&ds__memory_state.lock);
    if (index < list->count)
        entry = list->entries[index];
    ds__mutex_unlock(&ds__memory_state.lock);
    return entry;
}

/* Frees the list at shutdown, when no other thread uses the allocator. */
static void ds__callback_clear(ds__callback_list *list) {
    ds__host_free(list->entries);
    *list = (ds__callback_list){ 0 };
}

/* alloc/poison.h - poison in freed blocks.

   Overwrites freed blocks of pools with poison: ds__poison_on on a stream that has passed all
   uses of the block, ds__poison_late on the block's own stream or, if the stream has ended, on a
   stream of the allocator. ds__may_write tells whether the allocator may write to a pool.

   Invariants: Poison is a fill in stream order. Blocks are not poisoned while a capture is open,
   because a capture must contain the program's work only, nor in a pool that a graph uses, because
   its launches write to the pool's memory at any time. A block with `stale` set must be poisoned
   before it is free.
   Locks: expects no lock; the block is claimed and in no list. New captures are held back
   (ds__g.begin) around the fills.
   Threads: caller's threads. With `wait`, ds__poison_late blocks the host. */

#define DS__POISON 0xDBDBDBDBu

/* Returns whether the allocator may write to memory of a pool now. */
static int ds__may_write(const ds__mem_pool *p) {
    return !ds__captures_open() && !p->graphs;
}

/* Overwrites a freed block on a stream that has passed all uses of the block. No lock is held. */
static void ds__poison_on(ds__mem_block *b, ds_stream stream) {
    const ds__mem_pool *p = atomic_load(&b->seg->arena)->pool;
    ds__tls.mute++;
    ds__hold_captures();
    if (ds__may_write(p))
        DS_IGNORE(ds__own_fill(stream, b->ptr, DS__POISON, b->size));
    ds__let_captures();
    ds__tls.mute--;
    b->stale = 0;
}

/* Poisons a block, which is in no list and whose uses are done, on its stream. If the stream has
   ended, poisons the block on the allocator's own stream once the work of the ended stream is done,
   and records the event of that end again. Returns 0 if that work is not done. No lock is held. */
static int ds__poison_late(ds__arena *a, ds__mem_block *b, int wait) {
    ds__owner o = ds__owner_of(a);
    ds_result r = DS_ERR_FAILED;
    if (!o.orphan) {
        ds__poison_on(b, o.stream);
        return 1;
    }
    ds__tls.mute++;
    if (o.end.id && !ds__captures_open())
        r = wait ? ds__event_sync(o.end, DS__FOREVER) : ds__event_ask(o.end);
    ds__stream *s = r == DS_OK ? ds__direct_giver(a->dev) : NULL;
    if (s) {
        ds_stream giver = { ds__handle_of(&s->slot) };
        /* holding back captures also keeps fills and records of two threads in the same order */
        ds__hold_captures();
        if (ds__may_write(a->pool) && ds__own_fill(giver, b->ptr, DS__POISON, b->size) == DS_OK &&
            ds__event_record(o.end, giver, DS__OP_RECORD) < 0)
            DS_IGNORE(ds__stream_sync(giver, DS__FOREVER));
        ds__let_captures();
        ds__stream_unpin(s);
    }
    ds__tls.mute--;
    if (r != DS_NOT_READY)
        b->stale = 0;
    return r != DS_NOT_READY;
}

/* alloc/pending.h - pending blocks: freed, still used by streams.

   Manages freed blocks until the streams that used them are done. ds__pending_complete ends a
   pending block whose uses are done, ds__block_end a live block without uses, and ds__mem_return a
   block that comes back from other processes. ds__pending_poll frees blocks with completed uses.
   ds__take_oldest serves a request from the block that has been pending longest. ds__take_pending
   takes a fitting block and makes a stream wait for its uses.

   Invariants: The list runs from the oldest block to the newest, and `pending_bytes` is its sum.
   A block is claimed while a thread examines it without the lock; other threads leave claimed
   blocks alone. A block with poison to write (`stale`) passes ds__poison_late or ds__poison_on
   before the block becomes free. ds__take_pending takes only blocks with all uses recorded in the
   stream's own capture, or, without a capture, outside of captures.
   Locks: ds__pending_in, ds__pending_out, ds__pending_complete, ds__block_over and ds__uses_within
   expect the arena's lock. ds__take_oldest expects that lock, gives it up meanwhile and returns
   with it held. The other functions expect no lock. Events are queried, recorded and waited for
   without the arena's lock; observers may be invoked under that lock.
   Threads: any caller's thread. With `wait`, ds__pending_poll blocks the host. */

/* Takes a block out of the list of pending ones. The arena is locked. */
static void ds__pending_out(ds__arena *a, ds__mem_block *b) {
    ds__block_list_out(&a->pending, b);
    if (!b->list_next)
        a->pending_last = b->list_prev;
    a->pending_bytes -= b->size;
}

/* Makes a block, which is in no list, the last of the pending ones. The arena is locked. */
static void ds__pending_in(ds__arena *a, ds__mem_block *b) {
    b->state = DS_BLOCK_PENDING;
    ds__block_list_in(&a->pending, b, a->pending_last, NULL);
    a->pending_last = b;
    a->pending_bytes += b->size;
}

/* Returns the descriptions of a block's uses to the stock. The arena is locked. */
static void ds__block_uses_destroy(ds__arena *a, ds__mem_block *b) {
    ds__stream_uses_destroy(a, b->uses);
    b->uses = NULL;
    b->lent = 0;
}

/* Counts that the uses of a block in no list are done: the free is complete. The arena is locked
   and ready. */
static void ds__pending_done(ds__arena *a, ds__mem_block *b) {
    ds__count_done(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
    ds__note_block(a, DS_ACTION_FREE_COMPLETED, b);
    ds__block_uses_destroy(a, b);
}

/* Makes a block, whose free is complete now, a free block. The arena is locked and ready. */
static void ds__pending_complete(ds__arena *a, ds__mem_block *b) {
    ds__pending_done(a, b);
    (void)ds__merge_in(a, b);
}

/* Frees a live block that no stream uses any more. The arena is locked and ready. */
static void ds__block_over(ds__arena *a, ds__mem_block *b) {
    ds__live_out(b);
    ds__block_uses_destroy(a, b);
    b->guarded = 0;
    b->stale = 0;
    if (b->oversize) {
        b->oversize = 0;
        ds__count_oversize(a, -1);
    }
    ds__count_free(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
    (void)ds__merge_in(a, b);
}

/* Frees a live block that no stream uses any more. No lock is held. */
static void ds__block_end(ds__arena *a, ds__mem_block *b) {
    ds__arena_lock_ready(a, b->seg->kind);
    ds__block_over(a, b);
    ds__arena_unlock(a);
}

/* Takes back a freed block that other processes do not use any more. No lock is held. */
__attribute__((unused)) static void ds__mem_return(ds__mem_block *b) {
    ds__arena *a = atomic_load(&b->seg->arena);
    ds__arena_lock_ready(a, b->seg->kind);
    b->exported = 0;
    if (!b->uses && !b->stale)
        ds__pending_complete(a, b);
    else
        ds__pending_in(a, b);
    ds__arena_unlock(a);
}

#define DS__POLLS 64 /* pending blocks that are examined at a time */

/* Marks up to `most` pending blocks as claimed, the oldest first, and returns their number. The
   arena is not locked. */
static size_t ds__pending_batch_take(ds__arena *a, ds__mem_block **list, size_t most) {
    size_t n = 0;
    ds__arena_lock(a);
    for (ds__mem_block *b = a->pending; b && n < most; b = b->list_next)
        if (!b->claimed) {
            b->claimed = 1;
            list[n++] = b;
        }
    ds__arena_unlock(a);
    return n;
}

/* Ends `count` claimed blocks whose uses are done. The arena is not locked. */
static void ds__pending_batch_end(ds__arena *a, ds__mem_block *list[DS__POLLS], size_t count) {
    ds__arena_lock(a);
    for (size_t i = 0; i < count; i++) {
        ds__mem_block *b = list[i];
        if (!ds__counter_room_ready(a, b->seg->kind, 0)) {
            ds__arena_unlock(a);
            ds__arena_lock_ready(a, b->seg->kind);
        }
        ds__pending_out(a, b);
        b->claimed = 0;
        ds__pending_complete(a, b);
    }
    ds__arena_unlock(a);
}

/* Frees the pending blocks whose uses are done, the oldest first, and returns their number. With
   `wait`, the host waits for the uses of all. The arena is not locked. */
static size_t ds__pending_poll(ds__arena *a, int wait) {
    size_t done = 0;
    ds__mem_block *list[DS__POLLS];
    for (;;) {
        size_t ready = 0;
        size_t n = ds__pending_batch_take(a, list, DS__POLLS);
        for (size_t i = 0; i < n; i++) {
            ds__mem_block *b = list[i];
            if ((wait ? ds__uses_awaited(b->uses) : ds__uses_done(b->uses)) &&
                (DS__LIKELY(!b->stale) || ds__poison_late(a, b, wait))) {
                list[ready++] = b;
                continue;
            }
            ds__arena_lock(a);
            b->claimed = 0;
            ds__arena_unlock(a);
        }
        if (ready == 0)
            return done;

        ds__pending_batch_end(a, list, ready);
        done += ready;
        if (ready < n || (!wait && ready < DS__POLLS))
            return done;
    }
}

/* Makes the stream wait for the uses of a block that is in no list. The arena is not locked. */
static ds_result ds__wait_uses(ds__mem_block *b, ds_stream stream) {
    for (ds__stream_use *u = b->uses; u; u = u->next) {
        if (u->stream.id == stream.id || u->recorded != 1 || u->capture)
            continue;
        ds_result r = ds__wait_event(stream, u->event, DS__OP_WAIT);
        if (r < 0)
            return r;
    }
    return DS_OK;
}

/* Returns whether a stream in a capture (0: in none) may wait for the uses: all must be recorded in
   that capture. The arena is locked. */
static int ds__uses_within(const ds__stream_use *u, uint64_t capture) {
    for (; u; u = u->next)
        if (u->recorded != 1 || u->capture != capture)
            return 0;
    return 1;
}

/* Takes the block that has been pending for longest, if it fits and its uses are done. Programs
   that use the same memory on another stream again and again find their block here. There is a
   pending block. The arena is locked, is unlocked meanwhile, and is locked again. */
__attribute__((noinline)) static ds__mem_block *ds__take_oldest(ds__arena *a, int kind, size_t size,
                                                                size_t asked) {
    ds__mem_block *b = a->pending;
    if (b->claimed || b->seg->kind != kind || b->size < size)
        return NULL;
    b->claimed = 1;
    ds__arena_unlock(a);
    int done = ds__uses_done(b->uses) && !b->stale;
    ds__arena_lock(a);
    b->claimed = 0;
    if (!done || !ds__has_room(a, kind, (int64_t)size, (int64_t)asked))
        return NULL;
    ds__pending_out(a, b);
    ds__pending_complete(a, b);
    return ds__block_take(a, kind, size, asked);
}

/* The block that ds__take_pending searches. */
typedef struct ds__pending_wanted {
    int kind;
    size_t size; /* the smallest size of the block */
    size_t most; /* the largest size of the block */
    /* the stream that waits for the uses: the arena's own, or with `out_whole` the request's */
    ds_stream stream;
    size_t asked;              /* with `out_whole`: the bytes of the request */
    ds__mem_block **out_whole; /* not NULL: the block becomes live, whole, and goes here */
} ds__pending_wanted;

/* Returns whether a pending block has a suitable size, and no thread works on it and no other
   process uses it. The arena is locked. */
static inline int ds__pending_suits(const ds__arena *a, const ds__mem_block *b,
                                    const ds__pending_wanted *q) {
    if (b->seg->kind != q->kind || b->size < q->size || b->size > q->most)
        return 0;
    if (b->claimed || b->exported)
        return 0;
    return !(a->pool->oversize && !ds__segment_is_growing(b->seg) &&
             ds__too_large(a->pool, b->size, q->size));
}

/* Returns the smallest suitable pending block whose uses the stream may wait for, claimed, or NULL.
   The arena is not locked. */
static ds__mem_block *ds__pending_best_take(ds__arena *a, const ds__pending_wanted *q) {
    ds__mem_block *best = NULL;
    uint64_t capture = ds__capture_of_handle(q->stream);
    ds__arena_lock(a);
    for (ds__mem_block *b = a->pending; b; b = b->list_next) {
        if ((!best || b->size < best->size) && ds__pending_suits(a, b, q) &&
            ds__uses_within(b->uses, capture))
            best = b;
    }
    if (best)
        best->claimed = 1;
    ds__arena_unlock(a);
    return best;
}

/* Makes the whole pending block live for another stream's request. The block is not split, because
   only the request's stream has waited for its uses. The arena is locked. */
static void ds__pending_whole_give(ds__arena *a, ds__mem_block *b, const ds__pending_wanted *q) {
    ds__pending_done(a, b);
    ds__live_in(a, b);
    ds__block_mark_live_counted(a, b, q->asked);
    *q->out_whole = b;
}

/* Takes the smallest suitable pending block and makes the stream wait for its uses. Then the block
   becomes free, or live with `out_whole`. Returns 1 if a block was taken. The arena is not
   locked. */
static int ds__take_pending(ds__arena *a, const ds__pending_wanted *q) {
    ds__mem_block *best = ds__pending_best_take(a, q);
    if (!best)
        return 0;

    ds_result r = DS_OK;
    /* see base/drive.h; in a capture, all uses are in the same capture */
    if (DS__UNLIKELY(atomic_load(&ds__drive.groups)) && !ds__captures_open() &&
        !ds__uses_done(best->uses))
        r = DS_NOT_READY;
    for (ds__stream_use *u = best->uses; u && r == DS_OK; u = u->next)
        if (u->stream.id != q->stream.id)
            r = ds__wait_event(q->stream, u->event, DS__OP_WAIT);
    if (r == DS_OK && !q->out_whole && best->stale)
        ds__poison_on(best, q->stream);

    int all = 0;
    ds__arena_lock(a);
    if (r == DS_OK)
        all = ds__count_begin(a, q->kind, q->out_whole ? (int64_t)best->size : 0,
                              q->out_whole ? (int64_t)q->asked : 0);
    best->claimed = 0; /* not earlier: ds__count_begin may unlock the arena */
    if (r == DS_OK) {
        ds__pending_out(a, best);
        if (q->out_whole)
            ds__pending_whole_give(a, best, q);
        else
            ds__pending_complete(a, best);
    }
    ds__count_end(a, all);
    return r == DS_OK;
}

/* alloc/capture_pool.h - pools of captures.

   Gives captures their memory. A capture has one pool: a pool of its own, made at the first
   allocation (ds__capture_pool_of), or a pool named before (ds_capture_set_pool). The graph of the
   capture owns the pool. ds__capture_pool_ref keeps a pool that a request names for as long as the
   graph.

   Invariants: `graphs` counts the captures and graphs that use free memory of a pool. While the
   count is not 0, no memory of the pool is given back. Each attachment to a graph is also one
   owner of the pool. A capture has one attachment for its pool (key: the device) and one for
   each pool that requests name (key: the pool). After ds__memory_state.closing is set,
   ds__capture_pool_unref does nothing: ds_shutdown ends pools before graphs.
   Locks: ds__capture_pool_create runs under the graph's lock (core/capture.h) and takes
   ds__memory_state.lock, then all locks of the device. ds__capture_pool_unref takes
   ds__memory_state.leaving only. ds__is_capturing calls the driver.
   Threads: caller's threads. ds__capture_pool_unref runs on any thread, also on a thread of
   CUDA's, and calls neither the driver nor a public function. */

/* The pool that a capture shall use; NULL: a new pool of the device. */
typedef struct ds__capture_wish {
    ds__mem_dev *dev;
    ds__mem_pool *pool;
} ds__capture_wish;

/* Makes or takes the pool of a capture, for ds__capture_attachment. */
static ds_result ds__capture_pool_create(uint64_t capture, void *user, void **out) {
    ds__capture_wish *wish = user;
    ds__mem_pool *p = wish->pool;
    if (!p) {
        ds_mem_config c = ds__config_of(wish->dev);
        c.backend = DS_MEM_NATIVE;
        p = ds__mem_pool_create(wish->dev, &c, &(ds_pool_desc){ 0 }, capture);
        if (!p)
            return DS_ERR_OUT_OF_MEMORY;
    } else {
        ds__mem_pool_own(p);
    }
    atomic_fetch_add(&p->graphs, 1);
    *out = p;
    return DS_OK;
}

/* Releases the pool after the last graph of a capture was destroyed. Runs on any thread and must
   not call devstream, so a later flush gives the memory of the pool back. */
static void ds__capture_pool_unref(void *user) {
    ds__mem_pool *p = user;
    ds__mutex_lock(&ds__memory_state.leaving);
    int closing = ds__memory_state.closing; /* 1: ds_shutdown frees the pools */
    ds__memory_state.leavers += !closing;
    ds__mutex_unlock(&ds__memory_state.leaving);
    if (closing)
        return;
    atomic_fetch_sub(&p->graphs, 1);
    ds__mem_pool_disown(p);
    ds__mutex_lock(&ds__memory_state.leaving);
    if (!--ds__memory_state.leavers)
        ds__condition_broadcast(&ds__memory_state.left);
    ds__mutex_unlock(&ds__memory_state.leaving);
}

/* Attaches a pool to the capture of the stream under a key. *out is NULL if the stream does not
   capture. */
static ds_result ds__capture_pool_attach(ds__stream *s, const void *key, ds__capture_wish *wish,
                                         ds__object **out) {
    return ds__capture_attachment(s,
                                  &(ds__attachment){ .key = key,
                                                     .make_fn = ds__capture_pool_create,
                                                     .user = wish,
                                                     .release_fn = ds__capture_pool_unref },
                                  out);
}

/* Keeps a pool that a request names for as long as the graph of the stream's capture. */
static ds_result ds__capture_pool_ref(ds__stream *s, ds__mem_pool *p) {
    ds__capture_wish wish = { p->dev, p };
    ds__object *kept;
    ds_result r = ds__capture_pool_attach(s, p, &wish, &kept);
    ds__object_unref(kept);
    return r;
}

/* Sets *out to the pool of the stream's capture, or to NULL if the stream does not capture. */
static ds_result ds__capture_pool_of(ds__stream *s, ds__mem_pool **out) {
    ds__mem_dev *dev = ds__mem_device(s->device);
    ds__capture_wish wish = { dev, NULL };
    ds__object *kept;
    if (!dev)
        return ds__mem_error();
    ds_result r = ds__capture_pool_attach(s, dev, &wish, &kept);
    *out = kept ? kept->user : NULL;
    ds__object_unref(kept);
    return r;
}

DSDEF ds_result(ds_capture_set_pool)(ds_stream stream, ds_pool pool) {
    DS__ENTER("ds_capture_set_pool");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__capture_wish wish = { p->dev, p };
    ds__object *kept = NULL;
    ds_result r = p->dev != ds__mem_device(s->device)
                      ? ds__fail(DS_ERR_DEVICE_MISMATCH,
                                 "the pool and the stream belong to different devices")
                      : ds__capture_pool_attach(s, p->dev, &wish, &kept);
    if (r == DS_OK && !kept)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    else if (r == DS_OK && kept->user != p)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the capture has already allocated memory");
    ds__object_unref(kept);
    ds__stream_unpin(s);
    return r;
}

/* alloc/pinned.h - state and policy of the pinned memory allocator.

   Holds the state of the allocator of pinned host memory (ds__host) and makes its device record
   at the first use. ds__pinned_device returns that record; ds__pinned_used returns it only if
   it exists already, and ds__mem_asked returns the record of any device. ds__pinned_configure
   applies a new configuration. Blocks are handled in pinned_block.h, the memory comes from
   pinned_source.h, and pinned_api.h has the public functions.

   Policy:
   1. The host is a device (ds__mem_dev) with one pool and two arenas: one for blocks below 4
      KiB, one for blocks of whole pages. The arenas belong to no stream.
   2. The program may use an allocated block at once. A freed block with recorded uses is
      therefore pending until the events of these uses are complete. Allocations query the
      events if nothing else fits, with poll_on_alloc always; ds_mem_pinned_empty_cache queries them
      too. Frees never query events, and no call does while a capture is open. No call waits for
      an event.
   3. A block that a capture used stays pending until the last graph with this use is gone.
   4. Requests of up to a quarter of pinned_reserve_segment_size share segments of that size (1
      MiB if it is 0). A new segment for a larger request has the request's size. Both kinds are
      split and merged.
   5. pinned_max_round_threshold rounds requests up to powers of two. If
      pinned_reserve_segment_size is 0, such a request takes only a block of exactly its size. A
      new segment for it has that size too, as in PyTorch.
   6. Blocks are taken and freed with the arena's lock and ds__host.count held, so all counts
      are exact.

   Invariants: ds__host.dev is set only after both arenas exist. Both arenas count exactly, in
   the tally of the device record. The atomic settings are copies of members of ds__host.config.
   ds__host.limit is the exception: ds_mem_pinned_set_limit sets it.
   Locks: ds__host.lock guards the first use and the configuration; ds__memory_state.lock and the
   registry's lock may be taken under it. An arena's lock comes before ds__host.count, and only
   the registry's lock may be taken under both. ds__host.clock_lock guards the times of driver
   calls; no other lock is taken under it. No driver call runs under any of these locks.
   Threads: any thread. ds__pinned_device takes no lock once the record exists. Only ds_shutdown
   removes the record. */

#define DS__HOST_PAGE ((size_t)4096)

/* The graphs of a capture, as owners of the pinned memory that they use. */
struct ds__hold {
    _Atomic int owners; /* the graphs together, and each use */
    _Atomic int gone;   /* 1: the last graph was destroyed */
};

/* Times of driver calls. */
typedef struct ds__clock {
    int64_t total; /* ns */
    int64_t max;   /* ns */
    int64_t min;   /* ns; 0: none yet */
    int64_t count;
} ds__clock;

static struct {
    ds__mutex lock; /* guards the first use, and `config` */
    ds__mem_dev *_Atomic dev;
    ds__arena *arena[2];  /* for blocks below 4 KiB, and of whole pages */
    ds_mem_config config; /* the configuration that was set last */
    int configured;
    _Atomic size_t round_threshold; /* from `config` */
    _Atomic size_t max_cached;      /* from `config` */
    _Atomic size_t segment_size;    /* from `config` */
    _Atomic size_t limit;           /* from ds_mem_pinned_set_limit */
    _Atomic int registers;
    _Atomic int polls;
    _Atomic int debug;
    _Atomic unsigned threads;
    ds__spinlock count;
    ds__spinlock clock_lock;
    ds__clock made;
    ds__clock ended;
} ds__host = { .lock = DS__MUTEX_INIT };

/* Sets the configuration. ds__host.lock is held. */
static void ds__pinned_apply(const ds_mem_config *c) {
    ds__host.config = *c;
    ds__host.configured = 1;
    atomic_store(&ds__host.round_threshold, c->pinned_max_round_threshold);
    atomic_store(&ds__host.max_cached, c->pinned_max_cached_size);
    atomic_store(&ds__host.segment_size, c->pinned_reserve_segment_size);
    atomic_store(&ds__host.registers, c->pinned_use_cuda_host_register);
    atomic_store(&ds__host.threads, c->pinned_num_register_threads);
    atomic_store(&ds__host.polls, c->poll_on_alloc);
    atomic_store(&ds__host.debug, c->debug);
}

/* Sets the configuration: to `config`, or by a text (known to be valid) from the current one. */
static void ds__pinned_configure(const ds_mem_config *config, const char *text) {
    ds__mutex_lock(&ds__host.lock);
    if (config) {
        ds__pinned_apply(config);
    } else {
        ds_mem_config c = ds__host.configured ? ds__host.config : ds__usual_config();
        if (ds__config_read(text, &c) == DS_OK)
            ds__pinned_apply(&c);
    }
    ds__mutex_unlock(&ds__host.lock);
}

/* Makes an arena of pinned memory. Returns NULL without host memory. ds__host.lock is held. */
static ds__arena *ds__host_arena(ds__mem_dev *dev) {
    ds__arena *a = ds__arena_create(&dev->main);
    if (!a)
        return NULL;
    a->stream_id = UINT64_MAX;
    a->slow = 1;
    return a;
}

/* Returns the device record of pinned memory, or NULL if pinned memory was not used. */
static ds__mem_dev *ds__pinned_used(void) {
    return atomic_load_explicit(&ds__host.dev, memory_order_acquire);
}

/* Sets *out to the record of a device, or to NULL if the device was not used. DS_DEVICE_HOST stands
   for pinned memory. */
static ds_result ds__mem_asked(ds_device device, ds__mem_dev **out) {
    if (device.type != DS_DEVICE_HOST)
        return ds__mem_used(device, out);
    *out = ds__pinned_used();
    return DS_OK;
}

/* Makes the device record of pinned memory with both arenas, and publishes it. Returns NULL without
   host memory. ds__host.lock is held. */
static ds__mem_dev *ds__pinned_device_create(void) {
    ds_mem_config c = (ds_mem_config_default)();
    c.single_pool = 1; /* segments have the size of the request */
    c.segment_growth = 0;
    c.expandable_segments = 0;
    ds__mem_dev *dev =
        ds__mem_dev_create((ds_device){ .type = DS_DEVICE_HOST }, ds__os_memory(), &c);
    if (!dev)
        return NULL;
    atomic_store(&dev->limit, atomic_load(&ds__host.limit));
    for (int i = 0; i < 2; i++) {
        ds__host.arena[i] = ds__host_arena(dev);
        if (!ds__host.arena[i])
            return NULL;
    }
    atomic_store_explicit(&ds__host.dev, dev, memory_order_release);
    return dev;
}

/* Returns the device record of pinned memory, which is made at the first use. On failure returns
   NULL and sets the error. */
static ds__mem_dev *ds__pinned_device(void) {
    ds__mem_dev *dev = ds__pinned_used();
    if (DS__LIKELY(dev != NULL))
        return dev;
    if (ds__mem_setup() < 0)
        return NULL;
    ds__mutex_lock(&ds__host.lock);
    if (!ds__host.configured) {
        ds_mem_config usual = ds__usual_config();
        ds__pinned_apply(&usual);
    }
    dev = ds__pinned_used();
    if (!dev)
        dev = ds__pinned_device_create();
    ds__mutex_unlock(&ds__host.lock);
    if (!dev)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the allocator of pinned memory");
    return dev;
}

/* alloc/pinned_source.h - memory of pinned segments.

   Allocates and frees the memory of pinned segments for upstream.h (ds__pinned_source_alloc,
   ds__pinned_source_free). The memory is the driver's pinned memory. With
   pinned_use_cuda_host_register it is ordinary memory, whose pages are touched and then
   registered. Both functions record their duration for ds_mem_pinned_get_stats.

   Invariants: Every segment stands in the table of known memory as held by the allocator
   (DS__HELD_SEGMENT). ds__pinned_source_free always returns DS_OK: no work uses the memory, and
   it counts as gone even if the driver reports an error.
   Locks: ds__host.clock_lock around the times only. The driver is called, and may block, so no
   spinning lock may be held. The caller of ds__pinned_source_alloc holds the arena's `grow`.
   Threads: caller's threads. */

/* Adds the time of a driver call that began at `since`. */
static void ds__clock_add(ds__clock *c, uint64_t since) {
    int64_t ns = (int64_t)(ds__now_ns() - since);
    ds__spinlock_lock(&ds__host.clock_lock);
    if (!c->min || ns < c->min)
        c->min = ns ? ns : 1;
    if (ns > c->max)
        c->max = ns;
    c->total += ns;
    c->count++;
    ds__spinlock_unlock(&ds__host.clock_lock);
}

/* Allocates ordinary memory, touches its pages, and registers it with the driver. */
static ds_result ds__registered_alloc(size_t size, void **out) {
    int b = ds__host_backend();
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_format");
    size_t whole = (size + DS__HOST_PAGE - 1) & ~(DS__HOST_PAGE - 1);
    ds__found f;
    char *ptr = ds__os_aligned_alloc(DS__HOST_PAGE, whole);
    if (!ptr)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system cannot allocate %zu bytes", size);
    ds__touch_all(ptr, whole, atomic_load(&ds__host.threads));
    ds_result r = ds__range_add(ptr, size, DS_MEMORY_REGISTERED | DS__HELD_SEGMENT, b, 0);
    if (r < 0)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
    else {
        ds__tls.relaxed++;
        r = ds__g.driver[b]->host_register(ptr, size);
        ds__tls.relaxed--;
        if (r < 0)
            (void)ds__range_remove(ptr, DS_MEMORY_REGISTERED | DS__HELD_SEGMENT, &f);
    }
    if (r < 0)
        ds__os_aligned_free(ptr);
    else
        *out = ptr;
    return r;
}

/* Allocates the memory of a pinned segment; *out_source: DS__FROM_*. No spinning lock is held. */
static ds_result ds__pinned_source_alloc(size_t size, int *out_source, void **out) {
    int registers = atomic_load(&ds__host.registers);
    uint64_t since = ds__now_ns();
    *out = NULL;
    *out_source = registers ? DS__FROM_REGISTERED : DS__FROM_PINNED;
    ds_result r = registers ? ds__registered_alloc(size, out) : ds__pinned_segment_alloc(size, out);
    if (r == DS_OK)
        ds__clock_add(&ds__host.made, since);
    return r;
}

/* Frees the memory of a pinned segment. No work uses the memory, so the host does not wait, and an
   error of the driver is ignored. */
static ds_result ds__pinned_source_free(const ds__segment *s) {
    uint64_t since = ds__now_ns();
    ds__tls.mute++;
    if (s->source == DS__FROM_REGISTERED) {
        DS_IGNORE(ds__segment_end(s->base, DS_MEMORY_REGISTERED, 1));
        ds__os_aligned_free(s->base);
    } else {
        DS_IGNORE(ds__segment_end(s->base, DS_MEMORY_PINNED, 1));
    }
    ds__tls.mute--;
    ds__clock_add(&ds__host.ended, since);
    return DS_OK;
}

/* alloc/validate.h - consistency check of all structures.

   ds__device_validate checks every list, count and limit of a device, or of pinned memory. It
   returns DS_ERR_ILLEGAL_STATE with a sentence about the first violation. It serves ds_mem_validate
   and the automatic checks of a policy with `debug` (ds__pool_check).

   Invariants: The check changes nothing, except that parked blocks are merged. If a thread
   works on a claimed block of the device, incomplete sums are not compared. If dev->moving counts
   a call in progress, or changes, the limits are not compared.
   Locks: stops the device (ds__mem_lock_all), and takes the registry's lock under that. The
   caller must hold none of these locks. The driver is not called.
   Threads: any caller's thread; allocations and frees on the device wait meanwhile. */

#define DS__SOUND(condition, ...)                               \
    do {                                                        \
        if (!(condition))                                       \
            return ds__fail(DS_ERR_ILLEGAL_STATE, __VA_ARGS__); \
    } while (0)

/* Sums of one arena, for ds__validate_arena. `listed` members are counted in the arena's lists,
   `seen` members in its segments. */
typedef struct ds__validate_seen {
    int64_t (*sum)[DS__METRICS];
    int64_t (*meter)[DS__METERS];
    size_t listed_free;
    size_t listed_holes;
    size_t listed_pending; /* pending and deferred */
    size_t seen_free;
    size_t seen_holes;
    size_t seen_pending;
    size_t free_bytes;
    size_t held; /* claimed blocks: a thread works on each, so sums are incomplete */
} ds__validate_seen;

/* Checks one bin and the blocks in its list. */
static ds_result ds__validate_bin(const ds__bins *bins, int kind, unsigned i,
                                  ds__validate_seen *n) {
    const ds__mem_block *before = NULL;
    DS__SOUND(!bins->head[i] == !(bins->map[i / 64] >> i % 64 & 1), "bin %u and its bit disagree",
              i);
    for (const ds__mem_block *b = bins->head[i]; b; before = b, b = b->list_next) {
        DS__SOUND(b->list_prev == before, "the list of bin %u is broken at %p", i, (void *)b->ptr);
        DS__SOUND(b->state == DS_BLOCK_FREE && b->bin == i && ds__bin_of(b) == i && b->seg &&
                      b->seg->kind == kind && !b->uses,
                  "%p does not belong into bin %u", (void *)b->ptr, i);
        n->listed_free++;
    }
    return DS_OK;
}

/* Checks the bins of one kind, and their summary. */
static ds_result ds__validate_bins(const ds__bins *bins, int kind, ds__validate_seen *n) {
    for (unsigned i = 0; i < DS__BINS; i++) {
        ds_result r = ds__validate_bin(bins, kind, i, n);
        if (r < 0)
            return r;
    }
    for (unsigned w = 0; w < DS__BINS / 64; w++)
        DS__SOUND(!bins->map[w] == !(bins->summary >> w & 1), "word %u and its bit disagree", w);
    return DS_OK;
}

/* Checks the list of holes of one kind. */
static ds_result ds__validate_holes(const ds__mem_block *first, ds__validate_seen *n) {
    const ds__mem_block *before = NULL;
    for (const ds__mem_block *b = first; b; before = b, b = b->list_next) {
        DS__SOUND(b->state == DS_BLOCK_UNMAPPED && b->list_prev == before,
                  "the list of holes is broken at %p", (void *)b->ptr);
        DS__SOUND(!before || ds__block_is_earlier(before, b), "the hole at %p is out of order",
                  (void *)b->ptr);
        n->listed_holes++;
    }
    return DS_OK;
}

/* Checks the lists of pending and of deferred blocks. */
static ds_result ds__validate_pending(const ds__arena *a, ds__validate_seen *n) {
    size_t pending = 0;
    size_t deferred = 0;
    for (const ds__mem_block *b = a->pending; b; b = b->list_next) {
        /* a thread that handles a claimed block changes its uses and its poison without the lock */
        DS__SOUND(b->state == DS_BLOCK_PENDING && (b->claimed || b->uses || b->stale),
                  "%p does not belong to the pending blocks", (void *)b->ptr);
        pending += b->size;
        n->listed_pending++;
    }
    for (const ds__mem_block *b = a->deferred; b; b = b->list_next, deferred++)
        DS__SOUND(b->state == DS_BLOCK_PENDING && !b->claimed && b->seg && b->seg->direct &&
                      (b->list_next || b == a->deferred_last),
                  "%p does not belong to the deferred blocks", (void *)b->ptr);
    DS__SOUND(deferred == a->deferred_count && !a->deferred == !a->deferred_last,
              "%zu blocks are deferred, %zu were counted", deferred, a->deferred_count);
    DS__SOUND(pending == a->pending_bytes, "%zu bytes are pending, %zu were counted", pending,
              a->pending_bytes);
    n->listed_pending += deferred;
    return DS_OK;
}

/* Checks a free block behind `before`, and counts it. */
static ds_result ds__validate_free(const ds__mem_block *b, const ds__mem_block *before,
                                   ds__validate_seen *n) {
    const ds__segment *s = b->seg;
    DS__SOUND(!before || before->state != DS_BLOCK_FREE || before->claimed,
              "two free blocks at %p are not merged", (void *)b->ptr);
    n->free_bytes += b->size;
    n->seen_free++;
    if (!s->page && ds__is_split(b)) {
        n->meter[s->kind][DS__SPLIT]++;
        n->meter[s->kind][DS__SPLIT_BYTES] += (int64_t)b->size;
    }
    return DS_OK;
}

/* Checks a live or pending block, and counts it. */
static ds_result ds__validate_active(const ds__mem_block *b, ds__validate_seen *n) {
    const ds__segment *s = b->seg;
    int live = b->state == DS_BLOCK_LIVE;
    const ds__mem_block *found = live ? ds__block_find(s, b->ptr, 1) : b;
    DS__SOUND(found == b, "the block at %p is not found by its address", (void *)b->ptr);
    DS__SOUND(!live || ds__segment_of(b->ptr) == s, "the block at %p leads to another segment",
              (void *)b->ptr);
    DS__SOUND(b->asked <= b->size, "the block at %p is smaller than what was asked for",
              (void *)b->ptr);
    int64_t *sum = n->sum[s->kind];
    sum[DS__ALLOCATION] += live;
    sum[DS__ALLOCATED_BYTES] += live ? (int64_t)b->size : 0;
    sum[DS__ACTIVE]++;
    sum[DS__ACTIVE_BYTES] += (int64_t)b->size;
    sum[DS__REQUESTED_BYTES] += (int64_t)b->asked;
    n->seen_pending += !live && !b->exported;
    return DS_OK;
}

/* Checks a block that is not claimed, behind `before`, and counts it. */
static ds_result ds__validate_block(const ds__mem_block *b, const ds__mem_block *before,
                                    ds__validate_seen *n) {
    const ds__segment *s = b->seg;
    DS__SOUND(b->state == DS_BLOCK_LIVE || !b->guarded,
              "the block at %p is freed and still guarded", (void *)b->ptr);
    DS__SOUND(!b->stale || b->state != DS_BLOCK_FREE,
              "the block at %p can be reused before it was poisoned", (void *)b->ptr);
    if (b->state == DS_BLOCK_FREE)
        return ds__validate_free(b, before, n);
    if (b->state != DS_BLOCK_UNMAPPED)
        return ds__validate_active(b, n);

    DS__SOUND(s->page && (size_t)(b->ptr - s->base) % s->page == 0 && b->size % s->page == 0,
              "the hole at %p is not in whole pages", (void *)b->ptr);
    n->seen_holes++;
    return DS_OK;
}

/* Checks a segment: its blocks fill its address space, and their sums are as counted. */
static ds_result ds__validate_segment(const ds__arena *a, const ds__segment *s,
                                      ds__validate_seen *n) {
    const char *at = s->base;
    size_t mapped = 0;
    const ds__mem_block *before = NULL;
    DS__SOUND(atomic_load(&((ds__segment *)(uintptr_t)s)->arena) == a,
              "the segment at %p belongs to another stream", (void *)s->base);
    n->meter[s->kind][DS__SEGMENT] += !s->page;
    for (const ds__mem_block *b = s->first; b; before = b, b = b->next) {
        DS__SOUND(b->ptr == at && b->prev == before && b->seg == s && b->size > 0 &&
                      b->size % DS__UNIT == 0,
                  "the segment at %p is broken at %p", (void *)s->base, (void *)at);
        at += b->size;
        if (b->state != DS_BLOCK_UNMAPPED)
            mapped += b->size;
        if (b->claimed) {
            n->held++;
            continue;
        }
        ds_result r = ds__validate_block(b, before, n);
        if (r < 0)
            return r;
    }
    DS__SOUND(at == s->base + s->size, "the blocks of the segment at %p end at %p", (void *)s->base,
              (void *)at);
    DS__SOUND(n->held || mapped == s->mapped,
              "the segment at %p has %zu bytes of memory, %zu were counted", (void *)s->base,
              mapped, s->mapped);
    n->meter[s->kind][DS__RESERVED] += (int64_t)s->mapped;
    return DS_OK;
}

/* Checks an arena and adds its blocks to `sum` and `meter`. Returns DS_NOT_READY if a thread works
   on one of the blocks: the sums are incomplete then. Everything is locked. */
static ds_result ds__validate_arena(ds__arena *a, int64_t sum[2][DS__METRICS],
                                    int64_t meter[2][DS__METERS]) {
    ds__validate_seen n = { .sum = sum, .meter = meter };
    ds_result r = DS_OK;
    for (int kind = 0; kind < 2 && r == DS_OK; kind++) {
        r = ds__validate_bins(&a->bins[kind], kind, &n);
        if (r == DS_OK)
            r = ds__validate_holes(a->holes[kind], &n);
    }
    if (r == DS_OK)
        r = ds__validate_pending(a, &n);
    for (const ds__segment *s = a->segments; s && r == DS_OK; s = s->next)
        r = ds__validate_segment(a, s, &n);
    if (r < 0)
        return r;

    DS__SOUND(n.seen_free == n.listed_free && n.free_bytes == a->free_bytes,
              "%zu free blocks, %zu in bins; %zu bytes, %zu counted", n.seen_free, n.listed_free,
              n.free_bytes, a->free_bytes);
    DS__SOUND(n.held || (n.seen_holes == n.listed_holes && n.seen_pending == n.listed_pending),
              "%zu holes, %zu in the list; %zu pending blocks, %zu in the lists", n.seen_holes,
              n.listed_holes, n.seen_pending, n.listed_pending);
    return n.held ? DS_NOT_READY : DS_OK;
}

/* Compares the statistics of a device, or of a pool (`only`), with the sums of blocks and
   segments. */
static ds_result ds__validate_sums(ds__mem_dev *dev, ds__mem_pool *only,
                                   int64_t sum[2][DS__METRICS], int64_t meter[2][DS__METERS]) {
    static const char *const names[] = { "allocation", "allocated_bytes", "requested_bytes",
                                         "active", "active_bytes" };
    static const char *const more[] = { "segment", "reserved_bytes", "inactive_split",
                                        "inactive_split_bytes" };
    const char *where = only ? " of a pool" : "";
    ds__domain *d = only ? &only->stats : &dev->stats;
    int64_t now[2][DS__METRICS];
    ds__domain_now(dev, only, now, NULL);
    for (int k = 0; k < 2; k++) {
        for (int m = 0; m < DS__METRICS; m++)
            DS__SOUND(sum[k][m] == now[k][m], "%s of the %s blocks%s are %lld, %lld were counted",
                      names[m], k ? "large" : "small", where, (long long)sum[k][m],
                      (long long)now[k][m]);
        for (int m = 0; m < DS__METERS; m++) {
            long long counted = (long long)atomic_load(&d->meter[k][m].now);
            DS__SOUND(meter[k][m] == counted, "%s of the %s blocks%s are %lld, %lld were counted",
                      more[m], k ? "large" : "small", where, (long long)meter[k][m], counted);
        }
    }
    for (int m = 0; m < DS__METERS; m++) {
        long long all = (long long)atomic_load(&d->all[m].now);
        long long both = (long long)(meter[0][m] + meter[1][m]);
        DS__SOUND(all == both, "%s of both kinds%s are %lld, %lld were counted", more[m], where,
                  both, all);
    }
    return DS_OK;
}

/* Sums of the segments of a device or a pool. */
typedef struct ds__mem_count {
    size_t segments;
    size_t bytes;
    size_t async;
    int64_t over_blocks;
    int64_t over_segments;
} ds__mem_count;

static ds_result ds__validate_count(const ds__mem_count *n, ds__mem_dev *dev, ds__mem_pool *only) {
    ds__domain *d = only ? &only->stats : &dev->stats;
    int64_t blocks = atomic_load(&d->oversize_allocations.now);
    int64_t segments = atomic_load(&d->oversize_segments.now);
    DS__SOUND(n->over_blocks == blocks && n->over_segments == segments,
              "%lld blocks and %lld segments%s are oversize, %lld and %lld were counted",
              (long long)n->over_blocks, (long long)n->over_segments, only ? " of a pool" : "",
              (long long)blocks, (long long)segments);
    return DS_OK;
}

/* Returns whether the table by address has the segment in its place. Other segments may have the
   same address. The registry is locked. */
static int ds__is_sorted(const ds__segment *s) {
    size_t i = ds__sorted_after((uintptr_t)s->base);
    while (i > 0 && ds__memory_state.sorted[i - 1] != s &&
           ds__memory_state.sorted[i - 1]->base == s->base)
        i--;
    return i > 0 && ds__memory_state.sorted[i - 1] == s;
}

/* Returns whether the segment reaches into the next one of the table, while both are in use. */
static int ds__segment_overlaps(const ds__segment *s, const ds__segment *next, const ds__arena *a) {
    if (next->base < s->base)
        return 1;
    return next->base < s->base + s->size && a && !s->leaving && !next->leaving &&
           atomic_load(&((ds__segment *)(uintptr_t)next)->arena);
}

/* Checks that the segments in the table are in order and do not overlap. *out_listed: the number of
   the device's segments. Everything is locked, the registry too. */
static ds_result ds__validate_order(const ds__mem_dev *dev, size_t *out_listed) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < ds__memory_state.sorted_count; i++) {
        ds__segment *s = ds__memory_state.sorted[i];
        const ds__segment *next =
            i + 1 < ds__memory_state.sorted_count ? ds__memory_state.sorted[i + 1] : NULL;
        const ds__arena *a = atomic_load(&s->arena);
        if (next && r == DS_OK && ds__segment_overlaps(s, next, a))
            r = ds__fail(
                DS_ERR_ILLEGAL_STATE,
                "in the table by address the segment at %p reaches into the next one at %p",
                (void *)s->base, (void *)next->base);
        *out_listed += a && a->dev == dev;
    }
    return r;
}

/* Checks the table of all segments by address: the segments are in order, no two overlap, and those
   of the device are in their place. *out_listed: the number of the device's segments. Everything is
   locked. */
static ds_result ds__validate_sorted(ds__mem_dev *dev, size_t *out_listed) {
    *out_listed = 0;
    ds__mutex_lock(&ds__memory_state.registry);
    ds_result r = ds__validate_order(dev, out_listed);
    for (ds__mem_pool *p = &dev->main; p && r == DS_OK; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (const ds__segment *s = a->segments; s && r == DS_OK; s = s->next)
                if (!ds__is_sorted(s))
                    r = ds__fail(DS_ERR_ILLEGAL_STATE,
                                 "the segment at %p is not in its place in the table by address",
                                 (void *)s->base);
    ds__mutex_unlock(&ds__memory_state.registry);
    return r;
}

/* Counts the segments of a pool and their blocks. Everything is locked. */
static ds__mem_count ds__validate_pool_count(const ds__mem_pool *p) {
    ds__mem_count n = { 0, 0, 0, 0, 0 };
    for (const ds__arena *a = p->arenas; a; a = a->next)
        for (const ds__segment *s = a->segments; s; s = s->next) {
            n.segments++;
            n.bytes += s->mapped;
            n.async += s->source == DS__FROM_ASYNC ? s->size : 0;
            n.over_segments += !s->page && s->oversize;
            for (const ds__mem_block *b = s->first; b; b = b->next)
                n.over_blocks += b->oversize;
        }
    return n;
}

/* Checks the reserved bytes, the oversize blocks and the table by address. Everything is locked.
   But a thread that calls the driver for memory holds no lock; while there is one, the reserved
   bytes are not compared. */
static ds_result ds__validate_reserved(ds__mem_dev *dev) {
    uint64_t moving = atomic_load(&dev->moving);
    ds__mem_count all = { 0, 0, 0, 0, 0 };
    size_t listed;
    size_t wrong = 0;
    size_t held = 0;
    size_t has = 0;
    ds_result r = ds__validate_sorted(dev, &listed);
    for (ds__mem_pool *p = &dev->main; p && r == DS_OK; p = p->next) {
        ds__mem_count n = ds__validate_pool_count(p);
        size_t reserved = atomic_load(&p->reserved);
        if (reserved != n.bytes && !wrong++) {
            held = reserved;
            has = n.bytes;
        }
        all =
            (ds__mem_count){ all.segments + n.segments, all.bytes + n.bytes, all.async + n.async,
                             all.over_blocks + n.over_blocks, all.over_segments + n.over_segments };
        if (p != &dev->main)
            r = ds__validate_count(&n, dev, p);
    }
    size_t reserved = atomic_load(&dev->reserved);
    size_t async = atomic_load(&dev->async_bytes);
    if (r == DS_OK)
        r = ds__validate_count(&all, dev, NULL);
    if (r < 0)
        return r;
    if ((uint32_t)moving || atomic_load(&dev->moving) != moving)
        return DS_OK;

    DS__SOUND(async == all.async,
              "blocks of the driver's own pool have %zu bytes, %zu were counted", all.async, async);
    DS__SOUND(!wrong, "the limit counter of a pool is %zu bytes, its segments have %zu", held, has);
    DS__SOUND(reserved == all.bytes, "the limit counter is %zu bytes, the segments have %zu",
              reserved, all.bytes);
    DS__SOUND(listed == all.segments,
              "the table by address has %zu segments of the device, which has %zu", listed,
              all.segments);
    return DS_OK;
}

/* Checks the arenas of a pool, adds their sums to those of the device, and compares them with the
   pool's statistics. *busy becomes 1 if the sums are incomplete. Everything is locked. */
static ds_result ds__validate_pool(ds__mem_pool *p, int64_t sum[2][DS__METRICS],
                                   int64_t meter[2][DS__METERS], int *busy) {
    int64_t of_pool[2][DS__METRICS];
    int64_t metered[2][DS__METERS];
    ds__mem_dev *dev = p->dev;
    ds_result r = DS_OK;
    int working = 0; /* another thread works on a block: the sums are incomplete */
    memset(of_pool, 0, sizeof of_pool);
    memset(metered, 0, sizeof metered);
    for (ds__arena *a = p->arenas; a && r == DS_OK; a = a->next) {
        r = ds__validate_arena(a, of_pool, metered);
        if (r == DS_NOT_READY) {
            working = 1;
            r = DS_OK;
        }
    }
    for (int k = 0; k < 2; k++) {
        for (int m = 0; m < DS__METRICS; m++)
            sum[k][m] += of_pool[k][m];
        for (int m = 0; m < DS__METERS; m++)
            meter[k][m] += metered[k][m];
    }
    if (r == DS_OK && !working && p != &dev->main)
        r = ds__validate_sums(dev, p, of_pool, metered);
    *busy |= working;
    return r;
}

/* Checks a device: every arena, and that the statistics are the sums. No lock is held. */
static ds_result ds__device_validate(ds__mem_dev *dev) {
    int64_t sum[2][DS__METRICS];
    int64_t meter[2][DS__METERS];
    int busy = 0;
    ds_result r = DS_OK;
    memset(sum, 0, sizeof sum);
    memset(meter, 0, sizeof meter);
    ds__mem_lock_all(dev);
    for (ds__mem_pool *p = &dev->main; p && r == DS_OK; p = p->next)
        r = ds__validate_pool(p, sum, meter, &busy);
    if (r == DS_OK && !busy)
        r = ds__validate_sums(dev, NULL, sum, meter);
    if (r == DS_OK)
        r = ds__validate_reserved(dev);
    ds__mem_unlock_all(dev);
    return r;
}

/* Checks the pool's device if `debug` of the pool's policy is at least `level`. */
static ds_result ds__pool_check(ds__mem_pool *p, int level) {
    return DS__UNLIKELY(ds__pool_policy(p)->debug >= level) ? ds__device_validate(p->dev) : DS_OK;
}

DSDEF ds_result(ds_mem_validate)(ds_device device) {
    ds__mem_dev *dev = NULL;
    DS__MEM_ENTER("ds_mem_validate");
    ds_result r = ds__mem_asked(device, &dev);
    return dev ? ds__device_validate(dev) : r;
}

/* alloc/ipc_types.h - sharing between processes: types and state.

   Defines the records for memory that processes share, and their global state (ds__share). The
   exporter has exported segments (ds__export_hold) and exports (ds__ipc_export, one for each
   block). The importer has opened segments (ds__guest) and imports (ds__got, one for each block).
   ds__ipc_memory is the content of an IPC handle, and ds__export_slot_facts the content of an
   export slot.

   Policy:
   1. A segment of a shareable pool is memory that other processes can open. The IPC handle of a
      block names its export slot (ds__export_slot) in the process's shared-memory registry
      (ds__registry). The slot names the block's segment, the place in the segment, and an event
      behind the work enqueued so far on the block's stream. So a changed handle cannot give another
      size.
   2. A process that imports a block takes a lease of the block's slot, and of the segment's slot
      when it opens the segment. A lease is a number that only a living process holds. So any
      process may take back a lease of an ended process.
   3. Closing an import enqueues a callback on the stream of the last use; the block's lease ends
      in that callback. A later call of this process closes the segment when no block of the
      segment is left; then the segment's lease ends.
   4. A freed block without leases is free. A freed block with leases is in `limbo` until the
      leases are gone. The records of both are in `limbo`. `limbo` is searched when a block is
      exported, imported, closed or freed, by ds_mem_ipc_collect, and when memory is short.
   5. A slot is closed before its leases are read, and a lease is taken before the slot is read.
      So of a free and an import at the same time, one sees the other.
   6. A freed segment stays until all processes that have it open have closed it, as CUDA
      requires.

   Invariants: ds__got.left counts open imports and closed imports before their callback. When
   `left` reaches 0, the lease is dropped and `gone` is set; no callback comes after that.
   `in_limbo` is the number of blocks in `limbo`. `events` is at most DS__SENT_EVENTS.
   Locks: no work is enqueued on a stream of the program under ds__share.mutex, because that may
   wait for room in a queue. Order: ds__share.mutex, the registries' mutex (ds__registries.mutex),
   an arena's lock, ds__share.lock. ds__share.lock guards `limbo` and the buckets, ds__share.mutex
   all other members. The callback takes no lock, because CUDA may wait for callbacks while a thread
   holds a mutex.
   Threads: caller's threads; ds__got.left and ds__got.gone also change on driver threads. */

enum { DS__SENT_EVENTS = 1000, DS__SENT_BUCKETS = 1024, DS__LIMBO_MANY = 1000 };

/* A segment of a shareable pool. */
typedef struct ds__export_hold {
    struct ds__export_hold *next;
    ds_device device;
    char *base;
    size_t size;
    uint32_t slot;       /* the export slot, from the first export on */
    uint32_t generation; /* of the export slot; 0 before the first export */
    int over;            /* 1: the allocator has given the segment back */
    int stays;           /* 1: at the end, other processes have it open */
} ds__export_hold;

/* An exported block, until it is free. */
typedef struct ds__ipc_export {
    struct ds__ipc_export *next; /* in a bucket, or in `limbo` */
    ds__mem_block *block;        /* NULL: the block is free, and only the record is left */
    char *ptr;
    uint32_t slot; /* the export slot */
    uint32_t generation;
    int exports;    /* calls of ds_mem_export that use the record now; it does not end meanwhile */
    ds_event event; /* 0: DS__SENT_EVENTS other records have an event */
} ds__ipc_export;

/* An opened segment of another process. */
typedef struct ds__guest {
    struct ds__guest *next;
    ds_device device;
    ds__registry *registry;
    char *base;
    size_t size;
    uint32_t slot;
    uint32_t generation;
    uint32_t lease;
    size_t blocks; /* records of imports in the segment */
} ds__guest;

/* An imported block. */
typedef struct ds__got {
    struct ds__got *next;
    ds__guest *guest;
    char *ptr;
    size_t size;
    uint32_t slot;
    uint32_t generation;
    int open; /* imports that were not closed */
    uint32_t lease;
    _Atomic int left; /* `open`, and closed imports whose callback has not run */
    _Atomic int gone; /* 1: the lease is dropped, and no callback will come */
} ds__got;

static struct {
    ds__mutex mutex;
    ds__spinlock lock;     /* guards `limbo` and `bucket` */
    ds__ipc_export *limbo; /* records of freed blocks */
    ds__ipc_export *bucket[DS__SENT_BUCKETS];
    ds__export_hold *hoards; /* all exported segments */
    ds__guest *guests;
    ds__got *got;
    size_t events;
    _Atomic size_t in_limbo;
    int warned;
    int ending;
    uint64_t looked_ns;
} ds__share = { .mutex = DS__MUTEX_INIT };

/* The content of an IPC handle, which another process may have changed. All members except `inner`
   name the export slot; `inner` is compared with the size there. */
typedef struct ds__ipc_memory {
    uint8_t version;
    uint8_t type; /* of the device, for the error; the type in the segment's slot counts */
    uint8_t zero[2];
    int32_t pid;
    int32_t fd;
    uint32_t slot;
    uint32_t generation;
    uint32_t zero_too;
    uint64_t cookie;
    uint64_t inner;          /* offset of the pointer in the block */
    unsigned char rest[216]; /* zero */
} ds__ipc_memory;

enum { DS__PARCEL_VERSION = 2 };

/* alloc/ipc_lease.h - export slots and leases.

   Manages export slots (ds__export_slot) in the shared-memory registry (ds__registry) and leases of
   slots. A slot stands for one exported block or segment, a lease for one process that uses it.
   The exporter calls ds__export_slot_create, ds__export_slot_close, ds__export_slot_leased and
   ds__export_slot_end; importers call ds__lease_ref and ds__lease_unref.

   Invariants: The word of a slot is its generation and one bit for open. A slot is reused only
   after it was closed and had no lease, and then has a new generation. An importer enters its
   lease before it checks the word; the exporter closes the slot before it looks at leases. A
   lease of an ended process may be removed or replaced by any process.
   Locks: ds__export_slot_create and ds__export_slot_end expect the registries' mutex
   (ds__registries.mutex). The other functions use atomic operations only and may run under
   spinlocks, with two exceptions. ds__lease_ref, and ds__export_slot_leased with `look`, ask the
   kernel for file locks.
   Threads: any thread. Other processes change leases at the same time. ds__lease_unref also runs
   on driver threads. */

/* Takes an export slot of the process's registry, with its content for importers. The registries'
   mutex is held. */
static ds_result ds__export_slot_create(ds__registry *b, const ds__export_slot_facts *facts,
                                        uint32_t *out, uint32_t *out_generation) {
    uint32_t i = b->free_slot ? b->free_slot - 1 : atomic_load(&b->page->slots);
    if (i >= DS__EXPORT_SLOTS)
        return ds__fail(DS_ERR_LIMIT_EXCEEDED,
                        "the process has exported %d blocks and segments, the maximum",
                        DS__EXPORT_SLOTS);
    ds__export_slot *s = &b->page->slot[i];
    if (b->free_slot)
        b->free_slot = (uint32_t)s->next;
    else if (ds__os_memfd_reserve(b->fd, offsetof(ds__registry_page, slot) + i * sizeof *s,
                                  sizeof *s))
        atomic_fetch_add(&b->page->slots, 1);
    else
        return ds__registry_short();
    memcpy(&s->facts, facts, sizeof s->facts);
    uint64_t generation = (atomic_load(&s->word) >> 1) + 1;
    atomic_store(&s->word, generation << 1 | 1);
    *out = i;
    *out_generation = (uint32_t)generation;
    return DS_OK;
}

/* Gives an export slot without leases back. The registries' mutex is held. */
static void ds__export_slot_end(ds__registry *b, uint32_t i) {
    ds__export_slot *s = &b->page->slot[i];
    atomic_fetch_and(&s->word, ~(uint64_t)1);
    s->next = b->free_slot;
    b->free_slot = i + 1;
}

/* Closes an export slot: no process can take a lease from now on. */
static void ds__export_slot_close(uint32_t i) {
    atomic_fetch_and(&ds__registries.own->page->slot[i].word, ~(uint64_t)1);
}

/* Returns the number of the process that has a lease. A lease is number << 24 | process id, as in a
   lane of the registry. */
static uint64_t ds__lease_number(uint64_t lease) {
    return lease >> 24;
}

/* Returns whether a process has a lease of an own export slot. With `look`, first ends the leases
   of processes that have ended. */
static int ds__export_slot_leased(uint32_t i, int look) {
    ds__registry *b = ds__registries.own;
    ds__export_slot *s = &b->page->slot[i];
    int leased = 0;
    for (int k = 0; k < DS__LEASES; k++) {
        uint64_t who = atomic_load(&s->lease[k]);
        if (who && look && !ds__registry_alive(b, ds__lease_number(who)) &&
            atomic_compare_exchange_strong(&s->lease[k], &who, 0))
            continue;
        leased |= who != 0;
    }
    return leased;
}

/* Takes a lease of another process's export slot; if none is free, takes over the lease of an ended
   process. The content of the slot stays until ds__lease_unref. No slot has generation 0. */
static ds_result ds__lease_ref(ds__registry *b, uint32_t slot, uint32_t generation, uint32_t *out) {
    DS__REQUIRE(slot < DS__EXPORT_SLOTS && slot < atomic_load(&b->page->slots),
                "the handle names export slot %u, and process %d has %u", slot, b->pid,
                atomic_load(&b->page->slots));
    ds__export_slot *s = &b->page->slot[slot];
    for (uint32_t k = 0; k < 2 * DS__LEASES; k++) {
        _Atomic uint64_t *lease = &s->lease[k % DS__LEASES];
        uint64_t who = k < DS__LEASES ? 0 : atomic_load(lease);
        if (who && ds__registry_alive(b, ds__lease_number(who)))
            continue;
        if (!atomic_compare_exchange_strong(
                lease, &who, b->me << 24 | ((uint64_t)ds__os_process_id() & 0xffffff)))
            continue;
        if (atomic_load(&s->word) == ((uint64_t)generation << 1 | 1)) {
            *out = k % DS__LEASES;
            return DS_OK;
        }
        atomic_store(lease, 0);
        return ds__fail(DS_ERR_INVALID_HANDLE, "process %d has freed the block", b->pid);
    }
    return ds__fail(DS_ERR_LIMIT_EXCEEDED, "%d processes use the block, the maximum", DS__LEASES);
}

static void ds__lease_unref(const ds__registry *b, uint32_t slot, uint32_t lease) {
    atomic_store(&b->page->slot[slot].lease[lease], 0);
}

/* alloc/ipc_records.h - sharing between processes: records of segments, exports and imports.

   Looks up and ends the records of memory that processes share. ds__share_segment_alloc and
   ds__share_segment_free are the memory source of shareable pools; each segment has a record
   (ds__export_hold). ds__share_hold keeps a freed block back while other processes have leases of
   it. ds__got_collect ends imports after their streams have passed them.

   Invariants: A live exported block has one record (ds__ipc_export), in the bucket of its address.
   A free moves the record to `limbo`, without the block if the block has no leases. A segment given
   back stays while other processes have it open. An imported segment (ds__guest) stays open as long
   as it has a record of a block (ds__got).
   Locks: ds__share_segment_alloc and ds__share_segment_free take ds__share.mutex; their callers
   usually hold `grow` of an arena. ds__share_hold expects the arena's lock and takes
   ds__share.lock. ds__ipc_export_find expects ds__share.lock. The other functions expect
   ds__share.mutex and take the registries' mutex inside. Imported segments are closed under
   ds__share.mutex; own segments are freed without it (ds__export_holds_end).
   Threads: any caller's thread. */

static ds__ipc_export **ds__ipc_export_bucket(const char *ptr) {
    return &ds__share.bucket[(uintptr_t)ptr / DS__UNIT % DS__SENT_BUCKETS];
}

/* Returns the record of a live exported block, or NULL. With `take`, removes the record from its
   bucket. ds__share.lock is held. */
static ds__ipc_export *ds__ipc_export_find(const char *ptr, int take) {
    ds__ipc_export **p = ds__ipc_export_bucket(ptr);
    while (*p && (*p)->ptr != ptr)
        p = &(*p)->next;
    ds__ipc_export *s = *p;
    if (s && take)
        *p = s->next;
    return s;
}

/* Moves the record of a freed block to `limbo`. Returns 1 if other processes still have leases of
   the block. The arena is locked. */
static int ds__share_hold(ds__mem_block *b) {
    ds__spinlock_lock(&ds__share.lock);
    ds__ipc_export *s = ds__ipc_export_find(b->ptr, 1);
    int leased = 0;
    if (s) {
        ds__export_slot_close(s->slot);
        leased = ds__export_slot_leased(s->slot, 0);
        s->next = ds__share.limbo;
        ds__share.limbo = s;
        if (leased) {
            atomic_fetch_add(&ds__share.in_limbo, 1);
        } else {
            b->exported = 0;
            s->block = NULL;
        }
    }
    ds__spinlock_unlock(&ds__share.lock);
    return leased;
}

/* Gives the event and the export slot of a block without leases back. ds__share.mutex is held. */
static void ds__ipc_export_clear(ds__ipc_export *s) {
    if (s->event.id) {
        ds__use_event_destroy(s->event);
        ds__share.events--;
    }
    ds__registries_lock();
    ds__export_slot_end(ds__registries.own, s->slot);
    ds__registries_unlock();
}

/* Ends a record of a block without leases. ds__share.mutex is held. */
static void ds__ipc_export_end(ds__ipc_export *s) {
    ds__ipc_export_clear(s);
    ds__host_free(s);
}

/* Ends records of segments and frees the memory. If other processes have a segment open, it remains
   until the process ends. No mutex is held: a driver may wait for work when it frees memory. */
static void ds__export_holds_end(ds__export_hold *list) {
    ds__found f;
    while (list) {
        ds__export_hold *h = list;
        list = h->next;
        if (h->stays)
            (void)ds__range_remove(h->base, DS_MEMORY_DEVICE | DS__HELD_SHARED, &f);
        else
            ds__shared_segment_destroy(h->device, h->base, 0);
        if (h->generation && !h->stays) {
            ds__registries_lock();
            ds__export_slot_end(ds__registries.own, h->slot);
            ds__registries_unlock();
        }
        ds__host_free(h);
    }
}

/* Takes the segments that were given back and that no other process has open out of the list;
   during ds_shutdown, all that were given back. The caller ends them after it has released
   ds__share.mutex, which is held here. */
static ds__export_hold *ds__export_holds_take(void) {
    ds__export_hold *taken = NULL;
    for (ds__export_hold **p = &ds__share.hoards; *p;) {
        ds__export_hold *h = *p;
        int leased = h->over && h->generation && ds__export_slot_leased(h->slot, 1);
        /* memory of a CPU device can be freed: other processes keep their mapping */
        h->stays = leased && ds__share.ending && h->device.type == DS_DEVICE_CUDA;
        if (h->stays)
            ds__log_warn("%zu bytes at %p remain allocated until the process ends: other processes "
                         "have them open",
                         h->size, (void *)h->base);
        if (!h->over || (leased && !ds__share.ending)) {
            p = &h->next;
            continue;
        }
        *p = h->next;
        h->next = taken;
        taken = h;
    }
    return taken;
}

/* Allocates the memory of a shareable segment. */
static ds_result ds__share_segment_alloc(ds_device device, size_t size, void **out) {
    ds__export_hold *h = ds__host_alloc(sizeof *h);
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a segment");
    ds_result r = ds__shared_segment_create(device, NULL, size, out);
    if (r < 0) {
        ds__host_free(h);
        return r;
    }
    h->device = device;
    h->base = *out;
    h->size = size;
    ds__mutex_lock(&ds__share.mutex);
    ds__share.ending = 0;
    h->next = ds__share.hoards;
    ds__share.hoards = h;
    ds__mutex_unlock(&ds__share.mutex);
    return DS_OK;
}

/* Gives a shareable segment back after the work of the device. The memory stays while other
   processes have it open. */
static ds_result ds__share_segment_free(ds_device device, void *ptr, size_t size) {
    (void)size;
    ds__tls.relaxed++;
    ds_result r = ds__observer_notify_wait(ds__driver_of(device)->memory_wait(device.index),
                                           (ds_stream){ 0 }, (ds_event){ 0 }, device);
    ds__tls.relaxed--;
    ds__mutex_lock(&ds__share.mutex);
    if (r < 0 && !ds__share.ending) { /* ds_shutdown has waited for all work */
        ds__mutex_unlock(&ds__share.mutex);
        return r;
    }
    for (ds__export_hold *h = ds__share.hoards; h; h = h->next)
        if (h->base == ptr) {
            h->over = 1;
            if (h->generation)
                ds__export_slot_close(h->slot);
        }
    ds__export_hold *ended = ds__export_holds_take();
    ds__mutex_unlock(&ds__share.mutex);
    ds__export_holds_end(ended);
    return DS_OK;
}

/* Returns the open import that contains an address, or NULL. ds__share.mutex is held. */
static ds__got *ds__got_of(const void *ptr) {
    ds__got *g = ds__share.got;
    while (g && !(g->open && (uintptr_t)ptr - (uintptr_t)g->ptr < g->size))
        g = g->next;
    return g;
}

/* Closes a segment without imports. ds__share.mutex is held. */
static void ds__guest_end(ds__guest *q) {
    ds__guest **p = &ds__share.guests;
    while (*p != q)
        p = &(*p)->next;
    *p = q->next;
    ds__shared_segment_destroy(q->device, q->base, 1);
    ds__lease_unref(q->registry, q->slot, q->lease);
    ds__registries_lock();
    ds__registry_close(q->registry);
    ds__registries_unlock();
    ds__host_free(q);
}

/* Ends imports whose callbacks have run, or with `all` every import, at ds_shutdown.
   ds__share.mutex is held. */
static void ds__got_collect(int all) {
    for (ds__got **p = &ds__share.got; *p;) {
        ds__got *g = *p;
        if (!atomic_load(&g->gone) && !all) {
            p = &g->next;
            continue;
        }
        if (!atomic_load(&g->gone))
            ds__lease_unref(g->guest->registry, g->slot, g->lease);
        *p = g->next;
        if (--g->guest->blocks == 0)
            ds__guest_end(g->guest);
        ds__host_free(g);
    }
}

/* alloc/ipc_collect.h - collecting exports that are no longer used.

   Gives exported blocks back to their arenas when no other process has a lease of them, and ends
   imports and segments (ds__share_collect_now, ds_mem_ipc_collect). ds__share_shutdown ends all
   records.

   Invariants: A record in `limbo` leaves the list only without leases; then its slot and event
   are released and its block, if the record has one, becomes free or pending. With
   DS__COLLECT_BY_THE_WAY, a limbo of 32 blocks or more is examined no more than once per
   millisecond. More than 1,000 blocks in `limbo` cause one warning.
   Locks: ds__share_collect_now tries to take ds__share.mutex; only ds_mem_ipc_collect waits for
   the mutex. Inside, the registries' mutex and ds__share.lock are taken for short steps. Blocks
   are returned (ds__mem_return) after the mutex is released, because a thread may wait for the
   mutex while it holds locks of the allocator.
   Threads: any caller's thread; ds__share_shutdown runs on the thread of ds_shutdown. */

/* Ends records of blocks without leases. Returns the records of blocks in limbo that have no lease
   any more; the caller must return these blocks, and end the segments in *out_ended.
   ds__share.mutex is held. */
static ds__ipc_export *ds__share_sort(ds__export_hold **out_ended) {
    ds__ipc_export *ready = NULL;
    ds__got_collect(0);
    ds__spinlock_lock(&ds__share.lock);
    ds__ipc_export *limbo = ds__share.limbo;
    ds__share.limbo = NULL;
    ds__spinlock_unlock(&ds__share.lock);
    while (limbo) {
        ds__ipc_export *s = limbo;
        limbo = s->next;
        if (!s->block && !s->exports) {
            ds__ipc_export_end(s);
            continue;
        }
        if (!s->exports && !ds__export_slot_leased(s->slot, 1)) {
            ds__ipc_export_clear(s);
            atomic_fetch_sub(&ds__share.in_limbo, 1);
            s->next = ready;
            ready = s;
            continue;
        }
        ds__spinlock_lock(&ds__share.lock);
        s->next = ds__share.limbo;
        ds__share.limbo = s;
        ds__spinlock_unlock(&ds__share.lock);
    }
    *out_ended = ds__export_holds_take();
    ds__share.looked_ns = ds__now_ns();
    return ready;
}

/* The effort of a collection: none if another thread has the mutex, or if many blocks in limbo were
   examined less than a millisecond ago; none if another thread has the mutex; full. */
enum { DS__COLLECT_BY_THE_WAY, DS__COLLECT_IF_FREE, DS__COLLECT_ALL };

/* Collects exports that are no longer used. Returns the number of blocks that have come back. Only
   DS__COLLECT_ALL waits for ds__share.mutex. */
static size_t ds__share_collect_now(int how) {
    size_t count = 0;
    if (how == DS__COLLECT_ALL)
        ds__mutex_lock(&ds__share.mutex);
    else if (!ds__mutex_trylock(&ds__share.mutex))
        return 0;
    size_t many = atomic_load(&ds__share.in_limbo);
    int now =
        how != DS__COLLECT_BY_THE_WAY || many < 32 || ds__now_ns() - ds__share.looked_ns > 1000000;
    ds__export_hold *ended = NULL;
    ds__ipc_export *ready = now ? ds__share_sort(&ended) : NULL;
    int warn = many > DS__LIMBO_MANY && !ds__share.warned;
    if (warn)
        ds__share.warned = 1;
    ds__mutex_unlock(&ds__share.mutex);
    ds__export_holds_end(ended);
    if (warn)
        ds__log_warn("%zu freed blocks are kept because other processes have not closed them",
                     many);
    /* without the mutex, because a thread may wait for it with locks of the allocator held */
    while (ready) {
        ds__ipc_export *s = ready;
        ready = s->next;
        ds__mem_return(s->block);
        ds__host_free(s);
        count++;
    }
    return count;
}

static void ds__share_collect_by_the_way(void) {
    (void)ds__share_collect_now(DS__COLLECT_BY_THE_WAY);
}

static size_t ds__share_collect(void) {
    return ds__share_collect_now(DS__COLLECT_IF_FREE);
}

DSDEF ds_result(ds_mem_ipc_collect)(void) {
    DS__MEM_ENTER("ds_mem_ipc_collect");
    (void)ds__share_collect_now(DS__COLLECT_ALL);
    return DS_OK;
}

/* Ends all records of a list. ds__share.mutex is held. */
static void ds__ipc_exports_deinit(ds__ipc_export **list) {
    while (*list) {
        ds__ipc_export *s = *list;
        *list = s->next;
        ds__ipc_export_end(s);
    }
}

/* Ends all records at ds_shutdown, after all work and before the segments are freed. */
static void ds__share_shutdown(void) {
    ds__mutex_lock(&ds__share.mutex);
    ds__share.ending = 1;
    ds__got_collect(1);
    for (size_t i = 0; i < DS__SENT_BUCKETS; i++)
        ds__ipc_exports_deinit(&ds__share.bucket[i]);
    ds__ipc_exports_deinit(&ds__share.limbo);
    atomic_store(&ds__share.in_limbo, 0);
    ds__share.warned = 0;
    ds__mutex_unlock(&ds__share.mutex);
}

/* alloc/segment.h - descriptions of segments, and limits.

   Makes and removes the description of a segment (ds__segment_create, ds__segment_destroy), and its
   first and last block (ds__segment_first_create, ds__segment_retire). ds__segment_reserve and
   ds__segment_unreserve keep the reserved bytes within the limits of the device and the pool.
   Growing segments, plain segments and blocks without a cache use these functions. ds__async_has
   and ds__async_surplus return the bytes of the driver's own pool.

   Invariants: ds__memory_state.sorted has every segment in the order of base addresses. Reserved
   bytes may exceed the bytes of the segments only while dev->moving counts a call between
   ds__move_begin and ds__move_end. A dropped description is used again as a description of a
   segment only.
   Locks: ds__segment_create takes the registry's lock. ds__segment_destroy takes the arena's lock,
   releases it, and then takes the registry's. The functions that enter, remove or count a
   segment expect the arena's lock. ds__segment_reserve may ask the driver for the size of its pool,
   so it expects no spinning lock.
   Threads: any. A late look-up may still have a dropped description, so ds__find_live checks
   `arena` under the arena's lock. */

/* Returns the bytes that the driver's own pool has of the device; *out_cached: those that it can
   give out again. No spinning lock is held. */
static size_t ds__async_has(ds__mem_dev *dev, size_t *out_cached) {
    size_t reserved = 0;
    size_t used = 0;
    if (atomic_load(&dev->async)) {
        ds__tls.mute++;
        if (ds__driver_of(dev->device)->async_info(dev->device.index, &reserved, &used) < 0)
            reserved = 0;
        ds__tls.mute--;
    }
    if (out_cached)
        *out_cached = reserved > used ? reserved - used : 0;
    return reserved;
}

/* Returns the bytes of the driver's own pool that no block has: cached ones, and those of frees
   that are enqueued. */
static size_t ds__async_surplus(ds__mem_dev *dev) {
    size_t has = ds__async_has(dev, NULL);
    size_t blocks = atomic_load(&dev->async_bytes);
    return has > blocks ? has - blocks : 0;
}

/* Adds `size` and returns 1, unless the sum would exceed the limit. Limit 0: none. */
static int ds__segment_add_within(_Atomic size_t *sum, size_t size, size_t limit) {
    size_t was = atomic_load(sum);
    do {
        if (limit && (was > limit || size > limit - was))
            return 0;
    } while (!atomic_compare_exchange_weak(sum, &was, was + size));
    return 1;
}

/* Until ds__move_end, the reserved bytes may exceed the bytes of the segments. */
static void ds__move_begin(ds__mem_dev *dev) {
    atomic_fetch_add(&dev->moving, ((uint64_t)1 << 32) + 1);
}

static void ds__move_end(ds__mem_dev *dev) {
    atomic_fetch_sub(&dev->moving, 1);
}

/* Reserves bytes that the allocator may take from the driver, until a segment has them
   (ds__count_reserved) or ds__segment_unreserve. The limit of the device also covers `surplus`, the
   memory of the driver's pool that no block has. */
static ds_result ds__reserve_with(ds__arena *a, size_t size, size_t surplus) {
    size_t limit = atomic_load(&a->dev->limit);
    if (limit && surplus >= limit)
        return DS_ERR_LIMIT_EXCEEDED;
    ds__move_begin(a->dev);
    int in_pool = ds__segment_add_within(&a->pool->reserved, size, a->pool->limit);
    if (in_pool && ds__segment_add_within(&a->dev->reserved, size, limit - surplus))
        return DS_OK;
    if (in_pool)
        atomic_fetch_sub(&a->pool->reserved, size);
    ds__move_end(a->dev);
    return DS_ERR_LIMIT_EXCEEDED;
}

/* Reserves bytes within the limits of the pool and the device. No spinning lock is held. */
static ds_result ds__segment_reserve(ds__arena *a, size_t size) {
    return ds__reserve_with(a, size, atomic_load(&a->dev->limit) ? ds__async_surplus(a->dev) : 0);
}

/* Gives reserved bytes back that no segment has. */
static void ds__segment_unreserve(ds__arena *a, size_t size) {
    atomic_fetch_sub(&a->pool->reserved, size);
    atomic_fetch_sub(&a->dev->reserved, size);
    ds__move_end(a->dev);
}

/* Counts reserved bytes that a segment has now. If `by` is negative, a segment has lost the bytes,
   and ds__segment_unreserve must follow. The arena is locked. */
static void ds__count_reserved(ds__arena *a, int kind, int64_t by) {
    ds__counter_meters_add(a, kind, DS__RESERVED, by);
    if (by > 0)
        ds__move_end(a->dev);
    else
        ds__move_begin(a->dev);
}

/* Enters a segment in the table of all segments, which has room. The registry is locked. */
static void ds__segment_sorted_in(ds__segment *s) {
    size_t i = ds__sorted_after((uintptr_t)s->base);
    memmove(&ds__memory_state.sorted[i + 1], &ds__memory_state.sorted[i],
            (ds__memory_state.sorted_count - i) * sizeof *ds__memory_state.sorted);
    ds__memory_state.sorted[i] = s;
    ds__memory_state.sorted_count++;
}

/* Removes a segment from the table of all segments. The registry is locked. */
static void ds__segment_sorted_out(const ds__segment *s) {
    size_t i = ds__sorted_after((uintptr_t)s->base) - 1;
    /* a newer segment may have the same address already */
    while (ds__memory_state.sorted[i] != s)
        i--;
    memmove(&ds__memory_state.sorted[i], &ds__memory_state.sorted[i + 1],
            (ds__memory_state.sorted_count - i - 1) * sizeof *ds__memory_state.sorted);
    ds__memory_state.sorted_count--;
}

/* Takes an unused description of a segment, or makes one. Returns NULL without host memory. The
   registry is locked. */
static ds__segment *ds__segment_description_create(void) {
    ds__segment *s = ds__memory_state.free_segments;
    if (!s)
        return ds__kept_alloc_unlocked(sizeof *s);
    ds__memory_state.free_segments = s->next;
    return s;
}

static void ds__segment_description_destroy(ds__segment *s) {
    s->next = ds__memory_state.free_segments;
    ds__memory_state.free_segments = s;
}

/* Gives a segment its granule table, and enters plain segments in the table of addresses. Returns 0
   without host memory. The registry is locked. */
static int ds__segment_tables_set(ds__segment *s) {
    size_t granules = (s->size + ((size_t)1 << s->shift) - 1) >> s->shift;
    s->granule = ds__host_alloc(granules * sizeof *s->granule);
    if (!s->granule)
        return 0;
    if (s->page || ds__address_granules_set(s, s->base, s->size, 1))
        return 1;
    ds__address_granules_set(s, s->base, s->size, 0);
    ds__host_free(s->granule);
    s->granule = NULL;
    return 0;
}

/* Makes a description of a segment, which is in no list of the arena and has no blocks. `page`: 0
   for plain segments. Returns NULL without host memory, and the error is set. */
static ds__segment *ds__segment_create(ds__arena *a, int kind, int source, char *base, size_t size,
                                       size_t page) {
    int dense = kind == DS__SMALL || ds__pool_policy(a->pool)->single_pool;
    ds__mutex_lock(&ds__memory_state.registry);
    ds__segment *s = NULL;
    if (ds__array_reserve(&ds__memory_state.sorted, sizeof *ds__memory_state.sorted,
                          ds__memory_state.sorted_count, 1, &ds__memory_state.sorted_room))
        s = ds__segment_description_create();
    if (s) {
        s->base = base;
        s->size = size;
        s->mapped = page ? 0 : size;
        s->page = page;
        s->sub_tables = NULL;
        s->shift = dense ? DS__DENSE_SHIFT : 20;
        s->kind = (uint8_t)kind;
        s->source = (uint8_t)source;
        s->native = 0;
        s->direct = s->leaving = 0;
        s->first = NULL;
        if (ds__segment_tables_set(s)) {
            s->serial = ++ds__memory_state.serial;
            ds__segment_sorted_in(s);
            atomic_store_explicit(&s->arena, a, memory_order_release);
        } else {
            ds__segment_description_destroy(s);
            s = NULL;
        }
    }
    ds__mutex_unlock(&ds__memory_state.registry);
    if (!s)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
    return s;
}

/* Ends a segment that is in no list of its arena: no address leads to it any more. Its description
   is used again for other segments. Takes the arena's lock and the registry's. */
static void ds__segment_destroy(ds__segment *s) {
    ds__arena *a = atomic_load(&s->arena);
    ds__mem_block **granule = s->granule;
    ds__arena_lock(a);
    /* a late look-up reads the table with this lock held */
    for (ds__sub_table *table = s->sub_tables; table; table = s->sub_tables) {
        s->sub_tables = table->next;
        table->next = a->spare_sub_tables;
        a->spare_sub_tables = table;
    }
    atomic_store_explicit(&s->arena, NULL, memory_order_release);
    s->granule = NULL;
    ds__arena_unlock(a);

    ds__mutex_lock(&ds__memory_state.registry);
    ds__segment_sorted_out(s);
    if (!s->page)
        ds__address_granules_set(s, s->base, s->size, 0);
    ds__segment_description_destroy(s);
    ds__mutex_unlock(&ds__memory_state.registry);
    ds__host_free(granule);
}

/* Links a segment into the arena's list. The arena is locked. */
static void ds__segment_in(ds__arena *a, ds__segment *s) {
    s->prev = NULL;
    s->next = a->segments;
    if (s->next)
        s->next->prev = s;
    a->segments = s;
}

/* Unlinks a segment from the arena's list. The arena is locked. */
static void ds__segment_out(ds__arena *a, ds__segment *s) {
    if (s->prev)
        s->prev->next = s->next;
    else
        a->segments = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

/* Counts a new segment (1) or the end of one (-1). The arena is locked. */
static void ds__count_segment(ds__arena *a, ds__segment *s, int sign) {
    ds__counter_meters_add(a, s->kind, DS__SEGMENT, sign);
    if (sign > 0)
        s->oversize = s->size >= ds__pool_policy(a->pool)->max_split_size;
    if (!s->oversize)
        return;
    ds__meter_add(&a->dev->stats.oversize_segments, sign);
    if (a->pool != &a->dev->main)
        ds__meter_add(&a->pool->stats.oversize_segments, sign);
}

/* Makes a block of the whole address space of a new segment, and links the segment into the arena's
   list. Returns NULL without host memory, and nothing has changed. The arena is locked. */
static ds__mem_block *ds__segment_first_create(ds__arena *a, ds__segment *s) {
    ds__mem_block *b = ds__mem_block_create(a);
    if (!b)
        return NULL;
    memset(b, 0, sizeof *b);
    b->ptr = s->base;
    b->size = s->size;
    b->seg = s;
    s->first = b;
    ds__segment_in(a, s);
    return b;
}

/* Takes a segment whose memory is the driver's again, and its only block, out of the arena.
   ds__segment_destroy and ds__segment_unreserve must follow without the lock. The arena is
   locked. */
static void ds__segment_retire(ds__arena *a, ds__segment *s) {
    ds__segment_out(a, s);
    ds__mem_block_destroy(a, s->first);
    s->first = NULL;
    ds__count_reserved(a, s->kind, -(int64_t)s->size);
    ds__count_segment(a, s, -1);
    DS__COUNT_CALL(a, driver_frees, 1);
    ds__note_segment(a, DS_ACTION_SEGMENT_FREE, s->base, s->size);
}

/* alloc/stats_sum.h - sums of statistics.

   Adds up the counts of a device or a pool (ds__stats_sum) for the public functions of statistics,
   for pinned memory, and before the driver's own pool shrinks.

   Invariants: The block counts in one result belong to one moment. Peaks of reserved bytes
   include the driver's own pool as it was at each call (`async_peak`).
   Locks: ds__stats_sum stops the device (ds__mem_lock_all) and asks the driver before that.
   Threads: any caller's thread; allocations and frees on the device wait meanwhile. */

static ds_mem_stat ds__stat_of_meter(const ds__meter *m) {
    return (ds_mem_stat){ atomic_load(&m->now), atomic_load(&m->peak), atomic_load(&m->total),
                          atomic_load(&m->freed) };
}

/* Sums up the statistics of a device, or of a pool (`only`). No lock is held. */
static void ds__stats_sum(ds__mem_dev *dev, ds__mem_pool *only, ds_mem_stats *out) {
    int64_t now[2][DS__METRICS];
    int64_t total[2][DS__METRICS];
    int64_t kept = only ? 0 : (int64_t)ds__async_has(dev, NULL);
    ds__domain *d = only ? &only->stats : &dev->stats;
    memset(out, 0, sizeof *out);
    ds__mem_lock_all(dev);
    ds__domain_now(dev, only, now, total);
    ds_mem_stat *stat[DS__METRICS] = { out->allocation, out->allocated_bytes, out->requested_bytes,
                                       out->active, out->active_bytes };
    for (int m = 0; m < DS__METRICS; m++) {
        for (int k = 0; k < 2; k++) {
            ds_mem_stat *s = &stat[m][1 + k];
            s->current = now[k][m];
            s->peak = ds__tally_peak(&d->tally, 1 + k, m);
            s->allocated = total[k][m];
            s->freed =
                dev->main.full ? total[k][m] - now[k][m] + d->freed_base[k][m] : d->frozen[k][m];
            stat[m][0].current += s->current;
            stat[m][0].allocated += s->allocated;
            stat[m][0].freed += s->freed;
        }
        stat[m][0].peak = ds__tally_peak(&d->tally, 0, m);
    }
    ds_mem_stat *meter[DS__METERS] = { out->segment, out->reserved_bytes, out->inactive_split,
                                       out->inactive_split_bytes };
    for (int m = 0; m < DS__METERS; m++) {
        meter[m][0] = ds__stat_of_meter(&d->all[m]);
        for (int k = 0; k < 2; k++)
            meter[m][1 + k] = ds__stat_of_meter(&d->meter[k][m]);
    }
    kept -= (int64_t)atomic_load(&dev->async_bytes);
    /* the driver's own pool has no kinds; its cached memory counts as large */
    for (int k = 0; k < 2 && !only && atomic_load(&dev->async); k++) {
        ds_mem_stat *s = &out->reserved_bytes[k ? DS_STAT_LARGE : DS_STAT_ALL];
        if (kept > 0)
            s->current += kept;
        ds__counter_peak_raise(&dev->async_peak[k], s->current);
        ds__counter_peak_raise(&s->peak, dev->async_peak[k]);
    }
    out->oversize_allocations = ds__stat_of_meter(&d->oversize_allocations);
    out->oversize_segments = ds__stat_of_meter(&d->oversize_segments);
    out->num_alloc_retries = atomic_load(&d->retries);
    out->num_ooms = atomic_load(&d->ooms);
    out->num_sync_all_streams = atomic_load(&d->syncs);
    out->num_device_alloc = atomic_load(&d->driver_allocs);
    out->num_device_free = atomic_load(&d->driver_frees);
    out->num_oom_rejections = atomic_load(&d->rejections);
    size_t split = only ? only->config.max_split_size : dev->main.config.max_split_size;
    out->max_split_size = split == SIZE_MAX ? -1 : (int64_t)split;
    out->peak_bound = 2 * d->sharers * DS__ROOM_BYTES;
    out->peak_bound_count = 2 * d->sharers * DS__ROOM_COUNT;
    ds__mem_unlock_all(dev);
}

/* alloc/resource.h - resources: records, numbers, calls of upstreams.

   Defines the record of a resource (ds__res) and the table of all records (ds__rs).
   ds__res_ref returns the record of a number and keeps it alive until ds__res_unref.
   ds__up_alloc and ds__up_free call an upstream: a resource made by devstream, or the program's
   own functions. ds__outside_begin and ds__outside_end surround user code.

   Policy:
   1. Every resource made by devstream has a number, and its `user` member is that number. A
      copy of a destroyed resource is therefore recognised.
   2. Each resource counts the allocations that were not freed, and the adaptors upon it. It
      cannot be destroyed before both counts are 0.
   3. Upstreams are called without the locks of resources. Allocations refused by them are not
      counted.

   Invariants: No number is used twice, also after ds_shutdown. Until ds_shutdown a record
   exists as long as its `live` or its `standing` is above 0. `live` counts allocations and the
   calls inside.
   Locks: ds__rs.lock guards the table and every record's `live` and `standing`. A record's own
   lock guards `used` and the members behind it. The two are never held together, and no
   upstream is called under them.
   Threads: any number of threads at once. The program's own functions run on the caller's
   thread and may call devstream, and CUDA, also while a stream captures. */

enum {
    DS__RES_DEVICE,
    DS__RES_POOL,
    DS__RES_DRIVER,
    DS__RES_LIMIT,
    DS__RES_STATISTICS,
    DS__RES_LOG,
    DS__RES_FAILURE,
    DS__RES_ALIGNED
};

#define DS__RES_PUSHES 16

/* A block that was enlarged for its alignment. */
typedef struct ds__moved {
    struct ds__moved *next;
    void *ptr;   /* the aligned address */
    void *whole; /* the upstream's block */
    size_t size; /* of the upstream's block */
} ds__moved;

/* The record of a resource. */
typedef struct ds__res {
    uint64_t id;
    int kind;
    ds_site made;
    ds_resource up;
    /* allocations and calls in progress; guarded by ds__rs.lock */
    int64_t live;
    int standing; /* adaptors upon this resource; guarded by ds__rs.lock */
    ds_device device;
    ds_pool pool;
    size_t limit;
    size_t alignment;
    size_t threshold;
    ds_resource_failure_fn failure_fn;
    void *user;     /* of `failure_fn` */
    ds__mutex lock; /* guards the members below */
    size_t used;
    ds__text_writer log;
    unsigned depth;
    ds_resource_stats stats[DS__RES_PUSHES + 1];
    ds__moved *moved[64]; /* lists by a hash of the aligned address */
} ds__res;

static struct {
    ds__mutex lock;
    ds__res **at; /* NULL: a free entry */
    uint32_t count;
    size_t room;
    uint32_t serial; /* number of the last record; never reset, so that numbers are unique */
} ds__rs = { .lock = DS__MUTEX_INIT };

/* The functions of every resource made by devstream. resource_kinds.h defines the values, because
   it uses the pools: a resource may allocate from a pool, and the upstream of a pool is a
   resource. */
static const ds_resource ds__res_made;

/* Returns the record of a number, which stays until ds__res_unref; *out_live: its `live` before. If
   there is none, returns NULL and sets the error. */
static ds__res *ds__res_ref(const void *user, int64_t *out_live) {
    uint64_t id = (uint64_t)(uintptr_t)user;
    uint32_t i = (uint32_t)id;
    ds__mutex_lock(&ds__rs.lock);
    ds__res *r = i && i <= ds__rs.count ? ds__rs.at[i - 1] : NULL;
    if (r && r->id != id)
        r = NULL;
    if (r && out_live)
        *out_live = r->live;
    if (r)
        r->live++;
    ds__mutex_unlock(&ds__rs.lock);
    if (!r)
        ds__fail(DS_ERR_INVALID_HANDLE, "the resource was destroyed");
    return r;
}

/* Ends ds__res_ref: lowers `live` by 1, or by 2 after a free. */
static void ds__res_unref(ds__res *r, int64_t by) {
    ds__mutex_lock(&ds__rs.lock);
    r->live -= by;
    ds__mutex_unlock(&ds__rs.lock);
}

/* Checks a resource that the program passed as the argument `what`. */
static ds_result ds__res_good(const ds_resource *resource, const char *what) {
    DS__REQUIRE(resource, "%s is NULL", what);
    DS__REQUIRE(resource->alloc_fn && resource->free_fn, "%s has no functions: was it destroyed?",
                what);
    return DS_OK;
}

/* Returns the result of a function of the program. Sets an error if the function has set none for
   its result, or if the result is not an error code. */
static ds_result ds__res_said(ds_result r, const char *what) {
    if (r > 0)
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the resource's %s returned %d, which is not an error code", what, (int)r);
    if (r == DS_OK || ds__tls.code == r)
        return r;
    return ds__fail(r, "the resource's %s returned %s", what, (ds_result_get_name)(r));
}

/* Sets the thread's capture mode and returns the former one. If a driver refuses, the mode stays,
   and the error is not reported: the program called another function. */
static ds_capture_mode ds__mode_exchange(ds_capture_mode mode) {
    ds_result code = ds__tls.code;
    ds__tls.mute++;
    if ((ds_capture_exchange_mode)(&mode) < 0)
        mode = ds__tls.mode;
    ds__tls.mute--;
    ds__tls.code = code;
    return mode;
}

/* Prepares the thread for a function of the program. Calls in the function report their own errors,
   and are not affected by open captures. */
static ds__outside ds__outside_begin(void) {
    ds__outside o = { ds__tls.fn, ds__tls.site, ds__tls.mode, ds__tls.mute };
    o.mode = ds__mode_exchange(DS_CAPTURE_RELAXED);
    ds__tls.code = DS_OK;
    ds__tls.mute = 0;
    return o;
}

/* Ends ds__outside_begin. */
static void ds__outside_end(ds__outside o) {
    (void)ds__mode_exchange(o.mode);
    ds__tls.mute = o.mute;
    if (o.mute && ds__tls.code < 0)
        memcpy(ds__tls.aside, ds__tls.error, sizeof ds__tls.aside);
    ds__tls.fn = o.fn;
    ds__tls.site = o.site;
}

/* Allocates from an upstream. On failure *out is NULL and the error is set. No lock is held. */
static ds_result ds__up_alloc(const ds_resource *up, size_t size, size_t alignment,
                              ds_stream stream, void **out) {
    *out = NULL;
    if (up->alloc_fn == ds__res_made.alloc_fn)
        return up->alloc_fn(up->user, size, alignment, stream, out);
    ds__outside o = ds__outside_begin();
    ds_result r = up->alloc_fn(up->user, size, alignment, stream, out);
    ds__outside_end(o);
    r = ds__res_said(r, "alloc_fn");
    if (r == DS_OK && !*out)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "the resource's alloc_fn returned NULL");
    if (r < 0)
        *out = NULL;
    return r;
}

/* Frees memory of an upstream. No lock is held. */
static ds_result ds__up_free(const ds_resource *up, void *ptr, size_t size, ds_stream stream) {
    if (up->free_fn == ds__res_made.free_fn)
        return up->free_fn(up->user, ptr, size, stream);
    ds__outside o = ds__outside_begin();
    ds_result r = up->free_fn(up->user, ptr, size, stream);
    ds__outside_end(o);
    return ds__res_said(r, "free_fn");
}

/* alloc/upstream.h - sources of the memory of plain segments.

   ds__source_alloc takes memory for a plain segment from its pool's source: the driver, the
   user's upstream, shareable memory or pinned memory. ds__source_free returns it there.
   An upstream is user code and may call devstream and CUDA, also while a stream captures.

   Invariants: While an upstream runs, its pool is in the thread's list ds__memory_thread.inside,
   and neither grows nor returns memory from there (ds__is_inside). Memory from an upstream is
   aligned to DS__UNIT and entered in the table of known memory. If ds_device_alloc or the driver's
   allocator has entered it already, it stays theirs. Other memory known there is refused.
   Locks: no spinning lock may be held. ds__source_alloc is called with the arena's `grow` held,
   ds__source_free often with `giving` and `grow`. The driver and user code run with these
   mutexes held.
   Threads: caller's threads. An upstream runs on the thread whose allocation or trim needs it,
   and on that of ds_shutdown. */

/* An upstream that the thread is inside of. */
typedef struct ds__inside {
    const ds__mem_pool *pool; /* the pool whose upstream runs */
    const struct ds__inside *outer;
} ds__inside;

/* Returns whether the thread is inside of the pool's upstream. */
static int ds__is_inside(const ds__mem_pool *p) {
    const ds__inside *i = ds__memory_thread.inside;
    while (i && i->pool != p)
        i = i->outer;
    return i != NULL;
}

static ds_result ds__inside_fail(void) {
    return ds__fail(DS_ERR_NOT_PERMITTED, "the upstream of a pool cannot use the pool itself");
}

/* Returns memory to the pool's upstream. All work on the memory is done. No spinning lock is
   held. */
static void ds__upstream_free(ds__arena *a, void *ptr, size_t size) {
    ds__inside inside = { a->pool, ds__memory_thread.inside };
    ds__memory_thread.inside = &inside;
    if (a->pool->upstream.free_fn) { /* without a stream, because the work is done */
        if (ds__up_free(&a->pool->upstream, ptr, size, (ds_stream){ 0 }) < 0)
            ds__log_warn("%zu bytes at %p could not be freed: %s", size, ptr, ds__tls.error);
    } else {
        ds__outside o = ds__outside_begin();
        a->pool->free_fn(ptr, (ptrdiff_t)size, a->dev->device.index, ds__native_of(a));
        ds__outside_end(o);
    }
    ds__memory_thread.inside = inside.outer;
}

/* Calls the pool's upstream. *out is NULL if the upstream gave no memory; then the result tells
   why. */
static ds_result ds__upstream_call(ds__arena *a, size_t size, void **out) {
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    *out = NULL;
    ds__inside inside = { a->pool, ds__memory_thread.inside };
    ds__memory_thread.inside = &inside;
    if (a->pool->upstream.alloc_fn) {
        r = ds__up_alloc(&a->pool->upstream, size, 0, ds__arena_stream(a), out);
    } else {
        ds__outside o = ds__outside_begin();
        *out = a->pool->alloc_fn((ptrdiff_t)size, a->dev->device.index, ds__native_of(a));
        ds__outside_end(o);
    }
    ds__memory_thread.inside = inside.outer;
    ds__memory_thread.upstream_empty = !*out;
    return r;
}

/* Returns whether known memory is device memory of ds_device_alloc or of the driver's allocator,
   with at least `size` bytes. Its entry in the table stays as it is. */
static int ds__upstream_may_use(const ds__arena *a, const ds__found *f, const void *ptr,
                                size_t size) {
    return (!f->held || f->held == DS__HELD_ASYNC) && f->kind == DS_MEMORY_DEVICE &&
           f->backend == ds__backend_of(a->dev->device) && f->device == a->dev->device.index &&
           f->end - (uintptr_t)ptr >= size;
}

/* Takes memory from the pool's upstream and enters it in the table of known memory. Refuses memory
   that is not aligned or overlaps other memory. No spinning lock is held. */
static ds_result ds__upstream_alloc(ds__arena *a, size_t size, void **out) {
    int backend = ds__backend_of(a->dev->device);
    ds__found f;
    ds_result r = ds__upstream_call(a, size, out);
    if (!*out)
        return r;
    if ((uintptr_t)*out % DS__UNIT != 0) {
        ds__upstream_free(a, *out, size);
        return ds__fail(DS_ERR_INVALID_VALUE,
                        "the pool's upstream returned %p, which is not aligned to %zu", *out,
                        DS__UNIT);
    }

    r = ds__range_add(*out, size, DS_MEMORY_DEVICE | DS__HELD_UPSTREAM, backend,
                      a->dev->device.index);
    if (r == DS_OK)
        return r;
    int known = r == DS_ERR_INVALID_VALUE && ds__range_find(*out, &f);
    if (known && ds__upstream_may_use(a, &f, *out, size))
        return DS_OK;
    ds__upstream_free(a, *out, size);
    if (known)
        return ds__fail(r, "the pool's upstream returned %p, which overlaps other memory", *out);
    return ds__fail(r, "no memory to keep track of a segment");
}

/* Takes memory for a plain segment from the pool's source; *out_source: DS__FROM_*. No spinning
   lock is held. */
static ds_result ds__source_alloc(ds__arena *a, size_t size, int *out_source, void **out) {
    ds__mem_pool *p = a->pool;
    *out = NULL;
    if (a->dev->device.type == DS_DEVICE_HOST)
        return ds__pinned_source_alloc(size, out_source, out);
    if (p->has_upstream) {
        *out_source = DS__FROM_UPSTREAM;
        return ds__upstream_alloc(a, size, out);
    }
    *out_source = p->shareable ? DS__FROM_SHARE : DS__FROM_DRIVER;
    return p->shareable ? ds__share_segment_alloc(a->dev->device, size, out)
                        : ds__segment_alloc(a->dev->device, size, out);
}

/* Returns the memory of a plain segment to its source. No spinning lock is held. */
static ds_result ds__source_free(ds__arena *a, const ds__segment *s) {
    ds__found f;
    switch (s->source) {
    case DS__FROM_UPSTREAM:
        (void)ds__range_remove(s->base, DS_MEMORY_DEVICE | DS__HELD_UPSTREAM, &f);
        ds__upstream_free(a, s->base, s->size);
        return DS_OK;
    case DS__FROM_SHARE:
        return ds__share_segment_free(a->dev->device, s->base, s->size);
    case DS__FROM_PINNED:
    case DS__FROM_REGISTERED:
        return ds__pinned_source_free(s);
    default:
        return ds__segment_end(s->base, DS_MEMORY_DEVICE, 1);
    }
}

/* alloc/segment_plain.h - plain segments: allocated and returned whole.

   ds__grow_plain takes a new plain segment from the pool's source (ds__source_alloc) for a
   request. With segment_growth it may be larger than the request needs; after a shortage,
   smaller sizes are tried. ds__segment_return gives a segment back whose only block is free.

   Invariants: A new segment enters its arena as one free block. Bytes are reserved before the
   source is called, and unreserved after the memory is gone. A segment on its way back is
   marked `leaving`, because its addresses may belong to another segment at once.
   Locks: ds__grow_plain expects the arena's `grow`. ds__segment_return expects `giving` and
   `grow`; for pinned memory it needs neither. No spinning lock may be held. The source, which
   may be the user's upstream, is called with these mutexes held. ds__drain_aside releases
   `grow` while it waits for the arena's stream.
   Threads: caller's threads. Other threads may allocate and free in the arena meanwhile. */

/* Returns the size of a new plain segment that needs `least` bytes. With segment_growth, segments
   grow with the reserved memory: fewer and larger segments fragment less. */
static size_t ds__plain_size(const ds__arena *a, int kind, size_t least) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    ds__domain *d = a->pool == &a->dev->main ? &a->dev->stats : &a->pool->stats;
    if (!c->segment_growth || a->pool->no_split)
        return least;
    size_t unit = 2 * DS__MIB;
    size_t size = (size_t)atomic_load(&d->all[DS__RESERVED].now) / c->segment_growth / unit * unit;
    if (kind == DS__SMALL && size > 8 * DS__MIB)
        size = 8 * DS__MIB;
    return size > least ? size : least;
}

/* Takes `size` bytes from the pool's source, within the limits. On success the bytes are
   reserved. */
static ds_result ds__plain_take(ds__arena *a, size_t size, int *out_source, void **out_base) {
    ds_result r = ds__segment_reserve(a, size);
    if (r < 0)
        return r;
    DS__COUNT_CALL(a, driver_allocs, 1);
    r = ds__source_alloc(a, size, out_source, out_base);
    if (r < 0) {
        ds__segment_unreserve(a, size);
        DS__COUNT_CALL(a, driver_allocs, -1);
    }
    /* a limit of an upstream is not one of the allocator */
    return r == DS_ERR_LIMIT_EXCEEDED ? DS_ERR_OUT_OF_MEMORY : r;
}

/* Makes a segment with one free block of memory from the source. Without host memory, the memory
   goes back. No spinning lock is held. */
static ds_result ds__plain_publish(ds__arena *a, int kind, int source, void *base, size_t size) {
    ds__segment *s = ds__segment_create(a, kind, source, base, size, 0);
    ds__arena_lock(a);
    ds__mem_block *b = s ? ds__segment_first_create(a, s) : NULL;
    if (b) {
        b->asked = ds__arena_count_request(a);
        ds__count_reserved(a, kind, (int64_t)size);
        ds__count_segment(a, s, 1);
        ds__note_segment(a, DS_ACTION_SEGMENT_ALLOC, base, size);
        b->state = DS_BLOCK_FREE;
        ds__bin_in(a, b, a->pool->config.best_fit_by_address);
    }
    ds__arena_unlock(a);
    if (b)
        return DS_OK;

    if (s)
        ds__segment_destroy(s);
    ds__segment whole = { .base = base, .size = size, .source = (uint8_t)source };
    DS_IGNORE(ds__source_free(a, &whole));
    ds__segment_unreserve(a, size);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
}

/* Takes a new plain segment for a request. After a shortage halves the size, down to the bytes
   that the request needs. `grow` of the arena is held, and no spinning lock. */
static ds_result ds__grow_plain(ds__arena *a, int kind, size_t size) {
    size_t unit = 2 * DS__MIB;
    size_t least = ds__config_segment_size(ds__pool_policy(a->pool), kind, size);
    for (size_t want = ds__plain_size(a, kind, least);;) {
        void *base = NULL;
        int source = 0;
        ds_result r = ds__plain_take(a, want, &source, &base);
        if (r == DS_OK)
            return ds__plain_publish(a, kind, source, base, want);
        if (want == least || !ds__is_shortage(r))
            return r;
        want = want / 2 / unit * unit;
        if (want < least)
            want = least;
    }
}

/* Waits for the work of the arena's stream, with `grow` released so that the arena can grow
   meanwhile. Returns 0 if the work is not known to be done. */
static int ds__drain_aside(ds__arena *a) {
    ds__mutex_unlock(&a->grow);
    int drained = ds__arena_drain(a);
    ds__mutex_lock(&a->grow);
    return drained;
}

/* Returns whether the memory of a segment may go back to its source: an upstream always takes it,
   and pinned memory has no stream. Otherwise waits for the arena's stream. */
static int ds__segment_is_done(ds__arena *a, const ds__segment *s) {
    if (s->source == DS__FROM_PINNED || s->source == DS__FROM_REGISTERED)
        return 1;
    return ds__drain_aside(a) || s->source == DS__FROM_UPSTREAM;
}

/* Gives a plain segment back. Its only block is free, claimed, and in no list. `giving` and `grow`
   are held, except for pinned memory, and no spinning lock. If the segment cannot be given back,
   its block returns to its bin. */
static ds_result ds__segment_return(ds__arena *a, ds__segment *s) {
    size_t size = s->size;
    ds__segment copy = *s;
    ds_result r = DS_ERR_ILLEGAL_STATE;
    if (ds__segment_is_done(a, s)) {
        ds__segment_leaves(s, 1);
        r = ds__source_free(a, &copy);
        if (r < 0)
            ds__segment_leaves(s, 0);
    }

    ds__arena_lock(a);
    if (r < 0) {
        s->first->claimed = 0;
        ds__bin_in(a, s->first, a->pool->config.best_fit_by_address);
        ds__arena_unlock(a);
        return r;
    }
    ds__segment_retire(a, s);
    ds__arena_unlock(a);
    ds__segment_destroy(s);
    ds__segment_unreserve(a, size);
    return DS_OK;
}

/* alloc/segment_grow.h - growing segments: pages mapped on demand.

   Lets a segment grow page by page in reserved address space, and returns pages.
   ds__grow_mapped maps pages until there is a free block of the requested size. ds__unmap_block
   unmaps the whole pages of a free block. ds__grow_space reserves the address space of a new
   segment.

   Invariants: A hole is an unmapped block of whole pages. The holes of each kind form a list in
   the order of ds__block_is_earlier; neighbouring holes are merged, and claimed holes are not in
   the list. `mapped` is the sum of the segment's blocks that are not holes, unless a thread works
   on a claimed block.
   Locks: ds__grow_mapped and ds__unmap_block expect the arena's `grow` and no spinning lock.
   They release the arena's lock while they call the driver, and take the registry's lock alone.
   ds__hole_in and ds__hole_out expect the arena's lock. Errors are muted by the caller
   (ds__tls.mute).
   Threads: any caller's thread with `grow` held. Other threads may allocate and free in the
   arena meanwhile; the block in work is claimed. */

/* Takes a hole out of its list. The arena is locked. */
static void ds__hole_out(ds__arena *a, ds__mem_block *b) {
    ds__block_list_out(&a->holes[b->seg->kind], b);
}

/* Returns whether a neighbour, which may be NULL, is a hole in the list. */
static int ds__hole_is_listed(const ds__mem_block *b) {
    return b && b->state == DS_BLOCK_UNMAPPED && !b->claimed;
}

/* Inserts a hole into the list, in the order of addresses, and merges it with neighbouring holes.
   A free block in front of it moves to the bin DS__EDGE. The arena is locked. */
static void ds__hole_in(ds__arena *a, ds__mem_block *b) {
    int kind = b->seg->kind;
    ds__mem_block *prev = b->prev;
    b->state = DS_BLOCK_UNMAPPED;
    if (ds__block_is_binned(prev)) {
        ds__bin_out(a, prev);
        ds__bin_in(a, prev, a->pool->config.best_fit_by_address);
    }
    if (ds__hole_is_listed(prev)) {
        ds__block_absorb_next(a, prev);
        b = prev;
    } else {
        ds__mem_block *before = NULL;
        ds__mem_block *at = a->holes[kind];
        while (at && ds__block_is_earlier(at, b)) {
            before = at;
            at = at->list_next;
        }
        ds__block_list_in(&a->holes[kind], b, before, at);
    }
    if (ds__hole_is_listed(b->next)) {
        ds__hole_out(a, b->next);
        ds__block_absorb_next(a, b);
    }
}

/* Returns the bytes of address space that a new growing segment reserves for a request of `size`
   bytes. Several segments of small blocks share a device, so each reserves less. */
static size_t ds__space_size(const ds__arena *a, int kind, size_t size, size_t page) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    size_t reserve = ds__config_reserve_size(c, a->dev->total, page);
    if (kind == DS__SMALL && !c->single_pool)
        reserve /= 16;
    if (reserve < size + 2 * page)
        reserve = size + 2 * page;
    return reserve < 16 * page ? 16 * page : reserve;
}

/* Reserves address space for another growing segment. DS_ERR_UNSUPPORTED: the device cannot do
   that, or the system has no such address space left (RLIMIT_AS), which is logged once. */
static ds_result ds__grow_space(ds__arena *a, int kind, size_t size) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    ds__mem_dev *dev = a->dev;
    size_t least = 0;
    size_t asked = kind == DS__SMALL ? c->small_segment_size : c->large_segment_size;
    size_t reserve = ds__space_size(a, kind, size, asked);
    void *base = NULL;
    ds_result r = ds__space_reserve(dev->device, reserve, &least, &base);
    if (r == DS_ERR_OUT_OF_MEMORY && !atomic_exchange(&dev->space_missed, 1))
        ds__log_warn("%s; plain segments are used instead of growing ones "
                     "(expandable_segments_reserve sets the size)",
                     ds__tls.aside);
    if (r < 0)
        return r == DS_ERR_OUT_OF_MEMORY ? DS_ERR_UNSUPPORTED : r;

    size_t page = (asked + least - 1) / least * least;
    reserve = reserve / page * page; /* whole pages; the rest stays unused */
    ds__move_begin(dev);
    ds__segment *s =
        reserve ? ds__segment_create(a, kind, DS__FROM_SPACE, base, reserve, page) : NULL;
    ds__arena_lock(a);
    ds__mem_block *b = s ? ds__segment_first_create(a, s) : NULL;
    if (b) {
        s->native = asked;
        ds__hole_in(a, b);
        ds__move_end(dev);
        ds__arena_unlock(a);
        return DS_OK;
    }

    ds__arena_unlock(a);
    if (s)
        ds__segment_destroy(s);
    ds__move_end(dev);
    ds__space_release(dev->device, base, reserve);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
}

/* Maps memory of pages, all or none, and enters the addresses. No spinning lock is held. */
static ds_result ds__segment_map(ds__arena *a, ds__segment *s, char *at, size_t size) {
    const ds__driver *driver = ds__driver_of(a->dev->device);
    int index = a->dev->device.index;
    ds_result r = ds__segment_reserve(a, size);
    if (r < 0)
        return r;
    int64_t pages = (int64_t)(size / s->page);
    r = driver->space_map(index, at, size, s->page);
    int mapped = r == DS_OK;
    DS__COUNT_CALL(a, driver_allocs, mapped ? pages : 0);
    if (mapped) {
        ds__mutex_lock(&ds__memory_state.registry);
        if (!ds__address_granules_set(s, at, size, 1))
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a segment");
        ds__mutex_unlock(&ds__memory_state.registry);
    }
    if (r == DS_OK)
        return r;
    if (mapped) {
        DS_IGNORE(driver->space_unmap(index, at, size));
        DS__COUNT_CALL(a, driver_frees, pages);
    }
    ds__segment_unreserve(a, size);
    return r;
}

/* Returns the lowest hole that makes room for `size` together with the free blocks beside it, or
   NULL. The arena is locked. */
static ds__mem_block *ds__hole_for(ds__arena *a, int kind, size_t size) {
    const ds_mem_config *c = ds__pool_policy(a->pool);
    size_t page = kind == DS__SMALL ? c->small_segment_size : c->large_segment_size;
    for (ds__mem_block *h = a->holes[kind]; h; h = h->list_next) {
        /* an empty segment whose pages have the size of an earlier policy */
        if (!h->seg->mapped && h->seg->native != page)
            continue;
        size_t room = h->size;
        if (ds__block_is_binned(h->prev))
            room += h->prev->size;
        if (ds__block_is_binned(h->next))
            room += h->next->size;
        if (room >= size)
            return h;
    }
    return NULL;
}

/* Takes `count` descriptions of blocks, so that cuts after a driver call cannot fail. Returns 0
   without host memory, and none is taken. The arena is locked. */
static int ds__spares_take(ds__arena *a, ds__mem_block **spares, int count) {
    for (int i = 0; i < count; i++) {
        spares[i] = ds__mem_block_create(a);
        if (spares[i])
            continue;
        while (i-- > 0)
            ds__mem_block_destroy(a, spares[i]);
        return 0;
    }
    return 1;
}

/* Maps as many pages of a hole as a block of `size` bytes needs, and makes them a free block. The
   arena is locked, is unlocked for the driver call, and is locked again. */
static ds_result ds__hole_map(ds__arena *a, ds__mem_block *h, size_t size) {
    ds__segment *s = h->seg;
    ds__mem_block *spare = NULL;
    ds__mem_block *prev = ds__block_is_binned(h->prev) ? h->prev : NULL;
    size_t before = prev ? prev->size : 0;
    size_t need = size > before ? size - before : 1;
    need = (need + s->page - 1) / s->page * s->page;
    if (need > h->size)
        need = h->size;
    if (!ds__spares_take(a, &spare, 1))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a block");
    ds__hole_out(a, h);
    h->claimed = 1;
    if (prev) {
        ds__bin_out(a, prev);
        prev->claimed = 1;
    }
    ds__arena_unlock(a);

    ds_result r = ds__segment_map(a, s, h->ptr, need);

    ds__arena_lock(a);
    ds__mem_block_destroy(a, spare);
    /* its neighbours may have been freed meanwhile */
    if (prev) {
        prev->claimed = 0;
        (void)ds__merge_in(a, prev);
    }
    if (r == DS_OK && need < h->size)
        ds__hole_in(a, ds__block_cut(a, h, need));
    h->claimed = 0; /* not earlier, or the rest would be merged with it */
    if (r < 0) {
        ds__hole_in(a, h);
        return r;
    }
    s->mapped += need;
    ds__count_reserved(a, s->kind, (int64_t)need);
    ds__note_segment(a, DS_ACTION_SEGMENT_MAP, h->ptr, need);
    (void)ds__merge_in(a, h);
    return DS_OK;
}

/* Lets a growing segment grow until it has a free block of `size` bytes. `grow` is held, and no
   spinning lock. */
static ds_result ds__grow_mapped(ds__arena *a, int kind, size_t size) {
    for (int grown = 0;; grown = 1) {
        ds__arena_lock(a);
        ds__mem_block *h = ds__hole_for(a, kind, size);
        ds_result r = h ? ds__hole_map(a, h, size) : DS_ERR_OUT_OF_MEMORY;
        ds__arena_unlock(a);
        if (h || grown)
            return r;
        r = ds__grow_space(a, kind, size);
        if (r < 0)
            return r;
    }
}

/* Unmaps the whole pages of a free block that is claimed and in no bin, at most `most` bytes
   rounded up. All work on the block is done. Returns the bytes; 0: the block is in its bin again.
   `grow` is held, and no spinning lock. */
static size_t ds__unmap_block(ds__arena *a, ds__mem_block *b, size_t most) {
    ds__segment *s = b->seg;
    ds__mem_block *spares[2];
    size_t from = ((size_t)(b->ptr - s->base) + s->page - 1) / s->page * s->page;
    size_t to = (size_t)(b->ptr + b->size - s->base) / s->page * s->page;
    size_t done = 0;
    ds_result r = DS_OK;
    /* the end of the block, so that the mapped memory has low addresses */
    if (to - from > s->page && most <= to - from - s->page)
        from = to - (most + s->page - 1) / s->page * s->page;
    ds__arena_lock(a);
    int spare = ds__spares_take(a, spares, 2);
    ds__arena_unlock(a);
    if (spare && from < to)
        r = ds__driver_of(a->dev->device)
                ->space_unmap(a->dev->device.index, s->base + from, to - from);
    if (spare && from < to && r == DS_OK)
        done = to - from;
    DS__COUNT_CALL(a, driver_frees, (int64_t)(done / s->page));

    ds__arena_lock(a);
    for (int i = 0; spare && i < 2; i++)
        ds__mem_block_destroy(a, spares[i]);
    if (!done) {
        b->claimed = 0;
        (void)ds__merge_in(a, b);
        ds__arena_unlock(a);
        return 0;
    }
    size_t front = (size_t)(s->base + from - b->ptr);
    ds__mem_block *hole = front ? ds__block_cut(a, b, front) : b;
    ds__mem_block *rest = hole->size > done ? ds__block_cut(a, hole, done) : NULL;
    hole->claimed = 0;
    ds__hole_in(a, hole);
    if (rest)
        (void)ds__merge_in(a, rest);
    if (front) { /* after the hole, on which its bin depends */
        b->claimed = 0;
        (void)ds__merge_in(a, b);
    }
    s->mapped -= done;
    ds__count_reserved(a, s->kind, -(int64_t)done);
    ds__note_segment(a, DS_ACTION_SEGMENT_UNMAP, s->base + from, done);
    ds__arena_unlock(a);
    ds__mutex_lock(&ds__memory_state.registry);
    ds__address_granules_set(s, s->base + from, done, 0);
    ds__mutex_unlock(&ds__memory_state.registry);
    ds__segment_unreserve(a, done);
    return done;
}

/* alloc/direct_free.h - free without a cache.

   Gives blocks of the backends without a cache back to the driver (ds__direct_free) and tries
   deferred blocks again (ds__direct_again). ds__direct_try does the work for one block.
   direct_alloc.h states the policy.

   Invariants: A block here is pending. A block is in its arena's list of deferred blocks, or in
   no list and claimed while a thread tries the block. dev->deferred counts deferred blocks. A
   segment is marked as leaving before the driver gets the memory, because the driver may give
   the address out at once. ds__direct_again does nothing while a capture is open.
   Locks: No function expects a lock; each takes the arena's lock for short steps.
   ds__direct_record and ds__direct_put hold ds__g.begin, so that no capture begins while they
   enqueue work. The host does not wait under the mutex. ds__direct_over invokes observers under
   the arena's lock, and may first take all locks of the device for the counters.
   Threads: any caller's thread. A free of plain memory blocks the host until the work on the
   block is done; a free to the driver's pool does not. */

/* Records the events of the uses that have none, while new captures are held back. Returns 0 if a
   capture prevents that. */
static int ds__direct_record(ds__mem_block *b) {
    int done = 1;
    if (!b->uses)
        return 1;
    ds__hold_captures();
    DS_IGNORE(ds__record_uses_held(b));
    for (ds__stream_use *u = b->uses; u; u = u->next)
        if (u->recorded != 1 && !ds__record_held(u))
            done = 0;
    ds__let_captures();
    return done;
}

/* Gives a block of the driver's pool back in the order of a stream, while new captures are held
   back. The stream waits for the uses first, if they are not done (`done`). */
static ds_result ds__direct_enqueue(ds__stream *s, ds__mem_block *b, int done) {
    ds_stream handle = { ds__handle_of(&s->slot) };
    ds_result r = DS_NOT_READY;
    ds__hold_captures();
    if (!ds__capture_of(s))
        r = done ? DS_OK : ds__wait_uses(b, handle);
    if (r == DS_OK && b->stale && !ds__captures_open())
        DS_IGNORE(ds__own_fill(handle, b->ptr, DS__POISON, b->size));
    if (r == DS_OK)
        r = ds__async_free(s, b->ptr);
    ds__let_captures();
    return r;
}

/* Gives a block of the driver's pool back in the order of a stream, behind the uses of the block.
   If the stream cannot wait for the uses, they must be done: with `wait` the host waits for
   them. */
static ds_result ds__direct_put(ds__stream *s, ds__mem_block *b, int wait) {
    ds_result r = ds__direct_enqueue(s, b, 0);
    if (r != DS_OK && !ds__captures_open() &&
        (wait ? ds__uses_awaited(b->uses) : ds__uses_done(b->uses)))
        r = ds__direct_enqueue(s, b, 1);
    return r;
}

/* Makes the allocator's own stream wait for the end of the arena's stream. If no event marks the
   end, the host waits for it. */
static ds_result ds__direct_end_await(ds__arena *a, ds_stream giver, ds_event end) {
    if (end.id)
        return ds__wait_event(giver, end, DS__OP_WAIT);
    return ds__arena_drain(a) ? DS_OK : DS_NOT_READY;
}

/* Gives a block of the driver's pool back in the order of its stream, or behind the end of the
   stream if the stream has ended. Returns 1 on success. */
static int ds__direct_release(ds__arena *a, ds__mem_block *b, int wait) {
    ds__stream *s = ds__pin(&ds__g.streams, ds__owner_of(a).stream.id);
    if (s) {
        ds_result r = ds__direct_put(s, b, wait);
        ds__stream_unpin(s);
        if (r == DS_OK || !wait)
            return r == DS_OK;
    }

    ds__owner o = ds__owner_of(a);
    ds_event end = { o.orphan ? o.end.id : 0 };
    /* no event marks the end of the stream, or the stream is another thread's */
    if (!end.id && !wait)
        return 0;
    s = ds__direct_giver(a->dev);
    if (!s)
        return 0;
    ds_result r = ds__direct_end_await(a, (ds_stream){ ds__handle_of(&s->slot) }, end);
    if (r == DS_OK || r == DS_ERR_FAILED)
        r = ds__direct_put(s, b, wait);
    ds__stream_unpin(s);
    return r == DS_OK;
}

/* Adds a use of a plain block by its own stream, so that the block waits for this stream's work
   too. Returns 0 without host memory. */
static int ds__direct_own_add(ds__arena *a, ds__mem_block *b, ds_stream stream) {
    for (const ds__stream_use *u = b->uses; u; u = u->next)
        if (u->stream.id == stream.id)
            return 1;
    ds__stream_use *u = ds__stream_use_create(a, a->dev->device);
    if (!u)
        return 0;
    ds__arena_lock(a);
    u->stream = stream;
    u->next = b->uses;
    b->uses = u;
    atomic_fetch_add(&a->dev->late_uses, 1);
    ds__arena_unlock(a);
    return 1;
}

/* Covers the work of a plain block's own stream: by a use, or if the stream has ended, by the end
   of the stream. Returns 0 if that end is not reached or not known. */
static int ds__direct_own(ds__arena *a, ds__mem_block *b, int wait) {
    ds__owner o = ds__owner_of(a);
    ds__stream *s = ds__pin(&ds__g.streams, o.stream.id);
    int alive = s && !o.orphan;
    if (s)
        ds__stream_unpin(s);
    if (alive)
        return ds__direct_own_add(a, b, o.stream) || (wait == DS__WAIT_ALL && ds__arena_drain(a));

    o = ds__owner_of(a);
    ds_event end = { o.orphan ? o.end.id : 0 };
    if (wait == DS__WAIT_ALL)
        return ds__arena_drain(a);
    ds_result r = end.id && !ds__captures_open() ? ds__event_ask(end) : DS_NOT_READY;
    return r == DS_OK || r == DS_ERR_FAILED;
}

/* Tries to give a block that is in no list back to the driver. Returns 1 on success. No lock is
   held. */
static int ds__direct_try(ds__arena *a, ds__mem_block *b, int wait) {
    int plain = b->seg->source != DS__FROM_ASYNC;
    int done;
    if (plain && !ds__direct_own(a, b, wait))
        return 0;
    if (!ds__direct_record(b) && (wait != DS__WAIT_ALL || !ds__uses_awaited(b->uses)))
        return 0;
    /* an open capture could refuse the query */
    if (plain && (wait == DS__WAIT_NONE || ds__captures_open()))
        return 0;
    ds__tls.relaxed += plain;
    done = !plain || (wait == DS__WAIT_ALL ? ds__uses_awaited(b->uses) : ds__uses_done(b->uses));
    ds__tls.relaxed -= plain;
    if (!done)
        return 0;
    ds__segment_leaves(b->seg, 1);
    done = plain ? ds__segment_end(b->seg->base, DS_MEMORY_DEVICE, 1) == DS_OK
                 : ds__direct_release(a, b, wait == DS__WAIT_ALL);
    if (!done)
        ds__segment_leaves(b->seg, 0);
    return done;
}

/* Ends a block whose memory the driver has again, with its segment. No lock is held. */
static void ds__direct_over(ds__arena *a, ds__mem_block *b) {
    ds__segment *s = b->seg;
    size_t size = s->size;
    ds__arena_lock_ready(a, s->kind);
    ds__pending_done(a, b);
    b->claimed = b->stale = 0;
    ds__segment_retire(a, s);
    ds__arena_unlock(a);
    int async = s->source == DS__FROM_ASYNC;
    ds__segment_destroy(s);
    /* both without a step between, in which the limit would count the bytes twice */
    if (async)
        atomic_fetch_sub(&a->dev->async_bytes, size);
    ds__segment_unreserve(a, size);
}

/* Appends a block to the arena's deferred blocks. */
static void ds__direct_defer(ds__arena *a, ds__mem_block *b) {
    ds__arena_lock(a);
    b->claimed = 0;
    b->list_next = NULL;
    if (a->deferred_last)
        a->deferred_last->list_next = b;
    else
        a->deferred = b;
    a->deferred_last = b;
    a->deferred_count++;
    ds__arena_unlock(a);
    atomic_fetch_add(&a->dev->deferred, 1);
}

/* Takes the first of the arena's deferred blocks and makes it claimed, or returns NULL. */
static ds__mem_block *ds__direct_next(ds__arena *a) {
    ds__arena_lock(a);
    ds__mem_block *b = a->deferred;
    if (b) {
        a->deferred = b->list_next;
        if (!a->deferred)
            a->deferred_last = NULL;
        a->deferred_count--;
        b->claimed = 1;
    }
    ds__arena_unlock(a);
    if (b)
        atomic_fetch_sub(&a->dev->deferred, 1);
    return b;
}

#define DS__DEFERRED 16 /* deferred blocks of an arena that one call tries again */

/* Tries deferred blocks again, the longest untried ones first: some of each arena, or all
   (DS__WAIT_ALL). Returns the bytes that went back. No lock is held. */
static size_t ds__direct_again(ds__mem_dev *dev, int wait) {
    size_t done = 0;
    /* another thread may join a stream to an open capture at any time */
    if (DS__LIKELY(!atomic_load(&dev->deferred)) || ds__captures_open())
        return 0;
    ds__tls.mute++;
    for (ds__arena *a = ds__first_arena(dev, &dev->main); a; a = a->next) {
        ds__arena_lock(a);
        size_t left = wait == DS__WAIT_ALL || a->deferred_count < DS__DEFERRED ? a->deferred_count
                                                                               : DS__DEFERRED;
        ds__arena_unlock(a);
        for (; left > 0; left--) {
            ds__mem_block *b = ds__direct_next(a);
            if (!b)
                break;
            /* the driver's pool may keep the memory */
            size_t size = b->seg->source == DS__FROM_ASYNC ? 0 : b->size;
            if (ds__direct_try(a, b, wait)) {
                ds__direct_over(a, b);
                done += size;
            } else {
                ds__direct_defer(a, b);
            }
        }
    }
    ds__tls.mute--;
    return done;
}

/* Frees a block of a backend without a cache, now or later. The block is pending, claimed, and in
   no list. No lock is held. */
static ds_result ds__direct_free(ds__arena *a, ds__mem_block *b) {
    (void)ds__direct_again(a->dev, DS__WAIT_DEVICE);
    ds__tls.mute++;
    if (ds__direct_try(a, b, b->seg->source == DS__FROM_ASYNC ? DS__WAIT_NONE : DS__WAIT_ALL))
        ds__direct_over(a, b);
    else
        ds__direct_defer(a, b);
    ds__tls.mute--;
    return DS_OK;
}

/* alloc/trim.h - returning cached memory to the driver.

   ds__mem_flush waits for pending blocks and returns the free memory of a device or a pool.
   ds__arena_trim returns the free memory of one arena. ds__release_oversize and ds__collect_garbage
   return selected large segments. ds__async_give shrinks the driver's own pool; ds__direct_drain
   waits for frees that are on their way there.

   Invariants: Memory is returned only if the work of its arena's stream is known to be done
   (ds__arena_drain). Two exceptions: a user's upstream gets it in any case, and pinned memory
   has no stream. Pools of graphs keep their memory, and an upstream cannot trim its own pool.
   While a capture is open, ds__mem_flush, ds__release_oversize and ds__collect_garbage return
   nothing.
   Locks: an arena's `giving`, then its `grow`, then its lock; never those of two arenas at
   once. The driver and the user's upstream run with the two mutexes held, and with no spinning
   lock. `grow` is released while the host waits for a stream (ds__drain_aside), `giving` is
   not. ds__is_whole, ds__segment_age and ds__give_whole expect the arena's lock; the other
   functions expect no spinning lock.
   Threads: any caller's thread. Other threads may allocate and free in the arena meanwhile; the
   block in work is claimed. */

/* One call of ds__arena_trim. */
typedef struct ds__trim {
    ds__arena *a;
    size_t most;  /* bytes to give back; a little more is possible */
    size_t least; /* the smallest block to give back */
    size_t done;  /* bytes given back */
    int stays;    /* 1: something cannot be given back now, so the call ends */
} ds__trim;

/* Returns whether a free block has `least` bytes, and a whole page or the whole segment. */
static int ds__trim_suits(const ds__mem_block *b, size_t least) {
    const ds__segment *s = b->seg;
    if (b->size < least)
        return 0;
    if (!s->page)
        return !ds__is_split(b);
    size_t from = ((size_t)(b->ptr - s->base) + s->page - 1) / s->page * s->page;
    return from + s->page <= (size_t)(b->ptr + b->size - s->base);
}

/* Takes the first suitable block out of a bin and makes it claimed, or returns NULL. The arena is
   locked. */
static ds__mem_block *ds__trim_take(const ds__trim *t, int kind, unsigned bin) {
    ds__mem_block *found = t->a->bins[kind].head[bin];
    while (found && !ds__trim_suits(found, t->least))
        found = found->list_next;
    if (found) {
        ds__bin_out(t->a, found);
        found->claimed = 1;
    }
    return found;
}

/* Gives back a claimed block that is in no bin, or a part of it. `giving` and `grow` are held, the
   arena is not locked. */
static void ds__trim_give(ds__trim *t, ds__mem_block *b) {
    ds__arena *a = t->a;
    ds__segment *s = b->seg;
    if (!s->page) {
        size_t size = s->size;
        if (ds__segment_return(a, s) == DS_OK)
            t->done += size;
        else
            t->stays = 1;
        return;
    }

    /* for each block anew, because other threads may use the stream meanwhile */
    if (ds__drain_aside(a)) {
        size_t unmapped = ds__unmap_block(a, b, t->most - t->done);
        t->done += unmapped;
        t->stays = !unmapped; /* the block is in its bin again */
        return;
    }
    ds__arena_lock(a);
    b->claimed = 0;
    (void)ds__merge_in(a, b);
    ds__arena_unlock(a);
    t->stays = 1;
}

/* Gives back the suitable blocks of one bin. `giving` and `grow` are held, the arena is not
   locked. */
static void ds__trim_bin(ds__trim *t, int kind, unsigned bin) {
    ds__arena *a = t->a;
    ds__arena_lock(a);
    ds__unpark_all(a);
    do {
        /* the pool has become a graph's, which may use the free memory */
        if (a->pool->graphs) {
            t->stays = 1;
            break;
        }
        ds__mem_block *found = ds__trim_take(t, kind, bin);
        if (!found)
            break;
        ds__arena_unlock(a);
        ds__trim_give(t, found);
        ds__arena_lock(a);
    } while (t->done < t->most && !t->stays);
    ds__arena_unlock(a);
}

/* Gives back free memory of an arena: whole pages and whole segments, about `most` bytes at most,
   from blocks of `least` bytes or more. Returns the bytes. No lock is held. */
static size_t ds__arena_trim(ds__arena *a, size_t most, size_t least) {
    ds__trim t = { .a = a, .most = most, .least = least };
    if (a->pool->graphs || ds__is_inside(a->pool))
        return 0;
    ds__mutex_lock(&a->giving);
    ds__mutex_lock(&a->grow);
    for (int kind = DS__LARGE; kind >= DS__SMALL; kind--)
        for (unsigned i = DS__BINS; i-- > 0 && t.done < most && !t.stays;)
            ds__trim_bin(&t, kind, i);
    ds__mutex_unlock(&a->grow);
    ds__mutex_unlock(&a->giving);
    return t.done;
}

/* Returns whether ds__mem_flush empties the pool: `only`, or the default pool and pools without
   owners. */
static int ds__flush_covers(const ds__mem_dev *dev, const ds__mem_pool *p,
                            const ds__mem_pool *only) {
    if (p->graphs)
        return 0;
    if (only)
        return p == only;
    return p == &dev->main || p->owners <= 0;
}

/* Waits for all pending blocks, then gives free memory back until `keep` bytes are reserved: of the
   default pool and of pools without owners, or of `only`. Does nothing while a capture is open,
   which the waits could invalidate. PyTorch's release_cached_blocks. */
static size_t ds__mem_flush(ds__mem_dev *dev, ds__mem_pool *only, size_t keep) {
    size_t done = 0;
    if (ds__captures_open())
        return 0;
    (void)ds__share_collect();
    if (!only)
        done = ds__direct_again(dev, DS__WAIT_ALL);
    for (ds__mem_pool *p = ds__next_pool(dev, NULL); p; p = ds__next_pool(dev, p)) {
        if (!ds__flush_covers(dev, p, only))
            continue;
        for (ds__arena *a = ds__first_arena(dev, p); a; a = a->next)
            (void)ds__pending_poll(a, 1);
    }

    /* as in PyTorch, the wait of a single pool does not count as a wait for all streams */
    if (!only)
        atomic_fetch_add(&dev->stats.syncs, 1);
    for (ds__mem_pool *p = ds__next_pool(dev, NULL); p; p = ds__next_pool(dev, p)) {
        if (!ds__flush_covers(dev, p, only))
            continue;
        for (ds__arena *a = ds__first_arena(dev, p); a; a = a->next) {
            size_t now = atomic_load(&dev->reserved);
            if (now <= keep)
                return done;
            done += ds__arena_trim(a, now - keep, 0);
        }
    }
    return done;
}

/* Waits for the frees to the driver's own pool that are enqueued. */
static void ds__direct_drain(ds__mem_dev *dev) {
    ds_stream giver = { atomic_load(&dev->giver) };
    for (ds__arena *a = ds__first_arena(dev, &dev->main); a; a = a->next)
        (void)ds__arena_drain(a);
    ds__tls.relaxed++;
    if (giver.id)
        DS_IGNORE(ds__stream_sync(giver, DS__FOREVER));
    ds__tls.relaxed--;
}

/* Waits for enqueued frees to the driver's own pool, then shrinks the pool to `keep` bytes, or
   as far as the driver can. No capture is open. */
static void ds__async_give(ds__mem_dev *dev, size_t keep) {
    ds_mem_stats before;
    if (!atomic_load(&dev->async))
        return;
    ds__direct_drain(dev);
    /* notes the peak of reserved bytes: the driver's pool shrinks only here */
    ds__stats_sum(dev, NULL, &before);
    ds__tls.mute++;
    DS_IGNORE(ds__driver_of(dev->device)->async_trim(dev->device.index, keep));
    ds__tls.mute--;
}

/* Returns whether a segment is plain, of large blocks, and free as a whole. The arena is locked. */
static int ds__is_whole(const ds__segment *s) {
    const ds__mem_block *b = s->first;
    return !s->page && s->kind == DS__LARGE && b && b->state == DS_BLOCK_FREE && !b->next &&
           !b->claimed;
}

/* Gives a whole segment back. Returns the bytes, or 0 if the segment stays. `giving` and `grow` are
   held. The arena is locked, is unlocked meanwhile, and is locked again. */
static size_t ds__give_whole(ds__arena *a, ds__segment *s) {
    size_t size = s->size;
    ds__bin_out(a, s->first);
    s->first->claimed = 1;
    ds__arena_unlock(a);
    ds_result r = ds__segment_return(a, s);
    ds__arena_lock(a);
    return r == DS_OK ? size : 0;
}

/* Returns the whole segment to give back next, or NULL: the smallest one that is enough, else the
   largest one. Only segments of `split` bytes or more count. The arena is locked. */
static ds__segment *ds__oversize_best(const ds__arena *a, size_t split, size_t enough) {
    ds__segment *best = NULL;
    for (ds__segment *s = a->segments; s; s = s->next) {
        if (!ds__is_whole(s) || s->size < split)
            continue;
        int better;
        if (!best)
            better = 1;
        else if (best->size >= enough)
            better = s->size >= enough && s->size < best->size;
        else
            better = s->size > best->size;
        if (better)
            best = s;
    }
    return best;
}

/* Gives back segments of max_split_size or more: the smallest one that is enough for the request,
   else the largest ones until they are enough. Returns the bytes. No lock is held. PyTorch's
   release_available_cached_blocks. */
static size_t ds__release_oversize(ds__arena *a, size_t size) {
    size_t split = ds__pool_policy(a->pool)->max_split_size;
    size_t enough = size > split ? size : split;
    size_t done = 0;
    size_t given = 1;
    if (split == SIZE_MAX || ds__captures_open() || a->pool->graphs || ds__is_inside(a->pool))
        return 0;
    ds__mutex_lock(&a->giving);
    ds__mutex_lock(&a->grow);
    ds__arena_lock(a);
    /* the pool may have become a graph's, which may use the free memory */
    for (; done < enough && given > 0 && !a->pool->graphs; done += given) {
        ds__segment *best = ds__oversize_best(a, split, enough);
        given = best ? ds__give_whole(a, best) : 0;
    }
    ds__arena_unlock(a);
    ds__mutex_unlock(&a->grow);
    ds__mutex_unlock(&a->giving);
    /* growing segments too, if the plain ones are not enough */
    return done < enough ? ds__arena_trim(a, enough - done, split) : done;
}

/* Returns the number of requests in the pool since the segment became free. */
static uint32_t ds__segment_age(const ds__arena *a, const ds__segment *s) {
    return ds__arena_count_request(a) - (uint32_t)s->first->asked;
}

/* Gives back the whole segments of an arena that are at least as old as the average, `ages` /
   `count`. Returns the bytes. No lock is held. */
static size_t ds__collect_older(ds__arena *a, uint64_t ages, uint64_t count) {
    size_t done = 0;
    size_t given = 1;
    /* another thread gives memory back, and may wait for the device */
    if (!ds__mutex_trylock(&a->giving))
        return 0;
    ds__mutex_lock(&a->grow);
    ds__arena_lock(a);
    /* the pool may have become a graph's, which may use the free memory */
    for (ds__segment *s = a->segments; s && given > 0 && !a->pool->graphs;) {
        if (!ds__is_whole(s) || ds__segment_age(a, s) * count < ages) {
            s = s->next;
            continue;
        }
        given = ds__give_whole(a, s);
        done += given;
        s = a->segments; /* the list may have changed */
    }
    ds__arena_unlock(a);
    ds__mutex_unlock(&a->grow);
    ds__mutex_unlock(&a->giving);
    return done;
}

/* Collects garbage as PyTorch does: gives back the unsplit large segments of all arenas of the pool
   that are at least as old as the average, in rounds, until the reserved bytes are below the
   threshold. Takes the locks of one arena at a time. */
static void ds__collect_garbage(ds__mem_dev *dev, ds__mem_pool *p) {
    size_t limit = atomic_load(&dev->limit);
    size_t freed = 1;
    double threshold = ds__pool_policy(p)->garbage_collection_threshold;
    if (threshold <= 0 || !limit || ds__captures_open() || p->graphs)
        return;
    size_t bytes = (size_t)(threshold * (double)limit);
    size_t reserved = atomic_load(&dev->reserved);
    size_t target = reserved > bytes ? reserved - bytes : 0;
    for (size_t done = 0; done < target && freed > 0; done += freed) {
        uint64_t ages = 0;
        uint64_t count = 0;
        for (ds__arena *a = ds__first_arena(dev, p); a; a = a->next) {
            ds__arena_lock(a);
            for (const ds__segment *s = a->segments; s; s = s->next)
                if (ds__is_whole(s)) {
                    ages += ds__segment_age(a, s);
                    count++;
                }
            ds__arena_unlock(a);
        }
        freed = 0;
        for (ds__arena *a = ds__first_arena(dev, p); a && count; a = a->next)
            freed += ds__collect_older(a, ages, count);
    }
}

/* alloc/request.h - requests: size, kind, search of the own arena.

   Defines a request in progress (ds__wanted). ds__request_round_for_pool and ds__kind_of compute
   the size of the block and its kind. ds__request_try searches the request's own arena.

   Invariants: A rounded size is a multiple of DS__UNIT. Peaks follow, and other threads are
   stopped, only if a fitting block is there.
   Locks: ds__request_round_for_pool expects the arena's lock; ds__rounded_by reads a policy without
   a lock. ds__request_try expects no lock, or `grow` of the arena. It takes the arena's lock, or
   all of the device's (ds__mem_lock_all) if the arena has no room to count the block.
   Threads: any caller's thread. */

/* Returns the size of the block for a request. `rounds`: the policy has divisions; `coarse`: large
   sizes are rounded up to 64 KiB. */
static inline size_t ds__request_round(const ds_mem_config *c, int rounds, int coarse,
                                       size_t size) {
    if (DS__UNLIKELY(rounds || size > SIZE_MAX / 2))
        return ds__config_round_size(c, size);
    /* nearly equal sizes become equal, so that freed blocks fit more requests */
    if (size > 4 * DS__MIB && coarse)
        return (size + 64 * 1024 - 1) & ~(size_t)(64 * 1024 - 1);
    return (size + DS__UNIT - 1) & ~(DS__UNIT - 1);
}

/* Returns the size of the block for a request in a pool. The arena is locked. */
static inline size_t ds__request_round_for_pool(const ds__mem_pool *p, size_t size) {
    return ds__request_round(&p->config, p->rounds, p->coarse, size);
}

static inline int ds__kind_of(const ds_mem_config *c, size_t rounded) {
    return rounded > DS__SMALL_LIMIT || c->single_pool ? DS__LARGE : DS__SMALL;
}

/* Returns whether the policy rounds up sizes to divisions of powers of two. */
static int ds__request_has_rounding(const ds_mem_config *c) {
    int some = 0;
    for (size_t i = 0; i < sizeof c->roundup_power2_divisions; i++)
        some |= c->roundup_power2_divisions[i];
    return some != 0;
}

/* Returns the size of the block for a request under a policy that was read without a lock. */
static size_t ds__rounded_by(const ds_mem_config *c, size_t size) {
    return ds__request_round(c, ds__request_has_rounding(c),
                             !c->best_fit_by_address && !c->single_pool, size);
}

/* Returns the size of the block for a request of `asked` bytes, with the policy's guard and an
   alignment (0: none). Sizes that no device has give SIZE_MAX / 2. */
static size_t ds__request_block_size(const ds_mem_config *c, size_t asked, size_t align) {
    return asked <= SIZE_MAX / 4 ? ds__rounded_by(c, asked + c->guard_bytes) + align : SIZE_MAX / 2;
}

/* A request in progress. */
typedef struct ds__wanted {
    ds__arena *a;
    ds_stream stream;
    ds__stream *s;
    int kind;
    size_t size;
    size_t asked;
    ds__mem_block *block; /* found */
    /* 1: memory was just taken from the driver for the request, so max_split_size does not exclude
       the block */
    uint8_t fresh;
    uint8_t aligned; /* 1: the front of the block may be cut off */
    /* 1: a pending block of another stream may be more than twice as large as the request, because
       all other sources have failed */
    uint8_t wasteful;
} ds__wanted;

/* Searches the request's own arena. Returns 1 if q->block was found. No lock is held, or `grow`. */
static int ds__request_try(ds__wanted *q) {
    ds__arena *a = q->a;
    int all = 0;
    ds__arena_lock(a);
    a->fresh = q->fresh; /* while this thread has the lock */
    /* peaks rise, and other threads are stopped, only if there is a block */
    if (!ds__has_room(a, q->kind, (int64_t)q->size, (int64_t)q->asked)) {
        ds__unpark_all(a);
        int there = ds__bin_best_fit(a, q->kind, q->size) != NULL;
        a->fresh = 0;
        if (!there) {
            ds__arena_unlock(a);
            return 0;
        }
        all = ds__count_begin(a, q->kind, (int64_t)q->size, (int64_t)q->asked);
        a->fresh = q->fresh;
    }
    q->block = ds__block_take(a, q->kind, q->size, q->asked);
    a->fresh = 0;
    ds__count_end(a, all);
    return q->block != NULL;
}

/* alloc/reuse.h - cross-stream reuse.

   Finds a cached block for a request in the arenas of other streams. ds__reuse_from_arena takes a
   block there and makes the request's stream wait for that stream. ds__reuse_from_any and
   ds__reuse_from_pools search the arenas of a pool, and the pools with use_on_oom.

   Invariants: A lent block is live on a stream other than its arena's, or was so until its
   free. The first of its uses names that stream. A pending block of another stream is taken whole
   and not split, because only the request's stream waited for its uses. No stream waits across
   the border of a capture (ds__can_await).
   Locks: expects no lock. One arena's lock is held at a time, or all of the device's
   (ds__mem_lock_all) if the arena has no room to count the block. ds__reuse_from_arena holds back
   new captures (ds__g.begin) while it records the event and enqueues the wait; no arena's lock is
   held then.
   Threads: any caller's thread. Streams may end at any time, so ds__reuse_from_arena reads the
   owner of an arena again after it took a block. */

/* Returns whether the request's stream can wait for the owner. */
static int ds__can_await(const ds__wanted *q, ds__owner o) {
    /* the stream has ended, and no event marks the end of its work */
    if (o.orphan && !o.end.id)
        return 0;
    if (ds__captures_open()) { /* no stream waits across the border of a capture */
        uint64_t capture = ds__capture_of(q->s);
        if (capture == DS__BROKEN || capture != (o.orphan ? 0 : ds__capture_of_handle(o.stream)))
            return 0;
    }
    return 1;
}

/* Returns whether the owner's work may be awaited: beside process groups, only if it is over
   (base/drive.h). No lock is held. */
static int ds__is_free_of_waits(ds__owner o) {
    if (DS__LIKELY(!atomic_load(&ds__drive.groups)) || ds__captures_open())
        return 1;
    return o.orphan && ds__event_ask(o.end) == DS_OK;
}

/* One attempt to serve a request from another stream's arena. */
typedef struct ds__reuse {
    ds__wanted *q;       /* the request */
    ds__arena *from;     /* the owner's arena */
    ds__owner owner;     /* the stream that `from` belongs to; read again after a block was taken */
    ds__stream_use *use; /* of the block, by the request's stream */
    ds__mem_block *block; /* taken, live */
    int pending; /* 1: the block was pending, and the request's stream waits for its uses */
    int own;     /* 1: the owner is the request's own stream, in another pool: no wait */
} ds__reuse;

/* Returns 1 if the request's stream can wait for the owner, and the arena may have a block. Sets
   `owner`. No lock is held. */
static int ds__reuse_is_possible(ds__reuse *x) {
    ds__arena *from = x->from;
    const ds__wanted *q = x->q;
    x->owner = ds__owner_of(from);
    if (!ds__can_await(q, x->owner))
        return 0;
    /* otherwise, pending blocks of ended streams are examined only in a shortage */
    if (x->owner.orphan && !ds__captures_open())
        (void)ds__pending_poll(from, 0);

    ds__arena_lock(from);
    ds__unpark_all(from);
    int worth = from->free_bytes >= q->size || (from->pending_bytes >= q->size && !q->aligned);
    ds__arena_unlock(from);
    return worth;
}

/* Returns the description of the use to the arena's stock. */
static void ds__reuse_use_destroy(ds__reuse *x) {
    ds__arena_lock(x->from);
    ds__stream_uses_destroy(x->from, x->use);
    ds__arena_unlock(x->from);
}

/* Takes a free block of the owner's arena, or else a pending one. A pending block is taken whole:
   only the request's stream has waited for its uses. 0: nothing was taken. No lock is held. */
static int ds__reuse_reserve(ds__reuse *x) {
    const ds__wanted *q = x->q;
    ds__wanted other = *q;
    other.a = x->from;
    other.fresh = 0;
    /* first, so that host memory cannot be short after a block was taken */
    x->use = ds__stream_use_create(x->from, q->a->dev->device);
    if (!x->use)
        return 0;

    x->pending = !ds__request_try(&other);
    if (x->pending) {
        ds__pending_wanted wanted = { .kind = q->kind,
                                      .size = q->size,
                                      .most = q->wasteful ? SIZE_MAX : 2 * q->size,
                                      .stream = q->stream,
                                      .asked = q->asked,
                                      .out_whole = &other.block };
        if (q->aligned || !ds__take_pending(x->from, &wanted)) {
            ds__reuse_use_destroy(x);
            return 0;
        }
    }
    x->block = other.block;
    return 1;
}

/* Makes the request's stream wait for the owner's work. Captures are held back: one that begins
   on the owner's stream would capture the request's stream through the event. Fails if the owner
   has changed and cannot be waited for, or if the driver fails. No arena's lock is held. */
static ds_result ds__reuse_order_after_owner(ds__reuse *x) {
    const ds__wanted *q = x->q;
    const ds__arena *from = x->from;
    ds_result r = DS_OK;
    x->owner = ds__owner_of(x->from);
    ds__owner o = x->owner;
    x->own = !o.orphan && o.stream.id == q->stream.id;

    ds__hold_captures();
    /* the arena has become another stream's or an orphan, or its pool a graph's */
    if ((from->pool != q->a->pool && from->pool->graphs) || !ds__can_await(q, o)) {
        r = DS_ERR_ILLEGAL_STATE;
    } else if (!ds__is_free_of_waits(o)) {
        r = DS_ERR_ILLEGAL_STATE;
    } else if (o.orphan) {
        r = ds__wait_event(q->stream, o.end, DS__OP_WAIT);
    } else if (!x->own) {
        r = ds__event_record(x->use->event, o.stream, DS__OP_RECORD);
        if (r == DS_OK)
            r = ds__wait_event(q->stream, x->use->event, DS__OP_WAIT);
    }
    ds__let_captures();
    return r;
}

/* Makes the block pending again, behind the request's stream, which has waited for its uses. */
static void ds__reuse_pending_restore(ds__reuse *x) {
    ds__arena *from = x->from;
    ds__stream_use *u = x->use;
    int kind = x->q->kind;
    DS_IGNORE(ds__event_record(u->event, x->q->stream, DS__OP_RECORD));
    u->stream = x->q->stream;
    u->recorded = 1;

    ds__arena_lock_ready(from, kind);
    ds__live_out(x->block);
    x->block->uses = u;
    ds__count_pending(from, kind, (int64_t)x->block->size);
    ds__pending_in(from, x->block);
    ds__arena_unlock(from);
}

/* Gives the block back to the owner's arena after ds__reuse_order_after_owner has failed. */
static void ds__reuse_roll_back(ds__reuse *x) {
    if (x->pending) {
        ds__reuse_pending_restore(x);
        return;
    }
    ds__reuse_use_destroy(x);
    ds__block_end(x->from, x->block);
}

/* Marks the block as lent to the request's stream, and hands it to the request. */
static void ds__reuse_publish(ds__reuse *x) {
    ds__arena *from = x->from;
    ds__wanted *q = x->q;
    ds__stream_use *u = x->use;
    u->stream = q->stream;
    u->stream_id = q->s->id;

    ds__arena_lock(from);
    if (x->own) {
        ds__stream_uses_destroy(from, u);
    } else {
        x->block->lent = 1;
        u->next = x->block->uses;
        x->block->uses = u;
        atomic_fetch_add(&from->dev->late_uses, 1);
    }
    ds__arena_unlock(from);

    q->block = x->block;
    /* the stream is ordered behind all earlier work on the block now */
    if (DS__UNLIKELY(q->block->stale))
        ds__poison_on(q->block, q->stream);
}

/* Serves the request from another stream's arena: takes a block there and makes the request's
   stream wait for the owner's work. 0: the arena has no block for it. No lock is held. */
static int ds__reuse_from_arena(ds__wanted *q, ds__arena *from) {
    ds__reuse x = { .q = q, .from = from };
    if (from == q->a)
        return 0;
    if (!ds__reuse_is_possible(&x) || !ds__reuse_reserve(&x))
        return 0;
    if (ds__reuse_order_after_owner(&x) < 0) {
        ds__reuse_roll_back(&x);
        return 0;
    }
    ds__reuse_publish(&x);
    return 1;
}

/* Searches all arenas of a pool, or only those of ended streams. */
static int ds__reuse_from_any(ds__wanted *q, ds__mem_pool *p, int orphans) {
    for (ds__arena *a = ds__first_arena(q->a->dev, p); a; a = a->next)
        if ((!orphans || ds__owner_of(a).orphan) && ds__reuse_from_arena(q, a))
            return 1;
    return 0;
}

/* Searches the pools with use_on_oom, for requests in the default pool. A pool may become a graph's
   meanwhile; ds__reuse_order_after_owner checks that. */
static int ds__reuse_from_pools(ds__wanted *q) {
    ds__mem_dev *dev = q->a->dev;
    if (q->a->pool != &dev->main)
        return 0;
    for (ds__mem_pool *p = ds__next_pool(dev, NULL); p; p = ds__next_pool(dev, p))
        if (p->use_on_oom && !p->dead && !p->graphs && ds__reuse_from_any(q, p, 0))
            return 1;
    return 0;
}

/* alloc/align.h - aligned allocations.

   Serves requests with an alignment above 512 bytes. ds__align_wanted cuts the front off a live
   block, so that the block starts aligned. The front and the unused end go back to the arena. The
   caller is ds__request_serve in allocate.h.

   Invariants: The block is live, was found for this request, and is larger than the request by
   the alignment. Label, call site and stream uses (ds__stream_use) move to the aligned block. If
   ds__align_wanted returns 0, nothing was cut and the caller must free the block. The unused end
   stays part of the block if the policy does not split there or if host memory is short.
   Locks: ds__align_wanted expects no lock and takes the lock of the block's arena. After
   cross-stream reuse, that arena is not the request's arena. If the counters need room, all locks
   of the device are taken for a moment (ds__arena_lock_ready). New descriptions may call the
   program's memory functions under the arena's lock. No driver call is made.
   Threads: any caller's thread; no other thread knows the block yet. */

/* Cuts the front off the request's block and frees it: the rest becomes the request's block.
   Returns 0 without host memory; then nothing has changed. The arena is locked and can count. */
static int ds__align_front_cut(ds__arena *a, ds__wanted *q, size_t front) {
    ds__mem_block *b = q->block;
    ds__mem_block *rest = ds__block_cut(a, b, front);
    if (!rest)
        return 0;
    ds__live_out(b);
    rest->asked = b->asked;
    rest->label = b->label;
    rest->file = b->file;
    rest->line = b->line;
    rest->uses = b->uses;
    rest->lent = b->lent;
    rest->oversize = b->oversize;
    b->oversize = 0;
    rest->state = DS_BLOCK_LIVE;
    b->uses = NULL;
    b->lent = 0;
    ds__live_in(a, rest);
    ds__count_less(a, q->kind, 0, (int64_t)front, 0);
    b->asked = 0;
    (void)ds__merge_in(a, b);
    q->block = rest;
    return 1;
}

/* Cuts the front of the request's block off so that the block starts aligned, and the end behind
   `size` bytes. The block is larger than `size` by the alignment. Returns 0 without host memory. */
static int ds__align_wanted(ds__wanted *q, size_t align, size_t size) {
    ds__arena *a = atomic_load(&q->block->seg->arena);
    size_t front = (align - (size_t)((uintptr_t)q->block->ptr & (align - 1))) & (align - 1);
    ds__arena_lock_ready(a, q->kind);
    if (front && !ds__align_front_cut(a, q, front)) {
        ds__arena_unlock(a);
        return 0;
    }

    ds__mem_block *b = q->block;
    ds__mem_block *rest = ds__block_may_split(a->pool, b, size) ? ds__block_cut(a, b, size) : NULL;
    if (rest) {
        ds__count_less(a, q->kind, 0, (int64_t)rest->size, 0);
        (void)ds__merge_in(a, rest);
    }
    ds__arena_unlock(a);
    return 1;
}

/* alloc/watched.h - guards, poison and checks of watched pools.

   Does the extra work of pools with poison, guard_bytes or debug from 2 on. ds__watched_alloc
   fills the guard behind a new block. ds__watched_free checks it, warns about damage, and
   poisons the block (poison.h).

   Invariants: A guard is a fill in stream order, and made only where ds__may_write permits it. A
   guard begins directly behind the requested bytes, rounded up to 4, and is checked only where
   one was filled (`guarded`). The policy may have changed since, or a capture was open then.
   Locks: expects no spinning lock; the freed block is claimed and in no list. ds__watched_alloc
   holds back new captures (ds__g.begin) around its fill. ds__watched_free may block the host
   until the uses of the block and the work of its stream are done.
   Threads: caller's threads, in allocations and frees. A guard is read on a stream of the
   allocator (ds__direct_giver), so a capture may begin on the block's stream meanwhile. */

#define DS__GUARD 0x5AFE5AFEu

/* Returns the start of a block's guard. */
static char *ds__guard_of(const ds__mem_block *b) {
    return b->ptr + ((b->asked + 3) & ~(size_t)3);
}

/* Checks the pool, and fills the guard of a new block in stream order. No lock is held. */
static ds_result ds__watched_alloc(ds__wanted *q, size_t guard) {
    ds__mem_block *b = q->block;
    ds_result r = ds__pool_check(q->a->pool, 2);
    if (r < 0 || !guard)
        return r;
    ds__hold_captures();
    if (ds__may_write(q->a->pool)) {
        r = ds__own_fill(q->stream, ds__guard_of(b), DS__GUARD, guard);
        if (r == DS_OK)
            b->guarded = (uint32_t)guard;
    }
    ds__let_captures();
    return r;
}

/* Copies memory of a block to the host. Uses the allocator's own stream, so a capture that begins
   on the block's stream is not invalidated. The work on the block is done. */
static ds_result ds__own_read(ds__arena *a, void *to, const void *from, size_t size) {
    ds_result r;
    ds__stream *s = ds__direct_giver(a->dev);
    if (!s)
        return ds__mem_error();
    ds_stream reader = { ds__handle_of(&s->slot) };
    DS__KEEPING(r, (ds_copy)(to, from, size, reader));
    if (r == DS_OK)
        r = ds__stream_sync(reader, DS__FOREVER);
    ds__stream_unpin(s);
    return r;
}

/* Logs that a block was overwritten `behind` bytes behind the requested ones. */
static void ds__guard_report(const ds__mem_block *b, size_t behind) {
    ds__log_warn("%zu bytes at %p%s%s, allocated at %s:%u, were overwritten %zu bytes "
                 "behind their end; found at the free at %s:%d",
                 b->asked, (void *)b->ptr, b->label ? " of " : "", b->label ? b->label : "",
                 b->file ? b->file : "?", b->line, behind,
                 ds__tls.site.file ? ds__tls.site.file : "?", ds__tls.site.line);
}

/* Checks the guard of a freed block, after the work on the block is done. Logs damage; the free
   succeeds, because it caused no damage. */
static void ds__guard_check(ds__arena *a, const ds__mem_block *b, size_t guard) {
    /* the work of the borrowing stream is one of the uses */
    if (!ds__uses_awaited(b->uses) || !(b->lent || ds__arena_drain(a)))
        return;
    const char *at = ds__guard_of(b);
    uint32_t *seen = ds__host_alloc(guard);
    if (seen && ds__own_read(a, seen, at, guard) == DS_OK)
        for (size_t i = 0; i < guard / sizeof *seen; i++)
            if (seen[i] != DS__GUARD) {
                ds__guard_report(b, (size_t)(at - b->ptr) + i * sizeof *seen - b->asked);
                break;
            }
    ds__host_free(seen);
}

/* Poisons a freed block: at once, if only the stream that has the block uses it. Otherwise the
   block stays `stale` and is poisoned when all uses are done, or by the stream that takes it
   earlier. */
static void ds__watched_poison(ds__arena *a, ds__mem_block *b) {
    const ds__stream_use *u = b->uses;
    ds__owner o = ds__owner_of(a);
    int alone;
    if (b->lent)
        alone = u && !u->next && !u->recorded && !u->lost;
    else
        alone = !u && !o.orphan;
    b->stale = 1;
    if (alone && !b->exported)
        ds__poison_on(b, b->lent ? u->stream : o.stream);
    else if (!u && !b->exported && !b->seg->direct)
        (void)ds__poison_late(a, b, 0);
}

/* Does the extra work of a free in a watched pool. The block is claimed and in no list; no lock is
   held. */
static void ds__watched_free(ds__arena *a, ds__mem_block *b) {
    size_t guard = b->guarded;
    b->guarded = 0;
    if (ds__captures_open())
        return;
    ds__tls.mute++;
    if (guard)
        ds__guard_check(a, b, guard);
    if (ds__pool_policy(a->pool)->poison)
        ds__watched_poison(a, b);
    if (ds__pool_check(a->pool, 2) < 0)
        ds__log_warn("%s", ds__tls.aside);
    ds__tls.mute--;
}

/* alloc/oom_owners.h - owners of live blocks.

   Groups live blocks by owner for out-of-memory reports and leak reports. An owner is a label,
   or a file and a line for blocks without a label. ds__oom_owners_add adds a block,
   ds__oom_owners_next takes out the owner with the most bytes. ds__oom_size_format (DS__SIZE)
   writes a size as text; pinned memory uses it too.

   Invariants: Labels are compared by their text, which belongs to the blocks. Names must be
   copied before the blocks can be freed. At most three quarters of the table are used; further
   owners, or all if there is no table, are summed in `rest`.
   Locks: Callers of ds__oom_owners_add and ds__oom_owner_name hold all locks of the device, except
   at shutdown. ds__oom_owners_begin calls the program's memory functions and must be called without
   a spinlock.
   Threads: each table belongs to one thread. */

typedef struct ds__oom_size {
    char text[24];
} ds__oom_size;

/* Returns a size as text, in the largest unit of which there is more than one. */
static ds__oom_size ds__oom_size_format(size_t n) {
    ds__oom_size s;
    double kib = (double)n / 1024;
    if (n <= 1024)
        snprintf(s.text, sizeof s.text, "%zu bytes", n);
    else if (n <= DS__MIB)
        snprintf(s.text, sizeof s.text, "%.2f KiB", kib);
    else if (n <= 1024 * DS__MIB)
        snprintf(s.text, sizeof s.text, "%.2f MiB", kib / 1024);
    else
        snprintf(s.text, sizeof s.text, "%.2f GiB", kib / 1048576);
    return s;
}

#define DS__SIZE(n) ds__oom_size_format(n).text

/* The largest number of slots in the table. Only three quarters are used; further owners are
   counted together, as `rest`. */
#define DS__OWNERS ((size_t)1 << 17)

/* An owner of live blocks: a label, else a file and line. Labels are compared by their text and
   belong to the blocks. */
typedef struct ds__oom_owner {
    const char *label;
    const char *file;
    uint32_t line;
    size_t bytes;
    size_t count;
} ds__oom_owner;

typedef struct ds__oom_owners {
    ds__oom_owner *slot; /* NULL: no memory for the table */
    size_t room;
    size_t used;
    ds__oom_owner rest;
} ds__oom_owners;

/* Makes a table for the owners of a number of blocks. */
static void ds__oom_owners_begin(ds__oom_owners *t, size_t blocks) {
    memset(t, 0, sizeof *t);
    for (t->room = 64; t->room < DS__OWNERS && t->room / 4 * 3 < blocks;)
        t->room *= 2;
    t->slot = ds__host_alloc(t->room * sizeof *t->slot);
}

static int ds__oom_text_same(const char *a, const char *b) {
    return a == b || (a && b && !strcmp(a, b));
}

/* Returns whether a block belongs to an owner: blocks with a label by the label, others by file and
   line. */
static int ds__oom_owner_has(const ds__oom_owner *o, const ds__mem_block *b) {
    return ds__oom_text_same(o->label, b->label) &&
           (b->label || (o->line == b->line && ds__oom_text_same(o->file, b->file)));
}

/* Returns the owner of a block, which is entered if there is room; else `rest`. */
static ds__oom_owner *ds__oom_owner_of(ds__oom_owners *t, const ds__mem_block *b) {
    uint32_t hash = 2166136261u ^ (b->label ? 0 : b->line); /* FNV-1a */
    const char *name = b->label ? b->label : b->file;
    for (const char *c = name ? name : ""; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    if (!t->slot)
        return &t->rest;
    size_t i = hash & (t->room - 1);
    while (t->slot[i].count && !ds__oom_owner_has(&t->slot[i], b))
        i = (i + 1) & (t->room - 1);

    ds__oom_owner *at = &t->slot[i];
    if (at->count)
        return at;
    if (t->used >= t->room / 4 * 3)
        return &t->rest;
    t->used++;
    at->label = b->label;
    at->file = b->file;
    at->line = b->line;
    return at;
}

/* Adds a live block to its owner. */
static void ds__oom_owners_add(ds__oom_owners *t, const ds__mem_block *b) {
    ds__oom_owner *o = ds__oom_owner_of(t, b);
    o->bytes += b->size;
    o->count++;
}

/* Takes out the owner with the most bytes: copies it to *out and returns its entry. Returns NULL
   after the last one. */
static ds__oom_owner *ds__oom_owners_next(ds__oom_owners *t, ds__oom_owner *out) {
    ds__oom_owner *best = &t->rest;
    for (size_t i = 0; t->slot && i < t->room; i++)
        if (t->slot[i].bytes > best->bytes)
            best = &t->slot[i];
    *out = *best;
    best->bytes = 0;
    return out->bytes ? best : NULL;
}

/* Writes the name of an owner that ds__oom_owners_next has returned. */
static void ds__oom_owner_name(const ds__oom_owners *t, const ds__oom_owner *which,
                               const ds__oom_owner *o, char out[80]) {
    if (which == &t->rest)
        snprintf(out, 80, t->slot ? "(many others)" : "(unknown owners: no memory)");
    else if (o->label)
        snprintf(out, 80, "%.79s", o->label);
    else if (o->file)
        snprintf(out, 80, "%.66s:%u", ds__short_path(o->file), (unsigned)o->line);
    else
        snprintf(out, 80, "(unknown)");
}

/* alloc/oom_walk.h - numbers for out-of-memory reports.

   Collects the numbers for the report of a failed request in ds__oom_facts (ds__oom_collect).
   The numbers cover the device, the limits, all blocks by state, the biggest owners, and free
   blocks that the request could not use. ds__oom_count returns the number of live blocks; the leak
   report uses it too.

   Invariants: `mine`, `kept`, `theirs` and `elsewhere` are sizes of the largest free block of
   the request's pool, each for one reason. `back` is computed by the rules of ds__arena_trim.
   Names of owners are copied while everything is locked, because a label lives as long as its
   block.
   Locks: ds__oom_collect expects none and takes all locks of the device twice: to read the
   number of live blocks, and to walk over all blocks. In between, without a lock, the table of
   owners is allocated. The driver is asked for free memory before any lock is taken.
   Threads: the thread of the failed request. */

#define DS__TOP 10

/* The numbers about a request that found no memory. */
typedef struct ds__oom_facts {
    ds__mem_dev *dev;
    ds__mem_pool *pool;
    size_t wanted;          /* bytes of the request */
    size_t size;            /* bytes of the block, with rounding, alignment and guard */
    size_t segment;         /* bytes that the driver was asked for */
    const ds__arena *arena; /* of the request */
    int kind;
    int aligned;
    int capturing; /* 1: a capture is open */
    size_t total;  /* of the device */
    size_t free;   /* of the device; 0 if the device does not tell */
    size_t
        outside;  /* used on the device, but not by the allocator; 0 if the device does not tell */
    int known;    /* 1: the device tells its free memory */
    size_t limit; /* 0: none */
    size_t pool_limit; /* 0: none */
    /* of all pools: */
    size_t reserved;
    size_t live;
    size_t pending;
    size_t cached;
    size_t live_count;
    size_t pending_count;
    size_t cached_count;
    size_t largest;
    /* of the request's pool: */
    size_t pool_reserved;
    size_t pool_cached;
    size_t pool_pending;
    /* the largest free block of the request's pool: */
    size_t mine;         /* in the request's arena */
    size_t kept;         /* not usable because of max_split_size */
    size_t theirs;       /* in another stream's arena */
    size_t elsewhere;    /* of the other kind */
    ds__arena *owner;    /* the arena of `theirs` */
    int apart;           /* 1: the request's stream cannot wait for the stream of `owner` */
    size_t back;         /* bytes that emptying the cache would give back without an open capture */
    size_t pool_back;    /* those of the request's pool */
    size_t awaited;      /* bytes that emptying the cache would wait for first */
    size_t pool_awaited; /* those of the request's pool */
    size_t private_reserved;
    size_t private_cached;
    ds__oom_owners owners;

    struct {
        char name[80];
        size_t bytes;
        size_t count;
    } top[DS__TOP];

    size_t tops;
    char hint[256];
} ds__oom_facts;

/* Counts a block by its state. `asked`: it is in the request's pool; `private_one`: it is not in
   the default pool. */
static void ds__oom_block(ds__oom_facts *s, const ds__mem_block *b, int asked, int private_one) {
    switch (b->state) {
    case DS_BLOCK_LIVE:
        s->live += b->size;
        s->live_count++;
        ds__oom_owners_add(&s->owners, b);
        break;
    case DS_BLOCK_PENDING:
        s->pending += b->size;
        s->pending_count++;
        if (asked)
            s->pool_pending += b->size;
        break;
    case DS_BLOCK_FREE:
        s->cached += b->size;
        s->cached_count++;
        if (b->size > s->largest)
            s->largest = b->size;
        if (asked)
            s->pool_cached += b->size;
        if (private_one)
            s->private_cached += b->size;
        break;
    default:
        break;
    }
}

/* Returns the member for a free block of the request's pool, by the reason why the request did not
   get the block. */
static size_t *ds__oom_place_of(ds__oom_facts *s, const ds__arena *a, const ds__mem_block *b) {
    if (b->seg->kind != s->kind)
        return &s->elsewhere;
    if (s->pool->oversize && !ds__segment_is_growing(b->seg) && b->size >= s->size &&
        ds__too_large(s->pool, b->size, s->size))
        return &s->kept;
    return a == s->arena ? &s->mine : &s->theirs;
}

/* Notes the size of a block of the request's pool if it is the largest free one for its reason. */
static void ds__oom_place(ds__oom_facts *s, ds__arena *a, const ds__mem_block *b) {
    if (b->state != DS_BLOCK_FREE || b->claimed)
        return;
    size_t *at = ds__oom_place_of(s, a, b);
    if (b->size <= *at)
        return;
    *at = b->size;
    if (at == &s->theirs)
        s->owner = a;
}

/* Returns the bytes of a segment that emptying the cache would give back, by the rules of
   ds__arena_trim. Adds pending bytes to *awaited. */
static size_t ds__oom_back(const ds__segment *g, size_t *awaited) {
    size_t bytes = 0;
    for (const ds__mem_block *b = g->first; b; b = b->next) {
        if (b->state == DS_BLOCK_PENDING)
            *awaited += b->size;
        if (b->state != DS_BLOCK_FREE)
            continue;
        size_t from = (size_t)(b->ptr - g->base);
        size_t to = from + b->size;
        if (ds__segment_is_growing(g)) {
            from = (from + g->page - 1) / g->page * g->page;
            to = to / g->page * g->page;
        }
        if (to > from && (ds__segment_is_growing(g) || !ds__is_split(b)))
            bytes += to - from;
    }
    return bytes;
}

/* Returns the number of live blocks. All is locked. */
static size_t ds__oom_count(ds__mem_dev *dev) {
    int64_t now[2][DS__METRICS];
    ds__domain_now(dev, NULL, now, NULL);
    return (size_t)(now[0][DS__ALLOCATION] + now[1][DS__ALLOCATION]);
}

/* Collects the numbers of all blocks and segments. All is locked. */
static void ds__oom_walk(ds__oom_facts *s) {
    for (const ds__mem_pool *p = &s->dev->main; p; p = p->next) {
        int asked = p == s->pool;
        int private_one = p != &s->dev->main;
        int emptied = !p->graphs && (asked || !private_one || p->owners == 0);
        for (ds__arena *a = p->arenas; a; a = a->next) {
            for (const ds__segment *g = a->segments; g; g = g->next) {
                size_t awaited = 0;
                size_t back = emptied ? ds__oom_back(g, &awaited) : 0;
                s->back += back;
                s->awaited += awaited;
                if (asked) {
                    s->pool_back += back;
                    s->pool_awaited += awaited;
                }
                s->reserved += g->mapped;
                if (asked)
                    s->pool_reserved += g->mapped;
                if (private_one)
                    s->private_reserved += g->mapped;
                for (const ds__mem_block *b = g->first; b; b = b->next) {
                    ds__oom_block(s, b, asked, private_one);
                    if (asked)
                        ds__oom_place(s, a, b);
                }
            }
        }
    }
}

/* Stores the biggest owners with copies of their names, because a block and its label may go once
   the locks are released. All is locked. */
static void ds__oom_rank(ds__oom_facts *s) {
    ds__oom_owner o;
    for (s->tops = 0; s->tops < DS__TOP; s->tops++) {
        const ds__oom_owner *which = ds__oom_owners_next(&s->owners, &o);
        if (!which)
            return;
        ds__oom_owner_name(&s->owners, which, &o, s->top[s->tops].name);
        s->top[s->tops].bytes = o.bytes;
        s->top[s->tops].count = o.count;
    }
}

/* Collects the numbers. No lock is held. */
static void ds__oom_collect(ds__oom_facts *s) {
    ds__tls.mute++; /* an error here is not the one to report */
    s->known =
        ds__driver_of(s->dev->device)->device_memory(s->dev->device.index, &s->free, &s->total) ==
        DS_OK;
    ds__tls.mute--;
    if (!s->known) {
        s->free = 0;
        s->total = s->dev->total;
    }
    s->limit = atomic_load_explicit(&s->dev->limit, memory_order_relaxed);
    s->pool_limit = s->pool->limit;
    ds__mem_lock_all(s->dev);
    size_t live = ds__oom_count(s->dev);
    ds__mem_unlock_all(s->dev);
    /* without locks, because the program's memory functions are called */
    ds__oom_owners_begin(&s->owners, live);
    ds__mem_lock_all(s->dev);
    ds__oom_walk(s);
    ds__oom_rank(s);
    ds__mem_unlock_all(s->dev);
    ds__host_free(s->owners.slot);
    if (s->known && s->total > s->free && s->total - s->free > s->reserved)
        s->outside = s->total - s->free - s->reserved;
}

/* alloc/oom_hint.h - advice in out-of-memory reports.

   Chooses one sentence of advice for a request that found no memory (ds__oom_hint), from the
   numbers in ds__oom_facts. The first reason that applies wins. The order is: impossible
   requests, an open capture, unusable cached memory, the pool's limit, the device's limit, other
   users of the device, live blocks.

   Invariants: oom_walk.h has collected the numbers before; nothing is read from blocks or arenas
   here. ds__oom_fits decides whether memory given back would serve the request under all
   limits. The text is cut to the size of `hint`.
   Locks: takes none and expects none. ds__oom_could_grow may reserve address space from the
   driver and release it, with errors muted.
   Threads: the thread of the failed request. */

/* Returns the fragmentation in percent. */
static int ds__oom_fragmentation(const ds__oom_facts *s) {
    return s->cached ? (int)(100.0 * (1.0 - (double)s->largest / (double)s->cached) + 0.5) : 0;
}

/* Returns whether growing segments are off but possible. */
static int ds__oom_could_grow(const ds__oom_facts *s) {
    void *at = NULL;
    size_t page = 0;
    if (ds__pool_policy(s->pool)->expandable_segments || s->pool->has_upstream ||
        s->pool->shareable || s->dev->has_space == 0)
        return 0;
    if (s->dev->has_space > 0)
        return 1;
    ds__tls.mute++;
    ds_result r = ds__space_reserve(s->dev->device, 2 * DS__MIB, &page, &at);
    if (r == DS_OK)
        ds__space_release(s->dev->device, at, 2 * DS__MIB);
    ds__tls.mute--;
    return r == DS_OK;
}

/* Returns whether the request could be served if `back` bytes went back to the device, `pool_back`
   of these from the pool. */
static int ds__oom_fits(const ds__oom_facts *s, size_t back, size_t pool_back) {
    size_t need = s->segment > s->size ? s->segment : s->size;
    size_t left = s->reserved - back;
    size_t pool_left = s->pool_reserved - pool_back;
    if (s->limit && (left > s->limit || need > s->limit - left))
        return 0;
    if (s->pool_limit && (pool_left > s->pool_limit || need > s->pool_limit - pool_left))
        return 0;
    return !s->known || need <= s->free + back;
}

/* Advice if an open capture keeps memory from the request. Returns 0 if the reason does not
   apply. */
static int ds__oom_hint_capture(ds__oom_facts *s) {
    const ds_mem_config *c = ds__pool_policy(s->pool);
    if (!s->capturing || ds__oom_fits(s, 0, 0))
        return 0;
    if (s->back && ds__oom_fits(s, s->back, s->pool_back))
        return snprintf(s->hint, sizeof s->hint,
                        "%s are cached, but cannot be freed while a capture is open; call %s "
                        "before the capture",
                        DS__SIZE(s->back),
                        s->back == s->pool_back && s->pool != &s->dev->main ? "ds_pool_empty_cache"
                                                                            : "ds_mem_empty_cache");
    if (s->awaited && ds__oom_fits(s, s->back + s->awaited, s->pool_back + s->pool_awaited))
        return snprintf(s->hint, sizeof s->hint,
                        "%s are freed but in use by other streams, which are not polled while a "
                        "capture is open; empty the cache before the capture",
                        DS__SIZE(s->awaited));
    if (s->pool->name[0] && s->pool_pending >= s->size && c->reuse == DS_REUSE_NEVER &&
        !c->graph_capture_record_stream_reuse)
        return snprintf(s->hint, sizeof s->hint,
                        "%s are freed, and other streams of the capture have used them; "
                        "graph_capture_record_stream_reuse:True allows their reuse",
                        DS__SIZE(s->pool_pending));
    return 0;
}

/* Returns the advice about a free block of another stream. */
static const char *ds__oom_theirs_advice(const ds__oom_facts *s) {
    if (s->apart)
        return ", and this stream cannot wait for it while a capture is open";
    if (ds__pool_policy(s->pool)->reuse == DS_REUSE_NEVER)
        return "; with reuse:on_shortage this stream may wait for it";
    return "; wait for that stream, or allocate on it";
}

/* Returns the reason why the block must be larger than the request. */
static const char *ds__oom_enlarged_by(const ds__oom_facts *s) {
    const ds_mem_config *c = ds__pool_policy(s->pool);
    if (s->aligned)
        return "the alignment";
    if (c->guard_bytes)
        return "guard_bytes";
    return ds__request_has_rounding(c) ? "roundup_power2_divisions" : "rounding";
}

/* Advice if one block would be large enough, but cannot be used. Returns 0 if the reason does not
   apply. */
static int ds__oom_hint_block(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (s->mine >= s->size)
        return snprintf(out, room, "a block of %s was freed during the call; try again",
                        DS__SIZE(s->mine));
    if (s->kept >= s->size)
        return snprintf(out, room, "a free block of %s is not split because of max_split_size, %s",
                        DS__SIZE(s->kept), DS__SIZE(ds__pool_policy(s->pool)->max_split_size));
    if (s->theirs >= s->size)
        return snprintf(out, room, "a free block of %s belongs to another stream%s",
                        DS__SIZE(s->theirs), ds__oom_theirs_advice(s));
    if (s->elsewhere >= s->size)
        return snprintf(
            out, room,
            "a free block of %s is in segments for %s requests; single_pool:True shares segments",
            DS__SIZE(s->elsewhere), s->kind == DS__SMALL ? "large" : "small");
    if (s->mine >= s->wanted)
        return snprintf(out, room,
                        "a free block of %s would fit, but %s enlarges the request to %s",
                        DS__SIZE(s->mine), ds__oom_enlarged_by(s), DS__SIZE(s->size));
    return 0;
}

/* Advice if there is enough memory that cannot be used: pending, in one block, in pieces, or in
   other pools. Returns 0 if the reason does not apply. */
static int ds__oom_hint_cached(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (s->pool_pending >= s->size && !s->capturing)
        return snprintf(out, room,
                        "%s are freed but in use by other streams; synchronize those, or call "
                        "ds_mem_record_use right after their last use",
                        DS__SIZE(s->pool_pending));
    int n = ds__oom_hint_block(s);
    if (n)
        return n;
    if (s->pool_cached >= s->wanted && ds__oom_could_grow(s))
        return snprintf(out, room,
                        "%s are cached in pieces too small; with expandable_segments:True pieces "
                        "can be remapped",
                        DS__SIZE(s->pool_cached));
    if (s->pool_cached >= s->wanted)
        return snprintf(out, room,
                        "%s are cached in pieces too small; allocate long-lived blocks first, or "
                        "use fewer sizes (roundup_power2_divisions:4)",
                        DS__SIZE(s->pool_cached));
    if (s->private_cached >= s->wanted)
        return snprintf(out, room,
                        "%s are free in private pools; destroy unused graphs and pools, or create "
                        "the pools with use_on_oom",
                        DS__SIZE(s->private_cached));
    return 0;
}

/* Advice if no freed memory would help: the request exceeds the device or a limit, or an upstream
   has refused. Returns 0 if the reason does not apply. */
static int ds__oom_hint_impossible(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    size_t most = s->limit && s->limit < s->total ? s->limit : s->total;
    if (s->wanted >= (size_t)1 << 60)
        return snprintf(
            out, room,
            "no device has 2^60 bytes; the size looks like a negative number or an overflow");
    if (ds__memory_thread.upstream_empty)
        return snprintf(out, room,
                        "the pool's upstream returned NULL; check the upstream's own report");
    if (s->total && s->wanted > s->total)
        return snprintf(out, room, "the device is smaller than the request");
    if (most && s->wanted > most)
        return snprintf(
            out, room,
            "the request is larger than the limit of %s; raise it by ds_mem_set_limit or "
            "ds_mem_set_fraction",
            DS__SIZE(most));
    if (s->pool_limit && s->wanted > s->pool_limit)
        return snprintf(out, room, "the request is larger than the pool's limit of %s",
                        DS__SIZE(s->pool_limit));
    return 0;
}

/* Returns whether a limit (0: none) prevents the segment while so many bytes are reserved. */
static int ds__oom_exceeds(const ds__oom_facts *s, size_t limit, size_t reserved) {
    return limit && s->segment > limit - (reserved < limit ? reserved : limit);
}

/* Advice if a limit prevents the allocation. Returns 0 if the reason does not apply. */
static int ds__oom_hint_limit(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (ds__oom_exceeds(s, s->pool_limit, s->pool_reserved))
        return snprintf(
            out, room,
            "only the pool's limit of %s prevents the allocation; raise it, or free memory of "
            "the pool",
            DS__SIZE(s->pool_limit));
    if (ds__oom_exceeds(s, s->limit, s->reserved))
        return snprintf(
            out, room,
            "only the limit of %s prevents the allocation; raise it by ds_mem_set_limit or "
            "ds_mem_set_fraction (limit, per_process_memory_fraction)",
            DS__SIZE(s->limit));
    return 0;
}

/* Writes the advice of the first reason that applies to s->hint. */
static void ds__oom_hint(ds__oom_facts *s) {
    char *out = s->hint;
    const size_t room = sizeof s->hint;
    if (ds__oom_hint_impossible(s) || ds__oom_hint_capture(s) || ds__oom_hint_cached(s) ||
        ds__oom_hint_limit(s))
        return;
    if (s->outside >= s->wanted || s->outside > s->total / 2)
        snprintf(out, room,
                 "%s of the device are used outside the allocator: processes "
                 "(ds_mem_write_processes), contexts, libraries, ds_device_alloc",
                 DS__SIZE(s->outside));
    else if (s->tops && s->top[0].bytes > s->live / 2)
        snprintf(out, room, "%.60s has %s of the %s allocated bytes; check this owner first",
                 s->top[0].name, DS__SIZE(s->top[0].bytes), DS__SIZE(s->live));
    else
        snprintf(out, room, "live blocks use all memory; free some, or use smaller requests");
}

/* alloc/oom_report.h - out-of-memory report.

   Writes the report of a request that found no memory (ds__oom_report): one sentence for
   ds_error_get_last, and a page for ds_mem_get_last_report. Numbers come from oom_walk.h, the
   advice from oom_hint.h. ds__oom_page_print is a text writer for a fixed buffer (ds__oom_page).

   Invariants: The page belongs to the thread, until the next shortage on the thread or the end
   of the thread. If there is no host memory for the page, ds_mem_get_last_report gives an empty
   string; the sentence is set in any case. The sentence leaves out owners, the smallest first,
   if they do not fit.
   Locks: expects none. ds__oom_collect takes all locks of the device; the program's memory and
   log functions are called without a lock.
   Threads: the thread of the failed request; ds_mem_get_last_report: any thread, for its own
   page. */

/* A text of limited size. */
typedef struct ds__oom_page {
    char *text;
    size_t room;
    size_t n;
} ds__oom_page;

/* Appends formatted text, and cuts the part without room. */
__attribute__((format(DS__PRINTF, 2, 3))) static void ds__oom_page_print(ds__oom_page *p,
                                                                         const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(p->text + p->n, p->room - p->n, format, args);
    va_end(args);
    if (n > 0)
        p->n = p->n + (size_t)n < p->room ? p->n + (size_t)n : p->room - 1;
}

/* Writes the part of the page about the request. */
static void ds__oom_page_request(const ds__oom_facts *s, ds__oom_page *p) {
    const char *type = ds__type_name(s->dev->device.type);
    ds__oom_page_print(p, "out of memory on %s:%d", type, s->dev->device.index);
    if (ds__tls.site.file)
        ds__oom_page_print(p, " in %s at %s:%d", ds__tls.fn, ds__short_path(ds__tls.site.file),
                           ds__tls.site.line);
    ds__oom_page_print(p, "\n  asked for       %s", DS__SIZE(s->wanted));
    if (s->segment != s->wanted)
        ds__oom_page_print(p, ", for which %s were needed", DS__SIZE(s->segment));
    if (s->pool->name[0])
        ds__oom_page_print(p, ", from the capture's own pool");
    else if (s->pool != &s->dev->main)
        ds__oom_page_print(p, ", from the pool %s",
                           s->pool->label ? s->pool->label : "without a label");
}

/* Writes the part of the page about the device and the limits. */
static void ds__oom_page_device(const ds__oom_facts *s, ds__oom_page *p) {
    ds__oom_page_print(p, "\n  device          %s in all, %s free", DS__SIZE(s->total),
                       s->known ? DS__SIZE(s->free) : "an unknown amount");
    if (s->outside)
        ds__oom_page_print(p, ", %s used outside this allocator", DS__SIZE(s->outside));
    ds__oom_page_print(p, "\n  limit           %s", s->limit ? DS__SIZE(s->limit) : "none");
    if (s->pool_limit)
        ds__oom_page_print(p, ", of the pool %s, which has reserved %s", DS__SIZE(s->pool_limit),
                           DS__SIZE(s->pool_reserved));
    ds__oom_page_print(p, "\n  reserved        %s", DS__SIZE(s->reserved));
    if (s->private_reserved)
        ds__oom_page_print(p, ", %s of it by private pools, of which %s are cached",
                           DS__SIZE(s->private_reserved), DS__SIZE(s->private_cached));
}

/* Writes a line about blocks in one state. */
static void ds__oom_page_blocks(ds__oom_page *p, const char *state, size_t bytes, size_t count,
                                const char *remark) {
    ds__oom_page_print(p, "\n  %-16s%s in %zu block%s%s", state, DS__SIZE(bytes), count,
                       count == 1 ? "" : "s", remark);
}

/* Writes the page of ds_mem_get_last_report. */
static void ds__oom_page_write(const ds__oom_facts *s, ds__oom_page *p) {
    ds__oom_page_request(s, p);
    ds__oom_page_device(s, p);
    ds__oom_page_blocks(p, "allocated", s->live, s->live_count, "");
    ds__oom_page_blocks(p, "pending", s->pending, s->pending_count,
                        ", freed while other streams use them");
    ds__oom_page_blocks(p, "cached", s->cached, s->cached_count, "");
    ds__oom_page_print(p, "\n  largest free    %s\n  fragmentation   %d %%\n", DS__SIZE(s->largest),
                       ds__oom_fragmentation(s));
    if (s->tops)
        ds__oom_page_print(p, "biggest owners\n");
    for (size_t i = 0; i < s->tops; i++)
        ds__oom_page_print(p, "  %-16s in %6zu block%s %s\n", DS__SIZE(s->top[i].bytes),
                           s->top[i].count, s->top[i].count == 1 ? " " : "s", s->top[i].name);
    ds__oom_page_print(p, "hint: %s\n", s->hint);
}

/* Writes the sentence of ds_error_get_last. Leaves out owners without room, the smallest ones
   first. */
static void ds__oom_line(const ds__oom_facts *s, ds__oom_page *p) {
    const size_t tail = strlen(s->hint) + 16;
    ds__oom_page_print(p, "%s were requested on %s:%d, which has %s, %s free", DS__SIZE(s->wanted),
                       ds__type_name(s->dev->device.type), s->dev->device.index, DS__SIZE(s->total),
                       s->known ? DS__SIZE(s->free) : "unknown");
    if (s->limit)
        ds__oom_page_print(p, ", limit %s", DS__SIZE(s->limit));
    if (s->pool_limit)
        ds__oom_page_print(p, ", limit of the pool %s", DS__SIZE(s->pool_limit));
    ds__oom_page_print(
        p, "; allocated %s, reserved %s, pending %s, largest free %s, fragmentation %d %%",
        DS__SIZE(s->live), DS__SIZE(s->reserved), DS__SIZE(s->pending), DS__SIZE(s->largest),
        ds__oom_fragmentation(s));
    for (size_t i = 0; i < s->tops; i++) {
        ds__oom_size size = ds__oom_size_format(s->top[i].bytes);
        if (p->n + strlen(s->top[i].name) + strlen(size.text) + tail >= p->room)
            break;
        ds__oom_page_print(p, "%s%s %s", i ? ", " : "; most: ", s->top[i].name, size.text);
    }
    ds__oom_page_print(p, "; hint: %s", s->hint);
}

/* Collects the numbers about a request. `segment`: the bytes that the driver was asked for. No lock
   is held. */
static void ds__oom_facts_set(ds__oom_facts *s, const ds__wanted *q, size_t segment) {
    memset(s, 0, sizeof *s);
    s->dev = q->a->dev;
    s->pool = q->a->pool;
    s->arena = q->a;
    s->wanted = q->asked;
    s->size = q->size;
    s->kind = q->kind;
    s->aligned = q->aligned;
    s->capturing = ds__captures_open() != 0;
    /* a growing segment maps the request's own pages only */
    int grows = ds__pool_policy(s->pool)->expandable_segments && s->dev->has_space > 0;
    s->segment = segment > s->wanted && !grows ? segment : s->wanted;
    ds__oom_collect(s);
    s->apart = s->capturing && s->owner && !ds__can_await(q, ds__owner_of(s->owner));
}

/* Returns how many of `most` characters ds__fail can store behind the call site and the name of the
   function. */
static size_t ds__oom_line_room(size_t most) {
    size_t before = (ds__tls.site.file ? strlen(ds__tls.site.file) + 14 : 0) +
                    (ds__tls.fn ? strlen(ds__tls.fn) : 9) + 3;
    if (before + most <= sizeof ds__tls.error)
        return most;
    return before + 200 < sizeof ds__tls.error ? sizeof ds__tls.error - before : 200;
}

/* Sets the error `why` with a sentence about the shortage, and the thread's report. `segment`: the
   bytes that the driver was asked for. No lock is held. */
__attribute__((cold, noinline)) DS__SEAM static void ds__oom_report(const ds__wanted *q,
                                                                    size_t segment, ds_result why) {
    char line[450];
    ds__oom_facts s;
    ds__oom_page page = { NULL, 6144, 0 };
    ds__oom_page sentence = { line, ds__oom_line_room(sizeof line), 0 };
    ds__caller *t = ds__my_caller();
    ds__oom_facts_set(&s, q, segment);
    ds__oom_hint(&s);
    page.text = t ? ds__host_alloc(page.room) : NULL;
    if (page.text)
        ds__oom_page_write(&s, &page);
    if (t) {
        ds__host_free(t->module[DS__MODULE_ALLOC]);
        t->module[DS__MODULE_ALLOC] = page.text;
    }
    ds__oom_line(&s, &sentence);
    ds__fail(why, "%s", line);
    if (ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_OOM,
                                         .bytes = q->asked,
                                         .device = q->a->dev->device,
                                         .stream = q->stream,
                                         .result = why });
}

DSDEF const char *(ds_mem_get_last_report)(void) {
    const ds__caller *t = ds__my_caller();
    const char *report = t && ds__tls.epoch == ds__g.epoch ? t->module[DS__MODULE_ALLOC] : NULL;
    return report ? report : "";
}

/* alloc/free.h - freeing blocks.

   Implements ds_mem_free: a fast path that parks the block, ds__free_other for blocks with
   recorded uses or observers, and ds__free_slow for all other cases.

   Invariants: A block with uses, with poison to write, or with users in other processes becomes
   pending. All other blocks from a cache become free at once. While ds__free_slow works without
   the lock, its block is pending, claimed and in no list, and already counted as freed. A use
   without a recorded event gets an event at the free. If its stream is in another capture, the
   use gets the event after that capture.
   Locks: ds_mem_free takes the arena's lock, and gives that lock up for events, guards and
   driver calls. Events are recorded under ds__g.begin (ds__hold_captures), never under the
   arena's lock. ds__share_hold takes ds__share.lock under the arena's lock. Observers may be
   invoked under the arena's lock. ds__free_slow and ds__free_other expect that lock and release
   it.
   Threads: any caller's thread, in any order to the streams' work. */

/* Makes a live block pending, claimed and in no list, and counts the free. The arena is locked and
   ready. */
static void ds__free_begin(ds__arena *a, ds__mem_block *b) {
    ds__live_out(b);
    b->claimed = 1;
    b->state = DS_BLOCK_PENDING;
    ds__count_pending(a, b->seg->kind, (int64_t)b->size);
    if (b->oversize) {
        b->oversize = 0;
        ds__count_oversize(a, -1);
    }
    ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
}

/* Records the events of the uses that have none. After a failure of the device, there is nothing to
   wait for; after another error, the events are recorded later. No lock is held. */
static void ds__free_uses_record(ds__mem_block *b) {
    ds__tls.mute++;
    ds_result r = ds__record_uses(b);
    if (r == DS_ERR_FAILED)
        for (ds__stream_use *u = b->uses; u; u = u->next)
            u->recorded = 1;
    ds__tls.mute--;
}

/* Frees a block in all cases that the fast path does not cover. The arena is locked and the block
   is live; unlocks the arena. */
__attribute__((noinline)) static ds_result ds__free_slow(ds__arena *a, ds__mem_block *b) {
    char *ptr = b->ptr;
    int kind = b->seg->kind;
    if (a->dev->device.type == DS_DEVICE_HOST) {
        ds__arena_unlock(a);
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is pinned memory; use ds_mem_pinned_free",
                        (void *)ptr);
    }
    while (!ds__counter_room_ready(a, kind, 0)) {
        ds__make_ready(a, kind, 0);
        ds__arena *again = NULL;
        b = ds__find_live(ptr, 1, &again); /* it may have been freed meanwhile */
        if (!b)
            return ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                            (void *)ptr);
        a = again;
    }

    int exported = b->exported;
    ds__free_begin(a, b);
    ds__arena_unlock(a);
    if (a->watched || b->guarded)
        ds__watched_free(a, b);
    if (b->seg->direct)
        return ds__direct_free(a, b);
    ds__free_uses_record(b);

    ds__arena_lock_ready(a, kind);
    b->claimed = 0;
    int held = b->exported && ds__share_hold(b); /* until ds__mem_return */
    if (!held && (b->uses || b->stale))
        ds__pending_in(a, b);
    else if (!held)
        ds__pending_complete(a, b);
    ds__arena_unlock(a);
    if (exported)
        (void)ds__share_collect();
    return DS_OK;
}

/* Frees a block that other streams used or that is in a plain segment, or while events are
   reported. The arena is locked and ready; unlocks the arena. */
__attribute__((noinline)) static ds_result ds__free_other(ds__arena *a, ds__mem_block *b, int kind,
                                                          unsigned watch) {
    if (DS__UNLIKELY(b->uses != NULL)) {
        for (const ds__stream_use *u = b->uses; u; u = u->next)
            if (u->recorded != 1)
                return ds__free_slow(a, b);
        ds__live_out(b);
        ds__count_pending(a, kind, (int64_t)b->size);
        if (watch)
            ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
        ds__pending_in(a, b);
        ds__spinlock_unlock(&a->lock);
        return DS_OK;
    }
    if (DS__UNLIKELY(watch))
        ds__note_free(a, b, watch);
    ds__count_free(a, kind, (int64_t)b->size, (int64_t)b->asked);
    if (DS__LIKELY(ds__segment_is_growing(b->seg))) {
        ds__block_park(a, b, kind);
    } else {
        ds__live_out(b);
        (void)ds__merge_in(a, b);
    }
    ds__spinlock_unlock(&a->lock);
    return DS_OK;
}

static ds_result ds__mem_free_late(uint64_t what) {
    return (ds_mem_free)((void *)(uintptr_t)what);
}

DSDEF ds_result(ds_mem_free)(void *ptr) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_memory("ds_mem_free", ptr, DS_MEMORY_DEVICE, ds__mem_free_late);
    ds_result r = ds__api_enter_inline("ds_mem_free");
    if (DS__UNLIKELY(r < 0))
        return r;
    if (DS__UNLIKELY(!ptr))
        return DS_OK;
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 1, &a);
    DS__REQUIRE(b, "%p is not the start of a live allocation", ptr);
    int kind = b->seg->kind;
    /* neither exported nor lent */
    if (DS__UNLIKELY(b->flags != DS__FLAGS_LIVE || a->slow_free ||
                     !ds__counter_room_ready(a, kind, 0)))
        return ds__free_slow(a, b);
    unsigned watch = atomic_load_explicit(&a->dev->watch, memory_order_relaxed);
    if (DS__UNLIKELY(b->uses || watch || !ds__segment_is_growing(b->seg)))
        return ds__free_other(a, b, kind, watch);
    ds__count_free(a, kind, (int64_t)b->size, (int64_t)b->asked);
    ds__block_park(a, b, kind);
    ds__spinlock_unlock(&a->lock);
    return DS_OK;
}

/* alloc/fallback.h - fallback chain of a request.

   Serves a request for which the arena has no free block (ds__ask_slow). ds__fallback_serve, the
   fallback chain, tries all sources of memory in order. ds__segment_obtain gets memory from the
   driver or the upstream. If all fails, ds__tell_oom informs the callbacks and ds__oom_report
   (oom_report.h) sets the error.

   Policy: The arena is searched again after each step.
   1. Free the pending blocks of the arena if their uses are done (not while a capture is open).
   2. Take a pending block and make the request's stream wait for its uses, if `reuse` permits
      this, or graph_capture_record_stream_reuse during a capture.
   3. Cross-stream reuse of ended streams' blocks in the pool; with DS_REUSE_ALWAYS, of all
      streams'.
   4. Collect exported blocks without users, then garbage (garbage_collection_threshold).
   5. Grow, by pages or by a plain segment.
   6. Cross-stream reuse in pools with use_on_oom.
   7. Give back blocks of max_split_size or more, and grow.
   8. Unless `reuse` is never: cross-stream reuse of all arenas of the pool.
   9. Empty the caches, shrink the driver's pool, and grow (not while a capture is open).
   10. Repeat the cross-stream reuse of steps 3, 6 and 8, now also of pending blocks of more than
       twice the size.
   11. Invoke the shortage callbacks. If memory was freed, repeat once from step 5.

   Invariants: A request that fails has taken no block. Errors of single steps are muted
   (ds__tls.mute); only the last result reaches the caller. A request from inside a pool's
   upstream for the same pool is refused.
   Locks: ds__ask_slow expects no spinlock. ds__segment_obtain holds `grow` of the arena while the
   driver or the program's upstream allocates. Shortage and out-of-memory callbacks run without a
   lock of this call. ds__memory_state.lock is held only to read one entry of the list of callbacks.
   Threads: any caller's thread. Other threads may take memory that a step has found, so growing
   is tried up to 16 times. */

/* Gets memory for a request: by pages of a growing segment, or by a plain segment. Sets q->block if
   another thread has made room meanwhile. No lock is held. */
static ds_result ds__segment_obtain(ds__wanted *q) {
    ds__arena *a = q->a;
    ds__mem_dev *dev = a->dev;
    ds_result r = DS_ERR_UNSUPPORTED;
    ds__mutex_lock(&a->grow);
    if (ds__request_try(q)) { /* another thread was faster */
        ds__mutex_unlock(&a->grow);
        return DS_OK;
    }
    if (ds__pool_policy(a->pool)->expandable_segments && dev->has_space && !a->pool->has_upstream &&
        !a->pool->shareable && !a->pool->no_split) {
        r = ds__grow_mapped(a, q->kind, q->size);
        if (r != DS_ERR_UNSUPPORTED)
            dev->has_space = 1;
        else if (!dev->space_missed)
            dev->has_space = 0;
    }
    if (r == DS_ERR_UNSUPPORTED)
        r = ds__grow_plain(a, q->kind, q->size);
    ds__mutex_unlock(&a->grow);
    q->fresh = r == DS_OK;
    return r;
}

/* Invokes the shortage callbacks, which may call devstream, but must not allocate
   (ds__request_serve). Returns whether one has freed memory. No lock is held. */
static int ds__call_shortage(ds__mem_dev *dev, size_t size) {
    int freed = 0;
    for (size_t i = 0;; i++) {
        ds__callback c = ds__callback_get(&ds__memory_state.shortage, i);
        if (!c.fn)
            return freed;
        ds__user_code g = ds__user_code_begin();
        ds__tls.in_callback = g.outer;
        ds__memory_thread.in_shortage = 1;
        freed |= ((ds_mem_shortage_fn)c.fn)(dev->device, size, c.user) != 0;
        ds__memory_thread.in_shortage = 0;
        ds__user_code_end(&g);
    }
}

/* Steps 1 to 4: searches memory that the allocator has. 1: q->block is found. */
static int ds__fallback_cached(ds__wanted *q, const ds_mem_config *c, int no_query) {
    ds__arena *a = q->a;
    ds__mem_pool *p = a->pool;
    if (!no_query && ds__pending_poll(a, 0) && ds__request_try(q))
        return 1;

    int behind = c->reuse != DS_REUSE_NEVER ||
                 (c->graph_capture_record_stream_reuse && ds__capture_of_handle(q->stream));
    ds__pending_wanted pending = {
        .kind = q->kind, .size = q->size, .most = SIZE_MAX, .stream = q->stream
    };
    if (behind && ds__take_pending(a, &pending) && ds__request_try(q))
        return 1;

    /* free memory of ended streams may be used by any stream */
    if (ds__reuse_from_any(q, p, c->reuse != DS_REUSE_ALWAYS))
        return 1;
    if (ds__share_collect() && ds__request_try(q))
        return 1;
    ds__collect_garbage(a->dev, p);
    return 0;
}

/* Grows the arena and searches it again, because another thread may have taken the new memory. Sets
   q->block if a block was found. */
static ds_result ds__fallback_grow(ds__wanted *q) {
    ds_result r = ds__segment_obtain(q);
    if (r == DS_OK && !q->block)
        (void)ds__request_try(q);
    return r;
}

/* Steps 6 to 10: searches other pools and streams, and returns cached memory to the driver in
   order to grow. Returns the last result of growing, `r` if nothing grew. Sets q->block if a
   block was found. */
static ds_result ds__fallback_release(ds__wanted *q, const ds_mem_config *c, int no_query,
                                      ds_result r) {
    ds__arena *a = q->a;
    ds__mem_pool *p = a->pool;
    ds__mem_dev *dev = a->dev;
    if (ds__reuse_from_pools(q))
        return DS_OK;
    if (ds__release_oversize(a, q->size)) {
        r = ds__fallback_grow(q);
        if (q->block)
            return DS_OK;
    }
    if (c->reuse != DS_REUSE_NEVER && ds__reuse_from_any(q, p, 0))
        return DS_OK;

    if (!no_query) {
        (void)ds__mem_flush(dev, NULL, 0);
        if (p != &dev->main)
            (void)ds__mem_flush(dev, p, 0);
        ds__async_give(dev, 0);
        if (ds__request_try(q))
            return DS_OK;
        DS__COUNT_CALL(a, retries, 1);
        r = ds__fallback_grow(q);
        if (q->block)
            return DS_OK;
    }

    q->wasteful = 1;
    (void)(ds__reuse_from_any(q, p, c->reuse == DS_REUSE_NEVER) || ds__reuse_from_pools(q));
    q->wasteful = 0;
    return r;
}

/* The fallback chain: tries all sources of memory in order. The arena is searched again after
   every step. */
static ds_result ds__fallback_serve(ds__wanted *q) {
    ds__arena *a = q->a;
    const ds_mem_config *c = ds__pool_policy(a->pool);
    int no_query = ds__captures_open() != 0; /* 1: events must not be queried */
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    if (ds__is_inside(a->pool))
        return ds__inside_fail();
    if (ds__fallback_cached(q, c, no_query))
        return DS_OK;

    for (int round = 0; round < 2; round++) {
        for (int again = 0; again < 16; again++) { /* another thread may take the new memory */
            r = ds__fallback_grow(q);
            if (q->block)
                return DS_OK;
            if (r < 0)
                break;
        }
        if (r < 0 && !ds__is_shortage(r))
            return r;
        r = ds__fallback_release(q, c, no_query, r);
        if (q->block)
            return DS_OK;

        if (round > 0 || !ds__call_shortage(a->dev, q->asked))
            break;
        if (!no_query && c->poll_on_alloc)
            (void)ds__pending_poll(a, 0);
        if (ds__request_try(q))
            return DS_OK;
    }
    return r == DS_OK ? DS_ERR_OUT_OF_MEMORY : r;
}

/* Records an out-of-memory event and invokes the callbacks. `needed`: the bytes that the driver was
   asked for. No lock is held. */
static void ds__tell_oom(ds__arena *a, size_t needed) {
    ds__mem_dev *dev = a->dev;
    size_t avail = 0;
    size_t total = 0;
    size_t limit = atomic_load(&dev->limit);
    DS_IGNORE(ds__driver_of(dev->device)->device_memory(dev->device.index, &avail, &total));
    size_t reserved = atomic_load(&dev->reserved);
    if (limit && avail > limit - (reserved < limit ? reserved : limit))
        avail = limit - (reserved < limit ? reserved : limit);
    ds__mem_note(dev, &(ds__history_event){ .address = avail,
                                            .bytes = needed,
                                            .stream = a->stream_id,
                                            .pool = a->pool->id,
                                            .file = ds__tls.site.file,
                                            .label = ds__mem_label(),
                                            .line = (uint32_t)ds__tls.site.line,
                                            .action = DS_ACTION_OOM });
    for (size_t i = 0;; i++) {
        ds__callback c = ds__callback_get(&ds__memory_state.oom, i);
        if (!c.fn)
            return;
        ds__user_code g = ds__user_code_begin();
        ((ds_mem_oom_fn)c.fn)(dev->device, needed, limit ? limit : total, avail, c.user);
        ds__user_code_end(&g);
    }
}

/* Serves a request for which the arena has no free block. If that fails, counts and reports the
   failure. No lock is held. */
static ds_result ds__ask_slow(ds__wanted *q) {
    ds__arena *a = q->a;
    const ds_mem_config *c = ds__pool_policy(a->pool);
    int huge = q->size >= (size_t)1 << 60;
    ds_result r = ds__pool_check(a->pool, 1);
    ds__memory_thread.upstream_empty = 0;
    if (r < 0)
        return r;
    if (huge) {
        r = DS_ERR_OUT_OF_MEMORY;
    } else {
        ds__tls.mute++; /* errors of single steps do not reach the caller */
        r = ds__fallback_serve(q);
        ds__tls.mute--;
        if (r == DS_OK)
            return r;
        if (!ds__is_shortage(r) && !ds__tls.mute)
            memcpy(ds__tls.error, ds__tls.aside, sizeof ds__tls.error);
    }
    if (!ds__is_shortage(r))
        return r;

    DS__COUNT_CALL(a, ooms, 1);
    if (r == DS_ERR_LIMIT_EXCEEDED && ds__pool_policy(&a->dev->main)->throw_on_cudamalloc_oom)
        DS__COUNT_CALL(a, rejections, 1);
    ds__tell_oom(a, ds__config_segment_size(c, q->kind, huge ? q->asked : q->size));
    ds__oom_report(q, huge ? q->size : ds__config_segment_size(c, q->kind, q->size), r);
    return r;
}

/* alloc/direct_alloc.h - allocation without a cache.

   Allocates blocks for the backends DS_MEM_DRIVER_POOL and DS_MEM_UNCACHED (ds__direct_alloc).
   ds__direct_reserve reserves the bytes under the limits and calls the driver. direct_free.h
   implements the frees.

   Policy: Without a cache every block is a segment, from the driver's own pool or plain memory.
   1. Driver's pool: the block's stream waits for the other uses and gives the block back in
      stream order. Memory of an ended stream is given back on a stream of the allocator, behind
      the end of the ended stream. The host waits only when a limit is near. The limit also
      covers memory of the pool that no block has: enqueued frees and cached memory. An
      allocation that would pass the limit first waits for these frees and shrinks the pool.
   2. Plain memory: the host waits for the block's stream and for the uses of other streams. The
      host waits for the device only if nothing else is known to wait for.
   3. If a block cannot be given back now, because of a capture or a failed driver call, the
      block is deferred. A deferred block stays pending in its arena's list. Allocations, frees,
      flushes and changes of the policy try again. At shutdown a deferred block ends with its
      segment.

   Invariants: A stream that captures gets no memory here: DS_ERR_CAPTURE_UNSUPPORTED. Only the
   default pool of a device has such a backend. Reserved bytes either become a segment, or are
   given back by ds__segment_unreserve. `async_bytes` is the sum of the blocks from the driver's
   pool.
   Locks: ds__direct_alloc expects no lock. The driver and shortage callbacks are called without
   a lock. The new block is entered under the arena's lock, or under all locks of the device if
   the counters need room. Observers may be invoked under these locks.
   Threads: any caller's thread. Near a limit the host may wait. */

/* Returns memory of ds__direct_reserve that became no block. */
static void ds__direct_untake(ds__wanted *q, int async, void *base) {
    DS_IGNORE(async ? ds__async_free(q->s, base) : ds__segment_end(base, DS_MEMORY_DEVICE, 0));
    if (async)
        atomic_fetch_sub(&q->a->dev->async_bytes, q->size);
    ds__segment_unreserve(q->a, q->size);
}

/* Reserves the bytes of a request and takes them from the driver. No lock is held. */
static ds_result ds__direct_reserve(ds__wanted *q, int async, void **out) {
    ds__mem_dev *dev = q->a->dev;
    size_t limit = atomic_load(&dev->limit);
    size_t cached = 0;
    if (async && limit)
        (void)ds__async_has(dev, &cached);
    /* the pool may have a fitting piece and need not grow; only trying shows that */
    int reuse = cached >= q->size;
    ds_result r = reuse ? ds__reserve_with(q->a, q->size, 0) : ds__segment_reserve(q->a, q->size);
    if (r < 0)
        return r;
    r = async ? ds__async_alloc(q->s, q->size, out) : ds__segment_alloc(dev->device, q->size, out);
    if (async && r == DS_OK) {
        atomic_store(&dev->async, 1);
        atomic_fetch_add(&dev->async_bytes, q->size);
        /* the pool has grown beyond the limit */
        if (reuse && atomic_load(&dev->reserved) + ds__async_surplus(dev) > limit) {
            ds__direct_untake(q, async, *out);
            *out = NULL;
            return DS_ERR_LIMIT_EXCEEDED;
        }
    }
    if (r < 0)
        ds__segment_unreserve(q->a, q->size);
    return r;
}

/* Takes the memory of a request from the driver. After a shortage caches of other backends are
   emptied, and then the shortage callbacks are invoked, as in ds__fallback_serve. Errors are
   muted. */
static ds_result ds__direct_ask(ds__wanted *q, int async, void **out) {
    ds__arena *a = q->a;
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    ds__tls.mute++;
    for (int round = 0; round < 2 && q->size < (size_t)1 << 60; round++) {
        r = ds__direct_reserve(q, async, out);
        if (ds__is_shortage(r) && !ds__captures_open()) {
            (void)ds__mem_flush(a->dev, NULL, 0);
            ds__async_give(a->dev, 0);
            DS__COUNT_CALL(a, retries, 1);
            r = ds__direct_reserve(q, async, out);
        }
        if (!ds__is_shortage(r) || round > 0 || !ds__call_shortage(a->dev, q->asked))
            break;
    }
    ds__tls.mute--;
    return r;
}

/* Enters the only block of a segment as live, and counts both. The arena is locked and has room to
   count the block. */
static void ds__direct_publish(ds__wanted *q, const ds_mem_request *request, const ds_mem_config *c,
                               ds__mem_block *b) {
    ds__arena *a = q->a;
    ds__segment *seg = b->seg;
    seg->direct = 1;
    ds__count_reserved(a, q->kind, (int64_t)q->size);
    ds__count_segment(a, seg, 1);
    DS__COUNT_CALL(a, driver_allocs, 1);
    if (q->size >= c->max_split_size) {
        b->oversize = 1;
        ds__count_oversize(a, 1);
    }

    ds__block_mark_live(b, q->asked);
    if (request->label)
        b->label = request->label;
    ds__live_in(a, b);
    ds__count_alloc(a, q->kind, (int64_t)b->size, (int64_t)b->asked);
    ds__note_segment(a, DS_ACTION_SEGMENT_ALLOC, b->ptr, q->size);
    ds__note_block(a, DS_ACTION_ALLOC, b);
}

/* Makes a segment with one live block of the memory at `base`; q->block becomes the block. Returns
   0 without host memory, and the arena is as before. No lock is held. */
static int ds__direct_add(ds__wanted *q, const ds_mem_request *request, const ds_mem_config *c,
                          void *base) {
    ds__arena *a = q->a;
    int source = c->backend == DS_MEM_DRIVER_POOL ? DS__FROM_ASYNC : DS__FROM_DRIVER;
    ds__segment *seg = ds__segment_create(a, q->kind, source, base, q->size, 0);
    if (!seg)
        return 0;

    ds__arena_lock(a);
    int all = ds__count_begin(a, q->kind, (int64_t)q->size, (int64_t)q->asked);
    ds__mem_block *b = ds__segment_first_create(a, seg);
    if (b)
        ds__direct_publish(q, request, c, b);
    ds__count_end(a, all);
    q->block = b;
    if (!b)
        ds__segment_destroy(seg);
    return b != NULL;
}

/* Reports that the driver gave no memory, and returns `r`. After a shortage, the callbacks are
   invoked and the report is written. Another error becomes the thread's last error, since it was
   muted before. */
static ds_result ds__direct_refuse(ds__wanted *q, const ds_mem_config *c, ds_result r) {
    ds__arena *a = q->a;
    if (!ds__is_shortage(r)) {
        if (!ds__tls.mute)
            memcpy(ds__tls.error, ds__tls.aside, sizeof ds__tls.error);
        return r;
    }
    DS__COUNT_CALL(a, ooms, 1);
    if (r == DS_ERR_LIMIT_EXCEEDED && c->throw_on_cudamalloc_oom)
        DS__COUNT_CALL(a, rejections, 1);
    ds__tell_oom(a, q->size);
    ds__oom_report(q, q->size, r);
    return r;
}

/* Serves a request without a cache: the block is a segment of its own. No lock is held. */
static ds_result ds__direct_alloc(ds__wanted *q, const ds_mem_request *request, void **out) {
    ds__arena *a = q->a;
    ds__mem_pool *p = a->pool;
    const ds_mem_config *c = ds__pool_policy(p);
    int async = c->backend == DS_MEM_DRIVER_POOL;
    void *base = NULL;
    q->size = ds__request_block_size(c, request->size, 0);
    q->kind = ds__kind_of(c, q->size);
    DS__REQUIRE(request->alignment <= DS__UNIT, "an alignment of %zu needs the native backend",
                request->alignment);
    if (ds__captures_open() && ds__is_capturing(q->s))
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "only the native backend has memory for captures");
    ds_result r = ds__pool_check(p, 1);
    if (r < 0)
        return r;

    (void)ds__direct_again(a->dev, DS__WAIT_NONE);
    r = ds__direct_ask(q, async, &base);
    if (r < 0)
        return ds__direct_refuse(q, c, r);

    if (!ds__direct_add(q, request, c, base)) {
        ds__direct_untake(q, async, base);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", q->asked);
    }
    if (a->watched)
        r = ds__watched_alloc(q, c->guard_bytes);
    if (r < 0) {
        ds__arena_lock(a);
        DS_IGNORE(ds__free_slow(a, q->block));
        return r;
    }
    *out = base;
    return DS_OK;
}

/* alloc/allocate.h - allocation requests.

   Implements ds_mem_alloc and ds_mem_alloc_with. ds_mem_alloc has a fast path, which takes a
   free block of the stream's arena; ds__request_serve handles all other cases. ds__arena_route
   chooses the arena: in a named or pushed pool, in the capture's pool, or in the default pool.

   Invariants: The fast path runs only if no pool is pushed, no capture is open and the arena
   needs no special treatment (`slow`). A thread remembers the arena of the stream on which it
   allocated last; the fast path checks the stream's slot again under the arena's lock. A request
   for 0 bytes gives NULL and DS_OK. A failed request leaves no block behind.
   Locks: The fast path takes the arena's lock only; ds__take_oldest gives that lock up while
   events are queried. ds__request_serve expects no lock; fallback.h lists the locks of its steps.
   On the fast path observers are invoked under the arena's lock, in ds__request_serve without a
   lock.
   Threads: any caller's thread. The remembered arena is thread-local (ds__tls). Requests from a
   shortage callback are refused. */

/* Returns whether the pool belongs to the stream's device. */
static int ds__pool_serves(const ds__mem_pool *p, const ds__stream *s) {
    return p->dev->device.type == s->device.type && p->dev->device.index == s->device.index;
}

/* Sets *out to the thread's last pushed pool of the stream's device, or to NULL. Allocations of an
   upstream ignore pushed pools. Returns 0 if a pushed pool was destroyed, and the error is set. */
static int ds__pool_pushed_find(const ds__stream *s, ds__mem_pool **out) {
    *out = NULL;
    for (unsigned i = ds__memory_thread.inside ? 0 : ds__pool_push_count(); i-- > 0;) {
        ds__mem_pool *pushed = ds__mem_pool_of(ds__memory_thread.pool[i]);
        if (!pushed)
            return 0;
        if (ds__pool_serves(pushed, s)) {
            *out = pushed;
            return 1;
        }
    }
    return 1;
}

/* Returns the pool that a request names, for a stream. A capture of the stream keeps the pool. On
   failure returns NULL and sets the error. */
static ds__mem_pool *ds__pool_named(ds__stream *s, ds_pool pool) {
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return NULL;
    if (!ds__pool_serves(p, s)) {
        ds__fail(DS_ERR_DEVICE_MISMATCH, "the pool belongs to %s:%d, the stream to %s:%d",
                 ds__type_name(p->dev->device.type), p->dev->device.index,
                 ds__type_name(s->device.type), s->device.index);
        return NULL;
    }
    if (ds__captures_open() && ds__capture_pool_ref(s, p) < 0)
        return NULL;
    return p;
}

/* Returns the arena for a request: in the named pool, the capture's pool, a pushed pool, or the
   default pool. On failure returns NULL and sets the error. */
static ds__arena *ds__arena_route(ds__stream *s, ds_stream handle, ds_pool pool) {
    ds__mem_pool *p = NULL;
    if (pool.id) {
        p = ds__pool_named(s, pool);
        if (!p)
            return NULL;
    } else {
        if (ds__captures_open() && ds__capture_pool_of(s, &p) < 0)
            return NULL;
        if (!p && !ds__pool_pushed_find(s, &p))
            return NULL;
    }
    return p ? ds__arena_in(p, s, handle) : ds__arena_main(s, handle);
}

/* Finds a block for the request: in its own arena, else by the fallback chain. */
static ds_result ds__request_find(ds__wanted *q, const char *label) {
    ds_result r = DS_OK;
    if (label)
        ds_mem_label_push(label);
    if (ds__pool_policy(q->a->pool)->poll_on_alloc && !ds__captures_open())
        (void)ds__pending_poll(q->a, 0);
    if (!ds__request_try(q))
        r = ds__ask_slow(q);
    if (label)
        ds_mem_label_pop();
    return r;
}

/* Serves a request with all its options. No lock is held. */
__attribute__((noinline)) static ds_result ds__request_serve(ds__stream *s,
                                                             const ds_mem_request *request,
                                                             void **out) {
    if (ds__memory_thread.in_shortage)
        return ds__fail(DS_ERR_NOT_PERMITTED, "a shortage callback must not allocate memory");
    ds__postponed_run(DS__POSTPONED_MEMORY);
    ds__arena *a = ds__arena_route(s, request->stream, request->pool);
    if (!a)
        return ds__mem_error();
    const ds_mem_config *c = ds__pool_policy(a->pool);
    size_t align = request->alignment > DS__UNIT ? request->alignment : 0;
    ds__wanted q = {
        .a = a, .stream = request->stream, .s = s, .asked = request->size, .aligned = align != 0
    };
    if (c->backend != DS_MEM_NATIVE && !a->pool->id)
        return ds__direct_alloc(&q, request, out);

    q.size = ds__request_block_size(c, request->size, align);
    q.kind = ds__kind_of(c, q.size);
    if (align && a->pool->no_split)
        return ds__fail(
            DS_ERR_INVALID_VALUE,
            "an alignment of %zu needs split blocks, but the pool has no_split; use at most 512",
            align);
    ds_result r = ds__request_find(&q, request->label);
    if (r < 0)
        return r;
    if (align && !ds__align_wanted(&q, align, q.size - align))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of a block");
    else if (DS__UNLIKELY(a->watched))
        r = ds__watched_alloc(&q, c->guard_bytes);
    if (r < 0) {
        ds__block_end(atomic_load(&q.block->seg->arena), q.block);
        return r;
    }
    ds__note_block(a, DS_ACTION_ALLOC, q.block);
    *out = q.block->ptr;
    return DS_OK;
}

/* Returns the arena of a stream in the device's default pool, and stores it in the thread's state.
   Returns NULL if the stream has none yet, or if the handle is stale. */
__attribute__((noinline)) static ds__arena *ds__arena_again(ds_stream stream) {
    (void)ds__pool_push_count(); /* resets the thread's state after a shutdown */
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    if (!s)
        return NULL;
    ds__arena *a = atomic_load_explicit(&s->module[DS__MODULE_ALLOC], memory_order_acquire);
    if (a) {
        ds__memory_thread.arena = a;
        ds__memory_thread.slot = &s->slot;
        ds__memory_thread.stream = stream.id;
    }
    ds__unpin_inline(&ds__g.streams, s);
    return a;
}

/* Serves a request that the fast path did not serve. */
__attribute__((noinline)) static ds_result ds__alloc_slow(size_t size, ds_stream stream,
                                                          void **out) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (size) {
        ds_mem_request request = { .size = size, .stream = stream };
        r = ds__request_serve(s, &request, out);
    }
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

/* Takes a free block of the arena for a request, if the arena needs no special treatment and still
   belongs to the thread's last stream. Otherwise, or if no block fits, returns NULL. */
__attribute__((always_inline)) static inline ds__mem_block *ds__alloc_fast(ds__arena *a,
                                                                           size_t size,
                                                                           ds_stream stream) {
    ds__mem_block *b = NULL;
    ds__spinlock_lock(&a->lock);
    size_t rounded = ds__request_round_for_pool(a->pool, size);
    int kind = ds__kind_of(&a->pool->config, rounded);
    if (DS__LIKELY(!a->slow && ds__slot_is(ds__memory_thread.slot, stream.id) &&
                   ds__has_room(a, kind, (int64_t)rounded, (int64_t)size))) {
        b = ds__take_parked(a, kind, rounded, size);
        if (!b)
            b = ds__block_take_best(a, kind, rounded, size);
        if (DS__UNLIKELY(!b && a->pending))
            b = ds__take_oldest(a, kind, rounded, size);
        if (DS__UNLIKELY(atomic_load_explicit(&a->dev->watch, memory_order_relaxed)) && b)
            ds__note_block(a, DS_ACTION_ALLOC, b);
    }
    ds__spinlock_unlock(&a->lock);
    return b;
}

DSDEF ds_result(ds_mem_alloc)(size_t size, ds_stream stream, void **out) {
    ds_result r = ds__api_enter_inline("ds_mem_alloc");
    if (DS__LIKELY(out != NULL))
        *out = NULL;
    if (DS__UNLIKELY(r < 0))
        return r;
    DS__REQUIRE(out, "out is NULL");
    /* The stream is not pinned: slots and arenas stay until ds_shutdown, which changes the epoch,
       and the end of a stream locks its arena. */
    ds__arena *a = ds__memory_thread.arena;
    if (DS__UNLIKELY(stream.id != ds__memory_thread.stream ||
                     ds__memory_thread.epoch != ds__g.epoch))
        a = ds__arena_again(stream);
    if (DS__UNLIKELY(!a || ds__memory_thread.pools | ds__memory_thread.in_shortage ||
                     ds__captures_open() || size - 1 >= SIZE_MAX / 4))
        return ds__alloc_slow(size, stream, out);
    const ds__mem_block *b = ds__alloc_fast(a, size, stream);
    if (DS__UNLIKELY(!b))
        return ds__alloc_slow(size, stream, out);
    *out = b->ptr;
    return DS_OK;
}

DSDEF ds_result(ds_mem_alloc_with)(const ds_mem_request *request, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_mem_alloc_with");
    DS__REQUIRE(request && out, "%s is NULL", request ? "out" : "request");
    DS__REQUIRE_RESERVED("ds_mem_request", request);
    DS__REQUIRE((request->alignment & (request->alignment - 1)) == 0 &&
                    request->alignment <= 2 * DS__MIB,
                "an alignment of %zu is not a power of two up to 2 MiB", request->alignment);
    ds__stream *s = ds__stream_pin(request->stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = request->size ? ds__request_serve(s, request, out) : DS_OK;
    ds__stream_unpin(s);
    return r;
}

/* alloc/record_use.h - recording the use of a block by another stream.

   Implements ds_mem_record_use and ds_mem_record_stream, and serves ds_mem_pinned_record_use.
   ds__note_use adds a stream use (ds__stream_use) to a live block. With `now` the use gets its
   event at once, otherwise at the free or at the end of its stream. With `strict` a pointer outside
   of live blocks is an error. ds__mem_operand notes the operand of a collective.

   Invariants: The block's own stream needs no use. A lent block's first use belongs to the
   borrowing stream and stays first. dev->late_uses counts the uses without an event and may be
   too high.
   Locks: Takes the arena's lock to find the block, and once more to add the use. Between the
   two, the event is created and recorded without a lock.
   Threads: any caller's thread. If another thread frees the block meanwhile, the call reports
   DS_ERR_INVALID_VALUE, unless a new block already starts at the same address. */

/* How a stream relates to a block that the stream uses. */
enum {
    DS__USE_OTHER,  /* another stream of the same driver: the use is noted */
    DS__USE_OWN,    /* the block's own stream: there is nothing to note */
    DS__USE_FOREIGN /* a stream of another driver: an error */
};

/* A stream use while ds__note_use adds the use to a block. */
typedef struct ds__use_note {
    void *ptr;
    ds_stream stream;
    ds__stream *s; /* `stream`, pinned */
    int now;       /* 1: the event is recorded at once */
    int pinned;    /* 1: only pinned memory is meant; 0: only memory of devices */
    int relation;  /* DS__USE_* */
    ds__arena *a;
    ds__mem_block *b;
    char *start;                   /* of the block: it may be freed while the arena is not locked */
    uint64_t capture;              /* that the use belongs to; 0: none */
    const ds__stream_use *earlier; /* of the same stream and capture, or NULL */
    ds_event event;                /* of `earlier` */
    ds__stream_use *fresh;         /* description of a new use, or NULL */
} ds__use_note;

/* Finds the live block of the pointer and locks its arena. If there is none, `b` is NULL and
   nothing is locked. Fails if the check of a watched pool fails; then nothing is locked. */
static ds_result ds__use_block_find(ds__use_note *n) {
    n->b = ds__find_live(n->ptr, 0, &n->a);
    if (n->b && DS__UNLIKELY(n->a->watched)) {
        ds__arena_unlock(n->a);
        ds_result r = ds__pool_check(n->a->pool, 2);
        if (r < 0)
            return r;
        n->b = ds__find_live(n->ptr, 0, &n->a);
    }

    if (n->b && n->pinned != (n->a->dev->device.type == DS_DEVICE_HOST)) {
        ds__arena_unlock(n->a);
        n->b = NULL;
    }
    return DS_OK;
}

/* Returns how the stream relates to the block: DS__USE_*. The arena is locked. */
static int ds__use_relation_get(const ds__use_note *n) {
    const ds__arena *a = n->a;
    const ds__stream *s = n->s;
    int foreign = !n->pinned && s->driver != ds__driver_of(a->dev->device);
    int own;
    if (n->b->lent)
        own = n->b->uses->stream.id == n->stream.id;
    else
        own = a->stream_id == s->id ||
              (!foreign && a->identity && a->dev->device.index == s->device.index &&
               a->identity == s->driver->stream_identity(s->native));

    if (own)
        return DS__USE_OWN;
    return foreign ? DS__USE_FOREIGN : DS__USE_OTHER;
}

/* Lets an earlier use cover the stream's work until the free. Its event is recorded again at the
   free, or when the stream ends. The arena is locked. */
static void ds__use_earlier_extend(const ds__use_note *n, ds__stream_use *u) {
    if (!ds__use_claim(u)) {
        atomic_fetch_add(&n->a->dev->late_uses, 1);
        u->capture = 0;
        u->recorded = DS__RECORDING;
    }
    u->recorded = 0;
}

/* Returns an earlier use by the same stream in the same capture, or NULL. Work before a capture is
   a use of its own, and the first use of a lent block is that of the borrowing stream. The arena is
   locked. */
static ds__stream_use *ds__use_earlier_find(const ds__use_note *n) {
    ds__stream_use *u = n->b->lent ? n->b->uses->next : n->b->uses;
    while (u && (u->stream.id != n->stream.id || u->capture != n->capture))
        u = u->next;
    return u;
}

/* Reads the state of the block, takes a description for a new use from the arena's stock, and
   unlocks the arena. */
static void ds__use_prepare(ds__use_note *n) {
    ds__arena *a = n->a;
    n->relation = ds__use_relation_get(n);
    /* the graph orders its own uses; only work before the capture is noted */
    if (n->capture && !a->pool->graphs) {
        n->now = 0;
        n->capture = 0;
    }

    ds__stream_use *u = ds__use_earlier_find(n);
    if (!u && n->relation == DS__USE_OTHER) {
        n->fresh = a->spare_uses;
        if (n->fresh)
            a->spare_uses = n->fresh->next;
    }
    if (u && n->relation != DS__USE_OWN && !n->now)
        ds__use_earlier_extend(n, u);
    /* its event is recorded later than this */
    if (u && u->recorded != 1)
        n->now = 0;

    n->earlier = u;
    n->start = n->b->ptr;
    n->event = (ds_event){ u ? u->event.id : 0 };
    ds__arena_unlock(a);
}

/* Adds the new use to the block, unless `r`, the result of recording its event, is an error, or
   another thread has freed the block. Returns `r`, or DS_ERR_INVALID_VALUE if the block was
   freed. No lock is held. */
static ds_result ds__use_publish(const ds__use_note *n, ds_result r) {
    ds__arena *a = n->a;
    ds__mem_block *b = n->b;
    ds__stream_use *fresh = n->fresh;
    ds__arena_lock(a);
    int still = b->state == DS_BLOCK_LIVE && b->ptr == n->start && b->seg;
    if (fresh && r == DS_OK && still) {
        fresh->capture = n->capture;
        ds__stream_use **at = b->lent && b->uses ? &b->uses->next : &b->uses;
        fresh->stream = n->stream;
        fresh->recorded = (uint8_t)n->now;
        fresh->next = *at;
        *at = fresh;
        /* counts some uses twice: the sum only says whether to look */
        if (!n->now)
            atomic_fetch_add(&a->dev->late_uses, 1);
    } else if (fresh) {
        ds__stream_uses_destroy(a, fresh);
    }
    ds__arena_unlock(a);

    if (r == DS_OK && !still)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                     n->ptr);
    return r;
}

/* Adds the use to the block that ds__use_block_find has found and locked; unlocks. The event is
   recorded without the lock, so ds__use_publish looks at the block again. */
static ds_result ds__use_add(ds__use_note *n) {
    ds__use_prepare(n);
    if (n->relation == DS__USE_FOREIGN)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the memory and the stream belong to different drivers");
    if (n->relation == DS__USE_OTHER && ds__observer_is_set())
        ds__observer_notify(&(ds__seen){
            .kind = DS__SEEN_USE, .ptr = n->ptr, .stream = n->stream, .bytes = n->now != 0 });
    if (n->relation == DS__USE_OWN || (n->earlier && !n->now))
        return DS_OK;

    if (!n->earlier) {
        n->fresh = ds__stream_use_done(n->fresh, n->s->device);
        if (!n->fresh)
            return ds__mem_error();
    }

    /* The event of an earlier use by the same stream may be recorded again: the later point is
       behind it. */
    ds_result r = DS_OK;
    if (n->now)
        r = ds__event_record(n->earlier ? n->event : n->fresh->event, n->stream, DS__OP_RECORD);
    return ds__use_publish(n, r);
}

/* Notes a use of the block at `ptr` by a stream. With `now` the use gets its event at once. With
   `strict` a pointer outside of live blocks is an error. With `pinned` only pinned memory is
   meant, else only memory of devices. No lock is held. */
static ds_result ds__note_use(void *ptr, ds_stream stream, int now, int strict, int pinned) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__expect_end(s);

    ds__use_note n = { .ptr = ptr, .stream = stream, .s = s, .now = now, .pinned = pinned };
    n.capture = pinned ? 0 : ds__capture_of(s);
    ds_result r = ds__use_block_find(&n);
    if (r == DS_OK && n.b)
        r = ds__use_add(&n);
    else if (r == DS_OK && strict)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside a live allocation%s", ptr,
                     pinned ? " of pinned memory" : "");

    ds__stream_unpin(s);
    return r;
}

/* Notes that a stream, which the caller has pinned, uses memory. Memory of other sources, and
   memory of the stream itself, needs no note. In a capture, the program must keep the memory. */
DS__SEAM static ds_result ds__mem_operand(void *ptr, ds__stream *s, ds_stream stream) {
    ds__arena *a = NULL;
    const ds__mem_block *b = ds__find_live(ptr, 0, &a);
    if (!b)
        return DS_OK;
    int own = !b->lent && a->stream_id == s->id;
    ds__arena_unlock(a);
    if (own || (ds__captures_open() && ds__capture_of(s)))
        return DS_OK;
    return ds__note_use(ptr, stream, 0, 0, 0);
}

DSDEF ds_result(ds_mem_record_use)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_record_use");
    return ptr ? ds__note_use(ptr, stream, 1, 1, 0) : DS_OK;
}

DSDEF ds_result(ds_mem_record_stream)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_record_stream");
    return ptr ? ds__note_use(ptr, stream, 0, 0, 0) : DS_OK;
}

/* alloc/api_block.h - block query and emptying the cache.

   Implements ds_mem_get_block, ds_mem_empty_cache, ds_mem_empty_stream_cache and ds_mem_trim.
   ds__block_describe fills the public description of a block; checkpoint.h and snapshot.h use it
   too.

   Invariants: Label and call site are reported only for live and pending blocks. While a capture
   is open, nothing is given back and DS_ERR_CAPTURE_UNSUPPORTED is returned.
   Locks: ds__block_describe expects the lock of the block's arena; ds_mem_get_block takes that
   lock. The functions that give memory back expect no lock; trim.h takes the locks for them. While
   the host waits for a stream, no spinlock is held.
   Threads: any caller's thread. The functions that give memory back may block the host until
   streams have done their work. */

/* Fills the public description of a block. The arena is locked. */
static void ds__block_describe(const ds__arena *a, const ds__mem_block *b, ds_mem_block *out) {
    memset(out, 0, sizeof *out);
    out->ptr = b->ptr;
    out->size = b->size;
    out->requested = b->state == DS_BLOCK_LIVE || b->state == DS_BLOCK_PENDING ? b->asked : 0;
    out->segment = b->seg->base;
    out->segment_size = b->seg->mapped;
    out->device = a->dev->device;
    out->stream = ds__stream_of(a, b);
    out->pool.id = a->pool->id;
    out->state = (ds_mem_state)b->state;
    if (b->state == DS_BLOCK_LIVE || b->state == DS_BLOCK_PENDING) {
        out->label = b->label;
        out->site.file = b->file;
        out->site.line = (int)b->line;
    }
}

DSDEF ds_result(ds_mem_get_block)(const void *ptr, ds_mem_block *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_mem_get_block");
    DS__REQUIRE(out, "out is NULL");
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 0, &a);
    DS__REQUIRE(b, "%p is not inside a live allocation", ptr);
    ds__block_describe(a, b, out);
    ds__arena_unlock(a);
    return DS_OK;
}

/* Gives the cached memory of a device back, down to `keep` reserved bytes. */
static ds_result ds__mem_empty(ds_device device, size_t keep, size_t *out_released) {
    ds__mem_dev *dev;
    ds_result r = ds__mem_used(device, &dev);
    if (r < 0 || !dev)
        return r;
    if (ds__captures_open())
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "cached memory cannot be freed while a capture is open");
    size_t done = 0;
    r = ds__pool_check(&dev->main, 1);
    if (r == DS_OK && DS__UNLIKELY(ds__sync_watched()))
        r = ds__sync_tell("waits for blocks in use by other streams");
    if (r < 0)
        return r;
    size_t pool = ds__async_has(dev, NULL);
    if (atomic_load(&dev->reserved) > keep)
        done = ds__mem_flush(dev, NULL, keep);
    else
        atomic_fetch_add(&dev->stats.syncs, keep == 0);
    size_t blocks = atomic_load(&dev->async_bytes);
    size_t others = atomic_load(&dev->reserved);
    others = others > blocks ? others - blocks : 0;
    keep = keep > others ? keep - others : 0;
    if (pool > keep) { /* the driver's pool gives back memory only after the work of streams */
        ds__async_give(dev, keep);
        size_t left = ds__async_has(dev, NULL);
        done += pool > left ? pool - left : 0;
    }
    if (out_released)
        *out_released = done;
    return r;
}

DSDEF ds_result(ds_mem_empty_cache)(ds_device device, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_empty_cache");
    return ds__mem_empty(device, 0, out_released);
}

DSDEF ds_result(ds_mem_empty_stream_cache)(ds_stream stream, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_empty_stream_cache");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(s->device), s->device.index);
    ds_result r = DS_OK;
    if (ds__captures_open())
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "cached memory cannot be freed while a capture is open");
    else if (DS__UNLIKELY(ds__sync_watched()))
        r = ds__sync_tell("waits for blocks in use by other streams");
    if (r == DS_OK && dev)
        r = ds__pool_check(&dev->main, 1);
    ds__arena *a = r == DS_OK && dev ? ds__arena_main(s, stream) : NULL;
    if (r == DS_OK && dev && !a)
        r = ds__mem_error();
    if (a) {
        (void)ds__pending_poll(a, 1);
        size_t done = ds__arena_trim(a, SIZE_MAX, 0);
        if (out_released)
            *out_released = done;
    }
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_mem_trim)(ds_device device, size_t keep, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_trim");
    return ds__mem_empty(device, keep, out_released);
}

/* alloc/api_config.h - configuration, limits and shortage callbacks.

   Implements ds_mem_configure, ds_mem_configure_text, the functions for limits and fractions,
   and the functions that add and remove callbacks (callbacks.h). ds__mem_set changes the policy
   of one device.

   Invariants: The backend changes only while no block of the device is active.
   ds_mem_configure_text asks all devices before any device changes.
   Locks: ds__mem_set takes all locks of the device (ds__mem_lock_all), then the registry lock.
   Limits change under the device lock, callback lists under ds__memory_state.lock. Under these
   locks the program's memory and log functions may be called, the driver is not.
   Threads: any caller's thread. A callback that was removed may still run on another thread. */

/* Stops the totals of a domain, the device's or a pool's (`only`), or continues them where they
   stopped. All is locked. */
static void ds__domain_freeze(ds__mem_dev *dev, ds__mem_pool *only, int stop) {
    ds__domain *d = only ? &only->stats : &dev->stats;
    int64_t now[2][DS__METRICS];
    int64_t total[2][DS__METRICS];
    ds__domain_now(dev, only, now, total);
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < DS__METRICS; m++) {
            if (stop)
                d->frozen[k][m] = total[k][m] - now[k][m] + d->freed_base[k][m];
            else
                d->freed_base[k][m] = d->frozen[k][m] - (total[k][m] - now[k][m]);
        }
}

/* Returns whether a device's policy may be set, and stores the copy of the policy. All is
   locked. */
static ds_result ds__mem_may_set(ds__mem_dev *dev, const ds_mem_config *config) {
    int64_t now[2][DS__METRICS];
    ds__domain_now(dev, NULL, now, NULL);
    if (config->backend != dev->main.config.backend && now[0][DS__ACTIVE] + now[1][DS__ACTIVE] != 0)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "backend cannot be changed while blocks are allocated");
    return ds__policy_intern(config) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Sets the policy of a device after ds__mem_may_set. The pools follow the level of the device's
   statistics. All is locked. */
static void ds__mem_apply(ds__mem_dev *dev, const ds_mem_config *config) {
    int full = dev->main.full;
    int changes = full != (config->statistics == DS_STATISTICS_FULL);
    ds__counter_fold(dev); /* so that peaks may be counted from now on */
    if (changes)
        ds__domain_freeze(dev, NULL, full);
    (void)ds__mem_pool_apply(&dev->main, config);
    for (ds__mem_pool *p = changes ? dev->main.next : NULL; p; p = p->next) {
        ds_mem_config own = p->config;
        ds__domain_freeze(dev, p, full);
        (void)ds__mem_pool_apply(p, &own);
    }
    if (dev->main.full)
        ds__at_peak(&dev->stats.tally, dev->room);
    for (ds__mem_pool *p = dev->main.full ? dev->main.next : NULL; p; p = p->next)
        ds__at_peak(&p->stats.tally, NULL);
    ds__mem_limit(dev);
}

/* Sets the policy of a device to a checked configuration, or by a text from the current one. With
   `only_ask`, only returns whether that is possible. */
static ds_result ds__mem_set(ds__mem_dev *dev, const ds_mem_config *config, const char *text,
                             int only_ask) {
    ds_mem_config made;
    ds_result r = DS_OK;
    (void)ds__direct_again(dev, DS__WAIT_NONE);
    ds__mem_lock_all(dev);
    if (text) {
        made = dev->main.config;
        r = ds__config_read(text, &made);
        config = &made;
    }
    if (r == DS_OK)
        r = ds__mem_may_set(dev, config);
    if (r == DS_OK && !only_ask)
        ds__mem_apply(dev, config);
    ds__mem_unlock_all(dev);
    return r;
}

DSDEF ds_result(ds_mem_configure)(ds_device device, const ds_mem_config *config) {
    DS__ENTER("ds_mem_configure");
    DS__REQUIRE(config, "config is NULL");
    DS__RESOLVE(device);
    ds_result r = ds__config_check(config);
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    r = ds__mem_set(dev, config, NULL, 0);
    if (r == DS_OK)
        ds__pinned_configure(config, NULL);
    return r;
}

DSDEF ds_result(ds_mem_configure_text)(const char *text) {
    DS__ENTER("ds_mem_configure_text");
    DS__REQUIRE(text, "text is NULL");
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds_mem_config c = ds__usual_config();
    r = ds__config_read(text, &c);
    if (r < 0)
        return r;
    for (int ask = 1; ask >= 0; ask--) { /* first, asks all devices */
        if (!ask) { /* before the devices, so that a new device has the configuration too */
            ds__mutex_lock(&ds__memory_state.lock);
            ds__memory_state.config = c;
            ds__mutex_unlock(&ds__memory_state.lock);
        }
        for (int i = 0; i < DS_BACKEND_COUNT * DS__MAX_DEVICES; i++) {
            ds__mem_dev *dev = ds__mem_device_at(i / DS__MAX_DEVICES, i % DS__MAX_DEVICES);
            r = dev ? ds__mem_set(dev, NULL, text, ask) : DS_OK;
            if (r < 0)
                return r;
        }
    }
    ds__pinned_configure(NULL, text);
    return r;
}

DSDEF ds_result(ds_mem_get_config)(ds_device device, ds_mem_config *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_mem_get_config");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
    *out = dev ? ds__config_of(dev) : ds__usual_config();
    return DS_OK;
}

/* Sets the limit of a device (which = 1) or its fraction (0). */
static ds_result ds__mem_change(ds_device device, double fraction, size_t limit, int which) {
    DS__RESOLVE(device);
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    ds__mem_dev_lock(dev);
    if (which)
        dev->main.config.limit = limit;
    else
        dev->main.config.memory_fraction = fraction;
    if (which && !limit)
        dev->main.config.memory_fraction = 1;
    ds__mem_limit(dev);
    ds__mem_dev_unlock(dev);
    return DS_OK;
}

DSDEF ds_result(ds_mem_set_limit)(ds_device device, size_t bytes) {
    DS__MEM_ENTER("ds_mem_set_limit");
    return ds__mem_change(device, 0, bytes, 1);
}

DSDEF ds_result(ds_mem_get_limit)(ds_device device, size_t *out) {
    if (out)
        *out = 0;
    DS__ENTER_QUERY("ds_mem_get_limit");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
    if (!dev && ds__tls.in_callback) /* the first use takes locks */
        return ds__fail(DS_ERR_NOT_PERMITTED,
                        "the allocator has not been used on %s:%d, and this is user code that "
                        "devstream runs",
                        ds__type_name(device.type), device.index);
    if (!dev)
        dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    *out = atomic_load(&dev->limit);
    return DS_OK;
}

DSDEF ds_result(ds_mem_set_fraction)(ds_device device, double fraction) {
    DS__MEM_ENTER("ds_mem_set_fraction");
    DS__REQUIRE(fraction >= 0 && fraction <= 1, "a fraction of %g is not between 0 and 1",
                fraction);
    return ds__mem_change(device, fraction, 0, 0);
}

DSDEF ds_result(ds_mem_get_fraction)(ds_device device, double *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_mem_get_fraction");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
    *out = (dev ? ds__config_of(dev) : ds__usual_config()).memory_fraction;
    return DS_OK;
}

DSDEF ds_result(ds_mem_add_shortage_callback)(ds_mem_shortage_fn fn, void *user) {
    DS__ENTER("ds_mem_add_shortage_callback");
    return ds__callback_add(&ds__memory_state.shortage, &ds__memory_state.lock,
                            (ds__callback){ (void (*)(void))fn, user });
}

DSDEF ds_result(ds_mem_remove_shortage_callback)(ds_mem_shortage_fn fn, void *user) {
    DS__ENTER("ds_mem_remove_shortage_callback");
    return ds__callback_remove(&ds__memory_state.shortage, &ds__memory_state.lock,
                               (ds__callback){ (void (*)(void))fn, user });
}

DSDEF ds_result(ds_mem_add_oom_callback)(ds_mem_oom_fn fn, void *user) {
    DS__ENTER("ds_mem_add_oom_callback");
    return ds__callback_add(&ds__memory_state.oom, &ds__memory_state.lock,
                            (ds__callback){ (void (*)(void))fn, user });
}

DSDEF ds_result(ds_mem_remove_oom_callback)(ds_mem_oom_fn fn, void *user) {
    DS__ENTER("ds_mem_remove_oom_callback");
    return ds__callback_remove(&ds__memory_state.oom, &ds__memory_state.lock,
                               (ds__callback){ (void (*)(void))fn, user });
}

/* alloc/api_pool.h - pools: create, destroy, push, pop.

   Implements the functions of pools, except checkpoints, statistics and ds_capture_set_pool.

   Invariants: A pool object stays until shutdown. A pool object without owners and memory may
   become a new pool with another handle (ds__mem_pool_reuse), so ds_pool_destroy and ds_pool_push
   compare the handle again. A capture's own pool (name[0] is not 0) cannot be destroyed by its
   handle. A pool with a handle always uses the native backend.
   Locks: The functions take ds__memory_state.lock and the device lock; if both, in this order.
   ds_pool_destroy and ds_pool_empty_cache hold no lock when they begin to give memory back
   (trim.h).
   Threads: any caller's thread; pushes belong to the calling thread. */

/* Checks the description of a pool, except its device and most of its configuration. */
static ds_result ds__pool_desc_check(const ds_pool_desc *desc) {
    DS__REQUIRE_RESERVED("ds_pool_desc", desc);
    DS__REQUIRE(!desc->alloc_fn == !desc->free_fn,
                "alloc_fn and free_fn must both be set or both be NULL");
    DS__REQUIRE(!desc->upstream || !desc->alloc_fn,
                "a pool has one upstream: set alloc_fn or upstream, not both");
    DS__REQUIRE(!desc->upstream || (desc->upstream->alloc_fn && desc->upstream->free_fn),
                "the upstream has no functions: was it destroyed?");
    DS__REQUIRE(!desc->config || desc->config->backend == DS_MEM_NATIVE,
                "ds_pool_desc.config has the backend %d; a pool needs %d, DS_MEM_NATIVE",
                desc->config->backend, DS_MEM_NATIVE);
    DS__REQUIRE(!desc->shareable || (!desc->alloc_fn && !desc->upstream),
                "a shareable pool cannot have an upstream");
    return DS_OK;
}

DSDEF ds_result(ds_pool_create)(const ds_pool_desc *desc, ds_pool *out) {
    static const ds_pool_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_pool_create");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    ds_result r = ds__pool_desc_check(desc);
    if (r < 0)
        return r;
    ds_device device = desc->device;
    DS__RESOLVE(device);
    r = desc->config ? ds__config_check(desc->config) : DS_OK;
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();

    ds_mem_config c = desc->config ? *desc->config : ds__config_of(dev);
    c.backend = DS_MEM_NATIVE;
    ds_pool_desc d = *desc;
    /* without a configuration, the limits of the device's own apply anyway */
    size_t by_config = d.config ? ds__config_limit(d.config, dev->total) : 0;
    if (by_config && (!d.limit || by_config < d.limit))
        d.limit = by_config;
    ds__mem_pool *p = ds__mem_pool_create(dev, &c, &d, 0);
    if (!p)
        return DS_ERR_OUT_OF_MEMORY;
    out->id = p->id;
    return DS_OK;
}

DSDEF ds_result(ds_pool_destroy)(ds_pool pool) {
    DS__MEM_ENTER("ds_pool_destroy");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (p->name[0])
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the pool belongs to a capture or its graph and cannot be destroyed");
    ds__mutex_lock(&ds__memory_state.lock);
    int gone = p->dead || p->id != pool.id; /* the object may be a newer pool's */
    if (!gone)
        p->dead = 1;
    ds__mutex_unlock(&ds__memory_state.lock);
    if (gone)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the pool was destroyed already");
    ds__mem_dev_lock(p->dev);
    p->use_on_oom = 0;
    int last = --p->owners == 0;
    ds__mem_dev_unlock(p->dev);
    if (last)
        (void)ds__mem_flush(p->dev, p, 0);
    return DS_OK;
}

DSDEF ds_result(ds_pool_push)(ds_pool pool) {
    DS__ENTER("ds_pool_push");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (ds__pool_push_count() == DS__POOL_PUSHES)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "%d pools are pushed, the maximum", DS__POOL_PUSHES);
    ds__mem_pool_own(p);
    if (p->id != pool.id) { /* the pool was destroyed, and its object is a newer pool's */
        ds__mem_pool_disown(p);
        return ds__fail(DS_ERR_INVALID_HANDLE, "the pool was destroyed already");
    }
    ds__memory_thread.pool[ds__memory_thread.pools++] = pool;
    return DS_OK;
}

DSDEF ds_result(ds_pool_pop)(void) {
    DS__ENTER("ds_pool_pop");
    if (ds__pool_push_count() == 0)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "no pool was pushed");
    ds_pool pool = ds__memory_thread.pool[--ds__memory_thread.pools];
    ds__mutex_lock(&ds__memory_state.lock);
    ds__mem_pool *p = ds__mem_pool_at(pool); /* destroyed pools too */
    ds__mutex_unlock(&ds__memory_state.lock);
    if (p)
        ds__mem_pool_disown(p);
    return DS_OK;
}

DSDEF ds_result(ds_pool_get_use_count)(ds_pool pool, int *out) {
    if (out)
        *out = 0;
    DS__MEM_ENTER("ds_pool_get_use_count");
    DS__REQUIRE(out, "out is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__mem_dev_lock(p->dev);
    *out = p->owners;
    ds__mem_dev_unlock(p->dev);
    return DS_OK;
}

DSDEF ds_result(ds_pool_get_id)(ds_pool pool, uint64_t out_id[2]) {
    if (out_id)
        out_id[0] = out_id[1] = 0;
    DS__ENTER("ds_pool_get_id");
    DS__REQUIRE(out_id, "out_id is NULL");
    if (!pool.id)
        return DS_OK;
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    out_id[0] = p->name[0];
    out_id[1] = p->name[1];
    return DS_OK;
}

DSDEF ds_result(ds_pool_empty_cache)(ds_pool pool, size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_pool_empty_cache");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (ds__captures_open())
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "cached memory cannot be freed while a capture is open");
    if (ds__is_inside(p))
        return ds__inside_fail();
    ds_result r = DS__UNLIKELY(ds__sync_watched())
                      ? ds__sync_tell("waits for blocks in use by other streams")
                      : DS_OK;
    if (r == DS_OK)
        r = ds__pool_check(p, 1);
    if (r < 0)
        return r;
    size_t done = ds__mem_flush(p->dev, p, 0);
    if (out_released)
        *out_released = done;
    return DS_OK;
}

/* alloc/checkpoint.h - checkpoints of pools.

   Implements ds_pool_save, ds_pool_restore, ds_pool_checkpoint_destroy and ds_pool_check_live. A
   checkpoint lists the live blocks of a pool. ds_pool_restore first plans (ds__rewind_plan);
   then it frees blocks and makes blocks live again at their old addresses (ds__rewind_all).

   Invariants: A checkpoint belongs to one pool and lists its blocks in order of address. Save
   and restore refuse a pool with a pending block, or with a live block that other streams or
   processes use. If the plan fails, nothing has changed. If another thread uses the pool after
   the plan, the pool is restored in part and DS_ERR_ILLEGAL_STATE is returned.
   Locks: ds_pool_restore takes `giving` and `grow` of every arena of the pool, so that segments
   stay as they are. The plan runs under all locks of the device, the changes under one arena's
   lock, or all locks if the counters need room. The program's memory functions are called under
   all these locks, observers under the arena's lock. The function of the caller runs without a
   lock. ds_pool_save and ds_pool_check_live take all locks of the device.
   Threads: any caller's thread. No other thread may use the pool during ds_pool_restore. */

/* A live block in a checkpoint. */
typedef struct ds__saved {
    char *ptr;
    size_t size;
    size_t asked;
    ds__segment *seg;
    uint64_t serial;
    const char *label;
    const char *file;
    uint32_t line;
    uint32_t there; /* during a restore, 1: the block is live */
} ds__saved;

struct ds_pool_checkpoint {
    const ds__mem_pool *pool;
    uint64_t name[2];
    size_t count;
    ds__saved at[];
};

static int ds__saved_order(const void *a, const void *b) {
    const ds__saved *x = a;
    const ds__saved *y = b;
    return x->ptr < y->ptr ? -1 : x->ptr > y->ptr;
}

/* Frees pending blocks whose uses are done. Does nothing while a capture is open, which the queries
   could invalidate. */
static void ds__pool_poll(ds__mem_pool *p) {
    if (ds__captures_open())
        return;
    for (ds__arena *a = ds__first_arena(p->dev, p); a; a = a->next)
        (void)ds__pending_poll(a, 0);
}

/* Returns why a block cannot be saved or restored, or NULL if no other stream, process or thread
   has to do with it. All is locked. */
static const char *ds__block_unsettled_reason(const ds__mem_block *b) {
    if (b->state == DS_BLOCK_PENDING)
        return "was freed, and other streams may still use it";
    if (b->state == DS_BLOCK_LIVE && b->exported)
        return "is used by other processes";
    if (b->state == DS_BLOCK_LIVE && b->uses)
        return "was used on other streams";
    return b->claimed ? "is being freed by another thread" : NULL;
}

/* Returns whether a block can be saved or restored; if not, sets the error. All is locked. */
static int ds__block_settled(const ds__mem_block *b) {
    const char *reason = ds__block_unsettled_reason(b);
    if (reason)
        ds__fail(DS_ERR_ILLEGAL_STATE, "the block of %zu bytes at %p %s", b->size, (void *)b->ptr,
                 reason);
    return !reason;
}

/* Counts the live blocks of a pool. Returns 0 if a block is not settled, and the error is set. All
   is locked. */
static int ds__pool_settled(ds__mem_pool *p, size_t *out_live) {
    *out_live = 0;
    for (const ds__arena *a = p->arenas; a; a = a->next)
        for (const ds__segment *s = a->segments; s; s = s->next)
            for (const ds__mem_block *b = s->first; b; b = b->next) {
                if (!ds__block_settled(b))
                    return 0;
                *out_live += b->state == DS_BLOCK_LIVE;
            }
    return 1;
}

/* Adds the live blocks of an arena to a checkpoint, which has room. All is locked. */
static void ds__arena_save(const ds__arena *a, ds_pool_checkpoint *c) {
    for (ds__segment *s = a->segments; s; s = s->next)
        for (const ds__mem_block *b = s->first; b; b = b->next)
            if (b->state == DS_BLOCK_LIVE)
                c->at[c->count++] = (ds__saved){ .ptr = b->ptr,
                                                 .size = b->size,
                                                 .asked = b->asked,
                                                 .seg = s,
                                                 .serial = s->serial,
                                                 .label = b->label,
                                                 .file = b->file,
                                                 .line = b->line };
}

DSDEF ds_result(ds_pool_save)(ds_pool pool, ds_pool_checkpoint **out) {
    if (out)
        *out = NULL;
    DS__MEM_ENTER("ds_pool_save");
    DS__REQUIRE(out, "out is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__pool_poll(p);

    ds_pool_checkpoint *c = NULL;
    size_t count = 0;
    ds_result r = DS_OK;
    ds__mem_lock_all(p->dev);
    if (!ds__pool_settled(p, &count))
        r = DS_ERR_ILLEGAL_STATE;
    if (r == DS_OK) {
        c = ds__host_alloc(sizeof *c + count * sizeof c->at[0]);
        if (!c)
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a checkpoint of %zu blocks", count);
    }
    for (const ds__arena *a = c ? p->arenas : NULL; a; a = a->next)
        ds__arena_save(a, c);
    ds__mem_unlock_all(p->dev);
    if (r < 0)
        return r;

    c->pool = p;
    memcpy(c->name, p->name, sizeof c->name);
    qsort(c->at, c->count, sizeof c->at[0], ds__saved_order);
    *out = c;
    return DS_OK;
}

DSDEF void(ds_pool_checkpoint_destroy)(ds_pool_checkpoint *checkpoint) {
    ds__host_free(checkpoint);
}

/* A restore in progress. `changed` has the blocks that end, and then those that become live. */
typedef struct ds__rewind {
    ds__saved *at;
    ds_mem_block *changed;
    size_t count;
    size_t changes;
} ds__rewind;

/* Sets `there` of all saved blocks. Fails if memory of a saved block went back to the driver. All
   is locked. */
static ds_result ds__rewind_plan_saved(ds__mem_pool *p, ds__rewind *q) {
    ds__segment *s = NULL;
    ds__mem_block *b = NULL;
    for (ds__saved *v = q->at; v < q->at + q->count; v++) {
        if (s != v->seg) {
            s = v->seg;
            ds__arena *a = atomic_load(&s->arena);
            b = a && a->pool == p && s->serial == v->serial ? s->first : NULL;
        }
        while (b && b->ptr + b->size <= v->ptr)
            b = b->next;
        const ds__mem_block *last = b; /* all of the memory must be mapped */
        while (last && last->state != DS_BLOCK_UNMAPPED &&
               last->ptr + last->size < v->ptr + v->size)
            last = last->next;
        if (!last || last->state == DS_BLOCK_UNMAPPED)
            return ds__fail(DS_ERR_ILLEGAL_STATE,
                            "the memory of the block of %zu bytes at %p was freed to the driver "
                            "after the checkpoint",
                            v->size, (void *)v->ptr);
        v->there = b->state == DS_BLOCK_LIVE && b->ptr == v->ptr && b->size == v->size;
    }
    return DS_OK;
}

/* Provides the arena with two descriptions for each block that becomes live: cutting the block out
   leaves a block in front and one behind. Returns 0 without host memory. All is locked. */
static int ds__rewind_spares(ds__arena *a, const ds__rewind *q) {
    ds__mem_block *taken = NULL;
    size_t needed = 0;
    for (const ds__saved *v = q->at; v < q->at + q->count; v++)
        if (!v->there && atomic_load(&v->seg->arena) == a)
            needed += 2;
    while (needed) {
        ds__mem_block *b = ds__mem_block_create(a);
        if (!b)
            break;
        b->list_next = taken;
        taken = b;
        needed--;
    }
    while (taken) {
        ds__mem_block *b = taken;
        taken = b->list_next;
        ds__mem_block_destroy(a, b);
    }
    return !needed;
}

/* Returns whether a live block is a saved one. All is locked. */
static int ds__rewind_keeps(const ds__rewind *q, const ds__mem_block *b) {
    ds__saved key = { .ptr = b->ptr };
    const ds__saved *v = bsearch(&key, q->at, q->count, sizeof key, ds__saved_order);
    return v && v->there;
}

/* Appends the live blocks of an arena that are not saved ones to `changed`. All is locked. */
static void ds__rewind_list_ends(ds__arena *a, ds__rewind *q) {
    for (const ds__segment *s = a->segments; s; s = s->next)
        for (const ds__mem_block *b = s->first; b; b = b->next) {
            if (b->state != DS_BLOCK_LIVE || ds__rewind_keeps(q, b))
                continue;
            ds__block_describe(a, b, &q->changed[q->changes]);
            q->changed[q->changes++].state = DS_BLOCK_FREE;
        }
}

/* Plans a restore, and changes nothing that the program can notice. All is locked. */
static ds_result ds__rewind_plan(ds__mem_pool *p, ds__rewind *q) {
    size_t live = 0;
    if (!ds__pool_settled(p, &live))
        return DS_ERR_ILLEGAL_STATE;
    ds_result r = ds__rewind_plan_saved(p, q);
    if (r < 0)
        return r;
    q->changed = ds__host_alloc((live + q->count + 1) * sizeof *q->changed);
    int room = q->changed != NULL;
    for (ds__arena *a = p->arenas; a && room; a = a->next)
        room = ds__rewind_spares(a, q);
    if (!room)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to restore %zu blocks", q->count);
    for (ds__arena *a = p->arenas; a; a = a->next)
        ds__rewind_list_ends(a, q);
    return DS_OK;
}

/* Frees a block that was planned to end. Returns 0 if another thread has changed it. */
static int ds__rewind_end(const ds_mem_block *gone) {
    ds__segment *s = ds__segment_of(gone->ptr);
    ds__arena *a = s ? atomic_load(&s->arena) : NULL;
    if (!a)
        return 0;
    ds__arena_lock_ready(a, s->kind);
    ds__mem_block *b = atomic_load(&s->arena) == a ? ds__block_find(s, gone->ptr, 1) : NULL;
    int good = b && ds__block_settled(b);
    if (good) {
        ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
        ds__note_block(a, DS_ACTION_FREE_COMPLETED, b);
        ds__block_over(a, b);
    }
    ds__arena_unlock(a);
    return good;
}

/* Returns the free block around the memory of a saved block, or NULL if another thread has changed
   the memory. `before`: a live block below in the segment, or NULL. The arena is locked. */
static ds__mem_block *ds__rewind_place(const ds__arena *a, const ds__saved *v,
                                       const ds__saved *before) {
    ds__segment *s = v->seg;
    if (atomic_load(&s->arena) != a || s->serial != v->serial)
        return NULL;
    ds__mem_block *b = before ? ds__block_find(s, before->ptr, 1) : s->first;
    while (b && b->ptr + b->size <= v->ptr)
        b = b->next;
    int fits = ds__block_is_binned(b) && b->ptr <= v->ptr && v->ptr + v->size <= b->ptr + b->size;
    return fits ? b : NULL;
}

/* Cuts the saved block out of a free block, in no list and live, and frees the rests. Returns NULL
   without host memory. The arena is locked. */
static ds__mem_block *ds__rewind_cut(ds__arena *a, ds__mem_block *b, const ds__saved *v) {
    ds__bin_out(a, b);
    if (!ds__segment_is_growing(b->seg) && ds__is_split(b))
        ds__count_split(a, b->seg->kind, -1, -(int64_t)b->size);
    /* live, like the parts cut off: a freed rest must not be merged with the block again */
    b->state = DS_BLOCK_LIVE;
    b->oversize = 0;
    if (b->ptr < v->ptr) {
        ds__mem_block *front = b;
        b = ds__block_cut(a, front, (size_t)(v->ptr - front->ptr));
        (void)ds__merge_in(a, front);
    }
    if (b && b->size > v->size) {
        ds__mem_block *rest = ds__block_cut(a, b, v->size);
        (void)ds__merge_in(a, rest ? rest : b);
        if (!rest)
            b = NULL;
    }
    return b;
}

/* Enters a block that was cut out as live, with the members of the saved one. The arena is locked
   and has room to count the block. */
static void ds__rewind_publish(ds__arena *a, ds__mem_block *b, const ds__saved *v) {
    ds__live_in(a, b);
    ds__block_mark_live_counted(a, b, v->asked);
    b->label = v->label;
    b->file = v->file;
    b->line = v->line;
    b->uses = NULL;
    b->guarded = 0;
    b->lent = b->exported = 0;
    if (b->size >= a->pool->config.max_split_size) {
        b->oversize = 1;
        ds__count_oversize(a, 1);
    }
    ds__note_block(a, DS_ACTION_ALLOC, b);
}

/* Makes a saved block live again where it was, and describes it. `before`: a live block below in
   the segment, or NULL. Returns 0 if another thread has changed the memory. */
static int ds__rewind_live(const ds__saved *v, const ds__saved *before, ds_mem_block *out) {
    ds__arena *a = atomic_load(&v->seg->arena);
    if (!a)
        return 0;
    ds__arena_lock(a);
    int all = ds__count_begin(a, v->seg->kind, (int64_t)v->size, (int64_t)v->asked);
    ds__mem_block *b = ds__rewind_place(a, v, before);
    if (b)
        b = ds__rewind_cut(a, b, v);
    if (b) {
        ds__rewind_publish(a, b, v);
        ds__block_describe(a, b, out);
    }
    ds__count_end(a, all);
    return b != NULL;
}

/* Executes the plan. Returns 0 if another thread has used the pool. */
static int ds__rewind_all(ds__rewind *q) {
    size_t ends = q->changes;
    for (size_t i = 0; i < ends; i++)
        if (!ds__rewind_end(&q->changed[i]))
            return 0;
    for (size_t i = 0; i < q->count; i++) {
        if (q->at[i].there)
            continue;
        const ds__saved *before = i && q->at[i - 1].seg == q->at[i].seg ? &q->at[i - 1] : NULL;
        if (!ds__rewind_live(&q->at[i], before, &q->changed[q->changes]))
            return 0;
        q->changes++;
    }
    return 1;
}

DSDEF ds_result(ds_pool_restore)(ds_pool pool, const ds_pool_checkpoint *checkpoint,
                                 ds_mem_block_fn fn, void *user) {
    DS__MEM_ENTER("ds_pool_restore");
    DS__REQUIRE(checkpoint, "checkpoint is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (ds__is_inside(p))
        return ds__inside_fail();
    DS__REQUIRE(p == checkpoint->pool && !memcmp(p->name, checkpoint->name, sizeof p->name),
                "the checkpoint belongs to another pool");
    ds__rewind q = { NULL, NULL, checkpoint->count, 0 };
    q.at = ds__host_alloc((q.count + 1) * sizeof *q.at);
    if (!q.at)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to restore %zu blocks", q.count);
    memcpy(q.at, checkpoint->at, q.count * sizeof *q.at);
    ds__pool_poll(p);
    ds__arena *first = ds__first_arena(p->dev, p);
    /* so that segments stay as they are; arenas that are made later have no saved blocks */
    for (ds__arena *a = first; a; a = a->next) {
        ds__mutex_lock(&a->giving);
        ds__mutex_lock(&a->grow);
    }
    ds__mem_lock_all(p->dev);
    ds_result r = ds__rewind_plan(p, &q);
    ds__mem_unlock_all(p->dev);
    if (r == DS_OK && !ds__rewind_all(&q))
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "another thread used the pool during the call; the pool is partly restored");
    for (ds__arena *a = first; a; a = a->next) {
        ds__mutex_unlock(&a->grow);
        ds__mutex_unlock(&a->giving);
    }
    for (size_t i = 0; fn && i < q.changes && r == DS_OK; i++)
        fn(&q.changed[i], user);
    ds__host_free(q.changed);
    ds__host_free(q.at);
    return r;
}

static int ds__ptr_order(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (void *const *)a;
    uintptr_t y = (uintptr_t) * (void *const *)b;
    return x < y ? -1 : x > y;
}

/* The addresses that ds_pool_check_live compares with the live blocks. */
typedef struct ds__live_list {
    void **ptr; /* sorted */
    unsigned char *seen;
    size_t count;
} ds__live_list;

/* Returns whether all live blocks of an arena are in the list, and marks them there; if not, sets
   the error. All is locked. */
static ds_result ds__live_list_mark(const ds__live_list *l, const ds__arena *a) {
    for (const ds__segment *s = a->segments; s; s = s->next)
        for (const ds__mem_block *b = s->first; b; b = b->next) {
            void *ptr = b->ptr;
            if (b->state != DS_BLOCK_LIVE)
                continue;
            void **at = bsearch(&ptr, l->ptr, l->count, sizeof ptr, ds__ptr_order);
            if (!at)
                return ds__fail(DS_ERR_ILLEGAL_STATE,
                                "the block of %zu bytes at %p is live and not in the list", b->size,
                                (void *)b->ptr);
            l->seen[at - l->ptr] = 1;
        }
    return DS_OK;
}

/* Returns whether all entries of the list were marked; if not, sets the error. */
static ds_result ds__live_list_check(const ds__live_list *l) {
    for (size_t i = 0; i < l->count; i++) {
        if (l->seen[i])
            continue;
        int twice =
            (i && l->ptr[i] == l->ptr[i - 1]) || (i + 1 < l->count && l->ptr[i] == l->ptr[i + 1]);
        return ds__fail(DS_ERR_ILLEGAL_STATE, "%p is in the list %s", l->ptr[i],
                        twice ? "twice" : "and is not the start of a live block of the pool");
    }
    return DS_OK;
}

DSDEF ds_result(ds_pool_check_live)(ds_pool pool, void *const *ptrs, size_t count) {
    DS__MEM_ENTER("ds_pool_check_live");
    DS__REQUIRE(ptrs || !count, "ptrs is NULL, and count is %zu", count);
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__live_list l = { .count = count };
    ds_result r = DS_OK;
    l.ptr = ds__host_alloc((count + 1) * sizeof *l.ptr);
    l.seen = ds__host_alloc(count + 1);
    if (!l.ptr || !l.seen)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to compare %zu blocks", count);
    if (r == DS_OK && count) {
        memcpy(l.ptr, ptrs, count * sizeof *l.ptr);
        qsort(l.ptr, count, sizeof *l.ptr, ds__ptr_order);
    }

    ds__mem_lock_all(p->dev);
    for (const ds__arena *a = p->arenas; a && r == DS_OK; a = a->next)
        r = ds__live_list_mark(&l, a);
    ds__mem_unlock_all(p->dev);
    if (r == DS_OK)
        r = ds__live_list_check(&l);
    ds__host_free(l.seen);
    ds__host_free(l.ptr);
    return r;
}

/* alloc/stats.h - public functions of statistics.

   Implements ds_mem_get_stats, ds_pool_get_stats, the resets, and single values such as
   ds_mem_get_allocated, over the sums of stats_sum.h.

   Invariants: The block counts in one result belong to one moment.
   Locks: The sums and the resets stop the device (ds__mem_lock_all). ds_pool_get_stats holds
   ds__memory_state.lock meanwhile, so that no new pool reuses the object.
   Threads: any caller's thread; allocations and frees on the device wait meanwhile. */

DSDEF ds_result(ds_mem_get_stats)(ds_device device, ds_mem_stats *out) {
    ds__mem_dev *dev = NULL;
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_mem_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__mem_asked(device, &dev);
    if (dev)
        ds__stats_sum(dev, NULL, out);
    return r;
}

DSDEF ds_result(ds_pool_get_stats)(ds_pool pool, ds_mem_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_pool_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds__mutex_lock(&ds__memory_state.lock); /* so that no new pool reuses the object meanwhile */
    ds__mem_pool *p = ds__mem_pool_at(pool);
    if (p)
        ds__stats_sum(p->dev, p, out);
    ds__mutex_unlock(&ds__memory_state.lock);
    if (!p) {
        (void)ds__mem_pool_of(pool); /* sets the error */
        return DS_ERR_INVALID_HANDLE;
    }
    return DS_OK;
}

/* Returns the meters of a domain, one after the other: of both kinds, small, large, and those of
   oversize blocks and segments. NULL: there is none with this number. */
static ds__meter *ds__domain_meter(ds__domain *d, int number) {
    if (number < DS__METERS)
        return &d->all[number];
    if (number < 3 * DS__METERS)
        return &d->meter[number / DS__METERS - 1][number % DS__METERS];
    if (number == 3 * DS__METERS)
        return &d->oversize_allocations;
    return number == 3 * DS__METERS + 1 ? &d->oversize_segments : NULL;
}

/* Resets the peaks of a domain, the device's or a pool's (`only`), to its counts. All is locked. */
static void ds__domain_peaks_reset(ds__mem_dev *dev, ds__mem_pool *only) {
    int64_t now[2][DS__METRICS];
    int64_t none[2][2] = { { 0, 0 }, { 0, 0 } };
    ds__domain *d = only ? &only->stats : &dev->stats;
    ds__domain_now(dev, only, now, NULL);
    for (int m = 0; m < DS__METRICS; m++)
        for (int k = 0; k < 3; k++)
            d->tally.peak[k][m] = INT64_MIN;
    ds__domain_peaks(d, now, none);
    d->sharers = 0;
    for (int i = 0; ds__domain_meter(d, i); i++)
        atomic_store(&ds__domain_meter(d, i)->peak, atomic_load(&ds__domain_meter(d, i)->now));
}

/* Resets the totals of a domain, the device's or a pool's (`only`). All is locked. */
static void ds__domain_totals_reset(ds__mem_dev *dev, ds__mem_pool *only) {
    ds__domain *d = only ? &only->stats : &dev->stats;
    ds__domain_now(dev, only, d->freed_base, NULL);
    memset(d->frozen, 0, sizeof d->frozen);
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < DS__COUNTED; m++)
            d->tally.kind[k].total[m] = 0;
    for (int i = 0; ds__domain_meter(d, i); i++) {
        atomic_store(&ds__domain_meter(d, i)->total, 0);
        atomic_store(&ds__domain_meter(d, i)->freed, 0);
    }
    atomic_store(&d->retries, 0);
    atomic_store(&d->ooms, 0);
    atomic_store(&d->syncs, 0);
    atomic_store(&d->driver_allocs, 0);
    atomic_store(&d->driver_frees, 0);
    atomic_store(&d->rejections, 0);
}

/* Resets the peaks or the totals of a device and its pools. The search for a thread that allocates
   alone begins anew. */
static void ds__mem_reset_of(ds__mem_dev *dev, int peaks) {
    void (*reset)(ds__mem_dev *, ds__mem_pool *) =
        peaks ? ds__domain_peaks_reset : ds__domain_totals_reset;
    ds__mem_lock_all(dev);
    ds__counter_fold(dev);
    reset(dev, NULL);
    for (ds__mem_pool *p = dev->main.next; p; p = p->next)
        reset(dev, p);
    if (peaks) {
        memset(dev->async_peak, 0, sizeof dev->async_peak); /* set by the next ds__stats_sum */
        ds__at_peak(&dev->stats.tally, dev->room);
    }
    ds__mem_unlock_all(dev);
}

static ds_result ds__mem_reset(ds_device device, int peaks) {
    ds__mem_dev *dev;
    ds_result r = ds__mem_used(device, &dev);
    if (dev)
        ds__mem_reset_of(dev, peaks);
    return r;
}

#define DS__RESET(name, peaks)                \
    DSDEF ds_result(name)(ds_device device) { \
        DS__MEM_ENTER(#name);                 \
        return ds__mem_reset(device, peaks);  \
    }
DS__RESET(ds_mem_reset_peak_stats, 1)
DS__RESET(ds_mem_reset_accumulated_stats, 0)
#undef DS__RESET

#define DS__ONE_STAT(name, member)                  \
    DSDEF size_t(name)(ds_device device) {          \
        ds__mem_dev *dev = NULL;                    \
        ds_mem_stats s;                             \
        if (ds__api_enter(#name) < 0)               \
            return 0;                               \
        ds__postponed_run(DS__POSTPONED_MEMORY);    \
        if (ds__mem_used(device, &dev) < 0 || !dev) \
            return 0;                               \
        ds__stats_sum(dev, NULL, &s);               \
        return (size_t)s.member;                    \
    }
DS__ONE_STAT(ds_mem_get_allocated, allocated_bytes[0].current)
DS__ONE_STAT(ds_mem_get_max_allocated, allocated_bytes[0].peak)
DS__ONE_STAT(ds_mem_get_reserved, reserved_bytes[0].current)
DS__ONE_STAT(ds_mem_get_max_reserved, reserved_bytes[0].peak)
#undef DS__ONE_STAT

DSDEF ds_result(ds_mem_get_driver_pool_info)(ds_device device, size_t *out_reserved,
                                             size_t *out_used) {
    size_t reserved = 0;
    size_t used = 0;
    if (out_reserved)
        *out_reserved = 0;
    if (out_used)
        *out_used = 0;
    DS__MEM_ENTER("ds_mem_get_driver_pool_info");
    DS__RESOLVE(device);
    ds_result r = ds__driver_of(device)->async_info(device.index, &reserved, &used);
    if (r < 0)
        return r;
    if (out_reserved)
        *out_reserved = reserved;
    if (out_used)
        *out_used = used;
    return DS_OK;
}

/* alloc/report_names.h - memory statistics by name.

   Maps PyTorch's names of memory statistics to members of ds_mem_stats (ds__mem_stats_sum).
   ds_mem_stats_get_by_name reads one value; ds_mem_stats_get_name lists the names.

   Invariants: ds__mem_stats_sum is sorted in the order of strcmp, because the look-up is a binary
   search. Every entry names an int64_t member.
   Locks: none.
   Threads: any. The table is constant, and ds_mem_stats_get_name needs no initialised library. */

/* PyTorch's names, in the order of strcmp. */
#define DS__STAT4(name, member)                                      \
    { name ".allocated", offsetof(ds_mem_stats, member.allocated) }, \
        { name ".current", offsetof(ds_mem_stats, member.current) }, \
        { name ".freed", offsetof(ds_mem_stats, member.freed) }, {   \
        name ".peak", offsetof(ds_mem_stats, member.peak)            \
    }
#define DS__STAT12(name, member)                              \
    DS__STAT4(name ".all", member[DS_STAT_ALL]),              \
        DS__STAT4(name ".large_pool", member[DS_STAT_LARGE]), \
        DS__STAT4(name ".small_pool", member[DS_STAT_SMALL])
#define DS__STAT1(member) \
    { #member, offsetof(ds_mem_stats, member) }

static const struct ds__mstat {
    const char *name;
    size_t offset;
} ds__mem_stats_sum[] = { DS__STAT12("active", active),
                          DS__STAT12("active_bytes", active_bytes),
                          DS__STAT12("allocated_bytes", allocated_bytes),
                          DS__STAT12("allocation", allocation),
                          DS__STAT12("inactive_split", inactive_split),
                          DS__STAT12("inactive_split_bytes", inactive_split_bytes),
                          DS__STAT1(max_split_size),
                          DS__STAT1(num_alloc_retries),
                          DS__STAT1(num_device_alloc),
                          DS__STAT1(num_device_free),
                          DS__STAT1(num_oom_rejections),
                          DS__STAT1(num_ooms),
                          DS__STAT1(num_sync_all_streams),
                          DS__STAT4("oversize_allocations", oversize_allocations),
                          DS__STAT4("oversize_segments", oversize_segments),
                          DS__STAT12("requested_bytes", requested_bytes),
                          DS__STAT12("reserved_bytes", reserved_bytes),
                          DS__STAT12("segment", segment) };

#define DS__STATS (sizeof ds__mem_stats_sum / sizeof ds__mem_stats_sum[0])

DSDEF const char *(ds_mem_stats_get_name)(size_t index) {
    return index < DS__STATS ? ds__mem_stats_sum[index].name : NULL;
}

DSDEF ds_result(ds_mem_stats_get_by_name)(const ds_mem_stats *stats, const char *name,
                                          int64_t *out) {
    char alias[64];
    const char *wanted = name;
    if (out)
        *out = 0;
    DS__ENTER("ds_mem_stats_get_by_name");
    DS__REQUIRE(stats, "stats is NULL");
    DS__REQUIRE(name && out, "%s is NULL", name ? "out" : "name");
    if (!strncmp(name, "allocated.", 10) && strlen(name) < 50) { /* as in PyTorch's documents */
        snprintf(alias, sizeof alias, "allocation.%s", name + 10);
        wanted = alias;
    }
    for (size_t low = 0, high = DS__STATS; low < high;) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(wanted, ds__mem_stats_sum[middle].name);
        if (order == 0) {
            memcpy(out, (const char *)stats + ds__mem_stats_sum[middle].offset, sizeof *out);
            return DS_OK;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "there is no statistic '%.80s'; ds_mem_stats_get_name lists them", name);
}

/* alloc/report_table.h - table of ds_mem_write_summary.

   Implements ds_mem_write_summary: writes the statistics of a device as the table of
   torch.cuda.memory_summary (ds__report_table_write), row by row to the user's writer.

   Invariants: The text is PyTorch's apart from the name in the title, also on CPU devices. The
   rows of one metric share the unit of each column; the row of all sizes determines it.
   Locks: none of its own. ds_mem_get_stats stops the device; the writer is called after that,
   with no lock held.
   Threads: any caller's thread. devstream refuses calls from inside the writer. */

/* Writes a value in the unit of its column, which suits `unit_of`, the value of the first row. */
static void ds__report_cell_format(char out[32], int counts, int64_t value, int64_t unit_of) {
    static const char *const sizes[] = { "B  ", "KiB", "MiB", "GiB", "TiB", "PiB" };
    static const char *const thousands[] = { "  ", "K ", "M " };
    const int64_t from = counts ? 750000 : 768 * 1024;
    const int64_t step = counts ? 1000 : 1024;
    int unit = 0;
    for (; unit < (counts ? 2 : 5) && unit_of >= from; unit++) {
        value /= step;
        unit_of /= step;
    }
    if (counts)
        snprintf(out, 32, "%7lld %s", (long long)value, thousands[unit]);
    else
        snprintf(out, 32, "%6lld %s", (long long)value, sizes[unit]);
}

/* Writes the row of a metric; `unit_of`: the row of all sizes. */
static void ds__report_row_write(ds__text_writer *p, const char *name, int counts,
                                 const ds_mem_stat *s, const ds_mem_stat *unit_of) {
    char cell[4][32];
    ds__report_cell_format(cell[0], counts, s->current, unit_of->current);
    ds__report_cell_format(cell[1], counts, s->peak, unit_of->peak);
    ds__report_cell_format(cell[2], counts, s->allocated, unit_of->allocated);
    ds__report_cell_format(cell[3], counts, s->freed, unit_of->freed);
    ds__text_writer_print(p, "| %-21s | %s | %s | %s | %s |\n", name, cell[0], cell[1], cell[2],
                          cell[3]);
}

static void ds__report_rule_write(ds__text_writer *p, char c) {
    char rule[76];
    memset(rule, c, 75);
    rule[75] = 0;
    ds__text_writer_print(p, "|%s|\n", rule);
}

static void ds__report_table_write(ds__text_writer *p, int device, const ds_mem_stats *s,
                                   int abbreviated) {
    const struct {
        const char *name;
        const ds_mem_stat *stat;
        int counts;
    } rows[] = { { "Allocated memory", s->allocated_bytes, 0 },
                 { "Active memory", s->active_bytes, 0 },
                 { "Requested memory", s->requested_bytes, 0 },
                 { "GPU reserved memory", s->reserved_bytes, 0 },
                 { "Non-releasable memory", s->inactive_split_bytes, 0 },
                 { "Allocations", s->allocation, 1 },
                 { "Active allocs", s->active, 1 },
                 { "GPU reserved segments", s->segment, 1 },
                 { "Non-releasable allocs", s->inactive_split, 1 } };

    ds__report_rule_write(p, '=');
    ds__text_writer_print(p, "| %16s devstream memory summary, device ID %-20d |\n", "", device);
    ds__report_rule_write(p, '-');
    ds__text_writer_print(p, "|  %9s CUDA OOMs: %-12lld | %6s cudaMalloc retries: %-8lld  |\n", "",
                          (long long)s->num_ooms, "", (long long)s->num_alloc_retries);
    ds__report_rule_write(p, '=');
    ds__text_writer_print(
        p, "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ds_mem_stat *all = &rows[i].stat[DS_STAT_ALL];
        ds__report_rule_write(p, '-');
        ds__report_row_write(p, rows[i].name, rows[i].counts, all, all);
        if (abbreviated)
            continue;
        ds__report_row_write(p, "      from large pool", rows[i].counts,
                             &rows[i].stat[DS_STAT_LARGE], all);
        ds__report_row_write(p, "      from small pool", rows[i].counts,
                             &rows[i].stat[DS_STAT_SMALL], all);
    }
    ds__report_rule_write(p, '-');
    ds__report_row_write(p, "Oversize allocations", 1, &s->oversize_allocations,
                         &s->oversize_allocations);
    ds__report_rule_write(p, '-');
    ds__report_row_write(p, "Oversize GPU segments", 1, &s->oversize_segments,
                         &s->oversize_segments);
    ds__report_rule_write(p, '=');
}

DSDEF ds_result(ds_mem_write_summary)(ds_device device, int abbreviated, ds_write_fn write_fn,
                                      void *user) {
    ds_mem_stats stats;
    DS__MEM_ENTER("ds_mem_write_summary");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    DS__RESOLVE(device);
    ds_site site = ds__tls.site;
    ds_result r = (ds_mem_get_stats)(device, &stats);
    if (r < 0)
        return r;
    ds__tls.fn = "ds_mem_write_summary";
    ds__tls.site = site;
    ds__text_writer writer = { write_fn, user, 0, 0 };
    ds__report_table_write(&writer, device.index, &stats, abbreviated);
    return ds__text_writer_result(&writer);
}

/* alloc/ipc_sharers.h - report of the processes that share memory of a device.

   Writes the processes that share memory of a device, with their bytes (ds__share_list).
   ds__sharer_write writes the line of one process. report_processes.h uses both.

   Invariants: The report lists a process once, with the sum of the bytes that the process has
   imported from this one and exported to this one. At most DS__SHARERS processes are reported.
   Locks: ds__share.mutex and ds__share.lock while the records are read; the user's writer is
   called after they are released.
   Threads: any caller's thread. */

static void ds__sharer_write(ds__text_writer *p, unsigned pid, unsigned long long bytes) {
    if (bytes == ~0ull)
        ds__text_writer_print(p, "process %10u uses an unknown amount of GPU memory\n", pid);
    else
        ds__text_writer_print(p, "process %10u uses %12.3f MB GPU memory\n", pid,
                              (double)bytes / (double)DS__MIB);
}

enum { DS__SHARERS = 256 }; /* the largest number of processes in a report */

/* The processes that share memory of a device, with the bytes. */
typedef struct ds__sharers {
    size_t count;

    struct {
        uint64_t number; /* in the own registry; 0: the process is alive */
        uint64_t bytes;
        unsigned pid;
    } at[DS__SHARERS];
} ds__sharers;

/* Adds bytes to a process. */
static void ds__sharer_add(ds__sharers *l, uint64_t number, unsigned pid, size_t bytes) {
    size_t i = 0;
    while (i < l->count && (l->at[i].number != number || l->at[i].pid != pid))
        i++;
    if (i == DS__SHARERS)
        return;
    if (i == l->count) {
        l->count++;
        l->at[i].number = number;
        l->at[i].pid = pid;
        l->at[i].bytes = 0;
    }
    l->at[i].bytes += bytes;
}

/* Adds the processes with leases of the device's blocks in a list of exports. */
static void ds__sharers_of(ds__sharers *l, ds_device device, const ds__ipc_export *s) {
    for (; s; s = s->next) {
        const ds__arena *a = s->block ? atomic_load(&s->block->seg->arena) : NULL;
        if (!a || a->dev->device.index != device.index || a->dev->device.type != device.type)
            continue;
        for (int k = 0; k < DS__LEASES; k++) {
            uint64_t lease = atomic_load(&ds__registries.own->page->slot[s->slot].lease[k]);
            if (lease)
                ds__sharer_add(l, ds__lease_number(lease), (unsigned)(lease & 0xffffff),
                               s->block->size);
        }
    }
}

/* Writes a line for each process that shares memory of the device. No lock is held. */
static void ds__share_list(ds_device device, ds__text_writer *p) {
    ds__sharers *l = ds__host_alloc(sizeof *l);
    if (!l)
        return;
    ds__mutex_lock(&ds__share.mutex);
    if (ds__registries.own) {
        ds__spinlock_lock(&ds__share.lock); /* meanwhile, no block of these lists is reused */
        for (size_t i = 0; i < DS__SENT_BUCKETS; i++)
            ds__sharers_of(l, device, ds__share.bucket[i]);
        ds__sharers_of(l, device, ds__share.limbo);
        ds__spinlock_unlock(&ds__share.lock);
    }
    for (size_t i = 0; i < l->count; i++) {
        if (!ds__registry_alive(ds__registries.own, l->at[i].number))
            l->at[i].bytes = 0;
        else
            l->at[i].number = 0; /* imports from the process are added to this entry */
    }
    for (const ds__got *g = ds__share.got; g; g = g->next)
        if (!atomic_load(&g->gone) && g->guest->device.index == device.index &&
            g->guest->device.type == device.type)
            ds__sharer_add(l, 0, (unsigned)g->guest->registry->pid, g->size);
    ds__mutex_unlock(&ds__share.mutex);
    for (size_t i = 0; i < l->count; i++)
        if (l->at[i].bytes)
            ds__sharer_write(p, l->at[i].pid, l->at[i].bytes);
    ds__host_free(l);
}

/* alloc/report_processes.h - report of the processes that use a device.

   Implements ds_mem_write_processes, the counterpart of torch.cuda.list_gpu_processes: one line
   for each process and its memory. The driver lists the processes (device_processes). The CPU
   driver lists this process only, so the processes with shared memory follow (ds__share_list).

   Invariants: If the driver cannot list the processes, the report gives the reason and the call
   succeeds.
   Locks: none of its own. ds__share_list takes the locks of the exports. The user's writer is
   called after they are released.
   Threads: any caller's thread. devstream refuses calls from inside the writer. */

DSDEF ds_result(ds_mem_write_processes)(ds_device device, ds_write_fn write_fn, void *user) {
    DS__ENTER("ds_mem_write_processes");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    DS__RESOLVE(device);
    ds__text_writer writer = { write_fn, user, 0, 0 };
    ds__processes processes;
    ds__text_writer_print(&writer, "%s:%d\n", device.type == DS_DEVICE_CUDA ? "GPU" : "CPU",
                          device.index);
    ds_result r = ds__driver_of(device)->device_processes(device.index, &processes);
    if (r < 0)
        return r;
    if (processes.unknown[0])
        ds__text_writer_print(&writer, "processes are unknown: %s\n", processes.unknown);
    else if (!processes.count)
        ds__text_writer_print(&writer, "no processes are running\n");
    for (size_t i = 0; i < processes.count; i++)
        ds__sharer_write(&writer, processes.list[i].id, processes.list[i].bytes);
    ds__host_free(processes.list);
    if (device.type == DS_DEVICE_CPU) /* the CPU driver lists this process only */
        ds__share_list(device, &writer);
    return r == DS_OK ? ds__text_writer_result(&writer) : r;
}

/* alloc/history.h - history of allocator events.

   Starts and stops the history (ds_mem_history_start, ds_mem_history_stop) and adds annotations
   (ds_mem_annotate). The state is in history_state.h.

   Policy:
   1. The history is a ring per device. The allocator writes it (history_ring.h), this room
      creates and clears it, and snapshot_collect.h reads it.
   2. A snapshot is collected first, device by device with the device stopped, into host memory.
      Then the snapshot is written without a lock.
   3. A single walk over the collected data makes the pickle and the JSON, so both say the same.
      The page reads a shorter form.
   4. Texts are kept once, as valid UTF-8. Frames (a file, a line and a label) are kept once too.

   Invariants: The text of an annotation stays until the ring has overwritten its event.
   Locks: ds__history_state.lock while settings, rings and annotations change; history_state.h has
   the order. The program's memory functions may be called under it.
   Threads: any caller's thread. */

#define DS__HISTORY_ENTRIES ((size_t)65536)
#define DS__ACTIONS 10u

/* Frees the annotations of a device that a ring of `room` entries has lost after `count` events. */
static void ds__remarks_free(int backend, int index, uint64_t count, size_t room) {
    ds__config_remark **first = &ds__history_state.remarks[backend][index].first;
    while (*first && count - (*first)->until >= room) {
        ds__config_remark *old = *first;
        *first = old->next;
        ds__host_free(old);
    }
}

DSDEF ds_result(ds_mem_history_start)(const ds_mem_history_desc *desc) {
    static const ds_mem_history_desc usual;
    ds__history_event *ring[DS_BACKEND_COUNT][DS__MAX_DEVICES];
    ds_result r = DS_OK;
    DS__MEM_ENTER("ds_mem_history_start");
    if (!desc)
        desc = &usual;
    DS__REQUIRE_RESERVED("ds_mem_history_desc", desc);
    size_t entries = desc->entries ? desc->entries : DS__HISTORY_ENTRIES;
    DS__REQUIRE(!(desc->skip >> DS__ACTIONS), "skip is %#x: there is no action %#x", desc->skip,
                desc->skip >> DS__ACTIONS << DS__ACTIONS);
    DS__REQUIRE(entries <= SIZE_MAX / 2 / sizeof(ds__history_event),
                "no memory for %zu history entries", entries);
    r = ds__mem_setup(); /* then ds_shutdown stops the history */
    if (r < 0)
        return r;
    memset(ring, 0, sizeof ring);
    ds__mutex_lock(&ds__history_state.lock);
    DS__EACH_MDEVICE(dev)
    if (r == DS_OK) {
        ring[ds__b][ds__i] = ds__host_alloc(entries * sizeof(ds__history_event));
        if (!ring[ds__b][ds__i])
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a history of %zu entries", entries);
    }
    if (r == DS_OK) {
        ds__history_state.on = 1;
        ds__history_state.entries = entries;
        ds__history_state.actions = ((1u << DS__ACTIONS) - 1) & ~desc->skip;
        DS__EACH_MDEVICE(dev) {
            ring[ds__b][ds__i] =
                ds__history_swap(dev, ring[ds__b][ds__i], ring[ds__b][ds__i] ? entries : 0);
            ds__remarks_free(ds__b, ds__i, UINT64_MAX, 0);
            ds__history_apply(dev);
        }
    }
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        for (int i = 0; i < DS__MAX_DEVICES; i++)
            ds__host_free(ring[b][i]);
    ds__mutex_unlock(&ds__history_state.lock);
    return r;
}

DSDEF ds_result(ds_mem_history_stop)(void) {
    DS__MEM_ENTER("ds_mem_history_stop");
    ds__mutex_lock(&ds__history_state.lock);
    ds__history_state.on = 0;
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
    return DS_OK;
}

DSDEF ds_result(ds_mem_annotate)(ds_device device, const char *text) {
    DS__ENTER("ds_mem_annotate");
    DS__REQUIRE(text, "text is NULL");
    DS__RESOLVE(device);
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    if (!(atomic_load(&dev->watch) & (1u << DS_ACTION_ANNOTATION | DS__WATCHED)))
        return DS_OK;
    ds__config_remark *m = ds__host_alloc(sizeof *m);
    if (!m)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an annotation");
    int b = ds__backend_of(device);
    int i = device.index;
    ds__utf8_copy(m->text, sizeof m->text, text);
    ds__mutex_lock(&ds__history_state.lock);
    ds__mem_note(dev, &(ds__history_event){ .file = ds__tls.site.file,
                                            .label = m->text,
                                            .line = (uint32_t)ds__tls.site.line,
                                            .action = DS_ACTION_ANNOTATION });
    m->until = atomic_load_explicit(&dev->history_count, memory_order_relaxed);
    ds__remarks_free(b, i, m->until, dev->history_room);
    if (ds__history_state.remarks[b][i].first)
        ds__history_state.remarks[b][i].last->next = m;
    else
        ds__history_state.remarks[b][i].first = m;
    ds__history_state.remarks[b][i].last = m;
    ds__mutex_unlock(&ds__history_state.lock);
    return DS_OK;
}

/* alloc/observer.h - observers of allocator events.

   Implements ds_mem_add_event_callback and ds_mem_remove_event_callback; history_state.h has the
   list and calls the observers. ds__snapshot_shutdown resets history and observers.

   Invariants: When ds_mem_remove_event_callback returns DS_OK, no thread is inside the observer.
   Locks: order: ds__history_state.lock, then ds__history_state.watch. Observers run under
   ds__history_state.watch, and under the locks of the thread that reports the event, often an
   arena's lock. ds__history_state.watch is taken last, after all locks of the allocator.
   Threads: an observer runs on the thread that reports the event, one call at a time in the
   process. */

/* Sets the reported events of all devices, after the list of observers has changed. */
static void ds__observers_apply(void) {
    ds__mutex_lock(&ds__history_state.lock);
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
    ds__mutex_unlock(&ds__history_state.lock);
}

DSDEF ds_result(ds_mem_add_event_callback)(ds_mem_event_fn fn, void *user) {
    DS__ENTER("ds_mem_add_event_callback");
    ds_result r = ds__callback_add(&ds__history_state.observers, &ds__history_state.watch,
                                   (ds__callback){ (void (*)(void))fn, user });
    ds__observers_apply();
    return r;
}

DSDEF ds_result(ds_mem_remove_event_callback)(ds_mem_event_fn fn, void *user) {
    DS__ENTER("ds_mem_remove_event_callback");
    DS__REQUIRE(fn, "fn is NULL");
    ds_result r = ds__callback_remove(&ds__history_state.observers, &ds__history_state.watch,
                                      (ds__callback){ (void (*)(void))fn, user });
    ds__observers_apply();
    return r;
}

/* Resets history and observers at ds_shutdown. */
static void ds__snapshot_shutdown(void) {
    DS__EACH_MDEVICE(dev) {
        ds__host_free(ds__history_swap(dev, NULL, 0));
        ds__remarks_free(ds__b, ds__i, UINT64_MAX, 0);
    }
    ds__callback_clear(&ds__history_state.observers);
    ds__history_state.entries = 0;
    ds__history_state.on = 0;
    DS__EACH_MDEVICE(dev) ds__history_apply(dev);
}

/* alloc/snapshot_types.h - collected data of a snapshot; texts and frames by number.

   Defines the collected data of a snapshot (ds__snap) and the sets (ds__snap_set) that store each
   text and frame once. ds__snap_text and ds__snap_frame return the number of a text or a frame;
   ds__snap_string returns a text.

   Invariants: Numbers of texts and frames begin at 1; 0 means none. Texts are valid UTF-8. If
   memory runs out, `broken` is set, and later additions do nothing. The cache `recent` compares
   pointers, so ds__snap_forget must be called before the texts behind them may change.
   Locks: none. ds__snap_collect calls these functions under its locks.
   Threads: one thread per ds__snap. */

typedef struct ds__sframe {
    uint32_t file; /* number of a text */
    uint32_t line;
    uint32_t name; /* number of a text */
} ds__sframe;

typedef struct ds__sblock {
    uint64_t address;
    uint64_t size;
    uint64_t asked;
    uint32_t frame;
    uint32_t state;
} ds__sblock;

typedef struct ds__ssegment {
    uint64_t address;
    uint64_t size;
    uint64_t allocated;
    uint64_t active;
    uint64_t requested;
    uint64_t stream;
    uint32_t device;
    uint32_t pool;
    uint32_t kind;
    uint32_t growing;
    size_t first; /* index of the first block */
    size_t count; /* of blocks */
} ds__ssegment;

typedef struct ds__spool {
    uint64_t id;
    uint64_t name[2];
    uint32_t label;
    uint32_t device;
} ds__spool;

typedef struct ds__sdevice {
    ds_device device;
    size_t total;
    size_t limit;
    size_t room;
    uint64_t seen; /* events since the start of the history */
    uint64_t active;
    /* from the oldest event on; `line` is the number of the frame, or of an annotation's text, and
       `pool` an index */
    ds__history_event *events;
    size_t count;
} ds__sdevice;

/* Strings of bytes, each stored once. Their numbers begin at 1. No string is the beginning of
   another one: texts end with their 0, and frames have one size. */
typedef struct ds__snap_set {
    char *bytes;
    size_t *at;   /* string n is at bytes[at[n - 1]], up to bytes[at[n]] */
    size_t count; /* of strings */
    size_t size;  /* of all strings */
    size_t at_room;
    size_t room;
    uint32_t *slot; /* a hash table with the numbers of the strings; 0: free */
    size_t mask;    /* number of slots - 1 */
} ds__snap_set;

typedef struct ds__snap {
    int broken;           /* 1: out of host memory */
    ds__sdevice *devices; /* all devices of the machine */
    uint32_t device_count;
    ds__ssegment *segments;
    ds__sblock *blocks;
    ds__spool *pools;
    size_t segment_count;
    size_t segment_room;
    size_t block_count;
    size_t block_room;
    size_t pool_count;
    size_t pool_room;
    ds__snap_set texts;
    ds__snap_set frames; /* of ds__sframe */

    struct {
        const char *ptr;
        uint32_t text;
    } recent[256];

    ds_mem_config config;
    size_t entries;     /* of the history */
    uint32_t nobody;    /* the name of frames without a label */
    uint64_t time_ns;   /* of the monotonic clock */
    int64_t to_wall_ns; /* from the monotonic clock to the time of day */
} ds__snap;

/* Makes room for one more element of a list. 0: out of host memory, and the snapshot is broken. */
#define DS__SNAP_MORE(s, list, count, room)                                                       \
    (!(s)->broken && ((s)->broken = !ds__array_reserve(&(s)->list, sizeof *(s)->list, (s)->count, \
                                                       1, &(s)->room)) == 0)

/* Gives the hash table four times as many slots. Returns 0 without host memory. */
static int ds__snap_set_grow(ds__snap_set *x) {
    size_t size = x->mask ? 4 * (x->mask + 1) : 1024;
    uint32_t *bigger = ds__host_alloc(size * sizeof *bigger);
    if (!bigger)
        return 0;
    for (size_t i = 0; i < x->count; i++) {
        size_t at = ds__hash(x->bytes + x->at[i], x->at[i + 1] - x->at[i]) & (size - 1);
        while (bigger[at])
            at = (at + 1) & (size - 1);
        bigger[at] = (uint32_t)i + 1;
    }
    ds__host_free(x->slot);
    x->slot = bigger;
    x->mask = size - 1;
    return 1;
}

/* Appends a string, and returns its number. Returns 0 without host memory. */
static uint32_t ds__snap_set_append(ds__snap_set *x, const void *bytes, size_t size) {
    if (!ds__array_reserve(&x->bytes, 1, x->size, size, &x->room) ||
        !ds__array_reserve(&x->at, sizeof *x->at, x->count, 2, &x->at_room))
        return 0;
    memcpy(x->bytes + x->size, bytes, size);
    x->at[x->count++] = x->size;
    x->size += size;
    x->at[x->count] = x->size;
    return (uint32_t)x->count;
}

/* Returns the number of a string, which is copied at its first use. Returns 0 without host memory,
   and the snapshot is broken. */
static uint32_t ds__snap_set_number(ds__snap *s, ds__snap_set *x, const void *bytes, size_t size) {
    if (2 * x->count >= x->mask && !ds__snap_set_grow(x)) {
        s->broken = 1;
        return 0;
    }
    size_t i = ds__hash(bytes, size) & x->mask;
    for (; x->slot[i]; i = (i + 1) & x->mask) {
        size_t at = x->at[x->slot[i] - 1];
        if (x->size - at >= size && !memcmp(x->bytes + at, bytes, size))
            return x->slot[i];
    }
    x->slot[i] = ds__snap_set_append(x, bytes, size);
    s->broken = !x->slot[i];
    return x->slot[i];
}

static void ds__snap_set_deinit(ds__snap_set *x) {
    ds__host_free(x->bytes);
    ds__host_free(x->at);
    ds__host_free(x->slot);
}

static const char *ds__snap_string(const ds__snap *s, uint32_t text) {
    return text ? s->texts.bytes + s->texts.at[text - 1] : "";
}

/* Returns the frame with this number, from 1 on. */
static const ds__sframe *ds__snap_frame_at(const ds__snap *s, uint32_t frame) {
    return (const ds__sframe *)(const void *)s->frames.bytes + (frame - 1);
}

/* Returns the number of a text. Returns 0 for NULL, or without host memory. */
static uint32_t ds__snap_text(ds__snap *s, const char *text) {
    char clean[2048];
    if (!text || s->broken)
        return 0;
    size_t n = ds__utf8_copy(clean, sizeof clean, text);
    return ds__snap_set_number(s, &s->texts, clean, n + 1);
}

/* As ds__snap_text, for a text that does not change before ds__snap_forget. Compares pointers
   first. */
static uint32_t ds__snap_known(ds__snap *s, const char *text) {
    size_t at = ((uintptr_t)text ^ (uintptr_t)text >> 9) & 255;
    if (!text || s->recent[at].ptr != text) {
        s->recent[at].text = ds__snap_text(s, text);
        s->recent[at].ptr = text;
    }
    return s->recent[at].text;
}

/* Empties the cache of ds__snap_known. */
static void ds__snap_forget(ds__snap *s) {
    memset(s->recent, 0, sizeof s->recent);
}

/* Returns the number of a frame. Returns 0 if neither file nor label is known, or without host
   memory. */
static uint32_t ds__snap_frame(ds__snap *s, const char *file, uint32_t line, const char *label) {
    ds__sframe f = { ds__snap_known(s, file), file ? line : 0,
                     ds__snap_known(s, label && *label ? label : NULL) };
    if (s->broken || (!f.file && !f.name))
        return 0;
    return ds__snap_set_number(s, &s->frames, &f, sizeof f);
}

/* alloc/snapshot_collect.h - collecting a snapshot.

   ds__snap_collect copies the segments, blocks, pools and history of all devices, or of one
   pool, into a ds__snap. CUDA's devices come first. ds__snap_free frees it.

   Invariants: Each run of mapped blocks between holes becomes a segment, as in PyTorch's
   snapshots. Segments are sorted by device and address. The times of a device's events are
   nanoseconds and never decrease; their labels, places and pools are replaced by numbers. If
   memory runs out, the whole snapshot is dropped.
   Locks: ds__memory_state.lock first, and released. Then ds__history_state.lock, and under it one
   device after the other is stopped (ds__mem_lock_all); its history_lock comes last. Memory for the
   copy is allocated under these locks, spinning ones included. The event of the snapshot itself is
   noted under ds__history_state.lock, so observers (user code) run under it.
   Threads: any caller's thread, also while streams capture. The copy of a device is consistent
   in itself; devices are copied one after the other. */

/* Copies the blocks of a segment. As in PyTorch's snapshots, each run of blocks between holes
   becomes a segment. All is locked. */
static void ds__snap_segment(ds__snap *s, const ds__segment *seg, const ds__arena *a,
                             uint32_t device, uint32_t pool) {
    ds__ssegment *run = NULL;
    for (const ds__mem_block *b = seg->first; b && !s->broken; b = b->next) {
        if (b->state == DS_BLOCK_UNMAPPED) {
            run = NULL;
            continue;
        }
        if (!run) {
            if (!DS__SNAP_MORE(s, segments, segment_count, segment_room))
                return;
            run = &s->segments[s->segment_count++];
            *run = (ds__ssegment){ .address = (uintptr_t)b->ptr,
                                   .stream = a->stream_id,
                                   .device = device,
                                   .pool = pool,
                                   .kind = seg->kind,
                                   .growing = seg->page != 0,
                                   .first = s->block_count };
        }
        if (!DS__SNAP_MORE(s, blocks, block_count, block_room))
            return;
        ds__sblock *to = &s->blocks[s->block_count++];
        *to = (ds__sblock){ .address = (uintptr_t)b->ptr, .size = b->size, .state = b->state };
        run->size += b->size;
        run->count++;
        if (b->state == DS_BLOCK_FREE) /* its label may have been freed */
            continue;
        to->asked = b->asked;
        to->frame = ds__snap_frame(s, b->file, b->line, b->label);
        run->active += b->size;
        run->requested += b->asked;
        if (b->state == DS_BLOCK_LIVE)
            run->allocated += b->size;
    }
}

/* Copies a pool, and returns its index. */
static uint32_t ds__snap_pool(ds__snap *s, const ds__mem_pool *p, uint32_t device) {
    if (!DS__SNAP_MORE(s, pools, pool_count, pool_room))
        return 0;
    s->pools[s->pool_count] =
        (ds__spool){ p->id, { p->name[0], p->name[1] }, ds__snap_text(s, p->label), device };
    return (uint32_t)s->pool_count++;
}

/* Converts the times of the events from ticks to nanoseconds. The same scale for all events keeps
   their order. */
static void ds__snap_times(ds__sdevice *d) {
    if (!d->count)
        return;
    for (size_t i = 1; i < d->count;
         i++) /* a thread may have waited between its time and its entry */
        if (d->events[i].time_ns < d->events[i - 1].time_ns)
            d->events[i].time_ns = d->events[i - 1].time_ns;
    uint64_t from = d->events[0].time_ns;
    uint64_t from_ns = ds__ticks_ns(from);
    uint64_t to = d->events[d->count - 1].time_ns;
    double scale = to > from ? (double)(ds__ticks_ns(to) - from_ns) / (double)(to - from) : 0;
    for (size_t i = 0; i < d->count; i++)
        d->events[i].time_ns = from_ns + (uint64_t)((double)(d->events[i].time_ns - from) * scale);
}

/* Copies the events of a device, from the oldest one in the ring on. The device is locked. */
static void ds__snap_history(ds__snap *s, ds__sdevice *d, ds__mem_dev *dev) {
    /* a few more events may come, because some need no lock of the device */
    uint64_t n = atomic_load_explicit(&dev->history_count, memory_order_relaxed) + 64;
    size_t have = n < dev->history_room ? (size_t)n : dev->history_room;
    if (!have || s->broken)
        return;
    d->events = ds__host_alloc(have * sizeof *d->events);
    if (!d->events) {
        s->broken = 1;
        return;
    }
    ds__spinlock_lock(&dev->history_lock);
    n = atomic_load_explicit(&dev->history_count, memory_order_relaxed);
    d->seen = n;
    d->count = n < have ? (size_t)n : have;
    for (size_t i = 0; i < d->count; i++)
        d->events[i] = dev->history[(n - d->count + i) % dev->history_room];
    ds__spinlock_unlock(&dev->history_lock);
    ds__snap_times(d);
}

/* Returns the index of a device's pool, from a guess on, or `pool_count`. */
static uint32_t ds__snap_pool_find(const ds__snap *s, uint32_t device, uint64_t id,
                                   uint32_t guess) {
    if (guess < s->pool_count && s->pools[guess].device == device && s->pools[guess].id == id)
        return guess;
    uint32_t pool = 0;
    while (pool < s->pool_count && (s->pools[pool].device != device || s->pools[pool].id != id))
        pool++;
    return pool;
}

/* Replaces texts, frames and pools of the events by their numbers. If `only` is not 0, keeps the
   events of that pool, and the annotations. ds__history_state.lock is held, so annotations stay. */
static void ds__snap_events(ds__snap *s, ds__sdevice *d, uint32_t number, uint64_t only) {
    size_t kept = 0;
    uint32_t pool = 0;
    for (size_t i = 0; i < d->count && !s->broken; i++) {
        ds__history_event e = d->events[i];
        pool = ds__snap_pool_find(s, number, e.pool, pool);
        if (only && e.pool != only && e.action != DS_ACTION_ANNOTATION)
            continue;
        if (e.action == DS_ACTION_ANNOTATION)
            e.line = ds__snap_text(s, e.label);
        else
            e.line = ds__snap_frame(s, e.file, e.line, e.label);
        if (pool == s->pool_count) { /* the pool does not exist any more */
            if (!DS__SNAP_MORE(s, pools, pool_count, pool_room))
                break;
            s->pools[s->pool_count++] =
                (ds__spool){ .id = e.pool, .name = { 0, e.pool >> 32 }, .device = number };
        }
        e.pool = pool;
        d->events[kept++] = e;
    }
    d->count = kept;
}

/* Copies a device with its pools, blocks and events; `only`: the pool to copy, 0 for all.
   ds__history_state.lock is held. */
static void ds__snap_device(ds__snap *s, ds__mem_dev *dev, uint32_t number, unsigned flags,
                            uint64_t only) {
    ds__sdevice *d = &s->devices[number];
    d->total = dev->total;
    d->limit = atomic_load(&dev->limit);
    d->room = dev->history_room;
    ds__mem_lock_all(dev);
    for (ds__mem_pool *p = &dev->main; p && !s->broken; p = p->next) {
        uint32_t pool = ds__snap_pool(s, p, number);
        if (only && p->id != only)
            continue;
        size_t begin = s->segment_count;
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (ds__segment *seg = a->segments; seg && !s->broken; seg = seg->next)
                ds__snap_segment(s, seg, a, number, pool);
        for (size_t i = begin; i < s->segment_count; i++)
            d->active += s->segments[i].active;
    }
    if (!(flags & DS_SNAPSHOT_NO_HISTORY))
        ds__snap_history(s, d, dev);
    s->config = dev->main.config;
    ds__mem_unlock_all(dev);
    ds__snap_forget(s);
    ds__snap_events(s, d, number, only);
    ds__snap_forget(s);
    /* shows in the next snapshot */
    ds__mem_note(dev, &(ds__history_event){ .bytes = d->active,
                                            .file = ds__tls.site.file,
                                            .line = (uint32_t)ds__tls.site.line,
                                            .action = DS_ACTION_SNAPSHOT });
}

static int ds__snap_order(const void *a, const void *b) {
    const ds__ssegment *x = a;
    const ds__ssegment *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->address < y->address ? -1 : x->address > y->address;
}

static void ds__snap_free(ds__snap *s) {
    if (!s)
        return;
    for (uint32_t i = 0; i < s->device_count && s->devices; i++)
        ds__host_free(s->devices[i].events);
    ds__host_free(s->devices);
    ds__host_free(s->segments);
    ds__host_free(s->blocks);
    ds__host_free(s->pools);
    ds__snap_set_deinit(&s->texts);
    ds__snap_set_deinit(&s->frames);
    ds__host_free(s);
}

/* Returns the difference between the time of day and the monotonic clock, the same one for all
   snapshots. ds__history_state.lock is held. */
static int64_t ds__to_wall(void) {
    if (!ds__history_state.to_wall_ns)
        ds__history_state.to_wall_ns = ds__os_wall_ns() - (int64_t)ds__now_ns();
    return ds__history_state.to_wall_ns;
}

/* Copies the settings and all devices, CUDA's first; `only`: the pool to copy, or NULL. */
static void ds__snap_fill(ds__snap *s, unsigned flags, const ds__mem_pool *only, int gpus) {
    ds__mutex_lock(&ds__memory_state.lock);
    s->config = ds__memory_state.config;
    ds__mutex_unlock(&ds__memory_state.lock);
    ds__mutex_lock(&ds__history_state.lock);
    s->time_ns = ds__now_ns();
    s->to_wall_ns = ds__to_wall();
    s->entries = ds__history_state.entries;
    s->nobody = ds__snap_text(s, "(no label)");
    /* the first device last: the settings are those of the device that was copied last */
    for (int i = (int)s->device_count; i-- > 0 && !s->broken;) {
        ds_device device = i < gpus ? ds_cuda(i) : ds_cpu(i - gpus);
        ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
        s->devices[i].device = device;
        if (dev && (!only || only->dev == dev))
            ds__snap_device(s, dev, (uint32_t)i, flags, only ? only->id : 0);
    }
    ds__mutex_unlock(&ds__history_state.lock);
    if (s->segment_count)
        qsort(s->segments, s->segment_count, sizeof *s->segments, ds__snap_order);
}

/* Collects a snapshot of all devices, or of one pool. Without host memory returns NULL and sets the
   error. */
static ds__snap *ds__snap_collect(unsigned flags, const ds__mem_pool *only) {
    int gpus = ds__type_count(DS_DEVICE_CUDA);
    int all = gpus + ds__type_count(DS_DEVICE_CPU);
    ds__snap *s = ds__host_alloc(sizeof *s);
    if (s) {
        s->device_count = (uint32_t)all;
        s->devices = ds__host_alloc((size_t)(all ? all : 1) * sizeof *s->devices);
    }
    if (s && s->devices) {
        ds__snap_fill(s, flags, only, gpus);
        if (!s->broken)
            return s;
    }
    ds__snap_free(s);
    ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a snapshot");
    return NULL;
}

/* alloc/snapshot_format.h - output of pickle and JSON: buffer, words, opcodes.

   The text writer of snapshots (ds__item_writer): buffers the output, and writes dictionaries,
   lists, numbers and texts as pickle (protocol 2) or JSON.

   Invariants: `level` has the open lists and dictionaries, at most 8. In a pickle, a word, text
   or frame is written once, and later ones refer to its memo number. Nothing is written after
   the writer returned a value other than 0.
   Locks: none. ds__item_writer_flush calls the user's writer with no lock of the allocator held,
   and devstream refuses calls from it.
   Threads: one thread per ds__item_writer: that of the snapshot call. */

typedef struct ds__item_writer {
    ds__text_writer out;
    int pickle; /* 1: pickle; 0: JSON */
    unsigned depth;

    struct {
        uint32_t count;
        char close;
    } level[8]; /* close: ']' or '}' */

    uint32_t memos; /* the last memo number of the pickle */
    const ds__snap *s;
    size_t size;
    char buffer[16384];

    /* memo numbers of the words of the format, by the address of the literal. The formats have less
       than 100 words */
    struct {
        const char *word;
        uint32_t memo;
    } words[256];

    /* memo numbers by text or frame; 0: not written yet */
    uint32_t *text;
    uint32_t *frame;
    uint32_t memo[]; /* the elements of `text`, then those of `frame` */
} ds__item_writer;

/* Passes the buffer to the writer, unless the writer has stopped. */
static void ds__item_writer_flush(ds__item_writer *k) {
    ds__user_code g = ds__user_code_begin();
    if (k->size && !k->out.stopped)
        k->out.stopped = k->out.write_fn(k->buffer, k->size, k->out.user);
    ds__user_code_end(&g);
    k->size = 0;
}

static void ds__item_writer_bytes(ds__item_writer *k, const void *bytes, size_t size) {
    for (const char *p = bytes; size && !k->out.stopped;) {
        size_t n = sizeof k->buffer - k->size;
        if (n > size)
            n = size;
        memcpy(k->buffer + k->size, p, n);
        k->size += n;
        if (k->size == sizeof k->buffer)
            ds__item_writer_flush(k);
        p += n;
        size -= n;
    }
}

static void ds__item_writer_byte(ds__item_writer *k, int byte) {
    char c = (char)byte;
    ds__item_writer_bytes(k, &c, 1);
}

static void ds__item_writer_plain(ds__item_writer *k, const char *text) {
    ds__item_writer_bytes(k, text, strlen(text));
}

static void ds__item_writer_number(ds__item_writer *k, uint64_t n) {
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n);
    ds__item_writer_bytes(k, digits + at, sizeof digits - at);
}

/* Writes a string of JSON. It contains no '<', so it may be part of an HTML page. */
static void ds__item_writer_quoted(ds__item_writer *k, const char *text) {
    ds__item_writer_byte(k, '"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        char code[8];
        if (c >= ' ' && c != '"' && c != '\\' && c != '<') {
            ds__item_writer_byte(k, c);
            continue;
        }
        snprintf(code, sizeof code, "\\u%04x", c);
        ds__item_writer_bytes(k, code, 6);
    }
    ds__item_writer_byte(k, '"');
}

/* Writes an opcode of pickle, and a number in `bytes` bytes, the lowest first. */
static void ds__snapshot_opcode_write(ds__item_writer *k, int opcode, uint64_t n, unsigned bytes) {
    ds__item_writer_byte(k, opcode);
    for (; bytes; bytes--, n >>= 8)
        ds__item_writer_byte(k, (int)(n & 255));
}

/* Gives the object on top of the pickle's stack a memo number. */
static void ds__pickle_keep(ds__item_writer *k, uint32_t *memo) {
    *memo = ++k->memos;
    if (*memo < 256)
        ds__snapshot_opcode_write(k, 'q', *memo, 1);
    else
        ds__snapshot_opcode_write(k, 'r', *memo, 4);
}

/* Pushes the object of a memo number. Returns 0 if there is no number yet. */
static int ds__pickle_again(ds__item_writer *k, const uint32_t *memo) {
    if (*memo)
        ds__snapshot_opcode_write(k, *memo < 256 ? 'h' : 'j', *memo, *memo < 256 ? 1 : 4);
    return *memo != 0;
}

static void ds__pickle_text(ds__item_writer *k, const char *text) {
    size_t n = strlen(text);
    ds__snapshot_opcode_write(k, 'X', n, 4);
    ds__item_writer_bytes(k, text, n);
}

/* Writes a string without a memo number. */
static void ds__item_writer_string(ds__item_writer *k, const char *text) {
    if (k->pickle)
        ds__pickle_text(k, text);
    else
        ds__item_writer_quoted(k, text);
}

/* Opens a list ('[') or a dictionary ('{'). PyTorch's viewer passes the items after a mark of the
   pickle as arguments of a call, so there is a mark before each thousandth item of a list. */
static void ds__item_writer_open(ds__item_writer *k, char what) {
    k->level[k->depth].count = 0;
    k->level[k->depth++].close = what == '[' ? ']' : '}';
    if (!k->pickle)
        ds__item_writer_byte(k, what);
    else if (what == '[')
        ds__item_writer_byte(k, ']');
    else
        ds__item_writer_bytes(k, "}(", 2);
}

static void ds__item_writer_close(ds__item_writer *k) {
    char close = k->level[--k->depth].close;
    if (!k->pickle)
        ds__item_writer_byte(k, close);
    else if (close == '}')
        ds__item_writer_byte(k, 'u');
    else if (k->level[k->depth].count)
        ds__item_writer_byte(k, 'e');
}

/* Must be called before each item of a list. */
static void ds__item_writer_item(ds__item_writer *k) {
    uint32_t n = k->level[k->depth - 1].count++;
    if (!k->pickle) {
        if (n)
            ds__item_writer_byte(k, ',');
        ds__item_writer_byte(k, '\n');
        return;
    }
    if (n % 1000 == 0)
        ds__item_writer_plain(k, n ? "e(" : "(");
}

/* Writes a string, in a pickle only once. */
static void ds__item_writer_once(ds__item_writer *k, const char *text, uint32_t *memo) {
    if (!k->pickle) {
        ds__item_writer_quoted(k, text);
        return;
    }
    if (ds__pickle_again(k, memo))
        return;
    ds__pickle_text(k, text);
    ds__pickle_keep(k, memo);
}

/* Returns the memo number of a word of the format, which must be a literal. */
static uint32_t *ds__item_writer_memo(ds__item_writer *k, const char *word) {
    size_t at = ((uintptr_t)word >> 2 ^ (uintptr_t)word >> 10) & 255;
    while (k->words[at].word && k->words[at].word != word)
        at = (at + 1) & 255;
    k->words[at].word = word;
    return &k->words[at].memo;
}

/* Writes a word of the format, which must be a literal. */
static void ds__item_writer_word(ds__item_writer *k, const char *word) {
    ds__item_writer_once(k, word, ds__item_writer_memo(k, word));
}

/* Writes the key of a value in a dictionary, in a pickle only once. */
static void ds__item_writer_key_once(ds__item_writer *k, const char *key, uint32_t *memo) {
    if (!k->pickle && k->level[k->depth - 1].count++)
        ds__item_writer_byte(k, ',');
    ds__item_writer_once(k, key, memo);
    if (!k->pickle)
        ds__item_writer_byte(k, ':');
}

/* Writes a key that is a word of the format. */
static void ds__item_writer_key(ds__item_writer *k, const char *word) {
    ds__item_writer_key_once(k, word, ds__item_writer_memo(k, word));
}

/* Writes a number; in a pickle, numbers above INT64_MAX become INT64_MAX. */
static void ds__item_writer_int(ds__item_writer *k, uint64_t n) {
    if (!k->pickle) {
        ds__item_writer_number(k, n);
        return;
    }
    unsigned bytes = 5; /* with room for the sign */
    if (n < 1u << 8) {
        ds__snapshot_opcode_write(k, 'K', n, 1);
        return;
    }
    if (n < 1u << 16) {
        ds__snapshot_opcode_write(k, 'M', n, 2);
        return;
    }
    if (n < 1u << 31) {
        ds__snapshot_opcode_write(k, 'J', n, 4);
        return;
    }
    while (bytes < 8 && n >> (8 * bytes - 1))
        bytes++;
    if (n >> 63)
        n = INT64_MAX;
    ds__snapshot_opcode_write(k, 0x8a, bytes, 1);
    for (unsigned i = 0; i < bytes; i++)
        ds__item_writer_byte(k, (int)(n >> 8 * i & 255));
}

/* The following functions write a key and a value. */
static void ds__put_int(ds__item_writer *k, const char *word, uint64_t n) {
    ds__item_writer_key(k, word);
    ds__item_writer_int(k, n);
}

/* Writes a text by its number in the snapshot. */
static void ds__put_text(ds__item_writer *k, const char *word, uint32_t text) {
    ds__item_writer_key(k, word);
    ds__item_writer_once(k, ds__snap_string(k->s, text), &k->text[text]);
}

static void ds__put_word(ds__item_writer *k, const char *word, const char *value) {
    ds__item_writer_key(k, word);
    ds__item_writer_word(k, value);
}

static void ds__put_bool(ds__item_writer *k, const char *word, int value) {
    ds__item_writer_key(k, word);
    if (k->pickle)
        ds__item_writer_byte(k, value ? 0x88 : 0x89);
    else
        ds__item_writer_plain(k, value ? "true" : "false");
}

static void ds__put_list(ds__item_writer *k, const char *word) {
    ds__item_writer_key(k, word);
    ds__item_writer_open(k, '[');
}

/* Writes a size; SIZE_MAX becomes -1. */
static void ds__put_size(ds__item_writer *k, const char *word, size_t size) {
    if (size <= INT64_MAX) {
        ds__put_int(k, word, size);
        return;
    }
    ds__item_writer_key(k, word);
    if (k->pickle)
        ds__snapshot_opcode_write(k, 'J', 0xffffffffu, 4);
    else
        ds__item_writer_plain(k, "-1");
}

/* Writes a number from 0 to 1000. */
static void ds__put_real(ds__item_writer *k, const char *word, double value) {
    char text[32];
    uint64_t bits;
    unsigned millionths = (unsigned)(value * 1e6 + 0.5);
    memcpy(&bits, &value, sizeof bits);
    ds__item_writer_key(k, word);
    if (k->pickle) {
        ds__item_writer_byte(k, 'G');
        for (int shift = 56; shift >= 0; shift -= 8)
            ds__item_writer_byte(k, (int)(bits >> shift & 255));
        return;
    }
    snprintf(text, sizeof text, "%u.%06u", millionths / 1000000, millionths % 1000000);
    ds__item_writer_plain(k, text);
}

/* alloc/snapshot_write.h - writing a snapshot as pickle or JSON.

   ds__write_snapshot writes segments, events, settings, annotations and devices in the
   structure of PyTorch's snapshots. One walk over the collected data makes the pickle or the
   JSON, so both have the same contents.

   Invariants: The loops over segments, blocks and events end once the user's writer has stopped the
   output.
   Locks: none. The user's writer is called with no lock of the allocator held.
   Threads: the thread of the snapshot call. */

/* Writes the identifier of a pool: a tuple or a list of two numbers. */
static void ds__put_pool(ds__item_writer *k, uint32_t pool) {
    const uint64_t *name = k->s->pools[pool].name;
    ds__item_writer_key(k, "segment_pool_id");
    if (!k->pickle)
        ds__item_writer_byte(k, '[');
    ds__item_writer_int(k, name[0]);
    if (!k->pickle)
        ds__item_writer_byte(k, ',');
    ds__item_writer_int(k, name[1]);
    ds__item_writer_byte(k, k->pickle ? 0x86 : ']');
}

/* Writes a list with one frame, or an empty list for frame 0. */
static void ds__put_frames(ds__item_writer *k, uint32_t frame) {
    ds__item_writer_key(k, "frames");
    if (k->pickle && ds__pickle_again(k, &k->frame[frame]))
        return;
    ds__item_writer_open(k, '[');
    if (frame) {
        const ds__sframe *f = ds__snap_frame_at(k->s, frame);
        k->level[k->depth - 1].count++;
        if (k->pickle)
            ds__item_writer_byte(k, '(');
        ds__item_writer_open(k, '{');
        ds__put_text(k, "filename", f->file);
        ds__put_int(k, "line", f->line);
        ds__put_text(k, "name", f->name ? f->name : k->s->nobody);
        ds__item_writer_close(k);
    }
    ds__item_writer_close(k);
    if (k->pickle && frame)
        ds__pickle_keep(k, &k->frame[frame]);
}

/* Returns a time of day in microseconds. */
static uint64_t ds__snap_us(const ds__snap *s, uint64_t time_ns) {
    return (uint64_t)((int64_t)time_ns + s->to_wall_ns) / 1000;
}

static void ds__write_block(ds__item_writer *k, const ds__sblock *b) {
    static const char *const states[] = { "inactive", "active_allocated", "active_pending_free" };
    ds__item_writer_open(k, '{');
    ds__put_int(k, "address", b->address);
    ds__put_int(k, "size", b->size);
    ds__put_int(k, "requested_size", b->asked);
    ds__put_word(k, "state", states[b->state]);
    ds__put_frames(k, b->frame);
    ds__item_writer_close(k);
}

static void ds__write_segment(ds__item_writer *k, const ds__ssegment *g) {
    ds__item_writer_open(k, '{');
    ds__put_int(k, "device", g->device);
    ds__put_int(k, "address", g->address);
    ds__put_int(k, "total_size", g->size);
    ds__put_int(k, "allocated_size", g->allocated);
    ds__put_int(k, "active_size", g->active);
    ds__put_int(k, "requested_size", g->requested);
    ds__put_int(k, "stream", g->stream);
    ds__put_word(k, "segment_type", g->kind == DS__SMALL ? "small" : "large");
    ds__put_pool(k, g->pool);
    if (k->s->pools[g->pool].label)
        ds__put_text(k, "pool_label", k->s->pools[g->pool].label);
    ds__put_bool(k, "is_expandable", (int)g->growing);
    ds__put_frames(k, 0);
    ds__put_list(k, "blocks");
    for (size_t i = 0; i < g->count && !k->out.stopped; i++) {
        ds__item_writer_item(k);
        ds__write_block(k, &k->s->blocks[g->first + i]);
    }
    ds__item_writer_close(k);
    ds__item_writer_close(k);
}

static void ds__write_event(ds__item_writer *k, const ds__history_event *e) {
    /* in the order of ds_mem_action; annotations are written elsewhere */
    static const char *const actions[] = { "alloc",         "free_requested", "free_completed",
                                           "segment_alloc", "segment_free",   "segment_map",
                                           "segment_unmap", "snapshot",       "oom" };
    ds__item_writer_open(k, '{');
    ds__put_word(k, "action", actions[e->action]);
    ds__put_int(k, e->action == DS_ACTION_OOM ? "device_free" : "addr", e->address);
    ds__put_int(k, "size", e->bytes);
    ds__put_int(k, "stream", e->stream);
    ds__put_int(k, "time_us", ds__snap_us(k->s, e->time_ns));
    if (k->s->pools[e->pool].id)
        ds__put_pool(k, (uint32_t)e->pool);
    ds__put_frames(k, e->line);
    ds__item_writer_close(k);
}

static void ds__write_settings(ds__item_writer *k) {
    const ds_mem_config *c = &k->s->config;
    const char *conf = getenv("DEVSTREAM_ALLOC_CONF");
    char clean[1024];
    int overflowed = 0;
    for (uint32_t i = 0; i < k->s->device_count; i++)
        overflowed |= k->s->devices[i].seen > k->s->devices[i].room;
    ds__item_writer_key(k, "allocator_settings");
    ds__item_writer_open(k, '{');
    ds__item_writer_key(k, "PYTORCH_CUDA_ALLOC_CONF");
    ds__utf8_copy(clean, sizeof clean, conf ? conf : "");
    ds__item_writer_string(k, clean);
    ds__put_size(k, "max_split_size", c->max_split_size);
    ds__put_real(k, "garbage_collection_threshold", c->garbage_collection_threshold);
    ds__put_bool(k, "expandable_segments", c->expandable_segments);
    ds__put_int(k, "pinned_num_register_threads", c->pinned_num_register_threads);
    ds__put_bool(k, "release_lock_on_cudamalloc", 1); /* always */
    ds__put_bool(k, "pinned_use_cuda_host_register", c->pinned_use_cuda_host_register);
    ds__put_bool(k, "graph_capture_record_stream_reuse", c->graph_capture_record_stream_reuse);
    ds__item_writer_key(k, "roundup_power2_divisions");
    ds__item_writer_open(k, '{');
    for (unsigned i = 0; i < 16; i++) { /* the keys are sizes in MiB */
        char mib[8];
        uint32_t memo = 0;
        snprintf(mib, sizeof mib, "%u", 1u << i);
        ds__item_writer_key_once(k, mib, &memo);
        ds__item_writer_int(k, c->roundup_power2_divisions[i]
                                   ? (uint64_t)1 << (c->roundup_power2_divisions[i] - 1)
                                   : (uint64_t)0);
    }
    ds__item_writer_close(k);
    ds__put_bool(k, "trace_alloc_overflowed", overflowed);
    ds__put_int(k, "trace_alloc_max_entries", k->s->entries);
    ds__put_size(k, "max_round_threshold", c->pinned_max_round_threshold);
    ds__put_size(k, "max_cached_size", c->pinned_max_cached_size);
    ds__item_writer_close(k);
}

static void ds__write_name(ds__item_writer *k, ds_device device) {
    char name[DS_DEVICE_NAME_SIZE];
    snprintf(name, sizeof name, "%s:%d", ds__type_name(device.type), (int)device.index);
    ds__item_writer_string(k, name);
}

static void ds__write_devices(ds__item_writer *k) {
    ds__put_list(k, "devices");
    for (uint32_t i = 0; i < k->s->device_count; i++) {
        const ds__sdevice *d = &k->s->devices[i];
        ds__item_writer_item(k);
        ds__item_writer_open(k, '{');
        ds__item_writer_key(k, "name");
        ds__write_name(k, d->device);
        ds__put_int(k, "total_memory", d->total);
        ds__put_int(k, "limit", d->limit);
        ds__put_int(k, "history_entries", d->room);
        ds__put_int(k, "history_events", d->seen);
        ds__item_writer_close(k);
    }
    ds__item_writer_close(k);
}

static void ds__write_annotations(ds__item_writer *k) {
    ds__put_list(k, "external_annotations");
    for (uint32_t d = 0; d < k->s->device_count; d++)
        for (size_t i = 0; i < k->s->devices[d].count && !k->out.stopped; i++) {
            const ds__history_event *e = &k->s->devices[d].events[i];
            if (e->action != DS_ACTION_ANNOTATION)
                continue;
            ds__item_writer_item(k);
            ds__item_writer_open(k, '{');
            ds__put_int(k, "device", d);
            ds__put_int(k, "time_us", ds__snap_us(k->s, e->time_ns));
            ds__put_text(k, "name", e->line);
            ds__item_writer_close(k);
        }
    ds__item_writer_close(k);
}

/* Writes the snapshot as pickle or JSON. */
static void ds__write_snapshot(ds__item_writer *k) {
    const ds__snap *s = k->s;
    if (k->pickle)
        ds__snapshot_opcode_write(k, 0x80, 2, 1);
    ds__item_writer_open(k, '{');
    ds__put_list(k, "segments");
    for (size_t i = 0; i < s->segment_count && !k->out.stopped; i++) {
        ds__item_writer_item(k);
        ds__write_segment(k, &s->segments[i]);
    }
    ds__item_writer_close(k);
    ds__put_list(k, "device_traces");
    for (uint32_t d = 0; d < s->device_count; d++) {
        ds__item_writer_item(k);
        ds__item_writer_open(k, '[');
        for (size_t i = 0; i < s->devices[d].count && !k->out.stopped; i++) {
            if (s->devices[d].events[i].action == DS_ACTION_ANNOTATION)
                continue;
            ds__item_writer_item(k);
            ds__write_event(k, &s->devices[d].events[i]);
        }
        ds__item_writer_close(k);
    }
    ds__item_writer_close(k);
    ds__write_settings(k);
    ds__write_annotations(k);
    ds__write_devices(k);
    ds__put_int(k, "time_us", ds__snap_us(s, s->time_ns));
    ds__item_writer_close(k);
    ds__item_writer_plain(k, k->pickle ? "." : "\n");
}

/* alloc/snapshot_page_data.h - data of the HTML page of a snapshot.

   ds__page_data writes the collected snapshot in a short JSON form for the HTML page: flat
   lists of numbers, with frames and texts by number. The code of the page (snapshot_page.html)
   reads it.

   Invariants: The order of the numbers in each list is a contract with snapshot_page.html;
   comments beside the lists state it. Times of events are differences in nanoseconds and never
   negative. Quoted texts contain no `<`, so they cannot end the page's script element.
   Locks: none. The user's writer is called with no lock of the allocator held.
   Threads: the thread of the snapshot call. */

/* Writes numbers of a list, with a comma in front unless they are the first ones. */
static void ds__page_numbers(ds__item_writer *k, const uint64_t *n, size_t count, int first) {
    for (size_t i = 0; i < count; i++) {
        if (i || !first)
            ds__item_writer_byte(k, ',');
        ds__item_writer_number(k, n[i]);
    }
}

/* Writes a member: its name, with the comma and the colon, and a number. */
static void ds__page_member(ds__item_writer *k, const char *name, uint64_t n) {
    ds__item_writer_plain(k, name);
    ds__item_writer_number(k, n);
}

/* Writes the texts, frames and pools. */
static void ds__page_names(ds__item_writer *k) {
    const ds__snap *s = k->s;
    ds__item_writer_plain(k, ",\"texts\":[\"\"");
    for (uint32_t i = 1; i <= s->texts.count; i++) {
        ds__item_writer_byte(k, ',');
        ds__item_writer_quoted(k, ds__snap_string(s, i));
    }
    ds__item_writer_plain(k, "],\n\"frames\":[0,0,0"); /* file, line, label */
    for (uint32_t i = 1; i <= s->frames.count; i++) {
        const ds__sframe *f = ds__snap_frame_at(s, i);
        ds__page_numbers(k, (uint64_t[]){ f->file, f->line, f->name }, 3, 0);
    }
    ds__item_writer_plain(k, "],\n\"pools\":["); /* id, label */
    for (size_t i = 0; i < s->pool_count; i++)
        ds__page_numbers(
            k, (uint64_t[]){ s->pools[i].name[0], s->pools[i].name[1], s->pools[i].label }, 3, !i);
    ds__item_writer_byte(k, ']');
}

/* Writes a device with its events. */
static void ds__page_device(ds__item_writer *k, const ds__sdevice *v) {
    uint64_t start = v->count ? v->events[0].time_ns : 0;
    uint64_t last = start;
    ds__item_writer_plain(k, "\n{\"name\":");
    ds__write_name(k, v->device);
    ds__page_member(k, ",\"total\":", v->total);
    ds__page_member(k, ",\"limit\":", v->limit);
    ds__page_member(k, ",\"seen\":", v->seen);
    ds__page_member(k, ",\"start\":", v->count ? ds__snap_us(k->s, start) : 0);
    /* action, address, size, frame or text, ns since the event before */
    ds__item_writer_plain(k, ",\"events\":[");
    for (size_t i = 0; i < v->count && !k->out.stopped; i++) {
        const ds__history_event *e = &v->events[i];
        ds__page_numbers(k,
                         (uint64_t[]){ e->action, e->address, e->bytes, e->line,
                                       e->time_ns > last ? e->time_ns - last : 0 },
                         5, !i);
        if (e->time_ns > last)
            last = e->time_ns;
    }
    ds__item_writer_plain(k, "]}");
}

/* Writes the data of the page: flat lists of numbers, with frames and texts by number. */
static void ds__page_data(ds__item_writer *k) {
    const ds__snap *s = k->s;
    ds__page_member(k, "{\"time\":", ds__snap_us(s, s->time_ns));
    ds__page_names(k);
    /* device, address, size, stream, small or large, growing, pool, first block, blocks */
    ds__item_writer_plain(k, ",\n\"segments\":[");
    for (size_t i = 0; i < s->segment_count && !k->out.stopped; i++) {
        const ds__ssegment *g = &s->segments[i];
        ds__page_numbers(k,
                         (uint64_t[]){ g->device, g->address, g->size, g->stream, g->kind,
                                       g->growing, g->pool, g->first, g->count },
                         9, !i);
    }
    ds__item_writer_plain(k, "],\n\"blocks\":["); /* size, requested size, state, frame */
    for (size_t i = 0; i < s->block_count && !k->out.stopped; i++)
        ds__page_numbers(k,
                         (uint64_t[]){ s->blocks[i].size, s->blocks[i].asked, s->blocks[i].state,
                                       s->blocks[i].frame },
                         4, !i);
    ds__item_writer_plain(k, "],\n\"devices\":[");
    for (uint32_t d = 0; d < s->device_count; d++) {
        if (d)
            ds__item_writer_byte(k, ',');
        ds__page_device(k, &s->devices[d]);
    }
    ds__item_writer_plain(k, "]}");
}

/* Generated by tools/page.awk from src/alloc/snapshot_page.html. */

static const char *const ds__page_head[] = {
    "<!doctype html>\n"
    "<html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>\n"
    "<title>Memory snapshot - devstream</title>\n"
    "<style>\n"
    ":root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1c2230;--soft:#5c6575;--line:#d9dde4;--free:#e6e9ef;--other:#9aa3b2;--bad:#c62828;--mark:#1c2230}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#14171d;--card:#1c2028;--text:#e6e9ef;--soft:#98a1b3;--line:#343b48;--free:#2b313c;--other:#6b7485;--bad:#ff6b6b;--mark:#fff}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:20px;max-width:1400px;background:var(--back);color:var(--text);font:14px/1.45 system-ui,sans-serif}\n"
    "h1{font-size:20px;margin:0}h2{font-size:16px;margin:0 0 2px}\n"
    "header,#tiles,#legend{display:flex;flex-wrap:wrap;gap:8px 14px}\n"
    "header{justify-content:space-between;align-items:center}\n"
    "p{margin:2px 0 8px;color:var(--soft);max-width:110ch}\n"
    "section,#tiles>div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px}\n"
    "section,#tiles{margin-top:14px}#tiles>div{flex:1 1 130px}\n"
    "#tiles b{display:block;font-size:19px}#tiles span{color:var(--soft);font-size:12px}\n"
    "select,input,button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:4px 8px}\n"
    "input[type=search]{width:260px}\n"
    "#legend{gap:4px 6px;margin-bottom:8px}\n"
    "#legend button{font-size:12px;padding:2px 7px;cursor:pointer;max-width:300px;overflow:hidden}\n"
    "i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-align:-1px}\n"
    "button.on{outline:2px solid var(--mark)}\n"
    "canvas{display:block;width:100%}\n"
    "#box{position:relative;overflow-y:auto;max-height:560px}#box canvas{position:sticky;top:0}\n"
    "table{border-collapse:collapse;width:100%}\n"
    "th,td{text-align:right;padding:3px 8px;border-bottom:1px solid var(--line)}\n"
    "th{color:var(--soft);font-weight:600;cursor:pointer}\n"
    "th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}\n"
    "tbody tr{cursor:pointer}tbody tr:hover,tr.on{background:var(--back)}\n"
    "#tip{position:fixed;z-index:9;pointer-events:none;background:var(--card);border:1px solid var(--soft);padding:6px 10px;font-size:12px;white-space:pre-line;max-width:460px;display:none}\n"
    ".bad{color:var(--bad)}\n"
    "</style></head>\n"
    "<body>\n"
    "<header><h1>Memory of <select id=device aria-label=Device></select></h1><span id=when></span>\n"
    "<input id=find type=search placeholder='Find an owner (label or file:line)' aria-label='Find an owner'></header>\n"
    "<div id=tiles></div>\n"
    "<section id=ooms><h2 class=bad>Out of memory</h2><p></p><ul></ul></section>\n"
    "<section><header><h2>Memory over time</h2><label>Scale <select id=scale><option value=1>time<option value=0>events</select></label></header>\n"
    "<p id=about></p><div id=legend></div><canvas id=time height=260 role=img aria-label='Memory by owner over time'></canvas></section>\n"
    "<section><h2>Segments</h2><p>A bar is one stretch of memory reserved from the device, from its first address to its last, drawn at full width whatever its size; one with many blocks goes on in the next lines. Colours are owners, as above; <i style='background:var(--free);border:1px solid var(--line)'></i>is free memory in the cache; <i id=striped></i>was freed, but another stream is not past it yet. Point at a block to read it, click to see all of its owner&rsquo;s.</p>\n"
    "<div id=box><canvas id=map role=img aria-label='Segments and their blocks'></canvas><div id=space></div></div></section>\n"
    "<section><h2>Owners</h2><p>Who has how much now, had when most was allocated in all, and had at most. Click a heading to sort, a line to see only that owner.</p>\n"
    "<table><thead></thead><tbody id=rows></tbody></table><p id=more></p></section>\n"
    "<div id=tip></div>\n"
    "<script type=application/json id=data>\n"
};

static const char *const ds__page_code[] = {
    "</script>\n"
    "<script>\n"
    "'use strict';\n"
    "const {min, max, floor, ceil, round, abs, log2} = Math;\n"
    "const D = JSON.parse(document.getElementById('data').textContent), $ = id => document.getElementById(id);\n"
    "const COLOURS = ['#4f7bd0', '#e08b2d', '#3fa06c', '#c9524f', '#8c66c8', '#2e9fb5', '#c8a424', '#d2699f', '#7d8f35', '#a06f50'];\n"
    "const TOP = COLOURS.length, ALLOC = 0, FREE = 1, DONE = 2, OOM = 8, NOTE = 9;\n"
    "const el = (tag, text = '', more) => Object.assign(document.createElement(tag), {textContent: text}, more);\n"
    "const css = name => getComputedStyle(document.body).getPropertyValue(name).trim();\n"
    "const size = n => {\n"
    "let u = 0, v = abs(n);\n"
    "while (v >= 1024 && u < 5) { v /= 1024; u++; }\n"
    "return (n < 0 ? '-' : '') + (u ? v.toFixed(v < 99.95 ? 1 : 0) : v) + ' ' + ' KMGTP'[u].trim() + (u ? 'iB' : 'B');\n"
    "};\n"
    "const span = us => us < 1e3 ? us.toFixed(0) + (us ? ' us' : '') : us < 1e6 ? (us / 1e3).toFixed(1) + ' ms' : us < 6e8 ? (us / 1e6).toFixed(2) + ' s' : (us / 6e7).toFixed(1) + ' min';\n"
    "const part = (a, b) => b ? (100 * a / b).toFixed(a && a < b / 100 ? 1 : 0) + ' %' : '-';\n"
    "const many = n => n.toLocaleString('en'), plural = (n, what) => many(n) + ' ' + what + (n === 1 ? '' : 's');\n"
    "\n"
    "const owners = [], ownerOf = [], site = f => D.frames[3 * f] ? D.texts[D.frames[3 * f]] + ':' + D.frames[3 * f + 1] : '';\n"
    "{\n"
    "const known = new Map();\n"
    "for (let f = 0; 3 * f < D.frames.length; f++) {\n"
    "const name = D.frames[3 * f + 2] ? D.texts[D.frames[3 * f + 2]] : site(f).split('/').pop() || '(unknown)';\n"
    "if (!known.has(name)) { known.set(name, owners.length); owners.push({name}); }\n"
    "ownerOf.push(known.get(name));\n"
    "}\n"
    "}\n"
    "const starts = new Float64Array(D.blocks.length / 4);\n"
    "let M, chosen = -1, wanted = '', sortBy = 1, cols = null;\n"
    "\n"
    "function load(d) {\n"
    "const v = D.devices[d], E = v.events, n = E.length / 5;\n"
    "M = {v, E, n, segments: [], reserved: 0, live: 0, pending: 0, free: 0, largest: 0, blocks: 0, ooms: [], notes: []};\n"
    "for (const o of owners) Object.assign(o, {live: 0, blocks: 0, atPeak: 0, most: 0, count: 0, first: 0, churn: 0, rank: TOP});\n"
    "for (let i = 0; i < D.segments.length; i += 9) {\n"
    "const [dev, addr, bytes, stream, kind, growing, pool, first, count] = D.segments.slice(i, i + 9);\n"
    "if (dev !== d) continue;\n"
    "let at = 0, free = 0;\n"
    "for (let b = first; b < first + count; b++) {\n"
    "const w = D.blocks[4 * b], asked = D.blocks[4 * b + 1], state = D.blocks[4 * b + 2], o = owners[ownerOf[D.blocks[4 * b + 3]]];\n"
    "starts[b] = at;\n"
    "at += w;\n"
    "if (state === 0) { free += w; M.largest = max(M.largest, w); }\n"
    "if (state === 1) { M.live += w; M.blocks++; o.live += asked; o.blocks++; }\n"
    "if (state === 2) M.pending += w;\n"
    "}\n"
    "M.free += free;\n"
    "M.reserved += bytes;\n"
    "M.segments.push({addr, bytes, stream, kind, growing, pool, first, count, free, lines: min(80, ceil(count / 120)) || 1});\n"
    "}\n"
    "M.segments.sort((x, y) => y.bytes - x.bytes);\n"
    "M.times = new Float64Array(n);\n"
    "let time = 0, delta = 0, total = 0, grown = 0, peakAt = -1, high = 0;\n"
    "M.freed = FREE;\n"
    "for (let i = 0; i < n; i++) if (E[5 * i] === DONE) M.freed = DONE; else if (E[5 * i] === FREE) { M.freed = FREE; break; }\n"
    "for (const o of owners) { o.now = 0; o.top = 0; total += o.live; }\n"
    "for (let i = 0; i < n; i++) {\n"
    "const a = E[5 * i], bytes = E[5 * i + 2];\n"
    "M.times[i] = time += E[5 * i + 4] / 1e3;\n"
    "if (a === ALLOC || a === M.freed) {\n"
    "const o = owners[ownerOf[E[5 * i + 3]]];\n"
    "o.now += a === ALLOC ? bytes : -bytes;\n"
    "delta += a === ALLOC ? bytes : -bytes;\n"
    "if (a === ALLOC) o.count++;\n"
    "o.top = max(o.top, o.now);\n"
    "if (a !== ALLOC) o.churn += bytes;\n"
    "if (delta > high) { high = delta; peakAt = i; }\n"
    "} else if (a >= 3 && a <= 6) grown += a % 2 ? bytes : -bytes;\n"
    "else if (a === OOM) M.ooms.push(i);\n"
    "else if (a === NOTE) M.notes.push(i);\n"
    "}\n"
    "for (const o of owners) { o.first = max(0, o.live - o.now); o.most = o.first + o.top; o.atPeak = o.first; }\n"
    "const middle = M.times[n >> 1] / time;\n"
    "$('scale').value = middle < 0.1 || middle > 0.9 ? 0 : 1;\n"
    "M.marks = M.ooms.concat(M.notes);\n"
    "M.before = max(0, total - delta);\n"
    "M.reservedBefore = max(0, M.reserved - grown);\n"
    "M.peak = M.before + high;\n"
    "for (let i = 0; i <= peakAt; i++) {\n"
    "const a = E[5 * i];\n",
    "if (a === ALLOC || a === M.freed) owners[ownerOf[E[5 * i + 3]]].atPeak += a === ALLOC ? E[5 * i + 2] : -E[5 * i + 2];\n"
    "}\n"
    "M.ranked = owners.filter(o => o.live || o.most).sort((x, y) => max(y.atPeak, y.live) - max(x.atPeak, x.live) || y.most - x.most);\n"
    "M.top = M.ranked.slice(0, TOP).sort((x, y) => x.churn / x.most - y.churn / y.most);\n"
    "M.top.forEach((o, i) => { o.rank = i; });\n"
    "}\n"
    "\n"
    "const shown = o => chosen >= 0 ? o === owners[chosen] : !wanted || o.name.toLowerCase().includes(wanted);\n"
    "const colour = o => COLOURS[o.rank] || css('--other');\n"
    "\n"
    "function pen(canvas, height) {\n"
    "const r = devicePixelRatio || 1, w = canvas.clientWidth, g = canvas.getContext('2d');\n"
    "canvas.style.height = height + 'px';\n"
    "canvas.width = w * r;\n"
    "canvas.height = height * r;\n"
    "g.scale(r, r);\n"
    "g.font = '11px system-ui,sans-serif';\n"
    "g.textBaseline = 'middle';\n"
    "return [g, w];\n"
    "}\n"
    "\n"
    "function columns(w) {\n"
    "const E = M.E, K = TOP + 1, end = M.times[M.n - 1] || 1, byTime = +$('scale').value;\n"
    "cols = {w, end, byTime, now: new Float64Array(w * K), total: new Float64Array(w), reserved: new Float64Array(w)};\n"
    "const now = new Float64Array(K);\n"
    "let total = M.before, reserved = M.reservedBefore, c = 0, hidden = 0;\n"
    "for (const o of owners) if (shown(o)) now[o.rank] += o.first; else hidden += o.first;\n"
    "total -= hidden;\n"
    "const put = () => { cols.now.set(now, c * K); cols.total[c] = total; cols.reserved[c] = max(cols.reserved[c], reserved); };\n"
    "put();\n"
    "for (let i = 0; i < M.n; i++) {\n"
    "const a = E[5 * i], bytes = E[5 * i + 2], to = min(w - 1, floor((byTime ? M.times[i] / end : i / M.n) * w));\n"
    "while (c < to) { c++; put(); }\n"
    "if (a === ALLOC || a === M.freed) {\n"
    "const o = owners[ownerOf[E[5 * i + 3]]], by = a === ALLOC ? bytes : -bytes;\n"
    "if (!shown(o)) continue;\n"
    "now[o.rank] += by;\n"
    "total += by;\n"
    "} else if (a >= 3 && a <= 6) reserved += a % 2 ? bytes : -bytes;\n"
    "if (total >= cols.total[c]) put(); else cols.reserved[c] = max(cols.reserved[c], reserved);\n"
    "}\n"
    "while (c < w - 1) { c++; put(); }\n"
    "}\n"
    "\n"
    "const LEFT = 64, place = i => (cols.byTime ? M.times[i] / cols.end : i / M.n) * cols.w;\n"
    "function drawTime() {\n"
    "const H = 260, base = H - 20, [g, all] = pen($('time'), H), w = max(10, floor(all - LEFT - 6));\n"
    "columns(w);\n"
    "const soft = css('--soft'), every = chosen < 0 && !wanted, most = max(1, ...(every ? cols.reserved : []), ...cols.total), K = TOP + 1;\n"
    "const step = 2 ** ceil(log2(most / 4));\n"
    "const y = v => base - (base - 22) * v / most;\n"
    "g.fillStyle = soft;\n"
    "g.textAlign = 'right';\n"
    "for (let v = 0; v <= most; v += step) {\n"
    "g.fillText(size(v), LEFT - 6, y(v));\n"
    "g.fillRect(LEFT, y(v), w, 0.25);\n"
    "}\n"
    "for (let k = 0; k < K; k++) {\n"
    "g.fillStyle = COLOURS[k] || css('--other');\n"
    "for (let c = 0; c < w; c++) {\n"
    "let under = 0;\n"
    "for (let j = 0; j < k; j++) under += max(0, cols.now[c * K + j]);\n"
    "const h = max(0, cols.now[c * K + k]);\n"
    "if (h) g.fillRect(LEFT + c, y(under + h), 1, y(under) - y(under + h));\n"
    "}\n"
    "}\n"
    "g.strokeStyle = css('--text');\n"
    "g.setLineDash([5, 3]);\n"
    "g.beginPath();\n"
    "for (let c = 0; every && c < w; c++) g.lineTo(LEFT + c + 0.5, y(cols.reserved[c]));\n"
    "g.stroke();\n"
    "g.setLineDash([]);\n"
    "g.fillStyle = soft;\n"
    "for (let i = 0; i <= 4; i++) {\n"
    "g.textAlign = i === 4 ? 'right' : i ? 'center' : 'left';\n"
    "g.fillText(!M.n ? '' : cols.byTime ? span(cols.end * i / 4) : many(round(M.n * i / 4)), LEFT + w * i / 4, H - 7);\n"
    "}\n"
    "const taken = [];\n"
    "for (const i of M.marks) {\n"
    "const a = M.E[5 * i];\n"
    "const at = LEFT + min(w - 1, place(i)), text = a === OOM ? 'out of memory' : D.texts[M.E[5 * i + 3]], wide = g.measureText(text).width;\n"
    "g.fillStyle = a === OOM ? css('--bad') : soft;\n"
    "g.fillRect(at, 16, a === OOM ? 1.5 : 0.5, base - 16);\n"
    "if (a === OOM) { g.beginPath(); g.moveTo(at - 5, 10); g.lineTo(at + 5, 10); g.lineTo(at, 18); g.fill(); }\n"
    "const to = at + 7 + wide > LEFT + w ? at - wide - 8 : at + 7;\n"
    "if (wide > 200 || taken.some(([l, r]) => l < to + wide && to < r)) continue;\n"
    "g.textAlign = 'left';\n"
    "g.fillText(text, to, 9);\n"
    "taken.push([to, to + wide + 8]);\n"
    "}\n"
    "}\n"
    "\n"
    "const ROW = 24, NAMES = 250;\n"
    "function layout() {\n"
    "M.lines = [];\n"
    "M.segments.forEach((s, i) => { for (let l = 0; l < s.lines; l++) M.lines.push([i, l]); });\n",
    "$('space').style.height = max(0, M.lines.length * ROW - min(560, M.lines.length * ROW)) + 'px';\n"
    "}\n"
    "function blockAt(s, offset) {\n"
    "let low = s.first, high = s.first + s.count - 1;\n"
    "while (low < high) {\n"
    "const mid = (low + high + 1) >> 1;\n"
    "if (starts[mid] <= offset) low = mid; else high = mid - 1;\n"
    "}\n"
    "return low;\n"
    "}\n"
    "function stripes(g) {\n"
    "const c = document.createElement('canvas'), p = c.getContext('2d');\n"
    "c.width = c.height = 6;\n"
    "p.strokeStyle = css('--card');\n"
    "p.lineWidth = 2.2;\n"
    "p.beginPath();\n"
    "for (const k of [-6, 0, 6]) { p.moveTo(k - 1, 7); p.lineTo(k + 7, -1); }\n"
    "p.stroke();\n"
    "return g.createPattern(c, 'repeat');\n"
    "}\n"
    "function drawMap() {\n"
    "const H = max(ROW, min(560, M.lines.length * ROW)), [g, all] = pen($('map'), H), w = all - NAMES - 4;\n"
    "const top = $('box').scrollTop, first = floor(top / ROW), text = css('--text'), soft = css('--soft'), free = css('--free'), line = css('--line'), pattern = stripes(g);\n"
    "for (let l = first; l < M.lines.length && (l - first) * ROW < H + ROW; l++) {\n"
    "const [i, k] = M.lines[l], s = M.segments[i], y = l * ROW - top, each = s.bytes / s.lines, from = k * each;\n"
    "if (k === 0) {\n"
    "const pool = D.texts[D.pools[3 * s.pool + 2]] || (D.pools[3 * s.pool] || D.pools[3 * s.pool + 1] ? 'pool ' + D.pools[3 * s.pool] + ',' + D.pools[3 * s.pool + 1] : '');\n"
    "g.fillStyle = text;\n"
    "g.fillText(size(s.bytes), 0, y + ROW / 2);\n"
    "g.fillStyle = soft;\n"
    "g.fillText(part(s.free, s.bytes) + ' free, stream ' + s.stream + (pool ? ', ' + pool : ''), 62, y + ROW / 2, NAMES - 70);\n"
    "}\n"
    "const bar = (a, z, fill) => { g.fillStyle = fill; g.fillRect(a, y + 3, z - a, ROW - 6); };\n"
    "bar(NAMES, NAMES + w, free);\n"
    "for (let b = blockAt(s, from); b < s.first + s.count && starts[b] < from + each; b++) {\n"
    "const state = D.blocks[4 * b + 2];\n"
    "const a = NAMES + w * max(0, (starts[b] - from) / each), z = NAMES + w * min(1, (starts[b] + D.blocks[4 * b] - from) / each);\n"
    "if (state) {\n"
    "const o = owners[ownerOf[D.blocks[4 * b + 3]]];\n"
    "g.globalAlpha = shown(o) ? 1 : 0.15;\n"
    "bar(a, max(a + 0.6, z - a > 3 ? z - 0.7 : z), colour(o));\n"
    "if (state === 2) bar(a, z, pattern);\n"
    "g.globalAlpha = 1;\n"
    "}\n"
    "}\n"
    "g.strokeStyle = line;\n"
    "g.strokeRect(NAMES + 0.5, y + 3, w - 1, ROW - 6);\n"
    "}\n"
    "}\n"
    "\n"
    "function tiles() {\n"
    "const box = $('tiles'), v = M.v, scattered = M.free ? 1 - M.largest / M.free : 0;\n"
    "const tile = (value, what) => { const t = el('div'); t.append(el('b', value), el('span', what)); box.append(t); };\n"
    "box.textContent = '';\n"
    "tile(size(M.reserved), 'reserved from ' + size(v.total) + (v.limit ? ', limit ' + size(v.limit) : ''));\n"
    "tile(size(M.live), 'allocated, in ' + plural(M.blocks, 'block'));\n"
    "if (M.pending) tile(size(M.pending), 'pending: freed, still in use');\n"
    "tile(size(M.free), 'free in the cache');\n"
    "tile(size(M.largest), 'largest free block');\n"
    "tile(part(scattered, 1), 'fragmentation: free memory outside of it');\n"
    "if (M.n) tile(size(M.peak), 'allocated at most in the history');\n"
    "$('when').textContent = new Date(D.time / 1e3).toLocaleString();\n"
    "$('about').textContent = M.n\n"
    "? 'What was allocated (as requested), by owner; the dashed line is what was reserved. ' + plural(M.n, 'event') + (v.seen > M.n ? ', the newest of ' + many(v.seen) : '') + '.'\n"
    ": 'No history was recorded: call ds_mem_history_start before the allocations. What is allocated now:';\n"
    "$('ooms').style.display = M.ooms.length ? '' : 'none';\n"
    "$('ooms').querySelector('p').textContent = plural(M.ooms.length, 'allocation') + ' failed:';\n"
    "const list = $('ooms').querySelector('ul');\n"
    "list.textContent = '';\n"
    "for (const i of M.ooms.slice(-10)) {\n"
    "const f = M.E[5 * i + 3], name = D.texts[D.frames[3 * f + 2]];\n"
    "list.append(el('li', size(M.E[5 * i + 2]) + ' at ' + (site(f) || 'an unknown place') + (name ? ' for ' + name : '') + ', ' + span(M.times[i]) + ' after the start of the history; the device had ' + size(M.E[5 * i + 1]) + ' free' + (v.limit ? ', the limit is ' + size(v.limit) : '')));\n"
    "}\n"
    "}\n"
    "\n"
    "const choose = o => { chosen = chosen === o ? -1 : o; draw(); };\n"
    "const swatch = o => { const i = el('i'); i.style.background = colour(o); return i; };\n"
    "function legend() {\n"
    "const box = $('legend');\n"
    "box.textContent = '';\n"
    "M.top.forEach(o => {\n",
    "const k = owners.indexOf(o), b = el('button', '', {onclick: () => choose(k), className: k === chosen ? 'on' : '', title: o.name});\n"
    "b.append(swatch(o), o.name);\n"
    "box.append(b);\n"
    "});\n"
    "if (M.ranked.length > TOP) {\n"
    "const b = el('button', plural(M.ranked.length - TOP, 'other'), {disabled: true});\n"
    "b.prepend(swatch({}));\n"
    "box.append(b);\n"
    "}\n"
    "}\n"
    "function table() {\n"
    "const heads = [['Owner', o => o.name], ['Now', o => o.live, size], ['Blocks', o => o.blocks], ['Share', o => o.live / M.live, x => part(x, 1)], ['At the peak', o => o.atPeak, size], ['At most', o => o.most, size], ['Allocations', o => o.count]]\n"
    ".filter((h, i) => M.n || i < 4);\n"
    "const row = el('tr'), rows = $('rows'), f = (heads[sortBy] || heads[1])[1];\n"
    "heads.forEach((h, i) => row.append(el('th', h[0] + (i === sortBy ? ' \\u25be' : ''), {onclick: () => { sortBy = i; table(); }})));\n"
    "document.querySelector('thead').replaceChildren(row);\n"
    "rows.textContent = '';\n"
    "const list = M.ranked.filter(o => chosen >= 0 || shown(o)).sort((x, y) => sortBy ? f(y) - f(x) : f(x) < f(y) ? -1 : 1);\n"
    "for (const o of list.slice(0, 100)) {\n"
    "const k = owners.indexOf(o), tr = el('tr', '', {onclick: () => choose(k), className: k === chosen ? 'on' : ''});\n"
    "heads.forEach((h, i) => {\n"
    "const td = el('td');\n"
    "td.append(i ? '' : swatch(o), h[2] ? h[2](h[1](o)) : many(h[1](o)));\n"
    "tr.append(td);\n"
    "});\n"
    "rows.append(tr);\n"
    "}\n"
    "$('more').textContent = list.length > 100 ? 'and ' + plural(list.length - 100, 'more owner') + ': use the search' : '';\n"
    "}\n"
    "function draw() {\n"
    "$('striped').style.background = 'repeating-linear-gradient(135deg,' + COLOURS[0] + ' 0 2px,var(--card) 2px 4px)';\n"
    "legend();\n"
    "drawTime();\n"
    "drawMap();\n"
    "table();\n"
    "}\n"
    "\n"
    "function tip(e, text) {\n"
    "const t = $('tip');\n"
    "t.style.display = text ? 'block' : 'none';\n"
    "if (!text) return;\n"
    "t.textContent = text;\n"
    "t.style.left = min(e.clientX + 14, innerWidth - t.offsetWidth - 8) + 'px';\n"
    "t.style.top = (e.clientY + 16 + t.offsetHeight > innerHeight ? e.clientY - t.offsetHeight - 10 : e.clientY + 16) + 'px';\n"
    "}\n"
    "function hit(e) {\n"
    "const r = $('map').getBoundingClientRect(), l = floor((e.clientY - r.top + $('box').scrollTop) / ROW), x = (e.clientX - r.left - NAMES) / (r.width - NAMES - 4);\n"
    "if (!M.lines[l] || x < 0 || x >= 1) return null;\n"
    "const s = M.segments[M.lines[l][0]];\n"
    "return [s, blockAt(s, (M.lines[l][1] + x) * s.bytes / s.lines)];\n"
    "}\n"
    "$('map').onmousemove = e => {\n"
    "const h = hit(e);\n"
    "if (!h) return tip(e);\n"
    "const [s, b] = h, [w, asked, state, f] = D.blocks.slice(4 * b, 4 * b + 4);\n"
    "tip(e, (state ? owners[ownerOf[f]].name + '\\n' : '') + size(w) + ['  free', '  allocated', '  pending: freed, another stream is not past it'][state] +\n"
    "(state && size(w) !== size(asked) ? ' (' + size(asked) + ' requested)' : '') + (state && site(f) ? '\\n' + site(f) : '') + '\\nat 0x' + (s.addr + starts[b]).toString(16) +\n"
    "', stream ' + s.stream + '\\nin a ' + (s.growing ? 'growing ' : '') + 'segment of ' + size(s.bytes) + (s.kind ? '' : ' for small blocks'));\n"
    "};\n"
    "$('map').onclick = e => {\n"
    "const h = hit(e);\n"
    "if (h && D.blocks[4 * h[1] + 2]) choose(ownerOf[D.blocks[4 * h[1] + 3]]);\n"
    "};\n"
    "$('time').onmousemove = e => {\n"
    "const c = floor(e.clientX - $('time').getBoundingClientRect().left - LEFT), K = TOP + 1;\n"
    "if (!M.n || c < 0 || c >= cols.w) return tip(e);\n"
    "let text = (cols.byTime ? span(cols.end * c / cols.w) : 'event ' + round(M.n * c / cols.w)) + '\\n' + size(cols.total[c]) + ' allocated, ' + size(cols.reserved[c]) + ' reserved';\n"
    "for (let k = 0; k < K; k++) {\n"
    "const n = cols.now[c * K + k];\n"
    "if (n > cols.total[c] / 50) text += '\\n' + size(n) + '  ' + (M.top[k] || {name: 'others'}).name;\n"
    "}\n"
    "for (const i of M.marks) {\n"
    "const a = M.E[5 * i];\n"
    "if (abs(place(i) - c) < 4) text += '\\n' + (a === OOM ? 'out of memory: ' + size(M.E[5 * i + 2]) : D.texts[M.E[5 * i + 3]]);\n"
    "}\n"
    "tip(e, text);\n"
    "};\n"
    "$('map').onmouseleave = $('time').onmouseleave = e => tip(e);\n"
    "$('box').onscroll = drawMap;\n"
    "$('find').oninput = e => { wanted = e.target.value.toLowerCase(); chosen = -1; draw(); };\n"
    "$('scale').onchange = drawTime;\n"
    "$('device').onchange = e => { chosen = -1; load(+e.target.value); layout(); tiles(); draw(); };\n",
    "D.devices.forEach((v, d) => $('device').append(el('option', v.name, {value: d})));\n"
    "{\n"
    "const used = D.devices.map((v, d) => v.events.length + D.segments.filter((x, i) => i % 9 === 0 && x === d).length);\n"
    "$('device').value = max(0, used.findIndex(n => n));\n"
    "}\n"
    "$('device').onchange({target: $('device')});\n"
    "onresize = draw;\n"
    "matchMedia('(prefers-color-scheme: dark)').onchange = draw;\n"
    "</script></body></html>\n"
};

/* alloc/snapshot.h - public functions of snapshots and block walks.

   Implements ds_mem_write_snapshot and ds_mem_write_snapshot_file: collects first
   (snapshot_collect.h), then writes a pickle, JSON or an HTML page. ds_mem_for_each_block calls a
   user's function with every block of a device.

   Invariants: A snapshot is written from the collected data only, apart from the text of
   DEVSTREAM_ALLOC_CONF. Blocks are visited in the order of addresses.
   Locks: ds__snap_collect takes and releases its locks; the writer is called with no lock held.
   ds_mem_for_each_block stops the device (ds__mem_lock_all) and calls the user's function under
   these locks; devstream refuses calls from it.
   Threads: any caller's thread, also while streams capture. Allocations and frees on a device
   wait while it is copied or walked. */

/* Writes the HTML page. */
static void ds__write_page(ds__item_writer *k) {
    for (size_t i = 0; i < sizeof ds__page_head / sizeof *ds__page_head; i++)
        ds__item_writer_plain(k, ds__page_head[i]);
    ds__page_data(k);
    for (size_t i = 0; i < sizeof ds__page_code / sizeof *ds__page_code; i++)
        ds__item_writer_plain(k, ds__page_code[i]);
}

/* Collects a snapshot and passes it to the writer. */
static ds_result ds__snapshot_write(ds_mem_format format, unsigned flags, ds_pool pool,
                                    ds_write_fn write_fn, void *user) {
    DS__REQUIRE((int)format >= DS_SNAPSHOT_PICKLE && (int)format <= DS_SNAPSHOT_HTML,
                "format is %d; use a DS_SNAPSHOT_* format", (int)format);
    DS__REQUIRE(!(flags & ~(unsigned)DS_SNAPSHOT_NO_HISTORY),
                "unknown flags %#x; use DS_SNAPSHOT_NO_HISTORY or 0", flags);
    ds__mem_pool *only = pool.id ? ds__mem_pool_of(pool) : NULL;
    if (pool.id && !only)
        return DS_ERR_INVALID_HANDLE;
    ds__snap *s = ds__snap_collect(flags, only);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    size_t numbers = s->texts.count + s->frames.count + 2;
    ds__item_writer *k = ds__host_alloc(sizeof *k + numbers * sizeof k->memo[0]);
    if (!k) {
        ds__snap_free(s);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a snapshot");
    }

    k->s = s;
    k->text = k->memo;
    k->frame = k->memo + s->texts.count + 1;
    k->out = (ds__text_writer){ .write_fn = write_fn, .user = user };
    k->pickle = format == DS_SNAPSHOT_PICKLE;
    if (format == DS_SNAPSHOT_HTML)
        ds__write_page(k);
    else
        ds__write_snapshot(k);
    ds__item_writer_flush(k);
    ds_result r = ds__text_writer_result(&k->out);
    ds__host_free(k);
    ds__snap_free(s);
    return r;
}

DSDEF ds_result(ds_mem_write_snapshot)(ds_mem_format format, unsigned flags, ds_pool pool,
                                       ds_write_fn write_fn, void *user) {
    DS__MEM_ENTER("ds_mem_write_snapshot");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    return ds__snapshot_write(format, flags, pool, write_fn, user);
}

DSDEF ds_result(ds_mem_write_snapshot_file)(ds_mem_format format, unsigned flags,
                                            const char *path) {
    DS__MEM_ENTER("ds_mem_write_snapshot_file");
    DS__REQUIRE(path, "path is NULL");
    FILE *f = fopen(path, "wb");
    if (!f)
        return ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    ds_result r = ds__snapshot_write(format, flags, (ds_pool){ 0 }, ds__text_writer_to_file, f);
    if (fclose(f) != 0 && r == DS_OK)
        r = ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    return r;
}

static int ds__segment_order(const void *a, const void *b) {
    const ds__segment *x = *(ds__segment *const *)a;
    const ds__segment *y = *(ds__segment *const *)b;
    return x->base < y->base ? -1 : x->base > y->base;
}

/* Passes all blocks to a function, in the order of addresses. All is locked. */
static ds_result ds__each_block(ds__mem_dev *dev, ds_mem_block_fn fn, void *user) {
    size_t count = 0;
    size_t n = 0;
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (ds__segment *i = a->segments; i; i = i->next)
                count++;
    ds__segment **sorted = ds__host_alloc((count + 1) * sizeof *sorted);
    if (!sorted)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to sort %zu segments", count);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (ds__segment *i = a->segments; i; i = i->next)
                sorted[n++] = i;
    qsort(sorted, n, sizeof *sorted, ds__segment_order);
    ds__user_code g = ds__user_code_begin();
    for (size_t i = 0; i < n; i++)
        for (ds__mem_block *b = sorted[i]->first; b; b = b->next) {
            ds_mem_block block;
            ds__block_describe(atomic_load(&sorted[i]->arena), b, &block);
            fn(&block, user);
        }
    ds__user_code_end(&g);
    ds__host_free(sorted);
    return DS_OK;
}

DSDEF ds_result(ds_mem_for_each_block)(ds_device device, ds_mem_block_fn fn, void *user) {
    ds__mem_dev *dev = NULL;
    DS__MEM_ENTER("ds_mem_for_each_block");
    DS__REQUIRE(fn, "fn is NULL");
    ds_result r = ds__mem_asked(device, &dev);
    if (!dev)
        return r;
    ds__mem_lock_all(dev);
    r = ds__each_block(dev, fn, user);
    ds__mem_unlock_all(dev);
    return r;
}

/* alloc/pinned_block.h - blocks of pinned memory: requests, uses, pending blocks.

   Rounds a request for pinned memory (ds__pinned_want), takes a free block for it
   (ds__pinned_take), and runs the fallback chain (ds__pinned_fallback_serve) if none fits.
   ds__pinned_poll frees the pending blocks whose uses are done; ds__pinned_flush also returns
   cached segments to the driver. ds__pinned_short reports a shortage.

   Invariants: A pending block is claimed while a thread queries its uses. The graphs of a capture
   and every use that names the ds__hold own it; the last owner frees it. While a capture is
   open, the fallback chain queries no event and returns no segment.
   Locks: ds__host_lock takes the arena's lock, then ds__host.count; ds__pinned_settle and
   ds__pinned_uses_end expect both. ds__pinned_poll, ds__pinned_take, ds__pinned_flush and
   ds__pinned_fallback_serve expect no lock. ds__pinned_grow holds the arena's `grow` while the
   driver allocates. Events are queried and segments returned with no spinning lock held.
   Threads: caller's threads, any number at once. ds__hold_release runs on the thread that ends
   the last graph, possibly CUDA's callback thread. It takes no lock and makes no driver call. */

/* Removes an owner. The last one frees the object. */
static void ds__hold_unref(ds__hold *h) {
    if (h && atomic_fetch_sub(&h->owners, 1) == 1)
        ds__host_free(h);
}

/* Makes the object of a capture, for ds__capture_attachment. */
static ds_result ds__hold_create(uint64_t capture, void *user, void **out) {
    ds__hold *h = ds__host_alloc(sizeof *h);
    (void)capture;
    (void)user;
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to record a use");
    atomic_store(&h->owners, 1);
    *out = h;
    return DS_OK;
}

/* Called when the last graph of a capture was destroyed, on any thread. Must not call devstream. */
static void ds__hold_release(void *user) {
    ds__hold *h = user;
    atomic_store(&h->gone, 1);
    ds__hold_unref(h);
}

/* Locks the arena and the counts of pinned memory. */
static void ds__host_lock(ds__arena *a) {
    ds__arena_lock(a);
    ds__spinlock_lock(&ds__host.count);
}

static void ds__host_unlock(ds__arena *a) {
    ds__spinlock_unlock(&ds__host.count);
    ds__arena_unlock(a);
}

/* Makes a block, which is in no list and counted as freed, a free block. If the whole segment is
   free and too large for the cache, returns the segment with its block claimed; the caller must
   give it back. Otherwise returns NULL. The arena and the counts are locked. */
static ds__segment *ds__pinned_settle(ds__arena *a, ds__mem_block *b) {
    size_t size = b->size;
    if (ds__observer_is_set())
        ds__observe_block(a, DS_ACTION_FREE_COMPLETED, b);
    b = ds__merge_in(a, b);
    if (DS__LIKELY(size <= atomic_load_explicit(&ds__host.max_cached, memory_order_relaxed)) ||
        ds__is_split(b) || ds__captures_open())
        return NULL;
    ds__bin_out(a, b);
    b->claimed = 1;
    return b->seg;
}

/* Returns whether the uses of a block are done: the graphs of a capture are destroyed, or the event
   is complete. Uses of failed streams are done; other errors do not tell whether the work is
   done. */
static int ds__pinned_done(const ds__stream_use *u) {
    for (; u; u = u->next) {
        if (u->hold) {
            if (!atomic_load(&u->hold->gone))
                return 0;
            continue;
        }
        ds_result r = ds__event_ask(u->event);
        if (r != DS_OK && r != DS_ERR_FAILED)
            return 0;
    }
    return 1;
}

/* Ends the uses of a block. The arena is locked. */
static void ds__pinned_uses_end(ds__arena *a, ds__mem_block *b) {
    for (ds__stream_use *u = b->uses; u; u = u->next) {
        ds__hold_unref(u->hold);
        u->hold = NULL;
    }
    ds__block_uses_destroy(a, b);
}

/* Pending blocks that ds__pinned_poll examines together. */
typedef struct ds__pinned_batch {
    ds__mem_block *list[DS__POLLS];
    uint8_t done[DS__POLLS]; /* 1: the uses of the block are done */
    size_t count;
} ds__pinned_batch;

/* Queries the uses of the blocks. Each block with open uses lowers *patience; at 0, no further
   block is queried. No lock is held. */
static void ds__pinned_batch_query(ds__pinned_batch *x, size_t *patience) {
    for (size_t i = 0; i < x->count; i++) {
        x->done[i] = *patience > 0 && ds__pinned_done(x->list[i]->uses);
        if (!x->done[i] && *patience > 0)
            --*patience;
    }
}

/* Frees the blocks whose uses are done, and makes the others the last pending ones. Returns the
   number of freed blocks. No lock is held. */
static size_t ds__pinned_batch_end(ds__arena *a, const ds__pinned_batch *x) {
    ds__segment *over[DS__POLLS];
    size_t over_count = 0;
    size_t freed = 0;
    ds__host_lock(a);
    for (size_t i = 0; i < x->count; i++) {
        ds__mem_block *b = x->list[i];
        b->claimed = 0;
        ds__pending_out(a, b);
        if (!x->done[i]) {
            ds__pending_in(a, b);
            continue;
        }
        ds__pinned_uses_end(a, b);
        ds__count_done(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
        over[over_count] = ds__pinned_settle(a, b);
        over_count += over[over_count] != NULL;
        freed++;
    }
    ds__host_unlock(a);
    while (over_count)
        DS_IGNORE(ds__segment_return(a, over[--over_count]));
    return freed;
}

/* Frees pending blocks whose uses are done, the oldest first, until `patience` blocks had open
   uses; these are examined last the next time. Returns the number of freed blocks. No lock is
   held. */
static size_t ds__pinned_poll(ds__arena *a, size_t patience) {
    ds__pinned_batch x;
    size_t freed = 0;
    size_t left = 0;
    ds__arena_lock(a);
    for (const ds__mem_block *b = a->pending; b; b = b->list_next)
        left++;
    ds__arena_unlock(a);
    while (left > 0 && patience > 0) {
        x.count = ds__pending_batch_take(a, x.list, left < DS__POLLS ? left : DS__POLLS);
        if (x.count == 0)
            break;
        ds__pinned_batch_query(&x, &patience);
        freed += ds__pinned_batch_end(a, &x);
        left -= x.count;
    }
    return freed;
}

/* A request for pinned memory. */
typedef struct ds__pinned_wish {
    ds__arena *a;
    int kind;
    int exact;      /* 1: only a block of exactly this size may be taken */
    size_t size;    /* of the block */
    size_t segment; /* of a new segment */
    size_t asked;
    void *ptr; /* the block that was found, or NULL */
} ds__pinned_wish;

/* Returns the request of `asked` bytes, below 2^60, under the current configuration. */
static ds__pinned_wish ds__pinned_want(size_t asked) {
    size_t segment = atomic_load_explicit(&ds__host.segment_size, memory_order_relaxed);
    size_t share = segment ? segment : DS__MIB;
    ds__pinned_wish q = { NULL, DS__LARGE, 0, asked < DS__UNIT ? DS__UNIT : asked, 0, asked, NULL };
    if (asked <= atomic_load_explicit(&ds__host.round_threshold, memory_order_relaxed)) {
        if (q.size & (q.size - 1))
            q.size = (size_t)2 << (63 - __builtin_clzll(q.size));
        q.exact = !segment;
    } else {
        size_t unit = asked < DS__HOST_PAGE ? DS__UNIT : DS__HOST_PAGE;
        q.size = (q.size + unit - 1) & ~(unit - 1);
    }
    if (q.size <= share / 4)
        q.kind = DS__SMALL;
    q.segment = q.exact || q.kind == DS__LARGE ? q.size : share;
    q.a = ds__host.arena[q.size >= DS__HOST_PAGE];
    return q;
}

/* Takes a free block for the request. Returns 0 if there is none. No lock is held. */
static int ds__pinned_take(ds__pinned_wish *q) {
    ds__arena *a = q->a;
    ds__mem_block *b = NULL;
    ds__host_lock(a);
    if (q->exact) {
        for (b = a->bins[q->kind].head[ds__bin_of_size(q->size)]; b && b->size != q->size;)
            b = b->list_next;
        /* to the front of its bin, where ds__block_take finds it */
        if (b) {
            ds__bin_out(a, b);
            ds__bin_in(a, b, 0);
        }
    }
    if (!q->exact || b)
        b = ds__block_take(a, q->kind, q->size, q->asked);
    if (b)
        q->ptr = b->ptr;
    if (ds__observer_is_set() && b)
        ds__observe_block(a, DS_ACTION_ALLOC, b);
    ds__host_unlock(a);
    return b != NULL;
}

/* Takes a new segment, smaller after a shortage, unless another thread has made room meanwhile. */
static ds_result ds__pinned_grow(ds__pinned_wish *q) {
    ds_result r = DS_OK;
    ds__mutex_lock(&q->a->grow);
    if (!ds__pinned_take(q)) {
        r = ds__grow_plain(q->a, q->kind, q->segment);
        if (ds__is_shortage(r) && q->segment > q->size)
            r = ds__grow_plain(q->a, q->kind, q->size);
    }
    ds__mutex_unlock(&q->a->grow);
    return r;
}

/* Frees the pending blocks whose uses are done, and gives cached segments back. Returns the
   bytes. */
static size_t ds__pinned_flush(void) {
    size_t done = 0;
    for (int i = 0; i < 2; i++)
        (void)ds__pinned_poll(ds__host.arena[i], SIZE_MAX);
    for (int i = 0; i < 2; i++)
        done += ds__arena_trim(ds__host.arena[i], SIZE_MAX, 0);
    return done;
}

/* Serves a request for which no free block fits: queries pending blocks, grows, and empties the
   cache to grow again. */
static ds_result ds__pinned_fallback_serve(ds__pinned_wish *q) {
    int open = ds__captures_open() != 0; /* 1: no event is queried, and no segment given back */
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    if (!open && ds__pinned_poll(q->a, DS__POLLS) && ds__pinned_take(q))
        return DS_OK;
    for (int round = 0; round < 2; round++) {
        for (int again = 0; again < 16; again++) { /* other threads may take the new memory */
            r = ds__pinned_grow(q);
            if (q->ptr || (r == DS_OK && ds__pinned_take(q)))
                return DS_OK;
            if (r < 0)
                break;
        }
        if (round || open || (r < 0 && !ds__is_shortage(r)))
            break;
        (void)ds__pinned_flush(); /* ds__pinned_grow takes a block that is free now */
    }
    return r < 0 ? r : DS_ERR_OUT_OF_MEMORY;
}

/* Bytes of pinned memory by the state of their blocks. */
typedef struct ds__pinned_sums {
    size_t live;
    size_t pending;
    size_t cached;
    size_t largest; /* the largest free block */
} ds__pinned_sums;

/* Sums up the blocks of pinned memory. No lock is held. */
static ds__pinned_sums ds__pinned_sum(ds__mem_dev *dev) {
    ds__pinned_sums s = { 0 };
    ds__mem_lock_all(dev);
    for (const ds__arena *a = dev->main.arenas; a; a = a->next)
        for (const ds__segment *g = a->segments; g; g = g->next)
            for (const ds__mem_block *b = g->first; b; b = b->next) {
                if (b->state == DS_BLOCK_LIVE)
                    s.live += b->size;
                else if (b->state == DS_BLOCK_PENDING)
                    s.pending += b->size;
                else
                    s.cached += b->size;
                if (b->state == DS_BLOCK_FREE && b->size > s.largest)
                    s.largest = b->size;
            }
    ds__mem_unlock_all(dev);
    return s;
}

/* Returns the advice for a request that found no memory. */
static const char *ds__pinned_hint(const ds__pinned_wish *q, const ds__pinned_sums *s,
                                   ds_result why) {
    if (q->asked >= (size_t)1 << 60)
        return "the size looks like a negative number or an overflow";
    if (ds__captures_open() && s->cached + s->pending >= q->size)
        return "cached memory is not freed while a capture is open";
    if (s->pending >= q->size)
        return "freed blocks are in use by streams; synchronize the streams";
    if (why == DS_ERR_LIMIT_EXCEEDED)
        return "ds_mem_pinned_set_limit raises the limit";
    return "the system has no more memory that can be pinned";
}

/* Reports that a request found no memory, and returns `why`. */
static ds_result ds__pinned_short(const ds__pinned_wish *q, ds_result why) {
    ds__mem_dev *dev = ds__pinned_used();
    size_t limit = atomic_load(&dev->limit);
    ds__pinned_sums s = ds__pinned_sum(dev);
    DS__COUNT_CALL(q->a, ooms, 1);
    return ds__fail(why,
                    "%s of pinned memory were requested; allocated %s, pending %s, cached %s, "
                    "largest free %s, limit %s; hint: %s",
                    DS__SIZE(q->asked), DS__SIZE(s.live), DS__SIZE(s.pending), DS__SIZE(s.cached),
                    DS__SIZE(s.largest), limit ? DS__SIZE(limit) : "none",
                    ds__pinned_hint(q, &s, why));
}

/* Checks the structures of pinned memory if the policy's `debug` has this level. */
static ds_result ds__pinned_check(ds__mem_dev *dev, int level) {
    return DS__UNLIKELY(atomic_load_explicit(&ds__host.debug, memory_order_relaxed) >= level)
               ? ds__device_validate(dev)
               : DS_OK;
}

/* alloc/pinned_api.h - public functions of pinned host memory.

   Implements the functions of api/pinned.h, such as ds_mem_pinned_alloc, ds_mem_pinned_free and
   ds_mem_pinned_record_use, over the blocks of pinned_block.h. ds__pinned_hold records the use of a
   block by the graphs of a capture.

   Invariants: A freed block becomes pending if it has recorded uses, and free otherwise. The
   use by a capture (ds__hold) has no event; it ends with the last graph. ds_mem_pinned_free never
   queries an event.
   Locks: ds_mem_pinned_free holds the arena's lock, then ds__host.count, while the block changes
   its state. It releases both before it returns a segment to the driver. The statistics
   functions stop the device (ds__mem_lock_all) and take ds__host.clock_lock after that, not
   inside. ds__pinned_hold makes a use and its event without a lock, so it looks the block up
   again.
   Threads: any number of caller's threads at once. */

DSDEF ds_result(ds_mem_pinned_alloc)(size_t size, void **out) {
    if (out)
        *out = NULL;
    DS__MEM_ENTER("ds_mem_pinned_alloc");
    DS__REQUIRE(out, "out is NULL");
    if (!size)
        return DS_OK;
    ds__mem_dev *dev = ds__pinned_device();
    if (!dev)
        return ds__mem_error();
    ds_result r = ds__pinned_check(dev, 2);
    if (r < 0)
        return r;
    int huge = size >= (size_t)1 << 60;
    ds__pinned_wish q = ds__pinned_want(huge ? DS__UNIT : size);
    if (huge) {
        q.asked = size;
        return ds__pinned_short(&q, DS_ERR_OUT_OF_MEMORY);
    }
    if (atomic_load_explicit(&ds__host.polls, memory_order_relaxed) && !ds__captures_open())
        (void)ds__pinned_poll(q.a, DS__POLLS);
    if (!ds__pinned_take(&q)) {
        r = ds__pinned_check(dev, 1);
        if (r < 0)
            return r;
        ds__tls.mute++;
        r = ds__pinned_fallback_serve(&q);
        ds__tls.mute--;
        if (ds__is_shortage(r))
            return ds__pinned_short(&q, r);
        if (r < 0) {
            if (!ds__tls.mute)
                memcpy(ds__tls.error, ds__tls.aside, sizeof ds__tls.error);
            return r;
        }
    }
    *out = q.ptr;
    return DS_OK;
}

static ds_result ds__mem_pinned_free_late(uint64_t what) {
    return (ds_mem_pinned_free)((void *)(uintptr_t)what);
}

DSDEF ds_result(ds_mem_pinned_free)(void *ptr) {
    if (DS__UNLIKELY(ds__tls.in_callback))
        return ds__postpone_memory("ds_mem_pinned_free", ptr, DS_MEMORY_PINNED,
                                   ds__mem_pinned_free_late);
    ds__arena *a = NULL;
    DS__ENTER("ds_mem_pinned_free");
    if (!ptr)
        return DS_OK;
    ds__mem_block *b = ds__find_live(ptr, 1, &a);
    if (b && a->dev->device.type != DS_DEVICE_HOST) {
        ds__arena_unlock(a);
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is device memory; use ds_mem_free", ptr);
    }
    DS__REQUIRE(b, "%p is not the start of a live pinned block", ptr);
    ds__segment *over = NULL;
    ds__spinlock_lock(&ds__host.count);
    if (ds__observer_is_set())
        ds__observe_block(a, DS_ACTION_FREE_REQUESTED, b);
    ds__live_out(b);
    if (b->uses) {
        ds__count_pending(a, b->seg->kind, (int64_t)b->size);
        ds__pending_in(a, b);
    } else {
        ds__count_free(a, b->seg->kind, (int64_t)b->size, (int64_t)b->asked);
        over = ds__pinned_settle(a, b);
    }
    ds__host_unlock(a);
    if (over)
        DS_IGNORE(ds__segment_return(a, over));
    return ds__pinned_check(a->dev, 2);
}

/* Returns whether the graphs of a capture use the block already. The arena is locked. */
static int ds__hold_is_noted(const ds__mem_block *b, const ds__hold *hold) {
    const ds__stream_use *u = b->uses;
    while (u && u->hold != hold)
        u = u->next;
    return u != NULL;
}

/* Adds a use by the graphs of a capture to a block. The arena is locked. */
static void ds__hold_note(ds__mem_block *b, ds__hold *hold, ds__stream_use *u) {
    u->stream.id = 0;
    u->recorded = 1;
    u->hold = hold;
    atomic_fetch_add(&hold->owners, 1);
    u->next = b->uses;
    b->uses = u;
}

static ds_result ds__pinned_not_live(const void *ptr) {
    return ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside a live pinned block", ptr);
}

/* Notes that the graphs of a capture use the block at `ptr`. The description of the use is made
   without a lock, so the block is looked up again. No lock is held. */
static ds_result ds__pinned_hold(void *ptr, ds__hold *hold) {
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 0, &a);
    if (!b)
        return ds__pinned_not_live(ptr);
    int noted = ds__hold_is_noted(b, hold);
    ds__arena_unlock(a);
    if (noted)
        return DS_OK;
    ds__arena *stock = a;
    ds__stream_use *fresh = ds__stream_use_create(stock, stock->dev->device);
    if (!fresh)
        return DS_ERR_OUT_OF_MEMORY;

    b = ds__find_live(ptr, 0, &a);
    noted = !b || ds__hold_is_noted(b, hold);
    if (!noted)
        ds__hold_note(b, hold, fresh);
    if (b)
        ds__arena_unlock(a);
    if (noted) {
        ds__arena_lock(stock);
        ds__stream_uses_destroy(stock, fresh);
        ds__arena_unlock(stock);
    }
    return b ? DS_OK : ds__pinned_not_live(ptr);
}

/* Returns whether the address is inside of a live block of pinned memory. */
static int ds__pinned_known(const void *ptr) {
    ds__arena *a = NULL;
    if (!ds__find_live(ptr, 0, &a))
        return 0;
    ds__arena_unlock(a);
    return a->dev->device.type == DS_DEVICE_HOST;
}

/* Notes the use of pinned memory by the capture of a stream. *out_captured: 0 if the stream does
   not capture, and then nothing is noted. */
static ds_result ds__pinned_capture_use(void *ptr, ds_stream stream, int *out_captured) {
    ds__object *kept = NULL;
    *out_captured = 0;
    if (!ds__pinned_known(ptr))
        return ds__pinned_not_live(ptr);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__capture_attachment(s,
                                         &(ds__attachment){ .key = &ds__host,
                                                            .make_fn = ds__hold_create,
                                                            .release_fn = ds__hold_release },
                                         &kept);
    ds__stream_unpin(s);
    if (r < 0 || !kept)
        return r;
    *out_captured = 1;
    r = ds__pinned_hold(ptr, kept->user);
    ds__object_unref(kept);
    if (r == DS_OK && ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_USE, .ptr = ptr, .stream = stream });
    return r;
}

DSDEF ds_result(ds_mem_pinned_record_use)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_pinned_record_use");
    if (!ptr)
        return DS_OK;
    int captured = 0;
    ds_result r = DS_OK;
    if (DS__UNLIKELY(ds__captures_open()))
        r = ds__pinned_capture_use(ptr, stream, &captured);
    if (r < 0 || captured)
        return r;
    r = ds__note_use(ptr, stream, 1, 1, 1);
    return r == DS_OK ? ds__pinned_check(ds__pinned_used(), 2) : r;
}

/* As ds__mem_operand, for pinned memory. */
DS__SEAM static ds_result ds__pinned_operand(void *ptr, ds_stream stream) {
    ds_result r = DS_OK;
    if (ds__pinned_known(ptr))
        DS__KEEPING(r, (ds_mem_pinned_record_use)(ptr, stream));
    return r;
}

DSDEF ds_result(ds_mem_pinned_owns)(const void *ptr, int *out) {
    if (out)
        *out = 0;
    DS__MEM_ENTER("ds_mem_pinned_owns");
    DS__REQUIRE(out, "out is NULL");
    *out = ds__pinned_known(ptr);
    return DS_OK;
}

DSDEF ds_result(ds_mem_pinned_empty_cache)(size_t *out_released) {
    if (out_released)
        *out_released = 0;
    DS__MEM_ENTER("ds_mem_pinned_empty_cache");
    ds__mem_dev *dev = ds__pinned_used();
    if (!dev)
        return DS_OK;
    if (ds__captures_open())
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "cached memory cannot be freed while a capture is open");
    size_t done = ds__pinned_flush();
    if (out_released)
        *out_released = done;
    return ds__pinned_check(dev, 1);
}

DSDEF ds_result(ds_mem_pinned_set_limit)(size_t bytes) {
    DS__MEM_ENTER("ds_mem_pinned_set_limit");
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__host.lock);
    atomic_store(&ds__host.limit, bytes);
    if (ds__pinned_used())
        atomic_store(&ds__pinned_used()->limit, bytes);
    ds__mutex_unlock(&ds__host.lock);
    return DS_OK;
}

/* Returns times of driver calls in microseconds. */
static ds_mem_duration ds__pinned_duration_of(const ds__clock *c) {
    ds_mem_duration d = { c->total / 1000, c->max / 1000, c->min / 1000, c->count,
                          c->count ? c->total / c->count / 1000 : 0 };
    return d;
}

DSDEF ds_result(ds_mem_pinned_get_stats)(ds_mem_pinned_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__MEM_ENTER("ds_mem_pinned_get_stats");
    DS__REQUIRE(out, "out is NULL");
    ds__mem_dev *dev = ds__pinned_used();
    if (dev) {
        ds_mem_stats s;
        ds__stats_sum(dev, NULL, &s);
        out->allocations = s.allocation[DS_STAT_ALL];
        out->allocated_bytes = s.reserved_bytes[DS_STAT_ALL];
        out->active_requests = s.active[DS_STAT_ALL];
        out->active_bytes = s.active_bytes[DS_STAT_ALL];
        out->num_host_alloc = s.num_device_alloc;
        out->num_host_free = s.num_device_free;
        ds__spinlock_lock(&ds__host.clock_lock);
        out->host_alloc_time = ds__pinned_duration_of(&ds__host.made);
        out->host_free_time = ds__pinned_duration_of(&ds__host.ended);
        ds__spinlock_unlock(&ds__host.clock_lock);
    }
    return DS_OK;
}

DSDEF ds_result(ds_mem_pinned_reset_peak_stats)(void) {
    DS__MEM_ENTER("ds_mem_pinned_reset_peak_stats");
    ds__mem_dev *dev = ds__pinned_used();
    if (!dev)
        return DS_OK;
    ds__mem_reset_of(dev, 1);
    ds__spinlock_lock(&ds__host.clock_lock);
    ds__host.made.max = ds__host.made.min = ds__host.ended.max = ds__host.ended.min = 0;
    ds__spinlock_unlock(&ds__host.clock_lock);
    return DS_OK;
}

DSDEF ds_result(ds_mem_pinned_reset_accumulated_stats)(void) {
    DS__MEM_ENTER("ds_mem_pinned_reset_accumulated_stats");
    ds__mem_dev *dev = ds__pinned_used();
    if (!dev)
        return DS_OK;
    ds__mem_reset_of(dev, 0);
    ds__spinlock_lock(&ds__host.clock_lock);
    ds__host.made.total = ds__host.made.count = ds__host.ended.total = ds__host.ended.count = 0;
    ds__spinlock_unlock(&ds__host.clock_lock);
    return DS_OK;
}

/* alloc/resource_kinds.h - allocation and free of each kind of resource.

   Implements allocation and free for all kinds of resources (DS__RES_*): device, pool, driver's
   pool, limit, statistics, log, retry after a failure, alignment. ds__res_alloc and
   ds__res_free are the two functions of every resource made by devstream.

   Invariants: A successful allocation adds 1 to `live`, and its free subtracts 1; failed calls
   change nothing. `moved` has one entry for each block that was enlarged for its alignment. A
   limit's bytes are taken before the upstream is called, and returned if it fails.
   Locks: A record's own lock, around its counters, `moved` and its log line. The log's write_fn
   is user code and runs under that lock, so lines keep their order; devstream refuses calls
   from it. Upstreams, drivers and failure_fn are called with no lock of a resource held.
   Threads: any number of threads at once. Upstreams and failure_fn run on the caller's thread
   and may call devstream. */

static void ds__stat_add(ds_mem_stat *s, int64_t by) {
    s->current += by;
    *(by > 0 ? &s->allocated : &s->freed) += by > 0 ? by : -by;
    if (s->current > s->peak)
        s->peak = s->current;
}

/* Counts an allocation (1) or a free (-1) in the innermost level. */
static void ds__res_count(ds__res *r, size_t size, int sign) {
    ds__mutex_lock(&r->lock);
    ds__stat_add(&r->stats[r->depth].bytes, sign * (int64_t)size);
    ds__stat_add(&r->stats[r->depth].allocations, sign);
    ds__mutex_unlock(&r->lock);
}

/* Writes a line of the log. The time is read under the lock, so the times of the lines rise. */
static void ds__res_write(ds__res *r, const char *action, const void *ptr, size_t size,
                          ds_stream stream) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    uint64_t id = s ? s->id : 0;
    if (s)
        ds__stream_unpin(s);
    ds__mutex_lock(&r->lock);
    ds__text_writer_print(&r->log, "%llu,%s,0x%llx,%zu,%llu\n",
                          (unsigned long long)(ds__now_ns() / 1000), action,
                          (unsigned long long)(uintptr_t)ptr, size, (unsigned long long)id);
    ds__mutex_unlock(&r->lock);
}

/* Takes bytes from the limit (1) or returns them (-1). */
static ds_result ds__res_take(ds__res *r, size_t size, int sign) {
    ds_result result = DS_OK;
    ds__mutex_lock(&r->lock);
    size_t left = r->limit > r->used ? r->limit - r->used : 0;
    if (sign < 0)
        r->used -= size < r->used ? size : r->used;
    else if (size <= left)
        r->used += size;
    else
        result = DS_ERR_LIMIT_EXCEEDED;
    ds__mutex_unlock(&r->lock);
    if (result == DS_OK)
        return result;
    return ds__fail(result, "%s exceed the resource's limit of %s, of which %s are left",
                    DS__SIZE(size), DS__SIZE(r->limit), DS__SIZE(left));
}

/* Returns the link to the entry of an enlarged block, or the end of its list. The record is
   locked. */
static ds__moved **ds__res_moved(ds__res *r, const void *ptr) {
    uintptr_t n = (uintptr_t)ptr >> 8;
    ds__moved **at = &r->moved[(n ^ n >> 6 ^ n >> 14) & 63];
    while (*at && (*at)->ptr != ptr)
        at = &(*at)->next;
    return at;
}

/* Enters an enlarged block. */
static void ds__res_moved_in(ds__res *r, ds__moved *m) {
    ds__mutex_lock(&r->lock);
    ds__moved **at = ds__res_moved(r, m->ptr);
    m->next = *at;
    *at = m;
    ds__mutex_unlock(&r->lock);
}

/* Allocates aligned memory: a larger block of the upstream, from its first aligned address on. */
static ds_result ds__res_alloc_aligned(ds__res *r, size_t size, size_t alignment, ds_stream stream,
                                       void **out) {
    if (size >= r->threshold && r->alignment > alignment)
        alignment = r->alignment;
    if (alignment <= 256)
        return ds__up_alloc(&r->up, size, 0, stream, out);
    DS__REQUIRE(size <= SIZE_MAX - alignment, "%zu bytes exceed the address space", size);
    ds__moved *m = ds__host_alloc(sizeof *m);
    ds_result result =
        m ? ds__up_alloc(&r->up, size + alignment, 0, stream, &m->whole)
          : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to record the start of a block");
    if (result < 0) {
        ds__host_free(m);
        return result;
    }
    m->size = size + alignment;
    m->ptr = *out = (char *)m->whole + (alignment - (uintptr_t)m->whole % alignment) % alignment;
    ds__res_moved_in(r, m);
    return DS_OK;
}

/* Frees memory of ds__res_alloc_aligned. If the upstream fails, the block stays. */
static ds_result ds__res_free_aligned(ds__res *r, void *ptr, size_t size, ds_stream stream) {
    ds__mutex_lock(&r->lock);
    ds__moved **at = ds__res_moved(r, ptr);
    ds__moved *m = *at;
    if (m)
        *at = m->next;
    ds__mutex_unlock(&r->lock);
    ds_result result = ds__up_free(&r->up, m ? m->whole : ptr, m ? m->size : size, stream);
    if (result < 0 && m)
        ds__res_moved_in(r, m);
    else
        ds__host_free(m);
    return result;
}

/* Allocates from the upstream. After a shortage, invokes failure_fn and repeats while it returns 1.
   Errors are muted; only the last one is reported. */
static ds_result ds__res_alloc_or_ask(ds__res *r, size_t size, size_t alignment, ds_stream stream,
                                      void **out) {
    char why[sizeof ds__tls.aside];
    for (;;) {
        ds__tls.mute++;
        ds_result result = ds__up_alloc(&r->up, size, alignment, stream, out);
        ds__tls.mute--;
        if (result == DS_OK)
            return result;
        memcpy(why, ds__tls.aside, sizeof why);
        ds__outside o = ds__outside_begin();
        int more = ds__is_shortage(result) && r->failure_fn(size, r->user) == 1;
        ds__outside_end(o);
        if (more)
            continue;
        memcpy(ds__tls.mute ? ds__tls.aside : ds__tls.error, why, sizeof why);
        ds__tls.code = result;
        if (!ds__tls.mute)
            ds__log_write(DS_LOG_ERROR, result, why);
        return result;
    }
}

/* Allocates memory as the kind of the resource demands. No lock is held. */
static ds_result ds__res_alloc_from(ds__res *r, size_t size, size_t alignment, ds_stream stream,
                                    void **out) {
    ds_result result = DS_OK;
    switch (r->kind) {
    case DS__RES_DEVICE:
        DS__REQUIRE(alignment <= 256,
                    "device memory is aligned to 256, not to %zu: use ds_resource_create_aligned",
                    alignment);
        return ds__alloc_device(r->device, size, out);
    case DS__RES_POOL: {
        ds_mem_request q = {
            .size = size, .stream = stream, .pool = r->pool, .alignment = alignment
        };
        DS__KEEPING(result, (ds_mem_alloc_with)(&q, out));
        return result;
    }
    case DS__RES_DRIVER: {
        DS__REQUIRE(
            alignment <= 256,
            "the driver's memory is aligned to 256, not to %zu: use ds_resource_create_aligned",
            alignment);
        ds__stream *s = ds__stream_pin(stream);
        if (!s)
            return DS_ERR_INVALID_HANDLE;
        result = ds__async_alloc(s, size, out);
        ds__stream_unpin(s);
        return result;
    }
    case DS__RES_LIMIT:
        result = ds__res_take(r, size, 1);
        if (result < 0)
            return result;
        result = ds__up_alloc(&r->up, size, alignment, stream, out);
        if (result < 0)
            DS_IGNORE(ds__res_take(r, size, -1));
        return result;
    case DS__RES_STATISTICS:
        result = ds__up_alloc(&r->up, size, alignment, stream, out);
        if (result == DS_OK)
            ds__res_count(r, size, 1);
        return result;
    case DS__RES_LOG:
        result = ds__up_alloc(&r->up, size, alignment, stream, out);
        ds__res_write(r, result == DS_OK ? "allocate" : "allocate_failure", *out, size, stream);
        return result;
    case DS__RES_FAILURE:
        return ds__res_alloc_or_ask(r, size, alignment, stream, out);
    default:
        return ds__res_alloc_aligned(r, size, alignment, stream, out);
    }
}

/* Frees memory as the kind of the resource demands. No lock is held. */
static ds_result ds__res_free_to(ds__res *r, void *ptr, size_t size, ds_stream stream) {
    ds_result result = DS_OK;
    switch (r->kind) {
    case DS__RES_DEVICE:
        return ds__memory_deinit(ptr, DS_MEMORY_DEVICE, "an allocation of ds_device_alloc");
    case DS__RES_POOL:
        /* does nothing for the block's own stream */
        if (stream.id)
            DS__KEEPING(result, (ds_mem_record_use)(ptr, stream));
        if (result == DS_OK)
            DS__KEEPING(result, (ds_mem_free)(ptr));
        return result;
    case DS__RES_DRIVER: {
        ds__found f = { 0, 0, DS_MEMORY_DEVICE, 0, 0, 0 };
        int known = ds__range_find(ptr, &f);
        ds_device device = { f.backend ? DS_DEVICE_CPU : DS_DEVICE_CUDA, f.device };
        DS__REQUIRE(known, "%p is not the start of memory of the driver's allocator", ptr);
        /* without a stream, all work on the memory is done */
        ds__stream *s = stream.id ? ds__stream_pin(stream) : ds__any_stream(device);
        if (!s)
            return ds__mem_error();
        result = ds__async_free(s, ptr);
        ds__stream_unpin(s);
        return result;
    }
    case DS__RES_ALIGNED:
        return ds__res_free_aligned(r, ptr, size, stream);
    default:
        break;
    }
    result = ds__up_free(&r->up, ptr, size, stream);
    if (result < 0)
        return result;
    if (r->kind == DS__RES_LIMIT)
        DS_IGNORE(ds__res_take(r, size, -1));
    if (r->kind == DS__RES_STATISTICS)
        ds__res_count(r, size, -1);
    if (r->kind == DS__RES_LOG)
        ds__res_write(r, "free", ptr, size, stream);
    return result;
}

static ds_result ds__res_alloc(void *user, size_t size, size_t alignment, ds_stream stream,
                               void **out) {
    *out = NULL;
    ds__res *r = ds__res_ref(user, NULL);
    if (!r)
        return DS_ERR_INVALID_HANDLE;
    ds_result result = ds__res_alloc_from(r, size, alignment, stream, out);
    if (result < 0) {
        *out = NULL;
        ds__res_unref(r, 1);
    }
    return result;
}

static ds_result ds__res_free(void *user, void *ptr, size_t size, ds_stream stream) {
    int64_t live;
    ds__res *r = ds__res_ref(user, &live);
    if (!r)
        return DS_ERR_INVALID_HANDLE;
    ds_result result =
        live > 0 ? ds__res_free_to(r, ptr, size, stream)
                 : ds__fail(DS_ERR_INVALID_VALUE, "ptr was not allocated by the resource");
    ds__res_unref(r, result == DS_OK ? 2 : 1);
    return result;
}

static const ds_resource ds__res_made = { ds__res_alloc, ds__res_free, NULL };

/* alloc/resource_api.h - public functions of resources.

   Implements the functions of api/resource.h: makes, uses, measures and destroys resources.
   ds__res_create enters a record in the table, and ds_resource_destroy removes it.
   ds__resource_shutdown reports and frees the records that are left.

   Invariants: An adaptor counts in `standing` of its upstream's record from creation to
   destruction, if devstream made that upstream. stats[0] to stats[depth] are the open levels of
   counting; a pop adds the innermost level to the one below it.
   Locks: ds__rs.lock or a record's own lock, never both at once. No driver, upstream or writer
   is called under them.
   Threads: any number of caller's threads. ds__resource_shutdown runs on the thread of
   ds_shutdown and takes no lock. */

/* Checks the arguments of an allocation or a free. */
static ds_result ds__res_check(const ds_resource *resource, size_t alignment) {
    ds_result r = ds__res_good(resource, "resource");
    if (r < 0)
        return r;
    DS__REQUIRE((alignment & (alignment - 1)) == 0, "an alignment of %zu is not a power of two",
                alignment);
    return DS_OK;
}

DSDEF ds_result(ds_resource_alloc)(const ds_resource *resource, size_t size, size_t alignment,
                                   ds_stream stream, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_resource_alloc");
    DS__REQUIRE(out, "out is NULL");
    ds_result r = ds__res_check(resource, alignment);
    return r < 0 || !size ? r : ds__up_alloc(resource, size, alignment, stream, out);
}

DSDEF ds_result(ds_resource_free)(const ds_resource *resource, void *ptr, size_t size,
                                  ds_stream stream) {
    DS__ENTER("ds_resource_free");
    ds_result r = ds__res_check(resource, 0);
    return r < 0 || !ptr ? r : ds__up_free(resource, ptr, size, stream);
}

/* Enters a record in the table and gives it a number. Returns 0 without host memory. ds__rs.lock is
   held. */
static int ds__res_table_in(ds__res *r) {
    uint32_t i = 0;
    while (i < ds__rs.count && ds__rs.at[i])
        i++;
    if (i == ds__rs.count) {
        if (!ds__array_reserve(&ds__rs.at, sizeof *ds__rs.at, i, 1, &ds__rs.room))
            return 0;
        ds__rs.count++;
    }
    r->id = (uint64_t)++ds__rs.serial << 32 | (i + 1);
    ds__rs.at[i] = r;
    return 1;
}

/* Makes a record like `what`, with its upstream, and the resource of the record. */
static ds_result ds__res_create(const ds__res *what, ds_resource *out) {
    ds_result result = ds__mem_setup();
    if (result < 0)
        return result;
    ds__res *r = ds__host_alloc(sizeof *r);
    if (!r)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a resource");
    int adapts = what->up.alloc_fn == ds__res_alloc;
    ds__res *up = adapts ? ds__res_ref(what->up.user, NULL) : NULL;
    if (adapts && !up) {
        ds__host_free(r);
        return DS_ERR_INVALID_HANDLE;
    }

    *r = *what;
    r->made = ds__tls.site;
    ds__mutex_init(&r->lock);
    ds__mutex_lock(&ds__rs.lock);
    int entered = ds__res_table_in(r);
    if (up) {
        up->standing += entered;
        up->live--;
    }
    ds__mutex_unlock(&ds__rs.lock);
    if (!entered) {
        ds__mutex_destroy(&r->lock);
        ds__host_free(r);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a resource");
    }
    *out = (ds_resource){ ds__res_alloc, ds__res_free, (void *)(uintptr_t)r->id };
    if (r->kind == DS__RES_LOG)
        ds__text_writer_print(&r->log, "time_us,action,pointer,size,stream\n");
    return DS_OK;
}

/* Makes an adaptor like `what` upon an upstream. */
static ds_result ds__res_upon(const ds_resource *upstream, ds__res *what, ds_resource *out) {
    ds_result r = ds__res_good(upstream, "upstream");
    if (r < 0)
        return r;
    what->up = *upstream;
    return ds__res_create(what, out);
}

/* Begins a function that makes a resource: `what` is its record. */
#define DS__RES_BEGIN(name, which)    \
    ds__res what = { .kind = which }; \
    if (out)                          \
        memset(out, 0, sizeof *out);  \
    DS__ENTER(name);                  \
    DS__REQUIRE(out, "out is NULL")

DSDEF ds_result(ds_resource_create_device)(ds_device device, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_device", DS__RES_DEVICE);
    DS__RESOLVE(device);
    what.device = device;
    return ds__res_create(&what, out);
}

DSDEF ds_result(ds_resource_create_pool)(ds_pool pool, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_pool", DS__RES_POOL);
    if (pool.id && !ds__mem_pool_of(pool))
        return DS_ERR_INVALID_HANDLE;
    what.pool = pool;
    return ds__res_create(&what, out);
}

DSDEF ds_result(ds_resource_create_driver_pool)(ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_driver_pool", DS__RES_DRIVER);
    return ds__res_create(&what, out);
}

DSDEF ds_result(ds_resource_create_functions)(ds_resource_alloc_fn alloc_fn,
                                              ds_resource_free_fn free_fn, void *user,
                                              ds_resource *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_resource_create_functions");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(alloc_fn && free_fn, "%s is NULL", alloc_fn ? "free_fn" : "alloc_fn");
    *out = (ds_resource){ alloc_fn, free_fn, user };
    return DS_OK;
}

DSDEF ds_result(ds_resource_create_limit)(const ds_resource *upstream, size_t bytes,
                                          ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_limit", DS__RES_LIMIT);
    what.limit = bytes;
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_stats)(const ds_resource *upstream, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_stats", DS__RES_STATISTICS);
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_log)(const ds_resource *upstream, ds_write_fn write_fn,
                                        void *user, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_log", DS__RES_LOG);
    DS__REQUIRE(write_fn, "write_fn is NULL");
    what.log = (ds__text_writer){ .write_fn = write_fn, .user = user };
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_on_failure)(const ds_resource *upstream,
                                               ds_resource_failure_fn fn, void *user,
                                               ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_on_failure", DS__RES_FAILURE);
    DS__REQUIRE(fn, "fn is NULL");
    what.failure_fn = fn;
    what.user = user;
    return ds__res_upon(upstream, &what, out);
}

DSDEF ds_result(ds_resource_create_aligned)(const ds_resource *upstream, size_t alignment,
                                            size_t threshold, ds_resource *out) {
    DS__RES_BEGIN("ds_resource_create_aligned", DS__RES_ALIGNED);
    DS__REQUIRE(alignment && (alignment & (alignment - 1)) == 0,
                "an alignment of %zu is not a power of two", alignment);
    what.alignment = alignment;
    what.threshold = threshold;
    return ds__res_upon(upstream, &what, out);
}

/* Steps of ds__res_stats. */
enum { DS__STATS_READ, DS__STATS_PUSH, DS__STATS_POP };

/* Adds the statistics of a level to the level below. */
static void ds__stat_fold(ds_mem_stat *to, const ds_mem_stat *from) {
    if (to->current + from->peak > to->peak)
        to->peak = to->current + from->peak;
    to->current += from->current;
    to->allocated += from->allocated;
    to->freed += from->freed;
}

/* Reads, pushes or pops a level of counting. The record's lock is held. */
static ds_result ds__res_stats_step(ds__res *r, int step, ds_resource_stats *out) {
    ds_resource_stats *top = &r->stats[r->depth];
    if (step == DS__STATS_PUSH) {
        if (r->depth == DS__RES_PUSHES)
            return ds__fail(DS_ERR_ILLEGAL_STATE, "%d pushes are open, the maximum",
                            DS__RES_PUSHES);
        memset(&r->stats[++r->depth], 0, sizeof r->stats[0]);
        return DS_OK;
    }
    if (step == DS__STATS_POP && r->depth == 0)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "no push is open");
    if (out)
        *out = *top;
    if (step == DS__STATS_POP) {
        ds__stat_fold(&top[-1].bytes, &top->bytes);
        ds__stat_fold(&top[-1].allocations, &top->allocations);
        r->depth--;
    }
    return DS_OK;
}

/* Does a step with the statistics of a resource, which must be one of ds_resource_create_stats. */
static ds_result ds__res_stats(const ds_resource *resource, int step, ds_resource_stats *out) {
    ds_result result = ds__res_good(resource, "resource");
    if (result < 0)
        return result;
    int made = resource->alloc_fn == ds__res_alloc;
    ds__res *r = made ? ds__res_ref(resource->user, NULL) : NULL;
    if (made && !r)
        return DS_ERR_INVALID_HANDLE;
    if (made && r->kind == DS__RES_STATISTICS) {
        ds__mutex_lock(&r->lock);
        result = ds__res_stats_step(r, step, out);
        ds__mutex_unlock(&r->lock);
    } else {
        result = ds__fail(DS_ERR_INVALID_VALUE,
                          "the resource was not created by ds_resource_create_stats");
    }
    if (made)
        ds__res_unref(r, 1);
    return result;
}

DSDEF ds_result(ds_resource_get_stats)(const ds_resource *resource, ds_resource_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_resource_get_stats");
    DS__REQUIRE(out, "out is NULL");
    return ds__res_stats(resource, DS__STATS_READ, out);
}

DSDEF ds_result(ds_resource_push_stats)(const ds_resource *resource) {
    DS__ENTER("ds_resource_push_stats");
    return ds__res_stats(resource, DS__STATS_PUSH, NULL);
}

DSDEF ds_result(ds_resource_pop_stats)(const ds_resource *resource, ds_resource_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_resource_pop_stats");
    return ds__res_stats(resource, DS__STATS_POP, out);
}

/* Frees a record that is not in the table. */
static void ds__res_destroy(ds__res *r) {
    for (int i = 0; i < 64; i++)
        while (r->moved[i]) {
            ds__moved *next = r->moved[i]->next;
            ds__host_free(r->moved[i]);
            r->moved[i] = next;
        }
    ds__mutex_destroy(&r->lock);
    ds__host_free(r);
}

/* Removes a record from the table and from the count of its upstream. ds__rs.lock is held. */
static void ds__res_table_out(const ds__res *r) {
    ds__rs.at[(uint32_t)r->id - 1] = NULL;
    if (r->up.alloc_fn != ds__res_alloc)
        return;
    for (uint32_t i = 0; i < ds__rs.count; i++)
        if (ds__rs.at[i] && ds__rs.at[i]->id == (uint64_t)(uintptr_t)r->up.user)
            ds__rs.at[i]->standing--;
}

DSDEF ds_result(ds_resource_destroy)(ds_resource *resource) {
    DS__ENTER("ds_resource_destroy");
    if (!resource)
        return DS_OK;
    ds_result result = ds__res_good(resource, "resource");
    if (result < 0)
        return result;
    if (resource->alloc_fn == ds__res_alloc) {
        ds__res *r = ds__res_ref(resource->user, NULL);
        if (!r)
            return DS_ERR_INVALID_HANDLE;
        ds__mutex_lock(&ds__rs.lock);
        int64_t live = --r->live;
        int standing = r->standing;
        if (!live && !standing)
            ds__res_table_out(r);
        ds__mutex_unlock(&ds__rs.lock);
        if (live)
            return ds__fail(DS_ERR_ILLEGAL_STATE,
                            "allocations of the resource that are not freed: %lld",
                            (long long)live);
        if (standing)
            return ds__fail(DS_ERR_ILLEGAL_STATE,
                            "adaptors that use this resource: %d; destroy them first", standing);
        ds__res_destroy(r);
    }
    memset(resource, 0, sizeof *resource);
    return DS_OK;
}

/* Warns about the resources that were not destroyed, and frees them. Called by ds_shutdown. */
static void ds__resource_shutdown(void) {
    for (uint32_t i = 0; i < ds__rs.count; i++) {
        ds__res *r = ds__rs.at[i];
        if (!r)
            continue;
        ds__log_warn("resource created at %s:%d was not destroyed",
                     r->made.file ? r->made.file : "?", r->made.line);
        ds__res_destroy(r);
    }
    ds__host_free(ds__rs.at);
    ds__rs.at = NULL;
    ds__rs.count = 0;
    ds__rs.room = 0;
}

/* alloc/ipc_export.h - exporting blocks to other processes.

   Implements ds_mem_export, which writes an IPC handle (ds__ipc_memory) for a block of a shareable
   pool. The records are in ipc_records.h.

   Invariants: A block is marked as exported only if it is still the block that the record was
   made for. At most 1,000 records have an event; for further blocks ds_mem_export waits for the
   stream.
   Locks: ds_mem_export takes ds__share.mutex; the order is in ipc_types.h. Driver calls that do
   not wait for work run under ds__share.mutex; records of events and waits for a stream do not.
   Threads: any caller's thread. */

/* Exports a segment and takes its export slot, at the first export of one of its blocks.
   ds__share.mutex is held. */
static ds_result ds__export_hold_export(ds__export_hold *h) {
    ds__registry *b;
    ds__export_slot_facts facts = { .size = h->size, .device_type = (uint32_t)h->device.type };
    if (h->generation)
        return DS_OK;
    ds_result r =
        ds__driver_of(h->device)->share_export(h->device.index, h->base, h->size, facts.handle);
    if (r < 0)
        return r;
    ds__registries_lock();
    r = ds__registry_own(&b);
    if (r == DS_OK)
        r = ds__export_slot_create(b, &facts, &h->slot, &h->generation);
    ds__registries_unlock();
    return r;
}

/* Records the record's event behind the work enqueued so far on the block's stream, for importers
   to wait for. *out_wait: 1 if there is no event, so the host must wait for this work. */
static ds_result ds__ipc_export_order(const ds__ipc_export *s, ds_stream stream, int *out_wait) {
    ds__stream *of = ds__pin(&ds__g.streams, stream.id);
    ds_result r = DS_OK;
    *out_wait = !of || !s->event.id;
    if (!of)
        return DS_OK;
    ds__hold_captures();
    if (ds__is_capturing(of))
        r = ds__fail(
            DS_ERR_CAPTURE_UNSUPPORTED,
            "the block's stream captures, and captured work does not run; end the capture first");
    else if (s->event.id)
        r = ds__event_record(s->event, stream, DS__OP_RECORD);
    ds__let_captures();
    ds__stream_unpin(of);
    return r;
}

/* Waits for the work on the block's stream so far; `end`: the event of a stream that has ended. No
   lock is held, because the stream may wait for work of a thread that must share memory first. */
static ds_result ds__ipc_export_wait(ds_stream stream, ds_event end) {
    ds__stream *of = ds__pin(&ds__g.streams, stream.id);
    if (!of)
        return end.id ? ds__event_sync(end, DS__FOREVER) : DS_OK;
    ds_result r = ds__stream_sync(stream, DS__FOREVER);
    ds__stream_unpin(of);
    return r;
}

/* The members of a block that an export needs, read under the arena's lock. */
typedef struct ds__exported {
    ds__mem_block *block;
    char *start;
    char *base;
    size_t size;
    ds_stream stream;
    ds_event end;
    int shareable;
} ds__exported;

/* Makes a record for a block of an exported segment, with an export slot and an event.
   ds__share.mutex is held. */
static ds_result ds__ipc_export_create(const ds__exported *x, const ds__export_hold *h,
                                       ds__ipc_export **out) {
    ds__ipc_export *s = ds__host_alloc(sizeof *s);
    if (!s)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to export a block");
    s->block = x->block;
    s->ptr = x->start;
    ds__export_slot_facts facts = { .size = x->size,
                                    .offset = (uint64_t)(x->start - x->base),
                                    .segment = h->slot,
                                    .segment_generation = h->generation };
    ds__registries_lock();
    ds_result r = ds__export_slot_create(ds__registries.own, &facts, &s->slot, &s->generation);
    ds__registries_unlock();
    if (r < 0) {
        ds__host_free(s);
        return r;
    }
    if (ds__share.events < DS__SENT_EVENTS) {
        r = ds__event_create(DS_EVENT_INTERPROCESS | DS_EVENT_BLOCKING_WAIT, NULL, &s->event);
        if (r < 0) {
            ds__ipc_export_end(s);
            return r;
        }
        ds__share.events++;
    }
    *out = s;
    return DS_OK;
}

/* Enters the record's event in the export slot for importers, after the event was recorded for the
   first time. ds__share.mutex is held. */
static ds_result ds__ipc_export_event(const ds__ipc_export *s) {
    ds__export_slot_facts *facts = &ds__registries.own->page->slot[s->slot].facts;
    ds__event *e = s->event.id ? ds__event_pin(s->event) : NULL;
    void *native = e ? atomic_load(&e->native) : NULL;
    ds_result r = DS_OK;
    if (native && !atomic_load(&facts->has_event)) {
        r = e->driver->event_export(native, facts->handle); /* importers do not read it yet */
        if (r == DS_OK)
            atomic_store(&facts->has_event, 1);
    }
    if (e)
        ds__event_unpin(e);
    return r;
}

/* Reads the members of the live block of an address. Returns 0 if there is none. */
static int ds__export_look(const void *ptr, ds__exported *x) {
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(ptr, 0, &a);
    memset(x, 0, sizeof *x);
    if (!b)
        return 0;
    x->block = b;
    x->start = b->ptr;
    x->base = b->seg->base;
    x->size = b->size;
    x->stream = b->lent && b->uses ? b->uses->stream : a->stream;
    x->end = a->end;
    x->shareable = b->seg->source == DS__FROM_SHARE;
    ds__arena_unlock(a);
    return 1;
}

/* Marks the block as exported and enters a new record. Returns 0 if the block was freed
   meanwhile. */
static int ds__export_mark(const ds__exported *x, ds__ipc_export *fresh) {
    ds__arena *a = NULL;
    ds__mem_block *b = ds__find_live(x->start, 1, &a);
    int same = b == x->block;
    if (same && fresh) {
        b->exported = 1;
        ds__spinlock_lock(&ds__share.lock);
        ds__ipc_export **bucket = ds__ipc_export_bucket(x->start);
        fresh->next = *bucket;
        *bucket = fresh;
        ds__spinlock_unlock(&ds__share.lock);
    }
    if (b)
        ds__arena_unlock(a);
    return same;
}

/* Finds or makes the record of a block, for a call of ds_mem_export, and writes the handle.
   ds__share.mutex is held. */
static ds_result ds__block_export(const ds__exported *x, ds__ipc_memory *p, ds__ipc_export **out) {
    ds__ipc_export *s;
    ds__ipc_export *fresh = NULL;
    ds__export_hold *h = ds__share.hoards;
    while (h && h->base != x->base)
        h = h->next;
    if (!h)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                        (void *)x->start);
    ds_result r = ds__export_hold_export(h);
    if (r < 0)
        return r;
    ds__spinlock_lock(&ds__share.lock);
    s = ds__ipc_export_find(x->start, 0);
    ds__spinlock_unlock(&ds__share.lock);
    if (!s) {
        r = ds__ipc_export_create(x, h, &fresh);
        s = fresh;
    }
    if (r == DS_OK && !ds__export_mark(x, fresh))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p was freed by another thread at the same time",
                     (void *)x->start);
    if (r < 0) {
        if (fresh)
            ds__ipc_export_end(fresh);
        return r;
    }
    p->version = DS__PARCEL_VERSION;
    p->type = (uint8_t)h->device.type;
    p->pid = ds__registries.own->pid;
    p->fd = ds__registries.own->fd;
    p->cookie = ds__registries.own->cookie;
    p->slot = s->slot;
    p->generation = s->generation;
    s->exports++;
    *out = s;
    return DS_OK;
}

/* Orders importers behind the work enqueued so far on the block's stream. No lock is held. */
static ds_result ds__block_export_order(const ds__exported *x, ds__ipc_export *s) {
    int wait = 0;
    ds_result r = ds__ipc_export_order(s, x->stream, &wait);
    ds__mutex_lock(&ds__share.mutex);
    if (r == DS_OK)
        r = ds__ipc_export_event(s);
    s->exports--;
    ds__mutex_unlock(&ds__share.mutex);
    return r == DS_OK && wait ? ds__ipc_export_wait(x->stream, x->end) : r;
}

DSDEF ds_result(ds_mem_export)(const void *ptr, ds_ipc_mem_handle *out) {
    ds__exported x;
    ds__ipc_memory p;
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_mem_export");
    DS__REQUIRE(out, "out is NULL");
    memset(&p, 0, sizeof p);
    if (!ds__export_look(ptr, &x)) {
        ds__mutex_lock(&ds__share.mutex);
        int foreign = ds__got_of(ptr) != NULL;
        ds__mutex_unlock(&ds__share.mutex);
        DS__REQUIRE(!foreign, "%p was imported; only the process that allocated it can export it",
                    ptr);
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside a live allocation", ptr);
    }
    DS__REQUIRE(x.shareable,
                "the block at %p does not belong to a shareable pool; set ds_pool_desc.shareable",
                (void *)x.start);
    ds__ipc_export *s = NULL;
    ds__mutex_lock(&ds__share.mutex);
    ds_result r = ds__block_export(&x, &p, &s);
    ds__mutex_unlock(&ds__share.mutex);
    if (r == DS_OK)
        r = ds__block_export_order(&x, s);
    ds__share_collect_by_the_way();
    if (r < 0)
        return r;
    p.inner = (uint64_t)((const char *)ptr - x.start);
    memcpy(out, &p, sizeof p);
    return DS_OK;
}

/* alloc/ipc_import.h - importing blocks of other processes.

   Implements ds_mem_import and ds_mem_import_close. ds__guest_of opens a segment of another
   process, ds__got_create takes the lease of a block, and ds__ipc_memory_wait makes the stream wait
   for the exporter's work.

   Invariants: A block that is imported several times on a device has one record (ds__got) and
   one address. `open` counts imports to be closed; `left` also counts closed imports before
   their callback. An IPC handle names an export slot only: sizes and places are read there,
   under the slot's lease.
   Locks: ds__share.mutex is held while segments are opened and closed, including the driver calls,
   but not while work is enqueued on a stream. The registries' mutex is taken inside.
   ds__got_passed takes no lock.
   Threads: any caller's thread. ds__got_passed runs on a driver thread, as the callback on the
   stream, or on the caller's thread after a failure. */

/* Ends a closed import after its stream has reached the close. Runs on a thread of the driver, and
   takes no lock. */
static void ds__got_passed(ds_stream stream, ds_result status, void *user) {
    ds__got *g = user;
    (void)stream;
    (void)status;
    if (atomic_fetch_sub(&g->left, 1) != 1)
        return;
    ds__lease_unref(g->guest->registry, g->slot, g->lease);
    atomic_store(&g->gone, 1); /* now other threads may free the record */
}

/* Copies the description of an export slot. Another process can write the original at any time, so
   only a copy can be checked. */
static void ds__facts_read(const ds__registry *b, uint32_t slot, ds__export_slot_facts *out) {
    const volatile unsigned char *from = (const volatile void *)&b->page->slot[slot].facts;
    for (size_t i = 0; i < sizeof *out; i++)
        ((unsigned char *)out)[i] = from[i];
}

/* Opens the memory of a segment, whose lease is taken. The driver checks the size, which the other
   process has written. ds__share.mutex is held. */
static ds_result ds__guest_open(ds__guest *q) {
    ds__export_slot_facts facts;
    void *base = NULL;
    ds__facts_read(q->registry, q->slot, &facts);
    if (facts.device_type != (uint32_t)q->device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the memory is not of a %s device and cannot be imported on one",
                        ds__type_name(q->device.type));
    DS__REQUIRE(facts.size && facts.size <= SIZE_MAX / 2,
                "the exporter's registry names a segment of %llu bytes",
                (unsigned long long)facts.size);
    q->size = (size_t)facts.size;
    ds_result r = ds__shared_segment_create(q->device, facts.handle, q->size, &base);
    q->base = base;
    return r;
}

/* Returns the open segment of a block, or NULL. ds__share.mutex is held. */
static ds__guest *ds__guest_find(ds_device device, const ds__export_slot_facts *block,
                                 const ds__registry *b) {
    ds__guest *q = ds__share.guests;
    while (q && (q->registry != b || q->slot != block->segment ||
                 q->generation != block->segment_generation || q->device.index != device.index ||
                 q->device.type != device.type))
        q = q->next;
    return q;
}

/* Returns the segment of a block of another process, which is opened at the first import of its
   blocks. An opened segment refers to the registry `b`. ds__share.mutex is held. */
static ds_result ds__guest_of(ds_device device, const ds__export_slot_facts *block, ds__registry *b,
                              ds__guest **out) {
    ds__guest *q = ds__guest_find(device, block, b);
    *out = q;
    if (q)
        return DS_OK;
    q = ds__host_alloc(sizeof *q);
    if (!q)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to import a block");
    q->device = device;
    q->registry = b;
    q->slot = block->segment;
    q->generation = block->segment_generation;
    ds_result r = ds__lease_ref(b, q->slot, q->generation, &q->lease);
    if (r == DS_OK) {
        r = ds__guest_open(q);
        if (r < 0)
            ds__lease_unref(b, q->slot, q->lease);
    }
    if (r < 0) {
        ds__host_free(q);
        return r;
    }
    ds__registries_lock();
    b->users++;
    ds__registries_unlock();
    q->next = ds__share.guests;
    ds__share.guests = q;
    *out = q;
    return DS_OK;
}

/* Adds an import of a block that is imported already, and returns its record. Returns NULL if the
   block is not imported, or if all imports are closed and their callbacks have run. ds__share.mutex
   is held. */
static ds__got *ds__got_again(ds_device device, const ds__ipc_memory *p, const ds__registry *b) {
    for (ds__got *g = ds__share.got; g; g = g->next) {
        int left = atomic_load(&g->left);
        if (g->guest->registry != b || g->slot != p->slot || g->generation != p->generation)
            continue;
        if (g->guest->device.type != device.type || g->guest->device.index != device.index)
            continue;
        while (left > 0)
            if (atomic_compare_exchange_weak(&g->left, &left, left + 1)) {
                g->open++;
                return g;
            }
    }
    return NULL;
}

/* Checks that the handle's pointer is inside of the block. */
static ds_result ds__inner_check(const ds__ipc_memory *p, size_t size) {
    DS__REQUIRE(p->inner < size, "the handle names byte %llu of a block of %zu bytes",
                (unsigned long long)p->inner, size);
    return DS_OK;
}

/* Checks that a block is inside of its opened segment: another process has written its place. */
static ds_result ds__block_check(const ds__export_slot_facts *block, const ds__guest *q) {
    DS__REQUIRE(block->offset <= q->size && block->size <= q->size - block->offset,
                "the exporter's registry names %llu bytes at offset %llu of a segment of %zu bytes",
                (unsigned long long)block->size, (unsigned long long)block->offset, q->size);
    return DS_OK;
}

/* Opens the segment of a block whose lease is taken, and sets the place of the block. The
   description of the block is checked: another process has written it. ds__share.mutex is held. */
static ds_result ds__got_open(ds_device device, const ds__ipc_memory *p, ds__registry *b,
                              ds__got *g) {
    ds__export_slot_facts facts;
    ds__facts_read(b, p->slot, &facts);
    ds_result r = ds__inner_check(p, (size_t)facts.size);
    if (r < 0)
        return r;
    DS__REQUIRE(facts.segment < DS__EXPORT_SLOTS,
                "the exporter's registry names segment %u; at most %d are allowed", facts.segment,
                DS__EXPORT_SLOTS - 1);
    r = ds__guest_of(device, &facts, b, &g->guest);
    if (r < 0)
        return r;
    r = ds__block_check(&facts, g->guest);
    if (r == DS_OK)
        g->guest->blocks++;
    if (!g->guest->blocks)
        ds__guest_end(g->guest);
    if (r < 0)
        return r;
    g->ptr = g->guest->base + facts.offset;
    g->size = (size_t)facts.size;
    return DS_OK;
}

/* Makes a record of an import: takes the lease of the block, and opens its segment. ds__share.mutex
   is held. */
static ds_result ds__got_create(ds_device device, const ds__ipc_memory *p, ds__registry *b,
                                ds__got **out) {
    ds__got *g = ds__host_alloc(sizeof *g);
    if (!g)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to import a block");
    ds_result r = ds__lease_ref(b, p->slot, p->generation, &g->lease);
    if (r == DS_OK) {
        r = ds__got_open(device, p, b, g);
        if (r < 0)
            ds__lease_unref(b, p->slot, g->lease);
    }
    if (r < 0) {
        ds__host_free(g);
        return r;
    }
    g->slot = p->slot;
    g->generation = p->generation;
    g->open = 1;
    atomic_store(&g->left, 1);
    g->next = ds__share.got;
    ds__share.got = g;
    *out = g;
    return DS_OK;
}

/* Makes the stream wait for the work that the exporter had enqueued before the export. */
static ds_result ds__got_wait(const ds__got *g, ds_stream stream) {
    const ds__export_slot_facts *facts = &g->guest->registry->page->slot[g->slot].facts;
    ds_event event = { 0 };
    if (!atomic_load(&facts->has_event))
        return DS_OK;
    ds_result r = ds__event_open(g->guest->device, facts->handle, &event);
    if (r == DS_OK)
        r = ds__wait_event(stream, event, DS__OP_WAIT);
    ds__use_event_destroy(event);
    return r;
}

/* Takes an import back. The mutex is held. */
static void ds__got_refuse(ds__got *g) {
    g->open--;
    ds__got_passed((ds_stream){ 0 }, DS_OK, g);
    ds__got_collect(0);
}

/* Opens a block, or adds an import of an open one. The mutex is held. */
static ds_result ds__block_import(ds_device device, const ds__ipc_memory *p, ds__got **out) {
    ds__registry *b = NULL;
    ds__registries_lock();
    ds_result r = ds__registry_open(p->pid, p->fd, p->cookie, &b);
    ds__registries_unlock();
    if (r < 0)
        return r;
    ds__got *g = ds__got_again(device, p, b);
    if (!g)
        r = ds__got_create(device, p, b, &g);
    if (r == DS_OK)
        r = ds__inner_check(p, g->size);
    if (r < 0 && g)
        ds__got_refuse(g);
    ds__registries_lock();
    ds__registry_close(b);
    ds__registries_unlock();
    *out = g;
    return r;
}

/* Checks the bytes of a handle, as far as possible without the exporter's registry. */
static ds_result ds__ipc_memory_check(const ds__ipc_memory *p, ds_device device) {
    static const ds__ipc_memory none;
    DS__REQUIRE(p->version != 0 && p->version <= 64, "the handle was not written by ds_mem_export");
    if (p->version != DS__PARCEL_VERSION)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the handle has version %d; versions up to %d are supported", p->version,
                        DS__PARCEL_VERSION);
    DS__REQUIRE(p->slot < DS__EXPORT_SLOTS && !memcmp(p->zero, none.zero, sizeof p->zero) &&
                    !p->zero_too && !memcmp(p->rest, none.rest, sizeof p->rest),
                "the handle was not written by ds_mem_export");
    if (p->type != device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the memory is of a %s device and cannot be imported on a %s device",
                        ds__type_name(p->type), ds__type_name(device.type));
    return DS_OK;
}

DSDEF ds_result(ds_mem_import)(ds_device device, const ds_ipc_mem_handle *handle, ds_stream stream,
                               void **out) {
    ds__ipc_memory p;
    ds__got *g = NULL;
    if (out)
        *out = NULL;
    DS__ENTER("ds_mem_import");
    DS__REQUIRE(out && handle, "%s is NULL", out ? "handle" : "out");
    DS__RESOLVE(device);
    memcpy(&p, handle, sizeof p);
    ds_result r = ds__ipc_memory_check(&p, device);
    if (r < 0)
        return r;
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    if (s->device.type != device.type || s->device.index != device.index)
        r = ds__fail(DS_ERR_DEVICE_MISMATCH,
                     "the stream belongs to %s:%d, but the import is for %s:%d",
                     ds__type_name(s->device.type), s->device.index, ds__type_name(device.type),
                     device.index);
    else if (ds__is_capturing(s))
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "memory cannot be imported on a stream that captures");
    ds__stream_unpin(s);
    if (r < 0)
        return r;
    r = ds__mem_setup(); /* then ds_shutdown ends the import */
    if (r < 0)
        return r;
    ds__mutex_lock(&ds__share.mutex);
    ds__got_collect(0);
    r = ds__block_import(device, &p, &g);
    ds__mutex_unlock(&ds__share.mutex);
    if (r < 0)
        return r;
    r = ds__got_wait(g, stream);
    if (r < 0) {
        ds__mutex_lock(&ds__share.mutex);
        ds__got_refuse(g);
        ds__mutex_unlock(&ds__share.mutex);
        return r;
    }
    *out = g->ptr + p.inner;
    return DS_OK;
}

/* Enqueues the callback that ends the import. No lock is held. */
static ds_result ds__got_close(ds__got *g, ds__stream *s, ds_stream stream) {
    ds__op op = ds__op_init(DS__OP_CALLBACK);
    op.u.host.fn = NULL;
    op.u.host.callback = ds__got_passed;
    op.u.host.user = g;
    op.u.host.dtor_fn = NULL;
    op.u.host.stream = stream.id;
    if (ds__is_capturing(s))
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "imported memory cannot be closed on a stream that captures");
    ds_result r = ds__stream_submit(s, &op);
    if (r != DS_ERR_FAILED && r != DS_ERR_PEER_DIED)
        return r;
    /* a failed stream runs no further work */
    DS_IGNORE(s->driver->stream_synchronize(s->native, DS__FOREVER));
    ds__got_passed(stream, DS_OK, g);
    return DS_OK;
}

DSDEF ds_result(ds_mem_import_close)(void *ptr, ds_stream stream) {
    DS__ENTER("ds_mem_import_close");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__mutex_lock(&ds__share.mutex);
    ds__got *g = ds__got_of(ptr);
    ds_result r = DS_OK;
    if (!g)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is not inside imported memory", ptr);
    else if (g->guest->device.type != s->device.type)
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the memory and the stream belong to different drivers");
    else
        g->open--; /* no other call closes this import */
    ds__mutex_unlock(&ds__share.mutex);
    if (r == DS_OK) {
        r = ds__got_close(g, s, stream);
        ds__mutex_lock(&ds__share.mutex);
        if (r < 0)
            g->open++;
        ds__got_collect(0);
        ds__mutex_unlock(&ds__share.mutex);
    }
    ds__stream_unpin(s);
    ds__share_collect_by_the_way();
    return r;
}

/* alloc/leaks.h - report of leaks at shutdown.

   Reports the blocks of a device that were not freed, grouped by owner, as warnings
   (ds__tell_leaks). ds__mem_deinit calls ds__tell_leaks for each device and for pinned memory.

   Invariants: Blocks in the own pool of a capture belong to a graph and are not leaks. At most
   100 owners are reported, those with the most bytes first.
   Locks: takes none; ds_shutdown holds ds__g.mutex. The program's log and memory functions may
   be called.
   Threads: the thread of ds_shutdown, after all work is done. */

/* Reports the blocks that were not freed, by owner, at shutdown. Blocks of graphs are not leaks. */
static void ds__tell_leaks(ds__mem_dev *dev) {
    ds__oom_owners owners;
    ds__oom_owner o;
    ds__oom_owner *which;
    char name[80];
    if (ds__logger.level < DS_LOG_WARNING)
        return;
    ds__oom_owners_begin(&owners, ds__oom_count(dev));
    for (const ds__mem_pool *p = &dev->main; p; p = p->next)
        for (const ds__arena *a = p->name[0] ? NULL : p->arenas; a; a = a->next)
            for (const ds__segment *g = a->segments; g; g = g->next)
                for (const ds__mem_block *b = g->first; b; b = b->next)
                    if (b->state == DS_BLOCK_LIVE)
                        ds__oom_owners_add(&owners, b);
    /* not more than 100 owners */
    for (int i = 0; i < 100 && (which = ds__oom_owners_next(&owners, &o)); i++) {
        ds__oom_owner_name(&owners, which, &o, name);
        ds__log_warn("%zu block%s of %s on %s:%d, %s, %s not freed", o.count,
                     o.count == 1 ? "" : "s", name, ds__type_name(dev->device.type),
                     dev->device.index, DS__SIZE(o.bytes), o.count == 1 ? "was" : "were");
    }
    ds__host_free(owners.slot);
}

/* alloc/shutdown.h - the allocator's part of ds_shutdown.

   ds__mem_shutdown frees all memory of the allocator and resets its state, so that a later call
   starts it anew. ds__mem_deinit reports the blocks of a device that were not freed, then frees
   its segments, events and mutexes. It serves the devices and, by ds__pinned_shutdown, pinned
   memory. ds__mem_module has the functions that the core calls.

   Invariants: The order is: exports, pinned memory, observers and history, devices, resources,
   and last the objects of ds__kept_alloc. Resources end after the pools, because a resource may be
   the upstream of a pool. The serial numbers of pools, segments and resources continue, so that
   old handles stay invalid.
   Locks: ds_shutdown holds ds__g.mutex. ds__mem_closing waits under ds__memory_state.leaving for
   graphs that release their pools. No lock of the allocator is held while drivers and the upstreams
   of pools (user code) free segments.
   Threads: the thread of ds_shutdown, after all work has ended. CUDA's callback thread may run
   ds__capture_pool_unref at the same time; ds__memory_state.closing keeps it away from pools. */

/* Frees the memory of a segment, its granule table, and the events of its blocks. */
static void ds__segment_shutdown(ds__arena *a, ds__segment *s) {
    if (s->page)
        ds__space_release(a->dev->device, s->base, s->size);
    else if (s->source != DS__FROM_ASYNC) /* the driver's own pool ends with the driver */
        DS_IGNORE(ds__source_free(a, s));
    for (ds__mem_block *b = s->first; b; b = b->next)
        for (ds__stream_use *u = b->uses; u; u = u->next)
            ds__use_event_destroy(u->event);
    ds__host_free(s->granule);
}

/* Frees the segments, events and mutexes of an arena. */
static void ds__arena_shutdown(ds__arena *a) {
    for (ds__segment *s = a->segments; s; s = s->next)
        ds__segment_shutdown(a, s);
    for (ds__stream_use *u = a->spare_uses; u; u = u->next)
        ds__use_event_destroy(u->event);
    ds__use_event_destroy(a->end);
    ds__mutex_destroy(&a->grow);
    ds__mutex_destroy(&a->giving);
}

/* Reports the blocks of a device that were not freed, then frees all memory of the device. */
static void ds__mem_deinit(ds__mem_dev *dev) {
    ds_stream giver = { atomic_load(&dev->giver) };
    ds__tell_leaks(dev);
    ds__stream_end(giver);
    for (ds__mem_pool *p = &dev->main; p; p = p->next) {
        for (ds__arena *a = p->arenas; a; a = a->next)
            ds__arena_shutdown(a);
        ds__host_free(p->label);
    }
    ds__mutex_destroy(&dev->lock);
}

/* Frees pinned memory and resets its state. */
static void ds__pinned_shutdown(void) {
    ds__mem_dev *dev = ds__pinned_used();
    for (ds__arena *a = dev ? dev->main.arenas : NULL; a; a = a->next)
        for (ds__segment *s = a->segments; s; s = s->next)
            for (ds__mem_block *b = s->first; b; b = b->next)
                for (ds__stream_use *u = b->uses; u; u = u->next) {
                    ds__hold_unref(u->hold);
                    u->hold = NULL;
                }
    if (dev)
        ds__mem_deinit(dev);
    atomic_store(&ds__host.dev, NULL);
    atomic_store(&ds__host.limit, 0);
    ds__host.configured = 0;
    memset(&ds__host.made, 0, sizeof ds__host.made);
    memset(&ds__host.ended, 0, sizeof ds__host.ended);
}

/* Frees all memory of the allocator. Called by ds_shutdown after all work. */
static void ds__mem_shutdown(void) {
    ds__mem_closing(1);
    ds__share_shutdown();
    ds__pinned_shutdown();
    ds__snapshot_shutdown();
    for (int backend = 0; backend < DS_BACKEND_COUNT; backend++)
        for (int i = 0; i < DS__MAX_DEVICES; i++) {
            ds__mem_dev *dev = ds__mem_device_at(backend, i);
            if (!dev)
                continue;
            ds__mem_deinit(dev);
            atomic_store(ds__module_device(DS__MODULE_ALLOC, backend, i), NULL);
        }
    ds__resource_shutdown();
    ds__host_free(ds__memory_state.pools);
    ds__host_free(ds__memory_state.sorted);
    ds__callback_clear(&ds__memory_state.shortage);
    ds__callback_clear(&ds__memory_state.oom);
    for (size_t i = 0; i < sizeof ds__memory_state.root / sizeof ds__memory_state.root[0]; i++)
        atomic_store(&ds__memory_state.root[i], NULL);
    for (size_t i = 0; i < DS__MAX_DEVICES; i++)
        atomic_store(&ds__memory_state.legacy[i], 0);
    while (ds__memory_state.kept) {
        ds__kept *next = ds__memory_state.kept->next;
        ds__host_free(ds__memory_state.kept);
        ds__memory_state.kept = next;
    }
    ds__memory_state.pools = NULL;
    ds__memory_state.sorted = NULL;
    ds__memory_state.free_segments = NULL;
    ds__memory_state.policies = NULL;
    ds__memory_state.pool_count = 0;
    ds__memory_state.pool_room = 0;
    ds__memory_state.sorted_count = ds__memory_state.sorted_room = 0;
    ds__memory_state.configured = 0;
}

/* Gives back what other processes have closed, and refuses if one of them still has memory of this
   process open, or this process has memory of one. */
static ds_result ds__mem_quiesce(void) {
    size_t segments = 0;
    size_t blocks = 0;
    (void)ds__share_collect_now(DS__COLLECT_ALL);
    ds__mutex_lock(&ds__share.mutex);
    for (const ds__export_hold *h = ds__share.hoards; h; h = h->next)
        segments += h->generation && ds__export_slot_leased(h->slot, 1);
    for (const ds__got *g = ds__share.got; g; g = g->next)
        blocks += g->open != 0;
    ds__mutex_unlock(&ds__share.mutex);
    if (segments)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "other processes have %zu segments of this process open; let them close "
                        "their imports",
                        segments);
    if (blocks)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "%zu blocks of other processes are open in this process; close them",
                        blocks);
    return DS_OK;
}

static const ds__module ds__mem_module = { .stream_end = ds__mem_stream_gone,
                                           .thread_end = ds__host_free, /* of the report */
                                           .shutdown = ds__mem_shutdown,
                                           .quiesce = ds__mem_quiesce };

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
