/* The CUDA driver seen from cudart's side: which calls each verb makes, what it leaves in the
   thread, what becomes of memory and streams that cudart made, and a fault at every call in
   turn. Runs on the stand-in only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <pthread.h>
#include <sched.h>
#include <cmocka.h>
#include <cuda_runtime_api.h>
#include "devstream_alloc.h"
#include "locks.h"
#include "devstream_comm.h"
#include "kernels_ptx.h"
#include "standin/standin.h"

#define ok(call)                                                                          \
    do {                                                                                  \
        ds_result ok_result_ = (call);                                                    \
        if (ok_result_ != DS_OK)                                                          \
            fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_get_name(ok_result_), \
                     ds_error_get_last());                                                \
    } while (0)
#define refused(call, code)                                                                    \
    do {                                                                                       \
        ds_result refused_result_ = (call);                                                    \
        if (refused_result_ != (code))                                                         \
            fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_get_name(refused_result_), \
                     ds_error_get_last());                                                     \
        assert_non_null(strchr(ds_error_get_last(), ' '));                                     \
    } while (0)
#define cuda(call) assert_int_equal(call, cudaSuccess)

enum { N = 4096 };

typedef struct fold_args {
    uint64_t *h, n;
} fold_args;

static int fold_item(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    *a->h = *a->h * 1099511628211u + a->n;
    return 0;
}

static const ds_param fold_params[] = {
    { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
    { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) }
};

/* Functions of a part of the items. */
#define PART_PTX(type)                                                                  \
    ".version 5.0\n.target sm_60\n.address_size 64\n.visible .entry part(.param ." type \
    " p0, .param ." type " p1) { ret; }\n"
static const char ptx_part32[] = PART_PTX("u32");
static const char ptx_part64[] = PART_PTX("u64");

static const ds_grid every_attribute = {
    .grid = { 1 }, .block = { 1 }, .cluster = { 1 }, .flags = DS_GRID_COOPERATIVE | DS_GRID_OVERLAP
};
static const ds_grid attributes_of_nodes = {
    .grid = { 1 }, .block = { 1 }, .cluster = { 1 }, .flags = DS_GRID_COOPERATIVE
};

static ds_kernel make_fold(void) {
    ds_kernel k;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold",
                           .cpu_fn = fold_item,
                           .args_size = sizeof(fold_args),
                           .params = fold_params,
                           .param_count = 2,
                           .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } },
        &k));
    return k;
}

/* Runs a test, which the pattern picks, in a process of its own. */
static void run_alone(const char *pattern, void (*test)(void)) {
    char command[400], self[300];
    if (getenv("FAULT_CHILD")) {
        test();
        return;
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "FAULT_CHILD=1 '%s' %s >&2", self, pattern);
    assert_int_equal(system(command), 0);
}

/* Runs a test in a process of its own with other settings of the stand-in: "NAME=VALUE ...". */
static void run_alone_with(const char *settings, const char *pattern) {
    char command[500], self[300];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "env FAULT_CHILD=1 %s '%s' %s >&2", settings, self, pattern);
    assert_int_equal(system(command), 0);
}

/* Everything that the verbs below work on. */
typedef struct world {
    ds_stream s, other, elsewhere; /* two on one device, one on the next */
    ds_event e, never, timed;
    ds_kernel k;
    ds_graph_exec x;                 /* a kernel and a fill */
    void *d, *d2, *far, *pin, *pin2; /* device memory, that of the next device, pinned memory */
    char page[N];
    int device;
} world;

static void nothing(void *user) {
    expect_no_lock();
    (void)user;
}

static void nothing_called(ds_stream s, ds_result r, void *user) {
    expect_no_lock();
    (void)s;
    (void)r;
    (void)user;
}

static ds_node_desc fold_node(ds_kernel k, const fold_args *args) {
    return (ds_node_desc){ .kind = DS_NODE_KERNEL,
                           .u.kernel = {
                               .kernel = k, .items = 1, .args = args, .args_size = sizeof *args } };
}

static int has_setting(const char *name) {
    return getenv(name) != NULL;
}

static ds_node_desc host_node(ds_host_fn fn, void *user, ds_host_fn dtor_fn) {
    return (ds_node_desc){ .kind = DS_NODE_HOST,
                           .u.host = { .fn = fn, .user = user, .dtor_fn = dtor_fn } };
}

static ds_node_desc copy_node(void *dst, const void *src, size_t width, size_t height) {
    return (ds_node_desc){ .kind = DS_NODE_COPY,
                           .u.copy = { .dst = dst,
                                       .src = src,
                                       .width = width,
                                       .height = height,
                                       .dst_pitch = 64,
                                       .src_pitch = 64 } };
}

static ds_node_desc fill_node(void *ptr, size_t value_size, size_t width, size_t height) {
    return (ds_node_desc){ .kind = DS_NODE_FILL,
                           .u.fill = { .ptr = ptr,
                                       .value = 0,
                                       .value_size = value_size,
                                       .width = width,
                                       .height = height,
                                       .pitch = 64 } };
}

static ds_graph_exec make_exec(world *w) {
    ds_graph g;
    ds_graph_node first;
    ds_graph_exec x;
    ds_node_desc kernel = fold_node(w->k, &(fold_args){ w->pin, 1 }),
                 fill = fill_node(w->d, 1, 16, 1);
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(w->device) }, &g));
    ok(ds_graph_add(g, &kernel, NULL, 0, &first));
    ok(ds_graph_add(g, &fill, &first, 1, NULL));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_destroy(g));
    return x;
}

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
    ok(ds_device_alloc(ds_cuda(device), N, &w.d));
    ok(ds_device_alloc(ds_cuda(device), N, &w.d2));
    ok(ds_device_alloc(ds_cuda(device + 1), N, &w.far));
    ok(ds_pinned_alloc(N, &w.pin));
    ok(ds_pinned_alloc(N, &w.pin2));
    memset(w.pin, 0, N);
    w.k = make_fold();
    /* once, so that what is made at first use is there */
    ok(ds_kernel_launch(w.k, 1, &(fold_args){ w.pin, 1 }, sizeof(fold_args), w.s));
    w.x = make_exec(&w);
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
    ok(ds_graph_exec_destroy(w->x));
    ok(ds_device_free(w->d));
    ok(ds_device_free(w->d2));
    ok(ds_device_free(w->far));
    ok(ds_pinned_free(w->pin));
    ok(ds_pinned_free(w->pin2));
    ok(ds_kernel_destroy(w->k));
    ok(ds_shutdown());
    if (standin_live(report, sizeof report) != 0)
        fail_msg("left behind: %s", report);
    while (cudaGetLastError() != cudaSuccess) {
    }
    cuda(cudaSetDevice(0));
}

/* X(verb, the call that does it); around it stand what HERE and THERE say. */
#define PEEK "cudaPeekAtLastError cuCtxGetCurrent "
#define HERE(call) PEEK call
#define THERE(call) PEEK "cuCtxPushCurrent:1 " call " cuCtxPopCurrent"
#define RELAXED(call) \
    "cudaThreadExchangeStreamCaptureMode " call " cudaThreadExchangeStreamCaptureMode"
/* clang-format off */
#define HOT_VERBS(X) \
    X(ds_kernel_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->s), "cuLaunchKernel") \
    X(ds_kernel_launch_grid(w->k, &every_attribute, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->s), \
      "cudaDeviceGetAttribute cudaDeviceGetAttribute cudaDeviceGetAttribute cuLaunchKernelEx") \
    X(ds_copy(w->d, w->pin, N, w->s), "cudaMemcpyAsync:H2D") \
    X(ds_copy(w->pin, w->d, N, w->s), "cudaMemcpyAsync:D2H") \
    X(ds_copy(w->d2, w->d, N, w->s), "cudaMemcpyAsync:D2D") \
    X(ds_copy(w->far, w->d, N, w->s), "cuPointerGetAttributes cudaMemcpyAsync:Default") \
    X(ds_copy(w->pin2, w->pin, N, w->s), "cudaStreamIsCapturing cudaLaunchHostFunc cudaStreamIsCapturing") \
    X(ds_copy_2d(w->d2, 64, w->d, 64, 32, 10, w->s), "cudaMemcpy2DAsync:D2D") \
    X(ds_copy_2d(w->far, 64, w->d, 64, 32, 10, w->s), \
      "cuPointerGetAttributes cudaMemcpy2DAsync:Default") \
    X(ds_fill(w->d, 1, 1, N, w->s), "cudaMemsetAsync") \
    X(ds_fill(w->d, 1, 2, N / 2, w->s), "cuMemsetD16Async") \
    X(ds_fill(w->d, 1, 4, N / 4, w->s), "cuMemsetD32Async") \
    X(ds_event_record(w->e, w->s), "cudaEventRecord") \
    X(ds_stream_wait_event(w->other, w->e), "cudaStreamWaitEvent") \
    X(ds_stream_wait_event(w->other, w->never), "") \
    X(ds_stream_launch_host_func(w->s, nothing, NULL, NULL), \
      "cudaStreamIsCapturing cudaLaunchHostFunc cudaStreamIsCapturing") \
    X(ds_stream_add_callback(w->s, nothing_called, NULL, NULL), "cudaStreamAddCallback") \
    X(ds_stream_synchronize(w->s), RELAXED("cudaStreamSynchronize")) \
    X(ds_event_synchronize(w->e), RELAXED("cudaEventSynchronize")) \
    X(ds_stream_query(w->s), RELAXED("cuStreamQuery")) \
    X(ds_event_query(w->e), RELAXED("cuEventQuery")) \
    X(ds_graph_launch(w->x, w->s), "cudaStreamIsCapturing cudaGraphLaunch")
/* clang-format on */

#define EXPECT_CALLS(verb, call)                                                          \
    standin_log_begin();                                                                  \
    result = verb;                                                                        \
    calls = standin_log_take();                                                           \
    want = !*call ? "" : current ? HERE(call) : THERE(call);                              \
    if (result != DS_OK)                                                                  \
        fail_msg("%s is %s: %s", #verb, ds_result_get_name(result), ds_error_get_last()); \
    if (strcmp(calls, want) != 0)                                                         \
        fail_msg("%s with %s device current calls\n  %s, not\n  %s", #verb,               \
                 current ? "its" : "another", calls, want);

static void test_hot_verbs_make_these_calls_and_no_others(void **state) {
    (void)state;
    for (int current = 1; current >= 0; current--) {
        world *w = open_world(1);
        ds_result result;
        const char *calls, *want;
        cuda(cudaSetDevice(current));
        HOT_VERBS(EXPECT_CALLS)
        /* memory that devstream does not know might be another GPU's; any context will do */
        standin_log_begin();
        ok(ds_copy(w->d, w->page, N, w->s));
        calls = standin_log_take();
        assert_string_equal(
            calls, current ? HERE("cuPointerGetAttributes ") HERE("cudaMemcpyAsync:Default")
                           : HERE("cuPointerGetAttributes ") THERE("cudaMemcpyAsync:Default"));
        standin_log_begin(); /* two streams, two scopes */
        ok(ds_stream_wait_stream(w->other, w->s));
        calls = standin_log_take();
        assert_string_equal(calls, current
                                       ? HERE("cudaEventRecord") " " HERE("cudaStreamWaitEvent")
                                       : THERE("cudaEventRecord") " " THERE("cudaStreamWaitEvent"));
        close_world(w);
    }
}

static void *driver_function(const char *name) {
    void *function = NULL;
#if CUDART_VERSION >= 12050
    cuda(cudaGetDriverEntryPointByVersion(name, &function, 11080, cudaEnableLegacyStream, NULL));
#elif CUDART_VERSION >= 12000
    cuda(cudaGetDriverEntryPoint(name, &function, cudaEnableLegacyStream, NULL));
#else
    cuda(cudaGetDriverEntryPoint(name, &function, cudaEnableLegacyStream));
#endif
    assert_non_null(function);
    return function;
}

/* The share of a device for a stream; older headers have no green contexts. */
#if CUDART_VERSION >= 12050
#define PART 3
#else
#define PART 0
#endif

/* As a program of pycuda has it: a context of its own, which is not the primary one, is current. */
static void test_a_context_that_is_not_primary_is_left_as_it_is(void **state) {
    int (*push)(void *), (*pop)(void **), (*get)(void **);
    void *found[] = { driver_function("cuCtxPushCurrent"), driver_function("cuCtxPopCurrent"),
                      driver_function("cuCtxGetCurrent") };
    memcpy(&push, &found[0], sizeof push);
    memcpy(&pop, &found[1], sizeof pop);
    memcpy(&get, &found[2], sizeof get);
    (void)state;
    world *w = open_world(1);
    void *mine = standin_context(1), *now = NULL, *m;
    const int current = 0;
    const char *calls, *want;
    ds_result result;
    assert_int_equal(push(mine), 0);
    HOT_VERBS(EXPECT_CALLS)
    ok(ds_device_alloc(ds_cuda(1), N, &m));
    ok(ds_device_free(m));
    ok(ds_pinned_alloc(N, &m));
    ok(ds_pinned_free(m));
    ok(ds_device_synchronize(ds_cuda(1)));
    assert_int_equal(get(&now), 0);
    assert_ptr_equal(now, mine);
    assert_int_equal(pop(&now), 0);
    assert_ptr_equal(now, mine);
    close_world(w);
}

/* Verbs that ask, make or end something; each leaves the world as it found it. */
static void cold_verbs(world *w, void (*after)(const char *verb)) {
    ds_stream s, t;
    ds_stream_native native;
    ds_event e;
    ds_kernel k;
    ds_device_properties p;
    ds_pointer_info info;
    ds_topology *topology;
    void *m;
    size_t a, b;
    int64_t attribute;
    int x, y;
    double ms;
#define DO(verb) \
    ok(verb);    \
    after(#verb);
    DO(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(w->device), .priority = -1 }, &s))
    DO(ds_stream_export(s, &native))
    DO(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &t))
    DO(ds_stream_destroy(t))
    DO(ds_stream_unwrap(s, &native))
    DO(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &s))
    DO(ds_stream_record_event(s, 0, &e))
    DO(ds_stream_synchronize_for(s, 1000000000))
    DO(ds_event_synchronize_for(e, 1000000000))
    DO(ds_event_destroy(e))
    DO(ds_stream_destroy(s))
    DO(ds_event_get_elapsed_ms(w->timed, w->timed, &ms))
    DO(ds_device_synchronize(ds_cuda(w->device)))
    DO(ds_device_get_properties(ds_cuda(w->device), &p))
    DO(ds_device_get_attribute(ds_cuda(w->device), DS_ATTR_WARP_SIZE, &attribute))
    DO(ds_device_get_memory_info(ds_cuda(w->device), &a, &b))
    DO(ds_device_get_priority_range(ds_cuda(w->device), &x, &y))
    DO(ds_device_can_access_peer(ds_cuda(w->device), ds_cuda(3), &x))
    DO(ds_topology_create_of_devices((ds_device[]){ ds_cuda(w->device), ds_cuda(3) }, 2, 0,
                                     &topology))
    ds_topology_destroy(topology);
    DO(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(w->device), .multiprocessors = PART },
                        &t))
    DO(ds_stream_get_multiprocessors(t, &x))
    DO(ds_kernel_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), t))
    DO(ds_stream_synchronize(t))
    DO(ds_stream_destroy(t))
    DO(ds_device_set_current(ds_cuda(2)))
    DO(ds_device_push(ds_cuda(3)))
    DO(ds_device_pop())
    DO(ds_stream_push(w->s, 0))
    DO(ds_stream_pop())
    DO(ds_device_alloc(ds_cuda(w->device), N, &m))
    DO(ds_pointer_get_info(m, &info))
    DO(ds_device_free(m))
    DO(ds_pinned_alloc(N, &m))
    DO(ds_pinned_free(m))
    DO(ds_pinned_alloc_with(N, &(ds_pinned_desc){ .flags = 0 }, &m))
    DO(ds_pinned_free(m))
    DO(ds_pinned_register(w->page, N))
    DO(ds_pinned_unregister(w->page))
    DO(ds_stream_get_legacy(ds_cuda(w->device), &s))
    DO(ds_kernel_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), s))
    DO(ds_copy(w->d, w->pin, N, s))
    DO(ds_event_record(w->e, s))
    DO(ds_stream_wait_stream(s, w->elsewhere))
    DO(ds_stream_synchronize(w->elsewhere))
    DO(ds_stream_synchronize(s))
    DO(ds_stream_query(s))
    DO(ds_fill_sync(w->far, 7, 1, N))
    DO(ds_copy_sync(w->page, w->d, N))
    DO(ds_stream_get_per_thread(ds_cuda(w->device), &s))
    DO(ds_fill(w->d, 7, 1, N, s))
    DO(ds_fill(w->far, 7, 4, N / 4, s)) /* another device's memory */
    DO(ds_stream_launch_host_func(s, nothing, NULL, NULL))
    DO(ds_stream_synchronize(s))
    k = make_fold();
    DO(ds_kernel_load(k, ds_cuda(w->device)))
    DO(ds_kernel_destroy(k))
    ok(ds_device_alloc(ds_cpu(0), N, &m));
    DO(ds_copy(w->d, m, N, w->s))
    DO(ds_copy(m, w->d, N, w->s))
    DO(ds_stream_synchronize(w->s))
    ok(ds_device_free(m));
#undef DO
}

static void graph_verbs(world *w, void (*after)(const char *verb)) {
    ds_graph g, clone, inner;
    ds_graph_node kernel, fill, host, child, first, last, n;
    ds_graph_exec x;
    ds_capture_info info;
    ds_capture_mode mode = DS_CAPTURE_RELAXED;
    ds_event e;
    ds_node_desc desc;
    size_t count;
    void *m;
    fold_args args = { w->pin, 1 };
#define DO(verb) \
    ok(verb);    \
    after(#verb);
/* after the one before */
#define ADD(made, out)                                            \
    desc = made;                                                  \
    DO(ds_graph_add(g, &desc, &last, last.id != 0, &n)) last = n; \
    out = n;
    DO(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(w->device) }, &g))
    inner = g;
    last.id = 0;
    ADD(fold_node(w->k, &args), first)
    ADD(fill_node(w->pin2, 1, N, 1), first) /* a host function */
    DO(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(w->device) }, &g))
    last.id = 0;
    ADD(fold_node(w->k, &args), kernel)
    ADD(fill_node(w->d, 4, 8, 2), fill)
    ds_node_desc with = fold_node(w->k, &args);
    with.u.kernel.grid = &attributes_of_nodes;
    ADD(with, first)
    DO(ds_graph_set_node(g, first, &with))
    desc = fold_node(w->k, &args);
    DO(ds_graph_set_node(g, first, &desc)) /* without attributes the graph is made anew */
    DO(ds_graph_set_node(g, first, &with))
    ADD(fill_node(w->far, 2, 8, 1), first)
    ADD(copy_node(w->far, w->d, 32, 4), first)
    ADD(copy_node(w->pin2, w->pin, 32, 1), first)
    ADD(host_node(nothing, NULL, nothing), host)
    ADD(((ds_node_desc){ .kind = DS_NODE_EVENT_RECORD, .u.event = w->e }), first)
    ADD(((ds_node_desc){ .kind = DS_NODE_EVENT_WAIT, .u.event = w->e }), first)
    ADD(((ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = inner }), child)
    ADD(((ds_node_desc){ .kind = DS_NODE_EMPTY }), first)
    DO(ds_graph_add_edges(g, &kernel, &host, 1))
    DO(ds_graph_add_edges(g, &host, &first, 1))
    desc = fold_node(w->k, &args);
    desc.priority = -1;
    DO(ds_graph_set_node(g, kernel, &desc))
    desc = fill_node(w->pin2, 4, 8, 2);
    DO(ds_graph_set_node(g, fill, &desc)) /* another form of node: the graph is made anew */
    desc = fill_node(w->d, 4, 8, 2);
    DO(ds_graph_set_node(g, fill, &desc))
    DO(ds_graph_clone(g, &clone))
    DO(ds_graph_instantiate(g,
                            &(ds_graph_exec_desc){ .flags = DS_GRAPH_UPLOAD |
                                                            DS_GRAPH_REPLACE_POINTERS |
                                                            DS_GRAPH_USE_NODE_PRIORITY,
                                                   .upload_stream = w->s },
                            &x))
    DO(ds_graph_upload(x, w->s))
    DO(ds_graph_launch(x, w->s))
    desc = fold_node(w->k, &args);
    DO(ds_graph_exec_set_node(x, kernel, &desc))
    desc = fill_node(w->d2, 4, 8, 2);
    DO(ds_graph_exec_set_node(x, fill, &desc))
    desc = host_node(nothing, w, nothing);
    DO(ds_graph_exec_set_node(x, host, &desc))
    desc = (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = inner };
    DO(ds_graph_exec_set_node(x, child, &desc))
    DO(ds_graph_exec_set_node_enabled(x, kernel, 0))
    DO(ds_graph_launch(x, w->s))
    DO(ds_graph_exec_replace_pointers(x, &w->d2, &w->d, 1, &count))
    DO(ds_graph_exec_update(x, clone, NULL))
    DO(ds_graph_launch(x, w->s))
    DO(ds_graph_destroy(clone))
    DO(ds_graph_destroy(g))
    DO(ds_graph_destroy(inner))
    DO(ds_stream_synchronize(w->s))
    /* capture */
    DO(ds_capture_exchange_mode(&mode))
    DO(ds_capture_exchange_mode(&mode))
    DO(ds_capture_begin(w->s, DS_CAPTURE_THREAD_LOCAL))
    DO(ds_kernel_launch(w->k, 1, &args, sizeof args, w->s))
    DO(ds_copy(w->d, w->pin, N, w->s))
    DO(ds_copy(w->far, w->d, N, w->s))
    DO(ds_copy(w->pin2, w->pin, N, w->s))
    DO(ds_fill(w->far, 0, 4, 8, w->s)) /* on the other device */
    DO(ds_stream_launch_host_func(w->s, nothing, NULL, nothing))
    DO(ds_stream_record_event(w->s, 0, &e))
    DO(ds_stream_wait_event(w->elsewhere, e))
    DO(ds_fill(w->far, 0, 2, 8, w->elsewhere))
    DO(ds_stream_wait_stream(w->s, w->elsewhere))
    DO(ds_event_destroy(e))
    DO(ds_event_record_external(w->e, w->s))
    DO(ds_stream_wait_event_external(w->s, w->e))
    DO(ds_graph_launch(x, w->s))
    DO(ds_capture_get_info(w->s, &info))
    DO(ds_capture_get_dependencies(w->s, &last, 1, &count))
    DO(ds_graph_add(info.graph, &(ds_node_desc){ .kind = DS_NODE_EMPTY }, &last, 1, &n))
    DO(ds_capture_update_dependencies(w->s, &n, 1, DS_CAPTURE_ADD_DEPENDENCIES))
    DO(ds_graph_add(info.graph, &(ds_node_desc){ .kind = DS_NODE_EMPTY }, NULL, 0, &first))
    DO(ds_graph_add_edges(info.graph, &n, &first, 1))
    DO(ds_graph_set_node(info.graph, first, &(ds_node_desc){ .kind = DS_NODE_EMPTY }))
    assert_int_equal(ds_copy(w->d, w->page, N, w->s), DS_ERR_CAPTURE_UNSUPPORTED);
    after("a copy that is refused");
    assert_int_equal(ds_graph_upload(x, w->s), DS_ERR_CAPTURE_UNSUPPORTED);
    after("an upload that is refused");
    DO(ds_capture_end(w->s, &g))
    DO(ds_graph_get_nodes(g, &first, 1, &count))
    DO(ds_capture_begin_to_graph(w->s, g, &first, 1, DS_CAPTURE_RELAXED))
    DO(ds_fill(w->d, 0, 1, N, w->s))
    ok(ds_device_alloc(ds_cuda(w->device), N, &m));
    after("an allocation");
    DO(ds_device_free(m))
    ok(ds_pinned_alloc(N, &m));
    DO(ds_pinned_free(m))
    DO(ds_capture_end(w->s, &g))
    DO(ds_graph_destroy(g))
    DO(ds_graph_exec_destroy(x))
    DO(ds_capture_get_status(w->s, &info.status))
