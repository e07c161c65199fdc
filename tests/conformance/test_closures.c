/* Closures: functions with a payload of their own, which run on workers. */
#include "harness.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static ds_stream new_stream(void) {
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    return s;
}

/* ---- payloads ---- */

static int run_payload(void *at) {
    payload_run(at);
    return 0;
}

typedef struct tally {
    unsigned sum; /* plain: the stream orders the accesses */
    int runs;
    int destroyed;
    int misaligned;
} tally;

/* The first words of a payload; `size` bytes of pattern follow. */
typedef struct box {
    tally *t;
    int number;
    int size;
    unsigned char bytes[240];
} box;

static int run_box(void *at) {
    box *b = at;
    b->t->misaligned += ((uintptr_t)at & 15) != 0;
    b->t->runs++;
    b->t->sum = b->t->sum * 3 + (unsigned)b->number;
    for (int i = 0; i < b->size; i++)
        if (b->bytes[i] != (unsigned char)(b->number + i))
            b->t->sum = UINT_MAX;
    b->number = -5; /* a payload is the closure's own */
    return 0;
}

static void end_box(void *at) {
    box *b = at;
    if (b->number == -5) /* the one that fn had */
        b->t->destroyed++;
}

static void test_payloads_of_every_size_are_copied_and_kept_in_order(void **state) {
    (void)state;
    tally t = { 0 };
    ds_stream s = new_stream();
    unsigned sum = 0;
    int n = 0;
    gate g = { 0 };
    gate_close(s, &g);
    for (int size = 0; size <= 240; size++, n++) {
        box b = { &t, n, size, { 0 } };
        for (int i = 0; i < size; i++)
            b.bytes[i] = (unsigned char)(n + i);
        ok(ds_stream_launch_closure(s, run_box, &b, offsetof(box, bytes) + (size_t)size, end_box));
        memset(&b, 0xee, sizeof b);
        sum = sum * 3 + (unsigned)n;
    }
    assert_int_equal(t.runs, 0);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    assert_int_equal(t.runs, 241);
    assert_int_equal(t.sum, sum);
    assert_int_equal(t.destroyed, 241);
    assert_int_equal(t.misaligned, 0);
    ok(ds_stream_destroy(s));
}

static void test_a_payload_without_a_size_is_the_argument(void **state) {
    (void)state;
    static payload p;
    memset(&p, 0, sizeof p);
    ds_stream s = new_stream();
    ok(ds_stream_launch_closure(s, run_payload, &p, 0, payload_destroy));
    ok(ds_stream_launch_closure(s, run_payload, &p, 0, NULL));
    ok(ds_stream_synchronize(s));
    assert_int_equal(p.ran, 2);
    assert_int_equal(p.destroyed, 1);
    ok(ds_stream_destroy(s));
}

static int take_value(void *at) {
    int **values = at;
    *values[1] = *values[0];
    return 0;
}

