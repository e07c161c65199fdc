/* Traces of small programs: each operation is there, in order, with the operation for which each
   wait waited; the formats, the ring, the end of a process, options, dumps and reports. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_trace.h"
#include "devstream_check.h"
#include "devstream_rng.h"
#include "devstream_comm.h"
#include "trace_file.h"
#include "unit.h"

enum { SIZE = 1 << 16 };

static char folder[64];

/* Returns the path of a file in the folder of this process; a few are valid at once. */
static const char *path_of(const char *name) {
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Starts devstream with these options of the layer; NULL: the layer is on, and no trace runs. */
static void begin(const char *options) {
    static ds_cpu_desc cpu = { .devices = 2 };
    char text[300];
    snprintf(text, sizeof text, "%s", options ? options : "");
    ok(ds_init(&(ds_init_desc){
        .cpu = &cpu, .trace = options ? text : NULL, .layers = options ? NULL : "trace" }));
}

static ds_stream stream_on(ds_device device, const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device, .label = label }, &s));
    return s;
}

/* One device of each driver. */
#define EACH_DEVICE(device)                                                       \
    for (int cuda_ = 0; cuda_ < 2; cuda_++)                                       \
        for (ds_device device = cuda_ ? ds_cuda(0) : ds_cpu(0), *once_ = &device; \
             once_ && (!cuda_ || ds_backend_is_available(DS_DEVICE_CUDA)); once_ = NULL)

/* A host function that keeps its stream until the gate opens. */
typedef struct gate {
    _Atomic int entered, open;
} gate;

static void gate_fn(void *user) {
    gate *g = user;
    atomic_store(&g->entered, 1);
    while (!atomic_load(&g->open))
        usleep(100);
}

static void set_flag(void *flag) {
    atomic_store((_Atomic int *)flag, 1);
}

static size_t count_kind(const trace_file *t, int kind) {
    size_t n = 0;
    for (size_t i = 0; i < t->records; i++)
        n += t->record[i].kind == kind;
    return n;
}

/* Returns the n-th record of a call, or NULL. */
static const trace_record *find_call(const trace_file *t, const char *call, size_t n) {
    for (size_t i = 0; i < t->records; i++)
        if (strcmp(trace_text(t, t->record[i].call), call) == 0 && n-- == 0)
            return &t->record[i];
    return NULL;
}

static trace_file read_trace(const char *path) {
    trace_file t;
    if (!trace_read(path, &t))
        fail_msg("%s is not a trace", path);
    const char *wrong = trace_wrong(&t);
    if (wrong)
        fail_msg("%s: %s", path, wrong);
    return t;
}

/* ---- records ---- */

static void test_each_operation_is_in_the_trace(void **state) {
    (void)state;
    begin(NULL);
    EACH_DEVICE(device) {
        _Atomic int flag = 0;
        void *host, *memory;
        ds_event e;
        ds_stream s = stream_on(device, "first");
        ds_stream other = stream_on(device, "second");
        ok(ds_pinned_alloc(SIZE, &host));
        ok(ds_device_alloc(device, SIZE, &memory));
        ok(ds_event_create(DS_EVENT_TIMING, NULL, &e));

        ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("each.html") }));
        int line = __LINE__;
        ok(ds_fill(memory, 1, 1, SIZE, s));
        ok(ds_copy(host, memory, SIZE, s));
        ok(ds_stream_launch_host_func(s, set_flag, (void *)&flag, NULL));
        ok(ds_event_record(e, s));
        ok(ds_stream_wait_event(other, e));
        ok(ds_fill(memory, 2, 4, 100, other));
        ok(ds_stream_synchronize(other));
        ok(ds_trace_stop());

        trace_file t = read_trace(path_of("each.html"));
        assert_true(t.ended && !t.cut && !t.dropped);
        assert_string_equal(t.driver, ds_backend_is_available(DS_DEVICE_CUDA) ? "cuda" : "cpu");

        static const struct {
            const char *call;
            int kind;
            uint64_t bytes;
        } want[] = { { "ds_fill", 3, SIZE },
                     { "ds_copy", 2, SIZE },
                     { "ds_stream_launch_host_func", 4, 0 },
                     { "ds_event_record", 5, 0 },
                     { "ds_fill", 3, 400 },
                     { "ds_stream_synchronize", 16, 0 } };

        static const int lines[] = { 1, 2, 3, 4, 6, 7 };
        for (int i = 0; i < 6; i++) {
            const trace_record *r = find_call(&t, want[i].call, i == 4);
            assert_non_null(r);
            assert_int_equal(r->kind, want[i].kind);
            assert_int_equal(r->amount, want[i].bytes);
            assert_int_equal(r->line, line + lines[i]);
            assert_non_null(strstr(trace_text(&t, r->file), "test_trace.c"));
            if (i < 5)
                assert_string_equal(trace_text(&t, t.stream[r->row].label),
                                    i < 4 ? "first" : "second");
        }
        const trace_record *copy = find_call(&t, "ds_copy", 0);
        assert_int_equal(copy->dst, 0);
        assert_int_equal(copy->src, t.stream[copy->row].device + 1);
        assert_int_equal(flag, 1);
        ok(ds_event_destroy(e));
        ok(ds_device_free(memory));
        ok(ds_pinned_free(host));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
    }
    ok(ds_shutdown());
}

static void test_a_wait_names_the_operation_it_waits_for(void **state) {
    (void)state;
    begin(NULL);
    EACH_DEVICE(device) {
        void *memory;
        ds_event e;
        gate g = { 0, 0 };
        ds_stream s = stream_on(device, "first");
        ds_stream other = stream_on(device, "second");
        ok(ds_device_alloc(device, SIZE, &memory));
        ok(ds_event_create(0, NULL, &e));

        ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("wait.html") }));
        ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
        ok(ds_fill(memory, 1, 1, SIZE, s));
        ok(ds_event_record(e, s));
        ok(ds_fill(memory, 2, 1, SIZE, s));
        ok(ds_stream_wait_event(other, e));
        ok(ds_stream_wait_stream(s, other));
        atomic_store(&g.open, 1);
        ok(ds_stream_synchronize(s));
        ok(ds_trace_stop());

        trace_file t = read_trace(path_of("wait.html"));
        const trace_record *wait = find_call(&t, "ds_stream_wait_event", 0);
        assert_non_null(wait);
        assert_int_equal(wait->kind, 6);
        assert_int_equal(wait->cause, find_call(&t, "ds_fill", 0)->id);
        const trace_record *back = find_call(&t, "ds_stream_wait_stream", 0);
        assert_non_null(back);
        assert_int_equal(back->cause, wait->id);
        const trace_record *host = find_call(&t, "ds_stream_synchronize", 0);
        assert_int_equal(host->cause, back->id);
        ok(ds_event_destroy(e));
        ok(ds_device_free(memory));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
    }
    ok(ds_shutdown());
}