#undef ADD
#undef DO
}

/* What cudart refuses in a capture. */
static void graph_refusals(world *w, void (*after)(const char *verb)) {
    ds_graph g;
    ok(ds_capture_begin(w->s, DS_CAPTURE_THREAD_LOCAL));
    refused(ds_capture_begin(w->s, DS_CAPTURE_RELAXED), DS_ERR_ILLEGAL_STATE);
    after("a second capture");
    refused(ds_stream_query(w->s), DS_ERR_CAPTURE_UNSUPPORTED);
    after("a query of a capturing stream");
    refused(ds_fill(w->d, 0, 1, N, w->s), DS_ERR_CAPTURE_INVALIDATED);
    after("work in an invalid capture");
    refused(ds_fill(w->d, 0, 2, N / 2, w->s), DS_ERR_CAPTURE_INVALIDATED);
    after("work of the driver's in an invalid capture");
    refused(ds_capture_end(w->s, &g), DS_ERR_CAPTURE_INVALIDATED);
    after("the end of an invalid capture");
}

static void expect_some_error(const char *verb) {
    if (cudaPeekAtLastError() == cudaSuccess)
        fail_msg("%s has cleared the user's error", verb);
}

static int device_before;

static void expect_device(const char *verb) {
    int now = -1;
    cuda(cudaGetDevice(&now));
    if (now != device_before)
        fail_msg("%s has made device %d current, not %d", verb, now, device_before);
}

static void test_no_verb_changes_the_current_device(void **state) {
    (void)state;
    for (device_before = 0; device_before < 3; device_before += 2) {
        cuda(cudaSetDevice(device_before));
        world *w = open_world(1);
        expect_device("making the world");
#define THEN_EXPECT_DEVICE(verb, call) \
    ok(verb);                          \
    expect_device(#verb);
        HOT_VERBS(THEN_EXPECT_DEVICE)
        cold_verbs(w, expect_device);
        graph_verbs(w, expect_device);
        graph_refusals(w, expect_device);
        cuda(cudaSetDevice(device_before));
        refused(ds_device_alloc(ds_cuda(1), (size_t)1 << 60, &w->d2), DS_ERR_OUT_OF_MEMORY);
        expect_device("an allocation that fails");
        assert_null(w->d2);
        close_world(w);
    }
}

static void expect_nothing_on_device_0(const char *verb) {
    if (standin_contexts() & 1)
        fail_msg("%s has made a context on device 0, which nothing uses", verb);
}

/* Device 0 is the thread's current one for cudart, and devices 1 to 3 are used. */
static void verbs_elsewhere(void) {
    assert_int_equal(standin_contexts(), 0);
    ok(ds_device_set_current(ds_cuda(1)));
    world *w = open_world(1);
    expect_nothing_on_device_0("making the world");
#define THEN_EXPECT_NOTHING(verb, call) \
    ok(verb);                           \
    expect_nothing_on_device_0(#verb);
    HOT_VERBS(THEN_EXPECT_NOTHING)
    cold_verbs(w, expect_nothing_on_device_0);
    graph_verbs(w, expect_nothing_on_device_0);
    graph_refusals(w, expect_nothing_on_device_0);
    ok(ds_stream_destroy(w->s));
    ok(ds_shutdown());
    expect_nothing_on_device_0("the shutdown");
}

static void test_no_verb_makes_a_context_on_an_unused_device(void **state) {
    (void)state;
    run_alone("context_on_an_unused", verbs_elsewhere);
}

/* No device has a context yet; then only device 2, from a thread whose device is 0. */
static void ask_for_pointers(void) {
    int local = 0;
    ds_pointer_info info;
    ds_capture_mode mode = DS_CAPTURE_RELAXED;
    enum cudaStreamCaptureMode native = cudaStreamCaptureModeThreadLocal;
    void *d, *mapped, *host = malloc(N);
    assert_int_equal(standin_contexts(), 0);
    ok(ds_pointer_get_info(&local, &info));
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(mode, DS_CAPTURE_GLOBAL);
    ok(ds_shutdown());
    assert_int_equal(standin_contexts(), 0);
    mode = DS_CAPTURE_RELAXED;
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(standin_contexts(), 0);

    ok(ds_device_alloc(ds_cuda(2), N, &d)); /* the mode comes into force */
    ok(ds_pointer_get_info(host, &info));
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
    ok(ds_pinned_register(host, N));
    ok(ds_pinned_unregister(host));
    ok(ds_pinned_alloc(N, &mapped));
    ok(ds_pinned_free(mapped));
    assert_int_equal(standin_contexts(), 1 << 2);
    cuda(cudaSetDevice(2));
    cuda(cudaThreadExchangeStreamCaptureMode(&native));
    assert_int_equal(native, cudaStreamCaptureModeRelaxed);
    cuda(cudaMalloc(&mapped, 2 * N));
    cuda(cudaSetDevice(3));
    ok(ds_pointer_get_info((char *)mapped + 5, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    assert_int_equal(info.device.index, 2);
    assert_ptr_equal(info.base, mapped);
    assert_int_equal(info.size, 2 * N);
    assert_int_equal(standin_contexts(), 1 << 2 | 1 << 3);
    ok(ds_device_free(d));
    ok(ds_shutdown());
    free(host);
}

static void test_a_question_about_a_pointer_makes_no_context(void **state) {
    (void)state;
    run_alone("question_about_a_pointer", ask_for_pointers);
}

static void expect_users_error(const char *verb) {
    cudaError_t now = cudaPeekAtLastError();
    if (now != cudaErrorInvalidDevice)
        fail_msg("after %s the user's error is %d", verb, (int)now);
}

static void expect_no_error(const char *verb) {
    cudaError_t now = cudaPeekAtLastError();
    if (now != cudaSuccess)
        fail_msg("%s has left the error %d", verb, (int)now);
}

static void test_the_users_own_error_survives_and_none_of_ours_is_left(void **state) {
    (void)state;
    for (int with_error = 0; with_error < 2; with_error++) {
        world *w = open_world(1);
        void (*expect)(const char *verb) = with_error ? expect_users_error : expect_no_error;
        if (with_error)
            assert_int_equal(cudaSetDevice(99), cudaErrorInvalidDevice);
#define THEN_EXPECT_ERROR(verb, call) \
    ok(verb);                         \
    expect(#verb);
        HOT_VERBS(THEN_EXPECT_ERROR)
        cold_verbs(w, expect);
        graph_verbs(w, expect);
        /* pending work: "not ready" is no error */
        standin_hold(1);
        ok(ds_kernel_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->s));
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
        refused(ds_device_alloc(ds_cuda(1), (size_t)1 << 60, &m), DS_ERR_OUT_OF_MEMORY);
        assert_true((cudaPeekAtLastError() != cudaSuccess) == with_error);
        graph_refusals(w, with_error ? expect_some_error : expect_no_error);
        close_world(w);
    }
}

static void test_asking_makes_no_context(void **state) {
    (void)state;
    unsigned before = standin_contexts();
    int count;
    char text[600];
    ok(ds_device_get_count(DS_DEVICE_CUDA, &count));
    ok(ds_backend_format(text, sizeof text));
    assert_int_equal(standin_contexts(), before);
    assert_non_null(strstr(text, "taken: 4 devices"));
    ok(ds_shutdown());
    assert_int_equal(standin_contexts(), before);
    print_message("%s", text);
}

static void test_attributes_are_those_of_cudart(void **state) {
    static const struct {
        ds_attribute ours;
        enum cudaDeviceAttr cuda;
    } pairs[] = {
        { DS_ATTR_MAX_THREADS_PER_BLOCK, cudaDevAttrMaxThreadsPerBlock },
        { DS_ATTR_MAX_BLOCK_X, cudaDevAttrMaxBlockDimX },
        { DS_ATTR_MAX_BLOCK_Y, cudaDevAttrMaxBlockDimY },
        { DS_ATTR_MAX_BLOCK_Z, cudaDevAttrMaxBlockDimZ },
        { DS_ATTR_MAX_GRID_X, cudaDevAttrMaxGridDimX },
        { DS_ATTR_MAX_GRID_Y, cudaDevAttrMaxGridDimY },
        { DS_ATTR_MAX_GRID_Z, cudaDevAttrMaxGridDimZ },
        { DS_ATTR_SHARED_MEMORY_PER_BLOCK, cudaDevAttrMaxSharedMemoryPerBlock },
        { DS_ATTR_CONSTANT_MEMORY, cudaDevAttrTotalConstantMemory },
        { DS_ATTR_WARP_SIZE, cudaDevAttrWarpSize },
        { DS_ATTR_REGISTERS_PER_BLOCK, cudaDevAttrMaxRegistersPerBlock },
        { DS_ATTR_CLOCK_RATE, cudaDevAttrClockRate },
        { DS_ATTR_MULTIPROCESSORS, cudaDevAttrMultiProcessorCount },
        { DS_ATTR_KERNEL_TIMEOUT, cudaDevAttrKernelExecTimeout },
        { DS_ATTR_INTEGRATED, cudaDevAttrIntegrated },
        { DS_ATTR_CAN_MAP_HOST_MEMORY, cudaDevAttrCanMapHostMemory },
        { DS_ATTR_COMPUTE_MODE, cudaDevAttrComputeMode },
        { DS_ATTR_CONCURRENT_KERNELS, cudaDevAttrConcurrentKernels },
        { DS_ATTR_ECC, cudaDevAttrEccEnabled },
        { DS_ATTR_PCI_BUS, cudaDevAttrPciBusId },
        { DS_ATTR_PCI_DEVICE, cudaDevAttrPciDeviceId },
        { DS_ATTR_MEMORY_CLOCK_RATE, cudaDevAttrMemoryClockRate },
        { DS_ATTR_MEMORY_BUS_WIDTH, cudaDevAttrGlobalMemoryBusWidth },
        { DS_ATTR_L2_SIZE, cudaDevAttrL2CacheSize },
        { DS_ATTR_MAX_THREADS_PER_MULTIPROCESSOR, cudaDevAttrMaxThreadsPerMultiProcessor },
        { DS_ATTR_COPY_ENGINES, cudaDevAttrAsyncEngineCount },
        { DS_ATTR_UNIFIED_ADDRESSING, cudaDevAttrUnifiedAddressing },
        { DS_ATTR_PCI_DOMAIN, cudaDevAttrPciDomainId },
        { DS_ATTR_CAPABILITY_MAJOR, cudaDevAttrComputeCapabilityMajor },
        { DS_ATTR_CAPABILITY_MINOR, cudaDevAttrComputeCapabilityMinor },
        { DS_ATTR_SHARED_MEMORY_PER_MULTIPROCESSOR, cudaDevAttrMaxSharedMemoryPerMultiprocessor },
        { DS_ATTR_REGISTERS_PER_MULTIPROCESSOR, cudaDevAttrMaxRegistersPerMultiprocessor },
        { DS_ATTR_MANAGED_MEMORY, cudaDevAttrManagedMemory },
        { DS_ATTR_PAGEABLE_MEMORY_ACCESS, cudaDevAttrPageableMemoryAccess },
        { DS_ATTR_CONCURRENT_MANAGED_ACCESS, cudaDevAttrConcurrentManagedAccess },
        { DS_ATTR_COOPERATIVE_LAUNCH, cudaDevAttrCooperativeLaunch },
        { DS_ATTR_SHARED_MEMORY_PER_BLOCK_OPTIN, cudaDevAttrMaxSharedMemoryPerBlockOptin },
        { DS_ATTR_MAX_BLOCKS_PER_MULTIPROCESSOR, cudaDevAttrMaxBlocksPerMultiprocessor },
        { DS_ATTR_RESERVED_SHARED_MEMORY_PER_BLOCK, cudaDevAttrReservedSharedMemoryPerBlock },
        { DS_ATTR_MEMORY_POOLS, cudaDevAttrMemoryPoolsSupported },
    };

#define ONE(name, value, text) +1
    const size_t count = 0 DS_ATTRIBUTES(ONE);
#undef ONE
    (void)state;
    assert_int_equal(sizeof pairs / sizeof *pairs, count);
    for (size_t i = 0; i < count; i++) {
        int64_t ours = -1;
        int theirs = -2;
        assert_int_equal(pairs[i].ours, pairs[i].cuda);
        ok(ds_device_get_attribute(ds_cuda(2), pairs[i].ours, &ours));
        cuda(cudaDeviceGetAttribute(&theirs, pairs[i].cuda, 2));
        assert_int_equal(ours, theirs);
    }

    /* a driver that does not know the attribute */
    int64_t value = -1;
    standin_fail(1, cudaErrorInvalidValue);
    refused(ds_device_get_attribute(ds_cuda(2), DS_ATTR_MEMORY_POOLS, &value), DS_ERR_UNSUPPORTED);
    assert_int_equal(standin_failed(), 1);
    assert_int_equal(value, 0);
    standin_fail(0, 0);
    ok(ds_shutdown());
}

static void *use_device_2(void *none) {
    (void)none;
    ds_stream s;
    ds_event e;
    ds_graph g, lost;
    ds_graph_exec x;
    ds_capture_status status;
    ds_capture_mode mode = DS_CAPTURE_THREAD_LOCAL;
    void *d, *pin;
    if (ds_device_set_current(ds_cuda(2)) < 0 ||
        ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(2) }, &s) < 0 ||
        ds_device_alloc(ds_cuda(2), N, &d) < 0 || ds_pinned_alloc(N, &pin) < 0 ||
        ds_fill(d, 1, 1, N, s) < 0 || ds_copy(pin, d, N, s) < 0 ||
        ds_stream_record_event(s, 0, &e) < 0 || ds_event_query(e) < 0 || ds_stream_query(s) < 0 ||
        ds_event_synchronize(e) < 0 || ds_capture_begin(s, DS_CAPTURE_RELAXED) < 0 ||
        ds_copy(pin, d, N, s) < 0 || ds_stream_launch_host_func(s, nothing, NULL, NULL) < 0 ||
        ds_capture_get_status(s, &status) < 0 || ds_capture_end(s, &g) < 0 ||
        ds_graph_instantiate(g, NULL, &x) < 0 || ds_graph_launch(x, s) < 0 ||
        ds_capture_begin(s, DS_CAPTURE_GLOBAL) < 0 ||
        ds_stream_synchronize(s) != DS_ERR_CAPTURE_UNSUPPORTED ||
        ds_capture_end(s, &lost) != DS_ERR_CAPTURE_INVALIDATED ||
        ds_capture_exchange_mode(&mode) < 0 || ds_stream_synchronize(s) < 0 ||
        ds_graph_exec_destroy(x) < 0 || ds_graph_destroy(g) < 0 || ds_event_destroy(e) < 0 ||
        ds_stream_destroy(s) < 0 || ds_device_free(d) < 0 || ds_pinned_free(pin) < 0) {
        fprintf(stderr, "%s\n", ds_error_get_last());
        abort();
    }
    return NULL;
}

static void test_work_makes_no_context_on_a_device_that_is_not_used(void **state) {
    (void)state;
    assert_int_equal(standin_contexts(), 0); /* no test before this has made one */
    /* in threads whose current device is 0, as every thread begins */
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread, NULL, use_device_2, NULL), 0);
        pthread_join(thread, NULL);
    }
    ok(ds_shutdown());
    assert_int_equal(standin_contexts(), 1 << 2);
}

/* ---- what cudart made ---- */

static _Atomic int releases;

static void released(void *user) {
    (void)user;
    releases++;
}

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
    ok(ds_stream_get_flags(s, &flags));
    assert_int_equal(flags, DS_STREAM_NON_BLOCKING);
    ok(ds_stream_get_priority(s, &effective, NULL));
    assert_int_equal(effective, -2);
    void *d, *pin;
    ok(ds_device_alloc(ds_cuda(2), N, &d));
    ok(ds_pinned_alloc(N, &pin));
    ok(ds_fill(d, 0x5a, 1, N, s));
    ok(ds_copy(pin, d, N, again));
    cuda(cudaStreamSynchronize(native));
    for (int i = 0; i < N; i++)
        assert_int_equal(((unsigned char *)pin)[i], 0x5a);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(again));
    assert_int_equal(releases, 2);
    cuda(cudaStreamQuery(native)); /* the stand-in aborts if it was destroyed */
    ds_stream wrong;
    n.device = ds_cuda(1);
    /* a stream of another device */
    refused(ds_stream_wrap(&n, DS_BORROW, released, NULL, &wrong), DS_ERR_INVALID_VALUE);
    assert_int_equal(releases, 3);
    n.device = ds_cuda(2);
    ok(ds_stream_wrap(&n, DS_OWN, NULL, NULL, &s));
    refused(ds_stream_wrap(&n, DS_OWN, NULL, NULL, &again), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(pin));
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
    ok(ds_pointer_get_info((char *)far + 5, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    assert_int_equal(info.device.type, DS_DEVICE_CUDA);
    assert_int_equal(info.device.index, 1);
    assert_ptr_equal(info.base, far);
    ok(ds_pointer_get_info(pinned, &info));
    assert_int_equal(info.kind, DS_MEMORY_PINNED);
    ok(ds_pointer_get_info(page, &info));
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_device_alloc(ds_cuda(0), N, &ours));
    ok(ds_fill(theirs, 1, 1, N, s));
    ok(ds_copy(ours, theirs, N, s));
    ok(ds_copy(far, ours, N, s));
    ok(ds_copy_peer(theirs, ds_cuda(0), far, ds_cuda(1), N, s));
    refused(ds_copy_peer(theirs, ds_cuda(1), far, ds_cuda(1), N, s), DS_ERR_DEVICE_MISMATCH);
    ok(ds_fill(far, 2, 1, N / 2, s)); /* on another device than the stream */
    ok(ds_copy(pinned, far, N, s));
    ok(ds_copy(page, pinned, N, s));
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < N; i++)
        assert_int_equal(page[i], i < N / 2 ? 2 : 1);
    memset(page, 9, N);
    ok(ds_copy(theirs, page, N, cpu)); /* on a stream of the CPU driver */
    ok(ds_copy(pinned, theirs, N, cpu));
    ok(ds_stream_synchronize(cpu));
    for (int i = 0; i < N; i++)
        assert_int_equal(((unsigned char *)pinned)[i], 9);
    refused(ds_fill(theirs, 1, 1, N, cpu), DS_ERR_CROSS_DRIVER);
    refused(ds_device_free(theirs), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_free(pinned), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(cpu));
    ok(ds_device_free(ours));
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

/* What was given away may be destroyed at any time, so asking for the legacy stream must not ask
   for it (the stand-in aborts). */
static void test_the_legacy_stream_skips_streams_that_were_given_away(void **state) {
    (void)state;
    ds_stream s, legacy, wrapper;
    ds_stream_native n;
    cudaStream_t theirs;
    ok(ds_stream_get_legacy(ds_cuda(0), &legacy));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .flags = DS_STREAM_BLOCKING },
                        &s));
    ok(ds_stream_unwrap(s, &n));
    cuda(cudaStreamDestroy(n.handle));
    ok(ds_stream_query(legacy));
    ok(ds_stream_synchronize(legacy));
    cuda(cudaStreamCreateWithFlags(&theirs, cudaStreamDefault));
    ok(ds_stream_wrap(&(ds_stream_native){ .device = ds_cuda(0), .handle = theirs }, DS_BORROW,
                      NULL, NULL, &wrapper));
    ok(ds_stream_set_current(wrapper, 0, NULL)); /* which keeps the wrapper alive */
    ok(ds_stream_destroy(wrapper));
    cuda(cudaStreamDestroy(theirs));
    ok(ds_stream_query(legacy));
    ok(ds_stream_synchronize_for(legacy, 1000000));
    ok(ds_stream_set_current(legacy, 0, NULL));
    ok(ds_shutdown());
}

static void block_until(void *flag) {
    while (!*(_Atomic int *)flag)
        sched_yield();
}

