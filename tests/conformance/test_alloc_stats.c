/* Statistics of the caching allocator against what the test itself counts. */
#include "alloc.h"

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

/* ---- what a snapshot of the blocks adds up to ---- */

typedef struct sums {
    int64_t live, live_bytes, pending, pending_bytes, requested, mapped, tiles_wrong;
    const char *end;
    void *segment;
} sums;

static void add_block(const ds_mem_block *b, void *user) {
    sums *s = user;
    if (b->state != DS_BLOCK_UNMAPPED)
        s->mapped += (int64_t)b->size;
    /* blocks tile their segment */
    if (b->segment == s->segment && (const char *)b->ptr != s->end)
        s->tiles_wrong++;
    s->segment = b->segment;
    s->end = (const char *)b->ptr + b->size;
    if (b->state == DS_BLOCK_LIVE) {
        s->live++;
        s->live_bytes += (int64_t)b->size;
    }
    if (b->state == DS_BLOCK_PENDING) {
        s->pending++;
        s->pending_bytes += (int64_t)b->size;
    }
    if (b->state == DS_BLOCK_LIVE || b->state == DS_BLOCK_PENDING)
        s->requested += (int64_t)b->requested;
}

static void check_sums(int device) {
    sums s = { 0 };
    ok(ds_mem_for_each_block(harness_device(device), add_block, &s));
    ds_mem_stats st = stats_of(device);
    assert_int_equal(s.tiles_wrong, 0);
    assert_int_equal(s.live, st.allocation[DS_STAT_ALL].current);
    assert_int_equal(s.live_bytes, st.allocated_bytes[DS_STAT_ALL].current);
    assert_int_equal(s.live + s.pending, st.active[DS_STAT_ALL].current);
    assert_int_equal(s.live_bytes + s.pending_bytes, st.active_bytes[DS_STAT_ALL].current);
    assert_int_equal(s.requested, st.requested_bytes[DS_STAT_ALL].current);
    assert_int_equal(s.mapped, st.reserved_bytes[DS_STAT_ALL].current);
    check_invariants(device);
}

/* ---- tests ---- */

