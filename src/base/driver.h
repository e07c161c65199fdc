/* base/driver.h - driver table.

   Defines the table of functions (ds__driver) by which the core calls a driver. Each driver
   fills in one table. The X-list DS__ENTRIES has all entries that can fail. The list generates
   the table's members, the fault layer and its names.

   Invariants: stream and event arguments are the driver's own objects, and a device is an index.
   Entries outside of the list cannot fail or must be carried out in any case, so no fault can be
   injected there. `start` is called before the first entry, `stop` after the last one.
   Locks: the two functions of this room take none. The core calls capture_begin with ds__g.begin
   held. It calls most entries for graphs and executables, and the submit of a launch, with the
   lock of that graph or executable held. An entry may block only if the public call may.
   Threads: any thread may call an entry, several at once. drain and stop are called by
   ds_shutdown only. */
#ifndef DS__BASE_DRIVER_H
#define DS__BASE_DRIVER_H

#include "../api/init.h"
#include "../api/memory.h"
#include "../api/capture.h"
#include "../api/cpu.h"
#include "object.h"
#include "operation.h"

/* Limits of all compute capabilities (CUDA C++ Programming Guide, "Compute Capabilities"), which
   the CPU driver keeps too. The most shared memory is that of compute capability 9.0 and 10.0. */
enum {
    DS__MAX_BLOCK_THREADS = 1024,
    DS__MAX_BLOCK_Z = 64,
    DS__MAX_GRID_YZ = 65535,
    DS__MAX_CLUSTER = 8, /* blocks */
    DS__MAX_SHARED_BYTES = 227 * 1024
};

/* What device_sensor reads, with the names for messages: percent of time and of memory's time,
   degrees Celsius, milliwatts, MHz of the multiprocessors and of the memory. */
enum { DS__SENSOR_UTILIZATION, DS__SENSOR_TEMPERATURE, DS__SENSOR_POWER, DS__SENSOR_CLOCK };

static const char *const ds__sensor_names[] = { "utilisation", "temperature", "power draw",
                                                "clock rate" };

typedef struct ds__process {
    unsigned id;
    uint64_t bytes; /* of the device's memory */
} ds__process;

typedef struct ds__processes {
    ds__process *list; /* from ds__host_alloc; the caller releases it */
    size_t count;
    char unknown[512]; /* why there is no list; empty: there is one */
} ds__processes;

/* X(entry, parameters, arguments): everything that a driver does, except starting, reporting and
   ending. The list makes the driver's table, the fault layer and its names. Stream and event
   arguments are the driver's own objects; device is an index.

   Properties of a device; these entries enable nothing on the device:
   device_link    1: the two devices, which differ, are joined by NVLink.
   device_speed   Copy engines of the device, and bytes per second of its memory; 0: not known.
   device_sensor  Reads DS__SENSOR_*: one value or two. DS_ERR_UNSUPPORTED: it is not known.
   device_attribute  Reads a ds_attribute that exists. DS_ERR_UNSUPPORTED: the device has none.
   device_processes  Lists the processes that use the device, as far as the driver knows them.

   Virtual memory; an open capture forbids none of these entries:
   space_reserve  Reserves addresses without memory. *out_page is the unit in which memory is
                  mapped. The addresses are aligned to it, and the driver rounds the size up to it.
                  DS_ERR_UNSUPPORTED: the device has no virtual memory.
   space_map      Maps memory behind [at, at + size), whole pages of a reservation without memory
                  behind them, in mappings of `page` bytes each. This device and all devices that
                  reach it as peers read and write the memory. On failure, everything is as before.
   space_unmap    Takes the memory of one or several mappings back, all of it and nothing else.
                  Waits for nothing: no work uses the memory any more. On failure, nothing was done
                  (DS_ERR_INVALID_VALUE: the range is not that of such mappings).

   The driver's own allocator, which keeps freed memory for later:
   async_alloc    Allocates memory of the stream's device. Work that is enqueued on the stream from
                  now on may use it, and so may all work ordered after that work.
   async_free     Frees the memory when the stream arrives there, on any stream of the driver. On
                  failure, nothing was freed. If the stream captures, both entries are refused
                  (DS_ERR_CAPTURE_UNSUPPORTED), and the capture goes on.
   async_trim     Returns to the device what the allocator keeps, down to `keep` bytes.
   async_info     *out_reserved: memory that the allocator has of the device. *out_used: the part
                  of it that is in use.

   Several streams at once:
   run_together   The inline rule for several streams. If nothing is pending on any of them, run_fn
                  is called and *out_ran is 1. Until run_fn returns, no thread can enqueue work on
                  these streams. run_fn copies and sums, at most some times inline_bytes in each
                  step, and calls no entry. *out_ran 0: the caller must enqueue the work on the
                  streams. That is always correct.

   Work of other libraries (DS__OP_REMOTE):
   timeline_create  Creates a timeline: numbers that only grow, for which streams of all devices of
                  the driver can wait. *out_base is the number that it has passed already.

   Graphs:
   condition_load Loads what conditional nodes of the device need, before one is added.

   Memory for several processes:
   share_alloc    Like memory_alloc, for the entries that follow.
   share_export   Writes the 64 bytes that name the memory, always the same.
   share_import   Maps the memory at some address, until share_end. DS_ERR_ILLEGAL_STATE: the
                  memory is this process's own. */
