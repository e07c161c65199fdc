/* base/observe.h - observers: what layers hear beside driver calls.

   A layer (core/layers.h) consists of a driver table in front of the driver's and of an observer,
   for what never reaches a driver: blocks of the allocator, waits and queries of the host,
   operations of the library with their operands, graph launches, ranges, hand-over between threads.
   While a recording of activity runs (api/activity.h), an observer also receives the batches of
   records, which have the times at which operations began and ended.
   ds__observer_notify tells all observers of one such thing (ds__seen).

   Policy:
   1. Observers are set at the start of devstream and removed by ds_shutdown. Without one,
      ds__observer_is_set is 0, and no call pays more than a test of it. Allocations and frees do
      not even test it: while there are observers, the allocator watches every device
      (ds__mem_dev.watch).
   2. An observer is told of a block under the lock of its arena, so the order of what it hears is
      the order in which the block changes hands.
   3. With an observer, the table of the layer has inline_bytes 0 and declines run_together, so
      that every operation is a call of `submit`.

   Invariants: the order of the layers is fixed, and so is that of their observers.
   Locks: an observer may run under locks of the allocator, of generators and of graphs. It takes
   only locks of its own, and calls no public function.
   Threads: the thread on which it happens. ds__observers changes in ds__start_all and ds_shutdown
   only, while no other thread is inside of devstream. */
#ifndef DS__BASE_OBSERVE_H
#define DS__BASE_OBSERVE_H

#include "../api/activity.h"
#include "../api/event.h"
#include "../api/range.h"
#include "../os/os.h"
#include "thread_block.h"

enum {
    DS__SEEN_ALLOC,     /* a block is given out: ptr, bytes, room, stream, device, label */
    DS__SEEN_FREE,      /* the program gives it back, the same */
    DS__SEEN_FREE_DONE, /* it may be given out again, the same */
    DS__SEEN_USE,       /* another stream uses it: ptr, stream; bytes 1: only until now */
    /* the host has waited, or asked: stream or event, or neither: device, that of the host for all
       devices; result */
    DS__SEEN_WAIT,
    DS__SEEN_UNRECORDED, /* a stream waits for an event without a record: stream, event */
    DS__SEEN_BEGIN,      /* a collective or a fill begins: operands */
    DS__SEEN_END,        /* it is enqueued, or done: operands, result */
    DS__SEEN_LAUNCH,     /* a graph was launched: exec, stream, result */
    DS__SEEN_RANGE,      /* a mark, range or label: range */
    DS__SEEN_RELEASE,    /* what this thread did so far is before the acquire of `ptr` */
    DS__SEEN_ACQUIRE,
    DS__SEEN_ACTIVITY, /* records of complete operations: activity; on a thread of the library */
    DS__SEEN_OOM,      /* there is no memory for a block: bytes, stream, device, result */
    /* the check layer has reported a race: label is the text, hazard, operation, before, and the
       stream of the later operation */
    DS__SEEN_RACE,
    /* a host function was captured that begins an operation between ranks: ptr is its argument,
       operands are the memory of the operation, and the wait for it waits for `word` */
    DS__SEEN_CAPTURE,
    DS__SEEN_CAPTURE_END, /* no graph has that host function any more: ptr, word */
    DS__SEEN_KINDS
};

/* The memory of an operand: for each position of the dimensions, a run of `width` bytes. */
typedef struct ds__seen_operand {
    const void *ptr; /* the lowest address */
    size_t bytes;    /* of all elements */
    size_t width;
    int ndim;
    const int64_t *shape;   /* of the dimensions, the outermost first */
    const int64_t *strides; /* in bytes, greater than 0 */
    ds_device device;
    ds_stream stream; /* on which it is used */
    int reads;
    int writes;
} ds__seen_operand;

typedef struct ds__seen {
    int kind;       /* DS__SEEN_*; which members follow from it is said there */
    const char *fn; /* the public function that runs, and its site; of the library's threads NULL */
    ds_site site;
    const void *ptr;
    const void *word;
    size_t bytes;
    size_t room; /* bytes of the block with its padding */
    ds_device device;
    ds_stream stream;
    ds_event event;
    ds_graph_exec exec;
    const char *label;
    ds_result result;
    const ds__seen_operand *operand;
    size_t operands;
    const ds_range_event *range;
    const char *hazard;
    uint64_t operation;                /* id in the recording of activity; 0: it has none */
    uint64_t before;                   /* the same of the earlier operation */
    const ds_activity_batch *activity; /* valid until the observer returns */
} ds__seen;

typedef void (*ds__observer_fn)(const ds__seen *seen);

#define DS__OBSERVERS 4

static struct {
    int count;
    ds__observer_fn fn[DS__OBSERVERS];
} ds__observers;

/* The number of listeners to ranges: observers and the hook of the program. Ranges test only this
   number. */
static _Atomic int ds__range_listeners;

static inline int ds__observer_is_set(void) {
    return DS__UNLIKELY(ds__observers.count != 0) != 0;
}

__attribute__((cold, noinline)) static void ds__observer_notify(const ds__seen *what) {
    ds__seen seen = *what;
    seen.fn = ds__tls.fn;
    seen.site = ds__tls.site;
    for (int i = 0; i < ds__observers.count; i++)
        ds__observers.fn[i](&seen);
}

/* Reports a wait of the host to the observers; returns its result. */
static inline ds_result ds__observer_notify_wait(ds_result r, ds_stream stream, ds_event event,
                                                 ds_device device) {
    if (ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = DS__SEEN_WAIT,
                                         .stream = stream,
                                         .event = event,
                                         .device = device,
                                         .result = r });
    return r;
}

/* Reports a hand-over between threads to the observers; kind: DS__SEEN_RELEASE or DS__SEEN_ACQUIRE;
   stream: the handle of the stream that runs a host function, 0: not known. */
static inline void ds__handed_over(int kind, const void *token, uint64_t stream) {
    if (ds__observer_is_set())
        ds__observer_notify(&(ds__seen){ .kind = kind, .ptr = token, .stream = { stream } });
}

#endif
