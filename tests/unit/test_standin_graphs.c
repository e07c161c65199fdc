/* The stand-in for cudart keeps CUDA's rules of capture and graphs. Each test runs in a process
   of its own, forked before anything of the stand-in has run; some must end in abort() with a
   certain line. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_headers.h"
#include "standin/standin.h"

/* ---- what the tests use ---- */

/* cmocka's own cannot be used in a forked process or another thread. */
static void same(long long got, long long wanted, const char *what, int line) {
    if (got == wanted)
        return;
    fprintf(stderr, "line %d: %s is %lld, not %lld\n", line, what, got, wanted);
    _exit(1);
}

#define SAME(got, wanted) same((long long)(got), (long long)(wanted), #got, __LINE__)
#define TRUE(what) SAME(!!(what), 1)
#define OK(call) SAME(call, 0)
#define CODE(code, call) SAME(call, code)

#define HEAD ".version 5.0\n.target sm_60\n.address_size 64\n"
/* fold(p, n): *p = *p * 31 + n.  meet(mine, yours): sets the one and waits for the other. */
static const char ptx[] = HEAD
    ".visible .entry fold(.param .u64 fold_0, .param .u32 fold_1)\n"
    "{ .reg .b32 %r<5>; .reg .b64 %rd<3>;\n"
    "ld.param.u64 %rd1, [fold_0]; cvta.to.global.u64 %rd2, %rd1; ld.param.u32 %r1, [fold_1];\n"
    "ld.global.u32 %r2, [%rd2]; mul.lo.s32 %r3, %r2, 31; add.s32 %r4, %r3, %r1; st.global.u32 "
    "[%rd2], %r4; ret; }\n"
    ".visible .entry meet(.param .u64 meet_0, .param .u64 meet_1)\n"
    "{ .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<5>;\n"
    "ld.param.u64 %rd1, [meet_0]; ld.param.u64 %rd2, [meet_1]; cvta.to.global.u64 %rd3, %rd1; "
    "cvta.to.global.u64 %rd4, %rd2;\n"
    "mov.u32 %r1, 1; st.volatile.global.u32 [%rd3], %r1;\n"
    "AGAIN: ld.volatile.global.u32 %r2, [%rd4]; setp.eq.s32 %p1, %r2, 0; @%p1 bra AGAIN; ret; }\n"
    ".visible .entry stop()\n"
    "{ trap; ret; }\n";
static const char fold, meet, stop; /* the host addresses of the kernels */

#define GLOBAL cudaStreamCaptureModeGlobal
#define LOCAL cudaStreamCaptureModeThreadLocal
#define RELAXED cudaStreamCaptureModeRelaxed
#define NONE cudaStreamCaptureStatusNone
#define ACTIVE cudaStreamCaptureStatusActive
#define INVALIDATED cudaStreamCaptureStatusInvalidated

static cudaStream_t s, t; /* non-blocking, on device 0 */
static cudaEvent_t e, f;  /* on device 0 */
static unsigned *d, *h;   /* 64 numbers of device 0, and pinned; both begin as 0 */

static cudaStream_t new_stream(unsigned flags) {
    cudaStream_t made = NULL;
    OK(cudaStreamCreateWithFlags(&made, flags));
    return made;
}

static cudaEvent_t new_event(void) {
    cudaEvent_t made = NULL;
    OK(cudaEventCreate(&made));
    return made;
}

static void *device_memory(size_t size) {
    void *p = NULL;
    OK(cudaMalloc(&p, size));
    OK(cudaMemset(p, 0, size));
    OK(cudaDeviceSynchronize());
    return p;
}

static void open_world(void) {
    standin_register_function(&fold, ptx, "fold");
    standin_register_function(&meet, ptx, "meet");
    standin_register_function(&stop, ptx, "stop");
    s = new_stream(cudaStreamNonBlocking), t = new_stream(cudaStreamNonBlocking);
    e = new_event(), f = new_event();
    d = device_memory(256);
    OK(cudaHostAlloc((void **)&h, 256, cudaHostAllocPortable));
    memset(h, 0, 256);
    OK(cudaDeviceSynchronize());
}

/* What tests leave behind is counted, so everything must go. */
static void close_world(void) {
    char left[200];
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(f));
    OK(cudaFree(d));
    OK(cudaFreeHost(h));
    if (standin_live(left, sizeof left))
        fprintf(stderr, "left: %s\n", left), _exit(1);
}

static void begin(cudaStream_t on) {
    OK(cudaStreamBeginCapture(on, RELAXED));
}

static cudaGraph_t end(cudaStream_t on) {
    cudaGraph_t g = NULL;
    OK(cudaStreamEndCapture(on, &g));
    TRUE(g != NULL);
    return g;
}

static void end_with(int code, cudaStream_t on) {
    cudaGraph_t g = (cudaGraph_t)1;
    CODE(code, cudaStreamEndCapture(on, &g));
    TRUE(!g);
}

static void drop(cudaGraph_t g) {
    OK(cudaGraphDestroy(g));
}

static int status(cudaStream_t of) {
    enum cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    OK(cudaStreamIsCapturing(of, &found));
    return (int)found;
}

/* The capture of `on` has been invalidated; it is ended. */
static void is_spoilt(cudaStream_t on) {
    SAME(status(on), INVALIDATED);
    end_with(cudaErrorStreamCaptureInvalidated, on);
    SAME(status(on), NONE);
}

static void fork_to(cudaStream_t to, cudaStream_t from) {
    OK(cudaEventRecord(e, from));
    OK(cudaStreamWaitEvent(to, e, 0));
}

static void join_from(cudaStream_t to, cudaStream_t from) {
    OK(cudaEventRecord(f, from));
    OK(cudaStreamWaitEvent(to, f, 0));
}

static cudaError_t put_fold(void *p, unsigned n, cudaStream_t on) {
    void *params[] = { &p, &n };
    return cudaLaunchKernel(&fold, (dim3){ 1, 1, 1 }, (dim3){ 1, 1, 1 }, params, 0, on);
}

static unsigned folded(unsigned count, const unsigned *n) {
    unsigned value = 0;
    for (unsigned i = 0; i < count; i++)
        value = value * 31 + n[i];
    return value;
}

static unsigned value_of(void *p) {
    unsigned v = 0;
    OK(cudaMemcpy(&v, p, 4, cudaMemcpyDefault));
    return v;
}

static unsigned value_on(int device, void *p) {
    OK(cudaSetDevice(device));
    unsigned v = value_of(p);
    OK(cudaSetDevice(0));
    return v;
}

static struct cudaKernelNodeParams fold_params(void **params) {
    return (struct cudaKernelNodeParams){
        (void *)(uintptr_t)&fold, { 1, 1, 1 }, { 1, 1, 1 }, 0, params, NULL
    };
}

static cudaGraphNode_t fold_node(cudaGraph_t g, void *p, unsigned n, const cudaGraphNode_t *deps,
                                 size_t count) {
    cudaGraphNode_t made = NULL;
    void *params[] = { &p, &n };
    struct cudaKernelNodeParams k = fold_params(params);
    OK(cudaGraphAddKernelNode(&made, g, deps, count, &k));
    return made;
}

static cudaGraph_t new_graph(void) {
    cudaGraph_t g = NULL;
    OK(cudaGraphCreate(&g, 0));
    return g;
}

static cudaGraphNode_t empty_node(cudaGraph_t g, const cudaGraphNode_t *deps, size_t count) {
    cudaGraphNode_t made = NULL;
    OK(cudaGraphAddEmptyNode(&made, g, deps, count));
    return made;
}

static cudaGraphExec_t executable(cudaGraph_t g) {
    cudaGraphExec_t x = NULL;
    OK(cudaGraphInstantiateWithFlags(&x, g, 0));
    return x;
}

static void run(cudaGraphExec_t x) {
    OK(cudaGraphLaunch(x, s));
    OK(cudaStreamSynchronize(s));
}

static size_t node_count(cudaGraph_t g) {
    size_t n = 0;
    OK(cudaGraphGetNodes(g, NULL, &n));
    return n;
}

static int type_of(cudaGraphNode_t n) {
    enum cudaGraphNodeType type = cudaGraphNodeTypeCount;
    OK(cudaGraphNodeGetType(n, &type));
    return (int)type;
}
#if CUDART_VERSION >= 13000
#define NO_DATA NULL,
#else
#define NO_DATA
#endif
static cudaGraphNode_t last_node(cudaStream_t on) {
    enum cudaStreamCaptureStatus found;
    const cudaGraphNode_t *deps = NULL;
    size_t n = 0;
    OK(cudaStreamGetCaptureInfo(on, &found, NULL, NULL, &deps, NO_DATA & n));
    SAME(n, 1);
    return deps[0];
}

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

/* Host functions and destructors count here. */
static atomic_int calls;

static void CUDART_CB count_call(void *unused) {
    (void)unused;
    atomic_fetch_add(&calls, 1);
}

static int calls_are(int wanted) {
    for (int i = 0; i < 1000 && atomic_load(&calls) != wanted; i++)
        pause_ms(1);
    return atomic_load(&calls) == wanted;
}

static atomic_int go;

static void CUDART_CB wait_for_go(void *unused) {
    (void)unused;
    while (!atomic_load(&go))
        pause_ms(1);
}

static cudaUserObject_t new_object(void) {
    cudaUserObject_t o = NULL;
    OK(cudaUserObjectCreate(&o, NULL, count_call, 1, cudaUserObjectNoDestructorSync));
    return o;
}

typedef struct elsewhere {
    int (*call)(void);
    int result;
} elsewhere;

static void *run_elsewhere(void *of) {
    elsewhere *a = of;
    a->result = a->call();
    return NULL;
}

static int in_another_thread(int (*call)(void)) {
    elsewhere a = { call, -1 };
    pthread_t thread;
    OK(pthread_create(&thread, NULL, run_elsewhere, &a));
    OK(pthread_join(thread, NULL));
    return a.result;
}

/* ---- capture: what becomes of work ---- */

static void test_work_of_a_capturing_stream_becomes_nodes_unexecuted(void) {
    static const int types[] = { cudaGraphNodeTypeMemset,      cudaGraphNodeTypeKernel,
                                 cudaGraphNodeTypeMemcpy,      cudaGraphNodeTypeMemcpy,
                                 cudaGraphNodeTypeMemcpy,      cudaGraphNodeTypeHost,
                                 cudaGraphNodeTypeEventRecord, cudaGraphNodeTypeWaitEvent,
                                 cudaGraphNodeTypeMemcpy };
    cudaGraphNode_t nodes[9];
    size_t n = 9;
    unsigned *far;
    OK(cudaSetDevice(1));
    far = device_memory(64);
    OK(cudaSetDevice(0));
    OK(cudaEventRecord(f, t));
    begin(s);
    OK(cudaMemsetAsync(d, 1, 8, s));
    OK(put_fold(d, 5, s));
    OK(cudaMemcpyAsync(h, d, 8, cudaMemcpyDeviceToHost, s));
    OK(cudaMemcpyAsync(d + 2, d, 8, cudaMemcpyDeviceToDevice, s));
    OK(cudaMemcpy2DAsync(h + 8, 8, d, 4, 4, 2, cudaMemcpyDeviceToHost, s));
    OK(cudaLaunchHostFunc(s, count_call, NULL));
    OK(cudaEventRecordWithFlags(e, s, cudaEventRecordExternal));
    OK(cudaStreamWaitEvent(s, f, cudaEventWaitExternal));
    OK(cudaMemcpyPeerAsync(far, 1, d, 0, 8, s));
    cudaGraph_t g = end(s);
    SAME(h[0], 0);
    SAME(value_of(d), 0);
    OK(cudaEventQuery(e));
    OK(cudaGraphGetNodes(g, nodes, &n));
    SAME(n, 9);
    for (int i = 0; i < 9; i++)
        SAME(type_of(nodes[i]), types[i]);
    cudaGraphExec_t x = executable(g);
    run(x);
    unsigned expected = 0x01010101u * 31 + 5;
    SAME(h[0], expected);
    SAME(h[8], expected);
    SAME(h[10], 0x01010101);
    SAME(value_of(d + 2), expected);
    SAME(value_on(1, far), expected);
    SAME(atomic_load(&calls), 1);
    OK(cudaGraphExecDestroy(x));
    drop(g);
    OK(cudaFree(far));
}

static CUresult (*set_d32)(CUdeviceptr, unsigned, size_t, CUstream);

static void find(const char *name, void *out, unsigned version) {
    void *function = NULL;
#if CUDART_VERSION >= 12050
    OK(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, NULL));
#else
    (void)version;
    OK(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, NULL));
#endif
    memcpy(out, &function, sizeof function);
}

static void test_a_fill_of_the_drivers_is_captured_too(void) {
    find("cuMemsetD32Async", &set_d32, 12000);
    begin(s);
    OK(set_d32((CUdeviceptr)(uintptr_t)d, 77, 4, s));
    SAME(type_of(last_node(s)), cudaGraphNodeTypeMemset);
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d + 3), 77);
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_pageable_memory_is_read_when_the_graph_runs(void) {
    static unsigned page = 1;
    begin(s);
    OK(cudaMemcpyAsync(d, &page, 4, cudaMemcpyHostToDevice, s));
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g);
    page = 2;
    run(x);
    SAME(value_of(d), 2);
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_an_operation_that_is_refused_leaves_the_capture_alone(void) {
    begin(s);
    CODE(cudaErrorInvalidValue, cudaMemsetAsync(h, 1, 8, s));
    CODE(cudaErrorInvalidValue, cudaMemcpyAsync(d, h, 8, cudaMemcpyDeviceToHost, s));
    OK(cudaSetDevice(1));
    CODE(cudaErrorInvalidResourceHandle, put_fold(d, 1, s));
    OK(cudaSetDevice(0));
    SAME(status(s), ACTIVE);
    drop(end(s));
}

/* ---- capture: begin and end ---- */

static void test_the_legacy_stream_does_not_capture_others_do(void) {
    CODE(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(NULL, RELAXED));
    CODE(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(cudaStreamLegacy, GLOBAL));
    CODE(cudaErrorInvalidValue, cudaStreamBeginCapture(s, (enum cudaStreamCaptureMode)3));
    begin(cudaStreamPerThread);
    SAME(status(cudaStreamPerThread), ACTIVE);
    drop(end(cudaStreamPerThread));
    cudaStream_t blocking = new_stream(cudaStreamDefault);
    begin(blocking);
    drop(end(blocking));
    OK(cudaStreamDestroy(blocking));
}

static void test_a_capture_that_begins_again_goes_on(void) {
    begin(s);
    OK(put_fold(d, 1, s));
    CODE(cudaErrorIllegalState, cudaStreamBeginCapture(s, RELAXED));
    SAME(status(s), ACTIVE);
    cudaGraph_t g = end(s);
    SAME(node_count(g), 1);
    drop(g);
}

static void test_many_captures_are_open_at_once(void) {
    enum { MANY = 20 };

    cudaStream_t on[MANY];
    for (int i = 0; i < MANY; i++) {
        on[i] = new_stream(cudaStreamNonBlocking);
        begin(on[i]);
    }
    for (int i = 0; i < MANY; i++) {
        for (int j = 0; j <= i; j++)
            OK(put_fold(d, 1, on[i]));
    }
    for (int i = 0; i < MANY; i++) {
        cudaGraph_t g = end(on[i]);
        SAME(node_count(g), i + 1);
        drop(g);
        OK(cudaStreamDestroy(on[i]));
    }
}

static void test_work_put_before_a_capture_runs_beside_it(void) {
    standin_hold(1);
    OK(put_fold(d, 3, s));
    begin(s);
    OK(put_fold(d, 4, s));
    standin_hold(0);
    drop(end(s));
    OK(cudaStreamSynchronize(s));
    SAME(value_of(d), 3);
}

static void test_only_the_origin_ends_a_capture(void) {
    end_with(cudaErrorIllegalState, t);
    begin(s);
    fork_to(t, s);
    end_with(cudaErrorStreamCaptureUnmatched, t);
    SAME(status(t), INVALIDATED);
    is_spoilt(s);
    SAME(status(t), NONE);
    OK(cudaStreamSynchronize(t));
}

static int end_s(void) {
    cudaGraph_t g = NULL;
    cudaError_t code = cudaStreamEndCapture(s, &g);
    if (g)
        drop(g);
    return (int)code;
}

static void test_only_the_beginning_thread_ends_a_capture_if_not_relaxed(void) {
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        OK(cudaStreamBeginCapture(s, (enum cudaStreamCaptureMode)mode));
        CODE(mode == RELAXED ? 0 : (int)cudaErrorStreamCaptureWrongThread,
             in_another_thread(end_s));
        SAME(status(s), NONE); /* in any case */
    }
}

static void test_a_fork_must_be_joined(void) {
    cudaGraphNode_t first, before = NULL;
    size_t n = 1;
    begin(s);
    OK(put_fold(d, 1, s));
    fork_to(t, s);
    SAME(status(t), ACTIVE);
    OK(put_fold(d + 1, 1, t));
    end_with(cudaErrorStreamCaptureUnjoined, s);
    SAME(status(s), NONE);
    SAME(status(t), NONE);
    OK(put_fold(d + 2, 7, t));
    OK(cudaStreamSynchronize(t));
    SAME(value_of(d + 2), 7);

    begin(s);
    OK(put_fold(d, 1, s));
    fork_to(t, s); /* nothing of its own: nothing to join */
    drop(end(s));
    SAME(status(t), NONE);

    begin(s);
    OK(put_fold(d, 1, s));
    first = last_node(s);
    fork_to(t, s);
    OK(put_fold(d + 1, 1, t));
#if CUDART_VERSION >= 12030
    CODE(cudaErrorLossyQuery, cudaGraphNodeGetDependencies(last_node(t), &before, NO_DATA & n));
#endif
    standin_edge_data(0);
    OK(cudaGraphNodeGetDependencies(last_node(t), &before, NO_DATA & n));
    TRUE(n == 1 && before == first);
    join_from(s, t);
    OK(put_fold(d + 1, 1, t)); /* behind the event */
    end_with(cudaErrorStreamCaptureUnjoined, s);
}

