/* base/pin.h - hazard pointers, references and reclaiming.

   Protects an object from being freed while a call uses it, and frees destroyed objects. ds__pin
   sets a hazard pointer and returns the object of a handle, ds__unpin clears it. ds__ref and
   ds__unref count longer uses. ds__table_invalidate makes a handle stale, ds__slot_retire retires
   an object without references, and ds__table_reclaim reclaims retired objects.

   Invariants: a thread stores its hazard pointer before it reads the slot's word. A thread that
   reclaims passes ds__barrier_run first and then reads all hazard pointers. An object is freed, or
   given to defer_fn, only without hazard pointers and without references. A thread has at most
   DS__PINS hazard pointers; beyond that a look-up returns NULL, as for a stale handle.
   ds__callers.count is the number of threads that have a state and have not ended.
   Locks: ds__slot_retire and ds__table_reclaim take the table's lock, for list operations only.
   ds__is_pinned takes ds__callers.lock. defer_fn and free_fn run without these locks; free_fn may
   call the driver and user destructors. So a caller of ds__table_reclaim or ds__table_slot_free
   must hold no lock that these take.
   Threads: hazard pointers need a thread state, so threads of the library do not set them.
   References may be counted on any thread. Several threads may reclaim at once.
   ds__table_destroy is for shutdown only. */
#ifndef DS__BASE_PIN_H
#define DS__BASE_PIN_H

#include "../api/device.h"
#include "handle.h"
#include "thread_block.h"

/* The most pins that a thread has at a time. */
#define DS__PINS 8

typedef struct ds__pins {
    _Atomic(void *) at[DS__PINS];
    unsigned count;
} ds__pins;

/* A thread that calls devstream. core/thread.h has the rest of its state behind it. */
typedef struct ds__caller {
    ds__pins pins;
    ds_device device; /* the current one */
    _Atomic int ended;
    struct ds__caller *next;
    void *module[DS__MODULES]; /* what each module has of the thread */
} ds__caller;

static struct {
    ds__spinlock lock;       /* of the list */
    ds__caller *list;        /* of all threads that have a state */
    _Atomic uint64_t device; /* with which threads begin: type << 32 | index */
    _Atomic int count;       /* those that live */
    /* called when the last thread ends; may only wake a thread */
    void (*_Atomic gone_fn)(void);
} ds__callers;

static _Atomic int ds__no_membarrier; /* 1: the kernel has none, so a pin needs a locked store */
static _Atomic int ds__dead; /* ended threads and retired objects, in shares of DS__RECLAIM_BATCH */

static void ds__count_dead(int n) {
    atomic_fetch_add(&ds__dead, n);
}

/* Returns the state of the calling thread, or NULL if it has none. */
static inline ds__caller *ds__my_caller(void) {
    return (ds__caller *)(void *)ds__tls.thread;
}

static ds__pins *ds__my_pins(void) {
    return &ds__my_caller()->pins;
}

/* Returns the device with which threads begin. */
static ds_device ds__default_device(void) {
    uint64_t key = atomic_load(&ds__callers.device);
    return (ds_device){ (int32_t)(key >> 32), (int32_t)(key & INT_MAX) };
}

/* Returns the thread's current device; on the library's own threads the default device. */
DS__SEAM static ds_device ds__thread_device(void) {
    return ds__tls.thread ? ((ds__caller *)(void *)ds__tls.thread)->device : ds__default_device();
}

/* Returns 1 if a thread has pinned the object. */
static int ds__is_pinned(const void *object) {
    int found = 0;
    ds__spinlock_lock(&ds__callers.lock);
    for (ds__caller *t = ds__callers.list; t && !found; t = t->next)
        for (int i = 0; i < DS__PINS && !found; i++)
            found = atomic_load_explicit(&t->pins.at[i], memory_order_acquire) == object;
    ds__spinlock_unlock(&ds__callers.lock);
    return found;
}

/* Makes every thread of the process pass a full barrier. */
static void ds__barrier_run(void) {
    if (!atomic_load(&ds__no_membarrier))
        ds__os_barrier();
}

/* Ends a pin that is not the latest one of the thread. */
__attribute__((cold, noinline)) static void ds__unpin_below(ds__pins *pins, const void *object) {
    unsigned i = pins->count;
    while (i > 0 && atomic_load_explicit(&pins->at[--i], memory_order_relaxed) != object) {
    }
    atomic_store_explicit(&pins->at[i], NULL, memory_order_release);
    while (pins->count > 0 &&
           !atomic_load_explicit(&pins->at[pins->count - 1], memory_order_relaxed))
        pins->count--;
}

/* Ends a pin. Pins usually end in the reverse order. */
static inline void ds__unpin_inline(ds__table *t, void *object) {
    ds__pins *pins = ds__my_pins();
    unsigned i = pins->count - 1;
    (void)t;
    if (DS__UNLIKELY(i >= DS__PINS ||
                     atomic_load_explicit(&pins->at[i], memory_order_relaxed) != object ||
                     (i && !atomic_load_explicit(&pins->at[i - 1], memory_order_relaxed)))) {
        ds__unpin_below(pins, object);
        return;
    }
    atomic_store_explicit(&pins->at[i], NULL, memory_order_release);
    pins->count = i;
}

/* Returns the object of a handle, which is not freed until ds__unpin. NULL: the handle is stale or
   was never valid. */
