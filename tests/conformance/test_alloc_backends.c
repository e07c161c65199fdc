/* Where memory comes from: the three backends, growing segments, and what streams leave behind. */
#include "layout.h"

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

static size_t reserved(int device) {
    return ds_mem_get_reserved(harness_device(device));
}

static const ds_pool none;

static void begin_on(int preset, int backend) {
    ds_mem_config c = config_of(preset);
    c.backend = backend;
    begin_with(&c);
}

/* Without what ended streams have left: their address space would be used again, in the pages of
   its own policy. */
static void begin_anew(int preset) {
    harness_restart(NULL);
    begin(preset);
}

/* ---- backends ---- */

static unsigned next_random(unsigned *seed) {
    return *seed = *seed * 1103515245u + 12345u, *seed >> 8;
}

enum { SNAPS = 40 };

typedef struct history {
    ds_mem_stats at[SNAPS];
    int count;
} history;

/* Allocations and frees, some of max_split_size or more, some that are refused; with `others`
   blocks are used by another stream as well. Statistics are noted now and then. */
static void run_program(history *h, int others) {
    void *live[30] = { 0 };
    unsigned seed = 77;
    ds_stream s = stream(0), t = stream(0);
    h->count = 0;
    for (int i = 0; i < 400; i++) {
        unsigned k = next_random(&seed) % 30, kind = next_random(&seed) % 4;
        size_t size = kind ? next_random(&seed) % 9000 + 1
                           : next_random(&seed) % 5000000 + (i % 5 ? 1 : 20 * MIB);
        void *nothing = NULL;
        if (i % 60 == 7)
            refused(ds_mem_alloc(i % 120 == 7 ? 8192 * MIB : SIZE_MAX / 2, s, &nothing),
                    i % 120 == 7 ? DS_ERR_LIMIT_EXCEEDED : DS_ERR_OUT_OF_MEMORY);
        if (live[k]) {
            if (others) {
                ok(ds_stream_wait_stream(t, s));
                paint(live[k], 512, 1, t);
                if (kind & 1)
                    ok(ds_mem_record_use(live[k], t));
                else
                    ok(ds_mem_record_stream(live[k], t));
            }
            ok(ds_mem_free(live[k]));
            live[k] = NULL;
        } else {
            live[k] = block(size, s);
            paint(live[k], size, 1, s);
        }
        if (i == 150)
            ok(ds_mem_reset_peak_stats(harness_device(0)));
        /* what is pending ends later without a cache than with one */
        if (others && (i == 250 || i % 10 == 0)) {
            ok(ds_device_synchronize(harness_device(0)));
            ok(ds_mem_empty_cache(harness_device(0), NULL));
        }
        if (i == 250)
            ok(ds_mem_reset_accumulated_stats(harness_device(0)));
        if (i % 10)
            continue;
        ok(ds_mem_validate(harness_device(0)));
        check_invariants(0);
        h->at[h->count++] = stats_of(0);
    }
    for (int i = 0; i < 30; i++)
        ok(ds_mem_free(live[i]));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static int same(const ds_mem_stat *a, const ds_mem_stat *b, int peaks) {
    return a->current == b->current && a->allocated == b->allocated && a->freed == b->freed &&
           (!peaks || a->peak == b->peak);
}

static void test_all_backends_count_the_same(void **state) {
    (void)state;
    static history h[3];
    static const size_t members[] = {
        offsetof(ds_mem_stats, allocation),      offsetof(ds_mem_stats, active),
        offsetof(ds_mem_stats, allocated_bytes), offsetof(ds_mem_stats, active_bytes),
        offsetof(ds_mem_stats, requested_bytes), offsetof(ds_mem_stats, oversize_allocations)
    };
    static const char *const names[] = {
        "allocation",   "active",          "allocated_bytes",
        "active_bytes", "requested_bytes", "oversize_allocations"
    };
    static const size_t counters[] = { offsetof(ds_mem_stats, num_alloc_retries),
                                       offsetof(ds_mem_stats, num_ooms),
                                       offsetof(ds_mem_stats, num_oom_rejections),
                                       offsetof(ds_mem_stats, num_sync_all_streams),
                                       offsetof(ds_mem_stats, max_split_size) };
    static const char *const counts[] = { "num_alloc_retries", "num_ooms", "num_oom_rejections",
                                          "num_sync_all_streams", "max_split_size" };
    for (int others = 0; others < 2; others++) {
        for (int backend = 0; backend < 3; backend++) {
            ds_mem_config c = config_of(PRESET_DEFAULT);
            c.backend = backend;
            c.max_split_size = 20 * MIB;
            c.limit = 4096 * MIB;
            c.throw_on_cudamalloc_oom = 1;
            begin_with(&c);
            run_program(&h[backend], others);
            finish();
        }
        assert_true(h[0].at[SNAPS - 1].oversize_allocations.allocated > 1 &&
                    h[0].at[SNAPS - 1].num_alloc_retries == 1 && h[0].at[SNAPS - 1].num_ooms == 2);
        for (int backend = 1; backend < 3; backend++)
            for (int i = 0; i < h[0].count; i++) {
                for (size_t m = 0; m < sizeof counters / sizeof *counters; m++) {
                    int64_t a = *(const int64_t *)(const void *)((const char *)&h[0].at[i] +
                                                                 counters[m]),
                            b = *(const int64_t *)(const void *)((const char *)&h[backend].at[i] +
                                                                 counters[m]);
                    if (a != b)
                        fail_msg("others %d, backend %d, look %d, %s: %lld, native %lld", others,
                                 backend, i, counts[m], (long long)b, (long long)a);
                }
                for (size_t m = 0; m < sizeof members / sizeof *members; m++)
                    for (int k = 0; k < (m == 5 ? 1 : 3); k++) {
                        const ds_mem_stat *a =
                            (const ds_mem_stat *)(const void *)((const char *)&h[0].at[i] +
                                                                members[m]) +
                            k;
                        const ds_mem_stat *b =
                            (const ds_mem_stat *)(const void *)((const char *)&h[backend].at[i] +
                                                                members[m]) +
                            k;
                        if (!same(a, b, !others))
                            fail_msg("others %d, backend %d, look %d, %s[%d]: %lld %lld %lld %lld, "
                                     "native %lld %lld %lld %lld",
                                     others, backend, i, names[m], k, (long long)b->current,
                                     (long long)b->peak, (long long)b->allocated,
                                     (long long)b->freed, (long long)a->current, (long long)a->peak,
                                     (long long)a->allocated, (long long)a->freed);
                    }
            }
    }
}

/* What cannot be given waits for the stream; then the driver's pool keeps it, or not (the CPU
   driver's). All the time the device does not have it. */
static void test_what_the_drivers_pool_keeps_is_reserved(void **state) {
    (void)state;
    begin_on(PRESET_DEFAULT, DS_MEM_DRIVER_POOL);
    ds_stream s = stream(0);
    size_t before = 0, after = 0, released = 1;
    gate g = { 0 };
    ok(ds_mem_free(block(512, s))); /* the pool is there */
    ok(ds_stream_synchronize(s));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_mem_reset_peak_stats(harness_device(0)));
    assert_int_equal(reserved(0), 0);
    ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
    gate_close(s, &g);
    void *p = block(64 * MIB, s), *q = block(512, s);
    paint(p, 512, 1, s);
    ok(ds_mem_free(p));
    check_invariants(0);
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 512);
    assert_int_equal(stat(0, "active_bytes.all.current"), 512);
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_true(reserved(0) >= 64 * MIB + 512);
    assert_true(!harness_is_cpu() || reserved(0) == before - after);
    assert_int_equal(stat(0, "reserved_bytes.all.peak"), reserved(0));
    assert_int_equal(stat(0, "reserved_bytes.small_pool.current"), 512);
    ok(ds_mem_validate(harness_device(0)));
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    size_t kept = reserved(0);
    assert_true(harness_is_cpu() ? kept == 512 : kept >= 64 * MIB + 512);
    check_invariants(0);
    ok(ds_mem_free(q));
    ok(ds_mem_trim(harness_device(0), kept, &released));
    assert_true(released <= (harness_is_cpu() ? 512 : 0));
    ok(ds_mem_empty_cache(harness_device(0), &released));
    assert_true(harness_is_cpu() || released == kept);
    assert_int_equal(reserved(0), 0);
    assert_true(stat(0, "reserved_bytes.all.peak") >= (int64_t)(64 * MIB + 512));
    ok(ds_mem_reset_peak_stats(harness_device(0)));
    assert_int_equal(stat(0, "reserved_bytes.all.peak"), 0);
    /* the second does not fit into what the first left */
    for (size_t size = 40 * MIB; size <= 64 * MIB; size += 24 * MIB)
        ok(ds_mem_free(block(size, s)));
    ok(ds_stream_synchronize(s));
    ok(ds_mem_empty_cache(harness_device(0), &released));
    assert_true(harness_is_cpu() ||
                (released >= 104 * MIB && stat(0, "reserved_bytes.all.peak") == (int64_t)released));
    ok(ds_stream_destroy(s));
    finish();
}