static void test_every_statistic_of_a_kib_has_its_name_and_its_value(void **state) {
    (void)state;
    static const char *const bytes[] = { "allocated_bytes", "active_bytes", "requested_bytes",
                                         "reserved_bytes" };
    static const char *const kinds[] = { "all", "small_pool", "large_pool" };
    for (int preset = 0; preset < PRESETS; preset++) {
        char name[100];
        begin(preset);
        ds_stream s = stream(0);
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 3; k++) {
                static const char *const values[] = { "current", "peak", "allocated", "freed" };
                for (int v = 0; v < 4; v++) {
                    snprintf(name, sizeof name, "%s.%s.%s", bytes[i], kinds[k], values[v]);
                    assert_int_equal(stat(0, name), 0);
                }
            }
        void *p = block(1024, s);
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 3; k++) {
                int64_t want = k == 2   ? 0
                               : i == 3 ? (int64_t)ds_mem_get_reserved(harness_device(0))
                                        : 1024;
                /* small and large share there */
                if (preset == PRESET_CUPY && k)
                    continue;
                snprintf(name, sizeof name, "%s.%s.current", bytes[i], kinds[k]);
                assert_int_equal(stat(0, name), want);
                snprintf(name, sizeof name, "%s.%s.peak", bytes[i], kinds[k]);
                assert_int_equal(stat(0, name), want);
            }
        assert_int_equal(stat(0, "allocation.all.current"), 1);
        assert_int_equal(stat(0, "allocated.all.current"), 1); /* the documents' spelling */
        ok(ds_mem_free(p));
        assert_int_equal(stat(0, "active_bytes.all.current"), 0);
        assert_int_equal(stat(0, "active_bytes.all.freed"), 1024);
        assert_int_equal(stat(0, "allocated_bytes.all.allocated"), 1024);
        assert_int_equal(stat(0, "allocation.all.freed"), 1);
        assert_int_equal(stat(0, "allocated_bytes.all.peak"), 1024);
        ok(ds_mem_reset_peak_stats(harness_device(0)));
        assert_int_equal(stat(0, "allocated_bytes.all.peak"), 0);
        assert_int_equal(stat(0, "allocation.all.peak"), 0);
        assert_int_equal(stat(0, "reserved_bytes.all.peak"),
                         (int64_t)ds_mem_get_reserved(harness_device(0)));
        ok(ds_mem_reset_accumulated_stats(harness_device(0)));
        assert_int_equal(stat(0, "active_bytes.all.freed"), 0);
        assert_int_equal(stat(0, "allocation.all.allocated"), 0);
        assert_int_equal(stat(0, "num_device_alloc"), 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_every_name_of_a_statistic_is_known(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_mem_stats s = stats_of(0);
    int64_t value;
    size_t count = 0;
    const char *name, *last = "";
    for (; (name = ds_mem_stats_get_name(count)) != NULL; count++) {
        assert_true(strcmp(last, name) < 0);
        ok(ds_mem_stats_get_by_name(&s, name, &value));
        last = name;
    }
    assert_true(count >= 123);
    assert_null(ds_mem_stats_get_name(count + 5));
    refused(ds_mem_stats_get_by_name(&s, "allocated_bytes.all.currant", &value),
            DS_ERR_INVALID_VALUE);
    refused(ds_mem_stats_get_by_name(&s, "", &value), DS_ERR_INVALID_VALUE);
    refused(ds_mem_stats_get_by_name(&s, NULL, &value), DS_ERR_INVALID_VALUE);
    finish();
}

static void test_a_device_that_was_not_used_has_nothing(void **state) {
    (void)state;
    clear_memory();
    harness_shutdown();
    ds_device d = harness_device(0), none = { d.type, 4711 };
    ds_mem_stats s = { 0 };
    ok(ds_mem_get_stats(d, &s));
    assert_int_equal(s.allocation[DS_STAT_ALL].allocated, 0);
    assert_int_equal(s.reserved_bytes[DS_STAT_ALL].peak, 0);
    assert_int_equal(ds_mem_get_allocated(d), 0);
    assert_int_equal(ds_mem_get_max_allocated(d), 0);
    assert_int_equal(ds_mem_get_reserved(d), 0);
    assert_int_equal(ds_mem_get_max_reserved(d), 0);
    size_t released = 1;
    ok(ds_mem_empty_cache(d, &released));
    assert_int_equal(released, 0);
    ok(ds_mem_reset_peak_stats(d));
    ok(ds_mem_reset_accumulated_stats(d));
    ok(ds_mem_validate(d));
    ok(ds_mem_get_stats(d, &s));
    assert_int_equal(s.num_sync_all_streams, 0);
    refused(ds_mem_get_stats(none, &s), DS_ERR_DEVICE_RANGE);
    refused(ds_mem_get_stats(d, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_mem_reset_peak_stats(none), DS_ERR_DEVICE_RANGE);
    refused(ds_mem_empty_cache(none, NULL), DS_ERR_DEVICE_RANGE);
    assert_int_equal(ds_mem_get_allocated(none), 0);
}

/* A hundred steps of growing and shrinking; the test keeps the same figures. */
static void test_a_hundred_steps_count_as_the_program_counts_them(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        enum { N = 40 };

        void *p[N] = { 0 };
        size_t size[N] = { 0 };
        int64_t live = 0, bytes = 0, requested = 0, allocs = 0, frees = 0, most = 0, most_bytes = 0,
                most_reserved = 0, freed_bytes = 0;
        uint64_t x = 88172645463325252u + (uint64_t)preset;
        begin(preset);
        ds_stream s = stream(0);
        for (int step = 0; step < 150; step++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            int i = (int)(x % N);
            if (p[i]) {
                size_t block_size = find(p[i]).size;
                live--;
                frees++;
                bytes -= (int64_t)block_size;
                freed_bytes += (int64_t)block_size;
                requested -= (int64_t)size[i];
                ok(ds_mem_free(p[i]));
                p[i] = NULL;
            } else {
                size[i] = (size_t)(x >> 20) % (step % 3 ? 3000 : 6 << 20) + 1;
                p[i] = block(size[i], s);
                live++;
                allocs++;
                bytes += (int64_t)find(p[i]).size;
                requested += (int64_t)size[i];
            }
            if (live > most)
                most = live;
            if (bytes > most_bytes)
                most_bytes = bytes;
            if ((int64_t)ds_mem_get_reserved(harness_device(0)) > most_reserved)
                most_reserved = (int64_t)ds_mem_get_reserved(harness_device(0));
            ds_mem_stats st = stats_of(0);
            const ds_mem_stat *a = &st.allocation[DS_STAT_ALL],
                              *b = &st.allocated_bytes[DS_STAT_ALL];
            assert_int_equal(a->current, live);
            assert_int_equal(a->peak, most);
            assert_int_equal(a->allocated, allocs);
            assert_int_equal(a->freed, frees);
            assert_int_equal(b->current, bytes);
            assert_int_equal(b->peak, most_bytes);
            assert_int_equal(b->allocated, bytes + freed_bytes);
            assert_int_equal(b->freed, freed_bytes);
            assert_int_equal(st.requested_bytes[DS_STAT_ALL].current, requested);
            assert_int_equal(st.reserved_bytes[DS_STAT_ALL].peak, most_reserved);
            assert_int_equal(st.peak_bound, 0); /* one thread: exact */
            assert_int_equal(st.peak_bound_count, 0);
            check_sums(0);
            if (step == 75) { /* in the middle of it */
                int64_t syncs = st.num_sync_all_streams;
                ok(ds_mem_empty_cache(harness_device(0), NULL));
                assert_int_equal(stat(0, "num_sync_all_streams"), syncs + 1);
                ok(ds_mem_reset_peak_stats(harness_device(0)));
                most = live;
                most_bytes = bytes;
                most_reserved = (int64_t)ds_mem_get_reserved(harness_device(0));
            }
        }
        assert_int_equal(ds_mem_get_max_allocated(harness_device(0)), most_bytes);
        assert_int_equal(ds_mem_get_max_reserved(harness_device(0)), most_reserved);
        for (int i = 0; i < N; i++)
            ok(ds_mem_free(p[i]));
        check_sums(0);
        ok(ds_mem_reset_peak_stats(harness_device(0)));
        assert_int_equal(ds_mem_get_max_allocated(harness_device(0)), 0);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        ok(ds_mem_reset_peak_stats(harness_device(0)));
        assert_int_equal(ds_mem_get_max_reserved(harness_device(0)), 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_block_that_is_freed_and_still_used_is_active(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), user = stream(0);
        void *p = block(3 * MIB, s), *q = block(1000, s);
        size_t size = size_of(p);
        ok(ds_stream_wait_stream(user, s));
        gate_close(user, &g);
        ok(ds_mem_record_use(p, user));
        ok(ds_mem_free(p));
        ds_mem_stats st = stats_of(0);
        assert_int_equal(st.allocation[DS_STAT_ALL].current, 1);
        assert_int_equal(st.active[DS_STAT_ALL].current, 2);
        assert_int_equal(st.allocated_bytes[DS_STAT_ALL].current, 1024);
        assert_int_equal(st.active_bytes[DS_STAT_ALL].current, (int64_t)size + 1024);
        /* until it is done */
        assert_int_equal(st.requested_bytes[DS_STAT_ALL].current, (int64_t)(3 * MIB + 1000));
        check_sums(0);
        gate_open(&g);
        ok(ds_stream_synchronize(user));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        st = stats_of(0);
        assert_int_equal(st.active[DS_STAT_ALL].current, 1);
        assert_int_equal(st.requested_bytes[DS_STAT_ALL].current, 1000);
        check_sums(0);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

static void test_used_and_cached_bytes_make_the_reserved_ones(void **state) {
    (void)state;
    begin(PRESET_CUPY);
    ds_stream s = stream(0);
    ds_device d = harness_device(0);
    void *a = block(2 * UNIT, s), *b = block(4 * UNIT, s), *c = block(8 * UNIT, s);
    assert_int_equal(ds_mem_get_allocated(d), 14 * UNIT);
    assert_int_equal(ds_mem_get_reserved(d), 14 * UNIT);
    ok(ds_mem_free(b));
    assert_int_equal(ds_mem_get_allocated(d), 10 * UNIT);
    assert_int_equal(ds_mem_get_reserved(d) - ds_mem_get_allocated(d), 4 * UNIT);
    b = block(UNIT, s); /* from the cached one */
    assert_int_equal(ds_mem_get_allocated(d), 11 * UNIT);
    assert_int_equal(ds_mem_get_reserved(d), 14 * UNIT);
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_mem_free(c));
    assert_int_equal(ds_mem_get_allocated(d), 0);
    assert_int_equal(ds_mem_get_reserved(d), 14 * UNIT);
    ok(ds_mem_empty_cache(d, NULL));
    assert_int_equal(ds_mem_get_reserved(d), 0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_reset_peak_is_the_current_value(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_device d = harness_device(0);
        void *a = block(3 * MIB, s), *b = block(30 * MIB, s);
        ok(ds_mem_free(b));
        assert_true(ds_mem_get_max_allocated(d) > ds_mem_get_allocated(d));
        ok(ds_mem_empty_cache(d, NULL));
        assert_true(ds_mem_get_max_reserved(d) > ds_mem_get_reserved(d));
        ok(ds_mem_reset_peak_stats(d));
        assert_int_equal(ds_mem_get_max_allocated(d), ds_mem_get_allocated(d));
        assert_int_equal(ds_mem_get_max_reserved(d), ds_mem_get_reserved(d));
        ds_mem_stats st = stats_of(0);
        ok(ds_mem_reset_accumulated_stats(d));
        ds_mem_stats after = stats_of(0);
        assert_int_equal(after.allocated_bytes[DS_STAT_ALL].current,
                         st.allocated_bytes[DS_STAT_ALL].current);
        assert_int_equal(after.allocated_bytes[DS_STAT_ALL].allocated, 0);
        assert_int_equal(after.allocated_bytes[DS_STAT_ALL].freed, 0);
        ok(ds_mem_free(a));
        assert_int_equal(stat(0, "allocation.all.freed"), 1);
        assert_int_equal(stat(0, "allocation.all.allocated"), 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_current_values_alone_can_be_counted(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.statistics = DS_STATISTICS_CURRENT;
        begin_with(&c);
        ds_stream s = stream(0);
        void *a = block(1000, s), *b = block(3 * MIB, s);
        ds_mem_stats st = stats_of(0);
        assert_int_equal(st.allocation[DS_STAT_ALL].current, 2);
        assert_int_equal(st.allocation[DS_STAT_SMALL].current,
                         preset == PRESET_CUPY ? st.allocation[DS_STAT_SMALL].current : 1);
        assert_int_equal(st.requested_bytes[DS_STAT_ALL].current, (int64_t)(1000 + 3 * MIB));
        assert_true(st.reserved_bytes[DS_STAT_ALL].current >= (int64_t)(3 * MIB));
        ok(ds_mem_free(a));
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), size_of(b));
        c.statistics = DS_STATISTICS_FULL; /* and the others begin when they are wanted */
        ok(ds_mem_configure(harness_device(0), &c));
        a = block(1000, s);
        st = stats_of(0);
        assert_int_equal(st.allocation[DS_STAT_ALL].current, 2);
        assert_int_equal(st.allocation[DS_STAT_ALL].peak, 2);
        ok(ds_mem_free(a));
        ok(ds_mem_free(b));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- threads ---- */

enum { THREADS = 4, EACH = 200 };

typedef struct worker {
    ds_stream s;
    int shared;
    pthread_barrier_t *barrier;
} worker;

static void *count_together(void *arg) {
    worker *w = arg;
    void *p[EACH];
    for (int i = 0; i < EACH; i++)
        p[i] = block(1024, w->s);
    pthread_barrier_wait(w->barrier); /* all blocks of all threads live */
    pthread_barrier_wait(w->barrier);
    for (int i = 0; i < EACH; i++)
        ok_thread(ds_mem_free(p[i]));
    return NULL;
}

static void test_threads_are_counted_together_also_after_their_end(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int shared = 0; shared < 2; shared++) {
            worker w[THREADS];
            pthread_t thread[THREADS];
            pthread_barrier_t barrier;
            ds_mem_config c = config_of(preset);
            c.debug = 0;
            begin_with(&c);
            pthread_barrier_init(&barrier, NULL, THREADS + 1);
            ds_stream one = stream(0);
            for (int i = 0; i < THREADS; i++) {
                w[i] = (worker){ .s = shared ? one : stream(0), .barrier = &barrier };
                thread[i] = spawn(count_together, &w[i]);
            }
            pthread_barrier_wait(&barrier);
            const int64_t most = THREADS * EACH;
            ds_mem_stats st = stats_of(0);
            assert_int_equal(st.allocation[DS_STAT_ALL].current, most);
            assert_int_equal(
                st.allocation[preset == PRESET_CUPY ? DS_STAT_LARGE : DS_STAT_SMALL].current, most);
            assert_int_equal(st.allocated_bytes[DS_STAT_ALL].current, most * 1024);
            check_sums(0);
            pthread_barrier_wait(&barrier);
            for (int i = 0; i < THREADS; i++)
                join(thread[i]);
            st = stats_of(0);
            assert_int_equal(st.allocation[DS_STAT_ALL].current, 0);
            assert_int_equal(st.allocation[DS_STAT_ALL].allocated, most);
            assert_int_equal(st.allocation[DS_STAT_ALL].freed, most);
            assert_int_equal(st.allocated_bytes[DS_STAT_ALL].allocated, most * 1024);
            assert_int_equal(st.allocated_bytes[DS_STAT_ALL].freed, most * 1024);
            assert_true(st.peak_bound >= 0 && st.peak_bound_count >= 0);
            if (st.allocation[DS_STAT_ALL].peak < most ||
                st.allocation[DS_STAT_ALL].peak > most + st.peak_bound_count)
                fail_msg("the peak is %lld, not %lld with a bound of %lld",
                         (long long)st.allocation[DS_STAT_ALL].peak, (long long)most,
                         (long long)st.peak_bound_count);
            if (st.allocated_bytes[DS_STAT_ALL].peak < most * 1024 ||
                st.allocated_bytes[DS_STAT_ALL].peak > most * 1024 + st.peak_bound)
                fail_msg("the peak is %lld bytes, not %lld with a bound of %lld",
                         (long long)st.allocated_bytes[DS_STAT_ALL].peak, (long long)most * 1024,
                         (long long)st.peak_bound);
            check_sums(0);
            for (int i = 0; i < THREADS; i++)
                if (!shared)
                    ok(ds_stream_destroy(w[i].s));
            ok(ds_stream_destroy(one));
            pthread_barrier_destroy(&barrier);
            finish();
        }
}

/* One after the other: at no time do two threads allocate, so at most one thread's blocks live. */
static void *take_turns(void *arg) {
    worker *w = arg;
    for (int i = 0; i < EACH; i++) {
        void *p = block(1024, w->s), *q = block(4096, w->s);
        ok_thread(ds_mem_free(p));
        ok_thread(ds_mem_free(q));
    }
    return NULL;
}

static void test_the_peak_of_threads_that_take_turns_is_within_its_bound(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    worker w[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){ .s = stream(0) };
        join(spawn(take_turns, &w[i]));
    }
    ds_mem_stats st = stats_of(0);
    assert_int_equal(st.allocation[DS_STAT_ALL].allocated, 2 * THREADS * EACH);
    assert_true(st.allocation[DS_STAT_ALL].peak >= 2);
    assert_true(st.allocation[DS_STAT_ALL].peak <= 2 + st.peak_bound_count);
    assert_true(st.allocated_bytes[DS_STAT_ALL].peak >= 5120);
    assert_true(st.allocated_bytes[DS_STAT_ALL].peak <= 5120 + st.peak_bound);
    for (int i = 0; i < THREADS; i++)
        ok(ds_stream_destroy(w[i].s));
    finish();
}

/* ---- events ---- */

typedef struct seen {
    int of[DS_ACTION_ANNOTATION + 1];
    ds_mem_event last[DS_ACTION_ANNOTATION + 1];
    int device_index;
} seen;

static void note_event(ds_device device, const ds_mem_event *event, void *user) {
    seen *s = user;
    if ((unsigned)event->action > DS_ACTION_ANNOTATION)
        return;
    s->of[event->action]++;
    s->last[event->action] = *event;
    s->device_index = device.index;
}

static void test_observers_see_each_event_once(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH, PRESET_CUPY };
    for (int i = 0; i < 2; i++) {
        seen e = { 0 };
        begin(presets[i]);
        ds_stream s = stream(0);
        uint64_t id;
        void *p;
        ok(ds_stream_get_id(s, &id));
        ok(ds_mem_add_event_callback(note_event, &e));
        int line = __LINE__ + 1;
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 1, .stream = s, .label = "one byte" }, &p));
        assert_int_equal(e.of[DS_ACTION_ALLOC], 1);
        assert_int_equal(e.of[DS_ACTION_SEGMENT_ALLOC], 1);
        assert_true(e.last[DS_ACTION_ALLOC].address == (uint64_t)(uintptr_t)p);
        assert_int_equal(e.last[DS_ACTION_ALLOC].bytes, 1);
        assert_true(e.last[DS_ACTION_ALLOC].stream == id);
        assert_string_equal(e.last[DS_ACTION_ALLOC].label, "one byte");
        assert_int_equal(e.last[DS_ACTION_ALLOC].site.line, line);
        assert_int_equal(e.last[DS_ACTION_SEGMENT_ALLOC].bytes,
                         presets[i] == PRESET_CUPY ? 512 : 2 << 20);
        assert_int_equal(e.device_index, harness_device(0).index);
        ok(ds_mem_free(p));
        assert_int_equal(e.of[DS_ACTION_FREE_REQUESTED], 1);
        assert_int_equal(e.of[DS_ACTION_FREE_COMPLETED], 1);
        assert_int_equal(e.of[DS_ACTION_SEGMENT_FREE], 0);
        void *q = block(1, s);
        assert_ptr_equal(q, p);
        assert_int_equal(e.of[DS_ACTION_ALLOC], 2);
        assert_int_equal(e.of[DS_ACTION_SEGMENT_ALLOC], 1); /* the memory is there */
        ok(ds_mem_free(q));
        assert_int_equal(e.of[DS_ACTION_FREE_REQUESTED], 2);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(e.of[DS_ACTION_SEGMENT_FREE], 1);
        ok(ds_mem_set_limit(harness_device(0), UNIT));
        refused(ds_mem_alloc(5 * MIB, s, &q), DS_ERR_LIMIT_EXCEEDED);
        assert_int_equal(e.of[DS_ACTION_OOM], 1);
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_mem_remove_event_callback(note_event, &e));
        q = block(1, s);
        ok(ds_mem_free(q));
        assert_int_equal(e.of[DS_ACTION_ALLOC], 2);
        refused(ds_mem_remove_event_callback(note_event, &e), DS_ERR_INVALID_VALUE);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_free_that_waits_for_a_stream_is_completed_later(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH, PRESET_TORCH_GROWING };
    for (int i = 0; i < 2; i++) {
        seen e = { 0 };
        gate g = { 0 };
        begin(presets[i]);
        ds_stream s = stream(0), user = stream(0);
        ok(ds_mem_add_event_callback(note_event, &e));
        if (presets[i] == PRESET_TORCH_GROWING)
            assert_int_equal(e.of[DS_ACTION_SEGMENT_MAP], 0);
        void *p = block(5000, s);
        if (presets[i] == PRESET_TORCH_GROWING)
            assert_int_equal(e.of[DS_ACTION_SEGMENT_MAP], 1);
        gate_close(user, &g);
        ok(ds_mem_record_stream(p, user));
        ok(ds_mem_free(p));
        assert_int_equal(e.of[DS_ACTION_FREE_REQUESTED], 1);
        assert_int_equal(e.of[DS_ACTION_FREE_COMPLETED], 0);
        gate_open(&g);
        ok(ds_stream_synchronize(user));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(e.of[DS_ACTION_FREE_COMPLETED], 1);
        if (presets[i] == PRESET_TORCH_GROWING)
            assert_int_equal(e.of[DS_ACTION_SEGMENT_UNMAP], 1);
        ok(ds_mem_remove_event_callback(note_event, &e));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

/* ---- peaks ---- */

static void test_the_active_peak_counts_both_kinds_and_pending_blocks(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int large_first = 0; large_first < 2; large_first++) {
            gate g = { 0 };
            begin(preset);
            ds_stream s = stream(0), user = stream(0);
            void *p = block(large_first ? 3 * MIB : 1000, s);
            int64_t size = (int64_t)size_of(p);
            gate_close(user, &g);
            ok(ds_mem_record_use(p, user));
            ok(ds_mem_free(p));
            void *q = block(large_first ? 1000 : 3 * MIB, s);
            size += (int64_t)size_of(q);
            ds_mem_stats st = stats_of(0);
            assert_int_equal(st.active[DS_STAT_ALL].current, 2);
            assert_int_equal(st.active[DS_STAT_ALL].peak, 2);
            assert_int_equal(st.active_bytes[DS_STAT_ALL].peak, size);
            gate_open(&g);
            ok(ds_stream_synchronize(user));
            ok(ds_mem_free(q));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(user));
            finish();
        }
}

