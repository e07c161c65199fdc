/* What the CUDA driver refuses in graphs, with the sentence, and what it records of batches; on the
   stand-in. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include "unit.h"
#include "kernels_ptx.h"

#include "standin/standin.h"

static ds_stream stream;
static char *pinned;

static int begin(void **state) {
    void *p;
    (void)state;
    alarm(120);
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
    ok(ds_pinned_free(pinned));
    ok(ds_stream_destroy(stream));
    ok(ds_shutdown());
    if (standin_live(report, sizeof report) != 0)
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

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        T(a_child_of_an_executable_keeps_its_shape),
        T(a_node_with_much_shared_memory),
        T(a_graph_does_not_copy_between_drivers),
        T(a_recording_has_all_bytes_of_a_batch),
    };
    return cmocka_run_group_tests_name("refused, cuda", tests, NULL, NULL);
}
