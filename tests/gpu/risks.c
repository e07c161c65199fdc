/* risks.c - the risks of the CUDA driver, as questions for the first GPU, the most urgent ones
   first.
       risks [id]...    runs these probes, or all; R3 stands for all its rows; --list: the names
   Exit status and environment: as probes.c. A probe about two devices passes where there is one. */
#include "probe.h"
#include <dlfcn.h>

/* ---- what these probes share ---- */

#define HOLD_MS 300

static int device_count(void) {
    int count = 0;
    MUST(cudaGetDeviceCount(&count));
    return count;
}

/* 1 if there are two devices; otherwise the probe says so and passes. */
static int has_two_devices(void) {
    if (device_count() > 1)
        return 1;
    note("needs 2 devices");
    return 0;
}

/* A time, in microseconds below 10 ms. Valid until the eighth call from now. */
static const char *span(int64_t us) {
    static char text[8][40];
    static int turn;
    char *out = text[turn++ % 8];
    if (us < 10000)
        snprintf(out, sizeof text[0], "%d us", (int)us);
    else
        snprintf(out, sizeof text[0], "%d ms", (int)(us / 1000));
    return out;
}

static int compare_ns(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(int64_t *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_ns);
    return values[count / 2];
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The name of a driver's result. The runtime's codes have the same values. */
static cudaError_t as_runtime(CUresult e) {
    return (cudaError_t)e;
}

/* Writes one word when `ns` are over. */
static const char late_ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry late(.param .u64 to, .param .u64 ns) {\n"
    "  .reg .u64 %a, %b, %c, %d; .reg .u32 %v; .reg .pred %p;\n"
    "  ld.param.u64 %d, [to]; ld.param.u64 %a, [ns]; mov.u64 %b, %globaltimer;\n"
    "L: mov.u64 %c, %globaltimer; sub.u64 %c, %c, %b; setp.lt.u64 %p, %c, %a; @%p bra L;\n"
    "  mov.u32 %v, 7; st.global.u32 [%d], %v; ret;\n}\n";

static void write_late(cudaStream_t s, void *to, int ms) {
    CUmodule m;
    CUfunction late;
    uint64_t ns = (uint64_t)ms * 1000000u;
    void *params[] = { &to, &ns };
    MUST_DRV(drv_module_load(&m, late_ptx));
    MUST_DRV(drv_module_function(&late, m, "late"));
    MUST_DRV(drv_launch(late, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
}

/* ---- R1, R2: calls while a stream is held ---- */

typedef enum holder { BY_HOST_FUNCTION, BY_CALLBACK, BY_KERNEL } holder;

static const char *const holder_names[] = { "host function", "callback", "kernel" };

/* The objects of one timed call, made anew for each. */
static struct held {
    cudaStream_t busy, idle;
    cudaEvent_t pending, done;
    void *device, *host, *registered, *pageable;
    CUmodule module;
} held;

static seen_call ignored_call;

static cudaError_t do_launch(void) {
    return as_runtime(launch(spin, held.idle, 0));
}

static cudaError_t do_record(void) {
    return cudaEventRecord(held.done, held.idle);
}

static cudaError_t do_wait(void) {
    return cudaStreamWaitEvent(held.idle, held.done, 0);
}

static cudaError_t do_stream_query(void) {
    return cudaStreamQuery(held.idle);
}

static cudaError_t do_busy_query(void) {
    return cudaStreamQuery(held.busy);
}

static cudaError_t do_event_query(void) {
    return cudaEventQuery(held.done);
}

static cudaError_t do_stream_sync(void) {
    return cudaStreamSynchronize(held.idle);
}

static cudaError_t do_copy(void) {
    return cudaMemcpyAsync(buf, pinned, 64, cudaMemcpyDefault, held.idle);
}

static cudaError_t do_host_fn(void) {
    return cudaLaunchHostFunc(held.idle, seen_host_fn, &ignored_call);
}

static cudaError_t do_callback(void) {
    return cudaStreamAddCallback(held.idle, seen_callback, &ignored_call, 0);
}

static cudaError_t do_malloc_async(void) {
    void *p;
    return cudaMallocAsync(&p, 4096, held.idle);
}

static cudaError_t do_malloc(void) {
    void *p;
    return cudaMalloc(&p, SIZE * 16);
}

static cudaError_t do_free(void) {
    return cudaFree(held.device);
}

static cudaError_t do_host_alloc(void) {
    void *p;
    return cudaHostAlloc(&p, SIZE, cudaHostAllocDefault);
}

static cudaError_t do_free_host(void) {
    return cudaFreeHost(held.host);
}

static cudaError_t do_register(void) {
    return cudaHostRegister(held.pageable, 8192, cudaHostRegisterDefault);
}

static cudaError_t do_unregister(void) {
    return cudaHostUnregister(held.registered);
}

static cudaError_t do_load(void) {
    CUmodule m;
    return as_runtime(drv_module_load(&m, ptx));
}

static cudaError_t do_unload(void) {
    return as_runtime(drv_module_unload(held.module));
}

static cudaError_t do_stream_create(void) {
    cudaStream_t s;
    return cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
}

static cudaError_t do_stream_destroy(void) {
    return cudaStreamDestroy(held.busy);
}

static cudaError_t do_event_create(void) {
    cudaEvent_t e;
    return cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
}

static cudaError_t do_event_destroy(void) {
    return cudaEventDestroy(held.pending);
}

static cudaError_t do_mem_info(void) {
    size_t a, b;
    return cudaMemGetInfo(&a, &b);
}

static cudaError_t do_attributes(void) {
    struct cudaPointerAttributes a;
    return cudaPointerGetAttributes(&a, held.device);
}

typedef struct timed_call {
    const char *name;
    cudaError_t (*fn)(void);
} timed_call;

static const timed_call everyday_calls[] = { { "launch", do_launch },
                                             { "record", do_record },
                                             { "wait", do_wait },
                                             { "stream query", do_stream_query },
                                             { "query of the held stream", do_busy_query },
                                             { "event query", do_event_query },
                                             { "synchronize of an idle stream", do_stream_sync },
                                             { "cudaMemcpyAsync", do_copy },
                                             { "cudaLaunchHostFunc", do_host_fn },
                                             { "cudaStreamAddCallback", do_callback },
                                             { "cudaMallocAsync", do_malloc_async },
                                             { "cudaMalloc", do_malloc },
                                             { "cudaFree", do_free } };

static const timed_call heavy_calls[] = {
    { "cudaFree", do_free },
    { "cudaFreeHost", do_free_host },
    { "cudaHostUnregister", do_unregister },
    { "cuModuleUnload", do_unload },
    { "cudaMalloc", do_malloc },
    { "cudaHostAlloc", do_host_alloc },
    { "cudaHostRegister", do_register },
    { "cuModuleLoadData", do_load },
    { "cudaStreamCreate", do_stream_create },
    { "cudaStreamDestroy of the busy stream", do_stream_destroy },
    { "cudaEventCreate", do_event_create },
    { "cudaEventDestroy of a pending event", do_event_destroy },
    { "cudaMemGetInfo", do_mem_info },
    { "cudaPointerGetAttributes", do_attributes }
};

static void prepare_held(void) {
    CUfunction f;
    held.busy = free_stream();
    held.idle = free_stream();
    held.pending = any_event();
    held.done = any_event();
    held.registered = aligned_alloc(4096, 8192);
    held.pageable = aligned_alloc(4096, 8192);
    MUST(cudaMalloc(&held.device, 4096));
    MUST(cudaHostAlloc(&held.host, 4096, cudaHostAllocDefault));
    MUST(cudaHostRegister(held.registered, 8192, cudaHostRegisterDefault));
    MUST_DRV(drv_module_load(&held.module, ptx));
    MUST_DRV(drv_module_function(&f, held.module, "spin"));
    MUST(cudaEventRecord(held.done, held.idle));
    MUST(cudaDeviceSynchronize());
}

/* Holds a stream. The event behind the gate is recorded before the gate is entered: a callback that
   blocks may block that call too, and the gate would be over before the timed call. */
static void hold(holder by, gate *g) {
    if (by == BY_KERNEL) {
        spin_for(held.busy, HOLD_MS);
        MUST(cudaEventRecord(held.pending, held.busy));
        return;
    }
    spin_for(held.busy, 20);
    gate_enqueue(g, held.busy, HOLD_MS, by == BY_CALLBACK ? GATE_CALLBACK : GATE_HOST_FUNCTION);
    MUST(cudaEventRecord(held.pending, held.busy));
    gate_await(g);
}

/* Makes the call while a stream is held, on the thread of the probe: callbacks and host functions
   run on a thread of the driver. */
static void time_held(const timed_call *call, holder by) {
    gate g;
    prepare_held();
    hold(by, &g);

    int64_t t = now_us();
    cudaError_t e = call->fn();
    t = now_us() - t;

    (void)cudaGetLastError();
    note("%s %s%s%s%s", call->name, e ? cudaGetErrorName(e) : "", e ? " after " : "", span(t),
         t > HOLD_MS * 900 ? " (it waited for the stream)" : "");
    if (by != BY_KERNEL)
        gate_end(&g);
    MUST(cudaDeviceSynchronize());
}

static void time_calls(const timed_call *calls, int count, holder by) {
    start();
    load();
    note("while a %s holds a stream for %d ms:", holder_names[by], HOLD_MS);
    for (int i = 0; i < count; i++)
        time_held(&calls[i], by);
}

static void r1_callback(void) {
    time_calls(everyday_calls, COUNT(everyday_calls), BY_CALLBACK);
}

static void r1_host_function(void) {
    time_calls(everyday_calls, COUNT(everyday_calls), BY_HOST_FUNCTION);
}

static void r2_callback(void) {
    time_calls(heavy_calls, COUNT(heavy_calls), BY_CALLBACK);
}

static void r2_host_function(void) {
    time_calls(heavy_calls, COUNT(heavy_calls), BY_HOST_FUNCTION);
}

static void r2_kernel(void) {
    time_calls(heavy_calls, COUNT(heavy_calls), BY_KERNEL);
}

static void side_by_side(const char *what, cudaStream_t a, cudaStream_t b, gate_kind kind) {
    gate first, second;
    gate_put_by(&first, a, HOLD_MS, kind);
    gate_enqueue(&second, b, HOLD_MS, kind);
    while (!first.left && !second.entered)
        nap_us(200);
    int together = second.entered && !first.left;
    gate_end(&first);
    gate_end(&second);
    note("%s: %s, %s", what, together ? "side by side" : "one after another",
         pthread_equal(first.thread, second.thread) ? "same thread" : "different threads");
}

static void r2_together(void) {
    int least, greatest;
    cudaStream_t high;
    start();
    MUST(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    MUST(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, greatest));
    for (int kind = GATE_HOST_FUNCTION; kind <= GATE_CALLBACK; kind++) {
        gate_kind k = (gate_kind)kind;
        note("%ss:", holder_names[kind]);
        side_by_side("two non-blocking streams", free_stream(), free_stream(), k);
        side_by_side("two blocking streams", stream(cudaStreamDefault), stream(cudaStreamDefault),
                     k);
        side_by_side("normal and highest priority", free_stream(), high, k);
        if (device_count() > 1) {
            cudaStream_t here = free_stream();
            MUST(cudaSetDevice(1));
            side_by_side("two devices", here, free_stream(), k);
            MUST(cudaSetDevice(0));
        }
    }
}

/* ---- R3: freeing memory that a kernel uses ---- */

static void free_under_kernel(size_t bytes, int captured) {
    void *p = NULL, *again = NULL;
    start();
    load();
    cudaStream_t s = free_stream(), other = free_stream();
    MUST(cudaMalloc(&p, bytes));
    MUST(cudaDeviceSynchronize());
    if (captured) {
        begin(other, RELAXED);
        MUST(touch(other));
    }
    write_late(s, p, HOLD_MS);

    int64_t t = now_us();
    cudaError_t freed = cudaFree(p);
    t = now_us() - t;
    cudaError_t query = cudaStreamQuery(s);

    note("%s after %s of %d ms, the kernel %s", nm(freed), span(t), HOLD_MS,
         query == cudaErrorNotReady ? "runs on" : "has ended");
    if (captured) {
        note("the capture is %s", state(other));
        note("end %s", nm(end(other)));
    }
    cudaError_t made = cudaMalloc(&again, bytes);
    note("cudaMalloc of that size %s, %s address", nm(made), again == p ? "the same" : "another");
    note("the kernel's stream %s", nm(settle(s, 2000)));
}

static void r3_small(void) {
    free_under_kernel(4096, 0);
}

static void r3_large(void) {
    free_under_kernel((size_t)256 << 20, 0);
}

static void r3_small_captured(void) {
    free_under_kernel(4096, 1);
}

static void r3_large_captured(void) {
    free_under_kernel((size_t)256 << 20, 1);
}

/* ---- R4: a trap ---- */

static void tell(const char *what, seen_call *c, const gate *g) {
    for (int i = 0; i < 1000 && !c->calls; i++)
        nap_us(1000);
    if (!c->calls) {
        note("%s: never ran", what);
        return;
    }
    const char *where = pthread_equal(c->thread, pthread_self()) ? "the calling thread"
                        : pthread_equal(c->thread, g->thread)    ? "the thread of host functions"
                                                                 : "another thread";
    note("%s: ran %d time(s), status %s, on %s", what, c->calls, cudaGetErrorName(c->status),
         where);
}

static struct trap {
    gate near, far;
    cudaStream_t s, other, spare;
    cudaEvent_t before, after;
    void *host, *page;
    seen_call put[4], late[2];
} trap;

static void trap_prepare(void) {
    start();
    load();
    trap.s = free_stream();
    trap.other = free_stream();
    trap.spare = free_stream();
    trap.before = any_event();
    trap.after = any_event();
    trap.page = aligned_alloc(4096, 8192);
    MUST(cudaEventRecord(trap.before, trap.spare));
    MUST(settle(trap.spare, 1000));
    MUST(cudaHostAlloc(&trap.host, 64, cudaHostAllocDefault));
    MUST(cudaHostRegister(trap.page, 8192, cudaHostRegisterDefault));
}

/* Enqueues a trap, and callbacks and host functions behind it and in another stream. */
static void trap_spring(void) {
    gate_put(&trap.near, trap.s, 1000);
    MUST_DRV(launch(die, trap.s, 0));
    MUST(cudaStreamAddCallback(trap.s, seen_callback, &trap.put[0], 0));
    MUST(cudaLaunchHostFunc(trap.s, seen_host_fn, &trap.put[1]));
    MUST(cudaEventRecord(trap.after, trap.s));
    gate_enqueue(&trap.far, trap.other, 500, GATE_HOST_FUNCTION);
    MUST(cudaStreamAddCallback(trap.other, seen_callback, &trap.put[2], 0));
    MUST(cudaLaunchHostFunc(trap.other, seen_host_fn, &trap.put[3]));
    gate_end(&trap.near);
    int64_t t = now_us();
    cudaError_t e = cudaSuccess;
    while (now_us() - t < 3000000 &&
           ((e = cudaStreamQuery(trap.s)) == cudaErrorNotReady || e == cudaSuccess))
        nap_us(500);
    note("the stream says %s", cudaGetErrorName(e));
}

static void trap_callbacks(void) {
    tell("callback behind the trap", &trap.put[0], &trap.near);
    tell("host function behind it", &trap.put[1], &trap.near);
    tell("callback of another stream", &trap.put[2], &trap.near);
    tell("host function there", &trap.put[3], &trap.near);
    note("cudaGetLastError %s, again %s", cudaGetErrorName(cudaGetLastError()),
         cudaGetErrorName(cudaGetLastError()));
    note("afterwards: query of another stream %s", nm(cudaStreamQuery(trap.spare)));
    note("event recorded before %s, behind the trap %s", nm(cudaEventQuery(trap.before)),
         nm(cudaEventQuery(trap.after)));
    cudaError_t e = cudaStreamAddCallback(trap.s, seen_callback, &trap.late[0], 0);
    note("cudaStreamAddCallback %s", nm(e));
    if (e == cudaSuccess)
        tell("it", &trap.late[0], &trap.near);
    e = cudaLaunchHostFunc(trap.s, seen_host_fn, &trap.late[1]);
    note("cudaLaunchHostFunc %s", nm(e));
    if (e == cudaSuccess)
        tell("it", &trap.late[1], &trap.near);
}

static int trap_calls(void) {
    int calls = 0;
    for (int i = 0; i < COUNT(trap.put); i++)
        calls += trap.put[i].calls;
    for (int i = 0; i < COUNT(trap.late); i++)
        calls += trap.late[i].calls;
    return calls;
}

static void trap_clean_up(void) {
    void *p;
    note("cudaMalloc %s", nm(cudaMalloc(&p, 64)));
    note("cudaFreeHost %s", nm(cudaFreeHost(trap.host)));
    note("cudaHostUnregister %s", nm(cudaHostUnregister(trap.page)));
    note("cudaEventDestroy %s", nm(cudaEventDestroy(trap.before)));
    note("cudaStreamDestroy %s", nm(cudaStreamDestroy(trap.spare)));
    note("cuModuleUnload %s", drv_nm(drv_module_unload(module)));
    note("cudaFree %s", nm(cudaFree(buf)));
    note("cudaDeviceSynchronize %s", nm(cudaDeviceSynchronize()));
    int calls = trap_calls();
    nap_us(200000);
    note("calls of the six functions by then: %d, 200 ms later: %d", calls, trap_calls());
    note("cudaDeviceReset %s", nm(cudaDeviceReset()));
    note("then cudaFree(0) %s", nm(cudaFree(NULL)));
    note("calls after the reset: %d", trap_calls());
}

static void r4(void) {
    trap_prepare();
    trap_spring();
    trap_callbacks();
    trap_clean_up();
}

/* ---- R5: pushed contexts ---- */

static CUresult (*ctx_retain)(CUcontext *, CUdevice);
static CUresult (*ctx_push)(CUcontext);
static CUresult (*ctx_pop)(CUcontext *);
static CUresult (*ctx_get)(CUcontext *);

static CUcontext last_context(void) {
    CUcontext context = NULL;
    entries();
    entry("cuDevicePrimaryCtxRetain", &ctx_retain);
    entry("cuCtxPushCurrent", &ctx_push);
    entry("cuCtxPopCurrent", &ctx_pop);
    entry("cuCtxGetCurrent", &ctx_get);
    MUST_DRV(ctx_retain(&context, device_count() - 1));
    return context;
}

/* -1: the driver cannot say. */
static int is_active(int device) {
    CUresult (*get_state)(CUdevice, unsigned *, int *) = NULL;
    unsigned flags;
    int active = -1;
    if (!find_entry("cuDevicePrimaryCtxGetState", 11080, &get_state) ||
        get_state(device, &flags, &active) != CUDA_SUCCESS)
        return -1;
    return active;
}

/* Pushes the context of the last device in a thread that has none. */
static void r5_follows(void) {
    CUcontext before = NULL, popped = NULL, after = NULL, context = last_context();
    int device = -1, again = -1;
    void *memory = NULL;
    struct cudaPointerAttributes attributes;
    cudaStream_t s;
    MUST_DRV(ctx_get(&before));
    MUST_DRV(ctx_push(context));
    MUST(cudaGetDevice(&device));
    MUST(cudaMalloc(&memory, 1 << 20));
    MUST(cudaPointerGetAttributes(&attributes, memory));
    MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    MUST(cudaMemsetAsync(memory, 0, 1 << 20, s));
    MUST(cudaStreamSynchronize(s));
    MUST_DRV(ctx_pop(&popped));
    MUST_DRV(ctx_get(&after));
    note("%d device(s), the last one's context pushed: cudaGetDevice says %d, cudaMalloc gives "
         "memory of device %d",
         device_count(), device, attributes.device);
    note("before there %s a context, after the pop %s", before ? "was" : "was not",
         after == before ? "it is as before" : "another is current");
    MUST(cudaGetDevice(&again));
    note("cudaGetDevice then says %d, device 0 is active: %d (-1: not known)", again, is_active(0));
}

static void r5_cost(void) {
    enum { N = 1001 };

    static int64_t pair[N], with_call[N], set[N];
    CUcontext popped, context = last_context();
    int device, last = device_count() - 1;
    start();
    cudaStream_t s = free_stream();
    for (int i = 0; i < N; i++) {
        int64_t t = now_ns();
        MUST_DRV(ctx_push(context));
        MUST_DRV(ctx_pop(&popped));
        pair[i] = now_ns() - t;
        t = now_ns();
        MUST_DRV(ctx_push(context));
        (void)cudaGetDevice(&device);
        (void)cudaStreamQuery(s);
        MUST_DRV(ctx_pop(&popped));
        with_call[i] = now_ns() - t;
        t = now_ns();
        (void)cudaSetDevice(last);
        (void)cudaSetDevice(0);
        set[i] = now_ns() - t;
    }
    note("push and pop %d ns, around cudaGetDevice and cudaStreamQuery %d ns, two cudaSetDevice "
         "%d ns (medians)",
         (int)median(pair, N), (int)median(with_call, N), (int)median(set, N));
}

/* Functions of another cudart in this process. */
static struct second {
    cudaError_t (*get_device)(int *);
    cudaError_t (*set_device)(int);
    cudaError_t (*query)(cudaStream_t);
    cudaError_t (*attributes)(struct cudaPointerAttributes *, const void *);
} second;

static void second_symbol(void *library, const char *name, void *out_fn) {
    void *fn = dlsym(library, name);
    if (!fn) {
        note("setup failed: the second cudart has no %s", name);
        exit(3);
    }
    memcpy(out_fn, &fn, sizeof fn);
}

static int second_load(void) {
    char name[40];
    cudaError_t (*mine)(int *) = cudaGetDevice;
    snprintf(name, sizeof name, "libcudart.so.%s",
             CUDART_VERSION >= 13000   ? "13"
             : CUDART_VERSION >= 12000 ? "12"
                                       : "11.0");
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        note("no second cudart: there is no %s", name);
        return 0;
    }
    second_symbol(library, "cudaGetDevice", &second.get_device);
    second_symbol(library, "cudaSetDevice", &second.set_device);
    second_symbol(library, "cudaStreamQuery", &second.query);
    second_symbol(library, "cudaPointerGetAttributes", &second.attributes);
    if (mine == second.get_device)
        note("no second cudart: this program has %s itself", name);
    return mine != second.get_device;
}

static void r5_second(void) {
    int device = -1, mine = -1;
    struct cudaPointerAttributes a;
    CUcontext popped, context = last_context();
    if (!second_load())
        return;
    start();
    cudaStream_t s = free_stream();
    note("query of our stream in the second cudart %s", cudaGetErrorName(second.query(s)));
    cudaError_t e = second.attributes(&a, buf);
    note("attributes of our memory there %s, device %d", cudaGetErrorName(e), a.device);
    MUST_DRV(ctx_push(context));
    e = second.get_device(&device);
    MUST(cudaGetDevice(&mine));
    note("the last device's context pushed: it says %s, device %d, ours %d", cudaGetErrorName(e),
         device, mine);
    MUST_DRV(ctx_pop(&popped));
    e = second.set_device(device_count() - 1);
    MUST(cudaGetDevice(&mine));
    note("its cudaSetDevice of the last device (%s): our cudaGetDevice says %d",
         cudaGetErrorName(e), mine);
    MUST(cudaSetDevice(0));
    (void)second.get_device(&device);
    note("our cudaSetDevice(0): its cudaGetDevice says %d", device);
}

/* ---- R6: driver functions on a fresh thread ---- */

static cudaStream_t fresh_stream;
static cudaEvent_t fresh_event;

static void fresh_after(void *user) {
    int how = *(int *)user, device;
    static const char *const after[] = { "no runtime call", "cudaGetDevice", "cudaSetDevice(0)",
                                         "cudaFree(0)", "cudaStreamQuery" };
    cudaError_t e = how == 1   ? cudaGetDevice(&device)
                    : how == 2 ? cudaSetDevice(0)
                    : how == 3 ? cudaFree(NULL)
                    : how == 4 ? cudaStreamQuery(fresh_stream)
                               : cudaSuccess;
    CUmodule m;
    const char *query = drv_nm(drv_stream_query(fresh_stream)),
               *run = drv_nm(launch(spin, fresh_stream, 1000));
    note("after %s (%s): cuStreamQuery %s, cuLaunchKernel %s, cuModuleLoadData %s", after[how],
         cudaGetErrorName(e), query, run, drv_nm(drv_module_load(&m, ptx)));
}

static void r6_after(void) {
    start();
    load();
    fresh_stream = free_stream();
    for (int how = 0; how < 5; how++)
        in_thread(fresh_after, &how);
}

#define FIND(name, type)               \
    CUresult(*fn) type = NULL;         \
    if (!find_entry(name, 11080, &fn)) \
    return CUDA_ERROR_NOT_FOUND

static CUresult fresh_stream_query(void) {
    return drv_stream_query(fresh_stream);
}

static CUresult fresh_event_query(void) {
    return drv_event_query(fresh_event);
}

static CUresult fresh_launch(void) {
    return launch(spin, fresh_stream, 0);
}

static CUresult fresh_load(void) {
    CUmodule m;
    return drv_module_load(&m, ptx);
}

static CUresult fresh_function(void) {
    CUfunction f;
    return drv_module_function(&f, module, "spin");
}

static CUresult fresh_unload(void) {
    return drv_module_unload(held.module);
}

static CUresult fresh_attribute(void) {
    int value;
    FIND("cuFuncGetAttribute", (int *, CUfunction_attribute, CUfunction));
    return fn(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, spin);
}

static CUresult fresh_set_attribute(void) {
    FIND("cuFuncSetAttribute", (CUfunction, CUfunction_attribute, int));
    return fn(spin, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024);
}

static CUresult fresh_fill(void) {
    FIND("cuMemsetD32Async", (CUdeviceptr, unsigned, size_t, CUstream));
    return fn((CUdeviceptr)(uintptr_t)buf, 1, 16, fresh_stream);
}

static CUresult fresh_range(void) {
    CUdeviceptr base;
    size_t size;
    FIND("cuMemGetAddressRange", (CUdeviceptr *, size_t *, CUdeviceptr));
    return fn(&base, &size, (CUdeviceptr)(uintptr_t)buf);
}

static CUresult fresh_pointer(void) {
    unsigned type;
    FIND("cuPointerGetAttribute", (void *, CUpointer_attribute, CUdeviceptr));
    return fn(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)buf);
}

static CUresult fresh_device(void) {
    int value;
    FIND("cuDeviceGetAttribute", (int *, CUdevice_attribute, CUdevice));
    return fn(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
}

static CUresult fresh_reserve(void) {
    CUdeviceptr p;
    FIND("cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long));
    return fn(&p, (size_t)64 << 20, 0, 0, 0);
}

static CUresult fresh_create(void) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
    FIND("cuMemCreate",
         (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long));
    return fn(&handle, (size_t)64 << 20, &prop, 0);
}

static CUresult fresh_retain(void) {
    CUcontext context;
    FIND("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice));
    return fn(&context, 0);
}

typedef struct fresh_call {
    const char *name;
    CUresult (*fn)(void);
} fresh_call;

static const fresh_call fresh_calls[] = {
    { "cuStreamQuery", fresh_stream_query },     { "cuEventQuery", fresh_event_query },
    { "cuLaunchKernel", fresh_launch },          { "cuModuleLoadData", fresh_load },
    { "cuModuleGetFunction", fresh_function },   { "cuModuleUnload", fresh_unload },
    { "cuFuncGetAttribute", fresh_attribute },   { "cuFuncSetAttribute", fresh_set_attribute },
    { "cuMemsetD32Async", fresh_fill },          { "cuMemGetAddressRange", fresh_range },
    { "cuPointerGetAttribute", fresh_pointer },  { "cuDeviceGetAttribute", fresh_device },
    { "cuMemAddressReserve", fresh_reserve },    { "cuMemCreate", fresh_create },
    { "cuDevicePrimaryCtxRetain", fresh_retain }
};

static void run_fresh(void *user) {
    const fresh_call *call = user;
    note("%s %s", call->name, drv_nm(call->fn()));
}

static void r6_entries(void) {
    start();
    load();
    fresh_stream = free_stream();
    fresh_event = any_event();
    MUST_DRV(drv_module_load(&held.module, ptx));
    note("each on a thread that made no runtime call:");
    for (int i = 0; i < COUNT(fresh_calls); i++) {
        fresh_call call = fresh_calls[i];
        in_thread(run_fresh, &call);
    }
}

/* ---- R7, R8: contexts that come to be ---- */

static void show_contexts(const char *when) {
    char text[200] = "";
    for (int i = 0, used = 0; i < device_count() && used < 150; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, " %d", is_active(i));
    note("%s: contexts%s", when, text);
}

/* What follows a call that names the device 0, in a process that has no context. */
static void contexts_of(const char *what, cudaError_t (*call)(void)) {
    show_contexts("before");
    cudaError_t e = call();
    note("%s %s", what, nm(e));
    show_contexts("after");
    MUST(cudaFree(NULL));
    show_contexts("after cudaFree(0)");
}

static cudaError_t ask_device(void) {
    int device;
    return cudaGetDevice(&device);
}

static cudaError_t ask_set_device(void) {
    return cudaSetDevice(device_count() - 1);
}

static cudaError_t ask_pointer(void) {
    struct cudaPointerAttributes a;
    return cudaPointerGetAttributes(&a, calloc(1, 64));
}

static cudaError_t ask_exchange(void) {
    enum cudaStreamCaptureMode mode = RELAXED;
    return cudaThreadExchangeStreamCaptureMode(&mode);
}

static cudaError_t ask_peer(void) {
    int can;
    return cudaDeviceCanAccessPeer(&can, 0, device_count() > 1);
}

static void r7_device(void) {
    contexts_of("cudaGetDevice", ask_device);
}

static void r7_set_device(void) {
    contexts_of("cudaSetDevice of the last device", ask_set_device);
}

static void r7_pointer(void) {
    contexts_of("cudaPointerGetAttributes of malloc's memory", ask_pointer);
}

static void r7_exchange(void) {
    contexts_of("cudaThreadExchangeStreamCaptureMode", ask_exchange);
}

static void r7_peer(void) {
    contexts_of("cudaDeviceCanAccessPeer", ask_peer);
}

/* The functions of virtual memory. */
static struct vmm {
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*address_free)(CUdeviceptr, size_t);
} vmm;

static void vmm_entries(void) {
    entry("cuMemGetAllocationGranularity", &vmm.granularity);
    entry("cuMemAddressReserve", &vmm.reserve);
    entry("cuMemCreate", &vmm.create);
    entry("cuMemMap", &vmm.map);
    entry("cuMemSetAccess", &vmm.set_access);
    entry("cuMemUnmap", &vmm.unmap);
    entry("cuMemRelease", &vmm.release);
    entry("cuMemAddressFree", &vmm.address_free);
}

static CUmemAllocationProp vmm_prop(int device) {
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static CUmemAccessDesc vmm_access(int device) {
    CUmemAccessDesc desc;
    memset(&desc, 0, sizeof desc);
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return desc;
}

/* Maps memory of the device that no device may reach yet. *io_size is rounded up. */
static CUdeviceptr vmm_mapped(int device, size_t *io_size) {
    CUmemAllocationProp prop = vmm_prop(device);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p = 0;
    size_t unit = 0;
    MUST_DRV(vmm.granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    *io_size = (*io_size + unit - 1) / unit * unit;
    MUST_DRV(vmm.reserve(&p, *io_size, unit, 0, 0));
    MUST_DRV(vmm.create(&handle, *io_size, &prop, 0));
    MUST_DRV(vmm.map(p, *io_size, 0, handle, 0));
    return p;
}

/* Only device 0 has a context when its memory is given to the other device. */
static void r7_set_access(void) {
    size_t size = SIZE;
    CUmemAccessDesc both[2] = { vmm_access(0), vmm_access(1) };
    if (!has_two_devices())
        return;
    start();
    entries();
    vmm_entries();
    CUdeviceptr p = vmm_mapped(0, &size);
    show_contexts("before");
    note("cuMemSetAccess naming a peer %s", drv_nm(vmm.set_access(p, size, both, 2)));
    show_contexts("after");
}

static cudaError_t pool_access(int device, int peer) {
    cudaMemPool_t pool;
    struct cudaMemAccessDesc desc;
    memset(&desc, 0, sizeof desc);
    desc.location.type = cudaMemLocationTypeDevice;
    desc.location.id = peer;
    desc.flags = cudaMemAccessFlagsProtReadWrite;
    MUST(cudaDeviceGetDefaultMemPool(&pool, device));
    return cudaMemPoolSetAccess(pool, &desc, 1);
}

static void r7_pool(void) {
    if (!has_two_devices())
        return;
    start();
    show_contexts("before");
    note("cudaMemPoolSetAccess naming a peer %s", nm(pool_access(0, 1)));
    show_contexts("after");
}

static void show_pointer(const char *what, const void *p) {
    struct cudaPointerAttributes a = { .device = -9 };
    CUresult (*get)(void *, CUpointer_attribute, CUdeviceptr) = NULL;
    unsigned type = 0;
    cudaError_t e = cudaPointerGetAttributes(&a, p);
    note("%s: %s, type %d, device %d", what, nm(e), (int)a.type, a.device);
    if (find_entry("cuPointerGetAttribute", 11080, &get))
        note("cuPointerGetAttribute %s, type %u",
             drv_nm(get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)p)), type);
}

static void r8_ask(void *user) {
    int local = 0, device = -1;
    (void)user;
    show_pointer("device memory", buf);
    show_pointer("pinned memory", pinned);
    show_pointer("pageable memory", &local);
    MUST(cudaGetDevice(&device));
    note("the thread's device is %d", device);
}

/* The memory belongs to the last device; a fresh thread's device is 0. */
static void r8(void) {
    MUST(cudaSetDevice(device_count() - 1));
    start();
    entries();
    show_contexts("memory of the last device");
    in_thread(r8_ask, NULL);
    show_contexts("after");
    if (device_count() == 1)
        note("a device without a context needs 2 devices");
}

/* ---- R9: copies by kind of memory ---- */

#define COPY_SIZE ((size_t)65536)

typedef enum memory_kind { FROM_MALLOC, FROM_POOL, FROM_VIRTUAL, MEMORY_KINDS } memory_kind;

typedef enum copy_place { WITHIN, WITHOUT_ACCESS, WITH_ACCESS } copy_place;

typedef enum copy_way { LIVE, CAPTURED, AS_NODE } copy_way;

static const char *const kind_names[] = { "cudaMalloc", "pool", "virtual" };

typedef struct place {
    int device;
    void *memory[MEMORY_KINDS];
} place;

/* Makes memory of each kind. If there is a peer, it may reach all of it. */
static void place_make(place *p, int device, int peer) {
    CUmemAccessDesc access[2] = { vmm_access(device), vmm_access(peer) };
    size_t size = COPY_SIZE;
    p->device = device;
    MUST(cudaSetDevice(device));
    MUST(cudaMalloc(&p->memory[FROM_MALLOC], COPY_SIZE));
    MUST(cudaMallocAsync(&p->memory[FROM_POOL], COPY_SIZE, LEGACY));
    MUST(cudaDeviceSynchronize());
    CUdeviceptr v = vmm_mapped(device, &size);
    MUST_DRV(vmm.set_access(v, size, access, peer >= 0 ? 2 : 1));
    p->memory[FROM_VIRTUAL] = (void *)(uintptr_t)v;
    if (peer < 0)
        return;
    cudaError_t e = cudaDeviceEnablePeerAccess(peer, 0);
    note("device %d: peer access %s, access of the pool %s", device, nm(e),
         nm(pool_access(device, peer)));
}

typedef struct copy {
    const place *from, *to;
    memory_kind source, destination;
    copy_way way;
    int by_peer; /* cudaMemcpyPeerAsync rather than cudaMemcpyAsync */
} copy;

static cudaError_t copy_enqueue(const copy *c, cudaStream_t s) {
    void *to = c->to->memory[c->destination];
    const void *from = c->from->memory[c->source];
    if (c->by_peer)
        return cudaMemcpyPeerAsync(to, c->to->device, from, c->from->device, COPY_SIZE, s);
    return cudaMemcpyAsync(to, from, COPY_SIZE, cudaMemcpyDefault, s);
}

static cudaError_t copy_to_graph(const copy *c, cudaStream_t s, cudaGraph_t *out_graph) {
    cudaGraphNode_t node;
    if (c->way == CAPTURED) {
        begin(s, RELAXED);
        cudaError_t e = copy_enqueue(c, s), ended = cudaStreamEndCapture(s, out_graph);
        return e ? e : ended;
    }
    MUST(cudaGraphCreate(out_graph, 0));
    return cudaGraphAddMemcpyNode1D(&node, *out_graph, NULL, 0, c->to->memory[c->destination],
                                    c->from->memory[c->source], COPY_SIZE, cudaMemcpyDefault);
}

static cudaError_t copy_run(const copy *c, cudaStream_t s) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (c->way == LIVE)
        return copy_enqueue(c, s);
    cudaError_t e = copy_to_graph(c, s, &graph);
    if (!e)
        e = cudaGraphInstantiateWithFlags(&exec, graph, 0);
    return e ? e : cudaGraphLaunch(exec, s);
}

/* Runs one copy and compares the contents. NULL: they are right. */
static const char *copy_check(const copy *c) {
    static unsigned char value;
    static char seen[COPY_SIZE];
    value = (unsigned char)(value % 200 + 1);
    MUST(cudaSetDevice(c->to->device));
    MUST(cudaMemset(c->to->memory[c->destination], 0, COPY_SIZE));
    MUST(cudaDeviceSynchronize());
    MUST(cudaSetDevice(c->from->device));
    MUST(cudaMemset(c->from->memory[c->source], value, COPY_SIZE));
    MUST(cudaDeviceSynchronize());

    cudaStream_t s = free_stream();
    cudaError_t e = copy_run(c, s);
    if (!e)
        e = settle(s, 3000);
    if (e)
        return nm(e);
    MUST(cudaSetDevice(c->to->device));
    e = cudaMemcpy(seen, c->to->memory[c->destination], COPY_SIZE, cudaMemcpyDeviceToHost);
    if (e)
        return nm(e);
    for (size_t i = 0; i < COPY_SIZE; i++)
        if ((unsigned char)seen[i] != value)
            return seen[i] ? "other contents" : "the copy wrote nothing";
    return NULL;
}

static int reach_each_other(void) {
    int there = 0, back = 0;
    MUST(cudaDeviceCanAccessPeer(&there, 0, 1));
    MUST(cudaDeviceCanAccessPeer(&back, 1, 0));
    return there && back;
}

/* Copies between each two kinds of memory; a failure that the device keeps ends the row. */
static void copies(copy_place where, copy_way way) {
    place from, to;
    int right = 0, all = 0;
    if (where != WITHIN && !has_two_devices())
        return;
    if (where == WITH_ACCESS && !reach_each_other()) {
        note("devices 0 and 1 do not reach each other");
        return;
    }
    start();
    entries();
    vmm_entries();
    place_make(&from, 0, where == WITH_ACCESS ? 1 : -1);
    place_make(&to, where != WITHIN, where == WITH_ACCESS ? 0 : -1);
    for (int k = 0; k < MEMORY_KINDS * MEMORY_KINDS * 2; k++) {
        copy c = {
            &from, &to,  (memory_kind)(k / 2 / MEMORY_KINDS), (memory_kind)(k / 2 % MEMORY_KINDS),
            way,   k % 2
        };
        if (way == AS_NODE && c.by_peer)
            continue;
        const char *wrong = copy_check(&c);
        all++;
        right += !wrong;
        if (wrong)
            note("%s to %s by %s: %s", kind_names[c.source], kind_names[c.destination],
                 way == AS_NODE ? "a node"
                 : c.by_peer    ? "cudaMemcpyPeerAsync"
                                : "cudaMemcpyAsync",
                 wrong);
        if (wrong && cudaDeviceSynchronize()) {
            note("the device has failed, the rest was not asked");
            break;
        }
    }
    note("%d of %d copies were right", right, all);
}

#define COPIES(name, where, way) \
    static void name(void) {     \
        copies(where, way);      \
    }
COPIES(r9_within_live, WITHIN, LIVE)
COPIES(r9_within_captured, WITHIN, CAPTURED)
COPIES(r9_within_node, WITHIN, AS_NODE)
COPIES(r9_without_live, WITHOUT_ACCESS, LIVE)
COPIES(r9_without_captured, WITHOUT_ACCESS, CAPTURED)
COPIES(r9_without_node, WITHOUT_ACCESS, AS_NODE)
COPIES(r9_with_live, WITH_ACCESS, LIVE)
COPIES(r9_with_captured, WITH_ACCESS, CAPTURED)
COPIES(r9_with_node, WITH_ACCESS, AS_NODE)

/* ---- R10: queries beside a foreign global capture ---- */

typedef struct query {
    enum cudaStreamCaptureMode mode;
    int what;
    cudaStream_t idle;
    cudaEvent_t done, later;
    cudaError_t answer;
} query;

static const char *const query_names[] = { "cudaEventQuery",       "cuEventQuery",
                                           "cudaStreamQuery",      "cuStreamQuery",
                                           "cudaEventElapsedTime", "cudaEventSynchronize",
                                           "cudaStreamSynchronize" };

static cudaError_t query_call(const query *q) {
    float ms;
    switch (q->what) {
    case 0:
        return cudaEventQuery(q->done);
    case 1:
        return as_runtime(drv_event_query(q->done));
    case 2:
        return cudaStreamQuery(q->idle);
    case 3:
        return as_runtime(drv_stream_query(q->idle));
    case 4:
        return cudaEventElapsedTime(&ms, q->done, q->later);
    case 5:
        return cudaEventSynchronize(q->done);
    default:
        return cudaStreamSynchronize(q->idle);
    }
}

static void query_ask(void *user) {
    query *q = user;
    enum cudaStreamCaptureMode mode = q->mode;
    MUST(cudaThreadExchangeStreamCaptureMode(&mode));
    q->answer = query_call(q);
}

static query query_make(void) {
    query q = { .idle = free_stream(), .done = event(0), .later = event(0) };
    MUST(cudaEventRecord(q.done, q.idle));
    MUST(cudaEventRecord(q.later, q.idle));
    MUST(cudaStreamSynchronize(q.idle));
    return q;
}

static void queries(int here) {
    start();
    entries();
    query q = query_make();
    cudaStream_t s = free_stream();
    for (q.what = 0; q.what < COUNT(query_names); q.what++)
        for (int i = 0; i < COUNT(modes); i++) {
            enum cudaStreamCaptureMode back = cudaStreamCaptureModeGlobal;
            q.mode = modes[i];
            begin(s, cudaStreamCaptureModeGlobal);
            MUST(touch(s));
            if (here)
                query_ask(&q);
            else
                in_thread(query_ask, &q);
            note("%s, thread's mode %s: %s, the capture is %s", query_names[q.what], mode_names[i],
                 nm(q.answer), state(s));
            MUST(cudaThreadExchangeStreamCaptureMode(&back));
            (void)end(s);
        }
}

static void r10_other(void) {
    queries(0);
}

static void r10_same(void) {
    queries(1);
}

static void r10_cost(void) {
    enum { N = 2001 };

    static int64_t plain[N], exchanged[N];
    start();
    entries();
    query q = query_make();
    for (int i = 0; i < N; i++) {
        enum cudaStreamCaptureMode mode = RELAXED;
        int64_t t = now_ns();
        (void)cudaEventQuery(q.done);
        plain[i] = now_ns() - t;
        t = now_ns();
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
        (void)cudaEventQuery(q.done);
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
        exchanged[i] = now_ns() - t;
    }
    note("an event query %d ns, between two exchanges of the mode %d ns (medians)",
         (int)median(plain, N), (int)median(exchanged, N));
}

/* ---- R11: the cost of virtual memory ---- */

#define VMM_TOTAL ((size_t)512 << 20)

/* Times of the calls for each page, in ns. */
static struct vmm_times { int64_t create[256], map[256], release[256], access[256]; } vmm_times;

/* Makes page i at the address. Returns the result of cuMemSetAccess, the only call that may be
   refused for the sake of a peer. */
static CUresult vmm_page(CUdeviceptr at, size_t page, int i, const CUmemAccessDesc *access,
                         int locations) {
    CUmemAllocationProp prop = vmm_prop(0);
    CUmemGenericAllocationHandle handle;
    int64_t t[5];
    t[0] = now_ns();
    MUST_DRV(vmm.create(&handle, page, &prop, 0));
    t[1] = now_ns();
    MUST_DRV(vmm.map(at, page, 0, handle, 0));
    t[2] = now_ns();
    MUST_DRV(vmm.release(handle));
    t[3] = now_ns();
    CUresult result = vmm.set_access(at, page, access, (size_t)locations);
    t[4] = now_ns();
    vmm_times.create[i] = t[1] - t[0];
    vmm_times.map[i] = t[2] - t[1];
    vmm_times.release[i] = t[3] - t[2];
    vmm_times.access[i] = t[4] - t[3];
    return result;
}

/* Maps VMM_TOTAL bytes in pages of this size, and notes the medians of each call. Access is set for
   each page, then for the whole run again. */
static void vmm_cost(size_t page, int locations) {
    CUmemAccessDesc access[16];
    CUresult each = CUDA_SUCCESS;
    CUdeviceptr base;
    int n = (int)(VMM_TOTAL / page);
    for (int i = 0; i < locations; i++)
        access[i] = vmm_access(i);
    MUST_DRV(vmm.reserve(&base, VMM_TOTAL, (size_t)2 << 20, 0, 0));
    for (int i = 0; i < n; i++) {
        CUresult result = vmm_page(base + (size_t)i * page, page, i, access, locations);
        each = result ? result : each;
    }
    int64_t t = now_us();
    CUresult whole = vmm.set_access(base, VMM_TOTAL, access, (size_t)locations);
    t = now_us() - t;
    note("%d pages of %d MiB: create %s, map %s, release %s each", n, (int)(page >> 20),
         span(median(vmm_times.create, n) / 1000), span(median(vmm_times.map, n) / 1000),
         span(median(vmm_times.release, n) / 1000));
    note("set access of each %s %s, of the whole %s %s", drv_nm(each),
         span(median(vmm_times.access, n) / 1000), drv_nm(whole), span(t));
    t = now_us();
    for (int i = 0; i < n; i++)
        MUST_DRV(vmm.unmap(base + (size_t)i * page, page));
    note("unmap %s each", span((now_us() - t) / n));
    MUST_DRV(vmm.address_free(base, VMM_TOTAL));
}

static void r11_pages(void) {
    start();
    entries();
    vmm_entries();
    for (size_t mib = 2; mib <= 512; mib *= 4)
        vmm_cost(mib << 20, 1);
}

static void r11_peers(void) {
    int devices = device_count();
    if (!has_two_devices())
        return;
    start();
    entries();
    vmm_entries();
    for (int n = 1; n <= devices && n <= 16; n++) {
        note("access for %d device(s):", n);
        vmm_cost((size_t)8 << 20, n);
    }
}

/* ---- R12: host functions, and copies between pinned memory ---- */

static _Atomic int64_t stamp;

static void CUDART_CB stamp_fn(void *user) {
    (void)user;
    stamp = now_ns();
}

static void CUDART_CB stamp_callback(cudaStream_t s, cudaError_t status, void *user) {
    (void)s;
    (void)status;
    stamp_fn(user);
}

static cudaError_t stamp_enqueue(cudaStream_t s, gate_kind kind) {
    return kind == GATE_CALLBACK ? cudaStreamAddCallback(s, stamp_callback, NULL, 0)
                                 : cudaLaunchHostFunc(s, stamp_fn, NULL);
}

static void host_latency(const char *name, gate_kind kind) {
    enum { N = 201, MANY = 1000 };

    static int64_t call[N], run[N], after[N];
    cudaStream_t s = free_stream();
    for (int i = 0; i < N; i++) {
        stamp = 0;
        int64_t t = now_ns();
        MUST(stamp_enqueue(s, kind));
        call[i] = now_ns() - t;
        MUST(cudaStreamSynchronize(s));
        after[i] = now_ns() - stamp;
        run[i] = stamp - t;
    }
    note("%s: the call %d ns, it runs after %d ns, cudaStreamSynchronize returns %d ns later "
         "(medians)",
         name, (int)median(call, N), (int)median(run, N), (int)median(after, N));
    int64_t t = now_us();
    for (int i = 0; i < MANY; i++)
        MUST(stamp_enqueue(s, kind));
    int64_t enqueued = now_us() - t;
    MUST(cudaStreamSynchronize(s));
    note("%d in a row: enqueued in %s, over after %s", MANY, span(enqueued), span(now_us() - t));
}

static void r12_latency(void) {
    start();
    host_latency("host function", GATE_HOST_FUNCTION);
    host_latency("callback", GATE_CALLBACK);
}

static void r12_copies(void) {
    static const size_t bytes[] = { 64, 65536, SIZE / 2 };

    static const enum cudaMemcpyKind kinds[] = { cudaMemcpyDefault, cudaMemcpyHostToHost };

    start();
    cudaStream_t s = free_stream();
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < COUNT(bytes); i++) {
            gate g;
            unsigned char *dst = pinned + SIZE / 2;
            memset(pinned, 5, SIZE / 2);
            memset(dst, 0, SIZE / 2);
            gate_put(&g, s, HOLD_MS);
            int64_t t = now_us();
            cudaError_t e = cudaMemcpyAsync(dst, pinned, bytes[i], kinds[k], s);
            t = now_us() - t;
            int early = dst[bytes[i] - 1];
            note("%s, %zu bytes: %s after %s of at most %d ms, data %s",
                 k ? "cudaMemcpyHostToHost" : "cudaMemcpyDefault", bytes[i], nm(e), span(t),
                 HOLD_MS, early && !g.left ? "there before the stream got to it" : "in order");
            gate_end(&g);
            MUST(settle(s, 2000));
        }
}

/* ---- R13: destructors of user objects ---- */

typedef struct destroyed {
    _Atomic int calls;
    pthread_t thread;
    int64_t at;
} destroyed;

static void CUDART_CB destroyed_fn(void *user) {
    destroyed *d = user;
    d->thread = pthread_self();
    d->at = now_us();
    d->calls++;
}

static cudaUserObject_t user_object(destroyed *d) {
    cudaUserObject_t object;
    MUST(cudaUserObjectCreate(&object, d, destroyed_fn, 1, cudaUserObjectNoDestructorSync));
    return object;
}

static void tell_destroyed(const char *what, destroyed *d, int64_t began, cudaStream_t s) {
    int calls = d->calls;
    cudaError_t running = cudaStreamQuery(s);
    (void)cudaGetLastError();
    int64_t returned = now_us() - began;
    for (int i = 0; i < 3000 && !d->calls; i++)
        nap_us(1000);
    if (!d->calls) {
        note("%s: returned after %s, the destructor never ran", what, span(returned));
        return;
    }
    note("%s: returned after %s%s; the destructor ran %s, after %s, on %s", what, span(returned),
         running == cudaErrorNotReady ? " while the launch ran" : "",
         calls ? "inside of the call" : "later", span(d->at - began),
         pthread_equal(d->thread, pthread_self()) ? "the calling thread" : "another thread");
}

/* Launches a graph that owns a user object, and destroys both while the launch runs. */
static void destroy_in_flight(int exec_first) {
    destroyed d = { 0 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t s = free_stream();
    begin(s, RELAXED);
    spin_for(s, HOLD_MS);
    MUST(cudaStreamEndCapture(s, &graph));
    MUST(cudaGraphRetainUserObject(graph, user_object(&d), 1, cudaGraphUserObjectMove));
    MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cudaGraphLaunch(exec, s));
    int64_t t = now_us();
    MUST(exec_first ? cudaGraphExecDestroy(exec) : cudaGraphDestroy(graph));
    note("the first returned after %s, the destructor %s", span(now_us() - t),
         d.calls ? "ran" : "did not run");
    t = now_us();
    MUST(exec_first ? cudaGraphDestroy(graph) : cudaGraphExecDestroy(exec));
    tell_destroyed(exec_first ? "executable, then graph" : "graph, then executable", &d, t, s);
    MUST(settle(s, 2000));
}

static void r13(void) {
    destroyed released = { 0 }, owned = { 0 };
    cudaGraph_t graph;
    start();
    load();
    cudaStream_t s = free_stream();
    cudaUserObject_t object = user_object(&released);
    int64_t t = now_us();
    MUST(cudaUserObjectRelease(object, 1));
    tell_destroyed("release of the last reference", &released, t, s);

    MUST(cudaGraphCreate(&graph, 0));
    MUST(cudaGraphRetainUserObject(graph, user_object(&owned), 1, cudaGraphUserObjectMove));
    t = now_us();
    MUST(cudaGraphDestroy(graph));
    tell_destroyed("destroying its graph", &owned, t, s);

    destroy_in_flight(0);
    destroy_in_flight(1);
}

/* ---- R14: graphs and captures ---- */

/* The values of the fills, in the order of the graph's nodes. */
static void fill_values(cudaGraph_t graph, char *out) {
    cudaGraphNode_t nodes[8];
    size_t count = COUNT(nodes);
    MUST(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        struct cudaMemsetParams p;
        MUST(cudaGraphMemsetNodeGetParams(nodes[i], &p));
        *out++ = (char)('0' + p.value);
    }
    *out = 0;
}

/* Five fills with the values 1 to 5; later ones precede earlier ones in the graph's order. */
static cudaGraph_t graph_of_fills(void) {
    cudaGraph_t graph;
    cudaGraphNode_t node[5], before[2];
    struct cudaMemsetParams p = { .dst = buf, .elementSize = 1, .width = 1, .height = 1 };
    MUST(cudaGraphCreate(&graph, 0));
    for (unsigned i = 0; i < 5; i++) {
        size_t count = i < 2 ? 0 : i - 2 < 2 ? 1 : 2;
        before[0] = i >= 2 ? node[i == 2 ? 1 : 0] : NULL;
        before[1] = i == 4 ? node[3] : NULL;
        p.dst = buf + i;
        p.value = i + 1;
        MUST(cudaGraphAddMemsetNode(&node[i], graph, before, count, &p));
    }
    return graph;
}

static void r14_order(void) {
    char values[8];
    cudaGraph_t clone, outer, inner;
    cudaGraphNode_t child, nodes[8], twin;
    size_t count = COUNT(nodes);
    start();
    cudaGraph_t graph = graph_of_fills();
    fill_values(graph, values);
    note("nodes in order of creation 12345, cudaGraphGetNodes gives %s", values);
    MUST(cudaGraphClone(&clone, graph));
    fill_values(clone, values);
    note("in the clone %s", values);
    MUST(cudaGraphCreate(&outer, 0));
    MUST(cudaGraphAddChildGraphNode(&child, outer, NULL, 0, graph));
    MUST(cudaGraphChildGraphNodeGetGraph(child, &inner));
    fill_values(inner, values);
    note("in the child %s", values);
    MUST(cudaGraphGetNodes(graph, nodes, &count));
    note("cudaGraphNodeFindInClone for the clone %s, for the child %s",
         nm(cudaGraphNodeFindInClone(&twin, nodes[0], clone)),
         nm(cudaGraphNodeFindInClone(&twin, nodes[0], inner)));
}

static cudaGraph_t graph_of_copy(cudaStream_t s, size_t to, size_t pitch, size_t width,
                                 size_t height) {
    cudaGraph_t graph;
    begin(s, RELAXED);
    MUST(cudaMemcpy2DAsync(buf + to, pitch, buf + SIZE / 2, 512, width, height, cudaMemcpyDefault,
                           s));
    MUST(cudaStreamEndCapture(s, &graph));
    return graph;
}

static void r14_update(void) {
    cudaGraphExec_t exec;
    start();
    cudaStream_t s = free_stream();
    MUST(cudaGraphInstantiateWithFlags(&exec, graph_of_copy(s, 0, 256, 64, 8), 0));
    update("a 2-D copy to another address", exec, graph_of_copy(s, 65536, 256, 64, 8), s);
    update("another pitch", exec, graph_of_copy(s, 0, 512, 64, 8), s);
    update("another width", exec, graph_of_copy(s, 0, 256, 32, 8), s);
    update("another height", exec, graph_of_copy(s, 0, 256, 64, 4), s);
    update("one row", exec, graph_of_copy(s, 0, 256, 64, 1), s);
    update("contiguous rows", exec, graph_of_copy(s, 0, 512, 512, 8), s);
}

#if CUDART_VERSION >= 12030

#if CUDART_VERSION >= 13000
#define GET_EDGES cudaGraphGetEdges
#define GET_DEPENDENCIES cudaGraphNodeGetDependencies
#define SET_DEPENDENCIES cudaStreamUpdateCaptureDependencies
#define CAPTURE_INFO(s, status, deps, edges, count) \
    cudaStreamGetCaptureInfo(s, status, NULL, NULL, deps, edges, count)
#else
#define GET_EDGES cudaGraphGetEdges_v2
#define GET_DEPENDENCIES cudaGraphNodeGetDependencies_v2
#define SET_DEPENDENCIES cudaStreamUpdateCaptureDependencies_v2
#define CAPTURE_INFO(s, status, deps, edges, count) \
    cudaStreamGetCaptureInfo_v3(s, status, NULL, NULL, deps, edges, count)
#endif

static CUresult launch_programmatic(cudaStream_t s) {
    CUresult (*launch_ex)(const CUlaunchConfig *, CUfunction, void **, void **) = NULL;
    uint64_t ns = 0;
    void *params[] = { &ns };
    CUlaunchAttribute attribute = { .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION };
    CUlaunchConfig config = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1 };
    attribute.value.programmaticStreamSerializationAllowed = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = s;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (!find_entry("cuLaunchKernelEx", 11080, &launch_ex))
        return CUDA_ERROR_NOT_FOUND;
    return launch_ex(&config, spin, params, NULL);
}

