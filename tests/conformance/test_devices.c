/* Results and messages, backends, device names, the current device, properties, memory
   information, initialisation. */
#include "harness.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* zeroed: the current device, and what a failure leaves in an output */
static const ds_device nothing;

static int same(ds_device a, ds_device b) {
    return a.type == b.type && a.index == b.index;
}

static ds_device current(void) {
    ds_device d;
    ok(ds_device_get_current(&d));
    return d;
}

/* A device of the type under test with any index. */
static ds_device with_index(int index) {
    ds_device d = harness_device(0);
    d.index = index;
    return d;
}

static ds_device unknown_type(void) {
    return (ds_device){ 77, 0 };
}

static ds_device host(void) {
    return (ds_device){ DS_DEVICE_HOST, 0 };
}

/* ---- results and messages ---- */

static void test_every_result_has_a_name_and_a_text(void **state) {
    (void)state;
#define EXPECT(result, value, meaning)                        \
    assert_string_equal(ds_result_get_name(result), #result); \
    assert_string_equal(ds_result_get_text(result), meaning); \
    assert_int_equal(result, value);
    DS_RESULTS(EXPECT)
    assert_non_null(strstr(ds_result_get_text(DS_ERR_OUT_OF_MEMORY), "memory"));
    assert_non_null(ds_result_get_name((ds_result)-99));
    assert_non_null(ds_result_get_text((ds_result)12345));
}

static void test_an_error_names_line_and_function_of_the_call(void **state) {
    char place[60];
    (void)state;
    refused(ds_device_get_current(NULL), DS_ERR_INVALID_VALUE);
    snprintf(place, sizeof place, "test_devices.c:%d", __LINE__ - 1);
    assert_non_null(strstr(ds_error_get_last(), place));
    assert_non_null(strstr(ds_error_get_last(), "ds_device_get_current"));
}

static void test_a_plain_call_does_not_inherit_the_previous_line(void **state) {
    ds_device d;
    (void)state;
    ok(ds_device_get_current(&d));
    refused((ds_device_get_current)(NULL), DS_ERR_INVALID_VALUE);
    assert_null(strstr(ds_error_get_last(), "test_devices.c"));
    refused(ds_device_get_current(NULL), DS_ERR_INVALID_VALUE);
    refused((ds_device_get_current)(NULL), DS_ERR_INVALID_VALUE);
    assert_null(strstr(ds_error_get_last(), "test_devices.c"));
}

static void test_a_site_that_is_set_counts_for_one_call(void **state) {
    (void)state;

    ds_site_set("binding.py", 7);
    refused((ds_device_get_current)(NULL), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "binding.py:7: ds_device_get_current"));

    refused((ds_device_get_current)(NULL), DS_ERR_INVALID_VALUE);
    assert_null(strstr(ds_error_get_last(), "binding.py"));
}

static void *find_no_error_then_make_one(void *found) {
    ds_device d;
    int *lengths = found;
    lengths[0] = (int)strlen(ds_error_get_last());
    DS_IGNORE(ds_device_parse("nonsense", &d));
    lengths[1] = (int)strlen(ds_error_get_last());
    return NULL;
}

static void test_the_last_error_is_per_thread_and_outlives_successes(void **state) {
    char before[1000];
    int lengths[2];
    ds_device d;
    (void)state;
    refused(ds_device_set_current(with_index(100)), DS_ERR_DEVICE_RANGE);
    snprintf(before, sizeof before, "%s", ds_error_get_last());
    join(spawn(find_no_error_then_make_one, lengths));
    assert_int_equal(lengths[0], 0);
    assert_true(lengths[1] > 0);
    ok(ds_device_get_current(&d));
    assert_string_equal(ds_error_get_last(), before);
}

static void test_an_index_without_a_type_is_refused(void **state) {
    const ds_device second = { .index = 1 };
    ds_device before, d;
    ds_graph g;
    ds_graph_node n;
    void *p;
    (void)state;
    ok(ds_device_get_current(&before));
    ok(ds_graph_create(NULL, &g));

    refused(ds_device_set_current(second), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "the device has index 1 without a type"));
    refused(ds_device_push(second), DS_ERR_INVALID_VALUE);
    refused(ds_device_alloc(second, 64, &p), DS_ERR_INVALID_VALUE);
    ds_node_desc kernel = { .kind = DS_NODE_KERNEL, .device = second };
    refused(ds_graph_add(g, &kernel, NULL, 0, &n), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "the device has index 1 without a type"));

    ok(ds_device_get_current(&d));
    assert_int_equal(d.type, before.type);
    assert_int_equal(d.index, before.index);
    ok(ds_graph_destroy(g));
}

/* ---- backends ---- */

static void test_backends_say_what_they_have_or_why_not(void **state) {
    static const char *const names[] = { "cuda", "cpu" };
    static const ds_device_type types[] = { DS_DEVICE_CUDA, DS_DEVICE_CPU };
    (void)state;
    for (int i = 0; i < DS_BACKEND_COUNT; i++) {
        ds_backend_info info;
        int count;
        ok(ds_backend_get_info(i, &info));
        ok(ds_device_get_count(types[i], &count));
        assert_string_equal(info.name, names[i]);
        assert_int_equal(info.type, types[i]);
        assert_int_equal(info.device_count, count);
        assert_int_equal(info.available, count > 0);
        assert_non_null(strchr(info.reason, ' '));
    }
}

static void test_backends_of_other_numbers_are_refused(void **state) {
    ds_backend_info info;
    (void)state;
    refused(ds_backend_get_info(-1, &info), DS_ERR_INVALID_VALUE);
    refused(ds_backend_get_info(DS_BACKEND_COUNT, &info), DS_ERR_INVALID_VALUE);
    refused(ds_backend_get_info(0, NULL), DS_ERR_INVALID_VALUE);
}

static void test_the_report_has_a_line_per_backend_and_fits_any_size(void **state) {
    char text[1000], small[8];
    int lines = 1;
    (void)state;
    ok(ds_backend_format(text, sizeof text));
    size_t length = strlen(text);
    assert_true(length > 0);
    for (size_t i = 0; i + 1 < length; i++)
        lines += text[i] == '\n';
    assert_int_equal(lines, DS_BACKEND_COUNT);
    assert_non_null(strstr(text, "cuda"));
    assert_non_null(strstr(text, "cpu"));
    memset(small, 'x', sizeof small);
    ok(ds_backend_format(small, 5));
    assert_memory_equal(small, text, 4);
    assert_int_equal(small[4], 0);
    assert_int_equal(small[5], 'x');
    refused(ds_backend_format(NULL, 100), DS_ERR_INVALID_VALUE);
    refused(ds_backend_format(text, 0), DS_ERR_INVALID_VALUE);
}

