/* The caching allocator: blocks, their streams, and when their memory is used again. */
#include "alloc.h"
#include "devstream_check.h"

#include <unistd.h>

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

/* ---- blocks ---- */

static void test_an_allocation_counts_and_its_free_takes_it_back_exactly(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        void *first = block(1, s);
        size_t before = ds_mem_get_allocated(harness_device(0));
        assert_int_equal(before, size_of(first));
        void *p = block(1, s);
        assert_true(p != first);
        assert_true(ds_mem_get_allocated(harness_device(0)) > before);
        assert_true(ds_mem_get_max_allocated(harness_device(0)) ==
                    ds_mem_get_allocated(harness_device(0)));
        ok(ds_mem_free(p));
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), before);
        ok(ds_mem_free(first));
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
        assert_true(ds_mem_get_reserved(harness_device(0)) > 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_size_zero_gives_no_block_and_counts_nothing(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        int here;
        void *p = &here;
        begin(preset);
        ds_stream s = stream(0), t = stream(0);
        ok(ds_mem_alloc(0, s, &p));
        assert_null(p);
        p = &here;
        ok(ds_mem_alloc_with(&(ds_mem_request){ .stream = s }, &p));
        assert_null(p);
        ok(ds_mem_record_stream(p, t));
        ok(ds_mem_record_use(p, t));
        ok(ds_mem_free(p));
        assert_int_equal(stats_of(0).allocation[DS_STAT_ALL].allocated, 0);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

static void test_blocks_are_aligned_to_512_and_to_more_on_request(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        void *p[60];
        int count = 0;
        begin(preset);
        ds_stream s = stream(0);
        for (size_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
            ds_mem_request r = { .size = alignment == 1024 ? 3 * MIB : 700,
                                 .stream = s,
                                 .alignment = alignment };
            ok(ds_mem_alloc_with(&r, &p[count]));
            size_t at_least = alignment < UNIT ? UNIT : alignment;
            assert_int_equal((uintptr_t)p[count] % at_least, 0);
            assert_true(size_of(p[count]) >= 700);
            paint(p[count], r.size, (uint32_t)count, s);
            count++;
            p[count] = block(600, s);
            assert_int_equal((uintptr_t)p[count++] % UNIT, 0);
            ok(ds_mem_validate(harness_device(0)));
        }
        check_invariants(0);
        for (int i = 0; i < count; i++)
            ok(ds_mem_free(p[i]));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_wrong_requests_are_refused_and_change_nothing(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0), gone = stream(0);
    int here;
    void *p = &here, *plain, *live = block(5000, s);
    ok(ds_stream_destroy(gone));
    ok(ds_device_alloc(harness_device(0), 4096, &plain));
    refused(ds_mem_alloc(100, s, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_mem_alloc(100, gone, &p), DS_ERR_INVALID_HANDLE);
    assert_null(p);
    p = &here;
    refused(ds_mem_alloc(100, (ds_stream){ 0 }, &p), DS_ERR_INVALID_HANDLE);
    assert_null(p);
    refused(ds_mem_alloc_with(NULL, &p), DS_ERR_INVALID_VALUE);
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 8, .stream = s, .alignment = 3 }, &p),
            DS_ERR_INVALID_VALUE);
    refused(
        ds_mem_alloc_with(&(ds_mem_request){ .size = 8, .stream = s, .alignment = 4 * MIB }, &p),
        DS_ERR_INVALID_VALUE);
    refused(
        ds_mem_alloc_with(&(ds_mem_request){ .size = 8, .stream = s, .pool = { 0x123456789 } }, &p),
        DS_ERR_INVALID_HANDLE);
    assert_null(p);
    refused(ds_mem_free(&here), DS_ERR_INVALID_VALUE);
    refused(ds_mem_free((char *)live + 512), DS_ERR_INVALID_VALUE);
    refused(ds_mem_free((char *)live + 1), DS_ERR_INVALID_VALUE);
    refused(ds_mem_free(plain), DS_ERR_INVALID_VALUE);
    refused(ds_device_free(live), DS_ERR_INVALID_VALUE); /* it is not from ds_device_alloc */
    refused(ds_mem_record_use(&here, s), DS_ERR_INVALID_VALUE);
    refused(ds_mem_record_use(plain, s), DS_ERR_INVALID_VALUE);
    refused(ds_mem_record_use(live, gone), DS_ERR_INVALID_HANDLE);
    ok(ds_mem_record_stream(&here, s)); /* memory of others is none of its business */
    ok(ds_mem_record_stream(plain, s));
    refused(ds_mem_record_stream(live, gone), DS_ERR_INVALID_HANDLE);
    ds_mem_block b;
    refused(ds_mem_get_block(&here, &b), DS_ERR_INVALID_VALUE);
    refused(ds_mem_get_block(NULL, &b), DS_ERR_INVALID_VALUE);
    refused(ds_mem_get_block(live, NULL), DS_ERR_INVALID_VALUE);
    assert_int_equal(stat(0, "allocation.all.current"), 1);
    assert_int_equal(stat(0, "allocation.all.allocated"), 1);
    ok(ds_mem_free(live));
    ok(ds_device_free(plain));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_second_free_is_refused_and_harmless(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        void *a = block(4 * UNIT, s), *b = block(4 * UNIT, s), *c = block(30 * MIB, s);
        ok(ds_mem_free(NULL));
        ok(ds_mem_free(a));
        refused(ds_mem_free(a), DS_ERR_INVALID_VALUE);
        ok(ds_mem_free(b)); /* merges with what was a */
        refused(ds_mem_free(b), DS_ERR_INVALID_VALUE);
        refused(ds_mem_free(a), DS_ERR_INVALID_VALUE);
        ok(ds_mem_free(c));
        refused(ds_mem_free(c), DS_ERR_INVALID_VALUE);
        refused(ds_mem_record_use(c, s), DS_ERR_INVALID_VALUE);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        refused(ds_mem_free(c), DS_ERR_INVALID_VALUE);
        assert_int_equal(stat(0, "allocation.all.freed"), 3);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_request_beyond_all_memory_is_refused_at_once(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        static const size_t sizes[] = { SIZE_MAX,        SIZE_MAX - 511,        SIZE_MAX / 2,
                                        (size_t)1 << 60, ((size_t)1 << 60) + 1, (size_t)80 << 40 };
        begin(preset);
        ds_stream s = stream(0);
        void *p = &p, *live = block(1000, s);
        paint(live, 1000, 77, s);
        /* qemu would fill its memory with a table of so many pages */
        const size_t count = sizeof sizes / sizeof *sizes - HARNESS_EMULATES;
        for (size_t i = 0; i < count; i++) {
            no_memory(ds_mem_alloc(sizes[i], s, &p));
            assert_null(p);
        }
        assert_int_equal(stat(0, "num_ooms"), (int64_t)count);
        looks *l = looks_create(100);
        look(l, live, 1000, 77, s);
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_mem_free(live));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_block_is_found_by_every_address_inside_of_it(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        for (int device = 0; device < harness_device_count() && device < 2; device++) {
            static const size_t sizes[] = { 1,       512,           513,     100000,
                                            1 << 20, (1 << 20) + 1, 5 << 20, 50 << 20 };

            enum { N = sizeof sizes / sizeof *sizes };

            ds_stream s = stream(device);
            uint64_t id;
            char *p[N];
            ok(ds_stream_get_id(s, &id));
            for (size_t i = 0; i < N; i++)
                p[i] = block(sizes[i], s);
            for (size_t i = 0; i < N; i++) {
                ds_mem_block b = find(p[i]), c;
                assert_ptr_equal(b.ptr, p[i]);
                assert_int_equal(b.requested, sizes[i]);
                assert_true(b.size >= sizes[i]);
                assert_int_equal(b.size % UNIT, 0);
                assert_true((char *)b.segment <= p[i] &&
                            p[i] + b.size <= (char *)b.segment + b.segment_size);
                assert_int_equal(b.device.type, harness_device(device).type);
                assert_int_equal(b.device.index, harness_device(device).index);
                assert_true(b.stream == id);
                assert_true(b.pool.id == 0);
                assert_int_equal(b.state, DS_BLOCK_LIVE);
                for (size_t at = 1; at < b.size; at = at * 3 + 1)
                    assert_ptr_equal(find(p[i] + at).ptr, p[i]);
                assert_ptr_equal(find(p[i] + b.size - 1).ptr, p[i]);
                if (ds_mem_get_block(p[i] + b.size, &c) == DS_OK)
                    assert_ptr_equal(c.ptr, p[i] + b.size);
                if (ds_mem_get_block(p[i] - 1, &c) == DS_OK)
                    assert_ptr_equal((char *)c.ptr + c.size, p[i]);
            }
            for (size_t i = 0; i < N; i++) {
                ds_mem_block b;
                ok(ds_mem_free(p[i]));
                refused(ds_mem_get_block(p[i], &b), DS_ERR_INVALID_VALUE);
            }
            ok(ds_stream_destroy(s));
        }
        finish();
    }
}

static void test_pointer_queries_and_copies_know_the_blocks(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pointer_info info;
        char *p = block(3 * MIB, s);
        ok(ds_pointer_get_info(p + 5, &info));
        assert_int_equal(info.kind, DS_MEMORY_DEVICE);
        assert_int_equal(info.device.type, harness_device(0).type);
        assert_int_equal(info.device.index, harness_device(0).index);
        assert_true((char *)info.base <= p && p + 3 * MIB <= (char *)info.base + info.size);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static ds_stream looked_up(ds_stream s) {
    ds_device d;
    ok(ds_stream_get_device(s, &d));
    return s;
}

static void test_a_verb_in_an_argument_keeps_the_outer_site(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    void *p, *none;

    int line = __LINE__ + 1;
    ok(ds_mem_alloc(100, looked_up(s), &p));
    int failed_line = __LINE__ + 1;
    ds_result r = ds_mem_alloc((size_t)1 << 60, looked_up(looked_up(s)), &none);

    assert_int_equal(find(p).site.line, line);
    assert_non_null(strstr(find(p).site.file, "test_alloc.c"));
    assert_true(r < 0);
    char site[40];
    snprintf(site, sizeof site, "test_alloc.c:%d: ds_mem_alloc: ", failed_line);
    assert_non_null(strstr(ds_error_get_last(), site));
    ok(ds_mem_free(p));
    finish();
}

static void test_a_block_tells_its_owner_and_where_it_was_allocated(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    void *a, *b, *c, *d;
    int line;
    line = __LINE__ + 1;
    ok(ds_mem_alloc(100, s, &a));
    assert_null(find(a).label);
    assert_int_equal(find(a).site.line, line);
    assert_non_null(strstr(find(a).site.file, "test_alloc.c"));
    ds_mem_label_push("outer");
    ds_mem_label_push("inner");
    b = block(2 * MIB, s);
    ds_mem_label_pop();
    c = block(100, s);
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 100, .stream = s, .label = "own" }, &d));
    ds_mem_label_pop();
    assert_string_equal(find(b).label, "inner");
    assert_string_equal(find(c).label, "outer");
    assert_string_equal(find(d).label, "own");
    ok(ds_mem_free(a));
    a = block(100, s);
    assert_null(find(a).label);
    ds_mem_label_pop(); /* one too many does nothing */
    static const char labels[40][1];
    for (int i = 0; i < 40; i++)
        ds_mem_label_push(labels[i]);
    ok(ds_mem_free(b));
    b = block(100, s);
    assert_ptr_equal(find(b).label, labels[31]); /* so many nest */
    for (int i = 0; i < 10; i++)
        ds_mem_label_pop();
    ok(ds_mem_free(c));
    for (int i = 0; i < 29; i++)
        ds_mem_label_pop();
    c = block(100, s);
    assert_ptr_equal(find(c).label, labels[0]);
    ds_mem_label_pop();
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_mem_free(c));
    ok(ds_mem_free(d));
    ok(ds_stream_destroy(s));
    finish();
}

