/* cpu/scheduler.h - hand-over of streams between threads.

   Moves streams between the states IDLE, READY, RUNNING, POLLED and PARKED without losing a
   wake-up. Submitters call ds__cpu_kick, runners ds__cpu_pass and ds__cpu_go_idle, waiters
   ds__cpu_enlist and ds__cpu_park, workers ds__cpu_pop_ready and ds__cpu_sleep.

   The hand-shakes, which tests/model/cpu.pml checks. In the first two, a thread stores, then loads
   a value that the other side stores first:
   1. pass/wait: ds__cpu_pass stores `done`, then loads `waiting`; ds__cpu_enlist does the
      reverse.
   2. ready/asleep: ds__cpu_push_ready sets a bit in the mask of a group, then loads the group's
      `lookers`; ds__cpu_sleep does the reverse.
   3. publish/idle and destroy/idle: a stream becomes idle only under its put lock. A thread that
      enqueues, or destroys the stream, holds that lock. It either comes first, and the owner sees
      `submitted` or `closing`, or it finds the state IDLE. So a submission needs no barrier but
      the lock. Launches give lanes operations without the lock; there, both sides store and then
      load, as above.

   Invariants: `waiting` is 1 if the list of waiters is not empty. Without a fabric, a worker
   counts in `lookers` except while it sleeps or runs a long operation.
   Locks: ready lists change under the lock of their group, a list of waiters under the stream's
   `wait_lock`. The two are never held together. ds__cpu_go_idle takes the put lock, so its caller
   holds none of these. No user code and no wait runs under these locks.
   Threads: any thread. ds__cpu_go_idle and ds__cpu_park_waiting expect the owner of the stream.
   ds__cpu_sleep, ds__cpu_unpoll_all, ds__cpu_unpoll_fresh and ds__cpu_long are for a worker
   itself. */
#ifndef DS__CPU_SCHEDULER_H
#define DS__CPU_SCHEDULER_H

#include "types.h"
#include "queue.h"
#include "clock_order.h"
#include "ready.h"

static void ds__cpu_wake_worker(void) {
    atomic_fetch_add(&ds__cpu.wake_word, 1);
    ds__futex_wake(&ds__cpu.wake_word, 1);
}

static void ds__cpu_wake_monitor(void) {
    if (atomic_load(&ds__cpu.monitor_word) == 0 && atomic_exchange(&ds__cpu.monitor_word, 1) == 0)
        ds__futex_wake(&ds__cpu.monitor_word, 1);
}

/* Lists the stream, whose state the caller has set to READY. Wakes a worker, unless one of
   the stream's group is about to look at the ready streams. */
static void ds__cpu_push_ready(ds__cpu_stream *s) {
    const ds__cpu_group *g = ds__cpu_ready_add(s);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_virtual_ready();
        return;
    }
    if (atomic_load(&g->lookers) == 0 && atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}

/* Makes an idle stream ready after a submission. In any other state, the thread that has the stream
   will see the new operation. */
static inline void ds__cpu_kick(ds__cpu_stream *s) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_load(&s->state) == DS__CPU_IDLE &&
        atomic_compare_exchange_strong(&s->state, &idle, DS__CPU_READY))
        ds__cpu_push_ready(s);
}

static inline int ds__cpu_has_work(ds__cpu_stream *s) {
    return atomic_load_explicit(&s->submitted, memory_order_relaxed) !=
           atomic_load_explicit(&s->done, memory_order_relaxed);
}

/* Makes a stream idle that the caller owns and has emptied. The put lock is held. Returns 1, or 2
   for a lane, or 0 if an operation has come meanwhile or the stream was destroyed; the caller still
   owns the stream then. *out_block: the block of an empty stream, for the pool, so that ten
   thousand idle streams take little memory. The memory of a lane belongs to a plan. */
static inline int ds__cpu_disown(ds__cpu_stream *s, ds__cpu_block **out_block) {
    *out_block = NULL;
    if (ds__cpu_has_work(s))
        return 0;
    if (s->kind != DS__STREAM_LANE) {
        *out_block = s->head;
        s->head = s->tail = NULL;
    }
    if (DS__UNLIKELY(atomic_load_explicit(&s->closing, memory_order_relaxed)))
        return 0;
    int is_lane = s->kind == DS__STREAM_LANE; /* before another thread can recycle the object */
    atomic_store(&s->state, DS__CPU_IDLE);
    return is_lane ? 2 : 1;
}

/* Makes a lane ready, if a launch has given it operations before it became idle: launches do not
   take put locks. */
static void ds__cpu_lane_look(ds__cpu_stream *lane) {
    uint32_t idle = DS__CPU_IDLE;
    if (atomic_load(&lane->submitted) != atomic_load_explicit(&lane->done, memory_order_relaxed) &&
        atomic_compare_exchange_strong(&lane->state, &idle, DS__CPU_READY))
        ds__cpu_push_ready(lane);
}

