/* cpu/graph_plan.h - layout of executables: lanes and entries.

   Divides the nodes of a graph into lanes (ds__cpu_lay_out) and creates the lanes' streams
   (ds__cpu_make_lanes). Defines the executable (ds__cpu_exec), the plan and the launch.

   Policy:
   1. An executable is a set of lanes. A lane is a chain of nodes, each of which depends on the
      one before.
   2. A lane is a stream. No producer fills its queue: the operations are ready in memory, the
      plan.
   3. A dependency between lanes is a wait for a number of the other lane, as between any
      streams. Workers, priorities, host functions, failures and helping host threads treat lanes
      as streams.
   4. A launch is one operation of the user's stream. It waits for its turn at the executable,
      starts the lanes, runs the first lane itself where that is allowed, and waits for all. The
      gate counts completed launches.
   5. A node that is set is written in place into the plan. While a launch is pending, the next
      launch takes the operation along as a patch, and writes it when its turn has come: launches
      of an executable run one at a time. Other changes make a new plan, and pending launches keep
      theirs.
   6. If lanes would not make a launch faster, the launching stream runs the operations itself, in
      topological order (cpu/graph_direct.h). This is so for a graph of one chain, and for branches
      that are shorter than the waits between them.

   Invariants: the nodes of a lane have one device and one priority. Entries are in topological
   order, so a lane waits only for an earlier entry of another lane. Numbers count the operations
   of a lane in one launch from 1, waits included. `flat` has the order of ds__cpu_flatten, which
   ds__cpu_regather repeats.
   Locks: expects none: no other thread knows the executable yet. ds__cpu_make_lanes takes
   `object_lock` and the device's lock.
   Threads: the thread that instantiates the graph. ds__cpu_lane_end may be called from any
   thread. */
#ifndef DS__CPU_GRAPH_PLAN_H
#define DS__CPU_GRAPH_PLAN_H

#include "../base/graph_body.h"
#include "types.h"
#include "stream.h"
#include "stream_wait.h"

typedef struct ds__cpu_plan {
    _Atomic int users;
    uint32_t lanes;
    struct ds__cpu_exec *exec; /* kept */
    ds__cpu_stream *gate;      /* that of the executable, in the cache line that a launch reads */
    uint64_t gate_base;
    /* all operations in topological order; NULL: no launch has run them that way */
    ds__cpu_block *direct;
    uint32_t direct_bytes;
    uint32_t conditions;
    struct ds__cpu_condition **condition; /* of the conditional nodes, in the order of entries */
    size_t objects;
    ds__object **object;    /* payloads and attached objects, which the plan keeps alive */
    ds__cpu_block *block[]; /* the operations of each lane, in one piece */
} ds__cpu_plan;

/* Operations that a launch writes into its plan before it runs. Each follows its ds__cpu_place. */
typedef struct ds__cpu_patch {
    size_t bytes; /* of the places and operations that follow */
    uint64_t pad; /* keeps them aligned */
} ds__cpu_patch;

/* The place of an operation in a plan. */
typedef struct ds__cpu_place {
    uint32_t lane;
    uint32_t at;        /* in the lane */
    uint32_t direct_at; /* in `direct` */
    uint32_t bytes;
} ds__cpu_place;

/* A node of the graph or of a child graph, with its place in a lane. */
typedef struct ds__cpu_flat {
    const ds__node *node;
    uint32_t *deps;
    uint32_t dep_count;
    size_t dep_room;
    uint32_t lane;
    uint32_t number;
    uint32_t level;
    uint32_t left;       /* during the sort: dependencies that are not sorted yet */
    ds__cpu_place place; /* of its operation in the plan */
} ds__cpu_flat;

/* A step of a lane: a node, or a wait for a node of another lane. */
typedef struct ds__cpu_entry {
    uint32_t lane;
    uint32_t flat;
    int waits;
} ds__cpu_entry;

