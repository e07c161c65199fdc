/* The check layer at its limits: arguments that are refused, each of its allocations failing in
   turn, graphs and tables that are too large, and states that a program reaches seldom. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DS__COUNT_LOCKS
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "devstream_comm.h"
#include "devstream_trace.h"
#include "output.h"
#include "data_races.h"
#include "unit.h"

enum { SIZE = 4096 };

static struct {
    int count;
    ds_hazard hazard;
    char text[4096];
    char order[600];
} last;

static void take(const ds_hazard_report *r, void *user) {
    (void)user;
    last.count++;
    last.hazard = r->hazard;
    snprintf(last.text, sizeof last.text, "%s", r->text);
    snprintf(last.order, sizeof last.order, "%s", r->order);
}

static void begin(const char *options) {
    static ds_cpu_desc cpu = { .devices = 1 };
    memset(&last, 0, sizeof last);
    ds_check_set_report_fn(take, NULL);
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .check = options, .flags = DS_INIT_NO_CUDA }));
}

static void end(void) {
    ok(ds_device_synchronize(ds_cpu(0)));
    ok(ds_shutdown());
}

static ds_stream stream(const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0), .label = label }, &s));
    return s;
}

static char *pinned(void) {
    void *p;
    ok(ds_pinned_alloc(SIZE, &p));
    return p;
}

static void nothing(void *user) {
    (void)user;
}

static ds_check_stats stats_now(void) {
    ds_check_stats stats;
    ok(ds_check_get_stats(&stats));
    return stats;
}

static void expect_error(ds_result r, ds_result want, const char *sentence) {
    assert_int_equal(r, want);
    if (!strstr(ds_error_get_last(), sentence))
        fail_msg("no \"%s\" in: %s", sentence, ds_error_get_last());
}

static void expect_text(const char *text, const char *want) {
    if (!strstr(text, want))
        fail_msg("no \"%s\" in: %s", want, text);
}

/* ---- arguments ---- */

