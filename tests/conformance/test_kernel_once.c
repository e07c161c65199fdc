/* Kernels that are written once: results of both forms, launches, and refused launches. */
#include "harness.h"
#include "locks.h"
#include "kernels/once.kernels.h"
#include "kernels/wrong.kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- help ---- */

static ds_stream stream_new(void) {
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    return s;
}

/* Pinned memory, which both drivers' kernels read and write. */
static void *words_new(size_t bytes) {
    void *p;
    ok(ds_pinned_alloc(bytes, &p));
    memset(p, 0, bytes);
    return p;
}

static void words_free(void *p) {
    expect_no_lock();
    ok(ds_pinned_free(p));
}

static uint32_t noise(uint32_t i) {
    i = (i ^ 61) ^ (i >> 16);
    i *= 9;
    i ^= i >> 4;
    i *= 0x27d4eb2d;
    return i ^ (i >> 15);
}

static float number(uint32_t i) {
    return (float)(int32_t)(noise(i) % 20001) / 1000 - 10;
}

/* ---- elementwise ---- */

static void test_each_item_runs_once_with_its_number(void **state) {
    (void)state;
    static const size_t counts[] = { 1, 2, 255, 256, 257, 1000, 100003 };
    ds_stream s = stream_new();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t n = counts[c];
        uint64_t *seen = words_new(n * sizeof *seen);

        ok(DS_LAUNCH(once_touch, s, n, seen));
        ok(ds_stream_synchronize(s));

        for (size_t i = 0; i < n; i++)
            if (seen[i] != 1 + n)
                fail_msg("%zu items: item %zu has %llu", n, i, (unsigned long long)seen[i]);
        words_free(seen);
    }
    ok(ds_stream_destroy(s));
}

static void test_no_items_run_nothing(void **state) {
    (void)state;
    ds_stream s = stream_new();
    uint64_t *seen = words_new(sizeof *seen);

    ok(DS_LAUNCH(once_touch, s, 0, seen));
    ok(DS_LAUNCH(once_number_2d, s, 0, 7, seen));
    ok(DS_LAUNCH(once_number_3d, s, 3, 0, 7, seen));
    ok(DS_LAUNCH(once_indices, s, 1, 1, 0, (uint32_t *)seen));
    ok(ds_stream_synchronize(s));

    assert_true(*seen == 0);
    words_free(seen);
    ok(ds_stream_destroy(s));
}

static void test_two_dimensions_are_numbered_by_rows(void **state) {
    (void)state;
    static const size_t sizes[][2] = { { 1, 1 },   { 1, 300 },  { 300, 1 }, { 7, 5 },
                                       { 64, 64 }, { 129, 33 }, { 3, 999 } };
    ds_stream s = stream_new();
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        size_t nx = sizes[c][0];
        size_t ny = sizes[c][1];
        uint64_t *out = words_new(nx * ny * sizeof *out);

        ok(DS_LAUNCH(once_number_2d, s, nx, ny, out));
        ok(ds_stream_synchronize(s));

        for (size_t i = 0; i < nx * ny; i++)
            assert_true(out[i] == 1 + i % nx + 1000 * (i / nx) + 1000000 * nx + 1000000000 * ny);
        words_free(out);
    }
    ok(ds_stream_destroy(s));
}

static void test_three_dimensions_are_numbered_by_rows(void **state) {
    (void)state;
    static const size_t sizes[][3] = { { 1, 1, 1 }, { 5, 1, 3 },   { 1, 7, 9 },
                                       { 9, 8, 7 }, { 33, 5, 11 }, { 64, 1, 1 } };
    ds_stream s = stream_new();
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        size_t nx = sizes[c][0];
        size_t ny = sizes[c][1];
        size_t nz = sizes[c][2];
        uint64_t *out = words_new(nx * ny * nz * sizeof *out);

        ok(DS_LAUNCH(once_number_3d, s, nx, ny, nz, out));
        ok(ds_stream_synchronize(s));

        for (size_t i = 0; i < nx * ny * nz; i++)
            assert_true(out[i] == 1 + i % nx + 100 * (i / nx % ny) + 10000 * (i / nx / ny) +
                                      1000000 * (nx + 10 * ny + 100 * nz));
        words_free(out);
    }
    ok(ds_stream_destroy(s));
}

