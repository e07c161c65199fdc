/* Conditional nodes: which bodies run, when the word is read, nesting, loops, captures, and the
   limits. Sources: CUDA C++ Programming Guide, "Conditional Graph Nodes", and docs/gpu, P31. */
#include "harness.h"
#include <stdatomic.h>
#include <string.h>

static uint64_t *words; /* pinned; the low halves are conditions */
static uint64_t *folds; /* likewise */
static ds_stream stream;

static uint32_t *low(uint64_t *word) {
    return (uint32_t *)(void *)word;
}

static void make(void) {
    void *p = NULL;
    ok(ds_pinned_alloc(8192, &p));
    memset(p, 0, 8192);
    words = p;
    folds = words + 512;
    stream = harness_stream(0, 0);
}

static void begin(void) {
    make();
    if (!harness_has_conditions(low(words))) {
        ok(ds_stream_destroy(stream));
        ok(ds_pinned_free(words));
        skip();
    }
}

static void release(void) {
    ok(ds_stream_destroy(stream));
    ok(ds_pinned_free(words));
}

static ds_graph graph(void) {
    ds_graph g = { 0 };
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    return g;
}

static ds_graph_node add(ds_graph g, ds_node_desc d, ds_graph_node after) {
    ds_graph_node n = { 0 };
    ok(ds_graph_add(g, &d, &after, after.id != 0, &n));
    return n;
}

static const ds_graph_node first = { 0 };

/* A graph of one node that folds a number into folds[0]. */
static ds_graph folding(uint64_t number) {
    ds_graph g = graph();
    add(g, fold_node(folds, number), first);
    return g;
}

static ds_node_desc condition(ds_condition_kind kind, uint64_t *word, const ds_graph *bodies,
                              size_t count) {
    return (ds_node_desc){
        .kind = DS_NODE_CONDITION,
        .u.condition = { .kind = kind, .word = low(word), .bodies = bodies, .count = count }
    };
}

static ds_graph_exec instance(ds_graph g) {
    ds_graph_exec x = { 0 };
    ok(ds_graph_instantiate(g, NULL, &x));
    return x;
}

static void run(ds_graph_exec x) {
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_synchronize(stream));
}

/* The test reads the word while a loop runs. */
static int step(size_t begin_at, size_t count, const void *args) {
    const fold_args *a = args;
    (void)begin_at;
    (void)count;
    (void)__atomic_fetch_add(a->h, a->n, __ATOMIC_RELAXED);
    return 0;
}

static ds_kernel step_kernel(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, fold_args, h),
                                       PARAM(VALUE, fold_args, n) };
    return harness_kernel("add", step, sizeof(fold_args), params, 2, 1);
}

/* Adds to a word. */
static ds_graph_node add_step(ds_graph g, ds_kernel k, uint64_t *word, uint64_t by,
                              ds_graph_node after) {
    fold_args a = { word, by };
    ds_node_desc d = { .kind = DS_NODE_KERNEL,
                       .u.kernel = { .kernel = k, .items = 1, .args = &a, .args_size = sizeof a } };
    return add(g, d, after);
}

