/* plan/types.h - drafts of plans.

   Defines the draft of a plan (ds__draft) with its flows, steps, links and rings, and the
   growth of its arrays (DS__ADD). All other rooms of plan/ fill or read a draft. Public types
   are in api/plan.h.

   Policy:
   1. A collective is a set of flows. A flow sends bytes up a tree to its owner and sums on the
      way, or starts with the owner's input. Then it sends the bytes from the owner down a tree.
      A tree is a list of parents. An algorithm is a way to make trees; all later work is the
      same for every algorithm. Only grids, for many ranks, have no flows: they make steps
      themselves.
   2. A flow is cut into pieces. Each edge of a tree is one copy of each piece, or two copies
      through the host if the devices do not reach each other. Data that a rank passes on goes
      through a ring of a few pieces.
   3. Copies are ordered as if each copy that can start did start, earlier pieces first. For few
      ranks, rounds on a circle are tried as well. In that order each step gets a lane. With
      this lane it becomes ready after the earlier steps of the same wires, engine or memory.
   4. The predictor runs the result; its model is that of the virtual clock and no other. The
      fastest of all algorithms and piece counts is the plan. An algorithm is skipped if its
      busiest wire alone takes longer than the best plan so far.
   5. Sums: a tree is used only if the requested order permits its additions.

   Invariants: steps, trees and links refer to each other by index, because arrays move when
   they grow. If memory or the limit of steps is exhausted, `failed` is set and stays set, and
   nothing more is added.
   Locks: none.
   Threads: the thread that makes the plan; a draft has no other user. ds_collective_get_name may be
   called anywhere. */
#ifndef DS__PLAN_TYPES_H
#define DS__PLAN_TYPES_H

#include "../api/plan.h"
#include "../topology/types.h"

#define DS__PLAN_LANES 32     /* most of a rank */
#define DS__PLAN_FEW_LANES 16 /* of few ranks */
#define DS__PLAN_SLOTS 8      /* pieces of a ring */
#define DS__PLAN_STEPS 60000
#define DS__PLAN_WAYS 32
/* for more ranks, only what is guessed to be the fastest is looked at */
#define DS__PLAN_LARGE 32
#define DS__PLAN_LARGE_STEPS 120000 /* at most, for more ranks than DS__PLAN_LARGE */
/* the same for copies; where there are sums 90000, or 72000 in one group, since their steps wait
   for many */
#define DS__PLAN_LARGE_COPIES 108000
#define DS__PLAN_WORK 110000 /* copies, over all that is looked at */
#define DS__ALONE (-1)       /* the tree's root */
#define DS__APART (-2)       /* not in the tree */

typedef struct ds__flow {
    size_t bytes;
    size_t in;  /* where it lies in the inputs */
    size_t out; /* where it lies in the outputs */
    int owner;
    int dest;       /* whose outputs are written; -1: those of all but (broadcast) the owner */
    ptrdiff_t up;   /* a tree, or -1 */
    ptrdiff_t down; /* a tree, or -1 */
    /* more than 1: these are the blocks of so many ranks from dest on, and each has a tree to
       it, one after the other */
    int parts;
    size_t first; /* its first step */
    size_t each;  /* how many steps a piece has */
} ds__flow;

typedef struct ds__ring {
    size_t offset;
    size_t slot;
    uint32_t head; /* in ds__draft.head: of the lists of steps that read the slots */
} ds__ring;

typedef struct ds__dstep {
    uint64_t key;
    ds_plan_location to;
    size_t bytes;
    uint32_t from;
    uint32_t from_count;
    uint32_t after; /* list of links: the steps before it */
    uint32_t need;
    uint32_t next; /* list of links: the steps after it */
    int rank;
    int source; /* of a copy from elsewhere, or -1 */
    int lane;
    int64_t start;
    int64_t done;
    int64_t ready;
} ds__dstep;

typedef struct ds__dlink {
    uint32_t step;
    uint32_t next;
} ds__dlink;

typedef struct ds__draft {
    const ds_topology *t;
    const ds_plan_desc *want;
    int p;
    int failed;
    int ways;
    int largest; /* size of the largest group of level 1 */
    int pull;    /* 1: as many sums are made by each rank, so what is summed may be fetched */
    int run;     /* leads of a grid that stand in one row; 0: it is flows */
    const char *name;
    size_t pieces;
    size_t piece_bytes;
    int *tree; /* parents, p + 1 of each */
    ds__flow *flow;
    ds__dstep *step;
    ds_plan_location *location;
    ds__dlink *link;
    uint32_t *head;
    ds__ring *ring;
    size_t trees, flows, steps, locations, links, heads, rings, tree_room, flow_room, step_room,
        location_room, link_room, head_room, ring_room;
    size_t *scratch;
    int *place; /* rings of a flow: 5 for each rank */
    int64_t end;
    size_t slots;  /* pieces of a ring */
    int64_t bound; /* of the time */
    int lanes;
    /* 0: earlier pieces come first; 1: pieces that are behind by a copy come with those before
       that have one more */
    int wave;
} ds__draft;

#define DS__NONE UINT32_MAX
#define DS__PLACES 5

static const char *const ds__collective_names[] = { "broadcast",      "scatter",    "gather",
                                                    "reduce",         "all_reduce", "all_gather",
                                                    "reduce_scatter", "all_to_all" };

DSDEF const char *(ds_collective_get_name)(ds_collective what) {
    return (unsigned)what < DS_COLLECTIVE_COUNT ? ds__collective_names[what] : "none";
}

/* A plan. */
#define DS__ALGO_NAMES 7

typedef struct ds__planned {
    ds_plan plan; /* first: the user's pointer */
    struct ds__planned *next;
    uint64_t topology;
    ds_allocator allocator; /* of all its memory */
    ds_plan_desc asked;
    char algorithm[16]; /* of what was asked for; empty: none */

    /* of each algorithm; ns 0: it was not looked at to the end */
    struct {
        int64_t ns;
        size_t pieces;
        int ways;
    } best[DS__ALGO_NAMES];
} ds__planned;

#define DS__ADD(d, what) \
    ds__draft_add((d), &(d)->what, &(d)->what##s, &(d)->what##_room, sizeof *(d)->what)

static void *ds__draft_add(ds__draft *d, void *array, size_t *count, size_t *room, size_t size) {
    void *at = d->failed ? NULL : ds__array_add(array, *count, room, size);
    if (!at)
        d->failed = 1;
    else
        ++*count;
    return at;
}

static void ds__draft_clear(ds__draft *d) {
    d->steps = d->locations = d->links = d->heads = d->rings = 0;
}

static void ds__draft_end(ds__draft *d) {
    ds__host_free(d->tree);
    ds__host_free(d->flow);
    ds__host_free(d->step);
    ds__host_free(d->location);
    ds__host_free(d->link);
    ds__host_free(d->head);
    ds__host_free(d->ring);
    ds__host_free(d->scratch);
    ds__host_free(d->place);
}

static int ds__collective_is_sum(ds_collective what) {
    return what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
}

/* A collective for which NCCL was asked. */
typedef struct ds__engine_question {
    int reduces;
    int any_order; /* of a reduction */
    const ds_device *devices;
    size_t count;
} ds__engine_question;

/* Writes whether NCCL runs a collective, and why. NULL without the layer of process groups, which
   declares it again with its value. */
static void (*ds__plan_explain_fn)(const ds__engine_question *q, char *out, size_t size);

#endif