static void count_edges(cudaGraph_t graph) {
    cudaGraphNode_t nodes[8], from[8], to[8];
    cudaGraphEdgeData edges[8];
    size_t count = 0;
    memset(edges, 0, sizeof edges);
    cudaError_t e = GET_EDGES(graph, NULL, NULL, NULL, &count);
    note("edges without arrays: %s, %zu", nm(e), count);
    count = COUNT(from);
    e = GET_EDGES(graph, from, to, NULL, &count);
    note("without edge data %s, %zu", nm(e), count);
    count = COUNT(from);
    e = GET_EDGES(graph, from, to, edges, &count);
    note("with edge data %s, %zu, type %d, port %d", nm(e), count, edges[0].type,
         edges[0].from_port);
    count = COUNT(nodes);
    MUST(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        size_t alone = 0, listed = COUNT(from);
        e = GET_DEPENDENCIES(nodes[i], NULL, NULL, &alone);
        cudaError_t list = GET_DEPENDENCIES(nodes[i], from, NULL, &listed);
        note("dependencies of node %zu: count %s %zu, list %s", i, nm(e), alone, nm(list));
    }
}

/* Gives the stream a programmatic dependency and asks for its dependencies. */
static void count_dependencies(cudaStream_t s) {
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *deps = NULL;
    const cudaGraphEdgeData *edges = NULL;
    cudaGraphEdgeData edge;
    size_t count = 0;
    MUST(CAPTURE_INFO(s, &status, &deps, &edges, &count));
    cudaGraphNode_t last = deps[0];
    memset(&edge, 0, sizeof edge);
    edge.from_port = 1; /* cudaGraphKernelNodePortProgrammatic */
    edge.type = cudaGraphDependencyTypeProgrammatic;
    cudaError_t e =
        SET_DEPENDENCIES(s, &last, &edge, 1, (unsigned)cudaStreamSetCaptureDependencies);
    note("setting a programmatic dependency %s", nm(e));
    count = 0;
    e = CAPTURE_INFO(s, &status, NULL, NULL, &count);
    note("capture info: count only %s %zu", nm(e), count);
    e = CAPTURE_INFO(s, &status, &deps, NULL, &count);
    note("list without edge data %s, then the capture is %s", nm(e), state(s));
    e = CAPTURE_INFO(s, &status, &deps, &edges, &count);
    note("with edge data %s, %zu of type %d", nm(e), count, !e && edges ? edges[0].type : -1);
}

