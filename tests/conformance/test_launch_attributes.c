/* Attributes of a launch: cooperative launches, clusters, overlap. */
#include "harness.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- kernels ---- */

/* Blocks that wait for one another. `block`: their threads, for the CPU form. */
typedef struct meet_args {
    _Atomic uint32_t *arrived;
    _Atomic uint32_t *passed;
    uint32_t blocks;
    uint32_t block;
} meet_args;

static _Atomic int wrong_parts; /* calls of the CPU form for something else than one block */

static int meet_kernel(size_t first, size_t count, const void *args) {
    const meet_args *a = args;
    if (count != a->block || first % a->block)
        wrong_parts++;
    ++*a->arrived;
    while (*a->arrived < a->blocks)
        harness_nap();
    ++*a->passed;
    return 0;
}

static ds_kernel make_meet(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, meet_args, arrived),
                                       PARAM(READ_WRITE, meet_args, passed),
                                       PARAM(VALUE, meet_args, blocks) };
    return harness_kernel("meet", meet_kernel, sizeof(meet_args), params, 3, 0);
}

static meet_args meeting(uint32_t blocks, uint32_t block) {
    return (meet_args){ (_Atomic uint32_t *)zeroed_words(1), (_Atomic uint32_t *)zeroed_words(1),
                        blocks, block };
}

static ds_grid together(uint32_t blocks, uint32_t block) {
    return (ds_grid){ .grid = { blocks }, .block = { block }, .flags = DS_GRID_COOPERATIVE };
}

static void expect_sentence(const char *words) {
    if (!strstr(ds_error_get_last(), words))
        fail_msg("\"%s\" does not say \"%s\"", ds_error_get_last(), words);
}

/* ---- cooperative launches ---- */

