/* base/operation.h - operations on streams.

   Defines ds__op, one piece of stream work: its kind (DS__OP_*), flags, call site and arguments.
   The core hands an operation to submit of a driver. The CPU driver queues operations, graph
   nodes keep copies of them, and layers see them.

   Invariants: the kind selects the member of the union. Kinds from DS__OP_OWN on and the member
   `own` are a driver's. Flags share bits across kinds: DS__OP_STAGED is for
   copies, DS__OP_GIVEN for graphs. DS__CHANGED and DS__ONE_BY_ONE never leave the
   library.
   Locks: none.
   Threads: an operation belongs to the thread that built it, until it is submitted. */
#ifndef DS__BASE_OPERATION_H
#define DS__BASE_OPERATION_H

#include "../api/host_func.h"
#include "../api/value.h"
#include "object.h"

enum {
    DS__OP_JUMP = 0,
    DS__OP_KERNEL,
    DS__OP_COPY,
    DS__OP_FILL,
    DS__OP_HOST,
    DS__OP_CALLBACK,
    DS__OP_RECORD,
    DS__OP_WAIT,
    DS__OP_WAIT_STREAM,
    DS__OP_NOTHING,
    DS__OP_GRAPH,
    DS__OP_UPLOAD,
    DS__OP_EXTERNAL_RECORD,
    DS__OP_EXTERNAL_WAIT,
    DS__OP_COPY_BATCH, /* of the CUDA driver only, and never a node */
    DS__OP_VALUES,     /* writes of words, and waits for words */
    DS__OP_CONDITION,  /* of nodes only: graphs under a condition */
    DS__OP_CLOSURE,    /* of the CPU driver's streams, and never a node */
    DS__OP_REMOTE,     /* work that another library does, and never a node */
    DS__OP_OWN         /* from here on: kinds of a driver, which never leave it */
};

enum {
    DS__OP_STAGED = 1, /* copy: the devices cannot reach each other */
    /* copy, fill: submit returns when it is done, because it touches pageable memory */
    DS__OP_BLOCKS = 2,
    DS__OP_GIVEN = 1, /* graph: the body becomes the node's */
    /* must not be captured: if the stream captures, submit does nothing and returns DS__CHANGED */
    DS__OP_OUTSIDE = 4,
    DS__OP_INSIDE = 8, /* kernel: the same unless the stream's capture is u.kernel.capture */
    DS__OP_PROMPT = 1, /* remote: if the stream is idle, the caller may begin it */
    /* kernel: all blocks run at once, each with as many threads as `places` says */
    DS__OP_TOGETHER = 16,
    /* copy, fill: eight bits of `places` from here on say where the destination is */
    DS__OP_DST = 0,
    DS__OP_SRC = 8 /* copy: and where the source is */
};

/* The place of an operand. On a stream of a GPU, cudart finds the place of memory that devstream
   did not allocate. */
enum {
    DS__AT_UNKNOWN = 0,
    DS__AT_PAGEABLE,
    DS__AT_STABLE, /* pageable, but it stays as long as a graph may need it */
    DS__AT_PINNED,
    DS__AT_OTHER, /* device memory of the CPU driver, for the CUDA driver */
    DS__AT_DEVICE /* and the index */
};

#define DS__MAX_DEVICES (256 - DS__AT_DEVICE)

/* within the library only: the stream began or ended a capture since it was asked */
#define DS__CHANGED ((ds_result)(DS_NOT_READY + 1))

/* within the library only: the driver has enqueued none of the copies of a batch, and takes them
   one by one */
#define DS__ONE_BY_ONE ((ds_result)(DS_NOT_READY + 2))

enum {
    DS__REMOTE_ARRIVED,
    DS__REMOTE_FAILED, /* the stream has failed, and the work must not begin */
    DS__REMOTE_AT_ONCE /* the caller of submit begins the work */
};

/* Work that another library does in the order of a stream. It must stay valid until begin_fn has
   returned. */
typedef struct ds__remote {
    /* Runs once, when the stream gets there (DS__REMOTE_*): begins the work, and does not wait for
       it. Returns 1 if the work is over already. Takes no lock that a thread holds while it waits,
       and calls no driver but timeline_pass. */
    int (*begin_fn)(struct ds__remote *remote, int how);
    /* NULL, or runs in submit in place of begin_fn: enqueues the work on the native stream, whose
       device is current. The stream passes the timeline's number `upto` behind the work */
    ds_result (*enqueue_fn)(struct ds__remote *remote, void *native);
    _Atomic int taken; /* 1: the driver has called begin_fn or will call it, even if submit fails */
    _Atomic int ran;   /* of the CUDA driver: 1: the stream has reached it */
} ds__remote;

/* A piece of stream work. The core passes it to a driver through the layers, and the CPU driver
   queues it. */
