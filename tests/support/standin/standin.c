/* A strict stand-in for cudart: devices, streams, events, memory and modules on threads. standin.h
   says what it is for.

   How it works. Work put into streams is a graph: an operation counts those that it still waits for
   (the one before it in its stream, the legacy stream or all blocking streams, an event's record)
   and is ready when none is left. Ready work is run by a few threads of its device, host functions
   by one more thread for each device. One lock guards everything but the running of an operation;
   whoever waits, waits for the end of an operation.

   Device memory has two addresses: the user's, where nothing can be touched, and the device's,
   where it really lies.

   A stream that captures gets nodes in place of operations: capture.c has the rules, graphs.c the
   graphs.

   Contents: settings; functions and their calls; threads and errors; handles; memory;
   operations; running them; waiting; copies and fills; kernels; the runtime's functions; the
   driver's functions; entry points; control. */
#include "core.h"
#include "external.h"
#include "standin.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* CUDA does not say whether cudaStreamQuery and cudaStreamSynchronize of the legacy stream count
   the earlier work of blocking streams. 1: they do. */
#ifndef STANDIN_LEGACY_COUNTS
#define STANDIN_LEGACY_COUNTS 0
#endif

static const size_t MAX_PITCH = 2147483647;

pthread_mutex_t si_big_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t si_some_end = PTHREAD_COND_INITIALIZER;

_Noreturn void si_fail_test(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("standin: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

void *si_allocate(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p)
        si_fail_test("out of memory");
    return p;
}

void *si_grown(void *array, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity)
        return array;
    *capacity = *capacity ? *capacity * 2 : 4;
    array = realloc(array, *capacity * size);
    if (!array)
        si_fail_test("out of memory");
    return array;
}

static const char *const op_names[] = { "copy",
                                        "fill",
                                        "kernel",
                                        "record",
                                        "wait",
                                        "mark",
                                        "free",
                                        "host function",
                                        "callback",
                                        "batch of memory operations",
                                        "conditional node",
                                        "collective" };

device si_devices[MAX_DEVICES];

/* ---- settings ---- */

struct config si_config;
static atomic_int null_mode;
static int reports; /* STANDIN_REPORT */
static int held;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key;

static void thread_ends(void *unused);

static unsigned long long setting(const char *name, unsigned long long standard,
                                  unsigned long long most) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return standard;
    unsigned long long value = strtoull(text, &end, 0);
    if (*end || value > most)
        si_fail_test("%s=%s: not a number up to %llu", name, text, most);
    return value;
}

static void read_peers(int n) {
    const char *text = getenv("STANDIN_PEERS");
    if (!text || !*text)
        text = "all";
    int all = !strcmp(text, "all");
    int half = !strcmp(text, "half");
    int matrix = !all && !half && strcmp(text, "none") != 0;
    if (matrix && (strlen(text) != (size_t)(n * n) || strspn(text, "01") != (size_t)(n * n)))
        si_fail_test("STANDIN_PEERS=%s: neither all nor none nor half nor %d characters 0 and 1",
                     text, n * n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            int together = (i < n / 2) == (j < n / 2);
            si_devices[i].can_reach[j] =
                i != j && (all || (half && together) || (matrix && text[i * n + j] == '1'));
        }
}

static void read_nvlinks(int n) {
    const char *text = getenv("STANDIN_NVLINK"), *at = text;
    int all = text && !strcmp(text, "all"), a, b, end = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            si_devices[i].nvlink[j] = all && i != j;
    if (all || !text || !*text || !strcmp(text, "none"))
        return;
    for (;; at++, end = 0) {
        if (sscanf(at, "%2d-%2d%n", &a, &b, &end) != 2 || a < 0 || b < 0 || a >= n || b >= n ||
            a == b || (at[end] && at[end] != ','))
            si_fail_test("STANDIN_NVLINK=%s: neither all nor none nor pairs of devices, as 0-1,1-2",
                         text);
        si_devices[a].nvlink[b] = si_devices[b].nvlink[a] = 1;
        at += end;
        if (!*at)
            return;
    }
}

/* The i-th number of a list. */
static int nth_number(const char *name, int i, int standard) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return standard;
    for (;; text = end + 1) {
        long value = strtol(text, &end, 10);
        if (end == text || value < 0 || value > 100000000 ||
            (i ? *end != ',' : *end && *end != ','))
            si_fail_test("%s: not a number for each device, with commas", name);
        if (!i--)
            return (int)value;
    }
}

static unsigned long long next_stream_id = 1;

