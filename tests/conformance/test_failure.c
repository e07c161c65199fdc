/* Failures: sticky for their device, reported with their first cause, and nothing hangs or
   leaks. */
#include "harness.h"
#include "locks.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static ds_device device(int i) {
    return harness_device(i % harness_device_count());
}

/* ---- a kernel that fails ---- */

static int explode(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 7;
}

static ds_kernel make_explode(void) {
    return harness_kernel("explode", explode, 0, NULL, 0, 0);
}

/* The last error names the kernel and where it was launched; on CUDA, which does not tell, what
   CUDA says. */
static void expect_cause(int line) {
    char where[64];
    if (!harness_is_cpu()) {
        if (!strstr(ds_error_get_last(), "cuda") || !strstr(ds_error_get_last(), "71"))
            fail_msg("\"%s\" has not what CUDA says", ds_error_get_last());
        return;
    }
    snprintf(where, sizeof where, "test_failure.c:%d", line);
    if (!strstr(ds_error_get_last(), "explode") || !strstr(ds_error_get_last(), where))
        fail_msg("\"%s\" names neither explode nor %s", ds_error_get_last(), where);
}

/* apart from the suite's own: it is freed after a failure */
static uint64_t *pinned_word(uint64_t value) {
    void *p;
    ok(ds_pinned_alloc(sizeof(uint64_t), &p));
    *(uint64_t *)p = value;
    return p;
}

static ds_stream stream_on(int i) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device(i) }, &s));
    return s;
}

static void test_a_failure_is_sticky_for_its_device_and_names_its_cause(void **state) {
    (void)state;
    ds_kernel k = make_explode();
    ds_stream s = stream_on(0), other = stream_on(0), legacy;
    ds_event e;
    uint64_t *h = pinned_word(1);
    int line;
    ok(ds_stream_get_legacy(device(0), &legacy));
    ok(ds_event_create(0, NULL, &e));
    line = __LINE__ + 1;
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_stream_query(s), DS_ERR_FAILED);
    expect_cause(line);
    /* a later failure does not become the cause */
    refused(ds_kernel_launch(k, 1, NULL, 0, s), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_fill(h, 0, 4, 1, s), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_stream_launch_host_func(s, gate_fn, NULL, NULL), DS_ERR_FAILED);
    expect_cause(line);
    /* other streams of the device */
    refused(ds_fill(h, 0, 4, 1, other), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_fill(h, 0, 4, 1, legacy), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_stream_query(other), DS_ERR_FAILED);
    refused(ds_stream_synchronize(other), DS_ERR_FAILED);
    refused(ds_stream_synchronize_for(other, 1000000), DS_ERR_FAILED);
    refused(ds_device_synchronize(device(0)), DS_ERR_FAILED);
    expect_cause(line);
    assert_true(*h == 1);
    /* objects can still be ended */
    ended(ds_event_destroy(e));
    ended(ds_stream_destroy(s));
    ended(ds_stream_destroy(other));
    ended(ds_kernel_destroy(k));
    ended(ds_pinned_free(h));
    harness_recover(0);
}

static void test_work_behind_a_failure_does_not_run(void **state) {
    (void)state;
    gate g = { 0 };
    static payload skipped, called;
    memset(&skipped, 0, sizeof skipped);
    memset(&called, 0, sizeof called);
    ds_kernel k = make_explode();
    ds_stream s = stream_on(0);
    uint64_t *before = pinned_word(1), *after = pinned_word(1);
    void *dev;
    ok(ds_device_alloc(device(0), 64, &dev));
    gate_close(s, &g);
    fold(s, before, 3);
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    fold(s, after, 3);
    ok(ds_copy(after, before, 8, s));
    ok(ds_fill(after, 9, 4, 2, s));
    ok(ds_stream_launch_host_func(s, payload_run, &skipped, payload_destroy));
    ok(ds_stream_add_callback(s, payload_callback, &called, payload_destroy));
    gate_open(&g);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    assert_true(*before == fold_host(1, 3));
    assert_true(*after == 1);
    ended(ds_device_free(dev)); /* waits for the device, and does not mind that it failed */
    ended(ds_pinned_free(before));
    ended(ds_pinned_free(after));
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    harness_recover(0);
    await_destroyed(&skipped, 1);
    await_destroyed(&called, 1);
    assert_int_equal(skipped.ran, 0);
    assert_int_equal(called.ran, 1);
    assert_true(called.status < 0);
}