static void test_wrong_arguments_are_named(void **state) {
    static ds_extent many[DS_KERNEL_MAX_PARAMS + 1];
    char memory[16];
    char text[8];
    ds_check_point p;
    (void)state;
    begin("quiet");
    ok(ds_check_get_point((ds_stream){ 0 }, &p));

    expect_error(ds_check_get_stats(NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    expect_error(ds_check_get_point((ds_stream){ 0 }, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    expect_error(ds_check_declare_memory(NULL, 8, NULL), DS_ERR_INVALID_VALUE, "range is empty");
    expect_error(ds_check_declare_memory(memory, 0, NULL), DS_ERR_INVALID_VALUE, "range is empty");
    expect_error(ds_check_ignore(memory, 0), DS_ERR_INVALID_VALUE, "range is empty");
    expect_error(ds_check_forget_memory(memory), DS_ERR_INVALID_VALUE, "is not the start of");
    expect_error(ds_check_set_extents(NULL, 1), DS_ERR_INVALID_VALUE, "extents is NULL");
    expect_error(ds_check_set_extents(many, DS_KERNEL_MAX_PARAMS + 1), DS_ERR_INVALID_VALUE,
                 "extents; at most");
    ok(ds_check_set_extents(NULL, 0));
    expect_error(ds_check_why((ds_check_point){ 0 }, p, text, sizeof text), DS_ERR_INVALID_VALUE,
                 "a is no point");
    expect_error(ds_check_why(p, (ds_check_point){ 0 }, NULL, 0), DS_ERR_INVALID_VALUE,
                 "b is no point");
    expect_error(ds_check_why((ds_check_point){ .line = 9999 }, p, text, sizeof text),
                 DS_ERR_INVALID_VALUE, "is no point");
    expect_error(ds_check_why(p, (ds_check_point){ .line = 9999 }, text, sizeof text),
                 DS_ERR_INVALID_VALUE, "is no point");

    /* not an error: no access, and no token */
    uint64_t before = stats_now().accesses;
    ok(ds_check_host_read(NULL, 8));
    ok(ds_check_host_write(memory, 0));
    ok(ds_check_release(NULL));
    ok(ds_check_acquire(NULL));
    ok(ds_check_acquire(memory)); /* was never released */
    assert_int_equal(stats_now().accesses, before);
    end();
}

/* Memory that is declared, but whose start is another address, or that is not declared. */
static void test_only_declared_memory_is_forgotten(void **state) {
    static char memory[SIZE];
    (void)state;
    begin("quiet");
    char *p = pinned();
    expect_error(ds_check_forget_memory(p), DS_ERR_INVALID_VALUE, "is not the start of");
    ok(ds_check_declare_memory(memory, SIZE, NULL));
    expect_error(ds_check_forget_memory(memory + 8), DS_ERR_INVALID_VALUE, "is not the start of");
    ok(ds_check_forget_memory(memory));
    ok(ds_fill(memory, 1, 1, SIZE, stream("later")));
    assert_int_equal(last.count, 0); /* pageable memory may be another one's by now */

    ok(ds_check_declare_memory(memory, SIZE, "again"));
    ok(ds_check_host_write(memory, SIZE));
    ok(ds_check_forget_memory(memory));
    end();
}

static void call_all(void *user) {
    ds_result *r = user;
    char memory[8];
    char text[8];
    ds_check_stats stats;
    ds_check_point p;
    ds_stream none = { 0 };
    r[0] = ds_check_get_stats(&stats);
    r[1] = ds_check_declare_order(none, none);
    r[2] = ds_check_declare_memory(memory, 8, NULL);
    r[3] = ds_check_forget_memory(memory);
    r[4] = ds_check_ignore(memory, 8);
    r[5] = ds_check_set_extents(NULL, 0);
    r[6] = ds_check_get_point(none, &p);
    r[7] = ds_check_why((ds_check_point){ 0 }, (ds_check_point){ 0 }, text, sizeof text);
}

static void test_user_code_may_not_call_the_layer(void **state) {
    ds_result r[8] = { 0 };
    (void)state;
    begin("quiet");
    ds_stream s = stream("calls");
    ok(ds_stream_launch_host_func(s, call_all, r, NULL));
    ok(ds_stream_synchronize(s));
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(r[i], DS_ERR_NOT_PERMITTED);
    end();
}

static void test_without_the_layer_nothing_is_declared(void **state) {
    static ds_cpu_desc cpu = { .devices = 1 };
    char memory[16];
    char text[8];
    ds_check_point point = { .line = 1, .sequence = 1 };
    (void)state;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .flags = DS_INIT_NO_CUDA }));
    ok(ds_check_declare_order((ds_stream){ 1 }, (ds_stream){ 2 })); /* not looked at */
    ok(ds_check_declare_memory(memory, 16, NULL));
    ok(ds_check_declare_memory(memory, 16, NULL));
    ok(ds_check_forget_memory(memory + 1));
    ok(ds_check_ignore(memory, 1));
    ok(ds_check_host_write(memory, 1));
    ok(ds_check_release(memory));
    ok(ds_check_acquire(memory));
    expect_error(ds_check_why(point, point, text, sizeof text), DS_ERR_ILLEGAL_STATE,
                 "the check layer is off");
    ok(ds_shutdown());
}

/* ---- ds_check_why ---- */

static void test_why_prints_to_standard_error(void **state) {
    ds_check_point p;
    ds_check_point q;
    const char *name = output_new();
    (void)state;
    begin("quiet");
    ds_stream s = stream("one");
    ok(ds_fill(pinned(), 1, 1, SIZE, s));
    ok(ds_check_get_point(s, &p));
    ok(ds_fill(pinned(), 1, 1, SIZE, s));
    ok(ds_check_get_point(s, &q));

    fflush(stderr);
    int former = dup(2);
    assert_non_null(freopen(name, "w", stderr));
    ds_result r = ds_check_why(p, q, NULL, 0);
    fflush(stderr);
    dup2(former, 2);
    close(former);

    ok(r);
    assert_string_equal(output_read(name),
                        "operation 1 of one comes before operation 2: one timeline\n");
    end();
}

/* A chain of waits by events: each line has the place of the record. A chain that is longer than
   the answer is cut. */
static void test_why_follows_events_and_cuts_long_chains(void **state) {
    enum { STREAMS = 40 };

    static char text[16000];
    ds_check_point p;
    ds_check_point q;
    ds_event e;
    ds_stream s[STREAMS];
    (void)state;
    begin("quiet");
    ok(ds_event_create(0, NULL, &e));
    for (int i = 0; i < STREAMS; i++)
        s[i] = stream(NULL);
    ok(ds_stream_set_label(s[0], "begin"));
    ok(ds_fill(pinned(), 1, 1, SIZE, s[0]));
    ok(ds_check_get_point(s[0], &p));
    for (int i = 1; i < STREAMS; i++) {
        ok(ds_event_record(e, s[i - 1]));
        ok(ds_stream_wait_event(s[i], e));
    }
    ok(ds_check_get_point(s[1], &q));
    ok(ds_check_why(p, q, text, sizeof text));
    expect_text(text, "operation 2 of begin comes before operation ");
    expect_text(text, "recorded at test_check_limits.c:");
    expect_text(text, ": one timeline\n");

    ok(ds_check_get_point(s[STREAMS - 1], &q));
    ok(ds_check_why(p, q, text, sizeof text));
    size_t lines = 0;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 32);
    assert_null(strstr(text, "one timeline"));

    /* later operations of the first stream are not ordered, earlier ones are */
    ok(ds_fill(pinned(), 1, 1, SIZE, s[0]));
    ok(ds_check_get_point(s[0], &p));
    assert_int_equal(ds_check_why(p, q, text, sizeof text), DS_NOT_READY);
    expect_text(text, "; ordered up to operation 2\n");
    end();
}

/* ---- options ---- */

static const char *file_with(const char *text) {
    static char name[40];
    snprintf(name, sizeof name, "%s", output_new());
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return name;
}

static void test_patterns_have_stars_and_blank_lines(void **state) {
    static const struct {
        const char *pattern, *text;
        int matches;
    } pairs[] = { { "", "", 1 },          { "", "a", 0 },         { "*", "", 1 },
                  { "**", "ab", 1 },      { "a*", "a", 1 },       { "a**", "a", 1 },
                  { "a?", "a", 0 },       { "?", "a", 1 },        { "ab", "ac", 0 },
                  { "*b*d", "abcbd", 1 }, { "*b*d", "abcbe", 0 }, { "a*c?", "abcacd", 1 },
                  { "b", "a", 0 },        { "a", "ab", 0 },       { "*a", "aab", 0 },
                  { "ab*", "abc", 1 },    { "*?", "", 0 } };

    char options[200];
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (ds__race_matches(pairs[i].pattern, pairs[i].text) != pairs[i].matches)
            fail_msg("%s, %s", pairs[i].pattern, pairs[i].text);

    const char *name = file_with("# comment\n\n\r\nnothing\nhazard=write*\n");
    snprintf(options, sizeof options, "quiet,suppress=%s", name);
    begin(options);
    char *p = pinned(); /* the first call reads the file */
    unlink(name);
    assert_int_equal(ds__race.patterns, 2);
    ok(ds_fill(p, 1, 1, SIZE, stream("a")));
    ok(ds_fill(p, 1, 1, SIZE, stream("b")));
    assert_int_equal(stats_now().suppressed, 1);
    assert_int_equal(last.count, 0);
    end();
}

