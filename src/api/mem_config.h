/* api/mem_config.h - policy of the caching allocator.

   Declares the policy of a device's memory or a pool (ds_mem_config), its presets, and the
   functions that set and read it, also as text. */
#ifndef DS__API_MEM_CONFIG_H
#define DS__API_MEM_CONFIG_H

#include "device.h"

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

#endif
