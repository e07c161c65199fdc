/* Memory in captures: it belongs to the graph, and the allocator does nothing that a capture
   forbids. */
#include "layout.h"

static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                         DS_CAPTURE_RELAXED };

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

static ds_pool pool_of(const void *p) {
    return find(p).pool;
}

static size_t reserved(int device) {
    return ds_mem_get_reserved(harness_device(device));
}

static void capture(ds_stream s, ds_capture_mode mode) {
    harness_watch(s);
    ok(ds_capture_begin(s, mode));
}

static ds_graph_exec end_capture(ds_stream s, ds_graph *out) {
    ds_graph g;
    ds_graph_exec exec;
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &exec));
    if (out)
        *out = g;
    else
        ok(ds_graph_destroy(g));
    return exec;
}

static void launch(ds_graph_exec exec, ds_stream s) {
    ok(ds_graph_launch(exec, s));
    ok(ds_stream_synchronize(s));
}

static void empty(void) {
    ok(ds_mem_empty_cache(harness_device(0), NULL));
}

/* CUDA lets go of what a graph had in its own time. */
static int is_empty(void) {
    empty();
    return reserved(0) == 0;
}

static void over(void) {
    eventually(is_empty());
    finish();
}

/* A copy in a capture, from or to memory that stays where it is. */
static void copy(void *to, const void *from, ds_stream s) {
    ok_thread(ds_copy_with(to, from, 8, DS_COPY_HOST_STABLE, s));
}

/* out = fold(fold(in, n), n + 1), by way of memory that is freed in the capture; `size` bytes of
   it are written all over. */
static void captured_work(ds_stream s, const uint64_t *in, uint64_t *out, uint64_t n, size_t size) {
    uint64_t *a = block(size, s), *b;
    paint(a, size, (uint32_t)n, s);
    copy(a, in, s);
    fold(s, a, n);
    b = block(size, s);
    paint(b, size, (uint32_t)n, s);
    copy(b, a, s);
    ok(ds_mem_free(a));
    fold(s, b, n + 1);
    copy(out, b, s);
    ok(ds_mem_free(b));
}

static uint64_t work_result(uint64_t in, uint64_t n) {
    return fold_host(fold_host(in, n), n + 1);
}

/* Live blocks of all sizes on the streams, painted, so that whoever writes where nothing is his
   is found out. */
enum { CROWD = 30 };

typedef struct crowd {
    void *p[CROWD];
    size_t size[CROWD];
    ds_stream s;
} crowd;

static void crowd_in(crowd *c, ds_stream s) {
    c->s = s;
    for (uint32_t i = 0; i < CROWD; i++) {
        c->size[i] = (size_t)300 << (i % 15);
        c->p[i] = block(c->size[i], s);
        paint(c->p[i], c->size[i], 1000 + i, s);
    }
}

static void crowd_out(crowd *c, looks *l) {
    for (uint32_t i = 0; i < CROWD; i++) {
        look(l, c->p[i], c->size[i], 1000 + i, c->s);
        ok(ds_mem_free(c->p[i]));
    }
    ok(ds_stream_synchronize(c->s));
    assert_true(looks_right(l));
}

/* ---- whose the memory is ---- */

static void test_a_capture_has_a_pool_of_its_own(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        ds_pool seen[3], scope = new_pool();
        ds_graph_exec exec[3];
        ds_graph g[3];
        uint64_t id[3][2];
        void *results[3];
        for (int i = 0; i < 3; i++) {
            ds_capture_info info;
            capture(s, DS_CAPTURE_GLOBAL);
            ok(ds_capture_get_info(s, &info));
            results[i] = block(3000, s);
            void *p = block(3 * MIB, s);
            seen[i] = pool_of(p);
            assert_true(seen[i].id != 0 && seen[i].id == pool_of(results[i]).id);
            ok(ds_pool_push(scope)); /* not even a scope of the thread takes its place */
            void *q = block(3000, s);
            assert_true(pool_of(q).id == seen[i].id);
            ok(ds_pool_pop());
            paint(q, 3000, 1, s);
            ok(ds_mem_free(p));
            ok(ds_mem_free(q));
            ok(ds_pool_get_id(seen[i], id[i]));
            assert_true(id[i][0] == info.id && id[i][1] == 0);
            assert_int_equal(owners(seen[i]), 1);
            exec[i] = end_capture(s, &g[i]);
            assert_int_equal(owners(seen[i]), 1);
            p = block(3000, s);
            assert_int_equal(pool_of(p).id, 0);
            ok(ds_mem_free(p));
            for (int k = 0; k < i; k++)
                assert_true(seen[k].id != seen[i].id && id[k][0] != id[i][0]);
        }
        for (int i = 0; i < 3; i++) {
            ok(ds_graph_exec_destroy(exec[i]));
            ok(ds_graph_destroy(g[i]));
            ok(ds_mem_free(results[i]));
        }
        ok(ds_pool_destroy(scope));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_the_pool_of_a_graph_is_nobodys_to_destroy(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        uint64_t *in = word(4), *out = word(0);
        size_t bytes = 1;
        capture(s, DS_CAPTURE_GLOBAL);
        void *kept = block(3000, s);
        ds_pool pool = pool_of(kept);
        captured_work(s, in, out, 5, 3 * MIB);
        ds_graph_exec exec = end_capture(s, NULL);
        size_t before = reserved(0);
        refused(ds_pool_destroy(pool), DS_ERR_ILLEGAL_STATE);
        ok(ds_pool_empty_cache(pool, &bytes));
        assert_int_equal(bytes, 0);
        empty();
        assert_int_equal(reserved(0), before);
        launch(exec, s);
        assert_true(*out == work_result(4, 5));
        ok(ds_mem_free(kept));
        ok(ds_graph_exec_destroy(exec));
        eventually(is_empty());
        ok(ds_stream_destroy(s));
        over();
    }
}

/* Everything that may run the graph keeps its memory; when the last one is gone, it is given
   back. */