static void *label_of_another_thread(void *s) {
    ds_mem_label_push("theirs");
    void *p = block(300, *(ds_stream *)s);
    if (strcmp(find(p).label, "theirs"))
        abort();
    ds_mem_label_pop();
    ok_thread(ds_mem_free(p));
    return NULL;
}

static void test_labels_belong_to_their_thread(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    ds_mem_label_push("ours");
    join(spawn(label_of_another_thread, &s));
    void *p = block(100, s);
    assert_string_equal(find(p).label, "ours");
    ds_mem_label_pop();
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
}

static ds_result verb_result[12];
static size_t verb_released[2];
static void *verb_block;
static ds_stream verb_stream;
static ds_device verb_device;

static void use_the_allocator(void *user) {
    void *p;
    ds_mem_stats stats = { 0 };
    ds_mem_block b;
    (void)user;
    verb_result[0] = ds_mem_alloc(100, verb_stream, &p);
    verb_result[1] = ds_pool_push((ds_pool){ 0 });
    verb_result[2] = ds_mem_record_use(verb_block, verb_stream);
    verb_result[3] = ds_mem_record_stream(verb_block, verb_stream);
    verb_released[0] = verb_released[1] = 77;
    verb_result[4] = ds_mem_empty_cache(verb_device, &verb_released[0]);
    verb_result[5] = ds_mem_trim(verb_device, 0, &verb_released[1]);
    verb_result[6] = ds_mem_get_stats(verb_device, &stats);
    verb_result[7] = ds_mem_set_limit(verb_device, 5);
    verb_result[8] = ds_mem_get_block(verb_block, &b);
    verb_result[9] = ds_mem_validate(verb_device);
}

static void test_the_allocator_is_not_permitted_in_host_functions(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    verb_device = harness_device(0);
    verb_stream = stream(0);
    verb_block = block(100, verb_stream);
    ok(ds_stream_launch_host_func(verb_stream, use_the_allocator, NULL, NULL));
    ok(ds_stream_synchronize(verb_stream));
    for (int i = 0; i < 10; i++)
        if (verb_result[i] != DS_ERR_NOT_PERMITTED)
            fail_msg("verb %d: %s", i, ds_result_get_name(verb_result[i]));
    assert_true(verb_released[0] == 0 && verb_released[1] == 0);
    ok(ds_mem_free(verb_block));
    ok(ds_stream_destroy(verb_stream));
    finish();
}

/* ---- one stream ---- */

static void test_memory_is_used_again_on_its_stream_at_once(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        static const size_t sizes[] = { 100, 5000, 1 << 20, 3 << 20, 12 << 20 };
        begin(preset);
        ds_stream s = stream(0);
        looks *l = looks_create(1 << 18);
        gate g = { 0 };
        gate_close(s, &g);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            void *p = block(sizes[i], s);
            size_t reserved = ds_mem_get_reserved(harness_device(0));
            paint(p, sizes[i], (uint32_t)i, s);
            look(l, p, sizes[i], (uint32_t)i, s);
            ok(ds_mem_free(p));
            void *q = block(sizes[i], s);
            assert_int_equal(ds_mem_get_reserved(harness_device(0)), reserved);
            assert_ptr_equal(p, q);
            paint(q, sizes[i], 1000, s);
            look(l, q, sizes[i], 1000, s);
            ok(ds_mem_free(q));
        }
        assert_int_equal(ds_stream_query(s), DS_NOT_READY); /* and nobody has waited */
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static uint64_t draw(uint64_t *x) {
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void test_ten_thousand_random_steps_keep_all_contents(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        enum { LIVE = 100, STEPS = 2500 };

        struct {
            void *p;
            size_t size;
            uint32_t value;
        } live[LIVE];

        int count = 0;
        uint64_t x = (uint64_t)preset + 1;
        ds_mem_config c = config_of(preset);
        c.debug = 1;
        begin_with(&c);
        ds_stream s = stream(0);
        looks *l = looks_create(1 << 18);
        for (uint32_t step = 0; step < STEPS; step++) {
            if (count < LIVE && (count == 0 || draw(&x) % 100 < 55)) {
                size_t size = (size_t)(draw(&x) % (draw(&x) % 8 ? 100000 : 3 << 20)) + 1;
                live[count].p = block(size, s);
                live[count].size = size;
                live[count].value = step;
                paint(live[count].p, size, step, s);
                count++;
            } else {
                int i = (int)(draw(&x) % (uint64_t)count);
                if (!looks_fit(l, live[i].size)) {
                    ok(ds_stream_synchronize(s));
                    assert_true(looks_right(l));
                }
                look(l, live[i].p, live[i].size, live[i].value, s);
                ok(ds_mem_free(live[i].p));
                live[i] = live[--count];
            }
        }
        while (count)
            ok(ds_mem_free(live[--count].p));
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        check_invariants(0);
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- other streams ---- */

/* A block is used on `other` while that is held up, freed, and its stream allocates the same
   size again. */
static void early_reuse(int preset, int inner, int record_stream) {
    begin(preset);
    ds_stream s = stream(0), other = stream(0);
    looks *l = looks_create(1000);
    gate g = { 0 };

    enum { SIZE = 5000 };

    char *p = block(SIZE, s);
    paint(p, SIZE, 1234, s);
    ok(ds_stream_wait_stream(other, s));
    /* its work may come later */
    if (record_stream)
        ok(ds_mem_record_stream(p + (inner ? SIZE - 1 : 0), other));
    gate_close(other, &g);
    look(l, p, SIZE, 1234, other);
    if (!record_stream)
        ok(ds_mem_record_use(p + (inner ? SIZE - 1 : 0), other));
    ok(ds_mem_free(p));
    assert_int_equal(stat(0, "allocation.all.current"), 0);
    assert_int_equal(stat(0, "active.all.current"), 1);
    char *q = block(SIZE, s);
    paint(q, SIZE, 99, s);
    if (preset >= PRESET_TORCH)
        assert_ptr_not_equal(p, q);
    assert_int_equal(ds_stream_query(other), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(other));
    assert_true(looks_right(l));
    char *r = block(SIZE, s); /* asks again */
    if (preset == PRESET_TORCH || preset == PRESET_TORCH_GROWING)
        assert_ptr_equal(p, r);
    paint(r, SIZE, 98, s);
    look(l, q, SIZE, 99, s);
    look(l, r, SIZE, 98, s);
    ok(ds_stream_synchronize(s));
    assert_true(looks_right(l));
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
}

static void test_memory_that_another_stream_uses_is_not_reused_too_early(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 2; way++)
            early_reuse(preset, 0, way);
}

static void test_a_use_is_recorded_by_any_address_inside_of_the_block(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 2; way++)
            early_reuse(preset, 1, way);
}

/* record_use counts what was there at its call, record_stream what is there at the free. */
static void later_work(int preset, int record_stream) {
    begin(preset);
    ds_stream s = stream(0), other = stream(0);
    gate g = { 0 };
    void *p = block(5000, s);
    ok(ds_stream_wait_stream(other, s));
    paint(p, 5000, 1, other);
    if (record_stream)
        ok(ds_mem_record_stream(p, other));
    else
        ok(ds_mem_record_use(p, other));
    ok(ds_stream_synchronize(other));
    gate_close(other, &g);
    ok(ds_mem_free(p));
    void *q = block(5000, s);
    if (record_stream) {
        assert_ptr_not_equal(p, q);
        assert_int_equal(stat(0, "active.all.current"), 2);
    } else {
        assert_ptr_equal(p, q);
        assert_int_equal(stat(0, "active.all.current"), 1);
    }
    gate_open(&g);
    ok(ds_stream_synchronize(other));
    ok(ds_mem_free(q));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
}

static void test_recorded_uses_end_with_the_work_before_them(void **state) {
    (void)state;
    later_work(PRESET_TORCH, 0);
    later_work(PRESET_TORCH, 1);
    later_work(PRESET_TORCH_GROWING, 0);
    later_work(PRESET_TORCH_GROWING, 1);
}

/* Each use of a block ends when it would alone. */
static void test_two_kinds_of_uses_of_a_block_end_each_at_its_time(void **state) {
    (void)state;
    /* they ask at each allocation */
    for (int preset = PRESET_TORCH; preset <= PRESET_TORCH_GROWING; preset++) {
        begin(preset);
        ds_stream s = stream(0), early = stream(0), late = stream(0);
        gate g = { 0 };
        void *p = block(5000, s);
        ok(ds_mem_record_use(p, early));
        ok(ds_stream_synchronize(early));
        gate_close(early, &g);
        ok(ds_mem_record_stream(p, late));
        paint(p, 5000, 1, late);
        ok(ds_mem_free(p));
        ok(ds_stream_synchronize(late));
        void *q = block(5000, s);
        assert_ptr_equal(q, p);
        gate_open(&g);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(early));
        ok(ds_stream_destroy(late));
        finish();
    }
}

