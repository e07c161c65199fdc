/* Graphs: built by hand and captured, launched, changed, copied, drawn, and taken apart. */
#include "harness.h"
#include "locks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ds_stream made(int device) {
    return harness_stream(device, DS_STREAM_NON_BLOCKING);
}

static ds_event event_of(unsigned flags) {
    ds_event e;
    ok(ds_event_create(flags, NULL, &e));
    return e;
}

static uint64_t *pinned(size_t words) {
    void *p;
    ok(ds_pinned_alloc(words * 8, &p));
    memset(p, 0, words * 8);
    return p;
}

static uint64_t *device_words(int device, size_t words) {
    void *p;
    ok(ds_device_alloc(harness_device(device), words * 8, &p));
    return p;
}

/* ---- graphs in short ---- */

static const ds_graph_node no_node;

static ds_graph graph_on(int device) {
    ds_graph g;
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(device) }, &g));
    return g;
}

static ds_graph_node add(ds_graph g, ds_node_desc desc, const ds_graph_node *after, size_t count) {
    ds_graph_node n;
    ok(ds_graph_add(g, &desc, after, count, &n));
    assert_true(n.id != 0);
    return n;
}

static ds_graph_node add_after(ds_graph g, ds_node_desc desc, ds_graph_node after) {
    return add(g, desc, &after, after.id != 0);
}

static ds_graph_node add_fold(ds_graph g, uint64_t *h, uint64_t n, ds_graph_node after) {
    return add_after(g, fold_node(h, n), after);
}

static ds_graph_node add_gate(ds_graph g, gate *closed, ds_graph_node after) {
    return add_after(g, gate_node(closed), after);
}

static ds_node_desc copy_node(void *dst, const void *src, size_t size) {
    return (ds_node_desc){ .kind = DS_NODE_COPY,
                           .u.copy = { .dst = dst, .src = src, .width = size } };
}

static ds_node_desc fill_node(void *ptr, uint32_t value, size_t value_size, size_t count) {
    return (ds_node_desc){
        .kind = DS_NODE_FILL,
        .u.fill = { .ptr = ptr, .value = value, .value_size = value_size, .width = count }
    };
}

static ds_node_desc host_node(ds_host_fn fn, void *user, ds_host_fn dtor_fn) {
    return (ds_node_desc){ .kind = DS_NODE_HOST,
                           .u.host = { .fn = fn, .user = user, .dtor_fn = dtor_fn } };
}

static ds_node_desc event_node(ds_node_kind kind, ds_event e) {
    return (ds_node_desc){ .kind = kind, .u.event = e };
}

static ds_node_desc child_node(ds_graph g) {
    return (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g };
}

static ds_node_desc empty_node(void) {
    return (ds_node_desc){ .kind = DS_NODE_EMPTY };
}

static ds_graph_exec exec_with(ds_graph g, unsigned flags) {
    ds_graph_exec x;
    ok(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = flags }, &x));
    assert_true(x.id != 0);
    return x;
}

static ds_graph_exec exec_of(ds_graph g) {
    return exec_with(g, 0);
}

static void run(ds_graph_exec x, ds_stream s) {
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
}

static size_t node_count(ds_graph g) {
    size_t count = 99;
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    return count;
}

static size_t edge_count(ds_graph g) {
    size_t count = 99;
    ok(ds_graph_get_edges(g, NULL, NULL, 0, &count));
    return count;
}

typedef struct mix_args {
    uint64_t *h, n;
} mix_args;

static int mix_items(size_t first, size_t count, const void *args) {
    const mix_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->h[i] = fold_host(a->h[i], a->n) + i;
    return 0;
}

static ds_kernel mix_kernel(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, mix_args, h), PARAM(VALUE, mix_args, n),
                                       PARAM_FIRST, PARAM_COUNT };
    return harness_kernel("mix", mix_items, sizeof(mix_args), params, 4, 0);
}

/* ---- by hand ---- */

static void test_a_graph_of_every_kind_of_node_is_built_by_hand(void **state) {
    static const ds_node_kind kinds[] = { DS_NODE_KERNEL,     DS_NODE_COPY,  DS_NODE_COPY,
                                          DS_NODE_FILL,       DS_NODE_HOST,  DS_NODE_EVENT_RECORD,
                                          DS_NODE_EVENT_WAIT, DS_NODE_CHILD, DS_NODE_EMPTY };

    enum { COUNT = sizeof kinds / sizeof *kinds };

    payload p = { 0 };
    uint64_t *h = word(1), *k = word(1), *in = pinned(4), *out = pinned(4), *d = device_words(0, 4),
             expected = 1;
    ds_graph_node nodes[COUNT], got[COUNT];
    size_t count;
    (void)state;
    ds_stream s = made(0);
    ds_event e = event_of(0);
    ds_graph g = graph_on(0), inner = graph_on(0);
    add_fold(inner, h, 3, no_node);
    nodes[0] = add_fold(g, h, 2, no_node);
    nodes[1] = add_after(g, copy_node(d, in, 32), nodes[0]);
    nodes[2] = add_after(g, copy_node(out, d, 16), nodes[1]);
    nodes[3] = add_after(g, fill_node(out + 2, 7, 1, 16), nodes[2]);
    nodes[4] = add_after(g, host_node(payload_run, &p, payload_destroy), nodes[3]);
    nodes[5] = add_after(g, event_node(DS_NODE_EVENT_RECORD, e), nodes[4]);
    nodes[6] = add_after(g, event_node(DS_NODE_EVENT_WAIT, e), nodes[5]);
    nodes[7] = add_after(g, child_node(inner), nodes[6]);
    nodes[8] = add_after(g, empty_node(), nodes[7]);
    add_fold(g, k, 4, nodes[8]);
    ok(ds_graph_get_nodes(g, got, COUNT, &count));
    assert_int_equal(count, COUNT + 1);
    assert_int_equal(edge_count(g), COUNT);
    for (int i = 0; i < COUNT; i++) {
        ds_node_desc n;
        assert_true(got[i].id == nodes[i].id);
        ok(ds_graph_get_node(g, nodes[i], &n, NULL));
        assert_int_equal(n.kind, kinds[i]);
    }
    ds_graph_exec x = exec_of(g);
    assert_true(*h == 1 && p.ran == 0);
    for (int i = 0; i < 3; i++) {
        in[1] = 50 + (uint64_t)i;
        run(x, s);
        expected = fold_host(fold_host(expected, 2), 3);
        assert_true(*h == expected && out[1] == in[1] && out[2] == 0x0707070707070707u &&
                    out[3] == out[2]);
        assert_int_equal(p.ran, i + 1);
        ok(ds_event_query(e));
    }
    assert_true(*k == fold_host(fold_host(fold_host(1, 4), 4), 4));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    await_destroyed(&p, 1);
    ok(ds_graph_destroy(inner));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

static void test_what_a_description_points_to_is_copied(void **state) {
    uint64_t *h = word(1), *elsewhere = word(1);
    fold_args a = { h, 2 };
    ds_grid grid = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } };
    char label[20] = "first";
    ds_node_desc n, desc = { .kind = DS_NODE_KERNEL,
                             .label = label,
                             .u.kernel = { .kernel = harness_fold_kernel(),
                                           .grid = &grid,
                                           .args = &a,
                                           .args_size = sizeof a } };
    (void)state;
    ds_graph g = graph_on(0);
    ds_stream s = made(0);
    ds_graph_node node = add(g, desc, NULL, 0);
    a = (fold_args){ elsewhere, 3 };
    grid.grid[0] = 0;
    snprintf(label, sizeof label, "changed");
    memset(&desc, 0xff, sizeof desc);
    ok(ds_graph_get_node(g, node, &n, NULL));
    assert_string_equal(n.label, "first");
    assert_true(n.u.kernel.grid && n.u.kernel.grid->grid[0] == 1 && n.u.kernel.grid != &grid);
    assert_true(((const fold_args *)n.u.kernel.args)->h == h &&
                ((const fold_args *)n.u.kernel.args)->n == 2);
    ds_graph_exec x = exec_of(g);
    run(x, s);
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 2) && *elsewhere == 1);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_nodes_and_edges_are_written_as_far_as_there_is_room(void **state) {
    uint64_t *h = word(1);
    ds_graph_node n[3], got[4] = { { 0 }, { 0 }, { 7 }, { 0 } }, from[2] = { { 0 }, { 7 } },
                        to[2] = { { 0 }, { 7 } };
    size_t count = 9;
    (void)state;
    ds_graph g = graph_on(0);
    ok(ds_graph_get_nodes(g, got, 2, &count));
    assert_int_equal(count, 0);
    n[0] = add_fold(g, h, 2, no_node);
    n[1] = add_fold(g, h, 3, n[0]);
    n[2] = add_fold(g, h, 4, n[1]);
    ok(ds_graph_get_nodes(g, got, 2, &count));
    assert_int_equal(count, 3);
    assert_true(got[0].id == n[0].id && got[1].id == n[1].id && got[2].id == 7);
    ok(ds_graph_get_edges(g, from, to, 1, &count));
    assert_int_equal(count, 2);
    assert_true(from[0].id == n[0].id && to[0].id == n[1].id && from[1].id == 7 && to[1].id == 7);
    ok(ds_graph_get_nodes(g, got, 4, &count));
    assert_true(got[2].id == n[2].id && got[3].id == 0);
    ok(ds_graph_destroy(g));
}

static void test_a_node_tells_what_it_does_and_where_it_was_made(void **state) {
    uint64_t *in = pinned(8), *d = device_words(0, 16);
    ds_node_desc n;
    ds_site site;
    (void)state;
    ds_graph g = graph_on(0);
    ds_node_desc desc = {
        .kind = DS_NODE_COPY,
        .label = "rows",
        .priority = -2,
        .u.copy = { .dst = d, .src = in, .width = 8, .height = 4, .dst_pitch = 32, .src_pitch = 16 }
    };
    ds_graph_node node;
    ok(ds_graph_add(g, &desc, NULL, 0, &node));
    int line = __LINE__ - 1;
    memset(&n, 7, sizeof n);
    ok(ds_graph_get_node(g, node, &n, &site));
    assert_int_equal(n.kind, DS_NODE_COPY);
    assert_string_equal(n.label, "rows");
    assert_int_equal(n.priority, -2);
    assert_true(n.u.copy.dst == d && n.u.copy.src == in && n.u.copy.width == 8 &&
                n.u.copy.height == 4);
    assert_true(n.u.copy.dst_pitch == 32 && n.u.copy.src_pitch == 16);
    assert_non_null(site.file);
    assert_non_null(strstr(site.file, "test_graphs.c"));
    assert_int_equal(site.line, line);
    ok(ds_graph_get_node(g, node, &n, NULL));
    node = add(g, fill_node(d, 9, 2, 12), NULL, 0);
    ok(ds_graph_get_node(g, node, &n, &site));
    assert_null(n.label);
    assert_true(n.u.fill.ptr == d && n.u.fill.value == 9 && n.u.fill.value_size == 2 &&
                n.u.fill.width == 12);
    ok(ds_graph_destroy(g));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
}

static void test_rows_are_copied_and_filled_by_nodes(void **state) {
    uint32_t *in, *out;
    void *p;
    (void)state;
    in = (uint32_t *)pinned(8);
    out = (uint32_t *)pinned(16);
    ok(ds_device_alloc(harness_device(0), 128, &p));
    for (uint32_t i = 0; i < 16; i++)
        in[i] = 100 + i;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node n = add(g, fill_node(p, 0, 4, 32), NULL, 0);
    n = add_after(g,
                  (ds_node_desc){ .kind = DS_NODE_COPY,
                                  .u.copy = { .dst = p,
                                              .src = in,
                                              .width = 8,
                                              .height = 4,
                                              .dst_pitch = 32,
                                              .src_pitch = 16 } },
                  n);
    n = add_after(g,
                  (ds_node_desc){ .kind = DS_NODE_FILL,
                                  .u.fill = { .ptr = (char *)p + 16,
                                              .value = 5,
                                              .value_size = 2,
                                              .width = 4,
                                              .height = 3,
                                              .pitch = 32 } },
                  n);
    add_after(g, copy_node(out, p, 128), n);
    ds_graph_exec x = exec_of(g);
    run(x, s);
    for (uint32_t row = 0; row < 4; row++)
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t want = i < 2                           ? 100 + row * 4 + i
                            : (i == 4 || i == 5) && row < 3 ? 0x00050005u
                                                            : 0;
            assert_int_equal(out[row * 8 + i], want);
        }
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(p));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

static void test_kernels_of_many_items_are_nodes(void **state) {
    enum { ITEMS = 5000 };

    uint64_t *h = pinned(ITEMS);
    mix_args a = { h, 5 }, b = { h, 6 };
    (void)state;
    ds_kernel k = mix_kernel();
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node n = add(g,
                          (ds_node_desc){ .kind = DS_NODE_KERNEL,
                                          .u.kernel = { .kernel = k,
                                                        .items = ITEMS,
                                                        .grid = NULL,
                                                        .args = &a,
                                                        .args_size = sizeof a } },
                          NULL, 0);
    add_after(g,
              (ds_node_desc){ .kind = DS_NODE_KERNEL,
                              .u.kernel = { .kernel = k,
                                            .items = ITEMS - 1,
                                            .grid = NULL,
                                            .args = &b,
                                            .args_size = sizeof b } },
              n);
    ds_graph_exec x = exec_of(g);
    run(x, s);
    for (uint64_t i = 0; i < ITEMS; i++) {
        uint64_t want = fold_host(0, 5) + i;
        if (i < ITEMS - 1)
            want = fold_host(want, 6) + i;
        assert_true(h[i] == want);
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
    ok(ds_pinned_free(h));
}

static void test_nodes_run_on_the_device_that_they_name(void **state) {
    uint64_t *h = word(1);
    ds_node_desc n;
    (void)state;
    two_devices();
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_node_desc desc = fold_node(h, 2);
    desc.device = harness_device(1);
    ds_graph_node first = add(g, desc, NULL, 0), second = add_fold(g, h, 3, first);
    ok(ds_graph_get_node(g, first, &n, NULL));
    assert_int_equal(n.device.index, 1);
    ok(ds_graph_get_node(g, second, &n, NULL));
    assert_int_equal(n.device.index, 0);
    assert_int_equal(n.device.type, harness_device(0).type);
    ds_graph_exec x = exec_of(g);
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_graph_is_on_the_current_device_unless_one_is_given(void **state) {
    ds_graph g;
    ds_node_desc n;
    (void)state;
    ok(ds_device_set_current(harness_device(1)));
    ok(ds_graph_create(NULL, &g));
    ok(ds_device_set_current(harness_device(0)));
    ds_graph_node node = add_fold(g, word(1), 2, no_node);
    ok(ds_graph_get_node(g, node, &n, NULL));
    assert_int_equal(n.device.type, harness_device(1).type);
    assert_int_equal(n.device.index, harness_device(1).index);
    ok(ds_graph_destroy(g));
    refused(ds_graph_create(&(ds_graph_desc){ .device = { harness_device(0).type, 99 } }, &g),
            DS_ERR_DEVICE_RANGE);
    assert_int_equal(g.id, 0);
    refused(ds_graph_create(&(ds_graph_desc){ .device = { 77, 0 } }, &g), DS_ERR_INVALID_DEVICE);
    refused_any(ds_graph_create(&(ds_graph_desc){ .device = { DS_DEVICE_HOST, 0 } }, &g));
    refused(ds_graph_create(NULL, NULL), DS_ERR_INVALID_VALUE);
}

/* ---- dependencies ---- */

static void test_added_edges_order_the_nodes(void **state) {
    uint64_t *h = word(1), expected = 1;
    ds_graph_node n[4];
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    for (uint64_t i = 0; i < 4; i++)
        n[i] = add_fold(g, h, 10 + i, no_node);
    ds_graph_node from[] = { n[3], n[2], n[0] }, to[] = { n[2], n[0], n[1] }; /* 3 2 0 1 */
    ok(ds_graph_add_edges(g, from, to, 3));
    ok(ds_graph_add_edges(g, NULL, NULL, 0));
    assert_int_equal(edge_count(g), 3);
    ds_graph_exec x = exec_of(g);
    run(x, s);
    expected = fold_host(fold_host(fold_host(fold_host(expected, 13), 12), 10), 11);
    assert_true(*h == expected);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_duplicate_edges_and_cycles_are_refused_as_a_whole(void **state) {
    uint64_t *h = word(1);
    ds_graph_node n[4], from[3], to[3], foreign;
    (void)state;
    ds_graph g = graph_on(0), other = graph_on(0);
    foreign = add_fold(other, h, 1, no_node);
    for (uint64_t i = 0; i < 4; i++)
        n[i] = add_fold(g, h, i, no_node);
    ok(ds_graph_add_edges(g, &n[0], &n[1], 1));
    ok(ds_graph_add_edges(g, &n[1], &n[2], 1));
#define REFUSE(f0, t0, f1, t1)                                             \
    do {                                                                   \
        from[0] = n[3];                                                    \
        to[0] = n[0]; /* a good one in front */                            \
        from[1] = f0;                                                      \
        to[1] = t0;                                                        \
        from[2] = f1;                                                      \
        to[2] = t1;                                                        \
        refused(ds_graph_add_edges(g, from, to, 3), DS_ERR_INVALID_VALUE); \
        assert_int_equal(edge_count(g), 2);                                \
    } while (0)
    REFUSE(n[0], n[1], n[0], n[2]); /* there already */
    REFUSE(n[3], n[0], n[0], n[2]); /* twice in the call */
    REFUSE(n[0], n[2], n[1], n[1]); /* on itself */
    REFUSE(n[0], n[2], n[2], n[0]); /* a circle */
    REFUSE(n[1], n[3], n[0], n[2]); /* one with the good one: 3 0 1 3 */
    REFUSE(n[0], n[2], no_node, n[0]);
    REFUSE(n[0], n[2], n[0], foreign);
    REFUSE(foreign, n[2], n[0], n[2]);
#undef REFUSE
    refused(ds_graph_add_edges(g, NULL, to, 1), DS_ERR_INVALID_VALUE);
    refused(ds_graph_add_edges(g, from, NULL, 1), DS_ERR_INVALID_VALUE);
    ok(ds_graph_add_edges(g, &n[3], &n[0], 1)); /* still good alone */
    assert_int_equal(edge_count(g), 3);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(other));
}

static void test_dependencies_that_are_no_nodes_of_the_graph_are_refused(void **state) {
    uint64_t *h = word(1);
    (void)state;
    ds_graph g = graph_on(0), other = graph_on(0);
    ds_graph_node foreign = add_fold(other, h, 1, no_node), own = add_fold(g, h, 2, no_node),
                  out = { 7 };
    ds_graph_node lists[][2] = {
        { foreign, own }, { own, no_node }, { own, own }, { own, { own.id + 1 } }
    };
    ds_node_desc desc = fold_node(h, 3);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        refused(ds_graph_add(g, &desc, lists[i], 2, &out), DS_ERR_INVALID_VALUE);
        assert_int_equal(out.id, 0);
        out.id = 7;
    }
    refused(ds_graph_add(g, &desc, NULL, 1, &out), DS_ERR_INVALID_VALUE);
    assert_int_equal(node_count(g), 1);
    ok(ds_graph_add(g, &desc, &own, 1, NULL)); /* the handle is not wanted */
    assert_int_equal(node_count(g), 2);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(other));
}

