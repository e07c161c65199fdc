/* api/cpu.h - options, virtual clock and counters of the CPU driver.

   Declares the options of the CPU driver for ds_init, the description of a modelled machine
   (ds_cpu_fabric), and the functions for counters and virtual time.

   Threads: ds_cpu_get_stats may be called by any thread, also while work runs. */
#ifndef DS__API_CPU_H
#define DS__API_CPU_H

#include "result.h"

/** Most virtual devices. */
#define DS_CPU_MAX_DEVICES 160

enum {
    /** every call runs its work before it returns, for debugging [DEVSTREAM_CPU_INLINE=1] */
    DS_CPU_INLINE = 1,
    /** threads sleep at once instead of spinning for a few tens of microseconds first */
    DS_CPU_NO_SPIN = 2,
    /** calls that a capture forbids on a GPU although the CPU driver could do them
        (ds_device_alloc, ds_device_free, ...: see ds_capture_mode) are allowed */
    DS_CPU_LAX_CAPTURE = 4
};

/* A fabric describes a machine that is not here: the links between devices and how fast they are.
   With one the driver has a virtual clock, in nanoseconds from 0. Everything is done as without, in
   an order and at times that follow from the description alone, so that schedules can be measured
   exactly and the same on every run, for machines of any kind.

   When work runs. It is held back until a thread of the program waits for something (also
   ds_event_query and ds_stream_query do, until nothing more can be done without the program). Then
   operations run, one at a time, until that is done, and the clock goes on to the moment at which
   it was. What is submitted counts as submitted at the clock of the call, so all that is submitted
   between two waits begins together. When nothing more can run although somebody waits, the clock
   goes on to the end of all that ran. Work is not held back for ever: when for some tenths of a
   second no call has come, or more than a million operations are queued, all of it runs.

   In which order. An operation is ready when the one before it on its stream is done, and what that
   stream waited for, but not before it was submitted. Of all ready operations the one that was
   ready first comes next, of several the one whose stream was created first. It starts when all
   that it needs is free of operations that came earlier, and nothing that comes later can delay it.

   How long it takes.
   - A copy from a to b, either of which may be the host, needs a copy engine of its stream's device
     and every link of the route from a to b. It starts when one of the engines and all the links
     are free. It holds the engine for engine_ns + bytes / the slowest link's bytes_per_s, each link
     for bytes / its own bytes_per_s (so two copies share a fast link ahead of two slow ones), and
     is done latency_ns after it gives the engine back: the latency holds nothing, and a copy on
     another stream overlaps it.
   - Without a direct route between two devices the copy is two, one after the other, from a to the
     host by an engine of a and from there to b by one of b.
   - Copies within a device, fills of its memory, and kernels with ds_kernel_desc.bytes_fn, which
     the library's own have, take the bytes that they read and write / memory_bytes_per_s; one at a
     time on a device, without engine or link. Other kernels take no time.
   - Host functions, records, waits, and what only touches host memory take no time. While a host
     function runs the clock stands, unless it takes longer than some hundredths of a second: then
     it may be waiting for something, others go on, and times depend on it.
   Bytes / a speed is the nearest number of nanoseconds to bytes * 1e9 / bytes_per_s, at least 1.
   Times of events (ds_event_get_elapsed_ms) are the clock's. One worker runs everything, so kernels
   that wait for each other never end. */

/** The way of a copy from one device, or from the host, to another. */
typedef struct ds_cpu_route {
    int64_t latency_ns; /**< from the end of the transfer until the copy is done */
    /** between devices: 1: the first reaches the second (ds_device_can_access_peer); 0: copies
        go through the host */
    int direct;
    size_t hops;     /**< links on the way */
    const int *link; /**< their indices, each once */
} ds_cpu_route;

enum {
    /** copies, fills, and kernels with bytes_fn take their time but do nothing; device memory is
        address space that costs nothing until it is touched, and without a memory_limit each
        device has 256 GiB of it */
    DS_CPU_DRY = 1
};

/** The links between devices; see above. */
typedef struct ds_cpu_fabric {
    int devices;                    /**< of which it is; ds_cpu_desc.devices is the same or 0 */
    size_t links;                   /**< number of links, each of one direction */
    const double *link_bytes_per_s; /**< of each link, at least 1 */
    /** (devices + 1) x (devices + 1), row: from, column: to; index `devices` is host memory */
    const ds_cpu_route *route;
    int engines; /**< copy engines of each device, up to 64; 0: 3 */
    /** for which a copy holds its engine besides the transfer; 0: 1500 */
    int64_t engine_ns;
    double memory_bytes_per_s; /**< of a device's memory, read and written; 0: 2e12 */
    unsigned flags;            /**< DS_CPU_DRY or 0 */
    uint64_t reserved[4];      /**< 0 */
} ds_cpu_fabric;

/** Options of the CPU driver; zero means default. */
typedef struct ds_cpu_desc {
    /** virtual devices, 1 to DS_CPU_MAX_DEVICES; 0: 1 [DEVSTREAM_CPU_DEVICES] */
    int devices;
    /** threads that run copies, fills and kernels, 1 to 256; 0: one per processor, at least 2; less
        processors count where the affinity mask or cpu.max of a control group says so
        [DEVSTREAM_CPU_WORKERS] */
    int workers;
    /** bytes of each device; 0: the machine's memory, or the smallest memory.max of the
        process's control groups [DEVSTREAM_CPU_MEMORY] */
    size_t memory_limit;
    /** devices x devices, row = device that reaches, 1 = can; NULL: all can */
    const unsigned char *peer_access;
    unsigned flags; /**< DS_CPU_* */
    /** not 0: a scheduler that takes ready streams in a random order drawn from this seed, one
        operation at a time, to bring out ordering bugs [DEVSTREAM_CPU_SEED] */
    uint64_t seed;
    /** NULL: none; else a virtual clock with modelled links: workers and what the environment
        says of devices, inline mode and seed have no effect, and peer_access, DS_CPU_INLINE and
        seed must not be given; copied by ds_init */
    const ds_cpu_fabric *fabric;
    uint64_t reserved[8]; /**< 0 */
} ds_cpu_desc;

/** Counters of the CPU driver since it was initialised, for tests and reports. */
typedef struct ds_cpu_stats {
    uint64_t operations;    /**< operations finished */
    uint64_t staged_copies; /**< copies between devices that cannot reach each other */
    /** operations that the calling thread ran at once on an idle stream */
    uint64_t inline_operations;
    uint64_t helped;  /**< times a waiting host thread ran a stream */
    int workers;      /**< worker threads */
    int host_threads; /**< threads for host functions, so far */
    /** streams alive, with destroyed ones that have work or wait to be reclaimed (64 at a time) */
    int streams;
    size_t queue_bytes;   /**< memory that holds pending operations, spare blocks included */
    uint64_t reserved[8]; /**< 0 */
} ds_cpu_stats;

/** Reads the counters; zeros before first use. Any thread, also while work runs. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_stats(ds_cpu_stats *out);

/** The virtual time now, in nanoseconds: all that the program has waited for so far was done by
    then. Runs nothing itself. DS_ERR_UNSUPPORTED without a fabric. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_clock(int64_t *out_ns);

#endif
