/* comm/internal.h - functions of the collectives that other layers use.

   ds__comm_leave passes a collective to the layer of process groups, if it has a group or engine.
   That layer includes this one, and may be missing.

   Invariants: ds__comm_elsewhere_fn never changes. The layer of groups, if it is there, declares it
   again with its value.
   Locks: none.
   Threads: any. */
#ifndef DS__COMM_INTERNAL_H
#define DS__COMM_INTERNAL_H

#include "../api/comm.h"
#include "../core/internal.h"
#include "runs.h"
#include "types.h"

typedef enum ds__comm_verb {
    DS__VERB_ALL_REDUCE,
    DS__VERB_REDUCE,
    DS__VERB_BROADCAST,
    DS__VERB_ALL_GATHER,
    DS__VERB_GATHER,
    DS__VERB_REDUCE_SCATTER,
    DS__VERB_SCATTER,
    DS__VERB_ALL_TO_ALL
} ds__comm_verb;

/* A collective of a group. One tensor in `in` or `out` of a verb with a root may be NULL. */
typedef struct ds__comm_call {
    ds__comm_verb verb;
    const ds_tensor *const *in;
    const ds_tensor *const *out;
    size_t in_count;
    size_t out_count;
    ds_reduce_op op;
    int dim;
    const ds_comm_options *options;
} ds__comm_call;

/* Runs a collective with a group or an engine; NULL without the layer of process groups. Returns 0
   if this layer has to do it. */
static int (*ds__comm_elsewhere_fn)(const ds__comm_call *call, ds_result *out);

/* Returns 1 if the layer of process groups has done what the call asks for. */
__attribute__((cold, noinline)) static int ds__comm_leave_for(const ds__comm_call *call,
                                                              ds_result *out) {
    if (ds__comm_elsewhere_fn)
        return ds__comm_elsewhere_fn(call, out);
    *out = call->options->ranks.id
               ? ds__fail(DS_ERR_INVALID_HANDLE,
                          "options->ranks is not a process group; see ds_ranks_init")
               : ds__fail(DS_ERR_UNSUPPORTED,
                          "options->engine is \"nccl\"; define DEVSTREAM_IMPLEMENTATION before the "
                          "inclusion of devstream_ranks.h");
    return 1;
}

static int ds__comm_leave(const ds__comm_call *call, ds_result *out) {
    const ds_comm_options *o = call->options;
    return DS__UNLIKELY(o->ranks.id || o->engine) && ds__comm_leave_for(call, out);
}

/* Refuses a group for a collective that creates its results. instead: the function to use. */
static ds_result ds__comm_refuse_across(const ds_comm_options *options, const char *instead) {
    return DS__LIKELY(!options->ranks.id)
               ? DS_OK
               : ds__fail(DS_ERR_UNSUPPORTED,
                          "with a process group, results are written into tensors of the caller, "
                          "since a rank does not know shapes of other ranks; use %s",
                          instead);
}

/* Checks that the operator is valid and supported for the data type. */
static ds_result ds__reduction_check(ds__reduction reduction);
/* Loads the kernels of collectives on a device. If one cannot be loaded, its first launch reports
   the reason. */
DS__SEAM static void ds__comm_load(ds_device device);
/* Reduces consecutive elements in stream order; zero stream: on the calling thread, at most
   DS__COMM_INPUTS inputs. */
static ds_result ds__comm_reduce(ds_stream stream, ds__reduction reduction, void *out,
                                 const void *const *in, size_t inputs, size_t count);
/* Describes the memory of a tensor for observers. */
static void ds__runs_observe(const ds__comm_copy *tensor, const char *first, ds__runs *m,
                             ds__seen_operand *o);

#endif
