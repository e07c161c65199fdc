/* The caching allocator when memory is short: limits, the steps before an error, the error, what
   goes on afterwards. */
#include "alloc.h"

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

static void copy_works(ds_stream s) {
    uint64_t *h = word(3);
    fold(s, h, 4);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(3, 4));
    ok(ds_device_synchronize(harness_device(0)));
}

/* ---- limits ---- */

static void test_a_limit_is_kept_to_the_byte(void **state) {
    (void)state;
    begin(PRESET_CUPY);
    ds_stream s = stream(0);
    ds_device d = harness_device(0);
    void *p[3], *none = &s;
    ok(ds_mem_set_limit(d, 6 * UNIT));
    p[0] = block(5 * UNIT, s);
    p[1] = block(UNIT, s);
    refused(ds_mem_alloc(UNIT, s, &none), DS_ERR_LIMIT_EXCEEDED);
    assert_null(none);
    refused(ds_mem_alloc(1, s, &none), DS_ERR_LIMIT_EXCEEDED);
    ok(ds_mem_set_limit(d, 7 * UNIT));
    p[2] = block(UNIT, s);
    refused(ds_mem_alloc(1, s, &none), DS_ERR_LIMIT_EXCEEDED);
    assert_int_equal(ds_mem_get_reserved(d), 7 * UNIT);
    assert_int_equal(stat(0, "num_ooms"), 3);
    for (int i = 0; i < 3; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_mem_set_limit(d, 0));
    copy_works(s);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_cached_memory_does_not_count_against_a_limit(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0), t = stream(0);
        ds_device d = harness_device(0);
        ok(ds_mem_set_limit(d, 64 * MIB));
        void *p = block(50 * MIB, s);
        ok(ds_mem_free(p));
        p = block(60 * MIB, s); /* larger than what is cached */
        ok(ds_mem_free(p));
        p = block(60 * MIB, t); /* cached on another stream */
        ok(ds_mem_free(p));
        void *many[20];
        /* in the other kind of segment */
        for (int i = 0; i < 20; i++)
            many[i] = block(MIB, s);
        for (int i = 0; i < 20; i++)
            ok(ds_mem_free(many[i]));
        p = block(60 * MIB, s);
        assert_true(ds_mem_get_reserved(d) <= 64 * MIB);
        ok(ds_mem_free(p));
        assert_int_equal(stat(0, "num_ooms"), 0);
        ok(ds_mem_set_limit(d, 0));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

static void test_limits_are_read_as_they_were_set(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_device d = harness_device(0), out_of_range = { d.type, 4711 };
    size_t total = device_memory(0), limit = 1;
    double fraction = 0;
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, 0);
    ok(ds_mem_get_fraction(d, &fraction));
    assert_true(fraction == 1);
    ok(ds_mem_set_limit(d, 1024));
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, 1024);
    ok(ds_mem_set_limit(d, 0));
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, 0);
    static const double fractions[] = { 0.25, 0.499, 0.123456789, 1e-3, 0.999999, 1.0 };
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++) {
        ok(ds_mem_set_fraction(d, fractions[i]));
        ok(ds_mem_get_fraction(d, &fraction));
        assert_true(fraction == fractions[i]);
        ok(ds_mem_get_limit(d, &limit));
        assert_int_equal(limit, fractions[i] == 1.0 ? 0 : (size_t)(fractions[i] * (double)total));
    }
    static const double wrong[] = { -1, -0.001, 1.1, 1.0000001 };
    for (size_t i = 0; i < 4; i++)
        refused(ds_mem_set_fraction(d, wrong[i]), DS_ERR_INVALID_VALUE);
    refused(ds_mem_set_fraction(d, strtod("nan", NULL)), DS_ERR_INVALID_VALUE);
    ok(ds_mem_get_fraction(d, &fraction));
    assert_true(fraction == 1);
    /* the smaller of both counts */
    ok(ds_mem_set_fraction(d, 0.5));
    ok(ds_mem_set_limit(d, total / 4));
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, total / 4);
    ok(ds_mem_set_limit(d, total));
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, (size_t)(0.5 * (double)total));
    ok(ds_mem_set_fraction(d, 1)); /* a limit in bytes is none of its business */
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, total);
    ok(ds_mem_set_fraction(d, 0.5));
    ok(ds_mem_set_limit(d, 0)); /* no limit is no fraction either */
    ok(ds_mem_get_limit(d, &limit));
    assert_int_equal(limit, 0);
    ok(ds_mem_get_fraction(d, &fraction));
    assert_true(fraction == 1);
    refused(ds_mem_set_limit(out_of_range, 0), DS_ERR_DEVICE_RANGE);
    refused(ds_mem_set_fraction(out_of_range, 1), DS_ERR_DEVICE_RANGE);
    refused(ds_mem_get_limit(d, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_mem_get_fraction(d, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_mem_get_fraction(out_of_range, &fraction), DS_ERR_DEVICE_RANGE);
    assert_true(fraction == 0);

    /* as a text */
    static const struct {
        const char *text;
        double part;
        size_t bytes;
    } texts[] = { { "limit:0", 0, 0 },         { "limit:1073741824", 0, 1073741824 },
                  { "limit:0%", 0, 0 },        { "limit:40%", 0.40, 0 },
                  { "limit:70.5%", 0.705, 0 }, { "limit:100%", 1, 0 } };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ok(ds_mem_configure_text("preset:default"));
        ok(ds_mem_configure_text(texts[i].text));
        ok(ds_mem_get_limit(d, &limit));
        size_t want = texts[i].bytes ? texts[i].bytes : (size_t)(texts[i].part * (double)total);
        size_t apart = limit > want ? limit - want : want - limit;
        if (apart > 1 && !(texts[i].part == 1 && limit == 0))
            fail_msg("%s: the limit is %zu, not %zu", texts[i].text, limit, want);
    }
    for (size_t i = 0; i < 2; i++) { /* the second one replaces the first */
        ok(ds_mem_configure_text("limit:40%"));
        ok(ds_mem_configure_text(i ? "limit:0" : "limit:0%"));
        ok(ds_mem_get_limit(d, &limit));
        assert_int_equal(limit, 0);
    }
    ok(ds_mem_configure_text("preset:default"));
    finish();
}