static void start(void) {
    si_config.devices = (int)setting("STANDIN_DEVICES", 4, MAX_DEVICES);
    si_config.memory = (size_t)setting("STANDIN_MEMORY", 8ULL << 30, 1ULL << 40);
    si_config.error = (int)setting("STANDIN_ERROR", 0, 9999);
    si_config.free_waits = (int)setting("STANDIN_FREE_WAITS", 0, 1);
    si_config.max_peers = (int)setting("STANDIN_MAX_PEERS", 8, MAX_DEVICES);
    si_config.driver_version = (int)setting("STANDIN_DRIVER_VERSION", 13000, 99999);
    atomic_store(&null_mode, (int)setting("STANDIN_NULL", 0, 1));
    reports = (int)setting("STANDIN_REPORT", 0, 1);
    if (!si_config.devices && !si_config.error)
        si_config.error = cudaErrorNoDevice;
    read_peers(si_config.devices);
    read_nvlinks(si_config.devices);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int i = 0; i < si_config.devices; i++) {
        device *d = &si_devices[i];
        d->index = i;
        d->engines = nth_number("STANDIN_ENGINES", i, 3),
        d->memory_khz = nth_number("STANDIN_MEMORY_CLOCK", i, 2619000);
        d->work.last = &d->work.first, d->calls.last = &d->calls.first;
        d->externals.last = &d->externals.first;
        d->legacy.device = i, d->legacy.blocking = d->legacy.is_static = 1,
        d->legacy.id = next_stream_id++;
        d->legacy.handle = cudaStreamLegacy;
        pthread_cond_init(&d->more_work, &monotonic);
        pthread_cond_init(&d->more_calls, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
    if (pthread_key_create(&thread_key, thread_ends))
        si_fail_test("no thread key");
}

/* ---- functions and their calls ---- */

static const char *const function_names[FUNCTIONS] = {
#define X(name) #name,
    RUNTIME(X) DRIVER_GRAPH(X)
#undef X
#define X(name, since) #name,
        DRIVER(X) DRIVER_STREAM(X) DRIVER_MEMORY(X) DRIVER_LINK(X)
#undef X
};
static atomic_ulong calls[FUNCTIONS];

/* ---- threads and errors ---- */

_Thread_local struct thread si_me;

static atomic_ulong fail_in; /* calls until the one that fails; 0: off */
static atomic_int fail_code, fail_came;

/* Calls of one function that fail. */
static struct {
    atomic_ulong left; /* calls of it until the last one that fails; 0: off */
    atomic_ulong times;
    atomic_int function, code;
} fail_calls;

static void remember_thread(void) {
    if (si_me.has_key)
        return;
    si_me.has_key = 1;
    pthread_setspecific(thread_key, &si_me);
}

static void log_call(const char *name, const char *argument) {
    if (!si_me.log_on)
        return;
    size_t need = si_me.log_length + strlen(name) + strlen(argument) + 3;
    while (si_me.log_capacity < need) {
        si_me.log_capacity = si_me.log_capacity ? si_me.log_capacity * 2 : 1024;
        si_me.log = realloc(si_me.log, si_me.log_capacity);
        if (!si_me.log)
            si_fail_test("out of memory");
    }
    si_me.log_length += (size_t)snprintf(
        si_me.log + si_me.log_length, si_me.log_capacity - si_me.log_length, "%s%s%s%s",
        si_me.log_length ? " " : "", name, *argument ? ":" : "", argument);
}

static void count_call(function_id f, const char *argument) {
    pthread_once(&once, start);
    /* what is measured then is not this */
    if (atomic_load_explicit(&null_mode, memory_order_relaxed))
        return;
    atomic_fetch_add_explicit(&calls[f], 1, memory_order_relaxed);
    log_call(function_names[f], argument);
}

/* Says that the thread's call fails, by a failure that a test wants. */
static int inject(int code) {
    atomic_store(&fail_came, 1);
    si_me.injected = 1;
    return code;
}

static int injected_failure(function_id f) {
    unsigned long named = atomic_load_explicit(&fail_calls.left, memory_order_relaxed);
    while (named && (int)f == atomic_load(&fail_calls.function))
        if (atomic_compare_exchange_weak(&fail_calls.left, &named, named - 1)) {
            if (named <= atomic_load(&fail_calls.times))
                return inject(atomic_load(&fail_calls.code));
            break;
        }
    unsigned long left = atomic_load_explicit(&fail_in, memory_order_relaxed);
    while (left)
        if (atomic_compare_exchange_weak(&fail_in, &left, left - 1)) {
            if (left > 1)
                return 0;
            return inject(atomic_load(&fail_code));
        }
    return 0;
}

enum { MULTIPROCESSORS = 8 }; /* of each device */

/* What cudaStreamAddCallback calls holds a lock of the driver, and the calls of other threads wait
   for that lock (FBGEMM#5462, numba-cuda#317, AMReX#4044). So two callbacks never run at once. */
static pthread_mutex_t callback_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int callbacks_running;

static void await_callbacks(function_id f) {
    for (int ms = 0; atomic_load(&callbacks_running) && !si_me.in_host_function; ms++) {
        if (ms == 10000)
            si_fail_test("%s: a callback of another thread has held the driver's lock for 10 s",
                         function_names[f]);
        usleep(1000);
    }
}

/* Of a build of devstream that counts them. */
extern int ds__locks_held(int kind) __attribute__((weak));

/* Calls that wait for work of the device, or may; also cudaFree, but not of NULL. */
static int may_wait_for_work(function_id f) {
    switch ((int)f) {
    case F_cudaDeviceSynchronize:
    case F_cudaStreamSynchronize:
    case F_cudaEventSynchronize:
    case F_cudaFreeHost:
    case F_cudaMalloc:
    case F_cudaHostAlloc:
    case F_cudaHostRegister:
    case F_cudaHostUnregister:
    case F_cudaMemcpy:
    case F_cuModuleLoadDataEx:
    case F_cuModuleUnload:
    case F_cuMemUnmap:
        return 1;
    default:
        return 0;
    }
}

/* Any call may wait for a lock of the driver, and one that enqueues work for room in the queue.
   Under the mutex of an object (a graph, the growth of an arena) a call may wait for work: only
   calls with that object wait too. */
static void check_locks(function_id f, int may_wait) {
    if (!ds__locks_held)
        return;
    if (ds__locks_held(0))
        si_fail_test("%s: the calling thread holds %d spin locks of devstream", function_names[f],
                     ds__locks_held(0));
    if (may_wait && ds__locks_held(2))
        si_fail_test("%s: the calling thread holds %d mutexes that all threads of devstream need",
                     function_names[f], ds__locks_held(2));
}

/* A call of the runtime that makes no context: it asks for devices or entry points. */
static int asks_for_devices(function_id f) {
    switch ((int)f) {
    case F_cudaGetDeviceCount:
    case F_cudaGetDevice:
    case F_cudaSetDevice: /* makes its own */
    case F_cudaRuntimeGetVersion:
    case F_cudaDriverGetVersion:
    case F_cudaDeviceGetAttribute:
    case F_cudaGetDeviceProperties:
    case F_cudaDeviceGetPCIBusId:
    case F_cudaDeviceCanAccessPeer:
    case F_cudaDeviceGetP2PAttribute:
    case F_cudaGetDriverEntryPoint:
    case F_cudaGetDriverEntryPointByVersion:
        return 1;
    default:
        return f > LAST_OF_RUNTIME;
    }
}

/* The lines of the driver library's log, each 200 bytes at most; the oldest are lost. */
static struct {
    char line[32][200];
    unsigned count;
    pthread_mutex_t lock;
} lines = { .lock = PTHREAD_MUTEX_INITIALIZER };

void si_write_log(int code) {
    pthread_mutex_lock(&lines.lock);
    snprintf(lines.line[lines.count++ % 32], sizeof lines.line[0],
             "[00:00:00.000][CUDA][E] %s has failed with %d", function_names[si_me.function], code);
    pthread_mutex_unlock(&lines.lock);
}

int si_enter_with(function_id f, const char *argument) {
    si_me.function = (int)f;
    count_call(f, argument);
    check_locks(f, may_wait_for_work(f));
    await_callbacks(f);
    si_watch_call(f);
    si_me.injected = 0;
    if (si_me.in_host_function)
        return cudaErrorNotPermitted;
    if (si_config.error)
        return si_config.error;
    int code = injected_failure(f);
    if (!code && !asks_for_devices(f))
        si_bind();
    return code;
}

int si_null(void) {
    return atomic_load_explicit(&null_mode, memory_order_relaxed) &&
           !atomic_load_explicit(&si_captures, memory_order_relaxed);
}

static int is_sticky(int code) {
    for (int i = 0; i < si_config.devices; i++)
        if (sticky(i) == code)
            return 1;
    return 0;
}

static void make_primary(int index);

void si_bind(void) {
    if (si_me.other)
        si_fail_test(
            "a call of the runtime while a context is current that is not the primary one: "
            "it would work in that context, where streams and events of others are not "
            "valid");
    if (si_me.bound)
        return;
    lock();
    make_primary(si_me.current);
    unlock();
    si_me.bound = 1;
}

int si_context(void) {
    si_bind();
    return sticky(si_me.current);
}

/* ---- handles ---- */

static const char *const handle_kinds[] = { "",
                                            "stream",
                                            "event",
                                            "module",
                                            "function",
                                            "context",
                                            "graph",
                                            "node",
                                            "executable graph",
                                            "user object",
                                            "handle of memory",
                                            "memory pool",
                                            "green context",
                                            "conditional handle",
                                            "state of the linker" };

typedef struct slot {
    void *object;
    uint32_t generation;
    unsigned kind;
    size_t next_free;
} slot;

static slot *slots;
static size_t slot_count, slot_capacity, free_slot; /* free_slot: index + 1 */

void *si_new_handle(unsigned kind, void *object) {
    size_t i = free_slot ? free_slot - 1 : slot_count;
    if (free_slot) {
        free_slot = slots[i].next_free;
    } else {
        slots = si_grown(slots, slot_count, &slot_capacity, sizeof *slots);
        slots[slot_count++] = (slot){ NULL, 0, 0, 0 };
    }
    slots[i].object = object, slots[i].kind = kind, slots[i].generation++;
    return (void *)((uintptr_t)slots[i].generation << 36 | (uintptr_t)i << 4 | kind);
}

int si_is_handle(unsigned kind, const void *handle) {
    uintptr_t h = (uintptr_t)handle, i = h >> 4 & 0xffffffff;
    return (h & 15) == kind && i < slot_count && slots[i].object && slots[i].generation == h >> 36;
}

static size_t slot_of(const char *call, unsigned kind, const void *handle) {
    if (!si_is_handle(kind, handle))
        si_fail_test("%s: %p is no %s, or it is destroyed", call, handle, handle_kinds[kind]);
    return (uintptr_t)handle >> 4 & 0xffffffff;
}

void *si_object_of(const char *call, unsigned kind, const void *handle) {
    return slots[slot_of(call, kind, handle)].object;
}

void si_drop_handle(const char *call, unsigned kind, const void *handle) {
    size_t i = slot_of(call, kind, handle);
    slots[i].object = NULL;
    slots[i].next_free = free_slot;
    free_slot = i + 1;
}

static CUcontext new_context(int index, int primary) {
    context *c = si_allocate(sizeof *c);
    *c = (context){ index, primary };
    return si_new_handle(H_CONTEXT, c);
}

static void make_primary(int index) {
    if (si_devices[index].primary)
        return;
    si_devices[index].context = new_context(index, 1);
    si_devices[index].primary = 1;
}

static stream *new_stream(int index, unsigned flags, int priority) {
    stream *s = si_allocate(sizeof *s);
    s->device = index, s->flags = flags, s->priority = priority, s->id = next_stream_id++;
    s->blocking = !(flags & cudaStreamNonBlocking);
    return s;
}

stream *si_stream_of(const char *call, cudaStream_t handle) {
    if (!handle || handle == cudaStreamLegacy)
        return &si_devices[si_me.current].legacy;
    if (handle != cudaStreamPerThread)
        return si_object_of(call, H_STREAM, handle);
    if (!si_me.own[si_me.current]) {
        remember_thread();
        si_me.own[si_me.current] = new_stream(si_me.current, cudaStreamDefault, 0);
        si_me.own[si_me.current]->handle = cudaStreamPerThread;
    }
    return si_me.own[si_me.current];
}

static void free_stream_if_over(stream *s) {
    if (!s->destroyed || s->tail || s->is_static)
        return;
    si_nodes_free(&s->deps);
    free(s->shown);
    free(s);
}

static void thread_ends(void *unused) {
    (void)unused;
    lock();
    for (int i = 0; i < MAX_DEVICES; i++)
        if (si_me.own[i]) {
            si_capture_lose(si_me.own[i]);
            si_me.own[i]->destroyed = 1;
            free_stream_if_over(si_me.own[i]);
            si_me.own[i] = NULL;
        }
    unlock();
    free(si_me.log);
    si_me.log = NULL, si_me.log_capacity = 0, si_me.has_key = 0;
}

/* ---- memory ---- */

static range **ranges; /* by start */
static size_t range_count, range_capacity;

/* The first range that ends after the address. */
static size_t range_after(uintptr_t address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->start + ranges[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A range that has a byte in [start, start + size). */
static range *range_touching(uintptr_t start, size_t size) {
    size_t i = range_after(start);
    if (i == range_count || !size)
        return NULL;
    return ranges[i]->start <= start || ranges[i]->start - start < size ? ranges[i] : NULL;
}

static range *range_starting(const void *address) {
    size_t i = range_after((uintptr_t)address);
    return i < range_count && ranges[i]->start == (uintptr_t)address ? ranges[i] : NULL;
}

static range *add_range(void *start, size_t size, void *memory, int kind, int index, int portable) {
    range *r = si_allocate(sizeof *r);
    r->start = (uintptr_t)start, r->size = size, r->memory = memory, r->device = index,
    r->portable = portable;
    r->kind = kind == DEVICE_MEMORY ? DEVICE_MEMORY
              : kind == HOST_MEMORY ? HOST_MEMORY
                                    : REGISTERED_MEMORY;
    ranges = si_grown(ranges, range_count, &range_capacity, sizeof *ranges);
    size_t i = range_after(r->start);
    memmove(ranges + i + 1, ranges + i, (range_count++ - i) * sizeof *ranges);
    ranges[i] = r;
    return r;
}

static void remove_range(range *r) {
    size_t i = range_after(r->start);
    memmove(ranges + i, ranges + i + 1, (--range_count - i) * sizeof *ranges);
    free(r);
}

static int reachable(const range *r, int index) {
    if (r->space)
        return (int)(r->access >> index & 1);
    if (r->device == index)
        return 1;
    if (r->pool)
        return si_pool_reaches(r->pool, index);
    return r->kind == DEVICE_MEMORY ? si_devices[index].reaches[r->device] : r->portable;
}

static size_t round_up(size_t size, size_t to) {
    return si_round_up(size, to);
}

static void make_arena(device *d) {
    if (d->arena)
        return;
    d->arena_size = round_up(2 * si_config.memory + (256u << 20), PAGE);
    d->arena =
        mmap(NULL, d->arena_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    /* so that other processes can open it */
    d->arena_fd = memfd_create("standin-memory", MFD_CLOEXEC);
    if (d->arena_fd < 0 || ftruncate(d->arena_fd, (off_t)d->arena_size))
        si_fail_test("no file for a device's memory");
    d->backing = mmap(NULL, d->arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      d->arena_fd, 0);
    if (d->arena == MAP_FAILED || d->backing == MAP_FAILED)
        si_fail_test("no address space for a device's memory");
    madvise(d->backing, d->arena_size, MADV_DONTDUMP);
}

/* A gap of so many bytes in the arena, from `from` on; arena_size: none. */
static size_t gap_from(const device *d, size_t from, size_t size) {
    uintptr_t base = (uintptr_t)d->arena;
    for (size_t i = range_after(base + from);
         i < range_count && ranges[i]->start < base + d->arena_size; i++) {
        if (ranges[i]->start - base >= from + size)
            break;
        from = round_up(ranges[i]->start + ranges[i]->size - base, PAGE) + PAGE;
    }
    return from + size <= d->arena_size ? from : d->arena_size;
}

/* Each allocation has pages of its own with one between two, and begins 512 bytes into a page:
   CUDA promises no more. The search goes on after the last allocation, so that an address comes
   again as late as possible. */
static range *allocate_on(device *d, size_t size) {
    if (size > si_config.memory || d->used + round_up(size, 512) > si_config.memory)
        return NULL;
    make_arena(d);
    size_t whole = round_up(size + 512, PAGE) + PAGE, at = gap_from(d, d->arena_next, whole);
    if (at == d->arena_size)
        at = gap_from(d, 0, whole);
    if (at == d->arena_size)
        return NULL;
    d->arena_next = at + whole;
    d->used += round_up(size, 512);
    memset(d->backing + at + 512, 0xa5, size < GARBAGE ? size : GARBAGE);
    return add_range(d->arena + at + 512, size, d->backing + at + 512, DEVICE_MEMORY, d->index, 0);
}

static void free_device_range(range *r) {
    device *d = &si_devices[r->device];
    si_ipc_freed(r);
    madvise(r->memory - 512, round_up(r->size + 512, PAGE), MADV_REMOVE);
    d->used -= round_up(r->size, 512);
    remove_range(r);
}

range *si_add_range(void *at, size_t size, char *memory, int index) {
    return add_range(at, size, memory, DEVICE_MEMORY, index, 0);
}

void si_remove_range(range *r) {
    remove_range(r);
}

range *si_range_touching(uintptr_t at, size_t size) {
    return range_touching(at, size);
}

range *si_range_starting(const void *address) {
    return range_starting(address);
}

range *si_allocate_on(device *d, size_t size) {
    return allocate_on(d, size);
}

void si_free_device_range(range *r) {
    free_device_range(r);
}

/* The range behind this one, when the two are one memory: mappings of one reservation. */
static range *range_behind(const range *r) {
    range *next = r->space ? range_starting((void *)(r->start + r->size)) : NULL;
    return next && next->space == r->space ? next : NULL;
}

/* Whether the memory from an address in the range on has so many bytes, and the device reaches
   them all (-1: any does). */
static int range_holds(const range *r, uintptr_t address, size_t size, int index) {
    for (size_t left; r; address += left, size -= left, r = range_behind(r)) {
        if (r->space && !r->access)
            return 0;
        if (index >= 0 && !reachable(r, index))
            return 0;
        left = r->size - (address - r->start);
        if (left >= size)
            return 1;
    }
    return 0;
}

/* ---- operations ---- */

op *si_new_op(op_kind kind, stream *s, int device_index) {
    op *o = si_allocate(sizeof *o);
    o->kind = kind, o->stream = s, o->device = device_index, o->refs = 1;
    o->correlation = si_me.correlation;
    return o;
}

static void unref_times(op *o, unsigned times) {
    o->refs -= times;
    if (o->refs)
        return;
    free(o->successors);
    free(o->uses);
    free(o);
}

void si_unref(op *o) {
    unref_times(o, 1);
}

static void use(op *o, range *r) {
    for (size_t i = 0; i < o->use_count; i++)
        if (o->uses[i] == r)
            return;
    o->uses = si_grown(o->uses, o->use_count, &o->use_capacity, sizeof *o->uses);
    o->uses[o->use_count++] = r;
    r->uses++;
}

static int uses(const op *o, const range *r) {
    for (size_t i = 0; i < o->use_count; i++)
        if (o->uses[i] == r)
            return 1;
    return 0;
}

static void drop_use(op *o, range *r) {
    for (size_t i = 0; i < o->use_count; i++)
        if (o->uses[i] == r) {
            o->uses[i] = o->uses[--o->use_count];
            r->uses--;
            return;
        }
}

void si_free_module_if_over(module *m) {
    if (!m->unloaded || m->uses || m->nodes)
        return;
    ptx_unload(m->code);
    free(m->functions);
    free(m);
}

void si_use_memory(op *o, const void *address, size_t size) {
    uintptr_t at = (uintptr_t)address;
    for (range *r = range_touching(at, 1); r && size; r = range_behind(r)) {
        size_t left = r->size - (at - r->start), part = size < left ? size : left;
        use(o, r);
        at += part;
        size -= part;
    }
}

int si_look_at(uintptr_t address, size_t size, int index) {
    range *r = range_touching(address, 1);
    if (!r)
        return STANDIN_NOT_OF_CUDA;
    if (!range_holds(r, address, size, -1))
        return STANDIN_TOO_SHORT;
    if (!range_holds(r, address, size, index))
        return STANDIN_UNREACHED;
    return r->kind == DEVICE_MEMORY && r->device != index ? STANDIN_OF_ANOTHER : STANDIN_REACHED;
}

static void use_place(op *o, const place *p) {
    size_t span = p->span, offset = p->range ? (size_t)(p->memory - p->range->memory) : 0;
    for (range *r = p->range; r; r = range_behind(r), offset = 0) {
        use(o, r);
        if (r->size - offset >= span)
            return;
        span -= r->size - offset;
    }
}

static void let_go(op *o) {
    while (o->use_count)
        drop_use(o, o->uses[0]);
    if (o->kind == OP_COPY)
        free(o->u.copy.staging);
    if (o->kind == OP_VALUES) {
        free(o->u.values.at);
        free(o->u.values.memory);
    }
    if (o->kind == OP_KERNEL) {
        free(o->u.kernel.params);
        o->u.kernel.module->uses--;
        si_free_module_if_over(o->u.kernel.module);
    }
    if (o->kind == OP_EXTERNAL && o->u.external.of) {
        si_external_over(o);
        o->u.external.of = NULL;
    }
    if (o->exec)
        si_exec_over(o->exec);
    o->exec = NULL;
}

void si_take_uses(op *o, op *from) {
    for (size_t i = 0; i < from->use_count; i++)
        use(o, from->uses[i]);
    let_go(from);
    si_unref(from);
}

void si_depend(op *o, op *on) {
    if (!on || on->done)
        return;
    on->successors = si_grown(on->successors, on->successor_count, &on->successor_capacity,
                              sizeof *on->successors);
    on->successors[on->successor_count++] = o;
    o->pending++;
}

static void push(queue *q, op *o) {
    o->next_ready = NULL;
    *q->last = o;
    q->last = &o->next_ready;
    q->count++;
}

static op *pop(queue *q) {
    op *o = q->first;
    q->first = o->next_ready;
    if (!q->first)
        q->last = &q->first;
    q->count--;
    return o;
}

static void *run_work(void *of), *run_calls(void *of);
static void end_op(op *o);

void si_start_thread(void *(*body)(void *), void *of) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &detached, body, of);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (failed)
        si_fail_test("no thread: %s", strerror(failed));
}

static void call_workers(device *d) {
    if (held)
        return;
    if (d->work.count)
        pthread_cond_signal(&d->more_work);
    while (d->work.count > d->idle + d->starting && d->workers < MAX_WORKERS) {
        d->workers++, d->starting++;
        si_start_thread(run_work, d);
    }
    if (!d->calls.count)
        return;
    pthread_cond_signal(&d->more_calls);
    if (!d->caller) {
        d->caller = 1;
        si_start_thread(run_calls, d);
    }
}

static int is_instant(const op *o) {
    return o->kind == OP_WAIT || o->kind == OP_MARK || o->kind == OP_FREE;
}

/* An external operation is ready. Returns whether it has ended. */
static int begin_external(op *o) {
    if (held) {
        push(&si_devices[o->device].externals, o);
        return 0;
    }
    if (!si_external_begin(o))
        return 0;
    si_unref(o); /* the one until its end; its list of operations still has it */
    return 1;
}

/* Where an operation goes that is ready. Returns whether it has ended already. */
static int start_op(op *o) {
    device *d = &si_devices[o->device];
    if (is_instant(o))
        return 1;
    if (o->kind == OP_EXTERNAL)
        return begin_external(o);
    push(o->kind == OP_HOST || o->kind == OP_CALLBACK ? &d->calls : &d->work, o);
    call_workers(d);
    return 0;
}

/* Returns how many references the stream gave up. */
static unsigned leave_stream(op *o) {
    stream *s = o->stream;
    if (!s || s->tail != o)
        return 0;
    s->tail = NULL;
    if (s->prev)
        s->prev->next = s->next;
    else if (si_devices[s->device].busy == s)
        si_devices[s->device].busy = s->next;
    if (s->next)
        s->next->prev = s->prev;
    s->next = s->prev = NULL;
    free_stream_if_over(s);
    return 1;
}

static void leave_device(op *o) {
    device *d = &si_devices[o->device];
    *(o->prev ? &o->prev->next : &d->first) = o->next;
    *(o->next ? &o->next->prev : &d->last) = o->prev;
}

/* The operation has ended: what waited for it alone is ready; if that takes no time, it has
   ended too, and so on. */
static void end_op(op *o) {
    queue over = { NULL, &over.first, 0 };
    push(&over, o);
    while (over.count) {
        o = pop(&over);
        o->done = 1, o->running = 0;
        let_go(o);
        if (o->kind == OP_FREE)
            si_pool_freed(o);
        if (o->kind == OP_RECORD)
            si_ipc_recorded(o);
        leave_device(o);
        for (size_t i = 0; i < o->successor_count; i++) {
            op *next = o->successors[i];
            if (!--next->pending && start_op(next))
                push(&over, next);
        }
        o->successor_count = 0;
        unref_times(o, 1 + leave_stream(o));
    }
    pthread_cond_broadcast(&si_some_end);
}

void si_prepare(op *o) {
    device *d = &si_devices[o->device];
    static uint64_t submitted;
    o->number = d->submitted = ++submitted;
    o->prev = d->last;
    *(d->last ? &d->last->next : &d->first) = o;
    d->last = o;
    o->pending = 1;
}

void si_release(op *o) {
    if (!--o->pending && start_op(o))
        end_op(o);
}

void si_end_external(op *o) {
    end_op(o);
    si_unref(o);
}

/* Puts the operation at the end of its stream, which then owns it. */
void si_submit(op *o, op *also) {
    check_locks((function_id)si_me.function, 1); /* it may wait for room in the queue (xla#6318) */
    stream *s = o->stream;
    device *d = &si_devices[s->device];
    si_prepare(o);
    si_depend(o, s->tail);
    si_depend(o, also);
    if (s == &d->legacy)
        for (stream *b = d->busy; b; b = b->next)
            si_depend(o, b->tail);
    else if (s->blocking)
        si_depend(o, d->legacy.tail);
    if (s->tail) {
        si_unref(s->tail);
    } else if (s->blocking && s != &d->legacy) {
        s->next = d->busy;
        if (s->next)
            s->next->prev = s;
        d->busy = s;
    }
    s->tail = o;
    o->refs++;
    si_release(o);
}

static void submit(op *o) {
    si_submit(o, NULL);
}

void si_submit_external(op *o) {
    submit(o);
}

/* ---- running them ---- */

static char kernel_error[512];

static void poison(int index, int code) {
    int none = 0;
    atomic_compare_exchange_strong(&si_devices[index].sticky, &none, code);
    pthread_cond_broadcast(&si_some_end);
}

/* Copies, and host functions. */
static atomic_uint work_delay[2];
static atomic_int work_running[2], work_overlaps;

void standin_work_delay(unsigned copy_ms, unsigned host_ms) {
    atomic_store(&work_delay[0], copy_ms);
    atomic_store(&work_delay[1], host_ms);
    atomic_store(&work_overlaps, 0);
}

int standin_overlaps(void) {
    return atomic_load(&work_overlaps);
}

static void begin_work(int kind) {
    atomic_fetch_add(&work_running[kind], 1);
    if (atomic_load(&work_running[!kind]))
        atomic_fetch_add(&work_overlaps, 1);
    usleep(1000 * atomic_load(&work_delay[kind]));
}

static void end_work(int kind) {
    atomic_fetch_sub(&work_running[kind], 1);
}

/* Streams may wait for a word that a copy changes. */
static void copy_bytes(char *dst, const char *src, size_t n) {
    uint64_t wide;
    uint32_t word;
    if (n == 8 && (uintptr_t)dst % 8 == 0) {
        memcpy(&wide, src, 8);
        __atomic_store_n((uint64_t *)(void *)dst, wide, __ATOMIC_RELEASE);
    } else if (n == 4 && (uintptr_t)dst % 4 == 0) {
        memcpy(&word, src, 4);
        __atomic_store_n((uint32_t *)(void *)dst, word, __ATOMIC_RELEASE);
    } else {
        memmove(dst, src, n);
    }
}

static void run_copy(const copy *c) {
    begin_work(0);
    for (size_t z = 0; z < c->depth; z++) {
        char *dst = c->dst + z * c->dslice, *src = c->src + z * c->sslice;
        if (c->dpitch == c->width && c->spitch == c->width)
            copy_bytes(dst, src, c->width * c->height);
        else
            for (size_t y = 0; y < c->height; y++)
                memmove(dst + y * c->dpitch, src + y * c->spitch, c->width);
    }
    end_work(0);
}

static void run_fill(const fill *f) {
    for (size_t y = 0; y < f->height; y++) {
        char *row = f->dst + y * f->pitch;
        if (f->element == 1)
            memset(row, (int)(f->value & 0xff), f->width);
        else
            for (size_t x = 0; x < f->width; x++)
                memcpy(row + x * f->element, &f->value, f->element); /* little-endian */
    }
}

/* The ranges that a kernel has touched stay in use until it ends, so they can be remembered
   without a lock. */
typedef struct kernel_run {
    op *o;
    range *recent[4];
    unsigned next;
} kernel_run;

static void *reach_slowly(kernel_run *k, uintptr_t address, size_t size) {
    lock();
    range *r = range_touching(address, size);
    if (r && (address < r->start || size > r->size - (address - r->start) ||
              !reachable(r, k->o->device)))
        r = NULL;
    if (r) {
        use(k->o, r);
        k->recent[k->next++ % 4] = r;
    }
    unlock();
    return r ? r->memory + (address - r->start) : NULL;
}

static void *reach(void *user, uint64_t address, size_t size, int write) {
    kernel_run *k = user;
    (void)write;
    for (int i = 0; i < 4; i++) {
        range *r = k->recent[i];
        uintptr_t offset = r ? (uintptr_t)address - r->start : 0;
        if (r && offset < r->size && size <= r->size - offset)
            return r->memory + offset;
    }
    return reach_slowly(k, (uintptr_t)address, size);
}

static int is_cancelled(void *user) {
    return sticky(((kernel_run *)user)->o->device);
}

static int set_condition(void *user, uint64_t handle, uint32_t value) {
    op *o = user;
    lock();
    int done = o->launch && si_set_condition(o->launch, handle, value, o->device);
    unlock();
    return done;
}

static int run_kernel(op *o, char *error, size_t size) {
    kernel *k = &o->u.kernel;
    kernel_run run = { o, { NULL, NULL, NULL, NULL }, 0 };
    ptx_conditions conditions = { set_condition, o };
    ptx_launch launch;
    memset(&launch, 0, sizeof launch);
    memcpy(launch.grid, k->grid, sizeof launch.grid);
    memcpy(launch.block, k->block, sizeof launch.block);
    launch.shared_bytes = k->shared;
    launch.together = k->cooperative;
    launch.params = (const void *const *)k->params;
    launch.memory.reach = reach, launch.memory.user = &run;
    launch.cancelled = is_cancelled, launch.cancel_user = &run;
    switch (ptx_run_in_graph(k->code, &launch, &conditions, error, size)) {
    case PTX_OK:
        return 0;
    case PTX_TRAP:
        return cudaErrorLaunchFailure;
    case PTX_BAD_ADDRESS:
        return cudaErrorIllegalAddress;
    case PTX_MISALIGNED:
        return cudaErrorMisalignedAddress;
    case PTX_BAD_PROGRAM:
        break;
    }
    si_fail_test("a kernel does what the interpreter does not know: %s", error);
}

static uint64_t word_at(const char *memory, int is_wide) {
    return is_wide ? __atomic_load_n((const uint64_t *)(const void *)memory, __ATOMIC_SEQ_CST)
                   : __atomic_load_n((const uint32_t *)(const void *)memory, __ATOMIC_SEQ_CST);
}

/* The conditions of CUstreamWaitValue_flags. */
static int word_fits(uint64_t word, uint64_t value, unsigned flags, int is_wide) {
    switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return is_wide ? (int64_t)(word - value) >= 0
                       : (int32_t)((uint32_t)word - (uint32_t)value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return word == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (word & value) != 0;
    default:
        return is_wide ? ~(word | value) != 0 : (uint32_t) ~(word | value) != 0;
    }
}

/* A wait holds one of the threads of the device, of which there are enough. */
static void run_values(const op *o) {
    for (unsigned i = 0; i < o->u.values.count; i++) {
        const CUstreamBatchMemOpParams *p = &o->u.values.at[i];
        char *memory = o->u.values.memory[i];
        int is_wide = p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                      p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        uint64_t value = is_wide ? p->waitValue.value64 : p->waitValue.value;
        if (p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
            __atomic_store_n((uint64_t *)(void *)memory, value, __ATOMIC_SEQ_CST);
        } else if (p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
            __atomic_store_n((uint32_t *)(void *)memory, (uint32_t)value, __ATOMIC_SEQ_CST);
        } else {
            useconds_t nap = 1;
            while (!sticky(o->device) &&
                   !word_fits(word_at(memory, is_wide), value, p->waitValue.flags, is_wide)) {
                usleep(nap);
                nap = nap < 500 ? nap * 2 : nap;
            }
        }
        if (sticky(o->device))
            return;
    }
}

/* Called and left with the lock held, which is given up while the work is done. */
static void run(op *o) {
    char error[sizeof kernel_error] = "";
    int code = 0;
    if (sticky(o->device))
        return;
    if (o->kind == OP_RECORD) {
        clock_gettime(CLOCK_MONOTONIC, &o->time);
        return;
    }
    if (o->kind == OP_CONDITION) {
        si_run_condition(o);
        return;
    }
    o->running = 1;
    unlock();
    uint64_t begin = si_watch_begin();
    if (o->kind == OP_COPY)
        run_copy(&o->u.copy);
    if (o->kind == OP_FILL)
        run_fill(&o->u.fill);
    if (o->kind == OP_KERNEL)
        code = run_kernel(o, error, sizeof error);
    if (o->kind == OP_VALUES)
        run_values(o);
    lock();
    si_watch_end(o, code ? 0 : begin);
    if (!code || sticky(o->device))
        return;
    memcpy(kernel_error, error, sizeof error);
    if (reports)
        fprintf(stderr, "standin: a kernel failed on device %d: %s\n", o->device, error);
    poison(o->device, code);
}

static int wait_idle(pthread_cond_t *for_more) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_SECONDS;
    return pthread_cond_timedwait(for_more, &si_big_lock, &until);
}

static void *run_work(void *of) {
    device *d = of;
    int late = 0;
    lock();
    d->starting--;
    while (!late || (d->work.count && !held)) {
        if (d->work.count && !held) {
            op *o = pop(&d->work);
            run(o);
            d->idle++; /* this thread is free for what becomes ready now */
            end_op(o);
            d->idle--;
            late = 0;
        } else {
            d->idle++;
            late = wait_idle(&d->more_work) == ETIMEDOUT;
            d->idle--;
        }
    }
    d->workers--;
    unlock();
    return NULL;
}

static void call_host(op *o) {
    host h = o->u.host;
    int code = sticky(o->device);
    if (code && o->kind == OP_HOST)
        return;
    o->running = 1;
    unlock();
    si_me.in_host_function = 1;
    if (o->kind == OP_HOST) {
        begin_work(1);
        h.function(h.data);
        end_work(1);
    } else {
        pthread_mutex_lock(&callback_lock);
        atomic_fetch_add(&callbacks_running, 1);
        h.callback(h.handle, (cudaError_t)code, h.data);
        atomic_fetch_sub(&callbacks_running, 1);
        pthread_mutex_unlock(&callback_lock);
    }
    si_me.in_host_function = 0;
    lock();
}

static void *run_calls(void *of) {
    device *d = of;
    int late = 0;
    lock();
    while (!late || (d->calls.count && !held)) {
        if (d->calls.count && !held) {
            op *o = pop(&d->calls);
            call_host(o);
            end_op(o);
            late = 0;
        } else {
            late = wait_idle(&d->more_calls) == ETIMEDOUT;
        }
    }
    d->caller = 0;
    unlock();
    return NULL;
}

/* ---- waiting ---- */

static void wait_some(void) {
    pthread_cond_wait(&si_some_end, &si_big_lock);
}

/* Until the operation has ended or its device has failed; with `quiet` not while it still runs. */
static void wait_for(op *o, int quiet) {
    if (!o)
        return;
    o->refs++;
    while (!o->done && (!sticky(o->device) || (quiet && o->running)))
        wait_some();
    si_unref(o);
}

/* A mark at the end of the stream: it ends when all that was put before has. The caller owns it. */
static op *mark(stream *s) {
    op *o = si_new_op(OP_MARK, s, s->device);
    o->refs++;
    submit(o);
    return o;
}

static int stream_result(stream *s, int wait) {
    int index = s->device, code = sticky(index), ready;
    if (!code)
        code = si_capture_ask(s);
    if (!code)
        code = si_capture_unsafe();
    if (code)
        return code;
    int mine = s != &si_devices[index].legacy || !STANDIN_LEGACY_COUNTS;
    op *last = mine ? s->tail : mark(s);
    if (wait)
        wait_for(last, 0);
    if (wait)
        si_pool_settle(index);
    ready = wait || !last || last->done;
    if (!mine)
        si_unref(last);
    code = sticky(index);
    return code ? code : ready ? 0 : cudaErrorNotReady;
}

/* Until all that was put on the device before has ended. */
static void wait_device(device *d) {
    uint64_t until = d->submitted;
    while (d->first && d->first->number <= until && !sticky(d->index))
        wait_some();
}

/* Nothing that is pending may use memory that goes away. On a device that has failed pending
   work is never run, and what runs is about to end. */
static void check_unused(const char *call, range *r) {
    for (int i = 0; i < si_config.devices && r->uses; i++)
        for (op *o = si_devices[i].first, *next; o; o = next) {
            next = o->next;
            if (!uses(o, r))
                continue;
            if (!sticky(i))
                si_fail_test("%s: %p is in use by a pending %s on device %d", call,
                             (void *)r->start, op_names[o->kind], i);
            if (!o->running) {
                drop_use(o, r);
            } else {
                wait_some();
                next = si_devices[i].first;
            }
        }
}

void si_check_unused(const char *call, range *r) {
    check_unused(call, r);
}

/* ---- copies and fills ---- */

static int span_of(const side *s, const shape *of, size_t *span) {
    size_t rows, slices;
    return __builtin_mul_overflow(s->pitch, of->height - 1, &rows) ||
           __builtin_mul_overflow(s->slice, of->depth - 1, &slices) ||
           __builtin_add_overflow(rows, slices, &rows) ||
           __builtin_add_overflow(rows, of->width, span) ||
           __builtin_add_overflow((uintptr_t)s->pointer, *span, &rows);
}

/* Where the memory is, seen from a device.  Memory that is partly in an allocation is invalid. */
static int locate(const char *call, place *p, const side *s, const shape *of, int index) {
    size_t span;
    if (!s->pointer || span_of(s, of, &span))
        return cudaErrorInvalidValue;
    uintptr_t start = (uintptr_t)s->pointer;
    range *r = range_touching(start, span);
    *p = (place){ PAGEABLE, r, span, index, s->pointer };
    if (!r)
        return 0;
    if (start < r->start || !range_holds(r, start, span, -1))
        return cudaErrorInvalidValue;
    if (r->freeing)
        si_fail_test("%s: %p is freed, or being freed by another thread", call, (void *)s->pointer);
    p->memory = r->memory + (start - r->start);
    p->device = r->device;
    p->where = r->kind == DEVICE_MEMORY ? ON_DEVICE : reachable(r, index) ? PINNED : PAGEABLE;
    return r->kind == DEVICE_MEMORY ? sticky(r->device) : 0;
}

static int check_kind(enum cudaMemcpyKind kind, const place *dst, const place *src) {
    int to_device = dst->where == ON_DEVICE, from_device = src->where == ON_DEVICE;
    if (kind == cudaMemcpyDefault)
        return 0;
    return to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
                   from_device ==
                       (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)
               ? 0
               : cudaErrorInvalidValue;
}

/* Takes the source as it is now; the rows come to lie without gaps. */
static void take_source(copy *c) {
    copy to = *c;
    c->staging = si_allocate(c->width * c->height * c->depth);
    to.dst = c->staging, to.dpitch = c->width, to.dslice = c->width * c->height;
    run_copy(&to);
    c->src = c->staging, c->spitch = to.dpitch, c->sslice = to.dslice;
}

static int copies_unnamed(const place *p, const side *s, int index) {
    return p->where != ON_DEVICE || (!p->range->space && !p->range->pool) ||
           range_holds(p->range, (uintptr_t)s->pointer, p->span, index);
}

int si_check_transfer(const char *call, const transfer *t, int index, place *to, place *from) {
    int code = locate(call, to, &t->dst, &t->of, index);
    if (!code)
        code = locate(call, from, &t->src, &t->of, index);
    if (!code)
        code = check_kind(t->kind, to, from);
    if (code)
        return code;
    /* A copy whose devices are not named stages memory of cudaMalloc without access to it, but not
       that of mappings and pools ("invalid argument": llama.cpp#4638, DALI#6130). */
    if (!t->named && (!copies_unnamed(to, &t->dst, index) || !copies_unnamed(from, &t->src, index)))
        return cudaErrorInvalidValue;
    /* CUDA does not say whether a stream may copy what its device neither has nor reaches. */
    int any = to->where == ON_DEVICE || from->where == ON_DEVICE;
    int near = (to->where == ON_DEVICE &&
                range_holds(to->range, (uintptr_t)t->dst.pointer, to->span, index)) ||
               (from->where == ON_DEVICE &&
                range_holds(from->range, (uintptr_t)t->src.pointer, from->span, index));
    return any && !near && !t->named ? cudaErrorInvalidValue : 0;
}

op *si_copy_op(const transfer *t, const place *to, const place *from, stream *s, int index) {
    op *o = si_new_op(OP_COPY, s, index);
    o->u.copy = (copy){ to->memory,   from->memory, t->dst.pitch, t->dst.slice, t->src.pitch,
                        t->src.slice, t->of.width,  t->of.height, t->of.depth,  NULL };
    o->peer = to->where == ON_DEVICE && from->where == ON_DEVICE && to->device != from->device;
    use_place(o, to);
    use_place(o, from);
    /* CUDA.jl#3112 (driver 590, CUDA 13.2): a copy by cudaMemcpyPeerAsync into a pool that other
       devices have access to succeeds, and writes nothing */
    if (t->named && to->range->pool && si_pool_is_shared(to->range->pool))
        o->u.copy.width = 0;
    return o;
}

/* When the call may return. Pageable to device: with the source taken, so up to a size at once.
   To pageable memory, and between host addresses: when the copy is done. Else at once; a plain
   cudaMemcpy only when it is between devices. */
static int put_transfer(const char *call, const transfer *t, cudaStream_t handle, int plain) {
    place to, from;
    const shape *of = &t->of;
    stream *s = si_stream_of(call, handle);
    int index = s->device, code = sticky(index);
    if (!code)
        code = plain ? si_capture_refuse(s) : si_capture_enqueue(s);
    if (code || !of->width || !of->height || !of->depth)
        return code;
    code = si_check_transfer(call, t, index, &to, &from);
    if (code)
        return code;
    if (s->capture) {
        si_capture_node(s, si_node_copy(si_capture_graph(s), &s->deps, t, &to, &from, index));
        return 0;
    }
    op *o = si_copy_op(t, &to, &from, s, index);
    int to_device = to.where == ON_DEVICE, from_device = from.where == ON_DEVICE;
    int wait =
        plain ? !(to_device && from_device) : !to_device && (!from_device || to.where == PAGEABLE);
    if (to_device && from.where == PAGEABLE) {
        wait = of->width * of->height * of->depth > STAGING;
        if (plain && !wait) { /* "a stream sync is performed before the copy is initiated" */
            op *before = mark(s);
            wait_for(before, 0);
            si_unref(before);
        }
        if (!wait)
            take_source(&o->u.copy);
    }
    o->refs++;
    submit(o);
    if (wait)
        wait_for(o, 1);
    si_unref(o);
    return wait || plain ? sticky(index) : 0;
}

static int copy_kind_known(enum cudaMemcpyKind kind) {
    return (unsigned)kind <= (unsigned)cudaMemcpyDefault;
}

static const char *kind_name(enum cudaMemcpyKind kind) {
    static const char *const names[] = { "H2H", "H2D", "D2H", "D2D", "Default" };
    return copy_kind_known(kind) ? names[kind] : "?";
}

static int transfer_2d(const char *call, void *dst, size_t dpitch, const void *src, size_t spitch,
                       size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t handle,
                       int plain) {
    transfer t = {
        { dst, dpitch, 0 }, { (char *)(uintptr_t)src, spitch, 0 }, { width, height, 1 }, kind, 0
    };
    if (!copy_kind_known(kind))
        return cudaErrorInvalidMemcpyDirection;
    if (si_null())
        return 0;
    si_bind();
    lock();
    int code = plain ? si_capture_unsafe() : 0;
    if (!code)
        code = put_transfer(call, &t, handle, plain);
    unlock();
    return code;
}

/* Between the memories of two devices that the caller names: never waits. */
static int transfer_peer(const char *call, const side *dst, int dst_device, const side *src,
                         int src_device, const shape *of, cudaStream_t handle) {
    if (!is_device(dst_device) || !is_device(src_device))
        return cudaErrorInvalidDevice;
    if (si_null())
        return 0;
    si_bind();
    lock();
    make_primary(dst_device);
    make_primary(src_device);
    stream *s = si_stream_of(call, handle);
    transfer t = { *dst, *src, *of, cudaMemcpyDeviceToDevice, 1 };
    place to, from;
    int code = sticky(s->device);
    if (!code)
        code = sticky(dst_device);
    if (!code)
        code = sticky(src_device);
    if (!code && of->width && of->height && of->depth) {
        code = locate(call, &to, dst, of, s->device);
        if (!code)
            code = locate(call, &from, src, of, s->device);
        if (!code && (to.where != ON_DEVICE || from.where != ON_DEVICE || to.device != dst_device ||
                      from.device != src_device))
            code = cudaErrorInvalidValue;
    }
    if (!code)
        code = put_transfer(call, &t, handle, 0);
    unlock();
    return code;
}

int si_check_fill(const char *call, const fill *f, int index, place *at) {
    side to = { f->dst, f->pitch, 0 };
    shape of = { f->width * f->element, f->height, 1 };
    if (f->width > SIZE_MAX / f->element || (f->height > 1 && f->pitch < of.width) ||
        (uintptr_t)f->dst % f->element || (f->height > 1 && f->pitch % f->element))
        return cudaErrorInvalidValue;
    if (!f->width || !f->height)
        return 0;
    int code = locate(call, at, &to, &of, index);
    return code || (at->where == ON_DEVICE &&
                    range_holds(at->range, (uintptr_t)f->dst, at->span, index))
               ? code
               : cudaErrorInvalidValue;
}

op *si_fill_op(const fill *f, const place *at, stream *s, int index) {
    op *o = si_new_op(OP_FILL, s, index);
    o->u.fill = *f;
    o->u.fill.dst = at->memory;
    use_place(o, at);
    return o;
}

/* The memory of a word, or NULL: not aligned, not known to CUDA, or not to be reached by the
   device. H200, driver 580: docs/gpu. */
static range *word_range(const CUstreamBatchMemOpParams *p, size_t size, int index) {
    uintptr_t address = (uintptr_t)p->waitValue.address;
    range *r = address % size ? NULL : range_touching(address, size);
    return r && address >= r->start && size <= r->size - (address - r->start) && reachable(r, index)
               ? r
               : NULL;
}

static size_t word_size(const CUstreamBatchMemOpParams *p) {
    return p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                   p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64
               ? 8
               : 4;
}

int si_check_values(const CUstreamBatchMemOpParams *list, unsigned count, int index) {
    if (count > 255)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        unsigned most = 0;
        switch ((int)list[i].operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            most = CU_STREAM_WAIT_VALUE_NOR;
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (list[i].waitValue.flags > most || !word_range(&list[i], word_size(&list[i]), index))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return 0;
}

op *si_values_op(const CUstreamBatchMemOpParams *list, unsigned count, stream *s, int index) {
    op *o = si_new_op(OP_VALUES, s, index);
    value_list *v = &o->u.values;
    v->count = count;
    v->at = si_allocate((count + 1) * sizeof *v->at);
    v->memory = si_allocate((count + 1) * sizeof *v->memory);
    memcpy(v->at, list, count * sizeof *list);
    for (unsigned i = 0; i < count; i++) {
        range *r = word_range(&list[i], word_size(&list[i]), index);
        v->memory[i] = r->memory + ((uintptr_t)list[i].waitValue.address - r->start);
        use(o, r);
    }
    return o;
}

/* plain: cudaMemset, which is not safe during a capture. */
static int put_fill(const char *call, void *dst, size_t pitch, uint32_t value, size_t element,
                    size_t width, size_t height, cudaStream_t handle, int plain) {
    fill f = { dst, pitch, element, width, height, value };
    place at;
    if (si_null())
        return 0;
    lock();
    stream *s = si_stream_of(call, handle);
    int code = sticky(s->device);
    if (!code && plain)
        code = si_capture_unsafe();
    if (!code)
        code = plain ? si_capture_refuse(s) : si_capture_enqueue(s);
    if (!code && s->device != si_me.current)
        code = cudaErrorInvalidResourceHandle;
    if (!code)
        code = si_check_fill(call, &f, s->device, &at);
    if (!code && width && height) {
        if (s->capture)
            si_capture_node(s, si_node_fill(si_capture_graph(s), &s->deps, &f, &at, s->device));
        else
            submit(si_fill_op(&f, &at, s, s->device));
    }
    unlock();
    return code;
}

/* ---- kernels ---- */

/* What a test registers for host addresses: images, and functions that cudaLaunchKernel knows. */
typedef struct registered_image {
    const void *image;
    const char *text;
} registered_image;

static registered_image *images;
static size_t image_count, image_capacity;
static registered_function *registered;
static size_t registered_count, registered_capacity;

int si_check_launch(const ptx_function *f, const unsigned grid[3], const unsigned block[3],
                    size_t shared, size_t most_shared) {
    size_t most = most_shared ? most_shared + ptx_static_shared(f) : MAX_SHARED;
    return !grid[0] || !grid[1] || !grid[2] || grid[0] > 2147483647u || grid[1] > MAX_GRID_YZ ||
           grid[2] > MAX_GRID_YZ || !block[0] || !block[1] || !block[2] || block[0] > MAX_BLOCK ||
           block[1] > MAX_BLOCK || block[2] > MAX_BLOCK_Z ||
           block[0] * block[1] * block[2] > MAX_BLOCK || shared > most ||
           ptx_static_shared(f) + shared > most;
}

/* The devices that have clusters, cooperative launches and programmatic dependent launch. */
static unsigned char old_fashioned[MAX_DEVICES];
static unsigned long clusters, cooperatives, overlaps;

void standin_launch_attributes(int index, int on) {
    lock();
    old_fashioned[index] = !on;
    unlock();
}

void standin_launches_with(unsigned long *out_clusters, unsigned long *out_cooperatives,
                           unsigned long *out_overlaps) {
    lock();
    *out_clusters = clusters, *out_cooperatives = cooperatives, *out_overlaps = overlaps;
    unlock();
}

int si_check_attributes(const kernel *k, int index) {
    const unsigned *c = k->cluster;
    unsigned threads = k->block[0] * k->block[1] * k->block[2];
    unsigned each = 2048 / threads < 32 ? 2048 / threads : 32;
    if (old_fashioned[index] && (c[0] || k->cooperative || k->overlap))
        return cudaErrorNotSupported;
    if (c[0] || c[1] || c[2]) {
        if (!c[0] || !c[1] || !c[2] || c[0] > MAX_CLUSTER || c[1] > MAX_CLUSTER ||
            c[2] > MAX_CLUSTER || c[0] * c[1] * c[2] > MAX_CLUSTER || k->grid[0] % c[0] ||
            k->grid[1] % c[1] || k->grid[2] % c[2])
            return cudaErrorInvalidClusterSize;
        clusters++;
    }
    if (k->cooperative &&
        (uint64_t)k->grid[0] * k->grid[1] * k->grid[2] > (uint64_t)MULTIPROCESSORS * each)
        return cudaErrorCooperativeLaunchTooLarge;
    cooperatives += k->cooperative != 0;
    overlaps += k->overlap != 0;
    return 0;
}

void **si_copy_params(const ptx_function *f, void *const *params) {
    size_t n = ptx_param_count(f), size = round_up(n * sizeof(void *), 16);
    for (size_t i = 0; i < n; i++)
        size += round_up(ptx_param_size(f, i), 16);
    void **pointers = si_allocate(size);
    char *next = (char *)pointers + round_up(n * sizeof(void *), 16);
    for (size_t i = 0; i < n; i++) {
        pointers[i] = memcpy(next, params[i], ptx_param_size(f, i));
        next += round_up(ptx_param_size(f, i), 16);
    }
    return pointers;
}

/* Every address among a kernel's parameters that CUDA knows counts as used. */
static void use_params(op *o, const ptx_function *f, void *const *params) {
    for (size_t i = 0; i < ptx_param_count(f); i++)
        for (size_t at = 0; at + sizeof(uintptr_t) <= ptx_param_size(f, i);
             at += sizeof(uintptr_t)) {
            uintptr_t value;
            memcpy(&value, (const char *)params[i] + at, sizeof value);
            range *r = range_touching(value, 1);
            if (r && !r->freeing && reachable(r, o->device))
                use(o, r);
        }
}

op *si_kernel_op(const kernel *k, stream *s, int index) {
    op *o = si_new_op(OP_KERNEL, s, index);
    o->u.kernel = *k;
    o->u.kernel.params = si_copy_params(k->code, k->params);
    k->module->uses++;
    use_params(o, k->code, o->u.kernel.params);
    return o;
}

/* func: the handle or the host address of the kernel's function. */
static int launch(const kernel *k, const void *func, int is_host_func, stream *s) {
    if (ptx_param_count(k->code) && !k->params)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)
        si_capture_node(s, si_node_kernel(si_capture_graph(s), &s->deps, k, func, is_host_func,
                                          s->device, s->priority));
    else
        submit(si_kernel_op(k, s, s->device));
    return 0;
}

/* ---- the runtime's functions: devices and errors ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER(cudaGetDeviceCount);
    if (!count)
        return result(cudaErrorInvalidValue);
    *count = si_config.devices;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *index) {
    ENTER(cudaGetDevice);
    if (!index)
        return result(cudaErrorInvalidValue);
    *index = si_me.current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    char text[16];
    snprintf(text, sizeof text, "%d", index);
    ENTER_WITH(cudaSetDevice, text);
    if (!is_device(index))
        return result(cudaErrorInvalidDevice);
    lock();
    make_primary(index);
    unlock();
    si_me.current = index, si_me.bound = 1, si_me.other = NULL;
    return cudaSuccess;
}

/* Without a driver there is one error, and it stays. */
static cudaError_t last_error(function_id f, int clear) {
    count_call(f, "");
    if (si_config.error)
        return (cudaError_t)si_config.error;
    int code = si_me.last;
    if (clear && code && !is_sticky(code))
        si_me.last = 0;
    return (cudaError_t)code;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error(F_cudaPeekAtLastError, 0);
}

cudaError_t cudaGetLastError(void) {
    return last_error(F_cudaGetLastError, 1);
}

/* clang-format off */
#define ERRORS(X) \
    X(0, cudaSuccess, CUDA_SUCCESS, "no error") \
    X(1, cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE, "invalid argument") \
    X(2, cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY, "out of memory") \
    X(3, cudaErrorInitializationError, CUDA_ERROR_NOT_INITIALIZED, "initialization error") \
    X(4, cudaErrorCudartUnloading, CUDA_ERROR_DEINITIALIZED, "driver shutting down") \
    X(9, cudaErrorInvalidConfiguration, NULL, "invalid configuration argument") \
    X(12, cudaErrorInvalidPitchValue, NULL, "invalid pitch argument") \
    X(21, cudaErrorInvalidMemcpyDirection, NULL, "invalid copy direction") \
    X(34, cudaErrorStubLibrary, CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library") \
    X(35, cudaErrorInsufficientDriver, NULL, \
      "CUDA driver version is insufficient for CUDA runtime version") \
    X(46, cudaErrorDevicesUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE, \
      "CUDA-capable devices are busy or unavailable") \
    X(98, cudaErrorInvalidDeviceFunction, NULL, "invalid device function") \
    X(100, cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected") \
    X(101, cudaErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal") \
    X(200, cudaErrorInvalidKernelImage, CUDA_ERROR_INVALID_IMAGE, \
      "device kernel image is invalid") \
    X(201, cudaErrorDeviceUninitialized, CUDA_ERROR_INVALID_CONTEXT, "invalid device context") \
    X(209, cudaErrorNoKernelImageForDevice, CUDA_ERROR_NO_BINARY_FOR_GPU, \
      "no kernel image for this device") \
    X(214, cudaErrorECCUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE, \
      "uncorrectable ECC error encountered") \
    X(217, cudaErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, \
      "peer access is not supported") \
    X(218, cudaErrorInvalidPtx, CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed") \
    X(222, cudaErrorUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \
      "unsupported PTX version") \
    X(304, cudaErrorOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM, \
      "an operating system call failed") \
    X(400, cudaErrorInvalidResourceHandle, CUDA_ERROR_INVALID_HANDLE, "invalid resource handle") \
    X(500, cudaErrorSymbolNotFound, CUDA_ERROR_NOT_FOUND, "named symbol not found") \
    X(600, cudaErrorNotReady, CUDA_ERROR_NOT_READY, "device not ready") \
    X(700, cudaErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS, \
      "an illegal memory access was encountered") \
    X(701, cudaErrorLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, \
      "too many resources requested for launch") \
    X(702, cudaErrorLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out") \
    X(704, cudaErrorPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, \
      "peer access is already enabled") \
    X(705, cudaErrorPeerAccessNotEnabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, \
      "peer access has not been enabled") \
    X(709, cudaErrorContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed") \
    X(710, cudaErrorAssert, CUDA_ERROR_ASSERT, "device-side assert triggered") \
    X(712, cudaErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, \
      "part or all of the requested memory range is already mapped") \
    X(713, cudaErrorHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, \
      "pointer does not correspond to a registered memory region") \
    X(714, cudaErrorHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error") \
    X(715, cudaErrorIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION, \
      "an illegal instruction was encountered") \
    X(716, cudaErrorMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address") \
    X(719, cudaErrorLaunchFailure, CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure") \
    X(800, cudaErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED, "operation not permitted") \
    X(801, cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED, "operation not supported") \
    X(802, cudaErrorSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized") \
    X(401, cudaErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE, \
      "the operation cannot be performed in the present state") \
    X(900, cudaErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, \
      "not permitted when capturing") \
    X(901, cudaErrorStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, \
      "the capture was invalidated") \
    X(902, cudaErrorStreamCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE, \
      "two captures would be merged") \
    X(903, cudaErrorStreamCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, \
      "the capture began in another stream") \
    X(904, cudaErrorStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, \
      "a fork was not joined") \
    X(905, cudaErrorStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, \
      "a dependency would leave the capture") \
    X(906, cudaErrorStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, \
      "the legacy stream would depend on a capture") \
    X(907, cudaErrorCapturedEvent, CUDA_ERROR_CAPTURED_EVENT, \
      "the event was last recorded in a capture") \
    X(908, cudaErrorStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, \
      "the capture began in another thread") \
    X(910, cudaErrorGraphExecUpdateFailure, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, \
      "the graph update was not performed") \
    X(999, cudaErrorUnknown, CUDA_ERROR_UNKNOWN, "unknown error")

/* clang-format on */

typedef struct error_text {
    int code;
    const char *runtime, *driver, *text;
} error_text;

static const error_text error_texts[] = {
#define NAME_OF(name) #name
#define X(code, runtime, driver, text) { code, #runtime, NAME_OF(driver), text },
    ERRORS(X)
#undef X
};
#define X(code, runtime, driver, text) _Static_assert(code == (int)runtime, "a code of the header");
ERRORS(X)
#undef X

static const error_text *text_of(int code) {
    for (size_t i = 0; i < sizeof error_texts / sizeof *error_texts; i++)
        if (error_texts[i].code == code)
            return &error_texts[i];
    return NULL;
}

const char *cudaGetErrorName(cudaError_t error) {
    const error_text *t = text_of((int)error);
    count_call(F_cudaGetErrorName, "");
    return t ? t->runtime : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    const error_text *t = text_of((int)error);
    count_call(F_cudaGetErrorString, "");
    return t ? t->text : "unrecognized error code";
}

/* These two work without a driver too. */
cudaError_t cudaRuntimeGetVersion(int *version) {
    int code = enter(F_cudaRuntimeGetVersion);
    if (code && code != si_config.error)
        return result(code);
    if (!version)
        return result(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    int code = enter(F_cudaDriverGetVersion);
    if (code && code != si_config.error)
        return result(code);
    if (!version)
        return result(cudaErrorInvalidValue);
    *version = si_config.error == cudaErrorInsufficientDriver ? 0 : si_config.driver_version;
    return cudaSuccess;
}

int si_attribute(int index, int which) {
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case cudaDevAttrMemoryPoolsSupported:
        return si_supports(index, which);
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        return si_rdma() != RDMA_NONE;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
        return MAX_BLOCK;
    case cudaDevAttrMaxBlockDimZ:
        return MAX_BLOCK_Z;
    case cudaDevAttrMaxGridDimX:
        return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
        return MAX_GRID_YZ;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return MAX_SHARED;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return 232448;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return 233472;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        return 1024;
    case cudaDevAttrTotalConstantMemory:
        return 65536;
    case cudaDevAttrWarpSize:
        return 32;
    case cudaDevAttrMaxPitch:
        return (int)MAX_PITCH;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        return 65536;
    case cudaDevAttrClockRate:
        return 1755000;
    case cudaDevAttrMemoryClockRate:
        return si_devices[index].memory_khz;
    case cudaDevAttrTextureAlignment:
    case cudaDevAttrSurfaceAlignment:
        return 512;
    case cudaDevAttrTexturePitchAlignment:
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        return 32;
    case cudaDevAttrMultiProcessorCount:
        return MULTIPROCESSORS;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return 2048;
    case cudaDevAttrGlobalMemoryBusWidth:
        return 5120;
    case cudaDevAttrL2CacheSize:
        return 50 << 20;
    case cudaDevAttrAsyncEngineCount:
        return si_devices[index].engines;
    case cudaDevAttrPciBusId:
        return index + 1;
    case cudaDevAttrComputeCapabilityMajor:
        return old_fashioned[index] ? 8 : 9;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrClusterLaunch:
        return !old_fashioned[index];
    case cudaDevAttrComputeCapabilityMinor:
        return 0;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
        return 2;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported:
        return 1;
    default:
        return 0;
    }
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int index) {
    ENTER(cudaDeviceGetAttribute);
    if (!is_device(index))
        return result(cudaErrorInvalidDevice);
    if (!value || (int)which <= 0 || (int)which >= (int)cudaDevAttrMax)
        return result(cudaErrorInvalidValue);
    *value = si_attribute(index, (int)which);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int index) {
    ENTER(cudaGetDeviceProperties);
    if (!is_device(index))
        return result(cudaErrorInvalidDevice);
    if (!p)
        return result(cudaErrorInvalidValue);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Stand-in GPU %d", index);
    for (int i = 0; i < 16; i++)
        p->uuid.bytes[i] = (char)(0x10 * index + i);
    p->totalGlobalMem = si_config.memory;
    p->sharedMemPerBlock = MAX_SHARED;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = MAX_PITCH;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = MAX_BLOCK;
    p->maxThreadsDim[2] = MAX_BLOCK_Z;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = MAX_GRID_YZ;
    p->totalConstMem = 65536;
    p->major = 9;
    p->multiProcessorCount = 8;
    p->maxThreadsPerMultiProcessor = 2048;
    p->pciBusID = index + 1;
    p->asyncEngineCount = si_devices[index].engines;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 50 << 20;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing =
        p->streamPrioritiesSupported = 1;
    p->canUseHostPointerForRegisteredMem = p->ECCEnabled = 1;
#if CUDART_VERSION >= 12000
    p->hostRegisterSupported = 1;
#endif
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int index) {
    ENTER(cudaDeviceGetPCIBusId);
    if (!is_device(index))
        return result(cudaErrorInvalidDevice);
    if (!text || length < 13)
        return result(cudaErrorInvalidValue);
    snprintf(text, (size_t)length, "0000:%02X:00.0", (unsigned)index + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER(cudaDeviceSynchronize);
    int code = si_context();
    if (code)
        return result(code);
    lock();
    code = si_capture_synchronize(si_me.current);
    if (!code)
        wait_device(&si_devices[si_me.current]);
    if (!code)
        si_pool_settle(si_me.current);
    unlock();
    return result(code ? code : sticky(si_me.current));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int index, int peer) {
    ENTER(cudaDeviceCanAccessPeer);
    if (!is_device(index) || !is_device(peer))
        return result(cudaErrorInvalidDevice);
    if (!can)
        return result(cudaErrorInvalidValue);
    *can = si_devices[index].can_reach[peer];
    return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr which, int index,
                                      int peer) {
    ENTER(cudaDeviceGetP2PAttribute);
    if (!is_device(index) || !is_device(peer) || index == peer)
        return result(cudaErrorInvalidDevice);
    if (!value || which < cudaDevP2PAttrPerformanceRank ||
        which > cudaDevP2PAttrCudaArrayAccessSupported)
        return result(cudaErrorInvalidValue);
    int reach = si_devices[index].can_reach[peer], nvlink = reach && si_devices[index].nvlink[peer];
    *value = which == cudaDevP2PAttrPerformanceRank         ? !nvlink
             : which == cudaDevP2PAttrNativeAtomicSupported ? nvlink
                                                            : reach;
    return cudaSuccess;
}

static int set_peer(int peer, int on) {
    device *d = &si_devices[si_me.current];
    int code = si_context();
    if (code)
        return code;
    if (!is_device(peer) || peer == si_me.current)
        return cudaErrorInvalidDevice;
    if (on && !d->can_reach[peer])
        return cudaErrorPeerAccessUnsupported;
    lock();
    make_primary(peer);
    code = sticky(peer);
    if (!code)
        code = si_capture_unsafe();
    int peers = 0;
    for (int i = 0; i < si_config.devices; i++)
        peers += d->reaches[i];
    if (!code && on && !d->reaches[peer] && peers >= si_config.max_peers)
        code = cudaErrorTooManyPeers;
    if (!code && d->reaches[peer] == on)
        code = on ? cudaErrorPeerAccessAlreadyEnabled : cudaErrorPeerAccessNotEnabled;
    if (!code)
        d->reaches[peer] = (unsigned char)on;
    unlock();
    return code;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    ENTER(cudaDeviceEnablePeerAccess);
    return result(flags ? (int)cudaErrorInvalidValue : set_peer(peer, 1));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    ENTER(cudaDeviceDisablePeerAccess);
    return result(set_peer(peer, 0));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(cudaDeviceGetStreamPriorityRange);
    int code = si_context();
    if (code)
        return result(code);
    if (least)
        *least = LEAST_PRIORITY;
    if (greatest)
        *greatest = GREATEST_PRIORITY;
    return cudaSuccess;
}

/* ---- the runtime's functions: memory ---- */

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    ENTER(cudaMemGetInfo);
    int code = si_context();
    if (code)
        return result(code);
    if (!unused || !total)
        return result(cudaErrorInvalidValue);
    lock();
    *unused = si_config.memory - si_devices[si_me.current].used;
    *total = si_config.memory;
    unlock();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t size) {
    ENTER(cudaMalloc);
    int code = si_context();
    if (code)
        return result(code);
    if (!pointer)
        return result(cudaErrorInvalidValue);
    *pointer = NULL;
    if (!size)
        return cudaSuccess;
    lock();
    range *r = NULL;
    code = si_capture_unsafe();
    if (!code) {
        r = allocate_on(&si_devices[si_me.current], size);
        if (r)
            *pointer = (void *)r->start;
        else
            code = cudaErrorMemoryAllocation;
    }
    unlock();
    return result(code);
}

/* A refused call does nothing, also one that frees. */
static int unsafe(void) {
    lock();
    int code = si_capture_unsafe();
    unlock();
    return code;
}

int si_unsafe(void) {
    return unsafe();
}

static range *range_to_free(const char *call, const void *pointer, int kind) {
    range *r = range_starting(pointer);
    if (!r || (int)r->kind != kind || r->space || r->freeing || si_ipc_imported(r))
        si_fail_test("%s: %p is not what the matching allocation returned, or it is freed", call,
                     pointer);
    r->freeing = 1;
    return r;
}

cudaError_t cudaFree(void *pointer) {
    int code = enter(F_cudaFree);
    check_locks(F_cudaFree, pointer != NULL);
    if (refused(code))
        return result(code);
    si_bind();
    int not_now = pointer ? unsafe() : 0;
    if (not_now)
        return result(not_now);
    lock();
    if (pointer) {
        range *r = range_to_free("cudaFree", pointer, DEVICE_MEMORY);
        if (!code)
            code = sticky(r->device);
        /* CUDA's header says that a free "may" synchronize (kokkos#9307): this one does not */
        check_unused("cudaFree", r);
        if (si_config.free_waits)
            wait_device(&si_devices[r->device]);
        if (r->pool)
            si_pool_take_back(r);
        else
            free_device_range(r);
    } else if (!code) {
        code = sticky(si_me.current);
    }
    unlock();
    return result(code);
}

static int allocate_host(void **pointer, size_t size, unsigned flags) {
    int code = si_context();
    if (code)
        return code;
    if (!pointer || flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped |
                                        cudaHostAllocWriteCombined))
        return cudaErrorInvalidValue;
    *pointer = NULL;
    if (!size)
        return 0;
    if (size > SIZE_MAX - PAGE)
        return cudaErrorMemoryAllocation;
    code = unsafe();
    if (code)
        return code;
    void *memory = mmap(NULL, round_up(size, PAGE), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(memory, 0xa5, size < GARBAGE ? size : GARBAGE);
    lock();
    add_range(memory, size, memory, HOST_MEMORY, si_me.current,
              (flags & cudaHostAllocPortable) != 0);
    unlock();
    *pointer = memory;
    return 0;
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    ENTER(cudaHostAlloc);
    return result(allocate_host(pointer, size, flags));
}

cudaError_t cudaMallocHost(void **pointer, size_t size) {
    ENTER(cudaMallocHost);
    return result(allocate_host(pointer, size, cudaHostAllocDefault));
}

cudaError_t cudaFreeHost(void *pointer) {
    int code = enter(F_cudaFreeHost);
    if (refused(code))
        return result(code);
    si_bind();
    int not_now = unsafe();
    if (not_now)
        return result(not_now);
    lock();
    range *r = range_to_free("cudaFreeHost", pointer, HOST_MEMORY);
    if (!code)
        code = sticky(r->device);
    check_unused("cudaFreeHost", r);
    wait_device(&si_devices[r->device]);
    munmap(r->memory, round_up(r->size, PAGE));
    remove_range(r);
    unlock();
    return result(code);
}

/* Locked is locked by the page: two ranges that share one touch. */
cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    ENTER(cudaHostRegister);
    int code = si_context();
    if (code)
        return result(code);
    const unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped;
    const unsigned unsupported = cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    if (flags & ~(known | unsupported))
        return result(cudaErrorInvalidValue);
    if (flags & unsupported)
        return result(cudaErrorNotSupported);
    uintptr_t first = (uintptr_t)pointer / PAGE * PAGE, last;
    if (!pointer || !size || __builtin_add_overflow((uintptr_t)pointer, size, &last) ||
        last > UINTPTR_MAX - PAGE)
        return result(cudaErrorInvalidValue);
    lock();
    size_t i = range_after(first);
    code = si_capture_unsafe();
    if (!code && i < range_count && ranges[i]->start < round_up(last, PAGE))
        code = ranges[i]->kind == DEVICE_MEMORY ? cudaErrorInvalidValue
                                                : cudaErrorHostMemoryAlreadyRegistered;
    if (!code)
        add_range(pointer, size, pointer, REGISTERED_MEMORY, si_me.current, 1);
    unlock();
    return result(code);
}

