/* cpu/worker.h - main loops of workers, host-function threads, monitor.

   ds__cpu_worker_main takes ready streams and polls those that it has emptied,
   ds__cpu_virtual_main does this under a virtual clock, and ds__cpu_host_main runs host
   functions. ds__cpu_monitor_main ticks while anything runs and helps streams that are stuck
   (ds__cpu_watch).

   Invariants: all these threads block signals, except for the monitor after all threads of the
   program have ended. In workers and threads for host functions
   `in_callback` is set, so that user code cannot call back. Each thread reads or sets the word
   on which it sleeps, and then looks at `quit`. Only the worker itself adds to `polled`; other
   threads take a stream from it by its state.
   Locks: ds__cpu_host_main holds the pool's lock except while it runs a stream or sleeps. The
   monitor starts threads under the pool's lock. Workers hold no lock of the driver in their
   loops.
   Threads: each main function runs on the thread that it names. The monitor also takes over
   polled streams and wakes missed waiters. */
#ifndef DS__CPU_WORKER_H
#define DS__CPU_WORKER_H

#include "../base/pin.h"
#include "types.h"
#include "clock_order.h"
#include "place.h"
#include "scheduler.h"
#include "job.h"
#include "host_func.h"
#include "clock.h"
#include "run.h"

/* Looks once at each stream that the worker polls, and runs those with new work. Returns 1 if there
   was work. */
static int ds__cpu_poll(ds__cpu_worker *w) {
    int found = 0;
    for (int i = 0; i < w->polled_count;) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[i], memory_order_relaxed);
        uint64_t fresh = atomic_load_explicit(&s->submitted, memory_order_relaxed) -
                         atomic_load_explicit(&s->done, memory_order_relaxed);
        if (atomic_load_explicit(&s->state, memory_order_relaxed) == DS__CPU_POLLED && !fresh) {
            i++;
            continue;
        }
        atomic_store_explicit(
            &w->polled[i],
            atomic_load_explicit(&w->polled[--w->polled_count], memory_order_relaxed),
            memory_order_release);
        uint32_t polled = DS__CPU_POLLED;
        if (!atomic_compare_exchange_strong(&s->state, &polled, DS__CPU_RUNNING))
            continue;
        found = 1;
        ds__cpu_run(w, s, UINT64_MAX);
    }
    return found;
}

/* Adapts the pause between looks to the operations that the last look found. A producer that
   streams and a worker close behind it would compete for the cache lines of the queue. A few dozen
   operations in short order, while no host thread waits, indicate such a producer. The pauses then
   grow until a look finds a few dozen operations. A look after a pause that finds almost none ends
   the pauses. */
static void ds__cpu_adapt(ds__cpu_worker *w, uint64_t found) {
    if (found == 0) {
        if (++w->misses >= 32)
            w->streak = w->delay = 0;
        return;
    }
    w->misses = 0;
    if (atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) > 0) {
        w->streak = w->delay = 0;
        return;
    }
    if (w->delay == 0) {
        w->streak += (uint32_t)found;
        if (w->streak >= 24)
            w->delay = ds__cpu.stream_pauses / 8;
    } else if (found < 4) {
        w->streak = w->delay = 0;
    } else if (found < DS__CPU_STREAM_BATCH) {
        w->delay = w->delay < ds__cpu.stream_pauses / 2 ? 2 * w->delay : ds__cpu.stream_pauses;
    } else if (found > 4 * DS__CPU_STREAM_BATCH) {
        w->delay /= 2;
    }
}

/* Waits while host functions run, because the clock stands meanwhile, but at most DS__CPU_HOST_NS.
   It does not stand any more for host functions that were waited for that long. */