/* The count of retries follows one rule: the cache was given back and the driver asked again,
   with a callback that helps as without. */
static int help(ds_device device, size_t size, void *user) {
    (void)device;
    (void)size;
    ++*(int *)user;
    return 1;
}

static void test_all_backends_ask_again_as_often(void **state) {
    (void)state;
    for (int backend = 0; backend < 3; backend++) {
        void *nothing = NULL;
        int asked = 0;
        begin_on(PRESET_DEFAULT, backend);
        ds_stream s = stream(0);
        ok(ds_mem_set_limit(harness_device(0), 8 * MIB));
        ok(ds_mem_add_shortage_callback(help, &asked));
        refused(ds_mem_alloc(64 * MIB, s, &nothing), DS_ERR_LIMIT_EXCEEDED);
        assert_int_equal(asked, 1);
        assert_int_equal(stat(0, "num_alloc_retries"), 2);
        assert_int_equal(stat(0, "num_sync_all_streams"), 2);
        /* nobody can help */
        refused(ds_mem_alloc(SIZE_MAX / 2, s, &nothing), DS_ERR_OUT_OF_MEMORY);
        assert_int_equal(asked, 1);
        assert_int_equal(stat(0, "num_alloc_retries"), 2);
        assert_int_equal(stat(0, "num_ooms"), 2);
        assert_int_equal(stat(0, "num_oom_rejections"), 0); /* only where the policy asks for it */
        ok(ds_mem_remove_shortage_callback(help, &asked));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_without_a_cache_every_block_is_the_drivers(void **state) {
    (void)state;
    begin_on(PRESET_DEFAULT, DS_MEM_UNCACHED);
    ds_stream s = stream(0);
    size_t before = 0, after = 0;
    ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
    void *p = block(5000, s), *q = block(3 * MIB, s);
    assert_int_equal(stat(0, "num_device_alloc"), 2);
    assert_int_equal(reserved(0), 10 * UNIT + 3 * MIB);
    assert_int_equal(stat(0, "segment.all.current"), 2);
    assert_ptr_equal(find(p).segment, p);
    assert_int_equal(find(q).segment_size, 3 * MIB);
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_true(after <= before - 10 * UNIT - 3 * MIB);
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    assert_int_equal(stat(0, "num_device_free"), 2);
    assert_int_equal(reserved(0), 0);
    ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
    assert_int_equal(after, before);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_backend_is_changed_when_nothing_is_allocated(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_mem_config c = config_of(PRESET_TORCH), now;
    ds_pool pool = new_pool();
    void *p = block(5000, s);
    for (int to = DS_MEM_DRIVER_POOL; to <= DS_MEM_UNCACHED; to++) {
        c.backend = to;
        refused(ds_mem_configure(harness_device(0), &c), DS_ERR_ILLEGAL_STATE);
        ok(ds_mem_get_config(harness_device(0), &now));
        assert_int_equal(now.backend, DS_MEM_NATIVE);
    }
    ok(ds_mem_free(p));
    assert_int_equal(reserved(0), 2 * MIB); /* the cache is still there */
    for (int round = 0; round < 2; round++)
        for (int to = DS_MEM_UNCACHED; to >= DS_MEM_NATIVE; to--) {
            c.backend = to;
            ok(ds_mem_configure(harness_device(0), &c));
            void *q = block(5000, s), *r = block_in(pool, 5000, s); /* pools are native always */
            paint(q, 5000, 1, s);
            paint(r, 5000, 2, s);
            assert_int_equal(stat(0, "allocation.all.current"), 2);
            assert_true(find(r).segment_size > 5120);
            assert_int_equal(find(q).segment_size, to == DS_MEM_NATIVE ? 2 * MIB : 5120);
            ok(ds_mem_free(q));
            ok(ds_mem_free(r));
            ok(ds_mem_validate(harness_device(0)));
        }
    ok(ds_pool_destroy(pool));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    assert_int_equal(reserved(0), 0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_limits_hold_on_every_backend(void **state) {
    (void)state;
    for (int backend = 0; backend < 3; backend++) {
        ds_mem_config c = config_of(PRESET_DEFAULT);
        c.backend = backend;
        c.limit = 64 * MIB;
        begin_with(&c);
        ds_stream s = stream(0);
        void *p = block(40 * MIB, s), *q = NULL;
        refused(ds_mem_alloc(40 * MIB, s, &q), DS_ERR_LIMIT_EXCEEDED);
        assert_null(q);
        assert_int_equal(stat(0, "num_ooms"), 1);
        refused(ds_mem_alloc((size_t)1 << 61, s, &q), DS_ERR_OUT_OF_MEMORY);
        assert_int_equal(stat(0, "num_ooms"), 2);
        q = block(10 * MIB, s);
        ok(ds_mem_free(p));
        p = block(40 * MIB, s);
        assert_true(reserved(0) <= 64 * MIB);
        ok(ds_mem_free(p));
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_full_device_is_an_error_on_every_backend(void **state) {
    (void)state;
    for (int backend = 0; backend < 3; backend++) {
        scarce sc;
        ds_mem_config c = config_of(PRESET_DEFAULT);
        c.backend = backend;
        scarce_begin(&sc, 100 * MIB, &c);
        ds_stream s = stream(0);
        void *p = block(60 * MIB, s), *q = NULL;
        for (int i = 0; i < 3; i++) {
            no_memory(ds_mem_alloc(60 * MIB, s, &q));
            assert_null(q);
        }
        q = block(10 * MIB, s);
        paint(q, 10 * MIB, 1, s);
        ok(ds_mem_free(p));
        ok(ds_stream_synchronize(s)); /* the driver's pool has it back then */
        p = block(60 * MIB, s);
        paint(p, 60 * MIB, 1, s);
        ok(ds_mem_free(p));
        ok(ds_mem_free(q));
        ok(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
        finish();
        scarce_end(&sc);
    }
}

static void test_alignment_beyond_512_needs_the_native_backend(void **state) {
    (void)state;
    for (int backend = 1; backend < 3; backend++) {
        begin_on(PRESET_DEFAULT, backend);
        ds_stream s = stream(0);
        void *p = NULL;
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 700, .stream = s, .alignment = 512 }, &p));
        assert_int_equal((uintptr_t)p % 512, 0);
        ok(ds_mem_free(p));
        p = NULL;
        refused(
            ds_mem_alloc_with(&(ds_mem_request){ .size = 700, .stream = s, .alignment = 4096 }, &p),
            DS_ERR_INVALID_VALUE);
        assert_null(p);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_the_drivers_pool_tells_what_it_has(void **state) {
    (void)state;

    enum { SIZE = 6 << 20 };

    ds_mem_config c = ds_mem_config_default();
    size_t before, reserved, used = 1;
    c.backend = DS_MEM_DRIVER_POOL;
    begin_with(&c);
    ds_device d = harness_device(0);
    ds_stream s = stream(0);
    ok(ds_mem_get_driver_pool_info(d, NULL, &before));
    void *p = block(SIZE, s);
    ok(ds_mem_get_driver_pool_info(d, &reserved, &used));
    assert_int_equal(used, before + SIZE);
    assert_true(reserved >= used);
    ok(ds_mem_free(p));
    ok(ds_stream_synchronize(s));
    ok(ds_mem_get_driver_pool_info(d, &reserved, &used));
    assert_int_equal(used, before);
    ok(ds_mem_empty_cache(d, NULL));
    ok(ds_mem_get_driver_pool_info(d, &reserved, NULL));
    assert_int_equal(reserved, before);
    refused_any(ds_mem_get_driver_pool_info((ds_device){ d.type, 1000 }, &reserved, &used));
    assert_int_equal(reserved, 0);
    assert_int_equal(used, 0);
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- growing segments ---- */

static void test_growing_segments_have_the_layouts_of_torch(void **state) {
    (void)state;
    begin_anew(PRESET_TORCH_GROWING);
    ds_stream s = stream(0);
    void *p = block(2 * MIB, s), *q, *r;
    expect_layout(0, none, "[2M live, 18M free]");
    assert_int_equal(reserved(0), 20 * MIB);
    q = block(38 * MIB, s); /* what is free at the end is part of it */
    expect_layout(0, none, "[2M live, 38M live]");
    assert_ptr_equal(q, (char *)p + 2 * MIB);
    ok(ds_mem_free(q));
    expect_layout(0, none, "[2M live, 38M free]");
    q = block(32 * MIB, s);
    r = block(12 * MIB, s);
    expect_layout(0, none, "[2M live, 32M live, 12M live, 14M free]");
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    expect_layout(0, none, "");
    p = block(32 * MIB, s);
    expect_layout(0, none, "[32M live, 8M free]");
    assert_int_equal(stat(0, "segment.all.current"), 0); /* torch counts plain ones only */
    assert_int_equal(stat(0, "inactive_split.all.current"), 0);
    q = block(700, s);
    expect_layout(0, none,
                  p < q ? "[32M live, 8M free] [1K live, 2047K free]"
                        : "[1K live, 2047K free] [32M live, 8M free]");
    assert_int_equal(stat(0, "reserved_bytes.small_pool.current"), 2 * MIB);
    assert_int_equal(stat(0, "reserved_bytes.large_pool.current"), 40 * MIB);
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_pages_in_the_middle_are_released_and_holes_filled_again(void **state) {
    (void)state;
    begin_anew(PRESET_DEFAULT);
    ds_stream s = stream(0);
    looks *l = looks_create(400000);
    char *p[5];
    size_t bytes = 0, before, now;
    ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
    for (uint32_t i = 0; i < 5; i++) {
        p[i] = block(8 * MIB, s);
        paint(p[i], 8 * MIB, i, s);
        assert_ptr_equal(p[i], p[0] + i * 8 * MIB);
    }
    ok(ds_mem_free(p[1]));
    ok(ds_mem_free(p[3]));
    expect_layout(0, none, "[8M live, 8M free, 8M live, 8M free, 8M live]");
    ok(ds_mem_empty_cache(harness_device(0), &bytes));
    assert_int_equal(bytes, 16 * MIB);
    expect_layout(0, none, "[8M live, 8M hole, 8M live, 8M hole, 8M live]");
    assert_int_equal(reserved(0), 24 * MIB);
    assert_int_equal(find(p[0]).segment_size, 24 * MIB);
    ok(ds_device_get_memory_info(harness_device(0), &now, NULL));
    assert_int_equal(now, before - 24 * MIB);
    assert_int_equal(stat(0, "num_device_alloc"), 5);
    assert_int_equal(stat(0, "num_device_free"), 2);
    ds_mem_block b;
    refused(ds_mem_get_block(p[1], &b), DS_ERR_INVALID_VALUE);
    refused(ds_mem_get_block(p[3] + 5, &b), DS_ERR_INVALID_VALUE);
    assert_ptr_equal(find(p[2] + 77).ptr, p[2]);
    char *q = block(8 * MIB, s); /* the lowest hole */
    assert_ptr_equal(q, p[1]);
    paint(q, 8 * MIB, 1, s);
    char *large = block(16 * MIB, s); /* no hole is large enough */
    assert_ptr_equal(large, p[4] + 8 * MIB);
    paint(large, 16 * MIB, 7, s);
    expect_layout(0, none, "[8M live, 8M live, 8M live, 8M hole, 8M live, 16M live]");
    p[3] = block(6 * MIB, s);
    paint(p[3], 6 * MIB, 3, s);
    expect_layout(0, none, "[8M live, 8M live, 8M live, 6M live, 2M free, 8M live, 16M live]");
    p[1] = q;
    for (uint32_t i = 0; i < 5; i++) {
        look(l, p[i], i == 3 ? 6 * MIB : 8 * MIB, i, s);
        ok(ds_mem_free(p[i]));
    }
    look(l, large, 16 * MIB, 7, s);
    ok(ds_mem_free(large));
    ok(ds_stream_synchronize(s));
    assert_true(looks_right(l));
    expect_layout(0, none, "[56M free]");
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    finish();
}

/* Only whole pages can go; what is left at both ends is part of what fills the hole. */
static void test_the_ends_of_pages_stay_and_join_the_hole_between_them(void **state) {
    (void)state;
    for (int size = 9; size <= 12; size++) {
        begin_anew(PRESET_DEFAULT);
        ds_stream s = stream(0);
        looks *l = looks_create(400000);
        char *a = block(6 * MIB, s), *b = block(12 * MIB, s), *c = block(6 * MIB, s);
        size_t bytes = 0;
        paint(a, 6 * MIB, 1, s);
        paint(c, 6 * MIB, 3, s);
        ok(ds_mem_free(b));
        ok(ds_mem_empty_cache(harness_device(0), &bytes));
        assert_int_equal(bytes, 8 * MIB);
        expect_layout(0, none, "[6M live, 2M free, 8M hole, 2M free, 6M live]");
        ok(ds_mem_empty_cache(harness_device(0), &bytes));
        assert_int_equal(bytes, 0);
        char *d = block((size_t)size * MIB, s);
        assert_ptr_equal(d, b);
        assert_int_equal(reserved(0), 24 * MIB);
        paint(d, (size_t)size * MIB, 2, s);
        look(l, a, 6 * MIB, 1, s);
        look(l, d, (size_t)size * MIB, 2, s);
        look(l, c, 6 * MIB, 3, s);
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_mem_free(a));
        ok(ds_mem_free(d));
        ok(ds_mem_free(c));
        expect_layout(0, none, "[24M free]");
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_random_holes_keep_contents_and_accounts(void **state) {
    (void)state;
    static const int presets[] = { PRESET_DEFAULT, PRESET_TORCH_GROWING };
    for (int k = 0; k < 2; k++)
        for (unsigned seed = 1; seed <= 3; seed++) {
            struct {
                char *p;
                size_t size;
                uint32_t value;
            } live[16] = { 0 };

            unsigned random = seed;
            begin(presets[k]);
            ds_stream s = stream(0);
            looks *l = looks_create(1 << 20);
            for (uint32_t i = 0; i < 300; i++) {
                unsigned n = next_random(&random) % 16;
                if (live[n].p) {
                    if (!looks_fit(l, live[n].size)) {
                        ok(ds_stream_synchronize(s));
                        assert_true(looks_right(l));
                    }
                    look(l, live[n].p, live[n].size, live[n].value, s);
                    ok(ds_mem_free(live[n].p));
                    live[n].p = NULL;
                } else {
                    live[n].size = next_random(&random) % 3 ? next_random(&random) % 12000000 + 1
                                                            : next_random(&random) % 300000 + 1;
                    live[n].value = i;
                    live[n].p = block(live[n].size, s);
                    paint(live[n].p, live[n].size, i, s);
                }
                if (i % 20 == 7)
                    ok(ds_mem_empty_cache(harness_device(0), NULL));
                if (i % 20 == 13)
                    ok(ds_mem_trim(harness_device(0), reserved(0) / 2, NULL));
                ok(ds_mem_validate(harness_device(0)));
                layout now = layout_of(0, none);
                assert_int_equal(now.bytes[DS_BLOCK_FREE] + now.bytes[DS_BLOCK_LIVE], reserved(0));
                assert_int_equal(now.bytes[DS_BLOCK_LIVE], ds_mem_get_allocated(harness_device(0)));
            }
            for (int n = 0; n < 16; n++)
                ok(ds_mem_free(live[n].p));
            ok(ds_stream_synchronize(s));
            assert_true(looks_right(l));
            looks_destroy(l);
            ok(ds_stream_destroy(s));
            finish();
        }
}

/* A request is mapped as a whole or not at all. */
static void test_a_mapping_that_fails_leaves_nothing_behind(void **state) {
    (void)state;
    for (int by_limit = 0; by_limit < 2; by_limit++) {
        scarce sc;
        ds_mem_config c = config_of(PRESET_DEFAULT);
        size_t before, now;
        if (by_limit) {
            c.limit = 100 * MIB;
            harness_restart(NULL);
            begin_with(&c);
        } else
            scarce_begin(&sc, 100 * MIB, &c);
        ds_stream s = stream(0);
        void *p = block(30 * MIB, s), *q = NULL;
        ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
        int64_t counted = stat(0, "num_device_alloc") - stat(0, "num_device_free");
        for (int i = 0; i < 3; i++) {
            no_memory(ds_mem_alloc(90 * MIB, s, &q));
            ok(ds_device_get_memory_info(harness_device(0), &now, NULL));
            assert_true(now >= before); /* the cache went back */
            assert_int_equal(reserved(0), 32 * MIB);
            expect_layout(0, none, "[30M live, 2M free]");
            assert_true(stat(0, "num_device_alloc") - stat(0, "num_device_free") == counted);
            ok(ds_mem_validate(harness_device(0)));
        }
        q = block(60 * MIB, s);
        ok(ds_mem_free(q));
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        finish();
        if (!by_limit)
            scarce_end(&sc);
    }
}

static void test_a_segment_that_is_full_is_followed_by_another(void **state) {
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        ds_mem_config c = config_of(PRESET_DEFAULT);
        char *p[6];
        begin_anew(PRESET_DEFAULT);
        size_t total = device_memory(0);
        c.expandable_segments_reserve =
            bytes ? 128.0 * 1024 * 1024 : 128.0 * 1024 * 1024 / (double)total;
        ok(ds_mem_configure(harness_device(0), &c));
        ds_stream s = stream(0);
        for (int i = 0; i < 6; i++)
            p[i] = block(48 * MIB, s);
        layout l = layout_of(0, none);
        assert_true(l.segments >= 3 && l.segments <= 6);
        for (int i = 0; i < 6; i++)
            for (int k = 0; k < i; k++)
                assert_true(p[i] >= p[k] + 48 * MIB || p[k] >= p[i] + 48 * MIB);
        void *more = block(200 * MIB, s); /* larger than the address space that was asked for */
        paint(more, 512, 1, s);
        ok(ds_mem_free(more));
        for (int i = 0; i < 6; i++)
            ok(ds_mem_free(p[i]));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_growing_segments_are_switched_off_and_on(void **state) {
    (void)state;
    ds_mem_config grows = config_of(PRESET_TORCH_GROWING), plain = config_of(PRESET_TORCH);
    harness_restart(NULL);
    begin_with(&grows);
    ds_stream s = stream(0);
    looks *l = looks_create(100000);
    void *p = block(3 * MIB, s), *q, *r;
    paint(p, 3 * MIB, 1, s);
    ok(ds_mem_configure(harness_device(0), &plain));
    q = block(30 * MIB, s);
    paint(q, 30 * MIB, 2, s);
    assert_int_equal(stat(0, "segment.all.current"), 1);
    assert_int_equal(find(q).segment_size, 30 * MIB);
    ok(ds_mem_configure(harness_device(0), &grows));
    r = block(40 * MIB, s);
    paint(r, 40 * MIB, 3, s);
    assert_int_equal(stat(0, "segment.all.current"), 1);
    assert_ptr_equal(find(r).segment, find(p).segment);
    look(l, p, 3 * MIB, 1, s);
    look(l, q, 30 * MIB, 2, s);
    ok(ds_stream_synchronize(s));
    assert_true(looks_right(l));
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_mem_validate(harness_device(0)));
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    finish();
}

/* A pool has growing segments of its own; a hole in them is told by snapshots as two segments. */
typedef struct text {
    char *at;
    size_t size;
} text;

static int add_text(const char *piece, size_t size, void *user) {
    text *t = user;
    char *more = realloc(t->at, t->size + size + 1);
    if (!more)
        return -1;
    memcpy(more + t->size, piece, size);
    more[t->size + size] = 0;
    t->at = more;
    t->size += size;
    return 0;
}

static int occurrences(const char *in, const char *what) {
    int n = 0;
    for (const char *at = in; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

static void test_a_pool_grows_by_itself_and_its_runs_are_told(void **state) {
    (void)state;
    begin_anew(PRESET_TORCH_GROWING);
    ds_stream s = stream(0);
    ds_pool pool = new_pool();
    text t = { 0 };
    void *p[3], *out = block(3 * MIB, s);
    for (int i = 0; i < 3; i++)
        p[i] = block_in(pool, 20 * MIB, s);
    expect_layout(0, pool, "[20M live, 20M live, 20M live]");
    assert_true(find(p[0]).segment != find(out).segment);
    ok(ds_mem_free(p[1]));
    ok(ds_pool_empty_cache(pool, NULL));
    expect_layout(0, pool, "[20M live, 20M hole, 20M live]");
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, DS_SNAPSHOT_NO_HISTORY, pool, add_text, &t));
    assert_int_equal(occurrences(t.at, "\"segment_pool_id\""), 2);
    assert_int_equal(occurrences(t.at, "\"total_size\":20971520"), 2);
    assert_int_equal(occurrences(t.at, "\"is_expandable\":true"), 2);
    free(t.at);
    p[1] = block_in(pool, 20 * MIB, s);
    expect_layout(0, pool, "[20M live, 20M live, 20M live]");
    for (int i = 0; i < 3; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_mem_free(out));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* The stand-in's switches; not there on a GPU. */
extern void standin_virtual_memory(int device, int on) __attribute__((weak));
extern void standin_memory_pools(int device, int on) __attribute__((weak));

static void test_a_device_without_virtual_memory_has_plain_segments(void **state) {
    (void)state;
    if (!standin_virtual_memory)
        skip();
    harness_restart(NULL); /* what is known of the device */
    standin_virtual_memory(0, 0);
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    looks *l = looks_create(100000);
    void *p = block(3 * MIB, s), *q = block(700, s), *r = block(30 * MIB, s);
    assert_int_equal(stat(0, "segment.all.current"), 3);
    assert_int_equal(layout_of(0, none).blocks[DS_BLOCK_UNMAPPED], 0);
    paint(p, 3 * MIB, 1, s);
    paint(q, 700, 2, s);
    paint(r, 30 * MIB, 3, s);
    look(l, p, 3 * MIB, 1, s);
    look(l, q, 700, 2, s);
    look(l, r, 30 * MIB, 3, s);
    ok(ds_stream_synchronize(s));
    assert_true(looks_right(l));
    if (harness_device_count() > 1) { /* others have it all the same */
        ds_stream t = stream(1);
        void *far = block(3 * MIB, t);
        assert_int_equal(stat(1, "segment.all.current"), 0);
        ok(ds_mem_free(far));
        ok(ds_stream_destroy(t));
    }
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    finish();
    standin_virtual_memory(0, 1);
    harness_restart(NULL);
}

static void test_a_device_without_memory_pools_says_so(void **state) {
    (void)state;
    if (!standin_memory_pools)
        skip();
    harness_restart(NULL);
    standin_memory_pools(0, 0);
    begin_on(PRESET_DEFAULT, DS_MEM_DRIVER_POOL);
    ds_stream s = stream(0);
    void *p = NULL;
    refused(ds_mem_alloc(5000, s, &p), DS_ERR_UNSUPPORTED);
    assert_null(p);
    assert_int_equal(reserved(0), 0);
    assert_int_equal(stat(0, "num_ooms"), 0);
    begin(PRESET_DEFAULT);
    p = block(5000, s);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
    standin_memory_pools(0, 1);
    harness_restart(NULL);
}

/* ---- streams ---- */

static void test_streams_come_and_go_and_their_memory_stays_in_use(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int pooled = 0; pooled < 2; pooled++) {
            size_t after_some = 0;
            begin(preset);
            ds_pool pool = pooled ? new_pool() : none;
            looks *l = looks_create(100000);
            for (uint32_t i = 0; i < 60; i++) {
                ds_stream s = stream(0);
                void *p = block_in(pool, 3 * MIB, s), *q = block_in(pool, 5000, s);
                paint(p, 3 * MIB, i, s);
                paint(q, 5000, 1000 + i, s);
                look(l, p, 3 * MIB, i, s);
                look(l, q, 5000, 1000 + i, s);
                ok(ds_mem_free(p));
                ok(ds_mem_free(q));
                ok(ds_stream_destroy(s));
                if (i == 3)
                    after_some = reserved(0);
                if (i > 3)
                    assert_true(reserved(0) <= after_some);
                if (i % 10 == 9) {
                    ok(ds_device_synchronize(harness_device(0)));
                    assert_true(looks_right(l));
                }
            }
            ok(ds_mem_validate(harness_device(0)));
            if (pooled)
                ok(ds_pool_destroy(pool));
            looks_destroy(l);
            finish();
        }
}

static void *use_own_stream(void *arg) {
    ds_stream s;
    (void)arg;
    ok_thread(ds_stream_get_per_thread(harness_device(0), &s));
    void *p = block(3 * MIB, s), *q = block(700, s);
    paint(p, 3 * MIB, 1, s);
    ok_thread(ds_mem_free(p));
    ok_thread(ds_mem_free(q));
    return NULL;
}

/* Threads have default streams of their own, which end with them. */
static void test_short_lived_streams_and_threads_leave_nothing_behind(void **state) {
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        ds_cpu_desc cpu = { .devices = 2 };
        ds_init_desc init = { .cpu = &cpu, .allocator = { count_alloc, count_free, NULL } };
        size_t after_some = 0, reserved_then = 0;
        harness_restart(&init);
        for (int i = 0; i < 300; i++) {
            if (threads) {
                join(spawn(use_own_stream, NULL));
            } else {
                ds_stream s = stream(0);
                void *p = block(3 * MIB, s);
                ok(ds_mem_free(p));
                ok(ds_stream_destroy(s));
            }
            /* else the host runs ahead, and what it frees is in use for longer and longer */
            if (i % 10 == 0)
                ok(ds_device_synchronize(harness_device(0)));
            if (i == 50) {
                after_some = kept_bytes;
                reserved_then = reserved(0);
            }
        }
        if (kept_bytes > after_some + 128 * KIB)
            fail_msg("%d: %zu bytes after 50, %zu after 300", threads, after_some,
                     (size_t)kept_bytes);
        assert_int_equal(reserved(0), reserved_then);
        harness_restart(NULL);
    }
}

typedef struct own {
    void *p;
    ds_stream s;
    gate g;
    looks *l;
} own;

static void *hold_own_stream(void *arg) {
    own *o = arg;
    ok_thread(ds_stream_get_per_thread(harness_device(0), &o->s));
    o->p = block(3 * MIB, o->s);
    gate_close(o->s, &o->g);
    paint(o->p, 3 * MIB, 1, o->s);
    look(o->l, o->p, 3 * MIB, 1, o->s);
    ok_thread(ds_mem_free(o->p));
    return NULL;
}

static void test_the_default_streams_of_two_threads_do_not_share_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        own o = { .l = looks_create(100000) };
        ds_stream mine;
        c.reuse = DS_REUSE_ALWAYS; /* even then in order only */
        begin_with(&c);
        ok(ds_stream_get_per_thread(harness_device(0), &mine));
        join(spawn(hold_own_stream, &o)); /* its stream ends while there is work on it */
        void *q = block(3 * MIB, mine);
        paint(q, 3 * MIB, 2, mine);
        look(o.l, q, 3 * MIB, 2, mine);
        gate_open(&o.g);
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(o.l));
        ok(ds_mem_free(q));
        looks_destroy(o.l);
        finish();
    }
}

static ds_stream wrap(ds_stream s) {
    ds_stream_native n;
    ds_stream w;
    ok(ds_stream_export(s, &n));
    ok(ds_stream_wrap(&n, DS_BORROW, NULL, NULL, &w));
    return w;
}

static void test_all_handles_of_one_stream_share_its_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int first = 0; first < 2;
             first++) { /* the wrapper allocates first, or the stream itself */
            begin(preset);
            ds_stream s = stream(0), w1 = wrap(s), w2 = wrap(s), a = first ? w1 : s,
                      b = first ? s : w2;
            ds_pool pool = new_pool();
            void *p = block(3 * MIB, a);
            paint(p, 3 * MIB, 1, a);
            ok(ds_mem_record_use(p, b)); /* its own stream's */
            ok(ds_mem_record_stream(p, w2));
            ok(ds_mem_free(p));
            assert_int_equal(stat(0, "active.all.current"), 0);
            assert_ptr_equal(block(3 * MIB, b), p);
            ok(ds_mem_free(p));
            assert_ptr_equal(block(3 * MIB, w2), p);
            ok(ds_mem_free(p));
            void *q = block_in(pool, 3 * MIB, a);
            ok(ds_mem_free(q));
            assert_ptr_equal(block_in(pool, 3 * MIB, b), q);
            ok(ds_mem_free(q));
            ok(ds_stream_destroy(w1));
            ok(ds_stream_destroy(w2));
            ok(ds_stream_destroy(s));
            ok(ds_pool_destroy(pool));
            finish();
        }
}

static void test_a_wrapper_that_ends_takes_no_memory_along(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int first = 0; first < 2; first++) {
            gate g = { 0 };
            ds_mem_config c = config_of(preset);
            c.reuse = DS_REUSE_ALWAYS;
            begin_with(&c);
            ds_stream s = stream(0), w1 = wrap(s), w2 = first ? s : wrap(s), t = stream(0);
            looks *l = looks_create(100000);
            void *p = block(3 * MIB, w1); /* the wrapper is the first to allocate */
            void *other = block(5000, w2);
            ok(ds_mem_free(p));
            ok(ds_stream_destroy(w1));
            ok(ds_stream_synchronize(s));
            gate_close(s, &g);
            p = block(3 * MIB, w2);
            paint(p, 3 * MIB, 1, w2);
            look(l, p, 3 * MIB, 1, w2);
            ok(ds_mem_free(p));
            /* behind what the stream does, not behind what it did when its wrapper ended */
            void *q = block(3 * MIB, t);
            paint(q, 3 * MIB, 2, t);
            look(l, q, 3 * MIB, 2, t);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            ok(ds_mem_free(other));
            if (!first)
                ok(ds_stream_destroy(w2));
            ok(ds_mem_validate(harness_device(0)));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(t));
            looks_destroy(l);
            finish();
        }
}

static void test_memory_of_a_wrapped_stream_is_returned_in_order(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), t = stream(0), w = wrap(s);
        looks *l = looks_create(100000);
        void *p = block(12 * MIB, w);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(w)); /* the stream goes on, and has never allocated */
        w = wrap(s);
        gate_close(s, &g);
        p = block(12 * MIB, w);
        paint(p, 12 * MIB, 1, w);
        look(l, p, 12 * MIB, 1, w);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(w));
        pthread_t opener = spawn(open_later, &g);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(g.open, 1);
        assert_int_equal(reserved(0), 0);
        join(opener);
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

