/* Host functions, callbacks and the destructors of their payloads. */
#include "harness.h"
#include "locks.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- order ---- */

enum { MANY = 100 };

/* plain: the stream orders the accesses */
typedef struct order {
    int next;
    int seen[MANY];
} order;

typedef struct ticket {
    order *o;
    int number;
} ticket;

static void take_number(void *user) {
    expect_no_lock();
    ticket *t = user;
    t->o->seen[t->o->next++] = t->number;
}

static void expect_order_on(ds_stream s) {
    order o = { 0 };
    ticket t[MANY];
    for (int i = 0; i < MANY; i++) {
        t[i] = (ticket){ &o, i };
        ok(ds_stream_launch_host_func(s, take_number, &t[i], NULL));
    }
    ok(ds_stream_synchronize(s));
    assert_int_equal(o.next, MANY);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(o.seen[i], i);
}

typedef struct reply {
    ds_stream stream;
    ds_result status;
    int value;
    int *source;
    int calls;
} reply;

static void take_reply(ds_stream stream, ds_result status, void *user) {
    reply *r = user;
    r->stream = stream;
    r->status = status;
    r->value = *r->source; /* the copy before the callback is done */
    r->calls++;
}

static void expect_callbacks_on(ds_stream s) {
    void *dev, *pin;
    ds_device where;
    reply r[MANY] = { 0 };
    ok(ds_stream_get_device(s, &where));
    ok(ds_device_alloc(where, MANY * sizeof(int), &dev));
    ok(ds_pinned_alloc(MANY * sizeof(int), &pin));
    int *out = pin, in[MANY];
    for (int i = 0; i < MANY; i++) {
        in[i] = 1000 + i;
        out[i] = 0;
    }
    ok(ds_copy(dev, in, sizeof in, s));
    for (int i = 0; i < MANY; i++) {
        r[i].source = &out[i];
        ok(ds_copy(&out[i], (int *)dev + i, sizeof(int), s));
        ok(ds_stream_add_callback(s, take_reply, &r[i], NULL));
    }
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(r[i].calls, 1);
        assert_int_equal(r[i].status, DS_OK);
        assert_int_equal(r[i].value, 1000 + i);
        assert_true(ds_stream_equal(r[i].stream, s));
    }
    ok(ds_device_free(dev));
    ok(ds_pinned_free(pin));
}

static void take_number_callback(ds_stream stream, ds_result status, void *user) {
    ticket *t = user;
    (void)stream;
    t->o->seen[t->o->next++] = status == DS_OK ? t->number : -1;
}

static void expect_mixed_order_on(ds_stream s) {
    order o = { 0 };
    ticket t[MANY];
    for (int i = 0; i < MANY; i++) {
        t[i] = (ticket){ &o, i };
        if (i % 3)
            ok(ds_stream_launch_host_func(s, take_number, &t[i], NULL));
        else
            ok(ds_stream_add_callback(s, take_number_callback, &t[i], NULL));
    }
    ok(ds_stream_synchronize(s));
    assert_int_equal(o.next, MANY);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(o.seen[i], i);
}

static void test_host_functions_on_the_legacy_stream_run_in_order(void **state) {
    (void)state;
    ds_stream s;
    ok(ds_stream_get_legacy(harness_device(0), &s));
    expect_order_on(s);
    expect_mixed_order_on(s);
}

static void test_callbacks_get_their_stream_and_status_in_order(void **state) {
    (void)state;
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    expect_callbacks_on(s);
    expect_mixed_order_on(s);
    ok(ds_stream_destroy(s));
    ok(ds_stream_get_legacy(harness_device(0), &s));
    expect_callbacks_on(s);
    ok(ds_stream_get_per_thread(harness_device(0), &s));
    expect_callbacks_on(s);
}

static void test_wrapped_streams_run_host_functions_in_order(void **state) {
    (void)state;
    ds_stream s, w;
    ds_stream_native native;
    ok(ds_stream_create(NULL, &s));
    ok(ds_stream_export(s, &native));
    ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &w));
    expect_order_on(w);
    expect_callbacks_on(w);
    ok(ds_stream_destroy(w));
    expect_order_on(s);
    ok(ds_stream_destroy(s));
}

