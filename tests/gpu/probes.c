/* What a GPU does where CUDA's documentation leaves it open: plain cudart, no devstream. Each probe
   runs in a process of its own with a deadline, so that a device failure or a hang of one spoils no
   other, and becomes one row of a Markdown table.
       probes [id]... exit status 77: there is no GPU; 1: a probe died, hung or could not be set up
   P1 to P27 ask about CUDA's rules, which the CPU driver keeps; D1 and up about what the CUDA
   driver relies on. PROBES_SELFTEST=1 runs made-up probes that end in every way instead (no GPU
   needed); PROBES_DEADLINE_MS (20000). */
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))
#define SIZE ((size_t)1 << 20)
#define LEGACY cudaStreamLegacy

/* ---- what the probes share ---- */

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void nap_us(long us) {
    nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL);
}

/* One observation. It is flushed at once: what was seen before a hang stays in the table. */
__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

/* The name of a result. Takes it from cudart's memory of the thread too, so that it does not
   turn up in a later answer. */
static const char *nm(cudaError_t e) {
    (void)cudaGetLastError();
    return cudaGetErrorName(e);
}

#define MUST(call) must(call, #call, __LINE__)

static void must(cudaError_t e, const char *what, int line) {
    if (e == cudaSuccess)
        return;
    note("setup failed in line %d: %s: %s", line, what, cudaGetErrorName(e));
    exit(3);
}

#define MUST_DRV(call) must_drv(call, #call, __LINE__)

static void must_drv(CUresult e, const char *what, int line) {
    if (e == CUDA_SUCCESS)
        return;
    note("setup failed in line %d: %s: %d", line, what, (int)e);
    exit(3);
}

/* A host function that holds its stream until it is opened, and in no case longer than limit_ms. */
typedef struct gate {
    int limit_ms;
    _Atomic int open, entered, left;
    pthread_t thread;
} gate;

static void CUDART_CB gate_fn(void *pointer) {
    gate *g = pointer;
    int64_t end = now_us() + g->limit_ms * (int64_t)1000;
    g->thread = pthread_self();
    g->entered = 1;
    while (!g->open && now_us() < end)
        nap_us(100);
    g->left = 1;
}

/* and waits until the stream is held */
static void gate_put(gate *g, cudaStream_t s, int limit_ms) {
    g->limit_ms = limit_ms;
    g->open = g->entered = g->left = 0;
    MUST(cudaLaunchHostFunc(s, gate_fn, g));
    for (int i = 0; i < 20000 && !g->entered; i++)
        nap_us(100);
    if (!g->entered) {
        note("the gate was not reached in 2 s");
        exit(3);
    }
}

static void gate_end(gate *g) {
    g->open = 1;
    for (int i = 0; i < 20000 && !g->left; i++)
        nap_us(100);
}

static cudaStream_t stream(unsigned flags) {
    cudaStream_t s;
    MUST(cudaStreamCreateWithFlags(&s, flags));
    return s;
}

static cudaEvent_t event(unsigned flags) {
    cudaEvent_t e;
    MUST(cudaEventCreateWithFlags(&e, flags));
    return e;
}

#define free_stream() stream(cudaStreamNonBlocking)
#define any_event() event(cudaEventDisableTiming)

static unsigned char *buf;    /* SIZE bytes of device memory */
static unsigned char *pinned; /* SIZE bytes of host memory */

static void start(void) {
    MUST(cudaFree(NULL));
    MUST(cudaMalloc((void **)&buf, SIZE));
    MUST(cudaHostAlloc((void **)&pinned, SIZE, cudaHostAllocDefault));
    memset(pinned, 0, SIZE);
    MUST(cudaDeviceSynchronize());
}

static cudaError_t touch(cudaStream_t s) {
    return cudaMemsetAsync(buf, 1, 64, s);
}

/* Waits by asking; NotReady when it takes more than ms. */
static cudaError_t settle(cudaStream_t s, int ms) {
    int64_t end = now_us() + ms * (int64_t)1000;
    for (;;) {
        cudaError_t e = cudaStreamQuery(s);
        if (e != cudaErrorNotReady || now_us() > end) {
            (void)cudaGetLastError();
            return e;
        }
        nap_us(200);
    }
}

/* Does work put on the stream now get through in 200 ms? Not by a host function: those may share
   one thread. */
static const char *gets_through(cudaStream_t s) {
    cudaEvent_t e = any_event();
    cudaError_t r = touch(s);
    if (r == cudaSuccess)
        r = cudaEventRecord(e, s);
    if (r != cudaSuccess)
        return nm(r);
    for (int i = 0; i < 200; i++) {
        r = cudaEventQuery(e);
        if (r != cudaErrorNotReady)
            return r == cudaSuccess ? "runs" : nm(r);
        (void)cudaGetLastError();
        nap_us(1000);
    }
    return "waits";
}

static const char *state(cudaStream_t s) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t e = cudaStreamIsCapturing(s, &status);
    if (e != cudaSuccess)
        return nm(e);
    if (status == cudaStreamCaptureStatusNone)
        return "not capturing";
    return status == cudaStreamCaptureStatusActive ? "active" : "invalidated";
}

static void begin(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    MUST(cudaStreamBeginCapture(s, mode));
}

static cudaError_t end(cudaStream_t s) {
    cudaGraph_t g = NULL;
    cudaError_t e = cudaStreamEndCapture(s, &g);
    if (g)
        cudaGraphDestroy(g);
    (void)cudaGetLastError();
    return e;
}

static const enum cudaStreamCaptureMode modes[] = { cudaStreamCaptureModeGlobal,
                                                    cudaStreamCaptureModeThreadLocal,
                                                    cudaStreamCaptureModeRelaxed };

static const char *const mode_names[] = { "global", "thread-local", "relaxed" };
#define RELAXED cudaStreamCaptureModeRelaxed

typedef struct job {
    void (*fn)(void *);
    void *arg;
} job;

static void *job_main(void *pointer) {
    job *j = pointer;
    j->fn(j->arg);
    return NULL;
}

static void in_thread(void (*fn)(void *), void *arg) {
    pthread_t thread;
    job j = { fn, arg };
    if (pthread_create(&thread, NULL, job_main, &j))
        exit(3);
    pthread_join(thread, NULL);
}

/* ---- the driver's functions, through cudart ---- */

static void entry(const char *name, void *out_fn) {
    void *fn = NULL;
    cudaError_t e;
#if CUDART_VERSION >= 12050
    enum cudaDriverEntryPointQueryResult found;
    e = cudaGetDriverEntryPointByVersion(name, &fn, 11080, cudaEnableDefault, &found);
#elif CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found;
    e = cudaGetDriverEntryPoint(name, &fn, cudaEnableDefault, &found);
#else
    e = cudaGetDriverEntryPoint(name, &fn, cudaEnableDefault);
#endif
    if (e != cudaSuccess || !fn) {
        note("no entry point %s: %s", name, cudaGetErrorName(e));
        exit(3);
    }
    memcpy(out_fn, &fn, sizeof fn);
}

static CUresult (*drv_error_name)(CUresult, const char **);
static CUresult (*drv_module_load)(CUmodule *, const void *);
static CUresult (*drv_module_unload)(CUmodule);
static CUresult (*drv_module_function)(CUfunction *, CUmodule, const char *);
static CUresult (*drv_launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void **, void **);
static CUresult (*drv_stream_query)(CUstream);
static CUresult (*drv_event_query)(CUevent);
static CUresult (*drv_context_state)(CUdevice, unsigned *, int *);

static const char *drv_nm(CUresult e) {
    const char *name = NULL;
    return drv_error_name(e, &name) == CUDA_SUCCESS && name ? name : "an unknown CUresult";
}

static const char ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry die() { trap; ret; }\n"
    ".visible .entry spin(.param .u64 ns) {\n"
    "  .reg .u64 %a, %b, %c; .reg .pred %p;\n"
    "  ld.param.u64 %a, [ns]; mov.u64 %b, %globaltimer;\n"
    "L: mov.u64 %c, %globaltimer; sub.u64 %c, %c, %b; setp.lt.u64 %p, %c, %a; @%p bra L; ret;\n}\n";
static CUmodule module;
static CUfunction die, spin;

static void entries(void) {
    entry("cuGetErrorName", &drv_error_name);
    entry("cuModuleLoadData", &drv_module_load);
    entry("cuModuleUnload", &drv_module_unload);
    entry("cuModuleGetFunction", &drv_module_function);
    entry("cuLaunchKernel", &drv_launch);
    entry("cuStreamQuery", &drv_stream_query);
    entry("cuEventQuery", &drv_event_query);
    entry("cuDevicePrimaryCtxGetState", &drv_context_state);
}

static void load(void) {
    entries();
    MUST_DRV(drv_module_load(&module, ptx));
    MUST_DRV(drv_module_function(&die, module, "die"));
    MUST_DRV(drv_module_function(&spin, module, "spin"));
}

