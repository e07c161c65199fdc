/* cpu/driver.h - driver table, start and stop of the CPU driver.

   Defines the table ds__cpu_driver, starts the driver (ds__cpu_init) and stops it
   (ds__cpu_deinit). ds__cpu_passed tells the core whether all work that was pending at a mark is
   over. Implements ds_cpu_get_stats and ds_cpu_get_clock.

   Invariants: the options, limits and counts that threads read are set before the first thread
   starts. If ds__cpu_init fails, its threads have ended and its memory is freed. ds__cpu_deinit
   waits for all work, ends all threads, and then frees queues, streams, events and failures.
   Locks: probe, start and stop are called under the core's initialisation mutex (`ds__g.mutex`).
   ds__cpu_deinit waits for work and joins threads under it, so host functions may run meanwhile.
   ds__cpu_passed takes the lock of one device after another, and ds_cpu_get_stats the pool's
   lock.
   Threads: start and stop run on one thread, without other calls. The rest runs on caller's
   threads. */
#ifndef DS__CPU_DRIVER_H
#define DS__CPU_DRIVER_H

#include "activity.h"
#include "affinity.h"
#include "types.h"
#include "worker.h"
#include "submit.h"
#include "stream.h"
#include "stream_wait.h"
#include "event.h"
#include "watcher.h"
#include "capture.h"
#include "capture_op.h"
#include "graph.h"
#include "memory.h"
#include "reach.h"
#include "share.h"
#include "timeline.h"
#include "together.h"
#include "host_memory.h"
#include "device.h"
#include "options.h"

static void ds__cpu_probe(ds_backend_info *out) {
    out->name = "cpu";
    out->type = DS_DEVICE_CPU;
    out->available = 1;
    out->device_count =
        ds__cpu_option(ds__cpu_desc()->devices, "DEVSTREAM_CPU_DEVICES", 1, DS_CPU_MAX_DEVICES);
    snprintf(out->reason, sizeof out->reason,
             "taken: %d virtual device%s on this machine's %d processor%s", out->device_count,
             out->device_count == 1 ? "" : "s", ds__os_processors(),
             ds__os_processors() == 1 ? "" : "s");
}

static void ds__cpu_deinit(void);

/* Returns the least time of several between two reads of the clock in a row. */
static uint64_t ds__cpu_clock_cost(void) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 32; i++) {
        uint64_t start = ds__now_ns();
        uint64_t took = ds__now_ns() - start;
        least = took < least ? took : least;
    }
    return least;
}

/* Returns the number of pauses of a processor in DS__CPU_STREAM_NS, at least 8. An instruction
   "pause" takes 10 ns or less on some processors, and 50 ns on others. */
static uint32_t ds__cpu_count_pauses(void) {
    enum { PAUSES = 64 };

    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 8; i++) {
        uint64_t start = ds__now_ns();
        for (int k = 0; k < PAUSES; k++)
            ds__processor_pause();
        uint64_t took = ds__now_ns() - start;
        least = took < least ? took : least;
    }
    uint64_t pauses = DS__CPU_STREAM_NS * (uint64_t)PAUSES / (least ? least : 1);
    if (pauses < 8)
        return 8;
    return pauses < 100000 ? (uint32_t)pauses : 100000;
}

/* Sets the options of the driver, from the kept ones and from the environment. Returns the number
   of workers to start. */