static void test_a_graphs_memory_lives_as_long_as_any_executable(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        looks *l = looks_create(100000);
        crowd c;
        ds_graph g, clone, parent;
        ds_graph_exec exec, exec2, exec3;
        ds_graph_node node;
        uint64_t *in = word(4), *out = word(0);
        capture(s, DS_CAPTURE_GLOBAL);
        captured_work(s, in, out, 5, 9 * MIB);
        ok(ds_capture_end(s, &g));
        size_t held = reserved(0);
        assert_true(held > 0);
        empty();
        assert_int_equal(reserved(0), held);
        ok(ds_graph_clone(g, &clone));
        ok(ds_graph_create(NULL, &parent));
        ds_node_desc child = { .kind = DS_NODE_CHILD };
        child.u.child = g;
        ok(ds_graph_add(parent, &child, NULL, 0, &node));
        ok(ds_graph_instantiate(g, NULL, &exec));
        ok(ds_graph_destroy(g));
        crowd_in(&c, s);
        size_t all = reserved(0);
        empty();
        assert_true(reserved(0) >= all - 2 * MIB);
        launch(exec, s);
        assert_true(*out == work_result(4, 5));
        ok(ds_graph_exec_destroy(exec));
        *in = 7;
        ok(ds_graph_instantiate(clone, NULL, &exec2));
        ok(ds_graph_destroy(clone));
        empty();
        launch(exec2, s);
        assert_true(*out == work_result(7, 5));
        ok(ds_graph_exec_destroy(exec2));
        *in = 8;
        ok(ds_graph_instantiate(parent, NULL, &exec3));
        ok(ds_graph_destroy(parent));
        empty();
        launch(exec3, s);
        assert_true(*out == work_result(8, 5));
        crowd_out(&c, l);
        ok(ds_graph_exec_destroy(exec3));
        eventually(is_empty());
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_a_running_launch_keeps_the_memory_of_its_graph(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        crowd c;
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0), t = stream(0);
        looks *l = looks_create(100000);
        uint64_t *in = word(4), *out = word(0);
        capture(s, DS_CAPTURE_GLOBAL);
        captured_work(s, in, out, 5, 9 * MIB);
        ds_graph_exec exec = end_capture(s, NULL);
        gate_close(s, &g);
        ok(ds_graph_launch(exec, s));
        ok(ds_graph_exec_destroy(exec));
        size_t before = reserved(0);
        ok(ds_mem_trim(harness_device(0), 0, NULL));
        assert_int_equal(reserved(0), before);
        crowd_in(&c, t);
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        assert_true(*out == work_result(4, 5));
        crowd_out(&c, l);
        eventually(is_empty());
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        over();
    }
}

/* A block of the graph is freed while a launch is between its write and its read, or before that
   launch begins. The graph is destroyed before the free, after it, or later. */
static void test_poison_leaves_the_memory_of_graphs_alone(void **state) {
    (void)state;

    enum { EARLY_FREE = 1, EARLY_END = 2, LATE_END = 4, WAYS = 5 };

    for (int way = 0; way < WAYS; way++) {
        if ((way & EARLY_FREE) && (way & EARLY_END))
            continue; /* without the executable there is no launch behind the free */
        gate inside = { 0 }, before = { 0 };
        ds_mem_config c = ds_mem_config_default();
        c.poison = 1;
        c.debug = 2;
        begin_with(&c);
        harness_warm_up();
        ds_stream s = stream(0), runner = stream(0);
        looks *l = looks_create(1000);
        capture(s, DS_CAPTURE_GLOBAL);
        void *p = block(4096, s);
        paint(p, 4096, 7, s);
        gate_close(s, &inside);
        look(l, p, 4096, 7, s);
        ds_graph_exec exec = end_capture(s, NULL);

        gate_close(s, &before); /* holds back what the free enqueues */
        if (way & EARLY_FREE)
            ok(ds_mem_free(p));
        ok(ds_graph_launch(exec, runner));
        gate_wait_entered(&inside);
        if (way & EARLY_END)
            ok(ds_graph_exec_destroy(exec));
        if (!(way & EARLY_FREE))
            ok(ds_mem_free(p));
        if (way & LATE_END)
            ok(ds_graph_exec_destroy(exec));
        gate_open(&before);
        ok(ds_stream_synchronize(s));
        gate_open(&inside);
        ok(ds_stream_synchronize(runner));

        if (!looks_right(l))
            fail_msg("way %d: a launch did not read what it had written", way);
        if (!(way & (EARLY_END | LATE_END)))
            ok(ds_graph_exec_destroy(exec));
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(runner));
        over();
    }
}

static void test_an_executable_keeps_the_memory_of_its_updating_graph(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        crowd c;
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        looks *l = looks_create(100000);
        uint64_t *in = word(4), *out = word(0);
        ds_graph g2;
        ds_graph_update_info info;
        capture(s, DS_CAPTURE_GLOBAL);
        captured_work(s, in, out, 5, 3 * MIB);
        ds_graph_exec exec = end_capture(s, NULL);
        capture(s, DS_CAPTURE_GLOBAL);
        captured_work(s, in, out, 6, 3 * MIB);
        ok(ds_capture_end(s, &g2));
        ok(ds_graph_exec_update(exec, g2, &info));
        ok(ds_graph_destroy(g2));
        empty();
        crowd_in(&c, s);
        launch(exec, s);
        assert_true(*out == work_result(4, 6));
        crowd_out(&c, l);
        ok(ds_graph_exec_destroy(exec));
        eventually(is_empty()); /* CUDA lets go in its own time */
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_results_of_a_graph_outlive_it_and_go_by_themselves(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        looks *l = looks_create(100000);
        capture(s, DS_CAPTURE_GLOBAL);
        void *result = block(9 * MIB, s), *temporary = block(9 * MIB, s);
        paint(temporary, 9 * MIB, 3, s);
        paint(result, 9 * MIB, 4, s);
        ok(ds_mem_free(temporary));
        ds_graph_exec exec = end_capture(s, NULL);
        launch(exec, s);
        ok(ds_graph_exec_destroy(exec));
        empty();
        assert_true(reserved(0) >= 9 * MIB);
        look(l, result, 9 * MIB, 4, s);
        ok(ds_stream_synchronize(s));
        assert_true(looks_right(l));
        assert_int_equal(stat(0, "allocation.all.current"), 1);
        ok(ds_mem_free(result));
        eventually(is_empty());
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_what_a_graph_has_left_is_found_when_memory_is_short(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        ds_mem_config c = config_of(preset);
        c.limit = 64 * MIB;
        begin_with(&c);
        harness_warm_up();
        ds_stream s = stream(0);
        void *p = NULL;
        capture(s, DS_CAPTURE_GLOBAL);
        void *q = block(40 * MIB, s);
        paint(q, 40 * MIB, 3, s);
        ok(ds_mem_free(q));
        ds_graph_exec exec = end_capture(s, NULL);
        no_memory(ds_mem_alloc(40 * MIB, s, &p)); /* it is the graph's */
        assert_null(p);
        launch(exec, s);
        ok(ds_graph_exec_destroy(exec));
        eventually(p || ds_mem_alloc(40 * MIB, s, &p) == DS_OK);
        ok(ds_mem_free(p));
        ok(ds_stream_destroy(s));
        over();
    }
}

/* ---- graphs that share ---- */

static void test_graphs_that_share_a_pool_run_one_after_the_other(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int own = 0; own < 2; own++) { /* a pool of ours, or the one of the first capture */

            enum { GRAPHS = 3, SIZE = 9 << 20 };

            begin(preset);
            harness_warm_up();
            ds_stream s = stream(0);
            ds_pool pool = own ? new_pool() : (ds_pool){ 0 };
            ds_graph_exec exec[GRAPHS];
            uint64_t *in = word(4), *between = word(0), *out = word(0);
            size_t after_first = 0;
            void *kept = NULL;
            for (int i = 0; i < GRAPHS; i++) {
                capture(s, DS_CAPTURE_GLOBAL);
                if (pool.id)
                    ok(ds_capture_set_pool(s, pool));
                /* twice is once */
                if (pool.id)
                    ok(ds_capture_set_pool(s, pool));
                if (i == 0) {
                    kept = block(100, s);
                    pool = pool_of(kept);
                }
                captured_work(s, i ? between : in, i < GRAPHS - 1 ? between : out, (uint64_t)i * 10,
                              SIZE);
                exec[i] = end_capture(s, NULL);
                if (i == 0)
                    after_first = reserved(0);
                /* what the first has freed the others use */
                assert_int_equal(reserved(0), after_first);
                assert_int_equal(owners(pool), own + i + 1);
            }
            for (uint64_t round = 0; round < 3; round++) {
                *in = round;
                for (int i = 0; i < GRAPHS; i++)
                    ok(ds_graph_launch(exec[i], s));
                ok(ds_stream_synchronize(s));
                assert_true(*out == work_result(work_result(work_result(round, 0), 10), 20));
            }
            ok(ds_mem_free(kept));
            for (int i = 0; i < GRAPHS; i++) {
                empty();
                assert_int_equal(reserved(0), after_first); /* until the last of them is gone */
                ok(ds_graph_exec_destroy(exec[i]));
                ok(ds_stream_synchronize(s));
                if (i < GRAPHS - 1)
                    eventually(owners(pool) == own + GRAPHS - 1 - i);
            }
            if (own)
                ok(ds_pool_destroy(pool));
            eventually(is_empty());
            ok(ds_stream_destroy(s));
            over();
        }
}

