/* Into how many pieces the CPU driver splits a launch. The library's clock is replaced: each thread
   has one of its own, a read takes 100 ns, and the kernel sets how long its items take. */
#include <stdatomic.h>
#include <stdint.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

static _Thread_local uint64_t clock_ns;

static uint64_t read_clock(void) {
    return clock_ns += 100;
}

#define ds__now_ns read_clock
#include "devstream.h"
#include "unit.h"

enum { WORKERS = 2 };

static uint64_t item_ps;
static _Atomic int calls;
static _Atomic size_t ran;

static int work(size_t first, size_t count, const void *args) {
    (void)first;
    (void)args;
    clock_ns += count * item_ps / 1000;
    calls++;
    ran += count;
    return 0;
}

static int begin(void **state) {
    (void)state;
    return ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = WORKERS } }) < 0;
}

static int end(void **state) {
    (void)state;
    return ds_shutdown() < 0;
}

/* Launches a new kernel. Returns the number of calls of its function. */
static int calls_of(size_t items, uint64_t ps) {
    ds_kernel k;
    ds_stream s;
    item_ps = ps;
    calls = 0;
    ran = 0;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "timed", .cpu_fn = work }, &k));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_kernel_launch(k, items, NULL, 0, s));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    ok(ds_kernel_destroy(k));
    assert_true(ran == items);
    return calls;
}

/* The first 100 items take 10 ns, and the clock 100. */
static void test_the_clock_does_not_count_as_work(void **state) {
    (void)state;
    assert_int_equal(calls_of(6400, 100), 2);
}

static void test_pieces_of_short_launches_are_not_tiny(void **state) {
    (void)state;
    assert_int_equal(calls_of(25600, 1000), 1 + 25200 / DS__CPU_PIECE_NS);
}

static void test_each_thread_has_two_pieces_at_least(void **state) {
    (void)state;
    assert_int_equal(calls_of(2560, 1000), 1 + 2 * (WORKERS + 1));
}

static void test_each_thread_has_eight_pieces_at_most(void **state) {
    (void)state;
    assert_int_equal(calls_of(6400000, 1000), 1 + 8 * (WORKERS + 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_clock_does_not_count_as_work, begin, end),
        cmocka_unit_test_setup_teardown(test_pieces_of_short_launches_are_not_tiny, begin, end),
        cmocka_unit_test_setup_teardown(test_each_thread_has_two_pieces_at_least, begin, end),
        cmocka_unit_test_setup_teardown(test_each_thread_has_eight_pieces_at_most, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
