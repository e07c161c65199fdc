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
       arena keeps the block of the last free apart and unmerged (parked), for the next request
       of its size. Peaks are checked when the headroom below them is used up.
    8. A use by another stream gets its event from the one thread that claims the use. This
       happens at ds_mem_record_use, at the free, or at the end of the stream.
    9. A free without a cache may be impossible for now, because a capture is open or a stream's
       work is not done. It is deferred, and later calls try again.
   10. The host waits for events recorded outside of captures, not for streams, so a capture may
       begin meanwhile. If no such event can be recorded and no capture is open, the device is
       synchronised.

   Invariants: The blocks of a segment fill its address space without gaps, in the order of
   addresses. Sizes of blocks are multiples of 512 (DS__UNIT). A quiet block is in no bin: it is
   parked, or one thread works on it without the lock. A segment's `arena` is NULL if its
   description is not in use.
   Locks: the order is an arena's `giving`, its `grow`, the device's `lock`, arenas' `lock`,
   ds__memory_state.registry. ds__memory_state.lock comes before the device's `lock`. More than one
   arena's `lock` is held only with the device's. The driver must not be called with a spinning lock
   held; ds__record_late and ds__note_use break this rule. Observers (ds_mem_add_event_callback) may
   run under all of these but the registry's.
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

/* Another stream's last use of a block. */
typedef struct ds__stream_use {
    struct ds__stream_use *next;
    ds_stream stream;
    uint64_t stream_id; /* of the first use of a block that was lent: ds_stream_get_id */
    ds_event event;
    ds__hold *hold;   /* pinned memory: a capture's use, which has no event */
    int64_t device;   /* which the event belongs to */
    uint64_t capture; /* the event is part of this capture; 0: of none */
    /* its stream has ended, and its event could not be recorded there */
    uint8_t lost;
    /* 0: will be, at the free (ds_mem_record_stream) or when a capture is over; 1: it is;
       DS__RECORDING */
    _Atomic uint8_t recorded;
} ds__stream_use;

#define DS__RECORDING 2 /* by somebody, just now */

/* What describes a piece of a segment: 104 bytes. */
struct ds__mem_block {
    char *ptr;
    size_t size;
    size_t asked;
    ds__mem_block *prev;      /* the neighbour before it in the segment */
    ds__mem_block *next;      /* the neighbour behind it in the segment */
    ds__mem_block *list_prev; /* free: in its bin; pending: in the arena's list */
    /* free, pending: as list_prev; live: leads to another live block of the granule */
    ds__mem_block *list_next;
    ds__segment *seg;
    ds__stream_use *uses;
    const char *label;
    const char *file;
    uint32_t line;

    union {
        struct {
            uint8_t state;    /* a ds_mem_state */
            uint8_t exported; /* 1: other processes may have it */
            /* 1: live on a stream that is not its arena's, or was until it was freed; `uses`
               begins with that stream */
            uint8_t lent;
            /* 1: in no bin: taken out by someone who works on it without the lock, or parked */
            uint8_t quiet;
        };

        uint32_t flags; /* these four at once */
    };

    uint16_t bin;     /* free: which */
    uint8_t oversize; /* 1: counted among those of max_split_size or more */
    uint8_t stale;    /* 1: freed, and to be poisoned before it is anyone's */
    /* live: so many bytes behind what was asked for hold DS__GUARD, if nobody has written there */
    uint32_t guarded;
};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define DS__FLAGS(state, quiet) ((uint32_t)(state) | (uint32_t)(quiet) << 24)
#else
#define DS__FLAGS(state, quiet) ((uint32_t)(state) << 24 | (uint32_t)(quiet))
#endif
enum {
    DS__FLAGS_LIVE = DS__FLAGS(DS_BLOCK_LIVE, 0),
    DS__FLAGS_PARKED = DS__FLAGS(DS_BLOCK_FREE, 1)
};

/* A granule with many blocks, cut finer. */
enum { DS__DENSE_SHIFT = 16, DS__ROW_BITS = 5, DS__ROW_FROM = 8 /* blocks */ };

typedef struct ds__sub_table {
    struct ds__sub_table *next; /* of the segment, or spare */
    ds__mem_block *at[1 << DS__ROW_BITS];
} ds__sub_table;

