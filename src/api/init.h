/* api/init.h - initialisation, shutdown and log.

   Declares the configuration (ds_init_desc) with its log function and allocator, ds_init,
   ds_shutdown, and the sync debug mode.

   Threads: ds_init and ds_shutdown must not run concurrently with other calls. The log function is
   invoked on any thread and must not call devstream. */
#ifndef DS__API_INIT_H
#define DS__API_INIT_H

#include "result.h"

/* ---- initialisation -------------------------------------------------------------------------- */

/** Levels of log items. */
typedef enum ds_log_level {
    DS_LOG_SILENT = 0, /**< no items */
    DS_LOG_ERROR = 1,  /**< failed calls, with their sentence */
    /** objects left at shutdown, host waits in the sync debug mode, damage found by the
        allocator */
    DS_LOG_WARNING = 2
} ds_log_level;

/** Argument of a log callback. The strings are valid until the callback returns. */
typedef struct ds_log_item {
    ds_log_level level; /**< severity */
    int id;             /**< a ds_result, or 0 */
    const char *text;   /**< one sentence */
    const char *file;   /**< the caller's file, or NULL */
    int line;           /**< the caller's line, or 0 */
} ds_log_item;

/** Receives log items on the thread that causes them. Must not call devstream. */
typedef void (*ds_log_fn)(const ds_log_item *item, void *user);

/** Functions for devstream's own host bookkeeping memory (not device memory). Either both functions
    or neither must be set. Topologies and plans outlive ds_shutdown and free their memory through
    the allocator of their creation. The allocator must stay valid until ds_topology_destroy. */
typedef struct ds_allocator {
    /** allocates; returns NULL if out of memory; NULL means malloc */
    void *(*alloc_fn)(size_t size, void *user);
    void (*free_fn)(void *ptr, void *user); /**< frees; NULL means free */
    void *user;                             /**< passed to both */
} ds_allocator;

struct ds_cpu_desc; /* CPU driver options, see api/cpu.h */

enum {
    /** ds_stream_get_default() returns the per-thread stream instead of the legacy stream */
    DS_INIT_PER_THREAD_DEFAULT_STREAM = 1,
    /** no CUDA device is looked for, and cudart is neither loaded nor called
        [DEVSTREAM_NO_CUDA=1] */
    DS_INIT_NO_CUDA = 2
};

/** Parameters of ds_init; zero means default. */
typedef struct ds_init_desc {
    const struct ds_cpu_desc *cpu; /**< options of the CPU driver, or NULL */
    /** comma-separated names of layers ("fault"), in any order; NULL: DEVSTREAM_LAYERS */
    const char *layers;
    /** rules of the fault layer, which must be in `layers`: "entry:n" fails the n-th call of a
        driver entry, "*:n" the n-th call of any; NULL: DEVSTREAM_FAULT */
    const char *fault;
    /** log callback; NULL: items go to standard error if DEVSTREAM_LOG is set */
    ds_log_fn log_fn;
    void *log_user; /**< passed to log_fn */
    /** highest level passed to log_fn; 0: warnings and errors. Other values than those of
        ds_log_level are refused */
    ds_log_level log_level;
    ds_allocator allocator; /**< for devstream's own bookkeeping */
    unsigned flags;         /**< DS_INIT_* */
    /** default device of the process as text ("cpu:1"), see ds_device_set_default; NULL:
        DEVSTREAM_DEVICE, else cuda:0 if there is one, else cpu:0 */
    const char *device;
    /** options of the check layer (devstream_check.h), which it turns on; NULL: DEVSTREAM_CHECK */
    const char *check;
    /** options of the trace layer (devstream_trace.h), which it turns on; NULL: DEVSTREAM_TRACE */
    const char *trace;
    uint64_t reserved[5]; /**< 0 */
} ds_init_desc;

/** Returns the version of the library in the format of DEVSTREAM_VERSION (the version of the
    headers). Does not initialise devstream. Callable anywhere. */
DSDEF int ds_version_get(void);

