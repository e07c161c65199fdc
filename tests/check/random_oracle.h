/* random_oracle.h - the order and the accesses of a program: no clocks, and nothing is forgotten.

   Every operation, wait of the host, access of host code, allocation and free is a node. A node
   gets an edge from each node that it directly comes after, and a set of all nodes before it: the
   transitive closure as bits. The accesses of a node are sets of cells, small pieces of memory.
   Two nodes race if they conflict in a cell and the earlier one is not in the set of the later one.

   Invariants: nodes are added in the order of the calls, so edges lead from lower to higher
   numbers, and the set of a node is complete when the next node is added. */
#ifndef RANDOM_ORACLE_H
#define RANDOM_ORACLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    ORACLE_NODES = 512,
    ORACLE_QUEUES = 64,
    ORACLE_THREADS = 2,
    ORACLE_PAGES = 64,
    ORACLE_CELLS = 1024,
    PAGE_BYTES = 512,
    NODE_WORDS = ORACLE_NODES / 64,
    CELL_WORDS = ORACLE_CELLS / 64,
    NO_NODE = -1
};

/* ---- sets of cells --------------------------------------------------------------------------- */

typedef struct cells {
    uint64_t word[CELL_WORDS];
} cells;

static void cells_add(cells *set, size_t cell) {
    set->word[cell / 64] |= (uint64_t)1 << cell % 64;
}

static int cells_any(const cells *set) {
    uint64_t any = 0;
    for (size_t i = 0; i < CELL_WORDS; i++)
        any |= set->word[i];
    return any != 0;
}

static int cells_meet(const cells *a, const cells *b) {
    uint64_t any = 0;
    for (size_t i = 0; i < CELL_WORDS; i++)
        any |= a->word[i] & b->word[i];
    return any != 0;
}

static void cells_unite(cells *set, const cells *more) {
    for (size_t i = 0; i < CELL_WORDS; i++)
        set->word[i] |= more->word[i];
}

static void cells_remove(cells *set, const cells *less) {
    for (size_t i = 0; i < CELL_WORDS; i++)
        set->word[i] &= ~less->word[i];
}

/* Adds the cells that are in both a and b. */
static void cells_unite_common(cells *set, const cells *a, const cells *b) {
    for (size_t i = 0; i < CELL_WORDS; i++)
        set->word[i] |= a->word[i] & b->word[i];
}