static void test_other_streams_of_the_failed_device_stop_others_do_not(void **state) {
    (void)state;
    two_devices();
    gate g = { 0 };
    ds_kernel k = make_explode();
    ds_stream failing = stream_on(0), sibling = stream_on(0), elsewhere = stream_on(1);
    uint64_t *a = pinned_word(1), *b = pinned_word(1);
    gate_close(sibling, &g);
    fold(sibling, a, 5);
    gate_wait_entered(&g);
    ok(ds_kernel_launch(k, 1, NULL, 0, failing));
    refused(ds_stream_synchronize(failing), DS_ERR_FAILED);
    gate_open(&g); /* the failure has happened, and only now the sibling may go on */
    refused(ds_stream_synchronize(sibling), DS_ERR_FAILED);
    assert_true(*a == 1);
    fold(elsewhere, b, 5);
    ok(ds_stream_synchronize(elsewhere));
    assert_true(*b == fold_host(1, 5));
    ok(ds_device_synchronize(device(1)));
    ended(ds_stream_destroy(failing));
    ended(ds_stream_destroy(sibling));
    ended(ds_stream_destroy(elsewhere));
    ended(ds_kernel_destroy(k));
    ended(ds_pinned_free(a));
    ended(ds_pinned_free(b));
    harness_recover(0);
}

static void test_a_stream_that_waits_for_failed_work_does_not_run(void **state) {
    (void)state;
    two_devices();
    gate g = { 0 };
    ds_kernel k = make_explode();
    ds_stream failing = stream_on(0), by_event = stream_on(1), by_stream = stream_on(1),
              free_one = stream_on(1);
    ds_event e;
    uint64_t *a = pinned_word(1), *b = pinned_word(1), *c = pinned_word(1);
    int line;
    gate_close(failing, &g);
    line = __LINE__ + 1;
    ok(ds_kernel_launch(k, 1, NULL, 0, failing));
    ok(ds_stream_record_event(failing, 0, &e));
    ok(ds_stream_wait_event(by_event, e));
    fold(by_event, a, 5);
    ok(ds_stream_wait_stream(by_stream, failing));
    fold(by_stream, b, 5);
    assert_int_equal(ds_stream_query(by_event), DS_NOT_READY);
    gate_open(&g);
    refused(ds_stream_synchronize(by_event), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_stream_synchronize(by_stream), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_stream_query(by_event), DS_ERR_FAILED);
    refused(ds_event_synchronize(e), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_event_query(e), DS_ERR_FAILED);
    assert_true(*a == 1);
    assert_true(*b == 1);
    fold(free_one, c, 5); /* its device has not failed */
    ok(ds_stream_synchronize(free_one));
    assert_true(*c == fold_host(1, 5));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(failing));
    ok(ds_stream_destroy(by_event));
    ok(ds_stream_destroy(by_stream));
    ok(ds_stream_destroy(free_one));
    ok(ds_kernel_destroy(k));
    ok(ds_pinned_free(a));
    ok(ds_pinned_free(b));
    ok(ds_pinned_free(c));
    ok(ds_device_reset(device(0)));
    ok(ds_device_reset(device(1)));
}

/* The wait itself may be refused or be accepted; in no case may later work see data that was
   never made. Many rounds: the fill is small enough to be done at once, and the failure may
   arrive while that is being decided. */