typedef struct ds__cpu_exec {
    _Atomic int users;    /* the owner, and plans */
    const ds__body *body; /* the shadow graph; not used after the owner has dropped it */
    unsigned flags;
    int dirty;         /* 1: the shadow graph has changed, and there is no plan */
    uint32_t *changed; /* nodes that were set since the plan was written */
    uint32_t changes;
    size_t changed_room;
    int device;          /* of all nodes; -1: they are on several devices */
    int simple;          /* 1: a stream of this device may run all nodes itself */
    int prefers_direct;  /* 1: lanes would not make a launch faster, by the latest estimates */
    int hosts;           /* 1: there are host functions */
    int polls;           /* 1: there are operations on words */
    uint32_t conditions; /* number of conditional nodes */
    uint32_t flats;
    size_t flat_room;
    uint32_t lanes;
    uint32_t entries;
    size_t entry_room;
    ds__cpu_flat *flat;
    ds__cpu_entry *entry;
    ds__cpu_stream **lane;
    ds__cpu_stream *gate;
    uint64_t *base;       /* number of each lane before the first launch */
    uint64_t gate_base;   /* number of the gate before the first launch */
    uint32_t *operations; /* number of operations of each lane in one launch */
    size_t *bytes;        /* of the operations of each lane */
    uint32_t records;     /* number of event nodes that record */
    uint32_t waits;       /* number of event nodes that wait */
    uint64_t launches;
    uint64_t rounds; /* the launches among these that use the lanes */
    ds__cpu_plan *plan;
} ds__cpu_exec;

/* One launch. */
typedef struct ds__cpu_launch {
    ds__cpu_exec *exec;
    ds__cpu_plan *plan;
    uint64_t ticket; /* number of launches before */
    uint64_t round;  /* number of launches before that use the lanes */
    ds__cpu_patch *patch;
    uint64_t id;     /* of its record of activity; 0: it has none */
    uint64_t stream; /* handle of the launching stream */
    uint32_t next;   /* the lanes before this one are done */
    int started;
    ds__cpu_stamp **stamp; /* of record nodes; NULL for events without timing */
    /* of record nodes; NULL for events that processes do not share */
    ds__cpu_progress **shared;
    ds__cpu_token *token; /* tokens for which the wait nodes wait */
} ds__cpu_launch;

/* A conditional node. Each body is an executable, whose launches are the runs of the body. */
typedef struct ds__cpu_condition {
    int kind;             /* ds_condition_kind */
    int running;          /* 1: `run` has begun */
    const uint32_t *word; /* the condition */
    ds__cpu_launch run;   /* the present run */
    uint32_t count;
    ds__cpu_exec *body[];
} ds__cpu_condition;

/* Returns 1 if the nodes inside of the node are nodes of the executable. The bodies of a
   conditional node are executables of their own. */
static int ds__cpu_is_flat(const ds__node *n) {
    return n->kind == DS_NODE_CHILD && n->child->count;
}

/* Returns the number of the lane after the launch of that round. */
static uint64_t ds__cpu_lane_end(const ds__cpu_exec *x, uint32_t lane, uint64_t round) {
    return x->base[lane] + (round + 1) * x->operations[lane];
}

/* Adds a dependency of a flat node on another one. Returns 0 if there is no memory. */
static int ds__cpu_flat_depend(ds__cpu_exec *x, uint32_t flat, uint32_t on) {
    ds__cpu_flat *f = &x->flat[flat];
    if (!ds__graph_array_reserve(&f->deps, sizeof *f->deps, f->dep_count, &f->dep_room))
        return 0;
    f->deps[f->dep_count++] = on;
    return 1;
}

/* Adds the nodes of a graph. Its roots depend on flat node `after` (UINT32_MAX: on none). A child
   graph lies between two flat nodes: an additional one, on which its roots depend, and its own
   node, which depends on all nodes in the child. Returns 0 if there is no memory. */
static int ds__cpu_flatten(ds__cpu_exec *x, const ds__body *b, uint32_t after) {
    uint32_t first = x->flats;
    for (uint32_t i = 0; i < b->count; i++) {
        if (!ds__graph_array_reserve(&x->flat, sizeof *x->flat, x->flats, &x->flat_room))
            return 0;
        memset(&x->flat[x->flats], 0, sizeof *x->flat);
        x->flat[x->flats++].node = b->node[i];
    }
    for (uint32_t i = 0; i < b->count; i++) {
        const ds__node *n = b->node[i];
        uint32_t own = first + i;
        uint32_t begin = own;
        if (ds__cpu_is_flat(n)) {
            begin = x->flats;
            if (!ds__graph_array_reserve(&x->flat, sizeof *x->flat, x->flats, &x->flat_room))
                return 0;
            memset(&x->flat[x->flats++], 0, sizeof *x->flat);
        }
        for (uint32_t k = 0; k < n->dep_count; k++)
            if (!ds__cpu_flat_depend(x, begin, first + n->deps[k]))
                return 0;
        if (!n->dep_count && after != UINT32_MAX && !ds__cpu_flat_depend(x, begin, after))
            return 0;
        if (begin == own)
            continue;
        uint32_t inside = x->flats;
        if (!ds__cpu_flatten(x, n->child, begin))
            return 0;
        for (uint32_t k = 0; k < n->child->count; k++)
            if (!ds__cpu_flat_depend(x, own, inside + k))
                return 0;
    }
    return 1;
}