static void ds__cpu_await_hosts(void) {
    uint64_t start = ds__now_ns();
    for (;;) {
        uint32_t word = atomic_load(&ds__cpu.wake_word);
        int busy = atomic_load(&ds__cpu.host_busy);
        if (ds__cpu.host_stuck > busy)
            ds__cpu.host_stuck = busy;
        if (busy == ds__cpu.host_stuck || atomic_load(&ds__cpu.quit))
            return;
        uint64_t gone = ds__now_ns() - start;
        if (gone >= DS__CPU_HOST_NS) {
            ds__cpu.host_stuck = busy;
            return;
        }
        ds__futex_wait(&ds__cpu.wake_word, word, DS__CPU_HOST_NS - gone);
    }
}

/* The loop of the one worker under a virtual clock. The worker runs the stream with the lowest
   time; it sleeps if no thread waits for work (ds__cpu_held), or if nothing more can run. */
static void ds__cpu_virtual_main(ds__cpu_worker *w) {
    for (;;) {
        /* read before `quit`: ds__cpu_deinit sets `quit`, then changes the word */
        uint32_t word = atomic_load(&ds__cpu.wake_word);
        if (atomic_load(&ds__cpu.quit))
            return;
        if (!ds__cpu_held()) {
            ds__cpu_await_hosts(); /* each looks at the words at its end, with its time */
            if (atomic_exchange(&ds__cpu.value_look, 0))
                (void)ds__cpu_values_look(atomic_load(&ds__cpu.clock));
            ds__cpu_stream *s = ds__cpu_held() ? NULL : ds__cpu_pop_ready(0);
            if (s) {
                ds__cpu_run(w, s, UINT64_MAX);
                continue;
            }
            if (!ds__cpu_held()) { /* nothing more can run */
                ds__cpu_clock_up(ds__cpu.latest);
                atomic_store(&ds__cpu.run_all, 0);
                atomic_fetch_add(&ds__cpu.rests, 1);
            }
        }
        atomic_fetch_add(&ds__cpu.parked, 1);
        ds__futex_wait(&ds__cpu.wake_word, word, DS__FOREVER);
        atomic_fetch_sub(&ds__cpu.parked, 1);
    }
}

/* Looks once for work, and runs it: a ready stream, else the polled streams, else a job. Returns 1
   if there was work. */
static int ds__cpu_look(ds__cpu_worker *w) {
    int found = 0;
    uint64_t before = atomic_load_explicit(&w->operations, memory_order_relaxed);
    for (uint32_t i = 0;
         i < w->delay && atomic_load_explicit(&ds__cpu.hurry, memory_order_relaxed) == 0; i++)
        ds__processor_pause();
    int roams = w->roams || ++w->looks % DS__CPU_ROAM == 0;
    int home = roams ? (w->group + (int)(++w->turns % 1024)) % ds__cpu.groups : w->group;
    w->roams = 0;
    ds__cpu_stream *s = ds__cpu_pop_ready(home);
    if (s) {
        ds__cpu_unpoll_fresh(w);
        if (ds__cpu.seed)
            for (uint64_t n = before * 0x9e3779b97f4a7c15u >> 62; n; n--)
                ds__os_yield();
        ds__cpu_run(w, s, UINT64_MAX);
        found = 1;
    } else if (w->polled_count) {
        found = ds__cpu_poll(w);
    }
    ds__cpu_adapt(w, atomic_load_explicit(&w->operations, memory_order_relaxed) - before);
    if (!found && atomic_load_explicit(&ds__cpu.job_count, memory_order_relaxed) > 0)
        found = ds__cpu_job_join(w, NULL, 0);
    return found;
}

/* Counts the calling thread among those that spin. Returns 0, and does not count it, if enough
   threads spin already. */
static int ds__cpu_spinner_add(void) {
    if (!ds__cpu_spin())
        return 0;
    if (atomic_fetch_add(&ds__cpu.spinners, 1) < ds__cpu.spin_limit)
        return 1;
    atomic_fetch_sub(&ds__cpu.spinners, 1);
    return 0;
}

/* Returns 1 if as many threads spin as may, so that a thread that wakes up could need the processor
   of one that spins. */