/* ---- nodes that cannot be ---- */

typedef struct bad_node {
    const char *what;
    ds_node_desc desc;
    ds_result result;
} bad_node;

static void test_meaningless_nodes_are_refused_and_nothing_is_added(void **state) {
    static uint64_t ordinary[8];
    uint64_t *h = word(1), *d = device_words(0, 8);
    fold_args a = { h, 2 };
    ds_grid empty_grid = { .grid = { 0, 1, 1 }, .block = { 1, 1, 1 } };
    (void)state;
    ds_kernel k = harness_fold_kernel(), gone = mix_kernel();
    ok(ds_kernel_destroy(gone));
    ds_event e = event_of(0), gone_event = event_of(0);
    ok(ds_event_destroy(gone_event));
    ds_graph g = graph_on(0), gone_graph = graph_on(0);
    ok(ds_graph_destroy(gone_graph));
    add_fold(g, h, 1, no_node);
#define KERNEL(kernel_, n, grid_, args_, size) \
    {                                          \
        .kind = DS_NODE_KERNEL, .u.kernel = {  \
            .kernel = kernel_,                 \
            .items = n,                        \
            .grid = grid_,                     \
            .args = args_,                     \
            .args_size = size                  \
        }                                      \
    }
#define COPY(to, from, w, h, dp, sp)      \
    {                                     \
        .kind = DS_NODE_COPY, .u.copy = { \
            .dst = to,                    \
            .src = from,                  \
            .width = w,                   \
            .height = h,                  \
            .dst_pitch = dp,              \
            .src_pitch = sp               \
        }                                 \
    }
#define FILL(to, v, size, w, h, p)        \
    {                                     \
        .kind = DS_NODE_FILL, .u.fill = { \
            .ptr = to,                    \
            .value = v,                   \
            .value_size = size,           \
            .width = w,                   \
            .height = h,                  \
            .pitch = p                    \
        }                                 \
    }
    const bad_node bad[] = {
        { "no items", KERNEL(k, 0, NULL, &a, sizeof a), DS_ERR_INVALID_VALUE },
        { "an empty grid", KERNEL(k, 1, &empty_grid, &a, sizeof a), DS_ERR_INVALID_VALUE },
        { "small arguments", KERNEL(k, 1, NULL, &a, sizeof a - 1), DS_ERR_INVALID_VALUE },
        { "large arguments", KERNEL(k, 1, NULL, &a, sizeof a + 8), DS_ERR_INVALID_VALUE },
        { "no arguments", KERNEL(k, 1, NULL, NULL, sizeof a), DS_ERR_INVALID_VALUE },
        { "no kernel", KERNEL({ 0 }, 1, NULL, &a, sizeof a), DS_ERR_INVALID_HANDLE },
        { "a destroyed kernel", KERNEL(gone, 1, NULL, &a, sizeof a), DS_ERR_INVALID_HANDLE },
        { "a device that is not there",
          { .kind = DS_NODE_KERNEL,
            .device = { harness_device(0).type, 99 },
            .u.kernel = { .kernel = k,
                          .items = 1,
                          .grid = NULL,
                          .args = &a,
                          .args_size = sizeof a } },
          DS_ERR_DEVICE_RANGE },
        { "a copy to nowhere", COPY(NULL, d, 8, 1, 0, 0), DS_ERR_INVALID_VALUE },
        { "a copy from nowhere", COPY(d, NULL, 8, 1, 0, 0), DS_ERR_INVALID_VALUE },
        { "a copy of nothing", COPY(d, ordinary, 0, 1, 0, 0), DS_ERR_INVALID_VALUE },
        { "a copy beyond the end", COPY(d, ordinary, 65, 1, 0, 0), DS_ERR_INVALID_VALUE },
        { "rows that overlap", COPY(d, ordinary, 8, 2, 4, 8), DS_ERR_INVALID_VALUE },
        { "source rows that overlap", COPY(d, ordinary, 8, 2, 8, 4), DS_ERR_INVALID_VALUE },
        { "a fill of nowhere", FILL(NULL, 1, 4, 1, 1, 0), DS_ERR_INVALID_VALUE },
        { "a fill of nothing", FILL(d, 1, 4, 0, 1, 0), DS_ERR_INVALID_VALUE },
        { "three bytes", FILL(d, 1, 3, 1, 1, 0), DS_ERR_INVALID_VALUE },
        { "a fill beyond the end", FILL(d, 1, 4, 17, 1, 0), DS_ERR_INVALID_VALUE },
        { "a fill between elements", FILL((char *)d + 2, 1, 4, 1, 1, 0), DS_ERR_INVALID_VALUE },
        { "a pitch between elements", FILL(d, 1, 4, 1, 2, 6), DS_ERR_INVALID_VALUE },
        { "no function", { .kind = DS_NODE_HOST }, DS_ERR_INVALID_VALUE },
        { "no event", { .kind = DS_NODE_EVENT_RECORD }, DS_ERR_INVALID_HANDLE },
        { "a destroyed event",
          { .kind = DS_NODE_EVENT_WAIT, .u.event = gone_event },
          DS_ERR_INVALID_HANDLE },
        { "no child", { .kind = DS_NODE_CHILD }, DS_ERR_INVALID_HANDLE },
        { "a destroyed child",
          { .kind = DS_NODE_CHILD, .u.child = gone_graph },
          DS_ERR_INVALID_HANDLE },
        { "a native node", { .kind = DS_NODE_NATIVE }, DS_ERR_INVALID_VALUE },
        { "an unknown kind", { .kind = (ds_node_kind)9 }, DS_ERR_INVALID_VALUE },
        { "a negative kind", { .kind = (ds_node_kind)-1 }, DS_ERR_INVALID_VALUE },
    };
#undef KERNEL
#undef COPY
#undef FILL
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ds_graph_node n = { 7 };
        ds_result r = ds_graph_add(g, &bad[i].desc, NULL, 0, &n);
        if (r != bad[i].result)
            fail_msg("%s: %s, not %s: %s", bad[i].what, ds_result_get_name(r),
                     ds_result_get_name(bad[i].result), ds_error_get_last());
        harness_sentence(ds_error_get_last(), bad[i].what);
        assert_int_equal(n.id, 0);
        assert_int_equal(node_count(g), 1);
    }
    refused(ds_graph_add(g, NULL, NULL, 0, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_event_destroy(e));
    ok(ds_graph_destroy(g));
    ok(ds_device_free(d));
}

static void test_ordinary_host_memory_in_a_copy_node_must_only_stay(void **state) {
    static uint64_t in[2], out[2];
    uint64_t *d = device_words(0, 2);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    in[1] = 4;
    add_after(g, copy_node(out, d, 16), add(g, copy_node(d, in, 16), NULL, 0));
    ds_graph_exec x = exec_of(g);
    in[1] = 5;
    run(x, s);
    assert_true(out[1] == 5);
    in[1] = 6;
    run(x, s);
    assert_true(out[1] == 6);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
}

/* ---- handles ---- */

static void expect_invalid_graph(ds_graph g) {
    ds_graph other = { 7 };
    ds_graph_node n = { 7 };
    ds_graph_exec x = { 7 };
    ds_node_desc d, desc = empty_node();
    payload p[2] = { 0 };
    ds_node_desc host = host_node(payload_run, &p[0], payload_destroy);
    size_t count = 7;
    refused(ds_graph_destroy(g), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_clone(g, &other), DS_ERR_INVALID_HANDLE);
    assert_int_equal(other.id, 0);
    refused(ds_graph_find_in_clone(g, n, &n), DS_ERR_INVALID_HANDLE);
    assert_int_equal(n.id, 0);
    n.id = 7;
    refused(ds_graph_add(g, &desc, NULL, 0, &n), DS_ERR_INVALID_HANDLE);
    assert_int_equal(n.id, 0);
    refused(ds_graph_add(g, &host, NULL, 0, &n), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_add_edges(g, NULL, NULL, 0), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_get_nodes(g, NULL, 0, &count), DS_ERR_INVALID_HANDLE);
    assert_int_equal(count, 0);
    count = 7;
    refused(ds_graph_get_edges(g, NULL, NULL, 0, &count), DS_ERR_INVALID_HANDLE);
    assert_int_equal(count, 0);
    refused(ds_graph_get_node(g, n, &d, NULL), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_set_node(g, n, &desc), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_attach(g, &p[1], payload_destroy), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_write_dot_file(g, 0, "/dev/null"), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_instantiate(g, NULL, &x), DS_ERR_INVALID_HANDLE);
    assert_int_equal(x.id, 0);
    assert_int_equal(p[0].destroyed, 1);
    assert_int_equal(p[1].destroyed, 1);
    assert_int_equal(p[0].ran, 0);
}

static void expect_invalid_exec(ds_graph_exec x) {
    ds_graph_update_info info;
    ds_graph_node n = { 7 };
    ds_node_desc desc = empty_node();
    payload p = { 0 };
    ds_node_desc host = host_node(payload_run, &p, payload_destroy);
    int on = 7;
    size_t replaced = 7;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    refused(ds_graph_launch(x, s), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_upload(x, s), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_exec_destroy(x), DS_ERR_INVALID_HANDLE);
    memset(&info, 7, sizeof info);
    refused(ds_graph_exec_update(x, g, &info), DS_ERR_INVALID_HANDLE);
    assert_int_equal(info.node.id, 0);
    refused(ds_graph_exec_set_node(x, n, &desc), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_exec_set_node(x, n, &host), DS_ERR_INVALID_HANDLE);
    assert_int_equal(p.destroyed, 1);
    refused(ds_graph_exec_set_node_enabled(x, n, 1), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_exec_get_node_enabled(x, n, &on), DS_ERR_INVALID_HANDLE);
    assert_int_equal(on, 0);
    refused(ds_graph_exec_replace_pointers(x, NULL, NULL, 0, &replaced), DS_ERR_INVALID_HANDLE);
    assert_int_equal(replaced, 0);
    ok(ds_stream_query(s));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_invalid_graphs_and_executables_are_refused(void **state) {
    (void)state;
    ds_graph g = graph_on(0);
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    expect_invalid_graph((ds_graph){ 0 });
    expect_invalid_graph(g);
    expect_invalid_graph((ds_graph){ 0xdeadbeefcafef00du });
    expect_invalid_exec((ds_graph_exec){ 0 });
    expect_invalid_exec(x);
    expect_invalid_exec((ds_graph_exec){ 0xdeadbeefcafef00du });
}

static void test_nodes_of_other_graphs_and_missing_outputs_are_refused(void **state) {
    uint64_t *h = word(1);
    ds_node_desc d, desc = fold_node(h, 4);
    int on = 7;
    size_t count;
    void *list[1] = { h };
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0), other = graph_on(0), clone;
    ds_graph_node own = add_fold(g, h, 2, no_node), foreign = add_fold(other, h, 3, no_node),
                  out = { 7 };
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    const ds_graph_node wrong[] = { foreign, no_node, { own.id + 1 }, { 0xdeadbeefcafef00du } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memset(&d, 7, sizeof d);
        refused(ds_graph_get_node(g, wrong[i], &d, NULL), DS_ERR_INVALID_VALUE);
        assert_int_equal(d.kind, 0);
        refused(ds_graph_set_node(g, wrong[i], &desc), DS_ERR_INVALID_VALUE);
        refused(ds_graph_exec_set_node(x, wrong[i], &desc), DS_ERR_INVALID_VALUE);
        refused(ds_graph_exec_set_node_enabled(x, wrong[i], 0), DS_ERR_INVALID_VALUE);
        refused(ds_graph_exec_get_node_enabled(x, wrong[i], &on), DS_ERR_INVALID_VALUE);
    }
    refused(ds_graph_get_node(g, own, NULL, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_get_nodes(g, NULL, 0, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_get_nodes(g, NULL, 1, &count), DS_ERR_INVALID_VALUE);
    refused(ds_graph_get_edges(g, NULL, NULL, 0, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_get_edges(g, &out, NULL, 1, &count), DS_ERR_INVALID_VALUE);
    refused(ds_graph_get_edges(g, NULL, &out, 1, &count), DS_ERR_INVALID_VALUE);
    refused(ds_graph_clone(g, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_instantiate(g, NULL, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_set_node(g, own, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_set_node(x, own, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_get_node_enabled(x, own, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_replace_pointers(x, NULL, list, 1, &count), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_replace_pointers(x, list, NULL, 1, &count), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_update(x, (ds_graph){ 0 }, NULL), DS_ERR_INVALID_HANDLE);
    ok(ds_graph_clone(g, &clone));
    refused(ds_graph_find_in_clone(clone, own, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_launch(x, (ds_stream){ 0 }), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_upload(x, (ds_stream){ 0 }), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_write_dot(g, 0, NULL, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_write_dot_file(g, 0, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_graph_attach(g, NULL, NULL), DS_ERR_INVALID_VALUE);
    run(x, s); /* all of that has changed nothing */
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_destroy(clone));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(other));
    ok(ds_stream_destroy(s));
}

/* ---- launches ---- */

static void test_an_executable_is_a_copy_of_the_graph_as_it_was(void **state) {
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node n = add_fold(g, h, 2, no_node);
    ds_graph_exec before = exec_of(g);
    add_fold(g, k, 3, n);
    ds_node_desc desc = fold_node(h, 4);
    ok(ds_graph_set_node(g, n, &desc));
    ds_graph_exec after = exec_of(g);
    run(before, s);
    assert_true(*h == fold_host(1, 2) && *k == 1);
    run(after, s);
    assert_true(*h == fold_host(fold_host(1, 2), 4) && *k == fold_host(1, 3));
    ok(ds_graph_destroy(g));
    run(before, s);
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 4), 2));
    ok(ds_graph_exec_destroy(before));
    ok(ds_graph_exec_destroy(after));
    ok(ds_stream_destroy(s));
}

static void test_a_launch_is_one_operation_of_its_stream(void **state) {
    gate before = { 0 }, inside = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_fold(g, h, 3, no_node);
    add_gate(g, &inside, add_fold(g, k, 4, no_node)); /* a second root, and a leaf that is held */
    ds_graph_exec x = exec_of(g);
    gate_close(s, &before);
    fold(s, h, 2);
    ok(ds_graph_launch(x, s));
    fold(s, h, 5);
    gate_wait_entered(&before);
    gate_expect_unentered(&inside);
    assert_true(*h == 1 && *k == 1);
    gate_open(&before);
    gate_wait_entered(&inside);
    assert_true(*k == fold_host(1, 4));
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&inside);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 5));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_work_behind_a_launch_waits_for_every_leaf(void **state) {
    gate inside = { 0 }, behind = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_gate(g, &inside, no_node);
    add_fold(g, h, 2, no_node);
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    gate_close(s, &behind);
    gate_wait_entered(&inside);
    gate_expect_unentered(&behind);
    gate_open(&inside);
    gate_wait_entered(&behind);
    gate_open(&behind);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_graph_is_launched_on_streams_of_all_kinds(void **state) {
    uint64_t *h = word(1), expected = 1;
    ds_stream s[6];
    (void)state;
    s[0] = made(0);
    s[1] = harness_stream(0, DS_STREAM_BLOCKING);
    ok(ds_stream_get_per_thread(harness_device(0), &s[2]));
    ok(ds_stream_get_legacy(harness_device(0), &s[3]));
    s[4] = made(1);
    ok(ds_stream_create(
        &(ds_stream_desc){ .device = harness_device(0), .priority = DS_PRIORITY_HIGHEST }, &s[5]));
    ds_graph g = graph_on(0);
    add_fold(g, h, 3, add_fold(g, h, 2, no_node));
    ds_graph_exec x = exec_of(g);
    for (int i = 0; i < 6; i++) {
        run(x, s[i]);
        expected = fold_host(fold_host(expected, 2), 3);
        assert_true(*h == expected);
    }
    for (int i = 0; i < 30; i++) { /* none is waited for, and they keep their order */
        ok(ds_graph_launch(x, s[i % 6]));
        expected = fold_host(fold_host(expected, 2), 3);
    }
    for (int i = 0; i < harness_device_count(); i++)
        ok(ds_device_synchronize(harness_device(i)));
    assert_true(*h == expected);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s[0]));
    ok(ds_stream_destroy(s[1]));
    ok(ds_stream_destroy(s[4]));
    ok(ds_stream_destroy(s[5]));
}

static void test_a_launch_on_the_legacy_stream_keeps_that_streams_order(void **state) {
    gate before = { 0 }, inside = { 0 }, free_gate = { 0 };
    uint64_t *h = word(1);
    ds_stream legacy;
    (void)state;
    ok(ds_stream_get_legacy(harness_device(0), &legacy));
    ds_stream a = harness_stream(0, DS_STREAM_BLOCKING), b = harness_stream(0, DS_STREAM_BLOCKING),
              apart = made(0);
    ds_graph g = graph_on(0);
    add_gate(g, &inside, add_fold(g, h, 3, no_node));
    ds_graph_exec x = exec_of(g);
    gate_close(a, &before);
    fold(a, h, 2);
    ok(ds_graph_launch(x, legacy));
    fold(b, h, 4);
    gate_close(apart, &free_gate); /* takes no part */
    gate_wait_entered(&before);
    gate_wait_entered(&free_gate);
    gate_open(&free_gate);
    gate_expect_unentered(&inside);
    gate_open(&before);
    gate_wait_entered(&inside);
    assert_int_equal(ds_stream_query(b), DS_NOT_READY);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    gate_open(&inside);
    ok(ds_stream_synchronize(b));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 4));
    ok(ds_stream_synchronize(legacy));
    ok(ds_stream_synchronize(apart));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(a));
    ok(ds_stream_destroy(b));
    ok(ds_stream_destroy(apart));
}