static inline void *ds__pin_inline(ds__table *t, uint64_t id) {
    if (DS__UNLIKELY((uint32_t)id == 0))
        return NULL;
    ds__slot *slot = ds__slot_at(t, (uint32_t)id - 1);
    ds__pins *pins = ds__my_pins();
    if (DS__UNLIKELY(!slot || pins->count == DS__PINS))
        return NULL;
    _Atomic(void *) *at = &pins->at[pins->count++];
#if defined(DS__SANITIZED)
    atomic_store(at, slot);
#else
    if (DS__UNLIKELY(atomic_load_explicit(&ds__no_membarrier, memory_order_relaxed)))
        atomic_store(at, slot);
    else
        atomic_store_explicit(at, slot, memory_order_relaxed);
    atomic_signal_fence(
        memory_order_seq_cst); /* the processor's order comes from ds__barrier_run */
#endif
    /* in one comparison: generation and state */
    if (DS__LIKELY(atomic_load(&slot->word) >> 30 == (id >> 32 << 2 | DS__ALIVE)))
        return slot;
    ds__unpin_inline(t, slot);
    return NULL;
}

/* Returns 1 if the slot still belongs to the handle. The caller knows that the slot exists. */
static inline int ds__slot_is(ds__slot *slot, uint64_t id) {
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    return DS__GENERATION(word) == (uint32_t)(id >> 32) && DS__STATE(word) == DS__ALIVE;
}

/* The functions without _inline are calls, for callers other than launches. */
__attribute__((noinline)) static void ds__unpin(ds__table *t, void *object) {
    ds__unpin_inline(t, object);
}

__attribute__((noinline)) static void *ds__pin(ds__table *t, uint64_t id) {
    return ds__pin_inline(t, id);
}

/* Objects with batched_fn are reclaimed in batches of this many, because each pass of
   ds__retired_reclaim costs a membarrier of half a microsecond. Others count as a whole batch:
   ds__retired_reclaim frees them at its next call. */
#define DS__RECLAIM_BATCH 64

/* Returns the share of a batch for which the object counts. The share does not change between the
   object's retirement and its end. */
static int ds__reclaim_share(const ds__table *t, const void *object) {
    return t->batched_fn && t->batched_fn(object) ? 1 : DS__RECLAIM_BATCH;
}

/* Moves a dying slot without references to the list of those to be freed. */
static void ds__slot_retire(ds__table *t, ds__slot *slot, uint64_t word) {
    int share = ds__reclaim_share(t, slot); /* the object may be freed after the exchange */
    while (DS__STATE(word) == DS__DYING && DS__REFS(word) == 0) {
        if (!atomic_compare_exchange_weak(&slot->word, &word,
                                          DS__WORD(DS__GENERATION(word), DS__ZOMBIE, 0)))
            continue;
        ds__spinlock_lock(&t->lock);
        slot->next = t->zombies;
        t->zombies = slot->index + 1;
        ds__spinlock_unlock(&t->lock);
        ds__count_dead(share);
        return;
    }
}

/* Adds a reference; the caller has a pin or another reference. */
static void ds__ref(void *object) {
    atomic_fetch_add(&((ds__slot *)object)->word, 1);
}

static void ds__unref(ds__table *t, void *object) {
    ds__slot *slot = object;
    ds__slot_retire(t, slot, atomic_fetch_sub(&slot->word, 1) - 1);
}

/* Makes the handle stale and drops the reference of the handle. The caller has a pin, or is the
   owner. Returns 0 if the handle was stale. */
static int ds__table_invalidate(ds__table *t, void *object) {
    ds__slot *slot = object;
    uint64_t word = atomic_load(&slot->word);
    while (DS__STATE(word) == DS__ALIVE) {
        uint64_t dying = DS__WORD(DS__GENERATION(word), DS__DYING, DS__REFS(word) - 1);
        if (!atomic_compare_exchange_weak(&slot->word, &word, dying))
            continue;
        ds__slot_retire(t, slot, dying);
        return 1;
    }
    return 0;
}

/* Frees an object that no call, reference or pending work uses, and its slot. */
static void ds__table_slot_free(ds__table *t, ds__slot *slot) {
    t->free_fn(slot);
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    atomic_store(&slot->word, DS__WORD(DS__GENERATION(word), DS__FREE, 0));
    ds__spinlock_lock(&t->lock);
    slot->next = t->free_head;
    t->free_head = slot->index + 1;
    ds__spinlock_unlock(&t->lock);
}

/* Frees or defers the retired objects that no thread pins. */
static void ds__table_reclaim(ds__table *t) {
    ds__spinlock_lock(&t->lock);
    uint32_t list = t->zombies;
    t->zombies = 0;
    ds__spinlock_unlock(&t->lock);
    if (list)
        ds__barrier_run();
    while (list) {
        ds__slot *slot = ds__slot_at(t, list - 1);
        list = slot->next;
        /* pins are tested first: a thread with a pin may turn it into a reference */
        if (ds__is_pinned(slot) || DS__REFS(atomic_load(&slot->word)) != 0) {
            ds__spinlock_lock(&t->lock);
            slot->next = t->zombies;
            t->zombies = slot->index + 1;
            ds__spinlock_unlock(&t->lock);
            continue;
        }
        int share = ds__reclaim_share(t, slot);
        if (t->defer_fn)
            t->defer_fn(slot);
        else
            ds__table_slot_free(t, slot);
        ds__count_dead(-share);
    }
}

static void ds__table_destroy(ds__table *t) {
    for (int c = 0; c < 25; c++) {
        ds__host_free(atomic_load_explicit(&t->chunk[c], memory_order_relaxed));
        atomic_store_explicit(&t->chunk[c], NULL, memory_order_relaxed);
    }
    t->used = t->free_head = t->zombies = 0;
}

#endif