static void *allocate_once(void *arg) {
    ok_thread(ds_mem_free(block(1000, *(ds_stream *)arg)));
    return NULL;
}

/* As soon as a second thread has allocated, peaks are set in advance: never below the truth, and
   above it by a bound. */
static void test_peaks_of_several_threads_are_never_too_low(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 4; way++) {
            enum { MANY = 150 };

            void *p[MANY];
            gate g = { 0 };
            begin(preset);
            ds_stream s = stream(0), user = stream(0);
            ok_thread(ds_mem_free(block(1000, s)));
            join(spawn(allocate_once, &s));
            size_t size = way & 1 ? 300000 : 512;
            if (way & 2)
                gate_close(user, &g);
            int64_t most = 0;
            ds_mem_stats st;
            for (int i = 0; i < MANY; i++) {
                p[i] = block(size, s);
                st = stats_of(0);
                if (st.active_bytes[DS_STAT_ALL].current > most)
                    most = st.active_bytes[DS_STAT_ALL].current;
                if (way & 2) { /* it is active all the same */
                    ok(ds_mem_record_use(p[i], user));
                    ok(ds_mem_free(p[i]));
                }
                check_invariants(0);
            }
            st = stats_of(0);
            if (st.active_bytes[DS_STAT_ALL].peak > most + st.peak_bound)
                fail_msg("%s, %d: a peak of %lld bytes, %lld in truth, bound %lld",
                         preset_name(preset), way, (long long)st.active_bytes[DS_STAT_ALL].peak,
                         (long long)most, (long long)st.peak_bound);
            if (way & 2)
                gate_open(&g);
            else
                for (int i = 0; i < MANY; i++)
                    ok(ds_mem_free(p[i]));
            ok(ds_device_synchronize(harness_device(0)));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(user));
            finish();
        }
}