/* What belongs to a graph is taken from nobody's pool as long as it may run, whatever its owner
   says. */
static void test_a_pool_that_a_graph_uses_keeps_its_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        crowd c;
        ds_mem_config config = config_of(preset);
        config.limit = 96 * MIB;
        begin_with(&config);
        harness_warm_up();
        ds_stream s = stream(0);
        ds_pool pool = pool_with((ds_pool_desc){ .use_on_oom = 1 });
        looks *l = looks_create(100000);
        uint64_t *in = word(4), *out = word(0);
        size_t bytes = 1;
        void *p = NULL;
        capture(s, DS_CAPTURE_GLOBAL);
        ok(ds_capture_set_pool(s, pool));
        captured_work(s, in, out, 5, 15 * MIB);
        ds_graph_exec exec = end_capture(s, NULL);
        int64_t held = pool_stat(pool, "reserved_bytes.all.current");
        ok(ds_pool_empty_cache(pool, &bytes));
        assert_int_equal(bytes, 0);
        /* out of memory, in the pool and outside of it */
        no_memory(ds_mem_alloc_with(
            &(ds_mem_request){ .size = 98 * MIB, .stream = s, .pool = pool }, &p));
        no_memory(ds_mem_alloc(98 * MIB, s, &p));
        assert_true(pool_stat(pool, "reserved_bytes.all.current") == held);
        void *other[8];
        int n = 0;
        while (n < 8 && ds_mem_alloc(14 * MIB, s, &other[n]) == DS_OK)
            assert_int_equal(pool_of(other[n++]).id, 0);
        assert_true(n > 0 && n < 8);
        launch(exec, s);
        assert_true(*out == work_result(4, 5));
        while (n)
            ok(ds_mem_free(other[--n]));
        ok(ds_pool_destroy(pool));
        empty();
        crowd_in(&c, s);
        launch(exec, s);
        assert_true(*out == work_result(4, 5));
        crowd_out(&c, l);
        ok(ds_graph_exec_destroy(exec));
        eventually(is_empty());
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_a_capture_is_told_its_pool_before_it_allocates(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    harness_warm_up();
    ds_stream s = stream(0), other = stream(0);
    ds_pool a = new_pool(), b = new_pool(), gone = new_pool();
    ok(ds_pool_destroy(gone));
    capture(s, DS_CAPTURE_GLOBAL);
    refused(ds_capture_set_pool(other, a), DS_ERR_ILLEGAL_STATE);
    refused(ds_capture_set_pool(s, gone), DS_ERR_INVALID_HANDLE);
    refused(ds_capture_set_pool((ds_stream){ 0 }, a), DS_ERR_INVALID_HANDLE);
    if (harness_device_count() > 1) {
        ds_pool far = pool_with((ds_pool_desc){ .device = harness_device(1) });
        refused(ds_capture_set_pool(s, far), DS_ERR_DEVICE_MISMATCH);
        ok(ds_pool_destroy(far));
    }
    ok(ds_capture_set_pool(s, a));
    refused(ds_capture_set_pool(s, b), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(owners(a), 2);
    assert_int_equal(owners(b), 1);
    void *p = block(100, s);
    assert_true(pool_of(p).id == a.id);
    ok(ds_mem_free(p));
    ds_capture_status status;
    ok(ds_capture_get_status(s, &status)); /* nothing of that has hurt it */
    assert_int_equal(status, DS_CAPTURE_ACTIVE);
    ok(ds_graph_exec_destroy(end_capture(s, NULL)));
    capture(s, DS_CAPTURE_GLOBAL);
    p = block(100, s);
    refused(ds_capture_set_pool(s, b), DS_ERR_ILLEGAL_STATE); /* it has one of its own now */
    ok(ds_mem_free(p));
    ok(ds_graph_exec_destroy(end_capture(s, NULL)));
    eventually(owners(a) == 1);
    ok(ds_pool_destroy(a));
    ok(ds_pool_destroy(b));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    over();
}

/* The same pool in captures on different streams: memory of the one is not waited for by the
   other, which could only break it. */
static void test_captures_on_several_streams_share_a_pool(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int reuse = DS_REUSE_NEVER; reuse <= DS_REUSE_ALWAYS; reuse++)
            for (int ended = 0; ended < 2; ended++) {
                ds_mem_config c = config_of(preset);
                c.reuse = reuse;
                begin_with(&c);
                harness_warm_up();
                ds_pool pool = new_pool();
                ds_graph_exec exec[3];
                uint64_t *in = word(4), *between = word(0), *out = word(0);
                ds_stream s[3];
                for (int i = 0; i < 3; i++) {
                    s[i] = stream(0);
                    ds_stream side = stream(0);
                    capture(s[i], modes[i]);
                    ok(ds_capture_set_pool(s[i], pool));
                    captured_work(s[i], i ? between : in, i < 2 ? between : out, (uint64_t)i * 10,
                                  3 * MIB);
                    void *p = block(5000, s[i]); /* one is left pending by the capture */
                    paint(p, 5000, 1, s[i]);
                    ok(ds_stream_wait_stream(side, s[i]));
                    paint(p, 5000, 2, side);
                    ok(ds_mem_record_use(p, side));
                    ok(ds_mem_free(p));
                    ok(ds_stream_wait_stream(s[i], side));
                    exec[i] = end_capture(s[i], NULL);
                    ok(ds_stream_destroy(side));
                    if (ended)
                        ok(ds_stream_destroy(s[i]));
                }
                ds_stream t = ended ? stream(0) : s[0];
                for (uint64_t round = 0; round < 2; round++) {
                    *in = round;
                    for (int i = 0; i < 3; i++)
                        ok(ds_graph_launch(exec[i], t));
                    ok(ds_stream_synchronize(t));
                    assert_true(*out == work_result(work_result(work_result(round, 0), 10), 20));
                }
                for (int i = 0; i < 3; i++)
                    ok(ds_graph_exec_destroy(exec[i]));
                for (int i = 0; i < 3 && !ended; i++)
                    ok(ds_stream_destroy(s[i]));
                if (ended)
                    ok(ds_stream_destroy(t));
                ok(ds_pool_destroy(pool));
                over();
            }
}

