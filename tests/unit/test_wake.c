/* Hand-over of host functions and small copies in the CPU driver: which threads are woken, which
   spin, and which leave their processor to another one. Futex waits, the processor that a thread
   runs on, and the copy of a small operation are replaced, so a test can hold a thread there. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

static _Atomic(_Atomic uint32_t *) late_word; /* threads that are woken on it run later */
static _Atomic int processor;                 /* on which all threads run; -1: all on others */

static void late_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    ds__futex_wait(word, value, timeout_ns);
    while (late_word == word)
        sched_yield();
}

static int thread_processor(void) {
    static _Atomic int next;
    static _Thread_local int own;
    if (!own)
        own = ++next;
    return processor >= 0 ? processor : own;
}

/* One thread may spin then. */
static int two_processors(void) {
    return 2;
}

#define ds__futex_wait late_wait
#define ds__os_processors two_processors
#define ds__os_processor thread_processor
#include "cpu/copy.h"

static _Atomic int hold_copies; /* 1: a copy waits before it begins */
static _Atomic int copies_held;

static void slow_copy(const ds__op *op, size_t first, size_t count, int around) {
    copies_held++;
    while (hold_copies)
        sched_yield();
    ds__cpu_copy_part(op, first, count, around);
}

#define ds__cpu_copy_part slow_copy
#include "devstream.h"
#include "unit.h"

static ds_stream stream, other;
static ds_kernel kernel;
static _Atomic int runs, told;

static int count_run(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    runs++;
    return 0;
}

static void host_run(void *unused) {
    (void)unused;
    runs++;
}

static void wait_until_told(void *unused) {
    (void)unused;
    while (!told)
        sched_yield();
    runs++;
}

/* Returns 0 if the expression does not become true within 20 seconds. */
#define AWAIT(expression)                                                   \
    __extension__({                                                         \
        uint64_t await_start_ = ds__now_ns();                               \
        while (!(expression) && ds__now_ns() - await_start_ < 20000000000u) \
            sched_yield();                                                  \
        (expression);                                                       \
    })

static int hosts_idle(void) {
    ds__spinlock_lock(&ds__cpu.lock);
    int idle = ds__cpu.host_idle;
    ds__spinlock_unlock(&ds__cpu.lock);
    return idle == atomic_load(&ds__cpu.host_threads);
}

static int all_asleep(void) {
    return hosts_idle() && !ds__cpu.host_spinning && !ds__cpu.spinners &&
           ds__cpu.parked == ds__cpu.workers;
}

/* Starts with one worker, one thread for host functions, one thread that may spin, and all of them
   asleep. */
static int begin(void **state) {
    (void)state;
    late_word = NULL;
    processor = -1;
    runs = told = hold_copies = copies_held = 0;
    if (ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = 1 } }) < 0 ||
        ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream) < 0 ||
        ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0), .flags = DS_STREAM_BLOCKING },
                         &other) < 0 ||
        ds_kernel_create(&(ds_kernel_desc){ .name = "count", .cpu_fn = count_run }, &kernel) < 0 ||
        ds_cpu_set_spin(0) < 0 || ds_stream_launch_host_func(stream, host_run, NULL, NULL) < 0 ||
        ds_stream_synchronize(stream) < 0)
        return 1;
    runs = 0;
    return !AWAIT(all_asleep());
}

static int end(void **state) {
    (void)state;
    late_word = NULL;
    hold_copies = 0;
    told = 1;
    return ds_shutdown() < 0;
}

/* ---- host functions ---- */

static void test_a_host_function_on_an_idle_stream_wakes_no_worker(void **state) {
    (void)state;
    uint32_t word = ds__cpu.wake_word;

    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    ok(ds_stream_synchronize(stream));

    assert_int_equal(runs, 1);
    assert_int_equal(ds__cpu.wake_word, word);
}

static void test_a_host_function_on_a_polled_stream_leaves_the_worker(void **state) {
    (void)state;
    ds__cpu.spin_ns = UINT64_MAX / 4;
    ok(ds_kernel_launch(kernel, 1, NULL, 0, stream));
    assert_true(AWAIT(runs == 1 && ds__cpu.spinners == 1));
    late_word = &ds__cpu.host_word;

    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    int left = AWAIT(ds__cpu.parked == 1 && !ds__cpu.spinners); /* or it would spin for ever */

    late_word = NULL;
    ok(ds_stream_synchronize(stream));
    assert_int_equal(runs, 2);
    assert_true(left);
}