static void test_a_use_on_the_blocks_own_stream_is_nothing_to_record(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0);
        gate_close(s, &g);
        void *p = block(700, s);
        ok(ds_mem_record_use(p, s));
        ok(ds_mem_record_stream(p, s));
        ok(ds_mem_free(p));
        assert_int_equal(stat(0, "active.all.current"), 0);
        assert_ptr_equal(block(700, s), p);
        ok(ds_mem_free(p));
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_block_waits_for_all_streams_that_used_it(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int last = 0; last < 3; last++) {
            ds_stream s, other[3];
            gate g[3] = { { 0 }, { 0 }, { 0 } };
            begin(preset);
            looks *l = looks_create(1000);
            s = stream(0);
            void *p = block(5000, s);
            paint(p, 5000, 5, s);
            for (int i = 0; i < 3; i++) {
                other[i] = stream(0);
                ok(ds_stream_wait_stream(other[i], s));
                gate_close(other[i], &g[i]);
                look(l, p, 5000, 5, other[i]);
                ok(ds_mem_record_use(p, other[i]));
                ok(ds_mem_record_use(p, other[i])); /* again is the same */
                if (i == 1)
                    ok(ds_mem_record_stream(p, other[i]));
            }
            ok(ds_mem_free(p));
            for (int i = 0; i < 3; i++)
                if (i != last)
                    gate_open(&g[i]);
            for (int i = 0; i < 3; i++)
                if (i != last)
                    ok(ds_stream_synchronize(other[i]));
            void *q = block(5000, s);
            if (preset >= PRESET_TORCH)
                assert_ptr_not_equal(p, q);
            paint(q, 5000, 6, s);
            gate_open(&g[last]);
            ok(ds_stream_synchronize(other[last]));
            ok(ds_stream_synchronize(s));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            for (int i = 0; i < 3; i++)
                ok(ds_stream_destroy(other[i]));
            ok(ds_stream_destroy(s));
            looks_destroy(l);
            finish();
        }
}

static void test_a_free_never_waits(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g[3] = { { 0 }, { 0 }, { 0 } };
        ds_stream s[3];
        void *p[40];
        begin(preset);
        for (int i = 0; i < 3; i++)
            gate_close(s[i] = stream(0), &g[i]);
        for (int i = 0; i < 40; i++) {
            size_t size = i % 4 ? (size_t)i * 3000 : (size_t)i * 300000 + 1;
            p[i] = block(size, s[i % 3]);
            paint(p[i], size, 7, s[i % 3]);
            if (i & 8)
                ok(ds_mem_record_use(p[i], s[(i + 1) % 3]));
            if (i & 16)
                ok(ds_mem_record_stream(p[i], s[(i + 2) % 3]));
        }
        for (int i = 0; i < 40; i++)
            ok(ds_mem_free(p[i]));
        for (int i = 0; i < 3; i++)
            assert_int_equal(ds_stream_query(s[i]), DS_NOT_READY);
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
        for (int i = 0; i < 3; i++)
            gate_open(&g[i]);
        for (int i = 0; i < 3; i++)
            ok(ds_stream_synchronize(s[i]));
        for (int i = 0; i < 3; i++)
            ok(ds_stream_destroy(s[i]));
        finish();
    }
}

/* Half of a block is used by each of two streams, and its neighbours by others. */
static void neighbours(int preset, int streams) {
    enum { SIZE = 3 * 512, PER = 4 };

    ds_stream s[64], home;
    gate g = { 0 };
    begin(preset);
    looks *l = looks_create(100000);
    home = stream(0);
    for (int i = 0; i < streams; i++)
        s[i] = stream(0);
    for (int round = 0; round < 2; round++) {
        if (round == 1)
            gate_close(s[0], &g);
        for (int i = 0; i < streams * PER; i++) {
            ds_stream t = s[i % streams];
            void *p = block(SIZE, home);
            paint(p, SIZE, (uint32_t)i, home);
            ok(ds_stream_wait_stream(t, home));
            look(l, p, SIZE, (uint32_t)i, t);
            if (i & 1)
                ok(ds_mem_record_use(p, t));
            else
                ok(ds_mem_record_stream(p, t));
            ok(ds_mem_free(p)); /* before the stream has read it */
            void *q = block(SIZE, home);
            paint(q, SIZE, 0xFFFFFFFFu, home);
            ok(ds_mem_free(q));
        }
        if (round == 1)
            gate_open(&g);
        for (int i = 0; i < streams; i++)
            ok(ds_stream_synchronize(s[i]));
        ok(ds_stream_synchronize(home));
        assert_true(looks_right(l));
    }
    for (int i = 0; i < streams; i++)
        ok(ds_stream_destroy(s[i]));
    ok(ds_stream_destroy(home));
    looks_destroy(l);
    finish();
}

static void test_blocks_freed_early_on_many_streams_keep_their_contents(void **state) {
    (void)state;
    neighbours(PRESET_DEFAULT, harness_is_cpu() ? 64 : 16);
    for (int preset = PRESET_PLAIN; preset < PRESETS; preset++)
        neighbours(preset, 12);
}

static void test_ten_thousand_uses_of_one_block_need_no_memory_for_each(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0), other = stream(0);
    void *p = block(4096, s);
    size_t reserved = ds_mem_get_reserved(harness_device(0));
    for (int i = 0; i < 10000; i++)
        ok(ds_mem_record_use(p, other));
    for (int i = 0; i < 10000; i++)
        ok(ds_mem_record_stream(p, other));
    ok(ds_mem_free(p));
    for (int i = 0; i < 3000; i++) {
        p = block(4096, s);
        ok(ds_mem_record_use(p, other));
        ok(ds_mem_free(p));
    }
    ok(ds_device_synchronize(harness_device(0)));
    assert_true(ds_mem_get_reserved(harness_device(0)) <= reserved + 64 * MIB);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
}

/* ---- reuse by other streams ---- */

/* Stream s is held up while it still has to read its freed block; t needs as much memory. */
static void reuse(int preset, ds_mem_reuse how, int limited) {
    enum { SIZE = 3 << 20 };

    ds_mem_config c = config_of(preset);
    c.reuse = (int)how;
    begin_with(&c);
    ds_stream s = stream(0), t = stream(0);
    looks *l = looks_create(100000);
    gate g = { 0 };
    gate_close(s, &g);
    void *p = block(SIZE, s);
    size_t reserved = ds_mem_get_reserved(harness_device(0));
    paint(p, SIZE, 11, s);
    look(l, p, SIZE, 11, s);
    ok(ds_mem_free(p));
    if (limited)
        ok(ds_mem_set_limit(harness_device(0), reserved));
    void *q = block(SIZE, t); /* without waiting for s, although t will */
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    paint(q, SIZE, 12, t);
    look(l, q, SIZE, 12, t);
    if (how == DS_REUSE_ALWAYS || limited)
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), reserved);
    else
        assert_true(ds_mem_get_reserved(harness_device(0)) > reserved);
    ok(ds_mem_free(q));
    gate_open(&g);
    ok(ds_stream_synchronize(t));
    ok(ds_stream_synchronize(s));
    assert_true(looks_right(l));
    if (limited)
        ok(ds_mem_set_limit(harness_device(0), 0));
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_a_stream_gets_no_other_streams_memory_if_never_reused(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        reuse(preset, DS_REUSE_NEVER, 0);
}

static void test_a_stream_waits_for_anothers_memory_before_reserving(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        reuse(preset, DS_REUSE_ALWAYS, 0);
}

static void test_a_stream_waits_for_anothers_memory_before_it_runs_out(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        reuse(preset, DS_REUSE_ON_SHORTAGE, 1);
        reuse(preset, DS_REUSE_ON_SHORTAGE, 0);
        reuse(preset, DS_REUSE_ALWAYS, 1);
    }
}

/* The same with a use on a third stream: the wait is for that, too. */
static void test_a_pending_block_is_taken_and_the_stream_awaits_its_uses(void **state) {
    (void)state;
    for (int preset = PRESET_DEFAULT; preset <= PRESET_PLAIN; preset++) {
        enum { SIZE = 8 << 20 }; /* a page: nothing is left over beside it */

        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), user = stream(0);
        looks *l = looks_create(100000);
        void *p = block(SIZE, s);
        size_t reserved = ds_mem_get_reserved(harness_device(0));
        paint(p, SIZE, 21, s);
        ok(ds_stream_wait_stream(user, s));
        gate_close(user, &g);
        look(l, p, SIZE, 21, user);
        ok(ds_mem_record_use(p, user));
        ok(ds_mem_free(p));
        ok(ds_mem_set_limit(harness_device(0), reserved));
        void *q = block(SIZE, s);
        assert_int_equal(ds_stream_query(user), DS_NOT_READY);
        paint(q, SIZE, 22, s);
        assert_int_equal(ds_stream_query(s), DS_NOT_READY);
        gate_open(&g);
        look(l, q, SIZE, 22, s);
        ok(ds_stream_synchronize(s));
        ok(ds_stream_synchronize(user));
        assert_true(looks_right(l));
        ok(ds_mem_set_limit(harness_device(0), 0));
        ok(ds_mem_free(q));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

static void test_freed_memory_of_one_stream_is_not_given_to_another(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH, PRESET_TORCH_GROWING, PRESET_CUPY };
    for (int i = 0; i < 3; i++) {
        begin(presets[i]);
        ds_stream s = stream(0), t = stream(0);
        void *p = block(4 * UNIT, s);
        ok(ds_mem_free(p));
        void *q = block(4 * UNIT, t);
        assert_ptr_not_equal(p, q);
        void *r = block(4 * UNIT, s);
        assert_ptr_equal(p, r);
        ok(ds_mem_free(r));
        void *larger = block(8 * UNIT, s);
        if (presets[i] == PRESET_CUPY)
            assert_ptr_not_equal(p, larger);
        ok(ds_mem_free(larger));
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

/* ---- threads ---- */

typedef struct other_thread {
    ds_stream s;
    void *p;
    size_t size;
    gate *done;
    int own_stream;
    _Atomic int ready;
} other_thread;

static void *allocate_there(void *arg) {
    other_thread *o = arg;
    if (o->own_stream)
        ok_thread(ds_stream_get_per_thread(harness_device(0), &o->s));
    o->p = block(o->size, o->s);
    ok_thread(ds_mem_free(o->p));
    o->ready = 1;
    while (o->done && !o->done->open)
        harness_nap();
    return NULL;
}

static void test_memory_is_reused_between_threads_on_one_stream_only(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH, PRESET_TORCH_GROWING, PRESET_CUPY };
    for (int i = 0; i < 3; i++) {
        begin(presets[i]);
        ds_stream s = stream(0), t = stream(0), legacy, mine;
        ok(ds_stream_get_legacy(harness_device(0), &legacy));
        ok(ds_stream_get_per_thread(harness_device(0), &mine));
        ds_stream theirs[] = { legacy, s, s, { 0 } }, ours[] = { legacy, s, t, mine };
        static const int same[] = { 1, 1, 0, 0 };
        for (int k = 0; k < 4; k++) {
            gate done = { 0 };
            other_thread o = {
                .s = theirs[k], .size = 4 * UNIT, .done = &done, .own_stream = k == 3
            };
            pthread_t thread = spawn(allocate_there, &o);
            while (!o.ready)
                harness_nap();
            void *p = block(4 * UNIT, ours[k]);
            if (same[k])
                assert_ptr_equal(p, o.p);
            else
                assert_ptr_not_equal(p, o.p);
            ok(ds_mem_free(p));
            done.open = 1;
            join(thread);
            ok(ds_mem_empty_cache(harness_device(0), NULL));
        }
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

static void *free_there(void *arg) {
    ds_device other = harness_device(1);
    ok_thread(ds_device_set_current(other)); /* whatever is current there */
    ok_thread(ds_mem_free(arg));
    return NULL;
}

static void test_a_block_freed_by_another_thread_returns_to_its_stream(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH, PRESET_TORCH_GROWING, PRESET_CUPY,
                                   PRESET_DEFAULT };
    for (int i = 0; i < 4; i++) {
        begin(presets[i]);
        ds_stream s = stream(0), t = stream(0);
        void *p = block(9000, s);
        size_t reserved = ds_mem_get_reserved(harness_device(0));
        DS_STREAM_SCOPE(t) {
            ok(ds_mem_free(p));
        } /* another stream is current */
        void *q = block(9000, s);
        assert_ptr_equal(p, q);
        join(spawn(free_there, q));
        q = block(9000, s);
        assert_ptr_equal(p, q);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), reserved);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

/* Two threads split and merge the same sequence; afterwards each has the addresses that one
   thread alone gets. */
typedef struct sequence {
    ds_stream s;
    size_t offset[64];
} sequence;

static void *split_and_merge(void *arg) {
    sequence *q = arg;
    void *p[8];
    char *first = NULL;
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 8; i++)
            p[i] = block((size_t)(1 + (i * 5 + round) % 7) * 1024, q->s);
        if (!round)
            first = find(p[0]).segment;
        for (int i = 0; i < 8; i++)
            q->offset[round * 8 + i] = (size_t)((char *)p[i] - first);
        for (int i = 0; i < 8; i++)
            ok_thread(ds_mem_free(p[(i * 3) % 8]));
    }
    return NULL;
}