static void test_forks_cross_devices_and_nodes_run_where_captured(void) {
    OK(cudaSetDevice(1));
    cudaStream_t far_stream = new_stream(cudaStreamNonBlocking);
    cudaEvent_t far_event = new_event();
    unsigned *far = device_memory(64);
    OK(cudaSetDevice(0));
    begin(s);
    OK(put_fold(d, 1, s));
    fork_to(far_stream, s);
    OK(cudaSetDevice(1));
    OK(put_fold(far, 9, far_stream)); /* device 0 has no access to it */
    OK(cudaEventRecord(far_event, far_stream));
    OK(cudaSetDevice(0));
    OK(cudaStreamWaitEvent(s, far_event, 0));
    OK(put_fold(d, 2, s));
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 1, 2 }));
    SAME(value_on(1, far), 9);
    OK(cudaGraphExecDestroy(x));
    drop(g);
    OK(cudaStreamDestroy(far_stream));
    OK(cudaEventDestroy(far_event));
    OK(cudaFree(far));
}

/* ---- capture: what invalidates it ---- */

static void test_a_capturing_stream_cannot_be_waited_for(void) {
    for (int i = 0; i < 3; i++) {
        begin(s);
        fork_to(t, s);
        cudaStream_t on = i == 2 ? t : s;
        CODE(cudaErrorStreamCaptureUnsupported,
             i ? cudaStreamQuery(on) : cudaStreamSynchronize(on));
        SAME(status(t), INVALIDATED);
        CODE(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(on));
        is_spoilt(s);
        OK(cudaStreamSynchronize(on));
    }
}

static void CUDART_CB callback(cudaStream_t on, cudaError_t code, void *unused) {
    (void)on, (void)code, (void)unused;
}

static void test_a_callback_is_no_part_of_a_graph(void) {
    begin(s);
    CODE(cudaErrorStreamCaptureUnsupported, cudaStreamAddCallback(s, callback, NULL, 0));
    is_spoilt(s);
}

static void test_an_invalidated_capture_takes_nothing(void) {
    begin(s);
    fork_to(t, s);
    CODE(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(s));
    for (int i = 0; i < 2; i++) {
        cudaStream_t on = i ? t : s;
        CODE(cudaErrorStreamCaptureInvalidated, put_fold(d, 1, on));
        CODE(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(d, 0, 4, on));
        CODE(cudaErrorStreamCaptureInvalidated, cudaMemcpyAsync(d, h, 4, cudaMemcpyDefault, on));
        CODE(cudaErrorStreamCaptureInvalidated, cudaLaunchHostFunc(on, count_call, NULL));
        CODE(cudaErrorStreamCaptureInvalidated, cudaEventRecord(f, on));
        CODE(cudaErrorStreamCaptureInvalidated, cudaStreamWaitEvent(on, f, 0));
    }
    cudaStream_t late = new_stream(cudaStreamNonBlocking);
    CODE(cudaErrorInvalidValue, cudaStreamWaitEvent(late, e, 0));
    SAME(status(late), NONE);
    OK(cudaStreamDestroy(late));
    is_spoilt(s);
}

static void test_a_captured_event_cannot_be_asked(void) {
    float ms;
    for (int i = 0; i < 2; i++) {
        begin(s);
        OK(cudaEventRecord(e, s));
        CODE(cudaErrorCapturedEvent, cudaEventElapsedTime(&ms, e, f));
        SAME(status(s), ACTIVE);
        CODE(cudaErrorCapturedEvent, i ? cudaEventQuery(e) : cudaEventSynchronize(e));
        is_spoilt(s);
    }
}

static void test_a_captured_event_means_nothing_when_its_capture_is_over(void) {
    begin(s);
    OK(cudaEventRecord(e, s));
    drop(end(s));
    float ms;
    CODE(cudaErrorInvalidValue, cudaEventQuery(e));
    CODE(cudaErrorInvalidValue, cudaEventSynchronize(e));
    CODE(cudaErrorInvalidValue, cudaStreamWaitEvent(t, e, 0));
    CODE(cudaErrorInvalidValue, cudaEventElapsedTime(&ms, e, f));
    SAME(status(t), NONE);
    begin(t);
    CODE(cudaErrorInvalidValue, cudaStreamWaitEvent(t, e, 0));
    is_spoilt(t);
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    OK(cudaEventSynchronize(e));
}

static void test_a_capture_does_not_wait_for_what_is_outside(void) {
    OK(cudaEventRecord(e, t));
    begin(s);
    CODE(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(s, e, 0));
    is_spoilt(s);
    begin(s);
    OK(cudaStreamWaitEvent(s, f, 0)); /* never recorded */
    OK(cudaStreamWaitEvent(s, e, cudaEventWaitExternal));
    SAME(type_of(last_node(s)), cudaGraphNodeTypeWaitEvent);
    cudaGraph_t g = end(s);
    SAME(node_count(g), 1);
    drop(g);
}

static void test_external_flags_are_for_capture_alone(void) {
    OK(cudaEventRecordWithFlags(e, s, cudaEventRecordDefault));
    CODE(cudaErrorInvalidValue, cudaEventRecordWithFlags(e, s, cudaEventRecordExternal));
    CODE(cudaErrorInvalidValue, cudaStreamWaitEvent(s, e, cudaEventWaitExternal));
    CODE(cudaErrorInvalidValue, cudaEventRecordWithFlags(e, s, 2));
    CODE(cudaErrorInvalidValue, cudaStreamWaitEvent(s, e, 2));
}

static void test_two_captures_do_not_merge(void) {
    begin(s);
    begin(t);
    OK(cudaEventRecord(e, s));
    CODE(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(t, e, 0));
    is_spoilt(s);
    is_spoilt(t);
}

static int query_legacy(void) {
    return (int)cudaStreamQuery(NULL);
}

static int synchronize_legacy(void) {
    return (int)cudaStreamSynchronize(cudaStreamLegacy);
}

static int fill_legacy(void) {
    return (int)cudaMemsetAsync(d, 0, 4, NULL);
}

static int launch_legacy(void) {
    return (int)put_fold(d, 0, NULL);
}

static int record_legacy(void) {
    return (int)cudaEventRecord(e, NULL);
}

static int wait_legacy(void) {
    return (int)cudaStreamWaitEvent(NULL, f, 0);
}

static int copy_legacy(void) {
    return (int)cudaMemcpy(h, d, 4, cudaMemcpyDefault);
}

static int set_legacy(void) {
    return (int)cudaMemset(d, 0, 4);
}

static int host_legacy(void) {
    return (int)cudaLaunchHostFunc(NULL, count_call, NULL);
}

static void test_the_legacy_stream_is_refused_in_a_blocking_capture(void) {
    static int (*const uses[])(void) = { query_legacy,  synchronize_legacy, fill_legacy,
                                         launch_legacy, record_legacy,      wait_legacy,
                                         copy_legacy,   set_legacy,         host_legacy };
    enum cudaStreamCaptureStatus found;
    cudaStream_t blocking = new_stream(cudaStreamDefault);
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        begin(blocking);
        CODE(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(NULL, &found));
        CODE(cudaErrorStreamCaptureImplicit,
             cudaStreamGetCaptureInfo(NULL, &found, NULL, NULL, NULL, NO_DATA NULL));
        SAME(status(blocking), ACTIVE);
        CODE(cudaErrorStreamCaptureImplicit, uses[i]());
        CODE(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(NULL, &found));
        is_spoilt(blocking);
        SAME(status(NULL), NONE);
        OK(cudaSetDevice(1)); /* another device has another legacy stream */
        begin(blocking);
        SAME(status(NULL), NONE);
        OK(cudaSetDevice(0));
        drop(end(blocking));
        begin(s); /* non-blocking */
        SAME(status(NULL), NONE);
        OK(uses[i]());
        SAME(status(s), ACTIVE);
        drop(end(s));
    }
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(blocking));
}

static void test_the_legacy_stream_joins_no_capture(void) {
    begin(s);
    OK(cudaEventRecord(e, s));
    CODE(cudaErrorStreamCaptureImplicit, cudaStreamWaitEvent(NULL, e, 0));
    is_spoilt(s);
}

/* ---- capture: unsafe calls ---- */

static void *to_free, *to_free_host;
static cudaGraphExec_t exec_to_destroy;
static char to_register[8192];

static int call_malloc(void) {
    void *p;
    cudaError_t code = cudaMalloc(&p, 16);
    if (!code)
        OK(cudaFree(p));
    return (int)code;
}

static int call_free(void) {
    return (int)cudaFree(to_free);
}

static int call_host_alloc(void) {
    void *p;
    cudaError_t code = cudaHostAlloc(&p, 16, 0);
    if (!code)
        OK(cudaFreeHost(p));
    return (int)code;
}

static int call_malloc_host(void) {
    void *p;
    cudaError_t code = cudaMallocHost(&p, 16);
    if (!code)
        OK(cudaFreeHost(p));
    return (int)code;
}

static int call_free_host(void) {
    return (int)cudaFreeHost(to_free_host);
}

static int call_register(void) {
    cudaError_t code = cudaHostRegister(to_register, 4096, 0);
    if (!code)
        OK(cudaHostUnregister(to_register));
    return (int)code;
}

static int call_copy(void) {
    return (int)cudaMemcpy(h, d, 4, cudaMemcpyDefault);
}

static int call_set(void) {
    return (int)cudaMemset(d, 0, 4);
}

static int call_peer(void) {
    cudaError_t code = cudaDeviceEnablePeerAccess(1, 0);
    if (!code)
        OK(cudaDeviceDisablePeerAccess(1));
    return (int)code;
}

static CUresult (*load_data)(CUmodule *, const void *);
static CUresult (*unload)(CUmodule);

static int call_load(void) {
    CUmodule m = NULL;
    OK(cudaFree(NULL));
    CUresult code = load_data(&m, ptx);
    if (!code)
        OK(unload(m));
    return (int)code;
}

/* Of objects that have nothing to do with the capture. */
static cudaEvent_t timed;

static int call_query_stream(void) {
    return (int)cudaStreamQuery(t);
}

static int call_query_event(void) {
    return (int)cudaEventQuery(f);
}

static int call_elapsed(void) {
    float ms;
    return (int)cudaEventElapsedTime(&ms, timed, timed);
}

static CUresult (*query_stream)(CUstream);
static CUresult (*query_event)(CUevent);

static int call_driver_query_stream(void) {
    OK(cudaFree(NULL));
    return (int)query_stream(t);
}

static int call_driver_query_event(void) {
    OK(cudaFree(NULL));
    return (int)query_event(f);
}

static int call_synchronize_stream(void) {
    return (int)cudaStreamSynchronize(t);
}

static int call_synchronize_event(void) {
    return (int)cudaEventSynchronize(f);
}

static int call_destroy_exec(void) {
    return (int)cudaGraphExecDestroy(exec_to_destroy);
}

static int (*const unsafe_calls[])(void) = { call_malloc,
                                             call_host_alloc,
                                             call_malloc_host,
                                             call_register,
                                             call_copy,
                                             call_set,
                                             call_peer,
                                             call_load,
                                             call_free,
                                             call_free_host,
                                             call_query_stream,
                                             call_query_event,
                                             call_elapsed,
                                             call_driver_query_stream,
                                             call_driver_query_event,
                                             call_synchronize_stream,
                                             call_synchronize_event,
                                             call_destroy_exec };

enum { UNSAFE = sizeof unsafe_calls / sizeof *unsafe_calls };

static int mode_of_call, call_to_make;

static int call_in_mode(void) {
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)mode_of_call;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    int code = unsafe_calls[call_to_make]();
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    SAME(mode, mode_of_call);
    return code;
}

static void prepare_frees(void) {
    cudaGraph_t graph;
    if (!to_free)
        to_free = device_memory(16);
    if (!to_free_host)
        OK(cudaHostAlloc(&to_free_host, 16, 0));
    if (unsafe_calls[call_to_make] == call_destroy_exec) {
        OK(cudaGraphCreate(&graph, 0));
        exec_to_destroy = executable(graph);
        drop(graph);
    }
}

/* "A thread's mode is one of the following": the table of cudaThreadExchangeStreamCaptureMode.
   PyTorch's pull requests 104487 and 104555 found that queries are of these calls. An H200 with
   driver 580 forbids waits and the destruction of executables too (docs/gpu). */
static void test_unsafe_calls_are_refused_as_the_two_modes_say(void) {
    find("cuModuleLoadData", &load_data, 12000);
    find("cuModuleUnload", &unload, 12000);
    find("cuStreamQuery", &query_stream, 12000);
    find("cuEventQuery", &query_event, 12000);
    OK(cudaEventCreate(&timed));
    OK(cudaEventRecord(timed, t));
    OK(cudaEventSynchronize(timed));
    for (call_to_make = 0; call_to_make < UNSAFE; call_to_make++)
        for (int capture_mode = GLOBAL; capture_mode <= RELAXED; capture_mode++)
            for (mode_of_call = GLOBAL; mode_of_call <= RELAXED; mode_of_call++)
                for (int other = 0; other < 2; other++) {
                    prepare_frees();
                    OK(cudaStreamBeginCapture(s, (enum cudaStreamCaptureMode)capture_mode));
                    int refused = mode_of_call == RELAXED ? 0
                                  : other ? mode_of_call == GLOBAL && capture_mode == GLOBAL
                                          : capture_mode != RELAXED;
                    int code = other ? in_another_thread(call_in_mode) : call_in_mode();
                    SAME(code, refused ? cudaErrorStreamCaptureUnsupported : 0);
                    SAME(status(s), refused ? INVALIDATED : ACTIVE);
                    if (refused)
                        end_with(cudaErrorStreamCaptureInvalidated, s);
                    else
                        drop(end(s));
                    /* what was refused has freed nothing */
                    if (unsafe_calls[call_to_make] == call_free && !refused)
                        to_free = NULL;
                    if (unsafe_calls[call_to_make] == call_free_host && !refused)
                        to_free_host = NULL;
                }
    if (to_free)
        OK(cudaFree(to_free));
    if (to_free_host)
        OK(cudaFreeHost(to_free_host));
    OK(cudaEventDestroy(timed));
}

static void test_only_captures_that_forbid_a_call_are_invalidated_by_it(void) {
    void *p;
    begin(s);
    OK(cudaStreamBeginCapture(t, LOCAL));
    CODE(cudaErrorStreamCaptureUnsupported, cudaMalloc(&p, 16));
    is_spoilt(t);
    SAME(status(s), ACTIVE);
    drop(end(s));
}

static void test_safe_calls_stay_allowed(void) {
    size_t unused, total;
    struct cudaPointerAttributes a;
    OK(cudaEventRecord(f, t));
    OK(cudaEventSynchronize(f));
    OK(cudaStreamBeginCapture(s, GLOBAL));
    OK(cudaMemGetInfo(&unused, &total));
    OK(cudaPointerGetAttributes(&a, d));
    OK(put_fold(d, 1, t));
    OK(cudaFree(NULL));
    cudaStream_t made = new_stream(cudaStreamDefault);
    cudaEvent_t event = new_event();
    OK(cudaEventRecord(event, t));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(made));
    SAME(status(s), ACTIVE);
    drop(end(s));
    OK(cudaStreamSynchronize(t));
}

static int synchronize_device(void) {
    return (int)cudaDeviceSynchronize();
}

static void test_a_capturing_device_is_not_synchronized_in_any_mode(void) {
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        OK(cudaStreamBeginCapture(s, (enum cudaStreamCaptureMode)mode));
        CODE(cudaErrorStreamCaptureUnsupported,
             mode == GLOBAL ? synchronize_device() : in_another_thread(synchronize_device));
        is_spoilt(s);
    }
    begin(s);
    OK(cudaSetDevice(1));
    OK(cudaDeviceSynchronize());
    SAME(status(s), ACTIVE);
    OK(cudaSetDevice(0));
    drop(end(s));
}

static void test_a_threads_mode_is_swapped(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed,
                               wrong = (enum cudaStreamCaptureMode)5;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    SAME(mode, GLOBAL);
    mode = cudaStreamCaptureModeThreadLocal;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    SAME(mode, RELAXED);
    CODE(cudaErrorInvalidValue, cudaThreadExchangeStreamCaptureMode(&wrong));
    CODE(cudaErrorInvalidValue, cudaThreadExchangeStreamCaptureMode(NULL));
}

static void test_a_stream_may_be_destroyed_while_it_captures(void) {
    cudaStream_t origin = new_stream(cudaStreamNonBlocking),
                 fork_stream = new_stream(cudaStreamNonBlocking);
    begin(origin);
    OK(put_fold(d, 1, origin));
    fork_to(fork_stream, origin);
    OK(put_fold(d, 2, fork_stream)); /* is never joined */
    fork_to(t, origin);
    OK(cudaStreamDestroy(fork_stream));
    SAME(status(origin), ACTIVE);
    SAME(status(t), ACTIVE);
    OK(cudaStreamDestroy(origin));
    SAME(status(t), NONE);
    OK(cudaDeviceSynchronize());
    CODE(cudaErrorInvalidValue, cudaEventQuery(e));

    begin(s);
    fork_stream = new_stream(cudaStreamNonBlocking);
    fork_to(fork_stream, s);
    OK(put_fold(d, 2, fork_stream));
    OK(cudaStreamDestroy(fork_stream));
    end_with(cudaErrorStreamCaptureUnjoined, s);
    SAME(status(s), NONE);
}

