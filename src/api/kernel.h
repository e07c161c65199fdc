/* api/kernel.h - kernels and launches.

   Declares the description of a kernel with its CPU form, CUDA form and parameters, and the
   functions that create, load, launch and destroy kernels.

   Threads: the CPU form runs on several threads at once, for different parts of a launch. */
#ifndef DS__API_KERNEL_H
#define DS__API_KERNEL_H

#include "stream.h"

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
    uint64_t reserved[4]; /**< 0 */
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
    uint64_t reserved[8]; /**< 0 */
} ds_kernel_desc;

/** An explicit launch configuration. Both drivers refuse a grid that no GPU takes (CUDA C++
    Programming Guide, "Compute Capabilities"). */
typedef struct ds_grid {
    /** blocks in x (1 to 2^31 - 1), y and z (at most 65,535); 0 counts as 1 in y and z */
    unsigned grid[3];
    /** threads of a block in x, y, z, at most 1,024 together and 64 in z; 0 counts as 1 */
    unsigned block[3];
    unsigned shared_bytes; /**< dynamic shared memory of a block, at most 227 KiB */
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
    (ds_device_synchronize, ds_device_free, ds_shutdown). */
DSDEF DS_MUST_USE ds_result ds_kernel_destroy(ds_kernel kernel);
/** Launches the kernel over items 0 .. items-1 in stream order. args_size must be the one of the
    desc; the struct is copied before the call returns. items 0 does nothing. DS_ERR_UNSUPPORTED
    when the kernel has no form for the stream's device. On CUDA more items than a grid holds are
    launched in parts if the kernel takes DS_PARAM_FIRST and DS_PARAM_COUNT in 8 bytes, else
    refused. */
DSDEF DS_MUST_USE ds_result ds_kernel_launch(ds_kernel kernel, size_t items, const void *args,
                                             size_t args_size, ds_stream stream);
/** Launches the kernel over an explicit grid. The CPU form gets the linear index of the thread,
    block by block (x fastest), as its item. */
DSDEF DS_MUST_USE ds_result ds_kernel_launch_grid(ds_kernel kernel, const ds_grid *grid,
                                                  const void *args, size_t args_size,
                                                  ds_stream stream);

#endif