static void test_values_of_all_sizes_arrive(void **state) {
    (void)state;

    enum { N = 301 };

    ds_stream s = stream_new();
    double *out = words_new(4 * N * sizeof *out);
    once_pair pair = { 3, 0.125 };

    ok(DS_LAUNCH(once_values, s, N, 200, -1234, pair, UINT64_C(1) << 52, out));
    ok(ds_stream_synchronize(s));

    for (int i = 0; i < N; i++) {
        int runs = i % 2 == 0;
        assert_true(out[4 * i] == (runs ? 200 : 0));
        assert_true(out[4 * i + 1] == (runs ? -1234 : 0));
        assert_true(out[4 * i + 2] == (runs ? 3.125 : 0));
        assert_true(out[4 * i + 3] == (runs ? 4503599627370496.0 : 0));
    }
    words_free(out);
    ok(ds_stream_destroy(s));
}

/* The same bits as a plain loop without contraction, which would round once. */
static void test_saxpy_has_the_bits_of_two_roundings(void **state) {
    (void)state;

    enum { N = 5000 };

    ds_stream s = stream_new();
    float *x = words_new(N * sizeof *x);
    float *y = words_new(N * sizeof *y);
    float want[N];
    for (uint32_t i = 0; i < N; i++) {
        x[i] = number(i) / 3;
        y[i] = number(i + N) / 7;
        volatile float product = 1.1f * x[i];
        want[i] = product + y[i];
    }

    ok(DS_LAUNCH(once_saxpy, s, N, 1.1f, x, y));
    ok(ds_stream_synchronize(s));

    assert_memory_equal(y, want, sizeof want);
    words_free(x);
    words_free(y);
    ok(ds_stream_destroy(s));
}

static void test_a_stencil_reads_its_neighbours(void **state) {
    (void)state;

    enum { NX = 70, NY = 45 };

    ds_stream s = stream_new();
    float *in = words_new(NX * NY * sizeof *in);
    float *out = words_new(NX * NY * sizeof *out);
    for (uint32_t i = 0; i < NX * NY; i++)
        in[i] = number(i);

    ok(DS_LAUNCH(once_stencil, s, NX, NY, in, out));
    ok(ds_stream_synchronize(s));

    for (int i = 0; i < NX * NY; i++) {
        int x = i % NX;
        int y = i / NX;
        int edge = x == 0 || y == 0 || x == NX - 1 || y == NY - 1;
        float want = edge ? in[i] : 0.25f * ((in[i - 1] + in[i + 1]) + (in[i - NX] + in[i + NX]));
        assert_memory_equal(&out[i], &want, sizeof want);
    }
    words_free(in);
    words_free(out);
    ok(ds_stream_destroy(s));
}

/* The numbers after n items of once_atomics, from `words` on. */
static void atomics_expect(uint32_t n, uint32_t *words, int32_t *ints, uint64_t *longs) {
    for (uint32_t k = 0; k < n; k++) {
        uint32_t mix = once_mix(k);
        uint64_t high = (uint64_t)mix << 20;
        words[0] += mix;
        words[1] = mix < words[1] ? mix : words[1];
        words[2] = mix > words[2] ? mix : words[2];
        words[3] &= ~(k & 0xf0u);
        words[4] |= k << 8;
        words[5] ^= mix;
        ints[0] = (int32_t)((uint32_t)ints[0] + (uint32_t)((int32_t)mix / 2)); // wraps as CUDA's
        ints[1] = (int32_t)mix < ints[1] ? (int32_t)mix : ints[1];
        ints[2] = (int32_t)mix > ints[2] ? (int32_t)mix : ints[2];
        longs[0] += high;
        longs[1] = high < longs[1] ? high : longs[1];
        longs[2] = high > longs[2] ? high : longs[2];
        longs[3] += high;
    }
}

