/* Waits for values in memory and writes of values: the conditions, the order with other work, what
   ends a wait, batches, captures, nodes, and bad input. The rules are those of the CUDA Driver API,
   "Stream Memory Operations". */
#include "harness.h"
#include <stdatomic.h>
#include <string.h>

typedef struct rule {
    ds_value_kind kind;
    unsigned size;
    uint64_t word, value;
    int met;
} rule;

static const rule rules[] = {
    { DS_VALUE_WAIT_EQ, 4, 5, 5, 1 },
    { DS_VALUE_WAIT_EQ, 4, 6, 5, 0 },
    { DS_VALUE_WAIT_EQ, 8, (uint64_t)1 << 32 | 5, (uint64_t)1 << 32 | 5, 1 },
    { DS_VALUE_WAIT_EQ, 8, (uint64_t)1 << 32 | 5, 5, 0 },
    /* only four bytes count */
    { DS_VALUE_WAIT_EQ, 4, (uint64_t)7 << 32 | 5, 5, 1 },
    { DS_VALUE_WAIT_GEQ, 4, 5, 5, 1 },
    { DS_VALUE_WAIT_GEQ, 4, 6, 5, 1 },
    { DS_VALUE_WAIT_GEQ, 4, 4, 5, 0 },
    /* (int32_t)(*addr - value) >= 0 */
    { DS_VALUE_WAIT_GEQ, 4, 1, UINT32_MAX, 1 },
    { DS_VALUE_WAIT_GEQ, 4, UINT32_MAX, 1, 0 },
    { DS_VALUE_WAIT_GEQ, 4, UINT32_C(0x80000000), 0, 0 },
    { DS_VALUE_WAIT_GEQ, 4, UINT32_C(0x7fffffff), 0, 1 },
    { DS_VALUE_WAIT_GEQ, 8, 1, UINT64_MAX, 1 },
    { DS_VALUE_WAIT_GEQ, 8, UINT64_MAX, 1, 0 },
    { DS_VALUE_WAIT_GEQ, 8, UINT32_C(0x80000000), 0, 1 },
    { DS_VALUE_WAIT_AND, 4, 12, 4, 1 },
    { DS_VALUE_WAIT_AND, 4, 12, 3, 0 },
    { DS_VALUE_WAIT_AND, 4, 12, 6, 1 }, /* one bit is enough */
    { DS_VALUE_WAIT_AND, 8, (uint64_t)1 << 40, (uint64_t)1 << 40, 1 },
    { DS_VALUE_WAIT_AND, 8, 1, (uint64_t)1 << 40, 0 },
    /* ~(*addr | value) != 0 */
    { DS_VALUE_WAIT_NOR, 4, 1, 2, 1 },
    { DS_VALUE_WAIT_NOR, 4, UINT32_C(0xffff0000), 0xffff, 0 },
    { DS_VALUE_WAIT_NOR, 8, UINT64_MAX, 0, 0 },
    { DS_VALUE_WAIT_NOR, 8, UINT32_MAX, 0, 1 },
};

/* Pinned words, which the test's begin makes. */
static uint64_t *words;
static size_t used;

static void begin(void) {
    void *p = NULL;
    ok(ds_pinned_alloc(8192, &p));
    memset(p, 0, 8192);
    words = p;
    used = 0;
}

static void release(void) {
    ok(ds_pinned_free(words));
}

static uint64_t *zeros(size_t count) {
    assert_true(used + count <= 8192 / sizeof *words);
    used += count;
    return &words[used - count];
}

static uint64_t *pinned(uint64_t value) {
    uint64_t *w = zeros(1);
    *w = value;
    return w;
}

static ds_stream stream(void) {
    return harness_stream(0, 0);
}

