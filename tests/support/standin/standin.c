/* A strict stand-in for cudart: devices, streams, events, memory and modules on threads.  standin.h says what it is for.

   How it works.  Work put into streams is a graph: an operation counts those that it still waits for (the one before it in its
   stream, the legacy stream or all blocking streams, an event's record) and is ready when none is left.  Ready work is run by a
   few threads of its device, host functions by one more thread for each device.  One lock guards everything but the running of
   an operation; whoever waits, waits for the end of an operation.

   Device memory has two addresses: the user's, where nothing can be touched, and the device's, where it really lies.

   Contents: settings; functions and their calls; threads and errors; handles; memory; operations; running them; waiting;
   copies and fills; kernels; the runtime's functions; the driver's functions; entry points; control.  */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* names.c alone has functions whose names depend on this. */
#undef CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "internal.h"
#include "ptx.h"
#include "standin.h"

#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* CUDA does not say whether cudaStreamQuery and cudaStreamSynchronize of the legacy stream count the earlier work of blocking
   streams.  1: they do. */
#ifndef STANDIN_LEGACY_COUNTS
#define STANDIN_LEGACY_COUNTS 0
#endif

enum {
    MAX_DEVICES = 16,
    MAX_WORKERS = 128,         /* of one device; a GPU runs as many kernels at a time */
    STAGING     = 64 * 1024,   /* a copy from pageable memory of up to this size returns before it is done */
    PAGE        = 4096,
    GARBAGE     = 64 * 1024,   /* so much of fresh memory is filled with what is not zero */
    LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5,
    MAX_SHARED  = 49152, MAX_SHARED_OPTIN = 232448 /* 227 KiB, of capability 9.0 */, MAX_BLOCK = 1024, MAX_BLOCK_Z = 64, MAX_GRID_YZ = 65535,
    MAX_CONTEXTS = 16,         /* pushed by one thread */
    IDLE_SECONDS = 1           /* a thread without work ends after this time */
};
static const size_t MAX_PITCH = 2147483647;

static pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  some_end = PTHREAD_COND_INITIALIZER; /* an operation ended, or a device failed */

static void lock(void) { pthread_mutex_lock(&big_lock); }
static void unlock(void) { pthread_mutex_unlock(&big_lock); }

