/* api/range.h - ranges, marks and labels for timelines.

   Declares marks, nested ranges and process-wide ranges, domains, the program's hook for them,
   and thread labels.

   Threads: any, also host functions and kernels. The hook is invoked on several threads at
   once. */
#ifndef DS__API_RANGE_H
#define DS__API_RANGE_H

#include "device.h"

/* ---- ranges ---------------------------------------------------------------------------------- */

/* What the program is doing, in words, for a timeline: marks, nested ranges of a thread, ranges
   from anywhere to anywhere. They go to NVIDIA's tools (NVTX) where those are compiled in and
   running, and to the program's own hook, on machines without a GPU too. All functions on ranges
   are callable anywhere, in host functions and kernels as well; they start no device, allocate
   nothing, take no lock and, with neither tool nor hook, do next to nothing. Their results may
   be ignored: a program runs on without its marks. */

/** Ranges of a library, apart from those of others; a zeroed one is the default domain. */
typedef struct ds_domain {
    uint64_t id; /**< index and generation; 0: the default domain */
} ds_domain;

/** A range that was started. Zeroed: none. */
typedef struct ds_range {
    uint64_t id; /**< index and generation; 0: none */
} ds_range;

/** Kinds of a payload: which member of the union counts. */
typedef enum ds_payload_kind {
    DS_PAYLOAD_NONE = 0, /**< none: there is no payload */
    DS_PAYLOAD_U64 = 1,  /**< u64 */
    DS_PAYLOAD_I64 = 2,  /**< i64 */
    DS_PAYLOAD_F64 = 3   /**< f64 */
} ds_payload_kind;

/** The number of a payload, by its kind. */
typedef union ds_payload_value {
    uint64_t u64; /**< DS_PAYLOAD_U64 */
    int64_t i64;  /**< DS_PAYLOAD_I64 */
    double f64;   /**< DS_PAYLOAD_F64 */
} ds_payload_value;

/** A number that a range carries: a size, a step, a loss. */
typedef struct ds_payload {
    ds_payload_kind kind;   /**< which one */
    ds_payload_value value; /**< the number */
} ds_payload;

/** What the functions with _with take; zero means default, but for the text. */
typedef struct ds_range_desc {
    const char *text;     /**< must not be NULL; whoever keeps it copies it */
    ds_domain domain;     /**< zeroed: the default domain */
    uint32_t color;       /**< 0xAARRGGBB; 0: the tool's choice */
    uint32_t category;    /**< a number of the program's by which tools can filter; 0: none */
    ds_payload payload;   /**< zeroed: none */
    uint64_t reserved[4]; /**< 0 */
} ds_range_desc;

/** Gives the domain of this name, of at most 63 characters, and makes it if there is none yet;
    at most 63 of them (DS_ERR_LIMIT_EXCEEDED). It ends with ds_shutdown, after which the handle
    is DS_ERR_INVALID_HANDLE. Takes a lock. Callable anywhere. */
DSDEF ds_result ds_domain_create(const char *name, ds_domain *out);
/** Marks this moment. DS_ERR_INVALID_VALUE: the text is NULL. Callable anywhere. */
DSDEF ds_result ds_range_mark(const char *text);
/** The same with everything that a mark may have. Callable anywhere. */
DSDEF ds_result ds_range_mark_with(const ds_range_desc *desc);
/** Begins a range of the calling thread, inside of those that it has begun and not ended. Gives
    its level, from 0, as nvtxRangePush does, or a negative ds_result. Callable anywhere. */
DSDEF int ds_range_push(const char *text); /* takes a call site */
/** The same with everything that a range may have. Each domain has levels of its own. Callable
    anywhere. */
DSDEF int ds_range_push_with(const ds_range_desc *desc); /* takes a call site */
/** Ends the thread's innermost range of the default domain and gives its level.
    DS_ERR_ILLEGAL_STATE without one. Callable anywhere. */