static void test_two_threads_get_memory_in_the_order_that_one_gets_it_in(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        /* a segment for each block has no order of addresses */
        if (preset == PRESET_CUPY)
            continue;
        sequence q[3];
        begin(preset);
        for (int i = 0; i < 3; i++)
            q[i].s = stream(0);
        split_and_merge(&q[0]);
        pthread_t a = spawn(split_and_merge, &q[1]), b = spawn(split_and_merge, &q[2]);
        join(a);
        join(b);
        for (int i = 0; i < 64; i++)
            if (q[0].offset[i] != q[1].offset[i] || q[0].offset[i] != q[2].offset[i])
                fail_msg("%s: block %d lies at %zu, %zu and %zu", preset_name(preset), i,
                         q[0].offset[i], q[1].offset[i], q[2].offset[i]);
        for (int i = 0; i < 3; i++)
            ok(ds_stream_destroy(q[i].s));
        finish();
    }
}

/* ---- devices ---- */

static void test_devices_do_not_disturb_each_other(void **state) {
    (void)state;
    two_devices();
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s[2] = { stream(0), stream(1) };
        void *p[2][20];
        for (int i = 0; i < 20; i++) {
            for (int d = 0; d < 2; d++) {
                size_t other = ds_mem_get_allocated(harness_device(!d)),
                       reserved = ds_mem_get_reserved(harness_device(!d));
                int64_t calls = stat(!d, "num_device_alloc");
                p[d][i] = block((size_t)(i + 1) * (d ? 7000 : 300000), s[d]);
                assert_int_equal(ds_mem_get_allocated(harness_device(!d)), other);
                assert_int_equal(ds_mem_get_reserved(harness_device(!d)), reserved);
                assert_int_equal(stat(!d, "num_device_alloc"), calls);
                assert_int_equal(find(p[d][i]).device.index, harness_device(d).index);
            }
            check_invariants(0);
            check_invariants(1);
        }
        for (int i = 0; i < 20; i++)
            ok(ds_mem_free(p[0][i]));
        size_t released, reserved = ds_mem_get_reserved(harness_device(1));
        ok(ds_mem_empty_cache(harness_device(0), &released));
        assert_true(released > 0);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
        assert_int_equal(ds_mem_get_reserved(harness_device(1)), reserved);
        for (int i = 0; i < 20; i++)
            ok(ds_mem_free(p[1][i]));
        ok(ds_stream_destroy(s[0]));
        ok(ds_stream_destroy(s[1]));
        finish();
    }
}

static void test_a_stream_of_another_device_uses_a_block_and_is_awaited(void **state) {
    (void)state;
    two_devices();
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), far = stream(1);
        looks *l = looks_create(1000);
        void *p = block(5000, s);
        paint(p, 5000, 31, s);
        ok(ds_stream_wait_stream(far, s));
        gate_close(far, &g);
        look(l, p, 5000, 31, far);
        ok(ds_mem_record_use(p, far));
        ok(ds_mem_free(p));
        void *q = block(5000, s);
        paint(q, 5000, 32, s);
        gate_open(&g);
        ok(ds_stream_synchronize(far));
        assert_true(looks_right(l));
        ok(ds_stream_synchronize(s));
        ok(ds_mem_free(q));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(far));
        finish();
    }
}

/* ---- streams that end ---- */

static void test_the_memory_of_streams_that_have_ended_is_used_again(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        size_t early = 0;
        begin(preset);
        for (int i = 0; i < 200; i++) {
            ds_stream s = stream(0);
            void *p = block(3 * MIB, s), *q = block(5000, s);
            paint(p, 3 * MIB, 1, s);
            paint(q, 5000, 1, s);
            ok(ds_mem_free(p));
            ok(ds_mem_free(q));
            ok(ds_stream_destroy(s));
            if (i == 20)
                early = ds_mem_get_reserved(harness_device(0));
        }
        if (ds_mem_get_reserved(harness_device(0)) > early)
            fail_msg("%s: %zu bytes reserved, %zu after 20 streams", preset_name(preset),
                     ds_mem_get_reserved(harness_device(0)), early);
        finish();
    }
}

static void test_a_block_outlives_its_stream_until_its_last_use(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int free_first = 0; free_first < 2; free_first++) {
            enum { SIZE = 3 << 20 };

            gate g = { 0 };
            ds_mem_config c = config_of(preset);
            c.reuse = DS_REUSE_ALWAYS;
            begin_with(&c);
            ds_stream s = stream(0), t = stream(0);
            looks *l = looks_create(100000);
            void *p = block(SIZE, s);
            gate_close(s, &g);
            paint(p, SIZE, 41, s);
            look(l, p, SIZE, 41, s);
            if (free_first)
                ok(ds_mem_free(p));
            ok(ds_stream_destroy(s)); /* its work goes on */
            if (!free_first) {
                assert_ptr_equal(find((char *)p + 5).ptr, p);
                ok(ds_mem_free(p));
            }
            void *q = block(SIZE, t);
            paint(q, SIZE, 42, t);
            look(l, q, SIZE, 42, t);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            ok(ds_stream_destroy(t));
            looks_destroy(l);
            finish();
        }
}

static void test_a_block_that_an_ended_stream_used_is_freed_all_the_same(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 2; way++) {
            gate g = { 0 };
            begin(preset);
            ds_stream s = stream(0), user = stream(0);
            looks *l = looks_create(1000);
            void *p = block(5000, s);
            paint(p, 5000, 51, s);
            ok(ds_stream_wait_stream(user, s));
            gate_close(user, &g);
            look(l, p, 5000, 51, user);
            if (way)
                ok(ds_mem_record_stream(p, user));
            else
                ok(ds_mem_record_use(p, user));
            ok(ds_stream_destroy(user));
            ok(ds_mem_free(p));
            void *q = block(5000, s);
            paint(q, 5000, 52, s);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            ok(ds_stream_destroy(s));
            looks_destroy(l);
            finish();
        }
}

static void *another(void **q, ds_stream s) {
    if (*q)
        ok(ds_mem_free(*q));
    return *q = block(5000, s);
}

/* Nobody waits for the device because a stream is gone that had done its work. */
static void test_a_use_of_a_stream_that_has_ended_is_over_with_its_work(void **state) {
    (void)state;
    /* they ask at each allocation */
    for (int preset = PRESET_TORCH; preset <= PRESET_TORCH_GROWING; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), user = stream(0), busy = stream(0);
        gate_close(busy, &g);
        void *p = block(5000, s);
        ok(ds_mem_record_stream(p, user));
        paint(p, 5000, 1, user);
        ok(ds_stream_synchronize(user));
        ok(ds_stream_destroy(user));
        ok(ds_mem_free(p));
        void *q = NULL;
        eventually(another(&q, s) == p);
        gate_open(&g);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(busy));
        finish();
    }
}

/* ---- captures ---- */

static void add_pool(const char *kind, int64_t out[4]) {
    static const char *const names[] = { "segment", "reserved_bytes", "active", "active_bytes" };
    char name[100];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s.%s.current", names[i], kind);
        out[i] = stat(0, name);
    }
}

static void expect_deltas(const char *kind, const int64_t before[4], int64_t segments,
                          int64_t bytes, int64_t blocks, int64_t active, size_t size) {
    int64_t now[4], want[4] = { segments, bytes, blocks, active };
    add_pool(kind, now);
    for (int i = 0; i < 4; i++)
        if (now[i] - before[i] != want[i])
            fail_msg("%zu bytes: value %d went from %lld to %lld, not by %lld", size, i,
                     (long long)before[i], (long long)now[i], (long long)want[i]);
}

/* The allocations of b = a.clone(), then five times b = b.clone() + 1, as torch's test of them
   has it. */
static void *capture_chain(void *a, size_t size, ds_stream s) {
    uint64_t *b = block(size, s);
    ok(ds_copy(b, a, size, s));
    for (int i = 0; i < 5; i++) {
        uint64_t *copy = block(size, s), *sum = block(size, s);
        ok(ds_copy(copy, b, size, s));
        ok(ds_copy(sum, copy, size, s));
        fold(s, sum, (uint64_t)i);
        ok(ds_mem_free(copy));
        ok(ds_mem_free(b));
        b = sum;
    }
    return b;
}