#ifdef DEVSTREAM_CUDA
static int (*cuda_query)(cudaEvent_t);
static _Atomic int wants_delay, has_run;
static gate cause_gate; /* keeps the operation for which the wait waits */

/* The collecting thread sees the operation pending, and then the wait complete. */
static int query_slowly(cudaEvent_t event) {
    int code = cuda_query(event);
    if (atomic_exchange(&wants_delay, 0)) {
        atomic_store(&cause_gate.open, 1);
        while (!atomic_load(&has_run))
            usleep(100);
    }
    return code;
}
#endif

/* The clock of the second device is 100 ms late. */
static void test_a_wait_ends_after_its_cause_whatever_the_clocks(void **state) {
    (void)state;
#ifdef DEVSTREAM_CUDA
    begin(NULL);
    if (!ds_backend_is_available(DS_DEVICE_CUDA)) {
        ok(ds_shutdown());
        skip();
    }
    ds_event e;
    ds_stream first = stream_on(ds_cuda(0), "first");
    ds_stream second = stream_on(ds_cuda(1), "second");
    ok(ds_event_create(0, NULL, &e));
    cuda_query = (int (*)(cudaEvent_t))ds__cuda.cuEventQuery;
    ds__cuda.cuEventQuery = query_slowly;
    ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("clocks.html") }));
    ok(ds_stream_launch_host_func(second, set_flag, (void *)&has_run, NULL));
    ok(ds_stream_synchronize(second));
    ok(ds_trace_flush());
    atomic_store(&has_run, 0);
    ds__spinlock_lock(&ds__cuda_activity.lock);
    for (int i = 0; i < 2; i++)
        ds__cuda_activity.base[1][i].ns -= 100000000;
    ds__spinlock_unlock(&ds__cuda_activity.lock);

    ok(ds_stream_launch_host_func(first, gate_fn, &cause_gate, NULL));
    ok(ds_event_record(e, first));
    ok(ds_stream_wait_event(second, e));
    ok(ds_stream_launch_host_func(second, set_flag, (void *)&has_run, NULL));
    atomic_store(&wants_delay, 1);
    ok(ds_stream_synchronize(second));
    ok(ds_trace_stop());

    trace_file t = read_trace(path_of("clocks.html"));
    const trace_record *cause = trace_find(&t, find_call(&t, "ds_stream_wait_event", 0)->cause);
    assert_string_equal(trace_text(&t, t.stream[cause->row].label), "first");
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(first));
    ok(ds_stream_destroy(second));
    ok(ds_shutdown());
#else
    skip();
#endif
}

static void test_nodes_of_a_launch_have_records(void **state) {
    (void)state;
    begin(NULL);
    _Atomic int flag = 0;
    void *memory;
    ds_graph graph;
    ds_graph_exec exec;
    ds_stream s = stream_on(ds_cpu(0), "launches");
    ds_stream other = stream_on(ds_cpu(0), NULL);
    ok(ds_device_alloc(ds_cpu(0), SIZE, &memory));
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_fill(memory, 1, 1, SIZE / 2, s));
    ok(ds_stream_wait_stream(other, s));
    ok(ds_fill((char *)memory + SIZE / 2, 2, 1, SIZE / 2, other));
    ok(ds_stream_launch_host_func(s, set_flag, (void *)&flag, NULL));
    ok(ds_stream_wait_stream(s, other));
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));

    ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("nodes.html") }));
    ok(ds_graph_launch(exec, s));
    ok(ds_graph_launch(exec, s));
    ok(ds_stream_synchronize(s));
    ok(ds_trace_stop());

    trace_file t = read_trace(path_of("nodes.html"));
    assert_int_equal(count_kind(&t, 8), 2);
    assert_int_equal(count_kind(&t, 9), 6);
    for (size_t i = 0; i < t.records; i++) {
        const trace_record *r = &t.record[i];
        const trace_record *launch = r->kind == 9 ? trace_find(&t, r->cause) : NULL;
        if (r->kind != 9)
            continue;
        assert_non_null(launch);
        assert_int_equal(launch->kind, 8);
        assert_true(r->begin >= launch->begin && r->end <= launch->end);
        assert_non_null(strstr(trace_text(&t, t.stream[r->row].label), "launches lane "));
        assert_true(r->flags & 2);
    }
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    ok(ds_device_free(memory));
    ok(ds_shutdown());
}

