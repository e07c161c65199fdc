/* alloc/types.h - types and policy of the caching allocator.

   Defines the structures of the allocator: block (ds__mem_block), segment, arena, pool
   (ds__mem_pool), device (ds__mem_dev), stream use (ds__stream_use), bins and counters. Most rooms
   of alloc/ include it.

   Policy:
    1. An arena holds the free memory of one stream in one pool, under a lock of its own. A pool
       has an arena for each stream.
    2. A segment is memory from the driver, divided into blocks. It is plain, or it grows page
       by page in reserved address space.
    3. An allocation takes the best fitting free block of its arena and splits it. A free merges
       the block with its free neighbours.
    4. A freed block that other streams used is pending until the events of these uses are
       complete. An allocation without another block takes a pending one and makes its stream
       wait for the events.
    5. Free blocks of ended streams go to the first stream in need of memory.
    6. A table with two levels maps addresses, in granules of 2 MiB, to segments, and is read
       without a lock. Descriptions of segments and arenas stay until ds_shutdown, so a late
       look-up reads valid objects.
    7. Fast path: a thread remembers the arena of the stream on which it allocated last. An
       arena keeps freed blocks apart and unmerged (parked), for the next requests of their
       sizes: up to 16 small ones of each of 64 sizes, and the last one of all others. They are
       merged before a request grows the memory in use. Peaks are checked when the headroom
       below them is used up.
    8. A use by another stream gets its event from the one thread that claims the use. This
       happens at ds_mem_record_use, at the free, or at the end of the stream.
    9. A free without a cache may be impossible for now, because a capture is open or a stream's
       work is not done. It is deferred, and later calls try again.
   10. The host waits for events recorded outside of captures, not for streams, so a capture may
       begin meanwhile. If no such event can be recorded and no capture is open, the device is
       synchronised.

   Invariants: The blocks of a segment fill its address space without gaps, in the order of
   addresses. Sizes of blocks are multiples of 512 (DS__UNIT). A claimed block is in no bin: it is
   parked, or one thread works on it without the lock. A segment's `arena` is NULL if its
   description is not in use.
   Locks: the order is an arena's `giving`, its `grow`, the device's `lock`, arenas' `lock`,
   ds__memory_state.registry. ds__memory_state.lock comes before the device's `lock`. More than one
   arena's `lock` is held only with the device's. The driver must not be called with a spinning lock
   held. Observers (ds_mem_add_event_callback) may run under all of these but the registry's.
   Threads: any. Atomic members may be read without a lock. */
#ifndef DS__ALLOC_TYPES_H
#define DS__ALLOC_TYPES_H

#include "../api/resource.h"
#include "../api/event.h"
#include "../api/pool.h"
#include "../os/os.h"

#define DS__UNIT ((size_t)512)
#define DS__SMALL_LIMIT ((size_t)1 << 20) /* requests up to this are small */
#define DS__MIB ((size_t)1 << 20)

enum { DS__SMALL = 0, DS__LARGE = 1 };

typedef struct ds__mem_block ds__mem_block;
typedef struct ds__segment ds__segment;
typedef struct ds__arena ds__arena;
typedef struct ds__mem_pool ds__mem_pool;
typedef struct ds__mem_dev ds__mem_dev;

typedef struct ds__hold ds__hold;

/* The last use of a block by another stream than the arena's. */
typedef struct ds__stream_use {
    struct ds__stream_use *next;
    ds_stream stream;
    uint64_t stream_id; /* ds_stream_get_id; only in the first use of a lent block */
    ds_event event;
    ds__hold *hold;   /* pinned memory: a use in a capture, which has no event */
    int64_t device;   /* ds__device_key of the event's device */
    uint64_t capture; /* the capture in which the event was recorded; 0: none */
    /* 1: the stream has ended, and its event could not be recorded before */
    uint8_t lost;
    /* 1: the event is recorded; 0: it will be, at the free (ds_mem_record_stream) or after a
       capture; or DS__RECORDING */
    _Atomic uint8_t recorded;
} ds__stream_use;

#define DS__RECORDING 2 /* a thread records the event now */

/* Describes a part of a segment: 104 bytes. */
struct ds__mem_block {
    char *ptr;
    size_t size;
    size_t asked;
    ds__mem_block *prev;      /* neighbour in the segment, at lower addresses */
    ds__mem_block *next;      /* neighbour in the segment, at higher addresses */
    ds__mem_block *list_prev; /* in the bin (free), in the list of pending blocks, or of holes */
    /* in the list of `list_prev`; of a live block: in the list of its granule */
    ds__mem_block *list_next;
    ds__segment *seg;
    ds__stream_use *uses;
    const char *label;
    const char *file;
    uint32_t line;