static void test_only_later_work_of_its_stream_waits_for_a_host_function(void **state) {
    (void)state;
    gate g = { 0 };
    ds_stream blocked, other;
    void *p, *q;
    ok(ds_stream_create(NULL, &blocked));
    ok(ds_stream_create(NULL, &other));
    ok(ds_pinned_alloc(sizeof(uint64_t), &p));
    ok(ds_pinned_alloc(sizeof(uint64_t), &q));
    uint64_t *a = p, *b = q;
    *a = *b = 1;
    harness_warm_up(); /* CUDA loads no kernel while a host function runs */
    ok(ds_stream_launch_host_func(blocked, gate_fn, &g, NULL));
    fold(blocked, a, 5);
    gate_wait_entered(&g);
    for (uint64_t i = 0; i < 50; i++)
        fold(other, b, i);
    ok(ds_stream_synchronize(other));
    /* host functions of other streams too; CUDA may run them one by one */
    if (harness_is_cpu())
        expect_order_on(other);
    assert_int_equal(ds_stream_query(other), DS_OK);
    assert_int_equal(ds_stream_query(blocked), DS_NOT_READY);
    assert_true(*a == 1);
    uint64_t want = 1;
    for (uint64_t i = 0; i < 50; i++)
        want = fold_host(want, i);
    assert_true(*b == want);
    gate_open(&g);
    ok(ds_stream_synchronize(blocked));
    assert_true(*a == fold_host(1, 5));
    ok(ds_pinned_free(p));
    ok(ds_pinned_free(q));
    ok(ds_stream_destroy(blocked));
    ok(ds_stream_destroy(other));
}

/* ---- destructors ---- */

static void test_destructors_run_once_after_success(void **state) {
    (void)state;
    static payload p[200];
    memset(p, 0, sizeof p);
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    for (int i = 0; i < 200; i++) {
        if (i % 2)
            ok(ds_stream_launch_host_func(s, payload_run, &p[i], payload_destroy));
        else
            ok(ds_stream_add_callback(s, payload_callback, &p[i], payload_destroy));
    }
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < 200; i++)
        assert_int_equal(p[i].ran, 1);
    await_destroyed(p, 200);
    ok(ds_stream_destroy(s));
}

static void test_destructors_run_once_when_the_call_is_refused(void **state) {
    (void)state;
    static payload p[6];
    memset(p, 0, sizeof p);
    ds_stream s, stale;
    ok(ds_stream_create(NULL, &s));
    stale = s;
    ok(ds_stream_destroy(s));
    ok(ds_stream_create(NULL, &s));
    refused(ds_stream_launch_host_func(stale, payload_run, &p[0], payload_destroy),
            DS_ERR_INVALID_HANDLE);
    refused(ds_stream_add_callback(stale, payload_callback, &p[1], payload_destroy),
            DS_ERR_INVALID_HANDLE);
    refused(ds_stream_launch_host_func((ds_stream){ 0 }, payload_run, &p[2], payload_destroy),
            DS_ERR_INVALID_HANDLE);
    refused(ds_stream_add_callback((ds_stream){ 0 }, payload_callback, &p[3], payload_destroy),
            DS_ERR_INVALID_HANDLE);
    refused(ds_stream_launch_host_func(s, NULL, &p[4], payload_destroy), DS_ERR_INVALID_VALUE);
    refused(ds_stream_add_callback(s, NULL, &p[5], payload_destroy), DS_ERR_INVALID_VALUE);
    for (int i = 0; i < 6; i++) { /* at once, not later */
        assert_int_equal(p[i].destroyed, 1);
        assert_int_equal(p[i].ran, 0);
    }
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < 6; i++)
        assert_int_equal(p[i].destroyed, 1);
    ok(ds_stream_destroy(s));
}

static int explode(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 1;
}

static void test_destructors_run_once_when_a_failure_skips_the_function(void **state) {
    (void)state;
    static payload p[4];
    memset(p, 0, sizeof p);
    gate g = { 0 };
    ds_stream s;
    ds_kernel k;
    k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ok(ds_stream_create(NULL, &s));
    gate_close(s, &g);
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    ok(ds_stream_launch_host_func(s, payload_run, &p[0], payload_destroy));
    ok(ds_stream_add_callback(s, payload_callback, &p[1], payload_destroy));
    gate_open(&g);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    if (harness_is_cpu())
        await_destroyed(p, 2);
    refused(ds_stream_launch_host_func(s, payload_run, &p[2], payload_destroy), DS_ERR_FAILED);
    refused(ds_stream_add_callback(s, payload_callback, &p[3], payload_destroy), DS_ERR_FAILED);
    for (int i = 2; i < 4; i++) {
        assert_int_equal(p[i].ran, 0);
        assert_int_equal(p[i].destroyed, 1);
    }
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    harness_recover(0);
    await_destroyed(p, 4);
    assert_int_equal(p[0].ran, 0);
    assert_int_equal(p[1].ran, 1);
    assert_true(p[1].status < 0);
}