/* The rest of ds__cpu_disown, after the put lock is released. */
static inline void ds__cpu_disown_end(ds__cpu_stream *s, int disowned, ds__cpu_block *block) {
    if (block) {
        ds__cpu_block_free(block);
        ds__cpu_block_free(atomic_exchange_explicit(&s->spare, NULL, memory_order_acq_rel));
    }
    if (DS__LIKELY(disowned)) {
        if (disowned == 2)
            ds__cpu_lane_look(s);
    } else if (ds__cpu_has_work(s)) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    } else {
        ds__cpu_recycle(s); /* no operation can be enqueued any more */
    }
}

/* Gives up a stream that the caller owns and has emptied. The stream becomes idle, or ready if an
   operation has come meanwhile. A destroyed stream is recycled. */
static void ds__cpu_go_idle(ds__cpu_stream *s) {
    ds__cpu_block *block;
    /* a thread that runs work while it holds the lock may hold it for long; a worker looks at the
       stream again later */
    for (int spins = 0; !ds__spinlock_try(&s->put_lock); spins++) {
        if (spins == 64) {
            atomic_store(&s->state, DS__CPU_READY);
            ds__cpu_push_ready(s);
            return;
        }
        ds__processor_pause();
    }
    int disowned = ds__cpu_disown(s, &block);
    ds__spinlock_unlock(&s->put_lock);
    ds__cpu_disown_end(s, disowned, block);
}

/* Returns 1 if the thread will wait for the stream in a moment and run it then. */
static int ds__cpu_is_awaited(const ds__cpu_stream *s) {
    return s == ds__tls.awaited && ds__cpu_spin() && !ds__cpu_modes(UINT_MAX);
}

/* Makes all streams of the list ready at once, so that the most urgent one is taken first. */
static void ds__cpu_push_woken(ds__cpu_waiter *woken) {
    int awaited = !woken->next && ds__cpu_is_awaited(woken->parked);
    int count = ds__cpu_ready_add_woken(woken);
    if (DS__UNLIKELY(ds__cpu.fabric != NULL)) {
        ds__cpu_virtual_ready();
        return;
    }
    if (awaited) { /* this thread runs it */
        ds__tls.awaited = NULL;
        return;
    }
    int parked = count > 0 ? atomic_load(&ds__cpu.parked) : 0;
    if (parked == 0)
        return;
    atomic_fetch_add(&ds__cpu.wake_word, 1);
    ds__futex_wake(&ds__cpu.wake_word, count < parked ? count : parked);
}

/* Wakes all waiters whose number is done: sleeping threads get their flag, parked streams become
   ready. */
__attribute__((noinline)) static void ds__cpu_notify(ds__cpu_stream *s) {
    ds__cpu_waiter *woken = NULL;
    ds__spinlock_lock(&s->wait_lock);
    uint64_t done = atomic_load_explicit(&s->done, memory_order_acquire);
    for (ds__cpu_waiter **p = &s->waiters; *p;) {
        ds__cpu_waiter *w = *p;
        if (w->upto > done) {
            p = &w->next;
            continue;
        }
        *p = w->next;
        if (w->flag) {
            /* once the flag is set, the thread may return, and its waiter is gone */
            _Atomic uint32_t *flag = w->flag;
            if (DS__UNLIKELY(ds__cpu.fabric != NULL))
                atomic_fetch_sub(&ds__cpu.wanted, 1);
            atomic_fetch_add_explicit(&ds__cpu.waking, 1, memory_order_relaxed);
            atomic_store_explicit(flag, 1, memory_order_release);
            ds__futex_wake(flag, 1);
        } else { /* reverses the order: the last waiter of the list has waited longest */
            w->next = woken;
            woken = w;
        }
    }
    if (!s->waiters)
        atomic_store(&s->waiting, 0);
    ds__spinlock_unlock(&s->wait_lock);
    if (woken)
        ds__cpu_push_woken(woken);
}

/* Sets `done` and wakes the waiters that it reaches. The caller owns the stream. */
static inline void ds__cpu_pass(ds__cpu_stream *s, uint64_t number) {
    atomic_store(&s->done, number);
    if (DS__UNLIKELY(atomic_load(&s->waiting)))
        ds__cpu_notify(s);
}

/* Like ds__cpu_pass, but without a full barrier, after an operation that is known to be short. A
   waiter that enlists in this moment may be missed. The next check finds it, and ds__cpu_run_some
   makes a check with a barrier before an operation that may take long. */
static inline void ds__cpu_pass_short(ds__cpu_stream *s, uint64_t number) {
    atomic_store_explicit(&s->done, number, memory_order_release);
    if (DS__UNLIKELY(atomic_load_explicit(&s->waiting, memory_order_relaxed)))
        ds__cpu_notify(s);
}

/* Adds a waiter to the stream's list. `wait_lock` is held. Returns 0 if the number is done; the
   waiter is not in the list then. */
static int ds__cpu_enlist(ds__cpu_stream *s, ds__cpu_waiter *w) {
    atomic_store(&s->waiting, 1);
    if (atomic_load(&s->done) >= w->upto) {
        if (!s->waiters)
            atomic_store(&s->waiting, 0);
        return 0;
    }
    w->next = s->waiters;
    s->waiters = w;
    return 1;
}

