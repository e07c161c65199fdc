/* Pools: memory of their own, scopes, owners, upstreams, limits, and what is left when they are
   gone. */
#include "layout.h"

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

static ds_pool pool_of(const void *p) {
    return find(p).pool;
}

static size_t reserved(int device) {
    return ds_mem_get_reserved(harness_device(device));
}

/* ---- memory of its own ---- */

static void test_a_pool_has_memory_of_its_own(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool = new_pool();
        looks *l = looks_create(50000);
        void *out = block(5000, s), *in = block_in(pool, 5000, s);
        assert_int_equal(pool_of(out).id, 0);
        assert_true(pool_of(in).id == pool.id);
        assert_true(find(in).segment != find(out).segment);
        paint(out, 5000, 1, s);
        paint(in, 5000, 2, s);
        void *other_in = block_in(pool, 3 * MIB, s), *other_out = block(3 * MIB, s);
        assert_true(pool_of(other_in).id == pool.id);
        assert_int_equal(pool_of(other_out).id, 0);
        paint(other_in, 3 * MIB, 3, s);
        paint(other_out, 3 * MIB, 4, s);
        look(l, out, 5000, 1, s);
        look(l, in, 5000, 2, s);
        look(l, other_in, 3 * MIB, 3, s);
        look(l, other_out, 3 * MIB, 4, s);
        /* what one frees the other does not get, however well it fits */
        ok(ds_mem_free(in));
        void *p = block(5000, s);
        assert_ptr_not_equal(p, in);
        assert_int_equal(pool_of(p).id, 0);
        ok(ds_mem_free(out));
        void *q = block_in(pool, 5000, s);
        assert_ptr_equal(q, in);
        ok(ds_mem_validate(harness_device(0)));
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_mem_free(p));
        ok(ds_mem_free(q));
        ok(ds_mem_free(other_in));
        ok(ds_mem_free(other_out));
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_memory_in_a_pool_is_kept_by_stream(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        ds_mem_config c = config_of(preset);
        c.reuse = DS_REUSE_NEVER;
        begin_with(&c);
        ds_stream s = stream(0), t = stream(0);
        ds_pool pool = new_pool();
        looks *l = looks_create(5000);
        void *p = block_in(pool, 9000, s);
        gate_close(s, &g);
        paint(p, 9000, 1, s);
        look(l, p, 9000, 1, s);
        ok(ds_mem_free(p));
        void *q = block_in(pool, 9000, t);
        assert_ptr_not_equal(q, p);
        paint(q, 9000, 2, t);
        assert_ptr_equal(block_in(pool, 9000, s), p);
        gate_open(&g);
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_mem_free(p));
        ok(ds_mem_free(q));
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        finish();
    }
}

static void test_a_block_of_a_pool_waits_for_the_streams_that_used_it(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 2; way++) {
            gate g = { 0 };
            begin(preset);
            ds_stream s = stream(0), t = stream(0);
            ds_pool pool = new_pool();
            looks *l = looks_create(5000);
            ok(ds_pool_push(pool)); /* a pool in use is no capture: an event is taken at once */
            void *p = block(9000, s);
            paint(p, 9000, 1, s);
            ok(ds_stream_wait_stream(t, s));
            gate_close(t, &g);
            look(l, p, 9000, 1, t);
            if (way)
                ok(ds_mem_record_stream(p, t));
            else
                ok(ds_mem_record_use(p, t));
            ok(ds_mem_free(p));
            assert_int_equal(pool_stat(pool, "active.all.current"), 1);
            assert_int_equal(pool_stat(pool, "allocation.all.current"), 0);
            assert_int_equal(layout_of(0, pool).blocks[DS_BLOCK_PENDING], 1);
            void *q = block(9000, s);
            if (config_of(preset).reuse == DS_REUSE_NEVER)
                assert_ptr_not_equal(q, p);
            paint(q, 9000, 2, s);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            ok(ds_pool_pop());
            /* the pool is not kept from it by having been in use */
            ok(ds_pool_empty_cache(pool, NULL));
            assert_int_equal(pool_stat(pool, "active.all.current"), 0);
            assert_int_equal(pool_stat(pool, "reserved_bytes.all.current"), 0);
            looks_destroy(l);
            ok(ds_pool_destroy(pool));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(t));
            finish();
        }
}