/* ---- streams inside of a capture ---- */

static void test_forked_streams_allocate_in_the_pool_of_the_capture(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        enum { SIZE = 3 << 20 };

        crowd c;
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0), fork = stream(0), outside = stream(0);
        looks *l = looks_create(100000);
        uint64_t *in = word(4), *out = word(0);
        capture(s, DS_CAPTURE_GLOBAL);
        uint64_t *x = block(SIZE, s);
        copy(x, in, s);
        ok(ds_stream_wait_stream(fork, s));
        uint64_t *y = block(SIZE, fork), *z = block(SIZE, outside);
        assert_true(pool_of(x).id != 0 && pool_of(y).id == pool_of(x).id);
        assert_int_equal(pool_of(z).id, 0);
        copy(y, x, fork);
        fold(fork, y, 2);
        ok(ds_mem_record_use(x, fork));
        ok(ds_stream_wait_stream(s, fork));
        copy(out, y, s);
        ok(ds_mem_record_use(y, s));
        ok(ds_mem_free(x));
        ok(ds_mem_free(y));
        ds_graph_exec exec = end_capture(s, NULL);
        crowd_in(&c, fork);
        (void)exec;
        launch(exec, s);
        crowd_out(&c, l);
        ok(ds_mem_free(z));
        ok(ds_graph_exec_destroy(exec));
        eventually(is_empty());
        looks_destroy(l);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(fork));
        ok(ds_stream_destroy(outside));
        over();
    }
}

/* A block that another stream of the capture has used is used again only behind that use, in the
   graph. */
static void reuse_behind_uses(int preset, int streams, int join) {
    enum { SIZE = 9 << 20 };

    begin(preset);
    harness_warm_up();
    ds_stream s = stream(0), t[3];
    looks *l = looks_create(100000);
    capture(s, DS_CAPTURE_GLOBAL);
    void *p = block(SIZE, s);
    paint(p, SIZE, 1, s);
    for (int i = 0; i < streams; i++) {
        t[i] = stream(0);
        ok(ds_stream_wait_stream(t[i], s));
        look(l, p, SIZE, 1, t[i]);
        ok(ds_mem_record_stream(p, t[i]));
    }
    ok(ds_mem_free(p));
    for (int i = 0; join && i < streams; i++)
        ok(ds_stream_wait_stream(s, t[i]));
    void *q = block(SIZE, s);
    /* rather than reserving more */
    if (preset == PRESET_DEFAULT || preset == PRESET_PLAIN)
        assert_ptr_equal(q, p);
    paint(q, SIZE, 2, s);
    look(l, q, SIZE, 2, s);
    void *r = block_in(pool_of(q), 700, s);
    ok(ds_mem_free(r));
    for (int i = 0; !join && i < streams; i++)
        ok(ds_stream_wait_stream(s, t[i]));
    ok(ds_mem_free(q));
    ds_graph_exec exec = end_capture(s, NULL);
    for (int i = 0; i < 3; i++)
        launch(exec, s);
    assert_true(looks_right(l));
    ok(ds_graph_exec_destroy(exec));
    looks_destroy(l);
    ok(ds_stream_destroy(s));
    for (int i = 0; i < streams; i++)
        ok(ds_stream_destroy(t[i]));
    over();
}

static void test_memory_is_used_again_behind_its_uses_in_a_capture(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int streams = 1; streams <= 3; streams += 2)
            for (int join = 0; join < 2; join++)
                reuse_behind_uses(preset, streams, join);
}

/* Work from before the capture is still there when the capture is over. */
static void test_a_use_from_before_the_capture_counts_for_a_free_in_it(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int way = 0; way < 2; way++)
            for (int which = 0; which < 2;
                 which++) { /* the capturing stream is the one that used it, or the block's own */
                gate g = { 0 };
                begin(preset);
                harness_warm_up();
                ds_stream s = stream(0), t = stream(0), capturing = which ? s : t;
                looks *l = looks_create(1000);
                void *p = block(9000, s);
                paint(p, 9000, 1, s);
                ok(ds_stream_wait_stream(t, s));
                gate_close(t, &g);
                look(l, p, 9000, 1, t);
                if (way)
                    ok(ds_mem_record_stream(p, t));
                else
                    ok(ds_mem_record_use(p, t));
                capture(capturing, DS_CAPTURE_RELAXED);
                ok(ds_mem_free(p));
                ds_graph_exec exec = end_capture(capturing, NULL);
                /* and nothing of it is in the graph or the way of it */
                for (int i = 0; i < 3; i++) {
                    void *q = block(9000, s);
                    paint(q, 9000, 2, s);
                    ok(ds_mem_free(q));
                }
                gate_open(&g);
                ok(ds_device_synchronize(harness_device(0)));
                assert_true(looks_right(l));
                ok(ds_graph_exec_destroy(exec));
                eventually(is_empty());
                assert_int_equal(stat(0, "active.all.current"), 0);
                assert_int_equal(reserved(0), 0);
                looks_destroy(l);
                ok(ds_stream_destroy(s));
                ok(ds_stream_destroy(t));
                over();
            }
}

