/* core/postpone.h - releases inside of user code that devstream runs.

   In a host function, callback, destructor, hook or kernel, a driver may refuse every call, and
   locks may be held. There a release function only puts a note into a list (ds__postpone), and a
   later call outside makes the release (ds__postponed_run).

   Policy:
   1. There are two lists. Frees of the allocator run no destructor of the program. So calls of the
      allocator make them, under whatever lock a program holds around these calls, and find the
      memory free. The destruction of objects may run destructors. ds__retired_reclaim makes it,
      where destructors may run anyhow, after the frees.
   2. A bad argument is refused at once if no lock is needed to see it: a stale handle, or
      memory that devstream did not allocate. Another error is logged when the release is made.

   Invariants: a list that is not empty counts in ds__dead, so the next ds__retired_reclaim does not
   return early. The notes of a list are made in their order; two threads that have taken lists may
   make them at once. ds_shutdown makes what is left.
   Locks: none. The release functions expect that the caller holds none of devstream's.
   Threads: ds__postpone runs on any thread, ds__postponed_run on threads outside of user code. */
#ifndef DS__CORE_POSTPONE_H
#define DS__CORE_POSTPONE_H

#include "../base/log.h"
#include "../base/memory_table.h"
#include "../base/pin.h"
#include "init.h"

/* A release to be made. */
typedef struct ds__postponed {
    struct ds__postponed *next;
    ds__table *table; /* of the object; NULL: memory */
    ds__release_fn release_fn;
    uint64_t what; /* an address, or the id of a handle */
    ds_site site;  /* of the call that was postponed */
} ds__postponed;

static _Atomic(ds__postponed *) ds__postponed_list[DS__POSTPONED_LISTS];

/* Refuses the call where it is refused outside, too: before the start and in a forked child. */
static ds_result ds__postpone_enter(const char *fn) {
    ds__tls_block *t = &ds__tls;
    t->fn = fn;
    t->site = ds__site_take(t);
    return atomic_load(&ds__g.state) == DS__READY ? DS_OK : ds__api_enter_slow(t);
}

/* Adds a note to a list. */
static ds_result ds__postpone(ds__table *table, ds__release_fn release_fn, uint64_t what) {
    int list = table ? DS__POSTPONED_OBJECTS : DS__POSTPONED_MEMORY;
    ds__postponed *p = ds__host_alloc(sizeof *p);
    if (!p)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to postpone a release");
    p->table = table;
    p->release_fn = release_fn;
    p->what = what;
    p->site = ds__tls.site;
    ds__postponed *head = atomic_load(&ds__postponed_list[list]);
    do /* after the exchange, another thread may have made the release and freed the note */
        p->next = head;
    while (!atomic_compare_exchange_weak(&ds__postponed_list[list], &head, p));
    if (!head)
        ds__count_dead(DS__RECLAIM_BATCH);
    return DS_OK;
}

/* Postpones the destruction of an object, unless the handle is stale. */
static ds_result ds__postpone_object(const char *fn, ds__table *t, uint64_t id,
                                     ds__release_fn release_fn) {
    ds_result r = ds__postpone_enter(fn);
    ds__slot *slot = (uint32_t)id ? ds__slot_at(t, (uint32_t)id - 1) : NULL;
    if (r == DS_OK && (!slot || !ds__slot_is(slot, id)))
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the %s was destroyed or never existed", t->what);
    return r == DS_OK ? ds__postpone(t, release_fn, id) : r;
}

DS__SEAM static ds_result ds__postpone_memory(const char *fn, void *ptr, ds_memory_kind kind,
                                              ds__release_fn release_fn) {
    ds__found f;
    ds_result r = ds__postpone_enter(fn);
    if (r < 0 || !ptr)
        return r;
    if (!ds__range_find(ptr, &f) || f.kind != kind || !f.held)
        return ds__fail(DS_ERR_INVALID_VALUE, "%p is not the start of a live %s", ptr,
                        kind == DS_MEMORY_PINNED ? "pinned block" : "allocation");
    return ds__postpone(NULL, release_fn, (uint64_t)(uintptr_t)ptr);
}

/* Takes a list, the oldest note first. */
static ds__postponed *ds__postponed_take(int list) {
    ds__postponed *newest = atomic_exchange(&ds__postponed_list[list], (ds__postponed *)NULL);
    ds__postponed *oldest = NULL;
    if (newest)
        ds__count_dead(-DS__RECLAIM_BATCH);
    while (newest) {
        ds__postponed *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

/* Makes the releases of a list. What fails is logged with the site of the call, and is not the last
   error of this thread. */
static void ds__postponed_make(int list) {
    ds__kept_error kept;
    ds__user_code outer = ds__user_code_begin(); /* keeps name and site of the running call */
    ds__tls.in_callback = 0;
    ds__error_save(&kept);
    for (ds__postponed *p = ds__postponed_take(list), *next; p; p = next) {
        next = p->next;
        ds__tls.next_site = p->site;
        ds__tls.unwatched++;
        DS_IGNORE(p->release_fn(p->what));
        ds__tls.unwatched--;
        ds__host_free(p);
    }
    ds__error_restore(&kept);
    ds__user_code_end(&outer);
}

static inline void ds__postponed_run(int list) {
    if (DS__UNLIKELY(atomic_load_explicit(&ds__postponed_list[list], memory_order_acquire)) &&
        !ds__tls.in_callback && !ds__tls.upper_locked)
        ds__postponed_make(list);
}

static int ds__postponed_any(void) {
    int any = 0;
    for (int i = 0; i < DS__POSTPONED_LISTS; i++)
        any |= atomic_load(&ds__postponed_list[i]) != NULL;
    return any;
}

/* Ends the lists where public functions cannot be called any more, in ds_shutdown: objects count as
   destroyed, and memory has gone with the allocator. */
static void ds__postponed_deinit(void) {
    for (int i = 0; i < DS__POSTPONED_LISTS; i++)
        for (ds__postponed *p = ds__postponed_take(i), *next; p; p = next) {
            next = p->next;
            ds__slot *slot = p->table ? ds__slot_at(p->table, (uint32_t)p->what - 1) : NULL;
            if (slot && ds__slot_is(slot, p->what))
                (void)ds__table_invalidate(p->table, slot);
            ds__host_free(p);
        }
}

#endif
