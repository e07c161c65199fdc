/* api/device.h - devices and backends.

   Declares device names and properties, the current device of a thread, memory information, peer
   access, and the figures of NVML.

   Threads: any. Each thread has a current device of its own. */
#ifndef DS__API_DEVICE_H
#define DS__API_DEVICE_H

#include "result.h"

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

/** Longest text that ds_device_format writes, with the terminating zero. */
#define DS_DEVICE_NAME_SIZE 32
/** Number of backends: CUDA and CPU, in the order in which they are tried. A program can use the
    devices of both. */
#define DS_BACKEND_COUNT 2

/** What was tried and why it was or was not taken. */
typedef struct ds_backend_info {
    const char *name;     /**< "cuda", "cpu" */
    ds_device_type type;  /**< type of its devices */
    int available;        /**< 1 when its devices can be used */
    int device_count;     /**< number of devices, 0 when not available */
    char reason[192];     /**< one sentence */
    uint64_t reserved[4]; /**< 0 */
} ds_backend_info;

/** Fills *out for backend 0 .. DS_BACKEND_COUNT-1. DS_ERR_INVALID_VALUE for another index. */
DSDEF DS_MUST_USE ds_result ds_backend_get_info(int index, ds_backend_info *out);
/** Writes the whole report, one line per backend, into out (at most size bytes, always
    terminated). */
DSDEF DS_MUST_USE ds_result ds_backend_format(char *out, size_t size);
/** 1 when there is a device of the type that can be used, else 0 (the host is none);
    ds_backend_get_info has the reason. Starts devstream. */
DSDEF int ds_backend_is_available(ds_device_type type); /* takes a call site */
/** 1 from the first call that starts devstream until ds_shutdown, else 0. Starts nothing.
    Callable anywhere. */
DSDEF int ds_is_initialized(void);
/** What devstream's own device code runs on, words with blanks between them, into out (at most
    size bytes, always terminated). On CUDA devices: the architectures known to this version,
    "sm_60" and so on, and last the one that the embedded PTX is written for, "compute_60": newer
    GPUs than those that are listed run it too. "" when CUDA is not compiled in. On CPU devices:
    the processor's architecture, and "avx2" where sums use it. DS_ERR_INVALID_VALUE: the words
    do not fit. */
DSDEF DS_MUST_USE ds_result ds_backend_format_arch_list(ds_device_type type, char *out,
                                                        size_t size);

/** What a device is. Fields that a driver does not know are 0 or "". */
typedef struct ds_device_properties {
    char name[128];         /**< e.g. the model name */
    int major;              /**< compute capability, first number; 0 on a CPU device */
    int minor;              /**< compute capability, second number */
    size_t total_memory;    /**< bytes */
    int multiprocessors;    /**< GPU: multiprocessors; CPU: worker threads that serve it */
    unsigned char uuid[16]; /**< identifies the device across processes; ds_uuid_format writes it */
    char pci[20];           /**< "domain:bus:device.function", "" on a CPU device */
    int unified_addressing; /**< 1 when host and device pointers share one address space */
    uint64_t reserved[16];  /**< 0 */
} ds_device_properties;

/** The device cpu:index. */
DSINLINE ds_device ds_cpu(int index) {
    ds_device d;
    d.type = DS_DEVICE_CPU;
    d.index = index;
    return d;
}

/** The device cuda:index. */
DSINLINE ds_device ds_cuda(int index) {
    ds_device d;
    d.type = DS_DEVICE_CUDA;
    d.index = index;
    return d;
}

/** The calling thread's current device. */
DSINLINE ds_device ds_device_current(void) {
    ds_device d;
    d.type = DS_DEVICE_CURRENT;
    d.index = 0;
    return d;
}

/** Number of devices of a type. DS_DEVICE_CURRENT counts the type of the thread's current
    device. A type without any gives 0 and DS_OK; the host counts as one. A number that is no
    type is DS_ERR_INVALID_DEVICE. */
DSDEF DS_MUST_USE ds_result ds_device_get_count(ds_device_type type, int *out_count);
/** Reads a device name: [blanks] ("cpu" | "custom_cpu" | "cuda" | "gpu" | "host") [":" index]
    [blanks]; the words in any case except custom_cpu. Without an index: the thread's current
    index when its device has that type, else 0. "host" takes no index but 0.
    DS_ERR_INVALID_DEVICE: malformed; DS_ERR_NO_DEVICE: no device of that type here;
    DS_ERR_DEVICE_RANGE: index too large. */
