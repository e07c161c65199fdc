/* What streams, graphs, copies and layers refuse, with the sentence, and what ends with a thread or
   with devstream. On the CPU driver, and where two drivers meet, also on the stand-in. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <pthread.h>
#include <unistd.h>
#include "scarce.h"
#include "unit.h"

static ds_stream stream;

static int begin(void **state) {
    static ds_cpu_desc cpu;
    (void)state;
    alarm(120);
    cpu = (ds_cpu_desc){ .devices = 2 };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = SCARCE }));
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
    return 0;
}

static int end(void **state) {
    (void)state;
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
    return 0;
}

static ds_stream destroyed_stream(void) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_stream_destroy(s));
    return s;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static ds_graph new_graph(void) {
    ds_graph g;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &g));
    return g;
}

static void do_nothing(void *user) {
    (void)user;
}

/* A capture adds nodes to the graph, and another capture, which is older, has its own graph. */
static void test_a_graph_that_a_capture_extends_is_left_alone(void **state) {
    ds_stream other, third;
    ds_graph g = new_graph(), plain = new_graph(), out;
    ds_graph_exec x;
    ds_graph_update_info info;
    ds_node_desc child = { .kind = DS_NODE_CHILD };
    child.u.child = g;
    const char *words = "a capture adds nodes to the graph";
    (void)state;
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &other));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &third));
    ok(ds_capture_begin_to_graph(stream, g, NULL, 0, DS_CAPTURE_RELAXED));
    ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
    refused(ds_graph_destroy(g), DS_ERR_ILLEGAL_STATE, words);
    ok(ds_graph_attach(g, NULL, do_nothing));
    refused(ds_graph_clone(g, &out), DS_ERR_ILLEGAL_STATE, words);
    refused(ds_graph_add(plain, &child, NULL, 0, NULL), DS_ERR_ILLEGAL_STATE, words);
    refused(ds_graph_instantiate(g, NULL, &x), DS_ERR_ILLEGAL_STATE, words);
    refused(ds_capture_begin_to_graph(third, g, NULL, 0, DS_CAPTURE_RELAXED), DS_ERR_ILLEGAL_STATE,
            words);
    refused(ds_capture_end_recapture(other, g), DS_ERR_ILLEGAL_STATE, words);
    ok(ds_capture_end(stream, &out));
    ds_graph_exec y;
    ok(ds_graph_instantiate(plain, NULL, &y));
    ok(ds_capture_begin_to_graph(stream, g, NULL, 0, DS_CAPTURE_RELAXED));
    refused(ds_graph_exec_update(y, g, &info), DS_ERR_ILLEGAL_STATE, words);
    assert_int_equal(info.reason, DS_GRAPH_UPDATE_ERROR);
    ok(ds_capture_end(stream, &out));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(plain));
    ok(ds_stream_destroy(other));
    ok(ds_stream_destroy(third));
}

/* Streams forked into a capture may be destroyed in any order; their work must have been joined. */
static void test_forked_streams_are_destroyed_within_their_capture(void **state) {
    ds_stream fork[3];
    ds_graph g;
    (void)state;
    for (int i = 0; i < 3; i++)
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &fork[i]));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    for (int i = 0; i < 3; i++) {
        ok(ds_stream_wait_stream(fork[i], stream));
        ok(ds_stream_launch_host_func(fork[i], do_nothing, NULL, NULL));
        ok(ds_stream_wait_stream(stream, fork[i]));
    }
    ok(ds_stream_destroy(fork[1]));
    ok(ds_stream_destroy(fork[0]));
    ok(ds_stream_destroy(fork[2]));
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
}

/* Work on the legacy stream is not ordered with captures of blocking streams: it invalidates them
   all, and no others. */