static void test_a_wait_for_work_that_has_failed_already_does_not_pass(void **state) {
    (void)state;
    two_devices();
    ds_kernel k = make_explode();
    uint64_t *a = pinned_word(1);
    for (int round = 0; round < 300; round++) {
        ds_stream failing = stream_on(0), late = stream_on(1);
        ds_event e;
        gate g = { 0 };
        gate_close(failing, &g);
        ok(ds_kernel_launch(k, 1, NULL, 0, failing));
        ok(ds_stream_record_event(failing, 0, &e));
        gate_open(&g);
        refused(ds_event_synchronize(e), DS_ERR_FAILED);
        /* the workers sleep by now, and the wait wakes one */
        if (round % 2)
            usleep(200);
        ds_result waited = ds_stream_wait_event(late, e);
        /* at many distances */
        for (int i = 0; i < round % 64 * 8; i++)
            (void)now_ns();
        if (waited == DS_OK) {
            ds_result filled = ds_fill(a, 0, 4, 2, late);
            assert_true(filled == DS_OK || filled == DS_ERR_FAILED);
            refused(ds_stream_synchronize(late), DS_ERR_FAILED);
        } else
            assert_int_equal(waited, DS_ERR_FAILED);
        if (*a != 1)
            fail_msg("round %d: the fill behind the wait has run", round);
        ok(ds_event_destroy(e));
        ok(ds_stream_destroy(failing));
        ok(ds_stream_destroy(late));
        ok(ds_device_reset(device(0)));
        ok(ds_device_reset(device(1)));
    }
    ok(ds_kernel_destroy(k));
    ok(ds_pinned_free(a));
}

static void test_small_work_enqueued_while_the_stream_fails_does_not_run(void **state) {
    (void)state;
    ds_kernel k = make_explode();
    ds_stream s = stream_on(0);
    uint64_t *a = pinned_word(1);
    for (int round = 0; round < (harness_is_cpu() ? 5000 : 1); round++) {
        ok(ds_kernel_launch(k, 1, NULL, 0, s));
        /* at many distances from the failure */
        for (int i = 0; i < round % 50; i++)
            (void)now_ns();
        ds_result filled = ds_fill(a, 0, 4, 2, s);
        assert_true(filled == DS_OK || filled == DS_ERR_FAILED);
        refused(ds_stream_synchronize(s), DS_ERR_FAILED);
        if (*a != 1)
            fail_msg("round %d: the fill behind the failed kernel has run", round);
        if (harness_is_cpu())
            ok(ds_device_reset(device(0)));
    }
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    ended(ds_pinned_free(a));
    harness_recover(0);
}

static void test_events_reached_before_a_failure_do_not_hang(void **state) {
    (void)state;
    ds_kernel k = make_explode();
    ds_stream s = stream_on(0);
    ds_event e;
    ok(ds_stream_record_event(s, DS_EVENT_TIMING, &e));
    ok(ds_event_synchronize(e));
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    ds_result q = ds_event_query(e), w = ds_event_synchronize(e),
              t = ds_event_synchronize_for(e, 1000000);
    assert_true(q == DS_OK || q == DS_ERR_FAILED);
    assert_int_equal(w, q);
    assert_int_equal(t, q);
    ended(ds_event_destroy(e));
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    harness_recover(0);
}

static void test_reset_makes_a_failed_device_usable_again(void **state) {
    (void)state;
    ds_kernel k = make_explode();
    ds_stream s = stream_on(0), other = stream_on(0), legacy;
    uint64_t *h = pinned_word(1), want = 1;
    ok(ds_stream_get_legacy(device(0), &legacy));
    for (uint64_t round = 0; round < 3; round++) { /* it can fail again, with its own cause */
        int line = __LINE__ + 1;
        ok(ds_kernel_launch(k, 1, NULL, 0, s));
        refused(ds_stream_synchronize(s), DS_ERR_FAILED);
        expect_cause(line);
        ok(ds_device_reset(device(0)));
        assert_int_equal(ds_stream_query(s), DS_OK);
        fold(s, h, round);
        want = fold_host(want, round);
        ok(ds_stream_wait_stream(other, s));
        fold(other, h, 100 + round);
        want = fold_host(want, 100 + round);
        ok(ds_stream_synchronize(other));
        fold(legacy, h, 200 + round);
        want = fold_host(want, 200 + round);
        ok(ds_device_synchronize(device(0)));
        assert_true(*h == want);
    }
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    ok(ds_kernel_destroy(k));
    ok(ds_pinned_free(h));
}

static void test_reset_waits_for_the_work_that_still_runs(void **state) {
    (void)state;
    uint64_t *h = pinned_word(1), want = 1;
    ds_stream s = stream_on(0);
    for (uint64_t i = 0; i < 1000; i++) {
        fold(s, h, i);
        want = fold_host(want, i);
    }
    ok(ds_device_reset(device(0)));
    assert_int_equal(ds_stream_query(s), DS_OK);
    assert_true(*h == want);
    ok(ds_pinned_free(h));
    ok(ds_stream_destroy(s));
}