/* clang-format off */
#define DS__ENTRIES(X) \
    X(device_properties, (int device, ds_device_properties *out), (device, out)) \
    X(device_memory, (int device, size_t *out_free, size_t *out_total), \
      (device, out_free, out_total)) \
    X(device_synchronize, (int device), (device)) \
    X(device_reset, (int device), (device)) \
    X(device_peer, (int device, int peer, int *out), (device, peer, out)) \
    X(device_link, (int device, int peer, int *out), (device, peer, out)) \
    X(device_speed, (int device, int *out_engines, double *out_memory), \
      (device, out_engines, out_memory)) \
    X(device_sensor, (int device, int sensor, unsigned out[2]), (device, sensor, out)) \
    X(device_attribute, (int device, ds_attribute attribute, int64_t *out), \
      (device, attribute, out)) \
    X(device_processes, (int device, ds__processes *out), (device, out)) \
    X(priority_range, (int device, int *out_least, int *out_greatest), \
      (device, out_least, out_greatest)) \
    X(stream_create, \
      (int device, int kind, unsigned flags, int *priority, int *share, void **out), \
      (device, kind, flags, priority, share, out)) \
    X(stream_query, (void *stream), (stream)) \
    X(stream_synchronize, (void *stream, uint64_t timeout_ns), (stream, timeout_ns)) \
    X(stream_wrap, \
      (int device, void *native, int own, unsigned *out_flags, int *out_priority, void **out), \
      (device, native, own, out_flags, out_priority, out)) \
    X(stream_native, (void *stream, void **out), (stream, out)) \
    X(event_create, (int device, unsigned flags, void **out), (device, flags, out)) \
    X(event_query, (void *event), (event)) \
    X(event_synchronize, (void *event, uint64_t timeout_ns), (event, timeout_ns)) \
    X(event_elapsed, (void *start, void *end, double *out_ms), (start, end, out_ms)) \
    X(event_export, (void *event, unsigned char *out), (event, out)) \
    X(event_import, (int device, const unsigned char *handle, void **out), (device, handle, out)) \
    X(submit, (void *stream, const ds__op *op), (stream, op)) \
    X(run_together, \
      (void *const *streams, size_t count, void (*run_fn)(void *user), void *user, int *out_ran), \
      (streams, count, run_fn, user, out_ran)) \
    X(timeline_create, (void **out, uint64_t *out_base), (out, out_base)) \
    X(memory_alloc, (int device, size_t size, void **out), (device, size, out)) \
    X(space_reserve, (int device, size_t size, size_t *out_page, void **out), \
      (device, size, out_page, out)) \
    X(space_map, (int device, void *at, size_t size, size_t page), (device, at, size, page)) \
    X(space_unmap, (int device, void *at, size_t size), (device, at, size)) \
    X(async_alloc, (int device, void *stream, size_t size, void **out), \
      (device, stream, size, out)) \
    X(async_free, (int device, void *stream, void *ptr, size_t size), (device, stream, ptr, size)) \
    X(async_trim, (int device, size_t keep), (device, keep)) \
    X(async_info, (int device, size_t *out_reserved, size_t *out_used), \
      (device, out_reserved, out_used)) \
    X(memory_wait, (int device), (device)) \
    X(share_alloc, (int device, size_t size, void **out), (device, size, out)) \
    X(share_export, (int device, void *base, size_t size, unsigned char *handle), \
      (device, base, size, handle)) \
    X(share_import, (int device, const unsigned char *handle, size_t size, void **out), \
      (device, handle, size, out)) \
    X(host_alloc, (size_t size, void **out), (size, out)) \
    X(host_register, (void *ptr, size_t size), (ptr, size)) \
    X(pointer_query, (const void *ptr, ds_pointer_info *out), (ptr, out)) \
    X(kernel_load, (int device, ds__kernel *kernel), (device, kernel)) \
    X(condition_load, (int device), (device)) \
    X(copy_now, (const ds__op *op), (op)) \
    X(capture_begin, (void *stream, ds__capture *capture, const uint32_t *deps, size_t count), \
      (stream, capture, deps, count)) \
    X(capture_end, (void *stream, ds__capture **out), (stream, out)) \
    X(capture_query, (void *stream, ds_capture_info *out), (stream, out)) \
    X(capture_dependencies, (void *stream, ds_graph_node *out, size_t room, size_t *out_count), \
      (stream, out, room, out_count)) \
    X(capture_update, (void *stream, const ds_graph_node *nodes, size_t count, int set), \
      (stream, nodes, count, set)) \
    X(capture_mode, (ds_capture_mode mode), (mode)) \
    X(graph_create, (ds__body *body), (body)) \
    X(graph_clone, (ds__body *from, ds__body *to), (from, to)) \
    X(graph_add, (ds__body *body, uint32_t index), (body, index)) \
    X(graph_edges, \
      (ds__body *body, const ds_graph_node *from, const ds_graph_node *to, size_t count), \
      (body, from, to, count)) \
    X(graph_set, (ds__body *body, uint32_t index, ds__node *fresh), (body, index, fresh)) \
    X(graph_attach, (ds__body *body, ds__object *object), (body, object)) \
    X(graph_instantiate, (ds__body *graph, ds__body *copy, unsigned flags, void **out), \
      (graph, copy, flags, out)) \
    X(exec_update, \
      (void *exec, ds__body *graph, ds_graph_update_reason *out_reason, uint32_t *out_node), \
      (exec, graph, out_reason, out_node)) \
    X(exec_set, (void *exec, uint32_t index, const ds__node *fresh), (exec, index, fresh)) \
    X(exec_enable, (void *exec, uint32_t index, int enabled), (exec, index, enabled))

