/* api/mem_limit.h - memory limits and shortage callbacks.

   Declares limits of reserved memory, callbacks for a shortage and for a failed allocation, and the
   report of the last failed allocation.

   Threads: callbacks run on the allocating thread. The report belongs to the calling thread. */
#ifndef DS__API_MEM_LIMIT_H
#define DS__API_MEM_LIMIT_H

#include "device.h"

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

#endif
