/* api/plan.h - plans of collectives.

   Declares the request for a plan, the plan with its steps, and the functions that make and
   print plans. */
#ifndef DS__API_PLAN_H
#define DS__API_PLAN_H

#include "topology.h"

/* ---- plans ----------------------------------------------------------------------------------- */

/* A plan says in which order copies and sums make a collective on the devices of a topology: for
   so many bytes, by the algorithm, and in as many pieces, as are predicted to be the fastest
   there. The prediction is what the CPU driver's virtual clock shows: a copy takes one of the
   copy engines of the device that makes it and all links of its route, each for its bytes at the
   link's rate; the engine for `start` longer; and is done when the latency has passed, too. Sums
   and copies inside of a device take its memory. Each rank (device of the topology, in its
   order) has an input, an output and scratch memory; host memory is one more rank that has
   scratch only. Blocks are p parts of S bytes, as equal as whole elements allow: block i begins
   at element count * i / p. */

/** What a plan is for, and what S bytes are. */
typedef enum ds_collective {
    DS_BROADCAST,  /**< the root's input of S bytes becomes the output of all others */
    DS_SCATTER,    /**< block i of the root's input of S bytes becomes the output of rank i */
    DS_GATHER,     /**< the inputs become the blocks of the root's output of S bytes */
    DS_REDUCE,     /**< the root's output becomes the sum of all inputs, S bytes each */
    DS_ALL_REDUCE, /**< all outputs become that */
    DS_ALL_GATHER, /**< the inputs become the blocks of every output of S bytes */
    /** the output of rank i becomes block i of the sum of all inputs, S bytes each */
    DS_REDUCE_SCATTER,
    /** block i of rank j's input becomes block j of rank i's output, S bytes each */
    DS_ALL_TO_ALL,
    DS_COLLECTIVE_COUNT /**< how many there are */
} ds_collective;

/** Which orders of a sum are as good as the order of the ranks. */
typedef enum ds_plan_order {
    /** only all at once: for types that are summed in a wider one (float16, bfloat16) and for
        averages */
    DS_ORDER_AT_ONCE,
    /** also one after the other, ((x0 + x1) + x2) + ...: the same bits where sums are not kept
        wider than the type */
    DS_ORDER_LIST,
    DS_ORDER_ANY /**< any: integers, minimum, maximum; or the bits do not matter */
} ds_plan_order;

/** What is wanted; a zeroed one is a broadcast of nothing from rank 0. */
typedef struct ds_plan_desc {
    ds_collective what;  /**< the collective */
    size_t bytes;        /**< S */
    int root;            /**< of broadcast, scatter, gather and reduce */
    size_t item;         /**< bytes of an element, which is not cut; 0: 1 */
    ds_plan_order order; /**< of sums */
    /** only this one: "direct", "binomial", "chain", "spread", "islands", "trees" or "staged";
        NULL: the fastest */
    const char *algorithm;
    /** so many pieces of each part that takes a way of its own; 0: as many as are the fastest */
    size_t pieces;
    uint64_t reserved[4]; /**< 0 */
} ds_plan_desc;

/** Buffers of a rank. */
enum {
    DS_PLAN_INPUT,  /**< its input */
    DS_PLAN_OUTPUT, /**< its output */
    DS_PLAN_SCRATCH /**< temporary memory */
};

/** A place in memory. */
typedef struct ds_plan_location {
    int rank;      /**< whose; as many as there are ranks: the host's */
    int buffer;    /**< DS_PLAN_* */
    size_t offset; /**< of the first byte */
} ds_plan_location;

/** A step: a copy, or a sum. Steps of a lane of a rank run in their order. */
typedef struct ds_plan_step {
    int rank;            /**< who does it */
    int lane;            /**< on which of its lanes */
    ds_plan_location to; /**< what is written */
    size_t bytes;        /**< so much of it */
    uint32_t from;       /**< what is read: from the `from`-th of the plan's spots on */
    /** 1: a copy; more: a sum of so many, all on the step's own rank, in this order */
    uint32_t from_count;
    /** the steps of other lanes that come before: from the `after`-th entry of the plan's list
        on */
    uint32_t after;
    uint32_t after_count; /**< how many */
    int64_t start_ns;     /**< predicted */
    int64_t done_ns;      /**< predicted */
} ds_plan_step;

/** A plan. The members may be read and not changed. */
typedef struct ds_plan {
    ds_plan_desc desc;    /**< what was wanted; algorithm is the chosen one */
    int ranks;            /**< of the topology */
    int ways;             /**< parts that take ways of their own, per root */
    int lanes;            /**< most lanes of a rank */
    size_t pieces;        /**< of each part */
    size_t piece_bytes;   /**< of the largest piece */
    int64_t predicted_ns; /**< how long it takes */
    /** S over the narrowest cut of the links, and the shortest latency ceil(log2 p) times
        (all_reduce: twice that) */
    int64_t bound_ns;
    size_t steps;                 /**< how many */
    const ds_plan_step *step;     /**< in the order in which they begin */
    const ds_plan_location *spot; /**< what they read */
    const uint32_t *before;       /**< which steps others come after */
    const size_t *scratch;        /**< bytes of scratch memory of each rank and of the host */
} ds_plan;

/** Makes a plan, or finds the one that was made for the same before: plans are kept until their
    topology is freed, and may be used by many threads at once. DS_ERR_UNSUPPORTED: the algorithm
    that is asked for does not do this here, or not in this order. */
DSDEF DS_MUST_USE ds_result ds_plan_get(const ds_topology *topology, const ds_plan_desc *desc,
                                        const ds_plan **out);
/** Writes what was chosen and why: the plan's figures, and those of the other algorithms. */
DSDEF DS_MUST_USE ds_result ds_plan_write(const ds_topology *topology, const ds_plan *plan,
                                          ds_write_fn write_fn, void *user);
/** A collective's name. Callable anywhere. */
DSDEF const char *ds_collective_get_name(ds_collective what);

#endif
