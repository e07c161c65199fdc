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

/* A live block in a checkpoint. */
typedef struct ds__saved {
    char *ptr;
    size_t size;
    size_t asked;
    ds__segment *seg;
    uint64_t serial;
    const char *label;
    const char *file;
    uint32_t line;
    uint32_t there; /* during a restore, 1: the block is live */
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

/* Frees pending blocks whose uses are done. Does nothing while a capture is open, which the queries
   could invalidate. */
static void ds__pool_poll(ds__mem_pool *p) {
    if (ds__captures_open())
        return;
    for (ds__arena *a = ds__first_arena(p->dev, p); a; a = a->next)
        (void)ds__pending_poll(a, 0);
}

/* Returns why a block cannot be saved or restored, or NULL if no other stream, process or thread
   has to do with it. All is locked. */
static const char *ds__block_unsettled_reason(const ds__mem_block *b) {
    if (b->state == DS_BLOCK_PENDING)
        return "was freed, and other streams may still use it";
    if (b->state == DS_BLOCK_LIVE && b->exported)
        return "is used by other processes";
    if (b->state == DS_BLOCK_LIVE && b->uses)
        return "was used on other streams";
    return b->claimed ? "is being freed by another thread" : NULL;
}

/* Returns whether a block can be saved or restored; if not, sets the error. All is locked. */
static int ds__block_settled(const ds__mem_block *b) {
    const char *reason = ds__block_unsettled_reason(b);
    if (reason)
        ds__fail(DS_ERR_ILLEGAL_STATE, "the block of %zu bytes at %p %s", b->size, (void *)b->ptr,
                 reason);
    return !reason;
}

/* Counts the live blocks of a pool. Returns 0 if a block is not settled, and the error is set. All
   is locked. */
static int ds__pool_settled(ds__mem_pool *p, size_t *out_live) {
    *out_live = 0;
    for (const ds__arena *a = p->arenas; a; a = a->next)
        for (const ds__segment *s = a->segments; s; s = s->next)
            for (const ds__mem_block *b = s->first; b; b = b->next) {
                if (!ds__block_settled(b))
                    return 0;
                *out_live += b->state == DS_BLOCK_LIVE;
            }
    return 1;
}

/* Adds the live blocks of an arena to a checkpoint, which has room. All is locked. */
static void ds__arena_save(const ds__arena *a, ds_pool_checkpoint *c) {
    for (ds__segment *s = a->segments; s; s = s->next)
        for (const ds__mem_block *b = s->first; b; b = b->next)
            if (b->state == DS_BLOCK_LIVE)
                c->at[c->count++] = (ds__saved){ .ptr = b->ptr,
                                                 .size = b->size,
                                                 .asked = b->asked,
                                                 .seg = s,
                                                 .serial = s->serial,
                                                 .label = b->label,
                                                 .file = b->file,
                                                 .line = b->line };
}

DSDEF ds_result(ds_pool_save)(ds_pool pool, ds_pool_checkpoint **out) {
    if (out)
        *out = NULL;
    DS__MEM_ENTER("ds_pool_save");
    DS__REQUIRE(out, "out is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__pool_poll(p);

    ds_pool_checkpoint *c = NULL;
    size_t count = 0;
    ds_result r = DS_OK;
    ds__mem_lock_all(p->dev);
    if (!ds__pool_settled(p, &count))
        r = DS_ERR_ILLEGAL_STATE;
    if (r == DS_OK) {
        c = ds__host_alloc(sizeof *c + count * sizeof c->at[0]);
        if (!c)
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a checkpoint of %zu blocks", count);
    }
    for (const ds__arena *a = c ? p->arenas : NULL; a; a = a->next)
        ds__arena_save(a, c);
    ds__mem_unlock_all(p->dev);
    if (r < 0)
        return r;

    c->pool = p;
    memcpy(c->name, p->name, sizeof c->name);
    qsort(c->at, c->count, sizeof c->at[0], ds__saved_order);
    *out = c;
    return DS_OK;
}

DSDEF void(ds_pool_checkpoint_destroy)(ds_pool_checkpoint *checkpoint) {
    ds__host_free(checkpoint);
}

/* A restore in progress. `changed` has the blocks that end, and then those that become live. */
typedef struct ds__rewind {
    ds__saved *at;
    ds_mem_block *changed;
    size_t count;
    size_t changes;
} ds__rewind;

/* Sets `there` of all saved blocks. Fails if memory of a saved block went back to the driver. All
   is locked. */
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
        const ds__mem_block *last = b; /* all of the memory must be mapped */
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

/* Provides the arena with two descriptions for each block that becomes live: cutting the block out
   leaves a block in front and one behind. Returns 0 without host memory. All is locked. */
static int ds__rewind_spares(ds__arena *a, const ds__rewind *q) {
    ds__mem_block *taken = NULL;
    size_t needed = 0;
    for (const ds__saved *v = q->at; v < q->at + q->count; v++)
        if (!v->there && atomic_load(&v->seg->arena) == a)
            needed += 2;
    while (needed) {
        ds__mem_block *b = ds__mem_block_create(a);
        if (!b)
            break;
        b->list_next = taken;
        taken = b;
        needed--;
    }
    while (taken) {
        ds__mem_block *b = taken;
        taken = b->list_next;
        ds__mem_block_destroy(a, b);
    }
    return !needed;
}

/* Returns whether a live block is a saved one. All is locked. */
static int ds__rewind_keeps(const ds__rewind *q, const ds__mem_block *b) {
    ds__saved key = { .ptr = b->ptr };
    const ds__saved *v = bsearch(&key, q->at, q->count, sizeof key, ds__saved_order);
    return v && v->there;
}

/* Appends the live blocks of an arena that are not saved ones to `changed`. All is locked. */
static void ds__rewind_list_ends(ds__arena *a, ds__rewind *q) {
    for (const ds__segment *s = a->segments; s; s = s->next)
        for (const ds__mem_block *b = s->first; b; b = b->next) {
            if (b->state != DS_BLOCK_LIVE || ds__rewind_keeps(q, b))
                continue;
            ds__block_describe(a, b, &q->changed[q->changes]);
            q->changed[q->changes++].state = DS_BLOCK_FREE;
        }
}

/* Plans a restore, and changes nothing that the program can notice. All is locked. */
static ds_result ds__rewind_plan(ds__mem_pool *p, ds__rewind *q) {
    size_t live = 0;
    if (!ds__pool_settled(p, &live))
        return DS_ERR_ILLEGAL_STATE;
    ds_result r = ds__rewind_plan_saved(p, q);
    if (r < 0)
        return r;
    q->changed = ds__host_alloc((live + q->count + 1) * sizeof *q->changed);
    int room = q->changed != NULL;
    for (ds__arena *a = p->arenas; a && room; a = a->next)
        room = ds__rewind_spares(a, q);
    if (!room)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to restore %zu blocks", q->count);
    for (ds__arena *a = p->arenas; a; a = a->next)
        ds__rewind_list_ends(a, q);
    return DS_OK;
}

/* Frees a block that was planned to end. Returns 0 if another thread has changed it. */
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

/* Returns the free block around the memory of a saved block, or NULL if another thread has changed
   the memory. `before`: a live block below in the segment, or NULL. The arena is locked. */
static ds__mem_block *ds__rewind_place(const ds__arena *a, const ds__saved *v,
                                       const ds__saved *before) {
    ds__segment *s = v->seg;
    if (atomic_load(&s->arena) != a || s->serial != v->serial)
        return NULL;
    ds__mem_block *b = before ? ds__block_find(s, before->ptr, 1) : s->first;
    while (b && b->ptr + b->size <= v->ptr)
        b = b->next;
    int fits = ds__block_is_binned(b) && b->ptr <= v->ptr && v->ptr + v->size <= b->ptr + b->size;
    return fits ? b : NULL;
}

/* Cuts the saved block out of a free block, in no list and live, and frees the rests. Returns NULL
   without host memory. The arena is locked. */
static ds__mem_block *ds__rewind_cut(ds__arena *a, ds__mem_block *b, const ds__saved *v) {
    ds__bin_out(a, b);
    if (!ds__segment_is_growing(b->seg) && ds__is_split(b))
        ds__count_split(a, b->seg->kind, -1, -(int64_t)b->size);
    /* live, like the parts cut off: a freed rest must not be merged with the block again */
    b->state = DS_BLOCK_LIVE;
    b->oversize = 0;
    if (b->ptr < v->ptr) {
        ds__mem_block *front = b;
        b = ds__block_cut(a, front, (size_t)(v->ptr - front->ptr));
        (void)ds__merge_in(a, front);
    }
    if (b && b->size > v->size) {
        ds__mem_block *rest = ds__block_cut(a, b, v->size);
        (void)ds__merge_in(a, rest ? rest : b);
        if (!rest)
            b = NULL;
    }
    return b;
}

/* Enters a block that was cut out as live, with the members of the saved one. The arena is locked
   and has room to count the block. */
static void ds__rewind_publish(ds__arena *a, ds__mem_block *b, const ds__saved *v) {
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
}

/* Makes a saved block live again where it was, and describes it. `before`: a live block below in
   the segment, or NULL. Returns 0 if another thread has changed the memory. */
static int ds__rewind_live(const ds__saved *v, const ds__saved *before, ds_mem_block *out) {
    ds__arena *a = atomic_load(&v->seg->arena);
    if (!a)
        return 0;
    ds__arena_lock(a);
    int all = ds__count_begin(a, v->seg->kind, (int64_t)v->size, (int64_t)v->asked);
    ds__mem_block *b = ds__rewind_place(a, v, before);
    if (b)
        b = ds__rewind_cut(a, b, v);
    if (b) {
        ds__rewind_publish(a, b, v);
        ds__block_describe(a, b, out);
    }
    ds__count_end(a, all);
    return b != NULL;
}

/* Executes the plan. Returns 0 if another thread has used the pool. */
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
    DS__MEM_ENTER("ds_pool_restore");
    DS__REQUIRE(checkpoint, "checkpoint is NULL");
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    if (ds__is_inside(p))
        return ds__inside_fail();
    DS__REQUIRE(p == checkpoint->pool && !memcmp(p->name, checkpoint->name, sizeof p->name),
                "the checkpoint belongs to another pool");
    ds__rewind q = { NULL, NULL, checkpoint->count, 0 };
    q.at = ds__host_alloc((q.count + 1) * sizeof *q.at);
    if (!q.at)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to restore %zu blocks", q.count);
    memcpy(q.at, checkpoint->at, q.count * sizeof *q.at);
    ds__pool_poll(p);
    ds__arena *first = ds__first_arena(p->dev, p);
    /* so that segments stay as they are; arenas that are made later have no saved blocks */
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

/* The addresses that ds_pool_check_live compares with the live blocks. */
typedef struct ds__live_list {
    void **ptr; /* sorted */
    unsigned char *seen;
    size_t count;
} ds__live_list;

/* Returns whether all live blocks of an arena are in the list, and marks them there; if not, sets
   the error. All is locked. */
static ds_result ds__live_list_mark(const ds__live_list *l, const ds__arena *a) {
    for (const ds__segment *s = a->segments; s; s = s->next)
        for (const ds__mem_block *b = s->first; b; b = b->next) {
            void *ptr = b->ptr;
            if (b->state != DS_BLOCK_LIVE)
                continue;
            void **at = bsearch(&ptr, l->ptr, l->count, sizeof ptr, ds__ptr_order);
            if (!at)
                return ds__fail(DS_ERR_ILLEGAL_STATE,
                                "the block of %zu bytes at %p is live and not in the list", b->size,
                                (void *)b->ptr);
            l->seen[at - l->ptr] = 1;
        }
    return DS_OK;
}

/* Returns whether all entries of the list were marked; if not, sets the error. */
static ds_result ds__live_list_check(const ds__live_list *l) {
    for (size_t i = 0; i < l->count; i++) {
        if (l->seen[i])
            continue;
        int twice =
            (i && l->ptr[i] == l->ptr[i - 1]) || (i + 1 < l->count && l->ptr[i] == l->ptr[i + 1]);
        return ds__fail(DS_ERR_ILLEGAL_STATE, "%p is in the list %s", l->ptr[i],
                        twice ? "twice" : "and is not the start of a live block of the pool");
    }
    return DS_OK;
}

DSDEF ds_result(ds_pool_check_live)(ds_pool pool, void *const *ptrs, size_t count) {
    DS__MEM_ENTER("ds_pool_check_live");
    DS__REQUIRE(ptrs || !count, "ptrs is NULL, and count is %zu", count);
    ds__mem_pool *p = ds__mem_pool_of(pool);
    if (!p)
        return DS_ERR_INVALID_HANDLE;
    ds__live_list l = { .count = count };
    ds_result r = DS_OK;
    l.ptr = ds__host_alloc((count + 1) * sizeof *l.ptr);
    l.seen = ds__host_alloc(count + 1);
    if (!l.ptr || !l.seen)
        r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to compare %zu blocks", count);
    if (r == DS_OK && count) {
        memcpy(l.ptr, ptrs, count * sizeof *l.ptr);
        qsort(l.ptr, count, sizeof *l.ptr, ds__ptr_order);
    }

    ds__mem_lock_all(p->dev);
    for (const ds__arena *a = p->arenas; a && r == DS_OK; a = a->next)
        r = ds__live_list_mark(&l, a);
    ds__mem_unlock_all(p->dev);
    if (r == DS_OK)
        r = ds__live_list_check(&l);
    ds__host_free(l.seen);
    ds__host_free(l.ptr);
    return r;
}

#endif