static CUresult launch(CUfunction f, cudaStream_t s, uint64_t ns) {
    void *params[] = { &ns };
    return drv_launch(f, 1, 1, 1, 1, 1, 1, 0, s, f == spin ? params : NULL, NULL);
}

static void spin_for(cudaStream_t s, int ms) {
    MUST_DRV(launch(spin, s, (uint64_t)ms * 1000000u));
}

/* A callback and a host function that leave word. */
typedef struct seen_call {
    _Atomic int calls;
    cudaError_t status;
    pthread_t thread;
} seen_call;

static void CUDART_CB seen_callback(cudaStream_t s, cudaError_t status, void *user) {
    seen_call *c = user;
    (void)s;
    c->status = status;
    c->thread = pthread_self();
    c->calls++;
}

static void CUDART_CB seen_host_fn(void *user) {
    seen_callback(NULL, cudaSuccess, user);
}

/* ---- P: CUDA's rules ---- */

static void p1(void) {
    gate g;
    start();
    for (int non_blocking = 0; non_blocking < 2; non_blocking++) {
        const char *kind = non_blocking ? "non-blocking" : "blocking";
        cudaStream_t s = stream(non_blocking ? cudaStreamNonBlocking : cudaStreamDefault);
        gate_put(&g, s, 400);
        cudaError_t query = cudaStreamQuery(LEGACY), zero = cudaStreamQuery(0);
        int64_t t = now_us();
        cudaError_t sync = cudaStreamSynchronize(LEGACY);
        t = now_us() - t;
        note("a busy %s stream: query of stream 1 %s, of stream 0 %s; synchronize %s after %d ms "
             "of at most 400",
             kind, nm(query), nm(zero), nm(sync), (int)(t / 1000));
        gate_end(&g);
    }
}

static void p2(void) {
    start();
    cudaStream_t s = free_stream();
    begin(s, RELAXED);
    cudaError_t again = cudaStreamBeginCapture(s, RELAXED);
    note("begin again %s, capture %s", nm(again), state(s));
    note("end %s", nm(end(s)));
    note("begin on stream 0 %s", nm(cudaStreamBeginCapture(0, RELAXED)));
    note("on cudaStreamLegacy %s", nm(cudaStreamBeginCapture(LEGACY, RELAXED)));
    note("end of a stream that does not capture %s", nm(end(s)));
}

static void p3(void) {
    start();
    cudaStream_t a = free_stream(), b = free_stream();
    cudaEvent_t e = any_event();
    begin(a, RELAXED);
    begin(b, RELAXED);
    MUST(touch(a));
    MUST(touch(b));
    MUST(cudaEventRecord(e, a));
    cudaError_t wait = cudaStreamWaitEvent(b, e, 0);
    note("wait %s; the event's capture %s, the waiting one %s", nm(wait), state(a), state(b));
    note("end of the event's %s", nm(end(a)));
    note("of the waiting one %s", nm(end(b)));
}

static void p4(void) {
    start();
    cudaStream_t s = free_stream(), other = free_stream();
    cudaEvent_t e = any_event();
    MUST(cudaEventRecord(e, other));
    begin(s, RELAXED);
    cudaError_t wait = cudaStreamWaitEvent(s, e, 0);
    note("wait %s, capture %s", nm(wait), state(s));
    note("end %s", nm(end(s)));
    begin(s, RELAXED);
    wait = cudaStreamWaitEvent(s, e, cudaEventWaitExternal);
    note("with cudaEventWaitExternal %s, capture %s", nm(wait), state(s));
    note("end %s", nm(end(s)));
}

static void p5(void) {
    start();
    cudaStream_t s = free_stream();
    begin(s, RELAXED);
    cudaError_t wait = cudaStreamWaitEvent(s, any_event(), 0);
    note("wait %s, capture %s", nm(wait), state(s));
    note("end %s", nm(end(s)));
}

static void p6(void) {
    start();
    float ms = 0;
    gate g;
    cudaStream_t s = free_stream();
    cudaEvent_t first = event(0), second = event(0), never = event(0), untimed = any_event();
    MUST(cudaEventRecord(first, s));
    gate_put(&g, s, 20);
    MUST(cudaEventRecord(second, s));
    note("before completion %s", nm(cudaEventElapsedTime(&ms, first, second)));
    gate_end(&g);
    MUST(settle(s, 2000));
    cudaError_t e = cudaEventElapsedTime(&ms, first, second);
    note("in order %s %.4f ms", nm(e), (double)ms);
    e = cudaEventElapsedTime(&ms, second, first);
    note("reversed %s %.4f ms", nm(e), (double)ms);
    note("unrecorded %s", nm(cudaEventElapsedTime(&ms, first, never)));
    MUST(cudaEventRecord(untimed, s));
    MUST(settle(s, 2000));
    note("without timing %s", nm(cudaEventElapsedTime(&ms, first, untimed)));
}

static void p7(void) {
    start();
    for (int failed = 0; failed < 2; failed++) {
        cudaStream_t s = free_stream(), other = free_stream();
        cudaEvent_t e = any_event();
        begin(s, RELAXED);
        MUST(touch(s));
        MUST(cudaEventRecord(e, s));
        if (failed) {
            cudaStreamQuery(s);
            (void)cudaGetLastError();
        }
        note("after a capture that ended with %s:", nm(end(s)));
        note("query %s", nm(cudaEventQuery(e)));
        note("wait %s", nm(cudaStreamWaitEvent(other, e, 0)));
        note("synchronize %s", nm(cudaEventSynchronize(e)));
        note("recorded anew %s", nm(cudaEventRecord(e, s)));
        note("then query %s", nm(cudaEventQuery(e)));
    }
}

static void p8(void) {
    static const char *const what[] = { "no node anywhere", "a node before the fork only",
                                        "a node on the fork, not joined",
                                        "a node on the fork, joined" };
    start();
    for (int i = 0; i < COUNT(what); i++) {
        cudaStream_t s = free_stream(), fork_stream = free_stream();
        cudaEvent_t e = any_event(), back = any_event();
        begin(s, RELAXED);
        if (i > 0)
            MUST(touch(s));
        MUST(cudaEventRecord(e, s));
        MUST(cudaStreamWaitEvent(fork_stream, e, 0));
        if (i > 1)
            MUST(touch(fork_stream));
        if (i > 2) {
            MUST(cudaEventRecord(back, fork_stream));
            MUST(cudaStreamWaitEvent(s, back, 0));
        }
        const char *forked = state(fork_stream);
        cudaError_t ended = end(s);
        note("%s: the fork is %s, end %s, then the fork is %s", what[i], forked, nm(ended),
             state(fork_stream));
    }
}

static void end_elsewhere(void *pointer) {
    cudaStream_t s = *(cudaStream_t *)pointer;
    cudaError_t e = end(s);
    note("end in another thread %s, then %s", nm(e), state(s));
}

static void p9(void) {
    start();
    for (int m = 0; m < 3; m++) {
        cudaStream_t s = free_stream();
        begin(s, modes[m]);
        MUST(touch(s));
        note("%s:", mode_names[m]);
        in_thread(end_elsewhere, &s);
        note("end in its own thread %s", nm(end(s)));
    }
}

static cudaError_t legacy_memset(void) {
    return touch(LEGACY);
}

static cudaError_t legacy_record(void) {
    return cudaEventRecord(any_event(), LEGACY);
}

static cudaError_t legacy_wait(void) {
    return cudaStreamWaitEvent(LEGACY, any_event(), 0);
}

static cudaError_t legacy_sync(void) {
    return cudaStreamSynchronize(LEGACY);
}

static cudaError_t legacy_query(void) {
    return cudaStreamQuery(LEGACY);
}

static cudaError_t legacy_copy(void) {
    return cudaMemcpy(pinned, buf, 64, cudaMemcpyDefault);
}

static cudaError_t legacy_status(void) {
    enum cudaStreamCaptureStatus status;
    return cudaStreamIsCapturing(LEGACY, &status);
}

static void p10(void) {
    static const struct {
        const char *name;
        cudaError_t (*fn)(void);
    } ops[] = { { "memset", legacy_memset },
                { "record", legacy_record },
                { "wait", legacy_wait },
                { "synchronize", legacy_sync },
                { "query", legacy_query },
                { "cudaMemcpy", legacy_copy },
                { "cudaStreamIsCapturing", legacy_status } };

    start();
    for (int non_blocking = 0; non_blocking < 2; non_blocking++) {
        cudaStream_t s = stream(non_blocking ? cudaStreamNonBlocking : cudaStreamDefault);
        note("while a %s stream captures (relaxed):", non_blocking ? "non-blocking" : "blocking");
        for (int i = 0; i < COUNT(ops); i++) {
            begin(s, RELAXED);
            cudaError_t e = ops[i].fn();
            note("%s %s, capture %s", ops[i].name, nm(e), state(s));
            end(s);
        }
    }
}

