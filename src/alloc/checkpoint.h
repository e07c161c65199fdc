/* alloc/checkpoint.h - checkpoints of pools.

   Implements ds_pool_save, ds_pool_restore, ds_pool_checkpoint_destroy and ds_pool_check_live. A
   checkpoint lists the live blocks of a pool. ds_pool_restore first plans (ds__rewind_plan);
   then it frees blocks and makes blocks live again at their old addresses (ds__rewind_all).

   Invariants: A checkpoint belongs to one pool and lists its blocks in order of address. Save
   and restore refuse a pool with a pending block, or with a live block that other streams or
   processes use. If the plan fails, nothing has changed. If another thread uses the pool after
   the plan, the pool is restored in part and DS_ERR_ILLEGAL_STATE is returned.
   Locks: ds_pool_restore takes `giving` and `grow` of every arena of the pool, so that segments
   stay as they are. The plan runs under all locks of the device, the changes under one arena's
   lock, or all locks if the counters need room. The program's memory functions are called under
   all these locks, observers under the arena's lock. The function of the caller runs without a
   lock. ds_pool_save and ds_pool_check_live take all locks of the device.
   Threads: any caller's thread. No other thread may use the pool during ds_pool_restore. */
#ifndef DS__ALLOC_CHECKPOINT_H
#define DS__ALLOC_CHECKPOINT_H

#include "../core/internal.h"
#include "types.h"
#include "util.h"
#include "history_ring.h"
#include "counters.h"
#include "address.h"
#include "bins.h"
#include "block.h"
#include "locks.h"
#include "pool.h"
#include "pending.h"
#include "upstream.h"
#include "api_block.h"

typedef struct ds__saved {
    char *ptr;
    size_t size;
    size_t asked;
    ds__segment *seg;
    uint64_t serial;
    const char *label;
    const char *file;
    uint32_t line;
    uint32_t there;
} ds__saved;

struct ds_pool_checkpoint {
    const ds__mem_pool *pool;
    uint64_t name[2];
    size_t count;
    ds__saved at[];
};

static int ds__saved_order(const void *a, const void *b) {
    const ds__saved *x = a;
    const ds__saved *y = b;
    return x->ptr < y->ptr ? -1 : x->ptr > y->ptr;
}

/* Uses that are over are so; not while a capture could be spoiled by the question. */
static void ds__pool_poll(ds__mem_pool *p) {
    if (ds__captures_open())
        return;
    for (ds__arena *a = ds__first_arena(p->dev, p); a; a = a->next)
        (void)ds__pending_poll(a, 0);
}

/* 0 and a sentence: others have to do with the block. All is locked. */
static int ds__block_settled(const ds__mem_block *b) {
    const char *what = b->state == DS_BLOCK_PENDING
                           ? "was freed, and other streams may still use it"
                       : b->state == DS_BLOCK_LIVE && b->exported ? "is used by other processes"
                       : b->state == DS_BLOCK_LIVE && b->uses     ? "was used on other streams"
                       : b->quiet ? "is being freed by another thread"
                                  : NULL;
    if (what)
        ds__fail(DS_ERR_ILLEGAL_STATE, "the block of %zu bytes at %p %s", b->size, (void *)b->ptr,
                 what);
    return !what;
}