static void set(uint64_t *at, uint64_t value) {
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

static uint64_t get(const uint64_t *at) {
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

static void nap(void) {
    harness_sleep_ms(3);
}

static void enqueue(ds_stream s, const ds_value_op *op) {
    if (op->kind == DS_VALUE_WRITE && op->size == 4)
        ok(ds_stream_write_value32(s, op->address, (uint32_t)op->value));
    else if (op->kind == DS_VALUE_WRITE)
        ok(ds_stream_write_value64(s, op->address, op->value));
    else if (op->size == 4)
        ok(ds_stream_wait_value32(s, op->address, (uint32_t)op->value, op->kind));
    else
        ok(ds_stream_wait_value64(s, op->address, op->value, op->kind));
}

/* A value that meets the condition of a rule that is not met. */
static uint64_t right_for(const rule *r) {
    return r->kind == DS_VALUE_WAIT_NOR ? 0 : r->value;
}

static void test_conditions_hold_a_stream_or_let_it_go(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const rule *r = &rules[i];
        uint64_t *w = pinned(r->word), *h = pinned(1);
        ds_value_op wait = { w, r->value, r->kind, r->size };
        enqueue(s, &wait);
        fold(s, h, i);
        if (!r->met) {
            nap();
            if (ds_stream_query(s) != DS_NOT_READY)
                fail_msg("rule %zu did not hold the stream", i);
            set(w, right_for(r));
        }
        ok(ds_stream_synchronize(s));
        assert_int_equal(*h, fold_host(1, i));
    }
    ok(ds_stream_destroy(s));
    release();
}

static void test_a_write_changes_its_word_and_no_other(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    uint64_t *w = pinned(UINT64_MAX);
    ok(ds_stream_write_value32(s, w, 7));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w, (uint64_t)UINT32_MAX << 32 | 7);
    ok(ds_stream_write_value32(s, (uint32_t *)(void *)w + 1, 9));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w, (uint64_t)9 << 32 | 7);
    ok(ds_stream_write_value64(s, w, UINT64_C(0x0123456789abcdef)));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w, UINT64_C(0x0123456789abcdef));
    ok(ds_stream_destroy(s));
    release();
}

static void test_a_write_comes_after_earlier_work(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    gate g = { 0 };
    uint64_t *w = pinned(0), *h = pinned(1);
    gate_close(s, &g);
    fold(s, h, 3);
    ok(ds_stream_write_value64(s, w, 1));
    gate_wait_entered(&g);
    nap();
    assert_int_equal(get(w), 0);
    gate_open(&g);
    eventually(get(w) == 1);
    assert_int_equal(get(h), fold_host(1, 3));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    release();
}

/* A ring of streams hands a number on; each step waits for the one before. */
static void test_streams_pass_a_token_around(void **state) {
    (void)state;

    enum { STREAMS = 8, ROUNDS = 50 };

    begin();
    ds_stream s[STREAMS];
    uint64_t *w = pinned(0), *h = pinned(1), want = 1;
    for (int i = 0; i < STREAMS; i++)
        s[i] = stream();
    for (uint64_t n = 0; n < (uint64_t)STREAMS * ROUNDS; n++) {
        ds_stream one = s[n % STREAMS];
        ok(ds_stream_wait_value64(one, w, n, DS_VALUE_WAIT_EQ));
        fold(one, h, n);
        ok(ds_stream_write_value64(one, w, n + 1));
        want = fold_host(want, n);
    }
    for (int i = 0; i < STREAMS; i++)
        ok(ds_stream_synchronize(s[i]));
    assert_int_equal(*h, want);
    for (int i = 0; i < STREAMS; i++)
        ok(ds_stream_destroy(s[i]));
    release();
}

/* More streams wait than there are threads; kernels and host functions of others run. */
static void test_waiting_streams_hold_up_no_others(void **state) {
    (void)state;

    enum { STREAMS = 60 };

    begin();
    ds_stream s[STREAMS], other = stream();
    uint64_t *w = pinned(0), *h[STREAMS], *mine = pinned(1);
    payload p = { 0 };
    for (int i = 0; i < STREAMS; i++) {
        s[i] = stream();
        h[i] = pinned(1);
        ok(ds_stream_wait_value32(s[i], w, (uint32_t)i + 1, DS_VALUE_WAIT_GEQ));
        fold(s[i], h[i], (uint64_t)i);
    }
    fold(other, mine, 5);
    ok(ds_stream_launch_host_func(other, payload_run, &p, NULL));
    ok(ds_stream_synchronize(other));
    assert_int_equal(*mine, fold_host(1, 5));
    assert_int_equal(atomic_load(&p.ran), 1);
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(ds_stream_query(s[i]), DS_NOT_READY);
        set(w, (uint64_t)i + 1);
        ok(ds_stream_synchronize(s[i]));
        assert_int_equal(*h[i], fold_host(1, (uint64_t)i));
    }
    for (int i = 0; i < STREAMS; i++)
        ok(ds_stream_destroy(s[i]));
    ok(ds_stream_destroy(other));
    release();
}

