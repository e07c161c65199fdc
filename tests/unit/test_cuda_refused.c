/* What the CUDA driver refuses in graphs and captures, with the sentence, and what it records of
   batches; on the stand-in. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <pthread.h>
#include "scarce.h"
#include "unit.h"
#include "kernels_ptx.h"

#include "standin/standin.h"

#define cuda(call) assert_int_equal(call, cudaSuccess)

static ds_stream stream;
static char *pinned;
static long kept;           /* blocks of host memory that stay for good */
static size_t kept_objects; /* user objects of CUDA, likewise */

static int begin(void **state) {
    void *p;
    (void)state;
    alarm(120);
    scarce_begin(-1);
    ok(ds_init(&(ds_init_desc){ .allocator = SCARCE, .log_level = DS_LOG_ERROR }));
    ok(ds_device_set_current(ds_cuda(0)));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &stream));
    ok(ds_pinned_alloc(4096, &p));
    pinned = p;
    memset(pinned, 0, 4096);
    return 0;
}

static int end(void **state) {
    char report[200];
    (void)state;
    scarce_begin(-1);
    standin_fail_calls("cudaMalloc", 1, 0, 0); /* or another call */
    ok(ds_pinned_free(pinned));
    ok(ds_stream_destroy(stream));
    ok(ds_shutdown());
    assert_int_equal(scarce_held, kept);
    if (standin_live(report, sizeof report) != kept_objects)
        fail_msg("left behind: %s", report);
    while (cudaGetLastError() != cudaSuccess) {
    }
    return 0;
}

static ds_graph new_graph(void) {
    ds_graph g;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &g));
    return g;
}

static ds_graph_node add_fill(ds_graph g, int at, const ds_graph_node *after) {
    ds_graph_node n;
    ds_node_desc d = { .kind = DS_NODE_FILL };
    d.u.fill = (ds_fill_node){ .ptr = pinned + at, .value = 1, .value_size = 1, .width = 8 };
    ok(ds_graph_add(g, &d, after, after != NULL, &n));
    return n;
}

static ds_node_desc child_node(ds_graph child) {
    ds_node_desc d = { .kind = DS_NODE_CHILD };
    d.u.child = child;
    return d;
}

/* An executable's child takes another graph only with the same nodes and dependencies. */
static void test_a_child_of_an_executable_keeps_its_shape(void **state) {
    ds_graph g = new_graph(), two = new_graph(), three = new_graph(), apart = new_graph();
    ds_graph_node whole, n;
    ds_graph_exec x;
    (void)state;
    n = add_fill(two, 0, NULL);
    add_fill(two, 16, &n);
    n = add_fill(three, 0, NULL);
    n = add_fill(three, 16, &n);
    add_fill(three, 32, &n);
    add_fill(apart, 0, NULL);
    add_fill(apart, 16, NULL);
    ds_node_desc d = child_node(two);
    ok(ds_graph_add(g, &d, NULL, 0, &whole));
    ok(ds_graph_instantiate(g, NULL, &x));
    d = child_node(three);
    ds_result r = ds_graph_exec_set_node(x, whole, &d);
    assert_true(r == DS_ERR_UNSUPPORTED || r == DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "nodes"));
    d = child_node(apart);
    r = ds_graph_exec_set_node(x, whole, &d);
    assert_true(r == DS_ERR_UNSUPPORTED || r == DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "dependencies"));
    /* nothing has changed */
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(pinned[0], 1);
    assert_int_equal(pinned[16], 1);
    assert_int_equal(pinned[32], 0);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(two));
    ok(ds_graph_destroy(three));
    ok(ds_graph_destroy(apart));
}

static const ds_param fold_params[] = { { DS_PARAM_READ_WRITE, 0, sizeof(uint64_t *) },
                                        { DS_PARAM_VALUE, 8, sizeof(uint64_t) } };

typedef struct fold_args {
    uint64_t *h, n;
} fold_args;

