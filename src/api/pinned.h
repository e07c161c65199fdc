/* api/pinned.h - cached pinned host memory.

   Declares the cache of pinned host memory: allocation, frees, uses by streams, limits and
   statistics. */
#ifndef DS__API_PINNED_H
#define DS__API_PINNED_H

#include "mem_stats.h"

/* ---- pinned host memory ---------------------------------------------------------------------- */

/** Allocates pinned host memory from a cache, for all devices; aligned to 512 (to 4 KiB from 4
    KiB on); uninitialised. It may be used at once. size 0 gives NULL and DS_OK. Waits for no
    device (though a driver may, while it pins memory). DS_ERR_OUT_OF_MEMORY, and
    DS_ERR_LIMIT_EXCEEDED when only the limit stands in the way, when the cache given back did
    not help. Callable while streams capture. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_alloc(size_t size, void **out);
/** Frees it; it is not used again before all recorded uses are done. Waits for nothing. NULL is
    allowed; anything else that is not the start of a block, a second free included, is
    DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_free(void *ptr);
/** Says that the stream, of any device, has just been given its last use of the block (any
    address inside it). On a stream that captures, the block is the graph's: freed, it is not
    used again before the last graph and executable that has the use is gone. Nothing for NULL; a
    pointer of no block is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_record_use(void *ptr, ds_stream stream);
/** What torch's CachingHostAllocator answers to record_event: 1 in *out when the address lies in
    a block that is allocated here. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_owns(const void *ptr, int *out);
/** Gives back all cached pinned memory whose uses are done; waits for none. *out_released (NULL
    allowed): bytes. Refused while a capture is open. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_empty_cache(size_t *out_released);
/** Limits what is reserved, in bytes; 0: no limit. What is reserved already stays. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_set_limit(size_t bytes);

/** Time of the calls to the driver, microseconds. */
typedef struct ds_mem_duration {
    int64_t total; /**< all of it */
    int64_t max;   /**< the longest call */
    int64_t min;   /**< the shortest */
    int64_t count; /**< how many */
    int64_t avg;   /**< total / count */
} ds_mem_duration;

/** torch.cuda.host_memory_stats as a struct. Exact, peaks included, with any number of threads. */
typedef struct ds_mem_pinned_stats {
    ds_mem_stat allocations;     /**< blocks that were allocated and not freed */
    ds_mem_stat allocated_bytes; /**< bytes of blocks that are live or cached */
    /** blocks that are allocated, or freed and still in use by a stream */
    ds_mem_stat active_requests;
    ds_mem_stat active_bytes;        /**< their bytes */
    ds_mem_duration host_alloc_time; /**< of calls for memory */
    ds_mem_duration host_free_time;  /**< of calls to give it back */
    int64_t num_host_alloc;          /**< calls for memory */
    int64_t num_host_free;           /**< calls to give it back */
    uint64_t reserved[16];           /**< 0 */
} ds_mem_pinned_stats;

/** Statistics of pinned memory. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_get_stats(ds_mem_pinned_stats *out);
/** Peaks become the current values. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_reset_peak_stats(void);
/** Totals become 0. */
DSDEF DS_MUST_USE ds_result ds_mem_pinned_reset_accumulated_stats(void);

#endif