static void test_blocks_ranges_and_fills_are_in_the_trace(void **state) {
    (void)state;
    begin(NULL);
    void *block;
    ds_range range;
    ds_rng rng;
    ds_stream s = stream_on(ds_cpu(0), NULL);
    ok(ds_rng_create(NULL, &rng));
    ok(ds_thread_set_label("main thread"));

    ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("blocks.html") }));
    ok(ds_thread_set_label("worker \"<b>\""));
    assert_int_equal(ds_range_push("outer"), 0);
    assert_int_equal(ds_range_push("inner"), 1);
    ok(ds_range_mark("here"));
    ok(ds_mem_alloc(1000, s, &block));
    int line = __LINE__ - 1;
    assert_int_equal(ds_range_pop(), 1);
    ok(ds_range_start("free", &range));
    ok(ds_mem_free(block));
    ok(ds_range_end(range));
    assert_int_equal(ds_range_pop(), 0);
    ds_result shortage = ds_mem_alloc((size_t)1 << 60, s, &block);
    ok(ds_trace_stop());

    assert_true(shortage < 0);
    trace_file t = read_trace(path_of("blocks.html"));
    assert_int_equal(count_kind(&t, 24), 1);
    assert_int_equal(count_kind(&t, 25), 1);
    assert_int_equal(count_kind(&t, 26), 1);
    assert_int_equal(count_kind(&t, 18), 1);
    const trace_record *alloc = find_call(&t, "ds_mem_alloc", 0);
    assert_int_equal(alloc->kind, 24);
    assert_int_equal(alloc->amount, 1000);
    assert_int_equal(alloc->line, line);
    assert_int_equal(alloc->time, (uintptr_t)find_call(&t, "ds_mem_free", 0)->time);
    assert_string_equal(trace_text(&t, find_call(&t, "ds_range_mark", 0)->name), "here");
    const trace_record *inner = find_call(&t, "ds_range_push", 0);
    const trace_record *outer = find_call(&t, "ds_range_push", 1);
    assert_string_equal(trace_text(&t, inner->name), "inner");
    assert_string_equal(trace_text(&t, outer->name), "outer");
    assert_true(outer->begin < inner->begin && inner->end <= outer->end);
    assert_true(alloc->begin >= inner->begin && alloc->begin <= inner->end);
    assert_string_equal(trace_text(&t, find_call(&t, "ds_range_start", 0)->name), "free");
    assert_string_equal(trace_text(&t, t.thread[inner->row].label), "worker \"<b>\"");
    size_t size;
    assert_null(strstr(trace_read_all(path_of("blocks.html"), &size), "worker \\\"<b>"));
    ok(ds_rng_destroy(rng));
    ok(ds_shutdown());
}

/* ---- the ring and files ---- */

/* A program that fills, copies and waits, n times. */
static void pipeline(int n, ds_stream *s, char *memory) {
    for (int i = 0; i < n; i++) {
        ok(ds_fill(memory, (uint32_t)i, 1, SIZE, s[0]));
        ok(ds_stream_wait_stream(s[1], s[0]));
        ok(ds_copy(memory + SIZE, memory, SIZE, s[1]));
        ok(ds_stream_wait_stream(s[0], s[1]));
    }
}

static void pipeline_on(ds_device device, int n) {
    void *memory;
    ds_stream s[2] = { stream_on(device, "fills"), stream_on(device, "copies") };
    ok(ds_device_alloc(device, 2 * SIZE, &memory));
    pipeline(n, s, memory);
    ok(ds_stream_synchronize(s[0]));
    ok(ds_stream_synchronize(s[1]));
    ok(ds_device_free(memory));
    ok(ds_stream_destroy(s[0]));
    ok(ds_stream_destroy(s[1]));
}

static void test_the_ring_keeps_the_last_records(void **state) {
    (void)state;
    ds_trace_stats stats;
    begin("ring=256");
    pipeline_on(ds_cpu(0), 400);
    ok(ds_trace_dump(path_of("ring.html")));
    ok(ds_trace_get_stats(&stats));

    trace_file t = read_trace(path_of("ring.html"));
    assert_int_equal(t.records, 256);
    assert_int_equal(stats.kept, 256);
    assert_true(stats.records > 256 && stats.operations >= 800);
    assert_int_equal(stats.written, 0);
    assert_int_equal(t.dropped, 0);
    ok(ds_shutdown());
}

static void test_a_trace_starts_and_stops_again(void **state) {
    (void)state;
    ds_trace_stats stats;
    begin(NULL);
    ds_stream kept = stream_on(ds_cpu(0), "kept");
    for (int round = 0; round < 3; round++) {
        void *memory;
        ok(ds_device_alloc(ds_cpu(0), SIZE, &memory));
        ok(ds_fill(memory, 0, 1, SIZE, kept));
        ok(ds_stream_synchronize(kept));
        ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("again.html") }));
        assert_int_equal(ds_trace_start(NULL), DS_ERR_ILLEGAL_STATE);
        for (int i = 0; i <= round; i++)
            ok(ds_fill(memory, 1, 1, SIZE, kept));
        ok(ds_trace_stop());
        assert_int_equal(ds_trace_stop(), DS_ERR_ILLEGAL_STATE);
        ok(ds_trace_get_stats(&stats));

        trace_file t = read_trace(path_of("again.html"));
        assert_int_equal(count_kind(&t, 3), round + 1);
        assert_string_equal(trace_text(&t, t.stream[t.record[0].row].label), "kept");
        assert_int_equal(stats.operations, round + 1);
        ok(ds_device_free(memory));
    }
    ok(ds_shutdown());
}

static void test_the_trace_ends_with_devstream(void **state) {
    (void)state;
    char options[300];
    snprintf(options, sizeof options, "%s,dump=%s", path_of("whole.html"), path_of("dump.html"));
    begin(options);
    pipeline_on(ds_cpu(0), 5);
    ok(ds_shutdown());

    const char *files[] = { path_of("whole.html"), path_of("dump.html") };
    for (int i = 0; i < 2; i++) {
        trace_file t = read_trace(files[i]);
        assert_true(t.ended);
        assert_int_equal(count_kind(&t, 3), 5);
        assert_int_equal(count_kind(&t, 2), 5);
    }
}

/* The process that is killed: this program with other arguments. */
static int run_until_killed(const char *options) {
    begin(options);
    pipeline_on(ds_cpu(0), 100);
    ok(ds_trace_flush());
    while (write(1, "x", 1) == 1)
        pipeline_on(ds_cpu(0), 100);
    return 1;
}

static void test_a_killed_process_leaves_a_trace(void **state) {
    (void)state;
    const char *path = path_of("killed.html");
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ready[1], 1);
        execl("/proc/self/exe", "test_trace", "--killed", path, (char *)NULL);
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    usleep(20000);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);

    trace_file t = read_trace(path_of("killed.html"));
    assert_false(t.ended);
    assert_true(count_kind(&t, 3) >= 100);
    close(ready[0]);
    close(ready[1]);
}

/* ---- Chrome's format ---- */

/* A number with three decimals at most. */
static double microseconds(const json *event, const char *name) {
    const json *v = json_get(event, name);
    assert_non_null(v);
    assert_int_equal(v->kind, JSON_NUMBER);
    const char *point = strchr(v->text, '.');
    assert_true(point && strlen(point) == 4);
    return strtod(v->text, NULL);
}

