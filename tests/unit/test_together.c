/* The threads of cooperative launches on the CPU driver: the call that submits the launch reports a
   thread that cannot be started, and threads are kept. The start of a thread is replaced. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

static int starts;  /* of threads since `begin` */
static int refused; /* number of the start that fails; 0: none */

static int start_thread(ds__os_thread *out, void *(*main_fn)(void *), void *user) {
    return ++starts == refused ? EAGAIN : ds__os_thread_start(out, main_fn, user);
}

#define ds__os_thread_start start_thread
#include "devstream.h"
#include "unit.h"

static _Atomic uint32_t here;

static int meet(size_t first, size_t count, const void *args) {
    uint32_t all = *(const uint32_t *)args;
    (void)first;
    (void)count;
    here++;
    while (here < all) {
    }
    return 0;
}

static const ds_device cpu = { DS_DEVICE_CPU, 0 };
static ds_kernel kernel;
static ds_stream stream;

static int begin(void **state) {
    (void)state;
    refused = 0;
    if (ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = 2 } }) < 0)
        return 1;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "meet", .cpu_fn = meet, .args_size = sizeof(uint32_t) },
        &kernel));
    ok(ds_stream_create(&(ds_stream_desc){ .device = cpu }, &stream));
    starts = 0;
    return 0;
}

static int end(void **state) {
    (void)state;
    ok(ds_kernel_destroy(kernel));
    ok(ds_stream_destroy(stream));
    return ds_shutdown() < 0;
}

static ds_result launch(uint32_t blocks) {
    ds_grid g = { .grid = { blocks }, .block = { 1 }, .flags = DS_GRID_COOPERATIVE };
    here = 0;
    return ds_kernel_launch_grid(kernel, &g, &blocks, sizeof blocks, stream);
}

static void test_a_launch_starts_the_threads_that_are_missing(void **state) {
    (void)state;

    static const struct {
        uint32_t blocks;
        int starts;
    } launches[] = { { 1, 0 }, { 3, 2 }, { 2, 2 }, { 3, 2 }, { 8, 7 }, { 5, 7 } };

    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        ok(launch(launches[i].blocks));
        ok(ds_stream_synchronize(stream));
        assert_int_equal(here, launches[i].blocks);
        assert_int_equal(starts, launches[i].starts);
    }
}

static void test_a_thread_that_does_not_start_refuses_the_launch(void **state) {
    (void)state;
    refused = 2;

    assert_int_equal(launch(4), DS_ERR_SYSTEM);
    assert_non_null(strstr(ds_error_get_last(), "thread 2 of 3"));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(here, 0);

    ok(launch(4));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(here, 4);
    assert_int_equal(starts, 4);
}

static void test_a_thread_that_does_not_start_refuses_the_node(void **state) {
    (void)state;
    uint32_t blocks = 3;
    ds_grid grid = { .grid = { 3 }, .block = { 1 }, .flags = DS_GRID_COOPERATIVE };
    ds_grid one = { .grid = { 1 }, .block = { 1 } };
    ds_node_desc d = {
        .kind = DS_NODE_KERNEL,
        .u.kernel = { .kernel = kernel, .grid = &grid, .args = &blocks, .args_size = sizeof blocks }
    };
    ds_graph g;
    ds_graph_node n;
    size_t count;
    ok(ds_graph_create(&(ds_graph_desc){ .device = cpu }, &g));

    refused = 1;
    assert_int_equal(ds_graph_add(g, &d, NULL, 0, &n), DS_ERR_SYSTEM);
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 0);
    d.u.kernel.grid = &one;
    ok(ds_graph_add(g, &d, NULL, 0, &n));
    d.u.kernel.grid = &grid;
    refused = 2;
    assert_int_equal(ds_graph_set_node(g, n, &d), DS_ERR_SYSTEM);
    ok(ds_graph_set_node(g, n, &d));

    ok(ds_graph_destroy(g));
}

static void test_a_thread_that_does_not_start_refuses_the_capture(void **state) {
    (void)state;
    ds_graph g;
    size_t count;
    refused = 1;

    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    assert_int_equal(launch(3), DS_ERR_SYSTEM);
    ok(launch(2));
    ok(ds_capture_end(stream, &g));

    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 1);
    ok(ds_graph_destroy(g));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_launch_starts_the_threads_that_are_missing, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_thread_that_does_not_start_refuses_the_launch, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_thread_that_does_not_start_refuses_the_node, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_thread_that_does_not_start_refuses_the_capture,
                                        begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
