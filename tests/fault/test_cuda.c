/* The CUDA driver seen from cudart's side: which calls each verb makes, what it leaves in the thread, what becomes of memory and
   streams that cudart made, and a fault at every call in turn. Runs on the stand-in only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <pthread.h>
#include <sched.h>
#include <cmocka.h>
#include <cuda_runtime_api.h>
#include "devstream.h"
#include "kernels_ptx.h"
#include "standin/standin.h"

#define ok(call) \
    do { \
        ds_result ok_result_ = (call); \
        if (ok_result_ != DS_OK) fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_name(ok_result_), ds_last_error()); \
    } while (0)
#define refused(call, code) \
    do { \
        ds_result refused_result_ = (call); \
        if (refused_result_ != (code)) fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_name(refused_result_), ds_last_error()); \
        assert_non_null(strchr(ds_last_error(), ' ')); \
    } while (0)
#define cuda(call) assert_int_equal(call, cudaSuccess)

enum { N = 4096 };

typedef struct fold_args { uint64_t *h, n; } fold_args;

static int fold_item(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    *a->h = *a->h * 1099511628211u + a->n;
    return 0;
}

static ds_kernel make_fold(void) {
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
                                       { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) } };
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "fold", .cpu_fn = fold_item, .args_size = sizeof(fold_args), .params = params,
                                           .param_count = 2, .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } }, &k));
    return k;
}

/* Everything that the verbs below work on. */
typedef struct world {
    ds_stream s, other, elsewhere;   /* two on one device, one on the next */
    ds_event e, never, timed;
    ds_kernel k;
    void *d, *d2, *far, *pin, *pin2; /* device memory, that of the next device, pinned memory */
    char page[N];
    int device;
} world;

static void nothing(void *user) { (void)user; }
static void nothing_called(ds_stream s, ds_result r, void *user) { (void)s; (void)r; (void)user; }

static world *open_world(int device) {
    static world w;
    int reach;
    memset(&w, 0, sizeof w);
    w.device = device;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(device) }, &w.s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(device) }, &w.other));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(device + 1) }, &w.elsewhere));
    ok(ds_event_create(0, NULL, &w.e));
    ok(ds_event_create(0, NULL, &w.never));
    ok(ds_event_create(DS_EVENT_TIMING, NULL, &w.timed));
    ok(ds_alloc(ds_cuda(device), N, &w.d));
    ok(ds_alloc(ds_cuda(device), N, &w.d2));
    ok(ds_alloc(ds_cuda(device + 1), N, &w.far));
    ok(ds_host_alloc(N, &w.pin));
    ok(ds_host_alloc(N, &w.pin2));
    memset(w.pin, 0, N);
    w.k = make_fold();
    /* once, so that what is made at first use is there */
    ok(ds_launch(w.k, 1, &(fold_args){ w.pin, 1 }, sizeof(fold_args), w.s));
    ok(ds_event_record(w.e, w.s));
    ok(ds_event_record(w.timed, w.s));
    ok(ds_stream_wait_stream(w.s, w.other));
    ok(ds_stream_wait_stream(w.elsewhere, w.s));
    ok(ds_device_can_access_peer(ds_cuda(device), ds_cuda(device + 1), &reach));
    ok(ds_device_can_access_peer(ds_cuda(device + 1), ds_cuda(device), &reach));
    ok(ds_device_synchronize(ds_cuda(device)));
    ok(ds_device_synchronize(ds_cuda(device + 1)));
    return &w;
}

static void close_world(world *w) {
    char report[200];
    ok(ds_stream_destroy(w->s));
    ok(ds_stream_destroy(w->other));
    ok(ds_stream_destroy(w->elsewhere));
    ok(ds_event_destroy(w->e));
    ok(ds_event_destroy(w->never));
    ok(ds_event_destroy(w->timed));
    ok(ds_free(w->d));
    ok(ds_free(w->d2));
    ok(ds_free(w->far));
    ok(ds_host_free(w->pin));
    ok(ds_host_free(w->pin2));
    ok(ds_kernel_destroy(w->k));
    ok(ds_shutdown());
    if (standin_live(report, sizeof report) != 0) fail_msg("left behind: %s", report);
    while (cudaGetLastError() != cudaSuccess) {}
    cuda(cudaSetDevice(0));
}

/* X(verb, the call that does it); around it stand what HERE and THERE say. */
#define PEEK "cudaPeekAtLastError cudaGetDevice "
#define HERE(call) PEEK call
#define THERE(call) PEEK "cuCtxPushCurrent:1 " call " cuCtxPopCurrent"
#define HOT_VERBS(X) \
    X(ds_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->s), "cuLaunchKernel") \
    X(ds_copy(w->d, w->pin, N, w->s), "cudaMemcpyAsync:H2D") \
    X(ds_copy(w->pin, w->d, N, w->s), "cudaMemcpyAsync:D2H") \
    X(ds_copy(w->d2, w->d, N, w->s), "cudaMemcpyAsync:D2D") \
    X(ds_copy(w->d, w->page, N, w->s), "cudaMemcpyAsync:Default") \
    X(ds_copy(w->far, w->d, N, w->s), "cudaMemcpyPeerAsync") \
    X(ds_copy(w->pin2, w->pin, N, w->s), "cudaStreamIsCapturing cudaStreamAddCallback") \
    X(ds_copy_2d(w->d2, 64, w->d, 64, 32, 10, w->s), "cudaMemcpy2DAsync:D2D") \
    X(ds_copy_2d(w->far, 64, w->d, 64, 32, 10, w->s), "cudaMemcpy3DPeerAsync") \
    X(ds_fill(w->d, 1, 1, N, w->s), "cudaMemsetAsync") \
    X(ds_fill(w->d, 1, 2, N / 2, w->s), "cuMemsetD16Async") \
    X(ds_fill(w->d, 1, 4, N / 4, w->s), "cuMemsetD32Async") \
    X(ds_event_record(w->e, w->s), "cudaEventRecord") \
    X(ds_stream_wait_event(w->other, w->e), "cudaStreamWaitEvent") \
    X(ds_stream_wait_event(w->other, w->never), "") \
    X(ds_launch_host_func(w->s, nothing, NULL, NULL), "cudaStreamIsCapturing cudaStreamAddCallback") \
    X(ds_add_callback(w->s, nothing_called, NULL, NULL), "cudaStreamAddCallback") \
    X(ds_stream_synchronize(w->s), "cudaStreamSynchronize") \
    X(ds_event_synchronize(w->e), "cudaEventSynchronize") \
    X(ds_stream_query(w->s), "cuStreamQuery") \
    X(ds_event_query(w->e), "cuEventQuery")