/* A word of the device's memory, which a copy of another stream changes. */
static void test_a_copy_ends_a_wait_for_device_memory(void **state) {
    (void)state;
    begin();
    ds_stream s = stream(), other = stream();
    uint64_t *from = pinned(0), *h = pinned(1);
    void *w = NULL;
    ok(ds_device_alloc(harness_device(0), 64, &w));
    ok(ds_fill(w, 0, 1, 64, s));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_wait_value64(s, w, 77, DS_VALUE_WAIT_EQ));
    fold(s, h, 2);
    nap();
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    *from = 77;
    ok(ds_copy(w, from, 8, other));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*h, fold_host(1, 2));
    ok(ds_stream_write_value32(s, w, 78));
    ok(ds_copy(from, w, 8, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*from, 78);
    ok(ds_stream_synchronize(other));
    ok(ds_device_free(w));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    release();
}

static void test_the_legacy_stream_waits_and_writes(void **state) {
    (void)state;
    begin();
    ds_stream legacy = { 0 };
    uint64_t *w = pinned(0), *h = pinned(1);
    ok(ds_stream_get_legacy(harness_device(0), &legacy));
    ds_stream s = harness_stream(0, DS_STREAM_BLOCKING);
    ok(ds_stream_wait_value32(legacy, w, 1, DS_VALUE_WAIT_EQ));
    ok(ds_stream_write_value32(legacy, w, 2));
    fold(s, h, 4); /* ordered by the legacy stream */
    nap();
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    set(w, 1);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w, 2);
    assert_int_equal(*h, fold_host(1, 4));
    ok(ds_stream_destroy(s));
    release();
}

static void test_a_batch_runs_in_the_order_of_its_list(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    uint64_t *a = pinned(0), *b = pinned(0), *c = pinned(0);
    ds_value_op ops[] = {
        { a, 1, DS_VALUE_WRITE, 4 },    { b, 1, DS_VALUE_WAIT_EQ, 8 }, { a, 2, DS_VALUE_WRITE, 8 },
        { b, 2, DS_VALUE_WAIT_GEQ, 4 }, { c, 3, DS_VALUE_WRITE, 8 },
    };
    ok(ds_stream_batch_values(s, ops, sizeof ops / sizeof ops[0]));
    memset(ops, 255, sizeof ops); /* the call has copied it */
    eventually(get(a) == 1);
    nap();
    assert_int_equal(get(a), 1);
    set(b, 1);
    eventually(get(a) == 2);
    nap();
    assert_int_equal(get(c), 0);
    set(b, 2);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*c, 3);
    ok(ds_stream_destroy(s));
    release();
}

static void test_the_largest_batch_is_accepted_and_a_larger_one_refused(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    uint64_t *w = zeros(DS_VALUE_BATCH_MAX + 1);
    ds_value_op ops[DS_VALUE_BATCH_MAX + 1];
    for (size_t i = 0; i <= DS_VALUE_BATCH_MAX; i++)
        ops[i] = (ds_value_op){ &w[i], i + 1, DS_VALUE_WRITE, 8 };
    refused(ds_stream_batch_values(s, ops, DS_VALUE_BATCH_MAX + 1), DS_ERR_INVALID_VALUE);
    ok(ds_stream_batch_values(s, ops, DS_VALUE_BATCH_MAX));
    ok(ds_stream_batch_values(s, NULL, 0));
    ok(ds_stream_synchronize(s));
    for (size_t i = 0; i <= DS_VALUE_BATCH_MAX; i++)
        assert_int_equal(w[i], i < DS_VALUE_BATCH_MAX ? i + 1 : 0);
    ok(ds_stream_destroy(s));
    release();
}