/* clang-format on */

struct ds__activity_standing;

/* Storage of a driver between library_begin and library_end. */
typedef struct ds__library_scope {
    uint64_t words[5];
} ds__library_scope;

struct ds__driver {
    const char *name;
    ds_device_type type;
    /* The inline rule: when every stream that takes part is idle, the caller may run the library's
       own copy, fill or sum of at most this many bytes before returning; never the user's code.
       0: the driver has no such rule. */
    size_t inline_bytes;
    /* refuses options of ds_init that it cannot use; before the start */
    ds_result (*check)(const ds_init_desc *desc);
    /* keeps copies of its options until the next call; NULL: forgets them */
    ds_result (*configure)(const ds_init_desc *desc);
    void (*probe)(ds_backend_info *out); /* looks for devices; starts no thread */
    ds_result (*start)(void);            /* before the first entry is called */
    /* names of the processors that the library has code for, with spaces between them */
    const char *(*architectures)(void);
    /* 0: nothing was ever put on it, and waiting for it would only wake it up */
    int (*device_used)(int device);
    /* 1: kernels run on several threads of the processor, and the program does not look at the
       order of operations or at what links take */
    int (*spreads)(void);
    /* links that the driver simulates on a virtual clock; NULL: none */
    const ds_cpu_fabric *(*fabric)(void);
    /* the CPU driver's only; NULL in the table of the CUDA driver */
    int64_t (*clock_ns)(void);            /* of the virtual clock */
    void (*stats)(ds_cpu_stats *out);     /* counters of ds_cpu_get_stats */
    int64_t (*spin_get)(void);            /* time that idle threads spin before they sleep */
    void (*spin_set)(int64_t ns);         /* 0 to DS_CPU_MAX_SPIN_NS */
    void (*drain)(void);                  /* waits for all work; cannot fail */
    void (*stop)(void);                   /* drains, ends threads, frees */
    void (*stream_destroy)(void *stream); /* deferred until drained; cannot fail */
    void (*stream_unwrap)(void *stream);  /* the native handle will go to the caller */
    /* from now on the native stream may go at any time: it is not asked for any more */
    void (*stream_hide)(void *stream);
    /* drops the driver's object and lets the native stream live */
    void (*stream_forget)(void *stream);
    /* equal for two objects of one device: they are the same queue */
    const void *(*stream_identity)(void *stream);
    void (*event_destroy)(void *event);
    /* passes all numbers up to this one; numbers never fall */
    void (*timeline_pass)(void *timeline, uint64_t upto);
    /* passes all numbers that will ever be waited for; streams that wait for `from` or more fail,
       if the driver can make streams fail */
    void (*timeline_fail)(void *timeline, uint64_t from, ds_result code, const char *text);
    uint64_t (*timeline_get)(const void *timeline); /* the last number that it has passed */
    void (*timeline_destroy)(void *timeline);       /* no stream waits for it any more */
    /* makes a device current on the calling thread, and allows calls that an open capture forbids,
       for calls into a library that uses the device; library_end restores both. NULL in the table
       of the CPU driver: no library has streams of processors */
    void (*library_begin)(int device, ds__library_scope *out);
    void (*library_end)(const ds__library_scope *scope);
    void (*kernel_destroy)(ds__kernel *kernel);    /* drops what kernel_load made */
    void (*capture_abandon)(ds__capture *capture); /* its streams leave it; at shutdown */
    void (*graph_destroy)(ds__body *body);         /* drops `native`; NULL: bodies have none */
    void (*exec_destroy)(void *exec);              /* launches on their way go on */
    /* *mark NULL: notes all pending work in *mark. 1: that work is over, *mark is freed and NULL;
       0: not yet (or no memory: the caller asks again later). A question looks once at each
       finished piece of the work, and at one unfinished piece. */
    int (*passed)(void **mark);
    /* gives it back, and does so whatever it returns; nothing uses the memory any more */
    ds_result (*memory_release)(ds_memory_kind kind, int device, void *ptr, size_t size);
    /* gives a reservation back, in which nothing is mapped */
    void (*space_release)(int device, void *at, size_t size);
    /* tells the handle of a stream that was created or wrapped; the first one counts */
    void (*stream_named)(void *stream, uint64_t handle);
    /* 1: a recording of activity begins; 0: it is over, and no note is pending */
    void (*activity_set)(int on);
    /* 1: times of operations come from records of the vendor's library, if the driver can do that,
       until 0. Refuses with a sentence. NULL in the table of the CPU driver */
    ds_result (*activity_source)(int records);
    /* writes the records of operations that are complete, as far as they were not written at the
       completion. Returns 1 if it must be called again, because operations are pending */
    int (*activity_collect)(void);
    /* the id of the last operation of a stream that has a record, or of that behind which an event
       was recorded; 0: not known */
    uint64_t (*activity_last)(const void *object, int is_event);
    /* lists the operations with a note at which streams with pending work stand, at most `room`;
       returns their number */
    size_t (*activity_standing)(struct ds__activity_standing *out, size_t room);
    /* frees memory of share_alloc (imported 0), or closes memory of share_import (1); no work uses
       the memory */
    void (*share_end)(int device, void *base, size_t size, int imported);
#define DS__MEMBER(entry, parameters, arguments) ds_result(*entry) parameters;
    DS__ENTRIES(DS__MEMBER)
#undef DS__MEMBER
};

static int ds__place_of(const ds__op *op, int at) {
    return op->places >> at & 255;
}

DS__SEAM static size_t ds__op_bytes(const ds__op *op) {
    return op->kind == DS__OP_COPY ? op->u.copy.width * op->u.copy.height
                                   : op->u.fill.width * op->u.fill.height * op->u.fill.value_size;
}

#endif
