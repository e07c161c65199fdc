/* alloc/ipc_collect.h - collecting exports that are no longer used.

   Gives exported blocks back to their arenas when no other process has a lease of them, and ends
   imports and segments (ds__share_collect_now, ds_mem_ipc_collect). ds__share_shutdown ends all
   records.

   Invariants: A record in `limbo` leaves the list only without leases; then its slot and event
   are released and its block, if the record has one, becomes free or pending. With
   DS__COLLECT_BY_THE_WAY, a limbo of 32 blocks or more is examined no more than once per
   millisecond. More than 1,000 blocks in `limbo` cause one warning.
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

/* Ends records of blocks without leases. Returns the records of blocks in limbo that have no lease
   any more; the caller must return these blocks, and end the segments in *out_ended.
   ds__share.mutex is held. */
static ds__ipc_export *ds__share_sort(ds__export_hold **out_ended) {
    ds__ipc_export *ready = NULL;
    ds__got_collect(0);
    ds__spinlock_lock(&ds__share.lock);
    ds__ipc_export *limbo = ds__share.limbo;
    ds__share.limbo = NULL;
    ds__spinlock_unlock(&ds__share.lock);
    while (limbo) {
        ds__ipc_export *s = limbo;
        limbo = s->next;
        if (!s->block && !s->exports) {
            ds__ipc_export_end(s);
            continue;
        }
        if (!s->exports && !ds__export_slot_leased(s->slot, 1)) {
            ds__ipc_export_clear(s);
            atomic_fetch_sub(&ds__share.in_limbo, 1);
            s->next = ready;
            ready = s;
            continue;
        }
        ds__spinlock_lock(&ds__share.lock);
        s->next = ds__share.limbo;
        ds__share.limbo = s;
        ds__spinlock_unlock(&ds__share.lock);
    }
    *out_ended = ds__export_holds_take();
    ds__share.looked_ns = ds__now_ns();
    return ready;
}

/* The effort of a collection: none if another thread has the mutex, or if many blocks in limbo were
   examined less than a millisecond ago; none if another thread has the mutex; full. */
enum { DS__COLLECT_BY_THE_WAY, DS__COLLECT_IF_FREE, DS__COLLECT_ALL };

/* Collects exports that are no longer used. Returns the number of blocks that have come back. Only
   DS__COLLECT_ALL waits for ds__share.mutex. */
static size_t ds__share_collect_now(int how) {
    size_t count = 0;
    if (how == DS__COLLECT_ALL)
        ds__mutex_lock(&ds__share.mutex);
    else if (!ds__mutex_trylock(&ds__share.mutex))
        return 0;
    size_t many = atomic_load(&ds__share.in_limbo);
    int now =
        how != DS__COLLECT_BY_THE_WAY || many < 32 || ds__now_ns() - ds__share.looked_ns > 1000000;
    ds__export_hold *ended = NULL;
    ds__ipc_export *ready = now ? ds__share_sort(&ended) : NULL;
    int warn = many > DS__LIMBO_MANY && !ds__share.warned;
    if (warn)
        ds__share.warned = 1;
    ds__mutex_unlock(&ds__share.mutex);
    ds__export_holds_end(ended);
    if (warn)
        ds__log_warn("%zu freed blocks are kept because other processes have not closed them",
                     many);
    /* without the mutex, because a thread may wait for it with locks of the allocator held */
    while (ready) {
        ds__ipc_export *s = ready;
        ready = s->next;
        ds__mem_return(s->block);
        ds__host_free(s);
        count++;
    }
    return count;
}

static void ds__share_collect_by_the_way(void) {
    (void)ds__share_collect_now(DS__COLLECT_BY_THE_WAY);
}

static size_t ds__share_collect(void) {
    return ds__share_collect_now(DS__COLLECT_IF_FREE);
}

DSDEF ds_result(ds_mem_ipc_collect)(void) {
    DS__MEM_ENTER("ds_mem_ipc_collect");
    (void)ds__share_collect_now(DS__COLLECT_ALL);
    return DS_OK;
}

/* Ends all records of a list. ds__share.mutex is held. */
static void ds__ipc_exports_deinit(ds__ipc_export **list) {
    while (*list) {
        ds__ipc_export *s = *list;
        *list = s->next;
        ds__ipc_export_end(s);
    }
}

/* Ends all records at ds_shutdown, after all work and before the segments are freed. */
static void ds__share_shutdown(void) {
    ds__mutex_lock(&ds__share.mutex);
    ds__share.ending = 1;
    ds__got_collect(1);
    for (size_t i = 0; i < DS__SENT_BUCKETS; i++)
        ds__ipc_exports_deinit(&ds__share.bucket[i]);
    ds__ipc_exports_deinit(&ds__share.limbo);
    atomic_store(&ds__share.in_limbo, 0);
    ds__share.warned = 0;
    ds__mutex_unlock(&ds__share.mutex);
}

#endif
