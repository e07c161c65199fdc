/* cpu/run.h - execution of a stream's operations.

   Takes operations from a stream and runs them in order. ds__cpu_run_some is the loop,
   ds__cpu_step runs one operation, and ds__cpu_run also passes the stream on afterwards.
   ds__cpu_head is the next operation in the queue.

   Invariants: the caller owns the stream. `done` grows by one after each operation. After
   DS__CPU_GONE the stream belongs to another thread, and the operation has not been passed. On a
   failed stream kernels, copies, fills and host functions are skipped, but passed; callbacks and
   frees still run. At most DS__CPU_NESTED streams run inside one another on a thread.
   Locks: no lock of the driver is held while an operation runs. A change of owner takes
   the lock of a group of workers, a pass with waiters `wait_lock`.
   Threads: a worker or a waiting host thread (DS__CPU_WORK), a thread for host functions
   (DS__CPU_HOST), or the submitter in inline mode (DS__CPU_ALL). Different streams run
   concurrently. */
#ifndef DS__CPU_RUN_H
#define DS__CPU_RUN_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "scheduler.h"
#include "copy.h"
#include "kernel.h"
#include "host_func.h"
#include "reach.h"
#include "value.h"
#include "clock.h"

/* Drops a reference to a stamp, which may be NULL. The last one returns it to the pool. */
static void ds__cpu_stamp_unref(ds__cpu_stamp *stamp) {
    if (!stamp || atomic_fetch_sub_explicit(&stamp->refs, 1, memory_order_acq_rel) != 1)
        return;
    ds__spinlock_lock(&ds__cpu.object_lock);
    stamp->next = ds__cpu.free_stamps;
    ds__cpu.free_stamps = stamp;
    ds__spinlock_unlock(&ds__cpu.object_lock);
}

/* Returns the next operation in the queue. At the end of a block, the head moves to the next block,
   and the old one goes to the producer or to the pool. */
static ds__op *ds__cpu_head(ds__cpu_stream *s) {
    /* not `data[head_at]`: the operations of a lane are in one piece, longer than a block */
    ds__op *op = (ds__op *)(void *)((char *)s->head + offsetof(ds__cpu_block, data) + s->head_at);
    if (DS__UNLIKELY(op->kind == DS__OP_JUMP)) {
        ds__cpu_block *old = s->head;
        ds__cpu_block *none = NULL;
        s->head = old->next;
        s->head_at = 0;
        if (!atomic_compare_exchange_strong_explicit(&s->spare, &none, old, memory_order_acq_rel,
                                                     memory_order_relaxed))
            ds__cpu_block_free(old);
        op = (ds__op *)(void *)s->head->data;
    }
    return op;
}

/* Results of a run: the stream is empty, belongs to another thread, or has operations left. */
enum { DS__CPU_EMPTY, DS__CPU_GONE, DS__CPU_MORE };

/* The thread that runs a stream: a worker or a waiting thread, which runs no host functions; a
   thread for host functions, which runs only these; or the submitter in inline mode. */
enum { DS__CPU_WORK, DS__CPU_HOST, DS__CPU_ALL };

static int ds__cpu_run_some(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto, int who);

/* Makes a stream that the caller owns ready (result DS__CPU_MORE), or lets the worker poll it, or
   makes it idle (DS__CPU_EMPTY). w: NULL if the caller is not a worker. */
static void ds__cpu_give_up(ds__cpu_worker *w, ds__cpu_stream *s, int result) {
    if (result == DS__CPU_MORE) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    } else if (w && w->polled_count < DS__CPU_POLL_SLOTS && ds__cpu_spin() && !ds__cpu.seed &&
               s->kind != DS__STREAM_LANE &&
               !atomic_load_explicit(&s->closing, memory_order_relaxed)) {
        atomic_store_explicit(&w->polled[w->polled_count++], s, memory_order_release);
        atomic_store(&s->state, DS__CPU_POLLED);
    } else {
        ds__cpu_go_idle(s);
    }
}

/* Makes a stream that was aside ready if it has work; else the worker polls it. */
static void ds__cpu_give_up_aside(ds__cpu_worker *w, ds__cpu_stream *s) {
    ds__cpu_give_up(w, s, ds__cpu_has_work(s) ? DS__CPU_MORE : DS__CPU_EMPTY);
}

