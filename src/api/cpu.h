/* api/cpu.h - options, virtual clock, spinning and counters of the CPU driver.

   Declares the options of the CPU driver for ds_init, the description of a modelled machine
   (ds_cpu_fabric), and the functions for counters, virtual time and the time that threads spin.

   Threads: any thread may call the functions, also while work runs. */
#ifndef DS__API_CPU_H
#define DS__API_CPU_H

#include "result.h"

/** Maximum number of virtual devices. */
#define DS_CPU_MAX_DEVICES 160

/** Longest time for ds_cpu_set_spin, in nanoseconds: one second. */
#define DS_CPU_MAX_SPIN_NS 1000000000

enum {
    /** each call runs its work before it returns, for debugging [DEVSTREAM_CPU_INLINE=1] */
    DS_CPU_INLINE = 1,
    /** threads sleep at once, without spinning first; ds_cpu_set_spin(0) does the same later */
    DS_CPU_NO_SPIN = 2,
    /** allows calls that a capture forbids on a GPU but the CPU driver supports (ds_device_alloc,
        ds_device_free, ...: see ds_capture_mode) */
    DS_CPU_LAX_CAPTURE = 4,
    /** for debugging: the host cannot reach memory of CPU devices [DEVSTREAM_CPU_UNREACHABLE=1].
        A read or write by the program's threads or by a host function raises SIGSEGV, as for memory
        of a GPU. While a kernel, copy, fill, closure or operation on a word of device memory runs
        on any stream, the memory is accessible to all threads, and a wrong access is not caught;
        each operation closes the memory before it counts as complete. So an access after
        ds_device_synchronize is caught unless another device is busy. Allocations take whole pages.
        Pinned, registered and shared memory (IPC) stays accessible. A copy between such memory and
        a GPU must be enqueued on a stream of the CPU device. Each operation costs two system calls
        for each allocation or run of mapped pages. All other options may be set, too */
    DS_CPU_UNREACHABLE = 8
};

/* A fabric describes a modelled machine: the links between devices and their rates. With a fabric,
   the driver has a virtual clock in nanoseconds from 0. Results are the same as without a fabric.
   Order and times follow from the description alone. Schedules of any machine can thus be measured
   exactly and reproducibly.

   When work runs. Work is held back until a thread of the program waits. ds_event_query and
   ds_stream_query count as waits, until all work that can run has run. Then operations run one at
   a time until the awaited work is complete, and the clock advances to its completion. Work is
   submitted at the clock of its call, so all work submitted between two waits begins together. If
   no work can run while a thread waits, the clock advances to the end of all completed work. Held
   work also runs if no call has come for some tenths of a second, or if more than a million
   operations are queued.

   In which order. An operation is ready after its submission, the operation before it on its
   stream, and the awaited work of that stream. The operation that was ready first runs next; among
   equals, the one of the oldest stream. It starts when all its resources are free of earlier
   operations. Later operations cannot delay it.

   How long it takes.
   - A copy from a to b, either of which may be the host, needs a copy engine of its stream's device
     and every link of the route from a to b. It starts when one of the engines and all links are
     free. It occupies the engine for engine_ns + bytes / the slowest link's bytes_per_s, and each
     link for bytes / the link's bytes_per_s. So two copies share a fast link ahead of two slow
     links. The copy is complete latency_ns after it releases the engine. The latency occupies no
     resource, and a copy on another stream overlaps it.
   - Without a direct route between two devices, a copy becomes two successive copies: from a to the
     host by an engine of a, then to b by an engine of b.
   - Copies within a device, fills of its memory, and kernels with ds_kernel_desc.bytes_fn (such as
     the library's own) take (bytes read + bytes written) / memory_bytes_per_s. They run one at a
     time on a device and need neither engine nor link. Other kernels take no time.
   - Host functions, records, waits, operations on words of memory (ds_stream_wait_value32), and
     operations on host memory only take no time. A wait for a word ends at the end of the
     operation that writes it, or, if the host writes it, at the time of the clock. A copy has its
     effect when it starts, so a wait that begins later may end before the copy. The clock stops
     while a host function runs. If a host function takes longer than some hundredths of a second,
     other operations continue, and times depend on it.
   Bytes / a rate is bytes * 1e9 / bytes_per_s, rounded to nanoseconds, at least 1. Times of events
   (ds_event_get_elapsed_ms) are the clock's. One worker runs all work, so kernels that wait for
   each other never end. */

/** Route of copies from one device, or from the host, to another. */
typedef struct ds_cpu_route {
    int64_t latency_ns; /**< from the end of the transfer to the completion of the copy */
    /** between devices: 1: the first can access the second (ds_device_can_access_peer); 0: copies
        are staged through the host */
    int direct;
    size_t hops;     /**< links of the route */
    const int *link; /**< indices of the links, each at most once */
} ds_cpu_route;

enum {
    /** copies, fills, and kernels with bytes_fn take their time but have no effect. Device memory
        is address space without cost until it is accessed; without a memory_limit, each device has
        256 GiB */
    DS_CPU_DRY = 1
};