/* Fills and copies that concern another device's memory only must not tie streams together. */
static void test_work_on_remote_memory_waits_for_its_own_stream_only(void **state) {
    (void)state;
    ds_stream a, b, cpu;
    void *far, *pin;
    _Atomic int go = 0;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &a));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(2) }, &b));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_device_alloc(ds_cuda(1), N, &far));
    ok(ds_pinned_alloc(N, &pin));
    ok(ds_stream_launch_host_func(a, block_until, &go, NULL));
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
    ok(ds_device_alloc(ds_cpu(0), N, &virtual_memory));
    ok(ds_copy(virtual_memory, far, N, b));
    ok(ds_fill(far, 0, 1, N, b));
    ok(ds_copy(far, virtual_memory, N, b));
    ok(ds_stream_synchronize(b));
    ok(ds_device_free(virtual_memory));
    ok(ds_copy(pin, far, N, b));
    ok(ds_stream_synchronize(b));
    for (int i = 0; i < N; i++)
        assert_int_equal(((unsigned char *)pin)[i], i < 100 ? 1 : 3);
    ok(ds_stream_destroy(a));
    ok(ds_stream_destroy(b));
    ok(ds_stream_destroy(cpu));
    ok(ds_device_free(far));
    ok(ds_pinned_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_work_on_remote_memory_uses_kept_streams_and_events(void **state) {
    (void)state;
    ds_stream s;
    void *far;
    _Atomic int go = 0;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_device_alloc(ds_cuda(1), N, &far));
    unsigned long streams = standin_calls("cudaStreamCreateWithPriority");
    unsigned long events = standin_calls("cudaEventCreateWithFlags");
    for (int i = 0; i < 20; i++) {
        ok(ds_fill(far, 1, 1, N, s));
        ok(ds_stream_synchronize(s));
    }
    assert_int_equal(standin_calls("cudaStreamCreateWithPriority") - streams, 1);
    assert_int_equal(standin_calls("cudaEventCreateWithFlags") - events, 2);
    ok(ds_stream_launch_host_func(s, block_until, &go, NULL));
    for (int i = 0; i < 20; i++)
        ok(ds_fill(far, 2, 1, N, s)); /* more than are kept */
    /* and one that waits for the pending work of those that were not kept */
    assert_int_equal(standin_calls("cudaStreamCreateWithPriority") - streams, 21);
    go = 1;
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(far));
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
    ok(ds_device_alloc(ds_cuda(0), 64 * 100, &d));
    ok(ds_device_alloc(ds_cpu(0), 64 * 100, &m));
    for (int i = 0; i < 64 * 100; i++)
        ((unsigned char *)m)[i] = (unsigned char)(i / 64);
    for (int i = 0; i < 100; i++)
        ok(ds_copy((char *)d + 64 * i, (char *)m + 64 * i, 64, s));
    for (int i = 0; i < 100; i++)
        ok(ds_copy((char *)m + 64 * i, (char *)d + 64 * (99 - i), 64, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(standin_calls("cudaHostAlloc") - before, 1);
    for (int i = 0; i < 100; i++) {
        memset(back, 99 - i, sizeof back);
        assert_memory_equal((char *)m + 64 * i, back, 64);
    }
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_device_free(m));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* The stand-in's n-th call from here fails; which one that is stands in the log of calls of a
   run without a fault. */
static void test_calls_whose_failure_means_something_else_are_understood(void **state) {
    (void)state;
    int can = 1;
    ds_stream s, cpu, wrapper;
    ds_stream_native n;
    ds_event e;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    cuda(cudaSetDevice(3)); /* a pair that no other test asks about: answers are kept */
    /* cudaGetDevice, cudaDeviceCanAccessPeer, the thread's mode, cudaDeviceEnablePeerAccess */
    standin_fail(4, cudaErrorTooManyPeers);
    ok(ds_device_can_access_peer(ds_cuda(3), ds_cuda(0), &can));
    assert_int_equal(standin_failed(), 1);
    assert_int_equal(can, 0); /* a copy is staged then */
    cuda(cudaSetDevice(1));
    ok(ds_stream_export(s, &n));
    /* cudaGetDevice, and of the stream: flags, priority, device */
    standin_fail(4, cudaErrorCallRequiresNewerDriver);
    ok(ds_stream_wrap(&n, DS_BORROW, NULL, NULL, &wrapper));
    assert_int_equal(standin_failed(), 1);
    ok(ds_stream_destroy(wrapper));
    ok(ds_event_create(0, NULL, &e));
    /* cudaGetDevice, cudaEventCreateWithFlags, cudaGetDevice, cudaEventRecord */
    standin_fail(4, cudaErrorUnknown);
    refused(ds_event_record(e, s), DS_ERR_DRIVER);
    assert_int_equal(standin_failed(), 1);
    ok(ds_event_query(e));
    /* a reader may still have what was made for CUDA */
    refused(ds_event_record(e, cpu), DS_ERR_CROSS_DRIVER);
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

static void count_records(const ds_activity_batch *batch, void *count) {
    *(size_t *)count += batch->count + (size_t)batch->dropped;
}

/* The call that fails may be the operation's own, one of its record, or one of the thread that
   collects records. */
static void test_a_fault_of_a_recording_leaves_operations_alone(void **state) {
    (void)state;
    world *w = open_world(1);
    for (unsigned long n = 1; n <= 40; n++) {
        size_t count = 0;
        ok(ds_activity_start(&(ds_activity_desc){ .fn = count_records, .user = &count }));
        standin_fail(n, cudaErrorUnknown);
        ds_result r = ds_copy(w->d, w->pin, N, w->s);
        assert_true(r == DS_OK || r == DS_ERR_DRIVER);
        ok(ds_activity_flush());
        standin_fail(0, 0);
        ok(ds_copy(w->d, w->pin, N, w->s));
        ok(ds_activity_stop());
        assert_true(count == 1 || count == 2);
        expect_no_error("a recording");
    }
    close_world(w);
}

static void *wrap_own_stream(void *out) {
    ds_stream_native n = { .device = ds_cuda(0), .handle = (void *)2 };
    if (ds_stream_wrap(&n, DS_BORROW, NULL, NULL, out) < 0)
        abort();
    return NULL;
}

static void test_a_wrapper_of_a_per_thread_stream_may_outlive_the_thread(void **state) {
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

/* ---- captures and graphs ---- */

static void add_one(void *user);

static void count_up(void *user) {
    ++*(_Atomic int *)user;
}

static void await(const _Atomic int *n, int value) {
    for (int i = 0; i < 20000 && *n != value; i++)
        usleep(100);
    assert_int_equal(*n, value);
}

static void test_a_capture_begun_by_others_takes_work_and_is_not_ended(void **state) {
    (void)state;
    world *w = open_world(1);
    _Atomic int gone = 0;
    ds_stream_native n;
    ds_capture_info info;
    ds_graph ours;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t count;
    void *m;
    ok(ds_device_alloc(ds_cpu(0), N, &m));
    cuda(cudaSetDevice(1));
    ok(ds_stream_export(w->s, &n));
    cuda(cudaStreamBeginCapture(n.handle, cudaStreamCaptureModeRelaxed));
    ok(ds_capture_get_info(w->s, &info));
    assert_int_equal(info.status, DS_CAPTURE_ACTIVE);
    assert_true(info.id == 0 && info.graph.id == 0);
    *(uint64_t *)w->pin = 5;
    ok(ds_kernel_launch(w->k, 1, &(fold_args){ w->pin, 9 }, sizeof(fold_args), w->s));
    ok(ds_stream_launch_host_func(w->s, add_one, w->pin, NULL));
    ok(ds_stream_launch_host_func(w->s, nothing, &gone, count_up));
    ok(ds_copy(w->pin2, w->pin, 64, w->s)); /* by a host function of the library's own */
    ok(ds_graph_launch(w->x, w->s));
    ok(ds_event_record_external(w->e, w->s));
    refused(ds_capture_begin(w->s, DS_CAPTURE_RELAXED), DS_ERR_ILLEGAL_STATE);
    refused(ds_copy(w->page, w->pin, N, w->s), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_fill(w->far, 0, 1, N, w->s), DS_ERR_CAPTURE_UNSUPPORTED); /* on the other device */
    refused(ds_copy(w->d, m, N, w->s), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_graph_upload(w->x, w->s), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_capture_get_dependencies(w->s, NULL, 0, &count), DS_ERR_ILLEGAL_STATE);
    refused(ds_capture_end(w->s, &ours), DS_ERR_ILLEGAL_STATE);
    assert_non_null(strstr(ds_error_get_last(), "begun outside devstream"));
    cuda(cudaStreamEndCapture(n.handle, &graph)); /* nothing has spoiled it */
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    cuda(cudaGraphDestroy(graph));
    assert_true(*(uint64_t *)w->pin == 5);
    for (int i = 0; i < 2; i++)
        cuda(cudaGraphLaunch(exec, n.handle));
    ok(ds_stream_synchronize(w->s));
    uint64_t v = 5, seen = 0;
    for (int i = 0; i < 2; i++) {
        seen = v * 1099511628211u + 10;
        v = seen * 1099511628211u + 1;
    }
    assert_true(*(uint64_t *)w->pin == v && *(uint64_t *)w->pin2 == seen);
    assert_int_equal(gone, 0);
    cuda(cudaGraphExecDestroy(exec));
    await(&gone, 1);
    ok(ds_device_free(m));
    close_world(w);
}

static void test_a_launch_in_a_capture_of_others_keeps_its_objects(void **state) {
    (void)state;
    world *w = open_world(1);
    _Atomic int gone = 0, ran = 0;
    ds_stream_native n;
    ds_graph g;
    ds_graph_exec x;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cuda(cudaSetDevice(1));
    ok(ds_stream_export(w->s, &n));
    ok(ds_capture_begin(w->s, DS_CAPTURE_RELAXED));
    ok(ds_stream_launch_host_func(w->s, count_up, &ran, NULL));
    ok(ds_stream_launch_host_func(w->s, nothing, &gone, count_up));
    ok(ds_capture_end(w->s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_destroy(g));
    cuda(cudaStreamBeginCapture(n.handle, cudaStreamCaptureModeRelaxed));
    ok(ds_graph_launch(x, w->s));
    cuda(cudaStreamEndCapture(n.handle, &graph));
    ok(ds_graph_exec_destroy(x));
    assert_int_equal(gone, 0);
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaGraphLaunch(exec, n.handle));
    ok(ds_stream_synchronize(w->s));
    assert_int_equal(ran, 1);
    assert_int_equal(gone, 0);
    cuda(cudaGraphExecDestroy(exec));
    await(&gone, 1);
    close_world(w);
}

static void test_foreign_captured_work_stands_in_its_place_in_the_graph(void **state) {
    (void)state;
    world *w = open_world(1);
    static const ds_node_kind kinds[] = { DS_NODE_KERNEL, DS_NODE_NATIVE, DS_NODE_EMPTY,
                                          DS_NODE_FILL,   DS_NODE_NATIVE, DS_NODE_HOST,
                                          DS_NODE_NATIVE };
    static const int edges[][2] = { { 0, 1 }, { 0, 2 }, { 1, 3 }, { 2, 3 },
                                    { 3, 4 }, { 4, 5 }, { 5, 6 } };

    enum { NODES = 7, EDGES = 7 };

    ds_stream_native n;
    ds_capture_info info;
    ds_graph g, outer;
    ds_graph_exec x, y;
    ds_graph_node nodes[NODES], from[9], to[9], last, empty, child;
    ds_node_desc desc;
    uint64_t *h = w->pin;
    char bytes[32];
    size_t count;
    cuda(cudaSetDevice(1));
    ok(ds_stream_export(w->s, &n));
    ok(ds_capture_begin(w->s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_kernel_launch(w->k, 1, &(fold_args){ h, 1 }, sizeof(fold_args), w->s));
    ok(ds_capture_get_info(w->s, &info));
    ok(ds_capture_get_dependencies(w->s, &last, 1, &count));
    assert_int_equal(count, 1);
    cuda(cudaMemsetAsync(w->d, 7, 16, n.handle));
    /* behind what is not known yet */
    ok(ds_graph_add(info.graph, &(ds_node_desc){ .kind = DS_NODE_EMPTY }, &last, 1, &empty));
    ok(ds_capture_update_dependencies(w->s, &empty, 1, DS_CAPTURE_ADD_DEPENDENCIES));
    ok(ds_fill(w->d, 8, 1, 8, w->s));
    cuda(cudaMemcpyAsync(w->pin2, w->d, 16, cudaMemcpyDeviceToHost, n.handle));
    ok(ds_stream_launch_host_func(w->s, add_one, h, NULL));
    cuda(cudaMemsetAsync(w->d, 9, 16, n.handle));
    ok(ds_capture_end(w->s, &g));
    ok(ds_graph_get_nodes(g, nodes, NODES, &count));
    assert_int_equal(count, NODES);
    for (size_t i = 0; i < NODES; i++) {
        ok(ds_graph_get_node(g, nodes[i], &desc, NULL));
        assert_int_equal(desc.kind, kinds[i]);
    }
    ok(ds_graph_get_edges(g, from, to, 9, &count));
    assert_int_equal(count, EDGES);
    for (size_t i = 0; i < EDGES; i++) {
        int found = 0;
        for (size_t k = 0; k < EDGES; k++)
            found += from[k].id == nodes[edges[i][0]].id && to[k].id == nodes[edges[i][1]].id;
        assert_int_equal(found, 1);
    }
    ok(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS }, &x));
    desc = fold_node(w->k, &(fold_args){ h, 2 });
    ok(ds_graph_exec_set_node(x, nodes[0], &desc));
    /* the executable is made anew: the nodes of others stay what they are */
    desc = host_node(add_one, h, NULL);
    ok(ds_graph_exec_set_node(x, nodes[5], &desc));
    *h = 5;
    memset(w->pin2, 0, N);
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    memset(bytes, 8, 8);
    memset(bytes + 8, 7, 8);
    assert_memory_equal(w->pin2, bytes, 16);
    assert_true(*h == 5 * 1099511628211u + 3);
    ok(ds_graph_exec_update(x, g, NULL));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &outer));
    desc = (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g };
    ok(ds_graph_add(outer, &desc, NULL, 0, &child));
    ok(ds_graph_instantiate(outer, NULL, &y));
    desc = fold_node(w->k, &(fold_args){ h, 4 });
    ok(ds_graph_set_node(g, nodes[0], &desc));
    ok(ds_graph_launch(x, w->s));
    ok(ds_graph_launch(y, w->s));
    desc = (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g };
    /* its own nodes and what others captured stand in each other's order */
    ok(ds_graph_exec_set_node(y, child, &desc));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(outer));
    ok(ds_graph_launch(y, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_true(*h == (((5 * 1099511628211u + 3) * 1099511628211u + 2) * 1099511628211u + 2) *
                              1099511628211u +
                          5);
    assert_memory_equal(w->pin2, bytes, 16);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    close_world(w);
}

#if CUDART_VERSION >= 12080
static ds_node_desc condition_node(ds_condition_kind kind, const void *word, const ds_graph *bodies,
                                   size_t count) {
    return (ds_node_desc){ .kind = DS_NODE_CONDITION,
                           .u.condition = {
                               .kind = kind, .word = word, .bodies = bodies, .count = count } };
}

static ds_graph graph_of(int device, const ds_node_desc *node) {
    ds_graph g;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(device) }, &g));
    ok(ds_graph_add(g, node, NULL, 0, NULL));
    return g;
}

/* The kernels that devstream adds for conditional nodes are no nodes, also those in bodies. */
static void test_foreign_work_behind_nested_conditions_is_in_the_graph(void **state) {
    (void)state;
    static const ds_node_kind kinds[] = { DS_NODE_CONDITION, DS_NODE_KERNEL, DS_NODE_NATIVE,
                                          DS_NODE_FILL, DS_NODE_NATIVE };
    static const size_t edges[][2] = { { 1, 0 }, { 0, 2 }, { 2, 3 }, { 3, 4 } };

    enum { NODES = 5, EDGES = 4 };

    world *w = open_world(1);
    ds_stream_native n;
    ds_capture_info info;
    ds_graph g;
    ds_graph_exec x;
    ds_graph_node nodes[NODES + 1], from[NODES + 1], to[NODES + 1], c, kernel;
    size_t count;
    cuda(cudaSetDevice(1));
    ok(ds_stream_export(w->s, &n));
    ds_node_desc d = fold_node(w->k, &(fold_args){ w->pin2, 1 });
    ds_graph inner = graph_of(1, &d);
    d = condition_node(DS_CONDITION_IF, w->pin, &inner, 1);
    ds_graph body = graph_of(1, &d);
    d = condition_node(DS_CONDITION_IF, w->pin, &body, 1);
    ok(ds_capture_begin(w->s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_capture_get_info(w->s, &info));
    ok(ds_graph_add(info.graph, &d, NULL, 0, &c));
    ok(ds_capture_update_dependencies(w->s, &c, 1, DS_CAPTURE_SET_DEPENDENCIES));
    d = fold_node(w->k, &(fold_args){ w->pin, 1 }); /* sets the word */
    ok(ds_graph_add(info.graph, &d, NULL, 0, &kernel));
    ok(ds_graph_add_edges(info.graph, &kernel, &c, 1));

    cuda(cudaMemsetAsync(w->d, 7, 16, n.handle));
    ok(ds_fill(w->d, 8, 1, 8, w->s));
    cuda(cudaMemsetAsync(w->d, 9, 16, n.handle));
    ok(ds_capture_end(w->s, &g));

    ok(ds_graph_get_nodes(g, nodes, NODES + 1, &count));
    assert_int_equal(count, NODES);
    for (size_t i = 0; i < NODES; i++) {
        ds_node_desc desc;
        ok(ds_graph_get_node(g, nodes[i], &desc, NULL));
        assert_int_equal(desc.kind, kinds[i]);
    }
    ok(ds_graph_get_edges(g, from, to, NODES + 1, &count));
    assert_int_equal(count, EDGES);
    for (size_t i = 0; i < EDGES; i++) {
        assert_true(from[i].id == nodes[edges[i][0]].id);
        assert_true(to[i].id == nodes[edges[i][1]].id);
    }
    ok(ds_graph_instantiate(g, NULL, &x));
    memset(w->pin, 0, 8);
    memset(w->pin2, 0, 8);
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_int_equal(*(uint64_t *)w->pin2, 1);
    ok(ds_graph_exec_destroy(x));
    /* CUDA cannot change it, and the graph cannot be built anew */
    d = condition_node(DS_CONDITION_IF, w->pin, &inner, 1);
    refused(ds_graph_set_node(g, c, &d), DS_ERR_UNSUPPORTED);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_graph_destroy(inner));
    close_world(w);
}

/* One body in the other, on a word of `pin`. */
static ds_graph nested_bodies(const world *w, ds_graph *inner) {
    ds_node_desc d = fold_node(w->k, &(fold_args){ w->pin2, 1 });
    *inner = graph_of(w->device, &d);
    d = condition_node(DS_CONDITION_IF, w->pin, inner, 1);
    return graph_of(w->device, &d);
}

/* Each call of the addition fails in turn. A capture into the graph would find nodes that are
   left. */
static void test_a_refused_condition_is_not_in_cudas_graph_either(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph inner, body = nested_bodies(w, &inner);
    int hit = 1;
    memset(w->pin, 0, N);
    for (unsigned long refusal = 1; hit; refusal++) {
        ds_node_desc d = { .kind = DS_NODE_EMPTY };
        ds_graph g = graph_of(1, &d);
        ds_graph_exec x;
        size_t count;
        ds_graph_node n;
        d = condition_node(DS_CONDITION_WHILE, w->pin, &body, 1);

        standin_fail(refusal, cudaErrorMemoryAllocation);
        ds_result r = ds_graph_add(g, &d, NULL, 0, NULL);
        hit = standin_failed();
        standin_fail(0, 0);

        assert_true(hit || r == DS_OK);
        if (r < 0)
            assert_non_null(strchr(ds_error_get_last(), ' '));
        ok(ds_graph_get_nodes(g, &n, 1, &count));
        assert_int_equal(count, r < 0 ? 1 : 2);
        ok(ds_capture_begin_to_graph(w->s, g, &n, 1, DS_CAPTURE_THREAD_LOCAL));
        ok(ds_fill(w->d, 0, 1, N, w->s));
        ok(ds_capture_end(w->s, &g));
        ok(ds_graph_get_nodes(g, NULL, 0, &count));
        assert_int_equal(count, r < 0 ? 2 : 3);
        ok(ds_graph_instantiate(g, NULL, &x));
        ok(ds_graph_launch(x, w->s));
        ok(ds_stream_synchronize(w->s));
        ok(ds_graph_exec_destroy(x));
        ok(ds_graph_destroy(g));
    }
    ok(ds_graph_destroy(body));
    ok(ds_graph_destroy(inner));
    close_world(w);
}

static void test_conditions_in_a_capture_of_others_are_refused(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph inner, body = nested_bodies(w, &inner);
    ds_node_desc d = condition_node(DS_CONDITION_IF, w->pin, &body, 1);
    ds_graph g = graph_of(1, &d);
    ds_graph_exec x;
    ds_stream_native n;
    cudaGraph_t graph;
    size_t count = 9;
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_stream_export(w->s, &n));
    cuda(cudaSetDevice(1));
    cuda(cudaStreamBeginCapture(n.handle, cudaStreamCaptureModeRelaxed));
    refused(ds_graph_launch(x, w->s), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "conditional nodes"));
    ok(ds_fill(w->d, 0, 1, N, w->s));
    cuda(cudaStreamEndCapture(n.handle, &graph));
    cuda(cudaGraphGetNodes(graph, NULL, &count));
    assert_int_equal(count, 1);
    cuda(cudaGraphDestroy(graph));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_graph_destroy(inner));
    close_world(w);
}

/* Runs a conditional node on device 1 twice. Returns the number of calls of this function. */
static unsigned long calls_for_conditions(const char *name) {
    unsigned long before = standin_calls(name);
    world *w = open_world(1);
    ds_graph inner, body = nested_bodies(w, &inner);
    ds_node_desc d = condition_node(DS_CONDITION_IF, w->pin, &body, 1);
    uint64_t *h = w->pin2;
    *h = 1;
    *(uint32_t *)w->pin = 1;
    for (int i = 0; i < 2; i++) {
        ds_graph g = graph_of(1, &d);
        ds_graph_exec x;
        ok(ds_graph_instantiate(g, NULL, &x));
        ok(ds_graph_launch(x, w->s));
        ok(ds_stream_synchronize(w->s));
        ok(ds_graph_exec_destroy(x));
        ok(ds_graph_destroy(g));
    }
    assert_true(*h == (1099511628211u + 1) * 1099511628211u + 1);
    before = standin_calls(name) - before;
    ok(ds_graph_destroy(body));
    ok(ds_graph_destroy(inner));
    close_world(w);
    return before;
}

static void test_the_kernel_for_conditions_is_linked_once(void **state) {
    (void)state;
    assert_int_equal(calls_for_conditions("cuLinkComplete"), 1);
}

static void test_a_driver_that_knows_conditions_links_nothing(void **state) {
    (void)state;
    standin_conditions(1);
    unsigned long links = calls_for_conditions("cuLinkCreate");
    standin_conditions(0);
    assert_int_equal(links, 0);
}

/* Returns the sentence of the refusal. */
static const char *refuse_condition(ds_result code) {
    static char text[1000];
    world *w = open_world(1);
    ds_node_desc d = { .kind = DS_NODE_EMPTY };
    ds_graph body = graph_of(1, &d), g = graph_of(1, &d);
    size_t count;
    d = condition_node(DS_CONDITION_IF, w->pin, &body, 1);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), code);
    snprintf(text, sizeof text, "%s", ds_error_get_last());
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 1);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    close_world(w);
    return text;
}

static void test_conditions_on_an_old_driver_are_refused(void **state) {
    (void)state;
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("STANDIN_DRIVER_VERSION=12060", "conditions_on_an_old_driver");
        return;
    }
    assert_non_null(strstr(refuse_condition(DS_ERR_UNSUPPORTED), "CUDA 12.8"));
}

static void test_conditions_without_the_device_runtime_are_refused(void **state) {
    (void)state;
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("DEVSTREAM_CUDADEVRT=/no/libcudadevrt.a", "without_the_device_runtime");
        return;
    }
    const char *text = refuse_condition(DS_ERR_DRIVER);
    assert_non_null(strstr(text, "cuLinkAddFile"));
    assert_non_null(strstr(text, "linked with /no/libcudadevrt.a"));
}
#endif

static void test_a_node_behind_foreign_captured_work_is_set_and_switched(void **state) {
    (void)state;
    world *w = open_world(1);
    _Atomic int first = 0;
    uint32_t *to = w->pin, *from = w->pin2;
    ds_stream_native n;
    ds_capture_info info;
    ds_graph g;
    ds_graph_exec x;
    ds_graph_node copy, host;
    cuda(cudaSetDevice(1));
    ok(ds_stream_export(w->s, &n));
    ok(ds_capture_begin(w->s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_capture_get_info(w->s, &info));
    cuda(cudaMemsetAsync(w->d, 7, 16, n.handle)); /* becomes node 0 when the next one is added */
    ds_node_desc desc = copy_node(to, from, 4, 1);
    ok(ds_graph_add(info.graph, &desc, NULL, 0, &copy));
    desc = host_node(nothing, &first, count_up);
    ok(ds_graph_add(info.graph, &desc, &copy, 1, &host));
    ok(ds_capture_update_dependencies(w->s, &host, 1, DS_CAPTURE_ADD_DEPENDENCIES));
    ok(ds_stream_launch_host_func(w->s, nothing, NULL, NULL));
    ok(ds_capture_end(w->s, &g));

    desc = host_node(nothing, NULL, NULL);
    ok(ds_graph_set_node(g, host, &desc));
    assert_int_equal(first, 1);

    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_exec_set_node_enabled(x, copy, 0));
    ok(ds_graph_exec_set_node_enabled(x, copy, 1));
    *to = 1;
    *from = 2;
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_int_equal(*to, 2);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    close_world(w);
}