static void test_lists_of_options_are_read(void **state) {
    static const struct {
        const char *list, *sentence;
    } wrong[] = { { "exit=/", "use exit=1 to exit=125" },
                  { "exit=:", "use exit=1 to exit=125" },
                  { "exit=1x", "use exit=1 to exit=125" },
                  { "exit=126", "use exit=1 to exit=125" },
                  { "memory=1048577", "use memory=4 to memory=1048576" },
                  { "output=/nowhere/at/all", "No such file" } };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        expect_error(ds__race_configure(wrong[i].list), DS_ERR_INVALID_VALUE, wrong[i].sentence);
        assert_int_equal(ds__race.exit_code, 0);
        assert_null(ds__race.output);
    }
    ok(ds__race_configure(",1,,exit=3,"));
    assert_int_equal(ds__race.exit_code, 3);
    ok(ds__race_configure(NULL));
    assert_int_equal(ds__race.exit_code, 0);
}

/* ---- memory ---- */

/* An allocator that fails within the layer only: on a thread that holds a mutex of the library,
   while the layer's mutex is taken. */
static struct {
    _Atomic long left; /* allocations of the layer until one fails; 0: none fails */
    _Atomic int rest;  /* 1: those behind it fail, too */
    _Atomic int failed;
    _Atomic long alive;
} heap;

static int heap_is_layers(void) {
    if (!ds__locks_held(2))
        return 0;
    if (!ds__os_mutex_trylock(&ds__race.lock))
        return 1;
    ds__os_mutex_unlock(&ds__race.lock);
    return 0;
}

static void *heap_alloc(size_t size, void *user) {
    (void)user;
    if (heap.left && heap_is_layers() && (heap.left == 1 || --heap.left == 0)) {
        heap.left = heap.rest;
        heap.failed = 1;
        return NULL;
    }
    heap.alive++;
    return malloc(size);
}

static void heap_free(void *ptr, void *user) {
    (void)user;
    heap.alive -= ptr != NULL;
    free(ptr);
}

static char logged[300];

static void keep_log(const ds_log_item *item, void *user) {
    (void)user;
    snprintf(logged, sizeof logged, "%s", item->text);
}

static void begin_on_heap(const char *options) {
    static ds_cpu_desc cpu = { .devices = 1 };
    memset(&last, 0, sizeof last);
    heap.left = 0;
    heap.rest = heap.failed = 0;
    heap.alive = 0;
    ds_check_set_report_fn(take, NULL);
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                .check = options,
                                .log_fn = keep_log,
                                .allocator = { heap_alloc, heap_free, NULL },
                                .flags = DS_INIT_NO_CUDA }));
}

static int no_item(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

static ds_kernel kernel_with(ds_param_kind kind) {
    ds_param param = { kind, 0, sizeof(void *) };
    ds_extent extent = { .kind = DS_EXTENT_BYTES, .bytes = 64 };
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "kernel",
                                           .cpu_fn = no_item,
                                           .args_size = sizeof(void *),
                                           .params = &param,
                                           .param_count = 1,
                                           .extents = &extent },
                        &k));
    return k;
}

/* A capture of each kind of node, two launches, and a change between them. */
static void program_with_a_graph(ds_stream s, ds_stream t, ds_kernel k, char *p, ds_event e) {
    static const ds_extent half = { .kind = DS_EXTENT_BYTES, .bytes = 32 };
    ds_graph g;
    ds_graph_exec x;
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_fill(p, 1, 1, 64, s));
    ok(ds_copy(p + 128, p, 64, s));
    ok(ds_check_set_extents(&half, 1));
    ok(ds_kernel_launch(k, 1, &p, sizeof p, s));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_stream_write_value32(s, p + 512, 7));
    ok(ds_event_record_external(e, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_wait_value32(t, p + 512, 7, DS_VALUE_WAIT_EQ));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_synchronize(t));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
}

/* Collectives on one thread; their order is compared if the option "threads" is set. */
static void program_with_collectives(ds_stream s, ds_stream t) {
    ds_tensor *a;
    ds_tensor *b;
    ok(ds_tensor_alloc(ds_float32(), 1, (int64_t[]){ 64 }, s, &a));
    ok(ds_tensor_alloc(ds_float32(), 1, (int64_t[]){ 64 }, t, &b));
    const ds_tensor *both[] = { a, b };
    ok(ds_comm_all_reduce(
        both, both, 2, DS_REDUCE_SUM,
        &(ds_comm_options){ .streams = (ds_stream[]){ s, t }, .stream_count = 2 }));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_synchronize(t));
    ok(ds_tensor_free(a));
    ok(ds_tensor_free(b));
}

static void no_record(const ds_activity_batch *batch, void *user) {
    (void)batch, (void)user;
}

