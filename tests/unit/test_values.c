/* Waits for words of memory without the thread that looks at them, the poller: it cannot be
   started, or only seems to run, so that writes of streams must end the waits. Conditional nodes
   on a machine without the device runtime library. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

/* How threads start: refuse: not at all; pretend: those of `pretended_fn` do not run. */
static enum { START, REFUSE, PRETEND } starts;

static void *(*pretended_fn)(void *);
static int pretended;

static int start_thread(ds__os_thread *out, void *(*main_fn)(void *), void *user) {
    if (starts == REFUSE)
        return 11 /* EAGAIN */;
    if (starts == PRETEND && main_fn == pretended_fn) {
        pretended = 1;
        *out = pthread_self();
        return 0;
    }
    return ds__os_thread_start(out, main_fn, user);
}

static void join_thread(ds__os_thread thread) {
    if (!pretended || !pthread_equal(thread, pthread_self()))
        ds__os_thread_join(thread);
}

/* When this lock is taken for the first time, the word becomes 1. */
static ds__spinlock *_Atomic watched;
static uint32_t *late;

static void lock_spinlock(ds__spinlock *l) {
    ds__spinlock *expected = l;
    if (atomic_compare_exchange_strong(&watched, &expected, NULL))
        __atomic_store_n(late, 1, __ATOMIC_SEQ_CST);
    ds__spinlock_lock(l);
}

/* The machine has no such file. */
static FILE *open_file(const char *path, const char *mode) {
    return strstr(path, "libcudadevrt.a") ? NULL : fopen(path, mode);
}

#define ds__os_thread_start start_thread
#define ds__os_thread_join join_thread
#define ds__spinlock_lock lock_spinlock
#define fopen open_file
#include "devstream.h"
#include "unit.h"

static ds_stream s, t;
static uint32_t *words;

static int begin(void **state) {
    void *p;
    (void)state;
    starts = START;
    pretended = 0;
    pretended_fn = ds__cpu_poller_main;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &t));
    ok(ds_pinned_alloc(4096, &p));
    memset(p, 0, 4096);
    words = p;
    return 0;
}

static int end(void **state) {
    (void)state;
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_pinned_free(words));
    return ds_shutdown() != DS_OK;
}

static void refused_without_a_thread(ds_result r) {
    assert_int_equal(r, DS_ERR_SYSTEM);
    assert_non_null(strstr(ds_error_get_last(), "no thread could be started"));
}

static void test_a_wait_that_no_thread_would_end_is_refused(void **state) {
    (void)state;
    ds_graph g;
    ds_graph_exec x;
    ds_value_op ops[] = { { words, 1, DS_VALUE_WRITE, 4 }, { words, 1, DS_VALUE_WAIT_EQ, 4 } };
    ds_node_desc d = { .kind = DS_NODE_VALUES, .u.values = { .ops = ops, .count = 2 } };
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &g));
    ok(ds_graph_add(g, &d, NULL, 0, NULL));
    ok(ds_graph_instantiate(g, NULL, &x));

    starts = REFUSE;
    refused_without_a_thread(ds_stream_wait_value32(s, words, 1, DS_VALUE_WAIT_EQ));
    refused_without_a_thread(ds_stream_batch_values(s, ops, 2));
    refused_without_a_thread(ds_graph_launch(x, s));

    ok(ds_stream_synchronize(s));
    assert_int_equal(words[0], 0);
    ok(ds_stream_write_value32(s, words, 1)); /* needs no thread */
    starts = START;
    ok(ds_stream_wait_value32(s, words, 1, DS_VALUE_WAIT_EQ));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
}

static void test_a_write_of_a_stream_ends_a_wait_without_the_poller(void **state) {
    (void)state;
    starts = PRETEND;
    for (uint32_t i = 1; i <= 100; i++) {
        ok(ds_stream_wait_value32(s, words, i, DS_VALUE_WAIT_EQ));
        ok(ds_stream_write_value32(s, words + 1, i));
        ok(ds_stream_write_value32(t, words, i));
        ok(ds_stream_wait_value32(t, words + 1, i, DS_VALUE_WAIT_EQ));
    }
    ok(ds_stream_synchronize_for(s, 5000000000u));
    ok(ds_stream_synchronize_for(t, 5000000000u));
    assert_int_equal(pretended, 1);
}

static void test_a_word_written_while_its_stream_parks_is_seen(void **state) {
    (void)state;
    starts = PRETEND;
    late = words;
    atomic_store(&watched, &ds__cpu.value_lock);
    ok(ds_stream_wait_value32(s, words, 1, DS_VALUE_WAIT_EQ));
    ok(ds_stream_synchronize_for(s, 5000000000u));
    assert_null(atomic_load(&watched));
}

#ifdef DEVSTREAM_CUDA
#if CUDART_VERSION >= 12080
static void test_conditions_need_the_device_runtime_library(void **state) {
    (void)state;
    ds_graph body, g;
    size_t count;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &body));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &g));
    ds_node_desc d = { .kind = DS_NODE_CONDITION,
                       .u.condition = { .word = words, .bodies = &body, .count = 1 } };
    unsetenv("DEVSTREAM_CUDADEVRT");
    assert_int_equal(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "libcudadevrt.a"));
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_CUDADEVRT"));
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 0);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
}
#endif
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_wait_that_no_thread_would_end_is_refused, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_write_of_a_stream_ends_a_wait_without_the_poller,
                                        begin, end),
        cmocka_unit_test_setup_teardown(test_a_word_written_while_its_stream_parks_is_seen, begin,
                                        end),
#ifdef DEVSTREAM_CUDA
#if CUDART_VERSION >= 12080
        cmocka_unit_test_setup_teardown(test_conditions_need_the_device_runtime_library, begin,
                                        end),
#endif
#endif
    };
    alarm(20); /* a wait that never ends also blocks ds_shutdown */
    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
