/* cpu/clock.h - virtual time of operations.

   Computes when operations begin and end on the machine that a fabric (ds_cpu_desc.fabric)
   models. ds__cpu_take_time advances a stream's time past an operation, ds__cpu_put_clock notes
   the clock at a submission, and ds__cpu_clock_up advances the clock.

   Policy:
   1. With a fabric there is one worker. After each operation it takes the ready stream whose
      time is the lowest.
   2. The time of a stream is the time at which its next operation is ready. It may be earlier
      while waits or clock notes (DS__CPU_OP_CLOCK) precede that operation. These take no time and
      hold nothing, so passing them too early is harmless.
   3. Only the last completed operation of a stream can end after the clock. Each earlier
      operation ended by the time the next one began, and the worker takes no operation that
      begins later than the requested one. The time of a token is therefore needed only while its
      operation is the last.

   Invariants: the clock never goes back. Time stamps are never 0. Only the worker uses
   `link_free`, `engine_free`, `memory_free` and `latest`. A stream has a `virt` exactly if there
   is a fabric and the stream is not a proxy.
   Locks: ds__cpu_put_clock expects the stream's put lock. The other functions take and expect
   none. A kernel's bytes_fn, which is user code, runs without a lock.
   Threads: ds__cpu_put_clock runs on submitting threads, ds__cpu_take_time only on the worker,
   and ds__cpu_clock_up on the worker and on waiting threads. The clock and the counters are
   atomic. */
#ifndef DS__CPU_CLOCK_H
#define DS__CPU_CLOCK_H

#include "../base/driver.h"
#include "types.h"
#include "queue.h"
#include "scheduler.h"

/* Advances the clock to this time, unless it has passed the time already. */
static void ds__cpu_clock_up(int64_t time) {
    int64_t now = atomic_load(&ds__cpu.clock);
    while (now < time && !atomic_compare_exchange_weak(&ds__cpu.clock, &now, time)) {
    }
}

/* Returns the time at which the stream passed the number. Returns 0 if the stream has passed later
   numbers since; the clock or the waiting stream has passed that time too (policy, point 3). */
static int64_t ds__cpu_time_of(const ds__cpu_stream *s, uint64_t upto) {
    return s->virt && atomic_load(&s->done) == upto ? atomic_load(&s->virt->end) : 0;
}

/* Advances the time of a stream that has waited for a number of `on`. */
static void ds__cpu_after(ds__cpu_stream *s, const ds__cpu_stream *on, uint64_t upto) {
    if (DS__LIKELY(!s->virt))
        return;
    int64_t time = ds__cpu_time_of(on, upto);
    if (s->virt->time < time)
        s->virt->time = time;
}

/* Returns a time stamp, which is never 0: virtual time, or real time without a virtual clock. */
static uint64_t ds__cpu_now(const ds__cpu_stream *s) {
    return DS__LIKELY(!s->virt) ? ds__now_ns() : (uint64_t)s->virt->time + 1;
}

static void ds__cpu_virtual_pass(ds__cpu_stream *s) {
    atomic_store(&s->virt->end, s->virt->time);
    if (s->kind != DS__STREAM_LANE)
        atomic_fetch_add_explicit(&ds__cpu.passed, 1, memory_order_relaxed);
}

/* Counts a submission. If the clock has advanced since the last submission of the stream, a note of
   the clock is enqueued. If too many operations are held back, all work runs. The put lock is
   held. */
static ds_result ds__cpu_put_clock(ds__cpu_stream *s) {
    int64_t now = atomic_load(&ds__cpu.clock);
    uint64_t puts = atomic_fetch_add_explicit(&ds__cpu.puts, 1, memory_order_relaxed);
    if ((puts & 4095) == 0 &&
        puts - atomic_load_explicit(&ds__cpu.passed, memory_order_relaxed) > DS__CPU_HELD) {
        atomic_store(&ds__cpu.run_all, 1);
        ds__cpu_wake_worker();
    }
    if (s->virt->put == now)
        return DS_OK;
    ds__op op = { .kind = DS__CPU_OP_CLOCK };
    op.u.own.number = now;
    ds_result r = ds__cpu_put_plain(s, &op);
    if (r < 0)
        return r;
    s->virt->put = now;
    atomic_fetch_add_explicit(&ds__cpu.puts, 1, memory_order_relaxed);
    return r;
}

/* Returns the nanoseconds that so many bytes take: rounded to the nearest number, at least 1 for
   any byte, and at most eleven days. */
