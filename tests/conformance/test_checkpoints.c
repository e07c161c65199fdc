/* Checkpoints of pools: the live blocks of an earlier moment come back, at their addresses,
   whatever was done since. */
#include "alloc.h"
#include "layout.h"

enum { MOST = 64 };

static ds_pool pool_made(void) {
    ds_pool_desc d = { .device = harness_device(0), .label = "checkpoints" };
    ds_pool pool = { 0 };
    ok(ds_pool_create(&d, &pool));
    return pool;
}

static ds_stream stream_made(void) {
    ds_stream s = { 0 };
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));
    return s;
}

#define refused_saying(call, code, words)                   \
    do {                                                    \
        refused(call, code);                                \
        if (!strstr(ds_error_get_last(), words))            \
            fail_msg("%s: %s", #call, ds_error_get_last()); \
    } while (0)

/* What a restore said. */
typedef struct changes {
    size_t freed, live;
    void *freed_at[MOST], *live_at[MOST];
} changes;

static void on_change(const ds_mem_block *b, void *user) {
    changes *c = user;
    assert_true(b->state == DS_BLOCK_FREE || b->state == DS_BLOCK_LIVE);
    assert_int_equal(ds_mem_validate(b->device), DS_OK); /* nothing is locked */
    if (b->state == DS_BLOCK_FREE) {
        assert_int_equal(c->live, 0);
        c->freed_at[c->freed++] = b->ptr;
    } else {
        c->live_at[c->live++] = b->ptr;
    }
}

static changes restore(ds_pool pool, const ds_pool_checkpoint *c) {
    changes seen = { 0 };
    ok(ds_pool_restore(pool, c, on_change, &seen));
    ok(ds_mem_validate(harness_device(0)));
    check_invariants(0);
    return seen;
}

static ds_pool_checkpoint *save(ds_pool pool) {
    ds_pool_checkpoint *c = NULL;
    ok(ds_pool_save(pool, &c));
    assert_non_null(c);
    return c;
}

static void end_pool(ds_pool pool, ds_stream s, ds_pool_checkpoint *c) {
    ds_pool_checkpoint_destroy(c);
    ok(ds_stream_destroy(s));
    ok(ds_pool_destroy(pool));
    finish();
}

#define EACH_PRESET(pool, s)                                                    \
    for (int preset = 0; preset < PRESETS; preset++)                            \
        for (ds_pool pool = (begin(preset), pool_made()); pool.id; pool.id = 0) \
            for (ds_stream s = stream_made(); s.id; s.id = 0)

static void test_a_block_of_a_checkpoint_is_live_again(void **state) {
    (void)state;
    EACH_PRESET(pool, s) {
        ds_mem_label_push("mine");
        void *p = block_in(pool, 3 * MIB, s);
        ds_mem_label_pop();
        ds_mem_block was = find(p);
        int64_t requested = pool_stat(pool, "requested_bytes.all.current"),
                allocated = pool_stat(pool, "allocated_bytes.all.current");
        ds_pool_checkpoint *c = save(pool);
        ok(ds_mem_free(p));
        ok(ds_pool_check_live(pool, NULL, 0));
        changes seen = restore(pool, c);
        assert_int_equal(seen.freed, 0);
        assert_int_equal(seen.live, 1);
        assert_ptr_equal(seen.live_at[0], p);
        ok(ds_pool_check_live(pool, &p, 1));
        ds_mem_block is = find(p);
        assert_int_equal(is.size, was.size);
        assert_int_equal(is.requested, 3 * MIB);
        assert_string_equal(is.label, "mine");
        assert_int_equal(is.site.line, was.site.line);
        assert_true(is.pool.id == pool.id && is.stream == was.stream);
        assert_int_equal(pool_stat(pool, "requested_bytes.all.current"), requested);
        assert_int_equal(pool_stat(pool, "allocated_bytes.all.current"), allocated);
        seen = restore(pool, c); /* nothing is to be done */
        assert_int_equal(seen.freed + seen.live, 0);
        ok(ds_mem_free(p));
        end_pool(pool, s, c);
    }
}

/* Some blocks of many are freed before or after the checkpoint, and others made: what is
   restored is what was. */
static void restored_among(int first, int last, int free_after) {
    EACH_PRESET(pool, s) {
        void *p[12], *live[12];
        size_t n = 0;
        for (int i = 0; i < 12; i++)
            p[i] = block_in(pool, ((size_t)i % 3 + 1) * 700 * KIB, s);
        for (int i = 0; i < 12; i++) {
            if (i < first || i > last)
                ok(ds_mem_free(p[i]));
            else
                live[n++] = p[i];
        }
        ds_pool_checkpoint *c = save(pool);
        ok(ds_pool_check_live(pool, live, n));
        if (free_after)
            for (size_t i = 0; i < n; i++)
                ok(ds_mem_free(live[i]));
        void *others[3] = { block_in(pool, 900 * KIB, s), block_in(pool, 2 * MIB, s),
                            block_in(pool, 512, s) };
        changes seen = restore(pool, c);
        assert_int_equal(seen.live, free_after ? n - (seen.live < n) * (n - seen.live) : 0);
        assert_true(seen.freed + n >= seen.live && seen.freed <= 3);
        if (!free_after)
            assert_int_equal(seen.freed, 3);
        ok(ds_pool_check_live(pool, live, n));
        /* those that do not coincide with one that is live again are gone */
        for (int i = 0; i < 3; i++) {
            int same = 0;
            for (size_t k = 0; k < n; k++)
                same |= live[k] == others[i];
            if (!same)
                refused(ds_mem_free(others[i]), DS_ERR_INVALID_VALUE);
        }
        for (size_t i = 0; i < n; i++)
            paint(live[i], find(live[i]).requested, (uint32_t)i, s);
        ok(ds_stream_synchronize(s));
        for (size_t i = 0; i < n; i++)
            ok(ds_mem_free(live[i]));
        end_pool(pool, s, c);
    }
}

static void test_blocks_in_the_middle_of_a_segment_come_back(void **state) {
    (void)state;
    restored_among(4, 4, 1);
}

static void test_several_blocks_in_the_middle_come_back(void **state) {
    (void)state;
    restored_among(3, 8, 1);
}

static void test_all_blocks_come_back(void **state) {
    (void)state;
    restored_among(0, 11, 1);
}

static void test_later_blocks_are_freed_and_earlier_ones_stay(void **state) {
    (void)state;
    restored_among(2, 9, 0);
}

static void test_frees_after_a_checkpoint_are_undone_one_by_one(void **state) {
    (void)state;
    EACH_PRESET(pool, s) {
        void *p[6];
        ds_pool_checkpoint *c[6] = { NULL };
        for (int i = 0; i < 6; i++) {
            p[i] = block_in(pool, 3 * MIB, s);
            c[i] = save(pool);
        }
        for (int i = 0; i < 6; i++)
            ok(ds_mem_free(p[i]));
        for (size_t i = 0; i < 6; i++) { /* forward: one more each time */
            changes seen = restore(pool, c[i]);
            assert_int_equal(seen.live, 1);
            assert_ptr_equal(seen.live_at[0], p[i]);
            ok(ds_pool_check_live(pool, p, i + 1));
        }
        for (size_t i = 5; i-- > 0;) { /* and back */
            changes seen = restore(pool, c[i]);
            assert_int_equal(seen.freed, 1);
            assert_ptr_equal(seen.freed_at[0], p[i + 1]);
            ok(ds_pool_check_live(pool, p, i + 1));
        }
        for (int i = 1; i < 6; i++)
            ds_pool_checkpoint_destroy(c[i]);
        ok(ds_mem_free(p[0]));
        end_pool(pool, s, c[0]);
    }
}

static void test_the_live_blocks_of_a_pool_are_compared_with_a_list(void **state) {
    (void)state;
    EACH_PRESET(pool, s) {
        void *p[3] = { block_in(pool, 512, s), block_in(pool, 3 * MIB, s),
                       block_in(pool, 4096, s) },
             *mixed[3] = { p[2], p[0], p[1] };
        ok(ds_pool_check_live(pool, mixed, 3));
        refused_saying(ds_pool_check_live(pool, p, 2), DS_ERR_ILLEGAL_STATE,
                       "live and not in the list");
        void *twice[4] = { p[0], p[1], p[2], p[1] },
             *inside[3] = { p[0], (char *)p[1] + 512, p[2] };
        refused_saying(ds_pool_check_live(pool, twice, 4), DS_ERR_ILLEGAL_STATE,
                       "in the list twice");
        refused(ds_pool_check_live(pool, inside, 3), DS_ERR_ILLEGAL_STATE);
        ok(ds_mem_free(p[1]));
        refused_saying(ds_pool_check_live(pool, p, 3), DS_ERR_ILLEGAL_STATE,
                       "not the start of a live block");
        refused(ds_pool_check_live(pool, NULL, 1), DS_ERR_INVALID_VALUE);
        ok(ds_mem_free(p[0]));
        ok(ds_mem_free(p[2]));
        end_pool(pool, s, NULL);
    }
}

/* A graph writes into a block that its capture left live. Later captures use the same pool from
   that point on, and the graph still runs. */
static void test_captures_go_on_from_where_an_earlier_one_left_the_pool(void **state) {
    (void)state;
    EACH_PRESET(pool, s) {
        harness_warm_up();
        ds_graph g[3];
        ds_graph_exec exec[3];
        ds_pool_checkpoint *after[3];
        void *made[3];
        uint32_t *seen = NULL;
        ok(ds_pinned_alloc(4, (void **)&seen));
        for (uint32_t i = 0; i < 3; i++) {
            if (i == 2) { /* another way on from the first */
                changes was = restore(pool, after[0]);
                assert_int_equal(was.freed, 1);
                assert_ptr_equal(was.freed_at[0], made[1]);
            }
            ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
            ok(ds_capture_set_pool(s, pool));
            made[i] = block(3 * MIB, s);
            ok(ds_fill(made[i], i + 1, 4, 3 * MIB / 4, s));
            ok(ds_capture_end(s, &g[i]));
            ok(ds_graph_instantiate(g[i], NULL, &exec[i]));
            after[i] = save(pool);
        }
        assert_ptr_equal(made[2], made[1]); /* the second way uses what the first had */
        assert_ptr_not_equal(made[0], made[1]);
        for (uint32_t i = 0; i < 3; i++) {
            ok(ds_graph_launch(exec[i], s));
            ok(ds_copy(seen, made[i], 4, s));
            ok(ds_stream_synchronize(s));
            assert_int_equal(*seen, i + 1);
        }
        for (int i = 0; i < 3; i++) {
            ok(ds_graph_exec_destroy(exec[i]));
            ok(ds_graph_destroy(g[i]));
        }
        ok(ds_pinned_free(seen));
        int owners = 0;
        /* CUDA ends what graphs own some time later */
        eventually(ds_pool_get_use_count(pool, &owners) == DS_OK && owners == 1);
        ok(ds_mem_free(made[0]));
        ok(ds_mem_free(made[2]));
        ds_pool_checkpoint_destroy(after[0]);
        ds_pool_checkpoint_destroy(after[1]);
        end_pool(pool, s, after[2]);
    }
}

static void test_a_checkpoint_whose_memory_was_given_back_is_refused(void **state) {
    (void)state;
    EACH_PRESET(pool, s) {
        void *p = block_in(pool, 30 * MIB, s), *q;
        ds_pool_checkpoint *c = save(pool);
        ok(ds_mem_free(p));
        ok(ds_pool_empty_cache(pool, NULL));
        refused_saying(ds_pool_restore(pool, c, NULL, NULL), DS_ERR_ILLEGAL_STATE,
                       "freed to the driver");
        void *other = block(30 * MIB, s); /* perhaps at the same address, but not the pool's */
        refused_saying(ds_pool_restore(pool, c, NULL, NULL), DS_ERR_ILLEGAL_STATE,
                       "freed to the driver");
        q = block_in(pool, 2 * MIB, s);
        refused_saying(ds_pool_restore(pool, c, NULL, NULL), DS_ERR_ILLEGAL_STATE,
                       "freed to the driver");
        ok(ds_pool_check_live(pool, &q, 1));
        ok(ds_mem_free(q));
        ok(ds_mem_free(other));
        end_pool(pool, s, c);
    }
}

static void test_a_checkpoint_with_a_hole_in_its_memory_is_refused(void **state) {
    (void)state;
    EACH_PRESET(pool, s) {
        void *p = block_in(pool, 72 * MIB, s), *q[3];
        ds_pool_checkpoint *c = save(pool);
        ok(ds_mem_free(p));
        for (size_t i = 0; i < 3; i++)
            q[i] = block_in(pool, (i == 1 ? 60 : 6) * MIB, s);
        assert_true((char *)q[2] > (char *)q[1] && (char *)q[2] < (char *)p + 72 * MIB);
        ok(ds_mem_free(q[1]));
        ok(ds_pool_empty_cache(pool, NULL));
        void *left[2] = { q[0], q[2] };
        if (preset == PRESET_DEFAULT || preset == PRESET_TORCH_GROWING) {
            refused_saying(ds_pool_restore(pool, c, NULL, NULL), DS_ERR_ILLEGAL_STATE,
                           "freed to the driver");
            ok(ds_pool_check_live(pool, left, 2));
            ok(ds_mem_free(q[0]));
            ok(ds_mem_free(q[2]));
        } else { /* a plain segment stays whole */
            changes seen = restore(pool, c);
            assert_int_equal(seen.freed, 2);
            ok(ds_pool_check_live(pool, &p, 1));
            ok(ds_mem_free(p));
        }
        end_pool(pool, s, c);
    }
}

static void test_what_others_still_use_is_neither_saved_nor_restored(void **state) {
    (void)state;
    EACH_PRESET(pool, s) {
        ds_stream other = stream_made();
        void *p = block_in(pool, 3 * MIB, s), *q = block_in(pool, 3 * MIB, s);
        ds_pool_checkpoint *c = save(pool), *none = (ds_pool_checkpoint *)&c;
        gate g = { 0 };
        gate_close(other, &g);
        ok(ds_mem_record_use(q, other));
        refused_saying(ds_pool_save(pool, &none), DS_ERR_ILLEGAL_STATE, "used on other streams");
        assert_null(none);
        ok(ds_mem_free(q));
        refused_saying(ds_pool_save(pool, &none), DS_ERR_ILLEGAL_STATE, "may still use it");
        refused_saying(ds_pool_restore(pool, c, NULL, NULL), DS_ERR_ILLEGAL_STATE,
                       "may still use it");
        ok(ds_pool_check_live(pool, &p, 1));
        gate_open(&g);
        ok(ds_stream_synchronize(other));
        assert_int_equal(restore(pool, c).live, 1);
        ok(ds_mem_free(p));
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(other));
        end_pool(pool, s, c);
    }
}