static void test_a_pool_has_the_devices_policy_or_one_of_its_own(void **state) {
    (void)state;
    ds_mem_config torch = ds_mem_config_torch(), cupy = ds_mem_config_cupy(), wrong = torch;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    ds_pool like_torch = pool_with((ds_pool_desc){ .config = &torch }),
            like_cupy = pool_with((ds_pool_desc){ .config = &cupy });
    void *p = block_in(like_torch, 3 * MIB, s), *q = block_in(like_cupy, 3 * MIB + 5, s);
    expect_layout(0, like_torch, "[3M live, 17M free]");
    expect_layout(0, like_cupy, "[3146240 live]");
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_pool_destroy(like_torch));
    ok(ds_pool_destroy(like_cupy));
    ok(ds_mem_configure(harness_device(0), &torch));
    ds_pool of_device = new_pool();
    p = block_in(of_device, 3 * MIB, s);
    ok(ds_mem_configure(harness_device(0), &cupy)); /* a pool stays as it was made */
    q = block_in(of_device, 10 * MIB, s);
    expect_layout(0, of_device, "[3M live, 10M live, 7M free]");
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_pool_destroy(of_device));
    wrong.large_segment_size = 12345;
    ds_pool none = { 77 };
    refused(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .config = &wrong }, &none),
            DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "large_segment_size"));
    assert_int_equal(none.id, 0);
    torch.backend = DS_MEM_UNCACHED;
    refused(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .config = &torch }, &none),
            DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "backend 2"));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_pool_that_does_not_split_has_one_block_per_segment(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool = pool_with((ds_pool_desc){ .no_split = 1 });
        void *p[6];
        ok(ds_pool_push(pool));
        for (size_t i = 0; i < 6; i++) {
            p[i] = block(i < 3 ? MIB : 3 * MIB, s);
            layout l = layout_of(0, pool);
            assert_int_equal(l.segments, i + 1);
            assert_int_equal(l.blocks[DS_BLOCK_LIVE], i + 1);
            assert_int_equal(l.blocks[DS_BLOCK_FREE], 0);
            assert_int_equal(pool_stat(pool, "segment.all.current"), i + 1);
            assert_int_equal(pool_stat(pool, "inactive_split.all.current"), 0);
        }
        assert_int_equal(pool_stat(pool, "allocated_bytes.all.current"),
                         pool_stat(pool, "reserved_bytes.all.current"));
        ok(ds_mem_free(p[1]));
        assert_int_equal(layout_of(0, pool).blocks[DS_BLOCK_FREE], 1);
        assert_ptr_equal(block(700, s), p[1]); /* all of it */
        assert_int_equal(layout_of(0, pool).blocks[DS_BLOCK_FREE], 0);
        ok(ds_pool_pop());
        void *out = block(MIB, s), *out2 = block(MIB, s); /* others split as ever */
        if (preset == PRESET_TORCH)
            assert_ptr_equal(find(out).segment, find(out2).segment);
        ok(ds_mem_free(out));
        ok(ds_mem_free(out2));
        for (size_t i = 0; i < 6; i++)
            ok(ds_mem_free(p[i]));
        ok(ds_pool_destroy(pool));
        /* and a pool that comes after it does not inherit that */
        ds_pool next = new_pool();
        void *a = block_in(next, 700, s), *b = block_in(next, 700, s);
        if (!config_of(preset).single_pool)
            assert_ptr_equal(find(a).segment, find(b).segment);
        ok(ds_mem_free(a));
        ok(ds_mem_free(b));
        ok(ds_pool_destroy(next));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- scopes ---- */

static void test_scopes_nest_and_the_latest_counts(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool p1 = new_pool(), p2 = new_pool(), p3 = new_pool();
        void *at[9];
        refused(ds_pool_pop(), DS_ERR_ILLEGAL_STATE);
        ok(ds_pool_push(p1));
        at[0] = block(MIB, s);
        ok(ds_pool_push(p2));
        at[1] = block(MIB, s);
        ok(ds_pool_push(p3));
        at[2] = block(MIB, s);
        ok(ds_pool_pop());
        at[3] = block(MIB, s);
        ok(ds_pool_push(p1)); /* again, inside of itself */
        at[4] = block(MIB, s);
        at[5] = block_in(p3, MIB, s); /* who names a pool gets it */
        ok(ds_pool_pop());
        at[6] = block(MIB, s);
        ok(ds_pool_pop());
        at[7] = block(MIB, s);
        ok(ds_pool_pop());
        at[8] = block(MIB, s);
        refused(ds_pool_pop(), DS_ERR_ILLEGAL_STATE);
        const uint64_t want[9] = { p1.id, p2.id, p3.id, p2.id, p1.id, p3.id, p2.id, p1.id, 0 };
        for (int i = 0; i < 9; i++)
            assert_true(pool_of(at[i]).id == want[i]);
        for (int i = 0; i < 9; i++)
            ok(ds_mem_free(at[i]));
        ok(ds_pool_destroy(p1));
        ok(ds_pool_destroy(p2));
        ok(ds_pool_destroy(p3));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_scopes_do_not_nest_without_end(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_pool pool = new_pool();
    int n = 0;
    while (n < 1000 && ds_pool_push(pool) == DS_OK)
        n++;
    assert_true(n >= 32 && n < 1000);
    harness_sentence(ds_error_get_last(), "ds_pool_push");
    assert_int_equal(owners(pool), n + 1);
    for (int i = 0; i < n; i++)
        ok(ds_pool_pop());
    assert_int_equal(owners(pool), 1);
    refused(ds_pool_pop(), DS_ERR_ILLEGAL_STATE);
    ok(ds_pool_destroy(pool));
    finish();
}

typedef struct in_thread {
    ds_stream s;
    ds_pool pool;
    void *p[8];
    int pushes, empty;
} in_thread;

static void *allocate_in_scope(void *arg) {
    in_thread *t = arg;
    if (t->pushes)
        ok_thread(ds_pool_push(t->pool));
    for (int i = 0; i < 8; i++)
        t->p[i] = block((size_t)i * 100000 + 1, t->s);
    if (t->empty)
        ok_thread(ds_mem_empty_cache(harness_device(0), NULL));
    if (t->pushes)
        ok_thread(ds_pool_pop());
    return NULL;
}

static void test_a_scope_belongs_to_its_thread(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        in_thread t[3];
        pthread_t threads[3];
        ds_pool mine = new_pool();
        for (int i = 0; i < 3; i++)
            t[i] =
                (in_thread){ .s = stream(0), .pool = new_pool(), .pushes = i < 2, .empty = i == 1 };
        ok(ds_pool_push(mine));
        for (int i = 0; i < 3; i++)
            threads[i] = spawn(allocate_in_scope, &t[i]);
        void *p = block(2000, s);
        for (int i = 0; i < 3; i++)
            join(threads[i]);
        assert_true(pool_of(p).id == mine.id);
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 8; k++)
                assert_true(pool_of(t[i].p[k]).id == (t[i].pushes ? t[i].pool.id : 0));
        assert_int_equal(owners(mine), 2);
        ok(ds_pool_pop());
        for (int i = 0; i < 3; i++)
            assert_int_equal(owners(t[i].pool), 1);
        assert_int_equal(pool_stat(t[2].pool, "allocation.all.allocated"), 0);
        assert_int_equal(pool_stat(t[1].pool, "allocation.all.current"), 8);
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < 8; k++)
                ok(ds_mem_free(t[i].p[k]));
            ok(ds_pool_destroy(t[i].pool));
            ok(ds_stream_destroy(t[i].s));
        }
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(mine));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* Threads of one pool and one stream count as one user of it: its memory goes from thread to
   thread. */
static void test_a_pool_is_used_from_several_threads(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool = new_pool();
        in_thread t = { .s = s, .pool = pool, .pushes = 1 };
        join(spawn(allocate_in_scope, &t));
        for (int k = 0; k < 8; k++)
            ok(ds_mem_free(t.p[k]));
        int64_t before = pool_stat(pool, "reserved_bytes.all.current");
        join(spawn(allocate_in_scope, &t));
        assert_true(pool_stat(pool, "reserved_bytes.all.current") == before);
        for (int k = 0; k < 8; k++)
            ok(ds_mem_free(t.p[k]));
        ok(ds_pool_destroy(pool));
        assert_int_equal(reserved(0), 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_scope_belongs_to_its_device(void **state) {
    (void)state;
    two_devices();
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0), t = stream(1);
    ds_pool on0 = new_pool(), on1 = pool_with((ds_pool_desc){ .device = harness_device(1) });
    void *p, *at[4], *here = &p;
    ok(ds_pool_push(on0));
    ok(ds_pool_push(on1)); /* the latest one of the stream's device counts */
    at[0] = block(100, s);
    at[1] = block(100, t);
    ok(ds_pool_pop());
    at[2] = block(100, s);
    at[3] = block(100, t);
    assert_true(pool_of(at[0]).id == on0.id && pool_of(at[1]).id == on1.id &&
                pool_of(at[2]).id == on0.id);
    assert_int_equal(pool_of(at[3]).id, 0);
    p = here;
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 100, .stream = t, .pool = on0 }, &p),
            DS_ERR_DEVICE_MISMATCH);
    assert_null(p);
    ok(ds_pool_pop());
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(at[i]));
    DS_DEVICE_SCOPE(harness_device(1)) { /* without a device: the current one */
        ds_pool current = { 0 };
        ok(ds_pool_create(NULL, &current));
        p = block_in(current, 100, t);
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(current));
    }
    ok(ds_pool_destroy(on0));
    ok(ds_pool_destroy(on1));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

/* ---- names and owners ---- */

typedef struct ids {
    ds_pool pool[50];
    uint64_t id[50][2];
} ids;

static void *make_pools(void *arg) {
    ids *n = arg;
    for (int i = 0; i < 50; i++) {
        n->pool[i] = new_pool();
        ok_thread(ds_pool_get_id(n->pool[i], n->id[i]));
    }
    return NULL;
}

