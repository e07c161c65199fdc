/* api/range.h - ranges, marks and labels for timelines.

   Declares marks, nested ranges, process-wide ranges and domains. Also declares thread labels, and
   a hook that receives all of them.

   Threads: any, also host functions and kernels. The hook is invoked concurrently on several
   threads. */
#ifndef DS__API_RANGE_H
#define DS__API_RANGE_H

#include "device.h"

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Ranges annotate a timeline: marks, nested ranges of a thread, and ranges between any two places.
   They are sent to NVIDIA's tools (NVTX) if compiled in and running, and to the program's hook,
   also without a GPU. All range functions are callable anywhere, also in host functions and
   kernels. They start no device, allocate no memory and take no lock. Without a tool and a hook,
   their cost is negligible. Their results may be ignored. */

/** A domain: a library's ranges, separate from others. A zeroed handle names the default domain. */
typedef struct ds_domain {
    uint64_t id; /**< index and generation; 0: the default domain */
} ds_domain;

/** A range that was started. A zeroed handle names no range. */
typedef struct ds_range {
    uint64_t id; /**< index and generation; 0: none */
} ds_range;

/** Kinds of a payload, which select the member of the union. */
typedef enum ds_payload_kind {
    DS_PAYLOAD_NONE = 0, /**< no payload */
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

/** A number attached to a range: a size, a step, a loss. */
typedef struct ds_payload {
    ds_payload_kind kind;   /**< selects the member of value */
    ds_payload_value value; /**< the number */
} ds_payload;

/** Parameters of the functions with _with; zero means default, except for the text. */
typedef struct ds_range_desc {
    const char *text;     /**< must not be NULL; tools and the hook must copy it */
    ds_domain domain;     /**< zeroed: the default domain */
    uint32_t color;       /**< 0xAARRGGBB; 0: chosen by the tool */
    uint32_t category;    /**< number by which tools can filter; 0: none */
    ds_payload payload;   /**< zeroed: none */
    uint64_t reserved[4]; /**< 0 */
} ds_range_desc;

/** Returns the domain of a name (at most 63 characters), and creates it if necessary. ds_shutdown
    destroys it: the handle then is DS_ERR_INVALID_HANDLE. Takes a lock. DS_ERR_LIMIT_EXCEEDED: 63
    domains exist. Callable anywhere. */
DSDEF ds_result ds_domain_create(const char *name, ds_domain *out);
/** Marks the present moment. DS_ERR_INVALID_VALUE: the text is NULL. Callable anywhere. */
DSDEF ds_result ds_range_mark(const char *text);
/** Marks the present moment, with further attributes. Callable anywhere. */
DSDEF ds_result ds_range_mark_with(const ds_range_desc *desc);
/** Begins a nested range of the calling thread. Returns its level, from 0, as nvtxRangePush does,
    or a negative ds_result. Callable anywhere. */
DSDEF int ds_range_push(const char *text); /* takes a call site */
/** Begins a nested range with further attributes. Each domain has its own levels. Callable
    anywhere. */
DSDEF int ds_range_push_with(const ds_range_desc *desc); /* takes a call site */
/** Ends the thread's innermost range of the default domain and returns its level.
    DS_ERR_ILLEGAL_STATE if no range is open. Callable anywhere. */
DSDEF int ds_range_pop(void); /* takes a call site */
/** Ends the thread's innermost range of a domain, as ds_range_pop does. Callable anywhere. */
DSDEF int ds_range_pop_in(ds_domain domain); /* takes a call site */
/** Starts a range that does not nest; any thread may end it. DS_ERR_LIMIT_EXCEEDED: 4,096 ranges
    are open. Callable anywhere. */
DSDEF ds_result ds_range_start(const char *text, ds_range *out);
/** Starts a range, as ds_range_start does, with further attributes. Callable anywhere. */
DSDEF ds_result ds_range_start_with(const ds_range_desc *desc, ds_range *out);
/** Ends a started range. DS_ERR_INVALID_HANDLE: the range has ended or was never started. Callable
    anywhere. */
DSDEF ds_result ds_range_end(ds_range range);

/** Kinds of a range event. */
typedef enum ds_range_kind {
    DS_RANGE_MARK = 0,         /**< a mark */
    DS_RANGE_PUSH = 1,         /**< a nested range begins */
    DS_RANGE_POP = 2,          /**< the thread's innermost range of the domain ends */
    DS_RANGE_START = 3,        /**< a range starts */
    DS_RANGE_END = 4,          /**< a started range ends */
    DS_RANGE_STREAM_LABEL = 5, /**< a stream was created with a label or gets another label */
    DS_RANGE_DEVICE_LABEL = 6, /**< a device gets a label */
    DS_RANGE_THREAD_LABEL = 7  /**< the calling thread gets a label */
} ds_range_kind;

/** Argument of the hook. The strings are valid until the hook returns. */
typedef struct ds_range_event {
    ds_range_kind kind;      /**< kind of the event */
    int level;               /**< push, pop: the range's level in its thread and domain */
    ds_domain domain;        /**< zeroed: the default domain */
    const char *domain_name; /**< its name; "" for the default domain */
    const char *text;        /**< text or label; NULL at the end of a range */
    uint32_t color;          /**< as in ds_range_desc */
    uint32_t category;       /**< as in ds_range_desc */
    ds_payload payload;      /**< as in ds_range_desc */
    const char *file;        /**< the caller's file, or NULL */
    int line;                /**< the caller's line, or 0 */
    ds_device device;        /**< label of a stream or device: the device; otherwise zeroed */
    /** start, end: the range's id; label of a stream: ds_stream_get_id; otherwise 0 */
    uint64_t id;
    /** number of the calling thread, from 1; unique in the process and never reused */
    uint64_t thread;
    uint64_t time_ns; /**< CLOCK_MONOTONIC */
} ds_range_event;

/** Receives range events on the threads that cause them, also concurrently. May
    call range functions, for which the hook is not invoked, and what user code may call. */
typedef void (*ds_range_fn)(const ds_range_event *event, void *user);
/** Sets the hook and replaces the former hook; fn NULL: no hook. Returns after all threads have
    left the former hook: call it without locks that the former hook takes. Earlier labels are not
    reported to the new hook. Starts no device. The hook remains set after ds_shutdown. */
DSDEF DS_MUST_USE ds_result ds_range_set_hook(ds_range_fn fn, void *user);

/** Sets the label of the calling thread in tools and timelines. DS_ERR_INVALID_VALUE: the text is
    NULL. Callable anywhere. */
DSDEF ds_result ds_thread_set_label(const char *label);

/** State of DS_RANGE_SCOPE. */
typedef struct ds_range_scope {
    ds_domain domain; /**< domain of the range */
    int pushed;       /**< 1: the range must be popped */
    int once;         /**< 1: the block has not run yet */
} ds_range_scope;

/** Enters a range scope; used by DS_RANGE_SCOPE. */
DSDEF ds_range_scope ds_range_scope_enter(const char *text);
/** Enters a range scope; used by DS_RANGE_SCOPE_WITH. */
DSDEF ds_range_scope ds_range_scope_enter_with(const ds_range_desc *desc);
/** Leaves a range scope; used by DS_RANGE_SCOPE. */
DSDEF void ds_range_scope_leave(ds_range_scope *scope);

#endif
