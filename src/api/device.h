/* api/device.h - devices and backends.

   Declares device names and properties, the current device of a thread, memory information, peer
   access, and the figures of NVML.

   Threads: any. Each thread has its own current device. */
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

/** Size in bytes of the longest text written by ds_device_format, with the terminating zero. */
#define DS_DEVICE_NAME_SIZE 32
/** Number of backends: CUDA and CPU, in the order of their start. A program may use the devices of
    both. */
#define DS_BACKEND_COUNT 2

/** State of a backend, with the reason. */
typedef struct ds_backend_info {
    const char *name;     /**< "cuda", "cpu" */
    ds_device_type type;  /**< type of its devices */
    int available;        /**< 1 if its devices can be used */
    int device_count;     /**< number of devices; 0 if not available */
    char reason[192];     /**< one sentence */
    uint64_t reserved[4]; /**< 0 */
} ds_backend_info;

/** Returns the state of backend 0 .. DS_BACKEND_COUNT-1. DS_ERR_INVALID_VALUE for another index.
    Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_backend_get_info(int index, ds_backend_info *out);
/** Writes the states of all backends, one line each, into out (at most size bytes, always
    terminated). Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_backend_format(char *out, size_t size);
/** Returns 1 if a device of the type can be used, else 0. The host is not a device: 0.
    ds_backend_get_info returns the reason. Initialises devstream. Callable anywhere. */
DSDEF int ds_backend_is_available(ds_device_type type); /* takes a call site */
/** Returns 1 from the first call that initialises devstream until ds_shutdown, else 0. Does not
    initialise devstream. Callable anywhere. */
DSDEF int ds_is_initialized(void);
/** Writes the architectures of devstream's own device code into out, separated by blanks (at most
    size bytes, always terminated). CUDA: the compiled architectures ("sm_60" and so on), then the
    architecture of the embedded PTX ("compute_60"). Newer GPUs run the PTX. "" if CUDA is not
    compiled in. CPU: the processor's architecture, and "avx2" if reductions use AVX2.
    DS_ERR_INVALID_VALUE: the text does not fit. */
DSDEF DS_MUST_USE ds_result ds_backend_format_arch_list(ds_device_type type, char *out,
                                                        size_t size);

/** Properties of a device. Fields unknown to the driver are 0 or "". */
typedef struct ds_device_properties {
    char name[128];         /**< e.g. the model name */
    int major;              /**< compute capability, first number; 0 on a CPU device */
    int minor;              /**< compute capability, second number */
    size_t total_memory;    /**< bytes */
    int multiprocessors;    /**< GPU: multiprocessors; CPU: worker threads of the device */
    unsigned char uuid[16]; /**< unique across processes; ds_uuid_format formats it */
    char pci[20];           /**< "domain:bus:device.function", "" on a CPU device */
    int unified_addressing; /**< 1 if host and device pointers share one address space */
    uint64_t reserved[16];  /**< 0 */
} ds_device_properties;

/** X(name, value, meaning). The values are those of cudaDeviceAttr. A meaning without a unit is a
    number, or 1 for yes and 0 for no. COMPUTE_MODE: 0 any process, 2 none, 3 one process. */
