/* Marks, ranges and labels, as the program's own hook receives them. (tests/unit/test_nvtx.c: as
   NVIDIA's tools do.) */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { EVENTS = 64 };

typedef struct heard {
    ds_range_event e[EVENTS];
    char text[EVENTS][32], domain_name[EVENTS][64], file[EVENTS][64];
    int n;
    pthread_mutex_t lock;
} heard;

static void hear(const ds_range_event *event, void *user) {
    heard *h = user;
    pthread_mutex_lock(&h->lock);
    if (h->n < EVENTS) {
        h->e[h->n] = *event;
        snprintf(h->text[h->n], sizeof h->text[0], "%s", event->text ? event->text : "-");
        snprintf(h->domain_name[h->n], sizeof h->domain_name[0], "%s",
                 event->domain_name ? event->domain_name : "-");
        const char *slash = event->file ? strrchr(event->file, '/') : NULL;
        snprintf(h->file[h->n], sizeof h->file[0], "%s",
                 !event->file ? "-"
                 : slash      ? slash + 1
                              : event->file);
        h->n++;
    }
    pthread_mutex_unlock(&h->lock);
}

static heard listener = { .lock = PTHREAD_MUTEX_INITIALIZER };

static heard *listen(void) {
    listener.n = 0;
    ok(ds_range_set_hook(hear, &listener));
    return &listener;
}

static void deafen(void) {
    ok(ds_range_set_hook(NULL, NULL));
}

static int is(const heard *h, int i, ds_range_kind kind, const char *text, int level) {
    return i < h->n && h->e[i].kind == kind && strcmp(h->text[i], text) == 0 &&
           h->e[i].level == level;
}

/* torch's own test of its nvtx module, line by line. */
static void test_nvtx(void **state) {
    ds_range range_handle;
    (void)state;
    assert_int_equal(ds_range_push("foo"), 0);
    ok(ds_range_mark("bar"));
    assert_int_equal(ds_range_pop(), 0);
    ok(ds_range_start("range_start", &range_handle));
    ok(ds_range_end(range_handle));
}

static void test_ranges_nest_and_tell_their_level(void **state) {
    (void)state;
    heard *h = listen();
    assert_int_equal(ds_range_push("outer"), 0);
    assert_int_equal(ds_range_push("inner"), 1);
    ok(ds_range_mark("here"));
    assert_int_equal(ds_range_pop(), 1);
    assert_int_equal(ds_range_push("next"), 1);
    assert_int_equal(ds_range_pop(), 1);
    assert_int_equal(ds_range_pop(), 0);
    deafen();
    assert_int_equal(ds_range_push("nobody hears it"), 0);
    assert_int_equal(ds_range_pop(), 0);
    assert_int_equal(h->n, 7);
    assert_true(is(h, 0, DS_RANGE_PUSH, "outer", 0));
    assert_true(is(h, 1, DS_RANGE_PUSH, "inner", 1));
    assert_true(is(h, 2, DS_RANGE_MARK, "here", 0));
    assert_true(is(h, 3, DS_RANGE_POP, "-", 1));
    assert_true(is(h, 4, DS_RANGE_PUSH, "next", 1));
    assert_true(is(h, 5, DS_RANGE_POP, "-", 1));
    assert_true(is(h, 6, DS_RANGE_POP, "-", 0));
    for (int i = 0; i < h->n; i++) {
        assert_true(i == 0 || h->e[i].time_ns >= h->e[i - 1].time_ns);
        assert_true(h->e[i].thread != 0 && h->e[i].thread == h->e[0].thread);
        assert_string_equal(h->file[i], "test_ranges.c");
        assert_true(i == 0 || h->e[i].line > h->e[i - 1].line);
        assert_int_equal(h->e[i].domain.id, 0);
        assert_string_equal(h->domain_name[i], "");
    }
}

static void test_the_hook_gets_color_category_and_payload(void **state) {
    (void)state;
    heard *h = listen();
    ds_range_desc d = { .text = "bytes",
                        .color = 0xff336699,
                        .category = 3,
                        .payload = { DS_PAYLOAD_U64, { .u64 = 1ull << 40 } } };
    ok(ds_range_mark_with(&d));
    d.payload = (ds_payload){ DS_PAYLOAD_F64, { .f64 = 0.25 } };
    assert_int_equal(ds_range_push_with(&d), 0);
    assert_int_equal(ds_range_pop(), 0);
    (ds_range_mark)("without a place");
    deafen();
    assert_int_equal(h->n, 4);
    assert_int_equal(h->e[0].color, 0xff336699);
    assert_int_equal(h->e[0].category, 3);
    assert_true(h->e[0].payload.kind == DS_PAYLOAD_U64 && h->e[0].payload.value.u64 == 1ull << 40);
    assert_true(h->e[1].payload.kind == DS_PAYLOAD_F64 && h->e[1].payload.value.f64 >= 0.25 &&
                h->e[1].payload.value.f64 <= 0.25);
    assert_int_equal(h->e[2].color, 0);
    assert_int_equal(h->e[2].payload.kind, DS_PAYLOAD_NONE);
    assert_null(h->e[3].file);
    assert_int_equal(h->e[3].line, 0);
}

