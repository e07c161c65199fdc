/* api/plan.h - plans of collectives.

   Declares the request for a plan, the plan with its steps, and the functions that create and print
   plans. */
#ifndef DS__API_PLAN_H
#define DS__API_PLAN_H

#include "topology.h"

/* ---- plans ----------------------------------------------------------------------------------- */

/* A plan is a schedule of copies and sums for a collective on the devices of a topology. The
   planner chooses the algorithm and the number of pieces with the shortest predicted time for the
   given size.

   The prediction models the CPU driver's virtual clock. A copy occupies a copy engine of the device
   that makes it, and all links of its route. A link is occupied for the bytes divided by its rate,
   the engine for `start` longer. The copy is complete after its latency, too. Sums and copies
   inside a device use the rate of its memory.

   Each rank (device of the topology, in its order) has an input, an output and scratch memory. Host
   memory is an additional rank with scratch memory only. S bytes are split into p blocks, as equal
   as whole elements allow: block i begins at element count * i / p. */

/** Collectives, with the meaning of S bytes. */
typedef enum ds_collective {
    DS_BROADCAST,  /**< the root's input (S bytes) is copied to the output of all other ranks */
    DS_SCATTER,    /**< block i of the root's input (S bytes) is copied to the output of rank i */
    DS_GATHER,     /**< the inputs are copied to the blocks of the root's output (S bytes) */
    DS_REDUCE,     /**< the sum of all inputs (S bytes each) is written to the root's output */
    DS_ALL_REDUCE, /**< the sum of all inputs (S bytes each) is written to all outputs */
    DS_ALL_GATHER, /**< the inputs are copied to the blocks of every output (S bytes) */
    /** block i of the sum of all inputs (S bytes each) is written to the output of rank i */
    DS_REDUCE_SCATTER,
    /** block i of rank j's input is copied to block j of rank i's output, S bytes each */
    DS_ALL_TO_ALL,
    DS_COLLECTIVE_COUNT /**< number of collectives */
} ds_collective;

/** Allowed orders of a sum, in addition to the order of the ranks. */
typedef enum ds_plan_order {
    /** one sum over all inputs only: for types summed in a wider type (float16, bfloat16) and for
        averages */
    DS_ORDER_AT_ONCE,
    /** also pairwise in list order, ((x0 + x1) + x2) + ...: bit-identical if sums are not kept in a
        wider type */
    DS_ORDER_LIST,
    /** any order: for integers, minimum, maximum, or if bit-identical results are not needed */
    DS_ORDER_ANY
} ds_plan_order;

/** Parameters of ds_plan_get; a zeroed desc is a broadcast of 0 bytes from rank 0. */
typedef struct ds_plan_desc {
    ds_collective what;  /**< the collective */
    size_t bytes;        /**< S */
    int root;            /**< root rank of broadcast, scatter, gather and reduce */
    size_t item;         /**< bytes of an element, which is never split; 0: 1 */
    ds_plan_order order; /**< allowed orders of sums */
    /** required algorithm: "direct", "binomial", "chain", "spread", "islands", "trees" or "staged";
        NULL: the fastest */
    const char *algorithm;
    /** number of pieces per independently routed part; 0: the fastest number */
    size_t pieces;
    /** ds_comm_options.engine of the collective: ds_plan_write tells whether NCCL runs it in place
        of the plan, and why. NULL, or "nccl" */
    const char *engine;
    uint64_t reserved[3]; /**< 0 */
} ds_plan_desc;

/** Buffers of a rank. */
enum {
    DS_PLAN_INPUT,  /**< its input */
    DS_PLAN_OUTPUT, /**< its output */
    DS_PLAN_SCRATCH /**< temporary memory */
};

/** A buffer location. */
typedef struct ds_plan_location {
    int rank;      /**< owner of the buffer; the number of ranks means the host */
    int buffer;    /**< DS_PLAN_* */
    size_t offset; /**< offset of the first byte */
} ds_plan_location;

/** A step: a copy or a sum. Steps of one lane of a rank run in order. */
typedef struct ds_plan_step {
    int rank;            /**< rank that runs the step */
    int lane;            /**< lane of the rank */
    ds_plan_location to; /**< location written */
    size_t bytes;        /**< bytes written */
    uint32_t from;       /**< locations read: index of the first in ds_plan.location */
    /** 1: a copy; more: a sum of so many operands in this order, all on the step's own rank */
    uint32_t from_count;
    /** steps of other lanes to wait for: index of the first in ds_plan.before */
    uint32_t after;
    uint32_t after_count; /**< number of steps to wait for */
    int64_t start_ns;     /**< predicted begin */
    int64_t done_ns;      /**< predicted end */
} ds_plan_step;

/** A plan. Members are read-only for the caller. */
typedef struct ds_plan {
    ds_plan_desc desc;    /**< request; algorithm is the chosen one */
    int ranks;            /**< number of ranks of the topology */
    int ways;             /**< independently routed parts per root */
    int lanes;            /**< maximum number of lanes per rank */
    size_t pieces;        /**< pieces per part */
    size_t piece_bytes;   /**< size of the largest piece */
    int64_t predicted_ns; /**< predicted duration */
    /** estimated bound: S over the narrowest cut of the links, plus ceil(log2 p) times the shortest
        latency (all_reduce: twice that) */
    int64_t bound_ns;
    size_t steps;                     /**< number of steps */
    const ds_plan_step *step;         /**< steps in the order of their begin */
    const ds_plan_location *location; /**< locations read by the steps */
    const uint32_t *before;           /**< indices of steps to wait for */
    const size_t *scratch; /**< bytes of scratch memory of each rank and, last, of the host */
} ds_plan;

/** Creates a plan, or returns an existing plan of the same request. Plans are read-only and kept
    until their topology is freed; threads may share them. DS_ERR_UNSUPPORTED: the requested
    algorithm does not support the collective on this topology, or the order. DS_ERR_INVALID_VALUE:
    an invalid member, or more bytes than the slowest link carries in 100 days. */
DSDEF DS_MUST_USE ds_result ds_plan_get(const ds_topology *topology, const ds_plan_desc *desc,
                                        const ds_plan **out);
/** Writes the plan's figures and those of the other algorithms, with the reason for the choice. */
DSDEF DS_MUST_USE ds_result ds_plan_write(const ds_topology *topology, const ds_plan *plan,
                                          ds_write_fn write_fn, void *user);
/** Returns the name of a collective. Callable anywhere. */
DSDEF const char *ds_collective_get_name(ds_collective what);

#endif
