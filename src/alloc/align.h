/* alloc/align.h - special requests. */
#ifndef DS__ALLOC_ALIGN_H
#define DS__ALLOC_ALIGN_H

#include "types.h"
#include "util.h"
#include "locks.h"
#include "counters.h"
#include "block.h"
#include "reuse.h"

/* Cuts the front of a block off so that it starts aligned, and what is behind `size`; the
   request was larger by the alignment. 0: no memory. */
static int ds__align(ds__wanted *q, size_t align, size_t size) {
    ds__mblock *b = q->block;
    ds__arena *a = atomic_load(&b->seg->arena);
    size_t front = (align - (size_t)((uintptr_t)b->ptr & (align - 1))) & (align - 1);
    ds__arena_lock(a);
    while (!ds__ready(a, q->kind, 0)) {
        ds__make_ready(a, q->kind, 0);
        ds__arena_lock(a);
    }
    ds__mblock *rest = front ? ds__cut(a, b, front) : NULL;
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
    const ds__mpool *p = a->pool;
    size_t behind = b->size - size;
    int cut = behind >= (ds__grows(b->seg) ? DS__UNIT : p->split_above[q->kind]) &&
              (size < p->config.max_split_size || q->kind == DS__SMALL || ds__grows(b->seg));
    if (cut && (rest = ds__cut(a, b, size)) != NULL) {
        ds__count_less(a, q->kind, 0, (int64_t)behind, 0);
        (void)ds__merge_in(a, rest);
    }
    ds__arena_unlock(a);
    return 1;
}

#endif
