/* The policy of the caching allocator: sizes, segments, splitting and merging, growing segments,
   pools, configuration. */
#include "alloc.h"

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

/* A policy without a name, from a preset. */
static ds_mem_config torch_with(const char *text) {
    ds_mem_config c = config_of(PRESET_TORCH);
    ok(ds_mem_config_parse(text, &c));
    return c;
}

/* ---- sizes and segments ---- */

static void test_sizes_are_rounded_up_to_512(void **state) {
    (void)state;
    static const size_t sizes[][2] = { { 1, 512 },
                                       { 511, 512 },
                                       { 512, 512 },
                                       { 513, 1024 },
                                       { 1023, 1024 },
                                       { 1025, 1536 },
                                       { (1 << 20) - 1, 1 << 20 },
                                       { (1 << 20) + 1, (1 << 20) + 512 },
                                       { (5 << 20) + 7, (5 << 20) + 512 } };
    static const int presets[] = { PRESET_TORCH, PRESET_TORCH_GROWING, PRESET_CUPY };
    for (int i = 0; i < 3; i++) {
        begin(presets[i]);
        ds_stream s = stream(0);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            void *p = block(sizes[k][0], s);
            assert_int_equal(size_of(p), sizes[k][1]);
            assert_int_equal(stat(0, "requested_bytes.all.current"), (int64_t)sizes[k][0]);
            assert_int_equal(stat(0, "allocated_bytes.all.current"), (int64_t)sizes[k][1]);
            ok(ds_mem_free(p));
            ok(ds_mem_empty_cache(harness_device(0), NULL));
        }
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_segments_have_torchs_sizes_under_its_preset(void **state) {
    (void)state;

    static const struct {
        size_t size, segment;
        int small;
    } cases[] = { { 1, 2 << 20, 1 },
                  { 512, 2 << 20, 1 },
                  { 1 << 20, 2 << 20, 1 },
                  { (1 << 20) + 1, 20 << 20, 0 },
                  { (10 << 20) - 512, 20 << 20, 0 },
                  { 10 << 20, 10 << 20, 0 },
                  { (10 << 20) + 1, 12 << 20, 0 },
                  { 33 << 20, 34 << 20, 0 } };

    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *p = block(cases[i].size, s);
        assert_int_equal(find(p).segment_size, cases[i].segment);
        assert_ptr_equal(find(p).segment, p);
        assert_int_equal(stat(0, "reserved_bytes.all.current"), (int64_t)cases[i].segment);
        assert_int_equal(stat(0, "reserved_bytes.small_pool.current"),
                         cases[i].small ? (int64_t)cases[i].segment : 0);
        assert_int_equal(stat(0, "segment.small_pool.current"), cases[i].small);
        assert_int_equal(stat(0, "segment.large_pool.current"), !cases[i].small);
        check_invariants(0);
        ok(ds_mem_free(p));
        size_t released;
        ok(ds_mem_empty_cache(harness_device(0), &released));
        assert_int_equal(released, cases[i].segment);
    }
    ok(ds_stream_destroy(s));
    finish();
}

