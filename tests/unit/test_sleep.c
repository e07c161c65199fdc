/* Threads of the CPU driver that have nothing to do sleep. The library's futex waits are counted,
   so a test sees how many threads sleep. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

static _Atomic int asleep;

/* Sleeps with a time limit do not count: a thread that ticks does not sleep. */
static void count_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    asleep += timeout_ns == DS__FOREVER;
    ds__futex_wait(word, value, timeout_ns);
    asleep -= timeout_ns == DS__FOREVER;
}

#define ds__futex_wait count_wait
#include "devstream.h"
#include "unit.h"

enum { ITEMS = 64, WORKERS = 2 };

static sem_t gate;
static _Atomic int ran, blocked, over;
static int blocks_owner; /* 1: the thread that began the launch waits for the gate, 0: another */
static pthread_t owner;
static int owner_pieces;

/* 0: it did not happen within 20 seconds. */
static int await(_Atomic int *what, int value) {
    uint64_t start = ds__now_ns();
    while (*what != value && ds__now_ns() - start < 20000000000u)
        sched_yield();
    return *what == value;
}

/* The first item takes long enough for the launch to be split. Then one thread waits for the gate
   in its first piece. The owner calls others after two pieces, and leaves pieces to them. */
static int work(size_t first, size_t count, const void *args) {
    (void)args;
    ran += (int)count;
    if (first == 0) {
        uint64_t start = ds__now_ns();
        owner = pthread_self();
        while (ds__now_ns() - start < 1000000) {
        }
        return 0;
    }
    int is_owner = pthread_equal(owner, pthread_self());
    int none = 0;
    if (is_owner == blocks_owner && atomic_compare_exchange_strong(&blocked, &none, 1))
        sem_wait(&gate);
    else if (is_owner && ++owner_pieces == 3)
        await(&blocked, 1);
    return 0;
}

static void *synchronize(void *stream) {
    ok(ds_stream_synchronize(*(ds_stream *)stream));
    over = 1;
    return NULL;
}

static int begin(void **state) {
    (void)state;
    sem_init(&gate, 0, 0);
    ran = blocked = over = owner_pieces = 0;
    return ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = WORKERS } }) < 0;
}

static int end(void **state) {
    (void)state;
    return ds_shutdown() < 0;
}

static void expect_sleep(void) {
    ds_stream s;
    ds_kernel k;
    pthread_t waiter;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "work", .cpu_fn = work }, &k));
    ok(ds_kernel_launch(k, ITEMS, NULL, 0, s));
    assert_int_equal(pthread_create(&waiter, NULL, synchronize, &s), 0);
    int is_blocked = await(&blocked, 1);

    /* both workers, the waiter and the monitor, but the thread that is in the kernel */
    int all_sleep = await(&asleep, WORKERS + 1);

    int early = over;
    sem_post(&gate);
    pthread_join(waiter, NULL);
    assert_true(is_blocked);
    assert_true(all_sleep);
    assert_false(early);
    assert_int_equal(ran, ITEMS);
}

static void test_threads_sleep_while_the_owner_of_a_job_works(void **state) {
    (void)state;
    blocks_owner = 1;
    expect_sleep();
}

static void test_the_owner_of_a_job_sleeps_while_another_thread_works(void **state) {
    (void)state;
    blocks_owner = 0;
    if (ds__os_processors() < 2)
        skip(); /* no other thread is called */
    expect_sleep();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_threads_sleep_while_the_owner_of_a_job_works, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_the_owner_of_a_job_sleeps_while_another_thread_works,
                                        begin, end),
    };
    return cmocka_run_group_tests_name("sleep", tests, NULL, NULL);
}
