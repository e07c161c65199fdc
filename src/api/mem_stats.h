/* api/mem_stats.h - statistics of the caching allocator.

   Declares the statistics of a device or pool and the functions that read and reset them. Also
   declares getters of single figures, a printed summary, and the list of processes on a GPU. */
#ifndef DS__API_MEM_STATS_H
#define DS__API_MEM_STATS_H

#include "graph.h"
#include "mem.h"

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

#endif
