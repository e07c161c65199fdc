/* The check layer together with the allocator's tools: guards, poison and its backends. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "unit.h"

enum { SIZE = 5000 };

static const char *const configs[] = { "guard_bytes:512", "poison:True",
                                       "poison:True,guard_bytes:1024", "backend:cudaMallocAsync",
                                       "backend:uncached" };

enum { CONFIGS = sizeof configs / sizeof configs[0] };

static ds_stream owner, other;

static char *block(void) {
    void *p;
    ok(ds_mem_alloc(SIZE, owner, &p));
    return p;
}

/* A block whose stream was complete before the allocation may be used by other streams. */
static void fresh_block(int is_wrong) {
    ok(ds_fill(block(), 1, 1, SIZE, owner));
    if (!is_wrong)
        ok(ds_stream_synchronize(owner));
    char *p = block();
    ok(ds_fill(p, 2, 1, SIZE, other));
    ok(ds_stream_synchronize(other));
    ok(ds_mem_free(p));
}

/* A block that has been freed and allocated again. Without the cache, the free waits for the
   device, so neither form is wrong. */
static void second_life(int is_wrong) {
    char *p = block();
    ok(ds_fill(p, 1, 1, SIZE, owner));
    ok(ds_mem_free(p));
    p = block();
    if (!is_wrong)
        ok(ds_stream_wait_stream(other, owner));
    ok(ds_fill(p, 2, 1, SIZE, other));
    ok(ds_stream_synchronize(other));
    ok(ds_mem_free(p));
}

/* A free while another stream uses the block. */
static void free_in_use(int is_wrong) {
    char *p = block();
    ok(ds_stream_wait_stream(other, owner));
    ok(ds_fill(p, 2, 1, SIZE, other));
    if (!is_wrong)
        ok(ds_mem_record_use(p, other));
    ok(ds_mem_free(p));
}

/* Runs a program with a configuration of the allocator. Returns the number of reports. */
static uint64_t count_reports(const char *config, void (*program)(int is_wrong), int is_wrong) {
    static ds_cpu_desc cpu = { .devices = 1 };
    ds_check_stats stats;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .check = "quiet", .flags = DS_INIT_NO_CUDA }));
    ok(ds_mem_configure_text(config));
    ok(ds_stream_create(&(ds_stream_desc){ .label = "owner" }, &owner));
    ok(ds_stream_create(&(ds_stream_desc){ .label = "other" }, &other));
    program(is_wrong);
    ok(ds_device_synchronize(ds_cpu(0)));
    ok(ds_check_get_stats(&stats));
    ok(ds_shutdown());
    return stats.reports;
}

/* Expects one report of the wrong form and none of the other one, with the first configurations. */
static void judge(void (*program)(int is_wrong), int count) {
    for (int i = 0; i < count; i++) {
        assert_int_equal(count_reports(configs[i], program, 1), 1);
        assert_int_equal(count_reports(configs[i], program, 0), 0);
    }
}

static void test_a_fresh_block_may_be_used_by_other_streams(void **state) {
    (void)state;
    judge(fresh_block, CONFIGS);
}

static void test_a_block_that_was_freed_needs_a_wait(void **state) {
    (void)state;
    judge(second_life, CONFIGS - 1);
}

static void test_a_free_in_use_is_found_with_all_tools(void **state) {
    (void)state;
    judge(free_in_use, CONFIGS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_fresh_block_may_be_used_by_other_streams),
        cmocka_unit_test(test_a_block_that_was_freed_needs_a_wait),
        cmocka_unit_test(test_a_free_in_use_is_found_with_all_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