/* Calls that may be unsafe while a capture is open. Each finds the objects below fresh. */
static cudaStream_t x_other, x_spare;
static cudaEvent_t x_event, x_spare_event;
static void *x_device, *x_host, *x_pages;

static cudaError_t x_malloc(void) {
    void *p;
    return cudaMalloc(&p, 64);
}

static cudaError_t x_free(void) {
    return cudaFree(x_device);
}

static cudaError_t x_host_alloc(void) {
    void *p;
    return cudaHostAlloc(&p, 64, cudaHostAllocDefault);
}

static cudaError_t x_free_host(void) {
    return cudaFreeHost(x_host);
}

static cudaError_t x_register(void) {
    return cudaHostRegister(x_pages, 4096, cudaHostRegisterDefault);
}

static cudaError_t x_stream_create(void) {
    cudaStream_t s;
    return cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
}

static cudaError_t x_stream_create_blocking(void) {
    cudaStream_t s;
    return cudaStreamCreate(&s);
}

static cudaError_t x_stream_destroy(void) {
    return cudaStreamDestroy(x_spare);
}

static cudaError_t x_event_create(void) {
    cudaEvent_t e;
    return cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
}

static cudaError_t x_event_query(void) {
    return cudaEventQuery(x_event);
}

static cudaError_t x_event_sync(void) {
    return cudaEventSynchronize(x_event);
}

static cudaError_t x_event_record(void) {
    return cudaEventRecord(x_event, x_other);
}

static cudaError_t x_event_destroy(void) {
    return cudaEventDestroy(x_spare_event);
}

static cudaError_t x_memcpy(void) {
    return cudaMemcpy(pinned, buf, 64, cudaMemcpyDefault);
}

static cudaError_t x_memcpy_async(void) {
    return cudaMemcpyAsync(pinned, buf, 64, cudaMemcpyDefault, x_other);
}

static cudaError_t x_pageable(void) {
    return cudaMemcpyAsync(buf, x_pages, 64, cudaMemcpyDefault, x_other);
}

static cudaError_t x_device_sync(void) {
    return cudaDeviceSynchronize();
}

static cudaError_t x_stream_sync(void) {
    return cudaStreamSynchronize(x_other);
}

static cudaError_t x_stream_query(void) {
    return cudaStreamQuery(x_other);
}

static cudaError_t x_malloc_async(void) {
    void *p;
    return cudaMallocAsync(&p, 64, x_other);
}

static cudaError_t x_memset(void) {
    return touch(x_other);
}

static cudaError_t x_host_fn(void) {
    static gate g;
    return cudaLaunchHostFunc(x_other, gate_fn, &g);
}

static cudaError_t x_mem_info(void) {
    size_t a, b;
    return cudaMemGetInfo(&a, &b);
}

static cudaError_t x_attributes(void) {
    struct cudaPointerAttributes a;
    return cudaPointerGetAttributes(&a, buf);
}

static cudaError_t x_module(void) {
    CUmodule m;
    return drv_module_load(&m, ptx) == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

typedef struct unsafe_op {
    const char *name;
    cudaError_t (*fn)(void);
} unsafe_op;

static const unsafe_op unsafe_ops[] = { { "cudaMalloc", x_malloc },
                                        { "cudaFree", x_free },
                                        { "cudaHostAlloc", x_host_alloc },
                                        { "cudaFreeHost", x_free_host },
                                        { "cudaHostRegister", x_register },
                                        { "cudaStreamCreate (non-blocking)", x_stream_create },
                                        { "cudaStreamCreate (blocking)", x_stream_create_blocking },
                                        { "cudaStreamDestroy (other)", x_stream_destroy },
                                        { "cudaEventCreate", x_event_create },
                                        { "cudaEventQuery (unrelated)", x_event_query },
                                        { "cudaEventSynchronize (unrelated)", x_event_sync },
                                        { "cudaEventRecord (other stream)", x_event_record },
                                        { "cudaEventDestroy (unrelated)", x_event_destroy },
                                        { "cudaMemcpy", x_memcpy },
                                        { "cudaMemcpyAsync (pinned, other stream)",
                                          x_memcpy_async },
                                        { "cudaMemcpyAsync (pageable, other stream)", x_pageable },
                                        { "cudaDeviceSynchronize", x_device_sync },
                                        { "cudaStreamSynchronize (other)", x_stream_sync },
                                        { "cudaStreamQuery (other)", x_stream_query },
                                        { "cudaMallocAsync (other stream)", x_malloc_async },
                                        { "cudaMemsetAsync (other stream)", x_memset },
                                        { "cudaLaunchHostFunc (other stream)", x_host_fn },
                                        { "cudaMemGetInfo", x_mem_info },
                                        { "cudaPointerGetAttributes", x_attributes },
                                        { "cuModuleLoadData", x_module } };

typedef struct unsafe_run {
    const unsafe_op *op;
    cudaError_t result;
} unsafe_run;

static void run_unsafe(void *pointer) {
    unsafe_run *r = pointer;
    r->result = r->op->fn();
    (void)cudaGetLastError();
}

static void p11(int m) {
    char fine[2000] = "";
    start();
    load();
    cudaStream_t s = free_stream();
    x_other = free_stream();
    x_event = any_event();
    x_pages = aligned_alloc(4096, 4096);
    MUST(cudaEventRecord(x_event, x_other));
    for (int i = 0; i < COUNT(unsafe_ops); i++) {
        unsafe_run run[2] = { { &unsafe_ops[i], cudaSuccess }, { &unsafe_ops[i], cudaSuccess } };
        const char *after[2];
        for (int other_thread = 0; other_thread < 2; other_thread++) {
            x_spare = free_stream();
            x_spare_event = any_event();
            MUST(cudaMalloc(&x_device, 64));
            MUST(cudaHostAlloc(&x_host, 64, cudaHostAllocDefault));
            MUST(cudaDeviceSynchronize());
            begin(s, modes[m]);
            MUST(touch(s));
            if (other_thread)
                in_thread(run_unsafe, &run[1]);
            else
                run_unsafe(&run[0]);
            after[other_thread] = state(s);
            end(s);
            (void)cudaHostUnregister(x_pages); /* only one of the calls pins it */
            (void)cudaGetLastError();
        }
        if (!run[0].result && !run[1].result && !strcmp(after[0], "active") &&
            !strcmp(after[1], "active")) {
            if (strlen(fine) < sizeof fine - 100) {
                strcat(fine, fine[0] ? ", " : "");
                strcat(fine, unsafe_ops[i].name);
            }
        } else {
            note("%s: %s, capture %s; in another thread %s, capture %s", unsafe_ops[i].name,
                 nm(run[0].result), after[0], nm(run[1].result), after[1]);
        }
    }
    note("allowed in both threads: %s", fine[0] ? fine : "nothing");
}

static void p11_global(void) {
    p11(0);
}

static void p11_local(void) {
    p11(1);
}

static void p11_relaxed(void) {
    p11(2);
}

static void p13(void) {
    static const char *const what[] = { "query of the event",        "synchronize of the event",
                                        "elapsed time with it",      "query of the stream",
                                        "synchronize of the stream", "cudaStreamAddCallback",
                                        "cudaLaunchHostFunc" };
    start();
    for (int i = 0; i < COUNT(what); i++) {
        static seen_call call;
        float ms;
        cudaStream_t s = free_stream();
        cudaEvent_t e = event(0), done = event(0);
        MUST(cudaEventRecord(done, s));
        MUST(settle(s, 1000));
        begin(s, RELAXED);
        MUST(touch(s));
        MUST(cudaEventRecord(e, s));
        cudaError_t r;
        switch (i) {
        case 0:
            r = cudaEventQuery(e);
            break;
        case 1:
            r = cudaEventSynchronize(e);
            break;
        case 2:
            r = cudaEventElapsedTime(&ms, done, e);
            break;
        case 3:
            r = cudaStreamQuery(s);
            break;
        case 4:
            r = cudaStreamSynchronize(s);
            break;
        case 5:
            r = cudaStreamAddCallback(s, seen_callback, &call, 0);
            break;
        default:
            r = cudaLaunchHostFunc(s, seen_host_fn, &call);
            break;
        }
        note("%s %s, capture %s", what[i], nm(r), state(s));
        end(s);
    }
}

static void p14(void) {
    start();
    for (int i = 0; i < 3; i++) { /* 0: the origin; 1: a fork; 2: a fork that was joined */
        void *p;
        cudaStream_t s = free_stream(), fork_stream = free_stream();
        cudaEvent_t e = any_event(), back = any_event();
        begin(s, cudaStreamCaptureModeThreadLocal);
        MUST(touch(s));
        MUST(cudaEventRecord(e, s));
        MUST(cudaStreamWaitEvent(fork_stream, e, 0));
        MUST(touch(fork_stream));
        if (i == 2) {
            MUST(cudaEventRecord(back, fork_stream));
            MUST(cudaStreamWaitEvent(s, back, 0));
        }
        cudaError_t r = cudaStreamDestroy(i == 0 ? s : fork_stream);
        if (i == 0 && r == cudaSuccess) {
            note("of the origin %s, the fork is then %s, cudaMalloc %s", nm(r), state(fork_stream),
                 nm(cudaMalloc(&p, 64)));
        } else {
            note("of %s %s, the origin is then %s",
                 i == 0   ? "the origin"
                 : i == 1 ? "a fork"
                          : "a joined fork",
                 nm(r), state(s));
            note("end %s", nm(end(s)));
        }
    }
}

static pthread_barrier_t both;

static void capture_per_thread(void *pointer) {
    const char **out = pointer;
    cudaStream_t s = cudaStreamPerThread;
    cudaError_t e = cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    out[0] = nm(e);
    pthread_barrier_wait(&both);
    out[1] = state(s);
    (void)touch(s);
    pthread_barrier_wait(&both);
    out[2] = nm(end(s));
}

static void *capture_main(void *pointer) {
    capture_per_thread(pointer);
    return NULL;
}

static void p15(void) {
    gate g;
    start();
    cudaStream_t blocking = stream(cudaStreamDefault), s = free_stream();
    gate_put(&g, cudaStreamPerThread, 2000);
    note("per-thread stream busy:");
    note("blocking stream %s", gets_through(blocking));
    note("non-blocking %s", gets_through(s));
    note("legacy %s", gets_through(LEGACY));
    gate_end(&g);
    MUST(cudaDeviceSynchronize());
    gate_put(&g, blocking, 2000);
    note("blocking stream busy: per-thread %s", gets_through(cudaStreamPerThread));
    gate_end(&g);
    MUST(cudaDeviceSynchronize());
    gate_put(&g, LEGACY, 2000);
    note("legacy busy:");
    note("per-thread %s", gets_through(cudaStreamPerThread));
    note("non-blocking %s", gets_through(s));
    gate_end(&g);
    MUST(cudaDeviceSynchronize());
    pthread_t thread[2];
    const char *seen[2][3];
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, capture_main, seen[i]))
            exit(3);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        note("capture of stream 2 in thread %d: begin %s, %s, end %s", i + 1, seen[i][0],
             seen[i][1], seen[i][2]);
}

