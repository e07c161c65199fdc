/* api/mem_config.h - policy of the caching allocator.

   Declares the policy of a device's memory or a pool (ds_mem_config), its presets, and the
   functions that set and read it, also as text. */
#ifndef DS__API_MEM_CONFIG_H
#define DS__API_MEM_CONFIG_H

#include "device.h"

/* ---- configuration --------------------------------------------------------------------------- */

/** What an allocation does when its own stream has no fitting block but others have freed some. */
typedef enum ds_mem_reuse {
    DS_REUSE_NEVER = 0, /**< blocks stay with their stream (torch, CuPy) */
    /** before the program runs out of memory, the stream is made to wait for the other one */
    DS_REUSE_ON_SHORTAGE = 1,
    DS_REUSE_ALWAYS = 2 /**< rather than reserving more memory */
} ds_mem_reuse;

/** How much is counted (ds_mem_config.statistics). */
typedef enum ds_mem_statistics_level {
    DS_STATISTICS_FULL = 0,   /**< current values, peaks and totals */
    DS_STATISTICS_CURRENT = 1 /**< current values; peaks and totals stand still */
} ds_mem_statistics_level;

/** Where device memory comes from. */
typedef enum ds_mem_backend {
    DS_MEM_NATIVE = 0,      /**< this allocator's cache */
    DS_MEM_DRIVER_POOL = 1, /**< the driver's own stream-ordered pool (cudaMallocAsync) */
    /** every allocation is the driver's; a free waits for the block's stream and for the uses of
        others (for debugging) */
    DS_MEM_UNCACHED = 2
} ds_mem_backend;

/** The policy of a device's memory or of a pool. Start from ds_mem_config_default(), _torch() or
    _cupy() and change what you like: a zeroed one is not valid. Sizes in bytes. The names are
    PyTorch's where it has the option. */
typedef struct ds_mem_config {
    int backend; /**< a ds_mem_backend */
    /** 1: segments grow in reserved address space where the device can do that. If the system
        refuses the address space (RLIMIT_AS), segments are plain, and a warning is logged */
    int expandable_segments;
    /** 1: of equal blocks the one with the lowest address is taken, exactly best fit (torch,
        CuPy); 0: the one freed last, and nearly best fit, which is faster */
    int best_fit_by_address;
    /** 1: small and large requests share their segments (CuPy) */
    int single_pool;
    int reuse; /**< a ds_mem_reuse: of blocks of other streams */
    /** 1: every allocation asks whether blocks that other streams used are done (torch); 0: only
        when nothing else fits */
    int poll_on_alloc;
    int statistics; /**< a ds_mem_statistics_level */
    /** 0; 1: all structures are checked where the driver is asked for memory or gets it back
        (allocations that find none cached, ds_mem_trim, ds_mem_empty_cache,
        ds_pool_empty_cache); 2: at every allocation, free and recorded use too */
    int debug;
    /** 1: freed memory is overwritten with 0xDB in stream order; behind the uses of other
        streams and processes, and when the block's stream has ended, before it is anyone's
        again. Memory of uncached blocks that others used is not: it goes back to the driver */
    int poison;
    /** bytes directly behind what was asked for (from the next multiple of 4 on) that are filled
        and checked at free, multiple of 512; the check waits for the stream and for recorded
        uses. Neither poison nor guards are written while a capture is open, nor in a pool that
        a graph uses */
    size_t guard_bytes;
    /** blocks of this size or more are not split for smaller requests; SIZE_MAX: no limit */
    size_t max_split_size;
    /** and serve only requests that are at most this much smaller */
    size_t max_non_split_rounding;
    /** segment, and page of a growing one, for requests up to 1 MiB */
    size_t small_segment_size;
    /** the same for larger ones (those of half of it or more get a segment of their own) */
    size_t large_segment_size;
    /** plain segments: at least 1/this of what is reserved already; 0: off */
    unsigned segment_growth;
    /** 0: off; part of the limit above which unused segments are given back by age */
    double garbage_collection_threshold;
    /** log2 of the divisions plus one, per power of two from 1 MiB; 0: off */
    unsigned char roundup_power2_divisions[16];
    /** of the device's memory; 1: no limit (per_process_memory_fraction) */
    double memory_fraction;
    size_t limit; /**< bytes; 0: no limit. The smaller of both counts */
    /** 1: what would pass the limit is refused before the driver is asked, and counted in
        num_oom_rejections */
    int throw_on_cudamalloc_oom;
    /** accepted for compatibility: other streams' allocations never wait for the driver here */
    int release_lock_on_cudamalloc;
    /** 1: while a stream captures, memory that other streams of the capture have used is used
        again behind these uses, whatever `reuse` says */
    int graph_capture_record_stream_reuse;
    /** address space of a growing segment, as a multiple of the device's memory; in bytes when
        it is 2 MiB or more */
    double expandable_segments_reserve;
    /* Pinned memory is one for all devices: what was set last, for whichever of them, counts for
       it, and of the others poll_on_alloc and debug. */
    /** pinned requests up to this are rounded up to a power of two; 0: none are */
    size_t pinned_max_round_threshold;
    /** larger pinned blocks are given back when they are freed (and no capture is open);
        SIZE_MAX: none */
    size_t pinned_max_cached_size;
    /** pinned segments that blocks of up to a quarter of it share; 0: 1 MiB, and none for sizes
        that are rounded to powers of two */
    size_t pinned_reserve_segment_size;
    /** 1: pinned memory is ordinary memory that is registered */
    int pinned_use_cuda_host_register;
    /** threads that touch its pages, power of two up to 128 */
    unsigned pinned_num_register_threads;
    /** accepted for compatibility: events are asked for at allocations only */
    int pinned_use_background_threads;
    uint64_t reserved[16]; /**< 0 */
} ds_mem_config;

/** devstream's own policy: growing segments where there is virtual memory, else few large ones;
    little fragmentation. */
DSDEF ds_mem_config ds_mem_config_default(void);
/** PyTorch's defaults: its sizes, segments and reuse rules. */
DSDEF ds_mem_config ds_mem_config_torch(void);
/** CuPy's memory pool: one pool per stream, segments as large as the request, nothing shared. */
DSDEF ds_mem_config ds_mem_config_cupy(void);
/** Sets the policy of a device, from the next call on; blocks and segments that exist stay as
    they are. backend can be changed only while the device has no block. DS_ERR_INVALID_VALUE
    names the member that is wrong; then nothing has changed. */
DSDEF DS_MUST_USE ds_result ds_mem_configure(ds_device device, const ds_mem_config *config);
/** The same for all devices, now and later, from a text in the grammar of
    PYTORCH_CUDA_ALLOC_CONF: options of PyTorch, and preset:(default|torch|cupy) (first),
    reuse:(never|on_shortage|always), statistics:(full|current), limit:(bytes|P%), debug, poison,
    guard_bytes, segment_growth, single_pool, best_fit_by_address, poll_on_alloc. limit sets both
    members, limit and memory_fraction: bytes replace a fraction, P% replaces bytes. As in
    PyTorch a text first resets max_split_size, roundup_power2_divisions and the garbage
    collection threshold. DS_ERR_INVALID_VALUE names the character where it went wrong; then
    nothing has changed. */
DSDEF DS_MUST_USE ds_result ds_mem_configure_text(const char *text);
/** Reads such a text into *config, which must hold a valid configuration. Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_mem_config_parse(const char *text, ds_mem_config *config);
/** The policy of a device as it stands. */
DSDEF DS_MUST_USE ds_result ds_mem_get_config(ds_device device, ds_mem_config *out);

#endif