static void test_no_memory_at_all_is_a_limit_too(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    double fraction = 1;
    void *p = &s;
    ok(ds_mem_set_fraction(harness_device(0), 0));
    ok(ds_mem_get_fraction(harness_device(0), &fraction));
    assert_true(fraction == 0);
    refused(ds_mem_alloc(1, s, &p), DS_ERR_LIMIT_EXCEEDED);
    assert_null(p);
    ok(ds_mem_set_fraction(harness_device(0), 1));
    ok(ds_mem_alloc(1, s, &p));
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_fraction_of_the_device_limits_reserved_bytes(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_device d = harness_device(0);
        size_t most = (size_t)((double)device_memory(0) * 0.05);
        void *p = &s;
        ok(ds_mem_set_fraction(d, 0.05));
        ok(ds_mem_alloc(most / 2, s, &p));
        ok(ds_mem_free(p));
        ok(ds_mem_empty_cache(d, NULL));
        refused(ds_mem_alloc(most + 1, s, &p), DS_ERR_LIMIT_EXCEEDED);
        assert_null(p);
        ok(ds_mem_alloc(MIB, s, &p)); /* and the device is as before */
        ok(ds_mem_free(p));
        copy_works(s);
        ok(ds_mem_set_fraction(d, 1));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_pool_has_a_limit_of_its_own(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool;
        void *p, *q = &p;
        ok(ds_pool_create(
            &(ds_pool_desc){ .device = harness_device(0), .limit = 40 * MIB, .label = "narrow" },
            &pool));
        ds_mem_request r = { .size = 24 * MIB, .stream = s, .pool = pool };
        ok(ds_mem_alloc_with(&r, &p));
        refused(ds_mem_alloc_with(&r, &q), DS_ERR_LIMIT_EXCEEDED);
        assert_null(q);
        q = block(24 * MIB, s); /* others have room */
        ok(ds_mem_free(q));
        ok(ds_mem_free(p));
        r.size = 38 * MIB; /* what the pool has cached makes room */
        ok(ds_mem_alloc_with(&r, &p));
        assert_true(pool_stat(pool, "reserved_bytes.all.current") <= (int64_t)(40 * MIB));
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_request_above_the_limit_is_refused_without_the_driver(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.throw_on_cudamalloc_oom = 1;
        c.limit = 40 * MIB;
        begin_with(&c);
        ds_stream s = stream(0);
        void *p = block(24 * MIB, s), *q = &p;
        int64_t calls = stat(0, "num_device_alloc");
        refused(ds_mem_alloc(24 * MIB, s, &q), DS_ERR_LIMIT_EXCEEDED);
        assert_null(q);
        assert_int_equal(stat(0, "num_oom_rejections"), 1);
        assert_int_equal(stat(0, "num_device_alloc"), calls);
        ok(ds_mem_free(p));
        q = block(30 * MIB, s);
        assert_int_equal(stat(0, "num_oom_rejections"), 1);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- a device that is full ---- */

static void test_a_refused_request_succeeds_when_memory_was_freed(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        scarce sc;
        ds_mem_config c = config_of(preset);
        scarce_begin(&sc, 64 * MIB, &c);
        ds_stream s = stream(0);
        looks *l = looks_create(200000);
        void *p = block(24 * MIB, s), *q = &p;
        paint(p, 24 * MIB, 1, s);
        no_memory(ds_mem_alloc(48 * MIB, s, &q));
        assert_null(q);
        if (!strstr(ds_error_get_last(), "48.00 MiB"))
            fail_msg("\"%s\" does not say what was asked for", ds_error_get_last());
        assert_int_equal(stat(0, "num_ooms"), 1);
        copy_works(s);
        look(l, p, 24 * MIB, 1, s);
        ok(ds_mem_free(p));
        q = block(48 * MIB, s);
        paint(q, 48 * MIB, 2, s);
        look(l, q, 48 * MIB, 2, s);
        ok(ds_mem_free(q));
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
        scarce_end(&sc);
    }
}

static void *take_most(void *arg) {
    ds_stream s = *(ds_stream *)arg;
    for (int i = 0; i < 3; i++) {
        void *p = block(48 * MIB, s);
        paint(p, 48 * MIB, 3, s);
        ok_thread(ds_mem_free(p));
    }
    return NULL;
}

static void test_what_one_stream_has_cached_is_given_back_for_another(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        scarce sc;
        ds_mem_config c = config_of(preset);
        scarce_begin(&sc, 64 * MIB, &c);
        ds_stream s = stream(0), t = stream(0);
        take_most(&s);
        assert_true(ds_mem_get_reserved(harness_device(0)) >= 48 * MIB);
        join(spawn(take_most, &t));
        take_most(&s);
        assert_int_equal(stat(0, "num_ooms"), 0);
        if (preset >= PRESET_TORCH) {
            assert_int_equal(stat(0, "num_alloc_retries"), 2);
            assert_true(stat(0, "num_sync_all_streams") >= 2);
        }
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
        scarce_end(&sc);
    }
}

static void test_small_and_large_caches_make_room_for_each_other(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        scarce sc;
        ds_mem_config c = config_of(preset);
        scarce_begin(&sc, 64 * MIB, &c);
        ds_stream s = stream(0);
        void *p[40], *q;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 40; i++)
                p[i] = block(MIB, s);
            for (int i = 0; i < 40; i++)
                ok(ds_mem_free(p[i]));
            q = block(56 * MIB, s);
            ok(ds_mem_free(q));
        }
        assert_int_equal(stat(0, "num_ooms"), 0);
        ok(ds_stream_destroy(s));
        finish();
        scarce_end(&sc);
    }
}

/* A stream that lags behind holds blocks that were freed long ago. */
static void test_blocks_awaiting_other_streams_are_taken_before_shortage(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 2; way++) {
            enum { SIZE = 12 << 20, TIMES = 30 };

            gate g = { 0 };
            scarce sc;
            ds_mem_config c = config_of(preset);
            scarce_begin(&sc, 64 * MIB, &c);
            ds_stream s = stream(0), user = stream(0);
            looks *l = looks_create((size_t)SIZE / UNIT * (TIMES + 1));
            void *y = block(SIZE, user);
            gate_close(user, &g);
            paint(y, SIZE, 5, user);
            pthread_t thread = spawn(open_later, &g);
            for (uint32_t i = 0; i < TIMES; i++) {
                void *x = block(SIZE, s);
                paint(x, SIZE, i, s);
                ok(ds_stream_wait_stream(user, s));
                look(l, x, SIZE, i, user);
                if (way)
                    ok(ds_mem_record_use(x, user));
                else
                    ok(ds_mem_record_stream(x, user));
                ok(ds_mem_free(x));
            }
            join(thread);
            assert_int_equal(stat(0, "num_ooms"), 0);
            look(l, y, SIZE, 5, user);
            ok(ds_mem_free(y));
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            looks_destroy(l);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(user));
            finish();
            scarce_end(&sc);
        }
}