typedef struct ds__op {
    uint8_t kind;
    uint8_t flags;
    uint16_t places; /* copy, fill: where the operands are; kernel: see DS__OP_TOGETHER */
    uint32_t line;
    const char *file; /* call site, or NULL */

    union {
        struct {
            ds__kernel *kernel;
            size_t items;
            size_t args_size;
            const void *args;
            const ds_grid *grid;
            uint64_t capture;
        } kernel;

        /* pitches and width: bytes */
        struct {
            void *dst;
            const void *src;
            size_t dst_pitch;
            size_t src_pitch;
            size_t width;
            size_t height;
        } copy;

        /* of memory of the stream's device, or of this and pinned memory; no size is 0 */
        struct {
            void *const *dst;
            const void *const *src;
            const size_t *sizes;
            size_t count;
        } batch;

        struct {
            void *dst;
            size_t pitch;
            size_t value_size;
            size_t width; /* elements */
            size_t height;
            uint32_t value;
        } fill;

        struct {
            ds_host_fn fn;
            ds_callback_fn callback;
            void *user;
            ds_host_fn dtor_fn;
            uint64_t stream;
        } host;

        /* payload: `size` bytes, or with size 0 the argument itself. The CPU driver keeps the bytes
           behind its copy of the operation */
        struct {
            ds_closure_fn fn;
            ds_host_fn dtor_fn;
            void *payload;
            size_t size;
        } closure;

        /* record, wait: the driver's event, and the core's */
        struct {
            void *event;
            ds__event *object;
        } event;

        /* launch, upload: the driver's executable, and what is in it. The others are for the driver
           that runs it; else 0 */
        struct {
            void *exec;
            ds__body *body;
            uint64_t ticket;
            size_t at;
            void *patch;
        } graph;

        /* wait for another stream; the driver fills upto */
        struct {
            void *stream;
            uint64_t upto;
        } wait;

        /* at least one, checked. next: for the driver that runs the operation; else 0 */
        struct {
            const ds_value_op *list;
            size_t count;
            size_t next;
        } values;

        /* kind: ds_condition_kind. bodies: a graph with a child node for each body; the node owns
           it */
        struct {
            const uint32_t *word;
            ds__body *bodies;
            int kind;
        } condition;

        /* begin: NULL for the wait alone. The stream waits until the timeline has passed `upto`; no
           timeline: it does not wait. name, bytes: of the record of activity; the name is a
           literal */
        struct {
            ds__remote *begin;
            void *timeline;
            uint64_t upto;
            const char *name;
            size_t bytes;
        } remote;

        /* what a driver keeps of the operation that follows; `file` is the call, `line` the thread
           (base/activity.h) */
        struct {
            uint64_t correlation_id;
            uint64_t external_id;
            uint64_t enqueue_time;
            uint64_t cause;
        } note;

        /* what a driver keeps in operations of its own, or in its copy of a record */
        struct {
            void *ptr;
            size_t size;
            int64_t number;
        } own;
    } u;
} ds__op;

/* Returns 1 if the operation is not for the stream's capture; capture 0: the stream does not
   capture. */
static inline int ds__op_changed(const ds__op *op, uint64_t capture) {
    return (op->flags & DS__OP_OUTSIDE && capture) ||
           (op->flags & DS__OP_INSIDE && capture != op->u.kernel.capture);
}

/* Returns the grid with ones in place of zeros. */
static inline ds_grid ds__grid_whole(const ds_grid *grid) {
    ds_grid g = *grid;
    for (int i = 0; i < 3; i++) {
        if (i > 0 && g.grid[i] == 0)
            g.grid[i] = 1;
        if (g.block[i] == 0)
            g.block[i] = 1;
        if (i > 0 && g.cluster[0] && g.cluster[i] == 0)
            g.cluster[i] = 1;
    }
    return g;
}

/* Returns the threads of a block of a whole grid. */
static inline unsigned ds__grid_block_threads(const ds_grid *g) {
    return g->block[0] * g->block[1] * g->block[2];
}

/* Returns 1 if two grids have the same clusters and flags. NULL: no grid. */
static inline int ds__grid_same_attributes(const ds_grid *a, const ds_grid *b) {
    ds_grid none = { .flags = 0 };
    ds_grid x = a ? ds__grid_whole(a) : none;
    ds_grid y = b ? ds__grid_whole(b) : none;
    return x.flags == y.flags && !memcmp(x.cluster, y.cluster, sizeof x.cluster);
}

/* Sets the grid of a kernel's launch, which was checked; NULL: none. */
static inline void ds__op_set_grid(ds__op *op, const ds_grid *grid) {
    op->u.kernel.grid = grid;
    if (DS__LIKELY(!grid || !(grid->flags & DS_GRID_COOPERATIVE)))
        return;
    ds_grid g = ds__grid_whole(grid);
    op->flags |= DS__OP_TOGETHER;
    op->places = (uint16_t)ds__grid_block_threads(&g);
}

#endif