static void test_the_word_selects_the_body_that_runs(void **state) {
    (void)state;

    static const struct {
        ds_condition_kind kind;
        size_t bodies;
        uint32_t word;
        int runs; /* -1: none */
    } rows[] = {
        { DS_CONDITION_IF, 1, 0, -1 },
        { DS_CONDITION_IF, 1, 1, 0 },
        { DS_CONDITION_IF, 1, 7, 0 },
        { DS_CONDITION_IF, 2, 0, 1 },
        { DS_CONDITION_IF, 2, 1, 0 },
        { DS_CONDITION_IF, 2, 2, 0 },
        { DS_CONDITION_WHILE, 1, 0, -1 },
        { DS_CONDITION_SWITCH, 1, 0, 0 },
        { DS_CONDITION_SWITCH, 1, 1, -1 },
        { DS_CONDITION_SWITCH, 3, 0, 0 },
        { DS_CONDITION_SWITCH, 3, 2, 2 },
        { DS_CONDITION_SWITCH, 3, 3, -1 },
        { DS_CONDITION_SWITCH, 3, UINT32_MAX, -1 },
    };

    begin();
    ds_graph bodies[3] = { folding(10), folding(11), folding(12) };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ds_graph g = graph();
        ds_graph_node n = add(g, condition(rows[i].kind, words, bodies, rows[i].bodies), first);
        add(g, fold_node(folds, 99), n);
        ds_graph_exec x = instance(g);
        uint64_t want = 1;
        *folds = 1;
        *words = rows[i].word;
        for (int k = 0; k < 2; k++) {
            run(x);
            if (rows[i].runs >= 0)
                want = fold_host(want, 10 + (uint64_t)rows[i].runs);
            want = fold_host(want, 99);
            if (*folds != want)
                fail_msg("row %zu, launch %d", i, k);
        }
        ok(ds_graph_exec_destroy(x));
        ok(ds_graph_destroy(g));
    }
    for (int i = 0; i < 3; i++)
        ok(ds_graph_destroy(bodies[i]));
    release();
}

static void test_the_word_is_read_when_the_node_starts(void **state) {
    (void)state;
    begin();
    ds_kernel k = step_kernel();
    ds_graph body = folding(5), g = graph();
    /* set by a kernel before the node, after the launch was enqueued */
    ds_graph_node n = add_step(g, k, words, 1, first);
    add(g, condition(DS_CONDITION_IF, words, &body, 1), n);
    ds_graph_exec x = instance(g);
    *folds = 1;
    run(x);
    assert_int_equal(*folds, fold_host(1, 5));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_kernel_destroy(k));
    release();
}

static void set_word(void *word) {
    __atomic_store_n((uint32_t *)word, 2, __ATOMIC_RELEASE);
}

static void test_a_host_function_sets_the_word(void **state) {
    (void)state;
    begin();
    ds_graph bodies[3] = { folding(5), folding(6), folding(7) }, g = graph();
    ds_node_desc h = { .kind = DS_NODE_HOST, .u.host = { .fn = set_word, .user = words } };
    ds_graph_node n = add(g, h, first);
    add(g, condition(DS_CONDITION_SWITCH, words, bodies, 3), n);
    ds_graph_exec x = instance(g);
    *folds = 1;
    run(x);
    assert_int_equal(*folds, fold_host(1, 7));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    for (int i = 0; i < 3; i++)
        ok(ds_graph_destroy(bodies[i]));
    release();
}

/* Counts words[0] down to 0 and words[1] up, by `bodies` chains side by side. */
static void test_a_while_runs_until_its_word_is_0(void **state) {
    (void)state;

    enum { ROUNDS = 1000 };

    begin();
    ds_kernel k = step_kernel();
    ds_graph body = graph(), g = graph();
    /* the word is read after both ends */
    add_step(body, k, &words[1], 1, first);
    ds_graph_node n = add_step(body, k, &words[2], 3, first);
    add_step(body, k, &words[0], UINT64_MAX, n);
    n = add(g, condition(DS_CONDITION_WHILE, words, &body, 1), first);
    add(g, fold_node(folds, 1), n);
    ok(ds_graph_destroy(body)); /* the node has a copy */
    ds_graph_exec x = instance(g);
    ok(ds_graph_destroy(g));
    for (uint64_t i = 1; i <= 2; i++) {
        words[0] = ROUNDS;
        *folds = 1;
        run(x);
        assert_int_equal(words[0], 0);
        assert_int_equal(words[1], i * ROUNDS);
        assert_int_equal(words[2], i * 3 * ROUNDS);
        assert_int_equal(*folds, fold_host(1, 1));
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_kernel_destroy(k));
    release();
}