static void p16(void) {
    static const int asked[] = { -100, -1, 0, 1, 2 };
    int least = 0, greatest = 0;
    start();
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    note("range %s %d to %d", nm(e), least, greatest);
    for (int i = 0; i < COUNT(asked); i++) {
        cudaStream_t s = NULL;
        int got = 999;
        e = cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, asked[i]);
        if (e == cudaSuccess)
            MUST(cudaStreamGetPriority(s, &got));
        note("%d: %s gives %d", asked[i], nm(e), got);
    }
}

static void *p17_host;
static cudaStream_t p17_stream;
static _Atomic int p17_done;

static void CUDART_CB p17_fn(void *user) {
    void *p;
    int device;
    (void)user;
    note("cudaGetDevice %s", nm(cudaGetDevice(&device)));
    note("cudaStreamQuery %s", nm(cudaStreamQuery(p17_stream)));
    note("cuStreamQuery %s", drv_nm(drv_stream_query(p17_stream)));
    note("cudaMemsetAsync %s", nm(touch(p17_stream)));
    note("cudaMalloc %s", nm(cudaMalloc(&p, 64)));
    note("cudaFreeHost %s", nm(cudaFreeHost(p17_host)));
    p17_done++;
}

static void CUDART_CB p17_callback(cudaStream_t s, cudaError_t status, void *user) {
    (void)s;
    (void)status;
    p17_fn(user);
}

static void p17(void) {
    start();
    entries();
    p17_stream = free_stream();
    for (int callback = 0; callback < 2; callback++) {
        cudaStream_t s = free_stream();
        MUST(cudaHostAlloc(&p17_host, 64, cudaHostAllocDefault));
        note("in a %s:", callback ? "callback" : "host function");
        MUST(callback ? cudaStreamAddCallback(s, p17_callback, NULL, 0)
                      : cudaLaunchHostFunc(s, p17_fn, NULL));
        for (int i = 0; i < 5000 && p17_done <= callback; i++)
            nap_us(1000);
        if (p17_done <= callback) {
            note("it hangs");
            return;
        }
    }
}

static cudaGraph_t captured(cudaStream_t s, int memsets, size_t bytes, int host_fn) {
    static gate g;
    cudaGraph_t graph = NULL;
    begin(s, RELAXED);
    for (int i = 0; i < memsets; i++)
        MUST(cudaMemsetAsync(buf, i + 1, bytes, s));
    if (host_fn)
        MUST(cudaLaunchHostFunc(s, gate_fn, &g));
    MUST(cudaStreamEndCapture(s, &graph));
    return graph;
}

static void update(const char *what, cudaGraphExec_t exec, cudaGraph_t graph, cudaStream_t s) {
#if CUDART_VERSION >= 12000
    cudaGraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    cudaError_t e = cudaGraphExecUpdate(exec, graph, &info);
    int result = (int)info.result;
#else
    cudaGraphNode_t node;
    enum cudaGraphExecUpdateResult found = cudaGraphExecUpdateSuccess;
    cudaError_t e = cudaGraphExecUpdate(exec, graph, &node, &found);
    int result = (int)found;
#endif
    note("%s: %s, result %d", what, nm(e), result);
    e = cudaGraphLaunch(exec, s);
    note("launch then %s, stream %s", nm(e), nm(settle(s, 2000)));
}

static void p18(void) {
    start();
    cudaStream_t s = free_stream();
    cudaGraphExec_t exec;
    MUST(cudaGraphInstantiateWithFlags(&exec, captured(s, 1, 64, 0), 0));
    update("another size", exec, captured(s, 1, 128, 0), s);
    update("one node more", exec, captured(s, 2, 64, 0), s);
    update("another kind of node", exec, captured(s, 0, 0, 1), s);
}

static void p19(void) {
    static unsigned char page[64];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec;
    start();
    cudaStream_t s = free_stream();
    page[0] = 1;
    begin(s, RELAXED);
    cudaError_t e = cudaMemcpyAsync(buf, page, sizeof page, cudaMemcpyHostToDevice, s);
    note("copy to the device %s, capture %s", nm(e), state(s));
    e = cudaStreamEndCapture(s, &graph);
    note("end %s", nm(e));
    if (e == cudaSuccess) {
        page[0] = 2;
        MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
        MUST(cudaGraphLaunch(exec, s));
        MUST(settle(s, 2000));
        MUST(cudaMemcpy(pinned, buf, 64, cudaMemcpyDefault));
        note("the value read is that of the %s", pinned[0] == 2   ? "replay"
                                                 : pinned[0] == 1 ? "capture"
                                                                  : "?");
    }
    begin(s, RELAXED);
    e = cudaMemcpyAsync(page, buf, sizeof page, cudaMemcpyDeviceToHost, s);
    note("copy from the device %s, capture %s", nm(e), state(s));
    note("end %s", nm(end(s)));
}

static void p20(void) {
    start();
    cudaStream_t s = free_stream();
    for (int auto_free = 0; auto_free < 2; auto_free++) {
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec;
        void *p = NULL;
        begin(s, RELAXED);
        cudaError_t e = cudaMallocAsync(&p, 4096, s);
        note("cudaMallocAsync in a capture %s", nm(e));
        e = cudaStreamEndCapture(s, &graph);
        if (e != cudaSuccess) {
            note("end %s", nm(e));
            continue;
        }
        e = cudaGraphInstantiateWithFlags(&exec, graph,
                                          auto_free ? cudaGraphInstantiateFlagAutoFreeOnLaunch : 0);
        note("instantiate%s %s", auto_free ? " with auto-free" : "", nm(e));
        if (e != cudaSuccess)
            continue;
        for (int i = 1; i <= 2; i++) {
            e = cudaGraphLaunch(exec, s);
            note("launch %d %s, stream %s", i, nm(e), nm(settle(s, 2000)));
        }
    }
}

static void p21(void) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec;
    start();
    load();
    cudaStream_t s = free_stream(), other = free_stream();
    begin(s, RELAXED);
    spin_for(s, 200);
    MUST(cudaStreamEndCapture(s, &graph));
    MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cudaGraphLaunch(exec, s)); /* the first launch may load the code */
    MUST(settle(s, 5000));
    int64_t t = now_us();
    cudaError_t first = cudaGraphLaunch(exec, s), second = cudaGraphLaunch(exec, other);
    int launched = (int)((now_us() - t) / 1000);
    MUST(settle(s, 5000));
    MUST(settle(other, 5000));
    note("launches %s, %s returned after %d ms; two launches of 200 ms in two streams took %d ms",
         nm(first), nm(second), launched, (int)((now_us() - t) / 1000));
    t = now_us();
    spin_for(s, 200);
    spin_for(other, 200);
    MUST(settle(s, 5000));
    MUST(settle(other, 5000));
    note("two plain kernels of 200 ms: %d ms", (int)((now_us() - t) / 1000));
}

