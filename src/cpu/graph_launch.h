/* cpu/graph_launch.h - launches of executables.

   Enqueues a launch as one operation (ds__cpu_submit_launch), runs it when the stream comes to
   it (ds__cpu_launch_step), and runs the operations that only lanes have (ds__cpu_lane_step).

   Invariants: launches of an executable run one at a time, in the order of their submission: the
   gate counts completed ones. The launch of round t uses the numbers from base + t * operations
   + 1 on in each lane. A failed submission returns both references of the stamps and all lanes of
   shared events. A failure of a lane becomes a failure of the launching stream.
   Locks: the core's lock of the executable is held around ds__cpu_submit_launch and
   ds__cpu_submit_upload. Under it the registries' mutex, the locks of events and those of a
   submission are taken, one after another. In inline mode the launch runs to its end under that
   lock, host functions on their threads included. The steps run without a lock of the driver.
   Threads: caller's threads submit. ds__cpu_launch_step and ds__cpu_lane_step run on the owner
   of the stream or lane; lanes run concurrently. */
#ifndef DS__CPU_GRAPH_LAUNCH_H
#define DS__CPU_GRAPH_LAUNCH_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "scheduler.h"
#include "host_func.h"
#include "clock.h"
#include "run.h"
#include "submit.h"
#include "stream_wait.h"
#include "event.h"
#include "shared_event.h"
#include "watcher.h"
#include "capture_op.h"
#include "graph_plan.h"
#include "graph.h"
#include "graph_direct.h"

/* Frees a launch, and drops its references to the plan and the stamps. */
static void ds__cpu_launch_destroy(ds__cpu_launch *run) {
    ds__host_free(run->patch);
    for (uint32_t i = 0; run->stamp && i < run->exec->records; i++)
        ds__cpu_stamp_unref(run->stamp[i]);
    ds__cpu_plan_unref(run->plan);
    ds__host_free(run->stamp);
    ds__host_free(run->shared);
    ds__host_free(run->token);
    ds__host_free(run);
}

/* Returns the flat node that an entry runs if it is an event node, else NULL. */
static const ds__cpu_flat *ds__cpu_entry_event(const ds__cpu_exec *x, const ds__cpu_entry *e) {
    const ds__cpu_flat *f = &x->flat[e->flat];
    if (e->waits || !f->node)
        return NULL;
    return f->node->kind == DS_NODE_EVENT_RECORD || f->node->kind == DS_NODE_EVENT_WAIT ? f : NULL;
}

/* Prepares record number `record` of a launch: a time stamp for an event with timing, and the lane
   of a registry for an event that processes share. */
static ds_result ds__cpu_launch_add_record(ds__cpu_launch *run, const ds__cpu_flat *f,
                                           uint32_t record) {
    const ds__cpu_exec *x = run->exec;
    ds__cpu_event *e = f->node->op.u.event.event;
    if (e->flags & DS_EVENT_TIMING) {
        run->stamp[record] = ds__cpu_stamp_create();
        if (!run->stamp[record])
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a time stamp");
    }
    if (!e->registry)
        return DS_OK;
    if (!run->shared)
        run->shared = ds__host_alloc(x->records * sizeof *run->shared);
    if (!run->shared)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    return ds__cpu_progress_for(x->lane[f->lane], e, &run->shared[record]);
}

/* Notes the token of the event at the time of the launch as that of wait number `wait`. */
static ds_result ds__cpu_launch_add_wait(ds__cpu_launch *run, ds__cpu_event *e, uint32_t wait) {
    ds_result r = ds__cpu_event_look(e, 1);
    if (r < 0)
        return r;
    ds__spinlock_lock(&e->lock);
    uint64_t capture = e->capture;
    ds__cpu_token t = { e->stream, e->upto };
    ds__spinlock_unlock(&e->lock);
    if (capture)
        return ds__cpu_captured(capture, 0,
                                "the executable waits for an event that was recorded in a capture");
    if (t.stream)
        r = ds__cpu_event_watch(e, t.stream, t.upto);
    run->token[wait] = t;
    return r;
}

/* Prepares the event nodes of a launch. They have numbers in the order of the entries, as
   ds__cpu_plan_fill assigns them. */