DSDEF int ds_range_pop(void); /* takes a call site */
/** The same in any domain. Callable anywhere. */
DSDEF int ds_range_pop_in(ds_domain domain); /* takes a call site */
/** Starts a range that any thread may end, and that nests with no other. At most 4,096 are open
    at a time (DS_ERR_LIMIT_EXCEEDED). Callable anywhere. */
DSDEF ds_result ds_range_start(const char *text, ds_range *out);
/** The same with everything that a range may have. Callable anywhere. */
DSDEF ds_result ds_range_start_with(const ds_range_desc *desc, ds_range *out);
/** Ends it. DS_ERR_INVALID_HANDLE: it has ended already, or was never started. Callable
    anywhere. */
DSDEF ds_result ds_range_end(ds_range range);

/** What a range event tells of. */
typedef enum ds_range_kind {
    DS_RANGE_MARK = 0,         /**< a mark */
    DS_RANGE_PUSH = 1,         /**< a nested range begins */
    DS_RANGE_POP = 2,          /**< the thread's innermost range of the domain ends */
    DS_RANGE_START = 3,        /**< a range starts */
    DS_RANGE_END = 4,          /**< and ends */
    DS_RANGE_STREAM_LABEL = 5, /**< a stream has a label: at its creation, or from now on */
    DS_RANGE_DEVICE_LABEL = 6, /**< a device has a label from now on */
    DS_RANGE_THREAD_LABEL = 7  /**< the calling thread has one */
} ds_range_kind;

/** What the hook gets. The strings live until it returns. */
typedef struct ds_range_event {
    ds_range_kind kind;      /**< what happens */
    int level;               /**< push, pop: the range's level in its thread and domain */
    ds_domain domain;        /**< zeroed: the default domain */
    const char *domain_name; /**< its name; "" for the default domain */
    const char *text;        /**< the text or label; NULL where a range ends */
    uint32_t color;          /**< as in ds_range_desc */
    uint32_t category;       /**< as in ds_range_desc */
    ds_payload payload;      /**< as in ds_range_desc */
    const char *file;        /**< the caller's file, or NULL */
    int line;                /**< the caller's line, or 0 */
    ds_device device;        /**< label of a stream or device: the device; else zeroed */
    /** start, end: the range's id; label of a stream: ds_stream_get_id; else 0 */
    uint64_t id;
    /** a number of the calling thread, from 1; no other thread of the process ever has it */
    uint64_t thread;
    uint64_t time_ns; /**< CLOCK_MONOTONIC */
} ds_range_event;

/** Receives range events, on whichever thread they happen, on several at once. Must not call
    devstream, but for functions on ranges, of which the hook is not told then. */
typedef void (*ds_range_fn)(const ds_range_event *event, void *user);
/** Sets the hook, which takes the place of the one before; fn NULL: none. When this returns, no
    thread is inside of the former one, so it must not be called with a lock held that the hook
    takes. What was labelled before is not told. Starts no device. Stays over ds_shutdown. */
DSDEF DS_MUST_USE ds_result ds_range_set_hook(ds_range_fn fn, void *user);

/** Labels the calling thread in tools and timelines. DS_ERR_INVALID_VALUE: the text is NULL.
    Callable anywhere. */
DSDEF ds_result ds_thread_set_label(const char *label);

/** State of DS_RANGE_SCOPE. */
typedef struct ds_range_scope {
    ds_domain domain; /**< where it was pushed */
    int pushed;       /**< 1: to be popped */
    int once;         /**< 1: the block is still to run */
} ds_range_scope;

/** Enters a scope; used by DS_RANGE_SCOPE. */
DSDEF ds_range_scope ds_range_scope_enter(const char *text);
/** Enters a scope; used by DS_RANGE_SCOPE_WITH. */
DSDEF ds_range_scope ds_range_scope_enter_with(const ds_range_desc *desc);
/** Leaves it; used by DS_RANGE_SCOPE. */
DSDEF void ds_range_scope_leave(ds_range_scope *scope);

#endif