static uint64_t chain_result(uint64_t x) {
    for (uint64_t i = 0; i < 5; i++)
        x = fold_host(x, i);
    return x;
}

static uint64_t read_word(const void *p, ds_stream s) {
    uint64_t *w = word(0);
    ok(ds_copy(w, p, 8, s));
    ok(ds_stream_synchronize(s));
    return *w;
}

static void graph_memory(int preset, size_t size, int64_t segments, int64_t bytes,
                         int64_t bytes_after, const char *kind) {
    begin(preset);
    harness_warm_up();
    ds_stream s = stream(0);
    ds_graph g;
    int64_t before[4];
    int torch = preset == PRESET_TORCH;
    void *a = block(size, s);
    ok(ds_fill(a, 0, 1, size, s));
    fold(s, a, 17);
    add_pool(kind, before);
    harness_watch(s);
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    void *b = capture_chain(a, size, s);
    ok(ds_capture_end(s, &g));
    ds_graph_exec exec = instantiate_graph(g);
    for (int i = 0; i < 2; i++) {
        if (torch)
            expect_deltas(kind, before, segments, bytes, 1, (int64_t)size, size);
        ok(ds_graph_launch(exec, s));
        assert_true(read_word(b, s) == chain_result(17));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
    }
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(g));
    if (torch)
        await_graphs_memory((size_t)(before[1] + bytes_after));
    assert_true(read_word(b, s) == chain_result(17)); /* its result stays */
    if (torch)
        expect_deltas(kind, before, 1, bytes_after, 1, (int64_t)size, size);
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_stream_destroy(s));
    await_graphs_memory(0);
    finish();
}

static void test_a_graph_has_its_own_memory_and_its_results_outlive_it(void **state) {
    (void)state;
    const int64_t small = 2 << 20, large = 20 << 20, own = 12 << 20;
    static const int presets[] = { PRESET_TORCH, PRESET_DEFAULT, PRESET_PLAIN, PRESET_TORCH_GROWING,
                                   PRESET_CUPY };
    for (int i = 0; i < 5; i++) {
        graph_memory(presets[i], 512, 1, small, small, "small_pool");
        graph_memory(presets[i], MIB, 2, 2 * small, small, "small_pool");
        graph_memory(presets[i], MIB + 512, 1, large, large, "large_pool");
        graph_memory(presets[i], 10 * MIB - 512, 2, 2 * large, large, "large_pool");
        graph_memory(presets[i], 10 * MIB + 512, 3, 3 * own, own, "large_pool");
    }
}

/* What was freed during the capture stays the graph's. */
static void test_memory_that_each_launch_of_a_graph_uses_is_reserved(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        ds_graph g;
        uint64_t *in = word(5), *out = word(0);
        void *other[8];
        looks *l = looks_create(1000);
        harness_watch(s);
        ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
        uint64_t *tmp = block(3000, s);
        ok(ds_copy_with(tmp, in, 8, DS_COPY_HOST_STABLE, s));
        fold(s, tmp, 3);
        ok(ds_copy_with(out, tmp, 8, DS_COPY_HOST_STABLE, s));
        ok(ds_mem_free(tmp)); /* as a statement that rebinds its variable does */
        ok(ds_capture_end(s, &g));
        ds_graph_exec exec = instantiate_graph(g);
        for (uint32_t i = 0; i < 8; i++) {
            other[i] = block(3000, s);
            paint(other[i], 3000, i, s);
        }
        for (uint64_t launch = 0; launch < 3; launch++) {
            ok(ds_stream_synchronize(s));
            *in = launch * 1000;
            ok(ds_graph_launch(exec, s));
            ok(ds_stream_synchronize(s));
            assert_true(*out == fold_host(launch * 1000, 3));
        }
        for (uint32_t i = 0; i < 8; i++) {
            look(l, other[i], 3000, i, s);
            ok(ds_mem_free(other[i]));
        }
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_graph_exec_destroy(exec));
        ok(ds_graph_destroy(g));
        ok(ds_stream_destroy(s));
        await_graphs_memory(0);
        finish();
    }
}

/* What the allocator does while a stream captures must not touch the capture: no event is asked
   for, nothing waits. */
static void test_an_allocation_breaks_no_capture_of_any_mode(void **state) {
    (void)state;
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    for (int preset = 0; preset < PRESETS; preset++)
        for (int m = 0; m < 3; m++) {
            gate gate_of_s0 = { 0 };
            ds_graph g;
            begin(preset);
            harness_warm_up();
            ds_stream s0 = stream(0), s1 = stream(0), s2 = stream(0), free_stream = stream(0);
            looks *l = looks_create(5000);
            void *problem = block(3000, s1), *a = block(3000, s1);
            paint(a, 3000, 7, s1);
            ok(ds_stream_wait_stream(s0, s1));
            gate_close(s0, &gate_of_s0);
            paint(problem, 3000, 1, s0);
            ok(ds_mem_record_stream(problem, s0));
            ok(ds_mem_free(problem)); /* pending while the capture is open */
            harness_watch(s1);
            ok(ds_capture_begin(s1, modes[m]));
            char *b = block(3000, s1);
            ok(ds_copy(b, a, 3000, s1));
            ok(ds_stream_wait_stream(s2, s1));
            paint(b, 3000, 8, s2);
            ok(ds_mem_record_stream(b, s2));
            ok(ds_mem_free(b));
            void *forked = block(9000, s2); /* a forked stream allocates too */
            paint(forked, 9000, 9, s2);
            ok(ds_mem_record_use(forked, s1));
            ok(ds_mem_free(forked));
            /* and others go on: new segments, frees, statistics */
            void *outside = block(30 * MIB, free_stream), *tiny = block(1, free_stream);
            ok(ds_mem_record_use(outside, s0));
            ok(ds_mem_free(outside));
            ok(ds_mem_free(tiny));
            (void)stats_of(0);
            ok(ds_mem_validate(harness_device(0)));
            ok(ds_stream_wait_stream(s1, s2));
            ok(ds_capture_end(s1, &g));
            ds_graph_exec exec = instantiate_graph(g);
            gate_open(&gate_of_s0);
            for (int i = 0; i < 3; i++)
                ok(ds_graph_launch(exec, s1));
            ok(ds_device_synchronize(harness_device(0)));
            void *c = block(3000, s1); /* what was pending is taken up again */
            look(l, a, 3000, 7, s1);
            ok(ds_stream_synchronize(s1));
            assert_true(looks_right(l));
            looks_destroy(l);
            ok(ds_mem_free(c));
            ok(ds_mem_free(a));
            ok(ds_graph_exec_destroy(exec));
            ok(ds_graph_destroy(g));
            ok(ds_stream_destroy(s0));
            ok(ds_stream_destroy(s1));
            ok(ds_stream_destroy(s2));
            ok(ds_stream_destroy(free_stream));
            await_graphs_memory(0);
            finish();
        }
}

static void *allocate_a_lot(void *arg) {
    other_thread *o = arg;
    for (int i = 0; i < 50; i++) {
        void *p = block((size_t)i * 500000 + 1, o->s);
        ok_thread(ds_mem_free(p));
        ds_result r = ds_mem_trim(harness_device(0), 0, NULL);
        /* the cache may have to stay */
        if (r != DS_OK && r != DS_ERR_CAPTURE_UNSUPPORTED)
            harness_die("ds_mem_trim", r);
    }
    return NULL;
}

static void test_other_threads_allocate_during_a_capture(void **state) {
    (void)state;
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    for (int preset = 0; preset < PRESETS; preset++)
        for (int m = 0; m < 3; m++) {
            ds_graph g;
            begin(preset);
            harness_warm_up();
            ds_stream s = stream(0);
            other_thread o = { .s = stream(0) };
            uint64_t *h = word(1);
            harness_watch(s);
            ok(ds_capture_begin(s, modes[m]));
            pthread_t thread = spawn(allocate_a_lot, &o);
            for (int i = 0; i < 10; i++) {
                void *p = block((size_t)i * 700000 + 1, s);
                paint(p, (size_t)i * 700000 + 1, 3, s);
                fold(s, h, 2);
                ok(ds_mem_free(p));
            }
            join(thread);
            ok(ds_capture_end(s, &g));
            ds_graph_exec exec = instantiate_graph(g);
            ok(ds_graph_launch(exec, s));
            ok(ds_stream_synchronize(s));
            uint64_t want = 1;
            for (int i = 0; i < 10; i++)
                want = fold_host(want, 2);
            assert_true(*h == want);
            ok(ds_graph_exec_destroy(exec));
            ok(ds_graph_destroy(g));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(o.s));
            await_graphs_memory(0);
            finish();
        }
}

static void test_a_capture_that_fails_leaves_no_memory_behind(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_graph g;
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        for (int i = 0; i < 10; i++) {
            harness_watch(s);
            ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
            void *p = block(3 * MIB, s), *kept = block(5000, s);
            paint(p, 3 * MIB, 3, s);
            ok(ds_mem_free(p));
            refused_any(ds_stream_synchronize(s)); /* spoils it */
            refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_INVALIDATED);
            ok(ds_mem_free(kept));
        }
        ok(ds_stream_destroy(s));
        await_graphs_memory(0);
        finish();
    }
}

/* ---- the end of the process ---- */

/* Calls of the stand-in for cudart, where it is linked in. */
unsigned long standin_calls(const char *name) __attribute__((weak));

static unsigned long calls_that_end_something(void) {
    static const char *const names[] = {
        "cudaFree",          "cudaFreeHost",          "cudaFreeAsync",
        "cudaEventDestroy",  "cudaEventQuery",        "cudaEventSynchronize",
        "cudaStreamDestroy", "cudaStreamSynchronize", "cudaDeviceSynchronize"
    };
    unsigned long sum = 0;
    for (size_t i = 0; standin_calls && i < sizeof names / sizeof *names; i++)
        sum += standin_calls(names[i]);
    return sum;
}

static unsigned long calls_before_the_exit;

static void after_all_others(void) {
    if (calls_that_end_something() != calls_before_the_exit)
        _exit(9);
}