static void test_a_large_split_kernel_fails_once(void **state) {
    (void)state;
    ds_kernel k = make_explode();
    ds_stream s = stream_on(0);
    int line = __LINE__ + 1;
    ok(ds_kernel_launch(k, 1000000, NULL, 0, s));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    expect_cause(line);
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    harness_recover(0);
}

static void test_shutdown_reports_a_failed_device_and_frees_all_the_same(void **state) {
    (void)state;
    ds_kernel k = make_explode();
    ds_stream s = stream_on(0);
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    refused(ds_shutdown(), DS_ERR_FAILED);
    harness_forget();
    /* there only another process can start afresh */
    if (!harness_is_cpu())
        return;
    uint64_t *h = pinned_word(1); /* the next call starts afresh */
    s = stream_on(0);
    fold(s, h, 1);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(1, 1));
    ok(ds_pinned_free(h));
    ok(ds_stream_destroy(s));
}

/* ---- injected faults ---- */

static void test_a_log_level_that_does_not_exist_is_refused(void **state) {
    (void)state;
    harness_shutdown();
    refused(ds_init(&(ds_init_desc){ .log_level = (ds_log_level)3 }), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "log_level is 3; it must be from 0 to 2"));

    setenv("DEVSTREAM_LOG", "4", 1);
    ds_stream s;
    refused(ds_stream_create(NULL, &s), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_LOG is \"4\"; it must be 0"));

    unsetenv("DEVSTREAM_LOG");
    harness_restart(NULL);
}

static void test_an_unknown_layer_is_refused(void **state) {
    (void)state;
    harness_shutdown();
    refused(ds_init(&(ds_init_desc){ .layers = "no_such_layer" }), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "no_such_layer"));
    refused(ds_init(&(ds_init_desc){ .layers = "fault,no_such_layer" }), DS_ERR_INVALID_VALUE);
    ds_stream s = stream_on(0); /* and nothing has been started or spoiled */
    ok(ds_stream_synchronize(s));
    refused(ds_init(&(ds_init_desc){ .flags = 0 }), DS_ERR_ILLEGAL_STATE);
    ok(ds_stream_destroy(s));
}

static void test_a_fault_at_a_driver_entry_fails_that_call_only(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++) {
        char fault[40];
        int failed = 0;
        ds_cpu_stats before, after;
        ds_device d;
        snprintf(fault, sizeof fault, "stream_create:%d", n);
        harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });
        ok(ds_device_get_current(&d));
        if (harness_is_cpu())
            ok(ds_cpu_get_stats(&before));
        for (int i = 0; i < 4; i++) {
            ds_stream s = { 77 };
            ds_result r = ds_stream_create(NULL, &s);
            if (r < 0) {
                failed++;
                assert_true(ds_error_get_last()[0] != 0);
                assert_true(s.id == 0);
                continue;
            }
            ok(ds_stream_synchronize(s));
            ok(ds_stream_destroy(s));
        }
        assert_int_equal(failed, 1);
        if (!harness_is_cpu())
            continue;
        /* destroyed streams are reclaimed in batches; the first stream may have brought the
           legacy stream to life */
        do {
            ds_stream one_more;
            ok(ds_stream_create(NULL, &one_more));
            ok(ds_stream_destroy(one_more));
            ok(ds_cpu_get_stats(&after));
            sched_yield();
        } while (after.streams > before.streams + 1);
    }
    harness_restart(NULL);
}

static void test_a_capture_mode_that_is_refused_stays_as_it_is(void **state) {
    (void)state;
    for (int n = 1; n <= 2; n++) {
        ds_capture_mode mode, before = DS_CAPTURE_GLOBAL;
        ds_result r = DS_OK;
        char fault[40];
        snprintf(fault, sizeof fault, "capture_mode:%d", n);
        harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });

        for (int tries = 0; tries < 2 && r == DS_OK; tries++) {
            mode = tries ? DS_CAPTURE_GLOBAL : DS_CAPTURE_RELAXED;
            ds_capture_mode wanted = mode;
            r = ds_capture_exchange_mode(&mode);
            before = r == DS_OK ? wanted : before;
        }

        assert_int_equal(r, DS_ERR_DRIVER);
        mode = DS_CAPTURE_THREAD_LOCAL;
        ok(ds_capture_exchange_mode(&mode));
        assert_int_equal(mode, before);
        mode = DS_CAPTURE_GLOBAL;
        ok(ds_capture_exchange_mode(&mode));
    }
    harness_restart(NULL);
}