/* clang-format off */
#define DS_ATTRIBUTES(X) \
    X(DS_ATTR_MAX_THREADS_PER_BLOCK, 1, "threads per block") \
    X(DS_ATTR_MAX_BLOCK_X, 2, "block size in x") \
    X(DS_ATTR_MAX_BLOCK_Y, 3, "block size in y") \
    X(DS_ATTR_MAX_BLOCK_Z, 4, "block size in z") \
    X(DS_ATTR_MAX_GRID_X, 5, "grid size in x") \
    X(DS_ATTR_MAX_GRID_Y, 6, "grid size in y") \
    X(DS_ATTR_MAX_GRID_Z, 7, "grid size in z") \
    X(DS_ATTR_SHARED_MEMORY_PER_BLOCK, 8, "shared memory per block (bytes)") \
    X(DS_ATTR_CONSTANT_MEMORY, 9, "constant memory (bytes)") \
    X(DS_ATTR_WARP_SIZE, 10, "threads per warp") \
    X(DS_ATTR_REGISTERS_PER_BLOCK, 12, "registers per block") \
    X(DS_ATTR_CLOCK_RATE, 13, "peak clock rate (kHz)") \
    X(DS_ATTR_MULTIPROCESSORS, 16, "multiprocessors") \
    X(DS_ATTR_KERNEL_TIMEOUT, 17, "time limit of kernels") \
    X(DS_ATTR_INTEGRATED, 18, "memory shared with the host") \
    X(DS_ATTR_CAN_MAP_HOST_MEMORY, 19, "kernels reach pinned memory") \
    X(DS_ATTR_COMPUTE_MODE, 20, "compute mode") \
    X(DS_ATTR_CONCURRENT_KERNELS, 31, "concurrent kernels") \
    X(DS_ATTR_ECC, 32, "ECC") \
    X(DS_ATTR_PCI_BUS, 33, "PCI bus") \
    X(DS_ATTR_PCI_DEVICE, 34, "PCI device") \
    X(DS_ATTR_MEMORY_CLOCK_RATE, 36, "peak memory clock rate (kHz)") \
    X(DS_ATTR_MEMORY_BUS_WIDTH, 37, "memory bus width (bits)") \
    X(DS_ATTR_L2_SIZE, 38, "L2 cache (bytes)") \
    X(DS_ATTR_MAX_THREADS_PER_MULTIPROCESSOR, 39, "threads per multiprocessor") \
    X(DS_ATTR_COPY_ENGINES, 40, "copy engines") \
    X(DS_ATTR_UNIFIED_ADDRESSING, 41, "unified addressing") \
    X(DS_ATTR_PCI_DOMAIN, 50, "PCI domain") \
    X(DS_ATTR_CAPABILITY_MAJOR, 75, "compute capability, first number") \
    X(DS_ATTR_CAPABILITY_MINOR, 76, "compute capability, second number") \
    X(DS_ATTR_SHARED_MEMORY_PER_MULTIPROCESSOR, 81, "shared memory per multiprocessor (bytes)") \
    X(DS_ATTR_REGISTERS_PER_MULTIPROCESSOR, 82, "registers per multiprocessor") \
    X(DS_ATTR_MANAGED_MEMORY, 83, "managed memory") \
    X(DS_ATTR_PAGEABLE_MEMORY_ACCESS, 88, "kernels reach pageable memory") \
    X(DS_ATTR_CONCURRENT_MANAGED_ACCESS, 89, "concurrent access to managed memory") \
    X(DS_ATTR_COOPERATIVE_LAUNCH, 95, "cooperative launches") \
    X(DS_ATTR_SHARED_MEMORY_PER_BLOCK_OPTIN, 97, "shared memory per block, on request (bytes)") \
    X(DS_ATTR_MAX_BLOCKS_PER_MULTIPROCESSOR, 106, "blocks per multiprocessor") \
    X(DS_ATTR_RESERVED_SHARED_MEMORY_PER_BLOCK, 111, "shared memory per block, reserved (bytes)") \
    X(DS_ATTR_MEMORY_POOLS, 115, "memory pools")

/* clang-format on */

/** Attributes of a device. */
typedef enum ds_attribute {

#define DS_ATTRIBUTE_ENUM_(name, value, text) name = value,
    DS_ATTRIBUTES(DS_ATTRIBUTE_ENUM_)
#undef DS_ATTRIBUTE_ENUM_
        DS_ATTRIBUTE_FORCE_INT_ = 0x7fffffff
} ds_attribute;

/** Returns the device cpu:index. */
DSINLINE ds_device ds_cpu(int index) {
    ds_device d;
    d.type = DS_DEVICE_CPU;
    d.index = index;
    return d;
}

/** Returns the device cuda:index. */
DSINLINE ds_device ds_cuda(int index) {
    ds_device d;
    d.type = DS_DEVICE_CUDA;
    d.index = index;
    return d;
}