/* Closures see the copies before them, and work after them sees theirs. */
static void test_closures_are_ordered_with_other_work(void **state) {
    (void)state;
    ds_stream s = new_stream(), t = new_stream();
    void *pinned, *dev;
    ok(ds_pinned_alloc(64, &pinned));
    ok(ds_device_alloc(harness_device(0), 64, &dev));
    int *at = pinned;
    for (int i = 1; i < 200; i++) {
        int *values[2] = { &at[0], &at[1] };
        at[2] = i;
        ok(ds_copy(dev, &at[2], 4, s));
        ok(ds_copy(&at[0], dev, 4, s));
        ok(ds_stream_launch_closure(s, take_value, values, sizeof values, NULL));
        ok(ds_stream_wait_stream(t, s));
        ok(ds_copy(&at[3], &at[1], 4, t));
        ok(ds_stream_synchronize(t));
        assert_int_equal(at[3], i);
    }
    ok(ds_pinned_free(pinned));
    ok(ds_device_free(dev));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- destructors ---- */

typedef struct marked {
    payload *p;
    const void *given;
} marked;

static int run_marked(void *m) {
    payload_run(((marked *)m)->p);
    return 0;
}

static void end_marked(void *m) {
    marked *at = m;
    if (at->given && at->given != m)
        harness_die("the destructor of a refused call gets another payload", DS_OK);
    payload_destroy(at->p);
}

static void test_a_refused_closure_ends_its_payload_at_once(void **state) {
    (void)state;
    static payload p;
    ds_stream s = new_stream();
    char big[DS_CLOSURE_PAYLOAD_MAX + 1] = { 0 };
    marked m = { &p, &m };
    memset(&p, 0, sizeof p);
    memcpy(big, &m, sizeof m);
    ((marked *)(void *)big)->given = big;
    refused(ds_stream_launch_closure((ds_stream){ 0 }, run_marked, &m, sizeof m, end_marked),
            DS_ERR_INVALID_HANDLE);
    refused(ds_stream_launch_closure(s, NULL, &m, sizeof m, end_marked), DS_ERR_INVALID_VALUE);
    refused(ds_stream_launch_closure(s, run_marked, big, sizeof big, end_marked),
            DS_ERR_INVALID_VALUE);
    assert_int_equal(p.destroyed, 3);
    refused(ds_stream_launch_closure(s, run_marked, NULL, 8, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_stream_synchronize(s));
    assert_int_equal(p.ran, 0);
    ok(ds_stream_destroy(s));
}

static int explode(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 7;
}

static void test_a_failure_skips_the_closure_but_not_its_destructor(void **state) {
    (void)state;
    static payload p[3];
    memset(p, 0, sizeof p);
    gate g = { 0 };
    ds_stream s = new_stream();
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    gate_close(s, &g);
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    marked m = { &p[0], NULL };
    ok(ds_stream_launch_closure(s, run_marked, &m, sizeof m, end_marked));
    ok(ds_stream_launch_closure(s, run_payload, &p[1], 0, payload_destroy));
    gate_open(&g);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    if (harness_is_cpu())
        await_destroyed(p, 2);
    refused(ds_stream_launch_closure(s, run_payload, &p[2], 0, payload_destroy), DS_ERR_FAILED);
    assert_int_equal(p[2].destroyed, 1);
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    harness_recover(0);
    await_destroyed(p, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(p[i].ran, 0);
}

static int fail_with(void *status) {
    return *(int *)status;
}

static void test_a_status_fails_the_device(void **state) {
    (void)state;
    static payload p;
    memset(&p, 0, sizeof p);
    ds_stream s = new_stream();
    int status = 41;
    gate g = { 0 };
    gate_close(s, &g);
    ok(ds_stream_launch_closure(s, fail_with, &status, sizeof status, NULL));
    ok(ds_stream_launch_closure(s, run_payload, &p, 0, payload_destroy));
    gate_open(&g);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    assert_non_null(strstr(ds_error_get_last(), "41"));
    assert_non_null(strstr(ds_error_get_last(), "test_closures.c"));
    await_destroyed(&p, 1);
    assert_int_equal(p.ran, 0);
    ended(ds_stream_destroy(s));
    harness_recover(0);
}

static _Atomic int errors;

static void count_errors(const ds_log_item *item, void *user) {
    (void)user;
    if (item->level == DS_LOG_ERROR && strstr(item->text, "closure returned 41"))
        atomic_fetch_add(&errors, 1);
}

static void test_a_status_in_a_graph_is_logged(void **state) {
    (void)state;
    ds_init_desc init = { .log_fn = count_errors };
    harness_restart(&init);
    atomic_store(&errors, 0);
    ds_stream s = new_stream();
    ds_graph g;
    ds_graph_exec x;
    int status = 41;
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_stream_launch_closure(s, fail_with, &status, sizeof status, NULL));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(atomic_load(&errors), 2);
    ok(ds_graph_destroy(g));
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(s));
    harness_restart(NULL);
}

static void test_closures_end_with_shutdown(void **state) {
    (void)state;
    static payload p[20];
    memset(p, 0, sizeof p);
    ds_stream s = new_stream();
    for (int i = 0; i < 20; i++)
        ok(ds_stream_launch_closure(s, run_payload, &p[i], 0, payload_destroy));
    ok(ds_stream_destroy(s));
    harness_shutdown();
    for (int i = 0; i < 20; i++) {
        assert_int_equal(p[i].ran, 1);
        assert_int_equal(p[i].destroyed, 1);
    }
}

/* ---- captures ---- */

static void test_a_captured_closure_runs_with_each_launch(void **state) {
    (void)state;
    static payload p[2];
    memset(p, 0, sizeof p);
    ds_stream s = new_stream();
    ds_graph g;
    ds_graph_exec x;
    marked m = { &p[0], NULL };
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_stream_launch_closure(s, run_marked, &m, sizeof m, end_marked));
    ok(ds_stream_launch_closure(s, run_payload, &p[1], 0, payload_destroy));
    ok(ds_capture_end(s, &g));
    memset(&m, 0xee, sizeof m);
    assert_int_equal(p[0].ran + p[0].destroyed, 0);
    ok(ds_graph_instantiate(g, NULL, &x));
    for (int i = 0; i < 3; i++)
        ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(p[0].ran, 3);
    assert_int_equal(p[1].ran, 3);
    assert_int_equal(p[0].destroyed + p[1].destroyed, 0);
    ok(ds_graph_destroy(g));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(p[0].ran, 4);
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(s));
    harness_shutdown();
    AWAIT(atomic_load(&p[0].destroyed) && atomic_load(&p[1].destroyed));
    assert_int_equal(p[0].destroyed, 1);
    assert_int_equal(p[1].destroyed, 1);
}

