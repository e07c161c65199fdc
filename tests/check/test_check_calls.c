/* The public functions of the check layer, one by one, and its options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ds__driver;
static const struct ds__driver *slot_layer(const struct ds__driver *next, int backend);
#define DS__TEST_LAYERS(X) X("slot", slot_layer, NULL)
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "core/layers.h"
#include "data_races.h"
#include "unit.h"

enum { SIZE = 4096 };

static struct {
    int count;
    ds_hazard hazard;
    int possible;
    char text[4096];
    char key[400];
    char fix[400];
} last;

static void take(const ds_hazard_report *r, void *user) {
    last.count++;
    last.hazard = r->hazard;
    last.possible = r->possible;
    snprintf(last.text, sizeof last.text, "%s", r->text);
    snprintf(last.key, sizeof last.key, "%s", r->key);
    snprintf(last.fix, sizeof last.fix, "%s", r->fix);
    assert_ptr_equal(user, &last);
}

static ds_result begin_on(const char *layers, const char *options) {
    static ds_cpu_desc cpu = { .devices = 1 };
    memset(&last, 0, sizeof last);
    ds_check_set_report_fn(take, &last);
    return ds_init(&(ds_init_desc){
        .cpu = &cpu, .layers = layers, .check = options, .flags = DS_INIT_NO_CUDA });
}

static ds_result begin_with(const char *options) {
    return begin_on(NULL, options);
}

static ds_stream stream(const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .label = label }, &s));
    return s;
}

static char *pinned(void) {
    void *p;
    ok(ds_pinned_alloc(SIZE, &p));
    return p;
}

/* Two fills without a wait between them. */
static void race(char *p) {
    ok(ds_fill(p, 1, 1, SIZE, stream("first")));
    ok(ds_fill(p, 2, 1, SIZE, stream("second")));
}

static void end(void) {
    ok(ds_device_synchronize(ds_cpu(0)));
    ok(ds_shutdown());
}

static void test_a_report_has_text_key_and_fix(void **state) {
    ds_check_stats stats;
    (void)state;
    ok(begin_with("quiet"));

    race(pinned());

    ok(ds_check_get_stats(&stats));
    assert_int_equal(last.count, 1);
    assert_int_equal(last.hazard, DS_HAZARD_WRITE_AFTER_WRITE);
    assert_int_equal(stats.reports, 1);
    assert_int_equal(stats.accesses, 2);
    assert_non_null(strstr(last.text, "now      ds_fill at test_check_calls.c:"));
    assert_non_null(strstr(last.key, "hazard=write-after-write"));
    assert_non_null(strstr(last.fix, "ds_stream_wait_stream(second, first)"));
    end();
}

static void test_hazards_have_names(void **state) {
    (void)state;
    assert_string_equal(ds_hazard_get_name(DS_HAZARD_USE_AFTER_FREE), "use-after-free");
    assert_string_equal(ds_hazard_get_name((ds_hazard)99), "unknown");
}

static void test_host_accesses_belong_to_the_thread(void **state) {
    (void)state;
    ok(begin_with("quiet"));
    ds_stream s = stream("uploads");
    char *p = pinned();

    ok(ds_fill(p, 1, 1, SIZE, s));
    ok(ds_check_host_read(p, SIZE));
    assert_int_equal(last.hazard, DS_HAZARD_READ_AFTER_WRITE);
    ok(ds_stream_synchronize(s));
    ok(ds_check_host_write(p, SIZE));
    assert_int_equal(last.count, 1);
    end();
}

static void test_a_declared_order_is_an_order(void **state) {
    (void)state;
    ok(begin_with("quiet,threads"));
    ds_stream a = stream("a");
    ds_stream b = stream("b");
    char *p = pinned();

    ok(ds_fill(p, 1, 1, SIZE, a));
    ok(ds_check_declare_order(a, b));
    ok(ds_fill(p, 2, 1, SIZE, b));
    ok(ds_check_declare_order(b, (ds_stream){ 0 }));
    ok(ds_check_host_read(p, SIZE));
    ok(ds_check_release(p));
    ok(ds_check_acquire(p));
    assert_int_equal(last.count, 0);
    assert_int_equal(ds_check_declare_order(a, (ds_stream){ 12345 }), DS_ERR_INVALID_HANDLE);
    end();
}