/* Everything that the layer keeps. */
static void program_of_all_kinds(void) {
    static char memory[2][SIZE];
    char text[100];
    ds_event e;
    void *block;
    ds_check_point p;
    ds_check_point q;
    ds_stream s = stream("s");
    ds_stream t = stream("t");
    ds_kernel k = kernel_with(DS_PARAM_WRITE);
    char *m = pinned();
    ok(ds_event_create(0, NULL, &e));
    ok(ds_activity_start(&(ds_activity_desc){ .fn = no_record })); /* operations have ids */
    ok(ds_check_declare_memory(memory[0], SIZE, "declared"));
    ok(ds_check_declare_memory(memory[1], SIZE, "second"));
    ok(ds_check_ignore(memory[0], 8));
    ok(ds_check_host_write(memory[0], SIZE));
    ok(ds_check_release(memory));
    ok(ds_check_acquire(memory));
    ok(ds_mem_alloc(SIZE, s, &block));
    ok(ds_stream_wait_stream(t, s));
    ok(ds_fill(block, 1, 1, SIZE, t));
    ok(ds_mem_record_use(block, t));
    ok(ds_fill(m, 1, 1, SIZE, s));
    ok(ds_fill(m, 1, 1, SIZE, t)); /* a race */
    ok(ds_event_record(e, s));
    ok(ds_stream_wait_event(t, e));
    ok(ds_stream_launch_host_func(t, nothing, NULL, NULL));
    ok(ds_stream_synchronize(t));
    ok(ds_stream_write_value32(t, m, 1));
    ok(ds_stream_wait_value32(s, m, 1, DS_VALUE_WAIT_GEQ));
    ok(ds_kernel_launch(k, 1, &m, sizeof m, s));
    if (ds_check_get_point(s, &p) == DS_OK && ds_check_get_point(t, &q) == DS_OK)
        DS_IGNORE(ds_check_why(p, q, text, sizeof text));
    ds__seen_operand operand = { .ptr = m, .bytes = 8, .reads = 1 };
    ds__seen captured = {
        .kind = DS__SEEN_CAPTURE, .ptr = m, .word = m + 8, .operand = &operand, .operands = 1
    };
    ds__race_seen(&captured);
    program_with_a_graph(s, t, k, m, e);
    captured.kind = DS__SEEN_CAPTURE_END;
    ds__race_seen(&captured);
    program_with_collectives(s, t);
    ok(ds_mem_free(block));
    ok(ds_check_forget_memory(memory[1]));
    ok(ds_check_declare_memory(memory[1], SIZE, "third"));
    ok(ds_activity_stop());
    ok(ds_event_destroy(e));
    ok(ds_kernel_destroy(k));
}

/* The program does not notice that the layer has no memory; the layer says it once, checks nothing
   afterwards, and returns all of its memory. */
static void run_out_of_memory(const char *options, int rest) {
    const char *said = "devstream check: no host memory; nothing is checked any more\n";
    char list[100];
    for (long n = 1;; n++) {
        const char *name = output_new();
        assert_true(n < 2000);
        snprintf(list, sizeof list, "%s,output=%s", options, name);
        begin_on_heap(list);
        heap.left = n;
        heap.rest = rest;
        program_of_all_kinds();
        int failed = heap.failed;
        heap.left = 0;
        if (failed) {
            int before = last.count;
            char *p = pinned();
            ok(ds_fill(p, 1, 1, SIZE, stream("later")));
            ok(ds_fill(p, 1, 1, SIZE, stream("last")));
            assert_int_equal(last.count, before);
            ok(ds_check_declare_order((ds_stream){ 0 }, (ds_stream){ 0 }));
            assert_int_equal(ds_check_get_point((ds_stream){ 0 }, &(ds_check_point){ 0 }),
                             DS_ERR_ILLEGAL_STATE);
        }
        end();
        assert_int_equal(heap.alive, 0);
        const char *text = output_read(name);
        const char *notice = strstr(text, said);
        assert_int_equal(notice != NULL, failed);
        assert_true(!notice || !strstr(notice + 1, said));
        if (!failed) {
            assert_true(last.count > 0);
            return;
        }
    }
}

static void test_the_layer_survives_a_lack_of_memory(void **state) {
    (void)state;
    run_out_of_memory("1", 0);
    run_out_of_memory("threads", 1);
}

static void test_a_lack_of_memory_is_logged_if_quiet(void **state) {
    static char memory[8];
    (void)state;
    begin_on_heap("quiet");
    (void)pinned();
    logged[0] = 0;
    heap.rest = 1;
    heap.left = 1;
    ok(ds_check_declare_memory(memory, 8, NULL));
    heap.left = 0;
    assert_int_equal(heap.failed, 1);
    assert_string_equal(logged, "check: no host memory; nothing is checked any more");
    end();
}

static void test_patterns_need_memory(void **state) {
    const char *name = file_with("one\ntwo\n");
    char list[100];
    (void)state;
    snprintf(list, sizeof list, "suppress=%s", name);
    ds__allocator = (ds_allocator){ heap_alloc, heap_free, NULL };
    heap.left = 0;
    heap.rest = heap.failed = 0;
    heap.alive = 0;
    for (long n = 1; n <= 3; n++) {
        ds__mutex_lock(&ds__race.lock); /* so that the allocator fails */
        heap.left = n;
        ds_result r = ds__race_configure(list);
        heap.left = 0;
        ds__mutex_unlock(&ds__race.lock);
        expect_error(r, DS_ERR_OUT_OF_MEMORY, "no memory for the suppressions");
        assert_int_equal(ds__race.patterns, 0);
        assert_int_equal(heap.alive, 0);
        ds__race.failed = 0;
    }
    ok(ds__race_configure(list));
    assert_int_equal(ds__race.patterns, 2);
    ok(ds__race_configure(NULL));
    assert_int_equal(heap.alive, 0);
    ds__allocator = (ds_allocator){ NULL, NULL, NULL };
    unlink(name);
}

/* ---- graphs that are large ---- */