/* Keeps a stream that the worker owns, because the stream that waited for it probably waits again
   soon. Two streams that wait for each other by turns then change no state and take no lock. A
   stream is aside only during the run of another stream: ds__cpu_run and ds__cpu_long give it up,
   and the monitor if that run is stuck. */
static void ds__cpu_set_aside(ds__cpu_worker *w, ds__cpu_stream *s) {
    _Atomic(ds__cpu_stream *) *slot = NULL;
    w->has_aside = 1;
    for (int i = 0; i < DS__CPU_ASIDE_SLOTS && !slot; i++)
        if (!atomic_load_explicit(&w->aside[i], memory_order_relaxed))
            slot = &w->aside[i];
    if (slot) { /* only this thread fills slots */
        atomic_store_explicit(slot, s, memory_order_release);
        return;
    }
    slot = &w->aside[w->aside_next++ % DS__CPU_ASIDE_SLOTS];
    ds__cpu_stream *old = atomic_exchange(slot, s);
    if (old)
        ds__cpu_give_up_aside(w, old);
}

/* Gives up the streams that are aside: those with work become ready, the others are polled. */
static void ds__cpu_end_aside(ds__cpu_worker *w) {
    w->has_aside = 0;
    for (int i = 0; i < DS__CPU_ASIDE_SLOTS; i++) {
        ds__cpu_stream *s = ds__cpu_pop_aside(w, i);
        if (s)
            ds__cpu_give_up_aside(w, s);
    }
}

/* Returns 1 if the stream was aside. The worker owns it again, to run it. */
static int ds__cpu_take_aside(ds__cpu_worker *w, ds__cpu_stream *s) {
    for (int i = 0; i < DS__CPU_ASIDE_SLOTS; i++)
        if (atomic_load_explicit(&w->aside[i], memory_order_relaxed) == s)
            return atomic_exchange(&w->aside[i], NULL) == s;
    return 0;
}

/* Runs the stream `on` up to the number for which stream s waits, on the thread that owns s. This
   saves parking s and waking it. Returns 0 if `on` has not passed the number: another thread has
   it, a more urgent stream is ready, or too many streams run inside one another. */
static int ds__cpu_run_first(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on,
                             uint64_t upto) {
    uint32_t state = atomic_load(&on->state);
    uint32_t ready = ds__cpu_ready_beside(s);
    int mine = 0;
    if (ds__tls.nested >= DS__CPU_NESTED || ds__cpu.seed ||
        (ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)))
        return 0;
    if (state == DS__CPU_RUNNING)
        mine = w && w->has_aside && ds__cpu_take_aside(w, on);
    else if (state == DS__CPU_POLLED)
        mine = atomic_compare_exchange_strong(&on->state, &state, DS__CPU_RUNNING);
    else if (state == DS__CPU_READY)
        mine = ds__cpu_take_ready(on);
    if (!mine)
        return 0;
    ds__tls.nested++;
    if (w && !ds__cpu.fabric && on->kind != DS__STREAM_LANE) {
        if (ds__cpu_run_some(w, on, upto, DS__CPU_WORK) != DS__CPU_GONE)
            ds__cpu_set_aside(w, on);
    } else {
        ds__cpu_run(w, on, upto);
    }
    ds__tls.nested--;
    return atomic_load_explicit(&on->done, memory_order_acquire) >= upto;
}

/* Waits until `on` has passed `upto`, and takes over the failure of that number. DS__CPU_GONE: the
   stream is parked. */
static int ds__cpu_wait_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on,
                             uint64_t upto, uint64_t number, int who) {
    if (atomic_load_explicit(&on->done, memory_order_acquire) < upto &&
        !(who == DS__CPU_WORK && ds__cpu_run_first(w, s, on, upto)) && ds__cpu_park(s, on, upto))
        return DS__CPU_GONE;
    ds__cpu_failure *f = ds__cpu_failed(on, upto);
    if (f)
        ds__cpu_fail_stream(s, f, number);
    ds__cpu_after(s, on, upto);
    return DS__CPU_EMPTY;
}

/* Begins the work of another library, then waits for it. */
static int ds__cpu_remote_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                               int failed, int who) {
    ds__remote *begin = op->u.remote.begin;
    op->u.remote.begin = NULL; /* the step runs again if the stream is parked */
    if (begin && begin->begin_fn(begin, failed ? DS__REMOTE_FAILED : DS__REMOTE_ARRIVED))
        return DS__CPU_EMPTY;
    if (failed || !op->u.remote.timeline)
        return DS__CPU_EMPTY;
    return ds__cpu_wait_step(w, s, op->u.remote.timeline, op->u.remote.upto, number, who);
}