struct ds__segment {
    ds__segment *next; /* in the arena's list; not in use: in ds__memory_state.free_segments */
    ds__segment *prev; /* in the arena's list */
    ds__arena *_Atomic arena; /* NULL: not in use */
    char *base;
    size_t size;   /* address space */
    size_t mapped; /* bytes of memory behind it */
    size_t page;   /* growing: the unit of mapping; plain: 0 */
    ds__mem_block *first;
    /* live blocks by address: the first that starts in each 1 << shift bytes; lowest bit: a
       ds__sub_table instead */
    ds__mem_block **granule;
    struct ds__sub_table *rows;
    unsigned shift;
    uint8_t kind;     /* DS__SMALL or DS__LARGE */
    uint8_t source;   /* DS__FROM_* */
    uint8_t oversize; /* counted among those of max_split_size or more */
    /* one block of a backend without a cache: its free is the segment's end */
    uint8_t direct;
    /* its memory is given back, and may be another segment's at once; under the registry's lock */
    uint8_t leaving;
    /* what the upstream was given as stream; growing: the page that the policy asked for */
    uint64_t native;
    uint64_t serial; /* counts segments: orders free blocks beyond their addresses */
    uint32_t index;  /* in the registry */
};

#define DS__WATCHED (1u << 31) /* of ds__mem_dev.watch: there are observers */

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

/* Counted at every allocation and free, by kind of segment; under the lock of who counts. */
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
    /* what is active beyond what is allocated: blocks, bytes */
    struct {
        int64_t now[DS__COUNTED];
        int64_t total[DS__COUNTED];
        int64_t pending[2];
    } kind[2];

    /* DS_STAT_ALL, small, large; of active ones: only where more is active than allocated */
    int64_t peak[3][DS__METRICS];
} ds__tally;

/* How much more may become active before a peak has to be looked at: in a kind, or in both. */
typedef struct ds__headroom {
    int64_t of[DS__COUNTED];
    /* of what has become pending since: blocks, bytes. When it is done it is room again; what
       was pending before is none */
    int64_t owed[2];
} ds__headroom;

/* Counted where the driver is called, and for plain segments; under the device's lock or by
   atomic operations. */
typedef struct ds__meter {
    _Atomic int64_t now;
    _Atomic int64_t peak;
    _Atomic int64_t total;
    _Atomic int64_t freed;
} ds__meter;

enum { DS__SEGMENT = 0, DS__RESERVED, DS__SPLIT, DS__SPLIT_BYTES, DS__METERS };

