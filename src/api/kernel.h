/* api/kernel.h - kernels and launches.

   Declares the description of a kernel with its CPU form, CUDA form and parameters, and the
   functions that create, load, launch and destroy kernels.

   Threads: the CPU form runs on several threads at once, for different parts of a launch. */
#ifndef DS__API_KERNEL_H
#define DS__API_KERNEL_H

#include "stream.h"

/* ---- kernels --------------------------------------------------------------------------------- */

/** A kernel: a function over many items. A zeroed handle names no kernel. */
typedef struct ds_kernel {
    uint64_t id; /**< index and generation; 0: none */
} ds_kernel;

/** CPU form: processes items first .. first+count-1 with the arguments of the launch. Several
    threads may call the function concurrently for parts of the range, like the threads of a GPU. A
    launch of one item is one call. args is the copy of the struct, aligned to 16 bytes. Returns 0;
    another value fails the device, as a fault on a GPU does. */
typedef int (*ds_kernel_fn)(size_t first, size_t count, const void *args);

/** Kinds of parameters. */
typedef enum ds_param_kind {
    DS_PARAM_VALUE = 0,      /**< a value */
    DS_PARAM_READ = 1,       /**< a pointer to memory that is read */
    DS_PARAM_WRITE = 2,      /**< a pointer to memory that is written */
    DS_PARAM_READ_WRITE = 3, /**< a pointer to memory that is read and written */
    /** CUDA form only: index of the first item (size 4 or 8); not in the struct */
    DS_PARAM_FIRST = 4,
    /** CUDA form only: number of items (size 4 or 8); not in the struct */
    DS_PARAM_COUNT = 5
} ds_param_kind;

/** One parameter of a kernel, in the order of the CUDA form. */
typedef struct ds_param {
    ds_param_kind kind; /**< use of the parameter */
    size_t offset;      /**< offset in the argument struct, in bytes */
    size_t size;        /**< size in bytes; sizeof(void *) for a pointer */
} ds_param;

/** Ways to state the extent of a pointer parameter. */
typedef enum ds_extent_kind {
    DS_EXTENT_NONE = 0,  /**< not known: an access covers the whole block */
    DS_EXTENT_BYTES = 1, /**< `bytes` bytes */
    DS_EXTENT_COUNT = 2, /**< `bytes` bytes for each element, whose number is a parameter */
    /** `bytes` bytes for each item of the launch, `stride` bytes apart */
    DS_EXTENT_ITEMS = 3
} ds_extent_kind;

/** Memory that a launch accesses through a pointer parameter, for the check layer
    (devstream_check.h). Members that the kind does not use are 0. The extent of another parameter
    is zeroed. */
typedef struct ds_extent {
    ds_extent_kind kind; /**< form of the extent */
    int atomic;    /**< 1: by atomic operations only, which conflict only with other accesses */
    size_t bytes;  /**< see ds_extent_kind */
    size_t offset; /**< bytes from the pointer to the first access */
    size_t stride; /**< ITEMS: bytes from one item to the next; 0: `bytes` */
    /** COUNT: index in `params` of the number of elements, an unsigned integer of 4 or 8 bytes */
    size_t count_param;
} ds_extent;

/** Source of a kernel's CUDA form; unused on the CPU driver. The function gets exactly the listed
    parameters, in order. The GPU's driver compiles PTX at the first launch on a device, or in
    ds_kernel_load. */
typedef struct ds_kernel_cuda {
    const void *image; /**< PTX text, cubin or fatbin; must outlive the kernel */
    size_t image_size; /**< its size in bytes; 0: PTX text with a terminating zero */
    const char *entry; /**< name of the function in the image */
    /** alternative to image: a function that nvcc has registered with the cudart of devstream */
    const void *native_fn;
    /** threads per block of a launch over items; 0: 256. Item i is thread i, counted block by
        block. The last block may have more threads than items */
    unsigned block;
    unsigned shared_bytes; /**< dynamic shared memory per block of a launch over items, in bytes */
    /** items per block at a time; 0: one per thread */
    unsigned items_per_block;
    /** maximum of blocks per multiprocessor; the kernel then strides over the items by its number
        of blocks. 0: as many blocks as the items need */
    unsigned blocks_per_multiprocessor;
    /** alternative to image: PTX text as an array of strings, which are put together without a
        separator; NULL ends the array. C11 promises only 4,095 characters in one literal. Must
        outlive the kernel */
    const char *const *image_pieces;
    uint64_t reserved[3]; /**< 0 */
} ds_kernel_cuda;

/** Maximum number of parameters of a kernel. */
#define DS_KERNEL_MAX_PARAMS 256

/** Largest argument struct in bytes. */
#define DS_KERNEL_MAX_ARGS 4096