static ds_result ds__cpu_launch_events(ds__cpu_launch *run) {
    const ds__cpu_exec *x = run->exec;
    ds_result r = DS_OK;
    uint32_t record = 0;
    uint32_t wait = 0;
    if (!x->records && !x->waits)
        return DS_OK;
    if (x->records) {
        run->stamp = ds__host_alloc(x->records * sizeof *run->stamp);
        if (!run->stamp)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    }
    if (x->waits) {
        run->token = ds__host_alloc(x->waits * sizeof *run->token);
        if (!run->token)
            return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    }
    for (uint32_t i = 0; i < x->entries && r == DS_OK; i++) {
        const ds__cpu_flat *f = ds__cpu_entry_event(x, &x->entry[i]);
        if (!f)
            continue;
        r = f->node->kind == DS_NODE_EVENT_RECORD
                ? ds__cpu_launch_add_record(run, f, record++)
                : ds__cpu_launch_add_wait(run, f->node->op.u.event.event, wait++);
    }
    return r;
}

/* Lets the events of record nodes stand for the launch of that round. stamps: those of the launch,
   which may be over and freed already. */
static void ds__cpu_launch_record(const ds__cpu_exec *x, uint64_t round,
                                  ds__cpu_stamp *const *stamps) {
    uint32_t record = 0;
    for (uint32_t i = 0; i < x->entries && x->records; i++) {
        const ds__cpu_flat *f = ds__cpu_entry_event(x, &x->entry[i]);
        if (!f || f->node->kind != DS_NODE_EVENT_RECORD)
            continue;
        uint64_t upto = x->base[f->lane] + round * x->operations[f->lane] + f->number;
        ds__cpu_event *e = f->node->op.u.event.event;
        ds__cpu_event_set(e, (ds__cpu_token){ x->lane[f->lane], upto }, stamps[record++],
                          ds__cpu_modes(DS__CPU_NOTED) ? ds__activity_tls.last : 0);
        if (e->registry)
            ds__cpu_event_publish(e, x->lane[f->lane], upto);
    }
}

/* Returns the next launch of an executable, with a reference to its plan. NULL: no memory. */
static ds__cpu_launch *ds__cpu_launch_create(ds__cpu_exec *x) {
    ds__cpu_launch *run = ds__host_alloc(sizeof *run);
    if (!run) {
        ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
        return NULL;
    }
    run->exec = x;
    run->plan = x->plan;
    run->ticket = x->launches;
    run->round = x->rounds;
    atomic_fetch_add_explicit(&x->plan->users, 1, memory_order_relaxed);
    return run;
}

/* Frees a launch that was not enqueued, with the references that its events would have to the
   stamps. */
static void ds__cpu_launch_cancel(ds__cpu_launch *run) {
    const ds__cpu_exec *x = run->exec;
    for (uint32_t i = 0; run->stamp && i < x->records; i++)
        ds__cpu_stamp_unref(run->stamp[i]);
    for (uint32_t i = 0; run->shared && i < x->records; i++)
        ds__cpu_progress_unused(run->shared[i]);
    ds__cpu_launch_destroy(run);
}

/* Enqueues a launch that uses the lanes. On failure, the caller keeps the patch. */
static ds_result ds__cpu_submit_lanes(ds__cpu_stream *s, const ds__op *op, ds__cpu_patch *patch) {
    ds__cpu_exec *x = op->u.graph.exec;
    ds__cpu_stamp **stamps = NULL;
    ds__cpu_launch *run = ds__cpu_launch_create(x);
    if (!run)
        return DS_ERR_OUT_OF_MEMORY;
    run->patch = patch;

    ds_result r = ds__cpu_launch_events(run);
    if (r == DS_OK && x->records) {
        stamps = ds__copy_bytes(run->stamp, x->records * sizeof *stamps);
        if (!stamps)
            r = ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a launch");
    }
    ds__op launch = *op;
    launch.u.graph.exec = run;
    if (r == DS_OK)
        r = ds__cpu_enqueue(s, &launch, NULL);
    if (r < 0)
        goto fail;

    if (x->records)
        ds__cpu_launch_record(x, x->rounds, stamps);
    ds__host_free(stamps);
    x->launches++;
    x->rounds++;
    return DS_OK;

fail:
    run->patch = NULL;
    ds__host_free(stamps);
    ds__cpu_launch_cancel(run);
    return r;
}