static void p22(void) {
    enum { N = 64 };

    static uint64_t seen[N];
    static cudaStream_t handle[N];
    int handles = 0, ids = 0;
    CUresult (*get_id)(CUstream, unsigned long long *) = NULL;
    start();
    void *fn = NULL;
#if CUDART_VERSION >= 12050
    enum cudaDriverEntryPointQueryResult found;
    (void)cudaGetDriverEntryPointByVersion("cuStreamGetId", &fn, 12000, cudaEnableDefault, &found);
#elif CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found;
    (void)cudaGetDriverEntryPoint("cuStreamGetId", &fn, cudaEnableDefault, &found);
#endif
    (void)cudaGetLastError();
    memcpy(&get_id, &fn, sizeof fn);
    for (int i = 0; i < N; i++) {
        unsigned long long id = 0;
        int new_handle = 1, new_id = 1;
        handle[i] = free_stream();
        if (get_id)
            MUST_DRV(get_id(handle[i], &id));
        seen[i] = id;
        MUST(cudaStreamDestroy(handle[i]));
        for (int k = 0; k < i; k++) {
            new_handle = new_handle && handle[k] != handle[i];
            new_id = new_id && seen[k] != seen[i];
        }
        handles += new_handle;
        ids += new_id;
    }
    note("%d streams one after another had %d different handles", N, handles);
    if (get_id)
        note("and %d different ids", ids);
    else
        note("ids: not with these headers or this driver");
}

static void p23(void) {
    gate g;
    start();
    cudaStream_t busy = free_stream(), idle = free_stream(), waiter = free_stream();
    cudaEvent_t e = any_event();
    gate_put(&g, busy, 2000);
    MUST(cudaEventRecord(e, busy));
    MUST(cudaStreamWaitEvent(waiter, e, 0));
    MUST(cudaEventRecord(e, idle));
    note("waited for a busy stream's record, recorded anew on an idle one: the waiter %s",
         gets_through(waiter));
    gate_end(&g);
    MUST(cudaDeviceSynchronize());
    gate_put(&g, busy, 2000);
    MUST(cudaEventRecord(e, idle));
    MUST(cudaStreamWaitEvent(waiter, e, 0));
    MUST(cudaEventRecord(e, busy));
    note("the other way round: the waiter %s", gets_through(waiter));
    gate_end(&g);
}

static void p24(void) {
    start();
    for (int non_blocking = 0; non_blocking < 2; non_blocking++) {
        cudaStream_t s = stream(non_blocking ? cudaStreamNonBlocking : cudaStreamDefault);
        cudaEvent_t e = any_event();
        begin(s, RELAXED);
        MUST(touch(s));
        MUST(cudaEventRecord(e, s));
        cudaError_t r = cudaStreamWaitEvent(LEGACY, e, 0);
        note("captured on a %s stream: wait %s, capture %s",
             non_blocking ? "non-blocking" : "blocking", nm(r), state(s));
        note("end %s", nm(end(s)));
    }
}

static void p25(void) {
    start();
    for (int over = 0; over < 2; over++) {
        cudaStream_t s = free_stream(), idle = free_stream();
        cudaEvent_t e = any_event();
        begin(s, RELAXED);
        MUST(touch(s));
        MUST(cudaEventRecord(e, s));
        cudaStreamQuery(s);
        (void)cudaGetLastError();
        if (over)
            note("after that capture's end (%s):", nm(end(s)));
        else
            note("the capture is %s:", state(s));
        note("wait of an idle stream %s, it is %s then", nm(cudaStreamWaitEvent(idle, e, 0)),
             state(idle));
        note("work on it %s", nm(touch(idle)));
        if (!over)
            note("end of the capture %s, the stream is %s then, work gets through: %s", nm(end(s)),
                 state(idle), gets_through(idle));
    }
}

typedef struct p26_job {
    enum cudaStreamCaptureMode mode;
    int what;
    cudaStream_t idle;
    cudaEvent_t done, later;
    cudaError_t answer;
} p26_job;

static void p26_ask(void *pointer) {
    p26_job *j = pointer;
    enum cudaStreamCaptureMode mode = j->mode;
    float ms;
    MUST(cudaThreadExchangeStreamCaptureMode(&mode));
    switch (j->what) {
    case 0:
        j->answer = cudaEventQuery(j->done);
        break;
    case 1:
        j->answer = (cudaError_t)drv_event_query(j->done);
        break;
    case 2:
        j->answer = cudaStreamQuery(j->idle);
        break;
    case 3:
        j->answer = (cudaError_t)drv_stream_query(j->idle);
        break;
    case 4:
        j->answer = cudaEventElapsedTime(&ms, j->done, j->later);
        break;
    case 5:
        j->answer = cudaEventSynchronize(j->done);
        break;
    default:
        j->answer = cudaStreamSynchronize(j->idle);
        break;
    }
}

static void p26(void) {
    static const char *const what[] = { "cudaEventQuery",       "cuEventQuery",
                                        "cudaStreamQuery",      "cuStreamQuery",
                                        "cudaEventElapsedTime", "cudaEventSynchronize",
                                        "cudaStreamSynchronize" };
    start();
    entries();
    p26_job j = { .idle = free_stream(), .done = event(0), .later = event(0) };
    cudaStream_t s = free_stream();
    MUST(cudaEventRecord(j.done, j.idle));
    MUST(cudaEventRecord(j.later, j.idle));
    MUST(cudaStreamSynchronize(j.idle));
    for (j.what = 0; j.what < COUNT(what); j.what++)
        for (int i = 0; i < COUNT(modes); i++)
            for (int here = 0; here < 2; here++) {
                j.mode = modes[i];
                begin(s, cudaStreamCaptureModeGlobal);
                MUST(touch(s));
                if (here)
                    p26_ask(&j);
                else
                    in_thread(p26_ask, &j);
                note("%s in %s thread whose mode is %s: %s, the capture is %s", what[j.what],
                     here ? "the capturing" : "another", mode_names[i], nm(j.answer), state(s));
                enum cudaStreamCaptureMode back = cudaStreamCaptureModeGlobal;
                MUST(cudaThreadExchangeStreamCaptureMode(&back));
                (void)end(s);
            }
}

static void p27(void) {
    cudaGraph_t inner, outer = NULL, child = NULL;
    cudaGraphExec_t exec, whole;
    cudaGraphNode_t set, off, nodes[4];
    enum cudaGraphNodeType type;
    size_t count = COUNT(nodes);
    start();
    cudaStream_t s = free_stream();
    struct cudaMemsetParams p = { .dst = buf,
                                  .value = 1,
                                  .elementSize = 1,
                                  .width = 1,
                                  .height = 1 },
                            q = p;
    MUST(cudaGraphCreate(&inner, 0));
    MUST(cudaGraphAddMemsetNode(&set, inner, NULL, 0, &p));
    q.dst = buf + 1;
    MUST(cudaGraphAddMemsetNode(&off, inner, &set, 1, &q));
    MUST(cudaGraphInstantiateWithFlags(&exec, inner, 0));
    p.value = 2;
    MUST(cudaGraphExecMemsetNodeSetParams(exec, set, &p));
    MUST(cudaGraphNodeSetEnabled(exec, off, 0));
    begin(s, RELAXED);
    MUST(cudaGraphLaunch(exec, s));
    MUST(cudaStreamEndCapture(s, &outer));
    MUST(cudaGraphGetNodes(outer, nodes, &count));
    MUST(cudaGraphNodeGetType(nodes[0], &type));
    note("the launch became %zu node(s), the first of type %d (a child is %d)", count, (int)type,
         (int)cudaGraphNodeTypeGraph);
    if (count == 1 && type == cudaGraphNodeTypeGraph) {
        count = COUNT(nodes);
        MUST(cudaGraphChildGraphNodeGetGraph(nodes[0], &child));
        MUST(cudaGraphGetNodes(child, nodes, &count));
        for (size_t i = 0; i < count && i < (size_t)COUNT(nodes); i++) {
            MUST(cudaGraphNodeGetType(nodes[i], &type));
            note("node %zu of the child is of type %d (a fill is %d, an empty one %d)", i,
                 (int)type, (int)cudaGraphNodeTypeMemset, (int)cudaGraphNodeTypeEmpty);
        }
    }
    MUST(cudaGraphInstantiateWithFlags(&whole, outer, 0));
    MUST(cudaMemset(buf, 0, 2));
    MUST(cudaDeviceSynchronize());
    MUST(cudaGraphLaunch(whole, s));
    MUST(settle(s, 2000));
    MUST(cudaMemcpy(pinned, buf, 2, cudaMemcpyDefault));
    note("a fill that was set in the executable wrote %d (graph 1, executable 2)", pinned[0]);
    note("a fill that was off in the executable wrote %d (off 0, on 1)", pinned[1]);
}