/* ---- capture: looking at it, changing it ---- */

static void test_a_capture_has_an_id_a_graph_and_dependencies(void) {
    enum cudaStreamCaptureStatus found;
    unsigned long long id[3] = { 0, 0, 0 };
    cudaGraph_t g = NULL;
    const cudaGraphNode_t *deps = NULL;
    size_t n = 9;
    OK(cudaStreamGetCaptureInfo(s, &found, NULL, NULL, NULL, NO_DATA NULL));
    SAME(found, NONE);
    CODE(cudaErrorInvalidValue, cudaStreamGetCaptureInfo(s, NULL, NULL, NULL, NULL, NO_DATA NULL));
    begin(s);
    begin(t);
    OK(cudaStreamGetCaptureInfo(s, &found, &id[0], &g, &deps, NO_DATA & n));
    SAME(found, ACTIVE);
    SAME(n, 0);
    OK(put_fold(d, 1, s));
    OK(cudaStreamGetCaptureInfo(s, &found, &id[1], NULL, &deps, NO_DATA & n));
    SAME(n, 1);
    SAME(type_of(deps[0]), cudaGraphNodeTypeKernel);
    OK(cudaStreamGetCaptureInfo(t, &found, &id[2], NULL, NULL, NO_DATA NULL));
    TRUE(id[0] == id[1] && id[0] != id[2]);
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *data = NULL;
    CODE(cudaErrorInvalidValue, cudaStreamGetCaptureInfo(s, &found, NULL, NULL, NULL, &data, NULL));
    OK(cudaStreamGetCaptureInfo(s, &found, NULL, NULL, &deps, &data, &n));
    SAME(data[0].type, 0);
#endif
    TRUE(end(s) == g);
    drop(g);
    drop(end(t));
}

static void test_a_captures_dependencies_can_be_changed(void) {
    cudaGraphNode_t a, b, nodes[3];
    enum cudaStreamCaptureStatus found;
    cudaGraph_t g = NULL, other = new_graph();
    cudaGraphNode_t foreign = empty_node(other, NULL, 0);
    size_t n = 0;
    CODE(cudaErrorIllegalState, cudaStreamUpdateCaptureDependencies(s, NULL, NO_DATA 0, 0));
    begin(s);
    OK(put_fold(d, 1, s));
    a = last_node(s);
    OK(cudaStreamGetCaptureInfo(s, &found, NULL, &g, NULL, NO_DATA NULL));
    b = empty_node(g, NULL, 0); /* by hand, into the graph that is captured */
    CODE(cudaErrorInvalidValue, cudaStreamUpdateCaptureDependencies(
                                    s, &foreign, NO_DATA 1, cudaStreamAddCaptureDependencies));
    CODE(cudaErrorInvalidValue, cudaStreamUpdateCaptureDependencies(s, &b, NO_DATA 1, 2));
    OK(cudaStreamUpdateCaptureDependencies(s, &b, NO_DATA 1, cudaStreamAddCaptureDependencies));
    OK(put_fold(d, 2, s));
    n = 3;
    standin_edge_data(0);
    OK(cudaGraphNodeGetDependencies(last_node(s), nodes, NO_DATA & n));
    SAME(n, 2);
    TRUE(nodes[0] == a && nodes[1] == b && !nodes[2]);
    OK(cudaStreamUpdateCaptureDependencies(s, &b, NO_DATA 1, cudaStreamSetCaptureDependencies));
    TRUE(last_node(s) == b);
    SAME(node_count(end(s)), 3);
    drop(g);
    drop(other);
}

static void test_what_is_taken_out_of_the_dependencies_needs_no_join(void) {
    begin(s);
    OK(put_fold(d, 1, s));
    fork_to(t, s);
    OK(put_fold(d + 1, 1, t));
    OK(cudaStreamUpdateCaptureDependencies(t, NULL, NO_DATA 0, cudaStreamSetCaptureDependencies));
    drop(end(s));

    begin(s);
    OK(put_fold(d, 1, s));
    fork_to(t, s);
    OK(put_fold(d + 1, 1, t));
    join_from(s, t);
    OK(cudaStreamUpdateCaptureDependencies(s, NULL, NO_DATA 0, cudaStreamSetCaptureDependencies));
    drop(end(s));
}

#if CUDART_VERSION >= 12030
static void test_a_capture_continues_a_graph(void) {
    cudaGraph_t g = new_graph(), other = new_graph();
    cudaGraphNode_t first = fold_node(g, d, 1, NULL, 0), foreign = empty_node(other, NULL, 0);
    CODE(cudaErrorInvalidValue, cudaStreamBeginCaptureToGraph(s, g, &foreign, NULL, 1, RELAXED));
    SAME(status(s), NONE);
    OK(cudaStreamBeginCaptureToGraph(s, g, &first, NULL, 1, RELAXED));
    OK(put_fold(d, 2, s));
    TRUE(end(s) == g);
    OK(cudaStreamBeginCaptureToGraph(s, g, NULL, NULL, 0, RELAXED));
    CODE(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(s));
    is_spoilt(s); /* the graph stays the user's */
    SAME(node_count(g), 2);
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 1, 2 }));
    OK(cudaGraphExecDestroy(x));
    drop(g);
    drop(other);
}
#endif

static void test_a_graph_that_is_captured_into_cannot_be_destroyed(void) {
    enum cudaStreamCaptureStatus found;
    cudaGraph_t g = NULL;
    begin(s);
    OK(cudaStreamGetCaptureInfo(s, &found, NULL, &g, NULL, NO_DATA NULL));
    cudaGraphDestroy(g);
}

/* ---- graphs: nodes and edges ---- */

static void test_a_graph_keeps_the_order_of_its_edges(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t a, b, c, join;
    a = fold_node(g, d, 1, NULL, 0);
    c = fold_node(g, d, 4, NULL, 0); /* its place comes with the edges below */
    b = fold_node(g, d, 2, &a, 1);
    join = empty_node(g, (cudaGraphNode_t[]){ a, b }, 2);
    OK(cudaGraphAddDependencies(g, &join, &c, NO_DATA 1));
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d), folded(3, (unsigned[]){ 1, 2, 4 }));
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_parameters_are_copied_when_a_node_is_made(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n = NULL;
    unsigned *p = d, number = 6;
    void *params[] = { &p, &number };
    struct cudaKernelNodeParams k = fold_params(params), seen;
    OK(cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    p = NULL, number = 7, params[0] = params[1] = NULL;
    OK(cudaGraphKernelNodeGetParams(n, &seen));
    TRUE(seen.func == &fold);
    SAME(*(unsigned *)seen.kernelParams[1], 6);
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d), 6);
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_a_node_is_refused_when_something_is_wrong(void) {
    cudaGraph_t g = new_graph(), other = new_graph();
    cudaGraphNode_t n = NULL, a = empty_node(g, NULL, 0), foreign = empty_node(other, NULL, 0);
    void *p = d;
    unsigned number = 1;
    void *params[] = { &p, &number };
    struct cudaMemsetParams fill = { d, 0, 1, 4, 4, 1 };
    struct cudaHostNodeParams host = { NULL, NULL };
    CODE(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&n, g, (cudaGraphNode_t[]){ a, a }, 2));
    CODE(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&n, g, &foreign, 1));
    CODE(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&n, g, NULL, 1));
    CODE(cudaErrorInvalidValue, cudaGraphAddEmptyNode(NULL, g, NULL, 0));
    CODE(cudaErrorInvalidValue, cudaGraphCreate(&g, 1));
    struct cudaKernelNodeParams k = fold_params(NULL);
    CODE(cudaErrorInvalidValue, cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    k = fold_params(params), k.extra = params;
    CODE(cudaErrorInvalidValue, cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    k = fold_params(params), k.blockDim.x = 0;
    CODE(cudaErrorInvalidValue, cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    k = fold_params(params), k.func = &k;
    CODE(cudaErrorInvalidDeviceFunction, cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    fill.elementSize = 3;
    CODE(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&n, g, NULL, 0, &fill));
    fill.elementSize = 4, fill.width = 100;
    CODE(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&n, g, NULL, 0, &fill));
    fill.width = 4, fill.dst = h;
    CODE(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&n, g, NULL, 0, &fill));
    CODE(cudaErrorInvalidValue, cudaGraphAddHostNode(&n, g, NULL, 0, &host));
    CODE(cudaErrorInvalidValue,
         cudaGraphAddMemcpyNode1D(&n, g, NULL, 0, d, h, 4, cudaMemcpyDeviceToHost));
    CODE(cudaErrorInvalidValue,
         cudaGraphAddMemcpyNode1D(&n, g, NULL, 0, d, h, 0, cudaMemcpyDefault));
    SAME(node_count(g), 1);
    drop(g);
    drop(other);
}

static void test_edges_are_added_and_removed_once(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t a = empty_node(g, NULL, 0), b = empty_node(g, &a, 1),
                    c = empty_node(g, NULL, 0), from[4], to[4], list[2];
    size_t n = 4;
    CODE(cudaErrorInvalidValue, cudaGraphAddDependencies(g, &a, &b, NO_DATA 1));
    CODE(cudaErrorInvalidValue, cudaGraphAddDependencies(g, &a, &a, NO_DATA 1));
    CODE(cudaErrorInvalidValue, cudaGraphAddDependencies(g, (cudaGraphNode_t[]){ b, b },
                                                         (cudaGraphNode_t[]){ c, c }, NO_DATA 2));
    OK(cudaGraphAddDependencies(g, &b, &c, NO_DATA 1));
    OK(cudaGraphGetEdges(g, from, to, NO_DATA & n));
    SAME(n, 2);
    TRUE(from[0] == a && to[0] == b && from[1] == b && to[1] == c && !from[2] && !to[3]);
    n = 2;
    OK(cudaGraphGetRootNodes(g, list, &n));
    SAME(n, 1);
    TRUE(list[0] == a && !list[1]);
    OK(cudaGraphNodeGetDependentNodes(a, NULL, NO_DATA & n));
    SAME(n, 1);
    OK(cudaGraphRemoveDependencies(g, &a, &b, NO_DATA 1));
    CODE(cudaErrorInvalidValue, cudaGraphRemoveDependencies(g, &a, &b, NO_DATA 1));
    OK(cudaGraphDestroyNode(b));
    OK(cudaGraphGetRootNodes(g, NULL, &n));
    SAME(n, 2);
    SAME(node_count(g), 2);
    n = 1;
    OK(cudaGraphGetNodes(g, list, &n)); /* no more than there is room for */
    SAME(n, 1);
    TRUE(list[0] == a);
    drop(g);
}

static void test_what_is_left_of_a_graph_without_a_node_keeps_its_edges(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t gone = empty_node(g, NULL, 0), a = fold_node(g, d, 1, NULL, 0),
                    b = fold_node(g, d, 2, &a, 1);
    fold_node(g, d, 3, &b, 1);
    OK(cudaGraphDestroyNode(gone));
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d), folded(3, (unsigned[]){ 1, 2, 3 }));
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_a_circle_has_no_executable(void) {
    cudaGraph_t g = new_graph(), outer = new_graph();
    cudaGraphNode_t a = empty_node(g, NULL, 0), b = empty_node(g, &a, 1), child;
    cudaGraphExec_t x = NULL;
    OK(cudaGraphAddDependencies(g, &b, &a, NO_DATA 1));
    CODE(cudaErrorInvalidValue, cudaGraphInstantiateWithFlags(&x, g, 0));
    OK(cudaGraphAddChildGraphNode(&child, outer, NULL, 0, g));
    CODE(cudaErrorInvalidValue, cudaGraphInstantiateWithFlags(&x, outer, 0));
    drop(g);
    drop(outer);
}

static void test_a_clone_is_a_graph_of_its_own(void) {
    cudaGraph_t g = new_graph(), clone, second;
    cudaGraphNode_t a = fold_node(g, d, 1, NULL, 0), b = fold_node(g, d, 2, &a, 1), found = NULL,
                    late;
    OK(cudaGraphClone(&clone, g));
    late = empty_node(g, &b, 1);
    OK(cudaGraphNodeFindInClone(&found, b, clone));
    TRUE(found && found != b);
    CODE(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, late, clone));
    CODE(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, found, clone));
    OK(cudaGraphClone(&second, clone));
    CODE(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, a, second));
    drop(g);
    SAME(node_count(clone), 2);
    cudaGraphExec_t x = executable(clone);
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 1, 2 }));
    OK(cudaGraphExecDestroy(x));
    drop(clone);
    drop(second);
}

static void test_a_child_graph_is_a_copy_that_runs_as_one_node(void) {
    cudaGraph_t inner = new_graph(), outer = new_graph(), embedded = NULL;
    cudaGraphNode_t a, b, child, after, kept, found = NULL;
    a = fold_node(inner, d, 2, NULL, 0);
    kept = fold_node(inner, d, 3, &a, 1);
    b = fold_node(outer, d, 1, NULL, 0);
    OK(cudaGraphAddChildGraphNode(&child, outer, &b, 1, inner));
    after = fold_node(outer, d, 5, &child, 1);
    OK(cudaGraphDestroyNode(a)); /* of the original */
    OK(cudaGraphChildGraphNodeGetGraph(child, &embedded));
    SAME(node_count(embedded), 2);
    cudaGraphNode_t list[2];
    size_t n = 2;
    OK(cudaGraphGetNodes(embedded, list, &n));
    /* not made by cudaGraphClone */
    CODE(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, kept, embedded));
    drop(inner);
    /* "Changes to the graph will be reflected in the node" */
    fold_node(embedded, d, 4, &list[1], 1);
    CODE(cudaErrorInvalidValue, cudaGraphChildGraphNodeGetGraph(after, &embedded));
    cudaGraphExec_t x = executable(outer);
    run(x);
    SAME(value_of(d), folded(5, (unsigned[]){ 1, 2, 3, 4, 5 }));
    OK(cudaGraphExecDestroy(x));
    drop(outer);
}

static void test_each_kind_of_node_tells_its_parameters(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t copy, fill, host, record, wait;
    struct cudaMemcpy3DParms c = { .srcPtr = { d, 16, 16, 4 },
                                   .dstPtr = { h, 32, 32, 4 },
                                   .srcPos = { 4, 1, 0 },
                                   .extent = { 8, 2, 1 },
                                   .kind = cudaMemcpyDeviceToHost };
    struct cudaMemsetParams m = { d, 16, 9, 4, 2, 3 }, seen_fill;
    struct cudaHostNodeParams call = { count_call, &calls }, seen_call;
    struct cudaMemcpy3DParms seen;
    cudaEvent_t event = NULL;
    OK(cudaGraphAddMemsetNode(&fill, g, NULL, 0, &m));
    OK(cudaGraphAddMemcpyNode(&copy, g, &fill, 1, &c));
    OK(cudaGraphAddHostNode(&host, g, &copy, 1, &call));
    OK(cudaGraphAddEventRecordNode(&record, g, NULL, 0, e));
    OK(cudaGraphAddEventWaitNode(&wait, g, NULL, 0, f));
    OK(cudaGraphMemcpyNodeGetParams(copy, &seen));
    TRUE((char *)seen.srcPtr.ptr == (char *)d + 20 && seen.srcPtr.pitch == 16 &&
         seen.extent.height == 2);
    OK(cudaGraphMemsetNodeGetParams(fill, &seen_fill));
    TRUE(seen_fill.dst == d && seen_fill.value == 9 && seen_fill.elementSize == 4);
    OK(cudaGraphHostNodeGetParams(host, &seen_call));
    TRUE(seen_call.fn == count_call && seen_call.userData == &calls);
    OK(cudaGraphEventRecordNodeGetEvent(record, &event));
    TRUE(event == e);
    OK(cudaGraphEventWaitNodeGetEvent(wait, &event));
    TRUE(event == f);
    CODE(cudaErrorInvalidValue, cudaGraphEventWaitNodeGetEvent(record, &event));
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(h[0], 9); /* row 1, from the second number on */
    SAME(h[1], 0);
    SAME(h[8], 9);
    SAME(atomic_load(&calls), 1);
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_a_kernel_node_has_a_priority(void) {
    cudaGraphNode_t n;
    cudaKernelNodeAttrValue value;
    cudaStream_t urgent = NULL;
    OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -3));
    begin(urgent);
    OK(put_fold(d, 1, urgent));
    n = last_node(urgent);
    cudaGraph_t g = end(urgent);
    OK(cudaGraphKernelNodeGetAttribute(n, cudaLaunchAttributePriority, &value));
    SAME(value.priority, -3);
    value.priority = -1;
    OK(cudaGraphKernelNodeSetAttribute(n, cudaLaunchAttributePriority, &value));
    value.priority = 7;
    unsigned number = 1;
    void *p = d, *params[] = { &p, &number };
    struct cudaKernelNodeParams k = fold_params(params);
    OK(cudaGraphKernelNodeSetParams(n, &k)); /* has no priority, so changes none */
    OK(cudaGraphKernelNodeGetAttribute(n, cudaLaunchAttributePriority, &value));
    SAME(value.priority, -1);
    cudaGraphExec_t x = NULL;
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphInstantiateWithFlags(&x, g, cudaGraphInstantiateFlagUseNodePriority));
    OK(cudaGraphExecKernelNodeSetParams(x, n, &k));
    OK(cudaGraphExecUpdate(x, g, &info)); /* the priority is the same */
    OK(cudaGraphExecDestroy(x));
    drop(g);
    OK(cudaStreamDestroy(urgent));
}

