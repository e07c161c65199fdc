/* Generated from src/devstream.h by `make headers`. Edit the files in src/, not this one. */
/* devstream.h - streams, events, copies and kernels for C, with a GPU and without.

   Do this:
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream.h"
   in exactly one C file, and #include "devstream.h" in all other files that use it.
   Link:  cc app.c -pthread
   With NVIDIA GPUs (the same program also starts and runs without a GPU):
          cc -DDEVSTREAM_CUDA app.c -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart_static \
              -ldl -lrt -pthread

   A stream is a queue of work on a device. Work on one stream runs in order. Work on different
   streams runs concurrently, and events order one stream after another. The CUDA driver runs the
   work on GPUs through cudart. The CPU driver runs it on threads and keeps CUDA's ordering rules,
   so that a program behaves the same with a GPU and without.

   Example (compiles as it stands):
       #define DEVSTREAM_IMPLEMENTATION
       #include "devstream.h"
       #include <stdio.h>
       static void hello(void *who) { printf("hello from the stream, %s\n", (char *)who); }
       int main(void) {
           ds_stream s;
           if (ds_stream_create(NULL, &s) < 0 || ds_launch_host_func(s, hello, "world", NULL) < 0 ||
               ds_stream_synchronize(s) < 0) { fprintf(stderr, "%s\n", ds_last_error()); return 1; }
           return ds_shutdown() < 0;
       }

   Macros that you may define, in every file that includes this header unless stated otherwise:
       DEVSTREAM_IMPLEMENTATION  in one C file: implements every devstream header that the file
                                 includes
       DEVSTREAM_STATIC          all functions are static (declare and implement in the same file)
       DEVSTREAM_API             a prefix of every function, e.g.
                                 __attribute__((visibility("default")))
       DEVSTREAM_NO_SITES        verbs are plain functions; errors do not name the caller's file and
                                 line
       DEVSTREAM_NO_CPU          with the implementation: leaves the CPU driver out
       DEVSTREAM_CUDA            with the implementation: adds the CUDA driver. Needs the headers of
                                 cudart 11.8 or newer and its library, static or shared; needs no
                                 nvcc, and no libcuda at link time
       DEVSTREAM_PER_THREAD_DEFAULT_STREAM  with the implementation: ds_stream_default() is the
                                 per-thread stream
       DEVSTREAM_NO_NVTX         with the implementation: ranges are not sent to NVIDIA's tools. By
                                 default they are sent if the compiler finds <nvtx3/nvToolsExt.h>,
                                 which needs no library (before glibc 2.34: -ldl)
   Environment, read once at the first call:
       DEVSTREAM_CPU_DEVICES, DEVSTREAM_CPU_WORKERS, DEVSTREAM_CPU_MEMORY, DEVSTREAM_CPU_INLINE,
       DEVSTREAM_CPU_SEED, DEVSTREAM_LAYERS, DEVSTREAM_FAULT,
       DEVSTREAM_LOG (0 to 4: silent, error, warning, info, debug),
       DEVSTREAM_PER_THREAD_DEFAULT_STREAM, DEVSTREAM_SYNC_DEBUG (default, warn, error)
   Environment, read when needed:
       DEVSTREAM_NVML (another name of libnvidia-ml.so.1)

   Contents: results; initialisation; devices; streams; the current stream; events; memory; copies
   and fills; host functions; data types; kernels; graphs; capture; ranges; the CPU driver; call
   sites; implementation.

   Rules that hold everywhere:
   - Any thread may call any function at any time, except ds_init and ds_shutdown, which may not run
     concurrently with other calls.
   - Host functions, callbacks, payload destructors and kernels may only call functions marked
     "Callable anywhere". Other functions return DS_ERR_NOT_PERMITTED there (CUDA returns 800).
   - Bad input gets a negative result and a sentence in ds_last_error(), and nothing is enqueued.
   - A call blocks only where its comment says so.
   - Handles are small structs, passed by value. A destroyed or invented handle gives
     DS_ERR_INVALID_HANDLE, never a crash.
   - On failure, outputs are set to 0 or NULL.
   - Errors common to all calls: DS_ERR_INVALID_VALUE for a NULL pointer, a text buffer that is too
     small, an unknown flag, or a number outside of the range in the comment; the results for a
     device that does not exist; DS_ERR_OUT_OF_MEMORY; DS_ERR_DRIVER and DS_ERR_SYSTEM with the code
     in the sentence; DS_ERR_FAILED on a device that has failed; DS_ERR_FORKED; the errors of
     capture (ds_capture_mode).

   Known gaps: Linux on x86-64 and aarch64 only. Collectives stay within one process. CPU devices
   share one address space, so a wrong pointer between "devices" is not detected. The CUDA driver
   has run against a stand-in for cudart that keeps CUDA's documented rules; docs/gpu lists the runs
   on real GPUs.

   Licence: MIT or public domain, at your choice; see the end of this file. */
#ifndef DEVSTREAM_H_INCLUDED
#define DEVSTREAM_H_INCLUDED

#include <stddef.h>
#include <stdint.h>

/** The version of these headers, major.minor.patch: the first number, */
#define DEVSTREAM_VERSION_MAJOR 0
/** the second, */
#define DEVSTREAM_VERSION_MINOR 1
/** and the third. */
#define DEVSTREAM_VERSION_PATCH 0

#if !defined(__linux__)
#error "devstream runs on Linux (x86-64 and aarch64) only, so far"
#endif

#ifndef DEVSTREAM_API
/** What stands in front of every function: yours, if you define it before. */
#define DEVSTREAM_API
#endif
#ifdef DEVSTREAM_STATIC
#define DSDEF __attribute__((unused)) static
#define DSDATA __attribute__((unused)) static
#else
#define DSDEF DEVSTREAM_API
#define DSDATA DEVSTREAM_API extern
#endif
/** Results must be looked at; DS_IGNORE says that one is not wanted. */
#define DS_MUST_USE __attribute__((warn_unused_result))
/** Makes a call and drops its result. */
#define DS_IGNORE(call)                 \
    do {                                \
        ds_result ds_ignored_ = (call); \
        (void)ds_ignored_;              \
    } while (0)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- results --------------------------------------------------------------------------------- */

/** X(name, value, what it means and what to do next) */
/* clang-format off */
#define DS_RESULTS(X) \
    X(DS_OK, 0, "success") \
    X(DS_NOT_READY, 1, "the work is still pending; ask again later or synchronize") \
    X(DS_ERR_INVALID_VALUE, -1, "an argument is wrong; the call has done nothing") \
    X(DS_ERR_INVALID_HANDLE, -2, "the handle was never valid or its object was destroyed") \
    X(DS_ERR_INVALID_DEVICE, -3, "the text or struct does not name a device") \
    X(DS_ERR_NO_DEVICE, -4, "no such device is available here; see ds_backend_report") \
    X(DS_ERR_DEVICE_RANGE, -5, "the device index is outside of the available range") \
    X(DS_ERR_DEVICE_MISMATCH, -6, "the objects belong to different devices") \
    X(DS_ERR_OUT_OF_MEMORY, -7, "memory is exhausted; free some and try again") \
    X(DS_ERR_LIMIT_EXCEEDED, -8, \
      "the device's memory limit would be exceeded; raise the limit or free memory") \
    X(DS_ERR_UNSUPPORTED, -9, "this driver or version does not offer that") \
    X(DS_ERR_NOT_PERMITTED, -10, \
      "not allowed inside a host function, callback, destructor or kernel") \
    X(DS_ERR_ILLEGAL_STATE, -11, "the call does not fit the present state") \
    X(DS_ERR_NOT_RECORDED, -12, "the event was never recorded") \
    X(DS_ERR_NO_TIMING, -13, "the event was created without DS_EVENT_TIMING") \
    X(DS_ERR_FAILED, -14, \
      "an earlier operation on the device or stream failed; the text names the first cause") \
    X(DS_ERR_FORKED, -15, "devstream was in use before fork; the child must not use it") \
    X(DS_ERR_CROSS_DRIVER, -16, "objects of different drivers cannot be used together") \
    X(DS_ERR_DRIVER, -17, "a call of the vendor's library failed; the text has its code") \
    X(DS_ERR_SYSTEM, -18, "the operating system refused something; the text has the reason") \
    X(DS_ERR_CAPTURE_UNSUPPORTED, -19, \
      "not allowed while a stream captures; the text names the capture and the rule") \
    X(DS_ERR_CAPTURE_INVALIDATED, -20, \
      "the capture was invalidated by an earlier call, which the text names; end it and begin " \
      "again") \
    X(DS_ERR_CAPTURE_MERGE, -21, "the call would have merged two captures") \
    X(DS_ERR_CAPTURE_UNMATCHED, -22, \
      "the capture was not begun on this stream; end it where it was begun") \
    X(DS_ERR_CAPTURE_UNJOINED, -23, \
      "a stream that was forked into the capture was not joined before its end") \
    X(DS_ERR_CAPTURE_ISOLATION, -24, "captured work would depend on work outside of the capture") \
    X(DS_ERR_CAPTURE_IMPLICIT, -25, \
      "the legacy stream cannot be used while a blocking stream of its device captures") \
    X(DS_ERR_CAPTURED_EVENT, -26, "the event was recorded in a capture, where nothing runs") \
    X(DS_ERR_CAPTURE_WRONG_THREAD, -27, "only the thread that began the capture may end it") \
    X(DS_ERR_GRAPH_UPDATE, -28, \
      "the executable cannot take over the changed graph; it is as before") \
    X(DS_ERR_PEER_DIED, -29, "the process that was to complete this has died") \
    X(DS_ERR_WOULD_SYNCHRONIZE, -30, \
      "the call would make the host wait for a device, which the sync debug mode refuses")

/* clang-format on */

/** What every fallible call returns: 0 is success, positive is not an error, negative is one. */
typedef enum ds_result {

#define DS_RESULT_ENUM_(name, value, text) name = value,
    DS_RESULTS(DS_RESULT_ENUM_)
#undef DS_RESULT_ENUM_
        DS_RESULT_FORCE_INT_ = 0x7fffffff
} ds_result;

/** Where a verb was called; each verb takes and clears it. */
typedef struct ds_site {
    const char *file; /**< NULL: not known */
    int line;         /**< from 1 */
} ds_site;

/** Name of a result ("DS_ERR_INVALID_VALUE"); never NULL. Callable anywhere. */
DSDEF const char *ds_result_name(ds_result result);
/** One sentence on what a result means; never NULL. Callable anywhere. */
DSDEF const char *ds_result_text(ds_result result);
/** The sentence of the last negative result of the calling thread: where it was called from,
    which function, which object, what was wrong. "" when there was none. Valid until the
    thread's next failing call. Callable anywhere. */
DSDEF const char *ds_last_error(void);

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
    must be set. */
typedef struct ds_allocator {
    /** NULL means malloc; returns NULL when out of memory */
    void *(*alloc_fn)(size_t size, void *user);
    void (*free_fn)(void *ptr, void *user); /**< NULL means free */
    void *user;                             /**< handed to both */
} ds_allocator;

struct ds_cpu_desc; /* of the CPU driver, below */

enum {
    /** ds_stream_default() is the per-thread stream instead of the legacy one */
    DS_INIT_PER_THREAD_DEFAULT_STREAM = 1
};

/** What ds_init takes; zero means default. */
typedef struct ds_init_desc {
    const struct ds_cpu_desc *cpu; /**< options of the CPU driver, or NULL */
    /** comma-separated names of layers ("fault"); NULL: DEVSTREAM_LAYERS */
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
} ds_init_desc;

/** Configures devstream before its first use. Not needed: everything initialises itself at the
    first call. Nothing is started here. DS_ERR_ILLEGAL_STATE when devstream is in use already;
    DS_ERR_INVALID_VALUE for an unknown layer. */
DSDEF DS_MUST_USE ds_result ds_init(const ds_init_desc *desc);

/** Waits for all work (blocks), reports every object that was not destroyed by label through the
    log (level warning), ends the threads and frees everything. All handles become invalid; the
    next call starts afresh. Does nothing when devstream is not in use. No other thread may be
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
    pageable memory, ds_free, ds_host_free, ds_host_unregister, ds_mem_empty_cache, ds_mem_trim,
    ds_pool_empty_cache and collectives with tensors in pageable memory, and counts what may
    wait, whether or not there is anything to wait for just now. As in torch,
    ds_device_synchronize is left alone, which nobody calls by mistake, and so are
    ds_device_reset and ds_shutdown; what devstream waits for by itself, as an allocation may
    when memory is short, is too, and so is what a capturing stream takes as a node. A warning is
    a log item with id DS_ERR_WOULD_SYNCHRONIZE; without a log_fn it goes to standard error,
    whatever DEVSTREAM_LOG says. DS_ERR_INVALID_VALUE: not a mode. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_set(ds_sync_debug_mode mode);
/** The same by torch's words, "default", "warn" or "error" (or "0", "1", "2"), as in the
    environment variable DEVSTREAM_SYNC_DEBUG. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_set_text(const char *text);
/** The mode in effect, for all threads. */
DSDEF DS_MUST_USE ds_result ds_sync_debug_get(ds_sync_debug_mode *out);

/* ---- devices --------------------------------------------------------------------------------- */

/** Kinds of devices; the numbers are DLPack's (12 is its extension device). */
typedef enum ds_device_type {
    DS_DEVICE_CURRENT = 0, /**< the calling thread's current device */
    DS_DEVICE_HOST = 1,    /**< plain host memory; it has no streams */
    DS_DEVICE_CUDA = 2,    /**< an NVIDIA GPU */
    DS_DEVICE_CPU = 12     /**< a virtual device of the CPU driver */
} ds_device_type;

/** A device. A zeroed one means the thread's current device. */
typedef struct ds_device {
    int32_t type;  /**< a ds_device_type */
    int32_t index; /**< from 0 */
} ds_device;

/** Longest text that ds_device_print writes, with the terminating zero. */
#define DS_DEVICE_NAME_SIZE 32
/** Number of backends: CUDA and CPU, in the order in which they are tried. A program can use the
    devices of both. */
#define DS_BACKEND_COUNT 2

/** What was tried and why it was or was not taken. */
typedef struct ds_backend_info {
    const char *name;    /**< "cuda", "cpu" */
    ds_device_type type; /**< type of its devices */
    int available;       /**< 1 when its devices can be used */
    int device_count;    /**< number of devices, 0 when not available */
    char reason[192];    /**< one sentence */
} ds_backend_info;

/** Fills *out for backend 0 .. DS_BACKEND_COUNT-1. DS_ERR_INVALID_VALUE for another index. */
DSDEF DS_MUST_USE ds_result ds_backend_get(int index, ds_backend_info *out);
/** Writes the whole report, one line per backend, into out (at most size bytes, always
    terminated). */
DSDEF DS_MUST_USE ds_result ds_backend_report(char *out, size_t size);
/** 1 when there is a device of the type that can be used, else 0 (the host is none);
    ds_backend_get has the reason. Starts devstream. */
DSDEF int ds_is_available(ds_device_type type); /* takes a call site */
/** 1 from the first call that starts devstream until ds_shutdown, else 0. Starts nothing.
    Callable anywhere. */
DSDEF int ds_is_initialized(void);
/** What devstream's own device code runs on, words with blanks between them, into out (at most
    size bytes, always terminated). On CUDA devices: the architectures known to this version,
    "sm_60" and so on, and last the one that the embedded PTX is written for, "compute_60": newer
    GPUs than those that are listed run it too. "" when CUDA is not compiled in. On CPU devices:
    the processor's architecture, and "avx2" where sums use it. DS_ERR_INVALID_VALUE: the words
    do not fit. */
DSDEF DS_MUST_USE ds_result ds_arch_list(ds_device_type type, char *out, size_t size);

/** What a device is. Fields that a driver does not know are 0 or "". */
typedef struct ds_device_properties {
    char name[128];         /**< e.g. the model name */
    int major;              /**< compute capability, first number; 0 on a CPU device */
    int minor;              /**< compute capability, second number */
    size_t total_memory;    /**< bytes */
    int multiprocessors;    /**< GPU: multiprocessors; CPU: worker threads that serve it */
    unsigned char uuid[16]; /**< identifies the device across processes; ds_uuid_print writes it */
    char pci[20];           /**< "domain:bus:device.function", "" on a CPU device */
    int unified_addressing; /**< 1 when host and device pointers share one address space */
} ds_device_properties;

/** The device cpu:index. */
static inline ds_device ds_cpu(int index) {
    ds_device d;
    d.type = DS_DEVICE_CPU;
    d.index = index;
    return d;
}

/** The device cuda:index. */
static inline ds_device ds_cuda(int index) {
    ds_device d;
    d.type = DS_DEVICE_CUDA;
    d.index = index;
    return d;
}

/** The calling thread's current device. */
static inline ds_device ds_device_current(void) {
    ds_device d;
    d.type = DS_DEVICE_CURRENT;
    d.index = 0;
    return d;
}

/** Number of devices of a type. DS_DEVICE_CURRENT counts the type of the thread's current
    device. A type without any gives 0 and DS_OK; the host counts as one. A number that is no
    type is DS_ERR_INVALID_DEVICE. */
DSDEF DS_MUST_USE ds_result ds_device_count(ds_device_type type, int *out_count);
/** Reads a device name: [blanks] ("cpu" | "custom_cpu" | "cuda" | "gpu" | "host") [":" index]
    [blanks]; the words in any case except custom_cpu. Without an index: the thread's current
    index when its device has that type, else 0. "host" takes no index but 0.
    DS_ERR_INVALID_DEVICE: malformed; DS_ERR_NO_DEVICE: no device of that type here;
    DS_ERR_DEVICE_RANGE: index too large. */
DSDEF DS_MUST_USE ds_result ds_device_parse(const char *text, ds_device *out);
/** Writes "cpu:0", "cuda:1" or "host"; the current device is resolved first.
    DS_ERR_INVALID_VALUE when size is too small (DS_DEVICE_NAME_SIZE always suffices). */
DSDEF DS_MUST_USE ds_result ds_device_print(ds_device device, char *out, size_t size);
/** The thread's current device; at first cuda:0 when there is one, else cpu:0. */
DSDEF DS_MUST_USE ds_result ds_device_get(ds_device *out);
/** Makes a device current for the calling thread. A zeroed device or a negative index changes
    nothing. */
DSDEF DS_MUST_USE ds_result ds_device_set(ds_device device);
/** As ds_device_set, and remembers the device that was current; ds_device_pop returns to exactly
    that one, whatever was set in between. Frames belong to the thread. A push that fails leaves
    no frame. */
DSDEF DS_MUST_USE ds_result ds_device_push(ds_device device);
/** Undoes the thread's latest ds_device_push. DS_ERR_ILLEGAL_STATE without one, or when a stream
    was pushed after it. */
DSDEF DS_MUST_USE ds_result ds_device_pop(void);
/** What a device is. Puts nothing on a GPU and waits for nothing. */
DSDEF DS_MUST_USE ds_result ds_device_get_properties(ds_device device, ds_device_properties *out);
/** The name among the properties, copied into out (at most size bytes, always terminated). */
DSDEF DS_MUST_USE ds_result ds_device_name(ds_device device, char *out, size_t size);
/** The compute capability among the properties; 0 and 0 on a CPU device. Either pointer may be
    NULL. */
DSDEF DS_MUST_USE ds_result ds_device_capability(ds_device device, int *out_major, int *out_minor);
/** Writes a uuid as 36 characters and a zero; size must be at least 37. Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_uuid_print(const unsigned char uuid[16], char *out, size_t size);
/** Free and total bytes of a device; either pointer may be NULL. On a GPU other processes count
    too. */
DSDEF DS_MUST_USE ds_result ds_device_memory_info(ds_device device, size_t *out_free,
                                                  size_t *out_total);
/** Blocks until all work of all streams of the device, as of the call, is done. Does not change
    the current device. */
DSDEF DS_MUST_USE ds_result ds_device_synchronize(ds_device device);
/** Clears the sticky failure of a CPU device: waits (blocks) until its streams are drained,
    after which they can be used again. Events recorded in work that failed stay failed until
    they are recorded anew. DS_ERR_UNSUPPORTED on CUDA, where only the process can start afresh. */
DSDEF DS_MUST_USE ds_result ds_device_reset(ds_device device);
/** 1 in *out when `device` can reach the memory of `peer` directly; a device can reach its own.
    Access is switched on by the first copy or the first such question; where it is 0, copies are
    staged through host memory. */
DSDEF DS_MUST_USE ds_result ds_device_can_access_peer(ds_device device, ds_device peer, int *out);
/** Lowest (least urgent, 0) and highest (most urgent, negative) stream priority of a device. */
DSDEF DS_MUST_USE ds_result ds_device_priority_range(ds_device device, int *out_least,
                                                     int *out_greatest);
/** How busy a GPU was in the driver's last sampling period: percent of the time in which a
    kernel ran, and in which its memory was read or written. Either pointer may be NULL. Asks
    NVML, the library of NVIDIA's driver, which is loaded by the first such question
    (DEVSTREAM_NVML: another name of libnvidia-ml.so.1) and kept until ds_shutdown.
    DS_ERR_UNSUPPORTED: the device is no GPU, there is no NVML, or it does not know that of this
    device, as of most parts of a GPU (MIG); DS_ERR_DRIVER: NVML failed. */
DSDEF DS_MUST_USE ds_result ds_device_utilization(ds_device device, unsigned *out_gpu_percent,
                                                  unsigned *out_memory_percent);
/** Temperature of a GPU in degrees Celsius. Else as ds_device_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_temperature(ds_device device, unsigned *out_celsius);
/** What a GPU draws, in milliwatts. Else as ds_device_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_power_draw(ds_device device, unsigned *out_milliwatts);
/** Present clocks of a GPU's multiprocessors and of its memory, in MHz; either pointer may be
    NULL. Else as ds_device_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_clock_rate(ds_device device, unsigned *out_sm_mhz,
                                                 unsigned *out_memory_mhz);
/** Gives the device a label, for messages and timelines, of which 63 characters are copied;
    NULL: none. It stays until ds_shutdown. On a GPU, NVIDIA's tools get it too. */
DSDEF DS_MUST_USE ds_result ds_device_set_label(ds_device device, const char *label);
/** The device's label, copied into out (at most size bytes, always terminated); "" without one. */
DSDEF DS_MUST_USE ds_result ds_device_label(ds_device device, char *out, size_t size);

/* ---- streams --------------------------------------------------------------------------------- */

/** A stream. Zeroed: no stream (it is not the default stream). */
typedef struct ds_stream {
    uint64_t id; /**< index and generation; 0: none */
} ds_stream;

enum {
    /** takes no part in the legacy stream's ordering: the default, as in torch */
    DS_STREAM_NON_BLOCKING = 0,
    /** ordered with the device's legacy stream, as cudaStreamDefault */
    DS_STREAM_BLOCKING = 1
};

enum {
    DS_PRIORITY_NORMAL = 0,         /**< the default */
    DS_PRIORITY_HIGH = -1,          /**< torch's and Paddle's "high" */
    DS_PRIORITY_HIGHEST = -1000000, /**< clamped to the device's most urgent */
    DS_PRIORITY_LOWEST = 1000000    /**< clamped to the device's least urgent */
};

/** What ds_stream_create takes; zero means default. */
typedef struct ds_stream_desc {
    /** zeroed: the thread's current device; a negative index: the current one of its type, else
        the type's first */
    ds_device device;
    /** lower is more urgent; outside of the range it is clamped, as CUDA does */
    int priority;
    unsigned flags;    /**< DS_STREAM_BLOCKING or 0 */
    const char *label; /**< for messages and reports; copied; may be NULL */
} ds_stream_desc;

/** The defaults of torch.cuda.Stream: non-blocking, priority 0. */
static inline ds_stream_desc ds_stream_desc_torch(void) {
    ds_stream_desc d;
    d.device = ds_device_current();
    d.priority = 0;
    d.flags = DS_STREAM_NON_BLOCKING;
    d.label = NULL;
    return d;
}

/** The defaults of paddle.device.Stream: non-blocking, normal priority (Paddle's 2). */
static inline ds_stream_desc ds_stream_desc_paddle(void) {
    return ds_stream_desc_torch();
}

/** The defaults of cupy.cuda.Stream and of cudaStreamCreate: blocking with respect to the legacy
    stream. */
static inline ds_stream_desc ds_stream_desc_cupy(void) {
    ds_stream_desc d = ds_stream_desc_torch();
    d.flags = DS_STREAM_BLOCKING;
    return d;
}

/** The defaults of mindspore.hal.Stream: priority 0; MindSpore leaves the rest to its backend,
    here non-blocking. */
static inline ds_stream_desc ds_stream_desc_mindspore(void) {
    return ds_stream_desc_torch();
}

/** Paddle's priority numbers (1 high, 2 normal; -1 and 0 are taken as Paddle's Python does) as
    ours. Anything else is DS_ERR_INVALID_VALUE: Paddle turns it into normal without a word. */
DSDEF DS_MUST_USE ds_result ds_priority_from_paddle(int paddle_priority, int *out_priority);

/** Creates a stream, which is the caller's to destroy. desc NULL: non-blocking, of priority 0,
    on the current device. */
DSDEF DS_MUST_USE ds_result ds_stream_create(const ds_stream_desc *desc, ds_stream *out);
/** Gives one more owner to a stream that was created or wrapped; each needs its own
    ds_stream_destroy. DS_ERR_INVALID_VALUE: a default stream. */
DSDEF DS_MUST_USE ds_result ds_stream_retain(ds_stream stream);
/** Ends one ownership. With the last one the handle is invalid at once, pending work still runs,
    and the stream is freed after it. Returns at once. The legacy and per-thread streams are not
    yours: DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_stream_destroy(ds_stream stream);
/** DS_OK when all work so far is done, DS_NOT_READY when not, DS_ERR_FAILED after a failure.
    Never blocks. On the legacy stream this counts the work of the device's blocking streams too
    (on CUDA: of those that devstream knows, and of the per-thread streams the caller's only,
    since CUDA cannot name another thread's). */
DSDEF DS_MUST_USE ds_result ds_stream_query(ds_stream stream);
/** Blocks until all work put on the stream before the call is done. The caller may run
    operations that this work depends on (kernels, copies, fills), never a host function. */
DSDEF DS_MUST_USE ds_result ds_stream_synchronize(ds_stream stream);
/** As ds_stream_synchronize, for at most timeout_ns nanoseconds; then DS_NOT_READY. Runs nothing
    itself. */
DSDEF DS_MUST_USE ds_result ds_stream_synchronize_for(ds_stream stream, uint64_t timeout_ns);
/** The device's legacy null stream: its work starts after everything put earlier on the device's
    blocking streams, and their later work starts after it. Non-blocking streams take no part.
    (CUDA's stream 0.) */
DSDEF DS_MUST_USE ds_result ds_stream_legacy(ds_device device, ds_stream *out);
/** The calling thread's own default stream on the device (CUDA's stream 2): blocking with
    respect to the legacy stream, independent of others. The handle means this thread's stream;
    it goes with the thread, after its work is done. Other threads may use it on CPU devices; on
    CUDA they get DS_ERR_UNSUPPORTED, since CUDA has no name for it. */
DSDEF DS_MUST_USE ds_result ds_stream_per_thread(ds_device device, ds_stream *out);
/** The legacy stream, or the per-thread one when that was opted for
    (DS_INIT_PER_THREAD_DEFAULT_STREAM, the macro or the environment variable
    DEVSTREAM_PER_THREAD_DEFAULT_STREAM=1). */
DSDEF DS_MUST_USE ds_result ds_stream_default(ds_device device, ds_stream *out);

/** Who ends a wrapped native stream. */
typedef enum ds_ownership {
    DS_BORROW = 0, /**< the caller; it must outlive the wrapper */
    DS_OWN = 1     /**< devstream, with the last ds_stream_destroy */
} ds_ownership;

/** The exchange format for streams of other libraries (Python's __cuda_stream__ protocol has the
    same two numbers). */
typedef struct ds_stream_native {
    int version;      /**< 0 */
    ds_device device; /**< zeroed when wrapping: the thread's current device */
    /** cudaStream_t, or the CPU driver's stream; 0 and 1 legacy, 2 the calling thread's */
    void *handle;
} ds_stream_native;

/** Makes a stream of a native handle. On CUDA that is a cudaStream_t, which must be valid:
    cudart does not check it. release_fn, when given, runs once with user when the wrapper is
    freed (it keeps the foreign owner alive until then), on the thread that freed it; it also
    runs when the call fails. DS_ERR_INVALID_VALUE: unknown version, a handle the driver does not
    know, DS_OWN of a default stream. */
DSDEF DS_MUST_USE ds_result ds_stream_wrap(const ds_stream_native *native, ds_ownership ownership,
                                           void (*release_fn)(void *user), void *user,
                                           ds_stream *out);
/** The native form of a stream; ownership stays. The legacy stream exports handle 0, the calling
    thread's own 2. */
DSDEF DS_MUST_USE ds_result ds_stream_export(ds_stream stream, ds_stream_native *out);
/** As ds_stream_export, and gives the native stream to the caller: the handle becomes invalid
    and nothing is freed until someone wraps it with DS_OWN. Only for a stream with one owner
    that devstream owns: else DS_ERR_ILLEGAL_STATE. */
DSDEF DS_MUST_USE ds_result ds_stream_unwrap(ds_stream stream, ds_stream_native *out);

/** A number that no other stream of this process ever had. */
DSDEF DS_MUST_USE ds_result ds_stream_id(ds_stream stream, uint64_t *out);
/** The stream's device. */
DSDEF DS_MUST_USE ds_result ds_stream_device(ds_stream stream, ds_device *out);
/** DS_STREAM_BLOCKING or DS_STREAM_NON_BLOCKING. The legacy and per-thread streams count as
    blocking. */
DSDEF DS_MUST_USE ds_result ds_stream_flags(ds_stream stream, unsigned *out);
/** The priority in effect and the one asked for; either pointer may be NULL. */
DSDEF DS_MUST_USE ds_result ds_stream_priority(ds_stream stream, int *out_effective,
                                               int *out_requested);
/** The stream's label, copied into out (at most size bytes, always terminated). */
DSDEF DS_MUST_USE ds_result ds_stream_label(ds_stream stream, char *out, size_t size);
/** Gives the stream another label, for messages, reports and timelines, of which 255 characters
    are copied; NULL: none. On a GPU, NVIDIA's tools get it too. */
DSDEF DS_MUST_USE ds_result ds_stream_set_label(ds_stream stream, const char *label);
/** 1 when both handles name the same queue of the same device (a wrapper equals what it wraps),
    else 0; an invalid handle equals nothing. */
DSDEF int ds_stream_equal(ds_stream a, ds_stream b);

/* ---- the current stream ---------------------------------------------------------------------- */

enum {
    /** refuse a stream whose device is not the current one (CuPy's rule): DS_ERR_DEVICE_MISMATCH */
    DS_PUSH_STRICT = 1,
    /** on entry the pushed stream waits for the stream that was current on its device */
    DS_PUSH_WAIT_PREV = 2,
    /** on exit the stream restored on that device waits for the pushed one */
    DS_POP_WAIT_BACK = 4
};

/** The thread's current stream on a device; a new thread begins with ds_stream_default. If it
    was destroyed meanwhile, the handle comes back all the same and every use of it says
    DS_ERR_INVALID_HANDLE. */
DSDEF DS_MUST_USE ds_result ds_stream_current(ds_device device, ds_stream *out);
/** Makes a stream current on its device and that device current for the thread (torch). flags:
    DS_PUSH_STRICT or 0. *out_previous (may be NULL) is the stream that was current on that
    device. */
DSDEF DS_MUST_USE ds_result ds_stream_use(ds_stream stream, unsigned flags,
                                          ds_stream *out_previous);
/** As ds_stream_use, and remembers the current device and that device's current stream;
    ds_stream_pop restores exactly that state, whatever was used in between. A zeroed stream
    pushes a frame that changes nothing. A push that fails leaves no frame. flags: DS_PUSH_*,
    DS_POP_WAIT_BACK. */
DSDEF DS_MUST_USE ds_result ds_stream_push(ds_stream stream, unsigned flags);
/** Undoes the thread's latest ds_stream_push. DS_ERR_ILLEGAL_STATE without one, or when a device
    was pushed after it. */
DSDEF DS_MUST_USE ds_result ds_stream_pop(void);

/** State of DS_STREAM_SCOPE and DS_DEVICE_SCOPE. */
typedef struct ds_scope {
    int pushed; /**< 1: to be popped */
    int once;   /**< 1: the block is still to run */
} ds_scope;

/** Enters a scope; used by DS_STREAM_SCOPE. */
DSDEF ds_scope ds_stream_scope_enter(ds_stream stream, unsigned flags);
/** Leaves it; used by DS_STREAM_SCOPE. */
DSDEF void ds_stream_scope_leave(ds_scope *scope);
/** Enters a scope; used by DS_DEVICE_SCOPE. */
DSDEF ds_scope ds_device_scope_enter(ds_device device);
/** Leaves it; used by DS_DEVICE_SCOPE. */
DSDEF void ds_device_scope_leave(ds_scope *scope);

/* ---- events ---------------------------------------------------------------------------------- */

/** An event: a point in a stream's work. Zeroed: none. */
typedef struct ds_event {
    uint64_t id; /**< index and generation; 0: none */
} ds_event;

enum {
    DS_EVENT_DEFAULT = 0, /**< no timing: the cheapest */
    DS_EVENT_TIMING = 1,  /**< keeps the time at which the record is reached */
    /** ds_event_synchronize sleeps at once instead of spinning first */
    DS_EVENT_BLOCKING_WAIT = 2,
    /** may be shared between processes (ds_event_export); not with DS_EVENT_TIMING. On CPU
        devices a process can have 65,536 that were recorded or exported: of one more the first
        record or export is DS_ERR_LIMIT_EXCEEDED */
    DS_EVENT_INTERPROCESS = 4,
    DS_EVENT_CUPY = 1 /**< CuPy's default: timing on */
};

/** Creates an event; it belongs to no device until it is recorded. label may be NULL; it is
    copied. DS_ERR_INVALID_VALUE: an interprocess event with timing. */
DSDEF DS_MUST_USE ds_result ds_event_create(unsigned flags, const char *label, ds_event *out);
/** The handle becomes invalid; streams that wait for the event still do. Returns at once. Graphs
    keep the events of their nodes. */
DSDEF DS_MUST_USE ds_result ds_event_destroy(ds_event event);
/** Marks the present end of the stream's work. A later record replaces it for later waits only.
    The first record binds the event to the stream's device; recording on another one is
    DS_ERR_DEVICE_MISMATCH. */
DSDEF DS_MUST_USE ds_result ds_event_record(ds_event event, ds_stream stream);
/** Creates an event with these flags and records it on the stream; it is the caller's to
    destroy. */
DSDEF DS_MUST_USE ds_result ds_stream_record_new(ds_stream stream, unsigned flags, ds_event *out);
/** Later work on the stream starts after the event's record as of this call, whatever is
    recorded afterwards. The stream may be on another device of the same driver; one of another
    driver is DS_ERR_CROSS_DRIVER. An unrecorded event is complete. Returns at once. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_event(ds_stream stream, ds_event event);
/** Later work on the stream starts after all work put on `other` before this call. Needs no
    event; returns at once. A stream of another driver is DS_ERR_CROSS_DRIVER. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_stream(ds_stream stream, ds_stream other);
/** As ds_event_record, but on a capturing stream it becomes a node of the graph, and each launch
    records the event (as of the launch: who waits for it after that call waits for this launch's
    record). */
DSDEF DS_MUST_USE ds_result ds_event_record_external(ds_event event, ds_stream stream);
/** As ds_stream_wait_event, but on a capturing stream it becomes a node of the graph: each
    launch waits for the event's record as of the launch. DS_ERR_CROSS_DRIVER: an event of
    another driver, here too. */
DSDEF DS_MUST_USE ds_result ds_stream_wait_event_external(ds_stream stream, ds_event event);
/** DS_OK when the record is reached (or there is none), DS_NOT_READY, or DS_ERR_FAILED. Never
    blocks. */
DSDEF DS_MUST_USE ds_result ds_event_query(ds_event event);
/** Blocks until the record as of the call is reached; see ds_stream_synchronize. */
DSDEF DS_MUST_USE ds_result ds_event_synchronize(ds_event event);
/** As ds_event_synchronize, for at most timeout_ns nanoseconds; then DS_NOT_READY. */
DSDEF DS_MUST_USE ds_result ds_event_synchronize_for(ds_event event, uint64_t timeout_ns);
/** Milliseconds from one record to another, negative when they are the other way round. Checked
    in torch's order: both with timing (DS_ERR_NO_TIMING), both recorded (DS_ERR_NOT_RECORDED),
    both reached (DS_NOT_READY), same device (DS_ERR_DEVICE_MISMATCH). CPU driver: nanosecond
    clock, read when the stream reaches the record. */
DSDEF DS_MUST_USE ds_result ds_event_elapsed_ms(ds_event start, ds_event end, double *out_ms);
/** The device of the first record; a zeroed device before it. */
DSDEF DS_MUST_USE ds_result ds_event_device(ds_event event, ds_device *out);
/** The flags it was created with. */
DSDEF DS_MUST_USE ds_result ds_event_flags(ds_event event, unsigned *out);

/** An event for other processes: bytes to send to them. */
typedef struct ds_ipc_event_handle {
    unsigned char bytes[64]; /**< of meaning to ds_event_import only */
} ds_ipc_event_handle;

/** Writes the handle with which other processes import the event; as often as wanted, always the
    same bytes. An event that was never recorded belongs to the thread's current device from now
    on. It must live as long as others use it. DS_ERR_INVALID_VALUE: it was created without
    DS_EVENT_INTERPROCESS, or it was imported itself. */
DSDEF DS_MUST_USE ds_result ds_event_export(ds_event event, ds_ipc_event_handle *out);
/** Makes an event of another process's handle, on a device of the same kind; it can be recorded,
    waited for, asked and synchronized with like the process's own, and is destroyed here like
    one. Every process sees the latest record of any. What a wait means is fixed at its call, in
    all processes. If the process that made a record ends before its stream came to it (and only
    then), waits for that record are over with DS_ERR_PEER_DIED: a stream that waits has failed
    with it, like after a failure of its own work, until ds_device_reset or its end; other
    streams go on. That is so on CPU devices; what CUDA does then is not documented.
    DS_ERR_PEER_DIED: the exporting process has ended. DS_ERR_INVALID_HANDLE: it has destroyed
    the event. DS_ERR_ILLEGAL_STATE: it is this process. */
DSDEF DS_MUST_USE ds_result ds_event_import(ds_device device, const ds_ipc_event_handle *handle,
                                            ds_event *out);

/* ---- memory ---------------------------------------------------------------------------------- */

/** Kinds of memory a pointer may point to. */
typedef enum ds_memory_kind {
    DS_MEMORY_PAGEABLE = 0,   /**< ordinary host memory */
    DS_MEMORY_PINNED = 1,     /**< host memory from ds_host_alloc */
    DS_MEMORY_REGISTERED = 2, /**< host memory given to ds_host_register */
    DS_MEMORY_DEVICE = 3      /**< memory from ds_alloc */
} ds_memory_kind;

/** What ds_pointer_query tells. */
typedef struct ds_pointer_info {
    ds_memory_kind kind; /**< kind of memory */
    ds_device device;    /**< device memory: its device; else host */
    /** start of the allocation or registered range; NULL for pageable memory */
    void *base;
    size_t size; /**< its size in bytes; 0 for pageable memory */
} ds_pointer_info;

/** Allocates size bytes of device memory, aligned to 512 (on CUDA: as cudaMalloc does, to 256 at
    least). Does not wait for any work. size 0 gives NULL and DS_OK. Uninitialised.
    DS_ERR_OUT_OF_MEMORY: the device is full. (Plain; devstream_alloc.h has the caching
    allocator.) */
DSDEF DS_MUST_USE ds_result ds_alloc(ds_device device, size_t size, void **out);
/** Allocates height rows of width bytes; *out_pitch is the distance of rows in bytes.
    DS_ERR_INVALID_VALUE: more bytes than a size_t counts. Else as ds_alloc. */
DSDEF DS_MUST_USE ds_result ds_alloc_pitch(ds_device device, size_t width, size_t height,
                                           void **out, size_t *out_pitch);
/** Frees device memory. Blocks until all work of its device is done, as cudaFree does; not that
    of other devices whose streams copy to or from it. NULL is allowed. Anything that is not the
    start of an allocation is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_free(void *ptr);
/** Allocates pinned host memory, which copies of all devices reach without blocking, and kernels
    of GPUs at the same address; aligned to 512. size 0 gives NULL and DS_OK. */
DSDEF DS_MUST_USE ds_result ds_host_alloc(size_t size, void **out);
/** Frees it; blocks until the work of all devices is done, as cudaFreeHost may. NULL is allowed. */
DSDEF DS_MUST_USE ds_result ds_host_free(void *ptr);
/** Pins memory of the caller's, which must stay until ds_host_unregister. A range that touches a
    known one is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_host_register(void *ptr, size_t size);
/** Undoes ds_host_register; ptr is the start of the range. Blocks until the work of all devices
    is done. */
DSDEF DS_MUST_USE ds_result ds_host_unregister(void *ptr);
/** Tells what a pointer points to. Unknown addresses, NULL included, are pageable host memory. */
DSDEF DS_MUST_USE ds_result ds_pointer_query(const void *ptr, ds_pointer_info *out);
/** The device of the memory at ptr, any address inside of an allocation; for host memory, of any
    kind, the host. */
DSDEF DS_MUST_USE ds_result ds_device_of(const void *ptr, ds_device *out);
/** Enters a scope; used by DS_DEVICE_OF_SCOPE. */
DSDEF ds_scope ds_device_of_scope_enter(const void *ptr);

/* ---- copies and fills ------------------------------------------------------------------------ */

/** Copies size bytes, in stream order, between any memory: host and device, within and between
    devices (directly where the devices can reach each other, else staged through host memory),
    also between a GPU and a CPU device, on a stream of either. Ranges must not overlap. A copy
    that touches pageable host memory may block until it is done: on CPU devices it does; on CUDA
    one to the host does, one from the host returns when the source may be changed. Others return
    at once, and both ranges must stay valid until the stream has passed the copy. On CUDA a copy
    between pinned memory, or between a GPU and a CPU device, is a host function as to what may
    hold it up (ds_launch_host_func). On CPU devices up to 16 KiB on an idle stream may be done
    before the call returns. Memory that cudart or other libraries allocated is taken as what it
    is. A range that leaves an allocation of ds_alloc or ds_host_alloc is DS_ERR_INVALID_VALUE.
    size 0 does nothing. */
DSDEF DS_MUST_USE ds_result ds_copy(void *dst, const void *src, size_t size, ds_stream stream);

enum {
    /** pageable memory stays valid, at its place, as long as a graph that has captured the copy */
    DS_COPY_HOST_STABLE = 1
};

/** As ds_copy, with flags (DS_COPY_HOST_STABLE or 0). */
DSDEF DS_MUST_USE ds_result ds_copy_with(void *dst, const void *src, size_t size, unsigned flags,
                                         ds_stream stream);
/** Copies height rows of width bytes; pitches are the distances of rows in bytes and at least
    width. Else as ds_copy. */
DSDEF DS_MUST_USE ds_result ds_copy_2d(void *dst, size_t dst_pitch, const void *src,
                                       size_t src_pitch, size_t width, size_t height,
                                       ds_stream stream);
/** As ds_copy, and says between which devices; a pointer that is not on the device named is
    DS_ERR_DEVICE_MISMATCH. */
DSDEF DS_MUST_USE ds_result ds_copy_peer(void *dst, ds_device dst_device, const void *src,
                                         ds_device src_device, size_t size, ds_stream stream);
/** Sets count elements of value_size (1, 2 or 4) bytes to the low bytes of value, in stream
    order. Device or pinned memory: returns at once; pageable memory: blocks. ptr must be a
    multiple of value_size. Device memory must belong to the driver of the stream: else
    DS_ERR_CROSS_DRIVER. On CUDA a fill of host memory is a host function as to what may hold it
    up. */
DSDEF DS_MUST_USE ds_result ds_fill(void *ptr, uint32_t value, size_t value_size, size_t count,
                                    ds_stream stream);
/** The same for height rows of width elements; pitch is the distance of rows in bytes, a
    multiple of value_size. */
DSDEF DS_MUST_USE ds_result ds_fill_2d(void *ptr, size_t pitch, uint32_t value, size_t value_size,
                                       size_t width, size_t height, ds_stream stream);

/* ---- host functions -------------------------------------------------------------------------- */

/** Runs on a thread of devstream's. */
typedef void (*ds_host_fn)(void *user);
/** Gets the stream, DS_OK or the failure of the stream, and the user's pointer. */
typedef void (*ds_callback_fn)(ds_stream stream, ds_result status, void *user);

/** Runs fn(user) once when the stream reaches it; later work on the stream waits for it, other
    streams do not (but CUDA may run the host functions of a device one after another, so that
    one that blocks holds up those of others). Skipped after a failure. dtor_fn(user), when
    given, runs exactly once in every case: after fn and before the stream goes on, when fn is
    skipped, and also when this call fails (then before it returns, on the caller's thread). */
DSDEF DS_MUST_USE ds_result ds_launch_host_func(ds_stream stream, ds_host_fn fn, void *user,
                                                ds_host_fn dtor_fn);
/** Runs fn(stream, status, user) exactly once when the stream reaches it, after a failure too;
    else as ds_launch_host_func. When the call itself fails, fn does not run, dtor_fn does. */
DSDEF DS_MUST_USE ds_result ds_add_callback(ds_stream stream, ds_callback_fn fn, void *user,
                                            ds_host_fn dtor_fn);

/* ---- data types ------------------------------------------------------------------------------ */

/** What an element is, with DLPack's numbers. */
typedef enum ds_type_code {
    DS_CODE_INT = 0,     /**< signed integers */
    DS_CODE_UINT = 1,    /**< unsigned integers */
    DS_CODE_FLOAT = 2,   /**< IEEE floats of 16, 32, 64 bits */
    DS_CODE_OPAQUE = 3,  /**< handles, of which nothing is known */
    DS_CODE_BFLOAT = 4,  /**< bfloat16 */
    DS_CODE_COMPLEX = 5, /**< two floats, of which bits counts both */
    DS_CODE_BOOL = 6,    /**< 0 or 1 in a byte */
    /** the following: bits of exponent (E) and mantissa (M); FN: no infinities; UZ: no negative
        zero; B11: bias 11; E8M0FNU: a power of two without a sign */
    DS_CODE_FLOAT8_E3M4 = 7,
    DS_CODE_FLOAT8_E4M3 = 8,        /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E4M3B11FNUZ = 9, /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E4M3FN = 10,     /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E4M3FNUZ = 11,   /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E5M2 = 12,       /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E5M2FNUZ = 13,   /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT8_E8M0FNU = 14,    /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT6_E2M3FN = 15,     /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT6_E3M2FN = 16,     /**< see DS_CODE_FLOAT8_E3M4 */
    DS_CODE_FLOAT4_E2M1FN = 17      /**< see DS_CODE_FLOAT8_E3M4 */
} ds_type_code;

/** A data type; the same bytes as DLPack's DLDataType. */
typedef struct ds_dtype {
    uint8_t code;   /**< a ds_type_code */
    uint8_t bits;   /**< of one lane */
    uint16_t lanes; /**< 1, or more for vectors */
} ds_dtype;

/** X(name, code, bits, lanes): torch's types and their names, and the rest of DLPack's 8-bit
    ones. */
/* clang-format off */
#define DS_DTYPES(X) \
    X(bool, DS_CODE_BOOL, 8, 1) \
    X(int8, DS_CODE_INT, 8, 1) \
    X(int16, DS_CODE_INT, 16, 1) \
    X(int32, DS_CODE_INT, 32, 1) \
    X(int64, DS_CODE_INT, 64, 1) \
    X(uint8, DS_CODE_UINT, 8, 1) \
    X(uint16, DS_CODE_UINT, 16, 1) \
    X(uint32, DS_CODE_UINT, 32, 1) \
    X(uint64, DS_CODE_UINT, 64, 1) \
    X(float16, DS_CODE_FLOAT, 16, 1) \
    X(bfloat16, DS_CODE_BFLOAT, 16, 1) \
    X(float32, DS_CODE_FLOAT, 32, 1) \
    X(float64, DS_CODE_FLOAT, 64, 1) \
    X(complex32, DS_CODE_COMPLEX, 32, 1) \
    X(complex64, DS_CODE_COMPLEX, 64, 1) \
    X(complex128, DS_CODE_COMPLEX, 128, 1) \
    X(float8_e3m4, DS_CODE_FLOAT8_E3M4, 8, 1) \
    X(float8_e4m3, DS_CODE_FLOAT8_E4M3, 8, 1) \
    X(float8_e4m3b11fnuz, DS_CODE_FLOAT8_E4M3B11FNUZ, 8, 1) \
    X(float8_e4m3fn, DS_CODE_FLOAT8_E4M3FN, 8, 1) \
    X(float8_e4m3fnuz, DS_CODE_FLOAT8_E4M3FNUZ, 8, 1) \
    X(float8_e5m2, DS_CODE_FLOAT8_E5M2, 8, 1) \
    X(float8_e5m2fnuz, DS_CODE_FLOAT8_E5M2FNUZ, 8, 1) \
    X(float8_e8m0fnu, DS_CODE_FLOAT8_E8M0FNU, 8, 1) \
    X(float4_e2m1fn_x2, DS_CODE_FLOAT4_E2M1FN, 4, 2)
/* clang-format on */

/* ds_bool(), ds_int8(), ds_float32() and so on. */
#define DS_DTYPE_FUNCTION_(name, c, b, l)    \
    static inline ds_dtype ds_##name(void) { \
        ds_dtype t;                          \
        t.code = (uint8_t)(c);               \
        t.bits = (b);                        \
        t.lanes = (l);                       \
        return t;                            \
    }
DS_DTYPES(DS_DTYPE_FUNCTION_)
#undef DS_DTYPE_FUNCTION_

/** Bytes of an element; 0 when that is no whole number. Callable anywhere. */
DSDEF size_t ds_dtype_size(ds_dtype dtype);
/** 1 when both are the same type. Callable anywhere. */
DSDEF int ds_dtype_equal(ds_dtype a, ds_dtype b);
/** Longest text that ds_dtype_print writes, with the terminating zero. */
#define DS_DTYPE_NAME_SIZE 32
/** Writes torch's name ("float32"); a type without one is written as "code:bits:lanes".
    DS_ERR_INVALID_VALUE when size is too small. */
DSDEF DS_MUST_USE ds_result ds_dtype_print(ds_dtype dtype, char *out, size_t size);
/** Reads such a name, or one of torch's others: float, double, half, short, int, long, chalf,
    cfloat, cdouble. */
DSDEF DS_MUST_USE ds_result ds_dtype_parse(const char *text, ds_dtype *out);

/* ---- kernels --------------------------------------------------------------------------------- */

/** A kernel: a function over many items. Zeroed: none. */
typedef struct ds_kernel {
    uint64_t id; /**< index and generation; 0: none */
} ds_kernel;

/** The CPU form: handles items first .. first+count-1 with the arguments given at launch. May be
    called for parts of the range from several threads at once, like the threads of a GPU; a
    launch of one item is one call. args is the copy of the struct, aligned to 16. Returns 0;
    anything else fails the device, as a fault on a GPU does. */
typedef int (*ds_kernel_fn)(size_t first, size_t count, const void *args);

/** What a parameter is. */
typedef enum ds_param_kind {
    DS_PARAM_VALUE = 0,      /**< a value */
    DS_PARAM_READ = 1,       /**< a pointer to memory that is read */
    DS_PARAM_WRITE = 2,      /**< a pointer to memory that is written */
    DS_PARAM_READ_WRITE = 3, /**< both */
    /** CUDA form only: index of the first item (size 4 or 8); not in the struct */
    DS_PARAM_FIRST = 4,
    /** CUDA form only: number of items (size 4 or 8); not in the struct */
    DS_PARAM_COUNT = 5
} ds_param_kind;

/** One parameter of a kernel, in the order of the CUDA form. */
typedef struct ds_param {
    ds_param_kind kind; /**< what it is */
    size_t offset;      /**< in the argument struct */
    size_t size;        /**< in bytes; a pointer's is sizeof(void *) */
} ds_param;

/** Where the CUDA form of a kernel comes from; unused on the CPU driver. It gets the listed
    parameters, in order, and no others. PTX is compiled by the GPU's driver when the kernel is
    first launched on a device, or by ds_kernel_load. */
typedef struct ds_kernel_cuda {
    const void *image;     /**< PTX text, cubin or fatbin; must outlive the kernel */
    size_t image_size;     /**< its size in bytes; 0: PTX text with a terminating zero */
    const char *entry;     /**< name of the function in the image */
    const void *native_fn; /**< or: a function that nvcc registered */
    /** threads of a block when launched over items; 0: 256. Item i is thread i, counted block by
        block; the last block may have more threads than there are items */
    unsigned block;
    unsigned shared_bytes; /**< dynamic shared memory of a block when launched over items */
    /** items that one block handles at a time; 0: one per thread */
    unsigned items_per_block;
    /** most blocks per multiprocessor: the kernel goes over the items in steps of its number of
        blocks; 0: as many blocks as the items need */
    unsigned blocks_per_multiprocessor;
} ds_kernel_cuda;

/** Most parameters of a kernel. */
#define DS_KERNEL_MAX_PARAMS 256

/** Largest argument struct in bytes. */
#define DS_KERNEL_MAX_ARGS 4096

/** What ds_kernel_create takes. */
typedef struct ds_kernel_desc {
    const char *name;       /**< for messages; copied; required */
    ds_kernel_fn cpu_fn;    /**< the CPU form; NULL: the kernel cannot run on CPU devices */
    size_t args_size;       /**< size of the argument struct, 0 to DS_KERNEL_MAX_ARGS */
    const ds_param *params; /**< its parameters; copied */
    size_t param_count;     /**< number of them */
    ds_kernel_cuda cuda;    /**< the CUDA form */
    /** CPU: fewest items worth a call of cpu_fn, 0: 1; SIZE_MAX: never split a launch */
    size_t grain;
    /** CPU driver with a virtual clock (ds_cpu_fabric): bytes that a launch reads and writes,
        which give its time; NULL: it takes none */
    uint64_t (*bytes_fn)(size_t items, const void *args);
} ds_kernel_desc;

/** An explicit launch configuration. */
typedef struct ds_grid {
    unsigned grid[3];      /**< blocks in x, y, z; 0 counts as 1 in y and z */
    unsigned block[3];     /**< threads of a block in x, y, z; 0 counts as 1 */
    unsigned shared_bytes; /**< dynamic shared memory of a block */
} ds_grid;

/** Creates a kernel, for all devices; loads and compiles nothing yet. DS_ERR_INVALID_VALUE: it
    has no name or no form, an image without the name of its function, or a parameter outside of
    the argument struct. */
DSDEF DS_MUST_USE ds_result ds_kernel_create(const ds_kernel_desc *desc, ds_kernel *out);
/** Makes the kernel ready on a device now (blocks: PTX is compiled for the GPU) instead of at
    its first launch there. DS_ERR_UNSUPPORTED when it has no form for the device;
    DS_ERR_INVALID_VALUE when the driver refuses the image: the sentence has the driver's
    message. On a CPU device there is nothing to do. */
DSDEF DS_MUST_USE ds_result ds_kernel_load(ds_kernel kernel, ds_device device);
/** The handle becomes invalid; launches that are pending still run. The code of an image stays
    on a GPU until no kernel of it is left and the device has been waited for
    (ds_device_synchronize, ds_free, ds_shutdown). */
DSDEF DS_MUST_USE ds_result ds_kernel_destroy(ds_kernel kernel);
/** Launches the kernel over items 0 .. items-1 in stream order. args_size must be the one of the
    desc; the struct is copied before the call returns. items 0 does nothing. DS_ERR_UNSUPPORTED
    when the kernel has no form for the stream's device. On CUDA more items than a grid holds are
    launched in parts if the kernel takes DS_PARAM_FIRST and DS_PARAM_COUNT in 8 bytes, else
    refused. */
DSDEF DS_MUST_USE ds_result ds_launch(ds_kernel kernel, size_t items, const void *args,
                                      size_t args_size, ds_stream stream);
/** Launches the kernel over an explicit grid. The CPU form gets the linear index of the thread,
    block by block (x fastest), as its item. */
DSDEF DS_MUST_USE ds_result ds_launch_grid(ds_kernel kernel, const ds_grid *grid, const void *args,
                                           size_t args_size, ds_stream stream);

/* ---- graphs ---------------------------------------------------------------------------------- */

/* A graph is work with its dependencies, an executable is a copy of it that can be launched
   again and again. A launch is one operation of its stream: it starts after all that was put on
   the stream before it and after every earlier launch of the same executable, and later work on
   the stream starts when all its nodes are done. Every node runs once per launch, after those it
   depends on; nodes that do not depend on each other run side by side. Calls about one graph or
   one executable wait for each other; different ones may be used by different threads at once. */

/** A graph. Zeroed: none. */
typedef struct ds_graph {
    uint64_t id; /**< index and generation; 0: none */
} ds_graph;

/** A node of one graph. Zeroed: none. */
typedef struct ds_graph_node {
    uint64_t id; /**< number of the graph and index of the node; 0: none */
} ds_graph_node;

/** An executable graph. Zeroed: none. */
typedef struct ds_graph_exec {
    uint64_t id; /**< index and generation; 0: none */
} ds_graph_exec;

/** Kinds of nodes. */
typedef enum ds_node_kind {
    DS_NODE_EMPTY = 0,        /**< does nothing; for dependencies of many on many */
    DS_NODE_KERNEL = 1,       /**< a launch */
    DS_NODE_COPY = 2,         /**< a copy */
    DS_NODE_FILL = 3,         /**< a fill */
    DS_NODE_HOST = 4,         /**< a host function */
    DS_NODE_EVENT_RECORD = 5, /**< records an event at each launch */
    DS_NODE_EVENT_WAIT = 6,   /**< waits for an event's record as of the launch */
    DS_NODE_CHILD = 7,        /**< a graph within the graph */
    /** captured on CUDA from calls of others (cuBLAS, kernels of nvcc, ...): devstream does not
        know what */
    DS_NODE_NATIVE = 8
} ds_node_kind;

/** A launch as a node; see ds_launch and ds_launch_grid. */
typedef struct ds_kernel_node {
    ds_kernel kernel;    /**< the graph keeps it alive */
    size_t items;        /**< items, at least 1; with a grid: ignored */
    const ds_grid *grid; /**< an explicit grid, copied; NULL: over items */
    const void *args;    /**< argument struct, copied */
    size_t args_size;    /**< its size */
} ds_kernel_node;

/** A copy as a node; see ds_copy_2d. Pageable memory must stay valid and at its place as long as
    the graph. */
typedef struct ds_copy_node {
    void *dst;        /**< destination */
    const void *src;  /**< source */
    size_t width;     /**< bytes of a row */
    size_t height;    /**< rows; 0 counts as 1 */
    size_t dst_pitch; /**< distance of rows in bytes; unused for one row */
    size_t src_pitch; /**< the same of the source */
} ds_copy_node;

/** A fill as a node; see ds_fill_2d. */
typedef struct ds_fill_node {
    void *ptr;         /**< destination */
    uint32_t value;    /**< its low bytes are written */
    size_t value_size; /**< 1, 2 or 4 bytes */
    size_t width;      /**< elements of a row */
    size_t height;     /**< rows; 0 counts as 1 */
    size_t pitch;      /**< distance of rows in bytes; unused for one row */
} ds_fill_node;

/** A host function as a node; see ds_launch_host_func. */
typedef struct ds_host_node {
    ds_host_fn fn; /**< runs at every launch */
    void *user;    /**< its argument */
    /** runs once with user when the last graph, executable or launch that has the node is gone;
        may be NULL. After ds_graph_exec_update CUDA may keep what was replaced until earlier
        launches are over */
    ds_host_fn dtor_fn;
} ds_host_node;

/** What a node does. */
typedef struct ds_node_desc {
    ds_node_kind kind; /**< which member of u holds */
    const char *label; /**< for messages and pictures; copied; may be NULL */
    /** of a kernel or an event's record; zeroed: the graph's. Others go by their memory */
    ds_device device;
    /** counts with DS_GRAPH_USE_NODE_PRIORITY; captured nodes have their stream's */
    int priority;

    union {
        ds_kernel_node kernel; /**< DS_NODE_KERNEL */
        ds_copy_node copy;     /**< DS_NODE_COPY */
        ds_fill_node fill;     /**< DS_NODE_FILL */
        ds_host_node host;     /**< DS_NODE_HOST */
        /** DS_NODE_EVENT_RECORD, DS_NODE_EVENT_WAIT; the graph keeps it alive, and binds it to
            the device if it was never recorded */
        ds_event event;
        ds_graph child; /**< DS_NODE_CHILD; copied as it is now */
    } u;                /**< by kind */
} ds_node_desc;

/** What ds_graph_create takes; zero means default. */
typedef struct ds_graph_desc {
    /** where its kernels run unless a node says otherwise, and which driver; zeroed: the current
        device */
    ds_device device;
    const char *label; /**< for messages; copied; may be NULL */
} ds_graph_desc;

/** Creates an empty graph. desc NULL: of the current device. */
DSDEF DS_MUST_USE ds_result ds_graph_create(const ds_graph_desc *desc, ds_graph *out);
/** The handle becomes invalid at once. Executables and launches made from the graph live on.
    DS_ERR_ILLEGAL_STATE while a capture makes it. */
DSDEF DS_MUST_USE ds_result ds_graph_destroy(ds_graph graph);
/** Makes a copy with the same nodes in the same order, which shares what the graph keeps (user
    objects, payloads). */
DSDEF DS_MUST_USE ds_result ds_graph_clone(ds_graph graph, ds_graph *out);
/** The node of a clone that a node of its original became. DS_ERR_INVALID_VALUE: it is no clone
    of the graph that has the node. */
DSDEF DS_MUST_USE ds_result ds_graph_find_in_clone(ds_graph clone, ds_graph_node node,
                                                   ds_graph_node *out);
/** Adds a node that starts after `dependencies` (count of them). On failure nothing is added,
    and a host node's dtor_fn has run. */
DSDEF DS_MUST_USE ds_result ds_graph_add(ds_graph graph, const ds_node_desc *desc,
                                         const ds_graph_node *dependencies, size_t count,
                                         ds_graph_node *out);
/** Adds dependencies: to[i] starts after from[i]. All or none. DS_ERR_INVALID_VALUE for one that
    is there already or would close a circle. */
DSDEF DS_MUST_USE ds_result ds_graph_add_edges(ds_graph graph, const ds_graph_node *from,
                                               const ds_graph_node *to, size_t count);
/** Writes the nodes, in the order in which they were added, at most room of them; *out_count is
    how many there are. */
DSDEF DS_MUST_USE ds_result ds_graph_get_nodes(ds_graph graph, ds_graph_node *out, size_t room,
                                               size_t *out_count);
/** Writes the dependencies as pairs, at most room of them; *out_count is how many there are. */
DSDEF DS_MUST_USE ds_result ds_graph_get_edges(ds_graph graph, ds_graph_node *out_from,
                                               ds_graph_node *out_to, size_t room,
                                               size_t *out_count);
/** What a node does and where it was made (out_site may be NULL). Pointers in *out are the
    graph's, until it is changed; dtor_fn and the handle of a child are 0. */
DSDEF DS_MUST_USE ds_result ds_graph_get_node(ds_graph graph, ds_graph_node node, ds_node_desc *out,
                                              ds_site *out_site);
/** Changes what a node does, not its kind; for executables made later, and ds_graph_exec_update.
    On failure nothing has changed, and a host node's dtor_fn has run. */
DSDEF DS_MUST_USE ds_result ds_graph_set_node(ds_graph graph, ds_graph_node node,
                                              const ds_node_desc *desc);
/** Hands the graph something to keep: dtor_fn(user) runs once, when the graph and all clones,
    executables and launches made from it since are gone; on whichever thread that happens, so it
    must not block, and no function of devstream may be called there. Also when the call fails. */
DSDEF DS_MUST_USE ds_result ds_graph_attach(ds_graph graph, void *user, ds_host_fn dtor_fn);

/** What ds_graph_dot shows; the numbers are cudaGraphDebugDotFlags'. */
enum {
    DS_DOT_PLAIN = 0,        /**< kinds and names */
    DS_DOT_VERBOSE = 1,      /**< everything below */
    DS_DOT_KERNEL = 1 << 2,  /**< items, grid and arguments of kernels */
    DS_DOT_COPY = 1 << 3,    /**< operands of copies */
    DS_DOT_FILL = 1 << 4,    /**< operands of fills */
    DS_DOT_HOST = 1 << 5,    /**< functions and their argument */
    DS_DOT_EVENT = 1 << 6,   /**< events */
    DS_DOT_HANDLES = 1 << 10 /**< numbers of the nodes and where they were made */
};

/** Takes a piece of text; not 0: stop, which makes the call fail with DS_ERR_SYSTEM. May not
    call devstream. */
typedef int (*ds_write_fn)(const char *text, size_t size, void *user);
/** Writes the graph in Graphviz' language, by calls of write_fn on this thread. */
DSDEF DS_MUST_USE ds_result ds_graph_dot(ds_graph graph, unsigned flags, ds_write_fn write_fn,
                                         void *user);
/** The same into a file, which it replaces. DS_ERR_SYSTEM: it cannot be written. */
DSDEF DS_MUST_USE ds_result ds_graph_dot_file(ds_graph graph, unsigned flags, const char *path);

/** Flags of executables; the first four have CUDA's numbers. */
enum {
    /** CUDA: memory that native nodes allocate and do not free is freed at the next launch */
    DS_GRAPH_AUTO_FREE_ON_LAUNCH = 1,
    DS_GRAPH_UPLOAD = 2,        /**< upload at once, on upload_stream */
    DS_GRAPH_DEVICE_LAUNCH = 4, /**< not offered: DS_ERR_UNSUPPORTED */
    /** each node has its own priority instead of the launching stream's */
    DS_GRAPH_USE_NODE_PRIORITY = 8,
    DS_GRAPH_REPLACE_POINTERS = 256 /**< ds_graph_exec_replace_pointers may be used */
};

/** What ds_graph_instantiate takes; zero means default. */
typedef struct ds_graph_exec_desc {
    unsigned flags;          /**< DS_GRAPH_* */
    ds_stream upload_stream; /**< with DS_GRAPH_UPLOAD */
    const char *label;       /**< for messages; copied; NULL: the graph's */
} ds_graph_exec_desc;

/** Makes an executable copy of the graph as it is now. desc may be NULL. The sentence of an
    error names the node. */
DSDEF DS_MUST_USE ds_result ds_graph_instantiate(ds_graph graph, const ds_graph_exec_desc *desc,
                                                 ds_graph_exec *out);
/** Prepares the executable on the device, in stream order; runs none of it. Not needed: the
    first launch does it. DS_ERR_CROSS_DRIVER: a stream of the other driver. */
DSDEF DS_MUST_USE ds_result ds_graph_upload(ds_graph_exec exec, ds_stream stream);
/** Puts a launch on a stream of the same driver; returns at once. Launches of one executable run
    one after another, also on different streams. On a capturing stream it becomes a child node.
    DS_ERR_CROSS_DRIVER: a stream of the other driver. */
DSDEF DS_MUST_USE ds_result ds_graph_launch(ds_graph_exec exec, ds_stream stream);
/** The handle becomes invalid at once; launches that are pending still run. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_destroy(ds_graph_exec exec);

/** Why an executable does not take over a graph; the numbers are cudaGraphExecUpdateResult's. */
typedef enum ds_graph_update_reason {
    DS_GRAPH_UPDATE_SUCCESS = 0,           /**< it has */
    DS_GRAPH_UPDATE_ERROR = 1,             /**< something else, which the sentence says */
    DS_GRAPH_UPDATE_TOPOLOGY_CHANGED = 2,  /**< other nodes or dependencies */
    DS_GRAPH_UPDATE_NODE_TYPE_CHANGED = 3, /**< a node of another kind */
    DS_GRAPH_UPDATE_FUNCTION_CHANGED = 4,  /**< another kernel, where the driver cannot do that */
    /** a copy or fill of another kind of memory or device */
    DS_GRAPH_UPDATE_PARAMETERS_CHANGED = 5,
    DS_GRAPH_UPDATE_NOT_SUPPORTED = 6,               /**< something about the node */
    DS_GRAPH_UPDATE_UNSUPPORTED_FUNCTION_CHANGE = 7, /**< a kernel on another device */
    /** an attribute: with DS_GRAPH_USE_NODE_PRIORITY a kernel's priority */
    DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED = 8
} ds_graph_update_reason;

/** What ds_graph_exec_update tells. */
typedef struct ds_graph_update_info {
    ds_graph_update_reason reason; /**< why not */
    /** the first node of the given graph with that reason; zeroed: none in particular */
    ds_graph_node node;
} ds_graph_update_info;

/** Makes later launches do what `graph` does, which must have the same nodes in the same order
    with the same dependencies; launches that are pending do what they did. DS_ERR_GRAPH_UPDATE:
    the executable is unchanged, *out (may be NULL) says why. Nodes are still named by the graph
    from which the executable was made. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_update(ds_graph_exec exec, ds_graph graph,
                                                 ds_graph_update_info *out);
/** Changes what one node does in later launches; `node` is of the graph from which the
    executable was made. Neither the kind of the node nor, of copies and fills, the kind of
    memory and its device may change; the priority stays. A child's graph must have the same
    nodes and dependencies. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_set_node(ds_graph_exec exec, ds_graph_node node,
                                                   const ds_node_desc *desc);
/** Switches a kernel, copy or fill node off (0) or on for later launches; one that is off is
    passed as if it were empty. Other nodes are DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_enable_node(ds_graph_exec exec, ds_graph_node node,
                                                      int enabled);
/** 1 in *out when the node is on. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_node_enabled(ds_graph_exec exec, ds_graph_node node,
                                                       int *out);
/** For later launches: wherever a kernel's parameter that is a pointer, or an operand of a copy
    or fill, is old_pointers[i], puts new_pointers[i]; all at once, also in children.
    *out_replaced (may be NULL) counts the places. DS_ERR_ILLEGAL_STATE without
    DS_GRAPH_REPLACE_POINTERS. Pointers inside of arguments that are DS_PARAM_VALUE, and native
    nodes, are not looked at. */
DSDEF DS_MUST_USE ds_result ds_graph_exec_replace_pointers(ds_graph_exec exec,
                                                           void *const *old_pointers,
                                                           void *const *new_pointers, size_t count,
                                                           size_t *out_replaced);

/* ---- capture --------------------------------------------------------------------------------- */

/* While a stream captures, what is put on it becomes nodes of a graph and does not run. Waiting
   for an event that was recorded in the capture brings a stream into it (fork), on any device of
   the driver; before the end all such streams must be joined, by waits on the stream where it
   began. A call that does not fit invalidates the capture: from then on everything on its
   streams is DS_ERR_CAPTURE_INVALIDATED until ds_capture_end, whose sentence names the first
   such call. docs/capture.md has the table. */

/** Which calls of other kinds an open capture forbids; the numbers are CUDA's. Such calls are
    those that may wait for the device or touch the legacy stream: ds_alloc, ds_free,
    ds_host_alloc, ds_host_free, ds_host_register, ds_host_unregister, ds_device_synchronize.
    (ds_device_synchronize and ds_device_reset of a device with a stream that captures are
    refused in every mode.) */
typedef enum ds_capture_mode {
    DS_CAPTURE_GLOBAL = 0,       /**< in every thread whose own mode is global, as it is at first */
    DS_CAPTURE_THREAD_LOCAL = 1, /**< in the thread that began the capture */
    DS_CAPTURE_RELAXED = 2       /**< nowhere; and any thread may end the capture */
} ds_capture_mode;

/** Whether a stream captures. */
typedef enum ds_capture_status {
    DS_CAPTURE_NONE = 0,   /**< it does not */
    DS_CAPTURE_ACTIVE = 1, /**< it does */
    /** it did, until a call that did not fit; the capture must be ended */
    DS_CAPTURE_INVALIDATED = 2
} ds_capture_status;

/** What ds_capture_get_info tells. */
typedef struct ds_capture_info {
    ds_capture_status status; /**< the rest is 0 unless it is DS_CAPTURE_ACTIVE */
    ds_capture_mode mode;     /**< as it was begun */
    uint64_t id;              /**< a number that no other capture of this process ever had */
    ds_graph graph;           /**< the graph that is being made; nodes may be added to it by hand */
    size_t dependency_count;  /**< nodes after which the stream's next one will start */
    ds_site begun;            /**< where the capture began */
} ds_capture_info;

/** Begins a capture. The legacy stream cannot capture: DS_ERR_CAPTURE_UNSUPPORTED. A stream that
    captures already: DS_ERR_ILLEGAL_STATE, and that capture goes on. */
DSDEF DS_MUST_USE ds_result ds_capture_begin(ds_stream stream, ds_capture_mode mode);
/** As ds_capture_begin, into a graph that is there; the first node will start after
    `dependencies`. ds_capture_end gives the same graph; if the capture fails, the nodes that it
    added stay. On CUDA it needs 12.3. DS_ERR_CROSS_DRIVER: a graph of the other driver. */
DSDEF DS_MUST_USE ds_result ds_capture_begin_to_graph(ds_stream stream, ds_graph graph,
                                                      const ds_graph_node *dependencies,
                                                      size_t count, ds_capture_mode mode);
/** Ends the capture that began on this stream and gives its graph, which is the caller's. Errors
    that leave the capture open: DS_ERR_ILLEGAL_STATE (the stream does not capture),
    DS_ERR_CAPTURE_UNMATCHED (it was forked into the capture, which is invalid now),
    DS_ERR_CAPTURE_WRONG_THREAD (unless relaxed). Errors that end it without a graph:
    DS_ERR_CAPTURE_INVALIDATED, DS_ERR_CAPTURE_UNJOINED. */
DSDEF DS_MUST_USE ds_result ds_capture_end(ds_stream stream, ds_graph *out);
/** Whether the stream captures; never changes anything. On the legacy stream while a blocking
    stream of the device captures: DS_ERR_CAPTURE_IMPLICIT. */
DSDEF DS_MUST_USE ds_result ds_capture_query(ds_stream stream, ds_capture_status *out);
/** The same with all that is known of the capture. */
DSDEF DS_MUST_USE ds_result ds_capture_get_info(ds_stream stream, ds_capture_info *out);
/** Writes the nodes after which the stream's next one will start, at most room of them;
    *out_count is how many there are. DS_ERR_ILLEGAL_STATE when the stream does not capture. */
DSDEF DS_MUST_USE ds_result ds_capture_get_dependencies(ds_stream stream, ds_graph_node *out,
                                                        size_t room, size_t *out_count);

enum {
    DS_CAPTURE_ADD_DEPENDENCIES = 0, /**< besides those there are */
    /** instead of them; nodes that go this way need not be joined */
    DS_CAPTURE_SET_DEPENDENCIES = 1
};

/** Changes after which nodes of the capture's graph the stream's next one will start.
    DS_ERR_ILLEGAL_STATE when the stream does not capture. */
DSDEF DS_MUST_USE ds_result ds_capture_update_dependencies(ds_stream stream,
                                                           const ds_graph_node *nodes, size_t count,
                                                           unsigned how);
/** Exchanges the calling thread's mode, DS_CAPTURE_GLOBAL at first: a thread that is
    thread-local cares for its own captures only, a relaxed one for none. Exchange again to
    restore it. */
DSDEF DS_MUST_USE ds_result ds_capture_exchange_mode(ds_capture_mode *mode);
/** Puts work on the stream; returns a negative result to give up. */
typedef ds_result (*ds_capture_fn)(ds_stream stream, void *user);
/** Captures what fn(stream, user) puts on the stream, thread-local: calls that would spoil the
    capture are refused in this thread and other threads are left alone. If fn fails the capture
    is ended and its result returned; the stream is as before in any case. */
DSDEF DS_MUST_USE ds_result ds_capture_function(ds_stream stream, ds_capture_fn fn, void *user,
                                                ds_graph *out);

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

/** A number that a range carries: a size, a step, a loss. */
typedef struct ds_payload {
    ds_payload_kind kind; /**< which one */

    union {
        uint64_t u64; /**< DS_PAYLOAD_U64 */
        int64_t i64;  /**< DS_PAYLOAD_I64 */
        double f64;   /**< DS_PAYLOAD_F64 */
    } value;          /**< the number */
} ds_payload;

/** What the functions with _with take; zero means default, but for the text. */
typedef struct ds_range_desc {
    const char *text;   /**< must not be NULL; whoever keeps it copies it */
    ds_domain domain;   /**< zeroed: the default domain */
    uint32_t color;     /**< 0xAARRGGBB; 0: the tool's choice */
    uint32_t category;  /**< a number of the program's by which tools can filter; 0: none */
    ds_payload payload; /**< zeroed: none */
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
    /** start, end: the range's id; label of a stream: ds_stream_id; else 0 */
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
DSDEF DS_MUST_USE ds_result ds_range_hook(ds_range_fn fn, void *user);

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

/** Most virtual devices. */
#define DS_CPU_MAX_DEVICES 160

enum {
    /** every call runs its work before it returns, for debugging [DEVSTREAM_CPU_INLINE=1] */
    DS_CPU_INLINE = 1,
    /** threads sleep at once instead of spinning for a few tens of microseconds first */
    DS_CPU_NO_SPIN = 2,
    /** calls that a capture forbids on a GPU although the CPU driver could do them (ds_alloc,
        ds_free, ...: see ds_capture_mode) are allowed */
    DS_CPU_LAX_CAPTURE = 4
};

/* A fabric describes a machine that is not here: the links between devices and how fast they are.
   With one the driver has a virtual clock, in nanoseconds from 0. Everything is done as without, in
   an order and at times that follow from the description alone, so that schedules can be measured
   exactly and the same on every run, for machines of any kind.

   When work runs. It is held back until a thread of the program waits for something (also
   ds_event_query and ds_stream_query do, until nothing more can be done without the program). Then
   operations run, one at a time, until that is done, and the clock goes on to the moment at which
   it was. What is submitted counts as submitted at the clock of the call, so all that is submitted
   between two waits begins together. When nothing more can run although somebody waits, the clock
   goes on to the end of all that ran. Work is not held back for ever: when for some tenths of a
   second no call has come, or more than a million operations are queued, all of it runs.

   In which order. An operation is ready when the one before it on its stream is done, and what that
   stream waited for, but not before it was submitted. Of all ready operations the one that was
   ready first comes next, of several the one whose stream was created first. It starts when all
   that it needs is free of operations that came earlier, and nothing that comes later can delay it.

   How long it takes.
   - A copy from a to b, either of which may be the host, needs a copy engine of its stream's device
     and every link of the route from a to b. It starts when one of the engines and all the links
     are free. It holds the engine for engine_ns + bytes / the slowest link's bytes_per_s, each link
     for bytes / its own bytes_per_s (so two copies share a fast link ahead of two slow ones), and
     is done latency_ns after it gives the engine back: the latency holds nothing, and a copy on
     another stream overlaps it.
   - Without a direct route between two devices the copy is two, one after the other, from a to the
     host by an engine of a and from there to b by one of b.
   - Copies within a device, fills of its memory, and kernels with ds_kernel_desc.bytes_fn, which
     the library's own have, take the bytes that they read and write / memory_bytes_per_s; one at a
     time on a device, without engine or link. Other kernels take no time.
   - Host functions, records, waits, and what only touches host memory take no time. While a host
     function runs the clock stands, unless it takes longer than some hundredths of a second: then
     it may be waiting for something, others go on, and times depend on it.
   Bytes / a speed is the nearest number of nanoseconds to bytes * 1e9 / bytes_per_s, at least 1.
   Times of events (ds_event_elapsed_ms) are the clock's. One worker runs everything, so kernels
   that wait for each other never end. */

/** The way of a copy from one device, or from the host, to another. */
typedef struct ds_cpu_route {
    int64_t latency_ns; /**< from the end of the transfer until the copy is done */
    /** between devices: 1: the first reaches the second (ds_device_can_access_peer); 0: copies
        go through the host */
    int direct;
    size_t hops;     /**< links on the way */
    const int *link; /**< their indices, each once */
} ds_cpu_route;

enum {
    /** copies, fills, and kernels with bytes_fn take their time but do nothing; device memory is
        address space that costs nothing until it is touched, and without a memory_limit each
        device has 256 GiB of it */
    DS_CPU_DRY = 1
};

/** The links between devices; see above. */
typedef struct ds_cpu_fabric {
    int devices;                    /**< of which it is; ds_cpu_desc.devices is the same or 0 */
    size_t links;                   /**< number of links, each of one direction */
    const double *link_bytes_per_s; /**< of each link, at least 1 */
    /** (devices + 1) x (devices + 1), row: from, column: to; index `devices` is host memory */
    const ds_cpu_route *route;
    int engines; /**< copy engines of each device, up to 64; 0: 3 */
    /** for which a copy holds its engine besides the transfer; 0: 1500 */
    int64_t engine_ns;
    double memory_bytes_per_s; /**< of a device's memory, read and written; 0: 2e12 */
    unsigned flags;            /**< DS_CPU_DRY or 0 */
} ds_cpu_fabric;

/** Options of the CPU driver; zero means default. */
typedef struct ds_cpu_desc {
    /** virtual devices, 1 to DS_CPU_MAX_DEVICES; 0: 1 [DEVSTREAM_CPU_DEVICES] */
    int devices;
    /** threads that run copies, fills and kernels, 1 to 256; 0: one per processor, at least 2
        [DEVSTREAM_CPU_WORKERS] */
    int workers;
    /** bytes of each device; 0: the machine's memory [DEVSTREAM_CPU_MEMORY] */
    size_t memory_limit;
    /** devices x devices, row = device that reaches, 1 = can; NULL: all can */
    const unsigned char *peer_access;
    unsigned flags; /**< DS_CPU_* */
    /** not 0: a scheduler that takes ready streams in a random order drawn from this seed, one
        operation at a time, to bring out ordering bugs [DEVSTREAM_CPU_SEED] */
    uint64_t seed;
    /** NULL: none; else a virtual clock with modelled links: workers and what the environment
        says of devices, inline mode and seed have no effect, and peer_access, DS_CPU_INLINE and
        seed must not be given; copied by ds_init */
    const ds_cpu_fabric *fabric;
} ds_cpu_desc;

/** Counters of the CPU driver since it was initialised, for tests and reports. */
typedef struct ds_cpu_stats {
    uint64_t operations;    /**< operations finished */
    uint64_t staged_copies; /**< copies between devices that cannot reach each other */
    /** operations that the calling thread ran at once on an idle stream */
    uint64_t inline_operations;
    uint64_t helped;    /**< times a waiting host thread ran a stream */
    int workers;        /**< worker threads */
    int host_threads;   /**< threads for host functions, so far */
    int streams;        /**< streams alive, destroyed ones that still have work included */
    size_t queue_bytes; /**< memory that holds pending operations, spare blocks included */
} ds_cpu_stats;

/** Reads the counters; zeros before first use. Any thread, also while work runs. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_stats(ds_cpu_stats *out);

/** The virtual time now, in nanoseconds: all that the program has waited for so far was done by
    then. Runs nothing itself. DS_ERR_UNSUPPORTED without a fabric. */
DSDEF DS_MUST_USE ds_result ds_cpu_clock(int64_t *out_ns);

/* ---- call sites ------------------------------------------------------------------------------ */

/** The calling thread's site for its next call. */
DSDATA __thread ds_site ds_call_site;

#ifdef __cplusplus
} /* extern "C" */
#endif

#define DS_JOIN2_(a, b) a##b
#define DS_JOIN_(a, b) DS_JOIN2_(a, b)
#ifdef __cplusplus
struct ds_stream_guard_ {
    ds_scope s;

    ds_stream_guard_(ds_stream stream, unsigned flags) : s(ds_stream_scope_enter(stream, flags)) {
    }

    ~ds_stream_guard_() {
        ds_stream_scope_leave(&s);
    }

  private:
    ds_stream_guard_(const ds_stream_guard_ &);
    ds_stream_guard_ &operator=(const ds_stream_guard_ &);
};

struct ds_device_guard_ {
    ds_scope s;

    explicit ds_device_guard_(ds_device device) : s(ds_device_scope_enter(device)) {
    }

    ~ds_device_guard_() {
        ds_device_scope_leave(&s);
    }

  private:
    ds_device_guard_(const ds_device_guard_ &);
    ds_device_guard_ &operator=(const ds_device_guard_ &);
};

struct ds_device_of_guard_ {
    ds_scope s;

    explicit ds_device_of_guard_(const void *ptr) : s(ds_device_of_scope_enter(ptr)) {
    }

    ~ds_device_of_guard_() {
        ds_device_scope_leave(&s);
    }

  private:
    ds_device_of_guard_(const ds_device_of_guard_ &);
    ds_device_of_guard_ &operator=(const ds_device_of_guard_ &);
};

struct ds_range_guard_ {
    ds_range_scope s;

    explicit ds_range_guard_(const ds_range_scope &scope) : s(scope) {
    }

    ~ds_range_guard_() {
        ds_range_scope_leave(&s);
    }

  private:
    ds_range_guard_(const ds_range_guard_ &);
    ds_range_guard_ &operator=(const ds_range_guard_ &);
};

#define DS_SCOPE_(var, guard, args) for (guard var args; var.s.once; var.s.once = 0)
#define DS_STREAM_SCOPE_FLAGS(stream, flags) \
    DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_stream_guard_, (stream, flags))
#define DS_DEVICE_SCOPE(device) DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_device_guard_, (device))
#define DS_DEVICE_OF_SCOPE(ptr) \
    DS_SCOPE_(DS_JOIN_(ds_of_scope_, __LINE__), ds_device_of_guard_, (ptr))
#define DS_RANGE_SCOPE_(var, enter) DS_SCOPE_(var, ds_range_guard_, (enter))
#else
#define DS_SCOPE_(var, enter, leave) \
    for (ds_scope var __attribute__((cleanup(leave))) = enter; var.once; var.once = 0)
/** DS_DEVICE_OF_SCOPE(ptr) { ... }: DS_DEVICE_SCOPE of the pointer's device; for host memory the
    current device stays. */
#define DS_DEVICE_OF_SCOPE(ptr)                                                \
    DS_SCOPE_(DS_JOIN_(ds_of_scope_, __LINE__), ds_device_of_scope_enter(ptr), \
              ds_device_scope_leave)
#define DS_RANGE_SCOPE_(var, enter)                                                           \
    for (ds_range_scope var __attribute__((cleanup(ds_range_scope_leave))) = enter; var.once; \
         var.once = 0)
/** DS_STREAM_SCOPE with flags of ds_stream_push. */
#define DS_STREAM_SCOPE_FLAGS(stream, flags)                                       \
    DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_stream_scope_enter(stream, flags), \
              ds_stream_scope_leave)
/** DS_DEVICE_SCOPE(device) { ... }: ds_device_push before the block and ds_device_pop however it
    is left. When the push fails the block is not entered, and ds_last_error() says why. */
#define DS_DEVICE_SCOPE(device) \
    DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_device_scope_enter(device), ds_device_scope_leave)
#endif
/** DS_STREAM_SCOPE(stream) { ... }: ds_stream_push before the block and ds_stream_pop however it
    is left (break, return and goto included). When the push fails the block is not entered, and
    ds_last_error() says why. */
#define DS_STREAM_SCOPE(stream) DS_STREAM_SCOPE_FLAGS(stream, 0u)
/** DS_RANGE_SCOPE("step") { ... }: ds_range_push before the block and its pop however it is
    left. The block runs in any case. */
#define DS_RANGE_SCOPE(text) \
    DS_RANGE_SCOPE_(DS_JOIN_(ds_range_scope_, __LINE__), ds_range_scope_enter(text))
/** The same with ds_range_push_with. */
#define DS_RANGE_SCOPE_WITH(desc) \
    DS_RANGE_SCOPE_(DS_JOIN_(ds_range_scope_, __LINE__), ds_range_scope_enter_with(desc))

#ifndef DEVSTREAM_NO_SITES

/* Each verb as a macro of the same name, which stores the caller's file and line for the function
   to take. */
#define DS_HERE_ ((void)(ds_call_site.file = __FILE__, ds_call_site.line = __LINE__))
#define ds_init(...) (DS_HERE_, ds_init(__VA_ARGS__))
#define ds_shutdown() (DS_HERE_, ds_shutdown())
#define ds_sync_debug_set(...) (DS_HERE_, ds_sync_debug_set(__VA_ARGS__))
#define ds_sync_debug_set_text(...) (DS_HERE_, ds_sync_debug_set_text(__VA_ARGS__))
#define ds_sync_debug_get(...) (DS_HERE_, ds_sync_debug_get(__VA_ARGS__))
#define ds_backend_get(...) (DS_HERE_, ds_backend_get(__VA_ARGS__))
#define ds_backend_report(...) (DS_HERE_, ds_backend_report(__VA_ARGS__))
#define ds_is_available(...) (DS_HERE_, ds_is_available(__VA_ARGS__))
#define ds_arch_list(...) (DS_HERE_, ds_arch_list(__VA_ARGS__))
#define ds_device_count(...) (DS_HERE_, ds_device_count(__VA_ARGS__))
#define ds_device_parse(...) (DS_HERE_, ds_device_parse(__VA_ARGS__))
#define ds_device_print(...) (DS_HERE_, ds_device_print(__VA_ARGS__))
#define ds_device_get(...) (DS_HERE_, ds_device_get(__VA_ARGS__))
#define ds_device_set(...) (DS_HERE_, ds_device_set(__VA_ARGS__))
#define ds_device_push(...) (DS_HERE_, ds_device_push(__VA_ARGS__))
#define ds_device_pop() (DS_HERE_, ds_device_pop())
#define ds_device_get_properties(...) (DS_HERE_, ds_device_get_properties(__VA_ARGS__))
#define ds_device_name(...) (DS_HERE_, ds_device_name(__VA_ARGS__))
#define ds_device_capability(...) (DS_HERE_, ds_device_capability(__VA_ARGS__))
#define ds_uuid_print(...) (DS_HERE_, ds_uuid_print(__VA_ARGS__))
#define ds_device_memory_info(...) (DS_HERE_, ds_device_memory_info(__VA_ARGS__))
#define ds_device_synchronize(...) (DS_HERE_, ds_device_synchronize(__VA_ARGS__))
#define ds_device_reset(...) (DS_HERE_, ds_device_reset(__VA_ARGS__))
#define ds_device_can_access_peer(...) (DS_HERE_, ds_device_can_access_peer(__VA_ARGS__))
#define ds_device_priority_range(...) (DS_HERE_, ds_device_priority_range(__VA_ARGS__))
#define ds_device_utilization(...) (DS_HERE_, ds_device_utilization(__VA_ARGS__))
#define ds_device_temperature(...) (DS_HERE_, ds_device_temperature(__VA_ARGS__))
#define ds_device_power_draw(...) (DS_HERE_, ds_device_power_draw(__VA_ARGS__))
#define ds_device_clock_rate(...) (DS_HERE_, ds_device_clock_rate(__VA_ARGS__))
#define ds_device_set_label(...) (DS_HERE_, ds_device_set_label(__VA_ARGS__))
#define ds_device_label(...) (DS_HERE_, ds_device_label(__VA_ARGS__))
#define ds_priority_from_paddle(...) (DS_HERE_, ds_priority_from_paddle(__VA_ARGS__))
#define ds_stream_create(...) (DS_HERE_, ds_stream_create(__VA_ARGS__))
#define ds_stream_retain(...) (DS_HERE_, ds_stream_retain(__VA_ARGS__))
#define ds_stream_destroy(...) (DS_HERE_, ds_stream_destroy(__VA_ARGS__))
#define ds_stream_query(...) (DS_HERE_, ds_stream_query(__VA_ARGS__))
#define ds_stream_synchronize(...) (DS_HERE_, ds_stream_synchronize(__VA_ARGS__))
#define ds_stream_synchronize_for(...) (DS_HERE_, ds_stream_synchronize_for(__VA_ARGS__))
#define ds_stream_legacy(...) (DS_HERE_, ds_stream_legacy(__VA_ARGS__))
#define ds_stream_per_thread(...) (DS_HERE_, ds_stream_per_thread(__VA_ARGS__))
#define ds_stream_default(...) (DS_HERE_, ds_stream_default(__VA_ARGS__))
#define ds_stream_wrap(...) (DS_HERE_, ds_stream_wrap(__VA_ARGS__))
#define ds_stream_export(...) (DS_HERE_, ds_stream_export(__VA_ARGS__))
#define ds_stream_unwrap(...) (DS_HERE_, ds_stream_unwrap(__VA_ARGS__))
#define ds_stream_id(...) (DS_HERE_, ds_stream_id(__VA_ARGS__))
#define ds_stream_device(...) (DS_HERE_, ds_stream_device(__VA_ARGS__))
#define ds_stream_flags(...) (DS_HERE_, ds_stream_flags(__VA_ARGS__))
#define ds_stream_priority(...) (DS_HERE_, ds_stream_priority(__VA_ARGS__))
#define ds_stream_label(...) (DS_HERE_, ds_stream_label(__VA_ARGS__))
#define ds_stream_set_label(...) (DS_HERE_, ds_stream_set_label(__VA_ARGS__))
#define ds_stream_current(...) (DS_HERE_, ds_stream_current(__VA_ARGS__))
#define ds_stream_use(...) (DS_HERE_, ds_stream_use(__VA_ARGS__))
#define ds_stream_push(...) (DS_HERE_, ds_stream_push(__VA_ARGS__))
#define ds_stream_pop() (DS_HERE_, ds_stream_pop())
#define ds_stream_scope_enter(...) (DS_HERE_, ds_stream_scope_enter(__VA_ARGS__))
#define ds_device_scope_enter(...) (DS_HERE_, ds_device_scope_enter(__VA_ARGS__))
#define ds_event_create(...) (DS_HERE_, ds_event_create(__VA_ARGS__))
#define ds_event_destroy(...) (DS_HERE_, ds_event_destroy(__VA_ARGS__))
#define ds_event_record(...) (DS_HERE_, ds_event_record(__VA_ARGS__))
#define ds_stream_record_new(...) (DS_HERE_, ds_stream_record_new(__VA_ARGS__))
#define ds_stream_wait_event(...) (DS_HERE_, ds_stream_wait_event(__VA_ARGS__))
#define ds_stream_wait_stream(...) (DS_HERE_, ds_stream_wait_stream(__VA_ARGS__))
#define ds_event_record_external(...) (DS_HERE_, ds_event_record_external(__VA_ARGS__))
#define ds_stream_wait_event_external(...) (DS_HERE_, ds_stream_wait_event_external(__VA_ARGS__))
#define ds_event_query(...) (DS_HERE_, ds_event_query(__VA_ARGS__))
#define ds_event_synchronize(...) (DS_HERE_, ds_event_synchronize(__VA_ARGS__))
#define ds_event_synchronize_for(...) (DS_HERE_, ds_event_synchronize_for(__VA_ARGS__))
#define ds_event_elapsed_ms(...) (DS_HERE_, ds_event_elapsed_ms(__VA_ARGS__))
#define ds_event_device(...) (DS_HERE_, ds_event_device(__VA_ARGS__))
#define ds_event_flags(...) (DS_HERE_, ds_event_flags(__VA_ARGS__))
#define ds_event_export(...) (DS_HERE_, ds_event_export(__VA_ARGS__))
#define ds_event_import(...) (DS_HERE_, ds_event_import(__VA_ARGS__))
#define ds_alloc(...) (DS_HERE_, ds_alloc(__VA_ARGS__))
#define ds_alloc_pitch(...) (DS_HERE_, ds_alloc_pitch(__VA_ARGS__))
#define ds_free(...) (DS_HERE_, ds_free(__VA_ARGS__))
#define ds_host_alloc(...) (DS_HERE_, ds_host_alloc(__VA_ARGS__))
#define ds_host_free(...) (DS_HERE_, ds_host_free(__VA_ARGS__))
#define ds_host_register(...) (DS_HERE_, ds_host_register(__VA_ARGS__))
#define ds_host_unregister(...) (DS_HERE_, ds_host_unregister(__VA_ARGS__))
#define ds_pointer_query(...) (DS_HERE_, ds_pointer_query(__VA_ARGS__))
#define ds_device_of(...) (DS_HERE_, ds_device_of(__VA_ARGS__))
#define ds_device_of_scope_enter(...) (DS_HERE_, ds_device_of_scope_enter(__VA_ARGS__))
#define ds_copy(...) (DS_HERE_, ds_copy(__VA_ARGS__))
#define ds_copy_with(...) (DS_HERE_, ds_copy_with(__VA_ARGS__))
#define ds_copy_2d(...) (DS_HERE_, ds_copy_2d(__VA_ARGS__))
#define ds_copy_peer(...) (DS_HERE_, ds_copy_peer(__VA_ARGS__))
#define ds_fill(...) (DS_HERE_, ds_fill(__VA_ARGS__))
#define ds_fill_2d(...) (DS_HERE_, ds_fill_2d(__VA_ARGS__))
#define ds_launch_host_func(...) (DS_HERE_, ds_launch_host_func(__VA_ARGS__))
#define ds_add_callback(...) (DS_HERE_, ds_add_callback(__VA_ARGS__))
#define ds_dtype_print(...) (DS_HERE_, ds_dtype_print(__VA_ARGS__))
#define ds_dtype_parse(...) (DS_HERE_, ds_dtype_parse(__VA_ARGS__))
#define ds_kernel_create(...) (DS_HERE_, ds_kernel_create(__VA_ARGS__))
#define ds_kernel_load(...) (DS_HERE_, ds_kernel_load(__VA_ARGS__))
#define ds_kernel_destroy(...) (DS_HERE_, ds_kernel_destroy(__VA_ARGS__))
#define ds_launch(...) (DS_HERE_, ds_launch(__VA_ARGS__))
#define ds_launch_grid(...) (DS_HERE_, ds_launch_grid(__VA_ARGS__))
#define ds_graph_create(...) (DS_HERE_, ds_graph_create(__VA_ARGS__))
#define ds_graph_destroy(...) (DS_HERE_, ds_graph_destroy(__VA_ARGS__))
#define ds_graph_clone(...) (DS_HERE_, ds_graph_clone(__VA_ARGS__))
#define ds_graph_find_in_clone(...) (DS_HERE_, ds_graph_find_in_clone(__VA_ARGS__))
#define ds_graph_add(...) (DS_HERE_, ds_graph_add(__VA_ARGS__))
#define ds_graph_add_edges(...) (DS_HERE_, ds_graph_add_edges(__VA_ARGS__))
#define ds_graph_get_nodes(...) (DS_HERE_, ds_graph_get_nodes(__VA_ARGS__))
#define ds_graph_get_edges(...) (DS_HERE_, ds_graph_get_edges(__VA_ARGS__))
#define ds_graph_get_node(...) (DS_HERE_, ds_graph_get_node(__VA_ARGS__))
#define ds_graph_set_node(...) (DS_HERE_, ds_graph_set_node(__VA_ARGS__))
#define ds_graph_attach(...) (DS_HERE_, ds_graph_attach(__VA_ARGS__))
#define ds_graph_dot(...) (DS_HERE_, ds_graph_dot(__VA_ARGS__))
#define ds_graph_dot_file(...) (DS_HERE_, ds_graph_dot_file(__VA_ARGS__))
#define ds_graph_instantiate(...) (DS_HERE_, ds_graph_instantiate(__VA_ARGS__))
#define ds_graph_upload(...) (DS_HERE_, ds_graph_upload(__VA_ARGS__))
#define ds_graph_launch(...) (DS_HERE_, ds_graph_launch(__VA_ARGS__))
#define ds_graph_exec_destroy(...) (DS_HERE_, ds_graph_exec_destroy(__VA_ARGS__))
#define ds_graph_exec_update(...) (DS_HERE_, ds_graph_exec_update(__VA_ARGS__))
#define ds_graph_exec_set_node(...) (DS_HERE_, ds_graph_exec_set_node(__VA_ARGS__))
#define ds_graph_exec_enable_node(...) (DS_HERE_, ds_graph_exec_enable_node(__VA_ARGS__))
#define ds_graph_exec_node_enabled(...) (DS_HERE_, ds_graph_exec_node_enabled(__VA_ARGS__))
#define ds_graph_exec_replace_pointers(...) (DS_HERE_, ds_graph_exec_replace_pointers(__VA_ARGS__))
#define ds_capture_begin(...) (DS_HERE_, ds_capture_begin(__VA_ARGS__))
#define ds_capture_begin_to_graph(...) (DS_HERE_, ds_capture_begin_to_graph(__VA_ARGS__))
#define ds_capture_end(...) (DS_HERE_, ds_capture_end(__VA_ARGS__))
#define ds_capture_query(...) (DS_HERE_, ds_capture_query(__VA_ARGS__))
#define ds_capture_get_info(...) (DS_HERE_, ds_capture_get_info(__VA_ARGS__))
#define ds_capture_get_dependencies(...) (DS_HERE_, ds_capture_get_dependencies(__VA_ARGS__))
#define ds_capture_update_dependencies(...) (DS_HERE_, ds_capture_update_dependencies(__VA_ARGS__))
#define ds_capture_exchange_mode(...) (DS_HERE_, ds_capture_exchange_mode(__VA_ARGS__))
#define ds_capture_function(...) (DS_HERE_, ds_capture_function(__VA_ARGS__))
#define ds_domain_create(...) (DS_HERE_, ds_domain_create(__VA_ARGS__))
#define ds_range_mark(...) (DS_HERE_, ds_range_mark(__VA_ARGS__))
#define ds_range_mark_with(...) (DS_HERE_, ds_range_mark_with(__VA_ARGS__))
#define ds_range_push(...) (DS_HERE_, ds_range_push(__VA_ARGS__))
#define ds_range_push_with(...) (DS_HERE_, ds_range_push_with(__VA_ARGS__))
#define ds_range_pop() (DS_HERE_, ds_range_pop())
#define ds_range_pop_in(...) (DS_HERE_, ds_range_pop_in(__VA_ARGS__))
#define ds_range_start(...) (DS_HERE_, ds_range_start(__VA_ARGS__))
#define ds_range_start_with(...) (DS_HERE_, ds_range_start_with(__VA_ARGS__))
#define ds_range_end(...) (DS_HERE_, ds_range_end(__VA_ARGS__))
#define ds_range_hook(...) (DS_HERE_, ds_range_hook(__VA_ARGS__))
#define ds_thread_set_label(...) (DS_HERE_, ds_thread_set_label(__VA_ARGS__))
#define ds_range_scope_enter(...) (DS_HERE_, ds_range_scope_enter(__VA_ARGS__))
#define ds_range_scope_enter_with(...) (DS_HERE_, ds_range_scope_enter_with(__VA_ARGS__))
#define ds_cpu_get_stats(...) (DS_HERE_, ds_cpu_get_stats(__VA_ARGS__))
#define ds_cpu_clock(...) (DS_HERE_, ds_cpu_clock(__VA_ARGS__))

#endif

#endif /* DEVSTREAM_H_INCLUDED */

/* ============================================================================================= */
#if defined(DEVSTREAM_IMPLEMENTATION) && !defined(DEVSTREAM_H_IMPLEMENTED)
#define DEVSTREAM_H_IMPLEMENTED
#ifdef __cplusplus
#error "devstream is implemented in C: compile devstream.c with a C compiler and link it"
#else

/* os/os.h - entry to the operating-system layer.

   Refuses unsupported processors and compilers, and includes the rooms of this layer. Other
   layers include this file and not linux.h or lock.h.

   Invariants: except for entry files and the list of drivers, no other room may have a
   conditional around an include. Linux on x86-64 and aarch64 is the only platform so far.
   Locks: none.
   Threads: any. */

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "devstream is implemented for x86-64 and aarch64 only, so far"
#endif
#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L || defined(__STDC_NO_ATOMICS__)
#error "devstream needs C11 with atomics: compile with -std=c11 or newer"
#endif

/* os/linux.h - Linux, C library and processor.

   Wraps the calls that depend on Linux, the C library or the processor. They concern the clock,
   futexes, address space, shared memory, byte locks of files and signal masks. The main users
   are the CPU driver and the shared-memory registry (base/ipc_board.h).

   Invariants: sizes and alignments of reserved address space are multiples of a page. A shared
   memory object (ds__os_memfd) has no name in the file system and never changes its size.
   ds__os_memfd_open opens only an object with the given cookie and size. Both report the cause
   of a failure in errno.
   Locks: none inside the process. A byte lock (ds__os_hold_byte) belongs to an open file and is
   requested without waiting. The kernel releases it when the file is closed or the process
   ends.
   Threads: any; no function keeps state of its own. ds__os_block_signals changes the mask of
   the calling thread only, which must be a thread of the library. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- >>os: all that depends on Linux, the C library and the processor ------------------------ */

/* What strict -std=c11 hides. */
extern long syscall(long number, ...);
/* clockid_t is an int in glibc and musl */
extern int clock_gettime(int clock, struct timespec *out);
extern int madvise(void *at, size_t size, int advice);

#define DS__LIKELY(x) __builtin_expect(!!(x), 1)
#define DS__UNLIKELY(x) __builtin_expect(!!(x), 0)
#define DS__FOREVER UINT64_MAX
#define DS__SEAM __attribute__((unused)) /* what only some drivers use */

#if defined(__SANITIZE_THREAD__)
#define DS__SANITIZED 1
#elif defined(__SANITIZE_ADDRESS__)
#define DS__SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || \
    __has_feature(memory_sanitizer)
#define DS__SANITIZED 1
#endif
#endif

/* Nanoseconds of the monotonic clock. */
DS__SEAM static uint64_t ds__now_ns(void) {
    struct timespec t;
    clock_gettime(1 /* CLOCK_MONOTONIC */, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void ds__pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ __volatile__("yield");
#endif
}

/* Asks for a cache line that will be written soon and that another processor may have; any
   address is allowed. */
static inline void ds__own_line(const void *line) {
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw (%0)" : : "r"(line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* Sleeps while *word == value; returns at a wake, a signal, or after timeout_ns. */
DS__SEAM static void ds__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    struct timespec t;
    struct timespec *limit = NULL;
    if (timeout_ns != DS__FOREVER) {
        t.tv_sec = (time_t)(timeout_ns / 1000000000u);
        t.tv_nsec = (long)(timeout_ns % 1000000000u);
        limit = &t;
    }
    syscall(SYS_futex, word, 128 /* FUTEX_WAIT_PRIVATE */, value, limit, NULL, 0);
}

DS__SEAM static void ds__futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, 129 /* FUTEX_WAKE_PRIVATE */, count, NULL, NULL, 0);
}

/* Processors this process may run on. */
DS__SEAM static int ds__os_processors(void) {
    unsigned long mask[64];
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    int n = 0;
    for (long i = 0; i < bytes / (long)sizeof mask[0]; i++)
        n += __builtin_popcountl(mask[i]);
    return n > 0 ? n : 1;
}

DS__SEAM static size_t ds__os_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : (size_t)1 << 30;
}

/* Address space without memory behind it, aligned to a power of two; NULL: there is none. A size
   is a multiple of a page. */
DS__SEAM static void *ds__os_reserve(size_t size, size_t align) {
    const int flags = MAP_PRIVATE | 0x20 /* MAP_ANONYMOUS */ | 0x4000 /* MAP_NORESERVE */;
    if (size > SIZE_MAX - align)
        return NULL;
    char *at = mmap(NULL, size + align, PROT_NONE, flags, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t before = (align - (uintptr_t)at % align) % align;
    if (before)
        munmap(at, before);
    munmap(at + before + size, align - before);
    return at + before;
}

/* Puts zeroed memory there, in large pages where the system has them; 0: it has none. */
DS__SEAM static int ds__os_commit(void *at, size_t size) {
    if (mprotect(at, size, PROT_READ | PROT_WRITE))
        return 0;
    madvise(at, size, 14 /* MADV_HUGEPAGE */);
    return 1;
}

/* The memory is the system's again, and whoever touches the addresses dies. When there are too
   many pieces for the system to remember, they can still be touched. */
DS__SEAM static void ds__os_decommit(void *at, size_t size) {
    const int flags =
        MAP_PRIVATE | MAP_FIXED | 0x20 /* MAP_ANONYMOUS */ | 0x4000 /* MAP_NORESERVE */;
    if (mmap(at, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        madvise(at, size, 4 /* MADV_DONTNEED */);
}

DS__SEAM static void ds__os_unreserve(void *at, size_t size) {
    munmap(at, size);
}

/* Memory that other processes can open although it has no name that could stay behind:
   /proc/PID/fd/N leads to it, and `cookie`, which nothing else has, tells that it does. It has
   its size for good, but nothing behind it yet; -1: the system refuses (errno). */
DS__SEAM static int ds__os_memfd(size_t size, uint64_t cookie) {
    char name[48];
    snprintf(name, sizeof name, "devstream-%016llx", (unsigned long long)cookie);
    int fd = (int)syscall(SYS_memfd_create, name, 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
    if (fd >= 0 && (syscall(SYS_ftruncate, fd, (long)size) ||
                    fcntl(fd, 1033 /* F_ADD_SEALS */, 6 /* F_SEAL_SHRINK | F_SEAL_GROW */))) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Where a symbolic link leads, as it says it; 0: it is none, or longer than there is room. */
DS__SEAM static int ds__os_link(const char *path, char *out, size_t size) {
    long n = syscall(SYS_readlinkat, -100 /* AT_FDCWD */, path, out, size);
    if (n <= 0 || (size_t)n >= size)
        return 0;
    out[n] = 0;
    return 1;
}

/* Whether it is so of one of the names in a folder. */
DS__SEAM static int ds__os_any(const char *path, int (*is_fn)(const char *name)) {
    DIR *folder = opendir(path);
    int is = 0;
    for (struct dirent *one; folder && !is && (one = readdir(folder)) != NULL;)
        is = is_fn(one->d_name);
    if (folder)
        closedir(folder);
    return is;
}

static int ds__os_is_memfd(const char *path, uint64_t cookie) {
    char link[96];
    char name[48];
    snprintf(name, sizeof name, "devstream-%016llx", (unsigned long long)cookie);
    return ds__os_link(path, link, sizeof link) && strstr(link, name) != NULL;
}

/* The memory of another process; -1, and errno says why: ENOENT when that has ended or closed
   it. */
DS__SEAM static int ds__os_memfd_open(int pid, int fd, uint64_t cookie, size_t size) {
    char path[48];
    char mine[48];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    if (!ds__os_is_memfd(path, cookie)) { /* so that nothing else is opened: it might be a device */
        if (errno != EACCES && errno != EPERM)
            errno = ENOENT;
        return -1;
    }
    int got = open(path, O_RDWR | 0x80000 /* O_CLOEXEC */);
    if (got < 0)
        return -1;
    snprintf(mine, sizeof mine, "/proc/self/fd/%d", got);
    if (ds__os_is_memfd(mine, cookie) && (size_t)lseek(got, 0, SEEK_END) == size)
        return got;
    close(got);
    errno = ENOENT;
    return -1;
}

/* Puts memory behind these bytes, so that touching them cannot fail; 0: there is none. */
DS__SEAM static int ds__os_memfd_reserve(int fd, size_t at, size_t size) {
    long r;
    do
        r = syscall(SYS_fallocate, fd, 0, (long)at, (long)size);
    while (r && errno == EINTR);
    return r == 0;
}

DS__SEAM static void *ds__os_memfd_map(int fd, size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* A forked child does not get it, nor the open file with it. */
DS__SEAM static int ds__os_keep_from_child(void *at, size_t size) {
    return madvise(at, size, 10 /* MADV_DONTFORK */) == 0;
}

DS__SEAM static void ds__os_unmap(void *at, size_t size) {
    munmap(at, size);
}

/* Takes the lock of a byte for the open file, until that is closed, at the latest by the kernel
   when the process ends. */
static int ds__os_lock_byte(int fd, uint64_t byte, int command) {
    struct flock f;
    memset(&f, 0, sizeof f);
    f.l_type = F_WRLCK;
    f.l_whence = SEEK_SET;
    f.l_start = (long)byte;
    f.l_len = 1;
    if (fcntl(fd, command, &f))
        return -1;
    return f.l_type != F_UNLCK;
}

DS__SEAM static int ds__os_hold_byte(int fd, uint64_t byte) {
    return ds__os_lock_byte(fd, byte, 37 /* F_OFD_SETLK */) >= 0;
}

/* 1: somebody else holds it. */
DS__SEAM static int ds__os_byte_held(int fd, uint64_t byte) {
    return ds__os_lock_byte(fd, byte, 36 /* F_OFD_GETLK */) != 0;
}

/* A number that is unlikely to come twice. */
DS__SEAM static uint64_t ds__os_cookie(void) {
    uint64_t n = 0;
    if (syscall(SYS_getrandom, &n, sizeof n, 0) != (long)sizeof n || n == 0)
        n = ds__now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)&n ^ (uint64_t)getpid() << 32;
    return n ? n : 1;
}

/* As the two above, between processes. */
DS__SEAM static void ds__futex_wake_shared(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, 1 /* FUTEX_WAKE */, INT_MAX, NULL, NULL, 0);
}

/* struct futex_waitv */
typedef struct ds__sleep {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t zero;
} ds__sleep;

/* Sleeps while all words have these values. A system before Linux 5.16 cannot wait for several:
   there it sleeps for half a millisecond. */
DS__SEAM static void ds__futex_wait_any(ds__sleep *list, unsigned count, uint64_t timeout_ns) {
    uint64_t until = ds__now_ns() + timeout_ns;
    struct timespec t = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    struct timespec nap = { 0, 500000 };
    if (syscall(449 /* SYS_futex_waitv */, list, count, 0, &t, 1 /* CLOCK_MONOTONIC */) < 0 &&
        errno == ENOSYS)
        syscall(SYS_nanosleep, &nap, NULL);
}

/* The library's threads take no signals: handlers run on the threads of the program. Left open
   are the C library's own (32 to 34: setuid asks every thread with one) and those of a fault,
   which belong to the thread that has it. */
DS__SEAM static void ds__os_block_signals(void) {
    static const int
        open[] = { 32,           33,          34,          4 /* ILL */,   5 /* TRAP */,
                   6 /* ABRT */, 7 /* BUS */, 8 /* FPE */, 11 /* SEGV */, 31 /* SYS */ };
    uint64_t set = ~(uint64_t)0;
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++)
        set &= ~((uint64_t)1 << (open[i] - 1));
    syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &set, NULL, sizeof set);
}

/* os/lock.h - spin lock.

   Provides ds__lock, a lock for critical sections of a few dozen instructions. A waiter spins
   64 times and then yields the processor before each further attempt.

   Invariants: a zeroed lock is free and needs no other initialisation. The lock is not
   recursive, and waiters get it in no particular order.
   Locks: each ds__lock is one. Its holder must not sleep, wait for a driver or run user code.
   Threads: any. Writes of one holder are visible to the next holder. */

/* A lock for a few dozen instructions. A waiter yields, because on few processors the holder may
   be off the processor. */
typedef struct ds__lock {
    _Atomic uint32_t taken;
} ds__lock;

static inline int ds__trylock(ds__lock *lock) {
    return atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0;
}

static void ds__lock_slow(ds__lock *lock) {
    for (int spins = 0;; spins++) {
        if (atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 && ds__trylock(lock))
            return;
        if (spins < 64)
            ds__pause();
        else
            syscall(SYS_sched_yield);
    }
}

static inline void ds__lock_take(ds__lock *lock) {
    if (DS__UNLIKELY(!ds__trylock(lock)))
        ds__lock_slow(lock);
}

static inline void ds__lock_give(ds__lock *lock) {
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

/* base/device_code.h - markers of functions shared with device code.

   Defines DS__DEVICE and DS__CONSTANT for rooms that are compiled both as C and as device code:
   the arithmetic of the kernels in comm/ and rng/. For device code kernels/device.h defines both
   macros before it includes such a room; in C they mean `static inline` and `static const`.

   Invariants: a room that uses the markers includes nothing else but this room.
   Locks: none.
   Threads: any. */

#ifndef DS__DEVICE
#include <stdint.h>
#include <string.h>
#define DS__DEVICE static inline
#define DS__CONSTANT static const
#endif

/* base/thread_block.h - thread-local block of the library.

   Defines the state that every thread has in thread-local memory (ds__tls): the running public
   function and its call site, the last error, the capture mode, and recent results of pointer
   look-ups (ds__found). The public thread-local call site (ds_call_site) is defined here, too.

   Invariants: ds__tls.thread is valid only if `epoch` equals ds__g.epoch. While in_callback is
   set, public calls are refused, except those callable anywhere. While upper_locked is not 0,
   nothing is reclaimed. The entries of `hit` are valid only for the table version in
   hit_version.
   Locks: none.
   Threads: each thread uses its own block only. Threads of the library have a block, too, but no
   thread state (`thread`). */

typedef struct ds__thread ds__thread;

/* A range of memory as a look-up finds it. */
typedef struct ds__found {
    uintptr_t base;
    uintptr_t end;
    ds_memory_kind kind;
    int held; /* DS__HELD_* or 0 */
    int backend;
    int device;
} ds__found;

#define DS__DOMAINS 64 /* of ranges, with the default one */
#define DS__HITS 12    /* a collective of eight devices looks at nine ranges, again and again */

/* What each thread has; the rest of its state hangs on `thread`, which a use of the thread's
   device or streams makes. */
typedef struct ds__tls_block {
    const char *fn;  /* the public function that runs */
    ds_site site;    /* where it was called from */
    int in_callback; /* inside of the user's code that devstream runs */
    int nested;      /* CPU driver: streams being run inside of one another */
    /* memory comes and goes for the allocator, which no open capture forbids: torch makes the
       thread relaxed for it */
    int quiet;
    ds_capture_mode mode; /* which captures' rules the thread keeps: ds_capture_exchange_mode */
    uint64_t number;      /* of the thread, once asked for */
    int capture_locked;   /* the thread has the capture lock, where drivers need to know */
    /* locks are held that stream_gone_fn takes, or under which no destructor of the user's may
       run: nothing is reclaimed */
    int upper_locked;
    /* the allocator's: the stream that the thread allocated on last, its slot and its arena */
    uint64_t arena_stream;
    struct ds__slot *arena_slot;
    struct ds__arena *arena;
    uint32_t epoch; /* ds__g.epoch for which `thread` is valid */
    ds__thread *thread;
    uint32_t hit_version;    /* the table's version for which the entries of `hit` are right */
    uint32_t hit_next;       /* the entry that is replaced next */
    ds__found hit[DS__HITS]; /* ranges found last */
    ds_result code;          /* of the last failure */
    /* failures go to `aside` and not to the log: they are not the user's, or not yet */
    int mute;
    int in_hook;   /* inside of the hook of ranges */
    int unwatched; /* the waits of calls are the library's own, not the user's */
    /* the generation of domains for which `level` is valid, but for that of the default domain */
    uint32_t domains;
    int level[DS__DOMAINS]; /* ranges of each domain that were pushed and not popped */
    char error[1024];
    char aside[1024];
} ds__tls_block;

static __thread ds__tls_block ds__tls;

#ifndef DEVSTREAM_STATIC
__thread ds_site ds_call_site;
#endif

/* base/error.h - error codes, error sentences and checks of arguments.

   Reports errors: ds__fail stores one sentence for the calling thread, with the call site in
   front, and returns the code; ds__also appends to that sentence. DS__REQUIRE checks an
   argument. The public functions ds_result_name, ds_result_text and ds_last_error are here, too.

   Invariants: the sentence belongs to its thread and is always terminated. While `mute` is set,
   errors go to a second buffer (`aside`) and not to the log. ds__fail passes the sentence to the
   log at once, so text of ds__also does not appear there.
   Locks: none. ds__fail invokes the user's log function under all locks that the caller holds;
   the function must not call devstream.
   Threads: any, the library's own included. */

static void ds__log(ds_log_level level, int id, const char *text);

DSDEF const char *(ds_result_name)(ds_result result) {
    switch (result) {
#define DS__CASE(name, value, text) \
    case name:                      \
        return #name;
        DS_RESULTS(DS__CASE)
#undef DS__CASE
    case DS_RESULT_FORCE_INT_:
        break;
    }
    return "DS_UNKNOWN_RESULT";
}

DSDEF const char *(ds_result_text)(ds_result result) {
    switch (result) {
#define DS__CASE(name, value, text) \
    case name:                      \
        return text;
        DS_RESULTS(DS__CASE)
#undef DS__CASE
    case DS_RESULT_FORCE_INT_:
        break;
    }
    return "not a result of devstream";
}

DSDEF const char *(ds_last_error)(void) {
    return ds__tls.error;
}

/* Stores the thread's sentence, "file:line: ds_copy: ...", and returns the code. */
__attribute__((format(printf, 2, 3), cold, noinline)) static ds_result ds__fail(ds_result code,
                                                                                const char *format,
                                                                                ...) {
    ds__tls_block *t = &ds__tls;
    char *to = t->mute ? t->aside : t->error;
    size_t size = sizeof t->error;
    size_t n = 0;
    int w = t->site.file ? snprintf(to, size, "%s:%d: %s: ", t->site.file, t->site.line, t->fn)
                         : snprintf(to, size, "%s: ", t->fn ? t->fn : "devstream");
    if (w > 0)
        n = (size_t)w < size ? (size_t)w : size - 1;
    va_list args;
    va_start(args, format);
    vsnprintf(to + n, size - n, format, args);
    va_end(args);
    t->code = code;
    if (!t->mute)
        ds__log(DS_LOG_ERROR, code, t->error);
    return code;
}

#define DS__REQUIRE(condition, ...)                             \
    do {                                                        \
        if (DS__UNLIKELY(!(condition)))                         \
            return ds__fail(DS_ERR_INVALID_VALUE, __VA_ARGS__); \
    } while (0)

/* Adds to the sentence of an error that was just set; returns its code. */
__attribute__((format(printf, 2, 3), cold, noinline)) DS__SEAM static ds_result ds__also(
    ds_result r, const char *format, ...) {
    ds__tls_block *t = &ds__tls;
    char *to = t->mute ? t->aside : t->error;
    size_t n = strlen(to);
    va_list args;
    va_start(args, format);
    vsnprintf(to + n, sizeof t->error - n, format, args);
    va_end(args);
    return r;
}

/* base/handle.h - handles and their tables.

   Turns a handle into the address of an object and back. A table (ds__table) has a slot for
   every object of one kind; ds__table_add gives out a slot, ds__slot_at finds one, and
   ds__handle makes the public handle. base/pin.h destroys objects and reclaims them. The room
   also declares the functions for bookkeeping memory (ds__alloc, ds__release).

   Policy:
   1. A handle is index + 1 and generation. A slot's word is generation (32 bits), state (2 bits)
      and references (30 bits): one for the owners, and one for each other holder, such as a
      current-stream slot or a graph node.
   2. Destroying an object makes its handle stale at once and drops the owners' reference. An
      object without references is freed when no call uses it.
   3. A call that uses an object stores its address in the thread's hazard pointers, with a plain
      store. A thread that wants to free objects makes all processors pass a barrier
      (membarrier), then reads all hazard pointers. So a call pays two stores and no locked
      instruction; the freeing thread pays for both.
   4. Slots are in chunks that do not move before ds_shutdown, so a look-up takes no lock.

   Invariants: an object begins with its ds__slot. The generation of a slot in use is not 0, and
   it rises each time the slot is given out. Chunk i has DS__FIRST_CHUNK << i objects.
   Locks: ds__table_add takes the table's lock, and calls the user's allocator under it. The
   other functions take none.
   Threads: any thread, concurrently. */

static void *ds__alloc(size_t size); /* zeroed; NULL when out of memory */
static void ds__release(void *ptr);

static char *ds__copy_text(const char *text, size_t longest) {
    size_t n = strlen(text);
    if (n > longest)
        n = longest;
    char *copy = ds__alloc(n + 1);
    if (copy)
        memcpy(copy, text, n);
    return copy;
}

/* ---- >>handles ------------------------------------------------------------------------------- */

enum {
    DS__FREE = 0,
    DS__ALIVE = 1,
    DS__DYING = 2,
    DS__ZOMBIE = 3 /* dying, without references, in the list to be freed */
};

#define DS__REFS(word) ((uint32_t)(word)&0x3fffffffu)
#define DS__STATE(word) ((uint32_t)((word) >> 30) & 3u)
#define DS__GENERATION(word) ((uint32_t)((word) >> 32))
#define DS__WORD(generation, state, refs) \
    ((uint64_t)(generation) << 32 | (uint64_t)(state) << 30 | (refs))

typedef struct ds__slot {
    _Atomic uint64_t word;
    uint32_t index;
    uint32_t next; /* index + 1, in the list of free slots or of zombies */
} ds__slot;

#define DS__FIRST_CHUNK 64u

typedef struct ds__table {
    const char *what; /* "stream" */
    size_t element;   /* size of the object, which begins with a ds__slot */
    void (*free_fn)(void *object);
    int (*may_free_fn)(void *object); /* NULL, or: 0 when something else still needs it */
    /* NULL, or: 1 if the program cannot notice a late release of the object (DS__RECLAIM_BATCH) */
    int (*batched_fn)(const void *object);
    ds__lock lock;
    uint32_t generation; /* before that of a new slot: another one after each shutdown */
    uint32_t used;
    uint32_t free_head;
    uint32_t zombies;
    _Atomic(char *) chunk[25]; /* chunk i holds DS__FIRST_CHUNK << i objects */
} ds__table;

static inline ds__slot *ds__slot_at(ds__table *t, uint32_t index) {
    uint32_t c = 31u - (uint32_t)__builtin_clz(index / DS__FIRST_CHUNK + 1);
    if (DS__UNLIKELY(c >= 25))
        return NULL;
    char *chunk = atomic_load_explicit(&t->chunk[c], memory_order_acquire);
    if (DS__UNLIKELY(!chunk))
        return NULL;
    return (ds__slot *)(void *)(chunk + (size_t)(index - (DS__FIRST_CHUNK << c) + DS__FIRST_CHUNK) *
                                            t->element);
}

static inline uint64_t ds__handle(const ds__slot *slot) {
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    return (word & 0xffffffff00000000u) | (slot->index + 1);
}

/* A slot for a new object, alive with one reference but reachable only by the handle returned
   later; NULL: no memory. */
static void *ds__table_add(ds__table *t) {
    ds__slot *slot = NULL;
    ds__lock_take(&t->lock);
    if (t->free_head) {
        slot = ds__slot_at(t, t->free_head - 1);
        t->free_head = slot->next;
    } else {
        uint32_t c = 31u - (uint32_t)__builtin_clz(t->used / DS__FIRST_CHUNK + 1);
        if (c < 25 && !atomic_load_explicit(&t->chunk[c], memory_order_relaxed)) {
            size_t count = (size_t)DS__FIRST_CHUNK << c;
            char *chunk = ds__alloc(count * t->element);
            if (chunk)
                for (uint32_t i = 0; i < count; i++)
                    ((ds__slot *)(void *)(chunk + i * t->element))->index =
                        (DS__FIRST_CHUNK << c) - DS__FIRST_CHUNK + i;
            atomic_store_explicit(&t->chunk[c], chunk, memory_order_release);
        }
        if (c < 25 && (slot = ds__slot_at(t, t->used)) != NULL)
            t->used++;
    }
    ds__lock_give(&t->lock);
    if (slot) {
        memset((char *)slot + sizeof *slot, 0, t->element - sizeof *slot);
        uint32_t generation =
            DS__GENERATION(atomic_load_explicit(&slot->word, memory_order_relaxed));
        /* never used */
        if (generation == 0)
            generation = t->generation;
        if (++generation == 0)
            generation = 1;
        atomic_store_explicit(&slot->word, DS__WORD(generation, DS__ALIVE, 1),
                              memory_order_release);
    }
    return slot;
}

/* base/pin.h - hazard pointers, references and reclaiming.

   Protects an object from being freed while a call uses it, and frees destroyed objects. ds__pin
   sets a hazard pointer and returns the object of a handle, ds__unpin clears it. ds__ref and
   ds__unref count longer uses. ds__table_kill makes a handle stale, ds__bury retires an object
   without references, and ds__table_reap reclaims retired objects.

   Invariants: a thread stores its hazard pointer before it reads the slot's word. A thread that
   reclaims passes ds__barrier first and then reads all hazard pointers. An object is freed only
   without hazard pointers, without references, and if may_free_fn agrees. A thread has at most
   DS__PINS hazard pointers; beyond that a look-up returns NULL, as for a stale handle.
   Locks: ds__bury and ds__table_reap take the table's lock, for list operations only.
   ds__is_pinned takes ds__g.lock. may_free_fn and free_fn run without these locks; they may call
   the driver and user destructors. So a caller of ds__table_reap must hold no lock that these
   take.
   Threads: hazard pointers need a thread state, so threads of the library do not set them.
   References may be counted on any thread. Several threads may reclaim at once.
   ds__table_destroy is for shutdown only. */

/* What pins: at most this many nested in one call. */
#define DS__PINS 8

typedef struct ds__pins {
    _Atomic(void *) at[DS__PINS];
    unsigned count;
} ds__pins;

static ds__pins *ds__my_pins(void);
static int ds__is_pinned(const void *object);
static void ds__barrier(void);
static _Atomic int ds__no_membarrier; /* 1: the kernel has none, so a pin needs a locked store */

static inline void ds__unpin_inline(ds__table *t, void *object) {
    ds__pins *pins = ds__my_pins();
    unsigned i = pins->count;
    (void)t;
    while (i > 0 && atomic_load_explicit(&pins->at[--i], memory_order_relaxed) != object) {
    }
    atomic_store_explicit(&pins->at[i], NULL, memory_order_release);
    while (pins->count > 0 &&
           !atomic_load_explicit(&pins->at[pins->count - 1], memory_order_relaxed))
        pins->count--;
}

/* The object of a handle, safe from being freed until ds__unpin; NULL: the handle is stale or
   was never valid. */
static inline void *ds__pin_inline(ds__table *t, uint64_t id) {
    if (DS__UNLIKELY((uint32_t)id == 0))
        return NULL;
    ds__slot *slot = ds__slot_at(t, (uint32_t)id - 1);
    ds__pins *pins = ds__my_pins();
    if (DS__UNLIKELY(!slot || pins->count == DS__PINS))
        return NULL;
    _Atomic(void *) *at = &pins->at[pins->count++];
#if defined(DS__SANITIZED)
    atomic_store(at, slot);
#else
    if (DS__UNLIKELY(atomic_load_explicit(&ds__no_membarrier, memory_order_relaxed)))
        atomic_store(at, slot);
    else
        atomic_store_explicit(at, slot, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the processor's order comes from ds__barrier */
#endif
    uint64_t word = atomic_load(&slot->word);
    if (DS__LIKELY(DS__GENERATION(word) == (uint32_t)(id >> 32) && DS__STATE(word) == DS__ALIVE))
        return slot;
    ds__unpin_inline(t, slot);
    return NULL;
}

/* Whether the slot is still that of the handle; for who knows otherwise that the slot is there. */
static inline int ds__slot_is(ds__slot *slot, uint64_t id) {
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    return DS__GENERATION(word) == (uint32_t)(id >> 32) && DS__STATE(word) == DS__ALIVE;
}

/* The same as calls: only launches are worth the inlined code. */
__attribute__((noinline)) static void ds__unpin(ds__table *t, void *object) {
    ds__unpin_inline(t, object);
}

__attribute__((noinline)) static void *ds__pin(ds__table *t, uint64_t id) {
    return ds__pin_inline(t, id);
}

/* Objects with batched_fn are reclaimed in batches of this many, because each pass of ds__reclaim
   costs a membarrier of half a microsecond. Others count as a whole batch: ds__reclaim frees them
   at its next call. */
#define DS__RECLAIM_BATCH 64

static void ds__count_dead(int n);

/* The share of a batch for which the object counts. The same from its retirement to its end. */
static int ds__reclaim_share(const ds__table *t, const void *object) {
    return t->batched_fn && t->batched_fn(object) ? 1 : DS__RECLAIM_BATCH;
}

/* Moves a dying slot without references to the list of those to be freed. */
static void ds__bury(ds__table *t, ds__slot *slot, uint64_t word) {
    while (DS__STATE(word) == DS__DYING && DS__REFS(word) == 0) {
        if (!atomic_compare_exchange_weak(&slot->word, &word,
                                          DS__WORD(DS__GENERATION(word), DS__ZOMBIE, 0)))
            continue;
        ds__lock_take(&t->lock);
        slot->next = t->zombies;
        t->zombies = slot->index + 1;
        ds__lock_give(&t->lock);
        ds__count_dead(ds__reclaim_share(t, slot));
        return;
    }
}

/* One more reference; the caller has a pin or another reference. */
static void ds__ref(void *object) {
    atomic_fetch_add(&((ds__slot *)object)->word, 1);
}

static void ds__unref(ds__table *t, void *object) {
    ds__slot *slot = object;
    ds__bury(t, slot, atomic_fetch_sub(&slot->word, 1) - 1);
}

/* Makes the handle stale and drops the owners' reference. The caller has a pin, or is the owner.
   0: it was done before. */
static int ds__table_kill(ds__table *t, void *object) {
    ds__slot *slot = object;
    uint64_t word = atomic_load(&slot->word);
    while (DS__STATE(word) == DS__ALIVE) {
        uint64_t dying = DS__WORD(DS__GENERATION(word), DS__DYING, DS__REFS(word) - 1);
        if (!atomic_compare_exchange_weak(&slot->word, &word, dying))
            continue;
        ds__bury(t, slot, dying);
        return 1;
    }
    return 0;
}

/* Frees the zombies that nobody is inside of. */
static void ds__table_reap(ds__table *t) {
    ds__lock_take(&t->lock);
    uint32_t list = t->zombies;
    t->zombies = 0;
    ds__lock_give(&t->lock);
    if (list)
        ds__barrier();
    while (list) {
        ds__slot *slot = ds__slot_at(t, list - 1);
        list = slot->next;
        /* pins first: who is inside may turn its pin into a reference */
        int keep = ds__is_pinned(slot);
        uint64_t word = atomic_load(&slot->word);
        keep = keep || DS__REFS(word) != 0 || (t->may_free_fn && !t->may_free_fn(slot));
        if (!keep) {
            int share = ds__reclaim_share(t, slot);
            t->free_fn(slot);
            ds__count_dead(-share);
            atomic_store(&slot->word, DS__WORD(DS__GENERATION(word), DS__FREE, 0));
        }
        uint32_t *head = keep ? &t->zombies : &t->free_head;
        ds__lock_take(&t->lock);
        slot->next = *head;
        *head = slot->index + 1;
        ds__lock_give(&t->lock);
    }
}

static void ds__table_destroy(ds__table *t) {
    for (int c = 0; c < 25; c++) {
        ds__release(atomic_load_explicit(&t->chunk[c], memory_order_relaxed));
        atomic_store_explicit(&t->chunk[c], NULL, memory_order_relaxed);
    }
    t->used = t->free_head = t->zombies = 0;
}

/* base/object.h - structs behind the handles.

   Defines the objects that a handle stands for: ds__stream, ds__event, ds__kernel, ds__graph and
   ds__exec. It also declares the struct names that rooms of base/ need from each other.

   Invariants: every object begins with its ds__slot, so the tables of base/handle.h can hold it.
   A stream's `id` is unique for the life of the process. An event's `driver` is set before its
   `native`. Launching threads read the first part of a kernel, workers write the part behind the
   padding.
   Locks: none are taken here. ds__g.label_lock guards the labels of streams. `lock` of a graph
   or executable guards its body, and `bind` of an event its device until the device is settled.
   Threads: any thread. Most other fields do not change after creation, or they are atomic. */

typedef struct ds__driver ds__driver;
typedef struct ds__ranges ds__ranges;
typedef struct ds__body ds__body;
typedef struct ds__node ds__node;
typedef struct ds__object ds__object;
typedef struct ds__capture ds__capture;

enum {
    DS__STREAM_NEW = 0,
    DS__STREAM_LEGACY = 1,
    DS__STREAM_PER_THREAD = 2,
    DS__STREAM_LANE = 3 /* the CPU driver's, of an executable */
};

typedef struct ds__stream {
    ds__slot slot;
    const ds__driver *driver;
    void *native; /* the driver's stream */
    uint64_t id;  /* unique for the life of the process */
    ds_device device;
    int priority;
    int requested;
    unsigned flags;
    uint8_t kind;      /* DS__STREAM_* */
    uint8_t borrowed;  /* 1: a wrapper that must not end the native stream */
    uint8_t of_legacy; /* 1: a wrapper of the legacy stream */
    /* a wrapper of a default stream has that one's native form, and a reference to it */
    ds_stream base;
    _Atomic uint8_t unwrapped; /* 1: the native stream was given away */
    /* the allocator's: the stream's memory in its device's default pool */
    _Atomic(void *) arena;
    _Atomic int owners;
    char *label;
    void (*release_fn)(void *user);
    void *user;
    ds_site made;
} ds__stream;

typedef struct ds__event {
    ds__slot slot;
    _Atomic(void *) native; /* the driver's event, made at the first record */
    ds__lock bind;          /* of its device, until that is settled */
    /* 1: it stays on its device: a record has succeeded, or a graph or other processes know it */
    _Atomic int settled;
    int claims; /* calls that are about to settle it */
    int imported;
    const ds__driver *driver; /* of the first record; set before `native` */
    _Atomic int64_t device;   /* -1 unbound, else type << 32 | index */
    unsigned flags;
    char *label;
    ds_site made;
} ds__event;

/* A launch does not count itself: a destroyed kernel is freed once everything that was pending
   when nobody could launch it any more has been passed (`mark`). */
typedef struct ds__kernel {
    ds__slot slot;
    ds_kernel_fn cpu_fn;
    size_t args_size;
    size_t grain;
    const char *name;
    ds_param *params;
    size_t param_count;
    ds_kernel_cuda cuda;
    ds_site made;
    void *mark;
    _Atomic(void *) loaded; /* CUDA driver: the function on each device */
    int ours;               /* 1: the library's own, whose sentence says what was wrong */
    uint64_t (*bytes_fn)(size_t items, const void *args);
    /* launching threads read what stands above, workers write what stands below */
    char pad[64];
    _Atomic uint32_t runs;    /* CPU driver: launches timed so far */
    _Atomic uint32_t item_ns; /* CPU driver: nanoseconds of an item, as last measured */
} ds__kernel;

typedef struct ds__graph {
    ds__slot slot;
    ds__lock lock;
    ds__body *body;
    _Atomic int capturing; /* captures that make it */
    char *label;
    ds_site made;
} ds__graph;

typedef struct ds__exec {
    ds__slot slot;
    ds__lock lock;
    const ds__driver *driver;
    ds__body *body; /* what later launches do */
    void *native;
    unsigned flags;
    char *label;
    ds_site made;
} ds__exec;

/* base/operation.h - operations on streams.

   Defines ds__op, one piece of stream work: its kind (DS__OP_*), flags, call site and arguments.
   The core hands an operation to submit of a driver. The CPU driver queues operations, graph
   nodes keep copies of them, and layers see them.

   Invariants: the kind selects the member of the union. Only the CPU driver creates kinds and
   members that are marked as its own. Flags share bits across kinds: DS__OP_STAGED is for
   copies, DS__OP_GIVEN for graphs. DS__CHANGED never leaves the library.
   Locks: none.
   Threads: an operation belongs to the thread that built it, until it is submitted. */

enum {
    DS__OP_JUMP = 0,
    DS__OP_KERNEL,
    DS__OP_COPY,
    DS__OP_FILL,
    DS__OP_HOST,
    DS__OP_CALLBACK,
    DS__OP_RECORD,
    DS__OP_WAIT,
    DS__OP_WAIT_STREAM,
    DS__OP_NOTHING,
    DS__OP_GRAPH,
    DS__OP_UPLOAD,
    DS__OP_EXTERNAL_RECORD,
    DS__OP_EXTERNAL_WAIT,
    /* LANE_WAIT, NODE_RECORD, NODE_WAIT: the CPU driver's, in its executables */
    DS__OP_LANE_WAIT,
    DS__OP_NODE_RECORD,
    DS__OP_NODE_WAIT,
    /* SHARED_RECORD, FREE, CLOCK: the CPU driver's */
    DS__OP_SHARED_RECORD,
    DS__OP_FREE,
    DS__OP_CLOCK
};

enum {
    DS__OP_STAGED = 1, /* copy: the devices cannot reach each other */
    /* copy, fill: submit returns when it is done, because it touches pageable memory */
    DS__OP_BLOCKS = 2,
    DS__OP_GIVEN = 1, /* graph: the body becomes the node's */
    /* is not to be captured; if the stream captures, submit does nothing and gives DS__CHANGED */
    DS__OP_OUTSIDE = 4,
    DS__OP_INSIDE = 8, /* kernel: so it is unless the stream captures what u.kernel.capture says */
    /* copy, fill: eight bits of `places` from here on say where the destination is */
    DS__OP_DST = 0,
    DS__OP_SRC = 8 /* copy: and where the source is */
};

/* Where an operand is. A copy on a GPU's stream leaves what devstream did not allocate to
   cudart, which knows. */
enum {
    DS__AT_UNKNOWN = 0,
    DS__AT_PAGEABLE,
    DS__AT_STABLE, /* pageable, but it stays as long as a graph may need it */
    DS__AT_PINNED,
    DS__AT_OTHER, /* device memory of the CPU driver, for the CUDA driver */
    DS__AT_DEVICE /* and the index */
};

#define DS__MAX_DEVICES (256 - DS__AT_DEVICE)

/* within the library only: the stream began or ended a capture since it was asked */
#define DS__CHANGED ((ds_result)(DS_NOT_READY + 1))

/* A piece of stream work: what the core hands to a driver, what the CPU driver queues, what a
   layer sees. */
typedef struct ds__op {
    uint8_t kind;
    uint8_t flags;
    uint16_t places; /* copy, fill: where the operands are */
    uint32_t line;
    const char *file; /* call site, or NULL */

    union {
        struct {
            ds__kernel *kernel;
            size_t items;
            size_t args_size;
            const void *args;
            const ds_grid *grid;
            uint64_t capture;
        } kernel;

        /* pitches and width: bytes */
        struct {
            void *dst;
            const void *src;
            size_t dst_pitch;
            size_t src_pitch;
            size_t width;
            size_t height;
        } copy;

        struct {
            void *dst;
            size_t pitch;
            size_t value_size;
            size_t width; /* elements */
            size_t height;
            uint32_t value;
        } fill;

        struct {
            ds_host_fn fn;
            ds_callback_fn callback;
            void *user;
            ds_host_fn dtor_fn;
            uint64_t stream;
        } host;

        /* record, wait: the driver's event, and the core's */
        struct {
            void *event;
            ds__event *object;
        } event;

        /* launch, upload: the driver's executable, and what is in it */
        struct {
            void *exec;
            ds__body *body;
        } graph;

        /* wait for another stream; the driver fills upto */
        struct {
            void *stream;
            uint64_t upto;
        } wait;

        struct {
            void *stamp;
        } stamp; /* CPU driver: a timed record in its queue */

        struct {
            void *lane;
        } shared; /* and one that other processes are told of */

        /* CPU driver: memory that the stream gives back */
        struct {
            void *ptr;
            size_t size;
            int device;
        } memory;

        /* CPU driver: what follows was put in at this virtual time */
        struct {
            int64_t ns;
        } clock;
    } u;
} ds__op;

/* Whether the stream captures something else than the op is for; 0: nothing. */
static inline int ds__op_changed(const ds__op *op, uint64_t capture) {
    return (op->flags & DS__OP_OUTSIDE && capture) ||
           (op->flags & DS__OP_INSIDE && capture != op->u.kernel.capture);
}

/* base/driver.h - driver table.

   Defines the table of functions (ds__driver) by which the core calls a driver. Each driver
   fills in one table. The X-list DS__ENTRIES has all entries that can fail. The list generates
   the table's members, the fault layer and its names. The inline rule's limit (DS__INLINE_BYTES)
   is defined here, too.

   Invariants: stream and event arguments are the driver's own objects, and a device is an index.
   Entries outside of the list cannot fail or must be carried out in any case, so no fault can be
   injected there. `start` is called before the first entry, `stop` after the last one.
   Locks: the two functions of this room take none. The core calls capture_begin with ds__g.begin
   held. It calls most entries for graphs and executables, and the submit of a launch, with the
   lock of that graph or executable held. An entry may block only if the public call may.
   Threads: any thread may call an entry, several at once. drain and stop are called by
   ds_shutdown only. */

/* X(entry, parameters, arguments): everything that a driver does, except starting, reporting and
   ending. The list makes the driver's table, the fault layer and its names. Stream and event
   arguments are the driver's own objects; device is an index.

   Properties of a device; these entries enable nothing on the device:
   device_link    1: the two devices, which differ, are joined by NVLink.
   device_speed   Copy engines of the device, and bytes per second of its memory; 0: not known.

   Virtual memory; an open capture forbids none of these entries:
   space_reserve  Reserves addresses without memory. *out_page is the unit in which memory is
                  mapped. The addresses are aligned to it, and the driver rounds the size up to it.
                  DS_ERR_UNSUPPORTED: the device has no virtual memory.
   space_map      Maps memory behind [at, at + size), whole pages of a reservation without memory
                  behind them. This device and all devices that reach it as peers read and write
                  the memory. On failure, everything is as before.
   space_unmap    Takes the memory of one or several space_maps back, all of it and nothing else.
                  Waits for nothing: no work uses the memory any more. On failure, nothing was done
                  (DS_ERR_INVALID_VALUE: the range is not that of such space_maps).

   The driver's own allocator, which keeps freed memory for later:
   async_alloc    Allocates memory of the stream's device. Work that is enqueued on the stream from
                  now on may use it, and so may all work ordered after that work.
   async_free     Frees the memory when the stream arrives there, on any stream of the driver. On
                  failure, nothing was freed. If the stream captures, both entries are refused
                  (DS_ERR_CAPTURE_UNSUPPORTED), and the capture goes on.
   async_trim     Returns to the device what the allocator keeps, down to `keep` bytes.
   async_info     *out_reserved: memory that the allocator has of the device. *out_used: the part
                  of it that is in use.

   Several streams at once:
   run_together   The inline rule for several streams. If nothing is pending on any of them, run_fn
                  is called and *out_ran is 1. Until run_fn returns, no thread can enqueue work on
                  these streams. run_fn copies and sums, DS__INLINE_BYTES in each step, and calls no
                  entry. *out_ran 0: the caller must enqueue the work on the streams. That is always
                  correct.

   Memory for several processes:
   share_alloc    Like memory_alloc, for the entries that follow.
   share_export   Writes the 64 bytes that name the memory, always the same.
   share_import   Maps the memory at some address, until share_close. DS_ERR_ILLEGAL_STATE: the
                  memory is this process's own. */
/* clang-format off */
#define DS__ENTRIES(X) \
    X(device_properties, (int device, ds_device_properties *out), (device, out)) \
    X(device_memory, (int device, size_t *out_free, size_t *out_total), \
      (device, out_free, out_total)) \
    X(device_synchronize, (int device), (device)) \
    X(device_reset, (int device), (device)) \
    X(device_peer, (int device, int peer, int *out), (device, peer, out)) \
    X(device_link, (int device, int peer, int *out), (device, peer, out)) \
    X(device_speed, (int device, int *out_engines, double *out_memory), \
      (device, out_engines, out_memory)) \
    X(priority_range, (int device, int *out_least, int *out_greatest), \
      (device, out_least, out_greatest)) \
    X(stream_create, (int device, int kind, unsigned flags, int *priority, void **out), \
      (device, kind, flags, priority, out)) \
    X(stream_query, (void *stream), (stream)) \
    X(stream_synchronize, (void *stream, uint64_t timeout_ns), (stream, timeout_ns)) \
    X(stream_wrap, \
      (int device, void *native, int own, unsigned *out_flags, int *out_priority, void **out), \
      (device, native, own, out_flags, out_priority, out)) \
    X(stream_native, (void *stream, void **out), (stream, out)) \
    X(event_create, (int device, unsigned flags, void **out), (device, flags, out)) \
    X(event_query, (void *event), (event)) \
    X(event_synchronize, (void *event, uint64_t timeout_ns), (event, timeout_ns)) \
    X(event_elapsed, (void *start, void *end, double *out_ms), (start, end, out_ms)) \
    X(event_export, (void *event, unsigned char *out), (event, out)) \
    X(event_import, (int device, const unsigned char *handle, void **out), (device, handle, out)) \
    X(submit, (void *stream, const ds__op *op), (stream, op)) \
    X(run_together, \
      (void *const *streams, size_t count, void (*run_fn)(void *user), void *user, int *out_ran), \
      (streams, count, run_fn, user, out_ran)) \
    X(memory_alloc, (int device, size_t size, void **out), (device, size, out)) \
    X(space_reserve, (int device, size_t size, size_t *out_page, void **out), \
      (device, size, out_page, out)) \
    X(space_map, (int device, void *at, size_t size), (device, at, size)) \
    X(space_unmap, (int device, void *at, size_t size), (device, at, size)) \
    X(async_alloc, (int device, void *stream, size_t size, void **out), \
      (device, stream, size, out)) \
    X(async_free, (int device, void *stream, void *ptr, size_t size), (device, stream, ptr, size)) \
    X(async_trim, (int device, size_t keep), (device, keep)) \
    X(async_info, (int device, size_t *out_reserved, size_t *out_used), \
      (device, out_reserved, out_used)) \
    X(memory_wait, (int device), (device)) \
    X(share_alloc, (int device, size_t size, void **out), (device, size, out)) \
    X(share_export, (int device, void *base, size_t size, unsigned char *handle), \
      (device, base, size, handle)) \
    X(share_import, (int device, const unsigned char *handle, size_t size, void **out), \
      (device, handle, size, out)) \
    X(host_alloc, (size_t size, void **out), (size, out)) \
    X(host_register, (void *ptr, size_t size), (ptr, size)) \
    X(pointer_query, (const void *ptr, ds_pointer_info *out), (ptr, out)) \
    X(kernel_load, (int device, ds__kernel *kernel), (device, kernel)) \
    X(copy_now, (const ds__op *op), (op)) \
    X(capture_begin, (void *stream, ds__capture *capture, const uint32_t *deps, size_t count), \
      (stream, capture, deps, count)) \
    X(capture_end, (void *stream, ds__capture **out), (stream, out)) \
    X(capture_query, (void *stream, ds_capture_info *out), (stream, out)) \
    X(capture_dependencies, (void *stream, ds_graph_node *out, size_t room, size_t *out_count), \
      (stream, out, room, out_count)) \
    X(capture_update, (void *stream, const ds_graph_node *nodes, size_t count, int set), \
      (stream, nodes, count, set)) \
    X(capture_mode, (ds_capture_mode mode), (mode)) \
    X(graph_create, (ds__body *body), (body)) \
    X(graph_clone, (ds__body *from, ds__body *to), (from, to)) \
    X(graph_add, (ds__body *body, uint32_t index), (body, index)) \
    X(graph_edges, \
      (ds__body *body, const ds_graph_node *from, const ds_graph_node *to, size_t count), \
      (body, from, to, count)) \
    X(graph_set, (ds__body *body, uint32_t index, ds__node *fresh), (body, index, fresh)) \
    X(graph_attach, (ds__body *body, ds__object *object), (body, object)) \
    X(graph_instantiate, (ds__body *graph, ds__body *copy, unsigned flags, void **out), \
      (graph, copy, flags, out)) \
    X(exec_update, \
      (void *exec, ds__body *graph, ds_graph_update_reason *out_reason, uint32_t *out_node), \
      (exec, graph, out_reason, out_node)) \
    X(exec_set, (void *exec, uint32_t index, const ds__node *fresh), (exec, index, fresh)) \
    X(exec_enable, (void *exec, uint32_t index, int enabled), (exec, index, enabled))

/* clang-format on */

struct ds__driver {
    const char *name;
    ds_device_type type;
    void (*probe)(ds_backend_info *out); /* looks for devices; starts no thread */
    ds_result (*start)(void);            /* before the first entry is called */
    /* 0: nothing was ever put on it, and waiting for it would only wake it up */
    int (*device_used)(int device);
    void (*drain)(void);                  /* waits for all work; cannot fail */
    void (*stop)(void);                   /* drains, ends threads, frees */
    void (*stream_destroy)(void *stream); /* deferred until drained; cannot fail */
    void (*stream_unwrap)(void *stream);  /* the native handle will go to the caller */
    /* from now on the native stream may go at any time: it is not asked for any more */
    void (*stream_hide)(void *stream);
    /* drops the driver's object and lets the native stream live */
    void (*stream_forget)(void *stream);
    /* equal for two objects of one device: they are the same queue */
    const void *(*stream_identity)(void *stream);
    void (*event_destroy)(void *event);
    void (*kernel_destroy)(ds__kernel *kernel);    /* drops what kernel_load made */
    void (*capture_abandon)(ds__capture *capture); /* its streams leave it; at shutdown */
    void (*graph_destroy)(ds__body *body);         /* drops what the driver has of it */
    void (*exec_destroy)(void *exec);              /* launches on their way go on */
    /* *mark NULL: notes all pending work in it. 1: that work is over, *mark is freed and NULL;
       0: not yet (or no memory: asked again later) */
    int (*passed)(void **mark);
    /* gives it back, and does so whatever it returns; nothing uses the memory any more */
    ds_result (*memory_release)(ds_memory_kind kind, int device, void *ptr, size_t size);
    /* gives a reservation back, in which nothing is mapped */
    void (*space_release)(int device, void *at, size_t size);
    /* gives memory of share_alloc back, which no work uses */
    void (*share_release)(int device, void *base, size_t size);
    /* ends what share_import has made, which no work uses */
    void (*share_close)(int device, void *base, size_t size);
#define DS__MEMBER(entry, parameters, arguments) ds_result(*entry) parameters;
    DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

/* The inline rule, for every driver that runs on the caller's processor: when every stream that
   takes part is idle, the caller may run the library's own copy, fill or sum of at most this
   many bytes before returning; never the user's code. */
#define DS__INLINE_BYTES 16384u

static int ds__place_of(const ds__op *op, int at) {
    return op->places >> at & 255;
}

DS__SEAM static size_t ds__op_bytes(const ds__op *op) {
    return op->kind == DS__OP_COPY ? op->u.copy.width * op->u.copy.height
                                   : op->u.fill.width * op->u.fill.height * op->u.fill.value_size;
}

/* base/state.h - global state, bookkeeping memory and log.

   Holds the state of the library (ds__g): configuration, drivers, object tables, the locks of
   the core and the lists that they guard. ds__upper has the functions that the allocator and the
   generators register for the end of streams and for shutdown. The room also defines ds__alloc,
   ds__release and ds__log.

   Invariants: configuration, drivers and tables are written by initialisation and shutdown only,
   and read without a lock. A thread state is valid only if its epoch equals ds__g.epoch. `dead`
   counts ended threads and retired objects. range_version is odd while the ranges are changed.
   Locks: the functions take none. `mutex` is held for all of initialisation and shutdown, driver
   calls included. `begin` is taken before capture_lock and must not be held over a wait. `lock`,
   label_lock, range_lock and mapping_lock protect short steps; no driver call is made under
   them. ds__alloc, ds__release and ds__log call functions of the user, under all locks of the
   caller.
   Threads: any thread. ds_init and ds_shutdown must not run concurrently with other calls. */

enum { DS__COLD = 0, DS__READY = 1, DS__FORKED = 2 };

typedef struct ds__mapping {
    uintptr_t at;
    size_t size;
} ds__mapping;

static struct {
    _Atomic int state; /* DS__COLD ... */
    /* counts initialisations; a thread's state of an earlier one is void */
    uint32_t epoch;
    int configured;        /* ds_init was called */
    pthread_mutex_t mutex; /* initialisation and shutdown */
    pthread_key_t key;     /* tells that a thread ends */
    int atfork;            /* the fork handler is installed, for good */
    ds_init_desc desc;
    int log_level;
    int per_thread_default;
    const ds__driver *driver[DS_BACKEND_COUNT]; /* with layers; NULL: not available */
    ds_backend_info backend[DS_BACKEND_COUNT];
    ds__table streams;
    ds__table events;
    ds__table kernels;
    ds__table graphs;
    ds__table execs;
    ds__lock lock;       /* of what follows */
    ds__thread *threads; /* all of them */
    _Atomic int dead;    /* ended threads and retired objects, in shares of DS__RECLAIM_BATCH */
    _Atomic uint64_t next_stream_id;
    _Atomic uint64_t next_thread;
    _Atomic uint32_t next_graph;
    ds__lock capture_lock;
    ds__capture *captures; /* open ones */
    uint64_t next_capture;
    _Atomic int capture_count;
    /* held while a capture begins, and by who must know that none is open: never over a wait */
    pthread_mutex_t begin;
    ds_stream *legacy;      /* per device ordinal, made at first use */
    _Atomic int sync_debug; /* a ds_sync_debug_mode */
    ds__lock label_lock;    /* of the labels of streams and devices, which can be replaced */
    char (*label)[64];      /* of each device ordinal */
    /* memory that is known: readers take no lock, they check `range_version` */
    ds__lock range_lock;
    _Atomic(ds__ranges *) ranges;
    _Atomic size_t range_count;
    _Atomic uint32_t range_version; /* odd while it is changed */
    ds__lock mapping_lock;
    ds__mapping *mappings; /* what is mapped in reserved address space, by address */
    size_t mapping_count;
    size_t mapping_room;
} ds__g = { .mutex = PTHREAD_MUTEX_INITIALIZER, .begin = PTHREAD_MUTEX_INITIALIZER };

/* What the allocator and the generators are told, where they are. */
static struct {
    /* before a stream ends, which is pinned or nobody else's; not while the caller has
       `upper_locked` */
    void (*_Atomic stream_gone_fn)(ds__stream *s);
    /* all work is done, everything else is still there */
    void (*_Atomic shutdown_fn)(void);
    void (*_Atomic rng_shutdown_fn)(void); /* the same, for the generators */
} ds__upper;

static void ds__count_dead(int n) {
    atomic_fetch_add(&ds__g.dead, n);
}

static void *ds__alloc(size_t size) {
    if (!ds__g.desc.allocator.alloc_fn)
        return calloc(1, size);
    void *ptr = ds__g.desc.allocator.alloc_fn(size, ds__g.desc.allocator.user);
    if (ptr)
        memset(ptr, 0, size);
    return ptr;
}

static void ds__release(void *ptr) {
    if (!ptr)
        return;
    if (ds__g.desc.allocator.free_fn)
        ds__g.desc.allocator.free_fn(ptr, ds__g.desc.allocator.user);
    else
        free(ptr);
}

static void ds__log(ds_log_level level, int id, const char *text) {
    if ((int)level > ds__g.log_level)
        return;
    if (!ds__g.desc.log_fn) {
        fprintf(stderr, "devstream: %s\n", text);
        return;
    }
    ds_log_item item = { level, id, text, ds__tls.site.file, ds__tls.site.line };
    ds__g.desc.log_fn(&item, ds__g.desc.log_user);
}

/* A number from the environment, 0 when unset or not a number. */
static uint64_t ds__env_number(const char *name) {
    const char *text = getenv(name);
    return text && *text && !strchr(text, '-') ? strtoull(text, NULL, 0) : 0;
}

/* base/graph_body.h - shadow graph: nodes, dependencies and attached objects.

   The core keeps a shadow graph (ds__body) of every graph: nodes with copies of their arguments,
   their dependencies, and the objects that the graph keeps alive. The CPU driver runs the shadow
   graph itself; the CUDA driver keeps a CUDA graph beside it, node for node. ds__node_make,
   ds__body_append and ds__body_copy build shadow graphs, ds__body_free ends one.

   Invariants: a node holds its kernel or event by a reference. A user's object (ds__object: a
   host function's argument, an attached object) counts its owners: graphs, executables and
   pending launches. The last owner runs the destructor, once. Dependencies are indices of nodes
   of the same body, each at most once. `hooked` is set if the body or a child has an object with
   a launch_fn.
   Locks: functions that read or change a body expect the lock of its graph or executable; while
   a capture adds to the graph, also ds__g.capture_lock. Dropping a reference takes the lock of
   the object table. ds__object_drop, ds__node_free and ds__body_free run the user's destructor
   with the last owner; where that can happen, they must be called without a lock.
   Threads: any thread; ds__object_keep and ds__object_drop also run on threads of the
   library. */

/* Called at each launch of an executable that has the object, with its stream: before the launch
   (DS_NOT_READY), and after it with what came of it. */
typedef ds_result (*ds__launch_fn)(void *user, ds__stream *s, ds_result how);

struct ds__object {
    _Atomic int owners;
    void *user;
    ds_host_fn dtor_fn;
    /* what it was attached under (ds__capture_attachment), and in which capture */
    const void *key;
    uint64_t capture;
    ds__launch_fn launch_fn; /* or NULL */
};

struct ds__node {
    ds_node_kind kind;
    ds_device device;
    int priority;
    int enabled;
    ds__op op; /* its arguments and grid are the node's own */
    char *label;
    uint32_t *deps; /* indices of the nodes that it starts after */
    uint32_t dep_count;
    uint32_t dep_room;
    ds__object *payload; /* a host function's argument */
    ds__body *child;
    void *native; /* the CUDA driver's */
};

struct ds__body {
    const ds__driver *driver;
    ds_device device;
    uint32_t serial; /* number of the graph, which its node handles carry */
    uint32_t origin; /* number of the graph that it was copied from */
    uint32_t count;
    uint32_t room;
    ds__node **node;
    ds__object **object;
    size_t object_count;
    size_t object_room;
    int hooked;   /* 1: it, or a child graph of it, has objects with a launch_fn */
    void *native; /* the CUDA driver's */
};

static const char *const ds__node_names[] = { "empty",      "kernel",        "copy",
                                              "fill",       "host function", "event record",
                                              "event wait", "child graph",   "native" };

static ds__object *ds__object_new(void *user, ds_host_fn dtor_fn) {
    ds__object *o = ds__alloc(sizeof *o);
    if (!o) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an object");
        return NULL;
    }
    o->user = user;
    o->dtor_fn = dtor_fn;
    atomic_store(&o->owners, 1);
    return o;
}

static ds__object *ds__object_keep(ds__object *o) {
    if (o)
        atomic_fetch_add(&o->owners, 1);
    return o;
}

/* Any thread, the library's own too. */
static void ds__object_drop(ds__object *o) {
    if (!o || atomic_fetch_sub(&o->owners, 1) != 1)
        return;
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    if (o->dtor_fn)
        o->dtor_fn(o->user);
    ds__tls.in_callback = outer;
    ds__release(o);
}

static ds__body *ds__body_copy(const ds__body *from, int with_serial);
static void ds__body_free(ds__body *b);

static void ds__node_free(ds__node *n) {
    if (!n)
        return;
    if (n->kind == DS_NODE_KERNEL) {
        if (n->op.u.kernel.kernel)
            ds__unref(&ds__g.kernels, n->op.u.kernel.kernel);
        ds__release((void *)(uintptr_t)n->op.u.kernel.args);
        ds__release((void *)(uintptr_t)n->op.u.kernel.grid);
    }
    if ((n->kind == DS_NODE_EVENT_RECORD || n->kind == DS_NODE_EVENT_WAIT) && n->op.u.event.object)
        ds__unref(&ds__g.events, n->op.u.event.object);
    ds__object_drop(n->payload);
    if (n->child)
        ds__body_free(n->child);
    ds__release(n->label);
    ds__release(n->deps);
    ds__release(n);
}

/* One that came to nothing: who gave the payload ends it. */
static void ds__node_discard(ds__node *n) {
    if (n && n->payload)
        n->payload->dtor_fn = NULL;
    ds__node_free(n);
}

static ds__node *ds__no_node(ds__node *n) {
    ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a node");
    ds__node_discard(n);
    return NULL;
}

static void *ds__copy_bytes(const void *from, size_t size) {
    void *to = ds__alloc(size);
    return to ? memcpy(to, from, size) : NULL;
}

/* Takes copies of what the operation points to, and references; NULL: no memory, and the
   sentence is set. */
static ds__node *ds__node_make(const ds__op *op, ds_device device, int priority) {
    static const ds_node_kind kinds[] = { [DS__OP_NOTHING] = DS_NODE_EMPTY,
                                          [DS__OP_KERNEL] = DS_NODE_KERNEL,
                                          [DS__OP_COPY] = DS_NODE_COPY,
                                          [DS__OP_FILL] = DS_NODE_FILL,
                                          [DS__OP_HOST] = DS_NODE_HOST,
                                          [DS__OP_RECORD] = DS_NODE_EVENT_RECORD,
                                          [DS__OP_WAIT] = DS_NODE_EVENT_WAIT,
                                          [DS__OP_EXTERNAL_RECORD] = DS_NODE_EVENT_RECORD,
                                          [DS__OP_EXTERNAL_WAIT] = DS_NODE_EVENT_WAIT,
                                          [DS__OP_GRAPH] = DS_NODE_CHILD };
    ds__node *n = ds__alloc(sizeof *n);
    if (!n)
        return ds__no_node(n);
    n->kind = kinds[op->kind];
    n->device = device;
    n->priority = priority;
    n->enabled = 1;
    n->op = *op;
    n->op.flags = (uint8_t)(op->flags & ~(unsigned)(DS__OP_OUTSIDE | DS__OP_INSIDE));
    switch (n->kind) {
    case DS_NODE_KERNEL:
        ds__ref(op->u.kernel.kernel);
        n->op.u.kernel.args = op->u.kernel.args_size
                                  ? ds__copy_bytes(op->u.kernel.args, op->u.kernel.args_size)
                                  : NULL;
        n->op.u.kernel.grid =
            op->u.kernel.grid ? ds__copy_bytes(op->u.kernel.grid, sizeof *op->u.kernel.grid) : NULL;
        if ((op->u.kernel.args_size && !n->op.u.kernel.args) ||
            (op->u.kernel.grid && !n->op.u.kernel.grid))
            return ds__no_node(n);
        break;
    case DS_NODE_COPY:
    case DS_NODE_FILL:
        n->op.flags = (uint8_t)(op->flags & ~(unsigned)DS__OP_BLOCKS);
        break;
    case DS_NODE_HOST:
        n->op.u.host.dtor_fn = NULL;
        if (op->u.host.dtor_fn &&
            !(n->payload = ds__object_new(op->u.host.user, op->u.host.dtor_fn))) {
            ds__node_free(n);
            return NULL;
        }
        break;
    case DS_NODE_EVENT_RECORD:
    case DS_NODE_EVENT_WAIT:
        ds__ref(op->u.event.object);
        break;
    case DS_NODE_CHILD:
        n->child = op->flags & DS__OP_GIVEN ? op->u.graph.body : ds__body_copy(op->u.graph.body, 0);
        n->op.flags = 0;
        if (!n->child) {
            ds__node_free(n);
            return NULL;
        }
        break;
    case DS_NODE_EMPTY:
    case DS_NODE_NATIVE:
        break;
    }
    return n;
}

/* A copy without dependencies; it shares the payload. */
static ds__node *ds__node_copy(const ds__node *from) {
    ds__op op = from->op;
    if (from->kind == DS_NODE_CHILD)
        op.u.graph.body = from->child;
    ds__node *n = ds__node_make(&op, from->device, from->priority);
    if (!n)
        return NULL;
    n->kind = from->kind;
    n->enabled = from->enabled;
    n->payload = ds__object_keep(from->payload);
    if (from->label && !(n->label = ds__copy_text(from->label, 255))) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a node");
        ds__node_free(n);
        return NULL;
    }
    return n;
}

/* Room for one more in a list that grows; 0: no memory, and the sentence is set. */
static int ds__room(void *list, size_t element, uint32_t count, uint32_t *room) {
    void *old;
    void *more;
    if (count < *room)
        return 1;
    memcpy(&old, list, sizeof old);
    uint32_t wanted = *room ? 2 * *room : 4;
    if (!(more = ds__alloc(wanted * element))) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
        return 0;
    }
    if (count)
        memcpy(more, old, count * element);
    ds__release(old);
    memcpy(list, &more, sizeof more);
    *room = wanted;
    return 1;
}

static int ds__node_depends(const ds__node *n, uint32_t on) {
    for (uint32_t i = 0; i < n->dep_count; i++)
        if (n->deps[i] == on)
            return 1;
    return 0;
}

/* One dependency more; one that is there already is left. 0: no memory. */
static int ds__node_depend(ds__node *n, uint32_t on) {
    if (ds__node_depends(n, on))
        return 1;
    if (!ds__room(&n->deps, sizeof *n->deps, n->dep_count, &n->dep_room))
        return 0;
    n->deps[n->dep_count++] = on;
    return 1;
}

static uint32_t ds__next_serial(void) {
    uint32_t serial;
    while ((serial = atomic_fetch_add(&ds__g.next_graph, 1) + 1) == 0) {
    }
    return serial;
}

static ds__body *ds__body_new(const ds__driver *driver, ds_device device) {
    ds__body *b = ds__alloc(sizeof *b);
    if (!b) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
        return NULL;
    }
    b->driver = driver;
    b->device = device;
    b->serial = ds__next_serial();
    return b;
}

static void ds__body_free(ds__body *b) {
    if (b->native)
        b->driver->graph_destroy(b);
    for (uint32_t i = 0; i < b->count; i++)
        ds__node_free(b->node[i]);
    for (size_t i = 0; i < b->object_count; i++)
        ds__object_drop(b->object[i]);
    ds__release(b->node);
    ds__release(b->object);
    ds__release(b);
}

/* Appends the node, which then belongs to the body, with its dependencies, each once. On failure
   the node is the caller's. */
static ds_result ds__body_append(ds__body *b, ds__node *n, const uint32_t *deps, size_t count) {
    if (b->count == UINT32_MAX - 1)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "the graph has too many nodes");
    if (count) { /* else it has those that it has */
        if (!(n->deps = ds__copy_bytes(deps, count * sizeof *deps)))
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
        n->dep_count = n->dep_room = (uint32_t)count;
    }
    if (!ds__room(&b->node, sizeof *b->node, b->count, &b->room))
        return DS_ERR_OUT_OF_MEMORY;
    b->node[b->count++] = n;
    if (n->child && n->child->hooked)
        b->hooked = 1;
    return DS_OK;
}

static ds_result ds__body_keep(ds__body *b, ds__object *o) {
    uint32_t room = (uint32_t)b->object_room;
    if (!ds__room(&b->object, sizeof *b->object, (uint32_t)b->object_count, &room))
        return DS_ERR_OUT_OF_MEMORY;
    b->object_room = room;
    b->object[b->object_count++] = ds__object_keep(o);
    if (o->launch_fn)
        b->hooked = 1;
    return DS_OK;
}

/* The same nodes, dependencies and kept objects; nothing of the driver's. with_serial: its nodes
   have the same handles. */
static ds__body *ds__body_copy(const ds__body *from, int with_serial) {
    ds__body *b = ds__body_new(from->driver, from->device);
    if (!b)
        return NULL;
    if (with_serial)
        b->serial = from->serial;
    b->origin = from->serial;
    ds_result r = DS_OK;
    for (uint32_t i = 0; i < from->count && r == DS_OK; i++) {
        ds__node *n = ds__node_copy(from->node[i]);
        r = n ? ds__body_append(b, n, from->node[i]->deps, from->node[i]->dep_count)
              : DS_ERR_OUT_OF_MEMORY;
        if (r < 0)
            ds__node_free(n);
    }
    for (size_t i = 0; i < from->object_count && r == DS_OK; i++)
        r = ds__body_keep(b, from->object[i]);
    if (r == DS_OK)
        return b;
    ds__body_free(b);
    return NULL;
}

/* Marks what the nodes depend on, directly or not, themselves included. mark: one byte for each
   node of the body. 0: no memory. */
static int ds__body_ancestors(const ds__body *b, const uint32_t *nodes, size_t count,
                              unsigned char *mark) {
    uint32_t *stack = ds__alloc((b->count + 1) * sizeof *stack);
    uint32_t depth = 0;
    if (!stack)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (!mark[nodes[i]]) {
            mark[nodes[i]] = 1;
            stack[depth++] = nodes[i];
        }
    while (depth) {
        const ds__node *n = b->node[stack[--depth]];
        for (uint32_t i = 0; i < n->dep_count; i++)
            if (!mark[n->deps[i]]) {
                mark[n->deps[i]] = 1;
                stack[depth++] = n->deps[i];
            }
    }
    ds__release(stack);
    return 1;
}

/* "node 3 (kernel add_rows)" */
static const char *ds__node_text(const ds__node *n, uint32_t index, char *out, size_t size) {
    const char *name = n->kind == DS_NODE_KERNEL ? n->op.u.kernel.kernel->name : "";
    snprintf(out, size, "node %u (%s%s%.60s%s%.60s)", (unsigned)index, ds__node_names[n->kind],
             *name ? " " : "", name, n->label ? " " : "", n->label ? n->label : "");
    return out;
}

static const char *ds__node_print(const ds__body *b, uint32_t index, char *out, size_t size) {
    return ds__node_text(b->node[index], index, out, size);
}

/* base/capture_list.h - list of open captures, for both drivers.

   Keeps one record (ds__capture) for each open capture, so an error can name the capture, its
   call site, and the first call that invalidated it. CUDA enforces the rules of capture on a
   GPU, the CPU driver on its own devices; both enter every capture here (ds__capture_list,
   ds__capture_unlist). ds__capture_guard refuses calls that an open capture forbids, and
   ds__capture_fail builds the error sentence.

   Invariants: the list holds a capture from its begin until its end. A status changes from
   active to invalidated only, and the first offending call that devstream saw (culprit) is
   stored once, with its rule. ds__g.capture_count is at least the length of the list; the CUDA
   driver raises it while a capture begins. Numbers of captures and of threads are never used
   twice.
   Locks: ds__g.capture_lock guards the list and, for captures of the CPU driver, everything in
   them. ds__capture_guard takes the lock; functions with a comment "The lock is held" expect it.
   ds__g.begin and a graph's lock are taken before it. An error reported under the lock invokes
   the user's log function.
   Threads: any thread. ds__captures_open reads the count without a lock, so it may be out of
   date. */

static void ds__capture_over(ds__capture *c, int failed);

struct ds__capture {
    ds__capture *next;
    const ds__driver *driver;
    uint64_t id;
    uint64_t thread;    /* number of the thread that began it */
    uint64_t native_id; /* the CUDA driver's number */
    ds_capture_mode mode;
    ds_capture_status status;
    ds_site begun;
    ds_graph graph;
    ds__body *body;
    int into;      /* 1: the graph was there before */
    void *origin;  /* the driver's stream on which it began */
    void *members; /* CPU driver: all of its streams. CUDA driver: streams of its own */
    /* the first call that did not fit, and where: "ds_stream_query at a.c:7" */
    char culprit[160];
    char rule[128];
};

static const char *const ds__mode_names[] = { "global", "thread-local", "relaxed" };

/* A number of the calling thread. */
static uint64_t ds__thread_number(void) {
    if (!ds__tls.number)
        ds__tls.number = atomic_fetch_add(&ds__g.next_thread, 1) + 1;
    return ds__tls.number;
}

static const char *ds__short_path(const char *file) {
    size_t n = file ? strlen(file) : 0;
    return !file ? "?" : n > 70 ? file + n - 70 : file;
}

/* The lock is held. */
static void ds__capture_spoil(ds__capture *c, const char *rule) {
    if (c->status != DS_CAPTURE_ACTIVE)
        return;
    c->status = DS_CAPTURE_INVALIDATED;
    if (ds__tls.site.file)
        snprintf(c->culprit, sizeof c->culprit, "%s at %s:%d", ds__tls.fn,
                 ds__short_path(ds__tls.site.file), ds__tls.site.line);
    else
        snprintf(c->culprit, sizeof c->culprit, "%s", ds__tls.fn);
    snprintf(c->rule, sizeof c->rule, "%s", rule);
}

/* The sentence of a call that does not fit; spoils: the capture is invalid from now on. The lock
   is held. */
__attribute__((cold, noinline)) static ds_result ds__capture_fail(ds_result code, ds__capture *c,
                                                                  int spoils, const char *rule) {
    const char *file = ds__short_path(c->begun.file);
    if (spoils)
        ds__capture_spoil(c, rule);
    if (c->status == DS_CAPTURE_INVALIDATED && !spoils && code == DS_ERR_CAPTURE_INVALIDATED)
        return ds__fail(code, "capture #%llu (%s), begun at %s:%d, was invalidated by %s: %s",
                        (unsigned long long)c->id, ds__mode_names[c->mode], file, c->begun.line,
                        c->culprit[0] ? c->culprit : "a call that devstream did not see",
                        c->rule[0] ? c->rule : "CUDA does not say why");
    return ds__fail(code, "%s; capture #%llu (%s), begun at %s:%d, %s", rule,
                    (unsigned long long)c->id, ds__mode_names[c->mode], file, c->begun.line,
                    spoils                           ? "is invalid by this first offending call"
                    : c->status == DS_CAPTURE_ACTIVE ? "goes on"
                                                     : "stays invalid");
}

/* An open capture of the driver by its number; NULL: none. The lock is held. */
DS__SEAM static ds__capture *ds__capture_find(const ds__driver *driver, uint64_t id) {
    ds__capture *c = ds__g.captures;
    while (c && (c->id != id || c->driver->type != driver->type))
        c = c->next;
    return c;
}

static int ds__captures_open(void) {
    return atomic_load_explicit(&ds__g.capture_count, memory_order_relaxed);
}

/* Whether the open capture makes unsafe calls of this thread fail
   (cudaThreadExchangeStreamCaptureMode). The lock is held. */
static int ds__capture_forbids(const ds__capture *c) {
    ds_capture_mode mine = ds__tls.mode;
    if (ds__tls.quiet || mine == DS_CAPTURE_RELAXED || c->mode == DS_CAPTURE_RELAXED)
        return 0;
    return c->thread == ds__thread_number() ||
           (mine == DS_CAPTURE_GLOBAL && c->mode == DS_CAPTURE_GLOBAL);
}

/* Refuses a call that is not safe while a capture of the driver is open, and spoils those
   captures that made it unsafe. */
DS__SEAM static ds_result ds__capture_guard(const ds__driver *driver, const char *rule) {
    ds_result r = DS_OK;
    if (DS__LIKELY(ds__captures_open() == 0))
        return DS_OK;
    ds__lock_take(&ds__g.capture_lock);
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        if (c->driver->type != driver->type || !ds__capture_forbids(c))
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, c->status == DS_CAPTURE_ACTIVE,
                                 rule);
        else
            ds__capture_spoil(c, rule);
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* Gives a capture that has begun its number and enters it. The lock is held. */
DS__SEAM static void ds__capture_list(ds__capture *c) {
    c->id = ++ds__g.next_capture;
    c->status = DS_CAPTURE_ACTIVE;
    c->next = ds__g.captures;
    ds__g.captures = c;
    atomic_fetch_add(&ds__g.capture_count, 1);
}

/* Takes a capture out of the list. The lock is held. */
DS__SEAM static void ds__capture_unlist(ds__capture *c) {
    ds__capture **p = &ds__g.captures;
    while (*p && *p != c)
        p = &(*p)->next;
    if (*p) {
        *p = c->next;
        atomic_fetch_sub(&ds__g.capture_count, 1);
    }
}

/* base/mapping.h - list of mappings in reserved address space.

   Records for both drivers which parts of reserved address space have memory behind them. A
   driver adds a mapping (ds__mapping_add) before it maps memory and takes the mapping out
   (ds__mapping_take) before it unmaps it. So mappings that overlap are refused.
   ds__mapping_check finds ranges that do not end at the bounds of mappings, since cuMemUnmap
   takes whole mappings only.

   Invariants: ds__g.mappings is sorted by address, and no two mappings overlap.
   Locks: all functions but ds__mapping_after take ds__g.mapping_lock; that one expects it. The
   user's allocator may run under the lock, a driver call may not.
   Threads: any thread. Check and take are separate steps, so two threads must not unmap the same
   range. */

/* Index of the first mapping that ends after the address. The lock is held. */
static size_t ds__mapping_after(uintptr_t address) {
    size_t low = 0;
    size_t high = ds__g.mapping_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ds__g.mappings[middle].at + ds__g.mappings[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

DS__SEAM static ds_result ds__mapping_add(void *ptr, size_t size) {
    uintptr_t at = (uintptr_t)ptr;
    ds_result r = DS_OK;
    ds__lock_take(&ds__g.mapping_lock);
    size_t i = ds__mapping_after(at);
    if (i < ds__g.mapping_count && ds__g.mappings[i].at < at + size) {
        r = DS_ERR_INVALID_VALUE;
    } else if (ds__g.mapping_count == ds__g.mapping_room) {
        size_t room = ds__g.mapping_room ? 2 * ds__g.mapping_room : 64;
        ds__mapping *more = ds__alloc(room * sizeof *more);
        if (!more)
            r = DS_ERR_OUT_OF_MEMORY;
        else {
            if (ds__g.mapping_count)
                memcpy(more, ds__g.mappings, ds__g.mapping_count * sizeof *more);
            ds__release(ds__g.mappings);
            ds__g.mappings = more;
            ds__g.mapping_room = room;
        }
    }
    if (r == DS_OK) {
        memmove(ds__g.mappings + i + 1, ds__g.mappings + i,
                (ds__g.mapping_count++ - i) * sizeof *ds__g.mappings);
        ds__g.mappings[i].at = at;
        ds__g.mappings[i].size = size;
    }
    ds__lock_give(&ds__g.mapping_lock);
    if (r == DS_ERR_INVALID_VALUE)
        return ds__fail(r, "%zu bytes at %p touch what is mapped already", size, ptr);
    return r == DS_OK ? r : ds__fail(r, "no memory to keep track of %zu mapped bytes", size);
}

/* Takes out the first mapping of [at, end); 0: there is none. */
DS__SEAM static int ds__mapping_take(uintptr_t at, uintptr_t end, ds__mapping *out) {
    ds__lock_take(&ds__g.mapping_lock);
    size_t i = ds__mapping_after(at);
    int found = i < ds__g.mapping_count && ds__g.mappings[i].at >= at && ds__g.mappings[i].at < end;
    if (found) {
        *out = ds__g.mappings[i];
        memmove(ds__g.mappings + i, ds__g.mappings + i + 1,
                (--ds__g.mapping_count - i) * sizeof *ds__g.mappings);
    }
    ds__lock_give(&ds__g.mapping_lock);
    return found;
}

/* Whether the range is one or several mappings. */
DS__SEAM static ds_result ds__mapping_check(void *ptr, size_t size) {
    uintptr_t at = (uintptr_t)ptr;
    uintptr_t end = at + size;
    ds__lock_take(&ds__g.mapping_lock);
    for (size_t i = ds__mapping_after(at);
         at < end && i < ds__g.mapping_count && ds__g.mappings[i].at == at; i++)
        at += ds__g.mappings[i].size;
    ds__lock_give(&ds__g.mapping_lock);
    return at == end && size ? DS_OK
                             : ds__fail(DS_ERR_INVALID_VALUE,
                                        "%zu bytes at %p are not what was mapped", size, ptr);
}

/* base/ipc_board.h - shared-memory registries of several processes.

   A process that shares events or memory has a shared-memory registry (ds__board): a page
   (ds__sheet) of shared memory that other processes open. The page has the process's
   interprocess events (marks), the progress of the streams that record them (lanes), and the
   users of its memory (export slots: ds__stake). ds__board_own creates the process's own
   registry, ds__board_open opens that of another process, and ds__board_close gives it back.

   Policy:
   1. The page lives as long as one process has it open.
   2. Every process that uses a registry has a number in it, never given twice. It holds the file
      lock of the byte with this number. The kernel drops the lock when the process ends, in any
      way. So a free lock means: the process will do nothing more there.
   3. The lock belongs to the open file (F_OFD_SETLK). flock has only one lock for a whole file.
      An ordinary record lock is lost as soon as anything in the process closes the file. A
      robust futex belongs to a thread, which would have to live as long as the process.
   4. A forked child inherits the open file too. It does not get the mapping, and the fork
      handler closes the child's copy of the file.
   5. Memory of the page is reserved before it is touched, so a lack of memory is a result and
      not a signal.

   Invariants: number 1 in a registry is its owner's. Lanes are never returned. A registry of
   another process stays open while it has users or pending operations. A mark's generation rises
   when its event ends, which makes exported handles stale.
   Locks: ds__boards.mutex guards the list and the process's own fields. ds__boards_end takes it;
   functions that change the list or a registry expect it. The fork handlers hold it across fork.
   alloc/ takes its sharing lock (ds__share.mutex) before it; the CPU driver takes an event's
   lock under it.
   Threads: any thread, and the watcher thread of the CPU driver. Other processes and the CPU
   driver's workers change atomic fields of the page without the mutex. */

enum {
    DS__MARKS = 1 << 16,
    DS__LANES = 1 << 18,
    DS__STAKES = 1 << 14,
    DS__LEASES = 62,
    DS__BOARD_LAYOUT = 1
};

/* The progress of one stream that records events of this board: its operations up to `done` are
   over, and those from failed_from to failed_upto have failed. */
typedef struct ds__lane {
    _Atomic uint64_t done;
    _Atomic uint64_t failed_from;
    _Atomic uint64_t failed_upto;
    _Atomic uint64_t who; /* number << 24 | process id */
} ds__lane;

/* An event. */
typedef struct ds__mark {
    /* of the latest record: lane + 1 (24 bits) and the number of the operation (the lowest 40);
       0: none */
    _Atomic uint64_t word;
    _Atomic uint32_t generation;
    uint32_t next; /* the owner's: index + 1, in the list of free ones */
} ds__mark;

/* A piece of memory. */
typedef struct ds__stake {
    _Atomic uint64_t word;              /* generation << 1, and 1: it may be taken */
    uint64_t next;                      /* as a mark's */
    _Atomic uint64_t lease[DS__LEASES]; /* who uses it: number << 24 | process id; 0: free */
} ds__stake;

typedef struct ds__sheet {
    uint64_t cookie;
    uint32_t layout;
    _Atomic uint32_t lanes;   /* given out */
    _Atomic uint32_t waiters; /* threads that sleep on the bell */
    _Atomic uint32_t bell;    /* changed after `done` of a lane */
    _Atomic uint64_t peers;   /* numbers given out; 1 is the owner's */
    char pad[4096 - 40];
    ds__mark mark[DS__MARKS];
    ds__lane lane[DS__LANES];
    ds__stake stake[DS__STAKES];
} ds__sheet;

/* A board that this process has open. */
typedef struct ds__board {
    struct ds__board *next;
    ds__sheet *sheet;
    uint64_t serial; /* no other board of this process ever had it */
    uint64_t cookie;
    uint64_t me;
    int pid;
    int fd;
    int users;           /* of a board of another process */
    _Atomic int pending; /* operations that will write to it */
    /* the process's own board only: */
    uint32_t marks;      /* given out so far */
    uint32_t free_mark;  /* index + 1 of the first free one */
    uint32_t stakes;     /* given out so far */
    uint32_t free_stake; /* index + 1 of the first free one */
} ds__board;

static struct {
    pthread_mutex_t mutex;
    ds__board *own;
    ds__board *others;
    uint64_t serials;
    int atfork;
} ds__boards = { .mutex = PTHREAD_MUTEX_INITIALIZER };

/* What the handles of events and of memory say; the rest of their 64 bytes is zero. */
typedef struct ds__address {
    uint32_t kind; /* DS__ADDRESS_* */
    int32_t pid;
    int32_t fd;
    uint32_t index;
    uint32_t generation;
    uint32_t zero;
    uint64_t cookie;
    uint64_t size;
} ds__address;

enum { DS__ADDRESS_EVENT = 0x01457344, DS__ADDRESS_MEMORY = 0x014d7344 };

static void ds__boards_lock(void) {
    pthread_mutex_lock(&ds__boards.mutex);
}

static void ds__boards_unlock(void) {
    pthread_mutex_unlock(&ds__boards.mutex);
}

/* In a forked child: the parent must not seem to be alive as long as the child is. */
static void ds__boards_forked(void) {
    if (ds__boards.own) {
        close(ds__boards.own->fd);
        ds__boards.own->fd = -1;
    }
    for (ds__board *b = ds__boards.others; b; b = b->next) {
        close(b->fd);
        b->fd = -1;
    }
    ds__boards_unlock();
}

static void ds__board_free(ds__board *b) {
    if (b->sheet)
        ds__os_unmap(b->sheet, sizeof *b->sheet);
    if (b->fd >= 0)
        close(b->fd);
    ds__release(b);
}

/* The mutex is held. */
static ds__board *ds__board_new(int fd) {
    ds__board *b = ds__alloc(sizeof *b);
    if (b && !ds__boards.atfork)
        ds__boards.atfork =
            pthread_atfork(ds__boards_lock, ds__boards_unlock, ds__boards_forked) == 0;
    if (b && ds__boards.atfork)
        b->sheet = ds__os_memfd_map(fd, sizeof *b->sheet);
    if (b && b->sheet && !ds__os_keep_from_child(b->sheet, sizeof *b->sheet)) {
        ds__os_unmap(b->sheet, sizeof *b->sheet);
        b->sheet = NULL;
    }
    if (!b || !b->sheet) {
        ds__release(b);
        close(fd);
        return NULL;
    }
    b->fd = fd;
    b->serial = ++ds__boards.serials;
    return b;
}

static ds_result ds__board_short(void) {
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for what processes share");
}

/* The process's own board, made when first needed. The mutex is held. */
DS__SEAM static ds_result ds__board_own(ds__board **out) {
    uint64_t cookie = ds__os_cookie();
    if ((*out = ds__boards.own) != NULL)
        return DS_OK;
    int fd = ds__os_memfd(sizeof(ds__sheet), cookie);
    if (fd < 0)
        return ds__fail(DS_ERR_SYSTEM, "the system refuses memory to share (memfd_create): %s",
                        strerror(errno));
    int reserved = ds__os_memfd_reserve(fd, 0, offsetof(ds__sheet, mark));
    ds__board *b = ds__board_new(fd);
    if (b && (!reserved || !ds__os_hold_byte(fd, 1))) {
        ds__board_free(b);
        b = NULL;
    }
    if (!b)
        return ds__board_short();
    b->cookie = b->sheet->cookie = cookie;
    b->me = 1;
    b->pid = (int)getpid();
    b->sheet->layout = DS__BOARD_LAYOUT;
    atomic_store(&b->sheet->peers, 1);
    *out = ds__boards.own = b;
    return DS_OK;
}

/* 1: the process with this number on the board is there. */
static int ds__board_alive(const ds__board *b, uint64_t number) {
    return number == b->me || ds__os_byte_held(b->fd, number);
}

/* Why another process's memory could not be opened. */
static ds_result ds__peer_fail(int pid) {
    if (errno == ENOENT)
        return ds__fail(
            DS_ERR_PEER_DIED,
            "process %d, which exported the handle, has ended or has shut devstream down", pid);
    if (errno == EACCES || errno == EPERM)
        return ds__fail(DS_ERR_SYSTEM,
                        "process %d, which exported the handle, may not be looked into; both must "
                        "belong to the same user",
                        pid);
    return ds__fail(DS_ERR_SYSTEM, "what process %d shares cannot be opened: %s", pid,
                    strerror(errno));
}

/* Closes what nobody uses any more. The mutex is held. */
static void ds__boards_tidy(void) {
    for (ds__board **p = &ds__boards.others; *p;) {
        ds__board *b = *p;
        if (b->users || atomic_load(&b->pending)) {
            p = &b->next;
            continue;
        }
        *p = b->next;
        ds__board_free(b);
    }
}

static ds_result ds__board_join(int pid, int fd, uint64_t cookie, ds__board **out) {
    int got = ds__os_memfd_open(pid, fd, cookie, sizeof(ds__sheet));
    if (got < 0)
        return ds__peer_fail(pid);
    ds__board *b = ds__board_new(got);
    if (!b)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to see what process %d shares", pid);
    b->me = UINT64_MAX;
    b->pid = pid;
    b->cookie = cookie;
    ds_result r = DS_OK;
    if (b->sheet->cookie != cookie || b->sheet->layout != DS__BOARD_LAYOUT)
        r = ds__fail(
            DS_ERR_UNSUPPORTED,
            "process %d has another version of devstream, with which nothing can be shared", pid);
    else if ((b->me = atomic_fetch_add(&b->sheet->peers, 1) + 1, !ds__os_hold_byte(got, b->me)))
        r = ds__fail(DS_ERR_SYSTEM, "the system refuses a file lock: %s", strerror(errno));
    if (r < 0) {
        ds__board_free(b);
        return r;
    }
    b->next = ds__boards.others;
    ds__boards.others = b;
    *out = b;
    return DS_OK;
}

/* The board of the process that exported a handle, which must live; ends with ds__board_close.
   The mutex is held. */
DS__SEAM static ds_result ds__board_open(int pid, int fd, uint64_t cookie, ds__board **out) {
    ds__board *b = ds__boards.others;
    ds_result r = DS_OK;
    if (pid == (int)getpid())
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the handle was exported by this process; use what it was made of");
    ds__boards_tidy();
    while (b && (b->cookie != cookie || b->pid != pid))
        b = b->next;
    if (!b)
        r = ds__board_join(pid, fd, cookie, &b);
    if (r == DS_OK && !ds__board_alive(b, 1)) {
        errno = ENOENT;
        r = ds__peer_fail(pid);
    }
    if (r < 0) {
        ds__boards_tidy();
        return r;
    }
    b->users++;
    *out = b;
    return DS_OK;
}

/* The mutex is held. */
DS__SEAM static void ds__board_close(ds__board *b) {
    b->users--;
    ds__boards_tidy();
}

/* The board with this serial; NULL: this process does not have it open. The mutex is held. */
DS__SEAM static ds__board *ds__board_of(uint64_t serial) {
    ds__board *b = ds__boards.own;
    if (b && b->serial == serial)
        return b;
    for (b = ds__boards.others; b && b->serial != serial;)
        b = b->next;
    return b;
}

/* A lane of the board for this process. The mutex is held. */
DS__SEAM static ds_result ds__board_lane(ds__board *b, uint32_t *out) {
    ds__sheet *s = b->sheet;
    uint32_t i = atomic_load(&s->lanes);
    do {
        if (i >= DS__LANES)
            return ds__fail(DS_ERR_LIMIT_EXCEEDED,
                            "%d streams have recorded events of process %d, which is the limit",
                            DS__LANES, b->pid);
    } while (!atomic_compare_exchange_weak(&s->lanes, &i, i + 1));
    if (!ds__os_memfd_reserve(b->fd, offsetof(ds__sheet, lane) + i * sizeof *s->lane,
                              sizeof *s->lane))
        return ds__board_short();
    atomic_store(&s->lane[i].who, b->me << 24 | ((uint64_t)getpid() & 0xffffff));
    *out = i;
    return DS_OK;
}

/* An event on the own board. The mutex is held. */
DS__SEAM static ds_result ds__board_mark(ds__board *b, uint32_t *out) {
    uint32_t i = b->free_mark ? b->free_mark - 1 : b->marks;
    if (i >= DS__MARKS)
        return ds__fail(DS_ERR_LIMIT_EXCEEDED,
                        "a process can have %d interprocess events at a time", DS__MARKS);
    ds__mark *m = &b->sheet->mark[i];
    if (b->free_mark) {
        b->free_mark = m->next;
    } else {
        if (!ds__os_memfd_reserve(b->fd, offsetof(ds__sheet, mark) + i * sizeof *m, sizeof *m))
            return ds__board_short();
        b->marks++;
        atomic_store(&m->generation, 1);
    }
    *out = i;
    return DS_OK;
}

/* What was exported of it is void from now on. The mutex is held. */
DS__SEAM static void ds__board_unmark(ds__board *b, uint32_t i) {
    ds__mark *m = &b->sheet->mark[i];
    atomic_fetch_add(&m->generation, 1);
    atomic_store(&m->word, 0);
    m->next = b->free_mark;
    b->free_mark = i + 1;
}

/* At shutdown, when all operations are over. */
static void ds__boards_end(void) {
    ds__boards_lock();
    while (ds__boards.others) {
        ds__board *b = ds__boards.others;
        ds__boards.others = b->next;
        ds__board_free(b);
    }
    if (ds__boards.own)
        ds__board_free(ds__boards.own);
    ds__boards.own = NULL;
    ds__boards_unlock();
}

/* base/core_calls.h - functions of the core that lower layers call.

   Declares the functions of core/ that the drivers need, because rooms of base/ and of the
   drivers may not include a room of core/. They start a public call (ds__enter), add an object's
   name to an error (ds__name_object), give the current device (ds__thread_device) and look up a
   pointer (ds__known, ds__ask).

   Invariants: every function that is declared here is defined in core/.
   Locks: ds__enter may take ds__g.mutex, if devstream has not been started. The others take
   none. ds__ask calls the CUDA driver.
   Threads: any thread. On a thread of the library ds__thread_device returns cpu:0. */

static ds_result ds__enter(const char *fn);
DS__SEAM static ds_result ds__name_object(ds_result r, const char *what, const char *label);
DS__SEAM static ds_device ds__thread_device(void);
DS__SEAM static int ds__known(const void *ptr, ds_pointer_info *out);
DS__SEAM static ds_result ds__ask(const void *ptr, ds_pointer_info *out);

/* core/drivers.h - list of the drivers and of their rooms.

   Includes the rooms of each compiled-in driver, so that core/init.h finds the driver tables
   ds__cpu_driver and ds__cuda_driver. DEVSTREAM_NO_CPU leaves the CPU driver out; DEVSTREAM_CUDA
   brings the CUDA driver in.

   Invariants: only entry files, os/os.h and this list may have conditionals around includes of
   rooms.
   Locks: none.
   Threads: any. */

#ifndef DEVSTREAM_NO_CPU

/* cpu/types.h - types, constants and global state of the CPU driver.

   Defines the stream (ds__cpu_stream), the event, the device, the worker, the job and the
   failure. Also holds the constants and the state of the whole driver, `ds__cpu`. Every other
   room of cpu/ except options.h includes this room.

   Policy:
   1. A stream is a queue. At most one thread at a time takes operations from it.
   2. The operations of a stream are numbered. `submitted` is the last number enqueued, `done`
      the last number passed.
   3. A stream and a number form a token. It means all work of the stream up to the number. An
      event keeps a token, a wait operation names one, and a host thread sleeps on one.
   4. Stream objects are recycled, but not freed before shutdown, and their numbers continue. A
      token therefore stays valid.
   5. A stream that waits for a token is parked on the stream of the token. It holds no thread.
   6. A stream whose next operation is a host function goes to a thread for host functions.
      Workers never run host functions.
   7. After a worker has emptied a stream, it polls the stream for some microseconds (state
      POLLED). A stream of small operations then costs no wake-up. Before a long operation, the
      worker releases all streams that it polls.
   8. A stream that becomes ready wakes a worker only if no worker is about to look at the ready
      streams (`lookers`).
   9. The monitor thread ticks every millisecond while anything runs. It adds a thread for host
      functions if all of them are stuck. It also takes polled streams from a worker whose
      operation lasts longer than expected.

   Invariants: the thread that sets a stream's state to RUNNING owns the stream. Only the owner
   takes operations from the queue and writes `done`. `done` never decreases. A proxy and the
   gate of an executable only count: their state is COUNTS, and they have no operations.
   Locks: the order is a device's legacy lock, a stream's put lock, the device's lock,
   `block_lock`, `raw_lock`. A put lock also comes before `wait_lock` and before the pool's lock
   (`ds__cpu.lock`). The core's capture lock and the mutex of the shared-memory registries come
   before an event's lock, `object_lock` before `raw_lock`. Exception: the creation of a legacy
   stream takes put locks under the device's lock, before another thread can use that stream.
   Threads: caller's threads, workers, threads for host functions, one monitor, and one watcher
   for interprocess events. The options at the head of `ds__cpu` are set before the first of
   these threads starts. */

enum {
    DS__CPU_FREE,
    DS__CPU_IDLE,
    DS__CPU_READY,
    DS__CPU_RUNNING,
    DS__CPU_POLLED,
    DS__CPU_PARKED,
    DS__CPU_AT_HOST,
    DS__CPU_COUNTS /* it has no operations, only numbers to wait for */
};

enum {
    /* priorities -5 .. 0, which recent GPUs are believed to report */
    DS__CPU_LEVELS = 6,
    /* of a block of queued operations; holds the largest operation */
    DS__CPU_BLOCK_BYTES = 8192,
    DS__CPU_SLAB_BLOCKS = 32,
    DS__CPU_POLL_SLOTS = 16,      /* streams a worker polls at most */
    DS__CPU_POLL_NS = 20000,      /* how long a worker polls before it sleeps */
    DS__CPU_WAIT_SPIN_NS = 40000, /* how long a host thread spins before it sleeps */
    /* an operation expected to take longer does not keep others waiting */
    DS__CPU_LONG_NS = 5000,
    /* the rest of a kernel is split among threads that are awake when it is expected to take
       longer */
    DS__CPU_SPLIT_NS = 2000,
    DS__CPU_CALL_NS = 40000, /* and others are woken for it when it takes that long */
    /* of a kernel that is known, about so much is run to see how long it takes now */
    DS__CPU_FIRST_NS = 20000,
    DS__CPU_NESTED = 4, /* streams that a thread runs inside of one another */
    /* operations after which a worker looks at the other ready streams */
    DS__CPU_BATCH = 256,
    DS__CPU_TICK_NS = 1000000,
    /* operations that a look at a streaming producer should find */
    DS__CPU_STREAM_BATCH = 64,
    DS__CPU_STREAM_PAUSES = 400, /* longest wait between such looks, some microseconds */
    DS__CPU_HOST_NS = 30000000,  /* virtual clock: how long it stands for a host function */
    DS__CPU_ASK_NS = 200000,     /* and a query waits this long, so many times */
    DS__CPU_ASKS = 100,
    DS__CPU_STALL_TICKS = 200, /* and without a call for so long, all work runs */
    DS__CPU_HELD = 1 << 20     /* or when so many operations are held back */
};

/* copies and fills from here on are split among threads that are awake */
#define DS__CPU_SPLIT_BYTES ((size_t)64 << 10)
#define DS__CPU_CALL_BYTES ((size_t)2 << 20)    /* and others are woken for them from here on */
#define DS__CPU_PIECE_BYTES ((size_t)128 << 10) /* at most, and a quarter of what is to be done */
/* from here on stores go around the caches; below they lose */
#define DS__CPU_STREAM_BYTES ((size_t)32 << 20)
#define DS__CPU_STREAM_PIECE ((size_t)1 << 20)
#define DS__CPU_DRY_BYTES ((size_t)1 << 20)

typedef struct ds__cpu_stream ds__cpu_stream;
typedef struct ds__cpu_lane ds__cpu_lane;
typedef struct ds__cpu_proxy ds__cpu_proxy;

/* A piece of queue memory. Operations follow one another; a DS__OP_JUMP says: go on in `next`. */
typedef struct ds__cpu_block {
    struct ds__cpu_block *next;
    uint64_t pad[7]; /* a small launch fills one cache line */
    char data[DS__CPU_BLOCK_BYTES - 64];
} ds__cpu_block;

/* What failed, once for each failure; kept until shutdown, because anything may still refer to
   it. */
typedef struct ds__cpu_failure {
    struct ds__cpu_failure *next;
    ds_result code;
    char text[384];
} ds__cpu_failure;

/* Numbers of a stream that stay failed when it runs again. */
typedef struct ds__cpu_past {
    const struct ds__cpu_past *next;
    ds__cpu_failure *failure;
    uint64_t from;
    _Atomic uint64_t upto;
} ds__cpu_past;

/* A thread or a stream that waits for a token; stands in the list of the token's stream. */
typedef struct ds__cpu_waiter {
    struct ds__cpu_waiter *next;
    uint64_t upto;
    ds__cpu_stream *parked; /* a stream, or */
    _Atomic uint32_t *flag; /* a host thread: set to 1 and woken */
} ds__cpu_waiter;

/* An operation that several threads work on. */
typedef struct ds__cpu_job {
    void (*piece_fn)(struct ds__cpu_job *job, size_t piece);
    size_t pieces;
    _Atomic size_t taken;
    _Atomic size_t front;
    _Atomic size_t back;
    _Atomic size_t finished;
    /* threads inside, the owner not counted; under the pool's lock */
    int users;
    const ds__op *op;
    const void *args;
    size_t first;       /* kernel: the first item */
    size_t piece_items; /* items of a piece */
    _Atomic int status;
    struct ds__cpu_job *prev_job;
    struct ds__cpu_job *next_job;
} ds__cpu_job;

/* Laid out by who writes: producers (first line), producers while the worker polls (second), the
   worker while waiting hosts poll (third), hardly anyone (fourth), whoever parks or wakes (the
   rest). */
struct ds__cpu_stream {
    ds__lock put_lock;
    uint32_t tail_at;
    ds__cpu_block *tail;
    uint64_t legacy_seen; /* blocking stream: the legacy number it waits for already */
    /* the number of this stream that the legacy stream waits for already */
    uint64_t seen_by_legacy;
    _Atomic(ds__cpu_block *) spare; /* a block from the consumer back to the producer */
    char pad0[64 - 40];

    _Atomic uint64_t submitted;
    _Atomic uint32_t state;
    char pad1[64 - 12];

    _Atomic uint64_t done;
    _Atomic uint32_t waiting; /* 1: the list of waiters is not empty */
    uint32_t head_at;
    ds__cpu_block *head;
    char pad2[64 - 24];

    _Atomic(ds__cpu_failure *) failure;
    _Atomic uint64_t failed_from; /* numbers from here on failed */
    _Atomic int closing;          /* destroyed: recycle when drained */
    int device;
    int kind;
    int had_failure;
    _Atomic int level; /* a lane's is that of each launch's stream */
    unsigned flags;
    int floating; /* unwrapped: nobody's */
    /* it captures; legacy stream: blocking streams of its device that capture */
    _Atomic int watch;
    char pad3[64 - 48];

    ds__lock wait_lock;
    ds__cpu_waiter *waiters;
    ds__cpu_waiter as_waiter;    /* for being parked */
    _Atomic uint32_t park_count; /* odd while park_on and park_upto are written */
    _Atomic(ds__cpu_stream *) park_on;
    _Atomic uint64_t park_upto;
    _Atomic(ds__cpu_job *) job;
    int queued; /* 1: in the list of ready streams of `queued_level` */
    int queued_level;
    _Atomic(ds__cpu_past *) past; /* what failed before resets, the last first */
    ds__cpu_past first_past;
    ds__cpu_stream *prev;     /* ready list of a level */
    ds__cpu_stream *next;     /* ready list of a level, or list for host functions, or free list */
    ds__cpu_stream *all_prev; /* all streams of the device */
    ds__cpu_stream *all_next; /* all streams of the device */
    /* the next four: under the core's capture lock */
    ds__capture *capture;
    uint32_t *deps;     /* nodes that the next one will depend on */
    uint32_t dep_count; /* how many `deps` has */
    ds__cpu_stream *next_member;
    struct ds__cpu_launch *launch; /* a lane of an executable: the launch that it runs */
    uint64_t lane_base; /* of such a lane: its number before the first operation of that launch */
    /* where it tells other processes how far it is; under the boards' mutex */
    ds__cpu_lane *shared;
    struct ds__cpu_virtual *virt; /* NULL: no virtual clock, or a proxy */
};

/* A stream's virtual time. */
typedef struct ds__cpu_virtual {
    /* when its next operation is ready, as far as is known; who has the stream writes it */
    int64_t time;
    _Atomic int64_t end; /* when operation `done` was */
    /* the clock at the last submission; under the producer's lock */
    int64_t put;
    uint64_t born; /* how many streams were made before it */
    /* 1: the first of the two legs of its next operation is over */
    int leg;
} ds__cpu_virtual;

typedef struct ds__cpu_device {
    ds__lock lock; /* of the list */
    ds__cpu_stream *streams;
    ds__cpu_stream *legacy;
    /* blocking streams that capture; under the core's capture lock */
    int capturing;
    /* somebody has the legacy stream: blocking streams must look at it */
    _Atomic int legacy_used;
    /* orders the legacy stream's submissions against those of blocking streams */
    ds__lock legacy_lock;
    _Atomic(ds__cpu_failure *) failure;
    size_t limit;
    _Atomic size_t used;
    _Atomic size_t async_used; /* bytes of `used` that came from ds__cpu_async_alloc */
} ds__cpu_device;

typedef struct ds__cpu_stamp {
    _Atomic int refs;
    _Atomic uint64_t ns;
    struct ds__cpu_stamp *next;
} ds__cpu_stamp;

typedef struct ds__cpu_event {
    ds__lock lock;
    unsigned flags;
    ds__cpu_stream *stream; /* NULL: unrecorded */
    uint64_t upto;
    ds__cpu_stamp *stamp;
    uint64_t capture;   /* recorded in the capture with this number */
    uint32_t *deps;     /* recorded in a capture: it stands for these nodes of its graph */
    uint32_t dep_count; /* how many `deps` has */
    ds__board *board;   /* shared between processes: where it stands */
    uint64_t word;      /* what `stream` and `upto` stand for */
    uint32_t mark;
    uint32_t generation;
    int imported;
    struct ds__cpu_event *next; /* free list */
} ds__cpu_event;

typedef struct ds__cpu_worker {
    pthread_t thread;
    int polled_count;
    _Atomic(ds__cpu_stream *) polled[DS__CPU_POLL_SLOTS];
    _Atomic uint32_t beat; /* odd while an operation runs */
    _Atomic(ds__cpu_stream *) running;
    uint32_t last_beat; /* the monitor's */
    uint32_t streak;    /* streaming: operations found in short order */
    uint32_t misses;    /* streaming: looks in vain */
    uint32_t delay;     /* streaming: pauses between looks */
    _Atomic uint64_t operations;
    int is_long;
} ds__cpu_worker;

static struct {
    int devices;
    int workers;
    int processors;
    int no_spin;
    int is_inline;
    int is_lax;
    int spin_limit;
    uint64_t seed;
    unsigned char *peers;
    const ds_cpu_fabric *fabric; /* the kept one, without zeros */
    ds__cpu_device *device;
    ds__cpu_worker *worker;
    int started;
    int workers_started;
    char pad3[64]; /* what stands above is only read */
    /* ready streams */
    ds__lock lock; /* ready lists, host list, jobs, counts of threads */
    ds__cpu_stream *ready_head[DS__CPU_LEVELS];
    ds__cpu_stream *ready_tail[DS__CPU_LEVELS];
    ds__cpu_stream *host_head;
    ds__cpu_stream *host_tail;
    ds__cpu_job *jobs;
    uint64_t random;
    char pad0[64];
    _Atomic uint32_t ready_mask; /* bit: a level with ready streams; lowest bit most urgent */
    _Atomic int job_count;
    /* workers that will look at the ready streams within microseconds */
    _Atomic int lookers;
    _Atomic int parked; /* workers asleep */
    _Atomic int spinners;
    _Atomic uint32_t wake_word; /* workers sleep on it */
    _Atomic int quit;
    char pad1[64];
    _Atomic int hurry;  /* host threads that wait: no pause between looks */
    _Atomic int asleep; /* those of them that sleep: they join nothing */
    char pad2[64];
    /* host functions */
    _Atomic int host_threads;
    int host_idle;
    uint64_t host_progress; /* counts host functions taken; for the monitor */
    _Atomic uint32_t host_word;
    pthread_t *host_thread;
    int host_room;
    /* monitor */
    pthread_t monitor;
    int monitor_started;
    _Atomic uint32_t monitor_word; /* 0: asleep or about to be */
    /* memory */
    ds__lock block_lock;
    ds__cpu_block *free_blocks;
    ds__lock raw_lock;
    void **raw; /* all memory taken for the pools below */
    _Atomic size_t queue_bytes;
    ds__lock object_lock;
    ds__cpu_stream *free_streams;
    _Atomic int stream_count;
    ds__cpu_event *free_events;
    ds__cpu_stamp *free_stamps;
    ds__cpu_failure *failures;
    /* events that processes share: under the boards' mutex */
    ds__cpu_lane *lanes;
    ds__cpu_proxy *proxies;
    ds__cpu_proxy *watched;
    pthread_t watcher;
    int watcher_started;
    _Atomic uint32_t watch_word; /* the watcher sleeps on it */
    _Atomic int watch_quit;
    struct ds__cpu_share *shares; /* memory that other processes can open */
    /* the virtual clock */
    int64_t *link_free;   /* until when each link is held; the worker's */
    int64_t *engine_free; /* until when each engine is held; the worker's */
    int64_t *memory_free; /* until when each device's memory is held; the worker's */
    int64_t latest;       /* the last end of all that ran; the worker's */
    _Atomic int64_t clock;
    _Atomic int wanted;      /* host threads that wait for something that is not done */
    _Atomic int run_all;     /* nobody waits, but what is held back runs all the same */
    _Atomic int host_busy;   /* streams at a thread for host functions */
    int host_stuck;          /* how many of those the clock no longer stands still for */
    _Atomic uint32_t rests;  /* counts how often nothing more could run */
    _Atomic uint64_t born;   /* streams made */
    _Atomic uint64_t puts;   /* operations put on streams */
    _Atomic uint64_t passed; /* operations passed by streams */
    _Atomic uint64_t staged;
    _Atomic uint64_t inlined;
    _Atomic uint64_t helped;
    _Atomic uint64_t other_operations;
} ds__cpu;

/* 1: the order of operations, or what links between devices take, is what the program is run
   for. */
static inline int ds__cpu_explores(void) {
    return ds__cpu.seed || ds__cpu.fabric;
}

static const ds__driver ds__cpu_driver;
static void ds__cpu_push_ready(ds__cpu_stream *s);
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto);

/* cpu/failure.h - failures of streams and devices.

   Records failures (ds__cpu_fail_device, ds__cpu_fail_stream), and finds the failure of a number
   of a stream (ds__cpu_failed) or of the stream and its device (ds__cpu_stream_failure).

   Invariants: a device keeps its first failure until it is reset. If `failure` of a stream is
   set, all numbers from `failed_from` on have failed. Ranges that failed before a reset are in
   `past`. A failure object lives until the driver stops; without memory, ds__cpu_no_memory takes
   its place.
   Locks: ds__cpu_failure_new takes `object_lock`. The other functions take and expect none.
   Threads: any thread may ask. Only the owner of a stream calls ds__cpu_fail_stream; for a lane
   that has not started this is the owner of the launching stream, for a proxy the holder of the
   registries' mutex. */

static ds__cpu_failure ds__cpu_no_memory = { NULL, DS_ERR_FAILED,
                                             "out of memory while recording a failure" };

__attribute__((format(printf, 2, 3))) static ds__cpu_failure *ds__cpu_failure_new(
    ds_result code, const char *format, ...) {
    ds__cpu_failure *f = ds__alloc(sizeof *f);
    if (!f)
        return &ds__cpu_no_memory;
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    f->code = code;
    ds__lock_take(&ds__cpu.object_lock);
    f->next = ds__cpu.failures;
    ds__cpu.failures = f;
    ds__lock_give(&ds__cpu.object_lock);
    return f;
}

/* The device's first failure wins. */
static ds__cpu_failure *ds__cpu_fail_device(int device, const char *text) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_failure *f = ds__cpu_failure_new(DS_ERR_FAILED, "%s", text);
    ds__cpu_failure *none = NULL;
    return atomic_compare_exchange_strong(&d->failure, &none, f) ? f : none;
}

/* The stream's failure, if number `upto` is one that failed. */
static ds__cpu_failure *ds__cpu_failed(const ds__cpu_stream *s, uint64_t upto) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    if (f && upto >= atomic_load_explicit(&s->failed_from, memory_order_relaxed))
        return f;
    for (const ds__cpu_past *p = atomic_load_explicit(&s->past, memory_order_acquire); p;
         p = p->next)
        if (upto >= p->from && upto <= atomic_load_explicit(&p->upto, memory_order_relaxed))
            return p->failure;
    return NULL;
}

/* What a stream reports: its own failure, else its device's. */
static ds__cpu_failure *ds__cpu_stream_failure(const ds__cpu_stream *s) {
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_acquire);
    return f ? f : atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
}

static void ds__cpu_fail_stream(ds__cpu_stream *s, ds__cpu_failure *f, uint64_t from) {
    if (atomic_load_explicit(&s->failure, memory_order_relaxed))
        return;
    s->had_failure = 1;
    atomic_store_explicit(&s->failed_from, from, memory_order_relaxed);
    atomic_store_explicit(&s->failure, f, memory_order_release);
}

/* cpu/queue.h - queue memory, and enqueueing of operations.

   Copies an operation into the queue of a stream (ds__cpu_put), and manages the blocks of queue
   memory. ds__cpu_raw allocates the memory of all pools of the driver. ds__cpu_op_bytes is the
   size of an operation in a queue or in the plan of an executable.

   Invariants: an operation never crosses the end of a block. A DS__OP_JUMP follows the last
   operation of a block that has a successor. An operation is complete before `submitted` counts
   it. If there is no memory, ds__cpu_put enqueues nothing, or only a clock note. Memory of
   ds__cpu_raw is zeroed, aligned to 64 bytes, and freed only when the driver stops.
   Locks: ds__cpu_put and ds__cpu_room expect the stream's put lock. ds__cpu_block_take and
   ds__cpu_block_give take `block_lock`, ds__cpu_raw takes `raw_lock`. The program's allocator
   may run under the put lock and `block_lock`.
   Threads: submitting threads, one at a time for each stream, while the owner of the stream
   takes operations from the other end. ds__cpu_stays_failed must not run twice at once for a
   stream. */

/* Memory for the pools of streams, events, stamps and blocks: zeroed, aligned to 64, freed at
   shutdown only. */
static void *ds__cpu_raw(size_t size) {
    void **raw = ds__alloc(size + 128);
    if (!raw)
        return NULL;
    ds__lock_take(&ds__cpu.raw_lock);
    raw[0] = ds__cpu.raw;
    ds__cpu.raw = raw;
    ds__lock_give(&ds__cpu.raw_lock);
    return (void *)(((uintptr_t)raw + 64 + 63) & ~(uintptr_t)63);
}

/* One thread at a time. Without memory what lies between two such parts counts as failed too:
   what has failed must not count as done. */
static void ds__cpu_stays_failed(ds__cpu_stream *s, ds__cpu_failure *f, uint64_t from,
                                 uint64_t upto) {
    ds__cpu_past *last = atomic_load(&s->past);
    ds__cpu_past *p = last ? ds__cpu_raw(sizeof *p) : &s->first_past;
    if (!p) {
        atomic_store(&last->upto, upto);
        return;
    }
    p->failure = f;
    p->from = from;
    atomic_store(&p->upto, upto);
    p->next = last;
    atomic_store(&s->past, p);
}

static ds__cpu_block *ds__cpu_block_take(void) {
    ds__lock_take(&ds__cpu.block_lock);
    if (!ds__cpu.free_blocks) {
        ds__cpu_block *slab = ds__cpu_raw(DS__CPU_SLAB_BLOCKS * sizeof *slab);
        for (int i = 0; slab && i < DS__CPU_SLAB_BLOCKS; i++) {
            slab[i].next = ds__cpu.free_blocks;
            ds__cpu.free_blocks = &slab[i];
        }
        if (slab)
            atomic_fetch_add_explicit(&ds__cpu.queue_bytes, DS__CPU_SLAB_BLOCKS * sizeof *slab,
                                      memory_order_relaxed);
    }
    ds__cpu_block *b = ds__cpu.free_blocks;
    if (b)
        ds__cpu.free_blocks = b->next;
    ds__lock_give(&ds__cpu.block_lock);
    return b;
}

static void ds__cpu_block_give(ds__cpu_block *b) {
    if (!b)
        return;
    ds__lock_take(&ds__cpu.block_lock);
    b->next = ds__cpu.free_blocks;
    ds__cpu.free_blocks = b;
    ds__lock_give(&ds__cpu.block_lock);
}

/* Bytes of an operation in the queue, a multiple of 16, and where a kernel's arguments begin in
   it. */
#define DS__CPU_ARGS_AT 48u

static size_t ds__cpu_op_bytes(const ds__op *op) {
    static const size_t size[] = {
        [DS__OP_COPY] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.copy,
        [DS__OP_FILL] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.fill,
        [DS__OP_HOST] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.host,
        [DS__OP_CALLBACK] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.host,
        [DS__OP_RECORD] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.stamp,
        [DS__OP_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_NOTHING] = offsetof(ds__op, u),
        [DS__OP_GRAPH] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.graph,
        [DS__OP_LANE_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_NODE_RECORD] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_NODE_WAIT] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.wait,
        [DS__OP_SHARED_RECORD] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.shared,
        [DS__OP_FREE] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.memory,
        [DS__OP_CLOCK] = offsetof(ds__op, u) + sizeof((ds__op *)0)->u.clock,
    };
    size_t n =
        op->kind == DS__OP_KERNEL ? DS__CPU_ARGS_AT + op->u.kernel.args_size : size[op->kind];
    return (n + 15) & ~(size_t)15;
}

/* Makes room for an operation at the tail; the producer's lock is held. NULL: no memory, nothing
   changed. */
static void *ds__cpu_room(ds__cpu_stream *s, size_t bytes) {
    ds__cpu_block *b = s->tail;
    if (DS__UNLIKELY(!b || s->tail_at + bytes + 16 > sizeof b->data)) {
        ds__cpu_block *fresh = atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel);
        if (!fresh)
            fresh = ds__cpu_block_take();
        if (!fresh)
            return NULL;
        fresh->next = NULL;
        if (b) {
            b->next = fresh;
            ((ds__op *)(void *)(b->data + s->tail_at))->kind = DS__OP_JUMP;
        } else {
            /* the stream is empty and idle: nobody else looks at its head until we publish */
            s->head = fresh;
            s->head_at = 0;
        }
        s->tail = b = fresh;
        s->tail_at = 0;
    }
    void *at = b->data + s->tail_at;
    s->tail_at += (uint32_t)bytes;
    /* some operations ahead */
    ds__own_line((const char *)b + ((s->tail_at + 320) & (DS__CPU_BLOCK_BYTES - 1)));
    return at;
}

/* Small structs in words, as the caller has just written them: wider loads would wait for the
   caller's stores. */
static inline void ds__cpu_copy_args(char *to, const char *from, size_t size) {
    if (DS__UNLIKELY(size > 64)) {
        memcpy(to, from, size);
        return;
    }
    for (; size >= 8; size -= 8, to += 8, from += 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        memcpy(to, &word, 8);
    }
    for (; size; size--)
        *to++ = *from++;
}

static ds_result ds__cpu_put_clock(ds__cpu_stream *s);

/* Queues a copy of the operation; the producer's lock is held. */
static ds_result ds__cpu_put(ds__cpu_stream *s, const ds__op *op) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && op->kind != DS__OP_CLOCK) {
        ds_result r = ds__cpu_put_clock(s);
        if (r < 0)
            return r;
    }
    ds__op *q = ds__cpu_room(s, ds__cpu_op_bytes(op));
    if (DS__UNLIKELY(!q))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to queue the operation");
    if (op->kind == DS__OP_KERNEL) {
        q->kind = op->kind;
        q->flags = op->flags;
        q->places = op->places;
        q->line = op->line;
        q->file = op->file;
        q->u.kernel.kernel = op->u.kernel.kernel;
        q->u.kernel.items = op->u.kernel.items;
        q->u.kernel.args_size = op->u.kernel.args_size;
        ds__cpu_copy_args((char *)q + DS__CPU_ARGS_AT, op->u.kernel.args, op->u.kernel.args_size);
    } else {
        memcpy(q, op, ds__cpu_op_bytes(op) < sizeof *op ? ds__cpu_op_bytes(op) : sizeof *op);
    }
    uint64_t n = atomic_load_explicit(&s->submitted, memory_order_relaxed) + 1;
    /* seq_cst against ds__cpu_go_idle: either it sees this operation or the caller sees IDLE */
    atomic_store(&s->submitted, n);
    return DS_OK;
}

/* cpu/clock_order.h - order of the ready streams under the virtual clock.

   Keeps the ready streams in a pairing heap, and decides whether the worker may run one
   (ds__cpu_held). The worker runs only while a host thread waits for work (`wanted`) or while
   `run_all` is set. Otherwise ds__cpu_virtual_ready wakes the monitor, which sets `run_all` if
   no submission comes for DS__CPU_STALL_TICKS ticks.

   Invariants: the heap is ordered by virtual time, then by creation of the streams. Its root is
   ready_head[0], and `ready_mask` is 1 exactly if the heap holds a stream. A stream in the heap
   has a `virt` and is `queued`.
   Locks: ds__cpu_heap_join, ds__cpu_heap_add and ds__cpu_heap_take expect the pool's lock. The
   other functions take none.
   Threads: any thread may make a stream ready. Only the one worker takes a stream from the heap. */

static void ds__cpu_wake_worker(void);
static void ds__cpu_wake_monitor(void);

static int ds__cpu_held(void) {
    return atomic_load(&ds__cpu.wanted) <= 0 && !atomic_load(&ds__cpu.run_all);
}

static void ds__cpu_virtual_ready(void) {
    if (ds__cpu_held())
        ds__cpu_wake_monitor();
    else
        ds__cpu_wake_worker();
}

/* The ready streams are a pairing heap then: the first stands in ready_head[0], a stream's
   `prev` is the first of those below it, and `next` the next one beside it. The pool's lock is
   held. */
static ds__cpu_stream *ds__cpu_heap_join(ds__cpu_stream *a, ds__cpu_stream *b) {
    if (!a || !b)
        return a ? a : b;
    if (b->virt->time < a->virt->time ||
        (b->virt->time == a->virt->time && b->virt->born < a->virt->born)) {
        ds__cpu_stream *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->prev;
    a->prev = b;
    return a;
}

static void ds__cpu_heap_add(ds__cpu_stream *s) {
    s->queued = 1;
    s->prev = s->next = NULL;
    ds__cpu.ready_head[0] = ds__cpu_heap_join(ds__cpu.ready_head[0], s);
    atomic_store(&ds__cpu.ready_mask, 1);
}

static ds__cpu_stream *ds__cpu_heap_take(void) {
    ds__cpu_stream *first = ds__cpu.ready_head[0];
    ds__cpu_stream *pairs = NULL;
    ds__cpu_stream *rest = NULL;
    /* two by two, and then all of these */
    for (ds__cpu_stream *a = first->prev, *b, *next; a; a = next) {
        b = a->next;
        next = b ? b->next : NULL;
        a->next = NULL;
        if (b)
            b->next = NULL;
        a = ds__cpu_heap_join(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        ds__cpu_stream *next = pairs->next;
        pairs->next = NULL;
        rest = ds__cpu_heap_join(rest, pairs);
        pairs = next;
    }
    first->queued = 0;
    ds__cpu.ready_head[0] = rest;
    if (!rest)
        atomic_store(&ds__cpu.ready_mask, 0);
    return first;
}

/* cpu/scheduler.h - hand-over of streams between threads.

   Moves streams between the states IDLE, READY, RUNNING, POLLED and PARKED without losing a
   wake-up. Submitters call ds__cpu_kick, runners ds__cpu_pass and ds__cpu_go_idle, waiters
   ds__cpu_enlist and ds__cpu_park, workers ds__cpu_pop_ready and ds__cpu_sleep.

   The hand-shakes, which tests/model/cpu.pml checks. In each, a thread stores, then loads a
   value that the other side stores first:
   1. publish/idle: ds__cpu_put stores `submitted`, then ds__cpu_kick loads `state`;
      ds__cpu_go_idle does the reverse.
   2. pass/wait: ds__cpu_pass stores `done`, then loads `waiting`; ds__cpu_enlist does the
      reverse.
   3. ready/asleep: ds__cpu_push_ready sets `ready_mask`, then loads `lookers`; ds__cpu_sleep
      does the reverse.
   4. destroy/idle: ds__cpu_stream_destroy stores `closing`, then tries `state`; ds__cpu_go_idle
      does the reverse.

   Invariants: a stream is in a ready list exactly if `queued` is set, and its state is then
   READY. `ready_mask` has a bit for each level whose list is not empty. `waiting` is 1 if the
   list of waiters is not empty. Without a fabric, a worker counts in `lookers` except while it
   sleeps or runs a long operation.
   Locks: ready lists change under the pool's lock, a list of waiters under the stream's
   `wait_lock`. The two are never held together. ds__cpu_go_idle only tries the put lock. No user
   code and no wait runs under these locks.
   Threads: any thread. ds__cpu_go_idle and ds__cpu_park_waiting expect the owner of the stream.
   ds__cpu_sleep, ds__cpu_unpoll_all, ds__cpu_unpoll_fresh and ds__cpu_long are for a worker
   itself. */

static void ds__cpu_wake_worker(void) {
    atomic_fetch_add(&ds__cpu.wake_word, 1);
    ds__futex_wake(&ds__cpu.wake_word, 1);
}

static void ds__cpu_wake_monitor(void) {
    if (atomic_load(&ds__cpu.monitor_word) == 0 && atomic_exchange(&ds__cpu.monitor_word, 1) == 0)
        ds__futex_wake(&ds__cpu.monitor_word, 1);
}

/* The pool's lock is held; the stream's state is READY. */
static void ds__cpu_link_ready(ds__cpu_stream *s) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_heap_add(s);
        return;
    }
    int level = atomic_load_explicit(&s->level, memory_order_relaxed);
    s->queued = 1;
    s->queued_level = level;
    s->next = NULL;
    s->prev = ds__cpu.ready_tail[level];
    if (s->prev)
        s->prev->next = s;
    else
        ds__cpu.ready_head[level] = s;
    ds__cpu.ready_tail[level] = s;
    if (!s->prev)
        atomic_store(&ds__cpu.ready_mask,
                     atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed) | 1u << level);
}

static void ds__cpu_unlink_ready(ds__cpu_stream *s) {
    /* who has emptied a lane may have listed it at the level of the launch before */
    int level = s->queued_level;
    s->queued = 0;
    if (s->prev)
        s->prev->next = s->next;
    else
        ds__cpu.ready_head[level] = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        ds__cpu.ready_tail[level] = s->prev;
    if (!ds__cpu.ready_head[level])
        atomic_store(&ds__cpu.ready_mask,
                     atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed) &
                         ~(1u << level));
}

/* The stream's state is READY, set by the caller. Wakes a worker unless one is about to look. */
static void ds__cpu_push_ready(ds__cpu_stream *s) {
    ds__lock_take(&ds__cpu.lock);
    ds__cpu_link_ready(s);
    ds__lock_give(&ds__cpu.lock);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_virtual_ready();
        return;
    }
    if (atomic_load(&ds__cpu.lookers) == 0 && atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}

/* Takes the most urgent ready stream, oldest first (seeded: any); its state becomes RUNNING. */
static ds__cpu_stream *ds__cpu_pop_ready(void) {
    if (atomic_load(&ds__cpu.ready_mask) == 0)
        return NULL;
    ds__cpu_stream *s = NULL;
    ds__lock_take(&ds__cpu.lock);
    uint32_t mask = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    if (DS__UNLIKELY(mask && ds__cpu.fabric)) {
        s = ds__cpu_heap_take();
    } else if (mask) {
        s = ds__cpu.ready_head[__builtin_ctz(mask)];
        if (ds__cpu.seed) {
            ds__cpu.random = ds__cpu.random * 6364136223846793005u + 1442695040888963407u;
            for (uint64_t n = ds__cpu.random >> 61; n && s->next; n--)
                s = s->next;
        }
        ds__cpu_unlink_ready(s);
    }
    if (s)
        atomic_store_explicit(&s->state, DS__CPU_RUNNING, memory_order_relaxed);
    ds__lock_give(&ds__cpu.lock);
    return s;
}

/* Takes this stream from the ready ones, if it is there; its state becomes RUNNING. */
static int ds__cpu_take_ready(ds__cpu_stream *s) {
    ds__lock_take(&ds__cpu.lock);
    int mine = s->queued && atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_READY;
    if (mine) {
        ds__cpu_unlink_ready(s);
        atomic_store_explicit(&s->state, DS__CPU_RUNNING, memory_order_relaxed);
    }
    ds__lock_give(&ds__cpu.lock);
    return mine;
}

/* After a submission: an idle stream becomes ready. Everyone else who has the stream will see
   the new operation. */
static inline void ds__cpu_kick(ds__cpu_stream *s) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_load(&s->state) == DS__CPU_IDLE &&
        atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_READY))
        ds__cpu_push_ready(s);
}

static void ds__cpu_recycle(ds__cpu_stream *s);
static ds__op *ds__cpu_head(ds__cpu_stream *s);

/* The caller owns the stream (RUNNING, or POLLED by a successful exchange) and has emptied it. */
static void ds__cpu_go_idle(ds__cpu_stream *s) {
    for (;;) {
        /* An empty stream gives its memory back, so that ten thousand idle ones cost little. The
           memory of a lane belongs to a plan. */
        if (s->kind != DS__STREAM_LANE && ds__trylock(&s->put_lock)) {
            ds__cpu_block *b = NULL;
            if (atomic_load_explicit(&s->submitted, memory_order_acquire) ==
                atomic_load_explicit(&s->done, memory_order_relaxed)) {
                b = s->head;
                s->head = s->tail = NULL;
            }
            ds__lock_give(&s->put_lock);
            if (b) {
                ds__cpu_block_give(b);
                ds__cpu_block_give(atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel));
            }
        }
        atomic_store(&s->state, DS__CPU_IDLE);
        uint32_t idle = DS__CPU_IDLE;
        if (atomic_load(&s->submitted) != atomic_load_explicit(&s->done, memory_order_relaxed)) {
            if (atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_READY))
                ds__cpu_push_ready(s);
            return;
        }
        if (!atomic_load(&s->closing))
            return;
        if (!atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING))
            return;
        /* asked again: meanwhile who destroyed it may have recycled it, and it may be another
           stream by now */
        if (atomic_load(&s->closing) &&
            atomic_load(&s->submitted) == atomic_load_explicit(&s->done, memory_order_relaxed)) {
            ds__cpu_recycle(s);
            return;
        }
    }
}

/* All streams of the list become ready at once, so that the most urgent one is taken first. */
static void ds__cpu_push_woken(ds__cpu_waiter *woken) {
    int count = 0;
    ds__lock_take(&ds__cpu.lock);
    while (woken) {
        ds__cpu_stream *s = woken->parked;
        woken = woken->next;
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_link_ready(s);
        count++;
    }
    ds__lock_give(&ds__cpu.lock);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_virtual_ready();
        return;
    }
    int parked = atomic_load(&ds__cpu.lookers) == 0 ? atomic_load(&ds__cpu.parked) : 0;
    if (parked == 0)
        return;
    atomic_fetch_add(&ds__cpu.wake_word, 1);
    ds__futex_wake(&ds__cpu.wake_word, count < parked ? count : parked);
}

/* Passes on: everyone who waits for a number that is done. */
__attribute__((noinline)) static void ds__cpu_notify(ds__cpu_stream *s) {
    ds__cpu_waiter *woken = NULL;
    ds__lock_take(&s->wait_lock);
    uint64_t done = atomic_load_explicit(&s->done, memory_order_acquire);
    for (ds__cpu_waiter **p = &s->waiters; *p;) {
        ds__cpu_waiter *w = *p;
        if (w->upto > done) {
            p = &w->next;
            continue;
        }
        *p = w->next;
        if (w->flag) {
            /* The sleeper may go on, and its waiter with it, as soon as the flag is set. */
            _Atomic uint32_t *flag = w->flag;
            if (DS__UNLIKELY(ds__cpu.fabric != NULL))
                atomic_fetch_sub(&ds__cpu.wanted, 1);
            atomic_store_explicit(flag, 1, memory_order_release);
            ds__futex_wake(flag, 1);
        } else { /* the last one in the list has waited longest */
            w->next = woken;
            woken = w;
        }
    }
    if (!s->waiters)
        atomic_store(&s->waiting, 0);
    ds__lock_give(&s->wait_lock);
    if (woken)
        ds__cpu_push_woken(woken);
}

/* The stream has passed an operation. */
static inline void ds__cpu_pass(ds__cpu_stream *s, uint64_t number) {
    atomic_store(&s->done, number);
    if (DS__UNLIKELY(atomic_load(&s->waiting)))
        ds__cpu_notify(s);
}

/* The same after an operation known to be short. Without the full barrier a waiter that comes in
   this moment may be missed; the next check finds it, and ds__cpu_run_some makes one with a
   barrier before anything that may take long. */
static inline void ds__cpu_pass_short(ds__cpu_stream *s, uint64_t number) {
    atomic_store_explicit(&s->done, number, memory_order_release);
    if (DS__UNLIKELY(atomic_load_explicit(&s->waiting, memory_order_relaxed)))
        ds__cpu_notify(s);
}

/* Puts a waiter into the stream's list; the list's lock is held. 0: the number is done, the
   waiter is not in the list. */
static int ds__cpu_enlist(ds__cpu_stream *s, ds__cpu_waiter *w) {
    atomic_store(&s->waiting, 1);
    if (atomic_load(&s->done) >= w->upto) {
        if (!s->waiters)
            atomic_store(&s->waiting, 0);
        return 0;
    }
    w->next = s->waiters;
    s->waiters = w;
    return 1;
}

/* Parks stream s until `on` has passed `upto`. 0: it has already. */
static int ds__cpu_park(ds__cpu_stream *s, ds__cpu_stream *on, uint64_t upto) {
    s->as_waiter.upto = upto;
    s->as_waiter.parked = s;
    s->as_waiter.flag = NULL;
    atomic_fetch_add(&s->park_count, 1);
    atomic_store_explicit(&s->park_on, on, memory_order_relaxed);
    atomic_store_explicit(&s->park_upto, upto, memory_order_relaxed);
    atomic_fetch_add(&s->park_count, 1);
    ds__lock_take(&on->wait_lock);
    int parked = ds__cpu_enlist(on, &s->as_waiter);
    /* before the lock is given: nobody can make it ready earlier */
    if (parked)
        atomic_store(&s->state, DS__CPU_PARKED);
    ds__lock_give(&on->wait_lock);
    return parked;
}

/* A worker sleeps until there may be work. It has given up its place among the lookers. */
static void ds__cpu_sleep(void) {
    uint32_t word = atomic_load(&ds__cpu.wake_word);
    atomic_fetch_add(&ds__cpu.parked, 1);
    atomic_fetch_sub(&ds__cpu.lookers, 1);
    if (atomic_load(&ds__cpu.ready_mask) == 0 && atomic_load(&ds__cpu.job_count) == 0 &&
        !atomic_load(&ds__cpu.quit))
        ds__futex_wait(&ds__cpu.wake_word, word, DS__FOREVER);
    atomic_fetch_add(&ds__cpu.lookers, 1);
    atomic_fetch_sub(&ds__cpu.parked, 1);
}

static inline int ds__cpu_has_work(ds__cpu_stream *s) {
    return atomic_load_explicit(&s->submitted, memory_order_relaxed) !=
           atomic_load_explicit(&s->done, memory_order_relaxed);
}

/* The caller owns the stream (RUNNING). When its next operation waits for what is not done it is
   parked, and nobody needs to be woken for it; 1: so it is, and is the caller's no more. */
static int ds__cpu_park_waiting(ds__cpu_stream *s) {
    if (ds__cpu.seed || atomic_load_explicit(&s->submitted, memory_order_acquire) ==
                            atomic_load_explicit(&s->done, memory_order_relaxed))
        return 0;
    const ds__op *op = ds__cpu_head(s);
    return op->kind == DS__OP_WAIT &&
           atomic_load_explicit(&((ds__cpu_stream *)op->u.wait.stream)->done,
                                memory_order_acquire) < op->u.wait.upto &&
           ds__cpu_park(s, op->u.wait.stream, op->u.wait.upto);
}

/* Lets go of a polled stream; whoever else took it meanwhile keeps it. */
static void ds__cpu_unpoll(ds__cpu_stream *s) {
    uint32_t polled = DS__CPU_POLLED;
    if (atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING) &&
        !ds__cpu_park_waiting(s))
        ds__cpu_go_idle(s);
}

static void ds__cpu_unpoll_all(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count; i++)
        ds__cpu_unpoll(atomic_load_explicit(&w->polled[i], memory_order_relaxed));
    w->polled_count = 0;
}

/* Sends polled streams with new work to the ready ones, where their priority counts. */
static void ds__cpu_unpoll_fresh(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count;) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        if (!ds__cpu_has_work(s)) {
            i++;
            continue;
        }
        atomic_store_explicit(
            &w->polled[i],
            atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
            memory_order_relaxed);
        ds__cpu_unpoll(s);
    }
}

/* An operation that may take long begins (1) or ends (0): nothing that others could do waits for
   this worker. */
static void ds__cpu_long(ds__cpu_worker *w, int begin) {
    if (!w || w->is_long == begin)
        return;
    w->is_long = begin;
    if (!begin) {
        atomic_fetch_add(&ds__cpu.lookers, 1);
        return;
    }
    ds__cpu_unpoll_all(w);
    if (atomic_fetch_sub(&ds__cpu.lookers, 1) == 1 && atomic_load(&ds__cpu.ready_mask) &&
        atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}

/* cpu/job.h - jobs: one operation on several threads.

   Splits an operation into pieces that several threads run. The owner of the stream calls
   ds__cpu_job_run; idle workers and waiting host threads call ds__cpu_job_join. Kernels, copies
   and fills use jobs.

   Invariants: each piece runs exactly once. A job is in the list of jobs exactly while it is the
   `job` of its stream. It is on the owner's stack: ds__cpu_job_run returns only when all pieces
   are finished and no other thread is inside (`users`).
   Locks: the pool's lock guards the list, a stream's `job` and `users`. Pieces, which may be
   user code, run without a lock.
   Threads: the owner of the stream, workers and waiting host threads, at the same time. The
   owner spins until the last piece is finished. */

/* Waiting host threads take pieces from the front and workers from the back, so that each
   processor meets much the same memory every time. `taken` says that one is left; front and back
   then never meet. leave: a helping worker goes when there are ready streams. limit: this many
   pieces at most. */
static void ds__cpu_job_work(ds__cpu_job *job, int worker, int leave, size_t limit) {
    while (limit-- > 0 &&
           !(leave && atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed)) &&
           atomic_fetch_add_explicit(&job->taken, 1, memory_order_relaxed) < job->pieces) {
        size_t n =
            atomic_fetch_add_explicit(worker ? &job->back : &job->front, 1, memory_order_relaxed);
        job->piece_fn(job, worker ? job->pieces - 1 - n : n);
        atomic_fetch_add_explicit(&job->finished, 1, memory_order_acq_rel);
    }
}

/* Joins a job: that of one stream which has not passed `upto`, or any. 0: there was none. */
static int ds__cpu_job_join(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    ds__lock_take(&ds__cpu.lock);
    ds__cpu_job *job = s ? atomic_load_explicit(&s->job, memory_order_relaxed) : ds__cpu.jobs;
    /* a later operation's */
    if (s && atomic_load_explicit(&s->done, memory_order_relaxed) >= upto)
        job = NULL;
    while (job && atomic_load_explicit(&job->taken, memory_order_relaxed) >= job->pieces)
        job = s ? NULL : job->next_job;
    if (job)
        job->users++;
    ds__lock_give(&ds__cpu.lock);
    if (!job)
        return 0;
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    /* Between the pieces of a copy a worker can look at ready streams; those of a kernel may
       take long. */
    int moves = job->op->kind != DS__OP_KERNEL;
    if (!moves)
        ds__cpu_long(w, 1);
    ds__cpu_job_work(job, w != NULL, w != NULL && moves, SIZE_MAX);
    ds__cpu_long(w, 0);
    ds__tls.in_callback = outer;
    ds__lock_take(&ds__cpu.lock);
    job->users--;
    ds__lock_give(&ds__cpu.lock);
    return 1;
}

/* Works on the job until all of it is done; sleeping workers are called when that pays. */
static void ds__cpu_job_run(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_job *job,
                            int call_workers) {
    ds__lock_take(&ds__cpu.lock);
    job->prev_job = NULL;
    job->next_job = ds__cpu.jobs;
    if (job->next_job)
        job->next_job->prev_job = job;
    ds__cpu.jobs = job;
    atomic_fetch_add(&ds__cpu.job_count, 1);
    atomic_store_explicit(&s->job, job, memory_order_release);
    ds__lock_give(&ds__cpu.lock);
    /* Two pieces on our own, time enough for a host thread that waits, or a worker that is
       awake, to join. Then sleeping workers are called, but no more threads than processors: one
       too many, and a piece waits for a time slice. */
    ds__cpu_job_work(job, w != NULL, 0, 2);
    int parked = atomic_load(&ds__cpu.parked);
    int waiting = atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed);
    int looking = waiting - atomic_load_explicit(&ds__cpu.asleep, memory_order_relaxed);
    int wanted = ds__cpu.processors - (ds__cpu.workers - parked) - (looking > 0 ? looking : 0) -
                 (w == NULL && waiting == 0);
    if (call_workers && parked > 0 && wanted > 0) {
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, wanted < parked ? wanted : parked);
    }
    ds__cpu_job_work(job, w != NULL, 0, SIZE_MAX);
    for (int spins = 0;; spins++) {
        int over = 0;
        if (atomic_load_explicit(&job->finished, memory_order_acquire) == job->pieces) {
            ds__lock_take(&ds__cpu.lock);
            if (atomic_load_explicit(&s->job, memory_order_relaxed) == job) {
                atomic_store_explicit(&s->job, NULL, memory_order_relaxed);
                if (job->prev_job)
                    job->prev_job->next_job = job->next_job;
                else
                    ds__cpu.jobs = job->next_job;
                if (job->next_job)
                    job->next_job->prev_job = job->prev_job;
                atomic_fetch_sub(&ds__cpu.job_count, 1);
            }
            over = job->users == 0;
            ds__lock_give(&ds__cpu.lock);
        }
        if (over)
            return;
        if (spins < 200)
            ds__pause();
        else
            syscall(SYS_sched_yield);
    }
}

/* cpu/copy.h - copies and fills by the processor.

   Runs a queued copy or fill (ds__cpu_move): on the current thread, staged through a buffer, or
   as a job on several threads. ds__cpu_copy_part and ds__cpu_fill_part process a range of one
   operation. ds__cpu_spread_kernel copies one source to several destinations, for collectives.

   Invariants: the pieces of a job do not overlap and cover the operation. Operations below
   DS__CPU_SPLIT_BYTES are not split, nor is any operation in inline mode or with a seed. Stores
   past the caches end with a fence before the piece counts as finished.
   Locks: expects and takes none itself; ds__cpu_job_run takes the pool's lock. ds__cpu_at_once
   (cpu/submit.h) calls ds__cpu_copy_part and ds__cpu_fill_part under a put lock.
   Threads: ds__cpu_move runs on the owner of the stream. Pieces also run on other workers and on
   waiting host threads, at the same time. */

/* Copies with stores that go around the caches; on Intel's processors four pages side by side:
   more than one row of memory is open then, which is what the hardware prefetchers and the
   memory controller like best there. AMD's take 4.5 times as long for that as for one line after
   another. */
static void ds__cpu_stream_copy(char *dst, const char *src, size_t n) {
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    size_t lead = (size_t)(-(uintptr_t)dst & 63);
    if (lead > n)
        lead = n;
    memcpy(dst, src, lead);
    dst += lead;
    src += lead;
    n -= lead;
#define DS__LINE(at)                                                                           \
    __asm__ __volatile__("movdqu 0(%0), %%xmm0\n\tmovdqu 16(%0), %%xmm1\n\tmovdqu 32(%0), "    \
                         "%%xmm2\n\tmovdqu 48(%0), %%xmm3\n\t"                                 \
                         "movntdq %%xmm0, 0(%1)\n\tmovntdq %%xmm1, 16(%1)\n\tmovntdq %%xmm2, " \
                         "32(%1)\n\tmovntdq %%xmm3, 48(%1)"                                    \
                         :                                                                     \
                         : "r"(src + (at)), "r"(dst + (at))                                    \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "memory")
    for (int four = __builtin_cpu_is("intel"); four && n >= 16384;
         n -= 16384, dst += 16384, src += 16384)
        for (size_t i = 0; i < 4096; i += 64) {
            __builtin_prefetch(src + i + 256);
            __builtin_prefetch(src + i + 4096 + 256);
            __builtin_prefetch(src + i + 8192 + 256);
            __builtin_prefetch(src + i + 12288 + 256);
            DS__LINE(i);
            DS__LINE(i + 4096);
            DS__LINE(i + 8192);
            DS__LINE(i + 12288);
        }
    for (; n >= 64; n -= 64, dst += 64, src += 64)
        DS__LINE(0);
#undef DS__LINE
    __asm__ __volatile__("sfence" ::: "memory");
#endif
    memcpy(dst, src, n);
}

/* Bytes first .. first+count-1 of the copy, row by row. */
static void ds__cpu_copy_part(const ds__op *op, size_t first, size_t count, int around) {
    size_t width = op->u.copy.width;
    char *dst = op->u.copy.dst;
    const char *src = op->u.copy.src;
    while (count) {
        size_t row = first / width;
        size_t column = first % width;
        size_t n = width - column < count ? width - column : count;
        char *to = dst + row * op->u.copy.dst_pitch + column;
        const char *from = src + row * op->u.copy.src_pitch + column;
        if (around && n >= 65536)
            ds__cpu_stream_copy(to, from, n);
        else
            memcpy(to, from, n);
        first += n;
        count -= n;
    }
}

/* One source to several destinations, which is read once: a kernel of the library's own, whose
   items are pieces. */
enum { DS__CPU_SPREAD = 8, DS__CPU_SPREAD_ITEM = 16 << 10 };

typedef struct ds__cpu_spread_args {
    char *dst[DS__CPU_SPREAD];
    const char *src;
    size_t count;
    size_t bytes;
} ds__cpu_spread_args;

/* From one place to bytes `at` and on of several, past the caches; line by line, so that each is
   read once and the stores of all go on side by side. Returns the bytes that are done: the rest,
   or all where addresses do not allow it, is the caller's. */
static size_t ds__cpu_stream_spread(char *const *dst, size_t count, size_t at, const char *src,
                                    size_t n) {
    size_t done = 0;
#if defined(__x86_64__) && !defined(DS__SANITIZED)
    for (size_t d = 0; d < count; d++)
        if ((uintptr_t)(dst[d] + at) & 15)
            return 0;
    for (; done + 128 <= n; done += 128) {
        char *const *to = dst;
        __asm__ __volatile__("movdqu 0(%1), %%xmm0\n\tmovdqu 16(%1), %%xmm1\n\tmovdqu 32(%1), "
                             "%%xmm2\n\tmovdqu 48(%1), %%xmm3\n\t"
                             "movdqu 64(%1), %%xmm4\n\tmovdqu 80(%1), %%xmm5\n\tmovdqu 96(%1), "
                             "%%xmm6\n\tmovdqu 112(%1), %%xmm7\n"
                             "1:\n\tmovq (%0), %%rax\n\taddq %3, %%rax\n\t"
                             "movntdq %%xmm0, 0(%%rax)\n\tmovntdq %%xmm1, 16(%%rax)\n\tmovntdq "
                             "%%xmm2, 32(%%rax)\n\tmovntdq %%xmm3, 48(%%rax)\n\t"
                             "movntdq %%xmm4, 64(%%rax)\n\tmovntdq %%xmm5, 80(%%rax)\n\tmovntdq "
                             "%%xmm6, 96(%%rax)\n\tmovntdq %%xmm7, 112(%%rax)\n\t"
                             "addq $8, %0\n\tcmpq %2, %0\n\tjne 1b"
                             : "+r"(to)
                             : "r"(src + done), "r"(dst + count), "r"(at + done)
                             : "rax", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
                               "xmm5", "xmm6", "xmm7");
    }
    __asm__ __volatile__("sfence" ::: "memory");
#else
    (void)dst;
    (void)count;
    (void)at;
    (void)src;
    (void)n;
#endif
    return done;
}

static int ds__cpu_spread_items(size_t first, size_t count, const void *args) {
    const ds__cpu_spread_args *a = args;
    size_t at = first * DS__CPU_SPREAD_ITEM;
    size_t end =
        at + count * DS__CPU_SPREAD_ITEM < a->bytes ? at + count * DS__CPU_SPREAD_ITEM : a->bytes;
    if (a->count * a->bytes >= DS__CPU_STREAM_BYTES)
        at += ds__cpu_stream_spread(a->dst, a->count, at, a->src + at, end - at);
    while (at < end) {
        size_t n = end - at < DS__CPU_SPREAD_ITEM ? end - at : DS__CPU_SPREAD_ITEM;
        for (size_t d = 0; d < a->count; d++)
            memcpy(a->dst[d] + at, a->src + at, n);
        at += n;
    }
    return 0;
}

DS__SEAM static ds__kernel ds__cpu_spread_kernel = { .cpu_fn = ds__cpu_spread_items,
                                                     .args_size = sizeof(ds__cpu_spread_args),
                                                     .grain = 1,
                                                     .name = "copy to several devices",
                                                     .ours = 1 };

/* The same through a buffer, as when two GPUs cannot reach each other. */
static void ds__cpu_copy_staged(const ds__op *op) {
    char stage[4096];
    size_t width = op->u.copy.width;
    for (size_t row = 0; row < op->u.copy.height; row++)
        for (size_t at = 0; at < width; at += sizeof stage) {
            size_t n = width - at < sizeof stage ? width - at : sizeof stage;
            memcpy(stage, (const char *)op->u.copy.src + row * op->u.copy.src_pitch + at, n);
            memcpy((char *)op->u.copy.dst + row * op->u.copy.dst_pitch + at, stage, n);
        }
    atomic_fetch_add_explicit(&ds__cpu.staged, 1, memory_order_relaxed);
}

/* Sets n bytes to a pattern of eight, whose first byte stands at `to`. Stores through the
   caches: measured faster than those around them at every size that was tried, since nothing is
   read. */
static void ds__cpu_fill_row(char *to, const char *pattern, size_t n) {
    uint64_t word;
    uint64_t block[512];
    memcpy(&word, pattern, 8);
    if (word == (word & 255) * 0x0101010101010101u) {
        memset(to, (int)(word & 255), n);
        return;
    }
    if (n >= sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++)
            block[i] = word;
        for (; n >= sizeof block; n -= sizeof block, to += sizeof block)
            memcpy(to, block, sizeof block);
    }
    for (; n >= 8; n -= 8, to += 8)
        memcpy(to, &word, 8);
    memcpy(to, pattern, n);
}

/* Elements first .. first+count-1 of the fill. */
static void ds__cpu_fill_part(const ds__op *op, size_t first, size_t count) {
    size_t width = op->u.fill.width;
    size_t size = op->u.fill.value_size;
    char pattern[8];
    /* little endian: the low bytes */
    for (size_t i = 0; i < 8; i += size)
        memcpy(pattern + i, &op->u.fill.value, size);
    while (count) {
        size_t row = first / width;
        size_t column = first % width;
        size_t n = width - column < count ? width - column : count;
        ds__cpu_fill_row((char *)op->u.fill.dst + row * op->u.fill.pitch + column * size, pattern,
                         n * size);
        first += n;
        count -= n;
    }
}

static void ds__cpu_part_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t total = op->kind == DS__OP_COPY ? op->u.copy.width * op->u.copy.height
                                           : op->u.fill.width * op->u.fill.height;
    size_t first = piece * job->piece_items;
    size_t n = total - first < job->piece_items ? total - first : job->piece_items;
    if (op->kind == DS__OP_COPY)
        ds__cpu_copy_part(op, first, n, ds__op_bytes(op) >= DS__CPU_STREAM_BYTES);
    else
        ds__cpu_fill_part(op, first, n);
}

/* A copy or fill, on this thread or on several. */
static void ds__cpu_move(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    size_t bytes = ds__op_bytes(op);
    size_t elements = bytes;
    if (op->kind == DS__OP_FILL)
        elements = op->u.fill.width * op->u.fill.height;
    if (op->kind == DS__OP_COPY && (op->flags & DS__OP_STAGED)) {
        ds__cpu_long(w, 1);
        ds__cpu_copy_staged(op);
    } else if (bytes < DS__CPU_SPLIT_BYTES || ds__cpu.is_inline || ds__cpu.seed) {
        if (bytes > 65536)
            ds__cpu_long(w, 1);
        if (op->kind == DS__OP_COPY)
            ds__cpu_copy_part(op, 0, elements, 0);
        else
            ds__cpu_fill_part(op, 0, elements);
    } else {
        ds__cpu_job job;
        memset(&job, 0, sizeof job);
        size_t piece = bytes >= DS__CPU_STREAM_BYTES      ? DS__CPU_STREAM_PIECE
                       : bytes >= 4 * DS__CPU_PIECE_BYTES ? DS__CPU_PIECE_BYTES
                                                          : (bytes / 4 + 63) & ~(size_t)63;
        job.piece_fn = ds__cpu_part_piece;
        job.op = op;
        job.piece_items = op->kind == DS__OP_FILL ? piece / op->u.fill.value_size : piece;
        job.pieces = (elements + job.piece_items - 1) / job.piece_items;
        ds__cpu_long(w, 1);
        ds__cpu_job_run(w, s, &job, bytes >= DS__CPU_CALL_BYTES);
    }
    ds__cpu_long(w, 0);
}

/* cpu/kernel.h - kernel launches on the processor.

   Runs a launch (ds__cpu_kernel), and measures how long an item takes. ds__cpu_kernel_items runs
   the first items alone, and splits the rest into a job if that is expected to take long.
   ds__cpu_kernel_failed makes a failure of the device from a status.

   Invariants: while a kernel succeeds, each item runs exactly once. If the first part fails, the
   rest does not run. `runs` and `item_ns` are estimates: concurrent launches may overwrite them.
   Locks: the kernel, which is user code, runs without a lock of the driver. ds__cpu_job_run
   takes the pool's lock, ds__cpu_kernel_failed takes `object_lock`.
   Threads: the owner of the stream. Pieces also run on other workers and on waiting host
   threads, at the same time. */

static void ds__cpu_kernel_piece(ds__cpu_job *job, size_t piece) {
    const ds__op *op = job->op;
    size_t first = job->first + piece * job->piece_items;
    size_t left = op->u.kernel.items - first;
    int status = op->u.kernel.kernel->cpu_fn(
        first, left < job->piece_items ? left : job->piece_items, job->args);
    if (status)
        atomic_store_explicit(&job->status, status, memory_order_relaxed);
}

/* Runs the launch: its first items alone, to see how long the rest will take; the rest is split
   when it is long. */
static int ds__cpu_kernel_items(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                                const void *args, uint64_t *out_item_ns) {
    ds__kernel *k = op->u.kernel.kernel;
    size_t n = op->u.kernel.items;
    size_t grain = k->grain ? k->grain : 1;
    size_t first = n / 64;
    size_t known = atomic_load_explicit(&k->item_ns, memory_order_relaxed);
    /* the others are to join soon */
    if (known && first > DS__CPU_FIRST_NS / known)
        first = DS__CPU_FIRST_NS / known;
    if (first < grain)
        first = grain;
    uint64_t start = ds__now_ns();
    if (first >= n)
        first = n;
    int status = k->cpu_fn(0, first, args);
    uint64_t each = (ds__now_ns() - start) / first;
    *out_item_ns = each;
    if (status || first == n)
        return status;
    if (each * (n - first) < DS__CPU_SPLIT_NS || ds__cpu.is_inline || ds__cpu.seed)
        return k->cpu_fn(first, n - first, args);
    ds__cpu_job job;
    memset(&job, 0, sizeof job);
    size_t pieces = 8 * (size_t)(ds__cpu.workers + 1);
    size_t items = (n - first + pieces - 1) / pieces;
    job.piece_fn = ds__cpu_kernel_piece;
    job.op = op;
    job.args = args;
    job.first = first;
    job.piece_items = items > grain ? items : grain;
    job.pieces = (n - first + job.piece_items - 1) / job.piece_items;
    ds__cpu_job_run(w, s, &job, each * (n - first) >= DS__CPU_CALL_NS);
    return atomic_load_explicit(&job.status, memory_order_relaxed);
}

/* Returns the kernel's status. How long an item takes is measured at the first launches and then
   now and then. */
static int ds__cpu_kernel(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op) {
    ds__kernel *k = op->u.kernel.kernel;
    const void *args = (const char *)op + DS__CPU_ARGS_AT;
    uint32_t runs = atomic_load_explicit(&k->runs, memory_order_relaxed);
    uint32_t known = 0;
    if (DS__LIKELY(runs >= 4))
        known = atomic_load_explicit(&k->item_ns, memory_order_relaxed);
    int is_long = runs < 4 || (uint64_t)known * op->u.kernel.items > DS__CPU_LONG_NS;
    if (is_long)
        ds__cpu_long(w, 1);
    uint64_t each = 0;
    int status;
    if (op->u.kernel.items == 1 || k->grain == SIZE_MAX) {
        uint64_t start = ds__now_ns();
        status = k->cpu_fn(0, op->u.kernel.items, args);
        each = (ds__now_ns() - start) / op->u.kernel.items;
    } else {
        status = ds__cpu_kernel_items(w, s, op, args, &each);
    }
    atomic_store_explicit(&k->item_ns, each > UINT32_MAX ? UINT32_MAX : (uint32_t)each,
                          memory_order_relaxed);
    if (runs < 4)
        atomic_store_explicit(&k->runs, runs + 1, memory_order_relaxed);
    ds__cpu_long(w, 0);
    return status;
}

static void ds__cpu_kernel_failed(ds__cpu_stream *s, const ds__op *op, int status,
                                  uint64_t number) {
    char text[384];
    char site[200] = "";
    if (op->file)
        snprintf(site, sizeof site, ", launched at %.160s:%u,", op->file, (unsigned)op->line);
    if (op->u.kernel.kernel->ours)
        snprintf(text, sizeof text, "%.60s failed on cpu:%d: %.250s", op->u.kernel.kernel->name,
                 s->device, ds__tls.error);
    else
        snprintf(text, sizeof text, "kernel %.60s%s failed on cpu:%d with status %d",
                 op->u.kernel.kernel->name, site, s->device, status);
    ds__cpu_fail_stream(s, ds__cpu_fail_device(s->device, text), number);
}

/* cpu/host_func.h - host functions and the threads for them.

   Hands a stream whose next operation is a host function or a callback to a thread for host
   functions (ds__cpu_to_host), and invokes it (ds__cpu_host_op). ds__cpu_host_ready starts the
   first such thread, ds__cpu_host_spawn a further one.

   Invariants: before a host function is enqueued, at least one thread exists that can run it. A
   stream in the list for these threads is in state AT_HOST. A host function is skipped if its
   stream has failed, but a callback is invoked with the failure. The destructor runs after
   either.
   Locks: the pool's lock guards the list and the counts of threads. ds__cpu_host_spawn expects
   it, and calls pthread_create and the program's allocator under it. User code runs without a
   lock of the driver.
   Threads: ds__cpu_to_host runs on the owner of the stream. ds__cpu_host_op runs on a thread for
   host functions, or in inline mode on the submitter. Submitters and the monitor start threads. */

static void *ds__cpu_host_main(void *unused);

/* One more thread for host functions; the pool's lock is held. A refusal is tried again at the
   monitor's next tick. */
static void ds__cpu_host_spawn(void) {
    if (ds__cpu.host_threads == ds__cpu.host_room) {
        int room = ds__cpu.host_room ? 2 * ds__cpu.host_room : 16;
        pthread_t *more = ds__alloc((size_t)room * sizeof *more);
        if (!more)
            return;
        if (ds__cpu.host_thread)
            memcpy(more, ds__cpu.host_thread, (size_t)ds__cpu.host_threads * sizeof *more);
        ds__release(ds__cpu.host_thread);
        ds__cpu.host_thread = more;
        ds__cpu.host_room = room;
    }
    if (pthread_create(&ds__cpu.host_thread[ds__cpu.host_threads], NULL, ds__cpu_host_main, NULL) ==
        0)
        ds__cpu.host_threads++;
}

/* Before a host function is accepted there is a thread that will run it. */
static ds_result ds__cpu_host_ready(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__cpu.host_threads, memory_order_relaxed) > 0))
        return DS_OK;
    ds__lock_take(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.host_threads) == 0)
        ds__cpu_host_spawn();
    ds__lock_give(&ds__cpu.lock);
    return atomic_load(&ds__cpu.host_threads) > 0
               ? DS_OK
               : ds__fail(DS_ERR_OUT_OF_MEMORY, "no thread for host functions could be started");
}

/* The stream's next operation is the user's code: hands the stream over. */
static void ds__cpu_to_host(ds__cpu_stream *s) {
    atomic_fetch_add(&ds__cpu.host_busy, 1);
    ds__lock_take(&ds__cpu.lock);
    atomic_store(&s->state, DS__CPU_AT_HOST);
    s->next = NULL;
    if (ds__cpu.host_tail)
        ds__cpu.host_tail->next = s;
    else
        ds__cpu.host_head = s;
    ds__cpu.host_tail = s;
    int idle = ds__cpu.host_idle;
    int alone = ds__cpu.host_head == s;
    ds__lock_give(&ds__cpu.lock);
    if (idle) {
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, 1);
    }
    /* who counts as idle may be on its way for another one */
    if (!idle || !alone)
        ds__cpu_wake_monitor();
}

/* Runs the user's code of the operation; number is the operation's. */
static void ds__cpu_host_op(ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    if (op->kind == DS__OP_CALLBACK) {
        ds_stream stream = { op->u.host.stream };
        if (f)
            snprintf(ds__tls.error, sizeof ds__tls.error, "%s", f->text);
        op->u.host.callback(stream, f ? f->code : DS_OK, op->u.host.user);
    } else if (!f) {
        op->u.host.fn(op->u.host.user);
    }
    if (op->u.host.dtor_fn)
        op->u.host.dtor_fn(op->u.host.user);
    ds__tls.in_callback = outer;
}

/* cpu/clock.h - virtual time of operations.

   Computes when operations begin and end on the machine that a fabric (ds_cpu_desc.fabric)
   models. ds__cpu_take_time advances a stream's time past an operation, ds__cpu_put_clock notes
   the clock at a submission, and ds__cpu_clock_up advances the clock.

   Policy:
   1. With a fabric there is one worker. After each operation it takes the ready stream whose
      time is the lowest.
   2. The time of a stream is the time at which its next operation is ready. It may be earlier
      while waits or clock notes (DS__OP_CLOCK) precede that operation. These take no time and
      hold nothing, so passing them too early is harmless.
   3. Only the last completed operation of a stream can end after the clock. Each earlier
      operation ended by the time the next one began, and the worker takes no operation that
      begins later than the requested one. The time of a token is therefore needed only while its
      operation is the last.

   Invariants: the clock never goes back. Time stamps are never 0. Only the worker uses
   `link_free`, `engine_free`, `memory_free` and `latest`. A stream has a `virt` exactly if there
   is a fabric and the stream is not a proxy.
   Locks: ds__cpu_put_clock expects the stream's put lock. The other functions take and expect
   none. A kernel's bytes_fn, which is user code, runs without a lock.
   Threads: ds__cpu_put_clock runs on submitting threads, ds__cpu_take_time only on the worker,
   and ds__cpu_clock_up on the worker and on waiting threads. The clock and the counters are
   atomic. */

/* The clock goes on to this time, if it is not there yet. */
static void ds__cpu_clock_up(int64_t time) {
    int64_t now = atomic_load(&ds__cpu.clock);
    while (now < time && !atomic_compare_exchange_weak(&ds__cpu.clock, &now, time)) {
    }
}

/* When the number was passed; 0 when that is long ago: what came after it began at a time that
   the clock has passed, or who asks. */
static int64_t ds__cpu_time_of(const ds__cpu_stream *s, uint64_t upto) {
    return s->virt && atomic_load(&s->done) == upto ? atomic_load(&s->virt->end) : 0;
}

/* The stream comes after what `on` has passed. */
static void ds__cpu_after(ds__cpu_stream *s, const ds__cpu_stream *on, uint64_t upto) {
    if (DS__LIKELY(!s->virt))
        return;
    int64_t time = ds__cpu_time_of(on, upto);
    if (s->virt->time < time)
        s->virt->time = time;
}

/* A time stamp, which is never 0. */
static uint64_t ds__cpu_now(const ds__cpu_stream *s) {
    return DS__LIKELY(!s->virt) ? ds__now_ns() : (uint64_t)s->virt->time + 1;
}

static void ds__cpu_virtual_pass(ds__cpu_stream *s) {
    atomic_store(&s->virt->end, s->virt->time);
    if (s->kind != DS__STREAM_LANE)
        atomic_fetch_add_explicit(&ds__cpu.passed, 1, memory_order_relaxed);
}

/* An operation of the stream is put in; if the clock went on since the last one, the stream
   learns of it. */
static ds_result ds__cpu_put_clock(ds__cpu_stream *s) {
    int64_t now = atomic_load(&ds__cpu.clock);
    uint64_t puts = atomic_fetch_add_explicit(&ds__cpu.puts, 1, memory_order_relaxed);
    if ((puts & 4095) == 0 &&
        puts - atomic_load_explicit(&ds__cpu.passed, memory_order_relaxed) > DS__CPU_HELD) {
        atomic_store(&ds__cpu.run_all, 1);
        ds__cpu_wake_worker();
    }
    if (s->virt->put == now)
        return DS_OK;
    ds__op op = { .kind = DS__OP_CLOCK };
    op.u.clock.ns = now;
    ds_result r = ds__cpu_put(s, &op);
    if (r < 0)
        return r;
    s->virt->put = now;
    atomic_fetch_add_explicit(&ds__cpu.puts, 1, memory_order_relaxed);
    return r;
}

/* Nanoseconds for so many bytes: the nearest, but for any at least one, and at most eleven days. */
static int64_t ds__cpu_spend(size_t bytes, double bytes_per_s) {
    double ns = (double)bytes * 1e9 / bytes_per_s;
    return ns < 1 ? bytes > 0 : ns < 1e15 ? (int64_t)(ns + 0.5) : 1000000000000000;
}

/* Bytes on the way from one place to another, by an engine of the device: when they are there. */
static int64_t ds__cpu_transfer(int device, int from, int to, size_t bytes, int64_t ready) {
    const ds_cpu_fabric *f = ds__cpu.fabric;
    const ds_cpu_route *route = &f->route[from * (f->devices + 1) + to];
    int64_t *engine = &ds__cpu.engine_free[device * f->engines];
    int64_t longest = 0;
    for (int e = 1; e < f->engines; e++)
        if (ds__cpu.engine_free[device * f->engines + e] < *engine)
            engine = &ds__cpu.engine_free[device * f->engines + e];
    int64_t start = ready < *engine ? *engine : ready;
    for (size_t i = 0; i < route->hops; i++)
        if (start < ds__cpu.link_free[route->link[i]])
            start = ds__cpu.link_free[route->link[i]];
    for (size_t i = 0; i < route->hops; i++) {
        int64_t ns = ds__cpu_spend(bytes, f->link_bytes_per_s[route->link[i]]);
        ds__cpu.link_free[route->link[i]] = start + ns;
        if (longest < ns)
            longest = ns;
    }
    *engine = start + f->engine_ns + longest;
    return *engine + route->latency_ns;
}

/* So many bytes of the device's memory, read and written. */
static int64_t ds__cpu_memory_time(int device, size_t bytes, int64_t ready) {
    int64_t *at = &ds__cpu.memory_free[device];
    if (*at < ready)
        *at = ready;
    return *at += ds__cpu_spend(bytes, ds__cpu.fabric->memory_bytes_per_s);
}

/* Where an operand is, as the routes count. */
static int ds__cpu_end_of(const ds__op *op, int operand) {
    int place = ds__place_of(op, operand);
    return place >= DS__AT_DEVICE ? place - DS__AT_DEVICE : ds__cpu.fabric->devices;
}

/* The stream's time goes on to the end of the operation. 1: only to the end of its first leg; it
   comes again. */
static int ds__cpu_take_time(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_virtual *v = s->virt;
    int host = ds__cpu.fabric->devices;
    int again = 0;
    if (op->kind == DS__OP_CLOCK) {
        if (v->time < op->u.clock.ns)
            v->time = op->u.clock.ns;
    } else if (op->kind == DS__OP_KERNEL && op->u.kernel.kernel->bytes_fn) {
        uint64_t bytes =
            op->u.kernel.kernel->bytes_fn(op->u.kernel.items, (const char *)op + DS__CPU_ARGS_AT);
        v->time = ds__cpu_memory_time(s->device, (size_t)bytes, v->time);
    } else if (op->kind == DS__OP_FILL && ds__cpu_end_of(op, DS__OP_DST) != host) {
        v->time = ds__cpu_memory_time(ds__cpu_end_of(op, DS__OP_DST), ds__op_bytes(op), v->time);
    } else if (op->kind == DS__OP_COPY) {
        int from = ds__cpu_end_of(op, DS__OP_SRC);
        int to = ds__cpu_end_of(op, DS__OP_DST);
        int staged = from != to && from != host && to != host &&
                     !ds__cpu.fabric->route[from * (host + 1) + to].direct;
        if (from == to && from != host) {
            v->time = ds__cpu_memory_time(from, 2 * ds__op_bytes(op), v->time);
        } else if (from != to) {
            again = staged && !v->leg;
            v->time = ds__cpu_transfer(!staged ? s->device
                                       : again ? from
                                               : to,
                                       staged && v->leg ? host : from, again ? host : to,
                                       ds__op_bytes(op), v->time);
            v->leg = again;
        }
    }
    if (ds__cpu.latest < v->time)
        ds__cpu.latest = v->time;
    return again;
}

/* cpu/run.h - execution of a stream's operations.

   Takes operations from a stream and runs them in order. ds__cpu_run_some is the loop,
   ds__cpu_step runs one operation, and ds__cpu_run also passes the stream on afterwards.
   ds__cpu_head is the next operation in the queue.

   Invariants: the caller owns the stream. `done` grows by one after each operation. After
   DS__CPU_GONE the stream belongs to another thread, and the operation has not been passed. On a
   failed stream kernels, copies, fills and host functions are skipped, but passed; callbacks and
   frees still run. At most DS__CPU_NESTED streams run inside one another on a thread.
   Locks: no lock of the driver is held while an operation runs. A change of owner takes the
   pool's lock, a pass with waiters `wait_lock`.
   Threads: a worker or a waiting host thread (DS__CPU_WORK), a thread for host functions
   (DS__CPU_HOST), or the submitter in inline mode (DS__CPU_ALL). Different streams run
   concurrently. */

static void ds__cpu_stamp_give(ds__cpu_stamp *stamp) {
    if (!stamp || atomic_fetch_sub_explicit(&stamp->refs, 1, memory_order_acq_rel) != 1)
        return;
    ds__lock_take(&ds__cpu.object_lock);
    stamp->next = ds__cpu.free_stamps;
    ds__cpu.free_stamps = stamp;
    ds__lock_give(&ds__cpu.object_lock);
}

/* The next operation in the queue; steps over the end of a block. */
static ds__op *ds__cpu_head(ds__cpu_stream *s) {
    /* a lane's piece is longer than a block */
    ds__op *op = (ds__op *)(void *)((char *)s->head + offsetof(ds__cpu_block, data) + s->head_at);
    if (DS__UNLIKELY(op->kind == DS__OP_JUMP)) {
        ds__cpu_block *old = s->head;
        ds__cpu_block *none = NULL;
        s->head = old->next;
        s->head_at = 0;
        if (!atomic_compare_exchange_strong_explicit(&s->spare, &none, old, memory_order_acq_rel,
                                                     memory_order_relaxed))
            ds__cpu_block_give(old);
        op = (ds__op *)(void *)s->head->data;
    }
    return op;
}

/* What became of the stream that ds__cpu_run worked on. */
enum { DS__CPU_EMPTY, DS__CPU_GONE, DS__CPU_MORE };

/* Who runs a stream: a worker or a waiting thread (not the user's host functions), a thread for
   host functions (only those), or the submitter itself in inline mode. */
enum { DS__CPU_WORK, DS__CPU_HOST, DS__CPU_ALL };

/* The stream `on`, for which stream s has to wait, is free to be run: the thread that has s runs
   it up to there, which saves parking one stream and waking it for the other. Not past more
   urgent ready streams. 0: it could not. */
static int ds__cpu_run_first(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on,
                             uint64_t upto) {
    uint32_t state = atomic_load(&on->state);
    uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    int mine = 0;
    if (ds__tls.nested >= DS__CPU_NESTED || ds__cpu.seed ||
        (ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)))
        return 0;
    if (state == DS__CPU_POLLED)
        mine = atomic_compare_exchange_strong(&on->state, &state, DS__CPU_RUNNING);
    else if (state == DS__CPU_READY)
        mine = ds__cpu_take_ready(on);
    if (!mine)
        return 0;
    ds__tls.nested++;
    ds__cpu_run(w, on, upto);
    ds__tls.nested--;
    return atomic_load_explicit(&on->done, memory_order_acquire) >= upto;
}

/* The stream waits until `on` has passed `upto`. */
static int ds__cpu_wait_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on,
                             uint64_t upto, uint64_t number, int who) {
    if (atomic_load_explicit(&on->done, memory_order_acquire) < upto &&
        !(who == DS__CPU_WORK && ds__cpu_run_first(w, s, on, upto)) && ds__cpu_park(s, on, upto))
        return DS__CPU_GONE;
    ds__cpu_failure *f = ds__cpu_failed(on, upto);
    if (f)
        ds__cpu_fail_stream(s, f, number);
    ds__cpu_after(s, on, upto);
    return DS__CPU_EMPTY;
}

static void ds__cpu_lane_pass(ds__cpu_lane *l, uint64_t number, int failed);
static int ds__cpu_launch_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                               uint64_t number, int who);
static int ds__cpu_lane_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                             uint64_t number, int failed, int who);
static void ds__cpu_async_over(const ds__op *op);

/* Runs one operation. DS__CPU_GONE: the stream now belongs to somebody else and the operation is
   not done. */
static int ds__cpu_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                        int who) {
    if (DS__UNLIKELY(!atomic_load_explicit(&s->failure, memory_order_relaxed))) {
        ds__cpu_failure *f =
            atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
        if (DS__UNLIKELY(f != NULL))
            ds__cpu_fail_stream(s, f, number);
    }
    int failed = atomic_load_explicit(&s->failure, memory_order_relaxed) != NULL;
    int dry = 0;
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && !failed && who == DS__CPU_WORK) {
        if (ds__cpu_take_time(s, op))
            return DS__CPU_MORE;
        dry = (ds__cpu.fabric->flags & DS_CPU_DRY) != 0;
    }
    switch (op->kind) {
    case DS__OP_KERNEL:
        if (!failed && !(dry && op->u.kernel.kernel->bytes_fn)) {
            int status = ds__cpu_kernel(w, s, op);
            if (DS__UNLIKELY(status != 0))
                ds__cpu_kernel_failed(s, op, status, number);
        }
        break;
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (!failed && !dry)
            ds__cpu_move(w, s, op);
        break;
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
        if (who == DS__CPU_WORK) {
            ds__cpu_to_host(s);
            return DS__CPU_GONE;
        }
        ds__cpu_host_op(s, op, number);
        break;
    case DS__OP_RECORD: {
        ds__cpu_stamp *stamp = op->u.stamp.stamp;
        if (!failed)
            atomic_store_explicit(&stamp->ns, ds__cpu_now(s), memory_order_release);
        ds__cpu_stamp_give(stamp);
        break;
    }
    case DS__OP_WAIT:
        return ds__cpu_wait_step(w, s, op->u.wait.stream, op->u.wait.upto, number, who);
    case DS__OP_SHARED_RECORD:
        ds__cpu_lane_pass(op->u.shared.lane, number, failed);
        break;
    case DS__OP_GRAPH:
        return ds__cpu_launch_step(w, s, op, number, who);
    case DS__OP_LANE_WAIT:
    case DS__OP_NODE_RECORD:
    case DS__OP_NODE_WAIT:
        return ds__cpu_lane_step(w, s, op, number, failed, who);
    /* also on a stream that failed: what used it was skipped */
    case DS__OP_FREE:
        ds__cpu_async_over(op);
        break;
    default:
        break;
    }
    return DS__CPU_EMPTY;
}

/* A launch of one item of a kernel that has been short so far, and nothing has failed; now and
   then not, to measure it. */
static inline int ds__cpu_is_short(const ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    if (op->kind != DS__OP_KERNEL || op->u.kernel.items != 1 || (number & 255u) == 0 ||
        ds__cpu.fabric)
        return 0;
    ds__kernel *k = op->u.kernel.kernel;
    return atomic_load_explicit(&k->runs, memory_order_relaxed) >= 4 &&
           atomic_load_explicit(&k->item_ns, memory_order_relaxed) <= DS__CPU_LONG_NS &&
           !atomic_load_explicit(&s->failure, memory_order_relaxed) &&
           !atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_relaxed);
}

/* Runs the stream, which the caller owns (RUNNING), up to operation `upto` at most and not
   beyond what was submitted when it began. DS__CPU_EMPTY: all that is done and the caller still
   owns it. DS__CPU_MORE: likewise, but operations are left. w: NULL when the caller is not a
   worker. */
static int ds__cpu_run_some(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto, int who) {
    uint64_t number = atomic_load_explicit(&s->done, memory_order_relaxed);
    uint64_t count = 0;
    int result = DS__CPU_EMPTY;
    uint64_t end = atomic_load_explicit(&s->submitted, memory_order_acquire);
    int unfenced = 0; /* the last operation was passed without a barrier */
    while (number < end) {
        if (DS__UNLIKELY(number >= upto)) {
            result = DS__CPU_MORE;
            break;
        }
        ds__op *op = ds__cpu_head(s);
        if (DS__UNLIKELY(who == DS__CPU_HOST && op->kind != DS__OP_HOST &&
                         op->kind != DS__OP_CALLBACK)) {
            result = DS__CPU_MORE;
            break;
        }
        if (DS__LIKELY(ds__cpu_is_short(s, op, number))) {
            int status = op->u.kernel.kernel->cpu_fn(0, 1, (const char *)op + DS__CPU_ARGS_AT);
            if (DS__UNLIKELY(status != 0))
                ds__cpu_kernel_failed(s, op, status, number + 1);
            s->head_at += (uint32_t)ds__cpu_op_bytes(op);
            ds__cpu_pass_short(s, ++number);
            unfenced = 1;
        } else {
            if (unfenced)
                ds__cpu_pass(s, number);
            unfenced = 0;
            uint32_t bytes = (uint32_t)ds__cpu_op_bytes(op);
            result = ds__cpu_step(w, s, op, number + 1, who);
            if (DS__UNLIKELY(result != DS__CPU_EMPTY))
                break;
            s->head_at += bytes;
            if (DS__UNLIKELY(s->virt != NULL))
                ds__cpu_virtual_pass(s);
            ds__cpu_pass(s, ++number);
        }
        count++;
        /* more urgent streams at once, others after a batch; what this worker polls itself is
           looked at every batch */
        uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
        int batch = (count & (DS__CPU_BATCH - 1)) == 0;
        if (DS__UNLIKELY(
                w && number < end &&
                (ds__cpu.fabric ||
                 (ready &&
                  ((ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)) ||
                   batch || ds__cpu.seed)) ||
                 (batch && w->polled_count > 0)))) {
            result = DS__CPU_MORE;
            break;
        }
    }
    if (unfenced)
        ds__cpu_pass(s, number);
    if (w)
        atomic_store_explicit(&w->operations,
                              atomic_load_explicit(&w->operations, memory_order_relaxed) + count,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&ds__cpu.other_operations, count, memory_order_relaxed);
    return result;
}

/* Runs an owned stream and settles what becomes of it. Returns 1 when it did something. */
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    uint32_t beat =
        w && ds__tls.nested == 0 ? atomic_load_explicit(&w->beat, memory_order_relaxed) + 1 : 0;
    if (beat) {
        atomic_store_explicit(&w->running, s, memory_order_relaxed);
        atomic_store_explicit(&w->beat, beat, memory_order_relaxed);
    }
    int result = ds__cpu_run_some(w, s, upto, DS__CPU_WORK);
    if (beat)
        atomic_store_explicit(&w->beat, beat + 1, memory_order_relaxed);
    if (result == DS__CPU_MORE) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    } else if (result == DS__CPU_EMPTY) {
        if (w && w->polled_count < DS__CPU_POLL_SLOTS && !ds__cpu.no_spin && !ds__cpu.seed &&
            s->kind != DS__STREAM_LANE &&
            !atomic_load_explicit(&s->closing, memory_order_relaxed)) {
            atomic_store_explicit(&w->polled[w->polled_count++], s, memory_order_relaxed);
            atomic_store(&s->state, DS__CPU_POLLED);
        } else {
            ds__cpu_go_idle(s);
        }
    }
    return 1;
}

/* cpu/worker.h - main loops of workers, host-function threads, monitor.

   ds__cpu_worker_main takes ready streams and polls those that it has emptied,
   ds__cpu_virtual_main does this under a virtual clock, and ds__cpu_host_main runs host
   functions. ds__cpu_monitor_main ticks while anything runs and helps streams that are stuck
   (ds__cpu_watch).

   Invariants: all these threads block signals. In workers and threads for host functions
   `in_callback` is set, so that user code cannot call back. Each thread reads or sets the word
   on which it sleeps, and then looks at `quit`. Only the worker itself adds to `polled`; other
   threads take a stream from it by its state.
   Locks: ds__cpu_host_main holds the pool's lock except while it runs a stream or sleeps. The
   monitor starts threads under the pool's lock. Workers hold no lock of the driver in their
   loops.
   Threads: each main function runs on the thread that it names. The monitor also takes over
   polled streams and wakes missed waiters. */

/* Looks once at what the worker polls; 1: there was work. */
static int ds__cpu_poll(ds__cpu_worker *w) {
    int found = 0;
    for (int i = 0; i < w->polled_count;) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        uint64_t fresh = atomic_load_explicit(&s->submitted, memory_order_relaxed) -
                         atomic_load_explicit(&s->done, memory_order_relaxed);
        if (atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_POLLED && !fresh) {
            i++;
            continue;
        }
        atomic_store_explicit(
            &w->polled[i],
            atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
            memory_order_relaxed);
        uint32_t polled = DS__CPU_POLLED;
        if (!atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING))
            continue;
        found = 1;
        ds__cpu_run(w, s, UINT64_MAX);
    }
    return found;
}

/* A producer that streams and a worker that is right behind it would fight for the cache lines
   of the queue. A few dozen operations in short order while nobody waits: somebody streams. Then
   the worker's looks get further apart until one finds a few dozen operations; a look after a
   pause that finds next to nothing says that it was not so. */
static void ds__cpu_adapt(ds__cpu_worker *w, uint64_t found) {
    if (found == 0) {
        if (++w->misses >= 32)
            w->streak = w->delay = 0;
        return;
    }
    w->misses = 0;
    if (atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) > 0) {
        w->streak = w->delay = 0;
        return;
    }
    if (w->delay == 0) {
        if ((w->streak += (uint32_t)found) >= 24)
            w->delay = DS__CPU_STREAM_PAUSES / 8;
    } else if (found < 4) {
        w->streak = w->delay = 0;
    } else if (found < DS__CPU_STREAM_BATCH) {
        w->delay = w->delay < DS__CPU_STREAM_PAUSES / 2 ? 2 * w->delay : DS__CPU_STREAM_PAUSES;
    } else if (found > 4 * DS__CPU_STREAM_BATCH) {
        w->delay /= 2;
    }
}

/* The clock stands while host functions run; not for those that have taken long already. */
static void ds__cpu_await_hosts(void) {
    uint64_t start = ds__now_ns();
    for (;;) {
        uint32_t word = atomic_load(&ds__cpu.wake_word);
        int busy = atomic_load(&ds__cpu.host_busy);
        if (ds__cpu.host_stuck > busy)
            ds__cpu.host_stuck = busy;
        if (busy == ds__cpu.host_stuck || atomic_load(&ds__cpu.quit))
            return;
        uint64_t gone = ds__now_ns() - start;
        if (gone >= DS__CPU_HOST_NS) {
            ds__cpu.host_stuck = busy;
            return;
        }
        ds__futex_wait(&ds__cpu.wake_word, word, DS__CPU_HOST_NS - gone);
    }
}

/* The worker under a virtual clock. */
static void ds__cpu_virtual_main(ds__cpu_worker *w) {
    for (;;) {
        /* before quit is looked at: stop sets it, then changes this */
        uint32_t word = atomic_load(&ds__cpu.wake_word);
        if (atomic_load(&ds__cpu.quit))
            return;
        if (!ds__cpu_held()) {
            ds__cpu_await_hosts();
            ds__cpu_stream *s = ds__cpu_held() ? NULL : ds__cpu_pop_ready();
            if (s) {
                ds__cpu_run(w, s, UINT64_MAX);
                continue;
            }
            if (!ds__cpu_held()) { /* nothing more can run */
                ds__cpu_clock_up(ds__cpu.latest);
                atomic_store(&ds__cpu.run_all, 0);
                atomic_fetch_add(&ds__cpu.rests, 1);
            }
        }
        atomic_fetch_add(&ds__cpu.parked, 1);
        ds__futex_wait(&ds__cpu.wake_word, word, DS__FOREVER);
        atomic_fetch_sub(&ds__cpu.parked, 1);
    }
}

static void *ds__cpu_worker_main(void *arg) {
    ds__cpu_worker *w = arg;
    ds__os_block_signals();
    ds__tls.in_callback = 1; /* what runs here is the user's code, which must not call back */
    if (ds__cpu.fabric) {
        ds__cpu_virtual_main(w);
        return NULL;
    }
    uint64_t last = ds__now_ns();
    int spinning = 0;
    int looks = 0;
    while (!atomic_load_explicit(&ds__cpu.quit, memory_order_acquire)) {
        int found = 0;
        uint64_t before = atomic_load_explicit(&w->operations, memory_order_relaxed);
        for (uint32_t i = 0;
             i < w->delay && atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) == 0; i++)
            ds__pause();
        ds__cpu_stream *s = ds__cpu_pop_ready();
        if (s) {
            ds__cpu_unpoll_fresh(w);
            if (ds__cpu.seed)
                for (uint64_t n = before * 0x9e3779b97f4a7c15u >> 62; n; n--)
                    syscall(SYS_sched_yield);
            ds__cpu_run(w, s, UINT64_MAX);
            found = 1;
        } else if (w->polled_count) {
            found = ds__cpu_poll(w);
        }
        ds__cpu_adapt(w, atomic_load_explicit(&w->operations, memory_order_relaxed) - before);
        if (!found && atomic_load_explicit(&ds__cpu.job_count, memory_order_relaxed) > 0) {
            found = ds__cpu_job_join(w, NULL, 0);
        }
        if (found) {
            looks = 0;
            continue;
        }
        if (looks++ == 0)
            last = ds__now_ns();
        if (!spinning && !ds__cpu.no_spin &&
            atomic_fetch_add(&ds__cpu.spinners, 1) < ds__cpu.spin_limit)
            spinning = 1;
        else if (!spinning && !ds__cpu.no_spin)
            atomic_fetch_sub(&ds__cpu.spinners, 1);
        if (spinning && ((looks & 15) || ds__now_ns() - last < DS__CPU_POLL_NS)) {
            ds__pause();
            continue;
        }
        if (spinning) {
            atomic_fetch_sub(&ds__cpu.spinners, 1);
            spinning = 0;
        }
        ds__cpu_unpoll_all(w);
        if (atomic_load(&ds__cpu.ready_mask))
            continue;
        ds__cpu_sleep();
        ds__cpu_wake_monitor();
        looks = 0;
    }
    ds__cpu_unpoll_all(w);
    return NULL;
}

static void *ds__cpu_host_main(void *unused) {
    ds__os_block_signals();
    ds__tls.in_callback = 1;
    ds__lock_take(&ds__cpu.lock);
    for (;;) {
        ds__cpu_stream *s = ds__cpu.host_head;
        if (!s) {
            /* before quit is looked at: stop sets it, then changes this */
            uint32_t word = atomic_load(&ds__cpu.host_word);
            if (atomic_load(&ds__cpu.quit))
                break;
            ds__cpu.host_idle++;
            ds__lock_give(&ds__cpu.lock);
            ds__futex_wait(&ds__cpu.host_word, word, DS__FOREVER);
            ds__lock_take(&ds__cpu.lock);
            ds__cpu.host_idle--;
            continue;
        }
        ds__cpu.host_head = s->next;
        if (!s->next)
            ds__cpu.host_tail = NULL;
        ds__cpu.host_progress++;
        ds__lock_give(&ds__cpu.lock);
        atomic_store(&s->state, DS__CPU_RUNNING);
        uint64_t done = 0;
        int result;
        do { /* as long as host functions follow one another */
            done = atomic_load_explicit(&s->done, memory_order_relaxed);
            result = ds__cpu_run_some(NULL, s, UINT64_MAX, DS__CPU_HOST);
        } while (result == DS__CPU_EMPTY &&
                 atomic_load_explicit(&s->done, memory_order_relaxed) != done);
        if (result == DS__CPU_MORE) {
            atomic_store(&s->state, DS__CPU_READY);
            ds__cpu_push_ready(s);
        } else {
            ds__cpu_go_idle(s);
        }
        atomic_fetch_sub(&ds__cpu.host_busy, 1);
        if (ds__cpu.fabric)
            ds__cpu_wake_worker();
        ds__lock_take(&ds__cpu.lock);
    }
    ds__lock_give(&ds__cpu.lock);
    (void)unused;
    return NULL;
}

/* Work that is held back for long runs all the same. Ticks and not time are counted: where this
   thread is starved, so are those that call. 1 while there is any. */
static int ds__cpu_watch_held(void) {
    static int ticks;
    static uint64_t seen;
    if (!atomic_load(&ds__cpu.ready_mask))
        return 0;
    uint64_t puts = atomic_load(&ds__cpu.puts);
    if (!ds__cpu_held() || puts != seen)
        ticks = 0;
    seen = puts;
    if (++ticks < DS__CPU_STALL_TICKS)
        return 1;
    ticks = 0;
    atomic_store(&ds__cpu.run_all, 1);
    ds__cpu_wake_worker();
    return 1;
}

/* One tick: returns 1 while there is something to watch. */
static int ds__cpu_watch(uint64_t *host_progress) {
    int busy = ds__cpu.fabric && ds__cpu_watch_held();
    ds__lock_take(&ds__cpu.lock);
    if (ds__cpu.host_head) {
        busy = 1;
        if (ds__cpu.host_idle == 0 && *host_progress == ds__cpu.host_progress)
            ds__cpu_host_spawn();
        *host_progress = ds__cpu.host_progress;
    }
    ds__lock_give(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.parked) < ds__cpu.workers)
        busy = 1;
    for (int i = 0; i < ds__cpu.workers; i++) {
        ds__cpu_worker *w = &ds__cpu.worker[i];
        uint32_t beat = atomic_load_explicit(&w->beat, memory_order_relaxed);
        if ((beat & 1) && beat == w->last_beat) {
            /* in one operation, or one long run, for a whole tick: what it polls, what is ready,
               and who was missed when the last short operation was passed, must not wait */
            for (int k = 0; k < DS__CPU_POLL_SLOTS; k++) {
                ds__cpu_stream *s = atomic_load_explicit(&w->polled[k], memory_order_relaxed);
                if (s && ds__cpu_has_work(s))
                    ds__cpu_unpoll(s);
            }
            ds__cpu_stream *running = atomic_load_explicit(&w->running, memory_order_relaxed);
            if (running && atomic_load(&running->waiting))
                ds__cpu_notify(running);
            if (atomic_load(&ds__cpu.ready_mask) && atomic_load(&ds__cpu.parked) > 0)
                ds__cpu_wake_worker();
        }
        w->last_beat = beat;
    }
    return busy;
}

static void *ds__cpu_monitor_main(void *unused) {
    uint64_t host_progress = 0;
    ds__os_block_signals();
    while (!atomic_load(&ds__cpu.quit)) {
        if (ds__cpu_watch(&host_progress)) {
            struct timespec t = { 0, DS__CPU_TICK_NS };
            syscall(SYS_nanosleep, &t, NULL);
            continue;
        }
        atomic_store(&ds__cpu.monitor_word, 0);
        if (ds__cpu_watch(&host_progress)) {
            atomic_store(&ds__cpu.monitor_word, 1);
            continue;
        }
        if (!atomic_load(&ds__cpu.quit))
            ds__futex_wait(&ds__cpu.monitor_word, 0, DS__FOREVER);
    }
    (void)unused;
    return NULL;
}

/* cpu/wait.h - waits of host threads.

   Waits until a stream has passed a number (ds__cpu_wait). The thread first spins, may run the
   work that it waits for (ds__cpu_help), and then sleeps on a flag. ds__cpu_wait_virtual is the
   wait under a virtual clock.

   Invariants: a waiting thread runs only work that the awaited number depends on, and no host
   functions. It runs nothing if there is a time limit, a seed or a fabric, or if it must sleep
   at once. Its waiter is on its stack, and out of the stream's list before the function returns.
   `hurry` counts threads in longer waits (without a fabric), `asleep` threads that sleep.
   Locks: takes `wait_lock` to enter and leave the list. The caller must not hold a lock of the
   driver, and no such lock is held during a wait.
   Threads: caller's threads, and the thread that shuts down. Any number may wait for one stream. */

/* A waiting thread runs what the awaited operation depends on, and nothing else: the stream
   itself up to that operation, or the stream on which it is parked, and so on. Returns 1 when it
   did something. */
static int ds__cpu_help(ds__cpu_stream *s, uint64_t upto) {
    for (int depth = 0; depth < 64; depth++) {
        switch (atomic_load_explicit(&s->state, memory_order_acquire)) {
        case DS__CPU_READY: {
            if (!ds__cpu_take_ready(s))
                return 0;
            int outer = ds__tls.in_callback;
            ds__tls.in_callback = 1;
            ds__cpu_run(NULL, s, upto);
            ds__tls.in_callback = outer;
            atomic_fetch_add_explicit(&ds__cpu.helped, 1, memory_order_relaxed);
            return 1;
        }
        case DS__CPU_POLLED: { /* the worker that polls it has not come for it in all this time */
            uint32_t polled = DS__CPU_POLLED;
            if (ds__cpu_has_work(s) &&
                atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING)) {
                atomic_store(&s->state, DS__CPU_READY);
                ds__cpu_push_ready(s);
                continue; /* and take it from there */
            }
            return 0;
        }
        case DS__CPU_RUNNING:
            return atomic_load_explicit(&s->job, memory_order_relaxed) != NULL &&
                   ds__cpu_job_join(NULL, s, upto);
        case DS__CPU_PARKED: {
            uint32_t count = atomic_load(&s->park_count);
            ds__cpu_stream *on = atomic_load(&s->park_on);
            uint64_t number = atomic_load(&s->park_upto);
            /* unchanged since: while s has not passed `upto`, what it is parked on is what it
               depends on */
            if ((count & 1) || atomic_load(&s->done) >= upto ||
                atomic_load(&s->park_count) != count)
                return 0;
            s = on;
            upto = number;
            break;
        }
        default:
            return 0;
        }
    }
    return 0;
}

/* Waits until the stream has passed `upto`; 0: the time was over first. With a time limit it
   runs nothing. */
static int ds__cpu_wait_slow(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns,
                             int sleep_at_once) {
    int help = timeout_ns == DS__FOREVER && !ds__cpu.seed && !sleep_at_once;
    uint64_t start = ds__now_ns();
    uint64_t spun = start;
    uint64_t deadline = timeout_ns > DS__FOREVER - 1 - start ? DS__FOREVER : start + timeout_ns;
    for (uint32_t spins = 0; !sleep_at_once && !ds__cpu.no_spin; spins++) {
        if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
            return 1;
        /* now and then only: looking at the stream's state takes its cache line from the worker */
        if (help && spins % 32 == 0 && ds__cpu_help(s, upto)) {
            spun = ds__now_ns();
            continue;
        }
        ds__pause();
        if (spins % 16 != 15)
            continue;
        uint64_t now = ds__now_ns();
        if (now >= deadline)
            return 0;
        if (now - spun > DS__CPU_WAIT_SPIN_NS)
            break;
    }
    _Atomic uint32_t flag = 0;
    ds__cpu_waiter me = { NULL, upto, NULL, &flag };
    ds__lock_take(&s->wait_lock);
    int listed = ds__cpu_enlist(s, &me);
    if (ds__cpu.fabric)
        atomic_fetch_add(&ds__cpu.wanted, listed);
    ds__lock_give(&s->wait_lock);
    if (ds__cpu.fabric && listed)
        ds__cpu_wake_worker();
    while (listed && atomic_load_explicit(&flag, memory_order_acquire) == 0) {
        if (help && ds__cpu_help(s, upto))
            continue;
        uint64_t left = DS__FOREVER;
        if (deadline != DS__FOREVER) {
            uint64_t now = ds__now_ns();
            if (now >= deadline) {
                ds__lock_take(&s->wait_lock);
                for (ds__cpu_waiter **p = &s->waiters; *p; p = &(*p)->next)
                    if (*p == &me) {
                        *p = me.next;
                        listed = 0;
                        break;
                    }
                if (ds__cpu.fabric && !listed)
                    atomic_fetch_sub(&ds__cpu.wanted, 1);
                ds__lock_give(&s->wait_lock);
                return !listed ? 0 : 1; /* not in the list any more: it was passed in this moment */
            }
            left = deadline - now;
        }
        atomic_fetch_add_explicit(&ds__cpu.asleep, 1, memory_order_relaxed);
        ds__futex_wait(&flag, 0, left);
        atomic_fetch_sub_explicit(&ds__cpu.asleep, 1, memory_order_relaxed);
    }
    return 1;
}

/* Under a virtual clock; a wait for no time lets run what can, but not for ever. */
static int ds__cpu_wait_virtual(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns) {
    int over = atomic_load(&s->done) >= upto;
    uint32_t rests = atomic_load(&ds__cpu.rests);
    if (!over && timeout_ns)
        over = ds__cpu_wait_slow(s, upto, timeout_ns, 1);
    for (int i = 0;
         i < DS__CPU_ASKS && !over && !timeout_ns && rests == atomic_load(&ds__cpu.rests); i++)
        over = ds__cpu_wait_slow(s, upto, DS__CPU_ASK_NS, 1);
    if (over)
        ds__cpu_clock_up(ds__cpu_time_of(s, upto));
    return over;
}

static int ds__cpu_wait(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns, int sleep_at_once) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL))
        return ds__cpu_wait_virtual(s, upto, timeout_ns);
    if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
        return 1;
    if (timeout_ns == 0)
        return 0;
    if (!sleep_at_once && !ds__cpu.no_spin) {
        /* Most waits are over in a microsecond. Looking at the stream's state, for help, takes
           its cache line from the worker: so once, for a stream that nobody has yet, and then
           leave the worker alone. */
        if (timeout_ns == DS__FOREVER && !ds__cpu.seed &&
            atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_READY)
            ds__cpu_help(s, upto);
        int help = timeout_ns == DS__FOREVER && !ds__cpu.seed;
        for (int spins = 0; spins < 64; spins++) {
            if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
                return 1;
            if (help && spins % 4 == 0 &&
                atomic_load_explicit(&ds__cpu.job_count, memory_order_relaxed) > 0)
                ds__cpu_help(s, upto);
            ds__pause();
        }
    }
    atomic_fetch_add_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    int over = ds__cpu_wait_slow(s, upto, timeout_ns, sleep_at_once);
    atomic_fetch_sub_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    return over;
}

/* cpu/submit.h - submission of stream work.

   Implements the entry `submit` (ds__cpu_submit), and enqueues operations (ds__cpu_enqueue).
   Orders blocking streams against the legacy stream, and runs small copies on an idle stream at
   once (ds__cpu_at_once, ds__cpu_run_together). ds__cpu_mark returns the number that an event
   stands for.

   Invariants: no operation is enqueued on a stream whose `closing` is set. A blocking stream and
   the legacy stream of its device wait for each other's operations as of the submission;
   `legacy_seen` and `seen_by_legacy` are the numbers that are awaited already. A small copy runs
   at once only if nothing is pending on the stream.
   Locks: the device's legacy lock, then the stream's put lock, then the device's lock.
   ds__cpu_at_once and ds__cpu_run_together only try put locks; copies and sums of limited size
   run under them. Waits and inline mode run after these locks are released, but the core may
   hold the lock of an executable.
   Threads: caller's threads, any number at once. */

static ds_result ds__cpu_report(const ds__cpu_failure *f) {
    return ds__fail(f->code, "%s", f->text);
}

/* The legacy stream waits for all that was put on the device's blocking streams. Legacy and put
   locks are held. */
static ds_result ds__cpu_legacy_gather(ds__cpu_stream *legacy) {
    ds__cpu_device *d = &ds__cpu.device[legacy->device];
    ds_result r = DS_OK;
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *b = d->streams; b && r == DS_OK; b = b->all_next) {
        if (b == legacy || !(b->flags & DS_STREAM_BLOCKING))
            continue;
        uint64_t tail = atomic_load(&b->submitted);
        if (tail == b->seen_by_legacy || (atomic_load(&b->done) >= tail && !ds__cpu.fabric))
            continue;
        ds__op wait = { .kind = DS__OP_WAIT };
        wait.u.wait.stream = b;
        wait.u.wait.upto = tail;
        r = ds__cpu_put(legacy, &wait);
        if (r == DS_OK)
            b->seen_by_legacy = tail;
    }
    ds__lock_give(&d->lock);
    return r;
}

/* A blocking stream waits for what was put on the legacy stream. Legacy and put locks are held. */
static ds_result ds__cpu_legacy_follow(ds__cpu_stream *s) {
    ds__cpu_stream *legacy = ds__cpu.device[s->device].legacy;
    uint64_t tail = atomic_load(&legacy->submitted);
    if (tail == s->legacy_seen || (atomic_load(&legacy->done) >= tail && !ds__cpu.fabric))
        return DS_OK;
    ds__op wait = { .kind = DS__OP_WAIT };
    wait.u.wait.stream = legacy;
    wait.u.wait.upto = tail;
    ds_result r = ds__cpu_put(s, &wait);
    if (r == DS_OK)
        s->legacy_seen = tail;
    return r;
}

/* Takes the locks for a submission; where the legacy rules apply, the device's legacy lock
   first. Returns whether. */
static int ds__cpu_put_begin(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    ds__lock_take(&s->put_lock);
    if (DS__LIKELY(!(s->flags & DS_STREAM_BLOCKING)) || !atomic_load(&d->legacy_used))
        return 0;
    ds__lock_give(&s->put_lock);
    ds__lock_take(&d->legacy_lock);
    ds__lock_take(&s->put_lock);
    return 1;
}

static void ds__cpu_put_end(ds__cpu_stream *s, int with_legacy) {
    ds__lock_give(&s->put_lock);
    if (with_legacy)
        ds__lock_give(&ds__cpu.device[s->device].legacy_lock);
}

static ds_result ds__cpu_legacy_order(ds__cpu_stream *s) {
    return s->kind == DS__STREAM_LEGACY ? ds__cpu_legacy_gather(s) : ds__cpu_legacy_follow(s);
}

/* Inline mode: the submitter runs what it has put in, or waits for the thread that does. */
static void ds__cpu_run_inline(ds__cpu_stream *s, uint64_t number) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING)) {
        int outer = ds__tls.in_callback;
        ds__tls.in_callback = 1;
        int result = ds__cpu_run_some(NULL, s, UINT64_MAX, DS__CPU_ALL);
        ds__tls.in_callback = outer;
        if (result != DS__CPU_GONE)
            ds__cpu_go_idle(s);
    }
    ds__cpu_wait(s, number, DS__FOREVER, 1);
}

/* Puts an operation on a stream; *out_number (may be NULL) is its number. number_only: nothing
   is put, the number is that of the last operation, after the legacy rules have been applied. */
static ds_result ds__cpu_enqueue(ds__cpu_stream *s, const ds__op *op, uint64_t *out_number) {
    ds_result r = DS_OK;
    int legacy = ds__cpu_put_begin(s);
    if (DS__UNLIKELY(atomic_load_explicit(&s->closing, memory_order_relaxed)))
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the native stream was destroyed");
    if (r == DS_OK && DS__UNLIKELY(legacy))
        r = ds__cpu_legacy_order(s);
    if (r == DS_OK && op)
        r = ds__cpu_put(s, op);
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    ds__cpu_put_end(s, legacy);
    if (out_number)
        *out_number = number;
    uint32_t idle = DS__CPU_IDLE;
    if (DS__UNLIKELY(ds__cpu.is_inline))
        ds__cpu_run_inline(s, number);
    else if (!op || op->kind != DS__OP_WAIT)
        ds__cpu_kick(s);
    else if (atomic_load(&s->state) == DS__CPU_IDLE &&
             atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING) &&
             !ds__cpu_park_waiting(s))
        ds__cpu_go_idle(s);
    return r;
}

/* The inline rule (DS__INLINE_BYTES): on an idle stream the caller runs a small copy or fill
   itself. 0: it did not. */
static int ds__cpu_at_once(ds__cpu_stream *s, const ds__op *op) {
    if (ds__cpu.seed || ds__cpu.is_inline || ds__op_bytes(op) > DS__INLINE_BYTES ||
        (op->flags & DS__OP_STAGED))
        return 0;
    if ((s->flags & DS_STREAM_BLOCKING) && atomic_load(&ds__cpu.device[s->device].legacy_used))
        return 0;
    if (!ds__trylock(&s->put_lock))
        return 0;
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);
    int mine = number == atomic_load_explicit(&s->done, memory_order_acquire) &&
               !((s->flags & DS_STREAM_BLOCKING) &&
                 atomic_load(&ds__cpu.device[s->device].legacy_used)) && /* under the lock */
               !atomic_load_explicit(&s->closing, memory_order_relaxed) &&
               (state == DS__CPU_IDLE || state == DS__CPU_POLLED) &&
               atomic_compare_exchange_strong(&s->state, &state, DS__CPU_RUNNING);
    /* what the stream has passed may have failed since the caller looked */
    int failed = mine && ds__cpu_stream_failure(s) != NULL;
    if (mine && !failed) {
        if (op->kind == DS__OP_COPY)
            ds__cpu_copy_part(op, 0, ds__op_bytes(op), 0);
        else
            ds__cpu_fill_part(op, 0, op->u.fill.width * op->u.fill.height);
        atomic_store(&s->submitted, number + 1);
        ds__cpu_pass(s, number + 1);
    }
    ds__lock_give(&s->put_lock);
    if (!mine)
        return 0;
    ds__cpu_go_idle(s);
    if (failed)
        return 0;
    atomic_fetch_add_explicit(&ds__cpu.inlined, 1, memory_order_relaxed);
    return 1;
}

/* The number of the stream's last operation, as of now and after the legacy rules. If that one
   failed before a reset, an operation that does nothing gives a new number. */
static ds_result ds__cpu_mark(ds__cpu_stream *s, uint64_t *out_upto) {
    ds_result r = DS_OK;
    if (s->flags & DS_STREAM_BLOCKING)
        r = ds__cpu_enqueue(s, NULL, out_upto);
    else
        *out_upto = atomic_load_explicit(&s->submitted, memory_order_acquire);
    if (DS__LIKELY(r < 0 || !atomic_load_explicit(&s->past, memory_order_acquire) ||
                   !ds__cpu_failed(s, *out_upto)))
        return r;
    ds__op nothing = { .kind = DS__OP_NOTHING };
    return ds__cpu_enqueue(s, &nothing, out_upto);
}

/* A copy or fill; the caller waits for it, and for nothing behind it, when it touches pageable
   memory. */
static ds_result ds__cpu_submit_move(ds__cpu_stream *s, const ds__op *op) {
    uint64_t number;
    ds_result r = ds__cpu_enqueue(s, op, &number);
    if (r < 0 || !(op->flags & DS__OP_BLOCKS))
        return r;
    ds__cpu_wait(s, number, DS__FOREVER, 0);
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    return f ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_kernel_load(int device, ds__kernel *kernel) {
    (void)device;
    return kernel->cpu_fn ? DS_OK
                          : ds__fail(DS_ERR_UNSUPPORTED, "kernel %s has no CPU form", kernel->name);
}

static void ds__cpu_kernel_destroy(ds__kernel *kernel) {
    (void)kernel;
}

static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_wait(ds__cpu_stream *s, const ds__op *op, ds__cpu_stream *on,
                                     uint64_t upto);
static ds_result ds__cpu_submit_wait_event(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_wait_stream(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_launch(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_upload(const ds__op *op);
static inline int ds__cpu_watched(const ds__cpu_stream *s);
static int ds__cpu_submit_captured(ds__cpu_stream *s, const ds__op *op, ds_result *out);

/* The inline rule for several streams: while their put locks are held nothing can become
   pending. 0: it cannot be held now, or something is. */
static int ds__cpu_hold(ds__cpu_stream *s) {
    if (ds__cpu_watched(s) || !ds__trylock(&s->put_lock))
        return 0;
    int idle =
        atomic_load_explicit(&s->submitted, memory_order_relaxed) ==
            atomic_load_explicit(&s->done, memory_order_acquire) &&
        !((s->flags & DS_STREAM_BLOCKING) && atomic_load(&ds__cpu.device[s->device].legacy_used)) &&
        !atomic_load_explicit(&s->closing, memory_order_relaxed) && !ds__cpu_watched(s) &&
        !ds__cpu_stream_failure(s);
    if (!idle)
        ds__lock_give(&s->put_lock);
    return idle;
}

static ds_result ds__cpu_run_together(void *const *streams, size_t count,
                                      void (*run_fn)(void *user), void *user, int *out_ran) {
    size_t held = 0;
    *out_ran = 0;
    if (ds__cpu.seed || ds__cpu.is_inline)
        return DS_OK;
    while (held < count && ds__cpu_hold(streams[held]))
        held++;
    if (held == count) {
        run_fn(user);
        *out_ran = 1;
        atomic_fetch_add_explicit(&ds__cpu.inlined, 1, memory_order_relaxed);
    }
    while (held)
        ds__lock_give(&((ds__cpu_stream *)streams[--held])->put_lock);
    return DS_OK;
}

static ds_result ds__cpu_submit(void *stream, const ds__op *op) {
    ds__cpu_stream *s = stream;
    ds_result captured;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (DS__UNLIKELY(f != NULL))
        return ds__cpu_report(f);
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, op, &captured))
        return captured;
    switch (op->kind) {
    case DS__OP_KERNEL:
        /* it would have been captured */
        if (DS__UNLIKELY(op->flags & DS__OP_INSIDE))
            return DS__CHANGED;
        if (DS__UNLIKELY(!op->u.kernel.kernel->cpu_fn))
            return ds__cpu_kernel_load(0, op->u.kernel.kernel);
        return ds__cpu_enqueue(s, op, NULL);
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (ds__cpu_at_once(s, op))
            return DS_OK;
        return ds__cpu_submit_move(s, op);
    case DS__OP_RECORD:
    case DS__OP_EXTERNAL_RECORD:
        return ds__cpu_submit_record(s, op);
    case DS__OP_WAIT:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cpu_submit_wait_event(s, op);
    case DS__OP_WAIT_STREAM:
        return ds__cpu_submit_wait_stream(s, op);
    case DS__OP_GRAPH:
        return ds__cpu_submit_launch(s, op);
    case DS__OP_UPLOAD:
        return ds__cpu_submit_upload(op);
    default: {
        ds_result r = ds__cpu_host_ready();
        return r < 0 ? r : ds__cpu_enqueue(s, op, NULL);
    }
    }
}

static ds_result ds__cpu_submit_wait(ds__cpu_stream *s, const ds__op *op, ds__cpu_stream *on,
                                     uint64_t upto) {
    /* Nothing to wait for. On the legacy stream a wait is an action all the same: blocking
       streams are ordered by it. */
    if ((on == s ||
         (atomic_load_explicit(&on->done, memory_order_acquire) >= upto && !ds__cpu.fabric)) &&
        !ds__cpu_failed(on, upto) && s->kind != DS__STREAM_LEGACY)
        return DS_OK;
    ds__op wait = *op;
    wait.kind = DS__OP_WAIT;
    wait.u.wait.stream = on;
    wait.u.wait.upto = upto;
    return ds__cpu_enqueue(s, &wait, NULL);
}

static ds_result ds__cpu_event_foreign(ds__cpu_event *e, int wait);

/* Brings what the event stands for up to date, if processes share it; wait: somebody will wait
   for it. */
static inline ds_result ds__cpu_event_look(ds__cpu_event *e, int wait) {
    return DS__LIKELY(!e->board) ? DS_OK : ds__cpu_event_foreign(e, wait);
}

/* Another thread may have brought the event up to date since, for no wait: what will be waited
   for is watched, whatever that is now. */
static ds_result ds__cpu_event_watch(const ds__cpu_event *e, ds__cpu_stream *on, uint64_t upto);
static int ds__cpu_fork_event(ds__cpu_stream *s, ds__cpu_event *e, ds_result *out);
static int ds__cpu_fork_stream(ds__cpu_stream *s, ds__cpu_stream *other, ds_result *out);

static ds_result ds__cpu_submit_wait_event(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_event *e = op->u.event.event;
    for (;;) {
        ds_result r = ds__cpu_event_look(e, 1);
        if (DS__UNLIKELY(r < 0))
            return r;
        ds__lock_take(&e->lock);
        ds__cpu_stream *on = e->stream;
        uint64_t upto = e->upto;
        uint64_t capture = e->capture;
        ds__lock_give(&e->lock);
        if (DS__LIKELY(!capture))
            return on ? ((r = ds__cpu_event_watch(e, on, upto)) < 0
                             ? r
                             : ds__cpu_submit_wait(s, op, on, upto))
                      : DS_OK;
        if (ds__cpu_fork_event(s, e, &r))
            return r;
    }
}

static ds_result ds__cpu_submit_wait_stream(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_stream *other = op->u.wait.stream;
    uint64_t upto;
    ds_result r;
    if (other == s)
        return DS_OK;
    if (ds__cpu_watched(other) && ds__cpu_fork_stream(s, other, &r))
        return r;
    r = ds__cpu_mark(other, &upto);
    return r < 0 ? r : ds__cpu_submit_wait(s, op, other, upto);
}

/* cpu/stream.h - stream objects: creation, destruction, wrapping.

   Creates streams from a pool (ds__cpu_stream_make), destroys them (ds__cpu_stream_destroy), and
   recycles them when they are drained (ds__cpu_recycle). Wraps and unwraps native streams, which
   are the stream objects themselves.

   Invariants: a stream is in the list of its device from its creation until it is recycled. It
   is recycled once, after `closing` was set and all its work was passed. A stream that ever
   failed is not used again, because events may still ask about its numbers. ds__cpu_stream_make
   returns a legacy stream only after the submissions that began without it have ended.
   Locks: ds__cpu_stream_make takes `object_lock`, the capture lock and the device's lock one
   after another; for a legacy stream it takes put locks under the device's lock.
   ds__cpu_stream_destroy takes the put lock. ds__cpu_recycle takes the put lock, the device's
   lock and `object_lock`, one after another.
   Threads: caller's threads. The thread that drops the last reference to an executable destroys
   its lanes, and may be a worker. ds__cpu_recycle runs on the owner of the stream. */

static int ds__cpu_clamp(int priority) {
    return priority > 0 ? 0 : priority < 1 - DS__CPU_LEVELS ? 1 - DS__CPU_LEVELS : priority;
}

static ds__cpu_stream *ds__cpu_stream_make(int device, int kind, unsigned flags, int priority) {
    ds__lock_take(&ds__cpu.object_lock);
    if (!ds__cpu.free_streams) {
        ds__cpu_stream *slab = ds__cpu_raw(16 * sizeof *slab);
        for (int i = 0; slab && i < 16; i++) {
            slab[i].next = ds__cpu.free_streams;
            ds__cpu.free_streams = &slab[i];
        }
    }
    ds__cpu_stream *s = ds__cpu.free_streams;
    if (s && ds__cpu.fabric && !s->virt)
        s->virt = ds__cpu_raw(sizeof *s->virt);
    if (s && ds__cpu.fabric && !s->virt)
        s = NULL;
    if (s)
        ds__cpu.free_streams = s->next;
    ds__lock_give(&ds__cpu.object_lock);
    if (!s)
        return NULL;
    ds__cpu_device *d = &ds__cpu.device[device];
    s->device = device;
    s->kind = kind;
    s->flags =
        kind == DS__STREAM_LEGACY || kind == DS__STREAM_PER_THREAD ? DS_STREAM_BLOCKING : flags;
    s->level = priority + DS__CPU_LEVELS - 1;
    s->floating = 0;
    s->legacy_seen = s->seen_by_legacy = 0;
    if (ds__cpu.fabric) {
        s->virt->time = s->virt->put = 0;
        s->virt->leg = 0;
        s->virt->born = atomic_fetch_add(&ds__cpu.born, 1);
    }
    atomic_store(&s->closing, 0);
    atomic_store(&s->watch, 0);
    atomic_store(&s->state, DS__CPU_IDLE);
    if (kind != DS__STREAM_LANE)
        atomic_fetch_add(&ds__cpu.stream_count, 1);
    if (kind == DS__STREAM_LEGACY) { /* it may be needed for the first time while others capture */
        ds__lock_take(&ds__g.capture_lock);
        d->legacy = s;
        atomic_store(&s->watch, d->capturing);
        ds__lock_give(&ds__g.capture_lock);
    }
    ds__lock_take(&d->lock);
    s->all_prev = NULL;
    s->all_next = d->streams;
    if (d->streams)
        d->streams->all_prev = s;
    d->streams = s;
    if (kind == DS__STREAM_LEGACY) {
        atomic_store(&d->legacy_used, 1);
        /* A submission that began before it saw this ends first; later ones see it. */
        for (ds__cpu_stream *b = d->streams; b; b = b->all_next) {
            ds__lock_take(&b->put_lock);
            ds__lock_give(&b->put_lock);
        }
    }
    ds__lock_give(&d->lock);
    return s;
}

static ds_result ds__cpu_stream_create(int device, int kind, unsigned flags, int *priority,
                                       void **out) {
    *priority = ds__cpu_clamp(*priority);
    *out = ds__cpu_stream_make(device, kind, flags, *priority);
    return *out ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
}

/* The caller owns the stream; it is drained and nobody can put work on it. A stream that ever
   failed is not used again, since events may still ask whether their number failed. */
static void ds__cpu_recycle(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    /* who destroys it has said so and not looked at its state yet: it must not find the next
       one's */
    ds__lock_take(&s->put_lock);
    ds__cpu_block *b = s->head; /* a lane has none */
    s->head = s->tail = NULL;
    ds__lock_give(&s->put_lock);
    ds__cpu_block_give(b);
    ds__cpu_block_give(atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel));
    ds__lock_take(&d->lock);
    if (s->all_prev)
        s->all_prev->all_next = s->all_next;
    else
        d->streams = s->all_next;
    if (s->all_next)
        s->all_next->all_prev = s->all_prev;
    ds__lock_give(&d->lock);
    atomic_store(&s->state, DS__CPU_FREE);
    if (s->kind != DS__STREAM_LANE)
        atomic_fetch_sub(&ds__cpu.stream_count, 1);
    if (s->had_failure)
        return;
    ds__lock_take(&ds__cpu.object_lock);
    s->next = ds__cpu.free_streams;
    ds__cpu.free_streams = s;
    ds__lock_give(&ds__cpu.object_lock);
}

static void ds__cpu_destroy_captured(ds__cpu_stream *s);

static void ds__cpu_stream_destroy(void *stream) {
    ds__cpu_stream *s = stream;
    if (ds__cpu_watched(s) && s->kind != DS__STREAM_LEGACY)
        ds__cpu_destroy_captured(s);
    uint32_t idle = DS__CPU_IDLE;
    ds__lock_take(&s->put_lock); /* after this no operation gets in any more */
    atomic_store(&s->closing, 1);
    int mine = atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING);
    ds__lock_give(&s->put_lock);
    if (mine)
        ds__cpu_go_idle(s);
}

static void ds__cpu_stream_unwrap(void *stream) {
    ds__cpu_stream *s = stream;
    ds__lock_take(&ds__cpu.device[s->device].lock);
    s->floating = 1;
    ds__lock_give(&ds__cpu.device[s->device].lock);
}

static ds_result ds__cpu_stream_wrap(int device, void *native, int own, unsigned *out_flags,
                                     int *out_priority, void **out) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = DS_ERR_INVALID_VALUE;
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        if (s != native || s->kind == DS__STREAM_LANE || atomic_load(&s->closing))
            continue;
        if (own && !s->floating) {
            r = DS_ERR_ILLEGAL_STATE;
            break;
        }
        if (own)
            s->floating = 0;
        *out_flags = s->flags;
        *out_priority = s->level + 1 - DS__CPU_LEVELS;
        *out = s;
        r = DS_OK;
    }
    ds__lock_give(&d->lock);
    if (r == DS_ERR_ILLEGAL_STATE)
        return ds__fail(DS_ERR_INVALID_VALUE, "the native stream has an owner already");
    return r == DS_OK ? r : ds__fail(r, "%p is not a stream of cpu:%d", native, device);
}

static ds_result ds__cpu_stream_native(void *stream, void **out) {
    *out = stream;
    return DS_OK;
}

static const void *ds__cpu_stream_identity(void *stream) {
    return stream;
}

static void ds__cpu_stream_hide(void *stream) {
    (void)stream;
}

static void ds__cpu_stream_forget(void *stream) {
    (void)stream;
}

static ds_result ds__cpu_copy_now(const ds__op *op) {
    (void)op;
    return ds__fail(DS_ERR_UNSUPPORTED, "only a GPU's memory needs this");
}

/* cpu/stream_wait.h - waits for streams and devices.

   Implements the entries `stream_query` and `stream_synchronize`, and the wait for a device
   (ds__cpu_wait_device). ds__cpu_tokens lists the unfinished work of a device as tokens.

   Invariants: a wait covers the work that was submitted before the call. A wait for a legacy
   stream covers all blocking streams of its device. A token is valid until the driver stops.
   Locks: ds__cpu_tokens takes the device's lock. For a stream with `watch` set, the core's
   capture lock is taken before the wait. The waits hold no lock of the driver.
   Threads: caller's threads, any number at once. */

/* A token for the last operation of a stream. */
typedef struct ds__cpu_token {
    ds__cpu_stream *stream;
    uint64_t upto;
} ds__cpu_token;

/* Tokens for the unfinished work of the device's streams (blocking ones only, or all). NULL with
   *out_count 0: none; with *out_count SIZE_MAX: no memory. */
static ds__cpu_token *ds__cpu_tokens(int device, int blocking_only, size_t *out_count) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds__cpu_token *list = NULL;
    size_t room = 0;
    size_t count = 0;
    for (;;) {
        count = 0;
        ds__lock_take(&d->lock);
        for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
            uint64_t tail = atomic_load(&s->submitted);
            if ((blocking_only && !(s->flags & DS_STREAM_BLOCKING)) ||
                (atomic_load(&s->done) >= tail && !ds__cpu.fabric))
                continue;
            if (count < room) {
                list[count].stream = s;
                list[count].upto = tail;
            }
            count++;
        }
        ds__lock_give(&d->lock);
        if (count <= room)
            break;
        ds__release(list);
        room = count + 16;
        list = ds__alloc(room * sizeof *list);
        if (!list) {
            count = SIZE_MAX;
            break;
        }
    }
    *out_count = count;
    return list;
}

/* Waits for the tokens, for the rest of the time; 0: the time was over first. */
static int ds__cpu_wait_all(const ds__cpu_token *list, size_t count, uint64_t timeout_ns) {
    uint64_t start = ds__now_ns();
    for (size_t i = 0; i < count; i++) {
        uint64_t left = timeout_ns;
        if (timeout_ns != DS__FOREVER) {
            uint64_t gone = ds__now_ns() - start;
            left = gone < timeout_ns ? timeout_ns - gone : 0;
        }
        if (!ds__cpu_wait(list[i].stream, list[i].upto, left, 0))
            return 0;
    }
    return 1;
}

static ds_result ds__cpu_wait_device(int device, int blocking_only, uint64_t timeout_ns) {
    size_t count;
    ds__cpu_token *list = ds__cpu_tokens(device, blocking_only, &count);
    if (count == SIZE_MAX)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to list the device's streams");
    int over = ds__cpu_wait_all(list, count, timeout_ns);
    ds__release(list);
    return over ? DS_OK : DS_NOT_READY;
}

static ds_result ds__cpu_settled(const ds__cpu_stream *s) {
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    return DS__UNLIKELY(f != NULL) ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_asked(const ds__cpu_stream *s, const char *rule);

static ds_result ds__cpu_stream_query(void *stream) {
    ds__cpu_stream *s = stream;
    if (ds__cpu_watched(s)) {
        ds_result r =
            ds__cpu_asked(s, "a stream that captures cannot be asked whether its work is done");
        if (r < 0)
            return r;
    }
    if (s->kind == DS__STREAM_LEGACY) {
        ds_result r = ds__cpu_wait_device(s->device, 1, 0);
        return r == DS_OK ? ds__cpu_settled(s) : r;
    }
    uint64_t tail = atomic_load_explicit(&s->submitted, memory_order_acquire);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL))
        (void)ds__cpu_wait_virtual(s, tail, 0);
    return atomic_load_explicit(&s->done, memory_order_acquire) >= tail ? ds__cpu_settled(s)
                                                                        : DS_NOT_READY;
}

static ds_result ds__cpu_stream_synchronize(void *stream, uint64_t timeout_ns) {
    ds__cpu_stream *s = stream;
    ds_result r = ds__cpu_watched(s)
                      ? ds__cpu_asked(s, "a stream that captures cannot be waited for by the host")
                      : DS_OK;
    if (r < 0)
        return r;
    if (s->kind == DS__STREAM_LEGACY)
        r = ds__cpu_wait_device(s->device, 1, timeout_ns);
    else
        r = ds__cpu_wait(s, atomic_load_explicit(&s->submitted, memory_order_acquire), timeout_ns,
                         0)
                ? DS_OK
                : DS_NOT_READY;
    return r == DS_OK ? ds__cpu_settled(s) : r;
}

/* cpu/event.h - events: records, queries, host waits, elapsed times.

   Implements the event entries of the driver. ds__cpu_submit_record records an event,
   ds__cpu_event_token returns the token that it stands for, and ds__cpu_token_state the result
   of a token. ds__cpu_stamp_take allocates the time stamp of a timed record.

   Invariants: an event without a stream and without a capture is unrecorded, and counts as
   complete. An event with `capture` set has no stream: it stands for nodes. A stamp has two
   references, of the event and of the queue, and its `ns` is 0 until the record has run. A timed
   record and an interprocess record are operations; any other record is only a number of the
   stream.
   Locks: an event's lock guards `stream`, `upto`, `stamp`, `capture` and `deps`. `capture` and
   `deps` of an event in use also need the core's capture lock, which comes first. `object_lock`
   guards the pools of events and stamps. The waits hold no lock of the driver.
   Threads: caller's threads, any number at once. ds__cpu_event_destroy expects that no other
   thread uses the event. */

static ds_result ds__cpu_event_share(ds__cpu_event *e);
static void ds__cpu_event_unshare(ds__cpu_event *e);
static void ds__cpu_event_destroy(void *event);

static ds_result ds__cpu_event_create(int device, unsigned flags, void **out) {
    (void)device;
    /* an event is not tied to a device */
    if (*out)
        return DS_OK;
    ds__lock_take(&ds__cpu.object_lock);
    if (!ds__cpu.free_events) {
        ds__cpu_event *slab = ds__cpu_raw(64 * sizeof *slab);
        for (int i = 0; slab && i < 64; i++) {
            slab[i].next = ds__cpu.free_events;
            ds__cpu.free_events = &slab[i];
        }
    }
    ds__cpu_event *e = ds__cpu.free_events;
    if (e)
        ds__cpu.free_events = e->next;
    ds__lock_give(&ds__cpu.object_lock);
    *out = e;
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    e->flags = flags;
    e->stream = NULL;
    e->stamp = NULL;
    ds_result r = flags & DS_EVENT_INTERPROCESS ? ds__cpu_event_share(e) : DS_OK;
    if (r < 0) {
        ds__cpu_event_destroy(e);
        *out = NULL;
    }
    return r;
}

static void ds__cpu_event_destroy(void *event) {
    ds__cpu_event *e = event;
    ds__cpu_event_unshare(e);
    ds__cpu_stamp_give(e->stamp);
    ds__release(e->deps);
    e->stamp = NULL;
    e->deps = NULL;
    e->capture = 0;
    ds__lock_take(&ds__cpu.object_lock);
    e->next = ds__cpu.free_events;
    ds__cpu.free_events = e;
    ds__lock_give(&ds__cpu.object_lock);
}

static ds__cpu_stamp *ds__cpu_stamp_take(void) {
    ds__lock_take(&ds__cpu.object_lock);
    if (!ds__cpu.free_stamps) {
        ds__cpu_stamp *slab = ds__cpu_raw(64 * sizeof *slab);
        for (int i = 0; slab && i < 64; i++) {
            slab[i].next = ds__cpu.free_stamps;
            ds__cpu.free_stamps = &slab[i];
        }
    }
    ds__cpu_stamp *stamp = ds__cpu.free_stamps;
    if (stamp)
        ds__cpu.free_stamps = stamp->next;
    ds__lock_give(&ds__cpu.object_lock);
    if (stamp) {
        /* the event's and the queue's */
        atomic_store_explicit(&stamp->refs, 2, memory_order_relaxed);
        atomic_store_explicit(&stamp->ns, 0, memory_order_relaxed);
    }
    return stamp;
}

/* The event stands for this number of the stream from now on. */
static void ds__cpu_event_set(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto,
                              ds__cpu_stamp *stamp) {
    uint32_t *deps = NULL;
    ds__lock_take(&e->lock);
    int captured = e->capture != 0;
    /* what it stood for in a capture changes under that lock only, which comes first */
    if (DS__UNLIKELY(captured)) {
        ds__lock_give(&e->lock);
        ds__lock_take(&ds__g.capture_lock);
        ds__lock_take(&e->lock);
        deps = e->deps;
        e->deps = NULL;
        e->capture = 0;
    }
    ds__cpu_stamp *old = e->stamp;
    e->stream = s;
    e->upto = upto;
    e->stamp = stamp;
    ds__lock_give(&e->lock);
    if (DS__UNLIKELY(captured))
        ds__lock_give(&ds__g.capture_lock);
    ds__cpu_stamp_give(old);
    ds__release(deps);
}

static ds_result ds__cpu_lane_for(ds__cpu_stream *s, const ds__cpu_event *e, ds__cpu_lane **out);
static void ds__cpu_lane_unused(const ds__cpu_lane *l);
static void ds__cpu_event_publish(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto);

/* A record without timing is the number of the stream's last operation; with timing, or when
   other processes are to know of it, it is an operation of its own. */
static ds_result ds__cpu_submit_record(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_event *e = op->u.event.event;
    ds__cpu_stamp *stamp = NULL;
    uint64_t upto;
    ds_result r;
    if (e->flags & DS_EVENT_TIMING) {
        stamp = ds__cpu_stamp_take();
        if (!stamp)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a time stamp");
        ds__op record = *op;
        record.kind = DS__OP_RECORD;
        record.u.stamp.stamp = stamp;
        r = ds__cpu_enqueue(s, &record, &upto);
        if (r < 0)
            ds__cpu_stamp_give(stamp);
    } else if (DS__UNLIKELY(e->board != NULL)) {
        ds__cpu_lane *lane = NULL;
        ds__op record = *op;
        r = ds__cpu_lane_for(s, e, &lane);
        record.kind = DS__OP_SHARED_RECORD;
        record.u.shared.lane = lane;
        if (r == DS_OK && (r = ds__cpu_enqueue(s, &record, &upto)) < 0)
            ds__cpu_lane_unused(lane);
    } else {
        r = ds__cpu_mark(s, &upto);
    }
    if (r < 0) {
        ds__cpu_stamp_give(stamp);
        return r;
    }
    ds__cpu_event_set(e, s, upto, stamp);
    if (DS__UNLIKELY(e->board != NULL))
        ds__cpu_event_publish(e, s, upto);
    return DS_OK;
}

static ds_result ds__cpu_captured(uint64_t capture, int spoils, const char *rule);

/* What the event stands for; an event of a capture stands for nothing that could be asked. */
static ds_result ds__cpu_event_token(ds__cpu_event *e, ds__cpu_token *out) {
    ds__lock_take(&e->lock);
    uint64_t capture = e->capture;
    out->stream = e->stream;
    out->upto = e->upto;
    ds__lock_give(&e->lock);
    return DS__LIKELY(!capture) ? DS_OK
                                : ds__cpu_captured(capture, 1,
                                                   "an event that was recorded in a capture cannot "
                                                   "be asked or waited for by the host");
}

static ds_result ds__cpu_token_state(ds__cpu_token t) {
    if (!t.stream)
        return DS_OK;
    if (atomic_load_explicit(&t.stream->done, memory_order_acquire) < t.upto)
        return DS_NOT_READY;
    ds__cpu_failure *f = ds__cpu_failed(t.stream, t.upto);
    return f ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_event_query(void *event) {
    ds__cpu_token t = { NULL, 0 };
    ds_result r = ds__cpu_event_look(event, 0);
    if (DS__LIKELY(r == DS_OK))
        r = ds__cpu_event_token(event, &t);
    /* the allocator asks too, in the middle of a submission, and that moves no clock */
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && r == DS_OK && t.stream && ds__tls.fn &&
        !strcmp(ds__tls.fn, "ds_event_query"))
        (void)ds__cpu_wait_virtual(t.stream, t.upto, 0);
    return r < 0 ? r : ds__cpu_token_state(t);
}

static ds_result ds__cpu_event_synchronize(void *event, uint64_t timeout_ns) {
    ds__cpu_token t = { NULL, 0 };
    ds_result r = ds__cpu_event_look(event, 1);
    if (DS__LIKELY(r == DS_OK))
        r = ds__cpu_event_token(event, &t);
    if (r == DS_OK && t.stream)
        r = ds__cpu_event_watch(event, t.stream, t.upto);
    if (r < 0)
        return r;
    if (t.stream && !ds__cpu_wait(t.stream, t.upto, timeout_ns,
                                  (((ds__cpu_event *)event)->flags & DS_EVENT_BLOCKING_WAIT) != 0))
        return DS_NOT_READY;
    return ds__cpu_token_state(t);
}

static ds_result ds__cpu_event_elapsed(void *start, void *end, double *out_ms) {
    ds__cpu_event *e[2] = { start, end };
    uint64_t ns[2];
    for (int i = 0; i < 2; i++) {
        ds__lock_take(&e[i]->lock);
        ds__cpu_token t = { e[i]->stream, e[i]->upto };
        uint64_t capture = e[i]->capture;
        ns[i] = e[i]->stamp ? atomic_load_explicit(&e[i]->stamp->ns, memory_order_acquire) : 0;
        ds__lock_give(&e[i]->lock);
        if (capture)
            return ds__cpu_captured(capture, 0,
                                    "an event that was recorded in a capture has no time");
        ds_result r = ds__cpu_token_state(t);
        if (r != DS_OK)
            return r;
        /* a graph that records it was not launched yet */
        if (!t.stream)
            return ds__fail(DS_ERR_NOT_RECORDED, "both events must be recorded first");
        /* recorded again in this moment */
        if (ns[i] == 0)
            return DS_NOT_READY;
    }
    *out_ms = (double)(int64_t)(ns[1] - ns[0]) / 1e6;
    return DS_OK;
}

/* cpu/shared_event.h - events shared between processes: lanes and proxies.

   Publishes how far the streams of this process have come (ds__cpu_lane_for, ds__cpu_lane_pass).
   Mirrors the progress of streams of other processes (ds__cpu_proxy_of, ds__cpu_mirror).
   cpu/event.h and cpu/watcher.h use both.

   Policy:
   1. The latest record of such an event is in the shared-memory registry (ds__board) of the
      event's owner. It consists of a lane and a number. They mean all work up to that number of
      a stream in some process.
   2. A record is an operation of its own. It writes to the lane how far its stream has come.
   3. A foreign lane has a stream object in this process, its proxy, which only counts. A stream
      that waits for a foreign record is therefore parked as usual. A token of a proxy stays
      valid.
   4. The watcher is a thread that the first such wait starts. It looks at the lanes that are
      waited for and sleeps on the bells of their registries.
   5. If the process of a lane has ended, the operations after the last one passed count as
      failed.

   Invariants: numbers of a proxy never decrease, also when the proxy is reused for another lane.
   A registry stays open while operations that write to it are pending (`pending`).
   Locks: the mutex of the shared-memory registries guards lanes, proxies and the `done` of
   proxies. ds__cpu_lane_for takes it, ds__cpu_lane_pass and ds__cpu_lane_unused do without it,
   and the other functions expect it. ds__cpu_mirror takes `wait_lock` and the pool's lock under
   it.
   Threads: caller's threads and the watcher. ds__cpu_lane_pass runs on the owner of the stream. */

/* A stream's lane on a board. */
struct ds__cpu_lane {
    struct ds__cpu_lane *next; /* in the list of the stream */
    struct ds__cpu_lane *all;  /* in the list of all lanes */
    ds__board *board;          /* while there is one with this serial */
    uint64_t serial;
    ds__cpu_stream *stream;
    ds__lane *at;
    uint32_t index;
    int failing; /* the last number on it has failed */
};

struct ds__cpu_proxy {
    ds__cpu_stream stream;
    struct ds__cpu_proxy *all;
    struct ds__cpu_proxy *next_watched;
    ds__board *board;
    uint64_t serial;
    uint64_t base;   /* added to the lane's numbers */
    uint64_t wanted; /* the highest number that somebody waits for */
    uint32_t lane;
    int is_watched;
};

#define DS__CPU_PROXY 4 /* kind of its stream */

/* The number whose lowest 40 bits these are, near another. */
static uint64_t ds__cpu_whole(uint64_t low, uint64_t near) {
    return near + (uint64_t)((int64_t)((low - near) << 24) >> 24);
}

/* The lane of a stream on a board; NULL: there is none yet. The mutex is held. */
static ds__cpu_lane *ds__cpu_lane_of(const ds__cpu_stream *s, const ds__board *b) {
    ds__cpu_lane *l = s->shared;
    while (l && l->serial != b->serial)
        l = l->next;
    return l;
}

/* The mutex is held. */
static ds_result ds__cpu_lane_make(ds__cpu_stream *s, ds__board *b, ds__cpu_lane **out) {
    uint32_t index = 0;
    ds_result r = ds__board_lane(b, &index);
    if (r < 0)
        return r;
    ds__cpu_lane *l = s->shared;
    /* one of a board that is closed can be used again */
    while (l && ds__board_of(l->serial))
        l = l->next;
    if (!l) {
        if (!(l = ds__cpu_raw(sizeof *l)))
            return ds__board_short();
        l->stream = s;
        l->next = s->shared;
        l->all = ds__cpu.lanes;
        s->shared = ds__cpu.lanes = l;
    }
    l->board = b;
    l->serial = b->serial;
    l->index = index;
    l->at = &b->sheet->lane[index];
    l->failing = 0;
    atomic_store(&l->at->done, atomic_load(&s->done));
    *out = l;
    return DS_OK;
}

/* The lane for a record of the event on the stream; counts the operation that will be put there. */
static ds_result ds__cpu_lane_for(ds__cpu_stream *s, const ds__cpu_event *e, ds__cpu_lane **out) {
    ds_result r = DS_OK;
    ds__boards_lock();
    if (!(*out = ds__cpu_lane_of(s, e->board)))
        r = ds__cpu_lane_make(s, e->board, out);
    if (r == DS_OK)
        atomic_fetch_add(&e->board->pending, 1);
    ds__boards_unlock();
    return r;
}

static void ds__cpu_lane_unused(const ds__cpu_lane *l) {
    if (l)
        atomic_fetch_sub(&l->board->pending, 1);
}

/* The stream has come to a record. */
static void ds__cpu_lane_pass(ds__cpu_lane *l, uint64_t number, int failed) {
    ds__sheet *sheet = l->board->sheet;
    if (failed) {
        if (!l->failing)
            atomic_store(&l->at->failed_from, number);
        atomic_store(&l->at->failed_upto, number);
    }
    l->failing = failed;
    atomic_store(&l->at->done, number);
    if (atomic_load(&sheet->waiters)) {
        atomic_fetch_add(&sheet->bell, 1);
        ds__futex_wake_shared(&sheet->bell);
    }
    atomic_fetch_sub(&l->board->pending, 1); /* after this the board may go */
}

/* Takes over what the lane says; upto: the number that somebody is interested in. The mutex is
   held. */
static void ds__cpu_mirror(ds__cpu_proxy *p, uint64_t upto) {
    ds__lane *at = &p->board->sheet->lane[p->lane];
    if (atomic_load(&p->stream.failure))
        return;
    uint64_t who = atomic_load(&at->who);
    uint64_t done = p->base + atomic_load(&at->done);
    /* what it did before it ended counts */
    if (done < upto && !ds__board_alive(p->board, who >> 24))
        done = p->base + atomic_load(&at->done);
    else
        who = 0;
    uint64_t failed_upto = p->base + atomic_load(&at->failed_upto);
    if (failed_upto != p->base) {
        uint64_t failed_from = p->base + atomic_load(&at->failed_from);
        ds__cpu_past *past = atomic_load(&p->stream.past);
        /* it goes on failing there */
        if (past && past->from == failed_from)
            atomic_store(&past->upto, failed_upto);
        else
            ds__cpu_stays_failed(
                &p->stream,
                past ? past->failure
                     : ds__cpu_failure_new(
                           DS_ERR_FAILED,
                           "an operation before the event's record failed in process %d",
                           (int)(atomic_load(&at->who) & 0xffffff)),
                failed_from, failed_upto);
        p->stream.had_failure = 1;
    }
    if (who && done < upto) {
        ds__cpu_fail_stream(
            &p->stream,
            ds__cpu_failure_new(
                DS_ERR_PEER_DIED,
                "process %d, which recorded the event, has died before it came to that",
                (int)(who & 0xffffff)),
            done + 1);
        done = UINT64_MAX;
    }
    if (done > atomic_load(&p->stream.done))
        ds__cpu_pass(&p->stream, done);
}

/* The proxy of a lane. The mutex is held. */
static ds_result ds__cpu_proxy_of(ds__board *b, uint32_t lane, ds__cpu_proxy **out) {
    ds__cpu_proxy *p = ds__cpu.proxies;
    ds__cpu_proxy *spare = NULL;
    for (; p && (p->serial != b->serial || p->lane != lane); p = p->all)
        if (!p->is_watched && !p->stream.had_failure && !ds__board_of(p->serial))
            spare = p;
    if ((*out = p) != NULL)
        return DS_OK;
    p = spare;
    if (!p && (p = ds__cpu_raw(sizeof *p)) != NULL) {
        p->all = ds__cpu.proxies;
        ds__cpu.proxies = p;
        p->stream.kind = DS__CPU_PROXY;
        atomic_store(&p->stream.state, DS__CPU_COUNTS);
    }
    if (!p)
        return ds__board_short();
    p->board = b;
    p->serial = b->serial;
    p->lane = lane;
    p->base = atomic_load(&p->stream.done); /* numbers go on, so that old tokens stay true */
    p->wanted = 0;
    *out = p;
    return DS_OK;
}

/* cpu/watcher.h - watcher thread, and interprocess event entries.

   The watcher (ds__cpu_watcher_main) follows streams of other processes while a wait in this
   process needs them. ds__cpu_event_foreign brings an event up to date, ds__cpu_event_publish
   makes a record visible, ds__cpu_event_export and ds__cpu_event_import pass an event between
   processes.

   Invariants: a watched proxy holds one user of its registry and one waiter of its page
   (ds__sheet) until it has passed `wanted`. Proxies of one registry are adjacent in the list
   `watched`. The watcher reads a bell before the lanes, so that no change is missed. Since a
   death rings no bell, it also looks at growing intervals of 1 ms to about 20 ms.
   Locks: the mutex of the shared-memory registries guards the list, and comes before an event's
   lock. The watcher sleeps without it. pthread_create runs under it in ds__cpu_watch_for. The
   check for open captures is made before it is taken.
   Threads: one watcher, which the first wait starts and ds__cpu_watcher_end joins after all work
   is done. Caller's threads, any number at once. */

/* Looks at all that is watched and lists what to sleep on; the mutex is held. */
static unsigned ds__cpu_watch_lanes(ds__sleep *list, unsigned room) {
    unsigned count = 0;
    uint32_t bell = 0;
    const ds__board *last = NULL;
    for (ds__cpu_proxy **next = &ds__cpu.watched; *next;) {
        ds__cpu_proxy *p = *next;
        /* before the lane is looked at */
        if (p->board != last)
            bell = atomic_load(&p->board->sheet->bell);
        ds__cpu_mirror(p, p->wanted);
        if (atomic_load(&p->stream.done) >= p->wanted) {
            *next = p->next_watched;
            p->is_watched = 0;
            atomic_fetch_sub(&p->board->sheet->waiters, 1);
            ds__board_close(p->board);
            continue;
        }
        if (p->board != last && count < room)
            list[count++] =
                (ds__sleep){ bell, (uintptr_t)&p->board->sheet->bell, 2 /* of 32 bits */, 0 };
        last = p->board;
        next = &p->next_watched;
    }
    return count;
}

static void *ds__cpu_watcher_main(void *unused) {
    ds__sleep list[33];
    uint64_t nap = 0;
    uint32_t seen = 0;
    (void)unused;
    ds__os_block_signals();
    ds__boards_lock();
    for (;;) {
        uint32_t word = atomic_load(&ds__cpu.watch_word);
        if (atomic_load(&ds__cpu.watch_quit))
            break;
        unsigned count = ds__cpu_watch_lanes(list + 1, 32);
        ds__boards_unlock();
        /* nothing tells of a death */
        nap = word != seen || !nap ? 1000000 : nap < 16000000 ? nap + nap / 4 : nap;
        seen = word;
        list[0] = (ds__sleep){ word, (uintptr_t)&ds__cpu.watch_word, 2 | 128 /* private */, 0 };
        if (count)
            ds__futex_wait_any(list, count + 1, nap);
        else
            ds__futex_wait(&ds__cpu.watch_word, word, DS__FOREVER);
        ds__boards_lock();
    }
    ds__boards_unlock();
    return NULL;
}

static void ds__cpu_wake_watcher(void) {
    atomic_fetch_add(&ds__cpu.watch_word, 1);
    ds__futex_wake(&ds__cpu.watch_word, 1);
}

/* The watcher sees to it that the proxy comes to this number. The mutex is held. */
static ds_result ds__cpu_watch_for(ds__cpu_proxy *p, uint64_t upto) {
    if (atomic_load(&p->stream.done) >= upto)
        return DS_OK;
    if (!ds__cpu.watcher_started) {
        int error = pthread_create(&ds__cpu.watcher, NULL, ds__cpu_watcher_main, NULL);
        if (error)
            return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
        ds__cpu.watcher_started = 1;
    }
    if (p->wanted < upto)
        p->wanted = upto;
    if (!p->is_watched) {
        p->is_watched = 1;
        p->board->users++;
        atomic_fetch_add(&p->board->sheet->waiters, 1);
        ds__cpu_proxy **at = &ds__cpu.watched; /* beside others of the board */
        while (*at && (*at)->board != p->board)
            at = &(*at)->next_watched;
        p->next_watched = *at;
        *at = p;
    }
    ds__cpu_wake_watcher();
    return DS_OK;
}

static ds_result ds__cpu_event_watch(const ds__cpu_event *e, ds__cpu_stream *on, uint64_t upto) {
    if (DS__LIKELY(!e->board) || on->kind != DS__CPU_PROXY)
        return DS_OK;
    ds__boards_lock();
    ds_result r = ds__cpu_watch_for((ds__cpu_proxy *)(void *)on, upto);
    ds__boards_unlock();
    return r;
}

static void ds__cpu_watcher_end(void) {
    if (!ds__cpu.watcher_started)
        return;
    ds__boards_lock();
    atomic_store(&ds__cpu.watch_quit, 1);
    ds__boards_unlock();
    ds__cpu_wake_watcher();
    pthread_join(ds__cpu.watcher, NULL);
    ds__cpu.watcher_started = 0;
}

/* What the event's word says, as a token of this process. The mutex is held. */
static ds_result ds__cpu_word_token(ds__board *b, uint64_t word, ds__cpu_token *out) {
    uint32_t lane = (uint32_t)(word >> 40) - 1;
    out->stream = NULL;
    out->upto = 0;
    if (word == 0)
        return DS_OK;
    if (lane >= atomic_load(&b->sheet->lanes))
        return ds__fail(DS_ERR_INVALID_HANDLE, "what process %d shares is damaged", b->pid);
    /* recorded here, through another handle */
    if (atomic_load(&b->sheet->lane[lane].who) >> 24 == b->me) {
        ds__cpu_lane *l = ds__cpu.lanes;
        while (l && (l->serial != b->serial || l->index != lane))
            l = l->all;
        if (!l)
            return DS_OK;
        out->stream = l->stream;
        out->upto = ds__cpu_whole(word, atomic_load(&l->stream->submitted));
        return DS_OK;
    }
    ds__cpu_proxy *p;
    ds_result r = ds__cpu_proxy_of(b, lane, &p);
    if (r < 0)
        return r;
    out->stream = &p->stream;
    out->upto = p->base + ds__cpu_whole(word, atomic_load(&b->sheet->lane[lane].done));
    return DS_OK;
}

static ds_result ds__cpu_event_foreign(ds__cpu_event *e, int wait) {
    ds_result r = DS_OK;
    ds__cpu_token t;
    ds__mark *m = &e->board->sheet->mark[e->mark];
    ds__boards_lock();
    uint64_t word = atomic_load(&m->word);
    if (atomic_load(&m->generation) != e->generation) {
        r = ds__fail(DS_ERR_INVALID_HANDLE, "process %d has destroyed the event", e->board->pid);
    } else {
        ds__lock_take(&e->lock);
        uint64_t before = e->word;
        t.stream = e->stream;
        t.upto = e->upto;
        ds__lock_give(&e->lock);
        if (before != word && (r = ds__cpu_word_token(e->board, word, &t)) == DS_OK) {
            ds__lock_take(&e->lock);
            if (e->word == before && !e->capture) {
                e->word = word;
                e->stream = t.stream;
                e->upto = t.upto;
            }
            t.stream = e->stream;
            t.upto = e->upto;
            ds__lock_give(&e->lock);
        }
        if (r == DS_OK && t.stream && t.stream->kind == DS__CPU_PROXY &&
            atomic_load(&t.stream->done) < t.upto) {
            ds__cpu_mirror((ds__cpu_proxy *)(void *)t.stream, t.upto);
            if (wait)
                r = ds__cpu_watch_for((ds__cpu_proxy *)(void *)t.stream, t.upto);
        }
    }
    ds__boards_unlock();
    return r;
}

/* The stream has been given a record of the event, which is this operation of it. */
static void ds__cpu_event_publish(ds__cpu_event *e, ds__cpu_stream *s, uint64_t upto) {
    ds__boards_lock();
    uint64_t word =
        (uint64_t)(ds__cpu_lane_of(s, e->board)->index + 1) << 40 | (upto & 0xffffffffff);
    ds__lock_take(&e->lock);
    e->word = word;
    e->stream = s;
    e->upto = upto;
    ds__lock_give(&e->lock);
    ds__mark *m = &e->board->sheet->mark[e->mark];
    if (atomic_load(&m->generation) == e->generation)
        atomic_store(&m->word, word);
    ds__boards_unlock();
}

static ds_result ds__cpu_unsafe(const char *rule);

static ds_result ds__cpu_event_export(void *event, unsigned char *out) {
    const ds__cpu_event *e = event;
    ds_result r =
        ds__cpu_unsafe("an event cannot be exported in this thread while the capture is open");
    if (r < 0)
        return r;
    ds__address a = { DS__ADDRESS_EVENT, e->board->pid,
                      e->board->fd,      e->mark,
                      e->generation,     0,
                      e->board->cookie,  0 };
    memset(out, 0, 64);
    memcpy(out, &a, sizeof a);
    return DS_OK;
}

static ds_result ds__cpu_event_import(int device, const unsigned char *handle, void **out) {
    ds__address a;
    ds__board *b = NULL;
    memcpy(&a, handle, sizeof a);
    ds_result r =
        ds__cpu_unsafe("an event cannot be imported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (a.kind != DS__ADDRESS_EVENT || a.index >= DS__MARKS)
        return ds__fail(DS_ERR_INVALID_VALUE, "these bytes are no event of a CPU device");
    r = ds__cpu_event_create(device, 0, out);
    if (r < 0)
        return r;
    ds__boards_lock();
    r = ds__board_open(a.pid, a.fd, a.cookie, &b);
    if (r == DS_OK && atomic_load(&b->sheet->mark[a.index].generation) != a.generation) {
        ds__board_close(b);
        b = NULL;
        r = ds__fail(DS_ERR_INVALID_HANDLE, "process %d has destroyed the event", a.pid);
    }
    ds__boards_unlock();
    ds__cpu_event *e = *out;
    if (r < 0) {
        ds__cpu_event_destroy(e);
        *out = NULL;
        return r;
    }
    e->flags = DS_EVENT_INTERPROCESS;
    e->board = b;
    e->mark = a.index;
    e->generation = a.generation;
    e->imported = 1;
    return DS_OK;
}

/* Gives an event of this process its mark. */
static ds_result ds__cpu_event_share(ds__cpu_event *e) {
    ds__board *b;
    ds__boards_lock();
    ds_result r = ds__board_own(&b);
    if (r == DS_OK)
        r = ds__board_mark(b, &e->mark);
    if (r == DS_OK) {
        e->board = b;
        e->generation = atomic_load(&b->sheet->mark[e->mark].generation);
    }
    ds__boards_unlock();
    return r;
}

static void ds__cpu_event_unshare(ds__cpu_event *e) {
    if (!e->board)
        return;
    ds__boards_lock();
    if (e->imported)
        ds__board_close(e->board);
    else
        ds__board_unmark(e->board, e->mark);
    ds__boards_unlock();
    e->board = NULL;
    e->imported = 0;
    e->word = 0;
}

/* cpu/capture.h - captures on CPU streams: begin, end, query, update.

   Implements the capture entries of the driver, and tracks which streams belong to a capture
   (ds__cpu_join_capture, ds__cpu_leave_capture). The rules and their result codes are CUDA's
   (CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture"). docs/capture.md lists
   the choices where that guide is silent.

   Invariants: a stream is in the list `members` of a capture exactly while its `capture` is that
   capture. The `watch` of a stream is 1 while the stream captures. The `watch` of a legacy
   stream is the number of blocking streams of its device that capture. `deps` are the nodes that
   the next captured operation of the stream depends on.
   Locks: all state of captures is under the core's capture lock: a stream's capture and nodes,
   and an event's nodes. The entries take it, the helper functions expect it. A submission reads
   `watch` without the lock, and takes the lock only if `watch` is not 0. The program's allocator
   may run under it.
   Threads: caller's threads. ds__cpu_watched may be called from any thread. */

static inline int ds__cpu_watched(const ds__cpu_stream *s) {
    return DS__UNLIKELY(atomic_load_explicit(&s->watch, memory_order_relaxed) != 0) ? 1 : 0;
}

static const char *const ds__cpu_implicit =
    "the legacy stream cannot be used while a blocking stream of its device captures";

/* How many blocking streams capture; the lock is held. */
static void ds__cpu_watch_legacy(int device, int more) {
    ds__cpu_device *d = &ds__cpu.device[device];
    d->capturing += more;
    if (d->legacy)
        atomic_store(&d->legacy->watch, d->capturing);
}

/* The stream's nodes become these, or these too. 0: no memory. */
static int ds__cpu_depend(ds__cpu_stream *s, const uint32_t *deps, uint32_t count, int set) {
    uint32_t before = set ? 0 : s->dep_count;
    uint32_t *list = ds__alloc((before + count + 1) * sizeof *list);
    uint32_t n = 0;
    if (!list) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
        return 0;
    }
    for (uint32_t i = 0; i < before; i++)
        list[n++] = s->deps[i];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = 0;
        while (k < n && list[k] != deps[i])
            k++;
        if (k == n)
            list[n++] = deps[i];
    }
    ds__release(s->deps);
    s->deps = list;
    s->dep_count = n;
    return 1;
}

static void ds__cpu_join_capture(ds__cpu_stream *s, ds__capture *c) {
    s->capture = c;
    s->next_member = c->members;
    c->members = s;
    if (s->flags & DS_STREAM_BLOCKING)
        ds__cpu_watch_legacy(s->device, 1);
    atomic_store(&s->watch, 1);
}

static void ds__cpu_leave_capture(ds__cpu_stream *s) {
    s->capture = NULL;
    ds__release(s->deps);
    s->deps = NULL;
    s->dep_count = 0;
    atomic_store(&s->watch, 0);
    if (s->flags & DS_STREAM_BLOCKING)
        ds__cpu_watch_legacy(s->device, -1);
}

/* The capture is over: all its streams are as before. */
static void ds__cpu_end_capture(ds__capture *c) {
    for (ds__cpu_stream *s = c->members; s;) {
        ds__cpu_stream *next = s->next_member;
        ds__cpu_leave_capture(s);
        s = next;
    }
    c->members = NULL;
    ds__capture_unlist(c);
}

static void ds__cpu_capture_abandon(ds__capture *c) {
    ds__lock_take(&ds__g.capture_lock);
    ds__cpu_end_capture(c);
    ds__lock_give(&ds__g.capture_lock);
}

static ds_result ds__cpu_capture_begin(void *stream, ds__capture *c, const uint32_t *deps,
                                       size_t count) {
    ds__cpu_stream *s = stream;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (f)
        return ds__cpu_report(f);
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "the legacy stream cannot capture; use another stream");
    ds_result r = DS_OK;
    ds__lock_take(&ds__g.capture_lock);
    if (s->capture) {
        r = ds__capture_fail(DS_ERR_ILLEGAL_STATE, s->capture, 0, "the stream captures already");
    } else if (!ds__cpu_depend(s, deps, (uint32_t)count, 1)) {
        r = DS_ERR_OUT_OF_MEMORY;
    } else {
        c->origin = s;
        ds__capture_list(c);
        ds__cpu_join_capture(s, c);
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* What the origin does not come to: a node at the end of a stream that was not joined.
   UINT32_MAX: all are; *out_r may be an error. */
static uint32_t ds__cpu_unjoined(const ds__capture *c, ds_result *out_r) {
    const ds__cpu_stream *origin = c->origin;
    uint32_t found = UINT32_MAX;
    unsigned char *mark = ds__alloc(c->body->count + 1u);
    if (!mark || !ds__body_ancestors(c->body, origin->deps, origin->dep_count, mark))
        *out_r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to end a capture");
    else
        for (const ds__cpu_stream *s = c->members; s && found == UINT32_MAX; s = s->next_member)
            for (uint32_t i = 0; i < s->dep_count && found == UINT32_MAX; i++)
                if (!mark[s->deps[i]])
                    found = s->deps[i];
    ds__release(mark);
    return found;
}

static ds_result ds__cpu_end_checked(ds__cpu_stream *s, ds__capture *c, ds__capture **out) {
    ds_result r = DS_OK;
    if (c->origin != s)
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNMATCHED, c, c->status == DS_CAPTURE_ACTIVE,
            "a capture ends on the stream where it began, not on one that was forked into it");
    if (c->mode != DS_CAPTURE_RELAXED && c->thread != ds__thread_number())
        return ds__capture_fail(
            DS_ERR_CAPTURE_WRONG_THREAD, c, 0,
            "only the thread that began the capture may end it, unless it is relaxed");
    if (c->status == DS_CAPTURE_INVALIDATED) {
        r = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, c, 0, "");
    } else {
        uint32_t node = ds__cpu_unjoined(c, &r);
        if (node != UINT32_MAX) {
            char text[160];
            char rule[320];
            const ds__op *op = &c->body->node[node]->op;
            snprintf(rule, sizeof rule,
                     "a stream that was forked into the capture was not joined: nothing that the "
                     "end waits for comes after %s, captured at %s:%u",
                     ds__node_print(c->body, node, text, sizeof text), ds__short_path(op->file),
                     (unsigned)op->line);
            r = ds__capture_fail(DS_ERR_CAPTURE_UNJOINED, c, 1, rule);
        }
    }
    ds__cpu_end_capture(c);
    *out = c;
    return r;
}

static ds_result ds__cpu_capture_end(void *stream, ds__capture **out) {
    ds__cpu_stream *s = stream;
    ds__lock_take(&ds__g.capture_lock);
    ds_result r = s->capture ? ds__cpu_end_checked(s, s->capture, out)
                             : ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* Every open capture with a blocking stream on the device is spoiled (spoils), or only named.
   The lock is held. */
static ds_result ds__cpu_legacy_used(int device, int spoils) {
    ds_result r = DS_OK;
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        int member = 0;
        if (c->driver->type != DS_DEVICE_CPU)
            continue;
        for (const ds__cpu_stream *s = c->members; s; s = s->next_member)
            member |= s->device == device && (s->flags & DS_STREAM_BLOCKING) != 0;
        if (!member)
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(DS_ERR_CAPTURE_IMPLICIT, c,
                                 spoils && c->status == DS_CAPTURE_ACTIVE, ds__cpu_implicit);
        else if (spoils)
            ds__capture_spoil(c, ds__cpu_implicit);
    }
    return r;
}

static ds_result ds__cpu_capture_query(void *stream, ds_capture_info *out) {
    const ds__cpu_stream *s = stream;
    ds_result r = DS_OK;
    if (!ds__cpu_watched(s))
        return DS_OK;
    ds__lock_take(&ds__g.capture_lock);
    const ds__capture *c = s->capture;
    if (s->kind == DS__STREAM_LEGACY) {
        r = ds__cpu_legacy_used(s->device, 0);
    } else if (c) {
        out->status = c->status;
        if (c->status == DS_CAPTURE_ACTIVE) {
            out->mode = c->mode;
            out->id = c->id;
            out->graph = c->graph;
            out->begun = c->begun;
            out->dependency_count = s->dep_count;
        }
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* The capture of a stream that must be active. The lock is held. */
static ds_result ds__cpu_active(const ds__cpu_stream *s, ds__capture **out) {
    *out = s->capture;
    if (!s->capture)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    return s->capture->status == DS_CAPTURE_ACTIVE
               ? DS_OK
               : ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
}

static ds_result ds__cpu_capture_dependencies(void *stream, ds_graph_node *out, size_t room,
                                              size_t *out_count) {
    const ds__cpu_stream *s = stream;
    ds__capture *c;
    ds__lock_take(&ds__g.capture_lock);
    ds_result r = ds__cpu_active(s, &c);
    if (r == DS_OK) {
        *out_count = s->dep_count;
        for (uint32_t i = 0; i < s->dep_count && i < room; i++)
            out[i].id = (uint64_t)c->body->serial << 32 | (s->deps[i] + 1u);
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

static ds_result ds__cpu_capture_update(void *stream, const ds_graph_node *nodes, size_t count,
                                        int set) {
    ds__cpu_stream *s = stream;
    ds__capture *c;
    uint32_t *list = ds__alloc((count + 1) * sizeof *list);
    if (!list)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu nodes", count);
    ds__lock_take(&ds__g.capture_lock);
    ds_result r = ds__cpu_active(s, &c);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        list[i] = (uint32_t)nodes[i].id - 1;
        if (!nodes[i].id || nodes[i].id >> 32 != c->body->serial || list[i] >= c->body->count)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "node %zu does not belong to the graph that is being captured", i);
    }
    if (r == DS_OK && !ds__cpu_depend(s, list, (uint32_t)count, set))
        r = DS_ERR_OUT_OF_MEMORY;
    ds__lock_give(&ds__g.capture_lock);
    ds__release(list);
    return r;
}

/* cpu/capture_op.h - stream work and forbidden calls during a capture.

   Decides the effect of an operation on a capturing stream: a node, a dependency or an error
   (ds__cpu_capture_op). Brings further streams into a capture (ds__cpu_fork_event,
   ds__cpu_fork_stream). Refuses calls that an open capture forbids (ds__cpu_unsafe,
   ds__cpu_unsafe_wait).

   Invariants: an operation on a capturing stream never enters a queue. If it cannot become a
   node, the graph and the stream's nodes are unchanged. An event recorded in a capture stands
   for nodes and keeps its own copy of their list. A call that invalidates a capture is named in
   the later errors of that capture.
   Locks: the core's capture lock, then an event's lock. ds__cpu_fork, ds__cpu_capture_op and its
   steps expect the capture lock, the other functions take it. The registries' mutex
   (ds__cpu_event_look) is taken and released before. ds__capture_over runs after the lock is
   released.
   Threads: caller's threads, any number at once. */

/* the core keeps it */
static ds_result ds__cpu_capture_mode(ds_capture_mode mode) {
    (void)mode;
    return DS_OK;
}

/* Calls that a capture forbids in other streams and threads. */
static ds_result ds__cpu_unsafe(const char *rule) {
    if (ds__cpu.is_lax)
        return DS_OK;
    return ds__capture_guard(&ds__cpu_driver, rule);
}

/* Waiting for a device on which something captures cannot end: nothing of it runs. */
static ds_result ds__cpu_unsafe_wait(int device) {
    ds_result r = ds__cpu_unsafe(
        "waiting for a device is not allowed in this thread while the capture is open");
    if (DS__LIKELY(ds__captures_open() == 0))
        return r;
    ds__lock_take(&ds__g.capture_lock);
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        int member = 0;
        if (c->driver->type != DS_DEVICE_CPU)
            continue;
        for (const ds__cpu_stream *s = c->members; s; s = s->next_member)
            member |= s->device == device;
        if (!member)
            continue;
        if (r == DS_OK)
            r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, c->status == DS_CAPTURE_ACTIVE,
                                 "a device cannot be waited for while a stream of it captures");
        else
            ds__capture_spoil(c, "a device cannot be waited for while a stream of it captures");
    }
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* Asking or waiting for a stream that captures, or for the legacy stream beside one. DS_OK: it
   is over by now. */
static ds_result ds__cpu_asked(const ds__cpu_stream *s, const char *rule) {
    ds_result r = DS_OK;
    ds__lock_take(&ds__g.capture_lock);
    if (s->kind == DS__STREAM_LEGACY)
        r = ds__cpu_legacy_used(s->device, 1);
    else if (s->capture && s->capture->status == DS_CAPTURE_ACTIVE)
        r = ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, s->capture, 1, rule);
    else if (s->capture)
        r = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* An event that was recorded in a capture; e's number is `capture`. */
static ds_result ds__cpu_captured(uint64_t capture, int spoils, const char *rule) {
    ds_result r;
    ds__lock_take(&ds__g.capture_lock);
    ds__capture *c = ds__capture_find(&ds__cpu_driver, capture);
    if (c)
        r = ds__capture_fail(DS_ERR_CAPTURED_EVENT, c, spoils && c->status == DS_CAPTURE_ACTIVE,
                             rule);
    else
        r = ds__fail(DS_ERR_CAPTURED_EVENT,
                     "the event was recorded in capture #%llu, which is over, and nothing ran "
                     "there; record it again",
                     (unsigned long long)capture);
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

/* Puts an operation into the graph; it becomes the one that the stream's next one depends on.
   The lock is held. */
static ds_result ds__cpu_capture_node(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    ds_device device = { DS_DEVICE_CPU, s->device };
    ds__node *n = ds__node_make(op, device, s->level + 1 - DS__CPU_LEVELS);
    ds_result r = n ? ds__body_append(c->body, n, s->deps, s->dep_count) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0) {
        ds__node_discard(n);
        return r;
    }
    uint32_t index = c->body->count - 1;
    if (ds__cpu_depend(s, &index, 1, 1))
        return DS_OK;
    c->body->count--;
    ds__node_discard(n);
    return DS_ERR_OUT_OF_MEMORY;
}

/* A stream of the capture waits for nodes of `capture`; the lock is held. */
static ds_result ds__cpu_capture_wait(ds__cpu_stream *s, ds__capture *c, ds__capture *other,
                                      const uint32_t *deps, uint32_t count) {
    if (other == c)
        return ds__cpu_depend(s, deps, count, 0) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    ds_result r =
        ds__capture_fail(DS_ERR_CAPTURE_MERGE, c, 1,
                         "a stream cannot wait for another capture, that would merge the two");
    ds__capture_spoil(
        other, "a stream of another capture cannot wait for this one, that would merge the two");
    return r;
}

static ds_result ds__cpu_capture_wait_event(ds__cpu_stream *s, ds__capture *c, ds__cpu_event *e) {
    ds__lock_take(&e->lock);
    uint64_t id = e->capture;
    int recorded = e->stream != NULL;
    ds__lock_give(&e->lock); /* an event's nodes change under the capture lock only */
    if (!id)
        return recorded ? ds__capture_fail(DS_ERR_CAPTURE_ISOLATION, c, 1,
                                           "the event was recorded outside of the capture; "
                                           "ds_stream_wait_event_external makes it a node")
                        : DS_OK;
    ds__capture *other = ds__capture_find(&ds__cpu_driver, id);
    if (!other)
        return ds__capture_fail(DS_ERR_CAPTURED_EVENT, c, 1,
                                "the event was recorded in another capture, which is over");
    return ds__cpu_capture_wait(s, c, other, e->deps, e->dep_count);
}

static ds_result ds__cpu_capture_wait_stream(ds__cpu_stream *s, ds__capture *c,
                                             ds__cpu_stream *other) {
    if (other == s)
        return DS_OK;
    if (other->kind == DS__STREAM_LEGACY && ds__cpu_watched(other))
        return ds__cpu_legacy_used(other->device, 1);
    if (!other->capture)
        return ds__capture_fail(DS_ERR_CAPTURE_ISOLATION, c, 1,
                                "the other stream does not capture, and captured work cannot wait "
                                "for work outside of the capture");
    return ds__cpu_capture_wait(s, c, other->capture, other->deps, other->dep_count);
}

/* The event stands for the stream's nodes; no node is made. */
static ds_result ds__cpu_capture_record(const ds__cpu_stream *s, const ds__capture *c,
                                        ds__cpu_event *e) {
    uint32_t *deps = ds__alloc((s->dep_count + 1u) * sizeof *deps);
    if (!deps)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
    if (s->dep_count)
        memcpy(deps, s->deps, s->dep_count * sizeof *deps);
    ds__lock_take(&e->lock);
    ds__cpu_stamp *stamp = e->stamp;
    uint32_t *old = e->deps;
    e->capture = c->id;
    e->deps = deps;
    e->dep_count = s->dep_count;
    e->stream = NULL;
    e->stamp = NULL;
    ds__lock_give(&e->lock);
    ds__cpu_stamp_give(stamp);
    ds__release(old);
    return DS_OK;
}

static const char *const ds__cpu_unpinned =
    "pageable memory would be touched at each launch; use ds_host_alloc, ds_host_register, or "
    "DS_COPY_HOST_STABLE if it stays where it is";

/* The table of what an operation does on a stream that captures. The lock is held. */
static ds_result ds__cpu_capture_op(ds__cpu_stream *s, ds__capture *c, const ds__op *op) {
    switch (op->kind) {
    case DS__OP_KERNEL:
        if (!op->u.kernel.kernel->cpu_fn)
            return ds__cpu_kernel_load(0, op->u.kernel.kernel);
        if (op->u.kernel.kernel->ours)
            return ds__capture_fail(
                DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
                "a copy between devices of different drivers cannot be captured");
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (ds__place_of(op, DS__OP_DST) == DS__AT_PAGEABLE ||
            (op->kind == DS__OP_COPY && ds__place_of(op, DS__OP_SRC) == DS__AT_PAGEABLE))
            return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0, ds__cpu_unpinned);
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_HOST:
    case DS__OP_GRAPH:
    case DS__OP_EXTERNAL_RECORD:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cpu_capture_node(s, c, op);
    case DS__OP_RECORD:
        return ds__cpu_capture_record(s, c, op->u.event.event);
    case DS__OP_WAIT:
        return ds__cpu_capture_wait_event(s, c, op->u.event.event);
    case DS__OP_WAIT_STREAM:
        return ds__cpu_capture_wait_stream(s, c, op->u.wait.stream);
    case DS__OP_FREE:
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
            "memory of the driver's own allocator cannot come or go on a stream that captures");
    case DS__OP_CALLBACK:
        return ds__capture_fail(
            DS_ERR_CAPTURE_UNSUPPORTED, c, 1,
            "a callback with a status cannot be captured; ds_launch_host_func can");
    default:
        return ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0,
                                "an executable cannot be uploaded on a stream that captures");
    }
}

/* 1: the stream captures, or may not be used beside one that does; *out is the result. 0: it
   does not any more. */
static int ds__cpu_submit_captured(ds__cpu_stream *s, const ds__op *op, ds_result *out) {
    int handled = 1;
    if (op->kind == DS__OP_WAIT && (*out = ds__cpu_event_look(op->u.event.event, 0)) < 0)
        return 1;
    ds__lock_take(&ds__g.capture_lock);
    if (s->kind == DS__STREAM_LEGACY)
        handled = (*out = ds__cpu_legacy_used(s->device, 1)) < 0;
    else if (!s->capture)
        handled = 0;
    else if (s->capture->status != DS_CAPTURE_ACTIVE)
        *out = ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, s->capture, 0, "");
    else if (ds__op_changed(op, s->capture->id))
        *out = DS__CHANGED;
    else
        *out = ds__cpu_capture_op(s, s->capture, op);
    ds__lock_give(&ds__g.capture_lock);
    return handled;
}

/* A stream that does not capture waits for captured work, and so comes into the capture. The
   lock is held. */
static ds_result ds__cpu_fork(ds__cpu_stream *s, ds__capture *c, const uint32_t *deps,
                              uint32_t count) {
    if (c->status != DS_CAPTURE_ACTIVE)
        return ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, c, 0, "");
    if (s->kind == DS__STREAM_LEGACY)
        return ds__capture_fail(DS_ERR_CAPTURE_IMPLICIT, c, 1,
                                "the legacy stream cannot wait for captured work");
    if (s->capture)
        return ds__cpu_capture_wait(s, s->capture, c, deps, count);
    if (!ds__cpu_depend(s, deps, count, 1))
        return DS_ERR_OUT_OF_MEMORY;
    ds__cpu_join_capture(s, c);
    return DS_OK;
}

/* e was recorded in a capture when it was looked at. 0: it was recorded anew meanwhile. */
static int ds__cpu_fork_event(ds__cpu_stream *s, ds__cpu_event *e, ds_result *out) {
    ds__lock_take(&ds__g.capture_lock);
    ds__lock_take(&e->lock);
    uint64_t id = e->capture;
    ds__lock_give(&e->lock);
    ds__capture *c = id ? ds__capture_find(&ds__cpu_driver, id) : NULL;
    if (c)
        *out = ds__cpu_fork(s, c, e->deps, e->dep_count);
    ds__lock_give(&ds__g.capture_lock);
    if (id && !c)
        *out = ds__cpu_captured(id, 0, "");
    return id != 0;
}

static int ds__cpu_fork_stream(ds__cpu_stream *s, ds__cpu_stream *other, ds_result *out) {
    ds__lock_take(&ds__g.capture_lock);
    ds__capture *c = other->capture;
    int handled = 1;
    if (other->kind == DS__STREAM_LEGACY)
        handled = (*out = ds__cpu_legacy_used(other->device, 1)) < 0;
    else if (c)
        *out = ds__cpu_fork(s, c, other->deps, other->dep_count);
    else
        handled = 0;
    ds__lock_give(&ds__g.capture_lock);
    return handled;
}

/* A stream that captures is destroyed: the capture is over if it began there, else it is
   spoiled. */
static void ds__cpu_destroy_captured(ds__cpu_stream *s) {
    ds__capture *over = NULL;
    ds__lock_take(&ds__g.capture_lock);
    ds__capture *c = s->capture;
    if (c && c->origin == s) {
        ds__cpu_end_capture(c);
        over = c;
    } else if (c) {
        ds__capture_spoil(c, "a stream that was forked into the capture was destroyed");
        ds__cpu_stream *before = c->members;
        if (before == s)
            c->members = s->next_member;
        else {
            while (before->next_member != s)
                before = before->next_member;
            before->next_member = s->next_member;
        }
        ds__cpu_leave_capture(s);
    }
    ds__lock_give(&ds__g.capture_lock);
    if (over)
        ds__capture_over(over, 1);
}

/* cpu/graph_plan.h - layout of executables: lanes and entries.

   Divides the nodes of a graph into lanes (ds__cpu_lay_out) and creates the lanes' streams
   (ds__cpu_make_lanes). Defines the executable (ds__cpu_exec), the plan and the launch.

   Policy:
   1. An executable is a set of lanes. A lane is a chain of nodes, each of which depends on the
      one before.
   2. A lane is a stream. No producer fills its queue: the operations are ready in memory, the
      plan.
   3. A dependency between lanes is a wait for a number of the other lane, as between any
      streams. Workers, priorities, host functions, failures and helping host threads treat lanes
      as streams.
   4. A launch is one operation of the user's stream. It waits for its turn at the executable,
      starts the lanes, runs the first lane itself where that is allowed, and waits for all. The
      gate counts completed launches.
   5. A change of the executable makes a new plan. Pending launches keep theirs.
   6. A graph of one chain therefore costs as much as its operations, without the queue.

   Invariants: the nodes of a lane have one device and one priority. Entries are in topological
   order, so a lane waits only for an earlier entry of another lane. Numbers count the operations
   of a lane in one launch from 1, waits included. `flat` has the order of ds__cpu_flatten, which
   ds__cpu_regather repeats.
   Locks: expects none: no other thread knows the executable yet. ds__cpu_make_lanes takes
   `object_lock` and the device's lock.
   Threads: the thread that instantiates the graph. ds__cpu_lane_end may be called from any
   thread. */

typedef struct ds__cpu_plan {
    _Atomic int users;
    uint32_t lanes;
    size_t objects;
    ds__object **object;    /* what host functions get */
    ds__cpu_block *block[]; /* each lane's operations, in one piece */
} ds__cpu_plan;

/* A node of the graph, of its children too, and where it runs. */
typedef struct ds__cpu_flat {
    const ds__node *node;
    uint32_t *deps;
    uint32_t dep_count;
    uint32_t dep_room;
    uint32_t lane;
    uint32_t number;
    uint32_t level;
    uint32_t left; /* while they are sorted */
    uint32_t next; /* while they are sorted */
} ds__cpu_flat;

/* A step of a lane: a wait for another lane (flat UINT32_MAX) or a node. */
typedef struct ds__cpu_entry {
    uint32_t lane;
    uint32_t flat;
    uint32_t on;
    uint32_t upto;
} ds__cpu_entry;

typedef struct ds__cpu_exec {
    _Atomic int users;    /* the owner, and launches on their way */
    const ds__body *body; /* the core's; not looked at once the owner is gone */
    unsigned flags;
    int dirty; /* the plan is not that of the body any more */
    int hosts; /* there are host functions */
    uint32_t flats;
    uint32_t flat_room;
    uint32_t lanes;
    uint32_t entries;
    uint32_t entry_room;
    ds__cpu_flat *flat;
    ds__cpu_entry *entry;
    ds__cpu_stream **lane;
    ds__cpu_stream *gate;
    uint64_t *base;       /* of each lane: the number before the first launch */
    uint64_t gate_base;   /* of the gate: the number before the first launch */
    uint32_t *operations; /* of each lane, in one launch */
    uint32_t records;     /* event nodes that record */
    uint32_t waits;       /* event nodes that wait */
    uint64_t launches;
    ds__cpu_plan *plan;
} ds__cpu_exec;

/* One launch. */
typedef struct ds__cpu_launch {
    ds__cpu_exec *exec;
    ds__cpu_plan *plan;
    uint64_t ticket;
    uint32_t next; /* lanes before it are done */
    int started;
    ds__cpu_stamp **stamp; /* of record nodes with timing */
    /* of record nodes whose events processes share; NULL: there are none */
    ds__cpu_lane **shared;
    ds__cpu_token *token; /* what wait nodes wait for */
} ds__cpu_launch;

static uint64_t ds__cpu_lane_end(const ds__cpu_exec *x, uint32_t lane, uint64_t ticket) {
    return x->base[lane] + (ticket + 1) * x->operations[lane];
}

static int ds__cpu_flat_depend(ds__cpu_exec *x, uint32_t flat, uint32_t on) {
    ds__cpu_flat *f = &x->flat[flat];
    if (!ds__room(&f->deps, sizeof *f->deps, f->dep_count, &f->dep_room))
        return 0;
    f->deps[f->dep_count++] = on;
    return 1;
}

/* Adds the nodes of a body, whose roots come after flat node `after` (UINT32_MAX: none). A
   child's own node comes after all of the child's. */
static int ds__cpu_flatten(ds__cpu_exec *x, const ds__body *b, uint32_t after) {
    uint32_t first = x->flats;
    for (uint32_t i = 0; i < b->count; i++) {
        if (!ds__room(&x->flat, sizeof *x->flat, x->flats, &x->flat_room))
            return 0;
        memset(&x->flat[x->flats], 0, sizeof *x->flat);
        x->flat[x->flats++].node = b->node[i];
    }
    for (uint32_t i = 0; i < b->count; i++) {
        const ds__node *n = b->node[i];
        uint32_t own = first + i;
        uint32_t begin = own;
        /* another node before the child's, which its roots come after */
        if (n->child && n->child->count) {
            begin = x->flats;
            if (!ds__room(&x->flat, sizeof *x->flat, x->flats, &x->flat_room))
                return 0;
            memset(&x->flat[x->flats++], 0, sizeof *x->flat);
        }
        for (uint32_t k = 0; k < n->dep_count; k++)
            if (!ds__cpu_flat_depend(x, begin, first + n->deps[k]))
                return 0;
        if (!n->dep_count && after != UINT32_MAX && !ds__cpu_flat_depend(x, begin, after))
            return 0;
        if (begin == own)
            continue;
        uint32_t inside = x->flats;
        if (!ds__cpu_flatten(x, n->child, begin))
            return 0;
        for (uint32_t k = 0; k < n->child->count; k++)
            if (!ds__cpu_flat_depend(x, own, inside + k))
                return 0;
    }
    return 1;
}

/* Sorts the flat nodes so that each comes after those it depends on; *out_order is the caller's. */
static int ds__cpu_sort(ds__cpu_exec *x, uint32_t **out_order) {
    uint32_t *start = ds__alloc((x->flats + 2u) * sizeof *start);
    uint32_t edges = 0;
    uint32_t *order = ds__alloc((x->flats + 1u) * sizeof *order);
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->flats; i++)
        edges += x->flat[i].dep_count;
    uint32_t *successor = ds__alloc((edges + 1u) * sizeof *successor);
    *out_order = order;
    if (start && order && successor) {
        for (uint32_t i = 0; i < x->flats; i++) {
            x->flat[i].left = x->flat[i].dep_count;
            for (uint32_t k = 0; k < x->flat[i].dep_count; k++)
                start[x->flat[i].deps[k] + 2]++;
        }
        for (uint32_t i = 2; i < x->flats + 2; i++)
            start[i] += start[i - 1];
        for (uint32_t i = 0; i < x->flats; i++)
            for (uint32_t k = 0; k < x->flat[i].dep_count; k++)
                successor[start[x->flat[i].deps[k] + 1]++] = i;
        for (uint32_t i = 0; i < x->flats; i++)
            if (x->flat[i].left == 0)
                order[n++] = i;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = start[order[i]]; k < start[order[i] + 1]; k++)
                if (--x->flat[successor[k]].left == 0)
                    order[n++] = successor[k];
    }
    ds__release(start);
    ds__release(successor);
    return n == x->flats && start && order && successor;
}

static int ds__cpu_step_add(ds__cpu_exec *x, uint32_t lane, uint32_t flat, uint32_t on,
                            uint32_t upto) {
    if (!ds__room(&x->entry, sizeof *x->entry, x->entries, &x->entry_room))
        return 0;
    x->entry[x->entries++] = (ds__cpu_entry){ lane, flat, on, upto };
    x->operations[lane]++;
    return 1;
}

static int ds__cpu_flat_device(const ds__cpu_exec *x, const ds__cpu_flat *f) {
    return f->node ? f->node->device.index : x->body->device.index;
}

/* A node goes on the lane that ends with one it depends on, if that one is of the same device
   and priority; else it begins a lane. `tail`: the last node of each lane. `seen`: the highest
   number awaited of each lane, and for which node. */
static int ds__cpu_place(ds__cpu_exec *x, uint32_t flat, uint32_t *tail, uint64_t *seen) {
    ds__cpu_flat *f = &x->flat[flat];
    uint32_t lane = x->lanes;
    for (uint32_t k = 0; k < f->dep_count && lane == x->lanes; k++) {
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        if (tail[d->lane] == f->deps[k] && d->level == f->level &&
            ds__cpu_flat_device(x, d) == ds__cpu_flat_device(x, f))
            lane = d->lane;
    }
    if (lane == x->lanes)
        x->operations[x->lanes++] = 0;
    for (uint32_t k = 0; k < f->dep_count; k++) { /* the latest of each lane */
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        uint64_t mark = (uint64_t)(flat + 1) << 32 | d->number;
        if (d->lane != lane && (seen[d->lane] >> 32 != flat + 1u || seen[d->lane] < mark))
            seen[d->lane] = mark;
    }
    for (uint32_t k = 0; k < f->dep_count; k++) {
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        if (d->lane == lane || seen[d->lane] != ((uint64_t)(flat + 1) << 32 | d->number))
            continue;
        if (!ds__cpu_step_add(x, lane, UINT32_MAX, d->lane, d->number))
            return 0;
    }
    if (!ds__cpu_step_add(x, lane, flat, 0, 0))
        return 0;
    f->lane = lane;
    f->number = x->operations[lane];
    tail[lane] = flat;
    return 1;
}

static int ds__cpu_lay_out(ds__cpu_exec *x) {
    uint32_t *order = NULL;
    uint32_t *tail = NULL;
    uint64_t *seen = NULL;
    int done = ds__cpu_flatten(x, x->body, UINT32_MAX) && ds__cpu_sort(x, &order);
    if (done) {
        tail = ds__alloc((x->flats + 1u) * sizeof *tail);
        seen = ds__alloc((x->flats + 1u) * sizeof *seen);
        x->operations = ds__alloc((x->flats + 1u) * sizeof *x->operations);
        done = tail && seen && x->operations;
    }
    for (uint32_t i = 0; i < x->flats && done; i++) {
        ds__cpu_flat *f = &x->flat[order[i]];
        const ds__node *n = f->node;
        f->level = (uint32_t)((x->flags & DS_GRAPH_USE_NODE_PRIORITY) && n
                                  ? ds__cpu_clamp(n->priority) + DS__CPU_LEVELS - 1
                                  : DS__CPU_LEVELS - 1);
        if (n && n->kind == DS_NODE_HOST)
            x->hosts = 1;
        x->records += n && n->kind == DS_NODE_EVENT_RECORD;
        x->waits += n && n->kind == DS_NODE_EVENT_WAIT;
        done = ds__cpu_place(x, order[i], tail, seen);
    }
    for (uint32_t i = 0; i < x->flats; i++) {
        ds__release(x->flat[i].deps);
        x->flat[i].deps = NULL;
    }
    ds__release(order);
    ds__release(tail);
    ds__release(seen);
    return done;
}

static int ds__cpu_make_lanes(ds__cpu_exec *x) {
    x->lane = ds__alloc((x->lanes + 1u) * sizeof *x->lane);
    x->base = ds__alloc((x->lanes + 1u) * sizeof *x->base);
    if (!x->lane || !x->base)
        return 0;
    for (uint32_t i = 0; i < x->flats; i++) {
        const ds__cpu_flat *f = &x->flat[i];
        if (x->lane[f->lane])
            continue;
        if (!(x->lane[f->lane] = ds__cpu_stream_make(ds__cpu_flat_device(x, f), DS__STREAM_LANE, 0,
                                                     (int)f->level + 1 - DS__CPU_LEVELS)))
            return 0;
        x->base[f->lane] = atomic_load(&x->lane[f->lane]->submitted);
    }
    if (!(x->gate = ds__cpu_stream_make(x->body->device.index, DS__STREAM_LANE, 0, 0)))
        return 0;
    /* who emptied the stream that it was before may still have a last look at it */
    uint32_t idle = DS__CPU_IDLE;
    while (!atomic_compare_exchange_strong(&x->gate->state, &idle, DS__CPU_COUNTS)) {
        idle = DS__CPU_IDLE;
        ds__pause();
    }
    x->gate_base = atomic_load(&x->gate->submitted);
    return 1;
}

/* cpu/graph.h - executables and their plans.

   Creates an executable from the nodes of a graph (ds__cpu_graph_instantiate), writes its plan
   (ds__cpu_plan_make), and frees both. The core keeps the shadow graph (ds__body), so entries
   that change a graph do nothing. A change of an executable drops its plan.

   Invariants: a plan does not change once it is made. It lives until the executable and all
   launches have dropped it, and keeps the payloads of its nodes alive. `dirty` is set after a
   change, until the next launch or upload makes a plan. Event nodes are numbered in the order of
   the entries, which ds__cpu_launch_events repeats.
   Locks: takes none itself. The core's lock of the executable orders changes, uploads and
   launches. Dropping a plan under that lock runs no destructor of the user, because the shadow
   graph still owns the payloads.
   Threads: caller's threads. The last reference to a plan or an executable may be dropped by the
   owner of a launching stream, also a worker; payload destructors then run there. */

static void ds__cpu_plan_drop(ds__cpu_plan *p) {
    if (!p || atomic_fetch_sub(&p->users, 1) != 1)
        return;
    for (size_t i = 0; i < p->objects; i++)
        ds__object_drop(p->object[i]);
    for (uint32_t i = 0; i < p->lanes; i++)
        ds__release(p->block[i]);
    ds__release(p->object);
    ds__release(p);
}

/* The operation of a node as a lane has it, without a kernel's arguments. */
static void ds__cpu_lane_op(const ds__cpu_flat *f, uint32_t *records, uint32_t *waits,
                            ds__op *out) {
    const ds__node *n = f->node;
    memset(out, 0, sizeof *out);
    out->kind = DS__OP_NOTHING;
    if (!n)
        return;
    int enabled = n->enabled;
    switch (n->kind) {
    case DS_NODE_KERNEL:
    case DS_NODE_COPY:
    case DS_NODE_FILL:
    case DS_NODE_HOST:
        if (enabled)
            *out = n->op;
        break;
    case DS_NODE_EVENT_RECORD:
        out->kind = DS__OP_NODE_RECORD;
        out->u.wait.upto = (*records)++;
        break;
    case DS_NODE_EVENT_WAIT:
        out->kind = DS__OP_NODE_WAIT;
        out->u.wait.upto = (*waits)++;
        break;
    default:
        break;
    }
}

/* Looks the nodes up again, in the order of ds__cpu_flatten. */
static void ds__cpu_regather(ds__cpu_exec *x, const ds__body *b, uint32_t *at) {
    for (uint32_t i = 0; i < b->count; i++)
        x->flat[(*at)++].node = b->node[i];
    for (uint32_t i = 0; i < b->count; i++) {
        if (!b->node[i]->child || !b->node[i]->child->count)
            continue;
        ++*at; /* the one before the child's */
        ds__cpu_regather(x, b->node[i]->child, at);
    }
}

static size_t ds__cpu_objects_of(const ds__body *b, ds__object **out) {
    size_t n = 0;
    for (size_t i = 0; i < b->object_count; i++, n++)
        if (out)
            out[n] = ds__object_keep(b->object[i]);
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->node[i]->payload && out)
            out[n] = ds__object_keep(b->node[i]->payload);
        n += b->node[i]->payload != NULL;
        if (b->node[i]->child)
            n += ds__cpu_objects_of(b->node[i]->child, out ? out + n : NULL);
    }
    return n;
}

/* Writes the operations of all lanes (write), or only adds up their bytes. */
static void ds__cpu_plan_fill(ds__cpu_exec *x, ds__cpu_plan *p, size_t *at, int write) {
    uint32_t records = 0;
    uint32_t waits = 0;
    for (uint32_t i = 0; i < x->entries; i++) {
        const ds__cpu_entry *e = &x->entry[i];
        ds__op op;
        if (e->flat == UINT32_MAX) {
            memset(&op, 0, sizeof op);
            op.kind = DS__OP_LANE_WAIT;
            op.u.wait.stream = x->lane[e->on];
            op.u.wait.upto = e->upto;
        } else {
            ds__cpu_lane_op(&x->flat[e->flat], &records, &waits, &op);
        }
        size_t bytes = ds__cpu_op_bytes(&op);
        if (write) {
            char *to = (char *)p->block[e->lane] + offsetof(ds__cpu_block, data) + at[e->lane];
            memcpy(to, &op,
                   op.kind == DS__OP_KERNEL ? DS__CPU_ARGS_AT
                   : bytes < sizeof op      ? bytes
                                            : sizeof op);
            if (op.kind == DS__OP_KERNEL && op.u.kernel.args_size)
                memcpy(to + DS__CPU_ARGS_AT, op.u.kernel.args, op.u.kernel.args_size);
        }
        at[e->lane] += bytes;
    }
}

static ds_result ds__cpu_plan_make(ds__cpu_exec *x) {
    uint32_t flats = 0;
    ds__cpu_plan *p = ds__alloc(sizeof *p + x->lanes * sizeof p->block[0]);
    size_t *at = ds__alloc((x->lanes + 1u) * sizeof *at);
    int done = p && at;
    if (p)
        atomic_store(&p->users, 1);
    ds__cpu_regather(x, x->body, &flats);
    if (done) {
        p->lanes = x->lanes;
        ds__cpu_plan_fill(x, p, at, 0);
        for (uint32_t i = 0; i < x->lanes && done; i++) {
            if (at[i] > UINT32_MAX - 64)
                done = 0;
            else
                p->block[i] =
                    ds__alloc(offsetof(ds__cpu_block, data) + at[i] +
                              sizeof(ds__op)); /* reading an operation whole stays inside */
            done = done && p->block[i];
            at[i] = 0;
        }
        size_t objects = ds__cpu_objects_of(x->body, NULL);
        if (done && objects)
            done = (p->object = ds__alloc(objects * sizeof *p->object)) != NULL;
        if (done)
            p->objects = ds__cpu_objects_of(x->body, p->object);
        if (done)
            ds__cpu_plan_fill(x, p, at, 1);
    }
    ds__release(at);
    if (!done) {
        ds__cpu_plan_drop(p);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                        (unsigned)x->flats);
    }
    ds__cpu_plan_drop(x->plan);
    x->plan = p;
    x->dirty = 0;
    return DS_OK;
}

static void ds__cpu_exec_drop(ds__cpu_exec *x) {
    if (atomic_fetch_sub(&x->users, 1) != 1)
        return;
    for (uint32_t i = 0; x->lane && i < x->lanes; i++)
        if (x->lane[i]) {
            x->lane[i]->head = NULL;
            ds__cpu_stream_destroy(x->lane[i]);
        }
    if (x->gate) {
        atomic_store(&x->gate->state, DS__CPU_IDLE);
        ds__cpu_stream_destroy(x->gate);
    }
    ds__cpu_plan_drop(x->plan);
    for (uint32_t i = 0; i < x->flats; i++)
        ds__release(x->flat[i].deps);
    ds__release(x->flat);
    ds__release(x->entry);
    ds__release(x->lane);
    ds__release(x->base);
    ds__release(x->operations);
    ds__release(x);
}

static void ds__cpu_exec_destroy(void *exec) {
    ds__cpu_exec_drop(exec);
}

static ds_result ds__cpu_graph_instantiate(ds__body *graph, ds__body *copy, unsigned flags,
                                           void **out) {
    (void)graph;
    ds__cpu_exec *x = ds__alloc(sizeof *x);
    if (!x)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    atomic_store(&x->users, 1);
    x->body = copy;
    x->flags = flags;
    ds_result r = DS_OK;
    if (!ds__cpu_lay_out(x) || !ds__cpu_make_lanes(x))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                     (unsigned)copy->count);
    if (r == DS_OK)
        r = ds__cpu_plan_make(x);
    if (r < 0) {
        ds__cpu_exec_drop(x);
        return r;
    }
    *out = x;
    return DS_OK;
}

/* The core has the graphs themselves. */
static ds_result ds__cpu_graph_create(ds__body *body) {
    (void)body;
    return DS_OK;
}

static ds_result ds__cpu_graph_clone(ds__body *from, ds__body *to) {
    (void)from;
    (void)to;
    return DS_OK;
}

static ds_result ds__cpu_graph_add(ds__body *body, uint32_t index) {
    (void)body;
    (void)index;
    return DS_OK;
}

static ds_result ds__cpu_graph_edges(ds__body *body, const ds_graph_node *from,
                                     const ds_graph_node *to, size_t count) {
    (void)body;
    (void)from;
    (void)to;
    (void)count;
    return DS_OK;
}

static ds_result ds__cpu_graph_set(ds__body *body, uint32_t index, ds__node *fresh) {
    (void)body;
    (void)index;
    (void)fresh;
    return DS_OK;
}

static ds_result ds__cpu_graph_attach(ds__body *body, ds__object *object) {
    (void)body;
    (void)object;
    return DS_OK;
}

static void ds__cpu_graph_destroy(ds__body *body) {
    (void)body;
}

/* The core changes the body when these have returned; the next launch makes a plan of it. The
   old one goes at once, with what it keeps, unless a launch needs it. */
static ds_result ds__cpu_exec_changed(ds__cpu_exec *x) {
    ds__cpu_plan_drop(x->plan);
    x->plan = NULL;
    x->dirty = 1;
    return DS_OK;
}

static ds_result ds__cpu_exec_update(void *exec, ds__body *graph,
                                     ds_graph_update_reason *out_reason, uint32_t *out_node) {
    (void)graph;
    (void)out_reason;
    (void)out_node;
    return ds__cpu_exec_changed(exec);
}

static ds_result ds__cpu_exec_set(void *exec, uint32_t index, const ds__node *fresh) {
    (void)index;
    (void)fresh;
    return ds__cpu_exec_changed(exec);
}

static ds_result ds__cpu_exec_enable(void *exec, uint32_t index, int enabled) {
    (void)index;
    (void)enabled;
    return ds__cpu_exec_changed(exec);
}

/* cpu/graph_launch.h - launches of executables.

   Enqueues a launch as one operation (ds__cpu_submit_launch), runs it when the stream comes to
   it (ds__cpu_launch_step), and runs the operations that only lanes have (ds__cpu_lane_step).

   Invariants: launches of an executable run one at a time, in the order of their submission: the
   gate counts completed ones. Launch t uses the numbers from base + t * operations + 1 on in
   each lane. A failed submission returns both references of the stamps and all lanes of shared
   events. A failure of a lane becomes a failure of the launching stream.
   Locks: the core's lock of the executable is held around ds__cpu_submit_launch and
   ds__cpu_submit_upload. Under it the registries' mutex, the locks of events and those of a
   submission are taken, one after another. In inline mode the launch runs to its end under that
   lock, host functions on their threads included. The steps run without a lock of the driver.
   Threads: caller's threads submit. ds__cpu_launch_step and ds__cpu_lane_step run on the owner
   of the stream or lane; lanes run concurrently. */

static void ds__cpu_launch_drop(ds__cpu_launch *run) {
    ds__cpu_exec *x = run->exec;
    for (uint32_t i = 0; run->stamp && i < x->records; i++)
        ds__cpu_stamp_give(run->stamp[i]);
    ds__cpu_plan_drop(run->plan);
    ds__release(run->stamp);
    ds__release(run->shared);
    ds__release(run->token);
    ds__release(run);
    ds__cpu_exec_drop(x);
}

/* Notes what wait nodes wait for, and makes the stamps of timed records. */
static ds_result ds__cpu_launch_events(ds__cpu_launch *run) {
    const ds__cpu_exec *x = run->exec;
    uint32_t record = 0;
    uint32_t wait = 0;
    if (x->records && !(run->stamp = ds__alloc(x->records * sizeof *run->stamp)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    if (x->waits && !(run->token = ds__alloc(x->waits * sizeof *run->token)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    /* in the order of ds__cpu_plan_fill, which numbers them */
    for (uint32_t i = 0; i < x->entries; i++) {
        const ds__node *n = x->entry[i].flat == UINT32_MAX ? NULL : x->flat[x->entry[i].flat].node;
        if (!n || (n->kind != DS_NODE_EVENT_RECORD && n->kind != DS_NODE_EVENT_WAIT))
            continue;
        ds__cpu_event *e = n->op.u.event.event;
        ds_result r = n->kind == DS_NODE_EVENT_WAIT ? ds__cpu_event_look(e, 1) : DS_OK;
        if (r < 0)
            return r;
        ds__lock_take(&e->lock);
        uint64_t capture = e->capture;
        ds__cpu_token t = { e->stream, e->upto };
        ds__lock_give(&e->lock);
        if (n->kind == DS_NODE_EVENT_RECORD) {
            if ((e->flags & DS_EVENT_TIMING) && !(run->stamp[record] = ds__cpu_stamp_take()))
                return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a time stamp");
            if (e->board && !run->shared &&
                !(run->shared = ds__alloc(x->records * sizeof *run->shared)))
                return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
            if (e->board && (r = ds__cpu_lane_for(x->lane[x->flat[x->entry[i].flat].lane], e,
                                                  &run->shared[record])) < 0)
                return r;
            record++;
        } else {
            if (capture)
                return ds__cpu_captured(
                    capture, 0, "the executable waits for an event that was recorded in a capture");
            if (t.stream && (r = ds__cpu_event_watch(e, t.stream, t.upto)) < 0)
                return r;
            run->token[wait++] = t;
        }
    }
    return DS_OK;
}

/* The events of record nodes stand for this launch from now on. */
static void ds__cpu_launch_record(const ds__cpu_exec *x, uint64_t ticket,
                                  ds__cpu_stamp *const *stamps) {
    uint32_t record = 0;
    for (uint32_t i = 0; i < x->entries && x->records; i++) {
        const ds__cpu_flat *f = x->entry[i].flat == UINT32_MAX ? NULL : &x->flat[x->entry[i].flat];
        if (!f || !f->node || f->node->kind != DS_NODE_EVENT_RECORD)
            continue;
        uint64_t upto = x->base[f->lane] + ticket * x->operations[f->lane] + f->number;
        ds__cpu_event *e = f->node->op.u.event.event;
        ds__cpu_event_set(e, x->lane[f->lane], upto, stamps[record++]);
        if (e->board)
            ds__cpu_event_publish(e, x->lane[f->lane], upto);
    }
}

static ds_result ds__cpu_submit_launch(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_exec *x = op->u.graph.exec;
    ds_result r = x->hosts ? ds__cpu_host_ready() : DS_OK;
    if (r == DS_OK && x->dirty)
        r = ds__cpu_plan_make(x);
    if (r < 0)
        return r;
    ds__cpu_launch *run = ds__alloc(sizeof *run);
    if (!run)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    run->exec = x;
    run->plan = x->plan;
    run->ticket = x->launches;
    atomic_fetch_add_explicit(&x->users, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->plan->users, 1, memory_order_relaxed);
    ds__cpu_stamp **stamps = NULL;
    if (x->records || x->waits) {
        r = ds__cpu_launch_events(run);
        if (r == DS_OK && x->records &&
            !(stamps = ds__copy_bytes(run->stamp, x->records * sizeof *stamps)))
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    }
    ds__op launch = *op;
    launch.u.graph.exec = run;
    if (r == DS_OK)
        r = ds__cpu_enqueue(s, &launch, NULL);
    if (r < 0) { /* the events' halves of the stamps too */
        for (uint32_t i = 0; run->stamp && i < x->records; i++)
            ds__cpu_stamp_give(run->stamp[i]);
        for (uint32_t i = 0; run->shared && i < x->records; i++)
            ds__cpu_lane_unused(run->shared[i]);
        ds__release(stamps);
        ds__cpu_launch_drop(run);
        return r;
    }
    if (x->records)
        ds__cpu_launch_record(x, x->launches, stamps);
    ds__release(stamps);
    x->launches++;
    return DS_OK;
}

static ds_result ds__cpu_submit_upload(const ds__op *op) {
    ds__cpu_exec *x = op->u.graph.exec;
    return x->dirty ? ds__cpu_plan_make(x) : DS_OK;
}

/* Starts a lane: in this moment nobody runs it, or somebody who has emptied it and will see its
   new operations. */
static void ds__cpu_lane_start(ds__cpu_stream *lane, int hold_first) {
    uint32_t idle = DS__CPU_IDLE;
    ds__op *op = (ds__op *)(void *)(lane->head->data);
    /* it would only be parked */
    if (hold_first && op->kind == DS__OP_LANE_WAIT &&
        atomic_compare_exchange_strong(&lane->state, &idle, DS__CPU_RUNNING)) {
        ds__cpu_stream *on = op->u.wait.stream;
        if (ds__cpu_park(lane, on, on->lane_base + op->u.wait.upto))
            return;
        atomic_store(&lane->state, DS__CPU_READY);
        ds__cpu_push_ready(lane);
        return;
    }
    ds__cpu_kick(lane);
}

/* What failed so far stays failed, later operations run again. The stream has nothing to do. */
static void ds__cpu_forgive(ds__cpu_stream *s) {
    ds__cpu_stays_failed(s, atomic_load(&s->failure), atomic_load(&s->failed_from),
                         atomic_load(&s->done));
    atomic_store(&s->failure, NULL);
}

static void ds__cpu_launch_start(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_launch *run) {
    ds__cpu_exec *x = run->exec;
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_relaxed);
    for (uint32_t i = 0; i < x->lanes; i++) {
        ds__cpu_stream *lane = x->lane[i];
        lane->lane_base = x->base[i] + run->ticket * x->operations[i];
        lane->launch = run;
        lane->head = run->plan->block[i];
        lane->head_at = 0;
        if (s->virt)
            lane->virt->time = s->virt->time;
        if (!(x->flags & DS_GRAPH_USE_NODE_PRIORITY))
            atomic_store_explicit(&lane->level,
                                  atomic_load_explicit(&s->level, memory_order_relaxed),
                                  memory_order_relaxed);
        if (f)
            ds__cpu_fail_stream(lane, f, lane->lane_base + 1);
        /* a failure that an earlier launch's stream brought along is not this one's */
        else if (atomic_load(&lane->failure) && !atomic_load(&ds__cpu.device[lane->device].failure))
            ds__cpu_forgive(lane);
    }
    uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    int nest = ds__tls.nested < DS__CPU_NESTED && !ds__cpu.seed &&
               !(ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1));
    for (uint32_t i = 0; i < x->lanes; i++) {
        atomic_store(&x->lane[i]->submitted, ds__cpu_lane_end(x, i, run->ticket));
        if (i > 0 || !nest)
            ds__cpu_lane_start(x->lane[i], 1);
    }
    uint32_t idle = DS__CPU_IDLE;
    if (x->lanes == 0 || !nest)
        return;
    /* who emptied it goes on with it */
    if (!atomic_compare_exchange_strong(&x->lane[0]->state, &idle, DS__CPU_RUNNING))
        return;
    ds__tls.nested++;
    ds__cpu_run(w, x->lane[0], UINT64_MAX);
    ds__tls.nested--;
}

/* The stream has come to a launch. DS__CPU_GONE: it is parked and will come again. */
static int ds__cpu_launch_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                               uint64_t number, int who) {
    ds__cpu_launch *run = op->u.graph.exec;
    ds__cpu_exec *x = run->exec;
    uint64_t turn = x->gate_base + run->ticket;
    if (!run->started) {
        if (atomic_load_explicit(&x->gate->done, memory_order_acquire) < turn &&
            ds__cpu_park(s, x->gate, turn))
            return DS__CPU_GONE;
        run->started = 1;
        ds__cpu_after(s, x->gate, turn);
        ds__cpu_launch_start(w, s, run);
    }
    for (; run->next < x->lanes; run->next++) {
        ds__cpu_stream *lane = x->lane[run->next];
        uint64_t end = ds__cpu_lane_end(x, run->next, run->ticket);
        if (atomic_load_explicit(&lane->done, memory_order_acquire) < end &&
            !(who == DS__CPU_WORK && ds__cpu_run_first(w, s, lane, end)) &&
            ds__cpu_park(s, lane, end))
            return DS__CPU_GONE;
        ds__cpu_after(s, lane, end);
    }
    for (uint32_t i = 0; i < x->lanes; i++) {
        ds__cpu_failure *f = ds__cpu_failed(x->lane[i], ds__cpu_lane_end(x, i, run->ticket));
        if (f)
            ds__cpu_fail_stream(s, f, number);
    }
    atomic_store(&x->gate->submitted, turn + 1);
    if (s->virt)
        atomic_store(&x->gate->virt->end, s->virt->time);
    ds__cpu_pass(x->gate, turn + 1);
    ds__cpu_launch_drop(run);
    return DS__CPU_EMPTY;
}

/* Operations that only lanes have. */
static int ds__cpu_lane_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                             uint64_t number, int failed, int who) {
    ds__cpu_launch *run = s->launch;
    ds__cpu_token t = { op->u.wait.stream, 0 };
    if (op->kind == DS__OP_NODE_RECORD) {
        ds__cpu_stamp *stamp = run->stamp[op->u.wait.upto];
        if (stamp && !failed)
            atomic_store_explicit(&stamp->ns, ds__cpu_now(s), memory_order_release);
        if (run->shared && run->shared[op->u.wait.upto])
            ds__cpu_lane_pass(run->shared[op->u.wait.upto], number, failed);
        return DS__CPU_EMPTY; /* the launch gives it back */
    }
    if (op->kind == DS__OP_NODE_WAIT)
        t = run->token[op->u.wait.upto];
    else
        t.upto = t.stream->lane_base + op->u.wait.upto;
    return t.stream ? ds__cpu_wait_step(w, s, t.stream, t.upto, number, who) : DS__CPU_EMPTY;
}

/* cpu/memory.h - device memory: allocation, mapping, stream order.

   Allocates device memory within the device's limit (ds__cpu_memory_alloc). Maps pages in
   reserved address space (ds__cpu_space_map), and allocates in stream order
   (ds__cpu_async_alloc, ds__cpu_async_free). Memory is the system's; the driver caches none.

   Invariants: `used` never exceeds `limit`. It counts allocated, mapped, asynchronous and shared
   memory, and `async_used` the asynchronous part. A mapping is registered before its memory is
   committed, and removed before the memory is returned. Asynchronous memory is freed when the
   stream comes to the DS__OP_FREE, also on a failed stream.
   Locks: none of its own: the counts are atomic. Mappings take `ds__g.mapping_lock`,
   ds__cpu_unsafe takes the core's capture lock, and ds__cpu_async_free takes the locks of a
   submission.
   Threads: caller's threads, any number at once. ds__cpu_async_over runs on the owner of the
   stream. */

/* The core keeps the table of all memory; what it does not know is ordinary host memory. */
static ds_result ds__cpu_pointer_query(const void *ptr, ds_pointer_info *out) {
    (void)ptr;
    memset(out, 0, sizeof *out);
    out->device.type = DS_DEVICE_HOST;
    return DS_OK;
}

/* Aligned to 512. */
static void *ds__cpu_memory(size_t size) {
    return size > SIZE_MAX - 1024 ? NULL : aligned_alloc(512, (size + 511) & ~(size_t)511);
}

/* A device's; large pieces of a dry one are no more than addresses until they are touched. */
static int ds__cpu_is_dry(size_t size) {
    return ds__cpu.fabric && ds__cpu.fabric->flags & DS_CPU_DRY && size >= DS__CPU_DRY_BYTES;
}

static void *ds__cpu_device_memory_take(size_t size) {
    if (DS__LIKELY(!ds__cpu_is_dry(size)))
        return ds__cpu_memory(size);
    if (size > SIZE_MAX - DS__CPU_DRY_BYTES)
        return NULL;
    size = (size + 4095) & ~(size_t)4095;
    void *at = ds__os_reserve(size, 4096);
    if (!at || !mprotect(at, size, PROT_READ | PROT_WRITE))
        return at;
    ds__os_unreserve(at, size);
    return NULL;
}

static void ds__cpu_device_memory_give(void *at, size_t size) {
    if (DS__LIKELY(!ds__cpu_is_dry(size)))
        free(at);
    else
        ds__os_unreserve(at, (size + 4095) & ~(size_t)4095);
}

/* Takes the bytes from the device's limit. */
static ds_result ds__cpu_take(int device, size_t size) {
    ds__cpu_device *d = &ds__cpu.device[device];
    size_t used = atomic_load(&d->used);
    do {
        if (size > d->limit || used > d->limit - size)
            return ds__fail(DS_ERR_OUT_OF_MEMORY,
                            "%zu bytes do not fit on cpu:%d: %zu of %zu bytes are in use", size,
                            device, used, d->limit);
    } while (!atomic_compare_exchange_weak(&d->used, &used, used + size));
    return DS_OK;
}

static ds_result ds__cpu_short(int device, size_t size) {
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "the system has no %zu bytes for cpu:%d", size, device);
}

static ds_result ds__cpu_memory_alloc(int device, size_t size, void **out) {
    ds_result r =
        ds__cpu_unsafe("memory cannot be allocated in this thread while the capture is open");
    if (r == DS_OK)
        r = ds__cpu_take(device, size);
    if (r < 0)
        return r;
    *out = ds__cpu_device_memory_take(size);
    return *out ? DS_OK : ds__cpu_short(device, size);
}

/* Virtual memory is the system's. Its unit here is that of GPUs, and of the system's large
   pages. */
#define DS__CPU_SPACE_PAGE ((size_t)2 << 20)

static size_t ds__cpu_space_round(size_t size) {
    return (size + DS__CPU_SPACE_PAGE - 1) & ~(DS__CPU_SPACE_PAGE - 1);
}

static ds_result ds__cpu_space_reserve(int device, size_t size, size_t *out_page, void **out) {
    *out_page = DS__CPU_SPACE_PAGE;
    *out = size && size <= SIZE_MAX - DS__CPU_SPACE_PAGE
               ? ds__os_reserve(ds__cpu_space_round(size), DS__CPU_SPACE_PAGE)
               : NULL;
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY,
                           "the system has no %zu bytes of address space for cpu:%d", size, device);
}

static void ds__cpu_space_release(int device, void *at, size_t size) {
    (void)device;
    ds__os_unreserve(at, ds__cpu_space_round(size));
}

static ds_result ds__cpu_space_map(int device, void *at, size_t size) {
    ds__mapping m;
    if (!size || size % DS__CPU_SPACE_PAGE || (uintptr_t)at % DS__CPU_SPACE_PAGE)
        return ds__fail(DS_ERR_INVALID_VALUE, "%zu bytes at %p are not whole pages of %zu bytes",
                        size, at, DS__CPU_SPACE_PAGE);
    ds_result r = ds__mapping_add(at, size);
    if (r < 0)
        return r;
    r = ds__cpu_take(device, size);
    if (r == DS_OK && !ds__os_commit(at, size)) {
        ds__os_decommit(at, size); /* it may have come half way */
        r = ds__cpu_short(device, size);
    }
    if (r < 0)
        (void)ds__mapping_take((uintptr_t)at, (uintptr_t)at + size, &m);
    return r;
}

static ds_result ds__cpu_space_unmap(int device, void *at, size_t size) {
    ds__mapping m;
    ds_result r = ds__mapping_check(at, size);
    if (r < 0)
        return r;
    while (ds__mapping_take((uintptr_t)at, (uintptr_t)at + size, &m)) {
    }
    ds__os_decommit(at, size);
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
    return DS_OK;
}

/* The driver's own allocator is the system's: it keeps nothing. */
static ds_result ds__cpu_async_alloc(int device, void *stream, size_t size, void **out) {
    ds__cpu_stream *s = stream;
    ds__op op = { .kind = DS__OP_FREE };
    ds_result r;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (f)
        return ds__cpu_report(f);
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, &op, &r))
        return r;
    if ((r = ds__cpu_take(device, size)) < 0)
        return r;
    if (!(*out = ds__cpu_device_memory_take(size)))
        return ds__cpu_short(device, size);
    atomic_fetch_add(&ds__cpu.device[device].async_used, size);
    return DS_OK;
}

static ds_result ds__cpu_async_free(int device, void *stream, void *ptr, size_t size) {
    ds__cpu_stream *s = stream;
    ds__op op = { .kind = DS__OP_FREE };
    ds_result r;
    op.u.memory.ptr = ptr;
    op.u.memory.size = size;
    op.u.memory.device = device;
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, &op, &r))
        return r;
    return ds__cpu_enqueue(s, &op, NULL);
}

static void ds__cpu_async_over(const ds__op *op) {
    ds__cpu_device *d = &ds__cpu.device[op->u.memory.device];
    atomic_fetch_sub(&d->async_used, op->u.memory.size);
    atomic_fetch_sub(&d->used, op->u.memory.size);
    ds__cpu_device_memory_give(op->u.memory.ptr, op->u.memory.size);
}

static ds_result ds__cpu_async_trim(int device, size_t keep) {
    (void)device;
    (void)keep;
    return DS_OK;
}

static ds_result ds__cpu_async_info(int device, size_t *out_reserved, size_t *out_used) {
    *out_reserved = *out_used = atomic_load(&ds__cpu.device[device].async_used);
    return DS_OK;
}

/* cpu/share.h - device memory shared between processes.

   Allocates device memory that other processes can open (ds__cpu_share_alloc), exports and
   imports it as 64 bytes. A block is a memory file; the exported bytes name the process, the
   file and a cookie.

   Invariants: the memory is reserved completely before it is mapped, so touching it cannot fail.
   Each block in the list counts in its device's `used`. An import counts nowhere, and a process
   cannot import its own memory.
   Locks: the mutex of the shared-memory registries guards the list `shares`. ds__cpu_unsafe
   takes the core's capture lock while a capture is open. The two are not held together, and
   system calls run without them.
   Threads: caller's threads. Release and close expect that no work uses the memory. */

/* Memory that other processes can open; it is all there before anybody touches it. */
typedef struct ds__cpu_share {
    struct ds__cpu_share *next;
    void *base;
    size_t size;
    uint64_t cookie;
    int fd;
} ds__cpu_share;

/* Takes the entry out, if it is there; take 0: leaves it. */
static ds__cpu_share *ds__cpu_share_find(const void *base, int take) {
    ds__boards_lock();
    ds__cpu_share **p = &ds__cpu.shares;
    while (*p && (*p)->base != base)
        p = &(*p)->next;
    ds__cpu_share *s = *p;
    if (s && take)
        *p = s->next;
    ds__boards_unlock();
    return s;
}

static ds_result ds__cpu_share_alloc(int device, size_t size, void **out) {
    ds__cpu_share *s = NULL;
    ds_result r =
        ds__cpu_unsafe("memory cannot be allocated in this thread while the capture is open");
    if (r == DS_OK)
        r = ds__cpu_take(device, size);
    if (r < 0)
        return r;
    uint64_t cookie = ds__os_cookie();
    int fd = size <= (size_t)1 << 60 ? ds__os_memfd(size, cookie) : -1;
    void *base = fd >= 0 && ds__os_memfd_reserve(fd, 0, size) ? ds__os_memfd_map(fd, size) : NULL;
    if (base)
        s = ds__alloc(sizeof *s);
    if (!s) {
        if (base)
            ds__os_unmap(base, size);
        if (fd >= 0)
            close(fd);
        return ds__cpu_short(device, size);
    }
    s->base = base;
    s->size = size;
    s->cookie = cookie;
    s->fd = fd;
    ds__boards_lock();
    s->next = ds__cpu.shares;
    ds__cpu.shares = s;
    ds__boards_unlock();
    *out = base;
    return DS_OK;
}

static void ds__cpu_share_release(int device, void *base, size_t size) {
    ds__cpu_share *s = ds__cpu_share_find(base, 1);
    if (!s)
        return;
    ds__os_unmap(base, size);
    close(s->fd);
    ds__release(s);
    atomic_fetch_sub(&ds__cpu.device[device].used, size);
}

static ds_result ds__cpu_share_export(int device, void *base, size_t size, unsigned char *handle) {
    const ds__cpu_share *s = ds__cpu_share_find(base, 0);
    ds_result r =
        ds__cpu_unsafe("memory cannot be exported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (!s || s->size != size)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not memory of cpu:%d that can be exported",
                        base, device);
    ds__address a = { DS__ADDRESS_MEMORY, (int32_t)getpid(), s->fd, 0, 0, 0, s->cookie, size };
    memset(handle, 0, 64);
    memcpy(handle, &a, sizeof a);
    return DS_OK;
}

static ds_result ds__cpu_share_import(int device, const unsigned char *handle, size_t size,
                                      void **out) {
    ds__address a;
    memcpy(&a, handle, sizeof a);
    ds_result r =
        ds__cpu_unsafe("memory cannot be imported in this thread while the capture is open");
    if (r < 0)
        return r;
    if (a.kind != DS__ADDRESS_MEMORY || a.size != size)
        return ds__fail(DS_ERR_INVALID_VALUE, "these bytes are no memory of a CPU device");
    if (a.pid == (int32_t)getpid())
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the memory is this process's own");
    int fd = ds__os_memfd_open(a.pid, a.fd, a.cookie, size);
    if (fd < 0)
        return ds__peer_fail(a.pid);
    *out = ds__os_memfd_map(fd, size);
    close(fd);
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY,
                           "the system has no address space for %zu bytes on cpu:%d", size, device);
}

static void ds__cpu_share_close(int device, void *base, size_t size) {
    (void)device;
    ds__os_unmap(base, size);
}

/* cpu/host_memory.h - pinned memory, release of memory, and draining.

   Allocates and registers host memory (ds__cpu_host_alloc, ds__cpu_host_register).
   ds__cpu_memory_wait waits until no work uses memory, and ds__cpu_memory_release then frees
   device or pinned memory. ds__cpu_drain waits for all work of the driver.

   Invariants: ds__cpu_memory_release always succeeds, and no work uses the memory any more when
   it is called. Registered memory is not freed. ds__cpu_drain needs no memory and cannot fail.
   Locks: ds__cpu_unsafe takes the core's capture lock while a capture is open. ds__cpu_drain
   takes a device's lock to find an unfinished stream. The waits hold no lock of the driver.
   Threads: caller's threads. ds__cpu_drain runs during ds_shutdown and in ds__cpu_stop. */

static ds_result ds__cpu_host_alloc(size_t size, void **out) {
    ds_result r = ds__cpu_unsafe(
        "pinned memory cannot be allocated in this thread while the capture is open");
    if (r < 0)
        return r;
    /* whole pages, as CUDA */
    *out = size < 4096 || size > SIZE_MAX - 4096
               ? ds__cpu_memory(size)
               : aligned_alloc(4096, (size + 4095) & ~(size_t)4095);
    return *out ? DS_OK
                : ds__fail(DS_ERR_OUT_OF_MEMORY, "the system has no %zu bytes of pinned memory",
                           size);
}

static ds_result ds__cpu_host_register(void *ptr, size_t size) {
    (void)ptr;
    (void)size;
    return ds__cpu_unsafe("memory cannot be registered in this thread while the capture is open");
}

static ds_result ds__cpu_memory_wait(int device) {
    ds_result r = ds__cpu_unsafe(
        "memory cannot be freed or unregistered in this thread while the capture is open");
    for (int i = device < 0 ? 0 : device;
         i < (device < 0 ? ds__cpu.devices : device + 1) && r == DS_OK; i++)
        r = ds__cpu_wait_device(i, 0, DS__FOREVER);
    return r;
}

static ds_result ds__cpu_memory_release(ds_memory_kind kind, int device, void *ptr, size_t size) {
    if (kind == DS_MEMORY_DEVICE)
        atomic_fetch_sub(&ds__cpu.device[device].used, size);
    if (kind == DS_MEMORY_DEVICE)
        ds__cpu_device_memory_give(ptr, size);
    else if (kind != DS_MEMORY_REGISTERED)
        free(ptr);
    return DS_OK;
}

/* Waits for one unfinished stream after the other; needs no memory. */
static void ds__cpu_drain(void) {
    for (int i = 0; i < ds__cpu.devices; i++) {
        ds__cpu_token t;
        do {
            t.stream = NULL;
            t.upto = 0;
            ds__lock_take(&ds__cpu.device[i].lock);
            for (ds__cpu_stream *s = ds__cpu.device[i].streams; s && !t.stream; s = s->all_next)
                if (atomic_load(&s->done) < atomic_load(&s->submitted)) {
                    t.stream = s;
                    t.upto = atomic_load(&s->submitted);
                }
            ds__lock_give(&ds__cpu.device[i].lock);
            if (t.stream)
                ds__cpu_wait(t.stream, t.upto, DS__FOREVER, 0);
        } while (t.stream);
    }
}

/* cpu/device.h - device entries of the CPU driver.

   Describes the virtual devices (properties, free memory, peer access, speed, priorities), waits
   for one (ds__cpu_device_synchronize), and clears its failure (ds__cpu_device_reset).

   Invariants: ds__cpu_device_reset waits for the work submitted before the call. It then clears
   the failures of the device and of its streams, but their failed numbers stay failed (`past`).
   With a fabric, peer access follows from its routes, else from the matrix of the options.
   Locks: ds__cpu_unsafe_wait takes the core's capture lock. ds__cpu_device_reset takes the
   device's lock to visit the streams, and `raw_lock` under it. The waits hold no lock of the
   driver.
   Threads: caller's threads. */

static ds_result ds__cpu_device_properties(int device, ds_device_properties *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "devstream CPU device %d", device);
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out->name, sizeof out->name, "%.120s", colon + 2);
        break;
    }
    if (f)
        fclose(f);
    out->total_memory = ds__cpu.device[device].limit;
    out->multiprocessors = ds__cpu.workers;
    out->unified_addressing = 1;
    /* "devstream-cpu" and the index: the same in every process of the machine, as the device is
       the machine */
    memcpy(out->uuid, "devstream-cpu", 13);
    out->uuid[15] = (unsigned char)device;
    return DS_OK;
}

static ds_result ds__cpu_device_memory(int device, size_t *out_free, size_t *out_total) {
    ds__cpu_device *d = &ds__cpu.device[device];
    size_t used = atomic_load(&d->used);
    *out_total = d->limit;
    *out_free = d->limit - used;
    return DS_OK;
}

static ds_result ds__cpu_device_synchronize(int device) {
    ds_result r = ds__cpu_unsafe_wait(device);
    if (r == DS_OK)
        r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    ds__cpu_failure *f = atomic_load(&ds__cpu.device[device].failure);
    return r == DS_OK && f ? ds__cpu_report(f) : r;
}

static int ds__cpu_device_used(int device) {
    (void)device;
    return 1;
}

static ds_result ds__cpu_device_reset(int device) {
    ds__cpu_device *d = &ds__cpu.device[device];
    ds_result r = ds__cpu_unsafe_wait(device);
    if (r == DS_OK)
        r = ds__cpu_wait_device(device, 0, DS__FOREVER);
    if (r < 0)
        return r;
    atomic_store(&d->failure, NULL);
    ds__lock_take(&d->lock);
    for (ds__cpu_stream *s = d->streams; s; s = s->all_next) {
        ds__cpu_failure *f = atomic_load(&s->failure);
        if (f)
            ds__cpu_forgive(s);
    }
    ds__lock_give(&d->lock);
    return DS_OK;
}

static ds_result ds__cpu_device_peer(int device, int peer, int *out) {
    if (ds__cpu.fabric)
        *out =
            device == peer || ds__cpu.fabric->route[device * (ds__cpu.devices + 1) + peer].direct;
    else
        *out =
            device == peer || !ds__cpu.peers || ds__cpu.peers[device * ds__cpu.devices + peer] != 0;
    return DS_OK;
}

static ds_result ds__cpu_device_link(int device, int peer, int *out) {
    (void)device;
    (void)peer;
    *out = 0;
    return DS_OK;
}

static ds_result ds__cpu_device_speed(int device, int *out_engines, double *out_memory) {
    (void)device;
    *out_engines = ds__cpu.fabric ? ds__cpu.fabric->engines : 0;
    *out_memory = ds__cpu.fabric ? ds__cpu.fabric->memory_bytes_per_s : 0;
    return DS_OK;
}

static ds_result ds__cpu_priority_range(int device, int *out_least, int *out_greatest) {
    (void)device;
    *out_least = 0;
    *out_greatest = 1 - DS__CPU_LEVELS;
    return DS_OK;
}

/* cpu/options.h - options of the CPU driver.

   Checks a ds_cpu_desc (ds__cpu_check_desc), and keeps a copy of it until ds_shutdown
   (ds__cpu_keep_desc). ds__cpu_option reads a number from the options or else from the
   environment.

   Invariants: the kept options own all memory that they point to. A kept fabric has no zeros
   where 0 means a default, and its number of devices is also that of the options. A refused
   ds_cpu_desc changes nothing.
   Locks: ds__cpu_keep_desc is called under the core's initialisation mutex (`ds__g.mutex`).
   ds__cpu_check_desc runs without a lock. The program's allocator may run in ds__cpu_keep_desc.
   Threads: the threads that call ds_init and ds_shutdown, one at a time. ds__cpu_desc is read by
   the thread that starts the driver. */

static int ds__cpu_option(int value, const char *name, int fallback, int most) {
    uint64_t n = value > 0 ? (uint64_t)value : ds__env_number(name);
    if (n == 0)
        n = (uint64_t)fallback;
    return n > (uint64_t)most ? most : (int)n;
}

static const ds_cpu_desc *ds__cpu_desc(void) {
    static const ds_cpu_desc none = { 0, 0, 0, NULL, 0, 0, NULL };
    return ds__g.desc.cpu ? ds__g.desc.cpu : &none;
}

static ds_result ds__cpu_check_route(const ds_cpu_fabric *f, size_t from, size_t to) {
    const ds_cpu_route *route = &f->route[from * ((size_t)f->devices + 1) + to];
    DS__REQUIRE(route->latency_ns >= 0 && route->latency_ns <= 1000000000000000,
                "the route from %zu to %zu has a latency of %lld ns", from, to,
                (long long)route->latency_ns);
    DS__REQUIRE(route->hops <= f->links && (route->link || !route->hops),
                "the route from %zu to %zu has %zu of %zu links", from, to, route->hops, f->links);
    for (size_t i = 0; i < route->hops; i++) {
        DS__REQUIRE(route->link[i] >= 0 && (size_t)route->link[i] < f->links,
                    "the route from %zu to %zu has link %d of %zu", from, to, route->link[i],
                    f->links);
        for (size_t k = 0; k < i; k++)
            DS__REQUIRE(route->link[k] != route->link[i],
                        "the route from %zu to %zu has link %d twice", from, to, route->link[i]);
    }
    return DS_OK;
}

static ds_result ds__cpu_check_fabric(const ds_cpu_desc *desc) {
    const ds_cpu_fabric *f = desc->fabric;
    DS__REQUIRE(f->devices > 0 && f->devices <= DS_CPU_MAX_DEVICES,
                "a fabric of %d devices, which are not 1 to %d", f->devices, DS_CPU_MAX_DEVICES);
    DS__REQUIRE(!desc->devices || desc->devices == f->devices, "%d CPU devices, but a fabric of %d",
                desc->devices, f->devices);
    DS__REQUIRE(!desc->peer_access,
                "a fabric's routes say which devices reach each other; peer_access must be NULL");
    DS__REQUIRE(!(desc->flags & DS_CPU_INLINE) && !desc->seed,
                "a fabric decides when work runs: neither DS_CPU_INLINE nor a seed goes with it");
    DS__REQUIRE(f->route, "the fabric has no routes");
    DS__REQUIRE(f->links <= INT_MAX && (f->link_bytes_per_s || !f->links),
                "the fabric has %zu links, but nothing says how fast they are", f->links);
    DS__REQUIRE(f->engines >= 0 && f->engines <= 64, "%d copy engines are not 1 to 64", f->engines);
    DS__REQUIRE(f->engine_ns >= 0 && f->engine_ns <= 1000000000000000,
                "a copy cannot hold its engine for %lld ns", (long long)f->engine_ns);
    DS__REQUIRE(f->memory_bytes_per_s == 0 ||
                    (f->memory_bytes_per_s >= 1 && f->memory_bytes_per_s <= 1e300),
                "memory of %g bytes per second", f->memory_bytes_per_s);
    DS__REQUIRE((f->flags & ~(unsigned)DS_CPU_DRY) == 0, "unknown fabric flags %#x", f->flags);
    for (size_t i = 0; i < f->links; i++)
        DS__REQUIRE(f->link_bytes_per_s[i] >= 1 && f->link_bytes_per_s[i] <= 1e300,
                    "link %zu has %g bytes per second", i, f->link_bytes_per_s[i]);
    for (size_t from = 0; from <= (size_t)f->devices; from++)
        for (size_t to = 0; to <= (size_t)f->devices; to++) {
            ds_result r = ds__cpu_check_route(f, from, to);
            if (r < 0)
                return r;
        }
    return DS_OK;
}

static ds_result ds__cpu_check_desc(const ds_cpu_desc *desc) {
    DS__REQUIRE(desc->devices >= 0 && desc->devices <= DS_CPU_MAX_DEVICES,
                "%d CPU devices are not 1 to %d", desc->devices, DS_CPU_MAX_DEVICES);
    DS__REQUIRE(desc->workers >= 0 && desc->workers <= 256, "%d workers are not 1 to 256",
                desc->workers);
    DS__REQUIRE((desc->flags & ~(unsigned)(DS_CPU_INLINE | DS_CPU_NO_SPIN | DS_CPU_LAX_CAPTURE)) ==
                    0,
                "unknown CPU flags %#x", desc->flags);
    DS__REQUIRE(!desc->peer_access || desc->devices > 0, "peer_access needs the number of devices");
    return desc->fabric ? ds__cpu_check_fabric(desc) : DS_OK;
}

/* A copy of a fabric in one piece of memory, with the defaults in the place of zeros; NULL: no
   memory. */
static ds_cpu_fabric *ds__cpu_copy_fabric(const ds_cpu_fabric *f) {
    size_t routes = ((size_t)f->devices + 1) * ((size_t)f->devices + 1);
    size_t hops = 0;
    for (size_t i = 0; i < routes; i++)
        hops += f->route[i].hops;
    char *at = ds__alloc(sizeof *f + f->links * sizeof(double) + routes * sizeof(ds_cpu_route) +
                         hops * sizeof(int));
    if (!at)
        return NULL;
    ds_cpu_fabric *copy = (ds_cpu_fabric *)(void *)at;
    ds_cpu_route *route = (ds_cpu_route *)(void *)(at + sizeof *f);
    double *rate = (double *)(void *)(route + routes);
    int *link = (int *)(void *)(rate + f->links);
    *copy = *f;
    copy->route = route;
    copy->link_bytes_per_s = rate;
    if (!copy->engines)
        copy->engines = 3;
    if (!copy->engine_ns)
        copy->engine_ns = 1500;
    if (copy->memory_bytes_per_s == 0)
        copy->memory_bytes_per_s = 2e12;
    if (f->links)
        memcpy(rate, f->link_bytes_per_s, f->links * sizeof *rate);
    for (size_t i = 0; i < routes; i++) {
        route[i] = f->route[i];
        route[i].link = link;
        if (route[i].hops)
            memcpy(link, f->route[i].link, route[i].hops * sizeof *link);
        link += route[i].hops;
    }
    return copy;
}

/* The options are kept until ds_shutdown, with copies of all that they point to; NULL: only the
   old copies are freed. */
static ds_result ds__cpu_keep_desc(const ds_cpu_desc *desc) {
    static ds_cpu_desc kept;
    static ds_cpu_fabric *fabric;
    static unsigned char peers[DS_CPU_MAX_DEVICES * DS_CPU_MAX_DEVICES];
    ds__release(fabric);
    fabric = NULL;
    if (!desc)
        return DS_OK;
    kept = *desc;
    ds__g.desc.cpu = &kept;
    if (desc->peer_access) {
        memcpy(peers, desc->peer_access, (size_t)desc->devices * (size_t)desc->devices);
        kept.peer_access = peers;
    }
    if (!desc->fabric)
        return DS_OK;
    kept.devices = desc->fabric->devices;
    kept.fabric = fabric = ds__cpu_copy_fabric(desc->fabric);
    return fabric ? DS_OK
                  : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a fabric of %d devices",
                             desc->fabric->devices);
}

/* cpu/driver.h - driver table, start and stop of the CPU driver.

   Defines the table ds__cpu_driver, starts the driver (ds__cpu_start) and stops it
   (ds__cpu_stop). ds__cpu_passed tells the core whether all work that was pending at a mark is
   over. Implements ds_cpu_get_stats and ds_cpu_clock.

   Invariants: the options, limits and counts that threads read are set before the first thread
   starts. If ds__cpu_start fails, its threads have ended and its memory is freed. ds__cpu_stop
   waits for all work, ends all threads, and then frees queues, streams, events and failures.
   Locks: probe, start and stop are called under the core's initialisation mutex (`ds__g.mutex`).
   ds__cpu_stop waits for work and joins threads under it, so host functions may run meanwhile.
   ds__cpu_passed takes the lock of one device after another, and ds_cpu_get_stats the pool's
   lock.
   Threads: start and stop run on one thread, without other calls. The rest runs on caller's
   threads. */

static void ds__cpu_probe(ds_backend_info *out) {
    out->name = "cpu";
    out->type = DS_DEVICE_CPU;
    out->available = 1;
    out->device_count =
        ds__cpu_option(ds__cpu_desc()->devices, "DEVSTREAM_CPU_DEVICES", 1, DS_CPU_MAX_DEVICES);
    snprintf(out->reason, sizeof out->reason,
             "taken: %d virtual device%s on this machine's %d processor%s", out->device_count,
             out->device_count == 1 ? "" : "s", ds__os_processors(),
             ds__os_processors() == 1 ? "" : "s");
}

static void ds__cpu_stop(void);

static ds_result ds__cpu_start(void) {
    const ds_cpu_desc *desc = ds__cpu_desc();
    int processors = ds__os_processors();
    memset(&ds__cpu, 0, sizeof ds__cpu);
    ds__cpu.devices = ds__cpu_option(desc->devices, "DEVSTREAM_CPU_DEVICES", 1, DS_CPU_MAX_DEVICES);
    ds__cpu.processors = processors;
    int workers = ds__cpu_option(desc->workers, "DEVSTREAM_CPU_WORKERS",
                                 processors > 2 ? processors : 2, 256);
    ds__cpu.spin_limit = processors > 1 ? processors - 1 : 1;
    ds__cpu.no_spin = (desc->flags & DS_CPU_NO_SPIN) != 0;
    ds__cpu.is_lax = (desc->flags & DS_CPU_LAX_CAPTURE) != 0;
    ds__cpu.is_inline = (desc->flags & DS_CPU_INLINE) || ds__env_number("DEVSTREAM_CPU_INLINE");
    ds__cpu.seed = desc->seed ? desc->seed : ds__env_number("DEVSTREAM_CPU_SEED");
    /* as under the seeded scheduler nothing is run at once, or split, or by who waits */
    if (desc->fabric) {
        ds__cpu.fabric = desc->fabric;
        ds__cpu.seed = 1;
        workers = 1;
        ds__cpu.is_inline = 0;
    }
    ds__cpu.random = ds__cpu.seed * 2862933555777941757u + 3037000493u;
    size_t n = (size_t)ds__cpu.devices;
    size_t links = desc->fabric ? desc->fabric->links : 0;
    size_t engines = desc->fabric ? n * (size_t)desc->fabric->engines : 0;
    ds__cpu.device = ds__alloc(n * sizeof *ds__cpu.device);
    ds__cpu.worker = ds__alloc((size_t)workers * sizeof *ds__cpu.worker);
    if (desc->peer_access)
        ds__cpu.peers = ds__alloc(n * n);
    if (desc->fabric &&
        (ds__cpu.link_free = ds__alloc((links + engines + n) * sizeof(int64_t))) != NULL) {
        ds__cpu.engine_free = ds__cpu.link_free + links;
        ds__cpu.memory_free = ds__cpu.engine_free + engines;
    }
    ds__cpu.started = 1;
    if (!ds__cpu.device || !ds__cpu.worker || (desc->peer_access && !ds__cpu.peers) ||
        (desc->fabric && !ds__cpu.link_free)) {
        ds__cpu_stop();
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the CPU driver");
    }
    if (desc->peer_access)
        memcpy(ds__cpu.peers, desc->peer_access, n * n);
    size_t memory = desc->memory_limit         ? desc->memory_limit
                    : ds__cpu_is_dry(SIZE_MAX) ? (size_t)1 << 38
                                               : (size_t)ds__env_number("DEVSTREAM_CPU_MEMORY");
    for (size_t i = 0; i < n; i++)
        ds__cpu.device[i].limit = memory ? memory : ds__os_memory();
    /* What the threads read is set before the first runs. All workers count as awake, so that no
       submission takes one that is starting for a missing one. */
    ds__cpu.workers = workers;
    atomic_store(&ds__cpu.lookers, workers);
    atomic_store(&ds__cpu.monitor_word, 1);
    int error = 0;
    for (int i = 0; i < workers && !error; i++) {
        error = pthread_create(&ds__cpu.worker[i].thread, NULL, ds__cpu_worker_main,
                               &ds__cpu.worker[i]);
        if (!error)
            ds__cpu.workers_started++;
    }
    if (!error)
        error = pthread_create(&ds__cpu.monitor, NULL, ds__cpu_monitor_main, NULL);
    ds__cpu.monitor_started = error == 0;
    if (error) {
        ds__cpu_stop();
        return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
    }
    return DS_OK;
}

/* Drains everything, ends the threads, frees. */
static void ds__cpu_stop(void) {
    if (ds__cpu.workers_started && ds__cpu.device)
        ds__cpu_drain();
    ds__cpu_watcher_end();
    if (ds__cpu.started && ds__cpu.worker && ds__cpu.device) {
        atomic_store(&ds__cpu.quit, 1);
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, INT_MAX);
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, INT_MAX);
        atomic_store(&ds__cpu.monitor_word, 1);
        ds__futex_wake(&ds__cpu.monitor_word, INT_MAX);
        if (ds__cpu.monitor_started)
            pthread_join(ds__cpu.monitor, NULL);
        for (int i = 0; i < ds__cpu.workers_started; i++)
            pthread_join(ds__cpu.worker[i].thread, NULL);
        for (int i = 0; i < ds__cpu.host_threads; i++)
            pthread_join(ds__cpu.host_thread[i], NULL);
    }
    while (ds__cpu.raw) {
        void **raw = ds__cpu.raw;
        ds__cpu.raw = raw[0];
        ds__release(raw);
    }
    while (ds__cpu.failures) {
        ds__cpu_failure *f = ds__cpu.failures;
        ds__cpu.failures = f->next;
        ds__release(f);
    }
    ds__release(ds__cpu.host_thread);
    ds__release(ds__cpu.peers);
    ds__release(ds__cpu.link_free);
    ds__release(ds__cpu.worker);
    ds__release(ds__cpu.device);
    memset(&ds__cpu, 0, sizeof ds__cpu);
}

/* A mark is the list of tokens of everything pending, ended by one without a stream. */
static int ds__cpu_passed(void **mark) {
    ds__cpu_token *list = *mark;
    if (!list) {
        size_t count = 0;
        size_t room = 0;
        for (int i = 0; i < ds__cpu.devices; i++) {
            size_t n;
            ds__cpu_token *one = ds__cpu_tokens(i, 0, &n);
            if (n == SIZE_MAX) {
                ds__release(list);
                return 0;
            }
            if (count + n + 1 > room) {
                ds__cpu_token *more = ds__alloc((room = count + n + 1) * sizeof *more);
                if (!more) {
                    ds__release(one);
                    ds__release(list);
                    return 0;
                }
                if (count)
                    memcpy(more, list, count * sizeof *more);
                ds__release(list);
                list = more;
            }
            if (n)
                memcpy(list + count, one, n * sizeof *list);
            list[count += n].stream = NULL;
            ds__release(one);
        }
        *mark = list;
    }
    for (; list->stream; list++)
        if (atomic_load_explicit(&list->stream->done, memory_order_acquire) < list->upto)
            return 0;
    ds__release(*mark);
    *mark = NULL;
    return 1;
}

static const ds__driver ds__cpu_driver = { "cpu",
                                           DS_DEVICE_CPU,
                                           ds__cpu_probe,
                                           ds__cpu_start,
                                           ds__cpu_device_used,
                                           ds__cpu_drain,
                                           ds__cpu_stop,
                                           ds__cpu_stream_destroy,
                                           ds__cpu_stream_unwrap,
                                           ds__cpu_stream_hide,
                                           ds__cpu_stream_forget,
                                           ds__cpu_stream_identity,
                                           ds__cpu_event_destroy,
                                           ds__cpu_kernel_destroy,
                                           ds__cpu_capture_abandon,
                                           ds__cpu_graph_destroy,
                                           ds__cpu_exec_destroy,
                                           ds__cpu_passed,
                                           ds__cpu_memory_release,
                                           ds__cpu_space_release,
                                           ds__cpu_share_release,
                                           ds__cpu_share_close,
#define DS__MEMBER(entry, parameters, arguments) ds__cpu_##entry,
                                           DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

DSDEF ds_result(ds_cpu_get_stats)(ds_cpu_stats *out) {
    if (out)
        memset(out, 0, sizeof *out);
    if (atomic_load(&ds__g.state) == DS__COLD && !ds__tls.in_callback && out)
        return DS_OK;
    ds_result r = ds__enter("ds_cpu_get_stats");
    if (r < 0)
        return r;
    if (!out)
        return ds__fail(DS_ERR_INVALID_VALUE, "out is NULL");
    out->operations = atomic_load(&ds__cpu.other_operations);
    for (int i = 0; i < ds__cpu.workers; i++)
        out->operations += atomic_load(&ds__cpu.worker[i].operations);
    out->staged_copies = atomic_load(&ds__cpu.staged);
    out->inline_operations = atomic_load(&ds__cpu.inlined);
    out->helped = atomic_load(&ds__cpu.helped);
    out->workers = ds__cpu.workers;
    ds__lock_take(&ds__cpu.lock);
    out->host_threads = ds__cpu.host_threads;
    ds__lock_give(&ds__cpu.lock);
    out->streams = atomic_load(&ds__cpu.stream_count);
    out->queue_bytes = atomic_load(&ds__cpu.queue_bytes);
    return DS_OK;
}

DSDEF ds_result(ds_cpu_clock)(int64_t *out_ns) {
    if (out_ns)
        *out_ns = 0;
    ds_result r = ds__enter("ds_cpu_clock");
    if (r < 0)
        return r;
    if (!out_ns)
        return ds__fail(DS_ERR_INVALID_VALUE, "out_ns is NULL");
    if (!ds__cpu.fabric)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the CPU driver has no virtual clock; give ds_init a fabric");
    *out_ns = atomic_load(&ds__cpu.clock);
    return DS_OK;
}

#endif

#ifdef DEVSTREAM_CUDA

/* cuda/types.h - types and state of the CUDA driver.

   Declares the driver's objects for streams, events, host functions, modules and staging buffers,
   and its global state (ds__cuda). Includes the header of cudart and lists the entry points of the
   driver library (DS__CUDA_ENTRY_POINTS). Needs neither libcuda nor cuda.h.

   Policy:
   1. cudart does streams, events, copies and memory. The driver library does contexts, kernel
      images, launches, kernel nodes of images, fills of 2 and 4 bytes, and mapped memory. Its entry
      points come from cudart, so nothing links to libcuda.
   2. Queries go to the driver library as well. In cudart a query would leave "not ready" as the
      thread's last error.
   3. Every call of an entry runs in a scope (ds__cuda_scope). A scope makes its device current if
      another device is current. It clears the thread's last error only if a call of the scope has
      caused that error.
   4. For another device, a scope pushes the primary context of the device and pops it again. With
      CUDA 12, cudaSetDevice back to the former device could create a context there, which takes
      hundreds of MB.
   5. CUDA does not require the device to be current for every call (Programming Guide, "Stream and
      Event Behavior"). In a thread without a context, however, cudart would create one for its
      current device.
   6. Host functions and callbacks both use cudaStreamAddCallback: CUDA runs these in every case and
      reports a failure to them.

   Invariants: `streams` holds every stream object except those of the legacy streams. A host
   function is in `hosts` until it begins to run or CUDA refuses it. The state of a host function or
   keep changes from pending to taken once; the thread that changes it runs or releases the object.
   Primary contexts are retained and peer access is enabled for the life of the process.
   Locks: `mutex` guards the modules, the side streams and the set-up of pools; it is held across
   driver calls that compile or create. `lock` guards `streams` and is held across queries and event
   records. `host_lock` guards `hosts`, `stages` and `keeps`; no call into CUDA is made under it.
   The core's capture lock comes before all of them. An error about a capture takes the capture
   lock, so errors must be reported after `lock` or a stream's lock is released.
   Threads: any. `devices`, `multiprocessors` and the entry points are written during initialisation
   only. CUDA's own threads use the host functions, the keeps and the staging buffers. */

#if defined(__has_include)
#if !__has_include(<cuda_runtime_api.h>)
#error "DEVSTREAM_CUDA needs cudart's headers: add -I with the folder of cuda_runtime_api.h"
#endif
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#endif
#include <cuda_runtime_api.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#if CUDART_VERSION < 11080
#error "devstream needs cudart 11.8 or newer"
#endif

/* CUDA_KERNEL_NODE_PARAMS of CUDA 12; a driver's entry of before does not look at the last two */
typedef struct ds__cuda_kernel_params {
    void *function;
    unsigned grid_x;
    unsigned grid_y;
    unsigned grid_z;
    unsigned block_x;
    unsigned block_y;
    unsigned block_z;
    unsigned shared_bytes;
    void **params;
    void **extra;
    void *kernel;
    void *context;
} ds__cuda_kernel_params;

typedef struct ds__cuda_memory { /* CUmemAllocationProp */
    int type;
    int handle_types;
    int location;
    int device;
    void *handle_data;
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
} ds__cuda_memory;

/* X(function, parameters): the functions taken from the driver library. The types are those
   of cuda.h, which need not be there: results, options and JIT options are ints, handles are
   pointers, a device's address is 64 bits wide. */
/* clang-format off */
#define DS__CUDA_ENTRY_POINTS(X) \
    X(cuModuleLoadDataEx, \
      (void **module, const void *image, unsigned count, int *options, void **values)) \
    X(cuModuleUnload, (void *module)) \
    X(cuModuleGetFunction, (void **function, void *module, const char *name)) \
    X(cuFuncGetAttribute, (int *value, int attribute, void *function)) \
    X(cuFuncSetAttribute, (void *function, int attribute, int value)) \
    X(cuDevicePrimaryCtxRetain, (void **context, int device)) \
    X(cuCtxPushCurrent, (void *context)) \
    X(cuCtxPopCurrent, (void **context)) \
    X(cuLaunchKernel, \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
        unsigned block_y, unsigned block_z, unsigned shared_bytes, cudaStream_t stream, \
        void **params, void **extra)) \
    X(cuStreamQuery, (cudaStream_t stream)) \
    X(cuEventQuery, (cudaEvent_t event)) \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
    X(cuMemGetAllocationGranularity, (size_t *out, const ds__cuda_memory *memory, int option)) \
    X(cuMemAddressReserve, \
      (unsigned long long *out, size_t size, size_t alignment, unsigned long long hint, \
        unsigned long long flags)) \
    X(cuMemAddressFree, (unsigned long long address, size_t size)) \
    X(cuMemCreate, \
      (unsigned long long *handle, size_t size, const ds__cuda_memory *memory, \
        unsigned long long flags)) \
    X(cuMemRelease, (unsigned long long handle)) \
    X(cuMemMap, \
      (unsigned long long address, size_t size, size_t offset, unsigned long long handle, \
        unsigned long long flags)) \
    X(cuMemUnmap, (unsigned long long address, size_t size)) \
    X(cuMemSetAccess, \
      (unsigned long long address, size_t size, const struct cudaMemAccessDesc *access, \
        size_t count)) \
    X(cuMemGetAddressRange, (unsigned long long *base, size_t *size, unsigned long long address)) \
    X(cuMemsetD16Async, \
      (unsigned long long address, unsigned short value, size_t count, cudaStream_t stream)) \
    X(cuMemsetD32Async, \
      (unsigned long long address, unsigned value, size_t count, cudaStream_t stream)) \
    X(cuMemsetD2D16Async, \
      (unsigned long long address, size_t pitch, unsigned short value, size_t width, \
        size_t height, cudaStream_t stream)) \
    X(cuMemsetD2D32Async, \
      (unsigned long long address, size_t pitch, unsigned value, size_t width, size_t height, \
        cudaStream_t stream)) \
    X(cuGraphAddKernelNode, \
      (cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, \
        const ds__cuda_kernel_params *params)) \
    X(cuGraphKernelNodeSetParams, (cudaGraphNode_t node, const ds__cuda_kernel_params *params)) \
    X(cuGraphExecKernelNodeSetParams, \
      (cudaGraphExec_t exec, cudaGraphNode_t node, const ds__cuda_kernel_params *params))

/* clang-format on */

enum {
    DS__CUDA_NO_CONTEXT = 201,
    DS__CUDA_NOT_READY = 600,
    DS__CUDA_MAX_SHARED = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    DS__CUDA_HAS_SPACE = 102 /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
};

#define DS__CUDA_STAGE (4u << 20) /* bytes of a staging buffer */

/* A pinned buffer for copies between a GPU and a CPU device; those of one stream share it, since
   they run one by one. */
typedef struct ds__cuda_stage {
    struct ds__cuda_stage *next;
    void *memory;
    _Atomic size_t users; /* the stream, and the copies on their way */
} ds__cuda_stage;

typedef struct ds__cuda_stream {
    cudaStream_t handle;
    int device;
    int kind; /* DS__STREAM_* */
    int priority;
    _Atomic uint64_t capture; /* the number of the capture that it was last seen in */
    int owned;                /* the handle ends with this object */
    int blocking;             /* the stream is ordered with the legacy stream */
    /* the handle is the caller's, or may go at any time: CUDA is not asked for it any more */
    int hidden;
    uint64_t thread;         /* a per-thread stream's */
    ds__lock lock;           /* of `mark`, between its record and the wait for it */
    cudaEvent_t mark;        /* what other streams wait for; made when first needed */
    pthread_mutex_t staging; /* held while the pieces of a copy are put on the stream */
    ds__cuda_stage *stage;   /* made when first needed */
    struct ds__cuda_stream *next;
    struct ds__cuda_stream *previous;
    struct ds__cuda_stream *sibling; /* the next one of those made for a capture */
} ds__cuda_stream;

typedef struct ds__cuda_event {
    _Atomic(cudaEvent_t) event;
    int device;
    _Atomic uint64_t capture; /* of the capture in which it was recorded last; 0: outside */
    /* made for another device, where the first record failed; a reader may still have it */
    struct ds__cuda_event *older;
} ds__cuda_event;

/* A host function on its way. */
enum { DS__CUDA_PENDING, DS__CUDA_TAKEN };

typedef struct ds__cuda_host {
    struct ds__cuda_host *next;
    struct ds__cuda_host *previous;
    _Atomic int state;
    int device;
    int embedded; /* 1: part of another block; its destructor ends that */
    ds_host_fn fn;
    ds_host_fn dtor_fn;
    ds_callback_fn callback;
    void *user;
    uint64_t stream;
} ds__cuda_host;

/* What an executable graph of CUDA's keeps alive, launches on their way included. */
typedef struct ds__cuda_keep {
    struct ds__cuda_keep *next;
    struct ds__cuda_keep *previous;
    _Atomic int state; /* as of a host function */
    uint32_t count;
    ds__object *object[];
} ds__cuda_keep;

/* An image that was loaded on a device, shared by the kernels in it. */
typedef struct ds__cuda_module {
    struct ds__cuda_module *next;
    const void *image;
    void *module;
    int device;
    int users;
} ds__cuda_module;

/* A kernel on one device. */
typedef struct ds__cuda_function {
    /* what cuLaunchKernel or cudaLaunchKernel takes; NULL: not ready */
    _Atomic(void *) function;
    /* most dynamic shared memory that a launch may ask for, as things are */
    _Atomic unsigned shared;
    ds__cuda_module *module;
} ds__cuda_function;

static struct {
    int devices;
    int multiprocessors[DS__MAX_DEVICES];
    _Atomic unsigned char used[DS__MAX_DEVICES];
    /* 0: not asked yet, 1: no, 2: yes, and switched on, for good */
    _Atomic unsigned char peer[DS__MAX_DEVICES][DS__MAX_DEVICES];
    /* whether the first could reach the second: 0: not asked yet, 1: no, 2: yes */
    _Atomic unsigned char near[DS__MAX_DEVICES][DS__MAX_DEVICES];
    _Atomic size_t page[DS__MAX_DEVICES];          /* of reserved address space; 0: not asked yet */
    _Atomic(cudaMemPool_t) pool[DS__MAX_DEVICES];  /* the default one, once it is as it should be */
    unsigned long long threshold[DS__MAX_DEVICES]; /* that it had before */
    /* the primary ones, retained for good, as cudart does */
    _Atomic(void *) context[DS__MAX_DEVICES];
    /* for copies of streams of the CPU driver; made when first needed */
    cudaStream_t side[DS__MAX_DEVICES];
    /* modules, side streams: held across calls that compile or create */
    pthread_mutex_t mutex;
    /* in use, and without users until the device has been waited for */
    ds__cuda_module *modules;
    ds__lock lock;            /* of the list of streams */
    ds__cuda_stream *streams; /* all but the legacy ones */
    /* of the three lists below: a lock that no call of cudart is made under */
    ds__lock host_lock;
    ds__cuda_host *hosts;
    ds__cuda_stage *stages; /* without users */
    ds__cuda_keep *keeps;   /* what CUDA has not let go yet */
    /* what it had not at a shutdown: it may still run and end that, which stays for good */
    ds__cuda_keep *left;
    _Atomic int host_count; /* host functions that were put on a stream and have not returned */
    _Atomic int inside;     /* host functions that run */
    _Atomic uint64_t threads;
#define DS__CUDA_MEMBER(function, parameters) int(*function) parameters;
    DS__CUDA_ENTRY_POINTS(DS__CUDA_MEMBER)
#undef DS__CUDA_MEMBER
} ds__cuda = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static __thread uint64_t ds__cuda_thread; /* a number of the thread, for its own stream */

/* cuda/call.h - scopes, errors and capture modes of CUDA calls.

   Wraps the calls into CUDA. ds__cuda_enter opens a scope with a current device, ds__cuda_leave
   closes it, and ds__cuda_on opens one for a stream. DS__RT checks a call of cudart, DS__DR_CODE
   calls an entry point of the driver library, and ds__cuda_fail reports the error. ds__cuda_relax
   and ds__cuda_query_begin change the thread's capture mode around calls that an open capture could
   forbid.

   Invariants: A successful ds__cuda_enter needs one ds__cuda_leave; a failed one needs none.
   ds__cuda_leave makes the former device current again. An error that was pending in the thread
   before the scope stays its last error. ds__cuda_enter marks the device as used.
   Locks: The successful path takes none. Codes 900 to 908 take the capture lock
   (ds__cuda_capture_failed) unless the thread holds it (ds__tls.capture_locked). ds__cuda_fail may
   invoke the user's log function under the locks of the caller.
   Threads: any. A scope belongs to the thread that opened it. The per-thread stream of another
   thread is refused (ds__cuda_mine), because CUDA's handle for it means the calling thread's
   stream. */

/* After these the device cannot be used by this process any more (driver_types.h says so at
   each). */
static int ds__cuda_is_sticky(int code) {
    switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226 /* cudaErrorContained */:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case 709 /* cudaErrorContextIsDestroyed */:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721 /* cudaErrorTensorMemoryLeak */:
    case 810 /* cudaErrorMpsClientTerminated */:
    case 911 /* cudaErrorExternalDevice */:
        return 1;
    default:
        return 0;
    }
}

static ds_result ds__cuda_map(int code) {
    if (ds__cuda_is_sticky(code))
        return DS_ERR_FAILED;
    switch (code) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidSource:
    case cudaErrorLaunchOutOfResources:
    case 218 /* invalid PTX */:
    case 222 /* PTX too new */:
    case cudaErrorSymbolNotFound:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
        return DS_ERR_INVALID_VALUE;
    case cudaErrorMemoryAllocation:
        return DS_ERR_OUT_OF_MEMORY;
    case cudaErrorNotPermitted:
        return DS_ERR_NOT_PERMITTED;
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
        return DS_ERR_UNSUPPORTED;
    case cudaErrorStreamCaptureUnsupported:
        return DS_ERR_CAPTURE_UNSUPPORTED;
    case cudaErrorStreamCaptureInvalidated:
        return DS_ERR_CAPTURE_INVALIDATED;
    case cudaErrorStreamCaptureMerge:
        return DS_ERR_CAPTURE_MERGE;
    case cudaErrorStreamCaptureUnmatched:
        return DS_ERR_CAPTURE_UNMATCHED;
    case cudaErrorStreamCaptureUnjoined:
        return DS_ERR_CAPTURE_UNJOINED;
    case cudaErrorStreamCaptureIsolation:
        return DS_ERR_CAPTURE_ISOLATION;
    case cudaErrorStreamCaptureImplicit:
        return DS_ERR_CAPTURE_IMPLICIT;
    case cudaErrorCapturedEvent:
        return DS_ERR_CAPTURED_EVENT;
    case cudaErrorStreamCaptureWrongThread:
        return DS_ERR_CAPTURE_WRONG_THREAD;
    case cudaErrorGraphExecUpdateFailure:
        return DS_ERR_GRAPH_UPDATE;
    default:
        return DS_ERR_DRIVER;
    }
}

/* Around the calls of one entry. */
typedef struct ds__cuda_scope {
    int device;
    int pushed;
    cudaError_t pending;
    /* number of the capture that an error will be about; 0: not known */
    uint64_t capture;
} ds__cuda_scope;

static ds_result ds__cuda_capture_failed(const ds__cuda_scope *scope, const char *call, int code);

/* The sentence of a failed call; since CUDA 10.1 the driver's codes are cudart's. */
__attribute__((cold, noinline)) static ds_result ds__cuda_fail(const ds__cuda_scope *scope,
                                                               const char *call, int code) {
    char where[24] = "";
    int device = scope->device;
    if (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureWrongThread)
        return ds__cuda_capture_failed(scope, call, code);
    if (device >= 0)
        snprintf(where, sizeof where, " on cuda:%d", device);
    return ds__fail(
        ds__cuda_map(code), "%s%s says %d (%s: %s)%s", call, where, code,
        cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code),
        ds__cuda_is_sticky(code)
            ? ": earlier work on the device failed, and only a new process can use it again"
            : "");
}

/* A call that needs no device. */
static inline void ds__cuda_anywhere(ds__cuda_scope *scope, int device) {
    scope->device = device;
    scope->pushed = 0;
    scope->capture = 0;
    scope->pending = cudaPeekAtLastError();
}

/* An error that is of no interest; it is taken from the thread unless one of the user's was
   there before. */
static inline void ds__cuda_ignore(const ds__cuda_scope *scope, cudaError_t code) {
    if (DS__UNLIKELY(code != cudaSuccess) && scope->pending == cudaSuccess)
        (void)cudaGetLastError();
}

/* The result of a cudart call. */
__attribute__((cold, noinline)) static ds_result ds__cuda_failed(const ds__cuda_scope *scope,
                                                                 cudaError_t code,
                                                                 const char *call) {
    if (scope->pending == cudaSuccess)
        (void)cudaGetLastError();
    return ds__cuda_fail(scope, call, (int)code);
}

static inline ds_result ds__cuda_check(const ds__cuda_scope *scope, cudaError_t code,
                                       const char *call) {
    return DS__LIKELY(code == cudaSuccess) ? DS_OK : ds__cuda_failed(scope, code, call);
}

#define DS__RT(scope, function, arguments) ds__cuda_check(&(scope), function arguments, #function)

/* Around calls that the user did not ask for and that an open capture, anyone's, may forbid the
   thread or be spoiled by: module loading, pinned buffers, peer access. Inside of a scope. */
static int ds__cuda_relax(const ds__cuda_scope *scope, enum cudaStreamCaptureMode *mode) {
    *mode = cudaStreamCaptureModeRelaxed;
    cudaError_t code = cudaThreadExchangeStreamCaptureMode(mode);
    ds__cuda_ignore(scope, code);
    return code == cudaSuccess;
}

static void ds__cuda_unrelax(const ds__cuda_scope *scope, int relaxed,
                             enum cudaStreamCaptureMode mode) {
    cudaError_t code = relaxed ? cudaErrorUnknown : cudaSuccess;
    for (int tries = 0; tries < 3 && code != cudaSuccess; tries++)
        ds__cuda_ignore(scope, code = cudaThreadExchangeStreamCaptureMode(&mode));
}

/* Around queries, which CUDA counts among the calls that are not safe in an open capture,
   although they touch nothing of it: observed by PyTorch's maintainers (pull requests 104487 and
   104555 there). What belongs to a capture is refused in every mode. Captures that were not
   begun here are not known. */
static inline int ds__cuda_query_begin(const ds__cuda_scope *scope,
                                       enum cudaStreamCaptureMode *mode) {
    return DS__UNLIKELY(ds__captures_open()) ? ds__cuda_relax(scope, mode) : 0;
}

static inline void ds__cuda_query_end(const ds__cuda_scope *scope, int relaxed,
                                      enum cudaStreamCaptureMode mode) {
    if (DS__UNLIKELY(relaxed))
        ds__cuda_unrelax(scope, relaxed, mode);
}

/* Gives the thread the context of its current device, which is the scope's: the driver's
   functions, unlike cudart's, do not do that themselves. */
__attribute__((cold, noinline)) static int ds__cuda_bind(const ds__cuda_scope *scope) {
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = cudaFree(NULL);
    ds__cuda_ignore(scope, code);
    ds__cuda_unrelax(scope, relaxed, mode);
    return code == cudaSuccess;
}

/* The code of a driver function; it leaves cudart's last error alone. */
#define DS__DR_CODE(scope, code, function, arguments)                             \
    do {                                                                          \
        code = ds__cuda.function arguments;                                       \
        if (DS__UNLIKELY(code == DS__CUDA_NO_CONTEXT) && ds__cuda_bind(&(scope))) \
            code = ds__cuda.function arguments;                                   \
    } while (0)

__attribute__((noinline)) static ds_result ds__cuda_switch(ds__cuda_scope *scope) {
    void *context = atomic_load_explicit(&ds__cuda.context[scope->device], memory_order_acquire);
    /* two threads that come here at once retain the same one twice, which does no harm */
    if (DS__UNLIKELY(!context)) {
        /* ordinals are those of cudart */
        int code = ds__cuda.cuDevicePrimaryCtxRetain(&context, scope->device);
        if (code)
            return ds__cuda_fail(scope, "cuDevicePrimaryCtxRetain", code);
        atomic_store_explicit(&ds__cuda.context[scope->device], context, memory_order_release);
    }
    int code = ds__cuda.cuCtxPushCurrent(context);
    if (DS__UNLIKELY(code))
        return ds__cuda_fail(scope, "cuCtxPushCurrent", code);
    scope->pushed = 1;
    return DS_OK;
}

/* Makes the device current until ds__cuda_leave; nothing to leave when it fails. */
static inline ds_result ds__cuda_enter(ds__cuda_scope *scope, int device) {
    int now = -1;
    ds__cuda_anywhere(scope, device);
    if (DS__UNLIKELY(!atomic_load_explicit(&ds__cuda.used[device], memory_order_relaxed)))
        atomic_store(&ds__cuda.used[device], 1);
    /* no other can be current */
    if (ds__cuda.devices == 1)
        return DS_OK;
    cudaError_t code = cudaGetDevice(&now);
    if (DS__UNLIKELY(code != cudaSuccess))
        return ds__cuda_failed(scope, code, "cudaGetDevice");
    return DS__LIKELY(now == device) ? DS_OK : ds__cuda_switch(scope);
}

static inline void ds__cuda_leave(const ds__cuda_scope *scope) {
    void *context;
    if (DS__UNLIKELY(scope->pushed))
        (void)ds__cuda.cuCtxPopCurrent(&context);
}

/* For what must be done in any case: where the device cannot be made current it is tried
   without. */
static void ds__cuda_enter_or_not(ds__cuda_scope *scope, int device) {
    if (ds__cuda_enter(scope, device) < 0 && ds__cuda_enter(scope, device) < 0)
        ds__cuda_anywhere(scope, device);
}

static uint64_t ds__cuda_this_thread(void) {
    if (!ds__cuda_thread)
        ds__cuda_thread = atomic_fetch_add(&ds__cuda.threads, 1) + 1;
    return ds__cuda_thread;
}

/* CUDA's handle 2 means the stream of whoever calls, so it cannot stand for another thread's. */
static inline ds_result ds__cuda_mine(const ds__cuda_stream *s) {
    if (DS__LIKELY(s->kind != DS__STREAM_PER_THREAD || s->thread == ds__cuda_this_thread()))
        return DS_OK;
    return ds__fail(DS_ERR_UNSUPPORTED, "CUDA cannot use the per-thread stream of another thread");
}

/* For calls on a stream. */
static inline ds_result ds__cuda_on(ds__cuda_scope *scope, const ds__cuda_stream *s) {
    ds_result r = ds__cuda_mine(s);
    if (DS__LIKELY(r == DS_OK))
        r = ds__cuda_enter(scope, s->device);
    if (DS__LIKELY(r == DS_OK))
        scope->capture = atomic_load_explicit(&s->capture, memory_order_relaxed);
    return r;
}

/* cuda/device.h - start-up and devices.

   Finds the CUDA devices and the entry points of the driver library (ds__cuda_probe) and starts the
   driver (ds__cuda_start). Implements the device entries: properties, memory, links, speed, peer
   access, priorities and synchronisation. Reset is not supported.

   Invariants: ds__cuda_probe creates no context. Peer access is asked for once for each ordered
   pair of devices, is enabled with the first positive answer, and is never disabled.
   ds__cuda_device_synchronize unloads only modules that had no users before the wait.
   Locks: ds__cuda_device_synchronize takes ds__cuda.mutex before and after its wait, never during
   the wait. The other functions take none.
   Threads: probe and start run during initialisation, all other entries on any thread. If two
   threads enable the same peer access, the second one accepts CUDA's answer "already enabled".
   Memory queries and peer access run in relaxed capture mode, so open captures neither forbid them
   nor become invalid. */

static cudaError_t ds__cuda_entry_point(const char *name, void **out) {
#if CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t code =
        cudaGetDriverEntryPointByVersion(name, out, 11080, cudaEnableLegacyStream, &found);
#else
    cudaError_t code = cudaGetDriverEntryPoint(name, out, cudaEnableLegacyStream, &found);
#endif
    if (code == cudaSuccess && found != cudaDriverEntryPointSuccess)
        *out = NULL;
#else
    cudaError_t code = cudaGetDriverEntryPoint(name, out, cudaEnableLegacyStream);
#endif
    return code == cudaSuccess && !*out ? cudaErrorSymbolNotFound : code;
}

/* Creates no context: a process that only asks takes no memory of a GPU. */
static void ds__cuda_probe(ds_backend_info *out) {
    static const char *const names[] = {
#define DS__CUDA_NAME(function, parameters) #function,
        DS__CUDA_ENTRY_POINTS(DS__CUDA_NAME)
#undef DS__CUDA_NAME
    };
    void *found[sizeof names / sizeof names[0]] = { NULL };
    /* a call that fails leaves the next three untouched */
    int count = 0;
    int runtime = 0;
    int driver = 0;
    const char *call = "cudaGetDeviceCount";
    cudaError_t pending = cudaPeekAtLastError();
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0) {
        call = "cudaRuntimeGetVersion";
        code = cudaRuntimeGetVersion(&runtime);
    }
    if (code == cudaSuccess && count > 0) {
        call = "cudaDriverGetVersion";
        code = cudaDriverGetVersion(&driver);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0] && code == cudaSuccess && count > 0;
         i++) {
        call = names[i];
        code = ds__cuda_entry_point(names[i], &found[i]);
    }
    if (code != cudaSuccess) {
        if (pending == cudaSuccess)
            (void)cudaGetLastError();
        snprintf(out->reason, sizeof out->reason, "not taken: %s says %d (%s: %s)", call, (int)code,
                 cudaGetErrorName(code), cudaGetErrorString(code));
        return;
    }
    if (count == 0) {
        snprintf(out->reason, sizeof out->reason, "not taken: cudaGetDeviceCount finds no device");
        return;
    }
    int i = 0;
#define DS__CUDA_TAKE(function, parameters) \
    memcpy(&ds__cuda.function, &found[i++], sizeof ds__cuda.function);
    DS__CUDA_ENTRY_POINTS(DS__CUDA_TAKE)
#undef DS__CUDA_TAKE
    if (count > DS__MAX_DEVICES)
        count = DS__MAX_DEVICES;
    out->available = 1;
    out->device_count = ds__cuda.devices = count;
    snprintf(out->reason, sizeof out->reason, "taken: %d device%s, driver %d.%d, runtime %d.%d",
             count, count > 1 ? "s" : "", driver / 1000, driver % 1000 / 10, runtime / 1000,
             runtime % 1000 / 10);
}

static ds_result ds__cuda_attribute(int device, enum cudaDeviceAttr attribute, int *out) {
    ds__cuda_scope scope;
    ds__cuda_anywhere(&scope, device);
    return DS__RT(scope, cudaDeviceGetAttribute, (out, attribute, device));
}

static ds_result ds__cuda_start(void) {
    ds_result r = DS_OK;
    for (int i = 0; i < ds__cuda.devices && r == DS_OK; i++) {
        ds__cuda.side[i] = NULL;
        atomic_store(&ds__cuda.used[i], 0);
        atomic_store(&ds__cuda.page[i], 0);
        atomic_store(&ds__cuda.peer[i][i], 2);
        r = ds__cuda_attribute(i, cudaDevAttrMultiProcessorCount, &ds__cuda.multiprocessors[i]);
    }
    return r;
}

static ds_result ds__cuda_device_properties(int device, ds_device_properties *out) {
    struct cudaDeviceProp prop;
    ds__cuda_scope scope;
    memset(out, 0, sizeof *out);
    ds__cuda_anywhere(&scope, device);
    /* only for what no attribute tells */
    ds_result r = DS__RT(scope, cudaGetDeviceProperties, (&prop, device));
    if (r == DS_OK)
        r = DS__RT(scope, cudaDeviceGetPCIBusId, (out->pci, (int)sizeof out->pci, device));
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrComputeCapabilityMajor, &out->major);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrComputeCapabilityMinor, &out->minor);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrUnifiedAddressing, &out->unified_addressing);
    if (r < 0) {
        memset(out, 0, sizeof *out);
        return r;
    }
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, prop.name);
    memcpy(out->uuid, &prop.uuid, sizeof out->uuid);
    out->total_memory = prop.totalGlobalMem;
    out->multiprocessors = ds__cuda.multiprocessors[device];
    return DS_OK;
}

/* All atomics of the other's memory are native over NVLink, and over no PCIe. */
static ds_result ds__cuda_device_link(int device, int peer, int *out) {
    ds__cuda_scope scope;
    ds__cuda_anywhere(&scope, device);
    return DS__RT(scope, cudaDeviceGetP2PAttribute,
                  (out, cudaDevP2PAttrNativeAtomicSupported, device, peer));
}

static ds_result ds__cuda_device_speed(int device, int *out_engines, double *out_memory) {
    int khz = 0;
    int bits = 0;
    ds_result r = ds__cuda_attribute(device, cudaDevAttrAsyncEngineCount, out_engines);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrMemoryClockRate, &khz);
    if (r == DS_OK)
        r = ds__cuda_attribute(device, cudaDevAttrGlobalMemoryBusWidth, &bits);
    *out_memory = r == DS_OK ? khz * 1e3 * 2 /* data goes at both edges */ * bits / 8 : 0;
    return r;
}

static ds_result ds__cuda_device_memory(int device, size_t *out_free, size_t *out_total) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = DS__RT(scope, cudaMemGetInfo, (out_free, out_total));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    return r;
}

static int ds__cuda_device_used(int device) {
    return atomic_load(&ds__cuda.used[device]);
}

static ds__cuda_module *ds__cuda_take_modules(int device, int all);
static void ds__cuda_unload(const ds__cuda_scope *scope, ds__cuda_module *list);

static ds_result ds__cuda_device_synchronize(int device) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    /* before the wait: their launches are behind it then */
    ds__cuda_module *unused = ds__cuda_take_modules(device, 0);
    r = DS__RT(scope, cudaDeviceSynchronize, ());
    if (r == DS_OK) {
        ds__cuda_unload(&scope, unused);
    } else {
        pthread_mutex_lock(&ds__cuda.mutex);
        while (unused) {
            ds__cuda_module *m = unused;
            unused = m->next;
            m->next = ds__cuda.modules;
            ds__cuda.modules = m;
        }
        pthread_mutex_unlock(&ds__cuda.mutex);
    }
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_device_reset(int device) {
    return ds__fail(
        DS_ERR_UNSUPPORTED,
        "cuda:%d cannot be reset within a process that others share; start a new process", device);
}

/* Asked once per pair; access is switched on with the first answer. */
static ds_result ds__cuda_device_peer(int device, int peer, int *out) {
    unsigned char known = atomic_load_explicit(&ds__cuda.peer[device][peer], memory_order_acquire);
    ds_result r = DS_OK;
    if (!known) {
        ds__cuda_scope scope;
        int can = 0;
        if ((r = ds__cuda_enter(&scope, device)) < 0)
            return r;
        r = DS__RT(scope, cudaDeviceCanAccessPeer, (&can, device, peer));
        if (r == DS_OK && can) {
            enum cudaStreamCaptureMode mode;
            int relaxed = ds__cuda_relax(&scope, &mode);
            cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
            ds__cuda_unrelax(&scope, relaxed, mode);
            /* copies are staged then */
            if (code == cudaErrorTooManyPeers || code == cudaErrorPeerAccessUnsupported)
                can = 0;
            if (!can || code == cudaErrorPeerAccessAlreadyEnabled /* by the program itself */)
                ds__cuda_ignore(&scope, code);
            else
                r = ds__cuda_check(&scope, code, "cudaDeviceEnablePeerAccess");
        }
        ds__cuda_leave(&scope);
        if (r < 0)
            return r;
        known = can ? 2 : 1;
        atomic_store_explicit(&ds__cuda.peer[device][peer], known, memory_order_release);
    }
    *out = known == 2;
    return r;
}

static ds_result ds__cuda_priority_range(int device, int *out_least, int *out_greatest) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaDeviceGetStreamPriorityRange, (out_least, out_greatest));
    ds__cuda_leave(&scope);
    return r;
}

/* cuda/stream.h - stream objects.

   Creates, wraps and ends the driver's stream objects (ds__cuda_stream) and keeps the list of them.
   Implements the entries stream_create, stream_wrap, stream_native, stream_destroy, stream_unwrap,
   stream_hide, stream_forget and stream_identity.

   Invariants: Every stream object except those of the legacy streams is in ds__cuda.streams. At
   most one of them owns a native handle. If the last object of a handle is ended or hidden, the
   captures that began on the handle are over. A destroyed native stream is freed by CUDA when its
   work is done.
   Locks: The list functions take ds__cuda.lock; this room calls no driver under it. Ending or
   hiding a stream may take the capture lock, so the caller must not hold it. Creating a stream is
   allowed under the capture lock.
   Threads: any. The caller ensures exclusive use of a stream object while the object ends. */

/* The lock is held. */
static void ds__cuda_link_stream(ds__cuda_stream *s) {
    s->previous = NULL;
    s->next = ds__cuda.streams;
    if (s->next)
        s->next->previous = s;
    ds__cuda.streams = s;
}

static void ds__cuda_list_stream(ds__cuda_stream *s) {
    ds__lock_take(&ds__cuda.lock);
    ds__cuda_link_stream(s);
    ds__lock_give(&ds__cuda.lock);
}

static void ds__cuda_unlist_stream(ds__cuda_stream *s) {
    ds__lock_take(&ds__cuda.lock);
    if (s->previous)
        s->previous->next = s->next;
    else if (ds__cuda.streams == s)
        ds__cuda.streams = s->next;
    if (s->next)
        s->next->previous = s->previous;
    ds__lock_give(&ds__cuda.lock);
}

/* Creates a stream on the device that is current; *priority becomes the one in effect. */
static ds_result ds__cuda_make_stream(const ds__cuda_scope *scope, unsigned flags, int *priority,
                                      cudaStream_t *out) {
    ds_result r = DS__RT(
        *scope, cudaStreamCreateWithPriority,
        (out, flags & DS_STREAM_BLOCKING ? cudaStreamDefault : cudaStreamNonBlocking, *priority));
    if (r < 0)
        return r;
    r = DS__RT(*scope, cudaStreamGetPriority, (*out, priority));
    if (r < 0) {
        ds__cuda_ignore(scope, cudaStreamDestroy(*out));
        *out = NULL;
    }
    return r;
}

/* The object of a stream; NULL: no memory, and the sentence is set. */
static ds__cuda_stream *ds__cuda_new_stream(cudaStream_t handle, int device, int kind) {
    ds__cuda_stream *s = ds__alloc(sizeof *s);
    if (!s) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
        return NULL;
    }
    s->handle = handle;
    s->device = device;
    s->kind = kind;
    s->thread = ds__cuda_this_thread();
    pthread_mutex_init(&s->staging, NULL);
    return s;
}

static ds_result ds__cuda_stream_create(int device, int kind, unsigned flags, int *priority,
                                        void **out) {
    ds__cuda_scope scope;
    ds__cuda_stream *s = ds__cuda_new_stream(
        kind == DS__STREAM_LEGACY ? cudaStreamLegacy : cudaStreamPerThread, device, kind);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    s->owned = kind == DS__STREAM_NEW;
    s->blocking = (flags & DS_STREAM_BLOCKING) != 0;
    ds_result r = DS_OK;
    if (kind == DS__STREAM_NEW) {
        if ((r = ds__cuda_enter(&scope, device)) == DS_OK) {
            r = ds__cuda_make_stream(&scope, flags, priority, &s->handle);
            ds__cuda_leave(&scope);
        }
    } else {
        *priority = 0;
    }
    s->priority = *priority;
    if (r < 0) {
        pthread_mutex_destroy(&s->staging);
        ds__release(s);
        return r;
    }
    if (kind != DS__STREAM_LEGACY)
        ds__cuda_list_stream(s);
    *out = s;
    return DS_OK;
}

static void ds__cuda_stage_drop(ds__cuda_stage *stage);
static void ds__cuda_stop_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s);
static void ds__cuda_find_spoilt(const ds__cuda_scope *scope, const char *rule);

/* Whether another stream object has the handle. */
static int ds__cuda_is_shared(const ds__cuda_stream *s) {
    int found = 0;
    ds__lock_take(&ds__cuda.lock);
    for (const ds__cuda_stream *o = ds__cuda.streams; o; o = o->next)
        found |= o != s && !o->hidden && o->handle == s->handle && o->device == s->device;
    ds__lock_give(&ds__cuda.lock);
    return found;
}

/* owned: ends the native stream too. CUDA frees it when its work is done. A handle that was
   borrowed may end at any time from here on, so that nobody could ask any more for the captures
   that began on it: they are over. */
static void ds__cuda_end_stream(ds__cuda_stream *s, int owned) {
    ds__cuda_scope scope;
    ds__cuda_unlist_stream(s); /* first, so that nobody finds the handle any more */
    ds__cuda_enter_or_not(&scope, s->device);
    if (DS__UNLIKELY(ds__captures_open()) &&
        (owned || (s->kind == DS__STREAM_NEW && !s->hidden && !ds__cuda_is_shared(s))))
        ds__cuda_stop_capture(&scope, s);
    if (s->mark)
        ds__cuda_ignore(&scope, cudaEventDestroy(s->mark));
    if (owned)
        ds__cuda_ignore(&scope, cudaStreamDestroy(s->handle));
    if (DS__UNLIKELY(owned && ds__captures_open()))
        ds__cuda_find_spoilt(&scope, "a stream that was forked into the capture was destroyed");
    ds__cuda_leave(&scope);
    if (s->stage)
        ds__cuda_stage_drop(s->stage);
    pthread_mutex_destroy(&s->staging);
    ds__release(s);
}

static void ds__cuda_stream_forget(void *stream) {
    ds__cuda_end_stream(stream, 0);
}

static void ds__cuda_stream_destroy(void *stream) {
    ds__cuda_end_stream(stream, ((ds__cuda_stream *)stream)->kind == DS__STREAM_NEW);
}

static void ds__cuda_stream_unwrap(void *stream) {
    ds__cuda_stream *s = stream;
    ds__lock_take(&ds__cuda.lock);
    s->owned = s->blocking = 0;
    s->hidden = 1;
    ds__lock_give(&ds__cuda.lock);
}

/* The object may stay, as somebody's current stream: what began on the handle is over now, not
   when it goes. */
static void ds__cuda_stream_hide(void *stream) {
    ds__cuda_scope scope;
    ds__cuda_stream *s = stream;
    ds__cuda_stream_unwrap(s);
    if (DS__LIKELY(!ds__captures_open()) || ds__cuda_is_shared(s))
        return;
    ds__cuda_enter_or_not(&scope, s->device);
    ds__cuda_stop_capture(&scope, s);
    ds__cuda_leave(&scope);
}

/* Lists a wrapper; refuses a second owner. */
static ds_result ds__cuda_list_wrapper(ds__cuda_stream *s) {
    int taken = 0;
    ds__lock_take(&ds__cuda.lock);
    for (ds__cuda_stream *o = ds__cuda.streams; o && s->owned; o = o->next)
        taken |= o->owned && o->handle == s->handle && o->device == s->device;
    if (!taken)
        ds__cuda_link_stream(s);
    ds__lock_give(&ds__cuda.lock);
    return taken ? ds__fail(DS_ERR_INVALID_VALUE, "the native stream has an owner already") : DS_OK;
}

static ds_result ds__cuda_stream_wrap(int device, void *native, int own, unsigned *out_flags,
                                      int *out_priority, void **out) {
    ds__cuda_scope scope;
    unsigned flags = 0;
    int on = device;
    ds__cuda_stream *s = ds__cuda_new_stream(native, device, DS__STREAM_NEW);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r == DS_OK) {
        r = DS__RT(scope, cudaStreamGetFlags, (s->handle, &flags));
        if (r == DS_OK)
            r = DS__RT(scope, cudaStreamGetPriority, (s->handle, out_priority));
#if CUDART_VERSION >= 12080
        if (r == DS_OK) { /* drivers older than that cannot say */
            cudaError_t code = cudaStreamGetDevice(s->handle, &on);
            if (code == cudaErrorCallRequiresNewerDriver) {
                ds__cuda_ignore(&scope, code);
                on = device;
            } else
                r = ds__cuda_check(&scope, code, "cudaStreamGetDevice");
        }
#endif
        ds__cuda_leave(&scope);
    }
    if (r == DS_OK && on != device)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%p is a stream of cuda:%d, not of cuda:%d", native, on,
                     device);
    *out_flags = flags & cudaStreamNonBlocking ? DS_STREAM_NON_BLOCKING : DS_STREAM_BLOCKING;
    s->owned = own;
    s->priority = *out_priority;
    s->blocking = *out_flags == DS_STREAM_BLOCKING;
    if (r == DS_OK)
        r = ds__cuda_list_wrapper(s);
    if (r < 0) {
        pthread_mutex_destroy(&s->staging);
        ds__release(s);
        return r;
    }
    *out = s;
    return DS_OK;
}

static ds_result ds__cuda_stream_native(void *stream, void **out) {
    const ds__cuda_stream *s = stream;
    ds_result r = ds__cuda_mine(s);
    if (r == DS_OK)
        *out = s->handle;
    return r;
}

static const void *ds__cuda_stream_identity(void *stream) {
    const ds__cuda_stream *s = stream;
    return s->kind == DS__STREAM_PER_THREAD ? (const void *)s : (const void *)s->handle;
}

/* cuda/stream_wait.h - queries of streams and waits of the host.

   Tells whether the work of a stream is done (ds__cuda_stream_query) and waits for it
   (ds__cuda_stream_synchronize). Records an event for later waits (ds__cuda_mark). Waits with a
   time limit by polling (ds__cuda_poll), also for events.

   Invariants: The query and the wait of the legacy stream include each blocking stream of its
   device. CUDA's query of its handle counts only its own work. Nothing is enqueued on the legacy
   stream, since that would be a barrier for all blocking streams. Per-thread streams of other
   threads are left out.
   Locks: ds__cuda_legacy_query and ds__cuda_mark_busy hold ds__cuda.lock across cuStreamQuery,
   cudaEventCreateWithFlags and cudaEventRecord. Waits and error reports come after its release.
   Threads: any. If a capture is open, queries run in relaxed capture mode. The list of blocking
   streams may change between its count and the records; streams beyond the count are not waited
   for. */

/* The legacy stream's work comes after that of the blocking streams, but asking CUDA for it
   counts its own work only, and to put something on it would be a barrier for all of them. So
   they are asked one by one, those of other threads excepted. */
static int ds__cuda_with_legacy(const ds__cuda_stream *s, const ds__cuda_stream *legacy) {
    return s->blocking && s->device == legacy->device &&
           (s->kind != DS__STREAM_PER_THREAD || s->thread == ds__cuda_this_thread());
}

static ds_result ds__cuda_legacy_query(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int code;
    ds_result r = ds__cuda_enter(&scope, legacy->device);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (legacy->handle));
    ds__lock_take(&ds__cuda.lock);
    for (const ds__cuda_stream *s = ds__cuda.streams; s && code == 0; s = s->next)
        if (ds__cuda_with_legacy(s, legacy))
            DS__DR_CODE(scope, code, cuStreamQuery, (s->handle));
    ds__lock_give(&ds__cuda.lock);
    ds__cuda_query_end(&scope, relaxed, mode);
    r = code == 0                    ? DS_OK
        : code == DS__CUDA_NOT_READY ? DS_NOT_READY
                                     : ds__cuda_fail(&scope, "cuStreamQuery", code);
    ds__cuda_leave(&scope);
    return r;
}

/* Makes an event and records it. The sentence of a failure is the caller's to make, once it
   holds no lock of a stream or of their list any more: one about captures takes the capture
   lock, under which others take those. *call: what failed. */
static cudaError_t ds__cuda_mark(cudaEvent_t *event, cudaStream_t stream, const char **call) {
    cudaError_t code =
        *event ? cudaSuccess : cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    *call = "cudaEventCreateWithFlags";
    if (DS__UNLIKELY(code != cudaSuccess)) {
        *event = NULL;
        return code;
    }
    *call = "cudaEventRecord";
    return cudaEventRecord(*event, stream);
}

/* Puts an event on each blocking stream that has work; inside of a scope with the device
   current. */
static ds_result ds__cuda_mark_busy(const ds__cuda_scope *scope, const ds__cuda_stream *legacy,
                                    cudaEvent_t *events, size_t room, size_t *out_count) {
    cudaError_t failed = cudaSuccess;
    const char *call = "";
    ds__lock_take(&ds__cuda.lock);
    for (const ds__cuda_stream *s = ds__cuda.streams;
         s && *out_count < room && failed == cudaSuccess; s = s->next) {
        int code;
        if (!ds__cuda_with_legacy(s, legacy))
            continue;
        DS__DR_CODE(*scope, code, cuStreamQuery, (s->handle));
        if (code != DS__CUDA_NOT_READY)
            continue;
        failed = ds__cuda_mark(&events[*out_count], s->handle, &call);
        *out_count += events[*out_count] != NULL;
    }
    ds__lock_give(&ds__cuda.lock);
    return ds__cuda_check(scope, failed, call);
}

static ds_result ds__cuda_legacy_synchronize(const ds__cuda_stream *legacy) {
    ds__cuda_scope scope;
    size_t room = 0;
    size_t count = 0;
    ds__lock_take(&ds__cuda.lock);
    for (const ds__cuda_stream *s = ds__cuda.streams; s; s = s->next)
        room += (size_t)ds__cuda_with_legacy(s, legacy);
    ds__lock_give(&ds__cuda.lock);
    cudaEvent_t *events = ds__alloc((room + 1) * sizeof(cudaEvent_t));
    if (!events)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to wait for %zu streams", room);
    ds_result r = ds__cuda_enter(&scope, legacy->device);
    if (r < 0) {
        ds__release(events);
        return r;
    }
    /* first: while a blocking stream captures this one is refused, and to ask that one would
       spoil the capture as well */
    int code;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (legacy->handle));
    r = code == 0 || code == DS__CUDA_NOT_READY
            ? ds__cuda_mark_busy(&scope, legacy, events, room, &count)
            : ds__cuda_fail(&scope, "cuStreamQuery", code);
    ds__cuda_query_end(&scope, relaxed, mode);
    if (r == DS_OK)
        r = DS__RT(scope, cudaStreamSynchronize, (legacy->handle));
    for (size_t i = 0; i < count; i++) {
        if (r == DS_OK)
            r = DS__RT(scope, cudaEventSynchronize, (events[i]));
        ds__cuda_ignore(&scope, cudaEventDestroy(events[i]));
    }
    ds__cuda_leave(&scope);
    ds__release(events);
    return r;
}

static ds_result ds__cuda_stream_query(void *stream) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int code;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_legacy_query(s);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    DS__DR_CODE(scope, code, cuStreamQuery, (s->handle));
    ds__cuda_query_end(&scope, relaxed, mode);
    r = DS__LIKELY(code == 0)        ? DS_OK
        : code == DS__CUDA_NOT_READY ? DS_NOT_READY
                                     : ds__cuda_fail(&scope, "cuStreamQuery", code);
    ds__cuda_leave(&scope);
    return r;
}

/* CUDA has no wait with a limit: asks again and again, in short order at first. */
static ds_result ds__cuda_poll(ds_result (*query)(void *object), void *object,
                               uint64_t timeout_ns) {
    uint64_t begin = ds__now_ns();
    uint64_t passed = 0;
    uint64_t nap = 5000;
    for (;;) {
        ds_result r = query(object);
        if (r != DS_NOT_READY || passed >= timeout_ns)
            return r;
        if (passed < 20000) {
            ds__pause();
        } else {
            uint64_t left = timeout_ns - passed;
            uint64_t ns = nap < left ? nap : left;
            struct timespec t = { 0, (long)ns };
            syscall(SYS_nanosleep, &t, NULL);
            if (nap < 100000)
                nap *= 2;
        }
        passed = ds__now_ns() - begin;
    }
}

static ds_result ds__cuda_stream_synchronize(void *stream, uint64_t timeout_ns) {
    const ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    if (timeout_ns != DS__FOREVER)
        return ds__cuda_poll(ds__cuda_stream_query, stream, timeout_ns);
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_legacy_synchronize(s);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaStreamSynchronize, (s->handle));
    ds__cuda_leave(&scope);
    return r;
}

/* cuda/event.h - events.

   Creates, destroys, queries, waits for and measures the driver's events (ds__cuda_event), and
   exchanges them with other processes (export, import). The core creates an event for its first
   record. If that record failed and the next one is on another device, ds__cuda_event_create makes
   a new event and chains the former one (`older`).

   Invariants: The native event and the device of an object never change. An older event lives until
   ds__cuda_event_destroy, because a reader may still hold it. `capture` is the number of the
   capture in which the event was last recorded, or 0.
   Locks: none of the driver. The core holds the event's own lock (`bind`) around
   ds__cuda_event_create, so cudaEventCreateWithFlags runs under a spinlock. No lock is needed for a
   wait.
   Threads: any; all entries except destroy may run concurrently on one event. If a capture is open,
   queries and elapsed times run in relaxed capture mode. A wait with a time limit polls
   (ds__cuda_poll). */

static ds_result ds__cuda_make_event(const ds__cuda_scope *scope, unsigned flags,
                                     cudaEvent_t *out) {
    return DS__RT(
        *scope, cudaEventCreateWithFlags,
        (out, (flags & DS_EVENT_TIMING ? 0u : (unsigned)cudaEventDisableTiming) |
                  (flags & DS_EVENT_BLOCKING_WAIT ? (unsigned)cudaEventBlockingSync : 0u) |
                  (flags & DS_EVENT_INTERPROCESS ? (unsigned)cudaEventInterprocess : 0u)));
}

/* *out may hold an event already, whose first record failed: it moves to the device. */
static ds_result ds__cuda_event_create(int device, unsigned flags, void **out) {
    ds__cuda_event *before = *out;
    ds__cuda_scope scope;
    cudaEvent_t event = NULL;
    if (before && before->device == device)
        return DS_OK;
    ds__cuda_event *e = ds__alloc(sizeof *e);
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    ds_result r = ds__cuda_enter(&scope, device);
    if (r == DS_OK) {
        r = ds__cuda_make_event(&scope, flags, &event);
        ds__cuda_leave(&scope);
    }
    if (r < 0) {
        ds__release(e);
        return r;
    }
    e->event = event;
    e->device = device;
    e->older = before;
    *out = e;
    return DS_OK;
}

static void ds__cuda_event_destroy(void *event) {
    ds__cuda_scope scope;
    for (ds__cuda_event *e = event; e;) {
        ds__cuda_event *older = e->older;
        ds__cuda_enter_or_not(&scope, e->device);
        ds__cuda_ignore(&scope, cudaEventDestroy(e->event));
        ds__cuda_leave(&scope);
        ds__release(e);
        e = older;
    }
}

static ds_result ds__cuda_event_query(void *event) {
    const ds__cuda_event *e = event;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int code;
    ds_result r = ds__cuda_enter(&scope, e->device);
    if (r < 0)
        return r;
    scope.capture = atomic_load_explicit(&e->capture, memory_order_relaxed);
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    DS__DR_CODE(scope, code, cuEventQuery, (e->event));
    ds__cuda_query_end(&scope, relaxed, mode);
    r = DS__LIKELY(code == 0)        ? DS_OK
        : code == DS__CUDA_NOT_READY ? DS_NOT_READY
                                     : ds__cuda_fail(&scope, "cuEventQuery", code);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_event_synchronize(void *event, uint64_t timeout_ns) {
    const ds__cuda_event *e = event;
    ds__cuda_scope scope;
    if (timeout_ns != DS__FOREVER)
        return ds__cuda_poll(ds__cuda_event_query, event, timeout_ns);
    ds_result r = ds__cuda_enter(&scope, e->device);
    if (r < 0)
        return r;
    scope.capture = atomic_load_explicit(&e->capture, memory_order_relaxed);
    r = DS__RT(scope, cudaEventSynchronize, (e->event));
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_event_elapsed(void *start, void *end, double *out_ms) {
    const ds__cuda_event *a = start;
    const ds__cuda_event *b = end;
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    float ms = 0;
    ds_result r = ds__cuda_enter(&scope, a->device);
    if (r < 0)
        return r;
    if (!(scope.capture = atomic_load_explicit(&a->capture, memory_order_relaxed)))
        scope.capture = atomic_load_explicit(&b->capture, memory_order_relaxed);
    int relaxed = ds__cuda_query_begin(&scope, &mode);
    cudaError_t code = cudaEventElapsedTime(&ms, a->event, b->event);
    ds__cuda_query_end(&scope, relaxed, mode);
    /* recorded again in this moment */
    if (code == cudaErrorNotReady) {
        ds__cuda_ignore(&scope, code);
        r = DS_NOT_READY;
    } else
        r = ds__cuda_check(&scope, code, "cudaEventElapsedTime");
    ds__cuda_leave(&scope);
    if (r == DS_OK)
        *out_ms = (double)ms;
    return r;
}

/* What CUDA says when a process opens a handle of its own. */
static ds_result ds__cuda_own_handle(const ds__cuda_scope *scope, cudaError_t code,
                                     const char *call) {
    ds__cuda_ignore(scope, code);
    return ds__fail(
        DS_ERR_ILLEGAL_STATE,
        "%s says %d (%s): the handle seems to be of this process; use what it was made of", call,
        (int)code, cudaGetErrorName(code));
}

static ds_result ds__cuda_event_export(void *event, unsigned char *out) {
    const ds__cuda_event *e = event;
    cudaIpcEventHandle_t handle;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, e->device);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaIpcGetEventHandle, (&handle, e->event));
    ds__cuda_leave(&scope);
    if (r == DS_OK)
        memcpy(out, &handle, sizeof handle);
    return r;
}

static ds_result ds__cuda_event_import(int device, const unsigned char *bytes, void **out) {
    cudaIpcEventHandle_t handle;
    cudaEvent_t event = NULL;
    ds__cuda_scope scope;
    memcpy(&handle, bytes, sizeof handle);
    ds__cuda_event *e = ds__alloc(sizeof *e);
    if (!e)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    ds_result r = ds__cuda_enter(&scope, device);
    if (r == DS_OK) {
        cudaError_t code = cudaIpcOpenEventHandle(&event, handle);
        r = code == cudaErrorDeviceUninitialized
                ? ds__cuda_own_handle(&scope, code, "cudaIpcOpenEventHandle")
                : ds__cuda_check(&scope, code, "cudaIpcOpenEventHandle");
        ds__cuda_leave(&scope);
    }
    if (r < 0) {
        ds__release(e);
        return r;
    }
    e->event = event;
    e->device = device;
    *out = e;
    return DS_OK;
}

/* cuda/host_func.h - host functions and callbacks.

   Enqueues host functions and callbacks (ds__cuda_submit_host, ds__cuda_post) and runs each once
   (ds__cuda_run_host). Both use cudaStreamAddCallback, which CUDA invokes after a failure as well.
   If the stream captures, a host function becomes a node by capture_op.h.

   Invariants: A record is in ds__cuda.hosts until it begins to run. The thread that changes its
   state from pending to taken runs it. host_count includes a record until its function and its
   destructor have returned. After a failure a callback gets DS_ERR_FAILED, a host function does not
   run, and the destructor runs in any case.
   Locks: `host_lock` guards the list; no driver call and no user code runs under it. ds__cuda_post
   may be called under the capture lock or a stream's staging mutex.
   Threads: any thread enqueues. The functions run on CUDA's callback thread, or during shutdown,
   after the failure of a device, on the thread that drains. Calls into devstream are refused there
   (ds__tls.in_callback). */

static void ds__cuda_unlist_host(ds__cuda_host *h) {
    ds__lock_take(&ds__cuda.host_lock);
    if (h->previous)
        h->previous->next = h->next;
    else
        ds__cuda.hosts = h->next;
    if (h->next)
        h->next->previous = h->previous;
    ds__lock_give(&ds__cuda.host_lock);
}

/* Runs it, or what remains of it after a failure, and frees it. */
static void ds__cuda_run_host(ds__cuda_host *h, int failed) {
    int outer = ds__tls.in_callback;
    ds_stream stream = { h->stream };
    ds__cuda_unlist_host(h);
    ds__tls.in_callback = 1;
    if (h->callback)
        h->callback(stream, failed ? DS_ERR_FAILED : DS_OK, h->user);
    else if (!failed && h->fn)
        h->fn(h->user);
    /* ends an embedded record too */
    if (h->dtor_fn)
        h->dtor_fn(h->user);
    ds__tls.in_callback = outer;
}

/* On a thread of CUDA's. */
static void CUDART_CB ds__cuda_host_main(cudaStream_t stream, cudaError_t status, void *user) {
    ds__cuda_host *h = user;
    int pending = DS__CUDA_PENDING;
    int embedded = h->embedded;
    (void)stream;
    atomic_fetch_add(&ds__cuda.inside, 1);
    if (atomic_compare_exchange_strong(&h->state, &pending, DS__CUDA_TAKEN)) {
        ds__cuda_run_host(h, status != cudaSuccess);
        if (!embedded)
            ds__release(h);
        atomic_fetch_sub(&ds__cuda.host_count, 1);
    }
    atomic_fetch_sub(&ds__cuda.inside, 1);
}

/* Puts a filled record on the stream; inside of a scope of the stream. */
static ds_result ds__cuda_post(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                               ds__cuda_host *h) {
    h->device = s->device;
    atomic_fetch_add(&ds__cuda.host_count, 1);
    ds__lock_take(&ds__cuda.host_lock);
    h->previous = NULL;
    h->next = ds__cuda.hosts;
    if (h->next)
        h->next->previous = h;
    ds__cuda.hosts = h;
    ds__lock_give(&ds__cuda.host_lock);
    ds_result r = DS__RT(*scope, cudaStreamAddCallback, (s->handle, ds__cuda_host_main, h, 0));
    if (r < 0) {
        ds__cuda_unlist_host(h);
        atomic_fetch_sub(&ds__cuda.host_count, 1);
    }
    return r;
}

/* Whether the stream captures, in anyone's capture; inside of a scope of the stream. That it is
   the legacy one beside a capture the work itself shall find out. */
static ds_result ds__cuda_is_capturing(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       int *out) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t code = cudaStreamIsCapturing(s->handle, &status);
    *out = code == cudaSuccess && status != cudaStreamCaptureStatusNone;
    if (DS__UNLIKELY(code == cudaErrorStreamCaptureImplicit)) {
        ds__cuda_ignore(scope, code);
        return DS_OK;
    }
    return ds__cuda_check(scope, code, "cudaStreamIsCapturing");
}

static ds_result ds__cuda_refuse_pageable(const ds__cuda_scope *scope);
static ds_result ds__cuda_pointer_query(const void *ptr, ds_pointer_info *out);
static ds_result ds__cuda_host_in_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                          ds_host_fn fn, void *user, ds_host_fn dtor_fn);

/* A host function, or a callback. blocks: of the library, and it touches pageable memory. A
   function that a stream captures runs more than once, and CUDA captures it in another form. */
static ds_result ds__cuda_submit_host(const ds__cuda_stream *s, ds_host_fn fn,
                                      ds_callback_fn callback, void *user, ds_host_fn dtor_fn,
                                      uint64_t stream, int blocks) {
    ds__cuda_scope scope;
    int capturing = 0;
    ds__cuda_host *h = ds__alloc(sizeof *h);
    if (!h)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a host function");
    h->fn = fn;
    h->callback = callback;
    h->user = user;
    h->dtor_fn = dtor_fn;
    h->stream = stream;
    ds_result r = ds__cuda_on(&scope, s);
    if (r == DS_OK) {
        if (!callback)
            r = ds__cuda_is_capturing(&scope, s, &capturing);
        if (r == DS_OK && !capturing)
            r = ds__cuda_post(&scope, s, h);
        else if (r == DS_OK)
            r = blocks ? ds__cuda_refuse_pageable(&scope)
                       : ds__cuda_host_in_capture(&scope, s, fn, user, dtor_fn);
        ds__cuda_leave(&scope);
    }
    if (r < 0 || capturing)
        ds__release(h);
    return r;
}

/* cuda/copy_plain.h - copies by cudart and work on host memory.

   Enqueues a copy by cudart (ds__cuda_move) and says how cudart must be told about operands
   (ds__cuda_where, ds__cuda_kind, ds__cuda_on_gpu). Runs copies and fills between host memory as
   host functions (ds__cuda_submit_host_work). For these, cudart would block the caller or has no
   function.

   Invariants: An operand at an unknown place counts as one on a GPU, and cudart finds its place.
   The copy of the operation is freed by the destructor of its host function. With DS__OP_BLOCKS,
   ds__cuda_submit_host_work returns after the work is done.
   Locks: none of its own. ds__cuda_submit_host_work uses host_func.h and may wait for the stream,
   so its callers hold no lock of the driver.
   Threads: any; ds__cuda_move runs in a scope of its caller. ds__cuda_host_work runs on CUDA's
   callback thread, or during shutdown on the thread that drains. */

/* Where an operand of a copy is: a device's index, or one of these. */
enum { DS__CUDA_HOST = -1, DS__CUDA_ASK = -2 /* cudart sees for itself */ };

static int ds__cuda_where(unsigned place) {
    return place >= DS__AT_DEVICE    ? (int)(place - DS__AT_DEVICE)
           : place == DS__AT_UNKNOWN ? DS__CUDA_ASK
                                     : DS__CUDA_HOST;
}

/* What cudart is told of a copy that is not between two devices. */
static enum cudaMemcpyKind ds__cuda_kind(int to, int from) {
    if (to == DS__CUDA_ASK || from == DS__CUDA_ASK || (to >= 0 && from >= 0 && to != from))
        return cudaMemcpyDefault;
    return to >= 0 ? (from >= 0 ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                   : (from >= 0 ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
}

/* Whether cudart does it: what is not known here may be on a GPU. */
static int ds__cuda_on_gpu(unsigned place) {
    return place == DS__AT_UNKNOWN || place >= DS__AT_DEVICE;
}

/* The copy as cudart has it; `stream` is one that may be used in this scope. */
static ds_result ds__cuda_move(const ds__cuda_scope *scope, cudaStream_t stream, const ds__op *op,
                               int to, int from) {
    void *dst = op->u.copy.dst;
    const void *src = op->u.copy.src;
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    if (to >= 0 && from >= 0 && to != from) {
        if (height == 1)
            return DS__RT(*scope, cudaMemcpyPeerAsync, (dst, to, src, from, width, stream));
        struct cudaMemcpy3DPeerParms p;
        memset(&p, 0, sizeof p);
        p.dstDevice = to;
        p.srcDevice = from;
        p.dstPtr.ptr = dst;
        p.srcPtr.ptr = (void *)(uintptr_t)src;
        p.dstPtr.pitch = op->u.copy.dst_pitch;
        p.srcPtr.pitch = op->u.copy.src_pitch;
        p.dstPtr.xsize = p.srcPtr.xsize = p.extent.width = width;
        p.dstPtr.ysize = p.srcPtr.ysize = p.extent.height = height;
        p.extent.depth = 1;
        return DS__RT(*scope, cudaMemcpy3DPeerAsync, (&p, stream));
    }
    enum cudaMemcpyKind kind = ds__cuda_kind(to, from);
    if (height == 1)
        return DS__RT(*scope, cudaMemcpyAsync, (dst, src, width, kind, stream));
    return DS__RT(
        *scope, cudaMemcpy2DAsync,
        (dst, op->u.copy.dst_pitch, src, op->u.copy.src_pitch, width, height, kind, stream));
}

static void ds__cuda_copy_rows(char *dst, size_t dst_pitch, const char *src, size_t src_pitch,
                               size_t width, size_t height) {
    for (size_t y = 0; y < height; y++)
        memcpy(dst + y * dst_pitch, src + y * src_pitch, width);
}

/* The library's own work on host memory, as a host function, because cudart's copies between
   host memory hold the caller up and it does not fill host memory at all. */
static void ds__cuda_host_work(void *user) {
    const ds__op *op = user;
    if (op->kind == DS__OP_COPY) {
        ds__cuda_copy_rows(op->u.copy.dst, op->u.copy.dst_pitch, op->u.copy.src,
                           op->u.copy.src_pitch, op->u.copy.width, op->u.copy.height);
        return;
    }
    for (size_t y = 0; y < op->u.fill.height; y++) {
        char *row = (char *)op->u.fill.dst + y * op->u.fill.pitch; /* aligned to the value's size */
        uint32_t value = op->u.fill.value;
        if (op->u.fill.value_size == 1)
            memset(row, (int)(value & 255), op->u.fill.width);
        else if (op->u.fill.value_size == 2)
            for (size_t x = 0; x < op->u.fill.width; x++)
                ((uint16_t *)(void *)row)[x] = (uint16_t)value;
        else
            for (size_t x = 0; x < op->u.fill.width; x++)
                ((uint32_t *)(void *)row)[x] = value;
    }
}

static ds_result ds__cuda_submit_host_work(const ds__cuda_stream *s, const ds__op *op) {
    ds__op *copy = ds__alloc(sizeof *copy);
    if (!copy)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a host function");
    *copy = *op;
    ds_result r = ds__cuda_submit_host(s, ds__cuda_host_work, NULL, copy, ds__release, 0,
                                       (op->flags & DS__OP_BLOCKS) != 0);
    if (r < 0) {
        ds__release(copy);
        return r;
    }
    return op->flags & DS__OP_BLOCKS
               ? ds__cuda_stream_synchronize((void *)(uintptr_t)s, DS__FOREVER)
               : DS_OK;
}

/* cuda/staging.h - staged copies between a GPU and a CPU device.

   Copies between a GPU and memory of a CPU device (ds__cuda_staged_to_gpu,
   ds__cuda_staged_from_gpu). That memory is host memory, but it may be touched in stream order
   only. The copy runs piece by piece through one pinned buffer. Host functions copy between the
   buffer and that memory; cudart copies between the buffer and the GPU.

   Invariants: A stream has at most one buffer of DS__CUDA_STAGE bytes; its copies share the buffer,
   because they run one after the other. The buffer counts the stream and its copies as users, and
   without users it waits in ds__cuda.stages for another stream. The record `last` runs behind all
   pieces and keeps the buffer until cudart has read it. A copy on a stream that captures is
   refused.
   Locks: The stream's staging mutex is held while all pieces of a copy are enqueued. The calls of
   cudart run under it, after a failure also a wait for the stream. `host_lock` is taken under it.
   The caller holds no lock of the driver.
   Threads: any thread submits. The pieces run on CUDA's callback thread, which must not call CUDA,
   so a buffer is kept there and not freed. */

typedef struct ds__cuda_staged ds__cuda_staged;

typedef struct ds__cuda_piece {
    ds__cuda_host host;
    ds__cuda_staged *whole;
    char *other; /* the CPU device's memory */
    size_t pitch;
    size_t width;
    size_t height;
} ds__cuda_piece;

struct ds__cuda_staged {
    _Atomic size_t users; /* pieces on their way, and the caller */
    int to_gpu;
    ds__cuda_stage *stage;
    /* behind all of them: cudart may still read the buffer after the last one has run */
    ds__cuda_piece last;
    ds__cuda_piece piece[];
};

/* The stream's buffer, with one user more; its staging mutex is held. */
static ds_result ds__cuda_stage_of(const ds__cuda_scope *scope, ds__cuda_stream *s) {
    if (!s->stage) {
        ds__lock_take(&ds__cuda.host_lock);
        ds__cuda_stage *stage = ds__cuda.stages;
        if (stage)
            ds__cuda.stages = stage->next;
        ds__lock_give(&ds__cuda.host_lock);
        if (!stage) {
            if (!(stage = ds__alloc(sizeof *stage)))
                return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a staging buffer");
            enum cudaStreamCaptureMode mode;
            int relaxed = ds__cuda_relax(scope, &mode);
            ds_result r = DS__RT(*scope, cudaHostAlloc,
                                 (&stage->memory, DS__CUDA_STAGE, cudaHostAllocPortable));
            ds__cuda_unrelax(scope, relaxed, mode);
            if (r < 0) {
                ds__release(stage);
                return r;
            }
        }
        atomic_store(&stage->users, 1);
        s->stage = stage;
    }
    atomic_fetch_add(&s->stage->users, 1);
    return DS_OK;
}

static void ds__cuda_stage_drop(ds__cuda_stage *stage) {
    if (atomic_fetch_sub(&stage->users, 1) != 1)
        return;
    ds__lock_take(&ds__cuda.host_lock); /* kept for another stream: here cudart may not be called */
    stage->next = ds__cuda.stages;
    ds__cuda.stages = stage;
    ds__lock_give(&ds__cuda.host_lock);
}

static void ds__cuda_staged_drop(ds__cuda_staged *w) {
    if (atomic_fetch_sub(&w->users, 1) != 1)
        return;
    ds__cuda_stage_drop(w->stage);
    ds__release(w);
}

static void ds__cuda_piece_run(void *user) {
    const ds__cuda_piece *p = user;
    char *stage = p->whole->stage->memory;
    if (p == &p->whole->last)
        return;
    if (p->whole->to_gpu)
        ds__cuda_copy_rows(stage, p->width, p->other, p->pitch, p->width, p->height);
    else
        ds__cuda_copy_rows(p->other, p->pitch, stage, p->width, p->width, p->height);
}

static void ds__cuda_piece_end(void *user) {
    ds__cuda_staged_drop(((ds__cuda_piece *)user)->whole);
}

static ds_result ds__cuda_post_piece(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                     ds__cuda_piece *p) {
    p->host = (ds__cuda_host){
        .embedded = 1, .fn = ds__cuda_piece_run, .dtor_fn = ds__cuda_piece_end, .user = p
    };
    atomic_fetch_add(&p->whole->users, 1);
    ds_result r = ds__cuda_post(scope, s, &p->host);
    if (r < 0)
        ds__cuda_staged_drop(p->whole);
    return r;
}

static ds_result ds__cuda_submit_piece(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       ds__cuda_piece *p, char *gpu, size_t gpu_pitch) {
    ds__cuda_staged *w = p->whole;
    ds__op op;
    memset(&op, 0, sizeof op);
    op.u.copy.dst = w->to_gpu ? gpu : w->stage->memory;
    op.u.copy.src = w->to_gpu ? w->stage->memory : gpu;
    op.u.copy.dst_pitch = w->to_gpu ? gpu_pitch : p->width;
    op.u.copy.src_pitch = w->to_gpu ? p->width : gpu_pitch;
    op.u.copy.width = p->width;
    op.u.copy.height = p->height;
    int to = w->to_gpu ? DS__CUDA_ASK : DS__CUDA_HOST;
    int from = w->to_gpu ? DS__CUDA_HOST : DS__CUDA_ASK;
    ds_result r = w->to_gpu ? DS_OK : ds__cuda_move(scope, s->handle, &op, to, from);
    if (r == DS_OK)
        r = ds__cuda_post_piece(scope, s, p);
    return r == DS_OK && w->to_gpu ? ds__cuda_move(scope, s->handle, &op, to, from) : r;
}

static ds_result ds__cuda_submit_pieces(const ds__cuda_scope *scope, ds__cuda_stream *s,
                                        ds__cuda_staged *w, const ds__op *op, size_t wide,
                                        size_t rows) {
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    size_t across = (width + wide - 1) / wide;
    size_t down = (height + rows - 1) / rows;
    char *gpu = w->to_gpu ? op->u.copy.dst : (char *)(uintptr_t)op->u.copy.src;
    char *other = w->to_gpu ? (char *)(uintptr_t)op->u.copy.src : op->u.copy.dst;
    size_t gpu_pitch = w->to_gpu ? op->u.copy.dst_pitch : op->u.copy.src_pitch;
    size_t pitch = w->to_gpu ? op->u.copy.src_pitch : op->u.copy.dst_pitch;
    ds_result r = DS_OK;
    for (size_t i = 0; i < across * down && r == DS_OK; i++) {
        size_t x = i % across * wide;
        size_t y = i / across * rows;
        ds__cuda_piece *p = &w->piece[i];
        *p = (ds__cuda_piece){ .whole = w, .other = other + y * pitch + x, .pitch = pitch };
        p->width = width - x < wide ? width - x : wide;
        p->height = height - y < rows ? height - y : rows;
        r = ds__cuda_submit_piece(scope, s, p, gpu + y * gpu_pitch + x, gpu_pitch);
    }
    w->last.whole = w;
    if (r == DS_OK)
        r = ds__cuda_post_piece(scope, s, &w->last);
    /* what was put on the stream may use the buffer */
    if (r < 0)
        ds__cuda_ignore(scope, cudaStreamSynchronize(s->handle));
    return r;
}

static ds_result ds__cuda_submit_staged(ds__cuda_stream *s, const ds__op *op, int to_gpu) {
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    size_t wide = width < DS__CUDA_STAGE ? width : DS__CUDA_STAGE; /* of a piece */
    size_t rows = DS__CUDA_STAGE / wide;                           /* of a piece */
    size_t across = (width + wide - 1) / wide;
    size_t down = (height + rows - 1) / rows;
    ds__cuda_scope scope;
    if (down > SIZE_MAX / across / sizeof(ds__cuda_piece) / 2)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "the copy has too many pieces");
    ds__cuda_staged *w = ds__alloc(sizeof *w + across * down * sizeof w->piece[0]);
    if (!w)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a copy in %zu pieces", across * down);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0) {
        ds__release(w);
        return r;
    }
    int capturing = 0;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    if (capturing)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED, "a copy between a GPU and a device of the CPU "
                                                 "driver cannot be captured; the capture goes on");
    if (r < 0) {
        ds__cuda_leave(&scope);
        ds__release(w);
        return r;
    }
    pthread_mutex_lock(&s->staging);
    r = ds__cuda_stage_of(&scope, s);
    if (r < 0) {
        ds__release(w);
    } else {
        w->stage = s->stage;
        atomic_store(&w->users, 1);
        w->to_gpu = to_gpu;
        r = ds__cuda_submit_pieces(&scope, s, w, op, wide, rows);
        ds__cuda_staged_drop(w);
    }
    pthread_mutex_unlock(&s->staging);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_staged_to_gpu(ds__cuda_stream *s, const ds__op *op) {
    return ds__cuda_submit_staged(s, op, 1);
}

static ds_result ds__cuda_staged_from_gpu(ds__cuda_stream *s, const ds__op *op) {
    return ds__cuda_submit_staged(s, op, 0);
}

/* cuda/copy.h - copies, fills and waits between streams.

   Enqueues copies (ds__cuda_submit_copy) and fills (ds__cuda_submit_fill). Uses a host function
   between host memory, staging.h for a CPU device's memory, and a temporary stream for another
   GPU's memory (ds__cuda_elsewhere). ds__cuda_wait_stream makes a stream wait for another one.
   ds__cuda_copy_now copies at once for a stream of the CPU driver.

   Invariants: ds__cuda_elsewhere makes a stream for one operation, because a shared one would order
   unrelated streams. A stream's `mark` is not recorded again between a record and the wait for it.
   ds__cuda_run_together never runs its function, since a GPU's streams cannot be held.
   Locks: ds__cuda_wait_stream holds the other stream's lock across event creation, the record and
   cudaStreamWaitEvent; it reports errors of these calls after the release. It may run under the
   capture lock. ds__cuda_copy_now holds ds__cuda.mutex while it creates a side stream, not during
   the copy. The other functions take none here.
   Threads: any. ds__cuda_copy_now runs on the thread that executes the CPU driver's kernel, and
   blocks it until the copy is done. All such copies of a device share one side stream. */

/* capture: in which the event was recorded last. */
static ds_result ds__cuda_wait_mark(const ds__cuda_stream *s, cudaEvent_t event, uint64_t capture) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    if (!scope.capture)
        scope.capture = capture;
    r = DS__RT(scope, cudaStreamWaitEvent, (s->handle, event, 0));
    ds__cuda_leave(&scope);
    return r;
}

/* s waits for what is on the other stream by now. */
static ds_result ds__cuda_wait_stream(const ds__cuda_stream *s, ds__cuda_stream *other) {
    if (s == other ||
        (s->device == other->device &&
         ds__cuda_stream_identity((void *)(uintptr_t)s) == ds__cuda_stream_identity(other)))
        return DS_OK;
    ds__cuda_scope scope;
    const char *call;
    ds_result r = ds__cuda_mine(s);
    if (r == DS_OK)
        r = ds__cuda_on(&scope, other);
    if (r < 0)
        return r;
    uint64_t capture = scope.capture;
    ds__lock_take(&other->lock); /* no sentence is made under it, see ds__cuda_mark */
    cudaError_t code = ds__cuda_mark(&other->mark, other->handle, &call);
    ds__cuda_leave(&scope);
    if (code == cudaSuccess && (r = ds__cuda_on(&scope, s)) == DS_OK) {
        if (!scope.capture)
            scope.capture = capture;
        call = "cudaStreamWaitEvent";
        code = cudaStreamWaitEvent(s->handle, other->mark, 0);
        ds__cuda_leave(&scope);
    }
    ds__lock_give(&other->lock);
    return r == DS_OK ? ds__cuda_check(&scope, code, call) : r;
}

/* What concerns another device's memory only: on a stream of that device, between two waits. The
   stream is made for this one operation, since one that is shared would make streams wait for
   each other that have nothing to do with each other. */
static ds_result ds__cuda_elsewhere(ds__cuda_stream *s, int device, const ds__op *op,
                                    ds_result (*put)(ds__cuda_stream *s, const ds__op *op)) {
    void *native = NULL;
    int priority = 0;
    int capturing = 0;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    ds__cuda_leave(&scope);
    if (r < 0)
        return r;
    if (capturing) /* the stream would have to live as long as a capture that is not known here */
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "in a capture that devstream did not begin, work on memory of cuda:%d must "
                        "be put on a stream of it",
                        device);
    r = ds__cuda_stream_create(device, DS__STREAM_NEW, DS_STREAM_NON_BLOCKING, &priority, &native);
    if (r < 0)
        return r;
    r = ds__cuda_wait_stream(native, s);
    if (r == DS_OK)
        r = put(native, op);
    if (r == DS_OK)
        r = ds__cuda_wait_stream(s, native);
    ds__cuda_stream_destroy(native); /* CUDA ends it when its work is done */
    return r;
}

static ds_result ds__cuda_copy_on(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = ds__cuda_move(&scope, s->handle, op, ds__cuda_where(op->places >> DS__OP_DST & 255u),
                      ds__cuda_where(op->places >> DS__OP_SRC & 255u));
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_submit_copy(ds__cuda_stream *s, const ds__op *op) {
    unsigned to = op->places >> DS__OP_DST & 255u;
    unsigned from = op->places >> DS__OP_SRC & 255u;
    int here = DS__AT_DEVICE + s->device;
    if (!ds__cuda_on_gpu(to) && !ds__cuda_on_gpu(from))
        return ds__cuda_submit_host_work(s, op);
    ds_result (*put)(ds__cuda_stream * s, const ds__op *op) = ds__cuda_copy_on;
    if (DS__UNLIKELY(from == DS__AT_OTHER))
        put = ds__cuda_staged_to_gpu;
    if (DS__UNLIKELY(to == DS__AT_OTHER))
        put = ds__cuda_staged_from_gpu;
    if (DS__LIKELY((int)to == here || (int)from == here))
        return put(s, op);
    return ds__cuda_elsewhere(s, (int)(from >= DS__AT_DEVICE ? from : to) - DS__AT_DEVICE, op, put);
}

/* On the stream's own device. */
static ds_result ds__cuda_fill(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    void *dst = op->u.fill.dst;
    size_t pitch = op->u.fill.pitch;
    size_t width = op->u.fill.width;
    size_t height = op->u.fill.height;
    unsigned long long address = (uintptr_t)dst;
    unsigned value = op->u.fill.value;
    const char *call = op->u.fill.value_size == 2 ? "cuMemsetD16Async" : "cuMemsetD32Async";
    int code = 0;
    if (op->u.fill.value_size == 1) {
        r = height == 1
                ? DS__RT(scope, cudaMemsetAsync, (dst, (int)(value & 255), width, s->handle))
                : DS__RT(scope, cudaMemset2DAsync,
                         (dst, pitch, (int)(value & 255), width, height, s->handle));
    } else if (op->u.fill.value_size == 2) {
        if (height == 1)
            DS__DR_CODE(scope, code, cuMemsetD16Async,
                        (address, (unsigned short)value, width, s->handle));
        else
            DS__DR_CODE(scope, code, cuMemsetD2D16Async,
                        (address, pitch, (unsigned short)value, width, height, s->handle));
    } else {
        if (height == 1)
            DS__DR_CODE(scope, code, cuMemsetD32Async, (address, value, width, s->handle));
        else
            DS__DR_CODE(scope, code, cuMemsetD2D32Async,
                        (address, pitch, value, width, height, s->handle));
    }
    if (DS__UNLIKELY(code))
        r = ds__cuda_fail(&scope, call, code);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_submit_fill(ds__cuda_stream *s, const ds__op *op) {
    unsigned place = op->places >> DS__OP_DST & 255u;
    if (place < DS__AT_DEVICE)
        return ds__cuda_submit_host_work(s, op);
    int device = (int)(place - DS__AT_DEVICE);
    return DS__LIKELY(device == s->device) ? ds__cuda_fill(s, op)
                                           : ds__cuda_elsewhere(s, device, op, ds__cuda_fill);
}

static int ds__cuda_device_of(const void *ptr) {
    ds_pointer_info info;
    if (!ds__known(ptr, &info) && ds__ask(ptr, &info) < 0)
        return DS__CUDA_ASK;
    return info.kind == DS_MEMORY_DEVICE && info.device.type == DS_DEVICE_CUDA ? info.device.index
                                                                               : DS__CUDA_HOST;
}

/* A GPU's streams cannot be held. */
static ds_result ds__cuda_run_together(void *const *streams, size_t count,
                                       void (*run_fn)(void *user), void *user, int *out_ran) {
    (void)streams;
    (void)count;
    (void)run_fn;
    (void)user;
    *out_ran = 0;
    return DS_OK;
}

/* For a stream of the CPU driver, on whichever thread runs it: returns when the copy is done. */
static ds_result ds__cuda_copy_now(const ds__op *op) {
    int to = ds__cuda_device_of(op->u.copy.dst);
    int from = ds__cuda_device_of(op->u.copy.src);
    int device = to >= 0 ? to : from >= 0 ? from : 0;
    int priority = 0;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    pthread_mutex_lock(&ds__cuda.mutex);
    if (!ds__cuda.side[device])
        r = ds__cuda_make_stream(&scope, DS_STREAM_NON_BLOCKING, &priority, &ds__cuda.side[device]);
    pthread_mutex_unlock(&ds__cuda.mutex);
    if (r == DS_OK)
        r = ds__cuda_move(&scope, ds__cuda.side[device], op, to, from);
    if (r == DS_OK)
        r = DS__RT(scope, cudaStreamSynchronize, (ds__cuda.side[device]));
    ds__cuda_leave(&scope);
    return r;
}

/* cuda/module.h - kernel images and functions.

   Loads the image of a kernel on a device and finds its function (ds__cuda_ready), and unloads
   images without users. ds__cuda_loaded gives the function of a kernel on a device without a lock.
   Implements the entries kernel_load and kernel_destroy.

   Invariants: Kernels with the same image address and device share a module, which counts its
   users. A module without users is never used again, because its address may belong to another
   image by then. It is unloaded after a wait for the device, or at once if no function was found in
   it. `function` is stored last, with release order.
   Locks: ds__cuda_ready, ds__cuda_kernel_destroy and ds__cuda_take_modules take ds__cuda.mutex;
   ds__cuda_load_module, ds__cuda_load_function and ds__cuda_load expect it. It is held while the
   driver compiles PTX, so other loads wait. ds__cuda_unload needs no lock.
   Threads: any. Loading and unloading run in relaxed capture mode. ds__cuda_kernel_destroy runs
   when nothing can launch the kernel any more; the module stays loaded for pending launches until
   the device has been waited for. */

/* PTX without its terminating zero, which the driver needs; cubins begin with ELF's four bytes,
   fatbins with one of two others. */
static int ds__cuda_is_unended_text(const char *image, size_t size) {
    return size > 4 && image[size - 1] != 0 && memcmp(image, "\177ELF", 4) != 0 &&
           memcmp(image, "\x50\xed\x55\xba", 4) != 0 && memcmp(image, "\xb1\x43\x62\x46", 4) != 0;
}

/* The mutex is held and the device current. */
static ds_result ds__cuda_load_module(const ds__cuda_scope *scope, const ds__kernel *k,
                                      ds__cuda_module **out) {
    char log[300] = "";
    int options[] = { 5 /* CU_JIT_ERROR_LOG_BUFFER */, 6 /* CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES */ };
    void *values[] = { log, (void *)(uintptr_t)sizeof log };
    const char *image = k->cuda.image;
    char *text = NULL;
    ds__cuda_module *m = ds__cuda.modules;
    /* one without users may be of an image that is gone, whose address another one has now */
    while (m && (!m->users || m->image != k->cuda.image || m->device != scope->device))
        m = m->next;
    if (!m) {
        int code;
        if (!(m = ds__alloc(sizeof *m)))
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
        if (ds__cuda_is_unended_text(image, k->cuda.image_size)) {
            if (!(text = ds__alloc(k->cuda.image_size + 1))) {
                ds__release(m);
                return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
            }
            image = memcpy(text, image, k->cuda.image_size);
        }
        DS__DR_CODE(*scope, code, cuModuleLoadDataEx, (&m->module, image, 2, options, values));
        ds__release(text);
        if (code) {
            ds__release(m);
            ds_result r = ds__cuda_fail(scope, "cuModuleLoadDataEx", code);
            log[sizeof log - 1] = 0;
            for (char *c = log; *c; c++)
                if (*c == '\n')
                    *c = ' ';
            return ds__also(r, "; kernel %s could not be loaded%s%s", k->name, *log ? ": " : "",
                            log);
        }
        m->image = k->cuda.image;
        m->device = scope->device;
        m->next = ds__cuda.modules;
        ds__cuda.modules = m;
    }
    m->users++;
    *out = m;
    return DS_OK;
}

/* The function of an image, and how much dynamic shared memory it may have without asking for
   more. */
static ds_result ds__cuda_load_function(const ds__cuda_scope *scope, const ds__kernel *k,
                                        ds__cuda_function *f, void **out, int *out_shared) {
    int code;
    ds_result r = ds__cuda_load_module(scope, k, &f->module);
    if (r < 0)
        return r;
    const char *call = "cuModuleGetFunction";
    DS__DR_CODE(*scope, code, cuModuleGetFunction, (out, f->module->module, k->cuda.entry));
    if (!code) {
        call = "cuFuncGetAttribute";
        DS__DR_CODE(*scope, code, cuFuncGetAttribute, (out_shared, DS__CUDA_MAX_SHARED, *out));
    }
    if (!code)
        return DS_OK;
    r = ds__also(ds__cuda_fail(scope, call, code), "; function \"%s\" of the image of kernel %s",
                 k->cuda.entry, k->name);
    if (--f->module->users == 0) { /* nothing can run it */
        ds__cuda_module **p = &ds__cuda.modules;
        while (*p != f->module)
            p = &(*p)->next;
        *p = f->module->next;
        f->module->next = NULL;
        ds__cuda_unload(scope, f->module);
    }
    f->module = NULL;
    return r;
}

static ds_result ds__cuda_load(const ds__cuda_scope *scope, ds__kernel *k) {
    ds__cuda_function *f = atomic_load(&k->loaded);
    if (!f && !(f = ds__alloc((size_t)ds__cuda.devices * sizeof *f)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to load kernel %s", k->name);
    atomic_store(&k->loaded, f);
    f += scope->device;
    /* by another thread */
    if (atomic_load(&f->function))
        return DS_OK;
    void *function = (void *)(uintptr_t)k->cuda.native_fn;
    int shared = 0;
    ds_result r;
    if (function) {
        struct cudaFuncAttributes a;
        r = ds__name_object(DS__RT(*scope, cudaFuncGetAttributes, (&a, function)), "kernel",
                            k->name);
        if (r == DS_OK)
            shared = a.maxDynamicSharedSizeBytes;
    } else {
        r = ds__cuda_load_function(scope, k, f, &function, &shared);
    }
    if (r < 0)
        return r;
    atomic_store(&f->shared, (unsigned)shared);
    atomic_store_explicit(&f->function, function, memory_order_release);
    return DS_OK;
}

/* The kernel on a device; NULL: not ready there. */
static inline ds__cuda_function *ds__cuda_loaded(ds__kernel *k, int device) {
    ds__cuda_function *f = atomic_load_explicit(&k->loaded, memory_order_acquire);
    return DS__LIKELY(f && atomic_load_explicit(&f[device].function, memory_order_acquire))
               ? &f[device]
               : NULL;
}

/* Inside of a scope with the device current. */
__attribute__((noinline)) static ds_result ds__cuda_ready(const ds__cuda_scope *scope,
                                                          ds__kernel *k) {
    if (!k->cuda.image && !k->cuda.native_fn)
        return ds__fail(DS_ERR_UNSUPPORTED, "kernel %s has no CUDA form", k->name);
    if (ds__cuda_loaded(k, scope->device))
        return DS_OK;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    pthread_mutex_lock(&ds__cuda.mutex);
    ds_result r = ds__cuda_load(scope, k);
    pthread_mutex_unlock(&ds__cuda.mutex);
    ds__cuda_unrelax(scope, relaxed, mode);
    return r;
}

static ds_result ds__cuda_kernel_load(int device, ds__kernel *kernel) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    r = ds__cuda_ready(&scope, kernel);
    ds__cuda_leave(&scope);
    return r;
}

/* Pending launches may still need the module: it goes when the device has been waited for. */
static void ds__cuda_kernel_destroy(ds__kernel *kernel) {
    ds__cuda_function *f = atomic_load(&kernel->loaded);
    if (!f)
        return;
    pthread_mutex_lock(&ds__cuda.mutex);
    for (int i = 0; i < ds__cuda.devices; i++)
        if (f[i].module)
            f[i].module->users--;
    pthread_mutex_unlock(&ds__cuda.mutex);
    atomic_store(&kernel->loaded, NULL);
    ds__release(f);
}

/* Takes the device's modules that no kernel has any more out of the list; all: the others too. */
static ds__cuda_module *ds__cuda_take_modules(int device, int all) {
    ds__cuda_module *list = NULL;
    pthread_mutex_lock(&ds__cuda.mutex);
    for (ds__cuda_module **p = &ds__cuda.modules; *p;) {
        ds__cuda_module *m = *p;
        if (m->device != device || (m->users && !all)) {
            p = &m->next;
            continue;
        }
        *p = m->next;
        m->next = list;
        list = m;
    }
    pthread_mutex_unlock(&ds__cuda.mutex);
    return list;
}

/* The device is current, and nothing that is pending can run them. */
static void ds__cuda_unload(const ds__cuda_scope *scope, ds__cuda_module *list) {
    enum cudaStreamCaptureMode mode;
    if (!list)
        return;
    int relaxed = ds__cuda_relax(scope, &mode);
    while (list) {
        ds__cuda_module *m = list;
        int code;
        list = m->next;
        DS__DR_CODE(*scope, code, cuModuleUnload, (m->module));
        (void)code; /* after a failure of the device nothing can be unloaded */
        ds__release(m);
    }
    ds__cuda_unrelax(scope, relaxed, mode);
}

/* cuda/launch.h - kernel launches.

   Launches kernels over items or over a grid (ds__cuda_launch). Points CUDA to the parameters
   (ds__cuda_params), computes the grid of a number of items (ds__cuda_items_grid), and splits too
   many items into several launches (ds__cuda_launch_items).

   Invariants: The limit of dynamic shared memory of a function on a device only grows, because a
   launch of another thread may need it. Items are split only if the kernel takes FIRST and COUNT
   and both have 8 bytes. ds__cuda_launch_one expects a kernel that is loaded on the device.
   Locks: ds__cuda_allow_shared takes ds__cuda.mutex across cudaFuncSetAttribute or
   cuFuncSetAttribute; the caller may hold the capture lock. A launch without a new limit takes
   none.
   Threads: any. */

/* Where the parameters are: in the argument struct, which cuLaunchKernel copies from, or in
   first and count (which have offset 0 in the kernel's list). Of a number in 4 bytes the low
   half comes first. */
static inline void ds__cuda_params(const ds__kernel *k, const void *args, const uint64_t *first,
                                   const uint64_t *count, void **out) {
    const void *const base[] = { args, args, args, args, first, count }; /* by kind */
    for (size_t i = 0; i < k->param_count; i++)
        out[i] = (void *)((uintptr_t)base[k->params[i].kind] + k->params[i].offset);
}

/* Much dynamic shared memory must be asked for (CUDA C++ Programming Guide, "Shared Memory"). It
   is one number per function and device, so it only grows: a launch of another thread may need
   what it is. */
__attribute__((cold, noinline)) static ds_result ds__cuda_allow_shared(const ds__cuda_scope *scope,
                                                                       const ds__kernel *k,
                                                                       ds__cuda_function *f,
                                                                       unsigned bytes) {
    ds_result r = DS_OK;
    int code = 0;
    if (bytes > INT_MAX)
        return ds__fail(DS_ERR_INVALID_VALUE, "kernel %s: %u bytes of shared memory", k->name,
                        bytes);
    pthread_mutex_lock(&ds__cuda.mutex);
    if (bytes > atomic_load(&f->shared)) {
        if (k->cuda.native_fn)
            r = DS__RT(
                *scope, cudaFuncSetAttribute,
                (k->cuda.native_fn, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        else
            DS__DR_CODE(*scope, code, cuFuncSetAttribute,
                        (atomic_load(&f->function), DS__CUDA_MAX_SHARED, (int)bytes));
        if (code)
            r = ds__cuda_fail(scope, "cuFuncSetAttribute", code);
        if (r == DS_OK)
            atomic_store(&f->shared, bytes);
    }
    pthread_mutex_unlock(&ds__cuda.mutex);
    return r < 0 ? ds__also(r, " (kernel %s, %u bytes of shared memory)", k->name, bytes) : r;
}

static inline ds_result ds__cuda_launch_one(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                            ds__kernel *k, const ds_grid *g, void **params) {
    const char *call = "cuLaunchKernel";
    ds__cuda_function *f =
        (ds__cuda_function *)atomic_load_explicit(&k->loaded, memory_order_relaxed) + s->device;
    int code;
    if (DS__UNLIKELY(g->shared_bytes > atomic_load_explicit(&f->shared, memory_order_relaxed))) {
        ds_result r = ds__cuda_allow_shared(scope, k, f, g->shared_bytes);
        if (r < 0)
            return r;
    }
    if (k->cuda.native_fn) {
        struct dim3 grid = { g->grid[0], g->grid[1], g->grid[2] };
        struct dim3 block = { g->block[0], g->block[1], g->block[2] };
        cudaError_t e =
            cudaLaunchKernel(k->cuda.native_fn, grid, block, params, g->shared_bytes, s->handle);
        if (DS__LIKELY(e == cudaSuccess))
            return DS_OK;
        ds__cuda_ignore(scope, e);
        call = "cudaLaunchKernel";
        code = (int)e;
    } else {
        DS__DR_CODE(*scope, code, cuLaunchKernel,
                    (atomic_load_explicit(&f->function, memory_order_relaxed), g->grid[0],
                     g->grid[1], g->grid[2], g->block[0], g->block[1], g->block[2], g->shared_bytes,
                     s->handle, params, NULL));
    }
    return DS__LIKELY(code == 0)
               ? DS_OK
               : ds__also(ds__cuda_fail(scope, call, code), " (kernel %s)", k->name);
}

/* Most items of one launch: CUDA counts blocks in 31 bits, a parameter of 4 bytes items in 32. */
static uint64_t ds__cuda_most_items(const ds__kernel *k, uint64_t per_block, int *out_can_split) {
    uint64_t most = UINT64_MAX / 2;
    int first = 0;
    int count = 0;
    int narrow = 0;
    for (size_t i = 0; i < k->param_count; i++) {
        first |= k->params[i].kind == DS_PARAM_FIRST;
        count |= k->params[i].kind == DS_PARAM_COUNT;
        narrow |= k->params[i].kind >= DS_PARAM_FIRST && k->params[i].size == 4;
    }
    if (narrow)
        most = UINT32_MAX;
    if (!k->cuda.blocks_per_multiprocessor && most / per_block > INT_MAX)
        most = (uint64_t)INT_MAX * per_block;
    *out_can_split = first && count && !narrow;
    return most;
}

/* Most items of one launch of this many; an error when a launch cannot have them and they cannot
   be split. */
static inline ds_result ds__cuda_split(const ds__kernel *k, uint64_t items, uint64_t per_block,
                                       uint64_t *most) {
    int can_split;
    *most = items;
    if (DS__LIKELY(items <= INT_MAX))
        return DS_OK;
    *most = ds__cuda_most_items(k, per_block, &can_split);
    if (items <= *most || can_split)
        return DS_OK;
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "kernel %s: %llu items are more than one launch can have, and it does not take "
                    "FIRST and COUNT in 8 bytes",
                    k->name, (unsigned long long)items);
}

static inline ds_grid ds__cuda_items_grid(const ds__kernel *k, int device, uint64_t count) {
    unsigned block = k->cuda.block ? k->cuda.block : 256;
    uint64_t per_block = k->cuda.items_per_block ? k->cuda.items_per_block : block;
    uint64_t limit =
        (uint64_t)k->cuda.blocks_per_multiprocessor * (unsigned)ds__cuda.multiprocessors[device];
    /* dividing 64 bits takes longer than all the rest */
    uint64_t more = count + per_block - 1;
    uint64_t blocks =
        (per_block & (per_block - 1)) == 0 ? more >> __builtin_ctzll(per_block) : more / per_block;
    if (limit && blocks > limit)
        blocks = limit;
    return (ds_grid){ { (unsigned)blocks, 1, 1 }, { block, 1, 1 }, k->cuda.shared_bytes };
}

/* A grid with the zeros that mean one. */
static inline ds_grid ds__cuda_whole_grid(const ds_grid *grid) {
    ds_grid g = *grid;
    for (int i = 0; i < 3; i++) {
        if (i > 0 && g.grid[i] == 0)
            g.grid[i] = 1;
        if (g.block[i] == 0)
            g.block[i] = 1;
    }
    return g;
}

/* Over items, in as few launches as they take: one, but for more than 2^31 - 1. */
static ds_result ds__cuda_launch_items(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       const ds__op *op, void **params, uint64_t *first,
                                       uint64_t *count) {
    ds__kernel *k = op->u.kernel.kernel;
    uint64_t items = op->u.kernel.items;
    uint64_t most;
    uint64_t per_block = k->cuda.items_per_block ? k->cuda.items_per_block
                         : k->cuda.block         ? k->cuda.block
                                                 : 256;
    ds_result r = ds__cuda_split(k, items, per_block, &most);
    for (; items && r == DS_OK; items -= *count, *first += *count) {
        *count = items < most ? items : most;
        ds_grid g = ds__cuda_items_grid(k, s->device, *count);
        r = ds__cuda_launch_one(scope, s, k, &g, params);
    }
    return r;
}

static ds_result ds__cuda_launch(const ds__cuda_stream *s, const ds__op *op) {
    ds__kernel *k = op->u.kernel.kernel;
    void *params[DS_KERNEL_MAX_PARAMS];
    uint64_t first = 0;
    uint64_t count = op->u.kernel.items;
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    if (DS__UNLIKELY(!ds__cuda_loaded(k, s->device)))
        r = ds__cuda_ready(&scope, k);
    if (r == DS_OK)
        ds__cuda_params(k, op->u.kernel.args, &first, &count, params);
    if (r == DS_OK && op->u.kernel.grid) {
        ds_grid g = ds__cuda_whole_grid(op->u.kernel.grid);
        r = ds__cuda_launch_one(&scope, s, k, &g, params);
    } else if (r == DS_OK) {
        r = ds__cuda_launch_items(&scope, s, op, params, &first, &count);
    }
    ds__cuda_leave(&scope);
    return r;
}

/* cuda/graph_types.h - captures and graphs: types, kept objects, host tasks.

   Declares the native part of a graph (ds__cuda_graph), of an executable (ds__cuda_exec) and of a
   capture's origin. A list of kept objects (ds__cuda_owns) holds the data that native nodes use.
   ds__cuda_task is the data of a host node, and ds__cuda_host_node runs it.

   Policy:
   1. CUDA captures, keeps the rules of capture and runs graphs. Beside each native graph stands the
      shadow graph of the core (ds__body). Node i of the shadow graph is the i-th node of the native
      graph.
   2. After each operation of devstream on a stream that captures, CUDA is asked for the node of the
      operation. Nodes of other libraries are entered as nodes of unknown kind.
   3. An executable is made from a clone of the graph, because the graph may be destroyed first. The
      clone stays, since CUDA names the nodes of the executable by its handles.
   4. The data of host nodes has a count of owners. Shadow graphs own the data; CUDA owns the data
      of an executable through one user object. An update replaces that object; the former one ends
      after its last launch (Programming Guide, "CUDA User Objects").
   5. Codes 900 to 908 tell neither the capture nor whether it is still valid. Both are looked up.

   Invariants: An entry of ds__cuda_owns has one reference to its object and the index of its node,
   or one of the tags DS__CUDA_ATTACHED, DS__CUDA_NOWHERE and DS__CUDA_NEW. A task whose `fn` is
   NULL runs nothing.
   Locks: takes none. The graph's lock in the core guards a graph's list, and the capture lock does
   while a capture makes the graph. `capture` is guarded by the capture lock. An executable's list
   is guarded by the executable's lock. Dropping the last reference to an object runs the user's
   destructor under the locks of the caller.
   Threads: any. ds__cuda_host_node runs on a thread of CUDA, with ds__tls.in_callback set. `fn` is
   atomic, because the stop of the driver may clear it while graphs of other libraries still have
   the node. */

/* What belongs to nodes of a native graph: the records of its host nodes and, in executables,
   what the user attached. */
#define DS__CUDA_ATTACHED UINT32_MAX /* to the graph */
#define DS__CUDA_NOWHERE (UINT32_MAX - 1)
#define DS__CUDA_NEW (UINT32_MAX - 2) /* of a node that has no index yet */

typedef struct ds__cuda_own {
    uint32_t node;
    ds__object *object;
} ds__cuda_own;

typedef struct ds__cuda_owns {
    ds__cuda_own *at;
    uint32_t count;
    uint32_t room;
} ds__cuda_owns;

typedef struct ds__cuda_graph {
    cudaGraph_t graph;
    ds__cuda_owns owns;
    ds__capture *capture; /* that makes it; under the core's capture lock */
} ds__cuda_graph;

/* Where a capture began: its stream object may go before. */
typedef struct ds__cuda_origin {
    cudaStream_t handle;
    int device;
    int per_thread;
    uint64_t thread;
    ds__cuda_stream *streams; /* that were made for it */
} ds__cuda_origin;

typedef struct ds__cuda_exec {
    cudaGraphExec_t exec;
    int device;
    int stale; /* `now` missed a change */
    /* the graph that it was made from; CUDA knows its nodes by the nodes of this graph */
    cudaGraph_t kept;
    cudaGraph_t now; /* what it does now; both NULL: CUDA cannot copy the graph */
    cudaGraphNode_t *kept_node;
    cudaGraphNode_t *now_node;
    uint32_t count;
    unsigned char *off; /* by node: switched off */
    unsigned char *on;  /* by node: its device */
    /* kernels and events of `kept`, whose nodes CUDA may look at whatever the executable does
       now */
    ds__body *held;
    ds__cuda_owns owns;
} ds__cuda_exec;

/* What a host node of ours runs. */
typedef struct ds__cuda_task {
    _Atomic(ds_host_fn) fn; /* NULL: it runs nothing any more */
    void *user;
    ds__object *payload;
    ds__op op; /* the library's own work */
} ds__cuda_task;

static void ds__cuda_task_end(void *user) {
    ds__cuda_task *h = user;
    ds__object_drop(h->payload);
    ds__release(h);
}

/* Of a host node, or a copy or fill of host memory; NULL: no memory, and the sentence is set. */
static ds__object *ds__cuda_task_new(const ds__node *n) {
    ds__cuda_task *h = ds__alloc(sizeof *h);
    ds__object *o = h ? ds__object_new(h, ds__cuda_task_end) : NULL;
    if (!o) {
        ds__release(h);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a host function");
        return NULL;
    }
    atomic_store(&h->fn, n->kind == DS_NODE_HOST ? n->op.u.host.fn : ds__cuda_host_work);
    h->user = n->kind == DS_NODE_HOST ? n->op.u.host.user : &h->op;
    h->payload = ds__object_keep(n->payload);
    h->op = n->op;
    return o;
}

static void CUDART_CB ds__cuda_host_node(void *user) {
    ds__cuda_task *h = user;
    ds_host_fn fn = atomic_load(&h->fn);
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    if (fn)
        fn(h->user);
    ds__tls.in_callback = outer;
}

static ds__cuda_task ds__cuda_nothing; /* of a node that is switched off */

static int ds__cuda_own_room(ds__cuda_owns *list) {
    return ds__room(&list->at, sizeof *list->at, list->count, &list->room);
}

static int ds__cuda_own_keep(ds__cuda_owns *list, uint32_t node, ds__object *o) {
    if (!ds__cuda_own_room(list))
        return 0;
    list->at[list->count++] = (ds__cuda_own){ node, ds__object_keep(o) };
    return 1;
}

static void ds__cuda_own_drop(ds__cuda_owns *list, uint32_t node) {
    uint32_t kept = 0;
    uint32_t count = list->count;
    for (uint32_t i = 0; i < count; i++) {
        ds__cuda_own own = list->at[i];
        if (own.node != node)
            list->at[kept++] = own;
        else
            ds__object_drop(own.object);
    }
    list->count = kept;
}

static void ds__cuda_own_end(ds__cuda_owns *list) {
    for (uint32_t i = 0; i < list->count; i++)
        ds__object_drop(list->at[i].object);
    ds__release(list->at);
    memset(list, 0, sizeof *list);
}

/* Adds all of another list, under the given node unless that is DS__CUDA_NOWHERE. */
static int ds__cuda_own_copy(ds__cuda_owns *to, const ds__cuda_owns *from, uint32_t node) {
    for (uint32_t i = 0; i < from->count; i++)
        if (!ds__cuda_own_keep(to, node == DS__CUDA_NOWHERE ? from->at[i].node : node,
                               from->at[i].object))
            return 0;
    return 1;
}

/* Adds what the user attached to the graph and to graphs in it. */
static int ds__cuda_own_attached(ds__cuda_owns *to, const ds__body *b, uint32_t node) {
    for (size_t i = 0; i < b->object_count; i++)
        if (!ds__cuda_own_keep(to, node, b->object[i]))
            return 0;
    for (uint32_t i = 0; i < b->count; i++)
        if (b->node[i]->child &&
            !ds__cuda_own_attached(to, b->node[i]->child, node == DS__CUDA_ATTACHED ? i : node))
            return 0;
    return 1;
}

/* Adds all that an executable of the graph needs. */
static int ds__cuda_own_all(ds__cuda_owns *to, const ds__body *b) {
    return ds__cuda_own_copy(to, &((const ds__cuda_graph *)b->native)->owns, DS__CUDA_NOWHERE) &&
           ds__cuda_own_attached(to, b, DS__CUDA_ATTACHED);
}

/* What is kept for the node; NULL: nothing. */
static ds__object *ds__cuda_own_find(const ds__cuda_owns *list, uint32_t node) {
    for (uint32_t i = 0; i < list->count; i++)
        if (list->at[i].node == node)
            return list->at[i].object;
    return NULL;
}

/* cuda/capture_info.h - open captures: look-up, invalidation and errors.

   Finds the capture of a stream (ds__cuda_find_capture) and captures that CUDA has invalidated
   (ds__cuda_find_spoilt). Reports CUDA's codes 900 to 908 (ds__cuda_capture_failed). Before a
   release of memory, ds__cuda_wait_streams waits for the streams outside of captures.

   Invariants: ds__tls.capture_locked counts how often the thread holds the capture lock. CUDA does
   not number an invalid capture, so it is found by the number stored in the stream or by the stream
   where it began. An error names the capture of the stream or event, else the capture that the call
   invalidated, else the one whose rules the call broke.
   Locks: ds__cuda_lock takes the capture lock. ds__cuda_capture_of, ds__cuda_find_capture and
   ds__cuda_is_spoilt expect it; ds__cuda_find_spoilt and ds__cuda_forbidden take it;
   ds__cuda_capture_failed takes it unless the thread holds it. Driver calls run under it.
   ds__cuda_wait_streams holds ds__cuda.lock across cudaStreamIsCapturing, event creation and event
   records, never across a wait.
   Threads: any. Per-thread streams of other threads cannot be queried or waited for and are left
   out. */

typedef struct ds__cuda_look {
    enum cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph;
    const cudaGraphNode_t *after; /* CUDA's, until the next call on the stream */
    size_t count;
} ds__cuda_look;

static cudaError_t ds__cuda_get_info(cudaStream_t stream, ds__cuda_look *out) {
    memset(out, 0, sizeof *out);
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges;
    return cudaStreamGetCaptureInfo(stream, &out->status, &out->id, &out->graph, &out->after,
                                    &edges, &out->count);
#elif CUDART_VERSION >= 12030
    const cudaGraphEdgeData *edges;
    return cudaStreamGetCaptureInfo_v3(stream, &out->status, &out->id, &out->graph, &out->after,
                                       &edges, &out->count);
#elif CUDART_VERSION >= 12000
    return cudaStreamGetCaptureInfo(stream, &out->status, &out->id, &out->graph, &out->after,
                                    &out->count);
#else
    return cudaStreamGetCaptureInfo_v2(stream, &out->status, &out->id, &out->graph, &out->after,
                                       &out->count);
#endif
}

static void ds__cuda_lock(void) {
    ds__lock_take(&ds__g.capture_lock);
    ds__tls.capture_locked++;
}

static void ds__cuda_unlock(void) {
    ds__tls.capture_locked--;
    ds__lock_give(&ds__g.capture_lock);
}

/* The open capture with CUDA's number; NULL: others began it. The lock is held. */
static ds__capture *ds__cuda_capture_of(unsigned long long id) {
    ds__capture *c = ds__g.captures;
    while (c && (c->driver->type != DS_DEVICE_CUDA || c->native_id != id))
        c = c->next;
    return c;
}

static int ds__cuda_began_on(const ds__capture *c, const ds__cuda_stream *s) {
    const ds__cuda_origin *o = c->origin;
    return o->handle == s->handle && o->device == s->device &&
           (!o->per_thread || o->thread == s->thread);
}

/* Asks for the capture of the stream and notes it there; inside of a scope of the stream, the
   lock is held. *out NULL: none, or that of others, which *now tells apart. CUDA does not number
   an invalid one. */
static ds_result ds__cuda_find_capture(ds__cuda_scope *scope, ds__cuda_stream *s,
                                       ds__cuda_look *now, ds__capture **out) {
    *out = NULL;
    ds_result r =
        ds__cuda_check(scope, ds__cuda_get_info(s->handle, now), "cudaStreamGetCaptureInfo");
    if (r < 0)
        return r;
    if (now->status == cudaStreamCaptureStatusActive)
        *out = ds__cuda_capture_of(now->id);
    else if (now->status != cudaStreamCaptureStatusNone) {
        for (ds__capture *c = ds__g.captures; c && !*out; c = c->next)
            if (c->driver->type == DS_DEVICE_CUDA &&
                (c->id == atomic_load(&s->capture) || ds__cuda_began_on(c, s)))
                *out = c;
        /* by a call that was not made here */
        if (*out && (*out)->status == DS_CAPTURE_ACTIVE)
            (*out)->status = DS_CAPTURE_INVALIDATED;
    }
    atomic_store(&s->capture, *out ? (*out)->id : 0);
    scope->capture = *out ? (*out)->id : 0;
    return DS_OK;
}

/* Whether CUDA has made it invalid. Nobody can ask for another thread's own stream. */
static int ds__cuda_is_spoilt(const ds__cuda_scope *scope, const ds__capture *c) {
    const ds__cuda_origin *o = c->origin;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    ds__cuda_scope there = { .pushed = 0 };
    if (o->per_thread && o->thread != ds__cuda_this_thread())
        return 0;
    /* its handle means the current device's */
    if (o->per_thread && ds__cuda_enter(&there, o->device) < 0)
        return 0;
    cudaError_t code = cudaStreamIsCapturing(o->handle, &status);
    ds__cuda_ignore(scope, code);
    ds__cuda_leave(&there);
    return code == cudaSuccess && status == cudaStreamCaptureStatusInvalidated;
}

/* Notes which captures this call has spoiled. */
static void ds__cuda_find_spoilt(const ds__cuda_scope *scope, const char *rule) {
    ds__cuda_lock();
    for (ds__capture *c = ds__g.captures; c; c = c->next)
        if (c->driver->type == DS_DEVICE_CUDA && c->status == DS_CAPTURE_ACTIVE &&
            ds__cuda_is_spoilt(scope, c))
            ds__capture_spoil(c, rule);
    ds__cuda_unlock();
}

/* What a code of capture means for the call. */
static const char *ds__cuda_rule(const char *call, int code) {
    switch (code) {
    case cudaErrorStreamCaptureUnsupported:
        if (strstr(call, "StreamQuery"))
            return "a stream that captures cannot be asked whether its work is done";
        if (strstr(call, "StreamSynchronize"))
            return "a stream that captures cannot be waited for by the host";
        if (strstr(call, "AddCallback"))
            return "a callback cannot be captured, a host function can";
        if (strstr(call, "DeviceSynchronize"))
            return "waiting for a device is not allowed while the capture is open";
        return "the call is not allowed in this thread while the capture is open";
    case cudaErrorStreamCaptureInvalidated:
        return "the capture is invalid";
    case cudaErrorStreamCaptureMerge:
        return "a stream cannot wait for another capture, that would merge the two";
    case cudaErrorStreamCaptureUnmatched:
        return "a capture ends on the stream where it began, not on one that was forked into it";
    case cudaErrorStreamCaptureUnjoined:
        return "a stream that was forked into the capture was not joined";
    case cudaErrorStreamCaptureIsolation:
        return "the event was recorded outside of the capture";
    case cudaErrorStreamCaptureImplicit:
        return "the legacy stream cannot be used while a blocking stream of its device captures";
    case cudaErrorCapturedEvent:
        return "an event that was recorded in a capture stands for nothing that runs";
    default:
        return "only the thread that began the capture may end it, unless it is relaxed";
    }
}

/* The sentence of codes 900 to 908. The capture is that of the stream or event, else the one
   that this call has spoiled, else the one whose rules it broke. */
__attribute__((cold, noinline)) static ds_result ds__cuda_capture_failed(
    const ds__cuda_scope *scope, const char *call, int code) {
    ds__capture *named = NULL;
    ds__capture *spoilt = NULL;
    ds__capture *forbids = NULL;
    ds__capture *only = NULL;
    int locked = ds__tls.capture_locked;
    int spoils = 0;
    int count = 0;
    char rule[sizeof named->rule];
    const char *why = ds__cuda_rule(call, code);
    ds_result r = ds__cuda_map(code);
    snprintf(rule, sizeof rule, "%s (%s says %d)", why, call, code);
    if (!locked)
        ds__cuda_lock();
    for (ds__capture *c = ds__g.captures; c; c = c->next) {
        if (c->driver->type != DS_DEVICE_CUDA)
            continue;
        int now = c->status == DS_CAPTURE_ACTIVE && ds__cuda_is_spoilt(scope, c);
        if (now)
            ds__capture_spoil(c, rule);
        if (now && !spoilt)
            spoilt = c;
        if (c->id == scope->capture) {
            named = c;
            spoils = now;
        }
        if (!forbids && ds__capture_forbids(c))
            forbids = c;
        only = count++ ? NULL : c;
    }
    ds__capture *c = named                                                  ? named
                     : spoilt                                               ? spoilt
                     : code == cudaErrorStreamCaptureUnsupported && forbids ? forbids
                                                                            : only;
    if (c && code == cudaErrorCapturedEvent && scope->capture && c != named && c != spoilt)
        c = NULL;
    if (c == spoilt && c)
        spoils = 1;
    /* and over */
    if (code == cudaErrorStreamCaptureUnjoined)
        spoils = 1;
    if (c)
        r = ds__capture_fail(r, c, spoils, rule);
    else if (code == cudaErrorCapturedEvent && scope->capture)
        r = ds__fail(r,
                     "the event was recorded in capture #%llu, which is over, and nothing ran "
                     "there; record it again (%s says %d)",
                     (unsigned long long)scope->capture, call, code);
    else
        r = ds__fail(r, "%s; devstream did not begin the capture, or it is over", rule);
    if (!locked)
        ds__cuda_unlock();
    return r;
}

/* The core's guard with CUDA's answer: whether a capture forbids the thread what is not safe. */
static int ds__cuda_forbidden(void) {
    int forbids = 0;
    ds__cuda_lock();
    for (const ds__capture *c = ds__g.captures; c; c = c->next)
        forbids |= c->driver->type == DS_DEVICE_CUDA && ds__capture_forbids(c);
    ds__cuda_unlock();
    return forbids;
}

/* Waits for what is on the streams that do not capture; other threads' own streams cannot be
   named. Inside of a scope of the device. */
static ds_result ds__cuda_wait_streams_of(const ds__cuda_scope *scope) {
    size_t room = 1;
    size_t count = 0;
    cudaError_t failed = cudaSuccess;
    const char *call = "";
    ds__lock_take(&ds__cuda.lock);
    for (const ds__cuda_stream *s = ds__cuda.streams; s; s = s->next)
        room++;
    ds__lock_give(&ds__cuda.lock);
    cudaEvent_t *events = ds__alloc(room * sizeof(cudaEvent_t));
    if (!events)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to wait for %zu streams", room);
    ds__lock_take(&ds__cuda.lock);
    const ds__cuda_stream legacy = { .handle = cudaStreamLegacy,
                                     .device = scope->device,
                                     .kind = DS__STREAM_LEGACY };
    const ds__cuda_stream *s = &legacy;
    for (; s && count < room && failed == cudaSuccess;
         s = s == &legacy ? ds__cuda.streams : s->next) {
        enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
        if (s->hidden || s->device != scope->device ||
            (s->kind == DS__STREAM_PER_THREAD && s->thread != ds__cuda_this_thread()))
            continue;
        cudaError_t code = cudaStreamIsCapturing(s->handle, &status);
        ds__cuda_ignore(scope, code);
        if (code != cudaSuccess || status != cudaStreamCaptureStatusNone)
            continue;
        failed = ds__cuda_mark(&events[count], s->handle, &call);
        count += events[count] != NULL;
    }
    ds__lock_give(&ds__cuda.lock);
    ds_result r = ds__cuda_check(scope, failed, call);
    for (size_t i = 0; i < count; i++) {
        if (r == DS_OK)
            r = DS__RT(*scope, cudaEventSynchronize, (events[i]));
        ds__cuda_ignore(scope, cudaEventDestroy(events[i]));
    }
    ds__release(events);
    return r;
}

static ds_result ds__cuda_wait_streams(void) {
    ds_result r = DS_OK;
    for (int i = 0; i < ds__cuda.devices && r == DS_OK; i++) {
        ds__cuda_scope scope;
        if (!atomic_load(&ds__cuda.used[i]))
            continue;
        if ((r = ds__cuda_enter(&scope, i)) < 0)
            return r;
        r = ds__cuda_wait_streams_of(&scope);
        ds__cuda_leave(&scope);
        if (r == DS_ERR_FAILED)
            r = DS_OK;
    }
    return r;
}

/* cuda/graph_read.h - native graphs read into shadow graphs.

   Reads nodes (ds__cuda_read_nodes) and dependencies (ds__cuda_read_after) of a CUDA graph into its
   shadow graph (ds__body). Finds the index of a native node (ds__cuda_index).

   Invariants: A node that the shadow graph lacks is appended as a node of kind DS_NODE_NATIVE, in
   CUDA's order and with its dependencies. Known nodes stay as they are. Dependencies on nodes
   outside the shadow graph are left out.
   Locks: takes none. The caller holds the capture lock if a capture makes the graph, else the
   graph's lock in the core. Driver calls run under it.
   Threads: any. */

static cudaGraphNode_t ds__cuda_native(const ds__node *n) {
    return n->native;
}

/* The node's index; UINT32_MAX: it is not in the picture. Most are found shortly before `below`. */
static uint32_t ds__cuda_index(const ds__body *b, cudaGraphNode_t native, uint32_t below) {
    for (uint32_t k = 0, i = below; k < b->count; k++) {
        i = i ? i - 1 : b->count - 1;
        if (b->node[i]->native == (void *)native)
            return i;
    }
    return UINT32_MAX;
}

/* What CUDA's node depends on; *out is to be released. */
static ds_result ds__cuda_get_after(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                    cudaGraphNode_t **out, size_t *count) {
    *count = 0;
    *out = NULL;
#if CUDART_VERSION >= 13000
    ds_result r = DS__RT(*scope, cudaGraphNodeGetDependencies, (node, NULL, NULL, count));
#else
    ds_result r = DS__RT(*scope, cudaGraphNodeGetDependencies, (node, NULL, count));
#endif
    if (r < 0 || !*count)
        return r;
#if CUDART_VERSION >= 12030
    /* what others captured may have edges with data */
    size_t size = sizeof(cudaGraphNode_t) + sizeof(cudaGraphEdgeData);
#else
    size_t size = sizeof(cudaGraphNode_t);
#endif
    if (!(*out = ds__alloc(*count * size)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu dependencies", *count);
#if CUDART_VERSION >= 13000
    r = DS__RT(*scope, cudaGraphNodeGetDependencies,
               (node, *out, (cudaGraphEdgeData *)(void *)(*out + *count), count));
#elif CUDART_VERSION >= 12030
    r = DS__RT(*scope, cudaGraphNodeGetDependencies_v2,
               (node, *out, (cudaGraphEdgeData *)(void *)(*out + *count), count));
#else
    r = DS__RT(*scope, cudaGraphNodeGetDependencies, (node, *out, count));
#endif
    return r;
}

/* Reads the dependencies of a node into the picture; the lock is held if a capture is open. */
static ds_result ds__cuda_read_after(const ds__cuda_scope *scope, ds__body *b, uint32_t index) {
    cudaGraphNode_t *after;
    size_t count;
    ds__node *n = b->node[index];
    ds_result r = ds__cuda_get_after(scope, ds__cuda_native(n), &after, &count);
    if (r == DS_OK)
        n->dep_count = 0;
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t on = ds__cuda_index(b, after[i], index);
        if (on != UINT32_MAX && !ds__node_depend(n, on))
            r = DS_ERR_OUT_OF_MEMORY;
    }
    ds__release(after);
    return r;
}

static ds_result ds__cuda_get_nodes(const ds__cuda_scope *scope, cudaGraph_t graph,
                                    cudaGraphNode_t **out, size_t *count) {
    *out = NULL;
    ds_result r = DS__RT(*scope, cudaGraphGetNodes, (graph, NULL, count));
    if (r < 0 || !*count)
        return r;
    if (!(*out = ds__alloc(*count * sizeof(cudaGraphNode_t))))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu nodes", *count);
    return DS__RT(*scope, cudaGraphGetNodes, (graph, *out, count));
}

/* Enters a node at the end, as one that is not known. */
static ds_result ds__cuda_append_unknown(ds__body *b, cudaGraphNode_t native) {
    ds__op op;
    memset(&op, 0, sizeof op);
    op.kind = DS__OP_NOTHING;
    ds__node *n = ds__node_make(&op, b->device, 0);
    if (n) {
        n->kind = DS_NODE_NATIVE;
        n->native = native;
    }
    ds_result r = n ? ds__body_append(b, n, NULL, 0) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0)
        ds__node_free(n);
    return r;
}

/* Enters nodes that the picture does not have, as ones that are not known. The lock is held if a
   capture is open. */
static ds_result ds__cuda_read_nodes(const ds__cuda_scope *scope, ds__body *b) {
    ds__cuda_graph *g = b->native;
    cudaGraphNode_t *all;
    size_t count = 0;
    ds_result r = DS__RT(*scope, cudaGraphGetNodes, (g->graph, NULL, &count));
    if (r < 0 || count <= b->count)
        return r;
    r = ds__cuda_get_nodes(scope, g->graph, &all, &count);
    size_t missing = count > b->count ? count - b->count : 0;
    size_t first = count;
    while (r == DS_OK && missing && first > 0) {
        if (ds__cuda_index(b, all[--first], b->count) == UINT32_MAX)
            missing--;
        else
            all[first] = NULL;
    }
    uint32_t before = b->count;
    for (size_t i = first; i < count && r == DS_OK; i++)
        if (all[i])
            r = ds__cuda_append_unknown(b, all[i]);
    ds__release(all);
    for (uint32_t i = before; i < b->count && r == DS_OK; i++)
        r = ds__cuda_read_after(scope, b, i);
    return r;
}

/* cuda/graph_node.h - native nodes.

   Translates a node of the shadow graph (ds__node) into CUDA's parameters and adds its native node
   to a graph (ds__cuda_add). ds__cuda_put_kernel adds a kernel node, or sets one in a graph or an
   executable.

   Invariants: The device of a node is current while the node is made or set. The data of a host or
   child node is kept in the graph under the index from the caller; after a failure nothing is kept.
   One kernel node is one launch, so more items than one launch can have are refused. A switched-off
   node becomes an empty node.
   Locks: none of its own. The caller holds the locks that graph.h and graph_exec.h name. A kernel
   that is not loaded, or needs more dynamic shared memory, takes ds__cuda.mutex.
   Threads: any. */

/* Which type of CUDA's the node is. */
static enum cudaGraphNodeType ds__cuda_type(const ds__node *n) {
    unsigned to = n->op.places >> DS__OP_DST & 255u;
    unsigned from = n->op.places >> DS__OP_SRC & 255u;
    switch (n->kind) {
    case DS_NODE_KERNEL:
        return cudaGraphNodeTypeKernel;
    case DS_NODE_COPY:
        return ds__cuda_on_gpu(to) || ds__cuda_on_gpu(from) ? cudaGraphNodeTypeMemcpy
                                                            : cudaGraphNodeTypeHost;
    case DS_NODE_FILL:
        return ds__cuda_on_gpu(to) ? cudaGraphNodeTypeMemset : cudaGraphNodeTypeHost;
    case DS_NODE_HOST:
        return cudaGraphNodeTypeHost;
    case DS_NODE_EVENT_RECORD:
        return cudaGraphNodeTypeEventRecord;
    case DS_NODE_EVENT_WAIT:
        return cudaGraphNodeTypeWaitEvent;
    case DS_NODE_CHILD:
        return cudaGraphNodeTypeGraph;
    default:
        return cudaGraphNodeTypeEmpty;
    }
}

/* The device of a node that is made by hand: of copies and fills one that has the memory. It is
   current while the node is made or set. */
static int ds__cuda_node_device(const ds__node *n) {
    int to = ds__place_of(&n->op, DS__OP_DST) - DS__AT_DEVICE;
    int from = ds__place_of(&n->op, DS__OP_SRC) - DS__AT_DEVICE;
    if (n->kind == DS_NODE_COPY && from >= 0)
        return from;
    return (n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL) && to >= 0 ? to : n->device.index;
}

/* A launch as the parameters of a node point to it. */
typedef struct ds__cuda_call {
    ds_grid grid;
    uint64_t first;
    uint64_t count;
    void *params[DS_KERNEL_MAX_PARAMS];
} ds__cuda_call;

static ds_result ds__cuda_prepare(const ds__cuda_scope *scope, const ds__node *n,
                                  ds__cuda_call *out) {
    ds__kernel *k = n->op.u.kernel.kernel;
    ds_result r = ds__cuda_loaded(k, scope->device) ? DS_OK : ds__cuda_ready(scope, k);
    if (r < 0)
        return r;
    out->first = 0;
    out->count = n->op.u.kernel.items;
    ds__cuda_params(k, n->op.u.kernel.args, &out->first, &out->count, out->params);
    if (n->op.u.kernel.grid) {
        out->grid = ds__cuda_whole_grid(n->op.u.kernel.grid);
    } else {
        uint64_t most;
        r = ds__cuda_split(k, out->count,
                           k->cuda.items_per_block ? k->cuda.items_per_block
                           : k->cuda.block         ? k->cuda.block
                                                   : 256,
                           &most);
        if (r == DS_OK && out->count > most)
            r = ds__fail(DS_ERR_UNSUPPORTED,
                         "kernel %s: %zu items take more than one launch, a node is one", k->name,
                         n->op.u.kernel.items);
        out->grid = ds__cuda_items_grid(k, scope->device, out->count);
    }
    ds__cuda_function *f = ds__cuda_loaded(k, scope->device);
    if (r == DS_OK && out->grid.shared_bytes > atomic_load(&f->shared))
        r = ds__cuda_allow_shared(scope, k, f, out->grid.shared_bytes);
    return r;
}

/* Adds a kernel node (graph), or sets one of a graph (neither) or of an executable (exec). */
static ds_result ds__cuda_put_kernel(const ds__cuda_scope *scope, const ds__node *n,
                                     cudaGraph_t graph, cudaGraphExec_t exec,
                                     const cudaGraphNode_t *after, size_t count,
                                     cudaGraphNode_t *node) {
    const ds__kernel *k = n->op.u.kernel.kernel;
    ds__cuda_call c;
    int code = 0;
    ds_result r = ds__cuda_prepare(scope, n, &c);
    if (r < 0)
        return r;
    if (k->cuda.native_fn) {
        struct cudaKernelNodeParams p;
        memset(&p, 0, sizeof p);
        p.func = (void *)(uintptr_t)k->cuda.native_fn;
        p.gridDim = (struct dim3){ c.grid.grid[0], c.grid.grid[1], c.grid.grid[2] };
        p.blockDim = (struct dim3){ c.grid.block[0], c.grid.block[1], c.grid.block[2] };
        p.sharedMemBytes = c.grid.shared_bytes;
        p.kernelParams = c.params;
        r = graph  ? DS__RT(*scope, cudaGraphAddKernelNode, (node, graph, after, count, &p))
            : exec ? DS__RT(*scope, cudaGraphExecKernelNodeSetParams, (exec, *node, &p))
                   : DS__RT(*scope, cudaGraphKernelNodeSetParams, (*node, &p));
    } else {
        ds__cuda_kernel_params p = {
            atomic_load(&ds__cuda_loaded(n->op.u.kernel.kernel, scope->device)->function),
            c.grid.grid[0],
            c.grid.grid[1],
            c.grid.grid[2],
            c.grid.block[0],
            c.grid.block[1],
            c.grid.block[2],
            c.grid.shared_bytes,
            c.params,
            NULL,
            NULL,
            NULL
        };
        if (graph)
            DS__DR_CODE(*scope, code, cuGraphAddKernelNode, (node, graph, after, count, &p));
        else if (exec)
            DS__DR_CODE(*scope, code, cuGraphExecKernelNodeSetParams, (exec, *node, &p));
        else
            DS__DR_CODE(*scope, code, cuGraphKernelNodeSetParams, (*node, &p));
        if (code)
            r = ds__cuda_fail(scope,
                              graph  ? "cuGraphAddKernelNode"
                              : exec ? "cuGraphExecKernelNodeSetParams"
                                     : "cuGraphKernelNodeSetParams",
                              code);
    }
    return r < 0 ? ds__also(r, " (kernel %s)", k->name) : r;
}

static struct cudaMemcpy3DParms ds__cuda_copy_params(const ds__op *op) {
    int to = ds__cuda_where(op->places >> DS__OP_DST & 255u);
    int from = ds__cuda_where(op->places >> DS__OP_SRC & 255u);
    size_t width = op->u.copy.width;
    size_t height = op->u.copy.height;
    struct cudaMemcpy3DParms p;
    memset(&p, 0, sizeof p);
    p.dstPtr.ptr = op->u.copy.dst;
    p.srcPtr.ptr = (void *)(uintptr_t)op->u.copy.src;
    p.dstPtr.pitch = height > 1 ? op->u.copy.dst_pitch : width;
    p.srcPtr.pitch = height > 1 ? op->u.copy.src_pitch : width;
    p.dstPtr.xsize = p.srcPtr.xsize = p.extent.width = width;
    p.dstPtr.ysize = p.srcPtr.ysize = p.extent.height = height;
    p.extent.depth = 1;
    p.kind = ds__cuda_kind(to, from);
    return p;
}

static struct cudaMemsetParams ds__cuda_fill_params(const ds__op *op) {
    static const unsigned mask[] = { 0, 0xff, 0xffff, 0, 0xffffffffu };
    struct cudaMemsetParams p;
    memset(&p, 0, sizeof p);
    p.dst = op->u.fill.dst;
    p.pitch = op->u.fill.height > 1 ? op->u.fill.pitch : 0;
    p.elementSize = (unsigned)op->u.fill.value_size;
    p.width = op->u.fill.width;
    p.height = op->u.fill.height;
    p.value = op->u.fill.value & mask[op->u.fill.value_size];
    return p;
}

static ds_result ds__cuda_set_priority(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                       int value) {
    cudaLaunchAttributeValue priority;
    memset(&priority, 0, sizeof priority);
    priority.priority = value;
    return DS__RT(*scope, cudaGraphKernelNodeSetAttribute,
                  (node, cudaLaunchAttributePriority, &priority));
}

static ds_result ds__cuda_child_native(ds__body *child);

/* Adds a native node of the picture's node; what it needs is kept under its index. No scope is
   needed. */
static ds_result ds__cuda_add(ds__cuda_graph *g, const ds__node *n, uint32_t index,
                              const cudaGraphNode_t *after, size_t count, cudaGraphNode_t *out) {
    cudaGraph_t graph = g->graph;
    ds__cuda_scope scope;
    ds__object *task = NULL;
    if (n->kind == DS_NODE_NATIVE)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "a node that others captured can only be copied with its graph");
    if (n->kind == DS_NODE_COPY && (ds__place_of(&n->op, DS__OP_DST) == DS__AT_OTHER ||
                                    ds__place_of(&n->op, DS__OP_SRC) == DS__AT_OTHER))
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "a graph cannot copy between devices of different drivers");
    ds_result r = n->child && n->enabled ? ds__cuda_child_native(n->child) : DS_OK;
    if (r == DS_OK)
        r = ds__cuda_enter(&scope, n->device.index);
    if (r < 0)
        return r;
    struct cudaHostNodeParams host = { ds__cuda_host_node, NULL };
    struct cudaMemcpy3DParms copy;
    struct cudaMemsetParams fill;
    /* off: of an executable whose launch was captured */
    switch (n->enabled ? ds__cuda_type(n) : cudaGraphNodeTypeEmpty) {
    case cudaGraphNodeTypeKernel:
        r = ds__cuda_put_kernel(&scope, n, graph, NULL, after, count, out);
        if (r == DS_OK && n->priority &&
            (r = ds__cuda_set_priority(&scope, *out, n->priority)) < 0) {
            /* no node of a graph that is being captured may go, and a priority is only a hint */
            if (g->capture)
                r = DS_OK;
            else
                ds__cuda_ignore(&scope, cudaGraphDestroyNode(*out));
        }
        break;
    case cudaGraphNodeTypeMemcpy:
        copy = ds__cuda_copy_params(&n->op);
        r = DS__RT(scope, cudaGraphAddMemcpyNode, (out, graph, after, count, &copy));
        break;
    case cudaGraphNodeTypeMemset:
        fill = ds__cuda_fill_params(&n->op);
        r = DS__RT(scope, cudaGraphAddMemsetNode, (out, graph, after, count, &fill));
        break;
    case cudaGraphNodeTypeHost:
        task = ds__cuda_task_new(n);
        if (!task || !ds__cuda_own_room(&g->owns)) {
            r = DS_ERR_OUT_OF_MEMORY;
            break;
        }
        host.userData = task->user;
        r = DS__RT(scope, cudaGraphAddHostNode, (out, graph, after, count, &host));
        if (r == DS_OK) {
            g->owns.at[g->owns.count++] = (ds__cuda_own){ index, task };
            task = NULL;
        }
        break;
    case cudaGraphNodeTypeEventRecord:
        r = DS__RT(scope, cudaGraphAddEventRecordNode,
                   (out, graph, after, count, ((ds__cuda_event *)n->op.u.event.event)->event));
        break;
    case cudaGraphNodeTypeWaitEvent:
        r = DS__RT(scope, cudaGraphAddEventWaitNode,
                   (out, graph, after, count, ((ds__cuda_event *)n->op.u.event.event)->event));
        break;
    case cudaGraphNodeTypeGraph: {
        const ds__cuda_graph *child = n->child->native;
        if (!ds__cuda_own_copy(&g->owns, &child->owns, index))
            r = DS_ERR_OUT_OF_MEMORY;
        else
            r = DS__RT(scope, cudaGraphAddChildGraphNode, (out, graph, after, count, child->graph));
        if (r < 0)
            ds__cuda_own_drop(&g->owns, index);
        break;
    }
    default:
        r = DS__RT(scope, cudaGraphAddEmptyNode, (out, graph, after, count));
        break;
    }
    ds__object_drop(task);
    ds__cuda_leave(&scope);
    return r;
}

/* cuda/graph.h - native graphs: creation, nodes, edges and clones.

   Makes, clones and destroys the native graph of a shadow graph (ds__body), and adds nodes and
   edges to it (the entries graph_*). ds__cuda_rebuild builds the native graph anew from the shadow
   graph, if CUDA cannot change a node in place.

   Invariants: Every node of the shadow graph has its native node in `native`, unless the shadow
   graph has no native graph yet (b->native is NULL). Such a graph gets one when it becomes a child
   node. A failed rebuild leaves the graph as it was. `graph` is NULL if the capture that was to
   make it failed; ds__cuda_usable refuses such a graph.
   Locks: takes none. The core holds the graph's lock, a spinlock, also during driver calls. While a
   capture makes the graph, the core holds the capture lock too (ds__cuda_usable,
   ds__cuda_graph_add, ds__cuda_graph_edges). ds__cuda_graph_create and ds__cuda_graph_destroy need
   no lock. Adding a kernel node may take ds__cuda.mutex.
   Threads: any. */

static ds_result ds__cuda_connect(const ds__cuda_scope *scope, cudaGraph_t graph,
                                  const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                  size_t count) {
#if CUDART_VERSION >= 13000
    return DS__RT(*scope, cudaGraphAddDependencies, (graph, from, to, NULL, count));
#else
    return DS__RT(*scope, cudaGraphAddDependencies, (graph, from, to, count));
#endif
}

static void ds__cuda_graph_end(ds__cuda_graph *g, int device) {
    ds__cuda_scope scope;
    if (g->graph) {
        ds__cuda_enter_or_not(&scope, device);
        ds__cuda_ignore(&scope, cudaGraphDestroy(g->graph));
        ds__cuda_leave(&scope);
    }
    ds__cuda_own_end(&g->owns);
    ds__release(g);
}

static ds_result ds__cuda_graph_make(int device, ds__cuda_graph **out) {
    ds__cuda_scope scope;
    ds__cuda_graph *g = ds__alloc(sizeof *g);
    if (!g)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
    ds_result r = ds__cuda_enter(&scope, device);
    if (r == DS_OK) {
        r = DS__RT(scope, cudaGraphCreate, (&g->graph, 0));
        ds__cuda_leave(&scope);
    }
    if (r < 0)
        ds__release(g);
    else
        *out = g;
    return r;
}

/* A native graph of the whole picture, in which `fresh`, if given, stands in the place of a
   node. nodes: the native ones, with room for as many again. */
static ds_result ds__cuda_build(const ds__body *b, uint32_t index, const ds__node *fresh,
                                cudaGraphNode_t *nodes, ds__cuda_graph **out) {
    cudaGraphNode_t *after = nodes + b->count;
    ds__cuda_scope scope;
    ds__cuda_graph *g = NULL;
    ds_result r = ds__cuda_graph_make(b->device.index, &g);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++) {
        size_t count = 0;
        for (uint32_t k = 0; k < b->node[i]->dep_count; k++)
            if (b->node[i]->deps[k] < i)
                after[count++] = nodes[b->node[i]->deps[k]];
        r = ds__cuda_add(g, fresh && i == index ? fresh : b->node[i], i, after, count, &nodes[i]);
    }
    if (r == DS_OK)
        r = ds__cuda_enter(&scope, b->device.index);
    if (r < 0) {
        ds__cuda_graph_end(g, b->device.index);
        return r;
    }
    for (uint32_t i = 0; i < b->count; i++)
        for (uint32_t k = 0; k < b->node[i]->dep_count && r == DS_OK; k++)
            if (b->node[i]->deps[k] > i)
                r = ds__cuda_connect(&scope, g->graph, &nodes[b->node[i]->deps[k]], &nodes[i], 1);
    ds__cuda_leave(&scope);
    if (r < 0)
        ds__cuda_graph_end(g, b->device.index);
    else
        *out = g;
    return r;
}

/* The native nodes of the picture, with room for as many again behind them; NULL: no memory. */
static cudaGraphNode_t *ds__cuda_natives(const ds__body *b) {
    cudaGraphNode_t *list = ds__alloc((2u * (size_t)b->count + 1) * sizeof *list);
    for (uint32_t i = 0; list && i < b->count; i++)
        list[i] = ds__cuda_native(b->node[i]);
    if (!list)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph of %u nodes", (unsigned)b->count);
    return list;
}

/* Builds the native graph anew; the old one, if there is one, goes. */
static ds_result ds__cuda_rebuild(ds__body *b, uint32_t index, const ds__node *fresh) {
    ds__cuda_graph *g = NULL;
    cudaGraphNode_t *nodes = ds__cuda_natives(b);
    ds_result r = nodes ? ds__cuda_build(b, index, fresh, nodes, &g) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK) {
        for (uint32_t i = 0; i < b->count; i++)
            b->node[i]->native = nodes[i];
        if (b->native)
            ds__cuda_graph_end(b->native, b->device.index);
        b->native = g;
    }
    ds__release(nodes);
    return r;
}

static ds_result ds__cuda_child_native(ds__body *child) {
    return child->native ? DS_OK : ds__cuda_rebuild(child, 0, NULL);
}

static ds_result ds__cuda_graph_create(ds__body *b) {
    ds__cuda_graph *g = NULL;
    ds_result r = ds__cuda_graph_make(b->device.index, &g);
    b->native = g;
    return r;
}

static void ds__cuda_graph_destroy(ds__body *b) {
    ds__cuda_graph_end(b->native, b->device.index);
    b->native = NULL;
}

/* While a capture makes the graph it may have become invalid, and with it CUDA's graph gone. The
   lock is held then. */
static ds_result ds__cuda_usable(const ds__body *b) {
    const ds__cuda_graph *g = b->native;
    ds__cuda_scope scope;
    if (DS__LIKELY(!g->capture))
        return g->graph ? DS_OK
                        : ds__fail(DS_ERR_ILLEGAL_STATE,
                                   "the capture that was to make the graph failed");
    ds_result r = ds__cuda_enter(&scope, b->device.index);
    if (r < 0)
        return r;
    if (g->capture->status == DS_CAPTURE_ACTIVE && ds__cuda_is_spoilt(&scope, g->capture))
        g->capture->status = DS_CAPTURE_INVALIDATED;
    ds__cuda_leave(&scope);
    return g->capture->status == DS_CAPTURE_ACTIVE
               ? DS_OK
               : ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, g->capture, 0, "");
}

/* Enters what others have captured meanwhile, before the node that the core has just put at the
   picture's end: the order of the picture is CUDA's. */
static ds_result ds__cuda_read_before_last(ds__body *b) {
    ds__cuda_scope scope;
    ds__node *n = b->node[b->count - 1];
    uint32_t before = b->count - 1;
    ds_result r = ds__cuda_enter(&scope, b->device.index);
    if (r < 0)
        return r;
    b->count = before;
    r = ds__cuda_read_nodes(&scope, b);
    ds__cuda_leave(&scope);
    if (r == DS_OK)
        r = ds__body_append(b, n, NULL, 0);
    if (r == DS_OK)
        return r;
    while (b->count > before)
        ds__node_free(b->node[--b->count]);
    b->node[b->count++] = n;
    return r;
}

static ds_result ds__cuda_graph_add(ds__body *b, uint32_t index) {
    ds__cuda_graph *g = b->native;
    ds__node *n = b->node[index];
    cudaGraphNode_t node = NULL;
    cudaGraphNode_t *after = ds__alloc((n->dep_count + 1u) * sizeof(cudaGraphNode_t));
    if (!after)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %u dependencies",
                        (unsigned)n->dep_count);
    for (uint32_t i = 0; i < n->dep_count; i++)
        after[i] = ds__cuda_native(b->node[n->deps[i]]);
    ds_result r = ds__cuda_usable(b);
    if (r == DS_OK && g->capture)
        r = ds__cuda_read_before_last(b);
    n->device.index = ds__cuda_node_device(n);
    if (r == DS_OK)
        r = ds__cuda_add(g, n, index, after, n->dep_count, &node);
    n->native = node;
    ds__release(after);
    return r;
}

/* In one call: what fails has connected none. */
static ds_result ds__cuda_graph_edges(ds__body *b, const ds_graph_node *from,
                                      const ds_graph_node *to, size_t count) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_usable(b);
    if (r < 0)
        return r;
    cudaGraphNode_t *ends = ds__alloc(2 * count * sizeof *ends);
    if (!ends)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu edges", count);
    for (size_t i = 0; i < count; i++) {
        ends[i] = ds__cuda_native(b->node[(uint32_t)from[i].id - 1]);
        ends[count + i] = ds__cuda_native(b->node[(uint32_t)to[i].id - 1]);
    }
    r = ds__cuda_enter(&scope, b->device.index);
    if (r == DS_OK) {
        r = ds__cuda_connect(&scope, ((ds__cuda_graph *)b->native)->graph, ends, ends + count,
                             count);
        ds__cuda_leave(&scope);
    }
    ds__release(ends);
    return r;
}

/* CUDA's copy of a graph, and of each of its nodes the copy. */
static ds_result ds__cuda_clone(const ds__cuda_scope *scope, cudaGraph_t from,
                                const cudaGraphNode_t *nodes, uint32_t count, cudaGraph_t *out,
                                cudaGraphNode_t *out_nodes) {
    *out = NULL;
    ds_result r = DS__RT(*scope, cudaGraphClone, (out, from));
    for (uint32_t i = 0; i < count && r == DS_OK; i++)
        r = DS__RT(*scope, cudaGraphNodeFindInClone, (&out_nodes[i], nodes[i], *out));
    if (r < 0 && *out) {
        ds__cuda_ignore(scope, cudaGraphDestroy(*out));
        *out = NULL;
    }
    return r;
}

static ds_result ds__cuda_graph_clone(ds__body *from, ds__body *to) {
    const ds__cuda_graph *old = from->native;
    ds__cuda_scope scope;
    /* a picture only: made when it is needed */
    if (!old)
        return DS_OK;
    ds__cuda_graph *g = ds__alloc(sizeof *g);
    cudaGraphNode_t *nodes = ds__cuda_natives(from);
    ds_result r = g && nodes ? ds__cuda_usable(from)
                             : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph of %u nodes",
                                        (unsigned)from->count);
    if (r == DS_OK && !ds__cuda_own_copy(&g->owns, &old->owns, DS__CUDA_NOWHERE))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK && (r = ds__cuda_enter(&scope, from->device.index)) == DS_OK) {
        r = ds__cuda_clone(&scope, old->graph, nodes, from->count, &g->graph, nodes + from->count);
        ds__cuda_leave(&scope);
    }
    for (uint32_t i = 0; i < from->count && r == DS_OK; i++)
        to->node[i]->native = nodes[from->count + i];
    if (r == DS_OK)
        to->native = g;
    else if (g) {
        ds__cuda_own_end(&g->owns);
        ds__release(g);
    }
    ds__release(nodes);
    return r;
}

/* Nothing to do: pictures keep it, and executables get what the picture has when they are made. */
static ds_result ds__cuda_graph_attach(ds__body *b, ds__object *o) {
    (void)b;
    (void)o;
    return DS_OK;
}

/* cuda/graph_set.h - changes of nodes in graphs and executables.

   Changes a node of a graph (ds__cuda_graph_set), of a child graph (ds__cuda_set_child) or of an
   executable (ds__cuda_set). If CUDA cannot change a node in place, ds__cuda_graph_set builds the
   native graph anew. A new node instead would be the last one of its graph, and updates of
   executables depend on the order.

   Invariants: A graph with nodes of unknown kind, or in the making by a capture, cannot be built
   anew; such a change is refused. If ds__cuda_graph_set fails, the graph's kept objects are
   unchanged. A child graph is changed only if it has the same nodes and dependencies in the same
   order.
   Locks: takes none. The core holds the lock of the graph or executable, and the capture lock while
   a capture makes the graph. Driver calls run under them; setting a kernel node may take
   ds__cuda.mutex.
   Threads: any. */

/* Sets a native node of a graph, or with exec of an executable, which knows it by that node.
   device: the one on which the node was made. task: of a host node. */
static ds_result ds__cuda_set(const ds__node *n, int device, cudaGraphExec_t exec,
                              cudaGraphNode_t node, void *task) {
    ds__cuda_scope scope;
    struct cudaHostNodeParams host = { ds__cuda_host_node, task };
    struct cudaMemcpy3DParms copy;
    struct cudaMemsetParams fill;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    switch (ds__cuda_type(n)) {
    case cudaGraphNodeTypeKernel:
        r = ds__cuda_put_kernel(&scope, n, NULL, exec, NULL, 0, &node);
        break;
    case cudaGraphNodeTypeMemcpy:
        copy = ds__cuda_copy_params(&n->op);
        r = exec ? DS__RT(scope, cudaGraphExecMemcpyNodeSetParams, (exec, node, &copy))
                 : DS__RT(scope, cudaGraphMemcpyNodeSetParams, (node, &copy));
        break;
    case cudaGraphNodeTypeMemset:
        fill = ds__cuda_fill_params(&n->op);
        r = exec ? DS__RT(scope, cudaGraphExecMemsetNodeSetParams, (exec, node, &fill))
                 : DS__RT(scope, cudaGraphMemsetNodeSetParams, (node, &fill));
        break;
    case cudaGraphNodeTypeHost:
        r = DS__RT(scope, cudaGraphHostNodeSetParams, (node, &host));
        break;
    case cudaGraphNodeTypeEventRecord: {
        cudaEvent_t event = ((ds__cuda_event *)n->op.u.event.event)->event;
        r = exec ? DS__RT(scope, cudaGraphExecEventRecordNodeSetEvent, (exec, node, event))
                 : DS__RT(scope, cudaGraphEventRecordNodeSetEvent, (node, event));
        break;
    }
    case cudaGraphNodeTypeWaitEvent: {
        cudaEvent_t event = ((ds__cuda_event *)n->op.u.event.event)->event;
        r = exec ? DS__RT(scope, cudaGraphExecEventWaitNodeSetEvent, (exec, node, event))
                 : DS__RT(scope, cudaGraphEventWaitNodeSetEvent, (node, event));
        break;
    }
    default:
        break;
    }
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_set_child(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                    const ds__body *child, ds__cuda_owns *owns, uint32_t tag);

/* Sets a node of a graph to what the picture's node does; `owns` gets what it needs, under
   `tag`. Inside of any scope. */
static ds_result ds__cuda_set_in_graph(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                       const ds__node *n, int device, ds__cuda_owns *owns,
                                       uint32_t tag) {
    enum cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    if (n->kind == DS_NODE_NATIVE)
        return DS_OK;
    ds_result r = DS__RT(*scope, cudaGraphNodeGetType, (node, &type));
    if (r == DS_OK && type != ds__cuda_type(n))
        r = ds__fail(DS_ERR_UNSUPPORTED, "CUDA cannot make a node of type %d one of type %d",
                     (int)type, (int)ds__cuda_type(n));
    if (r < 0)
        return r;
    if (n->kind == DS_NODE_CHILD)
        return ds__cuda_set_child(scope, node, n->child, owns, tag);
    if (type != cudaGraphNodeTypeHost)
        return ds__cuda_set(n, device, NULL, node, NULL);
    ds__object *task = ds__cuda_task_new(n);
    if (!task || !ds__cuda_own_room(owns)) {
        ds__object_drop(task);
        return DS_ERR_OUT_OF_MEMORY;
    }
    owns->at[owns->count++] = (ds__cuda_own){ tag, task };
    return ds__cuda_set(n, device, NULL, node, task->user);
}

/* Whether a native node depends on those that the picture says; nodes: the native ones in the
   picture's order. */
static ds_result ds__cuda_fits(const ds__cuda_scope *scope, const cudaGraphNode_t *nodes,
                               const ds__body *b, uint32_t index) {
    const ds__node *n = b->node[index];
    cudaGraphNode_t *after;
    size_t count;
    size_t found = 0;
    ds_result r = ds__cuda_get_after(scope, nodes[index], &after, &count);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        for (uint32_t k = 0; k < n->dep_count; k++)
            found += after[i] == nodes[n->deps[k]];
    ds__release(after);
    if (r == DS_OK && (count != n->dep_count || found != count))
        r = ds__fail(DS_ERR_UNSUPPORTED,
                     "node %u of the child depends on others than the one that is there",
                     (unsigned)index);
    return r;
}

/* Of a node that is switched off, in a graph, where only an empty one does nothing. */
static ds_result ds__cuda_is_empty(const ds__cuda_scope *scope, cudaGraphNode_t node) {
    enum cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    ds_result r = DS__RT(*scope, cudaGraphNodeGetType, (node, &type));
    if (r == DS_OK && type != cudaGraphNodeTypeEmpty)
        r = ds__fail(DS_ERR_UNSUPPORTED, "CUDA cannot switch a node of a child off");
    return r;
}

/* The graph inside of a child node: CUDA has its nodes in the order in which they were added, as
   the picture has, which is made sure of. */
static ds_result ds__cuda_set_child(const ds__cuda_scope *scope, cudaGraphNode_t node,
                                    const ds__body *child, ds__cuda_owns *owns, uint32_t tag) {
    cudaGraph_t inner = NULL;
    cudaGraphNode_t *nodes = NULL;
    size_t count = 0;
    ds_result r = DS__RT(*scope, cudaGraphChildGraphNodeGetGraph, (node, &inner));
    if (r == DS_OK)
        r = ds__cuda_get_nodes(scope, inner, &nodes, &count);
    if (r == DS_OK && count != child->count)
        r = ds__fail(DS_ERR_UNSUPPORTED, "the child has %u nodes, the one that is there %zu",
                     (unsigned)child->count, count);
    for (uint32_t i = 0; i < count && r == DS_OK; i++) {
        const ds__node *n = child->node[i];
        r = ds__cuda_fits(scope, nodes, child, i);
        if (r == DS_OK && n->enabled)
            r = ds__cuda_set_in_graph(scope, nodes[i], n, n->device.index, owns, tag);
        else if (r == DS_OK)
            r = ds__cuda_is_empty(scope, nodes[i]);
    }
    ds__release(nodes);
    return r;
}

static int ds__cuda_has_unknown(const ds__body *b, int in_children) {
    for (uint32_t i = 0; i < b->count; i++)
        if (b->node[i]->kind == DS_NODE_NATIVE ||
            (in_children && b->node[i]->child && ds__cuda_has_unknown(b->node[i]->child, 1)))
            return 1;
    return 0;
}

/* CUDA cannot change everything of a node, and a new one in its place would be the last one of
   its graph, which matters for updates of executables. */
static ds_result ds__cuda_graph_set(ds__body *b, uint32_t index, ds__node *fresh) {
    ds__cuda_graph *g = b->native;
    const ds__node *old = b->node[index];
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_scope scope;
    ds_result r = ds__cuda_usable(b);
    if (r < 0)
        return r;
    int other = ds__cuda_type(fresh) != ds__cuda_type(old) || fresh->kind == DS_NODE_CHILD;
    if (fresh->kind == DS_NODE_KERNEL)
        other |=
            fresh->device.index != old->device.index ||
            !fresh->op.u.kernel.kernel->cuda.native_fn != !old->op.u.kernel.kernel->cuda.native_fn;
    /* CUDA ties copies and fills to the context in which they were made; where the graph cannot
       be made anew, it is asked all the same */
    enum cudaGraphNodeType type = ds__cuda_type(fresh);
    if (!other && (type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset) &&
        ds__cuda_node_device(fresh) != ds__cuda_node_device(old))
        other = !g->capture && !ds__cuda_has_unknown(b, 0);
    if (other && (g->capture || ds__cuda_has_unknown(b, 0)))
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "CUDA cannot change the node so, and the graph cannot be made anew: %s",
                        g->capture ? "a capture makes it" : "it has nodes that others captured");
    /* a captured one was made on its stream's */
    fresh->device.index = other ? ds__cuda_node_device(fresh) : old->device.index;
    if (other)
        return ds__cuda_rebuild(b, index, fresh);
    if ((r = ds__cuda_enter(&scope, b->device.index)) < 0)
        return r;
    cudaGraphNode_t node = ds__cuda_native(old);
    int priority = fresh->kind == DS_NODE_KERNEL && fresh->priority != old->priority;
    if (priority)
        r = ds__cuda_set_priority(&scope, node, fresh->priority);
    if (r == DS_OK && !ds__cuda_own_room(&g->owns))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_set_in_graph(&scope, node, fresh, fresh->device.index, &owns, index);
    if (r < 0 && priority)
        DS_IGNORE(ds__cuda_set_priority(&scope, node, old->priority));
    if (r == DS_OK && owns.count) {
        ds__cuda_own_drop(&g->owns, index);
        g->owns.at[g->owns.count++] = owns.at[0];
        owns.count = 0;
    }
    ds__cuda_own_end(&owns);
    ds__cuda_leave(&scope);
    return r;
}

/* cuda/graph_keep.h - lifetime of the objects that executables need.

   Makes a CUDA user object that owns all kept objects of an executable (ds__cuda_keep_make), and
   moves it into a graph before instantiation (ds__cuda_retain). ds__cuda_exec_end destroys an
   executable.

   Invariants: The thread that changes a keep's state from pending to taken drops its objects, so
   this happens once. A keep is in ds__cuda.keeps until its objects are dropped. After instantiation
   or update only CUDA's executable owns the user object; CUDA ends it after the last launch.
   Locks: `host_lock` guards the list of keeps; no call into CUDA is made under it. User destructors
   run before ds__cuda_keep_end takes it. The keep itself is freed under it, so the stop of the
   driver cannot come first. The user's free function therefore runs under a spinlock.
   Threads: ds__cuda_keep_end runs on a thread of CUDA, where calls into CUDA are not allowed. If
   the user object cannot be made, it runs on the caller's thread. The other functions run on any
   thread. */

static void ds__cuda_unlist_keep(ds__cuda_keep *k) {
    ds__lock_take(&ds__cuda.host_lock);
    if (k->previous)
        k->previous->next = k->next;
    else
        ds__cuda.keeps = k->next;
    if (k->next)
        k->next->previous = k->previous;
    ds__lock_give(&ds__cuda.host_lock);
}

/* On a thread of CUDA's, where it may not be called. */
static void CUDART_CB ds__cuda_keep_end(void *user) {
    ds__cuda_keep *k = user;
    int pending = DS__CUDA_PENDING;
    if (!atomic_compare_exchange_strong(&k->state, &pending, DS__CUDA_TAKEN))
        return;
    for (uint32_t i = 0; i < k->count; i++)
        ds__object_drop(k->object[i]);
    ds__lock_take(&ds__cuda.host_lock);
    if (k->previous)
        k->previous->next = k->next;
    else
        ds__cuda.keeps = k->next;
    if (k->next)
        k->next->previous = k->previous;
    /* before the lock is given: then the driver may stop, and the allocator be another one */
    ds__release(k);
    ds__lock_give(&ds__cuda.host_lock);
}

/* An object of CUDA's that owns all of the list; *out NULL: it is empty. */
static ds_result ds__cuda_keep_make(const ds__cuda_scope *scope, const ds__cuda_owns *owns,
                                    cudaUserObject_t *out) {
    *out = NULL;
    if (!owns->count)
        return DS_OK;
    ds__cuda_keep *k = ds__alloc(sizeof *k + owns->count * sizeof k->object[0]);
    if (!k)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
    for (; k->count < owns->count; k->count++)
        k->object[k->count] = ds__object_keep(owns->at[k->count].object);
    ds__lock_take(&ds__cuda.host_lock);
    k->next = ds__cuda.keeps;
    if (k->next)
        k->next->previous = k;
    ds__cuda.keeps = k;
    ds__lock_give(&ds__cuda.host_lock);
    ds_result r = DS__RT(*scope, cudaUserObjectCreate,
                         (out, k, ds__cuda_keep_end, 1, cudaUserObjectNoDestructorSync));
    if (r < 0) {
        *out = NULL;
        ds__cuda_keep_end(k);
    }
    return r;
}

static void ds__cuda_keep_drop(const ds__cuda_scope *scope, cudaUserObject_t object) {
    cudaError_t code = object ? cudaErrorUnknown : cudaSuccess;
    for (int tries = 0; tries < 3 && code != cudaSuccess; tries++)
        ds__cuda_ignore(scope, code = cudaUserObjectRelease(object, 1));
}

/* The same, and the graph has it. */
static ds_result ds__cuda_retain(const ds__cuda_scope *scope, cudaGraph_t graph,
                                 const ds__cuda_owns *owns, cudaUserObject_t *out) {
    ds_result r = ds__cuda_keep_make(scope, owns, out);
    if (r < 0 || !*out)
        return r;
    r = DS__RT(*scope, cudaGraphRetainUserObject, (graph, *out, 1, cudaGraphUserObjectMove));
    if (r < 0) {
        ds__cuda_keep_drop(scope, *out);
        *out = NULL;
    }
    return r;
}

/* From here on only the executable has it. */
static void ds__cuda_unretain(const ds__cuda_scope *scope, cudaGraph_t graph,
                              cudaUserObject_t object) {
    cudaError_t code = object ? cudaErrorUnknown : cudaSuccess;
    for (int tries = 0; tries < 3 && code != cudaSuccess; tries++)
        ds__cuda_ignore(scope, code = cudaGraphReleaseUserObject(graph, object, 1));
}

static void ds__cuda_exec_end(ds__cuda_exec *x) {
    ds__cuda_scope scope;
    ds__cuda_enter_or_not(&scope, x->device);
    if (x->exec)
        ds__cuda_ignore(&scope, cudaGraphExecDestroy(x->exec));
    if (x->now && x->now != x->kept)
        ds__cuda_ignore(&scope, cudaGraphDestroy(x->now));
    if (x->kept)
        ds__cuda_ignore(&scope, cudaGraphDestroy(x->kept));
    ds__cuda_leave(&scope);
    if (x->now_node != x->kept_node)
        ds__release(x->now_node);
    ds__release(x->kept_node);
    ds__release(x->off);
    ds__release(x->on);
    ds__cuda_own_end(&x->owns);
    if (x->held)
        ds__body_free(x->held);
    ds__release(x);
}

static void ds__cuda_exec_destroy(void *exec) {
    ds__cuda_exec_end(exec);
}

/* cuda/graph_exec.h - executable graphs: instantiation, update, launch.

   Instantiates graphs, updates and changes executables (ds__cuda_exec), and launches and uploads
   them. ds__cuda_remake changes one node by an update from a changed clone, where CUDA cannot set
   the node in the executable. At the driver's stop, ds__cuda_end_keeps ends what executables still
   keep.

   Invariants: `kept` is the clone of the instantiated graph, or NULL if CUDA cannot copy the graph;
   its nodes name the executable's nodes. `now` is a graph of what the executable does, unless
   `stale` is set. `off` is 1 for a node that CUDA switched off, and 2 for a host node with an empty
   task. `owns` holds the objects of what the executable does now. A failed change leaves the
   executable as it was.
   Locks: The core holds the executable's lock, a spinlock, also during driver calls; for an update
   also the graph's lock, for an instantiation only that. Dropping kept objects may run user
   destructors under these locks. ds__cuda_end_keeps takes `host_lock` and runs destructors after
   its release.
   Threads: any. ds__cuda_end_keeps runs during the stop, waits for CUDA's threads, and takes over
   after 0.1 s without progress. */

/* Holds the kernels and events of a graph and of graphs in it. */
static ds_result ds__cuda_hold(ds__body *held, const ds__body *b) {
    ds_result r = DS_OK;
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++) {
        const ds__node *n = b->node[i];
        if (n->child) {
            r = ds__cuda_hold(held, n->child);
            continue;
        }
        if (n->kind != DS_NODE_KERNEL && n->kind != DS_NODE_EVENT_RECORD &&
            n->kind != DS_NODE_EVENT_WAIT)
            continue;
        ds__node *copy = ds__node_copy(n);
        r = copy ? ds__body_append(held, copy, NULL, 0) : DS_ERR_OUT_OF_MEMORY;
        if (r < 0)
            ds__node_free(copy);
    }
    return r;
}

static ds_result ds__cuda_instantiate(ds__cuda_exec *x, const ds__body *b, unsigned flags) {
    const ds__cuda_graph *g = b->native;
    ds__cuda_scope scope;
    cudaUserObject_t object;
    ds_result r = ds__cuda_enter(&scope, x->device);
    if (r < 0)
        return r;
    r = ds__cuda_clone(&scope, g->graph, x->kept_node, x->count, &x->kept, x->kept_node + x->count);
    /* memory nodes: CUDA cannot copy them */
    if (r < 0 && r != DS_ERR_OUT_OF_MEMORY && ds__cuda_has_unknown(b, 1))
        r = DS_OK;
    if (x->kept)
        memmove(x->kept_node, x->kept_node + x->count, x->count * sizeof *x->kept_node);
    x->now = x->kept;
    cudaGraph_t from = x->kept ? x->kept : g->graph;
    if (r == DS_OK)
        r = ds__cuda_retain(&scope, from, &x->owns, &object);
    if (r == DS_OK) {
        r = DS__RT(
            scope, cudaGraphInstantiateWithFlags,
            (&x->exec, from, flags & ~(unsigned)(DS_GRAPH_UPLOAD | DS_GRAPH_REPLACE_POINTERS)));
        if (r < 0)
            x->exec = NULL;
        ds__cuda_unretain(&scope, from, object);
    }
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_graph_instantiate(ds__body *b, ds__body *copy, unsigned flags,
                                            void **out) {
    (void)copy;
    ds_result r = ds__cuda_usable(b);
    if (r < 0)
        return r;
    ds__cuda_exec *x = ds__alloc(sizeof *x);
    if (!x)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    x->device = b->device.index;
    x->count = b->count;
    x->kept_node = x->now_node = ds__cuda_natives(b);
    x->off = ds__alloc(b->count + 1u);
    x->on = ds__alloc(b->count + 1u);
    for (uint32_t i = 0; i < b->count && x->on; i++)
        x->on[i] = (unsigned char)b->node[i]->device.index;
    if (!x->kept_node || !x->off || !x->on || !ds__cuda_own_all(&x->owns, b))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable of %u nodes",
                     (unsigned)b->count);
    if (r == DS_OK)
        r = (x->held = ds__body_new(b->driver, b->device)) ? ds__cuda_hold(x->held, b)
                                                           : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_instantiate(x, b, flags);
    if (r < 0) {
        ds__cuda_exec_end(x);
        return r;
    }
    *out = x;
    return DS_OK;
}

/* CUDA's own update; *out_node: the graph's node that it does not take. */
static ds_result ds__cuda_take_over(const ds__cuda_scope *scope, cudaGraphExec_t exec,
                                    cudaGraph_t graph, ds_graph_update_reason *out_reason,
                                    cudaGraphNode_t *out_node) {
#if CUDART_VERSION >= 12000
    cudaGraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    ds_result r = DS__RT(*scope, cudaGraphExecUpdate, (exec, graph, &info));
    *out_reason = (ds_graph_update_reason)info.result;
    *out_node = info.errorNode;
#else
    enum cudaGraphExecUpdateResult result = cudaGraphExecUpdateSuccess;
    *out_node = NULL;
    ds_result r = DS__RT(*scope, cudaGraphExecUpdate, (exec, graph, out_node, &result));
    *out_reason = (ds_graph_update_reason)result;
#endif
    if (r == DS_OK)
        *out_reason = DS_GRAPH_UPDATE_SUCCESS;
    else if (!*out_reason || *out_reason > DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED)
        *out_reason = DS_GRAPH_UPDATE_ERROR;
    return r;
}

/* The executable becomes the graph, which it takes over with its list of nodes if that is given,
   and `owns` in any case that succeeds. */
static ds_result ds__cuda_become(const ds__cuda_scope *scope, ds__cuda_exec *x, cudaGraph_t graph,
                                 cudaGraphNode_t *nodes, ds__cuda_owns *owns,
                                 ds_graph_update_reason *out_reason, cudaGraphNode_t *out_node) {
    cudaUserObject_t object;
    *out_reason = DS_GRAPH_UPDATE_ERROR;
    *out_node = NULL;
    ds_result r = ds__cuda_retain(scope, graph, owns, &object);
    if (r < 0)
        return r;
    r = ds__cuda_take_over(scope, x->exec, graph, out_reason, out_node);
    ds__cuda_unretain(scope, graph, object);
    if (r < 0)
        return r;
    ds__cuda_own_end(&x->owns);
    x->owns = *owns;
    memset(owns, 0, sizeof *owns);
    x->stale = nodes == NULL;
    if (nodes) {
        if (x->now != x->kept) {
            ds__cuda_ignore(scope, cudaGraphDestroy(x->now));
            ds__release(x->now_node);
        }
        x->now = graph;
        x->now_node = nodes;
    }
    /* whether an update leaves them off is not documented */
    for (uint32_t i = 0; i < x->count; i++)
        if (x->off[i] == 1)
            ds__cuda_ignore(scope, cudaGraphNodeSetEnabled(x->exec, x->kept_node[i], 0));
    return DS_OK;
}

static ds_result ds__cuda_exec_update(void *exec, ds__body *b, ds_graph_update_reason *out_reason,
                                      uint32_t *out_node) {
    ds__cuda_exec *x = exec;
    const ds__cuda_graph *g = b->native;
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_scope scope;
    cudaGraph_t clone = NULL;
    cudaGraphNode_t wrong = NULL;
    cudaGraphNode_t *nodes = ds__cuda_natives(b);
    *out_reason = DS_GRAPH_UPDATE_ERROR;
    *out_node = UINT32_MAX;
    ds_result r = nodes ? ds__cuda_usable(b) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK && !ds__cuda_own_all(&owns, b))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_enter(&scope, x->device);
    if (r < 0) {
        ds__cuda_own_end(&owns);
        ds__release(nodes);
        return r;
    }
    if (x->kept)
        r = ds__cuda_clone(&scope, g->graph, nodes, b->count, &clone, nodes + b->count);
    if (clone)
        memmove(nodes, nodes + b->count, b->count * sizeof *nodes);
    /* CUDA does not know of these that they are off */
    for (uint32_t i = 0; i < b->count && i < x->count && r == DS_OK && clone; i++)
        if (x->off[i] == 2 && ds__cuda_type(b->node[i]) == cudaGraphNodeTypeHost)
            r = ds__cuda_set(b->node[i], x->device, NULL, nodes[i], &ds__cuda_nothing);
    if (r == DS_OK)
        r = ds__cuda_become(&scope, x, clone ? clone : g->graph, clone ? nodes : NULL, &owns,
                            out_reason, &wrong);
    for (uint32_t i = 0; i < b->count && r < 0 && wrong; i++)
        if (nodes[i] == wrong)
            *out_node = i;
    if (r < 0 && clone)
        ds__cuda_ignore(&scope, cudaGraphDestroy(clone));
    if (r < 0 || !clone)
        ds__release(nodes);
    ds__cuda_leave(&scope);
    ds__cuda_own_end(&owns);
    return r;
}

/* Changes one node in a copy of what the executable does, and has it become that: for what CUDA
   cannot set in an executable, or not with what the node needs. fresh NULL: the node of the
   library's own host work is switched on or off. */
static ds_result ds__cuda_remake(ds__cuda_exec *x, uint32_t index, const ds__node *fresh) {
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_scope scope;
    ds_graph_update_reason reason;
    cudaGraph_t graph = NULL;
    cudaGraphNode_t wrong;
    cudaGraphNode_t *nodes;
    if (!x->kept || x->stale)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "node %u cannot be set: CUDA cannot copy what the executable does",
                        (unsigned)index);
    if (!(nodes = ds__alloc((x->count + 1u) * sizeof *nodes)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %u nodes", (unsigned)x->count);
    ds_result r = ds__cuda_enter(&scope, x->device);
    if (r < 0) {
        ds__release(nodes);
        return r;
    }
    if (!ds__cuda_own_copy(&owns, &x->owns, DS__CUDA_NOWHERE))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_clone(&scope, x->now, x->now_node, x->count, &graph, nodes);
    if (r == DS_OK && fresh) {
        ds__cuda_own_drop(&owns, index);
        r = ds__cuda_set_in_graph(&scope, nodes[index], fresh, x->on[index], &owns, index);
        if (r == DS_OK && fresh->child && !ds__cuda_own_attached(&owns, fresh->child, index))
            r = DS_ERR_OUT_OF_MEMORY;
    }
    if (r == DS_OK && (!fresh || x->off[index] == 2)) {
        ds__object *task = ds__cuda_own_find(&owns, index);
        struct cudaHostNodeParams host = { ds__cuda_host_node, x->off[index] || !task
                                                                   ? &ds__cuda_nothing
                                                                   : task->user };
        r = DS__RT(scope, cudaGraphHostNodeSetParams, (nodes[index], &host));
    }
    if (r == DS_OK)
        r = ds__cuda_become(&scope, x, graph, nodes, &owns, &reason, &wrong);
    if (r < 0 && graph)
        ds__cuda_ignore(&scope, cudaGraphDestroy(graph));
    if (r < 0)
        ds__release(nodes);
    ds__cuda_leave(&scope);
    ds__cuda_own_end(&owns);
    return r;
}

static ds_result ds__cuda_unnamed(uint32_t index) {
    return ds__fail(
        DS_ERR_UNSUPPORTED,
        "node %u cannot be changed: CUDA cannot copy the graph, by whose nodes it would be named",
        (unsigned)index);
}

static ds_result ds__cuda_exec_set(void *exec, uint32_t index, const ds__node *fresh) {
    ds__cuda_exec *x = exec;
    const ds__op *op = &fresh->op;
    enum cudaGraphNodeType type = ds__cuda_type(fresh);
    if (fresh->kind == DS_NODE_EMPTY || fresh->kind == DS_NODE_NATIVE)
        return DS_OK;
    /* and rows, which CUDA sets only so */
    int remake = type == cudaGraphNodeTypeHost || type == cudaGraphNodeTypeGraph;
    remake |= (fresh->kind == DS_NODE_COPY && op->u.copy.height > 1) ||
              (fresh->kind == DS_NODE_FILL && op->u.fill.height > 1);
    if (remake)
        return ds__cuda_remake(x, index, fresh);
    if (!x->kept)
        return ds__cuda_unnamed(index);
    ds_result r = ds__cuda_set(fresh, x->on[index], x->exec, x->kept_node[index], NULL);
    if (r < 0)
        return r;
    char before[sizeof ds__tls.error];
    memcpy(before, ds__tls.error, sizeof before);
    if (ds__cuda_set(fresh, x->on[index], NULL, x->now_node[index], NULL) < 0) {
        x->stale = 1;
        memcpy(ds__tls.error, before, sizeof before);
    }
    return DS_OK;
}

static ds_result ds__cuda_exec_enable(void *exec, uint32_t index, int enabled) {
    ds__cuda_exec *x = exec;
    enum cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    ds__cuda_scope scope;
    unsigned char before = x->off[index];
    if (enabled == !before)
        return DS_OK;
    if (!x->kept)
        return ds__cuda_unnamed(index);
    ds_result r = ds__cuda_enter(&scope, x->device);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaGraphNodeGetType, (x->kept_node[index], &type));
    if (r == DS_OK && type != cudaGraphNodeTypeHost)
        r = DS__RT(scope, cudaGraphNodeSetEnabled,
                   (x->exec, x->kept_node[index], (unsigned)enabled));
    ds__cuda_leave(&scope);
    x->off[index] = r < 0 ? before : enabled ? 0 : type == cudaGraphNodeTypeHost ? 2 : 1;
    /* CUDA switches no host nodes */
    if (r == DS_OK && type == cudaGraphNodeTypeHost)
        r = ds__cuda_remake(x, index, NULL);
    if (r < 0)
        x->off[index] = before;
    return r;
}

static ds_result ds__cuda_launch_graph(const ds__cuda_stream *s, const ds__cuda_exec *x) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = DS__RT(scope, cudaGraphLaunch, (x->exec, s->handle));
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_upload(const ds__cuda_stream *s, const ds__cuda_exec *x) {
    ds__cuda_scope scope;
    int capturing = 0;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    if (r == DS_OK && capturing)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "an upload cannot be captured; the capture goes on");
    if (r == DS_OK)
        r = DS__RT(scope, cudaGraphUpload, (x->exec, s->handle));
    ds__cuda_leave(&scope);
    return r;
}

/* Ends what an executable kept that may still run: its blocks stay, its host functions run
   nothing any more. */
static void ds__cuda_keep_empty(ds__cuda_keep *k) {
    for (uint32_t i = 0; i < k->count; i++) {
        ds__object *o = k->object[i];
        ds__cuda_task *h = o->dtor_fn == ds__cuda_task_end ? o->user : NULL;
        if (!h) {
            ds__object_drop(o);
            continue;
        }
        ds__object *payload = h->payload;
        atomic_store(&h->fn, NULL);
        h->payload = NULL;
        ds__object_drop(payload);
    }
}

/* CUDA ends what executables kept on a thread of its own: waits for that, a tenth of a second
   after the last one. After the failure of a device it may never come, and a graph that another
   library captured may outlive the driver: what is left then is ended here. */
static void ds__cuda_end_keeps(void) {
    int quiet = 0;
    for (uint64_t begin = ds__now_ns(), last = 0;;) {
        uint64_t count = 0;
        struct timespec t = { 0, 50000 };
        ds__lock_take(&ds__cuda.host_lock);
        ds__cuda_keep *k = ds__cuda.keeps;
        ds__cuda_keep *take = NULL;
        for (const ds__cuda_keep *i = k; i; i = i->next)
            count++;
        quiet |= count == last && ds__now_ns() - begin > 100000000u;
        for (ds__cuda_keep *i = k; i && quiet && !take; i = i->next) {
            int pending = DS__CUDA_PENDING;
            if (atomic_compare_exchange_strong(&i->state, &pending, DS__CUDA_TAKEN))
                take = i;
        }
        ds__lock_give(&ds__cuda.host_lock);
        if (!k)
            return;
        if (take) {
            ds__cuda_keep_empty(take);
            ds__cuda_unlist_keep(take);
            take->next = ds__cuda.left; /* the driver has stopped for all but this thread */
            ds__cuda.left = take;
        } else {
            if (count != last)
                begin = ds__now_ns();
            last = count;
            syscall(SYS_nanosleep, &t, NULL);
        }
    }
}

/* cuda/submit.h - dispatch of stream work.

   Enqueues an operation on a stream by its kind (ds__cuda_put), whether the stream captures or not.
   Holds the records of events and the waits for them (ds__cuda_record, ds__cuda_wait,
   ds__cuda_external).

   Invariants: ds__cuda_put does not update the shadow graph of a capture; capture_op.h does. An
   external record or wait uses CUDA's external flag only if the stream captures, because CUDA
   accepts the flag only there. A record outside devstream's captures sets the event's `capture` to
   0.
   Locks: none of its own; launches, host functions and waits between streams take theirs.
   ds__cuda_put is called with and without the capture lock. For copies and fills the caller holds
   no lock, because DS__OP_BLOCKS waits for the stream. For launches and uploads of graphs the core
   holds the executable's lock, or the graph's lock during its instantiation.
   Threads: any. */

static ds_result ds__cuda_record(const ds__cuda_stream *s, ds__cuda_event *e) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (DS__UNLIKELY(r < 0))
        return r;
    r = DS__RT(scope, cudaEventRecord, (e->event, s->handle));
    if (DS__UNLIKELY(r == DS_OK && atomic_load_explicit(&e->capture, memory_order_relaxed)))
        atomic_store(&e->capture, 0);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_wait(const ds__cuda_stream *s, const ds__cuda_event *e) {
    return ds__cuda_wait_mark(s, e->event, atomic_load_explicit(&e->capture, memory_order_relaxed));
}

/* Outside of captures an external record or wait is like any other, and CUDA takes the flag only
   inside. */
static ds_result ds__cuda_external(const ds__cuda_stream *s, ds__cuda_event *e, int record) {
    ds__cuda_scope scope;
    int capturing = 0;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_is_capturing(&scope, s, &capturing);
    if (r == DS_OK && capturing)
        r = record
                ? DS__RT(scope, cudaEventRecordWithFlags,
                         (e->event, s->handle, cudaEventRecordExternal))
                : DS__RT(scope, cudaStreamWaitEvent, (s->handle, e->event, cudaEventWaitExternal));
    ds__cuda_leave(&scope);
    if (r < 0 || capturing)
        return r;
    return record ? ds__cuda_record(s, e) : ds__cuda_wait(s, e);
}

/* Puts the work on the stream, whether that captures or not. */
static inline ds_result ds__cuda_put(ds__cuda_stream *s, const ds__op *op) {
    switch (op->kind) {
    case DS__OP_KERNEL:
        return ds__cuda_launch(s, op);
    case DS__OP_COPY:
        return ds__cuda_submit_copy(s, op);
    case DS__OP_FILL:
        return ds__cuda_submit_fill(s, op);
    case DS__OP_RECORD:
        return ds__cuda_record(s, op->u.event.event);
    case DS__OP_WAIT:
        return ds__cuda_wait(s, op->u.event.event);
    case DS__OP_WAIT_STREAM:
        return ds__cuda_wait_stream(s, op->u.wait.stream);
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
        return ds__cuda_submit_host(s, op->u.host.fn, op->u.host.callback, op->u.host.user,
                                    op->u.host.dtor_fn, op->u.host.stream, 0);
    case DS__OP_GRAPH:
        return ds__cuda_launch_graph(s, op->u.graph.exec);
    case DS__OP_UPLOAD:
        return ds__cuda_upload(s, op->u.graph.exec);
    case DS__OP_EXTERNAL_RECORD:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cuda_external(s, op->u.event.event, op->kind == DS__OP_EXTERNAL_RECORD);
    default:
        return ds__fail(DS_ERR_UNSUPPORTED, "operation %d is not known to the CUDA driver",
                        op->kind);
    }
}

/* cuda/capture_op.h - stream work while a capture is open.

   Enqueues work while a capture is open (ds__cuda_submit_watched). In a capture of devstream,
   ds__cuda_put_captured enqueues the operation, and ds__cuda_note enters its node into the shadow
   graph. In a capture that devstream did not begin, ds__cuda_host_in_capture attaches the data of a
   host function to CUDA's graph.

   Invariants: A refusal by devstream (ds__cuda_refuse) leaves the capture valid. A failure in
   ds__cuda_note keeps the operation and the error text; the node stays of an unknown kind. Objects
   kept under DS__CUDA_NEW get a node, or DS__CUDA_NOWHERE, before the capture lock is released.
   Streams made for work on another device live until the capture ends. A capture refuses pageable
   memory unless the user has declared it stable.
   Locks: ds__cuda_submit_watched loads kernels first, then takes the capture lock and holds it
   across the driver calls of captured work. Other work is enqueued after its release. The functions
   that change a capture or its graph expect the lock. ds__cuda_refuse takes it unless the thread
   holds it; ds__cuda_host_in_capture needs none. ds__cuda.mutex, ds__cuda.lock, `host_lock` and a
   stream's lock may be taken under it.
   Threads: any. The legacy stream cannot capture and takes the ordinary path. */

static const char *const ds__cuda_pageable =
    "the graph would use pageable memory at each launch: pin it, register it, or copy with "
    "DS_COPY_HOST_STABLE";

/* A refusal of our own, which leaves the capture as it is. */
static ds_result ds__cuda_refuse(const ds__cuda_scope *scope, const char *rule) {
    int locked = ds__tls.capture_locked;
    if (!locked)
        ds__cuda_lock();
    ds__capture *c = ds__g.captures;
    while (c && (c->driver->type != DS_DEVICE_CUDA || c->id != scope->capture))
        c = c->next;
    ds_result r = c ? ds__capture_fail(DS_ERR_CAPTURE_UNSUPPORTED, c, 0, rule)
                    : ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                               "%s; the capture, which devstream did not begin, goes on", rule);
    if (!locked)
        ds__cuda_unlock();
    return r;
}

static ds_result ds__cuda_refuse_pageable(const ds__cuda_scope *scope) {
    return ds__cuda_refuse(scope, ds__cuda_pageable);
}

/* A host function in a capture of others, whose graph keeps what the function needs. */
static ds_result ds__cuda_host_in_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                          ds_host_fn fn, void *user, ds_host_fn dtor_fn) {
    ds__cuda_owns owns = { NULL, 0, 0 };
    ds__cuda_look now;
    ds__node n;
    cudaUserObject_t object = NULL;
    memset(&n, 0, sizeof n);
    n.kind = DS_NODE_HOST;
    n.op.u.host.fn = fn;
    n.op.u.host.user = user;
    ds_result r =
        ds__cuda_check(scope, ds__cuda_get_info(s->handle, &now), "cudaStreamGetCaptureInfo");
    if (r == DS_OK && dtor_fn && !(n.payload = ds__object_new(user, dtor_fn)))
        r = DS_ERR_OUT_OF_MEMORY;
    ds__object *task = r == DS_OK ? ds__cuda_task_new(&n) : NULL;
    if (r == DS_OK && (!task || !ds__cuda_own_keep(&owns, DS__CUDA_NOWHERE, task)))
        r = DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = ds__cuda_keep_make(scope, &owns, &object);
    if (r == DS_OK) {
        r = DS__RT(*scope, cudaLaunchHostFunc, (s->handle, ds__cuda_host_node, task->user));
        if (r < 0) {
            /* the caller ends it */
            if (n.payload)
                n.payload->dtor_fn = NULL;
            ds__cuda_keep_drop(scope, object);
        } else if ((r = DS__RT(*scope, cudaGraphRetainUserObject,
                               (now.graph, object, 1, cudaGraphUserObjectMove))) < 0) {
            /* the node is there and will run it: it stays until the driver stops */
            atomic_store(&((ds__cuda_task *)task->user)->fn, NULL);
        }
    }
    if (r < 0 && n.payload)
        n.payload->dtor_fn = NULL;
    ds__object_drop(n.payload);
    ds__object_drop(task);
    ds__cuda_own_end(&owns);
    return r;
}

/* Enters the stream's last node. Where the picture lacks one node and the operation has made
   one, it is that: without asking for all nodes, which would take a time that grows with the
   square of their number. */
static uint32_t ds__cuda_enter_last(const ds__cuda_scope *scope, ds__body *b, cudaGraphNode_t last,
                                    int made_one) {
    size_t count = 0;
    ds_result r = made_one ? DS__RT(*scope, cudaGraphGetNodes,
                                    (((ds__cuda_graph *)b->native)->graph, NULL, &count))
                           : DS_OK;
    if (r == DS_OK && count == b->count + (size_t)1) {
        r = ds__cuda_append_unknown(b, last);
        if (r == DS_OK)
            r = ds__cuda_read_after(scope, b, b->count - 1);
    } else if (r == DS_OK) {
        r = ds__cuda_read_nodes(scope, b);
    }
    return r == DS_OK ? ds__cuda_index(b, last, b->count) : UINT32_MAX;
}

/* Which node the operation has become: the stream's last, which is entered with what is known of
   it (made NULL: made of op). What fails here leaves a node that is not known. UINT32_MAX: it is
   not found. The lock is held. */
static uint32_t ds__cuda_note(ds__cuda_scope *scope, const ds__cuda_stream *s, ds__capture *c,
                              const ds__op *op, ds__node *made) {
    ds__body *b = c->body;
    ds__cuda_look now;
    uint32_t known = b->count;
    uint32_t index = UINT32_MAX;
    char before[sizeof ds__tls.error];
    memcpy(before, ds__tls.error, sizeof before);
    cudaError_t code = ds__cuda_get_info(s->handle, &now);
    ds__cuda_ignore(scope, code);
    if (code == cudaSuccess && now.status == cudaStreamCaptureStatusActive && now.count == 1) {
        index = ds__cuda_enter_last(scope, b, now.after[0], op && op->kind != DS__OP_GRAPH);
    }
    if (index != UINT32_MAX && index >= known && b->node[index]->kind == DS_NODE_NATIVE) {
        ds__node *old = b->node[index];
        ds__node *n = made ? made : op ? ds__node_make(op, ds_cuda(s->device), s->priority) : NULL;
        if (n) {
            n->native = old->native;
            n->deps = old->deps;
            n->dep_count = old->dep_count;
            n->dep_room = old->dep_room;
            old->deps = NULL;
            b->node[index] = n;
            ds__node_free(old);
            made = NULL;
        }
    }
    ds__node_free(made);
    memcpy(ds__tls.error, before, sizeof before);
    return index;
}

/* What was kept for a node that had no index, or does not come. */
static void ds__cuda_own_settle(ds__cuda_owns *list, uint32_t index, ds_result r) {
    if (r < 0)
        ds__cuda_own_drop(list, DS__CUDA_NEW);
    for (uint32_t i = list->count; i-- > 0 && list->at[i].node == DS__CUDA_NEW;)
        list->at[i].node = index == UINT32_MAX ? DS__CUDA_NOWHERE : index;
}

/* A host function, or a copy or fill of host memory. */
static ds_result ds__cuda_capture_host(ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       ds__capture *c, const ds__op *op) {
    ds__cuda_graph *g = c->body->native;
    uint32_t index = UINT32_MAX;
    ds__node *n = ds__node_make(op, ds_cuda(s->device), s->priority);
    if (!n)
        return DS_ERR_OUT_OF_MEMORY;
    ds__object *task = ds__cuda_task_new(n);
    ds_result r =
        task && ds__cuda_own_keep(&g->owns, DS__CUDA_NEW, task) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        r = DS__RT(*scope, cudaLaunchHostFunc, (s->handle, ds__cuda_host_node, task->user));
    if (r == DS_OK)
        index = ds__cuda_note(scope, s, c, op, n);
    else
        ds__node_discard(n);
    ds__object_drop(task);
    ds__cuda_own_settle(&g->owns, index, r);
    return r;
}

/* In a graph the place of every operand is known. */
static ds_result ds__cuda_resolve(ds__op *op, unsigned at, const void *ptr) {
    ds_pointer_info info;
    if (ds__place_of(op, (int)at) != DS__AT_UNKNOWN)
        return DS_OK;
    ds_result r = ds__cuda_pointer_query(ptr, &info);
    unsigned place = info.kind == DS_MEMORY_DEVICE     ? DS__AT_DEVICE + (unsigned)info.device.index
                     : info.kind == DS_MEMORY_PAGEABLE ? DS__AT_PAGEABLE
                                                       : DS__AT_PINNED;
    op->places = (uint16_t)(op->places | place << at);
    return r;
}

static ds_result ds__cuda_set_after(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                    cudaGraphNode_t *after, size_t count, int set) {
    unsigned flags = set ? cudaStreamSetCaptureDependencies : cudaStreamAddCaptureDependencies;
#if CUDART_VERSION >= 13000
    return DS__RT(*scope, cudaStreamUpdateCaptureDependencies,
                  (s->handle, after, NULL, count, flags));
#else
    return DS__RT(*scope, cudaStreamUpdateCaptureDependencies, (s->handle, after, count, flags));
#endif
}

static ds_result ds__cuda_capture_elsewhere(ds__cuda_scope *scope, ds__cuda_stream *s,
                                            ds__capture *c, int device, const ds__op *op,
                                            ds_result (*put)(ds__cuda_stream *s,
                                                             const ds__op *op)) {
    ds__cuda_origin *o = c->origin;
    void *native = NULL;
    int priority = 0;
    ds_result r =
        ds__cuda_stream_create(device, DS__STREAM_NEW, DS_STREAM_NON_BLOCKING, &priority, &native);
    if (r < 0)
        return r;
    ds__cuda_stream *t = native;
    t->sibling = o->streams; /* it must live until the capture ends */
    o->streams = t;
    atomic_store(&t->capture, c->id);
    r = ds__cuda_wait_stream(t, s);
    if (r == DS_OK)
        r = put(t, op);
    if (r < 0)
        return r;
    uint32_t index = ds__cuda_note(scope, t, c, op, NULL);
    if (index == UINT32_MAX)
        return ds__cuda_wait_stream(s, t);
    /* it comes after all that the stream's next one would depend on */
    cudaGraphNode_t last = ds__cuda_native(c->body->node[index]);
    return ds__cuda_set_after(scope, s, &last, 1, 1);
}

/* A copy between devices in the form that a node of it can be set in: CUDA does not update one
   form by another. */
static ds_result ds__cuda_copy_between(ds__cuda_stream *s, const ds__op *op) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_move(&scope, s->handle, op, DS__CUDA_ASK, DS__CUDA_ASK);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_capture_memory(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                         ds__op *op) {
    int copy = op->kind == DS__OP_COPY;
    ds_result r = ds__cuda_resolve(op, DS__OP_DST, copy ? op->u.copy.dst : op->u.fill.dst);
    if (r == DS_OK && copy)
        r = ds__cuda_resolve(op, DS__OP_SRC, op->u.copy.src);
    if (r < 0)
        return r;
    unsigned to = (unsigned)ds__place_of(op, DS__OP_DST);
    unsigned from = copy ? (unsigned)ds__place_of(op, DS__OP_SRC) : DS__AT_PINNED;
    if (to == DS__AT_PAGEABLE || from == DS__AT_PAGEABLE)
        return ds__cuda_refuse_pageable(scope);
    if (to == DS__AT_OTHER || from == DS__AT_OTHER)
        return ds__cuda_refuse(
            scope, "a copy between a GPU and a device of the CPU driver cannot be captured");
    op->flags = (uint8_t)(op->flags & ~(unsigned)DS__OP_BLOCKS);
    if (!ds__cuda_on_gpu(to) && !ds__cuda_on_gpu(from))
        return ds__cuda_capture_host(scope, s, c, op);
    unsigned here = DS__AT_DEVICE + (unsigned)s->device;
    ds_result (*put)(ds__cuda_stream * s, const ds__op *op) =
        copy ? ds__cuda_copy_on : ds__cuda_fill;
    if (copy && to >= DS__AT_DEVICE && from >= DS__AT_DEVICE && to != from)
        put = ds__cuda_copy_between;
    if (to != here && from != here)
        return ds__cuda_capture_elsewhere(
            scope, s, c, (int)((from >= DS__AT_DEVICE ? from : to) - DS__AT_DEVICE), op, put);
    r = put(s, op);
    if (r == DS_OK)
        (void)ds__cuda_note(scope, s, c, op, NULL);
    return r;
}

/* Puts the work on a stream of a capture that was begun here. The lock is held. */
static ds_result ds__cuda_put_captured(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                       const ds__op *given) {
    ds__cuda_graph *g = c->body->native;
    ds__op op = *given;
    ds_result r = DS_OK;
    uint64_t most;
    switch (op.kind) {
    case DS__OP_COPY:
    case DS__OP_FILL:
        return ds__cuda_capture_memory(scope, s, c, &op);
    case DS__OP_HOST:
        return ds__cuda_capture_host(scope, s, c, &op);
    case DS__OP_UPLOAD:
        return ds__cuda_refuse(scope, "an upload cannot be captured");
    case DS__OP_GRAPH:
        if (!ds__cuda_own_copy(&g->owns, &((ds__cuda_exec *)op.u.graph.exec)->owns, DS__CUDA_NEW))
            r = DS_ERR_OUT_OF_MEMORY;
        if (r == DS_OK)
            r = ds__cuda_launch_graph(s, op.u.graph.exec);
        ds__cuda_own_settle(&g->owns,
                            r == DS_OK ? ds__cuda_note(scope, s, c, &op, NULL) : UINT32_MAX, r);
        return r;
    default:
        break;
    }
    r = ds__cuda_put(s, &op);
    if (r < 0)
        return r;
    if (op.kind == DS__OP_RECORD)
        atomic_store(&((ds__cuda_event *)op.u.event.event)->capture, c->id);
    if (op.kind == DS__OP_KERNEL) {
        const ds__kernel *k = op.u.kernel.kernel;
        r = ds__cuda_split(k, op.u.kernel.items,
                           k->cuda.items_per_block ? k->cuda.items_per_block
                           : k->cuda.block         ? k->cuda.block
                                                   : 256,
                           &most);
        int one = r == DS_OK && (op.u.kernel.grid || op.u.kernel.items <= most);
        /* the parts of a launch that took several are not known */
        (void)ds__cuda_note(scope, s, c, one ? &op : NULL, NULL);
    }
    if (op.kind == DS__OP_EXTERNAL_RECORD || op.kind == DS__OP_EXTERNAL_WAIT)
        (void)ds__cuda_note(scope, s, c, &op, NULL);
    return DS_OK;
}

/* While a capture is open that was begun here, or was when the caller asked. */
__attribute__((noinline)) static ds_result ds__cuda_submit_watched(ds__cuda_stream *s,
                                                                   const ds__op *op) {
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c = NULL;
    /* it cannot capture, and cannot be asked beside a capture */
    if (s->kind == DS__STREAM_LEGACY)
        return ds__cuda_put(s, op);
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    if (op->kind == DS__OP_KERNEL && !ds__cuda_loaded(op->u.kernel.kernel, s->device))
        r = ds__cuda_ready(&scope, op->u.kernel.kernel);
    int done = 0;
    ds__cuda_lock();
    if (r == DS_OK)
        r = ds__cuda_find_capture(&scope, s, &now, &c);
    int active = r == DS_OK && c && now.status == cudaStreamCaptureStatusActive;
    if (r == DS_OK && DS__UNLIKELY(ds__op_changed(op, active ? c->id : 0)) &&
        (active || now.status == cudaStreamCaptureStatusNone))
        r = DS__CHANGED;
    else if (active) {
        r = ds__cuda_put_captured(&scope, s, c, op);
        done = 1;
    }
    ds__cuda_unlock();
    if (r == DS_OK && !done)
        r = ds__cuda_put(s, op);
    /* it may have come into a capture */
    if (r == DS_OK && !done && (op->kind == DS__OP_WAIT || op->kind == DS__OP_WAIT_STREAM)) {
        cudaError_t code = ds__cuda_get_info(s->handle, &now);
        ds__cuda_ignore(&scope, code);
        ds__cuda_lock();
        c = code == cudaSuccess && now.status == cudaStreamCaptureStatusActive
                ? ds__cuda_capture_of(now.id)
                : NULL;
        if (c)
            atomic_store(&s->capture, c->id);
        ds__cuda_unlock();
    }
    ds__cuda_leave(&scope);
    return r;
}

/* cuda/capture.h - begin and end of captures.

   Begins a capture on a stream (ds__cuda_capture_begin) and ends it (ds__cuda_capture_end). At the
   end, the nodes and dependencies in CUDA's graph are read into the shadow graph (ds__body).

   Invariants: `origin` of a capture is set exactly while the capture is in the core's list. A
   capture is listed before any thread can enqueue work into it without notice: capture_count is
   raised before CUDA begins it. If CUDA drops a capture at its end, `graph` is NULL, unless the
   capture went into an existing graph. Streams that were made for a capture end after it.
   Locks: ds__cuda_capture_begin and ds__cuda_capture_end take the capture lock and hold it across
   the driver calls that begin, end and read the capture. ds__cuda_capture_over expects it.
   ds__cuda_end_siblings must run without it, because ending a stream may take it. The core holds
   ds__g.begin during a begin, and also the graph's lock if the graph existed before.
   Threads: any. CUDA requires the thread that began a capture to end it, except in relaxed mode. */

/* The lock is held. */
static ds_result ds__cuda_begin(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                const cudaGraphNode_t *after, size_t count) {
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)c->mode;
    const char *call = c->into ? "cudaStreamBeginCaptureToGraph" : "cudaStreamBeginCapture";
#if CUDART_VERSION >= 12030
    cudaError_t code =
        c->into
            ? cudaStreamBeginCaptureToGraph(s->handle, ((ds__cuda_graph *)c->body->native)->graph,
                                            after, NULL, count, mode)
            : cudaStreamBeginCapture(s->handle, mode);
#else
    (void)after;
    (void)count;
    if (c->into)
        return ds__fail(
            DS_ERR_UNSUPPORTED,
            "capturing into a graph that is there needs CUDA 12.3, this was built with %d.%d",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    cudaError_t code = cudaStreamBeginCapture(s->handle, mode);
#endif
    if (DS__LIKELY(code == cudaSuccess))
        return DS_OK;
    if (s->kind == DS__STREAM_LEGACY && code != cudaErrorMemoryAllocation) {
        ds__cuda_ignore(scope, code);
        return ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                        "the legacy stream cannot capture; use another stream (%s says %d)", call,
                        (int)code);
    }
    if (code == cudaErrorCallRequiresNewerDriver) {
        ds__cuda_ignore(scope, code);
        return ds__fail(DS_ERR_UNSUPPORTED, "%s needs a newer driver (it says %d)", call,
                        (int)code);
    }
    if (code != cudaErrorIllegalState)
        return ds__cuda_check(scope, code, call);
    ds__cuda_look now;
    ds__capture *open = NULL;
    ds__cuda_ignore(scope, code);
    ds_result r = ds__cuda_find_capture(scope, s, &now, &open);
    if (r == DS_OK)
        r = open ? ds__capture_fail(DS_ERR_ILLEGAL_STATE, open, 0, "the stream captures already")
                 : ds__fail(DS_ERR_ILLEGAL_STATE, "the stream captures already; devstream did not "
                                                  "begin that capture, which goes on");
    return r;
}

static ds_result ds__cuda_begin_listed(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                       const cudaGraphNode_t *after, size_t count,
                                       ds__cuda_graph *g, ds__cuda_origin *o) {
    ds__cuda_look now;
    ds__cuda_lock(); /* before anyone can end it, or put work into it that nobody knows of */
    atomic_fetch_add(&ds__g.capture_count, 1); /* who asks now comes to the lock */
    ds_result r = ds__cuda_begin(scope, s, c, after, count);
    int begun = r == DS_OK;
    if (begun)
        r = ds__cuda_check(scope, ds__cuda_get_info(s->handle, &now), "cudaStreamGetCaptureInfo");
    if (r == DS_OK) {
        *o = (ds__cuda_origin){ .handle = s->handle,
                                .device = s->device,
                                .per_thread = s->kind == DS__STREAM_PER_THREAD,
                                .thread = s->thread };
        c->origin = o;
        c->native_id = now.id;
        c->body->native = g;
        g->graph = now.graph;
        g->capture = c;
        ds__capture_list(c);
        atomic_store(&s->capture, c->id);
    }
    atomic_fetch_sub(&ds__g.capture_count, 1);
    ds__cuda_unlock();
    if (r < 0 && begun) {
        cudaGraph_t graph = NULL;
        ds__cuda_ignore(scope, cudaStreamEndCapture(s->handle, &graph));
        if (graph && !c->into)
            ds__cuda_ignore(scope, cudaGraphDestroy(graph));
    }
    return r;
}

static ds_result ds__cuda_capture_begin(void *stream, ds__capture *c, const uint32_t *deps,
                                        size_t count) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    ds__cuda_graph *g = c->into ? c->body->native : ds__alloc(sizeof *g);
    ds__cuda_origin *o = ds__alloc(sizeof *o);
    cudaGraphNode_t *after = ds__alloc((count + 1) * sizeof *after);
    ds_result r = g && o && after ? ds__cuda_on(&scope, s)
                                  : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
    if (r == DS_OK) {
        for (size_t i = 0; i < count; i++)
            after[i] = ds__cuda_native(c->body->node[deps[i]]);
        r = ds__cuda_begin_listed(&scope, s, c, after, count, g, o);
        ds__cuda_leave(&scope);
    }
    if (r < 0 && !c->into)
        ds__release(g);
    if (r < 0)
        ds__release(o);
    ds__release(after);
    return r;
}

/* Ends the streams that were made for a capture that is over. */
static void ds__cuda_end_siblings(ds__cuda_stream *s) {
    while (s) {
        ds__cuda_stream *next = s->sibling;
        ds__cuda_stream_destroy(s);
        s = next;
    }
}

/* The capture is over. Gives the streams that were made for it, to be ended without the lock,
   which is held. */
static ds__cuda_stream *ds__cuda_capture_over(ds__capture *c) {
    ds__cuda_origin *o = c->origin;
    ds__cuda_stream *streams = o->streams;
    ((ds__cuda_graph *)c->body->native)->capture = NULL;
    c->origin = NULL;
    ds__capture_unlist(c);
    ds__release(o);
    return streams;
}

/* Reads what was captured into the picture. */
static ds_result ds__cuda_read_graph(const ds__cuda_scope *scope, ds__body *b) {
    ds_result r = ds__cuda_read_nodes(scope, b);
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++)
        r = ds__cuda_read_after(scope, b, i);
    return r;
}

static ds_result ds__cuda_end_known(ds__cuda_scope *scope, ds__cuda_stream *s, ds__capture *c,
                                    ds__capture **out) {
    ds__cuda_graph *g = c->body->native;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    cudaGraph_t graph = NULL;
    scope->capture = c->id;
    ds_result r = DS__RT(*scope, cudaStreamEndCapture, (s->handle, &graph));
    if (r == DS_OK) {
        *out = c;
        g->graph = graph;
        return ds__cuda_read_graph(scope, c->body);
    }
    if (!ds__cuda_began_on(c, s))
        return r;
    cudaError_t code = cudaStreamIsCapturing(s->handle, &status);
    ds__cuda_ignore(scope, code);
    if (code != cudaSuccess || status != cudaStreamCaptureStatusNone)
        return r;
    *out = c;
    if (!c->into) {
        g->graph = NULL; /* CUDA has ended it */
    } else {
        char before[sizeof ds__tls.error];
        memcpy(before, ds__tls.error, sizeof before);
        DS_IGNORE(ds__cuda_read_graph(scope, c->body));
        memcpy(ds__tls.error, before, sizeof before);
    }
    return r;
}

static ds_result ds__cuda_capture_end(void *stream, ds__capture **out) {
    ds__cuda_stream *s = stream;
    ds__cuda_stream *streams = NULL;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_find_capture(&scope, s, &now, &c);
    if (r == DS_OK && now.status == cudaStreamCaptureStatusNone)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    else if (r == DS_OK && !c)
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "devstream did not begin this capture: end it where it began");
    else if (r == DS_OK)
        r = ds__cuda_end_known(&scope, s, c, out);
    if (*out) {
        streams = ds__cuda_capture_over(c);
        atomic_store(&s->capture, 0);
    }
    ds__cuda_unlock();
    ds__cuda_leave(&scope);
    ds__cuda_end_siblings(streams);
    return r;
}

/* cuda/capture_query.h - capture queries and dependencies, submit entry.

   Implements the entries that query a capture, read or change a stream's dependencies in it, and
   set the thread's capture mode. Ends captures without a call of the user
   (ds__cuda_capture_abandon, ds__cuda_stop_capture). Also holds the submit entry (ds__cuda_submit).

   Invariants: ds__cuda_submit takes the direct path only if no capture is open and the operation is
   not bound to one (DS__OP_INSIDE). A capture on another thread's per-thread stream cannot be ended
   in CUDA; only devstream's records of it are dropped.
   Locks: All entries except submit and capture_mode take the capture lock and call CUDA under it;
   ds__cuda_active and ds__cuda_give_up expect it. Streams of an abandoned capture end, and
   ds__capture_over runs, after its release. ds__cuda_submit takes locks only as capture_op.h and
   submit.h say.
   Threads: any. capture_mode changes the mode of the calling thread only. ds__cuda_capture_abandon
   runs during shutdown. */

static ds_result ds__cuda_capture_query(void *stream, ds_capture_info *out) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_find_capture(&scope, s, &now, &c);
    if (r == DS_OK) {
        out->status = now.status == cudaStreamCaptureStatusNone     ? DS_CAPTURE_NONE
                      : now.status == cudaStreamCaptureStatusActive ? DS_CAPTURE_ACTIVE
                                                                    : DS_CAPTURE_INVALIDATED;
        if (c && out->status == DS_CAPTURE_ACTIVE) {
            out->mode = c->mode;
            out->id = c->id;
            out->graph = c->graph;
            out->begun = c->begun;
            out->dependency_count = now.count;
        }
    }
    ds__cuda_unlock();
    ds__cuda_leave(&scope);
    return r;
}

/* The capture of a stream that must be active. The lock is held. */
static ds_result ds__cuda_active(ds__cuda_scope *scope, ds__cuda_stream *s, ds__cuda_look *now,
                                 ds__capture **out) {
    ds_result r = ds__cuda_find_capture(scope, s, now, out);
    if (r < 0)
        return r;
    if (now->status == cudaStreamCaptureStatusNone)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    if (!*out)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "devstream did not begin the capture, and does not know its graph");
    return now->status == cudaStreamCaptureStatusActive
               ? DS_OK
               : ds__capture_fail(DS_ERR_CAPTURE_INVALIDATED, *out, 0, "");
}

static ds_result ds__cuda_list_after(const ds__cuda_scope *scope, const ds__cuda_look *now,
                                     ds__body *b, ds_graph_node *out, size_t room,
                                     size_t *out_count) {
    size_t count = now->count < room ? now->count : room;
    cudaGraphNode_t *after = ds__alloc((count + 1) * sizeof *after);
    if (!after)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu dependencies", count);
    if (count)
        memcpy(after, now->after, count * sizeof *after);
    ds_result r = ds__cuda_read_nodes(scope, b);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t index = ds__cuda_index(b, after[i], b->count);
        if (index == UINT32_MAX)
            r = ds__fail(DS_ERR_DRIVER, "the stream depends on a node that is not in the graph");
        else
            out[i].id = (uint64_t)b->serial << 32 | (index + 1u);
    }
    ds__release(after);
    if (r == DS_OK)
        *out_count = now->count;
    return r;
}

static ds_result ds__cuda_capture_dependencies(void *stream, ds_graph_node *out, size_t room,
                                               size_t *out_count) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_active(&scope, s, &now, &c);
    if (r == DS_OK)
        r = ds__cuda_list_after(&scope, &now, c->body, out, room, out_count);
    ds__cuda_unlock();
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_update_after(const ds__cuda_scope *scope, const ds__cuda_stream *s,
                                       const ds__body *b, const ds_graph_node *nodes, size_t count,
                                       int set) {
    cudaGraphNode_t *after = ds__alloc((count + 1) * sizeof *after);
    ds_result r = after ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu nodes", count);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        uint32_t index = (uint32_t)nodes[i].id - 1;
        if (!nodes[i].id || nodes[i].id >> 32 != b->serial || index >= b->count)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "node %zu does not belong to the graph that is being captured", i);
        else
            after[i] = ds__cuda_native(b->node[index]);
    }
    if (r == DS_OK)
        r = ds__cuda_set_after(scope, s, after, count, set);
    ds__release(after);
    return r;
}

static ds_result ds__cuda_capture_update(void *stream, const ds_graph_node *nodes, size_t count,
                                         int set) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    ds__cuda_look now;
    ds__capture *c;
    if (s->kind == DS__STREAM_LEGACY)
        return ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    ds__cuda_lock();
    r = ds__cuda_active(&scope, s, &now, &c);
    if (r == DS_OK)
        r = ds__cuda_update_after(&scope, s, c->body, nodes, count, set);
    ds__cuda_unlock();
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_capture_mode(ds_capture_mode mode) {
    enum cudaStreamCaptureMode native = (enum cudaStreamCaptureMode)mode;
    ds__cuda_scope scope;
    ds__cuda_anywhere(&scope, -1);
    ds_result r = DS__RT(scope, cudaThreadExchangeStreamCaptureMode, (&native));
    /* others may have exchanged it without devstream: the core gives this back */
    if (r == DS_OK)
        ds__tls.mode = (ds_capture_mode)native;
    return r;
}

/* Ends a capture whose stream or whose program ends, as far as CUDA lets this thread. Inside of
   any scope; the lock is held. */
static ds__cuda_stream *ds__cuda_give_up(const ds__cuda_scope *scope, ds__capture *c) {
    const ds__cuda_origin *o = c->origin;
    ds__cuda_graph *g = c->body->native;
    cudaGraph_t graph = NULL;
    if (!o->per_thread || o->thread == ds__cuda_this_thread()) {
        cudaError_t code = cudaErrorUnknown;
        for (int tries = 0; tries < 2 && code == cudaErrorUnknown; tries++)
            ds__cuda_ignore(scope, code = cudaStreamEndCapture(o->handle, &graph));
    }
    if (graph && !c->into)
        ds__cuda_ignore(scope, cudaGraphDestroy(graph));
    if (!c->into)
        g->graph = NULL;
    return ds__cuda_capture_over(c);
}

static void ds__cuda_capture_abandon(ds__capture *c) {
    ds__cuda_scope scope;
    ds__cuda_enter_or_not(&scope, ((ds__cuda_origin *)c->origin)->device);
    ds__cuda_lock();
    ds__cuda_stream *streams = ds__cuda_give_up(&scope, c);
    ds__cuda_unlock();
    ds__cuda_leave(&scope);
    ds__cuda_end_siblings(streams);
}

/* A native stream ends: the captures that began on it are over. */
static void ds__cuda_stop_capture(const ds__cuda_scope *scope, const ds__cuda_stream *s) {
    for (;;) {
        ds__cuda_stream *streams = NULL;
        ds__cuda_lock();
        ds__capture *c = ds__g.captures;
        while (c && (c->driver->type != DS_DEVICE_CUDA || !ds__cuda_began_on(c, s)))
            c = c->next;
        if (c)
            streams = ds__cuda_give_up(scope, c);
        ds__cuda_unlock();
        if (!c)
            return;
        ds__capture_over(c, 1);
        ds__cuda_end_siblings(streams);
    }
}

static ds_result ds__cuda_submit(void *stream, const ds__op *op) {
    return DS__LIKELY(ds__captures_open() == 0 && !(op->flags & DS__OP_INSIDE))
               ? ds__cuda_put(stream, op)
               : ds__cuda_submit_watched(stream, op);
}

/* cuda/memory.h - device memory and access rights.

   Implements the entry memory_alloc. Helps the other memory rooms: ds__cuda_quiet relaxes the
   capture mode for the allocator, ds__cuda_short completes out-of-memory errors, and
   ds__cuda_readers lists the devices with access to a device's memory.

   Invariants: ds__cuda_readers lists the device itself and every device that can reach it; it makes
   no context and enables nothing. The answers of CUDA about pairs of devices are kept in
   ds__cuda.near and never change.
   Locks: none.
   Threads: any. ds__cuda.near is atomic; two threads may ask CUDA about the same pair at once.
   Allocations for the allocator (ds__tls.quiet) run in relaxed capture mode; other allocations do
   not, as with cudaMalloc. */

/* What is the allocator's comes and goes while something captures. */
static int ds__cuda_quiet(const ds__cuda_scope *scope, enum cudaStreamCaptureMode *mode) {
    return ds__tls.quiet ? ds__cuda_relax(scope, mode) : 0;
}

/* Adds to the sentence what there is. Inside of a scope. */
__attribute__((cold, noinline)) static void ds__cuda_short(const ds__cuda_scope *scope,
                                                           size_t size) {
    size_t avail = 0;
    size_t total = 0;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(scope, &mode);
    cudaError_t code = cudaMemGetInfo(&avail, &total);
    ds__cuda_unrelax(scope, relaxed, mode);
    if (code == cudaSuccess)
        ds__also(DS_ERR_OUT_OF_MEMORY, "; %zu bytes were asked for, %zu of %zu are free", size,
                 avail, total);
    ds__cuda_ignore(scope, code);
}

static ds_result ds__cuda_memory_alloc(int device, size_t size, void **out) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    r = DS__RT(scope, cudaMalloc, (out, size));
    ds__cuda_unrelax(&scope, relaxed, mode);
    if (r == DS_ERR_OUT_OF_MEMORY)
        ds__cuda_short(&scope, size);
    ds__cuda_leave(&scope);
    return r;
}

/* Who gets access to memory of the device that has no rule of its own for that: the device, and
   those that can reach it. Asking makes no context, and neither does the access. Inside of a
   scope; room for all devices. */
static ds_result ds__cuda_readers(const ds__cuda_scope *scope, int device,
                                  struct cudaMemAccessDesc *out, size_t *out_count) {
    size_t n = 0;
    for (int i = 0; i < ds__cuda.devices; i++) {
        unsigned char known =
            i == device ? 2 : atomic_load_explicit(&ds__cuda.near[i][device], memory_order_relaxed);
        if (!known) {
            int can = 0;
            ds_result r = DS__RT(*scope, cudaDeviceCanAccessPeer, (&can, i, device));
            if (r < 0)
                return r;
            known = can ? 2 : 1;
            atomic_store_explicit(&ds__cuda.near[i][device], known, memory_order_relaxed);
        }
        if (known != 2)
            continue;
        memset(&out[n], 0, sizeof out[n]);
        out[n].location.type = cudaMemLocationTypeDevice;
        out[n].location.id = i;
        out[n++].flags = cudaMemAccessFlagsProtReadWrite;
    }
    *out_count = n;
    return DS_OK;
}

static ds__cuda_memory ds__cuda_memory_of(int device) {
    ds__cuda_memory m;
    memset(&m, 0, sizeof m);
    m.type = 1;     /* CU_MEM_ALLOCATION_TYPE_PINNED */
    m.location = 1; /* CU_MEM_LOCATION_TYPE_DEVICE */
    m.device = device;
    return m;
}

/* cuda/virtual_memory.h - address space and mapped memory.

   Implements the entries that reserve address space and map memory behind it (space_reserve,
   space_map, space_unmap, space_release) with the driver library's virtual memory management.

   Invariants: A mapping is entered in the table of base/mapping.h before it is made and taken out
   before it is unmapped. One cuMemUnmap ends one whole mapping. The memory handle is released at
   once, so the memory lives as long as its mapping. If space_map fails, nothing stays mapped or
   entered.
   Locks: The table's functions take the core's mapping lock; no driver call runs under it.
   Threads: any. All calls run in relaxed capture mode, so no open capture forbids them. */

/* The unit in which memory is mapped. Inside of a scope. */
static ds_result ds__cuda_space_page(const ds__cuda_scope *scope, size_t *out) {
    ds__cuda_memory m = ds__cuda_memory_of(scope->device);
    int code;
    int has = 0;
    *out = atomic_load_explicit(&ds__cuda.page[scope->device], memory_order_relaxed);
    if (*out)
        return DS_OK;
    DS__DR_CODE(*scope, code, cuDeviceGetAttribute, (&has, DS__CUDA_HAS_SPACE, scope->device));
    if (code)
        return ds__cuda_fail(scope, "cuDeviceGetAttribute", code);
    if (!has)
        return ds__fail(DS_ERR_UNSUPPORTED, "cuda:%d has no virtual memory management",
                        scope->device);
    DS__DR_CODE(*scope, code, cuMemGetAllocationGranularity,
                (out, &m, 0 /* CU_MEM_ALLOC_GRANULARITY_MINIMUM */));
    if (code)
        return ds__cuda_fail(scope, "cuMemGetAllocationGranularity", code);
    atomic_store_explicit(&ds__cuda.page[scope->device], *out, memory_order_relaxed);
    return DS_OK;
}

static ds_result ds__cuda_space_reserve(int device, size_t size, size_t *out_page, void **out) {
    ds__cuda_scope scope;
    unsigned long long at = 0;
    size_t page = 0;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    int code;
    r = ds__cuda_space_page(&scope, &page);
    if (r == DS_OK && (!size || size > SIZE_MAX - page))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "there are no %zu bytes of address space", size);
    if (r == DS_OK) {
        DS__DR_CODE(scope, code, cuMemAddressReserve,
                    (&at, (size + page - 1) / page * page, page, 0, 0));
        if (code)
            r = ds__cuda_fail(&scope, "cuMemAddressReserve", code);
        if (r == DS_ERR_OUT_OF_MEMORY)
            ds__also(r, "; %zu bytes of address space were asked for", size);
    }
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    *out_page = page;
    *out = (void *)(uintptr_t)at;
    return r;
}

static void ds__cuda_space_release(int device, void *at, size_t size) {
    ds__cuda_scope scope;
    enum cudaStreamCaptureMode mode;
    size_t page = atomic_load(&ds__cuda.page[device]);
    int code;
    ds__cuda_enter_or_not(&scope, device);
    int relaxed = ds__cuda_relax(&scope, &mode);
    DS__DR_CODE(scope, code, cuMemAddressFree, ((uintptr_t)at, (size + page - 1) / page * page));
    (void)code;
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
}

/* The handle goes at once, so that the memory goes with its mapping. What was made is undone
   when the rest fails: PyTorch's allocator did not (pytorch#188008). Inside of a scope. */
static ds_result ds__cuda_map_memory(const ds__cuda_scope *scope, void *at, size_t size) {
    struct cudaMemAccessDesc access[DS__MAX_DEVICES];
    ds__cuda_memory m = ds__cuda_memory_of(scope->device);
    unsigned long long handle = 0;
    unsigned long long address = (uintptr_t)at;
    size_t count = 0;
    const char *call = "cuMemCreate";
    int code;
    int released;
    int mapped = 0;
    ds_result r = ds__cuda_readers(scope, scope->device, access, &count);
    if (r < 0)
        return r;
    DS__DR_CODE(*scope, code, cuMemCreate, (&handle, size, &m, 0));
    if (!code) {
        call = "cuMemMap";
        code = ds__cuda.cuMemMap(address, size, 0, handle, 0);
        mapped = !code;
        released = ds__cuda.cuMemRelease(handle);
        if (!code && released) {
            call = "cuMemRelease";
            code = released;
        }
    }
    if (!code) {
        call = "cuMemSetAccess";
        code = ds__cuda.cuMemSetAccess(address, size, access, count);
    }
    if (code && mapped)
        (void)ds__cuda.cuMemUnmap(address, size);
    return code ? ds__cuda_fail(scope, call, code) : DS_OK;
}

static ds_result ds__cuda_space_map(int device, void *at, size_t size) {
    ds__cuda_scope scope;
    ds__mapping m;
    ds_result r = ds__mapping_add(at, size);
    if (r < 0)
        return r;
    r = ds__cuda_enter(&scope, device);
    if (r == DS_OK) {
        enum cudaStreamCaptureMode mode;
        int relaxed = ds__cuda_relax(&scope, &mode);
        r = ds__cuda_map_memory(&scope, at, size);
        ds__cuda_unrelax(&scope, relaxed, mode);
        if (r == DS_ERR_OUT_OF_MEMORY)
            ds__cuda_short(&scope, size);
        ds__cuda_leave(&scope);
    }
    if (r < 0)
        (void)ds__mapping_take((uintptr_t)at, (uintptr_t)at + size, &m);
    return r;
}

/* One mapping at a time: cuMemUnmap takes the whole of one. A mapping that is ours it does take,
   whatever it reports of earlier work. */
static ds_result ds__cuda_space_unmap(int device, void *at, size_t size) {
    ds__cuda_scope scope;
    ds__mapping m;
    enum cudaStreamCaptureMode mode;
    ds_result r = ds__mapping_check(at, size);
    if (r < 0)
        return r;
    ds__cuda_enter_or_not(&scope, device);
    int relaxed = ds__cuda_relax(&scope, &mode);
    int code;
    while (ds__mapping_take((uintptr_t)at, (uintptr_t)at + size, &m)) {
        DS__DR_CODE(scope, code, cuMemUnmap, (m.at, m.size));
        /* for the log */
        if (code)
            DS_IGNORE(ds__cuda_fail(&scope, "cuMemUnmap", code));
    }
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    return DS_OK;
}

/* cuda/pool.h - stream-ordered allocation from CUDA's default pool.

   Implements the driver's own allocator (async_alloc, async_free, async_trim, async_info) over the
   default memory pool of each device. ds__cuda_pool sets the pool up at its first use,
   ds__cuda_pool_end restores it.

   Invariants: ds__cuda.pool holds a pool only after its set-up: reuse is allowed, other devices
   have access, and freed memory is kept. The former release threshold is stored and set again at
   the end. A stream that captures is refused both allocation and free, and the capture stays valid.
   Locks: ds__cuda_pool takes ds__cuda.mutex across the driver calls of the set-up.
   ds__cuda_not_captured takes the capture lock, after the mutex is released, and calls CUDA under
   it. Allocation and free themselves run without a lock.
   Threads: any. ds__cuda_pool_end runs while the driver stops. */

/* The device's default pool, which keeps what is freed and gives it out again on any stream, as
   PyTorch sets it up. The mutex is held: its threshold is read once. Inside of a scope. */
static ds_result ds__cuda_pool_make(const ds__cuda_scope *scope, cudaMemPool_t *out) {
    static const enum cudaMemPoolAttr reuse[] = { cudaMemPoolReuseFollowEventDependencies,
                                                  cudaMemPoolReuseAllowOpportunistic,
                                                  cudaMemPoolReuseAllowInternalDependencies };
    struct cudaMemAccessDesc access[DS__MAX_DEVICES];
    unsigned long long keep = UINT64_MAX;
    unsigned long long before = 0;
    size_t count = 0;
    int has = 0;
    int on = 1;
    ds_result r = DS__RT(*scope, cudaDeviceGetAttribute,
                         (&has, cudaDevAttrMemoryPoolsSupported, scope->device));
    if (r == DS_OK && !has)
        r = ds__fail(DS_ERR_UNSUPPORTED, "cuda:%d has no memory pools", scope->device);
    if (r == DS_OK)
        r = DS__RT(*scope, cudaDeviceGetDefaultMemPool, (out, scope->device));
    for (size_t i = 0; i < sizeof reuse / sizeof reuse[0] && r == DS_OK; i++)
        r = DS__RT(*scope, cudaMemPoolSetAttribute, (*out, reuse[i], &on));
    /* peer access as of cudaMalloc does not hold for pools */
    if (r == DS_OK)
        r = ds__cuda_readers(scope, scope->device, access, &count);
    if (r == DS_OK && count > 1)
        r = DS__RT(*scope, cudaMemPoolSetAccess, (*out, access, count));
    if (r == DS_OK)
        r = DS__RT(*scope, cudaMemPoolGetAttribute,
                   (*out, cudaMemPoolAttrReleaseThreshold, &before));
    if (r == DS_OK)
        r = DS__RT(*scope, cudaMemPoolSetAttribute, (*out, cudaMemPoolAttrReleaseThreshold, &keep));
    if (r == DS_OK)
        ds__cuda.threshold[scope->device] = before;
    return r;
}

static ds_result ds__cuda_pool(const ds__cuda_scope *scope, cudaMemPool_t *out) {
    ds_result r = DS_OK;
    *out = atomic_load_explicit(&ds__cuda.pool[scope->device], memory_order_acquire);
    if (DS__LIKELY(*out))
        return DS_OK;
    pthread_mutex_lock(&ds__cuda.mutex);
    *out = atomic_load(&ds__cuda.pool[scope->device]);
    if (!*out && (r = ds__cuda_pool_make(scope, out)) == DS_OK)
        atomic_store_explicit(&ds__cuda.pool[scope->device], *out, memory_order_release);
    pthread_mutex_unlock(&ds__cuda.mutex);
    return r;
}

/* Refuses what would become a node of a graph. Inside of a scope of the stream. */
static ds_result ds__cuda_not_captured(ds__cuda_scope *scope, ds__cuda_stream *s) {
    ds__cuda_look now;
    ds__capture *c;
    int capturing = 0;
    ds_result r = ds__cuda_is_capturing(scope, s, &capturing);
    if (r < 0 || !capturing)
        return r;
    ds__cuda_lock();
    r = ds__cuda_find_capture(scope, s, &now, &c);
    if (r == DS_OK)
        r = ds__cuda_refuse(
            scope,
            "memory of the driver's own allocator cannot come or go on a stream that captures");
    ds__cuda_unlock();
    return r;
}

static ds_result ds__cuda_async_alloc(int device, void *stream, size_t size, void **out) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    cudaMemPool_t pool;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    (void)device;
    r = ds__cuda_pool(&scope, &pool);
    if (r == DS_OK)
        r = ds__cuda_not_captured(&scope, s);
    if (r == DS_OK)
        r = DS__RT(scope, cudaMallocAsync, (out, size, s->handle));
    if (r == DS_ERR_OUT_OF_MEMORY)
        ds__cuda_short(&scope, size);
    ds__cuda_leave(&scope);
    return r;
}

/* On a device that failed CUDA frees and reports the failure. */
static ds_result ds__cuda_async_free(int device, void *stream, void *ptr, size_t size) {
    ds__cuda_stream *s = stream;
    ds__cuda_scope scope;
    (void)device;
    (void)size;
    ds_result r = ds__cuda_on(&scope, s);
    if (r < 0)
        return r;
    r = ds__cuda_not_captured(&scope, s);
    if (r == DS_OK)
        r = DS__RT(scope, cudaFreeAsync, (ptr, s->handle));
    ds__cuda_leave(&scope);
    return r == DS_ERR_FAILED ? DS_OK : r;
}

static ds_result ds__cuda_async_trim(int device, size_t keep) {
    ds__cuda_scope scope;
    cudaMemPool_t pool;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_relax(&scope, &mode);
    r = ds__cuda_pool(&scope, &pool);
    if (r == DS_OK)
        r = DS__RT(scope, cudaMemPoolTrimTo, (pool, keep));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_async_info(int device, size_t *out_reserved, size_t *out_used) {
    ds__cuda_scope scope;
    cudaMemPool_t pool;
    unsigned long long reserved = 0;
    unsigned long long used = 0;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    r = ds__cuda_pool(&scope, &pool);
    if (r == DS_OK)
        r = DS__RT(scope, cudaMemPoolGetAttribute,
                   (pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    if (r == DS_OK)
        r = DS__RT(scope, cudaMemPoolGetAttribute, (pool, cudaMemPoolAttrUsedMemCurrent, &used));
    ds__cuda_leave(&scope);
    *out_reserved = (size_t)reserved;
    *out_used = (size_t)used;
    return r;
}

/* Leaves the device's pool as it was, and what it keeps to the device. Inside of a scope. */
static void ds__cuda_pool_end(const ds__cuda_scope *scope, int device) {
    cudaMemPool_t pool = atomic_exchange(&ds__cuda.pool[device], NULL);
    if (!pool)
        return;
    ds__cuda_ignore(scope, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold,
                                                   &ds__cuda.threshold[device]));
    ds__cuda_ignore(scope, cudaMemPoolTrimTo(pool, 0));
}

/* cuda/share.h - device memory shared between processes.

   Implements the entries share_alloc, share_export, share_import, share_close and share_release
   with cudaMalloc and CUDA's handles for other processes. The handle is a cudaIpcMemHandle_t in 64
   bytes.

   Invariants: An import of a handle of the same process fails with DS_ERR_ILLEGAL_STATE
   (ds__cuda_own_handle). No work uses the memory when it is closed or released.
   Locks: none.
   Threads: any. Calls for the allocator (ds__tls.quiet) run in relaxed capture mode. */

static ds_result ds__cuda_share_alloc(int device, size_t size, void **out) {
    return ds__cuda_memory_alloc(device, size, out);
}

static ds_result ds__cuda_share_export(int device, void *base, size_t size, unsigned char *out) {
    cudaIpcMemHandle_t handle;
    ds__cuda_scope scope;
    (void)size;
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    r = DS__RT(scope, cudaIpcGetMemHandle, (&handle, base));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    if (r == DS_OK)
        memcpy(out, &handle, sizeof handle);
    return r;
}

static ds_result ds__cuda_share_import(int device, const unsigned char *bytes, size_t size,
                                       void **out) {
    cudaIpcMemHandle_t handle;
    ds__cuda_scope scope;
    (void)size;
    memcpy(&handle, bytes, sizeof handle);
    ds_result r = ds__cuda_enter(&scope, device);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    cudaError_t code = cudaIpcOpenMemHandle(out, handle, cudaIpcMemLazyEnablePeerAccess);
    r = code == cudaErrorDeviceUninitialized
            ? ds__cuda_own_handle(&scope, code, "cudaIpcOpenMemHandle")
            : ds__cuda_check(&scope, code, "cudaIpcOpenMemHandle");
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    return r;
}

static void ds__cuda_share_close(int device, void *base, size_t size) {
    ds__cuda_scope scope;
    (void)size;
    ds__cuda_enter_or_not(&scope, device);
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    ds__cuda_ignore(&scope, cudaIpcCloseMemHandle(base));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
}

static void ds__cuda_share_release(int device, void *base, size_t size) {
    ds__cuda_scope scope;
    (void)size;
    ds__cuda_enter_or_not(&scope, device);
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    ds__cuda_ignore(&scope, cudaFree(base));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
}

/* cuda/host_memory.h - pinned memory, release of memory, pointer queries.

   Implements the entries host_alloc, host_register, memory_wait, memory_release and pointer_query.
   memory_release also ends the device memory of memory.h and registrations of host memory.

   Invariants: Pinned memory is usable from all devices. memory_release releases the memory even if
   cudart reports the failure of earlier work. If an open capture lets the thread free, memory_wait
   does not wait for whole devices, which would invalidate the captures of their streams.
   Locks: memory_wait takes the capture lock (ds__cuda_forbidden) and ds__cuda.mutex or
   ds__cuda.lock in turn; it waits under none of them. The other entries take none.
   Threads: any. Calls for the allocator (ds__tls.quiet) run in relaxed capture mode, so open
   captures do not matter. memory_wait blocks the caller. */

/* The device whose context pinned memory is made in: the thread's, or one that is in use anyway. */
static ds_result ds__cuda_enter_any(ds__cuda_scope *scope) {
    ds_device current = ds__thread_device();
    int device = 0;
    if (current.type == DS_DEVICE_CUDA)
        device = current.index;
    else
        while (device + 1 < ds__cuda.devices && !atomic_load(&ds__cuda.used[device]))
            device++;
    return ds__cuda_enter(scope, device);
}

static ds_result ds__cuda_host_alloc(size_t size, void **out) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter_any(&scope);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    /* pinned for all devices */
    r = DS__RT(scope, cudaHostAlloc, (out, size, cudaHostAllocPortable));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    return r;
}

static ds_result ds__cuda_host_register(void *ptr, size_t size) {
    ds__cuda_scope scope;
    ds_result r = ds__cuda_enter_any(&scope);
    if (r < 0)
        return r;
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    r = DS__RT(scope, cudaHostRegister, (ptr, size, cudaHostRegisterPortable));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    return r;
}

/* cudaFree waits by itself; the others are not documented to. A device that failed has nothing
   pending any more. Waiting for a device would spoil the captures of its streams: where they
   allow the thread to free, its other streams are waited for. */
static ds_result ds__cuda_memory_wait(int device) {
    if (DS__UNLIKELY(ds__captures_open()) && !ds__cuda_forbidden())
        return device >= 0 ? DS_OK : ds__cuda_wait_streams();
    for (int i = device < 0 ? 0 : device; i < (device < 0 ? ds__cuda.devices : device + 1); i++) {
        ds_result r = atomic_load(&ds__cuda.used[i]) ? ds__cuda_device_synchronize(i) : DS_OK;
        if (r < 0 && r != DS_ERR_FAILED)
            return r;
    }
    return DS_OK;
}

/* cudart may report the failure of earlier work here, but it does release. */
static ds_result ds__cuda_memory_release(ds_memory_kind kind, int device, void *ptr, size_t size) {
    ds__cuda_scope scope;
    (void)size;
    if (kind == DS_MEMORY_DEVICE)
        ds__cuda_enter_or_not(&scope, device);
    else if (ds__cuda_enter_any(&scope) < 0 && ds__cuda_enter_any(&scope) < 0)
        ds__cuda_anywhere(&scope, -1);
    enum cudaStreamCaptureMode mode;
    int relaxed = ds__cuda_quiet(&scope, &mode);
    ds_result r = kind == DS_MEMORY_DEVICE   ? DS__RT(scope, cudaFree, (ptr))
                  : kind == DS_MEMORY_PINNED ? DS__RT(scope, cudaFreeHost, (ptr))
                                             : DS__RT(scope, cudaHostUnregister, (ptr));
    ds__cuda_unrelax(&scope, relaxed, mode);
    ds__cuda_leave(&scope);
    return r == DS_ERR_FAILED ? DS_OK : r;
}

/* Memory that devstream did not make. */
static ds_result ds__cuda_pointer_query(const void *ptr, ds_pointer_info *out) {
    struct cudaPointerAttributes a;
    ds__cuda_scope scope;
    memset(out, 0, sizeof *out);
    out->device.type = DS_DEVICE_HOST;
    memset(&a, 0, sizeof a);
    ds_result r = ds__cuda_enter_any(&scope);
    if (r < 0)
        return r;
    r = DS__RT(scope, cudaPointerGetAttributes, (&a, ptr));
    ds__cuda_leave(&scope);
    if (r < 0 || a.type == cudaMemoryTypeUnregistered)
        return r;
    if (a.type == cudaMemoryTypeHost) {
        out->kind = DS_MEMORY_PINNED;
        return DS_OK;
    }
    unsigned long long base = 0;
    size_t size = 0;
    int code;
    out->kind = DS_MEMORY_DEVICE;
    out->device = ds_cuda(a.device);
    if ((r = ds__cuda_enter(&scope, a.device)) < 0)
        return r;
    DS__DR_CODE(scope, code, cuMemGetAddressRange, (&base, &size, (uintptr_t)ptr));
    ds__cuda_leave(&scope);
    if (code == 0) {
        out->base = (void *)(uintptr_t)base;
        out->size = size;
    }
    return DS_OK;
}

/* cuda/driver.h - driver table, drain and stop.

   Includes all rooms of the CUDA driver and fills its table (ds__cuda_driver). ds__cuda_drain waits
   for all work, host functions included. ds__cuda_stop frees the driver's own streams, pools,
   modules and staging buffers.

   Invariants: After ds__cuda_drain, no host function is enqueued or running. If a device failed and
   CUDA runs no host function for 0.1 s, ds__cuda_drain runs the pending ones of that device with
   the failure. Their records stay allocated, because CUDA may still invoke them.
   Locks: The core holds its initialisation mutex. ds__cuda_drain takes `host_lock` only to choose a
   host function; it runs user code after it has released that lock. ds__cuda_stop takes
   ds__cuda.mutex to take the modules out of their list.
   Threads: drain runs on the thread that calls ds_shutdown; stop runs there, or where an
   initialisation failed. No other thread is in an entry of the driver then, but CUDA's threads may
   run host functions during the drain. */

/* CUDA has copied what a launch needs, but the module */
static int ds__cuda_passed(void **mark) {
    (void)mark;
    return 1;
}

/* A host function that a failed device has not come to; NULL: none. It is the caller's. */
static ds__cuda_host *ds__cuda_take_left(const unsigned char *failed) {
    ds__lock_take(&ds__cuda.host_lock);
    ds__cuda_host *h = ds__cuda.hosts;
    for (; h; h = h->next) {
        int pending = DS__CUDA_PENDING;
        if (failed[h->device] &&
            atomic_compare_exchange_strong(&h->state, &pending, DS__CUDA_TAKEN))
            break;
    }
    ds__lock_give(&ds__cuda.host_lock);
    return h;
}

/* Waits for the device; 1: it cannot be waited for. */
static int ds__cuda_settle(int device) {
    ds__cuda_scope scope;
    cudaError_t code = cudaErrorUnknown;
    for (int tries = 0; tries < 3 && code != cudaSuccess && !ds__cuda_is_sticky((int)code);
         tries++) {
        if (ds__cuda_enter(&scope, device) < 0)
            continue;
        code = cudaDeviceSynchronize();
        ds__cuda_ignore(&scope, code);
        ds__cuda_leave(&scope);
    }
    return code != cudaSuccess;
}

/* After this no host function is on its way. CUDA runs those of a failed device itself, with the
   failure. Should it run none for a tenth of a second, they are run here, and their records are
   kept, in case that it comes later. */
static void ds__cuda_drain(void) {
    unsigned char failed[DS__MAX_DEVICES] = { 0 };
    for (int i = 0; i < ds__cuda.devices; i++)
        failed[i] = (unsigned char)(atomic_load(&ds__cuda.used[i]) && ds__cuda_settle(i));
    int count = atomic_load(&ds__cuda.host_count);
    for (uint64_t begin = ds__now_ns(); count != 0;) {
        struct timespec t = { 0, 50000 };
        syscall(SYS_nanosleep, &t, NULL);
        int now = atomic_load(&ds__cuda.host_count);
        if (now != count || atomic_load(&ds__cuda.inside))
            begin = ds__now_ns();
        count = now;
        if (ds__now_ns() - begin < 100000000u)
            continue;
        ds__cuda_host *h = ds__cuda_take_left(failed);
        if (!h)
            continue;
        /* never dropped */
        if (h->embedded)
            atomic_fetch_add(&((ds__cuda_piece *)h->user)->whole->users, 1);
        ds__cuda_run_host(h, 1);
        count = atomic_fetch_sub(&ds__cuda.host_count, 1) - 1;
    }
}

static void ds__cuda_stop(void) {
    ds__cuda_scope scope;
    ds__cuda_end_keeps();
    for (int i = 0; i < ds__cuda.devices; i++) {
        if (!atomic_load(&ds__cuda.used[i]))
            continue;
        ds__cuda_enter_or_not(&scope, i); /* nobody comes after this to try again */
        if (ds__cuda.side[i])
            ds__cuda_ignore(&scope, cudaStreamDestroy(ds__cuda.side[i]));
        ds__cuda.side[i] = NULL;
        ds__cuda_pool_end(&scope, i);
        ds__cuda_unload(&scope, ds__cuda_take_modules(i, 1));
        ds__cuda_leave(&scope);
    }
    ds__cuda_anywhere(&scope, -1);
    while (ds__cuda.stages) {
        ds__cuda_stage *stage = ds__cuda.stages;
        ds__cuda.stages = stage->next;
        ds__cuda_ignore(&scope, cudaFreeHost(stage->memory));
        ds__release(stage);
    }
}

static const ds__driver ds__cuda_driver = { "cuda",
                                            DS_DEVICE_CUDA,
                                            ds__cuda_probe,
                                            ds__cuda_start,
                                            ds__cuda_device_used,
                                            ds__cuda_drain,
                                            ds__cuda_stop,
                                            ds__cuda_stream_destroy,
                                            ds__cuda_stream_unwrap,
                                            ds__cuda_stream_hide,
                                            ds__cuda_stream_forget,
                                            ds__cuda_stream_identity,
                                            ds__cuda_event_destroy,
                                            ds__cuda_kernel_destroy,
                                            ds__cuda_capture_abandon,
                                            ds__cuda_graph_destroy,
                                            ds__cuda_exec_destroy,
                                            ds__cuda_passed,
                                            ds__cuda_memory_release,
                                            ds__cuda_space_release,
                                            ds__cuda_share_release,
                                            ds__cuda_share_close,
#define DS__MEMBER(entry, parameters, arguments) ds__cuda_##entry,
                                            DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

#endif

/* core/fault.h - fault layer: makes the n-th call of a driver entry fail.

   A wrapped driver table for tests of error paths (ds__fault_layer). The text "entry:n" of
   ds_init or DEVSTREAM_FAULT selects the entry and the call; "*" counts the calls of all entries
   (ds__fault_parse).

   Invariants: both drivers share one count, and at most one call fails with DS_ERR_DRIVER. All
   other calls are passed to the next table. Only the entries of DS__ENTRIES can fail.
   Locks: none. The fault and the tables are set during ds_init or the start, under ds__g.mutex.
   Threads: any thread that calls a driver entry, including workers of the CPU driver; the count
   is atomic. */

static struct {
    const ds__driver *next[DS_BACKEND_COUNT];
    ds__driver table[DS_BACKEND_COUNT];
    char entry[32];
    _Atomic uint64_t left;
} ds__fault;

__attribute__((noinline)) static int ds__fault_hit(const char *entry) {
    if (strcmp(ds__fault.entry, "*") != 0 && strcmp(ds__fault.entry, entry) != 0)
        return 0;
    return atomic_fetch_sub(&ds__fault.left, 1) == 1;
}

/* One function per entry and driver, since an entry does not know which driver it belongs to. */
#define DS__FAULT_ENTRY(backend, entry, parameters, arguments)                           \
    static ds_result ds__fault_##backend##_##entry parameters {                          \
        if (DS__UNLIKELY(ds__fault_hit(#entry)))                                         \
            return ds__fail(DS_ERR_DRIVER, "injected fault in the driver's %s", #entry); \
        return ds__fault.next[backend]->entry arguments;                                 \
    }
#define DS__FAULT_CUDA(entry, parameters, arguments) \
    DS__FAULT_ENTRY(0, entry, parameters, arguments)
#define DS__FAULT_CPU(entry, parameters, arguments) DS__FAULT_ENTRY(1, entry, parameters, arguments)
DS__ENTRIES(DS__FAULT_CUDA)
DS__ENTRIES(DS__FAULT_CPU)
#undef DS__FAULT_CUDA
#undef DS__FAULT_CPU

static const ds__driver *ds__fault_layer(const ds__driver *next, int backend) {
    ds__fault.next[backend] = next;
    ds__fault.table[backend] = *next;
#define DS__MEMBER(entry, parameters, arguments) \
    ds__fault.table[backend].entry = backend ? ds__fault_1_##entry : ds__fault_0_##entry;
    DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
    return &ds__fault.table[backend];
}

/* "entry:n"; DS_ERR_INVALID_VALUE for an unknown entry or a bad number. */
static ds_result ds__fault_parse(const char *text) {
    static const char *const names[] = {
#define DS__NAME(entry, parameters, arguments) #entry,
        DS__ENTRIES(DS__NAME)
#undef DS__NAME
            "*"
    };
    const char *colon = text ? strchr(text, ':') : NULL;
    char *end = NULL;
    ds__fault.entry[0] = 0;
    atomic_store(&ds__fault.left, 0);
    if (!text || !*text)
        return DS_OK;
    uint64_t n = colon ? strtoull(colon + 1, &end, 10) : 0;
    if (n > 0 && *end == 0)
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (strlen(names[i]) != (size_t)(colon - text) ||
                strncmp(names[i], text, (size_t)(colon - text)) != 0)
                continue;
            snprintf(ds__fault.entry, sizeof ds__fault.entry, "%s", names[i]);
            atomic_store(&ds__fault.left, n);
            return DS_OK;
        }
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "the fault \"%s\" is not entry:n with an entry of the driver", text);
}

/* core/init.h - lazy initialisation and the entry of public calls.

   Starts devstream at the first call (ds__start), keeps the configuration of ds_init, and
   applies the layers to the driver tables. DS__ENTER (ds__enter, ds__enter_inline) is the first
   step of nearly every public function. It records the call site, starts devstream if needed,
   and refuses calls that are not permitted.

   Invariants: ds__g.state is DS__COLD until a start succeeds, then DS__READY until ds_shutdown.
   A failed start leaves it cold, so the next call tries again. In a forked child the state is
   DS__FORKED unless it was cold. ds__g.epoch differs after each start, so handles and thread
   states of an earlier one are stale. A CUDA driver that fails to start only leaves a reason in
   the backend report; if the CPU driver fails, the start fails.
   Locks: ds__g.mutex is held over ds__start, including the drivers' probe and start functions,
   and while ds_init keeps the configuration. The user's log function may run under the mutex.
   The fast path of ds__enter takes no lock.
   Threads: any thread may make the first call. Inside of a host function, callback, destructor,
   hook or kernel (ds__tls.in_callback) a call is refused before the mutex is taken. ds__forked
   runs in the child of a fork. */

/* X(name, apply) */
#define DS__LAYERS(X) X("fault", ds__fault_layer)

/* Applies the layers named in the list to a backend's table; table NULL: only checks the list. */
static ds_result ds__layers_apply(const char *list, const ds__driver **table, int backend) {
    unsigned seen = 0;
    while (list && *list) {
        unsigned bit = 1;
        size_t n = strcspn(list, ",");
        int known = n == 0;
#define DS__LAYER(name, apply)                                                              \
    if (n == sizeof name - 1 && strncmp(list, name, n) == 0) {                              \
        if (seen & bit)                                                                     \
            return ds__fail(DS_ERR_INVALID_VALUE, "the layer \"" name "\" is named twice"); \
        seen |= bit;                                                                        \
        known = 1;                                                                          \
        if (table)                                                                          \
            *table = apply(*table, backend);                                                \
    }                                                                                       \
    bit <<= 1;
        DS__LAYERS(DS__LAYER)
#undef DS__LAYER
        if (!known)
            return ds__fail(DS_ERR_INVALID_VALUE, "there is no layer \"%.*s\"", (int)n, list);
        list += n + (list[n] == ',');
    }
    return DS_OK;
}

static void ds__stream_free(void *object);
static int ds__stream_batched(const void *object);
static void ds__event_free(void *object);
static int ds__event_batched(const void *object);
static void ds__kernel_free(void *object);
static int ds__kernel_may_free(void *object);
static void ds__graph_free(void *object);
static void ds__exec_free(void *object);
static void ds__thread_ends(void *thread);

static ds_result ds__sync_debug_read(const char *text);

static int ds__ordinals(void) {
    return ds__g.backend[0].device_count + ds__g.backend[1].device_count;
}

static void ds__forked(void) {
    atomic_store(&ds__g.state, atomic_load(&ds__g.state) == DS__COLD ? DS__COLD : DS__FORKED);
}

static const char *ds__layer_list(void) {
    return ds__g.desc.layers ? ds__g.desc.layers : getenv("DEVSTREAM_LAYERS");
}

/* Looks for devices and starts the drivers that have some. A GPU that cannot be used is a reason
   in the report, not an error. */
static ds_result ds__start_drivers(void) {
    static const struct {
        const char *name;
        ds_device_type type;
        const ds__driver *driver;
        const char *missing;
    } backends[] = {
#ifdef DEVSTREAM_CUDA
        { "cuda", DS_DEVICE_CUDA, &ds__cuda_driver, NULL },
#else
        { "cuda", DS_DEVICE_CUDA, NULL, "CUDA not compiled in: define DEVSTREAM_CUDA" },
#endif
#ifdef DEVSTREAM_NO_CPU
        { "cpu", DS_DEVICE_CPU, NULL, "compiled with DEVSTREAM_NO_CPU" },
#else
        { "cpu", DS_DEVICE_CPU, &ds__cpu_driver, NULL },
#endif
    };
    ds_result r = DS_OK;
    memset(ds__g.backend, 0, sizeof ds__g.backend);
    for (int b = 0; b < DS_BACKEND_COUNT; b++) {
        ds_backend_info *info = &ds__g.backend[b];
        ds__g.driver[b] = NULL;
        info->name = backends[b].name;
        info->type = backends[b].type;
        if (backends[b].driver)
            backends[b].driver->probe(info);
        else
            snprintf(info->reason, sizeof info->reason, "not taken: %s", backends[b].missing);
    }
    ds__g.legacy = ds__alloc((size_t)(ds__ordinals() + 1) * sizeof *ds__g.legacy);
    ds__g.label = ds__alloc((size_t)(ds__ordinals() + 1) * sizeof *ds__g.label);
    if (!ds__g.legacy || !ds__g.label)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to start");
    for (int b = 0; b < DS_BACKEND_COUNT && r == DS_OK; b++) {
        char before[sizeof ds__tls.error];
        if (!ds__g.backend[b].available)
            continue;
        memcpy(before, ds__tls.error, sizeof before);
        r = backends[b].driver->start();
        if (r == DS_OK)
            ds__g.driver[b] = backends[b].driver;
        if (r < 0 && b == 0) {
            /* behind the place of the call that came first */
            const char *why = strstr(ds__tls.error, ds__tls.fn);
            ds__g.backend[b].available = ds__g.backend[b].device_count = 0;
            snprintf(ds__g.backend[b].reason, sizeof ds__g.backend[b].reason, "not taken: %.170s",
                     why ? why + strlen(ds__tls.fn) + 2 : ds__tls.error);
            memcpy(ds__tls.error, before, sizeof before);
            r = DS_OK;
            continue;
        }
        if (r == DS_OK)
            r = ds__layers_apply(ds__layer_list(), &ds__g.driver[b], b);
    }
    return r;
}

/* Everything of the first call; ds__g.mutex is held. What fails leaves the state cold, so that a
   later call tries again. */
static ds_result ds__start(void) {
    const char *log = getenv("DEVSTREAM_LOG");
    ds__g.log_level = ds__g.desc.log_fn
                          ? (ds__g.desc.log_level ? (int)ds__g.desc.log_level : DS_LOG_WARNING)
                          : (log ? atoi(log) : DS_LOG_SILENT);
#ifdef DEVSTREAM_PER_THREAD_DEFAULT_STREAM
    ds__g.per_thread_default = 1;
#else
    ds__g.per_thread_default = (ds__g.desc.flags & DS_INIT_PER_THREAD_DEFAULT_STREAM) ||
                               ds__env_number("DEVSTREAM_PER_THREAD_DEFAULT_STREAM");
#endif
    ds_result r = ds__layers_apply(ds__layer_list(), NULL, 0);
    if (r == DS_OK)
        r = ds__sync_debug_read(getenv("DEVSTREAM_SYNC_DEBUG"));
    if (r == DS_OK)
        r = ds__fault_parse(ds__g.desc.fault ? ds__g.desc.fault : getenv("DEVSTREAM_FAULT"));
    if (r < 0)
        return r;
    ds__g.streams = (ds__table){ .what = "stream",
                                 .element = sizeof(ds__stream),
                                 .free_fn = ds__stream_free,
                                 .batched_fn = ds__stream_batched };
    ds__g.events = (ds__table){ .what = "event",
                                .element = sizeof(ds__event),
                                .free_fn = ds__event_free,
                                .batched_fn = ds__event_batched };
    ds__g.kernels = (ds__table){ .what = "kernel",
                                 .element = sizeof(ds__kernel),
                                 .free_fn = ds__kernel_free,
                                 .may_free_fn = ds__kernel_may_free };
    ds__g.graphs =
        (ds__table){ .what = "graph", .element = sizeof(ds__graph), .free_fn = ds__graph_free };
    ds__g.execs =
        (ds__table){ .what = "executable", .element = sizeof(ds__exec), .free_fn = ds__exec_free };
    ds__g.streams.generation = ds__g.events.generation = ds__g.kernels.generation =
        ds__g.graphs.generation = ds__g.execs.generation = ds__g.epoch << 20;
    r = ds__start_drivers();
    if (syscall(SYS_membarrier, 16 /* MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED */, 0, 0) != 0)
        atomic_store(&ds__no_membarrier, 1);
    int error = r == DS_OK ? pthread_key_create(&ds__g.key, ds__thread_ends) : 0;
    if (error)
        r = ds__fail(DS_ERR_SYSTEM, "no thread-specific data: %s", strerror(error));
    if (r == DS_OK && !ds__g.atfork) {
        pthread_atfork(NULL, NULL, ds__forked);
        ds__g.atfork = 1;
    }
    if (r < 0) {
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            if (ds__g.driver[b])
                ds__g.driver[b]->stop();
        ds__release(ds__g.legacy);
        ds__release(ds__g.label);
        ds__g.legacy = NULL;
        ds__g.label = NULL;
        return r;
    }
    ds__g.epoch++;
    return DS_OK;
}

static ds__thread *ds__thread_state(void);

__attribute__((noinline, cold)) static ds_result ds__enter_slow(ds__tls_block *t) {
    t->arena_stream = 0; /* that of before ds_shutdown is gone */
    if (t->in_callback)
        return ds__fail(
            DS_ERR_NOT_PERMITTED,
            "devstream was called from inside of a host function, callback, destructor or kernel");
    if (atomic_load(&ds__g.state) == DS__FORKED)
        return ds__fail(
            DS_ERR_FORKED,
            "devstream was in use before fork; use it in one process only, or start it after fork");
    ds_result r = DS_OK;
    pthread_mutex_lock(&ds__g.mutex);
    if (atomic_load(&ds__g.state) == DS__COLD) {
        r = ds__start();
        if (r == DS_OK)
            atomic_store(&ds__g.state, DS__READY);
    }
    pthread_mutex_unlock(&ds__g.mutex);
    if (r == DS_OK && !ds__thread_state())
        r = DS_ERR_OUT_OF_MEMORY;
    return r;
}

/* First in every public function: takes the call site, starts devstream when needed, refuses
   what is not permitted. */
static inline ds_result ds__enter_inline(const char *fn) {
    ds__tls_block *t = &ds__tls;
    t->fn = fn;
    /* one by one: a load wider than the macro's stores would wait for them */
    t->site.file = ds_call_site.file;
    t->site.line = ds_call_site.line;
    ds_call_site.file = NULL;
    if (DS__UNLIKELY(t->in_callback ||
                     atomic_load_explicit(&ds__g.state, memory_order_acquire) != DS__READY ||
                     t->epoch != ds__g.epoch))
        return ds__enter_slow(t);
    return DS_OK;
}

__attribute__((noinline)) static ds_result ds__enter(const char *fn) {
    return ds__enter_inline(fn);
}

#define DS__ENTER(fn)                    \
    do {                                 \
        ds_result ds__r = ds__enter(fn); \
        if (DS__UNLIKELY(ds__r < 0))     \
            return ds__r;                \
    } while (0)

/* Forgets the configuration. */
static void ds__drop_desc(void) {
#ifndef DEVSTREAM_NO_CPU
    DS_IGNORE(ds__cpu_keep_desc(NULL));
#endif
    memset(&ds__g.desc, 0, sizeof ds__g.desc);
}

/* Keeps the configuration, with copies of all that it points to. */
static ds_result ds__keep_desc(const ds_init_desc *desc) {
    static char layers[64]; /* a longer text names nothing that is known */
    static char fault[64];  /* a longer text names nothing that is known */
    ds__drop_desc();        /* of an earlier ds_init */
    ds__g.desc = *desc;
    if (desc->layers) {
        snprintf(layers, sizeof layers, "%s", desc->layers);
        ds__g.desc.layers = layers;
    }
    if (desc->fault) {
        snprintf(fault, sizeof fault, "%s", desc->fault);
        ds__g.desc.fault = fault;
    }
#ifndef DEVSTREAM_NO_CPU
    return ds__cpu_keep_desc(desc->cpu);
#else
    return DS_OK;
#endif
}

DSDEF ds_result(ds_init)(const ds_init_desc *desc) {
    ds__tls_block *t = &ds__tls;
    t->fn = "ds_init";
    t->site = ds_call_site;
    ds_call_site.file = NULL;
    if (t->in_callback)
        return ds__enter_slow(t);
    static const ds_init_desc none;
    if (!desc)
        desc = &none;
    DS__REQUIRE(!desc->allocator.alloc_fn == !desc->allocator.free_fn,
                "the allocator needs both functions or neither");
    DS__REQUIRE((desc->flags & ~(unsigned)DS_INIT_PER_THREAD_DEFAULT_STREAM) == 0,
                "unknown flags %#x", desc->flags);
#ifndef DEVSTREAM_NO_CPU
    ds_result checked = desc->cpu ? ds__cpu_check_desc(desc->cpu) : DS_OK;
    if (checked < 0)
        return checked;
#endif
    ds_result r = ds__layers_apply(desc->layers, NULL, 0);
    if (r < 0)
        return r;
    /* before the lock, which may be held for ever */
    if (atomic_load(&ds__g.state) == DS__FORKED)
        return ds__enter_slow(t);
    pthread_mutex_lock(&ds__g.mutex);
    if (atomic_load(&ds__g.state) != DS__COLD)
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "devstream is in use already; call ds_init first, or after ds_shutdown");
    else if (desc->fault)
        r = ds__fault_parse(desc->fault);
    if (r == DS_OK && (r = ds__keep_desc(desc)) < 0)
        ds__drop_desc();
    pthread_mutex_unlock(&ds__g.mutex);
    return r;
}

/* core/thread.h - state of a calling thread, hazard pointers, reclaiming.

   Holds the current device, the current streams, the pushed frames and the hazard pointers
   (pins) of each thread that calls devstream (ds__thread_state). ds__reclaim frees the states of
   ended threads and the destroyed objects that no call uses any more. ds__ordinal and
   ds__driver_of map a device to its index over all drivers and to its driver table.

   Invariants: ds__tls.thread is valid only while ds__tls.epoch equals ds__g.epoch. A state is in
   ds__g.threads from its creation until ds__reclaim or ds_shutdown frees it. While its thread
   lives, only that thread uses a state, except for the hazard pointers, `ended` and `next`.
   ds__g.dead counts ended threads and retired objects; below DS__RECLAIM_BATCH ds__reclaim
   returns at once.
   Locks: ds__g.lock guards the list of threads. No other lock is taken, and no driver call or
   user code runs under it. ds__reclaim expects no lock from its caller, because it calls drivers
   and the user's destructors. A caller that holds one sets ds__tls.upper_locked; ds__reclaim
   then returns at once.
   Threads: any calling thread. ds__thread_ends is the pthread destructor of an ending thread and
   calls no driver. ds__is_pinned reads the hazard pointers of all threads; before it,
   ds__barrier orders their stores. */

enum { DS__FRAME_DEVICE, DS__FRAME_STREAM, DS__FRAME_NOTHING };

typedef struct ds__frame {
    int kind;
    unsigned flags;
    ds_device device;        /* current at entry */
    ds_device stream_device; /* of the pushed stream */
    ds_stream entry;         /* current at entry on `device`, with a reference; zero: none yet */
    ds_stream previous; /* current at entry on `stream_device`, with a reference; zero: none yet */
    ds_stream pushed;   /* the pushed one, with a reference of the frame's own */
} ds__frame;

/* A thread's current device and streams, indexed by the device's ordinal over all drivers. The
   current-stream slots hold a reference to the stream. Belongs to its thread until that ends;
   then a later call of any thread reclaims it. */
struct ds__thread {
    ds__pins pins;
    ds_device device;
    ds_stream *current; /* current stream of each device; zeroed: none yet */
    ds_stream *own;     /* per-thread stream of each device; zeroed: none yet */
    ds__frame *frame;
    size_t frames;
    size_t frame_room;
    char *report; /* ds_mem_last_report */
    _Atomic int ended;
    ds__thread *next;
};

static int ds__ordinal(ds_device d) {
    return d.type == DS_DEVICE_CUDA ? d.index : ds__g.backend[0].device_count + d.index;
}

static const ds__driver *ds__driver_of(ds_device d) {
    return ds__g.driver[d.type == DS_DEVICE_CUDA ? 0 : 1];
}

/* pthread's destructor: no call into a driver; a later call of another thread does the work. If
   another destructor of the program still calls devstream on this thread, the thread gets a new
   state. */
static void ds__thread_ends(void *thread) {
    ds__tls.thread = NULL;
    ds__tls.epoch = 0;
    ds__lock_take(&ds__g.lock);
    /* not after a shutdown, which has freed it */
    for (ds__thread *t = ds__g.threads; t; t = t->next)
        if (t == thread) {
            atomic_store(&t->ended, 1);
            ds__count_dead(DS__RECLAIM_BATCH);
            break;
        }
    ds__lock_give(&ds__g.lock);
}

static void ds__stream_drop(ds_stream handle);
static void ds__stream_end(ds_stream handle);

static void ds__thread_free(ds__thread *t) {
    for (int i = 0; i < ds__ordinals(); i++) {
        ds__stream_drop(t->current[i]);
        ds__stream_end(t->own[i]);
    }
    for (size_t i = 0; i < t->frames; i++) {
        ds__stream_drop(t->frame[i].entry);
        ds__stream_drop(t->frame[i].previous);
        ds__stream_drop(t->frame[i].pushed);
    }
    ds__release(t->current);
    ds__release(t->own);
    ds__release(t->frame);
    ds__release(t->report);
    ds__release(t);
}

static ds__pins *ds__my_pins(void) {
    return &ds__tls.thread->pins;
}

/* The thread's current device; on the library's own threads any. */
DS__SEAM static ds_device ds__thread_device(void) {
    return ds__tls.thread ? ds__tls.thread->device : ds_cpu(0);
}

static int ds__is_pinned(const void *object) {
    int found = 0;
    ds__lock_take(&ds__g.lock);
    for (ds__thread *t = ds__g.threads; t && !found; t = t->next)
        for (int i = 0; i < DS__PINS && !found; i++)
            found = atomic_load_explicit(&t->pins.at[i], memory_order_acquire) == object;
    ds__lock_give(&ds__g.lock);
    return found;
}

/* Every thread of the process passes a full barrier. */
static void ds__barrier(void) {
    if (!atomic_load(&ds__no_membarrier))
        syscall(SYS_membarrier, 8 /* MEMBARRIER_CMD_PRIVATE_EXPEDITED */, 0, 0);
}

/* Frees what ended threads left and what was destroyed: called where objects are made and
   destroyed and after waiting, not on hot paths. */
static void ds__reclaim(void) {
    ds__thread *ended = NULL;
    if (DS__LIKELY(atomic_load_explicit(&ds__g.dead, memory_order_acquire) < DS__RECLAIM_BATCH) ||
        ds__tls.upper_locked)
        return;
    /* a thread without pins, or with those of before ds_shutdown, is no help yet */
    if (!ds__tls.thread || ds__tls.epoch != ds__g.epoch)
        return;
    ds__lock_take(&ds__g.lock);
    for (ds__thread **p = &ds__g.threads; *p;) {
        ds__thread *t = *p;
        if (!atomic_load(&t->ended)) {
            p = &t->next;
            continue;
        }
        *p = t->next;
        t->next = ended;
        ended = t;
        ds__count_dead(-DS__RECLAIM_BATCH);
    }
    ds__lock_give(&ds__g.lock);
    while (ended) {
        ds__thread *t = ended;
        void (*gone_fn)(ds__stream *) = atomic_load(&ds__upper.stream_gone_fn);
        ended = t->next;
        for (int i = 0; gone_fn && i < ds__ordinals(); i++)
            if (t->own[i].id)
                gone_fn((void *)ds__slot_at(&ds__g.streams, (uint32_t)t->own[i].id - 1));
        ds__thread_free(t);
    }
    ds__table_reap(&ds__g.execs);
    ds__table_reap(&ds__g.graphs); /* what has kernels and events before those */
    ds__table_reap(&ds__g.events);
    ds__table_reap(&ds__g.kernels);
    ds__table_reap(&ds__g.streams);
}

/* The calling thread's state; NULL: no memory, and the sentence is set. */
static ds__thread *ds__thread_state(void) {
    ds__tls_block *tls = &ds__tls;
    if (DS__LIKELY(tls->thread && tls->epoch == ds__g.epoch))
        return tls->thread;
    ds__reclaim();
    size_t n = (size_t)ds__ordinals() + 1;
    ds__thread *t = ds__alloc(sizeof *t);
    if (t) {
        t->current = ds__alloc(n * sizeof *t->current);
        t->own = ds__alloc(n * sizeof *t->own);
    }
    if (!t || !t->current || !t->own || pthread_setspecific(ds__g.key, t) != 0) {
        if (t) {
            ds__release(t->current);
            ds__release(t->own);
            ds__release(t);
        }
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the thread's state");
        return NULL;
    }
    t->device = ds__g.backend[0].device_count ? ds_cuda(0) : ds_cpu(0);
    ds__lock_take(&ds__g.lock);
    t->next = ds__g.threads;
    ds__g.threads = t;
    ds__lock_give(&ds__g.lock);
    tls->thread = t;
    tls->epoch = ds__g.epoch;
    return t;
}

/* core/sync_debug.h - sync debug mode.

   Finds calls that make the host wait for a device. A public function asks ds__sync_watched
   before it waits and reports the wait with ds__sync_tell. That call writes a warning or refuses
   the wait, depending on the mode.

   Invariants: the mode belongs to the process, and each start reads it anew from
   DEVSTREAM_SYNC_DEBUG. A call that is refused has done nothing. Waits of the library itself are
   not reported (ds__tls.unwatched).
   Locks: none. ds__sync_tell may invoke the user's log function.
   Threads: any; the mode is atomic. */

/* Only public functions ask, before they do anything: what the library itself waits for on their
   behalf is not the user's wait. */
static inline int ds__sync_watched(void) {
    return atomic_load_explicit(&ds__g.sync_debug, memory_order_relaxed) != DS_SYNC_DEBUG_DEFAULT &&
           !ds__tls.unwatched;
}

/* The function that runs is about to wait; a negative result: it must not. */
__attribute__((format(printf, 1, 2), cold, noinline)) static ds_result ds__sync_tell(
    const char *format, ...) {
    char what[400];
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (atomic_load(&ds__g.sync_debug) == DS_SYNC_DEBUG_ERROR)
        return ds__fail(DS_ERR_WOULD_SYNCHRONIZE,
                        "called a synchronizing operation, which the sync debug mode refuses: %s",
                        what);
    snprintf(text, sizeof text, "called a synchronizing operation: %s %s", ds__tls.fn, what);
    if (ds__g.desc.log_fn)
        ds__log(DS_LOG_WARNING, DS_ERR_WOULD_SYNCHRONIZE, text);
    else if (ds__tls.site.file)
        fprintf(stderr, "devstream: %s:%d: %s\n", ds__tls.site.file, ds__tls.site.line, text);
    else
        fprintf(stderr, "devstream: %s\n", text);
    return DS_OK;
}

static ds_result ds__sync_debug_read(const char *text) {
    static const char *const words[] = { "default", "warn", "error" };
    int mode = text && *text ? -1 : DS_SYNC_DEBUG_DEFAULT;
    for (int i = 0; i < 3 && mode < 0; i++)
        if (strcmp(text, words[i]) == 0 || (text[0] == '0' + i && !text[1]))
            mode = i;
    DS__REQUIRE(mode >= 0,
                "\"%.40s\" is not a sync debug mode: default, warn or error (DEVSTREAM_SYNC_DEBUG)",
                text);
    atomic_store(&ds__g.sync_debug, mode);
    return DS_OK;
}

DSDEF ds_result(ds_sync_debug_set)(ds_sync_debug_mode mode) {
    DS__ENTER("ds_sync_debug_set");
    DS__REQUIRE((unsigned)mode <= DS_SYNC_DEBUG_ERROR, "%d is not a sync debug mode", (int)mode);
    atomic_store(&ds__g.sync_debug, (int)mode);
    return DS_OK;
}

DSDEF ds_result(ds_sync_debug_set_text)(const char *text) {
    DS__ENTER("ds_sync_debug_set_text");
    DS__REQUIRE(text && *text, "there is no text");
    return ds__sync_debug_read(text);
}

DSDEF ds_result(ds_sync_debug_get)(ds_sync_debug_mode *out) {
    if (out)
        *out = DS_SYNC_DEBUG_DEFAULT;
    DS__ENTER("ds_sync_debug_get");
    DS__REQUIRE(out, "out is NULL");
    *out = (ds_sync_debug_mode)atomic_load(&ds__g.sync_debug);
    return DS_OK;
}

/* core/range.h - ranges: NVTX, the hook, domains and levels.

   State and helpers of core/range_api.h: the tables of open ranges and domains, the check of a
   description (ds__range_check), and the report to the hook (ds__range_tell).

   Policy: a range is reported to NVTX and to the hook. The functions of NVTX do nothing unless a
   tool has brought its own. Nothing here starts devstream, allocates memory or reads state of
   the first call, so ranges can stand anywhere.

   Invariants: levels belong to a thread. Open ranges and domains stand in tables of fixed size.
   The word of a range holds whether it is open and its generation; of two threads that end a
   range, one finds it. A thread that invokes the hook first counts itself in and reads the hook
   again. So the thread that removes a hook can wait until no other thread is inside.
   Locks: ds__notes.lock guards the creation of domains and the initialisation of NVTX.
   ds__notes.hook_lock guards the exchange of the hook. They are separate, because a hook may
   create a domain. The hook is invoked without either.
   Threads: any, also before the first call and inside of user code that devstream runs. The hook
   runs on the thread of the range, with ds__tls.in_callback set; ranges inside of the hook are
   not reported to it. */

#if !defined(DEVSTREAM_NO_NVTX) && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define DS__NVTX 1
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include <nvtx3/nvToolsExt.h>
#if defined(DEVSTREAM_CUDA) && __has_include(<nvtx3/nvToolsExtCudaRt.h>) && __has_include(<cuda.h>)
#include <nvtx3/nvToolsExtCudaRt.h>
#define DS__NVTX_CUDA 1
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#endif
#endif

enum { DS__RANGES = 4096 };

typedef struct ds__open_range {
    /* generation << 1 | 1 while it is open; its id is generation << 32 | index + 1 */
    _Atomic uint64_t word;
    _Atomic uint32_t next; /* of those that can be used again: index + 1 */
    uint32_t domain;
    uint64_t native; /* NVTX's id */
} ds__open_range;

typedef struct ds__range_domain {
    char name[64];
    void *native;
} ds__range_domain;

typedef struct ds__range_watcher {
    ds_range_fn fn;
    void *user;
    _Atomic int inside;
} ds__range_watcher;

static struct {
    _Atomic(ds__range_watcher *) hook; /* one of the two, or NULL */
    _Atomic int nvtx;            /* 1: initialised, so that its functions are no longer replaced */
    _Atomic uint32_t domains;    /* how many there are with the default one, less one */
    _Atomic uint32_t generation; /* ds_shutdown raises it, which makes all handles void */
    pthread_mutex_t lock;        /* of who makes domains or initialises NVTX */
    /* of who sets the hook, which waits for the former one: that may come to the other lock */
    pthread_mutex_t hook_lock;
    ds__range_watcher watcher[2];
    ds__range_domain domain[DS__DOMAINS];
    _Atomic uint32_t used; /* ranges that ever were open */
    /* those that can be used again: the first one's index + 1, and a count of changes << 32 */
    _Atomic uint64_t spare;
    ds__open_range open[DS__RANGES];
} ds__notes = { .lock = PTHREAD_MUTEX_INITIALIZER, .hook_lock = PTHREAD_MUTEX_INITIALIZER };

/* As ds__fail, where another function of devstream may be going on around, whose name and place
   stay. */
__attribute__((format(printf, 4, 5), cold, noinline)) static ds_result ds__range_fail(
    const char *fn, ds_site site, ds_result code, const char *format, ...) {
    ds__tls_block *t = &ds__tls;
    int n = site.file ? snprintf(t->error, sizeof t->error, "%s:%d: %s: ", site.file, site.line, fn)
                      : snprintf(t->error, sizeof t->error, "%s: ", fn);
    size_t at = n < 0 ? 0 : (size_t)n < sizeof t->error ? (size_t)n : sizeof t->error - 1;
    va_list args;
    va_start(args, format);
    vsnprintf(t->error + at, sizeof t->error - at, format, args);
    va_end(args);
    t->code = code;
    if (atomic_load(&ds__g.state) == DS__READY && !t->in_hook) { /* else the log is not known yet */
        ds_site outer = t->site;
        t->site = site;
        ds__log(DS_LOG_ERROR, code, t->error);
        t->site = outer;
    }
    return code;
}

static inline ds_site ds__range_site(void) {
    ds_site site = { ds_call_site.file, ds_call_site.line };
    ds_call_site.file = NULL;
    return site;
}

#ifdef DS__NVTX
__attribute__((cold, noinline)) static void ds__nvtx_start(void) {
    pthread_mutex_lock(&ds__notes.lock);
    if (!atomic_load(&ds__notes.nvtx)) {
        /* its first call replaces its functions, which others must not see happen */
        nvtxInitialize(NULL);
        atomic_store_explicit(&ds__notes.nvtx, 1, memory_order_release);
    }
    pthread_mutex_unlock(&ds__notes.lock);
}

static inline void ds__nvtx_ready(void) {
    if (DS__UNLIKELY(!atomic_load_explicit(&ds__notes.nvtx, memory_order_acquire)))
        ds__nvtx_start();
}

static nvtxEventAttributes_t ds__nvtx_attributes(const ds_range_desc *d) {
    nvtxEventAttributes_t a;
    memset(&a, 0, sizeof a);
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.category = d->category;
    a.colorType = d->color ? NVTX_COLOR_ARGB : NVTX_COLOR_UNKNOWN;
    a.color = d->color;
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = d->text;
    switch (d->payload.kind) {
    case DS_PAYLOAD_U64:
        a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
        a.payload.ullValue = d->payload.value.u64;
        break;
    case DS_PAYLOAD_I64:
        a.payloadType = NVTX_PAYLOAD_TYPE_INT64;
        a.payload.llValue = d->payload.value.i64;
        break;
    case DS_PAYLOAD_F64:
        a.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
        a.payload.dValue = d->payload.value.f64;
        break;
    case DS_PAYLOAD_NONE:
        break;
    }
    return a;
}

/* 1: the functions without attributes say all of it. */
static inline int ds__range_is_plain(const ds_range_desc *d) {
    return !d->domain.id && !d->color && !d->category && !d->payload.kind;
}
#endif

/* The label of the calling thread, a device or a stream, or a range: what the hook gets, with
   the fields that are the same for all. */
__attribute__((noinline)) static void ds__range_tell(ds_range_event *e, ds_site site) {
    ds__tls_block *t = &ds__tls;
    for (ds__range_watcher *w; !t->in_hook && (w = atomic_load(&ds__notes.hook)) != NULL;) {
        atomic_fetch_add(&w->inside, 1);
        if (atomic_load(&ds__notes.hook) != w) {
            atomic_fetch_sub(&w->inside, 1);
            continue;
        }
        int outer = t->in_callback;
        e->file = site.file;
        e->line = site.file ? site.line : 0;
        e->thread = ds__thread_number();
        e->time_ns = ds__now_ns();
        t->in_callback = t->in_hook = 1;
        w->fn(e, w->user);
        t->in_hook = 0;
        t->in_callback = outer;
        atomic_fetch_sub(&w->inside, 1);
        return;
    }
}

static inline int ds__range_heard(void) {
    return atomic_load_explicit(&ds__notes.hook, memory_order_relaxed) != NULL;
}

static void ds__range_tell_of(ds_range_kind kind, const ds_range_desc *d, uint32_t domain,
                              int level, uint64_t id, ds_site site) {
    ds_range_event e = { .kind = kind,
                         .level = level,
                         .domain = d->domain,
                         .domain_name = ds__notes.domain[domain].name,
                         .text = d->text,
                         .color = d->color,
                         .category = d->category,
                         .payload = d->payload,
                         .id = id };
    ds__range_tell(&e, site);
}

/* The domain's place in the table; -1: it is gone or never was, and the sentence is set. */
static inline int ds__range_domain_of(const char *fn, ds_site site, ds_domain domain) {
    if (DS__LIKELY(!domain.id))
        return 0;
    uint32_t index = (uint32_t)domain.id;
    if (index && index <= atomic_load_explicit(&ds__notes.domains, memory_order_acquire) &&
        (uint32_t)(domain.id >> 32) == atomic_load(&ds__notes.generation) + 1)
        return (int)index;
    ds__range_fail(fn, site, DS_ERR_INVALID_HANDLE,
                   "the domain was never created, or ended with ds_shutdown");
    return -1;
}

/* The thread's level in a domain. */
static inline int *ds__range_level(int domain) {
    ds__tls_block *t = &ds__tls;
    uint32_t now = atomic_load_explicit(&ds__notes.generation, memory_order_relaxed);
    if (DS__UNLIKELY(t->domains != now)) {
        memset(t->level + 1, 0, sizeof t->level - sizeof t->level[0]);
        t->domains = now;
    }
    return &t->level[domain];
}

/* The domain of a description, or a negative result. */
static inline int ds__range_check(const char *fn, ds_site site, const ds_range_desc *d) {
    if (DS__UNLIKELY(!d || !d->text))
        return ds__range_fail(fn, site, DS_ERR_INVALID_VALUE,
                              d ? "the text is NULL" : "desc is NULL");
    if (DS__UNLIKELY((unsigned)d->payload.kind > DS_PAYLOAD_F64))
        return ds__range_fail(fn, site, DS_ERR_INVALID_VALUE, "%d is not a kind of payload",
                              (int)d->payload.kind);
    int domain = ds__range_domain_of(fn, site, d->domain);
    return domain < 0 ? DS_ERR_INVALID_HANDLE : domain;
}

/* core/range_api.h - ranges: marks, pushes, starts, domains, labels.

   Public functions of ranges (ds_range_push, ds_range_start, ds_domain_create, ds_range_hook).
   ds__tell_stream_label and ds__tell_device_label report labels to NVTX and to the hook;
   ds__ranges_end ends all domains at shutdown.

   Invariants: a range handle is its generation and its index + 1 in ds__notes.open. A closed
   place is in the list ds__notes.spare once; the list's count of changes tells a stale head.
   Domain handles carry the generation of the domains, so ds_shutdown makes them stale. Ranges of
   the default domain stay open over ds_shutdown.
   Locks: ds_domain_create holds ds__notes.lock over calls of NVTX. ds_range_hook holds
   ds__notes.hook_lock until no thread is inside of the former hook. ds__tell_stream_label and
   ds__tell_device_label invoke the hook, so their callers hold no lock.
   Threads: any. Inside of user code that devstream runs, ds_range_hook is refused.
   ds__ranges_end takes no lock and expects that no other thread uses domains or their ranges. */

static ds_result ds__range_mark(const char *fn, const ds_range_desc *d) {
    ds_site site = ds__range_site();
    int domain = ds__range_check(fn, site, d);
    if (domain < 0)
        return (ds_result)domain;
#ifdef DS__NVTX
    ds__nvtx_ready();
    if (ds__range_is_plain(d))
        nvtxMarkA(d->text);
    else {
        nvtxEventAttributes_t a = ds__nvtx_attributes(d);
        nvtxDomainMarkEx(ds__notes.domain[domain].native, &a);
    }
#endif
    if (ds__range_heard())
        ds__range_tell_of(DS_RANGE_MARK, d, (uint32_t)domain, 0, 0, site);
    return DS_OK;
}

static inline int ds__range_push(const char *fn, const ds_range_desc *d) {
    ds_site site = ds__range_site();
    int domain = ds__range_check(fn, site, d);
    if (DS__UNLIKELY(domain < 0))
        return domain;
#ifdef DS__NVTX
    ds__nvtx_ready();
    if (ds__range_is_plain(d))
        nvtxRangePushA(d->text);
    else {
        nvtxEventAttributes_t a = ds__nvtx_attributes(d);
        nvtxDomainRangePushEx(ds__notes.domain[domain].native, &a);
    }
#endif
    int level = (*ds__range_level(domain))++;
    if (DS__UNLIKELY(ds__range_heard()))
        ds__range_tell_of(DS_RANGE_PUSH, d, (uint32_t)domain, level, 0, site);
    return level;
}

static inline int ds__range_pop(const char *fn, ds_domain handle) {
    ds_site site = ds__range_site();
    int domain = ds__range_domain_of(fn, site, handle);
    if (DS__UNLIKELY(domain < 0))
        return DS_ERR_INVALID_HANDLE;
    int *level = ds__range_level(domain);
    if (DS__UNLIKELY(*level == 0))
        return ds__range_fail(fn, site, DS_ERR_ILLEGAL_STATE,
                              "this thread has pushed no range%s%s%s that is still open",
                              domain ? " of the domain \"" : "", ds__notes.domain[domain].name,
                              domain ? "\"" : "");
    --*level;
#ifdef DS__NVTX
    ds__nvtx_ready();
    if (domain)
        nvtxDomainRangePop(ds__notes.domain[domain].native);
    else
        nvtxRangePop();
#endif
    if (DS__UNLIKELY(ds__range_heard())) {
        ds_range_desc d = { .domain = handle };
        ds__range_tell_of(DS_RANGE_POP, &d, (uint32_t)domain, *level, 0, site);
    }
    return *level;
}

/* A place for a range; NULL: all are open. Its word is not open yet. */
static ds__open_range *ds__range_place(void) {
    uint64_t first = atomic_load(&ds__notes.spare);
    while ((uint32_t)first) {
        ds__open_range *o = &ds__notes.open[(uint32_t)first - 1];
        /* the count tells when another has come between */
        uint64_t rest = ((first >> 32) + 1) << 32 | atomic_load(&o->next);
        if (atomic_compare_exchange_weak(&ds__notes.spare, &first, rest))
            return o;
    }
    uint32_t n = atomic_load(&ds__notes.used);
    while (n < DS__RANGES)
        if (atomic_compare_exchange_weak(&ds__notes.used, &n, n + 1))
            return &ds__notes.open[n];
    return NULL;
}

static void ds__range_place_over(ds__open_range *o) {
    uint64_t first = atomic_load(&ds__notes.spare);
    do
        atomic_store(&o->next, (uint32_t)first);
    while (!atomic_compare_exchange_weak(
        &ds__notes.spare, &first, ((first >> 32) + 1) << 32 | (uint64_t)(o - ds__notes.open + 1)));
}

static ds_result ds__range_start(const char *fn, const ds_range_desc *d, ds_range *out) {
    ds_site site = ds__range_site();
    if (out)
        out->id = 0;
    else
        return ds__range_fail(fn, site, DS_ERR_INVALID_VALUE, "out is NULL");
    int domain = ds__range_check(fn, site, d);
    if (domain < 0)
        return (ds_result)domain;
    ds__open_range *o = ds__range_place();
    if (!o)
        return ds__range_fail(fn, site, DS_ERR_LIMIT_EXCEEDED,
                              "%d ranges are open already; end some", (int)DS__RANGES);
    o->domain = (uint32_t)domain;
#ifdef DS__NVTX
    ds__nvtx_ready();
    if (ds__range_is_plain(d))
        o->native = nvtxRangeStartA(d->text);
    else {
        nvtxEventAttributes_t a = ds__nvtx_attributes(d);
        o->native = nvtxDomainRangeStartEx(ds__notes.domain[domain].native, &a);
    }
#endif
    uint64_t generation = ((atomic_load(&o->word) >> 1) + 1) & UINT32_MAX;
    out->id = generation << 32 | (uint64_t)(o - ds__notes.open + 1);
    atomic_store(&o->word, generation << 1 | 1);
    if (ds__range_heard())
        ds__range_tell_of(DS_RANGE_START, d, (uint32_t)domain, 0, out->id, site);
    return DS_OK;
}

DSDEF ds_result(ds_domain_create)(const char *name, ds_domain *out) {
    ds_site site = ds__range_site();
    if (out)
        out->id = 0;
    if (!out || !name || !*name)
        return ds__range_fail("ds_domain_create", site, DS_ERR_INVALID_VALUE, "%s",
                              !out ? "out is NULL" : "a domain needs a name");
    if (strlen(name) >= sizeof ds__notes.domain[0].name)
        return ds__range_fail("ds_domain_create", site, DS_ERR_INVALID_VALUE,
                              "the name of a domain has more than %zu characters",
                              sizeof ds__notes.domain[0].name - 1);
    pthread_mutex_lock(&ds__notes.lock);
    uint32_t n = atomic_load(&ds__notes.domains);
    uint32_t i = 1;
    while (i <= n && strcmp(ds__notes.domain[i].name, name) != 0)
        i++;
    if (i > n && i < DS__DOMAINS) {
        memcpy(ds__notes.domain[i].name, name, strlen(name) + 1);
#ifdef DS__NVTX
        if (!atomic_load(&ds__notes.nvtx)) {
            nvtxInitialize(NULL);
            atomic_store(&ds__notes.nvtx, 1);
        }
        ds__notes.domain[i].native = nvtxDomainCreateA(name);
#endif
        atomic_store_explicit(&ds__notes.domains, i, memory_order_release);
    }
    if (i < DS__DOMAINS)
        out->id = (uint64_t)(atomic_load(&ds__notes.generation) + 1) << 32 | i;
    pthread_mutex_unlock(&ds__notes.lock);
    return out->id ? DS_OK
                   : ds__range_fail("ds_domain_create", site, DS_ERR_LIMIT_EXCEEDED,
                                    "there are %d domains already", DS__DOMAINS - 1);
}

/* A description of nothing but a text. */
#define DS__TEXT(words) (&(ds_range_desc){ .text = (words) })

DSDEF ds_result(ds_range_mark)(const char *text) {
    return ds__range_mark("ds_range_mark", DS__TEXT(text));
}

DSDEF ds_result(ds_range_mark_with)(const ds_range_desc *desc) {
    return ds__range_mark("ds_range_mark_with", desc);
}

DSDEF int(ds_range_push)(const char *text) {
    return ds__range_push("ds_range_push", DS__TEXT(text));
}

DSDEF int(ds_range_push_with)(const ds_range_desc *desc) {
    return ds__range_push("ds_range_push_with", desc);
}

DSDEF int(ds_range_pop)(void) {
    return ds__range_pop("ds_range_pop", (ds_domain){ 0 });
}

DSDEF int(ds_range_pop_in)(ds_domain domain) {
    return ds__range_pop("ds_range_pop_in", domain);
}

DSDEF ds_result(ds_range_start)(const char *text, ds_range *out) {
    return ds__range_start("ds_range_start", DS__TEXT(text), out);
}

DSDEF ds_result(ds_range_start_with)(const ds_range_desc *desc, ds_range *out) {
    return ds__range_start("ds_range_start_with", desc, out);
}

DSDEF ds_result(ds_range_end)(ds_range range) {
    ds_site site = ds__range_site();
    uint32_t index = (uint32_t)range.id;
    uint64_t word = range.id >> 32 << 1 | 1;
    if (!index || index > DS__RANGES ||
        !atomic_compare_exchange_strong(&ds__notes.open[index - 1].word, &word,
                                        word & ~(uint64_t)1))
        return ds__range_fail("ds_range_end", site, DS_ERR_INVALID_HANDLE, "%s",
                              range.id ? "the range has ended already, or was never started"
                                       : "no range was given (the handle is zero)");
    ds__open_range *o = &ds__notes.open[index - 1];
    uint32_t domain = o->domain;
#ifdef DS__NVTX
    if (domain)
        nvtxDomainRangeEnd(ds__notes.domain[domain].native, o->native);
    else
        nvtxRangeEnd(o->native);
#endif
    ds__range_place_over(o);
    if (ds__range_heard()) {
        ds_range_desc d = { 0 };
        if (domain)
            d.domain.id = (uint64_t)(atomic_load(&ds__notes.generation) + 1) << 32 | domain;
        ds__range_tell_of(DS_RANGE_END, &d, domain, 0, range.id, site);
    }
    return DS_OK;
}

static inline ds_range_scope ds__range_scope(int level, ds_domain domain) {
    ds_range_scope scope = { domain, level >= 0, 1 };
    return scope;
}

DSDEF ds_range_scope(ds_range_scope_enter)(const char *text) {
    return ds__range_scope(ds__range_push("ds_range_scope_enter", DS__TEXT(text)),
                           (ds_domain){ 0 });
}

DSDEF ds_range_scope(ds_range_scope_enter_with)(const ds_range_desc *desc) {
    int level = ds__range_push("ds_range_scope_enter_with", desc);
    return ds__range_scope(level, level >= 0 ? desc->domain : (ds_domain){ 0 });
}

DSDEF void(ds_range_scope_leave)(ds_range_scope *scope) {
    if (scope->pushed)
        (void)ds__range_pop("ds_range_scope_leave", scope->domain);
    scope->pushed = 0;
}

DSDEF ds_result(ds_range_hook)(ds_range_fn fn, void *user) {
    ds_site site = ds__range_site();
    if (ds__tls.in_callback)
        return ds__range_fail("ds_range_hook", site, DS_ERR_NOT_PERMITTED,
                              "the hook cannot be set inside of a host function, callback, "
                              "destructor, kernel or hook");
    pthread_mutex_lock(&ds__notes.hook_lock);
    ds__range_watcher *now = atomic_load(&ds__notes.hook);
    ds__range_watcher *next =
        now == &ds__notes.watcher[0] ? &ds__notes.watcher[1] : &ds__notes.watcher[0];
    /* nobody is inside: that was waited for */
    if (fn) {
        next->fn = fn;
        next->user = user;
    }
    atomic_store(&ds__notes.hook, fn ? next : NULL);
    for (int spins = 0; now && atomic_load(&now->inside); spins++) {
        if (spins < 64)
            ds__pause();
        else
            syscall(SYS_sched_yield);
    }
    pthread_mutex_unlock(&ds__notes.hook_lock);
    return DS_OK;
}

DSDEF ds_result(ds_thread_set_label)(const char *label) {
    ds_site site = ds__range_site();
    if (!label)
        return ds__range_fail("ds_thread_set_label", site, DS_ERR_INVALID_VALUE,
                              "the label is NULL");
#ifdef DS__NVTX
    ds__nvtx_ready();
    nvtxNameOsThreadA((uint32_t)syscall(SYS_gettid), label);
#endif
    ds_range_event e = { .kind = DS_RANGE_THREAD_LABEL, .domain_name = "", .text = label };
    if (ds__range_heard())
        ds__range_tell(&e, site);
    return DS_OK;
}

/* A stream has this label; NULL: none any more. */
static void ds__tell_stream_label(ds__stream *s, const char *label) {
#ifdef DS__NVTX_CUDA
    void *native = NULL;
    ds__tls.mute++; /* another thread's own stream has no name in CUDA */
    int known =
        s->device.type == DS_DEVICE_CUDA && ds__cuda_stream_native(s->native, &native) == DS_OK;
    ds__tls.mute--;
    if (known) {
        ds__nvtx_ready();
        nvtxNameCudaStreamA((cudaStream_t)native, label ? label : "");
    }
#endif
    ds_range_event e = { .kind = DS_RANGE_STREAM_LABEL,
                         .domain_name = "",
                         .text = label ? label : "",
                         .device = s->device,
                         .id = s->id };
    if (ds__range_heard())
        ds__range_tell(&e, ds__tls.site);
}

static void ds__tell_device_label(ds_device device, const char *label) {
#ifdef DS__NVTX_CUDA
    if (device.type == DS_DEVICE_CUDA) {
        ds__nvtx_ready();
        nvtxNameCudaDeviceA(device.index, label);
    }
#endif
    ds_range_event e = {
        .kind = DS_RANGE_DEVICE_LABEL, .domain_name = "", .text = label, .device = device
    };
    if (ds__range_heard())
        ds__range_tell(&e, ds__tls.site);
}

/* At shutdown: domains end, with the ranges in them. */
static void ds__ranges_end(void) {
    for (uint32_t i = 0; i < atomic_load(&ds__notes.used); i++) {
        ds__open_range *o = &ds__notes.open[i];
        uint64_t word = atomic_load(&o->word);
        if (!(word & 1) || !o->domain)
            continue;
        atomic_store(&o->word, word & ~(uint64_t)1);
        ds__range_place_over(o);
    }
#ifdef DS__NVTX
    for (uint32_t i = 1; i <= atomic_load(&ds__notes.domains); i++)
        nvtxDomainDestroy(ds__notes.domain[i].native);
#endif
    if (atomic_load(&ds__notes.domains))
        atomic_fetch_add(&ds__notes.generation, 1);
    atomic_store(&ds__notes.domains, 0);
}

/* core/device.h - devices: resolution, text form, current device.

   Checks and completes the device arguments of all public functions (ds__resolve, DS__RESOLVE).
   Lists backends and devices, converts devices to and from text, and sets, pushes and pops the
   current device of a thread.

   Invariants: a resolved device exists, has type CUDA or CPU, and is neither the host nor
   DS_DEVICE_CURRENT. Pushes of devices and of streams share one stack of frames for each thread;
   a pop must match the latest push. A call that fails leaves the current device and the stack as
   they were.
   Locks: none. ds__g.backend does not change between start and shutdown.
   Threads: any. The current device and the frames belong to the calling thread. */

static const char *ds__type_name(int type) {
    return type == DS_DEVICE_CUDA   ? "cuda"
           : type == DS_DEVICE_CPU  ? "cpu"
           : type == DS_DEVICE_HOST ? "host"
                                    : "?";
}

static int ds__type_count(int type) {
    return type == DS_DEVICE_CUDA  ? ds__g.backend[0].device_count
           : type == DS_DEVICE_CPU ? ds__g.backend[1].device_count
                                   : 0;
}

/* Makes a device that exists of what the user gave: the current one for a zeroed one. */
static ds_result ds__resolve(ds_device device, ds_device *out) {
    if (device.type == DS_DEVICE_CURRENT) {
        DS__REQUIRE(device.index == 0, "a device without a type has index %d", device.index);
        ds__thread *t = ds__thread_state();
        if (!t)
            return DS_ERR_OUT_OF_MEMORY;
        device = t->device;
    }
    if (device.type == DS_DEVICE_HOST)
        return ds__fail(DS_ERR_INVALID_DEVICE, "the host is not a device with streams and memory");
    if (device.type != DS_DEVICE_CUDA && device.type != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_INVALID_DEVICE, "%d is not a type of device", device.type);
    int count = ds__type_count(device.type);
    if (count == 0)
        return ds__fail(DS_ERR_NO_DEVICE, "there is no %s device: %s", ds__type_name(device.type),
                        ds__g.backend[device.type == DS_DEVICE_CUDA ? 0 : 1].reason);
    if (device.index < 0 || device.index >= count)
        return ds__fail(DS_ERR_DEVICE_RANGE, "%s:%d is outside of [0, %d)",
                        ds__type_name(device.type), device.index, count);
    *out = device;
    return DS_OK;
}

#define DS__RESOLVE(device)                             \
    do {                                                \
        ds_result ds__r = ds__resolve(device, &device); \
        if (DS__UNLIKELY(ds__r < 0))                    \
            return ds__r;                               \
    } while (0)

DSDEF ds_result(ds_backend_get)(int index, ds_backend_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_backend_get");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(index >= 0 && index < DS_BACKEND_COUNT, "there is no backend %d", index);
    *out = ds__g.backend[index];
    return DS_OK;
}

DSDEF ds_result(ds_backend_report)(char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_backend_report");
    DS__REQUIRE(out && size, "out is NULL or has no room");
    size_t at = 0;
    for (int i = 0; i < DS_BACKEND_COUNT && at < size; i++) {
        int n = snprintf(out + at, size - at, "%-5s %s\n", ds__g.backend[i].name,
                         ds__g.backend[i].reason);
        at += n > 0 ? (size_t)n : 0;
    }
    return DS_OK;
}

DSDEF int(ds_is_available)(ds_device_type type) {
    if (ds__enter("ds_is_available") < 0)
        return 0;
    int t = type == DS_DEVICE_CURRENT ? ds__thread_device().type : (int)type;
    return ds__type_count(t) > 0;
}

DSDEF int(ds_is_initialized)(void) {
    return atomic_load(&ds__g.state) == DS__READY;
}

DSDEF ds_result(ds_arch_list)(ds_device_type type, char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_arch_list");
    DS__REQUIRE(out && size, "out is NULL or has no room");
    int t = type == DS_DEVICE_CURRENT ? ds__thread_device().type : (int)type;
    const char *words = "";
    if (t != DS_DEVICE_CUDA && t != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_INVALID_DEVICE, "%d is not a type of device with code of its own",
                        t);
#ifdef DEVSTREAM_CUDA
    if (t == DS_DEVICE_CUDA)
        words = "sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_100 "
                "sm_101 sm_103 sm_110 sm_120 sm_121 compute_60";
#endif
#ifdef __x86_64__
    if (t == DS_DEVICE_CPU)
        words = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "x86_64 avx2"
                                                                                : "x86_64";
#else
    if (t == DS_DEVICE_CPU)
        words = "aarch64";
#endif
    DS__REQUIRE(strlen(words) < size, "%zu bytes are too few for \"%s\"", size, words);
    memcpy(out, words, strlen(words) + 1);
    return DS_OK;
}

DSDEF ds_result(ds_device_count)(ds_device_type type, int *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_device_count");
    DS__REQUIRE(out_count, "out_count is NULL");
    int t = (int)type;
    if (t == DS_DEVICE_CURRENT) {
        ds__thread *thread = ds__thread_state();
        if (!thread)
            return DS_ERR_OUT_OF_MEMORY;
        t = thread->device.type;
    }
    if (t != DS_DEVICE_HOST && t != DS_DEVICE_CUDA && t != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_INVALID_DEVICE, "%d is not a type of device", t);
    *out_count = t == DS_DEVICE_HOST ? 1 : ds__type_count(t);
    return DS_OK;
}

/* 1 when the word, n characters in any case, is `lower`. */
static int ds__same_word(const char *word, size_t n, const char *lower) {
    for (size_t i = 0; i < n; i++) {
        char c = word[i] >= 'A' && word[i] <= 'Z' ? (char)(word[i] - 'A' + 'a') : word[i];
        if (!lower[i] || c != lower[i])
            return 0;
    }
    return lower[n] == 0;
}

static ds_result ds__parse_device(const char *text, ds_device *d) {
    static const char blanks[] = " \t\n\r\f\v";
    const char *word = text + strspn(text, blanks);
    size_t n = strcspn(word, ": \t\n\r\f\v");
    const char *at = word + n;
    int64_t index = -1;
    if (ds__same_word(word, n, "cuda") || ds__same_word(word, n, "gpu"))
        d->type = DS_DEVICE_CUDA;
    else if (ds__same_word(word, n, "cpu") || (n == 10 && memcmp(word, "custom_cpu", 10) == 0))
        d->type = DS_DEVICE_CPU;
    else if (ds__same_word(word, n, "host"))
        d->type = DS_DEVICE_HOST;
    else
        return ds__fail(DS_ERR_INVALID_DEVICE,
                        "\"%s\" names no device; write cpu, cuda:0, gpu:1, custom_cpu:0 or host",
                        text);
    if (*at == ':') {
        const char *digits = ++at;
        for (index = 0; *at >= '0' && *at <= '9'; at++)
            if ((index = index * 10 + (*at - '0')) > INT_MAX)
                return ds__fail(DS_ERR_DEVICE_RANGE, "the index in \"%s\" is too large", text);
        if (at == digits)
            return ds__fail(DS_ERR_INVALID_DEVICE, "\"%s\" has no index after the colon", text);
    }
    at += strspn(at, blanks);
    if (*at)
        return ds__fail(DS_ERR_INVALID_DEVICE, "\"%s\" goes on after the device", text);
    if (d->type == DS_DEVICE_HOST) {
        if (index > 0)
            return ds__fail(DS_ERR_DEVICE_RANGE, "host:%d is outside of [0, 1)", (int)index);
        return DS_OK;
    }
    if (index < 0) {
        ds__thread *t = ds__thread_state();
        if (!t)
            return DS_ERR_OUT_OF_MEMORY;
        index = t->device.type == d->type ? t->device.index : 0;
    }
    d->index = (int32_t)index;
    return ds__resolve(*d, d);
}

DSDEF ds_result(ds_device_parse)(const char *text, ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_device_parse");
    DS__REQUIRE(text && out, "%s is NULL", text ? "out" : "text");
    ds_device d = { 0, 0 };
    ds_result r = ds__parse_device(text, &d);
    if (r == DS_OK)
        *out = d;
    return r;
}

DSDEF ds_result(ds_device_print)(ds_device device, char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_device_print");
    DS__REQUIRE(out && size, "out is NULL or has no room");
    char text[DS_DEVICE_NAME_SIZE];
    if (device.type == DS_DEVICE_HOST) {
        snprintf(text, sizeof text, "host");
    } else {
        DS__RESOLVE(device);
        snprintf(text, sizeof text, "%s:%d", ds__type_name(device.type), device.index);
    }
    DS__REQUIRE(strlen(text) < size, "%zu bytes are too few for \"%s\"", size, text);
    memcpy(out, text, strlen(text) + 1);
    return DS_OK;
}

DSDEF ds_result(ds_device_get)(ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_device_get");
    DS__REQUIRE(out, "out is NULL");
    return ds__resolve(ds_device_current(), out);
}

static ds_result ds__set_device(ds__thread *t, ds_device device) {
    if (device.type == DS_DEVICE_CURRENT || device.index < 0)
        return DS_OK;
    DS__RESOLVE(device);
    t->device = device;
    return DS_OK;
}

DSDEF ds_result(ds_device_set)(ds_device device) {
    DS__ENTER("ds_device_set");
    ds__thread *t = ds__thread_state();
    return t ? ds__set_device(t, device) : DS_ERR_OUT_OF_MEMORY;
}

/* Room for a frame; NULL: no memory, and the sentence is set. */
static ds__frame *ds__frame_add(ds__thread *t) {
    if (t->frames == t->frame_room) {
        size_t room = t->frame_room ? 2 * t->frame_room : 8;
        ds__frame *more = ds__alloc(room * sizeof *more);
        if (!more) {
            ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a frame");
            return NULL;
        }
        if (t->frames)
            memcpy(more, t->frame, t->frames * sizeof *more);
        ds__release(t->frame);
        t->frame = more;
        t->frame_room = room;
    }
    memset(&t->frame[t->frames], 0, sizeof t->frame[0]);
    return &t->frame[t->frames];
}

static ds_result ds__device_push(ds_device device) {
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    ds__frame *f = ds__frame_add(t);
    if (!f)
        return DS_ERR_OUT_OF_MEMORY;
    ds_device before = t->device;
    ds_result r = ds__set_device(t, device);
    if (r < 0)
        return r;
    f->kind = DS__FRAME_DEVICE;
    f->device = before;
    t->frames++;
    return DS_OK;
}

static ds_result ds__device_pop(void) {
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    if (t->frames == 0 || t->frame[t->frames - 1].kind != DS__FRAME_DEVICE)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        t->frames ? "the latest push was that of a stream" : "nothing was pushed");
    t->device = t->frame[--t->frames].device;
    return DS_OK;
}

DSDEF ds_result(ds_device_push)(ds_device device) {
    DS__ENTER("ds_device_push");
    return ds__device_push(device);
}

DSDEF ds_result(ds_device_pop)(void) {
    DS__ENTER("ds_device_pop");
    return ds__device_pop();
}

DSDEF ds_scope(ds_device_scope_enter)(ds_device device) {
    ds_scope scope = { 0, 0 };
    if (ds__enter("ds_device_scope_enter") == DS_OK && ds__device_push(device) == DS_OK)
        scope.pushed = scope.once = 1;
    return scope;
}

DSDEF void(ds_device_scope_leave)(ds_scope *scope) {
    if (scope->pushed && ds__enter("ds_device_scope_leave") == DS_OK)
        DS_IGNORE(ds__device_pop());
    scope->pushed = 0;
}

/* core/device_query.h - devices: properties, memory, peers, labels.

   Answers queries about a device, waits for a device, resets a device, and keeps the labels of
   devices. ds__device_error adds the device's label to an error.

   Invariants: each device ordinal has one label of fixed size in ds__g.label, from start to
   shutdown.
   Locks: ds__g.label_lock is held while a label is copied; no driver call or user code runs
   under it. All driver calls here run without a lock, including those that block.
   Threads: any. ds_device_set_label invokes the range hook on the calling thread. ds_uuid_print
   does not start devstream. */

/* Adds the device's label to an error's sentence. */
__attribute__((cold, noinline)) static ds_result ds__device_error_named(ds_device device,
                                                                        ds_result r) {
    char name[16 + sizeof *ds__g.label];
    ds__lock_take(&ds__g.label_lock);
    snprintf(name, sizeof name, "%s", ds__g.label[ds__ordinal(device)]);
    ds__lock_give(&ds__g.label_lock);
    return name[0] ? ds__also(r, " (%s:%d \"%s\")", ds__type_name(device.type), device.index, name)
                   : r;
}

static inline ds_result ds__device_error(ds_device device, ds_result r) {
    return DS__LIKELY(r >= 0) ? r : ds__device_error_named(device, r);
}

DSDEF ds_result(ds_device_get_properties)(ds_device device, ds_device_properties *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_device_get_properties");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__device_error(device, ds__driver_of(device)->device_properties(device.index, out));
}

DSDEF ds_result(ds_device_name)(ds_device device, char *out, size_t size) {
    ds_device_properties p;
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_device_name");
    DS__REQUIRE(out && size, "out is NULL or has no room");
    DS__RESOLVE(device);
    memset(&p, 0, sizeof p);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r == DS_OK)
        snprintf(out, size, "%s", p.name);
    return r;
}

DSDEF ds_result(ds_device_capability)(ds_device device, int *out_major, int *out_minor) {
    ds_device_properties p;
    if (out_major)
        *out_major = 0;
    if (out_minor)
        *out_minor = 0;
    DS__ENTER("ds_device_capability");
    DS__RESOLVE(device);
    memset(&p, 0, sizeof p);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r == DS_OK && out_major)
        *out_major = p.major;
    if (r == DS_OK && out_minor)
        *out_minor = p.minor;
    return r;
}

DSDEF ds_result(ds_uuid_print)(const unsigned char uuid[16], char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    ds__tls.fn = "ds_uuid_print";
    ds__tls.site.file = ds_call_site.file;
    ds__tls.site.line = ds_call_site.line;
    ds_call_site.file = NULL;
    if (!uuid || !out || size < 37)
        return ds__fail(DS_ERR_INVALID_VALUE, "ds_uuid_print needs a uuid and room for 37 bytes");
    for (int i = 0, at = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        at += snprintf(out + at, 3, "%02x", uuid[i]);
    }
    return DS_OK;
}

DSDEF ds_result(ds_device_memory_info)(ds_device device, size_t *out_free, size_t *out_total) {
    if (out_free)
        *out_free = 0;
    if (out_total)
        *out_total = 0;
    DS__ENTER("ds_device_memory_info");
    DS__RESOLVE(device);
    size_t avail = 0;
    size_t total = 0;
    ds_result r = ds__device_error(
        device, ds__driver_of(device)->device_memory(device.index, &avail, &total));
    if (r == DS_OK && out_free)
        *out_free = avail;
    if (r == DS_OK && out_total)
        *out_total = total;
    return r;
}

DSDEF ds_result(ds_device_synchronize)(ds_device device) {
    DS__ENTER("ds_device_synchronize");
    DS__RESOLVE(device);
    return ds__device_error(device, ds__driver_of(device)->device_synchronize(device.index));
}

DSDEF ds_result(ds_device_reset)(ds_device device) {
    DS__ENTER("ds_device_reset");
    DS__RESOLVE(device);
    return ds__device_error(device, ds__driver_of(device)->device_reset(device.index));
}

DSDEF ds_result(ds_device_can_access_peer)(ds_device device, ds_device peer, int *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_device_can_access_peer");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    DS__RESOLVE(peer);
    if (device.type != peer.type)
        return DS_OK;
    return ds__driver_of(device)->device_peer(device.index, peer.index, out);
}

DSDEF ds_result(ds_device_priority_range)(ds_device device, int *out_least, int *out_greatest) {
    if (out_least)
        *out_least = 0;
    if (out_greatest)
        *out_greatest = 0;
    DS__ENTER("ds_device_priority_range");
    DS__RESOLVE(device);
    int least = 0;
    int greatest = 0;
    ds_result r = ds__driver_of(device)->priority_range(device.index, &least, &greatest);
    if (r == DS_OK && out_least)
        *out_least = least;
    if (r == DS_OK && out_greatest)
        *out_greatest = greatest;
    return r;
}

DSDEF ds_result(ds_device_label)(ds_device device, char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_device_label");
    DS__REQUIRE(out && size, "out is NULL or has no room");
    DS__RESOLVE(device);
    ds__lock_take(&ds__g.label_lock);
    snprintf(out, size, "%s", ds__g.label[ds__ordinal(device)]);
    ds__lock_give(&ds__g.label_lock);
    return DS_OK;
}

DSDEF ds_result(ds_device_set_label)(ds_device device, const char *label) {
    DS__ENTER("ds_device_set_label");
    DS__RESOLVE(device);
    ds__lock_take(&ds__g.label_lock);
    snprintf(ds__g.label[ds__ordinal(device)], sizeof *ds__g.label, "%s", label ? label : "");
    ds__lock_give(&ds__g.label_lock);
    ds__tell_device_label(device, label ? label : "");
    return DS_OK;
}

/* core/nvml.h - NVML: utilisation, temperature, power, clocks.

   Reads values of a GPU that only NVML, a library of NVIDIA's driver, knows. ds__nvml_open loads
   the library at the first question; core/shutdown.h ends it (ds__nvml_end). Memory reports of
   the allocator ask it for the processes on a GPU.

   Policy: NVML is kept until shutdown, since its initialisation takes milliseconds. A GPU is
   found by its uuid or its place on the bus, because the process may see few GPUs, under other
   numbers. The types are as in nvml.h: a device is a pointer; a result and an option are ints.

   Invariants: n->library is NULL unless NVML is loaded and initialised. If loading fails, the
   next question tries again. Optional functions may be NULL; the functions that ds__nvml_load
   requires are not.
   Locks: ds__nvml_state.lock is held while the library is loaded and initialised. Questions and
   ds__nvml_end run without it.
   Threads: any; NVML may be asked by several threads at once. ds__nvml_end runs in ds_shutdown,
   while no other thread is inside of devstream. */

enum { DS__NVML_NOT_SUPPORTED = 3, DS__NVML_TOO_SMALL = 7, DS__NVML_NO_FUNCTION = 13 };

typedef struct ds__nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*text)(int code);
    int (*by_uuid)(const char *uuid, void **out);
    int (*by_pci)(const char *pci, void **out);
    int (*processes)(void *device, unsigned *count, void *out);
    int old; /* 1: processes gives smaller descriptions */
    int (*utilization)(void *device, unsigned out[2] /* nvmlUtilization_t: gpu, memory */);
    int (*temperature)(void *device, int sensor, unsigned *out);
    int (*power)(void *device, unsigned *out_mw);
    int (*clock)(void *device, int clock, unsigned *out_mhz);
} ds__nvml;

#ifdef DEVSTREAM_CUDA
#include <dlfcn.h>

static struct {
    pthread_mutex_t lock;
    ds__nvml n;
} ds__nvml_state = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int ds__nvml_get(void *library, const char *name, void *fn) {
    void *found = dlsym(library, name);
    memcpy(fn, &found, sizeof found);
    return found != NULL;
}

/* NULL, or why not. */
static const char *ds__nvml_load(ds__nvml *n, const char *path) {
    memset(n, 0, sizeof *n);
    n->library = dlopen(path, 2 /* RTLD_NOW */);
    if (!n->library)
        return "it cannot be loaded";
    int all = ds__nvml_get(n->library, "nvmlInit_v2", &n->init) &
              ds__nvml_get(n->library, "nvmlShutdown", &n->shutdown) &
              ds__nvml_get(n->library, "nvmlDeviceGetHandleByUUID", &n->by_uuid) &
              ds__nvml_get(n->library, "nvmlErrorString", &n->text);
    ds__nvml_get(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_pci);
    ds__nvml_get(n->library, "nvmlDeviceGetUtilizationRates", &n->utilization);
    ds__nvml_get(n->library, "nvmlDeviceGetTemperature", &n->temperature);
    ds__nvml_get(n->library, "nvmlDeviceGetPowerUsage", &n->power);
    ds__nvml_get(n->library, "nvmlDeviceGetClockInfo", &n->clock);
    if (!ds__nvml_get(n->library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes) &&
        !ds__nvml_get(n->library, "nvmlDeviceGetComputeRunningProcesses_v2", &n->processes)) {
        n->old = 1;
        all &= ds__nvml_get(n->library, "nvmlDeviceGetComputeRunningProcesses", &n->processes);
    }
    int code = all ? n->init() : 0;
    if (all && code == 0)
        return NULL;
    const char *why = all ? "it cannot be initialised" : "it lacks functions";
    dlclose(n->library);
    n->library = NULL;
    return why;
}

static const char *ds__nvml_path(void) {
    const char *path = getenv("DEVSTREAM_NVML");
    return path && *path ? path : "libnvidia-ml.so.1";
}

/* NVML, or NULL and why not. */
static const ds__nvml *ds__nvml_open(const char **out_why) {
    ds__nvml *n = &ds__nvml_state.n;
    pthread_mutex_lock(&ds__nvml_state.lock);
    *out_why = n->library ? NULL : ds__nvml_load(n, ds__nvml_path());
    pthread_mutex_unlock(&ds__nvml_state.lock);
    return *out_why ? NULL : n;
}

static void ds__nvml_end(void) {
    ds__nvml *n = &ds__nvml_state.n;
    if (!n->library)
        return;
    n->shutdown();
    dlclose(n->library);
    n->library = NULL;
}

/* A device that is a part of a GPU has a uuid of its own. */
static int ds__nvml_device(const ds__nvml *n, const ds_device_properties *properties, void **out) {
    static const char *const kinds[] = { "GPU-", "MIG-" };
    char uuid[41];
    int code = 0;
    for (int i = 0; i < 2; i++) {
        int at = snprintf(uuid, sizeof uuid, "%s", kinds[i]);
        for (int k = 0; k < 16; k++) {
            int dash = k == 4 || k == 6 || k == 8 || k == 10;
            at += snprintf(uuid + at, sizeof uuid - (size_t)at, dash ? "-%02x" : "%02x",
                           properties->uuid[k]);
        }
        if ((code = n->by_uuid(uuid, out)) == 0)
            return 0;
    }
    return n->by_pci && properties->pci[0] ? n->by_pci(properties->pci, out) : code;
}
#else
static const char *ds__nvml_path(void) {
    return "";
}

/* there is no such device */
static const ds__nvml *ds__nvml_open(const char **out_why) {
    *out_why = "CUDA is not compiled in";
    return NULL;
}

static void ds__nvml_end(void) {
}

static int ds__nvml_device(const ds__nvml *n, const ds_device_properties *properties, void **out) {
    (void)n;
    (void)properties;
    (void)out;
    return 0;
}
#endif

/* Reads a value, or two; ask_fn returns NVML's code. */
static ds_result ds__nvml_read(ds_device device, const char *what,
                               int (*ask_fn)(const ds__nvml *n, void *device, unsigned out[2]),
                               unsigned *out_first, unsigned *out_second) {
    ds_device_properties p;
    const char *why;
    void *handle = NULL;
    unsigned value[2] = { 0, 0 };
    if (device.type != DS_DEVICE_CUDA)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the %s of cpu:%d is not known: only NVML tells it, of GPUs", what,
                        device.index);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r < 0)
        return r;
    const ds__nvml *n = ds__nvml_open(&why);
    if (!n)
        return ds__fail(DS_ERR_UNSUPPORTED,
                        "the %s of cuda:%d is not known: NVML (%s) tells it, and %s", what,
                        device.index, ds__nvml_path(), why);
    int code = ds__nvml_device(n, &p, &handle);
    if (code == 0)
        code = ask_fn(n, handle, value);
    /* how it says "not available" in values */
    if (code == 0 && (value[0] == UINT_MAX || value[1] == UINT_MAX))
        code = DS__NVML_NOT_SUPPORTED;
    if (code != 0)
        return ds__device_error(
            device, ds__fail(code == DS__NVML_NOT_SUPPORTED || code == DS__NVML_NO_FUNCTION
                                 ? DS_ERR_UNSUPPORTED
                                 : DS_ERR_DRIVER,
                             "the %s of cuda:%d is not known: NVML says %d (%s)", what,
                             device.index, code, n->text(code)));
    if (out_first)
        *out_first = value[0];
    if (out_second)
        *out_second = value[1];
    return DS_OK;
}

static int ds__nvml_utilization(const ds__nvml *n, void *device, unsigned out[2]) {
    return n->utilization ? n->utilization(device, out) : DS__NVML_NO_FUNCTION;
}

static int ds__nvml_temperature(const ds__nvml *n, void *device, unsigned out[2]) {
    return n->temperature ? n->temperature(device, 0 /* NVML_TEMPERATURE_GPU */, out)
                          : DS__NVML_NO_FUNCTION;
}

static int ds__nvml_power(const ds__nvml *n, void *device, unsigned out[2]) {
    return n->power ? n->power(device, out) : DS__NVML_NO_FUNCTION;
}

static int ds__nvml_clock(const ds__nvml *n, void *device, unsigned out[2]) {
    int code = n->clock ? n->clock(device, 1 /* NVML_CLOCK_SM */, &out[0]) : DS__NVML_NO_FUNCTION;
    return code ? code : n->clock(device, 2 /* NVML_CLOCK_MEM */, &out[1]);
}

DSDEF ds_result(ds_device_utilization)(ds_device device, unsigned *out_gpu_percent,
                                       unsigned *out_memory_percent) {
    if (out_gpu_percent)
        *out_gpu_percent = 0;
    if (out_memory_percent)
        *out_memory_percent = 0;
    DS__ENTER("ds_device_utilization");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "utilisation", ds__nvml_utilization, out_gpu_percent,
                         out_memory_percent);
}

DSDEF ds_result(ds_device_temperature)(ds_device device, unsigned *out_celsius) {
    if (out_celsius)
        *out_celsius = 0;
    DS__ENTER("ds_device_temperature");
    DS__REQUIRE(out_celsius, "out_celsius is NULL");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "temperature", ds__nvml_temperature, out_celsius, NULL);
}

DSDEF ds_result(ds_device_power_draw)(ds_device device, unsigned *out_milliwatts) {
    if (out_milliwatts)
        *out_milliwatts = 0;
    DS__ENTER("ds_device_power_draw");
    DS__REQUIRE(out_milliwatts, "out_milliwatts is NULL");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "power draw", ds__nvml_power, out_milliwatts, NULL);
}

DSDEF ds_result(ds_device_clock_rate)(ds_device device, unsigned *out_sm_mhz,
                                      unsigned *out_memory_mhz) {
    if (out_sm_mhz)
        *out_sm_mhz = 0;
    if (out_memory_mhz)
        *out_memory_mhz = 0;
    DS__ENTER("ds_device_clock_rate");
    DS__RESOLVE(device);
    return ds__nvml_read(device, "clock rate", ds__nvml_clock, out_sm_mhz, out_memory_mhz);
}

/* core/stream.h - streams: creation, owners, destruction.

   Creates, retains and destroys streams (ds__stream_new, ds_stream_destroy), and looks up stream
   handles under a hazard pointer (ds__stream_pin). ds__stream_free releases the native stream
   once no call and no reference uses the object.

   Invariants: a stream with owners has a valid handle; the destroy call of the last owner makes
   it stale. Default streams cannot be retained or destroyed. A borrowed or unwrapped native
   stream is forgotten, not destroyed. A wrapper of a default stream (s->base) has no native
   stream of its own and holds a reference to the default stream.
   Locks: none. ds__stream_new reclaims and, for a label, invokes the range hook;
   ds_stream_destroy calls the allocator (stream_gone_fn), which takes its own locks. If the
   caller of ds__stream_new holds a lock, ds__tls.upper_locked must be set.
   Threads: any. ds__stream_free runs in ds__reclaim or in ds_shutdown, and runs the user's
   release function there. */

__attribute__((noinline)) static ds__stream *ds__stream_pin(ds_stream handle) {
    ds__stream *s = ds__pin(&ds__g.streams, handle.id);
    if (DS__UNLIKELY(!s))
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the stream was destroyed or never existed"
                                                  : "no stream was given (the handle is zero)");
    return s;
}

static inline void ds__stream_unpin(ds__stream *s) {
    ds__unpin(&ds__g.streams, s);
}

static void ds__stream_drop(ds_stream handle);

static void ds__stream_free(void *object) {
    ds__stream *s = object;
    if (s->base.id) {
        ds__stream_drop(s->base);
    } else if (s->native) {
        if (s->borrowed || atomic_load(&s->unwrapped))
            s->driver->stream_forget(s->native);
        else
            s->driver->stream_destroy(s->native);
    }
    if (s->release_fn) {
        int outer = ds__tls.in_callback;
        ds__tls.in_callback = 1;
        s->release_fn(s->user);
        ds__tls.in_callback = outer;
    }
    ds__release(s->label);
}

/* A wrapper's native stream and release function are the program's: it expects them back soon. */
static int ds__stream_batched(const void *object) {
    const ds__stream *s = object;
    return !s->release_fn && !s->base.id && !s->borrowed && !atomic_load(&s->unwrapped);
}

/* Drops the reference of a current-stream slot; a zero handle is allowed. */
static void ds__stream_drop(ds_stream handle) {
    if (handle.id)
        ds__unref(&ds__g.streams, ds__slot_at(&ds__g.streams, (uint32_t)handle.id - 1));
}

/* Ends a stream that belongs to devstream itself, or whose handle nobody has yet; a zero handle
   is allowed. */
static void ds__stream_end(ds_stream handle) {
    if (handle.id)
        ds__table_kill(&ds__g.streams, ds__slot_at(&ds__g.streams, (uint32_t)handle.id - 1));
}

/* A new stream object around nothing yet. NULL: no memory, and the sentence is set. */
static ds__stream *ds__stream_add(ds_device device, const char *label) {
    ds__reclaim();
    ds__stream *s = ds__table_add(&ds__g.streams);
    if (!s) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a stream");
        return NULL;
    }
    s->driver = ds__driver_of(device);
    s->device = device;
    s->id = atomic_fetch_add(&ds__g.next_stream_id, 1) + 1;
    s->made = ds__tls.site;
    atomic_store(&s->owners, 1);
    if (label && !(s->label = ds__copy_text(label, 255))) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
        ds__table_kill(&ds__g.streams, s);
        return NULL;
    }
    return s;
}

/* Undoes ds__stream_add before anyone has the handle. */
static void ds__stream_discard(ds__stream *s) {
    ds_stream h = { ds__handle(&s->slot) };
    ds__stream_end(h);
}

static ds_result ds__stream_new(ds_device device, int kind, unsigned flags, int priority,
                                const char *label, ds_stream *out) {
    ds__stream *s = ds__stream_add(device, label);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    s->kind = (uint8_t)kind;
    s->flags = kind == DS__STREAM_NEW ? flags : DS_STREAM_BLOCKING;
    s->priority = s->requested = priority;
    ds_result r = s->driver->stream_create(device.index, kind, s->flags, &s->priority, &s->native);
    if (r < 0) {
        ds__stream_discard(s);
        return r;
    }
    out->id = ds__handle(&s->slot);
    if (label)
        ds__tell_stream_label(s, label);
    return DS_OK;
}

DSDEF ds_result(ds_priority_from_paddle)(int paddle_priority, int *out_priority) {
    if (out_priority)
        *out_priority = 0;
    DS__ENTER("ds_priority_from_paddle");
    DS__REQUIRE(out_priority, "out_priority is NULL");
    DS__REQUIRE(paddle_priority >= -1 && paddle_priority <= 2,
                "%d is none of Paddle's priorities: 1 high, 2 normal", paddle_priority);
    *out_priority =
        paddle_priority == 1 || paddle_priority == -1 ? DS_PRIORITY_HIGH : DS_PRIORITY_NORMAL;
    return DS_OK;
}

DSDEF ds_result(ds_stream_create)(const ds_stream_desc *desc, ds_stream *out) {
    static const ds_stream_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_create");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    DS__REQUIRE((desc->flags & ~(unsigned)DS_STREAM_BLOCKING) == 0, "unknown flags %#x",
                desc->flags);
    ds_device device = desc->device;
    ds_device now = ds__thread_device();
    if (device.index < 0)
        device.index = device.type == now.type ? now.index : 0;
    DS__RESOLVE(device);
    return ds__stream_new(device, DS__STREAM_NEW, desc->flags, desc->priority, desc->label, out);
}

DSDEF ds_result(ds_stream_retain)(ds_stream stream) {
    DS__ENTER("ds_stream_retain");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    int n = atomic_load(&s->owners);
    if (s->kind != DS__STREAM_NEW) {
        ds__stream_unpin(s);
        return ds__fail(DS_ERR_INVALID_VALUE, "a default stream has no owners to add to");
    }
    while (n > 0 && !atomic_compare_exchange_weak(&s->owners, &n, n + 1)) {
    }
    if (n <= 0)
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the stream is being destroyed");
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_destroy)(ds_stream stream) {
    DS__ENTER("ds_stream_destroy");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (s->kind != DS__STREAM_NEW) {
        r = ds__fail(DS_ERR_INVALID_VALUE, "the %s stream of %s:%d is not yours to destroy",
                     s->kind == DS__STREAM_LEGACY ? "legacy" : "per-thread",
                     ds__type_name(s->device.type), s->device.index);
    } else {
        int n = atomic_load(&s->owners);
        while (n > 0 && !atomic_compare_exchange_weak(&s->owners, &n, n - 1)) {
        }
        if (n <= 0)
            r = ds__fail(DS_ERR_INVALID_HANDLE, "the stream was destroyed already");
        else if (n == 1) {
            void (*gone_fn)(ds__stream *) = atomic_load(&ds__upper.stream_gone_fn);
            if (gone_fn)
                gone_fn(s);
            if (s->borrowed && !s->base.id)
                s->driver->stream_hide(s->native);
            ds__table_kill(&ds__g.streams, s);
        }
    }
    ds__stream_unpin(s);
    ds__reclaim();
    return r;
}

/* core/stream_sync.h - streams: queries, host waits, names in errors.

   Queries a stream and waits for it on the host (ds__stream_sync). ds__name_object and
   ds__stream_error add an object's label to an error. The ds__sync_* functions report a wait on
   a stream to the sync debug mode.

   Invariants: while a call waits, its hazard pointer keeps the stream from being freed. The
   capture query of the sync debug mode leaves the thread's last error as it was (ds__tls.mute).
   Locks: ds__g.label_lock, only to read the label. No lock is held over a wait; ds__stream_sync
   reclaims afterwards, so its caller holds none.
   Threads: any. */

/* Adds to an error's sentence which object it was about. */
static ds_result ds__name_object(ds_result r, const char *what, const char *label) {
    return r >= 0 || !label ? r : ds__also(r, " (%s \"%s\")", what, label);
}

__attribute__((cold, noinline)) static ds_result ds__stream_error_named(const ds__stream *s,
                                                                        ds_result r) {
    ds__lock_take(&ds__g.label_lock);
    r = ds__name_object(r, "stream", s->label);
    ds__lock_give(&ds__g.label_lock);
    return r;
}

static inline ds_result ds__stream_error(const ds__stream *s, ds_result r) {
    return DS__LIKELY(r >= 0) ? r : ds__stream_error_named(s, r);
}

/* "waits for stream "x" of cpu:0": the label of a stream can change. */
__attribute__((cold, noinline)) static ds_result ds__sync_tell_stream(const ds__stream *s,
                                                                      const char *what) {
    char label[260] = "";
    ds__lock_take(&ds__g.label_lock);
    if (s->label)
        snprintf(label, sizeof label, " \"%s\"", s->label);
    ds__lock_give(&ds__g.label_lock);
    return ds__sync_tell("%s%s of %s:%d", what, label, ds__type_name(s->device.type),
                         s->device.index);
}

__attribute__((cold, noinline)) static ds_result ds__sync_watch_stream(ds_stream stream) {
    ds__stream *s = ds__pin(&ds__g.streams, stream.id);
    /* the call says what is wrong with it */
    ds_result r = s ? ds__sync_tell_stream(s, "waits for the stream") : DS_OK;
    if (s)
        ds__stream_unpin(s);
    return r;
}

/* 1: the stream captures, and takes as a node what would otherwise wait. */
static int ds__sync_is_captured(ds__stream *s) {
    ds_capture_info info;
    if (!atomic_load(&ds__g.capture_count))
        return 0;
    memset(&info, 0, sizeof info);
    ds__tls.mute++;
    ds_result r = s->driver->capture_query(s->native, &info);
    ds__tls.mute--;
    return r < 0 || info.status != DS_CAPTURE_NONE;
}

static inline ds_result ds__stream_sync(ds_stream stream, uint64_t timeout_ns) {
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    ds_result r = s->driver->stream_synchronize(s->native, timeout_ns);
    if (DS__UNLIKELY(r < 0))
        r = ds__stream_error(s, r);
    ds__unpin_inline(&ds__g.streams, s);
    ds__reclaim();
    return r;
}

DSDEF ds_result(ds_stream_query)(ds_stream stream) {
    DS__ENTER("ds_stream_query");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__stream_error(s, s->driver->stream_query(s->native));
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_synchronize)(ds_stream stream) {
    ds_result r = ds__enter_inline("ds_stream_synchronize");
    if (DS__UNLIKELY(ds__sync_watched()) && r == DS_OK)
        r = ds__sync_watch_stream(stream);
    return DS__UNLIKELY(r < 0) ? r : ds__stream_sync(stream, DS__FOREVER);
}

DSDEF ds_result(ds_stream_synchronize_for)(ds_stream stream, uint64_t timeout_ns) {
    DS__ENTER("ds_stream_synchronize_for");
    ds_result r =
        DS__UNLIKELY(ds__sync_watched()) && timeout_ns ? ds__sync_watch_stream(stream) : DS_OK;
    return r < 0 ? r
                 : ds__stream_sync(stream, timeout_ns < DS__FOREVER ? timeout_ns : DS__FOREVER - 1);
}

/* core/stream_default.h - legacy, per-thread and default streams.

   Returns the legacy stream of a device (ds__legacy) or the calling thread's own stream of the
   device (ds__per_thread). ds__default returns the one that the process uses by default.

   Invariants: there is at most one legacy stream for each device, and one per-thread stream for
   each thread and device. Both are created at first use. A legacy stream lives until
   ds_shutdown; a per-thread stream lives until ds__thread_free frees its thread's state.
   Locks: ds__legacy holds ds__g.mutex, also over the driver's stream_create. Nothing is
   reclaimed under the mutex (ds__tls.upper_locked), because ds__legacy may be called under locks
   that reclaiming takes.
   Threads: any. Per-thread streams stand in the state of the calling thread. */

static ds_result ds__legacy(ds_device device, ds_stream *out) {
    ds_stream *slot = &ds__g.legacy[ds__ordinal(device)];
    ds_result r = DS_OK;
    /* made once; a lock is fine on this path, the handle can be kept */
    pthread_mutex_lock(&ds__g.mutex);
    /* nothing is reclaimed under this mutex, which is also taken under locks that this takes */
    ds__tls.upper_locked++;
    if (!slot->id)
        r = ds__stream_new(device, DS__STREAM_LEGACY, 0, 0, NULL, slot);
    ds__tls.upper_locked--;
    if (r == DS_OK)
        *out = *slot;
    pthread_mutex_unlock(&ds__g.mutex);
    return r;
}

static ds_result ds__per_thread(ds_device device, ds_stream *out) {
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    ds_stream *slot = &t->own[ds__ordinal(device)];
    ds_result r =
        slot->id ? DS_OK : ds__stream_new(device, DS__STREAM_PER_THREAD, 0, 0, NULL, slot);
    if (r == DS_OK)
        *out = *slot;
    return r;
}

static ds_result ds__default(ds_device device, ds_stream *out) {
    return ds__g.per_thread_default ? ds__per_thread(device, out) : ds__legacy(device, out);
}

DSDEF ds_result(ds_stream_legacy)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_legacy");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__legacy(device, out);
}

DSDEF ds_result(ds_stream_per_thread)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_per_thread");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__per_thread(device, out);
}

DSDEF ds_result(ds_stream_default)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_default");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__default(device, out);
}

/* core/stream_wrap.h - wrapped native streams: wrap, export, unwrap.

   Wraps a native stream handle (ds_stream_wrap), returns the native handle of a stream
   (ds_stream_export), and gives a native stream back (ds_stream_unwrap).

   Invariants: the native handles 0 and 1 name the legacy stream, 2 names the calling thread's
   own stream. A wrapper of one of them uses its native stream and holds a reference to it
   (s->base). s->borrowed is 1 until the driver has taken a native stream over. Only a stream
   with one owner and a native stream of its own can be unwrapped. The user's release function
   runs once: when the wrapper is freed, or at once if the wrap fails.
   Locks: none of its own; the wrap of a legacy stream takes ds__g.mutex.
   Threads: any. The native handle 2 means another stream on each thread. */

static ds_result ds__refuse_payload(ds_result r, void *user, ds_host_fn dtor_fn);

/* The native handles 0 and 1 name the legacy stream, 2 the calling thread's. */
static ds_result ds__wrap(const ds_stream_native *native, ds_ownership ownership, ds__stream *s) {
    uintptr_t n = (uintptr_t)native->handle;
    s->borrowed = 1; /* until the driver has agreed */
    if (n <= 2) {
        ds_stream base = { 0 };
        DS__REQUIRE(ownership == DS_BORROW, "a default stream cannot be owned");
        ds_result r = n == 2 ? ds__per_thread(s->device, &base) : ds__legacy(s->device, &base);
        if (r < 0)
            return r;
        ds__stream *b = ds__stream_pin(base);
        if (!b)
            return DS_ERR_INVALID_HANDLE;
        s->native = b->native;
        ds__ref(b);
        s->base = base;
        s->flags = b->flags;
        s->of_legacy = n < 2;
        ds__stream_unpin(b);
        return DS_OK;
    }
    ds_result r = s->driver->stream_wrap(s->device.index, native->handle, ownership == DS_OWN,
                                         &s->flags, &s->priority, &s->native);
    if (r < 0)
        return r;
    s->requested = s->priority;
    s->borrowed = ownership != DS_OWN;
    return DS_OK;
}

static ds_result ds__wrap_new(const ds_stream_native *native, ds_ownership ownership,
                              ds_stream *out, void (*release_fn)(void *), void *user) {
    DS__REQUIRE(native && out, "%s is NULL", native ? "out" : "native");
    DS__REQUIRE(native->version == 0, "version %d of the native form is not known",
                native->version);
    DS__REQUIRE(ownership == DS_BORROW || ownership == DS_OWN, "%d is not an ownership",
                (int)ownership);
    ds_device device = native->device;
    DS__RESOLVE(device);
    ds__stream *s = ds__stream_add(device, NULL);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = ds__wrap(native, ownership, s);
    if (r < 0) {
        ds__stream_discard(s);
        return r;
    }
    s->release_fn = release_fn;
    s->user = user;
    out->id = ds__handle(&s->slot);
    return DS_OK;
}

DSDEF ds_result(ds_stream_wrap)(const ds_stream_native *native, ds_ownership ownership,
                                void (*release_fn)(void *user), void *user, ds_stream *out) {
    if (out)
        out->id = 0;
    ds_result r = ds__enter("ds_stream_wrap");
    if (r == DS_OK)
        r = ds__wrap_new(native, ownership, out, release_fn, user);
    return ds__refuse_payload(r, user, release_fn);
}

static ds_result ds__export(ds__stream *s, ds_stream_native *out) {
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    out->device = s->device;
    /* handle 0 */
    if (s->kind == DS__STREAM_LEGACY || s->of_legacy)
        return DS_OK;
    ds_stream own = t->own[ds__ordinal(s->device)];
    if (own.id &&
        ((ds__stream *)(void *)ds__slot_at(&ds__g.streams, (uint32_t)own.id - 1))->native ==
            s->native) {
        out->handle = (void *)(uintptr_t)2;
        return DS_OK;
    }
    return s->driver->stream_native(s->native, &out->handle);
}

DSDEF ds_result(ds_stream_export)(ds_stream stream, ds_stream_native *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_stream_export");
    DS__REQUIRE(out, "out is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__export(s, out);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_unwrap)(ds_stream stream, ds_stream_native *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_stream_unwrap");
    DS__REQUIRE(out, "out is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    int one = 1;
    if (s->kind != DS__STREAM_NEW || s->borrowed)
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the stream does not belong to the handle");
    else if (!atomic_compare_exchange_strong(&s->owners, &one, 0))
        r = ds__fail(DS_ERR_ILLEGAL_STATE, "the stream has %d owners", one);
    if (r == DS_OK && (r = ds__export(s, out)) < 0)
        atomic_store(&s->owners, 1);
    if (r == DS_OK) {
        atomic_store(&s->unwrapped, 1);
        s->driver->stream_unwrap(s->native);
        ds__table_kill(&ds__g.streams, s);
    }
    ds__stream_unpin(s);
    return r;
}

/* The getters: pin, read, unpin. */
#define DS__STREAM_GETTER(name, out, body)                                                  \
    DS__ENTER(name);                                                                        \
    ds__stream *s = ds__stream_pin(stream);                                                 \
    if (!s)                                                                                 \
        return DS_ERR_INVALID_HANDLE;                                                       \
    ds_result r = (out) ? DS_OK                                                             \
                        : ds__stream_error(s, ds__fail(DS_ERR_INVALID_VALUE,                \
                                                       "there is no room for the answer")); \
    if (r == DS_OK) {                                                                       \
        body;                                                                               \
    }                                                                                       \
    ds__stream_unpin(s);                                                                    \
    return r

DSDEF ds_result(ds_stream_id)(ds_stream stream, uint64_t *out) {
    if (out)
        *out = 0;
    DS__STREAM_GETTER("ds_stream_id", out, *out = s->id);
}

/* core/stream_info.h - streams: getters, labels, equality.

   Returns the device, flags, priority and label of a stream, replaces its label, and compares
   two streams (ds_stream_equal).

   Invariants: streams are equal if the driver names the same queue for both, so a wrapper equals
   the stream that it wraps.
   Locks: ds__g.label_lock guards s->label; a reader holds it until the text is copied. No driver
   call or user code runs under it.
   Threads: any; the label may be replaced while other threads read it. ds_stream_set_label
   invokes the range hook on the calling thread, without a lock. */

DSDEF ds_result(ds_stream_device)(ds_stream stream, ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__STREAM_GETTER("ds_stream_device", out, *out = s->device);
}

DSDEF ds_result(ds_stream_flags)(ds_stream stream, unsigned *out) {
    if (out)
        *out = 0;
    DS__STREAM_GETTER("ds_stream_flags", out, *out = s->flags);
}

DSDEF ds_result(ds_stream_priority)(ds_stream stream, int *out_effective, int *out_requested) {
    if (out_effective)
        *out_effective = 0;
    if (out_requested)
        *out_requested = 0;
    DS__STREAM_GETTER("ds_stream_priority", 1, if (out_effective) *out_effective = s->priority;
                      if (out_requested) *out_requested = s->requested);
}

DSDEF ds_result(ds_stream_label)(ds_stream stream, char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__STREAM_GETTER("ds_stream_label", out && size, ds__lock_take(&ds__g.label_lock);
                      snprintf(out, size, "%s", s->label ? s->label : "");
                      ds__lock_give(&ds__g.label_lock));
}

DSDEF ds_result(ds_stream_set_label)(ds_stream stream, const char *label) {
    DS__ENTER("ds_stream_set_label");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    char *copy = label ? ds__copy_text(label, 255) : NULL;
    if (label && !copy) {
        ds__stream_unpin(s);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
    }
    ds__lock_take(&ds__g.label_lock);
    char *former = s->label;
    s->label = copy;
    ds__lock_give(&ds__g.label_lock);
    ds__release(former);
    ds__tell_stream_label(s, label);
    ds__stream_unpin(s);
    return DS_OK;
}

DSDEF int(ds_stream_equal)(ds_stream a, ds_stream b) {
    if (ds__enter("ds_stream_equal") < 0)
        return 0;
    ds__stream *x = ds__pin(&ds__g.streams, a.id);
    ds__stream *y = ds__pin(&ds__g.streams, b.id);
    int equal = x && y && x->driver == y->driver && x->device.index == y->device.index &&
                x->driver->stream_identity(x->native) == y->driver->stream_identity(y->native);
    if (x)
        ds__stream_unpin(x);
    if (y)
        ds__stream_unpin(y);
    return equal;
}

/* core/current_stream.h - current stream of a thread: use, push, pop, scopes.

   Sets and returns the current stream of the calling thread for each device (ds__current,
   ds__use). Pushes and pops streams together with the current device (ds__stream_push,
   ds__stream_pop), with optional waits between the old and the new stream.

   Invariants: a slot of t->current is zero or holds a reference to its stream; zero stands for
   the default stream. Each frame holds references of its own to the streams in it. A push that
   fails leaves the current device and the stack as they were.
   Locks: none of its own; filling an empty slot may take ds__g.mutex (ds__legacy). Waits are
   enqueued without a lock.
   Threads: any. Slots and frames belong to the calling thread. */

/* The thread's current stream of a device, the default one at first; the slot keeps its
   reference. */
static ds_result ds__current(ds__thread *t, ds_device device, ds_stream *out) {
    ds_stream *slot = &t->current[ds__ordinal(device)];
    if (!slot->id) {
        ds_stream s = { 0 };
        ds_result r = ds__default(device, &s);
        if (r < 0)
            return r;
        /* a default stream: it outlives the slot */
        ds__ref(ds__slot_at(&ds__g.streams, (uint32_t)s.id - 1));
        *slot = s;
    }
    *out = *slot;
    return DS_OK;
}

DSDEF ds_result(ds_stream_current)(ds_device device, ds_stream *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_current");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds__thread *t = ds__thread_state();
    return t ? ds__current(t, device, out) : DS_ERR_OUT_OF_MEMORY;
}

static ds_result ds__strict(ds__thread *t, ds__stream *s, unsigned flags) {
    if (!(flags & DS_PUSH_STRICT) ||
        (s->device.type == t->device.type && s->device.index == t->device.index))
        return DS_OK;
    return ds__fail(DS_ERR_DEVICE_MISMATCH, "the stream is on %s:%d, the current device is %s:%d",
                    ds__type_name(s->device.type), s->device.index, ds__type_name(t->device.type),
                    t->device.index);
}

/* Makes a pinned stream current and its device too; the slot takes a reference. *out_previous
   gets the slot's former reference, which the caller drops. */
static ds_result ds__use(ds__thread *t, ds__stream *s, unsigned flags, ds_stream *out_previous) {
    ds_result r = ds__strict(t, s, flags);
    if (r == DS_OK)
        r = ds__current(t, s->device, out_previous);
    if (r < 0)
        return r;
    ds__ref(s);
    t->current[ds__ordinal(s->device)].id = ds__handle(&s->slot);
    t->device = s->device;
    return DS_OK;
}

DSDEF ds_result(ds_stream_use)(ds_stream stream, unsigned flags, ds_stream *out_previous) {
    if (out_previous)
        out_previous->id = 0;
    DS__ENTER("ds_stream_use");
    DS__REQUIRE((flags & ~(unsigned)DS_PUSH_STRICT) == 0, "unknown flags %#x", flags);
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_stream previous = { 0 };
    ds_result r = ds__use(t, s, flags, &previous);
    ds__stream_unpin(s);
    if (r < 0)
        return r;
    if (out_previous)
        *out_previous = previous;
    ds__stream_drop(previous);
    return DS_OK;
}

static ds_result ds__wait_stream(ds_stream stream, ds_stream other);

/* One more reference to a handle in a slot of the thread; a zero handle is allowed. */
static ds_stream ds__stream_keep(ds_stream handle) {
    if (handle.id)
        ds__ref(ds__slot_at(&ds__g.streams, (uint32_t)handle.id - 1));
    return handle;
}

static ds_result ds__stream_push(ds_stream stream, unsigned flags) {
    DS__REQUIRE((flags & ~(unsigned)(DS_PUSH_STRICT | DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK)) == 0,
                "unknown flags %#x", flags);
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    ds__frame *f = ds__frame_add(t);
    if (!f)
        return DS_ERR_OUT_OF_MEMORY;
    f->kind = stream.id ? DS__FRAME_STREAM : DS__FRAME_NOTHING;
    f->flags = flags;
    f->device = t->device;
    ds_stream entry = t->current[ds__ordinal(t->device)];
    if (stream.id) {
        ds__stream *s = ds__stream_pin(stream);
        if (!s)
            return DS_ERR_INVALID_HANDLE;
        ds_stream before;
        ds_result r = ds__strict(t, s, flags);
        if (r == DS_OK && (flags & DS_PUSH_WAIT_PREV)) {
            r = ds__current(t, s->device, &before);
            if (r == DS_OK)
                r = ds__wait_stream(stream, before);
        }
        f->entry = ds__stream_keep(entry); /* before the slot gives its reference away */
        if (r == DS_OK)
            r = ds__use(t, s, flags, &f->previous);
        if (r == DS_OK) {
            ds__ref(s); /* the frame's */
            f->pushed = stream;
            f->stream_device = s->device;
        }
        ds__stream_unpin(s);
        if (r < 0) {
            ds__stream_drop(f->entry);
            return r;
        }
    } else {
        f->entry = ds__stream_keep(entry);
    }
    t->frames++;
    return DS_OK;
}

/* Puts a stream, with the reference that the caller has, back into a slot. */
static void ds__restore(ds__thread *t, ds_device device, ds_stream stream) {
    ds_stream *slot = &t->current[ds__ordinal(device)];
    ds__stream_drop(*slot);
    *slot = stream;
}

static ds_result ds__stream_pop(void) {
    ds__thread *t = ds__thread_state();
    if (!t)
        return DS_ERR_OUT_OF_MEMORY;
    if (t->frames == 0 || t->frame[t->frames - 1].kind == DS__FRAME_DEVICE)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        t->frames ? "the latest push was that of a device" : "nothing was pushed");
    ds__frame f = t->frame[--t->frames];
    ds_result r = DS_OK;
    t->device = f.device;
    if (f.kind == DS__FRAME_STREAM)
        ds__restore(t, f.stream_device, f.previous);
    ds__restore(t, f.device, f.entry);
    if (f.kind == DS__FRAME_STREAM && (f.flags & DS_POP_WAIT_BACK))
        r = ds__wait_stream(t->current[ds__ordinal(f.stream_device)], f.pushed);
    ds__stream_drop(f.pushed);
    return r;
}

DSDEF ds_result(ds_stream_push)(ds_stream stream, unsigned flags) {
    DS__ENTER("ds_stream_push");
    return ds__stream_push(stream, flags);
}

DSDEF ds_result(ds_stream_pop)(void) {
    DS__ENTER("ds_stream_pop");
    return ds__stream_pop();
}

DSDEF ds_scope(ds_stream_scope_enter)(ds_stream stream, unsigned flags) {
    ds_scope scope = { 0, 0 };
    if (ds__enter("ds_stream_scope_enter") == DS_OK && ds__stream_push(stream, flags) == DS_OK)
        scope.pushed = scope.once = 1;
    return scope;
}

DSDEF void(ds_stream_scope_leave)(ds_scope *scope) {
    if (scope->pushed && ds__enter("ds_stream_scope_leave") == DS_OK)
        DS_IGNORE(ds__stream_pop());
    scope->pushed = 0;
}

/* core/submit.h - stream work: operations and their way to the driver.

   Makes an operation with the call site of the current call (ds__op_make) and hands an operation
   to the stream's driver (ds__submit). All stream work of the core goes through ds__submit.

   Invariants: ds__op_make leaves the union `u` uninitialised. ds__submit may return a positive
   result: DS__CHANGED for an operation with DS__OP_OUTSIDE or DS__OP_INSIDE.
   Locks: none. The driver's submit may block if the operation touches pageable memory.
   Threads: any. The caller keeps the stream and the operation's objects by hazard pointers or
   references until ds__submit returns. */

static ds__op ds__op_make(int kind) { /* and flags << 8 */
    ds__op op;
    op.kind = (uint8_t)kind;
    op.flags = (uint8_t)(kind >> 8);
    op.places = 0;
    op.line = (uint32_t)ds__tls.site.line;
    op.file = ds__tls.site.file;
    return op;
}

static inline ds_result ds__submit(ds__stream *s, const ds__op *op) {
    ds_result r = s->driver->submit(s->native, op);
    return DS__LIKELY(r >= 0) ? r : ds__stream_error(s, r);
}

/* core/event.h - events: creation, records, waits of streams.

   Creates and destroys events, records events on streams (ds__record), and makes streams wait
   for events or for other streams (ds__wait_event, ds__wait_stream). An event is bound to the
   device of its first successful record (ds__event_claim, ds__event_settle).

   Invariants: e->device is -1 until a call claims the event for a device. If the call fails and
   no other claim is open, it becomes -1 again. A settled event stays on its device. e->driver is
   set before e->native. A native event lives as long as the event, even if the first record
   failed. A plain wait for an event without a device does nothing.
   Locks: e->bind guards the binding and is held over the driver's event_create, but not over a
   record. ds__event_record_outside holds ds__g.begin over the record; e->bind comes after
   ds__g.begin and after the lock of a graph or executable.
   Threads: any. Records, waits and destruction of one event may run concurrently, because hazard
   pointers protect the event and the stream. ds__event_free runs in ds__reclaim or in
   ds_shutdown. */

static ds__event *ds__event_pin(ds_event handle) {
    ds__event *e = ds__pin(&ds__g.events, handle.id);
    if (DS__UNLIKELY(!e))
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the event was destroyed or never existed"
                                                  : "no event was given (the handle is zero)");
    return e;
}

static inline void ds__event_unpin(ds__event *e) {
    ds__unpin(&ds__g.events, e);
}

static void ds__event_free(void *object) {
    ds__event *e = object;
    void *native = atomic_load(&e->native);
    if (native)
        e->driver->event_destroy(native);
    ds__release(e->label);
}

/* Other processes count on the release of an interprocess event. */
static int ds__event_batched(const void *object) {
    const ds__event *e = object;
    return !(e->flags & DS_EVENT_INTERPROCESS) && !e->imported;
}

static ds_result ds__event_new(unsigned flags, const char *label, ds_event *out) {
    DS__REQUIRE((flags & ~(unsigned)(DS_EVENT_TIMING | DS_EVENT_BLOCKING_WAIT |
                                     DS_EVENT_INTERPROCESS)) == 0,
                "unknown flags %#x", flags);
    DS__REQUIRE((flags & (DS_EVENT_TIMING | DS_EVENT_INTERPROCESS)) !=
                    (DS_EVENT_TIMING | DS_EVENT_INTERPROCESS),
                "an interprocess event cannot have timing");
    char *copy = label ? ds__copy_text(label, 255) : NULL;
    ds__event *e = label && !copy ? NULL : ds__table_add(&ds__g.events);
    if (!e) {
        ds__release(copy);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an event");
    }
    e->flags = flags;
    e->label = copy;
    e->made = ds__tls.site;
    atomic_store(&e->device, -1);
    out->id = ds__handle(&e->slot);
    return DS_OK;
}

DSDEF ds_result(ds_event_create)(unsigned flags, const char *label, ds_event *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_event_create");
    DS__REQUIRE(out, "out is NULL");
    return ds__event_new(flags, label, out);
}

DSDEF ds_result(ds_event_destroy)(ds_event event) {
    DS__ENTER("ds_event_destroy");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    int killed = ds__table_kill(&ds__g.events, e);
    ds__event_unpin(e);
    ds__reclaim();
    return killed ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the event was destroyed already");
}

static int64_t ds__device_key(ds_device d) {
    return (int64_t)d.type << 32 | d.index;
}

/* Binds the event to the device and gives it a native event, unless that is done. With `any` the
   device that it has will do. The event is locked. */
static ds_result ds__event_bind(ds__event *e, const ds__driver *driver, ds_device device, int any) {
    int64_t key = ds__device_key(device);
    int64_t bound = atomic_load(&e->device);
    if (bound == key || (any && bound >= 0))
        return DS_OK;
    if (bound >= 0)
        return ds__fail(
            DS_ERR_DEVICE_MISMATCH,
            "the event belongs to %s:%d, where it was first recorded, the stream to %s:%d",
            ds__type_name((int)(bound >> 32)), (int)(bound & INT_MAX), ds__type_name(device.type),
            device.index);
    void *native = atomic_load(&e->native); /* there is one when a first record has failed */
    if (native && e->driver != driver)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the event was to be recorded on a device of the other driver before");
    ds_result r = driver->event_create(device.index, e->flags, &native);
    if (r < 0)
        return r;
    e->driver = driver;
    atomic_store(&e->native, native);
    atomic_store(&e->device, key);
    return r;
}

/* For a call that makes the event a device's for good if it succeeds: until it says so, or that
   it did not, none takes the event to another device. */
static ds_result ds__event_claim(ds__event *e, const ds__driver *driver, ds_device device,
                                 int any) {
    ds__lock_take(&e->bind);
    ds_result r = ds__event_bind(e, driver, device, any);
    e->claims += r == DS_OK;
    ds__lock_give(&e->bind);
    return r;
}

static void ds__event_settle(ds__event *e, int succeeded) {
    ds__lock_take(&e->bind);
    e->claims--;
    if (succeeded)
        atomic_store(&e->settled, 1);
    else if (!e->claims && !atomic_load(&e->settled))
        atomic_store(&e->device, -1);
    ds__lock_give(&e->bind);
}

/* The first record that succeeds binds the event to its device. */
static inline ds_result ds__record(ds__event *e, ds__stream *s, int kind) {
    int first = !atomic_load_explicit(&e->settled, memory_order_acquire) ||
                atomic_load_explicit(&e->device, memory_order_relaxed) != ds__device_key(s->device);
    ds_result r = DS__UNLIKELY(first) ? ds__event_claim(e, s->driver, s->device, 0) : DS_OK;
    if (DS__LIKELY(r == DS_OK)) {
        ds__op op = ds__op_make(kind);
        op.u.event.event = atomic_load_explicit(&e->native, memory_order_acquire);
        op.u.event.object = e;
        r = ds__submit(s, &op);
        if (DS__UNLIKELY(first))
            ds__event_settle(e, r == DS_OK);
    }
    return ds__name_object(r, "event", e->label);
}

static inline ds_result ds__event_record(ds_event event, ds_stream stream, int kind) {
    ds__event *e = ds__pin_inline(&ds__g.events, event.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!e)) {
        ds__event_pin(event);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    if (DS__UNLIKELY(!s))
        ds__stream_pin(stream);
    ds_result r = s ? ds__record(e, s, kind) : DS_ERR_INVALID_HANDLE;
    if (s)
        ds__unpin_inline(&ds__g.streams, s);
    ds__unpin_inline(&ds__g.events, e);
    return r;
}

/* Records, unless a capture is open somewhere: DS_NOT_READY. To wait for the event afterwards
   harms none that begins meanwhile. */
DS__SEAM static ds_result ds__event_record_outside(ds_event event, ds_stream stream) {
    pthread_mutex_lock(&ds__g.begin);
    ds_result r =
        ds__captures_open() ? DS_NOT_READY : ds__event_record(event, stream, DS__OP_RECORD);
    pthread_mutex_unlock(&ds__g.begin);
    return r;
}

DSDEF ds_result(ds_event_record)(ds_event event, ds_stream stream) {
    ds_result r = ds__enter_inline("ds_event_record");
    return DS__UNLIKELY(r < 0) ? r : ds__event_record(event, stream, DS__OP_RECORD);
}

DSDEF ds_result(ds_event_record_external)(ds_event event, ds_stream stream) {
    DS__ENTER("ds_event_record_external");
    return ds__event_record(event, stream, DS__OP_EXTERNAL_RECORD);
}

DSDEF ds_result(ds_stream_record_new)(ds_stream stream, unsigned flags, ds_event *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_stream_record_new");
    DS__REQUIRE(out, "out is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_event handle = { 0 };
    ds_result r = ds__event_new(flags, NULL, &handle);
    if (r == DS_OK) {
        ds__event *e = ds__event_pin(handle);
        r = e ? ds__record(e, s, DS__OP_RECORD) : DS_ERR_INVALID_HANDLE;
        if (r < 0 && e)
            ds__table_kill(&ds__g.events, e);
        if (e)
            ds__event_unpin(e);
        if (r == DS_OK)
            *out = handle;
    }
    ds__stream_unpin(s);
    return r;
}

static inline ds_result ds__wait_event(ds_stream stream, ds_event event, int kind) {
    ds_result r = DS_OK;
    ds__event *e = ds__pin_inline(&ds__g.events, event.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!e)) {
        ds__event_pin(event);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        r = DS_ERR_INVALID_HANDLE;
    }
    /* its first record may come after the capture */
    int claimed = s && kind == DS__OP_EXTERNAL_WAIT &&
                  !atomic_load_explicit(&e->settled, memory_order_relaxed);
    if (DS__UNLIKELY(claimed))
        claimed = (r = ds__event_claim(e, s->driver, s->device, 1)) == DS_OK;
    int64_t device = atomic_load(&e->device);
    void *native = atomic_load_explicit(&e->native, memory_order_acquire);
    if (s && r == DS_OK && native && device >= 0) {
        ds__op op = ds__op_make(kind);
        op.u.event.event = native;
        op.u.event.object = e;
        r = (int)(device >> 32) == s->device.type
                ? ds__submit(s, &op)
                : ds__fail(DS_ERR_CROSS_DRIVER,
                           "the event and the stream belong to different drivers");
    }
    if (DS__UNLIKELY(claimed))
        ds__event_settle(e, r == DS_OK);
    if (s)
        ds__unpin_inline(&ds__g.streams, s);
    ds__unpin_inline(&ds__g.events, e);
    return r;
}

DSDEF ds_result(ds_stream_wait_event)(ds_stream stream, ds_event event) {
    ds_result r = ds__enter_inline("ds_stream_wait_event");
    return DS__UNLIKELY(r < 0) ? r : ds__wait_event(stream, event, DS__OP_WAIT);
}

DSDEF ds_result(ds_stream_wait_event_external)(ds_stream stream, ds_event event) {
    DS__ENTER("ds_stream_wait_event_external");
    return ds__wait_event(stream, event, DS__OP_EXTERNAL_WAIT);
}

static ds_result ds__wait_stream(ds_stream stream, ds_stream other) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__stream *o = ds__stream_pin(other);
    ds_result r = DS_ERR_INVALID_HANDLE;
    if (o && o->device.type != s->device.type) {
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the streams belong to different drivers");
    } else if (o) {
        ds__op op = ds__op_make(DS__OP_WAIT_STREAM);
        op.u.wait.stream = o->native;
        op.u.wait.upto = 0;
        r = ds__submit(s, &op);
    }
    if (o)
        ds__stream_unpin(o);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_stream_wait_stream)(ds_stream stream, ds_stream other) {
    DS__ENTER("ds_stream_wait_stream");
    return ds__wait_stream(stream, other);
}

/* core/event_sync.h - events: queries, host waits, timing, sharing.

   Queries events, waits for events on the host, measures the time between two events
   (ds__elapsed), and exports and imports interprocess events.

   Invariants: an event without a native event is complete. An imported event is settled on its
   device and cannot be exported again.
   Locks: none of its own; ds_event_export claims the event under e->bind. No lock is held over a
   host wait.
   Threads: any. While a call waits, its hazard pointer keeps the event from being freed. */

static ds_result ds__event_sync(ds_event event, uint64_t timeout_ns) {
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    void *native = atomic_load_explicit(&e->native, memory_order_acquire);
    ds_result r = native ? e->driver->event_synchronize(native, timeout_ns) : DS_OK;
    ds__event_unpin(e);
    ds__reclaim();
    return r;
}

DSDEF ds_result(ds_event_query)(ds_event event) {
    DS__ENTER("ds_event_query");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    void *native = atomic_load_explicit(&e->native, memory_order_acquire);
    ds_result r = native ? e->driver->event_query(native) : DS_OK;
    ds__event_unpin(e);
    return r;
}

__attribute__((cold, noinline)) static ds_result ds__sync_watch_event(ds_event event) {
    ds__event *e = ds__pin(&ds__g.events, event.id);
    ds_result r = !e         ? DS_OK
                  : e->label ? ds__sync_tell("waits for the event \"%s\"", e->label)
                             : ds__sync_tell("waits for an event");
    if (e)
        ds__event_unpin(e);
    return r;
}

DSDEF ds_result(ds_event_synchronize)(ds_event event) {
    DS__ENTER("ds_event_synchronize");
    ds_result r = DS__UNLIKELY(ds__sync_watched()) ? ds__sync_watch_event(event) : DS_OK;
    return r < 0 ? r : ds__event_sync(event, DS__FOREVER);
}

DSDEF ds_result(ds_event_synchronize_for)(ds_event event, uint64_t timeout_ns) {
    DS__ENTER("ds_event_synchronize_for");
    ds_result r =
        DS__UNLIKELY(ds__sync_watched()) && timeout_ns ? ds__sync_watch_event(event) : DS_OK;
    return r < 0 ? r
                 : ds__event_sync(event, timeout_ns < DS__FOREVER ? timeout_ns : DS__FOREVER - 1);
}

/* The checks in torch's order; both events are pinned. */
static ds_result ds__elapsed(ds__event *a, ds__event *b, double *out_ms) {
    if (!(a->flags & DS_EVENT_TIMING) || !(b->flags & DS_EVENT_TIMING))
        return ds__fail(DS_ERR_NO_TIMING, "both events must be created with DS_EVENT_TIMING");
    int64_t da = atomic_load(&a->device);
    int64_t db = atomic_load(&b->device);
    void *na = atomic_load_explicit(&a->native, memory_order_acquire);
    void *nb = atomic_load_explicit(&b->native, memory_order_acquire);
    if (da < 0 || db < 0 || !na || !nb)
        return ds__fail(DS_ERR_NOT_RECORDED, "both events must be recorded first");
    /* from an event to itself: a question that, unlike a query, leaves a capture alone in which
       it was recorded */
    ds_result r = a->driver->event_elapsed(na, na, out_ms);
    if (r == DS_OK)
        r = b->driver->event_elapsed(nb, nb, out_ms);
    *out_ms = 0;
    if (r != DS_OK)
        return r;
    if (da != db)
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "the events were recorded on different devices");
    return a->driver->event_elapsed(na, nb, out_ms);
}

DSDEF ds_result(ds_event_elapsed_ms)(ds_event start, ds_event end, double *out_ms) {
    if (out_ms)
        *out_ms = 0;
    DS__ENTER("ds_event_elapsed_ms");
    DS__REQUIRE(out_ms, "out_ms is NULL");
    ds__event *a = ds__event_pin(start);
    if (!a)
        return DS_ERR_INVALID_HANDLE;
    ds__event *b = ds__event_pin(end);
    ds_result r = b ? ds__elapsed(a, b, out_ms) : DS_ERR_INVALID_HANDLE;
    if (b)
        ds__event_unpin(b);
    ds__event_unpin(a);
    return r;
}

DSDEF ds_result(ds_event_device)(ds_event event, ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_event_device");
    DS__REQUIRE(out, "out is NULL");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    int64_t device = atomic_load(&e->device);
    if (device >= 0) {
        out->type = (int32_t)(device >> 32);
        out->index = (int32_t)(device & INT_MAX);
    }
    ds__event_unpin(e);
    return DS_OK;
}

DSDEF ds_result(ds_event_flags)(ds_event event, unsigned *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_event_flags");
    DS__REQUIRE(out, "out is NULL");
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    *out = e->flags;
    ds__event_unpin(e);
    return DS_OK;
}

DSDEF ds_result(ds_event_export)(ds_event event, ds_ipc_event_handle *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_event_export");
    DS__REQUIRE(out, "out is NULL");
    ds_device device = ds_device_current();
    DS__RESOLVE(device);
    ds__event *e = ds__event_pin(event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (!(e->flags & DS_EVENT_INTERPROCESS))
        r = ds__fail(DS_ERR_INVALID_VALUE, "the event was created without DS_EVENT_INTERPROCESS");
    else if (e->imported)
        r = ds__fail(DS_ERR_INVALID_VALUE,
                     "the event was imported; the process that made it exports it");
    else if ((r = ds__event_claim(e, ds__driver_of(device), device, 1)) == DS_OK) {
        r = e->driver->event_export(atomic_load(&e->native), out->bytes);
        ds__event_settle(e, r == DS_OK);
    }
    ds__event_unpin(e);
    return ds__name_object(r, "event", e->label);
}

/* The device is resolved. */
static ds_result ds__event_open(ds_device device, const unsigned char *handle, ds_event *out) {
    void *native = NULL;
    ds_event made = { 0 };
    ds_result r = ds__driver_of(device)->event_import(device.index, handle, &native);
    if (r < 0)
        return r;
    r = ds__event_new(DS_EVENT_INTERPROCESS, NULL, &made);
    ds__event *e = r == DS_OK ? ds__event_pin(made) : NULL;
    if (!e) {
        ds__driver_of(device)->event_destroy(native);
        return r < 0 ? r : DS_ERR_INVALID_HANDLE;
    }
    e->driver = ds__driver_of(device);
    e->imported = 1;
    atomic_store(&e->settled, 1);
    atomic_store(&e->native, native);
    atomic_store(&e->device, ds__device_key(device));
    ds__event_unpin(e);
    *out = made;
    return DS_OK;
}

DSDEF ds_result(ds_event_import)(ds_device device, const ds_ipc_event_handle *handle,
                                 ds_event *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_event_import");
    DS__REQUIRE(out && handle, "%s is NULL", out ? "handle" : "out");
    DS__RESOLVE(device);
    return ds__event_open(device, handle->bytes, out);
}

/* core/memory_table.h - table of all known memory ranges.

   One sorted table holds all memory that was allocated or registered here, of both drivers. With
   it, copies are checked and classified without a driver call. ds__range_hit finds the range of
   a pointer, ds__range_add and ds__range_remove change the table, and DS__HELD_* marks memory of
   the allocator.

   Invariants: ranges are sorted by address and do not overlap. A range is removed before its
   memory is released: of two threads that free the same pointer, one finds it.
   ds__g.range_version is odd during a change; a reader that met a change looks again. An array
   that became too small is kept until ds_shutdown, because readers may still use it.
   Locks: changes hold ds__g.range_lock, and only the bookkeeping allocator runs under it.
   Readers take no lock.
   Threads: any. The last hits are cached in ds__tls, for one version of the table. A result of
   ds__range_hit is valid until the same thread looks up DS__HITS more ranges. */

typedef struct ds__range {
    _Atomic uintptr_t base;
    _Atomic uintptr_t end;
    _Atomic int kind_device;
} ds__range;

struct ds__ranges {
    ds__ranges *older;
    size_t room;
    ds__range at[];
};

/* Part of a range's kind: it is not the user's to free but the allocator's, and how it goes
   back. */
enum {
    DS__HELD_SPACE = 16,     /* a reservation: what is mapped there, then the addresses */
    DS__HELD_SEGMENT = 32,   /* like the user's */
    DS__HELD_SHARED = 64,    /* other processes may have it */
    DS__HELD_IMPORTED = 128, /* another process's */
    DS__HELD_UPSTREAM = 48,  /* a pool's upstream made it and ends it */
    DS__HELD_ASYNC = 80,     /* in the order of a stream, else like the user's */
    DS__HELD = 240
};

/* Index of the first range that ends after the address. */
static size_t ds__range_after(const ds__ranges *r, size_t count, uintptr_t address) {
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (atomic_load_explicit(&r->at[middle].end, memory_order_acquire) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The range that holds the address; 0: none. Takes no lock: a reader that met a change looks
   again. */
static int ds__range_find(const void *ptr, ds__found *out) {
    uintptr_t address = (uintptr_t)ptr;
    for (;;) {
        uint32_t version = atomic_load_explicit(&ds__g.range_version, memory_order_acquire);
        if (version & 1) {
            ds__pause();
            continue;
        }
        ds__ranges *r = atomic_load_explicit(&ds__g.ranges, memory_order_acquire);
        size_t count = atomic_load_explicit(&ds__g.range_count, memory_order_acquire);
        int found = 0;
        if (r && count <= r->room) {
            size_t i = ds__range_after(r, count, address);
            if (i < count) {
                int kind_device = atomic_load_explicit(&r->at[i].kind_device, memory_order_acquire);
                out->base = atomic_load_explicit(&r->at[i].base, memory_order_acquire);
                out->end = atomic_load_explicit(&r->at[i].end, memory_order_acquire);
                out->kind = (ds_memory_kind)(kind_device & 15);
                out->held = kind_device & DS__HELD;
                out->backend = kind_device >> 8 & 1;
                out->device = kind_device >> 9;
                found = address >= out->base && address < out->end;
            }
        }
        if (atomic_load_explicit(&ds__g.range_version, memory_order_relaxed) == version)
            return found;
    }
}

/* The same with the thread's latest finds tried first; NULL: none. The result is the thread's,
   until it looks again often. */
__attribute__((noinline)) static const ds__found *ds__range_look(const void *ptr) {
    ds__tls_block *t = &ds__tls;
    uint32_t version = atomic_load_explicit(&ds__g.range_version, memory_order_acquire);
    ds__found f;
    if (!ds__range_find(ptr, &f))
        return NULL;
    if (t->hit_version != version)
        memset(t->hit, 0, sizeof t->hit);
    t->hit_version = version; /* if the table has changed since, the next look finds nothing here */
    ds__found *hit = &t->hit[t->hit_next++ % DS__HITS];
    *hit = f;
    return hit;
}

static inline const ds__found *ds__range_hit(const void *ptr) {
    const ds__tls_block *t = &ds__tls;
    if (DS__LIKELY(t->hit_version ==
                   atomic_load_explicit(&ds__g.range_version, memory_order_acquire)))
        for (int i = 0; i < DS__HITS; i++)
            if ((uintptr_t)ptr - t->hit[i].base < t->hit[i].end - t->hit[i].base)
                return &t->hit[i];
    return ds__range_look(ptr);
}

static void ds__range_move(ds__range *to, ds__range *from) {
    atomic_store_explicit(&to->base, atomic_load_explicit(&from->base, memory_order_relaxed),
                          memory_order_release);
    atomic_store_explicit(&to->end, atomic_load_explicit(&from->end, memory_order_relaxed),
                          memory_order_release);
    atomic_store_explicit(&to->kind_device,
                          atomic_load_explicit(&from->kind_device, memory_order_relaxed),
                          memory_order_release);
}

/* Adds a range. DS_ERR_INVALID_VALUE: it touches a known one. No sentence. */
static ds_result ds__range_add(const void *ptr, size_t size, int kind, int backend, int device) {
    uintptr_t base = (uintptr_t)ptr;
    uintptr_t end = base + size;
    ds_result result = DS_OK;
    ds__lock_take(&ds__g.range_lock);
    ds__ranges *r = atomic_load(&ds__g.ranges);
    size_t count = atomic_load(&ds__g.range_count);
    size_t i = r ? ds__range_after(r, count, base) : 0;
    if (r && i < count && atomic_load(&r->at[i].base) < end) {
        result = DS_ERR_INVALID_VALUE;
    } else if (!r || count == r->room) {
        size_t room = r ? 2 * r->room : 64;
        ds__ranges *more = ds__alloc(sizeof *more + room * sizeof more->at[0]);
        if (!more) {
            result = DS_ERR_OUT_OF_MEMORY;
        } else { /* readers may still be in the old one: it is kept until shutdown */
            more->room = room;
            more->older = r;
            for (size_t k = 0; k < count; k++)
                ds__range_move(&more->at[k], &r->at[k]);
            atomic_store_explicit(&ds__g.ranges, more, memory_order_release);
            r = more;
        }
    }
    if (result == DS_OK) {
        atomic_fetch_add(&ds__g.range_version, 1);
        for (size_t k = count; k > i; k--)
            ds__range_move(&r->at[k], &r->at[k - 1]);
        atomic_store(&r->at[i].base, base);
        atomic_store(&r->at[i].end, end);
        atomic_store(&r->at[i].kind_device, kind | backend << 8 | device << 9);
        atomic_store(&ds__g.range_count, count + 1);
        atomic_fetch_add(&ds__g.range_version, 1);
    }
    ds__lock_give(&ds__g.range_lock);
    return result;
}

/* Removes the range of this kind that begins at ptr, for one caller only; 0: there is none. */
static int ds__range_remove(const void *ptr, int kind, ds__found *out) {
    uintptr_t base = (uintptr_t)ptr;
    int found = 0;
    ds__lock_take(&ds__g.range_lock);
    ds__ranges *r = atomic_load(&ds__g.ranges);
    size_t count = atomic_load(&ds__g.range_count);
    size_t i = r ? ds__range_after(r, count, base) : 0;
    if (r && i < count && atomic_load(&r->at[i].base) == base &&
        (atomic_load(&r->at[i].kind_device) & 255) == kind) {
        found = ds__range_find(ptr, out);
        atomic_fetch_add(&ds__g.range_version, 1);
        for (size_t k = i; k + 1 < count; k++)
            ds__range_move(&r->at[k], &r->at[k + 1]);
        atomic_store(&ds__g.range_count, count - 1);
        atomic_fetch_add(&ds__g.range_version, 1);
    }
    ds__lock_give(&ds__g.range_lock);
    return found;
}

/* core/memory.h - memory: look-up, entry into the table, release.

   Answers what is known of a pointer (ds__known, ds__ask), enters new memory into the memory
   table (ds__memory_made), and waits for and releases memory (ds__memory_end).
   ds__memory_end_all releases the remaining memory at shutdown.

   Invariants: memory leaves the table before its release waits, so only one of two concurrent
   releases succeeds. If the wait fails, the memory is entered again and nothing was released.
   ds__ask expects an answer of ds__known in *out and overwrites it only if the CUDA driver is
   there.
   Locks: none is held over a driver call. ds__space_end holds ds__g.mapping_lock to read the
   list of mappings and drops it around each space_unmap.
   Threads: any. ds__memory_end_all expects that no other thread is inside of devstream. */

/* The driver that host memory belongs to: the first that is available. */
static int ds__host_backend(void) {
    return ds__g.driver[0] ? 0 : 1;
}

/* What is known of a pointer; returns 0 when it was not allocated or registered here: then it
   looks like ordinary memory. */
static int ds__known(const void *ptr, ds_pointer_info *out) {
    const ds__found *f = ds__range_hit(ptr);
    out->kind = f ? f->kind : DS_MEMORY_PAGEABLE;
    out->base = f ? (void *)f->base : NULL;
    out->size = f ? f->end - f->base : 0;
    out->device.type = !f || f->kind != DS_MEMORY_DEVICE ? DS_DEVICE_HOST
                       : f->backend                      ? DS_DEVICE_CPU
                                                         : DS_DEVICE_CUDA;
    out->device.index = out->device.type == DS_DEVICE_HOST ? 0 : f->device;
    return f != NULL;
}

/* Memory that others made: only cudart may know it. */
static ds_result ds__ask(const void *ptr, ds_pointer_info *out) {
    return ds__g.driver[0] ? ds__g.driver[0]->pointer_query(ptr, out) : DS_OK;
}

/* Enters new memory into the table, or gives it back. */
static ds_result ds__memory_made(void *ptr, size_t size, int kind, int backend, int device,
                                 void **out) {
    if (ds__range_add(ptr, size, kind, backend, device) == DS_OK) {
        *out = ptr;
        return DS_OK;
    }
    DS_IGNORE(
        ds__g.driver[backend]->memory_release((ds_memory_kind)(kind & 15), device, ptr, size));
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
}

/* Waits for the work that may use what was taken out of the table; when that fails it stands
   there again. */
static ds_result ds__memory_await(void *ptr, int kind, const ds__found *f) {
    ds_result r = DS_OK;
    if (f->kind == DS_MEMORY_DEVICE)
        r = ds__g.driver[f->backend]->memory_wait(f->device);
    else
        for (int b = 0; b < DS_BACKEND_COUNT && r == DS_OK; b++)
            if (ds__g.driver[b])
                r = ds__g.driver[b]->memory_wait(-1);
    /* there is room: it was there before */
    if (r < 0)
        DS_IGNORE(ds__range_add(ptr, f->end - f->base, kind, f->backend, f->device));
    return r;
}

static ds_result ds__memory_gone(void *ptr, const ds__found *f) {
    return ds__g.driver[f->backend]->memory_release(f->kind, f->device, ptr, f->end - f->base);
}

/* Waits for the work that may use the memory, then releases it. The pointer is unknown
   meanwhile, so that of two threads that end it one is refused; if the wait fails nothing was
   released and it is known again. */
static ds_result ds__memory_end(void *ptr, int kind, const char *what) {
    ds__found f;
    if (!ds__range_remove(ptr, kind, &f)) {
        DS__REQUIRE(!ds__range_find(ptr, &f) || !f.held,
                    "the memory at %p belongs to the allocator; use %s", ptr,
                    f.kind == DS_MEMORY_DEVICE ? "ds_mem_free" : "ds_pinned_free");
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not the start of %s", ptr, what);
    }
    ds_result r = ds__memory_await(ptr, kind, &f);
    return r == DS_OK ? ds__memory_gone(ptr, &f) : r;
}

/* Ends a reservation with all that is mapped in it. */
static void ds__space_end(const ds__driver *driver, int device, void *at, size_t size) {
    ds__lock_take(&ds__g.mapping_lock);
    for (size_t i; (i = ds__mapping_after((uintptr_t)at)) < ds__g.mapping_count &&
                   ds__g.mappings[i].at < (uintptr_t)at + size;) {
        ds__mapping m = ds__g.mappings[i];
        ds__lock_give(&ds__g.mapping_lock);
        DS_IGNORE(driver->space_unmap(device, (void *)m.at, m.size));
        ds__lock_take(&ds__g.mapping_lock);
    }
    ds__lock_give(&ds__g.mapping_lock);
    driver->space_release(device, at, size);
}

/* At shutdown: releases what the user left. */
static void ds__memory_end_all(void) {
    ds__ranges *r = atomic_load(&ds__g.ranges);
    size_t count = atomic_load(&ds__g.range_count);
    for (size_t i = 0; r && i < count; i++) {
        int k = atomic_load(&r->at[i].kind_device);
        uintptr_t base = atomic_load(&r->at[i].base);
        size_t size = atomic_load(&r->at[i].end) - base;
        const ds__driver *driver = ds__g.driver[k >> 8 & 1];
        if ((k & DS__HELD) == DS__HELD_UPSTREAM)
            continue;
        if ((k & DS__HELD) == DS__HELD_SPACE)
            ds__space_end(driver, k >> 9, (void *)base, size);
        else if ((k & DS__HELD) == DS__HELD_SHARED)
            driver->share_release(k >> 9, (void *)base, size);
        else if ((k & DS__HELD) == DS__HELD_IMPORTED)
            driver->share_close(k >> 9, (void *)base, size);
        else
            DS_IGNORE(driver->memory_release((ds_memory_kind)(k & 15), k >> 9, (void *)base, size));
    }
    ds__release(ds__g.mappings);
    ds__g.mappings = NULL;
    ds__g.mapping_count = ds__g.mapping_room = 0;
    while (r) {
        ds__ranges *older = r->older;
        ds__release(r);
        r = older;
    }
    atomic_store(&ds__g.ranges, NULL);
    atomic_store(&ds__g.range_count, 0);
    atomic_fetch_add(&ds__g.range_version, 2); /* what threads have found is void */
}

/* Something that is nobody's call, into the log. */
__attribute__((format(printf, 1, 2))) static void ds__warn(const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ds__log(DS_LOG_WARNING, 0, text);
}

/* core/segment.h - memory of the allocator from the drivers.

   Gets memory from a driver for the allocator and gives it back. The kinds are reserved address
   space (ds__space_reserve), device and pinned segments (ds__segment_alloc), memory of the
   driver's own allocator (ds__async_alloc), and segments shared between processes.

   Policy: memory of the allocator stands in the memory table like the user's memory, so that
   copies know it. Only the allocator can give it back. Devices are resolved ones. Open captures
   forbid neither allocation nor release, because a capture may need memory. Only ds__async_alloc
   and ds__async_free are refused on a stream that captures.

   Invariants: all memory handed out here stands in the memory table with a DS__HELD_* mark; if
   it cannot be entered, it is given back. A release that fails in its wait leaves the memory as
   it was. After the wait, ds__segment_free and ds__pinned_segment_free report success even if
   the driver reports an error; the error is logged.
   Locks: none but those inside of the memory table and of ds__space_end; none is held over a
   driver call.
   Threads: any; of two threads that give the same memory back, only one reaches the driver. */

static int ds__backend_of(ds_device device) {
    return device.type == DS_DEVICE_CUDA ? 0 : 1;
}

/* Address space for memory that the entries space_map and space_unmap of the device's driver
   bring and take. *out_page: in which unit. */
DS__SEAM static ds_result ds__space_reserve(ds_device device, size_t size, size_t *out_page,
                                            void **out) {
    const ds__driver *driver = ds__driver_of(device);
    ds_result r = driver->space_reserve(device.index, size, out_page, out);
    if (r < 0) {
        *out = NULL;
        return r;
    }
    size = (size + *out_page - 1) / *out_page * *out_page;
    if (ds__range_add(*out, size, DS_MEMORY_DEVICE | DS__HELD_SPACE, ds__backend_of(device),
                      device.index) == DS_OK)
        return DS_OK;
    driver->space_release(device.index, *out, size);
    *out = NULL;
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes of address space",
                    size);
}

/* What is still mapped there is unmapped: no work uses it any more. */
DS__SEAM static void ds__space_release(ds_device device, void *at, size_t size) {
    ds__found f;
    (void)size; /* as it was reserved, or rounded up */
    if (ds__range_remove(at, DS_MEMORY_DEVICE | DS__HELD_SPACE, &f))
        ds__space_end(ds__driver_of(device), device.index, at, f.end - f.base);
}

/* Device memory as of ds_alloc. */
DS__SEAM static ds_result ds__segment_alloc(ds_device device, size_t size, void **out) {
    *out = NULL;
    ds__tls.quiet++;
    ds_result r = ds__driver_of(device)->memory_alloc(device.index, size, out);
    if (r == DS_OK)
        r = ds__memory_made(*out, size, DS_MEMORY_DEVICE | DS__HELD_SEGMENT, ds__backend_of(device),
                            device.index, out);
    ds__tls.quiet--;
    if (r < 0)
        *out = NULL;
    return r;
}

/* Pinned host memory as of ds_host_alloc. */
DS__SEAM static ds_result ds__pinned_segment_alloc(size_t size, void **out) {
    int b = ds__host_backend();
    *out = NULL;
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_report");
    ds__tls.quiet++;
    ds_result r = ds__g.driver[b]->host_alloc(size, out);
    if (r == DS_OK)
        r = ds__memory_made(*out, size, DS_MEMORY_PINNED | DS__HELD_SEGMENT, b, 0, out);
    ds__tls.quiet--;
    if (r < 0)
        *out = NULL;
    return r;
}

/* Waits like ds_free and ds_host_free, unless the caller knows that no work uses the memory
   (idle). When that fails the memory stays; after it the memory is gone, whatever the driver
   says, and nobody may use it again. */
static ds_result ds__segment_end(void *ptr, int kind, int idle) {
    ds__found f;
    DS__REQUIRE(ds__range_remove(ptr, kind | DS__HELD_SEGMENT, &f),
                "%p is not the start of a segment", ptr);
    ds__tls.quiet++;
    ds_result r = idle ? DS_OK : ds__memory_await(ptr, kind | DS__HELD_SEGMENT, &f);
    ds__tls.mute++;
    if (r == DS_OK && ds__memory_gone(ptr, &f) < 0)
        ds__warn("giving %zu bytes at %p back: %s", f.end - f.base, ptr, ds__tls.aside);
    ds__tls.mute--;
    ds__tls.quiet--;
    return r;
}

DS__SEAM static ds_result ds__segment_free(ds_device device, void *ptr, size_t size, int idle) {
    (void)device;
    (void)size;
    return ds__segment_end(ptr, DS_MEMORY_DEVICE, idle);
}

DS__SEAM static ds_result ds__pinned_segment_free(void *ptr, size_t size, int idle) {
    (void)size;
    return ds__segment_end(ptr, DS_MEMORY_PINNED, idle);
}

/* Memory of the driver's own allocator, in the order of the stream. */
DS__SEAM static ds_result ds__async_alloc(ds__stream *s, size_t size, void **out) {
    void *ptr = NULL;
    *out = NULL;
    ds_result r = s->driver->async_alloc(s->device.index, s->native, size, &ptr);
    if (r < 0)
        return r;
    if (ds__range_add(ptr, size, DS_MEMORY_DEVICE | DS__HELD_ASYNC, ds__backend_of(s->device),
                      s->device.index) == DS_OK) {
        *out = ptr;
        return DS_OK;
    }
    if (s->driver->async_free(s->device.index, s->native, ptr, size) < 0)
        DS_IGNORE(s->driver->memory_release(DS_MEMORY_DEVICE, s->device.index, ptr, size));
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
}

/* When it fails the memory is still there. */
DS__SEAM static ds_result ds__async_free(ds__stream *s, void *ptr) {
    ds__found f;
    DS__REQUIRE(ds__range_remove(ptr, DS_MEMORY_DEVICE | DS__HELD_ASYNC, &f),
                "%p is not the start of memory of the driver's allocator", ptr);
    ds_result r = f.backend == ds__backend_of(s->device)
                      ? s->driver->async_free(f.device, s->native, ptr, f.end - f.base)
                      : ds__fail(DS_ERR_CROSS_DRIVER,
                                 "the memory and the stream belong to different drivers");
    /* there is room */
    if (r < 0)
        DS_IGNORE(ds__range_add(ptr, f.end - f.base, DS_MEMORY_DEVICE | DS__HELD_ASYNC, f.backend,
                                f.device));
    return r;
}

/* Memory that other processes can open. */
DS__SEAM static ds_result ds__shared_segment_alloc(ds_device device, size_t size, void **out) {
    const ds__driver *driver = ds__driver_of(device);
    *out = NULL;
    ds__tls.quiet++;
    ds_result r = driver->share_alloc(device.index, size, out);
    if (r == DS_OK && ds__range_add(*out, size, DS_MEMORY_DEVICE | DS__HELD_SHARED,
                                    ds__backend_of(device), device.index) != DS_OK) {
        driver->share_release(device.index, *out, size);
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
    }
    ds__tls.quiet--;
    if (r < 0)
        *out = NULL;
    return r;
}

/* As ds__segment_free. */
DS__SEAM static ds_result ds__shared_segment_free(ds_device device, void *ptr, size_t size,
                                                  int idle) {
    ds__found f;
    (void)size;
    DS__REQUIRE(ds__range_remove(ptr, DS_MEMORY_DEVICE | DS__HELD_SHARED, &f),
                "%p is not the start of a segment for several processes", ptr);
    ds__tls.quiet++;
    ds_result r = idle ? DS_OK : ds__driver_of(device)->memory_wait(device.index);
    if (r < 0)
        DS_IGNORE(ds__range_add(ptr, f.end - f.base, DS_MEMORY_DEVICE | DS__HELD_SHARED, f.backend,
                                f.device));
    else
        ds__driver_of(device)->share_release(device.index, ptr, f.end - f.base);
    ds__tls.quiet--;
    return r;
}

/* A segment of another process, by the 64 bytes of share_export. */
DS__SEAM static ds_result ds__shared_segment_open(ds_device device, const unsigned char *handle,
                                                  size_t size, void **out) {
    const ds__driver *driver = ds__driver_of(device);
    *out = NULL;
    ds__tls.quiet++;
    ds_result r = driver->share_import(device.index, handle, size, out);
    if (r == DS_OK && ds__range_add(*out, size, DS_MEMORY_DEVICE | DS__HELD_IMPORTED,
                                    ds__backend_of(device), device.index) != DS_OK) {
        driver->share_close(device.index, *out, size);
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to keep track of %zu bytes", size);
    }
    ds__tls.quiet--;
    if (r < 0)
        *out = NULL;
    return r;
}

DS__SEAM static void ds__shared_segment_close(ds_device device, void *ptr) {
    ds__found f;
    if (!ds__range_remove(ptr, DS_MEMORY_DEVICE | DS__HELD_IMPORTED, &f))
        return;
    ds__tls.quiet++;
    ds__driver_of(device)->share_close(device.index, ptr, f.end - f.base);
    ds__tls.quiet--;
}

/* core/user_memory.h - memory of the user: allocation, registration, queries.

   Allocates and frees device memory and pinned host memory, registers host memory, and answers
   where a pointer is.

   Invariants: all memory that these functions hand out or register stands in the memory table,
   and size 0 gives NULL. Memory with a DS__HELD_* mark cannot be freed here. ds_host_register
   enters the range before it calls the driver, so overlapping registrations are refused.
   Locks: none. ds_free, ds_host_free and ds_host_unregister wait for the device in the driver,
   without a lock.
   Threads: any; of two threads that free the same pointer, one gets an error.
   ds_device_of_scope_enter changes the current device of the calling thread. */

/* A free that waits; the pointer may be none that can be freed, which the free says. */
static ds_result ds__sync_watch_free(const void *ptr, int kind) {
    ds__found f;
    if (DS__LIKELY(!ds__sync_watched()) || !ds__range_find(ptr, &f) || f.base != (uintptr_t)ptr ||
        (int)f.kind != kind || f.held)
        return DS_OK;
    if (kind == DS_MEMORY_DEVICE)
        return ds__sync_tell("waits for all work of %s:%d", f.backend ? "cpu" : "cuda", f.device);
    return ds__sync_tell("waits for all work of all devices");
}

static ds_result ds__alloc_device(ds_device device, size_t size, void **out) {
    void *ptr = NULL;
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->memory_alloc(device.index, size, &ptr));
    return r < 0 ? r
                 : ds__memory_made(ptr, size, DS_MEMORY_DEVICE,
                                   device.type == DS_DEVICE_CUDA ? 0 : 1, device.index, out);
}

DSDEF ds_result(ds_alloc)(ds_device device, size_t size, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_alloc");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return size ? ds__alloc_device(device, size, out) : DS_OK;
}

DSDEF ds_result(ds_alloc_pitch)(ds_device device, size_t width, size_t height, void **out,
                                size_t *out_pitch) {
    if (out)
        *out = NULL;
    if (out_pitch)
        *out_pitch = 0;
    DS__ENTER("ds_alloc_pitch");
    DS__REQUIRE(out && out_pitch, "%s is NULL", out ? "out_pitch" : "out");
    DS__REQUIRE(width <= SIZE_MAX - 511, "a row of %zu bytes is too large", width);
    size_t pitch = (width + 511) & ~(size_t)511;
    DS__REQUIRE(pitch == 0 || height <= SIZE_MAX / pitch, "%zu rows of %zu bytes are too large",
                height, width);
    DS__RESOLVE(device);
    ds_result r = width && height ? ds__alloc_device(device, pitch * height, out) : DS_OK;
    if (r == DS_OK)
        *out_pitch = pitch;
    return r;
}

DSDEF ds_result(ds_free)(void *ptr) {
    DS__ENTER("ds_free");
    ds_result r = ptr ? ds__sync_watch_free(ptr, DS_MEMORY_DEVICE) : DS_OK;
    return ptr && r == DS_OK ? ds__memory_end(ptr, DS_MEMORY_DEVICE, "an allocation of ds_alloc")
                             : r;
}

DSDEF ds_result(ds_host_alloc)(size_t size, void **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_host_alloc");
    DS__REQUIRE(out, "out is NULL");
    int b = ds__host_backend();
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_report");
    void *ptr = NULL;
    ds_result r = size ? ds__g.driver[b]->host_alloc(size, &ptr) : DS_OK;
    return r < 0 || !size ? r : ds__memory_made(ptr, size, DS_MEMORY_PINNED, b, 0, out);
}

DSDEF ds_result(ds_host_free)(void *ptr) {
    DS__ENTER("ds_host_free");
    ds_result r = ptr ? ds__sync_watch_free(ptr, DS_MEMORY_PINNED) : DS_OK;
    return ptr && r == DS_OK
               ? ds__memory_end(ptr, DS_MEMORY_PINNED, "an allocation of ds_host_alloc")
               : r;
}

DSDEF ds_result(ds_host_register)(void *ptr, size_t size) {
    DS__ENTER("ds_host_register");
    DS__REQUIRE(ptr && size, "there is nothing to register");
    DS__REQUIRE(size <= UINTPTR_MAX - (uintptr_t)ptr, "%zu bytes reach beyond the address space",
                size);
    int b = ds__host_backend();
    if (!ds__g.driver[b])
        return ds__fail(DS_ERR_NO_DEVICE, "no driver is available; see ds_backend_report");
    /* first: it sees what touches known memory */
    ds_result r = ds__range_add(ptr, size, DS_MEMORY_REGISTERED, b, 0);
    if (r == DS_ERR_INVALID_VALUE)
        return ds__fail(r, "the range touches memory that is registered or allocated already");
    if (r < 0)
        return ds__fail(r, "no memory to register a range");
    ds__found f;
    r = ds__g.driver[b]->host_register(ptr, size);
    if (r < 0)
        (void)ds__range_remove(ptr, DS_MEMORY_REGISTERED, &f);
    return r;
}

DSDEF ds_result(ds_host_unregister)(void *ptr) {
    DS__ENTER("ds_host_unregister");
    ds_result r = ds__sync_watch_free(ptr, DS_MEMORY_REGISTERED);
    return r < 0 ? r : ds__memory_end(ptr, DS_MEMORY_REGISTERED, "a registered range");
}

DSDEF ds_result(ds_pointer_query)(const void *ptr, ds_pointer_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_pointer_query");
    DS__REQUIRE(out, "out is NULL");
    return ds__known(ptr, out) ? DS_OK : ds__ask(ptr, out);
}

static ds_result ds__device_of(const void *ptr, ds_device *out) {
    ds_pointer_info info;
    ds_result r = ds__known(ptr, &info) ? DS_OK : ds__ask(ptr, &info);
    if (r == DS_OK)
        *out = info.device;
    return r;
}

DSDEF ds_result(ds_device_of)(const void *ptr, ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_device_of");
    DS__REQUIRE(out, "out is NULL");
    return ds__device_of(ptr, out);
}

DSDEF ds_scope(ds_device_of_scope_enter)(const void *ptr) {
    ds_scope scope = { 0, 0 };
    ds_device device = { 0, 0 };
    if (ds__enter("ds_device_of_scope_enter") < 0 || ds__device_of(ptr, &device) < 0)
        return scope;
    if (device.type == DS_DEVICE_HOST)
        device.type = DS_DEVICE_CURRENT;
    if (ds__device_push(device) == DS_OK)
        scope.pushed = scope.once = 1;
    return scope;
}

/* core/copy.h - copies and fills.

   Checks the operands of copies and fills against the memory table and builds the operation
   (ds__copy_op, ds__fill_op). ds__copy_plain is the fast path for known memory; ds__copy_between
   handles all other copies. A copy between the drivers on a CPU stream runs as a kernel of one
   item (ds__copy_on_host).

   Invariants: an operand in known memory stays inside of its allocation. op->places says where
   each operand is. Only for a CUDA stream may a copy's operand stay unknown, and cudart decides
   then. DS__OP_BLOCKS is set if an operand is known to be pageable.
   Locks: none, and the memory table is read without one. core/graph_add.h calls ds__copy_op and
   ds__fill_op under a graph's lock; they call the driver's device_peer and pointer_query.
   Threads: any for the public functions. ds__copy_item runs where the CPU driver runs kernels,
   on a worker or a waiting thread, and calls the CUDA driver there. */

/* Bytes from the first byte of the first row to the last of the last. 0: it does not fit into a
   size_t. */
static size_t ds__span(size_t pitch, size_t width, size_t height) {
    size_t span;
    return __builtin_mul_overflow(height - 1, pitch, &span) ||
                   __builtin_add_overflow(span, width, &span)
               ? 0
               : span;
}

/* Looks the range up and checks that it stays inside of its allocation. */
static ds_result ds__operand(const void *ptr, size_t span, const char *what, ds_pointer_info *out,
                             int *known) {
    DS__REQUIRE(ptr, "%s is NULL", what);
    DS__REQUIRE(span <= UINTPTR_MAX - (uintptr_t)ptr,
                "%s: %zu bytes reach beyond the address space", what, span);
    *known = ds__known(ptr, out);
    size_t offset = *known ? (size_t)((uintptr_t)ptr - (uintptr_t)out->base) : 0;
    DS__REQUIRE(!*known || span <= out->size - offset,
                "%s: %zu bytes at offset %zu leave an allocation of %zu bytes", what, span, offset,
                out->size);
    return DS_OK;
}

/* Where the operand is, as the driver sees it. */
static unsigned ds__place(const ds__driver *driver, const ds_pointer_info *p, int known,
                          unsigned flags) {
    if (!known)
        return DS__AT_UNKNOWN;
    if (p->kind == DS_MEMORY_DEVICE)
        return p->device.type == (int32_t)driver->type ? DS__AT_DEVICE + (unsigned)p->device.index
                                                       : DS__AT_OTHER;
    return p->kind != DS_MEMORY_PAGEABLE ? DS__AT_PINNED
           : flags & DS_COPY_HOST_STABLE ? DS__AT_STABLE
                                         : DS__AT_PAGEABLE;
}

static int ds__on_gpu(const ds_pointer_info *p) {
    return p->kind == DS_MEMORY_DEVICE && p->device.type == DS_DEVICE_CUDA;
}

/* A staged copy: neither device reaches the other. */
static ds_result ds__needs_staging(const ds__driver *driver, const ds_pointer_info *dst,
                                   const ds_pointer_info *src, int *out) {
    *out = 0;
    if (dst->kind != DS_MEMORY_DEVICE || src->kind != DS_MEMORY_DEVICE ||
        dst->device.type != (int32_t)driver->type || src->device.type != (int32_t)driver->type ||
        dst->device.index == src->device.index)
        return DS_OK;
    int reach = 0;
    ds_result r = driver->device_peer(dst->device.index, src->device.index, &reach);
    if (r == DS_OK && !reach)
        r = driver->device_peer(src->device.index, dst->device.index, &reach);
    *out = !reach;
    return r;
}

/* A copy of a GPU's memory on a stream of the CPU driver: a kernel of one item, which fails the
   device as any other. */
static int ds__copy_item(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    return ds__g.driver[0]->copy_now(args) < 0;
}

static ds__kernel ds__copy_kernel = { .cpu_fn = ds__copy_item,
                                      .args_size = sizeof(ds__op),
                                      .grain = SIZE_MAX,
                                      .name = "copy of a GPU's memory",
                                      .ours = 1 };

static ds_result ds__copy_on_host(ds__stream *s, const ds__op *copy) {
    ds__op op = ds__op_make(DS__OP_KERNEL);
    op.u.kernel.kernel = &ds__copy_kernel;
    op.u.kernel.items = 1;
    op.u.kernel.args_size = sizeof *copy;
    op.u.kernel.args = copy;
    op.u.kernel.grid = NULL;
    ds_result r = ds__submit(s, &op);
    return r == DS_OK && (copy->flags & DS__OP_BLOCKS)
               ? ds__stream_error(s, s->driver->stream_synchronize(s->native, DS__FOREVER))
               : r;
}

/* Fills the operation of a copy, as a stream of the driver's has it, or says what is wrong. The
   devices, when given, are checked. */
static ds_result ds__copy_op(const ds__driver *driver, ds__op *op, void *dst, size_t dst_pitch,
                             const void *src, size_t src_pitch, size_t width, size_t height,
                             const ds_device *dst_device, const ds_device *src_device,
                             unsigned flags) {
    ds_pointer_info to;
    ds_pointer_info from;
    int to_known;
    int from_known;
    int staged = 0;
    size_t dst_span = ds__span(dst_pitch, width, height);
    size_t src_span = ds__span(src_pitch, width, height);
    DS__REQUIRE(dst_span && src_span, "the copy is larger than the address space");
    ds_result r = ds__operand(dst, dst_span, "dst", &to, &to_known);
    if (r == DS_OK)
        r = ds__operand(src, src_span, "src", &from, &from_known);
    /* Between a GPU's own memory and what others made cudart decides; else it must be asked. */
    if (!ds__g.driver[0] || dst_device || flags || ds__sync_watched() ||
        driver->type != DS_DEVICE_CUDA || !(ds__on_gpu(&to) || ds__on_gpu(&from))) {
        if (r == DS_OK && !to_known) {
            r = ds__ask(dst, &to);
            to_known = 1;
        }
        if (r == DS_OK && !from_known) {
            r = ds__ask(src, &from);
            from_known = 1;
        }
    }
    if (r < 0)
        return r;
    if ((dst_device &&
         (to.device.type != dst_device->type || to.device.index != dst_device->index)) ||
        (src_device &&
         (from.device.type != src_device->type || from.device.index != src_device->index)))
        return ds__fail(DS_ERR_DEVICE_MISMATCH, "dst is on %s:%d and src on %s:%d",
                        ds__type_name(to.device.type), to.device.index,
                        ds__type_name(from.device.type), from.device.index);
    if ((r = ds__needs_staging(driver, &to, &from, &staged)) < 0)
        return r;
    int blocks = (to_known && to.kind == DS_MEMORY_PAGEABLE) ||
                 (from_known && from.kind == DS_MEMORY_PAGEABLE);
    int rows = dst_pitch != width || src_pitch != width; /* else it is one row */
    op->flags = (uint8_t)((staged ? DS__OP_STAGED : 0u) | (blocks ? DS__OP_BLOCKS : 0u));
    op->places = (uint16_t)(ds__place(driver, &to, to_known, flags) << DS__OP_DST |
                            ds__place(driver, &from, from_known, flags) << DS__OP_SRC);
    op->u.copy.dst = dst;
    op->u.copy.src = src;
    op->u.copy.dst_pitch = dst_pitch;
    op->u.copy.src_pitch = src_pitch;
    op->u.copy.width = rows ? width : width * height;
    op->u.copy.height = rows ? height : 1;
    return DS_OK;
}

/* 1: one of the operands is memory of the other driver's devices. */
static int ds__copy_crosses(const ds__op *op) {
    return ds__place_of(op, DS__OP_DST) == DS__AT_OTHER ||
           ds__place_of(op, DS__OP_SRC) == DS__AT_OTHER;
}

static ds_result ds__copy_between(ds__stream *s, void *dst, size_t dst_pitch, const void *src,
                                  size_t src_pitch, size_t width, size_t height,
                                  const ds_device *dst_device, const ds_device *src_device,
                                  unsigned flags) {
    ds__op op = ds__op_make(DS__OP_COPY);
    ds_result r = ds__copy_op(s->driver, &op, dst, dst_pitch, src, src_pitch, width, height,
                              dst_device, src_device, flags);
    if (r == DS_OK && DS__UNLIKELY(op.flags & DS__OP_BLOCKS) && ds__sync_watched() &&
        !ds__sync_is_captured(s))
        r = ds__sync_tell_stream(s, "waits, since it touches pageable memory, for the stream");
    if (r < 0)
        return r;
    return s->device.type == DS_DEVICE_CPU && ds__copy_crosses(&op) ? ds__copy_on_host(s, &op)
                                                                    : ds__submit(s, &op);
}

/* Where memory that is known lies, as a stream of the backend sees it. */
static inline unsigned ds__place_known(int backend, const ds__found *f) {
    return f->kind != DS_MEMORY_DEVICE ? DS__AT_PINNED
           : f->backend == backend     ? DS__AT_DEVICE + (unsigned)f->device
                                       : DS__AT_OTHER;
}

/* The usual copy, between memory that is known, on at most one device, which is of the stream's
   driver: a tenth of the work of ds__copy_between, which has the other cases and the sentences.
   0: not that. */
static inline int ds__copy_plain(ds__stream *s, void *dst, const void *src, size_t size,
                                 ds_result *out) {
    const ds__found *to = ds__range_hit(dst);
    if (DS__UNLIKELY(!to || size > to->end - (uintptr_t)dst))
        return 0;
    unsigned to_place = ds__place_known(s->device.type == DS_DEVICE_CUDA ? 0 : 1, to);
    const ds__found *from = ds__range_hit(src); /* may take the place of what was found before */
    if (DS__UNLIKELY(!from || size > from->end - (uintptr_t)src))
        return 0;
    unsigned from_place = ds__place_known(s->device.type == DS_DEVICE_CUDA ? 0 : 1, from);
    if (to_place == DS__AT_OTHER || from_place == DS__AT_OTHER)
        return 0;
    if (to_place != from_place && to_place >= DS__AT_DEVICE && from_place >= DS__AT_DEVICE)
        return 0;
    ds__op op = ds__op_make(DS__OP_COPY);
    op.places = (uint16_t)(to_place << DS__OP_DST | from_place << DS__OP_SRC);
    op.u.copy.dst = dst;
    op.u.copy.src = src;
    op.u.copy.dst_pitch = op.u.copy.src_pitch = op.u.copy.width = size;
    op.u.copy.height = 1;
    *out = ds__submit(s, &op);
    return 1;
}

DSDEF ds_result(ds_copy)(void *dst, const void *src, size_t size, ds_stream stream) {
    ds_result r = ds__enter_inline("ds_copy");
    if (DS__UNLIKELY(r < 0))
        return r;
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    if (DS__LIKELY(size > 0) && !ds__copy_plain(s, dst, src, size, &r))
        r = ds__copy_between(s, dst, size, src, size, size, 1, NULL, NULL, 0);
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

DSDEF ds_result(ds_copy_with)(void *dst, const void *src, size_t size, unsigned flags,
                              ds_stream stream) {
    DS__ENTER("ds_copy_with");
    DS__REQUIRE((flags & ~(unsigned)DS_COPY_HOST_STABLE) == 0, "unknown flags %#x", flags);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r =
        size ? ds__copy_between(s, dst, size, src, size, size, 1, NULL, NULL, flags) : DS_OK;
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_copy_2d)(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                            size_t width, size_t height, ds_stream stream) {
    DS__ENTER("ds_copy_2d");
    DS__REQUIRE(dst_pitch >= width && src_pitch >= width,
                "a pitch is smaller than the width of %zu bytes", width);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = width && height ? ds__copy_between(s, dst, dst_pitch, src, src_pitch, width,
                                                     height, NULL, NULL, 0)
                                  : DS_OK;
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_copy_peer)(void *dst, ds_device dst_device, const void *src,
                              ds_device src_device, size_t size, ds_stream stream) {
    DS__ENTER("ds_copy_peer");
    DS__RESOLVE(dst_device);
    DS__RESOLVE(src_device);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r =
        size ? ds__copy_between(s, dst, size, src, size, size, 1, &dst_device, &src_device, 0)
             : DS_OK;
    ds__stream_unpin(s);
    return r;
}

/* Fills the operation of a fill, as a stream of the driver's has it, or says what is wrong. */
static ds_result ds__fill_op(const ds__driver *driver, ds__op *op, void *ptr, size_t pitch,
                             uint32_t value, size_t value_size, size_t width, size_t height,
                             unsigned flags) {
    DS__REQUIRE(value_size == 1 || value_size == 2 || value_size == 4,
                "a value of %zu bytes is not 1, 2 or 4", value_size);
    /* a division takes longer than all the rest */
    DS__REQUIRE(width <= SIZE_MAX >> (value_size >> 1),
                "%zu elements are larger than the address space", width);
    DS__REQUIRE(height <= 1 || (pitch >= width * value_size && (pitch & (value_size - 1)) == 0),
                "the pitch %zu is too small or not a multiple of %zu", pitch, value_size);
    DS__REQUIRE(((uintptr_t)ptr & (value_size - 1)) == 0, "%p is not a multiple of %zu", ptr,
                value_size);
    ds_pointer_info to;
    int known = 0;
    size_t span = width && height ? ds__span(pitch, width * value_size, height) : 1;
    if (!width || !height)
        return DS_OK;
    ds_result r = DS__LIKELY(span)
                      ? ds__operand(ptr, span, "ptr", &to, &known)
                      : ds__fail(DS_ERR_INVALID_VALUE, "the fill is larger than the address space");
    if (r == DS_OK && !known)
        r = ds__ask(ptr, &to);
    if (r < 0)
        return r;
    if (to.kind == DS_MEMORY_DEVICE && to.device.type != (int32_t)driver->type)
        return ds__fail(
            DS_ERR_CROSS_DRIVER, "the memory is on %s:%d, the work for devices of type %s",
            ds__type_name(to.device.type), to.device.index, ds__type_name((int)driver->type));
    int rows = pitch != width * value_size;
    op->u.fill.dst = ptr;
    op->u.fill.pitch = pitch;
    op->u.fill.value_size = value_size;
    op->u.fill.width = rows ? width : width * height;
    op->u.fill.height = rows ? height : 1;
    op->u.fill.value = value;
    op->flags = to.kind == DS_MEMORY_PAGEABLE ? DS__OP_BLOCKS : 0;
    op->places = (uint16_t)(ds__place(driver, &to, 1, flags) << DS__OP_DST);
    return DS_OK;
}

static ds_result ds__fill_rows(ds_stream stream, void *ptr, size_t pitch, uint32_t value,
                               size_t value_size, size_t width, size_t height) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__op op = ds__op_make(DS__OP_FILL);
    ds_result r = ds__fill_op(s->driver, &op, ptr, pitch, value, value_size, width, height, 0);
    if (r == DS_OK && DS__UNLIKELY(op.flags & DS__OP_BLOCKS) && ds__sync_watched() &&
        !ds__sync_is_captured(s))
        r = ds__sync_tell_stream(s, "waits, since it touches pageable memory, for the stream");
    if (r == DS_OK && width && height)
        r = ds__submit(s, &op);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_fill)(void *ptr, uint32_t value, size_t value_size, size_t count,
                         ds_stream stream) {
    DS__ENTER("ds_fill");
    return ds__fill_rows(stream, ptr, count * (value_size <= 4 ? value_size : 0), value, value_size,
                         count, 1);
}

DSDEF ds_result(ds_fill_2d)(void *ptr, size_t pitch, uint32_t value, size_t value_size,
                            size_t width, size_t height, ds_stream stream) {
    DS__ENTER("ds_fill_2d");
    return ds__fill_rows(stream, ptr, pitch, value, value_size, width, height);
}

/* core/host_func.h - host functions and callbacks.

   Enqueues functions of the user that run on the host in the order of a stream
   (ds_launch_host_func, ds_add_callback). ds__refuse_payload ends the payload of a call that was
   refused, also for graph nodes and wrapped streams.

   Invariants: the destructor of a payload runs exactly once. If the call succeeded, the driver
   or the graph runs it, else ds__refuse_payload before the call returns. While the destructor
   runs, ds__tls.in_callback is set, so calls to devstream are refused.
   Locks: none. ds__refuse_payload expects no lock from its caller, since it runs user code.
   Threads: any for the calls. The enqueued function runs later, on a thread that the driver
   chooses. */

static ds_result ds__host_op(int kind, ds_stream stream, ds_host_fn fn, ds_callback_fn callback,
                             void *user, ds_host_fn dtor_fn) {
    DS__REQUIRE(fn || callback, "the function is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__op op = ds__op_make(kind);
    op.u.host.fn = fn;
    op.u.host.callback = callback;
    op.u.host.user = user;
    op.u.host.dtor_fn = dtor_fn;
    op.u.host.stream = stream.id;
    ds_result r = ds__submit(s, &op);
    ds__stream_unpin(s);
    return r;
}

/* The payload's destructor runs exactly once, so it runs here when the call was refused. */
static ds_result ds__refuse_payload(ds_result r, void *user, ds_host_fn dtor_fn) {
    if (r >= 0 || !dtor_fn)
        return r;
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    dtor_fn(user);
    ds__tls.in_callback = outer;
    return r;
}

DSDEF ds_result(ds_launch_host_func)(ds_stream stream, ds_host_fn fn, void *user,
                                     ds_host_fn dtor_fn) {
    ds_result r = ds__enter("ds_launch_host_func");
    if (r == DS_OK)
        r = ds__host_op(DS__OP_HOST, stream, fn, NULL, user, dtor_fn);
    return ds__refuse_payload(r, user, dtor_fn);
}

DSDEF ds_result(ds_add_callback)(ds_stream stream, ds_callback_fn fn, void *user,
                                 ds_host_fn dtor_fn) {
    ds_result r = ds__enter("ds_add_callback");
    if (r == DS_OK)
        r = ds__host_op(DS__OP_CALLBACK, stream, NULL, fn, user, dtor_fn);
    return ds__refuse_payload(r, user, dtor_fn);
}

/* core/kernel.h - kernels: creation, loading, launches.

   Creates kernels from descriptions (ds__kernel_check, ds__kernel_new), loads them on devices,
   launches them on streams (ds__launch), and destroys them.

   Invariants: a description is checked once, at creation; name and parameters are copied.
   Offsets of the parameters "first" and "count" are 0, because they are not in the argument
   struct. Launches hold no reference. A destroyed kernel is freed only after all work has
   finished that was pending when no call could launch it any more (ds__kernel_may_free).
   Locks: none; the driver's kernel_load and submit are called without a lock.
   Threads: any; launches, loads and the destruction of one kernel may run concurrently. */

static void ds__kernel_free(void *object) {
    ds__kernel *k = object;
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b])
            ds__g.driver[b]->kernel_destroy(k);
    ds__release((void *)(uintptr_t)k->name);
    ds__release(k->params);
}

static ds_result ds__kernel_check(const ds_kernel_desc *d) {
    DS__REQUIRE(d && d->name && *d->name, "a kernel needs a desc with a name");
    DS__REQUIRE(d->cpu_fn || d->cuda.image || d->cuda.native_fn,
                "kernel %s has neither a CPU nor a CUDA form", d->name);
    DS__REQUIRE(d->args_size <= DS_KERNEL_MAX_ARGS,
                "kernel %s: %zu bytes of arguments are more than %d", d->name, d->args_size,
                DS_KERNEL_MAX_ARGS);
    DS__REQUIRE(d->params || !d->param_count, "kernel %s: params is NULL", d->name);
    DS__REQUIRE(d->param_count <= DS_KERNEL_MAX_PARAMS,
                "kernel %s: %zu parameters are more than %d", d->name, d->param_count,
                DS_KERNEL_MAX_PARAMS);
    DS__REQUIRE(!d->cuda.image || !d->cuda.native_fn,
                "kernel %s has both an image and a native function", d->name);
    DS__REQUIRE(!d->cuda.image || d->cuda.entry,
                "kernel %s: the image needs the name of the function", d->name);
    for (size_t i = 0; i < d->param_count; i++) {
        const ds_param *p = &d->params[i];
        DS__REQUIRE((unsigned)p->kind <= DS_PARAM_COUNT, "kernel %s: parameter %zu has no kind",
                    d->name, i);
        if (p->kind == DS_PARAM_FIRST || p->kind == DS_PARAM_COUNT) {
            DS__REQUIRE(p->size == 4 || p->size == 8,
                        "kernel %s: parameter %zu, a number of items, is not 4 or 8 bytes", d->name,
                        i);
            continue;
        }
        DS__REQUIRE(p->size > 0 && p->size <= d->args_size && p->offset <= d->args_size - p->size,
                    "kernel %s: parameter %zu is outside of the %zu bytes of arguments", d->name, i,
                    d->args_size);
        DS__REQUIRE(p->kind == DS_PARAM_VALUE || p->size == sizeof(void *),
                    "kernel %s: parameter %zu is a pointer of %zu bytes", d->name, i, p->size);
    }
    return DS_OK;
}

static ds_result ds__kernel_new(const ds_kernel_desc *desc, ds_kernel *out) {
    out->id = 0;
    ds_result r = ds__kernel_check(desc);
    if (r < 0)
        return r;
    ds__kernel *k = ds__table_add(&ds__g.kernels);
    if (!k)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for kernel %s", desc->name);
    k->cpu_fn = desc->cpu_fn;
    k->bytes_fn = desc->bytes_fn;
    k->args_size = desc->args_size;
    k->grain = desc->grain;
    k->name = ds__copy_text(desc->name, 255);
    k->param_count = desc->param_count;
    k->cuda = desc->cuda;
    k->made = ds__tls.site;
    if (desc->param_count)
        k->params = ds__alloc(desc->param_count * sizeof *k->params);
    if (!k->name || (desc->param_count && !k->params)) {
        ds__table_kill(&ds__g.kernels, k);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for kernel %s", desc->name);
    }
    for (size_t i = 0; i < desc->param_count; i++) {
        k->params[i] = desc->params[i];
        /* it is not in the struct */
        if (desc->params[i].kind >= DS_PARAM_FIRST)
            k->params[i].offset = 0;
    }
    out->id = ds__handle(&k->slot);
    return DS_OK;
}

DSDEF ds_result(ds_kernel_create)(const ds_kernel_desc *desc, ds_kernel *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_kernel_create");
    DS__REQUIRE(out, "out is NULL");
    ds__reclaim();
    return ds__kernel_new(desc, out);
}

/* Nobody is inside of the destroyed kernel any more: it goes when what was pending by now has
   been passed. */
static int ds__kernel_may_free(void *object) {
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if (ds__g.driver[b] && !ds__g.driver[b]->passed(&((ds__kernel *)object)->mark))
            return 0;
    return 1;
}

DSDEF ds_result(ds_kernel_load)(ds_kernel kernel, ds_device device) {
    DS__ENTER("ds_kernel_load");
    DS__RESOLVE(device);
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    if (!k)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the kernel was destroyed or never existed");
    ds_result r = ds__driver_of(device)->kernel_load(device.index, k);
    ds__unpin(&ds__g.kernels, k);
    return r;
}

DSDEF ds_result(ds_kernel_destroy)(ds_kernel kernel) {
    DS__ENTER("ds_kernel_destroy");
    ds__kernel *k = ds__pin(&ds__g.kernels, kernel.id);
    if (!k)
        return ds__fail(DS_ERR_INVALID_HANDLE, "the kernel was destroyed or never existed");
    int killed = ds__table_kill(&ds__g.kernels, k);
    ds__unpin(&ds__g.kernels, k);
    ds__reclaim();
    return killed ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the kernel was destroyed already");
}

static ds_result ds__launch(ds_kernel kernel, size_t items, const ds_grid *grid, const void *args,
                            size_t args_size, ds_stream stream) {
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__kernel *k = ds__pin_inline(&ds__g.kernels, kernel.id);
    ds_result r = DS_OK;
    if (DS__UNLIKELY(!k)) {
        r = ds__fail(DS_ERR_INVALID_HANDLE, kernel.id ? "the kernel was destroyed or never existed"
                                                      : "no kernel was given (the handle is zero)");
    } else if (DS__UNLIKELY(args_size != k->args_size || (args_size && !args))) {
        r = ds__fail(DS_ERR_INVALID_VALUE, "kernel %s takes %zu bytes of arguments, not %zu at %p",
                     k->name, k->args_size, args_size, args);
    } else if (items) {
        ds__op op = ds__op_make(DS__OP_KERNEL);
        op.u.kernel.kernel = k;
        op.u.kernel.items = items;
        op.u.kernel.args_size = args_size;
        op.u.kernel.args = args;
        op.u.kernel.grid = grid;
        r = ds__submit(s, &op);
    }
    if (DS__LIKELY(k != NULL))
        ds__unpin_inline(&ds__g.kernels, k);
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

DSDEF ds_result(ds_launch)(ds_kernel kernel, size_t items, const void *args, size_t args_size,
                           ds_stream stream) {
    ds_result r = ds__enter_inline("ds_launch");
    return DS__UNLIKELY(r < 0) ? r : ds__launch(kernel, items, NULL, args, args_size, stream);
}

static ds_result ds__grid_items(const ds_grid *grid, size_t *out) {
    size_t items = 1;
    for (int i = 0; i < 6; i++) {
        size_t n = i < 3 ? grid->grid[i] : grid->block[i - 3];
        if (n == 0 && i > 0)
            n = 1;
        DS__REQUIRE(n == 0 || items <= SIZE_MAX / n,
                    "the grid has more threads than a size_t counts");
        items *= n;
    }
    *out = items;
    return DS_OK;
}

DSDEF ds_result(ds_launch_grid)(ds_kernel kernel, const ds_grid *grid, const void *args,
                                size_t args_size, ds_stream stream) {
    DS__ENTER("ds_launch_grid");
    DS__REQUIRE(grid, "grid is NULL");
    size_t items = 0;
    ds_result r = ds__grid_items(grid, &items);
    return r < 0 ? r : ds__launch(kernel, items, grid, args, args_size, stream);
}

/* core/graph.h - graphs and executables: look-up, locks, creation, clones.

   Looks up and locks graphs and executables (ds__graph_take, ds__exec_take), converts node
   handles to indices (ds__node_index), and creates, clones and destroys graphs. The nodes are in
   base/graph_body.h.

   Invariants: a taken graph or executable has a hazard pointer and is locked until
   ds__graph_give or ds__exec_give. A body belongs to one graph, executable or child node. A node
   handle is the serial of its body and the index + 1. While g->capturing is not 0, a change of
   the nodes also needs the capture lock (ds__graph_share).
   Locks: an executable's lock, then a graph's lock, then ds__g.capture_lock. Two graph locks are
   never held together. The driver's graph_clone runs under the graph's lock. The user's
   destructors do not: ds__reclaim runs before a lock is taken or after it is given back.
   Threads: any; calls with the same graph run one after the other. ds__graph_free and
   ds__exec_free run in ds__reclaim or in ds_shutdown. */

static void ds__graph_free(void *object) {
    ds__graph *g = object;
    if (g->body)
        ds__body_free(g->body);
    ds__release(g->label);
}

static void ds__exec_free(void *object) {
    ds__exec *x = object;
    if (x->native)
        x->driver->exec_destroy(x->native);
    if (x->body)
        ds__body_free(x->body);
    ds__release(x->label);
}

/* Pinned and locked; NULL: the sentence is set. */
static ds__graph *ds__graph_take(ds_graph handle) {
    ds__graph *g = ds__pin(&ds__g.graphs, handle.id);
    if (!g) {
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the graph was destroyed or never existed"
                                                  : "no graph was given (the handle is zero)");
        return NULL;
    }
    ds__lock_take(&g->lock);
    return g;
}

static ds_result ds__graph_give(ds__graph *g, ds_result r) {
    ds__lock_give(&g->lock);
    r = ds__name_object(r, "graph", g->label);
    ds__unpin(&ds__g.graphs, g);
    return r;
}

static ds__exec *ds__exec_take(ds_graph_exec handle) {
    ds__exec *x = ds__pin(&ds__g.execs, handle.id);
    if (DS__UNLIKELY(!x)) {
        ds__fail(DS_ERR_INVALID_HANDLE, handle.id ? "the executable was destroyed or never existed"
                                                  : "no executable was given (the handle is zero)");
        return NULL;
    }
    ds__lock_take(&x->lock);
    return x;
}

static ds_result ds__exec_give(ds__exec *x, ds_result r) {
    ds__lock_give(&x->lock);
    if (DS__UNLIKELY(r < 0))
        ds__name_object(r, "executable", x->label);
    ds__unpin(&ds__g.execs, x);
    return r;
}

/* A capture may be adding to the graph: what changes its nodes then holds the capture lock, too. */
static int ds__graph_share(ds__graph *g) {
    int shared = atomic_load(&g->capturing) != 0;
    if (!shared)
        return 0;
    ds__lock_take(&ds__g.capture_lock);
    return ++ds__tls.capture_locked;
}

static void ds__graph_unshare(int shared) {
    if (!shared)
        return;
    ds__tls.capture_locked--;
    ds__lock_give(&ds__g.capture_lock);
}

/* The sentence for what must wait until the capture is over that makes the graph. */
static ds_result ds__being_captured(const ds__graph *g) {
    ds_result r = DS_ERR_ILLEGAL_STATE;
    ds__lock_take(&ds__g.capture_lock);
    ds__capture *c = ds__g.captures;
    while (c && c->body != g->body)
        c = c->next;
    if (c)
        ds__capture_fail(r, c, 0, "a capture makes the graph, end that first");
    else
        ds__fail(r, "a capture that begins or ends in this moment makes the graph");
    ds__lock_give(&ds__g.capture_lock);
    return r;
}

static ds_graph_node ds__node_handle(const ds__body *b, uint32_t index) {
    ds_graph_node n = { (uint64_t)b->serial << 32 | (index + 1u) };
    return n;
}

/* The index of a node of this body. */
static ds_result ds__node_index(const ds__body *b, ds_graph_node node, uint32_t *out) {
    uint32_t index = (uint32_t)node.id - 1;
    DS__REQUIRE(node.id, "no node was given (the handle is zero)");
    DS__REQUIRE(node.id >> 32 == b->serial, "the node belongs to another graph");
    DS__REQUIRE(index < b->count, "the graph has no such node");
    *out = index;
    return DS_OK;
}

/* A new graph object around the body, which is its own from now on, also when this fails. */
static ds__graph *ds__graph_add(ds__body *body, const char *label) {
    ds__graph *g = ds__table_add(&ds__g.graphs);
    if (!g) {
        ds__body_free(body);
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a graph");
        return NULL;
    }
    g->body = body;
    g->made = ds__tls.site;
    if (!label || (g->label = ds__copy_text(label, 255)))
        return g;
    ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
    ds__table_kill(&ds__g.graphs, g);
    return NULL;
}

DSDEF ds_result(ds_graph_create)(const ds_graph_desc *desc, ds_graph *out) {
    static const ds_graph_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_create");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    ds_device device = desc->device;
    DS__RESOLVE(device);
    ds__reclaim();
    ds__body *b = ds__body_new(ds__driver_of(device), device);
    if (!b)
        return DS_ERR_OUT_OF_MEMORY;
    ds_result r = b->driver->graph_create(b);
    if (r < 0) {
        ds__body_free(b);
        return r;
    }
    ds__graph *g = ds__graph_add(b, desc->label);
    if (!g)
        return DS_ERR_OUT_OF_MEMORY;
    out->id = ds__handle(&g->slot);
    return DS_OK;
}

DSDEF ds_result(ds_graph_destroy)(ds_graph graph) {
    DS__ENTER("ds_graph_destroy");
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (atomic_load(&g->capturing))
        r = ds__being_captured(g);
    else if (!ds__table_kill(&ds__g.graphs, g))
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the graph was destroyed already");
    r = ds__graph_give(g, r);
    ds__reclaim();
    return r;
}

/* A copy of the body with the driver's part. */
static ds_result ds__body_clone(ds__body *from, ds__body **out) {
    ds__body *to = ds__body_copy(from, 0);
    ds_result r = to ? from->driver->graph_clone(from, to) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0 && to)
        ds__body_free(to);
    *out = r < 0 ? NULL : to;
    return r;
}

DSDEF ds_result(ds_graph_clone)(ds_graph graph, ds_graph *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_clone");
    DS__REQUIRE(out, "out is NULL");
    ds__reclaim(); /* never under a lock: the user's destructors may run */
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (atomic_load(&g->capturing))
        r = ds__being_captured(g);
    ds__body *b = NULL;
    if (r == DS_OK)
        r = ds__body_clone(g->body, &b);
    ds__graph *clone = b ? ds__graph_add(b, g->label) : NULL;
    if (clone)
        out->id = ds__handle(&clone->slot);
    else if (r == DS_OK)
        r = DS_ERR_OUT_OF_MEMORY;
    return ds__graph_give(g, r);
}

DSDEF ds_result(ds_graph_find_in_clone)(ds_graph clone, ds_graph_node node, ds_graph_node *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_find_in_clone");
    DS__REQUIRE(out, "out is NULL");
    ds__graph *g = ds__graph_take(clone);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    uint32_t index = (uint32_t)node.id - 1;
    ds_result r = DS_OK;
    if (!node.id || node.id >> 32 != g->body->origin || index >= g->body->count)
        r = ds__fail(DS_ERR_INVALID_VALUE,
                     "the graph was not cloned from the one that has the node");
    else
        *out = ds__node_handle(g->body, index);
    return ds__graph_give(g, r);
}

/* core/graph_add.h - graphs: nodes by hand, edges, list of nodes.

   Makes a node of a description (ds__node_of_desc) and appends it to a graph (ds_graph_add).
   Adds edges between nodes (ds_graph_add_edges) and returns the nodes of a graph
   (ds_graph_get_nodes).

   Invariants: a graph has no cycle, and a node depends on another one at most once. A call adds
   its node, or all of its edges, or nothing. The payload of a refused host node is ended by
   ds__refuse_payload, without a lock.
   Locks: the graph's lock, and ds__g.capture_lock inside of it while a capture adds to the graph
   (ds__graph_share). A child graph is copied under its own lock, before the parent's is taken.
   ds__node_of_desc also runs under an executable's lock. Under these locks run the driver's
   kernel_load, event_create (inside of e->bind), device_peer and pointer_query. The driver's
   graph_add and graph_edges may also run under the capture lock.
   Threads: any. */

/* The parts of a description. Each fills an operation that ds__node_make takes copies from; what
   it pins is *pinned, to be unpinned then. */
static ds_result ds__desc_kernel(const ds__body *b, const ds_node_desc *d, ds__op *op,
                                 ds_device *device, void **pinned) {
    const ds_kernel_node *k = &d->u.kernel;
    *device = d->device.type == DS_DEVICE_CURRENT ? b->device : d->device;
    DS__RESOLVE(*device);
    if (device->type != b->device.type)
        return ds__fail(DS_ERR_CROSS_DRIVER,
                        "the node is for %s:%d, the graph for devices of type %s",
                        ds__type_name(device->type), device->index, ds__type_name(b->device.type));
    ds__kernel *kernel = *pinned = ds__pin(&ds__g.kernels, k->kernel.id);
    if (!kernel)
        return ds__fail(DS_ERR_INVALID_HANDLE, k->kernel.id
                                                   ? "the kernel was destroyed or never existed"
                                                   : "no kernel was given (the handle is zero)");
    DS__REQUIRE(k->args_size == kernel->args_size && (k->args || !k->args_size),
                "kernel %s takes %zu bytes of arguments, not %zu at %p", kernel->name,
                kernel->args_size, k->args_size, k->args);
    size_t items = k->items;
    if (k->grid) {
        ds_result r = ds__grid_items(k->grid, &items);
        if (r < 0)
            return r;
    }
    DS__REQUIRE(items > 0, "kernel %s: a node needs at least one item", kernel->name);
    op->u.kernel.kernel = kernel;
    op->u.kernel.items = items;
    op->u.kernel.args_size = k->args_size;
    op->u.kernel.args = k->args;
    op->u.kernel.grid = k->grid;
    return b->driver->kernel_load(device->index, kernel);
}

static ds_result ds__desc_event(const ds__body *b, const ds_node_desc *d, ds__op *op,
                                ds_device *device, void **pinned) {
    if (d->device.type != DS_DEVICE_CURRENT)
        *device = d->device;
    DS__RESOLVE(*device);
    ds__event *e = *pinned = ds__event_pin(d->u.event);
    if (!e)
        return DS_ERR_INVALID_HANDLE;
    int64_t bound = atomic_load(&e->device);
    ds_result r = DS_OK;
    if (device->type != b->device.type || (bound >= 0 && (int)(bound >> 32) != b->device.type))
        r = ds__fail(DS_ERR_CROSS_DRIVER, "the event and the graph belong to different drivers");
    else if ((r = ds__event_claim(e, b->driver, *device, d->kind != DS_NODE_EVENT_RECORD)) == DS_OK)
        ds__event_settle(e, 1); /* it stays there, whatever becomes of a first record */
    op->u.event.event = atomic_load_explicit(&e->native, memory_order_acquire);
    op->u.event.object = e;
    return r;
}

/* A copy of the graph that is to be a child, with the driver's part. Before the parent is
   locked, so that two locks are never held. */
static ds_result ds__child_copy(const ds_node_desc *d, ds__body **out) {
    *out = NULL;
    if (!d || d->kind != DS_NODE_CHILD)
        return DS_OK;
    ds__graph *g = ds__graph_take(d->u.child);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    return ds__graph_give(g, atomic_load(&g->capturing) ? ds__being_captured(g)
                                                        : ds__body_clone(g->body, out));
}

/* Checks the description and makes a node of it. child: of ds__child_copy, taken if *child
   becomes NULL. The payload of a node that is not taken is ended by who gave it. */
static ds_result ds__node_of_desc(const ds__body *b, const ds_node_desc *d, ds__body **child,
                                  ds__node **out) {
    static const uint16_t kinds[] = { DS__OP_NOTHING, DS__OP_KERNEL, DS__OP_COPY, DS__OP_FILL,
                                      DS__OP_HOST,    DS__OP_RECORD, DS__OP_WAIT, DS__OP_GRAPH };
    *out = NULL;
    DS__REQUIRE(d, "desc is NULL");
    DS__REQUIRE((unsigned)d->kind < sizeof kinds / sizeof kinds[0],
                "%d is not a kind of node that can be made by hand", (int)d->kind);
    ds__op op = ds__op_make(kinds[d->kind]);
    ds_device device = b->device;
    ds_result r = DS_OK;
    void *pinned = NULL;
    ds__table *table = &ds__g.kernels;
    memset(&op.u, 0, sizeof op.u);
    switch (d->kind) {
    case DS_NODE_KERNEL:
        r = ds__desc_kernel(b, d, &op, &device, &pinned);
        break;
    case DS_NODE_COPY: {
        const ds_copy_node *c = &d->u.copy;
        size_t height = c->height ? c->height : 1;
        size_t dst_pitch = height > 1 ? c->dst_pitch : c->width;
        size_t src_pitch = height > 1 ? c->src_pitch : c->width;
        if (!c->width || dst_pitch < c->width || src_pitch < c->width)
            r = ds__fail(DS_ERR_INVALID_VALUE,
                         "a copy of %zu rows of %zu bytes with pitches %zu and %zu", height,
                         c->width, dst_pitch, src_pitch);
        else
            r = ds__copy_op(b->driver, &op, c->dst, dst_pitch, c->src, src_pitch, c->width, height,
                            NULL, NULL, DS_COPY_HOST_STABLE);
        if (r == DS_OK && ds__copy_crosses(&op))
            r = ds__fail(DS_ERR_CROSS_DRIVER,
                         "a graph cannot copy between devices of different drivers");
        break;
    }
    case DS_NODE_FILL: {
        const ds_fill_node *f = &d->u.fill;
        size_t height = f->height ? f->height : 1;
        if (!f->width)
            r = ds__fail(DS_ERR_INVALID_VALUE, "a fill of no elements");
        else
            r = ds__fill_op(b->driver, &op, f->ptr,
                            height > 1 ? f->pitch : f->width * f->value_size, f->value,
                            f->value_size, f->width, height, DS_COPY_HOST_STABLE);
        break;
    }
    case DS_NODE_HOST:
        if (!d->u.host.fn)
            r = ds__fail(DS_ERR_INVALID_VALUE, "the function is NULL");
        op.u.host.fn = d->u.host.fn;
        op.u.host.user = d->u.host.user;
        op.u.host.dtor_fn = d->u.host.dtor_fn;
        break;
    case DS_NODE_EVENT_RECORD:
    case DS_NODE_EVENT_WAIT:
        table = &ds__g.events;
        r = ds__desc_event(b, d, &op, &device, &pinned);
        break;
    case DS_NODE_CHILD:
        if ((*child)->driver->type != b->driver->type)
            r = ds__fail(DS_ERR_CROSS_DRIVER, "the child graph is of another driver");
        op.flags = DS__OP_GIVEN;
        op.u.graph.body = *child;
        break;
    case DS_NODE_EMPTY:
    case DS_NODE_NATIVE:
        break;
    }
    ds__node *n = r == DS_OK ? ds__node_make(&op, device, d->priority) : NULL;
    if (r == DS_OK && !n)
        r = DS_ERR_OUT_OF_MEMORY;
    if (n && n->child)
        *child = NULL;
    if (n && d->label && !(n->label = ds__copy_text(d->label, 255))) {
        ds__node_discard(n);
        n = NULL;
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a label");
    }
    if (pinned)
        ds__unpin(table, pinned);
    *out = n;
    return r;
}

static ds_result ds__graph_append(ds__graph *g, const ds_node_desc *desc, ds__body **child,
                                  const ds_graph_node *deps, size_t count, ds_graph_node *out) {
    ds__body *b = g->body;
    ds__node *n = NULL;
    uint32_t *list = ds__alloc((count + 1) * sizeof *list);
    int shared = ds__graph_share(g);
    unsigned char *seen = list ? ds__alloc(b->count + 1u) : NULL;
    ds_result r =
        seen ? DS_OK : ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for %zu dependencies", count);
    for (size_t i = 0; i < count && r == DS_OK; i++) {
        r = ds__node_index(b, deps[i], &list[i]);
        if (r == DS_OK && seen[list[i]]++)
            r = ds__fail(DS_ERR_INVALID_VALUE, "dependency %zu is there twice", i);
    }
    ds__graph_unshare(shared);
    ds__release(seen);
    if (r == DS_OK)
        r = ds__node_of_desc(b, desc, child, &n);
    if (r == DS_OK) {
        shared = ds__graph_share(g);
        r = ds__body_append(b, n, list, count);
        if (r == DS_OK && (r = b->driver->graph_add(b, b->count - 1)) < 0)
            b->count--;
        if (r == DS_OK)
            *out = ds__node_handle(b, b->count - 1);
        ds__graph_unshare(shared);
        if (r < 0)
            ds__node_discard(n);
    }
    ds__release(list);
    return r;
}

DSDEF ds_result(ds_graph_add)(ds_graph graph, const ds_node_desc *desc,
                              const ds_graph_node *dependencies, size_t count, ds_graph_node *out) {
    ds_graph_node node = { 0 };
    ds__body *child = NULL;
    if (out)
        out->id = 0;
    ds_result r = ds__enter("ds_graph_add");
    if (r == DS_OK && count && !dependencies)
        r = ds__fail(DS_ERR_INVALID_VALUE, "dependencies is NULL");
    if (r == DS_OK)
        r = ds__child_copy(desc, &child);
    ds__graph *g = r == DS_OK ? ds__graph_take(graph) : NULL;
    if (r == DS_OK)
        r = g ? ds__graph_give(g, ds__graph_append(g, desc, &child, dependencies, count, &node))
              : DS_ERR_INVALID_HANDLE;
    if (child)
        ds__body_free(child);
    if (r == DS_OK && out)
        *out = node;
    return desc && desc->kind == DS_NODE_HOST
               ? ds__refuse_payload(r, desc->u.host.user, desc->u.host.dtor_fn)
               : r;
}

/* One edge; the body's lock is held. */
static ds_result ds__edge_check(const ds__body *b, uint32_t from, uint32_t to) {
    char a[160];
    char c[160];
    DS__REQUIRE(from != to, "%s cannot depend on itself", ds__node_print(b, from, a, sizeof a));
    DS__REQUIRE(!ds__node_depends(b->node[to], from), "%s depends on %s already",
                ds__node_print(b, to, a, sizeof a), ds__node_print(b, from, c, sizeof c));
    unsigned char *mark = ds__alloc(b->count);
    if (!mark || !ds__body_ancestors(b, &from, 1, mark)) {
        ds__release(mark);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to look for circles");
    }
    int circle = mark[to];
    ds__release(mark);
    DS__REQUIRE(!circle, "%s cannot depend on %s, which depends on it",
                ds__node_print(b, to, a, sizeof a), ds__node_print(b, from, c, sizeof c));
    return DS_OK;
}

static ds_result ds__edges_add(ds__body *b, const ds_graph_node *from, const ds_graph_node *to,
                               size_t count) {
    ds_result r = DS_OK;
    size_t done = 0;
    for (; done < count && r == DS_OK; done++) {
        uint32_t f = 0;
        uint32_t t = 0;
        r = ds__node_index(b, from[done], &f);
        if (r == DS_OK)
            r = ds__node_index(b, to[done], &t);
        if (r == DS_OK)
            r = ds__edge_check(b, f, t);
        if (r == DS_OK && !ds__node_depend(b->node[t], f))
            r = DS_ERR_OUT_OF_MEMORY;
        if (r < 0) {
            r = ds__also(r, " (pair %zu)", done);
            break;
        }
    }
    /* all of them are right */
    if (r == DS_OK && count)
        r = b->driver->graph_edges(b, from, to, count);
    /* each was its node's last */
    while (r < 0 && done)
        b->node[(uint32_t)to[--done].id - 1]->dep_count--;
    return r;
}

DSDEF ds_result(ds_graph_add_edges)(ds_graph graph, const ds_graph_node *from,
                                    const ds_graph_node *to, size_t count) {
    DS__ENTER("ds_graph_add_edges");
    DS__REQUIRE((from && to) || !count, "%s is NULL", from ? "to" : "from");
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    int shared = ds__graph_share(g);
    ds_result r = ds__edges_add(g->body, from, to, count);
    ds__graph_unshare(shared);
    return ds__graph_give(g, r);
}

DSDEF ds_result(ds_graph_get_nodes)(ds_graph graph, ds_graph_node *out, size_t room,
                                    size_t *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_graph_get_nodes");
    DS__REQUIRE(out_count && (out || !room), "%s is NULL", out_count ? "out" : "out_count");
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__lock_take(&ds__g.capture_lock);
    *out_count = g->body->count;
    for (uint32_t i = 0; i < g->body->count && i < room; i++)
        out[i] = ds__node_handle(g->body, i);
    ds__lock_give(&ds__g.capture_lock);
    return ds__graph_give(g, DS_OK);
}

/* core/graph_edit.h - graphs: reading and replacing nodes, comparison, attachment.

   Returns edges and descriptions of nodes, replaces a node (ds_graph_set_node), and attaches
   objects of the user to a graph (ds_graph_attach). ds__node_compare and ds__body_compare decide
   whether an executable may take over a changed node or graph, for core/graph_exec_update.h.

   Invariants: a replaced node keeps its kind, dependencies, native node and enabled flag
   (ds__body_replace). The pointers in the description of ds_graph_get_node belong to the node.
   An attached object's destructor runs exactly once; if the attachment fails, ds__refuse_payload
   runs it.
   Locks: the graph's lock. Inside of it, ds__g.capture_lock: always in functions that read, and
   in ds_graph_set_node while a capture adds to the graph. The driver's graph_set and
   graph_attach run under the graph's lock. The old node is freed after the locks, because the
   user's destructor may run.
   Threads: any. */

DSDEF ds_result(ds_graph_get_edges)(ds_graph graph, ds_graph_node *out_from, ds_graph_node *out_to,
                                    size_t room, size_t *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_graph_get_edges");
    DS__REQUIRE(out_count && ((out_from && out_to) || !room), "there is no room for the answer");
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__lock_take(&ds__g.capture_lock);
    for (uint32_t i = 0; i < g->body->count; i++)
        for (uint32_t k = 0; k < g->body->node[i]->dep_count; k++, ++*out_count)
            if (*out_count < room) {
                out_from[*out_count] = ds__node_handle(g->body, g->body->node[i]->deps[k]);
                out_to[*out_count] = ds__node_handle(g->body, i);
            }
    ds__lock_give(&ds__g.capture_lock);
    return ds__graph_give(g, DS_OK);
}

static void ds__node_describe(const ds__node *n, ds_node_desc *out) {
    const ds__op *op = &n->op;
    memset(out, 0, sizeof *out);
    out->kind = n->kind;
    out->label = n->label;
    out->device = n->device;
    out->priority = n->priority;
    switch (n->kind) {
    case DS_NODE_KERNEL:
        out->u.kernel.kernel.id = ds__handle(&op->u.kernel.kernel->slot);
        out->u.kernel.items = op->u.kernel.items;
        out->u.kernel.grid = op->u.kernel.grid;
        out->u.kernel.args = op->u.kernel.args;
        out->u.kernel.args_size = op->u.kernel.args_size;
        break;
    case DS_NODE_COPY:
        out->u.copy.dst = op->u.copy.dst;
        out->u.copy.src = op->u.copy.src;
        out->u.copy.width = op->u.copy.width;
        out->u.copy.height = op->u.copy.height;
        out->u.copy.dst_pitch = op->u.copy.dst_pitch;
        out->u.copy.src_pitch = op->u.copy.src_pitch;
        break;
    case DS_NODE_FILL:
        out->u.fill.ptr = op->u.fill.dst;
        out->u.fill.value = op->u.fill.value;
        out->u.fill.value_size = op->u.fill.value_size;
        out->u.fill.width = op->u.fill.width;
        out->u.fill.height = op->u.fill.height;
        out->u.fill.pitch = op->u.fill.pitch;
        break;
    case DS_NODE_HOST:
        out->u.host.fn = op->u.host.fn;
        out->u.host.user = op->u.host.user;
        break;
    case DS_NODE_EVENT_RECORD:
    case DS_NODE_EVENT_WAIT:
        out->u.event.id = ds__handle(&op->u.event.object->slot);
        break;
    case DS_NODE_EMPTY:
    case DS_NODE_CHILD:
    case DS_NODE_NATIVE:
        break;
    }
}

DSDEF ds_result(ds_graph_get_node)(ds_graph graph, ds_graph_node node, ds_node_desc *out,
                                   ds_site *out_site) {
    if (out)
        memset(out, 0, sizeof *out);
    if (out_site)
        memset(out_site, 0, sizeof *out_site);
    DS__ENTER("ds_graph_get_node");
    DS__REQUIRE(out, "out is NULL");
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    uint32_t i = 0;
    ds__lock_take(&ds__g.capture_lock);
    ds_result r = ds__node_index(g->body, node, &i);
    if (r == DS_OK) {
        ds__node_describe(g->body->node[i], out);
        if (out_site) {
            out_site->file = g->body->node[i]->op.file;
            out_site->line = (int)g->body->node[i]->op.line;
        }
    }
    ds__lock_give(&ds__g.capture_lock);
    return ds__graph_give(g, r);
}

/* Puts the node in place of another one, with that one's dependencies; the other one is the
   caller's. */
static ds__node *ds__body_replace(ds__body *b, uint32_t index, ds__node *fresh) {
    ds__node *old = b->node[index];
    fresh->deps = old->deps;
    fresh->dep_count = old->dep_count;
    fresh->dep_room = old->dep_room;
    fresh->native = old->native;
    fresh->enabled = old->enabled;
    old->deps = NULL;
    b->node[index] = fresh;
    if (fresh->child && fresh->child->hooked)
        b->hooked = 1;
    return old;
}

static ds_graph_update_reason ds__body_compare(const ds__body *now, const ds__body *then,
                                               uint32_t *out_node);

/* Whether a node of an executable may become the fresh one. */
static ds_graph_update_reason ds__node_compare(const ds__node *now, const ds__node *then) {
    uint32_t node;
    if (now->kind != then->kind)
        return DS_GRAPH_UPDATE_NODE_TYPE_CHANGED;
    switch (now->kind) {
    case DS_NODE_KERNEL:
        return now->device.index == then->device.index
                   ? DS_GRAPH_UPDATE_SUCCESS
                   : DS_GRAPH_UPDATE_UNSUPPORTED_FUNCTION_CHANGE;
    case DS_NODE_COPY:
        return ds__place_of(&now->op, DS__OP_DST) == ds__place_of(&then->op, DS__OP_DST) &&
                       ds__place_of(&now->op, DS__OP_SRC) == ds__place_of(&then->op, DS__OP_SRC)
                   ? DS_GRAPH_UPDATE_SUCCESS
                   : DS_GRAPH_UPDATE_PARAMETERS_CHANGED;
    case DS_NODE_FILL:
        return ds__place_of(&now->op, DS__OP_DST) == ds__place_of(&then->op, DS__OP_DST)
                   ? DS_GRAPH_UPDATE_SUCCESS
                   : DS_GRAPH_UPDATE_PARAMETERS_CHANGED;
    case DS_NODE_CHILD:
        return ds__body_compare(now->child, then->child, &node);
    default:
        return DS_GRAPH_UPDATE_SUCCESS;
    }
}

static ds_graph_update_reason ds__body_compare(const ds__body *now, const ds__body *then,
                                               uint32_t *out_node) {
    *out_node = UINT32_MAX;
    if (now->driver->type != then->driver->type)
        return DS_GRAPH_UPDATE_NOT_SUPPORTED;
    if (now->count != then->count)
        return DS_GRAPH_UPDATE_TOPOLOGY_CHANGED;
    for (uint32_t i = 0; i < now->count; i++) {
        const ds__node *a = now->node[i];
        const ds__node *b = then->node[i];
        ds_graph_update_reason reason = a->dep_count == b->dep_count
                                            ? DS_GRAPH_UPDATE_SUCCESS
                                            : DS_GRAPH_UPDATE_TOPOLOGY_CHANGED;
        for (uint32_t k = 0; k < b->dep_count && !reason; k++)
            if (a->deps[k] != b->deps[k] && !ds__node_depends(a, b->deps[k]))
                reason = DS_GRAPH_UPDATE_TOPOLOGY_CHANGED;
        if (!reason)
            reason = ds__node_compare(a, b);
        if (!reason)
            continue;
        *out_node = i;
        return reason;
    }
    return DS_GRAPH_UPDATE_SUCCESS;
}

static const char *const ds__update_texts[] = {
    "success",
    "it failed",
    "the nodes or dependencies are others",
    "a node is of another kind",
    "a kernel is another one, which the driver cannot change",
    "the memory is of another kind or device",
    "the driver cannot change such a node",
    "a kernel is for another device",
    "an attribute changed"
};

/* Makes a fresh node for `index`, of the kind of the one that stands there now. A capture may be
   adding nodes: the list is not looked at. */
static ds_result ds__node_fresh(ds__body *b, const ds__node *now, uint32_t index,
                                const ds_node_desc *desc, ds__body **child, ds__node **out) {
    char text[160];
    *out = NULL;
    DS__REQUIRE(desc, "desc is NULL");
    DS__REQUIRE(desc->kind == now->kind, "%s cannot become another kind (%d)",
                ds__node_text(now, index, text, sizeof text), (int)desc->kind);
    ds_result r = ds__node_of_desc(b, desc, child, out);
    if (r == DS_OK) {
        (*out)->op.file = now->op.file;
        (*out)->op.line = now->op.line;
    }
    if (r == DS_OK && ds__tls.site.file) {
        (*out)->op.file = ds__tls.site.file;
        (*out)->op.line = (uint32_t)ds__tls.site.line;
    }
    return r;
}

DSDEF ds_result(ds_graph_set_node)(ds_graph graph, ds_graph_node node, const ds_node_desc *desc) {
    ds__body *child = NULL;
    ds__node *old = NULL; /* ended without a lock, since the user's destructor may run */
    ds_result r = ds__enter("ds_graph_set_node");
    if (r == DS_OK)
        r = ds__child_copy(desc, &child);
    ds__graph *g = r == DS_OK ? ds__graph_take(graph) : NULL;
    if (g) {
        uint32_t i = 0;
        ds__node *fresh = NULL;
        int shared = ds__graph_share(g);
        r = ds__node_index(g->body, node, &i);
        /* it stays, as long as the graph is locked */
        const ds__node *now = r == DS_OK ? g->body->node[i] : NULL;
        ds__graph_unshare(shared);
        if (r == DS_OK)
            r = ds__node_fresh(g->body, now, i, desc, &child, &fresh);
        shared = ds__graph_share(g);
        if (r == DS_OK)
            r = g->body->driver->graph_set(g->body, i, fresh);
        if (r == DS_OK)
            old = ds__body_replace(g->body, i, fresh);
        ds__graph_unshare(shared);
        if (r < 0)
            ds__node_discard(fresh);
        r = ds__graph_give(g, r);
        ds__node_free(old);
    } else if (r == DS_OK) {
        r = DS_ERR_INVALID_HANDLE;
    }
    if (child)
        ds__body_free(child);
    return desc && desc->kind == DS_NODE_HOST
               ? ds__refuse_payload(r, desc->u.host.user, desc->u.host.dtor_fn)
               : r;
}

static ds_result ds__graph_attach(ds_graph graph, void *user, ds_host_fn dtor_fn) {
    DS__REQUIRE(dtor_fn, "dtor_fn is NULL");
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__object *o = ds__object_new(user, dtor_fn);
    ds_result r = o ? ds__body_keep(g->body, o) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK && (r = g->body->driver->graph_attach(g->body, o)) < 0) {
        g->body->object_count--;
        atomic_fetch_sub(&o->owners, 1);
    }
    if (r < 0 && o)
        o->dtor_fn = NULL;
    ds__object_drop(o);
    return ds__graph_give(g, r);
}

DSDEF ds_result(ds_graph_attach)(ds_graph graph, void *user, ds_host_fn dtor_fn) {
    ds_result r = ds__enter("ds_graph_attach");
    if (r == DS_OK)
        r = ds__graph_attach(graph, user, dtor_fn);
    return ds__refuse_payload(r, user, dtor_fn);
}

/* core/graph_dot.h - graphs as DOT text.

   Writes a graph in the DOT language of Graphviz, to a function of the user (ds_graph_dot) or to
   a file (ds_graph_dot_file). The text writer (ds__pen) hands over the text in pieces.

   Invariants: once the user's function has returned a value other than 0, it is not invoked
   again, and the call reports DS_ERR_SYSTEM.
   Locks: the graph's lock, and ds__g.capture_lock while a capture adds to the graph. The user's
   function runs under both; ds__tls.in_callback is set meanwhile, so calls to devstream are
   refused.
   Threads: any. The user's function runs on the calling thread. */

typedef struct ds__pen {
    ds_write_fn write_fn;
    void *user;
    int stopped;
    unsigned flags;
} ds__pen;

__attribute__((format(printf, 2, 3))) static void ds__pen_print(ds__pen *p, const char *format,
                                                                ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t size = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    if (p->stopped || !size)
        return;
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1; /* locks are held */
    p->stopped = p->write_fn(text, size, p->user);
    ds__tls.in_callback = outer;
}

/* Inside of a quoted string of DOT. */
static void ds__pen_quote(ds__pen *p, const char *text) {
    char quoted[2 * 256 + 1];
    size_t n = 0;
    for (; *text && n < sizeof quoted - 3; text++) {
        if (*text == '"' || *text == '\\')
            quoted[n++] = '\\';
        quoted[n++] = *text == '\n' ? ' ' : *text;
    }
    quoted[n] = 0;
    ds__pen_print(p, "%s", quoted);
}

static void ds__dot_kernel(ds__pen *p, const ds__op *op) {
    const ds__kernel *k = op->u.kernel.kernel;
    ds__pen_print(p, "\\n%zu item%s", op->u.kernel.items, op->u.kernel.items == 1 ? "" : "s");
    if (op->u.kernel.grid)
        ds__pen_print(p, "\\ngrid %ux%ux%u block %ux%ux%u", op->u.kernel.grid->grid[0],
                      op->u.kernel.grid->grid[1], op->u.kernel.grid->grid[2],
                      op->u.kernel.grid->block[0], op->u.kernel.grid->block[1],
                      op->u.kernel.grid->block[2]);
    for (size_t i = 0; i < k->param_count; i++) {
        const ds_param *a = &k->params[i];
        static const char *const kinds[] = { "value", "read", "written", "read and written",
                                             "first", "count" };
        uint64_t value = 0;
        if (a->kind >= DS_PARAM_FIRST)
            continue;
        memcpy(&value, (const char *)op->u.kernel.args + a->offset, a->size < 8 ? a->size : 8);
        ds__pen_print(p, "\\n[%zu] %s %#llx", i, kinds[a->kind], (unsigned long long)value);
    }
}

static void ds__dot_node(ds__pen *p, const ds__body *b, uint32_t index, const char *prefix) {
    const ds__node *n = b->node[index];
    const ds__op *op = &n->op;
    unsigned all = p->flags & DS_DOT_VERBOSE;
    ds__pen_print(p, "\"%s%u\" [shape=%s, label=\"%s", prefix, (unsigned)index,
                  n->kind == DS_NODE_KERNEL ? "box"
                  : n->kind == DS_NODE_HOST ? "hexagon"
                                            : "ellipse",
                  ds__node_names[n->kind]);
    if (n->kind == DS_NODE_KERNEL) {
        ds__pen_print(p, " ");
        ds__pen_quote(p, op->u.kernel.kernel->name);
    }
    if (n->label) {
        ds__pen_print(p, "\\n");
        ds__pen_quote(p, n->label);
    }
    if (n->kind == DS_NODE_KERNEL && (all || p->flags & DS_DOT_KERNEL))
        ds__dot_kernel(p, op);
    if (n->kind == DS_NODE_COPY && (all || p->flags & DS_DOT_COPY))
        ds__pen_print(p, "\\n%p <- %p\\n%zu x %zu bytes", op->u.copy.dst, op->u.copy.src,
                      op->u.copy.height, op->u.copy.width);
    if (n->kind == DS_NODE_FILL && (all || p->flags & DS_DOT_FILL))
        ds__pen_print(p, "\\n%p <- %#x\\n%zu x %zu x %zu bytes", op->u.fill.dst,
                      (unsigned)op->u.fill.value, op->u.fill.height, op->u.fill.width,
                      op->u.fill.value_size);
    if (n->kind == DS_NODE_HOST && (all || p->flags & DS_DOT_HOST)) {
        void *fn = NULL;
        memcpy(&fn, &op->u.host.fn, sizeof fn);
        ds__pen_print(p, "\\n%p(%p)", fn, op->u.host.user);
    }
    if ((n->kind == DS_NODE_EVENT_RECORD || n->kind == DS_NODE_EVENT_WAIT) &&
        (all || p->flags & DS_DOT_EVENT)) {
        ds__pen_print(p, "\\n%#llx ", (unsigned long long)ds__handle(&op->u.event.object->slot));
        ds__pen_quote(p, op->u.event.object->label ? op->u.event.object->label : "");
    }
    if (all || p->flags & DS_DOT_HANDLES) {
        ds__pen_print(p, "\\n%#llx, %s:%d", (unsigned long long)ds__node_handle(b, index).id,
                      ds__type_name(n->device.type), n->device.index);
        if (n->priority)
            ds__pen_print(p, ", priority %d", n->priority);
        if (op->file) {
            ds__pen_print(p, "\\n");
            ds__pen_quote(p, ds__short_path(op->file));
            ds__pen_print(p, ":%u", (unsigned)op->line);
        }
    }
    ds__pen_print(p, "\"];\n");
}

static void ds__dot_body(ds__pen *p, const ds__body *b, const char *prefix) {
    for (uint32_t i = 0; i < b->count && !p->stopped; i++) {
        char inner[64];
        ds__dot_node(p, b, i, prefix);
        if (!b->node[i]->child || strlen(prefix) > sizeof inner - 16)
            continue;
        snprintf(inner, sizeof inner, "%.40s%u.", prefix, (unsigned)i);
        ds__pen_print(p, "subgraph \"cluster_%s\" {\nlabel=\"child of %s%u\";\n", inner, prefix,
                      (unsigned)i);
        ds__dot_body(p, b->node[i]->child, inner);
        ds__pen_print(p, "}\n");
    }
    for (uint32_t i = 0; i < b->count && !p->stopped; i++)
        for (uint32_t k = 0; k < b->node[i]->dep_count; k++)
            ds__pen_print(p, "\"%s%u\" -> \"%s%u\";\n", prefix, (unsigned)b->node[i]->deps[k],
                          prefix, (unsigned)i);
}

static ds_result ds__dot(ds_graph graph, unsigned flags, ds_write_fn write_fn, void *user) {
    /* all of cudaGraphDebugDotFlags are taken; those without meaning here change nothing */
    DS__REQUIRE((flags & ~0x87ffu) == 0, "unknown flags %#x", flags);
    ds__graph *g = ds__graph_take(graph);
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    ds__pen pen = { write_fn, user, 0, flags };
    ds__pen_print(&pen, "digraph \"");
    ds__pen_quote(&pen, g->label ? g->label : "graph");
    ds__pen_print(&pen, "\" {\n");
    int shared = ds__graph_share(g);
    ds__dot_body(&pen, g->body, "");
    ds__graph_unshare(shared);
    ds__pen_print(&pen, "}\n");
    return ds__graph_give(
        g,
        pen.stopped ? ds__fail(DS_ERR_SYSTEM, "the writer stopped with %d", pen.stopped) : DS_OK);
}

DSDEF ds_result(ds_graph_dot)(ds_graph graph, unsigned flags, ds_write_fn write_fn, void *user) {
    DS__ENTER("ds_graph_dot");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    return ds__dot(graph, flags, write_fn, user);
}

static int ds__dot_to_file(const char *text, size_t size, void *user) {
    return fwrite(text, 1, size, user) == size ? 0 : errno ? errno : EIO;
}

DSDEF ds_result(ds_graph_dot_file)(ds_graph graph, unsigned flags, const char *path) {
    DS__ENTER("ds_graph_dot_file");
    DS__REQUIRE(path, "path is NULL");
    FILE *f = fopen(path, "w");
    if (!f)
        return ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    ds_result r = ds__dot(graph, flags, ds__dot_to_file, f);
    if (fclose(f) != 0 && r == DS_OK)
        r = ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    return r;
}

/* core/graph_exec.h - executables: instantiation, upload, launch.

   Makes executables of graphs (ds_graph_instantiate), uploads them, launches them on streams
   (ds_graph_launch), and destroys them. ds__launch_hooked calls the launch functions of attached
   objects, which the allocator and the generators use, around a launch.

   Invariants: x->body is a copy of the graph with the same node handles and holds the work of
   later launches. At a launch, each object's launch function is called once before it, though
   several child graphs may hold the object. Afterwards it is called with the result; after a
   failure in reverse order, for those that had succeeded.
   Locks: ds_graph_instantiate holds the graph's lock over the driver's graph_instantiate and an
   upload. A launch or upload holds the executable's lock over the driver's submit and the launch
   functions. No destructor of the user runs under these locks.
   Threads: any; launches of one executable run one after the other. */

static ds_result ds__upload(ds__exec *x, ds_stream stream) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    if (s->driver->type != x->driver->type) {
        r = ds__fail(DS_ERR_CROSS_DRIVER,
                     "the executable and the stream belong to different drivers");
    } else {
        ds__op op = ds__op_make(DS__OP_UPLOAD);
        op.u.graph.exec = x->native;
        op.u.graph.body = x->body;
        r = ds__submit(s, &op);
    }
    ds__stream_unpin(s);
    return r;
}

static ds_result ds__instantiate(ds__graph *g, const ds_graph_exec_desc *desc, ds_graph_exec *out) {
    if (atomic_load(&g->capturing))
        return ds__being_captured(g);
    const char *label = desc->label ? desc->label : g->label;
    ds__exec *x = ds__table_add(&ds__g.execs);
    if (!x)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    x->driver = g->body->driver;
    x->flags = desc->flags;
    x->made = ds__tls.site;
    ds_result r = DS_OK;
    if (!(x->body = ds__body_copy(g->body, 1)) ||
        (label && !(x->label = ds__copy_text(label, 255))))
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for an executable");
    if (r == DS_OK)
        r = x->driver->graph_instantiate(g->body, x->body, desc->flags, &x->native);
    if (r == DS_OK && (desc->flags & DS_GRAPH_UPLOAD))
        r = ds__upload(x, desc->upload_stream);
    if (r == DS_OK)
        out->id = ds__handle(&x->slot);
    else
        ds__table_kill(&ds__g.execs, x);
    return r;
}

DSDEF ds_result(ds_graph_instantiate)(ds_graph graph, const ds_graph_exec_desc *desc,
                                      ds_graph_exec *out) {
    static const ds_graph_exec_desc none;
    if (out)
        out->id = 0;
    DS__ENTER("ds_graph_instantiate");
    DS__REQUIRE(out, "out is NULL");
    if (!desc)
        desc = &none;
    if (desc->flags & DS_GRAPH_DEVICE_LAUNCH)
        return ds__fail(DS_ERR_UNSUPPORTED, "launching graphs from a device is not offered");
    DS__REQUIRE(
        (desc->flags & ~(unsigned)(DS_GRAPH_AUTO_FREE_ON_LAUNCH | DS_GRAPH_UPLOAD |
                                   DS_GRAPH_USE_NODE_PRIORITY | DS_GRAPH_REPLACE_POINTERS)) == 0,
        "unknown flags %#x", desc->flags);
    ds__reclaim();
    ds__graph *g = ds__graph_take(graph);
    return g ? ds__graph_give(g, ds__instantiate(g, desc, out)) : DS_ERR_INVALID_HANDLE;
}

DSDEF ds_result(ds_graph_upload)(ds_graph_exec exec, ds_stream stream) {
    DS__ENTER("ds_graph_upload");
    ds__exec *x = ds__exec_take(exec);
    return x ? ds__exec_give(x, ds__upload(x, stream)) : DS_ERR_INVALID_HANDLE;
}

/* Calls what the objects want to be called at a launch, each once though several graphs within
   the body may have it: an object is called in the first of them only. Leaves the first *skip
   out, and stops after *left of them or at the first that fails. */
static ds_result ds__hooks(const ds__body *b, const ds__body *top, ds__stream *s, ds_result how,
                           size_t *skip, size_t *left);

static int ds__hook_seen(const ds__body *b, const ds__body *stop, const ds__object *o, int *over) {
    for (size_t i = 0; b != stop && i < b->object_count; i++)
        if (b->object[i] == o)
            return 1;
    if (b == stop) {
        *over = 1;
        return 0;
    }
    for (uint32_t i = 0; i < b->count && !*over; i++)
        if (b->node[i]->child && ds__hook_seen(b->node[i]->child, stop, o, over))
            return 1;
    return 0;
}

static ds_result ds__hooks(const ds__body *b, const ds__body *top, ds__stream *s, ds_result how,
                           size_t *skip, size_t *left) {
    ds_result r = DS_OK;
    for (size_t i = 0; i < b->object_count && r >= 0 && *left; i++) {
        ds__object *o = b->object[i];
        int over = 0;
        if (!o->launch_fn || ds__hook_seen(top, b, o, &over))
            continue;
        if (*skip) {
            --*skip;
            continue;
        }
        r = o->launch_fn(o->user, s, how);
        if (r >= 0)
            --*left;
    }
    for (uint32_t i = 0; i < b->count && r >= 0 && *left; i++)
        if (b->node[i]->child && b->node[i]->child->hooked)
            r = ds__hooks(b->node[i]->child, top, s, how, skip, left);
    return r;
}

static ds_result ds__launch_hooked(ds__stream *s, const ds__op *op) {
    const ds__body *b = op->u.graph.body;
    size_t skip = 0;
    size_t left = SIZE_MAX;
    size_t done;
    ds__op outside = *op; /* the hooks prepare a launch, not a node */
    outside.flags |= DS__OP_OUTSIDE;
    ds_result r = ds__hooks(b, b, s, DS_NOT_READY, &skip, &left);
    done = SIZE_MAX - left;
    if (r >= 0)
        r = ds__submit(s, &outside);
    if (r == DS__CHANGED)
        r = ds__fail(DS_ERR_CAPTURE_UNSUPPORTED,
                     "a capture began on the stream while the graph was launched");
    if (r >= 0 && done)
        DS_IGNORE(ds__hooks(b, b, s, r, &skip, &done));
    while (r < 0 && done) { /* each takes back what it did, so the last one first */
        skip = --done;
        left = 1;
        DS_IGNORE(ds__hooks(b, b, s, r, &skip, &left));
    }
    return r;
}

DSDEF ds_result(ds_graph_launch)(ds_graph_exec exec, ds_stream stream) {
    ds_result r = ds__enter_inline("ds_graph_launch");
    if (DS__UNLIKELY(r < 0))
        return r;
    ds__stream *s = ds__pin_inline(&ds__g.streams, stream.id);
    /* again, for the sentence */
    if (DS__UNLIKELY(!s)) {
        ds__stream_pin(stream);
        return DS_ERR_INVALID_HANDLE;
    }
    ds__exec *x = ds__exec_take(exec);
    if (DS__UNLIKELY(!x)) {
        r = DS_ERR_INVALID_HANDLE;
    } else if (DS__UNLIKELY(s->driver->type != x->driver->type)) {
        r = ds__exec_give(x, ds__fail(DS_ERR_CROSS_DRIVER,
                                      "the executable and the stream belong to different drivers"));
    } else {
        ds__op op = ds__op_make(DS__OP_GRAPH);
        op.u.graph.exec = x->native;
        op.u.graph.body = x->body;
        r = ds__exec_give(x, DS__LIKELY(!x->body->hooked) ? ds__submit(s, &op)
                                                          : ds__launch_hooked(s, &op));
    }
    ds__unpin_inline(&ds__g.streams, s);
    return r;
}

DSDEF ds_result(ds_graph_exec_destroy)(ds_graph_exec exec) {
    DS__ENTER("ds_graph_exec_destroy");
    ds__exec *x = ds__exec_take(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    int killed = ds__table_kill(&ds__g.execs, x);
    ds_result r = ds__exec_give(
        x,
        killed ? DS_OK : ds__fail(DS_ERR_INVALID_HANDLE, "the executable was destroyed already"));
    ds__reclaim();
    return r;
}

/* core/graph_exec_update.h - executables: updates, single nodes, pointers.

   Changes an executable without a new instantiation: takes over a changed graph
   (ds_graph_exec_update), replaces or switches single nodes, and replaces pointers in all nodes
   (ds_graph_exec_replace_pointers).

   Invariants: an update is complete or leaves x->body as it was. Kinds, number and dependencies
   of the nodes do not change. A node that is replaced keeps its native node and its enabled
   flag.
   Locks: the executable's lock; ds_graph_exec_update takes the graph's lock inside of it. A
   child graph is copied under its own lock before. The driver's exec_update, exec_set and
   exec_enable run under these locks. Replaced nodes are freed after the locks, because the
   user's destructors may run. ds__replace_pointers frees them under the lock, since the new
   nodes share their payloads.
   Threads: any; calls with the same executable run one after the other. */

/* *out_old is to be freed without a lock, since the user's destructors may run. */
static ds_result ds__exec_update(ds__exec *x, ds__graph *g, ds_graph_update_info *out,
                                 ds__body **out_old) {
    uint32_t node = UINT32_MAX;
    char text[160] = "the graph";
    if (atomic_load(&g->capturing)) {
        out->reason = DS_GRAPH_UPDATE_ERROR;
        return ds__being_captured(g);
    }
    out->reason = ds__body_compare(x->body, g->body, &node);
    for (uint32_t i = 0; out->reason == DS_GRAPH_UPDATE_SUCCESS &&
                         (x->flags & DS_GRAPH_USE_NODE_PRIORITY) && i < g->body->count;
         i++)
        if (x->body->node[i]->kind == DS_NODE_KERNEL &&
            x->body->node[i]->priority != g->body->node[i]->priority) {
            out->reason = DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED;
            node = i;
        }
    ds_result r = DS_OK;
    if (out->reason == DS_GRAPH_UPDATE_SUCCESS) {
        ds__body *fresh = ds__body_copy(g->body, 0);
        r = fresh ? x->driver->exec_update(x->native, g->body, &out->reason, &node)
                  : DS_ERR_OUT_OF_MEMORY;
        if (r == DS_OK) {
            ds__node **nodes = x->body->node;
            for (uint32_t i = 0; i < fresh->count; i++) {
                fresh->node[i]->native = nodes[i]->native;
                fresh->node[i]->enabled = nodes[i]->enabled;
            }
            x->body->node = fresh->node;
            fresh->node = nodes;
            uint32_t room = x->body->room;
            x->body->room = fresh->room;
            fresh->room = room;
            ds__object **objects = x->body->object;
            size_t count = x->body->object_count;
            size_t object_room = x->body->object_room;
            x->body->object = fresh->object;
            x->body->object_count = fresh->object_count;
            x->body->object_room = fresh->object_room;
            x->body->hooked = fresh->hooked;
            fresh->object = objects;
            fresh->object_count = count;
            fresh->object_room = object_room;
        } else if (out->reason == DS_GRAPH_UPDATE_SUCCESS) {
            out->reason = DS_GRAPH_UPDATE_ERROR;
        }
        *out_old = fresh;
        if (r < 0 && r != DS_ERR_GRAPH_UPDATE)
            return r;
    }
    if (out->reason == DS_GRAPH_UPDATE_SUCCESS)
        return DS_OK;
    if (node != UINT32_MAX) {
        out->node = ds__node_handle(g->body, node);
        ds__node_print(g->body, node, text, sizeof text);
    }
    return ds__fail(DS_ERR_GRAPH_UPDATE, "the executable cannot become the graph: %s (%s)",
                    ds__update_texts[out->reason], text);
}

DSDEF ds_result(ds_graph_exec_update)(ds_graph_exec exec, ds_graph graph,
                                      ds_graph_update_info *out) {
    ds_graph_update_info info;
    if (!out)
        out = &info;
    memset(out, 0, sizeof *out);
    DS__ENTER("ds_graph_exec_update");
    out->reason = DS_GRAPH_UPDATE_ERROR;
    ds__exec *x = ds__exec_take(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    ds__graph *g = ds__graph_take(graph);
    ds__body *old = NULL;
    ds_result r = g ? ds__graph_give(g, ds__exec_update(x, g, out, &old)) : DS_ERR_INVALID_HANDLE;
    r = ds__exec_give(x, r);
    if (old)
        ds__body_free(old);
    return r;
}

static ds_result ds__exec_put(ds__exec *x, uint32_t i, ds__node *fresh, ds__node **old) {
    char text[160];
    ds_graph_update_reason reason = ds__node_compare(x->body->node[i], fresh);
    fresh->priority = x->body->node[i]->priority;
    ds_result r = DS_OK;
    if (reason)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%s of an executable cannot change so: %s",
                     ds__node_print(x->body, i, text, sizeof text), ds__update_texts[reason]);
    else
        r = x->driver->exec_set(x->native, i, fresh);
    if (r == DS_OK)
        *old = ds__body_replace(x->body, i, fresh);
    return r;
}

DSDEF ds_result(ds_graph_exec_set_node)(ds_graph_exec exec, ds_graph_node node,
                                        const ds_node_desc *desc) {
    ds__body *child = NULL;
    ds__node *old = NULL; /* ended without a lock, since the user's destructor may run */
    ds_result r = ds__enter("ds_graph_exec_set_node");
    if (r == DS_OK)
        r = ds__child_copy(desc, &child);
    ds__exec *x = r == DS_OK ? ds__exec_take(exec) : NULL;
    if (x) {
        uint32_t i = 0;
        ds__node *fresh = NULL;
        r = ds__node_index(x->body, node, &i);
        if (r == DS_OK)
            r = ds__node_fresh(x->body, x->body->node[i], i, desc, &child, &fresh);
        if (r == DS_OK && (r = ds__exec_put(x, i, fresh, &old)) < 0)
            ds__node_discard(fresh);
        r = ds__exec_give(x, r);
        ds__node_free(old);
    } else if (r == DS_OK) {
        r = DS_ERR_INVALID_HANDLE;
    }
    if (child)
        ds__body_free(child);
    return desc && desc->kind == DS_NODE_HOST
               ? ds__refuse_payload(r, desc->u.host.user, desc->u.host.dtor_fn)
               : r;
}

DSDEF ds_result(ds_graph_exec_enable_node)(ds_graph_exec exec, ds_graph_node node, int enabled) {
    DS__ENTER("ds_graph_exec_enable_node");
    ds__exec *x = ds__exec_take(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    uint32_t i = 0;
    char text[160];
    ds_result r = ds__node_index(x->body, node, &i);
    ds_node_kind kind = r == DS_OK ? x->body->node[i]->kind : DS_NODE_EMPTY;
    if (r == DS_OK && kind != DS_NODE_KERNEL && kind != DS_NODE_COPY && kind != DS_NODE_FILL)
        r = ds__fail(DS_ERR_INVALID_VALUE,
                     "%s cannot be switched, only kernels, copies and fills can",
                     ds__node_print(x->body, i, text, sizeof text));
    if (r == DS_OK)
        r = x->driver->exec_enable(x->native, i, enabled != 0);
    if (r == DS_OK)
        x->body->node[i]->enabled = enabled != 0;
    return ds__exec_give(x, r);
}

DSDEF ds_result(ds_graph_exec_node_enabled)(ds_graph_exec exec, ds_graph_node node, int *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_graph_exec_node_enabled");
    DS__REQUIRE(out, "out is NULL");
    ds__exec *x = ds__exec_take(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    uint32_t i = 0;
    ds_result r = ds__node_index(x->body, node, &i);
    if (r == DS_OK)
        *out = x->body->node[i]->enabled;
    return ds__exec_give(x, r);
}

/* Puts new pointers for old ones; returns the number of places. dry: only counts. */
static size_t ds__replace_one(void *place, void *const *old_pointers, void *const *new_pointers,
                              size_t count, int dry) {
    void *now;
    memcpy(&now, place, sizeof now);
    for (size_t i = 0; i < count; i++) {
        if (now != old_pointers[i])
            continue;
        if (!dry)
            memcpy(place, &new_pointers[i], sizeof now);
        return 1;
    }
    return 0;
}

static size_t ds__replace_node(ds__node *n, void *const *old_pointers, void *const *new_pointers,
                               size_t count, int dry) {
    size_t places = 0;
    if (n->kind == DS_NODE_KERNEL) {
        const ds__kernel *k = n->op.u.kernel.kernel;
        for (size_t i = 0; i < k->param_count; i++)
            if (k->params[i].kind >= DS_PARAM_READ && k->params[i].kind <= DS_PARAM_READ_WRITE)
                places +=
                    ds__replace_one((char *)(uintptr_t)n->op.u.kernel.args + k->params[i].offset,
                                    old_pointers, new_pointers, count, dry);
    } else if (n->kind == DS_NODE_COPY) {
        places += ds__replace_one(&n->op.u.copy.dst, old_pointers, new_pointers, count, dry);
        places += ds__replace_one(&n->op.u.copy.src, old_pointers, new_pointers, count, dry);
    } else if (n->kind == DS_NODE_FILL) {
        places += ds__replace_one(&n->op.u.fill.dst, old_pointers, new_pointers, count, dry);
    } else if (n->kind == DS_NODE_CHILD) {
        for (uint32_t i = 0; i < n->child->count; i++)
            places += ds__replace_node(n->child->node[i], old_pointers, new_pointers, count, dry);
    }
    return places;
}

/* A changed copy or fill is checked anew, as if it were set. */
static ds_result ds__replaced_check(ds__body *b, ds__node *n) {
    ds__op op = n->op;
    ds_result r = DS_OK;
    if (n->kind == DS_NODE_COPY)
        r = ds__copy_op(b->driver, &op, op.u.copy.dst, op.u.copy.dst_pitch, op.u.copy.src,
                        op.u.copy.src_pitch, op.u.copy.width, op.u.copy.height, NULL, NULL,
                        DS_COPY_HOST_STABLE);
    if (n->kind == DS_NODE_FILL)
        r = ds__fill_op(b->driver, &op, op.u.fill.dst, op.u.fill.pitch, op.u.fill.value,
                        op.u.fill.value_size, op.u.fill.width, op.u.fill.height,
                        DS_COPY_HOST_STABLE);
    for (uint32_t i = 0; n->child && i < n->child->count && r == DS_OK; i++)
        r = ds__replaced_check(b, n->child->node[i]);
    n->op.flags = op.flags;
    n->op.places = op.places;
    return r;
}

/* All or none: the changed nodes are made first; should a driver refuse one in the middle, those
   before it are put back. */
static ds_result ds__replace_pointers(ds__exec *x, void *const *old_pointers,
                                      void *const *new_pointers, size_t count,
                                      size_t *out_replaced) {
    ds__body *b = x->body;
    size_t places = 0;
    ds_result r = DS_OK;
    uint32_t set = 0;
    if (!(x->flags & DS_GRAPH_REPLACE_POINTERS))
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "the executable was made without DS_GRAPH_REPLACE_POINTERS");
    ds__node **fresh = ds__alloc((b->count + 1) * sizeof *fresh);
    if (!fresh)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to replace pointers");
    for (uint32_t i = 0; i < b->count && r == DS_OK; i++) {
        char text[160];
        if (!ds__replace_node(b->node[i], old_pointers, new_pointers, count, 1))
            continue;
        if (!(fresh[i] = ds__node_copy(b->node[i]))) {
            r = DS_ERR_OUT_OF_MEMORY;
            break;
        }
        places += ds__replace_node(fresh[i], old_pointers, new_pointers, count, 0);
        r = ds__replaced_check(b, fresh[i]);
        ds_graph_update_reason reason =
            r == DS_OK ? ds__node_compare(b->node[i], fresh[i]) : DS_GRAPH_UPDATE_SUCCESS;
        if (reason)
            r = ds__fail(DS_ERR_INVALID_VALUE, "%s", ds__update_texts[reason]);
        if (r < 0)
            ds__also(r, " (%s)", ds__node_print(b, i, text, sizeof text));
    }
    for (; set < b->count && r == DS_OK; set++)
        if (fresh[set])
            r = x->driver->exec_set(x->native, set, fresh[set]);
    for (uint32_t i = 0; r < 0 && i + 1 < set; i++)
        if (fresh[i])
            DS_IGNORE(x->driver->exec_set(x->native, i, b->node[i]));
    for (uint32_t i = 0; i < b->count; i++) {
        if (!fresh[i])
            continue;
        /* what they keep, the others keep, too */
        ds__node_free(r == DS_OK ? ds__body_replace(b, i, fresh[i]) : fresh[i]);
    }
    ds__release(fresh);
    if (r == DS_OK)
        *out_replaced = places;
    return r;
}

DSDEF ds_result(ds_graph_exec_replace_pointers)(ds_graph_exec exec, void *const *old_pointers,
                                                void *const *new_pointers, size_t count,
                                                size_t *out_replaced) {
    size_t places = 0;
    if (out_replaced)
        *out_replaced = 0;
    DS__ENTER("ds_graph_exec_replace_pointers");
    DS__REQUIRE((old_pointers && new_pointers) || !count, "%s is NULL",
                old_pointers ? "new_pointers" : "old_pointers");
    for (size_t i = 0; i < count; i++)
        DS__REQUIRE(old_pointers[i] && new_pointers[i], "pair %zu has a NULL", i);
    ds__exec *x = ds__exec_take(exec);
    if (!x)
        return DS_ERR_INVALID_HANDLE;
    ds_result r =
        ds__exec_give(x, ds__replace_pointers(x, old_pointers, new_pointers, count, &places));
    if (out_replaced)
        *out_replaced = places;
    return r;
}

/* core/capture.h - captures of streams into graphs.

   Begins, ends and queries captures, changes their dependencies, and sets the capture mode of a
   thread. ds__capture_attachment ties an object of the allocator or of a generator to the
   capture of a stream. The driver of the stream applies the rules of capture.

   Invariants: g->capturing counts the captures that add to a graph; while it is not 0, the graph
   cannot be destroyed, cloned or instantiated. ds__capture_over runs once for each capture that
   has begun, at its end or at shutdown. A failed capture destroys the graph that it created, but
   not a graph of the user (c->into).
   Locks: ds__g.begin is held over the driver's capture_begin. Order: a graph's lock,
   ds__g.begin, ds__g.capture_lock, which the drivers take. ds__capture_attachment runs make_fn,
   release_fn and the driver's graph_attach under the graph's lock. ds_capture_function runs the
   user's function without a lock.
   Threads: any. The driver refuses to end a capture on another thread than its own unless it is
   relaxed. release_fn may run on any thread. */

/* The capture is over: its graph becomes the caller's, or goes. */
static void ds__capture_over(ds__capture *c, int failed) {
    ds__graph *g = (void *)ds__slot_at(&ds__g.graphs, (uint32_t)c->graph.id - 1);
    /* else another thread could free it, and its slot be another graph's, before it is counted
       down */
    ds__ref(g);
    /* first: nobody can destroy it as long as it is being captured */
    if (failed && !c->into)
        ds__table_kill(&ds__g.graphs, g);
    atomic_fetch_sub(&g->capturing, 1);
    ds__unref(&ds__g.graphs, g);
    ds__release(c);
}

static ds_result ds__capture_start(ds__stream *s, ds__graph *g, const ds_graph_node *nodes,
                                   size_t count, ds_capture_mode mode, int into) {
    ds_result r = DS_OK;
    uint32_t *deps = ds__alloc((count + 1) * sizeof *deps);
    ds__capture *c = ds__alloc(sizeof *c);
    if (!deps || !c)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a capture");
    for (size_t i = 0; i < count && r == DS_OK; i++)
        r = ds__node_index(g->body, nodes[i], &deps[i]);
    if (r == DS_OK) {
        c->driver = s->driver;
        c->thread = ds__thread_number();
        c->mode = mode;
        c->begun = ds__tls.site;
        c->graph.id = ds__handle(&g->slot);
        c->body = g->body;
        c->into = into;
        atomic_fetch_add(&g->capturing, 1); /* first: at once another thread may be adding to it */
        pthread_mutex_lock(&ds__g.begin);
        r = s->driver->capture_begin(s->native, c, deps, count);
        pthread_mutex_unlock(&ds__g.begin);
        if (r < 0)
            atomic_fetch_sub(&g->capturing, 1);
    }
    if (r < 0)
        ds__release(c);
    ds__release(deps);
    return ds__stream_error(s, r);
}

static ds_result ds__capture_begin(ds_stream stream, ds_capture_mode mode) {
    DS__REQUIRE((unsigned)mode <= DS_CAPTURE_RELAXED, "%d is not a mode of capture", (int)mode);
    ds__reclaim();
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__body *b = ds__body_new(s->driver, s->device);
    ds__graph *g = b ? ds__graph_add(b, NULL) : NULL;
    ds_result r = g ? ds__capture_start(s, g, NULL, 0, mode, 0) : DS_ERR_OUT_OF_MEMORY;
    if (r < 0 && g)
        ds__table_kill(&ds__g.graphs, g);
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_begin)(ds_stream stream, ds_capture_mode mode) {
    DS__ENTER("ds_capture_begin");
    return ds__capture_begin(stream, mode);
}

DSDEF ds_result(ds_capture_begin_to_graph)(ds_stream stream, ds_graph graph,
                                           const ds_graph_node *dependencies, size_t count,
                                           ds_capture_mode mode) {
    DS__ENTER("ds_capture_begin_to_graph");
    DS__REQUIRE((unsigned)mode <= DS_CAPTURE_RELAXED, "%d is not a mode of capture", (int)mode);
    DS__REQUIRE(dependencies || !count, "dependencies is NULL");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__graph *g = ds__graph_take(graph);
    ds_result r = g ? DS_OK : DS_ERR_INVALID_HANDLE;
    if (g) {
        if (g->body->driver->type != s->driver->type)
            r = ds__fail(DS_ERR_CROSS_DRIVER,
                         "the graph and the stream belong to different drivers");
        else if (atomic_load(&g->capturing))
            r = ds__being_captured(g);
        else if (!ds__slot_is(&g->slot, graph.id))
            r = ds__fail(DS_ERR_INVALID_HANDLE,
                         "the graph was destroyed"); /* while this call waited for its lock */
        else
            r = ds__capture_start(s, g, dependencies, count, mode, 1);
        r = ds__graph_give(g, r);
    }
    ds__stream_unpin(s);
    return r;
}

static ds_result ds__capture_end(ds_stream stream, ds_graph *out) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds__capture *c = NULL;
    ds_result r = ds__stream_error(s, s->driver->capture_end(s->native, &c));
    if (c) {
        if (r == DS_OK)
            *out = c->graph;
        ds__capture_over(c, r < 0);
    }
    ds__stream_unpin(s);
    ds__reclaim();
    return r;
}

DSDEF ds_result(ds_capture_end)(ds_stream stream, ds_graph *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_capture_end");
    DS__REQUIRE(out, "out is NULL");
    return ds__capture_end(stream, out);
}

static ds_result ds__capture_info(ds_stream stream, ds_capture_info *out) {
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__stream_error(s, s->driver->capture_query(s->native, out));
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_query)(ds_stream stream, ds_capture_status *out) {
    ds_capture_info info;
    if (out)
        *out = DS_CAPTURE_NONE;
    DS__ENTER("ds_capture_query");
    DS__REQUIRE(out, "out is NULL");
    memset(&info, 0, sizeof info);
    ds_result r = ds__capture_info(stream, &info);
    if (r == DS_OK)
        *out = info.status;
    return r;
}

DSDEF ds_result(ds_capture_get_info)(ds_stream stream, ds_capture_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_capture_get_info");
    DS__REQUIRE(out, "out is NULL");
    return ds__capture_info(stream, out);
}

DSDEF ds_result(ds_capture_get_dependencies)(ds_stream stream, ds_graph_node *out, size_t room,
                                             size_t *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER("ds_capture_get_dependencies");
    DS__REQUIRE(out_count && (out || !room), "%s is NULL", out_count ? "out" : "out_count");
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r =
        ds__stream_error(s, s->driver->capture_dependencies(s->native, out, room, out_count));
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_update_dependencies)(ds_stream stream, const ds_graph_node *nodes,
                                                size_t count, unsigned how) {
    DS__ENTER("ds_capture_update_dependencies");
    DS__REQUIRE(nodes || !count, "nodes is NULL");
    DS__REQUIRE(how <= DS_CAPTURE_SET_DEPENDENCIES, "%u is neither adding nor setting", how);
    ds__stream *s = ds__stream_pin(stream);
    if (!s)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = ds__stream_error(
        s, s->driver->capture_update(s->native, nodes, count, how == DS_CAPTURE_SET_DEPENDENCIES));
    ds__stream_unpin(s);
    return r;
}

DSDEF ds_result(ds_capture_exchange_mode)(ds_capture_mode *mode) {
    DS__ENTER("ds_capture_exchange_mode");
    DS__REQUIRE(mode, "mode is NULL");
    DS__REQUIRE((unsigned)*mode <= DS_CAPTURE_RELAXED, "%d is not a mode of capture", (int)*mode);
    ds_result r = DS_OK;
    for (int b = 0; b < DS_BACKEND_COUNT && r == DS_OK; b++)
        if (ds__g.driver[b])
            r = ds__g.driver[b]->capture_mode(*mode);
    if (r < 0)
        return r;
    ds_capture_mode before = ds__tls.mode;
    ds__tls.mode = *mode;
    *mode = before;
    return DS_OK;
}

DSDEF ds_result(ds_capture_function)(ds_stream stream, ds_capture_fn fn, void *user,
                                     ds_graph *out) {
    if (out)
        out->id = 0;
    DS__ENTER("ds_capture_function");
    DS__REQUIRE(out && fn, "%s is NULL", out ? "fn" : "out");
    ds_site site = ds__tls.site;
    ds_result r = ds__capture_begin(stream, DS_CAPTURE_THREAD_LOCAL);
    if (r < 0)
        return r;
    r = fn(stream, user);
    char before[sizeof ds__tls.error];
    ds_graph graph = { 0 };
    memcpy(before, ds__tls.error, sizeof before);
    ds__tls.fn = "ds_capture_function";
    ds__tls.site = site;
    ds_result end = ds__capture_end(stream, &graph);
    if (r >= 0) {
        *out = graph;
        return end;
    }
    memcpy(ds__tls.error, before, sizeof before); /* why it gave up */
    if (end == DS_OK) {
        ds__graph *g = ds__graph_take(graph);
        if (g) {
            ds__table_kill(&ds__g.graphs, g);
            DS_IGNORE(ds__graph_give(g, DS_OK));
        }
        ds__reclaim();
    }
    return r;
}

/* The seam for the allocator and the generators. What a stream captures may use memory that must
   not be used for anything else as long as the graph may run: such memory comes from a pool that
   belongs to the graph. This finds the object that was attached under `key` to the capture of
   the stream, or attaches what make_fn gives; release_fn runs once with it when the last graph,
   clone, executable or launch that has it is gone, on any thread, and may not call devstream.
   launch_fn, or NULL: see ds__launch_fn. *out NULL: the stream does not capture. make_fn gets
   the number of the capture. */
typedef ds_result (*ds__attachment_fn)(uint64_t capture, void *user, void **out);

__attribute__((unused)) static ds_result ds__capture_attachment(ds__stream *s, const void *key,
                                                                ds__attachment_fn make_fn,
                                                                void *user, ds_host_fn release_fn,
                                                                ds__launch_fn launch_fn,
                                                                void **out) {
    ds_capture_info info;
    ds__graph *g = NULL;
    ds_result r = DS_OK;
    *out = NULL;
    /* a graph that is gone since was that of a capture that is over */
    for (int i = 0; i < 100 && !g; i++) {
        if (DS__LIKELY(ds__captures_open() == 0))
            return DS_OK;
        memset(&info, 0, sizeof info);
        r = s->driver->capture_query(s->native, &info);
        if (r < 0 || info.status != DS_CAPTURE_ACTIVE || !info.graph.id)
            return r;
        g = ds__graph_take(info.graph);
    }
    if (!g)
        return DS_ERR_INVALID_HANDLE;
    for (size_t i = 0; i < g->body->object_count && !*out; i++)
        if (g->body->object[i]->key == key && g->body->object[i]->capture == info.id)
            *out = g->body->object[i]->user;
    if (!*out && (r = make_fn(info.id, user, out)) == DS_OK) {
        ds__object *o = ds__object_new(*out, release_fn);
        if (o)
            o->launch_fn = launch_fn;
        r = o ? ds__body_keep(g->body, o) : DS_ERR_OUT_OF_MEMORY;
        if (r == DS_OK && (r = g->body->driver->graph_attach(g->body, o)) < 0) {
            g->body->object_count--;
            atomic_fetch_sub(&o->owners, 1);
        }
        if (o) {
            o->key = key;
            o->capture = info.id;
        } else
            release_fn(*out);
        ds__object_drop(o);
        if (r < 0)
            *out = NULL;
    }
    return ds__graph_give(g, r);
}

/* core/dtype.h - data types: sizes, names, parsing.

   Holds the table of named data types, from the list DS_DTYPES. Computes sizes and converts data
   types to and from text (ds_dtype_print, ds_dtype_parse).

   Invariants: ds_dtype_parse reads back every text that ds_dtype_print writes. A type without a
   name is written as code:bits:lanes.
   Locks: none.
   Threads: any. ds_dtype_size and ds_dtype_equal do not start devstream. */

static const struct {
    const char *name;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} ds__dtypes[] = {

#define DS__DTYPE(name, code, bits, lanes) { #name, (uint8_t)(code), bits, lanes },
    DS_DTYPES(DS__DTYPE)
#undef DS__DTYPE
};
#define DS__DTYPE_COUNT (sizeof ds__dtypes / sizeof ds__dtypes[0])

DSDEF size_t(ds_dtype_size)(ds_dtype dtype) {
    size_t bits = (size_t)dtype.bits * dtype.lanes;
    return bits % 8 == 0 ? bits / 8 : 0;
}

DSDEF int(ds_dtype_equal)(ds_dtype a, ds_dtype b) {
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/* Into a buffer of DS_DTYPE_NAME_SIZE. */
DS__SEAM static const char *ds__dtype_name(ds_dtype dtype, char *out) {
    for (size_t i = 0; i < DS__DTYPE_COUNT; i++)
        if (ds__dtypes[i].code == dtype.code && ds__dtypes[i].bits == dtype.bits &&
            ds__dtypes[i].lanes == dtype.lanes)
            return ds__dtypes[i].name;
    snprintf(out, DS_DTYPE_NAME_SIZE, "%d:%d:%d", dtype.code, dtype.bits, dtype.lanes);
    return out;
}

DSDEF ds_result(ds_dtype_print)(ds_dtype dtype, char *out, size_t size) {
    char text[DS_DTYPE_NAME_SIZE];
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_dtype_print");
    const char *name = ds__dtype_name(dtype, text);
    DS__REQUIRE(out && strlen(name) < size, "out is NULL or has no room for \"%s\"", name);
    memcpy(out, name, strlen(name) + 1);
    return DS_OK;
}

DSDEF ds_result(ds_dtype_parse)(const char *text, ds_dtype *out) {
    static const struct {
        const char *name;
        const char *is;
    } more[] = { { "float", "float32" },   { "double", "float64" },   { "half", "float16" },
                 { "short", "int16" },     { "int", "int32" },        { "long", "int64" },
                 { "chalf", "complex32" }, { "cfloat", "complex64" }, { "cdouble", "complex128" } };

    unsigned n[3];
    int end = 0;
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_dtype_parse");
    DS__REQUIRE(text && out, "%s is NULL", text ? "out" : "text");
    const char *name = text;
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        if (strcmp(text, more[i].name) == 0)
            name = more[i].is;
    for (size_t i = 0; i < DS__DTYPE_COUNT; i++)
        if (strcmp(name, ds__dtypes[i].name) == 0) {
            *out = (ds_dtype){ ds__dtypes[i].code, ds__dtypes[i].bits, ds__dtypes[i].lanes };
            return DS_OK;
        }
    DS__REQUIRE(sscanf(text, "%3u:%3u:%5u%n", &n[0], &n[1], &n[2], &end) == 3 && !text[end] &&
                    n[0] < 256 && n[1] < 256 && n[2] < 65536,
                "there is no data type \"%.60s\"", text);
    *out = (ds_dtype){ (uint8_t)n[0], (uint8_t)n[1], (uint16_t)n[2] };
    return DS_OK;
}

/* core/shutdown.h - shutdown.

   Waits for all work, reports the objects that were not destroyed, and frees everything
   (ds_shutdown). After it, the next call starts devstream again.

   Invariants: the order is fixed: captures, synchronisation and drain of the devices,
   generators, allocator, thread states, executables, graphs, streams, events, kernels, memory,
   drivers. What is freed later is still there for the earlier steps. A failed device does not
   stop the shutdown; its error is returned at the end. NVML, range domains and the configuration
   end even if devstream was not in use.
   Locks: ds__g.mutex is held throughout, also over driver calls that block, the user's
   destructors and the log function. ds__g.lock guards the removal of each thread state.
   Threads: one thread, while no other is inside of devstream. It may be a thread without a
   state. Inside of user code that devstream runs, and in a forked child, the call is refused
   before the mutex is taken. */

static void ds__capture_give_up(ds__capture *c) {
    ds__warn("capture #%llu, begun at %s:%d, was not ended", (unsigned long long)c->id,
             c->begun.file ? c->begun.file : "?", c->begun.line);
    c->driver->capture_abandon(c);
    ds__capture_over(c, 1);
}

/* Reports and ends what the user left. */
static void ds__end_table(ds__table *t) {
    for (uint32_t i = 0; i < t->used; i++) {
        ds__slot *slot = ds__slot_at(t, i);
        if (DS__STATE(atomic_load(&slot->word)) == DS__FREE)
            continue;
        const char *label = NULL;
        ds_site made = { NULL, 0 };
        int ours = DS__STATE(atomic_load(&slot->word)) != DS__ALIVE;
        if (t == &ds__g.streams) {
            ds__stream *s = (ds__stream *)(void *)slot;
            label = s->label;
            made = s->made;
            ours |= s->kind != DS__STREAM_NEW;
        } else if (t == &ds__g.events) {
            label = ((ds__event *)(void *)slot)->label;
            made = ((ds__event *)(void *)slot)->made;
        } else if (t == &ds__g.graphs) {
            label = ((ds__graph *)(void *)slot)->label;
            made = ((ds__graph *)(void *)slot)->made;
        } else if (t == &ds__g.execs) {
            label = ((ds__exec *)(void *)slot)->label;
            made = ((ds__exec *)(void *)slot)->made;
        } else {
            label = ((ds__kernel *)(void *)slot)->name;
            made = ((ds__kernel *)(void *)slot)->made;
        }
        if (t == &ds__g.kernels && ((ds__kernel *)(void *)slot)->mark)
            (void)ds__kernel_may_free(slot);
        if (!ours)
            ds__warn("%s \"%s\", made at %s:%d, was not destroyed", t->what, label ? label : "",
                     made.file ? made.file : "?", made.line);
        t->free_fn(slot);
    }
    ds__table_destroy(t);
}

DSDEF ds_result(ds_shutdown)(void) {
    ds__tls_block *tls = &ds__tls;
    tls->fn = "ds_shutdown";
    tls->site = ds_call_site;
    ds_call_site.file = NULL;
    if (tls->in_callback || atomic_load(&ds__g.state) == DS__FORKED)
        return ds__enter_slow(tls);
    pthread_mutex_lock(&ds__g.mutex);
    int state = atomic_load(&ds__g.state);
    ds_result r = DS_OK;
    if (state == DS__READY) {
        /* of a thread that has not called devstream, or not since an earlier end: what follows
           pins */
        static ds__thread own;
        if (!tls->thread || tls->epoch != ds__g.epoch) {
            memset(&own, 0, sizeof own);
            own.device = ds__g.backend[0].device_count ? ds_cuda(0) : ds_cpu(0);
            tls->thread = &own;
            tls->epoch = ds__g.epoch;
        }
        while (ds__g.captures)
            ds__capture_give_up(ds__g.captures);
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            for (int i = 0; ds__g.driver[b] && i < ds__g.backend[b].device_count; i++) {
                ds_result one = ds__g.driver[b]->device_used(i)
                                    ? ds__g.driver[b]->device_synchronize(i)
                                    : DS_OK;
                if (r == DS_OK)
                    r = one;
            }
        for (int b = 0; b < DS_BACKEND_COUNT; b++)
            if (ds__g.driver[b])
                ds__g.driver[b]->drain(); /* whatever the result above */
        void (*shutdown_fn)(void) = atomic_load(&ds__upper.shutdown_fn);
        void (*rng_shutdown_fn)(void) = atomic_load(&ds__upper.rng_shutdown_fn);
        if (rng_shutdown_fn)
            rng_shutdown_fn();
        if (shutdown_fn)
            shutdown_fn();
        for (;;) {
            ds__lock_take(&ds__g.lock);
            ds__thread *t = ds__g.threads;
            if (t)
                ds__g.threads = t->next;
            ds__lock_give(&ds__g.lock);
            if (!t)
                break;
            ds__thread_free(t);
        }
        tls->thread = NULL;
        ds__end_table(&ds__g.execs);
        ds__end_table(&ds__g.graphs);
        ds__end_table(&ds__g.streams);
        ds__end_table(&ds__g.events);
        ds__end_table(&ds__g.kernels);
        ds__memory_end_all();
        for (int b = 0; b < DS_BACKEND_COUNT; b++) {
            if (ds__g.driver[b])
                ds__g.driver[b]->stop();
            ds__g.driver[b] = NULL;
        }
        ds__boards_end();
        ds__release(ds__g.legacy);
        ds__release(ds__g.label);
        ds__g.legacy = NULL;
        ds__g.label = NULL;
        pthread_key_delete(ds__g.key);
        atomic_store(&ds__g.dead, 0);
        ds__g.epoch++;
        atomic_store(&ds__g.state, DS__COLD);
    }
    ds__nvml_end();
    ds__ranges_end();
    ds__drop_desc();
    pthread_mutex_unlock(&ds__g.mutex);
    return r;
}

#endif /* C */
#endif /* DEVSTREAM_IMPLEMENTATION */

/* ----------------------------------------------------------------------------------------------
This software is available under two licences; choose whichever you prefer.

ALTERNATIVE A - MIT License. Copyright (c) 2026 the devstream authors
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions: The above copyright notice and this
permission notice shall be included in all copies or substantial portions of the Software.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

ALTERNATIVE B - Public Domain (www.unlicense.org)
This is free and unencumbered software released into the public domain. Anyone is free to copy,
modify, publish, use, compile, sell, or distribute this software, either in source code form or as a
compiled binary, for any purpose, commercial or non-commercial, and by any means. In jurisdictions
that recognize copyright laws, the author or authors of this software dedicate any and all copyright
interest in the software to the public domain. We make this dedication for the benefit of the public
at large and to the detriment of our heirs and successors. We intend this dedication to be an overt
act of relinquishment in perpetuity of all present and future rights to this software under
copyright law.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY,
WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
---------------------------------------------------------------------------------------------- */