static void test_a_shortage_on_one_device_leaves_the_other_alone(void **state) {
    (void)state;
    two_devices();
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0), t = stream(1);
    void *p = block(5 * MIB, t), *none = &p;
    ok(ds_mem_free(p));
    size_t reserved = ds_mem_get_reserved(harness_device(1));
    ok(ds_mem_set_limit(harness_device(0), 30 * MIB));
    refused(ds_mem_alloc(50 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
    assert_int_equal(ds_mem_get_reserved(harness_device(1)), reserved);
    assert_int_equal(stat(1, "num_ooms"), 0);
    assert_int_equal(stat(1, "num_sync_all_streams"), 0);
    p = block(50 * MIB, t);
    ok(ds_mem_free(p));
    ok(ds_mem_set_limit(harness_device(0), 0));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_emptying_the_cache_of_a_full_device_is_no_error(void **state) {
    (void)state;
    scarce sc;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    scarce_begin(&sc, 32 * MIB, &c);
    ds_stream s = stream(0);
    void *p[2000], *none;
    int count = 0;
    while (count < 2000 && ds_mem_alloc(512 * KIB, s, &p[count]) == DS_OK)
        count++;
    assert_true(count >= 48);
    no_memory(ds_mem_alloc(512 * KIB, s, &none));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_mem_trim(harness_device(0), 0, NULL));
    ok(ds_mem_validate(harness_device(0)));
    check_invariants(0);
    for (int i = 0; i < count; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_stream_destroy(s));
    finish();
    scarce_end(&sc);
}

/* ---- the error ---- */

static void test_the_error_names_what_was_asked_and_who_has_the_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0), user = stream(0);
        gate g = { 0 };
        void *big, *p[3], *pending, *none;
        char device[DS_DEVICE_NAME_SIZE];
        ok(ds_device_format(harness_device(0), device, sizeof device));
        ok(ds_mem_set_limit(harness_device(0), 128 * MIB));
        ok(ds_mem_alloc_with(
            &(ds_mem_request){ .size = 60 * MIB, .stream = s, .label = "weights of the model" },
            &big));
        for (int i = 0; i < 3; i++)
            ok(ds_mem_alloc_with(
                &(ds_mem_request){ .size = 3 * MIB, .stream = s, .label = "activations" }, &p[i]));
        pending = block(2 * MIB, s);
        ok(ds_mem_free(p[1]));
        gate_close(user, &g);
        ok(ds_mem_record_use(pending, user));
        ok(ds_mem_free(pending));
        pthread_t thread = spawn(open_later, &g); /* whoever waits for it */
        refused(ds_mem_alloc(100 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
        join(thread);
        if (!strstr(ds_error_get_last(), "100.00 MiB") || !strstr(ds_error_get_last(), device) ||
            !strstr(ds_error_get_last(), "128.00 MiB"))
            fail_msg("\"%s\" does not name the request, %s and the limit", ds_error_get_last(),
                     device);
        const char *report = ds_mem_get_last_report();
        static const char *const words[] = { "100.00 MiB",  "128.00 MiB", "weights of the model",
                                             "activations", "60.00 MiB",  "limit",
                                             "allocated",   "reserved",   "free",
                                             "largest",     "pending",    "fragment" };
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (!strstr(report, words[i]))
                fail_msg("%s: \"%s\" is not in the report:\n%s", preset_name(preset), words[i],
                         report);
        assert_true(strstr(report, "weights of the model") < strstr(report, "activations"));
        ok(ds_mem_free(big));
        ok(ds_mem_free(p[0]));
        ok(ds_mem_free(p[2]));
        ok(ds_stream_synchronize(user));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

static void *no_report_here(void *arg) {
    (void)arg;
    if (ds_mem_get_last_report()[0])
        abort();
    return NULL;
}

static void test_the_report_belongs_to_the_thread_that_ran_out(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    void *none;
    ok(ds_mem_set_limit(harness_device(0), 10 * MIB));
    refused(ds_mem_alloc(100 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
    assert_true(ds_mem_get_last_report()[0] != 0);
    join(spawn(no_report_here, NULL));
    ok(ds_mem_set_limit(harness_device(0), 0));
    ok(ds_stream_destroy(s));
    finish();
}

typedef struct observed {
    int calls, order;
    size_t needed, total, free;
    ds_device device;
} observed;

static int observer_clock;

static void observe(ds_device device, size_t needed, size_t total, size_t free_bytes, void *user) {
    observed *o = user;
    o->calls++;
    o->order = ++observer_clock;
    o->needed = needed;
    o->total = total;
    o->free = free_bytes;
    o->device = device;
}

static void test_observers_are_called_before_the_error_comes_back(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        observed a = { 0 }, b = { 0 };
        void *none, *p;
        ok(ds_mem_add_oom_callback(observe, &a));
        ok(ds_mem_add_oom_callback(observe, &b));
        p = block(MIB, s);
        ok(ds_mem_free(p));
        assert_int_equal(a.calls, 0);
        ok(ds_mem_set_limit(harness_device(0), 64 * MIB));
        refused(ds_mem_alloc(100 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
        assert_int_equal(a.calls, 1);
        assert_int_equal(b.calls, 1);
        assert_true(a.order < b.order);
        assert_true(a.needed >= 100 * MIB);
        assert_int_equal(a.total, 64 * MIB);
        assert_true(a.free <= 64 * MIB);
        assert_int_equal(a.device.type, harness_device(0).type);
        assert_int_equal(a.device.index, harness_device(0).index);
        ok(ds_mem_remove_oom_callback(observe, &a));
        refused(ds_mem_alloc(100 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
        assert_int_equal(a.calls, 1);
        assert_int_equal(b.calls, 2);
        ok(ds_mem_remove_oom_callback(observe, &b));
        refused(ds_mem_remove_oom_callback(observe, &b), DS_ERR_INVALID_VALUE);
        refused(ds_mem_add_oom_callback(NULL, NULL), DS_ERR_INVALID_VALUE);
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- callbacks that free ---- */

typedef struct helper {
    void *spare[4];
    int count, calls, lie, told;
    size_t size;
    ds_result alloc;
    ds_stream s;
} helper;

static int give_one(ds_device device, size_t size, void *user) {
    helper *h = user;
    (void)device;
    h->calls++;
    h->size = size;
    if (h->s.id) {
        void *p;
        h->alloc = ds_mem_alloc(100, h->s, &p);
        h->told = strstr(ds_error_get_last(), "callback must not allocate memory") != NULL;
    }
    if (!h->count)
        return h->lie;
    ok_thread(ds_mem_free(h->spare[--h->count]));
    return 1;
}

static void test_a_callback_frees_memory_before_an_allocation_fails(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        helper h = { .count = 1, .s = s }, second = { .count = 0 };
        void *none = &s;
        h.spare[0] = block(40 * MIB, s);
        ok(ds_mem_add_shortage_callback(give_one, &h));
        ok(ds_mem_add_shortage_callback(give_one, &second));
        void *p = block(MIB, s);
        ok(ds_mem_free(p));
        assert_int_equal(h.calls, 0);
        ok(ds_mem_set_limit(harness_device(0), 64 * MIB));
        p = block(50 * MIB, s);
        assert_true(h.calls >= 1);
        assert_int_equal(h.count, 0);
        assert_true(h.size >= 50 * MIB);
        assert_true(h.alloc < 0 && h.told); /* it may not allocate */
        assert_int_equal(stat(0, "num_ooms"), 0);
        int calls = h.calls;
        refused(ds_mem_alloc(50 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED); /* nothing left to free */
        assert_true(h.calls > calls && second.calls > 0);
        h.lie = 1; /* says that it has freed something */
        refused(ds_mem_alloc(50 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
        ok(ds_mem_remove_shortage_callback(give_one, &h));
        ok(ds_mem_remove_shortage_callback(give_one, &second));
        refused(ds_mem_remove_shortage_callback(give_one, &second), DS_ERR_INVALID_VALUE);
        refused(ds_mem_add_shortage_callback(NULL, NULL), DS_ERR_INVALID_VALUE);
        calls = h.calls;
        refused(ds_mem_alloc(50 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
        assert_int_equal(h.calls, calls);
        ok(ds_mem_free(p));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* What the callback frees cannot be given back to the driver, since its neighbour lives: it must
   be found in the cache. */
static void test_the_cache_is_searched_again_after_every_step(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        helper h = { .count = 0 };

        enum { N = 16 };

        void *p[N];
        /* 2 MiB of small blocks */
        for (int i = 0; i < N; i++)
            p[i] = block(128 * KIB, s);
        ok(ds_mem_set_limit(harness_device(0), ds_mem_get_reserved(harness_device(0))));
        void *filler[200];
        int fillers = 0;
        while (fillers < 200 && ds_mem_alloc(128 * KIB, s, &filler[fillers]) == DS_OK)
            fillers++;
        assert_true(fillers < 200);
        ok(ds_mem_add_shortage_callback(give_one, &h));
        h.spare[h.count++] = p[5];
        void *q = block(128 * KIB, s);
        if (preset != PRESET_CUPY)
            assert_ptr_equal(q, p[5]);
        assert_int_equal(h.count, 0);
        /* two neighbours, freed one after the other, make one that fits */
        if (preset != PRESET_CUPY) {
            char *low = p[8] < p[9] ? p[8] : p[9], *high = p[8] < p[9] ? p[9] : p[8];
            assert_ptr_equal(low + 128 * KIB, high);
            h.spare[h.count++] = low;
            ok(ds_mem_free(high));
            void *r = block(256 * KIB, s);
            assert_ptr_equal(r, low);
            ok(ds_mem_free(r));
        } else {
            ok(ds_mem_free(p[8]));
            ok(ds_mem_free(p[9]));
        }
        ok(ds_mem_remove_shortage_callback(give_one, &h));
        for (int i = 0; i < fillers; i++)
            ok(ds_mem_free(filler[i]));
        for (int i = 0; i < N; i++)
            if (i != 5 && i != 8 && i != 9)
                ok(ds_mem_free(p[i]));
        ok(ds_mem_free(q));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- captures ---- */

static void test_a_capture_that_runs_out_of_memory_goes_on(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        gate g = { 0 };
        ds_stream s = stream(0), user = stream(0);
        uint64_t *h = word(1);
        void *p, *none = &s, *pending = block(20 * MIB, user);
        ds_graph graph;
        ok(ds_mem_record_stream(pending, s));
        gate_close(s, &g);
        ok(ds_mem_free(pending)); /* s is held up: nobody may wait for it in the capture */
        ok(ds_mem_set_limit(harness_device(0), 64 * MIB));
        ds_stream c = stream(0);
        harness_watch(c);
        ok(ds_capture_begin(c, DS_CAPTURE_GLOBAL));
        p = block(5 * MIB, c);
        fold(c, h, 1);
        no_memory(ds_mem_alloc(100 * MIB, c, &none));
        assert_null(none);
        fold(c, h, 2);
        ok(ds_mem_free(p));
        ok(ds_capture_end(c, &graph));
        ds_graph_exec exec = instantiate_graph(graph);
        ok(ds_graph_launch(exec, c));
        ok(ds_stream_synchronize(c));
        assert_true(*h == fold_host(fold_host(1, 1), 2));
        gate_open(&g);
        ok(ds_graph_exec_destroy(exec));
        ok(ds_graph_destroy(graph));
        ok(ds_mem_set_limit(harness_device(0), 0));
        p = block(100 * MIB, c);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        ok(ds_stream_destroy(c));
        await_graphs_memory(0);
        finish();
    }
}

/* ---- pools ---- */

static void test_free_blocks_of_a_pool_serve_others_if_it_permits_that(void **state) {
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++)
        for (int preset = 0; preset < PRESETS; preset++) {
            begin(preset);
            ds_stream s = stream(0);
            ds_pool pool;
            void *p, *keep, *q = &p;
            ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .use_on_oom = allowed },
                              &pool));
            ok(ds_pool_push(pool));
            p = block(40 * MIB, s);
            keep = block(2 * MIB, s); /* may share the segment, which then cannot be given back */
            ok(ds_pool_pop());
            ok(ds_mem_free(p));
            ok(ds_mem_set_limit(harness_device(0), ds_mem_get_reserved(harness_device(0))));
            ds_result r = ds_mem_alloc(40 * MIB, s, &q);
            if (allowed) {
                if (r != DS_OK)
                    fail_msg("%s: %s: %s", preset_name(preset), ds_result_get_name(r),
                             ds_error_get_last());
                assert_ptr_equal(q, p);
                ok(ds_mem_free(q));
            } else if (preset >= PRESET_TORCH) {
                /* a pool that lives is not emptied for others */
                assert_int_equal(r, DS_ERR_LIMIT_EXCEEDED);
                assert_null(q);
            } else if (r == DS_OK) {
                ok(ds_mem_free(q));
            }
            ok(ds_mem_free(keep));
            ok(ds_mem_set_limit(harness_device(0), 0));
            ok(ds_pool_destroy(pool));
            p = block(40 * MIB, s);
            ok(ds_mem_free(p));
            ok(ds_stream_destroy(s));
            finish();
        }
}

static void test_a_shortage_in_a_pushed_pool_empties_the_default_cache(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool;
        void *p = block(40 * MIB, s);
        ok(ds_mem_free(p));
        ok(ds_mem_set_limit(harness_device(0), 62 * MIB));
        ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0) }, &pool));
        ok(ds_pool_push(pool));
        p = block(40 * MIB, s);
        ok(ds_pool_pop());
        assert_int_equal(stat(0, "num_ooms"), 0);
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(pool));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- threads ---- */

typedef struct greedy {
    ds_stream s;
    int refusals, successes;
    uint32_t value;
} greedy;

static void *take_and_give(void *arg) {
    greedy *g = arg;
    looks *l = looks_create(1 << 17);
    for (int i = 0; i < 60 / HARNESS_THIRD; i++) {
        size_t size = (size_t)(i % 5 + 1) * 7 * MIB;
        void *p;
        ds_result r = ds_mem_alloc(size, g->s, &p);
        if (r == DS_OK) {
            g->successes++;
            paint(p, size, g->value, g->s);
            if (!looks_fit(l, size)) {
                ok_thread(ds_stream_synchronize(g->s));
                if (!looks_right(l))
                    abort();
            }
            look(l, p, size, g->value, g->s);
            ok_thread(ds_mem_free(p));
        } else if (r == DS_ERR_OUT_OF_MEMORY || r == DS_ERR_LIMIT_EXCEEDED) {
            g->refusals++;
            harness_nap();
        } else {
            harness_die("ds_mem_alloc", r);
        }
    }
    ok_thread(ds_stream_synchronize(g->s));
    if (!looks_right(l))
        abort();
    looks_destroy(l);
    return NULL;
}

static void test_threads_that_compete_for_memory_all_come_to_their_end(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        greedy g[4];
        pthread_t thread[4];
        int successes = 0;
        ds_mem_config c = config_of(preset);
        c.debug = 1;
        begin_with(&c);
        ok(ds_mem_set_limit(harness_device(0), 64 * MIB));
        if (getenv("DS_RANDOM_VERBOSE"))
            print_message("%s\n", preset_name(preset));
        for (uint32_t i = 0; i < 4; i++) {
            g[i] = (greedy){ .s = stream(0), .value = 100 + i };
            thread[i] = spawn(take_and_give, &g[i]);
        }
        for (int i = 0; i < 4; i++) {
            join(thread[i]);
            successes += g[i].successes;
            ok(ds_stream_destroy(g[i].s));
        }
        if (getenv("DS_RANDOM_VERBOSE"))
            print_message("%d of 240 succeeded\n", successes);
        /* how many is up to the timing: what the others hold may be the whole limit */
        assert_true(successes > 0);
        ds_stream alone = stream(0);
        for (size_t i = 1; i <= 5; i++) { /* but whoever is alone gets it */
            void *p = block(i * 7 * MIB, alone);
            ok(ds_mem_free(p));
        }
        ok(ds_stream_destroy(alone));
        check_invariants(0);
        ok(ds_mem_set_limit(harness_device(0), 0));
        finish();
    }
}

/* ---- debugging ---- */

static void test_freed_memory_is_poisoned_on_request(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.poison = 1;
        c.poll_on_alloc = 1;
        begin_with(&c);
        ds_stream s = stream(0), user = stream(0);
        looks *l = looks_create(1000);
        gate g = { 0 };
        void *p = block(4096, s);
        paint(p, 4096, 5, s);
        ok(ds_mem_free(p));
        void *q = block(4096, s);
        assert_ptr_equal(p, q);
        look(l, q, 4096, 0xDBDBDBDBu, s);
        paint(q, 4096, 6, s);
        ok(ds_stream_wait_stream(user, s));
        gate_close(user, &g);
        look(l, q, 4096, 6, user); /* a stream that was told to use it still finds it */
        ok(ds_mem_record_use(q, user));
        ok(ds_mem_free(q));
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        ok(ds_stream_synchronize(user));
        p = block(4096, s);
        assert_ptr_equal(p, q);
        look(l, p, 4096, 0xDBDBDBDBu, s);
        ok(ds_mem_free(p));
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

/* Whoever was told to use a block finds it as it was; whoever gets it next finds poison: behind
   the uses of others, when its stream has ended, when the stream that has borrowed it frees it. */
static void test_poison_comes_behind_all_who_used_the_block(void **state) {
    (void)state;

    /* LATE: what was on the streams is not over when the block is freed */
    enum { USED = 1, ENDED = 2, BORROWED = 4, LATE = 8, WAYS = 16 };

    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.poison = 1;
        for (int way = 0; way < WAYS; way++) {
            begin_with(&c);
            ds_stream owner = stream(0), user = stream(0),
                      next = way & (ENDED | BORROWED) ? stream(0) : owner;
            looks *l = looks_create(100000);
            gate g = { 0 };
            void *p = block(12 * MIB, owner);
            if (way & BORROWED) {
                ok(ds_mem_free(p));
                ok(ds_stream_destroy(owner));
                owner = stream(0);
                assert_ptr_equal(block(12 * MIB, owner), p);
            }
            if (way & LATE)
                gate_close(way & USED ? user : owner, &g);
            paint(p, 12 * MIB, 7, owner);
            if (way & USED) {
                if (!(way & LATE))
                    ok(ds_stream_wait_stream(user, owner));
                else
                    ok(ds_stream_synchronize(owner));
                look(l, p, 12 * MIB, 7, user);
                ok(ds_mem_record_use(p, user));
            }
            if (!(way & LATE)) {
                ok(ds_stream_synchronize(owner));
                ok(ds_stream_synchronize(user));
            }
            if (way & ENDED)
                ok(ds_stream_destroy(owner));
            else if (way & BORROWED)
                next = owner;
            ok(ds_mem_set_limit(harness_device(0), ds_mem_get_reserved(harness_device(0))));
            ok(ds_mem_free(p));
            /* while a preset without reuse has the host wait */
            pthread_t thread = spawn(open_later, &g);
            void *q = block(12 * MIB, next);
            /* the host has waited, and the driver was asked for new memory */
            int other = c.reuse == DS_REUSE_NEVER && way == (USED | LATE);
            if (p != q && !other)
                fail_msg("%s, way %d: not the same block", preset_name(preset), way);
            if (!other)
                look(l, q, 12 * MIB, 0xDBDBDBDBu, next);
            ok(ds_stream_synchronize(next));
            ok(ds_stream_synchronize(user));
            join(thread);
            if (!looks_right(l))
                fail_msg("%s, way %d", preset_name(preset), way);
            looks_destroy(l);
            ok(ds_mem_free(q));
            if (!(way & ENDED))
                ok(ds_stream_destroy(owner));
            if (next.id != owner.id)
                ok(ds_stream_destroy(next));
            ok(ds_stream_destroy(user));
            finish();
        }
    }
}

/* CUDA's pool may give the stream the same memory again. (The CPU driver's gives memory back to the
   system, which writes into it: the same address tells nothing there.) */
static void test_the_drivers_pool_gets_poisoned_blocks_back(void **state) {
    (void)state;

    enum { SIZE = 4 << 20 };

    ds_mem_config c = ds_mem_config_default();
    c.poison = 1;
    c.debug = 2;
    c.backend = DS_MEM_DRIVER_POOL;
    for (int used = 0; used < 2; used++) {
        begin_with(&c);
        ds_stream s = stream(0), user = stream(0);
        looks *l = looks_create(20000);
        void *p = block(SIZE, s), *q;
        paint(p, SIZE, 7, s);
        ok(ds_stream_wait_stream(user, s));
        look(l, p, SIZE, 7, user);
        if (used)
            ok(ds_mem_record_use(p, user));
        else
            ok(ds_stream_wait_stream(s, user));
        ok(ds_mem_free(p));
        q = block(SIZE, s);
        if (q == p && !harness_is_cpu())
            look(l, q, SIZE, 0xDBDBDBDBu, s);
        ok(ds_stream_synchronize(s));
        ok(ds_stream_synchronize(user));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

static struct {
    char text[20][400];
    int count;
} logged;

static void keep_log(const ds_log_item *item, void *user) {
    (void)user;
    if (logged.count < 20)
        snprintf(logged.text[logged.count++], sizeof logged.text[0], "%s", item->text);
}

static int logged_with(const char *a, const char *b) {
    for (int i = 0; i < logged.count; i++)
        if (strstr(logged.text[i], a) && strstr(logged.text[i], b))
            return 1;
    return 0;
}

/* As under RLIMIT_AS: the system has not so much address space as the default policy reserves. */
static void test_without_address_space_segments_are_plain(void **state) {
    (void)state;
    not_emulated("a refused reservation of address space, for which qemu makes tables");
    ds_cpu_desc cpu = { .devices = 2, .memory_limit = (size_t)1 << 50 };
    ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING, .cpu = &cpu };
    clear_memory();
    harness_restart(&init);
    logged.count = 0;
    ds_stream s = stream(0), other = stream(0);
    void *p = block(MIB, s), *q = block(30 * MIB, s), *r = block(MIB, other);
    assert_int_equal(find(p).segment_size, 2 * MIB);
    assert_true(logged_with("bytes of address space for cpu:0", "plain segments are used instead"));
    assert_int_equal(logged.count, 1);
    ok(ds_mem_validate(harness_device(0)));
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
    harness_restart(NULL);
}

static void test_a_write_behind_a_block_is_reported_at_its_free(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
        ds_mem_config c = config_of(preset);
        c.guard_bytes = 512;
        clear_memory();
        harness_restart(&init);
        set_config(&c);
        logged.count = 0;
        ds_stream s = stream(0);
        void *good, *bad, *after;
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 1024, .stream = s, .label = "well done" },
                             &good));
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 1024, .stream = s, .label = "off by one" },
                             &bad));
        after = block(1024, s);
        assert_int_equal(find(bad).requested, 1024);
        ok(ds_fill(good, 7, 1, 1024, s)); /* all of it is its own */
        ok(ds_mem_free(good));
        assert_int_equal(logged.count, 0);
        ok(ds_fill(bad, 7, 1, 1025, s));
        ok(ds_mem_free(bad)); /* it is freed all the same */
        assert_true(logged_with("off by one", "test_alloc_shortage.c"));
        ok(ds_mem_free(after));
        assert_int_equal(logged.count, 1);
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
        ok(ds_mem_validate(harness_device(0)));
        ok(ds_stream_destroy(s));
        finish();
        harness_shutdown();
    }
}