/* Returns 1 if the stream has failed; a failure of its device counts from this number on. */
static inline int ds__cpu_adopt_failure(ds__cpu_stream *s, uint64_t number) {
    if (DS__UNLIKELY(!atomic_load_explicit(&s->failure, memory_order_relaxed))) {
        ds__cpu_failure *f =
            atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
        if (DS__UNLIKELY(f != NULL))
            ds__cpu_fail_stream(s, f, number);
    }
    return atomic_load_explicit(&s->failure, memory_order_relaxed) != NULL;
}

/* Runs a kernel, copy or fill. dry: only kernels whose time is not modelled run. */
static inline void ds__cpu_work_step(ds__cpu_worker *w, ds__cpu_stream *s, const ds__op *op,
                                     uint64_t number, int dry) {
    if (op->kind != DS__OP_KERNEL) {
        if (!dry)
            ds__cpu_move(w, s, op);
        return;
    }
    if (dry && op->u.kernel.kernel->bytes_fn)
        return;
    int status = ds__cpu_kernel(w, s, op);
    if (DS__UNLIKELY(status != 0))
        ds__cpu_kernel_failed(s, op, status, number);
}

/* Runs a host function or callback. A worker hands the stream over instead: DS__CPU_GONE. */
static int ds__cpu_host_step(ds__cpu_stream *s, const ds__op *op, uint64_t number, int who) {
    if (who == DS__CPU_WORK) {
        ds__cpu_to_host(s);
        return DS__CPU_GONE;
    }
    ds__cpu_host_op(s, op, number);
    return DS__CPU_EMPTY;
}

/* Invokes a closure unless the stream has failed, and its destructor. */
static void ds__cpu_closure_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                                 int failed) {
    int status = 0;
    void *payload =
        op->u.closure.size ? (char *)op + DS__CPU_ARGS_AT : (char *)op->u.closure.payload;
    /* closures take any time: those after a long one, and some others, are announced and timed */
    int timed = w && (w->long_closures || (w->closures++ & (DS__CPU_CLOSURES - 1)) == 0);
    uint64_t begin = timed ? ds__now_ns() : 0;
    if (timed)
        ds__cpu_long(w, 1);
    ds__handed_over(DS__SEEN_ACQUIRE, op->u.closure.payload, ds__cpu_handle(s));
    if (!failed)
        status = op->u.closure.fn(payload);
    if (DS__UNLIKELY(status != 0))
        ds__cpu_kernel_failed(s, op, status, number);
    if (op->u.closure.dtor_fn)
        op->u.closure.dtor_fn(payload);
    ds__handed_over(DS__SEEN_RELEASE, op->u.closure.payload, ds__cpu_handle(s));
    if (!timed)
        return;
    w->long_closures = ds__now_ns() - begin > DS__CPU_LONG_NS;
    ds__cpu_long(w, 0);
}

/* Sets the time stamp of a record; a failed stream leaves it 0. */
static void ds__cpu_record_step(ds__cpu_stream *s, const ds__op *op, int failed) {
    ds__cpu_stamp *stamp = op->u.own.ptr;
    if (!failed)
        atomic_store_explicit(&stamp->ns, ds__cpu_now(s), memory_order_release);
    ds__cpu_stamp_unref(stamp);
}