#define EXPECT_CALLS(verb, call) \
    standin_log_begin(); \
    result = verb; \
    calls = standin_log_take(); \
    want = !*call ? "" : current ? HERE(call) : THERE(call); \
    if (result != DS_OK) fail_msg("%s is %s: %s", #verb, ds_result_name(result), ds_last_error()); \
    if (strcmp(calls, want) != 0) fail_msg("%s with %s device current calls\n  %s, not\n  %s", #verb, current ? "its" : "another", calls, want);

static void test_hot_verbs_make_these_calls_and_no_others(void **state) {
    (void)state;
    for (int current = 1; current >= 0; current--) {
        world *w = open_world(1);
        ds_result result;
        const char *calls, *want;
        cuda(cudaSetDevice(current));
        HOT_VERBS(EXPECT_CALLS)
        standin_log_begin(); /* two streams, two scopes */
        ok(ds_stream_wait_stream(w->other, w->s));
        calls = standin_log_take();
        assert_string_equal(calls, current ? HERE("cudaEventRecord") " " HERE("cudaStreamWaitEvent")
                                           : THERE("cudaEventRecord") " " THERE("cudaStreamWaitEvent"));
        close_world(w);
    }
}

/* Verbs that ask, make or end something; each leaves the world as it found it. */
static void cold_verbs(world *w, void (*after)(const char *verb)) {
    ds_stream s, t;
    ds_stream_native native;
    ds_event e;
    ds_kernel k;
    ds_device_properties p;
    ds_pointer_info info;
    void *m;
    size_t a, b;
    int x, y;
    double ms;
#define DO(verb) ok(verb); after(#verb);
    DO(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(w->device), .priority = -1 }, &s))
    DO(ds_stream_export(s, &native))
    DO(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &t))
    DO(ds_stream_destroy(t))
    DO(ds_stream_unwrap(s, &native))
    DO(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &s))
    DO(ds_stream_record_new(s, 0, &e))
    DO(ds_stream_synchronize_for(s, 1000000000))
    DO(ds_event_synchronize_for(e, 1000000000))
    DO(ds_event_destroy(e))
    DO(ds_stream_destroy(s))
    DO(ds_event_elapsed_ms(w->timed, w->timed, &ms))
    DO(ds_device_synchronize(ds_cuda(w->device)))
    DO(ds_device_get_properties(ds_cuda(w->device), &p))
    DO(ds_device_memory_info(ds_cuda(w->device), &a, &b))
    DO(ds_device_priority_range(ds_cuda(w->device), &x, &y))
    DO(ds_device_can_access_peer(ds_cuda(w->device), ds_cuda(3), &x))
    DO(ds_device_set(ds_cuda(2)))
    DO(ds_device_push(ds_cuda(3)))
    DO(ds_device_pop())
    DO(ds_stream_push(w->s, 0))
    DO(ds_stream_pop())
    DO(ds_alloc(ds_cuda(w->device), N, &m))
    DO(ds_pointer_query(m, &info))
    DO(ds_free(m))
    DO(ds_host_alloc(N, &m))
    DO(ds_host_free(m))
    DO(ds_host_register(w->page, N))
    DO(ds_host_unregister(w->page))
    DO(ds_stream_legacy(ds_cuda(w->device), &s))
    DO(ds_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), s))
    DO(ds_copy(w->d, w->pin, N, s))
    DO(ds_event_record(w->e, s))
    DO(ds_stream_wait_stream(s, w->elsewhere))
    DO(ds_stream_synchronize(w->elsewhere))
    DO(ds_stream_synchronize(s))
    DO(ds_stream_query(s))
    DO(ds_stream_per_thread(ds_cuda(w->device), &s))
    DO(ds_fill(w->d, 7, 1, N, s))
    DO(ds_fill(w->far, 7, 4, N / 4, s)) /* another device's memory */
    DO(ds_launch_host_func(s, nothing, NULL, NULL))
    DO(ds_stream_synchronize(s))
    k = make_fold();
    DO(ds_kernel_load(k, ds_cuda(w->device)))
    DO(ds_kernel_destroy(k))
    ok(ds_alloc(ds_cpu(0), N, &m));
    DO(ds_copy(w->d, m, N, w->s))
    DO(ds_copy(m, w->d, N, w->s))
    DO(ds_stream_synchronize(w->s))
    ok(ds_free(m));
#undef DO
}

static int device_before;
static void expect_device(const char *verb) {
    int now = -1;
    cuda(cudaGetDevice(&now));
    if (now != device_before) fail_msg("%s has made device %d current, not %d", verb, now, device_before);
}

static void test_no_verb_changes_the_current_device(void **state) {
    (void)state;
    for (device_before = 0; device_before < 3; device_before += 2) {
        cuda(cudaSetDevice(device_before));
        world *w = open_world(1);
        expect_device("making the world");
#define THEN_EXPECT_DEVICE(verb, call) ok(verb); expect_device(#verb);
        HOT_VERBS(THEN_EXPECT_DEVICE)
        cold_verbs(w, expect_device);
        cuda(cudaSetDevice(device_before));
        refused(ds_alloc(ds_cuda(1), (size_t)1 << 60, &w->d2), DS_ERR_OUT_OF_MEMORY);
        expect_device("an allocation that fails");
        assert_null(w->d2);
        close_world(w);
    }
}

static void expect_users_error(const char *verb) {
    cudaError_t now = cudaPeekAtLastError();
    if (now != cudaErrorInvalidDevice) fail_msg("after %s the user's error is %d", verb, (int)now);
}
static void expect_no_error(const char *verb) {
    cudaError_t now = cudaPeekAtLastError();
    if (now != cudaSuccess) fail_msg("%s has left the error %d", verb, (int)now);
}