static void test_a_blocking_streams_launch_waits_for_the_legacy_stream(void **state) {
    gate before = { 0 };
    uint64_t *h = word(1);
    ds_stream legacy;
    (void)state;
    ok(ds_stream_get_legacy(harness_device(0), &legacy));
    ds_stream s = harness_stream(0, DS_STREAM_BLOCKING);
    ds_graph g = graph_on(0);
    add_fold(g, h, 3, no_node);
    ds_graph_exec x = exec_of(g);
    gate_close(legacy, &before);
    fold(legacy, h, 2);
    ok(ds_graph_launch(x, s));
    fold(legacy, h, 4);
    gate_wait_entered(&before);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&before);
    ok(ds_stream_synchronize(legacy));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 4));
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

/* to be probed: P21 */
static void test_launches_of_one_executable_run_one_after_another(void **state) {
    gate inside = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0), t = made(1), u = made(0);
    ds_graph g = graph_on(0);
    add_gate(g, &inside, add_fold(g, h, 2, no_node));
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&inside);
    ok(ds_graph_launch(x, t));
    fold(t, k, 3);
    ok(ds_graph_launch(x, u));
    gate other = { 0 };
    gate_expect_unentered(&other); /* time to do wrong */
    assert_true(*h == fold_host(1, 2) && *k == 1);
    assert_int_equal(ds_stream_query(t), DS_NOT_READY);
    assert_int_equal(ds_stream_query(u), DS_NOT_READY);
    gate_open(&inside);
    ok(ds_stream_synchronize(u));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 2), 2));
    ok(ds_stream_synchronize(t));
    assert_true(*k == fold_host(1, 3));
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_stream_destroy(u));
}

static void test_two_executables_run_side_by_side(void **state) {
    gate inside = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0);
    ds_graph a = graph_on(0), b = graph_on(0);
    add_gate(a, &inside, no_node);
    add_fold(b, h, 2, no_node);
    ds_graph_exec x = exec_of(a), y = exec_of(b);
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&inside);
    run(y, t);
    assert_true(*h == fold_host(1, 2));
    gate_open(&inside);
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_destroy(a));
    ok(ds_graph_destroy(b));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_branches_run_side_by_side_and_a_join_waits_for_all(void **state) {
    gate inside = { 0 };
    uint64_t *h = word(1), *k = word(1), *joined = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_event e = event_of(0);
    ds_graph g = graph_on(0);
    ds_graph_node top = add_fold(g, h, 2, no_node), two[2];
    two[0] = add_gate(g, &inside, top);
    two[1] = add_after(g, event_node(DS_NODE_EVENT_RECORD, e),
                       add_fold(g, k, 4, add_fold(g, k, 3, top)));
    add(g, fold_node(joined, 5), two, 2);
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&inside);
    ok(ds_event_synchronize(e)); /* the other branch came to its end */
    assert_true(*k == fold_host(fold_host(1, 3), 4) && *joined == 1);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&inside);
    ok(ds_stream_synchronize(s));
    assert_true(*joined == fold_host(1, 5));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

typedef struct count_args {
    uint64_t *counter, n;
} count_args;

static int count_item(size_t first, size_t count, const void *args) {
    const count_args *a = args;
    (void)first;
    (void)count;
    __atomic_fetch_add(a->counter, a->n, __ATOMIC_RELAXED);
    return 0;
}

static void test_wide_and_deep_graphs_run_every_node_once(void **state) {
    enum { WIDE = 300, DEEP = 1000 };

    static const ds_param params[] = { PARAM(READ_WRITE, count_args, counter),
                                       PARAM(VALUE, count_args, n) };
    static ds_graph_node nodes[WIDE];
    uint64_t *counter = word(0), *h = word(1), sum = 0, expected = 1;
    (void)state;
    ds_kernel k = harness_kernel("count", count_item, sizeof(count_args), params, 2, 0);
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node top = add(g, empty_node(), NULL, 0);
    for (uint64_t i = 0; i < WIDE; i++) {
        count_args a = { counter, i * i + 1 };
        nodes[i] = add_after(g,
                             (ds_node_desc){ .kind = DS_NODE_KERNEL,
                                             .u.kernel = { .kernel = k,
                                                           .items = 1,
                                                           .grid = NULL,
                                                           .args = &a,
                                                           .args_size = sizeof a } },
                             top);
        sum += a.n;
    }
    ds_graph_node last = add(g, empty_node(), nodes, WIDE);
    for (uint64_t i = 0; i < DEEP; i++) {
        last = add_fold(g, h, i, last);
        expected = fold_host(expected, i);
    }
    ds_graph_exec x = exec_of(g);
    run(x, s);
    assert_true(*counter == sum && *h == expected);
    for (int i = 0; i < 4; i++)
        ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    assert_true(*counter == 5 * sum);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_graph_without_work_passes_the_streams_order_on(void **state) {
    gate before = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph nothing = graph_on(0), hollow = graph_on(0);
    add_after(hollow, empty_node(), add(hollow, empty_node(), NULL, 0));
    ds_graph_exec x = exec_of(nothing), y = exec_of(hollow);
    gate_close(s, &before);
    ok(ds_graph_launch(x, s));
    ok(ds_graph_launch(y, s));
    fold(s, h, 2);
    gate_wait_entered(&before);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    assert_true(*h == 1);
    gate_open(&before);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_destroy(nothing));
    ok(ds_graph_destroy(hollow));
    ok(ds_stream_destroy(s));
}

static void test_an_upload_keeps_the_streams_order_and_runs_nothing(void **state) {
    gate before = { 0 };
    uint64_t *h = word(1);
    payload p = { 0 };
    ds_graph_exec x, y;
    (void)state;
    ds_stream s = made(0), t = made(0);
    ds_graph g = graph_on(0);
    add_after(g, host_node(payload_run, &p, NULL), add_fold(g, h, 2, no_node));
    ok(ds_graph_instantiate(
        g,
        &(ds_graph_exec_desc){ .flags = DS_GRAPH_UPLOAD, .upload_stream = s, .label = "uploaded" },
        &x));
    ok(ds_stream_synchronize(s));
    assert_true(*h == 1 && p.ran == 0);
    run(x, t);
    assert_true(*h == fold_host(1, 2) && p.ran == 1);
    y = exec_of(g);
    gate_close(s, &before);
    ok(ds_graph_upload(y, s));
    gate_wait_entered(&before);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&before);
    ok(ds_stream_synchronize(s));
    assert_int_equal(p.ran, 1);
    run(y, s);
    ok(ds_graph_upload(y, t)); /* also after a launch */
    run(y, t);
    assert_int_equal(p.ran, 3);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_executables_are_made_with_sensible_flags_only(void **state) {
    static const unsigned good[] = { 0, DS_GRAPH_AUTO_FREE_ON_LAUNCH, DS_GRAPH_USE_NODE_PRIORITY,
                                     DS_GRAPH_REPLACE_POINTERS,
                                     DS_GRAPH_AUTO_FREE_ON_LAUNCH | DS_GRAPH_USE_NODE_PRIORITY |
                                         DS_GRAPH_REPLACE_POINTERS };
    uint64_t *h = word(1), expected = 1;
    ds_graph_exec x = { 7 };
    (void)state;
    ds_stream s = made(0), gone = made(0);
    ok(ds_stream_destroy(gone));
    ds_graph g = graph_on(0);
    ds_node_desc desc = fold_node(h, 2);
    desc.priority = -3;
    add(g, desc, NULL, 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        x = exec_with(g, good[i]);
        run(x, s);
        expected = fold_host(expected, 2);
        assert_true(*h == expected);
        ok(ds_graph_exec_destroy(x));
    }
    refused(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_DEVICE_LAUNCH }, &x),
            DS_ERR_UNSUPPORTED);
    assert_int_equal(x.id, 0);
    refused(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = 16 }, &x),
            DS_ERR_INVALID_VALUE);
    refused(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_UPLOAD }, &x),
            DS_ERR_INVALID_HANDLE);
    ds_graph_exec_desc stale = { .flags = DS_GRAPH_UPLOAD, .upload_stream = gone };
    refused(ds_graph_instantiate(g, &stale, &x), DS_ERR_INVALID_HANDLE);
    assert_int_equal(x.id, 0);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

typedef struct launcher {
    ds_graph_exec x;
    ds_stream s;
} launcher;

static void *launch_repeatedly(void *user) {
    launcher *l = user;
    for (int i = 0; i < 100; i++)
        ok_thread(ds_graph_launch(l->x, l->s));
    ok_thread(ds_stream_synchronize(l->s));
    return NULL;
}

static void test_threads_may_launch_one_executable_and_others_at_once(void **state) {
    enum { THREADS = 4 };

    uint64_t *shared = word(1), *own = zeroed_words(THREADS), expected = 1;
    pthread_t threads[THREADS];
    launcher l[THREADS];
    (void)state;
    ds_graph g = graph_on(0);
    add_fold(g, shared, 2, no_node);
    ds_graph_exec x = exec_of(g);
    for (int i = 0; i < THREADS; i++) {
        ds_graph mine = graph_on(0);
        add_fold(mine, &own[i], 3, no_node);
        l[i] = (launcher){ i < 2 ? x : exec_of(mine), made(0) };
        ok(ds_graph_destroy(mine));
    }
    for (int i = 0; i < THREADS; i++)
        threads[i] = spawn(launch_repeatedly, &l[i]);
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
    for (int i = 0; i < 200; i++)
        expected = fold_host(expected, 2);
    assert_true(*shared == expected);
    expected = 0;
    for (int i = 0; i < 100; i++)
        expected = fold_host(expected, 3);
    for (int i = 0; i < THREADS; i++) {
        if (i >= 2) {
            assert_true(own[i] == expected);
            ok(ds_graph_exec_destroy(l[i].x));
        }
        ok(ds_stream_destroy(l[i].s));
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
}

typedef struct rank_args {
    _Atomic int *next, *place;
} rank_args;

static int rank_kernel(size_t first, size_t count, const void *args) {
    const rank_args *a = args;
    (void)first;
    (void)count;
    *a->place = ++*a->next;
    return 0;
}

static void test_ready_nodes_run_by_priority_if_requested(void **state) {
    enum { N = 12 };

    ds_cpu_desc cpu = { .devices = 1, .workers = 1 };
    static _Atomic int next, place[N];
    gate held = { 0 };
    (void)state;
    harness_restart(&(ds_init_desc){ .cpu = &cpu });
    ds_kernel rank = harness_kernel("rank", rank_kernel, sizeof(rank_args), NULL, 0, 0);
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node root = add_gate(g, &held, no_node);
    next = 0;
    for (int i = 0; i < N; i++) {
        rank_args a = { &next, &place[i] };
        ds_node_desc desc = { .kind = DS_NODE_KERNEL,
                              .priority = -(i * 5 % 6),
                              .u.kernel = { .kernel = rank,
                                            .items = 1,
                                            .grid = NULL,
                                            .args = &a,
                                            .args_size = sizeof a } };
        add_after(g, desc, root);
    }
    ds_graph_exec x = exec_with(g, DS_GRAPH_USE_NODE_PRIORITY);
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&held);
    gate_open(&held);
    /* a thread that waits might help and so change the order */
    while (ds_stream_query(s) != DS_OK)
        harness_nap();
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            if (i * 5 % 6 > j * 5 % 6 && place[i] >= place[j])
                fail_msg("node %d (priority %d) ran as number %d, node %d (priority %d) as %d", i,
                         -(i * 5 % 6), place[i], j, -(j * 5 % 6), place[j]);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(rank));
    ok(ds_stream_destroy(s));
    harness_restart(NULL);
}

/* ---- events ---- */

static void test_the_time_between_two_records_of_a_launch_is_measured(void **state) {
    gate held = { 0 };
    double ms = 0, again = 0;
    (void)state;
    ds_event start = event_of(DS_EVENT_TIMING), stop = event_of(DS_EVENT_TIMING);
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node n = add(g, event_node(DS_NODE_EVENT_RECORD, start), NULL, 0);
    add_after(g, event_node(DS_NODE_EVENT_RECORD, stop), add_gate(g, &held, n));
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    ok(ds_event_synchronize(start));
    assert_int_equal(ds_event_query(stop), DS_NOT_READY);
    assert_int_equal(ds_event_get_elapsed_ms(start, stop, &ms), DS_NOT_READY);
    gate_wait_entered(&held);
    for (uint64_t begun = now_ns(); now_ns() - begun < 5000000;)
        harness_nap();
    gate_open(&held);
    ok(ds_stream_synchronize(s));
    ok(ds_event_get_elapsed_ms(start, stop, &ms));
    assert_true(ms >= 4 && ms < 10000);
    run(x, s);
    ok(ds_event_get_elapsed_ms(start, stop, &again)); /* of the latest launch */
    assert_true(again >= 0 && again != ms);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(start));
    ok(ds_event_destroy(stop));
    ok(ds_stream_destroy(s));
}

