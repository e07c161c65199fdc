/* What CUDA brings: images of kernels, grids, and two drivers in one process. */
#include "harness.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

static ds_stream made(int device) {
    return harness_stream(device, DS_STREAM_NON_BLOCKING);
}

static void expect_text(const char *text) {
    if (!strstr(ds_error_get_last(), text))
        fail_msg("\"%s\" does not say %s", ds_error_get_last(), text);
}

/* ---- images ---- */

typedef struct store_args {
    uint64_t *out, value;
} store_args;

static int store_kernel(size_t first, size_t count, const void *args) {
    const store_args *a = args;
    (void)first;
    (void)count;
    *a->out = a->value;
    return 0;
}

static const ds_param store_params[] = { PARAM(WRITE, store_args, out),
                                         PARAM(VALUE, store_args, value) };

static ds_kernel store_from(const char *name, const void *image, const char *entry) {
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = name,
                                           .args_size = sizeof(store_args),
                                           .params = store_params,
                                           .param_count = 2,
                                           .cuda = { .image = image, .entry = entry, .block = 1 } },
                        &k));
    return k;
}

static void expect_store_works(ds_stream s) {
    uint64_t *out = word(0);
    ds_kernel k = harness_kernel("store", store_kernel, sizeof(store_args), store_params, 2, 0);
    ok(ds_kernel_launch(k, 1, &(store_args){ out, 5 }, sizeof(store_args), s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*out, 5);
    ok(ds_kernel_destroy(k));
}

static void test_an_image_that_cannot_be_assembled_is_refused_by_name(void **state) {
    static const struct {
        const char *text, *code; /* CUDA's code for it */
    } images[] = {
        { "nonsense", "200" },
        { ".version 5.0\n.target sm_60\n.address_size 64\n"
          ".visible .entry store(.param .u64 p0, .param .u64 p1)\n{\nmultiply %r1;\nret;\n}\n",
          "218" },
    };

    (void)state;
    ds_stream s = made(0);
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        store_args args = { word(0), 1 };
        ds_kernel k = store_from("crooked", images[i].text, "store");
        for (int again = 0; again < 2; again++) {
            refused(ds_kernel_launch(k, 1, &args, sizeof args, s), DS_ERR_INVALID_VALUE);
            expect_text("crooked");
            expect_text(images[i].code);
            refused(ds_kernel_launch_grid(k, &(ds_grid){ .grid = { 1 } }, &args, sizeof args, s),
                    DS_ERR_INVALID_VALUE);
            refused(ds_kernel_load(k, harness_device(0)), DS_ERR_INVALID_VALUE);
            expect_text("crooked");
        }
        ok(ds_stream_synchronize(s));
        assert_int_equal(*args.out, 0);
        ok(ds_kernel_destroy(k));
    }
    expect_store_works(s);
    ok(ds_stream_destroy(s));
}

static void test_an_entry_missing_in_the_image_is_refused_by_name(void **state) {
    (void)state;
    ds_stream s = made(0);
    char image[4096];
    store_args args = { word(0), 1 };
    snprintf(image, sizeof image, "%s", (const char *)harness_cuda_form("store").image);
    ds_kernel k = store_from("lost", image, "store");
    *strstr(image, "store") = 'x'; /* what is missing in text would be refused earlier */
    refused(ds_kernel_launch(k, 1, &args, sizeof args, s), DS_ERR_INVALID_VALUE);
    expect_text("lost");
    expect_text("\"store\"");
    refused(ds_kernel_load(k, harness_device(0)), DS_ERR_INVALID_VALUE);
    ok(ds_kernel_destroy(k));
    expect_store_works(s);
    ok(ds_stream_destroy(s));
}