static void test_bad_values_are_refused_and_nothing_is_enqueued(void **state) {
    (void)state;
    begin();
    ds_stream s = stream(), none = { 0 };
    uint64_t *w = pinned(0), here = 0;
    ds_value_op ops[2] = { { w, 9, DS_VALUE_WRITE, 8 }, { w, 0, DS_VALUE_WRITE, 2 } };
    refused(ds_stream_wait_value32(none, w, 0, DS_VALUE_WAIT_EQ), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_write_value32(s, NULL, 1), DS_ERR_INVALID_VALUE);
    refused(ds_stream_write_value32(s, (char *)w + 2, 1), DS_ERR_INVALID_VALUE);
    refused(ds_stream_write_value64(s, (char *)w + 4, 1), DS_ERR_INVALID_VALUE);
    refused(ds_stream_write_value64(s, &here, 1), DS_ERR_INVALID_VALUE); /* pageable */
    refused(ds_stream_wait_value64(s, &here, 1, DS_VALUE_WAIT_EQ), DS_ERR_INVALID_VALUE);
    refused(ds_stream_wait_value32(s, w, 0, DS_VALUE_WRITE), DS_ERR_INVALID_VALUE);
    refused(ds_stream_wait_value32(s, w, 0, (ds_value_kind)5), DS_ERR_INVALID_VALUE);
    refused(ds_stream_batch_values(s, NULL, 1), DS_ERR_INVALID_VALUE);
    refused(ds_stream_batch_values(s, ops, 2), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "operation 1 of 2"));
    ops[1] = (ds_value_op){ w, (uint64_t)1 << 32, DS_VALUE_WAIT_GEQ, 4 };
    refused(ds_stream_batch_values(s, ops, 2), DS_ERR_INVALID_VALUE);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w + here, 0);
    ok(ds_stream_destroy(s));
    release();
}

static void test_a_word_of_another_device_is_refused(void **state) {
    (void)state;
    begin();
    two_devices();
    ds_stream s = stream();
    void *w = NULL;
    ok(ds_device_alloc(harness_device(1), 64, &w));
    refused(ds_stream_wait_value32(s, w, 0, DS_VALUE_WAIT_EQ), DS_ERR_INVALID_VALUE);
    refused(ds_stream_write_value64(s, w, 0), DS_ERR_INVALID_VALUE);
    ok(ds_device_free(w));
    ok(ds_stream_destroy(s));
    release();
}

static ds_node_desc values_node(const ds_value_op *ops, size_t count) {
    return (ds_node_desc){ .kind = DS_NODE_VALUES, .u.values = { .ops = ops, .count = count } };
}

static void test_a_node_moves_to_the_device_of_its_word(void **state) {
    (void)state;
    begin();
    two_devices();
    ds_stream s = stream();
    uint64_t *near = pinned(0);
    void *far = NULL;
    ds_graph g = { 0 };
    ds_graph_exec x = { 0 };
    ds_graph_node n;
    ok(ds_device_alloc(harness_device(1), 64, &far));
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ds_value_op op = { near, 1, DS_VALUE_WRITE, 8 };
    ds_node_desc d = values_node(&op, 1);
    ok(ds_graph_add(g, &d, NULL, 0, &n));
    op = (ds_value_op){ far, 7, DS_VALUE_WRITE, 8 };
    refused(ds_graph_set_node(g, n, &d), DS_ERR_INVALID_VALUE);
    d.device = harness_device(1);
    ok(ds_graph_set_node(g, n, &d));
    ok(ds_graph_get_node(g, n, &d, NULL));
    assert_int_equal(d.device.index, harness_device(1).index);
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_copy(near, far, 8, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(*near, 7);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_device_free(far));
    ok(ds_stream_destroy(s));
    release();
}