static void test_loading_in_a_capture_keeps_the_threads_mode(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_kernel fresh = make_fold();
    ds_graph g;
    void *m;
    for (int mode = cudaStreamCaptureModeGlobal; mode <= cudaStreamCaptureModeRelaxed; mode++) {
        enum cudaStreamCaptureMode now = (enum cudaStreamCaptureMode)mode;
        cuda(cudaThreadExchangeStreamCaptureMode(&now));
        ok(ds_capture_begin(w->elsewhere, DS_CAPTURE_GLOBAL));
        /* the first on this device */
        ok(ds_kernel_launch(fresh, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->elsewhere));
        ok(ds_device_get_memory_info(ds_cuda(2), &(size_t){ 0 }, &(size_t){ 0 }));
        now = cudaStreamCaptureModeGlobal;
        cuda(cudaThreadExchangeStreamCaptureMode(&now));
        assert_int_equal(now, mode);
        ok(ds_capture_end(w->elsewhere, &g));
        ok(ds_graph_destroy(g));
        ok(ds_kernel_destroy(fresh));
        fresh = make_fold();
    }
    ok(ds_capture_begin(w->elsewhere, DS_CAPTURE_GLOBAL));
    refused(ds_device_alloc(ds_cuda(1), N, &m), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_capture_end(w->elsewhere, &g), DS_ERR_CAPTURE_INVALIDATED);
    assert_non_null(strstr(ds_error_get_last(), "ds_device_alloc"));
    ok(ds_kernel_destroy(fresh));
    close_world(w);
}

/* PyTorch captures in global mode, in which CUDA counts queries of every thread as violations. */
static void test_queries_leave_the_captures_of_others_alone(void **state) {
    (void)state;
    world *w = open_world(1);
    cudaStream_t stream;
    cudaGraph_t graph;
    enum cudaStreamCaptureStatus status;
    ds_stream legacy;
    double ms;
    ok(ds_stream_get_legacy(ds_cuda(1), &legacy));
    ok(ds_event_record(w->timed, w->s));
    ok(ds_stream_synchronize(w->s));
    cuda(cudaSetDevice(0));
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ok(ds_stream_query(w->s));
    ok(ds_event_query(w->timed));
    ok(ds_event_get_elapsed_ms(w->timed, w->timed, &ms));
    ok(ds_stream_query(legacy));
    cuda(cudaStreamIsCapturing(stream, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaStreamDestroy(stream));
    close_world(w);
}

static void *open_in_a_moment(void *flag) {
    usleep(20000);
    *(_Atomic int *)flag = 1;
    return NULL;
}

/* Frees memory that a stream uses, after a function on the stream that returns a moment later. The
   stand-in aborts when memory goes that is in use. */
static void free_under_work(world *w, ds_stream s, ds_stream destroyed, int pinned) {
    _Atomic int opened = 0;
    pthread_t thread;
    void *m;
    ok(pinned ? ds_pinned_alloc(N, &m) : ds_device_alloc(ds_cuda(1), N, &m));
    ok(ds_stream_launch_host_func(s, block_until, &opened, NULL));
    ok(ds_copy(s.id == w->elsewhere.id ? w->far : w->d, m, N, s));
    if (destroyed.id)
        ok(ds_stream_destroy(destroyed));
    assert_int_equal(pthread_create(&thread, NULL, open_in_a_moment, &opened), 0);
    ok(pinned ? ds_pinned_free(m) : ds_device_free(m));
    assert_true(opened);
    pthread_join(thread, NULL);
}

/* A wait for the device would spoil the capture. */
static void free_beside_a_capture(int pinned) {
    world *w = open_world(1);
    ds_stream blocking, own, gone;
    ds_graph g;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1), .flags = DS_STREAM_BLOCKING },
                        &blocking));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &gone));
    ok(ds_stream_get_per_thread(ds_cuda(1), &own));
    ok(ds_capture_begin(w->s, DS_CAPTURE_RELAXED));
    ok(ds_kernel_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->s));
    free_under_work(w, w->other, (ds_stream){ 0 }, pinned);
    free_under_work(w, blocking, (ds_stream){ 0 }, pinned);
    free_under_work(w, own, (ds_stream){ 0 }, pinned);
    if (pinned)
        free_under_work(w, w->elsewhere, (ds_stream){ 0 }, pinned);
    free_under_work(w, gone, gone, pinned);
    ok(ds_capture_end(w->s, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(blocking));
    close_world(w);
}

static void test_host_memory_is_freed_in_a_capture_when_streams_passed(void **state) {
    (void)state;
    free_beside_a_capture(1);
}

static void test_device_memory_is_freed_in_a_capture_after_its_work(void **state) {
    (void)state;
    free_beside_a_capture(0);
}

static void test_a_launch_that_takes_several_is_captured_but_not_known(void **state) {
    (void)state;
    static const ds_param params[] = { { DS_PARAM_FIRST, 0, 8 }, { DS_PARAM_COUNT, 0, 8 } };
    world *w = open_world(0);
    ds_kernel k;
    ds_graph g;
    ds_graph_node nodes[9];
    ds_node_desc desc;
    size_t count;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "wide",
                           .params = params,
                           .param_count = 2,
                           .cuda = { .image = ptx_part64, .entry = "part", .items_per_block = 1 } },
        &k));
    ok(ds_capture_begin(w->s, DS_CAPTURE_GLOBAL));
    ok(ds_kernel_launch(k, ((size_t)1 << 32) + 5, NULL, 0, w->s));
    ok(ds_capture_end(w->s, &g));
    ok(ds_graph_get_nodes(g, nodes, 9, &count));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        ok(ds_graph_get_node(g, nodes[i], &desc, NULL));
        assert_int_equal(desc.kind, DS_NODE_NATIVE);
    }
    desc = (ds_node_desc){ .kind = DS_NODE_KERNEL,
                           .u.kernel = { .kernel = k, .items = ((size_t)1 << 32) + 5 } };
    ok(ds_graph_destroy(g));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &g));
    refused(ds_graph_add(g, &desc, NULL, 0, NULL), DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "wide"));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    close_world(w);
}

static void test_what_an_executable_does_not_do_any_more_is_ended(void **state) {
    (void)state;
    world *w = open_world(1);
    _Atomic int first = 0, second = 0, third = 0;
    ds_graph g;
    ds_graph_exec x;
    ds_graph_node node;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g));
    ds_node_desc desc = host_node(nothing, &first, count_up);
    ok(ds_graph_add(g, &desc, NULL, 0, &node));
    ok(ds_graph_instantiate(g, NULL, &x));
    desc = host_node(nothing, &second, count_up);
    ok(ds_graph_set_node(g, node, &desc));
    assert_int_equal(first, 0); /* the executable has it */
    desc = host_node(nothing, &third, count_up);
    ok(ds_graph_exec_set_node(x, node, &desc));
    await(&first, 1);
    ok(ds_graph_exec_update(x, g, NULL));
    await(&third, 1);
    ok(ds_graph_destroy(g));
    assert_int_equal(second, 0);
    ok(ds_graph_exec_destroy(x));
    await(&second, 1);
    close_world(w);
}

static void test_priorities_of_nodes_are_cudas(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_stream urgent;
    ds_graph captured, made;
    ds_graph_exec x;
    ds_graph_node node;
    ds_graph_update_info info;
    fold_args args = { w->pin, 1 };
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1), .priority = -1 }, &urgent));
    ok(ds_capture_begin(urgent, DS_CAPTURE_GLOBAL));
    ok(ds_kernel_launch(w->k, 1, &args, sizeof args, urgent));
    ok(ds_capture_end(urgent, &captured));
    ok(ds_graph_instantiate(captured, &(ds_graph_exec_desc){ .flags = DS_GRAPH_USE_NODE_PRIORITY },
                            &x));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &made));
    ds_node_desc desc = fold_node(w->k, &args);
    desc.priority = -1;
    ok(ds_graph_add(made, &desc, NULL, 0, &node));
    ok(ds_graph_exec_update(x, made, NULL));
    desc.priority = 0;
    ok(ds_graph_set_node(made, node, &desc));
    refused(ds_graph_exec_update(x, made, &info), DS_ERR_GRAPH_UPDATE);
    assert_int_equal(info.reason, DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED);
    assert_true(info.node.id == node.id);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(made));
    ok(ds_graph_destroy(captured));
    ok(ds_stream_destroy(urgent));
    close_world(w);
}

static void test_a_capturing_stream_is_not_asked_for_the_legacy_stream(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_stream blocking, legacy;
    ds_graph g;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1), .flags = DS_STREAM_BLOCKING },
                        &blocking));
    ok(ds_stream_get_legacy(ds_cuda(1), &legacy));
    for (int wait = 0; wait < 2; wait++) {
        ok(ds_capture_begin(blocking, DS_CAPTURE_RELAXED));
        unsigned long queries = standin_calls("cuStreamQuery");
        if (wait)
            refused(ds_stream_synchronize(legacy), DS_ERR_CAPTURE_IMPLICIT);
        else
            refused(ds_stream_query(legacy), DS_ERR_CAPTURE_IMPLICIT);
        /* a query, of the legacy stream only; the wait needs none */
        assert_int_equal(standin_calls("cuStreamQuery") - queries, !wait);
        refused(ds_capture_end(blocking, &g), DS_ERR_CAPTURE_INVALIDATED);
    }
    ok(ds_stream_destroy(blocking));
    close_world(w);
}

static void test_a_child_with_nodes_added_in_reverse_keeps_its_order(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph inner, g;
    ds_graph_exec x;
    ds_graph_node second, first, child;
    uint64_t *h = w->pin;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &inner));
    ds_node_desc desc = fold_node(w->k, &(fold_args){ h, 2 });
    ok(ds_graph_add(inner, &desc, NULL, 0, &second));
    desc = fold_node(w->k, &(fold_args){ h, 1 });
    ok(ds_graph_add(inner, &desc, NULL, 0, &first));
    ok(ds_graph_add_edges(inner, &first, &second, 1));
    desc = fill_node(w->d, 4, 8, 1);
    ok(ds_graph_add(inner, &desc, &second, 1, &child));
    desc = fill_node(w->pin2, 4, 8, 1);
    /* CUDA has no such change: the graph is made anew */
    ok(ds_graph_set_node(inner, child, &desc));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g));
    desc = (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = inner };
    ok(ds_graph_add(g, &desc, NULL, 0, &child));
    desc = fold_node(w->k, &(fold_args){ h, 3 });
    ok(ds_graph_set_node(inner, first, &desc)); /* not in the child, which is a copy */
    ok(ds_graph_instantiate(g, NULL, &x));
    *h = 5;
    ok(ds_graph_launch(x, w->s));
    desc = (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = inner };
    ok(ds_graph_exec_set_node(x, child, &desc));
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_true(*h == (((5 * 1099511628211u + 1) * 1099511628211u + 2) * 1099511628211u + 3) *
                              1099511628211u +
                          2);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(inner));
    close_world(w);
}

static void registered_node(void) {
}

static void test_registered_functions_are_nodes(void **state) {
    (void)state;
    void (*fn)(void) = registered_node;
    const void *native;
    world *w = open_world(1);
    ds_kernel_desc desc = {
        .name = "fold",
        .args_size = sizeof(fold_args),
        .params = (ds_param[]){ { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
                                { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) } },
        .param_count = 2,
        .cuda = { .block = 1 }
    };
    ds_kernel k;
    ds_graph g;
    ds_graph_exec x;
    ds_graph_node node;
    uint64_t *h = w->pin;
    memcpy(&native, &fn, sizeof native);
    standin_register_function(native, ptx_fold, "fold");
    desc.cuda.native_fn = native;
    ok(ds_kernel_create(&desc, &k));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g));
    ds_node_desc n = fold_node(k, &(fold_args){ h, 1 });
    n.priority = -2;
    ok(ds_graph_add(g, &n, NULL, 0, &node));
    n = fold_node(w->k, &(fold_args){ h, 2 }); /* from an image */
    ok(ds_graph_set_node(g, node, &n));
    n = fold_node(k, &(fold_args){ h, 3 });
    ok(ds_graph_set_node(g, node, &n));
    n = fold_node(k, &(fold_args){ h, 4 });
    ok(ds_graph_set_node(g, node, &n));
    ok(ds_graph_instantiate(g, NULL, &x));
    *h = 5;
    ok(ds_graph_launch(x, w->s));
    n = fold_node(k, &(fold_args){ h, 6 });
    ok(ds_graph_exec_set_node(x, node, &n));
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_true(*h == (5 * 1099511628211u + 4) * 1099511628211u + 6);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    close_world(w);
}

/* A graph on a device that fails: in a process of its own. */
static void fail_in_a_graph(void) {
    _Atomic int gone = 0, ran = 0, attached = 0;
    ds_stream s;
    ds_graph g;
    ds_graph_exec x;
    ds_kernel k;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "explode",
                           .cuda = { .image = ptx_explode, .entry = "explode", .block = 1 } },
        &k));
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_stream_launch_host_func(s, count_up, &ran, NULL));
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    ok(ds_stream_launch_host_func(s, count_up, &gone, count_up)); /* never runs */
    ok(ds_capture_end(s, &g));
    ok(ds_graph_attach(g, &attached, count_up));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_launch(x, s));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    assert_int_equal(ran, 1);
    assert_int_equal(gone, 0);
    ok(ds_graph_exec_destroy(x));
    assert_int_equal(attached, 0);
    refused(ds_shutdown(), DS_ERR_FAILED);
    assert_int_equal(gone, 1);
    assert_int_equal(attached, 1);
}

static void test_a_graph_on_a_device_that_fails_ends_what_it_keeps_once(void **state) {
    (void)state;
    run_alone("ends_what_it_keeps", fail_in_a_graph);
}

/* ---- kernels ---- */

static void registered_function(void) {
}

static void test_cubins_fatbins_and_registered_functions_run(void **state) {
    (void)state;
    static const unsigned char cubin[64] = { 0x7f, 'E', 'L', 'F' };
    static const unsigned char fatbin[64] = { 0x50, 0xed, 0x55, 0xba };
    static const ds_param params[] = {
        { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
        { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) }
    };
    ds_kernel_cuda forms[] = {
        { .image = cubin, .image_size = sizeof cubin, .entry = "fold", .block = 1 },
        { .image = fatbin, .image_size = sizeof fatbin, .entry = "fold", .block = 1 },
        { .block = 1 }
    };
    void (*fn)(void) = registered_function;
    const void *native;
    memcpy(&native, &fn, sizeof native);
    forms[2].native_fn = native;
    standin_register_image(cubin, ptx_fold);
    standin_register_image(fatbin, ptx_fold);
    standin_register_function(native, ptx_fold, "fold");
    uint64_t *h;
    void *pin;
    ok(ds_pinned_alloc(sizeof *h, &pin));
    h = pin;
    for (int device = 0; device < 2; device++)
        for (size_t i = 0; i < 3; i++) {
            ds_kernel k;
            ds_stream s;
            ok(ds_kernel_create(&(ds_kernel_desc){ .name = "fold",
                                                   .args_size = sizeof(fold_args),
                                                   .params = params,
                                                   .param_count = 2,
                                                   .cuda = forms[i] },
                                &k));
            ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(device) }, &s));
            *h = 5;
            ok(ds_kernel_launch(k, 1, &(fold_args){ h, 9 }, sizeof(fold_args), s));
            ok(ds_stream_synchronize(s));
            assert_true(*h == 5 * 1099511628211u + 9);
            ok(ds_kernel_destroy(k));
            ok(ds_stream_destroy(s));
        }
    ok(ds_pinned_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_a_function_of_another_cudart_is_refused(void **state) {
    (void)state;
    static const int unknown = 0;
    ds_kernel k;
    ds_stream s;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "foreign", .cuda = { .native_fn = &unknown } },
                        &k));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    refused(ds_kernel_launch(k, 1, NULL, 0, s), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "foreign: native_fn"));
    assert_non_null(strstr(ds_error_get_last(), "the same cudart"));
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

static void test_an_image_without_a_form_for_the_gpu_is_refused(void **state) {
    (void)state;
    static const unsigned char cubin[64] = { 0x7f, 'E', 'L', 'F', 1 };
    ds_kernel k;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "strange",
                           .cuda = { .image = cubin, .image_size = sizeof cubin, .entry = "x" } },
        &k));
    refused(ds_kernel_load(k, ds_cuda(0)), DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "strange"));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

/* Makes the context of a device: without one a load takes two calls. */
static void make_context(int device) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(device) }, &s));
    ok(ds_stream_destroy(s));
}

static void test_kernels_of_one_image_share_its_module_and_unload_it(void **state) {
    (void)state;
    make_context(0);
    make_context(1);
    unsigned long loads = standin_calls("cuModuleLoadDataEx"),
                  unloads = standin_calls("cuModuleUnload");
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

enum { LOADERS = 4 };

typedef struct loader {
    ds_kernel kernel;
    ds_result result;
    char said[400];
} loader;

static void *load_on_device_0(void *user) {
    loader *l = user;
    l->result = ds_kernel_load(l->kernel, ds_cuda(0));
    snprintf(l->said, sizeof l->said, "%s", l->result < 0 ? ds_error_get_last() : "");
    return NULL;
}

/* Loads on as many threads at once; the driver takes a while. */
static void load_at_once(loader *l) {
    pthread_t thread[LOADERS];
    standin_load_delay(30);
    for (int i = 0; i < LOADERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, load_on_device_0, &l[i]), 0);
    for (int i = 0; i < LOADERS; i++)
        pthread_join(thread[i], NULL);
    standin_load_delay(0);
}

/* Kernels 0 and 1 are the same, 2 and 3 have its image. */
static void test_threads_load_an_image_once(void **state) {
    (void)state;
    loader l[LOADERS] = { { .kernel = make_fold() } };
    make_context(0);
    l[1].kernel = l[0].kernel;
    l[2].kernel = make_fold();
    l[3].kernel = make_fold();
    unsigned long loads = standin_calls("cuModuleLoadDataEx");
    unsigned long unloads = standin_calls("cuModuleUnload");

    load_at_once(l);

    assert_int_equal(standin_calls("cuModuleLoadDataEx") - loads, 1);
    for (int i = 0; i < LOADERS; i++)
        assert_int_equal(l[i].result, DS_OK);
    for (int i = 1; i < LOADERS; i++) {
        assert_int_equal(standin_calls("cuModuleUnload") - unloads, 0);
        ok(ds_kernel_destroy(l[i].kernel));
        ok(ds_device_synchronize(ds_cuda(0)));
    }
    assert_int_equal(standin_calls("cuModuleUnload") - unloads, 1);
    ok(ds_shutdown());
}

static void test_threads_that_wait_for_a_refused_image_are_refused(void **state) {
    (void)state;
    static const char image[] = ".version 6.0\n.target sm_60\n.address_size 64\n"
                                ".visible .entry x()\n{\nnonsense;\n}\n";
    loader l[LOADERS];
    make_context(0);
    for (int i = 0; i < LOADERS; i++)
        ok(ds_kernel_create(
            &(ds_kernel_desc){ .name = "nonsense", .cuda = { .image = image, .entry = "x" } },
            &l[i].kernel));

    load_at_once(l);

    for (int i = 0; i < LOADERS; i++) {
        assert_int_equal(l[i].result, DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(l[i].said, "kernel nonsense could not be loaded"));
        ok(ds_kernel_destroy(l[i].kernel));
    }
    ok(ds_shutdown());
}

static void test_images_in_pieces_are_shared_by_their_array(void **state) {
    (void)state;
    static const char *const pieces[] = { ptx_fold, "", NULL };
    static const char *const others[] = { ptx_fold, NULL };
    make_context(0);
    unsigned long loads = standin_calls("cuModuleLoadDataEx");
    ds_kernel kernels[3];
    for (int i = 0; i < 3; i++) {
        ds_kernel_desc d = { .name = "fold",
                             .args_size = sizeof(fold_args),
                             .params = fold_params,
                             .param_count = 2,
                             .cuda = { .image_pieces = i < 2 ? pieces : others, .entry = "fold" } };
        ok(ds_kernel_create(&d, &kernels[i]));
        ok(ds_kernel_load(kernels[i], ds_cuda(0)));
    }
    assert_int_equal(standin_calls("cuModuleLoadDataEx") - loads, 2); /* one per array */
    for (int i = 0; i < 3; i++)
        ok(ds_kernel_destroy(kernels[i]));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_more_shared_memory_than_every_gpu_has_is_asked_for(void **state) {
    (void)state;
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, 0, sizeof(uint32_t *) } };
    void (*fn)(void) = registered_function;
    const void *native;
    void *pin;
    memcpy(&native, &fn, sizeof native);
    standin_register_function(native, ptx_turn_around, "turn_around");
    ok(ds_pinned_alloc(32 * sizeof(uint32_t), &pin));
    for (int form = 0; form < 2; form++) {
        ds_kernel k;
        ds_stream s;
        uint32_t *v = pin;
        ds_kernel_cuda cuda = { .native_fn = native };
        if (form == 0)
            cuda = (ds_kernel_cuda){ .image = ptx_turn_around, .entry = "turn_around" };
        ok(ds_kernel_create(&(ds_kernel_desc){ .name = "turn_around",
                                               .args_size = sizeof v,
                                               .params = params,
                                               .param_count = 1,
                                               .cuda = cuda },
                            &k));
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s));
        for (uint32_t i = 0; i < 32; i++)
            v[i] = i;
        ok(ds_kernel_launch_grid(
            k, &(ds_grid){ .grid = { 1, 1, 1 }, .block = { 32, 1, 1 }, .shared_bytes = 100000 }, &v,
            sizeof v, s));
        ok(ds_stream_synchronize(s));
        for (uint32_t i = 0; i < 32; i++)
            assert_int_equal(v[i], 31 - i);
        refused(
            ds_kernel_launch_grid(
                k, &(ds_grid){ .grid = { 1, 1, 1 }, .block = { 32, 1, 1 }, .shared_bytes = 300000 },
                &v, sizeof v, s),
            DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_error_get_last(), "turn_around"));
        ok(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
        ok(ds_kernel_destroy(k));
    }
    ok(ds_pinned_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static ds_graph_exec captured_exec(ds_kernel k, const ds_grid *grid, const void *args, size_t size,
                                   ds_stream s) {
    ds_graph g;
    ds_graph_exec x;
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_kernel_launch_grid(k, grid, args, size, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_destroy(g));
    return x;
}

/* Instantiates a graph with a node of this grid, and one whose node gets the grid later. */
static void instantiate_by_hand(ds_kernel k, const ds_grid *grid, const void *args, size_t size) {
    const ds_grid plain = { .grid = { 4 }, .block = { 8 }, .shared_bytes = 32 };
    for (int later = 0; later < 2; later++) {
        ds_node_desc d = { .kind = DS_NODE_KERNEL,
                           .u.kernel = { .kernel = k,
                                         .grid = later ? &plain : grid,
                                         .args = args,
                                         .args_size = size } };
        ds_graph g;
        ds_graph_exec x;
        ds_graph_node n;
        ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g));
        ok(ds_graph_add(g, &d, NULL, 0, &n));
        d.u.kernel.grid = grid;
        if (later)
            ok(ds_graph_set_node(g, n, &d));
        ok(ds_graph_instantiate(g, NULL, &x));
        ok(ds_graph_exec_destroy(x));
        ok(ds_graph_destroy(g));
    }
}