cudaError_t cudaHostUnregister(void *pointer) {
    int code = enter(F_cudaHostUnregister);
    if (refused(code))
        return result(code);
    si_bind();
    int not_now = unsafe();
    if (not_now)
        return result(not_now);
    lock();
    range *r = range_starting(pointer);
    if (!r || r->kind != REGISTERED_MEMORY || r->freeing) {
        if (!code)
            code = cudaErrorHostMemoryNotRegistered;
    } else {
        r->freeing = 1;
        if (!code)
            code = sticky(r->device);
        check_unused("cudaHostUnregister", r);
        wait_device(&si_devices[r->device]);
        remove_range(r);
    }
    unlock();
    return result(code);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *pointer) {
    ENTER(cudaPointerGetAttributes);
    int code = si_context();
    if (code)
        return result(code);
    if (!a)
        return result(cudaErrorInvalidValue);
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    a->device = cudaInvalidDeviceId;
    a->hostPointer = (void *)(uintptr_t)pointer;
    lock();
    range *r = range_touching((uintptr_t)pointer, 1);
    if (r) {
        a->type = r->kind == DEVICE_MEMORY ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
        a->device = r->device;
        a->devicePointer = reachable(r, si_me.current) ? (void *)(uintptr_t)pointer : NULL;
        if (r->kind == DEVICE_MEMORY)
            a->hostPointer = NULL;
    }
    unlock();
    return cudaSuccess;
}