/* Runs an operation that is neither a kernel nor a copy or fill. */
static int ds__cpu_order_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                              int failed, int who) {
    switch (op->kind) {
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
        return ds__cpu_host_step(s, op, number, who);
    case DS__OP_CLOSURE:
        ds__cpu_closure_step(w, s, op, number, failed);
        break;
    case DS__OP_RECORD:
        ds__cpu_record_step(s, op, failed);
        break;
    case DS__OP_VALUES:
        return ds__cpu_values_step(s, op, failed) ? DS__CPU_EMPTY : DS__CPU_GONE;
    case DS__OP_WAIT:
        return ds__cpu_wait_step(w, s, op->u.wait.stream, op->u.wait.upto, number, who);
    case DS__OP_REMOTE:
        return ds__cpu_remote_step(w, s, op, number, failed, who);
    case DS__CPU_OP_SHARED_RECORD:
        ds__cpu_progress_pass(op->u.own.ptr, number, failed);
        break;
    case DS__OP_GRAPH:
        return ds__cpu_launch_step(w, s, op, number, who);
    case DS__CPU_OP_CONDITION:
        return ds__cpu_condition_step(w, s, op, number, who);
    case DS__CPU_OP_LANE_WAIT:
    case DS__CPU_OP_NODE_RECORD:
    case DS__CPU_OP_NODE_WAIT:
        return ds__cpu_lane_step(w, s, op, number, failed, who);
    /* also on a failed stream, which has skipped all operations that use the memory */
    case DS__CPU_OP_FREE:
        ds__cpu_async_over(op);
        break;
    default:
        break;
    }
    return DS__CPU_EMPTY;
}

/* Runs one operation. DS__CPU_GONE: the stream belongs to another thread now, and the operation is
   not done. DS__CPU_MORE: only the first leg of a copy is over. */
static int ds__cpu_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                        int who) {
    int failed = ds__cpu_adopt_failure(s, number);
    int dry = 0;
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && !failed && who == DS__CPU_WORK) {
        if (ds__cpu_take_time(s, op))
            return DS__CPU_MORE;
        dry = ds__cpu_dry_run();
    }
    if (op->kind != DS__OP_KERNEL && op->kind != DS__OP_COPY && op->kind != DS__OP_FILL)
        return ds__cpu_order_step(w, s, op, number, failed, who);
    if (!failed)
        ds__cpu_work_step(w, s, op, number, dry);
    return DS__CPU_EMPTY;
}

/* Returns 1 if the kernel of a launch has been short so far, and stream and device have not failed.
   */
static inline int ds__cpu_is_known_short(const ds__cpu_stream *s, const ds__op *op) {
    uint64_t estimate = atomic_load_explicit(&op->u.kernel.kernel->estimate, memory_order_relaxed);
    return ds__cpu_runs(estimate) >= 4 && (uint32_t)estimate <= DS__CPU_LONG_NS * 1000u &&
           !atomic_load_explicit(&s->failure, memory_order_relaxed) &&
           !atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_relaxed);
}

/* Returns 1 for a launch of one item of a kernel that has been short so far. Each 256th such launch
   is measured instead. */
static inline int ds__cpu_is_short(const ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    return op->kind == DS__OP_KERNEL && op->u.kernel.items == 1 && (number & 255u) != 0 &&
           !ds__cpu_modes(DS__CPU_SLOWLY) && ds__cpu_is_known_short(s, op);
}

/* Runs and passes a launch for which ds__cpu_is_short returns 1, without a barrier. */
static inline void ds__cpu_run_short(ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    int status = op->u.kernel.kernel->cpu_fn(0, 1, (const char *)op + DS__CPU_ARGS_AT);
    if (DS__UNLIKELY(status != 0))
        ds__cpu_kernel_failed(s, op, status, number);
    s->head_at += (uint32_t)ds__cpu_op_bytes(op);
    ds__cpu_pass_short(s, number);
}

/* Runs any operation, and passes it unless the result is other than DS__CPU_EMPTY. Device memory
   that the operation opened is closed first: a thread that waited for it finds it closed. */
static inline int ds__cpu_run_one(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                                  int who) {
    uint32_t bytes = (uint32_t)ds__cpu_op_bytes(op);
    unsigned slowly = ds__cpu_modes(DS__CPU_SLOWLY);
    int reaches = 0;
    if (DS__UNLIKELY(slowly)) {
        ds__cpu_noted_begin(s, op);
        reaches = ds__cpu_reach_begin_op(op);
    }
    int result = ds__cpu_step(w, s, op, number, who);
    if (DS__UNLIKELY(result != DS__CPU_EMPTY)) {
        if (reaches)
            ds__cpu_reach_end();
        return result;
    }
    s->head_at += bytes;
    if (DS__UNLIKELY(slowly)) {
        if (reaches)
            ds__cpu_reach_end();
        ds__cpu_noted_end(s, op, number);
    }
    ds__cpu_pass(s, number);
    return DS__CPU_EMPTY;
}