static void test_blocks_of_a_cooperative_launch_wait_for_one_another(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    wrong_parts = 0;

    for (uint32_t blocks = 1; blocks <= 8; blocks++) {
        meet_args a = meeting(blocks, 1 + blocks % 3);
        ds_grid g = together(blocks, a.block);
        ok(ds_kernel_launch_grid(k, &g, &a, sizeof a, s));
        ok(ds_stream_synchronize(s));
        assert_int_equal(*a.passed, blocks);
    }

    assert_int_equal(wrong_parts, 0);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_blocks_are_counted_in_all_dimensions(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    meet_args a = meeting(8, 6);
    ds_grid g = { .grid = { 2, 2, 2 }, .block = { 3, 2, 1 }, .flags = DS_GRID_COOPERATIVE };
    wrong_parts = 0;

    ok(ds_kernel_launch_grid(k, &g, &a, sizeof a, s));
    ok(ds_stream_synchronize(s));

    /* of the CUDA form only the threads with index 0 in x take part */
    assert_true(*a.passed >= 8 && wrong_parts == 0);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_cooperative_launches_of_two_streams_all_finish(void **state) {
    (void)state;

    enum { ROUNDS = 20 };

    ds_kernel k = make_meet();
    ds_stream s[2] = { harness_stream(0, 0), harness_stream(0, 0) };
    meet_args a[2][ROUNDS];
    ds_grid g = together(4, 2);

    for (int i = 0; i < ROUNDS; i++)
        for (int j = 0; j < 2; j++) {
            a[j][i] = meeting(4, 2);
            ok(ds_kernel_launch_grid(k, &g, &a[j][i], sizeof a[j][i], s[j]));
        }
    for (int j = 0; j < 2; j++)
        ok(ds_stream_synchronize(s[j]));

    for (int i = 0; i < ROUNDS; i++)
        assert_true(*a[0][i].passed == 4 && *a[1][i].passed == 4);
    for (int j = 0; j < 2; j++)
        ok(ds_stream_destroy(s[j]));
    ok(ds_kernel_destroy(k));
}

static void test_a_cooperative_launch_keeps_the_order_of_its_stream(void **state) {
    (void)state;
    uint64_t *h = word(1);
    ds_kernel fold = harness_fold_kernel();
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    gate g = { 0 };
    meet_args a = meeting(3, 1);
    ds_grid grid = together(3, 1);
    fold_args f = { h, 2 };

    gate_close(s, &g);
    ok(ds_kernel_launch_grid(k, &grid, &a, sizeof a, s));
    ok(ds_kernel_launch(fold, 1, &f, sizeof f, s));
    assert_true(*a.arrived == 0 && *h == 1);
    gate_open(&g);
    ok(ds_stream_synchronize(s));

    assert_true(*a.passed == 3 && *h == fold_host(1, 2));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_blocks_that_do_not_fit_are_refused(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    meet_args a = meeting(1u << 20, 1);
    ds_grid g = together(1u << 20, 1);

    refused(ds_kernel_launch_grid(k, &g, &a, sizeof a, s), DS_ERR_INVALID_VALUE);
    expect_sentence(harness_is_cpu() ? "a cooperative launch of 1048576 blocks; at most" : "720");
    expect_sentence("kernel meet");

    ok(ds_stream_synchronize(s));
    assert_int_equal(*a.arrived, 0);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_as_many_blocks_as_multiprocessors_fit(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    int64_t n = 0;
    int64_t has = 0;
    ok(ds_device_get_attribute(harness_device(0), DS_ATTR_COOPERATIVE_LAUNCH, &has));
    ok(ds_device_get_attribute(harness_device(0), DS_ATTR_MULTIPROCESSORS, &n));
    assert_true(has == 1 && n >= 1);
    meet_args a = meeting((uint32_t)n, 2);
    ds_grid g = together((uint32_t)n, 2);

    ok(ds_kernel_launch_grid(k, &g, &a, sizeof a, s));
    ok(ds_stream_synchronize(s));

    assert_int_equal(*a.passed, n);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_share_limits_the_blocks_of_a_cooperative_launch(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s;
    meet_args a = meeting(2, 1);
    ds_grid two = together(2, 1);
    ds_grid one = together(1, 1);
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0), .multiprocessors = 1 },
                        &s));

    refused(ds_kernel_launch_grid(k, &two, &a, sizeof a, s), DS_ERR_INVALID_VALUE);
    expect_sentence("2 blocks; at most 1 can run at once on this stream of cpu:0");
    a.blocks = 1;
    ok(ds_kernel_launch_grid(k, &one, &a, sizeof a, s));
    ok(ds_stream_synchronize(s));

    assert_int_equal(*a.passed, 1);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static int fail_last_block(size_t first, size_t count, const void *args) {
    (void)args;
    return first + count == 4 ? 77 : 0;
}

static void test_the_status_of_any_block_fails_the_device(void **state) {
    (void)state;
    ds_kernel k;
    ds_stream s = harness_stream(0, 0);
    ds_grid g = together(4, 1);
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "last", .cpu_fn = fail_last_block }, &k));

    ok(ds_kernel_launch_grid(k, &g, NULL, 0, s));
    assert_int_equal(ds_stream_synchronize(s), DS_ERR_FAILED);
    expect_sentence("kernel last");
    expect_sentence("status 77");

    ok(ds_device_reset(harness_device(0)));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* ---- in graphs ---- */

static ds_node_desc meet_node(ds_kernel k, const ds_grid *g, const meet_args *a) {
    return (
        ds_node_desc){ .kind = DS_NODE_KERNEL,
                       .u.kernel = { .kernel = k, .grid = g, .args = a, .args_size = sizeof *a } };
}

static ds_graph new_graph(void) {
    ds_graph g;
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    return g;
}

static ds_graph_exec exec_of(ds_graph g) {
    ds_graph_exec x;
    ok(ds_graph_instantiate(g, NULL, &x));
    return x;
}

/* Launches the executable, and expects that so many blocks have passed. */
static void launch_and_expect(ds_graph_exec x, ds_stream s, const meet_args *a, uint32_t blocks) {
    *a->arrived = 0;
    *a->passed = 0;
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*a->passed, blocks);
}

