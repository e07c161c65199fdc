/* Options of the CPU driver that change where its threads run, and what the program's threads may
   read. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "harness.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* ---- processors of the driver's threads ----------------------------------------------------- */

/* How many threads of the driver may run on the first listed processor only, on the second one
   only, and on both. */
typedef struct bound_threads {
    int first, second, both, other;
} bound_threads;

/* Two processors that this process may use. Returns 0 if there is one only. */
static int two_processors(int out[2]) {
    cpu_set_t mask;
    int n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET((size_t)i, &mask))
            out[n++] = i;
    return n == 2;
}

/* Returns 1 for a thread of the library that runs. */
static int is_library_thread(const char *task) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    int read = fgets(name, sizeof name, f) != NULL;
    fclose(f);
    return read && strcmp(name, "devstream\n") == 0;
}

static bound_threads read_bound_threads(const int list[2]) {
    bound_threads n = { 0 };
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *one; (one = readdir(folder)) != NULL;) {
        cpu_set_t mask;
        if (*one->d_name < '0' || *one->d_name > '9' || !is_library_thread(one->d_name) ||
            sched_getaffinity((pid_t)atoi(one->d_name), sizeof mask, &mask))
            continue;
        int a = CPU_ISSET((size_t)list[0], &mask) != 0;
        int b = CPU_ISSET((size_t)list[1], &mask) != 0;
        int *is = a && b ? &n.both : a ? &n.first : b ? &n.second : &n.other;
        ++*(CPU_COUNT(&mask) == a + b ? is : &n.other);
    }
    closedir(folder);
    return n;
}

/* The threads bind themselves when they begin to run. */
static void expect_bound_threads(const int list[2], bound_threads want) {
    bound_threads n = { 0 };
    for (int i = 0; i < 5000; i++) {
        n = read_bound_threads(list);
        /* the monitor may have started a second thread for host functions */
        if (n.first >= want.first && n.second == want.second && n.both == want.both &&
            n.other == want.other)
            return;
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    fail_msg("%d threads on %d, %d on %d, %d on both, %d others; expected are %d, %d, %d, %d",
             n.first, list[0], n.second, list[1], n.both, n.other, want.first, want.second,
             want.both, want.other);
}

static void read_own_mask(void *mask) {
    if (sched_getaffinity(0, sizeof(cpu_set_t), mask))
        CPU_ZERO((cpu_set_t *)mask);
}

static void test_workers_are_bound_in_the_order_of_the_list(void **state) {
    int cpu[2];
    char list[32];
    (void)state;
    if (!two_processors(cpu))
        skip();
    snprintf(list, sizeof list, "%d,%d", cpu[1], cpu[0]);
    ds_cpu_desc desc = { .workers = 3, .affinity = list };

    harness_restart(&(ds_init_desc){ .cpu = &desc });
    memset(list, 'x', sizeof list - 1); /* ds_init has copied it */
    ok(ds_device_synchronize(harness_device(0)));

    /* and the monitor on both */
    expect_bound_threads((int[]){ cpu[1], cpu[0] }, (bound_threads){ 2, 1, 1, 0 });
    harness_restart(NULL);
}

static void test_host_functions_may_use_each_listed_processor(void **state) {
    int cpu[2];
    char list[32];
    cpu_set_t own, seen;
    (void)state;
    if (!two_processors(cpu))
        skip();
    snprintf(list, sizeof list, "%d", cpu[1]);
    ds_cpu_desc desc = { .affinity = list };
    read_own_mask(&own);
    harness_restart(&(ds_init_desc){ .cpu = &desc });
    ds_stream s = harness_stream(0, 0);

    ok(ds_stream_launch_host_func(s, read_own_mask, &seen, NULL));
    ok(ds_stream_synchronize(s));

    assert_int_equal(CPU_COUNT(&seen), 1);
    assert_true(CPU_ISSET((size_t)cpu[1], &seen));
    /* one worker per processor, but at least two; the monitor and a thread for host functions */
    expect_bound_threads((int[]){ cpu[1], cpu[0] }, (bound_threads){ 4, 0, 0, 0 });
    read_own_mask(&seen);
    assert_true(CPU_EQUAL(&own, &seen));
    harness_restart(NULL);
}

static void test_the_environment_lists_processors(void **state) {
    int cpu[2];
    char list[32];
    cpu_set_t own, seen;
    (void)state;
    if (!two_processors(cpu))
        skip();
    read_own_mask(&own);
    snprintf(list, sizeof list, "%d-%d", cpu[0], cpu[0]);
    setenv("DEVSTREAM_CPU_AFFINITY", list, 1);

    harness_restart(NULL);
    ok(ds_device_synchronize(harness_device(0)));
    expect_bound_threads(cpu, (bound_threads){ 3, 0, 0, 0 });

    /* the options count more */
    ds_cpu_desc desc = { .affinity = "" };
    harness_restart(&(ds_init_desc){ .cpu = &desc });
    ds_stream s = harness_stream(0, 0);
    ok(ds_stream_launch_host_func(s, read_own_mask, &seen, NULL));
    ok(ds_stream_synchronize(s));
    assert_true(CPU_EQUAL(&own, &seen));

    harness_shutdown();
    setenv("DEVSTREAM_CPU_AFFINITY", "all", 1);
    refused(ds_device_synchronize(ds_cpu(0)), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_CPU_AFFINITY is \"all\""));
    unsetenv("DEVSTREAM_CPU_AFFINITY");
    harness_restart(NULL);
}

static void test_wrong_lists_of_processors_are_refused(void **state) {
    static const char *const wrong[] = { "x",          "0,",     ",0",   "0-",   "-1",
                                         "0--0",       "1-0",    "0 ",   "0;0",  "4294967296",
                                         "0-99999999", "0-8191", "0,,0", "8191", "8192" };
    char many[8192] = "";
    int cpu[2];
    (void)state;
    (void)two_processors(cpu);
    harness_shutdown();

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_cpu_desc desc = { .affinity = wrong[i] };
        refused(ds_init(&(ds_init_desc){ .cpu = &desc }), DS_ERR_INVALID_VALUE);
        char part[64];
        snprintf(part, sizeof part, "ds_cpu_desc.affinity is \"%s\"", wrong[i]);
        assert_non_null(strstr(ds_error_get_last(), part));
        assert_non_null(strstr(ds_error_get_last(), "allowed"));
    }
    for (size_t at = 0, i = 0; i <= 1024; i++)
        at += (size_t)snprintf(many + at, sizeof many - at, "%s%d", i ? "," : "", cpu[0]);
    ds_cpu_desc desc = { .affinity = many };
    refused(ds_init(&(ds_init_desc){ .cpu = &desc }), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "at most 1024 processors are allowed"));
    harness_restart(NULL);
}

const struct CMUnitTest tests_cpu_options[] = {
    DS_TEST_CPU(test_workers_are_bound_in_the_order_of_the_list, "cpu driver"),
    DS_TEST_CPU(test_host_functions_may_use_each_listed_processor, "cpu driver"),
    DS_TEST_CPU(test_the_environment_lists_processors, "cpu driver"),
    DS_TEST_CPU(test_wrong_lists_of_processors_are_refused, "cpu driver"),
};
const size_t tests_cpu_options_count = sizeof tests_cpu_options / sizeof tests_cpu_options[0];