static void test_atomic_results_do_not_depend_on_order(void **state) {
    (void)state;

    enum { N = 3000 };

    ds_stream s = stream_new();
    const uint32_t words[10] = { 5, UINT32_MAX, 0, UINT32_MAX };
    const int32_t ints[3] = { 0, INT32_MAX, INT32_MIN };
    const uint64_t longs[4] = { 7, UINT64_MAX, 0, 9 };
    uint32_t want_words[10];
    int32_t want_ints[3];
    uint64_t want_longs[4];
    memcpy(want_words, words, sizeof words);
    memcpy(want_ints, ints, sizeof ints);
    memcpy(want_longs, longs, sizeof longs);
    uint32_t *w = words_new(sizeof words);
    int32_t *i = words_new(sizeof ints);
    uint64_t *l = words_new(sizeof longs);
    float *f = words_new(sizeof *f);
    double *d = words_new(sizeof *d);
    memcpy(w, words, sizeof words);
    memcpy(i, ints, sizeof ints);
    memcpy(l, longs, sizeof longs);

    ok(DS_LAUNCH(once_atomics, s, N, w, i, l, f, d));
    ok(ds_stream_synchronize(s));

    atomics_expect(N, want_words, want_ints, want_longs);
    assert_memory_equal(w, want_words, 6 * sizeof *w);
    assert_int_equal(w[6] + w[7], N * (N - 1) / 2);
    assert_true(w[8] > 0 && w[8] <= N && w[9] == 1);
    assert_memory_equal(i, want_ints, sizeof ints);
    assert_memory_equal(l, want_longs, sizeof longs);
    assert_true(*f == N / 16 * 120 + N % 16 * (N % 16 - 1) / 2 && *d == N * (N - 1) / 2);
    words_free(w);
    words_free(i);
    words_free(l);
    words_free(f);
    words_free(d);
    ok(ds_stream_destroy(s));
}

/* ---- blocks ---- */

static void test_a_tiled_product_has_the_bits_of_the_plain_one(void **state) {
    (void)state;
    static const uint32_t sizes[] = { 1, 16, 33, 80 };
    ds_stream s = stream_new();
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        uint32_t n = sizes[c];
        float *a = words_new(n * n * sizeof *a);
        float *b = words_new(n * n * sizeof *b);
        float *p = words_new(n * n * sizeof *p);
        for (uint32_t i = 0; i < n * n; i++) {
            a[i] = number(i);
            b[i] = number(i + 7777);
        }
        size_t blocks = (n + ONCE_TILE - 1) / ONCE_TILE;

        ok(DS_LAUNCH(once_matmul, s, blocks, blocks, n, a, b, p));
        ok(ds_stream_synchronize(s));

        for (uint32_t i = 0; i < n * n; i++) {
            float sum = 0;
            for (uint32_t k = 0; k < n; k++) {
                volatile float product = a[i / n * n + k] * b[k * n + i % n];
                sum += product;
            }
            sum += 0.0f; /* the rest of the last tile is zeros */
            assert_true(p[i] == sum);
        }
        words_free(a);
        words_free(b);
        words_free(p);
    }
    ok(ds_stream_destroy(s));
}

static void test_a_scan_sums_each_block(void **state) {
    (void)state;
    static const uint32_t counts[] = { 1, 255, 256, 257, 5000 };
    ds_stream s = stream_new();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        uint32_t n = counts[c];
        uint32_t *in = words_new(n * sizeof *in);
        uint32_t *out = words_new(n * sizeof *out);
        for (uint32_t i = 0; i < n; i++)
            in[i] = noise(i);

        ok(DS_LAUNCH(once_scan, s, (n + ONCE_SCAN - 1) / ONCE_SCAN, n, in, out));
        ok(ds_stream_synchronize(s));

        uint32_t sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum = i % ONCE_SCAN ? sum + in[i] : in[i];
            assert_int_equal(out[i], sum);
        }
        words_free(in);
        words_free(out);
    }
    ok(ds_stream_destroy(s));
}

