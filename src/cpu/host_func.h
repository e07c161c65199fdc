/* cpu/host_func.h - host functions and the threads for them.

   Hands a stream whose next operation is a host function or a callback to a thread for host
   functions (ds__cpu_to_host), and invokes it (ds__cpu_host_op). ds__cpu_kick_host does so after a
   submission. ds__cpu_host_ready starts the first such thread, ds__cpu_host_spawn a further one.

   An idle thread first looks at `host_queued` for some microseconds (`host_spinning`), then it
   sleeps. If it must be woken, threads that spin leave it a processor (ds__cpu_host_wakes).
   Otherwise the system could let it wait until their time to spin is over.

   Invariants: before a host function is enqueued, at least one thread exists that can run it. A
   stream in the list for these threads is in state AT_HOST. A host function is skipped if its
   stream has failed, but a callback is invoked with the failure. The destructor runs after
   either.
   Locks: the pool's lock guards the list and the counts of threads. ds__cpu_host_spawn expects
   it, and calls ds__os_thread_start and the program's allocator under it. User code runs without a
   lock of the driver.
   Threads: ds__cpu_to_host runs on the owner of the stream, ds__cpu_kick_host on a submitter.
   ds__cpu_host_op runs on a thread for host functions, or in inline mode on the submitter.
   Submitters and the monitor start threads. */
#ifndef DS__CPU_HOST_FUNC_H
#define DS__CPU_HOST_FUNC_H

#include "../base/observe.h"
#include "types.h"
#include "failure.h"
#include "scheduler.h"

/* Starts one more thread for host functions. The pool's lock is held. If the system refuses, the
   monitor tries again at its next tick. */
static void ds__cpu_host_spawn(void) {
    if (ds__cpu.host_threads == ds__cpu.host_room) {
        int room = ds__cpu.host_room ? 2 * ds__cpu.host_room : 16;
        ds__os_thread *more = ds__host_alloc((size_t)room * sizeof *more);
        if (!more)
            return;
        if (ds__cpu.host_thread)
            memcpy(more, ds__cpu.host_thread, (size_t)ds__cpu.host_threads * sizeof *more);
        ds__host_free(ds__cpu.host_thread);
        ds__cpu.host_thread = more;
        ds__cpu.host_room = room;
    }
    if (ds__os_thread_start(&ds__cpu.host_thread[ds__cpu.host_threads], ds__cpu_host_main, NULL) ==
        0)
        ds__cpu.host_threads++;
}

/* Starts the first thread for host functions, if there is none. A host function is accepted only if
   a thread exists that can run it. */
static ds_result ds__cpu_host_ready(void) {
    if (DS__LIKELY(atomic_load_explicit(&ds__cpu.host_threads, memory_order_relaxed) > 0))
        return DS_OK;
    ds__spinlock_lock(&ds__cpu.lock);
    if (atomic_load(&ds__cpu.host_threads) == 0)
        ds__cpu_host_spawn();
    ds__spinlock_unlock(&ds__cpu.lock);
    return atomic_load(&ds__cpu.host_threads) > 0
               ? DS_OK
               : ds__fail(DS_ERR_OUT_OF_MEMORY, "no thread for host functions could be started");
}

/* Hands a stream whose next operation is a host function to the threads for these. The caller does
   not own the stream any more then. */
static void ds__cpu_to_host(ds__cpu_stream *s) {
    atomic_fetch_add(&ds__cpu.host_busy, 1);
    ds__spinlock_lock(&ds__cpu.lock);
    atomic_store(&s->state, DS__CPU_AT_HOST);
    s->next = NULL;
    if (ds__cpu.host_tail)
        ds__cpu.host_tail->next = s;
    else
        ds__cpu.host_head = s;
    ds__cpu.host_tail = s;
    int idle = ds__cpu.host_idle;
    int spinning = atomic_load_explicit(&ds__cpu.host_spinning, memory_order_relaxed);
    int queued = atomic_load_explicit(&ds__cpu.host_queued, memory_order_relaxed) + 1;
    atomic_store_explicit(&ds__cpu.host_queued, queued, memory_order_release);
    ds__spinlock_unlock(&ds__cpu.lock);
    /* a thread that spins looks at the list under the lock before it sleeps */
    if (queued > spinning && idle > spinning) {
        atomic_store_explicit(&ds__cpu.caller_at, ds__os_processor(), memory_order_relaxed);
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, 1);
    }
    /* a thread that counts as idle may have been woken for another stream */
    if (!idle || queued > 1)
        ds__cpu_wake_monitor();
}

/* Returns 1 if a thread for host functions wakes up, and so needs a processor, or if all of them
   are busy. */
static inline int ds__cpu_host_wakes(void) {
    return atomic_load_explicit(&ds__cpu.host_queued, memory_order_relaxed) >
           atomic_load_explicit(&ds__cpu.host_spinning, memory_order_relaxed);
}

/* Like ds__cpu_kick, after the submission of a host function. If nothing is before the host
   function on the stream, no worker is woken for it, and none spins while it runs. With a seed, a
   random stream is next, and a worker takes it. */
static void ds__cpu_kick_host(ds__cpu_stream *s) {
    uint32_t state = atomic_load(&s->state);
    if (ds__cpu.seed || (state != DS__CPU_IDLE && state != DS__CPU_POLLED)) {
        ds__cpu_kick(s);
        return;
    }
    if (!atomic_compare_exchange_strong(&s->state, &state, DS__CPU_RUNNING))
        return; /* the thread that has the stream now sees the operation */
    /* acquire: the operation may be one that another thread has submitted since */
    if (atomic_load_explicit(&s->submitted, memory_order_acquire) ==
        atomic_load_explicit(&s->done, memory_order_relaxed)) {
        ds__cpu_go_idle(s);
        return;
    }
    int kind = ds__cpu_head(s)->kind;
    if (kind == DS__OP_HOST || kind == DS__OP_CALLBACK) {
        ds__cpu_to_host(s);
    } else if (!ds__cpu_park_waiting(s)) {
        atomic_store(&s->state, DS__CPU_READY);
        ds__cpu_push_ready(s);
    }
}

/* Invokes the host function or callback of operation `number`, and its destructor. */
static void ds__cpu_host_op(ds__cpu_stream *s, const ds__op *op, uint64_t number) {
    ds__cpu_failure *f = ds__cpu_failed(s, number);
    int outer = ds__tls.in_callback;
    ds__tls.in_callback = 1;
    ds__handed_over(DS__SEEN_ACQUIRE, op->u.host.user, ds__cpu_handle(s));
    if (op->kind == DS__OP_CALLBACK) {
        ds_stream stream = { op->u.host.stream };
        if (f)
            snprintf(ds__tls.error, sizeof ds__tls.error, "%s", f->text);
        op->u.host.callback(stream, f ? f->code : DS_OK, op->u.host.user);
    } else if (!f) {
        op->u.host.fn(op->u.host.user);
    }
    if (op->u.host.dtor_fn)
        op->u.host.dtor_fn(op->u.host.user);
    ds__handed_over(DS__SEEN_RELEASE, op->u.host.user, ds__cpu_handle(s));
    ds__tls.in_callback = outer;
}

#endif