static void test_declared_memory_is_checked_until_it_is_forgotten(void **state) {
    static char memory[SIZE];
    (void)state;
    ok(begin_with("quiet"));

    assert_int_equal(ds_check_declare_memory(memory, SIZE_MAX - 511, NULL), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "end behind the address space"));
    ok(ds_check_declare_memory(memory, SIZE, "foreign"));
    assert_int_equal(ds_check_declare_memory(memory + 8, 8, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_check_host_write(memory, SIZE));
    ok(ds_check_forget_memory(memory));
    assert_int_equal(ds_check_forget_memory(memory), DS_ERR_INVALID_VALUE);
    assert_int_equal(last.count, 0);
    end();
}

static void test_ignored_bytes_have_no_race(void **state) {
    (void)state;
    ok(begin_with("quiet"));
    char *p = pinned();

    ok(ds_check_ignore(p, SIZE));
    race(p);
    assert_int_equal(last.count, 0);
    assert_int_equal(ds_check_ignore(NULL, 8), DS_ERR_INVALID_VALUE);
    end();
}

static int nothing(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

static void test_extents_of_one_launch_replace_the_kernels(void **state) {
    static const ds_param param = { DS_PARAM_WRITE, 0, sizeof(void *) };
    static const ds_extent half = { .kind = DS_EXTENT_BYTES, .bytes = SIZE / 2 };
    ds_extent wrong = { .kind = DS_EXTENT_BYTES };
    ds_kernel k;
    (void)state;
    ok(begin_with("quiet"));
    char *p = pinned();
    char *q = p + SIZE / 2;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "store",
                                           .cpu_fn = nothing,
                                           .args_size = sizeof p,
                                           .params = &param,
                                           .param_count = 1 },
                        &k));

    ok(ds_check_set_extents(&half, 1));
    ok(ds_kernel_launch(k, 1, &p, sizeof p, stream("low")));
    ok(ds_check_set_extents(&half, 1));
    ok(ds_kernel_launch(k, 1, &q, sizeof q, stream("high")));
    assert_int_equal(last.count, 0);
    ok(ds_kernel_launch(k, 1, &q, sizeof q, stream("all")));
    assert_int_equal(last.possible, 1);
    assert_int_equal(ds_check_set_extents(&wrong, 1), DS_ERR_INVALID_VALUE);
    end();
}

/* Their arguments may be pointers, of which the layer knows nothing. */
static void test_launches_without_a_list_of_parameters_are_counted(void **state) {
    ds_check_stats stats;
    ds_graph g;
    ds_graph_exec e;
    ds_kernel k[2];
    (void)state;
    ok(begin_with("quiet"));
    char *p = pinned();
    for (size_t i = 0; i < 2; i++)
        ok(ds_kernel_create(
            &(ds_kernel_desc){ .name = "store", .cpu_fn = nothing, .args_size = i * sizeof p },
            &k[i]));
    ds_stream s = stream("s");
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_kernel_launch(k[1], 1, &p, sizeof p, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &e));

    ok(ds_kernel_launch(k[0], 1, NULL, 0, s));
    ok(ds_kernel_launch(k[1], 1, &p, sizeof p, s));
    ok(ds_graph_launch(e, s));
    ok(ds_graph_launch(e, s));

    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.undeclared, 3);
    end();
}

static void test_why_prints_the_chain_of_waits(void **state) {
    ds_check_point p;
    ds_check_point q;
    char text[1000];
    (void)state;
    ok(begin_with("quiet"));
    ds_stream a = stream("a");
    ds_stream b = stream("b");
    char *memory = pinned();

    ok(ds_fill(memory, 1, 1, SIZE, a));
    ok(ds_check_get_point(a, &p));
    ok(ds_fill(memory, 1, 1, 0, b));
    ok(ds_check_get_point(b, &q));
    assert_int_equal(ds_check_why(p, q, text, sizeof text), DS_NOT_READY);
    assert_non_null(strstr(text, "no wait orders operation 1 of a before"));
    ok(ds_stream_wait_stream(b, a));
    ok(ds_check_get_point(b, &q));
    ok(ds_check_why(p, q, text, sizeof text));
    assert_non_null(strstr(text, "operation 1 of a comes before operation"));
    assert_non_null(strstr(text, "ds_stream_wait_stream at test_check_calls.c:"));
    end();
}

