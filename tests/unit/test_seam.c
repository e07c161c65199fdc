/* The seams by which modules attach to the core. What the allocator gives of a capture to its graph
   (ds__capture_attachment): one object for each capture and key, made at the first use, released
   with the last that may still run the graph. And the list of modules with its hooks
   (base/module.h). */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "core/capture.h"
#include "base/module.h"

#include <setjmp.h>
#include <cmocka.h>

static int made;
static _Atomic int released; /* CUDA releases on a thread of its own */
static const char key_a, key_b;

static ds_result make(uint64_t capture, void *user, void **out) {
    made++;
    *out = user;
    *(uint64_t *)user = capture;
    return DS_OK;
}

static ds_result refuse(uint64_t capture, void *user, void **out) {
    (void)capture;
    (void)user;
    *out = NULL;
    return ds__fail(DS_ERR_OUT_OF_MEMORY, "no pool");
}

static void release(void *user) {
    (void)user;
    released++;
}

static void ok(ds_result r) {
    if (r < 0)
        fail_msg("%s", ds_error_get_last());
}

static ds_result attach(ds_stream stream, const void *key, ds__attachment_fn fn, uint64_t *pool,
                        void **out) {
    ds__stream *s = ds__stream_pin(stream);
    assert_non_null(s);
    ds__object *kept;
    ds__attachment a = { .key = key, .make_fn = fn, .user = pool, .release_fn = release };
    ds_result r = ds__capture_attachment(s, &a, &kept);
    ds__stream_unpin(s);
    *out = kept ? kept->user : NULL;
    ds__object_unref(kept);
    return r;
}

static void await_released(int count) {
    struct timespec t = { 0, 1000000 };
    for (int i = 0; i < 10000 && released < count; i++)
        syscall(SYS_nanosleep, &t, NULL);
    assert_int_equal(released, count);
}

static int begin(void **state) {
    (void)state;
    made = 0;
    released = 0;
    return 0;
}

static int end(void **state) {
    (void)state;
    return ds_shutdown() < 0;
}

static void test_a_stream_that_does_not_capture_has_no_object(void **state) {
    ds_stream s;
    void *got = &s;
    uint64_t pool = 0;
    (void)state;
    ok(ds_stream_create(NULL, &s));
    ok(attach(s, &key_a, make, &pool, &got));
    assert_null(got);
    assert_int_equal(made, 0);
}

static void test_a_capture_has_one_object_per_key_on_all_its_streams(void **state) {
    ds_stream s, t;
    ds_event fork;
    ds_graph graph;
    ds_capture_info info;
    uint64_t a = 0, b = 0, other = 0;
    void *got;
    (void)state;
    ok(ds_stream_create(NULL, &s));
    ok(ds_stream_create(NULL, &t));
    ok(ds_event_create(0, NULL, &fork));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_capture_get_info(s, &info));
    ok(attach(s, &key_a, make, &a, &got));
    assert_ptr_equal(got, &a);
    assert_true(a == info.id);
    ok(ds_event_record(fork, s));
    ok(ds_stream_wait_event(t, fork));
    ok(attach(t, &key_a, make, &other, &got));
    assert_ptr_equal(got, &a);
    ok(attach(t, &key_b, make, &b, &got));
    assert_ptr_equal(got, &b);
    assert_int_equal(made, 2);
    ok(ds_capture_end(s, &graph));
    ok(attach(s, &key_a, make, &other, &got));
    assert_null(got);
    assert_int_equal(released, 0);
    ok(ds_graph_destroy(graph));
    await_released(2);
}

static void test_the_next_capture_has_an_object_of_its_own(void **state) {
    ds_stream s;
    ds_graph graph[2];
    uint64_t pool[2] = { 0, 0 };
    void *got;
    (void)state;
    ok(ds_stream_create(NULL, &s));
    for (int i = 0; i < 2; i++) { /* the second one into the same graph */
        ok(i ? ds_capture_begin_to_graph(s, graph[0], NULL, 0, DS_CAPTURE_RELAXED)
             : ds_capture_begin(s, DS_CAPTURE_RELAXED));
        ok(attach(s, &key_a, make, &pool[i], &got));
        assert_ptr_equal(got, &pool[i]);
        ok(ds_capture_end(s, &graph[i]));
    }
    assert_true(pool[0] != pool[1]);
    assert_true(graph[0].id == graph[1].id);
    ok(ds_graph_destroy(graph[0]));
    await_released(2);
}

