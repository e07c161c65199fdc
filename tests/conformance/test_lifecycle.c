/* What happens around the edges of a life: threads that end, shutdowns, resets, ownership handed
   over, frames. Each test stands for a defect that a review once found. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "devstream_alloc.h"
#include "harness.h"

static void test_setuid_does_not_wait_for_the_drivers_threads(void **state) {
    (void)state;
    ok(ds_device_synchronize(harness_device(0)));
    /* the C library asks every thread with a signal; a hang is the failure */
    assert_int_equal(setuid(getuid()), 0);
}

static pthread_key_t exit_key;

static _Atomic int at_exit, reclaimed;

static void destroy_at_thread_exit(void *stream) {
    at_exit = 1;
    /* devstream's own destructor ran before, and its leavings are gone now */
    while (!reclaimed)
        sched_yield();
    ok_thread(ds_stream_destroy(*(ds_stream *)stream));
}

static void *use_and_end(void *stream) {
    ok_thread(ds_stream_create(NULL, stream));
    /* made after devstream's own key: its destructor runs later */
    pthread_setspecific(exit_key, stream);
    return NULL;
}

static void test_devstream_may_be_called_while_a_thread_ends(void **state) {
    (void)state;
    ok(ds_device_synchronize(harness_device(0)));
    assert_int_equal(pthread_key_create(&exit_key, destroy_at_thread_exit), 0);
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        ds_stream s = { 0 }, other;
        at_exit = reclaimed = 0;
        assert_int_equal(pthread_create(&thread, NULL, use_and_end, &s), 0);
        while (!at_exit)
            sched_yield();
        ok(ds_stream_create(NULL, &other)); /* reclaims what ended threads left */
        reclaimed = 1;
        pthread_join(thread, NULL);
        refused(ds_stream_query(s), DS_ERR_INVALID_HANDLE);
        ok(ds_stream_destroy(other));
    }
    pthread_key_delete(exit_key);
}

static void test_an_unwrapped_stream_has_one_owner_until_its_last_handle(void **state) {
    ds_stream_native native;
    ds_stream s, before, owner, second;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));
    ok(ds_stream_set_current(s, 0, &before)); /* the slot keeps the first object alive */
    ok(ds_stream_unwrap(s, &native));
    ok(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &owner));
    ok(ds_stream_set_current(before, 0, NULL)); /* now the first object goes */
    refused(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &second), DS_ERR_INVALID_VALUE);
    uint64_t *h = word(1);
    fold(owner, h, 2);
    ok(ds_stream_synchronize(owner));
    assert_true(*h == fold_host(1, 2));
    ok(ds_stream_destroy(owner));
}

static ds_result configure_from_memory_that_changes(void) {
    static unsigned char apart[4]; /* static: the compiler must not drop what is written last */
    static char layers[8], fault[16];
    memcpy(apart, (const unsigned char[4]){ 1, 0, 0, 1 }, sizeof apart);
    memcpy(layers, "fault", sizeof "fault");
    memcpy(fault, "stream_query:1", sizeof "stream_query:1");
    ds_cpu_desc cpu = { .devices = 2, .peer_access = apart };
    ds_result r = ds_init(&(ds_init_desc){ .cpu = &cpu, .layers = layers, .fault = fault });
    memset(apart, 1, sizeof apart);
    memset(layers, 'x', sizeof layers - 1);
    memset(fault, 'x', sizeof fault - 1);
    return r;
}

static void test_init_copies_its_input_and_a_refused_one_changes_nothing(void **state) {
    int reach = 1;
    ds_stream s;
    (void)state;
    harness_shutdown();
    ds_result configured = configure_from_memory_that_changes();
    ds_result asked = ds_device_can_access_peer(ds_cpu(0), ds_cpu(1), &reach);
    ds_result again = ds_init(&(ds_init_desc){ .layers = "fault", .fault = "stream_create:1" });
    ds_result created = ds_stream_create(NULL, &s);
    ds_result first = ds_stream_query(s), second = ds_stream_query(s);
    ds_result destroyed = ds_stream_destroy(s);
    harness_shutdown();
    ok(configured);
    ok(asked);
    assert_int_equal(reach, 0);
    assert_int_equal(again, DS_ERR_ILLEGAL_STATE);
    ok(created);
    assert_int_equal(first, DS_ERR_DRIVER);
    ok(second);
    ok(destroyed);
}