static void test_every_pool_has_an_id_of_its_own(void **state) {
    (void)state;

    enum { THREADS = 4 };

    static ids all[THREADS];
    pthread_t threads[THREADS];
    uint64_t id[2] = { 7, 7 };
    begin(PRESET_DEFAULT);
    for (int i = 0; i < THREADS; i++)
        threads[i] = spawn(make_pools, &all[i]);
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
    for (int i = 0; i < THREADS * 50; i++) {
        const uint64_t *a = all[i / 50].id[i % 50];
        assert_true(a[0] == 0 && a[1] > 0);
        for (int k = 0; k < i; k++) {
            assert_true(all[k / 50].id[k % 50][1] != a[1]);
            assert_true(all[k / 50].pool[k % 50].id != all[i / 50].pool[i % 50].id);
        }
    }
    ok(ds_pool_get_id((ds_pool){ 0 }, id));
    assert_true(id[0] == 0 && id[1] == 0);
    for (int i = 0; i < THREADS * 50; i++)
        ok(ds_pool_destroy(all[i / 50].pool[i % 50]));
    ds_pool later = new_pool();
    ok(ds_pool_get_id(later, id));
    for (int i = 0; i < THREADS * 50; i++) {
        assert_true(all[i / 50].id[i % 50][1] != id[1]);
        assert_true(all[i / 50].pool[i % 50].id != later.id);
    }
    ok(ds_pool_destroy(later));
    finish();
}

static void test_owners_are_counted(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_pool pool = upstream_pool();
    assert_int_equal(owners(pool), 1);
    ok(ds_pool_push(pool));
    assert_int_equal(owners(pool), 2);
    ok(ds_pool_push(pool));
    assert_int_equal(owners(pool), 3);
    ok(ds_pool_pop());
    ok(ds_pool_pop());
    assert_int_equal(owners(pool), 1);
    ok(ds_pool_destroy(pool));
    finish();
}

/* A scope keeps a pool that is destroyed inside of it, so nothing breaks; but nobody gets memory
   from it any more. */