static void call_that_fails_inside(void *user) {
    ds_stream s;
    ((payload *)user)->destroyed++;
    refused(ds_stream_create(NULL, &s), DS_ERR_NOT_PERMITTED);
}

static void test_a_refused_call_keeps_its_sentence(void **state) {
    (void)state;
    payload p = { 0 };
    refused(ds_stream_launch_host_func((ds_stream){ 0 }, payload_run, &p, call_that_fails_inside),
            DS_ERR_INVALID_HANDLE);
    assert_int_equal(p.destroyed, 1);
    if (!strstr(ds_error_get_last(), "ds_stream_launch_host_func"))
        fail_msg("\"%s\" is of the destructor's call", ds_error_get_last());
}

/* ---- a little program that uses everything once, for faults and for memory that runs out ---- */

typedef struct bank {
    _Atomic long taken, returned, calls;
    long fail_at; /* 0: never */
    int forever;  /* every call from then on, else just the one */
    _Atomic int failed;
} bank;

static void *bank_alloc(size_t size, void *user) {
    bank *b = user;
    long n = ++b->calls;
    if (b->fail_at && (n == b->fail_at || (b->forever && n > b->fail_at))) {
        b->failed = 1;
        return NULL;
    }
    void *p = malloc(size);
    if (p)
        b->taken++;
    return p;
}

static void bank_free(void *p, void *user) {
    if (p)
        ((bank *)user)->returned++;
    free(p);
}

typedef struct add_args {
    uint64_t *h;
    uint64_t n;
} add_args;

static int add_kernel(size_t first, size_t count, const void *args) {
    const add_args *a = args;
    (void)first;
    (void)count;
    *a->h += a->n;
    return 0;
}

static void add_one(void *user) {
    expect_no_lock();
    ++*(uint64_t *)user;
}

static void add_two(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    if (status == DS_OK)
        *(uint64_t *)user += 2;
}

static _Atomic int payloads_made, payloads_gone;

static void payload_gone(void *user) {
    expect_no_lock();
    (void)user;
    payloads_gone++;
}

static int silent;       /* failures without a sentence */
static int wrong_result; /* programs that succeeded and computed something else */
static unsigned char registered_memory[4096]; /* outlives whatever a fault leaves behind */

static ds_result noted(ds_result r) {
    if (r < 0 && !ds_error_get_last()[0])
        silent++;
    return r;
}

#define STEP(call)                 \
    do {                           \
        if ((r = noted(call)) < 0) \
            goto done;             \
    } while (0)

static ds_device here, there; /* found before anything is made to fail */

/* The first failure, or DS_OK: then the result was right. Ends what it made in either case. */
static ds_result little_program(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, add_args, h), PARAM(VALUE, add_args, n) };
    ds_result r, end = DS_OK, c;
    ds_stream a = { 0 }, b = { 0 }, legacy, own;
    ds_event e = { 0 }, e2 = { 0 };
    ds_kernel k = { 0 };
    void *dev = NULL, *pin = NULL, *reg = registered_memory;
    uint64_t *h = NULL;
    int pushed = 0, registered = 0;
    STEP(ds_stream_create(
        &(ds_stream_desc){ .device = here, .label = "a", .flags = DS_STREAM_BLOCKING }, &a));
    STEP(ds_stream_create(&(ds_stream_desc){ .device = there, .label = "b" }, &b));
    STEP(ds_stream_get_legacy(here, &legacy));
    STEP(ds_stream_get_per_thread(here, &own));
    STEP(ds_event_create(DS_EVENT_TIMING, "e", &e));
    STEP(ds_kernel_create(&(ds_kernel_desc){ .name = "add",
                                             .cpu_fn = add_kernel,
                                             .args_size = sizeof(add_args),
                                             .params = params,
                                             .param_count = 2,
                                             .cuda = harness_cuda_form("add") },
                          &k));
    STEP(ds_device_alloc(here, 4096, &dev));
    STEP(ds_pinned_alloc(4096, &pin));
    STEP(ds_pinned_register(reg, 4096));
    registered = 1;
    h = pin;
    *h = 100;
    STEP(ds_stream_push(a, 0));
    pushed = 1;
    /* 780 */
    for (uint64_t i = 0; i < 40; i++)
        STEP(ds_kernel_launch(k, 1, &(add_args){ h, i }, sizeof(add_args), a));
    STEP(ds_event_record(e, a));
    STEP(ds_stream_wait_event(b, e));
    STEP(ds_stream_launch_host_func(b, add_one, h, NULL));
    STEP(ds_stream_wait_stream(legacy, b));
    STEP(ds_stream_add_callback(legacy, add_two, h, NULL));
    payloads_made++;
    STEP(ds_stream_launch_host_func(own, add_one, h, payload_gone)); /* behind the legacy stream */
    STEP(ds_stream_record_event(own, 0, &e2));
    STEP(ds_stream_wait_event(a, e2));
    STEP(ds_copy(dev, pin, 4096, a));
    STEP(ds_fill(pin, 0, 4, 1024, a));
    STEP(ds_copy(reg, dev, 4096, a));
    STEP(ds_copy(pin, reg, 8, a));
    STEP(ds_stream_synchronize(a));
    STEP(ds_event_synchronize(e));
    STEP(ds_device_synchronize(there));
    if (*h != 884)
        wrong_result++;