static void r14_edges(void) {
    cudaGraph_t graph = NULL;
    start();
    load();
    cudaStream_t s = free_stream();
    begin(s, RELAXED);
    MUST_DRV(launch(spin, s, 0));
    note("a captured launch with programmatic serialization %s", drv_nm(launch_programmatic(s)));
    count_dependencies(s);
    cudaError_t e = cudaStreamEndCapture(s, &graph);
    note("end %s", nm(e));
    if (graph)
        count_edges(graph);
}

#else

static void r14_edges(void) {
    note("not with these headers: edge data needs CUDA 12.3");
}

#endif

/* Launches the graph of the probe below and notes what its three fills wrote. */
static void launch_fills(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    cudaGraphNode_t nodes[8];
    size_t count = COUNT(nodes);
    cudaStream_t s = free_stream();
    MUST(cudaGraphGetNodes(graph, nodes, &count));
    MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cudaMemset(buf, 0, 3));
    MUST(cudaDeviceSynchronize());
    MUST(cudaGraphLaunch(exec, s));
    MUST(settle(s, 2000));
    MUST(cudaMemcpy(pinned, buf, 3, cudaMemcpyDefault));
    note("%zu nodes, the launch wrote %d %d %d", count, pinned[0], pinned[1], pinned[2]);
}