static void test_destructors_run_once_when_the_stream_is_destroyed_first(void **state) {
    (void)state;
    static payload p[20];
    memset(p, 0, sizeof p);
    gate g = { 0 };
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    gate_close(s, &g);
    for (int i = 0; i < 20; i++) {
        if (i % 2)
            ok(ds_stream_launch_host_func(s, payload_run, &p[i], payload_destroy));
        else
            ok(ds_stream_add_callback(s, payload_callback, &p[i], payload_destroy));
    }
    ok(ds_stream_destroy(s));
    for (int i = 0; i < 20; i++)
        assert_int_equal(p[i].ran + p[i].destroyed, 0);
    gate_open(&g);
    ok(ds_device_synchronize(harness_device(0)));
    for (int i = 0; i < 20; i++)
        assert_int_equal(p[i].ran, 1);
    await_destroyed(p, 20);
}

static void test_destructors_have_run_when_shutdown_returns(void **state) {
    (void)state;
    static payload p[50];
    memset(p, 0, sizeof p);
    ds_stream s[5];
    for (int i = 0; i < 5; i++)
        ok(ds_stream_create(NULL, &s[i]));
    for (int i = 0; i < 50; i++)
        ok(ds_stream_launch_host_func(s[i % 5], payload_run, &p[i], payload_destroy));
    for (int i = 0; i < 5; i++)
        ok(ds_stream_destroy(s[i]));
    harness_shutdown();
    for (int i = 0; i < 50; i++) {
        assert_int_equal(p[i].ran, 1);
        assert_int_equal(p[i].destroyed, 1);
    }
}

/* ---- calls that are not allowed ---- */

typedef struct attempt {
    ds_stream s, spare;
    ds_event e;
    ds_kernel k;
    ds_device dev;
    void *mem, *pin;
    payload nested;
    int tried, wrong;
    const char *first_wrong;
    int no_sentence, helpless;
    _Atomic int done; /* last */
} attempt;

#define TRY(call)                           \
    do {                                    \
        ds_result try_ = (call);            \
        a->tried++;                         \
        if (try_ != DS_ERR_NOT_PERMITTED) { \
            a->wrong++;                     \
            if (!a->first_wrong)            \
                a->first_wrong = #call;     \
        } else if (!ds_error_get_last()[0]) \
            a->no_sentence++;               \
    } while (0)

static void nothing(void *user) {
    expect_no_lock();
    (void)user;
}

static int no_work(void *user) {
    (void)user;
    return 0;
}

static void nothing_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    (void)status;
    (void)user;
}

static void try_streams(attempt *a) {
    ds_stream out;
    ds_stream_native native;
    uint64_t id;
    unsigned flags;
    int n, m;
    char text[64];
    ds_device where;
    TRY(ds_stream_create(NULL, &out));
    TRY(ds_stream_ref(a->spare));
    TRY(ds_stream_query(a->s));
    TRY(ds_stream_synchronize(a->s));
    TRY(ds_stream_synchronize_for(a->s, 1000));
    TRY(ds_stream_get_legacy(a->dev, &out));
    TRY(ds_stream_get_per_thread(a->dev, &out));
    TRY(ds_stream_get_default(a->dev, &out));
    TRY(ds_stream_export(a->s, &native));
    TRY(ds_stream_unwrap(a->spare, &native));
    TRY(ds_stream_get_id(a->s, &id));
    TRY(ds_stream_get_device(a->s, &where));
    TRY(ds_stream_get_flags(a->s, &flags));
    TRY(ds_stream_get_priority(a->s, &n, &m));
    TRY(ds_stream_get_label(a->s, text, sizeof text));
    TRY(ds_stream_get_current(a->dev, &out));
    TRY(ds_stream_set_current(a->spare, 0, NULL));
    TRY(ds_stream_push(a->spare, 0));
    TRY(ds_stream_pop());
}