static void test_a_graph_is_written_as_text(void) {
    char plain[4000], verbose[4000], path[] = "/tmp/standin-dot-XXXXXX";
    cudaGraph_t g = new_graph();
    cudaGraphNode_t a = fold_node(g, d, 1, NULL, 0);
    empty_node(g, &a, 1);
    TRUE(close(mkstemp(path)) == 0);
    for (int i = 0; i < 2; i++) {
        OK(cudaGraphDebugDotPrint(g, path, i ? cudaGraphDebugDotFlagsVerbose : 0));
        FILE *file = fopen(path, "r");
        char *text = i ? verbose : plain;
        text[fread(text, 1, sizeof plain - 1, file)] = 0;
        fclose(file);
        TRUE(strstr(text, "digraph") && strstr(text, "n0 -> n1"));
    }
    TRUE(strcmp(plain, verbose));
    unlink(path);
    CODE(cudaErrorOperatingSystem, cudaGraphDebugDotPrint(g, "/nowhere/dot", 0));
    CODE(cudaErrorInvalidValue, cudaGraphDebugDotPrint(g, NULL, 0));
    drop(g);
}

/* ---- launches ---- */

/* In random graphs no node runs before those that it depends on, and each runs once. */
enum { NODES = 40 };

static atomic_int turn, came[NODES];

static void CUDART_CB note_turn(void *of) {
    came[(atomic_int *)of - came] += 1000 + atomic_fetch_add(&turn, 1);
}

static void test_random_graphs_run_in_order_and_every_node_once(void) {
    unsigned seed = 12345;
    for (int round = 0; round < 30; round++) {
        cudaGraph_t g = new_graph();
        cudaGraphNode_t nodes[NODES];
        int before[NODES][3], count[NODES];
        for (int i = 0; i < NODES; i++) {
            struct cudaHostNodeParams p = { note_turn, &came[i] };
            cudaGraphNode_t deps[3];
            count[i] = 0;
            for (int j = 0; j < 3 && i; j++) {
                int on = (int)((seed = seed * 1103515245u + 12345u) >> 16) % i, known = 0;
                for (int k = 0; k < count[i]; k++)
                    known |= before[i][k] == on;
                if (!known && seed & 0x10000)
                    deps[count[i]] = nodes[on], before[i][count[i]++] = on;
            }
            OK(cudaSetDevice(i % 3)); /* there is a thread for host functions on each device */
            OK(cudaGraphAddHostNode(&nodes[i], g, deps, (size_t)count[i], &p));
            atomic_store(&came[i], 0);
        }
        OK(cudaSetDevice(0));
        cudaGraphExec_t x = executable(g);
        run(x);
        for (int i = 0; i < NODES; i++) {
            TRUE(came[i] >= 1000 && came[i] < 2000 + 1000000);
            for (int j = 0; j < count[i]; j++)
                TRUE(came[before[i][j]] < came[i]);
        }
        SAME(atomic_load(&turn), (round + 1) * NODES);
        OK(cudaGraphExecDestroy(x));
        drop(g);
    }
}

static void test_branches_run_side_by_side(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n;
    void *a = h, *b = h + 1, *first[] = { &a, &b }, *second[] = { &b, &a };
    struct cudaKernelNodeParams k = {
        (void *)(uintptr_t)&meet, { 1, 1, 1 }, { 1, 1, 1 }, 0, first, NULL
    };
    OK(cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    k.kernelParams = second;
    OK(cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    cudaGraphExec_t x = executable(g);
    run(x); /* each waits for the other */
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_a_launch_is_ordered_among_the_work_of_its_stream(void) {
    begin(t);
    OK(put_fold(d, 2, t));
    cudaGraph_t g = end(t);
    cudaGraphExec_t x = executable(g);
    standin_hold(1);
    OK(put_fold(d, 1, s));
    OK(cudaGraphLaunch(x, s));
    OK(put_fold(d, 3, s));
    OK(cudaEventRecord(e, s));
    CODE(cudaErrorNotReady, cudaStreamQuery(s));
    standin_hold(0);
    OK(cudaEventSynchronize(e));
    SAME(value_of(d), folded(3, (unsigned[]){ 1, 2, 3 }));
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_a_legacy_stream_launch_alternates_with_blocking_streams(void) {
    cudaStream_t blocking = new_stream(cudaStreamDefault);
    begin(s);
    OK(put_fold(d, 2, s));
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g);
    standin_hold(1);
    OK(put_fold(d, 1, blocking));
    OK(cudaGraphLaunch(x, NULL));
    OK(put_fold(d, 3, blocking));
    standin_hold(0);
    OK(cudaStreamSynchronize(blocking));
    SAME(value_of(d), folded(3, (unsigned[]){ 1, 2, 3 }));
    OK(cudaGraphExecDestroy(x));
    drop(g);
    OK(cudaStreamDestroy(blocking));
}

static void test_launches_of_one_executable_follow_each_other(void) {
    begin(s);
    OK(cudaLaunchHostFunc(s, wait_for_go, NULL));
    OK(put_fold(d, 1, s));
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g), y = executable(g);
    OK(cudaGraphLaunch(x, s));
    OK(cudaGraphLaunch(x, t)); /* in another stream, behind the first all the same */
    OK(cudaGraphUpload(x, t));
    pause_ms(20);
    CODE(cudaErrorNotReady, cudaStreamQuery(t));
    atomic_store(&go, 1);
    OK(cudaStreamSynchronize(t));
    OK(cudaStreamQuery(s));
    SAME(value_of(d), folded(2, (unsigned[]){ 1, 1 }));
    OK(cudaGraphExecDestroy(x));
    OK(cudaGraphExecDestroy(y));
    drop(g);
}

/* One that is changed between two launches shows that the second waits for the whole of the
   first. */
static void test_a_launch_with_other_work_waits_for_the_one_before_it(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n;
    void *a = h, *b = h + 1, *c = h + 2, *first[] = { &a, &b }, *second[] = { &a, &c };
    struct cudaKernelNodeParams k = {
        (void *)(uintptr_t)&meet, { 1, 1, 1 }, { 1, 1, 1 }, 0, first, NULL
    };
    OK(cudaGraphAddKernelNode(&n, g, NULL, 0, &k));
    cudaGraphExec_t x = executable(g);
    OK(cudaGraphLaunch(x, s));
    k.kernelParams = second;
    h[2] = 1;
    OK(cudaGraphExecKernelNodeSetParams(x, n, &k));
    OK(cudaGraphLaunch(x, t));
    pause_ms(20);
    CODE(cudaErrorNotReady, cudaStreamQuery(t));
    __atomic_store_n(&h[1], 1u, __ATOMIC_RELEASE); /* for the kernel */
    OK(cudaStreamSynchronize(t));
    OK(cudaStreamQuery(s));
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_host_functions_run_at_every_launch(void) {
    begin(s);
    OK(cudaLaunchHostFunc(s, count_call, NULL));
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g);
    SAME(atomic_load(&calls), 0);
    for (int i = 1; i < 4; i++) {
        run(x);
        SAME(atomic_load(&calls), i);
    }
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_event_nodes_act_as_of_the_launch(void) {
    cudaGraph_t records = new_graph(), waits = new_graph();
    cudaGraphNode_t n;
    n = fold_node(records, d, 1, NULL, 0);
    OK(cudaGraphAddEventRecordNode(&n, records, &n, 1, e));
    OK(cudaGraphAddEventWaitNode(&n, waits, NULL, 0, e));
    fold_node(waits, d, 2, &n, 1);
    cudaGraphExec_t x = executable(records), y = executable(waits);
    OK(cudaEventQuery(e));
    OK(cudaLaunchHostFunc(s, wait_for_go, NULL));
    OK(cudaGraphLaunch(x, s));
    CODE(cudaErrorNotReady, cudaEventQuery(e));
    OK(cudaGraphLaunch(y, t));
    pause_ms(20);
    CODE(cudaErrorNotReady, cudaStreamQuery(t));
    atomic_store(&go, 1);
    OK(cudaStreamSynchronize(t));
    OK(cudaEventQuery(e));
    SAME(value_of(d), folded(2, (unsigned[]){ 1, 2 }));
    begin(s);
    OK(cudaEventRecord(e, s));
    CODE(cudaErrorCapturedEvent, cudaGraphLaunch(y, t));
    drop(end(s));
    OK(cudaGraphExecDestroy(x));
    OK(cudaGraphExecDestroy(y));
    drop(records);
    drop(waits);
}

static void test_an_executable_outlives_its_graph_a_launch_outlives_both(void) {
    begin(s);
    OK(put_fold(d, 3, s));
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g);
    drop(g);
    standin_hold(1);
    OK(cudaGraphLaunch(x, s));
    OK(cudaGraphLaunch(x, t));
    OK(cudaGraphExecDestroy(x));
    standin_hold(0);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamSynchronize(t));
    SAME(value_of(d), folded(2, (unsigned[]){ 3, 3 }));
}

/* H200, driver 580: docs/gpu, P27. */
static void test_a_launch_in_a_capturing_stream_is_refused(void) {
    cudaGraph_t inner;
    begin(s);
    OK(put_fold(d, 2, s));
    inner = end(s);
    cudaGraphExec_t x = executable(inner);
    begin(t);
    CODE(cudaErrorStreamCaptureUnsupported, cudaGraphLaunch(x, t));
    is_spoilt(t);
    CODE(cudaErrorStreamCaptureUnsupported, (begin(s), cudaGraphUpload(x, s)));
    is_spoilt(s);
    OK(cudaGraphExecDestroy(x));
    drop(inner);
    SAME(value_of(d), 0);
}

static void test_a_failing_kernel_of_a_graph_poisons_its_device(void) {
    begin(s);
    OK(cudaLaunchKernel(&stop, (dim3){ 1, 1, 1 }, (dim3){ 1, 1, 1 }, NULL, 0, s));
    OK(cudaLaunchHostFunc(s, count_call, NULL));
    cudaGraphExec_t x = executable(end(s));
    OK(cudaGraphLaunch(x, s));
    CODE(cudaErrorLaunchFailure, cudaStreamSynchronize(s));
    CODE(cudaErrorLaunchFailure, cudaGraphLaunch(x, s));
    SAME(atomic_load(&calls), 0);
    OK(cudaSetDevice(1));
    cudaStream_t other = new_stream(cudaStreamNonBlocking);
    CODE(cudaErrorLaunchFailure, cudaGraphLaunch(x, other)); /* its nodes are of the other device */
    OK(cudaStreamSynchronize(other));
    exit(0);
}

static void test_an_empty_graph_runs(void) {
    cudaGraph_t g = new_graph();
    cudaGraphExec_t x = executable(g);
    run(x);
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

static void test_flags_of_an_executable_are_checked(void) {
    cudaGraph_t g = new_graph();
    cudaGraphExec_t x = NULL;
    CODE(cudaErrorInvalidValue,
         cudaGraphInstantiateWithFlags(&x, g, cudaGraphInstantiateFlagUpload));
    /* it is empty */
    CODE(cudaErrorInvalidValue,
         cudaGraphInstantiateWithFlags(&x, g, cudaGraphInstantiateFlagDeviceLaunch));
    fold_node(g, d, 1, NULL, 0);
    CODE(cudaErrorInvalidValue,
         cudaGraphInstantiateWithFlags(&x, g,
                                       cudaGraphInstantiateFlagDeviceLaunch |
                                           cudaGraphInstantiateFlagAutoFreeOnLaunch));
    OK(cudaGraphInstantiateWithFlags(&x, g, cudaGraphInstantiateFlagDeviceLaunch));
    OK(cudaGraphExecDestroy(x));
    empty_node(g, NULL, 0);
    CODE(cudaErrorInvalidValue,
         cudaGraphInstantiateWithFlags(&x, g, cudaGraphInstantiateFlagDeviceLaunch));
    OK(cudaGraphInstantiateWithFlags(
        &x, g, cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority));
    OK(cudaGraphExecDestroy(x));
    CODE(cudaErrorInvalidValue, cudaGraphInstantiateWithFlags(NULL, g, 0));
    drop(g);
}

/* ---- user objects ---- */

static void test_a_user_object_goes_with_its_last_owner(void) {
    cudaGraph_t g = new_graph(), clone, outer = new_graph();
    cudaGraphNode_t child;
    cudaUserObject_t o = new_object();
    begin(s);
    OK(cudaLaunchHostFunc(s, wait_for_go, NULL));
    drop(g);
    g = end(s);
    OK(cudaGraphRetainUserObject(g, o, 1, cudaGraphUserObjectMove));
    OK(cudaGraphClone(&clone, g));
    OK(cudaGraphAddChildGraphNode(&child, outer, NULL, 0, g));
    cudaGraphExec_t x = executable(g);
    drop(g);
    drop(clone);
    drop(outer);
    OK(cudaGraphLaunch(x, s));
    OK(cudaGraphExecDestroy(x));
    pause_ms(20);
    SAME(atomic_load(&calls), 0);
    SAME(standin_live(NULL, 0), 7); /* the world and the object */
    atomic_store(&go, 1);
    TRUE(calls_are(1));
}

static void test_references_to_a_user_object_are_counted(void) {
    cudaGraph_t g = new_graph();
    cudaUserObject_t o = new_object();
    CODE(cudaErrorInvalidValue, cudaUserObjectCreate(&o, NULL, count_call, 1, 0));
    CODE(cudaErrorInvalidValue,
         cudaUserObjectCreate(&o, NULL, count_call, 0, cudaUserObjectNoDestructorSync));
    CODE(cudaErrorInvalidValue,
         cudaUserObjectCreate(&o, NULL, NULL, 1, cudaUserObjectNoDestructorSync));
    OK(cudaUserObjectRetain(o, 2));
    OK(cudaGraphRetainUserObject(g, o, 2, 0));
    OK(cudaUserObjectRelease(o, 3));
    CODE(cudaErrorInvalidValue, cudaGraphReleaseUserObject(g, o, 3));
    CODE(cudaErrorInvalidValue, cudaGraphRetainUserObject(g, o, 0, 0));
    OK(cudaGraphReleaseUserObject(g, o, 1));
    pause_ms(10);
    SAME(atomic_load(&calls), 0);
    OK(cudaGraphReleaseUserObject(g, o, 1));
    TRUE(calls_are(1));
    drop(g);
}

static atomic_int from_destructor = -1;

static void CUDART_CB call_cuda(void *unused) {
    (void)unused;
    atomic_store(&from_destructor, (int)cudaStreamQuery(s));
}

static void test_a_destructor_must_not_call_cuda(void) {
    cudaUserObject_t o = NULL;
    OK(cudaUserObjectCreate(&o, NULL, call_cuda, 1, cudaUserObjectNoDestructorSync));
    OK(cudaUserObjectRelease(o, 1));
    while (atomic_load(&from_destructor) == -1)
        pause_ms(1);
    SAME(atomic_load(&from_destructor), cudaErrorNotPermitted);
}

static void test_a_reference_that_is_not_the_callers_cannot_be_released(void) {
    cudaGraph_t g = new_graph();
    cudaUserObject_t o = new_object();
    OK(cudaGraphRetainUserObject(g, o, 1, cudaGraphUserObjectMove));
    cudaUserObjectRelease(o, 1);
}

/* ---- changing executables ---- */

static void update_from(cudaGraphExec_t x, cudaGraph_t g, int result, cudaGraphNode_t at,
                        cudaGraphNode_t from) {
    cudaGraphExecUpdateResultInfo info;
    memset(&info, 0x55, sizeof info);
    CODE(result ? (int)cudaErrorGraphExecUpdateFailure : 0, cudaGraphExecUpdate(x, g, &info));
    SAME(info.result, result);
    TRUE(info.errorNode == at);
    TRUE(info.errorFromNode == from);
}

static void update(cudaGraphExec_t x, cudaGraph_t g, int result, cudaGraphNode_t at) {
    update_from(x, g, result, at, NULL);
}

static void test_an_executable_is_updated_from_a_graph_or_left_as_it_is(void) {
    cudaGraph_t g = new_graph(), same_shape = new_graph(), longer = new_graph(),
                twisted = new_graph(), mixed = new_graph();
    cudaGraphNode_t a, b, c;
    a = fold_node(g, d, 1, NULL, 0);
    fold_node(g, d, 2, &a, 1);
    cudaGraphExec_t x = executable(g);
    a = fold_node(same_shape, d + 1, 3, NULL, 0);
    fold_node(same_shape, d + 1, 4, &a, 1);
    a = fold_node(longer, d, 1, NULL, 0);
    b = fold_node(longer, d, 1, &a, 1);
    fold_node(longer, d, 1, &b, 1);
    fold_node(twisted, d, 1, NULL, 0);
    c = fold_node(twisted, d, 1, NULL, 0);
    a = fold_node(mixed, d, 9, NULL, 0);
    b = empty_node(mixed, &a, 1);
    update(x, longer, cudaGraphExecUpdateErrorTopologyChanged, NULL);
    update(x, twisted, cudaGraphExecUpdateErrorTopologyChanged, c);
    update(x, mixed, cudaGraphExecUpdateErrorNodeTypeChanged, b);
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 1, 2 }));
    standin_hold(1);
    OK(cudaGraphLaunch(x, s)); /* is not affected */
    update(x, same_shape, cudaGraphExecUpdateSuccess, NULL);
    OK(cudaGraphLaunch(x, s));
    standin_hold(0);
    OK(cudaStreamSynchronize(s));
    SAME(value_of(d), folded(4, (unsigned[]){ 1, 2, 1, 2 }));
    SAME(value_of(d + 1), folded(2, (unsigned[]){ 3, 4 }));
    OK(cudaGraphExecDestroy(x));
    drop(g), drop(same_shape), drop(longer), drop(twisted), drop(mixed);
}