/* Parks stream s, which the caller owns, until `on` has passed `upto`. Returns 0 if `on` has passed
   the number already; the caller still owns the stream then. */
static int ds__cpu_park(ds__cpu_stream *s, ds__cpu_stream *on, uint64_t upto) {
    s->as_waiter.upto = upto;
    s->as_waiter.parked = s;
    s->as_waiter.flag = NULL;
    atomic_fetch_add(&s->park_count, 1);
    atomic_store_explicit(&s->park_on, on, memory_order_relaxed);
    atomic_store_explicit(&s->park_upto, upto, memory_order_relaxed);
    atomic_fetch_add(&s->park_count, 1);
    ds__spinlock_lock(&on->wait_lock);
    int parked = ds__cpu_enlist(on, &s->as_waiter);
    /* before the lock is released: no thread can make the stream ready before that */
    if (parked)
        atomic_store(&s->state, DS__CPU_PARKED);
    ds__spinlock_unlock(&on->wait_lock);
    return parked;
}

/* Sleeps until there may be work. The worker does not count as a looker while it sleeps. */
static void ds__cpu_sleep(const ds__cpu_worker *w) {
    uint32_t word = atomic_load(&ds__cpu.wake_word);
    atomic_fetch_add(&ds__cpu.parked, 1);
    atomic_fetch_sub(&ds__cpu.ready[w->group].lookers, 1);
    if (ds__cpu_ready() == 0 && atomic_load(&ds__cpu.job_count) == 0 && !atomic_load(&ds__cpu.quit))
        ds__futex_wait(&ds__cpu.wake_word, word, DS__FOREVER);
    atomic_fetch_add(&ds__cpu.ready[w->group].lookers, 1);
    atomic_fetch_sub(&ds__cpu.parked, 1);
}

/* Parks a stream that the caller owns, if its next operation waits for a number that is not done.
   No thread needs to be woken for such a stream. Returns 1 if the stream is parked; the caller does
   not own it any more then. */
static int ds__cpu_park_waiting(ds__cpu_stream *s) {
    if (ds__cpu.seed || atomic_load_explicit(&s->submitted, memory_order_acquire) ==
                            atomic_load_explicit(&s->done, memory_order_relaxed))
        return 0;
    const ds__op *op = ds__cpu_head(s);
    return op->kind == DS__OP_WAIT &&
           atomic_load_explicit(&((ds__cpu_stream *)op->u.wait.stream)->done,
                                memory_order_acquire) < op->u.wait.upto &&
           ds__cpu_park(s, op->u.wait.stream, op->u.wait.upto);
}

/* Gives up a polled stream, unless another thread has taken it meanwhile. */
static void ds__cpu_unpoll(ds__cpu_stream *s) {
    uint32_t polled = DS__CPU_POLLED;
    if (atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING) &&
        !ds__cpu_park_waiting(s))
        ds__cpu_go_idle(s);
}

static void ds__cpu_unpoll_all(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count; i++)
        ds__cpu_unpoll(atomic_load_explicit(&w->polled[i], memory_order_relaxed));
    w->polled_count = 0;
}

/* Gives up the polled streams that have new work: their priority counts among the ready streams. */
static void ds__cpu_unpoll_fresh(ds__cpu_worker *w) {
    for (int i = 0; i < w->polled_count;) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        if (!ds__cpu_has_work(s)) {
            i++;
            continue;
        }
        atomic_store_explicit(
            &w->polled[i],
            atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
            memory_order_release);
        ds__cpu_unpoll(s);
    }
}

/* Empties a slot of the streams that are aside. The caller owns the stream; NULL: there is none. */
static ds__cpu_stream *ds__cpu_pop_aside(ds__cpu_worker *w, int slot) {
    return atomic_load_explicit(&w->aside[slot], memory_order_relaxed)
               ? atomic_exchange(&w->aside[slot], NULL)
               : NULL;
}

/* Gives up the streams that are aside. They become ready if they have work, else idle. Any thread:
   the monitor calls it for a worker whose operation takes long. */
static void ds__cpu_return_aside(ds__cpu_worker *w) {
    for (int i = 0; i < DS__CPU_ASIDE_SLOTS; i++) {
        ds__cpu_stream *s = ds__cpu_pop_aside(w, i);
        if (s && !ds__cpu_park_waiting(s))
            ds__cpu_go_idle(s);
    }
}

/* Tells that an operation of the worker that may take long begins (1) or ends (0). Before such an
   operation, the worker gives up the streams that it polls, and leaves the lookers. */
static void ds__cpu_long(ds__cpu_worker *w, int begin) {
    if (!w || w->is_long == begin)
        return;
    w->is_long = begin;
    if (!begin) {
        atomic_fetch_add(&ds__cpu.ready[w->group].lookers, 1);
        ds__cpu_wake_monitor();
        return;
    }
    ds__cpu_unpoll_all(w);
    if (w->has_aside) {
        w->has_aside = 0;
        ds__cpu_return_aside(w);
    }
    if (atomic_fetch_sub(&ds__cpu.ready[w->group].lookers, 1) == 1 && ds__cpu_ready() &&
        atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}

#endif