/* Nor does it matter that the block's stream has ended, before the work on it or after, or that
   another stream has got the block since. */
static void test_a_write_behind_a_block_of_an_ended_stream_is_reported(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS + 2; preset++) {
        ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
        ds_mem_config c = config_of(preset % PRESETS);
        if (preset >= PRESETS)
            c.backend = preset - PRESETS + DS_MEM_DRIVER_POOL;
        c.guard_bytes = 512;
        clear_memory();
        harness_restart(&init);
        set_config(&c);
        logged.count = 0;
        ds_stream s = stream(0);
        for (int late = 0; late < 2; late++) {
            ds_stream ended = stream(0);
            gate g = { 0 };
            void *bad, *good;
            ok(ds_mem_alloc_with(
                &(ds_mem_request){ .size = 3 * MIB, .stream = ended, .label = "the bad one" },
                &bad));
            good = block(3 * MIB, ended);
            if (late)
                gate_close(ended, &g);
            ok(ds_fill(good, 7, 1, 3 * MIB, ended));
            ok(ds_fill(bad, 7, 1, 3 * MIB + 1, ended));
            ok(ds_stream_destroy(ended));
            pthread_t thread = spawn(open_later, &g);
            ok(ds_mem_free(good));
            assert_int_equal(logged.count, 0);
            ok(ds_mem_free(bad));
            join(thread);
            assert_true(logged.count == 1 && logged_with("the bad one", "behind their end"));
            ok(ds_mem_alloc_with(
                &(ds_mem_request){ .size = 3 * MIB, .stream = s, .label = "the next one" }, &bad));
            ok(ds_fill(bad, 7, 1, 3 * MIB + 1, s));
            if (late)
                ok(ds_stream_destroy(s));
            ok(ds_mem_free(bad));
            assert_true(logged.count == 2 && logged_with("the next one", "behind their end"));
            logged.count = 0;
        }
        finish();
        harness_shutdown();
    }
}

