/* Call sites: file and line of a verb whose arguments call other verbs. In a unit test, since the
   macros are compiled into the test and not into the library. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <setjmp.h>
#include <cmocka.h>

static ds_stream stream;

#define ok(call) assert_int_equal(call, DS_OK)

/* Calls a verb, with another in its argument. */
static ds_stream looked_up(ds_stream s) {
    ds_device d;
    ok(ds_stream_get_device(s, &d));
    return s;
}

static void expect_site(const char *text, int line) {
    char site[40];
    snprintf(site, sizeof site, "test_sites.c:%d", line);
    if (!strstr(text, site))
        fail_msg("\"%s\" does not name %s", text, site);
}

static void test_an_error_names_the_outer_call(void **state) {
    (void)state;
    void *none;

    int line = __LINE__ + 1;
    assert_true(ds_mem_alloc((size_t)1 << 60, looked_up(looked_up(stream)), &none) < 0);

    expect_site(ds_error_get_last(), line);
}

static void find(const ds_mem_block *block, void *user) {
    ds_mem_block *wanted = user;
    if (block->ptr == wanted->ptr)
        *wanted = *block;
}

static void test_a_block_names_the_outer_call(void **state) {
    (void)state;
    ds_mem_block block = { 0 };

    int line = __LINE__ + 1;
    ok(ds_mem_alloc(100, looked_up(stream), &block.ptr));

    ok(ds_mem_for_each_block(ds_device_current(), find, &block));
    assert_non_null(block.site.file);
    assert_int_equal(block.site.line, line);
    ok(ds_mem_free(block.ptr));
}

static ds_capture_mode mode_after_calls(ds_capture_mode mode) {
    ds_device d;
    ok(ds_device_get_current(&d));
    return mode;
}

static void test_a_capture_names_the_outer_call(void **state) {
    (void)state;
    ds_graph graph;

    int line = __LINE__ + 1;
    ok(ds_capture_begin(stream, mode_after_calls(DS_CAPTURE_RELAXED)));

    assert_true(ds_stream_synchronize(stream) < 0);
    expect_site(strstr(ds_error_get_last(), "capture"), line);
    assert_true(ds_capture_end(stream, &graph) < 0);
}

static int setup(void **state) {
    (void)state;
    return ds_stream_create(NULL, &stream) < 0;
}

static int teardown(void **state) {
    (void)state;
    return ds_stream_destroy(stream) < 0 || ds_shutdown() < 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_error_names_the_outer_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_block_names_the_outer_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_capture_names_the_outer_call, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
