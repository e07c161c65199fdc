/* Capture: what becomes a node, what spoils a capture and what does not, and what the errors
   say. */
#include "harness.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_stream made(int device) {
    return harness_stream(device, DS_STREAM_NON_BLOCKING);
}

static ds_stream blocking(int device) {
    return harness_stream(device, DS_STREAM_BLOCKING);
}

static ds_stream legacy_of(int device) {
    ds_stream s;
    ok(ds_stream_get_legacy(harness_device(device), &s));
    return s;
}

static ds_event event_of(unsigned flags) {
    ds_event e;
    ok(ds_event_create(flags, NULL, &e));
    return e;
}

/* From ds_pinned_alloc. */
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

/* ---- a capture, and what its errors must say ---- */

typedef struct cap {
    ds_stream s; /* where it began */
    uint64_t id;
    int begun, culprit; /* lines of this file */
    const char *call;   /* the culprit's */
} cap;

static void note_id(cap *c) {
    ds_capture_info info;
    ok(ds_capture_get_info(c->s, &info));
    assert_int_equal(info.status, DS_CAPTURE_ACTIVE);
    assert_true(info.id != 0);
    c->id = info.id;
}

/* Each use of these stands on one line: they compare lines, and compilers differ in the line of a
   macro that stands on several. */
#define BEGIN(c, stream, mode)                \
    do {                                      \
        harness_warm_up();                    \
        harness_watch((c)->s = (stream));     \
        (c)->begun = __LINE__;                \
        ok(ds_capture_begin((c)->s, (mode))); \
        note_id(c);                           \
    } while (0)
/* The call is refused with this code, and the capture is invalid from now on by it, or by the
   one before that it names. */
#define SPOILS(c, what, code)                                 \
    do {                                                      \
        ds_result spoils_result_ = (what);                    \
        expect_result(spoils_result_, (code), #what);         \
        expect_culprit((c), ds_error_get_last());             \
        blame((c), #what, __LINE__);                          \
        expect_refusal((c), #what, __LINE__);                 \
        expect_status((c)->s, DS_CAPTURE_INVALIDATED, #what); \
    } while (0)
/* The call is refused with this code, and the capture goes on. */
#define KEEPS(c, what, code)                             \
    do {                                                 \
        ds_result keeps_result_ = (what);                \
        expect_result(keeps_result_, (code), #what);     \
        expect_refusal((c), #what, __LINE__);            \
        expect_status((c)->s, DS_CAPTURE_ACTIVE, #what); \
    } while (0)

/* The first one counts. */
static void blame(cap *c, const char *call, int line) {
    if (c->call)
        return;
    c->call = call;
    c->culprit = line;
}

static void expect_result(ds_result got, ds_result wanted, const char *call) {
    if (got != wanted)
        fail_msg("%s is %s, not %s: %s", call, ds_result_get_name(got), ds_result_get_name(wanted),
                 ds_error_get_last());
}

static void expect_in(const char *sentence, const char *part, const char *call) {
    if (!strstr(sentence, part))
        fail_msg("after %s: \"%s\" does not say \"%s\"", call, sentence, part);
}

static void expect_line(const char *sentence, int line, const char *call) {
    char place[60];
    snprintf(place, sizeof place, "test_capture.c:%d", line);
    expect_in(sentence, place, call);
}

static void expect_function(const char *sentence, const char *call) {
    char name[80];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "("), call);
    expect_in(sentence, name, call);
}

static void expect_capture_named(const cap *c, const char *sentence, const char *call) {
    char number[30];
    snprintf(number, sizeof number, "#%llu", (unsigned long long)c->id);
    expect_in(sentence, number, call);
    expect_line(sentence, c->begun, call);
}

static void expect_culprit(const cap *c, const char *sentence) {
    if (!c->call)
        return;
    expect_function(sentence, c->call);
    expect_line(sentence, c->culprit, c->call);
}

/* The sentence names the call that was refused, and the capture. */
static void expect_refusal(const cap *c, const char *call, int line) {
    expect_capture_named(c, ds_error_get_last(), call);
    expect_function(ds_error_get_last(), call);
    expect_line(ds_error_get_last(), line, call);
}

static ds_capture_status status_of(ds_stream s) {
    ds_capture_status status = (ds_capture_status)9;
    ok(ds_capture_get_status(s, &status));
    return status;
}

static void expect_status(ds_stream s, ds_capture_status wanted, const char *call) {
    ds_capture_status got = status_of(s);
    if (got != wanted)
        fail_msg("after %s the capture's status is %d, not %d", call, (int)got, (int)wanted);
}

static ds_graph end(const cap *c) {
    ds_graph g = { 0 };
    ok(ds_capture_end(c->s, &g));
    assert_true(g.id != 0);
    assert_int_equal(status_of(c->s), DS_CAPTURE_NONE);
    return g;
}

/* It gives no graph, and says who is to blame. */
static void end_invalid(const cap *c) {
    ds_graph g = { 7 };
    refused(ds_capture_end(c->s, &g), DS_ERR_CAPTURE_INVALIDATED);
    assert_int_equal(g.id, 0);
    expect_capture_named(c, ds_error_get_last(), "ds_capture_end");
    expect_culprit(c, ds_error_get_last());
}

/* The stream does not capture, and works. */
static void expect_usable(ds_stream s) {
    uint64_t *h = word(3);
    assert_int_equal(status_of(s), DS_CAPTURE_NONE);
    fold(s, h, 4);
    ok(ds_stream_synchronize(s));
    ok(ds_stream_query(s));
    assert_true(*h == fold_host(3, 4));
}

static void launch(ds_graph g, ds_stream s, int times) {
    ds_graph_exec x;
    ok(ds_graph_instantiate(g, NULL, &x));
    for (int i = 0; i < times; i++)
        ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
}

static void end_and_launch(const cap *c, int times) {
    ds_graph g = end(c);
    launch(g, c->s, times);
    ok(ds_graph_destroy(g));
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

static size_t dependency_count(ds_stream s) {
    size_t count = 99;
    ok(ds_capture_get_dependencies(s, NULL, 0, &count));
    return count;
}

static ds_graph_node last_node(ds_stream s) {
    ds_graph_node n;
    size_t count;
    ok(ds_capture_get_dependencies(s, &n, 1, &count));
    assert_int_equal(count, 1);
    return n;
}

static int has_edge(ds_graph g, ds_graph_node from, ds_graph_node to) {
    ds_graph_node f[64], t[64];
    size_t count;
    ok(ds_graph_get_edges(g, f, t, 64, &count));
    assert_true(count <= 64);
    for (size_t i = 0; i < count; i++)
        if (f[i].id == from.id && t[i].id == to.id)
            return 1;
    return 0;
}

/* to continues what was put on from, by an event that is not needed any more afterwards. */
static void follow(ds_stream to, ds_stream from) {
    ds_event e;
    ok(ds_stream_record_event(from, 0, &e));
    ok(ds_stream_wait_event(to, e));
    ok(ds_event_destroy(e));
}

/* ---- begin ---- */

static void test_a_stream_captures_from_begin_to_end_and_no_other_does(void **state) {
    cap c = { 0 };
    (void)state;
    ds_stream s = made(0), other = made(0);
    assert_int_equal(status_of(s), DS_CAPTURE_NONE);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    assert_int_equal(status_of(other), DS_CAPTURE_NONE);
    assert_int_equal(status_of(legacy_of(0)), DS_CAPTURE_NONE);
    ok(ds_graph_destroy(end(&c)));
    assert_int_equal(status_of(s), DS_CAPTURE_NONE);
    assert_int_equal(status_of(legacy_of(0)), DS_CAPTURE_NONE);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
}

static void test_info_tells_what_is_known_of_a_capture(void **state) {
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    uint64_t *h = word(0), seen[3] = { 0 };
    (void)state;
    ds_stream s = made(0);
    for (size_t i = 0; i < 3; i++) {
        ds_capture_info info;
        cap c = { 0 };
        memset(&info, 7, sizeof info);
        ok(ds_capture_get_info(s, &info));
        assert_int_equal(info.status, DS_CAPTURE_NONE);
        assert_true(info.id == 0 && info.graph.id == 0 && info.dependency_count == 0 &&
                    !info.begun.file);
        BEGIN(&c, s, modes[i]);
        ok(ds_capture_get_info(s, &info));
        assert_int_equal(info.status, DS_CAPTURE_ACTIVE);
        assert_int_equal(info.mode, modes[i]);
        assert_int_equal(info.dependency_count, 0);
        assert_non_null(info.begun.file);
        assert_non_null(strstr(info.begun.file, "test_capture.c"));
        assert_int_equal(info.begun.line, c.begun);
        for (size_t k = 0; k < i; k++)
            assert_true(info.id != seen[k]);
        seen[i] = info.id;
        fold(s, h, 1);
        ok(ds_capture_get_info(s, &info));
        assert_int_equal(info.dependency_count, 1);
        assert_int_equal(node_count(info.graph), 1);
        ds_graph g = end(&c);
        assert_int_equal(g.id, info.graph.id);
        ok(ds_graph_destroy(g));
    }
    ok(ds_stream_destroy(s));
}

/* to be probed: P2 */
static void test_the_legacy_stream_cannot_capture(void **state) {
    ds_stream other;
    (void)state;
    ds_stream legacy = legacy_of(0);
    refused(ds_capture_begin(legacy, DS_CAPTURE_GLOBAL), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_capture_begin(legacy, DS_CAPTURE_RELAXED), DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_stream_get_default(harness_device(0), &other));
    refused(ds_capture_begin(other, DS_CAPTURE_THREAD_LOCAL), DS_ERR_CAPTURE_UNSUPPORTED);
    expect_usable(legacy);
}

/* to be probed: P2 */
static void test_a_second_begin_is_refused_and_the_capture_goes_on(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    fold(s, h, 2);
    KEEPS(&c, ds_capture_begin(s, DS_CAPTURE_RELAXED), DS_ERR_ILLEGAL_STATE);
    follow(t, s);
    KEEPS(&c, ds_capture_begin(t, DS_CAPTURE_GLOBAL), DS_ERR_ILLEGAL_STATE);
    fold(t, h, 3);
    follow(s, t);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_every_kind_of_stream_captures_in_every_mode(void **state) {
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    ds_stream s[4];
    ds_stream_native native;
    (void)state;
    s[0] = made(0);
    s[1] = blocking(0);
    ok(ds_stream_get_per_thread(harness_device(0), &s[2]));
    ok(ds_stream_export(s[0], &native));
    ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &s[3]));
    for (int i = 0; i < 4; i++)
        for (int m = 0; m < 3; m++) {
            uint64_t *h = word(1);
            cap c = { 0 };
            BEGIN(&c, s[i], modes[m]);
            fold(s[i], h, 2);
            end_and_launch(&c, 1);
            assert_true(*h == fold_host(1, 2));
        }
    ok(ds_stream_destroy(s[3]));
    ok(ds_stream_destroy(s[1]));
    ok(ds_stream_destroy(s[0]));
}

static void test_a_wrapper_captures_with_the_stream_that_it_wraps(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    ds_stream_native native;
    ds_stream wrapper;
    ds_graph g;
    (void)state;
    ds_stream s = made(0);
    ok(ds_stream_export(s, &native));
    ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &wrapper));
    BEGIN(&c, wrapper, DS_CAPTURE_RELAXED);
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    fold(s, h, 2);
    fold(wrapper, h, 3);
    ok(ds_capture_end(s, &g));
    assert_int_equal(status_of(wrapper), DS_CAPTURE_NONE);
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(wrapper));
    ok(ds_stream_destroy(s));
}

static void test_an_unknown_mode_and_missing_outputs_are_refused(void **state) {
    cap c = { 0 };
    (void)state;
    ds_stream s = made(0);
    refused(ds_capture_begin(s, (ds_capture_mode)3), DS_ERR_INVALID_VALUE);
    refused(ds_capture_begin(s, (ds_capture_mode)-1), DS_ERR_INVALID_VALUE);
    refused(ds_capture_get_status(s, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_capture_get_info(s, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_capture_exchange_mode(NULL), DS_ERR_INVALID_VALUE);
    assert_int_equal(status_of(s), DS_CAPTURE_NONE);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    refused(ds_capture_end(s, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_capture_get_dependencies(s, NULL, 0, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_capture_update_dependencies(s, NULL, 1, DS_CAPTURE_ADD_DEPENDENCIES),
            DS_ERR_INVALID_VALUE);
    refused(ds_capture_update_dependencies(s, NULL, 0, 2), DS_ERR_INVALID_VALUE);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_stream_destroy(s));
}

static void expect_invalid_stream(ds_stream s) {
    ds_capture_status status = DS_CAPTURE_ACTIVE;
    ds_capture_info info;
    ds_graph g = { 7 };
    size_t count = 7;
    refused(ds_capture_begin(s, DS_CAPTURE_RELAXED), DS_ERR_INVALID_HANDLE);
    refused(ds_capture_get_status(s, &status), DS_ERR_INVALID_HANDLE);
    assert_int_equal(status, 0);
    memset(&info, 7, sizeof info);
    refused(ds_capture_get_info(s, &info), DS_ERR_INVALID_HANDLE);
    assert_true(info.id == 0 && info.status == DS_CAPTURE_NONE);
    refused(ds_capture_get_dependencies(s, NULL, 0, &count), DS_ERR_INVALID_HANDLE);
    assert_int_equal(count, 0);
    refused(ds_capture_update_dependencies(s, NULL, 0, DS_CAPTURE_SET_DEPENDENCIES),
            DS_ERR_INVALID_HANDLE);
    refused(ds_capture_end(s, &g), DS_ERR_INVALID_HANDLE);
    assert_int_equal(g.id, 0);
}

static void test_zeroed_invented_and_destroyed_streams_are_refused(void **state) {
    (void)state;
    ds_stream gone = made(0);
    ok(ds_stream_destroy(gone));
    expect_invalid_stream((ds_stream){ 0 });
    expect_invalid_stream(gone);
    expect_invalid_stream((ds_stream){ 0xdeadbeefcafef00du });
}

static void test_work_put_on_the_stream_before_still_runs(void **state) {
    cap c = { 0 };
    gate g = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0);
    gate_close(s, &g);
    fold(s, h, 2);
    ok(ds_event_record(e, s));
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    fold(s, h, 3);
    gate_wait_entered(&g);
    assert_int_equal(ds_event_query(e), DS_NOT_READY);
    gate_open(&g);
    eventually(ds_event_query(e) == DS_OK);
    assert_true(*h == fold_host(1, 2));
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_a_launch_follows_work_enqueued_before_the_capture(void **state) {
    cap c = { 0 };
    gate g = { 0 };
    uint64_t *h = word(1);
    ds_graph_exec x;
    (void)state;
    ds_stream s = made(0);
    gate_close(s, &g);
    fold(s, h, 2);
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    fold(s, h, 3);
    ds_graph graph = end(&c);
    ok(ds_graph_instantiate(graph, NULL, &x));
    ok(ds_graph_launch(x, s));
    fold(s, h, 4);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 4));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(graph));
    ok(ds_stream_destroy(s));
}

/* ---- what is put on a capturing stream ---- */

static void test_captured_work_runs_at_each_launch_and_not_before(void **state) {
    cap c = { 0 };
    payload p = { 0 };
    uint64_t *h = word(1), *from = pinned(4), *to = pinned(4), *d = device_words(0, 4);
    (void)state;
    ds_stream s = made(0), bystander = made(0);
    from[0] = 11;
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ok(ds_copy(d, from, 32, s));
    ok(ds_copy(to, d, 16, s));
    ok(ds_fill(to + 2, 0x01010101, 4, 4, s));
    ok(ds_stream_launch_host_func(s, payload_run, &p, payload_destroy));
    fold(s, h, 3);
    fold(bystander, word(0), 1);
    ok(ds_stream_synchronize(bystander)); /* those of the capture would have had their turn */
    assert_true(*h == 1 && to[0] == 0 && to[2] == 0);
    assert_int_equal(p.ran, 0);
    from[0] = 12;
    ds_graph g = end(&c);
    assert_true(*h == 1 && to[0] == 0 && to[2] == 0);
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 3) && to[0] == 12 && to[2] == 0x0101010101010101u);
    assert_int_equal(p.ran, 1);
    assert_int_equal(p.destroyed, 0);
    from[0] = 13;
    launch(g, s, 2);
    assert_true(to[0] == 13);
    assert_int_equal(p.ran, 3);
    ok(ds_graph_destroy(g));
    await_destroyed(&p, 1);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(bystander));
    ok(ds_device_free(d));
    ok(ds_pinned_free(from));
    ok(ds_pinned_free(to));
}