/* ---- D: what the CUDA driver relies on ---- */

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

static void d1(void) {
    static seen_call put[4], late[2];
    static char page[8192];
    gate g, far_gate;
    void *host = NULL;
    cudaEvent_t before, after;
    start();
    load();
    cudaStream_t s = free_stream(), other = free_stream(), spare = free_stream();
    before = any_event();
    after = any_event();
    MUST(cudaEventRecord(before, spare));
    MUST(settle(spare, 1000));
    MUST(cudaHostAlloc(&host, 64, cudaHostAllocDefault));
    MUST(cudaHostRegister(page, sizeof page, cudaHostRegisterDefault));
    gate_put(&g, s, 1000);
    MUST_DRV(launch(die, s, 0));
    MUST(cudaStreamAddCallback(s, seen_callback, &put[0], 0));
    MUST(cudaLaunchHostFunc(s, seen_host_fn, &put[1]));
    MUST(cudaEventRecord(after, s));
    far_gate.limit_ms = 500;
    far_gate.open = far_gate.entered = far_gate.left = 0;
    MUST(cudaLaunchHostFunc(other, gate_fn, &far_gate));
    MUST(cudaStreamAddCallback(other, seen_callback, &put[2], 0));
    MUST(cudaLaunchHostFunc(other, seen_host_fn, &put[3]));
    gate_end(&g);
    int64_t t = now_us();
    cudaError_t e = cudaSuccess;
    while (now_us() - t < 3000000 &&
           ((e = cudaStreamQuery(s)) == cudaErrorNotReady || e == cudaSuccess))
        nap_us(500);
    note("the stream says %s", cudaGetErrorName(e));
    tell("callback behind the trap", &put[0], &g);
    tell("host function behind it", &put[1], &g);
    tell("callback of another stream", &put[2], &g);
    tell("host function there", &put[3], &g);
    note("cudaGetLastError %s, again %s", cudaGetErrorName(cudaGetLastError()),
         cudaGetErrorName(cudaGetLastError()));
    note("afterwards: query of another stream %s", nm(cudaStreamQuery(spare)));
    note("event recorded before %s, behind the trap %s", nm(cudaEventQuery(before)),
         nm(cudaEventQuery(after)));
    e = cudaStreamAddCallback(s, seen_callback, &late[0], 0);
    note("cudaStreamAddCallback %s", nm(e));
    if (e == cudaSuccess)
        tell("it", &late[0], &g);
    e = cudaLaunchHostFunc(s, seen_host_fn, &late[1]);
    note("cudaLaunchHostFunc %s", nm(e));
    if (e == cudaSuccess)
        tell("it", &late[1], &g);
    note("cudaMalloc %s", nm(cudaMalloc((void **)&buf, 64)));
    note("cudaFreeHost %s", nm(cudaFreeHost(host)));
    note("cudaHostUnregister %s", nm(cudaHostUnregister(page)));
    note("cudaEventDestroy %s", nm(cudaEventDestroy(before)));
    note("cudaStreamDestroy %s", nm(cudaStreamDestroy(spare)));
    note("cuModuleUnload %s", drv_nm(drv_module_unload(module)));
    note("cudaFree %s", nm(cudaFree(pinned)));
    note("cudaDeviceSynchronize %s", nm(cudaDeviceSynchronize()));
    note("cudaDeviceReset %s", nm(cudaDeviceReset()));
    note("then cudaFree(0) %s", nm(cudaFree(NULL)));
    int calls =
        put[0].calls + put[1].calls + put[2].calls + put[3].calls + late[0].calls + late[1].calls;
    nap_us(200000);
    note("calls of the six functions by then: %d, 200 ms later: %d", calls,
         put[0].calls + put[1].calls + put[2].calls + put[3].calls + late[0].calls + late[1].calls);
}

static cudaStream_t d2_stream;

static void d2_bare(void *user) {
    int how = *(int *)user, device;
    static const char *const after[] = { "no runtime call", "cudaGetDevice", "cudaSetDevice(0)",
                                         "cudaFree(0)", "cudaStreamQuery" };
    cudaError_t e = how == 1   ? cudaGetDevice(&device)
                    : how == 2 ? cudaSetDevice(0)
                    : how == 3 ? cudaFree(NULL)
                    : how == 4 ? cudaStreamQuery(d2_stream)
                               : cudaSuccess;
    CUmodule m;
    const char *query = drv_nm(drv_stream_query(d2_stream)),
               *run = drv_nm(launch(spin, d2_stream, 1000));
    note("after %s (%s): cuStreamQuery %s, cuLaunchKernel %s, cuModuleLoadData %s", after[how],
         cudaGetErrorName(e), query, run, drv_nm(drv_module_load(&m, ptx)));
}

static void d2(void) {
    start();
    load();
    d2_stream = free_stream();
    for (int how = 0; how < 5; how++)
        in_thread(d2_bare, &how);
}

static void d3(void) {
    static const char *const what[] = {
        "cudaFree",           "cudaFreeHost",
        "cudaHostUnregister", "cuModuleUnload",
        "cudaMalloc",         "cudaHostAlloc",
        "cudaHostRegister",   "cuModuleLoadData",
        "cudaStreamCreate",   "cudaStreamDestroy of the busy stream",
        "cudaEventCreate",    "cudaEventDestroy of a pending event",
        "cudaMemGetInfo",     "cudaPointerGetAttributes"
    };
    start();
    load();
    for (int by_kernel = 0; by_kernel < 2; by_kernel++) {
        note("while a stream is held for 300 ms by a %s:", by_kernel ? "kernel" : "host function");
        for (int i = 0; i < COUNT(what); i++) {
            gate g;
            CUmodule m = NULL;
            CUfunction f;
            void *device = NULL, *host = NULL, *page = aligned_alloc(4096, 8192);
            struct cudaPointerAttributes attributes;
            size_t a, b;
            cudaStream_t s = free_stream(), made;
            cudaEvent_t e = any_event(), made_event;
            MUST(cudaMalloc(&device, 4096));
            MUST(cudaHostAlloc(&host, 4096, cudaHostAllocDefault));
            if (i != 6)
                MUST(cudaHostRegister(page, 8192, cudaHostRegisterDefault));
            if (i != 7) {
                MUST_DRV(drv_module_load(&m, ptx));
                MUST_DRV(drv_module_function(&f, m, "spin"));
            }
            MUST(cudaDeviceSynchronize());
            if (by_kernel)
                spin_for(s, 300);
            else
                gate_put(&g, s, 300);
            MUST(cudaEventRecord(e, s));
            int64_t t = now_us();
            cudaError_t r = cudaSuccess;
            CUresult d = CUDA_SUCCESS;
            switch (i) {
            case 0:
                r = cudaFree(device);
                break;
            case 1:
                r = cudaFreeHost(host);
                break;
            case 2:
                r = cudaHostUnregister(page);
                break;
            case 3:
                d = drv_module_unload(m);
                break;
            case 4:
                r = cudaMalloc(&device, SIZE * 16);
                break;
            case 5:
                r = cudaHostAlloc(&host, SIZE, cudaHostAllocDefault);
                break;
            case 6:
                r = cudaHostRegister(page, 8192, cudaHostRegisterDefault);
                break;
            case 7:
                d = drv_module_load(&m, ptx);
                break;
            case 8:
                r = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
                break;
            case 9:
                r = cudaStreamDestroy(s);
                break;
            case 10:
                r = cudaEventCreateWithFlags(&made_event, cudaEventDisableTiming);
                break;
            case 11:
                r = cudaEventDestroy(e);
                break;
            case 12:
                r = cudaMemGetInfo(&a, &b);
                break;
            default:
                r = cudaPointerGetAttributes(&attributes, device);
                break;
            }
            t = now_us() - t;
            note("%s %s after %.1f ms", what[i], d ? drv_nm(d) : nm(r), (double)t / 1000);
            if (!by_kernel)
                gate_end(&g);
            MUST(cudaDeviceSynchronize());
        }
    }
}

static void d4_set(const char *where, unsigned char *p, cudaStream_t s) {
    p[63] = 0;
    cudaError_t e = cudaMemsetAsync(p, 7, 64, s), done = settle(s, 2000);
    note("on %s %s, stream %s, value %d", where, nm(e), nm(done), p[63]);
}

static void d4(void) {
    unsigned char *page = aligned_alloc(4096, 8192);
    start();
    cudaStream_t s = free_stream();
    if (!page)
        exit(3);
    d4_set("cudaHostAlloc's memory", pinned, s);
    MUST(cudaHostRegister(page, 8192, cudaHostRegisterDefault));
    d4_set("registered memory", page, s);
    MUST(cudaHostUnregister(page));
    d4_set("pageable memory", page, s);
}

