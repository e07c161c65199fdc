/* random_program.h - random programs, as lists of steps that can be run, shortened and printed.

   A program uses some of the streams and blocks of a machine (random_machine.h). It is drawn from
   its seed alone, before it runs. Programs of the first kind use memory that was allocated before.
   Some of their kernels may have no extents, and two threads may be ordered by declared hand-over
   only. Programs of the second kind (lifetimes) allocate and free blocks of the caching allocators.
   Operands are in bytes; the second kind has units of 32 bytes, so that a block is a whole page of
   the oracle. */
#ifndef RANDOM_PROGRAM_H
#define RANDOM_PROGRAM_H

#include <stdint.h>
#include <string.h>

enum {
    STREAMS_PER_DEVICE = 7, /* see stream_role */
    STREAMS = 2 * STREAMS_PER_DEVICE,
    EVENTS = 6, /* event e is of device e % 2 */
    BLOCKS = 6, /* the last two are pinned */
    FORMS = 12, /* kernels */
    GRAPHS = 4,
    NODES_OF_GRAPH = 3,
    PARTS = 3, /* copies of a batch */
    MAX_STEPS = 64,
    HOST = -1, /* in place of a stream */
    FIRST_PINNED = 4
};

/* Streams of a device, in order. */
typedef enum stream_role { ROLE_LEGACY, ROLE_PER_THREAD, ROLE_BLOCKING, ROLE_FREE = 4 } stream_role;

/* X(kind, what is printed) */
#define STEP_KINDS(X)                               \
    X(STEP_COPY, "ds_copy")                         \
    X(STEP_COPY_2D, "ds_copy_2d")                   \
    X(STEP_COPY_BATCH, "ds_copy_batch")             \
    X(STEP_COPY_SYNC, "ds_copy_sync")               \
    X(STEP_FILL, "ds_fill")                         \
    X(STEP_FILL_2D, "ds_fill_2d")                   \
    X(STEP_FILL_SYNC, "ds_fill_sync")               \
    X(STEP_KERNEL, "ds_kernel_launch")              \
    X(STEP_GRID, "ds_kernel_launch_grid")           \
    X(STEP_GRAPH, "ds_graph_launch")                \
    X(STEP_HOST_FUNC, "ds_stream_launch_host_func") \
    X(STEP_HOST_READ, "ds_check_host_read")         \
    X(STEP_HOST_WRITE, "ds_check_host_write")       \
    X(STEP_RECORD, "ds_event_record")               \
    X(STEP_WAIT, "ds_stream_wait_event")            \
    X(STEP_WAIT_STREAM, "ds_stream_wait_stream")    \
    X(STEP_SYNC, "ds_stream_synchronize")           \
    X(STEP_SYNC_EVENT, "ds_event_synchronize")      \
    X(STEP_SYNC_DEVICE, "ds_device_synchronize")    \
    X(STEP_NEW_EVENT, "ds_event_create")            \
    X(STEP_NEW_STREAM, "ds_stream_create")          \
    X(STEP_DECLARE, "ds_check_declare_order")       \
    X(STEP_RELEASE, "ds_check_release")             \
    X(STEP_ACQUIRE, "ds_check_acquire")             \
    X(STEP_ALLOC, "ds_mem_alloc")                   \
    X(STEP_FREE, "ds_mem_free")                     \
    X(STEP_USE, "ds_mem_record_use")                \
    X(STEP_USE_LATER, "ds_mem_record_stream")

typedef enum step_kind {

#define STEP_KIND(kind, text) kind,
    STEP_KINDS(STEP_KIND)
#undef STEP_KIND
} step_kind;

/* Rows of a block. A kernel's pointer is an operand without rows. */
typedef struct operand {
    int block;
    size_t offset;
    size_t width;
    size_t pitch;
    size_t rows;
} operand;

typedef struct step {
    step_kind kind;
    int thread;       /* 0 or 1: the thread that calls */
    unsigned variant; /* which one of functions that mean the same; a bit: reads or writes */
    int alias;        /* 1: by the second handle of the stream, if it has one */
    int stream;       /* or the device of STEP_SYNC_DEVICE */
    int other;        /* stream that is waited for */
    int event;        /* or token */
    int stale;        /* 1: runs also if its memory was freed */
    size_t parts;
    operand to[PARTS];
    operand from[PARTS];
    size_t value_size;
    int form; /* of the kernel */
    size_t items;
    unsigned count; /* the parameter behind the pointers */
    size_t given;   /* extents for ds_check_set_extents */
    ds_extent extent[2];
    int graph;
} step;