static void test_events_in_children_are_recorded_and_waited_for(void **state) {
    gate held = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_event before = event_of(0), after = event_of(0);
    ds_stream s = made(0), t = made(0);
    ds_graph inner = graph_on(0), g = graph_on(0);
    ds_graph_node n =
        add_fold(inner, h, 2, add(inner, event_node(DS_NODE_EVENT_WAIT, before), NULL, 0));
    add_after(inner, event_node(DS_NODE_EVENT_RECORD, after), n);
    add(g, child_node(inner), NULL, 0);
    ds_graph_exec x = exec_of(g);
    gate_close(t, &held);
    fold(t, h, 3);
    ok(ds_event_record(before, t));
    ok(ds_graph_launch(x, s));
    assert_int_equal(ds_event_query(after), DS_NOT_READY);
    gate_open(&held);
    ok(ds_event_synchronize(after));
    assert_true(*h == fold_host(fold_host(1, 3), 2));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_synchronize(t));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(before));
    ok(ds_event_destroy(after));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_node_records_an_event_on_the_events_device_only(void **state) {
    (void)state;
    two_devices();
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(1);
    ok(ds_event_record(e, t));
    ok(ds_event_synchronize(e));
    ds_graph g = graph_on(0);
    ds_node_desc desc = event_node(DS_NODE_EVENT_RECORD, e);
    refused(ds_graph_add(g, &desc, NULL, 0, NULL), DS_ERR_DEVICE_MISMATCH);
    desc.device = harness_device(1);
    add(g, desc, NULL, 0);
    add(g, event_node(DS_NODE_EVENT_WAIT, e), NULL, 0); /* anywhere */
    ds_graph_exec x = exec_of(g);
    run(x, s);
    ok(ds_event_query(e));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- children and clones ---- */

static void test_a_child_is_a_copy_of_its_graph_as_it_was(void **state) {
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph innermost = graph_on(0), inner = graph_on(0), g = graph_on(0);
    add_fold(innermost, h, 4, no_node);
    ds_graph_node n = add_fold(inner, h, 3, no_node);
    add_after(inner, child_node(innermost), n);
    n = add_fold(g, h, 2, no_node);
    n = add_after(g, child_node(inner), n);
    n = add_after(g, child_node(inner), n); /* twice */
    add_fold(g, h, 5, n);
    add_fold(inner, k, 9, no_node);
    add_fold(innermost, k, 9, no_node);
    ok(ds_graph_destroy(innermost));
    ok(ds_graph_destroy(inner));
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_destroy(g));
    uint64_t expected = 1;
    for (int i = 0; i < 2; i++) {
        run(x, s);
        expected = fold_host(expected, 2);
        for (int twice = 0; twice < 2; twice++)
            expected = fold_host(fold_host(expected, 3), 4);
        expected = fold_host(expected, 5);
        assert_true(*h == expected && *k == 1);
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(s));
}

static void test_a_graph_may_have_a_copy_of_itself_as_a_child(void **state) {
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node n = add_fold(g, h, 2, no_node);
    add_after(g, child_node(g), n);
    ds_graph_exec x = exec_of(g);
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 2));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_childs_branches_join_before_what_follows_it(void **state) {
    gate inside = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph inner = graph_on(0), g = graph_on(0);
    add_gate(inner, &inside, no_node);
    add_fold(inner, h, 2, no_node);
    add_fold(g, k, 3, add(g, child_node(inner), NULL, 0));
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&inside);
    gate other = { 0 };
    gate_expect_unentered(&other);
    assert_true(*k == 1);
    gate_open(&inside);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(1, 2) && *k == fold_host(1, 3));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_an_empty_child_is_passed(void **state) {
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph inner = graph_on(0), g = graph_on(0);
    add_fold(g, h, 3, add_after(g, child_node(inner), add_fold(g, h, 2, no_node)));
    ds_graph_exec x = exec_of(g);
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_clone_has_the_same_nodes_and_goes_its_own_way(void **state) {
    uint64_t *h = word(1), *k = word(1);
    ds_graph clone, second;
    ds_graph_node n[3], in_clone[3], got[3], from[2], to[2], out = { 7 };
    size_t count;
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0), unrelated = graph_on(0);
    n[0] = add_fold(g, h, 2, no_node);
    n[1] = add_fold(g, h, 3, n[0]);
    n[2] = add_after(g, child_node(unrelated), n[1]);
    ok(ds_graph_clone(g, &clone));
    ok(ds_graph_get_nodes(clone, got, 3, &count));
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) {
        ds_node_desc a, b;
        ok(ds_graph_find_in_clone(clone, n[i], &in_clone[i]));
        assert_true(in_clone[i].id == got[i].id && in_clone[i].id != n[i].id);
        ok(ds_graph_get_node(g, n[i], &a, NULL));
        ok(ds_graph_get_node(clone, got[i], &b, NULL));
        assert_int_equal(a.kind, b.kind);
    }
    ok(ds_graph_get_edges(clone, from, to, 2, &count));
    assert_int_equal(count, 2);
    assert_true(from[0].id == got[0].id && to[0].id == got[1].id);
    ok(ds_graph_clone(clone, &second));
    /* the other way round */
    refused(ds_graph_find_in_clone(g, got[0], &out), DS_ERR_INVALID_VALUE);
    assert_int_equal(out.id, 0);
    refused(ds_graph_find_in_clone(second, n[0], &out), DS_ERR_INVALID_VALUE);
    refused(ds_graph_find_in_clone(clone, no_node, &out), DS_ERR_INVALID_VALUE);
    ok(ds_graph_find_in_clone(second, got[1], &out));
    ds_node_desc desc = fold_node(k, 4);
    ok(ds_graph_set_node(clone, in_clone[1], &desc));
    ds_graph_node later = add_fold(g, k, 5, n[1]);
    refused(ds_graph_find_in_clone(clone, later, &out), DS_ERR_INVALID_VALUE);
    ok(ds_graph_destroy(g));
    ds_graph_exec x = exec_of(clone), y = exec_of(second);
    run(x, s);
    assert_true(*h == fold_host(1, 2) && *k == fold_host(1, 4));
    run(y, s);
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 2), 3) && *k == fold_host(1, 4));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_destroy(clone));
    ok(ds_graph_destroy(second));
    ok(ds_graph_destroy(unrelated));
    ok(ds_stream_destroy(s));
}

/* ---- changes to executables ---- */

static void test_a_node_of_an_executable_is_set_for_later_launches(void **state) {
    uint64_t *h = word(1), *k = word(1), *in = pinned(2), *out = pinned(2), *d = device_words(0, 2);
    payload p = { 0 }, q = { 0 };
    (void)state;
    ds_stream s = made(0);
    ds_event e = event_of(0), f = event_of(0);
    ds_graph inner = graph_on(0), other_inner = graph_on(0), g = graph_on(0);
    add_fold(inner, h, 3, no_node);
    add_fold(other_inner, k, 6, no_node);
    ds_graph_node kernel = add_fold(g, h, 2, no_node);
    ds_graph_node copy = add_after(g, copy_node(d, in, 8), kernel);
    ds_graph_node fill = add_after(g, fill_node(out, 1, 1, 8), copy);
    ds_graph_node back = add_after(g, copy_node(out + 1, d, 8), fill);
    ds_graph_node host = add_after(g, host_node(payload_run, &p, payload_destroy), back);
    ds_graph_node child = add_after(g, child_node(inner), host);
    ds_graph_node record = add_after(g, event_node(DS_NODE_EVENT_RECORD, e), child);
    in[0] = 70;
    in[1] = 71;
    ds_graph_exec x = exec_of(g), untouched = exec_of(g);
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 3) && out[0] == 0x0101010101010101u &&
                out[1] == 70 && p.ran == 1);
    ds_node_desc desc = fold_node(k, 5);
    ok(ds_graph_exec_set_node(x, kernel, &desc));
    desc = copy_node(d, in + 1, 8);
    ok(ds_graph_exec_set_node(x, copy, &desc));
    desc = fill_node(out, 2, 2, 4);
    ok(ds_graph_exec_set_node(x, fill, &desc));
    desc = host_node(payload_run, &q, payload_destroy);
    ok(ds_graph_exec_set_node(x, host, &desc));
    desc = child_node(other_inner);
    ok(ds_graph_exec_set_node(x, child, &desc));
    desc = event_node(DS_NODE_EVENT_RECORD, f);
    ok(ds_graph_exec_set_node(x, record, &desc));
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 3) && *k == fold_host(fold_host(1, 5), 6));
    assert_true(out[0] == 0x0002000200020002u && out[1] == 71);
    assert_true(p.ran == 1 && q.ran == 1);
    run(untouched, s); /* neither the graph nor other executables know of it */
    assert_true(*h == fold_host(fold_host(fold_host(fold_host(1, 2), 3), 2), 3) && out[1] == 70 &&
                p.ran == 2);
    ok(ds_graph_exec_destroy(x));
    await_destroyed(&q, 1);
    assert_int_equal(p.destroyed, 0);
    ok(ds_graph_exec_destroy(untouched));
    ok(ds_graph_destroy(g));
    await_destroyed(&p, 1);
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(other_inner));
    ok(ds_event_destroy(e));
    ok(ds_event_destroy(f));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

static void test_a_node_of_a_graph_is_set_for_later_executables(void **state) {
    uint64_t *h = word(1), *k = word(1);
    payload p = { 0 }, q = { 0 };
    ds_node_desc got;
    ds_site site;
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node kernel = add_fold(g, h, 2, no_node),
                  host = add_after(g, host_node(payload_run, &p, payload_destroy), kernel);
    ds_node_desc desc = fold_node(k, 3);
    ok(ds_graph_set_node(g, kernel, &desc));
    desc = host_node(payload_run, &q, payload_destroy);
    ok(ds_graph_set_node(g, host, &desc));
    int line = __LINE__ - 1;
    await_destroyed(&p, 1); /* nobody else has it */
    ok(ds_graph_get_node(g, host, &got, &site));
    assert_true(got.u.host.user == &q);
    assert_int_equal(site.line, line);
    assert_int_equal(edge_count(g), 1);
    ds_graph_exec x = exec_of(g);
    run(x, s);
    assert_true(*h == 1 && *k == fold_host(1, 3) && p.ran == 0 && q.ran == 1);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    await_destroyed(&q, 1);
    ok(ds_stream_destroy(s));
}

enum { CHANGES = 300 };

typedef struct changer {
    ds_graph g;
    ds_graph_node n;
    uint64_t *word;
} changer;

static void *change_a_graph(void *user) {
    changer *c = user;
    ds_node_desc desc = fold_node(c->word, 3);
    for (int i = 0; i < CHANGES; i++) {
        ds_graph_node more;
        ok_thread(ds_graph_set_node(c->g, c->n, &desc));
        ok_thread(ds_graph_add(c->g, &desc, &c->n, 1, &more));
    }
    return NULL;
}

/* The capture makes the list of nodes longer, which moves it. */
static void test_nodes_are_set_and_added_while_a_capture_adds_its_own(void **state) {
    uint64_t *h = word(1);
    changer c = { graph_on(0), no_node, word(1) };
    size_t count = 0;
    ds_graph same;
    (void)state;
    harness_warm_up();
    ds_stream s = made(0);
    c.n = add_fold(c.g, c.word, 2, no_node);
    ok(ds_capture_begin_to_graph(s, c.g, NULL, 0, DS_CAPTURE_RELAXED));
    pthread_t thread = spawn(change_a_graph, &c);
    for (int i = 0; i < CHANGES; i++)
        fold(s, h, 3);
    join(thread);
    ok(ds_capture_end(s, &same));
    assert_int_equal(same.id, c.g.id);
    ok(ds_graph_get_nodes(c.g, NULL, 0, &count));
    assert_int_equal(count, 1 + 2 * CHANGES);
    ok(ds_graph_destroy(c.g));
    ok(ds_stream_destroy(s));
}

static void test_a_node_keeps_its_kind_and_its_copies_their_memory_kind(void **state) {
    uint64_t *h = word(1), *in = pinned(2), *out = pinned(2), *d = device_words(0, 2);
    payload p = { 0 };
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0), inner = graph_on(0), other_inner = graph_on(0);
    add_fold(inner, h, 3, no_node);
    add_fold(other_inner, h, 4, add_fold(other_inner, h, 3, no_node));
    ds_graph_node kernel = add_fold(g, h, 2, no_node),
                  copy = add_after(g, copy_node(d, in, 8), kernel);
    ds_graph_node fill = add_after(g, fill_node(d, 1, 1, 8), copy),
                  child = add_after(g, child_node(inner), fill);
    ds_graph_exec x = exec_of(g);
    ds_node_desc to_host = host_node(payload_run, &p, payload_destroy);
    ds_node_desc descs[] = { copy_node(out, in, 8), copy_node(d, d + 1, 8), fill_node(out, 1, 1, 8),
                             fold_node(h, 9) };
    refused(ds_graph_set_node(g, copy, &descs[3]), DS_ERR_INVALID_VALUE);
    refused(ds_graph_set_node(g, kernel, &descs[0]), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_set_node(x, fill, &descs[3]), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_set_node(x, kernel, &to_host), DS_ERR_INVALID_VALUE);
    await_destroyed(&p, 1);
    refused(ds_graph_exec_set_node(x, copy, &descs[0]), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_set_node(x, copy, &descs[1]), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_set_node(x, fill, &descs[2]), DS_ERR_INVALID_VALUE);
    ds_node_desc child_desc = child_node(other_inner);
    refused(ds_graph_exec_set_node(x, child, &child_desc), DS_ERR_INVALID_VALUE);
    if (harness_device_count() > 1) {
        uint64_t *far_away = device_words(1, 2);
        ds_node_desc elsewhere = copy_node(far_away, in, 8), kernel_elsewhere = fold_node(h, 2);
        refused(ds_graph_exec_set_node(x, copy, &elsewhere), DS_ERR_INVALID_VALUE);
        elsewhere = fill_node(far_away, 1, 1, 8);
        refused(ds_graph_exec_set_node(x, fill, &elsewhere), DS_ERR_INVALID_VALUE);
        kernel_elsewhere.device = harness_device(1);
        refused(ds_graph_exec_set_node(x, kernel, &kernel_elsewhere), DS_ERR_INVALID_VALUE);
        ok(ds_device_free(far_away));
    }
    ok(ds_graph_set_node(g, copy, &descs[0])); /* of the graph it may change */
    ok(ds_graph_set_node(g, fill, &descs[2]));
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 3) && out[0] == 0);
    ok(ds_graph_exec_destroy(x));
    x = exec_of(g);
    run(x, s);
    assert_true(out[0] == 0x0101010101010101u);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(other_inner));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

static void test_launches_on_their_way_do_what_they_did(void **state) {
    gate before = { 0 };
    uint64_t *h = word(1), *k = word(1);
    payload p = { 0 }, q = { 0 };
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0), changed = graph_on(0);
    ds_graph_node kernel = add_fold(g, h, 2, no_node), second = add_fold(g, k, 2, kernel);
    ds_graph_node host = add_after(g, host_node(payload_run, &p, payload_destroy), second);
    add_after(changed, host_node(payload_run, &q, payload_destroy),
              add_fold(changed, k, 4, add_fold(changed, h, 4, no_node)));
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    ok(ds_graph_destroy(g));
    gate_close(s, &before);
    ok(ds_graph_launch(x, s)); /* 2, 2, p */
    ds_node_desc desc = fold_node(h, 3);
    ok(ds_graph_exec_set_node(x, kernel, &desc));
    ok(ds_graph_exec_set_node_enabled(x, second, 0));
    ok(ds_graph_launch(x, s)); /* 3, off, p */
    ok(ds_graph_exec_set_node_enabled(x, second, 1));
    ok(ds_graph_exec_update(x, changed, NULL));
    ok(ds_graph_destroy(changed));
    ok(ds_graph_launch(x, s)); /* 4, 4, q */
    void *from[] = { h, k }, *to[] = { k, h };
    ok(ds_graph_exec_replace_pointers(x, from, to, 2, NULL));
    ok(ds_graph_launch(x, s)); /* the words exchanged */
    desc = host_node(payload_run, &q, NULL);
    ok(ds_graph_exec_set_node(x, host, &desc));
    assert_int_equal(p.destroyed + q.destroyed, 0);
    assert_true(*h == 1 && *k == 1);
    gate_open(&before);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(fold_host(fold_host(fold_host(1, 2), 3), 4), 4));
    assert_true(*k == fold_host(fold_host(fold_host(1, 2), 4), 4));
    assert_true(p.ran == 2 && q.ran == 2);
    ok(ds_graph_exec_destroy(x));
    await_destroyed(&p, 1);
    await_destroyed(&q, 1);
    ok(ds_stream_destroy(s));
}

