/* cpu/value.h - waits for values in memory, and writes of values.

   Runs a batch of operations on words (ds__cpu_values_step). A stream whose word does not meet its
   condition is parked in the list `value_waits`; ds__cpu_values_look makes the streams ready whose
   words meet their conditions by now. A write of a stream looks at once. A thread, the poller
   (ds__cpu_poller_main), looks for writes of the host, of kernels, of copies and of other
   processes, and for failures. With a virtual clock, each operation looks at its end, so that the
   time of a write does not depend on the poller, which only asks the worker to look for the rest.

   Invariants: a listed stream has state PARKED, no stream to be parked on, and in `value_wait` the
   operation for which it waits. `value_count` is the number of listed streams. A batch begins with
   `next` 0, and sets it back at its end, because a lane runs the same memory again.
   Hand-shake: ds__cpu_value_park raises `value_count`, then reads the word; a write stores the
   word, then loads `value_count`.
   Locks: `value_lock` guards the list; only the mutex of cpu/reach.h is taken under it. Streams are
   made ready after it is released. ds__cpu_poller_start calls ds__os_thread_start under the pool's
   lock.
   Threads: ds__cpu_values_step expects the owner of the stream. ds__cpu_poller_start runs on
   threads of callers. One poller, which the first wait starts and ds__cpu_poller_end joins after
   all work is done. */
#ifndef DS__CPU_VALUE_H
#define DS__CPU_VALUE_H

#include "types.h"
#include "reach.h"
#include "scheduler.h"
#include "queue.h"

/* Returns the word. seq_cst: see the hand-shake. */
static uint64_t ds__cpu_value_read(const ds_value_op *v) {
    int reaches = ds__cpu_reach_begin_at(v->address);
    uint64_t word = v->size == 4 ? __atomic_load_n((const uint32_t *)v->address, __ATOMIC_SEQ_CST)
                                 : __atomic_load_n((const uint64_t *)v->address, __ATOMIC_SEQ_CST);
    if (DS__UNLIKELY(reaches))
        ds__cpu_reach_end();
    return word;
}

/* Returns 1 if the word meets the condition. */
static int ds__cpu_value_met(const ds_value_op *v) {
    uint64_t word = ds__cpu_value_read(v);
    uint64_t top = (uint64_t)1 << (8 * v->size - 1);
    switch (v->kind) {
    case DS_VALUE_WAIT_GEQ:
        return ((word - v->value) & top) == 0;
    case DS_VALUE_WAIT_EQ:
        return word == v->value;
    case DS_VALUE_WAIT_AND:
        return (word & v->value) != 0;
    default: /* DS_VALUE_WAIT_NOR: a bit of the word's size is 0 in both */
        return (~(word | v->value) & (top | (top - 1))) != 0;
    }
}

/* Returns 1 if a parked stream must run: its word meets the condition, or the device has failed,
   and the rest of the stream is skipped. */
static int ds__cpu_value_over(ds__cpu_stream *s) {
    return ds__cpu_value_met(s->value_wait) ||
           atomic_load_explicit(&ds__cpu.device[s->device].failure, memory_order_acquire);
}

/* Makes the streams ready whose waits are over. time: the virtual time of the write, if there is a
   virtual clock. Returns the number of streams that still wait. */
static int ds__cpu_values_look(int64_t time) {
    ds__cpu_waiter *woken = NULL;
    if (atomic_load(&ds__cpu.value_count) == 0)
        return 0;
    ds__spinlock_lock(&ds__cpu.value_lock);
    for (ds__cpu_waiter **p = &ds__cpu.value_waits; *p;) {
        ds__cpu_waiter *w = *p;
        if (!ds__cpu_value_over(w->parked)) {
            p = &w->next;
            continue;
        }
        *p = w->next;
        w->next = woken;
        woken = w;
        if (w->parked->virt && w->parked->virt->time < time)
            w->parked->virt->time = time;
        atomic_fetch_sub(&ds__cpu.value_count, 1);
    }
    int left = atomic_load(&ds__cpu.value_count);
    ds__spinlock_unlock(&ds__cpu.value_lock);
    if (woken)
        ds__cpu_push_woken(woken);
    return left;
}

/* Lets the poller look from now on. A poller in its shortest nap need not be woken. */
static void ds__cpu_poller_call(void) {
    atomic_fetch_add(&ds__cpu.poller_word, 1);
    if (atomic_load(&ds__cpu.poller_sleeps))
        ds__futex_wake(&ds__cpu.poller_word, 1);
}

/* Parks a stream until the word meets the condition. Returns 0 if that is so already; the caller
   still owns the stream then. */
static int ds__cpu_value_park(ds__cpu_stream *s, const ds_value_op *v) {
    s->as_waiter.parked = s;
    s->as_waiter.flag = NULL;
    atomic_fetch_add(&s->park_count, 1);
    atomic_store_explicit(&s->park_on, (ds__cpu_stream *)NULL, memory_order_relaxed);
    atomic_fetch_add(&s->park_count, 1);
    ds__spinlock_lock(&ds__cpu.value_lock);
    s->value_wait = v;
    atomic_fetch_add(&ds__cpu.value_count, 1);
    int parked = !ds__cpu_value_over(s);
    if (parked) {
        s->as_waiter.next = ds__cpu.value_waits;
        ds__cpu.value_waits = &s->as_waiter;
        atomic_store(&s->state, DS__CPU_PARKED);
    } else {
        atomic_fetch_sub(&ds__cpu.value_count, 1);
    }
    ds__spinlock_unlock(&ds__cpu.value_lock);
    if (parked)
        ds__cpu_poller_call();
    return parked;
}