/* Adds `count` nodes that read memory, and two that write other memory without an order. */
static void launch_large_graph(ds_stream s, uint32_t count) {
    ds_graph g;
    ds_graph_exec x;
    ds_graph_node node;
    char *p = pinned();
    char *end_of_p = p + SIZE - 64;
    ds_kernel reads = kernel_with(DS_PARAM_READ);
    ds_kernel writes = kernel_with(DS_PARAM_WRITE);
    ds_node_desc d = { .kind = DS_NODE_KERNEL,
                       .u.kernel = {
                           .kernel = reads, .items = 1, .args = &p, .args_size = sizeof p } };
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &g));
    for (uint32_t i = 0; i < count; i++)
        ok(ds_graph_add(g, &d, NULL, 0, &node));
    d.u.kernel.kernel = writes;
    d.u.kernel.args = &end_of_p;
    for (int i = 0; i < 2; i++)
        ok(ds_graph_add(g, &d, NULL, 0, &node));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
}

/* The nodes of a small graph are compared; a graph with too many nodes, or with too many pairs of
   accesses, is not compared to its end. */
static void test_large_graphs_are_checked_in_part(void **state) {
    static const struct {
        uint32_t nodes;
        int reports;
    } graphs[] = { { 10, 1 }, { 2900, 0 }, { DS__RACE_NODES - 1, 0 } };

    static ds_cpu_desc cpu = { .devices = 1 };
    (void)state;
    for (size_t i = 0; i < sizeof graphs / sizeof graphs[0]; i++) {
        memset(&last, 0, sizeof last);
        logged[0] = 0;
        ds_check_set_report_fn(take, NULL);
        ok(ds_init(&(ds_init_desc){
            .cpu = &cpu, .check = "quiet", .log_fn = keep_log, .flags = DS_INIT_NO_CUDA }));
        launch_large_graph(stream("launches"), graphs[i].nodes);
        assert_int_equal(last.count, graphs[i].reports);
        assert_int_equal(strstr(logged, "a graph has 8193 nodes") != NULL, i == 2);
        end();
    }
}

/* ---- memory ---- */

/* Rows of one operation may lie in several ranges. */
static void test_rows_lie_in_several_ranges(void **state) {
    static char memory[SIZE];
    (void)state;
    begin("quiet");
    ds_stream s = stream("first");
    ds_stream t = stream("second");
    ok(ds_check_declare_memory(memory, SIZE / 2, "lower"));
    ok(ds_check_declare_memory(memory + SIZE / 2, SIZE / 2, "upper"));
    ok(ds_fill_2d(memory + 8, 64, 1, 1, 8, SIZE / 64, s)); /* bytes 8 to 16 of each 64 */
    ok(ds_fill(memory, 1, 1, 8, t));
    ok(ds_fill(memory + SIZE - 48, 1, 1, 48, t));
    assert_int_equal(last.count, 0);
    ok(ds_fill(memory + SIZE - 64, 1, 1, 16, t)); /* the last row */
    assert_int_equal(last.count, 1);
    expect_text(last.text, "\"upper\"");
    expect_text(last.text, "bytes +[1992, 2000)");
    end();
}

/* Ignored bytes are those of each range that the call meets, and nothing beyond them. */
static void test_ignored_bytes_end_with_known_memory(void **state) {
    static char memory[SIZE];
    (void)state;
    begin("quiet");
    ds_stream s = stream("first");
    ds_stream t = stream("second");
    ok(ds_check_declare_memory(memory, 512, NULL));
    ok(ds_check_declare_memory(memory + 512, 512, NULL));
    ok(ds_check_ignore(memory + 256, SIZE - 256));
    ok(ds_check_declare_memory(memory + 1024, 512, NULL)); /* later */
    ok(ds_fill(memory + 256, 1, 1, 256, s));
    ok(ds_fill(memory + 200, 1, 1, 312, t)); /* the common bytes are ignored */
    ok(ds_fill(memory + 512, 1, 1, 512, s));
    ok(ds_fill(memory + 512, 1, 1, 512, t));
    assert_int_equal(last.count, 0);
    ok(ds_fill(memory + 190, 1, 1, 100, s)); /* 190 to 290: 200 to 256 are not */
    assert_int_equal(last.count, 1);
    ok(ds_fill(memory + 1024, 1, 1, 512, s));
    ok(ds_fill(memory + 1024, 1, 1, 512, t));
    assert_int_equal(last.count, 2);
    end();
}

/* At the limit of memory, freed ranges are forgotten before live ones are given up. */
static void test_at_the_limit_freed_ranges_go_first(void **state) {
    enum { RANGES = 8192, WRITES = 4 };

    static char memory[RANGES][WRITES * 2];
    static char live[SIZE];
    (void)state;
    begin("quiet,threads,memory=4");
    ds_stream s = stream("first");
    ds_stream t = stream("second");
    ok(ds_check_declare_memory(live, SIZE, "live"));
    ok(ds_fill(live, 1, 1, SIZE, s));
    for (size_t i = 0; i < RANGES; i++) {
        ok(ds_check_declare_memory(memory[i], sizeof memory[i], NULL));
        for (size_t k = 0; k < WRITES; k++)
            ok(ds_check_host_write(&memory[i][2 * k], 1));
        ok(ds_check_forget_memory(memory[i]));
    }
    ds_check_stats stats = stats_now();
    assert_int_equal(stats.evicted, 0);
    assert_true(stats.bytes <= 4 << 20);
    assert_true(ds__race.dead < RANGES);
    ok(ds_fill(live, 1, 1, SIZE, t));
    assert_int_equal(last.count, 1);
    end();
}