/* to be probed: P18 */
static void test_an_executable_takes_over_a_changed_graph(void **state) {
    uint64_t *h = word(1), *k = word(1);
    payload p = { 0 }, q = { 0 }, kept = { 0 };
    ds_graph_update_info info = { .reason = DS_GRAPH_UPDATE_ERROR, .node = { 7 } };
    (void)state;
    ds_stream s = made(0);
    ds_graph a = graph_on(0), b = graph_on(0);
    ds_graph_node first = add_fold(a, h, 2, no_node);
    add_after(a, host_node(payload_run, &p, payload_destroy), first);
    add_after(b, host_node(payload_run, &q, payload_destroy), add_fold(b, k, 3, no_node));
    ok(ds_graph_attach(b, &kept, payload_destroy));
    ds_graph_exec x = exec_of(a);
    run(x, s);
    ok(ds_graph_destroy(a));
    assert_int_equal(p.destroyed, 0);
    ok(ds_graph_exec_update(x, b, &info));
    assert_int_equal(info.reason, DS_GRAPH_UPDATE_SUCCESS);
    assert_int_equal(info.node.id, 0);
    /* CUDA may keep it as long as the executable */
    if (harness_is_cpu())
        await_destroyed(&p, 1);
    ok(ds_graph_destroy(b));
    run(x, s);
    assert_true(*h == fold_host(1, 2) && *k == fold_host(1, 3) && p.ran == 1 && q.ran == 1);
    ds_node_desc desc = fold_node(h, 4); /* nodes are named as before */
    ok(ds_graph_exec_set_node(x, first, &desc));
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 4) && *k == fold_host(1, 3));
    assert_int_equal(q.destroyed, 0);
    ok(ds_graph_exec_destroy(x));
    await_destroyed(&p, 1);
    await_destroyed(&q, 1);
    await_destroyed(&kept, 1);
    ok(ds_stream_destroy(s));
}

static void test_an_executable_is_updated_from_a_second_capture(void **state) {
    uint64_t *h = word(1), expected = 1;
    ds_graph_exec x = { 0 };
    (void)state;
    harness_warm_up();
    ds_stream s = made(0), t = made(0);
    for (uint64_t i = 0; i < 5; i++) {
        ds_graph g;
        harness_watch(s);
        ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
        fold(s, h, i);
        ok(ds_stream_wait_stream(t, s));
        fold(t, h, i + 10);
        ok(ds_stream_wait_stream(s, t));
        fold(s, h, i + 20);
        ok(ds_capture_end(s, &g));
        if (i == 0)
            x = exec_of(g);
        else
            ok(ds_graph_exec_update(x, g, NULL));
        ok(ds_graph_destroy(g));
        run(x, s);
        expected = fold_host(fold_host(fold_host(expected, i), i + 10), i + 20);
        assert_true(*h == expected);
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* The update is refused for this reason and, when node is given, names it; the executable still
   does the same. */
static void expect_no_update(ds_graph_exec x, ds_graph g, ds_graph_update_reason reason,
                             ds_graph_node node, int named, const char *what) {
    ds_graph_update_info info;
    memset(&info, 7, sizeof info);
    ds_result r = ds_graph_exec_update(x, g, &info);
    if (r != DS_ERR_GRAPH_UPDATE)
        fail_msg("%s: %s", what, ds_result_get_name(r));
    harness_sentence(ds_error_get_last(), what);
    if (info.reason != reason)
        fail_msg("%s: reason %d, not %d: %s", what, (int)info.reason, (int)reason,
                 ds_error_get_last());
    if (named && info.node.id != node.id)
        fail_msg("%s: another node is named", what);
}

/* to be probed: P18 */
static void test_an_executable_is_unchanged_if_an_update_is_refused(void **state) {
    uint64_t *h = word(1), *in = pinned(2), *out = pinned(2), *d = device_words(0, 2);
    ds_graph_node n[3], more, other_kind, memory = no_node;
    ds_graph g[7];
    (void)state;
    ds_stream s = made(0);
    for (int i = 0; i < 7; i++)
        g[i] = graph_on(0);
    /* The graph: fold, then copy and fill side by side. */
    for (int i = 0; i < 3; i++) {
        n[0] = add_fold(g[i], h, 2, no_node);
        n[1] = add_after(g[i], copy_node(d, in, 8), n[0]);
        n[2] = add_after(g[i], fill_node(out, 1, 1, 8), n[0]);
        if (i == 1)
            more = add_fold(g[i], h, 3, n[2]);
        if (i == 2)
            ok(ds_graph_add_edges(g[i], &n[1], &n[2], 1));
    }
    ds_graph_exec x = exec_of(g[0]);
    expect_no_update(x, g[1], DS_GRAPH_UPDATE_TOPOLOGY_CHANGED, more, 0, "a node more");
    expect_no_update(x, g[2], DS_GRAPH_UPDATE_TOPOLOGY_CHANGED, n[2], 0, "an edge more");
    expect_no_update(x, g[3], DS_GRAPH_UPDATE_TOPOLOGY_CHANGED, no_node, 0, "no nodes");
    n[0] = add_fold(g[4], h, 3, no_node); /* would be good */
    other_kind = add_after(g[4], fill_node(d, 1, 1, 8), n[0]);
    add_after(g[4], fill_node(out, 2, 1, 8), n[0]);
    expect_no_update(x, g[4], DS_GRAPH_UPDATE_NODE_TYPE_CHANGED, other_kind, 1, "another kind");
    n[0] = add_fold(g[5], h, 3, no_node);
    memory = add_after(g[5], copy_node(out + 1, in, 8), n[0]); /* to host memory now */
    add_after(g[5], fill_node(out, 2, 1, 8), n[0]);
    expect_no_update(x, g[5], DS_GRAPH_UPDATE_PARAMETERS_CHANGED, memory, 1,
                     "another kind of memory");
    if (harness_device_count() > 1) {
        ds_node_desc desc = fold_node(h, 3);
        desc.device = harness_device(1);
        n[0] = add(g[6], desc, NULL, 0);
        add_after(g[6], copy_node(d, in, 8), n[0]);
        add_after(g[6], fill_node(out, 2, 1, 8), n[0]);
        expect_no_update(x, g[6], DS_GRAPH_UPDATE_UNSUPPORTED_FUNCTION_CHANGE, n[0], 1,
                         "another device");
    }
    /* the reason is not wanted */
    refused(ds_graph_exec_update(x, g[1], NULL), DS_ERR_GRAPH_UPDATE);
    run(x, s);
    assert_true(*h == fold_host(1, 2) && out[0] == 0x0101010101010101u && out[1] == 0);
    ok(ds_graph_exec_update(x, g[0], NULL));
    ok(ds_graph_exec_destroy(x));
    for (int i = 0; i < 7; i++)
        ok(ds_graph_destroy(g[i]));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

static void test_an_executable_refuses_dependencies_on_other_nodes(void **state) {
    uint64_t *h[3] = { word(1), word(1), word(1) };
    ds_graph_node n[3];
    (void)state;
    ds_stream s = made(0);
    ds_graph a = graph_on(0), b = graph_on(0);
    n[0] = add_fold(a, h[0], 2, no_node);
    n[1] = add_fold(a, h[1], 2, n[0]);
    n[2] = add_fold(a, h[2], 2, n[0]);
    ds_graph_exec x = exec_of(a);
    n[0] = add_fold(b, h[0], 3, no_node);
    n[1] = add_fold(b, h[1], 3, n[0]);
    n[2] = add_fold(b, h[2], 3, n[1]);
    expect_no_update(x, b, DS_GRAPH_UPDATE_TOPOLOGY_CHANGED, n[2], 1, "another dependency");
    run(x, s);
    for (int i = 0; i < 3; i++)
        assert_true(*h[i] == fold_host(1, 2));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(a));
    ok(ds_graph_destroy(b));
    ok(ds_stream_destroy(s));
}

static void test_an_executable_that_goes_by_priorities_keeps_them(void **state) {
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g[2] = { graph_on(0), graph_on(0) };
    ds_graph_node n[2];
    for (int i = 0; i < 2; i++) {
        ds_node_desc desc = fold_node(h, (uint64_t)i + 2);
        desc.priority = -i;
        n[i] = add(g[i], desc, NULL, 0);
    }
    ds_graph_exec plain = exec_of(g[0]), x = exec_with(g[0], DS_GRAPH_USE_NODE_PRIORITY);
    expect_no_update(x, g[1], DS_GRAPH_UPDATE_ATTRIBUTES_CHANGED, n[1], 1, "another priority");
    run(x, s);
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_exec_update(plain, g[1], NULL));
    run(plain, s);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_graph_exec_destroy(plain));
    ok(ds_graph_exec_destroy(x));
    for (int i = 0; i < 2; i++)
        ok(ds_graph_destroy(g[i]));
    ok(ds_stream_destroy(s));
}

static void test_an_update_may_bring_another_kernel_and_other_sizes(void **state) {
    uint64_t *h = pinned(100), *d = device_words(0, 100);
    mix_args m = { h, 5 };
    (void)state;
    ds_kernel mix = mix_kernel();
    ds_stream s = made(0);
    ds_graph a = graph_on(0), b = graph_on(0);
    ds_graph_node n = add_fold(a, h, 2, no_node);
    add_after(a, copy_node(d, h, 8), n);
    ds_node_desc desc = {
        .kind = DS_NODE_KERNEL,
        .u.kernel = { .kernel = mix, .items = 100, .grid = NULL, .args = &m, .args_size = sizeof m }
    };
    n = add(b, desc, NULL, 0);
    add_after(b, copy_node(d, h, 800), n);
    ds_graph_exec x = exec_of(a);
    ok(ds_graph_exec_update(x, b, NULL));
    run(x, s);
    for (uint64_t i = 0; i < 100; i++)
        assert_true(h[i] == fold_host(0, 5) + i);
    memset(h, 0, 800);
    ok(ds_copy(h, d, 800, s));
    ok(ds_stream_synchronize(s));
    assert_true(h[99] == fold_host(0, 5) + 99);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(a));
    ok(ds_graph_destroy(b));
    ok(ds_kernel_destroy(mix));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(h));
}

static void test_nodes_are_switched_off_and_on(void **state) {
    uint64_t *h = word(1), *k = word(1), *in = pinned(1), *out = pinned(2), *d = device_words(0, 1);
    payload p = { 0 };
    int on = 7;
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node kernel = add_fold(g, h, 2, no_node),
                  copy = add_after(g, copy_node(d, in, 8), kernel);
    ds_graph_node fill = add_after(g, fill_node(out, 1, 1, 8), copy),
                  host = add_after(g, host_node(payload_run, &p, NULL), fill);
    ds_graph_node empty = add_after(g, empty_node(), host);
    ds_graph_node last = add_after(g, copy_node(out + 1, d, 8), empty);
    add_fold(g, k, 3, last);
    ds_graph_exec x = exec_of(g);
    in[0] = 5;
    run(x, s);
    assert_true(*h == fold_host(1, 2) && out[0] != 0 && out[1] == 5 && p.ran == 1);
    ok(ds_graph_exec_get_node_enabled(x, kernel, &on));
    assert_int_equal(on, 1);
    ok(ds_graph_exec_set_node_enabled(x, kernel, 0));
    ok(ds_graph_exec_set_node_enabled(x, copy, 0));
    ok(ds_graph_exec_set_node_enabled(x, fill, 0));
    ok(ds_graph_exec_get_node_enabled(x, kernel, &on));
    assert_int_equal(on, 0);
    in[0] = 6;
    out[0] = 0;
    run(x, s);
    assert_true(*h == fold_host(1, 2) && out[0] == 0 && out[1] == 5 && p.ran == 2 &&
                *k == fold_host(fold_host(1, 3), 3));
    ds_node_desc desc = fold_node(h, 4); /* set while it is off, it stays off */
    ok(ds_graph_exec_set_node(x, kernel, &desc));
    ok(ds_graph_exec_get_node_enabled(x, kernel, &on));
    assert_int_equal(on, 0);
    ok(ds_graph_exec_set_node_enabled(x, copy, 5)); /* anything but 0 */
    ok(ds_graph_exec_get_node_enabled(x, copy, &on));
    assert_int_equal(on, 1);
    run(x, s);
    assert_true(*h == fold_host(1, 2) && out[1] == 6);
    ok(ds_graph_exec_set_node_enabled(x, kernel, 1));
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 4));
    refused(ds_graph_exec_set_node_enabled(x, host, 0), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_set_node_enabled(x, empty, 0), DS_ERR_INVALID_VALUE);
    ok(ds_graph_exec_get_node_enabled(x, host, &on));
    assert_int_equal(on, 1);
    run(x, s);
    assert_int_equal(p.ran, 5);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

static void test_a_node_that_is_off_still_orders_those_around_it(void **state) {
    gate held = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node middle = add_fold(g, h, 2, add_gate(g, &held, no_node));
    add_fold(g, k, 3, middle);
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_exec_set_node_enabled(x, middle, 0));
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&held);
    gate other = { 0 };
    gate_expect_unentered(&other);
    assert_true(*k == 1);
    gate_open(&held);
    ok(ds_stream_synchronize(s));
    assert_true(*h == 1 && *k == fold_host(1, 3));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

/* ---- pointers ---- */

static void replace(ds_graph_exec x, void *from, void *to, size_t places) {
    size_t replaced = 99;
    ok(ds_graph_exec_replace_pointers(x, &from, &to, 1, &replaced));
    assert_int_equal(replaced, places);
}

