/* alloc/ipc_types.h - sharing between processes: types and state.

   Defines the records for memory that processes share, and their global state (ds__share). The
   exporter has exported segments (ds__export_hold) and exports (ds__ipc_export, one for each
   block). The importer has opened segments (ds__guest) and imports (ds__got, one for each block).
   ds__ipc_memory is the content of an IPC handle, and ds__export_slot_facts the content of an
   export slot.

   Policy:
   1. A segment of a shareable pool is memory that other processes can open. The IPC handle of a
      block names its export slot (ds__export_slot) in the process's shared-memory registry
      (ds__registry). The slot names the block's segment, the place in the segment, and an event
      behind the work enqueued so far on the block's stream. So a changed handle cannot give another
      size.
   2. A process that imports a block takes a lease of the block's slot, and of the segment's slot
      when it opens the segment. A lease is a number that only a living process holds. So any
      process may take back a lease of an ended process.
   3. Closing an import enqueues a callback on the stream of the last use; the block's lease ends
      in that callback. A later call of this process closes the segment when no block of the
      segment is left; then the segment's lease ends.
   4. A freed block without leases is free. A freed block with leases is in `limbo` until the
      leases are gone. The records of both are in `limbo`. `limbo` is searched when a block is
      exported, imported, closed or freed, by ds_mem_ipc_collect, and when memory is short.
   5. A slot is closed before its leases are read, and a lease is taken before the slot is read.
      So of a free and an import at the same time, one sees the other.
   6. A freed segment stays until all processes that have it open have closed it, as CUDA
      requires.

   Invariants: ds__got.left counts open imports and closed imports before their callback. When
   `left` reaches 0, the lease is dropped and `gone` is set; no callback comes after that.
   `in_limbo` is the number of blocks in `limbo`. `events` is at most DS__SENT_EVENTS.
   Locks: no work is enqueued on a stream of the program under ds__share.mutex, because that may
   wait for room in a queue. Order: ds__share.mutex, the registries' mutex (ds__registries.mutex),
   an arena's lock, ds__share.lock. ds__share.lock guards `limbo` and the buckets, ds__share.mutex
   all other members. The callback takes no lock, because CUDA may wait for callbacks while a thread
   holds a mutex.
   Threads: caller's threads; ds__got.left and ds__got.gone also change on driver threads. */
#ifndef DS__ALLOC_IPC_TYPES_H
#define DS__ALLOC_IPC_TYPES_H

#include "../base/ipc_registry.h"
#include "types.h"

enum { DS__SENT_EVENTS = 1000, DS__SENT_BUCKETS = 1024, DS__LIMBO_MANY = 1000 };

/* A segment of a shareable pool. */
typedef struct ds__export_hold {
    struct ds__export_hold *next;
    ds_device device;
    char *base;
    size_t size;
    uint32_t slot;       /* the export slot, from the first export on */
    uint32_t generation; /* of the export slot; 0 before the first export */
    int over;            /* 1: the allocator has given the segment back */
    int stays;           /* 1: at the end, other processes have it open */
} ds__export_hold;

/* An exported block, until it is free. */
typedef struct ds__ipc_export {
    struct ds__ipc_export *next; /* in a bucket, or in `limbo` */
    ds__mem_block *block;        /* NULL: the block is free, and only the record is left */
    char *ptr;
    uint32_t slot; /* the export slot */
    uint32_t generation;
    int exports;    /* calls of ds_mem_export that use the record now; it does not end meanwhile */
    ds_event event; /* 0: DS__SENT_EVENTS other records have an event */
} ds__ipc_export;

/* An opened segment of another process. */
typedef struct ds__guest {
    struct ds__guest *next;
    ds_device device;
    ds__registry *registry;
    char *base;
    size_t size;
    uint32_t slot;
    uint32_t generation;
    uint32_t lease;
    size_t blocks; /* records of imports in the segment */
} ds__guest;

/* An imported block. */
typedef struct ds__got {
    struct ds__got *next;
    ds__guest *guest;
    char *ptr;
    size_t size;
    uint32_t slot;
    uint32_t generation;
    int open; /* imports that were not closed */
    uint32_t lease;
    _Atomic int left; /* `open`, and closed imports whose callback has not run */
    _Atomic int gone; /* 1: the lease is dropped, and no callback will come */
} ds__got;

static struct {
    ds__mutex mutex;
    ds__spinlock lock;     /* guards `limbo` and `bucket` */
    ds__ipc_export *limbo; /* records of freed blocks */
    ds__ipc_export *bucket[DS__SENT_BUCKETS];
    ds__export_hold *hoards; /* all exported segments */
    ds__guest *guests;
    ds__got *got;
    size_t events;
    _Atomic size_t in_limbo;
    int warned;
    int ending;
    uint64_t looked_ns;
} ds__share = { .mutex = DS__MUTEX_INIT };

/* The content of an IPC handle, which another process may have changed. All members except `inner`
   name the export slot; `inner` is compared with the size there. */
typedef struct ds__ipc_memory {
    uint8_t version;
    uint8_t type; /* of the device, for the error; the type in the segment's slot counts */
    uint8_t zero[2];
    int32_t pid;
    int32_t fd;
    uint32_t slot;
    uint32_t generation;
    uint32_t zero_too;
    uint64_t cookie;
    uint64_t inner;          /* offset of the pointer in the block */
    unsigned char rest[216]; /* zero */
} ds__ipc_memory;

enum { DS__PARCEL_VERSION = 2 };

#endif
