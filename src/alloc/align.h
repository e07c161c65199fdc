/* alloc/align.h - aligned allocations.

   Serves requests with an alignment above 512 bytes. ds__align_wanted cuts the front off a live
   block, so that the block starts aligned. The front and the unused end go back to the arena. The
   caller is ds__request_serve in allocate.h.

   Invariants: The block is live, was found for this request, and is larger than the request by
   the alignment. Label, call site and stream uses (ds__stream_use) move to the aligned block. If
   ds__align_wanted returns 0, nothing was cut and the caller must free the block. The unused end
   stays part of the block if the policy does not split there or if host memory is short.
   Locks: ds__align_wanted expects no lock and takes the lock of the block's arena. After
   cross-stream reuse, that arena is not the request's arena. If the counters need room, all locks
   of the device are taken for a moment (ds__arena_lock_ready). New descriptions may call the
   program's memory functions under the arena's lock. No driver call is made.
   Threads: any caller's thread; no other thread knows the block yet. */
#ifndef DS__ALLOC_ALIGN_H
#define DS__ALLOC_ALIGN_H

#include "types.h"
#include "util.h"
#include "counters.h"
#include "bins.h"
#include "block.h"
#include "locks.h"
#include "request.h"

/* Cuts the front off the request's block and frees it: the rest becomes the request's block.
   Returns 0 without host memory; then nothing has changed. The arena is locked and can count. */
static int ds__align_front_cut(ds__arena *a, ds__wanted *q, size_t front) {
    ds__mem_block *b = q->block;
    ds__mem_block *rest = ds__block_cut(a, b, front);
    if (!rest)
        return 0;
    ds__live_out(b);
    rest->asked = b->asked;
    rest->label = b->label;
    rest->file = b->file;
    rest->line = b->line;
    rest->uses = b->uses;
    rest->lent = b->lent;
    rest->oversize = b->oversize;
    b->oversize = 0;
    rest->state = DS_BLOCK_LIVE;
    b->uses = NULL;
    b->lent = 0;
    ds__live_in(a, rest);
    ds__count_less(a, q->kind, 0, (int64_t)front, 0);
    b->asked = 0;
    (void)ds__merge_in(a, b);
    q->block = rest;
    return 1;
}

/* Cuts the front of the request's block off so that the block starts aligned, and the end behind
   `size` bytes. The block is larger than `size` by the alignment. Returns 0 without host memory. */
static int ds__align_wanted(ds__wanted *q, size_t align, size_t size) {
    ds__arena *a = atomic_load(&q->block->seg->arena);
    size_t front = (align - (size_t)((uintptr_t)q->block->ptr & (align - 1))) & (align - 1);
    ds__arena_lock_ready(a, q->kind);
    if (front && !ds__align_front_cut(a, q, front)) {
        ds__arena_unlock(a);
        return 0;
    }

    ds__mem_block *b = q->block;
    ds__mem_block *rest = ds__block_may_split(a->pool, b, size) ? ds__block_cut(a, b, size) : NULL;
    if (rest) {
        ds__count_less(a, q->kind, 0, (int64_t)rest->size, 0);
        (void)ds__merge_in(a, rest);
    }
    ds__arena_unlock(a);
    return 1;
}

#endif