static void test_why_cuts_its_text_between_characters(void **state) {
    ds_check_point p;
    ds_check_point q;
    char text[64];
    (void)state;
    ok(begin_with("quiet"));
    ds_stream a = stream("\u00e9\u00e9");
    ok(ds_fill(pinned(), 1, 1, SIZE, a));
    ok(ds_check_get_point(a, &p));
    ok(ds_check_get_point((ds_stream){ 0 }, &q));

    memset(text, 'x', sizeof text);
    assert_int_equal(ds_check_why(p, q, text, 35), DS_NOT_READY);
    assert_string_equal(text, "no wait orders operation 1 of \u00e9\u00e9");
    assert_int_equal(ds_check_why(p, q, text, 34), DS_NOT_READY);
    assert_string_equal(text, "no wait orders operation 1 of \u00e9");
    assert_int_equal(ds_check_why(p, q, text, 1), DS_NOT_READY);
    assert_string_equal(text, "");
    assert_int_equal(ds_check_why(p, q, text, 0), DS_NOT_READY);
    assert_int_equal(ds_check_why(p, (ds_check_point){ 0 }, text, 1), DS_ERR_INVALID_VALUE);
    end();
}

static void test_without_the_layer_the_calls_do_nothing(void **state) {
    ds_check_point p;
    ds_check_stats stats;
    (void)state;
    ok(begin_with(NULL));

    race(pinned());

    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.operations, 0);
    assert_int_equal(last.count, 0);
    assert_int_equal(ds_check_get_point((ds_stream){ 0 }, &p), DS_ERR_ILLEGAL_STATE);
    end();
}

/* ---- handles and numbers of streams that have ended ---- */

static void test_destroyed_streams_are_refused(void **state) {
    ds_check_point p;
    (void)state;
    ok(begin_with("quiet"));
    ds_stream live = stream("live");
    ds_stream gone = stream("gone");
    ok(ds_fill(pinned(), 1, 1, SIZE, gone));
    ok(ds_stream_destroy(gone));

    assert_int_equal(ds_check_get_point(gone, &p), DS_ERR_INVALID_HANDLE);
    assert_int_equal(p.line, 0);
    assert_non_null(strstr(ds_error_get_last(), "the stream was destroyed or never existed"));
    assert_int_equal(ds_check_declare_order(gone, live), DS_ERR_INVALID_HANDLE);
    assert_non_null(strstr(ds_error_get_last(), "from: the stream was destroyed"));
    assert_int_equal(ds_check_declare_order(live, gone), DS_ERR_INVALID_HANDLE);
    assert_non_null(strstr(ds_error_get_last(), "to: the stream was destroyed"));
    end();
}

static uint32_t line_of(ds_stream s) {
    ds_check_point p;
    ok(ds_check_get_point(s, &p));
    return p.line;
}