/** Returns the placeholder for the calling thread's current device. */
DSINLINE ds_device ds_device_current(void) {
    ds_device d;
    d.type = DS_DEVICE_CURRENT;
    d.index = 0;
    return d;
}

/** Returns the number of devices of a type. DS_DEVICE_CURRENT: the type of the thread's current
    device. DS_DEVICE_HOST: 1. If no device of the type exists, sets *out_count to 0 and returns
    DS_OK. Callable anywhere. DS_ERR_INVALID_DEVICE: unknown type. */
DSDEF DS_MUST_USE ds_result ds_device_get_count(ds_device_type type, int *out_count);
/** Parses a device name: [blanks] ("cpu" | "custom_cpu" | "cuda" | "gpu" | "host") [":" index]
    [blanks]. All words except custom_cpu are case-insensitive. Without an index: the thread's
    current index if its current device has that type, else 0. "host" accepts only the index 0.
    Callable anywhere.
    Errors: DS_ERR_INVALID_DEVICE (malformed), DS_ERR_NO_DEVICE (no device of that type),
    DS_ERR_DEVICE_RANGE (index too large). */
DSDEF DS_MUST_USE ds_result ds_device_parse(const char *text, ds_device *out);
/** Writes "cpu:0", "cuda:1" or "host" into out. A zeroed device is resolved to the current device
    first. Callable anywhere. DS_ERR_INVALID_VALUE if size is too small (DS_DEVICE_NAME_SIZE always
    suffices). */
DSDEF DS_MUST_USE ds_result ds_device_format(ds_device device, char *out, size_t size);
/** Returns the thread's current device. Initially the default device of the process. Callable
    anywhere; threads of the library have the default device. */
DSDEF DS_MUST_USE ds_result ds_device_get_current(ds_device *out);
/** Returns the device with this index (from 0) of the type of the thread's current device, as
    cudaSetDevice(index) names one. The call that uses the device refuses an index that does not
    exist. Initialises devstream; if that fails, the call that uses the device fails, too. Callable
    anywhere. */
DSDEF ds_device ds_device_at(int index); /* takes a call site */
/** Sets the current device of the calling thread. A zeroed device or a negative index has no
    effect. DS_ERR_INVALID_VALUE: an index above 0 without a type. */
DSDEF DS_MUST_USE ds_result ds_device_set_current(ds_device device);
/** Sets the default device of the process, with which threads begin, and makes it current on the
    calling thread. Threads that have called devstream already keep their device. At the start it is
    ds_init_desc.device, else DEVSTREAM_DEVICE, else cuda:0 if available, else cpu:0. */
DSDEF DS_MUST_USE ds_result ds_device_set_default(ds_device device);
/** Returns the default device of the process. Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_device_get_default(ds_device *out);
/** Saves the thread's current device, then sets it as ds_device_set_current does. ds_device_pop
    restores the saved device, regardless of calls in between. Each thread has its own stack. A
    failed push leaves no entry. */
DSDEF DS_MUST_USE ds_result ds_device_push(ds_device device);
/** Undoes the thread's latest ds_device_push. DS_ERR_ILLEGAL_STATE if no push is open, or if a
    stream was pushed after the device. */
DSDEF DS_MUST_USE ds_result ds_device_pop(void);
/** Returns the properties of a device. Enqueues no work and does not wait. Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_device_get_properties(ds_device device, ds_device_properties *out);
/** Copies the device's name (ds_device_properties.name) into out (at most size bytes, always
    terminated). Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_device_get_name(ds_device device, char *out, size_t size);
/** Returns the compute capability of a device; 0 and 0 on a CPU device. Either pointer may be
    NULL. Callable anywhere. */
DSDEF DS_MUST_USE ds_result ds_device_get_capability(ds_device device, int *out_major,
                                                     int *out_minor);
