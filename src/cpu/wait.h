/* cpu/wait.h - waits of host threads.

   Waits until a stream has passed a number (ds__cpu_wait). The thread first spins, may run the
   work that it waits for (ds__cpu_help), and then sleeps on a flag. ds__cpu_wait_virtual is the
   wait under a virtual clock.

   Invariants: a waiting thread runs only work that the awaited number depends on, and no host
   functions. It runs nothing if there is a time limit, a seed or a fabric, or if it must sleep
   at once. Its waiter is on its stack, and out of the stream's list before the function returns.
   `hurry` counts threads in longer waits (without a fabric), `asleep` threads that sleep.
   Locks: takes `wait_lock` to enter and leave the list. The caller must not hold a lock of the
   driver, and no such lock is held during a wait.
   Threads: caller's threads, and the thread that shuts down. Any number may wait for one stream. */
#ifndef DS__CPU_WAIT_H
#define DS__CPU_WAIT_H

#include "../base/drive.h"
#include "types.h"
#include "scheduler.h"
#include "job.h"
#include "clock.h"
#include "run.h"

/* Runs work that the awaited operation depends on, and no other work: the stream itself up to that
   operation, a lane of the launch that it has started, or the stream on which it is parked, and so
   on. Returns 1 if any work was run. */
static int ds__cpu_help(ds__cpu_stream *s, uint64_t upto) {
    for (int depth = 0; depth < 64; depth++) {
        if (atomic_load_explicit(&s->started, memory_order_relaxed) && ds__cpu_launch_help(s, upto))
            return 1;
        switch (atomic_load_explicit(&s->state, memory_order_acquire)) {
        case DS__CPU_READY: {
            if (!ds__cpu_take_ready(s))
                return 0;
            ds__user_code outer = ds__user_code_begin();
            ds__cpu_run(NULL, s, upto);
            ds__user_code_end(&outer);
            atomic_fetch_add_explicit(&ds__cpu.helped, 1, memory_order_relaxed);
            return 1;
        }
        case DS__CPU_POLLED: { /* the worker that polls the stream is late */
            uint32_t polled = DS__CPU_POLLED;
            if (ds__cpu_has_work(s) &&
                atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING)) {
                atomic_store(&s->state, DS__CPU_READY);
                ds__cpu_push_ready(s);
                continue; /* to the case READY */
            }
            return 0;
        }
        case DS__CPU_RUNNING:
            return atomic_load_explicit(&s->job, memory_order_relaxed) != NULL &&
                   ds__cpu_job_join(NULL, s, upto);
        case DS__CPU_PARKED: {
            uint32_t count = atomic_load(&s->park_count);
            ds__cpu_stream *on = atomic_load(&s->park_on);
            uint64_t number = atomic_load(&s->park_upto);
            /* if the count has not changed while s has not passed `upto`, s depends on the stream
               on which it is parked */
            if ((count & 1) || atomic_load(&s->done) >= upto ||
                atomic_load(&s->park_count) != count)
                return 0;
            if (!on) /* it waits for a word of memory */
                return 0;
            s = on;
            upto = number;
            break;
        }
        default:
            return 0;
        }
    }
    return 0;
}

/* Returns 1 if the stream is in the list for host functions, and the thread that should take it
   probably waits for the processor of the caller. */
static int ds__cpu_blocks_host(const ds__cpu_stream *s) {
    if (atomic_load_explicit(&s->state, memory_order_relaxed) != DS__CPU_AT_HOST)
        return 0;
    int here = ds__os_processor();
    atomic_store_explicit(&ds__cpu.caller_at, here, memory_order_relaxed);
    return here == atomic_load_explicit(&ds__cpu.host_at, memory_order_relaxed);
}

/* Results of ds__cpu_wait_spin. */
enum { DS__CPU_TIMED_OUT, DS__CPU_PASSED, DS__CPU_SPUN };

/* Waits without sleeping. DS__CPU_SPUN: the time to spin, which begins at `since` and again after
   each help, is over first, or the caller must leave its processor to a thread for host
   functions. */