static void test_the_legacy_stream_invalidates_captures_of_blocking_streams(void **state) {
    ds_stream blocking[2], elsewhere, legacy;
    ds_graph g;
    ds_stream_desc desc = { .device = ds_cpu(0), .flags = DS_STREAM_BLOCKING };
    (void)state;
    for (int i = 0; i < 2; i++)
        ok(ds_stream_create(&desc, &blocking[i]));
    desc.device = ds_cpu(1);
    ok(ds_stream_create(&desc, &elsewhere));
    ok(ds_stream_get_legacy(ds_cpu(0), &legacy));
    ok(ds_capture_begin(blocking[0], DS_CAPTURE_RELAXED));
    ok(ds_capture_begin(elsewhere, DS_CAPTURE_RELAXED));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    ok(ds_capture_begin(blocking[1], DS_CAPTURE_RELAXED));
    refused(ds_stream_launch_host_func(legacy, do_nothing, NULL, NULL), DS_ERR_CAPTURE_IMPLICIT,
            "legacy");
    for (int i = 0; i < 2; i++) {
        refused(ds_capture_end(blocking[i], &g), DS_ERR_CAPTURE_INVALIDATED, "legacy");
        ok(ds_stream_destroy(blocking[i]));
    }
    ok(ds_capture_end(elsewhere, &g));
    ok(ds_graph_destroy(g));
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_launch_host_func(legacy, do_nothing, NULL, NULL));
    ok(ds_stream_synchronize(legacy));
    ok(ds_stream_destroy(elsewhere));
}

static char dot[10000];

static int keep_dot(const char *text, size_t size, void *user) {
    (void)user;
    strncat(dot, text, size);
    return 0;
}

static int scale(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

static void test_a_drawing_names_priority_and_values_of_arguments(void **state) {
    static const ds_param params[] = { { DS_PARAM_READ_WRITE, 0, sizeof(void *) },
                                       { DS_PARAM_VALUE, 8, sizeof(uint32_t) },
                                       { DS_PARAM_FIRST, 0, sizeof(uint64_t) },
                                       { DS_PARAM_COUNT, 0, sizeof(uint64_t) } };

    struct {
        void *p;
        uint32_t v;
    } args = { NULL, 77 };

    ds_kernel k;
    ds_graph g = new_graph();
    (void)state;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "scale",
                                           .cpu_fn = scale,
                                           .args_size = sizeof args,
                                           .params = params,
                                           .param_count = 4 },
                        &k));
    ds_node_desc d = { .kind = DS_NODE_KERNEL, .priority = -2 };
    d.u.kernel =
        (ds_kernel_node){ .kernel = k, .items = 10, .args = &args, .args_size = sizeof args };
    ok(ds_graph_add(g, &d, NULL, 0, NULL));
    dot[0] = 0;
    ok(ds_graph_write_dot(g, DS_DOT_VERBOSE, keep_dot, NULL));
    if (!strstr(dot, "value 0x4d") || !strstr(dot, "priority -") || !strstr(dot, "scale"))
        fail_msg("the drawing is: %s", dot);
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
}

/* ---- copies and streams ---------------------------------------------------------------------- */

static void test_copies_name_what_is_wrong(void **state) {
    char a[8] = { 0 };
    void *pinned, *memory;
    (void)state;
    ok(ds_pinned_alloc(64, &pinned));
    ok(ds_device_alloc(ds_cpu(0), 64, &memory));
    void *dst[3] = { pinned, NULL, pinned };
    const void *src[3] = { memory, memory, memory };
    size_t sizes[3] = { 8, 8, 8 };
    refused(ds_copy_batch(dst, src, sizes, 3, stream), DS_ERR_INVALID_VALUE, "copy 1 of 3");
    refused(ds_copy_with(a, a, 8, 0, destroyed_stream()), DS_ERR_INVALID_HANDLE, "stream");
    ok(ds_stream_synchronize(stream));
    ok(ds_device_free(memory));
    ok(ds_pinned_free(pinned));
}

static void test_counters_are_zero_before_the_start(void **state) {
    ds_cpu_stats stats;
    (void)state;
    ok(ds_shutdown());
    memset(&stats, 1, sizeof stats);
    ok(ds_cpu_get_stats(&stats));
    for (size_t i = 0; i < sizeof stats; i++)
        assert_int_equal(((const char *)&stats)[i], 0);
    assert_false(ds_is_initialized());
}

/* A thread that ends with pushed streams gives them back. */
static void *push_and_end(void *user) {
    ds_stream s;
    (void)user;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_stream_push(s, 0));
    ok(ds_stream_push(stream, 0));
    ok(ds_device_push(ds_cpu(1)));
    ok(ds_stream_destroy(s)); /* the push still owns it */
    return NULL;
}