/* As NVIDIA's sample graphMemoryNodes does. */
static void r14_joined(void) {
    start();
    for (int m = 0; m < COUNT(modes); m++) {
        cudaGraph_t graph = NULL;
        cudaStream_t s = free_stream(), fork_stream = free_stream();
        cudaEvent_t e = any_event(), back = any_event();
        begin(s, modes[m]);
        MUST(cudaMemsetAsync(buf, 1, 1, s));
        MUST(cudaEventRecord(e, s));
        MUST(cudaStreamWaitEvent(fork_stream, e, 0));
        MUST(cudaMemsetAsync(buf + 1, 2, 1, fork_stream));
        MUST(cudaEventRecord(back, fork_stream));
        MUST(cudaStreamWaitEvent(s, back, 0));
        cudaError_t r = cudaStreamDestroy(fork_stream);
        note("%s: destroying the joined stream %s, the capture is %s", mode_names[m], nm(r),
             state(s));
        r = cudaMemsetAsync(buf + 2, 3, 1, s);
        cudaError_t ended = cudaStreamEndCapture(s, &graph);
        note("work after it %s, end %s", nm(r), nm(ended));
        if (graph)
            launch_fills(graph);
    }
}

/* The destroyed stream was joined by another fork, which the origin joins after that. */
static void r14_joined_by_a_fork(void) {
    cudaGraph_t graph = NULL;
    start();
    cudaStream_t s = free_stream(), first = free_stream(), other = free_stream();
    cudaEvent_t e = any_event();
    begin(s, RELAXED);
    MUST(cudaMemsetAsync(buf, 1, 1, s));
    MUST(cudaEventRecord(e, s));
    MUST(cudaStreamWaitEvent(first, e, 0));
    MUST(cudaMemsetAsync(buf + 1, 2, 1, first));
    MUST(cudaEventRecord(e, first));
    MUST(cudaStreamWaitEvent(other, e, 0));
    cudaError_t r = cudaStreamDestroy(first);
    note("destroying the stream that another fork joined %s, the capture is %s", nm(r), state(s));
    r = cudaMemsetAsync(buf + 2, 3, 1, other);
    note("work of the other fork %s", nm(r));
    r = cudaEventRecord(e, other);
    cudaError_t joined = cudaStreamWaitEvent(s, e, 0);
    cudaError_t ended = cudaStreamEndCapture(s, &graph);
    note("record %s, join %s, end %s", nm(r), nm(joined), nm(ended));
    if (graph)
        launch_fills(graph);
}

