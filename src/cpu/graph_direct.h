/* cpu/graph_direct.h - launches that their stream runs itself.

   Decides whether the launching stream runs the operations of a launch itself, in topological
   order and without lanes (ds__cpu_is_direct), enqueues such a launch (ds__cpu_submit_direct), and
   runs it (ds__cpu_direct_step).

   Policy: an executable of one lane has nothing that could run at the same time. With more lanes,
   ds__cpu_lanes_pay compares the time of all operations in a row with the time that the lanes would
   take, by the measured times of the kernels. While a kernel has not been measured, the lanes are
   used. The comparison is repeated after 1, 2, 4 ... launches, then every DS__CPU_COMPARE launches.

   Invariants: only kernels, copies, fills and empty nodes of the stream's device run this way. No
   launch runs this way with a seed, a fabric, in inline mode, or while operations have notes. The
   operation in the queue keeps the place of the next operation, so a launch can give way to other
   streams. Such launches take their turn at the gate as others do, but use no round of the lanes.
   Locks: the core's lock of the executable is held around ds__cpu_is_direct and
   ds__cpu_submit_direct. ds__cpu_direct_step runs without a lock of the driver.
   Threads: caller's threads submit, the owner of the stream runs. */
#ifndef DS__CPU_GRAPH_DIRECT_H
#define DS__CPU_GRAPH_DIRECT_H

#include "types.h"
#include "queue.h"
#include "scheduler.h"
#include "kernel.h"
#include "run.h"
#include "submit.h"
#include "graph_plan.h"
#include "graph.h"

enum {
    DS__CPU_DIRECT = 16,    /* flag of DS__OP_GRAPH: u.graph.exec is the plan */
    DS__CPU_COMPARE = 256,  /* launches between two comparisons */
    DS__CPU_LANE_NS = 5000, /* until a second thread runs a lane: it may have to be woken */
    /* a wait of a lane: its cache line moves to another processor */
    DS__CPU_LANE_WAIT_NS = 200,
    DS__CPU_MOVE_BYTES = 10 /* bytes that a copy or fill moves in a nanosecond */
};

/* Returns the expected time of a node in nanoseconds, or -1 if it is not known. */
static double ds__cpu_node_ns(const ds__node *n) {
    if (!n || !n->enabled)
        return 0;
    if (n->kind == DS_NODE_COPY || n->kind == DS_NODE_FILL)
        return (double)ds__op_bytes(&n->op) / (double)DS__CPU_MOVE_BYTES;
    if (n->kind != DS_NODE_KERNEL)
        return 0;
    uint64_t estimate =
        atomic_load_explicit(&n->op.u.kernel.kernel->estimate, memory_order_relaxed);
    if (ds__cpu_runs(estimate) < 4 || (n->op.flags & DS__OP_TOGETHER))
        return -1;
    return (double)(uint32_t)estimate * (double)n->op.u.kernel.items / 1000;
}

/* Returns 1 if the lanes are expected to be faster than all operations in a row, or if the time of
   a node is not known. end: room for the time of each lane and each flat node. */
static int ds__cpu_lanes_pay(const ds__cpu_exec *x, double *end) {
    double *finish = end + x->lanes;
    double sum = 0;
    double waits = 0;
    double longest = 0;
    for (uint32_t i = 0; i < x->entries; i++) {
        const ds__cpu_entry *e = &x->entry[i];
        double *lane = &end[e->lane];
        if (e->waits) {
            waits++;
            *lane =
                (finish[e->flat] > *lane ? finish[e->flat] : *lane) + (double)DS__CPU_LANE_WAIT_NS;
            continue;
        }
        double ns = ds__cpu_node_ns(x->flat[e->flat].node);
        if (ns < 0)
            return 1;
        sum += ns;
        *lane += ns;
        finish[e->flat] = *lane;
        longest = *lane > longest ? *lane : longest;
    }
    double shared = (sum + waits * (double)DS__CPU_LANE_WAIT_NS) / ds__cpu.workers;
    return (double)DS__CPU_LANE_NS + (longest > shared ? longest : shared) < sum;
}

/* Compares lanes with all operations in a row, and stores the result. */
static void ds__cpu_compare(ds__cpu_exec *x) {
    double *end = ds__host_alloc(((size_t)x->lanes + x->flats) * sizeof *end);
    x->prefers_direct = end && !ds__cpu_lanes_pay(x, end);
    ds__host_free(end);
}

/* Writes all operations of the plan in topological order. While launches are pending, one of which
   may write a patch at this moment, it makes a new plan first, which has the changes of the patch.
   Returns 0 if there is no memory. */