static void test_a_stream_that_changes_hands_keeps_its_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        ds_stream_native n;
        begin(preset);
        ds_stream s = stream(0), again;
        looks *l = looks_create(100000);
        void *p = block(12 * MIB, s), *live = block(5000, s);
        paint(live, 5000, 5, s);
        gate_close(s, &g);
        paint(p, 12 * MIB, 1, s);
        look(l, p, 12 * MIB, 1, s);
        ok(ds_mem_free(p));
        ok(ds_stream_unwrap(s, &n));
        pthread_t opener = spawn(open_later, &g);
        /* waits, though nobody has a handle of it now */
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(g.open, 1);
        join(opener);
        ok(ds_stream_wrap(&n, DS_OWN, NULL, NULL, &again));
        void *q = block(12 * MIB, again), *r = block(5000, again);
        paint(q, 12 * MIB, 2, again);
        look(l, q, 12 * MIB, 2, again);
        look(l, live, 5000, 5, again);
        ok(ds_mem_free(q));
        ok(ds_mem_free(r));
        ok(ds_mem_free(live));
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(again));
        finish();
    }
}

static void test_a_stream_with_several_owners_ends_with_the_last(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        ds_mem_config c = config_of(preset);
        c.reuse = DS_REUSE_ALWAYS;
        begin_with(&c);
        ds_stream s = stream(0), t = stream(0);
        looks *l = looks_create(100000);
        void *p = block(3 * MIB, s);
        ok(ds_mem_free(p));
        ok(ds_stream_ref(s));
        ok(ds_stream_destroy(s));
        gate_close(s, &g);
        p = block(3 * MIB, s);
        paint(p, 3 * MIB, 1, s);
        look(l, p, 3 * MIB, 1, s);
        ok(ds_mem_free(p));
        void *q = block(3 * MIB, t);
        paint(q, 3 * MIB, 2, t);
        gate_open(&g);
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(l));
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        looks_destroy(l);
        finish();
    }
}

