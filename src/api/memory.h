/* api/memory.h - device and host memory from the drivers.

   Declares plain allocation of device memory and pinned memory, registration of host memory, and
   queries about pointers.

   Threads: any. Functions that free or unregister memory block until the work of the device or of
   all devices is done. */
#ifndef DS__API_MEMORY_H
#define DS__API_MEMORY_H

#include "stream.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/** Kinds of memory that a pointer may point to. */
typedef enum ds_memory_kind {
    DS_MEMORY_PAGEABLE = 0,   /**< ordinary host memory */
    DS_MEMORY_PINNED = 1,     /**< host memory from ds_pinned_alloc */
    DS_MEMORY_REGISTERED = 2, /**< host memory passed to ds_pinned_register */
    DS_MEMORY_DEVICE = 3      /**< memory from ds_device_alloc */
} ds_memory_kind;

/** Result of ds_pointer_get_info. */
typedef struct ds_pointer_info {
    ds_memory_kind kind; /**< kind of memory */
    ds_device device;    /**< device memory: its device; host memory: the host */
    /** start of the allocation or registered range; NULL for pageable memory */
    void *base;
    size_t size;          /**< size of that range in bytes; 0 for pageable memory */
    uint64_t reserved[4]; /**< 0 */
} ds_pointer_info;

/** Allocates size bytes of uninitialised device memory, aligned to 512 bytes (CUDA: as cudaMalloc
    aligns, at least 256). Does not wait for work. size 0 sets *out to NULL and returns DS_OK.
    DS_ERR_OUT_OF_MEMORY: the device is full. Uncached; devstream_alloc.h has the caching
    allocator. */
DSDEF DS_MUST_USE ds_result ds_device_alloc(ds_device device, size_t size, void **out);
/** Allocates height rows of width bytes as ds_device_alloc does. *out_pitch is the distance between
    rows in bytes. DS_ERR_INVALID_VALUE: the size exceeds size_t. */
DSDEF DS_MUST_USE ds_result ds_device_alloc_pitch(ds_device device, size_t width, size_t height,
                                                  void **out, size_t *out_pitch);
/** Frees device memory. Blocks until all work of its device is complete, as cudaFree does. Does not
    wait for other devices' streams that copy to or from the memory. NULL is allowed.
    DS_ERR_INVALID_VALUE: any other pointer that is not the start of an allocation. */
DSDEF DS_MUST_USE ds_result ds_device_free(void *ptr);
/** Allocates pinned host memory, aligned to 512 bytes. Copies between pinned memory and any device
    do not block, and GPU kernels can use the same address. All pages are resident when the call
    returns. size 0 sets *out to NULL and returns DS_OK. */
DSDEF DS_MUST_USE ds_result ds_pinned_alloc(size_t size, void **out);

/** Flags of ds_pinned_desc. */
enum {
    DS_PINNED_NUMA_NODE = 1, /**< memory of the node ds_pinned_desc.numa_node */
    DS_PINNED_HUGE_PAGES = 2 /**< transparent huge pages of 2 MiB */
};

/** Where pinned memory shall be. */
typedef struct ds_pinned_desc {
    unsigned flags;       /**< DS_PINNED_*; 0: none */
    int numa_node;        /**< 0 to 1023; counts with DS_PINNED_NUMA_NODE */
    uint64_t reserved[4]; /**< 0 */
} ds_pinned_desc;

/** Allocates pinned host memory as the description says; free it with ds_pinned_free. Like
    ds_pinned_alloc, but the size is rounded up to whole pages, of 2 MiB with huge pages, and the
    memory is aligned to a page. Linux maps the pages, gives them memory of the node (another node
    if that one is full, mbind(2)) and makes huge pages of them if it has some (madvise(2)); then
    the driver pins them. /sys/bus/pci/devices/ has the node of a GPU under its PCI address.
    DS_ERR_INVALID_VALUE: unknown flags, or a node that does not exist or has no memory.
    DS_ERR_UNSUPPORTED: the system refuses the node or has no transparent huge pages. */
DSDEF DS_MUST_USE ds_result ds_pinned_alloc_with(size_t size, const ds_pinned_desc *desc,
                                                 void **out);
/** Frees pinned memory. Blocks until the work of all devices is complete, as cudaFreeHost may. NULL
    is allowed. */
DSDEF DS_MUST_USE ds_result ds_pinned_free(void *ptr);
/** Pins memory of the caller. The memory must stay valid until ds_pinned_unregister.
    DS_ERR_INVALID_VALUE: the range overlaps a known range. */
DSDEF DS_MUST_USE ds_result ds_pinned_register(void *ptr, size_t size);
/** Unpins memory; ptr is the start of the range passed to ds_pinned_register. Blocks until the work
    of all devices is complete. */
DSDEF DS_MUST_USE ds_result ds_pinned_unregister(void *ptr);
/** Returns the kind, device and range of the memory at ptr. Unknown addresses, NULL included, are
    pageable host memory. Callable anywhere; with a CUDA driver, memory that devstream does not know
    is DS_ERR_NOT_PERMITTED in user code, since CUDA cannot be asked there. */
DSDEF DS_MUST_USE ds_result ds_pointer_get_info(const void *ptr, ds_pointer_info *out);
/** Returns the device of the memory at ptr, which may lie anywhere inside an allocation. For host
    memory of any kind, returns the host. Callable anywhere, as ds_pointer_get_info is. */
DSDEF DS_MUST_USE ds_result ds_pointer_get_device(const void *ptr, ds_device *out);
/** Enters a scope; used by DS_DEVICE_OF_SCOPE. */
DSDEF ds_scope ds_device_of_scope_enter(const void *ptr);

#endif