static void test_a_pool_that_is_destroyed_inside_its_scope(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool = new_pool();
        void *p = NULL, *kept;
        ok(ds_pool_push(pool));
        kept = block(5000, s);
        ok(ds_pool_destroy(pool));
        refused(ds_mem_alloc(5000, s, &p), DS_ERR_INVALID_HANDLE);
        assert_null(p);
        ok(ds_mem_free(kept));
        ok(ds_pool_pop());
        p = block(5000, s);
        assert_int_equal(pool_of(p).id, 0);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_wrong_calls_on_pools_are_refused(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    ds_pool pool = new_pool(), gone = new_pool(), never = { 12345678901 }, none = { 0 },
            out = { 9 };
    ds_mem_stats stats = { 0 };
    uint64_t id[2];
    void *p;
    int n = 5;
    size_t bytes = 5;
    ok(ds_pool_destroy(gone));
    const ds_pool wrong[] = { gone, never, none };
    for (int i = 0; i < 3; i++) {
        refused(ds_pool_destroy(wrong[i]), DS_ERR_INVALID_HANDLE);
        refused(ds_pool_push(wrong[i]), DS_ERR_INVALID_HANDLE);
        refused(ds_pool_get_use_count(wrong[i], &n), DS_ERR_INVALID_HANDLE);
        refused(ds_pool_empty_cache(wrong[i], &bytes), DS_ERR_INVALID_HANDLE);
        /* that of a destroyed one stays */
        if (i > 0)
            refused(ds_pool_get_stats(wrong[i], &stats), DS_ERR_INVALID_HANDLE);
        refused(ds_capture_set_pool(s, wrong[i]), DS_ERR_INVALID_HANDLE);
        if (i < 2) {
            refused(ds_pool_get_id(wrong[i], id), DS_ERR_INVALID_HANDLE);
            refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 1, .stream = s, .pool = wrong[i] },
                                      &p),
                    DS_ERR_INVALID_HANDLE);
        }
    }
    assert_int_equal(n, 0);
    assert_int_equal(bytes, 0);
    refused(ds_pool_pop(), DS_ERR_ILLEGAL_STATE);
    refused(ds_pool_create(NULL, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_pool_get_use_count(pool, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_pool_get_id(pool, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_pool_get_stats(pool, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_pool_create(&(ds_pool_desc){ .alloc_fn = up_alloc }, &out), DS_ERR_INVALID_VALUE);
    assert_int_equal(out.id, 0);
    refused(ds_pool_create(&(ds_pool_desc){ .free_fn = up_free }, &out), DS_ERR_INVALID_VALUE);
    refused(ds_pool_create(
                &(ds_pool_desc){ .alloc_fn = up_alloc, .free_fn = up_free, .shareable = 1 }, &out),
            DS_ERR_INVALID_VALUE);
    refused_any(
        ds_pool_create(&(ds_pool_desc){ .device = { harness_device(0).type, 1000 } }, &out));
    refused(ds_capture_set_pool(s, pool), DS_ERR_ILLEGAL_STATE); /* it does not capture */
    assert_int_equal(owners(pool), 1);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- what is left ---- */

static void test_destroying_a_pool_frees_its_memory_but_live_blocks(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool = new_pool();
        looks *l = looks_create(100000);
        void *kept = block_in(pool, 12 * MIB, s), *gone = block_in(pool, 12 * MIB, s);
        paint(kept, 12 * MIB, 1, s);
        ok(ds_mem_free(gone));
        size_t before = reserved(0);
        ok(ds_pool_destroy(pool));
        assert_true(reserved(0) <= before - 8 * MIB && reserved(0) >= 12 * MIB);
        /* the block is still one, of no pool that could be used */
        ds_mem_block b = find((char *)kept + 4 * MIB + 7);
        assert_ptr_equal(b.ptr, kept);
        assert_true(b.pool.id == pool.id);
        look(l, kept, 12 * MIB, 1, s);
        ok(ds_mem_record_use(kept, s));
        ok(ds_mem_free(kept));
        assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(reserved(0), 0);
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* In the way of what needs memory nothing may stand that belonged to a pool which is gone. */
static void test_memory_of_a_destroyed_pool_is_found_in_a_shortage(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.limit = 64 * MIB;
        begin_with(&c);
        ds_stream s = stream(0);
        ds_pool pool = new_pool();
        void *p = block_in(pool, 40 * MIB, s);
        ok(ds_pool_destroy(pool));
        void *q = NULL;
        no_memory(ds_mem_alloc(40 * MIB, s, &q));
        ok(ds_mem_free(p));
        q = block(40 * MIB, s);
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_empty_cache_is_a_matter_of_each_pool(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool = new_pool(), other = new_pool();
        size_t bytes = 1;
        ok(ds_pool_empty_cache(pool, &bytes)); /* nothing there yet */
        assert_int_equal(bytes, 0);
        void *p = block_in(pool, 12 * MIB, s), *q = block_in(other, 12 * MIB, s),
             *r = block(12 * MIB, s), *small = block_in(pool, 900, s);
        ok(ds_mem_free(p));
        ok(ds_mem_free(q));
        ok(ds_mem_free(r));
        size_t in_pool = (size_t)pool_stat(pool, "reserved_bytes.all.current"),
               in_other = (size_t)pool_stat(other, "reserved_bytes.all.current");
        /* what empties the device's cache leaves pools to their owners, in a scope or not */
        ok(ds_pool_push(pool));
        ok(ds_mem_empty_cache(harness_device(0), &bytes));
        ok(ds_pool_pop());
        assert_true(bytes >= 12 * MIB);
        assert_int_equal(reserved(0), in_pool + in_other);
        ok(ds_mem_empty_cache(harness_device(0), &bytes));
        assert_int_equal(bytes, 0);
        ok(ds_pool_empty_cache(pool, &bytes));
        assert_true(bytes >= 12 * MIB - 2 * MIB);
        /* the small block stands in the way of the rest */
        assert_int_equal(pool_stat(pool, "reserved_bytes.all.current"), in_pool - bytes);
        assert_true(pool_stat(pool, "reserved_bytes.all.current") > 0);
        assert_int_equal(pool_stat(other, "reserved_bytes.all.current"), in_other);
        ok(ds_pool_empty_cache(pool, NULL));
        ok(ds_mem_free(small));
        ok(ds_pool_empty_cache(pool, NULL));
        assert_int_equal(pool_stat(pool, "reserved_bytes.all.current"), 0);
        ok(ds_pool_destroy(pool));
        ok(ds_pool_destroy(other));
        assert_int_equal(reserved(0), 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_emptying_a_pool_waits_for_the_work_that_uses_its_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int upstreamed = 0; upstreamed < 2; upstreamed++) {
            gate g = { 0 };
            begin(preset);
            ds_stream s = stream(0), t = stream(0);
            ds_pool pool = upstreamed ? upstream_pool() : new_pool();
            looks *l = looks_create(100000);
            void *p = block_in(pool, 12 * MIB, s), *q = block_in(pool, 12 * MIB, s);
            paint(q, 12 * MIB, 2, s);
            ok(ds_stream_wait_stream(t, s));
            gate_close(s, &g);
            paint(p, 12 * MIB, 1, s);
            look(l, p, 12 * MIB, 1, s);
            look(l, q, 12 * MIB, 2, t);
            ok(ds_mem_record_use(q, t));
            ok(ds_mem_free(p));
            ok(ds_mem_free(q));
            pthread_t opener = spawn(open_later, &g);
            ok(ds_pool_empty_cache(pool, NULL));
            assert_int_equal(g.open, 1);
            assert_int_equal(pool_stat(pool, "reserved_bytes.all.current"), 0);
            join(opener);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            looks_destroy(l);
            ok(ds_pool_destroy(pool));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(t));
            finish();
        }
}

/* ---- statistics ---- */

static void test_the_statistics_of_pools_are_part_of_the_devices(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool a = new_pool(), b = new_pool();
        for (size_t i = 0; ds_mem_stats_get_name(i); i++) /* all 0 before anything is allocated */
            if (!strstr(ds_mem_stats_get_name(i), "max_split_size"))
                assert_int_equal(pool_stat(a, ds_mem_stats_get_name(i)), 0);
        void *p = block_in(a, 5000, s), *q = block_in(a, 3 * MIB, s), *r = block_in(b, 700, s),
             *out = block(900, s);
        (void)r;
        assert_int_equal(pool_stat(a, "allocation.small_pool.current"),
                         config_of(preset).single_pool ? 0 : 1);
        assert_int_equal(pool_stat(a, "allocation.all.current"), 2);
        assert_int_equal(pool_stat(b, "allocation.all.current"), 1);
        assert_int_equal(pool_stat(a, "requested_bytes.all.current"), 5000 + 3 * MIB);
        assert_int_equal(stat(0, "allocation.all.current"), 4);
        assert_int_equal(stat(0, "requested_bytes.all.current"), 5000 + 3 * MIB + 700 + 900);
        assert_int_equal(stat(0, "allocated_bytes.all.current"),
                         pool_stat(a, "allocated_bytes.all.current") +
                             pool_stat(b, "allocated_bytes.all.current") + (int64_t)size_of(out));
        layout la = layout_of(0, a), lb = layout_of(0, b), l0 = layout_of(0, (ds_pool){ 0 });
        assert_int_equal(pool_stat(a, "reserved_bytes.all.current"),
                         la.bytes[DS_BLOCK_FREE] + la.bytes[DS_BLOCK_LIVE]);
        assert_int_equal(pool_stat(b, "reserved_bytes.all.current"),
                         lb.bytes[DS_BLOCK_FREE] + lb.bytes[DS_BLOCK_LIVE]);
        assert_int_equal(reserved(0),
                         pool_stat(a, "reserved_bytes.all.current") +
                             pool_stat(b, "reserved_bytes.all.current") +
                             (int64_t)(l0.bytes[DS_BLOCK_FREE] + l0.bytes[DS_BLOCK_LIVE]));
        assert_true(pool_stat(a, "num_device_alloc") > 0);
        assert_true(stat(0, "num_device_alloc") >
                    pool_stat(a, "num_device_alloc") + pool_stat(b, "num_device_alloc"));
        ok(ds_mem_free(q));
        assert_int_equal(pool_stat(a, "allocation.all.current"), 1);
        assert_int_equal(pool_stat(a, "allocation.all.peak"), 2);
        assert_int_equal(pool_stat(a, "allocation.all.freed"), 1);
        assert_int_equal(pool_stat(a, "allocated_bytes.all.peak"),
                         (int64_t)size_of(p) + (int64_t)(3 * MIB));
        ok(ds_mem_reset_peak_stats(harness_device(0))); /* of pools too */
        assert_int_equal(pool_stat(a, "allocation.all.peak"), 1);
        ok(ds_mem_reset_accumulated_stats(harness_device(0)));
        assert_int_equal(pool_stat(a, "allocation.all.allocated"), 0);
        assert_int_equal(pool_stat(a, "allocation.all.freed"), 0);
        assert_int_equal(pool_stat(a, "num_device_alloc"), 0);
        ok(ds_mem_free(p));
        assert_int_equal(pool_stat(a, "allocation.all.freed"), 1);
        ok(ds_pool_empty_cache(a, NULL));
        assert_int_equal(pool_stat(a, "reserved_bytes.all.current"), 0);
        assert_true(pool_stat(a, "reserved_bytes.all.peak") > 0 &&
                    pool_stat(a, "reserved_bytes.all.freed") > 0);
        check_invariants(0);
        ok(ds_mem_validate(harness_device(0)));
        int64_t small = stat(0, "reserved_bytes.all.current");
        int64_t peak = pool_stat(b, "reserved_bytes.all.peak");
        ok(ds_mem_free(r));
        ok(ds_pool_destroy(b));
        assert_true(stat(0, "reserved_bytes.all.current") < small);
        /* outlives the pool */
        assert_true(peak > 0 && pool_stat(b, "reserved_bytes.all.peak") == peak);
        assert_int_equal(pool_stat(b, "reserved_bytes.all.current"), 0);
        /* reset above, and none since */
        assert_int_equal(pool_stat(b, "allocation.all.allocated"), 0);
        assert_int_equal(pool_stat(b, "allocation.all.freed"), 1);
        ok(ds_mem_free(out));
        out = block_in(a, 900, s);
        ok(ds_pool_destroy(a));
        /* while someone has a block of it */
        assert_int_equal(pool_stat(a, "allocation.all.current"), 1);
        ok(ds_mem_free(out));
        assert_int_equal(pool_stat(a, "allocation.all.current"), 0);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(pool_stat(a, "reserved_bytes.all.current"), 0);
        ds_pool later[200]; /* one of them comes in its place, and begins at 0 */
        ds_mem_stats gone = { 0 };
        int n = 0;
        while (n < 200 && ds_pool_get_stats(a, &gone) == DS_OK) {
            later[n] = new_pool();
            assert_int_equal(pool_stat(later[n++], "reserved_bytes.all.peak"), 0);
        }
        refused(ds_pool_get_stats(a, &gone), DS_ERR_INVALID_HANDLE);
        while (n > 0)
            ok(ds_pool_destroy(later[--n]));
        ok(ds_stream_destroy(s));
        finish();
    }
}

typedef struct churn {
    ds_stream s;
    ds_pool pool[3];
    int n, rounds;
    unsigned seed;
} churn;

static unsigned next_random(unsigned *seed) {
    return *seed = *seed * 1103515245u + 12345u, *seed >> 8;
}

static void *churn_pools(void *arg) {
    churn *c = arg;
    void *live[20] = { 0 };
    for (int i = 0; i < c->rounds; i++) {
        unsigned k = next_random(&c->seed) % 20, pool = next_random(&c->seed) % (unsigned)c->n;
        if (live[k]) {
            ok_thread(ds_mem_free(live[k]));
            live[k] = NULL;
        } else {
            ok_thread(ds_pool_push(c->pool[pool]));
            live[k] = block(next_random(&c->seed) % 3000000 + 1, c->s);
            ok_thread(ds_pool_pop());
        }
        if (i % 50 == 17)
            ok_thread(ds_pool_empty_cache(c->pool[pool], NULL));
        if (i % 90 == 17)
            ok_thread(ds_mem_empty_cache(harness_device(0), NULL));
    }
    for (int i = 0; i < 20; i++)
        ok_thread(ds_mem_free(live[i]));
    return NULL;
}

static void test_threads_share_pools(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        churn c[3];
        pthread_t threads[3];
        ds_mem_config config = config_of(preset);
        ds_pool pool[3];
        config.debug = 0;
        begin_with(&config);
        for (int i = 0; i < 3; i++)
            pool[i] = new_pool();
        for (int i = 0; i < 3; i++) {
            c[i] = (churn){
                .s = stream(0), .n = 3, .rounds = 300, .seed = (unsigned)(i + 10 * preset)
            };
            memcpy(c[i].pool, pool, sizeof pool);
        }
        for (int i = 0; i < 3; i++)
            threads[i] = spawn(churn_pools, &c[i]);
        for (int i = 0; i < 20; i++) {
            check_invariants(0);
            (void)pool_stat(pool[i % 3], "active.all.current");
            harness_nap();
        }
        for (int i = 0; i < 3; i++)
            join(threads[i]);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(pool_stat(pool[i], "allocation.all.current"), 0);
            assert_int_equal(pool_stat(pool[i], "allocated_bytes.all.current"), 0);
            assert_true(pool_stat(pool[i], "allocation.all.allocated") ==
                        pool_stat(pool[i], "allocation.all.freed"));
        }
        ok(ds_mem_validate(harness_device(0)));
        for (int i = 0; i < 3; i++)
            ok(ds_pool_destroy(pool[i]));
        for (int i = 0; i < 3; i++)
            ok(ds_stream_destroy(c[i].s));
        finish();
    }
}

/* ---- limits and shortage ---- */

static void test_a_limit_of_a_pool_is_its_own(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0);
        ds_pool pool = pool_with((ds_pool_desc){ .limit = 48 * MIB });
        void *p = block_in(pool, 20 * MIB, s), *q = block_in(pool, 20 * MIB, s), *r = NULL;
        refused(
            ds_mem_alloc_with(&(ds_mem_request){ .size = 20 * MIB, .stream = s, .pool = pool }, &r),
            DS_ERR_LIMIT_EXCEEDED);
        assert_null(r);
        assert_int_equal(pool_stat(pool, "num_ooms"), 1);
        assert_true(pool_stat(pool, "reserved_bytes.all.current") <= (int64_t)(48 * MIB));
        r = block(20 * MIB, s); /* others have no limit */
        ok(ds_mem_free(r));
        ok(ds_mem_free(p));
        r = block_in(pool, 20 * MIB, s);
        ok(ds_mem_free(r));
        ok(ds_mem_free(q));
        r = block_in(pool, 40 * MIB, s); /* fragments do not count: they are given back first */
        assert_true(pool_stat(pool, "reserved_bytes.all.current") <= (int64_t)(48 * MIB));
        ok(ds_mem_free(r));
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_the_devices_limit_counts_all_pools(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.limit = 64 * MIB;
        begin_with(&c);
        ds_stream s = stream(0);
        ds_pool pool = new_pool();
        void *p = block(40 * MIB, s), *q = NULL;
        no_memory(ds_mem_alloc_with(
            &(ds_mem_request){ .size = 40 * MIB, .stream = s, .pool = pool }, &q));
        ok(ds_mem_free(p));
        q = block_in(pool, 40 * MIB, s); /* for it the device's own cache was given back */
        assert_true(reserved(0) <= 64 * MIB);
        assert_int_equal(pool_stat(pool, "num_ooms"), 1);
        ok(ds_mem_free(q));
        p = NULL;
        no_memory(ds_mem_alloc(40 * MIB, s, &p)); /* a pool's is its owner's to give back */
        ok(ds_pool_empty_cache(pool, NULL));
        p = block(40 * MIB, s);
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(pool));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_pool_that_allows_it_helps_out_when_memory_is_short(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int helps = 0; helps < 2; helps++) {
            gate g = { 0 };
            ds_mem_config c = config_of(preset);
            c.limit = 64 * MIB;
            begin_with(&c);
            ds_stream s = stream(0), t = stream(0);
            ds_pool pool = pool_with((ds_pool_desc){ .use_on_oom = helps });
            looks *l = looks_create(500000);
            void *p = block_in(pool, 40 * MIB, s), *q = NULL, *live = block_in(pool, 4 * MIB, s);
            paint(live, 4 * MIB, 5, s);
            no_memory(ds_mem_alloc(40 * MIB, s, &q)); /* live blocks are nobody's */
            gate_close(s, &g);
            paint(p, 40 * MIB, 1, s);
            look(l, p, 40 * MIB, 1, s);
            ok(ds_mem_free(p));
            if (!helps) {
                no_memory(ds_mem_alloc(40 * MIB, t, &q));
            } else {
                q = block(40 * MIB, t); /* of another stream at that: it waits, not we */
                assert_ptr_equal(q, p);
                assert_true(pool_of(q).id == pool.id);
                paint(q, 40 * MIB, 2, t);
                look(l, q, 40 * MIB, 2, t);
                assert_int_equal(g.open, 0);
                ok(ds_mem_free(q));
                q = block(40 * MIB, t); /* and once more */
                assert_ptr_equal(q, p);
                paint(q, 40 * MIB, 3, t);
                look(l, q, 40 * MIB, 3, t);
                ok(ds_mem_free(q));
            }
            /* where memory is to be had, it is not taken from the pool */
            void *small = block(100, s);
            assert_int_equal(pool_of(small).id, 0);
            look(l, live, 4 * MIB, 5, s);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            looks_destroy(l);
            ok(ds_mem_free(small));
            ok(ds_mem_free(live));
            ok(ds_pool_destroy(pool));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(t));
            finish();
        }
}