static void test_segments_are_as_large_as_the_request_under_cupys_preset(void **state) {
    (void)state;
    begin(PRESET_CUPY);
    ds_stream s = stream(0);
    static const size_t sizes[] = { 512, 1024, 1 << 20, 5 << 20, 11 << 20 };
    void *p[5];
    size_t sum = 0;
    for (int i = 0; i < 5; i++) {
        p[i] = block(sizes[i], s);
        sum += sizes[i];
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), sum);
        assert_int_equal(find(p[i]).segment_size, sizes[i]);
    }
    for (int i = 0; i < 5; i++)
        ok(ds_mem_free(p[i]));
    void *q = block(512, s); /* small and large share: the smallest that fits */
    assert_ptr_equal(q, p[0]);
    void *r = block(700 * KIB, s);
    assert_ptr_equal(r, p[2]);
    void *t = block(600 * KIB, s);
    assert_ptr_equal(t, p[3]);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), sum);
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_mem_free(t));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_freed_block_serves_two_halves_and_merges_again(void **state) {
    (void)state;
    static const int presets[] = { PRESET_CUPY, PRESET_TORCH, PRESET_TORCH_GROWING };
    for (int i = 0; i < 3; i++) {
        begin(presets[i]);
        ds_stream s = stream(0);
        char *p = block(4 * UNIT, s);
        ok(ds_mem_free(p));
        for (int order = 0; order < 2; order++) {
            char *head = block(2 * UNIT, s), *tail = block(2 * UNIT, s);
            assert_ptr_equal(head, p);
            assert_ptr_equal(tail, p + 2 * UNIT);
            assert_int_equal(find(head).size, 2 * UNIT);
            ok(ds_mem_free(order ? head : tail));
            ok(ds_mem_free(order ? tail : head));
            char *whole = block(4 * UNIT, s);
            assert_ptr_equal(whole, p);
            assert_int_equal(find(whole).size, 4 * UNIT);
            ok(ds_mem_free(whole));
            ok(ds_mem_validate(harness_device(0)));
        }
        /* in the middle of two */
        char *a = block(UNIT, s), *b = block(UNIT, s), *c = block(2 * UNIT, s);
        assert_ptr_equal(b, p + UNIT);
        assert_ptr_equal(c, p + 2 * UNIT);
        ok(ds_mem_free(a));
        ok(ds_mem_free(c));
        ok(ds_mem_free(b));
        a = block(4 * UNIT, s);
        assert_ptr_equal(a, p);
        ok(ds_mem_free(a));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_the_smallest_fitting_lowest_block_is_taken(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    static const size_t sizes[] = { 8, 4, 6, 4, 5 };
    char *p[5], *wall[5];
    for (int i = 0; i < 5; i++) {
        p[i] = block(sizes[i] * UNIT, s);
        wall[i] = block(UNIT, s);
    }
    ok(ds_mem_free(p[3]));
    for (int i = 0; i < 5; i++)
        if (i != 3)
            ok(ds_mem_free(p[i]));
    void *a = block(4 * UNIT, s), *b = block(4 * UNIT, s), *c = block(4 * UNIT, s),
         *d = block(5 * UNIT + 1, s);
    assert_ptr_equal(a, p[1] < p[3] ? p[1] : p[3]);
    assert_ptr_equal(b, p[1] < p[3] ? p[3] : p[1]);
    assert_ptr_equal(c, p[4]);
    assert_ptr_equal(d, p[2]);
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_mem_free(c));
    ok(ds_mem_free(d));
    for (int i = 0; i < 5; i++)
        ok(ds_mem_free(wall[i]));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_large_block_keeps_a_rest_of_up_to_one_mib(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    char *p = block(12 * MIB, s);
    ok(ds_mem_free(p));
    char *q = block(11 * MIB, s);
    assert_ptr_equal(p, q);
    assert_int_equal(size_of(q), 12 * MIB); /* and it counts as allocated */
    assert_int_equal(stat(0, "allocated_bytes.large_pool.current"), (int64_t)(12 * MIB));
    assert_int_equal(stat(0, "requested_bytes.large_pool.current"), (int64_t)(11 * MIB));
    assert_int_equal(stat(0, "inactive_split.all.current"), 0);
    ok(ds_mem_free(q));
    q = block(11 * MIB - 512, s);
    assert_int_equal(size_of(q), 11 * MIB - 512);
    assert_int_equal(stat(0, "inactive_split.large_pool.current"), 1);
    assert_int_equal(stat(0, "inactive_split_bytes.large_pool.current"), (int64_t)(MIB + 512));
    ok(ds_mem_free(q));
    assert_int_equal(stat(0, "inactive_split_bytes.large_pool.current"), 0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_small_and_large_requests_do_not_share_segments(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    void *large = block(5 * MIB, s);
    ok(ds_mem_free(large));
    void *small = block(5000, s);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 22 * MIB);
    assert_int_equal(stat(0, "allocated_bytes.small_pool.current"), 5120);
    assert_int_equal(stat(0, "allocated_bytes.large_pool.current"), 0);
    ok(ds_mem_free(small));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_split_statistics_follow_the_blocks(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    const int64_t total = (int64_t)(2 * MIB);
    void *a = block(512, s);
    assert_int_equal(stat(0, "inactive_split.all.current"), 1);
    assert_int_equal(stat(0, "inactive_split_bytes.all.current"), total - 512);
    void *b = block(1024, s), *c = block(512, s);
    assert_int_equal(stat(0, "inactive_split.all.current"), 1);
    assert_int_equal(stat(0, "inactive_split_bytes.all.current"), total - 2048);
    ok(ds_mem_free(b));
    assert_int_equal(stat(0, "inactive_split.all.current"), 2);
    assert_int_equal(stat(0, "inactive_split_bytes.all.current"), total - 1024);
    void *d = block(1024, s); /* the whole of a piece */
    assert_ptr_equal(d, b);
    assert_int_equal(stat(0, "inactive_split.all.current"), 1);
    ok(ds_mem_free(c));
    assert_int_equal(stat(0, "inactive_split.all.current"), 1); /* merged with the rest */
    ok(ds_mem_free(d));
    ok(ds_mem_free(a));
    assert_int_equal(stat(0, "inactive_split.all.current"), 0);
    assert_int_equal(stat(0, "inactive_split_bytes.all.current"), 0);
    check_invariants(0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_sizes_are_rounded_to_divisions_of_powers_of_two(void **state) {
    (void)state;

    /* first case: 512 * divisions is not passed: only the multiple of 512 */
    static const struct {
        const char *text;
        size_t size, rounded;
    } cases[] = { { "roundup_power2_divisions:4", 1200, 1536 },
                  { "roundup_power2_divisions:4", 2048, 2048 },
                  { "roundup_power2_divisions:4", 2049, 2560 },
                  { "roundup_power2_divisions:4", 5000, 5120 },
                  { "roundup_power2_divisions:4", 5121, 6144 },
                  { "roundup_power2_divisions:4", (3 << 20) + 1, (3 << 20) + (1 << 19) },
                  { "roundup_power2_divisions:1", 5000, 5120 }, /* one division is none */
                  { "roundup_power2_divisions:[2:1,4:2,>:8]", 1500000, 1500160 },
                  { "roundup_power2_divisions:[2:1,4:2,>:8]", 5 << 20, 6 << 20 },
                  { "roundup_power2_divisions:[2:1,4:2,>:8]", (9 << 20) + 1, 10 << 20 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_mem_config c = torch_with(cases[i].text);
        begin_with(&c);
        ds_stream s = stream(0);
        void *p = block(cases[i].size, s);
        if (size_of(p) != cases[i].rounded)
            fail_msg("%s: %zu is rounded to %zu", cases[i].text, cases[i].size, size_of(p));
        assert_int_equal(find(p).requested, cases[i].size);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_blocks_of_the_maximal_split_size_serve_their_kind_only(void **state) {
    (void)state;
    ds_mem_config c = torch_with("max_split_size_mb:32,max_non_split_rounding_mb:20");
    begin_with(&c);
    ds_stream s = stream(0);
    assert_int_equal(stat(0, "max_split_size"), 32 << 20);
    void *p = block(60 * MIB, s);
    assert_int_equal(stat(0, "oversize_allocations.current"), 1);
    assert_int_equal(stat(0, "oversize_segments.current"), 1);
    ok(ds_mem_free(p));
    assert_int_equal(stat(0, "oversize_allocations.current"), 0);
    assert_int_equal(stat(0, "oversize_segments.current"), 1);
    void *q = block(20 * MIB, s); /* small enough to be split off, so it is not */
    assert_ptr_not_equal(p, q);
    void *r = block(40 * MIB, s); /* as large as the block but 20 MiB: not either */
    assert_ptr_not_equal(p, r);
    void *t = block(41 * MIB, s); /* the whole block */
    assert_ptr_equal(p, t);
    assert_int_equal(size_of(t), 60 * MIB);
    assert_int_equal(stat(0, "oversize_allocations.current"), 2);
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_mem_free(t));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    assert_int_equal(stat(0, "oversize_segments.current"), 0);
    ok(ds_stream_destroy(s));
    finish();
    begin(PRESET_TORCH);
    assert_int_equal(stat(0, "max_split_size"), -1);
    finish();
}

/* With a limit on top: oversize blocks are given back for a request that does not fit. */
static void test_oversize_blocks_make_room_before_the_cache_is_emptied(void **state) {
    (void)state;
    ds_mem_config c = torch_with("max_split_size_mb:32");
    begin_with(&c);
    ds_stream s = stream(0);
    void *small = block(5000, s), *a = block(40 * MIB, s), *b = block(50 * MIB, s),
         *other = block(22 * MIB, s);
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_mem_free(other));
    ok(ds_mem_set_limit(harness_device(0), ds_mem_get_reserved(harness_device(0))));
    void *p = block(80 * MIB, s);
    assert_int_equal(stat(0, "num_alloc_retries"), 0);
    assert_int_equal(stat(0, "num_device_free"), 2);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 2 * MIB + 22 * MIB + 80 * MIB);
    ok(ds_mem_free(p));
    ok(ds_mem_free(small));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_the_smallest_sufficient_oversize_block_makes_room(void **state) {
    (void)state;

    static const struct {
        size_t size[3], limit, request, kept;
        int64_t freed, retries;
    } cases[] = { { { 60, 100, 94 }, 260, 26, 194, 1, 0 },
                  { { 60, 100, 94 }, 260, 70, 160, 1, 0 },
                  { { 128, 130, 132 }, 400, 200, 128, 2, 0 },
                  { { 30, 32, 34 },
                    110,
                    97,
                    0,
                    3,
                    1 }, /* 96 MiB are not enough, though with what was free they are */
                  { { 30, 32, 34 }, 110, 96, 0, 3, 0 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_mem_config c = torch_with("max_split_size_mb:20");
        c.limit = cases[i].limit * MIB;
        begin_with(&c);
        ds_stream s = stream(0);
        void *p[3];
        for (int k = 0; k < 3; k++)
            p[k] = block(cases[i].size[k] * MIB, s);
        for (int k = 0; k < 3; k++)
            ok(ds_mem_free(p[k]));
        void *q = block(cases[i].request * MIB, s);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)) - find(q).segment_size,
                         cases[i].kept * MIB);
        assert_int_equal(stat(0, "num_device_free"), cases[i].freed);
        assert_int_equal(stat(0, "num_alloc_retries"), cases[i].retries);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_unused_segments_are_given_back_by_age_above_a_threshold(void **state) {
    (void)state;
    ds_mem_config c = torch_with("garbage_collection_threshold:0.5");
    c.limit = 200 * MIB;
    begin_with(&c);
    ds_stream s = stream(0);
    void *p[4];
    /* 100 MiB */
    for (size_t i = 0; i < 4; i++)
        p[i] = block((22 + 2 * i) * MIB, s);
    void *kept = block(6 * MIB, s); /* and 20 with a use */
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(p[i]));
    assert_int_equal(stat(0, "num_device_free"), 0);
    for (int i = 0; i < 10; i++) {
        void *young = block(28 * MIB, s); /* its age begins again */
        assert_ptr_equal(young, p[3]);
        ok(ds_mem_free(young));
    }
    void *q = block(60 * MIB, s);
    assert_true(stat(0, "num_device_free") > 0);
    assert_int_equal(stat(0, "num_alloc_retries"), 0);
    assert_int_equal(stat(0, "num_sync_all_streams"), 0);
    assert_true(ds_mem_get_reserved(harness_device(0)) <= 160 * MIB);
    int64_t calls = stat(0, "num_device_alloc");
    void *young = block(28 * MIB, s); /* the youngest is still there */
    assert_int_equal(stat(0, "num_device_alloc"), calls);
    assert_ptr_equal(young, p[3]);
    assert_true(find(kept).size > 0);
    ok(ds_mem_free(young));
    ok(ds_mem_free(q));
    ok(ds_mem_free(kept));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- growing segments ---- */

typedef struct piece {
    char *ptr;
    size_t size;
    ds_mem_state state;
} piece;

typedef struct pieces {
    piece at[100];
    size_t count;
} pieces;

static void add_piece(const ds_mem_block *b, void *user) {
    pieces *p = user;
    if (p->count < 100)
        p->at[p->count++] = (piece){ b->ptr, b->size, b->state };
}

/* Mapped blocks in the order of addresses. */
static pieces layout(void) {
    pieces all = { .count = 0 }, mapped = { .count = 0 };
    ok(ds_mem_for_each_block(harness_device(0), add_piece, &all));
    for (size_t i = 0; i < all.count; i++)
        if (all.at[i].state != DS_BLOCK_UNMAPPED)
            mapped.at[mapped.count++] = all.at[i];
    return mapped;
}

static void expect_layout(size_t first, size_t second) {
    pieces l = layout();
    assert_int_equal(l.count, 2);
    assert_int_equal(l.at[0].size, first * MIB);
    assert_int_equal(l.at[1].size, second * MIB);
    assert_int_equal(l.at[0].state, DS_BLOCK_LIVE);
    assert_int_equal(l.at[1].state, DS_BLOCK_FREE);
    assert_ptr_equal(l.at[0].ptr + l.at[0].size, l.at[1].ptr);
}

static void test_a_segment_grows_by_pages_at_its_end(void **state) {
    (void)state;
    begin(PRESET_TORCH_GROWING);
    ds_stream s = stream(0);
    void *p = block(2 * MIB, s);
    expect_layout(2, 18);
    ok(ds_mem_free(p));
    void *q = block(32 * MIB, s);
    assert_ptr_equal(p, q);
    expect_layout(32, 8);
    ok(ds_mem_free(q));
    p = block(2 * MIB, s);
    expect_layout(2, 38);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 40 * MIB);
    assert_int_equal(stat(0, "segment.all.current"), 0);
    assert_int_equal(stat(0, "inactive_split.all.current"), 0);
    assert_int_equal(stat(0, "num_device_alloc"), 2);
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    assert_true(stat(0, "num_device_free") > 0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_pages_between_live_blocks_are_released_and_taken_again(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH_GROWING, PRESET_DEFAULT };
    for (int i = 0; i < 2; i++) {
        begin(presets[i]);
        ds_stream s = stream(0);
        looks *l = looks_create(1 << 19);
        char *p[4];
        for (uint32_t k = 0; k < 4; k++) {
            p[k] = block(40 * MIB, s);
            paint(p[k], 40 * MIB, k + 1, s);
        }
        size_t reserved = ds_mem_get_reserved(harness_device(0)), released = 0;
        ok(ds_mem_free(p[1]));
        ok(ds_mem_empty_cache(harness_device(0), &released));
        assert_true(released >= 36 * MIB); /* whole pages of a free block */
        assert_true(released <= 44 * MIB);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), reserved - released);
        for (uint32_t k = 0; k < 4; k++)
            if (k != 1)
                look(l, p[k], 40 * MIB, k + 1, s);
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        char *q = block(40 * MIB, s); /* into the hole */
        paint(q, 40 * MIB, 9, s);
        assert_ptr_equal(q, p[1]);
        assert_true(ds_mem_get_reserved(harness_device(0)) <= reserved);
        for (uint32_t k = 0; k < 4; k++) {
            look(l, k == 1 ? q : p[k], 40 * MIB, k == 1 ? 9 : k + 1, s);
            ok(ds_mem_free(k == 1 ? q : p[k]));
        }
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* The sizes of a program whose batches grow: plain segments strand what is too small, growing
   ones do not. */
static void test_growing_segments_reserve_little_more_than_is_used(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    size_t most = 0;
    for (size_t size = 3 * MIB; size < 40 * MIB; size += 3 * MIB) {
        void *p[4];
        for (int i = 0; i < 4; i++)
            p[i] = block(size, s);
        if (ds_mem_get_allocated(harness_device(0)) > most)
            most = ds_mem_get_allocated(harness_device(0));
        for (int i = 0; i < 4; i++)
            ok(ds_mem_free(p[i]));
    }
    size_t reserved = ds_mem_get_max_reserved(harness_device(0));
    if (reserved > most + most / 10)
        fail_msg("%zu bytes are reserved for %zu", reserved, most);
    assert_int_equal(ds_mem_get_max_allocated(harness_device(0)), most);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_contents_survive_any_growth(void **state) {
    (void)state;
    static const int presets[] = { PRESET_TORCH_GROWING, PRESET_DEFAULT };
    for (int i = 0; i < 2; i++) {
        enum { N = 40 };

        begin(presets[i]);
        ds_stream s = stream(0);
        looks *l = looks_create(1 << 19);
        void *p[N];
        for (uint32_t k = 0; k < N; k++) {
            p[k] = block((k + 1) * 150 * KIB, s);
            paint(p[k], (k + 1) * 150 * KIB, k, s);
            if (k % 3 == 2) {
                look(l, p[k - 1], k * 150 * KIB, k - 1, s);
                ok(ds_mem_free(p[k - 1]));
                p[k - 1] = NULL;
                ok(ds_mem_empty_cache(harness_device(0), NULL));
            }
        }
        for (uint32_t k = 0; k < N; k++)
            if (p[k]) {
                look(l, p[k], (k + 1) * 150 * KIB, k, s);
                ok(ds_mem_free(p[k]));
            }
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- giving back ---- */

static void test_the_cache_of_one_stream_is_emptied_by_itself(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0), t = stream(0), user = stream(0), idle = stream(0);
        gate g = { 0 };
        size_t released = 5, one, all;
        ds_graph graph;
        ok(ds_mem_empty_stream_cache(idle, &released)); /* which has nothing */
        assert_int_equal(released, 0);
        void *p = block(24 * MIB, s);
        one = ds_mem_get_reserved(harness_device(0));
        void *q = block(24 * MIB, t);
        all = ds_mem_get_reserved(harness_device(0));
        ok(ds_mem_free(q));
        gate_close(user, &g);
        ok(ds_mem_record_use(p, user));
        ok(ds_mem_free(p));
        ok(ds_capture_begin(idle, DS_CAPTURE_RELAXED));
        refused(ds_mem_empty_stream_cache(t, &released), DS_ERR_CAPTURE_UNSUPPORTED);
        ok(ds_capture_end(idle, &graph));
        ok(ds_graph_destroy(graph));
        /* a driver may wait for its device when it gets memory back */
        pthread_t thread = spawn(open_later, &g);
        ok(ds_mem_empty_stream_cache(t, &released));
        assert_int_equal(released, all - one);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), one);
        ok(ds_mem_empty_stream_cache(s, &released)); /* waits for who uses its block */
        join(thread);
        assert_int_equal(released, one);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        ok(ds_stream_destroy(user));
        ok(ds_stream_destroy(idle));
        refused(ds_mem_empty_stream_cache(s, &released), DS_ERR_INVALID_HANDLE);
        assert_int_equal(released, 0);
        finish();
    }
}

static void test_emptying_the_cache_gives_back_whole_segments_only(void **state) {
    (void)state;
    begin(PRESET_CUPY);
    ds_stream s = stream(0), t = stream(0);
    size_t released = 5;
    ok(ds_mem_empty_cache(harness_device(0), &released)); /* with nothing there */
    assert_int_equal(released, 0);
    char *p = block(4 * UNIT, s);
    ok(ds_mem_free(p));
    char *other = block(8 * UNIT, t);
    ok(ds_mem_free(other));
    ok(ds_mem_empty_cache(harness_device(0), &released));
    assert_int_equal(released, 12 * UNIT);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
    p = block(4 * UNIT, s);
    ok(ds_mem_free(p));
    char *head = block(2 * UNIT, s), *tail = block(2 * UNIT, s);
    ok(ds_mem_free(tail));
    ok(ds_mem_empty_cache(harness_device(0), &released));
    assert_int_equal(released, 0); /* the head stands in the way */
    char *q = block(2 * UNIT, s);
    assert_ptr_equal(q, tail);
    ok(ds_mem_free(q));
    ok(ds_mem_free(head));
    ok(ds_mem_empty_cache(harness_device(0), &released));
    assert_int_equal(released, 4 * UNIT);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_emptying_the_cache_waits_for_blocks_others_use(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), user = stream(0);
        looks *l = looks_create(1000);
        void *p = block(5000, s);
        paint(p, 5000, 71, s);
        ok(ds_stream_wait_stream(user, s));
        gate_close(user, &g);
        look(l, p, 5000, 71, user);
        ok(ds_mem_record_use(p, user));
        ok(ds_mem_free(p));
        pthread_t thread = spawn(open_later, &g);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
        assert_int_equal(stat(0, "active.all.current"), 0);
        assert_int_equal(stat(0, "num_sync_all_streams"), 1);
        join(thread);
        ok(ds_stream_synchronize(user));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

/* The block's own stream has work on it as well. */
static void test_memory_is_released_only_when_its_stream_is_done(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0);
        looks *l = looks_create(1 << 17);
        void *p = block(30 * MIB, s);
        gate_close(s, &g);
        paint(p, 30 * MIB, 72, s);
        look(l, p, 30 * MIB, 72, s);
        ok(ds_mem_free(p));
        pthread_t thread = spawn(open_later, &g);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        join(thread);
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_trimming_keeps_as_much_as_it_is_told(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_device d = harness_device(0);
        void *p[6];
        size_t released;
        for (int i = 0; i < 6; i++)
            p[i] = block(24 * MIB, s);
        size_t reserved = ds_mem_get_reserved(d);
        ok(ds_mem_trim(d, 0, &released)); /* all in use */
        size_t slack = released;
        for (int i = 1; i < 6; i++)
            ok(ds_mem_free(p[i]));
        ok(ds_mem_trim(d, SIZE_MAX, &released));
        assert_int_equal(released, 0);
        ok(ds_mem_trim(d, 100 * MIB, &released));
        assert_true(ds_mem_get_reserved(d) <= 100 * MIB);
        assert_true(ds_mem_get_reserved(d) >= 50 * MIB); /* and not all */
        assert_int_equal(ds_mem_get_reserved(d), reserved - slack - released);
        ok(ds_mem_trim(d, 0, &released));
        assert_true(ds_mem_get_reserved(d) >= 24 * MIB);
        assert_true(ds_mem_get_reserved(d) <= 44 * MIB);
        ok(ds_mem_free(p[0]));
        ok(ds_mem_trim(d, 0, NULL));
        assert_int_equal(ds_mem_get_reserved(d), 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- configuration ---- */

static void test_the_policy_of_a_device_can_be_read_and_set(void **state) {
    (void)state;
    ds_mem_config c = ds_mem_config_torch(), got;
    begin_with(&c);
    ok(ds_mem_get_config(harness_device(0), &got));
    assert_int_equal(got.large_segment_size, 20 * MIB);
    assert_int_equal(got.expandable_segments, 0);
    assert_int_equal(got.reuse, DS_REUSE_NEVER);
    ds_mem_config zeroed = { 0 };
    refused(ds_mem_configure(harness_device(0), &zeroed), DS_ERR_INVALID_VALUE);
    refused(ds_mem_configure(harness_device(0), NULL), DS_ERR_INVALID_VALUE);
    ds_mem_config bad = c;
    bad.garbage_collection_threshold = 1.5;
    refused(ds_mem_configure(harness_device(0), &bad), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "garbage_collection_threshold"));
    bad = c;
    bad.memory_fraction = -0.5;
    refused(ds_mem_configure(harness_device(0), &bad), DS_ERR_INVALID_VALUE);
    bad = c;
    bad.guard_bytes = 100;
    refused(ds_mem_configure(harness_device(0), &bad), DS_ERR_INVALID_VALUE);
    bad = c;
    bad.backend = 77;
    refused(ds_mem_configure(harness_device(0), &bad), DS_ERR_INVALID_VALUE);
    ok(ds_mem_get_config(harness_device(0), &got));
    assert_true(got.garbage_collection_threshold == c.garbage_collection_threshold);
    assert_true(got.memory_fraction == c.memory_fraction);
    refused(ds_mem_get_config((ds_device){ harness_device(0).type, 4711 }, &got),
            DS_ERR_DEVICE_RANGE);
    finish();
}

static void test_a_policy_applies_from_its_call_and_blocks_stay(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    looks *l = looks_create(100000);
    void *old = block(5 * MIB, s);
    paint(old, 5 * MIB, 81, s);
    size_t reserved = ds_mem_get_reserved(harness_device(0));
    assert_int_equal(reserved, 20 * MIB);
    ds_mem_config c = config_of(PRESET_CUPY);
    ok(ds_mem_configure(harness_device(0), &c));
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), reserved);
    c = config_of(PRESET_TORCH_GROWING);
    ok(ds_mem_configure(harness_device(0), &c));
    void *young = block(25 * MIB, s);
    paint(young, 25 * MIB, 82, s);
    c = config_of(PRESET_DEFAULT);
    ok(ds_mem_configure(harness_device(0), &c));
    look(l, old, 5 * MIB, 81, s);
    look(l, young, 25 * MIB, 82, s);
    ok(ds_mem_free(old));
    ok(ds_mem_free(young));
    ok(ds_stream_synchronize(s));
    assert_true(looks_right(l));
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_the_policy_is_a_text_and_a_wrong_one_changes_nothing(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_mem_config got;
    ok(ds_mem_configure_text("preset:torch, max_split_size_mb:64, "
                             "garbage_collection_threshold:0.8, expandable_segments:True"));
    for (int i = 0; i < harness_device_count() && i < 2; i++) {
        ok(ds_mem_get_config(harness_device(i), &got));
        assert_int_equal(got.max_split_size, 64 * MIB);
        assert_true(got.garbage_collection_threshold == 0.8);
        assert_int_equal(got.expandable_segments, 1);
        assert_int_equal(got.large_segment_size, 20 * MIB);
    }
    static const char *const wrong[] = { "max_split_size_mb:32,garbage_collection_treshold:0.5",
                                         "max_split_size_mb:",
                                         "max_split_size_mb",
                                         "expandable_segments:true",
                                         "roundup_power2_divisions:[64:8,",
                                         "garbage_collection_threshold:1.2",
                                         "max_split_size_mb:3",
                                         "limit:101%",
                                         "limit:-1",
                                         "limit:x",
                                         "preset:chainer",
                                         "reuse:sometimes" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        refused(ds_mem_configure_text(wrong[i]), DS_ERR_INVALID_VALUE);
        ok(ds_mem_get_config(harness_device(0), &got));
        assert_int_equal(got.max_split_size, 64 * MIB);
        assert_true(got.garbage_collection_threshold == 0.8);
    }
    refused(ds_mem_configure_text("max_split_size_mb:32,garbage_collection_treshold:0.5"),
            DS_ERR_INVALID_VALUE);
    if (!strstr(ds_error_get_last(), "22"))
        fail_msg("\"%s\" does not say that character 22 is wrong", ds_error_get_last());
    /* the other two as they were at first, the rest stays */
    ok(ds_mem_configure_text("roundup_power2_divisions:8"));
    ok(ds_mem_get_config(harness_device(0), &got));
    assert_true(got.max_split_size == SIZE_MAX);
    assert_true(got.garbage_collection_threshold == 0);
    assert_int_equal(got.expandable_segments, 1);
    ok(ds_mem_configure_text("preset:default"));
    finish();
}

/* Blocks that are free already lie in the order in which they were freed. */
static void test_best_fit_by_address_can_be_switched_on(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        static const int freed[] = { 1, 7, 3, 5 };
        ds_mem_config c = config_of(preset);
        void *p[9];
        c.best_fit_by_address = 0;
        begin_with(&c);
        ds_stream s = stream(0);
        for (int i = 0; i < 9; i++)
            p[i] = block(4096, s);
        for (int i = 0; i < 4; i++)
            ok(ds_mem_free(p[freed[i]]));
        c.best_fit_by_address = 1;
        ok(ds_mem_configure(harness_device(0), &c));
        for (int i = 1; i < 9; i += 2)
            assert_ptr_equal(block(4096, s), p[i]);
        for (int i = 0; i < 9; i++)
            ok(ds_mem_free(p[i]));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_the_environment_sets_the_policy_at_the_first_call(void **state) {
    (void)state;
    ds_mem_config got;
    size_t limit = 0;
    clear_memory();
    harness_shutdown();
    setenv("DEVSTREAM_ALLOC_CONF", "preset:torch,large_segment_size_mb:10,limit:123456789", 1);
    ds_stream s = stream(0);
    void *p = block(4 * MIB, s);
    unsetenv("DEVSTREAM_ALLOC_CONF");
    ok(ds_mem_get_config(harness_device(0), &got));
    assert_int_equal(got.large_segment_size, 10 * MIB);
    assert_int_equal(find(p).segment_size, 10 * MIB);
    ok(ds_mem_get_limit(harness_device(0), &limit));
    assert_int_equal(limit, 123456789);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
    harness_shutdown();
    setenv("DEVSTREAM_ALLOC_CONF", "limmit:5", 1); /* says so at the first use, and every time */
    s = stream(0);
    refused(ds_mem_alloc(100, s, &p), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_ALLOC_CONF"));
    refused(ds_mem_annotate(harness_device(0), "text"), DS_ERR_INVALID_VALUE);
    unsetenv("DEVSTREAM_ALLOC_CONF");
    ok(ds_stream_destroy(s));
    harness_shutdown();
}

/* ---- pools ---- */

static ds_pool pool_on(int device) {
    ds_pool pool;
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(device), .label = "a pool" },
                      &pool));
    return pool;
}

static void test_pools_have_numbers_of_their_own(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    uint64_t id[3][2], none[2] = { 1, 1 };
    ds_pool pool[3];
    for (int i = 0; i < 3; i++) {
        pool[i] = pool_on(0);
        ok(ds_pool_get_id(pool[i], id[i]));
        assert_true(id[i][0] == 0 && id[i][1] > 0);
        for (int k = 0; k < i; k++)
            assert_true(id[k][1] != id[i][1]);
    }
    ok(ds_pool_get_id((ds_pool){ 0 }, none));
    assert_true(none[0] == 0 && none[1] == 0);
    for (int i = 0; i < 3; i++)
        ok(ds_pool_destroy(pool[i]));
    refused(ds_pool_get_id(pool[0], none), DS_ERR_INVALID_HANDLE);
    refused(ds_pool_destroy(pool[0]), DS_ERR_INVALID_HANDLE);
    refused(ds_pool_push(pool[0]), DS_ERR_INVALID_HANDLE);
    refused(ds_pool_pop(), DS_ERR_ILLEGAL_STATE);
    finish();
}

static void test_a_pushed_pool_serves_the_thread_until_its_pop(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool outer = pool_on(0), inner = pool_on(0);
        int count = 0;
        ok(ds_pool_get_use_count(outer, &count));
        assert_int_equal(count, 1);
        ok(ds_pool_push(outer));
        ok(ds_pool_get_use_count(outer, &count));
        assert_int_equal(count, 2);
        void *a = block(128 * 8, s);
        ok(ds_pool_push(inner));
        void *b = block(1000, s);
        ok(ds_pool_push(outer)); /* again, inside */
        void *c = block(1000, s);
        ok(ds_pool_pop());
        ok(ds_pool_pop());
        void *d = block(1000, s);
        ok(ds_pool_pop());
        void *e = block(1000, s), *f;
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 1000, .stream = s, .pool = inner }, &f));
        assert_true(find(a).pool.id == outer.id && find(b).pool.id == inner.id &&
                    find(c).pool.id == outer.id);
        assert_true(find(d).pool.id == outer.id && find(e).pool.id == 0 &&
                    find(f).pool.id == inner.id);
        assert_int_equal(pool_stat(outer, "allocation.all.current"), 3);
        assert_int_equal(pool_stat(inner, "allocation.all.current"), 2);
        assert_int_equal(pool_stat(outer, "allocated_bytes.all.current"), 3 * 1024);
        assert_int_equal(stat(0, "allocation.all.current"), 6);
        ok(ds_mem_free(b)); /* its memory is for its pool only */
        void *g = block(1000, s);
        assert_ptr_not_equal(g, b);
        ok(ds_pool_push(inner));
        void *h = block(1000, s);
        ok(ds_pool_pop());
        assert_ptr_equal(h, b);
        ok(ds_mem_free(a));
        ok(ds_mem_free(c));
        ok(ds_mem_free(d));
        ok(ds_mem_free(e));
        ok(ds_mem_free(f));
        ok(ds_mem_free(g));
        ok(ds_mem_free(h));
        ok(ds_pool_destroy(outer));
        ok(ds_pool_destroy(inner));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void *allocate_without_a_pool(void *s) {
    void *p = block(1000, *(ds_stream *)s);
    if (find(p).pool.id != 0)
        abort();
    ok_thread(ds_mem_free(p));
    return NULL;
}

static void test_a_push_is_its_threads_own(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    ds_pool pool = pool_on(0);
    ok(ds_pool_push(pool));
    join(spawn(allocate_without_a_pool, &s));
    void *p = block(1000, s);
    assert_true(find(p).pool.id == pool.id);
    ok(ds_pool_pop());
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_pushed_pool_is_for_its_device_only(void **state) {
    (void)state;
    two_devices();
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0), t = stream(1);
    ds_pool pool = pool_on(0);
    void *q;
    ok(ds_pool_push(pool));
    void *p = block(1000, t);
    assert_true(find(p).pool.id == 0);
    ok(ds_pool_pop());
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 8, .stream = t, .pool = pool }, &q),
            DS_ERR_DEVICE_MISMATCH);
    assert_null(q);
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_memory_outlives_its_pool(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        looks *l = looks_create(100000);
        ds_pool pool = pool_on(0);
        void *p, *q;
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 5 * MIB, .stream = s, .pool = pool }, &p));
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 30 * MIB, .stream = s, .pool = pool }, &q));
        paint(p, 5 * MIB, 91, s);
        ok(ds_mem_free(q));
        size_t reserved = ds_mem_get_reserved(harness_device(0));
        ok(ds_pool_destroy(pool));
        assert_true(ds_mem_get_reserved(harness_device(0)) < reserved); /* what was free is back */
        assert_ptr_equal(find(p).ptr, p);
        look(l, p, 5 * MIB, 91, s);
        ok(ds_mem_free(p));
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_pool_segments_count_once_each(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_pool outer = pool_on(0), inner = pool_on(0);
    ok(ds_pool_push(outer));
    void *a = block(MIB, s);
    assert_int_equal(stat(0, "segment.all.current"), 1);
    ok(ds_pool_push(inner));
    void *b = block(MIB, s);
    assert_int_equal(stat(0, "segment.all.current"), 2);
    ok(ds_pool_pop());
    void *c = block(MIB, s); /* into the rest of the first */
    assert_int_equal(stat(0, "segment.all.current"), 2);
    ok(ds_pool_pop());
    assert_int_equal(pool_stat(outer, "segment.all.current"), 1);
    assert_int_equal(pool_stat(outer, "reserved_bytes.all.current"), (int64_t)(2 * MIB));
    size_t released;
    ok(ds_mem_free(b));
    ok(ds_pool_empty_cache(inner, &released));
    assert_int_equal(released, 2 * MIB);
    assert_int_equal(pool_stat(inner, "reserved_bytes.all.current"), 0);
    assert_int_equal(pool_stat(inner, "reserved_bytes.all.peak"), (int64_t)(2 * MIB));
    ok(ds_mem_free(a));
    ok(ds_mem_free(c));
    ok(ds_pool_destroy(inner));
    ok(ds_pool_destroy(outer));
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_pool_without_splitting_hands_out_whole_segments(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_pool pool;
    void *p[4];
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .no_split = 1 }, &pool));
    ok(ds_pool_push(pool));
    for (int i = 0; i < 4; i++) {
        p[i] = block(1000, s);
        assert_ptr_equal(find(p[i]).segment, p[i]);
        assert_int_equal(find(p[i]).size, find(p[i]).segment_size);
        assert_int_equal(pool_stat(pool, "segment.all.current"), i + 1);
    }
    ok(ds_mem_free(p[2]));
    p[2] = block(1000, s);
    assert_int_equal(pool_stat(pool, "segment.all.current"), 4);
    ok(ds_pool_pop());
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* Upstream functions that count; the memory is plain device memory. */
static struct {
    int allocs, frees, refuse;
    ptrdiff_t bytes;
    void *stream;
    int device;
} up;