static int ds__cpu_is_crowded(void) {
    return atomic_load_explicit(&ds__cpu.spinners, memory_order_relaxed) >= ds__cpu.spin_limit;
}

/* Returns 1 if the thread for host functions runs on the processor of the thread that woke it, or
   that awaits it. That thread may have to wait for the processor until this one sleeps. */
static int ds__cpu_is_in_the_way(void) {
    return ds__os_processor() == atomic_load_explicit(&ds__cpu.caller_at, memory_order_relaxed);
}

/* Returns 1 if a thread that has looked for work `looks` times since the time `since` may look
   again. Not every call reads the clock. */
static int ds__cpu_spins_on(int looks, uint64_t since) {
    return (looks & 15) || ds__now_ns() - since < ds__cpu_spin();
}

/* Runs work, and after ds__cpu_spin without work sleeps. A worker beyond `spin_limit` sleeps at
   once. */
static void *ds__cpu_worker_main(void *arg) {
    ds__cpu_worker *w = arg;
    ds__os_library_thread();
    ds__cpu_place_bind(w);
    ds__tls.in_callback = 1; /* user code that runs here must not call back */
    if (ds__cpu.fabric) {
        ds__cpu_virtual_main(w);
        return NULL;
    }
    uint64_t last = ds__now_ns();
    int spinning = 0;
    int looks = 0;
    while (!atomic_load_explicit(&ds__cpu.quit, memory_order_acquire)) {
        if (ds__cpu_look(w)) {
            looks = 0;
            continue;
        }
        if (looks++ == 0)
            last = ds__now_ns();
        if (!spinning)
            spinning = ds__cpu_spinner_add();
        if (spinning && ds__cpu_spins_on(looks, last) &&
            !(ds__cpu_host_wakes() && ds__cpu_is_crowded())) {
            ds__processor_pause();
            continue;
        }
        if (spinning) {
            atomic_fetch_sub(&ds__cpu.spinners, 1);
            spinning = 0;
        }
        ds__cpu_unpoll_all(w);
        if (ds__cpu_ready())
            continue;
        ds__cpu_sleep(w);
        ds__cpu_wake_monitor();
        looks = 0;
    }
    ds__cpu_unpoll_all(w);
    return NULL;
}

/* Looks for streams in the list until there is one, the time to spin is over, or a worker that
   wakes up may need the processor. If the thread that called this one waits for its processor, it
   does not look. The pool's lock is held, but not during the looks. */
static void ds__cpu_host_spin(int called) {
    int awaited = called || atomic_load_explicit(&ds__cpu.waking, memory_order_relaxed) > 0;
    atomic_store_explicit(&ds__cpu.host_at, ds__os_processor(), memory_order_relaxed);
    if (ds__cpu.fabric || (awaited && ds__cpu_is_in_the_way()) || !ds__cpu_spinner_add())
        return;
    atomic_fetch_add_explicit(&ds__cpu.host_spinning, 1, memory_order_relaxed);
    ds__spinlock_unlock(&ds__cpu.lock);
    uint64_t since = ds__now_ns();
    for (int looks = 1; atomic_load_explicit(&ds__cpu.host_queued, memory_order_relaxed) == 0 &&
                        !atomic_load_explicit(&ds__cpu.quit, memory_order_relaxed) &&
                        ds__cpu_spins_on(looks, since);
         looks++) {
        if (ds__cpu_ready() && ds__cpu_is_crowded())
            break;
        ds__processor_pause();
    }
    ds__spinlock_lock(&ds__cpu.lock);
    atomic_fetch_sub_explicit(&ds__cpu.host_spinning, 1, memory_order_relaxed);
    atomic_fetch_sub(&ds__cpu.spinners, 1);
}

/* Waits for a stream in the list, and takes it. *called: 1 if the thread slept before. The pool's
   lock is held, but not during the wait. NULL: the thread must end. */