/* ---- counts and names ---- */

static void test_device_counts_go_by_type(void **state) {
    int of_type, of_current, none = 5;
    (void)state;
    ok(ds_device_set_current(harness_device(0)));
    ok(ds_device_get_count(DS_DEVICE_CURRENT, &of_current));
    assert_int_equal(of_current, harness_all_devices());
    ok(ds_device_get_count(DS_DEVICE_CPU, &of_type));
    assert_true(of_type >= 1);
    refused(ds_device_get_count((ds_device_type)77, &none), DS_ERR_INVALID_DEVICE);
    assert_int_equal(none, 0);
    refused(ds_device_get_count(DS_DEVICE_CPU, NULL), DS_ERR_INVALID_VALUE);
}

static void test_device_names_are_read(void **state) {
    static const struct {
        const char *text;
        int type, index;
    } names[] = {
        { "cpu", DS_DEVICE_CPU, 0 },
        { "cpu:0", DS_DEVICE_CPU, 0 },
        { "CPU:0", DS_DEVICE_CPU, 0 },
        { "Cpu", DS_DEVICE_CPU, 0 },
        { "  cpu:0", DS_DEVICE_CPU, 0 },
        { "cpu:0  ", DS_DEVICE_CPU, 0 },
        { "\tcpu\t", DS_DEVICE_CPU, 0 },
        { "custom_cpu", DS_DEVICE_CPU, 0 },
        { " custom_cpu:0 ", DS_DEVICE_CPU, 0 },
        { "host", DS_DEVICE_HOST, 0 },
        { "HOST", DS_DEVICE_HOST, 0 },
        { "host:0", DS_DEVICE_HOST, 0 },
        { "cpu:1", DS_DEVICE_CPU, 1 },
        { "custom_cpu:1", DS_DEVICE_CPU, 1 },
    };

    int count;
    (void)state;
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_device_get_count(DS_DEVICE_CPU, &count));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ds_device d = { 99, 99 };
        if (names[i].index >= count)
            continue;
        ok(ds_device_parse(names[i].text, &d));
        assert_int_equal(d.type, names[i].type);
        assert_int_equal(d.index, names[i].index);
    }
}

static void test_malformed_device_names_are_refused(void **state) {
    static const char *const names[] = {
        "",
        " ",
        "\t",
        ":",
        ":0",
        "0",
        "-1",
        "cpu:",
        "cpu: ",
        "cpu:-1",
        "cpu:+1",
        "cpu:0abc",
        "cpu:abc",
        "cpu:0x1",
        "cpu 0",
        "cpu: 0",
        "cpu :0",
        "cpu:0:0",
        "cpu::0",
        "cpu:0.0",
        "cpu0",
        "cpux",
        "cpu,cpu",
        "cp",
        "c",
        "gpu1",
        "gpu:",
        "gpu:-1",
        "gpu:0abc",
        "cuda:",
        "cuda1",
        "cuda:-1",
        "cuda:0 1",
        "Custom_cpu",
        "CUSTOM_CPU:0",
        "custom_cpu:",
        "custom_cpu1",
        "custom",
        "hosts",
        "host:",
        "host:-1",
        "xla",
        "mtia:0",
        "undefined_device",
        "cpu:0\n\n0",
        "\xff\xfe",
    };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ds_device d = { 99, 99 };
        ds_result r = ds_device_parse(names[i], &d);
        if (r != DS_ERR_INVALID_DEVICE)
            fail_msg("\"%s\" gives %s", names[i], ds_result_get_name(r));
        harness_sentence(ds_error_get_last(), names[i]);
        assert_true(same(d, nothing));
    }
}

static void test_device_names_without_a_device_behind_them_are_refused(void **state) {
    ds_device d = { 99, 99 };
    int cuda, cpu;
    char range[40];
    (void)state;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &cuda));
    ok(ds_device_get_count(DS_DEVICE_CPU, &cpu));
    refused(ds_device_parse("cpu:100", &d), DS_ERR_DEVICE_RANGE);
    assert_true(same(d, nothing));
    snprintf(range, sizeof range, "%d", cpu); /* the message says how many there are */
    assert_non_null(strstr(ds_error_get_last(), range));
    refused(ds_device_parse("custom_cpu:2147483647", &d), DS_ERR_DEVICE_RANGE);
    refused_any(ds_device_parse("cpu:99999999999999999999", &d));
    refused_any(ds_device_parse("cpu:4294967296", &d));
    refused_any(ds_device_parse("host:1", &d));
    /* never a silent fallback */
    if (cuda) {
        refused(ds_device_parse("cuda:1000", &d), DS_ERR_DEVICE_RANGE);
    } else {
        refused(ds_device_parse("cuda", &d), DS_ERR_NO_DEVICE);
        refused(ds_device_parse("gpu:0", &d), DS_ERR_NO_DEVICE);
        refused(ds_device_parse(" CUDA:5 ", &d), DS_ERR_NO_DEVICE);
    }
    assert_true(same(d, nothing));
    refused(ds_device_parse(NULL, &d), DS_ERR_INVALID_VALUE);
    refused(ds_device_parse("cpu", NULL), DS_ERR_INVALID_VALUE);
}

static void test_a_name_without_an_index_means_the_current_one(void **state) {
    char name[DS_DEVICE_NAME_SIZE];
    ds_device d;
    (void)state;
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_device_format(nothing, name, sizeof name));
    *strchr(name, ':') = 0;
    ok(ds_device_parse(name, &d));
    assert_true(same(d, harness_device(1)));
    ok(ds_device_set_current(harness_device(0)));
    ok(ds_device_parse(name, &d));
    assert_true(same(d, harness_device(0)));
}

static void test_names_are_printed_as_they_are_read(void **state) {
    char name[DS_DEVICE_NAME_SIZE], again[DS_DEVICE_NAME_SIZE];
    ds_device d;
    (void)state;
    for (int i = 0; i < harness_device_count(); i++) {
        ok(ds_device_format(harness_device(i), name, sizeof name));
        ok(ds_device_parse(name, &d));
        assert_true(same(d, harness_device(i)));
    }
    ok(ds_device_format(ds_cpu(0), name, sizeof name));
    assert_string_equal(name, "cpu:0");
    ok(ds_device_format(host(), name, sizeof name));
    assert_string_equal(name, "host");
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_device_format(nothing, name, sizeof name));
    ok(ds_device_format(harness_device(1), again, sizeof again));
    assert_string_equal(name, again);
}