/* Returns the text of a member of the arguments. */
static const char *argument(const json *event, const char *name) {
    return json_text(json_get(event, "args"), name);
}

/* Returns the event of a mark's track in which its time is, or the first one behind it; NULL: none.
 */
static const json *event_at(const json *list, const json *mark, int is_behind) {
    for (size_t i = 0; i < list->count; i++) {
        const json *e = &list->item[i];
        if (*json_text(e, "ph") != 'X' ||
            strcmp(json_text(e, "pid"), json_text(mark, "pid")) != 0 ||
            strcmp(json_text(e, "tid"), json_text(mark, "tid")) != 0)
            continue;
        double into = microseconds(mark, "ts") - microseconds(e, "ts");
        if (is_behind ? into < 0.0005
                      : into > -0.0005 && into < fmax(microseconds(e, "dur"), 0.001) - 0.0005)
            return e;
    }
    return NULL;
}

/* An arrow leads from the operation that a wait names to the operation behind the wait, if there
   is one. */
static void expect_arrow(const json *list, const json *begin, const json *end) {
    const json *operation = event_at(list, begin, 0), *next = event_at(list, end, 1);
    const json *wait = NULL;
    assert_int_equal(*json_text(end, "ph"), 'f');
    assert_string_equal(json_text(begin, "id"), json_text(end, "id"));
    assert_true(microseconds(begin, "ts") <= microseconds(end, "ts") + 0.0005);
    for (size_t i = 0; i < list->count && !wait; i++)
        if (strcmp(json_text(&list->item[i], "cat"), "wait") == 0 &&
            strcmp(argument(&list->item[i], "id"), json_text(end, "id")) == 0)
            wait = &list->item[i];
    assert_true(wait && operation);
    assert_string_equal(argument(wait, "waits for"), argument(operation, "id"));
    if (!next)
        return;
    assert_string_not_equal(json_text(next, "cat"), "wait");
    assert_true(atoi(argument(next, "id")) > atoi(argument(wait, "id")));
}

/* The events of each track are in order and do not overlap, and each arrow has both ends. */
static void expect_events(const json *list, size_t *out_arrows) {
    size_t arrows = 0;
    for (size_t i = 0; i < list->count; i++) {
        const json *e = &list->item[i];
        const char *phase = json_text(e, "ph");
        assert_int_equal(e->kind, JSON_OBJECT);
        assert_non_null(json_get(e, "pid"));
        assert_non_null(json_get(e, "name"));
        assert_true(strlen(phase) == 1 && strchr("MXCisf", *phase));
        if (*phase == 'M')
            continue;
        double begin = microseconds(e, "ts");
        if (*phase == 's') {
            expect_arrow(list, e, &list->item[i + 1]);
            arrows++;
        }
        if (*phase != 'X' || strcmp(json_text(e, "pid"), "0") == 0)
            continue;
        double end = begin + microseconds(e, "dur");
        for (size_t k = i; k-- > 0;) {
            const json *o = &list->item[k];
            if (*json_text(o, "ph") == 'X' &&
                strcmp(json_text(o, "pid"), json_text(e, "pid")) == 0 &&
                strcmp(json_text(o, "tid"), json_text(e, "tid")) == 0)
                assert_true(microseconds(o, "ts") + microseconds(o, "dur") <= begin + 0.0005 ||
                            end <= microseconds(o, "ts") + 0.0005);
        }
    }
    *out_arrows = arrows;
}

static json read_json(const char *path) {
    size_t size;
    json list;
    char *text = trace_read_all(path, &size);
    assert_non_null(text);
    size_t wrong = json_parse(text, size, &list);
    if (wrong)
        fail_msg("%s: wrong at byte %zu: %.40s", path, wrong, text + wrong - 1);
    assert_int_equal(list.kind, JSON_ARRAY);
    return list;
}

static void test_chromes_format_has_the_same_events(void **state) {
    (void)state;
    begin(NULL);
    EACH_DEVICE(device) {
        size_t arrows;
        size_t fills = 0, waits = 0, names = 0;
        long deepest = 0, last = -1;
        _Atomic int flag = 0;
        gate g = { 0, 0 };
        ds_stream first = stream_on(device, "gate \"\\<\x01\xff");
        ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("chrome.json") }));
        ok(ds_stream_launch_host_func(first, gate_fn, &g, NULL));
        for (int i = 0; i < 5; i++)
            ok(ds_stream_launch_host_func(first, set_flag, (void *)&flag, NULL));
        ds_stream second = stream_on(device, NULL);
        ok(ds_stream_wait_stream(second, first));
        usleep(50000); /* more than the times of CUDA's events may be off on a busy machine */
        atomic_store(&g.open, 1);
        pipeline_on(device, 20);
        ok(ds_stream_synchronize(second));
        ok(ds_stream_launch_host_func(first, set_flag, (void *)&flag, NULL));
        ok(ds_trace_stop());

        json list = read_json(path_of("chrome.json"));
        expect_events(&list, &arrows);
        for (size_t i = 0; i < list.count; i++) {
            const json *e = &list.item[i];
            const json *args = json_get(e, "args");
            fills += strcmp(json_text(e, "cat"), "fill") == 0;
            waits += strcmp(json_text(args, "call"), "ds_stream_wait_stream") == 0;
            names += strcmp(json_text(args, "name"), "gate \"\\<\x01?") == 0;
            if (strncmp(json_text(e, "name"), "queue of gate", 13) == 0) {
                last = atol(json_text(args, "pending"));
                deepest = last > deepest ? last : deepest;
            }
        }
        assert_int_equal(deepest, 6);
        assert_int_equal(last, 0);
        assert_int_equal(fills, 20);
        assert_true(waits >= 1);
        assert_true(arrows >= 1);
        assert_true(names >= 1);
        ok(ds_stream_destroy(first));
        ok(ds_stream_destroy(second));
    }
    ok(ds_shutdown());
}