static void test_a_kernel_without_cuda_form_is_refused_at_launch(void **state) {
    (void)state;
    store_args args = { word(0), 1 };
    ds_stream s = made(0);
    ds_kernel k = harness_kernel("cpu only", store_kernel, sizeof args, store_params, 2, 0);
    refused(ds_kernel_launch(k, 1, &args, sizeof args, s), DS_ERR_UNSUPPORTED);
    expect_text("cpu only");
    refused(ds_kernel_launch_grid(k, &(ds_grid){ .grid = { 1 } }, &args, sizeof args, s),
            DS_ERR_UNSUPPORTED);
    refused(ds_kernel_load(k, harness_device(0)), DS_ERR_UNSUPPORTED);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*args.out, 0);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_kernels_are_loaded_ahead_on_any_device(void **state) {
    (void)state;
    ds_device beyond = harness_device(0);
    ds_kernel good = harness_kernel("store", store_kernel, sizeof(store_args), store_params, 2, 0),
              gone;
    ds_kernel cpu_only =
        harness_kernel("cpu only", store_kernel, sizeof(store_args), store_params, 2, 0);
    ds_kernel gpu_only = store_from("gpu only", harness_cuda_form("store").image, "store");
    for (int round = 0; round < 2; round++)
        for (int i = harness_device_count() - 1; i >= 0; i--)
            ok(ds_kernel_load(good, harness_device(i)));
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_kernel_load(good, ds_device_current()));
    ok(ds_kernel_load(good, ds_cpu(0)));
    ok(ds_kernel_load(cpu_only, ds_cpu(0)));
    refused(ds_kernel_load(gpu_only, ds_cpu(0)), DS_ERR_UNSUPPORTED);
    if (!harness_is_cpu()) {
        ok(ds_kernel_load(gpu_only, harness_device(0)));
        refused(ds_kernel_load(cpu_only, harness_device(0)), DS_ERR_UNSUPPORTED);
    }
    beyond.index = harness_all_devices();
    refused(ds_kernel_load(good, beyond), DS_ERR_DEVICE_RANGE);
    refused_any(ds_kernel_load(good, (ds_device){ DS_DEVICE_HOST, 0 }));
    refused(ds_kernel_load((ds_kernel){ 0 }, harness_device(0)), DS_ERR_INVALID_HANDLE);
    gone = good;
    ok(ds_kernel_destroy(good));
    refused(ds_kernel_load(gone, harness_device(0)), DS_ERR_INVALID_HANDLE);
    ok(ds_kernel_destroy(cpu_only));
    ok(ds_kernel_destroy(gpu_only));
}

static void test_a_kernel_runs_on_all_devices_in_turn(void **state) {
    enum { ROUNDS = 20 };

    ds_stream s[8];
    int count = harness_device_count() < 8 ? harness_device_count() : 8;
    uint64_t *out = zeroed_words(8);
    (void)state;
    ds_kernel k = harness_kernel("store", store_kernel, sizeof(store_args), store_params, 2, 0);
    for (int i = 0; i < count; i++)
        s[i] = made(i);
    for (uint64_t round = 1; round <= ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            ok(ds_device_set_current(harness_device((int)round))); /* whichever is current */
            ok(ds_kernel_launch(k, 1, &(store_args){ out + i, round * 10 + (uint64_t)i },
                                sizeof(store_args), s[i]));
        }
    for (int i = 0; i < count; i++) {
        ok(ds_stream_synchronize(s[i]));
        assert_int_equal(out[i], ROUNDS * 10 + i);
        ok(ds_stream_destroy(s[i]));
    }
    ok(ds_kernel_destroy(k));
}

static void test_kernels_reach_pinned_and_registered_memory_everywhere(void **state) {
    void *pinned;
    uint64_t *registered = aligned_alloc(4096, 4096);
    (void)state;
    assert_non_null(registered);
    ok(ds_device_set_current(harness_device(0)));
    ok(ds_pinned_alloc(4096, &pinned));
    ok(ds_pinned_register(registered, 4096));
    ds_kernel k = harness_kernel("store", store_kernel, sizeof(store_args), store_params, 2, 0);
    for (int i = 0; i < harness_device_count(); i++) {
        ds_stream s = made(i);
        ok(ds_kernel_launch(k, 1, &(store_args){ (uint64_t *)pinned + 9, 40 + (uint64_t)i },
                            sizeof(store_args), s));
        ok(ds_kernel_launch(k, 1, &(store_args){ registered + 9, 50 + (uint64_t)i },
                            sizeof(store_args), s));
        ok(ds_stream_synchronize(s));
        assert_int_equal(((uint64_t *)pinned)[9], 40 + i);
        assert_int_equal(registered[9], 50 + i);
        ok(ds_stream_destroy(s));
    }
    ok(ds_kernel_destroy(k));
    ok(ds_pinned_free(pinned));
    ok(ds_pinned_unregister(registered));
    free(registered);
}

/* ---- launches ---- */

static void test_a_grid_has_three_dimensions_of_blocks_and_threads(void **state) {
    typedef struct where_args {
        uint64_t *out;
    } where_args;

    static const ds_param params[] = { PARAM(WRITE, where_args, out) };
    const ds_grid g = { .grid = { 3, 2, 4 }, .block = { 5, 3, 2 } };
    (void)state;
    uint64_t *out = zeroed_words(24 * 30), n = 0;
    ds_stream s = made(0);
    ds_kernel k = harness_kernel("whereabouts", NULL, sizeof(where_args), params, 1, 0);
    ok(ds_kernel_launch_grid(k, &g, &(where_args){ out }, sizeof(where_args), s));
    ok(ds_stream_synchronize(s));
    for (uint64_t bz = 0; bz < 4; bz++)
        for (uint64_t by = 0; by < 2; by++)
            for (uint64_t bx = 0; bx < 3; bx++)
                for (uint64_t tz = 0; tz < 2; tz++)
                    for (uint64_t ty = 0; ty < 3; ty++)
                        for (uint64_t tx = 0; tx < 5; tx++, n++)
                            assert_int_equal(out[n], bx << 52 | by << 44 | bz << 36 | tx << 20 |
                                                         ty << 10 | tz);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void expect_turned_around(uint32_t *v, uint32_t blocks, uint32_t block) {
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t t = 0; t < block; t++)
            assert_int_equal(v[b * block + t], b * block + block - 1 - t);
    for (uint32_t i = 0; i < blocks * block; i++)
        v[i] = i;
}