static void test_a_node_with_much_shared_memory(void **state) {
    ds_kernel k;
    ds_graph g = new_graph();
    ds_graph_exec x;
    fold_args args = { (uint64_t *)(void *)pinned, 5 };
    (void)state;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fold",
                           .args_size = sizeof args,
                           .params = fold_params,
                           .param_count = 2,
                           .cuda = { .image = ptx_fold, .entry = "fold", .block = 1 } },
        &k));
    ds_node_desc d = { .kind = DS_NODE_KERNEL };
    ds_grid grid = { .grid = { 1 }, .block = { 1 }, .shared_bytes = 100 << 10 };
    d.u.kernel =
        (ds_kernel_node){ .kernel = k, .grid = &grid, .args = &args, .args_size = sizeof args };
    ok(ds_graph_add(g, &d, NULL, 0, NULL));
    assert_true(standin_calls("cuFuncSetAttribute") > 0);
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(*args.h, 5);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
}

static void test_a_graph_does_not_copy_between_drivers(void **state) {
    ds_graph g = new_graph();
    void *there, *here;
    (void)state;
    ok(ds_device_alloc(ds_cpu(0), 64, &there));
    ok(ds_device_alloc(ds_cuda(0), 64, &here));
    ds_node_desc d = { .kind = DS_NODE_COPY };
    d.u.copy = (ds_copy_node){ .dst = here, .src = there, .width = 64 };
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_CROSS_DRIVER, "different drivers");
    ok(ds_graph_destroy(g));
    ok(ds_device_free(there));
    ok(ds_device_free(here));
}

/* ---- executables ---- */

static ds_node_desc fill_of(void *ptr, size_t width) {
    ds_node_desc d = { .kind = DS_NODE_FILL };
    d.u.fill = (ds_fill_node){ .ptr = ptr, .value = 1, .value_size = 1, .width = width };
    return d;
}

static ds_graph_node add(ds_graph g, ds_node_desc d) {
    ds_graph_node n;
    ok(ds_graph_add(g, &d, NULL, 0, &n));
    return n;
}

/* The stand-in lets no fill of an executable grow. */
static void test_an_update_that_cuda_refuses_names_the_node(void **state) {
    ds_graph first = new_graph(), second = new_graph();
    ds_graph_node wide;
    ds_graph_exec x;
    ds_graph_update_info info;
    void *p;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 4096, &p));
    for (int i = 0; i < 2; i++) {
        add(first, fill_of((char *)p + 64 * i, 8));
        wide = add(second, fill_of((char *)p + 64 * i, i ? 64 : 8));
    }
    ok(ds_graph_instantiate(first, NULL, &x));
    refused(ds_graph_exec_update(x, second, &info), DS_ERR_GRAPH_UPDATE, "cannot be updated");
    assert_true(info.reason != DS_GRAPH_UPDATE_SUCCESS);
    assert_true(info.node.id == wide.id);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(first));
    ok(ds_graph_destroy(second));
    ok(ds_device_free(p));
}

static _Atomic int ended;

static void count_end(void *user) {
    (void)user;
    atomic_fetch_add(&ended, 1);
}