static ds__cpu_stream *ds__cpu_host_take(int *called) {
    ds__cpu.host_idle++;
    if (!ds__cpu.host_head)
        ds__cpu_host_spin(*called);
    *called = 0;
    while (!ds__cpu.host_head) {
        /* read before `quit`: ds__cpu_deinit sets `quit`, then changes the word */
        uint32_t word = atomic_load(&ds__cpu.host_word);
        if (atomic_load(&ds__cpu.quit))
            break;
        ds__spinlock_unlock(&ds__cpu.lock);
        ds__futex_wait(&ds__cpu.host_word, word, DS__FOREVER);
        ds__spinlock_lock(&ds__cpu.lock);
        *called = 1;
    }
    ds__cpu.host_idle--;
    ds__cpu_stream *s = ds__cpu.host_head;
    if (!s)
        return NULL;
    ds__cpu.host_head = s->next;
    if (!s->next)
        ds__cpu.host_tail = NULL;
    atomic_fetch_sub_explicit(&ds__cpu.host_queued, 1, memory_order_relaxed);
    ds__cpu.host_progress++;
    return s;
}

/* Runs the host functions at the head of a stream that the thread has taken from the list. */
static void ds__cpu_host_run(ds__cpu_stream *s) {
    atomic_store(&s->state, DS__CPU_RUNNING);
    uint64_t done = 0;
    int result;
    do { /* while host functions follow one another */
        done = atomic_load_explicit(&s->done, memory_order_relaxed);
        result = ds__cpu_run_some(NULL, s, UINT64_MAX, DS__CPU_HOST);
    } while (result == DS__CPU_EMPTY &&
             atomic_load_explicit(&s->done, memory_order_relaxed) != done);
    if (result == DS__CPU_MORE) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    } else {
        ds__cpu_go_idle(s);
    }
    atomic_fetch_sub(&ds__cpu.host_busy, 1);
    if (ds__cpu.fabric)
        ds__cpu_wake_worker();
}

/* Runs the host functions of streams in state AT_HOST, in the order of the list. */
static void *ds__cpu_host_main(void *unused) {
    ds__os_library_thread();
    ds__cpu_affinity_bind();
    ds__tls.in_callback = 1;
    ds__spinlock_lock(&ds__cpu.lock);
    int called = 0;
    for (ds__cpu_stream *s; (s = ds__cpu_host_take(&called)) != NULL;) {
        ds__spinlock_unlock(&ds__cpu.lock);
        ds__cpu_host_run(s);
        ds__spinlock_lock(&ds__cpu.lock);
    }
    ds__spinlock_unlock(&ds__cpu.lock);
    (void)unused;
    return NULL;
}

/* Lets work run that was held back for DS__CPU_STALL_TICKS ticks without a submission. Ticks are
   counted instead of time: if this thread gets no processor, the submitting threads may get none
   either. Returns 1 while there is ready work. */
static int ds__cpu_watch_held(void) {
    static int ticks;
    static uint64_t seen;
    if (!ds__cpu_ready())
        return 0;
    uint64_t puts = atomic_load(&ds__cpu.puts);
    if (!ds__cpu_held() || puts != seen)
        ticks = 0;
    seen = puts;
    if (++ticks < DS__CPU_STALL_TICKS)
        return 1;
    ticks = 0;
    atomic_store(&ds__cpu.run_all, 1);
    ds__cpu_wake_worker();
    return 1;
}

/* Starts one more thread for host functions if all of them are stuck: a stream waits, none is
   idle, and none has taken a stream since the last tick. Returns 1 if a stream waits. */
static int ds__cpu_watch_hosts(uint64_t *host_progress) {
    int busy = 0;
    ds__spinlock_lock(&ds__cpu.lock);
    if (ds__cpu.host_head) {
        busy = 1;
        if (ds__cpu.host_idle == 0 && *host_progress == ds__cpu.host_progress)
            ds__cpu_host_spawn();
        *host_progress = ds__cpu.host_progress;
    }
    ds__spinlock_unlock(&ds__cpu.lock);
    return busy;
}