static void test_blocks_get_their_dynamic_shared_memory(void **state) {
    typedef struct turn_args {
        uint32_t *v;
    } turn_args;

    static const ds_param params[] = { PARAM(READ_WRITE, turn_args, v) };

    enum { BLOCK = 64, BLOCKS = 5 };

    (void)state;
    turn_args args = { (uint32_t *)zeroed_words(BLOCK * BLOCKS / 2) };
    ds_kernel_cuda form = harness_cuda_form("turn_around");
    ds_kernel k;
    ds_stream s = made(0);
    form.block = BLOCK;
    form.shared_bytes = BLOCK * 4;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "turn_around",
                                           .args_size = sizeof args,
                                           .params = params,
                                           .param_count = 1,
                                           .cuda = form },
                        &k));
    for (uint32_t i = 0; i < BLOCK * BLOCKS; i++)
        args.v[i] = i;
    ok(ds_kernel_launch(k, BLOCK * BLOCKS, &args, sizeof args, s));
    ok(ds_stream_synchronize(s));
    expect_turned_around(args.v, BLOCKS, BLOCK);
    ok(ds_kernel_launch_grid(
        k, &(ds_grid){ .grid = { BLOCK * BLOCKS / 32 }, .block = { 32 }, .shared_bytes = 32 * 4 },
        &args, sizeof args, s));
    ok(ds_stream_synchronize(s));
    expect_turned_around(args.v, BLOCK * BLOCKS / 32, 32);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

typedef struct step_args {
    uint32_t *v, number;
} step_args;

static int step_kernel(size_t first, size_t count, const void *args) {
    const step_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->v[i] = a->v[i] * 31u + a->number;
    return 0;
}

static const ds_param step4_params[] = { PARAM(READ_WRITE, step_args, v),
                                         PARAM(VALUE, step_args, number),
                                         { DS_PARAM_FIRST, 0, 4 },
                                         { DS_PARAM_COUNT, 0, 4 } };

static void test_first_and_count_may_have_four_bytes(void **state) {
    static const size_t counts[] = { 1, 255, 256, 257, 5000 };
    (void)state;
    uint32_t *v = (uint32_t *)zeroed_words(2501);
    ds_stream s = made(0);
    ds_kernel k = harness_kernel("step4", step_kernel, sizeof(step_args), step4_params, 4, 0);
    for (size_t c = 0; c < 5; c++) {
        memset(v, 0, 5002 * sizeof *v);
        ok(ds_kernel_launch(k, counts[c], &(step_args){ v, 3 }, sizeof(step_args), s));
        ok(ds_kernel_launch(k, counts[c], &(step_args){ v, 4 }, sizeof(step_args), s));
        ok(ds_stream_synchronize(s));
        for (size_t i = 0; i < 5002; i++)
            assert_int_equal(v[i], i < counts[c] ? 3 * 31 + 4 : 0);
    }
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

typedef struct rows_args {
    uint32_t *v, width, *blocks;
} rows_args;

static int rows_kernel(size_t first, size_t count, const void *args) {
    const rows_args *a = args;
    for (size_t i = first * a->width; i < (first + count) * a->width; i++)
        a->v[i] = a->v[i] * 31u + 1u;
    return 0;
}

/* Items that a block's threads share, and a limit on the number of blocks, which then go over
   the items in steps. */
static void test_blocks_share_items_and_take_turns(void **state) {
    static const ds_param params[] = { PARAM(READ_WRITE, rows_args, v),
                                       PARAM(VALUE, rows_args, width),
                                       PARAM(WRITE, rows_args, blocks), PARAM_FIRST, PARAM_COUNT };

    static const struct {
        unsigned block, width, limit;
    } cases[] = { { 64, 64, 0 }, { 64, 16, 0 }, { 64, 64, 1 }, { 32, 8, 2 } };

    static const size_t counts[] = { 1, 3, 4, 5, 90 };
    (void)state;
    uint32_t *v = (uint32_t *)zeroed_words(3000), *blocks = (uint32_t *)word(0);
    ds_device_properties device;
    ds_stream s = made(0);
    ok(ds_device_get_properties(harness_device(0), &device));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_kernel k;
        ds_kernel_cuda form = harness_cuda_form("rows");
        form.block = cases[i].block;
        form.items_per_block = cases[i].block / cases[i].width;
        form.blocks_per_multiprocessor = cases[i].limit;
        ok(ds_kernel_create(&(ds_kernel_desc){ .name = "rows",
                                               .cpu_fn = rows_kernel,
                                               .args_size = sizeof(rows_args),
                                               .params = params,
                                               .param_count = 5,
                                               .cuda = form },
                            &k));
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            size_t words = counts[c] * cases[i].width,
                   needed = (counts[c] + form.items_per_block - 1) / form.items_per_block;
            size_t most = (size_t)device.multiprocessors * cases[i].limit;
            memset(v, 0, 6000 * sizeof *v);
            ok(ds_kernel_launch(k, counts[c], &(rows_args){ v, cases[i].width, blocks },
                                sizeof(rows_args), s));
            ok(ds_stream_synchronize(s));
            for (size_t w = 0; w < 6000; w++)
                assert_int_equal(v[w], w < words ? 1 : 0);
            if (!harness_is_cpu())
                assert_int_equal(*blocks, most && needed > most ? most : needed);
        }
        ok(ds_kernel_destroy(k));
    }
    ok(ds_stream_destroy(s));
}