/* The legacy stream and its handles are one stream as well. */
static void test_the_default_stream_has_memory_like_any_other(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream legacy, w;
        ok(ds_stream_get_legacy(harness_device(0), &legacy));
        w = wrap(legacy);
        void *p = block(3 * MIB, legacy);
        paint(p, 3 * MIB, 1, legacy);
        ok(ds_mem_free(p));
        assert_ptr_equal(block(3 * MIB, w), p);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(w));
        assert_ptr_equal(block(3 * MIB, legacy), p);
        ok(ds_mem_free(p));
        finish();
    }
}

/* ---- without a cache: frees that cannot be made at once ---- */

typedef struct freed {
    void *p;
    _Atomic int done;
} freed;

static void *free_it(void *user) {
    freed *f = user;
    ok_thread(ds_mem_free(f->p));
    f->done = 1;
    return NULL;
}

static void nap_often(void) {
    for (int i = 0; i < 60; i++)
        harness_nap();
}

/* Blocks that are freed and not the driver's again. */
static int64_t pending_blocks(void) {
    ok(ds_mem_validate(harness_device(0)));
    check_invariants(0);
    return stat(0, "active.all.current") - stat(0, "allocation.all.current");
}

static void test_a_free_of_plain_memory_waits_for_uses_on_another_device(void **state) {
    (void)state;
    two_devices();
    begin_on(PRESET_DEFAULT, DS_MEM_UNCACHED);
    for (int late = 0; late < 2; late++) {
        ds_stream a = stream(0), b = stream(1);
        gate g = { 0 };
        freed f = { block(4 * MIB, a), 0 };
        ok(ds_stream_wait_stream(b, a));
        gate_close(b, &g);
        if (late)
            ok(ds_mem_record_stream(f.p, b));
        paint(f.p, 4 * MIB, 7, b);
        if (!late)
            ok(ds_mem_record_use(f.p, b));
        pthread_t thread = spawn(free_it, &f);
        nap_often();
        assert_int_equal(f.done, 0);
        assert_int_equal(reserved(0), 4 * MIB);
        gate_open(&g);
        join(thread);
        assert_int_equal(reserved(0), 0);
        ok(ds_stream_destroy(a));
        ok(ds_stream_destroy(b));
    }
    finish();
}