/* A graph of empty nodes: "ab" is an edge from node a to node b, in the order in which node b
   gets its edges. */
static cudaGraph_t shape(size_t count, const char *edges, cudaGraphNode_t *nodes) {
    cudaGraph_t g = new_graph();
    for (size_t i = 0; i < count; i++)
        nodes[i] = empty_node(g, NULL, 0);
    for (; *edges; edges += 3)
        OK(cudaGraphAddDependencies(g, &nodes[edges[0] - 'a'], &nodes[edges[1] - 'a'], NO_DATA 1));
    return g;
}

/* The update from the one to the other fails at this node, because of the one before it. */
static void topology(size_t count, const char *edges, const char *changed, char at, char from) {
    cudaGraphNode_t nodes[8], others[8];
    cudaGraph_t g = shape(count, edges, nodes), other = shape(count, changed, others);
    cudaGraphExec_t x = executable(g);
    update_from(x, other, cudaGraphExecUpdateErrorTopologyChanged, others[at - 'a'],
                from ? others[from - 'a'] : NULL);
    OK(cudaGraphExecDestroy(x));
    drop(g), drop(other);
}

static void test_an_update_tells_edges_apart(void) {
    topology(3, "ab bc ", "ab ac ", 'c', 0);    /* more sinks */
    topology(3, "ab bc ", "ab bc ac ", 'c', 0); /* more edges */
    /* a node that is paired already */
    topology(4, "ac bd ab ", "ac ad ba ", 'd', 'a');
    /* two paths that end in two nodes, not one */
    topology(5, "ab bc bd ce de ", "ab bc ad ce de ", 'd', 'a');
}

/* Sinks are paired in the order in which they became sinks, other nodes along the edges: not in
   the order of their making. */
static cudaGraph_t two_streams(int other_first, unsigned add, int last) {
    begin(s);
    fork_to(t, s);
    for (int i = 0; i < 2; i++) {
        if (i == other_first)
            OK(put_fold(d, 1 + add, s));
        else
            OK(put_fold(d + 1, 2 + add, t));
    }
    join_from(s, t);
    if (last)
        OK(put_fold(d + 2, 3 + add, s));
    return end(s); /* the order in which sinks count is made here */
}

static void test_an_update_pairs_nodes_along_the_edges(void) {
    cudaGraph_t sinks = new_graph(), changed = new_graph();
    cudaGraphNode_t a, b, first_sink, nodes[3];
    cudaGraphExec_t x;
    for (int last = 0; last < 2; last++) {
        cudaGraph_t g = two_streams(0, 0, last), other = two_streams(1, 10, last);
        size_t n = 3;
        x = executable(g);
        OK(cudaGraphGetNodes(g, nodes, &n));
        update(x, other, cudaGraphExecUpdateSuccess, NULL);
        OK(cudaGraphNodeSetEnabled(x, nodes[1], 0)); /* that of d + 1 */
        run(x);
        SAME(value_of(d), last ? folded(2, (unsigned[]){ 11, 11 }) : 11);
        SAME(value_of(d + 1), 0);
        SAME(value_of(d + 2), last ? 13 : 0);
        OK(cudaGraphExecDestroy(x));
        drop(g), drop(other);
    }

    empty_node(sinks, NULL, 0);
    fold_node(sinks, d, 1, NULL, 0);
    x = executable(sinks);
    a = empty_node(changed, NULL, 0); /* the first, but it becomes a sink after the second */
    b = empty_node(changed, &a, 1);
    first_sink = fold_node(changed, d, 1, NULL, 0);
    OK(cudaGraphDestroyNode(b));
    update(x, changed, cudaGraphExecUpdateErrorNodeTypeChanged, first_sink);
    OK(cudaGraphExecDestroy(x));
    drop(sinks), drop(changed);
}

static void test_an_update_takes_the_graphs_user_objects_over(void) {
    cudaGraph_t g = new_graph(), other = new_graph();
    OK(cudaGraphRetainUserObject(g, new_object(), 1, cudaGraphUserObjectMove));
    OK(cudaGraphRetainUserObject(other, new_object(), 1, cudaGraphUserObjectMove));
    cudaGraphExec_t x = executable(g);
    standin_hold(1);
    OK(put_fold(d, 1, s));
    OK(cudaGraphLaunch(x, s));
    update(x, other, cudaGraphExecUpdateSuccess, NULL);
    drop(g), drop(other);
    pause_ms(20);
    SAME(atomic_load(&calls), 0); /* the launch has the first, the executable the second */
    standin_hold(0);
    TRUE(calls_are(1));
    OK(cudaGraphExecDestroy(x));
    TRUE(calls_are(2));
}

static cudaGraph_t one_copy(void *dst, const void *src, size_t size) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n;
    OK(cudaGraphAddMemcpyNode1D(&n, g, NULL, 0, dst, src, size, cudaMemcpyDefault));
    return g;
}

static cudaGraph_t rows_copy(void *dst, enum cudaMemcpyKind kind) {
    struct cudaMemcpy3DParms p = {
        .srcPtr = { d, 8, 8, 2 }, .dstPtr = { dst, 16, 16, 2 }, .extent = { 4, 2, 1 }, .kind = kind
    };
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n;
    OK(cudaGraphAddMemcpyNode(&n, g, NULL, 0, &p));
    return g;
}

static cudaGraph_t one_fill(void *dst, unsigned element, size_t width, size_t height) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n;
    struct cudaMemsetParams p = { dst, 32, 1, element, width, height };
    OK(cudaGraphAddMemsetNode(&n, g, NULL, 0, &p));
    return g;
}

static cudaGraph_t one_fold(int device, int priority) {
    cudaGraph_t g = new_graph();
    cudaKernelNodeAttrValue value;
    OK(cudaSetDevice(device));
    cudaGraphNode_t n = fold_node(g, d, 1, NULL, 0);
    OK(cudaSetDevice(0));
    memset(&value, 0, sizeof value);
    value.priority = priority;
    OK(cudaGraphKernelNodeSetAttribute(n, cudaLaunchAttributePriority, &value));
    return g;
}

/* What an executable of the one says to an update from the other. */
static void judge(cudaGraph_t from, cudaGraph_t to, int result, unsigned long long flags) {
    cudaGraphExec_t x = NULL;
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphInstantiateWithFlags(&x, from, flags));
    cudaGraphExecUpdate(x, to, &info);
    SAME(info.result, result);
    OK(cudaGraphExecDestroy(x));
    drop(from);
    drop(to);
}

static void test_an_update_says_what_it_cannot_take_over(void) {
    enum {
        FINE = cudaGraphExecUpdateSuccess,
        PARAMETERS = cudaGraphExecUpdateErrorParametersChanged
    };

    static char page[64];
    unsigned long long priorities = cudaGraphInstantiateFlagUseNodePriority;
    OK(cudaSetDevice(1));
    void *far = device_memory(64);
    OK(cudaSetDevice(0));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    judge(one_copy(h, d, 8), one_copy(h + 2, d + 2, 16), FINE, 0);
    judge(one_copy(h, d, 8), one_copy(d, h, 8), PARAMETERS, 0);
    judge(rows_copy(h, cudaMemcpyDefault), rows_copy(h, cudaMemcpyDefault), FINE, 0);
    judge(rows_copy(h, cudaMemcpyDefault), rows_copy(h + 1, cudaMemcpyDefault), PARAMETERS, 0);
    judge(rows_copy(h, cudaMemcpyDefault), rows_copy(h, cudaMemcpyDeviceToHost), PARAMETERS, 0);
    judge(one_copy(h, d, 8), one_copy(page, d, 8), PARAMETERS, 0);
    judge(one_copy(d, d + 8, 8), one_copy(d, far, 8), PARAMETERS, 0);
    judge(one_fill(d, 4, 4, 1), one_fill(d + 4, 4, 4, 1), FINE, 0);
    judge(one_fill(d, 4, 4, 1), one_fill(d, 4, 2, 1), FINE, 0);
    judge(one_fill(d, 4, 4, 1), one_fill(d, 4, 5, 1), PARAMETERS, 0);
    judge(one_fill(d, 4, 4, 1), one_fill(d, 2, 4, 1), PARAMETERS, 0);
    judge(one_fill(d, 4, 4, 1), one_fill(d, 4, 4, 2), PARAMETERS, 0);
    judge(one_fill(d, 4, 4, 2), one_fill(d + 1, 4, 4, 2), FINE, 0);
    judge(one_fill(d, 4, 4, 2), one_fill(d, 4, 3, 2), PARAMETERS, 0);
    judge(one_fill(d, 4, 4, 1), one_fill(far, 4, 4, 1), PARAMETERS, 0);
    judge(one_fold(0, 0), one_fold(1, 0), cudaGraphExecUpdateErrorUnsupportedFunctionChange, 0);
    judge(one_fold(0, 0), one_fold(0, -1), FINE, 0);
    judge(one_fold(0, 0), one_fold(0, -1), cudaGraphExecUpdateErrorAttributesChanged, priorities);
    OK(cudaDeviceDisablePeerAccess(1));
    OK(cudaFree(far));
}

static void test_an_update_goes_into_child_graphs(void) {
    cudaGraph_t inner = new_graph(), outer = new_graph(), wider = new_graph(), embedded;
    cudaGraphNode_t n, child, list[1];
    size_t one = 1;
    fold_node(inner, d, 1, NULL, 0);
    OK(cudaGraphAddChildGraphNode(&child, outer, NULL, 0, inner));
    cudaGraphExec_t x = executable(outer);
    OK(cudaGraphChildGraphNodeGetGraph(child, &embedded));
    OK(cudaGraphGetNodes(embedded, list, &one));
    void *p = d;
    unsigned five = 5;
    void *params[] = { &p, &five };
    struct cudaKernelNodeParams k = fold_params(params);
    OK(cudaGraphKernelNodeSetParams(list[0], &k));
    /* only nodes of the graph itself */
    CODE(cudaErrorInvalidValue, cudaGraphExecKernelNodeSetParams(x, list[0], &k));
    update(x, outer, cudaGraphExecUpdateSuccess, NULL);
    run(x);
    SAME(value_of(d), 5);
    OK(cudaGraphExecChildGraphNodeSetParams(x, child, inner));
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 5, 1 }));
    n = fold_node(wider, d, 1, NULL, 0);
    fold_node(wider, d, 1, &n, 1);
    CODE(cudaErrorInvalidValue, cudaGraphExecChildGraphNodeSetParams(x, child, wider));
    OK(cudaGraphExecDestroy(x));
    drop(inner), drop(outer), drop(wider);
}

static void test_a_node_of_an_executable_gets_other_parameters(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t fold_at, host, copy, fill, record, wait, late;
    unsigned number = 7;
    void *p = d + 1, *params[] = { &p, &number };
    struct cudaHostNodeParams call = { wait_for_go, NULL }, other_call = { count_call, NULL };
    struct cudaMemsetParams set = { d + 8, 0, 1, 4, 4, 1 };
    fold_at = fold_node(g, d, 1, NULL, 0);
    OK(cudaGraphAddHostNode(&host, g, NULL, 0, &call));
    OK(cudaGraphAddMemcpyNode1D(&copy, g, &fold_at, 1, h, d, 4, cudaMemcpyDefault));
    OK(cudaGraphAddMemsetNode(&fill, g, NULL, 0, &set));
    OK(cudaGraphAddEventRecordNode(&record, g, NULL, 0, e));
    OK(cudaGraphAddEventWaitNode(&wait, g, NULL, 0, f));
    cudaGraphExec_t x = executable(g);
    struct cudaKernelNodeParams k = fold_params(params);
    OK(cudaGraphExecKernelNodeSetParams(x, fold_at, &k));
    OK(cudaGraphExecHostNodeSetParams(x, host, &other_call));
    OK(cudaGraphExecMemcpyNodeSetParams1D(x, copy, h + 1, d + 1, 4, cudaMemcpyDefault));
    set.value = 6;
    OK(cudaGraphExecMemsetNodeSetParams(x, fill, &set));
    cudaEvent_t third = new_event();
    OK(cudaGraphExecEventRecordNodeSetEvent(x, record, third));
    OK(cudaGraphExecEventWaitNodeSetEvent(x, wait, third));
    CODE(cudaErrorInvalidValue, cudaGraphExecEventWaitNodeSetEvent(x, record, third));
    CODE(cudaErrorInvalidValue,
         cudaGraphExecMemcpyNodeSetParams1D(x, copy, d, d + 1, 4, cudaMemcpyDefault));
    CODE(cudaErrorInvalidValue,
         cudaGraphExecMemcpyNodeSetParams1D(x, copy, h, d, 0, cudaMemcpyDefault));
    struct cudaMemcpy3DParms rows = { .srcPtr = { d, 8, 8, 2 },
                                      .dstPtr = { h, 8, 8, 2 },
                                      .extent = { 4, 2, 1 },
                                      .kind = cudaMemcpyDefault };
    CODE(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams(x, copy, &rows));
    set.height = 2, set.pitch = 32;
    CODE(cudaErrorInvalidValue, cudaGraphExecMemsetNodeSetParams(x, fill, &set));
    OK(cudaSetDevice(1)); /* the function on another device */
    CODE(cudaErrorInvalidValue, cudaGraphExecKernelNodeSetParams(x, fold_at, &k));
    OK(cudaSetDevice(0));
    late = fold_node(g, d, 1, NULL, 0);
    CODE(cudaErrorInvalidValue, cudaGraphExecKernelNodeSetParams(x, late, &k));
    run(x);
    SAME(value_of(d), 0);
    SAME(value_of(d + 1), 7);
    SAME(h[1], 7);
    SAME(value_of(d + 8), 6);
    SAME(atomic_load(&calls), 1);
    OK(cudaGraphExecDestroy(x));
    OK(cudaEventDestroy(third));
    drop(g);
}

static void test_a_node_of_a_graph_gets_other_parameters(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n = fold_node(g, d, 1, NULL, 0), host, record;
    unsigned number = 7;
    void *p = d + 1, *params[] = { &p, &number };
    struct cudaHostNodeParams call = { wait_for_go, NULL }, other_call = { count_call, NULL };
    struct cudaKernelNodeParams k = fold_params(params);
    OK(cudaGraphAddHostNode(&host, g, NULL, 0, &call));
    OK(cudaGraphAddEventRecordNode(&record, g, NULL, 0, e));
    cudaGraphExec_t before = executable(g);
    OK(cudaGraphKernelNodeSetParams(n, &k));
    OK(cudaGraphHostNodeSetParams(host, &other_call));
    OK(cudaGraphEventRecordNodeSetEvent(record, f));
    CODE(cudaErrorInvalidValue, cudaGraphHostNodeSetParams(n, &call));
    cudaGraphExec_t after = executable(g);
    run(after);
    SAME(value_of(d + 1), 7);
    SAME(value_of(d), 0);
    atomic_store(&go, 1);
    run(before);
    SAME(value_of(d), 1);
    SAME(atomic_load(&calls), 1);
    OK(cudaGraphExecDestroy(before));
    OK(cudaGraphExecDestroy(after));
    drop(g);
}

static void test_a_disabled_node_does_nothing(void) {
    cudaGraph_t g = new_graph();
    unsigned on = 9;
    cudaGraphNode_t a = fold_node(g, d, 1, NULL, 0), b = fold_node(g, d, 2, &a, 1),
                    last = fold_node(g, d, 3, &b, 1);
    cudaGraphNode_t none = empty_node(g, &last, 1);
    cudaGraphExec_t x = executable(g);
    OK(cudaGraphNodeSetEnabled(x, b, 0));
    OK(cudaGraphNodeGetEnabled(x, b, &on));
    SAME(on, 0);
    OK(cudaGraphNodeGetEnabled(x, a, &on));
    SAME(on, 1);
    CODE(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(x, none, 0));
    CODE(cudaErrorInvalidValue, cudaGraphNodeGetEnabled(x, none, &on));
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 1, 3 }));
    OK(cudaGraphNodeSetEnabled(x, b, 1));
    OK(cudaMemset(d, 0, 4));
    OK(cudaDeviceSynchronize()); /* the graph's stream does not wait for the fill */
    run(x);
    SAME(value_of(d), folded(3, (unsigned[]){ 1, 2, 3 }));
    OK(cudaGraphExecDestroy(x));
    drop(g);
}

/* ---- the driver's kernel nodes ---- */

static CUresult (*get_function)(CUfunction *, CUmodule, const char *);

static CUfunction driver_fold(CUmodule *m) {
    CUfunction function = NULL;
    find("cuModuleLoadData", &load_data, 12000);
    find("cuModuleUnload", &unload, 12000);
    find("cuModuleGetFunction", &get_function, 12000);
    OK(load_data(m, ptx));
    OK(get_function(&function, *m, "fold"));
    return function;
}