typedef struct refusal {
    ds_kernel kernel;
    ds_result result;
    char sentence[1000];
} refusal;

static void *load_refused(void *user) {
    refusal *f = user;
    f->result = ds_kernel_load(f->kernel, harness_device(0));
    snprintf(f->sentence, sizeof f->sentence, "%s", ds_error_get_last());
    return NULL;
}

/* The thread's first call of the driver library is the one that is refused. */
static void test_a_threads_first_refused_image_has_the_drivers_log(void **state) {
    static const char image[] =
        ".version 5.0\n.target sm_60\n.address_size 64\n"
        ".visible .entry store(.param .u64 p0, .param .u64 p1)\n{\nmultiply %r1;\nret;\n}\n";
    (void)state;
    refusal first = { .kernel = store_from("crooked", image, "store") };
    refusal second = { .kernel = first.kernel };
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, load_refused, &first), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    load_refused(&second);
    load_refused(&second);

    assert_int_equal(first.result, DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(first.sentence, "could not be loaded: "));
    assert_string_equal(first.sentence, second.sentence);
    ok(ds_kernel_destroy(first.kernel));
}

static void test_launches_that_no_gpu_accepts_are_refused(void **state) {
    static const ds_grid wrong[] = {
        { .grid = { 1, 1, 1 }, .block = { 2048, 1, 1 } },
        { .grid = { 1, 1, 1 }, .block = { 32, 32, 2 } },
        { .grid = { 1, 70000, 1 }, .block = { 1, 1, 1 } },
        { .grid = { 1, 1, 70000 }, .block = { 1, 1, 1 } },
        { .grid = { 0, 1, 1 }, .block = { 1, 1, 1 } },
    };
    (void)state;
    ds_stream s = made(0);
    store_args args = { word(0), 1 };
    ds_kernel k = harness_kernel("store", store_kernel, sizeof args, store_params, 2, 0);
    ds_kernel narrow = harness_kernel("step4", step_kernel, sizeof(step_args), step4_params, 4, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_result r = ds_kernel_launch_grid(k, &wrong[i], &args, sizeof args, s);
        if (r >= 0)
            fail_msg("grid %zu gives %s", i, ds_result_get_name(r));
        expect_text("store");
    }
    refused(ds_kernel_launch(k, SIZE_MAX, &args, sizeof args, s), DS_ERR_INVALID_VALUE);
    refused(
        ds_kernel_launch(narrow, (size_t)1 << 33, &(step_args){ NULL, 1 }, sizeof(step_args), s),
        DS_ERR_INVALID_VALUE);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*args.out, 0);
    expect_store_works(s);
    ok(ds_kernel_destroy(k));
    ok(ds_kernel_destroy(narrow));
    ok(ds_stream_destroy(s));
}

typedef struct short_lived {
    ds_kernel k;
    _Atomic uint64_t *count;
    int wait;
} short_lived;

typedef struct count_args {
    _Atomic uint64_t *count;
    uint64_t add;
} count_args;

static int count_kernel(size_t first, size_t count, const void *args) {
    const count_args *a = args;
    (void)first;
    (void)count;
    *a->count += a->add;
    return 0;
}

static void *short_lived_main(void *user) {
    short_lived *t = user;
    ds_stream own;
    ok_thread(ds_stream_get_per_thread(harness_device(0), &own));
    ok_thread(ds_kernel_launch(t->k, 1, &(count_args){ t->count, 1 }, sizeof(count_args), own));
    if (t->wait)
        ok_thread(ds_stream_synchronize(own));
    return NULL; /* else with its work pending */
}

