/* Costs of destroyed objects: barriers that calls make for them, and questions to the driver about
   the work that still uses them. */
#include <semaphore.h>
#include <stdatomic.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

static _Atomic int barriers;

static void count_barrier(void) {
    barriers++;
    ds__os_barrier();
}

#define ds__os_barrier count_barrier
#include "devstream.h"
#include "unit.h"

/* The CPU driver with a `passed` that counts the questions. */
static ds__driver counting;
static const ds__driver *counted;
static int questions;

static int count_question(void **mark) {
    questions++;
    return counted->passed(mark);
}

static sem_t gate;
static _Atomic int ran;

static void await(void *semaphore) {
    sem_wait(semaphore);
}

static ds_stream stream_of_the_cpu(void) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    return s;
}

static int count_run(size_t first, size_t count, const void *args) {
    (void)first;
    (void)args;
    ran += (int)count;
    return 0;
}

static int begin(void **state) {
    ds_device device;
    (void)state;
    ran = 0;
    sem_init(&gate, 0, 0);
    ok(ds_device_get_current(&device));
    counted = ds__g.driver[1];
    counting = *counted;
    counting.passed = count_question;
    ds__g.driver[1] = &counting;
    return 0;
}

static int end(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        sem_post(&gate); /* after a failure */
    return ds_shutdown() < 0;
}

enum { KERNELS = 500, CALLS = 100 };

/* Kernels that are destroyed while their launches wait for the gate. */
static void destroy_pending_kernels(ds_stream stream) {
    for (int i = 0; i < KERNELS; i++) {
        ds_kernel k;
        ok(ds_kernel_create(&(ds_kernel_desc){ .name = "counts", .cpu_fn = count_run }, &k));
        ok(ds_kernel_launch(k, 1, NULL, 0, stream));
        ok(ds_kernel_destroy(k));
    }
}

static void test_calls_ask_once_about_all_kernels_that_wait(void **state) {
    ds_stream busy, idle;
    (void)state;
    busy = stream_of_the_cpu();
    idle = stream_of_the_cpu();
    ok(ds_stream_launch_host_func(busy, await, &gate, NULL));
    destroy_pending_kernels(busy);

    barriers = questions = 0;
    for (int i = 0; i < CALLS; i++)
        ok(ds_stream_synchronize(idle));

    assert_int_equal(barriers, 0);
    assert_true(questions <= CALLS);
    sem_post(&gate);
    ok(ds_stream_synchronize(busy));
    assert_int_equal(ran, KERNELS);
}

static void test_kernels_are_freed_after_the_work_that_used_them(void **state) {
    ds_stream busy;
    (void)state;
    busy = stream_of_the_cpu();
    ok(ds_stream_launch_host_func(busy, await, &gate, NULL));
    destroy_pending_kernels(busy);
    assert_int_equal(ds__g.deferred_kernels, KERNELS);

    sem_post(&gate);
    ok(ds_stream_synchronize(busy));

    assert_int_equal(ds__g.deferred_kernels, 0);
    assert_int_equal(ran, KERNELS);
}

static void test_a_kernel_that_is_destroyed_later_waits_for_its_own_work(void **state) {
    ds_stream busy, later;
    ds_kernel k;
    sem_t first;
    (void)state;
    sem_init(&first, 0, 0);
    busy = stream_of_the_cpu();
    later = stream_of_the_cpu();
    ok(ds_stream_launch_host_func(busy, await, &first, NULL));
    destroy_pending_kernels(busy);
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "later", .cpu_fn = count_run }, &k));
    ok(ds_stream_launch_host_func(later, await, &gate, NULL));
    ok(ds_kernel_launch(k, 1, NULL, 0, later));
    ok(ds_kernel_destroy(k));

    sem_post(&first);
    ok(ds_stream_synchronize(busy));

    assert_true(ds__g.deferred_kernels > 0);
    sem_post(&gate);
    ok(ds_stream_synchronize(later));
    assert_int_equal(ds__g.deferred_kernels, 0);
    assert_int_equal(ran, KERNELS + 1);
    sem_destroy(&first);
}

static void test_a_shutdown_frees_kernels_that_still_wait(void **state) {
    ds_stream busy;
    (void)state;
    busy = stream_of_the_cpu();
    ok(ds_stream_launch_host_func(busy, await, &gate, NULL));
    destroy_pending_kernels(busy);
    sem_post(&gate);

    ok(ds_shutdown());

    assert_int_equal(ran, KERNELS);
    assert_int_equal(ds__g.deferred_kernels, 0);
}

/* A membarrier costs half a microsecond, ten times as much as the rest of the call. */
static void test_destroyed_events_and_streams_share_a_membarrier(void **state) {
    enum { MANY = 10 * DS__RECLAIM_BATCH };

    ds_event e;
    ds_stream s;
    (void)state;
    s = stream_of_the_cpu();
    ok(ds_stream_destroy(s));

    barriers = 0;
    for (int i = 0; i < MANY; i++) {
        ok(ds_event_create(0, NULL, &e));
        ok(ds_event_destroy(e));
    }
    assert_in_range(barriers, 1, MANY / DS__RECLAIM_BATCH + 1);

    barriers = 0;
    for (int i = 0; i < MANY; i++) {
        s = stream_of_the_cpu();
        ok(ds_stream_destroy(s));
    }
    assert_in_range(barriers, 1, MANY / DS__RECLAIM_BATCH + 1);
}

static void count_release(void *user) {
    ++*(int *)user;
}

static void test_a_release_function_does_not_wait_for_a_batch(void **state) {
    int released = 0;
    ds_stream own, s;
    ds_stream_native native;
    (void)state;
    own = stream_of_the_cpu();
    ok(ds_stream_export(own, &native));

    for (int i = 1; i <= 3; i++) {
        ok(ds_stream_wrap(&native, DS_BORROW, count_release, &released, &s));
        ok(ds_stream_destroy(s));
        assert_int_equal(released, i);
    }

    ok(ds_stream_destroy(own));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls_ask_once_about_all_kernels_that_wait, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_kernels_are_freed_after_the_work_that_used_them, begin,
                                        end),
        cmocka_unit_test_setup_teardown(
            test_a_kernel_that_is_destroyed_later_waits_for_its_own_work, begin, end),
        cmocka_unit_test_setup_teardown(test_a_shutdown_frees_kernels_that_still_wait, begin, end),
        cmocka_unit_test_setup_teardown(test_destroyed_events_and_streams_share_a_membarrier, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_release_function_does_not_wait_for_a_batch, begin,
                                        end),
    };
    return cmocka_run_group_tests_name("reclaim", tests, NULL, NULL);
}