/* Two blocks: the thread remembers the arena of the stream from the second one on. */
static ds_stream allocate_twice(void) {
    ds_stream s;
    void *p;
    ok_thread(ds_stream_create(NULL, &s));
    for (int i = 0; i < 2; i++) {
        ok_thread(ds_mem_alloc(100, s, &p));
        ok_thread(ds_mem_free(p));
    }
    return s;
}

typedef struct remembering_thread {
    _Atomic int ready, is_down;
    ds_result stale, zero;
} remembering_thread;

static void *remember_over_a_shutdown(void *arg) {
    remembering_thread *t = arg;
    ds_stream none = { 0 }, s = allocate_twice();
    void *p;
    t->ready = 1;
    while (!t->is_down)
        sched_yield();
    t->stale = ds_mem_alloc(100, s, &p);
    t->zero = ds_mem_alloc(100, none, &p);
    return NULL;
}

static void test_no_thread_uses_an_arena_of_before_a_shutdown(void **state) {
    (void)state;
    remembering_thread t = { 0 };
    ds_stream none = { 0 };
    pthread_t thread = spawn(remember_over_a_shutdown, &t);
    void *p;
    while (!t.ready)
        sched_yield();
    ds_stream s = allocate_twice();

    harness_shutdown();
    t.is_down = 1;
    join(thread);

    assert_int_equal(t.stale, DS_ERR_INVALID_HANDLE);
    assert_int_equal(t.zero, DS_ERR_INVALID_HANDLE);
    refused(ds_mem_alloc(100, none, &p), DS_ERR_INVALID_HANDLE);
    refused(ds_mem_alloc(100, s, &p), DS_ERR_INVALID_HANDLE);
    ds_stream later = allocate_twice();
    refused(ds_mem_alloc(100, none, &p), DS_ERR_INVALID_HANDLE);
    ok(ds_stream_destroy(later));
}

static void test_a_layer_named_twice_is_refused(void **state) {
    (void)state;
    harness_shutdown();
    refused(ds_init(&(ds_init_desc){ .layers = "fault,fault" }), DS_ERR_INVALID_VALUE);
}

static void test_a_fault_rule_without_its_layer_is_refused(void **state) {
    (void)state;
    harness_shutdown();
    refused(ds_init(&(ds_init_desc){ .layers = "", .fault = "stream_create:1" }),
            DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "\"stream_create:1\" needs the layer \"fault\""));
    setenv("DEVSTREAM_FAULT", "stream_create:1", 1);
    int count = 0;
    ds_result started = ds_device_get_count(DS_DEVICE_CPU, &count);
    unsetenv("DEVSTREAM_FAULT");
    assert_int_equal(started, DS_ERR_INVALID_VALUE);
    ok(ds_device_get_count(DS_DEVICE_CPU, &count));
    ok(ds_shutdown());
}

static int fail_item(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 7;
}

static void test_an_event_in_failed_work_stays_failed_after_a_reset(void **state) {
    ds_kernel bad;
    ds_stream s;
    ds_event plain, timed, healthy;
    double ms;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));
    ok(ds_event_create(0, NULL, &plain));
    ok(ds_event_create(DS_EVENT_TIMING, NULL, &timed));
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "bad", .cpu_fn = fail_item }, &bad));
    gate g = { 0 };
    gate_close(s, &g); /* so that nothing is refused before it is all queued */
    ok(ds_kernel_launch(bad, 1, NULL, 0, s));
    ok(ds_event_record(plain, s));
    ok(ds_event_record(timed, s));
    gate_open(&g);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    ok(ds_device_reset(harness_device(0)));
    ok(ds_stream_query(s));
    refused(ds_event_query(plain), DS_ERR_FAILED);
    refused(ds_event_get_elapsed_ms(timed, timed, &ms),
            DS_ERR_FAILED); /* not "not ready" for ever */
    ok(ds_stream_record_event(s, 0, &healthy));
    ok(ds_event_synchronize(healthy));
    /* nor does a later failure or reset change what was */
    for (int again = 0; again < 2; again++) {
        ok(ds_kernel_launch(bad, 1, NULL, 0, s));
        refused(ds_stream_synchronize(s), DS_ERR_FAILED);
        ok(ds_device_reset(harness_device(0)));
        refused(ds_event_query(plain), DS_ERR_FAILED);
        ok(ds_event_query(healthy));
    }
    ok(ds_event_record(plain, s));
    ok(ds_event_synchronize(plain));
    ok(ds_event_destroy(plain));
    ok(ds_event_destroy(timed));
    ok(ds_event_destroy(healthy));
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(bad));
}