static void test_each_operation_becomes_a_node_after_the_one_before(void **state) {
    static const ds_node_kind kinds[] = { DS_NODE_KERNEL, DS_NODE_KERNEL,       DS_NODE_COPY,
                                          DS_NODE_COPY,   DS_NODE_FILL,         DS_NODE_FILL,
                                          DS_NODE_HOST,   DS_NODE_EVENT_RECORD, DS_NODE_EVENT_WAIT,
                                          DS_NODE_CHILD };

    enum { COUNT = sizeof kinds / sizeof *kinds };

    cap c = { 0 };
    int line[COUNT], priority = 7;
    payload p = { 0 };
    uint64_t *h = word(1), *from = pinned(8), *d = device_words(0, 16);
    fold_args two = { h, 2 }, three = { h, 3 };
    ds_grid grid = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } };
    ds_graph_node nodes[COUNT + 1];
    ds_graph_exec x;
    ds_stream s;
    size_t count;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0), .priority = -1 }, &s));
    ok(ds_stream_get_priority(s, &priority, NULL));
    ds_event e = event_of(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    fold(s, h, 4);
    ds_graph inner = end(&c);
    ok(ds_graph_instantiate(inner, NULL, &x));
    ds_kernel k = harness_fold_kernel();
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_kernel_launch(k, 1, &two, sizeof two, s));
    line[0] = __LINE__ - 1;
    ok(ds_kernel_launch_grid(k, &grid, &three, sizeof three, s));
    line[1] = __LINE__ - 1;
    ok(ds_copy(d, from, 64, s));
    line[2] = __LINE__ - 1;
    ok(ds_copy_2d(d, 32, from, 16, 8, 4, s));
    line[3] = __LINE__ - 1;
    ok(ds_fill(d, 5, 1, 64, s));
    line[4] = __LINE__ - 1;
    ok(ds_fill_2d(d, 32, 6, 4, 2, 4, s));
    line[5] = __LINE__ - 1;
    ok(ds_stream_launch_host_func(s, payload_run, &p, payload_destroy));
    line[6] = __LINE__ - 1;
    ok(ds_event_record_external(e, s));
    line[7] = __LINE__ - 1;
    ok(ds_stream_wait_event_external(s, e));
    line[8] = __LINE__ - 1;
    ok(ds_graph_launch(x, s));
    line[9] = __LINE__ - 1;
    ds_graph g = end(&c);
    ok(ds_graph_get_nodes(g, nodes, COUNT + 1, &count));
    assert_int_equal(count, COUNT);
    assert_int_equal(edge_count(g), COUNT - 1);
    for (size_t i = 0; i < COUNT; i++) {
        ds_node_desc n;
        ds_site site;
        ok(ds_graph_get_node(g, nodes[i], &n, &site));
        assert_int_equal(n.kind, kinds[i]);
        assert_int_equal(n.priority, priority);
        assert_non_null(site.file);
        assert_non_null(strstr(site.file, "test_capture.c"));
        assert_int_equal(site.line, line[i]);
        if (i)
            assert_true(has_edge(g, nodes[i - 1], nodes[i]));
        if (i == 0) {
            assert_int_equal(n.u.kernel.kernel.id, k.id);
            assert_int_equal(n.u.kernel.items, 1);
            assert_int_equal(n.u.kernel.args_size, sizeof two);
            assert_memory_equal(n.u.kernel.args, &two, sizeof two);
        }
        if (i == 1)
            assert_true(n.u.kernel.grid && n.u.kernel.grid->grid[0] == 1);
        if (i == 2)
            assert_true(n.u.copy.dst == d && n.u.copy.src == from && n.u.copy.width == 64 &&
                        n.u.copy.height <= 1);
        if (i == 3)
            assert_true(n.u.copy.width == 8 && n.u.copy.height == 4);
        if (i == 3)
            assert_true(n.u.copy.dst_pitch == 32 && n.u.copy.src_pitch == 16);
        if (i == 4)
            assert_true(n.u.fill.ptr == d && n.u.fill.value == 5 && n.u.fill.value_size == 1 &&
                        n.u.fill.width == 64);
        if (i == 5)
            assert_true(n.u.fill.width == 2 && n.u.fill.height == 4 && n.u.fill.pitch == 32 &&
                        n.u.fill.value_size == 4);
        if (i == 6)
            assert_true(n.u.host.fn == payload_run && n.u.host.user == &p && !n.u.host.dtor_fn);
        if (i == 7 || i == 8)
            assert_int_equal(n.u.event.id, e.id);
        if (i == 9)
            assert_int_equal(n.u.child.id, 0);
    }
    launch(g, s, 2);
    for (int i = 0; i < 2; i++)
        two.n = fold_host(fold_host(fold_host(i ? two.n : 1, 2), 3), 4);
    assert_true(*h == two.n);
    assert_int_equal(p.ran, 2);
    ok(ds_graph_destroy(g));
    await_destroyed(&p, 1);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(inner));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(from));
}

static void test_work_of_size_zero_becomes_no_node(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *d = device_words(0, 4), *from = pinned(4);
    fold_args a = { h, 2 };
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    ok(ds_copy(d, from, 0, s));
    ok(ds_fill(d, 1, 4, 0, s));
    ok(ds_kernel_launch(harness_fold_kernel(), 0, &a, sizeof a, s));
    assert_int_equal(dependency_count(s), 0);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 0);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(from));
}

static void test_an_empty_capture_gives_an_empty_graph_that_can_launch(void **state) {
    cap c = { 0 };
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 0);
    assert_int_equal(edge_count(g), 0);
    launch(g, s, 2);
    expect_usable(s);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_record_and_a_wait_make_no_nodes(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    ok(ds_event_record(e, s));
    ok(ds_stream_wait_event(s, e));
    assert_int_equal(dependency_count(s), 0);
    fold(s, h, 2);
    ok(ds_event_record(e, s));
    ds_graph_node first = last_node(s);
    ok(ds_stream_wait_event(s, e));
    assert_int_equal(last_node(s).id, first.id);
    fold(s, h, 3);
    assert_true(last_node(s).id != first.id);
    ok(ds_stream_wait_event(s, e)); /* an ancestor already: does no harm */
    fold(s, h, 4);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 3);
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 4));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_what_only_looks_at_a_capturing_stream_does_no_harm(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), id = 0;
    unsigned flags = 7;
    int effective = 7, requested = 7;
    char label[40];
    ds_device d;
    ds_stream_native native;
    ds_stream previous;
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_stream_get_flags(s, &flags));
    ok(ds_stream_get_priority(s, &effective, &requested));
    ok(ds_stream_get_id(s, &id));
    ok(ds_stream_get_device(s, &d));
    ok(ds_stream_get_label(s, label, sizeof label));
    ok(ds_stream_export(s, &native));
    assert_true(ds_stream_equal(s, s));
    ok(ds_stream_ref(s));
    ok(ds_stream_destroy(s));
    ok(ds_stream_set_current(s, 0, &previous));
    ok(ds_stream_set_current(previous, 0, NULL));
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    fold(s, h, 2);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_stream_destroy(s));
}

static void test_dependencies_are_written_as_far_as_there_is_room(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    ds_graph_node two[2], one[2] = { { 0 }, { 7 } };
    size_t count;
    (void)state;
    ds_stream s = made(0), t = made(0);
    refused(ds_capture_get_dependencies(s, two, 2, &count), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(count, 0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    follow(t, s);
    fold(t, k, 2);
    fold(s, h, 2);
    ds_graph_node left = last_node(s), right = last_node(t);
    follow(s, t);
    assert_int_equal(dependency_count(s), 2);
    ok(ds_capture_get_dependencies(s, two, 2, &count));
    assert_int_equal(count, 2);
    assert_true((two[0].id == left.id && two[1].id == right.id) ||
                (two[1].id == left.id && two[0].id == right.id));
    ok(ds_capture_get_dependencies(s, one, 1, &count));
    assert_int_equal(count, 2);
    assert_int_equal(one[0].id, two[0].id);
    assert_int_equal(one[1].id, 7);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_argument_structs_are_copied_at_capture(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *elsewhere = word(1);
    fold_args a = { h, 2 };
    (void)state;
    ds_kernel k = harness_fold_kernel();
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_kernel_launch(k, 1, &a, sizeof a, s));
    a = (fold_args){ elsewhere, 3 };
    ds_graph g = end(&c);
    launch(g, s, 1);
    memset(&a, 0xff, sizeof a);
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 2) && *elsewhere == 1);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_ten_launches_read_new_contents_of_the_same_buffers(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *in = pinned(1), *out = pinned(1), *d = device_words(0, 1), sum = 1;
    fold_args a = { d, 5 };
    ds_graph_exec x;
    (void)state;
    ds_kernel k = harness_fold_kernel();
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_copy(d, in, 8, s));
    ok(ds_kernel_launch(k, 1, &a, sizeof a, s));
    ok(ds_copy(out, d, 8, s));
    fold(s, h, 9);
    ds_graph g = end(&c);
    ok(ds_graph_instantiate(g, NULL, &x));
    for (uint64_t i = 0; i < 10; i++) {
        in[0] = 100 + i;
        ok(ds_graph_launch(x, s));
        ok(ds_stream_synchronize(s));
        assert_true(out[0] == fold_host(100 + i, 5));
        sum = fold_host(sum, 9);
        assert_true(*h == sum);
    }
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

/* ---- fork and join ---- */

static void test_a_fork_by_an_event_and_a_join_by_another(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_event fork = event_of(0), joined = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ds_graph_node top = last_node(s);
    ok(ds_event_record(fork, s));
    ok(ds_stream_wait_event(t, fork));
    assert_int_equal(status_of(t), DS_CAPTURE_ACTIVE);
    fold(t, k, 3);
    ds_graph_node branch = last_node(t);
    ok(ds_event_record(joined, t));
    fold(s, h, 4);
    ds_graph_node stem = last_node(s);
    ok(ds_stream_wait_event(s, joined));
    assert_int_equal(status_of(t), DS_CAPTURE_ACTIVE); /* until the end */
    fold(s, k, 5);
    ds_graph_node bottom = last_node(s);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 4);
    assert_int_equal(edge_count(g), 4);
    assert_true(has_edge(g, top, branch) && has_edge(g, top, stem) && has_edge(g, branch, bottom) &&
                has_edge(g, stem, bottom));
    assert_int_equal(status_of(t), DS_CAPTURE_NONE);
    assert_true(*h == 1 && *k == 1);
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 4) && *k == fold_host(fold_host(1, 3), 5));
    expect_usable(s);
    expect_usable(t);
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(fork));
    ok(ds_event_destroy(joined));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_info_of_a_forked_stream_tells_of_the_same_capture(void **state) {
    ds_capture_info info;
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    fold(s, h, 2);
    follow(t, s);
    ok(ds_capture_get_info(t, &info));
    assert_int_equal(info.status, DS_CAPTURE_ACTIVE);
    assert_int_equal(info.mode, DS_CAPTURE_THREAD_LOCAL);
    assert_true(info.id == c.id);
    assert_int_equal(info.dependency_count, 1);
    assert_int_equal(info.begun.line, c.begun);
    assert_int_equal(last_node(t).id, last_node(s).id);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_fork_and_a_join_without_events(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0), t = blocking(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ok(ds_stream_wait_stream(t, s));
    assert_int_equal(status_of(t), DS_CAPTURE_ACTIVE);
    fold(t, k, 3);
    ok(ds_stream_wait_stream(s, t));
    fold(s, k, 4);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 3);
    launch(g, t, 1);
    assert_true(*h == fold_host(1, 2) && *k == fold_host(fold_host(1, 3), 4));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_scopes_that_wait_fork_and_join(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    ds_stream previous;
    (void)state;
    ds_stream s = made(0), t = made(0);
    ok(ds_stream_set_current(s, 0, &previous));
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    DS_STREAM_SCOPE_FLAGS(t, DS_PUSH_WAIT_PREV | DS_POP_WAIT_BACK) {
        assert_int_equal(status_of(t), DS_CAPTURE_ACTIVE);
        fold(t, k, 3);
    }
    fold(s, k, 4);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(1, 2) && *k == fold_host(fold_host(1, 3), 4));
    ok(ds_stream_set_current(previous, 0, NULL));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_streams_of_another_device_join_a_capture(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    ds_graph_node nodes[3];
    size_t count;
    (void)state;
    two_devices();
    ds_stream s = made(0), t = made(1);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    follow(t, s);
    assert_int_equal(status_of(t), DS_CAPTURE_ACTIVE);
    fold(t, k, 3);
    follow(s, t);
    fold(s, k, 4);
    ds_graph g = end(&c);
    ok(ds_graph_get_nodes(g, nodes, 3, &count));
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) {
        ds_node_desc n;
        ok(ds_graph_get_node(g, nodes[i], &n, NULL));
        assert_int_equal(n.device.type, harness_device(0).type);
        assert_int_equal(n.device.index, i == 1);
    }
    assert_true(*h == 1 && *k == 1);
    launch(g, s, 2);
    assert_true(*h == fold_host(fold_host(1, 2), 2));
    assert_true(*k == fold_host(fold_host(fold_host(fold_host(1, 3), 4), 3), 4));
    launch(g, t, 1); /* on a stream of either device */
    expect_usable(t);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_copies_between_devices_are_captured(void **state) {
    cap c = { 0 };
    uint64_t *in = pinned(4), *out = pinned(4);
    int reach = 0;
    (void)state;
    two_devices();
    uint64_t *a = device_words(0, 4), *b = device_words(1, 4);
    ds_stream s = made(0);
    ok(ds_device_can_access_peer(harness_device(0), harness_device(1), &reach));
    in[3] = 33;
    ds_device zero = harness_device(0), one = harness_device(1);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_copy(a, in, 32, s));
    ok(ds_copy_peer(b, one, a, zero, 32, s));
    ds_graph_node second = last_node(s);
    ok(ds_copy(out, b, 32, s)); /* neither end is on the stream's device */
    ds_graph_node third = last_node(s);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 3);
    assert_true(has_edge(g, second, third));
    assert_true(out[3] == 0);
    launch(g, s, 1);
    assert_true(out[3] == 33);
    in[3] = 34;
    launch(g, s, 1);
    assert_true(out[3] == 34);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(a));
    ok(ds_device_free(b));
    ok(ds_pinned_free(in));
    ok(ds_pinned_free(out));
}