    union {
        struct {
            uint8_t state;    /* a ds_mem_state */
            uint8_t exported; /* 1: other processes may use the block */
            /* 1: the block is live on another stream than the arena's, or was so until the free;
               this stream has the first one of `uses` */
            uint8_t lent;
            /* 1: the block is in no bin, because it is parked, or a thread works on it without the
               lock */
            uint8_t claimed;
        };

        uint32_t flags; /* the four members above as one number */
    };

    uint16_t bin;     /* of a free block */
    uint8_t oversize; /* 1: counted among the blocks of max_split_size or more */
    uint8_t stale;    /* 1: freed, and must be poisoned before the next use */
    /* of a live block: the bytes behind the requested ones that were filled with DS__GUARD */
    uint32_t guarded;
};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define DS__FLAGS(state, claimed) ((uint32_t)(state) | (uint32_t)(claimed) << 24)
#else
#define DS__FLAGS(state, claimed) ((uint32_t)(state) << 24 | (uint32_t)(claimed))
#endif
enum {
    DS__FLAGS_LIVE = DS__FLAGS(DS_BLOCK_LIVE, 0),
    DS__FLAGS_PARKED = DS__FLAGS(DS_BLOCK_FREE, 1)
};

/* log2 of the granule of segments with many blocks, and of the parts of a sub-table; the number of
   blocks from which on a granule gets a sub-table. */
enum { DS__DENSE_SHIFT = 16, DS__SUB_TABLE_BITS = 5, DS__SUB_TABLE_FROM = 8 };

/* The live blocks of a granule with many blocks, by the part in which they start. */
typedef struct ds__sub_table {
    struct ds__sub_table *next; /* in the list of a segment, or of unused ones */
    ds__mem_block *at[1 << DS__SUB_TABLE_BITS];
} ds__sub_table;

struct ds__segment {
    ds__segment *next; /* in the arena's list; not in use: in ds__memory_state.free_segments */
    ds__segment *prev; /* in the arena's list */
    ds__arena *_Atomic arena; /* NULL: not in use */
    char *base;
    size_t size;   /* address space */
    size_t mapped; /* bytes of memory in the address space */
    size_t page;   /* growing: the unit of mapping; plain: 0 */
    ds__mem_block *first;
    /* for each granule of 1 << shift bytes, the list of the live blocks that start there; lowest
       bit: a ds__sub_table instead */
    ds__mem_block **granule;
    ds__sub_table *sub_tables;
    unsigned shift;
    uint8_t kind;     /* DS__SMALL or DS__LARGE */
    uint8_t source;   /* DS__FROM_* */
    uint8_t oversize; /* 1: counted among the segments of max_split_size or more */
    /* 1: has one block of a backend without a cache; the free of the block ends the segment */
    uint8_t direct;
    /* 1: the memory is being given back, so other segments may get its addresses; guarded by the
       registry's lock */
    uint8_t leaving;
    /* the stream that was passed to the upstream; growing: the size of pages that the policy had */
    uint64_t native;
    uint64_t serial; /* number of the segment, which orders the blocks of different segments */
};

#define DS__WATCHED (1u << 31) /* bit of ds__mem_dev.watch: there are observers */

/* The sources of a segment's memory: the driver's plain memory, reserved address space, a pool's
   upstream, the driver's own pool, shareable memory, pinned and registered memory. */
enum {
    DS__FROM_DRIVER = 0,
    DS__FROM_SPACE,
    DS__FROM_UPSTREAM,
    DS__FROM_ASYNC,
    DS__FROM_SHARE,
    DS__FROM_PINNED,
    DS__FROM_REGISTERED
};

/* Free blocks by size: 32 classes between two powers of two. */
#define DS__BINS 1536

typedef struct ds__bins {
    uint64_t summary;
    uint64_t map[DS__BINS / 64];
    ds__mem_block *head[DS__BINS];
} ds__bins;

/* Counts that change at every allocation and free, by kind of segment. */
enum {
    DS__ALLOCATION = 0,
    DS__ALLOCATED_BYTES,
    DS__REQUESTED_BYTES,
    DS__COUNTED,
    DS__ACTIVE = DS__COUNTED,
    DS__ACTIVE_BYTES,
    DS__METRICS
};

typedef struct ds__tally {
    struct {
        int64_t now[DS__COUNTED];
        int64_t total[DS__COUNTED];
        int64_t pending[2]; /* blocks and bytes that are active and not allocated */
    } kind[2];

    /* of both kinds, small, large; see ds__tally_peak for active blocks */
    int64_t peak[3][DS__METRICS];
} ds__tally;

