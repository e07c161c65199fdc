/* api/resource.h - memory resources and adaptors.

   Declares a memory resource (ds_resource): a pair of functions that allocate and free.
   devstream makes several, and adaptors with a limit, statistics or a log.

   Threads: resources made by devstream may be used by all threads. */
#ifndef DS__API_RESOURCE_H
#define DS__API_RESOURCE_H

#include "pool.h"
#include "mem_stats.h"

/* ---- resources ------------------------------------------------------------------------------- */

/** Gives size bytes (never 0) that are aligned to `alignment`, a power of two (0: what is usual,
    256 at least), for what is put on the stream from now on. */
typedef ds_result (*ds_resource_alloc_fn)(void *user, size_t size, size_t alignment,
                                          ds_stream stream, void **out);
/** Takes back what ds_resource_alloc_fn gave for this size. stream: the one that used it last;
    zeroed: work that uses it is done. */
typedef ds_result (*ds_resource_free_fn)(void *user, void *ptr, size_t size, ds_stream stream);

/** Where memory comes from, as RMM's device_memory_resource: two functions and whose they are.
    Those below are made by devstream and may be used by all threads; a program's own is one that
    it fills in. A copy is the same resource. Adaptors stand upon other resources (upstream), as
    many upon each other as you like. */
struct ds_resource {
    ds_resource_alloc_fn alloc_fn; /**< required */
    ds_resource_free_fn free_fn;   /**< required */
    void *user;                    /**< is handed to both */
};

/** Allocates from a resource. size 0 gives NULL and DS_OK. DS_ERR_OUT_OF_MEMORY: it has no more;
    DS_ERR_LIMIT_EXCEEDED: a limit stands in the way, ds_resource_create_limit's or the allocator's;
    what a function of the program returns; DS_ERR_INVALID_VALUE: an alignment that is no power
    of two, or more than the resource gives. */
DSDEF DS_MUST_USE ds_result ds_resource_alloc(const ds_resource *resource, size_t size,
                                              size_t alignment, ds_stream stream, void **out);
/** Gives it back. NULL is allowed. */
DSDEF DS_MUST_USE ds_result ds_resource_free(const ds_resource *resource, void *ptr, size_t size,
                                             ds_stream stream);

/** ds_device_alloc and ds_device_free: every free waits for the device. */
DSDEF DS_MUST_USE ds_result ds_resource_create_device(ds_device device, ds_resource *out);
/** A pool; 0: the one that ds_mem_alloc takes (ds_pool_push, else the default one of the
    stream's device). */
DSDEF DS_MUST_USE ds_result ds_resource_create_pool(ds_pool pool, ds_resource *out);
/** The driver's own pool of the stream's device (cudaMallocAsync). */
DSDEF DS_MUST_USE ds_result ds_resource_create_driver_pool(ds_resource *out);
/** Functions of the program. */
DSDEF DS_MUST_USE ds_result ds_resource_create_functions(ds_resource_alloc_fn alloc_fn,
                                                         ds_resource_free_fn free_fn, void *user,
                                                         ds_resource *out);

/** At most so many bytes at a time; more is DS_ERR_LIMIT_EXCEEDED. */
DSDEF DS_MUST_USE ds_result ds_resource_create_limit(const ds_resource *upstream, size_t bytes,
                                                     ds_resource *out);
/** Counts: ds_resource_get_stats. */
DSDEF DS_MUST_USE ds_result ds_resource_create_stats(const ds_resource *upstream, ds_resource *out);
/** Writes a line of CSV per call: "time_us,action,pointer,size,stream", which is also the first
    line. The time is that of the monotonic clock; the action is allocate, free or
    allocate_failure; stream is ds_stream_get_id, 0 for none. Lines come one at a time; when
    write_fn says stop, no more are written. */
DSDEF DS_MUST_USE ds_result ds_resource_create_log(const ds_resource *upstream,
                                                   ds_write_fn write_fn, void *user,
                                                   ds_resource *out);
/** Called when the upstream had no memory for so many bytes; returns 1 when it is worth another
    try. May call devstream. */
typedef int (*ds_resource_failure_fn)(size_t size, void *user);
/** Asks fn, and tries again, as long as memory is short and fn returns 1. */
DSDEF DS_MUST_USE ds_result ds_resource_create_on_failure(const ds_resource *upstream,
                                                          ds_resource_failure_fn fn, void *user,
                                                          ds_resource *out);
/** Allocations of `threshold` bytes or more are aligned to `alignment`, a power of two; and any
    to what it asks for. */
DSDEF DS_MUST_USE ds_result ds_resource_create_aligned(const ds_resource *upstream,
                                                       size_t alignment, size_t threshold,
                                                       ds_resource *out);

/** What went through ds_resource_create_stats. */
typedef struct ds_resource_stats {
    ds_mem_stat bytes;       /**< that were asked for */
    ds_mem_stat allocations; /**< how many */
    uint64_t reserved[8];    /**< 0 */
} ds_resource_stats;

/** Statistics since the resource was made, or since the innermost push. */
DSDEF DS_MUST_USE ds_result ds_resource_get_stats(const ds_resource *resource,
                                                  ds_resource_stats *out);
/** Counts from 0 until the matching pop. Nests, 16 deep; one more is DS_ERR_ILLEGAL_STATE. */
DSDEF DS_MUST_USE ds_result ds_resource_push_stats(const ds_resource *resource);
/** What was counted since the matching push (out may be NULL), which is now part of what was
    counted before. DS_ERR_ILLEGAL_STATE when there was none. */
DSDEF DS_MUST_USE ds_result ds_resource_pop_stats(const ds_resource *resource,
                                                  ds_resource_stats *out);

/** Ends a resource, which is zeroed; of its copies each call says that it is gone.
    DS_ERR_ILLEGAL_STATE while something of it is allocated (by a pool, too) or an adaptor stands
    upon it. A resource of the program's own is only zeroed. */
DSDEF DS_MUST_USE ds_result ds_resource_destroy(ds_resource *resource);

#endif
