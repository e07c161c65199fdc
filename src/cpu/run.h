/* cpu/run.h - execution of a stream's operations.

   Takes operations from a stream and runs them in order. ds__cpu_run_some is the loop,
   ds__cpu_step runs one operation, and ds__cpu_run also passes the stream on afterwards.
   ds__cpu_head is the next operation in the queue.

   Invariants: the caller owns the stream. `done` grows by one after each operation. After
   DS__CPU_GONE the stream belongs to another thread, and the operation has not been passed. On a
   failed stream kernels, copies, fills and host functions are skipped, but passed; callbacks and
   frees still run. At most DS__CPU_NESTED streams run inside one another on a thread.
   Locks: no lock of the driver is held while an operation runs. A change of owner takes the
   pool's lock, a pass with waiters `wait_lock`.
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
#include "clock.h"

static void ds__cpu_stamp_give(ds__cpu_stamp *stamp) {
    if (!stamp || atomic_fetch_sub_explicit(&stamp->refs, 1, memory_order_acq_rel) != 1)
        return;
    ds__lock_take(&ds__cpu.object_lock);
    stamp->next = ds__cpu.free_stamps;
    ds__cpu.free_stamps = stamp;
    ds__lock_give(&ds__cpu.object_lock);
}

/* The next operation in the queue; steps over the end of a block. */
static ds__op *ds__cpu_head(ds__cpu_stream *s) {
    /* a lane's piece is longer than a block */
    ds__op *op = (ds__op *)(void *)((char *)s->head + offsetof(ds__cpu_block, data) + s->head_at);
    if (DS__UNLIKELY(op->kind == DS__OP_JUMP)) {
        ds__cpu_block *old = s->head;
        ds__cpu_block *none = NULL;
        s->head = old->next;
        s->head_at = 0;
        if (!atomic_compare_exchange_strong_explicit(&s->spare, &none, old, memory_order_acq_rel,
                                                     memory_order_relaxed))
            ds__cpu_block_give(old);
        op = (ds__op *)(void *)s->head->data;
    }
    return op;
}

/* What became of the stream that ds__cpu_run worked on. */
enum { DS__CPU_EMPTY, DS__CPU_GONE, DS__CPU_MORE };

/* Who runs a stream: a worker or a waiting thread (not the user's host functions), a thread for
   host functions (only those), or the submitter itself in inline mode. */
enum { DS__CPU_WORK, DS__CPU_HOST, DS__CPU_ALL };

/* The stream `on`, for which stream s has to wait, is free to be run: the thread that has s runs
   it up to there, which saves parking one stream and waking it for the other. Not past more
   urgent ready streams. 0: it could not. */
static int ds__cpu_run_first(ds__cpu_worker *w, ds__cpu_stream *s, ds__cpu_stream *on,
                             uint64_t upto) {
    uint32_t state = atomic_load(&on->state);
    uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
    int mine = 0;
    if (ds__tls.nested >= DS__CPU_NESTED || ds__cpu.seed ||
        (ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)))
        return 0;
    if (state == DS__CPU_POLLED)
        mine = atomic_compare_exchange_strong(&on->state, &state, DS__CPU_RUNNING);
    else if (state == DS__CPU_READY)
        mine = ds__cpu_take_ready(on);
    if (!mine)
        return 0;
    ds__tls.nested++;
    ds__cpu_run(w, on, upto);
    ds__tls.nested--;
    return atomic_load_explicit(&on->done, memory_order_acquire) >= upto;
}

/* The stream waits until `on` has passed `upto`. */
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

/* Runs one operation. DS__CPU_GONE: the stream now belongs to somebody else and the operation is
   not done. */
static int ds__cpu_step(ds__cpu_worker *w, ds__cpu_stream *s, ds__op *op, uint64_t number,
                        int who) {
    if (DS__UNLIKELY(!atomic_load_explicit(&s->failure, memory_order_relaxed))) {
        ds__cpu_failure *f =
            atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
        if (DS__UNLIKELY(f != NULL))
            ds__cpu_fail_stream(s, f, number);
    }
    int failed = atomic_load_explicit(&s->failure, memory_order_relaxed) != NULL;
    int dry = 0;
    if (DS__UNLIKELY(ds__cpu.fabric != NULL) && !failed && who == DS__CPU_WORK) {
        if (ds__cpu_take_time(s, op))
            return DS__CPU_MORE;
        dry = (ds__cpu.fabric->flags & DS_CPU_DRY) != 0;
    }
    switch (op->kind) {
    case DS__OP_KERNEL:
        if (!failed && !(dry && op->u.kernel.kernel->bytes_fn)) {
            int status = ds__cpu_kernel(w, s, op);
            if (DS__UNLIKELY(status != 0))
                ds__cpu_kernel_failed(s, op, status, number);
        }
        break;
    case DS__OP_COPY:
    case DS__OP_FILL:
        if (!failed && !dry)
            ds__cpu_move(w, s, op);
        break;
    case DS__OP_HOST:
    case DS__OP_CALLBACK:
        if (who == DS__CPU_WORK) {
            ds__cpu_to_host(s);
            return DS__CPU_GONE;
        }
        ds__cpu_host_op(s, op, number);
        break;
    case DS__OP_RECORD: {
        ds__cpu_stamp *stamp = op->u.own.ptr;
        if (!failed)
            atomic_store_explicit(&stamp->ns, ds__cpu_now(s), memory_order_release);
        ds__cpu_stamp_give(stamp);
        break;
    }
    case DS__OP_WAIT:
        return ds__cpu_wait_step(w, s, op->u.wait.stream, op->u.wait.upto, number, who);
    case DS__CPU_OP_SHARED_RECORD:
        ds__cpu_lane_pass(op->u.own.ptr, number, failed);
        break;
    case DS__OP_GRAPH:
        return ds__cpu_launch_step(w, s, op, number, who);
    case DS__CPU_OP_LANE_WAIT:
    case DS__CPU_OP_NODE_RECORD:
    case DS__CPU_OP_NODE_WAIT:
        return ds__cpu_lane_step(w, s, op, number, failed, who);
    /* also on a stream that failed: what used it was skipped */
    case DS__CPU_OP_FREE:
        ds__cpu_async_over(op);
        break;
    default:
        break;
    }
    return DS__CPU_EMPTY;
}

