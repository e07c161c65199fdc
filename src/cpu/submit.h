/* cpu/submit.h - submission of stream work.

   Implements the entry `submit` (ds__cpu_submit), and enqueues operations (ds__cpu_enqueue).
   Orders blocking streams against the legacy stream, and runs small copies on an idle stream at
   once (ds__cpu_at_once, ds__cpu_run_together). ds__cpu_mark returns the number that an event
   stands for.

   Invariants: no operation is enqueued on a stream whose `closing` is set. A blocking stream and
   the legacy stream of its device wait for each other's operations as of the submission;
   `legacy_seen` and `seen_by_legacy` are the numbers that are awaited already. A small copy runs
   at once only if nothing is pending on the stream, nor on the streams that it must wait for. It
   counts as submitted before it runs, so later operations of these streams wait for it.
   Locks: the device's legacy lock, then the stream's put lock, then the device's lock.
   ds__cpu_at_once and ds__cpu_run_together only try put locks; copies and sums of limited size
   run under them, but not under the legacy lock. Waits and inline mode run after these locks are
   released, but the core may hold the lock of an executable.
   Threads: caller's threads, any number at once. */
#ifndef DS__CPU_SUBMIT_H
#define DS__CPU_SUBMIT_H

#include "types.h"
#include "failure.h"
#include "queue.h"
#include "scheduler.h"
#include "copy.h"
#include "host_func.h"
#include "value.h"
#include "run.h"
#include "wait.h"

/* Reports a failure, and returns its code. */
static ds_result ds__cpu_report(const ds__cpu_failure *f) {
    return ds__fail(f->code, "%s", f->text);
}

/* Returns 1 if the stream has work that is not done. */
static inline int ds__cpu_is_pending(const ds__cpu_stream *s) {
    uint64_t tail = atomic_load(&s->submitted);
    return atomic_load(&s->done) < tail;
}

/* Makes the legacy stream wait for the work of the device's blocking streams so far. The legacy
   lock and the put lock are held. */
static ds_result ds__cpu_legacy_gather(ds__cpu_stream *legacy) {
    ds__cpu_device *d = &ds__cpu.device[legacy->device];
    ds_result r = DS_OK;
    ds__spinlock_lock(&d->lock);
    /* blocking streams are the first of the list */
    for (ds__cpu_stream *b = d->streams; b && (b->flags & DS_STREAM_BLOCKING) && r == DS_OK;
         b = b->all_next) {
        if (b == legacy)
            continue;
        uint64_t cause = atomic_load(&b->last_id);
        uint64_t tail = atomic_load(&b->submitted);
        if (tail == b->seen_by_legacy || (atomic_load(&b->done) >= tail && !ds__cpu.fabric))
            continue;
        ds__op wait = { .kind = DS__OP_WAIT };
        wait.u.wait.stream = b;
        wait.u.wait.upto = tail;
        ds__activity_tls.cause = cause;
        r = ds__cpu_put(legacy, &wait);
        ds__activity_tls.cause = 0;
        if (r == DS_OK)
            b->seen_by_legacy = tail;
    }
    ds__spinlock_unlock(&d->lock);
    return r;
}

/* Makes a blocking stream wait for the work of the legacy stream so far. The legacy lock and the
   put lock are held. */
static ds_result ds__cpu_legacy_follow(ds__cpu_stream *s) {
    ds__cpu_stream *legacy = ds__cpu.device[s->device].legacy;
    uint64_t cause = atomic_load(&legacy->last_id);
    uint64_t tail = atomic_load(&legacy->submitted);
    if (tail == s->legacy_seen || (atomic_load(&legacy->done) >= tail && !ds__cpu.fabric))
        return DS_OK;
    ds__op wait = { .kind = DS__OP_WAIT };
    wait.u.wait.stream = legacy;
    wait.u.wait.upto = tail;
    ds__activity_tls.cause = cause;
    ds_result r = ds__cpu_put(s, &wait);
    ds__activity_tls.cause = 0;
    if (r == DS_OK)
        s->legacy_seen = tail;
    return r;
}

/* Takes the locks of a submission. Returns 1 if the stream must be ordered with the legacy stream;
   the device's legacy lock is then held too, and was taken first. */