static int ds__cpu_options_apply(const ds_cpu_desc *desc) {
    int processors = ds__os_processors();
    if (ds__cpu_bound.count) {
        int listed = ds__os_affinity_count(&ds__cpu_bound.mask);
        processors = listed < processors ? listed : processors;
    }
    int workers = ds__cpu_option(desc->workers, "DEVSTREAM_CPU_WORKERS",
                                 processors > 2 ? processors : 2, DS__CPU_MAX_WORKERS);
    ds__cpu.devices = ds__cpu_option(desc->devices, "DEVSTREAM_CPU_DEVICES", 1, DS_CPU_MAX_DEVICES);
    ds__cpu.processors = processors;
    ds__cpu.spin_limit = processors > 1 ? processors - 1 : 1;
    ds__cpu.clock_ns = ds__cpu_clock_cost();
    ds__cpu.stream_pauses = ds__cpu_count_pauses();
    ds__cpu.is_lax = (desc->flags & DS_CPU_LAX_CAPTURE) != 0;
    ds__cpu.is_inline = (desc->flags & DS_CPU_INLINE) || ds__env_number("DEVSTREAM_CPU_INLINE");
    int unreachable =
        (desc->flags & DS_CPU_UNREACHABLE) || ds__env_number("DEVSTREAM_CPU_UNREACHABLE");
    ds__g.unreachable = unreachable;
    ds__cpu.seed = desc->seed ? desc->seed : ds__env_number("DEVSTREAM_CPU_SEED");
    /* as with a seed, nothing runs at once, nothing is split, and waiting threads run no work */
    if (desc->fabric) {
        ds__cpu.fabric = desc->fabric;
        ds__cpu.seed = 1;
        workers = 1;
        ds__cpu.is_inline = 0;
    }
    atomic_store(&ds__cpu.modes, (ds__cpu.seed || ds__cpu.is_inline ? DS__CPU_ORDERED : 0u) |
                                     (ds__cpu.fabric ? DS__CPU_VIRTUAL : 0u) |
                                     (unreachable ? DS__CPU_UNREACHABLE : 0u));
    ds__cpu.random = ds__cpu.seed * 2862933555777941757u + 3037000493u;
    return workers;
}

/* Allocates the tables of devices and workers, of peer access, and of the virtual clock. On
   failure, ds__cpu_deinit frees the tables that were allocated. */
static ds_result ds__cpu_tables_alloc(const ds_cpu_desc *desc, int workers) {
    size_t n = (size_t)ds__cpu.devices;
    size_t links = desc->fabric ? desc->fabric->links : 0;
    size_t engines = desc->fabric ? n * (size_t)desc->fabric->engines : 0;
    ds__cpu.device = ds__host_alloc(n * sizeof *ds__cpu.device);
    ds__cpu.worker = ds__host_alloc((size_t)workers * sizeof *ds__cpu.worker);
    if (desc->fabric)
        ds__cpu.link_free = ds__host_alloc((links + engines + n) * sizeof(int64_t));
    if (ds__cpu.link_free) {
        ds__cpu.engine_free = ds__cpu.link_free + links;
        ds__cpu.memory_free = ds__cpu.engine_free + engines;
    }
    if (!ds__cpu.device || !ds__cpu.worker || (desc->fabric && !ds__cpu.link_free))
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for the CPU driver");
    return ds__cpu_peers_create(desc, n, &ds__cpu.peers);
}

/* Sets the memory limit of all devices: that of the options, else 256 GiB for dry devices, else
   that of the environment, else all memory that this process may use. */
static void ds__cpu_limits_set(const ds_cpu_desc *desc) {
    size_t limit = desc->memory_limit;
    if (!limit && ds__cpu_is_dry(SIZE_MAX))
        limit = (size_t)1 << 38;
    else if (!limit)
        limit = (size_t)ds__env_number("DEVSTREAM_CPU_MEMORY");
    ds__cpu.memory = ds__os_memory();
    for (int i = 0; i < ds__cpu.devices; i++)
        ds__cpu.device[i].limit = limit ? limit : ds__cpu.memory;
}

/* Starts the workers and the monitor. The values that they read must be set before. All workers
   count as awake, so that no submission misses one that is still starting. Returns 0, or the
   system's error; ds__cpu_deinit then ends the threads that were started. */
static int ds__cpu_threads_start(int workers) {
    int error = 0;
    ds__cpu.workers = workers;
    for (int i = 0; i < workers; i++)
        atomic_fetch_add(&ds__cpu.ready[ds__cpu.worker[i].group].lookers, 1);
    atomic_store(&ds__cpu.monitor_word, 1);
    for (int i = 0; i < workers && !error; i++) {
        error =
            ds__os_thread_start(&ds__cpu.worker[i].thread, ds__cpu_worker_main, &ds__cpu.worker[i]);
        if (!error)
            ds__cpu.workers_started++;
    }
    if (!error)
        error = ds__os_thread_start(&ds__cpu.monitor, ds__cpu_monitor_main, NULL);
    ds__cpu.monitor_started = error == 0;
    atomic_store(&ds__callers.gone_fn, ds__cpu_wake_monitor);
    return error;
}