static unsigned long launches_seen[3]; /* with clusters, cooperative, with an overlap */

/* Since the last call. */
static void expect_launches_with(unsigned long cluster, unsigned long cooperative,
                                 unsigned long overlap) {
    unsigned long *seen = launches_seen;
    unsigned long now[3];
    standin_launches_with(&now[0], &now[1], &now[2]);
    assert_int_equal(now[0] - seen[0], cluster);
    assert_int_equal(now[1] - seen[1], cooperative);
    assert_int_equal(now[2] - seen[2], overlap);
    memcpy(seen, now, sizeof now);
}

/* Both forms of a kernel's code hand clusters and flags to CUDA. */
static void test_attributes_of_a_grid_reach_cuda(void **state) {
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, 0, sizeof(void *) } };
    static const ds_grid grids[] = {
        { .grid = { 4 }, .block = { 8 }, .shared_bytes = 32 },
        { .grid = { 4 }, .block = { 8 }, .shared_bytes = 32, .cluster = { 2 } },
        { .grid = { 4 }, .block = { 8 }, .shared_bytes = 32, .flags = DS_GRID_COOPERATIVE },
        { .grid = { 4 }, .block = { 8 }, .shared_bytes = 32, .flags = DS_GRID_OVERLAP },
        { .grid = { 4 },
          .block = { 8 },
          .shared_bytes = 32,
          .cluster = { 4 },
          .flags = DS_GRID_COOPERATIVE | DS_GRID_OVERLAP },
    };
    const void *native;
    void *pin;
    (void)state;
    memcpy(&native, &(void (*)(void)){ (void (*)(void))test_attributes_of_a_grid_reach_cuda },
           sizeof native);
    standin_register_function(native, ptx_turn_around, "turn_around");
    ok(ds_pinned_alloc(32 * sizeof(uint32_t), &pin));
    standin_launches_with(&launches_seen[0], &launches_seen[1], &launches_seen[2]);
    for (int form = 0; form < 2; form++) {
        ds_kernel k;
        ds_stream s;
        uint32_t *v = pin;
        ds_kernel_cuda cuda = { .native_fn = native };
        if (form == 0)
            cuda = (ds_kernel_cuda){ .image = ptx_turn_around, .entry = "turn_around" };
        ok(ds_kernel_create(&(ds_kernel_desc){ .name = "turn_around",
                                               .args_size = sizeof v,
                                               .params = params,
                                               .param_count = 1,
                                               .cuda = cuda },
                            &k));
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s));
        for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
            const ds_grid *g = &grids[i];
            unsigned long cluster = g->cluster[0] != 0, together = g->flags & DS_GRID_COOPERATIVE,
                          overlap = (g->flags & DS_GRID_OVERLAP) != 0;
            for (uint32_t j = 0; j < 32; j++)
                v[j] = j;
            ok(ds_kernel_launch_grid(k, g, &v, sizeof v, s));
            ok(ds_stream_synchronize(s));
            for (uint32_t j = 0; j < 32; j++)
                assert_int_equal(v[j], j / 8 * 8 + 7 - j % 8);
            expect_launches_with(cluster, together, overlap);
            /* the capture, and the node when the graph is instantiated */
            ds_graph_exec x = captured_exec(k, g, &v, sizeof v, s);
            expect_launches_with(2 * cluster, 2 * together, 2 * overlap);
            ok(ds_graph_launch(x, s));
            ok(ds_stream_synchronize(s));
            for (uint32_t j = 0; j < 32; j++)
                assert_int_equal(v[j], j);
            ok(ds_graph_exec_destroy(x));
            if (!overlap) {
                instantiate_by_hand(k, g, &v, sizeof v);
                expect_launches_with(2 * cluster, 2 * together, 0);
            }
        }
        ok(ds_stream_destroy(s));
        ok(ds_kernel_destroy(k));
    }
    ok(ds_pinned_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* A GPU before compute capability 9.0: an overlap is left out, the others are refused. */
static void test_a_device_without_attributes_refuses_them(void **state) {
    static const struct {
        ds_grid grid;
        const char *words;
    } refusals[] = {
        { { .grid = { 2 }, .block = { 1 }, .cluster = { 2 } },
          "cuda:0 does not support clusters of blocks (kernel fold)" },
        { { .grid = { 2 }, .block = { 1 }, .flags = DS_GRID_COOPERATIVE },
          "cuda:0 does not support cooperative launches (kernel fold)" },
    };

    const ds_grid overlap = { .grid = { 1 }, .block = { 1 }, .flags = DS_GRID_OVERLAP };
    void *pin;
    (void)state;
    ds_stream s;
    ds_graph g;
    standin_launch_attributes(0, 0);
    ds_kernel k = make_fold();
    ok(ds_pinned_alloc(8, &pin));
    *(uint64_t *)pin = 1;
    fold_args args = { pin, 5 };
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &g));

    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        ds_node_desc d = fold_node(k, &args);
        ds_graph_node n;
        size_t count;
        d.u.kernel.grid = &refusals[i].grid;
        refused(ds_kernel_launch_grid(k, &refusals[i].grid, &args, sizeof args, s),
                DS_ERR_UNSUPPORTED);
        assert_non_null(strstr(ds_error_get_last(), refusals[i].words));
        refused(ds_graph_add(g, &d, NULL, 0, &n), DS_ERR_UNSUPPORTED);
        assert_non_null(strstr(ds_error_get_last(), refusals[i].words));
        ok(ds_graph_get_nodes(g, NULL, 0, &count));
        assert_int_equal(count, 0);
    }
    ok(ds_kernel_launch_grid(k, &overlap, &args, sizeof args, s));
    ok(ds_stream_synchronize(s));

    assert_true(*(uint64_t *)pin == 1099511628211u + 5);
    standin_launch_attributes(0, 1);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(k));
    ok(ds_pinned_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* A kernel that is launched and destroyed while another thread waits for the device: the wait is
   for earlier work only. */
static void *wait_for_device_0(void *done) {
    if (ds_device_synchronize(ds_cuda(0)) < 0)
        abort();
    *(_Atomic int *)done = 1;
    return NULL;
}

static void test_a_kernel_destroyed_during_a_wait_keeps_its_code(void **state) {
    (void)state;
    ds_stream s, t;
    void *pin;
    pthread_t thread;
    _Atomic int first = 0, second = 0, done = 0;
    ok(ds_pinned_alloc(sizeof(uint64_t), &pin));
    *(uint64_t *)pin = 5;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &t));
    ds_kernel k = make_fold();
    ok(ds_kernel_load(k, ds_cuda(0)));
    ok(ds_stream_launch_host_func(s, block_until, &first, NULL));
    unsigned long calls = standin_calls("cudaDeviceSynchronize");
    assert_int_equal(pthread_create(&thread, NULL, wait_for_device_0, &done), 0);
    while (standin_calls("cudaDeviceSynchronize") == calls)
        sched_yield();
    usleep(20000); /* it waits for what was there */
    ok(ds_stream_launch_host_func(t, block_until, &second, NULL));
    ok(ds_kernel_launch(k, 1, &(fold_args){ pin, 9 }, sizeof(fold_args), t));
    ok(ds_kernel_destroy(k));
    first = 1;
    /* the stand-in aborts when the code goes now */
    for (int i = 0; i < 2000 && !done; i++)
        usleep(100);
    second = 1;
    pthread_join(thread, NULL);
    ok(ds_stream_synchronize(t));
    assert_true(*(uint64_t *)pin == 5 * 1099511628211u + 9);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_pinned_free(pin));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_counts_of_four_bytes_are_never_split(void **state) {
    (void)state;
    static const ds_param params[] = { { DS_PARAM_FIRST, 0, 4 }, { DS_PARAM_COUNT, 0, 4 } };
    ds_kernel k;
    ds_stream s;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "narrow",
                           .params = params,
                           .param_count = 2,
                           .cuda = { .image = ptx_part32, .entry = "part", .items_per_block = 1 } },
        &k));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    refused(ds_kernel_launch(k, (size_t)1 << 33, NULL, 0, s), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_stream_query(s), DS_OK); /* nothing was launched */
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

static void test_an_image_of_given_size_needs_no_terminating_zero(void **state) {
    (void)state;
    size_t size = strlen(ptx_fold), page = (size_t)sysconf(_SC_PAGESIZE),
           pages = (size + page - 1) / page * page;
    char *memory =
        mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    /* who reads on meets a page that cannot be read */
    char *image = memcpy(memory + pages - size, ptx_fold, size);
    assert_int_equal(mprotect(memory + pages, page, PROT_NONE), 0);
    ds_kernel k;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold",
                           .args_size = sizeof(fold_args),
                           .params = fold_params,
                           .param_count = 2,
                           .cuda = { .image = image, .image_size = size, .entry = "fold" } },
        &k));
    ok(ds_kernel_load(k, ds_cuda(0)));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
    munmap(memory, pages + page);
}

static void test_loads_that_fail_leave_no_module(void **state) {
    (void)state;
    static const unsigned char cubin[64] = { 0x7f, 'E', 'L', 'F' };
    ds_kernel k;
    standin_register_image(cubin, ptx_fold);
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold", .cuda = { .image = cubin, .entry = "absent" } }, &k));
    for (int i = 0; i < 5; i++) {
        refused(ds_kernel_load(k, ds_cuda(0)), DS_ERR_INVALID_VALUE);
        assert_int_equal(standin_live(NULL, 0), 0);
    }
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

/* After a failure of the device, which cannot be undone: in a process of its own, which runs
   this test only. */
typedef struct slow {
    _Atomic int entered, done, called, ended, bad;
} slow;

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

static void slow_end(void *user) {
    ((slow *)user)->ended++;
}

static void fail_and_shut_down(void) {
    static slow x;
    ds_stream s, t;
    ds_kernel k;
    void *d, *m;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &t));
    ok(ds_device_alloc(ds_cuda(0), N, &d));
    ok(ds_device_alloc(ds_cpu(0), N, &m));
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "explode",
                           .cuda = { .image = ptx_explode, .entry = "explode", .block = 1 } },
        &k));
    ok(ds_kernel_load(k, ds_cuda(0)));
    ok(ds_stream_launch_host_func(s, slow_fn, &x, slow_end));
    ok(ds_copy(d, m, N, s)); /* host functions of the library's own */
    ok(ds_stream_add_callback(s, slow_callback, &x, slow_end));
    while (!x.entered)
        sched_yield();
    ok(ds_kernel_launch(k, 1, NULL, 0, t));
    refused(ds_stream_synchronize(t), DS_ERR_FAILED);
    refused(ds_shutdown(), DS_ERR_FAILED);
    assert_int_equal(x.done, 1);
    assert_int_equal(x.called, 1);
    assert_int_equal(x.ended, 2);
    assert_int_equal(x.bad, 0);
}

static void test_shutdown_waits_for_what_a_failed_device_still_runs(void **state) {
    (void)state;
    run_alone("shutdown_waits", fail_and_shut_down);
}

static void test_shutdown_releases_what_was_left(void **state) {
    (void)state;
    static char page[N];
    ds_stream s;
    ds_event e;
    void *m;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &s));
    ok(ds_stream_record_event(s, 0, &e));
    ok(ds_device_alloc(ds_cuda(1), N, &m));
    ok(ds_fill(m, 0, 1, N, s));
    ok(ds_pinned_alloc(N, &m));
    ok(ds_pinned_register(page, N));
    (void)make_fold();
    _Atomic int gone = 0;
    ds_graph g;
    ds_graph_exec x;
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_stream_launch_host_func(s, nothing, &gone, count_up));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_stream_launch_host_func(s, nothing, &gone, count_up));
    ok(ds_fill(m, 0, 1, 16, s));
    ok(ds_shutdown());
    assert_int_equal(gone, 2); /* CUDA ends the first one on a thread of its own */
    assert_int_equal(standin_live(NULL, 0), 0);
}

static ds_graph captured_into;

static void *capture_and_leave(void *user) {
    const ds_stream *s = user;
    if (ds_capture_begin_to_graph(s[0], captured_into, NULL, 0, DS_CAPTURE_GLOBAL) < 0 ||
        ds_capture_begin(s[1], DS_CAPTURE_GLOBAL) < 0)
        abort();
    return NULL;
}

static void test_shutdown_frees_what_another_thread_captured(void **state) {
    (void)state;
    ds_stream s[2];
    pthread_t thread;
    void *m;
    for (int i = 0; i < 2; i++)
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s[i]));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &captured_into));
    ok(ds_device_alloc(ds_cuda(0), N, &m));
    assert_int_equal(pthread_create(&thread, NULL, capture_and_leave, s), 0);
    pthread_join(thread, NULL);

    ok(ds_shutdown());

    assert_int_equal(standin_live(NULL, 0), 0);
}

/* Another thread's capture on its per-thread stream. */
typedef struct foreign_capture {
    unsigned long waits; /* calls of cudaEventSynchronize before the shutdown */
    _Atomic int begun, over, held, late;
    _Atomic int called, early; /* of the callback: calls, and those while the device was held */
} foreign_capture;

static void *capture_until_over(void *user) {
    foreign_capture *x = user;
    cudaGraph_t graph = NULL;
    ds_stream s;
    if (ds_stream_get_per_thread(ds_cuda(0), &s) < 0 || ds_capture_begin(s, DS_CAPTURE_GLOBAL) < 0)
        abort();
    x->begun = 1;
    while (!x->over)
        sched_yield();
    (void)cudaStreamEndCapture(cudaStreamPerThread, &graph); /* spoilt or not, it is over */
    if (graph)
        cuda(cudaGraphDestroy(graph));
    return NULL;
}

/* Lets the device go on when the shutdown waits for a stream. Later it is too late: a second is
   ten times as long as shutdown waits for what does not move. */
static void *release_device(void *user) {
    foreign_capture *x = user;
    for (int i = 0; i < 10000 && standin_calls("cudaEventSynchronize") == x->waits; i++)
        usleep(100);
    x->late = standin_calls("cudaEventSynchronize") == x->waits;
    x->held = 0;
    standin_hold(0);
    return NULL;
}

static void note_callback(ds_stream s, ds_result status, void *user) {
    foreign_capture *x = user;
    (void)s;
    x->called++;
    x->early += x->held || status != DS_OK;
}

/* No other thread can name the per-thread stream that captures. */
static void test_shutdown_drains_streams_beside_a_capture_it_cannot_end(void **state) {
    (void)state;
    foreign_capture x = { .held = 1 };
    pthread_t capturer, releaser;
    ds_stream other;
    void *m;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &other));
    ok(ds_device_alloc(ds_cuda(0), N, &m));
    standin_hold(1);
    ok(ds_stream_add_callback(other, note_callback, &x, NULL));
    assert_int_equal(pthread_create(&capturer, NULL, capture_until_over, &x), 0);
    while (!x.begun)
        sched_yield();
    x.waits = standin_calls("cudaEventSynchronize");
    assert_int_equal(pthread_create(&releaser, NULL, release_device, &x), 0);

    ds_result r = ds_shutdown();

    pthread_join(releaser, NULL);
    x.over = 1;
    pthread_join(capturer, NULL);
    ok(r);
    assert_int_equal(x.late, 0);
    assert_int_equal(x.called, 1);
    assert_int_equal(x.early, 0);
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* The allocator's memory of the first GPU, which no call that waits by itself gives back. */
static void in_expandable_segments(void) {
    ds_mem_config c = ds_mem_config_default();
    c.expandable_segments = 1;
    ok(ds_mem_configure(ds_cuda(0), &c));
}

static void wait_while_held(void *user) {
    const foreign_capture *x = user;
    while (x->held)
        sched_yield();
}

/* Long after the shutdown has begun to wait for streams. */
static void *release_stream(void *user) {
    foreign_capture *x = user;
    for (int i = 0; i < 10000 && standin_calls("cudaEventSynchronize") == x->waits; i++)
        usleep(100);
    x->late = standin_calls("cudaEventSynchronize") == x->waits;
    usleep(100000);
    x->held = 0;
    return NULL;
}

/* The stand-in fails the test if memory goes away that the destroyed stream still fills. A host
   function of cudart is not among those that devstream counts. */
static void test_shutdown_drains_destroyed_streams_beside_a_capture(void **state) {
    (void)state;
    foreign_capture x = { .held = 1 };
    pthread_t capturer, releaser;
    ds_stream s, gone;
    ds_stream_native n;
    void *m;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &gone));
    in_expandable_segments();
    ok(ds_mem_alloc(N, s, &m));
    ok(ds_stream_export(gone, &n));
    cuda(cudaLaunchHostFunc(n.handle, wait_while_held, &x));
    ok(ds_fill(m, 1, 1, N, gone));
    ok(ds_stream_destroy(gone));
    unsigned long ended = standin_calls("cudaStreamDestroy");
    for (int i = 0; standin_calls("cudaStreamDestroy") == ended; i++) { /* they end in batches */
        assert_true(i < 1000);
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &gone));
        ok(ds_stream_destroy(gone));
    }
    assert_int_equal(pthread_create(&capturer, NULL, capture_until_over, &x), 0);
    while (!x.begun)
        sched_yield();
    x.waits = standin_calls("cudaEventSynchronize");
    assert_int_equal(pthread_create(&releaser, NULL, release_stream, &x), 0);

    ds_result r = ds_shutdown();

    pthread_join(releaser, NULL);
    x.over = 1;
    pthread_join(capturer, NULL);
    ok(r);
    assert_int_equal(x.late, 0);
    assert_int_equal(standin_live(NULL, 0), 0);
}

/* A CPU stream that copies a GPU's memory while devstream shuts down. */
typedef struct late_copy {
    unsigned long nth;           /* the call of cudart that fails, counted from before the copy */
    _Atomic unsigned long waits; /* calls of cudaDeviceSynchronize before the copy */
    _Atomic int entered, open, held;
} late_copy;

static void before_copy(void *user) {
    late_copy *x = user;
    x->entered = 1;
    while (!x->open)
        sched_yield();
    standin_hold(1);
    x->waits = standin_calls("cudaDeviceSynchronize");
    standin_fail(x->nth, cudaErrorUnknown);
    x->held = 1;
}

/* Opens the stream when the shutdown has waited for the GPU, and lets the GPU go on when it
   waits again, or after a while. */
static void *open_during_shutdown(void *user) {
    late_copy *x = user;
    unsigned long before = x->waits;
    for (int i = 0; i < 10000 && standin_calls("cudaDeviceSynchronize") == before; i++)
        usleep(100);
    usleep(20000);
    x->open = 1;
    while (!x->held)
        usleep(100);
    usleep(20000);
    for (int i = 0; i < 2000 && standin_calls("cudaDeviceSynchronize") == x->waits; i++)
        usleep(100);
    standin_hold(0);
    return NULL;
}

/* The CPU driver's wait is refused, so its stream copies during the drain; and each call of the
   copy fails in turn, the wait for the GPU too. */
static void test_shutdown_drains_gpus_after_cpu_streams_that_copy(void **state) {
    (void)state;
    int came = 1;
    for (unsigned long n = 1; came; n++) {
        late_copy x = { .nth = n };
        pthread_t thread;
        ds_stream s, gpu;
        char *d;
        ds_init_desc desc = { .layers = "fault", .fault = "device_synchronize:2" };
        assert_true(n < 100);
        ok(ds_init(&desc));
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &gpu));
        in_expandable_segments();
        ok(ds_mem_alloc(2 * N, gpu, (void **)&d));
        ok(ds_fill(d, 1, 1, 2 * N, gpu));
        ok(ds_stream_synchronize(gpu));
        ok(ds_copy(d + N, d, N, s)); /* makes the stream that copies */
        ok(ds_stream_synchronize(s));
        ok(ds_stream_launch_host_func(s, before_copy, &x, NULL));
        ok(ds_copy(d + N, d, N, s));
        while (!x.entered)
            sched_yield();
        x.waits = standin_calls("cudaDeviceSynchronize");
        assert_int_equal(pthread_create(&thread, NULL, open_during_shutdown, &x), 0);

        ds_result r = ds_shutdown();

        pthread_join(thread, NULL);
        came = standin_failed();
        standin_fail(0, 0);
        assert_true(r < 0); /* at least the wait that the layer refuses */
        assert_int_equal(standin_live(NULL, 0), 0);
    }
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

static void payload_gone(void *user) {
    expect_no_lock();
    (void)user;
    payloads_gone++;
}

static void test_all_dependencies_of_a_captured_node_are_read(void **state) {
    (void)state;

    enum { FORKS = 20 };

    ds_stream s;
    ds_stream fork[FORKS];
    ds_event e;
    ds_graph g;
    size_t edges = 0;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_event_create(0, NULL, &e));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_event_record(e, s));
    for (int i = 0; i < FORKS; i++) {
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &fork[i]));
        ok(ds_stream_wait_event(fork[i], e));
        ok(ds_stream_launch_host_func(fork[i], nothing, NULL, NULL));
    }
    for (int i = 0; i < FORKS; i++)
        ok(ds_stream_wait_stream(s, fork[i]));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_capture_end(s, &g));

    ok(ds_graph_get_edges(g, NULL, NULL, 0, &edges));

    assert_int_equal(edges, FORKS); /* from each fork to the last node */
    for (int i = 0; i < FORKS; i++)
        ok(ds_stream_destroy(fork[i]));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

static void test_cudart_copies_between_pinned_ranges_on_request(void **state) {
    (void)state;
    ds_stream s;
    unsigned char *a;
    unsigned char *b;
    const char *by = getenv("DEVSTREAM_CUDA_PINNED_COPIES");
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("DEVSTREAM_CUDA_PINNED_COPIES=cudart", "ranges_on_request");
        run_alone_with("DEVSTREAM_CUDA_PINNED_COPIES=host", "ranges_on_request");
        run_alone_with("DEVSTREAM_CUDA_PINNED_COPIES=gpu", "ranges_on_request");
        return;
    }
    if (!strcmp(by, "gpu")) {
        refused(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s),
                DS_ERR_NO_DEVICE); /* the driver is not taken */
        assert_non_null(strstr(ds_error_get_last(), "is \"gpu\"; \"host\" and \"cudart\""));
        return;
    }
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_pinned_alloc(N, (void **)&a));
    ok(ds_pinned_alloc(N, (void **)&b));
    memset(a, 5, N);
    memset(b, 0, N);
    unsigned long copies = standin_calls("cudaMemcpyAsync");
    unsigned long functions = standin_calls("cudaLaunchHostFunc");

    ok(ds_copy(b, a, N, s));
    ok(ds_stream_synchronize(s));

    int cudart = !strcmp(by, "cudart");
    assert_int_equal(standin_calls("cudaMemcpyAsync") - copies, cudart);
    assert_int_equal(standin_calls("cudaLaunchHostFunc") - functions, !cudart);
    assert_memory_equal(a, b, N);
    ok(ds_pinned_free(a));
    ok(ds_pinned_free(b));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* A capture that another thread begins between the check of the stream and the call. */