static int ds__cpu_put_begin(ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    ds__spinlock_lock(&s->put_lock);
    if (DS__LIKELY(!(s->flags & DS_STREAM_BLOCKING)) || !atomic_load(&d->legacy_used))
        return 0;
    ds__spinlock_unlock(&s->put_lock);
    ds__spinlock_lock(&d->legacy_lock);
    ds__spinlock_lock(&s->put_lock);
    return 1;
}

static void ds__cpu_put_end(ds__cpu_stream *s, int with_legacy) {
    ds__spinlock_unlock(&s->put_lock);
    if (with_legacy)
        ds__spinlock_unlock(&ds__cpu.device[s->device].legacy_lock);
}

/* Orders the next operation of the stream with the legacy stream. Both locks are held. */
static ds_result ds__cpu_legacy_order(ds__cpu_stream *s) {
    return s->kind == DS__STREAM_LEGACY ? ds__cpu_legacy_gather(s) : ds__cpu_legacy_follow(s);
}

/* Inline mode: runs the stream on the submitter's thread, or waits for the thread that runs it. */
static void ds__cpu_run_inline(ds__cpu_stream *s, uint64_t number) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING)) {
        ds__user_code outer = ds__user_code_begin();
        int result = ds__cpu_run_some(NULL, s, UINT64_MAX, DS__CPU_ALL);
        ds__user_code_end(&outer);
        if (result != DS__CPU_GONE)
            ds__cpu_go_idle(s);
    }
    ds__cpu_wait(s, number, DS__FOREVER, 1);
}

/* Parks an idle stream, if its next operation is a wait. */
static void ds__cpu_kick_wait(ds__cpu_stream *s) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_load(&s->state) == DS__CPU_IDLE &&
        atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_RUNNING) &&
        !ds__cpu_park_waiting(s))
        ds__cpu_go_idle(s);
}

/* Returns 1 if nothing is noted, no order is explored, and the stream has no order with the legacy
   stream. */
static inline int ds__cpu_is_usual(const ds__cpu_stream *s) {
    return !(s->flags & DS_STREAM_BLOCKING) && !ds__cpu_modes(UINT_MAX);
}

/* Enqueues a launch or a wait on a stream for which ds__cpu_is_usual returns 1. Does the same as
   ds__cpu_enqueue in fewer instructions, and leaves it to the caller to make the stream ready.
   Returns 0 if the operation was not enqueued; ds__cpu_enqueue finds the reason. */
__attribute__((always_inline)) static inline int ds__cpu_put_usual(ds__cpu_stream *s,
                                                                   const ds__op *op, int kind) {
    const size_t wait_bytes = offsetof(ds__op, u) + sizeof op->u.wait;
    ds__op *q = NULL;
    ds__spinlock_lock(&s->put_lock);
    if (DS__LIKELY(!atomic_load_explicit(&s->closing, memory_order_relaxed)))
        q = ds__cpu_room(s, kind == DS__OP_KERNEL ? ds__cpu_op_bytes(op) : wait_bytes);
    if (DS__LIKELY(q != NULL)) {
        if (kind == DS__OP_KERNEL)
            ds__cpu_fill_kernel(q, op);
        else
            memcpy(q, op, wait_bytes);
        ds__cpu_publish(s);
    }
    ds__spinlock_unlock(&s->put_lock);
    return q != NULL;
}

/* Enqueues an operation; *out_number (may be NULL) is its number. If `op` is NULL, only the order
   with the legacy stream is established, and the number is that of the stream's last operation. */
static ds_result ds__cpu_enqueue(ds__cpu_stream *s, const ds__op *op, uint64_t *out_number) {
    ds_result r = DS_OK;
    int legacy = ds__cpu_put_begin(s);
    if (DS__UNLIKELY(atomic_load_explicit(&s->closing, memory_order_relaxed)))
        r = ds__fail(DS_ERR_INVALID_HANDLE, "the native stream was destroyed");
    if (r == DS_OK && DS__UNLIKELY(legacy))
        r = ds__cpu_legacy_order(s);
    if (r == DS_OK && op)
        r = ds__cpu_put(s, op);
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    ds__cpu_put_end(s, legacy);
    if (out_number)
        *out_number = number;
    if (DS__UNLIKELY(ds__cpu.is_inline))
        ds__cpu_run_inline(s, number);
    else if (op && (op->kind == DS__OP_HOST || op->kind == DS__OP_CALLBACK))
        ds__cpu_kick_host(s);
    else if (!op || op->kind != DS__OP_WAIT)
        ds__cpu_kick(s);
    else
        ds__cpu_kick_wait(s);
    return r;
}