/* ---- the runtime's functions: streams ---- */

static size_t live_streams, live_events, live_modules, live_greens;

static cudaStream_t make_stream(int index, unsigned flags, int priority) {
    if (priority > LEAST_PRIORITY)
        priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY)
        priority = GREATEST_PRIORITY;
    stream *s = new_stream(index, flags, priority);
    s->handle = si_new_handle(H_STREAM, s);
    live_streams++;
    return s->handle;
}

static int create_stream(cudaStream_t *out, unsigned flags, int priority) {
    int code = si_context();
    if (code)
        return code;
    if (!out || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking))
        return cudaErrorInvalidValue;
    lock();
    *out = make_stream(si_me.current, flags, priority);
    unlock();
    return 0;
}

cudaError_t cudaStreamCreate(cudaStream_t *out) {
    ENTER(cudaStreamCreate);
    return result(create_stream(out, cudaStreamDefault, 0));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    ENTER(cudaStreamCreateWithFlags);
    return result(create_stream(out, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    ENTER(cudaStreamCreateWithPriority);
    return result(create_stream(out, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    int code = enter(F_cudaStreamDestroy);
    if (refused(code))
        return result(code);
    si_bind();
    if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return result(code ? code : (int)cudaErrorInvalidResourceHandle);
    lock();
    stream *s = si_stream_of("cudaStreamDestroy", handle);
    if (!code)
        code = sticky(s->device);
    si_capture_lose(s);
    si_drop_handle("cudaStreamDestroy", H_STREAM, handle);
    live_streams--;
    s->destroyed = 1;
    if (s->green)
        s->green->streams--;
    free_stream_if_over(s);
    unlock();
    return result(code);
}

cudaError_t si_stream_query(cudaStream_t handle) {
    ENTER(cudaStreamQuery);
    si_bind();
    lock();
    int code = stream_result(si_stream_of("cudaStreamQuery", handle), 0);
    unlock();
    return result(code);
}

cudaError_t si_stream_synchronize(cudaStream_t handle) {
    ENTER(cudaStreamSynchronize);
    si_bind();
    lock();
    int code = stream_result(si_stream_of("cudaStreamSynchronize", handle), 1);
    unlock();
    return result(code);
}

/* What the stream is, with its device's failure. */
static int inspect(const char *call, cudaStream_t handle, const void *out, stream *copied) {
    si_bind();
    if (!out)
        return cudaErrorInvalidValue;
    lock();
    *copied = *si_stream_of(call, handle);
    unlock();
    return sticky(copied->device);
}

cudaError_t si_stream_get_flags(cudaStream_t handle, unsigned *flags) {
    stream s;
    ENTER(cudaStreamGetFlags);
    int code = inspect("cudaStreamGetFlags", handle, flags, &s);
    if (!code)
        *flags = s.flags;
    return result(code);
}

cudaError_t si_stream_get_priority(cudaStream_t handle, int *priority) {
    stream s;
    ENTER(cudaStreamGetPriority);
    int code = inspect("cudaStreamGetPriority", handle, priority, &s);
    if (!code)
        *priority = s.priority;
    return result(code);
}

cudaError_t si_stream_get_device(cudaStream_t handle, int *index) {
    stream s;
    ENTER(cudaStreamGetDevice);
    int code = inspect("cudaStreamGetDevice", handle, index, &s);
    if (!code)
        *index = s.device;
    return result(code);
}

cudaError_t si_stream_get_id(cudaStream_t handle, unsigned long long *id) {
    stream s;
    ENTER(cudaStreamGetId);
    int code = inspect("cudaStreamGetId", handle, id, &s);
    if (!code)
        *id = s.id;
    return result(code);
}

static int put_call(const char *call, cudaStream_t handle, op_kind kind, host h) {
    si_bind();
    lock();
    stream *s = si_stream_of(call, handle);
    int code = sticky(s->device);
    if (!code)
        code = kind == OP_CALLBACK ? si_capture_refuse(s) : si_capture_enqueue(s);
    if (!code && s->capture) {
        si_capture_node(s,
                        si_node_host(si_capture_graph(s), &s->deps, h.function, h.data, s->device));
    } else if (!code) {
        op *o = si_new_op(kind, s, s->device);
        o->u.host = h;
        o->u.host.handle = s->handle;
        submit(o);
    }
    unlock();
    return code;
}

static atomic_int capture_meanwhile;

void standin_capture_meanwhile(void) {
    atomic_store(&capture_meanwhile, 1);
}

cudaError_t si_launch_host_func(cudaStream_t handle, cudaHostFn_t fn, void *data) {
    if (atomic_exchange(&capture_meanwhile, 0))
        (void)cudaStreamBeginCapture(handle, cudaStreamCaptureModeRelaxed);
    ENTER(cudaLaunchHostFunc);
    if (!fn)
        return result(cudaErrorInvalidValue);
    return result(put_call("cudaLaunchHostFunc", handle, OP_HOST, (host){ fn, NULL, NULL, data }));
}

cudaError_t si_stream_add_callback(cudaStream_t handle, cudaStreamCallback_t callback, void *data,
                                   unsigned flags) {
    ENTER(cudaStreamAddCallback);
    if (!callback || flags)
        return result(cudaErrorInvalidValue);
    return result(put_call("cudaStreamAddCallback", handle, OP_CALLBACK,
                           (host){ NULL, callback, NULL, data }));
}

/* ---- the runtime's functions: events ---- */

static int create_event(cudaEvent_t *out, unsigned flags) {
    const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    int code = si_context();
    if (code)
        return code;
    if (!out || flags & ~known)
        return cudaErrorInvalidValue;
    if (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming))
        return cudaErrorInvalidValue;
    event *e = si_allocate(sizeof *e);
    e->device = si_me.current, e->flags = flags;
    lock();
    if (flags & cudaEventInterprocess)
        si_ipc_new_event(e);
    si_event_is_made(e, out);
    unlock();
    return 0;
}

void si_event_is_made(event *e, cudaEvent_t *out) {
    *out = si_new_handle(H_EVENT, e);
    live_events++;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    ENTER(cudaEventCreate);
    return result(create_event(out, cudaEventDefault));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    ENTER(cudaEventCreateWithFlags);
    return result(create_event(out, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    int code = enter(F_cudaEventDestroy);
    if (refused(code))
        return result(code);
    si_bind();
    lock();
    event *e = si_object_of("cudaEventDestroy", H_EVENT, handle);
    if (!code)
        code = sticky(e->device);
    si_drop_handle("cudaEventDestroy", H_EVENT, handle);
    live_events--;
    if (e->record)
        si_unref(e->record);
    si_capture_forget(e);
    si_ipc_drop_event(e);
    free(e);
    unlock();
    return result(code);
}

static int record(const char *call, cudaEvent_t handle, cudaStream_t stream_handle,
                  unsigned flags) {
    int external = flags == cudaEventRecordExternal;
    if (flags & ~(unsigned)cudaEventRecordExternal)
        return cudaErrorInvalidValue;
    if (si_null())
        return 0;
    si_bind();
    lock();
    event *e = si_object_of(call, H_EVENT, handle);
    stream *s = si_stream_of(call, stream_handle);
    int code = sticky(s->device);
    if (!code)
        code = sticky(e->device);
    if (!code)
        code = si_capture_enqueue(s);
    if (!code && e->device != s->device)
        code = cudaErrorInvalidResourceHandle;
    if (!code && external && !s->capture)
        code = cudaErrorInvalidValue;
    if (!code && external) {
        si_capture_node(s, si_node_event(si_capture_graph(s), &s->deps, handle, 0, s->device));
    } else if (!code && s->capture) {
        si_capture_record(e, s);
    } else if (!code) {
        op *o = si_new_op(OP_RECORD, s, s->device);
        si_record_in(e, o);
        submit(o);
    }
    unlock();
    return code;
}

/* The event's record is now this one. */
void si_record_in(event *e, op *o) {
    o->refs++;
    if (e->record)
        si_unref(e->record);
    e->record = o;
    si_capture_forget(e);
    si_ipc_record(e, o);
}

cudaError_t si_event_record(cudaEvent_t handle, cudaStream_t stream_handle) {
    ENTER(cudaEventRecord);
    return result(record("cudaEventRecord", handle, stream_handle, cudaEventRecordDefault));
}

cudaError_t si_event_record_with_flags(cudaEvent_t handle, cudaStream_t stream_handle,
                                       unsigned flags) {
    ENTER(cudaEventRecordWithFlags);
    return result(record("cudaEventRecordWithFlags", handle, stream_handle, flags));
}

cudaError_t si_stream_wait_event(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags) {
    int external = flags == cudaEventWaitExternal, done = 0;
    ENTER(cudaStreamWaitEvent);
    if (flags & ~(unsigned)cudaEventWaitExternal)
        return result(cudaErrorInvalidValue);
    if (si_null())
        return cudaSuccess;
    si_bind();
    lock();
    event *e = si_object_of("cudaStreamWaitEvent", H_EVENT, handle);
    stream *s = si_stream_of("cudaStreamWaitEvent", stream_handle);
    int code = sticky(s->device);
    if (!code)
        code = sticky(e->device);
    if (!code)
        code = si_capture_enqueue(s);
    if (!code && external && !s->capture)
        code = cudaErrorInvalidValue;
    if (!code && external)
        si_capture_node(s, si_node_event(si_capture_graph(s), &s->deps, handle, 1, s->device));
    else if (!code)
        code = si_capture_wait(s, e, &done);
    op *behind = !code && !external && !done ? si_record_of(e) : NULL;
    if (behind)
        si_submit(si_new_op(OP_WAIT, s, s->device), behind);
    unlock();
    return result(code);
}

/* For the runtime's function and the driver's. */
static int event_result(const char *call, const void *handle, int wait) {
    lock();
    event *e = si_object_of(call, H_EVENT, handle);
    int index = e->device, code = sticky(index);
    int captured = code ? 0 : si_capture_look(e);
    /* PyTorch's pull requests 104487 and 104555 report so */
    if (!code && !captured)
        captured = si_capture_unsafe();
    op *o = code || e->ipc ? NULL : e->record;
    int ready = e->ipc && !code ? si_ipc_ready(e) : !o || o->done;
    while (wait && !ready && e->ipc && !sticky(index)) {
        unlock();
        nanosleep(&(struct timespec){ 0, 100000 }, NULL);
        lock();
        ready = si_ipc_ready(e);
    }
    if (wait && o) {
        wait_for(o, 0);
        si_pool_settle(index);
        ready = 1;
    }
    unlock();
    code = sticky(index);
    return code ? code : captured ? captured : ready ? 0 : cudaErrorNotReady;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    ENTER(cudaEventQuery);
    si_bind();
    return result(event_result("cudaEventQuery", handle, 0));
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    ENTER(cudaEventSynchronize);
    si_bind();
    return result(event_result("cudaEventSynchronize", handle, 1));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    ENTER(cudaEventElapsedTime);
    si_bind();
    lock();
    event *a = si_object_of("cudaEventElapsedTime", H_EVENT, from),
          *b = si_object_of("cudaEventElapsedTime", H_EVENT, to);
    int code = ms ? sticky(a->device) : cudaErrorInvalidValue;
    if (!code)
        code = sticky(b->device);
    if (!code)
        code = si_capture_elapsed(a);
    if (!code)
        code = si_capture_elapsed(b);
    if (!code)
        code = si_capture_unsafe();
    if (!code && ((a->flags | b->flags) & cudaEventDisableTiming || !a->record || !b->record ||
                  a->device != b->device))
        code = cudaErrorInvalidResourceHandle;
    if (!code && (!a->record->done || !b->record->done))
        code = cudaErrorNotReady;
    if (!code)
        *ms = (float)((double)(b->record->time.tv_sec - a->record->time.tv_sec) * 1e3 +
                      (double)(b->record->time.tv_nsec - a->record->time.tv_nsec) / 1e6);
    unlock();
    return result(code);
}

/* ---- the runtime's functions: copies, fills, launches ---- */

cudaError_t si_memcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                      cudaStream_t handle) {
    ENTER_WITH(cudaMemcpy, kind_name(kind));
    return result(transfer_2d("cudaMemcpy", dst, count, src, count, count, 1, kind, handle, 1));
}

cudaError_t si_memcpy_async(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t handle) {
    ENTER_WITH(cudaMemcpyAsync, kind_name(kind));
    return result(
        transfer_2d("cudaMemcpyAsync", dst, count, src, count, count, 1, kind, handle, 0));
}

cudaError_t si_memcpy_2d_async(void *dst, size_t dpitch, const void *src, size_t spitch,
                               size_t width, size_t height, enum cudaMemcpyKind kind,
                               cudaStream_t handle) {
    ENTER_WITH(cudaMemcpy2DAsync, kind_name(kind));
    if (dpitch < width || spitch < width || dpitch > MAX_PITCH || spitch > MAX_PITCH)
        return result(cudaErrorInvalidPitchValue);
    return result(
        transfer_2d("cudaMemcpy2DAsync", dst, dpitch, src, spitch, width, height, kind, handle, 0));
}

#if CUDART_VERSION >= 12080
static int check_batch(const batch *b, const stream *s) {
    if (!b->dst || !b->src || !b->sizes || !b->count || !b->attributes || !b->first ||
        b->attribute_count != 1 || b->first[0] != 0 ||
        b->attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream ||
        s == &si_devices[s->device].legacy)
        return cudaErrorInvalidValue;
    for (size_t i = 0; i < b->count; i++)
        if (!b->dst[i] || !b->src[i] || !b->sizes[i])
            return cudaErrorInvalidValue;
    return 0;
}

/* Attributes are known only as devstream uses them. The order within a batch is open, so the last
   copy comes first. No copy is enqueued if one is refused. A node of a batch is newer than this
   stand-in: a capture refuses it. */
cudaError_t si_memcpy_batch_async(const batch *b, cudaStream_t handle) {
    static const char call[] = "cudaMemcpyBatchAsync";
    place to, from;
    ENTER(cudaMemcpyBatchAsync);
    if (si_null())
        return cudaSuccess;
    si_bind();
    lock();
    stream *s = si_stream_of(call, handle);
    int code = sticky(s->device);
    if (!code && si_config.driver_version < 12080)
        code = cudaErrorCallRequiresNewerDriver;
    if (!code)
        code = check_batch(b, s);
    if (!code)
        code = si_capture_refuse(s);
    for (int check = 1; check >= 0; check--)
        for (size_t i = b->count; !code && i-- > 0;) {
            size_t size = b->sizes[i];
            transfer t = { { b->dst[i], size, 0 },
                           { (char *)(uintptr_t)b->src[i], size, 0 },
                           { size, 1, 1 },
                           cudaMemcpyDefault,
                           0 };
            code = check ? si_check_transfer(call, &t, s->device, &to, &from)
                         : put_transfer(call, &t, handle, 0);
        }
    unlock();
    return result(code);
}
#endif

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                size_t count, cudaStream_t handle) {
    ENTER(cudaMemcpyPeerAsync);
    side to = { dst, count, 0 }, from = { (char *)(uintptr_t)src, count, 0 };
    shape of = { count, 1, 1 };
    return result(
        transfer_peer("cudaMemcpyPeerAsync", &to, dst_device, &from, src_device, &of, handle));
}

/* The side of a three-dimensional copy; positions and width are in bytes, as the memory has no
   elements. */
static int pitched(struct cudaPitchedPtr p, struct cudaPos at, struct cudaExtent of, side *out) {
    size_t offset, more;
    *out = (side){ p.ptr, p.pitch, 0 };
    if (p.pitch > MAX_PITCH || at.x > p.pitch || of.width > p.pitch - at.x)
        return cudaErrorInvalidPitchValue;
    if (of.depth > 1 && (at.y > p.ysize || of.height > p.ysize - at.y))
        return cudaErrorInvalidValue;
    if (__builtin_mul_overflow(p.pitch, p.ysize, &out->slice) ||
        __builtin_mul_overflow(out->slice, at.z, &offset) ||
        __builtin_mul_overflow(p.pitch, at.y, &more) ||
        __builtin_add_overflow(offset, more, &offset) ||
        __builtin_add_overflow(offset, at.x, &offset) ||
        __builtin_add_overflow((uintptr_t)p.ptr, offset, &more))
        return cudaErrorInvalidValue;
    if (p.ptr)
        out->pointer += offset;
    return 0;
}

int si_check_copy_params(const struct cudaMemcpy3DParms *p, transfer *t) {
    if (!p || p->srcArray || p->dstArray)
        return cudaErrorInvalidValue;
    *t = (transfer){ { NULL, 0, 0 },
                     { NULL, 0, 0 },
                     { p->extent.width, p->extent.height, p->extent.depth },
                     p->kind,
                     0 };
    if (!copy_kind_known(p->kind))
        return cudaErrorInvalidMemcpyDirection;
    if (!t->of.width || !t->of.height || !t->of.depth)
        return cudaErrorInvalidValue;
    int code = pitched(p->dstPtr, p->dstPos, p->extent, &t->dst);
    return code ? code : pitched(p->srcPtr, p->srcPos, p->extent, &t->src);
}

cudaError_t si_memcpy_3d_peer_async(const struct cudaMemcpy3DPeerParms *p, cudaStream_t handle) {
    ENTER(cudaMemcpy3DPeerAsync);
    side to, from;
    if (!p || p->srcArray || p->dstArray)
        return result(cudaErrorInvalidValue);
    shape of = { p->extent.width, p->extent.height, p->extent.depth };
    int code = pitched(p->dstPtr, p->dstPos, p->extent, &to);
    if (!code)
        code = pitched(p->srcPtr, p->srcPos, p->extent, &from);
    if (!code)
        code = transfer_peer("cudaMemcpy3DPeerAsync", &to, p->dstDevice, &from, p->srcDevice, &of,
                             handle);
    return result(code);
}

cudaError_t si_memset(void *dst, int value, size_t count, cudaStream_t handle) {
    ENTER(cudaMemset);
    si_bind();
    return result(put_fill("cudaMemset", dst, count, (uint32_t)value, 1, count, 1, handle, 1));
}

cudaError_t si_memset_async(void *dst, int value, size_t count, cudaStream_t handle) {
    ENTER(cudaMemsetAsync);
    si_bind();
    return result(put_fill("cudaMemsetAsync", dst, count, (uint32_t)value, 1, count, 1, handle, 0));
}

cudaError_t si_memset_2d_async(void *dst, size_t pitch, int value, size_t width, size_t height,
                               cudaStream_t handle) {
    ENTER(cudaMemset2DAsync);
    si_bind();
    return result(
        put_fill("cudaMemset2DAsync", dst, pitch, (uint32_t)value, 1, width, height, handle, 0));
}

registered_function *si_registered_as(const void *host_function) {
    for (size_t i = 0; i < registered_count; i++)
        if (registered[i].host == host_function)
            return &registered[i];
    return NULL;
}

/* A launch of a function that is known by its host address; `k` lacks the module and the code. */
static int launch_registered(const char *call, const void *func, kernel *k, size_t shared,
                             cudaStream_t handle) {
    lock();
    stream *s = si_stream_of(call, handle);
    registered_function *f = si_registered_as(func);
    int code = sticky(s->device);
    if (!code)
        code = si_capture_enqueue(s);
    if (!code && !f)
        code = cudaErrorInvalidDeviceFunction;
    if (!code && s->device != si_me.current)
        code = cudaErrorInvalidResourceHandle;
    if (!code && si_check_launch(f->code, k->grid, k->block, shared, f->most_shared))
        code = cudaErrorInvalidConfiguration;
    if (!code)
        code = si_check_attributes(k, s->device);
    if (!code) {
        k->module = f->module, k->code = f->code, k->shared = (unsigned)shared;
        code = launch(k, func, 1, s);
    }
    unlock();
    return code;
}

cudaError_t si_launch_kernel(const void *func, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t handle) {
    ENTER(cudaLaunchKernel);
    if (si_null())
        return cudaSuccess;
    si_bind();
    kernel k = { .grid = { grid.x, grid.y, grid.z },
                 .block = { block.x, block.y, block.z },
                 .params = args };
    return result(launch_registered("cudaLaunchKernel", func, &k, shared, handle));
}

/* Attributes are known only as devstream uses them. */
static int read_attributes(const cudaLaunchAttribute *list, unsigned count, kernel *k) {
    for (unsigned i = 0; i < count; i++) {
        const cudaLaunchAttributeValue *v = &list[i].val;
        switch ((int)list[i].id) {
        case cudaLaunchAttributeCooperative:
            k->cooperative = v->cooperative != 0;
            break;
        case cudaLaunchAttributeClusterDimension:
            k->cluster[0] = v->clusterDim.x;
            k->cluster[1] = v->clusterDim.y;
            k->cluster[2] = v->clusterDim.z;
            break;
        case cudaLaunchAttributeProgrammaticStreamSerialization:
            k->overlap = v->programmaticStreamSerializationAllowed != 0;
            break;
        default:
            return cudaErrorInvalidValue;
        }
    }
    return 0;
}

cudaError_t si_launch_kernel_ex(const cudaLaunchConfig_t *c, const void *func, void **args,
                                cudaStream_t handle) {
    ENTER(cudaLaunchKernelExC);
    if (si_null())
        return cudaSuccess;
    si_bind();
    kernel k = { .grid = { c->gridDim.x, c->gridDim.y, c->gridDim.z },
                 .block = { c->blockDim.x, c->blockDim.y, c->blockDim.z },
                 .params = args };
    int code = c->numAttrs && !c->attrs ? (int)cudaErrorInvalidValue
                                        : read_attributes(c->attrs, c->numAttrs, &k);
    if (!code)
        code = launch_registered("cudaLaunchKernelExC", func, &k, c->dynamicSmemBytes, handle);
    return result(code);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *func) {
    ENTER(cudaFuncGetAttributes);
    si_bind();
    if (!out)
        return result(cudaErrorInvalidValue);
    lock();
    registered_function *f = si_registered_as(func);
    int code = sticky(si_me.current);
    if (!code && !f)
        code = cudaErrorInvalidDeviceFunction;
    memset(out, 0, sizeof *out);
    if (!code) {
        out->sharedSizeBytes = ptx_static_shared(f->code);
        out->maxThreadsPerBlock = MAX_BLOCK;
        out->maxDynamicSharedSizeBytes =
            (int)(f->most_shared ? f->most_shared : MAX_SHARED - ptx_static_shared(f->code));
    }
    unlock();
    return result(code);
}

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attribute, int value) {
    ENTER(cudaFuncSetAttribute);
    si_bind();
    lock();
    registered_function *f = si_registered_as(func);
    int code = sticky(si_me.current);
    if (!code && !f)
        code = cudaErrorInvalidDeviceFunction;
    if (!code && (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
                  ptx_static_shared(f->code) + (size_t)value > MAX_SHARED_OPTIN))
        code = cudaErrorInvalidValue;
    if (!code)
        f->most_shared = (size_t)value;
    unlock();
    return result(code);
}

/* ---- the driver's functions ---- */

/* The declarations check the types against the header. Those with a stream get two forms, which
   differ in what NULL means. */
#define X(name, since) static __typeof__(name) d_##name;
DRIVER(X)
#undef X
#define X(name, since) static __typeof__(name) d_##name, t_##name;
DRIVER_STREAM(X)
#undef X

static CUresult driver_context(void) {
    return si_me.bound && !si_me.other ? (CUresult)sticky(si_me.current)
                                       : CUDA_ERROR_INVALID_CONTEXT;
}

/* A device of the driver is a handle, which differs from the number of the device. */
enum { FIRST_DEVICE = 64 };

int si_index_of(CUdevice handle) {
    return is_device(handle - FIRST_DEVICE) ? handle - FIRST_DEVICE : -1;
}

static CUresult d_cuDeviceGet(CUdevice *out, int ordinal) {
    ENTER_DRIVER(cuDeviceGet);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = ordinal + FIRST_DEVICE;
    return CUDA_SUCCESS;
}

CUcontext si_current_context(void) {
    if (si_me.other)
        return si_me.other;
    return si_me.bound ? si_devices[si_me.current].context : NULL;
}

static CUresult d_cuCtxGetCurrent(CUcontext *out) {
    ENTER_DRIVER(cuCtxGetCurrent);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = si_current_context();
    return CUDA_SUCCESS;
}

/* Makes the context current in the thread, in place of the one that is. */
static void make_current(CUcontext handle, const context *c) {
    si_me.current = c->index;
    si_me.bound = 1;
    si_me.other = c->primary ? NULL : handle;
}

/* What the runtime does then goes to the context on top, and cudaGetDevice tells its device. */
static CUresult d_cuCtxPushCurrent(CUcontext handle) {
    char text[16] = "";
    context c = { -1, 0 };
    lock();
    if (handle)
        c = *(context *)si_object_of("cuCtxPushCurrent", H_CONTEXT, handle);
    unlock();
    snprintf(text, sizeof text, "%d", c.index);
    int code = si_enter_with(F_cuCtxPushCurrent, text);
    if (code)
        return (CUresult)code;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (si_me.depth == MAX_CONTEXTS)
        si_fail_test("cuCtxPushCurrent: more contexts than any program needs: one was not popped");
    si_me.under[si_me.depth].current = si_me.current;
    si_me.under[si_me.depth].other = si_me.other;
    si_me.under[si_me.depth++].bound = si_me.bound;
    make_current(handle, &c);
    remember_thread();
    return CUDA_SUCCESS;
}

static CUresult d_cuCtxPopCurrent(CUcontext *out) {
    int code = enter(F_cuCtxPopCurrent);
    if (refused(code))
        return (CUresult)code;
    if (!si_me.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out)
        *out = si_current_context();
    si_me.depth--;
    si_me.current = si_me.under[si_me.depth].current;
    si_me.bound = si_me.under[si_me.depth].bound;
    si_me.other = si_me.under[si_me.depth].other;
    return (CUresult)code; /* it pops in any case, like what frees */
}

/* Never released here, as by the runtime itself. */
static CUresult d_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice handle) {
    ENTER_DRIVER(cuDevicePrimaryCtxRetain);
    int index = si_index_of(handle);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    lock();
    make_primary(index);
    *out = si_devices[index].context;
    unlock();
    return CUDA_SUCCESS;
}

static CUresult d_cuDevicePrimaryCtxGetState(CUdevice handle, unsigned *flags, int *active) {
    ENTER_DRIVER(cuDevicePrimaryCtxGetState);
    int index = si_index_of(handle);
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    lock();
    *flags = 0;
    *active = si_devices[index].primary;
    unlock();
    return CUDA_SUCCESS;
}

static CUresult d_cuCtxSetCurrent(CUcontext handle) {
    ENTER_DRIVER(cuCtxSetCurrent);
    lock();
    if (handle)
        make_current(handle, si_object_of("cuCtxSetCurrent", H_CONTEXT, handle));
    else
        si_me.bound = 0, si_me.other = NULL;
    unlock();
    return CUDA_SUCCESS;
}

static CUresult error_name(CUresult error, const char **out, int text) {
    const error_text *t = text_of((int)error);
    const char *name = t ? text ? t->text : t->driver : NULL;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = name && strcmp(name, "NULL") ? name : NULL;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult d_cuGetErrorName(CUresult error, const char **out) {
    count_call(F_cuGetErrorName, "");
    return error_name(error, out, 0);
}

static CUresult d_cuGetErrorString(CUresult error, const char **out) {
    count_call(F_cuGetErrorString, "");
    return error_name(error, out, 1);
}

static atomic_int knows_conditions;

void standin_conditions(int on) {
    atomic_store(&knows_conditions, on);
}

/* Whether the linker has made it. */
static int is_linked(const void *image) {
    return !strncmp(image, si_link_mark, strlen(si_link_mark));
}

/* NULL: an image that is no PTX and that no test has registered. */
static const char *text_of_image(const void *image) {
    const char *text = is_linked(image) ? (const char *)image + strlen(si_link_mark) : NULL;
    uint32_t magic;
    lock();
    for (size_t i = 0; i < image_count; i++)
        if (images[i].image == image)
            text = images[i].text;
    unlock();
    if (text || !*(const char *)image)
        return text ? text : image;
    for (size_t i = 0; i < sizeof magic; i++)
        if (!((const char *)image)[i])
            return image; /* a text shorter than a magic number */
    memcpy(&magic, image, sizeof magic);
    return magic == 0x464c457fu /* ELF */ || magic == 0xba55ed50u ||
                   magic == 0x466243b1u /* fatbin */
               ? NULL
               : image;
}

static CUresult load(CUmodule *out, const void *image, char *error, size_t size) {
    CUresult code = driver_context();
    if (code)
        return code;
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    code = (CUresult)unsafe();
    if (code)
        return code;
    lock();
    wait_device(&si_devices[si_me.current]); /* H200, driver 580: docs/gpu, R2 */
    unlock();
    const char *text = text_of_image(image);
    ptx_module *loaded = text ? ptx_load(text, error, size) : NULL;
    int unresolved = 0; /* some callers link such a text then, so it is not reported */
    if (loaded && ptx_external(loaded) && !is_linked(image) && !atomic_load(&knows_conditions)) {
        snprintf(error, size, "ptxas fatal   : Unresolved extern function '%s'",
                 ptx_external(loaded));
        ptx_unload(loaded);
        loaded = NULL;
        unresolved = 1;
    }
    if (!text)
        snprintf(error, size, "the image is a cubin or a fatbin; the stand-in runs PTX text");
    if (!loaded && reports && !unresolved)
        fprintf(stderr, "standin: an image cannot be loaded: %s\n", error);
    if (!loaded && text) /* H200, driver 580: 200 for what is no PTX at all */
        return strstr(text, ".version") ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    if (!loaded)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    module *m = si_allocate(sizeof *m);
    m->device = si_me.current, m->code = loaded;
    lock();
    *out = si_new_handle(H_MODULE, m);
    live_modules++;
    unlock();
    return CUDA_SUCCESS;
}

static CUresult d_cuModuleLoadData(CUmodule *out, const void *image) {
    char error[256] = "";
    ENTER_DRIVER(cuModuleLoadData);
    return load(out, image, error, sizeof error);
}

static atomic_uint load_delay;

void standin_load_delay(unsigned ms) {
    atomic_store(&load_delay, ms);
}

static CUresult d_cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count,
                                     CUjit_option *options, void **values) {
    char error[256] = "", *buffer = NULL;
    size_t size = 0, at = count;
    ENTER_DRIVER(cuModuleLoadDataEx);
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
            buffer = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            size = (size_t)(uintptr_t)values[i], at = i;
    }
    usleep(1000 * atomic_load(&load_delay));
    CUresult code = load(out, image, error, sizeof error);
    if (at < count) { /* the option comes back as the length of what was written */
        const char *more = *error ? "\nptxas fatal: aborted due to errors" : ""; /* a line more */
        int length = buffer && size ? snprintf(buffer, size, "%s%s", error, more) : 0;
        values[at] = (void *)(uintptr_t)((size_t)length < size ? (size_t)length : size);
    }
    return code;
}

