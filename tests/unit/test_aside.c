/* Streams that a worker of the CPU driver sets aside: it owns them between two parts of their work,
   because another stream waits for each part. One worker, so a test decides what it runs. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"

enum { STREAMS = 12 };

static ds_stream first, stream[STREAMS];
static ds_event event;
static ds_kernel kernel;
static _Atomic uint32_t *word;          /* pinned; 1: the streams begin */
static _Atomic int told, blocked, hung; /* hung: a test waited for too long */
static _Atomic uint64_t sum;            /* of the numbers of the kernels, in their order */
static int aside_at_block;

enum { BLOCK = 1000000 };

/* Short, except for the number BLOCK once all runs before were short. */
static int step(size_t from, size_t count, const void *args) {
    const uint64_t *number = args;
    (void)from, (void)count;
    if (*number != BLOCK) {
        sum = sum * 31 + *number;
        return 0;
    }
    aside_at_block = 0;
    for (int i = 0; i < DS__CPU_ASIDE_SLOTS; i++)
        aside_at_block += ds__cpu.worker[0].aside[i] != NULL;
    blocked = 1;
    while (!told)
        sched_yield();
    return 0;
}

static void launch(ds_stream on, uint64_t number) {
    ok(ds_kernel_launch(kernel, 1, &number, sizeof number, on));
}

static void wait_for(ds_stream waiter, ds_stream other) {
    ok(ds_event_record(event, other));
    ok(ds_stream_wait_event(waiter, event));
}

static void *tell_late(void *unused) {
    for (int i = 0; i < 20000 && !told; i++)
        ds__os_sleep(1000000);
    hung = !told;
    told = 1;
    return unused;
}

/* All streams wait for the word. The kernel counts as short. */
static int begin(void **state) {
    (void)state;
    told = blocked = hung = 0;
    sum = 0;
    if (ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = 1 } }) < 0 ||
        ds_kernel_create(&(ds_kernel_desc){ .name = "step", .cpu_fn = step, .args_size = 8 },
                         &kernel) < 0 ||
        ds_pinned_alloc(64, (void **)&word) < 0 || ds_event_create(0, NULL, &event) < 0 ||
        ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &first) < 0)
        return 1;
    *word = 0;
    for (int i = 0; i < STREAMS; i++)
        if (ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream[i]) < 0)
            return 1;
    for (uint64_t i = 0; i < 8; i++)
        launch(first, i);
    ok(ds_stream_synchronize(first));
    sum = 0;
    ok(ds_stream_wait_value32(first, (void *)word, 1, DS_VALUE_WAIT_EQ));
    for (int i = 0; i < STREAMS; i++)
        wait_for(stream[i], first);
    return 0;
}

static int end(void **state) {
    (void)state;
    told = 1;
    *word = 1;
    return ds_shutdown() < 0;
}

/* Only the worker runs the streams: the host thread looks, and does not help. */
static void await_done(ds_stream s) {
    while (ds_stream_query(s) == DS_NOT_READY)
        sched_yield();
    ok(ds_stream_query(s));
}

static uint64_t expected(uint64_t count) {
    uint64_t value = 0;
    for (uint64_t i = 0; i < count; i++)
        value = value * 31 + i;
    return value;
}

static void test_streams_that_wait_by_turns_keep_their_order(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        launch(i % 2 ? stream[0] : first, i);
        if (i % 2)
            wait_for(first, stream[0]);
        else
            wait_for(stream[0], first);
    }

    *word = 1;
    await_done(first);
    await_done(stream[0]);

    assert_int_equal(sum, expected(2000));
}

/* More streams than slots; each has work left that nothing waits for. */
static void test_all_work_of_streams_that_were_set_aside_runs(void **state) {
    (void)state;
    for (int i = 0; i < STREAMS; i++) {
        launch(stream[i], 1);
        wait_for(first, stream[i]);
        launch(stream[i], 1);
    }
    launch(first, 1);

    *word = 1;
    for (int i = 0; i < STREAMS; i++)
        await_done(stream[i]);
    await_done(first);

    uint64_t want = 0;
    for (int i = 0; i < 2 * STREAMS + 1; i++)
        want = want * 31 + 1;
    assert_int_equal(sum, want);
}

/* The worker takes a kernel for short that blocks. The work of the stream that is aside does not
   depend on that kernel, and must not wait for its end. */
static void test_a_blocked_worker_does_not_keep_a_stream_aside(void **state) {
    (void)state;
    pthread_t late;
    launch(stream[0], 0);
    wait_for(first, stream[0]);
    launch(stream[0], 1);
    launch(first, BLOCK);
    assert_int_equal(pthread_create(&late, NULL, tell_late, NULL), 0);

    ds_stream_native native;
    ok(ds_stream_export(stream[0], &native));
    const ds__cpu_stream *s = native.handle;
    *word = 1;
    while ((!blocked || s->state != DS__CPU_READY) && !hung)
        sched_yield();
    ok(ds_stream_synchronize(stream[0])); /* the host thread runs the rest */

    int in_time = !told;
    told = 1;
    pthread_join(late, NULL);
    await_done(first);
    assert_true(in_time);
    assert_int_equal(aside_at_block, 1);
    assert_int_equal(sum, expected(2));
}

static void test_a_destroyed_stream_that_was_set_aside_is_recycled(void **state) {
    (void)state;
    ds_cpu_stats before;
    ds_cpu_stats after;
    ok(ds_cpu_get_stats(&before));
    launch(stream[0], 0);
    wait_for(first, stream[0]);
    launch(stream[0], 1);
    ok(ds_stream_destroy(stream[0]));
    /* such streams are reclaimed in batches */
    for (int i = 1; i < DS__RECLAIM_BATCH; i++) {
        ds_stream other;
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &other));
        ok(ds_stream_destroy(other));
    }

    *word = 1;
    await_done(first);
    do {
        ok(ds_cpu_get_stats(&after));
        sched_yield();
    } while (after.streams >= before.streams); /* or the test hangs */

    assert_int_equal(sum, expected(2));
}

/* A thread may run a collective or begin work of another library while it holds the lock. */
static void test_a_worker_does_not_wait_for_a_put_lock(void **state) {
    ds_stream_native native;
    ds_kernel fresh; /* not known to be short, so the calling thread does not run it itself */
    uint64_t number = 2;
    (void)state;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "fresh", .cpu_fn = step, .args_size = sizeof number }, &fresh));
    *word = 1;
    await_done(first);
    ok(ds_stream_export(first, &native));
    ds__cpu_stream *held = native.handle;
    launch(first, BLOCK);
    while (!blocked)
        sched_yield();

    /* the kernel ends while the lock is held, and the worker gives the stream up a little later */
    ds__spinlock_lock(&held->put_lock);
    told = 1;
    ds__os_sleep(1000 * DS__CPU_SPIN_NS);
    ok(ds_kernel_launch(fresh, 1, &number, sizeof number, stream[0]));
    while (ds_stream_query(stream[0]) == DS_NOT_READY) /* or the test hangs */
        sched_yield();
    ds__spinlock_unlock(&held->put_lock);

    launch(first, 3);
    await_done(first);
    assert_int_equal(sum, 2 * 31 + 3);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_streams_that_wait_by_turns_keep_their_order),
        TEST(test_all_work_of_streams_that_were_set_aside_runs),
        TEST(test_a_blocked_worker_does_not_keep_a_stream_aside),
        TEST(test_a_destroyed_stream_that_was_set_aside_is_recycled),
        TEST(test_a_worker_does_not_wait_for_a_put_lock),
    };
    return cmocka_run_group_tests_name("aside", tests, NULL, NULL);
}