/* Enqueues a launch. The core's lock of the executable is held. */
static ds_result ds__cpu_submit_launch(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_exec *x = op->u.graph.exec;
    ds_result r = x->hosts ? ds__cpu_host_ready() : DS_OK;
    if (r == DS_OK && x->polls)
        r = ds__cpu_poller_start();
    ds__cpu_patch *patch = NULL;
    if (r == DS_OK)
        r = ds__cpu_plan_refresh(x, &patch);
    if (r < 0)
        return r;
    r = ds__cpu_is_direct(x, s, &patch) ? ds__cpu_submit_direct(s, op, patch)
                                        : ds__cpu_submit_lanes(s, op, patch);
    if (DS__UNLIKELY(r < 0 && patch)) { /* the plan lacks its changes now */
        ds__host_free(patch);
        ds__cpu_exec_changed(x);
    }
    return r;
}

/* Makes the plan of an executable that has changed. The core's lock of the executable is held. */
static ds_result ds__cpu_submit_upload(const ds__op *op) {
    return ds__cpu_plan_refresh(op->u.graph.exec, NULL);
}

/* Starts a lane. No thread runs the lane, or a thread that has emptied it will see the new
   operations. hold_first: if the first operation is a wait, the lane is parked without a thread. */
static void ds__cpu_lane_start(ds__cpu_stream *lane, int hold_first) {
    uint32_t idle = DS__CPU_IDLE;
    ds__op *op = (ds__op *)(void *)(lane->head->data);
    /* a worker would only park the lane */
    if (hold_first && op->kind == DS__CPU_OP_LANE_WAIT &&
        atomic_compare_exchange_strong(&lane->state, &idle, DS__CPU_RUNNING)) {
        ds__cpu_stream *on = op->u.wait.stream;
        if (ds__cpu_park(lane, on, on->lane_base + op->u.wait.upto))
            return;
        atomic_store(&lane->state, DS__CPU_READY);
        ds__cpu_push_ready(lane);
        return;
    }
    ds__cpu_kick(lane);
}

/* Ends the failure of a stream without pending work. Numbers that have failed stay failed; later
   operations run. */
static void ds__cpu_forgive(ds__cpu_stream *s) {
    ds__cpu_stays_failed(s, atomic_load(&s->failure), atomic_load(&s->failed_from),
                         atomic_load(&s->done));
    atomic_store(&s->failure, NULL);
}

/* Returns the id of the launch of a lane; 0: it has no record. *out_stream: the handle of its
   stream. */
static uint64_t ds__cpu_launch_id(const ds__cpu_stream *s, uint64_t *out_stream) {
    *out_stream = s->launch->stream;
    return s->launch->id;
}

/* Lets waiting threads run the lanes of a launch from now on, or (offer 0) not any more. The
   stream runs the only lane of an executable itself. The caller owns the stream. */
static void ds__cpu_launch_offer(ds__cpu_stream *s, ds__cpu_launch *run, int offer) {
    if (run->exec->lanes < 2)
        return;
    ds__spinlock_lock(&ds__cpu.lock);
    atomic_store_explicit(&s->started, offer ? run : NULL, memory_order_relaxed);
    ds__spinlock_unlock(&ds__cpu.lock);
}

/* Returns a lane of a launch in the lists of a group, or NULL. Looks at few streams, the latest
   first: the owner of the stream takes the lanes in their order. The group's lock is held. */
static ds__cpu_stream *ds__cpu_launch_find(const ds__cpu_group *g, const ds__cpu_launch *run) {
    int looks = 0;
    for (int level = 0; level < DS__CPU_LEVELS; level++)
        for (ds__cpu_stream *s = g->tail[level]; s && looks < 64; s = s->prev, looks++)
            if (s->kind == DS__STREAM_LANE && s->launch == run)
                return s;
    return NULL;
}

/* Takes a ready lane of a launch; the caller becomes its owner. NULL: none is ready. */
static ds__cpu_stream *ds__cpu_launch_take(const ds__cpu_launch *run) {
    ds__cpu_stream *lane = NULL;
    for (int i = 0; i < ds__cpu.groups && !lane; i++) {
        ds__cpu_group *g = &ds__cpu.ready[i];
        if (!atomic_load_explicit(&g->mask, memory_order_relaxed))
            continue;
        ds__spinlock_lock(&g->lock);
        lane = ds__cpu_launch_find(g, run);
        if (lane) {
            ds__cpu_unlink_ready(g, lane);
            atomic_store_explicit(&lane->state, DS__CPU_RUNNING, memory_order_relaxed);
        }
        ds__spinlock_unlock(&g->lock);
    }
    return lane;
}

