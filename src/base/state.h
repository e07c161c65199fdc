/* base/state.h - global state, bookkeeping memory and log.

   Holds the state of the library (ds__g): configuration, drivers, object tables, the locks of
   the core and the lists that they guard.

   Invariants: configuration, drivers and tables are written by initialisation and shutdown only,
   and read without a lock. A thread state is valid only if its epoch equals ds__g.epoch. `dead`
   counts ended threads and retired objects. range_version is odd while the ranges are changed.
   Locks: the functions take none. `mutex` is held for all of initialisation and shutdown, driver
   calls included. `begin` is taken before capture_lock and must not be held over a wait. `lock`,
   label_lock, range_lock and mapping_lock protect short steps; no driver call is made under
   them. ds__host_alloc, ds__host_free and ds__log_write call functions of the user, under all locks
   of the caller.
   Threads: any thread. ds_init and ds_shutdown must not run concurrently with other calls. */
#ifndef DS__BASE_STATE_H
#define DS__BASE_STATE_H

#include "../api/init.h"
#include "thread_block.h"
#include "handle.h"
#include "object.h"

enum { DS__COLD = 0, DS__READY = 1, DS__FORKED = 2 };

typedef struct ds__mapping {
    uintptr_t at;
    size_t size;
} ds__mapping;

static struct {
    _Atomic int state; /* DS__COLD ... */
    /* counts initialisations; a thread's state of an earlier epoch is invalid */
    _Atomic uint32_t epoch;
    int configured;        /* ds_init was called */
    ds__mutex mutex;       /* initialisation and shutdown */
    ds__os_thread_key key; /* tells that a thread ends */
    int atfork;            /* the fork handler is installed, for good */
    ds_init_desc desc;
    int per_thread_default;
    const ds__driver *driver[DS_BACKEND_COUNT]; /* with layers; NULL: not available */
    ds_backend_info backend[DS_BACKEND_COUNT];
    ds__table streams;
    ds__table events;
    ds__table kernels;
    ds__table graphs;
    ds__table execs;
    /* destroyed kernels that pending work may use; not in ds__dead */
    _Atomic int deferred_kernels;
    _Atomic uint64_t next_stream_id;
    _Atomic uint64_t next_thread;
    _Atomic uint32_t next_graph;
    ds__mutex capture_lock; /* held across calls of a driver that capture */
    ds__capture *captures;  /* open ones */
    uint64_t next_capture;
    _Atomic int capture_count;
    /* written while a capture begins; read by code that needs to know that none is open. Readers
       enqueue work but do not wait for it */
    ds__rwlock begin;
    ds_stream *legacy;       /* per device ordinal, made at first use */
    _Atomic int sync_debug;  /* a ds_sync_debug_mode */
    ds__spinlock label_lock; /* of the labels of streams and devices, which can be replaced */
    char (*label)[64];       /* of each device ordinal */
    /* known memory: readers take no lock and check `range_version` */
    ds__spinlock range_lock;
    _Atomic(ds__ranges *) ranges;
    _Atomic size_t range_count;
    _Atomic uint32_t range_version; /* odd while it is changed */
    ds__spinlock mapping_lock;
    ds__mapping *mappings; /* the mappings in reserved address space, by address */
    size_t mapping_count;
    size_t mapping_room;
    /* 1: memory was unmapped, so pointers into reserved address space may be invalid */
    _Atomic int mapping_taken;
    int unreachable; /* memory of CPU devices is closed to the host (DS_CPU_UNREACHABLE) */
} ds__g = { .mutex = DS__MUTEX_INIT, .capture_lock = DS__MUTEX_INIT, .begin = DS__RWLOCK_INIT };

/* Returns the index of a device's driver in ds__g.driver, ds__g.backend and other tables. */
static inline int ds__backend_of(ds_device device) {
    return device.type == DS_DEVICE_CUDA ? 0 : 1;
}

static inline const ds__driver *ds__driver_of(ds_device device) {
    return ds__g.driver[ds__backend_of(device)];
}

/* Returns the number of devices of a type. */
DS__SEAM static int ds__type_count(int type) {
    if (type == DS_DEVICE_CUDA)
        return ds__g.backend[0].device_count;
    return type == DS_DEVICE_CPU ? ds__g.backend[1].device_count : 0;
}

/* Returns the name of a type of device, for messages. */
DS__SEAM static const char *ds__type_name(int type) {
    switch (type) {
    case DS_DEVICE_CUDA:
        return "cuda";
    case DS_DEVICE_CPU:
        return "cpu";
    case DS_DEVICE_HOST:
        return "host";
    default:
        return "?";
    }
}

/* Returns type and index as one number. */
DS__SEAM static int64_t ds__device_key(ds_device d) {
    return (int64_t)d.type << 32 | d.index;
}

DS__SEAM static ds_device ds__device_of_key(int64_t key) {
    return (ds_device){ (int32_t)(key >> 32), (int32_t)key };
}

/* Returns a number from the environment; 0 if it is unset or not a number. */
static uint64_t ds__env_number(const char *name) {
    const char *text = getenv(name);
    return text && *text && !strchr(text, '-') ? strtoull(text, NULL, 0) : 0;
}

#endif