/* Small blocks first, then large ones: both kinds have been as high as all of it. */
static void test_room_below_the_peaks_is_given_out_once(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        enum { MANY = 40 };

        void *p[MANY];
        begin(preset);
        ds_stream s = stream(0), other = stream(0);
        for (int large = 0; large < 2; large++) {
            for (int i = 0; i < (large ? MANY / 4 : MANY); i++)
                p[i] = block(large ? 4 * MIB : MIB, s);
            for (int i = 0; i < (large ? MANY / 4 : MANY); i++)
                ok(ds_mem_free(p[i]));
        }
        assert_int_equal(stat(0, "allocated_bytes.all.peak"), (int64_t)(MANY * MIB));
        join(spawn(allocate_once, &other));
        ds_mem_stats st = stats_of(0);
        assert_true(st.allocated_bytes[DS_STAT_ALL].peak <= (int64_t)(MANY * MIB) + st.peak_bound);
        assert_true(st.allocation[DS_STAT_ALL].peak <= MANY + st.peak_bound_count);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
    }
}

typedef struct text {
    char *at;
    size_t count;
} text;

static int write_text(const char *data, size_t size, void *user) {
    text *t = user;
    char *more = realloc(t->at, t->count + size + 1);
    if (!more)
        return 1;
    memcpy(more + t->count, data, size);
    t->at = more;
    t->count += size;
    more[t->count] = 0;
    return 0;
}

