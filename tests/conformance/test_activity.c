/* Activity records: each operation once, with its stream, times and ids, in order; the callback and
   the end of a recording. */
#include "harness.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 20000 };

/* What a recording has handed over. */
static struct {
    ds_activity record[MOST];
    size_t count;
    uint64_t dropped;
    _Atomic int batches, inside, hold, call_back;
    ds_result called;
} seen;

static void keep(const ds_activity_batch *batch, void *user) {
    if (atomic_fetch_add(&seen.inside, 1))
        harness_die("two callbacks at once", DS_ERR_ILLEGAL_STATE);
    if (user != &seen)
        harness_die("another user pointer", DS_ERR_ILLEGAL_STATE);
    for (size_t i = 0; i < batch->count && seen.count < MOST; i++)
        seen.record[seen.count++] = batch->records[i];
    seen.dropped += batch->dropped;
    if (seen.call_back)
        seen.called = ds_activity_flush();
    seen.batches++;
    while (seen.hold)
        harness_nap();
    atomic_fetch_sub(&seen.inside, 1);
}

static void start_with(ds_activity_desc desc) {
    memset(&seen, 0, sizeof seen);
    desc.fn = keep;
    desc.user = &seen;
    ok(ds_activity_start(&desc));
}

static void start(void) {
    start_with((ds_activity_desc){ 0 });
}

/* Returns the records of the stream. */
static size_t records_of(ds_stream s, const ds_activity **out, size_t room) {
    size_t n = 0;
    for (size_t i = 0; i < seen.count; i++)
        if (seen.record[i].stream.id == s.id && n < room)
            out[n++] = &seen.record[i];
    return n;
}

/* All records of all streams: times are in order, and those of a stream do not overlap. */
static void expect_order(void) {
    for (size_t i = 0; i < seen.count; i++) {
        const ds_activity *a = &seen.record[i];
        assert_true(a->kind >= DS_ACTIVITY_KERNEL && a->kind <= DS_ACTIVITY_GRAPH);
        assert_int_equal(a->result, DS_OK);
        assert_true(a->correlation_id > 0);
        assert_true(a->enqueue_ns <= a->begin_ns);
        assert_true(a->begin_ns <= a->end_ns);
        for (size_t j = i; j-- > 0;) {
            const ds_activity *b = &seen.record[j];
            assert_true(b->correlation_id != a->correlation_id);
            if (b->stream.id != a->stream.id)
                continue;
            if (b->end_ns > a->begin_ns)
                fail_msg("%s ended %llu ns after the begin of %s", b->call,
                         (unsigned long long)(b->end_ns - a->begin_ns), a->call);
            break;
        }
    }
}

static void set_flag(void *flag) {
    *(_Atomic int *)flag = 1;
}

static int set_no_flag(void *at) {
    (void)at;
    return 0;
}

static void test_each_operation_has_one_record(void **state) {
    enum { SIZE = 1 << 20 };

    static const ds_activity_kind want[] = { DS_ACTIVITY_KERNEL,   DS_ACTIVITY_COPY,
                                             DS_ACTIVITY_FILL,     DS_ACTIVITY_HOST_FUNC,
                                             DS_ACTIVITY_RECORD,   DS_ACTIVITY_GRAPH,
                                             DS_ACTIVITY_HOST_FUNC };
    static const char *const calls[] = {
        "ds_kernel_launch",           "ds_copy",         "ds_fill",
        "ds_stream_launch_host_func", "ds_event_record", "ds_graph_launch",
        "ds_stream_launch_closure"
    };
    const ds_activity *a[16];
    void *host, *device;
    ds_event e;
    ds_graph g;
    ds_graph_exec x;
    ds_graph_node node;
    _Atomic int flag = 0;
    (void)state;
    harness_warm_up();
    ds_stream s = harness_stream(0, 0);
    uint64_t *h = word(1);
    ds_node_desc desc = fold_node(h, 2);
    ok(ds_pinned_alloc(SIZE, &host));
    ok(ds_device_alloc(harness_device(0), SIZE, &device));
    ok(ds_event_create(DS_EVENT_TIMING, NULL, &e));
    ok(ds_graph_create(NULL, &g));
    ok(ds_graph_add(g, &desc, NULL, 0, &node));
    ok(ds_graph_instantiate(g, NULL, &x));
    uint64_t from = now_ns();

    start();
    fold(s, h, 1);
    ok(ds_copy(device, host, SIZE, s));
    ok(ds_fill(device, 0x1234567, 4, SIZE / 4, s));
    ok(ds_stream_launch_host_func(s, set_flag, (void *)&flag, NULL));
    ok(ds_event_record(e, s));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_launch_closure(s, set_no_flag, NULL, 0, NULL));
    ok(ds_stream_synchronize(s));
    ok(ds_activity_stop());

    uint64_t to = now_ns();
    assert_int_equal(records_of(s, a, 16), 7);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(a[i]->kind, want[i]);
        assert_string_equal(a[i]->call, calls[i]);
        assert_int_equal(a[i]->device.type, harness_device(0).type);
        assert_int_equal(a[i]->device.index, harness_device(0).index);
        assert_true(a[i]->enqueue_ns >= from && a[i]->begin_ns >= from && a[i]->end_ns <= to);
        assert_int_equal(a[i]->bytes, i == 1 || i == 2 ? SIZE : 0);
        assert_true(i == 0 || a[i]->correlation_id > a[i - 1]->correlation_id);
        assert_true(a[i]->thread && a[i]->thread == a[0]->thread);
    }
    assert_int_equal(seen.dropped, 0);
    assert_non_null(a[0]->name);
    assert_int_equal(a[0]->count, 1);
    assert_int_equal(a[1]->dst_device.type, harness_device(0).type);
    assert_int_equal(a[1]->src_device.type, DS_DEVICE_HOST);
    assert_non_null(strstr(a[1]->file, "test_activity.c"));
    assert_int_equal(flag, 1);
    expect_order();
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_device_free(device));
    ok(ds_pinned_free(host));
}