static void test_checkpoints_say_what_was_wrong(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_pool pool = pool_made(), two = pool_made();
    ds_stream s = stream_made();
    ds_pool_checkpoint *c = save(pool), *none;
    refused(ds_pool_save(pool, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_pool_save((ds_pool){ 0 }, &none), DS_ERR_INVALID_HANDLE);
    refused(ds_pool_restore(pool, NULL, NULL, NULL), DS_ERR_INVALID_VALUE);
    refused_saying(ds_pool_restore(two, c, NULL, NULL), DS_ERR_INVALID_VALUE, "another pool");
    ok(ds_pool_destroy(two));
    refused(ds_pool_restore(two, c, NULL, NULL), DS_ERR_INVALID_HANDLE);
    ds_pool_checkpoint_destroy(NULL);
    end_pool(pool, s, c);
}

/* Programs of allocations, frees, checkpoints and restores, by a model: what is live, and the
   contents of what is. */
static void test_random_programs_restore_what_was_live(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 6; seed++)
        EACH_PRESET(pool, s) {
            enum { KEPT = 4 };

            struct {
                void *p[MOST];
                size_t n;
            } now = { { NULL }, 0 }, was[KEPT];

            ds_pool_checkpoint *c[KEPT] = { NULL };
            unsigned x = seed * 2654435761u;
            for (int step = 0; step < 150; step++) {
                x = x * 1664525u + 1013904223u;
                unsigned what = x >> 24, k = x >> 16 & (KEPT - 1), which = x >> 8 & 255;
                if (what < 120 && now.n < MOST / 2) {
                    now.p[now.n++] = block_in(pool, (size_t)1 << (9 + which % 14), s);
                } else if (what < 200 && now.n) {
                    size_t i = which % now.n;
                    ok(ds_mem_free(now.p[i]));
                    now.p[i] = now.p[--now.n];
                } else if (what < 230) {
                    ds_pool_checkpoint_destroy(c[k]);
                    c[k] = save(pool);
                    memcpy(&was[k], &now, sizeof now);
                } else if (c[k]) {
                    (void)restore(pool, c[k]);
                    memcpy(&now, &was[k], sizeof now);
                }
                ok(ds_pool_check_live(pool, now.p, now.n));
            }
            for (size_t i = 0; i < now.n; i++)
                paint(now.p[i], find(now.p[i]).requested, (uint32_t)i, s);
            looks *l = looks_create(1 << 20);
            for (size_t i = 0; i < now.n && looks_fit(l, find(now.p[i]).requested); i++)
                look(l, now.p[i], find(now.p[i]).requested, (uint32_t)i, s);
            ok(ds_stream_synchronize(s));
            assert_true(looks_right(l));
            looks_destroy(l);
            for (size_t i = 0; i < now.n; i++)
                ok(ds_mem_free(now.p[i]));
            for (int k = 0; k < KEPT; k++)
                ds_pool_checkpoint_destroy(c[k]);
            end_pool(pool, s, NULL);
        }
}