static int64_t ds__cpu_spin_get(void) {
    return (int64_t)ds__cpu_spin();
}

/* Threads that spin see the new time at their next read of the clock. */
static void ds__cpu_spin_set(int64_t ns) {
    atomic_store_explicit(&ds__cpu.spin_ns, (uint64_t)ns, memory_order_relaxed);
}

/* Returns with all threads started, or without any thread and memory. */
static ds_result ds__cpu_init(void) {
    const ds_cpu_desc *desc = ds__cpu_desc();
    memset(&ds__cpu, 0, sizeof ds__cpu);
    ds_result r = ds__cpu_affinity_start(desc);
    if (r < 0)
        return r;
    int workers = ds__cpu_options_apply(desc);
    uint64_t spin = 0;
    r = ds__cpu_spin_read(desc, DS__CPU_SPIN_NS, &spin);
    ds__cpu_spin_set((int64_t)spin);
    if (r == DS_OK)
        r = ds__cpu_tables_alloc(desc, workers);
    ds__cpu.started = 1;
    if (r < 0) {
        ds__cpu_deinit();
        return r;
    }
    ds__cpu_limits_set(desc);
    ds__cpu_place_workers(desc, workers);
    int error = ds__cpu_threads_start(workers);
    if (error) {
        ds__cpu_deinit();
        return ds__fail(DS_ERR_SYSTEM, "no thread could be started: %s", strerror(error));
    }
    return DS_OK;
}

/* Waits for all work, ends all threads, and frees all memory of the driver. */
static void ds__cpu_deinit(void) {
    atomic_store(&ds__callers.gone_fn, (void (*)(void))0);
    if (ds__cpu.workers_started && ds__cpu.device)
        ds__cpu_drain();
    ds__cpu_watcher_end();
    ds__cpu_poller_end();
    if (ds__cpu.started && ds__cpu.worker && ds__cpu.device) {
        atomic_store(&ds__cpu.quit, 1);
        atomic_fetch_add(&ds__cpu.wake_word, 1);
        ds__futex_wake(&ds__cpu.wake_word, INT_MAX);
        atomic_fetch_add(&ds__cpu.host_word, 1);
        ds__futex_wake(&ds__cpu.host_word, INT_MAX);
        atomic_store(&ds__cpu.monitor_word, 1);
        ds__futex_wake(&ds__cpu.monitor_word, INT_MAX);
        if (ds__cpu.monitor_started)
            ds__os_thread_join(ds__cpu.monitor);
        for (int i = 0; i < ds__cpu.workers_started; i++)
            ds__os_thread_join(ds__cpu.worker[i].thread);
        for (int i = 0; i < ds__cpu.host_threads; i++)
            ds__os_thread_join(ds__cpu.host_thread[i]);
        ds__cpu_together_end();
    }
    ds__cpu_freed_end();
    ds__cpu_reach_deinit();
    while (ds__cpu.raw) {
        void **raw = ds__cpu.raw;
        ds__cpu.raw = raw[0];
        ds__host_free(raw);
    }
    while (ds__cpu.failures) {
        ds__cpu_failure *f = ds__cpu.failures;
        ds__cpu.failures = f->next;
        ds__host_free(f);
    }
    ds__host_free(ds__cpu.host_thread);
    ds__host_free(ds__cpu.peers);
    ds__host_free(ds__cpu.link_free);
    ds__host_free(ds__cpu.worker);
    ds__host_free(ds__cpu.device);
    memset(&ds__cpu, 0, sizeof ds__cpu);
}

/* Lists all pending work. NULL: no memory. */
static ds__cpu_pending *ds__cpu_list_pending(void) {
    ds__cpu_pending *mark = ds__host_alloc(sizeof *mark);
    for (int i = 0; mark && i < ds__cpu.devices; i++) {
        size_t n;
        ds__cpu_token *one = ds__cpu_tokens(i, 0, &n);
        if (n == 0) {
            ds__host_free(one); /* the work has ended meanwhile */
            continue;
        }
        ds__cpu_pending *more = NULL;
        if (n != SIZE_MAX)
            more = ds__host_alloc(sizeof *more + (mark->count + n) * sizeof *one);
        if (more) {
            if (mark->count)
                memcpy(more->token, mark->token, mark->count * sizeof *one);
            memcpy(more->token + mark->count, one, n * sizeof *one);
            more->count = mark->count + n;
        }
        ds__host_free(one);
        ds__host_free(mark);
        mark = more;
    }
    return mark;
}