/** Configures devstream before its first use. Optional: the first call initialises devstream with
    the defaults. Starts no driver or thread. Errors: DS_ERR_ILLEGAL_STATE if devstream is already
    initialised, DS_ERR_INVALID_VALUE for an unknown layer, or a fault rule without its layer. */
DSDEF DS_MUST_USE ds_result ds_init(const ds_init_desc *desc);

/** Waits for all work (blocks), ends the threads and frees everything. Logs a warning with the
    label of each object that was not destroyed. Also logs and ends the open captures of all
    threads. Invalidates all handles; the next call initialises devstream again. Does nothing if
    devstream is not initialised. No other thread may be inside a devstream call.

    A process may exit without this call: the exit then does not wait for pending work and joins no
    threads. A shared object that contains devstream must call ds_shutdown before dlclose. Returns 0
    or an error, never a positive result. DS_ERR_FAILED: a device had failed; everything is freed
    nevertheless. */
DSDEF DS_MUST_USE ds_result ds_shutdown(void);

/** Waits for all work (blocks) and prepares the process for a checkpoint, for example by
    cuda-checkpoint and CRIU. Afterwards no operation, host function or destructor is pending on any
    device, and kernels and blocks that waited for their last use are freed; CUDA may run the
    destructors of a graph a moment later, on a thread of its own. Handles, pointers and caches stay
    valid; ds_mem_empty_cache before it makes the checkpoint smaller. The process may go on without
    a checkpoint. docs/cuda.md ("Checkpoints") has the steps.

    No other thread may be inside a devstream call. Makes no context on a device that is not in use.
    Does not count as a wait for ds_sync_debug_mode. Errors: DS_ERR_CAPTURE_UNSUPPORTED: a capture
    is open; it stays valid if devstream began it. DS_ERR_ILLEGAL_STATE: memory is open in another
    process, or memory or events of another process are open in this one. Whether another process
    has an event of this one open cannot be told. DS_ERR_FAILED: a device has failed.
    DS_ERR_NOT_PERMITTED: in a host function. After an error, work may have been waited for. */
DSDEF DS_MUST_USE ds_result ds_quiesce(void);

/** Behaviour of calls that would make the host wait for work of a device. */
typedef enum ds_sync_debug_mode {
    DS_SYNC_DEBUG_DEFAULT = 0, /**< the call waits */
    DS_SYNC_DEBUG_WARN = 1,    /**< the call waits; a warning names the call and its call site */
    DS_SYNC_DEBUG_ERROR = 2    /**< the call does nothing and returns DS_ERR_WOULD_SYNCHRONIZE */
} ds_sync_debug_mode;

/** Sets the sync debug mode of the process until ds_shutdown. The mode finds host waits that keep
    devices idle.

    Applies to calls that may wait, even if no work is pending:
    - ds_stream_synchronize, ds_event_synchronize and their timed forms with a time above 0
    - ds_copy_sync, ds_fill_sync
    - copies and fills of pageable memory, and collectives with tensors in pageable memory
    - ds_device_free, ds_pinned_free, ds_pinned_unregister
    - ds_mem_empty_cache, ds_mem_trim, ds_pool_empty_cache

    Does not apply to ds_device_synchronize (as in torch), ds_device_reset, ds_quiesce and
    ds_shutdown. Nor does
    it apply to internal waits (an allocation if memory is short) or to calls captured as graph
    nodes. A warning is a log item with id DS_ERR_WOULD_SYNCHRONIZE. Without a log_fn it goes to
    standard error, regardless of DEVSTREAM_LOG. DS_ERR_INVALID_VALUE: unknown mode. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_set_mode(ds_sync_debug_mode mode);
/** Sets the sync debug mode by torch's words: "default", "warn", "error", or "0", "1", "2". The
    environment variable DEVSTREAM_SYNC_DEBUG accepts the same words. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_set_mode_text(const char *text);
/** Returns the sync debug mode of the process. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_get_mode(ds_sync_debug_mode *out);

#endif