/* 512 bytes behind what was asked for, wherever the block ends; not where none were filled. */
static void test_guards_lie_behind_the_requested_bytes_and_are_checked(void **state) {
    (void)state;

    static const struct {
        size_t size, alignment, written;
        int damaged;
    } ways[] = { { 1000, 0, 1000, 0 },
                 { 1000, 0, 1001, 1 },
                 { 1000, 0, 1024, 1 },
                 { 1001, 0, 1001, 0 },
                 { 1001, 0, 1005, 1 },
                 { 1000, 0, 1511, 1 },
                 { 20 * MIB - 424 * KIB, 0, 20 * MIB - 424 * KIB, 0 },
                 { 20 * MIB - 424 * KIB, 0, 20 * MIB - 424 * KIB + 512, 1 },
                 { 3 * MIB, 0, 3 * MIB + 1, 1 },
                 { 1024, MIB, 1024, 0 },
                 { 1024, MIB, 1536, 1 } };

    for (int preset = 0; preset < PRESETS + 2; preset++) {
        ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
        ds_mem_config c = config_of(preset % PRESETS), without = c;
        ds_graph graph;
        if (preset >= PRESETS)
            without.backend = c.backend = preset - PRESETS + DS_MEM_DRIVER_POOL;
        c.guard_bytes = 512;
        harness_restart(&init);
        set_config(&without);
        logged.count = 0;
        ds_stream s = stream(0), other = stream(0);
        void *from_before = block(MIB, s), *beside_a_capture, *p;
        set_config(&c);
        ok(ds_fill(from_before, 7, 1, MIB, s));
        ok(ds_mem_free(from_before));
        ok(ds_capture_begin(other, DS_CAPTURE_THREAD_LOCAL));
        beside_a_capture = block(MIB, s);
        ok(ds_capture_end(other, &graph));
        ok(ds_graph_destroy(graph));
        ok(ds_fill(beside_a_capture, 7, 1, MIB, s));
        ok(ds_mem_free(beside_a_capture));
        assert_int_equal(logged.count, 0);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            if (ways[i].alignment && preset >= PRESETS)
                continue;
            ok(ds_mem_alloc_with(&(ds_mem_request){ .size = ways[i].size,
                                                    .stream = s,
                                                    .alignment = ways[i].alignment,
                                                    .label = "the one" },
                                 &p));
            ok(ds_fill(p, 7, 1, ways[i].written, s));
            ok(ds_mem_free(p));
            if (logged.count != ways[i].damaged ||
                (logged.count && !logged_with("the one", "behind their end")))
                fail_msg("policy %d, way %zu: %d warnings, %s", preset, i, logged.count,
                         logged.count ? logged.text[0] : "");
            logged.count = 0;
        }
        p = block(1000, s); /* the policy goes, its guards stay until their blocks are freed */
        set_config(&without);
        ok(ds_fill(p, 7, 1, 1100, s));
        ok(ds_mem_free(p));
        assert_int_equal(logged.count, 1);
        p = block(1000, s);
        ok(ds_fill(p, 7, 1, 1024, s));
        ok(ds_mem_free(p));
        assert_int_equal(logged.count, 1);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
        harness_restart(NULL);
    }
}