static void d5(void) {
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
            gate_put(&g, s, 300);
            int64_t t = now_us();
            cudaError_t e = cudaMemcpyAsync(dst, pinned, bytes[i], kinds[k], s);
            t = now_us() - t;
            int early = dst[bytes[i] - 1];
            note("%s, %zu bytes: %s after %d us of at most 300000, data %s",
                 k ? "cudaMemcpyHostToHost" : "cudaMemcpyDefault", bytes[i], nm(e), (int)t,
                 early && !g.left ? "there before the stream got to it" : "in order");
            gate_end(&g);
            MUST(settle(s, 2000));
        }
}

static void d6(void) {
    gate g;
    start();
    entries();
    cudaStream_t s = free_stream();
    cudaEvent_t e = any_event();
    gate_put(&g, s, 2000);
    MUST(cudaEventRecord(e, s));
    (void)cudaGetLastError();
    CUresult d = drv_stream_query(s);
    note("cuStreamQuery %s leaves %s", drv_nm(d), cudaGetErrorName(cudaPeekAtLastError()));
    d = drv_event_query(e);
    note("cuEventQuery %s leaves %s", drv_nm(d), cudaGetErrorName(cudaPeekAtLastError()));
    cudaError_t r = cudaStreamQuery(s);
    note("cudaStreamQuery %s leaves %s", cudaGetErrorName(r), cudaGetErrorName(cudaGetLastError()));
    r = cudaEventQuery(e);
    note("cudaEventQuery %s leaves %s", cudaGetErrorName(r), cudaGetErrorName(cudaGetLastError()));
    (void)cudaSetDevice(9999);
    d = drv_stream_query(s);
    note("with an error of the user's: after cuStreamQuery %s",
         cudaGetErrorName(cudaPeekAtLastError()));
    (void)cudaStreamQuery(s);
    note("after cudaStreamQuery %s", cudaGetErrorName(cudaPeekAtLastError()));
    (void)cudaGetLastError();
    (void)cudaSetDevice(9999);
    (void)touch(free_stream());
    note("after calls that succeed %s", cudaGetErrorName(cudaGetLastError()));
    gate_end(&g);
}

static void side_by_side(const char *what, cudaStream_t a, cudaStream_t b) {
    gate first, second = { .limit_ms = 300 };
    gate_put(&first, a, 300);
    MUST(cudaLaunchHostFunc(b, gate_fn, &second));
    while (!first.left && !second.entered)
        nap_us(200);
    int together = second.entered && !first.left;
    gate_end(&first);
    gate_end(&second);
    note("%s: %s, %s", what, together ? "side by side" : "one after another",
         pthread_equal(first.thread, second.thread) ? "same thread" : "different threads");
}

static void d7(void) {
    int devices = 0, least, greatest;
    cudaStream_t high;
    start();
    MUST(cudaGetDeviceCount(&devices));
    MUST(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    MUST(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, greatest));
    side_by_side("two non-blocking streams", free_stream(), free_stream());
    side_by_side("two blocking streams", stream(cudaStreamDefault), stream(cudaStreamDefault));
    side_by_side("normal and highest priority", free_stream(), high);
    if (devices > 1) {
        cudaStream_t here = free_stream();
        MUST(cudaSetDevice(1));
        side_by_side("two devices", here, free_stream());
    }
}

static cudaStream_t d8_stream;
static cudaEvent_t d8_event;

static void d8_run(int what, int rounds) {
    struct cudaPointerAttributes attributes;
    int device;
    for (int i = 0; i < rounds; i++)
        switch (what) {
        case 0:
            cudaGetDevice(&device);
            break;
        case 1:
            cudaPeekAtLastError();
            break;
        case 2:
            cudaSetDevice(0);
            break;
        case 3:
            cudaPointerGetAttributes(&attributes, buf);
            break;
        case 4:
            cudaPointerGetAttributes(&attributes, pinned);
            break;
        case 5:
            cudaPointerGetAttributes(&attributes, &device);
            break;
        case 6:
            drv_stream_query(d8_stream);
            break;
        case 7:
            cudaStreamQuery(d8_stream);
            break;
        case 8:
            drv_event_query(d8_event);
            break;
        case 9:
            cudaEventQuery(d8_event);
            break;
        case 10:
            cudaEventRecord(d8_event, d8_stream);
            break;
        case 11:
            cudaStreamWaitEvent(d8_stream, d8_event, 0);
            break;
        case 12:
            launch(spin, d8_stream, 0);
            break;
        default:
            touch(d8_stream);
            break;
        }
}

static void d8(void) {
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
                                        "cudaEventRecord",
                                        "cudaStreamWaitEvent",
                                        "cuLaunchKernel",
                                        "cudaMemsetAsync of 64 bytes" };
    start();
    load();
    d8_stream = free_stream();
    d8_event = any_event();
    MUST(cudaEventRecord(d8_event, d8_stream));
    for (int i = 0; i < COUNT(what); i++) {
        int64_t best = INT64_MAX;
        int rounds = i < 10 ? 20000 : 500; /* those that enqueue: fewer than what fills the queue */
        for (int k = 0; k < 5; k++) {
            int64_t t = now_us();
            d8_run(i, rounds);
            t = now_us() - t;
            if (t < best)
                best = t;
            MUST(settle(d8_stream, 2000));
        }
        note("%s %d ns", what[i], (int)(best * 1000 / rounds));
    }
}

static void d9(void) {
    static const size_t bytes[] = { 1024, 65536, SIZE };
    unsigned char *page = malloc(SIZE);
    start();
    if (!page)
        exit(3);
    for (int by_kernel = 0; by_kernel < 2; by_kernel++) {
        if (by_kernel)
            load();
        for (int back = 0; back < 2; back++)
            for (int i = 0; i < COUNT(bytes); i++) {
                gate g;
                cudaStream_t s = free_stream();
                memset(page, 5, SIZE);
                MUST(cudaMemset(buf, 0, SIZE));
                MUST(cudaDeviceSynchronize());
                if (by_kernel)
                    spin_for(s, 300);
                else
                    gate_put(&g, s, 300);
                int64_t t = now_us();
                cudaError_t e = cudaMemcpyAsync(back ? page : buf, back ? buf : page, bytes[i],
                                                cudaMemcpyDefault, s);
                t = now_us() - t;
                memset(page, 9, bytes[i]); /* does the copy still read this? */
                if (!by_kernel)
                    gate_end(&g);
                MUST(settle(s, 2000));
                MUST(cudaMemcpy(pinned, buf, SIZE, cudaMemcpyDefault));
                const char *read = back                        ? ""
                                   : pinned[bytes[i] - 1] == 5 ? ", source was read by then"
                                                               : ", source is read later";
                note("%s, held by a %s, %zu bytes: %s after %.1f ms of 300%s",
                     back ? "to pageable" : "from pageable", by_kernel ? "kernel" : "host function",
                     bytes[i], nm(e), (double)t / 1000, read);
            }
    }
}

static void d10(void) {
    int count, device;
    unsigned flags;
    int active[5] = { -1, -1, -1, -1, -1 };
    MUST(cudaGetDeviceCount(&count));
    entries();
    MUST_DRV(drv_context_state(0, &flags, &active[0]));
    MUST(cudaGetDevice(&device));
    MUST_DRV(drv_context_state(0, &flags, &active[1]));
    MUST(cudaSetDevice(0));
    MUST_DRV(drv_context_state(0, &flags, &active[2]));
    MUST(cudaFree(NULL));
    MUST_DRV(drv_context_state(0, &flags, &active[3]));
    note("device 0 is active: with the entry points %d, after cudaGetDevice %d, after "
         "cudaSetDevice %d, after cudaFree(0) %d",
         active[0], active[1], active[2], active[3]);
    if (count > 1) {
        MUST(cudaSetDevice(1));
        MUST_DRV(drv_context_state(1, &flags, &active[4]));
        note("device 1 after cudaSetDevice(1): %d", active[4]);
    }
}

/* The last GPU, whose context is pushed in a thread that has none. */
static void d11(void) {
    CUresult (*retain)(CUcontext *, CUdevice), (*push)(CUcontext), (*pop)(CUcontext *),
        (*get)(CUcontext *);
    CUcontext context = NULL, before = NULL, popped = NULL, after = NULL;
    int count, device = -1, again = -1;
    unsigned flags;
    int zero_active = -1;
    void *memory = NULL;
    struct cudaPointerAttributes attributes;
    cudaStream_t s;
    MUST(cudaGetDeviceCount(&count));
    entries();
    entry("cuDevicePrimaryCtxRetain", &retain);
    entry("cuCtxPushCurrent", &push);
    entry("cuCtxPopCurrent", &pop);
    entry("cuCtxGetCurrent", &get);
    MUST_DRV(get(&before));
    MUST_DRV(retain(&context, count - 1));
    MUST_DRV(push(context));
    MUST(cudaGetDevice(&device));
    MUST(cudaMalloc(&memory, 1 << 20));
    MUST(cudaPointerGetAttributes(&attributes, memory));
    MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    MUST(cudaMemsetAsync(memory, 0, 1 << 20, s));
    MUST(cudaStreamSynchronize(s));
    MUST_DRV(pop(&popped));
    MUST_DRV(get(&after));
    note("%d device(s), the last one's context pushed: cudaGetDevice says %d, cudaMalloc gives "
         "memory of device %d",
         count, device, attributes.device);
    note("before there %s a context, after the pop %s", before ? "was" : "was not",
         after == before ? "it is as before" : "another is current");
    MUST(cudaGetDevice(&again));
    MUST_DRV(drv_context_state(0, &flags, &zero_active));
    note("cudaGetDevice then says %d, device 0 is %sactive", again, zero_active ? "" : "not ");
}

