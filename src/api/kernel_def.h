/* api/kernel_def.h - kernels that a program defines with macros.

   Declares ds_kernel_def, which the kernel macros fill, and the functions that launch a defined
   kernel. Also declares the functions that the generated CPU form of a block kernel calls.

   Threads: any; several threads may launch one kernel. */
#ifndef DS__API_KERNEL_DEF_H
#define DS__API_KERNEL_DEF_H

#include "kernel.h"
#include "kernel_dims.h"

/* ---- definitions of kernels ------------------------------------------------------------------ */

/** A kernel that the macros DS_KERNEL_1D, DS_BLOCK_KERNEL_1D and their forms define: the static
    variable NAME_def. The first launch creates the kernel, ds_shutdown destroys it. */
typedef struct ds_kernel_def {
    const char *name;         /**< of the kernel, and of its function in the device code */
    const char *source;       /**< the kernel file, for messages */
    unsigned block;           /**< threads per block; 0: 256 */
    unsigned items_per_block; /**< 1: an item of a launch is a block; 0: a thread */
    size_t args_size;         /**< size of the argument struct in bytes */
    const ds_param *params;   /**< parameters of the CUDA form, in order */
    size_t param_count;       /**< number of parameters */
    ds_kernel_fn cpu_fn;      /**< CPU form */
    const char *const *ptx;   /**< PTX text in pieces, ends with NULL; NULL: no CUDA form */
    /** returns the bytes that a launch reads and writes, as in ds_kernel_desc */
    uint64_t (*bytes_fn)(size_t items, const void *args);
    /** writes the bytes that a launch accesses through each parameter, as in ds_kernel_desc */
    void (*extents_fn)(const void *args, size_t *out_bytes);
    uint64_t reserved[3];       /**< 0 */
    ds_kernel kernel;           /**< private: the kernel, once created */
    uint64_t epoch;             /**< private */
    struct ds_kernel_def *next; /**< private */
} ds_kernel_def;

/** Returns the kernel of a definition, for ds_kernel_load and graph nodes. The first call creates
   the kernel. The program must not destroy the kernel; ds_shutdown does. */
DSDEF DS_MUST_USE ds_result ds_kernel_def_get_kernel(ds_kernel_def *def, ds_kernel *out);
/** Launches a defined kernel in stream order. dims: numbers of items, or of blocks for a block
    kernel; if one is 0, nothing runs. args: the struct NAME_args, copied by the call. NAME_launch
    calls this function. DS_ERR_INVALID_VALUE: the product of dims exceeds size_t.
    DS_ERR_UNSUPPORTED: the stream is a GPU's and the kernel has no CUDA form; the message names the
    command that writes one. */
DSDEF DS_MUST_USE ds_result ds_kernel_def_launch(ds_kernel_def *def, ds_stream stream,
                                                 const ds_kernel_dims *dims, const void *args);

/** A block of a block kernel on the CPU driver. Private to the macros. */
typedef struct ds_kernel_block {
    unsigned index[3];   /**< of the block in the grid: x, y, z */
    unsigned grid[3];    /**< blocks of the grid */
    unsigned threads[3]; /**< threads of the block */
    int in_threads;      /**< 1: inside of a thread loop */
    char *scratch;       /**< memory for DS_SHARED and DS_PRIVATE, aligned to 64 bytes */
    size_t used;         /**< bytes of scratch in use */
} ds_kernel_block;

/** Bytes of scratch memory of a block: the shared memory of a GPU's block that needs no opt-in (48
    KiB), and 255 registers of 4 bytes for each of 1,024 threads. */
#define DS_KERNEL_SCRATCH_BYTES (48 * 1024 + 1024 * 1024)

/** Runs blocks first to first+count-1 of a grid on the calling thread. Only the CPU forms of block
    kernels call it. Returns 0, or the status with which the kernel fails. */
DSDEF int ds_kernel_run_blocks(void (*block_fn)(ds_kernel_block *block, const void *args),
                               const ds_kernel_dims *dims, size_t first, size_t count,
                               const void *args);
/** Ends the running block kernel with an error, because a block needs more scratch memory than
    DS_KERNEL_SCRATCH_BYTES. Does not return. */
DSDEF void ds_kernel_block_overflow(void);

/* Returns the first block of a grid, of which the extents of a block kernel use the size. */
static inline ds_kernel_block dsk__block_of(const ds_kernel_dims *dims) {
    ds_kernel_block b = { { 0, 0, 0 }, { 0, 0, 0 }, { 1, 1, 1 }, 0, NULL, 0 };
    for (int axis = 0; axis < 3; axis++)
        b.grid[axis] = (unsigned)dims->n[axis];
    return b;
}

/* Returns the bytes of an extent; SIZE_MAX: they exceed size_t. */
static inline size_t dsk__extent_bytes(uint64_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? SIZE_MAX : bytes;
}

/* Returns p, with the promise to compilers that no other pointer leads to its memory (`malloc`).
   Without the promise they load the kernel's inputs again after each store to this memory. Blocks
   use the same memory one after another, so each block must be a function call of its own. */
__attribute__((noinline, malloc, assume_aligned(64), unused)) static void *dsk__block_own(void *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* Takes count elements of the block's scratch memory. */
static inline void *dsk__block_take(ds_kernel_block *b, size_t size, size_t count) {
    size_t bytes = (size * count + 63) / 64 * 64;
    if (bytes > DS_KERNEL_SCRATCH_BYTES - b->used)
        ds_kernel_block_overflow();
    void *p = dsk__block_own(b->scratch + b->used);
    b->used += bytes;
#ifdef DEVSTREAM_KERNEL_DEBUG
    __builtin_memset(p, 0xff, bytes); /* NaN, so reads of unwritten elements are noticed */
#endif
    return p;
}

#endif