static size_t nodes_of(ds_graph g, ds_graph_node *out, size_t room) {
    size_t n = 0;
    ok(ds_graph_get_nodes(g, out, room, &n));
    return n;
}

static void test_a_batch_is_captured_as_one_node(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    uint64_t *w = pinned(0), *seen = pinned(0), *h = pinned(1);
    ds_value_op ops[] = { { seen, 5, DS_VALUE_WRITE, 8 }, { w, 5, DS_VALUE_WAIT_EQ, 8 } };
    ds_graph g = { 0 };
    ds_graph_exec x = { 0 };
    ds_graph_node nodes[4];
    ds_node_desc desc;
    harness_warm_up();
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    harness_watch(s);
    ok(ds_stream_batch_values(s, ops, 2));
    fold(s, h, 6);
    ok(ds_stream_write_value32(s, seen, 6));
    ok(ds_capture_end(s, &g));
    assert_int_equal(nodes_of(g, nodes, 4), 3);
    ok(ds_graph_get_node(g, nodes[0], &desc, NULL));
    assert_int_equal(desc.kind, DS_NODE_VALUES);
    assert_int_equal(desc.u.values.count, 2);
    assert_memory_equal(desc.u.values.ops, ops, sizeof ops);
    ok(ds_graph_instantiate(g, NULL, &x));
    uint64_t want = 1;
    for (int i = 0; i < 3; i++) {
        set(w, 0);
        ok(ds_graph_launch(x, s));
        eventually(get(seen) == 5);
        nap();
        assert_int_equal(ds_stream_query(s), DS_NOT_READY);
        set(w, 5);
        ok(ds_stream_synchronize(s));
        assert_int_equal(*seen, 6);
        want = fold_host(want, 6);
        assert_int_equal(*h, want);
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    release();
}

static void test_values_are_nodes_of_graphs(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    uint64_t *w = pinned(0), *other = pinned(0), *h = pinned(1);
    ds_value_op op = { w, 1, DS_VALUE_WAIT_EQ, 4 }, end = { w, 2, DS_VALUE_WRITE, 8 };
    ds_graph g = { 0 }, clone = { 0 }, parent = { 0 };
    ds_graph_exec x = { 0 };
    ds_graph_node n[3], child;
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ds_node_desc d = values_node(&op, 1), f = fold_node(h, 8), e = values_node(&end, 1);
    ok(ds_graph_add(g, &d, NULL, 0, &n[0]));
    ok(ds_graph_add(g, &f, &n[0], 1, &n[1]));
    ok(ds_graph_add(g, &e, &n[1], 1, &n[2]));
    d = values_node(&op, 0);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_INVALID_VALUE);
    op.address = &op;
    d = values_node(&op, 1);
    refused(ds_graph_add(g, &d, NULL, 0, NULL), DS_ERR_INVALID_VALUE);
    assert_int_equal(nodes_of(g, n, 3), 3);
    /* the wait is for another word now */
    op = (ds_value_op){ other, 4, DS_VALUE_WAIT_GEQ, 4 };
    d = values_node(&op, 1);
    ok(ds_graph_clone(g, &clone));
    ok(ds_graph_set_node(g, n[0], &d));
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &parent));
    d = (ds_node_desc){ .kind = DS_NODE_CHILD, .u.child = g };
    ok(ds_graph_add(parent, &d, NULL, 0, &child));
    const ds_graph all[] = { g, parent, clone };
    uint64_t want = 1;
    for (int i = 0; i < 3; i++) {
        uint64_t *waits = i < 2 ? other : w;
        set(w, 0);
        set(other, 0);
        ok(ds_graph_instantiate(all[i], NULL, &x));
        ok(ds_graph_launch(x, s));
        nap();
        assert_int_equal(ds_stream_query(s), DS_NOT_READY);
        set(waits, i < 2 ? 5 : 1);
        ok(ds_stream_synchronize(s));
        want = fold_host(want, 8);
        assert_int_equal(*h, want);
        assert_int_equal(*w, 2);
        ok(ds_graph_exec_destroy(x));
        ok(ds_graph_destroy(all[i]));
    }
    ok(ds_stream_destroy(s));
    release();
}