static void test_print_refuses_small_buffers_and_what_is_no_device(void **state) {
    char name[DS_DEVICE_NAME_SIZE] = "untouched";
    (void)state;
    ok(ds_device_format(ds_cpu(0), name, 6));
    assert_string_equal(name, "cpu:0");
    refused(ds_device_format(ds_cpu(0), name, 5), DS_ERR_INVALID_VALUE);
    refused(ds_device_format(ds_cpu(0), name, 0), DS_ERR_INVALID_VALUE);
    refused(ds_device_format(ds_cpu(0), NULL, sizeof name), DS_ERR_INVALID_VALUE);
    refused(ds_device_format(unknown_type(), name, sizeof name), DS_ERR_INVALID_DEVICE);
    assert_string_equal(name, "");
}

/* ---- the current device ---- */

static void test_set_and_get_agree(void **state) {
    (void)state;
    for (int i = harness_device_count() - 1; i >= 0; i--) {
        ok(ds_device_set_current(harness_device(i)));
        assert_true(same(current(), harness_device(i)));
        ok(ds_device_set_current(harness_device(i)));
        assert_true(same(current(), harness_device(i)));
    }
    refused(ds_device_get_current(NULL), DS_ERR_INVALID_VALUE);
}

static void test_a_zeroed_device_or_a_negative_index_sets_nothing(void **state) {
    (void)state;
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_device_set_current(nothing));
    ok(ds_device_set_current(with_index(-1)));
    ok(ds_device_set_current((ds_device){ DS_DEVICE_CURRENT, -1 }));
    assert_true(same(current(), harness_device(1)));
    ok(ds_device_push(nothing));
    assert_true(same(current(), harness_device(1)));
    ok(ds_device_push(with_index(-5)));
    assert_true(same(current(), harness_device(1)));
    ok(ds_device_pop());
    ok(ds_device_pop());
    assert_true(same(current(), harness_device(1)));
}

static void test_an_index_names_a_device_of_the_current_type(void **state) {
    int n = harness_all_devices();
    ds_stream s;
    ds_device d;
    (void)state;
    ok(ds_device_set_current(harness_device(1)));

    for (int i = 0; i < n; i++)
        assert_true(same(ds_device_at(i), with_index(i)));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_device_at(0) }, &s));
    ok(ds_stream_get_device(s, &d));
    assert_true(same(d, with_index(0)));
    refused(ds_device_set_current(ds_device_at(n)), DS_ERR_DEVICE_RANGE);
    refused(ds_device_synchronize(ds_device_at(-1)), DS_ERR_DEVICE_RANGE);

    assert_true(same(current(), harness_device(1)));
    ok(ds_device_set_current(ds_cpu(0))); /* the CPU driver is there with GPUs, too */
    assert_int_equal(ds_device_at(0).type, DS_DEVICE_CPU);
    ok(ds_device_set_current(harness_device(0)));
    ok(ds_stream_destroy(s));
}

static void test_devices_that_are_not_there_are_not_set(void **state) {
    int cuda;
    (void)state;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &cuda));
    ok(ds_device_set_current(harness_device(1)));
    refused(ds_device_set_current(with_index(100)), DS_ERR_DEVICE_RANGE);
    refused(ds_device_set_current(with_index(harness_all_devices())), DS_ERR_DEVICE_RANGE);
    refused(ds_device_set_current(unknown_type()), DS_ERR_INVALID_DEVICE);
    refused_any(ds_device_set_current(host()));
    if (!cuda)
        refused(ds_device_set_current(ds_cuda(0)), DS_ERR_NO_DEVICE);
    assert_true(same(current(), harness_device(1)));
}

static void test_a_push_that_fails_leaves_no_frame(void **state) {
    (void)state;
    ok(ds_device_set_current(harness_device(0)));
    refused(ds_device_push(with_index(100)), DS_ERR_DEVICE_RANGE);
    refused(ds_device_push(unknown_type()), DS_ERR_INVALID_DEVICE);
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
    ok(ds_device_push(harness_device(1)));
    assert_true(same(current(), harness_device(1)));
    ok(ds_device_pop());
    assert_true(same(current(), harness_device(0)));
}

static void test_pop_restores_the_device_at_entry(void **state) {
    ds_device zero = harness_device(0), one = harness_device(1);
    (void)state;
    ok(ds_device_set_current(one));
    ok(ds_device_push(zero));
    ok(ds_device_push(one));
    ok(ds_device_set_current(zero));
    ok(ds_device_pop());
    assert_true(same(current(), zero));
    ok(ds_device_set_current(one));
    ok(ds_device_set_current(zero));
    ok(ds_device_pop());
    assert_true(same(current(), one));
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
    assert_true(same(current(), one));
}

static void test_frames_nest_deeply(void **state) {
    enum { DEPTH = 1000 };

    (void)state;
    ok(ds_device_set_current(harness_device(1)));
    for (int i = 0; i < DEPTH; i++)
        ok(ds_device_push(harness_device(i)));
    for (int i = DEPTH - 1; i >= 0; i--) {
        assert_true(same(current(), harness_device(i)));
        ok(ds_device_pop());
    }
    assert_true(same(current(), harness_device(1)));
}

static int leave_a_scope_by_return(ds_device d) {
    DS_DEVICE_SCOPE(d) {
        if (same(current(), d))
            return 1;
    }
    return 0;
}

static void test_a_device_scope_is_left_however_the_block_is(void **state) {
    ds_device zero = harness_device(0), one = harness_device(1);
    int entered = 0;
    (void)state;
    ok(ds_device_set_current(zero));
    DS_DEVICE_SCOPE(one) {
        assert_true(same(current(), one));
        entered++;
        DS_DEVICE_SCOPE(zero) {
            assert_true(same(current(), zero));
            entered++;
            ok(ds_device_set_current(one));
        }
        assert_true(same(current(), one));
    }
    assert_true(same(current(), zero));
    assert_int_equal(entered, 2);
    DS_DEVICE_SCOPE(one) {
        if (entered)
            break;
        fail();
    }
    assert_true(same(current(), zero));
    DS_DEVICE_SCOPE(one) {
        if (entered)
            continue;
        fail();
    }
    assert_true(same(current(), zero));
    DS_DEVICE_SCOPE(one) {
        if (entered)
            goto out;
        fail();
    }
out:
    assert_true(same(current(), zero));
    assert_int_equal(leave_a_scope_by_return(one), 1);
    assert_true(same(current(), zero));
    DS_DEVICE_SCOPE(nothing) {
        assert_true(same(current(), zero));
        entered++;
    }
    assert_int_equal(entered, 3);
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
}