/* Each allocation of the host's memory fails in turn: the pool is as it was. */
static void test_a_restore_without_memory_changes_nothing(void **state) {
    (void)state;
    ds_cpu_desc cpu = { .devices = 2 };
    ds_init_desc init = { .cpu = &cpu, .allocator = { count_alloc, count_free, NULL } };
    harness_restart(&init);
    begin(PRESET_DEFAULT);
    ds_pool pool = pool_made();
    ds_stream s = stream_made();
    void *p[4], *q;
    for (int i = 0; i < 4; i++)
        p[i] = block_in(pool, 64 * KIB, s);
    ds_pool_checkpoint *c = save(pool);
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(p[i]));
    q = block_in(pool, 128 * KIB, s);
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    for (int n = 0; r == DS_ERR_OUT_OF_MEMORY; n++) {
        assert_true(n < 100);
        allowance = n;
        r = ds_pool_restore(pool, c, NULL, NULL);
        allowance = -1;
        if (r == DS_OK)
            break;
        ok(ds_pool_check_live(pool, &q, 1));
        ok(ds_mem_validate(harness_device(0)));
    }
    ok(r);
    ok(ds_pool_check_live(pool, p, 4));
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(p[i]));
    end_pool(pool, s, c);
}

/* What grew since stays, free, and is used before more grows. */
static void test_a_growing_segment_keeps_its_growth_after_a_restore(void **state) {
    (void)state;
    harness_restart(NULL);
    begin(PRESET_TORCH_GROWING);
    ds_pool pool = pool_made();
    ds_stream s = stream_made();
    void *p = block_in(pool, 2 * MIB, s);
    expect_layout(0, pool, "[2M live, 18M free]");
    ds_pool_checkpoint *c = save(pool);
    ok(ds_mem_free(p));
    void *q = block_in(pool, 32 * MIB, s);
    assert_ptr_equal(q, p);
    expect_layout(0, pool, "[32M live, 8M free]");
    changes seen = restore(pool, c);
    assert_true(seen.freed == 1 && seen.freed_at[0] == q && seen.live == 1 && seen.live_at[0] == p);
    expect_layout(0, pool, "[2M live, 38M free]");
    q = block_in(pool, 38 * MIB, s);
    expect_layout(0, pool, "[2M live, 38M live]");
    assert_int_equal(ds_mem_get_reserved(harness_device(0)), 40 * MIB);
    seen = restore(pool, c);
    assert_true(seen.freed == 1 && seen.freed_at[0] == q && seen.live == 0);
    q = block_in(pool, 50 * MIB, s);
    expect_layout(0, pool, "[2M live, 50M live, 8M free]");
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    end_pool(pool, s, c);
}

