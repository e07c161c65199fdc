/* kernel/scratch.h - blocks of block kernels on the CPU.

   Runs the blocks of a piece of a launch (ds_kernel_run_blocks) with scratch memory for their shared
   and private variables, which the generated code takes from the front.

   Policy: scratch memory is not on the stack of the worker, since a block may need a megabyte. A
   piece takes the chunk that was used last, which is most likely in the cache, and returns it.
   There are as many chunks as pieces have run at the same time, until ds_shutdown.

   Invariants: a chunk belongs to one running piece, or is in the list.
   Locks: `lock` guards the list, for some instructions.
   Threads: workers and waiting host threads. */
#ifndef DS__KERNEL_SCRATCH_H
#define DS__KERNEL_SCRATCH_H

#include "../api/kernel_def.h"
#include "../base/bookkeeping.h"
#include "../base/error.h"
#include "../core/internal.h"

#include <setjmp.h>

typedef struct ds__scratch {
    struct ds__scratch *next;
    char *memory; /* DS_KERNEL_SCRATCH_BYTES, aligned to 64 bytes, behind this struct */
} ds__scratch;

static struct {
    ds__lock lock;
    ds__scratch *list; /* the one used last in front */
} ds__scratch_state;

/* Where ds_kernel_block_overflow returns to: the running piece of the thread. */
static _Thread_local jmp_buf *ds__scratch_overflow;

/* Returns a chunk. NULL: no memory. */
static ds__scratch *ds__scratch_take(void) {
    ds__lock_take(&ds__scratch_state.lock);
    ds__scratch *chunk = ds__scratch_state.list;
    if (chunk)
        ds__scratch_state.list = chunk->next;
    ds__lock_give(&ds__scratch_state.lock);
    if (chunk)
        return chunk;
    chunk = ds__host_alloc(sizeof *chunk + DS_KERNEL_SCRATCH_BYTES + 64);
    if (chunk)
        chunk->memory = (char *)(((uintptr_t)(chunk + 1) + 63) & ~(uintptr_t)63);
    return chunk;
}

static void ds__scratch_put(ds__scratch *chunk) {
    ds__lock_take(&ds__scratch_state.lock);
    chunk->next = ds__scratch_state.list;
    ds__scratch_state.list = chunk;
    ds__lock_give(&ds__scratch_state.lock);
}

/* At shutdown, when no kernel runs. */
static void ds__scratch_free_all(void) {
    while (ds__scratch_state.list) {
        ds__scratch *chunk = ds__scratch_state.list;
        ds__scratch_state.list = chunk->next;
        ds__host_free(chunk);
    }
}

/* Runs the blocks in the order of their numbers. Returns the status of the kernel. */
static int ds__blocks_run(void (*block_fn)(ds_kernel_block *block, const void *args),
                          ds_kernel_block *b, size_t count, const void *args) {
    for (size_t i = 0; i < count; i++) {
        b->used = 0;
        b->in_threads = 0;
        block_fn(b, args);
        if (b->in_threads)
            return DS__KERNEL_LOOP_LEFT;
        if (++b->index[0] == b->grid[0]) {
            b->index[0] = 0;
            if (++b->index[1] == b->grid[1]) {
                b->index[1] = 0;
                b->index[2]++;
            }
        }
    }
    return 0;
}

/* The same; ds_kernel_block_overflow returns to here. */
static int ds__blocks_guard(void (*block_fn)(ds_kernel_block *block, const void *args),
                            ds_kernel_block *b, size_t count, const void *args) {
    jmp_buf overflow;
    jmp_buf *outer = ds__scratch_overflow;
    ds__scratch_overflow = &overflow;
    int status =
        setjmp(overflow) ? DS__KERNEL_SCRATCH_SPENT : ds__blocks_run(block_fn, b, count, args);
    ds__scratch_overflow = outer;
    return status;
}

DSDEF int(ds_kernel_run_blocks)(void (*block_fn)(ds_kernel_block *block, const void *args),
                                const ds_kernel_dims *dims, size_t first, size_t count,
                                const void *args) {
    ds__scratch *chunk = ds__scratch_take();
    if (!chunk)
        return DS__KERNEL_NO_SCRATCH;
    ds_kernel_block b = { .scratch = chunk->memory };
    size_t row = first / dims->n[0];
    b.index[0] = (unsigned)(first - row * dims->n[0]);
    b.index[1] = (unsigned)(row % dims->n[1]);
    b.index[2] = (unsigned)(row / dims->n[1]);
    for (int axis = 0; axis < 3; axis++)
        b.grid[axis] = (unsigned)dims->n[axis];
    int status = ds__blocks_guard(block_fn, &b, count, args);
    ds__scratch_put(chunk);
    return status;
}

DSDEF void(ds_kernel_block_overflow)(void) {
    longjmp(*ds__scratch_overflow, 1);
}

#endif