static void test_the_users_own_error_survives_and_none_of_ours_is_left(void **state) {
    (void)state;
    for (int with_error = 0; with_error < 2; with_error++) {
        world *w = open_world(1);
        void (*expect)(const char *verb) = with_error ? expect_users_error : expect_no_error;
        if (with_error) assert_int_equal(cudaSetDevice(99), cudaErrorInvalidDevice);
#define THEN_EXPECT_ERROR(verb, call) ok(verb); expect(#verb);
        HOT_VERBS(THEN_EXPECT_ERROR)
        cold_verbs(w, expect);
        /* pending work: "not ready" is no error */
        standin_hold(1);
        ok(ds_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->s));
        ok(ds_event_record(w->timed, w->s));
        assert_int_equal(ds_stream_query(w->s), DS_NOT_READY);
        expect("a query of a stream with work");
        assert_int_equal(ds_event_query(w->timed), DS_NOT_READY);
        expect("a query of an event that is not reached");
        assert_int_equal(ds_stream_synchronize_for(w->s, 1000000), DS_NOT_READY);
        assert_int_equal(ds_event_synchronize_for(w->timed, 1000000), DS_NOT_READY);
        expect("waits that ran out of time");
        standin_hold(0);
        ok(ds_stream_synchronize(w->s));
        /* refused before cudart is asked */
        refused(ds_copy(w->d, w->pin, N + 1, w->s), DS_ERR_INVALID_VALUE);
        refused(ds_stream_query((ds_stream){ 12345 }), DS_ERR_INVALID_HANDLE);
        expect("refused calls");
        /* refused by cudart: an error stays, but none appears */
        void *m;
        refused(ds_alloc(ds_cuda(1), (size_t)1 << 60, &m), DS_ERR_OUT_OF_MEMORY);
        assert_true((cudaPeekAtLastError() != cudaSuccess) == with_error);
        close_world(w);
    }
}

static void test_asking_makes_no_context(void **state) {
    (void)state;
    unsigned before = standin_contexts();
    int count;
    char text[600];
    ok(ds_device_count(DS_DEVICE_CUDA, &count));
    ok(ds_backend_report(text, sizeof text));
    assert_int_equal(standin_contexts(), before);
    assert_non_null(strstr(text, "taken: 4 devices"));
    ok(ds_shutdown());
    assert_int_equal(standin_contexts(), before);
    print_message("%s", text);
}

static void *use_device_2(void *none) {
    (void)none;
    ds_stream s;
    ds_event e;
    void *d, *pin;
    if (ds_device_set(ds_cuda(2)) < 0 || ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(2) }, &s) < 0 ||
        ds_alloc(ds_cuda(2), N, &d) < 0 || ds_host_alloc(N, &pin) < 0 || ds_fill(d, 1, 1, N, s) < 0 || ds_copy(pin, d, N, s) < 0 ||
        ds_stream_record_new(s, 0, &e) < 0 || ds_event_query(e) < 0 || ds_stream_query(s) < 0 || ds_event_synchronize(e) < 0 ||
        ds_event_destroy(e) < 0 || ds_stream_destroy(s) < 0 || ds_free(d) < 0 || ds_host_free(pin) < 0) {
        fprintf(stderr, "%s\n", ds_last_error());
        abort();
    }
    return NULL;
}

static void test_work_makes_no_context_on_a_device_that_is_not_used(void **state) {
    (void)state;
    assert_int_equal(standin_contexts(), 0); /* no test before this has made one */
    pthread_t thread;                        /* in threads whose current device is 0, as every thread begins */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread, NULL, use_device_2, NULL), 0);
        pthread_join(thread, NULL);
    }
    ok(ds_shutdown());
    assert_int_equal(standin_contexts(), 1 << 2);
}

/* ---- what cudart made ---- */

static _Atomic int releases;
static void released(void *user) { (void)user; releases++; }