/* ---- many ---- */

enum { MANY = 3000, STREAMS = 4 };

typedef struct count_of {
    long *sum;
    long by;
} count_of;

static int add_to(void *at) {
    count_of *c = at;
    *c->sum += c->by;
    return 0;
}

static void *launch_many(void *unused) {
    long sum = 0, wanted = 0;
    ds_stream s;
    (void)unused;
    ok_thread(ds_stream_create(NULL, &s));
    for (long i = 0; i < MANY; i++) {
        count_of c = { &sum, i };
        ok_thread(ds_stream_launch_closure(s, add_to, &c, sizeof c, NULL));
        wanted += i;
    }
    ok_thread(ds_stream_synchronize(s));
    if (sum != wanted)
        harness_die("closures were lost", DS_OK);
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_many_closures_of_many_threads(void **state) {
    (void)state;
    pthread_t thread[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, launch_many, NULL), 0);
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

const struct CMUnitTest tests_closures[] = {
    DS_TEST(test_payloads_of_every_size_are_copied_and_kept_in_order, "openreg"),
    DS_TEST(test_a_payload_without_a_size_is_the_argument, "openreg"),
    DS_TEST(test_closures_are_ordered_with_other_work, "openreg"),
    DS_TEST(test_a_refused_closure_ends_its_payload_at_once, "openreg"),
    DS_TEST_ALONE(test_a_failure_skips_the_closure_but_not_its_destructor, "openreg"),
    DS_TEST_CPU(test_a_status_fails_the_device, "openreg"),
    DS_TEST(test_a_status_in_a_graph_is_logged, "openreg"),
    DS_TEST(test_closures_end_with_shutdown, "openreg"),
    DS_TEST(test_a_captured_closure_runs_with_each_launch, "openreg"),
    DS_TEST(test_many_closures_of_many_threads, "openreg"),
};
const size_t tests_closures_count = sizeof tests_closures / sizeof tests_closures[0];