static void test_a_cut_array_can_be_completed(void **state) {
    (void)state;
    size_t size;
    json list;
    begin(path_of("cut.json"));
    pipeline_on(ds_cpu(0), 10);
    ok(ds_shutdown());

    char *text = trace_read_all(path_of("cut.json"), &size);
    assert_non_null(text);
    int cuts = 0;
    for (size_t i = 2; i < size; i++) /* after any event, without the comma */
        if (text[i] == '\n' && text[i - 1] == ',') {
            char kept = text[i - 1];
            text[i - 1] = ']';
            assert_int_equal(json_parse(text, i, &list), 0);
            text[i - 1] = kept;
            cuts++;
        }
    assert_true(cuts > 20);
}

static void test_a_long_file_has_parts(void **state) {
    (void)state;
    size_t arrows;
    size_t fills = 0;
    off_t last = 0;
    ds__trace.part = 20000;
    begin(path_of("long.json"));
    pipeline_on(ds_cpu(0), 100);
    ok(ds_shutdown());
    ds__trace.part = DS__TRACE_PART;

    int parts = 0;
    for (char name[32] = "long.json"; access(path_of(name), R_OK) == 0;
         snprintf(name, sizeof name, "long-%d.json", parts + 1)) {
        json list = read_json(path_of(name));
        expect_events(&list, &arrows);
        for (size_t i = 0; i < list.count; i++)
            fills += strcmp(json_text(&list.item[i], "cat"), "fill") == 0;
        struct stat info;
        assert_int_equal(stat(path_of(name), &info), 0);
        /* an event can bring the ends of a whole queue, and the last part those of all queues */
        assert_true(last < 20000 + DS__TRACE_DEPTH * 100 + 1000);
        last = info.st_size;
        parts++;
    }
    assert_true(parts > 2);
    assert_int_equal(fills, 100);
}

/* ---- texts ---- */

static void test_the_summary_has_the_longest_waits(void **state) {
    (void)state;
    char text[4000], small[100];
    gate g = { 0, 0 };
    begin("1");
    ds_stream s = stream_on(ds_cpu(0), "slow");
    ds_stream other = stream_on(ds_cpu(0), "late");
    pipeline_on(ds_cpu(0), 10); /* more waits than the summary has */
    int line = __LINE__ + 1;
    ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
    ok(ds_stream_wait_stream(other, s));
    usleep(2000);
    atomic_store(&g.open, 1);
    ok(ds_stream_synchronize(other));
    pipeline_on(ds_cpu(0), 3);
    ok(ds_trace_summary(text, sizeof text));
    assert_int_equal(ds_trace_summary(small, sizeof small), DS_ERR_LIMIT_EXCEEDED);

    char want[200];
    snprintf(want, sizeof want,
             "stream \"late\", ds_stream_wait_stream at test_trace.c:%d, waits for host function "
             "of stream \"slow\", ds_stream_launch_host_func at test_trace.c:%d\n",
             line + 1, line);
    const char *waits = strstr(text, "longest waits\n");
    assert_non_null(waits);
    const char *first = strstr(waits, " ms  ");
    assert_non_null(first);
    assert_int_equal(strncmp(first + 5, want, strlen(want)), 0);
    assert_non_null(strstr(text, "two operations at once"));
    assert_true(strlen(small) && small[strlen(small) - 1] == '\n');
    assert_int_equal(strncmp(small, text, 3), 0);
    ok(ds_shutdown());
}

static void test_the_summary_tells_how_long_work_overlaps(void **state) {
    (void)state;
    char text[4000];
    double busy, two, mixed;
    gate first = { 0, 0 }, second = { 0, 0 };
    begin("1");
    ds_stream s = stream_on(ds_cpu(0), "a");
    ds_stream other = stream_on(ds_cpu(0), "b");
    ok(ds_stream_launch_host_func(s, gate_fn, &first, NULL));
    ok(ds_stream_launch_host_func(other, gate_fn, &second, NULL));
    while (!atomic_load(&first.entered) || !atomic_load(&second.entered))
        usleep(100);
    usleep(20000);
    atomic_store(&first.open, 1);
    atomic_store(&second.open, 1);
    ok(ds_device_synchronize(ds_cpu(0)));
    ok(ds_trace_summary(text, sizeof text));

    const char *line = strstr(text, "busy ");
    assert_non_null(line);
    assert_int_equal(sscanf(line,
                            "busy %lf %% of the time; two operations at once %lf %%; a copy and "
                            "another operation at once %lf",
                            &busy, &two, &mixed),
                     3);
    assert_true(busy > 99);
    assert_true(two > 10 && two <= busy);
    assert_true(mixed < 0.05);
    ok(ds_shutdown());
}

static void test_the_list_of_standing_streams_names_calls(void **state) {
    (void)state;
    begin(NULL);
    EACH_DEVICE(device) {
        char text[2000], want[200];
        gate g = { 0, 0 };
        ds_trace_stats stats;
        ds_stream s = stream_on(device, "fast");
        ds_stream other = stream_on(device, "late");
        ok(ds_trace_start(NULL));
        ok(ds_stream_launch_host_func(s, set_flag, &g.entered, NULL));
        ok(ds_stream_synchronize(s));
        ok(ds_trace_flush());
        ok(ds_trace_dump(path_of("early.html"))); /* with the first name of the stream */
        ok(ds_stream_set_label(s, "slow"));
        atomic_store(&g.entered, 0);
        int line = __LINE__ + 1;
        ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
        ok(ds_stream_wait_stream(other, s));
        while (!atomic_load(&g.entered))
            usleep(100);
        usleep(5000);
        ok(ds_trace_standing(text, sizeof text));
        ok(ds_trace_dump(path_of("standing.html")));
        ok(ds_trace_get_stats(&stats));
        assert_int_equal(stats.untimed, 0);
        atomic_store(&g.open, 1);
        ok(ds_stream_synchronize(other));
        ok(ds_trace_stop());

        snprintf(want, sizeof want,
                 "stream \"slow\" stands at host function of ds_stream_launch_host_func at "
                 "test_trace.c:%d",
                 line);
        if (!strstr(text, want))
            fail_msg("no line \"%s\" in: %s", want, text);
        snprintf(want, sizeof want,
                 "stream \"late\" stands at wait of ds_stream_wait_stream at test_trace.c:%d",
                 line + 1);
        if (!strstr(text, want))
            fail_msg("no line \"%s\" in: %s", want, text);
        if (device.type == DS_DEVICE_CPU)
            assert_non_null(strstr(text, "waits for stream \"slow\""));
        trace_file t = read_trace(path_of("standing.html"));
        size_t open = 0;
        for (size_t i = 0; i < t.records; i++)
            open += (t.record[i].flags & 4) != 0;
        assert_int_equal(open, 2);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(other));
    }
    ok(ds_shutdown());
}