static void test_small_copies_on_an_idle_stream_have_records(void **state) {
    const ds_activity *a[8];
    void *host, *device;
    (void)state;
    ds_stream s = harness_stream(0, 0);
    ok(ds_pinned_alloc(256, &host));
    ok(ds_device_alloc(harness_device(0), 256, &device));

    start();
    for (int i = 0; i < 3; i++) {
        ok(ds_copy(device, host, 256, s));
        ok(ds_stream_synchronize(s));
    }
    ok(ds_activity_stop());

    assert_int_equal(records_of(s, a, 8), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i]->kind, DS_ACTIVITY_COPY);
        assert_int_equal(a[i]->bytes, 256);
    }
    expect_order();
    ok(ds_device_free(device));
    ok(ds_pinned_free(host));
}

static void test_a_wait_lasts_until_its_event(void **state) {
    const ds_activity *a[8];
    gate g = { 0 };
    ds_event e;
    (void)state;
    harness_warm_up();
    ds_stream s = harness_stream(0, 0), t = harness_stream(0, 0);
    ok(ds_event_create(0, NULL, &e));
    uint64_t *h = word(1);

    start_with((ds_activity_desc){ .kinds = 1u << DS_ACTIVITY_WAIT | 1u << DS_ACTIVITY_KERNEL });
    gate_close(s, &g);
    gate_wait_entered(&g);
    ok(ds_event_record(e, s));
    ok(ds_stream_wait_event(t, e));
    fold(t, h, 1);
    uint64_t held = now_ns();
    harness_sleep_ms(100);
    gate_open(&g);
    ok(ds_stream_synchronize(t));
    ok(ds_activity_stop());

    assert_int_equal(records_of(t, a, 8), 2);
    assert_int_equal(a[0]->kind, DS_ACTIVITY_WAIT);
    assert_true(a[0]->end_ns >= held + 99000000);
    assert_true(a[0]->end_ns - a[0]->begin_ns >= 20000000);
    assert_int_equal(a[1]->kind, DS_ACTIVITY_KERNEL);
    for (size_t i = 0; i < seen.count; i++)
        assert_true(seen.record[i].kind == DS_ACTIVITY_WAIT ||
                    seen.record[i].kind == DS_ACTIVITY_KERNEL);
    expect_order();
    ok(ds_stream_synchronize(s));
    ok(ds_event_destroy(e));
}

static void *other_thread(void *stream) {
    ok_thread(ds_activity_push_id(77));
    ok_thread(ds_stream_launch_host_func(*(ds_stream *)stream, payload_run, &(payload){ 0 }, NULL));
    ok_thread(ds_stream_synchronize(*(ds_stream *)stream));
    return NULL;
}