/* ---- R15: costs ---- */

#define COST_ROUNDS 400

static cudaEvent_t cost_events[COST_ROUNDS];
static void *cost_memory[COST_ROUNDS];

/* The call, or 0 if there is no such call. */
static int cost_cheap(int what) {
    struct cudaPointerAttributes attributes;
    int device = 0;
    switch (what) {
    case 0:
        cudaGetDevice(&device);
        return 1;
    case 1:
        cudaPeekAtLastError();
        return 1;
    case 2:
        cudaSetDevice(0);
        return 1;
    case 3:
        cudaPointerGetAttributes(&attributes, buf);
        return 1;
    case 4:
        cudaPointerGetAttributes(&attributes, pinned);
        return 1;
    case 5:
        cudaPointerGetAttributes(&attributes, &device);
        return 1;
    case 6:
        drv_stream_query(held.idle);
        return 1;
    case 7:
        cudaStreamQuery(held.idle);
        return 1;
    case 8:
        drv_event_query(held.done);
        return 1;
    case 9:
        cudaEventQuery(held.done);
        return 1;
    default:
        return 0;
    }
}

static void cost_call(int what, int i) {
    if (cost_cheap(what))
        return;
    switch (what) {
    case 10:
        launch(spin, held.idle, 0);
        break;
    case 11:
        cudaEventRecord(held.pending, held.idle);
        break;
    case 12:
        cudaStreamWaitEvent(held.busy, held.pending, 0);
        break;
    case 13:
        cudaLaunchHostFunc(held.idle, seen_host_fn, &ignored_call);
        break;
    case 14:
        cudaStreamAddCallback(held.idle, seen_callback, &ignored_call, 0);
        break;
    case 15:
        cudaMemcpyAsync(buf, pinned, 64, cudaMemcpyDefault, held.idle);
        break;
    case 16:
        touch(held.idle);
        break;
    case 17:
        cudaMallocAsync(&cost_memory[i], 4096, held.idle);
        break;
    case 18:
        cudaFreeAsync(cost_memory[i], held.idle);
        break;
    case 19:
        cudaEventCreateWithFlags(&cost_events[i], cudaEventDisableTiming);
        break;
    case 20:
        cudaEventDestroy(cost_events[i]);
        break;
    default:
        break;
    }
}