static void ds__cpu_value_write(const ds__cpu_stream *s, const ds_value_op *v) {
    int reaches = ds__cpu_reach_begin_at(v->address);
    if (v->size == 4)
        __atomic_store_n((uint32_t *)v->address, (uint32_t)v->value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint64_t *)v->address, v->value, __ATOMIC_SEQ_CST);
    if (DS__UNLIKELY(reaches))
        ds__cpu_reach_end();
    ds__cpu_values_look(s->virt ? s->virt->time : 0);
}

/* Runs a batch; on a failed stream it does nothing. Returns 0 if the stream is parked; it comes to
   the rest of the batch again. */
static int ds__cpu_values_step(ds__cpu_stream *s, ds__op *op, int failed) {
    const ds_value_op *list = (const ds_value_op *)(const void *)((char *)op + DS__CPU_ARGS_AT);
    for (; op->u.values.next < op->u.values.count && !failed; op->u.values.next++) {
        const ds_value_op *v = &list[op->u.values.next];
        if (v->kind == DS_VALUE_WRITE)
            ds__cpu_value_write(s, v);
        else if (!ds__cpu_value_met(v) && ds__cpu_value_park(s, v))
            return 0;
    }
    op->u.values.next = 0;
    return 1;
}

/* Looks at the words. With a virtual clock it asks the worker to look: a stream that this thread
   made ready between a write and the look of the writer would not get the time of the write.
   Returns the number of streams that still wait. */
static int ds__cpu_poller_look(void) {
    int over = 0;
    if (!ds__cpu.fabric)
        return ds__cpu_values_look(0);
    ds__spinlock_lock(&ds__cpu.value_lock);
    for (const ds__cpu_waiter *w = ds__cpu.value_waits; w && !over; w = w->next)
        over = ds__cpu_value_over(w->parked);
    int left = atomic_load(&ds__cpu.value_count);
    ds__spinlock_unlock(&ds__cpu.value_lock);
    if (over && atomic_exchange(&ds__cpu.value_look, 1) == 0)
        ds__cpu_wake_worker();
    return left;
}

static void ds__cpu_poller_sleep(uint32_t word, uint64_t nap) {
    atomic_store(&ds__cpu.poller_sleeps, nap > DS__CPU_POLLER_NAP_NS);
    ds__futex_wait(&ds__cpu.poller_word, word, nap);
    atomic_store(&ds__cpu.poller_sleeps, 0);
}

/* Looks at the words while streams wait: without a pause for twice ds__cpu_spin after a stream was
   parked, unless all workers are awake and may need the processor; then at growing intervals. */
static void *ds__cpu_poller_main(void *unused) {
    uint64_t nap = 0;
    uint64_t since = 0;
    uint32_t seen = 0;
    (void)unused;
    ds__os_library_thread();
    ds__cpu_affinity_bind();
    for (;;) {
        uint32_t word = atomic_load(&ds__cpu.poller_word);
        if (atomic_load(&ds__cpu.poller_quit))
            break;
        if (word != seen) {
            seen = word;
            nap = DS__CPU_POLLER_NAP_NS;
            since = ds__now_ns();
        }
        if (!ds__cpu_poller_look()) {
            ds__cpu_poller_sleep(word, DS__FOREVER);
            continue;
        }
        uint64_t spin = ds__cpu_spin();
        if (spin && atomic_load(&ds__cpu.parked) > 0 && ds__now_ns() - since < 2 * spin) {
            ds__processor_pause();
            continue;
        }
        ds__cpu_poller_sleep(word, nap);
        nap += nap / 4;
        if (nap > DS__CPU_TICK_NS)
            nap = DS__CPU_TICK_NS;
    }
    return NULL;
}

/* Starts the poller, if there is none. A wait is accepted only if a thread looks at its word. */
static ds_result ds__cpu_poller_start(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__cpu.poller_started, memory_order_acquire)))
        return DS_OK;
    int error = 0;
    ds__spinlock_lock(&ds__cpu.lock);
    if (!atomic_load(&ds__cpu.poller_started)) {
        error = ds__os_thread_start(&ds__cpu.poller, ds__cpu_poller_main, NULL);
        atomic_store(&ds__cpu.poller_started, error == 0);
    }
    ds__spinlock_unlock(&ds__cpu.lock);
    return error ? ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error))
                 : DS_OK;
}

/* Starts the poller if a list has waits. */
static ds_result ds__cpu_values_ready(const ds_value_op *list, size_t count) {
    size_t waits = 0;
    for (size_t i = 0; i < count; i++)
        waits += list[i].kind != DS_VALUE_WRITE;
    return waits ? ds__cpu_poller_start() : DS_OK;
}

static void ds__cpu_poller_end(void) {
    if (!atomic_load(&ds__cpu.poller_started))
        return;
    atomic_store(&ds__cpu.poller_quit, 1);
    ds__cpu_poller_call();
    ds__os_thread_join(ds__cpu.poller);
    atomic_store(&ds__cpu.poller_started, 0);
}

#endif