static int occurrences(const char *at, const char *what) {
    int n = 0;
    while ((at = strstr(at, what)) != NULL) {
        n++;
        at++;
    }
    return n;
}

/* Without observers, and with nothing left out, a free that is done at once is written down in
   one go. */
static void test_history_has_both_ends_of_each_free(void **state) {
    (void)state;
    for (int quick = 0; quick < 2; quick++) {
        ds_mem_config c = config_of(PRESET_DEFAULT);
        text t = { NULL, 0 };
        if (quick) {
            c.debug = 0;
            harness_restart(NULL);
        }
        begin_with(&c);
        ds_stream s = stream(0);
        ok(ds_mem_history_start(NULL));
        for (size_t i = 1; i < 8; i++)
            ok(ds_mem_free(block(i * 700, s)));
        ok(ds_mem_history_stop());
        ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, write_text, &t));
        assert_int_equal(occurrences(t.at, "\"alloc\""), 7);
        assert_int_equal(occurrences(t.at, "\"free_requested\""), 7);
        assert_int_equal(occurrences(t.at, "\"free_completed\""), 7);
        free(t.at);
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* A request that fails was never there. */
static void test_a_request_that_fails_raises_no_peak(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int threads = 0; threads < 2; threads++) {
            void *none = NULL;
            begin(preset);
            ds_stream s = stream(0), other = stream(0);
            ok_thread(ds_mem_free(block(1000, s)));
            if (threads)
                join(spawn(allocate_once, &other));
            ok(ds_mem_set_limit(harness_device(0), 64 * MIB));
            int64_t most = stat(0, "allocated_bytes.all.peak");
            refused(ds_mem_alloc(512 * MIB, s, &none), DS_ERR_LIMIT_EXCEEDED);
            ds_mem_stats st = stats_of(0);
            if (st.allocated_bytes[DS_STAT_ALL].peak > most + st.peak_bound)
                fail_msg("%s, %d: a peak of %lld bytes, bound %lld", preset_name(preset), threads,
                         (long long)st.allocated_bytes[DS_STAT_ALL].peak, (long long)st.peak_bound);
            ok(ds_mem_set_limit(harness_device(0), 0));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(other));
            finish();
        }
}