/* The capture of one stream is none of the others' business: they wait for no capturing stream,
   and so are not drawn into the capture. */
static void test_reused_memory_draws_no_stream_into_a_capture(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int reuse = DS_REUSE_NEVER; reuse <= DS_REUSE_ALWAYS; reuse++)
            for (int m = 0; m < 3; m++) {
                ds_mem_config c = config_of(preset);
                ds_capture_status status;
                c.reuse = reuse;
                c.limit = 80 * MIB;
                begin_with(&c);
                harness_warm_up();
                ds_stream s = stream(0), t = stream(0);
                looks *l = looks_create(300000);
                void *p = block(30 * MIB, s), *q = NULL, *r = NULL;
                paint(p, 30 * MIB, 1, s);
                look(l, p, 30 * MIB, 1, s);
                ok(ds_mem_free(p));
                capture(s, modes[m]);
                ok(ds_mem_alloc(30 * MIB, t, &q));
                paint(q, 30 * MIB, 2, t);
                look(l, q, 30 * MIB, 2, t);
                /* for that only what s has is left */
                if (ds_mem_alloc(30 * MIB, t, &r) == DS_OK)
                    paint(r, 30 * MIB, 3, t);
                ok(ds_capture_get_status(t, &status));
                assert_int_equal(status, DS_CAPTURE_NONE);
                ok(ds_capture_get_status(s, &status));
                assert_int_equal(status, DS_CAPTURE_ACTIVE);
                ds_graph g;
                ok(ds_capture_end(s, &g));
                ok(ds_device_synchronize(harness_device(0)));
                assert_true(looks_right(l));
                ok(ds_mem_free(q));
                ok(ds_mem_free(r));
                ok(ds_graph_destroy(g));
                looks_destroy(l);
                ok(ds_stream_destroy(s));
                ok(ds_stream_destroy(t));
                over();
            }
}

static void test_a_stream_ended_in_a_capture_leaves_memory_in_order(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int m = 0; m < 3; m++) {
            gate g = { 0 };
            ds_mem_config c = config_of(preset);
            c.reuse = DS_REUSE_ALWAYS;
            begin_with(&c);
            harness_warm_up();
            ds_stream s = stream(0), t = stream(0), capturing = stream(0);
            looks *l = looks_create(100000);
            void *p = block(9 * MIB, s);
            gate_close(s, &g);
            paint(p, 9 * MIB, 1, s);
            look(l, p, 9 * MIB, 1, s);
            ok(ds_mem_free(p));
            capture(capturing, modes[m]);
            ok(ds_stream_destroy(s));
            ds_graph_exec exec = end_capture(capturing, NULL);
            void *q = block(9 * MIB, t);
            paint(q, 9 * MIB, 2, t);
            look(l, q, 9 * MIB, 2, t);
            gate_open(&g);
            ok(ds_device_synchronize(harness_device(0)));
            assert_true(looks_right(l));
            ok(ds_mem_free(q));
            ok(ds_graph_exec_destroy(exec));
            looks_destroy(l);
            ok(ds_stream_destroy(t));
            ok(ds_stream_destroy(capturing));
            over();
        }
}

static void test_memory_of_an_ended_stream_stays_mapped_under_its_work(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0), capturing = stream(0);
        looks *l = looks_create(100000);
        void *p = block(9 * MIB, s);
        gate_close(s, &g);
        paint(p, 9 * MIB, 1, s);
        look(l, p, 9 * MIB, 1, s);
        ok(ds_mem_free(p));
        capture(capturing, DS_CAPTURE_THREAD_LOCAL);
        ok(ds_stream_destroy(s));
        ds_graph_exec exec = end_capture(capturing, NULL);
        pthread_t opener = spawn(open_later, &g);
        empty();
        assert_int_equal(g.open, 1);
        join(opener);
        ok(ds_device_synchronize(harness_device(0)));
        assert_true(looks_right(l));
        ok(ds_graph_exec_destroy(exec));
        looks_destroy(l);
        ok(ds_stream_destroy(capturing));
        over();
    }
}

/* ---- what a capture forbids ---- */

/* New segments, growing and plain ones, from the driver, from an upstream, by each backend; in
   this thread and in another one. */
typedef struct beside {
    ds_stream s;
    ds_pool upstreamed;
} beside;

static void *allocate_beside(void *arg) {
    beside *b = arg;
    void *p[6];
    for (size_t i = 0; i < 6; i++)
        p[i] = i % 3 == 2 ? block_in(b->upstreamed, (i + 1) * MIB, b->s)
                          : block((i + 1) * 5 * MIB, b->s);
    for (int i = 0; i < 6; i++)
        ok_thread(ds_mem_free(p[i]));
    for (size_t i = 0; i < 3; i++) {
        p[i] = block(100 + i * 5 * MIB, b->s);
        paint(p[i], 100, 1, b->s);
    }
    for (int i = 0; i < 3; i++)
        ok_thread(ds_mem_free(p[i]));
    return NULL;
}