/* Frees the work that a busy worker holds up: polled streams with new operations, streams that are
   aside, waiters that were missed after the last short operation, and ready streams. */
static void ds__cpu_relieve_worker(ds__cpu_worker *w) {
    for (int k = 0; k < DS__CPU_POLL_SLOTS; k++) {
        ds__cpu_stream *s = atomic_load_explicit(&w->polled[k], memory_order_acquire);
        if (s && ds__cpu_has_work(s))
            ds__cpu_unpoll(s);
    }
    ds__cpu_return_aside(w);
    ds__cpu_stream *running = atomic_load_explicit(&w->running, memory_order_acquire);
    if (running && atomic_load(&running->waiting))
        ds__cpu_notify(running);
    if (ds__cpu_ready() && atomic_load(&ds__cpu.parked) > 0)
        ds__cpu_wake_worker();
}

/* One tick of the monitor. Returns 1 while there is something to watch; that is not so if all
   workers have slept, or have been in a long operation, for a tick. A worker whose beat is odd and
   unchanged has been in one operation, or one long run, for a whole tick. */
static int ds__cpu_watch(uint64_t *host_progress) {
    int busy = ds__cpu.fabric && ds__cpu_watch_held();
    busy |= ds__cpu_watch_hosts(host_progress);
    if (ds__cpu.fabric ? atomic_load(&ds__cpu.parked) < ds__cpu.workers : ds__cpu_has_lookers())
        busy = 1;
    for (int i = 0; i < ds__cpu.workers; i++) {
        ds__cpu_worker *w = &ds__cpu.worker[i];
        uint32_t beat = atomic_load_explicit(&w->beat, memory_order_relaxed);
        if ((beat & 1) && beat == w->last_beat)
            ds__cpu_relieve_worker(w);
        busy |= beat != w->last_beat;
        w->last_beat = beat;
    }
    return busy;
}

/* Lets the monitor take signals if all threads of the program have ended without an end of the
   process, as after pthread_exit in main. Otherwise no thread would take SIGTERM. The end of a
   thread that has never called devstream cannot be observed. While no thread lives that has called
   devstream, the monitor therefore looks at growing intervals. The first look is late, because a
   look opens files, and because the thread that starts the driver is not counted yet. Returns the
   longest time for which the monitor may sleep. */
static uint64_t ds__cpu_watch_program(uint64_t *nap, uint64_t *next) {
    if (atomic_load(&ds__callers.count)) {
        *nap = 0;
        return DS__FOREVER;
    }
    uint64_t now = ds__now_ns();
    if (*nap && now < *next)
        return *next - now;
    if (*nap && ds__os_program_ended())
        ds__os_take_signals();
    *nap = *nap ? 2 * *nap : DS__CPU_PROGRAM_NS / 8;
    if (*nap > DS__CPU_PROGRAM_NS)
        *nap = DS__CPU_PROGRAM_NS;
    *next = now + *nap;
    return *nap;
}

static void *ds__cpu_monitor_main(void *unused) {
    uint64_t host_progress = 0;
    uint64_t nap = 0;
    uint64_t next = 0;
    ds__os_library_thread();
    ds__cpu_affinity_bind();
    while (!atomic_load(&ds__cpu.quit)) {
        uint64_t sleep = ds__cpu_watch_program(&nap, &next);
        if (!ds__cpu_watch(&host_progress)) {
            atomic_store(&ds__cpu.monitor_word, 0);
            if (ds__cpu_watch(&host_progress))
                atomic_store(&ds__cpu.monitor_word, 1);
            else if (!atomic_load(&ds__cpu.quit))
                ds__futex_wait(&ds__cpu.monitor_word, 0, sleep);
        }
        if (atomic_load(&ds__cpu.quit))
            break;
        /* also after a sleep; otherwise each end of a long operation could find the monitor
           asleep, and wake it */
        ds__os_sleep(DS__CPU_TICK_NS);
    }
    (void)unused;
    return NULL;
}

#endif