/** Parameters of ds_kernel_create. */
typedef struct ds_kernel_desc {
    const char *name;       /**< for messages; copied; required */
    ds_kernel_fn cpu_fn;    /**< the CPU form; NULL: the kernel cannot run on CPU devices */
    size_t args_size;       /**< size of the argument struct in bytes, 0 to DS_KERNEL_MAX_ARGS */
    const ds_param *params; /**< parameters; copied */
    size_t param_count;     /**< number of parameters */
    ds_kernel_cuda cuda;    /**< the CUDA form */
    /** CPU: minimum of items per call of cpu_fn; 0: 1; SIZE_MAX: launches are never split */
    size_t grain;
    /** CPU driver with a virtual clock (ds_cpu_fabric): returns the bytes read and written by a
        launch, which determine its duration. NULL: duration 0 */
    uint64_t (*bytes_fn)(size_t items, const void *args);
    /** extents of the parameters, one for each; copied; NULL: none is known. Only the check layer
        uses them */
    const ds_extent *extents;
    /** alternative to extents: writes the bytes that a launch accesses through each parameter, in
        order; param_count values. 0: no access. SIZE_MAX: not known; each value is SIZE_MAX before
        the call. Only the check layer calls it. Must not call devstream */
    void (*extents_fn)(const void *args, size_t *out_bytes);
    uint64_t reserved[6]; /**< 0 */
} ds_kernel_desc;

/** Flags of ds_grid. */
enum {
    /** All blocks run at once, so they may wait for one another. As many blocks as
        DS_ATTR_MULTIPROCESSORS, or as the stream's share has, always fit. DS_ERR_INVALID_VALUE: the
        blocks do not fit on the GPU; on a CPU device, they are more than DS_ATTR_MULTIPROCESSORS
        and more than 8, or more than the threads of the stream's share. DS_ERR_UNSUPPORTED: the
        device does not have DS_ATTR_COOPERATIVE_LAUNCH. On the CPU driver each block is one call of
        cpu_fn on a thread of its own, whatever the grain, and one such launch runs at a time. If a
        block returns a status while others wait for that block, the launch never ends there */
    DS_GRID_COOPERATIVE = 1,
    /** The kernel may start before the previous kernel of the stream has ended (programmatic
        dependent launch). Before the kernel touches memory of earlier work, it must wait itself
        (griddepcontrol.wait, cudaGridDependencySynchronize). The order of the stream is kept on the
        CPU driver, on GPUs before compute capability 9.0, and before CUDA 12.3. A capture takes
        the overlap into CUDA's graph; nodes that are added or set by hand refuse the flag */
    DS_GRID_OVERLAP = 2
};

/** An explicit launch configuration. Both drivers refuse a grid that exceeds the limits of all GPUs
    (CUDA C++ Programming Guide, "Compute Capabilities"). */
typedef struct ds_grid {
    /** blocks in x (1 to 2^31 - 1), y and z (at most 65,535); 0 means 1 in y and z */
    unsigned grid[3];
    /** threads per block in x, y, z; at most 1,024 in total and 64 in z; 0 means 1 */
    unsigned block[3];
    unsigned shared_bytes; /**< dynamic shared memory per block in bytes, at most 227 KiB */
    /** blocks per cluster in x, y, z, at most 8 in total, which divide the grid; 0 in x: no
        clusters; 0 means 1 in y and z. DS_ERR_UNSUPPORTED: the GPU has no clusters (compute
        capability 9.0). No further effect on the CPU driver */
    unsigned cluster[3];
    unsigned flags; /**< DS_GRID_* */
} ds_grid;

/** Creates a kernel for all devices without loading or compiling it. The caller must destroy it.
    DS_ERR_INVALID_VALUE: no name, no form, an image without a function name, a parameter outside
    the argument struct, or a wrong extent. If the image is PTX text, its parameter list is compared
    with the table, on every driver and without a GPU. DS_ERR_INVALID_VALUE: the text has no such
    function; the number of parameters or a size differs; the function uses a parameter as an
    address that the table calls a value, FIRST or COUNT; or it stores through a DS_PARAM_READ.
    Kinds are compared only if the text determines them. Cubins and fatbins are not read. */
DSDEF DS_MUST_USE ds_result ds_kernel_create(const ds_kernel_desc *desc, ds_kernel *out);
/** Loads the kernel on a device before its first launch there. Blocks while PTX is compiled; does
    nothing on a CPU device. DS_ERR_UNSUPPORTED: the kernel has no form for the device.
    DS_ERR_INVALID_VALUE: the driver refused the image; ds_error_get_last() has the driver's
    message. */
DSDEF DS_MUST_USE ds_result ds_kernel_load(ds_kernel kernel, ds_device device);
/** Destroys a kernel; the handle becomes invalid at once. Pending launches still run. The code of
    an image remains on a GPU until all its kernels are destroyed and the device was waited for
    (ds_device_synchronize, ds_device_free, ds_shutdown). Deferred in user code. */
DSDEF DS_MUST_USE ds_result ds_kernel_destroy(ds_kernel kernel);
/** Launches the kernel over items 0 .. items-1 in stream order. args_size must equal the desc's;
    the struct is copied by the call. items 0 does nothing. On CUDA, more items than a grid holds
    are launched in parts. Such a launch needs DS_PARAM_FIRST and DS_PARAM_COUNT in 8 bytes;
    otherwise it is refused. DS_ERR_UNSUPPORTED: the kernel has no form for the stream's device. */
DSDEF DS_MUST_USE ds_result ds_kernel_launch(ds_kernel kernel, size_t items, const void *args,
                                             size_t args_size, ds_stream stream);
/** Launches the kernel over an explicit grid, else as ds_kernel_launch does. In the CPU form, an
    item is the linear index of a thread, block by block (x fastest). */
DSDEF DS_MUST_USE ds_result ds_kernel_launch_grid(ds_kernel kernel, const ds_grid *grid,
                                                  const void *args, size_t args_size,
                                                  ds_stream stream);

#endif