const struct CMUnitTest tests_checkpoints[] = {
    DS_TEST(test_a_block_of_a_checkpoint_is_live_again,
            "torch: test_simple, test_assigning_back_deleter_fns_to_tensor"),
    DS_TEST(test_blocks_in_the_middle_of_a_segment_come_back,
            "torch: test_allocated_in_middle_of_segment"),
    DS_TEST(test_several_blocks_in_the_middle_come_back,
            "torch: test_multiple_middle_allocations, test_middle_allocations_contiguous"),
    DS_TEST(test_all_blocks_come_back, "torch: test_simple"),
    DS_TEST(test_later_blocks_are_freed_and_earlier_ones_stay,
            "torch: test_tensor_dies_after_checkpoint"),
    DS_TEST(test_frees_after_a_checkpoint_are_undone_one_by_one,
            "torch: test_additional_free_following_checkpoint"),
    DS_TEST(test_the_live_blocks_of_a_pool_are_compared_with_a_list,
            "torch: test_check_pool_live_allocations"),
    DS_TEST(test_captures_go_on_from_where_an_earlier_one_left_the_pool,
            "torch: checkpoints of graph trees"),
    DS_TEST(test_a_growing_segment_keeps_its_growth_after_a_restore,
            "torch: test_expandable_segment_checkpoint_growth"),
    DS_TEST(test_a_checkpoint_whose_memory_was_given_back_is_refused, "alloc"),
    DS_TEST(test_a_checkpoint_with_a_hole_in_its_memory_is_refused, "alloc"),
    DS_TEST(test_what_others_still_use_is_neither_saved_nor_restored,
            "torch: checkpoints need that no events are pending"),
    DS_TEST(test_checkpoints_say_what_was_wrong, "alloc"),
    DS_TEST(test_random_programs_restore_what_was_live, "alloc"),
    DS_TEST(test_a_restore_without_memory_changes_nothing, "alloc"),
};
const size_t tests_checkpoints_count = sizeof tests_checkpoints / sizeof tests_checkpoints[0];