/* Returns 1 if the stream must be ordered with the legacy stream of its device. The answer is
   final only under the stream's put lock. */
static inline int ds__cpu_has_legacy_order(const ds__cpu_stream *s) {
    return (s->flags & DS_STREAM_BLOCKING) && atomic_load(&ds__cpu.device[s->device].legacy_used);
}

/* Returns 1 for a copy or fill that the caller may run itself (DS__CPU_INLINE_BYTES). */
static inline int ds__cpu_is_small(const ds__op *op) {
    return ds__op_bytes(op) <= DS__CPU_INLINE_BYTES && !(op->flags & DS__OP_STAGED);
}

/* Takes the put lock, if it is free. *out_legacy 1: the stream must be ordered with the legacy
   stream, and the device's legacy lock is held too. Returns 0, without the locks, if the put lock
   is not free. */
static inline int ds__cpu_put_try(ds__cpu_stream *s, int *out_legacy) {
    ds__spinlock *legacy_lock = &ds__cpu.device[s->device].legacy_lock;
    int legacy = ds__cpu_has_legacy_order(s);
    *out_legacy = legacy;
    if (DS__UNLIKELY(legacy))
        ds__spinlock_lock(legacy_lock);
    if (DS__LIKELY(ds__spinlock_try(&s->put_lock))) {
        if (DS__LIKELY(legacy == ds__cpu_has_legacy_order(s)))
            return 1;
        ds__spinlock_unlock(&s->put_lock);
    }
    if (legacy)
        ds__spinlock_unlock(legacy_lock);
    return 0;
}

/* Returns 1 if the next operation of the stream has nothing to wait for by the order with the
   legacy stream. The device's legacy lock is held, so none of the awaited streams gets new work. */
static int ds__cpu_legacy_drained(const ds__cpu_stream *s) {
    ds__cpu_device *d = &ds__cpu.device[s->device];
    if (s->kind != DS__STREAM_LEGACY)
        return !ds__cpu_is_pending(d->legacy);
    int drained = 1;
    ds__spinlock_lock(&d->lock);
    for (ds__cpu_stream *b = d->streams; b && (b->flags & DS_STREAM_BLOCKING) && drained;
         b = b->all_next)
        drained = !ds__cpu_is_pending(b);
    ds__spinlock_unlock(&d->lock);
    return drained;
}

/* Makes the caller the owner of the stream, if the stream has passed `number`, the last operation
   submitted, and no thread runs it. The put lock is held. */
static inline int ds__cpu_take_drained(ds__cpu_stream *s, uint64_t number) {
    uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);
    return number == atomic_load_explicit(&s->done, memory_order_acquire) &&
           !atomic_load_explicit(&s->closing, memory_order_relaxed) &&
           (state == DS__CPU_IDLE || state == DS__CPU_POLLED) &&
           atomic_compare_exchange_strong(&s->state, &state, DS__CPU_RUNNING);
}

/* Runs a small copy or fill, and passes its number. The caller owns the stream. note: see
   ds__cpu_run_small. */
__attribute__((always_inline)) static inline void ds__cpu_small_step(ds__cpu_stream *s,
                                                                     const ds__op *op,
                                                                     uint64_t number,
                                                                     ds__activity_note *note) {
    if (note)
        note->begin_time = ds__activity_clock();
    if (op->kind == DS__OP_COPY)
        ds__cpu_copy_part(op, 0, ds__op_bytes(op), 0);
    else
        ds__cpu_fill_part(op, 0, op->u.fill.width * op->u.fill.height, 0);
    if (note) {
        atomic_store_explicit(&s->last_id, note->correlation_id, memory_order_release);
        ds__cpu_note_write(s, op, note, NULL);
    }
    ds__cpu_pass(s, number);
}

/* Runs a small copy or fill on the caller's thread, if nothing is pending that it must wait for.
   Returns 0 if it did not run; it must be enqueued then. note: NULL, or gets the time at which it
   begins, and its record is written. Always inlined: without a note, nothing of it is left. */