/** Returns an attribute of a device. Name, memory and UUID are in ds_device_properties. For a CPU
    device, returns the limits that the driver enforces. DS_ERR_UNSUPPORTED: the device has no such
    hardware, or its driver does not know the attribute. DS_ERR_INVALID_VALUE: unknown attribute. */
DSDEF DS_MUST_USE ds_result ds_device_get_attribute(ds_device device, ds_attribute attribute,
                                                    int64_t *out);
/** Returns the meaning of an attribute ("threads per warp"), or "unknown". Callable anywhere. */
DSDEF const char *ds_attribute_get_name(ds_attribute attribute);
/** Writes a UUID as 36 characters and a terminating zero; size must be at least 37. Callable
    anywhere. */
DSDEF DS_MUST_USE ds_result ds_uuid_format(const unsigned char uuid[16], char *out, size_t size);
/** Returns the free and total bytes of a device; either pointer may be NULL. On a GPU, free memory
    also depends on other processes. */
DSDEF DS_MUST_USE ds_result ds_device_get_memory_info(ds_device device, size_t *out_free,
                                                      size_t *out_total);
/** Waits (blocks) until all work enqueued on the device's streams before the call is complete. Does
    not change the current device. */
DSDEF DS_MUST_USE ds_result ds_device_synchronize(ds_device device);
/** Clears the sticky failure of a CPU device. Waits (blocks) until its streams are drained; then
    they can be used again. Events recorded in failed work stay failed until they are recorded
    again. DS_ERR_UNSUPPORTED on CUDA: only a new process can use a failed context again. */
DSDEF DS_MUST_USE ds_result ds_device_reset(ds_device device);
/** Sets *out to 1 if `device` can access the memory of `peer` directly, else to 0. A device can
    access its own memory. The first copy or query enables the access. Without access, copies are
    staged through host memory. */
DSDEF DS_MUST_USE ds_result ds_device_can_access_peer(ds_device device, ds_device peer, int *out);
/** Returns the lowest (least urgent, 0) and highest (most urgent, negative) stream priority of a
    device, as cudaDeviceGetStreamPriorityRange does. */
DSDEF DS_MUST_USE ds_result ds_device_get_priority_range(ds_device device, int *out_least,
                                                         int *out_greatest);
/** Returns the utilization of a GPU in the driver's last sampling period. *out_gpu_percent:
    percentage of time in which a kernel ran. *out_memory_percent: percentage of time in which
    memory was read or written. Either pointer may be NULL. Uses NVML, the management library of
    NVIDIA's driver. The first such call loads NVML (DEVSTREAM_NVML: another name of
    libnvidia-ml.so.1); ds_shutdown unloads it. DS_ERR_UNSUPPORTED: the device is not a GPU, NVML is
    missing, or NVML does not support the query, as for most MIG instances. DS_ERR_DRIVER: NVML
    failed. */
DSDEF DS_MUST_USE ds_result ds_device_get_utilization(ds_device device, unsigned *out_gpu_percent,
                                                      unsigned *out_memory_percent);
/** Returns the temperature of a GPU in degrees Celsius. Errors as for ds_device_get_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_get_temperature(ds_device device, unsigned *out_celsius);
/** Returns the power draw of a GPU in milliwatts. Errors as for ds_device_get_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_get_power_draw(ds_device device, unsigned *out_milliwatts);
/** Returns the current clock rates of a GPU's multiprocessors and memory in MHz; either pointer may
    be NULL. Errors as for ds_device_get_utilization. */
DSDEF DS_MUST_USE ds_result ds_device_get_clock_rate(ds_device device, unsigned *out_sm_mhz,
                                                     unsigned *out_memory_mhz);
/** Sets the device's label for messages and timelines until ds_shutdown. At most 63 characters are
    copied; NULL removes the label. NVIDIA's tools also show the label of a GPU. */
DSDEF DS_MUST_USE ds_result ds_device_set_label(ds_device device, const char *label);
/** Copies the device's label into out (at most size bytes, always terminated); "" without a
    label. */
DSDEF DS_MUST_USE ds_result ds_device_get_label(ds_device device, char *out, size_t size);

#endif