/* Blocks live, are cached and wait for a stream that is busy; nothing of it is ended. */
static void exit_with_blocks(void) {
    ds_device d = { harness_is_cpu() ? DS_DEVICE_CPU : DS_DEVICE_CUDA, 0 };
    ds_stream s, t;
    ds_pool pool;
    void *p[4];
    /* before devstream could: so this comes last */
    if (atexit(after_all_others))
        _exit(3);
    if (ds_stream_create(&(ds_stream_desc){ .device = d }, &s) < 0 ||
        ds_stream_create(&(ds_stream_desc){ .device = d }, &t) < 0)
        _exit(4);
    for (int i = 0; i < 4; i++)
        if (ds_mem_alloc(3 * MIB, s, &p[i]) < 0 || ds_fill(p[i], 1, 1, 3 * MIB, s) < 0)
            _exit(5);
    if (ds_mem_record_use(p[0], t) < 0 || ds_mem_record_stream(p[1], t) < 0 ||
        ds_mem_free(p[0]) < 0 || ds_mem_free(p[1]) < 0)
        _exit(6);
    if (ds_mem_free(p[2]) < 0 || ds_pool_create(&(ds_pool_desc){ .device = d }, &pool) < 0 ||
        ds_pool_push(pool) < 0)
        _exit(7);
    if (ds_mem_alloc(100, s, &p[0]) < 0)
        _exit(8);
    ds_mem_label_push("never popped");
    calls_before_the_exit = calls_that_end_something();
}

__attribute__((constructor)) static void child_with_blocks(void) {
    const char *what = getenv("DS_TEST_CHILD");
    if (!what || strcmp(what, "exit_with_blocks") != 0)
        return;
    exit_with_blocks();
    exit(0);
}

static void test_a_process_exits_with_live_blocks_without_driver_calls(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        int status =
            harness_respawn((const char *const[]){ "DS_TEST_CHILD=exit_with_blocks", NULL }, NULL);
        if (status != 0)
            fail_msg("the child ended with status 0x%x", (unsigned)status);
    }
}

/* ---- other backends ---- */

static void test_every_backend_keeps_contents_and_order(void **state) {
    (void)state;
    static const ds_mem_backend backends[] = { DS_MEM_NATIVE, DS_MEM_DRIVER_POOL, DS_MEM_UNCACHED };
    for (int i = 0; i < 3; i++) {
        enum { SIZE = 5000, ROUNDS = 20 };

        ds_mem_config c = ds_mem_config_default();
        gate g = { 0 };
        c.backend = (int)backends[i];
        begin_with(&c);
        ds_stream s = stream(0), other = stream(0);
        looks *l = looks_create(10000);
        void *zero = &c;
        ok(ds_mem_alloc(0, s, &zero));
        assert_null(zero);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            char *p = block(SIZE, s);
            assert_int_equal((uintptr_t)p % UNIT, 0);
            paint(p, SIZE, round, s);
            ok(ds_stream_wait_stream(other, s));
            if (round == 3 && backends[i] != DS_MEM_UNCACHED)
                gate_close(other, &g);
            look(l, p, SIZE, round, other);
            ok(ds_mem_record_use(p + 77, other));
            assert_ptr_equal(find(p + SIZE - 1).ptr, p);
            assert_int_equal(find(p).requested, SIZE);
            ok(ds_mem_free(p));
            refused(ds_mem_free(p), DS_ERR_INVALID_VALUE);
            p = block(SIZE, s);
            paint(p, SIZE, 1000, s);
            ok(ds_mem_free(p));
            if (round == 10)
                gate_open(&g);
        }
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
        void *live = block(MIB, s);
        assert_true(ds_mem_get_allocated(harness_device(0)) >= MIB);
        assert_true(ds_mem_get_reserved(harness_device(0)) >= MIB);
        ds_mem_config other_backend = c;
        other_backend.backend = (int)backends[(i + 1) % 3];
        /* while there is a block */
        refused_any(ds_mem_configure(harness_device(0), &other_backend));
        ok(ds_mem_free(live));
        if (backends[i] == DS_MEM_UNCACHED)
            assert_int_equal(stat(0, "num_device_alloc"), stat(0, "num_device_free"));
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
    }
}

static void test_a_block_of_the_drivers_pool_outlives_its_stream(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_default();
    c.backend = DS_MEM_DRIVER_POOL;
    begin_with(&c);
    ds_stream s = stream(0), t = stream(0);
    looks *l = looks_create(10000);
    void *p = block(5000, s), *q = block(5000, t);
    paint(p, 5000, 61, s);
    look(l, p, 5000, 61, s);
    ok(ds_stream_destroy(s));
    ok(ds_mem_free(p));
    DS_STREAM_SCOPE(t) {
        ok(ds_mem_free(q));
    }
    ok(ds_device_synchronize(harness_device(0)));
    assert_true(looks_right(l));
    looks_destroy(l);
    ok(ds_stream_destroy(t));
    finish();
}

/* ---- fast paths: without debugging the block that was freed last is not merged yet ---- */

/* Begins anew: where blocks were once watched, frees go the long way for good. */
static void begin_quickly(int preset, int reuse) {
    ds_mem_config c = config_of(preset);
    harness_restart(NULL);
    c.debug = 0;
    if (reuse >= 0)
        c.reuse = reuse;
    begin_with(&c);
}

static void test_the_block_that_was_freed_last_is_free_like_any_other(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int large = 0; large < 2; large++) {
            begin_quickly(preset, -1);
            ds_device d = harness_device(0);
            ds_stream s = stream(0), other = stream(0);
            size_t size = large ? 3 * MIB : 6 * KIB;
            ds_mem_block b;
            char *p = block(size, s), *q;
            ok(ds_mem_free(p));
            assert_int_equal(ds_mem_get_allocated(d), 0);
            refused(ds_mem_free(p), DS_ERR_INVALID_VALUE);
            refused(ds_mem_get_block(p, &b), DS_ERR_INVALID_VALUE);
            q = block(size, s); /* where it was */
            assert_ptr_equal(q, p);
            ok(ds_mem_validate(d));
            ok(ds_mem_free(q));
            refused(ds_mem_get_block(q + 700, &b), DS_ERR_INVALID_VALUE);
            refused(ds_mem_record_use(q + 700, other), DS_ERR_INVALID_VALUE);
            refused(ds_mem_free(q), DS_ERR_INVALID_VALUE);
            ok(ds_mem_validate(d));
            p = block(size, s);
            ok(ds_mem_free(p));
            q = block(size / 2, s); /* no more than what was asked for */
            assert_int_equal(size_of(q), size / 2);
            ok(ds_mem_free(q));
            p = block(size, s);
            ok(ds_mem_free(p));
            p = block(size, s);
            ok(ds_mem_record_use(p, other)); /* it waits like any other */
            ok(ds_mem_free(p));
            ok(ds_stream_synchronize(other));
            ok(ds_mem_empty_cache(d, NULL));
            assert_int_equal(stat(0, "active.all.current"), 0);
            assert_int_equal(ds_mem_get_reserved(d), 0);
            p = block(size, s);
            q = block(size * 2, s);
            ok(ds_mem_free(p));
            ok(ds_mem_free(q));
            size_t released;
            ok(ds_mem_empty_cache(d, &released));
            assert_true(released >= 3 * size);
            assert_int_equal(ds_mem_get_reserved(d), 0);
            ok(ds_mem_validate(d));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(other));
            finish();
        }
}

/* A block of a page, so that nothing is left beside it: the next request of its stream has only
   this one to take. */
static void test_the_quick_ways_wait_for_other_streams_too(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 4; way++) {
            size_t size = way & 1 ? 8 * MIB : 5000;
            gate g = { 0 };
            begin_quickly(preset, -1);
            ds_stream s = stream(0), other = stream(0);
            looks *l = looks_create(100000);
            void *p = block(size, s);
            paint(p, size, 1, s);
            ok(ds_stream_wait_stream(other, s));
            if (way & 2)
                ok(ds_mem_record_stream(p, other));
            gate_close(other, &g);
            look(l, p, size, 1, other);
            if (!(way & 2))
                ok(ds_mem_record_use(p, other));
            ok(ds_mem_free(p));
            assert_int_equal(stat(0, "allocation.all.current"), 0);
            assert_int_equal(stat(0, "active.all.current"), 1);
            void *q = block(size, s);
            paint(q, size, 2, s);
            look(l, q, size, 2, s);
            assert_int_equal(ds_stream_query(other), DS_NOT_READY);
            gate_open(&g);
            ok(ds_stream_synchronize(other));
            ok(ds_stream_synchronize(s));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            looks_destroy(l);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(other));
            finish();
        }
}

/* What is noted of a use is used again for others: nothing of the last one may stick to it. */
static void test_a_block_that_is_lent_again_waits_for_its_borrower(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int quick = 0; quick < 2; quick++) {
            enum { SIZE = 8 << 20 };

            gate g = { 0 };
            begin_quickly(preset, DS_REUSE_ALWAYS);
            if (!quick) {
                ds_mem_config c = config_of(preset);
                c.reuse = DS_REUSE_ALWAYS;
                set_config(&c);
            }
            ds_stream s = stream(0), t = stream(0), other = stream(0);
            looks *l = looks_create(100000);
            void *p = block(SIZE, s);
            ok(ds_mem_record_use(p, other));
            ok(ds_mem_free(p));
            ok(ds_device_synchronize(harness_device(0)));
            void *q = block(SIZE, s);
            assert_ptr_equal(q, p);
            ok(ds_mem_free(q));
            q = block(SIZE, t);
            assert_ptr_equal(q, p);
            paint(q, SIZE, 1, t);
            ok(ds_mem_record_use(q, t)); /* its own stream's by now */
            uint64_t id;
            ok(ds_stream_get_id(t, &id));
            assert_true(find(q).stream == id);
            gate_close(t, &g);
            look(l, q, SIZE, 1, t);
            ok(ds_mem_free(q));
            q = block(SIZE, s);
            paint(q, SIZE, 2, s);
            look(l, q, SIZE, 2, s);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            q = block(SIZE, s); /* nobody else's any more */
            ok(ds_stream_get_id(s, &id));
            assert_true(find(q).stream == id);
            ok(ds_mem_record_use(q, other));
            ok(ds_mem_record_use(q, t));
            ok(ds_mem_free(q));
            looks_destroy(l);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(t));
            ok(ds_stream_destroy(other));
            finish();
        }
}

static void test_the_smallest_pending_block_is_taken(void **state) {
    (void)state;
    for (int preset = PRESET_DEFAULT; preset <= PRESET_PLAIN; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), other = stream(0);
        void *p[3];
        for (size_t i = 0; i < 3; i++) {
            p[i] = block((i == 1 ? 12 : 24) * MIB, s);
            ok(ds_mem_record_use(p[i], other));
        }
        gate_close(other, &g);
        for (int i = 0; i < 3; i++) {
            ok(ds_mem_record_use(p[i], other));
            ok(ds_mem_free(p[i]));
        }
        void *q = block(11 * MIB, s);
        assert_ptr_equal(q, p[1]);
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
    }
}