/* to be probed: P8 */
static void test_a_fork_without_nodes_of_its_own_needs_no_join(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0), early = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    follow(early, s); /* before the first node */
    fold(s, h, 2);
    follow(t, s);
    fold(s, h, 3);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    expect_usable(t);
    expect_usable(early);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_stream_destroy(early));
}

static void expect_unjoined(cap *c) {
    ds_graph g = { 7 };
    refused(ds_capture_end(c->s, &g), DS_ERR_CAPTURE_UNJOINED);
    expect_capture_named(c, ds_error_get_last(), "ds_capture_end");
    assert_int_equal(g.id, 0);
    expect_usable(c->s);
}

static void test_a_fork_that_is_not_joined_gives_no_graph(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    follow(t, s);
    fold(t, h, 2);
    expect_unjoined(&c);
    expect_usable(t);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL); /* and what comes after the join counts as well */
    fold(s, h, 2);
    follow(t, s);
    fold(t, h, 3);
    follow(s, t);
    fold(t, h, 4);
    expect_unjoined(&c);
    expect_usable(t);
    assert_true(*h == 1);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_fork_may_be_joined_by_way_of_another(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0), u = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    follow(t, s);
    fold(t, h, 3);
    follow(u, t);
    fold(u, h, 4);
    follow(s, u);
    end_and_launch(&c, 1); /* what t has done comes before what u has done */
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 4));
    expect_usable(t);
    expect_usable(u);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_stream_destroy(u));
}

static void test_an_event_recorded_twice_in_a_capture_has_the_new_place(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ok(ds_event_record(e, s));
    fold(s, h, 3);
    ds_graph_node second = last_node(s);
    ok(ds_event_record(e, s));
    ok(ds_stream_wait_event(t, e));
    assert_int_equal(last_node(t).id, second.id);
    fold(t, k, 4);
    ok(ds_event_record(e, t));
    ok(ds_stream_wait_event(s, e));
    ok(ds_event_destroy(e)); /* does not undo it */
    end_and_launch(&c, 1);
    assert_true(*k == fold_host(1, 4));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- what does not fit ---- */

static void test_waiting_for_a_capturing_stream_invalidates_the_capture(void **state) {
    (void)state;
    ds_stream s = made(0);
    for (int i = 0; i < 6; i++) {
        cap c = { 0 };
        uint64_t *h = word(1);
        ds_stream t = made(0);
        BEGIN(&c, s, i % 2 ? DS_CAPTURE_GLOBAL : DS_CAPTURE_RELAXED);
        fold(s, h, 2);
        follow(t, s);
        switch (i) {
        case 0:
            SPOILS(&c, ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
            break;
        case 1:
            SPOILS(&c, ds_stream_synchronize(s), DS_ERR_CAPTURE_UNSUPPORTED);
            break;
        case 2:
            SPOILS(&c, ds_stream_synchronize_for(s, 1000), DS_ERR_CAPTURE_UNSUPPORTED);
            break;
        case 3:
            SPOILS(&c, ds_stream_query(t), DS_ERR_CAPTURE_UNSUPPORTED);
            break;
        case 4:
            SPOILS(&c, ds_stream_synchronize(t), DS_ERR_CAPTURE_UNSUPPORTED);
            break;
        default:
            SPOILS(&c, ds_stream_synchronize_for(t, 1000), DS_ERR_CAPTURE_UNSUPPORTED);
            break;
        }
        assert_int_equal(status_of(t), DS_CAPTURE_INVALIDATED);
        end_invalid(&c);
        expect_usable(s);
        expect_usable(t);
        assert_true(*h == 1);
        ok(ds_stream_destroy(t));
    }
    ok(ds_stream_destroy(s));
}

/* to be probed: P12 */
static void test_waiting_for_the_device_invalidates_its_captures(void **state) {
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    (void)state;
    ds_stream s = made(0);
    ds_device d = harness_device(0);
    for (int i = 0; i < 3; i++) {
        cap c = { 0 };
        BEGIN(&c, s, modes[i]);
        SPOILS(&c, ds_device_synchronize(d), DS_ERR_CAPTURE_UNSUPPORTED);
        end_invalid(&c);
        expect_usable(s);
        ok(ds_device_synchronize(harness_device(0)));
    }
    ok(ds_stream_destroy(s));
}

static void test_a_relaxed_capture_permits_a_wait_for_another_device(void **state) {
    cap c = { 0 };
    (void)state;
    two_devices();
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    ok(ds_device_synchronize(harness_device(1)));
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_stream_destroy(s));
}

/* to be probed: P13 */
static void test_asking_or_awaiting_a_captured_event_spoils_the_capture(void **state) {
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0);
    for (int i = 0; i < 3; i++) {
        cap c = { 0 };
        BEGIN(&c, s, DS_CAPTURE_RELAXED);
        fold(s, word(1), 2);
        ok(ds_event_record(e, s));
        if (i == 0)
            SPOILS(&c, ds_event_query(e), DS_ERR_CAPTURED_EVENT);
        if (i == 1)
            SPOILS(&c, ds_event_synchronize(e), DS_ERR_CAPTURED_EVENT);
        if (i == 2)
            SPOILS(&c, ds_event_synchronize_for(e, 1000), DS_ERR_CAPTURED_EVENT);
        end_invalid(&c);
        expect_usable(s);
    }
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

/* to be probed: b.5, elapsed */
static void test_the_time_of_a_captured_event_is_refused(void **state) {
    cap c = { 0 };
    double ms = 7;
    (void)state;
    ds_event before = event_of(DS_EVENT_TIMING), e = event_of(DS_EVENT_TIMING);
    ds_stream s = made(0);
    ok(ds_event_record(before, s));
    ok(ds_event_synchronize(before));
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    ok(ds_event_record(e, s));
    KEEPS(&c, ds_event_get_elapsed_ms(before, e, &ms), DS_ERR_CAPTURED_EVENT);
    assert_true(ms == 0);
    KEEPS(&c, ds_event_get_elapsed_ms(e, before, &ms), DS_ERR_CAPTURED_EVENT);
    KEEPS(&c, ds_event_get_elapsed_ms(e, e, &ms), DS_ERR_CAPTURED_EVENT);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_event_destroy(before));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

/* to be probed: P4 */
static void test_waiting_for_work_outside_of_the_capture_spoils_it(void **state) {
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0), outside = made(0);
    for (int i = 0; i < 4; i++) {
        cap c = { 0 };
        uint64_t *h = word(1);
        ok(ds_event_record(e, outside));
        BEGIN(&c, s, DS_CAPTURE_RELAXED);
        fold(s, h, 2);
        follow(t, s);
        if (i == 0)
            SPOILS(&c, ds_stream_wait_event(s, e), DS_ERR_CAPTURE_ISOLATION);
        if (i == 1)
            SPOILS(&c, ds_stream_wait_event(t, e), DS_ERR_CAPTURE_ISOLATION);
        if (i == 2)
            SPOILS(&c, ds_stream_wait_stream(s, outside), DS_ERR_CAPTURE_ISOLATION);
        if (i == 3)
            SPOILS(&c, ds_stream_wait_stream(t, outside), DS_ERR_CAPTURE_ISOLATION);
        end_invalid(&c);
        expect_usable(s);
        expect_usable(t);
        expect_usable(outside);
        ok(ds_event_query(e));
    }
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_stream_destroy(outside));
}

static ds_stream labelled(const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0), .label = label }, &s));
    return s;
}

/* 'stream 7 "name"': as ds_stream_get_id has it. */
static void expect_stream(const char *sentence, ds_stream s, const char *label, const char *call) {
    char name[80];
    uint64_t id;
    ok(ds_stream_get_id(s, &id));
    snprintf(name, sizeof name, "stream %llu%s%s%s of ", (unsigned long long)id, label ? " \"" : "",
             label ? label : "", label ? "\"" : "");
    expect_in(sentence, name, call);
}

static void test_a_wait_across_a_capture_names_both_streams(void **state) {
    (void)state;
    static const char *const calls[] = { "ds_stream_wait_stream", "ds_stream_wait_event" };
    for (int i = 0; i < 4; i++) {
        const char *call = calls[i & 1];
        ds_result code = i < 2 ? DS_ERR_CAPTURE_ISOLATION : DS_ERR_CAPTURE_MERGE;
        char said[1024];
        ds_event e;
        ds_graph g;
        ds_stream s = labelled("inside"), other = labelled("other");
        if (code == DS_ERR_CAPTURE_MERGE)
            ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
        ok(ds_event_create(0, "border", &e));
        ok(ds_event_record(e, other));
        ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));

        refused(i & 1 ? ds_stream_wait_event(s, e) : ds_stream_wait_stream(s, other), code);

        snprintf(said, sizeof said, "%s", ds_error_get_last());
        expect_stream(said, s, "inside", call);
        expect_stream(said, other, "other", call);
        if (i & 1)
            expect_in(said, "an event \"border\" recorded on", call);
        refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_INVALIDATED);
        if (code == DS_ERR_CAPTURE_MERGE)
            refused(ds_capture_end(other, &g), DS_ERR_CAPTURE_INVALIDATED);
        ok(ds_event_destroy(e));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
    }
}

static void test_a_refused_wait_names_a_stream_that_was_destroyed(void **state) {
    ds_graph g;
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), gone = made(0);
    ok(ds_event_record(e, gone));
    ok(ds_stream_destroy(gone));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));

    refused(ds_stream_wait_event(s, e), DS_ERR_CAPTURE_ISOLATION);

    expect_in(ds_error_get_last(), "recorded on a stream that was destroyed",
              "ds_stream_wait_event");
    expect_stream(ds_error_get_last(), s, NULL, "ds_stream_wait_event");
    refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_INVALIDATED);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

