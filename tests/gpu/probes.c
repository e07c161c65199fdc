/* probes.c - what a GPU does where CUDA's documentation leaves it open; risks.c asks about the
   risks of the CUDA driver first.
       probes [id]...    runs these probes, or all; --list prints their names
   Exit status 77: there is no GPU; 1: a probe died, hung, could not be set up or was not run.
   P1 to P27 ask about CUDA's rules, which the CPU driver keeps; D4, D6 and D9 about calls on which
   the CUDA driver relies. The missing numbers are probes of risks.c now (docs/gpu/README.md).
   Environment: PROBES_DEADLINE_MS for each probe (20000); PROBES_SECONDS for all of them (no
   limit); PROBES_SELFTEST=1 runs made-up probes that end in every way instead, without a GPU. */
#include "probe.h"

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

/* Holds a stream of another thread until the gate opens. */
static void hold_own_stream(void *pointer) {
    gate *g = pointer;
    gate_put(g, cudaStreamPerThread, 400);
}

static void ask_legacy(const char *what) {
    cudaError_t query = cudaStreamQuery(LEGACY);
    int64_t t = now_us();
    cudaError_t sync = cudaStreamSynchronize(LEGACY);
    t = now_us() - t;
    note("%s: query of the legacy stream %s; synchronize %s after %d ms of at most 400", what,
         nm(query), nm(sync), (int)(t / 1000));
}