/* Destroys a stream and returns a new one with the number of its timeline. */
static ds_stream successor(ds_stream s) {
    uint32_t line = line_of(s);
    char *p = pinned();
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    for (int i = 0; i < 1000; i++) {
        s = stream("successor");
        if (line_of(s) == line)
            return s;
        ok(ds_fill(p, 1, 1, SIZE, s));
        ok(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
    }
    fail_msg("the number of a timeline was not used again");
    return s;
}

static void test_a_block_outlives_the_number_of_its_stream(void **state) {
    void *p;
    (void)state;
    ok(begin_with("quiet"));
    ds_stream own = stream("own");
    ok(ds_mem_alloc(SIZE, own, &p));
    ok(ds_fill(p, 1, 1, SIZE, own));

    own = successor(own);
    ok(ds_fill(p, 2, 1, SIZE, own));
    ok(ds_mem_free(p));

    assert_int_equal(last.hazard, DS_HAZARD_FREE_IN_USE);
    assert_non_null(strstr(last.fix, "ds_mem_record_use for successor"));
    assert_non_null(strstr(last.fix, "let the host wait for successor"));
    end();
}

static void test_a_recorded_stream_is_not_its_successor(void **state) {
    void *p;
    (void)state;
    ok(begin_with("quiet"));
    ds_stream own = stream("own");
    ds_stream user = stream("user");
    ok(ds_mem_alloc(SIZE, own, &p));
    ok(ds_stream_wait_stream(user, own));
    ok(ds_fill(p, 1, 1, SIZE, user));
    ok(ds_mem_record_stream(p, user));
    ok(ds_stream_synchronize(user));

    user = successor(user);
    ok(ds_fill(p, 2, 1, SIZE, user));
    ok(ds_mem_free(p));

    assert_int_equal(last.hazard, DS_HAZARD_FREE_IN_USE);
    end();
}

/* Returns the memory of the layer after many streams, each with a block that outlives it. */
static uint64_t bytes_after_streams(int count) {
    ds_check_stats stats;
    for (int i = 0; i < count; i++) {
        void *p;
        ds_stream s = stream("short");
        ok(ds_mem_alloc(SIZE, s, &p));
        ok(ds_fill(p, 1, 1, SIZE, s));
        ok(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
        ok(ds_mem_free(p));
    }
    ok(ds_check_get_stats(&stats));
    return stats.bytes;
}

static void test_short_streams_with_blocks_take_no_memory(void **state) {
    (void)state;
    ok(begin_with("quiet"));
    uint64_t before = bytes_after_streams(1000);
    assert_in_range(bytes_after_streams(2000), before / 2, before + before / 8);
    end();
}

/* ---- calls that the driver refuses, and another thread within a call ---- */

/* A layer below the check layer, with a driver's pool of one allocation. */
static struct {
    const ds__driver *next;
    ds__driver table;
    void *free; /* the allocation that is free */
    int pools;
    int refuses;
    void (*taker)(void); /* called before a free returns */
} slot;

static ds_result slot_alloc(int device, void *on, size_t size, void **out) {
    if (!slot.free)
        return slot.next->async_alloc(device, on, size, out);
    *out = slot.free;
    slot.free = NULL;
    return DS_OK;
}

static ds_result slot_free(int device, void *on, void *ptr, size_t size) {
    if (slot.refuses)
        return ds__fail(DS_ERR_DRIVER, "refused by the test");
    if (!slot.pools)
        return slot.next->async_free(device, on, ptr, size);
    slot.free = ptr;
    if (slot.taker)
        slot.taker();
    return DS_OK;
}

static ds_result slot_submit(void *on, const ds__op *op) {
    if (slot.refuses && op->kind == DS__OP_GRAPH)
        return ds__fail(DS_ERR_DRIVER, "refused by the test");
    return slot.next->submit(on, op);
}

static const ds__driver *slot_layer(const ds__driver *next, int backend) {
    (void)backend;
    memset(&slot, 0, sizeof slot);
    slot.next = next;
    slot.table = *next;
    slot.table.async_alloc = slot_alloc;
    slot.table.async_free = slot_free;
    slot.table.submit = slot_submit;
    return &slot.table;
}

static struct {
    ds_resource pool;
    ds_stream stream;
    void *ptr;
    ds_result result;
} other;

static void *other_thread(void *unused) {
    other.result = ds_resource_alloc(&other.pool, SIZE, 256, other.stream, &other.ptr);
    return unused;
}

static void other_takes(void) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
}

static void test_a_free_does_not_end_the_next_owners_memory(void **state) {
    void *p;
    (void)state;
    ok(begin_on("slot", "quiet"));
    ds_stream s = stream("first");
    other.stream = stream("second");
    ok(ds_resource_create_driver_pool(&other.pool));
    ok(ds_resource_alloc(&other.pool, SIZE, 256, s, &p));

    slot.pools = 1;
    slot.taker = other_takes;
    ok(ds_resource_free(&other.pool, p, SIZE, s));
    ok(other.result);
    assert_ptr_equal(other.ptr, p);
    ok(ds_fill(p, 1, 1, SIZE, other.stream));
    assert_int_equal(last.count, 0);

    slot.pools = 0;
    ok(ds_resource_free(&other.pool, p, SIZE, other.stream));
    ok(ds_fill(p, 1, 1, 0, s));
    end();
}

static void test_after_a_refused_free_the_memory_is_live(void **state) {
    ds_check_stats before;
    ds_check_stats after;
    void *p;
    (void)state;
    ok(begin_on("slot", "quiet"));
    ds_stream s = stream("first");
    ok(ds_resource_create_driver_pool(&other.pool));
    ok(ds_resource_alloc(&other.pool, SIZE, 256, s, &p));
    ok(ds_fill(p, 1, 1, SIZE, s));
    ok(ds_check_get_stats(&before));

    slot.refuses = 1;
    assert_int_equal(ds_resource_free(&other.pool, p, SIZE, s), DS_ERR_DRIVER);
    slot.refuses = 0;

    ok(ds_check_get_stats(&after));
    assert_int_equal(after.ranges, before.ranges);
    assert_int_equal(after.records, before.records);
    ok(ds_fill(p, 2, 1, SIZE, s));
    assert_int_equal(last.count, 0);
    ok(ds_resource_free(&other.pool, p, SIZE, s));
    end();
}

static void reads(void *ptr) {
    ok(ds_check_host_read(ptr, SIZE));
}

/* Captures host functions with one argument. */
static ds_graph_exec host_functions(ds_stream s, char *p, int count) {
    ds_graph g;
    ds_graph_exec e;
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < count; i++)
        ok(ds_stream_launch_host_func(s, reads, p, NULL));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &e));
    return e;
}

