/* Ranges as a tool of NVTX receives them, tests/support/nvtx.c, on devices of both drivers. It
   lies beside DS_TEST_PLUGIN if that is set, else one folder above this program. */
#define _GNU_SOURCE
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "core/range.h"

#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <cmocka.h>

#ifndef DS__NVTX
#error "NVTX's header was not found"
#endif

static void (*take)(char *out, size_t size);
static char got[1 << 16];

static void ok(ds_result r) {
    if (r < 0)
        fail_msg("%s", ds_error_get_last());
}

/* What the tool was told since the last time. */
static const char *told(void) {
    if (take)
        take(got, sizeof got);
    return got;
}

static void test_a_range_alone_starts_the_tool_and_no_device(void **state) {
    (void)state;
    ok(ds_range_mark("first"));
    void *tool = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_NOLOAD | RTLD_NOW);
    assert_non_null(tool); /* NVTX has loaded it */
    void *found = dlsym(tool, "nvtx_take");
    memcpy(&take, &found, sizeof take);
    assert_non_null(take);
    assert_string_equal(told(), "mark first\n");
    assert_int_equal(atomic_load(&ds__g.state), DS__COLD);
}

static void test_ranges_of_the_default_domain_are_the_plain_ones(void **state) {
    ds_range range;
    (void)state;
    told();
    assert_int_equal(ds_range_push("outer"), 0);
    assert_int_equal(ds_range_push("inner"), 1);
    ok(ds_range_mark("here"));
    ok(ds_range_start("from here", &range));
    assert_int_equal(ds_range_pop(), 1);
    assert_int_equal(ds_range_pop(), 0);
    ok(ds_range_end(range));
    assert_string_equal(told(),
                        "push outer\npush inner\nmark here\nstart from here\npop\npop\nend 1\n");
    DS_RANGE_SCOPE("scope")
        told();
    assert_string_equal(got, "push scope\n");
    assert_string_equal(told(), "pop\n");
}

static void test_attributes_reach_the_tool(void **state) {
    ds_range range;
    (void)state;
    told();
    ok(ds_range_mark_with(
        &(ds_range_desc){ .text = "bytes", .payload = { DS_PAYLOAD_U64, { .u64 = UINT64_MAX } } }));
    ok(ds_range_mark_with(
        &(ds_range_desc){ .text = "off", .payload = { DS_PAYLOAD_I64, { .i64 = -5 } } }));
    ok(ds_range_mark_with(&(ds_range_desc){ .text = "plain" }));
    assert_int_equal(
        ds_range_push_with(&(ds_range_desc){ .text = "loss",
                                             .color = 0xff00ff00,
                                             .category = 7,
                                             .payload = { DS_PAYLOAD_F64, { .f64 = 0.5 } } }),
        0);
    assert_int_equal(ds_range_pop(), 0);
    ok(ds_range_start_with(&(ds_range_desc){ .text = "red", .color = 0xffff0000 }, &range));
    ok(ds_range_end(range));
    assert_string_equal(
        told(),
        "default: mark bytes u64 18446744073709551615\ndefault: mark off i64 -5\nmark plain\n"
        "default: push loss category 7 color ff00ff00 f64 0.5\npop\ndefault: start red color "
        "ffff0000\nend 2\n");
}

static void test_domains_are_made_once_and_end_with_shutdown(void **state) {
    ds_domain a, again;
    ds_range range;
    (void)state;
    told();
    ok(ds_domain_create("io", &a));
    ok(ds_domain_create("io", &again));
    assert_true(a.id && a.id == again.id);
    assert_int_equal(ds_range_push("outside"), 0);
    assert_int_equal(ds_range_push_with(&(ds_range_desc){ .text = "read", .domain = a }), 0);
    ok(ds_range_mark_with(&(ds_range_desc){ .text = "mark", .domain = a }));
    ok(ds_range_start_with(&(ds_range_desc){ .text = "span", .domain = a }, &range));
    ok(ds_range_end(range));
    assert_int_equal(ds_range_pop_in(a), 0);
    assert_int_equal(ds_range_pop(), 0);
    DS_RANGE_SCOPE_WITH((&(ds_range_desc){ .text = "scope", .domain = a })) {
    }
    ok(ds_shutdown());
    assert_string_equal(told(), "domain io\npush outside\nio: push read\nio: mark mark\nio: start "
                                "span\nio: end 3\nio: pop\npop\n"
                                "io: push scope\nio: pop\ndomain io over\n");
    assert_int_equal(ds_range_pop_in(a), DS_ERR_INVALID_HANDLE);
    ok(ds_domain_create("io", &again));
    assert_true(again.id != a.id);
    ok(ds_shutdown());
    assert_string_equal(told(), "domain io\ndomain io over\n");
}