static void test_a_scope_of_a_missing_device_is_not_entered(void **state) {
    (void)state;
    ok(ds_device_set_current(harness_device(0)));
    DS_DEVICE_SCOPE(with_index(100))
        fail();
    harness_sentence(ds_error_get_last(), "DS_DEVICE_SCOPE");
    assert_true(same(current(), harness_device(0)));
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
}

typedef struct visitor {
    _Atomic int turn; /* even: the test's, odd: the thread's */
    ds_device first, mine;
    ds_result lone_pop;
} visitor;

static void take_turn(visitor *v, int turn) {
    while (v->turn < turn)
        harness_nap();
}

static ds_device current_there(void) {
    ds_device d;
    ok_thread(ds_device_get_current(&d));
    return d;
}

static void *visit(void *user) {
    visitor *v = user;
    v->first = current_there();
    v->lone_pop = ds_device_pop();
    ok_thread(ds_device_push(v->mine));
    v->turn = 1;
    take_turn(v, 2);
    int kept = same(current_there(), v->mine);
    ok_thread(ds_device_pop());
    if (!kept || !same(current_there(), v->first))
        v->lone_pop = DS_OK;
    v->turn = 3;
    return NULL;
}

static void test_two_threads_have_devices_and_frames_of_their_own(void **state) {
    (void)state;
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_device_push(harness_device(1)));
    visitor v = { .mine = harness_device(1) };
    pthread_t thread = spawn(visit, &v);
    take_turn(&v, 1);
    assert_int_equal(v.first.index, 0); /* not inherited */
    assert_true(same(current(), harness_device(1)));
    ok(ds_device_set_current(harness_device(0)));
    v.turn = 2;
    take_turn(&v, 3);
    join(thread);
    assert_true(same(current(), harness_device(0)));
    ok(ds_device_pop());
    assert_true(same(current(), harness_device(1)));
    assert_int_equal(v.lone_pop, DS_ERR_ILLEGAL_STATE);
}

/* ---- properties ---- */

static void test_properties_are_the_same_by_every_way_to_name_the_device(void **state) {
    ds_device_properties by_name, by_zero;
    (void)state;
    for (int i = 0; i < harness_device_count(); i++) {
        ok(ds_device_set_current(harness_device(i)));
        memset(&by_name, 0, sizeof by_name);
        memset(&by_zero, 0, sizeof by_zero);
        ok(ds_device_get_properties(harness_device(i), &by_name));
        ok(ds_device_get_properties(nothing, &by_zero));
        assert_string_equal(by_name.name, by_zero.name);
        assert_int_equal(by_name.major, by_zero.major);
        assert_int_equal(by_name.minor, by_zero.minor);
        assert_int_equal(by_name.total_memory, by_zero.total_memory);
        assert_int_equal(by_name.multiprocessors, by_zero.multiprocessors);
        assert_int_equal(by_name.unified_addressing, by_zero.unified_addressing);
        assert_string_equal(by_name.pci, by_zero.pci);
        assert_memory_equal(by_name.uuid, by_zero.uuid, 16);
        assert_true(by_name.name[0] && by_name.total_memory > 0 && by_name.multiprocessors > 0);
    }
}

static void test_a_cpu_device_has_no_capability_and_no_bus(void **state) {
    ds_device_properties p;
    (void)state;
    ok(ds_device_get_properties(harness_device(0), &p));
    assert_int_equal(p.major, 0);
    assert_int_equal(p.minor, 0);
    assert_string_equal(p.pci, "");
    assert_int_equal(p.unified_addressing, 1);
}

static void test_uuids_differ_and_print_as_36_characters(void **state) {
    ds_device_properties a, b;
    char text[40];
    (void)state;
    ok(ds_device_get_properties(harness_device(0), &a));
    ok(ds_uuid_format(a.uuid, text, 37));
    assert_int_equal(strlen(text), 36);
    for (int i = 0; i < 36; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23)
            assert_int_equal(text[i], '-');
        else
            assert_true(isxdigit((unsigned char)text[i]));
    if (harness_device_count() > 1) {
        ok(ds_device_get_properties(harness_device(1), &b));
        assert_memory_not_equal(a.uuid, b.uuid, 16);
    }
    static const unsigned char known[16] = { 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                             0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff };
    ok(ds_uuid_format(known, text, sizeof text));
    assert_string_equal(text, "00112233-4455-6677-8899-aabbccddeeff");
    refused(ds_uuid_format(a.uuid, text, 36), DS_ERR_INVALID_VALUE);
    refused(ds_uuid_format(a.uuid, NULL, 37), DS_ERR_INVALID_VALUE);
    refused(ds_uuid_format(NULL, text, 37), DS_ERR_INVALID_VALUE);
}

static int64_t attribute_of(ds_device d, ds_attribute attribute) {
    int64_t value = -1;
    ok(ds_device_get_attribute(d, attribute, &value));
    return value;
}

/* What launches are checked against, and what ds_device_properties has too. */
static void test_attributes_are_the_limits_and_properties(void **state) {
    static const struct {
        ds_attribute attribute;
        int64_t value;
    } limits[] = {
        { DS_ATTR_MAX_THREADS_PER_BLOCK, 1024 }, { DS_ATTR_MAX_BLOCK_X, 1024 },
        { DS_ATTR_MAX_BLOCK_Y, 1024 },           { DS_ATTR_MAX_BLOCK_Z, 64 },
        { DS_ATTR_MAX_GRID_X, INT_MAX },         { DS_ATTR_MAX_GRID_Y, 65535 },
        { DS_ATTR_MAX_GRID_Z, 65535 },
    };

    ds_device_properties p;
    (void)state;
    for (int i = 0; i < harness_device_count(); i++) {
        const ds_device d = harness_device(i);
        ok(ds_device_get_properties(d, &p));

        for (size_t k = 0; k < sizeof limits / sizeof *limits; k++)
            assert_int_equal(attribute_of(d, limits[k].attribute), limits[k].value);
        assert_int_equal(attribute_of(d, DS_ATTR_MULTIPROCESSORS), p.multiprocessors);
        assert_int_equal(attribute_of(d, DS_ATTR_CAPABILITY_MAJOR), p.major);
        assert_int_equal(attribute_of(d, DS_ATTR_CAPABILITY_MINOR), p.minor);
        assert_int_equal(attribute_of(d, DS_ATTR_UNIFIED_ADDRESSING), p.unified_addressing);
        assert_true(attribute_of(d, DS_ATTR_SHARED_MEMORY_PER_BLOCK_OPTIN) >=
                    attribute_of(d, DS_ATTR_SHARED_MEMORY_PER_BLOCK));
        assert_true(attribute_of(d, DS_ATTR_COPY_ENGINES) > 0);
    }
}