/* ---- dumps without a call ---- */

/* Waits until a file is a complete trace. */
static void await_trace(const char *path, trace_file *t) {
    for (int i = 0; i < 1000; i++) {
        if (access(path, R_OK) == 0 && trace_read(path, t) && t->ended)
            return;
        usleep(10000);
    }
    fail_msg("%s is not written", path);
}

static void test_a_signal_writes_a_dump(void **state) {
    (void)state;
    trace_file t;
    char options[300];
    snprintf(options, sizeof options, "dump=%s,signal=%d", path_of("signal.html"), SIGUSR2);
    begin(options);
    pipeline_on(ds_cpu(0), 7);
    ok(ds_trace_flush());
    for (int i = 0; i < 2; i++) { /* the handler stays */
        unlink(path_of("signal.html"));
        raise(SIGUSR2);
        await_trace(path_of("signal.html"), &t);
        assert_int_equal(count_kind(&t, 3), 7);
    }
    ok(ds_shutdown());
}

static void *open_later(void *user) {
    gate *g = user;
    trace_file t;
    await_trace(path_of("timeout.html"), &t);
    atomic_store(&g->open, 1);
    return NULL;
}

static void test_a_long_wait_is_reported(void **state) {
    (void)state;
    char options[300], line[100];
    gate g = { 0, 0 };
    pthread_t thread;
    size_t size;
    snprintf(options, sizeof options, "dump=%s,timeout=1", path_of("timeout.html"));
    begin(options);
    ds_stream s = stream_on(ds_cpu(0), "stuck");
    int before = dup(2);
    assert_non_null(freopen(path_of("report.txt"), "w", stderr));
    ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
    assert_int_equal(pthread_create(&thread, NULL, open_later, &g), 0);
    ok(ds_stream_synchronize(s));
    snprintf(line, sizeof line, "test_trace.c:%d has waited for", __LINE__ - 1);
    pthread_join(thread, NULL);
    fflush(stderr);
    dup2(before, 2);
    close(before);
    ok(ds_shutdown());

    char *text = trace_read_all(path_of("report.txt"), &size);
    assert_non_null(text);
    assert_non_null(strstr(text, "ds_stream_synchronize at "));
    assert_non_null(strstr(text, line));
    char *stands = strstr(text, "stream \"stuck\" stands at host function");
    assert_non_null(stands);
    if (strstr(stands + 40, "stands at")) /* once */
        fail_msg("more than one line: %s", text);
}

/* ---- with others ---- */

static struct { size_t records, waits, wrong; } given;

static void take(const ds_activity_batch *batch, void *user) {
    (void)user;
    for (size_t i = 0; i < batch->count; i++) {
        const ds_activity *a = &batch->records[i];
        given.records++;
        given.waits += a->cause_id != 0;
        given.wrong += a->kind > DS_ACTIVITY_GRAPH || a->reserved[0];
    }
}

static void test_the_program_may_record_activity_too(void **state) {
    (void)state;
    ds_trace_stats stats;
    begin("1");
    pipeline_on(ds_cpu(0), 10);
    memset(&given, 0, sizeof given);
    ok(ds_activity_start(&(ds_activity_desc){ .fn = take, .capacity = 1 << 16 }));
    assert_int_equal(ds_activity_start(&(ds_activity_desc){ .fn = take }), DS_ERR_ILLEGAL_STATE);
    pipeline_on(ds_cpu(0), 10);
    ok(ds_activity_stop());
    size_t before = given.records;
    pipeline_on(ds_cpu(0), 10);
    ok(ds_trace_flush());
    ok(ds_trace_get_stats(&stats));

    assert_true(given.records >= 20 && given.records <= 40);
    assert_int_equal(given.records, before);
    assert_int_equal(given.wrong, 0);
    assert_true(stats.operations >= 60);
    assert_int_equal(stats.dropped, 0);
    ok(ds_activity_start(&(ds_activity_desc){ .fn = take, .kinds = 1u << DS_ACTIVITY_COPY }));
    pipeline_on(ds_cpu(0), 10);
    ok(ds_activity_stop());
    assert_int_equal(given.records, before + 10);
    ok(ds_shutdown());
}

/* Two fills without a wait between them. */
static void race_on(ds_device device) {
    void *memory;
    ok(ds_device_alloc(device, SIZE, &memory));
    ok(ds_fill(memory, 1, 1, SIZE, stream_on(device, "a")));
    ok(ds_fill(memory, 2, 1, SIZE, stream_on(device, "b")));
    ok(ds_device_synchronize(device));
}

/* A race has the ids of both operations. */
static void test_races_of_the_check_layer_are_in_the_trace(void **state) {
    (void)state;
    ds_check_stats stats;
    static ds_cpu_desc cpu = { .devices = 1 };
    for (int cuda = 0; cuda < 2; cuda++) {
        ok(ds_init(
            &(ds_init_desc){ .cpu = &cpu, .check = "quiet", .trace = path_of("both.html") }));
        race_on(cuda && ds_backend_is_available(DS_DEVICE_CUDA) ? ds_cuda(0) : ds_cpu(0));
        ok(ds_check_get_stats(&stats));
        ok(ds_shutdown());

        trace_file t = read_trace(path_of("both.html"));
        assert_int_equal(stats.reports, 1);
        assert_int_equal(count_kind(&t, 3), 2);
        assert_int_equal(count_kind(&t, 32), 1);
        assert_non_null(find_call(&t, "ds_device_synchronize", 0));
        const trace_record *race = find_call(&t, "write-after-write", 0);
        assert_non_null(race);
        const trace_record *later = trace_find(&t, race->id);
        const trace_record *earlier = trace_find(&t, race->cause);
        assert_non_null(later);
        assert_non_null(earlier);
        assert_string_equal(trace_text(&t, t.stream[later->row].label), "b");
        assert_string_equal(trace_text(&t, t.stream[earlier->row].label), "a");
        assert_int_equal(race->row, later->row);
        assert_non_null(strstr(trace_text(&t, race->name), "ds_stream_wait_stream(b, a)"));
    }
}