static void test_a_thread_that_ends_with_pushed_streams(void **state) {
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, push_and_end, NULL), 0);
    pthread_join(thread, NULL);
    ok(ds_stream_synchronize(stream));
}

/* ---- layers and messages --------------------------------------------------------------------- */

static void test_fault_rules_that_name_no_entry(void **state) {
    static const char *const bad[] = { "no_such_entry:1", "submit", "submit:0", "submit:x", ":1" };
    (void)state;
    ok(ds_shutdown());
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused(ds_init(&(ds_init_desc){ .layers = "fault", .fault = bad[i] }),
                DS_ERR_INVALID_VALUE, "fault rule");
        if (!strstr(ds_error_get_last(), bad[i]))
            fail_msg("%s: %s", bad[i], ds_error_get_last());
    }
}

/* Runs a function with standard error in a pipe, and returns the text. */
static const char *stderr_of(void (*fn)(void)) {
    static char text[4000];
    int to[2], before = dup(2);
    assert_int_equal(pipe(to), 0);
    fflush(stderr);
    dup2(to[1], 2);
    fn();
    fflush(stderr);
    dup2(before, 2);
    close(before);
    close(to[1]);
    ssize_t n = read(to[0], text, sizeof text - 1);
    close(to[0]);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void wait_with_site(void) {
    ok(ds_stream_synchronize(stream));
}

static void wait_without_site(void) {
    ds_site_set(NULL, 0);
    ok((ds_stream_synchronize)(stream));
}

static void test_warnings_about_waits_name_the_call(void **state) {
    (void)state;
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_WARN));
    const char *text = stderr_of(wait_with_site);
    if (!strstr(text, "test_refused.c:") || !strstr(text, "ds_stream_synchronize"))
        fail_msg("the warning is: %s", text);
    text = stderr_of(wait_without_site);
    if (strstr(text, "test_refused.c:") || !strstr(text, "ds_stream_synchronize"))
        fail_msg("the warning is: %s", text);
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_DEFAULT));
}

static ds_domain heard;
static int ends;

static void hear(const ds_range_event *e, void *user) {
    (void)user;
    if (e->kind == DS_RANGE_END) {
        heard = e->domain;
        ends++;
    }
}

static void test_the_hook_hears_the_domain_at_the_end_of_a_range(void **state) {
    ds_domain domain;
    ds_range range;
    (void)state;
    ok(ds_domain_create("a domain", &domain));
    ok(ds_range_set_hook(hear, NULL));
    ok(ds_range_start_with(&(ds_range_desc){ .text = "a range", .domain = domain }, &range));
    ok(ds_range_end(range));
    ok(ds_range_set_hook(NULL, NULL));
    assert_int_equal(ends, 1);
    assert_true(heard.id == domain.id);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void test_devstream_ends_with_memory_that_processes_share(void **state) {
    ds_pool pool;
    ds_ipc_mem_handle handle;
    void *p;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 1 << 20, .stream = stream, .pool = pool }, &p));
    ok(ds_mem_export(p, &handle));
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
}

#ifdef DEVSTREAM_CUDA
static void test_devices_of_two_drivers_do_not_reach_each_other(void **state) {
    int reaches = 1;
    (void)state;
    ok(ds_device_can_access_peer(ds_cpu(0), ds_cuda(0), &reaches));
    assert_int_equal(reaches, 0);
}
#endif

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        T(a_graph_that_a_capture_extends_is_left_alone),
        T(forked_streams_are_destroyed_within_their_capture),
        T(the_legacy_stream_invalidates_captures_of_blocking_streams),
        T(a_drawing_names_priority_and_values_of_arguments),
        T(copies_name_what_is_wrong),
        T(counters_are_zero_before_the_start),
        T(a_thread_that_ends_with_pushed_streams),
        T(fault_rules_that_name_no_entry),
        T(warnings_about_waits_name_the_call),
        T(the_hook_hears_the_domain_at_the_end_of_a_range),
        T(devstream_ends_with_memory_that_processes_share),
#ifdef DEVSTREAM_CUDA
        T(devices_of_two_drivers_do_not_reach_each_other),
#endif
    };
    return cmocka_run_group_tests_name("refused", tests, NULL, NULL);
}
