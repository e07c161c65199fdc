/* alloc/pinned.h - state and policy of the pinned memory allocator.

   Holds the state of the allocator of pinned host memory (ds__host) and makes its device record
   at the first use. ds__pinned_device returns that record; ds__pinned_used returns it only if
   it exists already, and ds__mem_asked returns the record of any device. ds__pinned_configure
   applies a new configuration. Blocks are handled in pinned_block.h, the memory comes from
   pinned_source.h, and pinned_api.h has the public functions.

   Policy:
   1. The host is a device (ds__mem_dev) with one pool and two arenas: one for blocks below 4
      KiB, one for blocks of whole pages. The arenas belong to no stream.
   2. The program may use an allocated block at once. A freed block with recorded uses is
      therefore pending until the events of these uses are complete. Allocations query the
      events if nothing else fits, with poll_on_alloc always; ds_mem_pinned_empty_cache queries them
      too. Frees never query events, and no call does while a capture is open. No call waits for
      an event.
   3. A block that a capture used stays pending until the last graph with this use is gone.
   4. Requests of up to a quarter of pinned_reserve_segment_size share segments of that size (1
      MiB if it is 0). A new segment for a larger request has the request's size. Both kinds are
      split and merged.
   5. pinned_max_round_threshold rounds requests up to powers of two. If
      pinned_reserve_segment_size is 0, such a request takes only a block of exactly its size. A
      new segment for it has that size too, as in PyTorch.
   6. Blocks are taken and freed with the arena's lock and ds__host.count held, so all counts
      are exact.

   Invariants: ds__host.dev is set only after both arenas exist. Both arenas count exactly, in
   the tally of the device record. The atomic settings are copies of members of ds__host.config.
   ds__host.limit is the exception: ds_mem_pinned_set_limit sets it.
   Locks: ds__host.lock guards the first use and the configuration; ds__memory_state.lock and the
   registry's lock may be taken under it. An arena's lock comes before ds__host.count, and only
   the registry's lock may be taken under both. ds__host.clock_lock guards the times of driver
   calls; no other lock is taken under it. No driver call runs under any of these locks.
   Threads: any thread. ds__pinned_device takes no lock once the record exists. Only ds_shutdown
   removes the record. */
#ifndef DS__ALLOC_PINNED_H
#define DS__ALLOC_PINNED_H

#include "types.h"
#include "config.h"
#include "config_text.h"
#include "util.h"
#include "counters.h"
#include "pool.h"

#define DS__HOST_PAGE ((size_t)4096)

/* The graphs of a capture, as owners of the pinned memory that they use. */
struct ds__hold {
    _Atomic int owners; /* the graphs together, and each use */
    _Atomic int gone;   /* 1: the last graph was destroyed */
};

/* Times of driver calls. */
typedef struct ds__clock {
    int64_t total; /* ns */
    int64_t max;   /* ns */
    int64_t min;   /* ns; 0: none yet */
    int64_t count;
} ds__clock;

static struct {
    ds__mutex lock; /* guards the first use, and `config` */
    ds__mem_dev *_Atomic dev;
    ds__arena *arena[2];  /* for blocks below 4 KiB, and of whole pages */
    ds_mem_config config; /* the configuration that was set last */
    int configured;
    _Atomic size_t round_threshold; /* from `config` */
    _Atomic size_t max_cached;      /* from `config` */
    _Atomic size_t segment_size;    /* from `config` */
    _Atomic size_t limit;           /* from ds_mem_pinned_set_limit */
    _Atomic int registers;
    _Atomic int polls;
    _Atomic int debug;
    _Atomic unsigned threads;
    ds__spinlock count;
    ds__spinlock clock_lock;
    ds__clock made;
    ds__clock ended;
} ds__host = { .lock = DS__MUTEX_INIT };

/* Sets the configuration. ds__host.lock is held. */
static void ds__pinned_apply(const ds_mem_config *c) {
    ds__host.config = *c;
    ds__host.configured = 1;
    atomic_store(&ds__host.round_threshold, c->pinned_max_round_threshold);
    atomic_store(&ds__host.max_cached, c->pinned_max_cached_size);
    atomic_store(&ds__host.segment_size, c->pinned_reserve_segment_size);
    atomic_store(&ds__host.registers, c->pinned_use_cuda_host_register);
    atomic_store(&ds__host.threads, c->pinned_num_register_threads);
    atomic_store(&ds__host.polls, c->poll_on_alloc);
    atomic_store(&ds__host.debug, c->debug);
}

/* Sets the configuration: to `config`, or by a text (known to be valid) from the current one. */
static void ds__pinned_configure(const ds_mem_config *config, const char *text) {
    ds__mutex_lock(&ds__host.lock);
    if (config) {
        ds__pinned_apply(config);
    } else {
        ds_mem_config c = ds__host.configured ? ds__host.config : ds__usual_config();
        if (ds__config_read(text, &c) == DS_OK)
            ds__pinned_apply(&c);
    }
    ds__mutex_unlock(&ds__host.lock);
}

/* Makes an arena of pinned memory. Returns NULL without host memory. ds__host.lock is held. */
static ds__arena *ds__host_arena(ds__mem_dev *dev) {
    ds__arena *a = ds__arena_create(&dev->main);
    if (!a)
        return NULL;
    a->stream_id = UINT64_MAX;
    a->slow = 1;
    return a;
}

/* Returns the device record of pinned memory, or NULL if pinned memory was not used. */
static ds__mem_dev *ds__pinned_used(void) {
    return atomic_load_explicit(&ds__host.dev, memory_order_acquire);
}

/* Sets *out to the record of a device, or to NULL if the device was not used. DS_DEVICE_HOST stands
   for pinned memory. */
static ds_result ds__mem_asked(ds_device device, ds__mem_dev **out) {
    if (device.type != DS_DEVICE_HOST)
        return ds__mem_used(device, out);
    *out = ds__pinned_used();
    return DS_OK;
}

/* Makes the device record of pinned memory with both arenas, and publishes it. Returns NULL without
   host memory. ds__host.lock is held. */
static ds__mem_dev *ds__pinned_device_create(void) {
    ds_mem_config c = (ds_mem_config_default)();
    c.single_pool = 1; /* segments have the size of the request */
    c.segment_growth = 0;
    c.expandable_segments = 0;
    ds__mem_dev *dev =
        ds__mem_dev_create((ds_device){ .type = DS_DEVICE_HOST }, ds__os_memory(), &c);
    if (!dev)
        return NULL;
    atomic_store(&dev->limit, atomic_load(&ds__host.limit));
    for (int i = 0; i < 2; i++) {
        ds__host.arena[i] = ds__host_arena(dev);
        if (!ds__host.arena[i])
            return NULL;
    }
    atomic_store_explicit(&ds__host.dev, dev, memory_order_release);
    return dev;
}

/* Returns the device record of pinned memory, which is made at the first use. On failure returns
   NULL and sets the error. */
static ds__mem_dev *ds__pinned_device(void) {
    ds__mem_dev *dev = ds__pinned_used();
    if (DS__LIKELY(dev != NULL))
        return dev;
    if (ds__mem_setup() < 0)
        return NULL;
    ds__mutex_lock(&ds__host.lock);
    if (!ds__host.configured) {
        ds_mem_config usual = ds__usual_config();
        ds__pinned_apply(&usual);
    }
    dev = ds__pinned_used();
    if (!dev)
        dev = ds__pinned_device_create();
    ds__mutex_unlock(&ds__host.lock);
    if (!dev)
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the allocator of pinned memory");
    return dev;
}

#endif
