/* api/mem_debug.h - consistency check of the allocator.

   Declares ds_mem_validate, which checks the allocator's structures and statistics. */
#ifndef DS__API_MEM_DEBUG_H
#define DS__API_MEM_DEBUG_H

#include "device.h"

/* ---- debugging ------------------------------------------------------------------------------- */

/** Checks all structures of the allocator of a device (DS_DEVICE_HOST: of pinned memory), and
    that its statistics, those of its pools and what limits go by are the sums of its blocks:
    DS_ERR_ILLEGAL_STATE and a sentence when one is damaged. */
DSDEF DS_MUST_USE ds_result ds_mem_validate(ds_device device);

#endif