static void test_a_thread_that_spins_takes_a_host_function_without_a_wake(void **state) {
    (void)state;
    ds__cpu.spin_ns = UINT64_MAX / 4;
    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    assert_true(AWAIT(ds__cpu.host_spinning == 1));
    uint32_t word = ds__cpu.host_word;

    for (int i = 0; i < 10; i++) {
        ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
        ok(ds_stream_synchronize(stream));
        assert_true(AWAIT(ds__cpu.host_spinning == 1));
    }

    assert_int_equal(runs, 11);
    assert_int_equal(ds__cpu.host_word, word);
}

/* One thread spins, and two streams come: a further thread must take the second. */
static void test_two_host_functions_do_not_count_on_one_thread_that_spins(void **state) {
    (void)state;
    ds__cpu.spin_ns = UINT64_MAX / 4;
    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    assert_true(AWAIT(ds__cpu.host_spinning == 1));

    ok(ds_stream_launch_host_func(stream, wait_until_told, NULL, NULL));
    ok(ds_stream_launch_host_func(other, host_run, NULL, NULL));
    int both = ds_stream_synchronize_for(other, 20000000) == DS_OK;

    told = 1;
    ok(ds_stream_synchronize(stream));
    ok(ds_stream_synchronize(other));
    assert_true(both);
    assert_int_equal(runs, 3);
}

static void test_a_thread_for_host_functions_leaves_a_worker_its_processor(void **state) {
    (void)state;
    ds__cpu.spin_ns = UINT64_MAX / 4;
    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    assert_true(AWAIT(ds__cpu.host_spinning == 1));
    late_word = &ds__cpu.wake_word;

    ok(ds_kernel_launch(kernel, 1, NULL, 0, other));
    int left = AWAIT(!ds__cpu.host_spinning && !ds__cpu.spinners);

    late_word = NULL;
    ok(ds_stream_synchronize(other));
    assert_int_equal(runs, 2);
    assert_true(left);
}

static void *synchronize(void *s) {
    ok(ds_stream_synchronize(*(ds_stream *)s));
    return NULL;
}

/* The waiter runs where the thread for host functions must run. */
static void test_a_waiting_thread_leaves_a_host_function_its_processor(void **state) {
    pthread_t waiter;
    (void)state;
    processor = 0;
    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    ok(ds_stream_synchronize(stream));
    assert_true(AWAIT(all_asleep()));
    ds__cpu.spin_ns = UINT64_MAX / 4;
    late_word = &ds__cpu.host_word;
    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));

    assert_int_equal(pthread_create(&waiter, NULL, synchronize, &stream), 0);
    int sleeps = AWAIT(ds__cpu.asleep == 1);

    late_word = NULL;
    pthread_join(waiter, NULL);
    assert_true(sleeps);
    assert_int_equal(runs, 2);
}

static void test_a_waiting_thread_on_another_processor_spins(void **state) {
    pthread_t waiter;
    (void)state;
    ds__cpu.spin_ns = UINT64_MAX / 4;
    late_word = &ds__cpu.host_word;
    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));

    assert_int_equal(pthread_create(&waiter, NULL, synchronize, &stream), 0);
    assert_true(AWAIT(ds__cpu.hurry == 1));
    usleep(20000);
    int sleeps = ds__cpu.asleep;

    late_word = NULL;
    pthread_join(waiter, NULL);
    assert_int_equal(sleeps, 0);
    assert_int_equal(runs, 1);
}

/* A thread that was woken on its caller's processor ran first; the caller waits for it. */
static void test_a_host_thread_does_not_spin_on_its_callers_processor(void **state) {
    (void)state;
    processor = 0;
    ds__cpu.spin_ns = UINT64_MAX / 4;

    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    assert_true(AWAIT(runs == 1));
    assert_true(AWAIT(all_asleep())); /* or it would spin for ever */
}

static void test_no_thread_spins_if_the_time_is_zero(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
        ok(ds_kernel_launch(kernel, 1, NULL, 0, stream));
        ok(ds_stream_synchronize(stream));
        assert_int_equal(ds__cpu.spinners, 0);
    }
    assert_true(AWAIT(all_asleep()));
    assert_int_equal(runs, 40);
}