static void test_work_that_threads_leave_on_their_own_streams_is_done(void **state) {
    enum { THREADS = 200, BATCH = 20 };

    static const ds_param params[] = { PARAM(READ_WRITE, count_args, count),
                                       PARAM(VALUE, count_args, add) };
    (void)state;
    ds_kernel k = harness_kernel("count", count_kernel, sizeof(count_args), params, 2, 0);
    _Atomic uint64_t *count = (_Atomic uint64_t *)word(0);
    short_lived both[2] = { { k, count, 0 }, { k, count, 1 } };
    for (int n = 0; n < THREADS; n += BATCH) {
        pthread_t threads[BATCH];
        for (int i = 0; i < BATCH; i++)
            threads[i] = spawn(short_lived_main, &both[i % 2]);
        for (int i = 0; i < BATCH; i++)
            join(threads[i]);
    }
    ok(ds_device_synchronize(harness_device(0)));
    assert_int_equal(*count, THREADS);
    ok(ds_kernel_destroy(k));
}

/* ---- devices ---- */

static void test_cuda_devices_are_named_and_described(void **state) {
    static const char *const names[] = { "cuda", "cuda:0", "CUDA:0", " Cuda ",
                                         "gpu",  "gpu:0",  "GPU:0" };
    ds_device_properties p;
    ds_device d;
    (void)state;
    ok(ds_device_set_current(harness_device(0)));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        d = (ds_device){ 99, 99 };
        ok(ds_device_parse(names[i], &d));
        assert_int_equal(d.type, DS_DEVICE_CUDA);
        assert_int_equal(d.index, 0);
    }
    for (int i = 0; i < harness_device_count(); i++) {
        ok(ds_device_get_properties(harness_device(i), &p));
        assert_true(p.major >= 6 && p.multiprocessors > 0);
        assert_int_equal(p.unified_addressing, 1);
        assert_non_null(strchr(p.pci, ':'));
        assert_non_null(strchr(p.pci, '.'));
    }
}

static void test_memory_that_is_not_there_is_refused_and_the_rest_works(void **state) {
    size_t total = 0;
    void *p = &total;
    (void)state;
    ok(ds_device_get_memory_info(harness_device(0), NULL, &total));
    refused(ds_device_alloc(harness_device(0), total + 1, &p), DS_ERR_OUT_OF_MEMORY);
    assert_null(p);
    p = &total;
    refused(ds_device_alloc(harness_device(0), total * 2, &p), DS_ERR_OUT_OF_MEMORY);
    assert_null(p);
    ok(ds_device_alloc(harness_device(0), 4096, &p));
    ok(ds_device_free(p));
    ds_stream s = made(0);
    expect_store_works(s);
    ok(ds_stream_destroy(s));
}