static void test_values_of_an_executable_change(void **state) {
    (void)state;
    begin();
    ds_stream s = stream();
    uint64_t *w = pinned(0), *other = pinned(0), *h = pinned(1);
    ds_value_op op[2] = { { w, 1, DS_VALUE_WAIT_EQ, 4 }, { w, 2, DS_VALUE_WRITE, 4 } };
    ds_value_op wrong[2] = { { w, 1, DS_VALUE_WRITE, 4 }, { w, 2, DS_VALUE_WRITE, 4 } };
    ds_graph g = { 0 };
    ds_graph_exec x = { 0 };
    ds_graph_node n[2];
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ds_node_desc d = values_node(op, 2), f = fold_node(h, 8);
    ok(ds_graph_add(g, &d, NULL, 0, &n[0]));
    ok(ds_graph_add(g, &f, &n[0], 1, &n[1]));
    ok(ds_graph_instantiate(g, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS }, &x));
    /* cuGraphExecBatchMemOpNodeSetParams: not the number of operations, and not their types */
    d = values_node(op, 1);
    refused(ds_graph_exec_set_node(x, n[0], &d), DS_ERR_INVALID_VALUE);
    d = values_node(wrong, 2);
    refused(ds_graph_exec_set_node(x, n[0], &d), DS_ERR_INVALID_VALUE);
    wrong[0] = (ds_value_op){ w, 1, DS_VALUE_WAIT_EQ, 8 };
    refused(ds_graph_exec_set_node(x, n[0], &d), DS_ERR_INVALID_VALUE);
    op[0] = (ds_value_op){ w, 4, DS_VALUE_WAIT_AND, 4 };
    op[1].value = 3;
    d = values_node(op, 2);
    ok(ds_graph_exec_set_node(x, n[0], &d));
    ok(ds_graph_launch(x, s));
    nap();
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    set(w, 6);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w, 3);
    void *from = w, *to = other;
    size_t replaced = 0;
    void *pageable = &replaced;
    refused(ds_graph_exec_replace_pointers(x, &from, &pageable, 1, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_graph_exec_replace_pointers(x, &from, &to, 1, &replaced));
    assert_int_equal(replaced, 2);
    ok(ds_graph_launch(x, s));
    nap();
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    set(other, 4);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w, 3);
    assert_int_equal(*other, 3);
    /* back by an update from the graph */
    set(w, 0);
    ok(ds_graph_exec_update(x, g, NULL));
    ok(ds_graph_launch(x, s));
    nap();
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    set(w, 1);
    ok(ds_stream_synchronize(s));
    assert_int_equal(*w, 2);
    assert_int_equal(*h, fold_host(fold_host(fold_host(1, 8), 8), 8));
    refused(ds_graph_exec_set_node_enabled(x, n[0], 0), DS_ERR_INVALID_VALUE);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    release();
}

static int fails(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 1;
}

/* On CUDA, work after a failure is abandoned; so is a wait. */
static void test_a_failure_of_the_device_ends_waits(void **state) {
    (void)state;
    begin();
    ds_stream s = stream(), other = stream();
    uint64_t *w = pinned(0);
    ds_kernel k = harness_kernel("bad", fails, 0, NULL, 0, 1);
    ok(ds_stream_wait_value32(s, w, 1, DS_VALUE_WAIT_EQ));
    ok(ds_stream_write_value64(s, w + 1, 1));
    nap();
    ok(ds_kernel_launch(k, 1, NULL, 0, other));
    refused(ds_stream_synchronize(other), DS_ERR_FAILED);
    refused(ds_stream_synchronize(s), DS_ERR_FAILED);
    assert_int_equal(w[1], 0);
    ended(ds_stream_destroy(s));
    ended(ds_stream_destroy(other));
    ended(ds_kernel_destroy(k));
    harness_recover(0);
    release();
}

static void *write_later(void *at) {
    nap();
    set(at, 1);
    return NULL;
}