static void test_a_host_function_in_a_sudden_capture_is_refused(void **state) {
    (void)state;
    static uint64_t ran;
    ds_stream s;
    ds_stream_native native;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *cpu;
    void *gpu;
    if (!has_setting("FAULT_CHILD")) { /* it leaves records behind, which the graphs refer to */
        run_alone_with("STANDIN_DEVICES=2", "sudden_capture");
        return;
    }
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_export(s, &native));
    ok(ds_device_alloc(ds_cpu(0), N, &cpu));
    ok(ds_device_alloc(ds_cuda(0), N, &gpu));
    for (int k = 0; k < 2; k++) {
        standin_capture_meanwhile();

        refused(k ? ds_copy(gpu, cpu, N, s) : ds_stream_launch_host_func(s, add_one, &ran, NULL),
                DS_ERR_CAPTURE_UNSUPPORTED);

        if (k) { /* the wait after the failure has ended the capture */
            assert_int_equal(cudaStreamEndCapture(native.handle, &graph),
                             cudaErrorStreamCaptureInvalidated);
            break;
        }
        assert_int_equal(cudaStreamEndCapture(native.handle, &graph), cudaSuccess);
        assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        for (int i = 0; i < 2; i++)
            assert_int_equal(cudaGraphLaunch(exec, native.handle), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(native.handle), cudaSuccess);
        assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
        assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    }
    (void)cudaGetLastError();
    assert_int_equal(ran, 0);
    ok(ds_device_free(cpu));
    ok(ds_device_free(gpu));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

static void add_ten(void *user) {
    *(uint64_t *)user += 10;
}

/* A capture that another thread ends between the check of the stream and the call. */
static void test_a_host_function_after_a_sudden_end_runs(void **state) {
    (void)state;
    uint64_t ran = 0;
    ds_stream s;
    ds_stream_native native;
    enum cudaStreamCaptureStatus status;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_export(s, &native));
    assert_int_equal(cudaStreamBeginCapture(native.handle, cudaStreamCaptureModeRelaxed),
                     cudaSuccess);
    standin_end_meanwhile();

    ok(ds_stream_launch_host_func(s, add_one, &ran, add_ten));

    ok(ds_stream_synchronize(s));
    assert_int_equal(cudaStreamIsCapturing(native.handle, &status), cudaSuccess);
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_int_equal(ran, 11);
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* Copies to the GPU and back, with copies and host functions that take so long. */
static void copy_in_pieces(unsigned copy_ms, unsigned host_ms) {
    enum { BYTES = 9 << 20 };

    ds_stream s;
    void *cpu;
    void *gpu;
    void *back;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_device_alloc(ds_cpu(0), BYTES, &cpu));
    ok(ds_device_alloc(ds_cpu(0), BYTES, &back));
    ok(ds_device_alloc(ds_cuda(0), BYTES, &gpu));
    for (uint32_t i = 0; i < BYTES / 4; i++)
        ((uint32_t *)cpu)[i] = i * 2654435761u;
    memset(back, 0, BYTES);
    ok(ds_stream_synchronize(s));

    standin_work_delay(copy_ms, host_ms);
    ok(ds_copy(gpu, cpu, BYTES, s));
    ok(ds_copy(back, gpu, BYTES, s));
    ok(ds_stream_synchronize(s));

    assert_memory_equal(cpu, back, BYTES);
    ok(ds_device_free(cpu));
    ok(ds_device_free(back));
    ok(ds_device_free(gpu));
    ok(ds_stream_destroy(s));
}

static void test_pieces_of_staged_copies_wait_for_their_half(void **state) {
    (void)state;
    copy_in_pieces(10, 0);
    copy_in_pieces(0, 10);
    standin_work_delay(0, 0);
    ok(ds_shutdown());
}

static void test_both_parts_of_staged_copies_run_at_once(void **state) {
    (void)state;
    copy_in_pieces(10, 10);
    int overlaps = standin_overlaps();
    standin_work_delay(0, 0);
    assert_true(overlaps > 0);
    ok(ds_shutdown());
}

/* CUDA may run destructors in the call that destroys the graph. */
static void test_a_capture_that_shutdown_ends_is_freed_without_a_lock(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        ds_stream s;
        payloads_gone = 0;
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(k) }, &s));
        ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
        ok(ds_stream_launch_host_func(s, nothing, NULL, payload_gone));
        ok(ds_shutdown());
        assert_int_equal(payloads_gone, 1);
    }
}

static void add_one(void *user) {
    ++*(uint64_t *)user;
}

static void add_two(ds_stream s, ds_result status, void *user) {
    (void)s;
    if (status == DS_OK)
        *(uint64_t *)user += 2;
}

static int silent;

static ds_result noted(ds_result r) {
    if (r < 0 && !strchr(ds_error_get_last(), ' '))
        silent++;
    return r;
}

#define STEP(call)                 \
    do {                           \
        if ((r = noted(call)) < 0) \
            goto done;             \
    } while (0)
#define END(call)                   \
    do {                            \
        ds_result c_ = noted(call); \
        if (c_ < 0 && r >= 0)       \
            r = c_;                 \
    } while (0)

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
    int64_t attribute;
    double ms;
    static const ds_param params[] = {
        { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
        { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) }
    };
    STEP(ds_stream_create(
        &(ds_stream_desc){ .device = ds_cuda(0), .label = "a", .flags = DS_STREAM_BLOCKING }, &a));
    STEP(ds_stream_create(
        &(ds_stream_desc){ .device = ds_cuda(1), .label = "b", .multiprocessors = PART }, &b));
    STEP(ds_stream_export(b, &native));
    STEP(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &wrapped));
    STEP(ds_stream_get_legacy(ds_cuda(0), &legacy));
    STEP(ds_stream_get_per_thread(ds_cuda(0), &own));
    STEP(ds_event_create(DS_EVENT_TIMING, "e", &e));
    STEP(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold",
                           .cpu_fn = fold_item,
                           .args_size = sizeof(fold_args),
                           .params = params,
                           .param_count = 2,
                           .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } },
        &k));
    STEP(ds_device_alloc(ds_cuda(0), N, &dev));
    STEP(ds_device_alloc(ds_cuda(1), N, &far));
    STEP(ds_device_alloc(ds_cpu(0), N, &cpu));
    STEP(ds_pinned_alloc_with(N, &(ds_pinned_desc){ .flags = 0 }, &pin));
    STEP(ds_pinned_free(pin));
    pin = NULL;
    STEP(ds_pinned_alloc(N, &pin));
    STEP(ds_pinned_register(page, N));
    registered = 1;
    STEP(ds_device_can_access_peer(ds_cuda(0), ds_cuda(1), &peer));
    STEP(ds_device_get_attribute(ds_cuda(1), DS_ATTR_WARP_SIZE, &attribute));
    STEP(ds_fill_sync(far, 0, 1, N));
    STEP(ds_copy_sync(dev, far, N));
    uint64_t *h = pin;
    *h = 3;
    for (uint64_t i = 0; i < 2; i++)
        STEP(ds_kernel_launch(k, 1, &(fold_args){ h, i }, sizeof(fold_args), a));
    STEP(ds_event_record(e, a));
    STEP(ds_stream_wait_event(wrapped, e));
    STEP(ds_stream_launch_host_func(b, add_one, h, NULL));
    STEP(ds_stream_wait_stream(legacy, b));
    STEP(ds_stream_add_callback(legacy, add_two, h, NULL));
    payloads_made++;
    STEP(ds_stream_launch_host_func(own, add_one, h, payload_gone)); /* behind the legacy stream */
    STEP(ds_stream_record_event(own, 0, &e2));
    STEP(ds_stream_wait_event(a, e2));
    STEP(ds_copy(dev, pin, N, a));
    STEP(ds_copy(far, dev, N, a));
    STEP(ds_fill(dev, 0, 1, N, a));
    STEP(ds_fill(far, 0, 4, 1, a)); /* its low half, on the other device */
    STEP(ds_copy_2d(dev, 64, far, 64, 32, 10, a));
    STEP(ds_copy(cpu, dev, N, a)); /* to the other driver and back */
    STEP(ds_copy_batch((void *[]){ (char *)dev + 64, (char *)dev + 128 },
                       (const void *[]){ dev, dev }, (size_t[]){ 8, 16 }, 2, a));
    STEP(ds_fill(dev, 0, 2, N / 2, a));
    STEP(ds_copy(dev, cpu, N, a));
    STEP(ds_copy(page, dev, N, a));
    STEP(ds_copy(pin, page, 8, a)); /* between host memory */
    STEP(ds_stream_synchronize(a));
    STEP(ds_event_get_elapsed_ms(e, e, &ms));
    STEP(ds_stream_synchronize_for(b, 1000000000));
    STEP(ds_device_synchronize(ds_cuda(1)));
    uint64_t want = ((3 * 1099511628211u + 0) * 1099511628211u + 1 + 4) & 0xffffffff00000000u;
    if (*h != want)
        fail_msg("the program computed %llx, not %llx", (unsigned long long)*h,
                 (unsigned long long)want);
done:
    if (wrapped.id)
        END(ds_stream_destroy(wrapped));
    if (a.id)
        END(ds_stream_destroy(a));
    if (b.id)
        END(ds_stream_destroy(b));
    if (e.id)
        END(ds_event_destroy(e));
    if (e2.id)
        END(ds_event_destroy(e2));
    if (k.id)
        END(ds_kernel_destroy(k));
    END(ds_device_free(dev));
    END(ds_device_free(far));
    END(ds_device_free(cpu));
    END(ds_pinned_free(pin));
    if (registered)
        END(ds_pinned_unregister(page));
    END(ds_shutdown());
    return r;
}

/* The same with captures and graphs. */
static ds_result little_graph_program(void) {
    ds_result r;
    ds_stream a = { 0 }, b = { 0 };
    ds_event e = { 0 }, fork = { 0 }, join = { 0 };
    ds_kernel k = { 0 };
    ds_graph g = { 0 }, inner = { 0 }, made = { 0 }, clone = { 0 };
    ds_graph_exec x = { 0 }, y = { 0 };
    ds_graph_node kernel, host, child, fill, first;
    ds_capture_info info;
    ds_node_desc desc;
    void *dev = NULL, *far = NULL, *pin = NULL, *pin2 = NULL;
    size_t count;
    int capturing = 0, other = 0;
    static const ds_param params[] = {
        { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
        { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) }
    };
    STEP(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &a));
    STEP(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &b));
    STEP(ds_event_create(0, "e", &e));
    STEP(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold",
                           .cpu_fn = fold_item,
                           .args_size = sizeof(fold_args),
                           .params = params,
                           .param_count = 2,
                           .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } },
        &k));
    STEP(ds_device_alloc(ds_cuda(0), N, &dev));
    STEP(ds_device_alloc(ds_cuda(1), N, &far));
    STEP(ds_pinned_alloc(N, &pin));
    STEP(ds_pinned_alloc(N, &pin2));
    uint64_t *h = pin, *h2 = pin2, v = 3;
    *h = v;
    /* captured, on two devices */
    STEP(ds_capture_begin(a, DS_CAPTURE_THREAD_LOCAL));
    capturing = 1;
    /* the first launch: it loads */
    STEP(ds_kernel_launch_grid(k, &every_attribute, &(fold_args){ h, 1 }, sizeof(fold_args), a));
    STEP(ds_stream_record_event(a, 0, &fork));
    STEP(ds_stream_wait_event(b, fork));
    STEP(ds_fill(far, 0, 4, N / 4, b));
    STEP(ds_stream_record_event(b, 0, &join));
    STEP(ds_stream_wait_event(a, join));
    STEP(ds_copy(dev, pin, N, a));
    STEP(ds_copy(far, dev, N, a));
    STEP(ds_fill(far, 0, 1, 8, a)); /* on the other device */
    STEP(ds_copy(pin2, pin, 8, a));
    payloads_made++;
    STEP(ds_stream_launch_host_func(a, add_one, h, payload_gone));
    STEP(ds_event_record_external(e, a));
    STEP(ds_capture_get_info(a, &info));
    STEP(ds_capture_end(a, &g));
    capturing = 0;
    STEP(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS }, &x));
    STEP(ds_graph_upload(x, a));
    STEP(ds_graph_launch(x, a));
    v = v * 1099511628211u + 2;
    /* by hand */
    STEP(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &inner));
    desc = fold_node(k, &(fold_args){ h, 7 });
    STEP(ds_graph_add(inner, &desc, NULL, 0, &first));
    desc = fill_node(h2, 4, 2, 1);
    STEP(ds_graph_add(inner, &desc, &first, 1, NULL));
    STEP(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &made));
    desc = fold_node(k, &(fold_args){ h, 2 });
    desc.priority = -1;
    desc.u.kernel.grid = &attributes_of_nodes;
    STEP(ds_graph_add(made, &desc, NULL, 0, &kernel));
    payloads_made++;
    desc = host_node(add_one, h, payload_gone);
    STEP(ds_graph_add(made, &desc, NULL, 0, &host));
    STEP(ds_graph_add_edges(made, &kernel, &host, 1));
    STEP(ds_graph_add(made, &(ds_node_desc){ .kind = DS_NODE_EVENT_WAIT, .u.event = e }, &host, 1,
                      &first));
    STEP(ds_graph_add(made, &(ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = inner }, &first, 1,
                      &child));
    desc = fill_node(dev, 1, 8, 1);
    STEP(ds_graph_add(made, &desc, &child, 1, &fill));
    desc = fill_node(pin2, 1, 8, 1);
    STEP(ds_graph_set_node(made, fill, &desc)); /* makes the graph anew */
    payloads_made++;
    STEP(ds_graph_attach(made, h, payload_gone));
    STEP(ds_graph_instantiate(made, NULL, &y));
    STEP(ds_graph_launch(y, a));
    v = (v * 1099511628211u + 3) * 1099511628211u + 7;
    desc = fold_node(k, &(fold_args){ h, 4 });
    desc.u.kernel.grid = &attributes_of_nodes;
    STEP(ds_graph_exec_set_node(y, kernel, &desc));
    payloads_made++;
    desc = host_node(add_one, h, payload_gone);
    STEP(ds_graph_exec_set_node(y, host, &desc));
    STEP(ds_graph_launch(y, a));
    v = (v * 1099511628211u + 5) * 1099511628211u + 7;
    STEP(ds_graph_exec_set_node_enabled(y, kernel, 0));
    STEP(ds_graph_exec_set_node_enabled(y, fill, 0));
    STEP(ds_graph_clone(made, &clone));
    desc = fold_node(k, &(fold_args){ h, 9 });
    desc.u.kernel.grid = &attributes_of_nodes;
    STEP(ds_graph_find_in_clone(clone, kernel, &first));
    STEP(ds_graph_set_node(clone, first, &desc));
    STEP(ds_graph_exec_update(y, clone, NULL));
    STEP(ds_graph_launch(y, a)); /* the kernel is still off */
    v = (v + 1) * 1099511628211u + 7;
    STEP(ds_graph_exec_set_node_enabled(y, kernel, 1));
    STEP(ds_graph_launch(y, a));
    v = (v * 1099511628211u + 10) * 1099511628211u + 7;
    /* once more into the captured graph, with a launch in it */
    STEP(ds_graph_get_nodes(g, &first, 1, &count));
    STEP(ds_capture_begin_to_graph(a, g, &first, 1, DS_CAPTURE_GLOBAL));
    capturing = 1;
    STEP(ds_graph_launch(y, a));
    STEP(ds_capture_get_dependencies(a, &first, 1, &count));
    STEP(ds_capture_update_dependencies(a, &first, 1, DS_CAPTURE_SET_DEPENDENCIES));
    STEP(ds_capture_end(a, &g));
    capturing = 0;
    /* the first executable is as it was, but for the pointers */
    void *from[] = { pin }, *to[] = { pin2 };
    STEP(ds_stream_synchronize(a));
    if (*h != v)
        fail_msg("the graphs computed %llx, not %llx", (unsigned long long)*h,
                 (unsigned long long)v);
    *h2 = 5;
    STEP(ds_graph_exec_replace_pointers(x, from, to, 1, &count));
    STEP(ds_graph_launch(x, a));
    STEP(ds_stream_synchronize(a));
    if (count == 3 /* a fault may leave a captured node unknown */ &&
        (*h2 != 5 * 1099511628211u + 1 || *h != v + 1))
        fail_msg("the replaced pointer gives %llx", (unsigned long long)*h2);
done:
    if (capturing) {
        DS_IGNORE(ds_capture_get_status(a, &info.status));
        other = ds_capture_end(a, &clone) < 0;
    }
    /* in case the fault hit the first one */
    if (capturing && other)
        DS_IGNORE(ds_capture_end(a, &clone));
    if (x.id)
        END(ds_graph_exec_destroy(x));
    if (y.id)
        END(ds_graph_exec_destroy(y));
    if (g.id)
        DS_IGNORE(ds_graph_destroy(g));
    if (inner.id)
        END(ds_graph_destroy(inner));
    if (made.id)
        END(ds_graph_destroy(made));
    if (clone.id)
        DS_IGNORE(ds_graph_destroy(clone));
    if (a.id)
        END(ds_stream_destroy(a));
    if (b.id)
        END(ds_stream_destroy(b));
    if (e.id)
        END(ds_event_destroy(e));
    if (fork.id)
        END(ds_event_destroy(fork));
    if (join.id)
        END(ds_event_destroy(join));
    if (k.id)
        END(ds_kernel_destroy(k));
    END(ds_device_free(dev));
    END(ds_device_free(far));
    END(ds_pinned_free(pin));
    END(ds_pinned_free(pin2));
    END(ds_shutdown());
    return r;
}

/* The allocator, in three ways to get memory: growing segments in reserved addresses, plain
   segments, the driver's pool. */
static ds_result little_memory_program(int way) {
    ds_result r;
    ds_mem_config config = way == 0 ? ds_mem_config_default() : ds_mem_config_torch();
    ds_stream a = { 0 }, b = { 0 };
    ds_graph graph = { 0 };
    ds_capture_info info = { 0 };
    void *small = NULL, *large = NULL, *far = NULL, *pinned = NULL, *kept = NULL;
    size_t released;
    if (way == 2)
        config.backend = DS_MEM_DRIVER_POOL;
    STEP(ds_mem_configure(ds_cuda(0), &config));
    STEP(ds_mem_configure(ds_cuda(1), &config));
    STEP(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .label = "a" }, &a));
    STEP(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1), .label = "b" }, &b));
    STEP(ds_mem_alloc(N, a, &small));
    STEP(ds_mem_alloc(5u << 20, a, &large));
    STEP(ds_mem_alloc(N, b, &far));
    STEP(ds_mem_pinned_alloc(N, &pinned));
    memset(pinned, 5, N);
    STEP(ds_copy(small, pinned, N, a));
    STEP(ds_copy((char *)large + 4096, small, N, a));
    STEP(ds_stream_wait_stream(b, a));
    STEP(ds_copy(far, (char *)large + 4096, N, b));
    STEP(ds_mem_record_use(large, b));
    STEP(ds_mem_free(large));
    large = NULL;
    STEP(ds_mem_alloc(40u << 20, a, &large));
    STEP(ds_fill(large, 1, 1, N, a));
    STEP(ds_copy(pinned, far, N, b));
    STEP(ds_mem_pinned_record_use(pinned, b));
    STEP(ds_stream_synchronize(b));
    STEP(((char *)pinned)[N - 1] == 5 ? DS_OK : DS_ERR_SYSTEM);
    if (way < 2) {
        STEP(ds_capture_begin(a, DS_CAPTURE_GLOBAL));
        STEP(ds_mem_alloc(3u << 20, a, &kept));
        STEP(ds_fill(kept, 2, 1, N, a));
        STEP(ds_mem_free(kept));
        STEP(ds_capture_end(a, &graph));
    }
    STEP(ds_mem_free(large));
    large = NULL;
    STEP(ds_mem_empty_cache(ds_cuda(0), &released));
    STEP(ds_mem_trim(ds_cuda(1), 0, &released));
done:
    if (a.id && ds_capture_get_info(a, &info) == DS_OK && info.status != DS_CAPTURE_NONE) {
        ds_graph g = { 0 };
        DS_IGNORE(ds_capture_end(a, &g));
        if (g.id)
            graph = g;
    }
    /* it may have come before the use was recorded */
    if (a.id && ds_stream_synchronize(a) < 0)
        DS_IGNORE(ds_stream_synchronize(a));
    if (b.id && ds_stream_synchronize(b) < 0)
        DS_IGNORE(ds_stream_synchronize(b));
    END(ds_mem_free(small));
    END(ds_mem_free(large));
    END(ds_mem_free(far));
    END(ds_mem_pinned_free(pinned));
    if (graph.id)
        END(ds_graph_destroy(graph));
    if (a.id)
        END(ds_stream_destroy(a));
    if (b.id)
        END(ds_stream_destroy(b));
    END(ds_shutdown());
    return r;
}

static ds_result growing_memory(void) {
    return little_memory_program(0);
}

static ds_result plain_memory(void) {
    return little_memory_program(1);
}

static ds_result pool_memory(void) {
    return little_memory_program(2);
}

