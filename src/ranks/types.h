/* ranks/types.h - types and state of process groups.

   Defines a group (ds__group), an operation of a group on this rank (ds__rop), and the state of the
   process (ds__ranks).

   Policy:
   1. A collective is staged as work of streams and operations of the engine on contiguous memory
      (ranks/stage.h). Each operation of the engine is a ds__rop in the list of its group, in the
      order of the calls, and work of another library on a stream (DS__OP_REMOTE).
   2. When the stream gets there, the operation has arrived. Arrived operations start in the order
      of the list. Complete operations pass in the order of the list: the timeline of the group,
      for which the streams wait, then has their number.
   3. A group is driven (ds__group_drive) by a thread on which an operation arrives, a host thread
      that waits, or the progress thread. A thread that finds the group locked raises
      `news` and leaves: the holder looks again.
   4. The first failure of a group ends all its operations, and every later call.
   5. The members of a group's communicator are its ranks. An engine may add a communicator whose
      members are the devices (`each`); an operation is then one call for all devices of the rank.

   Invariants: an operation is in the list from the call until it has passed, and returns to the
   free list when it has also arrived. After a failure, operations that have not arrived stay listed
   until they arrive. A group lives until its handle is gone and no operation is listed.
   Locks: `calls` of a group orders the calls, and is held while an operation is added and enqueued.
   `lock` guards everything else of a group, and is held during functions of the engine. ds__ranks.
   lock guards the list of groups. Order: calls, ds__ranks.lock, lock. Drivers call begin_fn under a
   put lock of a stream, so `lock` is only tried there.
   Threads: any. */
#ifndef DS__RANKS_TYPES_H
#define DS__RANKS_TYPES_H

#include "../api/ranks.h"
#include "../base/drive.h"
#include "../comm/internal.h"
#include "../core/internal.h"
#include "../alloc/internal.h"
#include "../tensor/internal.h"
#include "engine.h"
#include "messages.h"

enum {
    DS__RANKS_TIMEOUT_S = 600,    /* time limit of an operation, if none is given */
    DS__RANKS_ABORT_MS = 1,       /* how often other ranks are asked for a failure */
    DS__RANKS_SPIN_NS = 4000,     /* time that a call tests a small operation that it has begun */
    DS__RANKS_SPIN_BYTES = 65536, /* size of a small operation */
    DS__RANKS_SIGNATURE = 64      /* bytes that ranks compare before an operation */
};

typedef struct ds__group ds__group;

/* States of the progress thread: it runs, sleeps for a limited time, or until it is woken. */
enum { DS__RANKS_AWAKE, DS__RANKS_NAPS, DS__RANKS_SLEEPS };

/* States of an operation. */
enum { DS__ROP_LISTED, DS__ROP_COMPARING, DS__ROP_STARTED };

/* Describes an operation for messages, the recorder and the comparison between ranks. */
typedef struct ds__rcall {
    const char *fn;
    ds_site site;
    int kind;      /* the collective, by its ds__net_kind */
    unsigned step; /* a collective may consist of several operations */
    ds_dtype dtype;
    ds_reduce_op op;
    uint64_t count; /* elements; 0 if they vary */
    int varies;     /* 1: ranks may differ in the number of elements */
    size_t root;    /* device of the group, or that of the other side */
    uint64_t stream;
    uint64_t timeout_ns;
} ds__rcall;

/* A transfer for the recorder. */
typedef struct ds__rtransfer {
    size_t device; /* of the group, on this rank */
    size_t peer;   /* of the group, on the other side */
    uint64_t count;
    uint64_t ticket;
} ds__rtransfer;

typedef struct ds__rop {
    ds__remote remote; /* first member */
    ds__group *group;
    struct ds__rop *next;
    uint64_t number;     /* on the group's timeline */
    _Atomic int arrived; /* 1: its stream has reached it; 2: it never will, since it has failed */
    int state;           /* DS__ROP_* */
    int spin;            /* 1: the thread on which it arrives tests it for a moment */
    int dropped;         /* 1: it has ended with the failure of its group */
    int ended;         /* 1: the engine could not enqueue it, and has ended the work of the group */
    uint64_t enqueued; /* time of the call */
    uint64_t arrival;  /* time of the arrival; 0: not seen yet */
    uint64_t ticket;   /* of the recorder */
    uint64_t *word;    /* of a captured operation: is set when it is complete */
    ds__rcall call;
    ds__net_op net;
    ds__net_request request;
    ds__net_member *members;  /* NULL, or an operation for each device of the rank, in `tables` */
    const ds_stream *streams; /* NULL, or streams that the operation's one waits for at its end */
    size_t stream_count;      /* of `streams`, which are there during the call */
    void *tables;             /* parts and transfers of `net` or of the members */
    ds__rtransfer *transfers; /* of an exchange, in `tables` */
    size_t table_bytes;       /* room of `tables` */
    size_t used_bytes;        /* of these */
    char signature[DS__RANKS_SIGNATURE];
    size_t *signatures; /* parts of the comparison, and the signatures of all ranks */
} ds__rop;