static void test_records_have_the_id_that_their_thread_pushed(void **state) {
    static const uint64_t want[] = { 0, 5, 6, 5, 77, 0 };
    const ds_activity *a[8];
    payload p = { 0 };
    uint64_t id;
    (void)state;
    ds_stream s = harness_stream(0, 0);

    start();
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    ok(ds_activity_push_id(5));
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    ok(ds_activity_push_id(6));
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    ok(ds_activity_pop_id(&id));
    assert_int_equal(id, 6);
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    join(spawn(other_thread, &s));
    ok(ds_activity_pop_id(NULL));
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    ok(ds_activity_stop());

    assert_int_equal(records_of(s, a, 8), 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(a[i]->external_id, want[i]);
    assert_true(a[4]->thread != a[0]->thread);
    refused(ds_activity_pop_id(&id), DS_ERR_ILLEGAL_STATE);
    for (int i = 0; i < 64; i++)
        ok(ds_activity_push_id((uint64_t)i));
    refused(ds_activity_push_id(64), DS_ERR_ILLEGAL_STATE);
    for (int i = 64; i-- > 0;) {
        ok(ds_activity_pop_id(&id));
        assert_int_equal(id, i);
    }
}

static void *open_later(void *g) {
    harness_sleep_ms(30);
    gate_open(g);
    return NULL;
}

static void test_the_end_of_a_recording_waits_for_its_operations(void **state) {
    const ds_activity *a[300];
    gate g = { 0 };
    (void)state;
    harness_warm_up();
    ds_stream s = harness_stream(0, 0);
    uint64_t *h = word(1);

    start();
    gate_close(s, &g);
    for (int i = 0; i < 200; i++)
        fold(s, h, 1);
    pthread_t thread = spawn(open_later, &g);
    ok(ds_activity_stop());
    fold(s, h, 1);

    size_t n = records_of(s, a, 300);
    assert_true(n == 201);
    for (size_t i = 1; i < n; i++)
        assert_int_equal(a[i]->kind, DS_ACTIVITY_KERNEL);
    expect_order();
    join(thread);
    ok(ds_stream_synchronize(s));
    assert_int_equal(records_of(s, a, 300), n);
}

static void test_a_flush_hands_over_what_is_complete(void **state) {
    const ds_activity *a[8];
    gate g = { 0 };
    (void)state;
    harness_warm_up();
    ds_stream s = harness_stream(0, 0), t = harness_stream(0, 0);
    uint64_t *h = word(1), *k = word(1);

    start();
    gate_close(t, &g);
    gate_wait_entered(&g);
    fold(t, k, 1);
    fold(s, h, 1);
    ok(ds_stream_synchronize(s));
    ok(ds_activity_flush());

    assert_int_equal(records_of(s, a, 8), 1);
    assert_int_equal(records_of(t, a, 8), 0);
    gate_open(&g);
    ok(ds_stream_synchronize(t));
    ok(ds_activity_flush());
    assert_int_equal(records_of(t, a, 8), 2);
    ok(ds_activity_stop());
    assert_int_equal(records_of(t, a, 8), 2);
}

static void test_a_full_recording_counts_what_it_drops(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, 0);
    payload p = { 0 };
    start_with((ds_activity_desc){ .capacity = 16 });
    seen.hold = 1;
    for (int i = 0; i < 16; i++)
        ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    ok(ds_stream_synchronize(s));
    eventually(seen.batches);

    for (int i = 0; i < 100; i++) {
        ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
        ok(ds_stream_synchronize(s));
    }
    seen.hold = 0;
    ok(ds_activity_stop());

    assert_true(seen.dropped >= 100 - 16);
    assert_int_equal(seen.count + seen.dropped, 116);
    expect_order();
}