static void try_devices(attempt *a) {
    int n, m;
    size_t size;
    TRY(ds_device_set_current(a->dev));
    TRY(ds_device_push(a->dev));
    TRY(ds_device_pop());
    TRY(ds_device_get_memory_info(a->dev, &size, NULL));
    TRY(ds_device_synchronize(a->dev));
    TRY(ds_device_reset(a->dev));
    TRY(ds_device_can_access_peer(a->dev, a->dev, &n));
    TRY(ds_device_get_priority_range(a->dev, &n, &m));
    TRY(ds_init(NULL));
    TRY(ds_shutdown());
}

static void try_events(attempt *a) {
    ds_event out;
    double ms;
    unsigned flags;
    TRY(ds_event_create(0, NULL, &out));
    TRY(ds_event_record(a->e, a->spare));
    TRY(ds_stream_record_event(a->spare, 0, &out));
    TRY(ds_stream_wait_event(a->spare, a->e));
    TRY(ds_stream_wait_stream(a->spare, a->s));
    TRY(ds_event_query(a->e));
    TRY(ds_event_synchronize(a->e));
    TRY(ds_event_synchronize_for(a->e, 1000));
    TRY(ds_event_get_elapsed_ms(a->e, a->e, &ms));
    TRY(ds_event_get_flags(a->e, &flags));
}

static void try_memory_and_work(attempt *a) {
    void *p;
    size_t pitch;
    ds_kernel k;
    TRY(ds_device_alloc(a->dev, 64, &p));
    TRY(ds_device_alloc_pitch(a->dev, 64, 2, &p, &pitch));
    TRY(ds_device_free(a->mem));
    TRY(ds_device_free(NULL));
    TRY(ds_pinned_alloc(64, &p));
    TRY(ds_pinned_free(a->pin));
    TRY(ds_pinned_register(&a->no_sentence, 4));
    TRY(ds_pinned_unregister(a->pin));
    TRY(ds_copy(a->mem, a->pin, 64, a->spare));
    TRY(ds_copy_2d(a->mem, 8, a->pin, 8, 8, 8, a->spare));
    TRY(ds_copy_peer(a->mem, a->dev, a->mem, a->dev, 8, a->spare));
    TRY(ds_copy_batch((void *[]){ a->mem }, (const void *[]){ a->pin }, (size_t[]){ 8 }, 1,
                      a->spare));
    TRY(ds_fill(a->mem, 0, 1, 64, a->spare));
    TRY(ds_fill_2d(a->mem, 8, 0, 1, 8, 8, a->spare));
    TRY(ds_stream_launch_host_func(a->spare, nothing, NULL, NULL));
    TRY(ds_stream_launch_host_func(a->spare, payload_run, &a->nested, payload_destroy));
    TRY(ds_stream_launch_closure(a->spare, no_work, NULL, 0, NULL));
    TRY(ds_stream_add_callback(a->spare, nothing_callback, NULL, NULL));
    TRY(ds_kernel_create(&(ds_kernel_desc){ .name = "k", .cpu_fn = explode }, &k));
    TRY(ds_kernel_launch(a->k, 1, NULL, 0, a->spare));
    TRY(ds_kernel_launch_grid(a->k, &(ds_grid){ .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } }, NULL,
                              0, a->spare));
#ifdef ds_kernel_load
    TRY(ds_kernel_load(a->k, a->dev));
#endif
}

static void try_everything(void *user) {
    attempt *a = user;
    char text[40];
    static const unsigned char uuid[16] = { 1, 2, 3 };
    try_streams(a);
    try_devices(a);
    try_events(a);
    try_memory_and_work(a);
    /* these may be called anywhere */
    if (!ds_error_get_last()[0] ||
        strcmp(ds_result_get_name(DS_ERR_NOT_PERMITTED), "DS_ERR_NOT_PERMITTED") != 0)
        a->helpless++;
    if (!ds_result_get_text(DS_ERR_NOT_PERMITTED)[0] ||
        ds_uuid_format(uuid, text, sizeof text) != DS_OK)
        a->helpless++;
    a->done = 1;
}

static void try_in_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    (void)status;
    try_everything(user);
}

typedef struct attempt_args {
    attempt *a;
} attempt_args;

static int try_in_kernel(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    try_everything(((const attempt_args *)args)->a);
    return 0;
}