/* while (w0--) { w1 = 3; while (w1--) count++; if (w0 & 1) ... }, the inner loop in an if. */
static void test_conditions_nest(void **state) {
    (void)state;
    begin();
    ds_kernel k = step_kernel();
    ds_graph inner = graph(), middle = graph(), outer = graph(), g = graph();
    ds_graph_node n = add_step(inner, k, &words[1], UINT64_MAX, first);
    add_step(inner, k, &words[2], 1, n);
    n = add_step(middle, k, &words[1], 3, first);
    add(middle, condition(DS_CONDITION_WHILE, &words[1], &inner, 1), n);
    n = add(outer, condition(DS_CONDITION_IF, &words[3], &middle, 1), first);
    add_step(outer, k, &words[0], UINT64_MAX, n);
    add(g, condition(DS_CONDITION_WHILE, &words[0], &outer, 1), first);
    ds_graph_exec x = instance(g);
    words[0] = 50;
    words[3] = 1;
    run(x);
    assert_int_equal(words[0], 0);
    assert_int_equal(words[1], 0);
    assert_int_equal(words[2], 150);
    words[0] = 10;
    words[3] = 0; /* the loop inside is left out */
    run(x);
    assert_int_equal(words[0], 0);
    assert_int_equal(words[2], 150);
    ok(ds_graph_exec_destroy(x));
    const ds_graph all[] = { inner, middle, outer, g };
    for (int i = 0; i < 4; i++)
        ok(ds_graph_destroy(all[i]));
    ok(ds_kernel_destroy(k));
    release();
}

/* Edges on earlier nodes of a body are added after the nodes. */
static void test_a_condition_in_a_body_may_follow_a_later_node(void **state) {
    (void)state;
    begin();
    ds_kernel k = step_kernel();
    ds_graph inner = folding(5), body = graph(), g = graph();
    ds_graph_node c = add(body, condition(DS_CONDITION_IF, &words[1], &inner, 1), first);
    ds_graph_node n = add_step(body, k, &words[1], 1, first);
    ok(ds_graph_add_edges(body, &n, &c, 1));
    add(g, condition(DS_CONDITION_IF, words, &body, 1), first);
    ds_graph_exec x = instance(g);
    *words = 1;
    *folds = 1;
    run(x);
    assert_int_equal(*folds, fold_host(1, 5));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_graph_destroy(inner));
    ok(ds_kernel_destroy(k));
    release();
}

static void test_a_body_has_copies_fills_and_child_graphs(void **state) {
    (void)state;
    begin();
    void *p = NULL;
    ok(ds_device_alloc(harness_device(0), 256, &p));
    uint32_t *device = p;
    ds_graph child = graph(), body = graph(), g = graph();
    ds_node_desc fill = { .kind = DS_NODE_FILL,
                          .u.fill = { .ptr = device, .value = 5, .value_size = 4, .width = 4 } };
    ds_node_desc out = { .kind = DS_NODE_COPY,
                         .u.copy = { .dst = &words[8], .src = device, .width = 16 } };
    ds_node_desc zero = { .kind = DS_NODE_COPY,
                          .u.copy = { .dst = device + 16, .src = &words[20], .width = 4 } };
    ds_graph_node n = add(child, fill, first);
    add(child, out, n);
    n = add(body, (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = child }, first);
    ds_node_desc empty = { .kind = DS_NODE_EMPTY };
    ok(ds_graph_add(body, &empty, &n, 1, &n)); /* the output may be a dependency */
    add(body, zero, n);
    /* the word in the device's memory: a copy in the body ends the loop */
    add(g, condition(DS_CONDITION_WHILE, (uint64_t *)(void *)(device + 16), &body, 1), first);
    ds_graph_exec x = instance(g);
    ok(ds_fill(device + 16, 1, 4, 1, stream));
    run(x);
    for (int i = 0; i < 4; i++)
        assert_int_equal(low(&words[8])[i], 5);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(child));
    ok(ds_graph_destroy(body));
    ok(ds_graph_destroy(g));
    ok(ds_device_free(p));
    release();
}

