/* api/init.h - initialisation, shutdown and log.

   Declares the configuration (ds_init_desc) with its log function and allocator, ds_init,
   ds_shutdown, and the sync debug mode.

   Threads: ds_init and ds_shutdown must not run concurrently with other calls. The log function
   is invoked on any thread and must not call devstream. */
#ifndef DS__API_INIT_H
#define DS__API_INIT_H

#include "result.h"

/* ---- initialisation -------------------------------------------------------------------------- */

/** Levels of log items. */
typedef enum ds_log_level {
    DS_LOG_SILENT = 0, /**< nothing */
    DS_LOG_ERROR = 1,  /**< calls that fail, with their sentence */
    /** what was not destroyed or freed at shutdown, waits of the host in the sync debug mode,
        damage that the allocator finds */
    DS_LOG_WARNING = 2,
    DS_LOG_INFO = 3, /**< so far nothing more */
    DS_LOG_DEBUG = 4 /**< so far nothing more */
} ds_log_level;

/** What a log callback gets; the strings live until it returns. */
typedef struct ds_log_item {
    ds_log_level level; /**< severity */
    int id;             /**< a ds_result, or 0 */
    const char *text;   /**< one sentence */
    const char *file;   /**< the caller's file, or NULL */
    int line;           /**< the caller's line, or 0 */
} ds_log_item;

/** Receives log items, on whichever thread they arise; must not call devstream. */
typedef void (*ds_log_fn)(const ds_log_item *item, void *user);

/** Where devstream takes its own bookkeeping memory from (not device memory). Both or neither
    must be set. Topologies outlive ds_shutdown: they and their plans return their memory to the
    allocator that they were made with, so it must stay valid until ds_topology_destroy. */
typedef struct ds_allocator {
    /** NULL means malloc; returns NULL when out of memory */
    void *(*alloc_fn)(size_t size, void *user);
    void (*free_fn)(void *ptr, void *user); /**< NULL means free */
    void *user;                             /**< handed to both */
} ds_allocator;

struct ds_cpu_desc; /* of the CPU driver, below */

enum {
    /** ds_stream_get_default() is the per-thread stream instead of the legacy one */
    DS_INIT_PER_THREAD_DEFAULT_STREAM = 1
};

/** What ds_init takes; zero means default. */
typedef struct ds_init_desc {
    const struct ds_cpu_desc *cpu; /**< options of the CPU driver, or NULL */
    /** comma-separated names of layers ("fault"), in any order; NULL: DEVSTREAM_LAYERS */
    const char *layers;
    /** what the fault layer does: "entry:n" fails the n-th call of a driver entry ("*:n" of
        any); NULL: DEVSTREAM_FAULT */
    const char *fault;
    /** NULL: items go to standard error when DEVSTREAM_LOG asks for them */
    ds_log_fn log_fn;
    void *log_user; /**< handed to log_fn */
    /** with log_fn: the highest level wanted; 0: warnings and errors */
    ds_log_level log_level;
    ds_allocator allocator; /**< for devstream's own bookkeeping */
    unsigned flags;         /**< DS_INIT_* */
    uint64_t reserved[8];   /**< 0 */
} ds_init_desc;

/** The version of the library that runs, as DEVSTREAM_VERSION, which is that of the headers.
    Starts nothing. Callable anywhere. */
DSDEF int ds_version_get(void);

/** Configures devstream before its first use. Not needed: everything initialises itself at the
    first call. Nothing is started here. DS_ERR_ILLEGAL_STATE when devstream is in use already;
    DS_ERR_INVALID_VALUE for an unknown layer. */
DSDEF DS_MUST_USE ds_result ds_init(const ds_init_desc *desc);

/** Waits for all work (blocks), reports every object that was not destroyed by label through the
    log (level warning), ends the threads and frees everything. A capture that is still open, of
    any thread, is reported in the same way and ended. All handles become invalid; the next call
    starts afresh. Does nothing when devstream is not in use. No other thread may be
    inside of devstream. At process exit it is not needed: then nothing is drained or joined. A
    shared object that holds devstream must call it before dlclose. A positive result never
    occurs; DS_ERR_FAILED reports that a device had failed (everything is freed all the same). */
DSDEF DS_MUST_USE ds_result ds_shutdown(void);

/** What happens when a call is about to make the host wait for work of a device. */
typedef enum ds_sync_debug_mode {
    DS_SYNC_DEBUG_DEFAULT = 0, /**< it waits */
    DS_SYNC_DEBUG_WARN = 1,    /**< and a warning names it and its place in the program */
    DS_SYNC_DEBUG_ERROR = 2    /**< it does nothing and returns DS_ERR_WOULD_SYNCHRONIZE */
} ds_sync_debug_mode;

/** Sets the sync debug mode of the process, until ds_shutdown: with it the waits of a program
    are found that keep its devices from being busy. It is about ds_stream_synchronize,
    ds_event_synchronize and their timed forms (unless the time is 0), copies and fills of
    pageable memory, ds_device_free, ds_pinned_free, ds_pinned_unregister, ds_mem_empty_cache,
    ds_mem_trim, ds_pool_empty_cache and collectives with tensors in pageable memory, and counts
    what may wait, whether or not there is anything to wait for just now. As in torch,
    ds_device_synchronize is left alone, which nobody calls by mistake, and so are ds_device_reset
    and ds_shutdown; what devstream waits for by itself, as an allocation may when memory is short,
    is too, and so is what a capturing stream takes as a node. A warning is a log item with id
    DS_ERR_WOULD_SYNCHRONIZE; without a log_fn it goes to standard error, whatever DEVSTREAM_LOG
    says. DS_ERR_INVALID_VALUE: not a mode. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_set_mode(ds_sync_debug_mode mode);
/** The same by torch's words, "default", "warn" or "error" (or "0", "1", "2"), as in the
    environment variable DEVSTREAM_SYNC_DEBUG. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_set_mode_text(const char *text);
/** The mode in effect, for all threads. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_get_mode(ds_sync_debug_mode *out);

#endif