static void test_a_replaced_pointer_is_used_by_the_next_launch(void **state) {
    uint64_t *h = word(1), *n1 = word(1), *n2 = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_fold(g, h, 2, no_node);
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS),
                  other = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    run(x, s);
    replace(x, h, n1, 1);
    run(x, s);
    replace(x, h, n2, 0); /* is not there any more */
    run(x, s);
    assert_true(*h == fold_host(1, 2) && *n1 == fold_host(fold_host(1, 2), 2) && *n2 == 1);
    replace(x, n1, n2, 1); /* a chain */
    run(x, s);
    run(x, s);
    assert_true(*n1 == fold_host(fold_host(1, 2), 2) && *n2 == fold_host(fold_host(1, 2), 2));
    replace(x, n2, h, 1);
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 2));
    run(other, s); /* has not changed */
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 2), 2));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(other));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_replacing_pointers_needs_the_flag(void **state) {
    uint64_t *h = word(1), *k = word(1);
    void *from = h, *to = k;
    size_t replaced = 7;
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_fold(g, h, 2, no_node);
    ds_graph_exec x = exec_of(g);
    refused(ds_graph_exec_replace_pointers(x, &from, &to, 1, &replaced), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(replaced, 0);
    run(x, s);
    assert_true(*h == fold_host(1, 2) && *k == 1);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_empty_lists_and_missing_pointers_replace_nothing(void **state) {
    uint64_t *h = word(1), *k = word(1), *l = word(1);
    void *list[1] = { h };
    size_t replaced = 7;
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_fold(g, h, 2, no_node);
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    ok(ds_graph_exec_replace_pointers(x, NULL, NULL, 0, &replaced));
    assert_int_equal(replaced, 0);
    ok(ds_graph_exec_replace_pointers(x, list, list, 0, NULL));
    replace(x, k, l, 0);
    void *inside = (char *)h + 1; /* only the very same pointer */
    replace(x, inside, l, 0);
    run(x, s);
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_several_pointers_are_replaced_at_once_in_all_nodes(void **state) {
    uint64_t *a = word(1), *b = word(1), *c = word(1), expected_a = 1, expected_b = 1;
    uint64_t *in = pinned(2), *out = pinned(3), *d = device_words(0, 2);
    size_t replaced;
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0), inner = graph_on(0);
    add_fold(inner, a, 4, no_node);
    ds_graph_node n = add_fold(g, a, 2, no_node);
    n = add_fold(g, b, 3, n);
    n = add_after(g, child_node(inner), n);
    n = add_fold(g, a, 5, n);
    n = add_after(g, copy_node(d, in, 8), n);
    n = add_after(g, copy_node(out, d, 8), n);
    add_after(g, fill_node(out + 1, 1, 1, 8), n);
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    in[0] = 10;
    in[1] = 11;
    run(x, s);
    expected_a = fold_host(fold_host(fold_host(expected_a, 2), 4), 5);
    expected_b = fold_host(expected_b, 3);
    assert_true(*a == expected_a && *b == expected_b && out[0] == 10 && out[1] != 0);
    /* the first two change places */
    void *from[] = { a, b, in, d, out + 1 }, *to[] = { b, a, in + 1, d + 1, out + 2 };
    ok(ds_graph_exec_replace_pointers(x, from, to, 5, &replaced));
    assert_int_equal(replaced, 3 + 1 + 1 + 2 + 1);
    run(x, s);
    expected_b = fold_host(fold_host(fold_host(expected_b, 2), 4), 5);
    expected_a = fold_host(expected_a, 3);
    assert_true(*a == expected_a && *b == expected_b && out[0] == 11 && out[2] == out[1]);
    void *both[] = { a, b }, *one[] = { c, c };
    ok(ds_graph_exec_replace_pointers(x, both, one, 2, &replaced));
    assert_int_equal(replaced, 4);
    for (int i = 0; i < 3; i++)
        run(x, s);
    uint64_t expected = 1;
    for (int i = 0; i < 3; i++)
        expected = fold_host(fold_host(fold_host(fold_host(expected, 2), 3), 4), 5);
    assert_true(*c == expected && *a == expected_a && *b == expected_b);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(inner));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

static void test_values_that_look_like_pointers_are_left_alone(void **state) {
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_fold(g, h, (uintptr_t)k, no_node);
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    replace(x, k, h, 0);
    run(x, s);
    assert_true(*h == fold_host(1, (uintptr_t)k));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_one_pointer_that_cannot_be_replaced_refuses_all(void **state) {
    uint64_t *h = word(1), *k = word(1), *in = pinned(2), *d = device_words(0, 2),
             *small = device_words(0, 1);
    size_t replaced = 7;
    (void)state;
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_after(g, copy_node(d, in, 16), add_fold(g, h, 2, no_node));
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    void *from[] = { h, d }, *other_kind[] = { k, in + 1 }, *too_small[] = { k, small },
         *none[] = { k, NULL };
    refused(ds_graph_exec_replace_pointers(x, from, other_kind, 2, &replaced),
            DS_ERR_INVALID_VALUE);
    assert_int_equal(replaced, 0);
    refused(ds_graph_exec_replace_pointers(x, from, too_small, 2, &replaced), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_replace_pointers(x, from, none, 2, &replaced), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_replace_pointers(x, none, from, 2, &replaced), DS_ERR_INVALID_VALUE);
    in[1] = 9;
    run(x, s);
    assert_true(*h == fold_host(1, 2) && *k == 1);
    ok(ds_copy(in, d, 16, s));
    ok(ds_stream_synchronize(s));
    assert_true(in[1] == 9);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_device_free(small));
    ok(ds_pinned_free(in));
}

static void test_pointers_of_a_captured_graph_are_replaced(void **state) {
    uint64_t *h = word(1), *k = word(1), *in = pinned(2), *d = device_words(0, 1), *out = pinned(1);
    ds_graph g;
    (void)state;
    harness_warm_up();
    ds_stream s = made(0);
    harness_watch(s);
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    for (uint64_t i = 0; i < 3; i++)
        fold(s, h, i);
    ok(ds_copy(d, in, 8, s));
    ok(ds_copy(out, d, 8, s));
    ok(ds_capture_end(s, &g));
    ds_graph_exec x = exec_with(g, DS_GRAPH_REPLACE_POINTERS);
    replace(x, h, k, 3);
    replace(x, in, in + 1, 1);
    in[1] = 5;
    run(x, s);
    assert_true(*h == 1 && *k == fold_host(fold_host(fold_host(1, 0), 1), 2) && out[0] == 5);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

/* ---- what a graph keeps ---- */

enum { OWNS_GRAPH, OWNS_CLONE, OWNS_EXEC, OWNS_PARENT, OWNERS };

/* The payloads go with the last owner, whichever that is. */
static void expect_release(int last, int launched) {
    gate before = { 0 };
    payload host = { 0 }, kept = { 0 };
    ds_graph clone;
    ds_stream s = made(0);
    ds_graph g = graph_on(0), parent = graph_on(0);
    add(g, host_node(payload_run, &host, payload_destroy), NULL, 0);
    ok(ds_graph_attach(g, &kept, payload_destroy));
    ok(ds_graph_clone(g, &clone));
    add(parent, child_node(g), NULL, 0);
    ds_graph_exec x = exec_of(g);
    gate_close(s, &before);
    if (launched)
        ok(ds_graph_launch(x, s));
    for (int i = 0; i < OWNERS; i++) {
        int which = (last + 1 + i) % OWNERS;
        assert_int_equal(host.destroyed + kept.destroyed, 0);
        if (which == OWNS_GRAPH)
            ok(ds_graph_destroy(g));
        if (which == OWNS_CLONE)
            ok(ds_graph_destroy(clone));
        if (which == OWNS_EXEC)
            ok(ds_graph_exec_destroy(x));
        if (which == OWNS_PARENT)
            ok(ds_graph_destroy(parent));
    }
    if (launched)
        assert_int_equal(host.destroyed + kept.destroyed, 0);
    gate_open(&before);
    ok(ds_stream_synchronize(s));
    await_destroyed(&host, 1);
    await_destroyed(&kept, 1);
    assert_int_equal(host.ran, launched);
    assert_int_equal(kept.ran, 0);
    ok(ds_stream_destroy(s));
}

static void test_payloads_and_attached_objects_end_with_the_last_user(void **state) {
    (void)state;
    for (int last = 0; last < OWNERS; last++)
        for (int launched = 0; launched < 2; launched++)
            expect_release(last, launched);
}

static void test_launches_keep_their_payloads_until_the_last_is_done(void **state) {
    gate between = { 0 };
    payload p = { 0 };
    (void)state;
    ds_stream s = made(0), t = made(0);
    ds_graph g = graph_on(0);
    add(g, host_node(payload_run, &p, payload_destroy), NULL, 0);
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_destroy(g));
    ok(ds_graph_launch(x, s));
    gate_close(t, &between);
    ok(ds_graph_launch(x, t));
    ok(ds_stream_destroy(t)); /* the streams may go as well */
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_synchronize(s));
    assert_int_equal(p.ran, 1);
    assert_int_equal(p.destroyed, 0);
    gate_open(&between);
    ok(ds_stream_destroy(s));
    await_destroyed(&p, 1);
    assert_int_equal(p.ran, 2);
}

static void test_a_refused_node_or_object_has_its_destructor_run_at_once(void **state) {
    payload p[5] = { 0 };
    (void)state;
    ds_graph g = graph_on(0);
    ds_graph_node other = add(g, empty_node(), NULL, 0), wrong = { 7 };
    ds_node_desc desc = host_node(NULL, &p[0], payload_destroy);
    refused(ds_graph_add(g, &desc, NULL, 0, NULL), DS_ERR_INVALID_VALUE);
    desc = host_node(payload_run, &p[1], payload_destroy);
    refused(ds_graph_add(g, &desc, &wrong, 1, NULL), DS_ERR_INVALID_VALUE);
    desc = host_node(payload_run, &p[2], payload_destroy);
    refused(ds_graph_set_node(g, other, &desc), DS_ERR_INVALID_VALUE);
    desc = host_node(payload_run, &p[3], payload_destroy);
    refused(ds_graph_set_node(g, wrong, &desc), DS_ERR_INVALID_VALUE);
    refused(ds_graph_attach((ds_graph){ 0 }, &p[4], payload_destroy), DS_ERR_INVALID_HANDLE);
    for (int i = 0; i < 5; i++)
        assert_int_equal(p[i].destroyed, 1);
    ok(ds_graph_destroy(g));
    for (int i = 0; i < 5; i++)
        assert_true(p[i].destroyed == 1 && p[i].ran == 0);
}

static void test_a_graph_keeps_kernels_and_events_whose_handles_are_gone(void **state) {
    uint64_t *h = pinned(3);
    mix_args a = { h, 5 };
    ds_node_desc n;
    (void)state;
    ds_kernel k = mix_kernel();
    ds_event e = event_of(0);
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_graph_node node = add(g,
                             (ds_node_desc){ .kind = DS_NODE_KERNEL,
                                             .u.kernel = { .kernel = k,
                                                           .items = 3,
                                                           .grid = NULL,
                                                           .args = &a,
                                                           .args_size = sizeof a } },
                             NULL, 0);
    node = add_after(g, event_node(DS_NODE_EVENT_RECORD, e), node);
    add_after(g, event_node(DS_NODE_EVENT_WAIT, e), node);
    ok(ds_kernel_destroy(k));
    ok(ds_event_destroy(e));
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_get_node(g, node, &n, NULL));
    assert_int_equal(n.kind, DS_NODE_EVENT_RECORD);
    refused(ds_event_query(e), DS_ERR_INVALID_HANDLE);
    ok(ds_graph_destroy(g));
    for (int i = 0; i < 3; i++)
        run(x, s);
    assert_true(h[0] == fold_host(fold_host(fold_host(0, 5), 5), 5));
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(s));
    ok(ds_pinned_free(h));
}

static void test_graphs_and_executables_are_destroyed_during_launches(void **state) {
    gate before = { 0 };
    uint64_t *h = word(1), expected = 1;
    (void)state;
    ds_stream s = made(0);
    gate_close(s, &before);
    for (uint64_t i = 0; i < 20; i++) {
        ds_graph g = graph_on(0);
        add_fold(g, h, i + 1, add_fold(g, h, i, no_node));
        ds_graph_exec x = exec_of(g);
        ok(ds_graph_launch(x, s));
        ok(ds_graph_launch(x, s));
        for (int twice = 0; twice < 2; twice++)
            expected = fold_host(fold_host(expected, i), i + 1);
        if (i % 2)
            ok(ds_graph_destroy(g));
        ok(ds_graph_exec_destroy(x));
        if (i % 2 == 0)
            ok(ds_graph_destroy(g));
        refused(ds_graph_launch(x, s), DS_ERR_INVALID_HANDLE);
    }
    assert_true(*h == 1);
    gate_open(&before);
    ok(ds_stream_synchronize(s));
    assert_true(*h == expected);
    ok(ds_stream_destroy(s));
}

static void collect(const ds_log_item *item, void *user) {
    char *text = user;
    size_t n = strlen(text);
    snprintf(text + n, 4000 - n, "%s\n", item->text);
}

static void test_shutdown_names_graphs_and_executables_that_were_left(void **state) {
    static char text[4000];
    static payload p, kept;
    ds_graph g;
    ds_graph_exec x;
    (void)state;
    p = (payload){ 0 };
    kept = (payload){ 0 };
    text[0] = 0;
    harness_restart(
        &(ds_init_desc){ .log_fn = collect, .log_user = text, .log_level = DS_LOG_WARNING });
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0), .label = "left graph" }, &g));
    add(g, host_node(payload_run, &p, payload_destroy), NULL, 0);
    ok(ds_graph_attach(g, &kept, payload_destroy));
    ok(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .label = "left executable" }, &x));
    ds_graph gone = graph_on(0);
    ok(ds_graph_destroy(gone));
    harness_shutdown();
    if (!strstr(text, "left graph") || !strstr(text, "left executable"))
        fail_msg("the report does not name them: %s", text);
    await_destroyed(&p, 1);
    await_destroyed(&kept, 1);
    refused(ds_graph_destroy(g), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_exec_destroy(x), DS_ERR_INVALID_HANDLE);
    harness_restart(NULL);
}

/* ---- pictures ---- */

typedef struct sheet {
    char text[20000];
    size_t used;
    int calls, stop_at;
} sheet;

static int write_sheet(const char *text, size_t size, void *user) {
    sheet *s = user;
    if (++s->calls == s->stop_at)
        return 5;
    /* must not be asked again */
    if (s->stop_at && s->calls > s->stop_at)
        return 0;
    assert_true(s->used + size < sizeof s->text);
    memcpy(s->text + s->used, text, size);
    s->used += size;
    s->text[s->used] = 0;
    return 0;
}

static const char *dot(ds_graph g, unsigned flags, sheet *s) {
    *s = (sheet){ .stop_at = 0 };
    ok(ds_graph_write_dot(g, flags, write_sheet, s));
    return s->text;
}

/* Quotes come in pairs on every line, escaped ones apart. */
static void expect_quoted(const char *text) {
    int open = 0, braces = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '\\' && open)
            c++;
        else if (*c == '"')
            open = !open;
        else if (*c == '\n' && open)
            fail_msg("a quote is open at the end of a line of: %s", text);
        else if (!open)
            braces += (*c == '{') - (*c == '}');
    }
    assert_int_equal(open, 0);
    assert_int_equal(braces, 0);
}

static ds_graph pictured(ds_event e, uint64_t *h, uint64_t *in, uint64_t *d, ds_graph inner) {
    static payload p;
    ds_graph g;
    ok(ds_graph_create(
        &(ds_graph_desc){ .device = harness_device(0), .label = "a \"quoted\" name" }, &g));
    ds_graph_node n = add_fold(g, h, 2, no_node);
    ds_node_desc desc = copy_node(d, in, 16);
    desc.label = "says \"hi\\\" to\nall";
    n = add_after(g, desc, n);
    n = add_after(g, fill_node(d, 1, 4, 2), n);
    n = add_after(g, host_node(payload_run, &p, NULL), n);
    n = add_after(g, event_node(DS_NODE_EVENT_RECORD, e), n);
    n = add_after(g, event_node(DS_NODE_EVENT_WAIT, e), n);
    n = add_after(g, child_node(inner), n);
    add_after(g, empty_node(), n);
    return g;
}

static size_t occurrences(const char *text, const char *what) {
    size_t n = 0;
    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

static void test_words_and_conditions_are_drawn_with_details(void **state) {
    static sheet plain, other;
    uint64_t *words = pinned(2);
    ds_graph g = graph_on(0);
    ds_graph body = graph_on(0);
    ds_graph_node n;
    const ds_value_op op = { .kind = DS_VALUE_WRITE, .address = words, .value = 7, .size = 8 };
    const ds_node_desc values = { .kind = DS_NODE_VALUES, .u.values = { .ops = &op, .count = 1 } };
    const ds_node_desc condition = { .kind = DS_NODE_CONDITION,
                                     .u.condition = { .kind = DS_CONDITION_WHILE,
                                                      .word = (const uint32_t *)(words + 1),
                                                      .bodies = &body,
                                                      .count = 1 } };
    (void)state;
    ok(ds_graph_add(g, &values, NULL, 0, &n));
    ok(ds_graph_add(g, &condition, &n, 1, &n));

    dot(g, DS_DOT_PLAIN, &plain);
    dot(g, DS_DOT_VALUES | DS_DOT_CONDITION, &other);

    assert_null(strstr(plain.text, "<- 0x7"));
    assert_non_null(strstr(other.text, "<- 0x7"));
    assert_null(strstr(plain.text, "\\nwhile "));
    assert_non_null(strstr(other.text, "\\nwhile "));
    expect_quoted(other.text);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
}

static void test_a_graph_is_drawn_plainly_and_with_details(void **state) {
    static const unsigned flags[] = { DS_DOT_VERBOSE, DS_DOT_KERNEL, DS_DOT_COPY,   DS_DOT_FILL,
                                      DS_DOT_HOST,    DS_DOT_EVENT,  DS_DOT_HANDLES };
    static sheet plain, other;
    uint64_t *in = pinned(2), *d = device_words(0, 2);
    (void)state;
    ds_event e = event_of(0);
    ds_graph inner = graph_on(0);
    add_fold(inner, word(1), 3, no_node);
    ds_graph g = pictured(e, word(1), in, d, inner);
    dot(g, DS_DOT_PLAIN, &plain);
    assert_int_equal(strncmp(plain.text, "digraph", 7), 0);
    assert_non_null(strstr(plain.text, "fold"));
    assert_true(occurrences(plain.text, "->") >= 7);
    assert_non_null(strstr(plain.text, "\\\"quoted\\\""));
    assert_non_null(strstr(plain.text, "\\\"hi\\\\\\\""));
    expect_quoted(plain.text);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        dot(g, flags[i], &other);
        expect_quoted(other.text);
        if (!strcmp(plain.text, other.text))
            fail_msg("flag %u changes nothing", flags[i]);
        assert_true(other.used > plain.used);
    }
    dot(g, DS_DOT_VERBOSE, &other);
    assert_non_null(strstr(other.text, "test_graphs.c")); /* where the nodes were made */
    dot(g, 2047, &other);                                 /* Paddle's */
    assert_true(other.used > plain.used);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(inner));
    ok(ds_event_destroy(e));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
}

static void test_a_writer_that_stops_is_not_called_again(void **state) {
    static sheet all, part;
    (void)state;
    ds_graph g = graph_on(0);
    ds_graph_node n = no_node;
    for (uint64_t i = 0; i < 5; i++)
        n = add_fold(g, word(1), i, n);
    dot(g, DS_DOT_VERBOSE, &all);
    for (int stop = 1; stop <= all.calls; stop++) {
        part = (sheet){ .stop_at = stop };
        refused(ds_graph_write_dot(g, DS_DOT_VERBOSE, write_sheet, &part), DS_ERR_SYSTEM);
        assert_int_equal(part.calls, stop);
        assert_memory_equal(part.text, all.text, part.used);
    }
    ok(ds_graph_destroy(g));
}

static int write_and_ask(const char *text, size_t size, void *user) {
    size_t count;
    (void)text;
    (void)size;
    refused(ds_graph_get_nodes(*(ds_graph *)user, NULL, 0, &count), DS_ERR_NOT_PERMITTED);
    return 0;
}