static void test_a_stream_of_cudart_is_wrapped_and_stays_its_owners(void **state) {
    (void)state;
    cudaStream_t native;
    ds_stream s, again;
    unsigned flags;
    int effective;
    ds_stream_native n = { .device = ds_cuda(2) };
    cuda(cudaSetDevice(2));
    cuda(cudaStreamCreateWithPriority(&native, cudaStreamNonBlocking, -2));
    cuda(cudaSetDevice(0));
    n.handle = native;
    releases = 0;
    ok(ds_stream_wrap(&n, DS_BORROW, released, NULL, &s));
    ok(ds_stream_wrap(&n, DS_BORROW, released, NULL, &again));
    assert_true(ds_stream_equal(s, again));
    ok(ds_stream_flags(s, &flags));
    assert_int_equal(flags, DS_STREAM_NON_BLOCKING);
    ok(ds_stream_priority(s, &effective, NULL));
    assert_int_equal(effective, -2);
    void *d, *pin;
    ok(ds_alloc(ds_cuda(2), N, &d));
    ok(ds_host_alloc(N, &pin));
    ok(ds_fill(d, 0x5a, 1, N, s));
    ok(ds_copy(pin, d, N, again));
    cuda(cudaStreamSynchronize(native));
    for (int i = 0; i < N; i++) assert_int_equal(((unsigned char *)pin)[i], 0x5a);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(again));
    assert_int_equal(releases, 2);
    cuda(cudaStreamQuery(native)); /* the stand-in aborts if it was destroyed */
    ds_stream wrong;
    n.device = ds_cuda(1);
    refused(ds_stream_wrap(&n, DS_BORROW, released, NULL, &wrong), DS_ERR_INVALID_VALUE); /* a stream of another device */
    assert_int_equal(releases, 3);
    n.device = ds_cuda(2);
    ok(ds_stream_wrap(&n, DS_OWN, NULL, NULL, &s));
    refused(ds_stream_wrap(&n, DS_OWN, NULL, NULL, &again), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
    ok(ds_free(d));
    ok(ds_host_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_memory_of_cudart_is_copied_and_filled_and_not_freed(void **state) {
    (void)state;
    void *theirs, *far, *pinned, *ours;
    ds_pointer_info info;
    ds_stream s, cpu;
    static unsigned char page[N];
    cuda(cudaMalloc(&theirs, N));
    cuda(cudaSetDevice(1));
    cuda(cudaMalloc(&far, N));
    cuda(cudaSetDevice(0));
    cuda(cudaHostAlloc(&pinned, N, cudaHostAllocPortable));
    ok(ds_pointer_query((char *)far + 5, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    assert_int_equal(info.device.type, DS_DEVICE_CUDA);
    assert_int_equal(info.device.index, 1);
    assert_ptr_equal(info.base, far);
    ok(ds_pointer_query(pinned, &info));
    assert_int_equal(info.kind, DS_MEMORY_PINNED);
    ok(ds_pointer_query(page, &info));
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_alloc(ds_cuda(0), N, &ours));
    ok(ds_fill(theirs, 1, 1, N, s));
    ok(ds_copy(ours, theirs, N, s));
    ok(ds_copy(far, ours, N, s));
    ok(ds_copy_peer(theirs, ds_cuda(0), far, ds_cuda(1), N, s));
    refused(ds_copy_peer(theirs, ds_cuda(1), far, ds_cuda(1), N, s), DS_ERR_DEVICE_MISMATCH);
    ok(ds_fill(far, 2, 1, N / 2, s)); /* on another device than the stream */
    ok(ds_copy(pinned, far, N, s));
    ok(ds_copy(page, pinned, N, s));
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < N; i++) assert_int_equal(page[i], i < N / 2 ? 2 : 1);
    memset(page, 9, N);
    ok(ds_copy(theirs, page, N, cpu)); /* on a stream of the CPU driver */
    ok(ds_copy(pinned, theirs, N, cpu));
    ok(ds_stream_synchronize(cpu));
    for (int i = 0; i < N; i++) assert_int_equal(((unsigned char *)pinned)[i], 9);
    refused(ds_fill(theirs, 1, 1, N, cpu), DS_ERR_CROSS_DRIVER);
    refused(ds_free(theirs), DS_ERR_INVALID_VALUE);
    refused(ds_host_free(pinned), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(cpu));
    ok(ds_free(ours));
    ok(ds_shutdown());
    cuda(cudaFree(theirs));
    cuda(cudaFree(far));
    cuda(cudaFreeHost(pinned));
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_peer_access_that_the_program_enabled_is_fine(void **state) {
    (void)state;
    int can;
    cuda(cudaSetDevice(2));
    cuda(cudaDeviceEnablePeerAccess(3, 0));
    cuda(cudaSetDevice(0));
    ok(ds_device_can_access_peer(ds_cuda(2), ds_cuda(3), &can));
    assert_int_equal(can, 1);
    expect_no_error("asking for peer access");
    ok(ds_shutdown());
    cuda(cudaSetDevice(2));
    cuda(cudaDeviceDisablePeerAccess(3));
    cuda(cudaSetDevice(0));
}

/* What was given away may be destroyed at any time, so asking for the legacy stream must not ask for it (the stand-in aborts). */
static void test_the_legacy_stream_does_not_ask_for_streams_that_were_given_away(void **state) {
    (void)state;
    ds_stream s, legacy, wrapper;
    ds_stream_native n;
    cudaStream_t theirs;
    ok(ds_stream_legacy(ds_cuda(0), &legacy));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .flags = DS_STREAM_BLOCKING }, &s));
    ok(ds_stream_unwrap(s, &n));
    cuda(cudaStreamDestroy(n.handle));
    ok(ds_stream_query(legacy));
    ok(ds_stream_synchronize(legacy));
    cuda(cudaStreamCreateWithFlags(&theirs, cudaStreamDefault));
    ok(ds_stream_wrap(&(ds_stream_native){ .device = ds_cuda(0), .handle = theirs }, DS_BORROW, NULL, NULL, &wrapper));
    ok(ds_stream_use(wrapper, 0, NULL)); /* which keeps the wrapper alive */
    ok(ds_stream_destroy(wrapper));
    cuda(cudaStreamDestroy(theirs));
    ok(ds_stream_query(legacy));
    ok(ds_stream_synchronize_for(legacy, 1000000));
    ok(ds_stream_use(legacy, 0, NULL));
    ok(ds_shutdown());
}

static void block_until(void *flag) { while (!*(_Atomic int *)flag) sched_yield(); }