static void test_a_refused_strict_push_enqueues_nothing(void **state) {
    gate g = { 0 };
    ds_stream s, before;
    (void)state;
    two_devices();
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(1) }, &s));
    ok(ds_stream_get_current(harness_device(1), &before));
    gate_close(before, &g);
    refused(ds_stream_push(s, DS_PUSH_STRICT | DS_PUSH_WAIT_PREV), DS_ERR_DEVICE_MISMATCH);
    ds_result pending = ds_stream_query(s);
    gate_open(&g);
    ok(ds_stream_synchronize(before)); /* the gate is on our stack */
    ok(pending);
    ok(ds_stream_destroy(s));
}

static void test_pop_restores_the_stream_of_the_device_at_entry_too(void **state) {
    ds_stream s, x, at_entry, now;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(1) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &x));
    ok(ds_stream_get_current(harness_device(0), &at_entry));
    ok(ds_stream_push(s, 0));
    ok(ds_stream_set_current(x, 0, NULL)); /* on the device that was current at entry */
    ok(ds_stream_pop());
    ok(ds_stream_get_current(harness_device(0), &now));
    assert_true(ds_stream_equal(now, at_entry));
    ok(ds_stream_push((ds_stream){ 0 }, 0));
    ok(ds_stream_set_current(x, 0, NULL));
    ok(ds_stream_pop());
    ok(ds_stream_get_current(harness_device(0), &now));
    assert_true(ds_stream_equal(now, at_entry));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(x));
}

/* A stream with work, on a device whose first synchronisation fails; *out_want is what *out_word
   becomes. */
static ds_stream work_behind_a_fault(uint64_t **out_word, uint64_t *out_want) {
    harness_restart(&(ds_init_desc){ .layers = "fault", .fault = "device_synchronize:1" });
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    *out_word = word(1);
    *out_want = 1;
    for (uint64_t i = 0; i < 10000; i++) {
        fold(s, *out_word, i);
        *out_want = fold_host(*out_want, i);
    }
    return s;
}

static void test_shutdown_drains_although_the_driver_reports_a_fault(void **state) {
    (void)state;
    uint64_t *h, want;
    ds_stream s = work_behind_a_fault(&h, &want);
    ok(ds_stream_destroy(s));
    ds_result down = ds_shutdown();
    harness_forget();
    assert_int_equal(down, DS_ERR_DRIVER);
    assert_true(*h == want);
}

static _Atomic int backlog_passed;

static int count_item(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    backlog_passed++;
    return 0;
}

static int look_item(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    **(int *const *)args = backlog_passed;
    return 0;
}

enum { BACKLOG = 400000 };

/* One urgent operation against a backlog on two streams. Gives how much of the backlog was done
   when it was surely put in, and when it ran. */