static void test_a_histogram_counts_every_byte(void **state) {
    (void)state;

    enum { N = 20011 };

    ds_stream s = stream_new();
    uint8_t *in = words_new(N);
    uint32_t *bins = words_new(ONCE_BINS * sizeof *bins);
    uint32_t want[ONCE_BINS] = { 0 };
    for (uint32_t i = 0; i < N; i++) {
        in[i] = (uint8_t)noise(i);
        want[in[i] % ONCE_BINS]++;
    }

    ok(DS_LAUNCH(once_histogram, s, 9, N, in, bins));
    ok(ds_stream_synchronize(s));

    assert_memory_equal(bins, want, sizeof want);
    words_free(in);
    words_free(bins);
    ok(ds_stream_destroy(s));
}

static void test_threads_of_a_block_add_to_one_number(void **state) {
    (void)state;

    enum { BLOCKS = 3 };

    ds_stream s = stream_new();
    uint32_t *sums = words_new(3 * BLOCKS * sizeof *sums);
    uint32_t *places = words_new(256 * BLOCKS * sizeof *places);

    ok(DS_LAUNCH(once_clash, s, BLOCKS, sums, places));
    ok(ds_stream_synchronize(s));

    for (int b = 0; b < BLOCKS; b++) {
        uint32_t want[3] = { 0 };
        int taken[256] = { 0 };
        for (uint32_t t = 0; t < 256; t++) {
            want[t % 3] += t;
            assert_true(places[256 * b + (int)t] < 256);
            taken[places[256 * b + (int)t]]++;
        }
        assert_memory_equal(sums + 3 * b, want, sizeof want);
        for (int t = 0; t < 256; t++)
            assert_int_equal(taken[t], 1);
    }
    words_free(sums);
    words_free(places);
    ok(ds_stream_destroy(s));
}

static void test_all_threads_read_what_one_wrote(void **state) {
    (void)state;

    enum { BLOCKS = 3 };

    ds_stream s = stream_new();
    uint32_t *out = words_new(64 * BLOCKS * sizeof *out);

    ok(DS_LAUNCH(once_broadcast, s, BLOCKS, out));
    ok(ds_stream_synchronize(s));

    for (uint32_t i = 0; i < 64 * BLOCKS; i++)
        assert_int_equal(out[i], 7);
    words_free(out);
    ok(ds_stream_destroy(s));
}

static void test_a_halo_in_shared_memory_is_complete(void **state) {
    (void)state;
    static const uint32_t counts[] = { 1, 63, 64, 65, 1000 };
    ds_stream s = stream_new();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        uint32_t n = counts[c];
        int32_t *in = words_new(n * sizeof *in);
        int32_t *out = words_new(n * sizeof *out);
        for (uint32_t i = 0; i < n; i++)
            in[i] = (int32_t)(noise(i) % 1000) - 500;

        ok(DS_LAUNCH(once_halo, s, (n + 63) / 64, n, in, out));
        ok(ds_stream_synchronize(s));

        for (int64_t i = 0; i < n; i++) {
            int32_t sum = 0;
            for (int64_t k = i - ONCE_HALO; k <= i + ONCE_HALO; k++)
                sum += k >= 0 && k < n ? in[k] : 0;
            assert_int_equal(out[i], sum);
        }
        words_free(in);
        words_free(out);
    }
    ok(ds_stream_destroy(s));
}

static void test_indices_of_blocks_and_threads_are_right(void **state) {
    (void)state;

    enum { GX = 3, GY = 2, GZ = 5, N = 24 * GX * GY * GZ };

    ds_stream s = stream_new();
    uint32_t *out = words_new(N * sizeof *out);

    ok(DS_LAUNCH(once_indices, s, GX, GY, GZ, out));
    ok(ds_stream_synchronize(s));

    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(out[i], 1000 * (i / 24) + 23 - i % 24);
    words_free(out);
    ok(ds_stream_destroy(s));
}

/* Takes more than half of the scratch memory. */
static void take_much_scratch(ds_kernel_block *block, const void *args) {
    (void)args;
    char *p = dsk__block_take(block, 1, DS_KERNEL_SCRATCH_BYTES / 2 + 64);
    *p = 1;
}