DSDEF ds_result(ds_pool_save)(ds_pool pool, ds_pool_checkpoint **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_pool_save");
    DS__REQUIRE(out, "out is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__pool_poll(p);
    ds_pool_checkpoint *c = NULL;
    size_t count = 0;
    int settled = 1;
    ds__mem_lock_all(p->dev);
    for (ds__arena *a = p->arenas; a; a = a->next) {
        ds__unpark_all(a);
        for (ds__segment *s = a->segments; s; s = s->next)
            for (ds__mem_block *b = s->first; b && settled; b = b->next) {
                settled = ds__block_settled(b);
                count += b->state == DS_BLOCK_LIVE;
            }
    }
    if (settled && !(c = ds__host_alloc(sizeof *c + count * sizeof c->at[0])))
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a checkpoint of %zu blocks", count);
    for (ds__arena *a = c ? p->arenas : NULL; a; a = a->next)
        for (ds__segment *s = a->segments; s; s = s->next)
            for (const ds__mem_block *b = s->first; b; b = b->next)
                if (b->state == DS_BLOCK_LIVE)
                    c->at[c->count++] = (ds__saved){ b->ptr,   b->size, b->asked, s, s->serial,
                                                     b->label, b->file, b->line,  0 };
    ds__mem_unlock_all(p->dev);
    if (!c)
        return settled ? DS_ERR_OUT_OF_MEMORY : DS_ERR_ILLEGAL_STATE;
    c->pool = p;
    memcpy(c->name, p->name, sizeof c->name);
    qsort(c->at, c->count, sizeof c->at[0], ds__saved_order);
    *out = c;
    return DS_OK;
}

DSDEF void(ds_pool_checkpoint_destroy)(ds_pool_checkpoint *checkpoint) {
    ds__host_free(checkpoint);
}

/* What has to change: blocks that end come first in `changed`, then those that are live again. */
typedef struct ds__rewind {
    ds__saved *at;
    ds_mem_block *changed;
    size_t count;
    size_t changes;
} ds__rewind;

static ds_result ds__rewind_plan_saved(ds__mem_pool *p, ds__rewind *q) {
    ds__segment *s = NULL;
    ds__mem_block *b = NULL;
    for (ds__saved *v = q->at; v < q->at + q->count; v++) {
        if (s != v->seg) {
            s = v->seg;
            ds__arena *a = atomic_load(&s->arena);
            b = a && a->pool == p && s->serial == v->serial ? s->first : NULL;
        }
        while (b && b->ptr + b->size <= v->ptr)
            b = b->next;
        const ds__mem_block *last = b; /* none of the memory may be a hole */
        while (last && last->state != DS_BLOCK_UNMAPPED &&
               last->ptr + last->size < v->ptr + v->size)
            last = last->next;
        if (!last || last->state == DS_BLOCK_UNMAPPED)
            return ds__fail(DS_ERR_ILLEGAL_STATE,
                            "the memory of the block of %zu bytes at %p was freed to the driver "
                            "after the checkpoint",
                            v->size, (void *)v->ptr);
        v->there = b->state == DS_BLOCK_LIVE && b->ptr == v->ptr && b->size == v->size;
    }
    return DS_OK;
}

/* Looks at everything and changes nothing that shows. All is locked. */
static ds_result ds__rewind_plan(ds__mem_pool *p, ds__rewind *q) {
    size_t live = 0;
    for (ds__arena *a = p->arenas; a; a = a->next) {
        ds__unpark_all(a);
        for (ds__segment *s = a->segments; s; s = s->next)
            for (const ds__mem_block *b = s->first; b; b = b->next) {
                if (!ds__block_settled(b))
                    return DS_ERR_ILLEGAL_STATE;
                live += b->state == DS_BLOCK_LIVE;
            }
    }
    ds_result r = ds__rewind_plan_saved(p, q);
    if (r < 0)
        return r;
    if (!(q->changed = ds__host_alloc((live + q->count + 1) * sizeof *q->changed)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to restore %zu blocks", q->count);
    for (ds__arena *a = p->arenas; a; a = a->next) {
        /* descriptions: each block that is cut out leaves one before it and one behind it */
        ds__mem_block *spare = NULL;
        ds__mem_block *one = NULL;
        for (const ds__saved *v = q->at; v < q->at + q->count; v++)
            for (int i = 0; i < 2 && !v->there && atomic_load(&v->seg->arena) == a; i++) {
                if (!(one = ds__mem_block_new(a)))
                    r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to restore %zu blocks", q->count);
                if (one) {
                    one->list_next = spare;
                    spare = one;
                }
            }
        for (; spare; spare = one) {
            one = spare->list_next;
            ds__mem_block_drop(a, spare);
        }
        for (ds__segment *s = a->segments; s; s = s->next)
            for (const ds__mem_block *b = s->first; b && r == DS_OK; b = b->next) {
                ds__saved key = { .ptr = b->ptr };
                ds__saved *v = b->state != DS_BLOCK_LIVE
                                   ? NULL
                                   : bsearch(&key, q->at, q->count, sizeof key, ds__saved_order);
                if (b->state != DS_BLOCK_LIVE || (v && v->there))
                    continue;
                ds__block_describe(a, b, &q->changed[q->changes]);
                q->changed[q->changes++].state = DS_BLOCK_FREE;
            }
    }
    return r;
}

static int ds__rewind_end(const ds_mem_block *gone) {
    ds__segment *s = ds__segment_of(gone->ptr);
    ds__arena *a = s ? atomic_load(&s->arena) : NULL;
    if (!a)
        return 0;
    ds__arena_lock_ready(a, s->kind);
    ds__mem_block *b = atomic_load(&s->arena) == a ? ds__block_find(s, gone->ptr, 1) : NULL;
    int good = b && ds__block_settled(b);
    if (good) {
        ds__note_block(a, DS_ACTION_FREE_REQUESTED, b);
        ds__note_block(a, DS_ACTION_FREE_COMPLETED, b);
        ds__block_over(a, b);
    }
    ds__arena_unlock(a);
    return good;
}

/* Cuts a block out of the free memory around it, where it was. `before`: a live block below it
   in the segment, or NULL. */
static int ds__rewind_live(const ds__saved *v, const ds__saved *before, ds_mem_block *out) {
    ds__segment *s = v->seg;
    ds__arena *a = atomic_load(&s->arena);
    if (!a)
        return 0;
    ds__arena_lock(a);
    int all = ds__count_begin(a, s->kind, (int64_t)v->size, (int64_t)v->asked);
    ds__mem_block *b = atomic_load(&s->arena) != a || s->serial != v->serial ? NULL
                       : before ? ds__block_find(s, before->ptr, 1)
                                : s->first;
    ds__mem_block *rest = NULL;
    while (b && b->ptr + b->size <= v->ptr)
        b = b->next;
    int good = b && b->state == DS_BLOCK_FREE && !b->quiet && b->ptr <= v->ptr &&
               v->ptr + v->size <= b->ptr + b->size;
    if (good) {
        ds__bin_out(a, b);
        if (!ds__segment_is_growing(s) && ds__is_split(b))
            ds__count_split(a, s->kind, -1, -(int64_t)b->size);
        /* what is cut off is so too until it is free: it must not become one with the block
           again */
        b->state = DS_BLOCK_LIVE;
        b->oversize = 0;
        if (b->ptr < v->ptr) {
            rest = ds__block_cut(a, b, (size_t)(v->ptr - b->ptr));
            good = rest != NULL;
            (void)ds__merge_in(a, b);
            b = rest;
        }
    }
    if (good && b->size > v->size) {
        rest = ds__block_cut(a, b, v->size);
        good = rest != NULL;
        (void)ds__merge_in(a, good ? rest : b);
    }
    if (good) {
        ds__live_in(a, b);
        ds__block_mark_live_counted(a, b, v->asked);
        b->label = v->label;
        b->file = v->file;
        b->line = v->line;
        b->uses = NULL;
        b->guarded = 0;
        b->lent = b->exported = 0;
        if (b->size >= a->pool->config.max_split_size) {
            b->oversize = 1;
            ds__count_oversize(a, 1);
        }
        ds__note_block(a, DS_ACTION_ALLOC, b);
        ds__block_describe(a, b, out);
    }
    ds__count_end(a, all);
    return good;
}

static int ds__rewind_all(ds__rewind *q) {
    size_t ends = q->changes;
    for (size_t i = 0; i < ends; i++)
        if (!ds__rewind_end(&q->changed[i]))
            return 0;
    for (size_t i = 0; i < q->count; i++) {
        if (q->at[i].there)
            continue;
        const ds__saved *before = i && q->at[i - 1].seg == q->at[i].seg ? &q->at[i - 1] : NULL;
        if (!ds__rewind_live(&q->at[i], before, &q->changed[q->changes]))
            return 0;
        q->changes++;
    }
    return 1;
}

DSDEF ds_result(ds_pool_restore)(ds_pool pool, const ds_pool_checkpoint *checkpoint,
                                 ds_mem_block_fn fn, void *user) {
    DS__ENTER("ds_pool_restore");
    DS__REQUIRE(checkpoint, "checkpoint is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (ds__is_inside(p))
        return ds__inside_fail();
    DS__REQUIRE(p == checkpoint->pool && !memcmp(p->name, checkpoint->name, sizeof p->name),
                "the checkpoint belongs to another pool");
    ds__rewind q = { NULL, NULL, checkpoint->count, 0 };
    if (!(q.at = ds__host_alloc((q.count + 1) * sizeof *q.at)))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to restore %zu blocks", q.count);
    memcpy(q.at, checkpoint->at, q.count * sizeof *q.at);
    ds__pool_poll(p);
    ds__arena *first = ds__first_arena(p->dev, p);
    /* segments stay as they are; arenas that come now have none of these */
    for (ds__arena *a = first; a; a = a->next) {
        ds__mutex_lock(&a->giving);
        ds__mutex_lock(&a->grow);
    }
    ds__mem_lock_all(p->dev);
    ds_result r = ds__rewind_plan(p, &q);
    ds__mem_unlock_all(p->dev);
    if (r == DS_OK && !ds__rewind_all(&q))
        r = ds__fail(DS_ERR_ILLEGAL_STATE,
                     "another thread used the pool during the call; the pool is partly restored");
    for (ds__arena *a = first; a; a = a->next) {
        ds__mutex_unlock(&a->grow);
        ds__mutex_unlock(&a->giving);
    }
    for (size_t i = 0; fn && i < q.changes && r == DS_OK; i++)
        fn(&q.changed[i], user);
    ds__host_free(q.changed);
    ds__host_free(q.at);
    return r;
}

static int ds__ptr_order(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (void *const *)a;
    uintptr_t y = (uintptr_t) * (void *const *)b;
    return x < y ? -1 : x > y;
}

DSDEF ds_result(ds_pool_check_live)(ds_pool pool, void *const *ptrs, size_t count) {
    DS__ENTER("ds_pool_check_live");
    DS__REQUIRE(ptrs || !count, "ptrs is NULL, and count is %zu", count);
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds_result r = DS_OK;
    void **sorted = ds__host_alloc((count + 1) * sizeof *sorted);
    unsigned char *seen = ds__host_alloc(count + 1);
    if (sorted && count) {
        memcpy(sorted, ptrs, count * sizeof *sorted);
        qsort(sorted, count, sizeof *sorted, ds__ptr_order);
    }
    if (!sorted || !seen)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to compare %zu blocks", count);
    ds__mem_lock_all(p->dev);
    for (ds__arena *a = p->arenas; a; a = a->next)
        for (ds__segment *s = a->segments; s; s = s->next)
            for (const ds__mem_block *b = s->first; b && r == DS_OK; b = b->next) {
                void *ptr = b->ptr;
                void **at = b->state == DS_BLOCK_LIVE
                                ? bsearch(&ptr, sorted, count, sizeof ptr, ds__ptr_order)
                                : NULL;
                if (at)
                    seen[at - sorted] = 1;
                else if (b->state == DS_BLOCK_LIVE)
                    r = ds__fail(DS_ERR_ILLEGAL_STATE,
                                 "the block of %zu bytes at %p is live and not in the list",
                                 b->size, (void *)b->ptr);
            }
    ds__mem_unlock_all(p->dev);
    for (size_t i = 0; i < count && r == DS_OK; i++)
        if (!seen[i]) {
            int twice =
                (i && sorted[i] == sorted[i - 1]) || (i + 1 < count && sorted[i] == sorted[i + 1]);
            r = ds__fail(DS_ERR_ILLEGAL_STATE, "%p is in the list %s", sorted[i],
                         twice ? "twice" : "and is not the start of a live block of the pool");
        }
    ds__host_free(seen);
    ds__host_free(sorted);
    return r;
}

#endif