static void test_every_attribute_has_a_value_or_a_sentence(void **state) {
#define NUMBER(name, value, text) name,
    static const ds_attribute all[] = { DS_ATTRIBUTES(NUMBER) };
#undef NUMBER
    int known = 0;
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *name = ds_attribute_get_name(all[i]);
        int64_t value = -1;
        ds_result r = ds_device_get_attribute(harness_device(0), all[i], &value);
        known += r == DS_OK;
        assert_string_not_equal(name, "unknown");
        if (r == DS_OK)
            continue;
        assert_int_equal(r, DS_ERR_UNSUPPORTED);
        assert_int_equal(value, 0);
        assert_non_null(strstr(ds_error_get_last(), name));
    }
    assert_true(known >= 20);
    if (!harness_is_cpu())
        assert_int_equal(known, sizeof all / sizeof *all);
}

static void test_attributes_that_do_not_exist_are_refused(void **state) {
    int64_t value = 7;
    (void)state;
    refused(ds_device_get_attribute(harness_device(0), (ds_attribute)0, &value),
            DS_ERR_INVALID_VALUE);
    assert_int_equal(value, 0);
    refused(ds_device_get_attribute(harness_device(0), (ds_attribute)-1, &value),
            DS_ERR_INVALID_VALUE);
    refused(ds_device_get_attribute(harness_device(0), (ds_attribute)11111, &value),
            DS_ERR_INVALID_VALUE);
    refused(ds_device_get_attribute(harness_device(0), DS_ATTR_MULTIPROCESSORS, NULL),
            DS_ERR_INVALID_VALUE);
    refused(ds_device_get_attribute(with_index(100), DS_ATTR_MULTIPROCESSORS, &value),
            DS_ERR_DEVICE_RANGE);
    assert_string_equal(ds_attribute_get_name((ds_attribute)0), "unknown");
}

static void test_functions_of_a_device_refuse_what_is_none(void **state) {
    (void)state;
    const ds_device wrong[] = { with_index(100), with_index(-1), unknown_type(), host() };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_device d = wrong[i];
        ds_device_properties p;
        size_t free_bytes = 1, total = 1;
        int yes = 1, least = 7, greatest = 7;
        memset(&p, 1, sizeof p);
        refused_any(ds_device_get_properties(d, &p));
        assert_true(p.total_memory == 0 && p.name[0] == 0);
        refused_any(ds_device_get_memory_info(d, &free_bytes, &total));
        assert_true(free_bytes == 0 && total == 0);
        refused_any(ds_device_synchronize(d));
        refused_any(ds_device_reset(d));
        refused_any(ds_device_can_access_peer(d, harness_device(0), &yes));
        assert_int_equal(yes, 0);
        refused_any(ds_device_can_access_peer(harness_device(0), d, &yes));
        refused_any(ds_device_get_priority_range(d, &least, &greatest));
        assert_true(least == 0 && greatest == 0);
    }
    refused(ds_device_synchronize(with_index(100)), DS_ERR_DEVICE_RANGE);
    refused(ds_device_synchronize(unknown_type()), DS_ERR_INVALID_DEVICE);
    refused(ds_device_get_properties(harness_device(0), NULL), DS_ERR_INVALID_VALUE);
    refused(ds_device_can_access_peer(harness_device(0), harness_device(1), NULL),
            DS_ERR_INVALID_VALUE);
}

static void test_a_device_reaches_itself_and_queries_change_no_device(void **state) {
    (void)state;
    ok(ds_device_set_current(harness_device(0)));
    for (int i = 0; i < harness_device_count(); i++)
        for (int j = 0; j < harness_device_count(); j++) {
            int yes = -1;
            ok(ds_device_can_access_peer(harness_device(i), harness_device(j), &yes));
            assert_true(yes == 1 || (yes == 0 && i != j));
            /* the default */
            if (harness_is_cpu())
                assert_int_equal(yes, 1);
        }
    assert_true(same(current(), harness_device(0)));
}

static void test_the_priority_range_goes_from_zero_to_a_negative_number(void **state) {
    int least = 7, greatest = 7;
    (void)state;
    ok(ds_device_get_priority_range(harness_device(1), &least, &greatest));
    assert_int_equal(least, 0);
    assert_true(greatest < 0);
    if (harness_is_cpu())
        assert_int_equal(greatest, -5);
}

/* ---- memory information ---- */

static void test_memory_info_is_two_positive_numbers(void **state) {
    size_t free_bytes = 0, total = 0, again = 0;
    (void)state;
    ok(ds_device_get_memory_info(nothing, &free_bytes, &total));
    assert_true(free_bytes > 0 && total > 0 && free_bytes <= total);
    ok(ds_device_get_memory_info(harness_device(0), NULL, &again));
    assert_int_equal(again, total);
    ok(ds_device_get_memory_info(harness_device(0), &free_bytes, NULL));
    ok(ds_device_get_memory_info(harness_device(0), NULL, NULL));
}

static void test_an_allocation_takes_from_its_own_device_only(void **state) {
    enum { BYTES = 8 << 20 };

    size_t before[2], during[2], after[2], total[2], total_during[2];
    void *p;
    (void)state;
    two_devices();
    ok(ds_device_set_current(harness_device(0))); /* device 1 is not the current one */
    for (int target = 0; target < 2; target++) {
        for (int i = 0; i < 2; i++)
            ok(ds_device_get_memory_info(harness_device(i), &before[i], &total[i]));
        ok(ds_device_alloc(harness_device(target), BYTES, &p));
        for (int i = 0; i < 2; i++)
            ok(ds_device_get_memory_info(harness_device(i), &during[i], &total_during[i]));
        ok(ds_device_free(p));
        for (int i = 0; i < 2; i++)
            ok(ds_device_get_memory_info(harness_device(i), &after[i], NULL));
        assert_true(before[target] - during[target] >= BYTES && before[target] > during[target]);
        assert_int_equal(during[1 - target], before[1 - target]);
        assert_int_equal(after[target], before[target]);
        assert_int_equal(total_during[0], total[0]);
        assert_int_equal(total_during[1], total[1]);
    }
}