static void setup_attempt(attempt *a) {
    memset(a, 0, sizeof *a);
    a->dev = harness_device(0);
    ok(ds_stream_create(NULL, &a->s));
    ok(ds_stream_create(NULL, &a->spare));
    ok(ds_event_create(0, NULL, &a->e));
    ok(ds_device_alloc(a->dev, 64, &a->mem));
    ok(ds_pinned_alloc(64, &a->pin));
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "try",
                                           .cpu_fn = try_in_kernel,
                                           .args_size = sizeof(attempt_args) },
                        &a->k));
}

/* Every object must have survived. */
static void check_attempt(attempt *a) {
    while (!a->done)
        sched_yield();
    ok(ds_stream_synchronize(a->s));
    if (a->wrong)
        fail_msg("%d of %d calls were not refused, first %s", a->wrong, a->tried, a->first_wrong);
    assert_true(a->tried > 60);
    assert_int_equal(a->no_sentence, 0);
    assert_int_equal(a->helpless, 0);
    assert_int_equal(a->nested.ran, 0);
    assert_int_equal(a->nested.destroyed, 1);
    assert_int_equal(ds_stream_query(a->spare), DS_OK);
    ok(ds_stream_destroy(a->s));
    ok(ds_stream_destroy(a->spare));
    ok(ds_event_destroy(a->e));
    ok(ds_device_free(a->mem));
    ok(ds_pinned_free(a->pin));
    ok(ds_kernel_destroy(a->k));
}

static void test_calls_inside_a_host_function_are_refused(void **state) {
    (void)state;
    static attempt a;
    setup_attempt(&a);
    ok(ds_stream_launch_host_func(a.s, try_everything, &a, NULL));
    check_attempt(&a);
}

static void test_calls_inside_a_callback_are_refused(void **state) {
    (void)state;
    static attempt a;
    setup_attempt(&a);
    ok(ds_stream_add_callback(a.s, try_in_callback, &a, NULL));
    check_attempt(&a);
}

static void test_calls_inside_a_destructor_are_refused(void **state) {
    (void)state;
    static attempt a;
    setup_attempt(&a);
    ok(ds_stream_launch_host_func(a.s, nothing, &a, try_everything));
    check_attempt(&a);
    setup_attempt(&a);
    ok(ds_stream_add_callback(a.s, nothing_callback, &a, try_everything));
    check_attempt(&a);
    setup_attempt(&a); /* the destructor of a refused call, on the caller's own thread */
    refused(ds_stream_launch_host_func((ds_stream){ 0 }, nothing, &a, try_everything),
            DS_ERR_INVALID_HANDLE);
    assert_int_equal(a.done, 1);
    check_attempt(&a);
}

static void test_calls_inside_a_kernel_are_refused(void **state) {
    (void)state;
    static attempt a;
    setup_attempt(&a);
    attempt_args args = { &a };
    ok(ds_kernel_launch(a.k, 1, &args, sizeof args, a.s));
    /* perhaps this thread runs the kernel, and afterwards it may call again */
    ok(ds_stream_synchronize(a.s));
    check_attempt(&a);
}

const struct CMUnitTest tests_host_functions[] = {
    DS_TEST(test_host_functions_on_the_legacy_stream_run_in_order, "peers 5"),
    DS_TEST(test_callbacks_get_their_stream_and_status_in_order, "peers 4"),
    DS_TEST(test_wrapped_streams_run_host_functions_in_order, "peers 14"),
    DS_TEST(test_only_later_work_of_its_stream_waits_for_a_host_function, "peers b.11"),
    DS_TEST(test_destructors_run_once_after_success, "host functions"),
    DS_TEST(test_destructors_run_once_when_the_call_is_refused, "host functions"),
    DS_TEST_ALONE(test_destructors_run_once_when_a_failure_skips_the_function, "peers b.1"),
    DS_TEST(test_destructors_run_once_when_the_stream_is_destroyed_first, "host functions"),
    DS_TEST(test_destructors_have_run_when_shutdown_returns, "host functions"),
    DS_TEST(test_calls_inside_a_host_function_are_refused, "peers D9"),
    DS_TEST(test_calls_inside_a_callback_are_refused, "peers D9"),
    DS_TEST(test_calls_inside_a_destructor_are_refused, "peers D9"),
    DS_TEST_CPU(test_calls_inside_a_kernel_are_refused, "peers D9"),
};
const size_t tests_host_functions_count =
    sizeof tests_host_functions / sizeof tests_host_functions[0];
