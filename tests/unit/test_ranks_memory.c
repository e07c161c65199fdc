/* Process groups of the engine "local" on which each allocation of a call, or each call of the
   driver, fails once. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "../ranks/solo.h"

static void test_each_allocation_of_a_collective_may_fail(void **state) {
    (void)state;
    setup two = { .engine = "local", .type = DS_DEVICE_CPU, .own = FEW };
    setup one = { .engine = "local", .type = DS_DEVICE_CPU, .own = 1 };
    solo_each(&one, verbs, VERBS, &no_memory);
    solo_each(&two, verbs, VERBS, &no_memory);
    two.flags = DS_RANKS_COMPARE;
    two.warm = 1;
    solo_each(&two, verbs, VERBS, &no_memory);
}

/* The lists of a call with many devices are memory of their own. */
static void test_each_allocation_with_many_devices_may_fail(void **state) {
    (void)state;
    setup how = { .engine = "local", .type = DS_DEVICE_CPU, .own = MOST, .same = 1 };
    solo_each(&how, many_verbs, MANY_VERBS, &no_memory);
}

static void test_each_allocation_on_gpus_may_fail(void **state) {
    (void)state;
    setup how = { .engine = "local", .type = DS_DEVICE_CUDA, .own = FEW };
    if (!has_gpus())
        skip();
    solo_each(&how, verbs, VERBS, &no_memory);
    solo_each(&how, &slow_verb, 1, &no_memory);
    how.own = 1;
    solo_each(&how, large_verbs, LARGE_VERBS, &no_memory);
}

static void test_each_step_of_a_creation_may_fail(void **state) {
    (void)state;
    setup how = { .engine = "local", .type = DS_DEVICE_CPU, .own = FEW, .limit_ns = 20000000 };
    solo_each_creation(&how, &no_memory);
    solo_each_creation(&how, &driver_fails);
    char record[] = "/tmp/ds-solo-XXXXXX";
    int file = mkstemp(record);
    assert_true(file >= 0);
    close(file);
    how.record = record;
    solo_each_creation(&how, &no_memory);
    (void)unlink(record);
}

static void test_each_call_of_the_driver_may_fail(void **state) {
    (void)state;
    setup how = { .engine = "local", .type = DS_DEVICE_CPU, .own = FEW };
    solo_each(&how, verbs, VERBS, &driver_fails);
    how.type = DS_DEVICE_CUDA;
    if (has_gpus())
        solo_each(&how, verbs, VERBS, &driver_fails);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_of_a_collective_may_fail),
        cmocka_unit_test(test_each_allocation_with_many_devices_may_fail),
        cmocka_unit_test(test_each_allocation_on_gpus_may_fail),
        cmocka_unit_test(test_each_step_of_a_creation_may_fail),
        cmocka_unit_test(test_each_call_of_the_driver_may_fail),
    };
    setenv("DEVSTREAM_CPU_DEVICES", "3", 1);
    setenv("DEVSTREAM_CPU_WORKERS", "2", 1);
    setenv("STANDIN_DEVICES", "2", 1);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