static void test_blocks_that_are_left_at_shutdown_are_reported_by_label(void **state) {
    (void)state;
    clear_memory();
    ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
    harness_restart(&init);
    logged.count = 0;
    ds_stream s = stream(0);
    void *p;
    ok(ds_mem_alloc_with(
        &(ds_mem_request){ .size = 3 * MIB, .stream = s, .label = "the forgotten one" }, &p));
    ok(ds_mem_alloc_with(
        &(ds_mem_request){ .size = 3 * MIB, .stream = s, .label = "the forgotten one" }, &p));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 100, .stream = s, .label = "the freed one" },
                         &p));
    ok(ds_mem_free(p));
    p = block(700, s); /* known by its place */
    ok(ds_stream_destroy(s));
    harness_shutdown();
    assert_true(logged_with("the forgotten one", "6.00 MiB"));
    assert_true(logged_with("test_alloc_shortage.c", "") || logged_with("alloc.h", ""));
    assert_false(logged_with("the freed one", ""));
    begin(PRESET_DEFAULT); /* and a fresh start */
    s = stream(0);
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    p = block(100, s);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_nothing_is_reported_when_all_blocks_were_freed(void **state) {
    (void)state;
    clear_memory();
    ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
    harness_restart(&init);
    logged.count = 0;
    ds_stream s = stream(0), t = stream(0);
    void *p = block(3 * MIB, s);
    ok(ds_mem_record_stream(p, t));
    ok(ds_mem_free(p)); /* cached memory is no leak */
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    harness_shutdown();
    for (int i = 0; i < logged.count; i++)
        fail_msg("\"%s\"", logged.text[i]);
}

/* ---- what a refusal leaves behind ---- */