static void test_a_pool_that_is_gone_helps_nobody_out(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.limit = 128 * MIB;
        begin_with(&c);
        ds_stream s = stream(0);
        ds_pool pool = pool_with((ds_pool_desc){ .use_on_oom = 1 });
        void *p = block_in(pool, 60 * MIB, s), *live = block_in(pool, 60 * MIB, s), *q = NULL;
        ok(ds_mem_free(p));
        ok(ds_pool_destroy(pool));
        q = block(60 * MIB, s); /* there is memory now, but not that of the pool */
        assert_int_equal(pool_of(q).id, 0);
        ok(ds_mem_free(live));
        ok(ds_mem_free(q));
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* Handles are void then, and nobody's scope may stand in the way of what comes after. */
static void test_a_shutdown_ends_all_scopes(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_pool pool = new_pool();
    ok(ds_pool_push(pool));
    ok(ds_pool_push(pool));
    harness_restart(NULL);
    ds_stream s = stream(0);
    void *p = block(100, s);
    assert_int_equal(pool_of(p).id, 0);
    refused(ds_pool_pop(), DS_ERR_ILLEGAL_STATE);
    refused(ds_pool_push(pool), DS_ERR_INVALID_HANDLE);
    pool = new_pool();
    ok(ds_pool_push(pool));
    void *q = block(100, s);
    assert_true(pool_of(q).id == pool.id);
    ok(ds_pool_pop());
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- upstreams ---- */

static void *native_of(ds_stream s) {
    ds_stream_native n;
    ok_thread(ds_stream_export(s, &n));
    return n.handle;
}

static void test_a_pool_takes_its_segments_from_its_upstream(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_pool pool = upstream_pool();
    looks *l = looks_create(10000);
    assert_int_equal(owners(pool), 1);
    assert_int_equal(up.allocs, 0);
    ok(ds_pool_push(pool));
    void *a = block(MIB, s);
    assert_int_equal(owners(pool), 2);
    ok(ds_pool_pop());
    assert_int_equal(owners(pool), 1);
    assert_int_equal(up.allocs, 1);
    assert_int_equal(up.last_size, 2 * MIB);
    assert_int_equal(up.last_device, harness_device(0).index);
    assert_ptr_equal(up.last_stream, native_of(s));
    void *out = block(MIB, s);
    assert_int_equal(up.allocs, 1);
    ok(ds_pool_push(pool));
    assert_int_equal(layout_of(0, pool).segments, 1);
    void *b = block(MIB, s); /* the other half of the segment */
    assert_int_equal(layout_of(0, pool).segments, 1);
    void *c = block(MIB, s);
    assert_int_equal(layout_of(0, pool).segments, 2);
    ok(ds_pool_pop());
    assert_int_equal(layout_of(0, pool).segments, 2);
    paint(a, MIB, 1, s);
    paint(b, MIB, 2, s);
    paint(c, MIB, 3, s);
    look(l, a, MIB, 1, s);
    look(l, b, MIB, 2, s);
    look(l, c, MIB, 3, s);
    ds_pointer_info info; /* it is device memory like any other */
    ok(ds_pointer_get_info((char *)b + 5, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    ok(ds_stream_synchronize(s));
    assert_true(looks_right(l));
    looks_destroy(l);
    assert_int_equal(pool_stat(pool, "num_device_alloc"), 2);
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_mem_free(c));
    ok(ds_mem_free(out));
    assert_int_equal(up.frees, 0);
    ok(ds_pool_destroy(pool));
    assert_int_equal(up.frees, 2);
    assert_int_equal(up.strange, 0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_an_upstream_has_growing_segments_never(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        ds_stream s = stream(0), t = stream(0);
        ds_pool pool = upstream_pool();
        void *p[12];
        for (size_t i = 0; i < 12; i++)
            p[i] = block_in(pool, i % 3 == 2 ? 9 * MIB : (i + 1) * 50000, i % 2 ? s : t);
        assert_true(up.allocs > 2);
        assert_int_equal(pool_stat(pool, "segment.all.current"), up.allocs);
        assert_int_equal(pool_stat(pool, "num_device_alloc"), up.allocs);
        ok(ds_mem_validate(harness_device(0)));
        /* what is given back later is given back with the same words all the same */
        ok(ds_stream_destroy(t));
        for (size_t i = 0; i < 12; i++)
            ok(ds_mem_free(p[i]));
        ok(ds_pool_empty_cache(pool, NULL));
        assert_int_equal(up.frees, up.allocs);
        assert_int_equal(up.strange, 0);
        void *again = block_in(pool, 100, s);
        ok(ds_mem_free(again));
        ok(ds_pool_destroy(pool));
        assert_int_equal(up.frees, up.allocs);
        assert_int_equal(up.strange, 0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_pools_upstream_serves_blocks_that_outlive_the_pool(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_pool pool = upstream_pool();
    void *p = block_in(pool, MIB, s);
    ok(ds_pool_destroy(pool));
    assert_int_equal(up.frees, 0);
    paint(p, MIB, 7, s);
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    assert_int_equal(up.frees, 1);
    assert_int_equal(up.strange, 0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_what_an_upstream_gave_is_returned_at_shutdown(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    ds_pool pool = upstream_pool(), other = pool_with((ds_pool_desc){ .label = "left behind" });
    void *p = block_in(pool, MIB, s), *q = block_in(pool, 9 * MIB, s), *r = block_in(other, MIB, s);
    (void)r;
    paint(p, MIB, 7, s);
    ok(ds_mem_free(q));
    int allocs = up.allocs;
    assert_true(allocs >= 2);
    harness_restart(NULL);
    assert_int_equal(up.frees, allocs);
    refused(ds_pool_destroy(pool), DS_ERR_INVALID_HANDLE);
    refused(ds_pool_push(other), DS_ERR_INVALID_HANDLE);
}

static void test_an_empty_upstream_is_told_apart_from_a_limit(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_TORCH);
    begin_with(&c);
    ds_stream s = stream(0);
    ds_pool pool = upstream_pool();
    void *p = NULL;
    up.refuse = 1;
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = MIB, .stream = s, .pool = pool }, &p),
            DS_ERR_OUT_OF_MEMORY);
    assert_null(p);
    assert_non_null(strstr(ds_error_get_last(), "upstream"));
    assert_int_equal(pool_stat(pool, "num_device_alloc"), 0);
    assert_int_equal(pool_stat(pool, "reserved_bytes.all.current"), 0);
    up.refuse = 0;
    ok(ds_mem_set_limit(harness_device(0), MIB));
    int before = up.allocs;
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = MIB, .stream = s, .pool = pool }, &p),
            DS_ERR_LIMIT_EXCEEDED);
    assert_null(strstr(ds_error_get_last(), "upstream"));
    assert_int_equal(up.allocs, before); /* nobody asked it */
    ok(ds_mem_set_limit(harness_device(0), 0));
    p = block_in(pool, MIB, s);
    assert_int_equal(up.allocs, before + 1);
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    assert_int_equal(up.frees, 1);
    ok(ds_stream_destroy(s));
    finish();
}

/* Blocks are aligned to 512 because segments are. */
static void *crooked_alloc(ptrdiff_t size, int device, void *stream) {
    char *p = up_alloc(size + 512, device, stream);
    return p ? p + 16 : NULL;
}

static void crooked_free(void *ptr, ptrdiff_t size, int device, void *stream) {
    up_free((char *)ptr - 16, size + 512, device, stream);
}

static void test_an_upstream_that_does_not_align_is_refused(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    void *p = NULL;
    memset(&up, 0, sizeof up);
    ds_pool pool = pool_with((ds_pool_desc){ .alloc_fn = crooked_alloc, .free_fn = crooked_free });
    refused_any(ds_mem_alloc_with(&(ds_mem_request){ .size = MIB, .stream = s, .pool = pool }, &p));
    assert_null(p);
    assert_int_equal(up.frees, up.allocs);
    assert_int_equal(up.strange, 0);
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* An upstream may use devstream; the user's call remains the one that is told about. */
static void test_an_upstream_does_not_change_where_a_block_comes_from(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_pool pool = upstream_pool();
    void *p = NULL;
    ds_mem_request r = { .size = 9 * MIB, .stream = s, .pool = pool, .label = "mine" };
    int line = __LINE__ + 1;
    ok(ds_mem_alloc_with(&r, &p));
    ds_mem_block b = find(p);
    assert_non_null(b.site.file);
    assert_non_null(strstr(b.site.file, "test_pools.c"));
    assert_int_equal(b.site.line, line);
    assert_string_equal(b.label, "mine");
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- snapshots, bookkeeping ---- */

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

static void test_snapshots_name_the_pool_of_each_segment(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = stream(0);
    ds_pool pool = new_pool(), other = new_pool();
    uint64_t id[2];
    char name[60];
    text before = { 0 }, all = { 0 }, one = { 0 };
    /* what other tests have left on another device */
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, add_text, &before));
    void *p[4] = { block_in(pool, MIB, s), block_in(pool, 9 * MIB, s), block_in(other, MIB, s),
                   block(MIB, s) };
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, add_text, &all));
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, DS_SNAPSHOT_NO_HISTORY, pool, add_text, &one));
    ok(ds_pool_get_id(pool, id));
    snprintf(name, sizeof name, "\"segment_pool_id\":[%llu,%llu]", (unsigned long long)id[0],
             (unsigned long long)id[1]);
    assert_int_equal(occurrences(all.at, name), 2);
    assert_int_equal(occurrences(one.at, name), 2);
    assert_int_equal(occurrences(one.at, "\"segment_pool_id\""), 2);
    assert_int_equal(occurrences(all.at, "\"segment_pool_id\":[0,0]") -
                         occurrences(before.at, "\"segment_pool_id\":[0,0]"),
                     1);
    assert_int_equal(occurrences(all.at, "\"segment_pool_id\"") -
                         occurrences(before.at, "\"segment_pool_id\""),
                     4);
    free(before.at);
    free(all.at);
    free(one.at);
    for (int i = 0; i < 4; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_pool_destroy(pool));
    ok(ds_pool_destroy(other));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_pools_that_come_and_go_leave_nothing_behind(void **state) {
    (void)state;
    ds_cpu_desc cpu = { .devices = 2 };
    ds_init_desc init = { .cpu = &cpu, .allocator = { count_alloc, count_free, NULL } };
    size_t after_some = 0;
    harness_restart(&init);
    ds_stream s = stream(0);
    for (int i = 0; i < 600; i++) {
        ds_pool pool = new_pool();
        void *p = block_in(pool, 5000, s), *q = block_in(pool, 2 * MIB, s);
        ok(ds_mem_free(p));
        ok(ds_mem_free(q));
        ok(ds_pool_destroy(pool));
        if (i == 100)
            after_some = kept_bytes;
    }
    assert_true(kept_bytes < after_some + 256 * KIB);
    ok(ds_stream_destroy(s));
    harness_restart(NULL);
    assert_int_equal(kept_bytes, 0);
}