/* A launch of one item of a kernel that has been short so far, and nothing has failed; now and
   then not, to measure it. */
static inline int ds__cpu_is_short(const ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    if (op->kind != DS__OP_KERNEL || op->u.kernel.items != 1 || (number & 255u) == 0 ||
        ds__cpu.fabric)
        return 0;
    uint64_t estimate = atomic_load_explicit(&op->u.kernel.kernel->estimate, memory_order_relaxed);
    return ds__cpu_runs(estimate) >= 4 && (uint32_t)estimate <= DS__CPU_LONG_NS * 1000u &&
           !atomic_load_explicit(&s->failure, memory_order_relaxed) &&
           !atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_relaxed);
}

/* Runs the stream, which the caller owns (RUNNING), up to operation `upto` at most and not
   beyond what was submitted when it began. DS__CPU_EMPTY: all that is done and the caller still
   owns it. DS__CPU_MORE: likewise, but operations are left. w: NULL when the caller is not a
   worker. */
static int ds__cpu_run_some(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto, int who) {
    uint64_t number = atomic_load_explicit(&s->done, memory_order_relaxed);
    uint64_t count = 0;
    int result = DS__CPU_EMPTY;
    uint64_t end = atomic_load_explicit(&s->submitted, memory_order_acquire);
    int unfenced = 0; /* the last operation was passed without a barrier */
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
            int status = op->u.kernel.kernel->cpu_fn(0, 1, (const char *)op + DS__CPU_ARGS_AT);
            if (DS__UNLIKELY(status != 0))
                ds__cpu_kernel_failed(s, op, status, number + 1);
            s->head_at += (uint32_t)ds__cpu_op_bytes(op);
            ds__cpu_pass_short(s, ++number);
            unfenced = 1;
        } else {
            if (unfenced)
                ds__cpu_pass(s, number);
            unfenced = 0;
            uint32_t bytes = (uint32_t)ds__cpu_op_bytes(op);
            result = ds__cpu_step(w, s, op, number + 1, who);
            if (DS__UNLIKELY(result != DS__CPU_EMPTY))
                break;
            s->head_at += bytes;
            if (DS__UNLIKELY(s->virt != NULL))
                ds__cpu_virtual_pass(s);
            ds__cpu_pass(s, ++number);
        }
        count++;
        /* more urgent streams at once, others after a batch; what this worker polls itself is
           looked at every batch */
        uint32_t ready = atomic_load_explicit(&ds__cpu.ready_mask, memory_order_relaxed);
        int batch = (count & (DS__CPU_BATCH - 1)) == 0;
        if (DS__UNLIKELY(
                w && number < end &&
                (ds__cpu.fabric ||
                 (ready &&
                  ((ready & ((1u << atomic_load_explicit(&s->level, memory_order_relaxed)) - 1)) ||
                   batch || ds__cpu.seed)) ||
                 (batch && w->polled_count > 0)))) {
            result = DS__CPU_MORE;
            break;
        }
    }
    if (unfenced)
        ds__cpu_pass(s, number);
    if (w)
        atomic_store_explicit(&w->operations,
                              atomic_load_explicit(&w->operations, memory_order_relaxed) + count,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&ds__cpu.other_operations, count, memory_order_relaxed);
    return result;
}

/* Runs an owned stream and settles what becomes of it. Returns 1 when it did something. */
static int ds__cpu_run(ds__cpu_worker *w, ds__cpu_stream *s, uint64_t upto) {
    uint32_t beat =
        w && ds__tls.nested == 0 ? atomic_load_explicit(&w->beat, memory_order_relaxed) + 1 : 0;
    if (beat) {
        atomic_store_explicit(&w->running, s, memory_order_relaxed);
        atomic_store_explicit(&w->beat, beat, memory_order_relaxed);
    }
    int result = ds__cpu_run_some(w, s, upto, DS__CPU_WORK);
    if (beat)
        atomic_store_explicit(&w->beat, beat + 1, memory_order_relaxed);
    if (result == DS__CPU_MORE) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    } else if (result == DS__CPU_EMPTY) {
        if (w && w->polled_count < DS__CPU_POLL_SLOTS && !ds__cpu.no_spin && !ds__cpu.seed &&
            s->kind != DS__STREAM_LANE &&
            !atomic_load_explicit(&s->closing, memory_order_relaxed)) {
            atomic_store_explicit(&w->polled[w->polled_count++], s, memory_order_relaxed);
            atomic_store(&s->state, DS__CPU_POLLED);
        } else {
            ds__cpu_go_idle(s);
        }
    }
    return 1;
}

#endif
