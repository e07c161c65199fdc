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
    setup how = { .engine = "nccl", .type = DS_DEVICE_CUDA, .own = FEW, .limit_ns = 200 * 1000000 };
    solo_each_creation(&how, &no_memory);
    solo_each_creation(&how, &driver_fails);
    solo_each_creation(&how, &nccl_fails);
}

/* Captures a sum while the nth step fails. Returns 0 if there are fewer steps. */
static int capture_attempt(const fault *f, long nth) {
    static solo alone;
    solo *me = &alone;
    static const verb sum = { .kind = ALL_REDUCE, .part = 3, .flags = DS_COMM_ANY_ORDER };
    setup how = { .engine = "nccl", .type = DS_DEVICE_CUDA, .own = 1 };
    ds_graph graph = { 0 };
    solo_begin(me, &how);
    solo_tensors(me, &how, &sum);
    OK(solo_call(me, &how, &sum));
    OK(solo_wait(me, &how));
    OK(ds_capture_begin(me->stream[0], DS_CAPTURE_THREAD_LOCAL));
    f->arm_fn(nth);
    ds_result r = solo_call(me, &how, &sum);
    int hit = f->disarm_fn();
    if (r < 0)
        EXPECT(r, f->code, f->words);
    if (!hit)
        OK(r);
    DS_IGNORE(ds_capture_end(me->stream[0], &graph));
    if (graph.id)
        OK(ds_graph_destroy(graph));
    ds_result status = ds_ranks_get_status(me->group);
    if (status == DS_OK) {
        OK(solo_call(me, &how, &sum));
        OK(solo_wait(me, &how));
        solo_check(me, &how, &sum);
    } else {
        EXPECT(status, f->code, "in a capture, of group \"solo\" on rank 0 of 1: nccl");
    }
    solo_free(me, &how, &sum);
    solo_end(me, &how, f);
    return hit;
}

static void test_each_step_of_a_capture_may_fail(void **state) {
    (void)state;
    static const fault *const faults[] = { &no_memory, &driver_fails, &nccl_fails };
    atomic_store(&failures, 0);
    alarm(60);
    for (size_t i = 0; i < 3; i++) {
        long nth = 1;
        while (capture_attempt(faults[i], nth) && !atomic_load(&failures))
            nth++;
        assert_true(nth > 1);
    }
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
}

/* Registers memory while the nth step fails. Returns 0 if there are fewer steps. */
static int register_attempt(const fault *f, long nth) {
    static solo alone;
    solo *me = &alone;
    setup how = { .engine = "nccl", .type = DS_DEVICE_CUDA, .own = FEW };
    void *memory;
    void *pinned;
    solo_begin(me, &how);
    OK(ds_mem_alloc(4096, me->stream[1], &memory));
    OK(ds_mem_pinned_alloc(64, &pinned));
    EXPECT(ds_ranks_register(me->group, pinned, 64), DS_ERR_INVALID_VALUE, "is not memory of a");
    f->arm_fn(nth);
    ds_result r = ds_ranks_register(me->group, memory, 4096);
    int hit = f->disarm_fn();
    EXPECT(r, hit ? f->code : DS_OK, f->words);
    if (r < 0)
        OK(ds_ranks_register(me->group, memory, 4096));
    OK(ds_ranks_deregister(me->group, memory));
    OK(ds_ranks_abort(me->group, "the end"));
    EXPECT(ds_ranks_register(me->group, memory, 4096), DS_ERR_ABORTED, "its group has failed");
    OK(ds_mem_free(memory));
    OK(ds_mem_pinned_free(pinned));
    solo_end(me, &how, f);
    return hit;
}

static void test_each_step_of_a_registration_may_fail(void **state) {
    (void)state;
    static const fault *const faults[] = { &no_memory, &nccl_fails };
    atomic_store(&failures, 0);
    alarm(60);
    for (size_t i = 0; i < 2; i++)
        for (long nth = 1; register_attempt(faults[i], nth) && !atomic_load(&failures);)
            nth++;
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
}

/* Runs a sum of one process by NCCL while the nth step fails: without memory for the call,
   devstream computes it. Returns 0 if there are fewer steps. */
static int in_process_attempt(const fault *f, long nth) {
    static solo alone;
    solo *me = &alone;
    static const verb sum = { .kind = ALL_REDUCE, .part = 3 };
    setup how = { .engine = "nccl", .type = DS_DEVICE_CUDA, .own = FEW };
    library_begin();
    solo_streams(me, &how);
    solo_tensors(me, &how, &sum);
    const ds_tensor *in[] = { &me->in[0].t, &me->in[1].t };
    const ds_tensor *out[] = { &me->out[0].t, &me->out[1].t };
    ds_comm_options o = {
        .streams = me->stream, .stream_count = FEW, .engine = "nccl", .flags = DS_COMM_ANY_ORDER
    };
    f->arm_fn(nth);
    ds_result r = ds_comm_all_reduce(in, out, FEW, DS_REDUCE_SUM, &o);
    int hit = f->disarm_fn();
    if (r < 0)
        EXPECT(r, f->code, f->words);
    if (!hit)
        OK(r);
    DS_IGNORE(solo_wait(me, &how));
    if (r < 0) { /* another group takes the place of one that has failed */
        for (size_t k = 0; k < FEW; k++) {
            ds_stream_desc desc = { .device = me->device[k] };
            DS_IGNORE(ds_stream_destroy(me->stream[k]));
            OK(ds_stream_create(&desc, &me->stream[k]));
        }
        OK(ds_comm_all_reduce(in, out, FEW, DS_REDUCE_SUM, &o));
    }
    solo_check(me, &how, &sum);
    solo_free(me, &how, &sum);
    solo_end(me, &how, f);
    return hit;
}

static void test_each_step_in_one_process_may_fail(void **state) {
    (void)state;
    static const fault *const faults[] = { &no_memory, &nccl_fails };
    atomic_store(&failures, 0);
    alarm(120);
    for (size_t i = 0; i < 2; i++)
        for (long nth = 1; in_process_attempt(faults[i], nth) && !atomic_load(&failures);)
            nth++;
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_may_fail),
        cmocka_unit_test(test_each_call_of_the_driver_may_fail),
        cmocka_unit_test(test_each_call_of_nccl_may_fail),
        cmocka_unit_test(test_each_allocation_with_many_devices_may_fail),
        cmocka_unit_test(test_each_step_of_a_creation_may_fail),
        cmocka_unit_test(test_each_step_of_a_capture_may_fail),
        cmocka_unit_test(test_each_step_of_a_registration_may_fail),
        cmocka_unit_test(test_each_step_in_one_process_may_fail),
    };
    setenv("STANDIN_DEVICES", "12", 1);
    if (!has_gpus())
        return 1;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