static CUresult d_cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    ENTER_DRIVER(cuModuleGetFunction);
    CUresult code = driver_context();
    if (code)
        return code;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    lock();
    module *m = si_object_of("cuModuleGetFunction", H_MODULE, handle);
    const ptx_function *f = NULL;
    *out = NULL;
    code = (CUresult)sticky(m->device);
    for (size_t i = 0; i < m->count; i++)
        if (!strcmp(m->functions[i]->name, name))
            *out = m->functions[i]->handle;
    if (!code && !*out && !(f = ptx_find(m->code, name)))
        code = CUDA_ERROR_NOT_FOUND;
    if (!code && !*out) {
        function *made = si_allocate(sizeof *made);
        made->module = m, made->code = f,
        made->name = memcpy(si_allocate(strlen(name) + 1), name, strlen(name));
        *out = made->handle = si_new_handle(H_FUNCTION, made);
        m->functions = si_grown(m->functions, m->count, &m->capacity, sizeof *m->functions);
        m->functions[m->count++] = made;
    }
    unlock();
    return code;
}

static CUresult d_cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction handle) {
    ENTER_DRIVER(cuFuncGetAttribute);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    lock();
    function *f = si_object_of("cuFuncGetAttribute", H_FUNCTION, handle);
    CUresult code = (CUresult)sticky(f->module->device);
    if (!code && attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        *out = (int)(f->most_shared ? f->most_shared : MAX_SHARED - ptx_static_shared(f->code));
    unlock();
    return code;
}

static CUresult d_cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    ENTER_DRIVER(cuFuncSetAttribute);
    CUresult code = driver_context();
    if (code)
        return code;
    lock();
    function *f = si_object_of("cuFuncSetAttribute", H_FUNCTION, handle);
    code = (CUresult)sticky(f->module->device);
    if (!code && (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
                  ptx_static_shared(f->code) + (size_t)value > MAX_SHARED_OPTIN))
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        f->most_shared = (size_t)value;
    unlock();
    return code;
}