/* Returns 1 if the work that was pending at the first call with this mark is done. The first call,
   with *mark NULL, makes the mark; the last one frees it. */
static int ds__cpu_passed(void **mark) {
    ds__cpu_pending *m = *mark;
    if (!m)
        *mark = m = ds__cpu_list_pending();
    if (!m)
        return 0;
    while (m->count) {
        const ds__cpu_token *last = &m->token[m->count - 1];
        if (atomic_load_explicit(&last->stream->done, memory_order_acquire) < last->upto)
            return 0;
        m->count--;
    }
    ds__host_free(m);
    *mark = NULL;
    return 1;
}

/* Returns 1 if waiting threads and several workers may share an operation. */
static int ds__cpu_spreads(void) {
    return !ds__cpu_explores();
}

static const ds_cpu_fabric *ds__cpu_fabric(void) {
    return ds__cpu.fabric;
}

static int64_t ds__cpu_clock_ns(void) {
    return atomic_load(&ds__cpu.clock);
}

static void ds__cpu_stats(ds_cpu_stats *out) {
    out->operations = atomic_load(&ds__cpu.other_operations);
    for (int i = 0; i < ds__cpu.workers; i++)
        out->operations += atomic_load(&ds__cpu.worker[i].operations);
    out->staged_copies = atomic_load(&ds__cpu.staged);
    out->inline_operations = atomic_load(&ds__cpu.inlined);
    out->helped = atomic_load(&ds__cpu.helped);
    out->workers = ds__cpu.workers;
    ds__spinlock_lock(&ds__cpu.lock);
    out->host_threads = ds__cpu.host_threads;
    ds__spinlock_unlock(&ds__cpu.lock);
    out->streams = atomic_load(&ds__cpu.stream_count);
    out->queue_bytes = atomic_load(&ds__cpu.queue_bytes);
}

static const ds__driver ds__cpu_driver = { "cpu",
                                           DS_DEVICE_CPU,
                                           DS__CPU_INLINE_BYTES,
                                           ds__cpu_check,
                                           ds__cpu_configure,
                                           ds__cpu_probe,
                                           ds__cpu_init,
                                           ds__cpu_architectures,
                                           ds__cpu_device_used,
                                           ds__cpu_spreads,
                                           ds__cpu_fabric,
                                           ds__cpu_clock_ns,
                                           ds__cpu_stats,
                                           ds__cpu_spin_get,
                                           ds__cpu_spin_set,
                                           ds__cpu_drain,
                                           ds__cpu_deinit,
                                           ds__cpu_stream_destroy,
                                           ds__cpu_stream_unwrap,
                                           ds__cpu_stream_hide,
                                           ds__cpu_stream_forget,
                                           ds__cpu_stream_identity,
                                           ds__cpu_event_destroy,
                                           ds__cpu_timeline_pass,
                                           ds__cpu_timeline_fail,
                                           ds__cpu_timeline_get,
                                           ds__cpu_timeline_destroy,
                                           NULL, /* library_begin, library_end */
                                           NULL,
                                           ds__cpu_kernel_destroy,
                                           ds__cpu_capture_abandon,
                                           NULL, /* graph_destroy */
                                           ds__cpu_exec_destroy,
                                           ds__cpu_passed,
                                           ds__cpu_memory_release,
                                           ds__cpu_space_release,
                                           ds__cpu_stream_named,
                                           ds__cpu_activity_set,
                                           NULL, /* activity_source */
                                           ds__cpu_activity_collect,
                                           ds__cpu_activity_last,
                                           ds__cpu_activity_standing,
                                           ds__cpu_share_end,
#define DS__MEMBER(entry, parameters, arguments) ds__cpu_##entry,
                                           DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

#endif