/* Its last blocks are still in use by another stream when it is long gone. */
static void test_pending_blocks_of_a_pool_that_is_gone_are_waited_for(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        ds_stream s = stream(0), user = stream(0);
        ds_pool pool = new_pool();
        void *p = block_in(pool, 3 * MIB, s);
        ok(ds_pool_destroy(pool));
        gate_close(user, &g);
        ok(ds_mem_record_use(p, user));
        ok(ds_mem_free(p));
        pthread_t thread = spawn(open_later, &g);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        assert_int_equal(ds_mem_get_reserved(harness_device(0)), 0);
        join(thread);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

/* A description of a pool is used again: nothing of the old one may show. */
static void test_a_new_pool_has_nothing_of_one_that_is_gone(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int captured = 0; captured < 2; captured++) {
            begin(preset);
            harness_warm_up();
            ds_stream s = stream(0);
            ds_pool pool;
            ds_graph g;
            void *p, *q;
            for (int i = 0; i < 3; i++) { /* as many as were ever there at once */
                ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0),
                                                   .limit = 4 * MIB,
                                                   .no_split = 1,
                                                   .use_on_oom = 1 },
                                  &pool));
                p = block_in(pool, 1000, s);
                ok(ds_mem_free(p));
                ok(ds_pool_destroy(pool));
                ok(ds_mem_empty_cache(harness_device(0), NULL));
            }
            if (captured) {
                harness_watch(s);
                ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
                p = block(24 * MIB, s);
                q = block(1000, s);
                pool = find(p).pool;
            } else {
                pool = new_pool();
                p = block_in(pool, 24 * MIB, s);
                q = block_in(pool, 1000, s);
            }
            assert_int_equal(size_of(q), 1024);
            if (!captured) {
                assert_int_equal(pool_stat(pool, "allocation.all.allocated"), 2);
                assert_int_equal(pool_stat(pool, "allocation.all.freed"), 0);
                ok(ds_pool_destroy(pool));
            } else {
                paint(p, 1000, 1, s);
                ok(ds_capture_end(s, &g));
                ok(ds_graph_destroy(g));
            }
            ok(ds_mem_free(p));
            ok(ds_mem_free(q));
            ok(ds_stream_destroy(s));
            await_graphs_memory(0);
            finish();
        }
}