static int64_t cost_of(int what) {
    static int64_t values[COST_ROUNDS];
    for (int i = 0; i < COST_ROUNDS; i++) {
        int64_t t = now_ns();
        cost_call(what, i);
        values[i] = now_ns() - t;
        if (i % 100 == 99) /* a full queue would block */
            MUST(cudaDeviceSynchronize());
    }
    return median(values, COST_ROUNDS);
}

static void r15_costs(void) {
    static const char *const what[] = { "cudaGetDevice",
                                        "cudaPeekAtLastError",
                                        "cudaSetDevice (same)",
                                        "cudaPointerGetAttributes of device",
                                        "of pinned",
                                        "of pageable",
                                        "cuStreamQuery (idle)",
                                        "cudaStreamQuery (idle)",
                                        "cuEventQuery (done)",
                                        "cudaEventQuery (done)",
                                        "cuLaunchKernel",
                                        "cudaEventRecord",
                                        "cudaStreamWaitEvent",
                                        "cudaLaunchHostFunc",
                                        "cudaStreamAddCallback",
                                        "cudaMemcpyAsync of 64 bytes",
                                        "cudaMemsetAsync of 64 bytes",
                                        "cudaMallocAsync",
                                        "cudaFreeAsync",
                                        "cudaEventCreate",
                                        "cudaEventDestroy" };
    start();
    load();
    prepare_held();
    int64_t clock = cost_of(-1);
    note("medians of %d calls in ns, less %d ns for the clock:", COST_ROUNDS, (int)clock);
    for (int i = 0; i < COUNT(what); i++)
        note("%s %d", what[i], (int)(cost_of(i) - clock));
}