/* Returns 1 if the stream must give way after `count` operations: to more urgent streams at once,
   and after each batch to other ready streams and to those that the worker polls or has set aside.
   left: operations are left. w: NULL if the caller is not a worker, and gives way to none. */
static inline int ds__cpu_gives_way(ds__cpu_worker *w, const ds__cpu_stream *s, uint64_t count,
                                    int left) {
    int batch = (count & (DS__CPU_BATCH - 1)) == 0;
    int notices = batch || (ds__cpu.groups > 1 && (count & (DS__CPU_NOTICE - 1)) == 0);
    uint32_t ready = DS__UNLIKELY(notices) ? ds__cpu_ready() : ds__cpu_ready_beside(s);
    return w && left &&
           (ds__cpu.fabric ||
            (ready &&
             ((ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)) ||
              batch || ds__cpu.seed)) ||
            (batch && (w->polled_count > 0 || w->has_aside)));
}

/* Adds to the operations that the statistics count. */
static inline void ds__cpu_count_operations(ds__cpu_worker *w, uint64_t count) {
    if (w)
        atomic_store_explicit(&w->operations,
                              atomic_load_explicit(&w->operations, memory_order_relaxed) + count,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&ds__cpu.other_operations, count, memory_order_relaxed);
}

/* Runs the stream, which the caller owns (RUNNING), up to operation `upto` at most, and not beyond
   the operations submitted when it begins. DS__CPU_EMPTY: these are done, and the caller still owns
   the stream. DS__CPU_MORE: likewise, but operations are left. DS__CPU_GONE: the stream belongs to
   another thread. w: NULL if the caller is not a worker. */
static int ds__cpu_run_some(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto, int who) {
    uint64_t number = atomic_load_explicit(&s->done, memory_order_relaxed);
    uint64_t count = 0;
    int result = DS__CPU_EMPTY;
    uint64_t end = atomic_load_explicit(&s->submitted, memory_order_acquire);
    uint64_t time = 0; /* at which the last operation ended, if it was short and has a note */
    int unfenced = 0;  /* 1: the last operation was passed without a barrier */
    while (number < end) {
        if (DS__UNLIKELY(number >= upto)) {
            result = DS__CPU_MORE;
            break;
        }
        ds__op *op = ds__cpu_head(s);
        if (DS__UNLIKELY(who == DS__CPU_HOST && op->kind != DS__OP_HOST &&
                         op->kind != DS__OP_CALLBACK)) {
            result = DS__CPU_MORE;
            break;
        }
        if (DS__LIKELY(ds__cpu_is_short(s, op, number))) {
            ds__cpu_run_short(s, op, number + 1);
            unfenced = 1;
        } else if (DS__UNLIKELY(op->kind == DS__CPU_OP_NOTE)) {
            if (!ds__cpu_run_note(s, op, number + 1, &time)) {
                number++;
                continue;
            }
            number++;
            unfenced = 1;
        } else {
            if (unfenced)
                ds__cpu_pass(s, number);
            unfenced = 0;
            time = 0;
            result = ds__cpu_run_one(w, s, op, number + 1, who);
            if (DS__UNLIKELY(result != DS__CPU_EMPTY))
                break;
        }
        number++;
        count++;
        if (DS__UNLIKELY(ds__cpu_gives_way(w, s, count, number < end))) {
            w->roams = 1;
            result = DS__CPU_MORE;
            break;
        }
    }
    if (unfenced)
        ds__cpu_pass(s, number);
    ds__cpu_count_operations(w, count);
    return result;
}

/* Runs a stream that the caller owns up to `upto`, and then makes it ready or idle, or lets the
   worker poll it. w: NULL if the caller is not a worker. Returns 1. */
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    uint32_t beat =
        w && ds__tls.nested == 0 ? atomic_load_explicit(&w->beat, memory_order_relaxed) + 1 : 0;
    if (beat) {
        /* the monitor looks at the stream */
        atomic_store_explicit(&w->running, s, memory_order_release);
        atomic_store_explicit(&w->beat, beat, memory_order_relaxed);
    }
    int result = ds__cpu_run_some(w, s, upto, DS__CPU_WORK);
    if (beat) {
        if (w->has_aside)
            ds__cpu_end_aside(w);
        atomic_store_explicit(&w->beat, beat + 1, memory_order_relaxed);
    }
    if (result != DS__CPU_GONE)
        ds__cpu_give_up(w, s, result);
    return 1;
}

#endif