/* Counts the dependencies of each flat node in `left`, and lists the successors: those of node i
   stand in `successor` from start[i] to start[i + 1] - 1. `start` has room for two nodes more, and
   all its numbers must be 0. */
static void ds__cpu_list_successors(ds__cpu_exec *x, uint32_t *start, uint32_t *successor) {
    for (uint32_t i = 0; i < x->flats; i++) {
        x->flat[i].left = x->flat[i].dep_count;
        for (uint32_t k = 0; k < x->flat[i].dep_count; k++)
            start[x->flat[i].deps[k] + 2]++;
    }
    for (uint32_t i = 2; i < x->flats + 2; i++)
        start[i] += start[i - 1];
    for (uint32_t i = 0; i < x->flats; i++)
        for (uint32_t k = 0; k < x->flat[i].dep_count; k++)
            successor[start[x->flat[i].deps[k] + 1]++] = i;
}

/* Sorts the flat nodes so that each comes after those it depends on (Kahn's algorithm). Returns 0
   if there is no memory. The caller frees *out_order in any case. */
static int ds__cpu_sort(ds__cpu_exec *x, uint32_t **out_order) {
    uint32_t *start = ds__host_alloc((x->flats + 2u) * sizeof *start);
    uint32_t edges = 0;
    uint32_t *order = ds__host_alloc((x->flats + 1u) * sizeof *order);
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->flats; i++)
        edges += x->flat[i].dep_count;
    uint32_t *successor = ds__host_alloc((edges + 1u) * sizeof *successor);
    *out_order = order;
    if (start && order && successor) {
        ds__cpu_list_successors(x, start, successor);
        for (uint32_t i = 0; i < x->flats; i++)
            if (x->flat[i].left == 0)
                order[n++] = i;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = start[order[i]]; k < start[order[i] + 1]; k++)
                if (--x->flat[successor[k]].left == 0)
                    order[n++] = successor[k];
    }
    ds__host_free(start);
    ds__host_free(successor);
    return n == x->flats && start && order && successor;
}

/* Appends an entry to a lane. Returns 0 if there is no memory. */
static int ds__cpu_step_add(ds__cpu_exec *x, uint32_t lane, uint32_t flat, int waits) {
    if (!ds__graph_array_reserve(&x->entry, sizeof *x->entry, x->entries, &x->entry_room))
        return 0;
    x->entry[x->entries++] = (ds__cpu_entry){ lane, flat, waits };
    x->operations[lane]++;
    return 1;
}

static int ds__cpu_flat_device(const ds__cpu_exec *x, const ds__cpu_flat *f) {
    return f->node ? f->node->device.index : x->body->device.index;
}

/* Appends a node to a lane that ends with one of its dependencies and has the same device and
   priority. If there is no such lane, a new lane begins. The node waits once for each other lane.
   tail: the last node of each lane. seen: for each lane, the last node that waits for it, and the
   highest number of the lane among the node's dependencies. Returns 0 if there is no memory. */
static int ds__cpu_flat_append(ds__cpu_exec *x, uint32_t flat, uint32_t *tail, uint64_t *seen) {
    ds__cpu_flat *f = &x->flat[flat];
    uint32_t lane = x->lanes;
    for (uint32_t k = 0; k < f->dep_count && lane == x->lanes; k++) {
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        if (tail[d->lane] == f->deps[k] && d->level == f->level &&
            ds__cpu_flat_device(x, d) == ds__cpu_flat_device(x, f))
            lane = d->lane;
    }
    if (lane == x->lanes)
        x->operations[x->lanes++] = 0;
    for (uint32_t k = 0; k < f->dep_count; k++) { /* the latest dependency in each lane */
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        uint64_t mark = (uint64_t)(flat + 1) << 32 | d->number;
        if (d->lane != lane && (seen[d->lane] >> 32 != flat + 1u || seen[d->lane] < mark))
            seen[d->lane] = mark;
    }
    for (uint32_t k = 0; k < f->dep_count; k++) {
        const ds__cpu_flat *d = &x->flat[f->deps[k]];
        if (d->lane == lane || seen[d->lane] != ((uint64_t)(flat + 1) << 32 | d->number))
            continue;
        if (!ds__cpu_step_add(x, lane, f->deps[k], 1))
            return 0;
    }
    if (!ds__cpu_step_add(x, lane, flat, 0))
        return 0;
    f->lane = lane;
    f->number = x->operations[lane];
    tail[lane] = flat;
    return 1;
}