/* Fills and copies that concern another device's memory only must not tie streams together. */
static void test_work_on_another_devices_memory_waits_for_its_own_stream_only(void **state) {
    (void)state;
    ds_stream a, b, cpu;
    void *far, *pin;
    _Atomic int go = 0;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &a));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(2) }, &b));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_alloc(ds_cuda(1), N, &far));
    ok(ds_host_alloc(N, &pin));
    ok(ds_launch_host_func(a, block_until, &go, NULL));
    ok(ds_fill(far, 1, 1, 100, a));
    ok(ds_copy((char *)far + 100, pin, 100, a)); /* on a stream of neither */
    ok(ds_fill((char *)far + 200, 2, 1, N - 200, b));
    ok(ds_copy(pin, (char *)far + 200, N - 200, b));
    ok(ds_stream_synchronize(b));
    assert_int_equal(((unsigned char *)pin)[0], 2);
    ok(ds_fill(pin, 3, 1, N, cpu));
    ok(ds_copy((char *)far + 200, pin, N - 200, cpu));
    ok(ds_stream_synchronize(cpu));
    assert_int_equal(ds_stream_query(a), DS_NOT_READY);
    go = 1;
    ok(ds_stream_synchronize(a));
    void *virtual_memory; /* of the CPU driver: to and fro on a stream of another GPU */
    ok(ds_alloc(ds_cpu(0), N, &virtual_memory));
    ok(ds_copy(virtual_memory, far, N, b));
    ok(ds_fill(far, 0, 1, N, b));
    ok(ds_copy(far, virtual_memory, N, b));
    ok(ds_stream_synchronize(b));
    ok(ds_free(virtual_memory));
    ok(ds_copy(pin, far, N, b));
    ok(ds_stream_synchronize(b));
    for (int i = 0; i < N; i++) assert_int_equal(((unsigned char *)pin)[i], i < 100 ? 1 : 3);
    ok(ds_stream_destroy(a));
    ok(ds_stream_destroy(b));
    ok(ds_stream_destroy(cpu));
    ok(ds_free(far));
    ok(ds_host_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_copies_between_the_drivers_share_one_buffer_per_stream(void **state) {
    (void)state;
    ds_stream s;
    void *d, *m;
    unsigned char back[64];
    unsigned long before = standin_calls("cudaHostAlloc");
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_alloc(ds_cuda(0), 64 * 100, &d));
    ok(ds_alloc(ds_cpu(0), 64 * 100, &m));
    for (int i = 0; i < 64 * 100; i++) ((unsigned char *)m)[i] = (unsigned char)(i / 64);
    for (int i = 0; i < 100; i++) ok(ds_copy((char *)d + 64 * i, (char *)m + 64 * i, 64, s));
    for (int i = 0; i < 100; i++) ok(ds_copy((char *)m + 64 * i, (char *)d + 64 * (99 - i), 64, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(standin_calls("cudaHostAlloc") - before, 1);
    for (int i = 0; i < 100; i++) {
        memset(back, 99 - i, sizeof back);
        assert_memory_equal((char *)m + 64 * i, back, 64);
    }
    ok(ds_stream_destroy(s));
    ok(ds_free(d));
    ok(ds_free(m));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* The stand-in's n-th call from here fails; which one that is stands in the log of calls of a run without a fault. */
static void test_calls_whose_failure_means_something_else_are_understood(void **state) {
    (void)state;
    int can = 1;
    ds_stream s, cpu, wrapper;
    ds_stream_native n;
    ds_event e;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    cuda(cudaSetDevice(3)); /* a pair that no other test asks about: answers are kept */
    standin_fail(4, cudaErrorTooManyPeers); /* cudaGetDevice, cudaDeviceCanAccessPeer, the thread's mode, cudaDeviceEnablePeerAccess */
    ok(ds_device_can_access_peer(ds_cuda(3), ds_cuda(0), &can));
    assert_int_equal(standin_failed(), 1);
    assert_int_equal(can, 0); /* a copy is staged then */
    cuda(cudaSetDevice(1));
    ok(ds_stream_export(s, &n));
    standin_fail(4, cudaErrorCallRequiresNewerDriver); /* cudaGetDevice, and of the stream: flags, priority, device */
    ok(ds_stream_wrap(&n, DS_BORROW, NULL, NULL, &wrapper));
    assert_int_equal(standin_failed(), 1);
    ok(ds_stream_destroy(wrapper));
    ok(ds_event_create(0, NULL, &e));
    standin_fail(4, cudaErrorUnknown); /* cudaGetDevice, cudaEventCreateWithFlags, cudaGetDevice, cudaEventRecord */
    refused(ds_event_record(e, s), DS_ERR_DRIVER);
    assert_int_equal(standin_failed(), 1);
    ok(ds_event_query(e));
    refused(ds_event_record(e, cpu), DS_ERR_CROSS_DRIVER); /* a reader may still have what was made for CUDA */
    ok(ds_event_record(e, s));
    ok(ds_event_synchronize(e));
    standin_fail(0, 0);
    expect_no_error("what was understood");
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(cpu));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
    cuda(cudaSetDevice(0));
}

static void *wrap_own_stream(void *out) {
    ds_stream_native n = { .device = ds_cuda(0), .handle = (void *)2 };
    if (ds_stream_wrap(&n, DS_BORROW, NULL, NULL, out) < 0) abort();
    return NULL;
}

static void test_a_wrapper_of_a_threads_own_stream_may_outlive_the_thread(void **state) {
    (void)state;
    ds_stream s, other;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wrap_own_stream, &s), 0);
    pthread_join(thread, NULL);
    ok(ds_stream_create(NULL, &other)); /* frees what the thread has left */
    ok(ds_stream_destroy(other));
    refused(ds_stream_query(s), DS_ERR_UNSUPPORTED);
    refused(ds_stream_synchronize(s), DS_ERR_UNSUPPORTED);
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* ---- kernels ---- */

static void registered_function(void) {}

static void test_cubins_fatbins_and_registered_functions_run(void **state) {
    (void)state;
    static const unsigned char cubin[64] = { 0x7f, 'E', 'L', 'F' };
    static const unsigned char fatbin[64] = { 0x50, 0xed, 0x55, 0xba };
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
                                       { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) } };
    ds_kernel_cuda forms[] = { { .image = cubin, .image_size = sizeof cubin, .entry = "fold", .block = 1 },
                               { .image = fatbin, .image_size = sizeof fatbin, .entry = "fold", .block = 1 },
                               { .block = 1 } };
    void (*fn)(void) = registered_function;
    const void *native;
    memcpy(&native, &fn, sizeof native);
    forms[2].native_fn = native;
    standin_register_image(cubin, ptx_fold);
    standin_register_image(fatbin, ptx_fold);
    standin_register_function(native, ptx_fold, "fold");
    uint64_t *h;
    void *pin;
    ok(ds_host_alloc(sizeof *h, &pin));
    h = pin;
    for (int device = 0; device < 2; device++)
        for (size_t i = 0; i < 3; i++) {
            ds_kernel k;
            ds_stream s;
            ok(ds_kernel_create(&(ds_kernel_desc){ .name = "fold", .args_size = sizeof(fold_args), .params = params, .param_count = 2,
                                                   .cuda = forms[i] }, &k));
            ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(device) }, &s));
            *h = 5;
            ok(ds_launch(k, 1, &(fold_args){ h, 9 }, sizeof(fold_args), s));
            ok(ds_stream_synchronize(s));
            assert_true(*h == 5 * 1099511628211u + 9);
            ok(ds_kernel_destroy(k));
            ok(ds_stream_destroy(s));
        }
    ok(ds_host_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_an_image_without_a_form_for_the_gpu_is_refused(void **state) {
    (void)state;
    static const unsigned char cubin[64] = { 0x7f, 'E', 'L', 'F', 1 };
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "strange", .cuda = { .image = cubin, .image_size = sizeof cubin, .entry = "x" } }, &k));
    refused(ds_kernel_load(k, ds_cuda(0)), DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ds_last_error(), "strange"));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