/* The event of such a use cannot be recorded, nor can anyone wait for the stream. */
static void test_a_use_on_a_stream_that_captures_holds_the_memory_back(void **state) {
    (void)state;
    for (int backend = DS_MEM_DRIVER_POOL; backend <= DS_MEM_UNCACHED; backend++)
        for (int again = 0; again < 3; again++) { /* an allocation, a free, a flush */
            begin_on(PRESET_DEFAULT, backend);
            ds_stream a = stream(0), b = stream(0), c = stream(0);
            gate g = { 0 };
            ds_graph graph;
            void *p = block(4 * MIB, a), *q = block(MIB, c);
            ok(ds_stream_wait_stream(b, a));
            gate_close(b, &g);
            paint(p, 4 * MIB, 7, b);
            ok(ds_mem_record_stream(p, b));
            ok(ds_capture_begin(b, DS_CAPTURE_RELAXED));
            ok(ds_mem_free(p));
            refused(ds_mem_free(p), DS_ERR_INVALID_VALUE);
            assert_int_equal(pending_blocks(), 1);
            ok(ds_capture_end(b, &graph));
            ok(ds_graph_destroy(graph));
            if (again == 0) { /* waits for nothing, whatever came back */
                void *more = block(4 * MIB, a);
                ok(ds_stream_query(c));
                assert_int_equal(pending_blocks(), backend == DS_MEM_UNCACHED);
                assert_int_equal(ds_stream_query(b), DS_NOT_READY);
                gate_open(&g);
                ok(ds_stream_synchronize(b));
                paint(more, 4 * MIB, 8, a);
                ok(ds_mem_free(more));
                ok(ds_mem_free(q));
            } else {
                gate_open(&g);
                ok(ds_stream_synchronize(b));
                if (again == 2) {
                    size_t released = 0;
                    ok(ds_mem_empty_cache(harness_device(0), &released));
                    assert_int_equal(released, 4 * MIB);
                }
                ok(ds_mem_free(q)); /* now there is an event */
                ok(ds_stream_synchronize(b));
                ok(ds_mem_free(block(5000, c)));
            }
            assert_int_equal(pending_blocks(), 0);
            assert_int_equal(stat(0, "segment.all.current"), 0);
            /* its pool may keep it */
            assert_true(backend == DS_MEM_DRIVER_POOL || reserved(0) == 0);
            ok(ds_stream_destroy(a));
            ok(ds_stream_destroy(b));
            ok(ds_stream_destroy(c));
            finish();
        }
}

