/* api/mem_stats.h - statistics of the caching allocator.

   Declares the statistics of a device or pool and the functions that read and reset them. It
   also has single figures, a printed summary, and the list of processes on a GPU. */
#ifndef DS__API_MEM_STATS_H
#define DS__API_MEM_STATS_H

#include "graph.h"
#include "mem.h"

/* ---- statistics ------------------------------------------------------------------------------ */

/** One quantity: now, at most, and in all. */
typedef struct ds_mem_stat {
    int64_t current;   /**< now */
    int64_t peak;      /**< largest since the start or the last reset */
    int64_t allocated; /**< all increases */
    int64_t freed;     /**< all decreases */
} ds_mem_stat;

/** By the kind of segment that a block lies in. */
enum {
    DS_STAT_ALL = 0,   /**< both */
    DS_STAT_SMALL = 1, /**< segments for requests up to 1 MiB */
    DS_STAT_LARGE = 2  /**< segments for larger ones */
};

/** torch.cuda.memory_stats as a struct: [DS_STAT_ALL, DS_STAT_SMALL, DS_STAT_LARGE]. The same
    program counts the same blocks, bytes of blocks, retries and refusals on every backend, as
    long as no policy leaves a block more than was asked for, and memory is short at the same
    requests. Segments, reserved bytes, split blocks and calls of the driver are the backend's
    own: without a cache each block is a segment. What the driver's own pool keeps for later is
    reserved too, asked of the driver with the statistics; totals count blocks only. */
typedef struct ds_mem_stats {
    ds_mem_stat allocation[3]; /**< blocks that were allocated and not freed */
    ds_mem_stat segment[3];    /**< plain segments */
    /** blocks that are allocated, or freed and still used by another stream */
    ds_mem_stat active[3];
    ds_mem_stat inactive_split[3];       /**< free blocks in plain segments that are in use */
    ds_mem_stat allocated_bytes[3];      /**< bytes of the allocated blocks */
    ds_mem_stat reserved_bytes[3];       /**< bytes taken from the driver */
    ds_mem_stat active_bytes[3];         /**< bytes of the active blocks */
    ds_mem_stat inactive_split_bytes[3]; /**< bytes of the inactive split blocks */
    ds_mem_stat requested_bytes[3];      /**< bytes that the callers asked for, of active blocks */
    ds_mem_stat oversize_allocations;    /**< of max_split_size or more */
    ds_mem_stat oversize_segments;       /**< of max_split_size or more */
    int64_t num_alloc_retries;           /**< allocations that gave the cache back first */
    int64_t num_ooms;                    /**< out-of-memory errors */
    /** waits for all pending blocks; one pool's alone (ds_pool_empty_cache) are not counted */
    int64_t num_sync_all_streams;
    int64_t num_device_alloc;   /**< calls of the driver for memory */
    int64_t num_device_free;    /**< and to give it back */
    int64_t num_oom_rejections; /**< refused before the driver was asked */
    int64_t max_split_size;     /**< -1: no limit */
    /** bytes by which peaks of bytes may exceed the truth; 0 if one thread has allocated since
        they were reset */
    int64_t peak_bound;
    int64_t peak_bound_count; /**< the same for peaks of counts */
    uint64_t reserved[48];    /**< 0 */
} ds_mem_stats;

/** Statistics of a device, all pools together; all 0 before its first use. DS_DEVICE_HOST:
    pinned memory (ds_mem_pinned_get_stats). */
DSDEF DS_MUST_USE ds_result ds_mem_get_stats(ds_device device, ds_mem_stats *out);
/** Statistics of one pool. Also of one that was destroyed, until a later pool takes its place:
    its peaks and totals, and what blocks of it there are still. */
DSDEF DS_MUST_USE ds_result ds_pool_get_stats(ds_pool pool, ds_mem_stats *out);
/** One value by torch's name ("allocated_bytes.all.current", "num_ooms"; "allocated.all.current"
    is "allocation.all.current"). */
DSDEF DS_MUST_USE ds_result ds_mem_stats_get_by_name(const ds_mem_stats *stats, const char *name,
                                                     int64_t *out);
/** Names in alphabetical order, index from 0; NULL behind the last. Callable anywhere. */
DSDEF const char *ds_mem_stats_get_name(size_t index);
/** Peaks become the current values. */
DSDEF DS_MUST_USE ds_result ds_mem_reset_peak_stats(ds_device device);
/** Totals and counters become 0. */
DSDEF DS_MUST_USE ds_result ds_mem_reset_accumulated_stats(ds_device device);
/** allocated_bytes.all.current; 0 for a device that was not used. */
DSDEF size_t ds_mem_get_allocated(ds_device device);
/** allocated_bytes.all.peak. */
DSDEF size_t ds_mem_get_max_allocated(ds_device device);
/** reserved_bytes.all.current. */
DSDEF size_t ds_mem_get_reserved(ds_device device);
/** reserved_bytes.all.peak. */
DSDEF size_t ds_mem_get_max_reserved(ds_device device);
/** torch's old name of ds_mem_get_reserved. */
DSDEF size_t ds_mem_cached(ds_device device);
/** torch's old name of ds_mem_get_max_reserved. */
DSDEF size_t ds_mem_max_cached(ds_device device);
/** torch's old name of ds_mem_reset_peak_stats. */
DSDEF DS_MUST_USE ds_result ds_mem_reset_max_allocated(ds_device device);
/** torch's old name of ds_mem_reset_peak_stats. */
DSDEF DS_MUST_USE ds_result ds_mem_reset_max_cached(ds_device device);
/** Bytes that the driver's own pool of a device (DS_MEM_DRIVER_POOL,
    ds_resource_create_driver_pool) has taken from it, and those in use, whoever uses the pool.
    Either may be NULL. */
DSDEF DS_MUST_USE ds_result ds_mem_get_driver_pool_info(ds_device device, size_t *out_reserved,
                                                        size_t *out_used);
/** torch.cuda.memory_summary: its table to the character, with devstream's name in the title, to
    write_fn line by line. */
DSDEF DS_MUST_USE ds_result ds_mem_write_summary(ds_device device, int abbreviated,
                                                 ds_write_fn write_fn, void *user);
/** torch.cuda.list_gpu_processes: which processes use the device and how much. A GPU's are told
    by NVML (as ds_device_get_utilization); where it is not, the text says so. A CPU device's memory
    belongs to its process: then come those that share memory of it (ds_mem_export,
    ds_mem_import), with how much they share. */
DSDEF DS_MUST_USE ds_result ds_mem_write_processes(ds_device device, ds_write_fn write_fn,
                                                   void *user);

#endif