static void test_launches_of_conditions_keep_stream_order(void **state) {
    (void)state;

    enum { LAUNCHES = 20 };

    begin();
    ds_kernel k = step_kernel();
    ds_graph body = graph(), g = graph();
    ds_graph_node n = add(body, fold_node(folds, 3), first);
    add_step(body, k, words, UINT64_MAX, n);
    n = add_step(g, k, words, 4, first);
    add(g, condition(DS_CONDITION_WHILE, words, &body, 1), n);
    ds_graph_exec x = instance(g), y = instance(g);
    uint64_t want = 1;
    *folds = 1;
    for (int i = 0; i < LAUNCHES; i++) {
        ok(ds_graph_launch(i & 1 ? x : y, stream));
        fold(stream, folds, 9);
        for (int m = 0; m < 4; m++)
            want = fold_host(want, 3);
        want = fold_host(want, 9);
    }
    ok(ds_graph_exec_destroy(x)); /* pending launches run */
    ok(ds_graph_exec_destroy(y));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(*folds, want);
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_kernel_destroy(k));
    release();
}

/* Graphs, the executable and the stream are gone; the launch has not begun. */
static void test_a_pending_launch_keeps_the_objects_of_bodies(void **state) {
    (void)state;
    begin();
    gate closed = { 0 };
    payload p = { 0 };
    ds_graph body = folding(5), g = graph();
    ok(ds_graph_attach(body, &p, payload_destroy));
    add(g, condition(DS_CONDITION_IF, words, &body, 1), first);
    ds_graph_exec x = instance(g);
    *words = 1;
    *folds = 1;
    gate_close(stream, &closed);
    ok(ds_graph_launch(x, stream));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    harness_nap();
    assert_int_equal(atomic_load(&p.destroyed), 0);
    gate_open(&closed);
    ok(ds_stream_synchronize(stream));
    assert_int_equal(*folds, fold_host(1, 5));
    release();
    await_destroyed(&p, 1);
}

/* A loop of the only worker ends when another stream sets its word. */
static void test_a_loop_lets_other_streams_run(void **state) {
    (void)state;
    static const ds_cpu_desc one = { .workers = 1 };
    harness_restart(&(ds_init_desc){ .cpu = &one });
    begin();
    ds_kernel k = step_kernel();
    ds_stream other = harness_stream(0, 0);
    ds_graph body = graph(), g = graph();
    add_step(body, k, &words[1], 1, first);
    add(g, condition(DS_CONDITION_WHILE, words, &body, 1), first);
    ds_graph_exec x = instance(g);
    *words = 1;
    ok(ds_graph_launch(x, stream));
    eventually(__atomic_load_n(&words[1], __ATOMIC_SEQ_CST) > 0);
    ok(ds_kernel_launch(k, 1, &(fold_args){ words, UINT64_MAX }, sizeof(fold_args), other));
    eventually(__atomic_load_n(&words[0], __ATOMIC_SEQ_CST) == 0);
    ok(ds_stream_synchronize(stream));
    ok(ds_stream_synchronize(other));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(other));
    release();
    harness_restart(NULL);
}

static void test_a_graph_with_conditions_is_cloned(void **state) {
    (void)state;
    begin();
    ds_graph bodies[2] = { folding(5), folding(6) }, g = graph(), clone = { 0 };
    ds_graph_node n = add(g, condition(DS_CONDITION_IF, words, bodies, 2), first), same;
    add(g, fold_node(folds, 7), n);
    ok(ds_graph_clone(g, &clone));
    ok(ds_graph_find_in_clone(clone, n, &same));
    ds_node_desc d;
    ok(ds_graph_get_node(clone, same, &d, NULL));
    assert_int_equal(d.kind, DS_NODE_CONDITION);
    assert_int_equal(d.u.condition.kind, DS_CONDITION_IF);
    assert_ptr_equal(d.u.condition.word, low(words));
    assert_int_equal(d.u.condition.count, 2);
    ok(ds_graph_destroy(g));
    ds_graph_exec x = instance(clone);
    *folds = 1;
    run(x);
    assert_int_equal(*folds, fold_host(fold_host(1, 6), 7));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(clone));
    ok(ds_graph_destroy(bodies[0]));
    ok(ds_graph_destroy(bodies[1]));
    release();
}