/* Temporary memory of operations up to a number of the timeline. */
typedef struct ds__rtemp {
    struct ds__rtemp *next;
    void *ptr;
    uint64_t number;
    int pinned;
} ds__rtemp;

struct ds__recorder;

struct ds__group {
    ds__slot slot;
    ds__group *next; /* in the list of the process */
    const ds__ranks_engine *engine;
    void *comm;
    int rank;
    int size;
    uint64_t id;                    /* the same on all ranks */
    uint32_t splits;                /* groups that were made of this one */
    char grow_id[DS_RANKS_ID_SIZE]; /* of the next growth; "": rank 0 has not created it */
    const ds__driver *driver;
    int gpu;        /* 1: the engine may call CUDA for the memory of this rank's devices */
    size_t devices; /* of the group */
    size_t *first;  /* size + 1: the first device of each rank */
    size_t *each;   /* devices + 1: 0, 1, 2 ... if the engine has a communicator for each device */
    int *world;     /* of each rank, its number in the flight recorder */
    ds_device *own; /* devices of this rank */
    size_t owns;
    unsigned flags;
    uint64_t timeout_ns;
    char *label;
    struct ds__recorder *recorder;
    ds_site made;
    ds__mutex calls;       /* see above */
    ds__rtemp *temps;      /* under `calls` */
    ds__rtemp *free_temps; /* likewise; without memory */

    ds__spinlock list_lock; /* of the next six; no other lock is taken under it */
    uint64_t listed;        /* number of the last operation */
    uint64_t operations;    /* enqueued on this rank */
    uint64_t collectives;   /* of these, those of all ranks */
    ds__rop *fresh;         /* operations that the driving thread has not listed yet */
    ds__rop *last_fresh;
    ds__rop *free_ops;

    ds__mutex lock;        /* not a spin lock: the engine may call CUDA */
    _Atomic uint32_t news; /* arrivals */
    _Atomic int users;     /* threads that drive it without a pin */
    _Atomic int finalized;
    void *timeline;
    int counted;             /* 1: in `groups` of base/drive.h */
    _Atomic int graphs;      /* captured calls of the engine that graphs have */
    uint64_t base;           /* number of the timeline at the creation */
    _Atomic uint64_t passed; /* the last number that has passed */
    ds__rop *head;           /* operations, in the order of the calls */
    ds__rop *tail;
    ds__rop *start;     /* the first one that has not started */
    uint64_t heard;     /* time at which other ranks were asked for a failure */
    _Atomic int failed; /* 1: `code` and `reason` are set */
    ds_result code;
    char reason[DS__RANKS_REASON];
};

/* A failure that the driver does not report. */
typedef struct ds__rfailure {
    struct ds__rfailure *next;
    ds_device device;
    uint64_t stream;
    ds_result code;
    char reason[DS__RANKS_REASON];
} ds__rfailure;

/* A word in pinned memory, for which a captured operation waits. */
typedef struct ds__rword {
    uint64_t value; /* first member */
    struct ds__rword *next;
} ds__rword;

static struct {
    ds__mutex lock;
    ds__group *groups;
    ds__spinlock failure_lock; /* of `failures` and `words`; no other lock is taken under it */
    ds__rfailure *failures;
    ds__spinlock capture_lock;     /* of `captures` */
    struct ds__rcapture *captures; /* that graphs have */
    ds__rword
        *words; /* without users; freed by ds_shutdown, since CUDA waits for all devices then */
    ds__table table;
    ds__os_thread thread; /* that drives groups */
    int thread_started;
    _Atomic int quit;
    _Atomic uint32_t word;   /* the thread sleeps on it */
    _Atomic uint32_t asleep; /* DS__RANKS_AWAKE ... */
    _Atomic int hosts;       /* host threads that drive groups while they wait */
    _Atomic int stepping;    /* 1: a thread drives all groups */
} ds__ranks = { .lock = DS__MUTEX_INIT };

#endif