/* The process that ends with the exit code of the check layer: this program with other arguments.
   */
static int run_until_exit(const char *path) {
    static ds_cpu_desc cpu = { .devices = 1 };
    void *memory;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .check = "quiet,exit=7", .trace = path }));
    ok(ds_device_alloc(ds_cpu(0), SIZE, &memory));
    ok(ds_fill(memory, 1, 1, SIZE, stream_on(ds_cpu(0), "a")));
    ok(ds_fill(memory, 2, 1, SIZE, stream_on(ds_cpu(0), "b")));
    ok(ds_shutdown());
    return 0;
}

static void test_the_exit_of_the_check_layer_completes_a_trace(void **state) {
    (void)state;
    const char *path = path_of("exit.html");
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_trace", "--exit", path, (char *)NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);

    trace_file t = read_trace(path);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_true(t.ended);
    assert_int_equal(count_kind(&t, 3), 2);
}

static void test_collectives_have_steps(void **state) {
    (void)state;
    static ds_cpu_desc cpu = { .devices = 4 };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .layers = "trace" }));
    EACH_DEVICE(first) {
        ds_tensor *tensors[4];
        ds_stream s[4];
        int count;
        ok(ds_device_get_count((ds_device_type)first.type, &count));
        assert_true(count >= 2);
        count = count < 4 ? count : 4;
        ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("steps.html") }));
        for (int i = 0; i < count; i++) {
            s[i] = stream_on((ds_device){ first.type, i }, NULL);
            ok(ds_tensor_alloc(ds_float32(), 1, (int64_t[]){ 4096 }, s[i], &tensors[i]));
            ok(ds_fill(ds_tensor_address(tensors[i]), 0, 4, 4096, s[i]));
        }
        ok(ds_comm_all_reduce((const ds_tensor *const *)tensors, (const ds_tensor *const *)tensors,
                              (size_t)count, DS_REDUCE_SUM,
                              &(ds_comm_options){ .streams = s, .stream_count = (size_t)count }));
        for (int i = 0; i < count; i++) {
            ok(ds_stream_synchronize(s[i]));
            ok(ds_tensor_free(tensors[i]));
            ok(ds_stream_destroy(s[i]));
        }
        ok(ds_trace_stop());

        trace_file t = read_trace(path_of("steps.html"));
        size_t calls = 0, steps = 0;
        uint32_t rows = 0;
        for (size_t i = 0; i < t.records; i++) {
            const trace_record *r = &t.record[i];
            calls += r->kind == 19;
            steps += r->kind == 10;
            if (r->kind != 10)
                continue;
            assert_string_equal(trace_text(&t, r->call), "ds_comm_all_reduce");
            rows |= 1u << t.stream[r->row].device;
        }
        assert_int_equal(calls, 1);
        assert_true(steps >= (size_t)count);
        assert_int_equal(__builtin_popcount(rows), count); /* each device has a part */
    }
    ok(ds_shutdown());
}

/* A kernel of the library outlives ds_shutdown, which frees the recorded names. */
static void test_kernels_of_the_library_keep_their_names(void **state) {
    (void)state;
    for (int start = 0; start < 2; start++) {
        static ds_cpu_desc cpu = { .devices = 3 };
        ds_tensor *source, *to[2];
        ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .trace = path_of("names.html") }));
        for (int i = 0; i < 3; i++) {
            ds_stream s = stream_on(ds_cpu(i), NULL);
            ok(ds_tensor_alloc(ds_float32(), 1, (int64_t[]){ 1 << 20 }, s,
                               i ? &to[i - 1] : &source));
        }
        ok(ds_comm_broadcast_into(source, (const ds_tensor *const *)to, 2, NULL));
        for (int i = 0; i < 3; i++) {
            ok(ds_device_synchronize(ds_cpu(i)));
            ok(ds_tensor_free(i ? to[i - 1] : source));
        }
        ok(ds_shutdown());

        trace_file t = read_trace(path_of("names.html"));
        size_t steps = 0;
        for (size_t i = 0; i < t.records; i++) {
            if (t.record[i].kind == 10) {
                steps++;
                assert_string_equal(trace_text(&t, t.record[i].name), "copy to several devices");
            }
        }
        assert_int_equal(steps, 1);
    }
}

/* ---- refusals ---- */

static void test_wrong_options_are_refused(void **state) {
    (void)state;

    static const struct {
        const char *options, *sentence;
    } wrong[] = { { "trace.xml", "must end with .html, .json, .json.gz or .txt" },
                  { ".html", "must end with" },
                  { "/nowhere/at/all.html", "No such file" },
                  { "ring=255", "256 to 16777216" },
                  { "ring=many", "use ring=256" },
                  { "timeout=0", "use timeout=1" },
                  { "signal=65", "use signal=1" },
                  { "signal=10", "needs a file for the dump" },
                  { "dump=x.csv", "must end with" },
                  { "a.html,b.html", "two files" },
                  { "file=a.html,dump=a.html", "use two files" },
                  { "dump=a.html,dump=b.html", "two dumps" },
                  { "speed=1", "unknown option \"speed=1\"" } };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ok(ds_init(&(ds_init_desc){ .trace = wrong[i].options, .log_level = DS_LOG_ERROR }));
        ds_stream s;
        assert_true(ds_stream_create(NULL, &s) < 0);
        if (!strstr(ds_error_get_last(), wrong[i].sentence))
            fail_msg("%s: %s", wrong[i].options, ds_error_get_last());
        ok(ds_shutdown());
    }
    begin(NULL);
    ds_trace_desc reserved = { .reserved = { 1 } };
    assert_int_equal(ds_trace_start(&reserved), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_trace_start(&(ds_trace_desc){ .ring = 3 }), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_trace_dump("x.html"), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(ds_trace_dump(NULL), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_trace_summary(NULL, 0), DS_ERR_ILLEGAL_STATE);
    ok(ds_shutdown());
}