/* The counts that may be added in a kind, or in both, before peaks must be checked. */
typedef struct ds__headroom {
    int64_t of[DS__COUNTED];
    /* blocks and bytes that have become pending since; they become headroom again when they are
       done, blocks that were pending before do not */
    int64_t owed[2];
} ds__headroom;

/* A count of driver calls or plain segments, which changes rarely. */
typedef struct ds__meter {
    _Atomic int64_t now;
    _Atomic int64_t peak;
    _Atomic int64_t total;
    _Atomic int64_t freed;
} ds__meter;

enum { DS__SEGMENT = 0, DS__RESERVED, DS__SPLIT, DS__SPLIT_BYTES, DS__METERS };

/* Statistics of a device or a pool. */
typedef struct ds__domain {
    /* all counts, while one thread allocates; later the counts up to then, and the peaks */
    ds__tally tally;
    int64_t freed_base[2][DS__METRICS]; /* total - now at the last reset of totals */
    int64_t frozen[2][DS__METRICS];     /* frees when totals stopped */
    /* the largest number of arenas that had room since peaks were reset; peaks may be too high by
       their rooms */
    int64_t sharers;
    ds__meter meter[2][DS__METERS];
    ds__meter all[DS__METERS];
    ds__meter oversize_allocations;
    ds__meter oversize_segments;
    _Atomic int64_t retries;
    _Atomic int64_t ooms;
    _Atomic int64_t syncs;
    _Atomic int64_t driver_allocs;
    _Atomic int64_t driver_frees;
    _Atomic int64_t rejections;
} ds__domain;

/* Freed blocks of one size that stay unmerged, for the next requests of this size. */
typedef struct ds__parked {
    ds__mem_block *first; /* linked by list_prev */
    uint32_t size;        /* of a quick list: the size of the blocks that enter it */
    uint32_t count;
} ds__parked;

/* Small blocks up to DS__QUICK_LIMIT bytes are parked in quick lists, which are chosen by size and
   have up to DS__QUICK_DEPTH blocks. Of other blocks, the last freed one of a kind is parked. */
#define DS__QUICK_LIMIT ((size_t)96 << 10)

enum { DS__QUICK_BITS = 6, DS__QUICK_LISTS = 1 << DS__QUICK_BITS, DS__QUICK_DEPTH = 16 };

enum { DS__PARKED_SLOTS = DS__QUICK_LISTS + 2 };

#define DS__ALIASES 3 /* further handles that an arena stores */

struct ds__arena {
    ds__spinlock lock;
    _Atomic uint8_t orphan; /* 1: the stream has ended */
    uint8_t exact;          /* 1: counts in the domains' tallies; 0: in its own */
    /* 1: the pool has poison, guards or debug from 2 on */
    _Atomic uint8_t watched;
    uint8_t slow;      /* 1: requests do not take the fast path */
    uint8_t slow_free; /* 1: frees do not take the fast path */
    uint8_t fresh;     /* ds__wanted.fresh of the request that searches the arena */
    uint8_t full;      /* 1: totals and peaks are counted */
    uint8_t own_pool;  /* 1: the pool is not the device's default one */
    uint8_t measured;  /* `full` or `own_pool`: `room` is kept */
    ds__mem_pool *pool;
    ds__mem_dev *dev;
    uint64_t stream_id; /* ds_stream_get_id */
    ds_stream stream;
    const void *identity; /* the driver's queue: wrappers of one stream share an arena */
    ds_event end;         /* of an orphan: behind the work of its stream */

    /* further handles of the stream (ds_stream_wrap) on which memory was allocated */
    struct {
        ds_stream stream;
        uint64_t id;
    } alias[DS__ALIASES];

    uint8_t crowded; /* 1: there were more than DS__ALIASES further handles */
    ds__arena *next; /* in the pool's list */
    ds__segment *segments;
    ds__mem_block *pending; /* the list from the oldest block to the newest */
    ds__mem_block *pending_last;
    /* blocks of backends without a cache that wait for another attempt to free them; linked by
       list_next */
    ds__mem_block *deferred;
    ds__mem_block *deferred_last;
    size_t deferred_count;
    size_t pending_bytes;
    size_t free_bytes;
    ds__mem_block *holes[2];             /* unmapped blocks, in the order of addresses */
    ds__parked parked[DS__PARKED_SLOTS]; /* see ds__parked_at */
    uint64_t quick_used;                 /* bits of the quick lists that may hold blocks */
    ds__tally own;
    ds__tally *tally;         /* the tally in use: the device's if `exact`, else `own` */
    ds__headroom own_room[3]; /* small, large, both */
    ds__headroom *room;       /* the headroom in use: the device's if `exact`, else `own_room` */
    /* the pool's counter of requests; NULL: garbage is not collected */
    _Atomic uint32_t *requests;
    ds__mem_block *spare_blocks; /* unused descriptions */
    ds__stream_use *spare_uses;
    ds__sub_table *spare_sub_tables;
    /* held while the segments change, but not while the host waits for the device */
    ds__mutex grow;
    ds__bins bins[2];
    /* held before `grow` while memory is given back, also while the host waits for the device; an
       allocation must not wait for it */
    ds__mutex giving;
};