__attribute__((always_inline)) static inline int ds__cpu_run_small(ds__cpu_stream *s,
                                                                   const ds__op *op,
                                                                   ds__activity_note *note) {
    int legacy;
    if (!ds__cpu_is_small(op) || !ds__cpu_put_try(s, &legacy))
        return 0;
    uint64_t number = atomic_load_explicit(&s->submitted, memory_order_relaxed);
    int mine =
        (DS__LIKELY(!legacy) || ds__cpu_legacy_drained(s)) && ds__cpu_take_drained(s, number);
    /* an operation may have failed since the caller asked for a failure */
    int failed = mine && ds__cpu_stream_failure(s) != NULL;
    if (mine && !failed)
        atomic_store_explicit(&s->submitted, number + 1, memory_order_release);
    if (DS__UNLIKELY(legacy))
        ds__spinlock_unlock(&ds__cpu.device[s->device].legacy_lock);
    if (mine && !failed)
        ds__cpu_small_step(s, op, number + 1, note);
    ds__cpu_block *block = NULL;
    int disowned = mine && ds__cpu_disown(s, &block);
    ds__spinlock_unlock(&s->put_lock);
    if (!mine)
        return 0;
    ds__cpu_disown_end(s, disowned, block);
    if (failed)
        return 0;
    atomic_fetch_add_explicit(&ds__cpu.inlined, 1, memory_order_relaxed);
    return 1;
}

static inline int ds__cpu_at_once(ds__cpu_stream *s, const ds__op *op) {
    return DS__UNLIKELY(ds__cpu_modes(UINT_MAX)) ? ds__cpu_at_once_noted(s, op)
                                                 : ds__cpu_run_small(s, op, NULL);
}

/* Returns the number of the stream's last operation, after the order with the legacy stream is
   established. If that operation failed before a reset, an empty operation gives a new number. */
static ds_result ds__cpu_mark(ds__cpu_stream *s, uint64_t *out_upto) {
    ds_result r = DS_OK;
    if (s->flags & DS_STREAM_BLOCKING)
        r = ds__cpu_enqueue(s, NULL, out_upto);
    else
        *out_upto = atomic_load_explicit(&s->submitted, memory_order_acquire);
    if (DS__LIKELY(r < 0 || !atomic_load_explicit(&s->past, memory_order_acquire) ||
                   !ds__cpu_failed(s, *out_upto)))
        return r;
    ds__op nothing = { .kind = DS__OP_NOTHING };
    return ds__cpu_enqueue(s, &nothing, out_upto);
}

/* Enqueues a copy or fill. If it touches pageable memory, the caller waits until it is done, but
   not for later operations. */
static ds_result ds__cpu_submit_move(ds__cpu_stream *s, const ds__op *op) {
    uint64_t number;
    ds_result r = ds__cpu_enqueue(s, op, &number);
    if (r < 0 || !(op->flags & DS__OP_BLOCKS))
        return r;
    ds__cpu_wait(s, number, DS__FOREVER, 0);
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    return f ? ds__cpu_report(f) : DS_OK;
}

static ds_result ds__cpu_kernel_load(int device, ds__kernel *kernel) {
    (void)device;
    return kernel->cpu_fn ? DS_OK
                          : ds__fail(DS_ERR_UNSUPPORTED, "kernel %s has no CPU form", kernel->name);
}

static ds_result ds__cpu_condition_load(int device) {
    (void)device;
    return DS_OK;
}

static void ds__cpu_kernel_destroy(ds__kernel *kernel) {
    (void)kernel;
}

static ds_result ds__cpu_submit_wait_event(ds__cpu_stream *s, const ds__op *op);
static ds_result ds__cpu_submit_wait_stream(ds__cpu_stream *s, const ds__op *op);

/* Takes the put lock of a stream without pending work; no work can become pending while the lock
   is held. Returns 0, without the lock, if another thread holds the lock, or if the stream has
   pending work, has failed, captures, or must be ordered with the legacy stream. */
static int ds__cpu_hold(ds__cpu_stream *s) {
    if (ds__cpu_watched(s) || !ds__spinlock_try(&s->put_lock))
        return 0;
    int idle = atomic_load_explicit(&s->submitted, memory_order_relaxed) ==
                   atomic_load_explicit(&s->done, memory_order_acquire) &&
               !ds__cpu_has_legacy_order(s) &&
               !atomic_load_explicit(&s->closing, memory_order_relaxed) && !ds__cpu_watched(s) &&
               !ds__cpu_stream_failure(s);
    if (!idle)
        ds__spinlock_unlock(&s->put_lock);
    return idle;
}

/* Runs a function on the caller's thread while no work is pending on any of the streams. If one of
   the streams cannot be held, the function does not run, and *out_ran is 0. */
