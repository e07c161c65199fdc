/* api/mem_debug.h - consistency check of the allocator.

   Declares ds_mem_validate, which checks the allocator's structures and statistics. */
#ifndef DS__API_MEM_DEBUG_H
#define DS__API_MEM_DEBUG_H

#include "device.h"

/* ---- debugging ------------------------------------------------------------------------------- */

/** Checks all structures of a device's allocator (DS_DEVICE_HOST: of pinned memory). Also checks
    its statistics, pool statistics and limit counters against the sums over its blocks.
    DS_ERR_ILLEGAL_STATE: a structure is damaged; the error names it. */
DSDEF DS_MUST_USE ds_result ds_mem_validate(ds_device device);

#endif
