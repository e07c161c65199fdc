/* api/resource.h - memory resources and adaptors.

   Declares a memory resource (ds_resource): a pair of functions that allocate and free. Also
   declares adaptors with a limit, statistics or a log.

   Threads: resources created by devstream may be used by all threads. */
#ifndef DS__API_RESOURCE_H
#define DS__API_RESOURCE_H

#include "pool.h"
#include "mem_stats.h"

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

#endif
