/* Host memory that ends after a number of blocks, for ds_init_desc.allocator, and the balance of
   the blocks. Any thread may allocate and free.

   A test sets scarce_left, makes one call, and asks scarce_end whether a block was refused. With
   scarce_left = 0, 1, 2, ... every allocation of the call is refused once. */
#ifndef SCARCE_H
#define SCARCE_H
#include <stdatomic.h>
#include <stdlib.h>

#define SCARCE \
    { scarce_alloc, scarce_free, NULL }

static _Atomic long scarce_left = -1; /* so many more blocks; -1: no limit */
static _Atomic int scarce_once;       /* 1: only one block is refused, and later ones are not */
static _Atomic size_t scarce_large;   /* blocks of so many bytes are refused; 0: none */
static _Atomic long scarce_held;      /* blocks that were allocated and not freed */
static _Atomic long scarce_taken;     /* blocks that were allocated */
static _Atomic int scarce_refused;    /* 1: a block was refused */

static void *scarce_alloc(size_t size, void *user) {
    (void)user;
    size_t large = scarce_large;
    long left = scarce_left;
    while (left >= 0 &&
           !atomic_compare_exchange_weak(&scarce_left, &left, left || scarce_once ? left - 1 : 0)) {
    }
    if (left == 0 || (large && size >= large)) {
        scarce_refused = 1;
        return NULL;
    }
    scarce_held++;
    scarce_taken++;
    return malloc(size);
}

static void scarce_free(void *ptr, void *user) {
    (void)user;
    scarce_held -= ptr != NULL;
    free(ptr);
}

static inline void scarce_begin(long blocks) {
    scarce_refused = 0;
    scarce_left = blocks;
}

/* Ends the limit; returns 1 if a block was refused. */
static inline int scarce_end(void) {
    scarce_left = -1;
    return scarce_refused;
}

#endif