/* The objects of a child graph, and of one in it, belong to the executable with the node. */
static void test_a_child_with_objects_is_set_whole_or_not_at_all(void **state) {
    ds_graph g = new_graph(), old = new_graph(), fresh = new_graph(), inner = new_graph();
    ds_graph_exec x;
    int refusals = 0;
    (void)state;
    atomic_store(&ended, 0);
    add_fill(inner, 0, NULL);
    add(old, child_node(inner));
    ds_graph_node whole = add(g, child_node(old));
    ok(ds_graph_attach(inner, NULL, count_end));
    add(fresh, child_node(inner));
    ok(ds_graph_attach(fresh, NULL, count_end));
    ok(ds_graph_instantiate(g, NULL, &x));
    ds_node_desc d = child_node(fresh);
    for (long n = 0;; n++) {
        scarce_begin(n);
        ds_result r = ds_graph_exec_set_node(x, whole, &d);
        (void)scarce_end();
        if (r == DS_OK)
            break;
        assert_int_equal(r, DS_ERR_OUT_OF_MEMORY);
        refusals++;
    }
    assert_true(refusals > 10);
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(fresh));
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(pinned[0], 1);
    assert_int_equal(ended, 0); /* the executable has them */
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(old));
    ok(ds_shutdown());
    assert_int_equal(ended, 2);
    ok(ds_init(&(ds_init_desc){ .allocator = SCARCE }));
    stream = (ds_stream){ 0 };
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &stream));
    void *p;
    ok(ds_pinned_alloc(4096, &p));
    pinned = p;
}

static cudaStream_t native_of(ds_stream s) {
    ds_stream_native n;
    ok(ds_stream_export(s, &n));
    return n.handle;
}

/* A graph with a fill of another library and one of devstream, on device memory. */
static ds_graph graph_with_foreign_node(char *p, ds_graph_node *out_own) {
    ds_graph g;
    size_t count;
    ds_graph_node all[2];
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    cuda(cudaMemsetAsync(p, 7, 16, native_of(stream)));
    ok(ds_fill(p + 64, 1, 1, 8, stream));
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_get_nodes(g, all, 2, &count));
    assert_int_equal(count, 2);
    *out_own = all[1];
    return g;
}

/* CUDA clones no graphs with memory nodes, which only other libraries capture. */
static void test_an_executable_that_cuda_cannot_clone_is_not_changed(void **state) {
    ds_graph_node own;
    ds_graph_exec x;
    void *p;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 4096, &p));
    ds_graph g = graph_with_foreign_node(p, &own);
    standin_fail_calls("cudaGraphClone", 1, 1, cudaErrorInvalidValue);
    ok(ds_graph_instantiate(g, NULL, &x));
    assert_true(standin_failed());
    ds_node_desc d = fill_of((char *)p + 64, 4);
    refused(ds_graph_exec_set_node(x, own, &d), DS_ERR_UNSUPPORTED,
            "node 1 cannot be changed: CUDA cannot clone the graph");
    refused(ds_graph_exec_set_node_enabled(x, own, 0), DS_ERR_UNSUPPORTED,
            "node 1 cannot be changed: CUDA cannot clone the graph");
    ok(ds_graph_exec_set_node_enabled(x, own, 1)); /* no change */
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_synchronize(stream));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_device_free(p));
}

/* The launch of an executable with a node switched off is captured as a graph that is built anew,
   which needs the work of each node. */
static void test_a_foreign_node_is_not_built_anew(void **state) {
    ds_graph_node own;
    ds_graph_exec x;
    ds_graph captured;
    void *p;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 4096, &p));
    ds_graph g = graph_with_foreign_node(p, &own);
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_exec_set_node_enabled(x, own, 0));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    refused(ds_graph_launch(x, stream), DS_ERR_UNSUPPORTED,
            "a node captured from other libraries can only be cloned with its graph");
    ok(ds_capture_end(stream, &captured));
    size_t count;
    ok(ds_graph_get_nodes(captured, NULL, 0, &count));
    assert_int_equal(count, 0);
    ok(ds_graph_destroy(captured));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_device_free(p));
}

static void test_an_empty_node_of_an_executable_may_be_set(void **state) {
    ds_graph g = new_graph();
    ds_node_desc d = { .kind = DS_NODE_EMPTY };
    ds_graph_node n = add(g, d);
    ds_graph_exec x;
    (void)state;
    add_fill(g, 0, &n);
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_exec_set_node(x, n, &d));
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(pinned[0], 1);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
}