static void *up_alloc(ptrdiff_t size, int device, void *s) {
    void *p = NULL;
    up.allocs++;
    up.stream = s;
    up.device = device;
    if (up.refuse || ds_device_alloc(harness_device(device), (size_t)size, &p) != DS_OK)
        return NULL;
    up.bytes += size;
    return p;
}

static void up_free(void *p, ptrdiff_t size, int device, void *s) {
    (void)device;
    (void)s;
    up.frees++;
    up.bytes -= size;
    DS_IGNORE(ds_device_free(p));
}

static void test_a_pool_takes_its_segments_from_two_functions(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        memset(&up, 0, sizeof up);
        ds_stream s = stream(0);
        ds_stream_native native;
        looks *l = looks_create(10000);
        ds_pool pool;
        ds_pool_desc desc = { .device = harness_device(0),
                              .alloc_fn = up_alloc,
                              .free_fn = up_free };
        ds_pool_desc half = desc;
        half.free_fn = NULL;
        refused(ds_pool_create(&half, &pool), DS_ERR_INVALID_VALUE);
        ok(ds_pool_create(&desc, &pool));
        ok(ds_stream_export(s, &native));
        ok(ds_pool_push(pool));
        void *p = block(MIB, s), *q = block(MIB, s);
        assert_true(up.allocs >= 1);
        assert_int_equal(up.device, harness_device(0).index);
        assert_true((int64_t)up.bytes == pool_stat(pool, "reserved_bytes.all.current"));
        if (preset == PRESET_TORCH)
            assert_int_equal(up.allocs, 1);
        paint(p, MIB, 1, s);
        paint(q, MIB, 2, s);
        look(l, p, MIB, 1, s);
        look(l, q, MIB, 2, s);
        ok(ds_mem_free(p));
        p = block(MIB, s);
        assert_true(up.frees == 0);
        up.refuse = 1;
        void *none = &up;
        refused(ds_mem_alloc(200 * MIB, s, &none), DS_ERR_OUT_OF_MEMORY);
        assert_null(none);
        up.refuse = 0;
        ok(ds_pool_pop());
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(pool));
        assert_ptr_equal(find(q).ptr, q); /* the functions are needed as long as their memory */
        ok(ds_mem_free(q));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(up.bytes, 0);
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void *own_pool(void *arg) {
    ds_pool pool;
    (void)arg;
    ds_stream s = harness_stream(0, 0);
    if (ds_pool_create(&(ds_pool_desc){ .device = harness_device(0) }, &pool) != DS_OK)
        abort();
    for (int i = 0; i < 100; i++) {
        ok_thread(ds_pool_push(pool));
        void *p = block((size_t)i * 5000 + 1, s), *q = block(100, s);
        if (find(p).pool.id != pool.id || find(q).pool.id != pool.id)
            abort();
        ok_thread(ds_pool_pop());
        ok_thread(ds_mem_free(p));
        if (i % 10 == 0)
            ok_thread(ds_pool_empty_cache(pool, NULL));
        if (i % 10 == 5)
            ok_thread(ds_mem_empty_cache(harness_device(0), NULL));
        ok_thread(ds_mem_free(q));
    }
    ok_thread(ds_pool_destroy(pool));
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_threads_use_pools_and_empty_the_cache_at_once(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        pthread_t thread[4];
        ds_mem_config c = config_of(preset);
        c.debug = 1;
        begin_with(&c);
        for (int i = 0; i < 4; i++)
            thread[i] = spawn(own_pool, NULL);
        for (int i = 0; i < 4; i++)
            join(thread[i]);
        check_invariants(0);
        finish();
    }
}