static void test_kernels_of_one_image_share_its_module_and_unload_it(void **state) {
    (void)state;
    unsigned long loads = standin_calls("cuModuleLoadDataEx"), unloads = standin_calls("cuModuleUnload");
    ds_kernel a = make_fold(), b = make_fold();
    ok(ds_kernel_load(a, ds_cuda(0)));
    ok(ds_kernel_load(b, ds_cuda(0)));
    ok(ds_kernel_load(b, ds_cuda(1)));
    assert_int_equal(standin_calls("cuModuleLoadDataEx") - loads, 2); /* one per device */
    ok(ds_kernel_destroy(a));
    ok(ds_device_synchronize(ds_cuda(0)));
    assert_int_equal(standin_calls("cuModuleUnload") - unloads, 0);
    ok(ds_kernel_destroy(b));
    ok(ds_device_synchronize(ds_cuda(0))); /* nothing can still run it */
    assert_int_equal(standin_calls("cuModuleUnload") - unloads, 1);
    ok(ds_shutdown());
    assert_int_equal(standin_calls("cuModuleUnload") - unloads, 2);
}

static void test_more_shared_memory_than_every_gpu_has_is_asked_for(void **state) {
    (void)state;
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, 0, sizeof(uint32_t *) } };
    void (*fn)(void) = registered_function;
    const void *native;
    void *pin;
    memcpy(&native, &fn, sizeof native);
    standin_register_function(native, ptx_turn_around, "turn_around");
    ok(ds_host_alloc(32 * sizeof(uint32_t), &pin));
    for (int form = 0; form < 2; form++) {
        ds_kernel k;
        ds_stream s;
        uint32_t *v = pin;
        ds_kernel_cuda cuda = { .native_fn = native };
        if (form == 0) cuda = (ds_kernel_cuda){ .image = ptx_turn_around, .entry = "turn_around" };
        ok(ds_kernel_create(&(ds_kernel_desc){ .name = "turn_around", .args_size = sizeof v, .params = params, .param_count = 1, .cuda = cuda }, &k));
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s));
        for (uint32_t i = 0; i < 32; i++) v[i] = i;
        ok(ds_launch_grid(k, &(ds_grid){ { 1, 1, 1 }, { 32, 1, 1 }, 100000 }, &v, sizeof v, s));
        ok(ds_stream_synchronize(s));
        for (uint32_t i = 0; i < 32; i++) assert_int_equal(v[i], 31 - i);
        refused(ds_launch_grid(k, &(ds_grid){ { 1, 1, 1 }, { 32, 1, 1 }, 300000 }, &v, sizeof v, s), DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_last_error(), "turn_around"));
        ok(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
        ok(ds_kernel_destroy(k));
    }
    ok(ds_host_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* A kernel that is launched and destroyed while another thread waits for the device: the wait is for earlier work only. */
static void *wait_for_device_0(void *done) {
    if (ds_device_synchronize(ds_cuda(0)) < 0) abort();
    *(_Atomic int *)done = 1;
    return NULL;
}

static void test_a_kernel_that_is_destroyed_during_a_wait_keeps_its_code_until_it_has_run(void **state) {
    (void)state;
    ds_stream s, t;
    void *pin;
    pthread_t thread;
    _Atomic int first = 0, second = 0, done = 0;
    ok(ds_host_alloc(sizeof(uint64_t), &pin));
    *(uint64_t *)pin = 5;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &t));
    ds_kernel k = make_fold();
    ok(ds_kernel_load(k, ds_cuda(0)));
    ok(ds_launch_host_func(s, block_until, &first, NULL));
    unsigned long calls = standin_calls("cudaDeviceSynchronize");
    assert_int_equal(pthread_create(&thread, NULL, wait_for_device_0, &done), 0);
    while (standin_calls("cudaDeviceSynchronize") == calls) sched_yield();
    usleep(20000); /* it waits for what was there */
    ok(ds_launch_host_func(t, block_until, &second, NULL));
    ok(ds_launch(k, 1, &(fold_args){ pin, 9 }, sizeof(fold_args), t));
    ok(ds_kernel_destroy(k));
    first = 1;
    for (int i = 0; i < 2000 && !done; i++) usleep(100); /* the stand-in aborts when the code goes now */
    second = 1;
    pthread_join(thread, NULL);
    ok(ds_stream_synchronize(t));
    assert_true(*(uint64_t *)pin == 5 * 1099511628211u + 9);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_host_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_counts_of_four_bytes_are_never_split(void **state) {
    (void)state;
    static const ds_param params[] = { { DS_PARAM_FIRST, 0, 4 }, { DS_PARAM_COUNT, 0, 4 } };
    ds_kernel k;
    ds_stream s;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "narrow", .params = params, .param_count = 2,
                                           .cuda = { .image = ptx_fold, .entry = "fold", .items_per_block = 1 } }, &k));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    refused(ds_launch(k, (size_t)1 << 33, NULL, 0, s), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_stream_query(s), DS_OK); /* nothing was launched */
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

static void test_an_image_need_not_end_with_a_zero_when_its_size_is_given(void **state) {
    (void)state;
    size_t size = strlen(ptx_fold), page = (size_t)sysconf(_SC_PAGESIZE), pages = (size + page - 1) / page * page;
    char *memory = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    char *image = memcpy(memory + pages - size, ptx_fold, size); /* who reads on meets a page that cannot be read */
    assert_int_equal(mprotect(memory + pages, page, PROT_NONE), 0);
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "fold", .args_size = sizeof(fold_args), .cuda = { .image = image, .image_size = size, .entry = "fold" } }, &k));
    ok(ds_kernel_load(k, ds_cuda(0)));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
    munmap(memory, pages + page);
}

static void test_loads_that_fail_leave_no_module(void **state) {
    (void)state;
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "fold", .cuda = { .image = ptx_fold, .entry = "absent" } }, &k));
    for (int i = 0; i < 5; i++) {
        refused(ds_kernel_load(k, ds_cuda(0)), DS_ERR_INVALID_VALUE);
        assert_int_equal(standin_live(NULL, 0), 0);
    }
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