/* to be probed: P5 */
static void test_waiting_for_an_unrecorded_event_does_nothing(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_stream_wait_event(s, e));
    fold(s, h, 2);
    ok(ds_stream_wait_event(s, e));
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 1);
    launch(g, s, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

/* to be probed: P3 */
static void test_a_wait_between_two_captures_spoils_both(void **state) {
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    for (int i = 0; i < 2; i++) {
        cap c = { 0 }, d = { 0 };
        uint64_t *h = word(1), *k = word(1);
        BEGIN(&c, s, DS_CAPTURE_GLOBAL);
        BEGIN(&d, t, DS_CAPTURE_RELAXED);
        assert_true(c.id != d.id);
        fold(s, h, 2);
        fold(t, k, 3);
        ok(ds_event_record(e, s));
        if (i == 0)
            SPOILS(&d, ds_stream_wait_event(t, e), DS_ERR_CAPTURE_MERGE);
        if (i == 1)
            SPOILS(&d, ds_stream_wait_stream(t, s), DS_ERR_CAPTURE_MERGE);
        c.call = d.call;
        c.culprit = d.culprit;
        assert_int_equal(status_of(s), DS_CAPTURE_INVALIDATED);
        end_invalid(&c);
        end_invalid(&d);
        expect_usable(s);
        expect_usable(t);
        assert_true(*h == 1 && *k == 1);
    }
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* to be probed: P24 */
static void test_the_legacy_stream_cannot_be_forked_into_a_capture(void **state) {
    (void)state;
    ds_event e = event_of(0);
    ds_stream legacy = legacy_of(0);
    for (int i = 0; i < 2; i++) {
        cap c = { 0 };
        ds_stream s = i ? blocking(0) : made(0);
        BEGIN(&c, s, DS_CAPTURE_RELAXED);
        fold(s, word(1), 2);
        ok(ds_event_record(e, s));
        SPOILS(&c, ds_stream_wait_event(legacy, e), DS_ERR_CAPTURE_IMPLICIT);
        end_invalid(&c);
        expect_usable(s);
        expect_usable(legacy);
        ok(ds_stream_destroy(s));
    }
    ok(ds_event_destroy(e));
}

/* to be probed: b.5, add_callback */
static void test_a_callback_cannot_be_captured(void **state) {
    cap c = { 0 };
    payload p = { 0 };
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    const ds_result no = DS_ERR_CAPTURE_UNSUPPORTED;
    SPOILS(&c, ds_stream_add_callback(s, payload_callback, &p, payload_destroy), no);
    assert_int_equal(p.destroyed, 1); /* before it returned */
    end_invalid(&c);
    expect_usable(s);
    assert_int_equal(p.ran, 0);
    assert_int_equal(p.destroyed, 1);
    ok(ds_stream_destroy(s));
}

static void test_every_stream_of_an_invalid_capture_refuses_work(void **state) {
    cap c = { 0 };
    payload p[2] = { 0 };
    uint64_t *h = word(1), *d = device_words(0, 8), *from = pinned(8);
    fold_args a = { h, 2 };
    ds_grid grid = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } };
    ds_capture_info info;
    ds_graph_exec x;
    ds_graph g;
    size_t count = 7;
    (void)state;
    ds_kernel k = harness_fold_kernel();
    ds_event e = event_of(0), never = event_of(0), captured = event_of(0);
    ds_stream s = made(0), t = made(0), other = made(0);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    fold(s, h, 2);
    follow(t, s);
    ok(ds_event_record(captured, s));
    SPOILS(&c, ds_stream_query(t), DS_ERR_CAPTURE_UNSUPPORTED);
    for (int i = 0; i < 2; i++) {
        const ds_result invalid = DS_ERR_CAPTURE_INVALIDATED;
        ds_stream on = i ? t : s;
        SPOILS(&c, ds_kernel_launch(k, 1, &a, sizeof a, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_kernel_launch_grid(k, &grid, &a, sizeof a, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_copy(d, from, 64, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_copy_2d(d, 32, from, 32, 16, 2, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_fill(d, 0, 4, 4, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_fill_2d(d, 32, 0, 4, 4, 2, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_stream_launch_host_func(on, payload_run, &p[i], payload_destroy), invalid);
        SPOILS(&c, ds_event_record(e, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_event_record_external(e, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_graph_launch(x, on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_stream_query(on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_stream_synchronize(on), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_stream_synchronize_for(on, 1000), DS_ERR_CAPTURE_INVALIDATED);
        SPOILS(&c, ds_capture_get_dependencies(on, NULL, 0, &count), DS_ERR_CAPTURE_INVALIDATED);
        const unsigned set = DS_CAPTURE_SET_DEPENDENCIES;
        SPOILS(&c, ds_capture_update_dependencies(on, NULL, 0, set), invalid);
        assert_int_equal(p[i].destroyed, 1);
    }
    ok(ds_event_query(e)); /* was not recorded */
    ok(ds_event_query(never));
    ok(ds_capture_get_info(s, &info));
    assert_int_equal(info.status, DS_CAPTURE_INVALIDATED);
    assert_true(info.id == 0 && info.graph.id == 0 && info.dependency_count == 0);
    expect_usable(other);
    end_invalid(&c);
    expect_usable(s);
    expect_usable(t);
    assert_true(*h == 1 && p[0].ran == 0 && p[1].ran == 0);
    ok(ds_event_record(e, s));
    ok(ds_event_synchronize(e));
    ok(ds_event_record(captured, s));
    ok(ds_event_synchronize(captured));
    ok(ds_event_destroy(e));
    ok(ds_event_destroy(never));
    ok(ds_event_destroy(captured));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    ok(ds_stream_destroy(other));
    ok(ds_device_free(d));
    ok(ds_pinned_free(from));
}

/* to be probed: P7 */
static void test_no_stream_is_forked_into_a_spoilt_capture(void **state) {
    cap c = { 0 };
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    fold(s, word(1), 2);
    ok(ds_event_record(e, s));
    SPOILS(&c, ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
    SPOILS(&c, ds_stream_wait_event(t, e), DS_ERR_CAPTURE_INVALIDATED);
    SPOILS(&c, ds_stream_wait_stream(t, s), DS_ERR_CAPTURE_INVALIDATED);
    expect_usable(t);
    end_invalid(&c);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_host_functions_payload_goes_with_a_spoilt_capture(void **state) {
    cap c = { 0 };
    payload p = { 0 };
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    ok(ds_stream_launch_host_func(s, payload_run, &p, payload_destroy));
    SPOILS(&c, ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
    end_invalid(&c);
    await_destroyed(&p, 1);
    assert_int_equal(p.ran, 0);
    ok(ds_stream_destroy(s));
}

/* ---- end ---- */

static void test_ending_a_capture_that_never_began_is_refused(void **state) {
    cap c = { 0 };
    ds_graph g = { 7 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), idle = made(0);
    refused(ds_capture_end(idle, &g), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(g.id, 0);
    refused(ds_capture_end(legacy_of(0), &g), DS_ERR_ILLEGAL_STATE);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    refused(ds_capture_end(idle, &g), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(1, 2));
    refused(ds_capture_end(s, &g), DS_ERR_ILLEGAL_STATE); /* twice */
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(idle));
}

static void test_ending_a_capture_on_a_forked_stream_spoils_it(void **state) {
    cap c = { 0 };
    ds_graph g = { 7 };
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, word(1), 2);
    refused(ds_capture_end(t, &g), DS_ERR_ILLEGAL_STATE);
    follow(t, s);
    SPOILS(&c, ds_capture_end(t, &g), DS_ERR_CAPTURE_UNMATCHED);
    assert_int_equal(g.id, 0);
    assert_int_equal(status_of(t), DS_CAPTURE_INVALIDATED);
    end_invalid(&c);
    expect_usable(s);
    expect_usable(t);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* A call on another thread. */
typedef struct errand {
    ds_stream s;
    ds_result result;
    ds_graph graph;
    int line;
    char sentence[1000];
} errand;

static void *end_elsewhere(void *user) {
    errand *e = user;
    e->result = ds_capture_end(e->s, &e->graph);
    e->line = __LINE__ - 1;
    snprintf(e->sentence, sizeof e->sentence, "%s", ds_error_get_last());
    return NULL;
}

static void *query_elsewhere(void *user) {
    errand *e = user;
    e->result = ds_stream_query(e->s);
    e->line = __LINE__ - 1;
    snprintf(e->sentence, sizeof e->sentence, "%s", ds_error_get_last());
    return NULL;
}

static void *fold_elsewhere(void *user) {
    errand *e = user;
    fold(e->s, word(1), 2);
    return NULL;
}

/* docs/gpu, P9: the capture is over then */
static void test_another_thread_ends_a_capture_only_if_relaxed(void **state) {
    (void)state;
    ds_stream s = made(0);
    for (int i = 0; i < 2; i++) {
        errand e = { .s = s, .graph = { 7 } };
        cap c = { 0 };
        uint64_t *h = word(1);
        BEGIN(&c, s, i ? DS_CAPTURE_THREAD_LOCAL : DS_CAPTURE_GLOBAL);
        fold(s, h, 2);
        join(spawn(end_elsewhere, &e));
        expect_result(e.result, DS_ERR_CAPTURE_WRONG_THREAD, "ds_capture_end");
        assert_int_equal(e.graph.id, 0);
        expect_capture_named(&c, e.sentence, "ds_capture_end");
        expect_line(e.sentence, e.line, "ds_capture_end");
        assert_null(strstr(e.sentence, "goes on"));
        assert_int_equal(status_of(s), DS_CAPTURE_NONE);
        refused(ds_capture_end(s, &e.graph), DS_ERR_ILLEGAL_STATE);
        expect_usable(s);
        assert_true(*h == 1);
    }
    errand e = { .s = s };
    cap c = { 0 };
    uint64_t *h = word(1);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    fold(s, h, 2);
    join(spawn(end_elsewhere, &e));
    expect_result(e.result, DS_OK, "ds_capture_end");
    launch(e.graph, s, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_destroy(e.graph));
    ok(ds_stream_destroy(s));
}

static void test_any_thread_may_spoil_a_capture_and_is_named(void **state) {
    errand e = { 0 };
    cap c = { 0 };
    (void)state;
    ds_stream s = e.s = made(0);
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    fold(s, word(1), 2);
    join(spawn(query_elsewhere, &e));
    expect_result(e.result, DS_ERR_CAPTURE_UNSUPPORTED, "ds_stream_query");
    expect_capture_named(&c, e.sentence, "ds_stream_query");
    assert_int_equal(status_of(s), DS_CAPTURE_INVALIDATED);
    c.call = "ds_stream_query(s)";
    c.culprit = e.line;
    end_invalid(&c);
    expect_usable(s);
    ok(ds_stream_destroy(s));
}

static void test_any_thread_may_put_work_on_a_capturing_stream(void **state) {
    errand e = { 0 };
    cap c = { 0 };
    (void)state;
    e.s = made(0);
    BEGIN(&c, e.s, DS_CAPTURE_GLOBAL);
    fold(e.s, word(1), 2);
    join(spawn(fold_elsewhere, &e));
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 2);
    assert_int_equal(edge_count(g), 1);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(e.s));
}

static void test_a_stream_captures_again_and_again(void **state) {
    uint64_t *h = word(1), expected = 1;
    ds_graph kept[4];
    (void)state;
    ds_stream s = made(0);
    for (uint64_t i = 0; i < 4; i++) {
        cap c = { 0 };
        BEGIN(&c, s, DS_CAPTURE_GLOBAL);
        for (uint64_t n = 0; n <= i; n++)
            fold(s, h, 10 * i + n);
        kept[i] = end(&c);
    }
    for (uint64_t i = 4; i-- > 0;) {
        launch(kept[i], s, 1);
        for (uint64_t n = 0; n <= i; n++)
            expected = fold_host(expected, 10 * i + n);
        ok(ds_graph_destroy(kept[i]));
    }
    assert_true(*h == expected);
    ok(ds_stream_destroy(s));
}

/* ---- events of captures that are over ---- */

/* to be probed: P7 */
static void test_an_event_of_an_ended_capture_is_refused_until_recorded(void **state) {
    (void)state;
    ds_stream s = made(0), t = made(0);
    for (int failed = 0; failed < 2; failed++) {
        cap c = { 0 };
        double ms = 7;
        ds_event e = event_of(DS_EVENT_TIMING), good = event_of(DS_EVENT_TIMING);
        ok(ds_event_record(e, s)); /* what it stood for before is gone */
        ok(ds_event_record(good, s));
        ok(ds_event_synchronize(good));
        BEGIN(&c, s, DS_CAPTURE_GLOBAL);
        fold(s, word(1), 2);
        ok(ds_event_record(e, s));
        if (failed) {
            SPOILS(&c, ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
            end_invalid(&c);
        } else
            end_and_launch(&c, 1);
        refused(ds_event_query(e), DS_ERR_CAPTURED_EVENT);
        refused(ds_event_synchronize(e), DS_ERR_CAPTURED_EVENT);
        refused(ds_event_synchronize_for(e, 1000), DS_ERR_CAPTURED_EVENT);
        refused(ds_stream_wait_event(t, e), DS_ERR_CAPTURED_EVENT);
        refused(ds_stream_wait_event_external(t, e), DS_ERR_CAPTURED_EVENT);
        refused(ds_event_get_elapsed_ms(good, e, &ms), DS_ERR_CAPTURED_EVENT);
        assert_true(ms == 0);
        expect_usable(t); /* nothing was put on it, and it was not forked */
        ok(ds_event_record(e, s));
        ok(ds_stream_wait_event(t, e));
        ok(ds_event_synchronize(e));
        ok(ds_event_query(e));
        ok(ds_event_get_elapsed_ms(good, e, &ms));
        ok(ds_event_destroy(e));
        ok(ds_event_destroy(good));
    }
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* to be probed: P7 */
static void test_a_wait_for_a_stale_event_does_not_fork_a_capture(void **state) {
    cap c = { 0 }, d = { 0 };
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    fold(s, word(1), 2);
    ok(ds_event_record(e, s));
    ok(ds_graph_destroy(end(&c)));
    BEGIN(&d, t, DS_CAPTURE_RELAXED);
    SPOILS(&d, ds_stream_wait_event(t, e), DS_ERR_CAPTURED_EVENT);
    assert_int_equal(status_of(s), DS_CAPTURE_NONE);
    end_invalid(&d);
    expect_usable(t);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- the legacy stream meanwhile ---- */

/* One that takes part in the legacy stream's order. */
static ds_stream ordered(int which) {
    ds_stream s;
    if (which == 0)
        return blocking(0);
    ok(ds_stream_get_per_thread(harness_device(0), &s));
    return s;
}

static void test_the_legacy_streams_status_is_refused_in_a_capture(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        cap c = { 0 };
        uint64_t *h = word(1);
        ds_capture_status status = DS_CAPTURE_ACTIVE;
        ds_capture_info info;
        ds_stream s = ordered(i), legacy = legacy_of(0);
        BEGIN(&c, s, DS_CAPTURE_GLOBAL);
        fold(s, h, 2);
        KEEPS(&c, ds_capture_get_status(legacy, &status), DS_ERR_CAPTURE_IMPLICIT);
        assert_int_equal(status, 0);
        KEEPS(&c, ds_capture_get_info(legacy, &info), DS_ERR_CAPTURE_IMPLICIT);
        assert_int_equal(info.status, DS_CAPTURE_NONE);
        if (harness_device_count() > 1)
            assert_int_equal(status_of(legacy_of(1)), DS_CAPTURE_NONE);
        end_and_launch(&c, 1);
        assert_true(*h == fold_host(1, 2));
        assert_int_equal(status_of(legacy), DS_CAPTURE_NONE);
        if (i == 0)
            ok(ds_stream_destroy(s));
    }
}

/* to be probed: P10 */
static void test_a_legacy_stream_call_invalidates_a_blocking_capture(void **state) {
    uint64_t *h = word(1), *d = device_words(0, 8), *from = pinned(8);
    fold_args a = { h, 2 };
    payload p = { 0 };
    (void)state;
    ds_kernel k = harness_fold_kernel();
    ds_event e = event_of(0), recorded = event_of(0);
    ds_stream legacy = legacy_of(0), outside = made(0);
    ok(ds_event_record(recorded, outside));
    for (int i = 0; i < 10; i++) {
        cap c = { 0 };
        ds_stream s = ordered(i % 2);
        BEGIN(&c, s, DS_CAPTURE_RELAXED);
        fold(s, word(1), 2);
        const ds_result no = DS_ERR_CAPTURE_IMPLICIT;
        switch (i) {
        case 0:
            SPOILS(&c, ds_kernel_launch(k, 1, &a, sizeof a, legacy), DS_ERR_CAPTURE_IMPLICIT);
            break;
        case 1:
            SPOILS(&c, ds_fill(d, 0, 4, 4, legacy), DS_ERR_CAPTURE_IMPLICIT);
            break;
        case 2:
            SPOILS(&c, ds_copy(d, from, 64, legacy), DS_ERR_CAPTURE_IMPLICIT);
            break;
        case 3:
            SPOILS(&c, ds_stream_launch_host_func(legacy, payload_run, &p, payload_destroy), no);
            break;
        case 4:
            SPOILS(&c, ds_event_record(e, legacy), DS_ERR_CAPTURE_IMPLICIT);
            break;
        case 5:
            SPOILS(&c, ds_stream_wait_event(legacy, recorded), DS_ERR_CAPTURE_IMPLICIT);
            break;
        case 6:
            SPOILS(&c, ds_stream_synchronize(legacy), DS_ERR_CAPTURE_IMPLICIT);
            break;
        case 7:
            SPOILS(&c, ds_stream_query(legacy), DS_ERR_CAPTURE_IMPLICIT);
            break;
        case 8:
            SPOILS(&c, ds_stream_synchronize_for(legacy, 1000), DS_ERR_CAPTURE_IMPLICIT);
            break;
        default:
            SPOILS(&c, ds_stream_wait_stream(legacy, outside), DS_ERR_CAPTURE_IMPLICIT);
            break;
        }
        end_invalid(&c);
        expect_usable(s);
        expect_usable(legacy);
        if (i % 2 == 0)
            ok(ds_stream_destroy(s));
    }
    assert_int_equal(p.ran, 0);
    assert_int_equal(p.destroyed, 1);
    assert_true(*h == 1);
    ok(ds_event_query(e));
    ok(ds_event_destroy(e));
    ok(ds_event_destroy(recorded));
    ok(ds_stream_destroy(outside));
    ok(ds_device_free(d));
    ok(ds_pinned_free(from));
}

/* to be probed: P10 */
static void test_the_legacy_stream_works_in_a_non_blocking_capture(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), legacy = legacy_of(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    fold(legacy, k, 3);
    ok(ds_event_record(e, legacy));
    ok(ds_stream_synchronize(legacy));
    ok(ds_stream_query(legacy));
    ok(ds_event_synchronize(e));
    assert_true(*k == fold_host(1, 3) && *h == 1);
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void test_another_devices_legacy_stream_works_in_a_capture(void **state) {
    cap c = { 0 };
    (void)state;
    two_devices();
    ds_stream s = blocking(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, word(1), 2);
    expect_usable(legacy_of(1));
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_stream_destroy(s));
}

/* ---- modes ---- */

typedef struct neighbour {
    ds_capture_mode mode; /* that it takes for itself */
    ds_result alloc, exchanged;
} neighbour;

static void *allocate_elsewhere(void *user) {
    neighbour *n = user;
    void *p = NULL;
    ds_capture_mode mode = n->mode;
    n->exchanged = ds_capture_exchange_mode(&mode);
    /* a thread begins with global */
    if (mode != DS_CAPTURE_GLOBAL)
        n->exchanged = DS_ERR_ILLEGAL_STATE;
    n->alloc = ds_device_alloc(harness_device(0), 64, &p);
    ok_thread(ds_capture_exchange_mode(&mode));
    if (mode != n->mode)
        n->exchanged = DS_ERR_ILLEGAL_STATE;
    mode = DS_CAPTURE_RELAXED;
    ok_thread(ds_capture_exchange_mode(&mode));
    ok_thread(ds_device_free(p));
    return NULL;
}

/* to be probed: P11 */
static void test_other_threads_may_allocate_in_non_global_captures(void **state) {
    (void)state;
    ds_stream s = made(0);
    for (int i = 0; i < 2; i++) {
        neighbour n = { .mode = DS_CAPTURE_GLOBAL };
        cap c = { 0 };
        uint64_t *h = word(1);
        BEGIN(&c, s, i ? DS_CAPTURE_THREAD_LOCAL : DS_CAPTURE_RELAXED);
        fold(s, h, 2);
        join(spawn(allocate_elsewhere, &n));
        expect_result(n.alloc, DS_OK, "ds_device_alloc");
        expect_result(n.exchanged, DS_OK, "ds_capture_exchange_mode");
        assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
        end_and_launch(&c, 1);
        assert_true(*h == fold_host(1, 2));
    }
    ok(ds_stream_destroy(s));
}

/* to be probed: P11 P12 */
static void test_a_global_capture_forbids_allocation_in_global_threads(void **state) {
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    (void)state;
    ds_stream s = made(0);
    for (int i = 0; i < 3; i++) {
        neighbour n = { .mode = modes[i] };
        cap c = { 0 };
        BEGIN(&c, s, DS_CAPTURE_GLOBAL);
        fold(s, word(1), 2);
        join(spawn(allocate_elsewhere, &n));
        expect_result(n.exchanged, DS_OK, "ds_capture_exchange_mode");
        if (modes[i] == DS_CAPTURE_GLOBAL) {
            expect_result(n.alloc, DS_ERR_CAPTURE_UNSUPPORTED, "ds_device_alloc");
            c.call = "ds_device_alloc()";
            assert_int_equal(status_of(s), DS_CAPTURE_INVALIDATED);
            ds_graph g;
            refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_INVALIDATED);
            expect_capture_named(&c, ds_error_get_last(), "ds_capture_end");
            expect_in(ds_error_get_last(), "ds_device_alloc", "ds_capture_end");
        } else {
            expect_result(n.alloc, DS_OK, "ds_device_alloc");
            assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
            ok(ds_graph_destroy(end(&c)));
        }
        expect_usable(s);
    }
    ok(ds_stream_destroy(s));
}

/* to be probed: P11 P12 */
static void test_allocating_in_the_capturing_thread_invalidates_it(void **state) {
    static const ds_capture_mode modes[] = { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL,
                                             DS_CAPTURE_RELAXED };
    (void)state;
    ds_stream s = made(0);
    ds_device d = harness_device(0);
    for (int m = 0; m < 3; m++)
        for (int i = 0; i < 2; i++) {
            cap c = { 0 };
            void *p = &c;
            BEGIN(&c, s, modes[m]);
            if (modes[m] == DS_CAPTURE_RELAXED) {
                ok(i ? ds_pinned_alloc(64, &p) : ds_device_alloc(d, 64, &p));
                assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
                ok(ds_graph_destroy(end(&c)));
                ok(i ? ds_pinned_free(p) : ds_device_free(p));
                continue;
            }
            if (i)
                SPOILS(&c, ds_pinned_alloc(64, &p), DS_ERR_CAPTURE_UNSUPPORTED);
            else
                SPOILS(&c, ds_device_alloc(d, 64, &p), DS_ERR_CAPTURE_UNSUPPORTED);
            assert_null(p);
            end_invalid(&c);
            expect_usable(s);
        }
    ok(ds_stream_destroy(s));
}

/* to be probed: P11 P12 */
static void test_memory_whose_release_a_capture_refuses_is_still_there(void **state) {
    cap c = { 0 };
    static char ordinary[4096];
    uint64_t *d = device_words(0, 8), *from = pinned(8);
    ds_pointer_info info;
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    SPOILS(&c, ds_device_free(d), DS_ERR_CAPTURE_UNSUPPORTED);
    end_invalid(&c);
    c = (cap){ 0 };
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    SPOILS(&c, ds_pinned_free(from), DS_ERR_CAPTURE_UNSUPPORTED);
    end_invalid(&c);
    ok(ds_pinned_register(ordinary, sizeof ordinary));
    c = (cap){ 0 };
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    SPOILS(&c, ds_pinned_unregister(ordinary), DS_ERR_CAPTURE_UNSUPPORTED);
    end_invalid(&c);
    ok(ds_pointer_get_info(d, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    ok(ds_pointer_get_info(from, &info));
    assert_int_equal(info.kind, DS_MEMORY_PINNED);
    ok(ds_pointer_get_info(ordinary, &info));
    assert_int_equal(info.kind, DS_MEMORY_REGISTERED);
    ok(ds_copy(d, from, 64, s));
    ok(ds_stream_synchronize(s));
    ok(ds_pinned_unregister(ordinary));
    ok(ds_device_free(d));
    ok(ds_pinned_free(from));
    ok(ds_stream_destroy(s));
}

static void test_a_relaxed_thread_may_allocate_in_its_own_capture(void **state) {
    cap c = { 0 };
    ds_capture_mode mode = DS_CAPTURE_RELAXED;
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(mode, DS_CAPTURE_GLOBAL);
    uint64_t *d = device_words(0, 8), *from = pinned(8);
    ok(ds_copy(d, from, 64, s));
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(mode, DS_CAPTURE_RELAXED);
    fold(s, h, 2);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_device_free(d));
    ok(ds_pinned_free(from));
    ok(ds_stream_destroy(s));
}

static void test_a_threads_mode_is_exchanged_and_an_unknown_one_refused(void **state) {
    ds_capture_mode mode = DS_CAPTURE_THREAD_LOCAL;
    (void)state;
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(mode, DS_CAPTURE_GLOBAL);
    mode = (ds_capture_mode)3;
    refused(ds_capture_exchange_mode(&mode), DS_ERR_INVALID_VALUE);
    mode = DS_CAPTURE_RELAXED;
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(mode, DS_CAPTURE_THREAD_LOCAL);
    mode = DS_CAPTURE_GLOBAL;
    ok(ds_capture_exchange_mode(&mode));
    assert_int_equal(mode, DS_CAPTURE_RELAXED);
}

/* to be probed: P11 */
static void test_streams_and_events_are_created_during_a_global_capture(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_event outside = event_of(0);
    ds_stream s = made(0), busy = made(0);
    ok(ds_event_record(outside, busy));
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ds_stream fresh = made(0);
    ds_event e = event_of(0);
    ok(ds_event_synchronize(outside));
    ok(ds_event_query(outside));
    fold(busy, k, 3);
    ok(ds_event_record(e, busy));
    ok(ds_event_synchronize(e));
    ok(ds_stream_synchronize(busy));
    assert_true(*k == fold_host(1, 3));
    ok(ds_stream_wait_event(fresh, e));
    fold(s, h, 2);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(fresh));
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    end_and_launch(&c, 10);
    for (int i = 0; i < 10; i++)
        *k = fold_host(i ? *k : 1, 2);
    assert_true(*h == *k);
    ok(ds_event_destroy(outside));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(busy));
}

/* ---- ordinary host memory ---- */

static uint64_t ordinary[8], back[8];

static void test_pageable_memory_in_a_captured_copy_is_refused(void **state) {
    cap c = { 0 };
    uint64_t *d = device_words(0, 8), *h = word(1);
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    KEEPS(&c, ds_copy(d, ordinary, 64, s), DS_ERR_CAPTURE_UNSUPPORTED);
    KEEPS(&c, ds_copy(ordinary, d, 64, s), DS_ERR_CAPTURE_UNSUPPORTED);
    KEEPS(&c, ds_copy(back, ordinary, 64, s), DS_ERR_CAPTURE_UNSUPPORTED);
    KEEPS(&c, ds_copy_with(d, ordinary, 64, 0, s), DS_ERR_CAPTURE_UNSUPPORTED);
    KEEPS(&c, ds_copy_2d(d, 16, ordinary, 16, 8, 2, s), DS_ERR_CAPTURE_UNSUPPORTED);
    KEEPS(&c, ds_fill(ordinary, 1, 4, 4, s), DS_ERR_CAPTURE_UNSUPPORTED);
    KEEPS(&c, ds_fill_2d(ordinary, 16, 1, 4, 2, 2, s), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(dependency_count(s), 0);
    fold(s, h, 2);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 1);
    launch(g, s, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
}

/* to be probed: P19 */
static void test_pageable_memory_declared_stable_is_read_at_each_launch(void **state) {
    cap c = { 0 };
    uint64_t *d = device_words(0, 8);
    (void)state;
    ds_stream s = made(0);
    memset(back, 0, sizeof back);
    ordinary[7] = 1;
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_copy_with(d, ordinary, 64, DS_COPY_HOST_STABLE, s));
    ordinary[7] = 2;
    ok(ds_copy_with(back, d, 64, DS_COPY_HOST_STABLE, s));
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 2);
    assert_true(back[7] == 0);
    ordinary[7] = 3;
    launch(g, s, 1);
    assert_true(back[7] == 3);
    ordinary[7] = 4;
    launch(g, s, 1);
    assert_true(back[7] == 4);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
}

static void test_a_copy_with_flags_is_a_plain_copy_outside_of_captures(void **state) {
    uint64_t *d = device_words(0, 8);
    (void)state;
    ds_stream s = made(0);
    for (unsigned flags = 0; flags < 2; flags++) {
        ordinary[0] = 77 + flags;
        ok(ds_copy_with(d, ordinary, 64, flags, s));
        ok(ds_copy_with(back, d, 64, flags, s));
        ok(ds_stream_synchronize(s));
        assert_true(back[0] == 77 + flags);
    }
    refused(ds_copy_with(d, ordinary, 64, 2, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_with(d, NULL, 64, 0, s), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
}

static void test_registered_memory_is_captured_like_pinned_memory(void **state) {
    static uint64_t registered[512];
    cap c = { 0 };
    uint64_t *d = device_words(0, 8), *to = pinned(8);
    (void)state;
    ds_stream s = made(0);
    ok(ds_pinned_register(registered, sizeof registered));
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_copy(d, registered, 64, s));
    ok(ds_copy(to, d, 64, s));
    registered[1] = 5;
    end_and_launch(&c, 1);
    assert_true(to[1] == 5);
    ok(ds_pinned_unregister(registered));
    ok(ds_stream_destroy(s));
    ok(ds_device_free(d));
    ok(ds_pinned_free(to));
}

static void test_copies_between_drivers_in_a_capture_are_refused(void **state) {
    uint64_t *d = device_words(0, 8);
    void *on_cpu;
    (void)state;
    ok(ds_device_alloc(ds_cpu(0), 64, &on_cpu));
    for (int i = 0; i < 2; i++) {
        cap c = { 0 };
        ds_stream s = made(0);
        if (i) {
            ok(ds_stream_destroy(s));
            ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
        }
        BEGIN(&c, s, DS_CAPTURE_RELAXED);
        KEEPS(&c, ds_copy(d, on_cpu, 64, s), DS_ERR_CAPTURE_UNSUPPORTED);
        KEEPS(&c, ds_copy(on_cpu, d, 64, s), DS_ERR_CAPTURE_UNSUPPORTED);
        assert_int_equal(dependency_count(s), 0);
        ok(ds_graph_destroy(end(&c)));
        expect_usable(s);
        ok(ds_stream_destroy(s));
    }
    ok(ds_device_free(on_cpu));
    ok(ds_device_free(d));
}

/* ---- external events ---- */

static void test_an_event_recorded_by_a_graph_is_awaited_outside(void **state) {
    cap c = { 0 };
    gate g = { 0 };
    uint64_t *h = word(1);
    ds_graph_exec x;
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    gate_close(s, &g);
    fold(s, h, 2);
    ok(ds_event_record_external(e, s));
    ok(ds_event_query(e)); /* is not the capture's */
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    ds_graph graph = end(&c);
    ok(ds_event_query(e));
    ok(ds_graph_instantiate(graph, NULL, &x));
    ok(ds_graph_launch(x, s));
    assert_int_equal(ds_event_query(e), DS_NOT_READY);
    ok(ds_stream_wait_event(t, e));
    fold(t, h, 3);
    gate_wait_entered(&g);
    assert_int_equal(ds_stream_query(t), DS_NOT_READY);
    gate_open(&g);
    ok(ds_event_synchronize(e));
    ok(ds_stream_synchronize(t));
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_graph_launch(x, s));
    ok(ds_event_synchronize(e));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 2));
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(graph));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_graph_waits_for_the_record_made_before_its_launch(void **state) {
    cap c = { 0 };
    gate g = { 0 };
    uint64_t *h = word(1);
    ds_graph_exec x;
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_stream_wait_event_external(s, e));
    fold(s, h, 2);
    ds_graph graph = end(&c);
    assert_int_equal(node_count(graph), 2);
    ok(ds_graph_instantiate(graph, NULL, &x));
    ok(ds_graph_launch(x, s)); /* never recorded: does not wait */
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(1, 2));
    gate_close(t, &g);
    fold(t, h, 3);
    ok(ds_event_record(e, t));
    ok(ds_graph_launch(x, s));
    gate_wait_entered(&g);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 2));
    ok(ds_stream_synchronize(t));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(graph));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_external_records_and_waits_are_plain_outside_captures(void **state) {
    gate g = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    gate_close(s, &g);
    fold(s, h, 2);
    ok(ds_event_record_external(e, s));
    ok(ds_stream_wait_event_external(t, e));
    fold(t, h, 3);
    assert_int_equal(ds_event_query(e), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(t));
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    refused(ds_event_record_external((ds_event){ 0 }, s), DS_ERR_INVALID_HANDLE);
    refused(ds_event_record_external(e, (ds_stream){ 0 }), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_wait_event_external(s, (ds_event){ 0 }), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_wait_event_external((ds_stream){ 0 }, e), DS_ERR_INVALID_HANDLE);
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- dependencies by hand ---- */

static void test_nodes_that_are_set_aside_need_no_join(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ds_graph_node first = last_node(s);
    follow(t, s);
    fold(t, k, 3);
    ok(ds_capture_update_dependencies(t, &first, 1, DS_CAPTURE_SET_DEPENDENCIES));
    assert_int_equal(last_node(t).id, first.id);
    fold(s, h, 4);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 3);
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 4) && *k == fold_host(1, 3));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_dependencies_are_added_and_set(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    ds_capture_info info;
    ds_graph_node by_hand;
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_capture_get_info(s, &info));
    fold(s, h, 2);
    ds_graph_node first = last_node(s);
    ds_node_desc desc = fold_node(h, 3);
    /* into the graph that is being made */
    ok(ds_graph_add(info.graph, &desc, &first, 1, &by_hand));
    assert_int_equal(last_node(s).id, first.id);
    ok(ds_capture_update_dependencies(s, &by_hand, 1, DS_CAPTURE_ADD_DEPENDENCIES));
    assert_int_equal(dependency_count(s), 2);
    /* is there already */
    ok(ds_capture_update_dependencies(s, &by_hand, 1, DS_CAPTURE_ADD_DEPENDENCIES));
    assert_int_equal(dependency_count(s), 2);
    ok(ds_capture_update_dependencies(s, &by_hand, 1, DS_CAPTURE_SET_DEPENDENCIES));
    assert_int_equal(last_node(s).id, by_hand.id);
    fold(s, h, 4);
    ds_graph_node third = last_node(s);
    ok(ds_capture_update_dependencies(s, NULL, 0, DS_CAPTURE_SET_DEPENDENCIES));
    assert_int_equal(dependency_count(s), 0);
    ok(ds_capture_update_dependencies(s, NULL, 0, DS_CAPTURE_ADD_DEPENDENCIES));
    assert_int_equal(dependency_count(s), 0);
    ok(ds_capture_update_dependencies(s, &third, 1, DS_CAPTURE_ADD_DEPENDENCIES));
    fold(s, h, 5);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 4);
    assert_true(has_edge(g, first, by_hand) && has_edge(g, by_hand, third) &&
                !has_edge(g, first, third));
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(fold_host(fold_host(1, 2), 3), 4), 5));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_dependencies_are_refused_where_they_do_not_belong(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    ds_graph other;
    ds_graph_node foreign, nodes[2];
    (void)state;
    ds_stream s = made(0), idle = made(0);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &other));
    ds_node_desc desc = fold_node(h, 3);
    ok(ds_graph_add(other, &desc, NULL, 0, &foreign));
    refused(ds_capture_update_dependencies(idle, &foreign, 1, DS_CAPTURE_ADD_DEPENDENCIES),
            DS_ERR_ILLEGAL_STATE);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    nodes[0] = last_node(s);
    nodes[1] = foreign;
    refused(ds_capture_update_dependencies(s, &foreign, 1, DS_CAPTURE_SET_DEPENDENCIES),
            DS_ERR_INVALID_VALUE);
    refused(ds_capture_update_dependencies(s, nodes, 2, DS_CAPTURE_SET_DEPENDENCIES),
            DS_ERR_INVALID_VALUE);
    nodes[1].id = 0;
    refused(ds_capture_update_dependencies(s, nodes, 2, DS_CAPTURE_ADD_DEPENDENCIES),
            DS_ERR_INVALID_VALUE);
    assert_int_equal(last_node(s).id, nodes[0].id); /* nothing of it has happened */
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_graph_destroy(other));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(idle));
}