done:
    if (pushed && (c = noted(ds_stream_pop())) < 0)
        end = c;
    if (a.id && (c = noted(ds_stream_destroy(a))) < 0)
        end = c;
    if (b.id && (c = noted(ds_stream_destroy(b))) < 0)
        end = c;
    if (e.id && (c = noted(ds_event_destroy(e))) < 0)
        end = c;
    if (e2.id && (c = noted(ds_event_destroy(e2))) < 0)
        end = c;
    if (k.id && (c = noted(ds_kernel_destroy(k))) < 0)
        end = c;
    if ((c = noted(ds_device_free(dev))) < 0)
        end = c;
    if ((c = noted(ds_pinned_free(pin))) < 0)
        end = c;
    if (registered && (c = noted(ds_pinned_unregister(reg))) < 0)
        end = c;
    if ((c = noted(ds_shutdown())) < 0)
        end = c;
    return r < 0 ? r : end;
}

static void expect_clean(const char *what, long n, const bank *b) {
    if (silent)
        fail_msg("%s %ld: %d failures without a sentence", what, n, silent);
    if (wrong_result)
        fail_msg("%s %ld: the program computed something else", what, n);
    if (b->taken != b->returned)
        fail_msg("%s %ld: %ld blocks taken, %ld returned", what, n, (long)b->taken,
                 (long)b->returned);
    assert_int_equal(payloads_made, payloads_gone);
}

static void run_out_of_memory(int forever) {
    ds_cpu_desc cpu = { .devices = 2 };
    long n, failures = 0;
    silent = wrong_result = 0;
    payloads_made = payloads_gone = 0;
    here = device(0), there = device(1);
    harness_shutdown();
    for (n = 1;; n++) {
        static bank b;
        b = (bank){ .fail_at = n, .forever = forever };
        if (n > 5000)
            fail_msg("the program takes ever more memory");
        ds_result r = noted(
            ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = { bank_alloc, bank_free, &b } }));
        if (r == DS_OK)
            r = little_program();
        else
            DS_IGNORE(ds_shutdown());
        expect_clean("allocation", n, &b);
        /* n is past the last allocation */
        if (!b.failed) {
            ok(r);
            break;
        }
        /* a block that was only wished for may fail without harm */
        if (r < 0)
            failures++;
    }
    print_message("          %ld allocations, %ld of them fatal to a call\n", n - 1, failures);
    assert_true(failures > 0);
}

static void test_every_failed_allocation_is_a_result_and_leaks_nothing(void **state) {
    (void)state;
    run_out_of_memory(0);
}

static void test_exhausted_memory_is_a_result_and_leaks_nothing(void **state) {
    (void)state;
    run_out_of_memory(1);
}