/* The oldest of the freed ranges are forgotten. */
static void test_freed_ranges_are_remembered_up_to_a_number(void **state) {
    static char memory[DS__RACE_DEAD + 8];
    (void)state;
    begin("quiet");
    for (size_t i = 0; i < sizeof memory; i++)
        ok(ds_check_declare_memory(memory + i, 1, NULL));
    for (size_t i = 0; i < sizeof memory; i++)
        ok(ds_check_forget_memory(memory + i));
    assert_int_equal(ds__race.dead, DS__RACE_DEAD);
    ds__mutex_lock(&ds__race.lock);
    ds__race_memory *oldest = ds__race_memory_find((uintptr_t)memory + 7);
    ds__race_memory *kept = ds__race_memory_find((uintptr_t)memory + 8);
    ds__mutex_unlock(&ds__race.lock);
    assert_null(oldest);
    assert_true(kept && kept->dead);
    end();
}

/* ---- states that are seldom ---- */

/* The layer has no timeline for a stream if there are too many: it forgets a stream here. */
static void forget_stream(ds_stream s) {
    ds__mutex_lock(&ds__race.lock);
    ds__race_line *l = ds__race_table_find(&ds__race.handles, s.id);
    assert_non_null(l);
    ds__race_table_remove_value(&ds__race.handles, l);
    ds__race_table_remove_value(&ds__race.natives, l);
    ds__mutex_unlock(&ds__race.lock);
}

/* Work on a stream that the layer does not know runs, and is not checked. */
static void test_an_unknown_stream_is_not_checked(void **state) {
    ds_event e;
    ds_graph g;
    ds_graph_exec x;
    ds_check_point point;
    void *block;
    (void)state;
    begin("quiet");
    ds_stream known = stream("known");
    ds_stream s = stream("unknown");
    char *p = pinned();
    ok(ds_event_create(0, NULL, &e));
    ok(ds_fill(p, 1, 1, SIZE, known));
    forget_stream(s);

    expect_error(ds_check_declare_order(s, known), DS_ERR_INVALID_HANDLE,
                 "from is not a stream that the layer knows");
    expect_error(ds_check_declare_order(known, s), DS_ERR_INVALID_HANDLE,
                 "to is not a stream that the layer knows");
    expect_error(ds_check_get_point(s, &point), DS_ERR_INVALID_HANDLE, "the stream was destroyed");
    uint64_t operations = stats_now().operations;
    ok(ds_fill(p, 1, 1, SIZE, s));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_event_record(e, s));
    ok(ds_stream_wait_event(s, e));
    ok(ds_mem_alloc(SIZE, s, &block));
    ok(ds_mem_record_use(block, s));
    ok(ds_mem_free(block));
    ok(ds_stream_synchronize(s));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_fill(p, 1, 1, SIZE, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(stats_now().operations, operations);
    ok(ds_stream_wait_stream(known, s)); /* an operation that orders nothing */
    ok(ds_stream_set_label(s, "other"));
    ok(ds_stream_destroy(s));
    assert_int_equal(last.count, 0);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    end();
}

/* Notices about blocks and events that the layer does not know change nothing. */
static void test_notices_of_unknown_objects_change_nothing(void **state) {
    static const int kinds[] = { DS__SEEN_FREE, DS__SEEN_USE, DS__SEEN_CAPTURE_END,
                                 DS__SEEN_RELEASE };
    char memory[8];
    (void)state;
    begin("quiet");
    char *p = pinned();
    ok(ds_fill(p, 1, 1, SIZE, stream("only")));
    ds_check_stats before = stats_now();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        ds__race_seen(&(ds__seen){ .kind = kinds[i], .ptr = memory });
    ds__race_seen(&(ds__seen){ .kind = DS__SEEN_WAIT, .event = { 12345 } });
    ds__race_seen(&(ds__seen){ .kind = DS__SEEN_WAIT, .stream = { 12345 } });
    ds__race_seen(&(ds__seen){ .kind = DS__SEEN_WAIT, .result = DS_ERR_INVALID_VALUE });
    ds__race_seen(&(ds__seen){ .kind = DS__SEEN_UNRECORDED, .stream = { 12345 } });
    ds_check_stats after = stats_now();
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(last.count, 0);
    ok(ds_check_host_read(p, SIZE)); /* no wait has succeeded */
    assert_int_equal(last.count, 1);
    end();
}

/* Of two call sites with one key, each has a number of its own. */
static void test_places_with_one_key_differ(void **state) {
    static const char files[64] = "file";
    (void)state;
    begin("quiet");
    (void)pinned(); /* the first call starts the layer */
    ds__mutex_lock(&ds__race.lock);
    assert_int_equal(ds__race_place_key("op", files, 63), ds__race_place_key("op", files + 2, 1));
    uint32_t first = ds__race_place_named("op", files, 63);
    uint32_t second = ds__race_place_named("op", files + 2, 1);
    uint32_t again[] = { ds__race_place_named("op", files, 63),
                         ds__race_place_named("op", files + 2, 1) };
    ds__mutex_unlock(&ds__race.lock);
    assert_int_not_equal(first, second);
    assert_int_equal(again[0], first);
    assert_int_equal(again[1], second);
    end();
}