static void test_nothing_that_the_allocator_does_breaks_a_capture(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int backend = DS_MEM_NATIVE; backend <= DS_MEM_UNCACHED; backend++)
            for (int m = 0; m < 3; m++) {
                ds_mem_config c = config_of(preset);
                uint64_t *in = word(4), *out = word(0);
                size_t bytes = 1;
                c.backend = backend;
                begin_with(&c);
                harness_warm_up();
                ds_stream s = stream(0), other = stream(0);
                beside b = { .s = other, .upstreamed = upstream_pool() },
                       far = { .s = stream(0), .upstreamed = b.upstreamed };
                void *cached = block(20 * MIB, other), *before = block(3 * MIB, other);
                ok(ds_mem_free(cached));
                capture(s, modes[m]);
                captured_work(s, in, out, 5, 9 * MIB);
                captured_work(s, in, out, 6, 700);
                void *up1 = block_in(b.upstreamed, 3 * MIB, other);
                allocate_beside(&b);
                ok(ds_mem_free(before)); /* of before the capture */
                ok(ds_mem_free(up1));
                join(spawn(allocate_beside, &far));
                (void)stats_of(0);
                ok(ds_mem_validate(harness_device(0)));
                (void)layout_of(0, (ds_pool){ 0 });
                ds_mem_config same;
                ok(ds_mem_get_config(harness_device(0), &same));
                ok(ds_mem_configure(harness_device(0), &same));
                ok(ds_mem_set_limit(harness_device(0), 0));
                /* what has to wait for the device is refused, and that is all */
                refused(ds_mem_empty_cache(harness_device(0), &bytes), DS_ERR_CAPTURE_UNSUPPORTED);
                assert_int_equal(bytes, 0);
                refused(ds_mem_trim(harness_device(0), 0, NULL), DS_ERR_CAPTURE_UNSUPPORTED);
                refused(ds_pool_empty_cache(b.upstreamed, NULL), DS_ERR_CAPTURE_UNSUPPORTED);
                ds_pool made = new_pool();
                ok(ds_pool_destroy(made));
                captured_work(s, in, out, 7, 9 * MIB);
                ds_graph_exec exec = end_capture(s, NULL);
                launch(exec, s);
                assert_true(*out == work_result(4, 7));
                ok(ds_graph_exec_destroy(exec));
                assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
                ok(ds_pool_destroy(b.upstreamed));
                assert_int_equal(up.frees, up.allocs);
                ok(ds_stream_destroy(s));
                ok(ds_stream_destroy(other));
                ok(ds_stream_destroy(far.s));
                over();
            }
}

static void test_a_pool_destroyed_in_a_capture_returns_memory_after_it(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0), other = stream(0);
        ds_pool pool = upstream_pool(), plain = new_pool();
        ok(ds_mem_free(block_in(pool, 3 * MIB, other)));
        ok(ds_mem_free(block_in(plain, 3 * MIB, other)));
        capture(s, DS_CAPTURE_GLOBAL);
        ok(ds_pool_destroy(pool));
        ok(ds_pool_destroy(plain));
        assert_int_equal(up.frees, 0);
        ds_graph_exec exec = end_capture(s, NULL);
        ok(ds_graph_exec_destroy(exec));
        empty();
        assert_int_equal(up.frees, 1);
        assert_int_equal(reserved(0), 0);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
        over();
    }
}

/* CUDA says on a thread of its own that a graph is gone, at any time: also while the library
   ends. */
static void test_a_graph_may_end_while_the_library_does(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        begin(PRESET_DEFAULT);
        ds_stream s = stream(0);
        ds_graph_exec exec[4];
        for (int i = 0; i < 4; i++) {
            ds_graph g;
            capture(s, DS_CAPTURE_GLOBAL);
            void *p = block(3000, s);
            paint(p, 3000, 1, s);
            ok(ds_mem_free(p));
            exec[i] = end_capture(s, &g);
            ok(ds_graph_destroy(g));
        }
        for (int i = 0; i < 4; i++)
            ok(ds_graph_exec_destroy(exec[i]));
        ok(ds_stream_destroy(s));
        harness_shutdown();
    }
    begin(PRESET_DEFAULT);
    over();
}

static void test_out_of_memory_in_a_capture_keeps_the_capture_valid(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (int m = 0; m < 3; m++) {
            scarce sc;
            ds_mem_config c = config_of(preset);
            ds_capture_status status;
            uint64_t *in = word(4), *out = word(0);
            int by_limit = m == 1;
            if (by_limit) {
                c.limit = 96 * MIB;
                begin_with(&c);
            } else
                scarce_begin(&sc, 200 * MIB, &c);
            in = word(4);
            out = word(0);
            harness_warm_up();
            ds_stream s = stream(0), other = stream(0);
            void *p = NULL, *cached = block(9 * MIB, other), *plain = NULL;
            ok(ds_mem_free(cached));
            capture(s, modes[m]);
            captured_work(s, in, out, 5, 3 * MIB);
            for (int i = 0; i < 3; i++) {
                no_memory(ds_mem_alloc(300 * MIB, s, &p));
                assert_null(p);
                no_memory(ds_mem_alloc(300 * MIB, other, &p));
                ok(ds_capture_get_status(s, &status));
                assert_int_equal(status, DS_CAPTURE_ACTIVE);
            }
            assert_true(stat(0, "num_ooms") == 6);
            assert_int_equal(stat(0, "num_sync_all_streams"), 0);
            captured_work(s, in, out, 6, 3 * MIB);
            ok(ds_mem_validate(harness_device(0)));
            ds_graph_exec exec = end_capture(s, NULL);
            launch(exec, s);
            assert_true(*out == work_result(4, 6));
            /* and everything is as it was */
            plain = block(30 * MIB, s);
            paint(plain, 30 * MIB, 1, s);
            ok(ds_stream_synchronize(s));
            ok(ds_mem_free(plain));
            ok(ds_graph_exec_destroy(exec));
            eventually(is_empty());
            p = block(80 * MIB, s);
            ok(ds_mem_free(p));
            ok(ds_stream_destroy(s));
            ok(ds_stream_destroy(other));
            over();
            if (!by_limit)
                scarce_end(&sc);
        }
}

typedef struct capturer {
    ds_stream s;
    uint64_t *in, *out;
    uint64_t n;
    uint64_t pool;
    ds_graph_exec exec;
} capturer;

static void *capture_alone(void *arg) {
    capturer *c = arg;
    ds_graph g;
    ok_thread(ds_capture_begin(c->s, DS_CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < 10; i++) {
        uint64_t *a = block((size_t)(i + 1) * 400000, c->s);
        c->pool = pool_of(a).id;
        copy(a, i ? c->out : c->in, c->s);
        fold(c->s, a, c->n);
        copy(c->out, a, c->s);
        ok_thread(ds_mem_free(a));
    }
    ok_thread(ds_capture_end(c->s, &g));
    ok_thread(ds_graph_instantiate(g, NULL, &c->exec));
    ok_thread(ds_graph_destroy(g));
    return NULL;
}

static void test_two_threads_capture_at_once_each_with_its_own_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        capturer c[2];
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            c[i] =
                (capturer){ .s = stream(0), .in = word(4), .out = word(0), .n = (uint64_t)i + 50 };
        for (int i = 0; i < 2; i++)
            threads[i] = spawn(capture_alone, &c[i]);
        for (int i = 0; i < 2; i++)
            join(threads[i]);
        assert_true(c[0].pool != c[1].pool);
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 2; i++)
                ok(ds_graph_launch(c[i].exec, c[i].s));
            for (int i = 0; i < 2; i++) {
                uint64_t want = 4;
                ok(ds_stream_synchronize(c[i].s));
                for (int k = 0; k < 10; k++)
                    want = fold_host(want, c[i].n);
                assert_true(*c[i].out == want);
            }
        }
        for (int i = 0; i < 2; i++) {
            ok(ds_graph_exec_destroy(c[i].exec));
            ok(ds_stream_destroy(c[i].s));
        }
        over();
    }
}