static void *end_it(void *range) {
    ok_thread(ds_range_end(*(ds_range *)range));
    return NULL;
}

static void test_a_range_is_ended_by_another_thread(void **state) {
    ds_range a, b;
    (void)state;
    heard *h = listen();
    ok(ds_range_start("a", &a));
    ok(ds_range_start("b", &b));
    assert_true(a.id && b.id && a.id != b.id);
    join(spawn(end_it, &a));
    refused(ds_range_end(a), DS_ERR_INVALID_HANDLE);
    ok(ds_range_end(b));
    deafen();
    assert_int_equal(h->n, 4);
    assert_true(is(h, 2, DS_RANGE_END, "-", 0) && h->e[2].id == a.id && h->e[0].id == a.id);
    assert_true(is(h, 3, DS_RANGE_END, "-", 0) && h->e[3].id == b.id && h->e[1].id == b.id);
    assert_true(h->e[2].thread != h->e[0].thread && h->e[3].thread == h->e[0].thread);
    ds_range again;
    ok(ds_range_start("again", &again)); /* in the place of one of them, under another id */
    assert_true(again.id != a.id && again.id != b.id);
    refused(ds_range_end(a), DS_ERR_INVALID_HANDLE);
    ok(ds_range_end(again));
}

static void test_four_thousand_ranges_are_open_and_not_one_more(void **state) {
    static ds_range range[4096];
    ds_range one;
    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4096; i++)
            ok(ds_range_start("one of many", &range[i]));
        refused(ds_range_start("one too many", &one), DS_ERR_LIMIT_EXCEEDED);
        assert_int_equal(one.id, 0);
        for (int i = 0; i < 4096; i++)
            ok(ds_range_end(range[i]));
    }
}

static void test_domains_have_levels_of_their_own(void **state) {
    ds_domain a, b, same;
    (void)state;
    ok(ds_domain_create("a", &a));
    ok(ds_domain_create("b", &b));
    ok(ds_domain_create("a", &same));
    assert_true(a.id && b.id && a.id != b.id && a.id == same.id);
    heard *h = listen();
    ds_range_desc in_a = { .text = "in a", .domain = a }, in_b = { .text = "in b", .domain = b };
    assert_int_equal(ds_range_push_with(&in_a), 0);
    assert_int_equal(ds_range_push_with(&in_b), 0);
    assert_int_equal(ds_range_push_with(&in_a), 1);
    assert_int_equal(ds_range_push("in none"), 0);
    refused((ds_result)ds_range_pop_in((ds_domain){ 77 }), DS_ERR_INVALID_HANDLE);
    assert_int_equal(ds_range_pop_in(a), 1);
    assert_int_equal(ds_range_pop_in(b), 0);
    refused((ds_result)ds_range_pop_in(b), DS_ERR_ILLEGAL_STATE);
    assert_non_null(strstr(ds_error_get_last(), "\"b\""));
    assert_int_equal(ds_range_pop_in(a), 0);
    assert_int_equal(ds_range_pop(), 0);
    deafen();
    assert_int_equal(h->n, 8);
    assert_string_equal(h->domain_name[0], "a");
    assert_true(h->e[0].domain.id == a.id && h->e[4].domain.id == a.id &&
                h->e[5].domain.id == b.id);
    assert_string_equal(h->domain_name[1], "b");
    assert_string_equal(h->domain_name[3], "");
}