/** The links between devices; see above. */
typedef struct ds_cpu_fabric {
    /** number of devices; ds_cpu_desc.devices must be equal or 0 */
    int devices;
    size_t links;                   /**< number of links, each in one direction */
    const double *link_bytes_per_s; /**< rate of each link, at least 1 */
    /** (devices + 1) x (devices + 1), row: from, column: to; index `devices` is host memory */
    const ds_cpu_route *route;
    int engines; /**< copy engines of each device, up to 64; 0: 3 */
    /** time that a copy occupies its engine besides the transfer; 0: 1500 */
    int64_t engine_ns;
    double memory_bytes_per_s; /**< rate of a device's memory for reads and writes; 0: 2e12 */
    unsigned flags;            /**< DS_CPU_DRY or 0 */
    uint64_t reserved[4];      /**< 0 */
} ds_cpu_fabric;

/** Options of the CPU driver; zero means default. */
typedef struct ds_cpu_desc {
    /** virtual devices, 1 to DS_CPU_MAX_DEVICES; 0: 1 [DEVSTREAM_CPU_DEVICES] */
    int devices;
    /** threads that run copies, fills and kernels, 1 to 256; 0: one per processor, at least
        2. The affinity mask and cpu.max of the control group limit the processors
        [DEVSTREAM_CPU_WORKERS] */
    int workers;
    /** memory of each device in bytes; 0: the machine's memory, or the smallest memory.max of the
        process's control groups [DEVSTREAM_CPU_MEMORY] */
    size_t memory_limit;
    /** devices x devices, row: accessing device, column: accessed device, 1: access. NULL:
        by the environment: all (default), none, or half, with no access between the lower and the
        upper half of the devices [DEVSTREAM_CPU_PEERS=all, none or half] */
    const unsigned char *peer_access;
    unsigned flags; /**< DS_CPU_* */
    /** not 0: ready streams run in a random order drawn from this seed, one operation at a time, to
        expose ordering bugs [DEVSTREAM_CPU_SEED] */
    uint64_t seed;
    /** NULL: no fabric. Otherwise a virtual clock with modelled links; copied by ds_init. The
        environment variables for devices, workers, peers, inline mode and seed have no effect.
        workers, peer_access, DS_CPU_INLINE and seed must not be set */
    const ds_cpu_fabric *fabric;
    /** processors for the threads of the driver, as numbers and ranges: "0-3,8". Worker i runs on
        the i-th one of the list, again from its start if there are more workers. All other threads
        of the driver, among them those for host functions, may use each processor of the list.
        Without a number of workers, there is one per processor of the list, at least 2. A processor
        may be named twice. Only processors of the affinity mask of the calling thread are allowed.
        "": not bound; NULL: by the environment, or else, on a machine with several nodes of memory
        (NUMA), each worker may use the processors of its node; copied by ds_init
        [DEVSTREAM_CPU_AFFINITY] */
    const char *affinity;
    uint64_t reserved[7]; /**< 0 */
} ds_cpu_desc;

/** Counters of the CPU driver since its initialisation, for tests and reports. */
typedef struct ds_cpu_stats {
    uint64_t operations;    /**< operations finished */
    uint64_t staged_copies; /**< copies between devices without direct access */
    /** operations run at once by the calling thread on an idle stream */
    uint64_t inline_operations;
    uint64_t helped;  /**< number of times that a waiting host thread ran a stream */
    int workers;      /**< worker threads */
    int host_threads; /**< threads created for host functions so far */
    /** live streams, and destroyed streams with pending work or not yet reclaimed (64 at a time) */
    int streams;
    size_t queue_bytes;   /**< memory of pending operations and spare blocks */
    uint64_t reserved[8]; /**< 0 */
} ds_cpu_stats;

/** Returns the counters; 0 before first use. Any thread may call it, also while work runs. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_stats(ds_cpu_stats *out);

/** Returns the virtual time in nanoseconds: all work awaited so far was complete by then. Runs no
    work. DS_ERR_UNSUPPORTED without a fabric. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_clock(int64_t *out_ns);

/** Sets how long idle threads of the CPU driver look for work before they sleep: 0 to
    DS_CPU_MAX_SPIN_NS nanoseconds; 0: they sleep at once. A thread that waits for work looks twice
    as long. Until ds_shutdown, the value replaces that of DS_CPU_NO_SPIN and of the environment
    [DEVSTREAM_CPU_SPIN, in nanoseconds]; the default is 20000. Longer times make rare submissions
    faster and cost processor time; with 0, each submission to idle threads costs a wake-up. At most
    one thread less than there are processors looks at a time, besides waiting threads. With a
    fabric, the value has no effect. */
DSDEF DS_MUST_USE ds_result ds_cpu_set_spin(int64_t ns);

/** Returns the time that ds_cpu_set_spin sets. */
DSDEF DS_MUST_USE ds_result ds_cpu_get_spin(int64_t *out_ns);

#endif