/* What is allocated has been higher, what is active has not: the peak of that follows all the
   same. */
static void test_the_peak_of_active_bytes_is_not_that_of_allocated_ones(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        gate g = { 0 };
        void *tiny[4];
        c.reuse = DS_REUSE_NEVER;
        begin_with(&c);
        ds_stream s = stream(0), user = stream(0);
        ok(ds_mem_free(block(12 * MIB, s)));
        void *p = block(8 * MIB, s);
        gate_close(user, &g);
        ok(ds_mem_record_use(p, user));
        ok(ds_mem_free(p));
        for (int i = 0; i < 4; i++)
            tiny[i] = block(512, s);
        p = block(6 * MIB, s);
        ok(ds_mem_free(p));
        assert_true(stat(0, "active_bytes.all.peak") >= (int64_t)(14 * MIB));
        gate_open(&g);
        ok(ds_stream_synchronize(user));
        for (int i = 0; i < 4; i++)
            ok(ds_mem_free(tiny[i]));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

/* ---- peaks of threads that use large blocks ---- */

static void check_peaks(const char *where, int64_t truth) {
    ds_mem_stats st = stats_of(0);

    const struct {
        const char *name;
        int64_t peak;
    } at[] = { { "allocated", st.allocated_bytes[DS_STAT_ALL].peak },
               { "active", st.active_bytes[DS_STAT_ALL].peak },
               { "requested", st.requested_bytes[DS_STAT_ALL].peak } };

    for (int i = 0; i < 3; i++)
        if (at[i].peak < truth || at[i].peak > truth + st.peak_bound)
            fail_msg("%s: a peak of %lld %s bytes, %lld in truth, bound %lld", where,
                     (long long)at[i].peak, at[i].name, (long long)truth, (long long)st.peak_bound);
}

static void *ask_too_much(void *arg) {
    void *none = NULL;
    if (ds_mem_alloc((size_t)10 << 30, *(ds_stream *)arg, &none) != DS_ERR_LIMIT_EXCEEDED)
        harness_die("10 GiB were not refused", DS_ERR_ILLEGAL_STATE);
    return NULL;
}

static void test_a_request_that_fails_in_another_thread_raises_no_peak(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0), other = stream(0);
        ok(ds_mem_set_limit(harness_device(0), 100 * MIB));
        void *p = block(MIB, s);
        join(spawn(ask_too_much, &other));
        check_peaks(preset_name(preset), (int64_t)MIB);
        ok(ds_mem_free(p));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
    }
}