/* "Unloads a module from the current context": so its context has to be current. */
static CUresult d_cuModuleUnload(CUmodule handle) {
    int code = enter(F_cuModuleUnload);
    if (refused(code))
        return (CUresult)code;
    if (!si_me.bound)
        return code ? (CUresult)code : CUDA_ERROR_INVALID_CONTEXT;
    int not_now = unsafe();
    if (not_now)
        return (CUresult)not_now;
    lock();
    module *m = si_object_of("cuModuleUnload", H_MODULE, handle);
    if (!code && m->device != si_me.current) {
        unlock();
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!code)
        code = sticky(m->device);
    if (m->uses && !sticky(m->device))
        si_fail_test("cuModuleUnload: kernels of the module are pending");
    wait_device(&si_devices[m->device]);
    si_drop_handle("cuModuleUnload", H_MODULE, handle);
    for (size_t i = 0; i < m->count; i++) {
        si_drop_handle("cuModuleUnload", H_FUNCTION, m->functions[i]->handle);
        free(m->functions[i]->name);
        free(m->functions[i]);
    }
    live_modules--;
    m->unloaded = 1;
    si_free_module_if_over(m);
    unlock();
    return (CUresult)code;
}

/* A launch of a function of a module; `k` lacks the module and the code. */
static CUresult launch_function(const char *call, CUfunction handle, kernel *k,
                                CUstream stream_handle) {
    CUresult code = driver_context();
    if (code)
        return code;
    lock();
    function *f = si_object_of(call, H_FUNCTION, handle);
    stream *s = si_stream_of(call, stream_handle);
    code = (CUresult)sticky(s->device);
    if (!code)
        code = (CUresult)si_capture_enqueue(s);
    if (!code && (s->device != si_me.current || f->module->device != si_me.current))
        code = CUDA_ERROR_INVALID_HANDLE;
    if (!code && si_check_launch(f->code, k->grid, k->block, k->shared, f->most_shared))
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        code = (CUresult)si_check_attributes(k, s->device);
    if (!code) {
        k->module = f->module, k->code = f->code;
        code = (CUresult)launch(k, handle, 0, s);
    }
    unlock();
    return code;
}

