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
      (DS__STEPS_INLINE, and inline_bytes and run_together of the driver). Nothing is enqueued then.

   Invariants: arrays of a ds__work move when they grow, so lanes, regions, steps and locations are
   named by index. A step waits only for earlier steps of the list. A temporary region has no
   address until ds__work_run allocates its memory.
   Locks: ds__c.lock protects ds__spares, ds__sides_of and the tables behind ds__sides_of. No
   driver call runs under that lock. ds_shutdown works without the lock. ds__side_ref reads the
   handle of a stream without the lock after marking the stream as taken.
   Threads: several threads may run collectives at the same time. A ds__work lies on the stack of
   the calling thread and is used by that thread only. */
#ifndef DS__COMM_TYPES_H
#define DS__COMM_TYPES_H

#include "../api/comm.h"
#include "../tensor/types.h"

#define DS__NO_INDEX UINT32_MAX
#define DS__INLINE_LANES 16

/* A reduction: the operator and the data type of its elements. */
typedef struct ds__reduction {
    ds_reduce_op op;
    ds_dtype dtype;
} ds__reduction;

/* A part of consecutive elements. */
typedef struct ds__slice {
    int64_t begin;
    int64_t size;
} ds__slice;

/* DS__STEP_REDUCE_ALL: a reduction to as many outputs as inputs; the second half of its locations
   are the outputs, the first of which is `dst` */
enum { DS__STEP_COPY, DS__STEP_ROWS, DS__STEP_PACK, DS__STEP_REDUCE, DS__STEP_REDUCE_ALL };

typedef struct ds__clane {
    ds__stream *s;
    ds_stream stream;
    ds_device device;
    /* links to the steps that the next step of the lane waits for; DS__NO_INDEX: none */
    uint32_t pending;
    int pinned; /* 1: protected by a hazard pointer; 0: by a reference */
    int busy;   /* 1: the lane has steps */
    int side;   /* a stream of the library: its number in ds__sides, from 1; 0: another stream */
} ds__clane;

/* Layout of a tensor, for observers. */
typedef struct ds__layout {
    size_t item;
    int ndim;
    int64_t dims[]; /* sizes, then strides in elements */
} ds__layout;

typedef struct ds__region {
    char *at; /* NULL: not allocated yet */
    size_t bytes;
    const ds__layout *layout; /* NULL: no observer is set, or no elements */
    uint32_t lane; /* DS__NO_INDEX until ds__work_settle: host memory without a stream of its own */
    int direct;    /* 1: kernels can use the memory, because it is not pageable */
    int temporary;
    ds_device device;
} ds__region;

typedef struct ds__location {
    uint32_t region;
    ptrdiff_t offset;
} ds__location;

/* An operand of a copy: the location of its first element, and strides in elements. */
typedef struct ds__operand {
    ds__location at;
    const int64_t *strides;
} ds__operand;

/* Data for a later step to read: its location, and the step after which it is complete. */
typedef struct ds__source {
    ds__location at;
    uint32_t ready; /* DS__NO_INDEX: complete at the begin of the collective */
} ds__source;

/* Form of a strided copy; strides in elements. */
typedef struct ds__strided {
    int ndim;
    size_t item;
    int64_t shape[8];
    int64_t dst[8];
    int64_t src[8];
} ds__strided;

typedef struct ds__cstep {
    uint8_t kind;
    uint32_t lane;
    /* links to the steps of other lanes that this step waits for; DS__NO_INDEX: none */
    uint32_t after;
    int watched; /* 1: a step of another lane waits for this step */
    ds_event done;
    ds__location dst;
    ds__location src;
    size_t width;            /* copy: bytes; reduction: elements */
    size_t height;           /* copy: rows */
    size_t dst_pitch;        /* copy: bytes */
    size_t src_pitch;        /* copy: bytes */
    ds__reduction reduction; /* reduction */
    uint32_t strided;        /* strided copy: index of its form */
    uint32_t first;          /* reduction: index of the first one of its locations */
    uint32_t count;          /* reduction: number of locations */
} ds__cstep;

typedef struct ds__link {
    uint32_t step;
    uint32_t next;
} ds__link;

/* Progress of ds__work_steps. */
enum {
    DS__WORK_LISTED,  /* nothing was enqueued */
    DS__WORK_WAITING, /* waits between the lanes were enqueued */
    DS__WORK_STARTED, /* steps were enqueued, or may have been */
    DS__WORK_RAN      /* the calling thread has run the steps */
};

/* One call of a collective. */
typedef struct ds__work {
    const ds_comm_options *options;
    ds__clane *lane;
    ds__region *region;
    ds__cstep *step;
    ds__link *link;
    ds__location *location;
    ds__strided *strided;
    const void **in; /* addresses of the inputs of the reduction that is being launched */
    size_t lanes, lane_room, regions, region_room, steps, step_room, links, link_room, locations,
        location_room, strideds, strided_room;
    ds_result r;        /* the first failure */
    size_t most;        /* largest number of inputs of a reduction */
    size_t temporaries; /* number of temporary regions */
    int forked;         /* 1: lanes were forked into a capture, and have not joined again */
    int progress;       /* DS__WORK_* */
    /* memory beyond `first`; each chunk begins with the address of the previous chunk */
    void **chunks;
    char *at;    /* free memory of the current chunk */
    size_t left; /* bytes of the free memory */
    /* The arrays begin here, on the caller's stack, as does other memory: enough for a dozen
       tensors. */
    ds__clane lane_first[8];
    ds__region region_first[12];
    ds__cstep step_first[8];
    ds__location location_first[8];
    const void *in_first[8];
    _Alignas(16) char first[16 << 10];
} ds__work;

/* A tensor of a collective, or a part of one. */
typedef struct ds__participant {
    ds__location at; /* the first element; the region covers the whole tensor */
    ds__dims d;      /* last: a copy may leave out the dimensions that are not in use */
} ds__participant;

static const ds_comm_options ds__comm_usual;

#define DS__SPARE_EVENTS 16

typedef struct ds__spare {
    ds_event at[DS__SPARE_EVENTS];
    int count;
} ds__spare;

static ds__spare ds__spares[DS_BACKEND_COUNT][DS__MAX_DEVICES];

/* Streams of the library for the additional lanes of plans, per device. */
#define DS__SIDES 64

typedef struct ds__sides {
    ds_stream at[DS__SIDES];
    unsigned char taken[DS__SIDES];
    int count;
} ds__sides;

/* Protected by ds__c.lock, with the tables. */
static ds__sides *ds__sides_of[DS_BACKEND_COUNT][DS__MAX_DEVICES];

#endif