static void test_what_the_device_refuses_counts_for_nothing(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        scarce sc;
        ds_mem_config c = config_of(preset);
        c.limit = 180 * MIB;
        scarce_begin(&sc, 96 * MIB, &c);
        ds_stream s = stream(0);
        void *p = &p;
        for (int i = 0; i < 4; i++) {
            refused(ds_mem_alloc(120 * MIB, s, &p), DS_ERR_OUT_OF_MEMORY); /* not the limit */
            assert_null(p);
            assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
            assert_int_equal(stat(0, "num_device_alloc"), stat(0, "num_device_free"));
        }
        p = block(60 * MIB, s); /* nor is it used up */
        assert_true(ds_mem_get_reserved(harness_device(0)) >= 60 * MIB);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        finish();
        scarce_end(&sc);
    }
}

/* Segments are made larger than a request needs, if there is room for that. */
static void test_a_segment_is_as_large_as_there_is_room_for(void **state) {
    (void)state;
    begin(PRESET_PLAIN);
    ds_stream s = stream(0);
    void *p = block(80 * MIB, s), *q;
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 80 * MIB);
    ok(ds_mem_set_limit(harness_device(0), 90 * MIB));
    q = block(6 * MIB, s);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 90 * MIB);
    assert_int_equal(stat(0, "num_alloc_retries"), 0);
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_pools_limit_is_kept_to_the_byte(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        /* pages of 20 MiB */
        if (preset == PRESET_TORCH_GROWING)
            continue;
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool;
        void *p, *q = &p;
        ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .limit = 24 * MIB },
                          &pool));
        ds_mem_request r = { .size = 24 * MIB, .stream = s, .pool = pool };
        ok(ds_mem_alloc_with(&r, &p));
        assert_int_equal(pool_stat(pool, "reserved_bytes.all.current"), (int64_t)(24 * MIB));
        r.size = 1;
        refused(ds_mem_alloc_with(&r, &q), DS_ERR_LIMIT_EXCEEDED);
        assert_null(q);
        ok(ds_mem_free(p));
        ok(ds_pool_empty_cache(pool, NULL));
        r.size = 24 * MIB;
        for (int i = 0; i < 3; i++) { /* what the device's limit refuses is not the pool's */
            ok(ds_mem_set_limit(harness_device(0), 10 * MIB));
            refused(ds_mem_alloc_with(&r, &q), DS_ERR_LIMIT_EXCEEDED);
            ok(ds_mem_set_limit(harness_device(0), 0));
        }
        ok(ds_mem_alloc_with(&r, &p));
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* A pool has up to three limits: its own, and the two of its configuration. */
static void test_the_smallest_of_a_pools_limits_counts(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool;
        void *p, *q = &p;
        double total = (double)device_memory(0);
        for (int least = 0; least < 3; least++) {
            ds_mem_config c = config_of(preset);
            c.limit = (least == 0 ? 24 : 40) * MIB;
            c.memory_fraction = ((least == 1 ? 24 : 40) * (double)MIB + 0.5) / total;
            ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0),
                                               .config = &c,
                                               .limit = (least == 2 ? 24 : 40) * MIB },
                              &pool));
            ds_mem_request r = { .size = 15 * MIB, .stream = s, .pool = pool };
            ok(ds_mem_alloc_with(&r, &p));
            refused(ds_mem_alloc_with(&r, &q), DS_ERR_LIMIT_EXCEEDED);
            assert_null(q);
            assert_non_null(strstr(ds_error_get_last(),
                                   "only the pool's limit of 24.00 MiB prevents the allocation"));
            r.size = 26 * MIB;
            refused(ds_mem_alloc_with(&r, &q), DS_ERR_LIMIT_EXCEEDED);
            assert_non_null(
                strstr(ds_error_get_last(), "larger than the pool's limit of 24.00 MiB"));
            ok(ds_mem_free(p));
            ok(ds_pool_destroy(pool));
        }
        /* one of the configuration's alone; 0 of the device is nothing at all */
        for (int which = 0; which < 3; which++) {
            ds_mem_config c = config_of(preset);
            if (which == 0)
                c.limit = 64 * KIB;
            else
                c.memory_fraction = which == 1 ? 64 * (double)KIB / total : 0;
            ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .config = &c }, &pool));
            refused(ds_mem_alloc_with(
                        &(ds_mem_request){ .size = 65 * KIB, .stream = s, .pool = pool }, &q),
                    DS_ERR_LIMIT_EXCEEDED);
            ok(ds_pool_destroy(pool));
            size_t limit;
            ok(ds_mem_get_limit(harness_device(0), &limit));
            assert_int_equal(limit, 0);
        }
        /* nothing is left of them */
        ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0) }, &pool));
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 64 * MIB, .stream = s, .pool = pool }, &p));
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_shortage_waits_for_all_streams_once(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int named = 0; named < 2; named++) { /* the device's pool, and one beside it */
            begin(preset);
            ds_stream s = stream(0);
            ds_pool pool = { 0 };
            void *p, *q = &p;
            ok(ds_mem_set_limit(harness_device(0), 20 * MIB));
            if (named)
                ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0) }, &pool));
            ds_mem_request r = { .size = 15 * MIB, .stream = s, .pool = pool };
            ok(ds_mem_alloc_with(&r, &p));
            refused(ds_mem_alloc_with(&r, &q), DS_ERR_LIMIT_EXCEEDED);
            assert_int_equal(stat(0, "num_alloc_retries"), 1);
            assert_int_equal(stat(0, "num_sync_all_streams"), 1);
            ok(ds_mem_free(p));
            if (named)
                ok(ds_pool_destroy(pool));
            ok(ds_mem_set_limit(harness_device(0), 0));
            ok(ds_stream_destroy(s));
            finish();
        }
}

/* A callback that says that it has freed something is believed once. */
static void test_a_callback_is_asked_once_for_each_request(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        helper h = { .lie = 1 };
        void *none = &s;
        ok(ds_mem_add_shortage_callback(give_one, &h));
        ok(ds_mem_set_limit(harness_device(0), 16 * MIB));
        for (int i = 1; i < 4; i++) {
            refused(ds_mem_alloc(50 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
            assert_null(none);
            assert_int_equal(h.calls, i);
        }
        ok(ds_mem_remove_shortage_callback(give_one, &h));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_request_the_device_refuses_counts_for_nothing(void **state) {
    (void)state;
    for (int backend = 0; backend < 3; backend++) {
        scarce sc;
        ds_mem_config c = config_of(PRESET_DEFAULT);
        c.backend = backend;
        c.limit = 180 * MIB;
        scarce_begin(&sc, 96 * MIB, &c);
        ds_stream s = stream(0);
        void *p = &p;
        for (int i = 0; i < 4; i++) {
            refused(ds_mem_alloc(120 * MIB, s, &p), DS_ERR_OUT_OF_MEMORY);
            assert_null(p);
            assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
            assert_int_equal(stat(0, "num_device_alloc"), stat(0, "num_device_free"));
        }
        p = block(60 * MIB, s);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        finish();
        scarce_end(&sc);
    }
}

/* The driver's own pool keeps what was freed, as a cache does. */
static void test_what_the_drivers_pool_keeps_is_given_back_in_need(void **state) {
    (void)state;
    scarce sc;
    ds_mem_config c = config_of(PRESET_DEFAULT), native = c;
    c.backend = DS_MEM_DRIVER_POOL;
    scarce_begin(&sc, 96 * MIB, &c);
    ds_stream s = stream(0);
    void *p = block(64 * MIB, s);
    ok(ds_mem_free(p));
    ok(ds_stream_synchronize(s));
    set_config(&native);
    p = block(64 * MIB, s);
    paint(p, 64 * MIB, 1, s);
    ok(ds_mem_free(p));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    finish();
    scarce_end(&sc);
}

/* The damage is done by another stream, some time after the free was asked for. */
static void test_a_late_write_behind_a_block_is_reported_too(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_init_desc init = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
        ds_mem_config c = config_of(preset);
        gate g = { 0 };
        c.guard_bytes = 512;
        clear_memory();
        harness_restart(&init);
        set_config(&c);
        logged.count = 0;
        ds_stream s = stream(0), other = stream(0);
        void *bad, *after;
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 1024, .stream = s, .label = "off by some" },
                             &bad));
        after = block(1024, s);
        ok(ds_stream_wait_stream(other, s));
        gate_close(other, &g);
        ok(ds_fill(bad, 7, 1, 1030, other));
        ok(ds_mem_record_use(bad, other));
        pthread_t thread = spawn(open_later, &g);
        ok(ds_mem_free(bad));
        assert_true(logged_with("off by some", "test_alloc_shortage.c"));
        join(thread);
        ok(ds_mem_free(after));
        assert_int_equal(logged.count, 1);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
        harness_shutdown();
    }
}