static void test_a_block_is_freed_while_its_stream_captures(void **state) {
    (void)state;
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    for (int backend = DS_MEM_DRIVER_POOL; backend <= DS_MEM_UNCACHED; backend++)
        for (size_t m = 0; m < 3; m++) {
            begin_on(PRESET_DEFAULT, backend);
            ds_stream a = stream(0), b = stream(0);
            ds_graph graph;
            void *w;
            ok(ds_pinned_alloc(8, &w));
            void *p = block(4 * MIB, a), *used = block(MIB, a), *q = block(5000, b);
            paint(p, 4 * MIB, 1, a);
            ok(ds_mem_record_use(used, b));
            ok(ds_capture_begin(a, modes[m]));
            ok(ds_fill(w, 1, 1, 8, a));
            ok(ds_mem_free(p));
            ok(ds_mem_free(used));
            refused(ds_mem_free(p), DS_ERR_INVALID_VALUE);
            assert_int_equal(stat(0, "allocation.all.current"), 1);
            ok(ds_mem_validate(harness_device(0)));
            ok(ds_capture_end(a, &graph)); /* it has come through */
            ds_graph_exec exec = instantiate_graph(graph);
            ok(ds_graph_launch(exec, a));
            ok(ds_stream_synchronize(a));
            assert_int_equal(*(const uint64_t *)w, 0x0101010101010101u);
            ok(ds_mem_free(q));
            if (backend == DS_MEM_UNCACHED)
                ok(ds_mem_empty_cache(harness_device(0), NULL));
            assert_int_equal(pending_blocks(), 0);
            assert_int_equal(stat(0, "num_device_free"), 3);
            assert_int_equal(stat(0, "segment.all.current"), 0);
            assert_true(backend == DS_MEM_DRIVER_POOL || reserved(0) == 0);
            ok(ds_graph_exec_destroy(exec));
            ok(ds_graph_destroy(graph));
            ok(ds_stream_destroy(a));
            ok(ds_stream_destroy(b));
            ok(ds_pinned_free(w));
            finish();
        }
}