static void test_the_graph_of_an_open_capture_cannot_be_destroyed(void **state) {
    cap c = { 0 };
    ds_capture_info info;
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, word(1), 2);
    ok(ds_capture_get_info(s, &info));
    KEEPS(&c, ds_graph_destroy(info.graph), DS_ERR_ILLEGAL_STATE);
    ok(ds_graph_destroy(end(&c)));
    refused(ds_graph_destroy(info.graph), DS_ERR_INVALID_HANDLE);
    ok(ds_stream_destroy(s));
}

static void test_the_graph_of_a_failed_capture_is_gone(void **state) {
    cap c = { 0 };
    ds_capture_info info;
    size_t count;
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, word(1), 2);
    ok(ds_capture_get_info(s, &info));
    SPOILS(&c, ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
    end_invalid(&c);
    refused(ds_graph_get_nodes(info.graph, NULL, 0, &count), DS_ERR_INVALID_HANDLE);
    ok(ds_stream_destroy(s));
}

/* ---- into a graph that is there ---- */

static void test_a_capture_goes_on_in_a_graph_that_is_there(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    ds_capture_info info;
    (void)state;
    harness_warm_up();
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ds_graph_node first = last_node(s);
    ds_graph g = end(&c);
    harness_watch(t);
    ok(ds_capture_begin_to_graph(t, g, &first, 1, DS_CAPTURE_THREAD_LOCAL));
    c.begun = __LINE__ - 1;
    ok(ds_capture_get_info(t, &info));
    assert_int_equal(info.status, DS_CAPTURE_ACTIVE);
    assert_int_equal(info.mode, DS_CAPTURE_THREAD_LOCAL);
    assert_int_equal(info.graph.id, g.id);
    assert_int_equal(info.dependency_count, 1);
    assert_int_equal(info.begun.line, c.begun);
    assert_int_equal(last_node(t).id, first.id);
    fold(t, h, 3);
    c = (cap){ .s = t };
    assert_int_equal(end(&c).id, g.id);
    harness_watch(s);
    ok(ds_capture_begin_to_graph(s, g, NULL, 0, DS_CAPTURE_GLOBAL)); /* beside what is there */
    fold(s, k, 4);
    c.s = s;
    assert_int_equal(end(&c).id, g.id);
    assert_int_equal(node_count(g), 3);
    assert_int_equal(edge_count(g), 1);
    launch(g, s, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 3) && *k == fold_host(1, 4));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_what_a_failed_capture_added_to_a_graph_stays_there(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    ds_capture_info info;
    ds_graph g;
    (void)state;
    harness_warm_up();
    ds_stream s = made(0);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    harness_watch(s);
    ok(ds_capture_begin_to_graph(s, g, NULL, 0, DS_CAPTURE_GLOBAL));
    c.begun = __LINE__ - 1;
    ok(ds_capture_get_info(s, &info));
    c.s = s;
    c.id = info.id;
    fold(s, h, 2);
    SPOILS(&c, ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
    end_invalid(&c);
    assert_int_equal(node_count(g), 1);
    if (harness_is_cpu()) {
        launch(g, s, 1);
        assert_true(*h == fold_host(1, 2));
    } else { /* H200, driver 580 */
        ds_graph_exec none;
        refused(ds_graph_instantiate(g, NULL, &none), DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_error_get_last(), "into which a capture has failed"));
        expect_usable(s);
    }
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_capture_into_a_graph_checks_the_graph_and_its_nodes(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    ds_graph g, other;
    ds_graph_node node, foreign;
    (void)state;
    ds_stream s = made(0), busy = made(0);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &other));
    ds_node_desc desc = fold_node(h, 3);
    ok(ds_graph_add(g, &desc, NULL, 0, &node));
    ok(ds_graph_add(other, &desc, NULL, 0, &foreign));
    refused(ds_capture_begin_to_graph(s, (ds_graph){ 0 }, NULL, 0, DS_CAPTURE_GLOBAL),
            DS_ERR_INVALID_HANDLE);
    refused(ds_capture_begin_to_graph((ds_stream){ 0 }, g, NULL, 0, DS_CAPTURE_GLOBAL),
            DS_ERR_INVALID_HANDLE);
    refused(ds_capture_begin_to_graph(s, g, &foreign, 1, DS_CAPTURE_GLOBAL), DS_ERR_INVALID_VALUE);
    refused(ds_capture_begin_to_graph(s, g, NULL, 1, DS_CAPTURE_GLOBAL), DS_ERR_INVALID_VALUE);
    refused(ds_capture_begin_to_graph(s, g, &node, 1, (ds_capture_mode)9), DS_ERR_INVALID_VALUE);
    refused(ds_capture_begin_to_graph(legacy_of(0), g, &node, 1, DS_CAPTURE_GLOBAL),
            DS_ERR_CAPTURE_UNSUPPORTED);
    assert_int_equal(status_of(s), DS_CAPTURE_NONE);
    BEGIN(&c, busy, DS_CAPTURE_RELAXED);
    refused(ds_capture_begin_to_graph(busy, g, &node, 1, DS_CAPTURE_RELAXED), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(status_of(busy), DS_CAPTURE_ACTIVE);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_graph_destroy(other));
    refused(ds_capture_begin_to_graph(s, other, NULL, 0, DS_CAPTURE_GLOBAL), DS_ERR_INVALID_HANDLE);
    assert_int_equal(node_count(g), 1);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(busy));
}