/* Another handle of the stream ends, not the stream. */
static void test_a_stream_goes_on_when_its_wrapper_has_ended(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        enum { SIZE = 3 << 20 };

        ds_mem_config c = config_of(preset);
        ds_stream_native native;
        gate g = { 0 };
        c.reuse = DS_REUSE_ALWAYS;
        begin_with(&c);
        ds_stream s = stream(0), t = stream(0), w;
        looks *l = looks_create(100000);
        void *p = block(SIZE, s);
        ok(ds_stream_export(s, &native));
        ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &w));
        void *q = block(5000, w);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(w));
        ok(ds_stream_synchronize(s));
        gate_close(s, &g);
        paint(p, SIZE, 1, s);
        look(l, p, SIZE, 1, s);
        ok(ds_mem_free(p));
        /* behind what the stream does, not behind what it had done when its wrapper ended */
        q = block(SIZE, t);
        paint(q, SIZE, 2, t);
        gate_open(&g);
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(l));
        ok(ds_mem_free(q));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

static void test_uses_need_no_more_memory_the_longer_a_program_runs(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_cpu_desc cpu = { .devices = 2 };
        ds_init_desc init = { .cpu = &cpu, .allocator = { count_alloc, count_free, NULL } };
        size_t early = 0;
        harness_restart(&init);
        begin(preset);
        ds_stream s = stream(0), other = stream(0);
        for (int i = 0; i < 1500; i++) {
            void *p = block(8 * MIB, s);
            ok(ds_mem_record_use(p, other));
            if (i & 1)
                ok(ds_mem_record_stream(p, s));
            ok(ds_mem_free(p));
            if (i % 5 == 0)
                ok(ds_stream_synchronize(other));
            if (i % 50 == 49)
                ok(ds_mem_empty_cache(harness_device(0), NULL));
            if (i == 299)
                early = kept_bytes;
        }
        ok(ds_device_synchronize(harness_device(0)));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        if (kept_bytes > early + 160 * KIB /* of which 128: leaves of the table of addresses */)
            fail_msg("%s: %zu bytes after 300 uses, %zu after 1500", preset_name(preset), early,
                     (size_t)kept_bytes);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        finish();
        harness_restart(NULL);
    }
}

/* The event is taken at the free: what its stream does later delays nothing. */
static void test_record_stream_ends_with_the_free(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int quick = 0; quick < 2; quick++) {
            ds_mem_config c = config_of(preset);
            gate g = { 0 };
            if (quick) {
                c.debug = 0;
                harness_restart(NULL);
            }
            begin_with(&c);
            ds_stream s = stream(0), other = stream(0);
            void *p = block(8 * MIB, s);
            ok(ds_mem_record_stream(p, other));
            paint(p, 8 * MIB, 1, other);
            ok(ds_mem_free(p));
            ok(ds_stream_synchronize(other));
            gate_close(other, &g);
            void *q = block(8 * MIB, s);
            assert_ptr_equal(q, p);
            ok(ds_mem_free(q));
            gate_open(&g);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(other));
            finish();
        }
}

static void test_a_label_ends_with_its_block(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int quick = 0; quick < 2; quick++) {
            ds_mem_config c = config_of(preset);
            void *p, *q;
            if (quick) {
                c.debug = 0;
                harness_restart(NULL);
            }
            begin_with(&c);
            ds_stream s = stream(0);
            ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 5000, .stream = s, .label = "first" },
                                 &p));
            assert_string_equal(find(p).label, "first");
            ok(ds_mem_free(p));
            q = block(5000, s);
            assert_ptr_equal(q, p);
            assert_null(find(q).label);
            ok(ds_mem_free(q));
            ok(ds_stream_destroy(s));
            finish();
        }
}

/* One stream takes what another one has freed and a third one still uses. */
static void test_another_streams_pending_block_is_like_any_other(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int quick = 0; quick < 2; quick++) {
            enum { SIZE = 8 << 20 };

            ds_mem_config c = config_of(preset);
            gate g = { 0 };
            c.reuse = DS_REUSE_ALWAYS;
            if (quick) {
                c.debug = 0;
                harness_restart(NULL);
            }
            begin_with(&c);
            ds_stream s = stream(0), t = stream(0), other = stream(0);
            looks *l = looks_create(100000);
            char *p = block(SIZE, s);
            size_t reserved = ds_mem_get_reserved(harness_device(0));
            paint(p, SIZE, 1, s);
            ok(ds_stream_wait_stream(other, s));
            gate_close(other, &g);
            look(l, p, SIZE, 1, other);
            ok(ds_mem_record_use(p, other));
            ok(ds_mem_free(p));
            ok(ds_mem_set_limit(harness_device(0), reserved));
            /* what is left of a segment is too small */
            char *q = block(reserved > SIZE ? 12 * MIB : SIZE, t);
            if (reserved == SIZE)
                assert_ptr_equal(q, p);
            assert_ptr_equal(find(q + 5000).ptr, q);
            paint(q, SIZE, 2, t);
            look(l, q, SIZE, 2, t);
            ok(ds_mem_validate(harness_device(0)));
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            refused(ds_mem_free(q), DS_ERR_INVALID_VALUE);
            ok(ds_mem_set_limit(harness_device(0), 0));
            looks_destroy(l);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(t));
            ok(ds_stream_destroy(other));
            finish();
        }
}

/* An aligned block is the later part of what was found. */
static void test_an_aligned_block_has_everything_that_its_request_said(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int lent = 0; lent < 2; lent++) {
            enum { SIZE = 3 << 20, ALIGNMENT = 2 << 20 };

            ds_mem_config c = config_of(preset);
            gate g = { 0 };
            void *p = NULL;
            c.reuse = DS_REUSE_ALWAYS;
            begin_with(&c);
            ds_stream s = stream(0), t = stream(0), from = lent ? s : t;
            looks *l = looks_create(100000);
            /* so that its front is cut off, as a rule */
            void *front = block(5000, from), *low = block(3 * MIB, from);
            void *room = block(17 * MIB, from);
            ok(ds_mem_free(room));
            ds_mem_request request = {
                .size = SIZE - 100, .stream = t, .alignment = ALIGNMENT, .label = "aligned"
            };
            int line = __LINE__ + 1;
            ok(ds_mem_alloc_with(&request, &p));
            assert_int_equal((uintptr_t)p % ALIGNMENT, 0);
            ds_mem_block b = find((char *)p + SIZE - 200);
            assert_ptr_equal(b.ptr, p);
            assert_int_equal(b.requested, SIZE - 100);
            assert_string_equal(b.label, "aligned");
            assert_int_equal(b.site.line, line);
            assert_non_null(strstr(b.site.file, "test_alloc.c"));
            paint(p, SIZE - 512, 1, t);
            ok(ds_mem_record_use(p, t)); /* nothing to record */
            gate_close(t, &g);
            look(l, p, SIZE - 512, 1, t); /* t is its stream, whosever memory it was */
            ok(ds_mem_free(p));
            room = block(17 * MIB, from);
            paint(room, 17 * MIB, 2, from);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(room));
            ok(ds_mem_free(front));
            ok(ds_mem_free(low));
            ok(ds_mem_validate(harness_device(0)));
            looks_destroy(l);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(t));
            finish();
        }
}

/* What record_stream promises is not taken back by a use with an event, before it or after it. */
static void test_record_stream_counts_beside_record_use_in_either_order(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int first = 0; first < 2; first++)
            for (int fast = 0; fast < 2; fast++) {
                ds_mem_config c = config_of(preset);
                gate g = { 0 };
                if (fast) {
                    c.debug = 0;
                    harness_restart(NULL);
                }
                c.reuse = DS_REUSE_NEVER;
                begin_with(&c);
                ds_stream s = stream(0), other = stream(0);
                void *p = block(5000, s);
                for (int i = 0; i < 2; i++)
                    ok(i == first ? ds_mem_record_stream(p, other) : ds_mem_record_use(p, other));
                gate_close(other, &g);
                ok(ds_mem_free(p));
                void *q = block(5000, s);
                assert_ptr_not_equal(p, q);
                gate_open(&g);
                ok(ds_stream_synchronize(other));
                ok(ds_mem_free(q));
                ok(ds_stream_destroy(s));
                ok(ds_stream_destroy(other));
                finish();
            }
}

static void test_a_split_without_memory_for_its_block_changes_nothing(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        enum { MANY = 300 };

        ds_cpu_desc cpu = { .devices = 2 };
        ds_init_desc init = { .cpu = &cpu, .allocator = { count_alloc, count_free, NULL } };
        void *p[MANY];
        int count = 0, refusals = 0;
        harness_restart(&init);
        begin(preset);
        ds_stream s = stream(0);
        void *room = block(600 * UNIT, s), *rest = block(UNIT, s);
        ok(ds_mem_free(room));
        starving = 1;
        for (int i = 0; i < MANY && refusals < 3; i++) {
            ds_result r = ds_mem_alloc(UNIT, s, &p[count]);
            if (r == DS_OK) {
                count++;
                continue;
            }
            assert_int_equal(r, DS_ERR_OUT_OF_MEMORY);
            refusals++;
        }
        starving = 0;
        assert_int_equal(refusals, 3);
        ok(ds_mem_validate(harness_device(0)));
        room = block(UNIT, s);
        ok(ds_mem_free(room));
        ok(ds_mem_free(rest));
        while (count)
            ok(ds_mem_free(p[--count]));
        ok(ds_stream_destroy(s));
        finish();
        harness_restart(NULL);
    }
}

/* An event that has noted uses on one device is not asked to note them on another one. */
static void test_uses_on_one_device_after_the_other_are_noted(void **state) {
    (void)state;
    two_devices();
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0), near = stream(0), far = stream(1);
        for (int i = 0; i < 6; i++) {
            gate g = { 0 };
            looks *l = looks_create(100000);
            ds_stream user = i & 1 ? far : near;
            void *p = block(8 * MIB, s);
            paint(p, 8 * MIB, 1, s);
            ok(ds_stream_wait_stream(user, s));
            gate_close(user, &g);
            look(l, p, 8 * MIB, 1, user);
            ok(ds_mem_record_use(p, user));
            ok(ds_mem_free(p));
            void *q = block(8 * MIB, s);
            paint(q, 8 * MIB, 2, s);
            gate_open(&g);
            ok(ds_stream_synchronize(user));
            ok(ds_stream_synchronize(s));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            looks_destroy(l);
        }
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(near));
        ok(ds_stream_destroy(far));
        finish();
    }
}

