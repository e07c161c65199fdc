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
   of the device are taken for a moment (ds__make_ready). New descriptions may call the program's
   memory functions under the arena's lock. No driver call is made.
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

/* Cuts the front of a block off so that it starts aligned, and what is behind `size`; the
   request was larger by the alignment. 0: no memory. */
static int ds__align_wanted(ds__wanted *q, size_t align, size_t size) {
    ds__mem_block *b = q->block;
    ds__arena *a = atomic_load(&b->seg->arena);
    size_t front = (align - (size_t)((uintptr_t)b->ptr & (align - 1))) & (align - 1);
    ds__arena_lock(a);
    while (!ds__counter_room_ready(a, q->kind, 0)) {
        ds__make_ready(a, q->kind, 0);
        ds__arena_lock(a);
    }
    ds__mem_block *rest = front ? ds__block_cut(a, b, front) : NULL;
    if (front && !rest) {
        ds__arena_unlock(a);
        return 0;
    }
    if (rest) { /* the front is freed, the rest is the block */
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
        q->block = b = rest;
    }
    const ds__mem_pool *p = a->pool;
    size_t behind = b->size - size;
    int cut =
        behind >= (ds__segment_is_growing(b->seg) ? DS__UNIT : p->split_above[q->kind]) &&
        (size < p->config.max_split_size || q->kind == DS__SMALL || ds__segment_is_growing(b->seg));
    if (cut && (rest = ds__block_cut(a, b, size)) != NULL) {
        ds__count_less(a, q->kind, 0, (int64_t)behind, 0);
        (void)ds__merge_in(a, rest);
    }
    ds__arena_unlock(a);
    return 1;
}

#endif