static void test_labels_of_gpus_their_streams_and_threads_reach_the_tool(void **state) {
    ds_stream s, legacy, cpu;
    (void)state;
    told();
    ok(ds_thread_set_label("loader"));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .label = "copies" }, &s));
    ok(ds_stream_set_label(s, "compute"));
    ok(ds_stream_set_label(s, NULL));
    ok(ds_stream_get_legacy(ds_cuda(0), &legacy));
    ok(ds_stream_set_label(legacy, "legacy"));
    ok(ds_device_set_label(ds_cuda(1), "second"));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0), .label = "no GPU's" }, &cpu));
    ok(ds_device_set_label(ds_cpu(0), "no GPU"));
    assert_string_equal(
        told(),
        "thread loader\nstream copies\nstream compute\nstream \nstream legacy\ndevice 1 second\n");
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(cpu));
    ok(ds_shutdown());
}

typedef struct lent {
    ds_stream stream;
    _Atomic int made, over;
} lent;

static void *lend(void *user) {
    lent *l = user;
    if (ds_stream_get_per_thread(ds_cuda(0), &l->stream) < 0)
        l->stream.id = 0;
    l->made = 1;
    while (!l->over)
        sched_yield();
    return NULL;
}

static void test_a_stream_that_cuda_cannot_name_is_labelled_all_the_same(void **state) {
    static lent l;
    pthread_t thread;
    char before[1024], label[20];
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, lend, &l), 0);
    while (!l.made)
        sched_yield();
    assert_true(l.stream.id != 0);
    told();
    snprintf(before, sizeof before, "%s", ds_error_get_last());
    ok(ds_stream_set_label(l.stream, "its own"));
    ok(ds_stream_get_label(l.stream, label, sizeof label));
    assert_string_equal(label, "its own");
    assert_string_equal(ds_error_get_last(), before);
    assert_string_equal(told(), "");
    l.over = 1;
    pthread_join(thread, NULL);
    ok(ds_shutdown());
}

static void in_host_function(void *user) {
    *(int *)user = ds_range_push("in a host function") == 0 && ds_range_pop() == 0;
}

static void test_ranges_stand_in_host_functions_of_both_drivers(void **state) {
    static const ds_device_type types[] = { DS_DEVICE_CUDA, DS_DEVICE_CPU };
    (void)state;
    for (int i = 0; i < 2; i++) {
        ds_stream s;
        int good = 0;
        ds_device d = { (int32_t)types[i], 0 };
        ok(ds_stream_create(&(ds_stream_desc){ .device = d }, &s));
        told();
        ok(ds_stream_launch_host_func(s, in_host_function, &good, NULL));
        ok(ds_stream_synchronize(s));
        assert_true(good);
        assert_string_equal(told(), "push in a host function\npop\n");
        ok(ds_stream_destroy(s));
    }
    ok(ds_shutdown());
}

static void *many(void *unused) {
    for (int i = 0; i < 500; i++) {
        ds_range range;
        if (ds_range_push("many") != 0 || ds_range_start("span", &range) < 0 ||
            ds_range_end(range) < 0 || ds_range_pop() != 0)
            return &take;
    }
    return unused;
}

static void test_threads_come_at_once(void **state) {
    pthread_t thread[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, many, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(thread[i], &bad);
        assert_null(bad);
    }
    told();
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_range_alone_starts_the_tool_and_no_device),
        cmocka_unit_test(test_ranges_of_the_default_domain_are_the_plain_ones),
        cmocka_unit_test(test_attributes_reach_the_tool),
        cmocka_unit_test(test_domains_are_made_once_and_end_with_shutdown),
        cmocka_unit_test(test_labels_of_gpus_their_streams_and_threads_reach_the_tool),
        cmocka_unit_test(test_a_stream_that_cuda_cannot_name_is_labelled_all_the_same),
        cmocka_unit_test(test_ranges_stand_in_host_functions_of_both_drivers),
        cmocka_unit_test(test_threads_come_at_once),
    };
    char path[4096];
    const char *plugin = getenv("DS_TEST_PLUGIN");
    long n = readlink("/proc/self/exe", path, sizeof path - 20);
    if (n <= 0)
        return 2;
    path[n] = 0;
    if (plugin && strlen(plugin) < sizeof path - 20)
        snprintf(path, sizeof path, "%s", plugin);
    for (int up = plugin ? 1 : 0; up < 2; up++)
        *strrchr(path, '/') = 0;
    strcat(path, "/nvtx.so");
    setenv("NVTX_INJECTION64_PATH", path, 1);
    return cmocka_run_group_tests_name("nvtx", tests, NULL, NULL);
}