#if CUDART_VERSION >= 12080
/* The same with words of memory and conditional nodes, one in the body of the other. */
static ds_result little_condition_program(void) {
    ds_result r;
    ds_stream a = { 0 };
    ds_kernel k = { 0 };
    ds_graph g[4] = { { 0 } }; /* the innermost body first, then a clone */
    ds_graph_exec x = { 0 };
    ds_graph_node first, second, host, last;
    void *pin = NULL;
    static const ds_param params[] = {
        { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
        { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) }
    };
    STEP(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &a));
    STEP(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold",
                           .cpu_fn = fold_item,
                           .args_size = sizeof(fold_args),
                           .params = params,
                           .param_count = 2,
                           .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } },
        &k));
    STEP(ds_pinned_alloc(N, &pin));
    uint64_t *h = pin, v = 3;
    memset(h, 0, N);
    *h = v;
    const ds_value_op ops[] = { { h + 1, 4, DS_VALUE_WRITE, 4 },
                                { h + 1, 4, DS_VALUE_WAIT_EQ, 4 },
                                { h + 2, 1, DS_VALUE_WRITE, 8 } };
    STEP(ds_stream_batch_values(a, ops, 3));
    for (int i = 0; i < 3; i++)
        STEP(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g[i]));
    ds_node_desc desc = fold_node(k, &(fold_args){ h, 1 });
    STEP(ds_graph_add(g[0], &desc, NULL, 0, NULL));
    desc = condition_node(DS_CONDITION_IF, h + 2, g, 1);
    STEP(ds_graph_add(g[1], &desc, NULL, 0, &first));
    desc = fold_node(k, &(fold_args){ h + 3, 1 });
    STEP(ds_graph_add(g[1], &desc, NULL, 0, &second));
    STEP(ds_graph_add_edges(g[1], &second, &first, 1));
    desc = (ds_node_desc){ .kind = DS_NODE_VALUES, .u.values = { .ops = ops, .count = 2 } };
    STEP(ds_graph_add(g[2], &desc, NULL, 0, &first));
    desc = condition_node(DS_CONDITION_SWITCH, h + 4, &g[1], 1);
    STEP(ds_graph_add(g[2], &desc, &first, 1, &second));
    payloads_made++;
    desc = host_node(add_one, h, payload_gone);
    STEP(ds_graph_add(g[2], &desc, &second, 1, &host));
    desc = fold_node(k, &(fold_args){ h, 2 });
    STEP(ds_graph_add(g[2], &desc, &host, 1, &last));
    desc = (ds_node_desc){ .kind = DS_NODE_VALUES, .u.values = { .ops = ops + 1, .count = 2 } };
    STEP(ds_graph_set_node(g[2], first, &desc));
    desc = condition_node(DS_CONDITION_IF, h + 2, &g[1], 1);
    STEP(ds_graph_set_node(g[2], second, &desc)); /* makes the graph anew */
    STEP(ds_graph_clone(g[2], &g[3]));
    STEP(ds_graph_find_in_clone(g[3], first, &first));
    STEP(ds_graph_find_in_clone(g[3], last, &last));
    STEP(ds_graph_instantiate(g[3], NULL, &x));
    STEP(ds_graph_launch(x, a));
    v = (v * 1099511628211u + 1 + 1) * 1099511628211u + 2;
    const ds_value_op other[] = { { h + 1, 1, DS_VALUE_WAIT_GEQ, 4 },
                                  { h + 2, 0, DS_VALUE_WRITE, 8 } };
    desc = (ds_node_desc){ .kind = DS_NODE_VALUES, .u.values = { .ops = other, .count = 2 } };
    STEP(ds_graph_exec_set_node(x, first, &desc));
    desc = fold_node(k, &(fold_args){ h, 5 });
    STEP(ds_graph_exec_set_node(x, last, &desc));
    STEP(ds_graph_launch(x, a)); /* the body is left out */
    v = (v + 1) * 1099511628211u + 5;
    STEP(ds_stream_synchronize(a));
    if (*h != v)
        fail_msg("the graphs computed %llx, not %llx", (unsigned long long)*h,
                 (unsigned long long)v);
done:
    if (x.id)
        END(ds_graph_exec_destroy(x));
    for (int i = 0; i < 4; i++)
        if (g[i].id)
            END(ds_graph_destroy(g[i]));
    if (a.id)
        END(ds_stream_destroy(a));
    if (k.id)
        END(ds_kernel_destroy(k));
    END(ds_pinned_free(pin));
    END(ds_shutdown());
    return r;
}
#endif

/* In turn, every call of cudart and of the driver gives this code. */
static void fail_every_call(int code, ds_result (*program)(void)) {
    char report[200];
    unsigned long n;
    int failures = 0;
    for (n = 1;; n++) {
        if (n > 5000)
            fail_msg("the program makes ever more calls");
        silent = 0;
        payloads_made = 0;
        payloads_gone = 0;
        taken = returned = 0;
        ok(ds_init(&(ds_init_desc){ .allocator = { bank_alloc, bank_free, NULL } }));
        alarm(60);
        standin_fail(n, code);
        ds_result r = program();
        int hit = standin_failed();
        standin_fail(0, 0);
        DS_IGNORE(ds_shutdown()); /* in case the fault hit the first one */
        alarm(0);
        if (silent)
            fail_msg("call %lu: %d failures without a sentence", n, silent);
        if (standin_live(report, sizeof report) != 0)
            fail_msg("call %lu: left behind: %s", n, report);
        if (taken != returned)
            fail_msg("call %lu: %ld blocks taken, %ld returned", n, taken, returned);
        if (payloads_made != payloads_gone)
            fail_msg("call %lu: %d payloads, %d ended", n, payloads_made, payloads_gone);
        while (cudaGetLastError() != cudaSuccess) {
        }
        failures += r < 0;
        if (!hit) {
            ok(r);
            break;
        }
    }
    print_message("          %lu calls, %d of them fatal to the program\n", n - 1, failures);
    assert_true(failures > 50);
}

static void test_every_call_that_fails_is_a_result_and_leaks_nothing(void **state) {
    (void)state;
    fail_every_call(cudaErrorUnknown, little_program);
    fail_every_call(cudaErrorUnknown, little_graph_program);
#if CUDART_VERSION >= 12080
    fail_every_call(cudaErrorUnknown, little_condition_program);
#endif
    fail_every_call(cudaErrorUnknown, growing_memory);
    fail_every_call(cudaErrorUnknown, plain_memory);
    fail_every_call(cudaErrorUnknown, pool_memory);
}

static void test_every_call_out_of_memory_is_a_result_and_leaks_nothing(void **state) {
    (void)state;
    fail_every_call(cudaErrorMemoryAllocation, little_program);
    fail_every_call(cudaErrorMemoryAllocation, little_graph_program);
#if CUDART_VERSION >= 12080
    fail_every_call(cudaErrorMemoryAllocation, little_condition_program);
#endif
}

/* ---- locks, captures of others, and what a graph keeps ---- */

typedef struct waiter {
    ds_stream s, other;
    int rounds;
} waiter;

static void *wait_often(void *user) {
    const waiter *w = user;
    for (int i = 0; i < w->rounds; i++)
        refused(ds_stream_wait_stream(w->s, w->other), DS_ERR_CAPTURE_IMPLICIT);
    return NULL;
}

/* One is on a stream that captures, the other is not: each has one lock when it comes to the
   other one. */
static void test_waits_refused_in_two_threads_at_once_do_not_deadlock(void **state) {
    (void)state;
    ds_stream blocking, captures, plain, legacy;
    ds_graph g;
    pthread_t a, b;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .flags = DS_STREAM_BLOCKING },
                        &blocking));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &captures));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &plain));
    ok(ds_stream_get_legacy(ds_cuda(0), &legacy));
    ok(ds_capture_begin(blocking, DS_CAPTURE_RELAXED));
    ok(ds_capture_begin(captures, DS_CAPTURE_RELAXED));
    waiter one = { captures, legacy, 20000 }, two = { plain, legacy, 20000 };
    assert_int_equal(pthread_create(&a, NULL, wait_often, &one), 0);
    assert_int_equal(pthread_create(&b, NULL, wait_often, &two), 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    refused(ds_capture_end(blocking, &g), DS_ERR_CAPTURE_INVALIDATED);
    ok(ds_capture_end(captures, &g));
    ok(ds_shutdown());
}

static void outlive_devstream(void) {
    static _Atomic int gone, ran, attached;
    const ds_node_desc empty = { .kind = DS_NODE_EMPTY };
    ds_stream s;
    ds_stream_native n;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t own;
    struct timespec begin, end;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_export(s, &n));
    cuda(cudaStreamBeginCapture(n.handle, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 30; i++)
        ok(ds_stream_launch_host_func(s, count_up, (void *)&ran, NULL));
    ok(ds_stream_launch_host_func(s, nothing, (void *)&gone, count_up));
    ds_graph g = graph_of(0, &empty);
    ds_graph_exec x;
    ok(ds_graph_attach(g, (void *)&attached, count_up));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_launch(x, s)); /* the other library's graph keeps the object */
    ok(ds_graph_exec_destroy(x));
    cuda(cudaStreamEndCapture(n.handle, &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    cuda(cudaGraphLaunch(exec, n.handle));
    ok(ds_stream_synchronize(s));
    assert_int_equal(ran, 30);
    assert_int_equal(attached, 0);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    ok(ds_shutdown());
    clock_gettime(CLOCK_MONOTONIC, &end);
    /* 32 user objects, one wait of a second */
    assert_true((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000 <
                2000);
    assert_int_equal(gone, 1);
    assert_int_equal(attached, 1);
    cuda(cudaStreamCreate(&own));
    cuda(cudaGraphLaunch(exec, own)); /* runs nothing of ours any more */
    cuda(cudaStreamSynchronize(own));
    assert_int_equal(ran, 30);
    assert_int_equal(gone, 1);
    cuda(cudaGraphExecDestroy(exec));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaStreamDestroy(own));
}

static void test_a_graph_of_others_may_be_launched_after_shutdown(void **state) {
    (void)state;
    run_alone("may_be_launched_after_shutdown", outlive_devstream);
}

typedef struct asked {
    world *w;
    ds_event later;
} asked;

static void *ask_all(void *user) {
    const asked *a = user;
    ds_stream legacy;
    double ms;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    ok(ds_stream_get_legacy(ds_cuda(a->w->device), &legacy));
    cuda(cudaThreadExchangeStreamCaptureMode(&mode));
    ok(ds_stream_query(a->w->other));
    ok(ds_stream_query(legacy));
    ok(ds_event_query(a->w->timed));
    ok(ds_event_get_elapsed_ms(a->w->timed, a->later, &ms));
    ok(ds_stream_synchronize_for(a->w->other, 1000000));
    cuda(cudaThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(mode, cudaStreamCaptureModeThreadLocal);
    return NULL;
}

static void test_queries_of_uncaptured_objects_leave_captures_alone(void **state) {
    (void)state;
    asked a = { .w = open_world(1) };
    ds_graph g;
    pthread_t thread;
    ok(ds_stream_record_event(a.w->other, DS_EVENT_TIMING, &a.later));
    ok(ds_event_synchronize(a.later));
    for (int mode = DS_CAPTURE_GLOBAL; mode <= DS_CAPTURE_RELAXED; mode++) {
        ok(ds_capture_begin(a.w->s, (ds_capture_mode)mode));
        ask_all(&a);
        assert_int_equal(pthread_create(&thread, NULL, ask_all, &a), 0);
        pthread_join(thread, NULL);
        ok(ds_capture_end(a.w->s, &g));
        ok(ds_graph_destroy(g));
    }
    ok(ds_event_destroy(a.later));
    close_world(a.w);
}

/* A copy between pinned memory is a host function to CUDA, which cannot switch it off. */
static void test_an_update_leaves_host_nodes_off_that_are_off(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph g, again;
    ds_graph_node n;
    ds_graph_exec x;
    uint32_t *to = w->pin, *from = w->pin2;
    ds_node_desc copy = copy_node(to, from, 4, 1);
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g));
    ok(ds_graph_add(g, &copy, NULL, 0, &n));
    ok(ds_graph_clone(g, &again));
    ok(ds_graph_instantiate(g, NULL, &x));
    *to = 1;
    *from = 2;
    ok(ds_graph_exec_set_node_enabled(x, n, 0));
    ok(ds_graph_exec_update(x, again, NULL));
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_int_equal(*to, 1);
    ok(ds_graph_exec_set_node_enabled(x, n, 1));
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_int_equal(*to, 2);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(again));
    close_world(w);
}

static void test_the_end_of_a_borrowed_stream_ends_its_capture(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_stream wrapper, second;
    ds_stream_native n = { .device = ds_cuda(1) }, back;
    enum cudaStreamCaptureStatus status;
    cudaStream_t own;
    ds_graph graph;
    cuda(cudaSetDevice(1));
    cuda(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    n.handle = own;
    ok(ds_stream_wrap(&n, DS_BORROW, NULL, NULL, &wrapper));
    ok(ds_stream_wrap(&n, DS_BORROW, NULL, NULL, &second));
    ok(ds_capture_begin(wrapper, DS_CAPTURE_RELAXED));
    ok(ds_stream_destroy(wrapper));
    cuda(cudaStreamIsCapturing(own, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive); /* it can still be named */
    ok(ds_stream_destroy(second));
    cuda(cudaStreamIsCapturing(own, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    ok(ds_stream_wrap(&n, DS_OWN, NULL, NULL, &wrapper));
    ok(ds_capture_begin(wrapper, DS_CAPTURE_RELAXED));
    ok(ds_stream_unwrap(wrapper, &back));
    /* and who has it ends the capture */
    ok(ds_stream_wrap(&back, DS_BORROW, NULL, NULL, &wrapper));
    ok(ds_capture_end(wrapper, &graph));
    ok(ds_graph_destroy(graph));
    ok(ds_stream_destroy(wrapper));
    cuda(cudaStreamDestroy(own));
    cuda(cudaSetDevice(0));
    close_world(w);
}

static void test_a_node_disabled_at_capture_is_disabled_in_a_new_graph(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph inner, outer;
    ds_graph_node n[2], list[4];
    ds_graph_exec x, y;
    size_t count;
    uint32_t *seen = w->pin, *other = w->pin2, value = 0;
    ds_node_desc fill = { .kind = DS_NODE_FILL,
                          .u.fill = { .ptr = w->d, .value = 9, .value_size = 4, .width = 1 } },
                 host = copy_node(other + 1, other, 4, 1);
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &inner));
    ok(ds_graph_add(inner, &fill, NULL, 0, &n[0]));
    ok(ds_graph_add(inner, &host, NULL, 0, &n[1]));
    ok(ds_graph_instantiate(inner, NULL, &x));
    for (int i = 0; i < 2; i++)
        ok(ds_graph_exec_set_node_enabled(x, n[i], 0));
    ok(ds_capture_begin(w->s, DS_CAPTURE_RELAXED));
    ok(ds_graph_launch(x, w->s));
    ok(ds_copy(seen, w->d, 4, w->s));
    ok(ds_capture_end(w->s, &outer));
    ok(ds_graph_get_nodes(outer, list, 4, &count));
    assert_int_equal(count, 2);
    /* of another type: the graph is made anew */
    ds_node_desc instead = copy_node(seen + 1, seen + 2, 4, 1);
    ok(ds_graph_set_node(outer, list[1], &instead));
    ok(ds_graph_instantiate(outer, NULL, &y));
    ok(ds_fill(w->d, 1, 4, 1, w->s));
    other[0] = 5;
    other[1] = 6;
    ok(ds_graph_launch(y, w->s));
    ok(ds_copy(&value, w->d, 4, w->s));
    ok(ds_stream_synchronize(w->s));
    assert_int_equal(value, 1);
    assert_int_equal(other[1], 6);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(outer));
    close_world(w);
}

static void test_a_per_thread_streams_capture_is_queried_on_its_device(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_stream mine;
    ds_graph g;
    void *m;
    cuda(cudaSetDevice(2));
    ok(ds_stream_get_per_thread(ds_cuda(1), &mine));
    ok(ds_capture_begin(mine, DS_CAPTURE_GLOBAL));
    refused(ds_device_alloc(ds_cuda(2), N, &m), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "is now invalidated by this call"));
    refused(ds_capture_end(mine, &g), DS_ERR_CAPTURE_INVALIDATED);
    assert_non_null(strstr(ds_error_get_last(), "ds_device_alloc"));
    cuda(cudaSetDevice(0));
    close_world(w);
}

/* Whichever call it is that CUDA refuses. */
static void test_a_refused_list_of_edges_is_not_in_cudas_graph_either(void **state) {
    (void)state;
    int hit = 1;
    for (unsigned long refusal = 1; hit; refusal++) {
        ds_graph g;
        ds_graph_node n[3];
        ds_graph_exec x;
        ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &g));
        for (int i = 0; i < 3; i++)
            ok(ds_graph_add(g, &(ds_node_desc){ .kind = DS_NODE_EMPTY, .device = ds_cuda(0) }, NULL,
                            0, &n[i]));
        standin_fail(refusal, cudaErrorMemoryAllocation);
        ds_result r = ds_graph_add_edges(g, n, n + 1, 2);
        hit = standin_failed();
        standin_fail(0, 0);
        if (!hit)
            ok(r);
        /* CUDA takes no edge twice */
        if (r < 0)
            ok(ds_graph_add_edges(g, n, n + 1, 2));
        ok(ds_graph_instantiate(g, NULL, &x));
        ok(ds_graph_exec_destroy(x));
        ok(ds_graph_destroy(g));
    }
}

static void test_a_copy_or_fill_of_a_graph_may_go_to_another_gpus_memory(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph g;
    ds_graph_node copy, fill;
    ds_graph_exec x;
    uint32_t *value = w->pin, seen[2] = { 0, 0 };
    *value = 7;
    ds_node_desc c = copy_node(w->d, value, 4, 1), f = {
        .kind = DS_NODE_FILL,
        .u.fill = { .ptr = (uint32_t *)w->d + 1, .value = 8, .value_size = 4, .width = 1 }
    };
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g));
    ok(ds_graph_add(g, &c, NULL, 0, &copy));
    ok(ds_graph_add(g, &f, NULL, 0, &fill));
    c.u.copy.dst = w->far;
    f.u.fill.ptr = (uint32_t *)w->far + 1;
    ok(ds_graph_set_node(g, copy, &c));
    ok(ds_graph_set_node(g, fill, &f));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    ok(ds_copy(seen, w->far, sizeof seen, w->elsewhere));
    ok(ds_stream_synchronize(w->elsewhere));
    assert_int_equal(seen[0], 7);
    assert_int_equal(seen[1], 8);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    close_world(w);
}

/* ---- copies between GPUs ---- */

/* Where the memory of a copy comes from; the last is the program's own, which devstream does not
   know. */
enum { FROM_MALLOC, FROM_MAPPINGS, FROM_POOL, FROM_PROGRAM, SOURCES };

static void *memory_from(int source, int device, ds_stream s) {
    void *m = NULL;
    ds_mem_config config = ds_mem_config_default();
    if (source == FROM_MALLOC) {
        ok(ds_device_alloc(ds_cuda(device), N, &m));
        return m;
    }
    if (source == FROM_PROGRAM) {
        int before = 0;
        cuda(cudaGetDevice(&before));
        cuda(cudaSetDevice(device));
        cuda(cudaMalloc(&m, N));
        cuda(cudaSetDevice(before));
        return m;
    }
    config.expandable_segments = source == FROM_MAPPINGS;
    if (source == FROM_POOL)
        config.backend = DS_MEM_DRIVER_POOL;
    ok(ds_mem_configure(ds_cuda(device), &config));
    ok(ds_mem_alloc(N, s, &m));
    return m;
}

static void free_from(int source, void *m) {
    if (source == FROM_MALLOC)
        ok(ds_device_free(m));
    else if (source == FROM_PROGRAM)
        cuda(cudaFree(m));
    else
        ok(ds_mem_free(m));
}

static void expect_bytes(const char *what, int source, const char *got, int value) {
    for (int i = 0; i < N; i++)
        if (got[i] != value)
            fail_msg("%s, source %d: byte %d is %d, not %d", what, source, i, got[i], value);
}

/* A node that was built copies, or is refused with a sentence. */
static void copy_by_node(int source, int access, char *to, const char *from, char *pin,
                         ds_stream s) {
    ds_node_desc copy = { .kind = DS_NODE_COPY,
                          .u.copy = { .dst = to, .src = from, .width = N, .height = 1 } };
    ds_graph g;
    ds_graph_exec x;
    ds_graph_node n;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &g));
    ds_result r = ds_graph_add(g, &copy, NULL, 0, &n);
    if (r == DS_OK)
        r = ds_graph_instantiate(g, NULL, &x);
    int staged = source == FROM_MALLOC || source == FROM_PROGRAM;
    if (!access && !staged) {
        refused(r, DS_ERR_UNSUPPORTED);
        assert_non_null(strstr(ds_error_get_last(), "cannot be a node"));
        ok(ds_graph_destroy(g));
        return;
    }
    ok(r);
    ok(ds_fill(to, 0, 1, N, s));
    ok(ds_graph_launch(x, s));
    ok(ds_copy(pin, to, N, s));
    ok(ds_stream_synchronize(s));
    expect_bytes("a node", source, pin, 6);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
}

static void copy_each_way(int source, int access) {
    ds_stream s, far, third;
    ds_graph g;
    ds_graph_exec x;
    char *pin;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &far));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(2) }, &third));
    ok(ds_pinned_alloc(N, (void **)&pin));
    char *to = memory_from(source, 0, s), *from = memory_from(source, 1, far), *known;
    ok(ds_device_alloc(ds_cuda(0), N, (void **)&known));
    ds_stream streams[] = { s, far, third };
    for (int i = 0; i < 3; i++) {
        memset(pin, 5 + i, N);
        ok(ds_copy(from, pin, N, far));
        ok(ds_stream_synchronize(far));
        ok(ds_copy(to, from, N, streams[i]));
        ok(ds_copy_2d(to, 64, from, 64, 32, N / 64, streams[i]));
        ok(ds_stream_wait_stream(s, streams[i]));
        memset(pin, 0, N); /* which no work uses now */
        ok(ds_copy(pin, to, N, s));
        ok(ds_stream_synchronize(s));
        expect_bytes("a copy", source, pin, 5 + i);
        ok(ds_copy(known, from, N, s)); /* perhaps an operand that devstream does not know */
        ok(ds_copy(pin, known, N, s));
        ok(ds_stream_synchronize(s));
        expect_bytes("a copy to known memory", source, pin, 5 + i);
    }
    ok(ds_fill(from, 6, 1, N, far));
    ok(ds_stream_synchronize(far));
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_fill(to, 0, 1, N, s));
    ok(ds_copy(to, from, N, s));
    ok(ds_copy_2d(to, 64, from, 64, 32, N / 64, s));
    ok(ds_copy(pin, to, N, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    expect_bytes("a captured copy", source, pin, 6);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    copy_by_node(source, access, to, from, pin, s);
    free_from(source, to);
    free_from(source, from);
    ok(ds_device_free(known));
    ok(ds_pinned_free(pin));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(far));
    ok(ds_stream_destroy(third));
    ok(ds_shutdown());
    assert_int_equal(standin_live(NULL, 0), 0);
}

static void test_copies_between_gpus_write_all_memory(void **state) {
    /* devices 0 and 1 do not reach each other, but both reach device 2 */
    static const char *const settings[] = { "STANDIN_PEERS=all", "STANDIN_PEERS=none",
                                            "STANDIN_DEVICES=3 STANDIN_PEERS=101011111",
                                            "STANDIN_MAX_PEERS=1 STANDIN_LIMITED=1",
                                            "STANDIN_DEVICES=10 STANDIN_LIMITED=1" };
    (void)state;
    for (size_t i = 0; i < 5 && !has_setting("FAULT_CHILD"); i++)
        run_alone_with(settings[i], "between_gpus_write_all");
    if (!has_setting("FAULT_CHILD"))
        return;
    int apart = has_setting("STANDIN_PEERS") && strcmp(getenv("STANDIN_PEERS"), "all") != 0;
    for (int source = 0; source < SOURCES; source++)
        copy_each_way(source, !apart && !has_setting("STANDIN_LIMITED"));
}