/* ---- streams that go ---- */

/* to be probed: P14 */
static void test_destroying_the_stream_where_a_capture_began_ends_it(void **state) {
    cap c = { 0 };
    payload p = { 0 };
    uint64_t *h = word(1);
    ds_graph g;
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ok(ds_stream_launch_host_func(s, payload_run, &p, payload_destroy));
    follow(t, s);
    ok(ds_stream_destroy(s));
    refused(ds_capture_end(s, &g), DS_ERR_INVALID_HANDLE);
    expect_usable(t);
    await_destroyed(&p, 1);
    uint64_t *d = device_words(0, 1); /* no capture forbids it */
    ok(ds_device_free(d));
    ok(ds_device_synchronize(harness_device(0)));
    assert_true(*h == 1);
    assert_int_equal(p.ran, 0);
    ok(ds_stream_destroy(t));
}

/* to be probed: R14. NVIDIA's sample graphMemoryNodes does this. */
static void test_a_joined_stream_may_be_destroyed_in_the_capture(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0), u = made(0), idle = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    follow(t, s);
    follow(idle, s);
    fold(t, h, 3);
    follow(u, t); /* t is joined by another fork */

    ok(ds_stream_destroy(idle));
    ok(ds_stream_destroy(t));
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    fold(u, h, 4);
    follow(s, u);
    ok(ds_stream_destroy(u));
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    fold(s, h, 5);

    end_and_launch(&c, 1);
    assert_true(*h == fold_host(fold_host(fold_host(fold_host(1, 2), 3), 4), 5));
    ok(ds_stream_destroy(s));
}

static void test_destroying_a_joined_stream_keeps_the_join_rule(void **state) {
    cap c = { 0 };
    ds_graph g;
    (void)state;
    ds_stream s = made(0), t = made(0), u = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    follow(t, s);
    fold(t, word(1), 2);
    follow(u, t);
    ok(ds_stream_destroy(t));

    refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_UNJOINED); /* nothing came back from u */

    ok(ds_stream_destroy(u));
    ok(ds_stream_destroy(s));
}

/* Work that comes after the join is not joined. */
static void test_destroying_a_stream_with_work_behind_its_join(void **state) {
    cap c = { 0 };
    ds_graph g;
    uint64_t *h = word(1);
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    follow(t, s);
    fold(t, h, 2);
    follow(s, t);
    fold(t, h, 3);

    ok(ds_stream_destroy(t));

    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_UNJOINED);
    ok(ds_stream_destroy(s));
}

/* docs/gpu, P14: the end of the capture reports it */
static void test_destroying_a_forked_stream_does_not_join_it(void **state) {
    cap c = { 0 };
    ds_graph g;
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    follow(t, s);
    fold(t, word(1), 2);
    ok(ds_stream_destroy(t));
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    refused(ds_capture_end(s, &g), DS_ERR_CAPTURE_UNJOINED);
    assert_non_null(strstr(ds_error_get_last(), "was not joined"));
    expect_usable(s);
    ok(ds_stream_destroy(s));
}

/* An event that was recorded on the stream joins its work after its end. */
static void test_work_of_a_destroyed_stream_is_joined_by_an_event(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    follow(t, s);
    fold(t, h, 2);
    ok(ds_event_record(e, t));
    ok(ds_stream_destroy(t));
    ok(ds_stream_wait_event(s, e));
    fold(s, h, 3);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(fold_host(1, 2), 3));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
}

static void *fork_own_stream(void *user) {
    errand *e = user;
    ds_stream own;
    ok_thread(ds_stream_get_per_thread(harness_device(0), &own));
    ok_thread(ds_stream_wait_stream(own, e->s));
    fold(own, (uint64_t *)(uintptr_t)e->graph.id, 3);
    ok_thread(ds_stream_wait_stream(e->s, own));
    return NULL;
}

static void test_a_threads_own_stream_is_forked_and_joined(void **state) {
    errand e = { 0 };
    cap c = { 0 };
    uint64_t *h = word(1);
    (void)state;
    e.s = made(0);
    e.graph.id = (uintptr_t)h;
    BEGIN(&c, e.s, DS_CAPTURE_THREAD_LOCAL);
    fold(e.s, h, 2);
    fork_own_stream(&e);
    fold(e.s, h, 4);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 4));
    ok(ds_stream_destroy(e.s));
}

/* ---- a function that captures ---- */

typedef struct job {
    int what, calls;
    uint64_t *h;
    ds_stream other;
    ds_result seen;
} job;

enum { JOB_FOLDS, JOB_GIVES_UP, JOB_SPOILS, JOB_FORKS, JOB_ALLOCATES, JOB_NEIGHBOUR };

static ds_result do_job(ds_stream s, void *user) {
    job *j = user;
    neighbour n = { .mode = DS_CAPTURE_GLOBAL };
    void *p = NULL;
    j->calls++;
    fold(s, j->h, 2);
    switch (j->what) {
    case JOB_GIVES_UP: /* not for the reason that another call has had */
        DS_IGNORE(ds_stream_destroy((ds_stream){ 0 }));
        return DS_ERR_LIMIT_EXCEEDED;
    case JOB_SPOILS:
        j->seen = ds_stream_query(s);
        return DS_OK;
    case JOB_FORKS:
        follow(j->other, s);
        fold(j->other, j->h, 3);
        return DS_OK;
    case JOB_ALLOCATES:
        return j->seen = ds_device_alloc(harness_device(0), 64, &p);
    case JOB_NEIGHBOUR:
        join(spawn(allocate_elsewhere, &n));
        return n.alloc;
    default:
        return DS_OK;
    }
}