static void test_a_writer_may_not_call_devstream(void **state) {
    uint64_t *h = word(1);
    (void)state;
    ds_graph g = graph_on(0);
    add_fold(g, h, 2, no_node);
    ok(ds_graph_write_dot(g, DS_DOT_PLAIN, write_and_ask, &g));
    ok(ds_graph_destroy(g));
}

static void test_a_graph_is_drawn_into_a_file(void **state) {
    static sheet wanted;
    static char got[20000];
    char path[] = "/tmp/devstream_dot_XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "something longer that was there before", 38), 38);
    close(fd);
    ds_graph g = graph_on(0);
    add(g, empty_node(), NULL, 0);
    dot(g, DS_DOT_VERBOSE, &wanted);
    ok(ds_graph_write_dot_file(g, DS_DOT_VERBOSE, path));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    assert_string_equal(got, wanted.text);
    unlink(path);
    refused(ds_graph_write_dot_file(g, 0, "/no/such/folder/graph.dot"), DS_ERR_SYSTEM);
    assert_non_null(strstr(ds_error_get_last(), "/no/such/folder"));
    if (harness_has_full_device())
        refused(ds_graph_write_dot_file(g, 0, "/dev/full"), DS_ERR_SYSTEM);
    ok(ds_graph_destroy(g));
}

/* ---- failures ---- */

static int explode(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 7;
}

/* apart from the suite's own: it is freed after a failure */
static uint64_t *pinned_word(uint64_t value) {
    uint64_t *p = pinned(1);
    *p = value;
    return p;
}

/* The last error names the kernel and where it became a node; on CUDA, which does not tell, what
   CUDA says. */
static void expect_cause(int line) {
    char where[64];
    if (!harness_is_cpu()) {
        if (!strstr(ds_error_get_last(), "cuda"))
            fail_msg("\"%s\" has not what CUDA says", ds_error_get_last());
        return;
    }
    snprintf(where, sizeof where, "test_graphs.c:%d", line);
    if (!strstr(ds_error_get_last(), "explode") || !strstr(ds_error_get_last(), where))
        fail_msg("\"%s\" names neither explode nor %s", ds_error_get_last(), where);
}

static void test_a_failed_captured_kernel_is_named_and_fails_its_device(void **state) {
    static payload p;
    uint64_t *before = pinned_word(1), *after = pinned_word(1);
    ds_graph g;
    (void)state;
    p = (payload){ 0 };
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    harness_warm_up();
    ds_stream s = made(0), other = made(0);
    harness_watch(s);
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    fold(s, before, 2);
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    int line = __LINE__ - 1;
    fold(s, after, 3);
    ok(ds_stream_launch_host_func(s, payload_run, &p, payload_destroy));
    ok(ds_capture_end(s, &g));
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_graph_launch(x, s), DS_ERR_FAILED);
    expect_cause(line);
    refused(ds_graph_launch(x, other), DS_ERR_FAILED);
    refused(ds_stream_query(other), DS_ERR_FAILED);
    assert_true(*before == fold_host(1, 2) && *after == 1 && p.ran == 0);
    ended(ds_graph_exec_destroy(x));
    ended(ds_graph_destroy(g));
    ended(ds_stream_destroy(s));
    ended(ds_stream_destroy(other));
    ended(ds_kernel_destroy(k));
    ended(ds_pinned_free(before));
    ended(ds_pinned_free(after));
    harness_recover(0);
    await_destroyed(&p, 1);
    assert_int_equal(p.ran, 0);
}

static void test_a_kernel_added_by_hand_that_fails_is_named(void **state) {
    ds_graph_node n;
    (void)state;
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    ds_node_desc desc = { .kind = DS_NODE_KERNEL,
                          .label = "the bad one",
                          .u.kernel = { .kernel = k, .items = 1 } };
    ok(ds_graph_add(g, &desc, NULL, 0, &n));
    int line = __LINE__ - 1;
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    expect_cause(line);
    ended(ds_graph_exec_destroy(x));
    ended(ds_graph_destroy(g));
    ended(ds_stream_destroy(s));
    ended(ds_kernel_destroy(k));
    harness_recover(0);
}

/* Another branch may be on its way when a node fails; it stops, and nothing hangs. */
static void test_branches_beside_a_failing_node_stop(void **state) {
    static payload p;
    gate held = { 0 };
    uint64_t *after = pinned_word(1);
    (void)state;
    p = (payload){ 0 };
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ds_stream s = made(0), idle = made(0);
    ds_graph g = graph_on(0);
    add(g, (ds_node_desc){ .kind = DS_NODE_KERNEL, .u.kernel = { .kernel = k, .items = 1 } }, NULL,
        0);
    ds_graph_node n = add_gate(g, &held, no_node);
    n = add_fold(g, after, 3, n);
    add_after(g, host_node(payload_run, &p, payload_destroy), n);
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    ok(ds_graph_destroy(g));
    /* the other one is not ready as long as the gate runs */
    while (ds_stream_query(idle) != DS_ERR_FAILED)
        harness_nap();
    gate_open(&held);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(idle));
    ok(ds_kernel_destroy(k));
    harness_recover(0);
    await_destroyed(&p, 1);
    assert_true(*after == 1 && p.ran == 0);
    ok(ds_pinned_free(after));
}

static void test_a_graph_over_two_devices_stops_where_one_has_failed(void **state) {
    uint64_t *after = pinned_word(1), *apart = pinned_word(1);
    (void)state;
    two_devices();
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ds_stream s = made(0), t = made(1);
    ds_graph g = graph_on(0);
    ds_node_desc desc = { .kind = DS_NODE_KERNEL,
                          .device = harness_device(1),
                          .u.kernel = { .kernel = k, .items = 1 } };
    /* on device 0, behind the one that fails on device 1 */
    add_fold(g, after, 3, add(g, desc, NULL, 0));
    ds_graph_exec x = exec_of(g);
    ok(ds_graph_launch(x, s));
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    assert_true(*after == 1);
    refused(ds_stream_synchronize(t), DS_ERR_FAILED);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_device_reset(harness_device(0)));
    ok(ds_device_reset(harness_device(1)));
    fold(s, apart, 2);
    ok(ds_stream_synchronize(s));
    assert_true(*apart == fold_host(1, 2));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_pinned_free(after));
    ok(ds_pinned_free(apart));
}

static void test_a_streams_earlier_failure_leaves_the_executable_usable(void **state) {
    gate held = { 0 };
    uint64_t *h = word(1);
    (void)state;
    two_devices();
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ds_stream bad = made(1), follower = made(0), healthy = made(0);
    ds_graph g = graph_on(0);
    add_fold(g, h, 3, no_node);
    ds_graph_exec x = exec_of(g);
    gate_close(bad, &held);
    ok(ds_kernel_launch(k, 1, NULL, 0, bad));
    ok(ds_stream_wait_stream(follower, bad));
    ok(ds_graph_launch(x, follower));
    gate_open(&held);
    refused(ds_stream_synchronize(follower), DS_ERR_FAILED);
    ok(ds_device_reset(harness_device(1)));
    ok(ds_graph_launch(x, healthy));
    ok(ds_stream_synchronize(healthy));
    assert_true(*h == fold_host(1, 3));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_device_reset(harness_device(0)));
    ok(ds_stream_destroy(bad));
    ok(ds_stream_destroy(follower));
    ok(ds_stream_destroy(healthy));
}

static void test_an_executable_works_again_after_a_reset(void **state) {
    uint64_t *h = word(1);
    (void)state;
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ds_stream s = made(0);
    ds_graph g = graph_on(0);
    add_fold(g, h, 3, add_fold(g, h, 2, no_node));
    ds_graph_exec x = exec_of(g);
    ok(ds_kernel_launch(k, 1, NULL, 0, s));
    DS_IGNORE(ds_graph_launch(x, s)); /* may be refused already */
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    assert_true(*h == 1);
    ok(ds_device_reset(harness_device(0)));
    run(x, s);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* ---- both drivers ---- */

/* An if with an else. */
static ds_node_desc condition_node(const uint64_t *word, const ds_graph *bodies, size_t count) {
    return (ds_node_desc){ .kind = DS_NODE_CONDITION,
                           .u.condition = { .kind = DS_CONDITION_IF,
                                            .word = (const uint32_t *)(const void *)word,
                                            .bodies = bodies,
                                            .count = count } };
}

static void test_graphs_of_one_driver_are_refused_by_the_other(void **state) {
    uint64_t *h = word(1);
    ds_graph cpu;
    ds_stream on_cpu;
    ds_graph_update_info info;
    (void)state;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &cpu));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &on_cpu));
    ds_stream s = made(0);
    ds_event e = event_of(0);
    ok(ds_event_record(e, on_cpu));
    ok(ds_event_synchronize(e));
    ds_graph g = graph_on(0);
    ds_graph_exec x = exec_of(g), y = exec_of(cpu);
    refused(ds_graph_launch(x, on_cpu), DS_ERR_CROSS_DRIVER);
    refused(ds_graph_launch(y, s), DS_ERR_CROSS_DRIVER);
    refused(ds_graph_upload(x, on_cpu), DS_ERR_CROSS_DRIVER);
    ds_node_desc desc = child_node(cpu);
    refused(ds_graph_add(g, &desc, NULL, 0, NULL), DS_ERR_CROSS_DRIVER);
    const ds_graph bodies[2] = { g, cpu };
    desc = condition_node(h, bodies, 2);
    refused(ds_graph_add(g, &desc, NULL, 0, NULL), DS_ERR_CROSS_DRIVER);
    desc = fold_node(h, 2);
    desc.device = ds_cpu(0);
    refused(ds_graph_add(g, &desc, NULL, 0, NULL), DS_ERR_CROSS_DRIVER);
    desc = event_node(DS_NODE_EVENT_WAIT, e);
    refused_any(ds_graph_add(g, &desc, NULL, 0, NULL));
    void *far_away;
    ok(ds_device_alloc(ds_cpu(0), 64, &far_away));
    uint64_t *d = device_words(0, 8);
    desc = copy_node(d, far_away, 64);
    refused(ds_graph_add(g, &desc, NULL, 0, NULL), DS_ERR_CROSS_DRIVER);
    refused(ds_capture_begin_to_graph(s, cpu, NULL, 0, DS_CAPTURE_GLOBAL), DS_ERR_CROSS_DRIVER);
    add_fold(g, h, 2, no_node);
    refused_any(ds_graph_exec_update(x, cpu, &info));
    assert_int_equal(node_count(g), 1);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(cpu));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(on_cpu));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(far_away));
    ok(ds_device_free(d));
}

/* ---- a program that uses all of it once, for faults and for memory that runs out ---- */

typedef struct bank {
    _Atomic long taken, returned, calls;
    long fail_at; /* 0: never */
    int forever;  /* every call from then on, else just the one */
    _Atomic int failed;
} bank;

static void *bank_alloc(size_t size, void *user) {
    bank *b = user;
    long n = ++b->calls;
    if (b->fail_at && (n == b->fail_at || (b->forever && n > b->fail_at))) {
        b->failed = 1;
        return NULL;
    }
    void *p = malloc(size);
    if (p)
        b->taken++;
    return p;
}

static void bank_free(void *p, void *user) {
    if (p)
        ((bank *)user)->returned++;
    free(p);
}

static _Atomic int payloads_made, payloads_gone;
/* failures without a sentence; programs that succeeded and computed something else */
static int silent, wrong_result;

static void payload_gone(void *user) {
    expect_no_lock();
    (void)user;
    payloads_gone++;
}

static void add_one(void *user) {
    expect_no_lock();
    ++*(uint64_t *)user;
}

static ds_result noted(ds_result r) {
    if (r < 0 && !ds_error_get_last()[0])
        silent++;
    return r;
}

#define STEP(call)                 \
    do {                           \
        if ((r = noted(call)) < 0) \
            goto done;             \
    } while (0)

static ds_device here;

static ds_result little_program(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, fold_args, h),
                                       PARAM(VALUE, fold_args, n) };
    ds_result r, end = DS_OK, c;
    ds_stream a = { 0 }, b = { 0 };
    ds_event e = { 0 };
    ds_kernel k = { 0 };
    ds_graph g = { 0 }, hand = { 0 }, clone = { 0 };
    ds_graph_exec x = { 0 }, y = { 0 };
    ds_graph_node n[3];
    ds_capture_status status;
    void *dev = NULL, *pin = NULL;
    uint64_t *h = NULL;
    STEP(ds_stream_create(&(ds_stream_desc){ .device = here }, &a));
    STEP(ds_stream_create(&(ds_stream_desc){ .device = here }, &b));
    STEP(ds_event_create(0, "e", &e));
    STEP(ds_kernel_create(&(ds_kernel_desc){ .name = "add",
                                             .cpu_fn = count_item,
                                             .args_size = sizeof(fold_args),
                                             .params = params,
                                             .param_count = 2,
                                             .cuda = harness_cuda_form("add") },
                          &k));
    STEP(ds_device_alloc(here, 4096, &dev));
    STEP(ds_pinned_alloc(4096, &pin));
    h = pin;
    memset(h, 0, 4096);
    STEP(ds_capture_begin(a, DS_CAPTURE_RELAXED));
    /* 45 */
    for (uint64_t i = 0; i < 10; i++)
        STEP(ds_kernel_launch(k, 1, &(fold_args){ h, i }, sizeof(fold_args), a));
    STEP(ds_event_record(e, a));
    STEP(ds_stream_wait_event(b, e));
    payloads_made++;
    STEP(ds_stream_launch_host_func(b, add_one, h + 1, payload_gone));
    STEP(ds_stream_wait_stream(a, b));
    STEP(ds_copy(dev, pin, 16, a));
    STEP(ds_fill(h, 0, 4, 4, a));
    STEP(ds_copy(pin, dev, 16, a));
    STEP(ds_capture_get_status(a, &status));
    STEP(ds_capture_end(a, &g));
    STEP(ds_graph_instantiate(
        g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_UPLOAD, .upload_stream = a, .label = "x" },
        &x));
    STEP(ds_graph_launch(x, a));
    STEP(ds_graph_launch(x, b)); /* 90, 2 */
    STEP(ds_stream_wait_stream(a, b));
    STEP(ds_graph_create(&(ds_graph_desc){ .device = here, .label = "by hand" }, &hand));
    fold_args args = { h + 2, 7 };
    ds_node_desc desc = { .kind = DS_NODE_KERNEL,
                          .label = "k",
                          .u.kernel = { .kernel = k,
                                        .items = 1,
                                        .grid = NULL,
                                        .args = &args,
                                        .args_size = sizeof args } };
    STEP(ds_graph_add(hand, &desc, NULL, 0, &n[0]));
    desc = child_node(g);
    STEP(ds_graph_add(hand, &desc, &n[0], 1, &n[1]));
    desc = host_node(add_one, h + 3, payload_gone);
    payloads_made++;
    STEP(ds_graph_add(hand, &desc, NULL, 0, &n[2]));
    STEP(ds_graph_add_edges(hand, &n[1], &n[2], 1));
    payloads_made++;
    STEP(ds_graph_attach(hand, NULL, payload_gone));
    STEP(ds_graph_clone(hand, &clone));
    STEP(ds_graph_instantiate(hand, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS },
                              &y));
    STEP(ds_graph_launch(y, a)); /* 135, 3, 7, 1 */
    args.n = 8;
    desc = (ds_node_desc){ .kind = DS_NODE_KERNEL,
                           .u.kernel = { .kernel = k,
                                         .items = 1,
                                         .grid = NULL,
                                         .args = &args,
                                         .args_size = sizeof args } };
    STEP(ds_graph_exec_set_node(y, n[0], &desc));
    STEP(ds_graph_launch(y, a)); /* 180, 4, 15, 2 */
    STEP(ds_graph_exec_set_node_enabled(y, n[0], 0));
    STEP(ds_graph_launch(y, a)); /* 225, 5, 15, 3 */
    STEP(ds_graph_exec_set_node_enabled(y, n[0], 1));
    STEP(ds_graph_exec_update(y, clone, NULL));
    void *from = h + 2, *to = h + 4;
    STEP(ds_graph_exec_replace_pointers(y, &from, &to, 1, NULL));
    STEP(ds_graph_launch(y, a)); /* 270, 6, 15, 4, 7 */
    STEP(ds_stream_synchronize(a));
    STEP(ds_stream_synchronize(b));
    if (h[0] != 270 || h[1] != 6 || h[2] != 15 || h[3] != 4 || h[4] != 7)
        wrong_result++;