static void test_a_node_needs_the_access_of_its_copy(void **state) {
    ds_graph g = new_graph();
    void *here, *there;
    size_t count;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 64, &here));
    ok(ds_device_alloc(ds_cuda(1), 64, &there));
    ds_node_desc d = { .kind = DS_NODE_COPY };
    d.u.copy = (ds_copy_node){ .dst = there, .src = here, .width = 64 };
    standin_fail_calls("cuPointerGetAttributes", 1, 1, cudaErrorUnknown);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_DRIVER,
            "cuPointerGetAttributes on cuda:0 returned 999");
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 0);
    ok(ds_graph_add(g, &d, NULL, 0, NULL));
    ok(ds_graph_destroy(g));
    ok(ds_device_free(here));
    ok(ds_device_free(there));
}

/* ---- captures ---- */

static void test_a_capture_may_need_a_newer_driver(void **state) {
    (void)state;
    standin_fail_calls("cudaStreamBeginCapture", 1, 1, cudaErrorCallRequiresNewerDriver);
    refused(ds_capture_begin(stream, DS_CAPTURE_GLOBAL), DS_ERR_UNSUPPORTED,
            "cudaStreamBeginCapture needs a newer driver (it returned 36)");
}

static void test_the_legacy_stream_has_no_capture_to_change(void **state) {
    ds_stream legacy;
    ds_graph_node n = { 1 };
    cudaStream_t blocking;
    cudaGraph_t graph;
    size_t count;
    (void)state;
    ok(ds_stream_get_legacy(ds_cuda(0), &legacy));
    /* CUDA does not answer for the legacy stream beside such a capture */
    cuda(cudaStreamCreate(&blocking));
    cuda(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    refused(ds_capture_get_dependencies(legacy, &n, 1, &count), DS_ERR_ILLEGAL_STATE,
            "the stream does not capture");
    refused(ds_capture_update_dependencies(legacy, NULL, 0, DS_CAPTURE_SET_DEPENDENCIES),
            DS_ERR_ILLEGAL_STATE, "the stream does not capture");
    cuda(cudaStreamEndCapture(blocking, &graph));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaStreamDestroy(blocking));
}

static void test_a_capture_that_cudart_invalidated_is_told(void **state) {
    cudaStream_t native = native_of(stream);
    ds_capture_info info;
    ds_graph g;
    cudaGraph_t none;
    (void)state;
    ok(ds_capture_begin(stream, DS_CAPTURE_GLOBAL));
    assert_int_equal(cudaStreamSynchronize(native), cudaErrorStreamCaptureUnsupported);
    (void)cudaGetLastError();
    ok(ds_capture_get_info(stream, &info));
    assert_int_equal(info.status, DS_CAPTURE_INVALIDATED);
    refused(ds_capture_end(stream, &g), DS_ERR_CAPTURE_INVALIDATED, "");
    /* the same of a capture that devstream did not begin */
    cuda(cudaStreamBeginCapture(native, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaStreamSynchronize(native), cudaErrorStreamCaptureUnsupported);
    (void)cudaGetLastError();
    ok(ds_capture_get_info(stream, &info));
    assert_int_equal(info.status, DS_CAPTURE_INVALIDATED);
    assert_int_equal(info.id, 0);
    size_t count;
    refused(ds_capture_get_dependencies(stream, NULL, 0, &count), DS_ERR_ILLEGAL_STATE,
            "begun outside devstream");
    assert_int_equal(cudaStreamEndCapture(native, &none), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
}

/* The numbers of the two drivers' captures may be equal. */
static void test_a_capture_of_the_cpu_driver_is_not_named(void **state) {
    static char pageable[64];
    ds_stream cpu;
    ds_graph g;
    void *p;
    char want[40];
    ds_capture_info info;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 64, &p));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    ok(ds_capture_begin(cpu, DS_CAPTURE_RELAXED)); /* is before the other one in the list */
    ok(ds_capture_get_info(stream, &info));
    snprintf(want, sizeof want, "capture #%llu (relaxed)", (unsigned long long)info.id);
    refused(ds_copy(p, pageable, 64, stream), DS_ERR_CAPTURE_UNSUPPORTED, want);
    assert_non_null(strstr(ds_error_get_last(), "goes on"));
    refused(ds_stream_query(stream), DS_ERR_CAPTURE_UNSUPPORTED, want);
    ok(ds_capture_end(cpu, &g));
    ok(ds_graph_destroy(g));
    refused(ds_capture_end(stream, &g), DS_ERR_CAPTURE_INVALIDATED, want);
    ok(ds_stream_destroy(cpu));
    ok(ds_device_free(p));
}