static void test_all_gpus_reach_the_pool_if_they_reach_the_gpu(void **state) {
    (void)state;
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("STANDIN_PEERS=all", "reach_the_pool");
        return;
    }
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    void *m = memory_from(FROM_POOL, 0, s);
    ok(ds_stream_synchronize(s));
    cuda(cudaSetDevice(1));
    cuda(cudaMemset(m, 1, N));
    cuda(cudaDeviceSynchronize());
    cuda(cudaSetDevice(0));
    free_from(FROM_POOL, m);
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* More GPUs than CUDA gives access to the memory of one: 711, realm#155. */
static void test_memory_of_many_gpus_is_mapped_and_pooled(void **state) {
    (void)state;
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("STANDIN_DEVICES=10", "memory_of_many_gpus");
        return;
    }
    int reach = -1;
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &s));
    ok(ds_device_can_access_peer(ds_cuda(1), ds_cuda(0), &reach));
    assert_int_equal(reach, 1);
    for (int source = FROM_MAPPINGS; source <= FROM_POOL; source++) {
        void *m = memory_from(source, 0, s);
        ok(ds_fill(m, 1, 1, N, s));
        ok(ds_stream_synchronize(s));
        free_from(source, m);
        /* kernels of others must not use it */
        ok(ds_device_can_access_peer(ds_cuda(1), ds_cuda(0), &reach));
        assert_int_equal(reach, 0);
    }
    unsigned long calls = standin_calls("cuMemSetAccess");
    void *more = memory_from(FROM_MAPPINGS, 0, s);
    ok(ds_mem_free(more));
    assert_true(standin_calls("cuMemSetAccess") - calls <= 1);
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* CUDA refuses the first load of a thread without a context; the second one has the same log. */
static void test_an_image_loaded_at_the_second_try_has_the_drivers_log(void **state) {
    static const char image[] =
        ".version 5.0\n.target sm_60\n.address_size 64\n"
        ".visible .entry store(.param .u64 p0)\n{\nmultiply %r1;\nret;\n}\n";
    ds_kernel k;
    unsigned long loads = 0;
    (void)state;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "crooked",
                                           .args_size = sizeof(void *),
                                           .params = (ds_param[]){ { DS_PARAM_WRITE, 0, 8 } },
                                           .param_count = 1,
                                           .cuda = { .image = image, .entry = "store" } },
                        &k));
    for (int i = 0; i < 2; i++) /* from now on the calls are always the same */
        assert_int_equal(ds_kernel_load(k, ds_cuda(0)), DS_ERR_INVALID_VALUE);
    for (unsigned long nth = 1; loads < 2; nth++) {
        assert_true(nth < 20);
        loads = standin_calls("cuModuleLoadDataEx");
        standin_fail(nth, 201);
        assert_true(ds_kernel_load(k, ds_cuda(0)) < 0);
        standin_fail(0, 0);
        loads = standin_calls("cuModuleLoadDataEx") - loads;
    }
    assert_non_null(strstr(ds_error_get_last(), "could not be loaded: "));
    ok(ds_kernel_destroy(k));
    ok(ds_shutdown());
}

#if CUDART_VERSION >= 12090
static const char *log_line(void) {
    return strstr(ds_error_get_last(), "; the newest line of CUDA's log: \"");
}

static void fail_once(const world *w) {
    standin_fail(2, cudaErrorInvalidValue); /* behind cuCtxGetCurrent */
    if (ds_event_record(w->e, w->s) != DS_ERR_INVALID_VALUE)
        fail_msg("%s", ds_error_get_last());
}

static void test_an_error_has_the_newest_line_of_cudas_log(void **state) {
    (void)state;
    world *w = open_world(1);
    cuda(cudaSetDevice(1));
    fail_once(w);
    assert_non_null(log_line());
    assert_non_null(strstr(log_line(), "\"cudaEventRecord has failed with 1\""));
    /* lines of others come in between */
    for (int i = 0; i < 100; i++)
        assert_int_equal(cudaMalloc(NULL, 1), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    fail_once(w);
    assert_non_null(strstr(log_line(), "\"cudaEventRecord has failed with 1\""));
    close_world(w);
}

/* The stand-in writes no line about an image that it cannot load. */
static void test_a_line_of_cudas_log_is_shown_once(void **state) {
    (void)state;
    ds_kernel k;
    assert_int_equal(cudaMalloc(NULL, 1), cudaErrorInvalidValue); /* before the start */
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    world *w = open_world(1);
    cuda(cudaSetDevice(1));
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "none", .cuda = { .image = "nonsense", .entry = "none" } }, &k));
    assert_int_equal(ds_kernel_load(k, ds_cuda(1)), DS_ERR_INVALID_VALUE);
    assert_null(log_line());
    fail_once(w);
    assert_non_null(log_line());
    assert_int_equal(ds_kernel_load(k, ds_cuda(1)), DS_ERR_INVALID_VALUE);
    assert_null(log_line());
    ok(ds_kernel_destroy(k));
    close_world(w);
}

static void test_errors_of_an_old_driver_have_no_line_of_its_log(void **state) {
    (void)state;
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("STANDIN_DRIVER_VERSION=12080", "of_an_old_driver_have_no");
        return;
    }
    world *w = open_world(1);
    cuda(cudaSetDevice(1));
    fail_once(w);
    assert_null(log_line());
    assert_non_null(strstr(ds_error_get_last(), "cudaEventRecord on cuda:1 returned 1"));
    close_world(w);
}
#endif

#if CUDART_VERSION >= 12080
/* Two copies of 16 bytes, and one of `last` bytes from the device's memory to `far`. */
static ds_result copy_three(const world *w, void *far, size_t last, ds_stream s) {
    void *dst[3] = { w->d2, w->pin, far };
    const void *src[3] = { w->d, w->d, w->d };
    const size_t sizes[3] = { 16, 16, last };
    return ds_copy_batch(dst, src, sizes, 3, s);
}

static unsigned long batches(void) {
    return standin_calls("cudaMemcpyBatchAsync");
}

static unsigned long copies(void) {
    return standin_calls("cudaMemcpyAsync");
}

static void test_a_batch_of_copies_is_one_call_where_cuda_takes_it(void **state) {
    (void)state;
    for (int current = 1; current >= 0; current--) {
        world *w = open_world(1);
        void *to = (char *)w->d2 + 16;
        cuda(cudaSetDevice(current));
        standin_log_begin();
        ok(copy_three(w, to, 16, w->s));
        const char *calls = standin_log_take();
        assert_string_equal(calls, current ? HERE("cudaStreamIsCapturing cudaMemcpyBatchAsync")
                                           : THERE("cudaStreamIsCapturing cudaMemcpyBatchAsync"));
        cuda(cudaSetDevice(1));
        ok(ds_stream_synchronize(w->s));
        close_world(w);
    }
}

static void test_batches_that_cuda_refuses_are_copied_one_by_one(void **state) {
    enum cudaStreamCaptureStatus status;
    ds_stream legacy;
    ds_stream_native native;
    ds_graph graph;
    cudaGraph_t theirs = NULL;
    (void)state;
    world *w = open_world(1);
    void *to = (char *)w->d2 + 16;
    unsigned long before = batches(), single = copies();
    cuda(cudaSetDevice(1));
    ok(copy_three(w, to, 0, w->s));
    assert_int_equal(copies() - single, 2);
    ok(copy_three(w, w->far, 16, w->s));
    assert_int_equal(copies() - single, 5);
    ok(ds_stream_get_legacy(ds_cuda(1), &legacy));
    ok(ds_stream_synchronize(w->s)); /* both streams write to the same memory */
    ok(copy_three(w, to, 16, legacy));
    assert_int_equal(copies() - single, 8);
    ok(ds_capture_begin(w->s, DS_CAPTURE_THREAD_LOCAL));
    ok(copy_three(w, to, 16, w->s));
    assert_int_equal(copies() - single, 11);
    ok(ds_capture_end(w->s, &graph));
    ok(ds_graph_destroy(graph));
    ok(ds_stream_export(w->s, &native)); /* a capture that devstream does not know */
    cuda(cudaStreamBeginCapture(native.handle, cudaStreamCaptureModeThreadLocal));
    ok(copy_three(w, to, 16, w->s));
    assert_int_equal(copies() - single, 14);
    cuda(cudaStreamIsCapturing(native.handle, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    cuda(cudaStreamEndCapture(native.handle, &theirs));
    cuda(cudaGraphDestroy(theirs));
    assert_int_equal(batches(), before);
    ok(ds_stream_synchronize(w->s));
    close_world(w);
}

/* cudart has the function, but the driver library is older. It is asked once. */
static void test_batches_on_an_old_driver_are_copied_one_by_one(void **state) {
    (void)state;
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("STANDIN_DRIVER_VERSION=12060", "on_an_old_driver");
        return;
    }
    world *w = open_world(1);
    unsigned long single = copies();
    ok(copy_three(w, (char *)w->d2 + 16, 16, w->s));
    assert_int_equal(copies() - single, 3);
    assert_int_equal(batches(), 1);
    ok(copy_three(w, (char *)w->d2 + 16, 16, w->s));
    assert_int_equal(copies() - single, 6);
    assert_int_equal(batches(), 1);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    close_world(w);
}
#endif

static void test_peer_access_is_enabled_in_both_directions(void **state) {
    (void)state;
    if (!has_setting("FAULT_CHILD")) {
        run_alone_with("STANDIN_DEVICES=3", "both_directions");
        return;
    }
    int reach = 0;
    ok(ds_device_can_access_peer(ds_cuda(2), ds_cuda(1), &reach));
    assert_int_equal(reach, 1);
    cuda(cudaSetDevice(1));
    assert_int_equal(cudaDeviceEnablePeerAccess(2, 0), cudaErrorPeerAccessAlreadyEnabled);
    cuda(cudaSetDevice(2));
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    assert_int_equal(standin_contexts(), 1 << 1 | 1 << 2);
    (void)cudaGetLastError();
    ok(ds_shutdown());
}

static void test_a_mode_that_was_set_without_devstream_is_given_back(void **state) {
    (void)state;
    world *w = open_world(1);
    enum cudaStreamCaptureMode native = cudaStreamCaptureModeRelaxed;
    ds_capture_mode mode = DS_CAPTURE_THREAD_LOCAL;
    cuda(cudaThreadExchangeStreamCaptureMode(&native));
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(mode, DS_CAPTURE_RELAXED);
    ok(ds_capture_exchange_mode(&mode));
    native = cudaStreamCaptureModeGlobal;
    cuda(cudaThreadExchangeStreamCaptureMode(&native));
    assert_int_equal(native, cudaStreamCaptureModeRelaxed);
    mode = DS_CAPTURE_GLOBAL;
    ok(ds_capture_exchange_mode(&mode));
    close_world(w);
}

static void test_to_capture_an_operation_does_not_ask_for_all_nodes(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph g;

    enum { ROUNDS = 50 };

    ok(ds_capture_begin(w->s, DS_CAPTURE_RELAXED));
    unsigned long before = standin_calls("cudaGraphGetNodes");
    for (int i = 0; i < ROUNDS; i++) {
        ok(ds_kernel_launch(w->k, 1, &(fold_args){ w->pin, 1 }, sizeof(fold_args), w->s));
        ok(ds_fill(w->d, 0, 1, 16, w->s));
        ok(ds_stream_launch_host_func(w->s, nothing, NULL, NULL));
    }
    /* for their number only */
    assert_int_equal(standin_calls("cudaGraphGetNodes") - before, 3 * ROUNDS);
    ok(ds_capture_end(w->s, &g));
    ok(ds_graph_destroy(g));
    close_world(w);
}

static void test_an_executable_keeps_the_kernels_that_it_was_made_with(void **state) {
    (void)state;
    world *w = open_world(1);
    ds_graph g, again;
    ds_graph_node n, m;
    ds_graph_exec x;
    ds_kernel first, second;
    fold_args args = { w->pin, 1 };
    static char image[8192];
    assert_true(strlen(ptx_fold) < sizeof image);
    strcpy(image, ptx_fold); /* a module of its own */
    ok(ds_kernel_create(
        &(ds_kernel_desc){
            .name = "first",
            .cpu_fn = fold_item,
            .args_size = sizeof args,
            .cuda = { .image = image, .entry = "fold", .block = 1 },
            .params = (const ds_param[]){ { DS_PARAM_READ_WRITE, 0, 8 }, { DS_PARAM_VALUE, 8, 8 } },
            .param_count = 2 },
        &first));
    second = w->k;
    ds_node_desc one = fold_node(first, &args), two = fold_node(second, &args);
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &g));
    ok(ds_graph_add(g, &one, NULL, 0, &n));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(1) }, &again));
    ok(ds_graph_add(again, &two, NULL, 0, &m));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_exec_update(x, again, NULL));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(first));
    unsigned long unloaded = standin_calls("cuModuleUnload");
    ok(ds_device_synchronize(ds_cuda(1)));
    assert_int_equal(standin_calls("cuModuleUnload"), unloaded);
    args.n = 2;
    ok(ds_graph_exec_set_node(x, n, &two)); /* by the node of the graph that is kept */
    ok(ds_graph_launch(x, w->s));
    ok(ds_stream_synchronize(w->s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(again));
    ok(ds_device_synchronize(ds_cuda(1)));
    assert_int_equal(standin_calls("cuModuleUnload"), unloaded + 1);
    close_world(w);
}

static int setup(void **state) {
    (void)state;
    alarm(120);
    return 0;
}

int main(int argc, char **argv) {
    static char pattern[200];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_asking_makes_no_context, setup), /* first */
        /* second */
        cmocka_unit_test_setup(test_work_makes_no_context_on_a_device_that_is_not_used, setup),
        cmocka_unit_test_setup(test_hot_verbs_make_these_calls_and_no_others, setup),
        cmocka_unit_test_setup(test_a_context_that_is_not_primary_is_left_as_it_is, setup),
        cmocka_unit_test_setup(test_no_verb_changes_the_current_device, setup),
        cmocka_unit_test_setup(test_no_verb_makes_a_context_on_an_unused_device, setup),
        cmocka_unit_test_setup(test_a_question_about_a_pointer_makes_no_context, setup),
        cmocka_unit_test_setup(test_the_users_own_error_survives_and_none_of_ours_is_left, setup),
        cmocka_unit_test_setup(test_a_stream_of_cudart_is_wrapped_and_stays_its_owners, setup),
        cmocka_unit_test_setup(test_memory_of_cudart_is_copied_and_filled_and_not_freed, setup),
        cmocka_unit_test_setup(test_the_legacy_stream_skips_streams_that_were_given_away, setup),
        cmocka_unit_test_setup(test_work_on_remote_memory_waits_for_its_own_stream_only, setup),
        cmocka_unit_test_setup(test_work_on_remote_memory_uses_kept_streams_and_events, setup),
        cmocka_unit_test_setup(test_copies_between_the_drivers_share_one_buffer_per_stream, setup),
        cmocka_unit_test_setup(test_calls_whose_failure_means_something_else_are_understood, setup),
        cmocka_unit_test_setup(test_a_capture_begun_by_others_takes_work_and_is_not_ended, setup),
        cmocka_unit_test_setup(test_a_launch_in_a_capture_of_others_keeps_its_objects, setup),
        cmocka_unit_test_setup(test_a_node_behind_foreign_captured_work_is_set_and_switched, setup),
        cmocka_unit_test_setup(test_foreign_captured_work_stands_in_its_place_in_the_graph, setup),
#if CUDART_VERSION >= 12080
        cmocka_unit_test_setup(test_foreign_work_behind_nested_conditions_is_in_the_graph, setup),
        cmocka_unit_test_setup(test_a_refused_condition_is_not_in_cudas_graph_either, setup),
        cmocka_unit_test_setup(test_conditions_in_a_capture_of_others_are_refused, setup),
        cmocka_unit_test_setup(test_the_kernel_for_conditions_is_linked_once, setup),
        cmocka_unit_test_setup(test_a_driver_that_knows_conditions_links_nothing, setup),
        cmocka_unit_test_setup(test_conditions_on_an_old_driver_are_refused, setup),
        cmocka_unit_test_setup(test_conditions_without_the_device_runtime_are_refused, setup),
#endif
        cmocka_unit_test_setup(test_loading_in_a_capture_keeps_the_threads_mode, setup),
        cmocka_unit_test_setup(test_queries_leave_the_captures_of_others_alone, setup),
        cmocka_unit_test_setup(test_a_capture_that_shutdown_ends_is_freed_without_a_lock, setup),
        cmocka_unit_test_setup(test_all_dependencies_of_a_captured_node_are_read, setup),
        cmocka_unit_test_setup(test_cudart_copies_between_pinned_ranges_on_request, setup),
        cmocka_unit_test_setup(test_a_host_function_in_a_sudden_capture_is_refused, setup),
        cmocka_unit_test_setup(test_a_host_function_after_a_sudden_end_runs, setup),
        cmocka_unit_test_setup(test_pieces_of_staged_copies_wait_for_their_half, setup),
        cmocka_unit_test_setup(test_both_parts_of_staged_copies_run_at_once, setup),
        cmocka_unit_test_setup(test_host_memory_is_freed_in_a_capture_when_streams_passed, setup),
        cmocka_unit_test_setup(test_device_memory_is_freed_in_a_capture_after_its_work, setup),
        cmocka_unit_test_setup(test_a_launch_that_takes_several_is_captured_but_not_known, setup),
        cmocka_unit_test_setup(test_what_an_executable_does_not_do_any_more_is_ended, setup),
        cmocka_unit_test_setup(test_priorities_of_nodes_are_cudas, setup),
        cmocka_unit_test_setup(test_a_capturing_stream_is_not_asked_for_the_legacy_stream, setup),
        cmocka_unit_test_setup(test_a_child_with_nodes_added_in_reverse_keeps_its_order, setup),
        cmocka_unit_test_setup(test_registered_functions_are_nodes, setup),
        cmocka_unit_test_setup(test_a_graph_on_a_device_that_fails_ends_what_it_keeps_once, setup),
        cmocka_unit_test_setup(test_counts_of_four_bytes_are_never_split, setup),
        cmocka_unit_test_setup(test_a_fault_of_a_recording_leaves_operations_alone, setup),
        cmocka_unit_test_setup(test_a_wrapper_of_a_per_thread_stream_may_outlive_the_thread, setup),
        cmocka_unit_test_setup(test_peer_access_that_the_program_enabled_is_fine, setup),
        cmocka_unit_test_setup(test_an_image_loaded_at_the_second_try_has_the_drivers_log, setup),
#if CUDART_VERSION >= 12090
        cmocka_unit_test_setup(test_an_error_has_the_newest_line_of_cudas_log, setup),
        cmocka_unit_test_setup(test_a_line_of_cudas_log_is_shown_once, setup),
        cmocka_unit_test_setup(test_errors_of_an_old_driver_have_no_line_of_its_log, setup),
#endif
#if CUDART_VERSION >= 12080
        cmocka_unit_test_setup(test_a_batch_of_copies_is_one_call_where_cuda_takes_it, setup),
        cmocka_unit_test_setup(test_batches_that_cuda_refuses_are_copied_one_by_one, setup),
        cmocka_unit_test_setup(test_batches_on_an_old_driver_are_copied_one_by_one, setup),
#endif
        cmocka_unit_test_setup(test_peer_access_is_enabled_in_both_directions, setup),
        cmocka_unit_test_setup(test_copies_between_gpus_write_all_memory, setup),
        cmocka_unit_test_setup(test_all_gpus_reach_the_pool_if_they_reach_the_gpu, setup),
        cmocka_unit_test_setup(test_memory_of_many_gpus_is_mapped_and_pooled, setup),
        cmocka_unit_test_setup(test_cubins_fatbins_and_registered_functions_run, setup),
        cmocka_unit_test_setup(test_a_function_of_another_cudart_is_refused, setup),
        cmocka_unit_test_setup(test_an_image_without_a_form_for_the_gpu_is_refused, setup),
        cmocka_unit_test_setup(test_kernels_of_one_image_share_its_module_and_unload_it, setup),
        cmocka_unit_test_setup(test_threads_load_an_image_once, setup),
        cmocka_unit_test_setup(test_threads_that_wait_for_a_refused_image_are_refused, setup),
        cmocka_unit_test_setup(test_images_in_pieces_are_shared_by_their_array, setup),
        cmocka_unit_test_setup(test_more_shared_memory_than_every_gpu_has_is_asked_for, setup),
        cmocka_unit_test_setup(test_attributes_of_a_grid_reach_cuda, setup),
        cmocka_unit_test_setup(test_a_device_without_attributes_refuses_them, setup),
        cmocka_unit_test_setup(test_a_kernel_destroyed_during_a_wait_keeps_its_code, setup),
        cmocka_unit_test_setup(test_an_image_of_given_size_needs_no_terminating_zero, setup),
        cmocka_unit_test_setup(test_loads_that_fail_leave_no_module, setup),
        cmocka_unit_test_setup(test_shutdown_waits_for_what_a_failed_device_still_runs, setup),
        cmocka_unit_test_setup(test_shutdown_releases_what_was_left, setup),
        cmocka_unit_test_setup(test_shutdown_frees_what_another_thread_captured, setup),
        cmocka_unit_test_setup(test_shutdown_drains_streams_beside_a_capture_it_cannot_end, setup),
        cmocka_unit_test_setup(test_shutdown_drains_destroyed_streams_beside_a_capture, setup),
        cmocka_unit_test_setup(test_shutdown_drains_gpus_after_cpu_streams_that_copy, setup),
        cmocka_unit_test_setup(test_waits_refused_in_two_threads_at_once_do_not_deadlock, setup),
        cmocka_unit_test_setup(test_a_graph_of_others_may_be_launched_after_shutdown, setup),
        cmocka_unit_test_setup(test_queries_of_uncaptured_objects_leave_captures_alone, setup),
        cmocka_unit_test_setup(test_an_update_leaves_host_nodes_off_that_are_off, setup),
        cmocka_unit_test_setup(test_the_end_of_a_borrowed_stream_ends_its_capture, setup),
        cmocka_unit_test_setup(test_a_node_disabled_at_capture_is_disabled_in_a_new_graph, setup),
        cmocka_unit_test_setup(test_a_per_thread_streams_capture_is_queried_on_its_device, setup),
        cmocka_unit_test_setup(test_a_refused_list_of_edges_is_not_in_cudas_graph_either, setup),
        cmocka_unit_test_setup(test_a_copy_or_fill_of_a_graph_may_go_to_another_gpus_memory, setup),
        cmocka_unit_test_setup(test_a_mode_that_was_set_without_devstream_is_given_back, setup),
        cmocka_unit_test_setup(test_to_capture_an_operation_does_not_ask_for_all_nodes, setup),
        cmocka_unit_test_setup(test_an_executable_keeps_the_kernels_that_it_was_made_with, setup),
        cmocka_unit_test_setup(test_attributes_are_those_of_cudart, setup),
        cmocka_unit_test_setup(test_every_call_that_fails_is_a_result_and_leaks_nothing, setup),
        cmocka_unit_test_setup(test_every_call_out_of_memory_is_a_result_and_leaks_nothing, setup),
    };
    if (argc > 1) {
        snprintf(pattern, sizeof pattern, "*%s*", argv[1]);
        cmocka_set_test_filter(pattern);
    }
    return cmocka_run_group_tests_name("cuda driver", tests, NULL, NULL);
}
