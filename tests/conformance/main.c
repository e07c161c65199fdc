/* The conformance suite: every driver runs the same tests. An argument picks the tests whose name contains it. */
#include <stdio.h>
#include <stdlib.h>
#include "harness.h"

#define GROUPS(X) \
    X(devices) X(streams) X(current) X(events) X(copies) X(host_functions) X(kernels) X(failure) X(lifecycle) X(cpu_named) X(random)
#define DECLARE(name) extern const struct CMUnitTest tests_##name[]; extern const size_t tests_##name##_count;
GROUPS(DECLARE)

/* With DEVSTREAM_LOG=2 this names what the tests have left behind. */
static int close_all(void **state) {
    (void)state;
    harness_shutdown();
    return 0;
}

int main(int argc, char **argv) {
    static struct CMUnitTest all[1000];
    static char pattern[200];
    size_t count = 0;
    setenv("DEVSTREAM_CPU_DEVICES", "2", 0); /* tests between devices need two */
#define COLLECT(name) \
    for (size_t i = 0; i < tests_##name##_count && count < sizeof all / sizeof all[0]; i++) all[count++] = tests_##name[i];
    GROUPS(COLLECT)
    if (argc > 1) {
        snprintf(pattern, sizeof pattern, "*%s*", argv[1]);
        cmocka_set_test_filter(pattern);
    }
    return _cmocka_run_group_tests("devstream", all, count, NULL, close_all);
}