static void race_the_backlog(ds_kernel count, ds_kernel look, int *out_put, int *out_ran) {
    ds_stream low[2], urgent;
    gate g = { 0 };
    int ran = -1, *where = &ran;
    backlog_passed = 0;
    for (int i = 0; i < 2; i++)
        ok(ds_stream_create(NULL, &low[i]));
    ok(ds_stream_create(&(ds_stream_desc){ .priority = DS_PRIORITY_HIGHEST }, &urgent));
    for (int i = 0; i < 2; i++)
        gate_close(low[i], &g);
    for (int i = 0; i < BACKLOG; i++)
        ok(ds_kernel_launch(count, 1, NULL, 0, low[i & 1]));
    gate_open(&g);
    while (backlog_passed == 0) {
    }
    /* after this one the worker has the stream in sight */
    ok(ds_kernel_launch(look, 1, &where, sizeof where, urgent));
    while (ds_stream_query(urgent) == DS_NOT_READY) {
    }
    ok(ds_kernel_launch(look, 1, &where, sizeof where, urgent));
    *out_put = backlog_passed;
    /* no synchronize: a waiting host might run it itself */
    while (ds_stream_query(urgent) == DS_NOT_READY) {
    }
    ok(ds_stream_synchronize(urgent));
    *out_ran = ran;
    for (int i = 0; i < 2; i++) {
        ok(ds_stream_synchronize(low[i]));
        ok(ds_stream_destroy(low[i]));
    }
    ok(ds_stream_destroy(urgent));
}

/* A worker that keeps a quick stream in sight must not leave it behind streams that are always
   ready. */
static void test_an_urgent_stream_does_not_starve_behind_a_backlog(void **state) {
    ds_kernel count, look;
    int put = BACKLOG, ran = BACKLOG;
    (void)state;
    harness_restart(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .devices = 2, .workers = 1 } });
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "count", .cpu_fn = count_item }, &count));
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "look", .cpu_fn = look_item, .args_size = sizeof(int *) },
        &look));
    /* again when this thread was held up until most of the backlog was done before it put the
       operation in */
    for (int round = 0; round < 400 && put > BACKLOG / 2; round++)
        race_the_backlog(count, look, &put, &ran);
    ok(ds_kernel_destroy(count));
    ok(ds_kernel_destroy(look));
    harness_shutdown();
    print_message("          put in at %d of %d, ran at %d\n", put, BACKLOG, ran);
    assert_true(put <= BACKLOG / 2);
    assert_true(ran < BACKLOG);
}

/* ---- before a checkpoint ---- */

static void *open_late(void *user) {
    harness_sleep_ms(20);
    gate_open(user);
    return NULL;
}

/* Work behind a gate on every device, with a host function, and a kernel that is destroyed before
   it has run. */
static void test_quiesce_waits_for_all_work_of_all_devices(void **state) {
    static gate g[2];
    static payload p[2];
    (void)state;
    memset(g, 0, sizeof g);
    memset(p, 0, sizeof p);
    int devices = harness_device_count() > 1 ? 2 : 1;
    ds_stream s[2];
    pthread_t thread[2];
    uint64_t *h = word(1), want = 1;
    for (int i = 0; i < devices; i++) {
        s[i] = harness_stream(i, DS_STREAM_NON_BLOCKING);
        gate_close(s[i], &g[i]);
        ok(ds_stream_launch_host_func(s[i], payload_run, &p[i], payload_destroy));
    }
    for (uint64_t i = 0; i < 100; i++) {
        fold(s[0], h, i);
        want = fold_host(want, i);
    }
    assert_int_equal(ds_stream_query(s[0]), DS_NOT_READY);
    for (int i = 0; i < devices; i++)
        thread[i] = spawn(open_late, &g[i]);
    ok(ds_quiesce());
    for (int i = 0; i < devices; i++) {
        ok(ds_stream_query(s[i]));
        assert_int_equal(p[i].ran, 1);
        assert_int_equal(p[i].destroyed, 1);
    }
    assert_true(*h == want);
    for (int i = 0; i < devices; i++)
        join(thread[i]);
    /* everything is still there, and a second call has nothing to wait for */
    ok(ds_quiesce());
    fold(s[0], h, 7);
    ok(ds_stream_synchronize(s[0]));
    assert_true(*h == fold_host(want, 7));
    for (int i = 0; i < devices; i++)
        ok(ds_stream_destroy(s[i]));
}