static void test_a_function_is_captured(void **state) {
    job j = { .what = JOB_FOLDS, .h = word(1) };
    ds_graph g;
    (void)state;
    harness_warm_up();
    ds_stream s = made(0);
    ok(ds_capture_function(s, do_job, &j, &g));
    assert_int_equal(j.calls, 1);
    assert_int_equal(status_of(s), DS_CAPTURE_NONE);
    assert_true(*j.h == 1);
    assert_int_equal(node_count(g), 1);
    launch(g, s, 2);
    assert_true(*j.h == fold_host(fold_host(1, 2), 2));
    ok(ds_graph_destroy(g));
    j.what = JOB_NEIGHBOUR; /* other threads are left alone */
    ok(ds_capture_function(s, do_job, &j, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_function_that_fails_leaves_the_stream_as_it_was(void **state) {
    static const struct {
        int what;
        ds_result result;
        const char *sentence;
    } cases[] = {
        { JOB_GIVES_UP, DS_ERR_LIMIT_EXCEEDED,
          "ds_capture_function: the captured function returned DS_ERR_LIMIT_EXCEEDED" },
        { JOB_SPOILS, DS_ERR_CAPTURE_INVALIDATED, "ds_capture_function" },
        { JOB_FORKS, DS_ERR_CAPTURE_UNJOINED, "ds_capture_function" },
        { JOB_ALLOCATES, DS_ERR_CAPTURE_UNSUPPORTED, "ds_device_alloc" },
    };

    (void)state;
    harness_warm_up();
    ds_stream s = made(0), other = made(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job j = { .what = cases[i].what, .h = word(1), .other = other };
        ds_graph g = { 7 };
        ds_result r = ds_capture_function(s, do_job, &j, &g);
        expect_result(r, cases[i].result, "ds_capture_function");
        expect_in(ds_error_get_last(), cases[i].sentence, "ds_capture_function");
        assert_int_equal(g.id, 0);
        assert_int_equal(j.calls, 1);
        if (j.what == JOB_SPOILS || j.what == JOB_ALLOCATES)
            assert_int_equal(j.seen, DS_ERR_CAPTURE_UNSUPPORTED);
        expect_usable(s);
        expect_usable(other);
        assert_true(*j.h == 1);
    }
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
}

/* Ends devstream, and starts it again if the program wants that. */
static ds_result shut_down(ds_stream s, void *restarts) {
    (void)s;
    ds_result r = ds_shutdown(); /* it reports the capture on the GPU driver */
    if (*(int *)restarts)
        ok(ds_device_synchronize(harness_device(0)));
    return r < 0 && r != DS_ERR_CAPTURE_UNSUPPORTED ? r : DS_OK;
}

static void test_a_captured_function_may_shut_devstream_down(void **state) {
    (void)state;
    for (int restarts = 0; restarts < 2; restarts++) {
        harness_restart(NULL);
        ds_graph g = { 7 };
        ds_stream s = made(0);
        refused(ds_capture_function(s, shut_down, &restarts, &g), DS_ERR_INVALID_HANDLE);
        expect_in(ds_error_get_last(), "the captured function called ds_shutdown",
                  "ds_capture_function");
        assert_int_equal(g.id, 0);
        assert_int_equal(ds_is_initialized(), restarts);
    }
    harness_restart(NULL);
}

static void test_a_function_is_not_called_where_no_capture_can_begin(void **state) {
    job j = { .what = JOB_FOLDS, .h = word(1) };
    cap c = { 0 };
    ds_graph g = { 7 };
    (void)state;
    ds_stream s = made(0);
    refused(ds_capture_function(s, NULL, &j, &g), DS_ERR_INVALID_VALUE);
    assert_int_equal(g.id, 0);
    refused(ds_capture_function(s, do_job, &j, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_capture_function((ds_stream){ 0 }, do_job, &j, &g), DS_ERR_INVALID_HANDLE);
    refused(ds_capture_function(legacy_of(0), do_job, &j, &g), DS_ERR_CAPTURE_UNSUPPORTED);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    KEEPS(&c, ds_capture_function(s, do_job, &j, &g), DS_ERR_ILLEGAL_STATE);
    ok(ds_graph_destroy(end(&c)));
    assert_int_equal(j.calls, 0);
    ok(ds_stream_destroy(s));
}

/* ---- many ---- */

static void test_any_number_of_captures_may_be_open(void **state) {
    enum { COUNT = 40 };

    cap c[COUNT];
    ds_graph g[COUNT];
    uint64_t *h = zeroed_words(COUNT);
    ds_stream runs = made(0);
    (void)state;
    memset(c, 0, sizeof c);
    for (uint64_t i = 0; i < COUNT; i++)
        BEGIN(&c[i], made((int)i), (ds_capture_mode)(i % 3));
    for (uint64_t n = 0; n < 3; n++)
        for (uint64_t i = 0; i < COUNT; i++)
            fold(c[i].s, &h[i], i + n + 1);
    SPOILS(&c[7], ds_stream_query(c[7].s), DS_ERR_CAPTURE_UNSUPPORTED); /* one only */
    end_invalid(&c[7]);
    for (uint64_t i = 0; i < COUNT; i++)
        if (i != 7)
            g[i] = end(&c[i]);
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t expected = 0;
        ok(ds_stream_destroy(c[i].s));
        if (i == 7)
            continue;
        launch(g[i], runs, 1);
        for (uint64_t n = 0; n < 3; n++)
            expected = fold_host(expected, i + n + 1);
        assert_true(h[i] == expected);
        ok(ds_graph_destroy(g[i]));
    }
    ok(ds_stream_destroy(runs));
}

typedef struct worker {
    uint64_t *h, *k;
    int number;
} worker;

/* Captures and launches again and again, with a fork; on some threads on their own stream. */
static void *capture_repeatedly(void *user) {
    worker *w = user;
    ds_stream s, t = harness_stream(w->number, 0);
    uint64_t h = 1, k = 1;
    if (w->number % 2)
        ok_thread(ds_stream_get_per_thread(harness_device(0), &s));
    else
        s = harness_stream(0, 0);
    for (uint64_t i = 0; i < 25; i++) {
        ds_graph g;
        ds_graph_exec x;
        ds_event e;
        ok_thread(ds_capture_begin(s, (ds_capture_mode)(i % 3)));
        fold(s, w->h, i);
        ok_thread(ds_stream_wait_stream(t, s));
        fold(t, w->k, i + 1);
        ok_thread(ds_stream_wait_stream(s, t));
        fold(s, w->h, i + 2);
        ok_thread(ds_capture_end(s, &g));
        ok_thread(ds_graph_instantiate(g, NULL, &x));
        ok_thread(ds_graph_destroy(g));
        ok_thread(ds_graph_launch(x, i % 2 ? t : s));
        ok_thread(ds_stream_record_event(i % 2 ? t : s, 0, &e));
        ok_thread(ds_event_synchronize(e));
        ok_thread(ds_event_destroy(e));
        ok_thread(ds_graph_exec_destroy(x));
        h = fold_host(fold_host(h, i), i + 2);
        k = fold_host(k, i + 1);
        if (*w->h != h || *w->k != k)
            abort();
    }
    if (w->number % 2 == 0)
        ok_thread(ds_stream_destroy(s));
    ok_thread(ds_stream_destroy(t));
    return NULL;
}

static void test_threads_capture_and_launch_at_once(void **state) {
    pthread_t threads[4];
    worker w[4];
    (void)state;
    harness_warm_up();
    for (int i = 0; i < 4; i++) {
        w[i] = (worker){ word(1), word(1), i };
        threads[i] = spawn(capture_repeatedly, &w[i]);
    }
    for (int i = 0; i < 4; i++)
        join(threads[i]);
}

/* ---- graphs in captures ---- */

/* The child has the work of the executable at the launch, not that of the graph. */
static void test_a_captured_launch_has_what_was_set_and_switched_off(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    ds_graph_exec x;
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ds_graph_node off = last_node(s);
    fold(s, k, 3);
    ds_graph_node set = last_node(s);
    ds_graph inner = end(&c);
    ok(ds_graph_instantiate(inner, NULL, &x));
    ds_node_desc desc = fold_node(k, 4);
    ok(ds_graph_exec_set_node(x, set, &desc));
    ok(ds_graph_exec_set_node_enabled(x, off, 0));
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    ok(ds_graph_launch(x, s));
    fold(s, h, 5);
    ds_graph g = end(&c);
    ok(ds_graph_exec_set_node_enabled(x, off, 1)); /* the child is a copy */
    launch(g, s, 1);
    assert_true(*h == fold_host(1, 5));
    assert_true(*k == fold_host(1, 4));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(inner));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_a_launch_on_a_capturing_stream_becomes_a_child(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    ds_graph_exec x;
    ds_node_desc n;
    (void)state;
    ds_stream s = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    fold(s, h, 3);
    ds_graph inner = end(&c);
    ok(ds_graph_instantiate(inner, NULL, &x));
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 4);
    ok(ds_graph_launch(x, s));
    ds_graph_node child = last_node(s);
    fold(s, h, 5);
    assert_true(*h == 1);
    ds_graph g = end(&c);
    assert_int_equal(node_count(g), 3);
    ok(ds_graph_get_node(g, child, &n, NULL));
    assert_int_equal(n.kind, DS_NODE_CHILD);
    ok(ds_graph_exec_destroy(x)); /* the child is a copy */
    ok(ds_graph_destroy(inner));
    launch(g, s, 2);
    uint64_t expected = 1;
    for (int i = 0; i < 2; i++)
        expected = fold_host(fold_host(fold_host(fold_host(expected, 4), 2), 3), 5);
    assert_true(*h == expected);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
}

static void test_an_upload_on_a_capturing_stream_is_refused(void **state) {
    cap c = { 0 };
    ds_graph_exec x;
    ds_graph inner;
    (void)state;
    ds_stream s = made(0);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &inner));
    ok(ds_graph_instantiate(inner, NULL, &x));
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    KEEPS(&c, ds_graph_upload(x, s), DS_ERR_CAPTURE_UNSUPPORTED);
    ok(ds_graph_destroy(end(&c)));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(inner));
    ok(ds_stream_destroy(s));
}

static void test_graphs_are_made_and_launched_elsewhere_during_a_capture(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1), *k = word(1);
    ds_graph other;
    ds_graph_node n;
    (void)state;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_GLOBAL);
    fold(s, h, 2);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &other));
    ds_node_desc desc = fold_node(k, 3);
    ok(ds_graph_add(other, &desc, NULL, 0, &n));
    launch(other, t, 1);
    ok(ds_graph_destroy(other));
    assert_true(*k == fold_host(1, 3) && *h == 1);
    assert_int_equal(status_of(s), DS_CAPTURE_ACTIVE);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(1, 2));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- inside of host functions, and at the end of everything ---- */

typedef struct inner_calls {
    ds_stream s;
    ds_result begin, end, launch;
    ds_graph_exec x;
} inner_calls;

static void capture_inside(void *user) {
    inner_calls *c = user;
    ds_graph g;
    c->begin = ds_capture_begin(c->s, DS_CAPTURE_RELAXED);
    c->end = ds_capture_end(c->s, &g);
    c->launch = ds_graph_launch(c->x, c->s);
}

static void test_captures_and_launches_are_refused_in_host_functions(void **state) {
    inner_calls c = { .s = made(0) };
    ds_graph g;
    (void)state;
    ds_stream s = made(0);
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ok(ds_graph_instantiate(g, NULL, &c.x));
    ok(ds_stream_launch_host_func(s, capture_inside, &c, NULL));
    ok(ds_stream_synchronize(s));
    assert_int_equal(c.begin, DS_ERR_NOT_PERMITTED);
    assert_int_equal(c.end, DS_ERR_NOT_PERMITTED);
    assert_int_equal(c.launch, DS_ERR_NOT_PERMITTED);
    ok(ds_graph_exec_destroy(c.x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(c.s));
}

static void test_shutdown_ends_the_captures_that_are_open(void **state) {
    static payload p;
    cap c = { 0 };
    (void)state;
    p.ran = p.destroyed = 0;
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    ok(ds_stream_launch_host_func(s, payload_run, &p, payload_destroy));
    follow(t, s);
    harness_shutdown();
    await_destroyed(&p, 1);
    assert_int_equal(p.ran, 0);
    refused(ds_stream_query(s), DS_ERR_INVALID_HANDLE);
    s = made(0);
    expect_usable(s);
    ok(ds_stream_destroy(s));
}

/* A capture that another thread begins and leaves open. */
typedef struct left_capture {
    ds_stream s; /* zero: the thread's own stream */
    ds_graph g;
    ds_capture_mode mode;
    int into;          /* into g */
    int stays;         /* the thread waits for `go` before it ends */
    _Atomic int begun; /* -1: refused */
    _Atomic int go;
    payload p;
} left_capture;

static void *leave_capture(void *user) {
    left_capture *x = user;
    if (!x->s.id)
        ok_thread(ds_stream_get_per_thread(harness_device(0), &x->s));
    ds_result r = x->into ? ds_capture_begin_to_graph(x->s, x->g, NULL, 0, x->mode)
                          : ds_capture_begin(x->s, x->mode);
    if (r == DS_OK)
        r = ds_stream_launch_host_func(x->s, payload_run, &x->p, payload_destroy);
    x->begun = r == DS_OK ? 1 : -1;
    while (x->stays && !x->go)
        sched_yield();
    return NULL;
}

static void keep_capture_report(const ds_log_item *item, void *user) {
    char *text = user;
    if (strstr(item->text, "capture #") && strstr(item->text, "was not ended"))
        snprintf(text, 1000, "%s", item->text);
}

/* The program shuts down while the thread has the capture open, or has ended. */
static void shut_down_with(left_capture *x, int own_stream) {
    static char text[1000];
    text[0] = 0;
    harness_restart(&(ds_init_desc){ .log_fn = keep_capture_report, .log_user = text });
    x->s = own_stream ? (ds_stream){ 0 } : made(0);
    if (x->into)
        ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &x->g));
    pthread_t thread = spawn(leave_capture, x);
    while (!x->begun)
        sched_yield();
    if (!x->stays)
        join(thread);

    ds_result r = ds_shutdown();

    x->go = 1;
    if (x->stays)
        join(thread);
    harness_forget();
    assert_int_equal(x->begun, 1);
    ok(r);
    expect_in(text, "test_capture.c", "ds_shutdown");
    await_destroyed(&x->p, 1);
    assert_int_equal(x->p.ran, 0);
    ds_stream s = made(0);
    expect_usable(s);
    ok(ds_stream_destroy(s));
    harness_restart(NULL);
}

static void test_shutdown_ends_the_captures_of_other_threads(void **state) {
    (void)state;
    for (int mode = 0; mode <= DS_CAPTURE_RELAXED; mode++)
        for (int into = 0; into < 2; into++)
            for (int stays = 0; stays < 2; stays++) {
                left_capture x = { .mode = (ds_capture_mode)mode, .into = into, .stays = stays };
                shut_down_with(&x, 0);
                ok(ds_device_synchronize(harness_device(0)));
            }
}

/* CUDA lets nobody else end it, and keeps it open until its thread ends. */
static void test_shutdown_ends_captures_on_other_threads_own_streams(void **state) {
    (void)state;
    for (int mode = 0; mode <= DS_CAPTURE_RELAXED; mode++)
        for (int into = 0; into < 2; into++) {
            left_capture x = { .mode = (ds_capture_mode)mode, .into = into, .stays = 1 };
            shut_down_with(&x, 1);
        }
}

static void test_a_thread_that_ends_ends_the_capture_on_its_own_stream(void **state) {
    (void)state;
    for (int into = 0; into < 2; into++) {
        left_capture x = { .mode = DS_CAPTURE_THREAD_LOCAL, .into = into };
        if (into)
            ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &x.g));

        join(spawn(leave_capture, &x));
        ok(ds_stream_destroy(made(0))); /* frees what the thread has left */

        assert_int_equal(x.begun, 1);
        if (into)
            ok(ds_graph_destroy(x.g));
        await_destroyed(&x.p, 1);
        assert_int_equal(x.p.ran, 0);
    }
}

/* Lines that are not here: peers 71 (no libraries of others are wrapped); 75 (a loader's
   threads) is test_other_threads_may_allocate_in_non_global_captures; 76, torch 75
   77 to 79 are the allocator's. */

static void test_edges_and_nodes_of_an_open_captures_graph_are_changed(void **state) {
    cap c = { 0 };
    uint64_t *h = word(1);
    ds_capture_info info;
    ds_graph_node later, first;
    (void)state;
    ds_stream s = made(0);
    ds_node_desc desc = fold_node(h, 7);
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    ok(ds_capture_get_info(s, &info));
    ok(ds_graph_add(info.graph, &desc, NULL, 0, &later));
    desc = fold_node(h, 2);
    ok(ds_graph_add(info.graph, &desc, NULL, 0, &first));
    ok(ds_graph_add_edges(info.graph, &first, &later, 1));
    refused(ds_graph_add_edges(info.graph, &first, &later, 1), DS_ERR_INVALID_VALUE);
    desc = fold_node(h, 3);
    ok(ds_graph_set_node(info.graph, later, &desc));
    ok(ds_capture_update_dependencies(s, &later, 1, DS_CAPTURE_SET_DEPENDENCIES));
    fold(s, h, 4);
    end_and_launch(&c, 1);
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 3), 4));
    ok(ds_stream_destroy(s));
}