static void test_a_cooperative_node_runs_its_blocks_at_once(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    meet_args a = meeting(5, 2);
    ds_grid grid = together(5, 2);
    ds_graph_node n;
    ds_node_desc d = meet_node(k, &grid, &a);
    ds_graph g = new_graph();
    ds_graph clone;

    ok(ds_graph_add(g, &d, NULL, 0, &n));
    ok(ds_graph_clone(g, &clone));
    ds_graph_exec x[2] = { exec_of(g), exec_of(clone) };
    for (int i = 0; i < 4; i++)
        launch_and_expect(x[i % 2], s, &a, 5);

    ok(ds_graph_get_node(g, n, &d, NULL));
    assert_int_equal(d.u.kernel.grid->flags, DS_GRID_COOPERATIVE);
    for (int i = 0; i < 2; i++)
        ok(ds_graph_exec_destroy(x[i]));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(clone));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_captured_cooperative_launch_runs_its_blocks_at_once(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    meet_args a = meeting(4, 3);
    ds_grid grid = together(4, 3);
    ds_graph g;

    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_kernel_launch_grid(k, &grid, &a, sizeof a, s));
    ok(ds_capture_end(s, &g));
    ds_graph_exec x = exec_of(g);
    assert_int_equal(*a.arrived, 0);
    for (int i = 0; i < 3; i++)
        launch_and_expect(x, s, &a, 4);

    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_cooperative_node_that_does_not_fit_is_refused(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    meet_args a = meeting(1u << 20, 1);
    ds_grid grid = together(1u << 20, 1);
    ds_node_desc d = meet_node(k, &grid, &a);
    ds_graph_node n;
    ds_graph g = new_graph();
    ds_graph_exec x = { 0 };

    /* CUDA counts the blocks when it instantiates the graph */
    ds_result r = ds_graph_add(g, &d, NULL, 0, &n);
    if (r == DS_OK)
        r = ds_graph_instantiate(g, NULL, &x);
    refused(r, DS_ERR_INVALID_VALUE);

    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
}