static void *large_pair(void *arg) {
    ok_thread(ds_mem_free(block(64 * MIB, *(ds_stream *)arg)));
    return NULL;
}

/* The bound holds at each step, and after what makes one thread's counting exact again without a
   reset of peaks. */
static void test_the_peak_of_alternating_threads_is_within_its_bound(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int quick = 0; quick < 2; quick++) {
            ds_mem_config c = config_of(preset);
            if (quick)
                c.debug = 0;
            begin_with(&c);
            ds_stream s = stream(0), other = stream(0);
            for (int i = 0; i < 20; i++) {
                if (i & 1)
                    join(spawn(large_pair, &other));
                else
                    large_pair(&s);
                check_peaks(preset_name(preset), (int64_t)(64 * MIB));
            }
            ok(ds_mem_configure(harness_device(0), &c));
            check_peaks("after a change of the policy", (int64_t)(64 * MIB));
            ok(ds_mem_reset_accumulated_stats(harness_device(0)));
            check_peaks("after a reset of totals", (int64_t)(64 * MIB));
            ok(ds_mem_reset_peak_stats(harness_device(0)));
            check_peaks("after a reset of peaks", 0);
            assert_int_equal(stat(0, "allocated_bytes.all.peak"), 0);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(other));
            finish();
        }
}

/* A free makes as much room as was asked for, and the next request of the same size may have
   been for more. */
static void test_the_peak_of_requested_bytes_counts_what_rounding_hides(void **state) {
    (void)state;
    for (int quick = 0; quick < 2; quick++) {
        ds_mem_config c = config_of(PRESET_DEFAULT);
        if (quick)
            c.debug = 0;
        ok(ds_mem_config_parse("roundup_power2_divisions:2", &c));
        begin_with(&c);
        ds_stream s = stream(0), other = stream(0);
        void *p = block(33 * MIB, s);
        assert_int_equal(size_of(p), 48 * MIB);
        join(spawn(allocate_once, &other));
        ok(ds_mem_free(p));
        ok(ds_mem_free(block(48 * MIB, s)));
        ds_mem_stats st = stats_of(0);
        if (st.requested_bytes[DS_STAT_ALL].peak < (int64_t)(48 * MIB) ||
            st.requested_bytes[DS_STAT_ALL].peak > (int64_t)(48 * MIB) + st.peak_bound)
            fail_msg("a peak of %lld requested bytes, bound %lld",
                     (long long)st.requested_bytes[DS_STAT_ALL].peak, (long long)st.peak_bound);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
    }
}

/* What is certainly allocated, and what may be: counted behind a call and before it. */
typedef struct range {
    _Atomic int64_t low, high, low_peak, high_peak;
} range;

static void range_add(_Atomic int64_t *now, _Atomic int64_t *peak, int64_t by) {
    int64_t is = atomic_fetch_add(now, by) + by, was = atomic_load(peak);
    while (is > was && !atomic_compare_exchange_weak(peak, &was, is)) {
    }
}

typedef struct heavy {
    ds_stream s;
    uint32_t seed;
    range *r;
} heavy;

static void *use_large_blocks(void *arg) {
    heavy *h = arg;
    void *p[3] = { NULL, NULL, NULL };
    int64_t size[3] = { 0, 0, 0 };
    for (int i = 0; i < 603; i++) {
        h->seed = h->seed * 1664525u + 1013904223u;
        int k = i < 600 ? (int)(h->seed >> 8) % 3 : i - 600; /* the last ones free what is left */
        if (i >= 600 && !p[k])
            continue;
        if (p[k]) {
            range_add(&h->r->low, &h->r->low_peak, -size[k]);
            ok_thread(ds_mem_free(p[k]));
            range_add(&h->r->high, &h->r->high_peak, -size[k]);
            p[k] = NULL;
        } else {
            size[k] = (int64_t)(2 * MIB) << (h->seed >> 16) % 6;
            range_add(&h->r->high, &h->r->high_peak, size[k]);
            p[k] = block((size_t)size[k], h->s);
            range_add(&h->r->low, &h->r->low_peak, size[k]);
        }
    }
    return NULL;
}