static void test_words_meet_each_condition(void **state) {
    static const struct {
        ds_value_kind kind;
        unsigned size;
        uint64_t value, word;
        int meets;
    } table[] = { { DS_VALUE_WAIT_GEQ, 4, 5, 5, 1 },
                  { DS_VALUE_WAIT_GEQ, 4, 5, 4, 0 },
                  { DS_VALUE_WAIT_GEQ, 4, 0xfffffff0, 8, 1 }, /* cyclic */
                  { DS_VALUE_WAIT_GEQ, 8, 0xfffffff0, 8, 0 },
                  { DS_VALUE_WAIT_GEQ, 8, UINT64_MAX - 1, 8, 1 },
                  { DS_VALUE_WAIT_EQ, 8, 5, 5, 1 },
                  { DS_VALUE_WAIT_EQ, 4, 5, 6, 0 },
                  { DS_VALUE_WAIT_AND, 4, 6, 4, 1 },
                  { DS_VALUE_WAIT_AND, 4, 6, 1, 0 },
                  { DS_VALUE_WAIT_NOR, 4, 0xffff0000, 0xffff, 0 },
                  { DS_VALUE_WAIT_NOR, 4, 0xffff0000, 0xfffe, 1 },
                  { DS_VALUE_WAIT_NOR, 8, 0xffff0000, 0xffff, 1 },
                  { DS_VALUE_WAIT_NOR, 8, UINT64_MAX, 0, 0 } };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        ds_value_op op = { .value = table[i].value, .kind = table[i].kind, .size = table[i].size };
        if (ds__race_value_meets(&op, table[i].word) != table[i].meets)
            fail_msg("row %zu", i);
    }
}

/* A captured operation between ranks is known by both keys until no graph has it. */
static void test_captured_operations_are_forgotten(void **state) {
    static char argument[8];
    static uint32_t word;
    ds__seen_operand operands[] = { { .ptr = argument, .bytes = 8, .writes = 1 }, { .bytes = 0 } };
    ds__seen seen = { .ptr = argument, .word = &word, .operand = operands, .operands = 2 };
    (void)state;
    begin("quiet");
    (void)pinned(); /* the first call starts the layer */
    seen.kind = DS__SEEN_CAPTURE;
    ds__race_seen(&seen);
    seen.kind = DS__SEEN_CAPTURE_END;
    ds__mutex_lock(&ds__race.lock);
    const ds__race_captured *c = ds__race_captured_find(argument);
    const ds__race_captured *by_word = ds__race_captured_find(&word);
    size_t count = c ? c->count : 0;
    int is_named = c && strcmp(c->fn, "a collective") == 0;
    size_t bytes = ds__race.bytes;
    ds__mutex_unlock(&ds__race.lock);
    assert_non_null(c);
    assert_ptr_equal(c, by_word);
    assert_int_equal(count, 1);
    assert_true(is_named);

    for (int i = 0; i < 2; i++) /* the second time, it is not known any more */
        ds__race_seen(&seen);
    ds__mutex_lock(&ds__race.lock);
    c = ds__race_captured_find(argument);
    by_word = ds__race_captured_find(&word);
    bytes -= ds__race.bytes;
    ds__mutex_unlock(&ds__race.lock);
    assert_null(c);
    assert_null(by_word);
    assert_int_equal(bytes, sizeof(ds__race_captured) + 2 * sizeof(ds__race_captured_access));
    end();
}

static _Atomic int written;

static void writes(void *ptr) {
    ok(ds_check_host_write(ptr, SIZE));
    atomic_store(&written, 1);
}

/* A trace has the ids of both operations of a race, also of a host function. */
static void test_a_race_with_a_host_function_has_its_id(void **state) {
    static ds_cpu_desc cpu = { .devices = 1 };
    uint32_t host = 0;
    uint32_t fill = 0;
    ds__trace_record race = { 0 };
    (void)state;
    ok(ds_init(&(ds_init_desc){
        .cpu = &cpu, .check = "quiet", .layers = "trace", .flags = DS_INIT_NO_CUDA }));
    ds_stream s = stream("writes");
    ds_stream t = stream("fills");
    char *p = pinned();
    atomic_store(&written, 0);
    ok(ds_trace_start(NULL));
    ok(ds_stream_launch_host_func(s, writes, p, NULL));
    while (!atomic_load(&written)) /* orders nothing */
        usleep(100);
    ok(ds_fill(p, 1, 1, SIZE, t));
    ok(ds_stream_synchronize(t));
    ok(ds_trace_stop());
    for (size_t i = 0; i < ds__trace.head; i++) {
        const ds__trace_record *r = &ds__trace.ring[i];
        host = r->kind == DS__TRACE_HOST_FUNC ? r->id : host;
        fill = r->kind == DS__TRACE_FILL ? r->id : fill;
        if (r->kind == DS__TRACE_RACE)
            race = *r;
    }
    assert_true(host && fill);
    assert_int_equal(race.kind, DS__TRACE_RACE);
    assert_int_equal(race.cause, host);
    assert_int_equal(race.id, fill);
    ok(ds_shutdown());
}

/* The layer lets no caller run the work of several streams, of which it would see nothing. */
static void test_work_of_several_streams_is_enqueued(void **state) {
    int ran = 1;
    (void)state;
    begin("quiet");
    (void)pinned(); /* the first call starts the layer */
    const ds__driver *driver = ds__driver_of(ds_cpu(0));
    assert_int_equal(driver->inline_bytes, 0);
    ok(driver->run_together(NULL, 0, nothing, NULL, &ran));
    assert_int_equal(ran, 0);
    end();
}

/* ---- CUDA ---- */

static ds_stream cuda_stream(const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .label = label }, &s));
    return s;
}