static void put_pattern(unsigned char *p, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

/* The stand-in heeds the setting; two real devices may reach each other all the same. */
static void test_copies_between_unreachable_devices_keep_the_data(void **state) {
    enum { N = (5 << 20) + 1 };

    void *p0, *p1;
    int can = 1;
    (void)state;
    two_devices();
    ok(ds_device_can_access_peer(harness_device(0), harness_device(1), &can));
    if (can)
        skip();
    ok(ds_device_can_access_peer(harness_device(1), harness_device(1), &can));
    assert_int_equal(can, 1);
    unsigned char *want = malloc(N), *got = malloc(N);
    assert_true(want && got);
    put_pattern(want, N, 3);
    ds_stream s = made(0), t = made(1);
    ok(ds_device_alloc(harness_device(0), N, &p0));
    ok(ds_device_alloc(harness_device(1), N, &p1));
    ok(ds_copy(p0, want, N, s));
    ok(ds_copy(p1, p0, N, s));
    ok(ds_fill(p0, 0, 1, N, s)); /* the order of the stream holds */
    ok(ds_copy_2d(p0, 1000, p1, 1000, 900, 1000, s));
    ok(ds_copy_peer((char *)p0 + N - 100, harness_device(0), (char *)p1 + N - 100,
                    harness_device(1), 100, s));
    ok(ds_stream_wait_stream(t, s));
    ok(ds_fill((char *)p0 + 950, 9, 1, 10, t)); /* of a device that t's cannot reach */
    ok(ds_copy(got, p0, N, t));
    for (size_t i = 0; i < N; i++) {
        int copied = (i < 1000 * 1000 && i % 1000 < 900) || i >= N - 100;
        if (got[i] != (i >= 950 && i < 960 ? 9 : copied ? want[i] : 0))
            fail_msg("byte %zu is %d", i, got[i]);
    }
    ok(ds_device_free(p0));
    ok(ds_device_free(p1));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    free(want);
    free(got);
}

static void test_without_a_driver_there_are_cpu_devices_and_a_reason(void **state) {
    ds_backend_info info;
    ds_device d;
    ds_stream s;
    int count = -1;
    (void)state;
    ok(ds_device_get_count(DS_DEVICE_CUDA, &count));
    /* a real driver, which heeds no setting */
    if (count)
        skip();
    ok(ds_backend_get_info(0, &info));
    assert_string_equal(info.name, "cuda");
    assert_int_equal(info.available, 0);
    assert_non_null(strstr(info.reason, "35"));
    ok(ds_device_get_current(&d));
    assert_int_equal(d.type, DS_DEVICE_CPU);
    refused(ds_device_parse("cuda", &d), DS_ERR_NO_DEVICE);
    refused(ds_device_set_current(ds_cuda(0)), DS_ERR_NO_DEVICE);
    ok(ds_stream_create(NULL, &s));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
}

/* ---- two drivers ---- */

enum { LARGE = (9 << 20) + 5 }; /* more than is staged at a time */

/* On a closed stream of either driver: cpu from gpu[0], gpu[1] from cpu, cpu from gpu[2]. */
static void copy_across(ds_stream s, gate *g, size_t n) {
    void *gpu[3], *cpu_memory;
    unsigned char *want[3], *got = malloc(n);
    assert_non_null(got);
    ok(ds_device_alloc(ds_cpu(0), n, &cpu_memory));
    unsigned char *cpu = cpu_memory;
    ds_stream filler = made(0);
    for (unsigned i = 0; i < 3; i++) {
        want[i] = malloc(n);
        assert_non_null(want[i]);
        put_pattern(want[i], n, 50 * i);
        ok(ds_device_alloc(harness_device(i == 1), n, &gpu[i]));
        ok(ds_copy(gpu[i], want[i], n, filler));
    }
    ok(ds_stream_synchronize(filler));
    memset(cpu, 0xcc, n);
    ok(ds_copy(cpu, gpu[0], n, s));
    ok(ds_copy(gpu[1], cpu, n, s));
    ok(ds_copy(cpu, gpu[2], n, s));
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(cpu[i], 0xcc);
    gate_open(g);
    ok(ds_stream_synchronize(s));
    assert_memory_equal(cpu, want[2], n);
    ok(ds_copy(got, gpu[1], n, filler));
    assert_memory_equal(got, want[0], n);
    for (int i = 0; i < 3; i++) {
        ok(ds_device_free(gpu[i]));
        free(want[i]);
    }
    ok(ds_device_free(cpu_memory));
    ok(ds_stream_destroy(filler));
    free(got);
}

static void test_copies_between_gpu_and_cpu_devices_keep_both_orders(void **state) {
    static const size_t sizes[] = { 1, 1000, 70001, LARGE };
    (void)state;
    ds_stream on_gpu = made(0), on_cpu;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &on_cpu));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gate g = { 0 }, h = { 0 };
        gate_close(on_gpu, &g);
        copy_across(on_gpu, &g, sizes[i]);
        ok(ds_stream_launch_host_func(on_cpu, gate_fn, &h, NULL));
        copy_across(on_cpu, &h, sizes[i]);
    }
    ok(ds_stream_destroy(on_gpu));
    ok(ds_stream_destroy(on_cpu));
}

static void test_a_gpu_stream_does_not_copy_unreachable_memory(void **state) {
    ds_cpu_desc desc = { .flags = DS_CPU_UNREACHABLE };
    unsigned char sent[100], got[100] = { 0 };
    void *cpu, *gpu;
    (void)state;
    harness_restart(&(ds_init_desc){ .cpu = &desc });
    ds_stream on_gpu = made(0), on_cpu;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &on_cpu));
    ok(ds_device_alloc(ds_cpu(0), sizeof sent, &cpu));
    ok(ds_device_alloc(harness_device(0), sizeof sent, &gpu));
    put_pattern(sent, sizeof sent, 3);

    refused(ds_copy(gpu, cpu, sizeof sent, on_gpu), DS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "DS_CPU_UNREACHABLE"));
    refused(ds_copy(cpu, gpu, sizeof sent, on_gpu), DS_ERR_UNSUPPORTED);
    refused(ds_copy(got, cpu, sizeof sent, on_gpu), DS_ERR_UNSUPPORTED);
    ok(ds_copy(cpu, sent, sizeof sent, on_cpu));
    ok(ds_copy(gpu, cpu, sizeof sent, on_cpu));
    ok(ds_fill(cpu, 0, 1, sizeof sent, on_cpu));
    ok(ds_copy(cpu, gpu, sizeof sent, on_cpu));
    ok(ds_copy(got, cpu, sizeof sent, on_cpu));
    ok(ds_stream_synchronize(on_cpu));

    assert_memory_equal(got, sent, sizeof sent);
    ok(ds_device_free(cpu));
    ok(ds_device_free(gpu));
    ok(ds_stream_destroy(on_gpu));
    ok(ds_stream_destroy(on_cpu));
    harness_restart(NULL);
}