static void test_blocks_take_the_scratch_of_the_block_before(void **state) {
    (void)state;

    const ds_kernel_dims dims = { .n = { 5, 1, 1 } };

    assert_int_equal(ds_kernel_run_blocks(take_much_scratch, &dims, 0, 5, NULL), 0);
}

/* ---- launches ---- */

static void test_a_kernel_is_a_node_of_a_graph(void **state) {
    (void)state;

    enum { N = 100 };

    ds_stream s = stream_new();
    uint64_t *seen = words_new(2 * N * sizeof *seen);
    struct once_touch_args args = once_touch_pack(N, seen);
    ds_graph graph;
    ds_graph_node node;
    ds_graph_exec exec;
    ds_kernel k;

    ok(ds_kernel_def_get_kernel(&once_touch_def, &k));
    ok(ds_graph_create(NULL, &graph));
    ds_node_desc desc = { .kind = DS_NODE_KERNEL };
    desc.u.kernel.kernel = k;
    desc.u.kernel.items = N;
    desc.u.kernel.args = &args;
    desc.u.kernel.args_size = sizeof args;
    ok(ds_graph_add(graph, &desc, NULL, 0, &node));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    ok(ds_graph_launch(exec, s));
    ok(ds_graph_launch(exec, s));
    ok(ds_stream_synchronize(s));

    for (int i = 0; i < N; i++)
        assert_true(seen[i] == 2 * (1 + N) && seen[N + i] == 0);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    words_free(seen);
    ok(ds_stream_destroy(s));
}

static void test_a_launch_is_captured(void **state) {
    (void)state;

    enum { N = 100 };

    ds_stream s = stream_new();
    uint64_t *seen = words_new(N * sizeof *seen);
    ds_graph graph;
    ds_graph_exec exec;

    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(DS_LAUNCH(once_touch, s, N, seen));
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    ok(ds_graph_launch(exec, s));
    ok(ds_stream_synchronize(s));

    for (int i = 0; i < N; i++)
        assert_true(seen[i] == 1 + N);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    words_free(seen);
    ok(ds_stream_destroy(s));
}

static void test_a_kernel_is_created_again_after_shutdown(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) {
        ds_stream s = stream_new();
        uint64_t *seen = words_new(10 * sizeof *seen);

        ok(DS_LAUNCH(once_touch, s, 10, seen));
        ok(ds_stream_synchronize(s));

        assert_true(seen[9] == 11);
        words_free(seen);
        ok(ds_stream_destroy(s));
        harness_shutdown();
    }
}

static void test_extents_beyond_size_t_are_refused(void **state) {
    (void)state;
    ds_stream s = stream_new();
    uint64_t *seen = words_new(sizeof *seen);
    char place[64];

    snprintf(place, sizeof place, "test_kernel_once.c:%d: ", __LINE__ + 1);
    refused(DS_LAUNCH(once_number_2d, s, SIZE_MAX, 2, seen), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), place));
    assert_non_null(strstr(ds_error_get_last(), "once_number_2d"));
    refused(DS_LAUNCH(once_number_3d, s, SIZE_MAX / 2, 2, 2, seen), DS_ERR_INVALID_VALUE);
    /* the product is 0 if it wraps */
    refused(DS_LAUNCH(once_number_3d, s, SIZE_MAX / 2 + 1, 2, 2, seen), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_def_launch(NULL, s, NULL, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_def_get_kernel(NULL, NULL), DS_ERR_INVALID_VALUE);
    refused(DS_LAUNCH(once_touch, (ds_stream){ 0 }, 0, seen), DS_ERR_INVALID_HANDLE);

    assert_true(*seen == 0);
    words_free(seen);
    ok(ds_stream_destroy(s));
}

static void test_a_missing_cuda_form_names_the_command(void **state) {
    (void)state;
    ds_stream s = stream_new();
    uint32_t *out = words_new(sizeof *out);

    refused(DS_LAUNCH(wrong_no_ptx, s, 1, out), DS_ERR_UNSUPPORTED);

    assert_non_null(strstr(ds_error_get_last(), "run `devstream-kernels "));
    assert_non_null(strstr(ds_error_get_last(), "wrong.kernels.h`"));
    words_free(out);
    ok(ds_stream_destroy(s));
}