static void test_a_block_freed_in_a_pushed_pool_is_free_at_once(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0), user = stream(0);
        ds_pool pool = pool_on(0);
        void *outside = block(3000, s);
        ok(ds_mem_record_stream(outside, user));
        ok(ds_pool_push(pool));
        ok(ds_mem_free(outside)); /* a pool in use is no capture */
        void *p = block(3000, s);
        ok(ds_mem_record_stream(p, user));
        ok(ds_mem_free(p));
        ok(ds_device_synchronize(harness_device(0)));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        ok(ds_pool_empty_cache(pool, NULL));
        assert_int_equal(stat(0, "active.all.current"), 0);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
        ok(ds_pool_pop());
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

static void test_captures_share_a_pool_when_they_are_told_to(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        ds_pool pool = pool_on(0);
        ds_graph g[2];
        ds_graph_exec exec[2];
        uint64_t *out[2] = { word(0), word(0) };
        int64_t reserved = 0;
        int owners = 0;
        harness_watch(s);
        for (uint64_t i = 0; i < 2; i++) {
            ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
            ok(ds_capture_set_pool(s, pool));
            uint64_t *p = block(3 * MIB, s);
            assert_true(find(p).pool.id == pool.id);
            ok(ds_fill(p, 0, 4, 2, s));
            fold(s, p, i + 1);
            ok(ds_copy_with(out[i], p, 8, DS_COPY_HOST_STABLE, s));
            ok(ds_mem_free(p));
            ok(ds_capture_end(s, &g[i]));
            exec[i] = instantiate_graph(g[i]);
            /* the same memory */
            if (i)
                assert_int_equal(pool_stat(pool, "reserved_bytes.all.current"), reserved);
            reserved = pool_stat(pool, "reserved_bytes.all.current");
        }
        ok(ds_pool_get_use_count(pool, &owners));
        assert_true(owners >= 3);
        for (int round = 0; round < 3; round++)
            for (uint64_t i = 0; i < 2; i++) {
                ok(ds_graph_launch(exec[i], s));
                ok(ds_stream_synchronize(s));
                assert_true(*out[i] == i + 1);
                *out[i] = 0;
            }
        ok(ds_pool_destroy(pool)); /* its memory stays with the graphs */
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        for (uint64_t i = 0; i < 2; i++) {
            ok(ds_graph_launch(exec[i], s));
            ok(ds_stream_synchronize(s));
            assert_true(*out[i] == i + 1);
            ok(ds_graph_exec_destroy(exec[i]));
            ok(ds_graph_destroy(g[i]));
        }
        ok(ds_stream_destroy(s));
        await_graphs_memory(0);
        finish();
    }
}