/* ---- synchronize and reset ---- */

static void test_device_synchronize_takes_every_way_to_name_the_device(void **state) {
    char name[DS_DEVICE_NAME_SIZE];
    ds_device d;
    (void)state;
    ok(ds_device_set_current(harness_device(0)));
    ok(ds_device_synchronize(nothing));
    ok(ds_device_synchronize(harness_device(0)));
    ok(ds_device_format(harness_device(1), name, sizeof name));
    ok(ds_device_parse(name, &d));
    ok(ds_device_synchronize(d));
    if (harness_is_cpu()) {
        ok(ds_device_parse("custom_cpu", &d));
        ok(ds_device_synchronize(d));
    }
    assert_true(same(current(), harness_device(0)));
}

static void test_device_synchronize_covers_all_kinds_of_streams(void **state) {
    uint64_t *h = zeroed_words(4);
    ds_stream s[4];
    (void)state;
    s[0] = harness_stream(0, DS_STREAM_NON_BLOCKING);
    s[1] = harness_stream(0, DS_STREAM_BLOCKING);
    ok(ds_stream_get_per_thread(harness_device(0), &s[2]));
    ok(ds_stream_get_legacy(harness_device(0), &s[3]));
    for (int i = 0; i < 4; i++) {
        gate g = { 0 };
        h[i] = 1;
        gate_close(s[i], &g);
        fold(s[i], &h[i], 5);
        gate_open(&g);
        ok(ds_device_synchronize(harness_device(0)));
        assert_int_equal(h[i], fold_host(1, 5));
        ok(ds_stream_query(s[i]));
    }
    ok(ds_stream_destroy(s[0]));
    ok(ds_stream_destroy(s[1]));
}

static void test_device_synchronize_does_not_wait_for_another_device(void **state) {
    gate g = { 0 };
    (void)state;
    two_devices();
    ds_stream other = harness_stream(1, DS_STREAM_BLOCKING);
    ok(ds_device_set_current(harness_device(1)));
    gate_close(other, &g);
    ok(ds_device_synchronize(harness_device(0))); /* a hang here is the failure */
    assert_true(same(current(), harness_device(1)));
    assert_int_equal(ds_stream_query(other), DS_NOT_READY);
    gate_open(&g);
    ok(ds_device_synchronize(nothing));
    ok(ds_stream_query(other));
    ok(ds_stream_destroy(other));
}

static void test_reset_of_a_healthy_device_drains_it_and_keeps_streams(void **state) {
    uint64_t *h = word(3);
    (void)state;
    if (!harness_is_cpu()) {
        refused(ds_device_reset(harness_device(0)), DS_ERR_UNSUPPORTED);
        return;
    }
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    for (uint64_t i = 0; i < 100; i++)
        fold(s, h, i);
    ok(ds_device_reset(harness_device(0)));
    uint64_t want = 3;
    for (uint64_t i = 0; i < 100; i++)
        want = fold_host(want, i);
    assert_int_equal(*h, want);
    fold(s, h, 7);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*h, fold_host(want, 7));
    ok(ds_stream_destroy(s));
}

/* ---- initialisation ---- */

/* The environment is put back before a test can fail, so that the next test finds the devices it
   expects. */
static int cpu_devices_with(const char *value, int *first_index) {
    char before[20];
    const char *old = getenv("DEVSTREAM_CPU_DEVICES");
    int count = -1;
    ds_device d = { 0, -1 };
    snprintf(before, sizeof before, "%s", old ? old : "");
    harness_shutdown();
    setenv("DEVSTREAM_CPU_DEVICES", value, 1);
    ds_result counted = ds_device_get_count(DS_DEVICE_CPU, &count), got = ds_device_get_current(&d),
              down = ds_shutdown();
    if (old)
        setenv("DEVSTREAM_CPU_DEVICES", before, 1);
    else
        unsetenv("DEVSTREAM_CPU_DEVICES");
    ok(counted);
    ok(got);
    ok(down);
    *first_index = d.index;
    return count;
}

static void test_the_environment_is_read_at_the_first_call_not_before(void **state) {
    int first;
    (void)state;
    ok(ds_device_set_current(harness_device(1)));
    assert_int_equal(cpu_devices_with("3", &first), 3);
    assert_int_equal(first, 0); /* a fresh start: nothing is left of the device that was set */
    assert_int_equal(cpu_devices_with("1", &first), 1);
    /* and it is not read again */
    int count = harness_device_count(), again;
    char before[20];
    snprintf(before, sizeof before, "%s", getenv("DEVSTREAM_CPU_DEVICES"));
    setenv("DEVSTREAM_CPU_DEVICES", "5", 1);
    again = harness_device_count();
    setenv("DEVSTREAM_CPU_DEVICES", before, 1);
    assert_int_equal(again, count);
}

static void test_init_configures_the_first_use_and_is_refused_after_it(void **state) {
    struct ds_cpu_desc cpu = { .devices = 4 };
    int count = 0;
    (void)state;
    harness_restart(&(ds_init_desc){ .cpu = &cpu });
    ds_result counted = ds_device_get_count(DS_DEVICE_CPU, &count), late = ds_init(NULL);
    ok(ds_shutdown());
    ok(counted);
    assert_int_equal(count, 4);
    assert_int_equal(late, DS_ERR_ILLEGAL_STATE);
    ok(ds_init(NULL));
    ok(ds_shutdown());
}