done:
    if (a.id && ds_capture_get_status(a, &status) == DS_OK && status) {
        ds_graph rest = { 0 };
        DS_IGNORE(ds_capture_end(a, &rest));
        if (rest.id && (c = noted(ds_graph_destroy(rest))) < 0)
            end = c;
    }
    if (x.id && (c = noted(ds_graph_exec_destroy(x))) < 0)
        end = c;
    if (y.id && (c = noted(ds_graph_exec_destroy(y))) < 0)
        end = c;
    if (g.id && (c = noted(ds_graph_destroy(g))) < 0)
        end = c;
    if (hand.id && (c = noted(ds_graph_destroy(hand))) < 0)
        end = c;
    if (clone.id && (c = noted(ds_graph_destroy(clone))) < 0)
        end = c;
    if (a.id && (c = noted(ds_stream_destroy(a))) < 0)
        end = c;
    if (b.id && (c = noted(ds_stream_destroy(b))) < 0)
        end = c;
    if (e.id && (c = noted(ds_event_destroy(e))) < 0)
        end = c;
    if (k.id && (c = noted(ds_kernel_destroy(k))) < 0)
        end = c;
    if ((c = noted(ds_device_free(dev))) < 0)
        end = c;
    if ((c = noted(ds_pinned_free(pin))) < 0)
        end = c;
    if ((c = noted(ds_shutdown())) < 0)
        end = c;
    return r < 0 ? r : end;
}

/* The same with words and conditional nodes. */
static ds_result little_condition_program(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, fold_args, h),
                                       PARAM(VALUE, fold_args, n) };
    ds_result r, end = DS_OK, c;
    ds_stream a = { 0 };
    ds_kernel k = { 0 };
    ds_graph g[4] = { { 0 } }; /* the innermost body first, then a clone */
    ds_graph_exec x = { 0 };
    ds_graph_node n[3];
    void *pin = NULL;
    STEP(ds_stream_create(&(ds_stream_desc){ .device = here }, &a));
    STEP(ds_kernel_create(&(ds_kernel_desc){ .name = "add",
                                             .cpu_fn = count_item,
                                             .args_size = sizeof(fold_args),
                                             .params = params,
                                             .param_count = 2,
                                             .cuda = harness_cuda_form("add") },
                          &k));
    STEP(ds_pinned_alloc(4096, &pin));
    uint64_t *h = pin;
    memset(h, 0, 4096);
    STEP(ds_stream_write_value32(a, h, 3));
    STEP(ds_stream_wait_value32(a, h, 3, DS_VALUE_WAIT_EQ));
    for (int i = 0; i < 3; i++)
        STEP(ds_graph_create(&(ds_graph_desc){ .device = here }, &g[i]));
    fold_args less = { h, UINT64_MAX }, more = { h + 1, 1 };
    ds_node_desc add = { .kind = DS_NODE_KERNEL,
                         .label = "add",
                         .u.kernel = {
                             .kernel = k, .items = 1, .args = &more, .args_size = sizeof more } };
    STEP(ds_graph_add(g[0], &add, NULL, 0, NULL));
    payloads_made++;
    STEP(ds_graph_attach(g[0], NULL, payload_gone));
    add.u.kernel.args = &less;
    STEP(ds_graph_add(g[1], &add, NULL, 0, &n[0]));
    ds_node_desc desc = condition_node(h, g, 1);
    STEP(ds_graph_add(g[1], &desc, &n[0], 1, NULL));
    const ds_value_op ops[] = { { h, 3, DS_VALUE_WAIT_GEQ, 4 }, { h + 2, 5, DS_VALUE_WRITE, 8 } };
    desc = (ds_node_desc){ .kind = DS_NODE_VALUES, .u.values = { .ops = ops, .count = 2 } };
    STEP(ds_graph_add(g[2], &desc, NULL, 0, &n[0]));
    desc = condition_node(h, &g[1], 1);
    desc.u.condition.kind = DS_CONDITION_WHILE;
    STEP(ds_graph_add(g[2], &desc, &n[0], 1, &n[1]));
    desc = host_node(add_one, h + 3, payload_gone);
    payloads_made++;
    STEP(ds_graph_add(g[2], &desc, &n[1], 1, NULL));
    add.u.kernel.args = &(fold_args){ h + 4, 0 };
    STEP(ds_graph_add(g[2], &add, &n[1], 1, &n[2]));
    STEP(ds_graph_clone(g[2], &g[3]));
    STEP(ds_graph_instantiate(g[3], NULL, &x));
    STEP(ds_graph_launch(x, a)); /* 0, 2, 5, 1 */
    STEP(ds_graph_find_in_clone(g[3], n[2], &n[0]));
    more = (fold_args){ h + 4, 7 };
    add.u.kernel.args = &more;
    STEP(ds_graph_exec_set_node(x, n[0], &add));
    STEP(ds_stream_write_value64(a, h, 4));
    STEP(ds_graph_launch(x, a)); /* 0, 5, 5, 2, 7 */
    STEP(ds_stream_synchronize(a));
    if (h[0] != 0 || h[1] != 5 || h[2] != 5 || h[3] != 2 || h[4] != 7)
        wrong_result++;
done:
    if (x.id && (c = noted(ds_graph_exec_destroy(x))) < 0)
        end = c;
    for (int i = 0; i < 4; i++)
        if (g[i].id && (c = noted(ds_graph_destroy(g[i]))) < 0)
            end = c;
    if (a.id && (c = noted(ds_stream_destroy(a))) < 0)
        end = c;
    if (k.id && (c = noted(ds_kernel_destroy(k))) < 0)
        end = c;
    if ((c = noted(ds_pinned_free(pin))) < 0)
        end = c;
    if ((c = noted(ds_shutdown())) < 0)
        end = c;
    return r < 0 ? r : end;
}

static void expect_clean(const char *what, long n, const bank *b) {
    if (silent)
        fail_msg("%s %ld: %d failures without a sentence", what, n, silent);
    if (wrong_result)
        fail_msg("%s %ld: the program computed something else", what, n);
    AWAIT(b->taken == b->returned && payloads_made == payloads_gone);
    if (b->taken != b->returned)
        fail_msg("%s %ld: %ld blocks taken, %ld returned", what, n, (long)b->taken,
                 (long)b->returned);
    if (payloads_made != payloads_gone)
        fail_msg("%s %ld: %d payloads made, %d gone", what, n, payloads_made, payloads_gone);
}

static void run_out_of_memory(ds_result (*program)(void), int forever) {
    ds_cpu_desc cpu = { .devices = 2 };
    long n, failures = 0;
    silent = wrong_result = 0;
    payloads_made = payloads_gone = 0;
    here = harness_device(0);
    harness_shutdown();
    for (n = 1;; n++) {
        static bank b;
        b = (bank){ .fail_at = n, .forever = forever };
        if (n > 5000)
            fail_msg("the program takes ever more memory");
        ds_result r = noted(
            ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = { bank_alloc, bank_free, &b } }));
        if (r == DS_OK)
            r = program();
        else
            DS_IGNORE(ds_shutdown());
        expect_clean("allocation", n, &b);
        /* n is past the last allocation */
        if (!b.failed) {
            ok(r);
            break;
        }
        if (r < 0)
            failures++;
    }
    print_message("          %ld allocations, %ld of them fatal to a call\n", n - 1, failures);
    assert_true(failures > 0);
}

static void test_every_failed_allocation_in_captures_leaks_nothing(void **state) {
    (void)state;
    run_out_of_memory(little_program, 0);
}

static void test_exhausted_memory_leaks_nothing_of_captures_and_graphs(void **state) {
    (void)state;
    run_out_of_memory(little_program, 1);
}

static void test_every_failed_allocation_of_conditions_leaks_nothing(void **state) {
    (void)state;
    void *word = NULL;
    ok(ds_pinned_alloc(8, &word));
    int has = harness_has_conditions(word);
    ok(ds_pinned_free(word));
    if (!has)
        skip();
    run_out_of_memory(little_condition_program, 0);
    run_out_of_memory(little_condition_program, 1);
}

static void test_every_injected_fault_in_captures_leaks_nothing(void **state) {
    ds_cpu_desc cpu = { .devices = 2 };
    int failures = 0;
    (void)state;
    silent = wrong_result = 0;
    payloads_made = payloads_gone = 0;
    here = harness_device(0);
    harness_shutdown();
    for (int n = 1; n <= 150; n++) {
        static bank b;
        char fault[40];
        b = (bank){ 0 };
        snprintf(fault, sizeof fault, "*:%d", n);
        ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                    .layers = "fault",
                                    .fault = fault,
                                    .allocator = { bank_alloc, bank_free, &b } }));
        if (little_program() < 0)
            failures++;
        DS_IGNORE(ds_shutdown()); /* in case the fault hit the first one */
        expect_clean("fault", n, &b);
    }
    print_message("          %d faults reached the caller\n", failures);
    assert_true(failures >= 20);
}

/* Lines that are not here: peers 81 is Python; b.7's reasons FUNCTION_CHANGED, NOT_SUPPORTED and
   ATTRIBUTES_CHANGED have no description that leads to them on either driver. */

const struct CMUnitTest tests_graphs[] = {
    DS_TEST(test_a_graph_of_every_kind_of_node_is_built_by_hand, "peers b.6"),
    DS_TEST(test_what_a_description_points_to_is_copied, "peers 74 b.6"),
    DS_TEST(test_nodes_and_edges_are_written_as_far_as_there_is_room, "peers b.6"),
    DS_TEST(test_a_node_tells_what_it_does_and_where_it_was_made, "peers b.6"),
    DS_TEST(test_rows_are_copied_and_filled_by_nodes, "peers b.6"),
    DS_TEST(test_kernels_of_many_items_are_nodes, "peers b.6"),
    DS_TEST(test_nodes_run_on_the_device_that_they_name, "peers b.6"),
    DS_TEST(test_a_graph_is_on_the_current_device_unless_one_is_given, "graphs"),
    DS_TEST(test_added_edges_order_the_nodes, "peers b.6"),
    DS_TEST(test_duplicate_edges_and_cycles_are_refused_as_a_whole, "peers b.6"),
    DS_TEST(test_dependencies_that_are_no_nodes_of_the_graph_are_refused, "graphs"),
    DS_TEST(test_meaningless_nodes_are_refused_and_nothing_is_added, "graphs"),
    DS_TEST(test_ordinary_host_memory_in_a_copy_node_must_only_stay, "graphs"),
    DS_TEST(test_invalid_graphs_and_executables_are_refused, "graphs"),
    DS_TEST(test_nodes_of_other_graphs_and_missing_outputs_are_refused, "graphs"),
    DS_TEST(test_an_executable_is_a_copy_of_the_graph_as_it_was, "peers b.6 b.7"),
    DS_TEST(test_a_launch_is_one_operation_of_its_stream, "peers b.7"),
    DS_TEST(test_work_behind_a_launch_waits_for_every_leaf, "peers b.7"),
    DS_TEST(test_a_graph_is_launched_on_streams_of_all_kinds, "peers 60 61 b.7"),
    DS_TEST(test_a_launch_on_the_legacy_stream_keeps_that_streams_order, "peers b.7"),
    DS_TEST(test_a_blocking_streams_launch_waits_for_the_legacy_stream, "peers b.7"),
    DS_TEST(test_launches_of_one_executable_run_one_after_another, "peers b.7 P21"),
    DS_TEST(test_two_executables_run_side_by_side, "peers b.7"),
    DS_TEST(test_branches_run_side_by_side_and_a_join_waits_for_all, "peers b.7"),
    DS_TEST(test_wide_and_deep_graphs_run_every_node_once, "peers 74 b.7"),
    DS_TEST(test_a_graph_without_work_passes_the_streams_order_on, "torch 74"),
    DS_TEST(test_an_upload_keeps_the_streams_order_and_runs_nothing, "peers 60 61 b.7"),
    DS_TEST(test_executables_are_made_with_sensible_flags_only, "peers b.7"),
    DS_TEST(test_threads_may_launch_one_executable_and_others_at_once, "peers b.7"),
    DS_TEST_CPU(test_ready_nodes_run_by_priority_if_requested, "peers b.6 b.11"),
    DS_TEST(test_the_time_between_two_records_of_a_launch_is_measured, "peers b.3 b.6"),
    DS_TEST(test_events_in_children_are_recorded_and_waited_for, "peers b.3 b.6"),
    DS_TEST(test_a_node_records_an_event_on_the_events_device_only, "peers b.3"),
    DS_TEST(test_a_child_is_a_copy_of_its_graph_as_it_was, "peers b.6"),
    DS_TEST(test_a_graph_may_have_a_copy_of_itself_as_a_child, "graphs"),
    DS_TEST(test_a_childs_branches_join_before_what_follows_it, "peers b.6"),
    DS_TEST(test_an_empty_child_is_passed, "peers b.6"),
    DS_TEST(test_a_clone_has_the_same_nodes_and_goes_its_own_way, "peers b.6"),
    DS_TEST(test_a_node_of_an_executable_is_set_for_later_launches, "peers b.7"),
    DS_TEST(test_a_node_of_a_graph_is_set_for_later_executables, "peers b.7"),
    DS_TEST(test_nodes_are_set_and_added_while_a_capture_adds_its_own, "graphs"),
    DS_TEST(test_a_node_keeps_its_kind_and_its_copies_their_memory_kind, "peers b.7"),
    DS_TEST(test_launches_on_their_way_do_what_they_did, "peers b.7"),
    DS_TEST(test_an_executable_takes_over_a_changed_graph, "peers b.7 P18"),
    DS_TEST(test_an_executable_is_updated_from_a_second_capture, "peers b.7"),
    DS_TEST(test_an_executable_is_unchanged_if_an_update_is_refused, "peers b.7 P18"),
    DS_TEST(test_an_executable_refuses_dependencies_on_other_nodes, "peers b.7"),
    DS_TEST(test_an_executable_that_goes_by_priorities_keeps_them, "peers b.7"),
    DS_TEST(test_an_update_may_bring_another_kernel_and_other_sizes, "peers b.7"),
    DS_TEST(test_nodes_are_switched_off_and_on, "peers b.7"),
    DS_TEST(test_a_node_that_is_off_still_orders_those_around_it, "peers b.7"),
    DS_TEST(test_a_replaced_pointer_is_used_by_the_next_launch, "peers 77 80 b.10"),
    DS_TEST(test_replacing_pointers_needs_the_flag, "peers 78 b.10"),
    DS_TEST(test_empty_lists_and_missing_pointers_replace_nothing, "peers 79 b.10"),
    DS_TEST(test_several_pointers_are_replaced_at_once_in_all_nodes, "peers 80 b.10"),
    DS_TEST(test_values_that_look_like_pointers_are_left_alone, "peers b.10"),
    DS_TEST(test_one_pointer_that_cannot_be_replaced_refuses_all, "graphs"),
    DS_TEST(test_pointers_of_a_captured_graph_are_replaced, "peers 77 80 b.10"),
    DS_TEST(test_payloads_and_attached_objects_end_with_the_last_user, "peers 63 b.6"),
    DS_TEST(test_launches_keep_their_payloads_until_the_last_is_done, "peers 63 b.6 b.7"),
    DS_TEST(test_a_refused_node_or_object_has_its_destructor_run_at_once, "graphs"),
    DS_TEST(test_a_graph_keeps_kernels_and_events_whose_handles_are_gone, "peers b.6"),
    DS_TEST(test_graphs_and_executables_are_destroyed_during_launches, "peers b.7"),
    DS_TEST(test_shutdown_names_graphs_and_executables_that_were_left, "graphs"),
    DS_TEST(test_a_graph_is_drawn_plainly_and_with_details, "peers 72 74 b.6"),
    DS_TEST(test_words_and_conditions_are_drawn_with_details, "peers 72 74 b.6"),
    DS_TEST(test_a_writer_that_stops_is_not_called_again, "peers b.6"),
    DS_TEST(test_a_writer_may_not_call_devstream, "graphs"),
    DS_TEST(test_a_graph_is_drawn_into_a_file, "peers 74 b.6"),
    DS_TEST_ALONE(test_a_failed_captured_kernel_is_named_and_fails_its_device, "graphs"),
    DS_TEST_ALONE(test_a_kernel_added_by_hand_that_fails_is_named, "graphs"),
    DS_TEST_CPU(test_branches_beside_a_failing_node_stop, "graphs"),
    DS_TEST_CPU(test_a_graph_over_two_devices_stops_where_one_has_failed, "graphs"),
    DS_TEST_CPU(test_a_streams_earlier_failure_leaves_the_executable_usable, "graphs"),
    DS_TEST_CPU(test_an_executable_works_again_after_a_reset, "graphs"),
    DS_TEST_CUDA(test_graphs_of_one_driver_are_refused_by_the_other, "graphs"),
    DS_TEST(test_every_failed_allocation_in_captures_leaks_nothing, "graphs"),
    DS_TEST(test_exhausted_memory_leaks_nothing_of_captures_and_graphs, "graphs"),
    DS_TEST(test_every_failed_allocation_of_conditions_leaks_nothing, "graphs"),
    DS_TEST(test_every_injected_fault_in_captures_leaks_nothing, "graphs"),
};
const size_t tests_graphs_count = sizeof tests_graphs / sizeof *tests_graphs;