/* Returns 1 if all cells of the set are in `all`. */
static int cells_within(const cells *set, const cells *all) {
    uint64_t other = 0;
    for (size_t i = 0; i < CELL_WORDS; i++)
        other |= set->word[i] & ~all->word[i];
    return other == 0;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Ways to touch cells. An access without an extent may touch each cell of a block. */
typedef enum mode {
    MODE_READ,
    MODE_WRITE,
    MODE_ATOMIC_READ,
    MODE_ATOMIC_WRITE,
    MODE_MAYBE_READ,
    MODE_MAYBE_WRITE,
    MODES
} mode;

typedef struct oracle_node {
    int step;     /* step of the program */
    int queue;    /* NO_NODE: host code, or no operation */
    int accesses; /* 1: it touches a cell */
    cells touched[MODES];
    cells stale; /* touched though freed */
    uint64_t before[NODE_WORDS];
} oracle_node;

/* A stream. */
typedef struct oracle_queue {
    int device;
    int legacy;
    int blocking;
    int last; /* its last node */
} oracle_queue;

/* A piece of memory of PAGE_BYTES at an address; only its first cells are used. */
typedef struct oracle_page {
    uintptr_t address;
} oracle_page;

typedef struct oracle {
    oracle_node node[ORACLE_NODES];
    size_t nodes;
    oracle_queue queue[ORACLE_QUEUES];
    size_t queues;
    int host[ORACLE_THREADS]; /* last node of host code; one for all threads, or one for each */
    int thread;               /* the thread that calls */
    oracle_page page[ORACLE_PAGES];
    size_t pages;
    size_t unit;  /* bytes of a cell */
    int overflow; /* 1: a table was too small */
} oracle;

static void oracle_init(oracle *o, size_t unit) {
    o->nodes = o->queues = o->pages = 0;
    o->host[0] = o->host[1] = NO_NODE;
    o->thread = 0;
    o->unit = unit;
    o->overflow = 0;
}

static int oracle_is_before(const oracle *o, int a, int b) {
    return (int)(o->node[b].before[a / 64] >> (a % 64) & 1);
}

/* Puts `from` and all before it before the node. */
static void oracle_edge(oracle *o, int node, int from) {
    if (from == NO_NODE || from == node)
        return;
    oracle_node *n = &o->node[node];
    for (size_t i = 0; i < NODE_WORDS; i++)
        n->before[i] |= o->node[from].before[i];
    n->before[from / 64] |= (uint64_t)1 << (from % 64);
}

/* Adds a node that comes after nothing. */
static int oracle_add_alone(oracle *o, int step, int queue) {
    if (o->nodes == ORACLE_NODES) {
        o->overflow = 1;
        return (int)o->nodes - 1;
    }
    int i = (int)o->nodes++;
    memset(&o->node[i], 0, sizeof o->node[i]);
    o->node[i].step = step;
    o->node[i].queue = queue;
    return i;
}

/* Adds a node that comes after the host code of the calling thread. */
static int oracle_add(oracle *o, int step, int queue) {
    int node = oracle_add_alone(o, step, queue);
    oracle_edge(o, node, o->host[o->thread]);
    return node;
}

/* Puts a node where the next operation of a stream would be. */
static void oracle_edges_of_next(oracle *o, int node, int queue) {
    const oracle_queue *q = &o->queue[queue];
    oracle_edge(o, node, q->last);
    for (size_t i = 0; q->blocking && i < o->queues; i++) {
        const oracle_queue *other = &o->queue[i];
        if (other->blocking && other->device == q->device && (q->legacy || other->legacy))
            oracle_edge(o, node, other->last);
    }
}

static int oracle_queue_add(oracle *o, int device, int legacy, int blocking) {
    if (o->queues == ORACLE_QUEUES) {
        o->overflow = 1;
        return 0;
    }
    o->queue[o->queues] =
        (oracle_queue){ .device = device, .legacy = legacy, .blocking = blocking, .last = NO_NODE };
    return (int)o->queues++;
}

/* An operation on a stream. */
static int oracle_operation(oracle *o, int step, int queue) {
    int node = oracle_add(o, step, queue);
    oracle_edges_of_next(o, node, queue);
    o->queue[queue].last = node;
    return node;
}

/* A step of host code. What the host waits for is added by edges. */
static int oracle_host_step(oracle *o, int step) {
    int node = oracle_add(o, step, NO_NODE);
    o->host[o->thread] = node;
    return node;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t oracle_cells_of_page(const oracle *o) {
    return o->unit == 1 ? 128 : PAGE_BYTES / o->unit;
}

/* Returns the first cell of the page at an address. A page is added when it is first seen. */
static size_t oracle_page_find(oracle *o, uintptr_t address) {
    size_t i = 0;
    while (i < o->pages && o->page[i].address != address)
        i++;
    if (i == ORACLE_PAGES || (i + 1) * oracle_cells_of_page(o) > ORACLE_CELLS) {
        o->overflow = 1;
        return 0;
    }
    if (i == o->pages)
        o->page[o->pages++].address = address;
    return i * oracle_cells_of_page(o);
}

static void oracle_cells_of(oracle *o, cells *set, const void *ptr, size_t bytes) {
    uintptr_t begin = (uintptr_t)ptr;
    uintptr_t end = begin + bytes;
    for (uintptr_t at = begin - begin % o->unit; at < end; at += o->unit) {
        uintptr_t page = at - at % PAGE_BYTES;
        size_t cell = (at - page) / o->unit;
        if (cell >= oracle_cells_of_page(o)) {
            o->overflow = 1;
            return;
        }
        cells_add(set, oracle_page_find(o, page) + cell);
    }
}

/* Rows of memory. */
typedef struct oracle_rows {
    const void *ptr;
    size_t width;
    size_t pitch;
    size_t rows;
} oracle_rows;

/* Adds rows to the accesses of a node. */
static void oracle_touch(oracle *o, int node, mode m, const oracle_rows *at) {
    oracle_node *n = &o->node[node];
    for (size_t row = 0; row < at->rows && at->width; row++) {
        oracle_cells_of(o, &n->touched[m], (const char *)at->ptr + row * at->pitch, at->width);
        n->accesses = 1;
    }
}

/* All cells that a node reads or writes for certain; both: all that it touches. */
static void oracle_sure(const oracle_node *n, int reads, int writes, cells *out) {
    memset(out, 0, sizeof *out);
    if (reads)
        *out = n->touched[MODE_READ];
    if (reads)
        cells_unite(out, &n->touched[MODE_ATOMIC_READ]);
    if (writes)
        cells_unite(out, &n->touched[MODE_WRITE]);
    if (writes)
        cells_unite(out, &n->touched[MODE_ATOMIC_WRITE]);
}

/* The cells in which the accesses `first` and `second` of two nodes meet, not both atomic. */
static void oracle_meet(const oracle_node *a, int a_writes, const oracle_node *b, int b_writes,
                        cells *out) {
    const cells *first = &a->touched[a_writes ? MODE_WRITE : MODE_READ];
    const cells *second = &b->touched[b_writes ? MODE_WRITE : MODE_READ];
    const cells *first_atomic = &a->touched[a_writes ? MODE_ATOMIC_WRITE : MODE_ATOMIC_READ];
    const cells *second_atomic = &b->touched[b_writes ? MODE_ATOMIC_WRITE : MODE_ATOMIC_READ];
    cells_unite_common(out, first, second);
    cells_unite_common(out, first, second_atomic);
    cells_unite_common(out, first_atomic, second);
}

/* Adds the cells in which an access without an extent of a meets one of b. */
static void oracle_meet_maybe(const oracle_node *a, int a_writes, const oracle_node *b,
                              int b_writes, cells *out) {
    const cells *maybe = &a->touched[a_writes ? MODE_MAYBE_WRITE : MODE_MAYBE_READ];
    cells sure;
    oracle_sure(b, !b_writes, b_writes, &sure);
    cells_unite(&sure, &b->touched[b_writes ? MODE_MAYBE_WRITE : MODE_MAYBE_READ]);
    cells_unite_common(out, maybe, &sure);
}

/* The cells in which two nodes conflict; maybe: or may conflict. */
static void oracle_conflict(const oracle_node *a, const oracle_node *b, int maybe, cells *out) {
    memset(out, 0, sizeof *out);
    for (int how = 1; how < 4; how++) {
        int a_writes = how & 1;
        int b_writes = how >> 1;
        oracle_meet(a, a_writes, b, b_writes, out);
        if (!maybe)
            continue;
        oracle_meet_maybe(a, a_writes, b, b_writes, out);
        oracle_meet_maybe(b, b_writes, a, a_writes, out);
    }
}

#endif