static void test_init_refuses_wrong_descriptions_and_changes_nothing(void **state) {
    struct ds_cpu_desc many = { .devices = DS_CPU_MAX_DEVICES + 1 }, negative = { .devices = -1 },
                       workers = { .workers = 257 };
    (void)state;
    harness_shutdown();
    ds_result r[] = {
        ds_init(&(ds_init_desc){ .layers = "no_such_layer" }),
        ds_init(&(ds_init_desc){ .flags = 1u << 20 }),
        ds_init(&(ds_init_desc){ .cpu = &many }),
        ds_init(&(ds_init_desc){ .cpu = &negative }),
        ds_init(&(ds_init_desc){ .cpu = &workers }),
        ds_init(&(ds_init_desc){ 0 }),
    };
    ds_result down = ds_shutdown();
    for (int i = 0; i < 5; i++)
        if (r[i] != DS_ERR_INVALID_VALUE)
            fail_msg("description %d gives %s", i, ds_result_get_name(r[i]));
    assert_int_equal(r[5], DS_OK);
    ok(down);
    int want = atoi(getenv("DEVSTREAM_CPU_DEVICES"));
    assert_int_equal(harness_device_count(), want);
}

static void test_shutdown_may_be_called_twice_and_voids_the_handles(void **state) {
    (void)state;
    harness_shutdown(); /* the first stream and event of one life against the first of the next */
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    ds_event e, f;
    ok(ds_event_create(0, NULL, &e));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    harness_shutdown();
    ok(ds_shutdown());
    refused(ds_stream_query(s), DS_ERR_INVALID_HANDLE);
    refused(ds_event_query(e), DS_ERR_INVALID_HANDLE);
    ds_stream t = harness_stream(0, DS_STREAM_NON_BLOCKING);
    ok(ds_event_create(0, NULL, &f));
    ds_result stream_query = ds_stream_query(s), event_query = ds_event_query(e);
    ok(ds_stream_destroy(t));
    ok(ds_event_destroy(f));
    assert_int_equal(stream_query, DS_ERR_INVALID_HANDLE);
    assert_int_equal(event_query, DS_ERR_INVALID_HANDLE);
}

typedef struct leak_log {
    int items, by_label;
} leak_log;

static void count_leaks(const ds_log_item *item, void *user) {
    leak_log *log = user;
    if (item->level != DS_LOG_WARNING)
        return;
    log->items++;
    if (strstr(item->text, "left-stream") || strstr(item->text, "left-event"))
        log->by_label++;
}

static void test_shutdown_reports_by_label_what_was_not_destroyed(void **state) {
    leak_log log = { 0, 0 };
    ds_event e;
    ds_stream s;
    (void)state;
    harness_restart(&(ds_init_desc){ .log_fn = count_leaks, .log_user = &log });
    ds_result made = ds_stream_create(&(ds_stream_desc){ .label = "left-stream" }, &s);
    ds_result made_too = ds_event_create(0, "left-event", &e);
    ok(ds_shutdown());
    ok(made);
    ok(made_too);
    assert_int_equal(log.by_label, 2);
    assert_int_equal(log.items, 2);
}

/* Lines that have no meaning here: peers 37 (part), 44: what is not a stream is a compile error
   in C; the rest of them is in test_current.c. torch 5: "Expected a cuda device" is a matter of
   types of devices; a wrong string is here. */

/* ---- the default device ---- */

static void *current_of_a_new_thread(void *out) {
    ok_thread(ds_device_get_current(out));
    return NULL;
}

static ds_device new_threads_device(void) {
    ds_device d;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, current_of_a_new_thread, &d), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    return d;
}

static void same_device(ds_device a, ds_device b) {
    assert_int_equal(a.type, b.type);
    assert_int_equal(a.index, b.index);
}

static void test_threads_begin_with_the_default_device(void **state) {
    (void)state;
    ds_device d, none = { 5, 5 };
    int last = harness_all_devices() - 1;
    harness_restart(NULL);
    ok(ds_device_get_default(&d));
    same_device(d, harness_device(0));
    same_device(new_threads_device(), harness_device(0));
    ok(ds_device_set_default(harness_device(last)));
    ok(ds_device_get_default(&d));
    same_device(d, harness_device(last));
    same_device(new_threads_device(), harness_device(last));
    ok(ds_device_get_current(&d)); /* the calling thread has it at once */
    same_device(d, harness_device(last));
    ok(ds_device_set_current(harness_device(0)));
    same_device(new_threads_device(), harness_device(last));
    refused(ds_device_set_default(ds_cpu(99)), DS_ERR_DEVICE_RANGE);
    refused(ds_device_set_default((ds_device){ DS_DEVICE_HOST, 0 }), DS_ERR_INVALID_DEVICE);
    refused(ds_device_get_default(NULL), DS_ERR_INVALID_VALUE);
    ok(ds_device_get_default(&none));
    same_device(none, harness_device(last));
    ok(ds_device_set_default((ds_device){ 0, 0 })); /* the current one */
    same_device(new_threads_device(), harness_device(0));
}

static void test_the_default_device_is_read_at_the_start(void **state) {
    (void)state;
    ds_device d;
    ds_init_desc desc = { .device = "cpu:0" };
    harness_restart(&desc);
    ok(ds_device_get_default(&d));
    same_device(d, ds_cpu(0));
    harness_shutdown();
    setenv("DEVSTREAM_DEVICE", "cpu:0", 1);
    ok(ds_device_get_current(&d));
    same_device(d, ds_cpu(0));
    harness_shutdown();
    static const char *const wrong[] = { "cpu:99", "gpx", "host", "cpu:0 x" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("DEVSTREAM_DEVICE", wrong[i], 1);
        refused_any(ds_device_get_default(&d));
        assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_DEVICE"));
    }
    desc.device = "cpu"; /* ds_init counts more than the environment */
    ok(ds_init(&desc));
    ok(ds_device_get_default(&d));
    same_device(d, ds_cpu(0));
    harness_shutdown();
    setenv("DEVSTREAM_DEVICE", "", 1);
    ok(ds_device_get_default(&d));
    same_device(d, harness_device(0));
    unsetenv("DEVSTREAM_DEVICE");
    harness_restart(NULL);
}

static void expect_no_cuda(void) {
    ds_backend_info info;
    ds_device d;
    int n = 5;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &n));
    assert_int_equal(n, 0);
    ok(ds_backend_get_info(0, &info));
    assert_int_equal(info.available, 0);
    assert_non_null(strstr(info.reason, "NO_CUDA"));
    ok(ds_device_get_current(&d));
    same_device(d, ds_cpu(0));
    refused(ds_device_set_current(ds_cuda(0)), DS_ERR_NO_DEVICE);
}