/* Memory that a driver registers, and that its own pool gives out in the order of a stream. */
static void test_memory_of_drivers_is_known(void **state) {
    (void)state;
    for (int cuda = 0; cuda < 2; cuda++) {
        static ds_cpu_desc cpu = { .devices = 1 };
        static _Alignas(4096) char memory[SIZE];
        ds_resource pool;
        void *p;
        memset(&last, 0, sizeof last);
        ds_check_set_report_fn(take, NULL);
        ok(ds_init(
            &(ds_init_desc){ .cpu = &cpu, .check = "quiet", .flags = cuda ? 0 : DS_INIT_NO_CUDA }));
        if (cuda && !ds_backend_is_available(DS_DEVICE_CUDA)) {
            ok(ds_shutdown());
            skip();
        }
        ds_stream s = cuda ? cuda_stream("first") : stream("first");
        ds_stream t = cuda ? cuda_stream("second") : stream("second");
        ok(ds_pinned_register(memory, SIZE));
        ok(ds_fill(memory, 1, 1, SIZE, s));
        ok(ds_fill(memory, 1, 1, SIZE, t));
        assert_int_equal(last.count, 1);
        assert_int_equal(last.hazard, DS_HAZARD_WRITE_AFTER_WRITE);
        ok(ds_stream_synchronize(s));
        ok(ds_stream_synchronize(t));
        ok(ds_pinned_unregister(memory));

        ok(ds_resource_create_driver_pool(&pool));
        ds_check_stats before = stats_now();
        ok(ds_resource_alloc(&pool, SIZE, 256, s, &p));
        assert_int_equal(stats_now().ranges, before.ranges + 1);
        ok(ds_fill(p, 1, 1, SIZE, s));
        ok(ds_stream_wait_stream(t, s));
        ok(ds_fill(p, 2, 1, SIZE, t));
        ok(ds_stream_wait_stream(s, t));
        ok(ds_resource_free(&pool, p, SIZE, s));
        ds_check_stats after = stats_now();
        assert_int_equal(after.ranges, before.ranges);
        assert_int_equal(after.accesses, before.accesses + 2);
        assert_int_equal(after.unchecked, before.unchecked);
        assert_int_equal(last.count, 1);
        ok(ds_stream_synchronize(s));
        ok(ds_stream_synchronize(t));
        ok(ds_shutdown());
    }
}

/* Wrapped handles of CUDA's own streams are these streams: the legacy stream waits for blocking
   streams and the per-thread stream, and they wait for it. */
static void test_wrapped_streams_of_cuda_keep_their_rules(void **state) {
    static ds_cpu_desc cpu = { .devices = 1 };
    (void)state;
    for (uintptr_t handle = 0; handle < 3; handle++) {
        ds_stream wrapped;
        ds_stream blocking;
        memset(&last, 0, sizeof last);
        ds_check_set_report_fn(take, NULL);
        ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .check = "quiet" }));
        if (!ds_backend_is_available(DS_DEVICE_CUDA)) {
            ok(ds_shutdown());
            skip();
        }
        ds_stream_native native = { .device = ds_cuda(0), .handle = (void *)handle };
        ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &wrapped));
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0), .flags = DS_STREAM_BLOCKING },
                            &blocking));
        char *p = pinned();
        ok(ds_fill(p, 1, 1, SIZE, wrapped));
        ok(ds_fill(p, 1, 1, SIZE, blocking));
        assert_int_equal(last.count, handle == 2); /* both only wait for the legacy stream */
        char *q = pinned();
        ok(ds_fill(q, 1, 1, SIZE, wrapped));
        ok(ds_stream_synchronize(wrapped));
        ok(ds_check_host_read(q, SIZE));
        assert_int_equal(last.count, handle == 2);
        ok(ds_check_get_point(wrapped, &(ds_check_point){ 0 }));
        ok(ds_device_synchronize(ds_cuda(0)));
        ok(ds_shutdown());
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_arguments_are_named),
        cmocka_unit_test(test_only_declared_memory_is_forgotten),
        cmocka_unit_test(test_user_code_may_not_call_the_layer),
        cmocka_unit_test(test_without_the_layer_nothing_is_declared),
        cmocka_unit_test(test_why_prints_to_standard_error),
        cmocka_unit_test(test_why_follows_events_and_cuts_long_chains),
        cmocka_unit_test(test_patterns_have_stars_and_blank_lines),
        cmocka_unit_test(test_lists_of_options_are_read),
        cmocka_unit_test(test_the_layer_survives_a_lack_of_memory),
        cmocka_unit_test(test_a_lack_of_memory_is_logged_if_quiet),
        cmocka_unit_test(test_patterns_need_memory),
        cmocka_unit_test(test_large_graphs_are_checked_in_part),
        cmocka_unit_test(test_rows_lie_in_several_ranges),
        cmocka_unit_test(test_ignored_bytes_end_with_known_memory),
        cmocka_unit_test(test_at_the_limit_freed_ranges_go_first),
        cmocka_unit_test(test_freed_ranges_are_remembered_up_to_a_number),
        cmocka_unit_test(test_an_unknown_stream_is_not_checked),
        cmocka_unit_test(test_notices_of_unknown_objects_change_nothing),
        cmocka_unit_test(test_places_with_one_key_differ),
        cmocka_unit_test(test_words_meet_each_condition),
        cmocka_unit_test(test_captured_operations_are_forgotten),
        cmocka_unit_test(test_a_race_with_a_host_function_has_its_id),
        cmocka_unit_test(test_work_of_several_streams_is_enqueued),
        cmocka_unit_test(test_memory_of_drivers_is_known),
        cmocka_unit_test(test_wrapped_streams_of_cuda_keep_their_rules),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