static CUresult d_cuLaunchKernel(CUfunction handle, unsigned gx, unsigned gy, unsigned gz,
                                 unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                 CUstream stream_handle, void **params, void **extra) {
    ENTER_DRIVER(cuLaunchKernel);
    if (params && extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (extra)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (si_null())
        return CUDA_SUCCESS;
    kernel k = {
        .grid = { gx, gy, gz }, .block = { bx, by, bz }, .shared = shared, .params = params
    };
    return launch_function("cuLaunchKernel", handle, &k, stream_handle);
}

static CUresult launch_with(const CUlaunchConfig *c, CUfunction handle, CUstream stream_handle,
                            void **params, void **extra) {
    ENTER_DRIVER(cuLaunchKernelEx);
    if ((params && extra) || (c->numAttrs && !c->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    if (extra)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (si_null())
        return CUDA_SUCCESS;
    kernel k = { .grid = { c->gridDimX, c->gridDimY, c->gridDimZ },
                 .block = { c->blockDimX, c->blockDimY, c->blockDimZ },
                 .shared = c->sharedMemBytes,
                 .params = params };
    _Static_assert(sizeof *c->attrs == sizeof(cudaLaunchAttribute) &&
                       offsetof(CUlaunchAttribute, value) == offsetof(cudaLaunchAttribute, val),
                   "the driver's attributes are the runtime's");
    int code =
        read_attributes((const cudaLaunchAttribute *)(const void *)c->attrs, c->numAttrs, &k);
    return code ? (CUresult)code : launch_function("cuLaunchKernelEx", handle, &k, stream_handle);
}

static CUresult d_cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params,
                                   void **extra) {
    return launch_with(c, f, c->hStream, params, extra);
}

static CUresult d_cuStreamQuery(CUstream handle) {
    ENTER_DRIVER(cuStreamQuery);
    if (!si_me.bound)
        return CUDA_ERROR_INVALID_CONTEXT;
    lock();
    int code = stream_result(si_stream_of("cuStreamQuery", handle), 0);
    unlock();
    return (CUresult)code;
}

static CUresult d_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    enum cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    ENTER_DRIVER(cuStreamIsCapturing);
    if (!si_me.bound)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    lock();
    int code = si_capture_status(si_stream_of("cuStreamIsCapturing", handle), &found);
    unlock();
    *status = (CUstreamCaptureStatus)found;
    return (CUresult)code;
}

static CUresult t_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    return d_cuStreamIsCapturing(handle ? handle : CU_STREAM_PER_THREAD, status);
}

static CUresult d_cuEventQuery(CUevent handle) {
    ENTER_DRIVER(cuEventQuery);
    if (!si_me.bound)
        return CUDA_ERROR_INVALID_CONTEXT;
    return (CUresult)event_result("cuEventQuery", handle, 0);
}