/* ---- to the byte ---- */

static void test_a_free_block_serves_every_smaller_request(void **state) {
    (void)state;
    begin(PRESET_CUPY); /* no other memory is there */
    ds_stream s = stream(0);
    for (size_t size = UNIT; size <= 64 * MIB; size *= 2) {
        void *p = block(size, s);
        ok(ds_mem_free(p));
        for (size_t less = UNIT; less <= size; less *= 2) {
            void *q = block(less, s);
            assert_ptr_equal(q, p);
            assert_int_equal(size_of(q), less);
            ok(ds_mem_free(q));
        }
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), size);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
    }
    ok(ds_stream_destroy(s));
    finish();
}

static void test_the_smallest_rest_is_kept(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        char *p = block(2 * UNIT, s), *beside = block(UNIT, s);
        ok(ds_mem_free(p));
        char *q = block(UNIT, s), *r = block(UNIT, s);
        assert_ptr_equal(q, p);
        assert_ptr_equal(r, p + UNIT);
        assert_int_equal(size_of(q), UNIT);
        ok(ds_mem_free(beside));
        ok(ds_mem_free(q));
        ok(ds_mem_free(r));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_the_maximal_split_size_counts_to_the_byte(void **state) {
    (void)state;
    ds_mem_config c = torch_with("max_split_size_mb:20");
    begin_with(&c);
    ds_stream s = stream(0);
    void *p = block(20 * MIB, s);
    assert_int_equal(stat(0, "oversize_allocations.current"), 1);
    assert_int_equal(stat(0, "oversize_segments.current"), 1);
    ok(ds_mem_free(p));
    void *q = block(15 * MIB, s); /* smaller, so it gets none of that size */
    assert_ptr_not_equal(q, p);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), (20 + 16) * MIB);
    /* now there are two of that size, and one of them is split for it */
    void *r = block(5 * MIB, s);
    assert_int_equal(size_of(r), 5 * MIB);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), (20 + 16 + 20) * MIB);
    void *t = block(20 * MIB, s); /* the other one */
    assert_int_equal(size_of(t), 20 * MIB);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), (20 + 16 + 20) * MIB);
    p = block(30 * MIB, s);
    ok(ds_mem_free(p));
    void *u = block(20 * MIB, s); /* blocks of that size are not split */
    assert_ptr_equal(u, p);
    assert_int_equal(size_of(u), 30 * MIB);
    ok(ds_mem_free(t));
    assert_int_equal(stat(0, "oversize_allocations.current"), 1);
    ok(ds_mem_set_limit(harness_device(0), ds_mem_get_reserved(harness_device(0))));
    p = block(16 * MIB, s); /* the one of that size makes room, before everything does */
    assert_int_equal(stat(0, "num_alloc_retries"), 0);
    ok(ds_mem_free(u));
    assert_int_equal(stat(0, "oversize_allocations.current"), 0);
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_stream_destroy(s));
    finish();
}