/* As with cudaStreamGetCaptureInfo, cudaGraphAddNode and cudaStreamUpdateCaptureDependencies. The
   body is captured, too. */
static void test_a_conditional_node_is_added_to_a_capture(void **state) {
    (void)state;
    begin();
    release();
    harness_restart(NULL); /* what conditions need is loaded in the capture */
    make();
    ds_kernel k = step_kernel();
    ds_graph body = graph(), g = { 0 };
    ds_capture_info info;
    ds_graph_node deps[4], n = { 0 };
    size_t count = 0;
    fold_args less = { words, UINT64_MAX };
    harness_warm_up();
    ok(ds_kernel_load(k, harness_device(0)));
    ok(ds_capture_begin_to_graph(stream, body, NULL, 0, DS_CAPTURE_GLOBAL));
    harness_watch(stream);
    fold(stream, folds, 5);
    ok(ds_kernel_launch(k, 1, &less, sizeof less, stream));
    ok(ds_capture_end(stream, &body));
    ok(ds_capture_begin(stream, DS_CAPTURE_GLOBAL));
    fold(stream, folds, 4);
    ok(ds_capture_get_info(stream, &info));
    ok(ds_capture_get_dependencies(stream, deps, 4, &count));
    assert_int_equal(count, 1);
    ds_node_desc d = condition(DS_CONDITION_WHILE, words, &body, 1);
    ok(ds_graph_add(info.graph, &d, deps, count, &n));
    ok(ds_capture_update_dependencies(stream, &n, 1, DS_CAPTURE_SET_DEPENDENCIES));
    fold(stream, folds, 6);
    ok(ds_capture_end(stream, &g));
    ds_graph_node from[4], to[4];
    ok(ds_graph_get_edges(g, from, to, 4, &count));
    assert_int_equal(count, 2);
    assert_true(from[0].id == deps[0].id && to[0].id == n.id && from[1].id == n.id);
    ds_graph_exec x = instance(g);
    for (int i = 0; i < 2; i++) {
        *words = 2;
        *folds = 1;
        run(x);
        assert_int_equal(*folds, fold_host(fold_host(fold_host(fold_host(1, 4), 5), 5), 6));
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    ok(ds_kernel_destroy(k));
    release();
}

static void test_what_cannot_be_in_a_body_is_refused(void **state) {
    (void)state;
    begin();
    ds_event e = { 0 };
    ds_value_op value = { folds, 1, DS_VALUE_WRITE, 8 };
    ok(ds_event_create(0, NULL, &e));
    const ds_node_desc bad[] = {
        { .kind = DS_NODE_HOST, .u.host = { .fn = set_word, .user = words } },
        { .kind = DS_NODE_EVENT_RECORD, .u.event = e },
        { .kind = DS_NODE_EVENT_WAIT, .u.event = e },
        { .kind = DS_NODE_VALUES, .u.values = { .ops = &value, .count = 1 } },
        { .kind = DS_NODE_COPY, .u.copy = { .dst = words, .src = &words[4], .width = 4 } },
        { .kind = DS_NODE_FILL, .u.fill = { .ptr = words, .value_size = 4, .width = 4 } },
    };
    ds_graph g = graph();
    size_t count = 9;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ds_graph body = graph(), outer = graph();
        add(body, bad[i], first);
        ds_node_desc d = condition(DS_CONDITION_WHILE, words, &body, 1);
        if (ds_graph_add(g, &d, NULL, 0, NULL) != DS_ERR_UNSUPPORTED)
            fail_msg("node %zu: %s", i, ds_error_get_last());
        /* also in a child graph of a body */
        add(outer, (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = body }, first);
        d = condition(DS_CONDITION_IF, words, &outer, 1);
        refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_UNSUPPORTED);
        ok(ds_graph_destroy(body));
        ok(ds_graph_destroy(outer));
    }
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 0);
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    release();
}