static CUresult d_cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    ENTER_DRIVER(cuMemGetAddressRange);
    CUresult code = driver_context();
    if (code)
        return code;
    lock();
    range *r = range_touching((uintptr_t)pointer, 1);
    if (!r || r->kind != DEVICE_MEMORY) {
        code = CUDA_ERROR_NOT_FOUND;
    } else {
        if (base)
            *base = (CUdeviceptr)r->start;
        if (size)
            *size = r->size;
    }
    unlock();
    return code;
}

/* The value of one attribute of a pointer, whose memory is r (NULL: none that CUDA knows). */
static CUresult pointer_attribute(CUpointer_attribute which, void *out, const range *r) {
    int on_device = r && r->kind == DEVICE_MEMORY;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = !r ? 0u : on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(int *)out = 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = r ? r->device : -2;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(int *)out = r && reachable(r, si_me.current)
                          ? (int)CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                          : (int)CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)out = on_device && !r->space && !r->pool;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

static CUresult d_cuPointerGetAttributes(unsigned count, CUpointer_attribute *which, void **out,
                                         CUdeviceptr pointer) {
    ENTER_DRIVER(cuPointerGetAttributes);
    CUresult code = CUDA_SUCCESS;
    if (!si_current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!count || !which || !out)
        return CUDA_ERROR_INVALID_VALUE;
    lock();
    const range *r = range_touching((uintptr_t)pointer, 1);
    for (unsigned i = 0; i < count && !code; i++)
        code = pointer_attribute(which[i], out[i], r);
    unlock();
    return code;
}

#define FILL(name, type, element)                                                                 \
    static CUresult d_##name(CUdeviceptr dst, type value, size_t count, CUstream handle) {        \
        ENTER_DRIVER(name);                                                                       \
        CUresult code = driver_context();                                                         \
        if (!code)                                                                                \
            code = (CUresult)put_fill(#name, (void *)(uintptr_t)dst, 0, value, element, count, 1, \
                                      handle, 0);                                                 \
        return code;                                                                              \
    }                                                                                             \
    static CUresult t_##name(CUdeviceptr dst, type value, size_t count, CUstream handle) {        \
        return d_##name(dst, value, count, handle ? handle : CU_STREAM_PER_THREAD);               \
    }
#define FILL_2D(name, type, element)                                                               \
    static CUresult d_##name(CUdeviceptr dst, size_t pitch, type value, size_t width,              \
                             size_t height, CUstream handle) {                                     \
        ENTER_DRIVER(name);                                                                        \
        CUresult code = driver_context();                                                          \
        if (!code)                                                                                 \
            code = (CUresult)put_fill(#name, (void *)(uintptr_t)dst, pitch, value, element, width, \
                                      height, handle, 0);                                          \
        return code;                                                                               \
    }                                                                                              \
    static CUresult t_##name(CUdeviceptr dst, size_t pitch, type value, size_t width,              \
                             size_t height, CUstream handle) {                                     \
        return d_##name(dst, pitch, value, width, height, handle ? handle : CU_STREAM_PER_THREAD); \
    }
FILL(cuMemsetD8Async, unsigned char, 1)
FILL(cuMemsetD16Async, unsigned short, 2)
FILL(cuMemsetD32Async, unsigned, 4)
FILL_2D(cuMemsetD2D8Async, unsigned char, 1)
FILL_2D(cuMemsetD2D16Async, unsigned short, 2)
FILL_2D(cuMemsetD2D32Async, unsigned, 4)

static CUresult d_cuStreamBatchMemOp(CUstream handle, unsigned count,
                                     CUstreamBatchMemOpParams *list, unsigned flags) {
    ENTER_DRIVER(cuStreamBatchMemOp);
    CUresult code = driver_context();
    if (code)
        return code;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (count && !list)
        si_fail_test("cuStreamBatchMemOp: CUDA crashes without a list (docs/gpu)");
    lock();
    stream *s = si_stream_of("cuStreamBatchMemOp", handle);
    code = (CUresult)sticky(s->device);
    if (!code)
        code = (CUresult)si_capture_enqueue(s);
    if (!code && s->device != si_me.current)
        code = CUDA_ERROR_INVALID_CONTEXT;
    if (!code)
        code = (CUresult)si_check_values(list, count, s->device);
    if (!code && count && s->capture)
        si_capture_node(s, si_node_values(si_capture_graph(s), &s->deps, list, count, s->device));
    else if (!code && count)
        submit(si_values_op(list, count, s, s->device));
    unlock();
    return code;
}

static CUresult t_cuStreamBatchMemOp(CUstream handle, unsigned count,
                                     CUstreamBatchMemOpParams *list, unsigned flags) {
    return d_cuStreamBatchMemOp(handle ? handle : CU_STREAM_PER_THREAD, count, list, flags);
}

#if CUDART_VERSION >= 12050
/* A GPU separates multiprocessors in pairs, at least. */
static CUresult d_cuDeviceGetDevResource(CUdevice which, CUdevResource *out,
                                         CUdevResourceType type) {
    ENTER_DRIVER(cuDeviceGetDevResource);
    if (!out || type != CU_DEV_RESOURCE_TYPE_SM || si_index_of(which) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    out->type = type;
    out->sm.smCount = MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

static CUresult d_cuDevSmResourceSplitByCount(CUdevResource *out, unsigned *groups,
                                              const CUdevResource *from, CUdevResource *rest,
                                              unsigned flags, unsigned least) {
    ENTER_DRIVER(cuDevSmResourceSplitByCount);
    unsigned size = least < 2 ? 2 : (least + 1) / 2 * 2;
    if (!out || !groups || *groups != 1 || !from || from->type != CU_DEV_RESOURCE_TYPE_SM || rest ||
        flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > from->sm.smCount)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    *out = *from;
    out->sm.smCount = size;
    return CUDA_SUCCESS;
}

static CUresult d_cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
                                            unsigned count) {
    ENTER_DRIVER(cuDevResourceGenerateDesc);
    if (!out || !resources || count != 1 || resources->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdevResourceDesc)(uintptr_t)resources->sm.smCount;
    return CUDA_SUCCESS;
}

static CUresult d_cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice which,
                                   unsigned flags) {
    ENTER_DRIVER(cuGreenCtxCreate);
    int index = si_index_of(which);
    if (!out || !desc || flags != CU_GREEN_CTX_DEFAULT_STREAM || index < 0)
        return CUDA_ERROR_INVALID_VALUE;
    lock();
    make_primary(index);
    green *g = si_allocate(sizeof *g);
    g->device = index, g->count = (int)(uintptr_t)desc;
    *out = si_new_handle(H_GREEN, g);
    live_greens++;
    unlock();
    return CUDA_SUCCESS;
}

/* Undefined while streams or their work are left (cuda.h). */
static CUresult d_cuGreenCtxDestroy(CUgreenCtx handle) {
    int code = enter(F_cuGreenCtxDestroy);
    if (refused(code))
        return (CUresult)code;
    lock();
    green *g = si_object_of("cuGreenCtxDestroy", H_GREEN, handle);
    if (g->streams)
        si_fail_test("cuGreenCtxDestroy: %d streams of the green context are left", g->streams);
    si_drop_handle("cuGreenCtxDestroy", H_GREEN, handle);
    live_greens--;
    free(g);
    unlock();
    return (CUresult)code;
}

static CUresult d_cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx handle, unsigned flags,
                                         int priority) {
    ENTER_DRIVER(cuGreenCtxStreamCreate);
    if (!out || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    lock();
    green *g = si_object_of("cuGreenCtxStreamCreate", H_GREEN, handle);
    CUresult code = (CUresult)sticky(g->device);
    if (!code) {
        *out = make_stream(g->device, cudaStreamNonBlocking, priority);
        stream *s = si_stream_of("cuGreenCtxStreamCreate", *out);
        s->green = g;
        g->streams++;
    }
    unlock();
    return code;
}
#endif

#if CUDART_VERSION >= 12090
/* These two do not count as calls, like those that ask for the text of an error. */
static CUresult d_cuLogsCurrent(unsigned *out, unsigned none) {
    if (!out || none)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lines.lock);
    *out = lines.count;
    pthread_mutex_unlock(&lines.lock);
    return CUDA_SUCCESS;
}

/* If not all lines fit, the first one says so; the newest ones are there in any case. */
static CUresult d_cuLogsDumpToMemory(unsigned *at, char *out, size_t *size, unsigned none) {
    static const char cut[] = "[00:00:00.000][CUDA][W] the log was cut\n";
    if (!out || !size || none)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lines.lock);
    unsigned first = at ? *at : 0, from = lines.count;
    size_t room = *size, used = sizeof cut; /* and an end of the text */
    if (lines.count - first > 32)
        first = lines.count - 32;
    while (from != first && used + strlen(lines.line[(from - 1) % 32]) + 1 <= room)
        used += strlen(lines.line[--from % 32]) + 1;
    size_t length = 0;
    if (from != first)
        length += (size_t)snprintf(out, room, "%s", cut);
    int fits = from != lines.count || first == lines.count;
    for (; from != lines.count; from++)
        length += (size_t)snprintf(out + length, room - length, "%s\n", lines.line[from % 32]);
    if (at)
        *at = lines.count;
    pthread_mutex_unlock(&lines.lock);
    *size = fits ? length : 0;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
#endif

static CUresult t_cuStreamQuery(CUstream handle) {
    return d_cuStreamQuery(handle ? handle : CU_STREAM_PER_THREAD);
}

static CUresult t_cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, CUstream handle,
                                 void **params, void **extra) {
    return d_cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared,
                            handle ? handle : CU_STREAM_PER_THREAD, params, extra);
}

static CUresult t_cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params,
                                   void **extra) {
    return launch_with(c, f, c->hStream ? c->hStream : CU_STREAM_PER_THREAD, params, extra);
}

/* ---- entry points ---- */

typedef void (*any_function)(void);

typedef struct entry {
    const char *name;
    unsigned since;
    any_function legacy, per_thread;
} entry;

static const entry entries[] = {
#define X(name, since) { #name, since, (any_function)d_##name, (any_function)d_##name },
    DRIVER(X)
#undef X
#define X(name, since) { #name, since, (any_function)d_##name, (any_function)t_##name },
        DRIVER_STREAM(X)
#undef X
#define X(name, since) { #name, since, (any_function)si_##name, (any_function)si_##name },
            DRIVER_MEMORY(X) DRIVER_LINK(X)
#undef X
#define X(form, name, since) { #name, since, (any_function)si_##form, (any_function)si_##form },
                DRIVER_FORMS(X)
#undef X
};

cudaError_t si_entry_point(const char *symbol, void **out, unsigned version,
                           unsigned long long flags, enum cudaDriverEntryPointQueryResult *status,
                           int per_thread) {
    int code = enter(version ? F_cudaGetDriverEntryPointByVersion : F_cudaGetDriverEntryPoint);
    if (code)
        return result(code);
    if (!symbol || !out || flags > cudaEnablePerThreadDefaultStream ||
        (version && version > (unsigned)si_config.driver_version))
        return result(cudaErrorInvalidValue);
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    any_function f = NULL;
    if (flags != cudaEnableDefault)
        per_thread = flags == cudaEnablePerThreadDefaultStream;
    /* of several forms the last that is known */
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(entries[i].name, symbol)) {
            int known = entries[i].since <= (version ? version : CUDART_VERSION);
            if (known)
                f = per_thread ? entries[i].per_thread : entries[i].legacy;
            found = f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
        }
    memcpy(out, &f, sizeof *out);
    if (status)
        *status = found;
    return cudaSuccess;
}

/* ---- control ---- */

/* The function of a name, in a call of the test. */
static function_id function_named(const char *call, const char *name) {
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!strcmp(function_names[i], name))
            return (function_id)i;
    si_fail_test("%s: there is no %s", call, name);
}

unsigned long standin_calls(const char *name) {
    return atomic_load_explicit(&calls[function_named("standin_calls", name)],
                                memory_order_relaxed);
}

void standin_log_begin(void) {
    pthread_once(&once, start);
    remember_thread();
    si_me.log_on = 1, si_me.log_length = 0;
    if (si_me.log)
        *si_me.log = 0;
}

const char *standin_log_take(void) {
    si_me.log_on = 0;
    return si_me.log ? si_me.log : "";
}

void standin_fail(unsigned long nth, int code) {
    atomic_store(&fail_came, 0);
    atomic_store(&fail_code, code);
    atomic_store(&fail_in, nth);
}

void standin_fail_calls(const char *name, unsigned long nth, unsigned long times, int code) {
    function_id f = function_named("standin_fail_calls", name);
    atomic_store(&fail_calls.left, 0);
    atomic_store(&fail_came, 0);
    atomic_store(&fail_calls.function, (int)f);
    atomic_store(&fail_calls.times, times);
    atomic_store(&fail_calls.code, code);
    atomic_store(&fail_calls.left, times ? nth + times - 1 : 0);
}

int standin_failed(void) {
    return atomic_load(&fail_came);
}

size_t standin_live(char *report, size_t size) {
    enum { KINDS = 16 };

    static const char *const kinds[KINDS] = {
        "stream",       "event",           "device allocation", "host allocation",
        "registration", "module",          "open capture",      "graph",
        "executable",   "user object",     "reservation",       "handle of memory",
        "mapping",      "pool allocation", "green context",     "state of the linker"
    };
    size_t counts[KINDS] = { 0 }, total = 0, at = 0;
    lock();
    counts[0] = live_streams, counts[1] = live_events, counts[5] = live_modules,
    counts[6] = si_capture_count();
    for (size_t i = 0; i < range_count; i++)
        counts[ranges[i]->space ? 12 : ranges[i]->pool ? 13 : 2 + (int)ranges[i]->kind]++;
    si_graph_counts(&counts[7], &counts[8], &counts[9]);
    si_memory_counts(&counts[10], &counts[11], &counts[13]);
    counts[14] = live_greens, counts[15] = si_link_count();
    unlock();
    if (report && size)
        *report = 0;
    for (int i = 0; i < KINDS; i++) {
        total += counts[i];
        if (counts[i] && report && at < size)
            at += (size_t)snprintf(report + at, size - at, "%s%zu %s%s", at ? ", " : "", counts[i],
                                   kinds[i], counts[i] > 1 ? "s" : "");
    }
    return total;
}

unsigned standin_contexts(void) {
    unsigned bits = 0;
    lock();
    for (int i = 0; i < MAX_DEVICES; i++)
        bits |= (unsigned)si_devices[i].primary << i;
    unlock();
    return bits;
}

void *standin_context(int index) {
    pthread_once(&once, start);
    lock();
    CUcontext made = is_device(index) ? new_context(index, 0) : NULL;
    unlock();
    return made;
}

void standin_null(int on) {
    pthread_once(&once, start);
    atomic_store(&null_mode, on != 0);
}

void standin_hold(int on) {
    pthread_once(&once, start);
    lock();
    held = on != 0;
    for (int i = 0; i < si_config.devices; i++) {
        pthread_cond_broadcast(&si_devices[i].more_work);
        call_workers(&si_devices[i]);
        while (!held && si_devices[i].externals.count) {
            op *o = pop(&si_devices[i].externals);
            if (begin_external(o))
                end_op(o);
        }
    }
    unlock();
}

void standin_register_image(const void *image, const char *ptx_text) {
    lock();
    images = si_grown(images, image_count, &image_capacity, sizeof *images);
    images[image_count++] = (registered_image){ image, ptx_text };
    unlock();
}

void standin_register_function(const void *host_function, const char *ptx_text, const char *name) {
    char error[256] = "";
    module *m = si_allocate(sizeof *m);
    registered_function new = { host_function, m, NULL, 0 };
    m->code = ptx_load(ptx_text, error, sizeof error);
    if (!m->code)
        si_fail_test("standin_register_function: %s", error);
    new.code = ptx_find(m->code, name);
    if (!new.code)
        si_fail_test("standin_register_function: no entry %s", name);
    lock();
    registered_function *old = si_registered_as(host_function);
    if (old) {
        old->module->unloaded = 1;
        si_free_module_if_over(old->module);
        *old = new;
    } else {
        registered =
            si_grown(registered, registered_count, &registered_capacity, sizeof *registered);
        registered[registered_count++] = new;
    }
    unlock();
}

void standin_kernel_error(char *text, size_t size) {
    lock();
    snprintf(text, size, "%s", kernel_error);
    unlock();
}

size_t standin_threads(void) {
    size_t n = 0;
    lock();
    for (int i = 0; i < MAX_DEVICES; i++)
        n += si_devices[i].workers + (size_t)si_devices[i].caller;
    n += si_graph_threads();
    unlock();
    return n;
}