/* What is made for one request is not split for the next one. */
static void test_an_oversize_block_is_split_for_nobody_else(void **state) {
    (void)state;
    for (int quick = 0; quick < 2; quick++) {
        ds_mem_config c = config_of(PRESET_PLAIN);
        if (quick) {
            c.debug = 0;
            harness_restart(NULL);
        }
        c.segment_growth = 0;
        c.max_split_size = 8 * MIB;
        begin_with(&c);
        ds_stream s = stream(0);
        void *p = block(8 * MIB, s);
        ok(ds_mem_free(p));
        void *q = block(5 * MIB, s);
        assert_ptr_not_equal(q, p);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* A block that could still grow is kept for what needs it. */
static void test_a_block_in_front_of_a_hole_is_the_last_to_be_used(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    char *p = block(3 * MIB, s), *q = block(3 * MIB, s);
    ok(ds_mem_free(p)); /* 2 MiB are free behind q, at the end */
    char *r = block(2 * MIB, s);
    assert_ptr_equal(r, p);
    ok(ds_mem_free(q));
    ok(ds_mem_free(r));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    static const size_t sizes[] = { 10, 22, 12, 20, 8 };
    char *part[5];
    for (int i = 0; i < 5; i++) {
        part[i] = block(sizes[i] * MIB, s);
        if (i > 0)
            assert_ptr_equal(part[i], part[i - 1] + sizes[i - 1] * MIB);
    }
    for (int i = 3; i > 0; i -= 2) { /* 4 MiB stay in front of a hole, then 6 MiB */
        ok(ds_mem_free(part[i]));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
    }
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), (72 - 32) * MIB);
    p = block(3 * MIB, s); /* among them the smallest that is large enough */
    assert_ptr_equal(p, part[3]);
    ok(ds_mem_free(p));
    for (int i = 0; i < 5; i += 2)
        ok(ds_mem_free(part[i]));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_garbage_is_large_blocks_only(void **state) {
    (void)state;
    ds_mem_config c = torch_with("garbage_collection_threshold:0.5");
    c.limit = 100 * MIB;
    begin_with(&c);
    ds_stream s = stream(0);
    void *large = block(22 * MIB, s), *old = block(5000, s);
    ok(ds_mem_free(old));
    ok(ds_mem_free(large));
    for (int i = 0; i < 10; i++) {
        large = block(22 * MIB, s);
        ok(ds_mem_free(large));
    }
    void *kept = block(40 * MIB, s), *more = block(24 * MIB, s);
    assert_int_equal(stat(0, "segment.small_pool.current"), 1);
    assert_ptr_equal(block(5000, s), old);
    ok(ds_mem_free(old));
    ok(ds_mem_free(kept));
    ok(ds_mem_free(more));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_garbage_is_collected_from_all_streams(void **state) {
    (void)state;
    ds_mem_config c = torch_with("garbage_collection_threshold:0.5");
    c.limit = 400 * MIB;
    begin_with(&c);
    ds_stream s = stream(0), t = stream(0), ended = stream(0);
    void *p[4], *q[2];
    for (int i = 0; i < 4; i++)
        p[i] = block(40 * MIB, i < 3 ? s : ended);
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_stream_destroy(ended));
    q[0] = block(42 * MIB, t);
    assert_int_equal(stat(0, "num_device_free"), 0);
    /* 2 MiB too many are reserved, and all four are as old as their average */
    q[1] = block(42 * MIB, t);
    assert_int_equal(stat(0, "num_device_free"), 4);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 84 * MIB);
    assert_int_equal(stat(0, "num_alloc_retries"), 0);
    ok(ds_mem_free(q[0]));
    ok(ds_mem_free(q[1]));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_the_age_of_garbage_counts_large_requests_on_all_streams(void **state) {
    (void)state;
    ds_mem_config c = torch_with("garbage_collection_threshold:0.5");
    c.limit = 400 * MIB;
    begin_with(&c);
    ds_stream s = stream(0), t = stream(0);
    void *old = block(64 * MIB, s), *middle = block(62 * MIB, t), *young = block(60 * MIB, t),
         *between[2];
    ok(ds_mem_free(old));
    for (int i = 0; i < 50; i++) {
        void *small = block(1000, t);
        ok(ds_mem_free(small)); /* of another kind, so nothing is the older for it */
    }
    between[0] = block(2 * MIB, t);
    ok(ds_mem_free(middle));
    between[1] = block(2 * MIB, t);
    ok(ds_mem_free(young));
    assert_int_equal(stat(0, "num_device_free"), 0);
    /* 8 MiB too many are reserved. The ages are 2, 1 and 0: two of them are average, or more */
    void *p = block(70 * MIB, t);
    assert_int_equal(stat(0, "num_device_free"), 2);
    int64_t calls = stat(0, "num_device_alloc");
    young = block(60 * MIB, t);
    assert_int_equal(stat(0, "num_device_alloc"), calls);
    ok(ds_mem_free(between[0]));
    ok(ds_mem_free(between[1]));
    ok(ds_mem_free(p));
    ok(ds_mem_free(young));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_emptying_the_cache_waits_for_each_stream_of_a_block(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int held = 0; held < 2; held++) {
            gate g = { 0 };
            begin(preset);
            ds_stream s = stream(0), user[2] = { stream(0), stream(0) };
            looks *l = looks_create(1000);
            void *p = block(5000, s);
            paint(p, 5000, 73, s);
            for (int i = 0; i < 2; i++) {
                ok(ds_stream_wait_stream(user[i], s));
                if (i == held)
                    gate_close(user[i], &g);
                look(l, p, 5000, 73, user[i]);
                ok(ds_mem_record_use(p, user[i]));
            }
            ok(ds_mem_free(p));
            pthread_t thread = spawn(open_later, &g);
            ok(ds_mem_empty_cache(harness_device(0), NULL));
            assert_true(looks_right(l)); /* what was to be read was read */
            assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
            join(thread);
            looks_destroy(l);
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(user[0]));
            ok(ds_stream_destroy(user[1]));
            finish();
        }
}