#if CUDART_VERSION >= 12050
static void test_the_driver_makes_kernel_nodes_in_the_requested_form(void) {
    CUresult (*add_1)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                      const CUDA_KERNEL_NODE_PARAMS_v1 *) = NULL;
    CUresult (*add_2)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                      const CUDA_KERNEL_NODE_PARAMS_v2 *) = NULL;
    CUresult (*get_1)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v1 *) = NULL;
    CUresult (*get_2)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2 *) = NULL;
    CUresult (*set_2)(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2 *) = NULL;
    CUresult (*exec_set_1)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1 *) = NULL;
    CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *) = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CUstreamCaptureStatus capturing;
    void *unused = NULL;
    CUmodule m = NULL;
    CUfunction function = driver_fold(&m);
    cudaGraph_t g = new_graph();
    cudaGraphNode_t a, b;
    struct cudaKernelNodeParams k;
    unsigned number = 1;
    void *p = d, *params[] = { &p, &number };
    find("cuGraphAddKernelNode", &add_1, 10000);
    find("cuGraphAddKernelNode", &add_2, 12000);
    find("cuGraphKernelNodeGetParams", &get_1, 11080);
    find("cuGraphKernelNodeGetParams", &get_2, 13000);
    find("cuGraphKernelNodeSetParams", &set_2, 12000);
    find("cuGraphExecKernelNodeSetParams", &exec_set_1, 10010);
    find("cuStreamIsCapturing", &is_capturing, 10000);
    TRUE((void (*)(void))add_1 != (void (*)(void))add_2);
    OK(cudaGetDriverEntryPointByVersion("cuGraphAddKernelNode", &unused, 9000, cudaEnableDefault,
                                        &found));
    TRUE(!unused && found == cudaDriverEntryPointVersionNotSufficent);
    OK(cudaGetDriverEntryPointByVersion("cuGraphAddKernelNode", &unused, 11080, cudaEnableDefault,
                                        &found));
    TRUE(unused && found == cudaDriverEntryPointSuccess);
    CUDA_KERNEL_NODE_PARAMS_v1 one = { function, 1, 1, 1, 1, 1, 1, 0, params, NULL }, seen_1;
    CUDA_KERNEL_NODE_PARAMS_v2 two = { .func = function,
                                       .gridDimX = 1,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = 1,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .kernelParams = params },
                               seen_2;
    OK(add_1(&a, g, NULL, 0, &one));
    number = 2;
    OK(add_2(&b, g, &a, 1, &two));
    OK(get_1(a, &seen_1));
    OK(get_2(b, &seen_2));
    TRUE(seen_1.func == function && seen_2.func == function && !seen_2.kern);
    SAME(*(unsigned *)seen_1.kernelParams[1], 1);
    SAME(*(unsigned *)seen_2.kernelParams[1], 2);
    /* the runtime does not know it */
    CODE(cudaErrorInvalidDeviceFunction, cudaGraphKernelNodeGetParams(a, &k));
    number = 3;
    OK(set_2(b, &two));
    cudaGraphExec_t x = executable(g);
    number = 4;
    OK(exec_set_1(x, a, &one));
    one.func = NULL;
    SAME(exec_set_1(x, a, &one), CUDA_ERROR_INVALID_VALUE);
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 4, 3 }));
    begin(s);
    OK(is_capturing(s, &capturing));
    SAME(capturing, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    drop(end(s));
    OK(cudaGraphExecDestroy(x));
    drop(g);
    OK(unload(m));
}
#endif

static void test_a_module_must_stay_while_its_kernels_are_launched(void) {
    CUmodule m = NULL;
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, CUstream, void **, void **);
    CUfunction function = driver_fold(&m);
    unsigned number = 1;
    void *p = d, *params[] = { &p, &number };
    find("cuLaunchKernel", &launch, 12000);
    begin(s);
    OK(launch(function, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    cudaGraphExec_t x = executable(end(s));
    run(x);
    OK(unload(m));
    cudaGraphLaunch(x, s);
}

/* ---- conditional nodes, and the linker that their kernels need ---- */

#if CUDART_VERSION >= 12080
/* condition(handle, word): the value of the handle becomes *word.  add(p, n): *p += n. */
static const char condition_ptx[] =
    ".version 7.8\n.target sm_52\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional ( .param .b64 p0, .param .b32 p1 );\n"
    ".visible .entry condition ( .param .u64 handle, .param .u64 word ) {\n"
    "    .reg .b32 %r<2>; .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [handle];\n"
    "    ld.param.u64 %rd2, [word];\n"
    "    cvta.to.global.u64 %rd3, %rd2;\n"
    "    ld.volatile.global.u32 %r1, [%rd3];\n"
    "    { .param .b64 a0; st.param.b64 [a0+0], %rd1; .param .b32 a1; st.param.b32 [a1+0], %r1;\n"
    "      call.uni cudaGraphSetConditional, (a0, a1); }\n"
    "    ret;\n"
    "}\n"
    ".visible .entry add ( .param .u64 p, .param .u32 n ) {\n"
    "    .reg .b32 %r<4>; .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd2, %rd1; ld.param.u32 %r1, [n];\n"
    "    ld.global.u32 %r2, [%rd2]; add.s32 %r3, %r2, %r1; st.global.u32 [%rd2], %r3; ret;\n"
    "}\n";

static CUresult (*link_create)(unsigned, CUjit_option *, void **, CUlinkState *);
static CUresult (*link_data)(CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned,
                             CUjit_option *, void **);
static CUresult (*link_file)(CUlinkState, CUjitInputType, const char *, unsigned, CUjit_option *,
                             void **);
static CUresult (*link_complete)(CUlinkState, void **, size_t *);
static CUresult (*link_destroy)(CUlinkState);
static CUresult (*create_handle)(CUgraphConditionalHandle *, CUgraph, CUcontext, unsigned,
                                 unsigned);
static CUresult (*add_driver_node)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                   CUgraphNodeParams *);
static CUresult (*add_kernel)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                              const CUDA_KERNEL_NODE_PARAMS_v2 *);
static CUresult (*set_exec_kernel)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2 *);
static CUresult (*launch_function)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void **, void **);

static CUmodule linked;
static CUfunction condition, add_number;
static CUcontext context;
static char library[] = "/tmp/standin-library-XXXXXX";

static void write_library(void) {
    int file = mkstemp(library);
    TRUE(file >= 0);
    SAME(write(file, "!<arch>\n", 8), 8);
    close(file);
}

static void find_linker(void) {
    find("cuLinkCreate", &link_create, 12080);
    find("cuLinkAddData", &link_data, 12080);
    find("cuLinkAddFile", &link_file, 12080);
    find("cuLinkComplete", &link_complete, 12080);
    find("cuLinkDestroy", &link_destroy, 12080);
    find("cuModuleLoadData", &load_data, 12080);
    find("cuModuleUnload", &unload, 12080);
    find("cuModuleGetFunction", &get_function, 12080);
}

static CUresult add_ptx(CUlinkState state, const char *text) {
    return link_data(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text, strlen(text) + 1, "text", 0,
                     NULL, NULL);
}

static void open_conditions(void) {
    CUresult (*current)(CUcontext *) = NULL;
    CUlinkState state = NULL;
    void *image = NULL;
    size_t size = 0;
    find_linker();
    find("cuCtxGetCurrent", &current, 12080);
    find("cuGraphConditionalHandleCreate", &create_handle, 12080);
    find("cuGraphAddNode", &add_driver_node, 12020);
    find("cuGraphAddKernelNode", &add_kernel, 12080);
    find("cuGraphExecKernelNodeSetParams", &set_exec_kernel, 12080);
    find("cuLaunchKernel", &launch_function, 12080);
    OK(current(&context));
    write_library();
    OK(link_create(0, NULL, NULL, &state));
    OK(add_ptx(state, condition_ptx));
    OK(link_file(state, CU_JIT_INPUT_LIBRARY, library, 0, NULL, NULL));
    OK(link_complete(state, &image, &size));
    TRUE(image && size > 4);
    OK(load_data(&linked, image));
    OK(link_destroy(state));
    OK(get_function(&condition, linked, "condition"));
    OK(get_function(&add_number, linked, "add"));
    OK(unlink(library));
}

static void close_conditions(void) {
    OK(unload(linked));
}

static CUDA_KERNEL_NODE_PARAMS_v2 one_thread(CUfunction function, void **params) {
    return (CUDA_KERNEL_NODE_PARAMS_v2){ .func = function,
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 1,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params };
}

/* A node that sets the handle to *word; after: NULL: none. */
static cudaGraphNode_t condition_node(cudaGraph_t g, CUgraphConditionalHandle handle,
                                      unsigned *word, cudaGraphNode_t after) {
    cudaGraphNode_t made = NULL;
    void *params[] = { &handle, &word };
    CUDA_KERNEL_NODE_PARAMS_v2 k = one_thread(condition, params);
    OK(add_kernel(&made, g, &after, after != NULL, &k));
    return made;
}

static cudaGraphNode_t add_of(cudaGraph_t g, unsigned *p, unsigned n, cudaGraphNode_t after) {
    cudaGraphNode_t made = NULL;
    void *params[] = { &p, &n };
    CUDA_KERNEL_NODE_PARAMS_v2 k = one_thread(add_number, params);
    OK(add_kernel(&made, g, &after, after != NULL, &k));
    return made;
}

static CUgraphConditionalHandle new_handle(cudaGraph_t g, unsigned first, unsigned flags) {
    CUgraphConditionalHandle made = 0;
    OK(create_handle(&made, g, context, first, flags));
    TRUE(made != 0);
    return made;
}

static CUgraphNodeParams branch_params(CUgraphConditionalHandle handle, int type, unsigned size) {
    CUgraphNodeParams p;
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    p.conditional.handle = handle;
    p.conditional.type = (CUgraphConditionalNodeType)type;
    p.conditional.size = size;
    p.conditional.ctx = context;
    return p;
}

#define IF CU_GRAPH_COND_TYPE_IF
#define WHILE CU_GRAPH_COND_TYPE_WHILE
#define SWITCH CU_GRAPH_COND_TYPE_SWITCH

/* Adds a conditional node and returns its bodies. */
static cudaGraph_t *branch_node(cudaGraph_t g, CUgraphConditionalHandle handle, int type,
                                unsigned size, cudaGraphNode_t after, cudaGraphNode_t *out) {
    cudaGraphNode_t made = NULL;
    CUgraphNodeParams p = branch_params(handle, type, size);
    OK(add_driver_node(&made, g, &after, after != NULL, &p));
    TRUE(made && p.conditional.phGraph_out);
    if (out)
        *out = made;
    return p.conditional.phGraph_out;
}

/* A graph that asks *word; body i adds 1 to d[i], and 1 is added to d[7] behind them. */
static cudaGraph_t asking_graph(int type, unsigned size, unsigned *word) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t branch;
    CUgraphConditionalHandle handle = new_handle(g, 0, 0);
    cudaGraphNode_t asks = condition_node(g, handle, word, NULL);
    cudaGraph_t *bodies = branch_node(g, handle, type, size, asks, &branch);
    for (unsigned i = 0; i < size; i++)
        add_of(bodies[i], d + i, 1, NULL);
    add_of(g, d + 7, 1, branch);
    return g;
}

static void bodies_have_run(unsigned a, unsigned b, unsigned c) {
    unsigned got[8];
    OK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDefault));
    SAME(got[0], a);
    SAME(got[1], b);
    SAME(got[2], c);
    OK(cudaMemset(d, 0, sizeof got));
    OK(cudaDeviceSynchronize());
}

static void run_with(cudaGraphExec_t x, unsigned value) {
    h[0] = value;
    run(x);
    SAME(value_of(d + 7), 1);
}

static void test_the_value_that_a_kernel_sets_selects_a_body(void) {
    open_conditions();
    cudaGraph_t one = asking_graph(IF, 1, h), two = asking_graph(IF, 2, h),
                many = asking_graph(SWITCH, 3, h);
    cudaGraphExec_t x = executable(one);
    run_with(x, 0), bodies_have_run(0, 0, 0);
    run_with(x, 1), bodies_have_run(1, 0, 0);
    run_with(x, 7), bodies_have_run(1, 0, 0);
    OK(cudaGraphExecDestroy(x));
    x = executable(two);
    run_with(x, 0), bodies_have_run(0, 1, 0);
    run_with(x, 1), bodies_have_run(1, 0, 0);
    run_with(x, 2), bodies_have_run(1, 0, 0);
    OK(cudaGraphExecDestroy(x));
    x = executable(many);
    run_with(x, 0), bodies_have_run(1, 0, 0);
    run_with(x, 1), bodies_have_run(0, 1, 0);
    run_with(x, 2), bodies_have_run(0, 0, 1);
    run_with(x, 3), bodies_have_run(0, 0, 0);
    run_with(x, ~0u), bodies_have_run(0, 0, 0);
    OK(cudaGraphExecDestroy(x));
    drop(one), drop(two), drop(many);
    close_conditions();
}

/* A graph that adds 1 to d[0] as often as *word is, which is 0 then. */
static cudaGraph_t counting_graph(unsigned *word) {
    cudaGraph_t g = new_graph();
    CUgraphConditionalHandle handle = new_handle(g, 0, 0);
    cudaGraphNode_t asks = condition_node(g, handle, word, NULL);
    cudaGraph_t body = branch_node(g, handle, WHILE, 1, asks, NULL)[0];
    add_of(body, d, 1, NULL);
    condition_node(body, handle, word, add_of(body, word, ~0u, NULL));
    return g;
}

static void test_a_while_runs_its_body_until_the_value_is_0(void) {
    open_conditions();
    cudaGraph_t g = counting_graph(h);
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d), 0);
    h[0] = 1000;
    run(x);
    SAME(value_of(d), 1000);
    SAME(h[0], 0);
    OK(cudaGraphExecDestroy(x));
    drop(g);
    close_conditions();
}

/* The outer while runs 3 times; the inner if, of a handle of the body, in each run but the last. */
static void test_conditional_nodes_nest(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    cudaGraphNode_t branch;
    CUgraphConditionalHandle outer = new_handle(g, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    cudaGraph_t body = branch_node(g, outer, WHILE, 1, NULL, NULL)[0];
    CUgraphConditionalHandle inner = new_handle(body, 0, 0);
    cudaGraphNode_t less = add_of(body, h, ~0u, NULL);
    cudaGraphNode_t asks = condition_node(body, inner, h, less);
    cudaGraph_t *bodies = branch_node(body, inner, IF, 2, asks, &branch);
    add_of(bodies[0], d, 1, add_of(bodies[0], d + 2, 1, NULL));
    add_of(bodies[1], d + 1, 1, NULL);
    condition_node(body, outer, h, branch);
    cudaGraphExec_t x = executable(g);
    for (int i = 0; i < 2; i++) {
        h[0] = 3;
        run(x);
        bodies_have_run(2, 1, 2);
    }
    OK(cudaGraphExecDestroy(x));
    drop(g);
    close_conditions();
}

/* A handle of the outer graph serves a node in a body. */
static void test_a_body_uses_a_handle_of_the_outer_graph(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    CUgraphConditionalHandle outer = new_handle(g, 1, CU_GRAPH_COND_ASSIGN_DEFAULT),
                             inner = new_handle(g, 2, CU_GRAPH_COND_ASSIGN_DEFAULT);
    cudaGraph_t body = branch_node(g, outer, IF, 1, NULL, NULL)[0];
    add_of(branch_node(body, inner, SWITCH, 3, NULL, NULL)[2], d + 2, 1, NULL);
    cudaGraphExec_t x = executable(g);
    run(x);
    bodies_have_run(0, 0, 1);
    OK(cudaGraphExecDestroy(x));
    drop(g);
    close_conditions();
}

static void test_a_value_begins_as_its_default_or_as_it_was_left(void) {
    open_conditions();
    for (unsigned flags = 0; flags <= CU_GRAPH_COND_ASSIGN_DEFAULT; flags++) {
        cudaGraph_t g = new_graph();
        cudaGraphNode_t branch;
        CUgraphConditionalHandle handle = new_handle(g, 1, flags);
        add_of(branch_node(g, handle, SWITCH, 2, NULL, &branch)[1], d + 1, 1, NULL);
        condition_node(g, handle, h, branch);
        cudaGraphExec_t x = executable(g);
        h[0] = 1;
        run(x);
        bodies_have_run(0, flags, 0); /* without the flag it is undefined here, and 1 behind */
        h[0] = 0;
        run(x);
        bodies_have_run(0, 1, 0);
        run(x);
        bodies_have_run(0, flags, 0);
        OK(cudaGraphExecDestroy(x));
        drop(g);
    }
    close_conditions();
}

static void test_launches_with_conditions_follow_each_other(void) {
    open_conditions();
    cudaGraph_t g = counting_graph(h);
    cudaGraphExec_t x = executable(g);
    standin_hold(1);
    h[0] = 3;
    OK(cudaGraphLaunch(x, s));
    OK(cudaGraphLaunch(x, t));
    OK(cudaMemsetAsync(d + 1, 1, 1, t));
    standin_hold(0);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamSynchronize(t));
    bodies_have_run(3, 1, 0);
    /* a launch outlives the executable and the graph */
    standin_hold(1);
    h[0] = 2;
    OK(cudaGraphLaunch(x, s));
    OK(cudaGraphExecDestroy(x));
    drop(g);
    standin_hold(0);
    OK(cudaStreamSynchronize(s));
    bodies_have_run(2, 0, 0);
    close_conditions();
}

/* The launches of both executables run side by side. */
static void test_two_executables_have_values_of_their_own(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    cudaGraphNode_t branch;
    unsigned *word = h;
    CUgraphConditionalHandle handle = new_handle(g, 0, 0);
    cudaGraphNode_t asks = condition_node(g, handle, word, NULL);
    cudaGraph_t *bodies = branch_node(g, handle, SWITCH, 2, asks, &branch);
    add_of(bodies[0], d, 1, NULL);
    add_of(bodies[1], d + 1, 1, NULL);
    cudaGraphExec_t x = executable(g), y = executable(g);
    void *params[] = { &handle, &word };
    CUDA_KERNEL_NODE_PARAMS_v2 k = one_thread(condition, params);
    word = h + 1;
    OK(set_exec_kernel(y, asks, &k));
    h[1] = 1;
    for (int i = 0; i < 20; i++) {
        OK(cudaGraphLaunch(x, s));
        OK(cudaGraphLaunch(y, t));
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamSynchronize(t));
    bodies_have_run(20, 20, 0);
    OK(cudaGraphExecDestroy(x)), OK(cudaGraphExecDestroy(y));
    drop(g);
    close_conditions();
}

