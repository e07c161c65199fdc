/* alloc/ipc_collect.h - collecting exports that are no longer used.

   Gives exported blocks back to their arenas when no other process has a lease of them, and ends
   imports and segments (ds__share_collect_now, ds_mem_ipc_collect). ds__share_shutdown ends all
   records.

   Invariants: A record in `limbo` leaves the list only without leases; then its slot and event
   are released and its block becomes free or pending. By the way (DS__COLLECT_BY_THE_WAY), a
   limbo of 32 blocks or more is looked at no more than once per millisecond. More than 1,000
   blocks in `limbo` cause one warning.
   Locks: ds__share_collect_now tries to take ds__share.mutex; only ds_mem_ipc_collect waits for
   the mutex. Inside, the registries' mutex and ds__share.lock are taken for short steps. Blocks
   are returned (ds__mem_return) after the mutex is released, because a thread may wait for the
   mutex while it holds locks of the allocator.
   Threads: any caller's thread; ds__share_shutdown runs on the thread of ds_shutdown. */
#ifndef DS__ALLOC_IPC_COLLECT_H
#define DS__ALLOC_IPC_COLLECT_H

#include "../core/internal.h"
#include "pending.h"
#include "ipc_types.h"
#include "ipc_lease.h"
#include "ipc_records.h"

/* Takes what is not needed any more out of the lists; gives the blocks that come back. The mutex
   is held. */
static ds__ipc_export *ds__share_sort(void) {
    ds__ipc_export *ready = NULL;
    ds__ipc_export *over;
    ds__ipc_export *limbo;
    ds__got_collect(0);
    ds__lock_take(&ds__share.lock);
    over = ds__share.over;
    limbo = ds__share.limbo;
    ds__share.over = ds__share.limbo = NULL;
    ds__lock_give(&ds__share.lock);
    while (over) {
        ds__ipc_export *s = over;
        over = s->next;
        ds__ipc_export_end(s);
    }
    while (limbo) {
        ds__ipc_export *s = limbo;
        limbo = s->next;
        if (!ds__export_slot_leased(s->stake, 1)) {
            ds__ipc_export_clear(s);
            atomic_fetch_sub(&ds__share.in_limbo, 1);
            s->next = ready;
            ready = s;
            continue;
        }
        ds__lock_take(&ds__share.lock);
        s->next = ds__share.limbo;
        ds__share.limbo = s;
        ds__lock_give(&ds__share.lock);
    }
    ds__export_holds_collect();
    ds__share.looked_ns = ds__now_ns();
    return ready;
}

/* How much trouble to take: none while another thread is at it, or while many are in limbo and
   were looked at a moment ago. */
enum { DS__COLLECT_BY_THE_WAY, DS__COLLECT_IF_FREE, DS__COLLECT_ALL };

static void ds__share_collect_now(int how, size_t *out_count) {
    size_t count = 0;
    if (how == DS__COLLECT_ALL)
        ds__mutex_lock(&ds__share.mutex);
    else if (!ds__mutex_trylock(&ds__share.mutex))
        return;
    size_t many = atomic_load(&ds__share.in_limbo);
    int now =
        how != DS__COLLECT_BY_THE_WAY || many < 32 || ds__now_ns() - ds__share.looked_ns > 1000000;
    ds__ipc_export *ready = now ? ds__share_sort() : NULL;
    int warn = many > DS__LIMBO_MANY && !ds__share.warned;
    if (warn)
        ds__share.warned = 1;
    ds__mutex_unlock(&ds__share.mutex);
    if (warn)
        ds__log_warn("%zu freed blocks are kept because other processes have not closed them",
                     many);
    while (ready) { /* the allocator's locks may be held by who waits for the mutex */
        ds__ipc_export *s = ready;
        ready = s->next;
        ds__mem_return(s->block);
        ds__host_free(s);
        count++;
    }
    if (out_count)
        *out_count = count;
}

static void ds__share_collect_by_the_way(void) {
    ds__share_collect_now(DS__COLLECT_BY_THE_WAY, NULL);
}

static size_t ds__share_collect(void) {
    size_t count = 0;
    ds__share_collect_now(DS__COLLECT_IF_FREE, &count);
    return count;
}

DSDEF ds_result(ds_mem_ipc_collect)(void) {
    DS__ENTER("ds_mem_ipc_collect");
    ds__share_collect_now(DS__COLLECT_ALL, NULL);
    return DS_OK;
}

/* When all work is done, before the segments go. */
static void ds__share_shutdown(void) {
    ds__mutex_lock(&ds__share.mutex);
    ds__share.ending = 1;
    ds__got_collect(1);
    for (size_t i = 0; i < DS__SENT_BUCKETS + 2; i++) {
        ds__ipc_export **list = i < DS__SENT_BUCKETS    ? &ds__share.bucket[i]
                                : i == DS__SENT_BUCKETS ? &ds__share.limbo
                                                        : &ds__share.over;
        while (*list) {
            ds__ipc_export *s = *list;
            *list = s->next;
            ds__ipc_export_end(s);
        }
    }
    atomic_store(&ds__share.in_limbo, 0);
    ds__share.warned = 0;
    ds__mutex_unlock(&ds__share.mutex);
}

#endif