static void test_host_nodes_with_one_argument_are_both_known(void **state) {
    (void)state;
    ok(begin_with("quiet"));
    ds_stream s = stream("launches");
    char *p = pinned();
    ds_graph_exec e = host_functions(s, p, 2);

    ok(ds_fill(p, 1, 1, SIZE, s));
    ok(ds_graph_launch(e, s));
    ok(ds_stream_synchronize(s));

    assert_int_equal(last.count, 0);
    end();
}

static void test_refused_launches_leave_no_host_functions(void **state) {
    ds_check_stats before;
    ds_check_stats after;
    (void)state;
    ok(begin_on("slot", "quiet"));
    ds_stream s = stream("launches");
    ds_graph_exec e = host_functions(s, pinned(), 2);
    ok(ds_graph_launch(e, s));
    ok(ds_stream_synchronize(s));
    ok(ds_check_get_stats(&before));

    slot.refuses = 1;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(ds_graph_launch(e, s), DS_ERR_DRIVER);
    slot.refuses = 0;

    ok(ds_check_get_stats(&after));
    assert_in_range(after.bytes, 0, before.bytes + 1000);
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_report_has_text_key_and_fix),
        cmocka_unit_test(test_hazards_have_names),
        cmocka_unit_test(test_host_accesses_belong_to_the_thread),
        cmocka_unit_test(test_a_declared_order_is_an_order),
        cmocka_unit_test(test_declared_memory_is_checked_until_it_is_forgotten),
        cmocka_unit_test(test_ignored_bytes_have_no_race),
        cmocka_unit_test(test_extents_of_one_launch_replace_the_kernels),
        cmocka_unit_test(test_launches_without_a_list_of_parameters_are_counted),
        cmocka_unit_test(test_why_prints_the_chain_of_waits),
        cmocka_unit_test(test_why_cuts_its_text_between_characters),
        cmocka_unit_test(test_without_the_layer_the_calls_do_nothing),
        cmocka_unit_test(test_destroyed_streams_are_refused),
        cmocka_unit_test(test_a_block_outlives_the_number_of_its_stream),
        cmocka_unit_test(test_a_recorded_stream_is_not_its_successor),
        cmocka_unit_test(test_short_streams_with_blocks_take_no_memory),
        cmocka_unit_test(test_a_free_does_not_end_the_next_owners_memory),
        cmocka_unit_test(test_after_a_refused_free_the_memory_is_live),
        cmocka_unit_test(test_host_nodes_with_one_argument_are_both_known),
        cmocka_unit_test(test_refused_launches_leave_no_host_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