/* cudaGraphExecUpdate: a cooperative node cannot become another one, and vice versa. */
static void test_an_executable_keeps_the_attributes_of_a_kernel(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    meet_args a = meeting(2, 1);
    ds_grid grids[] = { together(2, 1),
                        { .grid = { 2 }, .block = { 1 } },
                        { .grid = { 2 }, .block = { 1 }, .cluster = { 2 } } };
    ds_graph_node n[3];
    ds_graph g[3];
    ds_graph_exec x;

    for (int i = 0; i < 3; i++) {
        ds_node_desc d = meet_node(k, &grids[i], &a);
        g[i] = new_graph();
        ok(ds_graph_add(g[i], &d, NULL, 0, &n[i]));
    }
    for (int i = 0; i < 3; i++) {
        x = exec_of(g[i]);
        for (int j = 0; j < 3; j++) {
            ds_graph_update_info info;
            ds_node_desc d = meet_node(k, &grids[j], &a);
            if (i == j) {
                ok(ds_graph_exec_update(x, g[j], &info));
                ok(ds_graph_exec_set_node(x, n[i], &d));
                continue;
            }
            refused(ds_graph_exec_update(x, g[j], &info), DS_ERR_GRAPH_UPDATE);
            assert_int_equal(info.reason, DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED);
            refused(ds_graph_exec_set_node(x, n[i], &d), DS_ERR_INVALID_VALUE);
            expect_sentence("an attribute differs");
        }
        if (i == 0)
            launch_and_expect(x, s, &a, 2);
        ok(ds_graph_exec_destroy(x));
    }

    for (int i = 0; i < 3; i++)
        ok(ds_graph_destroy(g[i]));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_an_executable_takes_no_blocks_that_do_not_fit(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    meet_args a = meeting(2, 1);
    ds_grid few = together(2, 1);
    ds_grid many = together(1u << 20, 1);
    ds_node_desc d = meet_node(k, &few, &a);
    ds_graph_node n;
    ds_graph g = new_graph();
    ok(ds_graph_add(g, &d, NULL, 0, &n));
    ds_graph_exec x = exec_of(g);

    d.u.kernel.grid = &many;
    refused(ds_graph_exec_set_node(x, n, &d), DS_ERR_INVALID_VALUE);
    ds_result r = ds_graph_set_node(g, n, &d);
    if (r == DS_OK) /* on CUDA */
        r = ds_graph_exec_update(x, g, NULL);
    assert_true(r < 0);

    launch_and_expect(x, s, &a, 2);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_node_of_a_graph_becomes_cooperative_and_back(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    ds_stream s = harness_stream(0, 0);
    meet_args a = meeting(1, 1);
    ds_grid grids[] = { { .grid = { 1 }, .block = { 1 } },
                        together(4, 1),
                        { .grid = { 1 }, .block = { 1 }, .cluster = { 1 } },
                        { .grid = { 1 }, .block = { 1 } } };
    ds_node_desc d = meet_node(k, &grids[0], &a);
    ds_graph_node n;
    ds_graph g = new_graph();
    ok(ds_graph_add(g, &d, NULL, 0, &n));

    for (int i = 0; i < 4; i++) {
        a.blocks = grids[i].grid[0];
        d = meet_node(k, &grids[i], &a);
        ok(ds_graph_set_node(g, n, &d));
        ds_graph_exec x = exec_of(g);
        launch_and_expect(x, s, &a, a.blocks);
        ok(ds_graph_exec_destroy(x));
    }

    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static int add_text(const char *text, size_t size, void *user) {
    char *all = user;
    size_t length = strlen(all);
    assert_true(length + size < 4000);
    memcpy(all + length, text, size);
    all[length + size] = 0;
    return 0;
}

static void test_the_text_of_a_graph_shows_attributes(void **state) {
    (void)state;
    ds_kernel k = make_meet();
    meet_args a = meeting(4, 1);
    ds_grid grid = {
        .grid = { 4 }, .block = { 1 }, .cluster = { 2 }, .flags = DS_GRID_COOPERATIVE
    };
    ds_node_desc d = meet_node(k, &grid, &a);
    ds_graph_node n;
    ds_graph g = new_graph();
    char text[4000] = "";

    ok(ds_graph_add(g, &d, NULL, 0, &n));
    ok(ds_graph_write_dot(g, DS_DOT_VERBOSE, add_text, text));

    assert_non_null(strstr(text, "cluster 2x1x1"));
    assert_non_null(strstr(text, "cooperative"));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
}

/* ---- clusters ---- */

typedef struct tally_args {
    _Atomic uint32_t *seen;
    _Atomic uint64_t *sums;
    uint64_t items;
} tally_args;

static int tally_kernel(size_t first, size_t count, const void *args) {
    const tally_args *t = args;
    t->sums[0] += count;
    for (size_t i = first; i < first + count; i++)
        t->seen[i]++;
    return 0;
}

static ds_kernel make_tally(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, tally_args, seen),
                                       PARAM(READ_WRITE, tally_args, sums),
                                       PARAM(VALUE, tally_args, items), PARAM_FIRST, PARAM_COUNT };
    return harness_kernel("tally", tally_kernel, sizeof(tally_args), params, 5, 0);
}

static void expect_each_item_once(const tally_args *t, uint32_t times) {
    for (size_t i = 0; i < t->items; i++)
        if (t->seen[i] != times)
            fail_msg("item %zu was handled %u times", i, (unsigned)t->seen[i]);
}

static void test_attributes_change_no_item_of_a_launch(void **state) {
    (void)state;
    static const ds_grid grids[] = {
        { .grid = { 8 }, .block = { 5 }, .cluster = { 2 } },
        { .grid = { 8 }, .block = { 5 }, .cluster = { 8, 0, 0 } },
        { .grid = { 4, 2, 2 }, .block = { 3 }, .cluster = { 2, 2, 2 } },
        { .grid = { 3, 2 }, .block = { 4 }, .cluster = { 1, 2, 1 } },
        { .grid = { 6 }, .block = { 4 }, .flags = DS_GRID_OVERLAP },
        { .grid = { 6 }, .block = { 4 }, .cluster = { 3 }, .flags = DS_GRID_OVERLAP },
        { .grid = { 4 }, .block = { 4 }, .cluster = { 2 }, .flags = DS_GRID_COOPERATIVE },
        { .grid = { 4 },
          .block = { 4 },
          .cluster = { 2 },
          .flags = DS_GRID_COOPERATIVE | DS_GRID_OVERLAP },
    };
    ds_kernel k = make_tally();
    ds_stream s = harness_stream(0, 0);

    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        const ds_grid *g = &grids[i];
        uint64_t items = (uint64_t)g->grid[0] * (g->grid[1] ? g->grid[1] : 1) *
                         (g->grid[2] ? g->grid[2] : 1) * g->block[0];
        tally_args t = { (_Atomic uint32_t *)zeroed_words(items),
                         (_Atomic uint64_t *)zeroed_words(2), items };
        ds_graph graph;
        ok(ds_kernel_launch_grid(k, g, &t, sizeof t, s));
        ok(ds_stream_synchronize(s));
        expect_each_item_once(&t, 1);
        ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
        ok(ds_kernel_launch_grid(k, g, &t, sizeof t, s));
        ok(ds_capture_end(s, &graph));
        ds_graph_exec x = exec_of(graph);
        ok(ds_graph_launch(x, s));
        ok(ds_stream_synchronize(s));
        expect_each_item_once(&t, 2);
        ok(ds_graph_exec_destroy(x));
        ok(ds_graph_destroy(graph));
    }

    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_attributes_that_no_gpu_takes_are_refused(void **state) {
    (void)state;

    static const struct {
        ds_grid grid;
        const char *words;
    } wrong[] = {
        { { .grid = { 16 }, .block = { 1 }, .cluster = { 16 } },
          "a cluster of 16 x 1 x 1 blocks; at most 8" },
        { { .grid = { 4, 4, 4 }, .block = { 1 }, .cluster = { 4, 4, 0 } },
          "a cluster of 4 x 4 x 1 blocks; at most 8" },
        { { .grid = { 1 }, .block = { 1 }, .cluster = { 1u << 31, 2, 1 } }, "blocks; at most 8" },
        { { .grid = { 9 }, .block = { 1 }, .cluster = { 2 } },
          "grid.x is 9 and cluster.x 2; the cluster must divide the grid" },
        { { .grid = { 2, 3 }, .block = { 1 }, .cluster = { 1, 2 } },
          "grid.y is 3 and cluster.y 2; the cluster must divide the grid" },
        { { .grid = { 2, 3, 5 }, .block = { 1 }, .cluster = { 1, 1, 2 } },
          "grid.z is 5 and cluster.z 2; the cluster must divide the grid" },
        { { .grid = { 2, 2 }, .block = { 1 }, .cluster = { 0, 2 } },
          "cluster.x is 0, but cluster.y is 2 and cluster.z 0" },
        { { .grid = { 1 }, .block = { 1 }, .flags = 4 },
          "the flags of the grid are 0x4; DS_GRID_*" },
        { { .grid = { 1 }, .block = { 1 }, .flags = 0x80000001u }, "0x80000001; DS_GRID_*" },
    };

    ds_kernel k = make_tally();
    ds_stream s = harness_stream(0, 0);
    tally_args t = { (_Atomic uint32_t *)zeroed_words(64), (_Atomic uint64_t *)zeroed_words(2),
                     64 };
    ds_graph g = new_graph();
    ds_graph_node n;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_node_desc d = {
            .kind = DS_NODE_KERNEL,
            .u.kernel = { .kernel = k, .grid = &wrong[i].grid, .args = &t, .args_size = sizeof t }
        };
        refused(ds_kernel_launch_grid(k, &wrong[i].grid, &t, sizeof t, s), DS_ERR_INVALID_VALUE);
        expect_sentence(wrong[i].words);
        expect_sentence("(kernel tally)");
        refused(ds_graph_add(g, &d, NULL, 0, &n), DS_ERR_INVALID_VALUE);
        expect_sentence(wrong[i].words);
    }

    ok(ds_stream_synchronize(s));
    assert_int_equal(t.sums[0], 0);
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* ---- overlap ---- */

static void test_an_overlap_keeps_the_order_on_the_cpu(void **state) {
    (void)state;
    uint64_t *h = word(1);
    uint64_t want = 1;
    ds_kernel k = harness_fold_kernel();
    ds_stream s = harness_stream(0, 0);
    ds_grid g = { .grid = { 1 }, .block = { 1 }, .flags = DS_GRID_OVERLAP };

    for (uint64_t i = 0; i < 100; i++) {
        fold_args a = { h, i };
        ok(ds_kernel_launch_grid(k, &g, &a, sizeof a, s));
        want = fold_host(want, i);
    }
    ok(ds_stream_synchronize(s));

    assert_true(*h == want);
    ok(ds_stream_destroy(s));
}

static void test_nodes_by_hand_refuse_an_overlap(void **state) {
    (void)state;
    ds_kernel k = make_tally();
    ds_stream s = harness_stream(0, 0);
    tally_args t = { (_Atomic uint32_t *)zeroed_words(2), (_Atomic uint64_t *)zeroed_words(2), 2 };
    ds_grid grid = { .grid = { 2 }, .block = { 1 }, .flags = DS_GRID_OVERLAP };
    ds_node_desc d = { .kind = DS_NODE_KERNEL,
                       .u.kernel = {
                           .kernel = k, .grid = &grid, .args = &t, .args_size = sizeof t } };
    ds_graph_node n;
    ds_graph g = new_graph();
    ds_graph captured;
    size_t count;

    refused(ds_graph_add(g, &d, NULL, 0, &n), DS_ERR_INVALID_VALUE);
    expect_sentence("DS_GRID_OVERLAP is for launches");
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_kernel_launch_grid(k, &grid, &t, sizeof t, s));
    ok(ds_capture_end(s, &captured));

    /* the description of a captured launch can be set again */
    ok(ds_graph_get_nodes(captured, &n, 1, &count));
    ok(ds_graph_get_node(captured, n, &d, NULL));
    assert_int_equal(d.u.kernel.grid->flags, 0);
    ok(ds_graph_set_node(captured, n, &d));
    ok(ds_graph_destroy(captured));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_launch_attributes[] = {
    DS_TEST(test_blocks_of_a_cooperative_launch_wait_for_one_another,
            "cudaLaunchCooperativeKernel"),
    DS_TEST(test_blocks_are_counted_in_all_dimensions, "review"),
    DS_TEST(test_cooperative_launches_of_two_streams_all_finish, "review"),
    DS_TEST(test_a_cooperative_launch_keeps_the_order_of_its_stream, "cudaLaunchKernelExC"),
    DS_TEST(test_blocks_that_do_not_fit_are_refused, "cudaErrorCooperativeLaunchTooLarge"),
    DS_TEST(test_as_many_blocks_as_multiprocessors_fit, "cudaDevAttrCooperativeLaunch"),
    DS_TEST_CPU(test_a_share_limits_the_blocks_of_a_cooperative_launch, "review"),
    DS_TEST_CPU(test_the_status_of_any_block_fails_the_device, "review"),
    DS_TEST(test_a_cooperative_node_runs_its_blocks_at_once, "cudaLaunchAttributeCooperative"),
    DS_TEST(test_a_captured_cooperative_launch_runs_its_blocks_at_once,
            "cudaLaunchAttributeCooperative"),
    DS_TEST(test_a_cooperative_node_that_does_not_fit_is_refused,
            "cudaErrorCooperativeLaunchTooLarge"),
    DS_TEST(test_an_executable_keeps_the_attributes_of_a_kernel, "cudaGraphExecUpdate"),
    DS_TEST(test_an_executable_takes_no_blocks_that_do_not_fit,
            "cudaErrorCooperativeLaunchTooLarge"),
    DS_TEST(test_a_node_of_a_graph_becomes_cooperative_and_back, "review"),
    DS_TEST(test_the_text_of_a_graph_shows_attributes, "cudaGraphDebugDotPrint"),
    DS_TEST(test_attributes_change_no_item_of_a_launch, "cudaLaunchAttributeClusterDimension"),
    DS_TEST(test_attributes_that_no_gpu_takes_are_refused, "CUDA C++ Programming Guide"),
    DS_TEST_CPU(test_an_overlap_keeps_the_order_on_the_cpu, "review"),
    DS_TEST(test_nodes_by_hand_refuse_an_overlap,
            "cudaLaunchAttributeProgrammaticStreamSerialization"),
};
const size_t tests_launch_attributes_count =
    sizeof tests_launch_attributes / sizeof tests_launch_attributes[0];