static void wait_for_a_thread_and_a_stream(void) {
    begin();
    ds_stream s = stream(), t = stream();
    uint64_t *w = pinned(0), *h = pinned(1);
    pthread_t thread = spawn(write_later, w);
    ok(ds_stream_wait_value32(s, w, 1, DS_VALUE_WAIT_EQ));
    fold(s, h, 1);
    ok(ds_stream_write_value32(s, w, 2));
    ok(ds_stream_wait_value32(t, w, 2, DS_VALUE_WAIT_EQ));
    fold(t, h, 2);
    ok(ds_stream_synchronize(t));
    ok(ds_stream_synchronize(s));
    join(thread);
    assert_int_equal(*h, fold_host(fold_host(1, 1), 2));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    release();
}

static void test_every_way_to_run_work_waits_for_values(void **state) {
    (void)state;
    harness_in_every_way(wait_for_a_thread_and_a_stream);
}

/* Threads and streams raise counters for one another while others come and go. */
static void *raise_and_await(void *arg) {
    uint64_t *w = arg;
    ds_stream s;
    ok_thread(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));
    for (uint64_t n = 1; n <= 200; n++) {
        ok_thread(ds_stream_wait_value64(s, &w[0], n, DS_VALUE_WAIT_GEQ));
        ok_thread(ds_stream_write_value64(s, &w[1], n));
        if (n % 3 == 0)
            ok_thread(ds_stream_synchronize(s));
    }
    ok_thread(ds_stream_synchronize(s));
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_threads_wait_and_write_at_once(void **state) {
    (void)state;

    enum { THREADS = 4 };

    begin();
    uint64_t *w[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = zeros(2);
        thread[i] = spawn(raise_and_await, w[i]);
    }
    for (uint64_t n = 1; n <= 200; n++)
        for (int i = 0; i < THREADS; i++)
            set(&w[i][0], n);
    for (int i = 0; i < THREADS; i++) {
        join(thread[i]);
        assert_int_equal(w[i][1], 200);
    }
    release();
}

const struct CMUnitTest tests_values[] = {
    DS_TEST(test_conditions_hold_a_stream_or_let_it_go, "CUDA: Stream Memory Operations"),
    DS_TEST(test_a_write_changes_its_word_and_no_other, "CUDA: Stream Memory Operations"),
    DS_TEST(test_a_write_comes_after_earlier_work, "CUDA: Stream Memory Operations"),
    DS_TEST(test_streams_pass_a_token_around, "CUDA: Stream Memory Operations"),
    DS_TEST(test_waiting_streams_hold_up_no_others, "docs/gpu P29"),
    DS_TEST(test_a_copy_ends_a_wait_for_device_memory, "CUDA: Stream Memory Operations"),
    DS_TEST(test_the_legacy_stream_waits_and_writes, "docs/gpu P29"),
    DS_TEST(test_a_batch_runs_in_the_order_of_its_list, "cuStreamBatchMemOp"),
    DS_TEST(test_the_largest_batch_is_accepted_and_a_larger_one_refused, "docs/gpu P29"),
    DS_TEST(test_bad_values_are_refused_and_nothing_is_enqueued, "docs/gpu P29"),
    DS_TEST(test_a_word_of_another_device_is_refused, "ds_stream_wait_value32"),
    DS_TEST(test_a_node_moves_to_the_device_of_its_word, "ds_graph_set_node"),
    DS_TEST(test_a_batch_is_captured_as_one_node, "docs/gpu P30"),
    DS_TEST(test_values_are_nodes_of_graphs, "cuGraphAddBatchMemOpNode"),
    DS_TEST(test_values_of_an_executable_change, "cuGraphExecBatchMemOpNodeSetParams"),
    DS_TEST_CPU(test_a_failure_of_the_device_ends_waits, "ds_stream_wait_value32"),
    DS_TEST_CPU(test_every_way_to_run_work_waits_for_values, "ds_cpu_desc"),
    DS_TEST(test_threads_wait_and_write_at_once, "CUDA: Stream Memory Operations"),
};
const size_t tests_values_count = sizeof tests_values / sizeof tests_values[0];