/* At the end of the run: memory that is still held back is neither lost nor a complaint. */
static void test_memory_that_is_held_back_ends_with_the_library(void **state) {
    (void)state;
    for (int backend = DS_MEM_DRIVER_POOL; backend <= DS_MEM_UNCACHED; backend++) {
        size_t before = 0, after = 0;
        ds_mem_config c = config_of(PRESET_DEFAULT);
        c.backend = backend;
        harness_restart(NULL);
        ok(ds_device_get_memory_info(harness_device(0), &before, NULL));
        set_config(&c);
        ds_stream a = stream(0), b = stream(0);
        ds_graph graph;
        void *p = block(4 * MIB, a);
        ok(ds_mem_record_stream(p, b));
        ok(ds_capture_begin(b, DS_CAPTURE_RELAXED));
        ok(ds_mem_free(p));
        ok(ds_capture_end(b, &graph));
        ok(ds_graph_destroy(graph));
        ok(ds_stream_destroy(a));
        ok(ds_stream_destroy(b));
        assert_int_equal(pending_blocks(), 1);
        harness_restart(NULL);
        ok(ds_device_get_memory_info(harness_device(0), &after, NULL));
        if (harness_is_cpu())
            assert_int_equal(after, before);
    }
}

/* The driver's pool: in the order of the stream that has ended, while the host goes on. */
static void test_a_block_of_an_ended_stream_is_freed_behind_its_work(void **state) {
    (void)state;
    for (int captures = 0; captures < 2; captures++) {
        begin_on(PRESET_DEFAULT, DS_MEM_DRIVER_POOL);
        ds_stream a = stream(0), b = stream(0), other = stream(0);
        gate g = { 0 }, h = { 0 };
        ds_graph graph;
        freed f[2] = { { block(4 * MIB, a), 0 }, { block(5000, a), 0 } };
        gate_close(a, &g);
        gate_close(b, &h);
        paint(f[0].p, 4 * MIB, 7, a);
        paint(f[1].p, 5000, 7, b);
        ok(ds_mem_record_use(f[1].p, b));
        ok(ds_stream_destroy(a));
        if (captures)
            ok(ds_capture_begin(other, DS_CAPTURE_GLOBAL));
        for (int i = 0; i < 2; i++) {
            pthread_t thread = spawn(free_it, &f[i]);
            uint64_t end = now_ns() + 10000000000u;
            while (!f[i].done && now_ns() < end)
                harness_nap();
            int blocked = !f[i].done;
            if (blocked) {
                gate_open(&g);
                gate_open(&h);
            }
            join(thread);
            assert_false(blocked);
        }
        if (captures) {
            ok(ds_capture_end(other, &graph));
            ok(ds_graph_destroy(graph));
        }
        void *p = block(3 * MIB, other);
        paint(p, 3 * MIB, 9, other);
        assert_int_equal(pending_blocks(), 0);
        ok(ds_mem_free(p));
        gate_open(&h);
        gate_open(&g);
        ok(ds_stream_destroy(b));
        ok(ds_stream_destroy(other));
        finish();
    }
}

/* Nobody knows then when its work is done, so the memory comes back when the host may wait. */
static void test_a_block_of_a_stream_ended_in_a_capture_comes_back(void **state) {
    (void)state;
    for (int backend = DS_MEM_DRIVER_POOL; backend <= DS_MEM_UNCACHED; backend++) {
        begin_on(PRESET_DEFAULT, backend);
        ds_stream a = stream(0), b = stream(0);
        ds_graph graph;
        void *p = block(4 * MIB, a);
        paint(p, 4 * MIB, 7, a);
        ok(ds_capture_begin(b, DS_CAPTURE_RELAXED));
        ds_event fork;
        ok(ds_event_create(0, NULL, &fork));
        ok(ds_event_record(fork, b));
        ok(ds_stream_wait_event(a, fork));
        ok(ds_event_record(fork, a));
        ok(ds_stream_wait_event(b, fork)); /* a is joined, and ends as a part of the capture */
        ok(ds_stream_destroy(a));
        ok(ds_mem_free(p));
        ok(ds_capture_end(b, &graph)); /* the end of a joined stream does not spoil it */
        ok(ds_graph_destroy(graph));
        ok(ds_event_destroy(fork));
        assert_int_equal(stat(0, "allocation.all.current"), 0);
        ok(ds_stream_destroy(b));
        finish();
    }
}

/* What is freed in another stream's order is waited for before a request fails. */
static void test_the_drivers_pool_waits_for_frees_that_are_on_their_way(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    scarce sc;
    c.backend = DS_MEM_DRIVER_POOL;
    scarce_begin(&sc, 64 * MIB, &c);
    ds_stream s = stream(0), t = stream(0);
    gate g = { 0 };
    void *p = block(40 * MIB, s);
    gate_close(s, &g);
    paint(p, 40 * MIB, 1, s);
    ok(ds_mem_free(p));
    pthread_t thread = spawn(open_later, &g);
    void *q = block(40 * MIB, t);
    join(thread);
    paint(q, 40 * MIB, 2, t);
    ok(ds_mem_free(q));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
    scarce_end(&sc);
}

/* A free that is enqueued holds its memory until its stream has come to it, so a limit counts
   the memory until then. */
static void test_a_limit_counts_frees_that_are_enqueued(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    c.backend = DS_MEM_DRIVER_POOL;
    c.limit = 64 * MIB;
    for (int same = 0; same < 2; same++) {
        begin_with(&c);
        ds_stream s = stream(0), t = stream(0), other = stream(0);
        gate g = { 0 };
        ds_graph graph;
        void *p = block(40 * MIB, s), *q = NULL;
        gate_close(s, &g);
        ok(ds_mem_free(p));
        ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
        /* nothing may wait; on CUDA the memory may be used again in the order of its stream */
        ds_result r = ds_mem_alloc(40 * MIB, same ? s : t, &q);
        if (r != DS_OK)
            assert_int_equal(r, DS_ERR_LIMIT_EXCEEDED);
        assert_true(reserved(0) <= 64 * MIB);
        ok(ds_capture_end(other, &graph));
        ok(ds_graph_destroy(graph));
        if (q)
            ok(ds_mem_free(q));

        pthread_t thread = spawn(open_later, &g);
        q = block(40 * MIB, same ? s : t);
        assert_true(reserved(0) <= 64 * MIB);
        paint(q, 40 * MIB, 2, same ? s : t);
        join(thread);

        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        ok(ds_stream_destroy(other));
        finish();
    }
}