static void p28(void) {
    static gate g, own;
    start();
    cudaStream_t s = stream(cudaStreamDefault);
    gate_put(&g, s, 400);
    MUST(cudaStreamDestroy(s));
    ask_legacy("a destroyed blocking stream with pending work");
    gate_end(&g);
    MUST(cudaDeviceSynchronize());
    in_thread(hold_own_stream, &own);
    ask_legacy("the per-thread stream of a thread that has ended, with pending work");
    gate_end(&own);
    MUST(cudaDeviceSynchronize());
    s = stream(cudaStreamDefault);
    gate_put(&g, s, 400);
    cudaEvent_t e = any_event();
    MUST(cudaEventRecord(e, LEGACY));
    MUST(cudaStreamWaitEvent(LEGACY, e, 0));
    cudaStream_t after = stream(cudaStreamDefault);
    note("record and wait on the legacy stream behind a busy blocking stream; work of another "
         "blocking stream %s",
         gets_through(after));
    gate_end(&g);
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
    for (int i = 0; i < 2; i++) { /* 0: the origin; 1: a fork */
        void *p;
        cudaStream_t s = free_stream(), fork_stream = free_stream();
        cudaEvent_t e = any_event();
        begin(s, cudaStreamCaptureModeThreadLocal);
        MUST(touch(s));
        MUST(cudaEventRecord(e, s));
        MUST(cudaStreamWaitEvent(fork_stream, e, 0));
        MUST(touch(fork_stream));
        cudaError_t r = cudaStreamDestroy(i == 0 ? s : fork_stream);
        if (i == 0 && r == cudaSuccess) {
            note("of the origin %s, the fork is then %s, cudaMalloc %s", nm(r), state(fork_stream),
                 nm(cudaMalloc(&p, 64)));
        } else {
            note("of %s %s, the origin is then %s", i == 0 ? "the origin" : "a fork", nm(r),
                 state(s));
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
    (void)find_entry("cuStreamGetId", 12000, &get_id);
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
    cudaError_t e = cudaGraphLaunch(exec, s);
    if (e != cudaSuccess) {
        note("the launch %s, the capture is %s", nm(e), state(s));
        note("end %s", nm(end(s)));
        return;
    }
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

/* ---- the table ---- */

/* ---- values in memory, and conditional nodes ---- */

static CUresult (*drv_wait32)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static CUresult (*drv_wait64)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
static CUresult (*drv_write32)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static CUresult (*drv_batch_values)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned);

static CUdeviceptr at(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

static void start_values(void) {
    start();
    entries();
    MUST(cudaMemset(buf, 0, SIZE));
    MUST(cudaDeviceSynchronize());
    memset(pinned, 0, SIZE);
    if (!find_entry("cuStreamWaitValue32", 12000, &drv_wait32) ||
        !find_entry("cuStreamWaitValue64", 12000, &drv_wait64) ||
        !find_entry("cuStreamWriteValue32", 12000, &drv_write32) ||
        !find_entry("cuStreamBatchMemOp", 12000, &drv_batch_values)) {
        note("setup failed: the driver has no waits for values");
        exit(3);
    }
}

/* Where a value may be, and who may wait for it. */
static void p29(void) {
    start_values();
    int nor = -1, wide = -1, flush = -1;
    CUresult (*attribute)(int *, int, int);
    entry("cuDeviceGetAttribute", &attribute);
    attribute(&wide, 122, 0);
    attribute(&nor, 123, 0);
    attribute(&flush, 98, 0);
    note("attributes: 64 bit %d, nor %d, flush %d", wide, nor, flush);
    cudaStream_t s = free_stream(), t = free_stream();
    void *pageable = NULL;
    if (posix_memalign(&pageable, 4096, 4096))
        exit(3);
    memset(pageable, 0, 4096);
    note("write: pageable memory %s, odd address %s, NULL %s, a flag 1 %s",
         drv_nm(drv_write32(s, at(pageable), 1, 0)), drv_nm(drv_write32(s, at(buf + 2), 1, 0)),
         drv_nm(drv_write32(s, 0, 1, 0)), drv_nm(drv_write32(s, at(buf), 0, 1)));
    note("wait: unknown flag 4 %s, 64 bits at 4 mod 8 %s", drv_nm(drv_wait32(s, at(buf), 0, 4)),
         drv_nm(drv_wait64(s, at(buf + 4), 0, CU_STREAM_WAIT_VALUE_EQ)));
    note("batch: of nothing %s", drv_nm(drv_batch_values(s, 0, NULL, 0)));
    CUstreamBatchMemOpParams op[300];
    memset(op, 0, sizeof op);
    for (int i = 0; i < COUNT(op); i++) {
        op[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        op[i].writeValue.address = at(buf);
        op[i].writeValue.value = 1;
    }
    note("batch: of 256 %s, of 257 %s, of 300 %s", drv_nm(drv_batch_values(s, 256, op, 0)),
         drv_nm(drv_batch_values(s, 257, op, 0)), drv_nm(drv_batch_values(s, 300, op, 0)));
    volatile uint32_t *flag = (volatile uint32_t *)(void *)pinned;
    MUST_DRV(drv_wait32(s, at(pinned), 1, CU_STREAM_WAIT_VALUE_EQ));
    note("a stream that waits: query %s, other work gets through: %s", nm(cudaStreamQuery(s)),
         gets_through(t));
    note("the legacy stream meanwhile (the waiting one is non-blocking): %s", gets_through(LEGACY));
    int64_t best = 1000000;
    *flag = 1;
    MUST(cudaStreamSynchronize(s));
    for (uint32_t i = 2; i < 200; i++) {
        MUST_DRV(drv_wait32(s, at(pinned), i, CU_STREAM_WAIT_VALUE_GEQ));
        MUST_DRV(drv_write32(s, at(pinned + 64), i, 0));
        nap_us(200);
        int64_t begin = now_us();
        *flag = i;
        while (*(volatile uint32_t *)(void *)(pinned + 64) != i) {
        }
        int64_t us = now_us() - begin;
        best = us < best ? us : best;
    }
    note("from the host's store over a wait and a write back to the host: %d us", (int)best);
    CUresult written = drv_write32(LEGACY, at(buf), 7, 0);
    note("legacy stream: write %s, wait %s", drv_nm(written),
         drv_nm(drv_wait32(LEGACY, at(buf), 7, CU_STREAM_WAIT_VALUE_EQ)));
    note("then %s", nm(cudaDeviceSynchronize()));
    *flag = 0xfffffff0;
    MUST_DRV(drv_wait32(s, at(pinned), 5, CU_STREAM_WAIT_VALUE_GEQ));
    nap_us(20000);
    note("0xfffffff0 at least 5: %s", nm(cudaStreamQuery(s)));
    *flag = 0x80000004;
    nap_us(20000);
    note("0x80000004 at least 5: %s", nm(cudaStreamQuery(s)));
    *flag = 5;
    note("5 at least 5: %s", nm(settle(s, 1000)));
    for (uint32_t value = 0; value < 2; value++) {
        CUresult r = drv_wait32(s, at(pinned), value, CU_STREAM_WAIT_VALUE_NOR);
        note("nor with %u of 5: %s, %s", value, drv_nm(r), nm(settle(s, 1000)));
    }
}

/* Values in captures and graphs. */
static void p30(void) {
    start_values();
    cudaStream_t s = free_stream();
    cudaGraph_t graph = NULL;
    cudaGraphNode_t node[8];
    size_t count = COUNT(node);
    begin(s, RELAXED);
    CUresult r = drv_write32(s, at(buf), 1, 0);
    note("captured write: %s, %s", drv_nm(r), state(s));
    r = drv_wait32(s, at(buf), 1, CU_STREAM_WAIT_VALUE_EQ);
    note("captured wait: %s, %s", drv_nm(r), state(s));
    CUstreamBatchMemOpParams op[2];
    memset(op, 0, sizeof op);
    for (int i = 0; i < 2; i++) {
        op[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        op[i].writeValue.address = at(buf + 64 * i);
        op[i].writeValue.value = 3;
    }
    r = drv_batch_values(s, 2, op, 0);
    note("captured batch: %s, %s", drv_nm(r), state(s));
    cudaError_t e = cudaStreamEndCapture(s, &graph);
    note("end %s", nm(e));
    if (!graph)
        return;
    MUST(cudaGraphGetNodes(graph, node, &count));
    CUresult (*type_of)(CUgraphNode, CUgraphNodeType *);
    entry("cuGraphNodeGetType", &type_of);
    for (size_t i = 0; i < count && i < COUNT(node); i++) {
        enum cudaGraphNodeType type = (enum cudaGraphNodeType) - 1;
        CUgraphNodeType drv_type = (CUgraphNodeType)-1;
        e = cudaGraphNodeGetType(node[i], &type);
        CUresult d = type_of(node[i], &drv_type);
        note("node %d: cudart %s %d, driver %s %d", (int)i, nm(e), (int)type, drv_nm(d),
             (int)drv_type);
    }
    cudaGraphExec_t exec;
    e = cudaGraphInstantiateWithFlags(&exec, graph, 0);
    note("instantiate %s", nm(e));
    if (e != cudaSuccess)
        return;
    e = cudaGraphLaunch(exec, s);
    note("launch %s, %s", nm(e), nm(settle(s, 2000)));
    uint32_t got = 0;
    MUST(cudaMemcpy(&got, buf, 4, cudaMemcpyDefault));
    note("the value is %u then", got);
    cudaGraph_t clone;
    e = cudaGraphClone(&clone, graph);
    note("clone %s", nm(e));
    cudaGraph_t parent;
    MUST(cudaGraphCreate(&parent, 0));
    e = cudaGraphAddChildGraphNode(&node[0], parent, NULL, 0, graph);
    note("as a child graph %s", nm(e));
    e = cudaGraphInstantiateWithFlags(&exec, parent, 0);
    note("instantiate the parent %s", nm(e));
}

#if CUDART_VERSION >= 12030
static const char *const conditional_names[] = { "if", "while", "switch" };

/* Makes a graph with one conditional node of `bodies` bodies, each with a fill of its own byte. */
static cudaError_t make_conditional(int type, unsigned bodies, unsigned value, unsigned flags,
                                    cudaGraph_t *out) {
    cudaGraphConditionalHandle handle;
    cudaGraphNode_t node, set;
    MUST(cudaGraphCreate(out, 0));
    cudaError_t e = cudaGraphConditionalHandleCreate(&handle, *out, value, flags);
    if (e != cudaSuccess)
        return e;
    struct cudaGraphNodeParams p;
    memset(&p, 0, sizeof p);
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.handle = handle;
    p.conditional.type = (enum cudaGraphConditionalNodeType)type;
    p.conditional.size = bodies;
#if CUDART_VERSION >= 13000
    e = cudaGraphAddNode(&node, *out, NULL, NULL, 0, &p);
#else
    e = cudaGraphAddNode(&node, *out, NULL, 0, &p);
#endif
    for (unsigned i = 0; i < bodies && e == cudaSuccess; i++) {
        struct cudaMemsetParams m = {
            .dst = buf + i, .value = i + 1, .elementSize = 1, .width = 1, .height = 1
        };
        e = cudaGraphAddMemsetNode(&set, p.conditional.phGraph_out[i], NULL, 0, &m);
    }
    return e;
}
#endif

/* Conditional nodes whose condition is the default value. */
static void p31(void) {
    start();
#if CUDART_VERSION >= 12030
    cudaStream_t s = free_stream();
    for (int type = 0; type < 3; type++)
        for (unsigned bodies = 0; bodies < 4; bodies++)
            for (unsigned value = 0; value < 4 && (type != 1 || value < 1); value++) {
                cudaGraph_t g, clone;
                cudaGraphExec_t exec;
                unsigned char got[4];
                if ((bodies == 0 || (type == 0 && bodies == 3)) && value)
                    continue;
                MUST(cudaMemset(buf, 0, 4));
                cudaError_t e = make_conditional(type, bodies, value, 1, &g);
                if (e != cudaSuccess) {
                    note("%s of %u bodies: %s", conditional_names[type], bodies, nm(e));
                    continue;
                }
                e = cudaGraphInstantiateWithFlags(&exec, g, 0);
                const char *made = nm(e);
                if (e == cudaSuccess)
                    e = cudaGraphLaunch(exec, s);
                cudaError_t done = settle(s, 2000);
                MUST(cudaMemcpy(got, buf, 4, cudaMemcpyDefault));
                note("%s of %u bodies, value %u: %s, launch %s, %s: %d %d %d", //
                     conditional_names[type], bodies, value, made, nm(e), nm(done), got[0], got[1],
                     got[2]);
                if (value == 0 && bodies == 1)
                    note("%s: clone %s", conditional_names[type], nm(cudaGraphClone(&clone, g)));
            }
    cudaGraph_t g, other, parent;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    MUST(make_conditional(0, 1, 1, 1, &g));
    MUST(make_conditional(0, 1, 0, 1, &other));
    MUST(cudaGraphCreate(&parent, 0));
    note("as a child graph %s", nm(cudaGraphAddChildGraphNode(&node, parent, NULL, 0, g)));
    MUST(cudaGraphInstantiateWithFlags(&exec, g, 0));
    update("another default value", exec, other, s);
    begin(s, RELAXED);
    cudaError_t e = cudaGraphLaunch(exec, s);
    note("launch while the stream captures: %s", nm(e));
    end(s);
    cudaGraphConditionalHandle handle;
    MUST(cudaGraphConditionalHandleCreate(&handle, g, 0, 0));
    note("instantiate with an unused handle: %s", nm(cudaGraphInstantiateWithFlags(&exec, g, 0)));
#else
    note("needs cudart 12.3");
#endif
}

#if CUDART_VERSION >= 12030
static const char setter_ptx[] =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);\n"
    ".visible .entry set (.param .u64 handle, .param .u32 value) {\n"
    ".reg .b32 %r<2>;\n.reg .b64 %rd<2>;\n"
    "ld.param.u64 %rd1, [handle];\nld.param.u32 %r1, [value];\n"
    "{\n.param .b64 a0;\n.param .b32 a1;\n"
    "st.param.b64 [a0+0], %rd1;\nst.param.b32 [a1+0], %r1;\n"
    "call.uni cudaGraphSetConditional, (a0, a1);\n}\nret;\n}\n";

/* The text linked with libcudadevrt.a of the usual place. */
static CUmodule linked_setter(void) {
    CUresult (*create)(unsigned, CUjit_option *, void **, CUlinkState *);
    CUresult (*data)(CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned,
                     CUjit_option *, void **);
    CUresult (*file)(CUlinkState, CUjitInputType, const char *, unsigned, CUjit_option *, void **);
    CUresult (*complete)(CUlinkState, void **, size_t *);
    CUlinkState link;
    CUmodule m = NULL;
    void *image;
    size_t size;
    entry("cuLinkCreate", &create);
    entry("cuLinkAddData", &data);
    entry("cuLinkAddFile", &file);
    entry("cuLinkComplete", &complete);
    int code = (int)create(0, NULL, NULL, &link);
    int with_data = (int)data(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)setter_ptx,
                              sizeof setter_ptx, "set", 0, NULL, NULL);
    int with_file = (int)file(link, CU_JIT_INPUT_LIBRARY, "/usr/local/cuda/lib64/libcudadevrt.a", 0,
                              NULL, NULL);
    int done = (int)complete(link, &image, &size);
    note("linker: %d, text %d, library %d, complete %d", code, with_data, with_file, done);
    if (!done)
        note("load of the linked image: %d", (int)drv_module_load(&m, image));
    return m;
}

/* Whether a kernel can set a condition with and without libcudadevrt.a; the forms of
   cuGraphAddNode. */
static void p32(void) {
    CUmodule m = NULL;
    CUfunction f;
    void *fn[3] = { NULL };
    start();
    entries();
    MUST(cudaMemset(buf, 0, SIZE));
    int code = (int)drv_module_load(&m, setter_ptx);
    note("load of the text alone: %d", code);
    CUmodule linked = linked_setter();
    for (int i = 0; i < 3; i++)
        find_entry("cuGraphAddNode", (const unsigned[]){ 12020, 12030, 13000 }[i], &fn[i]);
    const char *forms = "three functions";
    if (fn[0] == fn[1])
        forms = "the first two are one";
    else if (fn[1] == fn[2])
        forms = "the last two are one";
    note("cuGraphAddNode of 12020, 12030, 13000: %s", forms);
    m = m ? m : linked;
    CUresult (*get)(CUfunction *, CUmodule, const char *);
    entry("cuModuleGetFunction", &get);
    if (!m || get(&f, m, "set"))
        return;
    /* an if whose default is 0, set to 1 by the kernel before it */
    CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                    const CUDA_KERNEL_NODE_PARAMS *);
    cudaGraph_t g;
    cudaGraphNode_t node, kernel;
    cudaGraphExec_t exec;
    cudaGraphConditionalHandle handle;
    unsigned one = 1;
    unsigned char got = 9;
    MUST(cudaGraphCreate(&g, 0));
    MUST(cudaGraphConditionalHandleCreate(&handle, g, 0, 0));
    if (!find_entry("cuGraphAddKernelNode", 12000, &add))
        return;
    void *params[] = { &handle, &one };
    CUDA_KERNEL_NODE_PARAMS k;
    memset(&k, 0, sizeof k);
    k.func = f;
    k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1;
    k.kernelParams = params;
    note("kernel node: %d", (int)add(&kernel, g, NULL, 0, &k));
    struct cudaGraphNodeParams p;
    memset(&p, 0, sizeof p);
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.handle = handle;
    p.conditional.type = cudaGraphCondTypeIf;
    p.conditional.size = 1;
#if CUDART_VERSION >= 13000
    MUST(cudaGraphAddNode(&node, g, &kernel, NULL, 1, &p));
#else
    MUST(cudaGraphAddNode(&node, g, &kernel, 1, &p));
#endif
    struct cudaMemsetParams fill = {
        .dst = buf, .value = 5, .elementSize = 1, .width = 1, .height = 1
    };
    MUST(cudaGraphAddMemsetNode(&kernel, p.conditional.phGraph_out[0], NULL, 0, &fill));
    cudaStream_t s = free_stream();
    cudaError_t e = cudaGraphInstantiateWithFlags(&exec, g, 0);
    if (e == cudaSuccess)
        e = cudaGraphLaunch(exec, s);
    cudaError_t done = settle(s, 2000);
    MUST(cudaMemcpy(&got, buf, 1, cudaMemcpyDefault));
    note("set by the kernel: %s, %s: %d", nm(e), nm(done), got);
    cudaGraphExec_t second;
    note("a second executable: %s", nm(cudaGraphInstantiateWithFlags(&second, g, 0)));
}
#else
static void p32(void) {
    note("needs cudart 12.3");
}
#endif

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
    { "P27", "a captured launch of an executable that was changed and has a node switched off",
      p27 },
    { "P28", "query and synchronize of the legacy stream: what they do not cover", p28 },
    { "P29", "waits for values in memory and writes of values", p29 },
    { "P30", "waits for values and writes of values in captures and graphs", p30 },
    { "P31", "conditional nodes with a default value", p31 },
    { "P32", "conditions set by a kernel, with and without libcudadevrt.a", p32 },
    { "D4", "cudaMemsetAsync on host memory", d4 },
    { "D6", "what queries do to cudart's last error", d6 },
    { "D9", "copies of pageable memory on a busy stream", d9 },
};

int main(int argc, char **argv) {
    return probe_main(argc, argv, probes, COUNT(probes));
}
