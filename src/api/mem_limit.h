/* api/mem_limit.h - memory limits and shortage callbacks.

   Declares limits of reserved memory, callbacks for a shortage and for a failed allocation, and
   the report of the last failed allocation.

   Threads: callbacks run on the allocating thread. The report belongs to the calling thread. */
#ifndef DS__API_MEM_LIMIT_H
#define DS__API_MEM_LIMIT_H

#include "device.h"

/* ---- limits and shortage --------------------------------------------------------------------- */

/** Limits what the allocator reserves on a device, beside ds_mem_set_fraction: the smaller
    counts. 0: no limit, and no fraction either. */
DSDEF DS_MUST_USE ds_result ds_mem_set_limit(ds_device device, size_t bytes);
/** The limit in bytes that counts; 0: none. */
DSDEF DS_MUST_USE ds_result ds_mem_get_limit(ds_device device, size_t *out);
/** torch.cuda.set_per_process_memory_fraction: 0 to 1 of the device's memory; 1: no limit but
    that of ds_mem_set_limit. */
DSDEF DS_MUST_USE ds_result ds_mem_set_fraction(ds_device device, double fraction);
/** What was set; 1 when nothing was. */
DSDEF DS_MUST_USE ds_result ds_mem_get_fraction(ds_device device, double *out);

/** Called when an allocation finds no memory, after everything else and before it fails; frees
    some (it may call ds_mem_free, not ds_mem_alloc) and returns 1 when it did. On the allocating
    thread, without locks. */
typedef int (*ds_mem_shortage_fn)(ds_device device, size_t size, void *user);
/** Adds a callback, for all devices and threads; they are called in the order in which they were
    added. */
DSDEF DS_MUST_USE ds_result ds_mem_add_shortage_callback(ds_mem_shortage_fn fn, void *user);
/** Removes it again; another thread may still be in a call of it that began before.
    DS_ERR_INVALID_VALUE: it was not added with this `user`. */
DSDEF DS_MUST_USE ds_result ds_mem_remove_shortage_callback(ds_mem_shortage_fn fn, void *user);
/** An allocation has failed for lack of memory: how much it needed, the limit or the device's
    memory, what of that is free. */
typedef void (*ds_mem_oom_fn)(ds_device device, size_t needed, size_t total, size_t free,
                              void *user);
/** Adds an observer, called before the allocation returns its error; must not call devstream. */
DSDEF DS_MUST_USE ds_result ds_mem_add_oom_callback(ds_mem_oom_fn fn, void *user);
/** Removes it again, as ds_mem_remove_shortage_callback. DS_ERR_INVALID_VALUE: it was not added
    with this `user`. */
DSDEF DS_MUST_USE ds_result ds_mem_remove_oom_callback(ds_mem_oom_fn fn, void *user);
/** The whole report of the thread's last out-of-memory error, which ds_error_get_last() has in
    short: sums, largest free block, fragmentation, the ten biggest owners, a hint. "" when there
    was none. Valid until the thread's next. */
DSDEF const char *ds_mem_get_last_report(void);

#endif