static void test_every_injected_fault_is_a_result_and_leaks_nothing(void **state) {
    (void)state;
    ds_cpu_desc cpu = { .devices = 2 };
    int failures = 0;
    silent = wrong_result = 0;
    payloads_made = payloads_gone = 0;
    here = device(0), there = device(1);
    harness_shutdown();
    for (int n = 1; n <= 150; n++) {
        static bank b;
        char fault[40];
        b = (bank){ 0 };
        snprintf(fault, sizeof fault, "*:%d", n);
        ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                    .layers = "fault",
                                    .fault = fault,
                                    .allocator = { bank_alloc, bank_free, &b } }));
        if (little_program() < 0)
            failures++;
        DS_IGNORE(ds_shutdown()); /* in case the fault hit the first one */
        expect_clean("fault", n, &b);
    }
    print_message("          %d faults reached the caller\n", failures);
    assert_true(failures >= 10);
    static bank b;
    b = (bank){ 0 };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                .layers = "fault",
                                .fault = "*:1000000",
                                .allocator = { bank_alloc, bank_free, &b } }));
    ok(little_program());
    expect_clean("no fault", 0, &b);
}

/* ---- fork ---- */

static void test_a_forked_child_is_told_so(void **state) {
    (void)state;
    ds_stream s = stream_on(0);
    ds_device d = device(0);
    uint64_t *h = pinned_word(1);
    fold(s, h, 1);
    ok(ds_stream_synchronize(s));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* nothing but the calls: other threads may have held any lock */
        ds_stream t;
        void *p;
        int bad = 0;
        if (ds_stream_query(s) != DS_ERR_FORKED)
            bad |= 1;
        if (!ds_error_get_last()[0])
            bad |= 2;
        if (ds_stream_create(NULL, &t) != DS_ERR_FORKED)
            bad |= 4;
        if (ds_device_alloc(d, 64, &p) != DS_ERR_FORKED)
            bad |= 8;
        if (ds_stream_synchronize(s) != DS_ERR_FORKED)
            bad |= 16;
        if (ds_copy(h, &bad, sizeof bad, s) != DS_ERR_FORKED)
            bad |= 32;
        if (!ds_result_get_text(DS_ERR_FORKED)[0])
            bad |= 64;
        _exit(bad);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    fold(s, h, 2); /* the parent is as it was */
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(fold_host(1, 1), 2));
    ok(ds_pinned_free(h));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_failure[] = {
    DS_TEST_ALONE(test_a_failure_is_sticky_for_its_device_and_names_its_cause, "peers b.1"),
    DS_TEST_ALONE(test_work_behind_a_failure_does_not_run, "peers b.1"),
    DS_TEST_ALONE(test_other_streams_of_the_failed_device_stop_others_do_not, "peers b.1"),
    DS_TEST_CPU(test_a_stream_that_waits_for_failed_work_does_not_run, "peers b.1"),
    DS_TEST_CPU(test_a_wait_for_work_that_has_failed_already_does_not_pass, "peers b.1"),
    DS_TEST_ALONE(test_small_work_enqueued_while_the_stream_fails_does_not_run, "peers b.1"),
    DS_TEST_ALONE(test_events_reached_before_a_failure_do_not_hang, "peers b.1"),
    DS_TEST_CPU(test_reset_makes_a_failed_device_usable_again, "peers b.1"),
    DS_TEST_CPU(test_reset_waits_for_the_work_that_still_runs, "failure"),
    DS_TEST_ALONE(test_a_large_split_kernel_fails_once, "failure"),
    DS_TEST_ALONE(test_shutdown_reports_a_failed_device_and_frees_all_the_same, "failure"),
    DS_TEST(test_a_log_level_that_does_not_exist_is_refused, "failure"),
    DS_TEST(test_an_unknown_layer_is_refused, "failure"),
    DS_TEST(test_a_capture_mode_that_is_refused_stays_as_it_is, "failure"),
    DS_TEST(test_a_refused_call_keeps_its_sentence, "failure"),
    DS_TEST(test_a_fault_at_a_driver_entry_fails_that_call_only, "failure"),
    DS_TEST(test_every_failed_allocation_is_a_result_and_leaks_nothing, "failure"),
    DS_TEST(test_exhausted_memory_is_a_result_and_leaks_nothing, "failure"),
    DS_TEST(test_every_injected_fault_is_a_result_and_leaks_nothing, "failure"),
    DS_TEST(test_a_forked_child_is_told_so, "peers b.11"),
};
const size_t tests_failure_count = sizeof tests_failure / sizeof tests_failure[0];