static void test_a_return_from_a_thread_loop_fails(void **state) {
    (void)state;
    ds_stream s = stream_new();
    uint32_t *out = words_new(64 * sizeof *out);

    ok(DS_LAUNCH(wrong_return, s, 8, 3, out));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);

    assert_non_null(strstr(ds_error_get_last(), "a thread loop was left by return or goto"));
    harness_recover(0);
}

static void test_a_block_that_needs_too_much_scratch_fails(void **state) {
    (void)state;
    ds_stream s = stream_new();
    uint32_t *out = words_new(sizeof *out);

    ok(DS_LAUNCH(wrong_size, s, 1, out));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);

    assert_non_null(strstr(ds_error_get_last(), "more scratch memory than a GPU has"));
    harness_recover(0);
}

/* ---- threads ---- */

static void *launch_often(void *seen) {
    ds_stream s;
    ok_thread(ds_stream_create(NULL, &s));
    for (int i = 0; i < 50; i++)
        ok_thread(DS_LAUNCH(once_touch, s, 10, (uint64_t *)seen));
    ok_thread(ds_stream_synchronize(s));
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_threads_create_a_kernel_once(void **state) {
    (void)state;

    enum { THREADS = 4 };

    harness_shutdown();
    pthread_t thread[THREADS];
    uint64_t *seen = words_new(THREADS * 10 * sizeof *seen);

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, launch_often, seen + 10 * i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);

    for (int i = 0; i < THREADS * 10; i++)
        assert_true(seen[i] == 50 * 11);
    words_free(seen);
}

const struct CMUnitTest tests_kernel_once[] = {
    DS_TEST(test_each_item_runs_once_with_its_number, "kernel: once"),
    DS_TEST(test_no_items_run_nothing, "kernel: once"),
    DS_TEST(test_two_dimensions_are_numbered_by_rows, "kernel: once"),
    DS_TEST(test_three_dimensions_are_numbered_by_rows, "kernel: once"),
    DS_TEST(test_values_of_all_sizes_arrive, "kernel: once"),
    DS_TEST(test_saxpy_has_the_bits_of_two_roundings, "kernel: once"),
    DS_TEST(test_a_stencil_reads_its_neighbours, "kernel: once"),
    DS_TEST(test_atomic_results_do_not_depend_on_order, "kernel: once"),
    DS_TEST(test_a_tiled_product_has_the_bits_of_the_plain_one, "kernel: once"),
    DS_TEST(test_a_scan_sums_each_block, "kernel: once"),
    DS_TEST(test_a_histogram_counts_every_byte, "kernel: once"),
    DS_TEST(test_threads_of_a_block_add_to_one_number, "kernel: once"),
    DS_TEST(test_all_threads_read_what_one_wrote, "kernel: once"),
    DS_TEST(test_a_halo_in_shared_memory_is_complete, "kernel: once"),
    DS_TEST(test_indices_of_blocks_and_threads_are_right, "kernel: once"),
    DS_TEST_CPU(test_blocks_take_the_scratch_of_the_block_before, "kernel: once"),
    DS_TEST(test_a_kernel_is_a_node_of_a_graph, "kernel: once"),
    DS_TEST(test_a_launch_is_captured, "kernel: once"),
    DS_TEST(test_a_kernel_is_created_again_after_shutdown, "kernel: once"),
    DS_TEST(test_extents_beyond_size_t_are_refused, "kernel: once"),
    DS_TEST_CUDA(test_a_missing_cuda_form_names_the_command, "kernel: once"),
    DS_TEST_CPU(test_a_return_from_a_thread_loop_fails, "kernel: once"),
    DS_TEST_CPU(test_a_block_that_needs_too_much_scratch_fails, "kernel: once"),
    DS_TEST(test_threads_create_a_kernel_once, "kernel: once"),
};
const size_t tests_kernel_once_count = sizeof tests_kernel_once / sizeof tests_kernel_once[0];
