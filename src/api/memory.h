/* api/memory.h - device and host memory from the drivers.

   Declares plain allocation of device memory and pinned memory, registration of host memory, and
   queries about pointers.

   Threads: any. Functions that free or unregister memory block until the work of the device or
   of all devices is done. */
#ifndef DS__API_MEMORY_H
#define DS__API_MEMORY_H

#include "stream.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/** Kinds of memory a pointer may point to. */
typedef enum ds_memory_kind {
    DS_MEMORY_PAGEABLE = 0,   /**< ordinary host memory */
    DS_MEMORY_PINNED = 1,     /**< host memory from ds_pinned_alloc */
    DS_MEMORY_REGISTERED = 2, /**< host memory given to ds_pinned_register */
    DS_MEMORY_DEVICE = 3      /**< memory from ds_device_alloc */
} ds_memory_kind;

/** What ds_pointer_get_info tells. */
typedef struct ds_pointer_info {
    ds_memory_kind kind; /**< kind of memory */
    ds_device device;    /**< device memory: its device; else host */
    /** start of the allocation or registered range; NULL for pageable memory */
    void *base;
    size_t size;          /**< its size in bytes; 0 for pageable memory */
    uint64_t reserved[4]; /**< 0 */
} ds_pointer_info;

/** Allocates size bytes of device memory, aligned to 512 (on CUDA: as cudaMalloc does, to 256 at
    least). Does not wait for any work. size 0 gives NULL and DS_OK. Uninitialised.
    DS_ERR_OUT_OF_MEMORY: the device is full. (Plain; devstream_alloc.h has the caching
    allocator.) */
DSDEF DS_MUST_USE ds_result ds_device_alloc(ds_device device, size_t size, void **out);
/** Allocates height rows of width bytes; *out_pitch is the distance of rows in bytes.
    DS_ERR_INVALID_VALUE: more bytes than a size_t counts. Else as ds_device_alloc. */
DSDEF DS_MUST_USE ds_result ds_device_alloc_pitch(ds_device device, size_t width, size_t height,
                                                  void **out, size_t *out_pitch);
/** Frees device memory. Blocks until all work of its device is done, as cudaFree does; not that
    of other devices whose streams copy to or from it. NULL is allowed. Anything that is not the
    start of an allocation is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_device_free(void *ptr);
/** Allocates pinned host memory, which copies of all devices reach without blocking, and kernels
    of GPUs at the same address; aligned to 512. All its pages are there when the call returns.
    size 0 gives NULL and DS_OK. */
DSDEF DS_MUST_USE ds_result ds_pinned_alloc(size_t size, void **out);
/** Frees it; blocks until the work of all devices is done, as cudaFreeHost may. NULL is allowed. */
DSDEF DS_MUST_USE ds_result ds_pinned_free(void *ptr);
/** Pins memory of the caller's, which must stay until ds_pinned_unregister. A range that touches a
    known one is DS_ERR_INVALID_VALUE. */
DSDEF DS_MUST_USE ds_result ds_pinned_register(void *ptr, size_t size);
/** Undoes ds_pinned_register; ptr is the start of the range. Blocks until the work of all devices
    is done. */
DSDEF DS_MUST_USE ds_result ds_pinned_unregister(void *ptr);
/** Tells what a pointer points to. Unknown addresses, NULL included, are pageable host memory. */
DSDEF DS_MUST_USE ds_result ds_pointer_get_info(const void *ptr, ds_pointer_info *out);
/** The device of the memory at ptr, any address inside of an allocation; for host memory, of any
    kind, the host. */
DSDEF DS_MUST_USE ds_result ds_pointer_get_device(const void *ptr, ds_device *out);
/** Enters a scope; used by DS_DEVICE_OF_SCOPE. */
DSDEF ds_scope ds_device_of_scope_enter(const void *ptr);

#endif