static void test_names_can_have_the_process(void **state) {
    (void)state;
    char name[480], file[64];
    snprintf(file, sizeof file, "of-%d-%d.html", (int)getpid(), (int)getpid());
    begin(NULL);
    ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("of-%p-%p.html") }));
    ok(ds_trace_dump(path_of("dump-%p.html")));
    ok(ds_trace_stop());
    read_trace(path_of(file));
    snprintf(file, sizeof file, "dump-%d.html", (int)getpid());
    read_trace(path_of(file));

    for (size_t i = 0; i < 470; i++)
        name[i] = "%p"[i % 2];
    snprintf(name + 470, sizeof name - 470, ".html");
    assert_int_equal(ds_trace_start(&(ds_trace_desc){ .file = name }), DS_ERR_INVALID_VALUE);
    ok(ds_shutdown());
}

static void test_without_the_layer_the_calls_are_refused(void **state) {
    (void)state;
    char text[100] = "x";
    ds_trace_stats stats;
    ok(ds_init(NULL));
    assert_int_equal(ds_trace_start(NULL), DS_ERR_ILLEGAL_STATE);
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_TRACE"));
    assert_int_equal(ds_trace_stop(), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(ds_trace_flush(), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(ds_trace_dump("x.html"), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(ds_trace_summary(text, sizeof text), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(ds_trace_standing(text, sizeof text), DS_ERR_ILLEGAL_STATE);
    assert_int_equal(ds_trace_get_stats(&stats), DS_ERR_ILLEGAL_STATE);
    assert_string_equal(text, "");
    ok(ds_shutdown());
}

static _Atomic long allocations; /* until one fails */

static void *fail_once(size_t size, void *user) {
    (void)user;
    return atomic_fetch_sub(&allocations, 1) == 1 ? NULL : malloc(size);
}

static void free_it(void *p, void *user) {
    (void)user;
    free(p);
}

/* Each allocation of the library fails once while a trace with many streams runs. */
static void test_a_trace_survives_a_lack_of_memory(void **state) {
    (void)state;

    enum { STREAMS = 40 };

    static char memory[STREAMS][64];
    int failed = 0;
    for (long n = 1; n < 400; n++) {
        ds_stream s[STREAMS] = { { 0 } };
        allocations = 0;
        ok(ds_init(&(ds_init_desc){ .allocator = { fail_once, free_it, NULL },
                                    .layers = "trace",
                                    .flags = DS_INIT_NO_CUDA,
                                    .log_level = DS_LOG_ERROR }));
        s[0] = stream_on(ds_cpu(0), NULL);
        allocations = n;
        ds_result r =
            ds_trace_start(&(ds_trace_desc){ .file = path_of("scarce.json"), .ring = 256 });
        assert_true(r == DS_OK || r == DS_ERR_OUT_OF_MEMORY);
        failed += r != DS_OK;
        for (int i = 1; i < STREAMS; i++)
            if (ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s[i]) != DS_OK)
                s[i] = s[0];
        for (int i = 0; i < STREAMS; i++) {
            r = ds_fill(memory[i], 1, 1, sizeof memory[i], s[i]);
            assert_true(r == DS_OK || r == DS_ERR_OUT_OF_MEMORY);
        }
        DS_IGNORE(ds_trace_stop());
        int is_over = allocations > 0; /* none has failed */
        allocations = 0;
        ok(ds_shutdown());
        if (is_over)
            break;
        assert_true(n < 399);
    }
    assert_true(failed > 0);
}

static void test_a_file_of_a_full_disk_is_given_up(void **state) {
    (void)state;
    ds_trace_stats stats;
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(symlink("/dev/full", path_of("full.html")), 0);
    begin(NULL);
    ds_result r = ds_trace_start(&(ds_trace_desc){ .file = path_of("full.html") });
    ok(r);
    pipeline_on(ds_cpu(0), 10);
    ok(ds_trace_flush());
    ok(ds_trace_get_stats(&stats));
    ok(ds_trace_stop());
    assert_true(stats.operations >= 20);
    assert_int_equal(stats.bytes, 0);
    assert_int_equal(ds_trace_dump(path_of("full.html")), DS_ERR_SYSTEM);
    ok(ds_shutdown());
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/devstream-trace-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_operation_is_in_the_trace),
        cmocka_unit_test(test_a_wait_names_the_operation_it_waits_for),
        cmocka_unit_test(test_a_wait_ends_after_its_cause_whatever_the_clocks),
        cmocka_unit_test(test_nodes_of_a_launch_have_records),
        cmocka_unit_test(test_blocks_ranges_and_fills_are_in_the_trace),
        cmocka_unit_test(test_the_ring_keeps_the_last_records),
        cmocka_unit_test(test_a_trace_starts_and_stops_again),
        cmocka_unit_test(test_the_trace_ends_with_devstream),
        cmocka_unit_test(test_a_killed_process_leaves_a_trace),
        cmocka_unit_test(test_chromes_format_has_the_same_events),
        cmocka_unit_test(test_a_cut_array_can_be_completed),
        cmocka_unit_test(test_a_long_file_has_parts),
        cmocka_unit_test(test_the_summary_has_the_longest_waits),
        cmocka_unit_test(test_the_summary_tells_how_long_work_overlaps),
        cmocka_unit_test(test_the_list_of_standing_streams_names_calls),
        cmocka_unit_test(test_a_signal_writes_a_dump),
        cmocka_unit_test(test_a_long_wait_is_reported),
        cmocka_unit_test(test_the_program_may_record_activity_too),
        cmocka_unit_test(test_races_of_the_check_layer_are_in_the_trace),
        cmocka_unit_test(test_the_exit_of_the_check_layer_completes_a_trace),
        cmocka_unit_test(test_collectives_have_steps),
        cmocka_unit_test(test_kernels_of_the_library_keep_their_names),
        cmocka_unit_test(test_wrong_options_are_refused),
        cmocka_unit_test(test_names_can_have_the_process),
        cmocka_unit_test(test_without_the_layer_the_calls_are_refused),
        cmocka_unit_test(test_a_trace_survives_a_lack_of_memory),
        cmocka_unit_test(test_a_file_of_a_full_disk_is_given_up),
    };
    if (argc == 3 && strcmp(argv[1], "--killed") == 0)
        return run_until_killed(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--exit") == 0)
        return run_until_exit(argv[2]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