/* Runs a ready lane of the launch that the stream has started, on the caller's thread, which waits
   for the stream to pass `upto`. The launch stays while the pool's lock is held, then because the
   lane is not done. Returns 0 if there is none. */
static int ds__cpu_launch_help(ds__cpu_stream *s, uint64_t upto) {
    ds__cpu_stream *lane = NULL;
    if (ds__cpu_ready() == 0)
        return 0;
    ds__spinlock_lock(&ds__cpu.lock);
    const ds__cpu_launch *run = atomic_load_explicit(&s->started, memory_order_relaxed);
    /* otherwise the launch is that of a later operation */
    if (run && atomic_load_explicit(&s->done, memory_order_relaxed) < upto)
        lane = ds__cpu_launch_take(run);
    ds__spinlock_unlock(&ds__cpu.lock);
    if (!lane)
        return 0;
    ds__user_code outer = ds__user_code_begin();
    ds__cpu_run(NULL, lane, UINT64_MAX);
    ds__user_code_end(&outer);
    atomic_fetch_add_explicit(&ds__cpu.helped, 1, memory_order_relaxed);
    return 1;
}

/* Gives the lanes their operations, and starts them. The owner of the stream runs the first lane
   itself, unless more urgent streams are ready. */
static void ds__cpu_launch_start(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_launch *run) {
    ds__cpu_exec *x = run->exec;
    ds__cpu_failure *f = atomic_load_explicit(&s->failure, memory_order_relaxed);
    run->stream = ds__cpu_handle(s);
    run->id =
        s->kind == DS__STREAM_LANE ? ds__cpu_launch_id(s, &run->stream) : s->note.correlation_id;
    for (uint32_t i = 0; i < x->lanes; i++) {
        ds__cpu_stream *lane = x->lane[i];
        lane->lane_base = x->base[i] + run->round * x->operations[i];
        lane->launch = run;
        lane->head = run->plan->block[i];
        lane->head_at = 0;
        lane->share = s->share;
        lane->note = (ds__activity_note){ .external_id = i + 1 };
        if (s->virt)
            lane->virt->time = s->virt->time;
        if (!(x->flags & DS_GRAPH_USE_NODE_PRIORITY))
            atomic_store_explicit(&lane->level,
                                  atomic_load_explicit(&s->level, memory_order_relaxed),
                                  memory_order_relaxed);
        if (f)
            ds__cpu_fail_stream(lane, f, lane->lane_base + 1);
        /* the failure came from the stream of an earlier launch */
        else if (atomic_load(&lane->failure) && !atomic_load(&ds__cpu.device[lane->device].failure))
            ds__cpu_forgive(lane);
    }
    uint32_t ready = ds__cpu_ready_beside(s);
    int nest = ds__tls.nested < DS__CPU_NESTED && !ds__cpu.seed &&
               !(ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1));
    ds__cpu_launch_offer(s, run, 1);
    for (uint32_t i = 0; i < x->lanes; i++) {
        atomic_store(&x->lane[i]->submitted, ds__cpu_lane_end(x, i, run->round));
        if (i > 0 || !nest)
            ds__cpu_lane_start(x->lane[i], 1);
    }
    uint32_t idle = DS__CPU_IDLE;
    if (x->lanes == 0 || !nest)
        return;
    /* the thread that has emptied the lane continues with it */
    if (!atomic_compare_exchange_strong(&x->lane[0]->state, &idle, DS__CPU_RUNNING))
        return;
    ds__tls.nested++;
    ds__cpu_run(w, x->lane[0], UINT64_MAX);
    ds__tls.nested--;
}

/* Runs a launch: waits for its turn, starts the lanes, and waits for all of them. DS__CPU_GONE: the
   stream is parked, and comes to the launch again. */
