/* The binary interface: layouts of the public structs, and the words that they reserve for members
   of later versions. Structs that a function reads are refused unless these words are 0; a function
   that fills a struct sets them to 0. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "devstream_rng.h"
#include "devstream_kernel.h"
#include "devstream_check.h"
#include "devstream_trace.h"
#include "devstream_ranks.h"

#include <setjmp.h>
#include <cmocka.h>

#include "abi.h"

#define ok(call) assert_int_equal(call, DS_OK)

/* Sets the first and the last reserved word of a struct; the call must name the struct. */
#define REFUSED(type, object, call)                                                       \
    do {                                                                                  \
        const size_t words_ = sizeof(object).reserved / sizeof(object).reserved[0];       \
        for (size_t word_ = 0; word_<words_; word_ += words_> 1 ? words_ - 1 : 1) {       \
            (object).reserved[word_] = 1;                                                 \
            assert_int_equal(call, DS_ERR_INVALID_VALUE);                                 \
            if (!strstr(ds_error_get_last(), #type ".reserved is not 0"))                 \
                fail_msg("\"%s\" does not name %s.reserved", ds_error_get_last(), #type); \
            (object).reserved[word_] = 0;                                                 \
        }                                                                                 \
    } while (0)

static int nothing(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

static void on_host(void *user) {
    (void)user;
}

static void test_the_version_is_that_of_the_headers(void **state) {
    (void)state;
    char expected[20], actual[20];
    int version = ds_version_get();

    assert_false(ds_is_initialized());
    assert_int_equal(version, DEVSTREAM_VERSION);
    snprintf(expected, sizeof expected, "%d.%d.%d", DEVSTREAM_VERSION_MAJOR,
             DEVSTREAM_VERSION_MINOR, DEVSTREAM_VERSION_PATCH);
    snprintf(actual, sizeof actual, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    assert_string_equal(actual, expected);
}

/* A handle travels through a void *, as the user pointer of a callback. */
static void test_a_handle_fits_a_pointer(void **state) {
    (void)state;
    ds_stream stream;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));

    void *stored = (void *)(uintptr_t)stream.id;
    ds_stream back = { (uint64_t)(uintptr_t)stored };

    ok(ds_stream_query(back));
    ok(ds_stream_destroy(stream));
}

static void test_the_options_of_an_unknown_member_are_refused(void **state) {
    (void)state;
    ds_cpu_route routes[4] = { { 0, 0, 0, NULL } };
    ds_cpu_fabric fabric = { .devices = 1, .route = routes };
    ds_cpu_desc cpu = { 0 };
    ds_init_desc init = { 0 };

    REFUSED(ds_init_desc, init, ds_init(&init));
    init.cpu = &cpu;
    REFUSED(ds_cpu_desc, cpu, ds_init(&init));
    cpu.fabric = &fabric;
    REFUSED(ds_cpu_fabric, fabric, ds_init(&init));
}

static void test_descriptions_with_an_unknown_member_are_refused(void **state) {
    (void)state;
    ds_stream_desc stream = { 0 };
    ds_graph_desc graph = { 0 };
    ds_kernel_desc kernel = { .name = "nothing", .cpu_fn = nothing };
    ds_range_desc range = { .text = "here" };
    ds_rng_desc rng = { 0 };
    ds_pool_desc pool = { 0 };
    ds_mem_history_desc history = { 0 };
    ds_mem_config config = ds_mem_config_default();
    ds_stream a_stream;
    ds_graph a_graph;
    ds_kernel a_kernel;
    ds_range a_range;
    ds_rng a_rng;
    ds_pool a_pool;

    REFUSED(ds_stream_desc, stream, ds_stream_create(&stream, &a_stream));
    REFUSED(ds_graph_desc, graph, ds_graph_create(&graph, &a_graph));
    REFUSED(ds_kernel_desc, kernel, ds_kernel_create(&kernel, &a_kernel));
    REFUSED(ds_kernel_cuda, kernel.cuda, ds_kernel_create(&kernel, &a_kernel));
    REFUSED(ds_range_desc, range, ds_range_mark_with(&range));
    REFUSED(ds_range_desc, range, ds_range_push_with(&range));
    REFUSED(ds_range_desc, range, ds_range_start_with(&range, &a_range));
    REFUSED(ds_rng_desc, rng, ds_rng_create(&rng, &a_rng));
    REFUSED(ds_pool_desc, pool, ds_pool_create(&pool, &a_pool));
    REFUSED(ds_mem_history_desc, history, ds_mem_history_start(&history));
    REFUSED(ds_mem_config, config, ds_mem_configure(ds_cpu(0), &config));
    pool.config = &config;
    REFUSED(ds_mem_config, config, ds_pool_create(&pool, &a_pool));
}

static void test_requests_with_an_unknown_member_are_refused(void **state) {
    (void)state;
    ds_stream stream;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
    ds_mem_request request = { .size = 100, .stream = stream };
    ds_rng_fill_desc fill = { .dtype = ds_float32(), .count = 0 };
    ds_comm_options options = { 0 };
    ds_plan_desc plan = { 0 };
    ds_device devices[1] = { { DS_DEVICE_CPU, 0 } };
    ds_topology *topology;
    const ds_plan *made;
    ds_tensor *out[1];
    float x;
    int64_t shape[1] = { 1 };
    ds_tensor tensor = ds_tensor_of(&x, (ds_device){ DS_DEVICE_HOST, 0 }, ds_float32(), 1, shape);
    void *ptr;
    ok(ds_topology_create_of_text("device a\n", &topology));

    REFUSED(ds_mem_request, request, ds_mem_alloc_with(&request, &ptr));
    REFUSED(ds_rng_fill_desc, fill, ds_rng_fill((ds_rng){ 0 }, &fill, stream));
    REFUSED(ds_comm_options, options, ds_comm_broadcast(&tensor, devices, 1, &options, out));
    REFUSED(ds_plan_desc, plan, ds_plan_get(topology, &plan, &made));

    ds_topology_destroy(topology);
    ok(ds_stream_destroy(stream));
}

static void test_nodes_with_an_unknown_member_are_refused(void **state) {
    (void)state;
    ds_graph graph;
    ds_graph_node node;
    ds_kernel kernel;
    ds_graph_exec exec;
    ds_graph_exec_desc exec_desc = { 0 };
    ds_node_desc desc = { .kind = DS_NODE_EMPTY };
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &graph));
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "nothing", .cpu_fn = nothing }, &kernel));

    REFUSED(ds_node_desc, desc, ds_graph_add(graph, &desc, NULL, 0, &node));
    desc.kind = DS_NODE_KERNEL;
    desc.u.kernel = (ds_kernel_node){ .kernel = kernel, .items = 1 };
    REFUSED(ds_kernel_node, desc.u.kernel, ds_graph_add(graph, &desc, NULL, 0, &node));
    ok(ds_graph_add(graph, &desc, NULL, 0, &node));
    REFUSED(ds_kernel_node, desc.u.kernel, ds_graph_set_node(graph, node, &desc));
    desc.kind = DS_NODE_COPY;
    desc.u.copy = (ds_copy_node){ .width = 1 };
    REFUSED(ds_copy_node, desc.u.copy, ds_graph_add(graph, &desc, NULL, 0, &node));
    desc.kind = DS_NODE_FILL;
    desc.u.fill = (ds_fill_node){ .width = 1 };
    REFUSED(ds_fill_node, desc.u.fill, ds_graph_add(graph, &desc, NULL, 0, &node));
    desc.kind = DS_NODE_HOST;
    desc.u.host = (ds_host_node){ .fn = on_host };
    REFUSED(ds_host_node, desc.u.host, ds_graph_add(graph, &desc, NULL, 0, &node));
    REFUSED(ds_graph_exec_desc, exec_desc, ds_graph_instantiate(graph, &exec_desc, &exec));

    ok(ds_kernel_destroy(kernel));
    ok(ds_graph_destroy(graph));
}

