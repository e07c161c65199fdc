/* alloc/request.h - requests: size, kind, search of the own arena.

   Defines a request in progress (ds__wanted). ds__request_round_for_pool and ds__kind_of compute
   the size of the block and its kind. ds__request_try searches the request's own arena.

   Invariants: A rounded size is a multiple of DS__UNIT. Peaks follow, and other threads are
   stopped, only if a fitting block is there.
   Locks: ds__request_round_for_pool expects the arena's lock; ds__rounded_by reads a policy without
   a lock. ds__request_try expects no lock, or `grow` of the arena. It takes the arena's lock, or
   all of the device's (ds__mem_lock_all) if the arena has no room to count the block.
   Threads: any caller's thread. */
#ifndef DS__ALLOC_REQUEST_H
#define DS__ALLOC_REQUEST_H

#include "types.h"
#include "config.h"
#include "util.h"
#include "counters.h"
#include "bins.h"
#include "block.h"
#include "locks.h"

/* Returns the size of the block for a request. `rounds`: the policy has divisions; `coarse`: large
   sizes are rounded up to 64 KiB. */
static inline size_t ds__request_round(const ds_mem_config *c, int rounds, int coarse,
                                       size_t size) {
    if (DS__UNLIKELY(rounds || size > SIZE_MAX / 2))
        return ds__config_round_size(c, size);
    /* nearly equal sizes become equal, so that freed blocks fit more requests */
    if (size > 4 * DS__MIB && coarse)
        return (size + 64 * 1024 - 1) & ~(size_t)(64 * 1024 - 1);
    return (size + DS__UNIT - 1) & ~(DS__UNIT - 1);
}

/* Returns the size of the block for a request in a pool. The arena is locked. */
static inline size_t ds__request_round_for_pool(const ds__mem_pool *p, size_t size) {
    return ds__request_round(&p->config, p->rounds, p->coarse, size);
}

static inline int ds__kind_of(const ds_mem_config *c, size_t rounded) {
    return rounded > DS__SMALL_LIMIT || c->single_pool ? DS__LARGE : DS__SMALL;
}

/* Returns whether the policy rounds up sizes to divisions of powers of two. */
static int ds__request_has_rounding(const ds_mem_config *c) {
    int some = 0;
    for (size_t i = 0; i < sizeof c->roundup_power2_divisions; i++)
        some |= c->roundup_power2_divisions[i];
    return some != 0;
}

/* Returns the size of the block for a request under a policy that was read without a lock. */
static size_t ds__rounded_by(const ds_mem_config *c, size_t size) {
    return ds__request_round(c, ds__request_has_rounding(c),
                             !c->best_fit_by_address && !c->single_pool, size);
}

/* Returns the size of the block for a request of `asked` bytes, with the policy's guard and an
   alignment (0: none). Sizes that no device has give SIZE_MAX / 2. */
static size_t ds__request_block_size(const ds_mem_config *c, size_t asked, size_t align) {
    return asked <= SIZE_MAX / 4 ? ds__rounded_by(c, asked + c->guard_bytes) + align : SIZE_MAX / 2;
}

/* A request in progress. */
typedef struct ds__wanted {
    ds__arena *a;
    ds_stream stream;
    ds__stream *s;
    int kind;
    size_t size;
    size_t asked;
    ds__mem_block *block; /* found */
    /* 1: memory was just taken from the driver for the request, so max_split_size does not exclude
       the block */
    uint8_t fresh;
    uint8_t aligned; /* 1: the front of the block may be cut off */
    /* 1: a pending block of another stream may be more than twice as large as the request, because
       all other sources have failed */
    uint8_t wasteful;
} ds__wanted;

/* Searches the request's own arena. Returns 1 if q->block was found. No lock is held, or `grow`. */
static int ds__request_try(ds__wanted *q) {
    ds__arena *a = q->a;
    int all = 0;
    ds__arena_lock(a);
    a->fresh = q->fresh; /* while this thread has the lock */
    /* peaks rise, and other threads are stopped, only if there is a block */
    if (!ds__has_room(a, q->kind, (int64_t)q->size, (int64_t)q->asked)) {
        ds__unpark_all(a);
        int there = ds__bin_best_fit(a, q->kind, q->size) != NULL;
        a->fresh = 0;
        if (!there) {
            ds__arena_unlock(a);
            return 0;
        }
        all = ds__count_begin(a, q->kind, (int64_t)q->size, (int64_t)q->asked);
        a->fresh = q->fresh;
    }
    q->block = ds__block_take(a, q->kind, q->size, q->asked);
    a->fresh = 0;
    ds__count_end(a, all);
    return q->block != NULL;
}

#endif