static void test_a_changed_executable_leaves_pending_bodies_alone(void) {
    open_conditions();
    cudaGraph_t g = asking_graph(IF, 1, h);
    cudaGraph_t changed = new_graph();
    CUgraphConditionalHandle handle = new_handle(changed, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    cudaGraphNode_t branch, first = add_of(changed, d + 2, 1, NULL);
    add_of(branch_node(changed, handle, IF, 1, first, &branch)[0], d + 1, 1, NULL);
    add_of(changed, d + 7, 1, branch);
    cudaGraphExecUpdateResultInfo info;
    cudaGraphExec_t x = executable(g);
    standin_hold(1);
    h[0] = 1;
    OK(cudaGraphLaunch(x, s));
    OK(cudaGraphExecUpdate(x, changed, &info));
    standin_hold(0);
    OK(cudaStreamSynchronize(s));
    bodies_have_run(1, 0, 0);
    run(x); /* the default value is that of the other graph now */
    bodies_have_run(0, 1, 1);
    OK(cudaGraphExecDestroy(x));
    drop(g), drop(changed);
    close_conditions();
}

static void test_an_update_compares_bodies(void) {
    open_conditions();
    cudaGraphExecUpdateResultInfo info;
    cudaGraph_t g = asking_graph(SWITCH, 2, h), wide = asking_graph(SWITCH, 3, h),
                other = asking_graph(IF, 2, h), filled = new_graph();
    CUgraphConditionalHandle handle = new_handle(filled, 0, 0);
    cudaGraphNode_t branch, asks = condition_node(filled, handle, h, NULL);
    cudaGraph_t *bodies = branch_node(filled, handle, SWITCH, 2, asks, &branch);
    add_of(bodies[0], d, 1, NULL);
    add_of(filled, d + 7, 1, branch);
    cudaGraphExec_t x = executable(g);
    CODE(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(x, wide, &info));
    SAME(info.result, cudaGraphExecUpdateErrorParametersChanged);
    CODE(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(x, other, &info));
    SAME(info.result, cudaGraphExecUpdateErrorParametersChanged);
    CODE(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(x, filled, &info));
    SAME(info.result, cudaGraphExecUpdateErrorTopologyChanged);
    empty_node(bodies[1], NULL, 0);
    CODE(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(x, filled, &info));
    SAME(info.result, cudaGraphExecUpdateErrorNodeTypeChanged);
    run_with(x, 1), bodies_have_run(0, 1, 0);
    OK(cudaGraphExecDestroy(x));
    drop(g), drop(wide), drop(other), drop(filled);
    close_conditions();
}

static void fails_with_launch_failure(CUgraphConditionalHandle handle) {
    unsigned *word = h;
    void *params[] = { &handle, &word };
    char why[300];
    OK(launch_function(condition, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    CODE(cudaErrorLaunchFailure, cudaStreamSynchronize(s));
    standin_kernel_error(why, sizeof why);
    TRUE(strstr(why, "cudaGraphSetConditional: the launch has no handle"));
}

static void test_a_kernel_outside_of_a_graph_sets_no_condition(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    fails_with_launch_failure(new_handle(g, 0, 0));
    _exit(0);
}

/* After an update, a kernel has the handle of the graph of the update. */
static void test_a_kernel_sets_no_handle_of_another_graph(void) {
    open_conditions();
    cudaGraphExecUpdateResultInfo info;
    cudaGraph_t g = asking_graph(IF, 1, h), other = asking_graph(IF, 1, h);
    cudaGraphExec_t x = executable(g);
    OK(cudaGraphExecUpdate(x, other, &info));
    OK(cudaGraphLaunch(x, s));
    CODE(cudaErrorLaunchFailure, cudaStreamSynchronize(s));
    _exit(0);
}

static void test_a_conditional_handle_is_checked(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    CUgraphConditionalHandle handle = 0;
    SAME(create_handle(&handle, g, context, 0, 2), CUDA_ERROR_INVALID_VALUE);
    SAME(create_handle(NULL, g, context, 0, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(create_handle(&handle, g, NULL, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
    standin_fail(1, CUDA_ERROR_OUT_OF_MEMORY);
    SAME(create_handle(&handle, g, context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    SAME(handle, 0);
    cudaGraphExec_t x = executable(g);
    OK(cudaGraphExecDestroy(x));
    handle = new_handle(g, 0, 0);
    CODE(cudaErrorInvalidValue, cudaGraphInstantiateWithFlags(&x, g, 0));
    branch_node(g, handle, IF, 1, NULL, NULL);
    x = executable(g);
    OK(cudaGraphExecDestroy(x));
    drop(g);
    close_conditions();
}

static void test_a_conditional_node_is_checked(void) {
    static const unsigned refused[][2] = { { IF, 0 },    { IF, 3 },     { WHILE, 0 },
                                           { WHILE, 2 }, { SWITCH, 0 }, { 3, 1 } };
    open_conditions();
    cudaGraph_t g = new_graph(), other = new_graph();
    cudaGraphNode_t node = NULL;
    CUgraphConditionalHandle handle = new_handle(g, 0, 0), foreign = new_handle(other, 0, 0);
    CUgraphNodeParams p;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        p = branch_params(handle, (int)refused[i][0], refused[i][1]);
        SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    }
    SAME(add_driver_node(&node, g, NULL, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    p = branch_params(handle, IF, 1), p.reserved0[2] = 1;
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = branch_params(handle, IF, 1), p.reserved2 = 1;
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = branch_params(handle, IF, 1);
    memset((char *)&p.reserved2 - 1, 1, 1);
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = branch_params(handle, IF, 1), p.conditional.ctx = NULL;
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_CONTEXT);
    p = branch_params(foreign, IF, 1);
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = branch_params(12345, IF, 1);
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = branch_params(handle, IF, 1), p.type = CU_GRAPH_NODE_TYPE_EMPTY;
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_NOT_SUPPORTED);
    SAME(node_count(g), 0);
    p = branch_params(handle, IF, 1);
    OK(add_driver_node(&node, g, NULL, 0, &p));
    SAME(add_driver_node(&node, g, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE); /* a second node */
    OK(cudaGraphDestroyNode(node));
    drop(g), drop(other);
    close_conditions();
}

static void test_the_driver_adds_nodes_with_edge_data_from_12_3_on(void) {
    CUresult (*add_with_edges)(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
                               size_t, CUgraphNodeParams *) = NULL;
    CUgraphEdgeData edge;
    void *unused = NULL;
    enum cudaDriverEntryPointQueryResult found;
    open_conditions();
    find("cuGraphAddNode", &add_with_edges, 12030);
    TRUE((void (*)(void))add_with_edges != (void (*)(void))add_driver_node);
    OK(cudaGetDriverEntryPointByVersion("cuGraphAddNode", &unused, 12010, cudaEnableDefault,
                                        &found));
    TRUE(!unused && found == cudaDriverEntryPointVersionNotSufficent);
    cudaGraph_t g = new_graph();
    cudaGraphNode_t made, first = empty_node(g, NULL, 0);
    CUgraphNodeParams p = branch_params(new_handle(g, 0, 0), IF, 1);
    memset(&edge, 0, sizeof edge);
    edge.type = 1;
    SAME(add_with_edges(&made, g, &first, &edge, 1, &p), CUDA_ERROR_INVALID_VALUE);
    edge.type = 0;
    OK(add_with_edges(&made, g, &first, &edge, 1, &p));
    SAME(type_of(made), cudaGraphNodeTypeConditional);
    drop(g);
    close_conditions();
}

static void test_a_graph_with_conditions_is_no_part_of_another(void) {
    CUresult (*get_type)(CUgraphNode, CUgraphNodeType *) = NULL;
    CUgraphNodeType type;
    open_conditions();
    find("cuGraphNodeGetType", &get_type, 12080);
    cudaGraph_t g = new_graph(), outer = new_graph(), clone = NULL, child = NULL;
    CUgraphConditionalHandle handle = new_handle(g, 1, CU_GRAPH_COND_ASSIGN_DEFAULT),
                             second = new_handle(outer, 0, 0);
    cudaGraphNode_t node, made, empty;
    cudaGraph_t body = branch_node(g, handle, IF, 1, NULL, &node)[0];
    cudaGraphExec_t x = NULL;
    OK(get_type(node, &type));
    SAME(type, CU_GRAPH_NODE_TYPE_CONDITIONAL);
    SAME(type_of(node), cudaGraphNodeTypeConditional);
    CODE(cudaErrorNotSupported, cudaGraphClone(&clone, g));
    CODE(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&made, outer, NULL, 0, g));
    CODE(cudaErrorInvalidValue, cudaGraphInstantiateWithFlags(&x, body, 0));
    /* nor does a child graph get one */
    OK(cudaGraphClone(&clone, body));
    OK(cudaGraphAddChildGraphNode(&made, outer, NULL, 0, clone));
    OK(cudaGraphChildGraphNodeGetGraph(made, &child));
    CUgraphNodeParams p = branch_params(second, IF, 1);
    SAME(add_driver_node(&empty, child, NULL, 0, &p), CUDA_ERROR_NOT_SUPPORTED);
    x = executable(g);
    begin(s);
    CODE(cudaErrorStreamCaptureUnsupported, cudaGraphLaunch(x, s));
    is_spoilt(s);
    OK(cudaGraphExecDestroy(x));
    drop(g), drop(outer), drop(clone);
    close_conditions();
}

static int takes_body(cudaGraph_t g) {
    cudaGraphExec_t x = NULL;
    cudaError_t code = cudaGraphInstantiateWithFlags(&x, g, 0);
    if (code == cudaSuccess)
        OK(cudaGraphExecDestroy(x));
    else
        CODE(cudaErrorInvalidValue, code);
    return code == cudaSuccess;
}

static void test_a_body_has_nodes_of_some_types_and_one_device(void) {
    static unsigned pageable[2];
    struct cudaHostNodeParams call = { count_call, NULL };
    cudaGraphNode_t n, nested;
    open_conditions();
    cudaGraph_t g = new_graph(), inner = new_graph();
    CUgraphConditionalHandle handle = new_handle(g, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    cudaGraph_t body = branch_node(g, handle, IF, 1, NULL, NULL)[0];
    struct cudaMemsetParams fill = {
        .dst = d + 3, .value = 5, .elementSize = 4, .width = 1, .height = 1
    };
    n = empty_node(body, NULL, 0);
    OK(cudaGraphAddMemsetNode(&n, body, &n, 1, &fill));
    OK(cudaGraphAddMemcpyNode1D(&n, body, &n, 1, h + 3, d + 3, 4, cudaMemcpyDefault));
    add_of(inner, d, 1, NULL);
    OK(cudaGraphAddChildGraphNode(&n, body, &n, 1, inner));
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(h[3], 5);
    SAME(value_of(d), 1);
    OK(cudaGraphExecDestroy(x));
    OK(cudaGraphAddHostNode(&n, body, NULL, 0, &call));
    TRUE(!takes_body(g));
    OK(cudaGraphDestroyNode(n));
    OK(cudaGraphAddEventRecordNode(&n, body, NULL, 0, e));
    TRUE(!takes_body(g));
    OK(cudaGraphDestroyNode(n));
    OK(cudaGraphAddMemcpyNode1D(&n, body, NULL, 0, d, pageable, 4, cudaMemcpyDefault));
    TRUE(!takes_body(g));
    OK(cudaGraphDestroyNode(n));
    OK(cudaGraphAddHostNode(&nested, inner, NULL, 0, &call));
    OK(cudaGraphAddChildGraphNode(&n, body, NULL, 0, inner));
    TRUE(!takes_body(g));
    OK(cudaGraphDestroyNode(n));
    OK(cudaSetDevice(1));
    unsigned *far = device_memory(64);
    fill.dst = far;
    OK(cudaGraphAddMemsetNode(&n, body, NULL, 0, &fill));
    TRUE(!takes_body(g));
    OK(cudaGraphDestroyNode(n));
    OK(cudaFree(far));
    OK(cudaSetDevice(0));
    TRUE(takes_body(g));
    drop(g), drop(inner);
    close_conditions();
}

static void test_a_body_is_captured(void) {
    open_conditions();
    cudaGraph_t g = new_graph(), captured = NULL;
    CUgraphConditionalHandle handle = new_handle(g, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    cudaGraph_t body = branch_node(g, handle, IF, 1, NULL, NULL)[0];
    OK(cudaStreamBeginCaptureToGraph(s, body, NULL, NULL, 0, RELAXED));
    OK(put_fold(d, 5, s));
    OK(put_fold(d, 6, s));
    OK(cudaStreamEndCapture(s, &captured));
    TRUE(captured == body);
    cudaGraphExec_t x = executable(g);
    run(x);
    SAME(value_of(d), folded(2, (unsigned[]){ 5, 6 }));
    OK(cudaGraphExecDestroy(x));
    drop(g);
    close_conditions();
}

static void test_a_body_of_a_node_is_the_nodes(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    cudaGraphDestroy(branch_node(g, new_handle(g, 0, 0), IF, 1, NULL, NULL)[0]);
}

static void test_a_graph_whose_body_is_captured_into_stays(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    cudaGraph_t body = branch_node(g, new_handle(g, 0, 0), IF, 1, NULL, NULL)[0];
    OK(cudaStreamBeginCaptureToGraph(s, body, NULL, NULL, 0, RELAXED));
    cudaGraphDestroy(g);
}

static void test_memory_of_a_pending_body_is_in_use(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    CUgraphConditionalHandle handle = new_handle(g, 0, CU_GRAPH_COND_ASSIGN_DEFAULT);
    add_of(branch_node(g, handle, IF, 1, NULL, NULL)[0], h, 1, NULL);
    cudaGraphExec_t x = executable(g);
    standin_hold(1);
    OK(cudaGraphLaunch(x, s));
    cudaFreeHost(h);
}

static void test_a_module_of_a_pending_body_stays(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    CUgraphConditionalHandle handle = new_handle(g, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    add_of(branch_node(g, handle, IF, 1, NULL, NULL)[0], h, 1, NULL);
    cudaGraphExec_t x = executable(g);
    OK(unload(linked));
    cudaGraphLaunch(x, s);
}

static void test_a_body_that_fails_fails_the_device(void) {
    open_conditions();
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n;
    CUgraphConditionalHandle handle = new_handle(g, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    cudaGraph_t body = branch_node(g, handle, WHILE, 1, NULL, NULL)[0];
    struct cudaKernelNodeParams k = {
        (void *)(uintptr_t)&stop, { 1, 1, 1 }, { 1, 1, 1 }, 0, NULL, NULL
    };
    OK(cudaGraphAddKernelNode(&n, body, NULL, 0, &k));
    cudaGraphExec_t x = executable(g);
    OK(cudaGraphLaunch(x, s));
    CODE(cudaErrorLaunchFailure, cudaStreamSynchronize(s));
    _exit(0);
}

static void test_an_external_function_needs_the_linker(void) {
    char text[200] = "", left[200];
    CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
    void *values[] = { text, (void *)sizeof text }, *image = NULL;
    CUmodule m = NULL;
    CUlinkState state = NULL;
    size_t size = 0;
    find_linker();
    SAME(load_data(&m, condition_ptx), CUDA_ERROR_INVALID_PTX);
    SAME(link_create(2, options, NULL, &state), CUDA_ERROR_INVALID_VALUE);
    OK(link_create(2, options, values, &state));
    SAME(standin_live(left, sizeof left), 6 + 1);
    TRUE(strstr(left, "1 state of the linker"));
    SAME(link_complete(state, &image, &size), CUDA_ERROR_INVALID_VALUE); /* nothing is in it */
    SAME(add_ptx(state, HEAD ".visible .entry k() { nonsense; }"), CUDA_ERROR_INVALID_PTX);
    TRUE(strstr(text, "nonsense"));
    SAME((size_t)values[1], strlen(text));
    OK(add_ptx(state, condition_ptx));
    SAME(link_complete(state, &image, &size), CUDA_ERROR_INVALID_PTX);
    TRUE(strstr(text, "Undefined reference to 'cudaGraphSetConditional'") && !image);
    SAME(link_file(state, CU_JIT_INPUT_LIBRARY, "/nowhere/libcudadevrt.a", 0, NULL, NULL),
         CUDA_ERROR_FILE_NOT_FOUND);
    SAME(link_file(state, CU_JIT_INPUT_LIBRARY, "/tmp", 0, NULL, NULL), CUDA_ERROR_INVALID_IMAGE);
    write_library();
    OK(link_file(state, CU_JIT_INPUT_LIBRARY, library, 0, NULL, NULL));
    OK(unlink(library));
    OK(link_complete(state, &image, &size));
    SAME(link_complete(state, &image, &size), CUDA_ERROR_INVALID_VALUE);
    OK(load_data(&m, image));
    OK(unload(m));
    standin_fail(1, CUDA_ERROR_UNKNOWN);
    SAME(link_destroy(state), CUDA_ERROR_UNKNOWN);
}

static void test_a_destroyed_state_of_the_linker_is_none(void) {
    CUlinkState state = NULL;
    find_linker();
    OK(link_create(0, NULL, NULL, &state));
    OK(link_destroy(state));
    link_destroy(state);
}
#endif

/* ---- what CUDA leaves undefined ---- */

static void test_a_destroyed_graph_is_no_graph(void) {
    cudaGraph_t g = new_graph();
    drop(g);
    cudaGraphDestroy(g);
}

static void test_a_node_goes_with_its_graph(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n = empty_node(g, NULL, 0);
    enum cudaGraphNodeType type;
    drop(g);
    cudaGraphNodeGetType(n, &type);
}

static void test_a_destroyed_executable_cannot_be_launched(void) {
    cudaGraphExec_t x = executable(new_graph());
    OK(cudaGraphExecDestroy(x));
    cudaGraphLaunch(x, s);
}

static void test_memory_of_a_copy_must_be_there_at_the_launch(void) {
    void *p = device_memory(64);
    begin(s);
    OK(cudaMemcpyAsync(p, d, 64, cudaMemcpyDefault, s));
    cudaGraphExec_t x = executable(end(s));
    OK(cudaFree(p));
    cudaGraphLaunch(x, s);
}

static void test_an_event_of_a_node_must_be_there_at_the_launch(void) {
    cudaGraph_t g = new_graph();
    cudaGraphNode_t n;
    OK(cudaGraphAddEventRecordNode(&n, g, NULL, 0, e));
    cudaGraphExec_t x = executable(g);
    OK(cudaEventDestroy(e));
    cudaGraphLaunch(x, s);
}

static void test_memory_of_a_launched_graph_is_in_use(void) {
    begin(s);
    OK(put_fold(h, 1, s));
    cudaGraphExec_t x = executable(end(s));
    standin_hold(1);
    OK(cudaGraphLaunch(x, s));
    cudaFreeHost(h);
}

static void test_a_graph_of_a_node_is_the_nodes(void) {
    cudaGraph_t g = new_graph(), outer = new_graph(), embedded;
    cudaGraphNode_t n;
    OK(cudaGraphAddChildGraphNode(&n, outer, NULL, 0, g));
    OK(cudaGraphChildGraphNodeGetGraph(n, &embedded));
    cudaGraphDestroy(embedded);
}

/* ---- counting, failing, logging ---- */

static void test_graphs_executables_and_objects_are_counted(void) {
    char text[200];
    cudaGraph_t g = new_graph(), clone;
    cudaUserObject_t o = new_object();
    OK(cudaGraphClone(&clone, g));
    cudaGraphExec_t x = executable(g);
    begin(s);
    SAME(standin_live(text, sizeof text), 6 + 5);
    TRUE(strstr(text, "1 open capture, 2 graphs, 1 executable, 1 user object"));
    drop(end(s));
    OK(cudaGraphExecDestroy(x));
    drop(g), drop(clone);
    OK(cudaUserObjectRelease(o, 1));
    SAME(standin_live(NULL, 0), 6);
}

static void test_a_failed_call_changes_nothing_but_destroy_calls_destroy(void) {
    cudaGraph_t g = NULL, kept = new_graph();
    cudaGraphNode_t n = empty_node(kept, NULL, 0);
    cudaGraphExec_t x = executable(kept);
    standin_fail(1, cudaErrorMemoryAllocation);
    CODE(cudaErrorMemoryAllocation, cudaGraphCreate(&g, 0));
    TRUE(!g && standin_failed());
    begin(s);
    standin_fail(1, cudaErrorUnknown);
    CODE(cudaErrorUnknown, cudaStreamEndCapture(s, &g));
    SAME(status(s), ACTIVE);
    standin_fail(1, cudaErrorUnknown);
    CODE(cudaErrorUnknown, put_fold(d, 1, s));
    g = end(s);
    SAME(node_count(g), 0);
    standin_fail(1, cudaErrorUnknown);
    CODE(cudaErrorUnknown, cudaGraphDestroyNode(n));
    SAME(node_count(kept), 0);
    standin_fail(1, cudaErrorUnknown);
    CODE(cudaErrorUnknown, cudaGraphExecDestroy(x));
    standin_fail(1, cudaErrorUnknown);
    CODE(cudaErrorUnknown, cudaGraphDestroy(g));
    drop(kept);
    cudaUserObject_t o = new_object();
    standin_fail(1, cudaErrorUnknown);
    CODE(cudaErrorUnknown, cudaUserObjectRelease(o, 1));
    TRUE(calls_are(1));
}

static void test_calls_are_logged_and_null_mode_launches_nothing(void) {
    unsigned long before = standin_calls("cudaGraphLaunch");
    standin_log_begin();
    begin(s);
    OK(cudaMemcpyAsync(h, d, 4, cudaMemcpyDeviceToHost, s));
    cudaGraph_t g = end(s);
    cudaGraphExec_t x = executable(g);
    OK(cudaGraphLaunch(x, s));
    TRUE(!strcmp(standin_log_take(),
                 "cudaStreamBeginCapture cudaMemcpyAsync:D2H cudaStreamEndCapture "
                 "cudaGraphInstantiateWithFlags cudaGraphLaunch"));
    SAME(standin_calls("cudaGraphLaunch") - before, 1);
    OK(cudaStreamSynchronize(s));
    OK(cudaMemset(d, 1, 4));
    standin_null(1);
    OK(cudaGraphLaunch(x, s));
    begin(s); /* a capture is one in null mode too */
    OK(put_fold(d, 1, s));
    cudaGraph_t captured = end(s);
    SAME(node_count(captured), 1);
    standin_null(0);
    OK(cudaStreamSynchronize(s));
    SAME(h[0], 0);
    OK(cudaDeviceSynchronize());
    OK(cudaGraphExecDestroy(x));
    drop(g), drop(captured);
}

static void test_an_error_of_capture_has_a_name(void) {
    TRUE(!strcmp(cudaGetErrorName(cudaErrorStreamCaptureIsolation),
                 "cudaErrorStreamCaptureIsolation"));
    TRUE(!strcmp(cudaGetErrorName(cudaErrorGraphExecUpdateFailure),
                 "cudaErrorGraphExecUpdateFailure"));
    begin(s);
    CODE(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(s));
    CODE(cudaErrorStreamCaptureUnsupported, cudaGetLastError());
    is_spoilt(s);
}

/* Threads that capture, fork, launch and change graphs of their own do not disturb each other. */
static void *work_along(void *of) {
    int index = (int)(intptr_t)of % 2;
    cudaStream_t a, b;
    cudaEvent_t at = NULL, back = NULL;
    OK(cudaSetDevice(index));
    a = new_stream(cudaStreamNonBlocking), b = new_stream(cudaStreamNonBlocking);
    at = new_event(), back = new_event();
    unsigned *p = NULL;
    OK(cudaHostAlloc((void **)&p, 64, cudaHostAllocPortable));
    p[0] = p[1] = 0;
    for (unsigned round = 1; round <= 20; round++) {
        cudaGraph_t g;
        cudaGraphExec_t x;
        OK(cudaStreamBeginCapture(a, LOCAL));
        OK(put_fold(p, round, a));
        OK(cudaEventRecord(at, a));
        OK(cudaStreamWaitEvent(b, at, 0));
        OK(put_fold(p + 1, round, b));
        OK(cudaEventRecord(back, b));
        OK(cudaStreamWaitEvent(a, back, 0));
        OK(cudaStreamEndCapture(a, &g));
        x = executable(g);
        OK(cudaGraphLaunch(x, a));
        OK(cudaGraphLaunch(x, b));
        OK(cudaGraphExecDestroy(x));
        OK(cudaGraphDestroy(g));
        OK(cudaStreamSynchronize(a));
        OK(cudaStreamSynchronize(b));
        SAME(p[0], p[1]);
    }
    OK(cudaStreamDestroy(a)), OK(cudaStreamDestroy(b));
    OK(cudaEventDestroy(at)), OK(cudaEventDestroy(back));
    OK(cudaFreeHost(p));
    return NULL;
}

static void test_many_threads_capture_at_once(void) {
    enum { THREADS = 6 };

    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, work_along, (void *)(intptr_t)i));
    for (int i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));
}

/* ---- running them ---- */

typedef struct test {
    const char *name;
    void (*body)(void);
    const char *line;
} test;

#define ENDS(name) \
    { #name, name, NULL }
#define ABORTS(name, line) \
    { #name, name, line }
static test tests[] = {
    ENDS(test_work_of_a_capturing_stream_becomes_nodes_unexecuted),
    ENDS(test_a_fill_of_the_drivers_is_captured_too),
    ENDS(test_pageable_memory_is_read_when_the_graph_runs),
    ENDS(test_an_operation_that_is_refused_leaves_the_capture_alone),
    ENDS(test_the_legacy_stream_does_not_capture_others_do),
    ENDS(test_a_capture_that_begins_again_goes_on),
    ENDS(test_many_captures_are_open_at_once),
    ENDS(test_work_put_before_a_capture_runs_beside_it),
    ENDS(test_only_the_origin_ends_a_capture),
    ENDS(test_only_the_beginning_thread_ends_a_capture_if_not_relaxed),
    ENDS(test_a_fork_must_be_joined),
    ENDS(test_forks_cross_devices_and_nodes_run_where_captured),
    ENDS(test_a_capturing_stream_cannot_be_waited_for),
    ENDS(test_a_callback_is_no_part_of_a_graph),
    ENDS(test_an_invalidated_capture_takes_nothing),
    ENDS(test_a_captured_event_cannot_be_asked),
    ENDS(test_a_captured_event_means_nothing_when_its_capture_is_over),
    ENDS(test_a_capture_does_not_wait_for_what_is_outside),
    ENDS(test_external_flags_are_for_capture_alone),
    ENDS(test_two_captures_do_not_merge),
    ENDS(test_the_legacy_stream_is_refused_in_a_blocking_capture),
    ENDS(test_the_legacy_stream_joins_no_capture),
    ENDS(test_unsafe_calls_are_refused_as_the_two_modes_say),
    ENDS(test_only_captures_that_forbid_a_call_are_invalidated_by_it),
    ENDS(test_safe_calls_stay_allowed),
    ENDS(test_a_capturing_device_is_not_synchronized_in_any_mode),
    ENDS(test_a_threads_mode_is_swapped),
    ENDS(test_a_stream_may_be_destroyed_while_it_captures),
    ENDS(test_a_capture_has_an_id_a_graph_and_dependencies),
    ENDS(test_a_captures_dependencies_can_be_changed),
    ENDS(test_what_is_taken_out_of_the_dependencies_needs_no_join),
#if CUDART_VERSION >= 12030
    ENDS(test_a_capture_continues_a_graph),
#endif
    ABORTS(test_a_graph_that_is_captured_into_cannot_be_destroyed, "captured into"),
    ENDS(test_a_graph_keeps_the_order_of_its_edges),
    ENDS(test_parameters_are_copied_when_a_node_is_made),
    ENDS(test_a_node_is_refused_when_something_is_wrong),
    ENDS(test_edges_are_added_and_removed_once),
    ENDS(test_what_is_left_of_a_graph_without_a_node_keeps_its_edges),
    ENDS(test_a_circle_has_no_executable),
    ENDS(test_a_clone_is_a_graph_of_its_own),
    ENDS(test_a_child_graph_is_a_copy_that_runs_as_one_node),
    ENDS(test_each_kind_of_node_tells_its_parameters),
    ENDS(test_a_kernel_node_has_a_priority),
    ENDS(test_a_graph_is_written_as_text),
    ENDS(test_random_graphs_run_in_order_and_every_node_once),
    ENDS(test_branches_run_side_by_side),
    ENDS(test_a_launch_is_ordered_among_the_work_of_its_stream),
    ENDS(test_a_legacy_stream_launch_alternates_with_blocking_streams),
    ENDS(test_launches_of_one_executable_follow_each_other),
    ENDS(test_a_launch_with_other_work_waits_for_the_one_before_it),
    ENDS(test_host_functions_run_at_every_launch),
    ENDS(test_event_nodes_act_as_of_the_launch),
    ENDS(test_an_executable_outlives_its_graph_a_launch_outlives_both),
    ENDS(test_a_launch_in_a_capturing_stream_is_refused),
    ENDS(test_a_failing_kernel_of_a_graph_poisons_its_device),
    ENDS(test_an_empty_graph_runs),
    ENDS(test_flags_of_an_executable_are_checked),
    ENDS(test_a_user_object_goes_with_its_last_owner),
    ENDS(test_references_to_a_user_object_are_counted),
    ENDS(test_a_destructor_must_not_call_cuda),
    ABORTS(test_a_reference_that_is_not_the_callers_cannot_be_released, "cudaUserObjectRelease:"),
    ENDS(test_an_executable_is_updated_from_a_graph_or_left_as_it_is),
    ENDS(test_an_update_tells_edges_apart),
    ENDS(test_an_update_pairs_nodes_along_the_edges),
    ENDS(test_an_update_takes_the_graphs_user_objects_over),
    ENDS(test_an_update_says_what_it_cannot_take_over),
    ENDS(test_an_update_goes_into_child_graphs),
    ENDS(test_a_node_of_an_executable_gets_other_parameters),
    ENDS(test_a_node_of_a_graph_gets_other_parameters),
    ENDS(test_a_disabled_node_does_nothing),
#if CUDART_VERSION >= 12050
    ENDS(test_the_driver_makes_kernel_nodes_in_the_requested_form),
#endif
#if CUDART_VERSION >= 12080
    ENDS(test_the_value_that_a_kernel_sets_selects_a_body),
    ENDS(test_a_while_runs_its_body_until_the_value_is_0),
    ENDS(test_conditional_nodes_nest),
    ENDS(test_a_body_uses_a_handle_of_the_outer_graph),
    ENDS(test_a_value_begins_as_its_default_or_as_it_was_left),
    ENDS(test_launches_with_conditions_follow_each_other),
    ENDS(test_two_executables_have_values_of_their_own),
    ENDS(test_a_changed_executable_leaves_pending_bodies_alone),
    ENDS(test_an_update_compares_bodies),
    ENDS(test_a_kernel_outside_of_a_graph_sets_no_condition),
    ENDS(test_a_kernel_sets_no_handle_of_another_graph),
    ENDS(test_a_conditional_handle_is_checked),
    ENDS(test_a_conditional_node_is_checked),
    ENDS(test_the_driver_adds_nodes_with_edge_data_from_12_3_on),
    ENDS(test_a_graph_with_conditions_is_no_part_of_another),
    ENDS(test_a_body_has_nodes_of_some_types_and_one_device),
    ENDS(test_a_body_is_captured),
    ABORTS(test_a_body_of_a_node_is_the_nodes, "belongs to a node"),
    ABORTS(test_a_graph_whose_body_is_captured_into_stays, "captured into"),
    ABORTS(test_memory_of_a_pending_body_is_in_use, "in use by a pending conditional node"),
    ABORTS(test_a_module_of_a_pending_body_stays, "module of a kernel is unloaded"),
    ENDS(test_a_body_that_fails_fails_the_device),
    ENDS(test_an_external_function_needs_the_linker),
    ABORTS(test_a_destroyed_state_of_the_linker_is_none, "is no state of the linker"),
#endif
    ABORTS(test_a_module_must_stay_while_its_kernels_are_launched,
           "module of a kernel is unloaded"),
    ABORTS(test_a_destroyed_graph_is_no_graph, "cudaGraphDestroy:"),
    ABORTS(test_a_node_goes_with_its_graph, "is no node"),
    ABORTS(test_a_destroyed_executable_cannot_be_launched, "cudaGraphLaunch:"),
    ABORTS(test_memory_of_a_copy_must_be_there_at_the_launch, "memory of a copy"),
    ABORTS(test_an_event_of_a_node_must_be_there_at_the_launch, "is no event"),
    ABORTS(test_memory_of_a_launched_graph_is_in_use, "in use by a pending kernel"),
    ABORTS(test_a_graph_of_a_node_is_the_nodes, "belongs to a node"),
    ENDS(test_graphs_executables_and_objects_are_counted),
    ENDS(test_a_failed_call_changes_nothing_but_destroy_calls_destroy),
    ENDS(test_calls_are_logged_and_null_mode_launches_nothing),
    ENDS(test_an_error_of_capture_has_a_name),
    ENDS(test_many_threads_capture_at_once),
};
enum { TESTS = sizeof tests / sizeof *tests };

/* ThreadSanitizer sleeps before a process ends. */
const char *__tsan_default_options(void);

const char *__tsan_default_options(void) {
    return "atexit_sleep_ms=20";
}

static _Noreturn void run_child(const test *it, int to) {
    dup2(to, 1);
    dup2(to, 2);
    close(to);
    alarm(120);
    open_world();
    it->body();
    close_world();
    exit(0);
}

static void run_apart(void **state) {
    const test *it = *state;
    char output[8192], rest[512];
    int ends[2], end_status = 0;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        run_child(it, ends[1]);
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], rest, sizeof rest)) > 0;) {
        size_t room = sizeof output - 1 - length, taken = (size_t)n < room ? (size_t)n : room;
        memcpy(output + length, rest, taken);
        length += taken;
    }
    output[length] = 0;
    close(ends[0]);
    waitpid(child, &end_status, 0);
    if (it->line ? !WIFSIGNALED(end_status) || WTERMSIG(end_status) != SIGABRT ||
                       !strstr(output, it->line)
                 : end_status)
        fail_msg("ended with status %x and: %s", (unsigned)end_status, output);
}

int main(int argc, char **argv) {
    struct CMUnitTest all[TESTS];
    for (int i = 0; argc == 2 && i < TESTS; i++)
        if (!strcmp(argv[1], tests[i].name))
            run_child(&tests[i], 2);
    for (int i = 0; i < TESTS; i++)
        all[i] = (struct CMUnitTest){ tests[i].name, run_apart, NULL, NULL, &tests[i] };
    return cmocka_run_group_tests_name("capture and graphs of the stand-in", all, NULL, NULL);
}