static int ds__cpu_wait_spin(ds__cpu_stream *s, uint64_t upto, uint64_t since, uint64_t deadline,
                             int help) {
    for (uint32_t spins = 0;; spins++) {
        if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
            return DS__CPU_PASSED;
        /* rarely, because a look at the stream's state takes its cache line from the worker */
        if (help && spins % 32 == 0 && ds__cpu_help(s, upto)) {
            since = ds__now_ns();
            continue;
        }
        ds__processor_pause();
        if (spins % 16 != 15)
            continue;
        uint64_t now = ds__now_ns();
        if (now >= deadline)
            return DS__CPU_TIMED_OUT;
        if (now - since > 2 * ds__cpu_spin())
            return DS__CPU_SPUN;
        if (now - since > DS__CPU_HOST_TAKE_NS && ds__cpu_blocks_host(s))
            return DS__CPU_SPUN;
    }
}

/* The query of ds__drive_until for a token. */
static ds_result ds__cpu_token_query(void *token) {
    const ds__cpu_token *t = token;
    return atomic_load_explicit(&t->stream->done, memory_order_acquire) >= t->upto ? DS_OK
                                                                                   : DS_NOT_READY;
}

/* Drives requests of other libraries, and runs the streams that wait for them, until the stream has
   passed `upto` or nothing makes progress. Returns 1 if it has passed. */
static int ds__cpu_wait_drive(ds__cpu_stream *s, uint64_t upto) {
    ds__cpu_token token = { s, upto };
    do
        ds__drive_until(ds__cpu_token_query, &token, s);
    while (ds__cpu_token_query(&token) == DS_NOT_READY && ds__cpu_help(s, upto));
    return ds__cpu_token_query(&token) == DS_OK;
}

/* Lists a waiter with the stream. Returns 0 if the number is passed already. */
static int ds__cpu_wait_begin(ds__cpu_stream *s, ds__cpu_waiter *me) {
    ds__spinlock_lock(&s->wait_lock);
    int listed = ds__cpu_enlist(s, me);
    if (ds__cpu.fabric)
        atomic_fetch_add(&ds__cpu.wanted, listed);
    ds__spinlock_unlock(&s->wait_lock);
    if (ds__cpu.fabric && listed)
        ds__cpu_wake_worker();
    return listed;
}

/* Takes a waiter out of the stream's list. Returns 0 if the waiter is not in the list any more,
   because the number was passed in this moment. */
static int ds__cpu_wait_cancel(ds__cpu_stream *s, const ds__cpu_waiter *me) {
    int listed = 0;
    ds__spinlock_lock(&s->wait_lock);
    for (ds__cpu_waiter **p = &s->waiters; *p; p = &(*p)->next)
        if (*p == me) {
            *p = me->next;
            listed = 1;
            break;
        }
    if (ds__cpu.fabric && listed)
        atomic_fetch_sub(&ds__cpu.wanted, 1);
    ds__spinlock_unlock(&s->wait_lock);
    return listed;
}

/* Sleeps until the flag is set, the deadline or, while requests of other libraries are open, a
   short time is over. */
static void ds__cpu_wait_nap(_Atomic uint32_t *flag, uint64_t deadline, uint64_t *nap, int driven) {
    uint64_t left = driven ? *nap : DS__FOREVER;
    if (deadline != DS__FOREVER) {
        uint64_t now = ds__now_ns();
        left = now < deadline ? deadline - now : 0;
    }
    *nap += *nap < DS__CPU_TICK_NS ? *nap / 4 : 0;
    atomic_fetch_add_explicit(&ds__cpu.asleep, 1, memory_order_relaxed);
    ds__futex_wait(flag, 0, left);
    atomic_fetch_sub_explicit(&ds__cpu.asleep, 1, memory_order_relaxed);
}

/* Waits asleep until the stream has passed `upto`. Returns 0 if the time is over first. help: the
   thread runs the work that it waits for, when it can. */