/* An upstream that uses devstream itself. */
enum { ASK_THE_POOL, EMPTY_THE_POOL, ASK_THE_THREADS_POOL, EMPTY_THE_DEVICE, WAYS_BACK };

static struct {
    int way, calls;
    ds_pool pool, from;
    ds_stream stream;
    ds_result result;
    char sentence[200];
} way_back;

static void *come_back(ptrdiff_t size, int device, void *s) {
    void *p = NULL, *q = NULL;
    (void)s;
    way_back.calls++;
    switch (way_back.way) {
    case ASK_THE_POOL:
        way_back.result = ds_mem_alloc_with(
            &(ds_mem_request){ .size = 1000, .stream = way_back.stream, .pool = way_back.pool },
            &q);
        break;
    case EMPTY_THE_POOL:
        way_back.result = ds_pool_empty_cache(way_back.pool, NULL);
        break;
    case ASK_THE_THREADS_POOL:
        way_back.result = ds_mem_alloc(1000, way_back.stream, &q);
        break;
    default:
        way_back.result = ds_mem_empty_cache(harness_device(device), NULL);
    }
    snprintf(way_back.sentence, sizeof way_back.sentence, "%s",
             way_back.result < 0 ? ds_error_get_last() : "");
    if (q)
        way_back.from = pool_of(q);
    ok_thread(ds_mem_free(q));
    ok_thread(ds_device_alloc(harness_device(device), (size_t)size, &p));
    return p;
}