/* A limit holds for blocks that the cache takes, too, after the driver's pool was used. */
static void test_a_limit_counts_what_the_drivers_pool_keeps(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    c.limit = 64 * MIB;
    for (int backend = 0; backend < 3; backend += 2) {
        c.backend = DS_MEM_DRIVER_POOL;
        begin_with(&c);
        ds_stream s = stream(0);
        ok(ds_mem_free(block(40 * MIB, s)));
        c.backend = backend;
        ok(ds_mem_configure(harness_device(0), &c));
        for (int i = 0; i < 3; i++) {
            void *p = block(30 * MIB, s), *q = block(20 * MIB, s);
            assert_true(reserved(0) <= 64 * MIB);
            ok(ds_mem_free(p));
            ok(ds_mem_free(q));
        }
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* An allocation that fits into what the pool has cached does not wait, although both together
   pass the limit; one for which the pool must grow shrinks it first. */
static void test_a_limit_leaves_the_drivers_pool_its_cache(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    c.backend = DS_MEM_DRIVER_POOL;
    c.limit = 64 * MIB;
    begin_with(&c);
    ds_stream s = stream(0);
    for (int i = 0; i < 10; i++) {
        ok(ds_mem_free(block(60 * MIB, s)));
        ok(ds_stream_synchronize(s));
        assert_true(reserved(0) <= 64 * MIB);
    }
    assert_int_equal(stat(0, "num_alloc_retries"), 0);

    void *p = block(10 * MIB, s);
    assert_true(reserved(0) <= 64 * MIB);
    assert_int_equal(stat(0, "num_alloc_retries"), harness_is_cpu() ? 0 : 1);

    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
}

/* Threads with streams of their own, streams that come and go, captures here and there. */
static void *free_much(void *user) {
    unsigned seed = *(const unsigned *)user;
    ds_stream s = stream(0), t = stream(0);
    void *live[8] = { 0 };
    for (int i = 0; i < 150; i++) {
        unsigned k = next_random(&seed) % 8;
        ds_graph graph;
        int captures = next_random(&seed) % 8;
        if (live[k]) {
            if (next_random(&seed) & 1)
                ok_thread(ds_mem_record_stream(live[k], t));
            if (captures < 2)
                ok_thread(ds_capture_begin(captures ? s : t, DS_CAPTURE_THREAD_LOCAL));
            ok_thread(ds_mem_free(live[k]));
            live[k] = NULL;
            if (captures < 2) {
                ok_thread(ds_capture_end(captures ? s : t, &graph));
                ok_thread(ds_graph_destroy(graph));
            }
        } else {
            size_t size = next_random(&seed) % 100000 + 1;
            live[k] = block(size, s);
            paint(live[k], size, k, s);
        }
        if (next_random(&seed) % 20 == 0) {
            ok_thread(ds_stream_destroy(s));
            s = stream(0);
        }
    }
    for (int k = 0; k < 8; k++)
        ok_thread(ds_mem_free(live[k]));
    ok_thread(ds_stream_destroy(s));
    ok_thread(ds_stream_destroy(t));
    return NULL;
}

static void test_threads_free_without_a_cache_beside_captures(void **state) {
    (void)state;
    for (int backend = DS_MEM_DRIVER_POOL; backend <= DS_MEM_UNCACHED; backend++) {
        begin_on(PRESET_DEFAULT, backend);
        unsigned seed[3] = { 1, 2, 3 };
        pthread_t thread[3];
        for (int i = 0; i < 3; i++)
            thread[i] = spawn(free_much, &seed[i]);
        for (int i = 0; i < 3; i++)
            join(thread[i]);
        finish();
    }
}

const struct CMUnitTest tests_alloc_backends[] = {
    DS_TEST(test_all_backends_count_the_same, "cupy: TestMemoryAsyncPool, TestAllocatorDisabled"),
    DS_TEST(test_what_the_drivers_pool_keeps_is_reserved, "torch: cudaMallocAsync backend"),
    DS_TEST(test_all_backends_ask_again_as_often, "alloc"),
    DS_TEST(test_without_a_cache_every_block_is_the_drivers, "cupy: TestAllocatorDisabled"),
    DS_TEST(test_a_backend_is_changed_when_nothing_is_allocated, "alloc"),
    DS_TEST(test_limits_hold_on_every_backend, "cupy: TestMemoryAsyncPool, test_set_limit_size"),
    DS_TEST(test_a_full_device_is_an_error_on_every_backend,
            "torch: test_out_of_memory_retry, cupy: TestMemoryAsyncPool"),
    DS_TEST(test_alignment_beyond_512_needs_the_native_backend, "alloc"),
    DS_TEST(test_the_drivers_pool_tells_what_it_has, "peers e.4 9"),
    DS_TEST(test_growing_segments_have_the_layouts_of_torch, "torch 3.11"),
    DS_TEST(test_pages_in_the_middle_are_released_and_holes_filled_again,
            "torch: test_mempool_expandable"),
    DS_TEST(test_the_ends_of_pages_stay_and_join_the_hole_between_them, "alloc"),
    DS_TEST(test_random_holes_keep_contents_and_accounts, "torch: test_allocator_fuzz"),
    DS_TEST(test_a_mapping_that_fails_leaves_nothing_behind, "torch: Issue188008"),
    DS_TEST(test_a_segment_that_is_full_is_followed_by_another, "alloc"),
    DS_TEST(test_growing_segments_are_switched_off_and_on, "alloc"),
    DS_TEST(test_a_pool_grows_by_itself_and_its_runs_are_told,
            "torch: test_mempool_expandable, test_mempool_snapshot_reports_runs_after_a_hole"),
    DS_TEST_CUDA(test_a_device_without_virtual_memory_has_plain_segments, "alloc"),
    DS_TEST_CUDA(test_a_device_without_memory_pools_says_so, "alloc"),
    DS_TEST(test_streams_come_and_go_and_their_memory_stays_in_use, "peers D6, cupy: Issue8068"),
    DS_TEST(test_short_lived_streams_and_threads_leave_nothing_behind, "peers D6"),
    DS_TEST(test_the_default_streams_of_two_threads_do_not_share_memory,
            "cupy: test_reuse_between_thread_ptds, Issue5069"),
    DS_TEST(test_all_handles_of_one_stream_share_its_memory,
            "cupy: test_reuse_between_thread_same_stream"),
    DS_TEST(test_a_wrapper_that_ends_takes_no_memory_along, "alloc"),
    DS_TEST(test_memory_of_a_wrapped_stream_is_returned_in_order, "alloc"),
    DS_TEST(test_a_stream_that_changes_hands_keeps_its_memory, "alloc"),
    DS_TEST(test_a_stream_with_several_owners_ends_with_the_last, "alloc"),
    DS_TEST(test_the_default_stream_has_memory_like_any_other, "alloc"),
    DS_TEST(test_a_free_of_plain_memory_waits_for_uses_on_another_device, "alloc"),
    DS_TEST(test_a_use_on_a_stream_that_captures_holds_the_memory_back, "alloc"),
    DS_TEST(test_a_block_is_freed_while_its_stream_captures, "alloc"),
    DS_TEST(test_memory_that_is_held_back_ends_with_the_library, "alloc"),
    DS_TEST(test_a_block_of_an_ended_stream_is_freed_behind_its_work, "alloc"),
    DS_TEST(test_a_block_of_a_stream_ended_in_a_capture_comes_back, "alloc"),
    DS_TEST(test_the_drivers_pool_waits_for_frees_that_are_on_their_way, "peers 108, 110"),
    DS_TEST(test_a_limit_counts_frees_that_are_enqueued, "alloc"),
    DS_TEST(test_a_limit_counts_what_the_drivers_pool_keeps, "alloc"),
    DS_TEST(test_a_limit_leaves_the_drivers_pool_its_cache, "alloc"),
    DS_TEST(test_threads_free_without_a_cache_beside_captures, "alloc"),
};
const size_t tests_alloc_backends_count =
    sizeof tests_alloc_backends / sizeof *tests_alloc_backends;