static void test_nodes_and_captured_operations_have_no_record(void **state) {
    const ds_activity *a[8];
    ds_graph g;
    ds_graph_exec x;
    (void)state;
    harness_warm_up();
    ds_stream s = harness_stream(0, 0);
    uint64_t *h = word(1);

    start();
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    fold(s, h, 1);
    fold(s, h, 2);
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    for (int i = 0; i < 3; i++)
        ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    ok(ds_activity_stop());

    assert_int_equal(records_of(s, a, 8), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(a[i]->kind, DS_ACTIVITY_GRAPH);
    assert_int_equal(seen.count, 3);
    expect_order();
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
}

static void test_the_callback_must_not_call_devstream(void **state) {
    payload p = { 0 };
    (void)state;
    ds_stream s = harness_stream(0, 0);

    start();
    seen.call_back = 1;
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    ok(ds_activity_stop());

    assert_int_equal(seen.called, DS_ERR_NOT_PERMITTED);
    assert_true(seen.batches > 0);
}

static void test_wrong_uses_of_recordings_are_refused(void **state) {
    (void)state;
    ok(ds_device_synchronize(harness_device(0)));
    refused(ds_activity_stop(), DS_ERR_ILLEGAL_STATE);
    refused(ds_activity_flush(), DS_ERR_ILLEGAL_STATE);
    refused(ds_activity_start(NULL), DS_ERR_INVALID_VALUE);
    refused(ds_activity_start(&(ds_activity_desc){ 0 }), DS_ERR_INVALID_VALUE);
    refused(ds_activity_start(&(ds_activity_desc){ .fn = keep, .capacity = 15 }),
            DS_ERR_INVALID_VALUE);
    refused(ds_activity_start(&(ds_activity_desc){ .fn = keep, .capacity = SIZE_MAX }),
            DS_ERR_INVALID_VALUE);
    refused(ds_activity_start(&(ds_activity_desc){ .fn = keep, .kinds = 1 }), DS_ERR_INVALID_VALUE);
    refused(ds_activity_start(&(ds_activity_desc){ .fn = keep, .kinds = 1u << 9 }),
            DS_ERR_INVALID_VALUE);
    refused(ds_activity_start(&(ds_activity_desc){ .fn = keep, .reserved = { 1 } }),
            DS_ERR_INVALID_VALUE);

    start();
    refused(ds_activity_start(&(ds_activity_desc){ .fn = keep, .user = &seen }),
            DS_ERR_ILLEGAL_STATE);
    ok(ds_activity_stop());

    assert_int_equal(seen.batches, 0);
    assert_string_equal(ds_activity_kind_get_name(DS_ACTIVITY_HOST_FUNC), "host function");
    assert_string_equal(ds_activity_kind_get_name((ds_activity_kind)99), "unknown");
}

/* An operation without a record may follow one that has a record. */
static void test_only_the_chosen_kinds_have_records(void **state) {
    enum { SIZE = 1 << 20 };

    const ds_activity *a[4];
    void *p;
    ds_event shared;
    (void)state;
    harness_restart(NULL); /* the object of the stream never ran a launch */
    harness_warm_up();
    ds_stream s = harness_stream(0, 0);
    uint64_t *h = word(1);
    ok(ds_device_alloc(harness_device(0), SIZE, &p));
    ok(ds_event_create(DS_EVENT_INTERPROCESS, NULL, &shared));
    ok(ds_stream_synchronize(s));

    start_with((ds_activity_desc){ .kinds = 1u << DS_ACTIVITY_FILL });
    for (int i = 0; i < 2; i++) {
        ok(ds_fill(p, 1, 1, SIZE, s));
        ok(ds_event_record(shared, s));
        fold(s, h, 1);
    }
    ok(ds_activity_stop());

    assert_int_equal(records_of(s, a, 4), 2);
    assert_int_equal(a[0]->kind, DS_ACTIVITY_FILL);
    assert_int_equal(a[1]->kind, DS_ACTIVITY_FILL);
    expect_order();
    ok(ds_event_destroy(shared));
    ok(ds_device_free(p));
}

static void test_the_shutdown_ends_a_recording(void **state) {
    const ds_activity *a[8];
    payload p = { 0 };
    (void)state;
    ds_stream s = harness_stream(0, 0);
    start();
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));

    harness_shutdown();

    assert_int_equal(records_of(s, a, 8), 1);
    refused(ds_activity_stop(), DS_ERR_ILLEGAL_STATE);
}

/* Streams that wait for each other, from four threads. */
enum { THREADS = 4, ROUNDS = 60 };

static struct {
    ds_stream stream[THREADS];
    ds_event event[THREADS];
    uint64_t *word[THREADS];
} mesh;

static void *mesh_thread(void *number) {
    size_t i = (size_t)(uintptr_t)number;
    payload p = { 0 };
    for (unsigned n = 0; n < ROUNDS; n++) {
        fold(mesh.stream[i], mesh.word[i], n);
        ok_thread(ds_event_record(mesh.event[i], mesh.stream[i]));
        ok_thread(ds_stream_wait_event(mesh.stream[i], mesh.event[(i + n) % THREADS]));
        ok_thread(ds_stream_launch_host_func(mesh.stream[i], payload_run, &p, NULL));
    }
    ok_thread(ds_stream_synchronize(mesh.stream[i]));
    return NULL;
}