static int64_t ds__cpu_spend(size_t bytes, double bytes_per_s) {
    double ns = (double)bytes * 1e9 / bytes_per_s;
    if (ns < 1)
        return bytes > 0;
    return ns < 1e15 ? (int64_t)(ns + 0.5) : 1000000000000000;
}

/* Moves bytes from one place to another by an engine of the device, which with all links of the
   route must be free first. Returns the time at which the bytes arrive. */
static int64_t ds__cpu_transfer(int device, int from, int to, size_t bytes, int64_t ready) {
    const ds_cpu_fabric *f = ds__cpu.fabric;
    const ds_cpu_route *route = &f->route[from * (f->devices + 1) + to];
    int64_t *engine = &ds__cpu.engine_free[device * f->engines];
    int64_t longest = 0;
    for (int e = 1; e < f->engines; e++)
        if (ds__cpu.engine_free[device * f->engines + e] < *engine)
            engine = &ds__cpu.engine_free[device * f->engines + e];
    int64_t start = ready < *engine ? *engine : ready;
    for (size_t i = 0; i < route->hops; i++)
        if (start < ds__cpu.link_free[route->link[i]])
            start = ds__cpu.link_free[route->link[i]];
    for (size_t i = 0; i < route->hops; i++) {
        int64_t ns = ds__cpu_spend(bytes, f->link_bytes_per_s[route->link[i]]);
        ds__cpu.link_free[route->link[i]] = start + ns;
        if (longest < ns)
            longest = ns;
    }
    *engine = start + f->engine_ns + longest;
    return *engine + route->latency_ns;
}

/* Reads and writes so many bytes of the device's memory. Returns the time at which this ends. */
static int64_t ds__cpu_memory_time(int device, size_t bytes, int64_t ready) {
    int64_t *at = &ds__cpu.memory_free[device];
    if (*at < ready)
        *at = ready;
    return *at += ds__cpu_spend(bytes, ds__cpu.fabric->memory_bytes_per_s);
}

/* Returns the place of an operand in the routes' numbering: a device, or the host after all
   devices. */
static int ds__cpu_end_of(const ds__op *op, int operand) {
    int place = ds__place_of(op, operand);
    return place >= DS__AT_DEVICE ? place - DS__AT_DEVICE : ds__cpu.fabric->devices;
}

/* Advances the stream's time to the end of a copy. If no direct route connects the two devices,
   the copy has two legs, through the host. After the first leg the function returns 1, and the
   worker comes to the operation once more. */
static int ds__cpu_take_copy_time(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_virtual *v = s->virt;
    size_t bytes = ds__op_bytes(op);
    int host = ds__cpu.fabric->devices;
    int from = ds__cpu_end_of(op, DS__OP_SRC);
    int to = ds__cpu_end_of(op, DS__OP_DST);
    if (from == to) {
        if (from != host)
            v->time = ds__cpu_memory_time(from, 2 * bytes, v->time);
        return 0;
    }
    if (from == host || to == host || ds__cpu.fabric->route[from * (host + 1) + to].direct) {
        v->time = ds__cpu_transfer(s->device, from, to, bytes, v->time);
        return 0;
    }

    v->leg = !v->leg;
    v->time = v->leg ? ds__cpu_transfer(from, from, host, bytes, v->time)
                     : ds__cpu_transfer(to, host, to, bytes, v->time);
    return v->leg;
}

/* Advances the stream's time to the end of the operation. Returns 1 if only the first leg of a
   copy is over; the worker then comes to the operation once more. */
static int ds__cpu_take_time(ds__cpu_stream *s, const ds__op *op) {
    ds__cpu_virtual *v = s->virt;
    int again = 0;
    if (op->kind == DS__CPU_OP_CLOCK) {
        if (v->time < op->u.own.number)
            v->time = op->u.own.number;
    } else if (op->kind == DS__OP_KERNEL && op->u.kernel.kernel->bytes_fn) {
        uint64_t bytes =
            op->u.kernel.kernel->bytes_fn(op->u.kernel.items, (const char *)op + DS__CPU_ARGS_AT);
        v->time = ds__cpu_memory_time(s->device, (size_t)bytes, v->time);
    } else if (op->kind == DS__OP_FILL &&
               ds__cpu_end_of(op, DS__OP_DST) != ds__cpu.fabric->devices) {
        v->time = ds__cpu_memory_time(ds__cpu_end_of(op, DS__OP_DST), ds__op_bytes(op), v->time);
    } else if (op->kind == DS__OP_COPY) {
        again = ds__cpu_take_copy_time(s, op);
    }
    if (ds__cpu.latest < v->time)
        ds__cpu.latest = v->time;
    return again;
}

#endif