/* What CUDA leaves undefined: the test that does it fails here. */
__attribute__((format(printf, 1, 2))) static _Noreturn void fail_test(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("standin: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

static void *allocate(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p) fail_test("out of memory");
    return p;
}

static void *grown(void *array, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return array;
    *capacity = *capacity ? *capacity * 2 : 4;
    array = realloc(array, *capacity * size);
    if (!array) fail_test("out of memory");
    return array;
}

/* ---- types ---- */

typedef struct op op;

/* A stretch of memory that CUDA knows.  Its fields stay as they are from its making on, but for the last two. */
typedef struct range {
    uintptr_t start;    /* as the user sees it */
    size_t    size;
    char     *memory;   /* where it lies: for host memory at start */
    enum { DEVICE_MEMORY, HOST_MEMORY, REGISTERED_MEMORY } kind;
    int       device;   /* the owner, or the current device when it was pinned */
    int       portable;
    unsigned  uses;     /* by operations that have not ended */
    int       freeing;
} range;

typedef struct stream {
    cudaStream_t       handle;
    int                device, priority, blocking, destroyed, is_static;
    unsigned           flags;
    unsigned long long id;
    op                *tail;        /* the last operation put, while it has not ended */
    struct stream     *next, *prev; /* among the device's blocking streams with work */
} stream;

typedef struct event {
    int      device;
    unsigned flags;
    op      *record; /* the last; NULL: never recorded */
} event;

typedef struct function {
    struct module      *module;
    const ptx_function *code;
    CUfunction          handle;
    char               *name;
    size_t              most_shared; /* dynamic shared memory that a launch may ask for; 0: as much as any kernel */
} function;

typedef struct module {
    int         device;
    ptx_module *code;
    function  **functions;
    size_t      count, capacity;
    unsigned    uses; /* kernels that have not ended */
    int         unloaded;
} module;

typedef struct copy {
    char  *dst, *src;
    size_t dpitch, dslice, spitch, sslice, width, height, depth;
    char  *staging; /* freed at the end; NULL: none */
} copy;

typedef struct fill {
    char    *dst;
    size_t   pitch, element, width, height;
    uint32_t value;
} fill;

typedef struct kernel {
    module             *module;
    const ptx_function *code;
    unsigned            grid[3], block[3], shared;
    void              **params; /* one block of memory with the values behind the pointers */
} kernel;

typedef struct host {
    cudaHostFn_t         function;
    cudaStreamCallback_t callback;
    cudaStream_t         handle;
    void                *data;
} host;

typedef enum { OP_COPY, OP_FILL, OP_KERNEL, OP_RECORD, OP_WAIT, OP_MARK, OP_HOST, OP_CALLBACK } op_kind;
static const char *const op_names[] = {"copy", "fill", "kernel", "record", "wait", "mark", "host function", "callback"};

struct op {
    op_kind         kind;
    int             device;
    stream         *stream;
    unsigned        refs, pending;
    int             running, done;
    uint64_t        number;          /* in the order of submission, for each device */
    op             *next, *prev;     /* the device's operations that have not ended */
    op             *next_ready;
    op            **successors;
    size_t          successor_count, successor_capacity;
    range         **uses;
    size_t          use_count, use_capacity;
    struct timespec time;            /* of a record */
    union { copy copy; fill fill; kernel kernel; host host; } u;
};

typedef struct queue { op *first, **last; size_t count; } queue;

typedef struct device {
    int            index, primary;
    CUcontext      context;
    atomic_int     sticky;           /* the error that poisoned it, or 0 */
    stream         legacy;
    stream        *busy;             /* blocking streams with work */
    op            *first, *last;     /* operations that have not ended */
    uint64_t       submitted;
    queue          work, calls;      /* what is ready: for the workers, for the thread of host functions */
    pthread_cond_t more_work, more_calls;
    size_t         workers, idle, starting;
    int            caller;           /* the thread of host functions is there */
    char          *arena, *backing;  /* all device memory, as the user sees it and where it lies */
    size_t         arena_size, arena_next, used;
    unsigned char  can_reach[MAX_DEVICES], reaches[MAX_DEVICES]; /* peer access: possible, enabled */
} device;

static device devices[MAX_DEVICES];

/* ---- settings ---- */

static struct { int devices, error, driver_version; size_t memory; } config;
static atomic_int     null_mode;
static int            held;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t  thread_key;

static void thread_ends(void *unused);

static unsigned long long setting(const char *name, unsigned long long standard, unsigned long long most) {
    const char *text = getenv(name);
    char       *end;
    if (!text || !*text) return standard;
    unsigned long long value = strtoull(text, &end, 0);
    if (*end || value > most) fail_test("%s=%s: not a number up to %llu", name, text, most);
    return value;
}

static void read_peers(int n) {
    const char *text = getenv("STANDIN_PEERS");
    int         all = !text || !*text || !strcmp(text, "all"), none = !all && !strcmp(text, "none");
    if (!all && !none && (strlen(text) != (size_t)(n * n) || strspn(text, "01") != (size_t)(n * n)))
        fail_test("STANDIN_PEERS=%s: neither all nor none nor %d characters 0 and 1", text, n * n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            devices[i].can_reach[j] = i != j && (all || (!none && text[i * n + j] == '1'));
}

static unsigned long long next_stream_id = 1;

static void start(void) {
    config.devices        = (int)setting("STANDIN_DEVICES", 4, MAX_DEVICES);
    config.memory         = (size_t)setting("STANDIN_MEMORY", 8ULL << 30, 1ULL << 40);
    config.error          = (int)setting("STANDIN_ERROR", 0, 9999);
    config.driver_version = (int)setting("STANDIN_DRIVER_VERSION", 13000, 99999);
    atomic_store(&null_mode, (int)setting("STANDIN_NULL", 0, 1));
    if (!config.devices && !config.error) config.error = cudaErrorNoDevice;
    read_peers(config.devices);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int i = 0; i < config.devices; i++) {
        device *d = &devices[i];
        d->index = i;
        d->work.last = &d->work.first, d->calls.last = &d->calls.first;
        d->legacy.device = i, d->legacy.blocking = d->legacy.is_static = 1, d->legacy.id = next_stream_id++;
        d->legacy.handle = cudaStreamLegacy;
        pthread_cond_init(&d->more_work, &monotonic);
        pthread_cond_init(&d->more_calls, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
    if (pthread_key_create(&thread_key, thread_ends)) fail_test("no thread key");
}

/* ---- functions and their calls ---- */

#define RUNTIME(X)                                                                                                            \
    X(cudaGetDeviceCount) X(cudaGetDevice) X(cudaSetDevice) X(cudaPeekAtLastError) X(cudaGetLastError) X(cudaGetErrorName)    \
    X(cudaGetErrorString) X(cudaRuntimeGetVersion) X(cudaDriverGetVersion) X(cudaDeviceGetAttribute)                          \
    X(cudaGetDeviceProperties) X(cudaDeviceGetPCIBusId) X(cudaDeviceSynchronize) X(cudaDeviceCanAccessPeer)                   \
    X(cudaDeviceEnablePeerAccess) X(cudaDeviceDisablePeerAccess) X(cudaDeviceGetStreamPriorityRange) X(cudaMemGetInfo)        \
    X(cudaMalloc) X(cudaFree) X(cudaHostAlloc) X(cudaMallocHost) X(cudaFreeHost) X(cudaHostRegister) X(cudaHostUnregister)    \
    X(cudaPointerGetAttributes) X(cudaStreamCreate) X(cudaStreamCreateWithFlags) X(cudaStreamCreateWithPriority)              \
    X(cudaStreamDestroy) X(cudaStreamQuery) X(cudaStreamSynchronize) X(cudaStreamWaitEvent) X(cudaStreamGetFlags)             \
    X(cudaStreamGetPriority) X(cudaStreamGetDevice) X(cudaStreamGetId) X(cudaStreamAddCallback) X(cudaLaunchHostFunc)         \
    X(cudaEventCreate) X(cudaEventCreateWithFlags) X(cudaEventDestroy) X(cudaEventRecord) X(cudaEventQuery)                   \
    X(cudaEventSynchronize) X(cudaEventElapsedTime) X(cudaMemcpy) X(cudaMemcpyAsync) X(cudaMemcpy2DAsync)                     \
    X(cudaMemcpyPeerAsync) X(cudaMemcpy3DPeerAsync) X(cudaMemset) X(cudaMemsetAsync) X(cudaMemset2DAsync)                     \
    X(cudaLaunchKernel) X(cudaFuncSetAttribute) X(cudaFuncGetAttributes) X(cudaGetDriverEntryPoint) X(cudaGetDriverEntryPointByVersion)

/* The driver's, with the version of CUDA that brought them; those of the second list take a stream. */
#define DRIVER(X)                                                                                                             \
    X(cuModuleLoadData, 2000) X(cuModuleLoadDataEx, 2010) X(cuModuleUnload, 2000) X(cuModuleGetFunction, 2000)                \
    X(cuEventQuery, 2000) X(cuMemGetAddressRange, 3020) X(cuGetErrorName, 6000) X(cuGetErrorString, 6000)                     \
    X(cuCtxGetCurrent, 4000) X(cuCtxSetCurrent, 4000) X(cuCtxPushCurrent, 4000) X(cuCtxPopCurrent, 4000)                     \
    X(cuDevicePrimaryCtxRetain, 7000) X(cuFuncGetAttribute, 2020) X(cuFuncSetAttribute, 9000)
#define DRIVER_STREAM(X)                                                                                                      \
    X(cuLaunchKernel, 4000) X(cuStreamQuery, 2000) X(cuMemsetD8Async, 3020) X(cuMemsetD16Async, 3020)                         \
    X(cuMemsetD32Async, 3020) X(cuMemsetD2D8Async, 3020) X(cuMemsetD2D16Async, 3020) X(cuMemsetD2D32Async, 3020)

typedef enum {
#define X(name) F_##name,
    RUNTIME(X)
#undef X
#define X(name, since) F_##name,
    DRIVER(X) DRIVER_STREAM(X)
#undef X
    FUNCTIONS
} function_id;

static const char *const function_names[FUNCTIONS] = {
#define X(name) #name,
    RUNTIME(X)
#undef X
#define X(name, since) #name,
    DRIVER(X) DRIVER_STREAM(X)
#undef X
};
static atomic_ulong calls[FUNCTIONS];

/* ---- threads and errors ---- */

static _Thread_local struct {
    int     current;                     /* device */
    int     bound;                       /* the current device's context is bound */
    struct { int current, bound; } under[MAX_CONTEXTS]; /* the stack of contexts, without the one on top */
    int     depth;
    int     last;                        /* error */
    int     in_host_function, injected, has_key;
    int     log_on;
    char   *log;
    size_t  log_length, log_capacity;
    stream *own[MAX_DEVICES];            /* per-thread default streams */
} me;

static atomic_ulong fail_in;   /* calls until the one that fails; 0: off */
static atomic_int   fail_code, fail_came;

static void remember_thread(void) {
    if (me.has_key) return;
    me.has_key = 1;
    pthread_setspecific(thread_key, &me);
}

static void log_call(const char *name, const char *argument) {
    if (!me.log_on) return;
    size_t need = me.log_length + strlen(name) + strlen(argument) + 3;
    while (me.log_capacity < need) {
        me.log_capacity = me.log_capacity ? me.log_capacity * 2 : 1024;
        me.log = realloc(me.log, me.log_capacity);
        if (!me.log) fail_test("out of memory");
    }
    me.log_length += (size_t)snprintf(me.log + me.log_length, me.log_capacity - me.log_length, "%s%s%s%s",
                                      me.log_length ? " " : "", name, *argument ? ":" : "", argument);
}

static void count_call(function_id f, const char *argument) {
    pthread_once(&once, start);
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return; /* what is measured then is not this */
    atomic_fetch_add_explicit(&calls[f], 1, memory_order_relaxed);
    log_call(function_names[f], argument);
}

static int injected_failure(void) {
    unsigned long left = atomic_load_explicit(&fail_in, memory_order_relaxed);
    while (left)
        if (atomic_compare_exchange_weak(&fail_in, &left, left - 1)) {
            if (left > 1) return 0;
            atomic_store(&fail_came, 1);
            me.injected = 1;
            return atomic_load(&fail_code);
        }
    return 0;
}

/* Every function that can fail begins with this: 0, or the code with which it fails. */
static int enter_with(function_id f, const char *argument) {
    count_call(f, argument);
    me.injected = 0;
    if (me.in_host_function) return cudaErrorNotPermitted;
    if (config.error) return config.error;
    return injected_failure();
}
static int enter(function_id f) { return enter_with(f, ""); }

/* What frees does its work although a failure is injected. */
static int refused(int code) { return code && !me.injected; }

/* A result of the runtime is also the thread's last error. */
static cudaError_t result(int code) {
    if (code) me.last = code;
    return (cudaError_t)code;
}

#define ENTER(f)            do { int code_ = enter(F_##f); if (code_) return result(code_); } while (0)
#define ENTER_WITH(f, text) do { int code_ = enter_with(F_##f, text); if (code_) return result(code_); } while (0)
#define ENTER_DRIVER(f)     do { int code_ = enter(F_##f); if (code_) return (CUresult)code_; } while (0)

static int sticky(int index) { return atomic_load(&devices[index].sticky); }

static int is_sticky(int code) {
    for (int i = 0; i < config.devices; i++)
        if (sticky(i) == code) return 1;
    return 0;
}

static void make_primary(int index);

/* What the runtime does in the first call that needs a context. */
static void bind(void) {
    if (me.bound) return;
    lock();
    make_primary(me.current);
    unlock();
    me.bound = 1;
}

/* Binds, and says what is wrong with the current device. */
static int context(void) {
    bind();
    return sticky(me.current);
}

static int is_device(int index) { return index >= 0 && index < config.devices; }

/* ---- handles ---- */

/* A handle is a number, not an address: kind, index of the slot and its generation.  So none is ever given out twice. */
enum { H_STREAM = 1, H_EVENT, H_MODULE, H_FUNCTION, H_CONTEXT };
static const char *const handle_kinds[] = {"", "stream", "event", "module", "function", "context"};
typedef struct slot { void *object; uint32_t generation; unsigned kind; size_t next_free; } slot;
static slot  *slots;
static size_t slot_count, slot_capacity, free_slot; /* free_slot: index + 1 */

static void *new_handle(unsigned kind, void *object) {
    size_t i = free_slot ? free_slot - 1 : slot_count;
    if (free_slot) {
        free_slot = slots[i].next_free;
    } else {
        slots = grown(slots, slot_count, &slot_capacity, sizeof *slots);
        slots[slot_count++] = (slot){NULL, 0, 0, 0};
    }
    slots[i].object = object, slots[i].kind = kind, slots[i].generation++;
    return (void *)((uintptr_t)slots[i].generation << 36 | (uintptr_t)i << 4 | kind);
}

static size_t slot_of(const char *call, unsigned kind, const void *handle) {
    uintptr_t h = (uintptr_t)handle, i = h >> 4 & 0xffffffff;
    if ((h & 15) != kind || i >= slot_count || !slots[i].object || slots[i].generation != h >> 36)
        fail_test("%s: %p is no %s, or it is destroyed", call, handle, handle_kinds[kind]);
    return i;
}

static void *object_of(const char *call, unsigned kind, const void *handle) {
    return slots[slot_of(call, kind, handle)].object;
}

static void drop_handle(const char *call, unsigned kind, const void *handle) {
    size_t i = slot_of(call, kind, handle);
    slots[i].object = NULL;
    slots[i].next_free = free_slot;
    free_slot = i + 1;
}

static void make_primary(int index) {
    if (devices[index].primary) return;
    devices[index].primary = 1;
    devices[index].context = new_handle(H_CONTEXT, &devices[index]);
}

static stream *new_stream(int index, unsigned flags, int priority) {
    stream *s = allocate(sizeof *s);
    s->device = index, s->flags = flags, s->priority = priority, s->id = next_stream_id++;
    s->blocking = !(flags & cudaStreamNonBlocking);
    return s;
}

/* The stream of a handle, which for the two special ones depends on the thread and its current device. */
static stream *stream_of(const char *call, cudaStream_t handle) {
    if (!handle || handle == cudaStreamLegacy) return &devices[me.current].legacy;
    if (handle != cudaStreamPerThread) return object_of(call, H_STREAM, handle);
    if (!me.own[me.current]) {
        remember_thread();
        me.own[me.current] = new_stream(me.current, cudaStreamDefault, 0);
        me.own[me.current]->handle = cudaStreamPerThread;
    }
    return me.own[me.current];
}

static void free_stream_if_over(stream *s) {
    if (s->destroyed && !s->tail && !s->is_static) free(s);
}

static void thread_ends(void *unused) {
    (void)unused;
    lock();
    for (int i = 0; i < MAX_DEVICES; i++)
        if (me.own[i]) {
            me.own[i]->destroyed = 1;
            free_stream_if_over(me.own[i]);
            me.own[i] = NULL;
        }
    unlock();
    free(me.log);
    me.log = NULL, me.log_capacity = 0, me.has_key = 0;
}

/* ---- memory ---- */

static range **ranges; /* by start */
static size_t  range_count, range_capacity;

/* The first range that ends after the address. */
static size_t range_after(uintptr_t address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->start + ranges[middle]->size <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* A range that has a byte in [start, start + size). */
static range *range_touching(uintptr_t start, size_t size) {
    size_t i = range_after(start);
    if (i == range_count || !size) return NULL;
    return ranges[i]->start <= start || ranges[i]->start - start < size ? ranges[i] : NULL;
}

static range *range_starting(const void *address) {
    size_t i = range_after((uintptr_t)address);
    return i < range_count && ranges[i]->start == (uintptr_t)address ? ranges[i] : NULL;
}

static range *add_range(void *start, size_t size, void *memory, int kind, int index, int portable) {
    range *r = allocate(sizeof *r);
    r->start = (uintptr_t)start, r->size = size, r->memory = memory, r->device = index, r->portable = portable;
    r->kind = kind == DEVICE_MEMORY ? DEVICE_MEMORY : kind == HOST_MEMORY ? HOST_MEMORY : REGISTERED_MEMORY;
    ranges = grown(ranges, range_count, &range_capacity, sizeof *ranges);
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
    if (r->device == index) return 1;
    return r->kind == DEVICE_MEMORY ? devices[index].reaches[r->device] : r->portable;
}

static size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

static void make_arena(device *d) {
    if (d->arena) return;
    d->arena_size = round_up(2 * config.memory + (256u << 20), PAGE);
    d->arena = mmap(NULL, d->arena_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    d->backing = mmap(NULL, d->arena_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (d->arena == MAP_FAILED || d->backing == MAP_FAILED) fail_test("no address space for a device's memory");
    madvise(d->backing, d->arena_size, MADV_DONTDUMP);
}

/* A gap of so many bytes in the arena, from `from` on; arena_size: none. */
static size_t gap_from(const device *d, size_t from, size_t size) {
    uintptr_t base = (uintptr_t)d->arena;
    for (size_t i = range_after(base + from); i < range_count && ranges[i]->start < base + d->arena_size; i++) {
        if (ranges[i]->start - base >= from + size) break;
        from = round_up(ranges[i]->start + ranges[i]->size - base, PAGE) + PAGE;
    }
    return from + size <= d->arena_size ? from : d->arena_size;
}

/* Each allocation has pages of its own with one between two, and begins 512 bytes into a page: CUDA promises no more.  The
   search goes on after the last allocation, so that an address comes again as late as possible. */
static range *allocate_on(device *d, size_t size) {
    if (size > config.memory || d->used + round_up(size, 512) > config.memory) return NULL;
    make_arena(d);
    size_t whole = round_up(size + 512, PAGE) + PAGE, at = gap_from(d, d->arena_next, whole);
    if (at == d->arena_size) at = gap_from(d, 0, whole);
    if (at == d->arena_size) return NULL;
    d->arena_next = at + whole;
    d->used += round_up(size, 512);
    memset(d->backing + at + 512, 0xa5, size < GARBAGE ? size : GARBAGE);
    return add_range(d->arena + at + 512, size, d->backing + at + 512, DEVICE_MEMORY, d->index, 0);
}

static void free_device_range(range *r) {
    device *d = &devices[r->device];
    madvise(r->memory - 512, round_up(r->size + 512, PAGE), MADV_DONTNEED);
    d->used -= round_up(r->size, 512);
    remove_range(r);
}

/* ---- operations ---- */

static op *new_op(op_kind kind, stream *s) {
    op *o = allocate(sizeof *o);
    o->kind = kind, o->stream = s, o->device = s->device, o->refs = 1;
    return o;
}

static void unref_times(op *o, unsigned times) {
    o->refs -= times;
    if (o->refs) return;
    free(o->successors);
    free(o->uses);
    free(o);
}
static void unref(op *o) { unref_times(o, 1); }

static void use(op *o, range *r) {
    for (size_t i = 0; i < o->use_count; i++)
        if (o->uses[i] == r) return;
    o->uses = grown(o->uses, o->use_count, &o->use_capacity, sizeof *o->uses);
    o->uses[o->use_count++] = r;
    r->uses++;
}

static int uses(const op *o, const range *r) {
    for (size_t i = 0; i < o->use_count; i++)
        if (o->uses[i] == r) return 1;
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

static void free_module_if_over(module *m) {
    if (!m->unloaded || m->uses) return;
    ptx_unload(m->code);
    free(m->functions);
    free(m);
}

static void let_go(op *o) {
    while (o->use_count) drop_use(o, o->uses[0]);
    if (o->kind == OP_COPY) free(o->u.copy.staging);
    if (o->kind == OP_KERNEL) {
        free(o->u.kernel.params);
        o->u.kernel.module->uses--;
        free_module_if_over(o->u.kernel.module);
    }
}

static void depend(op *o, op *on) {
    if (!on || on->done) return;
    on->successors = grown(on->successors, on->successor_count, &on->successor_capacity, sizeof *on->successors);
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
    if (!q->first) q->last = &q->first;
    q->count--;
    return o;
}

static void *run_work(void *of), *run_calls(void *of);

static void start_thread(void *(*body)(void *), device *d) {
    pthread_t      thread;
    pthread_attr_t detached;
    sigset_t       all, before;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &detached, body, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (failed) fail_test("no thread for work of device %d: %s", d->index, strerror(failed));
}

static void call_workers(device *d) {
    if (held) return;
    if (d->work.count) pthread_cond_signal(&d->more_work);
    while (d->work.count > d->idle + d->starting && d->workers < MAX_WORKERS) {
        d->workers++, d->starting++;
        start_thread(run_work, d);
    }
    if (!d->calls.count) return;
    pthread_cond_signal(&d->more_calls);
    if (!d->caller) {
        d->caller = 1;
        start_thread(run_calls, d);
    }
}

static int is_instant(const op *o) { return o->kind == OP_WAIT || o->kind == OP_MARK; }

/* Returns how many references the stream gave up. */
static unsigned leave_stream(op *o) {
    stream *s = o->stream;
    if (s->tail != o) return 0;
    s->tail = NULL;
    if (s->prev) s->prev->next = s->next;
    else if (devices[s->device].busy == s) devices[s->device].busy = s->next;
    if (s->next) s->next->prev = s->prev;
    s->next = s->prev = NULL;
    free_stream_if_over(s);
    return 1;
}

static void leave_device(op *o) {
    device *d = &devices[o->device];
    *(o->prev ? &o->prev->next : &d->first) = o->next;
    *(o->next ? &o->next->prev : &d->last) = o->prev;
}

/* The operation has ended: what waited for it alone is ready; if that takes no time, it has ended too, and so on. */
static void end_op(op *o) {
    queue over = {NULL, &over.first, 0};
    push(&over, o);
    while (over.count) {
        o = pop(&over);
        o->done = 1, o->running = 0;
        let_go(o);
        leave_device(o);
        for (size_t i = 0; i < o->successor_count; i++) {
            op     *next = o->successors[i];
            device *d = &devices[next->device];
            if (--next->pending) continue;
            if (is_instant(next)) {
                push(&over, next);
            } else {
                push(next->kind == OP_HOST || next->kind == OP_CALLBACK ? &d->calls : &d->work, next);
                call_workers(d);
            }
        }
        o->successor_count = 0;
        unref_times(o, 1 + leave_stream(o));
    }
    pthread_cond_broadcast(&some_end);
}

/* Puts the operation at the end of its stream, after `also` too (NULL: nothing).  The stream then owns it. */
static void submit_after(op *o, op *also) {
    stream *s = o->stream;
    device *d = &devices[s->device];
    o->number = ++d->submitted;
    o->prev = d->last;
    *(d->last ? &d->last->next : &d->first) = o;
    d->last = o;
    o->pending = 1;
    depend(o, s->tail);
    depend(o, also);
    if (s == &d->legacy)
        for (stream *b = d->busy; b; b = b->next) depend(o, b->tail);
    else if (s->blocking)
        depend(o, d->legacy.tail);
    if (s->tail) {
        unref(s->tail);
    } else if (s->blocking && s != &d->legacy) {
        s->next = d->busy;
        if (s->next) s->next->prev = s;
        d->busy = s;
    }
    s->tail = o;
    o->refs++;
    if (--o->pending) return;
    if (is_instant(o)) {
        end_op(o);
        return;
    }
    push(o->kind == OP_HOST || o->kind == OP_CALLBACK ? &d->calls : &d->work, o);
    call_workers(d);
}
static void submit(op *o) { submit_after(o, NULL); }

/* ---- running them ---- */

static char kernel_error[256];

static void poison(int index, int code) {
    int none = 0;
    atomic_compare_exchange_strong(&devices[index].sticky, &none, code);
    pthread_cond_broadcast(&some_end);
}

static void run_copy(const copy *c) {
    for (size_t z = 0; z < c->depth; z++) {
        char *dst = c->dst + z * c->dslice, *src = c->src + z * c->sslice;
        if (c->dpitch == c->width && c->spitch == c->width) memmove(dst, src, c->width * c->height);
        else
            for (size_t y = 0; y < c->height; y++) memmove(dst + y * c->dpitch, src + y * c->spitch, c->width);
    }
}

static void run_fill(const fill *f) {
    for (size_t y = 0; y < f->height; y++) {
        char *row = f->dst + y * f->pitch;
        if (f->element == 1) memset(row, (int)(f->value & 0xff), f->width);
        else
            for (size_t x = 0; x < f->width; x++) memcpy(row + x * f->element, &f->value, f->element); /* little-endian */
    }
}

/* The ranges that a kernel has touched stay in use until it ends, so they can be remembered without a lock. */
typedef struct kernel_run { op *o; range *recent[4]; unsigned next; } kernel_run;

static void *reach_slowly(kernel_run *k, uintptr_t address, size_t size) {
    lock();
    range *r = range_touching(address, size);
    if (r && (address < r->start || size > r->size - (address - r->start) || !reachable(r, k->o->device))) r = NULL;
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
        range    *r = k->recent[i];
        uintptr_t offset = r ? (uintptr_t)address - r->start : 0;
        if (r && offset < r->size && size <= r->size - offset) return r->memory + offset;
    }
    return reach_slowly(k, (uintptr_t)address, size);
}

static int is_cancelled(void *user) { return sticky(((kernel_run *)user)->o->device); }

static int run_kernel(op *o, char *error, size_t size) {
    kernel    *k = &o->u.kernel;
    kernel_run run = {o, {NULL, NULL, NULL, NULL}, 0};
    ptx_launch launch;
    memset(&launch, 0, sizeof launch);
    memcpy(launch.grid, k->grid, sizeof launch.grid);
    memcpy(launch.block, k->block, sizeof launch.block);
    launch.shared_bytes = k->shared;
    launch.params = (const void *const *)k->params;
    launch.memory.reach = reach, launch.memory.user = &run;
    launch.cancelled = is_cancelled, launch.cancel_user = &run;
    switch (ptx_run(k->code, &launch, error, size)) {
    case PTX_OK: return 0;
    case PTX_TRAP: return cudaErrorLaunchFailure;
    case PTX_BAD_ADDRESS: return cudaErrorIllegalAddress;
    case PTX_MISALIGNED: return cudaErrorMisalignedAddress;
    case PTX_BAD_PROGRAM: break;
    }
    fail_test("a kernel does what the interpreter does not know: %s", error);
}

/* Called and left with the lock held, which is given up while the work is done. */
static void run(op *o) {
    char error[sizeof kernel_error] = "";
    int  code = 0;
    if (sticky(o->device)) return;
    if (o->kind == OP_RECORD) {
        clock_gettime(CLOCK_MONOTONIC, &o->time);
        return;
    }
    o->running = 1;
    unlock();
    if (o->kind == OP_COPY) run_copy(&o->u.copy);
    if (o->kind == OP_FILL) run_fill(&o->u.fill);
    if (o->kind == OP_KERNEL) code = run_kernel(o, error, sizeof error);
    lock();
    if (!code || sticky(o->device)) return;
    memcpy(kernel_error, error, sizeof error);
    poison(o->device, code);
}

static int wait_idle(pthread_cond_t *for_more) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_SECONDS;
    return pthread_cond_timedwait(for_more, &big_lock, &until);
}

static void *run_work(void *of) {
    device *d = of;
    int     late = 0;
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
    int  code = sticky(o->device);
    if (code && o->kind == OP_HOST) return;
    o->running = 1;
    unlock();
    me.in_host_function = 1;
    if (o->kind == OP_HOST) h.function(h.data);
    else h.callback(h.handle, (cudaError_t)code, h.data);
    me.in_host_function = 0;
    lock();
}

static void *run_calls(void *of) {
    device *d = of;
    int     late = 0;
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

static void wait_some(void) { pthread_cond_wait(&some_end, &big_lock); }

/* Until the operation has ended or its device has failed; with `quiet` not while it still runs. */
static void wait_for(op *o, int quiet) {
    if (!o) return;
    o->refs++;
    while (!o->done && (!sticky(o->device) || (quiet && o->running))) wait_some();
    unref(o);
}

/* A mark at the end of the stream: it ends when all that was put before has.  The caller owns it. */
static op *mark(stream *s) {
    op *o = new_op(OP_MARK, s);
    o->refs++;
    submit(o);
    return o;
}

static int stream_result(stream *s, int wait) {
    int index = s->device, code = sticky(index), ready;
    if (code) return code;
    int mine = s != &devices[index].legacy || !STANDIN_LEGACY_COUNTS;
    op *last = mine ? s->tail : mark(s);
    if (wait) wait_for(last, 0);
    ready = wait || !last || last->done;
    if (!mine) unref(last);
    code = sticky(index);
    return code ? code : ready ? 0 : cudaErrorNotReady;
}

/* Until all that was put on the device before has ended. */
static void wait_device(device *d) {
    uint64_t until = d->submitted;
    while (d->first && d->first->number <= until && !sticky(d->index)) wait_some();
}

/* Nothing that is pending may use memory that goes away.  On a device that has failed pending work is never run, and what runs
   is about to end. */
static void check_unused(const char *call, range *r) {
    for (int i = 0; i < config.devices && r->uses; i++)
        for (op *o = devices[i].first, *next; o; o = next) {
            next = o->next;
            if (!uses(o, r)) continue;
            if (!sticky(i))
                fail_test("%s: %p is in use by a pending %s on device %d", call, (void *)r->start, op_names[o->kind], i);
            if (!o->running) {
                drop_use(o, r);
            } else {
                wait_some();
                next = devices[i].first;
            }
        }
}

/* ---- copies and fills ---- */

typedef struct side { char *pointer; size_t pitch, slice; } side;
typedef struct shape { size_t width, height, depth; } shape;
typedef struct place { enum { PAGEABLE, PINNED, ON_DEVICE } where; range *range; int device; char *memory; } place;

static int span_of(const side *s, const shape *of, size_t *span) {
    size_t rows, slices;
    return __builtin_mul_overflow(s->pitch, of->height - 1, &rows) || __builtin_mul_overflow(s->slice, of->depth - 1, &slices) ||
           __builtin_add_overflow(rows, slices, &rows) || __builtin_add_overflow(rows, of->width, span) ||
           __builtin_add_overflow((uintptr_t)s->pointer, *span, &rows);
}

/* Where the memory is, seen from a device.  Memory that is partly in an allocation is invalid. */
static int locate(const char *call, place *p, const side *s, const shape *of, int index) {
    size_t span;
    if (!s->pointer || span_of(s, of, &span)) return cudaErrorInvalidValue;
    uintptr_t start = (uintptr_t)s->pointer;
    range    *r = range_touching(start, span);
    *p = (place){PAGEABLE, r, index, s->pointer};
    if (!r) return 0;
    if (start < r->start || span > r->size - (start - r->start)) return cudaErrorInvalidValue;
    if (r->freeing) fail_test("%s: %p is being freed by another thread", call, (void *)s->pointer);
    p->memory = r->memory + (start - r->start);
    p->device = r->device;
    p->where = r->kind == DEVICE_MEMORY ? ON_DEVICE : reachable(r, index) ? PINNED : PAGEABLE;
    return r->kind == DEVICE_MEMORY ? sticky(r->device) : 0;
}

static int check_kind(enum cudaMemcpyKind kind, const place *dst, const place *src) {
    int to_device = dst->where == ON_DEVICE, from_device = src->where == ON_DEVICE;
    if (kind == cudaMemcpyDefault) return 0;
    return to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
           from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) ? 0 : cudaErrorInvalidValue;
}

/* Takes the source as it is now; the rows come to lie without gaps. */
static void take_source(copy *c) {
    copy to = *c;
    c->staging = allocate(c->width * c->height * c->depth);
    to.dst = c->staging, to.dpitch = c->width, to.dslice = c->width * c->height;
    run_copy(&to);
    c->src = c->staging, c->spitch = to.dpitch, c->sslice = to.dslice;
}

/* When the call may return.  Pageable to device: with the source taken, so up to a size at once.  To pageable memory, and
   between host addresses: when the copy is done.  Else at once; a plain cudaMemcpy only when it is between devices. */
/* named: the caller has named the devices. */
static int transfer(const char *call, const side *dst, const side *src, const shape *of, enum cudaMemcpyKind kind,
                    cudaStream_t handle, int plain, int named) {
    place   to, from;
    stream *s = stream_of(call, handle);
    int     index = s->device, code = sticky(index);
    if (code || !of->width || !of->height || !of->depth) return code;
    code = locate(call, &to, dst, of, index);
    if (!code) code = locate(call, &from, src, of, index);
    if (!code) code = check_kind(kind, &to, &from);
    if (code) return code;
    /* CUDA does not say whether a stream may copy what its device neither has nor reaches. */
    int any = to.where == ON_DEVICE || from.where == ON_DEVICE;
    int near = (to.where == ON_DEVICE && reachable(to.range, index)) || (from.where == ON_DEVICE && reachable(from.range, index));
    if (any && !near && !named) return cudaErrorInvalidValue;
    op *o = new_op(OP_COPY, s);
    o->u.copy = (copy){to.memory, from.memory, dst->pitch, dst->slice, src->pitch, src->slice, of->width, of->height,
                       of->depth, NULL};
    if (to.range) use(o, to.range);
    if (from.range) use(o, from.range);
    int to_device = to.where == ON_DEVICE, from_device = from.where == ON_DEVICE;
    int wait = plain ? !(to_device && from_device) : !to_device && (!from_device || to.where == PAGEABLE);
    if (to_device && from.where == PAGEABLE) {
        wait = of->width * of->height * of->depth > STAGING;
        if (plain && !wait) { /* "a stream sync is performed before the copy is initiated" */
            op *before = mark(s);
            wait_for(before, 0);
            unref(before);
        }
        if (!wait) take_source(&o->u.copy);
    }
    o->refs++;
    submit(o);
    if (wait) wait_for(o, 1);
    unref(o);
    return wait || plain ? sticky(index) : 0;
}

static int copy_kind_known(enum cudaMemcpyKind kind) { return (unsigned)kind <= (unsigned)cudaMemcpyDefault; }

static const char *kind_name(enum cudaMemcpyKind kind) {
    static const char *const names[] = {"H2H", "H2D", "D2H", "D2D", "Default"};
    return copy_kind_known(kind) ? names[kind] : "?";
}

static int transfer_2d(const char *call, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                       enum cudaMemcpyKind kind, cudaStream_t handle, int plain) {
    side  to = {dst, dpitch, 0}, from = {(char *)(uintptr_t)src, spitch, 0};
    shape of = {width, height, 1};
    if (!copy_kind_known(kind)) return cudaErrorInvalidMemcpyDirection;
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return 0;
    bind();
    lock();
    int code = transfer(call, &to, &from, &of, kind, handle, plain, 0);
    unlock();
    return code;
}

/* Between the memories of two devices that the caller names: never waits. */
static int transfer_peer(const char *call, const side *dst, int dst_device, const side *src, int src_device, const shape *of,
                         cudaStream_t handle) {
    if (!is_device(dst_device) || !is_device(src_device)) return cudaErrorInvalidDevice;
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return 0;
    bind();
    lock();
    make_primary(dst_device);
    make_primary(src_device);
    stream *s = stream_of(call, handle);
    place   to, from;
    int     code = sticky(s->device);
    if (!code) code = sticky(dst_device);
    if (!code) code = sticky(src_device);
    if (!code && of->width && of->height && of->depth) {
        code = locate(call, &to, dst, of, s->device);
        if (!code) code = locate(call, &from, src, of, s->device);
        if (!code && (to.where != ON_DEVICE || from.where != ON_DEVICE || to.device != dst_device || from.device != src_device))
            code = cudaErrorInvalidValue;
        if (!code) code = transfer(call, dst, src, of, cudaMemcpyDeviceToDevice, handle, 0, 1);
    }
    unlock();
    return code;
}

/* width in elements. */
static int put_fill(const char *call, void *dst, size_t pitch, uint32_t value, size_t element, size_t width, size_t height,
                    cudaStream_t handle) {
    side  to = {dst, pitch, 0};
    place at;
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return 0;
    lock();
    stream *s = stream_of(call, handle);
    shape   of = {width * element, height, 1};
    int     code = sticky(s->device);
    if (!code && s->device != me.current) code = cudaErrorInvalidResourceHandle;
    if (!code && (width > SIZE_MAX / element || (height > 1 && pitch < of.width) || (uintptr_t)dst % element ||
                  (height > 1 && pitch % element)))
        code = cudaErrorInvalidValue;
    if (!code && width && height) {
        code = locate(call, &at, &to, &of, s->device);
        if (!code && (at.where != ON_DEVICE || !reachable(at.range, s->device))) code = cudaErrorInvalidValue;
        if (!code) {
            op *o = new_op(OP_FILL, s);
            o->u.fill = (fill){at.memory, pitch, element, width, height, value};
            use(o, at.range);
            submit(o);
        }
    }
    unlock();
    return code;
}

/* ---- kernels ---- */

/* What a test registers for host addresses: images, and functions that cudaLaunchKernel knows. */
typedef struct registered_image { const void *image; const char *text; } registered_image;
typedef struct registered_function {
    const void         *host;
    module             *module;
    const ptx_function *code;
    size_t              most_shared;
} registered_function;
static registered_image    *images;
static size_t               image_count, image_capacity;
static registered_function *registered;
static size_t               registered_count, registered_capacity;

static int check_launch(const ptx_function *f, const unsigned grid[3], const unsigned block[3], size_t shared, size_t most_shared) {
    size_t most = most_shared ? most_shared + ptx_static_shared(f) : MAX_SHARED;
    return !grid[0] || !grid[1] || !grid[2] || grid[0] > 2147483647u || grid[1] > MAX_GRID_YZ || grid[2] > MAX_GRID_YZ ||
           !block[0] || !block[1] || !block[2] || block[0] > MAX_BLOCK || block[1] > MAX_BLOCK || block[2] > MAX_BLOCK_Z ||
           block[0] * block[1] * block[2] > MAX_BLOCK || shared > most || ptx_static_shared(f) + shared > most;
}

/* The values are copied; every address among them that CUDA knows counts as used. */
static void take_params(op *o, const ptx_function *f, void **params) {
    size_t n = ptx_param_count(f), size = n * sizeof(void *);
    for (size_t i = 0; i < n; i++) size += round_up(ptx_param_size(f, i), 16);
    void **pointers = allocate(size + 16);
    char  *next = (char *)pointers + round_up(n * sizeof(void *), 16);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = ptx_param_size(f, i);
        pointers[i] = memcpy(next, params[i], bytes);
        for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
            uintptr_t value;
            memcpy(&value, next + at, sizeof value);
            range *r = range_touching(value, 1);
            if (r && !r->freeing && reachable(r, o->device)) use(o, r);
        }
        next += round_up(bytes, 16);
    }
    o->u.kernel.params = pointers;
}

static int launch(module *m, const ptx_function *f, stream *s, const unsigned grid[3], const unsigned block[3], unsigned shared,
                  void **params) {
    if (ptx_param_count(f) && !params) return CUDA_ERROR_INVALID_VALUE;
    op *o = new_op(OP_KERNEL, s);
    o->u.kernel.module = m, o->u.kernel.code = f, o->u.kernel.shared = shared;
    memcpy(o->u.kernel.grid, grid, sizeof o->u.kernel.grid);
    memcpy(o->u.kernel.block, block, sizeof o->u.kernel.block);
    m->uses++;
    take_params(o, f, params);
    submit(o);
    return 0;
}

/* ---- the runtime's functions: devices and errors ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER(cudaGetDeviceCount);
    if (!count) return result(cudaErrorInvalidValue);
    *count = config.devices;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *index) {
    ENTER(cudaGetDevice);
    if (!index) return result(cudaErrorInvalidValue);
    *index = me.current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    char text[16];
    snprintf(text, sizeof text, "%d", index);
    ENTER_WITH(cudaSetDevice, text);
    if (!is_device(index)) return result(cudaErrorInvalidDevice);
    lock();
    make_primary(index);
    unlock();
    me.current = index, me.bound = 1;
    return cudaSuccess;
}

/* Without a driver there is one error, and it stays. */
static cudaError_t last_error(function_id f, int clear) {
    count_call(f, "");
    if (config.error) return (cudaError_t)config.error;
    int code = me.last;
    if (clear && code && !is_sticky(code)) me.last = 0;
    return (cudaError_t)code;
}
cudaError_t cudaPeekAtLastError(void) { return last_error(F_cudaPeekAtLastError, 0); }
cudaError_t cudaGetLastError(void) { return last_error(F_cudaGetLastError, 1); }

#define ERRORS(X)                                                                                                             \
    X(0, cudaSuccess, CUDA_SUCCESS, "no error")                                                                               \
    X(1, cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                 \
    X(2, cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                \
    X(3, cudaErrorInitializationError, CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                    \
    X(4, cudaErrorCudartUnloading, CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                          \
    X(9, cudaErrorInvalidConfiguration, NULL, "invalid configuration argument")                                               \
    X(12, cudaErrorInvalidPitchValue, NULL, "invalid pitch argument")                                                         \
    X(21, cudaErrorInvalidMemcpyDirection, NULL, "invalid copy direction")                                                    \
    X(34, cudaErrorStubLibrary, CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library")                                     \
    X(35, cudaErrorInsufficientDriver, NULL, "CUDA driver version is insufficient for CUDA runtime version")                  \
    X(46, cudaErrorDevicesUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable devices are busy or unavailable")         \
    X(98, cudaErrorInvalidDeviceFunction, NULL, "invalid device function")                                                    \
    X(100, cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                     \
    X(101, cudaErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                       \
    X(200, cudaErrorInvalidKernelImage, CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                           \
    X(201, cudaErrorDeviceUninitialized, CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                \
    X(209, cudaErrorNoKernelImageForDevice, CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image for this device")                  \
    X(214, cudaErrorECCUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                    \
    X(217, cudaErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported")                \
    X(218, cudaErrorInvalidPtx, CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed")                                       \
    X(222, cudaErrorUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "unsupported PTX version")                     \
    X(304, cudaErrorOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM, "an operating system call failed")                          \
    X(400, cudaErrorInvalidResourceHandle, CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                              \
    X(500, cudaErrorSymbolNotFound, CUDA_ERROR_NOT_FOUND, "named symbol not found")                                           \
    X(600, cudaErrorNotReady, CUDA_ERROR_NOT_READY, "device not ready")                                                       \
    X(700, cudaErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                   \
    X(701, cudaErrorLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")      \
    X(702, cudaErrorLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out")                                         \
    X(704, cudaErrorPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")       \
    X(705, cudaErrorPeerAccessNotEnabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled")             \
    X(709, cudaErrorContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                              \
    X(710, cudaErrorAssert, CUDA_ERROR_ASSERT, "device-side assert triggered")                                                \
    X(712, cudaErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                   \
      "part or all of the requested memory range is already mapped")                                                          \
    X(713, cudaErrorHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,                                           \
      "pointer does not correspond to a registered memory region")                                                            \
    X(714, cudaErrorHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                              \
    X(715, cudaErrorIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")             \
    X(716, cudaErrorMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                   \
    X(719, cudaErrorLaunchFailure, CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                    \
    X(800, cudaErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                        \
    X(801, cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                        \
    X(802, cudaErrorSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")                                \
    X(900, cudaErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted when capturing")          \
    X(901, cudaErrorStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated")           \
    X(999, cudaErrorUnknown, CUDA_ERROR_UNKNOWN, "unknown error")

typedef struct error_text { int code; const char *runtime, *driver, *text; } error_text;
static const error_text error_texts[] = {
#define NAME_OF(name) #name
#define X(code, runtime, driver, text) {code, #runtime, NAME_OF(driver), text},
    ERRORS(X)
#undef X
};
#define X(code, runtime, driver, text) _Static_assert(code == (int)runtime, "a code of the header");
ERRORS(X)
#undef X

static const error_text *text_of(int code) {
    for (size_t i = 0; i < sizeof error_texts / sizeof *error_texts; i++)
        if (error_texts[i].code == code) return &error_texts[i];
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
    if (code && code != config.error) return result(code);
    if (!version) return result(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    int code = enter(F_cudaDriverGetVersion);
    if (code && code != config.error) return result(code);
    if (!version) return result(cudaErrorInvalidValue);
    *version = config.error == cudaErrorInsufficientDriver ? 0 : config.driver_version;
    return cudaSuccess;
}

static int attribute(int index, int which) {
    switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return MAX_BLOCK;
    case cudaDevAttrMaxBlockDimZ: return MAX_BLOCK_Z;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return MAX_GRID_YZ;
    case cudaDevAttrMaxSharedMemoryPerBlock: return MAX_SHARED;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxPitch: return (int)MAX_PITCH;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1755000;
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrTextureAlignment: case cudaDevAttrSurfaceAlignment: return 512;
    case cudaDevAttrTexturePitchAlignment: case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrMultiProcessorCount: return 8;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrPciBusId: return index + 1;
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrComputeCapabilityMinor: return 0;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio: return 2;
    case cudaDevAttrGpuOverlap: case cudaDevAttrCanMapHostMemory: case cudaDevAttrConcurrentKernels: case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported: case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported: return 1;
    default: return 0;
    }
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int index) {
    ENTER(cudaDeviceGetAttribute);
    if (!is_device(index)) return result(cudaErrorInvalidDevice);
    if (!value || (int)which <= 0 || (int)which >= (int)cudaDevAttrMax) return result(cudaErrorInvalidValue);
    *value = attribute(index, (int)which);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int index) {
    ENTER(cudaGetDeviceProperties);
    if (!is_device(index)) return result(cudaErrorInvalidDevice);
    if (!p) return result(cudaErrorInvalidValue);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Stand-in GPU %d", index);
    for (int i = 0; i < 16; i++) p->uuid.bytes[i] = (char)(0x10 * index + i);
    p->totalGlobalMem = config.memory;
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
    p->asyncEngineCount = 3;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 50 << 20;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
    p->canUseHostPointerForRegisteredMem = p->hostRegisterSupported = p->ECCEnabled = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int index) {
    ENTER(cudaDeviceGetPCIBusId);
    if (!is_device(index)) return result(cudaErrorInvalidDevice);
    if (!text || length < 13) return result(cudaErrorInvalidValue);
    snprintf(text, (size_t)length, "0000:%02x:00.0", (unsigned)index + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER(cudaDeviceSynchronize);
    int code = context();
    if (code) return result(code);
    lock();
    wait_device(&devices[me.current]);
    unlock();
    return result(sticky(me.current));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int index, int peer) {
    ENTER(cudaDeviceCanAccessPeer);
    if (!is_device(index) || !is_device(peer)) return result(cudaErrorInvalidDevice);
    if (!can) return result(cudaErrorInvalidValue);
    *can = devices[index].can_reach[peer];
    return cudaSuccess;
}

static int set_peer(int peer, int on) {
    device *d = &devices[me.current];
    int     code = context();
    if (code) return code;
    if (!is_device(peer) || peer == me.current) return cudaErrorInvalidDevice;
    if (on && !d->can_reach[peer]) return cudaErrorPeerAccessUnsupported;
    lock();
    make_primary(peer);
    code = sticky(peer);
    if (!code && d->reaches[peer] == on) code = on ? cudaErrorPeerAccessAlreadyEnabled : cudaErrorPeerAccessNotEnabled;
    if (!code) d->reaches[peer] = (unsigned char)on;
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
    int code = context();
    if (code) return result(code);
    if (least) *least = LEAST_PRIORITY;
    if (greatest) *greatest = GREATEST_PRIORITY;
    return cudaSuccess;
}

/* ---- the runtime's functions: memory ---- */

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    ENTER(cudaMemGetInfo);
    int code = context();
    if (code) return result(code);
    if (!unused || !total) return result(cudaErrorInvalidValue);
    lock();
    *unused = config.memory - devices[me.current].used;
    *total = config.memory;
    unlock();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t size) {
    ENTER(cudaMalloc);
    int code = context();
    if (code) return result(code);
    if (!pointer) return result(cudaErrorInvalidValue);
    *pointer = NULL;
    if (!size) return cudaSuccess;
    lock();
    range *r = allocate_on(&devices[me.current], size);
    if (r) *pointer = (void *)r->start;
    unlock();
    return result(r ? 0 : cudaErrorMemoryAllocation);
}

static range *range_to_free(const char *call, const void *pointer, int kind) {
    range *r = range_starting(pointer);
    if (!r || (int)r->kind != kind || r->freeing)
        fail_test("%s: %p is not what the matching allocation returned, or it is freed", call, pointer);
    r->freeing = 1;
    return r;
}

cudaError_t cudaFree(void *pointer) {
    int code = enter(F_cudaFree);
    if (refused(code)) return result(code);
    bind();
    lock();
    if (pointer) {
        range *r = range_to_free("cudaFree", pointer, DEVICE_MEMORY);
        if (!code) code = sticky(r->device);
        wait_device(&devices[r->device]);
        if (!code) code = sticky(r->device);
        check_unused("cudaFree", r);
        free_device_range(r);
    } else if (!code) {
        code = sticky(me.current);
    }
    unlock();
    return result(code);
}

static int allocate_host(void **pointer, size_t size, unsigned flags) {
    int code = context();
    if (code) return code;
    if (!pointer || flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined))
        return cudaErrorInvalidValue;
    *pointer = NULL;
    if (!size) return 0;
    if (size > SIZE_MAX - PAGE) return cudaErrorMemoryAllocation;
    void *memory = mmap(NULL, round_up(size, PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
    memset(memory, 0xa5, size < GARBAGE ? size : GARBAGE);
    lock();
    add_range(memory, size, memory, HOST_MEMORY, me.current, (flags & cudaHostAllocPortable) != 0);
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
    if (refused(code)) return result(code);
    bind();
    lock();
    range *r = range_to_free("cudaFreeHost", pointer, HOST_MEMORY);
    if (!code) code = sticky(r->device);
    check_unused("cudaFreeHost", r);
    munmap(r->memory, round_up(r->size, PAGE));
    remove_range(r);
    unlock();
    return result(code);
}

/* Locked is locked by the page: two ranges that share one touch. */
cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    ENTER(cudaHostRegister);
    int code = context();
    if (code) return result(code);
    const unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped;
    const unsigned unsupported = cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    if (flags & ~(known | unsupported)) return result(cudaErrorInvalidValue);
    if (flags & unsupported) return result(cudaErrorNotSupported);
    uintptr_t first = (uintptr_t)pointer / PAGE * PAGE, last;
    if (!pointer || !size || __builtin_add_overflow((uintptr_t)pointer, size, &last) || last > UINTPTR_MAX - PAGE)
        return result(cudaErrorInvalidValue);
    lock();
    size_t i = range_after(first);
    if (i < range_count && ranges[i]->start < round_up(last, PAGE))
        code = ranges[i]->kind == DEVICE_MEMORY ? cudaErrorInvalidValue : cudaErrorHostMemoryAlreadyRegistered;
    else
        add_range(pointer, size, pointer, REGISTERED_MEMORY, me.current, 1);
    unlock();
    return result(code);
}

cudaError_t cudaHostUnregister(void *pointer) {
    int code = enter(F_cudaHostUnregister);
    if (refused(code)) return result(code);
    bind();
    lock();
    range *r = range_starting(pointer);
    if (!r || r->kind != REGISTERED_MEMORY || r->freeing) {
        if (!code) code = cudaErrorHostMemoryNotRegistered;
    } else {
        r->freeing = 1;
        if (!code) code = sticky(r->device);
        check_unused("cudaHostUnregister", r);
        remove_range(r);
    }
    unlock();
    return result(code);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *pointer) {
    ENTER(cudaPointerGetAttributes);
    int code = context();
    if (code) return result(code);
    if (!a) return result(cudaErrorInvalidValue);
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    a->device = cudaInvalidDeviceId;
    a->hostPointer = (void *)(uintptr_t)pointer;
    lock();
    range *r = range_touching((uintptr_t)pointer, 1);
    if (r) {
        a->type = r->kind == DEVICE_MEMORY ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
        a->device = r->device;
        a->devicePointer = reachable(r, me.current) ? (void *)(uintptr_t)pointer : NULL;
        if (r->kind == DEVICE_MEMORY) a->hostPointer = NULL;
    }
    unlock();
    return cudaSuccess;
}

/* ---- the runtime's functions: streams ---- */

static size_t live_streams, live_events, live_modules;

static int create_stream(cudaStream_t *out, unsigned flags, int priority) {
    int code = context();
    if (code) return code;
    if (!out || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return cudaErrorInvalidValue;
    if (priority > LEAST_PRIORITY) priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY) priority = GREATEST_PRIORITY;
    lock();
    stream *s = new_stream(me.current, flags, priority);
    *out = s->handle = new_handle(H_STREAM, s);
    live_streams++;
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
    if (refused(code)) return result(code);
    bind();
    if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return result(code ? code : (int)cudaErrorInvalidResourceHandle);
    lock();
    stream *s = stream_of("cudaStreamDestroy", handle);
    if (!code) code = sticky(s->device);
    drop_handle("cudaStreamDestroy", H_STREAM, handle);
    live_streams--;
    s->destroyed = 1;
    free_stream_if_over(s);
    unlock();
    return result(code);
}

cudaError_t si_stream_query(cudaStream_t handle) {
    ENTER(cudaStreamQuery);
    bind();
    lock();
    int code = stream_result(stream_of("cudaStreamQuery", handle), 0);
    unlock();
    return result(code);
}

cudaError_t si_stream_synchronize(cudaStream_t handle) {
    ENTER(cudaStreamSynchronize);
    bind();
    lock();
    int code = stream_result(stream_of("cudaStreamSynchronize", handle), 1);
    unlock();
    return result(code);
}

/* What the stream is, with its device's failure. */
static int inspect(const char *call, cudaStream_t handle, const void *out, stream *copied) {
    bind();
    if (!out) return cudaErrorInvalidValue;
    lock();
    *copied = *stream_of(call, handle);
    unlock();
    return sticky(copied->device);
}

cudaError_t si_stream_get_flags(cudaStream_t handle, unsigned *flags) {
    stream s;
    ENTER(cudaStreamGetFlags);
    int code = inspect("cudaStreamGetFlags", handle, flags, &s);
    if (!code) *flags = s.flags;
    return result(code);
}

cudaError_t si_stream_get_priority(cudaStream_t handle, int *priority) {
    stream s;
    ENTER(cudaStreamGetPriority);
    int code = inspect("cudaStreamGetPriority", handle, priority, &s);
    if (!code) *priority = s.priority;
    return result(code);
}

cudaError_t si_stream_get_device(cudaStream_t handle, int *index) {
    stream s;
    ENTER(cudaStreamGetDevice);
    int code = inspect("cudaStreamGetDevice", handle, index, &s);
    if (!code) *index = s.device;
    return result(code);
}

cudaError_t si_stream_get_id(cudaStream_t handle, unsigned long long *id) {
    stream s;
    ENTER(cudaStreamGetId);
    int code = inspect("cudaStreamGetId", handle, id, &s);
    if (!code) *id = s.id;
    return result(code);
}

static int put_call(const char *call, cudaStream_t handle, op_kind kind, host h) {
    bind();
    lock();
    stream *s = stream_of(call, handle);
    int     code = sticky(s->device);
    if (!code) {
        op *o = new_op(kind, s);
        o->u.host = h;
        o->u.host.handle = s->handle;
        submit(o);
    }
    unlock();
    return code;
}

cudaError_t si_launch_host_func(cudaStream_t handle, cudaHostFn_t fn, void *data) {
    ENTER(cudaLaunchHostFunc);
    if (!fn) return result(cudaErrorInvalidValue);
    return result(put_call("cudaLaunchHostFunc", handle, OP_HOST, (host){fn, NULL, NULL, data}));
}

cudaError_t si_stream_add_callback(cudaStream_t handle, cudaStreamCallback_t callback, void *data, unsigned flags) {
    ENTER(cudaStreamAddCallback);
    if (!callback || flags) return result(cudaErrorInvalidValue);
    return result(put_call("cudaStreamAddCallback", handle, OP_CALLBACK, (host){NULL, callback, NULL, data}));
}

/* ---- the runtime's functions: events ---- */

static int create_event(cudaEvent_t *out, unsigned flags) {
    const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    int            code = context();
    if (code) return code;
    if (!out || flags & ~known) return cudaErrorInvalidValue;
    if (flags & cudaEventInterprocess) return flags & cudaEventDisableTiming ? cudaErrorNotSupported : cudaErrorInvalidValue;
    event *e = allocate(sizeof *e);
    e->device = me.current, e->flags = flags;
    lock();
    *out = new_handle(H_EVENT, e);
    live_events++;
    unlock();
    return 0;
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
    if (refused(code)) return result(code);
    bind();
    lock();
    event *e = object_of("cudaEventDestroy", H_EVENT, handle);
    if (!code) code = sticky(e->device);
    drop_handle("cudaEventDestroy", H_EVENT, handle);
    live_events--;
    if (e->record) unref(e->record);
    free(e);
    unlock();
    return result(code);
}

cudaError_t si_event_record(cudaEvent_t handle, cudaStream_t stream_handle) {
    ENTER(cudaEventRecord);
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return cudaSuccess;
    bind();
    lock();
    event  *e = object_of("cudaEventRecord", H_EVENT, handle);
    stream *s = stream_of("cudaEventRecord", stream_handle);
    int     code = sticky(s->device);
    if (!code) code = sticky(e->device);
    if (!code && e->device != s->device) code = cudaErrorInvalidResourceHandle;
    if (!code) {
        op *o = new_op(OP_RECORD, s);
        o->refs++;
        if (e->record) unref(e->record);
        e->record = o;
        submit(o);
    }
    unlock();
    return result(code);
}

cudaError_t si_stream_wait_event(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags) {
    ENTER(cudaStreamWaitEvent);
    if (flags != cudaEventWaitDefault) return result(cudaErrorInvalidValue); /* the other flag is for capture alone */
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return cudaSuccess;
    bind();
    lock();
    event  *e = object_of("cudaStreamWaitEvent", H_EVENT, handle);
    stream *s = stream_of("cudaStreamWaitEvent", stream_handle);
    int     code = sticky(s->device);
    if (!code) code = sticky(e->device);
    if (!code && e->record) submit_after(new_op(OP_WAIT, s), e->record);
    unlock();
    return result(code);
}

/* For the runtime's function and the driver's. */
static int event_result(const char *call, const void *handle, int wait) {
    lock();
    event *e = object_of(call, H_EVENT, handle);
    int    index = e->device, code = sticky(index);
    op    *o = code ? NULL : e->record;
    int    ready = !o || o->done;
    if (wait && o) {
        wait_for(o, 0);
        ready = 1;
    }
    unlock();
    code = sticky(index);
    return code ? code : ready ? 0 : cudaErrorNotReady;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    ENTER(cudaEventQuery);
    bind();
    return result(event_result("cudaEventQuery", handle, 0));
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    ENTER(cudaEventSynchronize);
    bind();
    return result(event_result("cudaEventSynchronize", handle, 1));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    ENTER(cudaEventElapsedTime);
    bind();
    lock();
    event *a = object_of("cudaEventElapsedTime", H_EVENT, from), *b = object_of("cudaEventElapsedTime", H_EVENT, to);
    int    code = ms ? sticky(a->device) : cudaErrorInvalidValue;
    if (!code) code = sticky(b->device);
    if (!code && ((a->flags | b->flags) & cudaEventDisableTiming || !a->record || !b->record || a->device != b->device))
        code = cudaErrorInvalidResourceHandle;
    if (!code && (!a->record->done || !b->record->done)) code = cudaErrorNotReady;
    if (!code)
        *ms = (float)((double)(b->record->time.tv_sec - a->record->time.tv_sec) * 1e3 +
                      (double)(b->record->time.tv_nsec - a->record->time.tv_nsec) / 1e6);
    unlock();
    return result(code);
}

/* ---- the runtime's functions: copies, fills, launches ---- */

cudaError_t si_memcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t handle) {
    ENTER_WITH(cudaMemcpy, kind_name(kind));
    return result(transfer_2d("cudaMemcpy", dst, count, src, count, count, 1, kind, handle, 1));
}

cudaError_t si_memcpy_async(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t handle) {
    ENTER_WITH(cudaMemcpyAsync, kind_name(kind));
    return result(transfer_2d("cudaMemcpyAsync", dst, count, src, count, count, 1, kind, handle, 0));
}

cudaError_t si_memcpy_2d_async(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                               enum cudaMemcpyKind kind, cudaStream_t handle) {
    ENTER_WITH(cudaMemcpy2DAsync, kind_name(kind));
    if (dpitch < width || spitch < width || dpitch > MAX_PITCH || spitch > MAX_PITCH) return result(cudaErrorInvalidPitchValue);
    return result(transfer_2d("cudaMemcpy2DAsync", dst, dpitch, src, spitch, width, height, kind, handle, 0));
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t count, cudaStream_t handle) {
    ENTER(cudaMemcpyPeerAsync);
    side  to = {dst, count, 0}, from = {(char *)(uintptr_t)src, count, 0};
    shape of = {count, 1, 1};
    return result(transfer_peer("cudaMemcpyPeerAsync", &to, dst_device, &from, src_device, &of, handle));
}

/* The side of a three-dimensional copy; positions and width are in bytes, as the memory has no elements. */
static int pitched(struct cudaPitchedPtr p, struct cudaPos at, struct cudaExtent of, side *out) {
    size_t offset, more;
    *out = (side){p.ptr, p.pitch, 0};
    if (p.pitch > MAX_PITCH || at.x > p.pitch || of.width > p.pitch - at.x) return cudaErrorInvalidPitchValue;
    if (of.depth > 1 && (at.y > p.ysize || of.height > p.ysize - at.y)) return cudaErrorInvalidValue;
    if (__builtin_mul_overflow(p.pitch, p.ysize, &out->slice) || __builtin_mul_overflow(out->slice, at.z, &offset) ||
        __builtin_mul_overflow(p.pitch, at.y, &more) || __builtin_add_overflow(offset, more, &offset) ||
        __builtin_add_overflow(offset, at.x, &offset) || __builtin_add_overflow((uintptr_t)p.ptr, offset, &more))
        return cudaErrorInvalidValue;
    if (p.ptr) out->pointer += offset;
    return 0;
}

cudaError_t si_memcpy_3d_peer_async(const struct cudaMemcpy3DPeerParms *p, cudaStream_t handle) {
    ENTER(cudaMemcpy3DPeerAsync);
    side to, from;
    if (!p || p->srcArray || p->dstArray) return result(cudaErrorInvalidValue);
    shape of = {p->extent.width, p->extent.height, p->extent.depth};
    int   code = pitched(p->dstPtr, p->dstPos, p->extent, &to);
    if (!code) code = pitched(p->srcPtr, p->srcPos, p->extent, &from);
    if (!code) code = transfer_peer("cudaMemcpy3DPeerAsync", &to, p->dstDevice, &from, p->srcDevice, &of, handle);
    return result(code);
}

cudaError_t si_memset(void *dst, int value, size_t count, cudaStream_t handle) {
    ENTER(cudaMemset);
    bind();
    return result(put_fill("cudaMemset", dst, count, (uint32_t)value, 1, count, 1, handle));
}

cudaError_t si_memset_async(void *dst, int value, size_t count, cudaStream_t handle) {
    ENTER(cudaMemsetAsync);
    bind();
    return result(put_fill("cudaMemsetAsync", dst, count, (uint32_t)value, 1, count, 1, handle));
}

cudaError_t si_memset_2d_async(void *dst, size_t pitch, int value, size_t width, size_t height, cudaStream_t handle) {
    ENTER(cudaMemset2DAsync);
    bind();
    return result(put_fill("cudaMemset2DAsync", dst, pitch, (uint32_t)value, 1, width, height, handle));
}

static registered_function *registered_as(const void *host_function) {
    for (size_t i = 0; i < registered_count; i++)
        if (registered[i].host == host_function) return &registered[i];
    return NULL;
}

cudaError_t si_launch_kernel(const void *func, dim3 grid_dim, dim3 block_dim, void **args, size_t shared, cudaStream_t handle) {
    unsigned grid[3] = {grid_dim.x, grid_dim.y, grid_dim.z}, block[3] = {block_dim.x, block_dim.y, block_dim.z};
    ENTER(cudaLaunchKernel);
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return cudaSuccess;
    bind();
    lock();
    stream              *s = stream_of("cudaLaunchKernel", handle);
    registered_function *f = registered_as(func);
    int                  code = sticky(s->device);
    if (!code && !f) code = cudaErrorInvalidDeviceFunction;
    if (!code && s->device != me.current) code = cudaErrorInvalidResourceHandle;
    if (!code && check_launch(f->code, grid, block, shared, f->most_shared)) code = cudaErrorInvalidConfiguration;
    if (!code) code = launch(f->module, f->code, s, grid, block, (unsigned)shared, args);
    unlock();
    return result(code);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *func) {
    ENTER(cudaFuncGetAttributes);
    bind();
    if (!out) return result(cudaErrorInvalidValue);
    lock();
    registered_function *f = registered_as(func);
    int                  code = sticky(me.current);
    if (!code && !f) code = cudaErrorInvalidDeviceFunction;
    memset(out, 0, sizeof *out);
    if (!code) {
        out->sharedSizeBytes = ptx_static_shared(f->code);
        out->maxThreadsPerBlock = MAX_BLOCK;
        out->maxDynamicSharedSizeBytes = (int)(f->most_shared ? f->most_shared : MAX_SHARED - ptx_static_shared(f->code));
    }
    unlock();
    return result(code);
}

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attribute, int value) {
    ENTER(cudaFuncSetAttribute);
    bind();
    lock();
    registered_function *f = registered_as(func);
    int                  code = sticky(me.current);
    if (!code && !f) code = cudaErrorInvalidDeviceFunction;
    if (!code && (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
                  ptx_static_shared(f->code) + (size_t)value > MAX_SHARED_OPTIN)) code = cudaErrorInvalidValue;
    if (!code) f->most_shared = (size_t)value;
    unlock();
    return result(code);
}

/* ---- the driver's functions ---- */

/* The declarations check the types against the header.  Those with a stream get two forms, which differ in what NULL means. */
#define X(name, since) static __typeof__(name) d_##name;
DRIVER(X)
#undef X
#define X(name, since) static __typeof__(name) d_##name, t_##name;
DRIVER_STREAM(X)
#undef X

static CUresult driver_context(void) { return me.bound ? (CUresult)sticky(me.current) : CUDA_ERROR_INVALID_CONTEXT; }

static CUresult d_cuCtxGetCurrent(CUcontext *out) {
    ENTER_DRIVER(cuCtxGetCurrent);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    lock();
    *out = me.bound ? devices[me.current].context : NULL;
    unlock();
    return CUDA_SUCCESS;
}

/* What the runtime does then goes to the context on top, and cudaGetDevice tells its device. */
static CUresult d_cuCtxPushCurrent(CUcontext handle) {
    char text[16] = "";
    int  index = -1;
    lock();
    if (handle) index = ((device *)object_of("cuCtxPushCurrent", H_CONTEXT, handle))->index;
    unlock();
    snprintf(text, sizeof text, "%d", index);
    int code = enter_with(F_cuCtxPushCurrent, text);
    if (code) return (CUresult)code;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (me.depth == MAX_CONTEXTS) fail_test("cuCtxPushCurrent: more contexts than any program needs: one was not popped");
    me.under[me.depth].current = me.current;
    me.under[me.depth++].bound = me.bound;
    me.current = index;
    me.bound = 1;
    remember_thread();
    return CUDA_SUCCESS;
}

static CUresult d_cuCtxPopCurrent(CUcontext *out) {
    int code = enter(F_cuCtxPopCurrent);
    if (refused(code)) return (CUresult)code;
    if (!me.depth) return CUDA_ERROR_INVALID_CONTEXT;
    if (out) *out = devices[me.current].context;
    me.depth--;
    me.current = me.under[me.depth].current;
    me.bound = me.under[me.depth].bound;
    return (CUresult)code; /* it pops in any case, like what frees */
}

/* Never released here, as by the runtime itself. */
static CUresult d_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice index) {
    ENTER_DRIVER(cuDevicePrimaryCtxRetain);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(index)) return CUDA_ERROR_INVALID_DEVICE;
    lock();
    make_primary(index);
    *out = devices[index].context;
    unlock();
    return CUDA_SUCCESS;
}

static CUresult d_cuCtxSetCurrent(CUcontext handle) {
    ENTER_DRIVER(cuCtxSetCurrent);
    lock();
    if (handle) me.current = ((device *)object_of("cuCtxSetCurrent", H_CONTEXT, handle))->index;
    unlock();
    me.bound = handle != NULL;
    return CUDA_SUCCESS;
}

static CUresult error_name(CUresult error, const char **out, int text) {
    const error_text *t = text_of((int)error);
    const char       *name = t ? text ? t->text : t->driver : NULL;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
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

/* NULL: an image that is no PTX and that no test has registered. */
static const char *text_of_image(const void *image) {
    const char *text = NULL;
    uint32_t    magic;
    lock();
    for (size_t i = 0; i < image_count; i++)
        if (images[i].image == image) text = images[i].text;
    unlock();
    if (text || !*(const char *)image) return text ? text : image;
    for (size_t i = 0; i < sizeof magic; i++)
        if (!((const char *)image)[i]) return image; /* a text shorter than a magic number */
    memcpy(&magic, image, sizeof magic);
    return magic == 0x464c457fu /* ELF */ || magic == 0xba55ed50u || magic == 0x466243b1u /* fatbin */ ? NULL : image;
}

static CUresult load(CUmodule *out, const void *image, char *error, size_t size) {
    CUresult code = driver_context();
    if (code) return code;
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    const char *text = text_of_image(image);
    if (!text) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    ptx_module *loaded = ptx_load(text, error, size);
    if (!loaded) return CUDA_ERROR_INVALID_PTX;
    module *m = allocate(sizeof *m);
    m->device = me.current, m->code = loaded;
    lock();
    *out = new_handle(H_MODULE, m);
    live_modules++;
    unlock();
    return CUDA_SUCCESS;
}

static CUresult d_cuModuleLoadData(CUmodule *out, const void *image) {
    char error[256] = "";
    ENTER_DRIVER(cuModuleLoadData);
    return load(out, image, error, sizeof error);
}

static CUresult d_cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, CUjit_option *options, void **values) {
    char   error[256] = "", *buffer = NULL;
    size_t size = 0, at = count;
    ENTER_DRIVER(cuModuleLoadDataEx);
    if (count && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = (size_t)(uintptr_t)values[i], at = i;
    }
    CUresult code = load(out, image, error, sizeof error);
    if (at < count) { /* the option comes back as the length of what was written */
        int length = buffer && size ? snprintf(buffer, size, "%s", error) : 0;
        values[at] = (void *)(uintptr_t)((size_t)length < size ? (size_t)length : size);
    }
    return code;
}

static CUresult d_cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    ENTER_DRIVER(cuModuleGetFunction);
    CUresult code = driver_context();
    if (code) return code;
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    lock();
    module             *m = object_of("cuModuleGetFunction", H_MODULE, handle);
    const ptx_function *f = NULL;
    *out = NULL;
    code = (CUresult)sticky(m->device);
    for (size_t i = 0; i < m->count; i++)
        if (!strcmp(m->functions[i]->name, name)) *out = m->functions[i]->handle;
    if (!code && !*out && !(f = ptx_find(m->code, name))) code = CUDA_ERROR_NOT_FOUND;
    if (!code && !*out) {
        function *made = allocate(sizeof *made);
        made->module = m, made->code = f, made->name = memcpy(allocate(strlen(name) + 1), name, strlen(name));
        *out = made->handle = new_handle(H_FUNCTION, made);
        m->functions = grown(m->functions, m->count, &m->capacity, sizeof *m->functions);
        m->functions[m->count++] = made;
    }
    unlock();
    return code;
}

static CUresult d_cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction handle) {
    ENTER_DRIVER(cuFuncGetAttribute);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    lock();
    function *f = object_of("cuFuncGetAttribute", H_FUNCTION, handle);
    CUresult code = (CUresult)sticky(f->module->device);
    if (!code && attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) code = CUDA_ERROR_INVALID_VALUE;
    if (!code) *out = (int)(f->most_shared ? f->most_shared : MAX_SHARED - ptx_static_shared(f->code));
    unlock();
    return code;
}

static CUresult d_cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    ENTER_DRIVER(cuFuncSetAttribute);
    CUresult code = driver_context();
    if (code) return code;
    lock();
    function *f = object_of("cuFuncSetAttribute", H_FUNCTION, handle);
    code = (CUresult)sticky(f->module->device);
    if (!code && (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
                  ptx_static_shared(f->code) + (size_t)value > MAX_SHARED_OPTIN)) code = CUDA_ERROR_INVALID_VALUE;
    if (!code) f->most_shared = (size_t)value;
    unlock();
    return code;
}

/* "Unloads a module from the current context": so its context has to be current. */
static CUresult d_cuModuleUnload(CUmodule handle) {
    int code = enter(F_cuModuleUnload);
    if (refused(code)) return (CUresult)code;
    if (!me.bound) return code ? (CUresult)code : CUDA_ERROR_INVALID_CONTEXT;
    lock();
    module *m = object_of("cuModuleUnload", H_MODULE, handle);
    if (!code && m->device != me.current) {
        unlock();
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!code) code = sticky(m->device);
    if (m->uses && !sticky(m->device)) fail_test("cuModuleUnload: kernels of the module are pending");
    drop_handle("cuModuleUnload", H_MODULE, handle);
    for (size_t i = 0; i < m->count; i++) {
        drop_handle("cuModuleUnload", H_FUNCTION, m->functions[i]->handle);
        free(m->functions[i]->name);
        free(m->functions[i]);
    }
    live_modules--;
    m->unloaded = 1;
    free_module_if_over(m);
    unlock();
    return (CUresult)code;
}

static CUresult d_cuLaunchKernel(CUfunction handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, CUstream stream_handle, void **params, void **extra) {
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    ENTER_DRIVER(cuLaunchKernel);
    if (params && extra) return CUDA_ERROR_INVALID_VALUE;
    if (extra) return CUDA_ERROR_NOT_SUPPORTED;
    if (atomic_load_explicit(&null_mode, memory_order_relaxed)) return CUDA_SUCCESS;
    CUresult code = driver_context();
    if (code) return code;
    lock();
    function *f = object_of("cuLaunchKernel", H_FUNCTION, handle);
    stream   *s = stream_of("cuLaunchKernel", stream_handle);
    code = (CUresult)sticky(s->device);
    if (!code && (s->device != me.current || f->module->device != me.current)) code = CUDA_ERROR_INVALID_HANDLE;
    if (!code && check_launch(f->code, grid, block, shared, f->most_shared)) code = CUDA_ERROR_INVALID_VALUE;
    if (!code) code = (CUresult)launch(f->module, f->code, s, grid, block, shared, params);
    unlock();
    return code;
}

static CUresult d_cuStreamQuery(CUstream handle) {
    ENTER_DRIVER(cuStreamQuery);
    if (!me.bound) return CUDA_ERROR_INVALID_CONTEXT;
    lock();
    int code = stream_result(stream_of("cuStreamQuery", handle), 0);
    unlock();
    return (CUresult)code;
}

static CUresult d_cuEventQuery(CUevent handle) {
    ENTER_DRIVER(cuEventQuery);
    if (!me.bound) return CUDA_ERROR_INVALID_CONTEXT;
    return (CUresult)event_result("cuEventQuery", handle, 0);
}

static CUresult d_cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    ENTER_DRIVER(cuMemGetAddressRange);
    CUresult code = driver_context();
    if (code) return code;
    lock();
    range *r = range_touching((uintptr_t)pointer, 1);
    if (!r || r->kind != DEVICE_MEMORY) {
        code = CUDA_ERROR_NOT_FOUND;
    } else {
        if (base) *base = (CUdeviceptr)r->start;
        if (size) *size = r->size;
    }
    unlock();
    return code;
}

#define FILL(name, type, element)                                                                                             \
    static CUresult d_##name(CUdeviceptr dst, type value, size_t count, CUstream handle) {                                    \
        ENTER_DRIVER(name);                                                                                                   \
        CUresult code = driver_context();                                                                                     \
        if (!code) code = (CUresult)put_fill(#name, (void *)(uintptr_t)dst, 0, value, element, count, 1, handle);             \
        return code;                                                                                                          \
    }                                                                                                                         \
    static CUresult t_##name(CUdeviceptr dst, type value, size_t count, CUstream handle) {                                    \
        return d_##name(dst, value, count, handle ? handle : CU_STREAM_PER_THREAD);                                           \
    }
#define FILL_2D(name, type, element)                                                                                          \
    static CUresult d_##name(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream handle) {       \
        ENTER_DRIVER(name);                                                                                                   \
        CUresult code = driver_context();                                                                                     \
        if (!code)                                                                                                            \
            code = (CUresult)put_fill(#name, (void *)(uintptr_t)dst, pitch, value, element, width, height, handle);           \
        return code;                                                                                                          \
    }                                                                                                                         \
    static CUresult t_##name(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream handle) {       \
        return d_##name(dst, pitch, value, width, height, handle ? handle : CU_STREAM_PER_THREAD);                            \
    }
FILL(cuMemsetD8Async, unsigned char, 1)
FILL(cuMemsetD16Async, unsigned short, 2)
FILL(cuMemsetD32Async, unsigned, 4)
FILL_2D(cuMemsetD2D8Async, unsigned char, 1)
FILL_2D(cuMemsetD2D16Async, unsigned short, 2)
FILL_2D(cuMemsetD2D32Async, unsigned, 4)

static CUresult t_cuStreamQuery(CUstream handle) { return d_cuStreamQuery(handle ? handle : CU_STREAM_PER_THREAD); }
static CUresult t_cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, CUstream handle, void **params, void **extra) {
    return d_cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, handle ? handle : CU_STREAM_PER_THREAD, params, extra);
}

/* ---- entry points ---- */

typedef void (*any_function)(void);
typedef struct entry { const char *name; unsigned since; any_function legacy, per_thread; } entry;
static const entry entries[] = {
#define X(name, since) {#name, since, (any_function)d_##name, (any_function)d_##name},
    DRIVER(X)
#undef X
#define X(name, since) {#name, since, (any_function)d_##name, (any_function)t_##name},
    DRIVER_STREAM(X)
#undef X
};

cudaError_t si_entry_point(const char *symbol, void **out, unsigned version, unsigned long long flags,
                           enum cudaDriverEntryPointQueryResult *status, int per_thread) {
    int code = enter(version ? F_cudaGetDriverEntryPointByVersion : F_cudaGetDriverEntryPoint);
    if (code) return result(code);
    if (!symbol || !out || flags > cudaEnablePerThreadDefaultStream || (version && version > (unsigned)config.driver_version))
        return result(cudaErrorInvalidValue);
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    any_function                         f = NULL;
    if (flags != cudaEnableDefault) per_thread = flags == cudaEnablePerThreadDefaultStream;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(entries[i].name, symbol)) {
            int known = entries[i].since <= (version ? version : CUDART_VERSION);
            if (known) f = per_thread ? entries[i].per_thread : entries[i].legacy;
            found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
        }
    memcpy(out, &f, sizeof *out);
    if (status) *status = found;
    return cudaSuccess;
}

/* ---- control ---- */

unsigned long standin_calls(const char *name) {
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!strcmp(function_names[i], name)) return atomic_load_explicit(&calls[i], memory_order_relaxed);
    fail_test("standin_calls: there is no %s", name);
}

void standin_log_begin(void) {
    pthread_once(&once, start);
    remember_thread();
    me.log_on = 1, me.log_length = 0;
    if (me.log) *me.log = 0;
}

const char *standin_log_take(void) {
    me.log_on = 0;
    return me.log ? me.log : "";
}

void standin_fail(unsigned long nth, int code) {
    atomic_store(&fail_came, 0);
    atomic_store(&fail_code, code);
    atomic_store(&fail_in, nth);
}
int standin_failed(void) { return atomic_load(&fail_came); }

size_t standin_live(char *report, size_t size) {
    static const char *const kinds[] = {"stream", "event", "device allocation", "host allocation", "registration", "module"};
    size_t                   counts[6] = {0}, total = 0, at = 0;
    lock();
    counts[0] = live_streams, counts[1] = live_events, counts[5] = live_modules;
    for (size_t i = 0; i < range_count; i++) counts[2 + ranges[i]->kind]++;
    unlock();
    if (report && size) *report = 0;
    for (int i = 0; i < 6; i++) {
        total += counts[i];
        if (counts[i] && report && at < size)
            at += (size_t)snprintf(report + at, size - at, "%s%zu %s%s", at ? ", " : "", counts[i], kinds[i],
                                   counts[i] > 1 ? "s" : "");
    }
    return total;
}

unsigned standin_contexts(void) {
    unsigned bits = 0;
    lock();
    for (int i = 0; i < MAX_DEVICES; i++) bits |= (unsigned)devices[i].primary << i;
    unlock();
    return bits;
}

void standin_null(int on) {
    pthread_once(&once, start);
    atomic_store(&null_mode, on != 0);
}

void standin_hold(int on) {
    pthread_once(&once, start);
    lock();
    held = on != 0;
    for (int i = 0; i < config.devices; i++) {
        pthread_cond_broadcast(&devices[i].more_work);
        call_workers(&devices[i]);
    }
    unlock();
}

void standin_register_image(const void *image, const char *ptx_text) {
    lock();
    images = grown(images, image_count, &image_capacity, sizeof *images);
    images[image_count++] = (registered_image){image, ptx_text};
    unlock();
}

void standin_register_function(const void *host_function, const char *ptx_text, const char *name) {
    char                error[256] = "";
    module             *m = allocate(sizeof *m);
    registered_function new = {host_function, m, NULL, 0};
    m->code = ptx_load(ptx_text, error, sizeof error);
    if (!m->code) fail_test("standin_register_function: %s", error);
    new.code = ptx_find(m->code, name);
    if (!new.code) fail_test("standin_register_function: no entry %s", name);
    lock();
    registered_function *old = registered_as(host_function);
    if (old) {
        old->module->unloaded = 1;
        free_module_if_over(old->module);
        *old = new;
    } else {
        registered = grown(registered, registered_count, &registered_capacity, sizeof *registered);
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
    for (int i = 0; i < MAX_DEVICES; i++) n += devices[i].workers + (size_t)devices[i].caller;
    unlock();
    return n;
}