/* A destructor runs when nothing has its object any more; quiesce leaves none for later. */
static void test_quiesce_runs_the_destructors_of_what_was_destroyed(void **state) {
    static payload p[2];
    ds_graph g;
    ds_graph_exec x;
    (void)state;
    memset(p, 0, sizeof p);
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ok(ds_graph_attach(g, &p[0], payload_destroy));
    ok(ds_graph_add(
        g,
        &(ds_node_desc){
            .kind = DS_NODE_HOST,
            .u.host = { .fn = payload_run, .user = &p[1], .dtor_fn = payload_destroy } },
        NULL, 0, NULL));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_quiesce());
    assert_int_equal(p[1].ran, 1);
    for (int i = 0; i < 2 && harness_is_cpu(); i++)
        assert_int_equal(p[i].destroyed, 1);
    await_destroyed(p, 2); /* CUDA destroys a graph's objects on a thread of its own */
    ok(ds_stream_destroy(s));
}

static void test_quiesce_is_refused_while_a_capture_is_open(void **state) {
    ds_graph g;
    (void)state;
    uint64_t *h = word(1);
    harness_warm_up();
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    for (int mode = 0; mode <= DS_CAPTURE_RELAXED; mode++) {
        ok(ds_capture_begin(s, (ds_capture_mode)mode));
        fold(s, h, 2);
        refused(ds_quiesce(), DS_ERR_CAPTURE_UNSUPPORTED);
        assert_non_null(strstr(ds_error_get_last(), "test_lifecycle.c"));
        ok(ds_capture_end(s, &g));
        ok(ds_graph_destroy(g));
    }
    ok(ds_quiesce());
    ok(ds_stream_destroy(s));
}

static void quiesce_inside(void *user) {
    *(_Atomic int *)user = ds_quiesce();
}

static void test_quiesce_is_refused_in_a_host_function(void **state) {
    static _Atomic int result;
    (void)state;
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    ok(ds_stream_launch_host_func(s, quiesce_inside, (void *)&result, NULL));
    ok(ds_stream_synchronize(s));
    assert_int_equal(result, DS_ERR_NOT_PERMITTED);
    ok(ds_stream_destroy(s));
}

static void test_quiesce_reports_a_device_that_cannot_be_waited_for(void **state) {
    (void)state;
    uint64_t *h, want;
    ds_stream s = work_behind_a_fault(&h, &want);
    refused(ds_quiesce(), DS_ERR_DRIVER);
    ok(ds_stream_query(s)); /* all work was waited for nevertheless */
    assert_true(*h == want);
    ok(ds_quiesce());
    ok(ds_stream_destroy(s));
    harness_restart(NULL);
}

const struct CMUnitTest tests_lifecycle[] = {
    DS_TEST(test_setuid_does_not_wait_for_the_drivers_threads, "review"),
    DS_TEST(test_devstream_may_be_called_while_a_thread_ends, "review"),
    DS_TEST(test_an_unwrapped_stream_has_one_owner_until_its_last_handle, "review"),
    DS_TEST(test_init_copies_its_input_and_a_refused_one_changes_nothing, "review"),
    DS_TEST(test_a_layer_named_twice_is_refused, "review"),
    DS_TEST(test_a_fault_rule_without_its_layer_is_refused, "review"),
    DS_TEST_CPU(test_an_event_in_failed_work_stays_failed_after_a_reset, "peers b.1, review"),
    DS_TEST(test_a_refused_strict_push_enqueues_nothing, "review"),
    DS_TEST(test_pop_restores_the_stream_of_the_device_at_entry_too, "peers C5, review"),
    DS_TEST(test_no_thread_uses_an_arena_of_before_a_shutdown, "review"),
    DS_TEST(test_shutdown_drains_although_the_driver_reports_a_fault, "review"),
    DS_TEST(test_quiesce_waits_for_all_work_of_all_devices, "users 2"),
    DS_TEST(test_quiesce_runs_the_destructors_of_what_was_destroyed, "users 2"),
    DS_TEST(test_quiesce_is_refused_while_a_capture_is_open, "users 2"),
    DS_TEST(test_quiesce_is_refused_in_a_host_function, "users 2"),
    DS_TEST(test_quiesce_reports_a_device_that_cannot_be_waited_for, "users 2"),
    DS_TEST_CPU(test_an_urgent_stream_does_not_starve_behind_a_backlog, "peers b.11, review"),
};
const size_t tests_lifecycle_count = sizeof tests_lifecycle / sizeof tests_lifecycle[0];