static ds_result work_for_a_function(ds_stream s, void *user) {
    uint64_t **words = user;
    captured_work(s, words[0], words[1], 3, 3 * MIB);
    return DS_OK;
}

static ds_result work_that_gives_up(ds_stream s, void *user) {
    void *p = block(3 * MIB, s);
    (void)user;
    paint(p, 3 * MIB, 3, s);
    ok_thread(ds_mem_free(p));
    return DS_ERR_LIMIT_EXCEEDED;
}

static void test_captures_that_fail_or_give_up_leave_no_memory_behind(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        ds_graph g;
        ds_graph_exec exec;
        uint64_t *words[2] = { word(4), word(0) };
        for (int i = 0; i < 5; i++) {
            ok(ds_capture_function(s, work_for_a_function, words, &g));
            ok(ds_graph_instantiate(g, NULL, &exec));
            launch(exec, s);
            assert_true(*words[1] == work_result(4, 3));
            ok(ds_graph_exec_destroy(exec));
            ok(ds_graph_destroy(g));
            refused_any(ds_capture_function(s, work_that_gives_up, NULL, &g));
            capture(s, DS_CAPTURE_THREAD_LOCAL);
            void *kept = block(3 * MIB, s), *p = NULL;
            refused_any(ds_stream_synchronize(s)); /* spoils it */
            /* harmless all the same */
            if (ds_mem_alloc(5000, s, &p) == DS_OK)
                ok(ds_mem_free(p));
            ok(ds_mem_validate(harness_device(0)));
            refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_INVALIDATED);
            ok(ds_mem_free(kept));
            eventually(is_empty());
        }
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_a_block_of_a_capture_is_freed_by_anyone_at_any_time(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0), t = stream(0);
        uint64_t *in = word(4), *out = word(0);
        capture(s, DS_CAPTURE_RELAXED);
        uint64_t *a = block(3 * MIB, s), *b = block(3 * MIB, s);
        copy(a, in, s);
        copy(b, a, s);
        fold(s, b, 7);
        copy(out, b, s);
        ds_graph_exec exec = end_capture(s, NULL);
        ok(ds_mem_record_use(b, t)); /* the result was used elsewhere */
        ok(ds_mem_free(a));
        ok(ds_mem_free(b));
        ok(ds_stream_destroy(s)); /* the stream of the capture is not needed either */
        empty();
        for (uint64_t i = 0; i < 3; i++) {
            *in = i;
            launch(exec, t);
            assert_true(*out == fold_host(i, 7));
        }
        ok(ds_graph_exec_destroy(exec));
        eventually(is_empty());
        ok(ds_stream_destroy(t));
        over();
    }
}

static void test_a_shutdown_ends_graphs_with_memory(void **state) {
    (void)state;
    for (int preset = 0; preset < 2; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = stream(0);
        ds_pool pool = upstream_pool();
        ds_graph g;
        uint64_t *in = word(4), *out = word(0);
        for (int i = 0; i < 2; i++) {
            capture(s, DS_CAPTURE_GLOBAL);
            if (i)
                ok(ds_capture_set_pool(s, pool));
            captured_work(s, in, out, 5, 3 * MIB);
            (void)block(5000, s);
            ds_graph_exec exec = end_capture(s, &g);
            ok(ds_graph_launch(exec, s));
        }
        harness_restart(NULL); /* with all that left as it is */
        assert_int_equal(up.frees, up.allocs);
    }
}

/* Programs that capture for every new shape of their data. */
static void test_captures_that_come_and_go_leave_nothing_behind(void **state) {
    (void)state;
    ds_cpu_desc cpu = { .devices = 2 };
    ds_init_desc init = { .cpu = &cpu, .allocator = { count_alloc, count_free, NULL } };
    size_t after_some = 0;
    harness_restart(&init);
    harness_warm_up();
    ds_stream s = stream(0);
    uint64_t *in = word(4), *out = word(0);
    for (int i = 0; i < 300; i++) {
        ds_stream side = stream(0);
        capture(s, DS_CAPTURE_RELAXED);
        captured_work(s, in, out, 5, 3000);
        ok(ds_stream_wait_stream(side, s));
        ok(ds_mem_free(block(3 * MIB, side)));
        ok(ds_stream_wait_stream(s, side));
        ok(ds_graph_exec_destroy(end_capture(s, NULL)));
        ok(ds_stream_destroy(side));
        eventually(is_empty());
        if (i == 50)
            after_some = kept_bytes;
    }
    if (kept_bytes > after_some + 256 * KIB)
        fail_msg("%zu bytes after 50 captures, %zu after 300", after_some, (size_t)kept_bytes);
    ok(ds_stream_destroy(s));
    harness_restart(NULL);
}

/* ---- random ---- */

typedef struct model {
    ds_stream s[3];
    unsigned seed;
    looks *l;
    int capturing;
} model;

static unsigned any(model *m, unsigned n) {
    return m->seed = m->seed * 1103515245u + 12345u, (m->seed >> 10) % n;
}

/* Blocks of a graph are written and read on several streams, freed and allocated again; every
   read says what it must find. */
static void random_capture(model *m, int steps) {
    struct {
        void *p;
        size_t size;
        uint32_t value;
        int s;
    } live[12] = { 0 };

    for (int i = 0; i < steps; i++) {
        unsigned k = any(m, 12), s = any(m, 3);
        if (!live[k].p) {
            live[k].size = (size_t)1 << (9 + any(m, 12));
            live[k].value = any(m, 1 << 20);
            live[k].s = (int)s;
            live[k].p = block(live[k].size, m->s[s]);
            paint(live[k].p, live[k].size, live[k].value, m->s[s]);
        } else if (any(m, 3)) {
            if ((int)s != live[k].s)
                ok(ds_stream_wait_stream(m->s[s], m->s[live[k].s]));
            if (looks_fit(m->l, live[k].size))
                look(m->l, live[k].p, live[k].size, live[k].value, m->s[s]);
            if (any(m, 2))
                ok(ds_mem_record_use(live[k].p, m->s[s]));
            else
                ok(ds_mem_record_stream(live[k].p, m->s[s]));
        } else {
            ok(ds_mem_free(live[k].p));
            live[k].p = NULL;
        }
        if (any(m, 10) == 0)
            ok(ds_stream_wait_stream(m->s[any(m, 3)], m->s[any(m, 3)]));
    }
    for (int k = 0; k < 12; k++)
        ok(ds_mem_free(live[k].p));
}