static void copy_rows_across(ds_stream s, size_t width, size_t height, size_t gpu_pitch,
                             size_t cpu_pitch) {
    size_t gpu_size = gpu_pitch * (height - 1) + width, cpu_size = cpu_pitch * (height - 1) + width;
    unsigned char *image = malloc(gpu_size), *got = malloc(gpu_size);
    void *gpu, *back, *cpu_memory;
    assert_true(image && got);
    put_pattern(image, gpu_size, 1);
    ok(ds_device_alloc(harness_device(0), gpu_size, &gpu));
    ok(ds_device_alloc(harness_device(0), gpu_size, &back));
    ok(ds_device_alloc(ds_cpu(0), cpu_size, &cpu_memory));
    unsigned char *cpu = cpu_memory;
    ds_stream plain = made(0);
    ok(ds_copy(gpu, image, gpu_size, plain));
    ok(ds_fill(back, 0xaa, 1, gpu_size, plain));
    ok(ds_stream_synchronize(plain));
    memset(cpu, 0xcc, cpu_size);
    ok(ds_copy_2d(cpu, cpu_pitch, gpu, gpu_pitch, width, height, s));
    ok(ds_copy_2d(back, gpu_pitch, cpu, cpu_pitch, width, height, s));
    ok(ds_stream_synchronize(s));
    ok(ds_copy(got, back, gpu_size, plain));
    for (size_t i = 0; i < cpu_size; i++)
        if (cpu[i] !=
            (i % cpu_pitch < width ? image[i / cpu_pitch * gpu_pitch + i % cpu_pitch] : 0xcc))
            fail_msg("byte %zu differs", i);
    for (size_t i = 0; i < gpu_size; i++)
        if (got[i] != (i % gpu_pitch < width ? image[i] : 0xaa))
            fail_msg("byte %zu differs on the way back", i);
    ok(ds_device_free(gpu));
    ok(ds_device_free(back));
    ok(ds_device_free(cpu_memory));
    ok(ds_stream_destroy(plain));
    free(image);
    free(got);
}

static void test_pitched_copies_between_drivers_touch_only_their_rows(void **state) {
    (void)state;
    ds_stream s[2] = { made(0) };
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s[1]));
    for (int i = 0; i < 2; i++) {
        copy_rows_across(s[i], 33, 17, 40, 64);
        copy_rows_across(s[i], 1, 1000, 3, 1);
        copy_rows_across(s[i], 5 << 20, 2, (5 << 20) + 1, (5 << 20) + 7);
        copy_rows_across(s[i], 3 << 19, 5, (3 << 19) + 1, (3 << 19) + 7); /* two rows at a time */
        copy_rows_across(s[i], 3 << 20, 3, (3 << 20) + 1, (3 << 20) + 7);
        ok(ds_stream_destroy(s[i]));
    }
}

static void test_a_cpu_stream_has_done_its_copies_to_a_gpu_when_idle(void **state) {
    enum { N = 9 << 20 };

    unsigned char *want = malloc(N), *got = malloc(N);
    void *pinned, *gpu;
    (void)state;
    assert_true(want && got);
    put_pattern(want, N, 9);
    ds_stream cpu;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_pinned_alloc(N, &pinned));
    ok(ds_device_alloc(harness_device(0), N, &gpu));
    memcpy(pinned, want, N);
    ok(ds_copy(gpu, pinned, N, cpu));
    ok(ds_stream_synchronize(cpu));
    memset(pinned, 0, N);
    ok(ds_copy(got, gpu, N, cpu));
    assert_memory_equal(got, want, N);
    ok(ds_copy(pinned, gpu, N, cpu));
    ok(ds_stream_synchronize(cpu));
    assert_memory_equal(pinned, want, N);
    ok(ds_device_free(gpu));
    ok(ds_pinned_free(pinned));
    ok(ds_stream_destroy(cpu));
    free(want);
    free(got);
}

static void test_waits_records_and_fills_across_drivers_are_refused(void **state) {
    gate g = { 0 };
    ds_event on_gpu, on_cpu;
    void *gpu_memory, *cpu_memory;
    double ms;
    (void)state;
    ds_stream gpu = made(0), cpu;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_stream_record_event(gpu, DS_EVENT_TIMING, &on_gpu));
    ok(ds_stream_record_event(cpu, DS_EVENT_TIMING, &on_cpu));
    ok(ds_device_alloc(harness_device(0), 64, &gpu_memory));
    ok(ds_device_alloc(ds_cpu(0), 64, &cpu_memory));
    ok(ds_event_synchronize(on_gpu));
    ok(ds_event_synchronize(on_cpu));
    refused(ds_stream_wait_event(gpu, on_cpu), DS_ERR_CROSS_DRIVER);
    refused(ds_stream_wait_event(cpu, on_gpu), DS_ERR_CROSS_DRIVER);
    refused(ds_stream_wait_event_external(gpu, on_cpu), DS_ERR_CROSS_DRIVER);
    refused(ds_stream_wait_event_external(cpu, on_gpu), DS_ERR_CROSS_DRIVER);
    refused(ds_stream_wait_stream(gpu, cpu), DS_ERR_CROSS_DRIVER);
    refused(ds_stream_wait_stream(cpu, gpu), DS_ERR_CROSS_DRIVER);
    refused(ds_fill(cpu_memory, 0, 1, 64, gpu), DS_ERR_CROSS_DRIVER);
    refused(ds_fill(gpu_memory, 0, 1, 64, cpu), DS_ERR_CROSS_DRIVER);
    refused(ds_fill_2d(gpu_memory, 8, 0, 1, 8, 8, cpu), DS_ERR_CROSS_DRIVER);
    refused_any(ds_event_record(on_gpu, cpu));
    refused_any(ds_event_record(on_cpu, gpu));
    refused_any(ds_event_get_elapsed_ms(on_gpu, on_cpu, &ms));
    /* neither is delayed by the other */
    gate_close(gpu, &g);
    ok(ds_stream_synchronize(cpu));
    assert_int_equal(ds_stream_query(gpu), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(gpu));
    assert_false(ds_stream_equal(gpu, cpu));
    ok(ds_event_destroy(on_gpu));
    ok(ds_event_destroy(on_cpu));
    ok(ds_device_free(gpu_memory));
    ok(ds_device_free(cpu_memory));
    ok(ds_stream_destroy(gpu));
    ok(ds_stream_destroy(cpu));
}

