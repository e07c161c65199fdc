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

/** Parameters of ds_mem_history_start; zero means default. */
typedef struct ds_mem_history_desc {
    size_t entries;       /**< number of newest entries kept per device; 0: 65,536 */
    unsigned skip;        /**< DS_HISTORY_SKIP(action) of actions not to record */
    uint64_t reserved[4]; /**< 0 */
} ds_mem_history_desc;

/** Actions in the history; snapshots use torch's names. */
typedef enum ds_mem_action {
    DS_ACTION_ALLOC = 0,      /**< a block was allocated */
    DS_ACTION_FREE_REQUESTED, /**< the program freed a block */
    DS_ACTION_FREE_COMPLETED, /**< the memory of a freed block can be reused */
    DS_ACTION_SEGMENT_ALLOC,  /**< memory was allocated from the driver */
    DS_ACTION_SEGMENT_FREE,   /**< memory was freed to the driver */
    DS_ACTION_SEGMENT_MAP,    /**< pages were added to a growing segment */
    DS_ACTION_SEGMENT_UNMAP,  /**< pages were removed from a growing segment */
    DS_ACTION_SNAPSHOT,       /**< a snapshot was taken */
    DS_ACTION_OOM,            /**< an allocation failed */
    DS_ACTION_ANNOTATION      /**< ds_mem_annotate */
} ds_mem_action;

/** Mask for ds_mem_history_desc.skip; combine masks by |. */
#define DS_HISTORY_SKIP(action) (1u << (action))
/** Starts to record the history of all devices, with file, line and label. Discards the old
    history. Labels are not copied: labels of recorded blocks must stay valid until the next
    start. */
DSDEF DS_MUST_USE ds_result ds_mem_history_start(const ds_mem_history_desc *desc);
/** Stops recording. The history remains for snapshots until the next start. */
DSDEF DS_MUST_USE ds_result ds_mem_history_stop(void);
/** Adds a text (copied, at most 255 bytes) to the history of a device. Does nothing without history
    and observer. */
DSDEF DS_MUST_USE ds_result ds_mem_annotate(ds_device device, const char *text);

/** One entry of the history. */
typedef struct ds_mem_event {
    ds_mem_action action; /**< action */
    /** address of the block or segment; DS_ACTION_OOM: free bytes of the device */
    uint64_t address;
    uint64_t bytes;    /**< requested bytes of a block; size of a segment */
    uint64_t stream;   /**< ds_stream_get_id of the stream */
    uint64_t time_ns;  /**< time of the monotonic clock */
    ds_site site;      /**< call site; for a free, the site of the allocation */
    const char *label; /**< label of the block, or the annotation */
    ds_pool pool;      /**< 0: the default pool */
} ds_mem_event;

/** Observes every entry, also without recorded history. Runs under the allocator's locks and must
    not call devstream. */
typedef void (*ds_mem_event_fn)(ds_device device, const ds_mem_event *event, void *user);
/** Adds an observer, invoked for the entries of all devices. */
DSDEF DS_MUST_USE ds_result ds_mem_add_event_callback(ds_mem_event_fn fn, void *user);
/** Removes an observer. */
DSDEF DS_MUST_USE ds_result ds_mem_remove_event_callback(ds_mem_event_fn fn, void *user);

/** Formats of a snapshot. */
typedef enum ds_mem_format {
    DS_SNAPSHOT_PICKLE = 0, /**< format of pytorch.org/memory_viz and torch's tools */
    DS_SNAPSHOT_JSON = 1,   /**< the same data as JSON; docs/memory.md has the schema */
    /** one page with a drawing; opens in a browser without a network */
    DS_SNAPSHOT_HTML = 2
} ds_mem_format;

enum { DS_SNAPSHOT_NO_HISTORY = 1 /**< only segments and blocks */ };

/** Writes segments, blocks and history of all devices by calls of write_fn. pool.id not 0: of one
    pool. May be called on any thread at any time, also during a capture. Allocations on a device
    wait while its data is copied, but not while the data is written. */
DSDEF DS_MUST_USE ds_result ds_mem_write_snapshot(ds_mem_format format, unsigned flags,
                                                  ds_pool pool, ds_write_fn write_fn, void *user);
/** Writes a snapshot of all devices to a file and replaces an existing file. DS_ERR_SYSTEM: the
    file cannot be written. */
DSDEF DS_MUST_USE ds_result ds_mem_write_snapshot_file(ds_mem_format format, unsigned flags,
                                                       const char *path);
/** Invokes fn for every block of a device, live or not, in the order of addresses. DS_DEVICE_HOST:
    blocks of pinned memory. fn runs under the allocator's locks and must not call devstream. */
DSDEF DS_MUST_USE ds_result ds_mem_for_each_block(ds_device device, ds_mem_block_fn fn, void *user);

#endif