/* Of two open captures, the one that forbids the call is named. */
static void test_the_capture_that_forbids_a_call_is_named(void **state) {
    ds_stream other;
    ds_graph g;
    ds_event e;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &other));
    ok(ds_capture_begin(stream, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
    standin_fail_calls("cudaEventCreateWithFlags", 1, 1, cudaErrorStreamCaptureUnsupported);
    refused(ds_event_create_on(ds_cuda(0), 0, NULL, &e), DS_ERR_CAPTURE_UNSUPPORTED,
            "(thread-local)");
    ok(ds_capture_end(other, &g));
    ok(ds_graph_destroy(g));
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(other));
}

static _Atomic int stage;

static void *capture_per_thread(void *user) {
    ds_stream mine;
    ds_graph g;
    ds_capture_info info;
    (void)user;
    ok(ds_stream_get_per_thread(ds_cuda(0), &mine));
    ok(ds_capture_begin(mine, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_capture_get_info(mine, &info));
    atomic_store(&stage, 1);
    while (atomic_load(&stage) == 1)
        usleep(100);
    ok(ds_graph_add(info.graph, &(ds_node_desc){ .kind = DS_NODE_EMPTY }, NULL, 0, NULL));
    ok(ds_capture_end(mine, &g));
    ok(ds_graph_destroy(g));
    return NULL;
}

/* CUDA's handle of a per-thread stream means that of the calling thread, so the capture of another
   thread is not asked for. */
static void test_a_capture_on_anothers_per_thread_stream_stays_valid(void **state) {
    pthread_t thread;
    ds_graph g;
    (void)state;
    atomic_store(&stage, 0);
    assert_int_equal(pthread_create(&thread, NULL, capture_per_thread, NULL), 0);
    while (!atomic_load(&stage))
        usleep(100);
    ok(ds_capture_begin(stream, DS_CAPTURE_THREAD_LOCAL));
    refused(ds_stream_query(stream), DS_ERR_CAPTURE_UNSUPPORTED, "now invalidated by this call");
    refused(ds_capture_end(stream, &g), DS_ERR_CAPTURE_INVALIDATED, "ds_stream_query");
    atomic_store(&stage, 2);
    pthread_join(thread, NULL); /* which ends its capture */
}

static void test_a_per_thread_capture_is_not_asked_without_its_device(void **state) {
    ds_stream mine;
    ds_graph g;
    (void)state;
    ok(ds_stream_get_per_thread(ds_cuda(0), &mine));
    ok(ds_capture_begin(mine, DS_CAPTURE_RELAXED));
    standin_fail_calls("cuCtxGetCurrent", 2, 1, cudaErrorUnknown);
    refused(ds_stream_query(mine), DS_ERR_CAPTURE_UNSUPPORTED, "goes on");
    assert_true(standin_failed());
    refused(ds_capture_end(mine, &g), DS_ERR_CAPTURE_INVALIDATED, "");
}

/* Memory is freed beside a relaxed capture: the device's other streams are waited for. */
static void test_a_release_beside_a_capture_needs_the_device(void **state) {
    ds_graph g;
    void *p;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 64, &p));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    standin_fail_calls("cuCtxGetCurrent", 1, 1, cudaErrorUnknown);
    refused(ds_device_free(p), DS_ERR_DRIVER, "cuCtxGetCurrent on cuda:0 returned 999");
    /* the work of a device that has failed is over */
    standin_fail_calls("cudaEventRecord", 1, 1, cudaErrorLaunchFailure);
    ok(ds_device_free(p));
    assert_true(standin_failed());
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
}