static void test_each_driver_has_a_current_stream_of_its_own(void **state) {
    ds_stream gpu = made(0), cpu, now;
    ds_device d;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_stream_set_current(gpu, 0, NULL));
    DS_STREAM_SCOPE(cpu) {
        ok(ds_device_get_current(&d));
        assert_int_equal(d.type, DS_DEVICE_CPU);
        ok(ds_stream_get_current(harness_device(0), &now));
        assert_true(ds_stream_equal(now, gpu));
    }
    ok(ds_device_get_current(&d));
    assert_int_equal(d.type, DS_DEVICE_CUDA);
    ok(ds_stream_get_current(ds_device_current(), &now));
    assert_true(ds_stream_equal(now, gpu));
    ok(ds_stream_get_default(harness_device(0), &now));
    ok(ds_stream_set_current(now, 0, NULL));
    ok(ds_stream_destroy(gpu));
    ok(ds_stream_destroy(cpu));
}

const struct CMUnitTest tests_cuda[] = {
    DS_TEST_CUDA(test_an_image_that_cannot_be_assembled_is_refused_by_name, "cuda"),
    DS_TEST_CUDA(test_an_entry_missing_in_the_image_is_refused_by_name, "cuda"),
    DS_TEST_CUDA(test_a_kernel_without_cuda_form_is_refused_at_launch, "cuda"),
    DS_TEST(test_kernels_are_loaded_ahead_on_any_device, "kernels"),
    DS_TEST(test_a_kernel_runs_on_all_devices_in_turn, "kernels"),
    DS_TEST(test_kernels_reach_pinned_and_registered_memory_everywhere, "kernels"),
    DS_TEST_CUDA(test_a_grid_has_three_dimensions_of_blocks_and_threads, "cuda"),
    DS_TEST_CUDA(test_blocks_get_their_dynamic_shared_memory, "cuda"),
    DS_TEST(test_first_and_count_may_have_four_bytes, "kernels"),
    DS_TEST(test_blocks_share_items_and_take_turns, "kernels"),
    DS_TEST_CUDA(test_a_threads_first_refused_image_has_the_drivers_log, "review"),
    DS_TEST_CUDA(test_launches_that_no_gpu_accepts_are_refused, "cuda"),
    DS_TEST(test_work_that_threads_leave_on_their_own_streams_is_done, "peers b.2"),
    DS_TEST_CUDA(test_cuda_devices_are_named_and_described, "torch 2 3, peers a.5"),
    DS_TEST_CUDA(test_memory_that_is_not_there_is_refused_and_the_rest_works, "peers 25"),
    DS_TEST_CUDA_WITH(test_copies_between_unreachable_devices_keep_the_data, "copies",
                      "STANDIN_PEERS=none"),
    DS_TEST_CUDA_WITH(test_without_a_driver_there_are_cpu_devices_and_a_reason, "devices",
                      "STANDIN_ERROR=35"),
    DS_TEST_CUDA(test_copies_between_gpu_and_cpu_devices_keep_both_orders, "copies"),
    DS_TEST_CUDA(test_a_gpu_stream_does_not_copy_unreachable_memory, "copies"),
    DS_TEST_CUDA(test_pitched_copies_between_drivers_touch_only_their_rows, "copies"),
    DS_TEST_CUDA(test_a_cpu_stream_has_done_its_copies_to_a_gpu_when_idle, "copies"),
    DS_TEST_CUDA(test_waits_records_and_fills_across_drivers_are_refused, "cuda"),
    DS_TEST_CUDA(test_each_driver_has_a_current_stream_of_its_own, "cuda"),
};
const size_t tests_cuda_count = sizeof tests_cuda / sizeof *tests_cuda;