static void test_each_launch_records_its_events_anew(void **state) {
    cap c = { 0 };
    gate g = { 0 };
    uint64_t *h = word(1);
    ds_graph_exec x;
    (void)state;
    ds_event e = event_of(0);
    ds_stream s = made(0), t = made(0);
    BEGIN(&c, s, DS_CAPTURE_THREAD_LOCAL);
    fold(s, h, 2);
    ok(ds_event_record_external(e, s));
    ds_graph graph = end(&c);
    ok(ds_graph_instantiate(graph, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_event_synchronize(e));
    gate_close(s, &g);
    ok(ds_graph_launch(x, s));
    /* the record of the first launch does not count any more */
    assert_int_equal(ds_event_query(e), DS_NOT_READY);
    ok(ds_stream_wait_event(t, e));
    fold(t, h, 3);
    assert_int_equal(ds_stream_query(t), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(t));
    ok(ds_event_query(e));
    assert_true(*h == fold_host(fold_host(fold_host(1, 2), 2), 3));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(graph));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

static void test_a_legacy_stream_created_during_a_capture_knows_of_it(void **state) {
    cap c = { 0 };
    (void)state;
    harness_restart(NULL);
    ds_stream s = ordered(0);
    BEGIN(&c, s, DS_CAPTURE_RELAXED);
    ds_stream legacy = legacy_of(0);
    SPOILS(&c, ds_stream_query(legacy), DS_ERR_CAPTURE_IMPLICIT);
    end_invalid(&c);
    expect_usable(legacy);
    ok(ds_stream_destroy(s));
}

static void test_the_first_offending_call_is_the_one_that_is_named(void **state) {
    cap older = { 0 }, newer = { 0 };
    void *memory = NULL;
    (void)state;
    ds_stream s = made(0), t = made(0);
    ds_device device = harness_device(0);
    BEGIN(&older, s, DS_CAPTURE_GLOBAL);
    BEGIN(&newer, t, DS_CAPTURE_GLOBAL);
    SPOILS(&older, ds_stream_query(s), DS_ERR_CAPTURE_UNSUPPORTED);
    /* the other one makes it unsafe, too */
    SPOILS(&newer, ds_device_alloc(device, 64, &memory), DS_ERR_CAPTURE_UNSUPPORTED);
    assert_null(memory);
    refused(ds_stream_synchronize(s), DS_ERR_CAPTURE_INVALIDATED);
    end_invalid(&older);
    end_invalid(&newer);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

/* ---- recaptures (cudaStreamBeginRecaptureToGraph, CUDA 13.3) ---- */

static ds_graph captured_folds(ds_stream s, uint64_t *h, uint64_t n, int count) {
    ds_graph g = { 0 };
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    for (int i = 0; i < count; i++)
        fold(s, h, n + (uint64_t)i);
    ok(ds_capture_end(s, &g));
    return g;
}

static void run_once(ds_graph_exec x, ds_stream s) {
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
}

static void test_a_recapture_replaces_the_work_of_a_graph(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, 0);
    uint64_t *h = word(1);
    harness_warm_up();
    ds_graph g = captured_folds(s, h, 5, 2), clone = { 0 };
    ds_graph_exec x = { 0 };
    ds_graph_node nodes[2], same = { 0 };
    ds_node_desc d;
    size_t count = 0;
    payload p = { 0 };
    ok(ds_graph_get_nodes(g, nodes, 2, &count));
    ok(ds_graph_attach(g, &p, payload_destroy));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    fold(s, h, 8);
    fold(s, h, 9);
    ok(ds_capture_end_recapture(s, g));
    ok(ds_graph_get_node(g, nodes[1], &d, NULL)); /* the handle is valid */
    assert_int_equal(((const fold_args *)d.u.kernel.args)->n, 9);
    run_once(x, s); /* not the executable */
    assert_int_equal(*h, fold_host(fold_host(1, 5), 6));
    ok(ds_graph_exec_update(x, g, NULL));
    *h = 1;
    run_once(x, s);
    assert_int_equal(*h, fold_host(fold_host(1, 8), 9));
    ok(ds_graph_clone(g, &clone));
    ok(ds_graph_find_in_clone(clone, nodes[0], &same));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(clone));
    ok(ds_graph_destroy(g));
    await_destroyed(&p, 1); /* what was attached goes with the former work */
    ok(ds_stream_destroy(s));
}

static void test_a_recapture_of_another_shape_changes_nothing(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, 0), t = harness_stream(0, 0);
    uint64_t *h = word(1), *other = word(1);
    payload p = { 0 };
    harness_warm_up();
    ds_graph g = captured_folds(s, h, 5, 2), into = captured_folds(s, h, 5, 2);
    for (int how = 0; how < 4; how++) {
        ds_event e = { 0 };
        if (how < 3)
            ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
        else
            ok(ds_capture_begin_to_graph(s, into, NULL, 0, DS_CAPTURE_GLOBAL));
        harness_watch(s);
        fold(s, h, 8);
        if (how == 1) /* another kind */
            ok(ds_stream_launch_host_func(s, payload_run, &p, NULL));
        if (how == 2) { /* no dependency between the two */
            ok(ds_stream_record_event(s, 0, &e));
            ok(ds_capture_update_dependencies(s, NULL, 0, DS_CAPTURE_SET_DEPENDENCIES));
            fold(s, other, 9);
            ok(ds_stream_wait_event(s, e));
            ok(ds_event_destroy(e));
        }
        if (how == 3)
            fold(s, h, 9);
        refused(ds_capture_end_recapture(s, g),
                how < 3 ? DS_ERR_GRAPH_UPDATE : DS_ERR_INVALID_VALUE);
        ds_capture_status status;
        ok(ds_capture_get_status(s, &status));
        assert_int_equal(status, DS_CAPTURE_NONE);
    }
    refused(ds_capture_end_recapture(s, g), DS_ERR_ILLEGAL_STATE); /* no capture */
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    refused(ds_capture_end_recapture(s, (ds_graph){ 0 }), DS_ERR_INVALID_HANDLE);
    fold(s, h, 1); /* still captures */
    refused(ds_capture_end_recapture(s, into), DS_ERR_GRAPH_UPDATE);
    ds_graph_exec x = { 0 };
    ok(ds_graph_instantiate(g, NULL, &x));
    run_once(x, s);
    assert_int_equal(*h, fold_host(fold_host(1, 5), 6));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(into));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
}

const struct CMUnitTest tests_capture[] = {
    DS_TEST(test_the_first_offending_call_is_the_one_that_is_named, "capture"),
    DS_TEST(test_each_launch_records_its_events_anew, "peers b.3"),
    DS_TEST(test_edges_and_nodes_of_an_open_captures_graph_are_changed, "capture"),
    DS_TEST(test_a_legacy_stream_created_during_a_capture_knows_of_it, "peers b.4 P10"),
    DS_TEST(test_a_stream_captures_from_begin_to_end_and_no_other_does, "peers 62 b.4, torch 70"),
    DS_TEST(test_info_tells_what_is_known_of_a_capture, "peers b.4"),
    DS_TEST(test_the_legacy_stream_cannot_capture, "peers b.4, torch 73"),
    DS_TEST(test_a_second_begin_is_refused_and_the_capture_goes_on, "peers b.4"),
    DS_TEST(test_every_kind_of_stream_captures_in_every_mode, "peers b.4"),
    DS_TEST(test_a_wrapper_captures_with_the_stream_that_it_wraps, "peers b.4"),
    DS_TEST(test_an_unknown_mode_and_missing_outputs_are_refused, "capture"),
    DS_TEST(test_zeroed_invented_and_destroyed_streams_are_refused, "capture"),
    DS_TEST(test_work_put_on_the_stream_before_still_runs, "peers b.4"),
    DS_TEST(test_a_launch_follows_work_enqueued_before_the_capture, "peers b.4"),
    DS_TEST(test_captured_work_runs_at_each_launch_and_not_before, "peers 60 63 b.4"),
    DS_TEST(test_each_operation_becomes_a_node_after_the_one_before, "peers b.4 b.6"),
    DS_TEST(test_work_of_size_zero_becomes_no_node, "capture"),
    DS_TEST(test_an_empty_capture_gives_an_empty_graph_that_can_launch, "torch 74"),
    DS_TEST(test_a_record_and_a_wait_make_no_nodes, "peers b.4"),
    DS_TEST(test_what_only_looks_at_a_capturing_stream_does_no_harm, "peers b.4"),
    DS_TEST(test_dependencies_are_written_as_far_as_there_is_room, "peers b.4"),
    DS_TEST(test_argument_structs_are_copied_at_capture, "peers 74 b.6"),
    DS_TEST(test_ten_launches_read_new_contents_of_the_same_buffers, "peers 73"),
    DS_TEST(test_a_fork_by_an_event_and_a_join_by_another, "peers 64 b.4"),
    DS_TEST(test_info_of_a_forked_stream_tells_of_the_same_capture, "peers b.4"),
    DS_TEST(test_a_fork_and_a_join_without_events, "peers b.4"),
    DS_TEST(test_scopes_that_wait_fork_and_join, "peers b.4"),
    DS_TEST(test_streams_of_another_device_join_a_capture, "peers b.4"),
    DS_TEST(test_copies_between_devices_are_captured, "peers b.4"),
    DS_TEST(test_a_fork_without_nodes_of_its_own_needs_no_join, "peers b.4 P8"),
    DS_TEST(test_a_fork_that_is_not_joined_gives_no_graph, "peers 68 b.4 b.5"),
    DS_TEST(test_a_fork_may_be_joined_by_way_of_another, "peers b.4"),
    DS_TEST(test_an_event_recorded_twice_in_a_capture_has_the_new_place, "peers b.4"),
    DS_TEST(test_waiting_for_a_capturing_stream_invalidates_the_capture, "peers 66 69 b.5"),
    DS_TEST(test_waiting_for_the_device_invalidates_its_captures, "peers b.4 b.5 P12"),
    DS_TEST(test_a_relaxed_capture_permits_a_wait_for_another_device, "peers b.4"),
    DS_TEST(test_asking_or_awaiting_a_captured_event_spoils_the_capture, "peers b.3 b.5 P13"),
    DS_TEST(test_the_time_of_a_captured_event_is_refused, "peers b.5"),
    DS_TEST(test_waiting_for_work_outside_of_the_capture_spoils_it, "peers b.4 b.5 P4"),
    DS_TEST(test_a_wait_across_a_capture_names_both_streams, "capture"),
    DS_TEST(test_a_refused_wait_names_a_stream_that_was_destroyed, "capture"),
    DS_TEST(test_waiting_for_an_unrecorded_event_does_nothing, "peers b.4 P5"),
    DS_TEST(test_a_wait_between_two_captures_spoils_both, "peers b.4 b.5 P3"),
    DS_TEST(test_the_legacy_stream_cannot_be_forked_into_a_capture, "peers b.4 P24"),
    DS_TEST(test_a_callback_cannot_be_captured, "peers b.4 b.5"),
    DS_TEST(test_every_stream_of_an_invalid_capture_refuses_work, "peers b.4"),
    DS_TEST(test_no_stream_is_forked_into_a_spoilt_capture, "peers b.4 P7"),
    DS_TEST(test_a_host_functions_payload_goes_with_a_spoilt_capture, "peers b.6"),
    DS_TEST(test_ending_a_capture_that_never_began_is_refused, "peers 67 b.4 b.5"),
    DS_TEST(test_ending_a_capture_on_a_forked_stream_spoils_it, "peers 67 b.4 b.5"),
    DS_TEST(test_another_thread_ends_a_capture_only_if_relaxed, "peers b.4 b.5 P9"),
    DS_TEST(test_any_thread_may_spoil_a_capture_and_is_named, "peers b.5"),
    DS_TEST(test_any_thread_may_put_work_on_a_capturing_stream, "peers b.4"),
    DS_TEST(test_a_stream_captures_again_and_again, "torch 72 76"),
    DS_TEST(test_an_event_of_an_ended_capture_is_refused_until_recorded, "peers b.3 b.4 P7"),
    DS_TEST(test_a_wait_for_a_stale_event_does_not_fork_a_capture, "peers b.4 P7"),
    DS_TEST(test_the_legacy_streams_status_is_refused_in_a_capture, "peers 65 b.4 b.5"),
    DS_TEST(test_a_legacy_stream_call_invalidates_a_blocking_capture, "peers b.4 b.5 P10"),
    DS_TEST(test_the_legacy_stream_works_in_a_non_blocking_capture, "peers b.4 P10"),
    DS_TEST(test_another_devices_legacy_stream_works_in_a_capture, "peers b.4"),
    DS_TEST(test_other_threads_may_allocate_in_non_global_captures, "peers 75 b.4 P11, torch 79"),
    DS_TEST(test_a_global_capture_forbids_allocation_in_global_threads, "peers b.4 P11 P12"),
    DS_TEST(test_allocating_in_the_capturing_thread_invalidates_it, "peers b.4 P11 P12"),
    DS_TEST(test_memory_whose_release_a_capture_refuses_is_still_there, "peers b.4 P11 P12"),
    DS_TEST(test_a_relaxed_thread_may_allocate_in_its_own_capture, "peers b.4"),
    DS_TEST(test_a_threads_mode_is_exchanged_and_an_unknown_one_refused, "peers b.4"),
    DS_TEST(test_streams_and_events_are_created_during_a_global_capture, "peers 82 b.4 P11"),
    DS_TEST(test_pageable_memory_in_a_captured_copy_is_refused, "peers 70 b.4 b.5"),
    DS_TEST(test_pageable_memory_declared_stable_is_read_at_each_launch, "peers b.4 P19"),
    DS_TEST(test_a_copy_with_flags_is_a_plain_copy_outside_of_captures, "capture"),
    DS_TEST(test_registered_memory_is_captured_like_pinned_memory, "peers b.4"),
    DS_TEST_CUDA(test_copies_between_drivers_in_a_capture_are_refused, "peers b.4"),
    DS_TEST(test_an_event_recorded_by_a_graph_is_awaited_outside, "peers b.3 b.4"),
    DS_TEST(test_a_graph_waits_for_the_record_made_before_its_launch, "peers b.3 b.4"),
    DS_TEST(test_external_records_and_waits_are_plain_outside_captures, "peers b.3"),
    DS_TEST(test_nodes_that_are_set_aside_need_no_join, "peers b.4"),
    DS_TEST(test_dependencies_are_added_and_set, "peers b.4"),
    DS_TEST(test_dependencies_are_refused_where_they_do_not_belong, "peers b.4"),
    DS_TEST(test_the_graph_of_an_open_capture_cannot_be_destroyed, "capture"),
    DS_TEST(test_the_graph_of_a_failed_capture_is_gone, "peers b.4"),
    DS_TEST(test_a_capture_goes_on_in_a_graph_that_is_there, "peers b.4"),
    DS_TEST(test_what_a_failed_capture_added_to_a_graph_stays_there, "peers b.4"),
    DS_TEST(test_a_capture_into_a_graph_checks_the_graph_and_its_nodes, "capture"),
    DS_TEST(test_destroying_the_stream_where_a_capture_began_ends_it, "peers b.4 P14"),
    DS_TEST(test_a_joined_stream_may_be_destroyed_in_the_capture, "graphMemoryNodes R14"),
    DS_TEST(test_destroying_a_joined_stream_keeps_the_join_rule, "graphMemoryNodes R14"),
    DS_TEST(test_destroying_a_stream_with_work_behind_its_join, "peers b.4 P14"),
    DS_TEST(test_destroying_a_forked_stream_does_not_join_it, "peers b.4 P14"),
    DS_TEST(test_work_of_a_destroyed_stream_is_joined_by_an_event, "peers b.4 P14"),
    DS_TEST(test_a_threads_own_stream_is_forked_and_joined, "peers b.4 P15"),
    DS_TEST(test_a_function_is_captured, "capture"),
    DS_TEST(test_a_function_that_fails_leaves_the_stream_as_it_was, "capture"),
    DS_TEST(test_a_function_is_not_called_where_no_capture_can_begin, "capture"),
    DS_TEST(test_a_captured_function_may_shut_devstream_down, "capture"),
    DS_TEST(test_any_number_of_captures_may_be_open, "peers b.4"),
    DS_TEST(test_threads_capture_and_launch_at_once, "peers b.4 P15"),
    DS_TEST(test_a_captured_launch_has_what_was_set_and_switched_off, "peers b.7"),
    DS_TEST(test_a_launch_on_a_capturing_stream_becomes_a_child, "peers b.4 b.7"),
    DS_TEST(test_an_upload_on_a_capturing_stream_is_refused, "capture"),
    DS_TEST(test_graphs_are_made_and_launched_elsewhere_during_a_capture, "capture"),
    DS_TEST(test_captures_and_launches_are_refused_in_host_functions, "capture"),
    DS_TEST(test_shutdown_ends_the_captures_that_are_open, "capture"),
    DS_TEST(test_shutdown_ends_the_captures_of_other_threads, "capture"),
    DS_TEST(test_shutdown_ends_captures_on_other_threads_own_streams, "capture"),
    DS_TEST(test_a_thread_that_ends_ends_the_capture_on_its_own_stream, "capture"),
    DS_TEST(test_a_recapture_replaces_the_work_of_a_graph, "cudaStreamBeginRecaptureToGraph"),
    DS_TEST(test_a_recapture_of_another_shape_changes_nothing, "cudaStreamBeginRecaptureToGraph"),
};
const size_t tests_capture_count = sizeof tests_capture / sizeof *tests_capture;