static void test_a_trim_leaves_the_low_pages(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    char *p = block(64 * MIB, s);
    ok(ds_mem_free(p));
    ok(ds_mem_trim(harness_device(0), 24 * MIB, NULL));
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 24 * MIB);
    char *q = block(24 * MIB, s);
    assert_ptr_equal(q, p);
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 24 * MIB);
    ok(ds_mem_free(q));
    ok(ds_stream_destroy(s));
    finish();
}

/* Address space that is empty has the pages of the policy that it was reserved under. */
static void test_pages_are_those_of_the_policy_that_counts(void **state) {
    (void)state;
    static const int order[] = { PRESET_DEFAULT, PRESET_TORCH_GROWING, PRESET_DEFAULT };
    for (int i = 0; i < 3; i++) {
        begin(order[i]);
        ds_stream s = stream(0);
        void *p = block(3 * MIB, s);
        assert_int_equal(ds_mem_get_reserved(harness_device(0)),
                         (order[i] == PRESET_DEFAULT ? 8 : 20) * MIB);
        ok(ds_mem_free(p));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_the_backend_is_not_changed_under_pending_blocks(void **state) {
    (void)state;
    gate g = { 0 };
    begin(PRESET_DEFAULT);
    ds_mem_config c = config_of(PRESET_DEFAULT);
    ds_stream s = stream(0), other = stream(0);
    void *p = block(5000, s);
    gate_close(other, &g);
    ok(ds_mem_record_use(p, other));
    ok(ds_mem_free(p));
    c.backend = DS_MEM_UNCACHED;
    refused(ds_mem_configure(harness_device(0), &c), DS_ERR_ILLEGAL_STATE);
    gate_open(&g);
    ok(ds_stream_synchronize(other));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_mem_configure(harness_device(0), &c));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
}

/* ---- what goes to another stream whole ---- */

static void test_a_small_request_spares_large_pending_blocks_if_it_can(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int short_of_memory = 0; short_of_memory < 2; short_of_memory++) {
            gate g = { 0 };
            ds_graph graph;
            begin(preset);
            ds_stream s = stream(0), t = stream(0);
            void *p = block(80 * MIB, s), *q; /* whole pages of every policy */
            gate_close(t, &g);
            ok(ds_mem_record_use(p, t));
            ok(ds_mem_free(p));
            ok(ds_stream_destroy(s));
            ds_stream u = stream(0), v = stream(0);
            if (short_of_memory) { /* and nothing can be waited for */
                ok(ds_mem_set_limit(harness_device(0), ds_mem_get_reserved(harness_device(0))));
                ok(ds_capture_begin(v, DS_CAPTURE_RELAXED));
            }
            q = block(2 * MIB, u);
            if (short_of_memory)
                assert_ptr_equal(q, p);
            else
                assert_true(size_of(q) < 4 * MIB);
            ok(ds_mem_free(q));
            if (short_of_memory) {
                ok(ds_capture_end(v, &graph));
                ok(ds_graph_destroy(graph));
            }
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            ok(ds_mem_set_limit(harness_device(0), 0));
            ok(ds_stream_destroy(t));
            ok(ds_stream_destroy(u));
            ok(ds_stream_destroy(v));
            finish();
        }
}

static void test_what_lies_around_an_aligned_block_is_free(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        void *front = block(MIB + 512, s), *p = NULL;
        ok(ds_mem_alloc_with(
            &(ds_mem_request){ .size = 3 * MIB, .stream = s, .alignment = 2 * MIB }, &p));
        assert_int_equal((uintptr_t)p % (2 * MIB), 0);
        assert_true(size_of(p) <= 4 * MIB && size_of(p) >= 3 * MIB);
        ok(ds_mem_validate(harness_device(0)));
        check_invariants(0);
        ok(ds_mem_free(p));
        ok(ds_mem_free(front));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_pool_that_does_not_split_has_one_alignment(void **state) {
    (void)state;
    ds_pool pool;
    void *p = NULL;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .no_split = 1 }, &pool));
    refused(
        ds_mem_alloc_with(
            &(ds_mem_request){ .size = 1000, .stream = s, .pool = pool, .alignment = 1 << 16 }, &p),
        DS_ERR_INVALID_VALUE);
    assert_null(p);
    ok(ds_mem_alloc_with(
        &(ds_mem_request){ .size = 1000, .stream = s, .pool = pool, .alignment = 512 }, &p));
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- changes beside allocations ---- */

static _Atomic int changes_over;