static void test_records_of_streams_that_wait_for_each_other(void **state) {
    pthread_t thread[THREADS];
    size_t kernels = 0, functions = 0;
    (void)state;
    harness_warm_up();
    for (int i = 0; i < THREADS; i++) {
        mesh.stream[i] = harness_stream(i, 0);
        mesh.word[i] = word(1);
        ok(ds_event_create(0, NULL, &mesh.event[i]));
    }
    fold(mesh.stream[0], mesh.word[0], 1);
    ok(ds_stream_synchronize(mesh.stream[0]));

    start();
    for (uintptr_t i = 0; i < THREADS; i++)
        thread[i] = spawn(mesh_thread, (void *)i);
    for (int i = 0; i < THREADS; i++)
        join(thread[i]);
    ok(ds_activity_stop());

    for (size_t i = 0; i < seen.count; i++) {
        kernels += seen.record[i].kind == DS_ACTIVITY_KERNEL;
        functions += seen.record[i].kind == DS_ACTIVITY_HOST_FUNC;
    }
    assert_int_equal(kernels, THREADS * ROUNDS);
    assert_int_equal(functions, THREADS * ROUNDS);
    assert_int_equal(seen.dropped, 0);
    expect_order();
    for (int i = 0; i < THREADS; i++)
        ok(ds_event_destroy(mesh.event[i]));
}

static int fails(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 3;
}

static void test_operations_that_fail_are_marked(void **state) {
    const ds_activity *a[8];
    payload p = { 0 };
    gate g = { 0 };
    (void)state;
    ds_stream s = harness_stream(0, 0);
    ds_kernel k = harness_kernel("fails", fails, 0, NULL, 0, 0);

    start();
    gate_close(s, &g);
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    gate_open(&g);
    ok(ds_activity_stop());

    assert_int_equal(records_of(s, a, 8), 3);
    assert_int_equal(a[0]->result, DS_OK);
    assert_int_equal(a[1]->result, DS_ERR_FAILED);
    assert_string_equal(a[1]->name, "fails");
    assert_int_equal(a[2]->result, DS_ERR_FAILED);
    assert_int_equal(p.ran, 0);
    harness_recover(0);
    ok(ds_kernel_destroy(k));
}

static void test_a_fabric_has_no_activity(void **state) {
    ds_cpu_route route[4] = { { 0 } };
    ds_cpu_fabric fabric = { .devices = 1, .route = route };
    ds_cpu_desc cpu = { .fabric = &fabric };
    (void)state;
    harness_restart(&(ds_init_desc){ .cpu = &cpu });

    refused(ds_activity_start(&(ds_activity_desc){ .fn = keep }), DS_ERR_UNSUPPORTED);

    harness_restart(NULL);
}

static void record_in_one_way(void) {
    const ds_activity *a[64];
    void *host, *device;
    payload p = { 0 };
    ds_stream s = harness_stream(0, 0);
    uint64_t *h = word(1);
    ds_result r = ds_activity_start(&(ds_activity_desc){ .fn = keep, .user = &seen });
    if (r == DS_ERR_UNSUPPORTED) /* virtual time */
        return;
    ok(ds_activity_stop());
    ok(ds_pinned_alloc(64, &host));
    ok(ds_device_alloc(harness_device(0), 64, &device));

    start();
    for (int i = 0; i < 10; i++) {
        fold(s, h, 1);
        ok(ds_copy(device, host, 64, s));
        ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
    }
    ok(ds_activity_stop());

    assert_int_equal(records_of(s, a, 64), 30);
    assert_int_equal(p.ran, 10);
    expect_order();
    ok(ds_device_free(device));
    ok(ds_pinned_free(host));
}

static void test_each_way_to_run_work_has_records(void **state) {
    (void)state;
    harness_in_every_way(record_in_one_way);
}

const struct CMUnitTest tests_activity[] = {
    DS_TEST(test_each_operation_has_one_record, "activity"),
    DS_TEST(test_small_copies_on_an_idle_stream_have_records, "activity"),
    DS_TEST(test_a_wait_lasts_until_its_event, "activity"),
    DS_TEST(test_records_have_the_id_that_their_thread_pushed, "activity"),
    DS_TEST(test_the_end_of_a_recording_waits_for_its_operations, "activity"),
    DS_TEST(test_a_flush_hands_over_what_is_complete, "activity"),
    DS_TEST(test_a_full_recording_counts_what_it_drops, "activity"),
    DS_TEST(test_nodes_and_captured_operations_have_no_record, "activity"),
    DS_TEST(test_the_callback_must_not_call_devstream, "activity"),
    DS_TEST(test_wrong_uses_of_recordings_are_refused, "activity"),
    DS_TEST(test_only_the_chosen_kinds_have_records, "activity"),
    DS_TEST(test_the_shutdown_ends_a_recording, "activity"),
    DS_TEST(test_records_of_streams_that_wait_for_each_other, "activity"),
    DS_TEST_CPU(test_operations_that_fail_are_marked, "activity"),
    DS_TEST_CPU(test_a_fabric_has_no_activity, "activity"),
    DS_TEST_CPU(test_each_way_to_run_work_has_records, "activity"),
};
const size_t tests_activity_count = sizeof tests_activity / sizeof tests_activity[0];