struct ds__mem_pool {
    uint64_t id;        /* handle: index + 1 and generation; 0: a device's default pool */
    uint64_t name[2];   /* the identifier of ds_pool_get_id */
    ds__mem_pool *next; /* in the device's list */
    ds__mem_dev *dev;
    ds_mem_config config; /* for threads with the lock of an arena or of the device */
    /* a copy of the configuration without limits, for all other threads (ds__pool_policy) */
    const ds_mem_config *_Atomic policy;
    ds_upstream_alloc_fn alloc_fn;
    ds_upstream_free_fn free_fn;
    ds_resource upstream;
    uint8_t has_upstream; /* 1: `upstream`, or alloc_fn and free_fn, are set */
    uint8_t no_split;
    uint8_t shareable;
    _Atomic uint8_t use_on_oom;
    _Atomic uint8_t dead; /* 1: ds_pool_destroy was called */
    /* derived from the configuration: */
    uint8_t rounds;   /* 1: roundup_power2_divisions is set */
    uint8_t coarse;   /* 1: neither best_fit_by_address nor single_pool */
    uint8_t oversize; /* 1: max_split_size is set */
    uint8_t watched;  /* 1: poison, guards or debug from 2 on */
    uint8_t full;     /* 1: totals are counted */
    uint8_t direct;   /* 1: a backend without a cache */
    /* requests for large plain blocks in all arenas while garbage is collected: the clock of the
       ages of free blocks */
    _Atomic uint32_t requests;
    /* by kind: the smallest rest of a plain block that is cut off */
    size_t split_above[2];
    _Atomic size_t reserved;
    size_t limit;
    _Atomic int owners; /* increased, and compared with 0, under the device's lock */
    /* the owners that are captures and graphs: they use free memory too */
    _Atomic int graphs;
    char *label;
    ds__arena *arenas;
    ds__domain stats;
};

/* An event of the history. */
typedef struct ds__history_event {
    uint64_t address;
    uint64_t bytes;
    uint64_t stream;
    uint64_t time_ns; /* in the ring: ticks */
    uint64_t pool;
    const char *file;
    const char *label;
    uint32_t line;
    uint32_t action;
} ds__history_event;

struct ds__mem_dev {
    /* the thread that allocates (&ds__tls), while there is only one; then &ds__no_owner */
    _Atomic(void *) owner;
    _Atomic unsigned watch; /* bits of the actions that are reported */
    ds__headroom room[3];   /* of all exact arenas */
    ds__mutex lock;         /* guards the lists of pools and arenas */
    ds_device device;
    size_t total;          /* the device's memory */
    _Atomic int has_space; /* growing segments: 1 can, 0 cannot, -1 not asked yet */
    /* 1: the system had no address space for a growing segment, and a warning was logged */
    _Atomic int space_missed;
    ds__mem_pool main; /* the default pool; main.next: the others */
    ds__domain stats;  /* of all pools */
    _Atomic size_t reserved;
    _Atomic size_t limit; /* 0: none */
    ds__spinlock history_lock;
    ds__history_event *history;
    size_t history_room; /* entries */
    size_t history_at;   /* index of the next entry */
    _Atomic uint64_t history_count;
    /* uses whose events are recorded later, at the free or at the end of a stream */
    _Atomic int64_t late_uses;
    _Atomic uint8_t async; /* 1: the driver's own pool was used */
    /* the bytes of blocks from the driver's own pool; ds__async_surplus has the rest of the pool */
    _Atomic size_t async_bytes;
    int64_t async_peak[2]; /* peak of reserved bytes including the driver's pool: all, large */
    /* calls between ds__move_begin and ds__move_end: the number now, and from bit 32 on the number
       of all calls so far */
    _Atomic uint64_t moving;
    _Atomic int deferred; /* number of deferred blocks in all arenas */
    /* handle of ds__direct_giver's stream; 0: not made yet */
    _Atomic uint64_t giver;
};

#endif
