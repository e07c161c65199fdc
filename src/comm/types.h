/* comm/types.h - types of a collective: lanes, regions, steps.

   Defines the working state of one collective call (ds__work) and its parts: lanes (ds__clane),
   regions (ds__region), steps (ds__cstep), buffer locations (ds__location) and participants
   (ds__participant). Also defines the process-wide stocks of events (ds__spares) and of streams for
   plans (ds__sides_of).

   Policy:
   1. A collective reads all tensor descriptions into participants, checks them, creates its
      results and writes a list of steps. Until ds__work_run no step is enqueued; only a stream
      capture is extended earlier (ds__fork_capture).
   2. A step is a copy, a strided copy or a reduction. It runs on one lane, a stream. Its
      operands are regions, and each region belongs to a lane. The steps of a lane run in list
      order and may wait for steps of other lanes. Only the list decides the path of the data and
      the place of each sum. If a plan is followed, the list has the plan's steps, and its
      additional lanes are streams of the library.
   3. To run the list, each lane first waits for the pending work of the lanes whose regions it
      touches. Then the steps are enqueued. At the end, the lane of the last step waits for all
      lanes with steps, and all lanes wait for that lane. Memory of a lane can therefore be freed
      in that lane's order at once, temporary memory included. For the same reason, a failure of
      one lane reaches all lanes.
   4. If enqueueing fails, the remaining steps are left out, but the waits at the end are still
      enqueued.
   5. If the steps are small and no lane has pending work, the calling thread runs the steps
      (inline_bytes and run_together of the driver). Nothing is enqueued then.

   Invariants: arrays of a ds__work move when they grow, so lanes, regions, steps and spots are
   named by index. A step waits only for steps in front of it in the list. A temporary region has
   no address until ds__work_run allocates its memory.
   Locks: ds__c.lock protects ds__spares, ds__sides_of and the tables behind ds__sides_of. No
   driver call runs under that lock. ds_shutdown works without the lock. ds__side_take reads the
   handle of a stream without the lock after marking the stream as taken.
   Threads: several threads may run collectives at the same time. A ds__work lies on the stack of
   the calling thread and is used by that thread only. */
#ifndef DS__COMM_TYPES_H
#define DS__COMM_TYPES_H

#include "../api/comm.h"
#include "../tensor/types.h"

#define DS__NO_INDEX UINT32_MAX
#define DS__INLINE_LANES 16

enum { DS__STEP_COPY, DS__STEP_ROWS, DS__STEP_PACK, DS__STEP_REDUCE };

typedef struct ds__clane {
    ds__stream *s;
    ds_stream stream;
    ds_device device;
    /* what the next step comes after: the first of a list, or DS__NO_INDEX */
    uint32_t pending;
    int pinned; /* 1: it has a pin, 0: a reference; a thread has few pins */
    int busy;   /* 1: it has steps */
    int side;   /* one of devstream's own streams: its number, from 1 */
} ds__clane;

typedef struct ds__region {
    char *at; /* NULL: to be allocated */
    size_t bytes;
    uint32_t lane;
    int direct; /* 1: it is not pageable, so kernels may use it */
    int temporary;
    ds_device device;
} ds__region;

typedef struct ds__location {
    uint32_t region;
    ptrdiff_t offset;
} ds__location;

/* Distances in elements. */
typedef struct ds__strided {
    int ndim;
    size_t item;
    int64_t shape[8];
    int64_t dst[8];
    int64_t src[8];
} ds__strided;

typedef struct ds__cstep {
    uint8_t kind;
    uint8_t op;
    ds_dtype dtype;
    uint32_t lane;
    /* the first of the steps of other lanes that come before, or DS__NO_INDEX */
    uint32_t after;
    int watched; /* 1: it comes before a step of another lane */
    ds_event done;
    ds__location dst;
    ds__location src;
    size_t width;     /* copy: bytes; reduction: elements */
    size_t height;    /* copy: rows */
    size_t dst_pitch; /* copy: bytes */
    size_t src_pitch; /* copy: bytes */
    uint32_t strided; /* strided copy: its form */
    uint32_t first;   /* reduction: the first of its inputs among the spots */
    uint32_t count;   /* reduction: its inputs */
} ds__cstep;

typedef struct ds__link {
    uint32_t step;
    uint32_t next;
} ds__link;

typedef struct ds__work {
    ds__clane *lane;
    ds__region *region;
    ds__cstep *step;
    ds__link *link;
    ds__location *spot;
    ds__strided *strided;
    const void **in; /* room for the inputs of a reduction */
    size_t lanes, lane_room, regions, region_room, steps, step_room, links, link_room, spots,
        spot_room, strideds, strided_room;
    ds_result r;        /* the first failure */
    size_t most;        /* inputs of a reduction at most */
    size_t temporaries; /* regions to be allocated */
    int forked;         /* 1: lanes came into a capture, and have not joined again */
    /* memory beyond `first`, each begins with the address of the one before */
    void **chunks;
    char *at;                /* where the next piece is taken */
    size_t left;             /* bytes that are left there */
    ds__clane lane_first[8]; /* the lists begin here, on the caller's stack, */
    ds__region region_first[12];
    ds__cstep step_first[8];
    ds__location spot_first[8];
    const void *in_first[8];
    _Alignas(16) char first[16 << 10]; /* and all else here: enough for a dozen tensors */
} ds__work;

/* A tensor that takes part. */
typedef struct ds__participant {
    uint32_t lane; /* memory of the host: DS__NO_INDEX until it is known */
    uint32_t region;
    unsigned flags;
    ds__dims d; /* most of it are dimensions that nobody has */
} ds__participant;

/* What is to be put together, all in one order of elements: where it lies, and after which step. */
typedef struct ds__addend {
    ds__location spot;
    uint32_t after;
} ds__addend;

static const ds_comm_options ds__comm_usual;

#define DS__SPARE_EVENTS 16

typedef struct ds__spare {
    ds_event at[DS__SPARE_EVENTS];
    int count;
} ds__spare;

static ds__spare ds__spares[DS_BACKEND_COUNT][DS__MAX_DEVICES];

/* Streams for the further lanes of plans. One that somebody uses for a list, that has work or
   that captures is left alone as long as there is another. */
#define DS__SIDES 64

typedef struct ds__sides {
    ds_stream at[DS__SIDES];
    unsigned char taken[DS__SIDES];
    int count;
} ds__sides;

/* under ds__c.lock, as what they point to */
static ds__sides *ds__sides_of[DS_BACKEND_COUNT][DS__MAX_DEVICES];

#endif