typedef struct seen_stream {
    const void *ptr;
    uint64_t blocks, events[8];
} seen_stream;

static void see_block(const ds_mem_block *b, void *user) {
    seen_stream *seen = user;
    if (b->ptr == seen->ptr)
        seen->blocks = b->stream;
}

static void see_event(ds_device device, const ds_mem_event *e, void *user) {
    seen_stream *seen = user;
    (void)device;
    if (e->address == (uint64_t)(uintptr_t)seen->ptr && (unsigned)e->action < 8)
        seen->events[e->action] = e->stream;
}

static void test_a_lent_block_belongs_to_the_stream_that_allocated_it(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_TORCH);
    c.reuse = DS_REUSE_ALWAYS;
    gate g = { 0 };
    uint64_t id = 0;
    begin_with(&c);
    ds_stream s = stream(0), t = stream(0);
    void *p = block(4 * MIB, s);
    seen_stream seen = { .ptr = p };
    ok(ds_stream_get_id(t, &id));
    ok(ds_mem_free(p));
    ok(ds_mem_add_event_callback(see_event, &seen));
    assert_ptr_equal(block(4 * MIB, t), p);
    assert_int_equal(find(p).stream, id);
    gate_close(t, &g);
    ok(ds_mem_free(p));
    ok(ds_mem_for_each_block(harness_device(0), see_block, &seen)); /* it is pending */
    assert_int_equal(seen.blocks, id);
    ok(ds_stream_destroy(t));
    gate_open(&g);
    ok(ds_device_synchronize(harness_device(0)));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_mem_remove_event_callback(see_event, &seen));
    assert_int_equal(seen.events[DS_ACTION_ALLOC], id);
    assert_int_equal(seen.events[DS_ACTION_FREE_REQUESTED], id);
    assert_int_equal(seen.events[DS_ACTION_FREE_COMPLETED], id);
    ok(ds_stream_destroy(s));
    finish();
}

/* The memory of the block has gone back to the system, its addresses stay reserved. */
static void test_work_on_memory_that_the_cache_gave_back_is_refused(void **state) {
    (void)state;

    enum { SIZE = 64 << 20 };

    size_t released;
    void *live;
    begin(0);
    ds_stream s = stream(0);
    ok(ds_device_alloc(harness_device(0), SIZE, &live));
    void *p = block(SIZE, s);
    void *kept = block(4096, s);
    ok(ds_copy(p, live, SIZE, s));
    ok(ds_stream_synchronize(s));
    ok(ds_check_ignore(p, SIZE)); /* its use after the free is on purpose */
    ok(ds_mem_free(p));
    ok(ds_copy(p, live, SIZE, s)); /* the cache has it still */
    ok(ds_stream_synchronize(s));
    ok(ds_mem_empty_cache(harness_device(0), &released));
    assert_true(released >= SIZE);

    refused(ds_copy(p, live, 4096, s), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "dst: the memory of 4096 bytes at "));
    refused(ds_copy(live, p, SIZE, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(p, 0, 4, 1024, s), DS_ERR_INVALID_VALUE);

    ok(ds_copy(kept, live, 4096, s));
    ok(ds_copy(live, kept, 4096, s));
    void *again = block(SIZE, s);
    ok(ds_copy(again, live, SIZE, s));
    ok(ds_stream_synchronize(s));
    ok(ds_mem_free(again));
    ok(ds_mem_free(kept));
    ok(ds_device_free(live));
    ok(ds_stream_destroy(s));
    finish();
}

const struct CMUnitTest tests_alloc[] = {
    DS_TEST(test_an_allocation_counts_and_its_free_takes_it_back_exactly,
            "torch: test_memory_allocation"),
    DS_TEST(test_size_zero_gives_no_block_and_counts_nothing,
            "cupy: TestMemoryPool zero size, paddle: ZeroSizeRecordStreamTest"),
    DS_TEST(test_blocks_are_aligned_to_512_and_to_more_on_request, "alloc"),
    DS_TEST(test_wrong_requests_are_refused_and_change_nothing, "alloc"),
    DS_TEST(test_a_second_free_is_refused_and_harmless, "cupy: TestMemoryPool double free"),
    DS_TEST(test_a_request_beyond_all_memory_is_refused_at_once,
            "torch: test_out_of_memory, test_raises_oom"),
    DS_TEST(test_a_block_is_found_by_every_address_inside_of_it, "paddle: GetStreamInterfaceTest"),
    DS_TEST(test_pointer_queries_and_copies_know_the_blocks, "alloc"),
    DS_TEST(test_a_verb_in_an_argument_keeps_the_outer_site, "review"),
    DS_TEST(test_a_block_tells_its_owner_and_where_it_was_allocated, "peers e.4 7"),
    DS_TEST(test_labels_belong_to_their_thread, "paddle: memory_history_recorder_test labels"),
    DS_TEST(test_the_allocator_is_not_permitted_in_host_functions, "peers D9"),
    DS_TEST(test_memory_is_used_again_on_its_stream_at_once,
            "cupy: test_free, paddle: AllocInterfaceTest"),
    DS_TEST(test_ten_thousand_random_steps_keep_all_contents, "torch: test_allocator_fuzz"),
    DS_TEST(test_memory_that_another_stream_uses_is_not_reused_too_early,
            "torch: test_record_stream"),
    DS_TEST(test_a_use_is_recorded_by_any_address_inside_of_the_block,
            "torch: test_record_stream_on_shifted_view"),
    DS_TEST(test_recorded_uses_end_with_the_work_before_them, "peers e.4 3"),
    DS_TEST(test_two_kinds_of_uses_of_a_block_end_each_at_its_time, "peers e.4 3"),
    DS_TEST(test_a_use_on_the_blocks_own_stream_is_nothing_to_record, "peers e.4 3"),
    DS_TEST(test_a_block_waits_for_all_streams_that_used_it, "alloc"),
    DS_TEST(test_a_free_never_waits, "alloc"),
    DS_TEST(test_blocks_freed_early_on_many_streams_keep_their_contents,
            "paddle: CUDAMutilStreamTest"),
    DS_TEST(test_ten_thousand_uses_of_one_block_need_no_memory_for_each, "peers D11"),
    DS_TEST(test_a_stream_gets_no_other_streams_memory_if_never_reused, "alloc"),
    DS_TEST(test_a_stream_waits_for_anothers_memory_before_reserving, "alloc"),
    DS_TEST(test_a_stream_waits_for_anothers_memory_before_it_runs_out, "peers e.4 3"),
    DS_TEST(test_a_pending_block_is_taken_and_the_stream_awaits_its_uses, "alloc"),
    DS_TEST(test_freed_memory_of_one_stream_is_not_given_to_another,
            "cupy: test_free_stream, test_free_different_size"),
    DS_TEST(test_memory_is_reused_between_threads_on_one_stream_only,
            "cupy: test_reuse_between_thread"),
    DS_TEST(test_a_block_freed_by_another_thread_returns_to_its_stream,
            "peers D2, cupy: TestMallocAsync::test_stream"),
    DS_TEST(test_two_threads_get_memory_in_the_order_that_one_gets_it_in,
            "torch: test_multi_threads_alloc_in_same_order"),
    DS_TEST(test_devices_do_not_disturb_each_other,
            "torch: test_memory_stats_multigpu, test_cuda_device_memory_allocated"),
    DS_TEST(test_a_stream_of_another_device_uses_a_block_and_is_awaited, "alloc"),
    DS_TEST(test_the_memory_of_streams_that_have_ended_is_used_again, "peers D6 e.4 2"),
    DS_TEST(test_a_block_outlives_its_stream_until_its_last_use,
            "peers e.4 2, cupy: TestMallocAsync::test_stream"),
    DS_TEST(test_a_block_that_an_ended_stream_used_is_freed_all_the_same, "alloc"),
    DS_TEST(test_a_use_of_a_stream_that_has_ended_is_over_with_its_work, "alloc"),
    DS_TEST(test_a_graph_has_its_own_memory_and_its_results_outlive_it,
            "torch: test_graph_memory_stats_and_use_result_after_destroy_graph"),
    DS_TEST(test_memory_that_each_launch_of_a_graph_uses_is_reserved, "peers D12 b.8"),
    DS_TEST(test_an_allocation_breaks_no_capture_of_any_mode,
            "torch: test_graph_record_stream, test_cuda_graph_allocator_propagates_stream, paddle: "
            "CUDAGraphTest"),
    DS_TEST(test_other_threads_allocate_during_a_capture, "torch: test_cuda_graph_error_options"),
    DS_TEST(test_a_capture_that_fails_leaves_no_memory_behind, "torch: test_graph_capture_oom"),
    DS_TEST(test_a_process_exits_with_live_blocks_without_driver_calls, "alloc"),
    DS_TEST(test_every_backend_keeps_contents_and_order,
            "cupy: TestAllocatorDisabled, TestMemoryAsyncPool, paddle: cuda_malloc_async"),
    DS_TEST(test_a_block_of_the_drivers_pool_outlives_its_stream,
            "cupy: TestMallocAsync::test_stream"),
    DS_TEST(test_the_block_that_was_freed_last_is_free_like_any_other,
            "cupy: TestMemoryPool double free"),
    DS_TEST(test_the_quick_ways_wait_for_other_streams_too, "torch: test_record_stream"),
    DS_TEST(test_a_block_that_is_lent_again_waits_for_its_borrower, "alloc"),
    DS_TEST(test_the_smallest_pending_block_is_taken, "alloc"),
    DS_TEST(test_a_stream_goes_on_when_its_wrapper_has_ended, "alloc"),
    DS_TEST(test_uses_need_no_more_memory_the_longer_a_program_runs, "peers D6"),
    DS_TEST(test_record_stream_ends_with_the_free, "torch: test_record_stream"),
    DS_TEST(test_a_label_ends_with_its_block, "alloc"),
    DS_TEST(test_another_streams_pending_block_is_like_any_other, "alloc"),
    DS_TEST(test_an_aligned_block_has_everything_that_its_request_said, "alloc"),
    DS_TEST(test_record_stream_counts_beside_record_use_in_either_order, "alloc"),
    DS_TEST(test_a_split_without_memory_for_its_block_changes_nothing, "alloc"),
    DS_TEST(test_uses_on_one_device_after_the_other_are_noted, "alloc"),
    DS_TEST(test_a_lent_block_belongs_to_the_stream_that_allocated_it, "alloc"),
    DS_TEST_CPU(test_work_on_memory_that_the_cache_gave_back_is_refused, "alloc"),
};
const size_t tests_alloc_count = sizeof tests_alloc / sizeof *tests_alloc;
