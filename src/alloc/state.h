/* alloc/state.h - global and per-thread state of the allocator.

   Defines the global state (ds__memory_state) and the state of each thread (ds__memory_thread):
   pushed pools, labels, running upstreams. ds__mem_device_at finds a device that was used.

   Invariants: A device gets its record once that is complete, and only ds_shutdown removes it.
   Pools that were pushed before a ds_shutdown do not count (ds__pool_push_count). `root` is read
   without a lock and changes under `registry` only.
   Locks: ds__memory_state.lock guards the configuration, the pools with handles and the lists of
   callbacks. It comes before ds__history_state.lock, a device's lock and the arenas' locks.
   `registry` guards `root`, `sorted`, `free_segments`, `kept` and `policies`, and may be taken
   under all of them. `leaving` guards `closing` and `leavers`; it is taken alone or under
   ds__memory_state.lock.
   Threads: any. ds__memory_thread belongs to its thread. */
#ifndef DS__ALLOC_STATE_H
#define DS__ALLOC_STATE_H

#include "../base/module.h"
#include "../api/mem_limit.h"
#include "../base/operation.h"
#include "../base/state.h"
#include "types.h"

/* A callback of the program; `fn` is cast to its type before it is invoked. */
typedef struct ds__callback {
    void (*fn)(void);
    void *user;
} ds__callback;

typedef struct ds__callback_list {
    ds__callback *entries;
    size_t count;
    size_t room;
} ds__callback_list;

static struct {
    ds__mutex lock;        /* guards the members below that are not atomic, if no other lock does */
    ds_mem_config config;  /* of devices that are used later */
    int configured;        /* 1: the environment was read */
    ds_result conf_result; /* of reading the environment */
    /* the segments of granules of 2 MiB, in leaves of 16 GiB; lowest bit: several segments share
       the granule */
    ds__segment *_Atomic *_Atomic root[1 << 13];
    ds__mutex registry;
    ds__segment **sorted; /* all segments, by address */
    size_t sorted_count;
    size_t sorted_room;
    uint64_t serial;
    ds__segment *free_segments;
    struct ds__kept *kept;           /* memory that is freed at shutdown only */
    struct ds__mem_policy *policies; /* all policies so far, guarded by `registry` */
    ds__mem_pool **pools;            /* the pools with handles */
    uint32_t pool_count;
    size_t pool_room;
    uint64_t next_pool;
    ds__callback_list shortage; /* ds_mem_shortage_fn, guarded by `lock` */
    ds__callback_list oom;      /* ds_mem_oom_fn, guarded by `lock` */
    uint64_t tick_base;         /* ds__ticks at the first use */
    uint64_t tick_base_ns;      /* ds__now_ns at the first use */
    int closing;                /* 1: ds_shutdown frees the pools */
    ds__mutex leaving;          /* guards `closing` and `leavers` */
    ds__condition left;         /* `leavers` has become 0 */
    /* destroyed graphs that are releasing their pools, on a thread of CUDA's */
    int leavers;
    _Atomic uint64_t legacy[DS__MAX_DEVICES]; /* CUDA: the legacy streams, see ds__expect_end */
} ds__memory_state = { .lock = DS__MUTEX_INIT,
                       .registry = DS__MUTEX_INIT,
                       .leaving = DS__MUTEX_INIT,
                       .left = DS__CONDITION_INIT };

#define DS__POOL_PUSHES 32
#define DS__LABELS 32

static _Thread_local struct {
    uint32_t epoch; /* ds__g.epoch for which `arena` and `pools` are valid */
    /* the stream of the thread's last allocation, its slot and its arena; NULL: none */
    uint64_t stream;
    ds__slot *slot;
    ds__arena *arena;
    unsigned labels;
    unsigned pools;
    unsigned in_shortage;
    int upstream_empty;              /* 1: an upstream gave no memory for the current request */
    const struct ds__inside *inside; /* the upstreams that the thread is inside of */
    const char *label[DS__LABELS];
    ds_pool pool[DS__POOL_PUSHES];
} ds__memory_thread;

/* Returns the number of pools that the thread has pushed. After a shutdown, resets the state of the
   thread first. */
static unsigned ds__pool_push_count(void) {
    if (ds__memory_thread.epoch != ds__g.epoch) {
        ds__memory_thread.epoch = ds__g.epoch;
        ds__memory_thread.pools = 0;
        ds__memory_thread.stream = 0;
        ds__memory_thread.arena = NULL;
    }
    return ds__memory_thread.pools;
}

/* Returns the allocator's record of a device, or NULL if the device was not used. */
static ds__mem_dev *ds__mem_device_at(int backend, int index) {
    return index >= 0 && index < DS__MAX_DEVICES
               ? atomic_load_explicit(ds__module_device(DS__MODULE_ALLOC, backend, index),
                                      memory_order_acquire)
               : NULL;
}

/* The functions that the core calls. shutdown.h defines the value, because ds__mem_shutdown uses
   every room. */
static const ds__module ds__mem_module;

/* Its address as ds__mem_dev.owner: several threads have allocated, so no thread owns the
   device. */
static const char ds__no_owner;

#endif