static void test_cuda_can_be_off(void **state) {
    (void)state;
    ds_init_desc desc = { .flags = DS_INIT_NO_CUDA };
    harness_restart(&desc);
    expect_no_cuda();
    harness_shutdown();
    setenv("DEVSTREAM_NO_CUDA", "1", 1);
    expect_no_cuda();
    harness_shutdown();
    setenv("DEVSTREAM_NO_CUDA", "0", 1);
    int n;
    ok(ds_device_get_count((ds_device_type)harness_device(0).type, &n));
    assert_int_equal(n, harness_all_devices());
    unsetenv("DEVSTREAM_NO_CUDA");
    desc.flags = 4;
    harness_shutdown();
    refused(ds_init(&desc), DS_ERR_INVALID_VALUE);
    harness_restart(NULL);
}

/* ---- handles as numbers ---- */

static void test_handles_become_even_numbers_and_back(void **state) {
    (void)state;
    uintptr_t seen[300];
    ds_event e[300];
    for (int i = 0; i < 300; i++) {
        ok(ds_event_create(0, NULL, &e[i]));
        seen[i] = ds_handle_to_number(e[i].id);
        assert_true(seen[i] != 0 && (seen[i] & 1) == 0);
        for (int k = 0; k < i; k++)
            assert_true(seen[i] != seen[k]);
    }
    for (int i = 0; i < 300; i++)
        ok(ds_event_destroy((ds_event){ ds_handle_from_number(seen[i]) }));
    assert_true(ds_handle_to_number(0) == 0 && ds_handle_from_number(0) == 0);
    uint64_t last = UINT64_C(0xffffffff7fffffff); /* the largest index and generation */
    assert_true((ds_handle_to_number(last) & 1) == 0);
    assert_true(ds_handle_from_number(ds_handle_to_number(last)) == last);
}

const struct CMUnitTest tests_devices[] = {
    DS_TEST(test_every_result_has_a_name_and_a_text, "torch 6"),
    DS_TEST(test_an_error_names_line_and_function_of_the_call, "peers a.6"),
    DS_TEST(test_a_plain_call_does_not_inherit_the_previous_line, "peers a.6"),
    DS_TEST(test_a_site_that_is_set_counts_for_one_call, "peers a.6"),
    DS_TEST(test_an_index_without_a_type_is_refused, "peers a.0"),
    DS_TEST(test_the_last_error_is_per_thread_and_outlives_successes, "peers a.6"),
    DS_TEST(test_backends_say_what_they_have_or_why_not, "devices"),
    DS_TEST(test_backends_of_other_numbers_are_refused, "devices"),
    DS_TEST(test_the_report_has_a_line_per_backend_and_fits_any_size, "devices"),
    DS_TEST(test_device_counts_go_by_type, "peers 59"),
    DS_TEST(test_threads_begin_with_the_default_device, "openreg"),
    DS_TEST(test_the_default_device_is_read_at_the_start, "openreg"),
    DS_TEST(test_cuda_can_be_off, "openreg"),
    DS_TEST(test_handles_become_even_numbers_and_back, "openreg"),
    DS_TEST(test_device_names_are_read, "peers a.5 37 46"),
    DS_TEST(test_malformed_device_names_are_refused, "peers a.5 59, torch 5"),
    DS_TEST(test_device_names_without_a_device_behind_them_are_refused, "peers a.5 26 59, torch 5"),
    DS_TEST(test_a_name_without_an_index_means_the_current_one, "peers a.5"),
    DS_TEST(test_names_are_printed_as_they_are_read, "peers a.5"),
    DS_TEST(test_print_refuses_small_buffers_and_what_is_no_device, "peers a.5"),
    DS_TEST(test_set_and_get_agree, "peers 21, torch 10"),
    DS_TEST(test_a_zeroed_device_or_a_negative_index_sets_nothing, "peers 31, torch 9"),
    DS_TEST(test_an_index_names_a_device_of_the_current_type, "devices"),
    DS_TEST(test_devices_that_are_not_there_are_not_set, "peers 24 26 59"),
    DS_TEST(test_a_push_that_fails_leaves_no_frame, "peers 24"),
    DS_TEST(test_pop_restores_the_device_at_entry, "peers 22, torch 10 11"),
    DS_TEST(test_frames_nest_deeply, "peers 21"),
    DS_TEST(test_a_device_scope_is_left_however_the_block_is, "peers 21 22 31, torch 9 10 11"),
    DS_TEST(test_a_scope_of_a_missing_device_is_not_entered, "peers 24"),
    DS_TEST(test_two_threads_have_devices_and_frames_of_their_own, "peers 23"),
    DS_TEST(test_properties_are_the_same_by_every_way_to_name_the_device, "torch 1 2 3"),
    DS_TEST_CPU(test_a_cpu_device_has_no_capability_and_no_bus, "torch 2 3"),
    DS_TEST(test_uuids_differ_and_print_as_36_characters, "torch 4"),
    DS_TEST(test_attributes_are_the_limits_and_properties, "devices"),
    DS_TEST(test_every_attribute_has_a_value_or_a_sentence, "devices"),
    DS_TEST(test_attributes_that_do_not_exist_are_refused, "devices"),
    DS_TEST(test_functions_of_a_device_refuse_what_is_none, "peers 59, torch 12"),
    DS_TEST(test_a_device_reaches_itself_and_queries_change_no_device, "devices"),
    DS_TEST(test_the_priority_range_goes_from_zero_to_a_negative_number, "peers b.11, torch 24"),
    DS_TEST(test_memory_info_is_two_positive_numbers, "peers 25"),
    DS_TEST(test_an_allocation_takes_from_its_own_device_only, "torch 13 14"),
    DS_TEST(test_device_synchronize_takes_every_way_to_name_the_device, "peers 38 46, torch 12"),
    DS_TEST(test_device_synchronize_covers_all_kinds_of_streams, "peers 52 b.2"),
    DS_TEST(test_device_synchronize_does_not_wait_for_another_device, "peers 27"),
    DS_TEST(test_reset_of_a_healthy_device_drains_it_and_keeps_streams, "devices"),
    DS_TEST_CPU(test_the_environment_is_read_at_the_first_call_not_before, "torch 7 8"),
    DS_TEST_CPU(test_init_configures_the_first_use_and_is_refused_after_it, "torch 7"),
    DS_TEST_CPU(test_init_refuses_wrong_descriptions_and_changes_nothing, "initialisation"),
    DS_TEST(test_shutdown_may_be_called_twice_and_voids_the_handles, "initialisation"),
    DS_TEST(test_shutdown_reports_by_label_what_was_not_destroyed, "initialisation"),
};
const size_t tests_devices_count = sizeof tests_devices / sizeof *tests_devices;
