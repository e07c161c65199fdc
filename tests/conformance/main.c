/* The conformance suite: every driver runs the same tests. An argument picks the tests whose
   name contains it, DS_TEST_GROUP those of a group (a file); --groups lists the groups that have
   tests for the driver, --list its tests, each behind its group. DS_TEST_ALONE is the suite's own:
   it names the one test to which this process belongs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "harness.h"

/* clang-format off */
#define GROUPS(X) \
    X(devices) X(streams) X(current) X(events) X(copies) X(host_functions) X(user_code) X(closures) X(kernels) X(launch_attributes) X(kernel_once) X(kernel_once_o0) \
    X(kernel_once_o3) X(kernel_debug) X(kernel_math) X(failure) X(lifecycle) X(cpu_named) X(cpu_options) X(cuda) X(random) X(capture) X(graphs) X(graph_random) X(values) X(conditions) X(condition_random) \
    X(capture_matrix) X(checks) X(ranges) X(activity) X(device_functions) X(sync_debug) X(sharing) X(memory_text) \
    X(memory_lines) X(pinned) X(resources) X(memory_snapshot) X(pools) X(checkpoints) X(alloc) \
    X(alloc_policy) X(alloc_shortage) X(alloc_stats) X(alloc_random) X(alloc_capture) \
    X(alloc_backends) X(tensors) X(comm) X(comm_torch) X(comm_random) X(comm_faults) X(comm_once) \
    X(comm_plans) X(rng) X(documents) X(fault_entries)
/* clang-format on */
#define DECLARE(name)                              \
    extern const struct CMUnitTest tests_##name[]; \
    extern const size_t tests_##name##_count;
GROUPS(DECLARE)

/* With DEVSTREAM_LOG=2 this names what the tests have left behind. */
static int close_all(void **state) {
    (void)state;
    if (!getenv("DS_TEST_ALONE")) {
        harness_shutdown();
        return 0;
    }
    ds_result r = ds_shutdown(); /* a device may have failed */
    return r != DS_OK && r != DS_ERR_FAILED;
}

/* A gate is a kernel that runs for long: what would make others wait for it on a GPU is switched
   off. */
static void prepare_cuda(void) {
    /* few hardware queues make streams share them */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* loading at the first use may wait for the device */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

int sharing_peer(void);

int main(int argc, char **argv) {
    /* the other process of a test */
    if (getenv("DS_TEST_PEER"))
        return sharing_peer();
    static struct CMUnitTest all[2000];
    static char pattern[200];
    size_t count = 0;
#define LIST(name)                                                             \
    for (size_t i = 0, any = 0; i < tests_##name##_count && !any; i++)         \
        if ((any = (size_t)harness_wants(tests_##name[i].initial_state)) != 0) \
            puts(#name);
    if (argc > 1 && !strcmp(argv[1], "--groups")) {
        GROUPS(LIST)
        return 0;
    }
#define LIST_TESTS(name)                                  \
    for (size_t i = 0; i < tests_##name##_count; i++)     \
        if (harness_wants(tests_##name[i].initial_state)) \
            printf("%s %s\n", #name,                      \
                   ((const struct harness_test *)tests_##name[i].initial_state)->fn_name);
    if (argc > 1 && !strcmp(argv[1], "--list")) {
        GROUPS(LIST_TESTS)
        return 0;
    }
    setenv("DEVSTREAM_CPU_DEVICES", "2", 0); /* tests between devices need two */
    prepare_cuda();
    const char *group = getenv("DS_TEST_GROUP"); /* on Windows, setenv may move what was read */
#define COLLECT(name)                                                                   \
    for (size_t i = 0; i < tests_##name##_count && (!group || !strcmp(group, #name)) && \
                       count < sizeof all / sizeof all[0];                              \
         i++)                                                                           \
        if (harness_wants(tests_##name[i].initial_state))                               \
            all[count++] = tests_##name[i];
    GROUPS(COLLECT)
    if (getenv("DS_TEST_ALONE") && count != 1)
        return 99;
    if (group && count == 0) {
        fprintf(stderr, "there is no group %s\n", group);
        return 97;
    }
    if (count == sizeof all / sizeof all[0]) {
        fprintf(stderr, "there are more tests than have room\n");
        return 98;
    }
    if (argc > 1) {
        snprintf(pattern, sizeof pattern, "*%s*", argv[1]);
        cmocka_set_test_filter(pattern);
    }
    return _cmocka_run_group_tests("devstream", all, count, NULL, close_all);
}