static void test_a_shorter_time_ends_spins_that_are_under_way(void **state) {
    (void)state;
    ds__cpu.spin_ns = UINT64_MAX / 4;
    ok(ds_stream_launch_host_func(stream, host_run, NULL, NULL));
    assert_true(AWAIT(ds__cpu.host_spinning == 1));

    ok(ds_cpu_set_spin(0));

    assert_true(AWAIT(all_asleep()));
}

/* ---- small copies on streams that are ordered with the legacy stream ---- */

typedef struct copier {
    ds_stream stream;
    unsigned char *memory;
} copier;

static void *copy(void *user) {
    copier *c = user;
    ok(ds_copy(c->memory, c->memory + 256, 256, c->stream));
    return NULL;
}

/* A copy runs on `first`, and a kernel comes to `later`, which is ordered after it. */
static void expect_kernel_waits(ds_stream first, ds_stream later) {
    void *memory = NULL;
    pthread_t thread;
    ok(ds_device_alloc(ds_cpu(0), 512, &memory));
    copier c = { first, memory };
    hold_copies = 1;
    copies_held = runs = 0;
    assert_int_equal(pthread_create(&thread, NULL, copy, &c), 0);
    assert_true(AWAIT(copies_held == 1));

    ok(ds_kernel_launch(kernel, 1, NULL, 0, later));
    usleep(20000);
    int early = runs;

    hold_copies = 0;
    ok(ds_stream_synchronize(later));
    pthread_join(thread, NULL);
    ok(ds_device_free(memory));
    assert_int_equal(early, 0);
    assert_int_equal(runs, 1);
}

static void test_legacy_work_waits_for_a_copy_that_its_caller_runs(void **state) {
    ds_stream legacy;
    (void)state;
    ok(ds_stream_get_legacy(ds_cpu(0), &legacy));
    expect_kernel_waits(other, legacy);
}

static void test_blocking_work_waits_for_a_legacy_copy_that_its_caller_runs(void **state) {
    ds_stream legacy;
    (void)state;
    ok(ds_stream_get_legacy(ds_cpu(0), &legacy));
    expect_kernel_waits(legacy, other);
}

static void test_a_small_copy_on_legacy_waits_for_another_that_runs(void **state) {
    ds_stream legacy;
    ds_cpu_stats before, after;
    unsigned char *memory = NULL;
    pthread_t thread;
    (void)state;
    ok(ds_stream_get_legacy(ds_cpu(0), &legacy));
    ok(ds_device_alloc(ds_cpu(0), 512, (void **)&memory));
    ok(ds_cpu_get_stats(&before));
    copier c = { other, memory };
    hold_copies = 1;
    assert_int_equal(pthread_create(&thread, NULL, copy, &c), 0);
    assert_true(AWAIT(copies_held == 1));

    ok(ds_copy(memory, memory + 256, 256, legacy)); /* returns although the other copy runs */

    int query = ds_stream_query(legacy);
    hold_copies = 0;
    ok(ds_stream_synchronize(legacy));
    pthread_join(thread, NULL);
    ok(ds_cpu_get_stats(&after));
    assert_int_equal(query, DS_NOT_READY);
    assert_int_equal(after.inline_operations, before.inline_operations + 1);
    ok(ds_device_free(memory));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_a_host_function_on_an_idle_stream_wakes_no_worker),
        TEST(test_a_host_function_on_a_polled_stream_leaves_the_worker),
        TEST(test_a_thread_that_spins_takes_a_host_function_without_a_wake),
        TEST(test_two_host_functions_do_not_count_on_one_thread_that_spins),
        TEST(test_a_thread_for_host_functions_leaves_a_worker_its_processor),
        TEST(test_a_waiting_thread_leaves_a_host_function_its_processor),
        TEST(test_a_waiting_thread_on_another_processor_spins),
        TEST(test_a_host_thread_does_not_spin_on_its_callers_processor),
        TEST(test_no_thread_spins_if_the_time_is_zero),
        TEST(test_a_shorter_time_ends_spins_that_are_under_way),
        TEST(test_legacy_work_waits_for_a_copy_that_its_caller_runs),
        TEST(test_blocking_work_waits_for_a_legacy_copy_that_its_caller_runs),
        TEST(test_a_small_copy_on_legacy_waits_for_another_that_runs),
    };
    return cmocka_run_group_tests_name("wake", tests, NULL, NULL);
}