/* An observer must not call devstream; what it is told then is not the sentence of the call that
   runs. */
static void meddle(ds_device device, size_t needed, size_t total, size_t free_bytes, void *user) {
    (void)device, (void)needed, (void)total, (void)free_bytes;
    *(ds_result *)user = ds_mem_free((void *)16);
}

static void test_an_observers_calls_do_not_rename_the_request(void **state) {
    ds_result meddled = DS_OK;
    void *p = NULL;
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    ok(ds_mem_add_oom_callback(meddle, &meddled));
    no_memory(ds_mem_alloc((size_t)1 << 50, s, &p));
    assert_int_equal(meddled, DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "ds_mem_alloc: 1048576.00 GiB"));
    assert_null(strstr(ds_error_get_last(), "ds_mem_free"));
    ok(ds_mem_remove_oom_callback(meddle, &meddled));
    ok(ds_stream_destroy(s));
    finish();
}

const struct CMUnitTest tests_alloc_shortage[] = {
    DS_TEST(test_a_limit_is_kept_to_the_byte, "cupy: test_alloc_limit"),
    DS_TEST(test_cached_memory_does_not_count_against_a_limit, "cupy: test_alloc_limit_fragmented"),
    DS_TEST(test_limits_are_read_as_they_were_set,
            "cupy: test_get_limit, test_set_limit_size, test_set_limit_fraction, "
            "test_parse_limit_string, torch: "
            "test_get_per_process_memory_fraction"),
    DS_TEST(test_no_memory_at_all_is_a_limit_too, "torch: test_get_per_process_memory_fraction"),
    DS_TEST(test_a_fraction_of_the_device_limits_reserved_bytes,
            "torch: test_set_per_process_memory_fraction, paddle: test_limit_gpu_memory"),
    DS_TEST(test_a_pool_has_a_limit_of_its_own, "alloc"),
    DS_TEST(test_a_request_above_the_limit_is_refused_without_the_driver,
            "torch: throw_on_cudamalloc_oom"),
    DS_TEST(test_a_refused_request_succeeds_when_memory_was_freed,
            "torch: test_out_of_memory, test_out_of_memory_retry"),
    DS_TEST(test_what_one_stream_has_cached_is_given_back_for_another, "paddle: RetryTest"),
    DS_TEST(test_small_and_large_caches_make_room_for_each_other, "peers e.4 5"),
    DS_TEST(test_blocks_awaiting_other_streams_are_taken_before_shortage,
            "torch: test_caching_allocator_record_stream_oom, peers e.4 3"),
    DS_TEST(test_a_shortage_on_one_device_leaves_the_other_alone, "peers e.4 5"),
    DS_TEST(test_emptying_the_cache_of_a_full_device_is_no_error, "peers e.4 5"),
    DS_TEST(test_the_error_names_what_was_asked_and_who_has_the_memory,
            "torch: test_out_of_memory, peers e.4 4"),
    DS_TEST(test_the_report_belongs_to_the_thread_that_ran_out, "alloc"),
    DS_TEST(test_observers_are_called_before_the_error_comes_back, "torch: test_notifies_oom"),
    DS_TEST(test_a_callback_frees_memory_before_an_allocation_fails, "peers e.4 5"),
    DS_TEST(test_the_cache_is_searched_again_after_every_step, "torch: issue 189504"),
    DS_TEST(test_a_capture_that_runs_out_of_memory_goes_on, "torch: test_graph_capture_oom"),
    DS_TEST(
        test_free_blocks_of_a_pool_serve_others_if_it_permits_that,
        "torch: test_mempool_limited_memory_with_allocator, test_deleted_mempool_not_used_on_oom"),
    DS_TEST(test_a_shortage_in_a_pushed_pool_empties_the_default_cache,
            "torch: test_mempool_release_cached_blocks_during_diversion"),
    DS_TEST(test_threads_that_compete_for_memory_all_come_to_their_end,
            "paddle: retry_allocator_test"),
    DS_TEST_CPU(test_without_address_space_segments_are_plain, "alloc"),
    DS_TEST(test_freed_memory_is_poisoned_on_request, "alloc"),
    DS_TEST(test_poison_comes_behind_all_who_used_the_block, "alloc"),
    DS_TEST(test_the_drivers_pool_gets_poisoned_blocks_back, "alloc"),
    DS_TEST(test_a_write_behind_a_block_is_reported_at_its_free, "alloc"),
    DS_TEST(test_a_write_behind_a_block_of_an_ended_stream_is_reported, "alloc"),
    DS_TEST(test_guards_lie_behind_the_requested_bytes_and_are_checked, "alloc"),
    DS_TEST(test_blocks_that_are_left_at_shutdown_are_reported_by_label, "alloc"),
    DS_TEST(test_nothing_is_reported_when_all_blocks_were_freed, "alloc"),
    DS_TEST(test_what_the_device_refuses_counts_for_nothing, "alloc"),
    DS_TEST(test_a_segment_is_as_large_as_there_is_room_for, "alloc"),
    DS_TEST(test_a_pools_limit_is_kept_to_the_byte, "cupy: test_set_limit_size"),
    DS_TEST(test_the_smallest_of_a_pools_limits_counts,
            "cupy: test_set_limit_size, test_set_limit_fraction"),
    DS_TEST(test_a_shortage_waits_for_all_streams_once, "torch: 4.1 num_sync_all_streams"),
    DS_TEST(test_a_callback_is_asked_once_for_each_request, "alloc"),
    DS_TEST(test_a_request_the_device_refuses_counts_for_nothing, "alloc"),
    DS_TEST(test_what_the_drivers_pool_keeps_is_given_back_in_need, "cupy: TestMemoryAsyncPool"),
    DS_TEST(test_a_late_write_behind_a_block_is_reported_too, "alloc"),
    DS_TEST(test_an_observers_calls_do_not_rename_the_request, "alloc"),
};
const size_t tests_alloc_shortage_count =
    sizeof tests_alloc_shortage / sizeof *tests_alloc_shortage;