DSDEF DS_MUST_USE ds_result ds_device_parse(const char *text, ds_device *out);
/** Writes "cpu:0", "cuda:1" or "host"; the current device is resolved first.
    DS_ERR_INVALID_VALUE when size is too small (DS_DEVICE_NAME_SIZE always suffices). */
DSDEF DS_MUST_USE ds_result ds_device_format(ds_device device, char *out, size_t size);
/** The thread's current device; at first cuda:0 when there is one, else cpu:0. */
DSDEF DS_MUST_USE ds_result ds_device_get_current(ds_device *out);
/** Makes a device current for the calling thread. A zeroed device or a negative index changes
    nothing. DS_ERR_INVALID_VALUE: an index above 0 without a type. */
DSDEF DS_MUST_USE ds_result ds_device_set_current(ds_device device);
/** As ds_device_set_current, and remembers the device that was current; ds_device_pop returns to
    exactly that one, whatever was set in between. Frames belong to the thread. A push that fails
    leaves no frame. */
DSDEF DS_MUST_USE ds_result ds_device_push(ds_device device);
/** Undoes the thread's latest ds_device_push. DS_ERR_ILLEGAL_STATE without one, or when a stream
    was pushed after it. */
DSDEF DS_MUST_USE ds_result ds_device_pop(void);
/** What a device is. Puts nothing on a GPU and waits for nothing. */
DSDEF DS_MUST_USE ds_result ds_device_get_properties(ds_device device, ds_device_properties *out);
/** The name among the properties, copied into out (at most size bytes, always terminated). */
DSDEF DS_MUST_USE ds_result ds_device_get_name(ds_device device, char *out, size_t size);
/** The compute capability among the properties; 0 and 0 on a CPU device. Either pointer may be
    NULL. */
DSDEF DS_MUST_USE ds_result ds_device_get_capability(ds_device device, int *out_major,
                                                     int *out_minor);
/** Writes a uuid as 36 characters and a zero; size must be at least 37. Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_uuid_format(const unsigned char uuid[16], char *out, size_t size);
/** Free and total bytes of a device; either pointer may be NULL. On a GPU other processes count
    too. */
DSDEF DS_MUST_USE ds_result ds_device_get_memory_info(ds_device device, size_t *out_free,
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
DSDEF DS_MUST_USE ds_result ds_device_get_priority_range(ds_device device, int *out_least,
                                                         int *out_greatest);
/** How busy a GPU was in the driver's last sampling period: percent of the time in which a
    kernel ran, and in which its memory was read or written. Either pointer may be NULL. Asks
    NVML, the library of NVIDIA's driver, which is loaded by the first such question
    (DEVSTREAM_NVML: another name of libnvidia-ml.so.1) and kept until ds_shutdown.
    DS_ERR_UNSUPPORTED: the device is no GPU, there is no NVML, or it does not know that of this
    device, as of most parts of a GPU (MIG); DS_ERR_DRIVER: NVML failed. */
DSDEF DS_MUST_USE ds_result ds_device_get_utilization(ds_device device, unsigned *out_gpu_percent,
                                                      unsigned *out_memory_percent);
/** Temperature of a GPU in degrees Celsius. Else as ds_device_get_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_get_temperature(ds_device device, unsigned *out_celsius);
/** What a GPU draws, in milliwatts. Else as ds_device_get_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_get_power_draw(ds_device device, unsigned *out_milliwatts);
/** Present clocks of a GPU's multiprocessors and of its memory, in MHz; either pointer may be
    NULL. Else as ds_device_get_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_get_clock_rate(ds_device device, unsigned *out_sm_mhz,
                                                     unsigned *out_memory_mhz);
/** Gives the device a label, for messages and timelines, of which 63 characters are copied;
    NULL: none. It stays until ds_shutdown. On a GPU, NVIDIA's tools get it too. */
DSDEF DS_MUST_USE ds_result ds_device_set_label(ds_device device, const char *label);
/** The device's label, copied into out (at most size bytes, always terminated); "" without one. */
DSDEF DS_MUST_USE ds_result ds_device_get_label(ds_device device, char *out, size_t size);

#endif