#define BAND_SIZE ((size_t)256 << 20)

static double gigabytes_per_second(void *to, void *from, int by) {
    float ms = 0;
    MUST(cudaSetDevice(by));
    cudaStream_t s = free_stream();
    cudaEvent_t first = event(0), second_event = event(0);
    MUST(cudaMemcpyAsync(to, from, BAND_SIZE, cudaMemcpyDefault, s));
    MUST(cudaEventRecord(first, s));
    for (int i = 0; i < 4; i++)
        MUST(cudaMemcpyAsync(to, from, BAND_SIZE, cudaMemcpyDefault, s));
    MUST(cudaEventRecord(second_event, s));
    MUST(cudaStreamSynchronize(s));
    MUST(cudaEventElapsedTime(&ms, first, second_event));
    return 4.0 * (double)BAND_SIZE / ((double)ms * 1e6);
}

static void r15_bandwidth(void) {
    void *memory[2];
    if (!has_two_devices())
        return;
    for (int i = 0; i < 2; i++) {
        MUST(cudaSetDevice(i));
        MUST(cudaMalloc(&memory[i], BAND_SIZE));
    }
    for (int step = 0; step < 3; step++) {
        cudaError_t e = cudaSuccess;
        if (step) {
            MUST(cudaSetDevice(step - 1));
            e = cudaDeviceEnablePeerAccess(2 - step, 0);
        }
        note("%s (%s): from 0 to 1 in a stream of device 0 %.1f GB/s, of device 1 %.1f GB/s",
             step == 0   ? "no access"
             : step == 1 ? "device 0 may reach 1"
                         : "both",
             nm(e), gigabytes_per_second(memory[1], memory[0], 0),
             gigabytes_per_second(memory[1], memory[0], 1));
    }
}