static void go_back(void *p, ptrdiff_t size, int device, void *s) {
    (void)size, (void)device, (void)s;
    if (way_back.way == EMPTY_THE_POOL)
        way_back.result = ds_pool_empty_cache(way_back.pool, NULL);
    ok_thread(ds_device_free(p));
}

static void test_an_upstream_cannot_use_its_own_pool(void **state) {
    (void)state;
    for (way_back.way = 0; way_back.way < WAYS_BACK; way_back.way++) {
        int refused_here = way_back.way == ASK_THE_POOL || way_back.way == EMPTY_THE_POOL;
        begin(PRESET_TORCH);
        way_back.stream = stream(0);
        way_back.calls = 0;
        way_back.from.id = 77;
        ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0),
                                           .alloc_fn = come_back,
                                           .free_fn = go_back },
                          &way_back.pool));
        ok(ds_pool_push(way_back.pool));
        void *p = block(3 * MIB, way_back.stream);
        ok(ds_pool_pop());
        assert_int_equal(way_back.calls, 1);
        assert_int_equal(way_back.result, refused_here ? DS_ERR_NOT_PERMITTED : DS_OK);
        if (way_back.way == ASK_THE_THREADS_POOL)
            assert_int_equal(way_back.from.id, 0);
        paint(p, 3 * MIB, 1, way_back.stream);
        ok(ds_mem_free(p));
        ok(ds_pool_empty_cache(way_back.pool, NULL));
        /* by the free */
        if (way_back.way == EMPTY_THE_POOL)
            assert_int_equal(way_back.result, DS_ERR_NOT_PERMITTED);
        ok(ds_pool_destroy(way_back.pool));
        ok(ds_stream_destroy(way_back.stream));
        finish();
    }
}

const struct CMUnitTest tests_pools[] = {
    DS_TEST(test_a_pool_has_memory_of_its_own, "cupy: test_set_allocator"),
    DS_TEST(test_memory_in_a_pool_is_kept_by_stream, "alloc"),
    DS_TEST(test_a_block_of_a_pool_waits_for_the_streams_that_used_it,
            "torch: test_mempool_block_free_not_deferred"),
    DS_TEST(test_a_pool_has_the_devices_policy_or_one_of_its_own, "alloc"),
    DS_TEST(test_a_pool_that_does_not_split_has_one_block_per_segment,
            "torch: test_mempool_no_split, erased_on_release"),
    DS_TEST(test_scopes_nest_and_the_latest_counts,
            "torch: test_nested_mempool, cupy: TestAllocator::context_manager, nested"),
    DS_TEST(test_scopes_do_not_nest_without_end, "alloc"),
    DS_TEST(test_a_scope_belongs_to_its_thread,
            "torch: test_mempool_ctx_multithread, emptycache_multithread, "
            "test_allocate_in_thread_to_pool, cupy: test_allocator_thread_local"),
    DS_TEST(test_a_pool_is_used_from_several_threads, "cupy: test_reuse_between_thread"),
    DS_TEST(test_a_scope_belongs_to_its_device, "alloc"),
    DS_TEST(test_every_pool_has_an_id_of_its_own, "torch: test_mempool_id, multithread"),
    DS_TEST(test_owners_are_counted, "torch: test_mempool_with_allocator"),
    DS_TEST(test_a_pool_that_is_destroyed_inside_its_scope, "alloc"),
    DS_TEST(test_wrong_calls_on_pools_are_refused, "alloc"),
    DS_TEST(test_destroying_a_pool_frees_its_memory_but_live_blocks,
            "cupy: test_thread_local_valid, torch: test_tensor_delete_after_allocator_delete"),
    DS_TEST(test_memory_of_a_destroyed_pool_is_found_in_a_shortage,
            "torch: test_mempool_oom_recovery"),
    DS_TEST(test_empty_cache_is_a_matter_of_each_pool, "torch: test_mempool_empty_cache, inactive"),
    DS_TEST(test_emptying_a_pool_waits_for_the_work_that_uses_its_memory, "alloc"),
    DS_TEST(test_the_statistics_of_pools_are_part_of_the_devices,
            "torch: test_reserved_bytes_by_private_pools"),
    DS_TEST(test_threads_share_pools, "alloc"),
    DS_TEST(test_a_limit_of_a_pool_is_its_own,
            "cupy: test_alloc_limit, test_alloc_limit_fragmented"),
    DS_TEST(test_the_devices_limit_counts_all_pools,
            "torch: test_mempool_release_cached_blocks_during_diversion"),
    DS_TEST(test_a_pool_that_allows_it_helps_out_when_memory_is_short,
            "torch: test_mempool_limited_memory_with_allocator"),
    DS_TEST(test_a_pool_that_is_gone_helps_nobody_out,
            "torch: test_deleted_mempool_not_used_on_oom"),
    DS_TEST(test_a_shutdown_ends_all_scopes, "alloc"),
    DS_TEST(test_a_pool_takes_its_segments_from_its_upstream,
            "torch: test_mempool_with_allocator, cupy: TestPythonFunctionAllocator"),
    DS_TEST(test_an_upstream_has_growing_segments_never, "torch: test_mempool_expandable"),
    DS_TEST(test_a_pools_upstream_serves_blocks_that_outlive_the_pool,
            "torch: test_tensor_delete_after_allocator_delete"),
    DS_TEST(test_what_an_upstream_gave_is_returned_at_shutdown, "alloc"),
    DS_TEST(test_an_empty_upstream_is_told_apart_from_a_limit,
            "torch: test_mempool_allocator_failure_message"),
    DS_TEST(test_an_upstream_that_does_not_align_is_refused, "alloc"),
    DS_TEST(test_an_upstream_does_not_change_where_a_block_comes_from, "alloc"),
    DS_TEST(test_snapshots_name_the_pool_of_each_segment, "torch: test_pool_id_in_snapshot"),
    DS_TEST(test_pools_that_come_and_go_leave_nothing_behind, "peers D6"),
    DS_TEST(test_pending_blocks_of_a_pool_that_is_gone_are_waited_for, "alloc"),
    DS_TEST(test_a_new_pool_has_nothing_of_one_that_is_gone, "peers D6"),
    DS_TEST(test_an_upstream_cannot_use_its_own_pool, "alloc"),
};
const size_t tests_pools_count = sizeof tests_pools / sizeof *tests_pools;