static void test_a_copy_of_unknown_memory_is_not_captured(void **state) {
    static char unknown[64];
    ds_graph g;
    void *p;
    size_t count;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 64, &p));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    standin_fail_calls("cuPointerGetAttributes", 1, 100, cudaErrorUnknown);
    refused(ds_copy(p, unknown, 64, stream), DS_ERR_DRIVER, "cuPointerGetAttributes");
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 0);
    ok(ds_graph_destroy(g));
    ok(ds_device_free(p));
}

/* ---- captures of other libraries, and into graphs ---- */

static void count_run(void *user) {
    atomic_fetch_add((_Atomic int *)user, 1);
}

static void launch_native(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    cuda(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    cuda(cudaGraphLaunch(exec, native_of(stream)));
    cuda(cudaStreamSynchronize(native_of(stream)));
    cuda(cudaGraphExecDestroy(exec));
}

/* The node exists although its graph cannot keep the data: it runs nothing. The graph may be
   launched at any time, so the task stays with its object and keep. */
static void test_a_host_function_that_a_graph_cannot_keep_never_runs(void **state) {
    static _Atomic int ran;
    cudaGraph_t graph;
    (void)state;
    atomic_store(&ran, 0);
    cuda(cudaStreamBeginCapture(native_of(stream), cudaStreamCaptureModeRelaxed));
    standin_fail_calls("cudaGraphRetainUserObject", 1, 1, cudaErrorUnknown);
    refused(ds_stream_launch_host_func(stream, count_run, (void *)&ran, NULL), DS_ERR_DRIVER,
            "cudaGraphRetainUserObject");
    cuda(cudaStreamEndCapture(native_of(stream), &graph));
    launch_native(graph);
    assert_int_equal(ran, 0);
    cuda(cudaGraphDestroy(graph));
    kept += 3;
    kept_objects++;
}

static void test_a_host_function_in_a_foreign_capture_needs_memory(void **state) {
    static _Atomic int ran;
    cudaGraph_t graph;
    int refusals = 0;
    (void)state;
    atomic_store(&ran, 0);
    cuda(cudaStreamBeginCapture(native_of(stream), cudaStreamCaptureModeRelaxed));
    scarce_once = 1;
    for (long n = 1;; n++) {
        scarce_begin(n - 1);
        ds_result r = ds_stream_launch_host_func(stream, count_run, (void *)&ran, NULL);
        if (r == DS_OK)
            r = ds_stream_launch_host_func(stream, count_run, (void *)&ran, count_end);
        if (!scarce_end()) {
            ok(r);
            break;
        }
        assert_int_equal(r, DS_ERR_OUT_OF_MEMORY);
        refusals++;
    }
    scarce_once = 0;
    assert_true(refusals > 3);
    cuda(cudaStreamEndCapture(native_of(stream), &graph));
    launch_native(graph);
    assert_true(ran >= 2);
    cuda(cudaGraphDestroy(graph));
}

/* Begins a capture into a graph with two nodes. */
static ds_graph capture_into_graph(ds_graph_node out[2]) {
    ds_graph g = new_graph();
    out[0] = add_fill(g, 0, NULL);
    out[1] = add_fill(g, 16, NULL);
    ok(ds_capture_begin_to_graph(stream, g, NULL, 0, DS_CAPTURE_RELAXED));
    return g;
}

static void test_a_graph_is_not_changed_after_its_capture_failed(void **state) {
    ds_graph_node n[2];
    ds_graph g = capture_into_graph(n), none;
    ds_node_desc d = fill_of(pinned, 8);
    (void)state;
    standin_fail_calls("cuCtxGetCurrent", 1, 1, cudaErrorUnknown);
    refused(ds_graph_set_node(g, n[0], &d), DS_ERR_DRIVER, "cuCtxGetCurrent on cuda:0");
    ok(ds_graph_set_node(g, n[0], &d));
    assert_int_equal(cudaStreamSynchronize(native_of(stream)), cudaErrorStreamCaptureUnsupported);
    (void)cudaGetLastError();
    refused(ds_graph_set_node(g, n[0], &d), DS_ERR_CAPTURE_INVALIDATED, "a call outside devstream");
    refused(ds_graph_add_edges(g, &n[0], &n[1], 1), DS_ERR_CAPTURE_INVALIDATED,
            "a call outside devstream");
    refused(ds_capture_end(stream, &none), DS_ERR_CAPTURE_INVALIDATED, "");
    ok(ds_graph_destroy(g));
}

/* Nodes that another library has captured are read before a node is added. */
static void test_a_node_is_not_added_before_nodes_that_cannot_be_read(void **state) {
    ds_graph_node n[2], all[4];
    ds_graph g = capture_into_graph(n), none;
    ds_node_desc d = fill_of(pinned, 8);
    void *p;
    size_t count;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 64, &p));
    cuda(cudaMemsetAsync(p, 1, 8, native_of(stream)));
    standin_fail_calls("cuCtxGetCurrent", 2, 1, cudaErrorUnknown);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_DRIVER, "cuCtxGetCurrent on cuda:0");
    standin_fail_calls("cudaGraphNodeGetDependencies", 1, 1, cudaErrorUnknown);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_DRIVER, "cudaGraphNodeGetDependencies");
    ok(ds_graph_get_nodes(g, all, 4, &count)); /* neither the node nor the one before it */
    assert_int_equal(count, 2);
    ok(ds_graph_add(g, &d, NULL, 0, NULL));
    ok(ds_capture_end(stream, &none));
    ok(ds_graph_get_nodes(g, all, 4, &count));
    assert_int_equal(count, 4);
    ok(ds_graph_destroy(g));
    ok(ds_device_free(p));
}