static void test_bad_conditions_are_refused(void **state) {
    (void)state;
    begin();
    uint64_t pageable = 0;
    ds_graph bodies[3] = { folding(1), folding(2), folding(3) }, g = graph(), none = { 0 };
    const ds_node_desc bad[] = {
        condition(DS_CONDITION_IF, words, bodies, 0),
        condition(DS_CONDITION_IF, words, bodies, 3),
        condition(DS_CONDITION_WHILE, words, bodies, 0),
        condition(DS_CONDITION_WHILE, words, bodies, 2),
        condition(DS_CONDITION_SWITCH, words, bodies, 0),
        condition((ds_condition_kind)3, words, bodies, 1),
        condition(DS_CONDITION_IF, words, NULL, 1),
        condition(DS_CONDITION_IF, NULL, bodies, 1),
        condition(DS_CONDITION_IF, &pageable, bodies, 1),
        condition(DS_CONDITION_IF, (uint64_t *)(void *)((char *)words + 2), bodies, 1),
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (ds_graph_add(g, &bad[i], NULL, 0, NULL) != DS_ERR_INVALID_VALUE)
            fail_msg("row %zu: %s", i, ds_error_get_last());
    ds_node_desc d = condition(DS_CONDITION_IF, words, &none, 1);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_INVALID_HANDLE);
    assert_non_null(strstr(ds_error_get_last(), "body 0"));
    ok(ds_graph_destroy(g));
    for (int i = 0; i < 3; i++)
        ok(ds_graph_destroy(bodies[i]));
    release();
}

static void test_limits_of_conditions_are_those_of_cuda(void **state) {
    (void)state;
    begin();
    ds_graph body = folding(5), g = graph(), parent = graph(), captured = { 0 };
    ds_graph_node n = add(g, condition(DS_CONDITION_IF, words, &body, 1), first), m;
    m = add(g, fold_node(folds, 7), n);
    ds_node_desc d = { .kind = DS_NODE_CHILD, .u.child = g };
    refused(ds_graph_add(parent, &d, NULL, 0, NULL), DS_ERR_UNSUPPORTED);
    ds_graph_exec x = { 0 };
    ok(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS }, &x));
    ds_graph_update_info info;
    refused(ds_graph_exec_update(x, g, &info), DS_ERR_GRAPH_UPDATE);
    assert_int_equal(info.reason, DS_GRAPH_UPDATE_NOT_SUPPORTED);
    assert_non_null(strstr(ds_error_get_last(), "instantiate the graph again"));
    d = condition(DS_CONDITION_IF, words, &body, 1);
    refused(ds_graph_exec_set_node(x, n, &d), DS_ERR_INVALID_VALUE);
    refused(ds_graph_exec_set_node_enabled(x, n, 0), DS_ERR_INVALID_VALUE);
    void *from = words, *to = words + 1; /* of the conditional node */
    refused(ds_graph_exec_replace_pointers(x, &from, &to, 1, NULL), DS_ERR_UNSUPPORTED);
    /* other nodes can be set */
    d = fold_node(folds, 8);
    ok(ds_graph_exec_set_node(x, m, &d));
    harness_warm_up();
    ok(ds_capture_begin(stream, DS_CAPTURE_GLOBAL));
    harness_watch(stream);
    refused(ds_graph_launch(x, stream), DS_ERR_CAPTURE_UNSUPPORTED);
    fold(stream, folds, 1);
    ok(ds_capture_end(stream, &captured));
    ok(ds_graph_destroy(captured));
    *folds = 1;
    *words = 1;
    run(x);
    assert_int_equal(*folds, fold_host(fold_host(1, 5), 8));
    /* in a graph, the conditional node can be set */
    ds_graph other = folding(3);
    d = condition(DS_CONDITION_SWITCH, &words[1], &other, 1);
    ok(ds_graph_set_node(g, n, &d));
    ok(ds_graph_destroy(other));
    ds_graph_exec y = instance(g);
    *folds = 1;
    run(y);
    assert_int_equal(*folds, fold_host(fold_host(1, 3), 7));
    ok(ds_graph_exec_destroy(y));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(parent));
    ok(ds_graph_destroy(body));
    release();
}

