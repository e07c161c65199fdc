/* api/pinned.h - cached pinned host memory.

   Declares the cache of pinned host memory: allocation, frees, uses by streams, limits and
   statistics. */
#ifndef DS__API_PINNED_H
#define DS__API_PINNED_H

#include "mem_stats.h"

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

#endif