/* A kernel with two pointers and a count. */
typedef struct form {
    ds_param_kind kind[2];
    ds_extent extent[2];
    int wide;  /* 1: the count has 8 bytes, else 4 */
    int by_fn; /* 1: extents_fn states the extents */
} form;

/* What the programs of a machine have in common. */
typedef struct setting {
    int gpu;
    int lifetimes;
    int inexact;  /* 1: some kernels have no extents */
    int handover; /* 1: threads are ordered by ds_check_release only */
} setting;

typedef struct program {
    uint64_t seed;
    uint64_t rng;
    setting set;
    int threads; /* 1: two threads make the calls */
    size_t unit;
    const form *forms;
    int stream[STREAMS];
    size_t streams;
    int block[BLOCKS];
    size_t blocks;
    int plain;    /* 1: kernels have their own extents */
    size_t waits; /* percentage of steps that order */
    step step[MAX_STEPS];
    size_t steps;
} program;

static const char *const step_names[] = {
#define STEP_NAME(kind, text) text,
    STEP_KINDS(STEP_NAME)
#undef STEP_NAME
};

static uint64_t draw(uint64_t *rng) { /* splitmix64 */
    uint64_t z = *rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(uint64_t *rng, size_t n) {
    return (size_t)(draw(rng) % n);
}

static int device_of_stream(int stream) {
    return stream / STREAMS_PER_DEVICE;
}

static stream_role role_of_stream(int stream) {
    int role = stream % STREAMS_PER_DEVICE;
    if (role >= ROLE_FREE)
        return ROLE_FREE;
    return role >= ROLE_BLOCKING ? ROLE_BLOCKING : (stream_role)role;
}

/* Bytes of a block of the caching allocator. */
static size_t block_size(int block) {
    return block == 2 ? 1024 : 512;
}

/* Bytes of a block that a program uses. */
static size_t block_bytes(const program *p, int block) {
    return p->set.lifetimes ? block_size(block) : 128;
}

/* ---- operands -------------------------------------------------------------------------------- */

/* Draws a place for rows. All sizes are multiples of `grain`. */
static void operand_place(program *p, operand *at, size_t grain) {
    at->block = p->block[below(&p->rng, p->blocks)];
    size_t room = block_bytes(p, at->block) / grain;
    size_t width = at->width / grain;
    size_t most = at->rows > 1 ? (room - width) / (at->rows - 1) : width;
    size_t pitch = width + below(&p->rng, most - width + 1);
    if (pitch > width + 8 && below(&p->rng, 2))
        pitch = width + below(&p->rng, 8);
    size_t span = at->rows > 1 ? pitch * (at->rows - 1) + width : width;
    at->pitch = pitch * grain;
    at->offset = below(&p->rng, room - span + 1) * grain;
}

/* Draws rows that fit into any block. */
static void operand_draw(program *p, operand *at, size_t rows, size_t grain) {
    size_t units = (p->set.lifetimes ? 512 : 128) / grain;
    at->rows = rows < units / 2 ? rows : units / 2;
    size_t room = units / at->rows;
    size_t most = below(&p->rng, 4) ? room / 4 : room;
    at->width = (1 + below(&p->rng, most ? most : 1)) * grain;
    operand_place(p, at, grain);
}

static int operands_meet(const operand *a, const operand *b) {
    if (a->block != b->block)
        return 0;
    for (size_t i = 0; i < a->rows; i++)
        for (size_t k = 0; k < b->rows; k++) {
            size_t x = a->offset + i * a->pitch;
            size_t y = b->offset + k * b->pitch;
            if (x < y + b->width && y < x + a->width)
                return 1;
        }
    return 0;
}

/* Returns 1 if the last part of a copy reads nothing that it writes, nor meets an earlier part. */
static int parts_fit(const step *s) {
    const operand *to = &s->to[s->parts - 1];
    const operand *from = &s->from[s->parts - 1];
    if (operands_meet(to, from))
        return 0;
    for (size_t i = 0; i + 1 < s->parts; i++)
        if (operands_meet(to, &s->to[i]) || operands_meet(to, &s->from[i]) ||
            operands_meet(from, &s->to[i]))
            return 0;
    return 1;
}

/* Draws a number of rows above 1: a few, and now and then many. */
static size_t rows_draw(program *p) {
    return 2 + below(&p->rng, below(&p->rng, 8) ? 3 : 40);
}

/* Draws the copies of a step. If no place is found, the step has fewer. Returns 0: it has none. */
static int copy_draw(program *p, step *s, size_t parts, size_t rows) {
    for (size_t i = 0; i < parts; i++) {
        s->parts++;
        int fits = 0;
        for (int attempt = 0; attempt < 20 && !fits; attempt++) {
            operand_draw(p, &s->to[i], rows, p->unit);
            s->from[i] = s->to[i];
            operand_place(p, &s->from[i], p->unit);
            fits = parts_fit(s);
        }
        if (!fits) {
            s->parts--;
            return s->parts > 0;
        }
    }
    return 1;
}

static void fill_draw(program *p, step *s, size_t rows) {
    memset(s->from, 0, sizeof s->from);
    s->value_size = p->unit > 4 ? 4 : (size_t)1 << below(&p->rng, 3);
    s->parts = 1;
    operand_draw(p, &s->to[0], rows, p->unit > 4 ? p->unit : s->value_size);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static ds_extent extent_draw(uint64_t *rng, size_t unit, int inexact) {
    size_t big = unit == 1 ? 2 : 1;
    if (inexact && below(rng, 4) == 0)
        return (ds_extent){ .kind = DS_EXTENT_NONE };
    ds_extent e = { .atomic = below(rng, 4) == 0, .offset = below(rng, 3 * big) * unit };
    switch (below(rng, 3)) {
    case 0:
        e.kind = DS_EXTENT_BYTES;
        e.bytes = (1 + below(rng, 8 * big)) * unit;
        break;
    case 1:
        e.kind = DS_EXTENT_COUNT;
        e.bytes = (1 + below(rng, 2 * big)) * unit;
        e.count_param = 2;
        break;
    default:
        e.kind = DS_EXTENT_ITEMS;
        e.bytes = (1 + below(rng, 2 * big)) * unit;
        if (below(rng, 3))
            e.stride = e.bytes + below(rng, 1 + 3 * big) * unit;
        if (e.stride > 3 * unit && unit > 1)
            e.stride = 3 * unit;
        break;
    }
    return e;
}

/* Form 0 states its extents by a function: `count` units, and two units (random_machine.h). */
static void forms_draw(form *forms, uint64_t *rng, size_t unit, int inexact) {
    for (int i = 0; i < FORMS; i++) {
        form *f = &forms[i];
        for (int k = 0; k < 2; k++) {
            f->kind[k] = (ds_param_kind)(DS_PARAM_READ + below(rng, 3));
            f->extent[k] = extent_draw(rng, unit, inexact);
        }
        f->wide = i % 2 == 0;
        f->by_fn = i == 0;
    }
    forms[0].extent[0] = (ds_extent){ .kind = DS_EXTENT_COUNT, .bytes = unit };
    forms[0].extent[1] = (ds_extent){ .kind = DS_EXTENT_BYTES, .bytes = 2 * unit };
}

/* The extent that counts for a pointer of a launch. */
static const ds_extent *extent_of(const form *forms, const step *s, size_t pointer) {
    return pointer < s->given ? &s->extent[pointer] : &forms[s->form].extent[pointer];
}

/* Returns the rows that a launch accesses through a pointer, with offsets from it. */
static operand extent_rows(const ds_extent *e, size_t items, size_t count) {
    operand at = { .offset = e->offset, .width = e->bytes, .rows = e->kind != DS_EXTENT_NONE };
    if (e->kind == DS_EXTENT_COUNT)
        at.width = e->bytes * count;
    if (e->kind == DS_EXTENT_ITEMS) {
        at.rows = items;
        at.pitch = e->stride ? e->stride : e->bytes;
    }
    return at;
}

/* The number of items for which both pointers stay inside of any block. */
static size_t items_most(const program *p, const step *s) {
    size_t room = p->set.lifetimes ? 512 : 128;
    size_t most = 40;
    for (size_t i = 0; i < 2; i++) {
        const ds_extent *e = extent_of(p->forms, s, i);
        size_t stride = e->stride ? e->stride : e->bytes;
        if (e->kind == DS_EXTENT_ITEMS && (room - e->offset - e->bytes) / stride + 1 < most)
            most = (room - e->offset - e->bytes) / stride + 1;
    }
    return most;
}

static void kernel_draw(program *p, step *s) {
    s->form = (int)below(&p->rng, FORMS);
    s->count = (unsigned)below(&p->rng, p->set.lifetimes ? 5 : 7);
    s->given = p->plain || below(&p->rng, 3) ? 0 : 1 + below(&p->rng, 2);
    for (size_t i = 0; i < s->given; i++)
        s->extent[i] = extent_draw(&p->rng, p->unit, p->set.inexact);
    size_t most = items_most(p, s);
    s->items = 1 + below(&p->rng, below(&p->rng, 4) && most > 4 ? 4 : most);
    s->parts = 2;
    for (size_t i = 0; i < 2; i++) {
        operand at = extent_rows(extent_of(p->forms, s, i), s->items, s->count);
        size_t reach = at.rows ? at.offset + at.pitch * (at.rows - 1) + at.width : 1;
        operand *to = &s->to[i];
        to->block = p->block[below(&p->rng, p->blocks)];
        size_t room = (block_bytes(p, to->block) - reach) / p->unit;
        to->offset = below(&p->rng, room + 1) * p->unit;
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int stream_draw(program *p) {
    return p->stream[below(&p->rng, p->streams)];
}

/* Draws a stream of the program that is ordered with no other one, or HOST. */
static int free_stream_draw(program *p) {
    for (int attempt = 0; attempt < 8; attempt++) {
        int stream = stream_draw(p);
        if (role_of_stream(stream) == ROLE_FREE)
            return stream;
    }
    return HOST;
}

static int event_draw(program *p, int device) {
    return 2 * (int)below(&p->rng, EVENTS / 2) + device;
}

/* Draws an access of the host or of a host function, or a fill if the program has no pinned
   memory. */
static void host_access_draw(program *p, step *s) {
    static const step_kind kinds[] = { STEP_HOST_READ, STEP_HOST_WRITE, STEP_HOST_FUNC };
    for (size_t i = 0; i < p->blocks; i++) {
        if (p->block[i] < FIRST_PINNED)
            continue;
        do
            operand_draw(p, &s->to[0], 1, p->unit);
        while (s->to[0].block < FIRST_PINNED);
        s->kind = kinds[below(&p->rng, 3)];
        s->parts = 1;
        return;
    }
    s->kind = STEP_FILL;
    fill_draw(p, s, 1);
}

static void copy_step_draw(program *p, step *s, size_t what) {
    int drawn;
    if (what == 0) {
        s->kind = STEP_COPY_BATCH;
        drawn = copy_draw(p, s, 1 + below(&p->rng, PARTS), 1);
    } else if (what == 1) {
        s->kind = STEP_COPY_2D;
        drawn = copy_draw(p, s, 1, rows_draw(p));
    } else {
        s->kind = STEP_COPY;
        drawn = copy_draw(p, s, 1, 1);
    }
    if (!drawn) {
        s->kind = STEP_FILL;
        fill_draw(p, s, 1);
    }
}

/* An operation that returns when it is done, on the legacy stream of a device of its memory. */
static void sync_step_draw(program *p, step *s) {
    s->kind = STEP_FILL_SYNC;
    s->value_size = p->unit > 4 ? 4 : 1;
    s->parts = 1;
    operand_draw(p, &s->to[0], 1, p->unit);
    if (!p->set.lifetimes && s->to[0].block >= FIRST_PINNED && below(&p->rng, 2)) {
        s->kind = STEP_COPY_SYNC;
        s->from[0] = s->to[0];
        s->from[0].block = (int)below(&p->rng, FIRST_PINNED);
    }
}

static void access_draw(program *p, step *s) {
    size_t what = below(&p->rng, 24);
    s->stream = stream_draw(p);
    s->variant = (unsigned)below(&p->rng, 6);
    s->alias = below(&p->rng, 6) == 0;
    s->stale = below(&p->rng, 4) == 0;
    if (what < 8) {
        copy_step_draw(p, s, what % 4);
    } else if (what < 12) {
        s->kind = what < 10 ? STEP_FILL : STEP_FILL_2D;
        fill_draw(p, s, what < 10 ? 1 : rows_draw(p));
    } else if (what < 18) {
        s->kind = what == 12 ? STEP_GRID : STEP_KERNEL;
        kernel_draw(p, s);
    } else if (what < 20 && !p->set.lifetimes) {
        s->kind = STEP_GRAPH;
        s->graph = (int)below(&p->rng, GRAPHS);
    } else if (what == 20 && below(&p->rng, 2)) {
        sync_step_draw(p, s);
    } else {
        host_access_draw(p, s);
    }
}

/* A declared order, to which no order with a legacy stream is added. */
static void declare_draw(program *p, step *s) {
    s->kind = STEP_DECLARE;
    s->stream = free_stream_draw(p);
    if (role_of_stream(s->other) == ROLE_LEGACY) {
        s->kind = STEP_SYNC;
        s->stream = s->other;
    }
}

/* A stream is destroyed with its work, and another one takes its place. A stream that owns blocks
   stays. */
static void new_stream_draw(program *p, step *s) {
    s->kind = STEP_NEW_STREAM;
    s->stream = free_stream_draw(p);
    if (s->stream == HOST || p->set.lifetimes) {
        s->kind = STEP_SYNC;
        s->stream = s->other;
    }
}

static void order_draw(program *p, step *s) {
    size_t what = below(&p->rng, 28);
    s->variant = (unsigned)below(&p->rng, 6);
    s->alias = below(&p->rng, 6) == 0;
    s->stream = stream_draw(p);
    s->other = stream_draw(p);
    s->event = event_draw(p, (int)below(&p->rng, 2));
    if (p->threads && below(&p->rng, 5) == 0) {
        s->kind = below(&p->rng, 2) ? STEP_RELEASE : STEP_ACQUIRE;
    } else if (what < 8) {
        s->kind = STEP_RECORD;
        s->event = event_draw(p, device_of_stream(s->stream));
    } else if (what < 15) {
        s->kind = STEP_WAIT;
    } else if (what < 20) {
        s->kind = STEP_WAIT_STREAM;
    } else if (what < 22) {
        s->kind = STEP_SYNC;
    } else if (what < 24) {
        s->kind = STEP_SYNC_EVENT;
    } else if (what < 25) {
        s->kind = below(&p->rng, 3) ? STEP_NEW_EVENT : STEP_SYNC_DEVICE;
        s->stream = (int)below(&p->rng, 2);
    } else if (what < 26) {
        new_stream_draw(p, s);
    } else {
        declare_draw(p, s);
    }
}

static void lifetime_draw(program *p, step *s) {
    size_t what = below(&p->rng, 10);
    s->stream = stream_draw(p);
    s->to[0].block = p->block[below(&p->rng, p->blocks)];
    s->kind = what < 4 ? STEP_ALLOC : STEP_FREE;
    if (what >= 7)
        s->kind = what < 9 ? STEP_USE : STEP_USE_LATER;
}

/* A wait for the event that was recorded last. */
static void wait_draw(program *p, step *s, int event) {
    s->kind = STEP_WAIT;
    s->stream = stream_draw(p);
    s->event = event;
}

/* Chooses the streams of a program: a few, most of them on device 0, or many. */
static void streams_draw(program *p) {
    size_t want = 2 + below(&p->rng, below(&p->rng, 10) ? 4 : STREAMS - 1);
    size_t devices = 1 + (below(&p->rng, 3) == 0);
    for (int attempt = 0; attempt < 60 && p->streams < want; attempt++) {
        int stream = (int)below(&p->rng, STREAMS_PER_DEVICE * devices);
        int known = p->threads && role_of_stream(stream) == ROLE_PER_THREAD;
        for (size_t i = 0; i < p->streams; i++)
            known |= p->stream[i] == stream;
        if (!known)
            p->stream[p->streams++] = stream;
    }
}

static void blocks_draw(program *p) {
    size_t want = 1 + below(&p->rng, 3);
    while (p->blocks < want) {
        int block = (int)below(&p->rng, BLOCKS);
        int known = 0;
        for (size_t i = 0; i < p->blocks; i++)
            known |= p->block[i] == block;
        if (!known)
            p->block[p->blocks++] = block;
    }
}

static void program_draw(program *p, uint64_t seed, setting set, const form *forms) {
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->rng = seed * 0x2545f4914f6cdd1du + 1;
    p->set = set;
    p->unit = set.lifetimes ? 32 : 1;
    p->forms = forms;
    p->threads = set.handover || below(&p->rng, 8) == 0;
    p->waits = 25 + below(&p->rng, 65);
    streams_draw(p);
    blocks_draw(p);
    p->steps = 6 + below(&p->rng, MAX_STEPS - 6 + 1);
    if (below(&p->rng, 2) && p->steps > 24)
        p->steps = 24;
    for (size_t i = 0; i < p->steps; i++) {
        step *s = &p->step[i];
        if (set.lifetimes && i < p->blocks) {
            s->kind = STEP_ALLOC;
            s->stream = stream_draw(p);
            s->to[0].block = p->block[i];
        } else if (set.lifetimes && below(&p->rng, 5) == 0) {
            lifetime_draw(p, s);
        } else if (i && s[-1].kind == STEP_RECORD && below(&p->rng, 2)) {
            wait_draw(p, s, s[-1].event);
        } else if (below(&p->rng, 100) < p->waits) {
            order_draw(p, s);
        } else {
            access_draw(p, s);
        }
        s->thread = p->threads && below(&p->rng, 2);
    }
}

#endif