static int ds__cpu_plan_direct(ds__cpu_exec *x, ds__cpu_patch **patch) {
    size_t bytes = 0;
    /* a patch is for the places of the plan that launches used when the patch was made, also if
       none of them uses it any more */
    if (*patch || ds__cpu_plan_is_used(x->plan)) {
        if (ds__cpu_plan_build(x) < 0)
            return 0;
        ds__host_free(*patch);
        *patch = NULL;
    }
    ds__cpu_plan *p = x->plan;
    for (uint32_t i = 0; i < x->flats; i++)
        bytes += x->flat[i].place.bytes;
    p->direct = ds__cpu_piece_alloc(bytes);
    for (uint32_t i = 0; i < x->entries && p->direct; i++) {
        ds__cpu_place *place = &x->flat[x->entry[i].flat].place;
        if (x->entry[i].waits)
            continue;
        place->direct_at = p->direct_bytes;
        memcpy((char *)p->direct + offsetof(ds__cpu_block, data) + place->direct_at,
               (const char *)p->block[place->lane] + offsetof(ds__cpu_block, data) + place->at,
               place->bytes);
        p->direct_bytes += place->bytes;
    }
    return p->direct != NULL;
}

/* Returns 1 if the stream shall run the next launch itself; the plan, which is up to date, has the
   operations for that then. */
static int ds__cpu_is_direct(ds__cpu_exec *x, const ds__cpu_stream *s, ds__cpu_patch **patch) {
    uint64_t n = x->launches;
    if (!x->simple || x->device != s->device || ds__cpu_modes(UINT_MAX))
        return 0;
    if (x->lanes > 1 && ((n & (n - 1)) == 0 || n % DS__CPU_COMPARE == 0))
        ds__cpu_compare(x);
    return (x->lanes == 1 || x->prefers_direct) &&
           (x->plan->direct || ds__cpu_plan_direct(x, patch));
}

/* Enqueues a launch that the stream runs itself. On failure, the caller keeps the patch. */
static ds_result ds__cpu_submit_direct(ds__cpu_stream *s, const ds__op *op, ds__cpu_patch *patch) {
    ds__cpu_exec *x = op->u.graph.exec;
    ds__op launch = { .kind = DS__OP_GRAPH, .flags = DS__CPU_DIRECT };
    launch.line = op->line;
    launch.file = op->file;
    launch.u.graph.exec = x->plan;
    launch.u.graph.ticket = x->launches;
    launch.u.graph.patch = patch;
    atomic_fetch_add_explicit(&x->plan->users, 1, memory_order_relaxed);
    ds_result r = ds__cpu_enqueue(s, &launch, NULL);
    if (r < 0)
        ds__cpu_plan_unref(x->plan);
    else
        x->launches++;
    return r;
}

/* Runs the operations of a launch from its place on. Returns DS__CPU_MORE if the stream must give
   way before the last one. */
static int ds__cpu_direct_run(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *launch, uint64_t number,
                              int who) {
    const ds__cpu_plan *p = launch->u.graph.exec;
    char *first = (char *)p->direct + offsetof(ds__cpu_block, data);
    char *end = first + p->direct_bytes;
    uint64_t count = 0;
    int more = 0;
    for (char *at = first + launch->u.graph.at; at < end && !more;) {
        ds__op *op = (ds__op *)(void *)at;
        if (DS__LIKELY(ds__cpu_is_short(s, op, launch->u.graph.ticket + count))) {
            int status = op->u.kernel.kernel->cpu_fn(0, 1, at + DS__CPU_ARGS_AT);
            if (DS__UNLIKELY(status != 0))
                ds__cpu_kernel_failed(s, op, status, number);
        } else {
            (void)ds__cpu_step(w, s, op, number, who);
        }
        at += ds__cpu_op_bytes(op);
        more = ds__cpu_gives_way(w, s, ++count, at < end);
        if (DS__UNLIKELY(more)) {
            launch->u.graph.at = (size_t)(at - first);
            w->roams = 1;
        }
    }
    ds__cpu_count_operations(w, count);
    return more ? DS__CPU_MORE : DS__CPU_EMPTY;
}

/* Runs a launch of ds__cpu_submit_direct. DS__CPU_GONE: the stream is parked until it is the turn
   of the launch. DS__CPU_MORE: operations are left. */
static int ds__cpu_direct_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *launch,
                               uint64_t number, int who) {
    ds__cpu_plan *p = launch->u.graph.exec;
    uint64_t turn = p->gate_base + launch->u.graph.ticket;
    if (atomic_load_explicit(&p->gate->done, memory_order_acquire) < turn &&
        ds__cpu_park(s, p->gate, turn))
        return DS__CPU_GONE;
    if (DS__UNLIKELY(launch->u.graph.patch != NULL)) {
        ds__cpu_patch_apply(p, launch->u.graph.patch);
        launch->u.graph.patch = NULL; /* the step may be repeated */
    }
    if (ds__cpu_direct_run(w, s, launch, number, who) == DS__CPU_MORE)
        return DS__CPU_MORE;
    atomic_store_explicit(&p->gate->submitted, turn + 1, memory_order_relaxed);
    ds__cpu_pass(p->gate, turn + 1);
    ds__cpu_plan_unref(p);
    return DS__CPU_EMPTY;
}

#endif