/* After a failure of the device, which cannot be undone: in a process of its own, which runs this test only. */
typedef struct slow { _Atomic int entered, done, called, ended, bad; } slow;
static void slow_fn(void *user) {
    slow *x = user;
    x->entered = 1;
    usleep(300000); /* three times as long as shutdown waits for what does not move */
    x->done = 1;
}
static void slow_callback(ds_stream s, ds_result status, void *user) {
    slow *x = user;
    (void)s;
    x->bad += !x->done || status != DS_ERR_FAILED;
    x->called++;
}
static void slow_end(void *user) { ((slow *)user)->ended++; }

static void fail_and_shut_down(void) {
    static slow x;
    ds_stream s, t;
    ds_kernel k;
    void *d, *m;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &t));
    ok(ds_alloc(ds_cuda(0), N, &d));
    ok(ds_alloc(ds_cpu(0), N, &m));
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "explode", .cuda = { .image = ptx_explode, .entry = "explode", .block = 1 } }, &k));
    ok(ds_kernel_load(k, ds_cuda(0)));
    ok(ds_launch_host_func(s, slow_fn, &x, slow_end));
    ok(ds_copy(d, m, N, s)); /* host functions of the library's own */
    ok(ds_add_callback(s, slow_callback, &x, slow_end));
    while (!x.entered) sched_yield();
    ok(ds_launch(k, 1, NULL, 0, t));
    refused(ds_stream_synchronize(t), DS_ERR_FAILED);
    refused(ds_shutdown(), DS_ERR_FAILED);
    assert_int_equal(x.done, 1);
    assert_int_equal(x.called, 1);
    assert_int_equal(x.ended, 2);
    assert_int_equal(x.bad, 0);
}

static void test_shutdown_waits_for_what_a_failed_device_still_runs(void **state) {
    (void)state;
    char command[400], self[300];
    if (getenv("FAULT_CHILD")) { fail_and_shut_down(); return; }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "FAULT_CHILD=1 '%s' shutdown_waits >&2", self);
    assert_int_equal(system(command), 0);
}

static void test_shutdown_releases_what_was_left(void **state) {
    (void)state;
    static char page[N];
    ds_stream s;
    ds_event e;
    void *m;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s));
    ok(ds_stream_record_new(s, 0, &e));
    ok(ds_alloc(ds_cuda(1), N, &m));
    ok(ds_fill(m, 0, 1, N, s));
    ok(ds_host_alloc(N, &m));
    ok(ds_host_register(page, N));
    (void)make_fold();
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* ---- faults ---- */

static long taken, returned;
static pthread_mutex_t bank = PTHREAD_MUTEX_INITIALIZER;
static void *bank_alloc(size_t size, void *user) {
    (void)user;
    pthread_mutex_lock(&bank);
    taken++;
    pthread_mutex_unlock(&bank);
    return malloc(size);
}
static void bank_free(void *ptr, void *user) {
    (void)user;
    pthread_mutex_lock(&bank);
    returned++;
    pthread_mutex_unlock(&bank);
    free(ptr);
}

static _Atomic int payloads_made, payloads_gone;
static void payload_gone(void *user) { (void)user; payloads_gone++; }
static void add_one(void *user) { ++*(uint64_t *)user; }
static void add_two(ds_stream s, ds_result status, void *user) { (void)s; if (status == DS_OK) *(uint64_t *)user += 2; }
static int silent;
static ds_result noted(ds_result r) { if (r < 0 && !strchr(ds_last_error(), ' ')) silent++; return r; }
#define STEP(call) do { if ((r = noted(call)) < 0) goto done; } while (0)
#define END(call) do { ds_result c_ = noted(call); if (c_ < 0 && r >= 0) r = c_; } while (0)

/* Uses everything once; the first failure, or DS_OK: then *value was right. */
static ds_result little_program(void) {
    static unsigned char page[N];
    ds_result r;
    ds_stream a = { 0 }, b = { 0 }, legacy, own, wrapped = { 0 };
    ds_stream_native native;
    ds_event e = { 0 }, e2 = { 0 };
    ds_kernel k = { 0 };
    void *dev = NULL, *far = NULL, *cpu = NULL, *pin = NULL;
    int registered = 0, peer;
    double ms;
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
                                       { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) } };
    STEP(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .label = "a", .flags = DS_STREAM_BLOCKING }, &a));
    STEP(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1), .label = "b" }, &b));
    STEP(ds_stream_export(b, &native));
    STEP(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &wrapped));
    STEP(ds_stream_legacy(ds_cuda(0), &legacy));
    STEP(ds_stream_per_thread(ds_cuda(0), &own));
    STEP(ds_event_create(DS_EVENT_TIMING, "e", &e));
    STEP(ds_kernel_create(&(ds_kernel_desc){ .name = "fold", .cpu_fn = fold_item, .args_size = sizeof(fold_args), .params = params,
                                             .param_count = 2, .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } }, &k));
    STEP(ds_alloc(ds_cuda(0), N, &dev));
    STEP(ds_alloc(ds_cuda(1), N, &far));
    STEP(ds_alloc(ds_cpu(0), N, &cpu));
    STEP(ds_host_alloc(N, &pin));
    STEP(ds_host_register(page, N));
    registered = 1;
    STEP(ds_device_can_access_peer(ds_cuda(0), ds_cuda(1), &peer));
    uint64_t *h = pin;
    *h = 3;
    for (uint64_t i = 0; i < 2; i++) STEP(ds_launch(k, 1, &(fold_args){ h, i }, sizeof(fold_args), a));
    STEP(ds_event_record(e, a));
    STEP(ds_stream_wait_event(wrapped, e));
    STEP(ds_launch_host_func(b, add_one, h, NULL));
    STEP(ds_stream_wait_stream(legacy, b));
    STEP(ds_add_callback(legacy, add_two, h, NULL));
    payloads_made++;
    STEP(ds_launch_host_func(own, add_one, h, payload_gone)); /* behind the legacy stream */
    STEP(ds_stream_record_new(own, 0, &e2));
    STEP(ds_stream_wait_event(a, e2));
    STEP(ds_copy(dev, pin, N, a));
    STEP(ds_copy(far, dev, N, a));
    STEP(ds_fill(dev, 0, 1, N, a));
    STEP(ds_fill(far, 0, 4, 1, a)); /* its low half, on the other device */
    STEP(ds_copy_2d(dev, 64, far, 64, 32, 10, a));
    STEP(ds_copy(cpu, dev, N, a)); /* to the other driver and back */
    STEP(ds_fill(dev, 0, 2, N / 2, a));
    STEP(ds_copy(dev, cpu, N, a));
    STEP(ds_copy(page, dev, N, a));
    STEP(ds_copy(pin, page, 8, a)); /* between host memory */
    STEP(ds_stream_synchronize(a));
    STEP(ds_event_elapsed_ms(e, e, &ms));
    STEP(ds_stream_synchronize_for(b, 1000000000));
    STEP(ds_device_synchronize(ds_cuda(1)));
    uint64_t want = ((3 * 1099511628211u + 0) * 1099511628211u + 1 + 4) & 0xffffffff00000000u;
    if (*h != want) fail_msg("the program computed %llx, not %llx", (unsigned long long)*h, (unsigned long long)want);