static void test_a_body_on_another_device_is_refused(void **state) {
    (void)state;
    two_devices();
    begin();
    ds_graph body = { 0 }, g = graph();
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(1) }, &body));
    add(body, fold_node(folds, 1), first);
    ds_node_desc d = condition(DS_CONDITION_IF, words, &body, 1);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_UNSUPPORTED);
    d.device = harness_device(1);
    ok(ds_graph_add(g, &d, NULL, 0, NULL));
    ds_graph_exec x = instance(g);
    *words = 1;
    *folds = 1;
    run(x);
    assert_int_equal(*folds, fold_host(1, 1));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    release();
}

static int fails(size_t begin_at, size_t count, const void *args) {
    (void)begin_at;
    (void)count;
    (void)args;
    return 1;
}

static void test_a_failure_in_a_body_ends_the_loop(void **state) {
    (void)state;
    begin();
    ds_kernel k = harness_kernel("bad", fails, 0, NULL, 0, 1);
    ds_graph body = graph(), g = graph();
    add(body, (ds_node_desc){ .kind = DS_NODE_KERNEL, .u.kernel = { .kernel = k, .items = 1 } },
        first);
    add(g, condition(DS_CONDITION_WHILE, words, &body, 1), first);
    ds_graph_exec x = instance(g);
    *words = 1;
    ok(ds_graph_launch(x, stream));
    refused(ds_stream_synchronize(stream), DS_ERR_FAILED);
    ended(ds_graph_exec_destroy(x));
    ended(ds_graph_destroy(g));
    ended(ds_graph_destroy(body));
    ended(ds_kernel_destroy(k));
    ended(ds_stream_destroy(stream));
    harness_recover(0);
    ok(ds_pinned_free(words));
}

static void loop_and_nest(void) {
    test_a_while_runs_until_its_word_is_0(NULL);
    test_conditions_nest(NULL);
}

static void test_every_way_to_run_work_has_conditions(void **state) {
    (void)state;
    harness_in_every_way(loop_and_nest);
}

const struct CMUnitTest tests_conditions[] = {
    DS_TEST(test_the_word_selects_the_body_that_runs, "docs/gpu P31"),
    DS_TEST(test_the_word_is_read_when_the_node_starts, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_a_host_function_sets_the_word, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_a_while_runs_until_its_word_is_0, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_conditions_nest, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_a_condition_in_a_body_may_follow_a_later_node, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_a_body_has_copies_fills_and_child_graphs, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_launches_of_conditions_keep_stream_order, "cudaGraphLaunch"),
    DS_TEST(test_a_pending_launch_keeps_the_objects_of_bodies, "ds_graph_attach"),
    DS_TEST(test_a_graph_with_conditions_is_cloned, "ds_graph_clone"),
    DS_TEST(test_a_conditional_node_is_added_to_a_capture, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_what_cannot_be_in_a_body_is_refused, "CUDA: Conditional Graph Nodes"),
    DS_TEST(test_bad_conditions_are_refused, "docs/gpu P31"),
    DS_TEST(test_limits_of_conditions_are_those_of_cuda, "docs/gpu P31"),
    DS_TEST(test_a_body_on_another_device_is_refused, "CUDA: Conditional Graph Nodes"),
    DS_TEST_CPU(test_a_loop_lets_other_streams_run, "DS__CPU_MORE"),
    DS_TEST_CPU(test_a_failure_in_a_body_ends_the_loop, "ds_condition_node"),
    DS_TEST_CPU(test_every_way_to_run_work_has_conditions, "ds_cpu_desc"),
};
const size_t tests_conditions_count = sizeof tests_conditions / sizeof tests_conditions[0];