static ds_result ds__cpu_run_together(void *const *streams, size_t count,
                                      void (*run_fn)(void *user), void *user, int *out_ran) {
    size_t held = 0;
    *out_ran = 0;
    if (ds__cpu_modes(UINT_MAX))
        return DS_OK;
    while (held < count && ds__cpu_hold(streams[held]))
        held++;
    if (held == count) {
        run_fn(user);
        *out_ran = 1;
        atomic_fetch_add_explicit(&ds__cpu.inlined, 1, memory_order_relaxed);
    }
    while (held)
        ds__spinlock_unlock(&((ds__cpu_stream *)streams[--held])->put_lock);
    return DS_OK;
}

static inline ds_result ds__cpu_submit_kernel(ds__cpu_stream *s, const ds__op *op) {
    if (DS__UNLIKELY(!op->u.kernel.kernel->cpu_fn))
        return ds__cpu_kernel_load(0, op->u.kernel.kernel);
    if (DS__LIKELY(ds__cpu_is_usual(s) && !(op->flags & (DS__OP_INSIDE | DS__OP_TOGETHER)) &&
                   ds__cpu_put_usual(s, op, DS__OP_KERNEL))) {
        ds__cpu_kick(s);
        return DS_OK;
    }
    /* a stream that captures would have captured it */
    if (op->flags & DS__OP_INSIDE)
        return DS__CHANGED;
    ds_result r = ds__cpu_together_ready(s->device, s->share, op);
    return r < 0 ? r : ds__cpu_enqueue(s, op, NULL);
}

static ds_result ds__cpu_submit_values(ds__cpu_stream *s, const ds__op *op) {
    ds_result r = ds__cpu_values_ready(op->u.values.list, op->u.values.count);
    return r < 0 ? r : ds__cpu_enqueue(s, op, NULL);
}

/* Enqueues work of another library. On an idle stream the caller begins it; only the wait for it is
   enqueued then, and not even that if the work is over at once. */
static ds_result ds__cpu_submit_remote(ds__cpu_stream *s, const ds__op *op) {
    ds__remote *begin = op->u.remote.begin;
    ds_result r = DS_OK;
    if (begin)
        atomic_store(&begin->taken, 1); /* before the operation is enqueued: it may be over then */
    if (!(op->flags & DS__OP_PROMPT) || ds__cpu_modes(UINT_MAX) || !ds__cpu_hold(s)) {
        r = ds__cpu_enqueue(s, op, NULL);
        if (r < 0 && begin)
            atomic_store(&begin->taken, 0);
        return r;
    }
    int over = begin->begin_fn(begin, DS__REMOTE_AT_ONCE) || !op->u.remote.timeline;
    if (!over) {
        ds__op wait = *op;
        wait.kind = DS__OP_WAIT;
        wait.flags = 0;
        wait.u.wait.stream = op->u.remote.timeline;
        wait.u.wait.upto = op->u.remote.upto;
        r = ds__cpu_put(s, &wait);
    }
    ds__spinlock_unlock(&s->put_lock);
    if (!over)
        ds__cpu_kick_wait(s);
    return r;
}

/* Enqueues a host function, a callback, a closure, which runs on a worker, or work of another
   library. */
static ds_result ds__cpu_submit_function(ds__cpu_stream *s, const ds__op *op) {
    if (op->kind == DS__OP_REMOTE)
        return ds__cpu_submit_remote(s, op);
    ds_result r = op->kind == DS__OP_CLOSURE ? DS_OK : ds__cpu_host_ready();
    return r < 0 ? r : ds__cpu_enqueue(s, op, NULL);
}

static ds_result ds__cpu_submit(void *stream, const ds__op *op) {
    ds__cpu_stream *s = stream;
    ds_result captured;
    ds__cpu_failure *f = ds__cpu_stream_failure(s);
    if (DS__UNLIKELY(f != NULL))
        return ds__cpu_report(f);
    if (ds__cpu_watched(s) && ds__cpu_submit_captured(s, op, &captured))
        return captured;
    switch (op->kind) {
    case DS__OP_KERNEL:
        return ds__cpu_submit_kernel(s, op);
    case DS__OP_COPY:
    case DS__OP_FILL:
        return ds__cpu_at_once(s, op) ? DS_OK : ds__cpu_submit_move(s, op);
    case DS__OP_RECORD:
    case DS__OP_EXTERNAL_RECORD:
        return ds__cpu_submit_record(s, op);
    case DS__OP_WAIT:
    case DS__OP_EXTERNAL_WAIT:
        return ds__cpu_submit_wait_event(s, op);
    case DS__OP_WAIT_STREAM:
        return ds__cpu_submit_wait_stream(s, op);
    case DS__OP_VALUES:
        return ds__cpu_submit_values(s, op);
    case DS__OP_GRAPH:
        return ds__cpu_submit_launch(s, op);
    case DS__OP_UPLOAD:
        return ds__cpu_submit_upload(op);
    default:
        return ds__cpu_submit_function(s, op);
    }
}