/* ---- the table ---- */

static const probe risks[] = {
    { "R1 callback", "calls of another thread while a callback is blocked", r1_callback },
    { "R1 host function", "the same while a host function is blocked", r1_host_function },
    { "R2 callback", "which calls wait for a stream that a callback holds", r2_callback },
    { "R2 host function", "the same for a host function", r2_host_function },
    { "R2 kernel", "the same for a kernel", r2_kernel },
    { "R2 together", "host functions and callbacks of two streams at once", r2_together },
    { "R3 small", "cudaFree of 4 KiB that a kernel uses", r3_small },
    { "R3 large", "the same with 256 MiB", r3_large },
    { "R3 small captured", "4 KiB while the thread has a relaxed capture", r3_small_captured },
    { "R3 large captured", "256 MiB while the thread has a relaxed capture", r3_large_captured },
    { "R4", "callbacks, host functions and clean-up after a trap", r4 },
    { "R5 follows", "does cudart follow a pushed context, and does the pop restore", r5_follows },
    { "R5 cost", "what a push and a pop cost", r5_cost },
    { "R5 second", "a second cudart in the process", r5_second },
    { "R6 entries", "driver functions on threads that made no runtime call", r6_entries },
    { "R6 after", "which runtime call binds a thread to the context", r6_after },
    { "R7 device", "does a context appear: cudaGetDevice", r7_device },
    { "R7 set device", "cudaSetDevice", r7_set_device },
    { "R7 pointer", "cudaPointerGetAttributes of malloc's memory", r7_pointer },
    { "R7 exchange", "cudaThreadExchangeStreamCaptureMode", r7_exchange },
    { "R7 peer", "cudaDeviceCanAccessPeer", r7_peer },
    { "R7 access", "cuMemSetAccess naming a peer", r7_set_access },
    { "R7 pool", "cudaMemPoolSetAccess naming a peer", r7_pool },
    { "R8", "pointer attributes in a thread whose device has no context", r8 },
    { "R9 within live", "copies of each kind of memory within a device", r9_within_live },
    { "R9 within captured", "the same, captured", r9_within_captured },
    { "R9 within node", "the same, as nodes", r9_within_node },
    { "R9 without live", "between devices without peer access", r9_without_live },
    { "R9 without captured", "the same, captured", r9_without_captured },
    { "R9 without node", "the same, as nodes", r9_without_node },
    { "R9 with live", "between devices with peer access", r9_with_live },
    { "R9 with captured", "the same, captured", r9_with_captured },
    { "R9 with node", "the same, as nodes", r9_with_node },
    { "R10 other thread", "queries in another thread beside a global capture", r10_other },
    { "R10 same thread", "queries in the thread of a global capture", r10_same },
    { "R10 cost", "what an exchange of the capture mode costs", r10_cost },
    { "R11 pages", "cost of virtual memory by size of page", r11_pages },
    { "R11 peers", "cost of virtual memory by number of devices", r11_peers },
    { "R12 latency", "latency and rate of host functions and callbacks", r12_latency },
    { "R12 copies", "copy from pinned to pinned memory on a busy stream", r12_copies },
    { "R13", "when and where destructors of user objects run", r13 },
    { "R14 order", "order of nodes in a clone and a child", r14_order },
    { "R14 update", "updates of 2-D copies in an executable", r14_update },
    { "R14 edges", "counting dependencies that are programmatic", r14_edges },
    { "R14 joined", "destroying a joined stream inside a capture", r14_joined },
    { "R14 joined by a fork", "the same, joined by another fork", r14_joined_by_a_fork },
    { "R15 costs", "what each call costs", r15_costs },
    { "R15 bandwidth", "bandwidth between devices by direction enabled", r15_bandwidth },
};

int main(int argc, char **argv) {
    return probe_main(argc, argv, risks, COUNT(risks));
}