/* ---- made-up probes, for the machinery ---- */

static void fake_good(void) {
    note("an answer");
    note("a | in another");
}

static void fake_hang(void) {
    note("seen before the hang");
    for (;;)
        pause();
}

static void fake_crash(void) {
    note("seen before the crash");
    raise(SIGKILL);
}

static void fake_setup(void) {
    must(cudaErrorInvalidValue, "a call", 7);
}

static void fake_silent(void) {
}

/* ---- the table ---- */

typedef struct probe {
    const char *id, *question;
    void (*fn)(void);
} probe;

static const probe probes[] = {
    { "P1", "query and synchronize of the legacy stream while a stream is busy", p1 },
    { "P2", "begin of a capture where there is one, and on the legacy stream", p2 },
    { "P3", "merging two captures", p3 },
    { "P4", "wait of a capturing stream for an event recorded outside", p4 },
    { "P5", "the same for an event that was never recorded", p5 },
    { "P6", "elapsed time: reversed, pending, unrecorded, without timing", p6 },
    { "P7", "an event whose capture has ended", p7 },
    { "P8", "end of a capture with a fork, with and without nodes", p8 },
    { "P9", "end of a capture in another thread", p9 },
    { "P10", "use of the legacy stream while another captures", p10 },
    { "P11/P12 global", "calls in a global capture: refused? invalidated?", p11_global },
    { "P11/P12 local", "the same in a thread-local capture", p11_local },
    { "P11/P12 relaxed", "the same in a relaxed capture", p11_relaxed },
    { "P13", "query and synchronize of a captured event and stream; callbacks", p13 },
    { "P14", "destroying a capturing stream", p14 },
    { "P15", "the per-thread stream beside legacy, blocking and other threads", p15 },
    { "P16", "priorities: range and clamping", p16 },
    { "P17", "CUDA calls inside of host functions", p17 },
    { "P18", "updates of an executable graph that do not fit", p18 },
    { "P19", "capture of a copy of pageable memory: value of when?", p19 },
    { "P20", "launching a graph again whose allocation was not freed", p20 },
    { "P21", "launching a graph while it runs in another stream", p21 },
    { "P22", "streams created after others were destroyed: handles and ids", p22 },
    { "P23", "recording an event anew before its first wait was reached", p23 },
    { "P24", "wait of the legacy stream for a captured event", p24 },
    { "P25", "wait of an idle stream for an event of a capture that is invalid", p25 },
    { "P26", "queries and waits of what is not captured, beside a global capture", p26 },
    { "P27", "a captured launch of an executable that was changed and has a node switched off",
      p27 },
    { "D1", "callbacks, host functions and clean-up after a trap", d1 },
    { "D2", "driver functions on a thread that made no runtime call", d2 },
    { "D3", "which calls wait for work that is pending elsewhere", d3 },
    { "D4", "cudaMemsetAsync on host memory", d4 },
    { "D5", "copy from pinned to pinned memory on a busy stream", d5 },
    { "D6", "what queries do to cudart's last error", d6 },
    { "D7", "host functions of two streams at once", d7 },
    { "D8", "what small calls cost", d8 },
    { "D9", "copies of pageable memory on a busy stream", d9 },
    { "D10", "when the primary context comes to be", d10 },
    { "D11", "does cudart follow a pushed context, and does the pop put back what was there", d11 },
};
static const probe fakes[] = {
    { "F1", "answers", fake_good },        { "F2", "hangs", fake_hang },
    { "F3", "crashes", fake_crash },       { "F4", "has no setup", fake_setup },
    { "F5", "says nothing", fake_silent },
};

static int show_device(void) {
    int count = 0, runtime = 0, driver = 0, major = 0, minor = 0;
    struct cudaDeviceProp properties;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0) {
        note("no CUDA device: cudaGetDeviceCount says %d (%s)", (int)e, cudaGetErrorName(e));
        return 77;
    }
    MUST(cudaRuntimeGetVersion(&runtime));
    MUST(cudaDriverGetVersion(&driver));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    MUST(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    MUST(cudaGetDeviceProperties(&properties, 0));
    note("%s, compute capability %d.%d, %d device(s); cudart %d, driver %d", properties.name, major,
         minor, count, runtime, driver);
    return 0;
}

static int child(const char *id) {
    if (!strcmp(id, "device"))
        return show_device();
    for (int i = 0; i < COUNT(fakes); i++)
        if (!strcmp(id, fakes[i].id)) {
            fakes[i].fn();
            return 0;
        }
    for (int i = 0; i < COUNT(probes); i++)
        if (!strcmp(id, probes[i].id)) {
            probes[i].fn();
            return 0;
        }
    return 2;
}

/* Runs itself with --child ID and collects what it prints, one answer a line. Returns its wait
   status, or -1 after a kill. */
static int run_child(const char *id, int deadline_ms, char *out, size_t size) {
    int ends[2], status = 0, killed = 0;
    size_t used = 0;
    if (pipe(ends)) {
        perror("pipe");
        exit(2);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "probes", "--child", id, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    for (int64_t end_us = now_us() + deadline_ms * (int64_t)1000;;) {
        char block[4096];
        int64_t left = (end_us - now_us()) / 1000;
        int ready =
            left > 0 ? poll(&(struct pollfd){ .fd = ends[0], .events = POLLIN }, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0) {
            /* a process held by a driver ends late: it is waited for all the same */
            kill(pid, SIGKILL);
            killed = 1;
            break;
        }
        ssize_t n = read(ends[0], block, sizeof block);
        if (n <= 0)
            break;
        for (ssize_t i = 0; i < n && used + 1 < size; i++)
            out[used++] = block[i];
    }
    out[used] = 0;
    close(ends[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return killed ? -1 : status;
}

static void put_cell(const char *text) { /* lines become one cell */
    size_t length = strlen(text);
    while (length && text[length - 1] == '\n')
        length--;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\n')
            fputs(i && text[i - 1] == ':' ? " " : "; ", stdout);
        else {
            if (text[i] == '|')
                putchar('\\');
            putchar(text[i]);
        }
    }
}

static int row(const probe *p, int deadline_ms) {
    static char out[1 << 16];
    int status = run_child(p->id, deadline_ms, out, sizeof out), bad = 1;
    printf("| %s | %s | ", p->id, p->question);
    put_cell(out);
    const char *gap = out[0] ? "; " : "";
    if (status == -1)
        printf("%s**timed out after %d ms**", gap, deadline_ms);
    else if (WIFSIGNALED(status))
        printf("%s**died by signal %d (%s)**", gap, WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        printf("%s**ended with %d**", gap, WEXITSTATUS(status));
    else if (!out[0])
        printf("**no answer**");
    else
        bad = 0;
    printf(" |\n");
    fflush(stdout);
    return bad;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--child"))
        return child(argv[2]);
    const char *deadline = getenv("PROBES_DEADLINE_MS"), *selftest = getenv("PROBES_SELFTEST");
    int deadline_ms = deadline ? atoi(deadline) : 20000, bad = 0, chosen = 0;
    const probe *list = probes;
    int count = COUNT(probes);
    if (selftest && *selftest) {
        list = fakes;
        count = COUNT(fakes);
    } else {
        char device[1000];
        /* the first call on a machine can be slow */
        int status = run_child("device", 60000, device, sizeof device);
        fputs(device, stdout);
        if (status == -1 || !WIFEXITED(status)) {
            puts("asking for the device hung or died");
            return 1;
        }
        if (WEXITSTATUS(status))
            return WEXITSTATUS(status);
        putchar('\n');
    }
    puts("| probe | question | observed |\n|---|---|---|");
    for (int i = 0; i < count; i++) {
        int wanted = argc == 1;
        for (int k = 1; k < argc; k++)
            wanted = wanted || !strcmp(argv[k], list[i].id);
        if (!wanted)
            continue;
        chosen++;
        bad += row(&list[i], deadline_ms);
    }
    if (!chosen) {
        fprintf(stderr, "probes: no such probe\n");
        return 2;
    }
    return bad ? 1 : 0;
}