static void *allocate_beside(void *arg) {
    ds_stream s = stream(0);
    uint32_t x = (uint32_t)(uintptr_t)arg;
    while (!changes_over) {
        void *p[8];
        int n = 0;
        for (; n < 8; n++) {
            x = x * 1664525u + 1013904223u;
            if (ds_mem_alloc_with(&(ds_mem_request){ .size = x % (x & 1 ? 6 * MIB : 9000) + 1,
                                                     .stream = s,
                                                     .alignment = x & 2 ? 4096 : 0 },
                                  &p[n]) < 0)
                break;
        }
        while (n > 0)
            ok_thread(ds_mem_free(p[--n]));
    }
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void *set_fractions(void *arg) {
    for (int i = 0; i <= 300; i++)
        ok_thread(ds_mem_set_fraction(harness_device(0), i % 2 ? 0.5 : 0.25));
    return arg;
}

static void test_limits_and_policies_may_change_beside_allocations(void **state) {
    pthread_t threads[3];
    ds_mem_config c;
    double fraction = 0;
    (void)state;
    begin(PRESET_DEFAULT);
    changes_over = 0;
    for (uintptr_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_beside, (void *)i), 0);
    assert_int_equal(pthread_create(&threads[2], NULL, set_fractions, NULL), 0);
    /* neither loses the other's */
    for (size_t i = 0; i <= 300; i++)
        ok(ds_mem_set_limit(harness_device(0), (i % 3 + 40) * MIB));
    pthread_join(threads[2], NULL);
    ok(ds_mem_get_config(harness_device(0), &c));
    ok(ds_mem_get_fraction(harness_device(0), &fraction));
    assert_true(fraction == 0.25 && c.memory_fraction == 0.25);
    assert_int_equal(c.limit, 40 * MIB);
    for (int i = 0; i < 60; i++) {
        c = config_of(i % PRESETS);
        c.debug = i % 7 == 0 ? 1 : 0;
        c.limit = 200 * MIB;
        if (i % 4 == 0)
            c.max_split_size = 32 * MIB;
        if (i % 5 == 0)
            memset(c.roundup_power2_divisions, 3, sizeof c.roundup_power2_divisions);
        ok(ds_mem_configure(harness_device(0), &c));
        harness_nap();
    }
    changes_over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ok(ds_mem_validate(harness_device(0)));
    check_invariants(0);
    finish();
}

const struct CMUnitTest tests_alloc_policy[] = {
    DS_TEST(test_sizes_are_rounded_up_to_512, "cupy: test_round_size"),
    DS_TEST(test_segments_have_torchs_sizes_under_its_preset,
            "torch: test_graph_memory_stats sizes"),
    DS_TEST(test_segments_are_as_large_as_the_request_under_cupys_preset,
            "cupy: test_alloc, test_total_bytes"),
    DS_TEST(test_a_freed_block_serves_two_halves_and_merges_again,
            "cupy: test_split, test_merge, test_alloc_split, test_free_merge"),
    DS_TEST(test_the_smallest_fitting_lowest_block_is_taken, "torch: best fit"),
    DS_TEST(test_a_large_block_keeps_a_rest_of_up_to_one_mib, "torch: should_split"),
    DS_TEST(test_small_and_large_requests_do_not_share_segments, "torch: pools"),
    DS_TEST(test_split_statistics_follow_the_blocks, "torch: inactive_split"),
    DS_TEST(test_sizes_are_rounded_to_divisions_of_powers_of_two, "torch: test_allocator_settings"),
    DS_TEST(test_blocks_of_the_maximal_split_size_serve_their_kind_only, "torch: max_split_size"),
    DS_TEST(test_oversize_blocks_make_room_before_the_cache_is_emptied,
            "torch: release_available_cached_blocks"),
    DS_TEST(test_the_smallest_sufficient_oversize_block_makes_room,
            "torch: release_available_cached_blocks"),
    DS_TEST(test_unused_segments_are_given_back_by_age_above_a_threshold,
            "torch: garbage_collection_threshold"),
    DS_TEST(test_a_segment_grows_by_pages_at_its_end, "torch 3.11"),
    DS_TEST(test_pages_between_live_blocks_are_released_and_taken_again,
            "torch: expandable_segments"),
    DS_TEST(test_growing_segments_reserve_little_more_than_is_used, "torch: expandable_segments"),
    DS_TEST(test_contents_survive_any_growth, "torch: expandable_segments"),
    DS_TEST(test_emptying_the_cache_gives_back_whole_segments_only,
            "cupy: test_free_all_blocks, _split, paddle: TestEmptyCache"),
    DS_TEST(test_the_cache_of_one_stream_is_emptied_by_itself,
            "cupy: test_free_all_blocks_stream, _all_streams"),
    DS_TEST(test_emptying_the_cache_waits_for_blocks_others_use, "torch: release_cached_blocks"),
    DS_TEST(test_memory_is_released_only_when_its_stream_is_done, "alloc"),
    DS_TEST(test_trimming_keeps_as_much_as_it_is_told, "alloc"),
    DS_TEST(test_the_policy_of_a_device_can_be_read_and_set, "alloc"),
    DS_TEST(test_a_policy_applies_from_its_call_and_blocks_stay, "alloc"),
    DS_TEST(test_the_policy_is_a_text_and_a_wrong_one_changes_nothing,
            "torch: test_allocator_settings, cupy: test_parse_limit_string"),
    DS_TEST(test_best_fit_by_address_can_be_switched_on, "alloc"),
    DS_TEST(test_the_environment_sets_the_policy_at_the_first_call,
            "cupy: TestParseMempoolLimitEnvVar, peers e.4 4"),
    DS_TEST(test_pools_have_numbers_of_their_own, "torch: test_mempool_id"),
    DS_TEST(test_a_pushed_pool_serves_the_thread_until_its_pop,
            "cupy: TestAllocator, torch: test_nested_mempool"),
    DS_TEST(test_a_push_is_its_threads_own,
            "cupy: test_allocator_thread_local, torch: test_mempool_ctx_multithread"),
    DS_TEST(test_a_pushed_pool_is_for_its_device_only, "alloc"),
    DS_TEST(test_memory_outlives_its_pool,
            "cupy: test_thread_local_valid, torch: test_tensor_delete_after_allocator_delete"),
    DS_TEST(test_pool_segments_count_once_each,
            "torch: test_nested_mempool, test_reserved_bytes_by_private_pools, "
            "test_mempool_empty_cache"),
    DS_TEST(test_a_pool_without_splitting_hands_out_whole_segments, "torch: test_mempool_no_split"),
    DS_TEST(test_a_pool_takes_its_segments_from_two_functions,
            "torch: test_mempool_with_allocator, cupy: TestPythonFunctionAllocator"),
    DS_TEST(test_threads_use_pools_and_empty_the_cache_at_once,
            "torch: test_mempool_emptycache_multithread"),
    DS_TEST(test_a_block_freed_in_a_pushed_pool_is_free_at_once,
            "torch: test_mempool_block_free_not_deferred"),
    DS_TEST(test_captures_share_a_pool_when_they_are_told_to,
            "torch: test_graph_two_successive, peers b.8 e.4 10"),
    DS_TEST(test_a_free_block_serves_every_smaller_request, "alloc"),
    DS_TEST(test_the_smallest_rest_is_kept, "alloc"),
    DS_TEST(test_the_maximal_split_size_counts_to_the_byte, "torch: test_max_split_expandable"),
    DS_TEST(test_an_oversize_block_is_split_for_nobody_else, "alloc"),
    DS_TEST(test_a_block_in_front_of_a_hole_is_the_last_to_be_used, "alloc"),
    DS_TEST(test_garbage_is_large_blocks_only, "torch: test_garbage_collect_expandable"),
    DS_TEST(test_garbage_is_collected_from_all_streams, "torch: garbage_collection_threshold"),
    DS_TEST(test_the_age_of_garbage_counts_large_requests_on_all_streams,
            "torch: garbage_collection_threshold"),
    DS_TEST(test_emptying_the_cache_waits_for_each_stream_of_a_block, "alloc"),
    DS_TEST(test_a_trim_leaves_the_low_pages, "alloc"),
    DS_TEST(test_pages_are_those_of_the_policy_that_counts, "alloc"),
    DS_TEST(test_the_backend_is_not_changed_under_pending_blocks, "alloc"),
    DS_TEST(test_a_small_request_spares_large_pending_blocks_if_it_can, "alloc"),
    DS_TEST(test_what_lies_around_an_aligned_block_is_free, "alloc"),
    DS_TEST(test_a_pool_that_does_not_split_has_one_alignment, "alloc"),
    DS_TEST(test_limits_and_policies_may_change_beside_allocations, "alloc"),
};
const size_t tests_alloc_policy_count = sizeof tests_alloc_policy / sizeof *tests_alloc_policy;