static void test_peaks_of_threads_with_large_blocks_are_within_the_bound(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int quick = 0; quick < 2; quick++) {
            ds_mem_config c = config_of(preset);
            range r = { 0, 0, 0, 0 };
            heavy h[THREADS];
            pthread_t thread[THREADS];
            if (quick)
                c.debug = 0;
            begin_with(&c);
            for (int i = 0; i < THREADS; i++) {
                h[i] = (heavy){ stream(0), 77u + (uint32_t)i, &r };
                thread[i] = spawn(use_large_blocks, &h[i]);
            }
            for (int i = 0; i < THREADS; i++)
                join(thread[i]);
            ds_mem_stats st = stats_of(0);
            assert_int_equal(st.allocated_bytes[DS_STAT_ALL].current, 0);
            if (st.allocated_bytes[DS_STAT_ALL].peak < r.low_peak ||
                st.allocated_bytes[DS_STAT_ALL].peak > r.high_peak + st.peak_bound ||
                st.requested_bytes[DS_STAT_ALL].peak < r.low_peak ||
                st.requested_bytes[DS_STAT_ALL].peak > r.high_peak + st.peak_bound)
                fail_msg("%s: peaks of %lld and %lld bytes, in truth %lld to %lld, bound %lld",
                         preset_name(preset), (long long)st.allocated_bytes[DS_STAT_ALL].peak,
                         (long long)st.requested_bytes[DS_STAT_ALL].peak, (long long)r.low_peak,
                         (long long)r.high_peak, (long long)st.peak_bound);
            for (int i = 0; i < THREADS; i++)
                ok(ds_stream_destroy(h[i].s));
            finish();
        }
}

static void test_peaks_stand_still_with_current_values_in_all_threads(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    begin_with(&c);
    ds_stream s = stream(0), other = stream(0);
    ok(ds_mem_free(block(4 * MIB, s)));
    c.statistics = DS_STATISTICS_CURRENT;
    ok(ds_mem_configure(harness_device(0), &c));
    for (int i = 0; i < 6; i++) {
        if (i & 1)
            join(spawn(large_pair, &other));
        else
            large_pair(&s);
    }
    assert_int_equal(stat(0, "allocated_bytes.all.peak"), (int64_t)(4 * MIB));
    assert_int_equal(stat(0, "allocation.all.peak"), 1);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
}

static void test_peaks_stand_still_with_current_values_in_pools_too(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    c.statistics = DS_STATISTICS_CURRENT;
    begin_with(&c);
    ds_stream s = stream(0);
    ds_pool pool;
    void *p;
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0) }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 4 * MIB, .stream = s, .pool = pool }, &p));
    assert_int_equal(stat(0, "allocated_bytes.all.current"), (int64_t)(4 * MIB));
    assert_int_equal(stat(0, "allocated_bytes.all.peak"), 0);
    assert_int_equal(pool_stat(pool, "allocated_bytes.all.peak"), 0);
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

const struct CMUnitTest tests_alloc_stats[] = {
    DS_TEST(test_every_statistic_of_a_kib_has_its_name_and_its_value,
            "torch: test_memory_stats of test_accelerator"),
    DS_TEST(test_every_name_of_a_statistic_is_known, "torch: memory_stats keys"),
    DS_TEST(test_a_device_that_was_not_used_has_nothing,
            "cupy: TestMemoryPool counters, paddle: test_cuda_max_memory_allocated"),
    DS_TEST(test_a_hundred_steps_count_as_the_program_counts_them,
            "torch: test_memory_stats, _check_memory_stat_consistency, paddle: "
            "test_cuda_max_memory_allocated"),
    DS_TEST(test_a_block_that_is_freed_and_still_used_is_active, "torch: active_bytes"),
    DS_TEST(test_used_and_cached_bytes_make_the_reserved_ones,
            "cupy: test_used_bytes, test_free_bytes, test_total_bytes"),
    DS_TEST(test_a_reset_peak_is_the_current_value,
            "mindspore: test_runtime_reset_peak_memory_stats"),
    DS_TEST(test_current_values_alone_can_be_counted, "alloc"),
    DS_TEST(test_threads_are_counted_together_also_after_their_end, "paddle: stats_test"),
    DS_TEST(test_the_peak_of_threads_that_take_turns_is_within_its_bound, "paddle: stats_test"),
    DS_TEST(test_observers_see_each_event_once,
            "cupy: TestMemoryHook::test_hook, torch: AllocatorTraceTracker"),
    DS_TEST(test_a_free_that_waits_for_a_stream_is_completed_later, "torch: AllocatorTraceTracker"),
    DS_TEST(test_the_active_peak_counts_both_kinds_and_pending_blocks, "torch: test_memory_stats"),
    DS_TEST(test_peaks_of_several_threads_are_never_too_low, "alloc"),
    DS_TEST(test_room_below_the_peaks_is_given_out_once, "alloc"),
    DS_TEST(test_history_has_both_ends_of_each_free, "torch: test_memory_snapshot"),
    DS_TEST(test_a_request_that_fails_raises_no_peak, "alloc"),
    DS_TEST(test_the_peak_of_active_bytes_is_not_that_of_allocated_ones,
            "torch: test_memory_stats"),
    DS_TEST(test_a_request_that_fails_in_another_thread_raises_no_peak, "alloc"),
    DS_TEST(test_the_peak_of_alternating_threads_is_within_its_bound, "alloc"),
    DS_TEST(test_the_peak_of_requested_bytes_counts_what_rounding_hides, "alloc"),
    DS_TEST(test_peaks_of_threads_with_large_blocks_are_within_the_bound, "alloc"),
    DS_TEST(test_peaks_stand_still_with_current_values_in_pools_too, "alloc"),
    DS_TEST(test_peaks_stand_still_with_current_values_in_all_threads, "alloc"),
};
const size_t tests_alloc_stats_count = sizeof tests_alloc_stats / sizeof *tests_alloc_stats;