static uint64_t recorded_bytes;
static int batches;

static void count_batches(const ds_activity_batch *batch, void *user) {
    (void)user;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->records[i].kind == DS_ACTIVITY_COPY) {
            recorded_bytes += batch->records[i].bytes;
            batches++;
        }
}

static void test_a_recording_has_all_bytes_of_a_batch(void **state) {
    enum { COUNT = 8 };

    void *memory, *dst[COUNT];
    const void *src[COUNT];
    size_t sizes[COUNT], all = 0;
    (void)state;
    ok(ds_device_alloc(ds_cuda(0), 4096, &memory));
    for (int i = 0; i < COUNT; i++) {
        dst[i] = (char *)memory + i * 256;
        src[i] = pinned + i * 256;
        sizes[i] = 10 + (size_t)i;
        all += sizes[i];
    }
    ok(ds_activity_start(&(ds_activity_desc){ .fn = count_batches }));
    ok(ds_copy_batch(dst, src, sizes, COUNT, stream));
    ok(ds_stream_synchronize(stream));
    ok(ds_activity_stop());
    assert_true(batches == 1 || batches == COUNT);
    assert_int_equal(recorded_bytes, all);
    ok(ds_device_free(memory));
}

static ds_activity last_of[16]; /* of each kind */

static void keep_last(const ds_activity_batch *batch, void *user) {
    (void)user;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->records[i].kind < 16)
            last_of[batch->records[i].kind] = batch->records[i];
}