static void nothing(void *user) {
    (void)user;
}

static void hold(void *user) {
    _Atomic int *held = user;
    while (atomic_load(held)) {
        struct timespec t = { 0, 100000 };
        syscall(SYS_nanosleep, &t, NULL);
    }
}

static void test_the_object_lives_until_the_last_launch_is_over(void **state) {
    ds_stream s, u;
    ds_graph graph, clone;
    ds_graph_exec exec;
    uint64_t pool = 0;
    _Atomic int held = 1;
    void *got;
    (void)state;
    ok(ds_stream_create(NULL, &s));
    ok(ds_stream_create(NULL, &u));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(attach(s, &key_a, make, &pool, &got));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_clone(graph, &clone));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    ok(ds_stream_launch_host_func(u, hold, &held, NULL));
    ok(ds_graph_launch(exec, u));
    ok(ds_graph_destroy(graph));
    ok(ds_graph_destroy(clone));
    ok(ds_graph_exec_destroy(exec));
    assert_int_equal(released, 0);
    atomic_store(&held, 0);
    ok(ds_stream_synchronize(u));
    await_released(1);
}

static void test_an_object_that_cannot_be_made_leaves_the_capture_alone(void **state) {
    ds_stream s;
    ds_graph graph;
    uint64_t pool = 0;
    void *got;
    (void)state;
    ok(ds_stream_create(NULL, &s));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    assert_int_equal(attach(s, &key_a, refuse, &pool, &got), DS_ERR_OUT_OF_MEMORY);
    assert_null(got);
    assert_non_null(strstr(ds_error_get_last(), "no pool"));
    ok(attach(s, &key_a, make, &pool, &got));
    assert_ptr_equal(got, &pool);
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_destroy(graph));
    await_released(1);
}

static void test_a_capture_that_fails_releases_its_object(void **state) {
    ds_stream s;
    ds_graph graph;
    uint64_t pool = 0;
    void *got;
    (void)state;
    ok(ds_stream_create(NULL, &s));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(attach(s, &key_a, make, &pool, &got));
    assert_int_equal(ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
    ok(attach(s, &key_b, make, &pool, &got)); /* invalid: nothing is made for it any more */
    assert_null(got);
    assert_int_equal(ds_capture_end(s, &graph), DS_ERR_CAPTURE_INVALIDATED);
    await_released(1);
}

static int ended[DS__MODULES], ends;

static void end_first(void) {
    ended[ends++] = 0;
}

static void end_last(void) {
    ended[ends++] = DS__MODULES - 1;
}

static void free_own(void *own) {
    ++*(int *)own;
}

/* A module uses those before it, so it ends before them; what it has of threads and devices is
   its own. */
static void test_modules_end_from_the_last_to_the_first(void **state) {
    static const ds__module first = { .shutdown = end_first, .thread_end = free_own };
    static const ds__module last = { .shutdown = end_last };
    static const ds__module late = { .shutdown = end_last };
    int freed = 0;
    void *own[DS__MODULES] = { &freed };
    (void)state;
    ends = 0;
    ds__module_add(0, &first);
    ds__module_add(DS__MODULES - 1, &last);
    ds__module_add(0, &late); /* it has started already */
    atomic_store(ds__module_device(0, 1, 0), &freed);
    assert_null(atomic_load(ds__module_device(1, 1, 0)));
    ds__modules_thread_end(own);
    ds__modules_shutdown();
    assert_int_equal(freed, 1);
    assert_int_equal(ends, 2);
    assert_int_equal(ended[0], DS__MODULES - 1);
    assert_int_equal(ended[1], 0);
    ds__modules_forget();
    assert_null(atomic_load(ds__module_device(0, 1, 0)));
    ds__modules_shutdown();
    assert_int_equal(ends, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_stream_that_does_not_capture_has_no_object, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_capture_has_one_object_per_key_on_all_its_streams,
                                        begin, end),
        cmocka_unit_test_setup_teardown(test_the_next_capture_has_an_object_of_its_own, begin, end),
        cmocka_unit_test_setup_teardown(test_the_object_lives_until_the_last_launch_is_over, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_an_object_that_cannot_be_made_leaves_the_capture_alone,
                                        begin, end),
        cmocka_unit_test_setup_teardown(test_a_capture_that_fails_releases_its_object, begin, end),
        cmocka_unit_test(test_modules_end_from_the_last_to_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