/* The call fills a struct that holds garbage; its reserved words must be 0. */
#define CLEARED(type, call)                                                    \
    do {                                                                       \
        type out;                                                              \
        static const type zero;                                                \
        memset(&out, 0xA5, sizeof out);                                        \
        ok(call);                                                              \
        assert_memory_equal(out.reserved, zero.reserved, sizeof out.reserved); \
    } while (0)

static void test_reserved_words_of_results_are_zero(void **state) {
    (void)state;
    ds_stream stream;
    ds_graph graph;
    ds_graph_node node;
    ds_graph_exec exec;
    ds_node_desc desc = { .kind = DS_NODE_HOST, .u.host = { .fn = on_host } };
    ds_pool pool;
    ds_rng rng;
    ds_resource up, counted;
    void *ptr, *device_ptr;
    int on_stack = 0;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &graph));
    ok(ds_graph_add(graph, &desc, NULL, 0, &node));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool));
    ok(ds_rng_create(&(ds_rng_desc){ .device = ds_cpu(0) }, &rng));
    ok(ds_resource_create_device(ds_cpu(0), &up));
    ok(ds_resource_create_stats(&up, &counted));
    ok(ds_mem_alloc(100, stream, &ptr));
    ok(ds_device_alloc(ds_cpu(0), 100, &device_ptr));

    CLEARED(ds_backend_info, ds_backend_get_info(0, &out));
    CLEARED(ds_device_properties, ds_device_get_properties(ds_cpu(0), &out));
    CLEARED(ds_pointer_info, ds_pointer_get_info(device_ptr, &out));
    CLEARED(ds_pointer_info, ds_pointer_get_info(&on_stack, &out));
    CLEARED(ds_capture_info, ds_capture_get_info(stream, &out));
    CLEARED(ds_node_desc, ds_graph_get_node(graph, node, &out, NULL));
    CLEARED(ds_graph_update_info, ds_graph_exec_update(exec, graph, &out));
    CLEARED(ds_cpu_stats, ds_cpu_get_stats(&out));
    CLEARED(ds_mem_block, ds_mem_get_block(ptr, &out));
    CLEARED(ds_mem_config, ds_mem_get_config(ds_cpu(0), &out));
    CLEARED(ds_mem_stats, ds_mem_get_stats(ds_cpu(0), &out));
    CLEARED(ds_mem_stats, ds_pool_get_stats(pool, &out));
    CLEARED(ds_mem_pinned_stats, ds_mem_pinned_get_stats(&out));
    CLEARED(ds_resource_stats, ds_resource_get_stats(&counted, &out));
    CLEARED(ds_rng_info, ds_rng_get_info(rng, &out));

    ok(ds_mem_free(ptr));
    ok(ds_device_free(device_ptr));
    ok(ds_resource_destroy(&counted));
    ok(ds_resource_destroy(&up));
    ok(ds_rng_destroy(rng));
    ok(ds_pool_destroy(pool));
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    ok(ds_stream_destroy(stream));
}

static int end(void **state) {
    (void)state;
    return ds_shutdown() < 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_the_version_is_that_of_the_headers, end),
        cmocka_unit_test_teardown(test_a_handle_fits_a_pointer, end),
        cmocka_unit_test_teardown(test_the_options_of_an_unknown_member_are_refused, end),
        cmocka_unit_test_teardown(test_descriptions_with_an_unknown_member_are_refused, end),
        cmocka_unit_test_teardown(test_requests_with_an_unknown_member_are_refused, end),
        cmocka_unit_test_teardown(test_nodes_with_an_unknown_member_are_refused, end),
        cmocka_unit_test_teardown(test_reserved_words_of_results_are_zero, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
