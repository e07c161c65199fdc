/* devstream_alloc.h - a caching allocator for device and pinned memory.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_alloc.h"
   in exactly one C file, and #include "devstream_alloc.h" in all other files that use it. Put
   devstream.h beside it, and link as described in devstream.h.

   Allocation is ordered on a stream. Work that is enqueued on the stream after the allocation may
   use the memory. Later allocations of the same stream may reuse freed memory at once, without
   waiting.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream_alloc.h"
       #include <stdio.h>
       int main(void) {
           ds_stream s;
           void *p;
           if (ds_stream_create(NULL, &s) < 0 || ds_mem_alloc(1 << 20, s, &p) < 0 ||
               ds_fill(p, 0, 1, 1 << 20, s) < 0 || ds_mem_free(p) < 0) {
               fprintf(stderr, "%s\n", ds_error_get_last());
               return 1;
           }
           printf("%zu bytes are cached\n", ds_mem_get_reserved(ds_device_current()));
           return ds_shutdown() < 0;
       }

   Environment, read once at the first call: DEVSTREAM_ALLOC_CONF, "option:value,option:value" in
   the grammar of PYTORCH_CUDA_ALLOC_CONF (ds_mem_configure_text lists the options).

   Contents: configuration; allocation; pools; limits and shortage; statistics; history and
   snapshots; pinned host memory; resources; sharing between processes; debugging; implementation.

   Rules beyond devstream.h's:
   - Any thread may free a block, at any place in the stream's program order. The call never waits.
   - If other streams use a block, record each use by ds_mem_record_use. The block is reused after
     these streams have passed their last use.
   - During a capture, memory comes from a pool that belongs to the graph (ds_pool_desc,
     ds_capture_set_pool).
   - Host functions and callbacks may only call functions marked "Callable anywhere". */
#include "devstream.h"

#ifndef DEVSTREAM_ALLOC_H_INCLUDED
#define DEVSTREAM_ALLOC_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

#include "api/mem_config.h"
#include "api/mem.h"
#include "api/pool.h"
#include "api/mem_limit.h"
#include "api/mem_stats.h"
#include "api/snapshot.h"
#include "api/pinned.h"
#include "api/resource.h"
#include "api/share.h"
#include "api/mem_debug.h"

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifndef DEVSTREAM_NO_SITES
#include "api/devstream_alloc_sites.gen.h"
#endif

#endif /* DEVSTREAM_ALLOC_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_ALLOC_H_IMPLEMENTED)
#define DEVSTREAM_ALLOC_H_IMPLEMENTED
#ifndef __cplusplus

#include "alloc/internal.h"
#include "alloc/types.h"
#include "alloc/config.h"
#include "alloc/config_token.h"
#include "alloc/config_text.h"
#include "alloc/state.h"
#include "alloc/util.h"
#include "alloc/history_state.h"
#include "alloc/history_ring.h"
#include "alloc/counters.h"
#include "alloc/address.h"
#include "alloc/bins.h"
#include "alloc/block.h"
#include "alloc/locks.h"
#include "alloc/pool.h"
#include "alloc/stream_use.h"
#include "alloc/arena.h"
#include "alloc/callbacks.h"
#include "alloc/poison.h"
#include "alloc/pending.h"
#include "alloc/capture_pool.h"
#include "alloc/pinned.h"
#include "alloc/pinned_source.h"
#include "alloc/validate.h"
#include "alloc/ipc_types.h"
#include "alloc/ipc_lease.h"
#include "alloc/ipc_records.h"
#include "alloc/ipc_collect.h"
#include "alloc/segment.h"
#include "alloc/stats_sum.h"
#include "alloc/resource.h"
#include "alloc/upstream.h"
#include "alloc/segment_plain.h"
#include "alloc/segment_grow.h"
#include "alloc/direct_free.h"
#include "alloc/trim.h"
#include "alloc/request.h"
#include "alloc/reuse.h"
#include "alloc/align.h"
#include "alloc/watched.h"
#include "alloc/oom_owners.h"
#include "alloc/oom_walk.h"
#include "alloc/oom_hint.h"
#include "alloc/oom_report.h"
#include "alloc/free.h"
#include "alloc/fallback.h"
#include "alloc/direct_alloc.h"
#include "alloc/allocate.h"
#include "alloc/record_use.h"
#include "alloc/api_block.h"
#include "alloc/api_config.h"
#include "alloc/api_pool.h"
#include "alloc/checkpoint.h"
#include "alloc/stats.h"
#include "alloc/report_names.h"
#include "alloc/report_table.h"
#include "alloc/ipc_sharers.h"
#include "alloc/report_processes.h"
#include "alloc/history.h"
#include "alloc/observer.h"
#include "alloc/snapshot_types.h"
#include "alloc/snapshot_collect.h"
#include "alloc/snapshot_format.h"
#include "alloc/snapshot_write.h"
#include "alloc/snapshot_page_data.h"
#include "alloc/snapshot_page.gen.h"
#include "alloc/snapshot.h"
#include "alloc/pinned_block.h"
#include "alloc/pinned_api.h"
#include "alloc/resource_kinds.h"
#include "alloc/resource_api.h"
#include "alloc/ipc_export.h"
#include "alloc/ipc_import.h"
#include "alloc/leaks.h"
#include "alloc/shutdown.h"

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* Licence: MIT or public domain, at your choice; see the end of devstream.h. */