static void test_domains_and_their_ranges_end_with_shutdown(void **state) {
    ds_domain d, e;
    ds_range in, out;
    (void)state;
    ok(ds_domain_create("short-lived", &d));
    ds_range_desc desc = { .text = "in it", .domain = d };
    ok(ds_range_start_with(&desc, &in));
    ok(ds_range_start("out of it", &out));
    assert_int_equal(ds_range_push("around shutdown"), 0);
    assert_int_equal(ds_range_push_with(&desc), 0);
    harness_restart(NULL);
    refused(ds_range_mark_with(&desc), DS_ERR_INVALID_HANDLE);
    refused((ds_result)ds_range_push_with(&desc), DS_ERR_INVALID_HANDLE);
    refused((ds_result)ds_range_pop_in(d), DS_ERR_INVALID_HANDLE);
    refused(ds_range_end(in), DS_ERR_INVALID_HANDLE);
    ok(ds_range_end(out));
    ok(ds_domain_create("short-lived", &e));
    assert_true(e.id != d.id);
    refused((ds_result)ds_range_pop_in(e), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(ds_range_pop(), 0);
}

static void test_sixty_three_domains_and_not_one_more(void **state) {
    ds_domain d;
    char name[16];
    int n = 0;
    (void)state;
    harness_restart(NULL);
    for (; n < 63; n++) {
        snprintf(name, sizeof name, "domain %d", n);
        ok(ds_domain_create(name, &d));
    }
    refused(ds_domain_create("one too many", &d), DS_ERR_LIMIT_EXCEEDED);
    assert_int_equal(d.id, 0);
    ok(ds_domain_create("domain 62", &d));
    harness_restart(NULL);
}

static void test_wrong_ranges_are_refused_with_a_sentence(void **state) {
    char long_name[100];
    ds_domain d;
    ds_range r;
    char place[40];
    (void)state;
    heard *h = listen();
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    refused(ds_range_mark(NULL), DS_ERR_INVALID_VALUE);
    snprintf(place, sizeof place, "test_ranges.c:%d: ds_range_mark", __LINE__ - 1);
    assert_non_null(strstr(ds_error_get_last(), place));
    refused(ds_range_mark_with(NULL), DS_ERR_INVALID_VALUE);
    refused((ds_result)ds_range_push(NULL), DS_ERR_INVALID_VALUE);
    refused((ds_result)ds_range_push_with(&(ds_range_desc){ .color = 1 }), DS_ERR_INVALID_VALUE);
    refused((ds_result)ds_range_pop(), DS_ERR_ILLEGAL_STATE);
    r.id = 5;
    refused(ds_range_start(NULL, &r), DS_ERR_INVALID_VALUE);
    assert_int_equal(r.id, 0);
    refused(ds_range_start("x", NULL), DS_ERR_INVALID_VALUE);
    refused(ds_range_end(r), DS_ERR_INVALID_HANDLE);
    refused(ds_range_end((ds_range){ 1ull << 60 | 17 }), DS_ERR_INVALID_HANDLE);
    refused(ds_range_end((ds_range){ UINT64_MAX }), DS_ERR_INVALID_HANDLE);
    refused(ds_range_mark_with(&(ds_range_desc){ .text = "x", .domain = { 1ull << 40 | 1 } }),
            DS_ERR_INVALID_HANDLE);
    refused(ds_range_mark_with(
                &(ds_range_desc){ .text = "x", .payload = { (ds_payload_kind)9, { 0 } } }),
            DS_ERR_INVALID_VALUE);
    refused(ds_domain_create(NULL, &d), DS_ERR_INVALID_VALUE);
    refused(ds_domain_create("", &d), DS_ERR_INVALID_VALUE);
    refused(ds_domain_create("x", NULL), DS_ERR_INVALID_VALUE);
    refused(ds_domain_create(long_name, &d), DS_ERR_INVALID_VALUE);
    refused(ds_thread_set_label(NULL), DS_ERR_INVALID_VALUE);
    deafen();
    assert_int_equal(h->n, 0);
    assert_int_equal(ds_range_push("a level is not lost"), 0);
    assert_int_equal(ds_range_pop(), 0);
}

static int leave_early(int how) {
    DS_RANGE_SCOPE("block") {
        if (how == 0)
            return 0;
        if (how == 1)
            break;
        DS_RANGE_SCOPE_WITH((&(ds_range_desc){ .text = "inner" })) {
            if (how == 2)
                goto out;
        }
    }
    return 1;
out:
    return 2;
}

static void test_a_range_scope_is_left_however_the_block_is(void **state) {
    int ran = 0;
    (void)state;
    heard *h = listen();
    for (int how = 0; how < 4; how++)
        assert_int_equal(leave_early(how), how == 1 || how == 3 ? 1 : how);
    DS_RANGE_SCOPE(NULL)
        ran = 1; /* a range that cannot be does not keep its block from running */
    assert_true(ran);
    deafen();
    assert_int_equal(h->n, 4 + 8);
    assert_int_equal(ds_range_push("nothing is left open"), 0);
    assert_int_equal(ds_range_pop(), 0);
}

static void in_host_function(void *user) {
    int *level = user;
    ds_range range;
    ds_domain d;
    *level = ds_range_push("in a host function");
    if (ds_domain_create("made there", &d) < 0 || ds_range_start("s", &range) < 0 ||
        ds_range_end(range) < 0 || ds_thread_set_label("worker") < 0)
        *level = -100;
    if (ds_range_mark(NULL) != DS_ERR_INVALID_VALUE ||
        !strstr(ds_error_get_last(), "ds_range_mark"))
        *level = -101;
    (void)ds_range_pop();
    if (ds_range_set_hook(NULL, NULL) != DS_ERR_NOT_PERMITTED)
        *level = -102;
}

static void test_ranges_are_callable_in_host_functions(void **state) {
    int level = -1;
    (void)state;
    ds_stream s = harness_stream(0, 0);
    heard *h = listen();
    ok(ds_stream_launch_host_func(s, in_host_function, &level, NULL));
    ok(ds_stream_synchronize(s));
    deafen();
    assert_int_equal(level, 0);
    assert_int_equal(h->n, 5);
    assert_true(is(h, 0, DS_RANGE_PUSH, "in a host function", 0));
    assert_true(is(h, 3, DS_RANGE_THREAD_LABEL, "worker", 0));
    ok(ds_stream_destroy(s));
}

static void *push_pop(void *arg) {
    ds_range range;
    for (int i = 0; i < 2000; i++) {
        if (ds_range_push("x") != 0)
            harness_die("ds_range_push", DS_ERR_FAILED);
        ok_thread(ds_range_start("y", &range));
        ok_thread(ds_range_end(range));
        if (ds_range_pop() != 0)
            harness_die("ds_range_pop", DS_ERR_FAILED);
    }
    return arg;
}

typedef struct tally {
    _Atomic long events;
    _Atomic int closed;
} tally;

static void count(const ds_range_event *event, void *user) {
    tally *t = user;
    /* after its hook was taken away */
    if (t->closed)
        abort();
    t->events++;
    (void)event;
}

static void test_threads_report_at_once_and_none_uses_a_removed_hook(void **state) {
    pthread_t thread[3];
    tally t[40];
    long heard_at_all = 0;
    (void)state;
    for (int i = 0; i < 40; i++) {
        t[i].events = 0;
        t[i].closed = 0;
    }
    for (int i = 0; i < 3; i++)
        thread[i] = spawn(push_pop, NULL);
    for (int i = 0; i < 40; i++) {
        ok(ds_range_set_hook(count, &t[i]));
        if (i)
            t[i - 1].closed = 1;
        harness_nap();
    }
    deafen();
    t[39].closed = 1;
    for (int i = 0; i < 3; i++)
        join(thread[i]);
    tally last = { 0, 0 };
    ok(ds_range_set_hook(count, &last)); /* one is heard again after all that */
    ok(ds_range_mark("x"));
    deafen();
    assert_int_equal(last.events, 1);
    for (int i = 0; i < 40; i++)
        heard_at_all += t[i].events;
    assert_true(heard_at_all >= 0 && heard_at_all <= 3l * 2000 * 4);
}

static void talk_back(const ds_range_event *event, void *user) {
    int *calls = user;
    ds_device d;
    ds_domain domain;
    ++*calls;
    if (event->kind == DS_RANGE_MARK &&
        (ds_range_push("inside of the hook") != 0 || ds_domain_create("hooked", &domain) != DS_OK ||
         ds_range_pop() != 0))
        *calls = -100;
    if (ds_device_get_current(&d) != DS_OK || ds_device_synchronize(d) != DS_ERR_NOT_PERMITTED ||
        ds_range_set_hook(NULL, NULL) != DS_ERR_NOT_PERMITTED)
        *calls = -200;
}

static void test_ranges_inside_of_the_hook_are_not_told(void **state) {
    int calls = 0;
    (void)state;
    ok(ds_range_set_hook(talk_back, &calls));
    ok(ds_range_mark("once"));
    ok(ds_thread_set_label("twice"));
    deafen();
    assert_int_equal(calls, 2);
}

static void test_streams_and_devices_get_other_labels(void **state) {
    char text[300], name[DS_DEVICE_NAME_SIZE], quoted[80];
    uint64_t id;
    (void)state;
    heard *h = listen();
    ds_device d = harness_device(0);
    ds_stream s, plain;
    ok(ds_stream_create(&(ds_stream_desc){ .device = d, .label = "first" }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = d }, &plain));
    ok(ds_stream_set_label(s, "second"));
    ok(ds_stream_get_label(s, text, sizeof text));
    assert_string_equal(text, "second");
    refused(ds_stream_get_priority((ds_stream){ 1ull << 50 }, NULL, NULL), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_get_id(s, NULL), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "\"second\"")); /* errors have it */
    ok(ds_stream_get_id(s, &id));
    ok(ds_stream_set_label(s, NULL));
    ok(ds_stream_get_label(s, text, sizeof text));
    assert_string_equal(text, "");
    refused(ds_stream_get_id(s, NULL), DS_ERR_INVALID_VALUE);
    assert_null(strstr(ds_error_get_last(), "\"second\""));
    ok(ds_device_get_label(d, text, sizeof text));
    assert_string_equal(text, "");
    ok(ds_device_set_label(d, "the fast one"));
    ok(ds_device_get_label(d, text, sizeof text));
    assert_string_equal(text, "the fast one");
    void *p;
    refused_any(ds_device_alloc(d, SIZE_MAX / 2, &p));
    ok(ds_device_format(d, name, sizeof name));
    snprintf(quoted, sizeof quoted, "%s \"the fast one\"", name);
    assert_non_null(strstr(ds_error_get_last(), quoted));
    ok(ds_device_set_label(d, NULL));
    ok(ds_device_get_label(d, text, sizeof text));
    assert_string_equal(text, "");
    deafen();
    assert_int_equal(h->n, 5);
    assert_true(is(h, 0, DS_RANGE_STREAM_LABEL, "first", 0) && h->e[0].id == id &&
                h->e[0].device.type == d.type && h->e[0].device.index == d.index);
    assert_true(is(h, 1, DS_RANGE_STREAM_LABEL, "second", 0) && h->e[1].id == id);
    assert_string_equal(h->file[1], "test_ranges.c");
    assert_true(is(h, 2, DS_RANGE_STREAM_LABEL, "", 0));
    assert_true(is(h, 3, DS_RANGE_DEVICE_LABEL, "the fast one", 0) &&
                h->e[3].device.type == d.type && h->e[3].id == 0);
    assert_true(is(h, 4, DS_RANGE_DEVICE_LABEL, "", 0));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(plain));
    refused(ds_stream_set_label(s, "x"), DS_ERR_INVALID_HANDLE);
    refused(ds_device_get_label(d, NULL, 5), DS_ERR_INVALID_VALUE);
    refused_any(ds_device_set_label((ds_device){ d.type, 999 }, "x"));
}