/* Statistics of a device or a pool. */
typedef struct ds__domain {
    /* while one thread allocates: everything; later: what it had counted, and peaks */
    ds__tally tally;
    int64_t freed_base[2][DS__METRICS]; /* total - now at the last reset of totals */
    int64_t frozen[2][DS__METRICS];     /* frees when totals stopped */
    /* the most arenas that were given room since peaks were reset: so much too high they may be */
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

struct ds__arena {
    ds__lock lock;
    _Atomic uint8_t orphan; /* the stream has ended */
    uint8_t exact;          /* 1: counts in the domains' tallies; 0: in its own */
    /* calls of this arena take the long way: poison, guards, debug from 2 on */
    _Atomic uint8_t watched;
    uint8_t slow;      /* requests take the long way, for any reason of the pool's */
    uint8_t slow_free; /* frees take the long way, for any reason of the pool's */
    uint8_t fresh;     /* ds__wanted.fresh of the request that is looked for */
    uint8_t full;      /* totals and peaks are counted */
    uint8_t own_pool;  /* the pool is not the device's default one */
    uint8_t measured;  /* `full` or `own_pool`: `room` is kept */
    ds__mem_pool *pool;
    ds__mem_dev *dev;
    uint64_t stream_id; /* ds_stream_get_id */
    ds_stream stream;
    const void *identity; /* the driver's queue: wrappers of one stream share an arena */
    ds_event end;         /* orphan: when its stream was done */

    /* other handles of the stream (ds_stream_wrap) that have come here */
    struct {
        ds_stream stream;
        uint64_t id;
    } twin[3];

    uint8_t crowded; /* there were more */
    ds__arena *next; /* of the pool */
    ds__segment *segments;
    ds__mem_block *pending;
    ds__mem_block *pending_last;
    /* direct blocks, pending until the driver can take them back; linked by list_next */
    ds__mem_block *deferred;
    ds__mem_block *deferred_last; /* the last of them */
    size_t deferred_count;
    size_t pending_bytes;
    size_t free_bytes;
    ds__mem_block *holes[2]; /* unmapped, in the order of addresses */
    /* the block that was freed last, not yet one with its neighbours: the next request of its
       size takes it */
    ds__mem_block *parked[2];
    ds__tally own;
    ds__tally *tally;         /* the one it counts in: the device's if `exact`, else `own` */
    ds__headroom own_room[3]; /* small, large, both */
    ds__headroom *room;       /* the same: the device's if `exact`, else `own_room` */
    /* the pool's; NULL: no garbage is collected, and they are not counted */
    _Atomic uint32_t *requests;
    ds__mem_block *spare_blocks; /* descriptions to be used again */
    ds__stream_use *spare_uses;
    ds__sub_table *spare_rows;
    /* held by who changes the segments: never over a wait for the device */
    ds__mutex grow;
    ds__bins bins[2];
    /* held, before `grow`, by who gives memory back: over such waits too, so that no allocation
       may wait for it */
    ds__mutex giving;
};

struct ds__mem_pool {
    uint64_t id;        /* handle: index + 1 and generation; 0: a device's default pool */
    uint64_t name[2];   /* torch's id */
    ds__mem_pool *next; /* all of a device */
    ds__mem_dev *dev;
    ds_mem_config config; /* for those who hold a lock of an arena, or the device's */
    /* the same for all others (ds__pool_policy), but the limits: a copy that stays */
    const ds_mem_config *_Atomic policy;
    ds_upstream_alloc_fn alloc_fn;
    ds_upstream_free_fn free_fn;
    ds_resource upstream; /* then alloc_fn and free_fn are only not NULL */
    uint8_t no_split;
    uint8_t shareable;
    _Atomic uint8_t use_on_oom;
    _Atomic uint8_t dead;
    /* from the configuration: */
    uint8_t rounds;   /* divisions are set */
    uint8_t coarse;   /* neither best_fit_by_address nor single_pool */
    uint8_t oversize; /* there is a max_split_size */
    uint8_t watched;  /* poison, guards or debug from 2 on */
    uint8_t full;     /* totals are counted */
    uint8_t direct;   /* no cache */
    /* for large plain blocks, of all arenas, while garbage is collected: the clock of the
       blocks' ages */
    _Atomic uint32_t requests;
    /* the rest of a plain block is worth keeping from this size on, by kind */
    size_t split_above[2];
    _Atomic size_t reserved;
    size_t limit;
    _Atomic int owners; /* raised, and looked at for none, under the device's lock */
    /* those among them that are captures and graphs: they use free memory too */
    _Atomic int graphs;
    char *label;
    ds__arena *arenas;
    ds__domain stats;
};

/* One of the newest events. */
typedef struct ds__history_event {
    uint64_t address, bytes, stream, time_ns, /* in the ring: ticks */
        pool;
    const char *file;
    const char *label;
    uint32_t line;
    uint32_t action;
} ds__history_event;

struct ds__mem_dev {
    /* the thread that allocates, while there is one; then `owner` of nobody */
    _Atomic(void *) owner;
    _Atomic unsigned watch; /* actions that someone wants to know of */
    ds__headroom room[3];   /* of all exact arenas */
    ds__mutex lock;         /* arenas, pools, history's settings */
    ds_device device;
    size_t total;          /* the device's memory */
    _Atomic int has_space; /* growing segments: 1 can, 0 cannot, -1 not asked yet */
    /* 1: address space for a growing segment was not there, and a warning was logged */
    _Atomic int space_missed;
    ds__mem_pool main; /* the default pool; main.next: the others */
    ds__domain stats;  /* of all pools */
    _Atomic size_t reserved;
    _Atomic size_t limit; /* 0: none */
    ds__lock history_lock;
    ds__history_event *history;
    size_t history_room; /* entries */
    size_t history_at;   /* the entry that comes next */
    _Atomic uint64_t history_count;
    /* of ds_mem_record_stream, whose events are recorded at the free */
    _Atomic int64_t late_uses;
    _Atomic uint8_t async; /* the driver's own pool was used */
    /* of the driver pool's memory: what blocks have; the rest is ds__async_surplus */
    _Atomic size_t async_bytes;
    int64_t async_peak[2]; /* of what was reserved with that: all, large */
    /* calls that are between `reserved` and the segments: how many now, and, from bit 32 on,
       were ever */
    _Atomic uint64_t moving;
    _Atomic int deferred; /* blocks in the arenas' lists of that name */
    /* handle of the stream that gives back to the driver's pool what ended streams had; 0: not
       needed yet */
    _Atomic uint64_t giver;
};

#endif