/* Returns 1 if the stream is known to have passed the number. The last operation of a stream that
   runs is probably not over. To find out would take the cache line of `done` from the thread that
   runs the stream, at each of its operations, and cost more than to enqueue the wait. */
static inline int ds__cpu_is_over(const ds__cpu_stream *on, uint64_t upto) {
    uint32_t state = atomic_load_explicit(&on->state, memory_order_relaxed);
    int likely = (state != DS__CPU_RUNNING && state != DS__CPU_READY) ||
                 upto != atomic_load_explicit(&on->submitted, memory_order_relaxed);
    return likely && atomic_load_explicit(&on->done, memory_order_acquire) >= upto &&
           !ds__cpu.fabric;
}

/* cause: the last operation of `on` up to the number, for records of activity; 0: not known. */
static ds_result ds__cpu_submit_wait(ds__cpu_stream *s, const ds__op *op, ds__cpu_token on_token,
                                     uint64_t cause) {
    ds__cpu_stream *on = on_token.stream;
    uint64_t upto = on_token.upto;
    /* A wait for work that is done is left out, except on the legacy stream: blocking streams are
       ordered by it. */
    if ((on == s || ds__cpu_is_over(on, upto)) && !ds__cpu_failed(on, upto) &&
        s->kind != DS__STREAM_LEGACY)
        return DS_OK;
    ds__op wait = *op;
    wait.kind = DS__OP_WAIT;
    wait.u.wait.stream = on;
    wait.u.wait.upto = upto;
    if (DS__LIKELY(ds__cpu_is_usual(s) && ds__cpu_put_usual(s, &wait, DS__OP_WAIT))) {
        ds__cpu_kick_wait(s);
        return DS_OK;
    }
    ds__activity_tls.cause = cause;
    ds_result r = ds__cpu_enqueue(s, &wait, NULL);
    ds__activity_tls.cause = 0;
    return r;
}

/* Brings the token of an event that processes share up to date. wait: the caller will wait for the
   token, so the watcher must follow it. */
static inline ds_result ds__cpu_event_look(ds__cpu_event *e, int wait) {
    return DS__LIKELY(!e->registry) ? DS_OK : ds__cpu_event_foreign(e, wait);
}

/* Makes the stream wait for an event. Another thread may record the event between the update and
   the look at its token; the token that was read is therefore watched. */
static ds_result ds__cpu_submit_wait_event(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_event *e = op->u.event.event;
    for (;;) {
        ds_result r = ds__cpu_event_look(e, 1);
        if (DS__UNLIKELY(r < 0))
            return r;
        ds__spinlock_lock(&e->lock);
        ds__cpu_stream *on = e->stream;
        uint64_t upto = e->upto;
        uint64_t capture = e->capture;
        uint64_t cause = e->cause;
        ds__spinlock_unlock(&e->lock);
        if (DS__LIKELY(!capture)) {
            if (!on)
                return DS_OK;
            r = ds__cpu_event_watch(e, on, upto);
            return r < 0 ? r : ds__cpu_submit_wait(s, op, (ds__cpu_token){ on, upto }, cause);
        }
        if (ds__cpu_fork_event(s, e, &r))
            return r;
    }
}

static ds_result ds__cpu_submit_wait_stream(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_stream *other = op->u.wait.stream;
    uint64_t upto;
    ds_result r;
    if (other == s && s->kind != DS__STREAM_LEGACY)
        return DS_OK;
    if (ds__cpu_watched(other) && ds__cpu_fork_stream(s, other, &r))
        return r;
    uint64_t cause = atomic_load(&other->last_id);
    r = ds__cpu_mark(other, &upto);
    return r < 0 ? r : ds__cpu_submit_wait(s, op, (ds__cpu_token){ other, upto }, cause);
}

#endif