static int ds__cpu_wait_asleep(ds__cpu_stream *s, uint64_t upto, uint64_t deadline, int help) {
    _Atomic uint32_t flag = 0;
    uint64_t nap = DS__CPU_DRIVE_NAP_NS;
    ds__cpu_waiter me = { NULL, upto, NULL, &flag };
    if (!ds__cpu_wait_begin(s, &me))
        return 1;
    while (atomic_load_explicit(&flag, memory_order_acquire) == 0) {
        if (help && ds__cpu_help(s, upto))
            continue;
        int driven = help && atomic_load_explicit(&ds__drive.open, memory_order_relaxed);
        if (driven && ds__cpu_wait_drive(s, upto))
            continue;
        if (deadline != DS__FOREVER && ds__now_ns() >= deadline && ds__cpu_wait_cancel(s, &me))
            return 0;
        ds__cpu_wait_nap(&flag, deadline, &nap, driven);
    }
    atomic_fetch_sub_explicit(&ds__cpu.waking, 1, memory_order_relaxed);
    return 1;
}

/* Waits until the stream has passed `upto`, first spinning, then asleep. Returns 0 if the time is
   over first. With a time limit the thread runs no work meanwhile. */
static int ds__cpu_wait_slow(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns,
                             int sleep_at_once) {
    int help = timeout_ns == DS__FOREVER && !ds__cpu.seed && !sleep_at_once;
    uint64_t start = ds__now_ns();
    uint64_t deadline = timeout_ns > DS__FOREVER - 1 - start ? DS__FOREVER : start + timeout_ns;
    if (!sleep_at_once && ds__cpu_spin()) {
        int spun = ds__cpu_wait_spin(s, upto, start, deadline, help);
        if (spun != DS__CPU_SPUN)
            return spun == DS__CPU_PASSED;
    }
    return ds__cpu_wait_asleep(s, upto, deadline, help);
}

/* Waits under a virtual clock, which advances to the end of the awaited work. A wait with timeout 0
   lets work run until nothing more can run, for at most DS__CPU_ASKS times DS__CPU_ASK_NS. */
static int ds__cpu_wait_virtual(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns) {
    int over = atomic_load(&s->done) >= upto;
    uint32_t rests = atomic_load(&ds__cpu.rests);
    if (!over && timeout_ns)
        over = ds__cpu_wait_slow(s, upto, timeout_ns, 1);
    for (int i = 0;
         i < DS__CPU_ASKS && !over && !timeout_ns && rests == atomic_load(&ds__cpu.rests); i++)
        over = ds__cpu_wait_slow(s, upto, DS__CPU_ASK_NS, 1);
    if (over)
        ds__cpu_clock_up(ds__cpu_time_of(s, upto));
    return over;
}

/* Spins for about a microsecond, in which most waits are over. A look at the stream's state takes
   its cache line from the worker. The thread therefore looks once, for a stream that no thread has
   taken yet, and then only while jobs exist. Returns 1 if the number is passed. */
static inline int ds__cpu_wait_short(ds__cpu_stream *s, uint64_t upto, int help) {
    if (help && atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_READY)
        ds__cpu_help(s, upto);
    for (int spins = 0; spins < 64; spins++) {
        if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
            return 1;
        if (help && spins % 4 == 0 &&
            atomic_load_explicit(&ds__cpu.job_count, memory_order_relaxed) > 0)
            ds__cpu_help(s, upto);
        ds__processor_pause();
    }
    return 0;
}

/* Waits until the stream has passed `upto`. Returns 0 if the time is over first. sleep_at_once: the
   thread does not spin, and runs no work meanwhile. No lock of the driver is held. */
static int ds__cpu_wait(ds__cpu_stream *s, uint64_t upto, uint64_t timeout_ns, int sleep_at_once) {
    if (DS__UNLIKELY(ds__cpu.fabric != NULL))
        return ds__cpu_wait_virtual(s, upto, timeout_ns);
    if (atomic_load_explicit(&s->done, memory_order_acquire) >= upto)
        return 1;
    if (timeout_ns == 0)
        return 0;
    int help = timeout_ns == DS__FOREVER && !ds__cpu.seed && !sleep_at_once;
    if (DS__UNLIKELY(atomic_load_explicit(&ds__drive.open, memory_order_relaxed)) && help &&
        ds__cpu_wait_drive(s, upto))
        return 1;
    if (!sleep_at_once && ds__cpu_spin() && ds__cpu_wait_short(s, upto, help))
        return 1;
    atomic_fetch_add_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    int over = ds__cpu_wait_slow(s, upto, timeout_ns, sleep_at_once);
    atomic_fetch_sub_explicit(&ds__cpu.hurry, 1, memory_order_relaxed);
    return over;
}

#endif