static void *relabel(void *stream) {
    char text[40];
    for (int i = 0; i < 300; i++) {
        ok_thread(ds_stream_set_label(*(ds_stream *)stream, i & 1 ? "odd" : "even"));
        ok_thread(ds_stream_get_label(*(ds_stream *)stream, text, sizeof text));
        if (strcmp(text, "odd") && strcmp(text, "even"))
            harness_die("ds_stream_get_label", DS_ERR_FAILED);
        if (ds_stream_get_id(*(ds_stream *)stream, NULL) != DS_ERR_INVALID_VALUE)
            harness_die("ds_stream_get_id", DS_ERR_FAILED);
    }
    return NULL;
}

static void test_threads_relabel_a_stream_at_once(void **state) {
    pthread_t thread[3];
    (void)state;
    ds_stream s = harness_stream(0, 0);
    for (int i = 0; i < 3; i++)
        thread[i] = spawn(relabel, &s);
    for (int i = 0; i < 3; i++)
        join(thread[i]);
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_ranges[] = {
    DS_TEST(test_nvtx, "torch 131"),
    DS_TEST(test_ranges_nest_and_tell_their_level, "torch 131"),
    DS_TEST(test_the_hook_gets_color_category_and_payload, "torch 131"),
    DS_TEST(test_a_range_is_ended_by_another_thread, "torch 131"),
    DS_TEST(test_four_thousand_ranges_are_open_and_not_one_more, "ranges"),
    DS_TEST(test_domains_have_levels_of_their_own, "ranges"),
    DS_TEST(test_domains_and_their_ranges_end_with_shutdown, "ranges"),
    DS_TEST(test_sixty_three_domains_and_not_one_more, "ranges"),
    DS_TEST(test_wrong_ranges_are_refused_with_a_sentence, "torch 131"),
    DS_TEST(test_a_range_scope_is_left_however_the_block_is, "ranges"),
    DS_TEST(test_ranges_are_callable_in_host_functions, "ranges"),
    DS_TEST(test_threads_report_at_once_and_none_uses_a_removed_hook, "ranges"),
    DS_TEST(test_ranges_inside_of_the_hook_are_not_told, "ranges"),
    DS_TEST(test_streams_and_devices_get_other_labels, "ranges"),
    DS_TEST(test_threads_relabel_a_stream_at_once, "ranges"),
};
const size_t tests_ranges_count = sizeof tests_ranges / sizeof *tests_ranges;