static int ds__cpu_launch_run(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_launch *run,
                              uint64_t number, int who) {
    ds__cpu_exec *x = run->exec;
    uint64_t turn = x->gate_base + run->ticket;
    if (!run->started) {
        if (atomic_load_explicit(&x->gate->done, memory_order_acquire) < turn &&
            ds__cpu_park(s, x->gate, turn))
            return DS__CPU_GONE;
        run->started = 1;
        ds__cpu_patch_apply(run->plan, run->patch);
        run->patch = NULL;
        ds__cpu_after(s, x->gate, turn);
        ds__cpu_launch_start(w, s, run);
    }
    for (; run->next < x->lanes; run->next++) {
        ds__cpu_stream *lane = x->lane[run->next];
        uint64_t end = ds__cpu_lane_end(x, run->next, run->round);
        if (atomic_load_explicit(&lane->done, memory_order_acquire) < end &&
            !(who == DS__CPU_WORK && ds__cpu_run_first(w, s, lane, end)) &&
            ds__cpu_park(s, lane, end))
            return DS__CPU_GONE;
        ds__cpu_after(s, lane, end);
    }
    ds__cpu_launch_offer(s, run, 0);
    for (uint32_t i = 0; i < x->lanes; i++) {
        ds__cpu_failure *f = ds__cpu_failed(x->lane[i], ds__cpu_lane_end(x, i, run->round));
        if (f)
            ds__cpu_fail_stream(s, f, number);
    }
    atomic_store(&x->gate->submitted, turn + 1);
    if (s->virt)
        atomic_store(&x->gate->virt->end, s->virt->time);
    ds__cpu_pass(x->gate, turn + 1);
    return DS__CPU_EMPTY;
}

static int ds__cpu_launch_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                               int who) {
    ds__cpu_launch *run = op->u.graph.exec;
    if (op->flags & DS__CPU_DIRECT)
        return ds__cpu_direct_step(w, s, op, number, who);
    int result = ds__cpu_launch_run(w, s, run, number, who);
    if (result == DS__CPU_EMPTY)
        ds__cpu_launch_destroy(run);
    return result;
}

/* Returns the body that the word selects, or NULL. */
static ds__cpu_exec *ds__cpu_condition_select(const ds__cpu_condition *c) {
    int reaches = ds__cpu_reach_begin_at(c->word);
    uint32_t word = __atomic_load_n(c->word, __ATOMIC_ACQUIRE);
    if (DS__UNLIKELY(reaches))
        ds__cpu_reach_end();
    if (c->kind == DS_CONDITION_IF)
        word = !word;
    else if (c->kind == DS_CONDITION_WHILE)
        word = word ? 0 : c->count;
    return word < c->count ? c->body[word] : NULL;
}

/* Runs the bodies of a conditional node, one launch after the other. DS__CPU_GONE: the stream is
   parked, and comes to the node again. DS__CPU_MORE: likewise, so that other streams get their
   turn. On a dry device, whose kernels do not change the word, a body runs once. */
static int ds__cpu_condition_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                                  uint64_t number, int who) {
    ds__cpu_condition *c = op->u.own.ptr;
    for (uint32_t runs = 1;; runs++) {
        if (!c->running) {
            ds__cpu_exec *x = atomic_load(&s->failure) ? NULL : ds__cpu_condition_select(c);
            if (!x)
                return DS__CPU_EMPTY;
            c->run = (ds__cpu_launch){
                .exec = x, .plan = x->plan, .ticket = x->launches++, .round = x->rounds++
            };
            c->running = 1;
        }
        if (ds__cpu_launch_run(w, s, &c->run, number, who) == DS__CPU_GONE)
            return DS__CPU_GONE;
        c->running = 0;
        if (c->kind != DS_CONDITION_WHILE || ds__cpu_dry_run())
            return DS__CPU_EMPTY;
        if (runs % DS__CPU_BATCH == 0)
            return DS__CPU_MORE;
    }
}

/* Runs an operation that only lanes have: a record or wait of an event node, or a wait for another
   lane. */
static int ds__cpu_lane_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                             uint64_t number, int failed, int who) {
    ds__cpu_launch *run = s->launch;
    ds__cpu_token t = { op->u.wait.stream, 0 };
    if (op->kind == DS__CPU_OP_NODE_RECORD) {
        ds__cpu_stamp *stamp = run->stamp[op->u.wait.upto];
        if (stamp && !failed)
            atomic_store_explicit(&stamp->ns, ds__cpu_now(s), memory_order_release);
        if (run->shared && run->shared[op->u.wait.upto])
            ds__cpu_progress_pass(run->shared[op->u.wait.upto], number, failed);
        return DS__CPU_EMPTY; /* the launch drops the reference to the stamp */
    }
    if (op->kind == DS__CPU_OP_NODE_WAIT)
        t = run->token[op->u.wait.upto];
    else
        t.upto = t.stream->lane_base + op->u.wait.upto;
    return t.stream ? ds__cpu_wait_step(w, s, t.stream, t.upto, number, who) : DS__CPU_EMPTY;
}

#endif
