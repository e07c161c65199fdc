/* api/snapshot.h - history, snapshots and walks of allocated memory.

   Declares the allocator's history of events, observers of it, snapshots for torch's memory
   viewer or as a page, and the walk over all blocks.

   Threads: any. Observers and the functions of a walk run under the allocator's locks and must
   not call devstream. */
#ifndef DS__API_SNAPSHOT_H
#define DS__API_SNAPSHOT_H

#include "graph.h"
#include "mem.h"

/* ---- history and snapshots ------------------------------------------------------------------- */

/** What ds_mem_history_start takes; zero means default. */
typedef struct ds_mem_history_desc {
    size_t entries;       /**< the newest that are kept, per device; 0: 65,536 */
    unsigned skip;        /**< DS_HISTORY_SKIP(action) of what is not recorded */
    uint64_t reserved[4]; /**< 0 */
} ds_mem_history_desc;

/** Actions in the history; torch's names in snapshots. */
typedef enum ds_mem_action {
    DS_ACTION_ALLOC = 0,      /**< a block was allocated */
    DS_ACTION_FREE_REQUESTED, /**< it was freed by the program */
    DS_ACTION_FREE_COMPLETED, /**< its memory can be used again */
    DS_ACTION_SEGMENT_ALLOC,  /**< memory was taken from the driver */
    DS_ACTION_SEGMENT_FREE,   /**< and given back */
    DS_ACTION_SEGMENT_MAP,    /**< pages were added to a growing segment */
    DS_ACTION_SEGMENT_UNMAP,  /**< and taken away */
    DS_ACTION_SNAPSHOT,       /**< a snapshot was taken */
    DS_ACTION_OOM,            /**< an allocation failed */
    DS_ACTION_ANNOTATION      /**< ds_mem_annotate */
} ds_mem_action;

/** For ds_mem_history_desc.skip; several are put together by |. */
#define DS_HISTORY_SKIP(action) (1u << (action))
/** Records what happens from now on, on all devices, with file, line and label. Clears what was
    recorded. Labels are not copied: those of recorded blocks must stay until the next start. */
DSDEF DS_MUST_USE ds_result ds_mem_history_start(const ds_mem_history_desc *desc);
/** Stops; what was recorded stays for snapshots until the next start. */
DSDEF DS_MUST_USE ds_result ds_mem_history_stop(void);
/** Puts a text (copied, up to 255 bytes) into the history of a device; does nothing where
    neither history nor an observer wants it. */
DSDEF DS_MUST_USE ds_result ds_mem_annotate(ds_device device, const char *text);

/** One entry of the history. */
typedef struct ds_mem_event {
    ds_mem_action action; /**< what */
    uint64_t address;     /**< of the block or segment; out of memory: free bytes of the device */
    uint64_t bytes;       /**< requested bytes of a block; else size */
    uint64_t stream;      /**< ds_stream_get_id */
    uint64_t time_ns;     /**< of the monotonic clock */
    ds_site site;         /**< of the call; of a free that of the allocation */
    const char *label;    /**< of the block, or the annotation */
    ds_pool pool;         /**< 0: the default one */
} ds_mem_event;

/** Called with every entry as it arises, whether history is recorded or not; under the
    allocator's locks: must not call devstream. */
typedef void (*ds_mem_event_fn)(ds_device device, const ds_mem_event *event, void *user);
/** Adds an observer. */
DSDEF DS_MUST_USE ds_result ds_mem_add_event_callback(ds_mem_event_fn fn, void *user);
/** Removes it again. */
DSDEF DS_MUST_USE ds_result ds_mem_remove_event_callback(ds_mem_event_fn fn, void *user);

/** Forms of a snapshot. */
typedef enum ds_mem_format {
    DS_SNAPSHOT_PICKLE = 0, /**< what pytorch.org/memory_viz and torch's tools read */
    DS_SNAPSHOT_JSON = 1,   /**< the same as JSON; docs/memory.md has the schema */
    /** one page with the picture, that opens in a browser without a network */
    DS_SNAPSHOT_HTML = 2
} ds_mem_format;

enum { DS_SNAPSHOT_NO_HISTORY = 1 /**< only segments and blocks */ };

/** Writes segments, blocks and history of all devices (or of one pool: pool.id not 0), by calls
    of write_fn. At any time, on any thread, also while streams capture: allocations on a device
    wait while its part is copied, not while it is written. */
DSDEF DS_MUST_USE ds_result ds_mem_write_snapshot(ds_mem_format format, unsigned flags,
                                                  ds_pool pool, ds_write_fn write_fn, void *user);
/** The same of all devices into a file, which it replaces. DS_ERR_SYSTEM: it cannot be written. */
DSDEF DS_MUST_USE ds_result ds_mem_write_snapshot_file(ds_mem_format format, unsigned flags,
                                                       const char *path);
/** Calls fn with every block of a device, live or not, in the order of addresses;
    DS_DEVICE_HOST: of pinned memory. Under the allocator's locks: fn must not call devstream. */
DSDEF DS_MUST_USE ds_result ds_mem_for_each_block(ds_device device, ds_mem_block_fn fn, void *user);

#endif