static void test_random_graphs_and_their_surroundings_keep_contents(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++)
        for (unsigned seed = 1; seed <= 4; seed++) {
            enum { GRAPHS = 3 };

            ds_mem_config c = config_of(preset);
            c.reuse = (int)(seed % 3);
            begin_with(&c);
            harness_warm_up();
            model m[GRAPHS];
            ds_graph_exec exec[GRAPHS];
            crowd around[2];
            looks *l = looks_create(100000);
            ds_pool shared = new_pool();
            for (int i = 0; i < GRAPHS; i++) {
                m[i] = (model){ .seed = seed * 100 + (unsigned)i, .l = looks_create(100000) };
                for (int k = 0; k < 3; k++)
                    m[i].s[k] = i && k ? m[0].s[k] : stream(0);
                crowd_in(&around[0], m[0].s[1]);
                capture(m[i].s[0], modes[seed % 3]);
                if (i > 0)
                    ok(ds_capture_set_pool(m[i].s[0], shared));
                for (int k = 1; k < 3; k++)
                    ok(ds_stream_wait_stream(m[i].s[k], m[i].s[0]));
                random_capture(&m[i], 80);
                for (int k = 1; k < 3; k++)
                    ok(ds_stream_wait_stream(m[i].s[0], m[i].s[k]));
                exec[i] = end_capture(m[i].s[0], NULL);
                crowd_out(&around[0], l);
            }
            ds_stream t = m[0].s[0];
            for (int round = 0; round < 4; round++) {
                crowd_in(&around[0], t);
                crowd_in(&around[1], m[0].s[2]);
                for (int i = 0; i < GRAPHS; i++)
                    ok(ds_graph_launch(exec[i], t));
                random_capture(&m[0], 0);
                crowd_out(&around[0], l);
                crowd_out(&around[1], l);
                if (round == 1)
                    empty();
                if (round == 2)
                    ok(ds_pool_empty_cache(shared, NULL));
                ok(ds_device_synchronize(harness_device(0)));
                for (int i = 0; i < GRAPHS; i++) {
                    size_t count = m[i].l->count, taken = m[i].l->taken;
                    assert_true(looks_right(m[i].l));
                    m[i].l->count = count; /* the next launch reads the same */
                    m[i].l->taken = taken;
                    memset(m[i].l->words, 0, taken * 4);
                }
                ok(ds_mem_validate(harness_device(0)));
            }
            for (int i = 0; i < GRAPHS; i++) {
                ok(ds_graph_exec_destroy(exec[i]));
                looks_destroy(m[i].l);
                ok(ds_stream_destroy(m[i].s[0]));
            }
            ok(ds_stream_destroy(m[0].s[1]));
            ok(ds_stream_destroy(m[0].s[2]));
            ok(ds_pool_destroy(shared));
            looks_destroy(l);
            over();
        }
}

const struct CMUnitTest tests_alloc_capture[] = {
    DS_TEST(test_a_capture_has_a_pool_of_its_own, "torch: test_pool_id_in_snapshot, peers b.8"),
    DS_TEST(test_the_pool_of_a_graph_is_nobodys_to_destroy, "alloc"),
    DS_TEST(test_a_graphs_memory_lives_as_long_as_any_executable, "peers b.8, b.9"),
    DS_TEST(test_a_running_launch_keeps_the_memory_of_its_graph, "peers b.8"),
    DS_TEST(test_poison_leaves_the_memory_of_graphs_alone, "peers b.8"),
    DS_TEST(test_an_executable_keeps_the_memory_of_its_updating_graph, "peers b.8"),
    DS_TEST(test_results_of_a_graph_outlive_it_and_go_by_themselves,
            "torch: test_graph_memory_stats_and_use_result_after_destroy_graph"),
    DS_TEST(test_what_a_graph_has_left_is_found_when_memory_is_short,
            "torch: test_mempool_oom_recovery"),
    DS_TEST(test_graphs_that_share_a_pool_run_one_after_the_other,
            "torch: test_graph_two_successive, three_successive"),
    DS_TEST(test_a_pool_that_a_graph_uses_keeps_its_memory, "peers D12 b.8"),
    DS_TEST(test_a_capture_is_told_its_pool_before_it_allocates, "alloc"),
    DS_TEST(test_captures_on_several_streams_share_a_pool,
            "torch: test_graph_capture_reclaim_shared_pool"),
    DS_TEST(test_forked_streams_allocate_in_the_pool_of_the_capture,
            "torch: test_cuda_graph_allocator_propagates_stream"),
    DS_TEST(test_memory_is_used_again_behind_its_uses_in_a_capture,
            "torch: test_graph_capture_reclaim_2_streams, 4_streams"),
    DS_TEST(test_a_use_from_before_the_capture_counts_for_a_free_in_it,
            "torch: test_graph_capture_pre_capture_stream_use"),
    DS_TEST(test_reused_memory_draws_no_stream_into_a_capture,
            "torch: test_cuda_graph_error_options"),
    DS_TEST(test_a_stream_ended_in_a_capture_leaves_memory_in_order, "peers D6"),
    DS_TEST(test_memory_of_an_ended_stream_stays_mapped_under_its_work, "peers D6"),
    DS_TEST(test_nothing_that_the_allocator_does_breaks_a_capture,
            "torch: test_cuda_graph_error_options, test_graph_record_stream"),
    DS_TEST(test_a_pool_destroyed_in_a_capture_returns_memory_after_it, "peers b.8"),
    DS_TEST(test_a_graph_may_end_while_the_library_does, "memory of graphs"),
    DS_TEST(test_out_of_memory_in_a_capture_keeps_the_capture_valid,
            "torch: test_graph_capture_oom"),
    DS_TEST(test_two_threads_capture_at_once_each_with_its_own_memory, "peers D4"),
    DS_TEST(test_captures_that_fail_or_give_up_leave_no_memory_behind,
            "torch: test_graph_capture_oom"),
    DS_TEST(test_a_block_of_a_capture_is_freed_by_anyone_at_any_time, "peers D12"),
    DS_TEST(test_a_shutdown_ends_graphs_with_memory, "alloc"),
    DS_TEST(test_captures_that_come_and_go_leave_nothing_behind, "peers D6"),
    DS_TEST(test_random_graphs_and_their_surroundings_keep_contents, "peers D12, cupy: Issue9655"),
};
const size_t tests_alloc_capture_count = sizeof tests_alloc_capture / sizeof *tests_alloc_capture;
