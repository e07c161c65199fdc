/* The engine "nccl" on the stand-ins for NCCL and cudart: each allocation of a call, each call of
   the driver and each call of NCCL fails once. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "../ranks/solo.h"
#include "nccl/nccl_standin.h"

static void nccl_arm(long nth) {
    standin_nccl_fail((unsigned long)nth, 3);
}

static int nccl_disarm(void) {
    int hit = standin_nccl_failed();
    standin_nccl_fail(0, 0);
    return hit;
}

static const fault nccl_fails = { nccl_arm, nccl_disarm, DS_ERR_FAILED, "nccl", 0 };

static void each_call(size_t own, const fault *f) {
    setup how = { .engine = "nccl", .type = DS_DEVICE_CUDA, .own = own };
    solo_each(&how, verbs, VERBS, f);
}

static void test_each_allocation_may_fail(void **state) {
    (void)state;
    each_call(1, &no_memory);
    each_call(FEW, &no_memory);
}

static void test_each_call_of_the_driver_may_fail(void **state) {
    (void)state;
    each_call(FEW, &driver_fails);
}

static void test_each_call_of_nccl_may_fail(void **state) {
    (void)state;
    each_call(1, &nccl_fails);
    each_call(FEW, &nccl_fails);
}

/* The list of members is memory of its own. */
static void test_each_allocation_with_many_devices_may_fail(void **state) {
    (void)state;
    setup how = { .engine = "nccl", .type = DS_DEVICE_CUDA, .own = 12 };
    solo_each(&how, many_verbs, 2, &no_memory);
}

static void test_each_step_of_a_creation_may_fail(void **state) {
    (void)state;
    setup how = { .engine = "nccl", .type = DS_DEVICE_CUDA, .own = FEW };
    solo_each_creation(&how, &no_memory);
    solo_each_creation(&how, &driver_fails);
    solo_each_creation(&how, &nccl_fails);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_may_fail),
        cmocka_unit_test(test_each_call_of_the_driver_may_fail),
        cmocka_unit_test(test_each_call_of_nccl_may_fail),
        cmocka_unit_test(test_each_allocation_with_many_devices_may_fail),
        cmocka_unit_test(test_each_step_of_a_creation_may_fail),
    };
    setenv("STANDIN_DEVICES", "12", 1);
    if (!has_gpus())
        return 1;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
