/* Fills that are so large that torch cuts them, made small by a constant of the implementation. */
#define DEVSTREAM_IMPLEMENTATION
#define DS__RNG_INDEXED 65536
#include "devstream_rng.h"
#include "rng/fill.h"
#include "unit.h"

/* Above 2 GiB, here 64 KiB, torch cuts a fill into halves. Each part takes its words, and the
   whole takes some before them: so the parts are the numbers of another generator that goes the
   same way. A capture takes as many. */
static void test_torchs_mapping_cuts_what_is_large(void **state) {
    (void)state;

    /* 100,002 bytes: parts of 25,000 and 25,001; as f32 of 12,500, 12,500, 12,500 and 12,501 */
    enum { N = 50001 };

    const ds_device device = { DS_DEVICE_CPU, 0 };
    ds_rng_desc desc = { .device = device,
                         .mapping = DS_RNG_TORCH,
                         .multiprocessors = 3,
                         .threads_per_multiprocessor = 1024 };
    ds_rng r, like;
    ds_stream s;
    uint64_t offset, before;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    ok(ds_rng_create(&desc, &r));
    ok(ds_rng_create(&desc, &like));
    static float x[N], y[N];
    static uint16_t h[N], k[N];
    for (int half = 0; half < 2; half++) {
        const size_t parts[2][5] = { { 12500, 12500, 12500, 12501 }, { 25000, 25001 } };
        ds_dtype type = half ? ds_float16() : ds_float32();
        char *whole = half ? (char *)h : (char *)x, *to = half ? (char *)k : (char *)y;
        size_t size = half ? 2 : 4;
        ok(ds_rng_uniform(r, type, whole, N, -1, 1, s));
        ok(ds_rng_get_offset(like, &offset));
        /* torch's formula, of the whole */
        ok(ds_rng_set_offset(like, offset + ((N - 1) / (3 * 4 * 256 * 4) + 1) * 4));
        for (const size_t *n = parts[half]; *n; to += *n++ * size)
            ok(ds_rng_uniform(like, type, to, *n, -1, 1, s));
        ok(ds_stream_synchronize(s));
        assert_memory_equal(whole, half ? (char *)k : (char *)y, N * size);
        ok(ds_rng_get_offset(r, &before));
        ok(ds_rng_get_offset(like, &offset));
        assert_int_equal(before, offset);
    }
    ds_graph g;
    ds_graph_exec e;
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_rng_uniform(r, ds_float32(), x, N, 0, 1, s));
    ok(ds_capture_end(s, &g));
    ok(ds_rng_get_offset(r, &offset));
    assert_int_equal(offset, before);
    ok(ds_graph_instantiate(g, NULL, &e));
    for (int i = 0; i < 2; i++) {
        ok(ds_graph_launch(e, s));
        ok(ds_rng_uniform(like, ds_float32(), y, N, 0, 1, s));
        ok(ds_stream_synchronize(s));
        assert_memory_equal(x, y, sizeof x);
    }
    ok(ds_rng_get_offset(r, &offset));
    ok(ds_rng_get_offset(like, &before));
    assert_int_equal(offset, before);
    ok(ds_graph_destroy(g));
    ok(ds_graph_exec_destroy(e));
    ok(ds_rng_destroy(r));
    ok(ds_rng_destroy(like));
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* The n-th part of a fill is refused: the parts before it are enqueued and keep their words. If
   there are none, the whole takes none, and a fill without room for its words neither. */
static void test_a_part_that_is_refused_ends_the_fill(void **state) {
    (void)state;

    /* parts of 12,500, 12,500, 12,500 and 12,501 elements; a row has 3 * 1024 threads, 4 words */
    enum { N = 50001, ROWS_OF_THE_WHOLE = 5, ROWS_OF_A_PART = 2 };

    static float x[N];
    const ds_device device = { DS_DEVICE_CPU, 0 };
    ds_rng r;
    ds_stream s;
    uint64_t offset;
    for (int part = 1; part <= 5; part++) {
        char fault[20];
        snprintf(fault, sizeof fault, "submit:%d", part);
        ok(ds_init(&(ds_init_desc){ .layers = "fault", .fault = fault }));
        ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
        ok(ds_rng_create(&(ds_rng_desc){ .device = device,
                                         .mapping = DS_RNG_TORCH,
                                         .multiprocessors = 3,
                                         .threads_per_multiprocessor = 1024 },
                         &r));
        ds_result result = ds_rng_uniform(r, ds_float32(), x, N, 0, 1, s);
        ok(ds_rng_get_offset(r, &offset));
        if (part == 5) {
            ok(result);
            assert_int_equal(offset, 4 * (ROWS_OF_THE_WHOLE + 4 * ROWS_OF_A_PART));
        } else {
            assert_int_equal(result, DS_ERR_DRIVER);
            assert_non_null(strstr(ds_error_get_last(), "injected fault in the driver's submit"));
            assert_int_equal(offset,
                             part == 1 ? 0 : 4 * (ROWS_OF_THE_WHOLE + (part - 1) * ROWS_OF_A_PART));
        }
        uint64_t most = INT64_MAX - 3;
        ok(ds_rng_set_offset(r, most));
        assert_int_equal(ds_rng_uniform(r, ds_float32(), x, N, 0, 1, s), DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_error_get_last(), "exceed 2^63"));
        ok(ds_rng_get_offset(r, &offset));
        assert_int_equal(offset, most);
        ok(ds_stream_synchronize(s));
        ok(ds_rng_destroy(r));
        ok(ds_stream_destroy(s));
        ok(ds_shutdown());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torchs_mapping_cuts_what_is_large),
        cmocka_unit_test(test_a_part_that_is_refused_ends_the_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