/* Returns 1 for a node that the launching stream may run itself. Other kinds may park a stream, or
   need a stream of their own to stand for them. */
static int ds__cpu_is_simple(ds_node_kind kind) {
    return kind == DS_NODE_KERNEL || kind == DS_NODE_COPY || kind == DS_NODE_FILL ||
           kind == DS_NODE_EMPTY || kind == DS_NODE_CHILD;
}

/* Notes that the executable has a node of this kind. */
static void ds__cpu_count_kind(ds__cpu_exec *x, ds_node_kind kind) {
    x->simple &= ds__cpu_is_simple(kind);
    x->hosts |= kind == DS_NODE_HOST;
    x->polls |= kind == DS_NODE_VALUES;
    x->records += kind == DS_NODE_EVENT_RECORD;
    x->waits += kind == DS_NODE_EVENT_WAIT;
    x->conditions += kind == DS_NODE_CONDITION;
}

/* Distributes the nodes over lanes. Returns 0 if there is no memory. */
static int ds__cpu_lay_out(ds__cpu_exec *x) {
    uint32_t *order = NULL;
    uint32_t *tail = NULL;
    uint64_t *seen = NULL;
    int done = ds__cpu_flatten(x, x->body, UINT32_MAX) && ds__cpu_sort(x, &order);
    if (done) {
        x->simple = x->flats > 0 && !(x->flags & DS_GRAPH_USE_NODE_PRIORITY);
        x->device = x->flats ? ds__cpu_flat_device(x, &x->flat[0]) : -1;
        tail = ds__host_alloc((x->flats + 1u) * sizeof *tail);
        seen = ds__host_alloc((x->flats + 1u) * sizeof *seen);
        x->operations = ds__host_alloc((x->flats + 1u) * sizeof *x->operations);
        done = tail && seen && x->operations;
    }
    for (uint32_t i = 0; i < x->flats && done; i++) {
        ds__cpu_flat *f = &x->flat[order[i]];
        const ds__node *n = f->node;
        f->level = (uint32_t)((x->flags & DS_GRAPH_USE_NODE_PRIORITY) && n
                                  ? ds__cpu_clamp(n->priority) + DS__CPU_LEVELS - 1
                                  : DS__CPU_LEVELS - 1);
        if (n)
            ds__cpu_count_kind(x, n->kind);
        if (x->device != ds__cpu_flat_device(x, f))
            x->device = -1;
        done = ds__cpu_flat_append(x, order[i], tail, seen);
    }
    for (uint32_t i = 0; i < x->flats; i++) {
        ds__host_free(x->flat[i].deps);
        x->flat[i].deps = NULL;
    }
    ds__host_free(order);
    ds__host_free(tail);
    ds__host_free(seen);
    return done;
}

/* Creates the streams of the lanes, and the gate. Returns 0 if there is no memory. */
static int ds__cpu_make_lanes(ds__cpu_exec *x) {
    x->lane = ds__host_alloc((x->lanes + 1u) * sizeof *x->lane);
    x->base = ds__host_alloc((x->lanes + 1u) * sizeof *x->base);
    x->bytes = ds__host_alloc((x->lanes + 1u) * sizeof *x->bytes);
    if (!x->lane || !x->base || !x->bytes)
        return 0;
    for (uint32_t i = 0; i < x->flats; i++) {
        const ds__cpu_flat *f = &x->flat[i];
        if (x->lane[f->lane])
            continue;
        ds__cpu_stream *lane = ds__cpu_stream_add(ds__cpu_flat_device(x, f), DS__STREAM_LANE, 0,
                                                  (int)f->level + 1 - DS__CPU_LEVELS);
        x->lane[f->lane] = lane;
        if (!lane)
            return 0;
        x->base[f->lane] = atomic_load(&lane->submitted);
    }
    x->gate = ds__cpu_stream_add(x->body->device.index, DS__STREAM_LANE, 0, 0);
    if (!x->gate)
        return 0;
    /* the thread that has emptied the object's former stream may still look at the state once */
    uint32_t idle = DS__CPU_IDLE;
    while (!atomic_compare_exchange_strong(&x->gate->state, &idle, DS__CPU_COUNTS)) {
        idle = DS__CPU_IDLE;
        ds__processor_pause();
    }
    x->gate_base = atomic_load(&x->gate->submitted);
    return 1;
}

#endif