static void test_a_launch_is_the_cause_of_waits_for_its_events(void **state) {
    ds_graph g = new_graph();
    ds_graph_exec x;
    ds_stream other;
    ds_event e;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &other));
    ok(ds_event_create_on(ds_cuda(0), 0, NULL, &e));
    ds_graph_node n = add_fill(g, 0, NULL);
    ds_node_desc d = { .kind = DS_NODE_EVENT_RECORD };
    d.u.event = e;
    ok(ds_graph_add(g, &d, &n, 1, NULL));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_activity_start(&(ds_activity_desc){ .fn = keep_last }));
    ok(ds_fill(pinned, 1, 1, 8, other)); /* another cause, if the event had none */
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_wait_event(other, e));
    ok(ds_stream_synchronize(other));
    ok(ds_activity_stop());
    uint64_t launch = last_of[DS_ACTIVITY_GRAPH].correlation_id;
    assert_true(launch != 0);
    assert_true(last_of[DS_ACTIVITY_WAIT].cause_id == launch);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(other));
}

/* Whether the stream captures cannot be told after the wait, so the wait has no record. */
static void test_a_wait_that_may_be_captured_has_no_record(void **state) {
    ds_stream other;
    ds_event e;
    (void)state;
    memset(last_of, 0, sizeof last_of);
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &other));
    ok(ds_event_create_on(ds_cuda(0), 0, NULL, &e));
    ok(ds_event_record(e, stream));
    ok(ds_activity_start(&(ds_activity_desc){ .fn = keep_last }));
    ok(ds_stream_wait_event(other, e));
    ok(ds_stream_synchronize(other));
    ok(ds_activity_flush());
    assert_true(last_of[DS_ACTIVITY_WAIT].correlation_id != 0);
    memset(last_of, 0, sizeof last_of);
    unsigned long asks = standin_calls("cudaStreamIsCapturing");
    ok(ds_stream_wait_event(other, e));
    asks = standin_calls("cudaStreamIsCapturing") - asks;
    ok(ds_stream_synchronize(other));
    ok(ds_activity_flush());
    memset(last_of, 0, sizeof last_of);
    standin_fail_calls("cudaStreamIsCapturing", asks, 1, cudaErrorUnknown);
    ok(ds_stream_wait_event(other, e));
    assert_true(standin_failed());
    ok(ds_activity_stop());
    assert_true(last_of[DS_ACTIVITY_WAIT].correlation_id == 0);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(other));
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        T(a_child_of_an_executable_keeps_its_shape),
        T(a_node_with_much_shared_memory),
        T(a_graph_does_not_copy_between_drivers),
        T(an_update_that_cuda_refuses_names_the_node),
        T(a_child_with_objects_is_set_whole_or_not_at_all),
        T(an_executable_that_cuda_cannot_clone_is_not_changed),
        T(a_foreign_node_is_not_built_anew),
        T(an_empty_node_of_an_executable_may_be_set),
        T(a_node_needs_the_access_of_its_copy),
        T(a_capture_may_need_a_newer_driver),
        T(the_legacy_stream_has_no_capture_to_change),
        T(a_capture_that_cudart_invalidated_is_told),
        T(a_capture_of_the_cpu_driver_is_not_named),
        T(the_capture_that_forbids_a_call_is_named),
        T(a_capture_on_anothers_per_thread_stream_stays_valid),
        T(a_per_thread_capture_is_not_asked_without_its_device),
        T(a_release_beside_a_capture_needs_the_device),
        T(a_copy_of_unknown_memory_is_not_captured),
        T(a_host_function_that_a_graph_cannot_keep_never_runs),
        T(a_host_function_in_a_foreign_capture_needs_memory),
        T(a_graph_is_not_changed_after_its_capture_failed),
        T(a_node_is_not_added_before_nodes_that_cannot_be_read),
        T(a_recording_has_all_bytes_of_a_batch),
        T(a_launch_is_the_cause_of_waits_for_its_events),
        T(a_wait_that_may_be_captured_has_no_record),
    };
    return cmocka_run_group_tests_name("refused, cuda", tests, NULL, NULL);
}
