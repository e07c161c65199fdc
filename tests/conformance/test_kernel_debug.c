/* Kernels that are compiled with -DDEVSTREAM_KERNEL_DEBUG: mistakes that it makes visible. */
#define DEVSTREAM_KERNEL_DEBUG
#include "harness.h"
#include "kernels/debug.kernels.h"

#include <string.h>

enum { THREADS = 8 };

static void *words_new(void) {
    void *p;
    ok(ds_pinned_alloc(THREADS * sizeof(uint32_t), &p));
    memset(p, 0, THREADS * sizeof(uint32_t));
    return p;
}

static void test_threads_in_one_thread_loop_pass_the_check(void **state) {
    (void)state;
    ds_stream s;
    uint32_t *out = words_new();
    ok(ds_stream_create(NULL, &s));

    ok(DS_LAUNCH(debug_split, s, 1, THREADS, out));
    ok(ds_stream_synchronize(s));

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(out[i], 1);
    ok(ds_pinned_free(out));
    ok(ds_stream_destroy(s));
}

static void test_threads_in_different_thread_loops_fail(void **state) {
    (void)state;
    ds_stream s;
    uint32_t *out = words_new();
    ok(ds_stream_create(NULL, &s));

    ok(DS_LAUNCH(debug_split, s, 1, THREADS / 2, out));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);

    harness_recover(0);
}

static void test_unwritten_private_values_are_nan(void **state) {
    (void)state;
    ds_stream s;
    float *out = words_new();
    ok(ds_stream_create(NULL, &s));

    ok(DS_LAUNCH(debug_unwritten, s, 1, out));
    ok(ds_stream_synchronize(s));

    for (int i = 0; i < THREADS; i++)
        assert_true(out[i] != out[i]);
    ok(ds_pinned_free(out));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_kernel_debug[] = {
    DS_TEST(test_threads_in_one_thread_loop_pass_the_check, "kernel: once"),
    DS_TEST_CUDA_WITH(test_threads_in_different_thread_loops_fail, "kernel: once", NULL),
    DS_TEST_CPU(test_unwritten_private_values_are_nan, "kernel: once"),
};
const size_t tests_kernel_debug_count = sizeof tests_kernel_debug / sizeof tests_kernel_debug[0];