done:
    if (wrapped.id) END(ds_stream_destroy(wrapped));
    if (a.id) END(ds_stream_destroy(a));
    if (b.id) END(ds_stream_destroy(b));
    if (e.id) END(ds_event_destroy(e));
    if (e2.id) END(ds_event_destroy(e2));
    if (k.id) END(ds_kernel_destroy(k));
    END(ds_free(dev));
    END(ds_free(far));
    END(ds_free(cpu));
    END(ds_host_free(pin));
    if (registered) END(ds_host_unregister(page));
    END(ds_shutdown());
    return r;
}

/* In turn, every call of cudart and of the driver gives this code. */
static void fail_every_call(int code) {
    char report[200];
    unsigned long n;
    int failures = 0;
    for (n = 1; ; n++) {
        if (n > 5000) fail_msg("the program makes ever more calls");
        silent = 0;
        payloads_made = 0;
        payloads_gone = 0;
        taken = returned = 0;
        ok(ds_init(&(ds_init_desc){ .allocator = { bank_alloc, bank_free, NULL } }));
        alarm(60);
        standin_fail(n, code);
        ds_result r = little_program();
        int hit = standin_failed();
        standin_fail(0, 0);
        DS_IGNORE(ds_shutdown()); /* in case the fault hit the first one */
        alarm(0);
        if (silent) fail_msg("call %lu: %d failures without a sentence", n, silent);
        if (standin_live(report, sizeof report) != 0) fail_msg("call %lu: left behind: %s", n, report);
        if (taken != returned) fail_msg("call %lu: %ld blocks taken, %ld returned", n, taken, returned);
        if (payloads_made != payloads_gone) fail_msg("call %lu: %d payloads, %d ended", n, payloads_made, payloads_gone);
        while (cudaGetLastError() != cudaSuccess) {}
        failures += r < 0;
        if (!hit) { ok(r); break; }
    }
    print_message("          %lu calls, %d of them fatal to the program\n", n - 1, failures);
    assert_true(failures > 50);
}

static void test_every_call_that_fails_is_a_result_and_leaks_nothing(void **state) {
    (void)state;
    fail_every_call(cudaErrorUnknown);
}

static void test_every_call_that_runs_out_of_memory_is_a_result_and_leaks_nothing(void **state) {
    (void)state;
    fail_every_call(cudaErrorMemoryAllocation);
}

static int setup(void **state) { (void)state; alarm(120); return 0; }

int main(int argc, char **argv) {
    static char pattern[200];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_asking_makes_no_context, setup), /* first */
        cmocka_unit_test_setup(test_work_makes_no_context_on_a_device_that_is_not_used, setup), /* second */
        cmocka_unit_test_setup(test_hot_verbs_make_these_calls_and_no_others, setup),
        cmocka_unit_test_setup(test_no_verb_changes_the_current_device, setup),
        cmocka_unit_test_setup(test_the_users_own_error_survives_and_none_of_ours_is_left, setup),
        cmocka_unit_test_setup(test_a_stream_of_cudart_is_wrapped_and_stays_its_owners, setup),
        cmocka_unit_test_setup(test_memory_of_cudart_is_copied_and_filled_and_not_freed, setup),
        cmocka_unit_test_setup(test_the_legacy_stream_does_not_ask_for_streams_that_were_given_away, setup),
        cmocka_unit_test_setup(test_work_on_another_devices_memory_waits_for_its_own_stream_only, setup),
        cmocka_unit_test_setup(test_copies_between_the_drivers_share_one_buffer_per_stream, setup),
        cmocka_unit_test_setup(test_calls_whose_failure_means_something_else_are_understood, setup),
        cmocka_unit_test_setup(test_counts_of_four_bytes_are_never_split, setup),
        cmocka_unit_test_setup(test_a_wrapper_of_a_threads_own_stream_may_outlive_the_thread, setup),
        cmocka_unit_test_setup(test_peer_access_that_the_program_enabled_is_fine, setup),
        cmocka_unit_test_setup(test_cubins_fatbins_and_registered_functions_run, setup),
        cmocka_unit_test_setup(test_an_image_without_a_form_for_the_gpu_is_refused, setup),
        cmocka_unit_test_setup(test_kernels_of_one_image_share_its_module_and_unload_it, setup),
        cmocka_unit_test_setup(test_more_shared_memory_than_every_gpu_has_is_asked_for, setup),
        cmocka_unit_test_setup(test_a_kernel_that_is_destroyed_during_a_wait_keeps_its_code_until_it_has_run, setup),
        cmocka_unit_test_setup(test_an_image_need_not_end_with_a_zero_when_its_size_is_given, setup),
        cmocka_unit_test_setup(test_loads_that_fail_leave_no_module, setup),
        cmocka_unit_test_setup(test_shutdown_waits_for_what_a_failed_device_still_runs, setup),
        cmocka_unit_test_setup(test_shutdown_releases_what_was_left, setup),
        cmocka_unit_test_setup(test_every_call_that_fails_is_a_result_and_leaks_nothing, setup),
        cmocka_unit_test_setup(test_every_call_that_runs_out_of_memory_is_a_result_and_leaks_nothing, setup),
    };
    if (argc > 1) {
        snprintf(pattern, sizeof pattern, "*%s*", argv[1]);
        cmocka_set_test_filter(pattern);
    }
    return cmocka_run_group_tests_name("cuda driver", tests, NULL, NULL);
}
