/* Traces whose times come from CUPTI, tests/support/cupti.c, on the stand-in for cudart: the
   operations are those of a trace by events, whenever and in whatever order records come. The
   library lies beside DS_TEST_PLUGIN if that is set, else one folder above this program. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_trace.h"
#include "scarce.h"
#include "standin/standin.h"
#include "trace_file.h"
#include "unit.h"

enum { SIZE = 1 << 16, ROUNDS = 12, UNTIMED = 8 };

static char folder[64];
static char library[512];

/* Returns the path of a file in the folder of this process; a few are valid at once. */
static const char *path_of(const char *name) {
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Starts devstream with the layer, without a trace. mode: how CUPTI behaves. */
static void begin(const char *mode) {
    setenv("DS_TEST_CUPTI", mode, 1);
    ok(ds_init(&(ds_init_desc){ .layers = "trace" }));
}

/* Starts a trace by CUPTI. */
static void start(const char *file) {
    ok(ds_trace_start(&(ds_trace_desc){ .file = file, .cupti = 1 }));
}

/* ---- a program ---- */

static const char ptx[] = ".version 5.0\n.target sm_60\n.address_size 64\n"
                          ".visible .entry nothing()\n{ ret; }\n";

static int nothing(size_t begin_item, size_t end_item, const void *args) {
    (void)begin_item;
    (void)end_item;
    (void)args;
    return 0;
}

static struct {
    ds_stream stream[3]; /* "a" and "b" on the first device, "c" on the second one */
    ds_event event;
    ds_kernel kernel;
    char *memory[2]; /* of the devices */
    char *pinned;
    char pageable[SIZE];
} p;

static ds_stream stream_on(ds_device device, const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device, .label = label }, &s));
    return s;
}

static void create_all(void) {
    p.stream[0] = stream_on(ds_cuda(0), "a");
    p.stream[1] = stream_on(ds_cuda(0), "b");
    p.stream[2] = stream_on(ds_cuda(1), "c");
    ok(ds_event_create(0, NULL, &p.event));
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "nothing",
                                           .cpu_fn = nothing,
                                           .cuda = { .image = ptx, .entry = "nothing" } },
                        &p.kernel));
    for (int i = 0; i < 2; i++)
        ok(ds_device_alloc(ds_cuda(i), SIZE, (void **)&p.memory[i]));
    ok(ds_pinned_alloc(SIZE, (void **)&p.pinned));
}

static void destroy_all(void) {
    ok(ds_event_destroy(p.event));
    ok(ds_kernel_destroy(p.kernel));
    for (int i = 0; i < 3; i++)
        ok(ds_stream_destroy(p.stream[i]));
    for (int i = 0; i < 2; i++)
        ok(ds_device_free(p.memory[i]));
    ok(ds_pinned_free(p.pinned));
}

static void set_flag(void *flag) {
    atomic_store((_Atomic int *)flag, 1);
}

/* Kernels, fills, copies of all directions, waits, host functions and records of events. CUPTI
   tells the times of five of them. */
static void run_program(void) {
    static _Atomic int flag;
    for (int i = 0; i < ROUNDS; i++) {
        ok(ds_fill(p.memory[0], 1, 1, SIZE, p.stream[0]));
        ok(ds_kernel_launch(p.kernel, 1000, NULL, 0, p.stream[0]));
        ok(ds_event_record(p.event, p.stream[0]));
        ok(ds_stream_wait_event(p.stream[1], p.event));
        ok(ds_copy(p.pinned, p.memory[0], SIZE, p.stream[1]));
        ok(ds_stream_wait_stream(p.stream[2], p.stream[1]));
        ok(ds_copy(p.memory[1], p.memory[0], SIZE / 2, p.stream[2]));
        ok(ds_kernel_launch(p.kernel, 10, NULL, 0, p.stream[2]));
        ok(ds_stream_launch_host_func(p.stream[2], set_flag, (void *)&flag, NULL));
        ok(ds_stream_wait_stream(p.stream[0], p.stream[2]));
        ok(ds_copy(p.pinned, p.pinned + SIZE / 2, SIZE / 2, p.stream[1])); /* by the host */
        ok(ds_copy(p.pageable, p.memory[0], SIZE, p.stream[0]));
        ok(ds_fill(p.pinned, 3, 1, SIZE / 2, p.stream[1]));
    }
    for (int i = 0; i < 3; i++)
        ok(ds_stream_synchronize(p.stream[i]));
}

enum { TOLD = 5 * ROUNDS, ALL_WORK = 8 * ROUNDS, ALL = 13 * ROUNDS };

/* ---- traces ---- */

static size_t is_work(const trace_record *r) {
    return r->kind >= 1 && r->kind <= 3;
}

/* Holds for each trace: the records of a stream are in order and do not overlap, and none begins
   before its call. By CUPTI, a wait ends after the operation that it waited for; by events, this
   holds on one device. */
static trace_file read_trace_by(const char *path, int cupti) {
    trace_file t;
    if (!trace_read(path, &t))
        fail_msg("%s is not a trace", path);
    for (size_t i = 0; i < t.records; i++) {
        const trace_record *r = &t.record[i];
        if (r->kind >= 16)
            continue;
        assert_true(r->begin <= r->end && r->time <= r->begin);
        const trace_record *cause = cupti && r->kind == 6 ? trace_find(&t, r->cause) : NULL;
        if (cause)
            assert_true(cause->end <= r->end);
        for (size_t k = i; k-- > 0;)
            if (t.record[k].kind < 16 && t.record[k].row == r->row) {
                assert_true(t.record[k].end <= r->begin);
                break;
            }
    }
    return t;
}

static trace_file read_trace(const char *path) {
    return read_trace_by(path, 1);
}

static size_t count_flag(const trace_file *t, int flag) {
    size_t n = 0;
    for (size_t i = 0; i < t->records; i++)
        n += t->record[i].kind < 16 && (t->record[i].flags & flag) != 0;
    return n;
}

/* Describes the operations of a stream without their times, a line each. */
static void describe(const trace_file *t, const char *label, char *out, size_t size) {
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < t->records && n < size; i++) {
        const trace_record *r = &t->record[i];
        if (r->kind >= 16 || strcmp(trace_text(t, t->stream[r->row].label), label) != 0)
            continue;
        const trace_record *cause = trace_find(t, r->cause);
        n += (size_t)snprintf(out + n, size - n, "%d %s %s:%u %llu %d->%d, after line %u\n",
                              r->kind, trace_text(t, r->call), trace_text(t, r->name), r->line,
                              (unsigned long long)r->amount, r->src, r->dst,
                              cause ? cause->line : 0);
    }
    assert_true(n < size);
}

static void expect_same(const trace_file *a, const trace_file *b) {
    static char first[1 << 14], second[1 << 14];
    for (int i = 0; i < 3; i++) {
        char label[2] = { (char)('a' + i), 0 };
        describe(a, label, first, sizeof first);
        describe(b, label, second, sizeof second);
        assert_true(strlen(first) > 0);
        assert_string_equal(first, second);
    }
}

/* ---- tests ---- */

static void test_both_sources_have_the_same_operations(void **state) {
    (void)state;
    ds_trace_stats stats;
    begin("");
    create_all();
    ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("events.html") }));
    run_program();
    ok(ds_trace_stop());
    trace_file by_events = read_trace_by(path_of("events.html"), 0);

    static const char *const modes[] = { "",
                                         "late=3",
                                         "shuffle,seed=2",
                                         "late=5,shuffle,small,seed=3",
                                         "late=2,shuffle,thread,seed=4",
                                         "apart,small,shuffle,seed=6",
                                         "late=1000,shuffle,seed=5" };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        setenv("DS_TEST_CUPTI", modes[i], 1);
        start(path_of("records.html"));
        run_program();
        ok(ds_trace_stop());
        ok(ds_trace_get_stats(&stats));
        trace_file t = read_trace(path_of("records.html"));
        expect_same(&by_events, &t);
        assert_int_equal(count_flag(&t, UNTIMED), 0);
        assert_int_equal(stats.untimed, 0);
        assert_int_equal(stats.dropped, 0);
    }
    destroy_all();
    ok(ds_shutdown());
}

/* The clock of the stand-in runs faster than the host's by a quarter. */
static void test_times_are_those_of_the_hosts_clock(void **state) {
    (void)state;
    const uint64_t work = 20000000, apart = 1000000;
    begin("");
    create_all();
    start(path_of("clock.html"));
    standin_work_delay((unsigned)(work / 1000000), 0);
    uint64_t from = ds__now_ns();
    ok(ds_copy(p.pinned, p.memory[0], SIZE, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    uint64_t to = ds__now_ns();
    standin_work_delay(0, 0);
    uint64_t zero = ds__trace.zero_ns;
    ok(ds_trace_stop());

    trace_file t = read_trace(path_of("clock.html"));
    size_t i = 0;
    while (i < t.records && t.record[i].kind != 2)
        i++;
    assert_true(i < t.records);
    assert_true(t.record[i].begin + zero >= from);
    assert_true(t.record[i].end + zero <= to + apart);
    assert_true(t.record[i].end - t.record[i].begin + apart >= work);
    destroy_all();
    ok(ds_shutdown());
}

static _Atomic int warnings;

static void count_warning(const ds_log_item *item, void *user) {
    (void)user;
    atomic_fetch_add(&warnings, strstr(item->text, "CUPTI has dropped ") != NULL);
}

static void test_lost_records_leave_operations_without_times(void **state) {
    (void)state;
    static const char *const modes[] = { "drop=3", "zero=2", "drop=2,late=2,shuffle,seed=9" };
    for (int i = 0; i < 3; i++) {
        ds_trace_stats stats;
        setenv("DS_TEST_CUPTI", modes[i], 1);
        atomic_store(&warnings, 0);
        ok(ds_init(&(ds_init_desc){ .layers = "trace", .log_fn = count_warning }));
        create_all();
        start(path_of("lost.html"));
        run_program();
        ok(ds_trace_stop());
        ok(ds_trace_get_stats(&stats));

        trace_file t = read_trace(path_of("lost.html"));
        size_t work = 0, timed = 0;
        for (size_t k = 0; k < t.records; k++) {
            const trace_record *r = &t.record[k];
            work += is_work(r);
            timed += is_work(r) && r->begin < r->end;
            if (r->flags & UNTIMED) {
                assert_true(is_work(r));
                assert_true(r->begin == r->end);
            }
        }
        assert_true(timed > 0);
        assert_int_equal(work, ALL_WORK);
        assert_int_equal(stats.untimed, count_flag(&t, UNTIMED));
        assert_true(stats.untimed > 0 && stats.untimed < TOLD);
        assert_int_equal(atomic_load(&warnings), i == 1 ? 0 : 1);
        destroy_all();
        ok(ds_shutdown());
    }
}

static void test_a_lost_record_is_given_up_while_the_trace_runs(void **state) {
    (void)state;
    ds_trace_stats stats = { 0 };
    begin("drop=1");
    create_all();
    start(NULL);
    ok(ds_fill(p.memory[0], 1, 1, SIZE, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    for (int i = 0; i < 2000 && !stats.untimed; i++) {
        usleep(10000);
        ok(ds_trace_get_stats(&stats));
    }
    assert_int_equal(stats.untimed, 1);
    assert_int_equal(stats.operations, 1);
    ok(ds_trace_stop());
    destroy_all();
    ok(ds_shutdown());
}

static void test_late_records_arrive_when_the_trace_stops(void **state) {
    (void)state;
    ds_trace_stats stats;
    char text[1000];
    begin("late=1000000,seed=3");
    create_all();
    start(path_of("late.html"));
    run_program();
    ok(ds_trace_flush());
    ok(ds_trace_get_stats(&stats));
    assert_true(stats.operations < ALL);
    ok(ds_trace_standing(text, sizeof text)); /* complete operations do not stand */
    assert_null(strstr(text, "stands at"));
    ok(ds_trace_stop());

    ok(ds_trace_get_stats(&stats));
    trace_file t = read_trace(path_of("late.html"));
    size_t work = 0;
    for (size_t i = 0; i < t.records; i++)
        work += is_work(&t.record[i]);
    assert_int_equal(work, ALL_WORK);
    assert_int_equal(stats.untimed, 0);
    destroy_all();
    ok(ds_shutdown());
}

static void test_nodes_of_a_launch_have_records(void **state) {
    (void)state;
    ds_graph graph;
    ds_graph_exec exec;
    begin("late=2,shuffle,seed=6");
    create_all();
    ok(ds_capture_begin(p.stream[0], DS_CAPTURE_RELAXED));
    ok(ds_fill(p.memory[0], 1, 1, SIZE / 2, p.stream[0]));
    ok(ds_stream_wait_stream(p.stream[1], p.stream[0]));
    ok(ds_copy(p.pinned, p.memory[0], SIZE / 2, p.stream[1]));
    ok(ds_kernel_launch(p.kernel, 100, NULL, 0, p.stream[0]));
    ok(ds_stream_wait_stream(p.stream[0], p.stream[1]));
    ok(ds_capture_end(p.stream[0], &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    start(path_of("nodes.html"));
    ok(ds_graph_launch(exec, p.stream[0]));
    ok(ds_graph_launch(exec, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_stop());

    trace_file t = read_trace(path_of("nodes.html"));
    size_t launches = 0, nodes = 0, kernels = 0, copies = 0;
    for (size_t i = 0; i < t.records; i++) {
        const trace_record *r = &t.record[i];
        launches += r->kind == 8;
        if (r->kind != 9)
            continue;
        const trace_record *launch = trace_find(&t, r->cause);
        assert_non_null(launch);
        assert_int_equal(launch->kind, 8);
        assert_true(r->begin >= launch->begin && r->end <= launch->end);
        assert_non_null(strstr(trace_text(&t, t.stream[r->row].label), "a lane "));
        assert_true(r->flags & 2);
        nodes++;
        kernels += strcmp(trace_text(&t, r->name), "nothing") == 0;
        copies += strcmp(trace_text(&t, r->name), "copy") == 0 && r->amount == SIZE / 2;
    }
    assert_int_equal(launches, 2);
    assert_int_equal(nodes, 6);
    assert_int_equal(kernels, 2);
    assert_int_equal(copies, 2);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    destroy_all();
    ok(ds_shutdown());
}

static void test_a_launch_without_records_of_nodes_is_written(void **state) {
    (void)state;
    ds_graph graph;
    ds_graph_exec exec;
    begin("drop=1");
    create_all();
    ok(ds_capture_begin(p.stream[0], DS_CAPTURE_RELAXED));
    ok(ds_fill(p.memory[0], 1, 1, SIZE, p.stream[0]));
    ok(ds_capture_end(p.stream[0], &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    start(path_of("bare.html"));
    ok(ds_graph_launch(exec, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_stop());

    trace_file t = read_trace(path_of("bare.html"));
    size_t launches = 0;
    for (size_t i = 0; i < t.records; i++) {
        launches += t.record[i].kind == 8 && t.record[i].begin < t.record[i].end;
        assert_true(t.record[i].kind != 9);
    }
    assert_int_equal(launches, 1);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    destroy_all();
    ok(ds_shutdown());
}

static void test_work_of_other_libraries_is_ignored(void **state) {
    (void)state;
    ds_trace_stats stats;
    begin("shuffle,seed=8");
    create_all();
    start(path_of("foreign.html"));
    cudaStream_t foreign;
    void *memory;
    assert_int_equal(cudaMalloc(&memory, 100), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&foreign), cudaSuccess);
    for (int i = 0; i < 2 * DS__CUPTI_ORPHANS; i++)
        assert_int_equal(cudaMemsetAsync(memory, i & 127, 100, foreign), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(foreign), cudaSuccess);
    ok(ds_trace_flush()); /* their records come before the program's, with which they would mix */
    for (int i = 0; i < DS__CUPTI_ORPHANS / 4; i++)
        assert_int_equal(cudaMemsetAsync(memory, i & 127, 100, foreign), cudaSuccess);
    run_program();
    assert_int_equal(cudaStreamSynchronize(foreign), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(foreign), cudaSuccess);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    ok(ds_trace_stop());

    ok(ds_trace_get_stats(&stats));
    trace_file t = read_trace(path_of("foreign.html"));
    size_t work = 0;
    for (size_t i = 0; i < t.records; i++)
        work += is_work(&t.record[i]);
    assert_int_equal(work, ALL_WORK);
    assert_int_equal(stats.untimed, 0);
    destroy_all();
    ok(ds_shutdown());
}

static struct { size_t work, without; } given;

static void take(const ds_activity_batch *batch, void *user) {
    (void)user;
    for (size_t i = 0; i < batch->count; i++) {
        given.work += batch->records[i].kind <= DS_ACTIVITY_FILL;
        given.without += batch->records[i].kind <= DS_ACTIVITY_FILL && !batch->records[i].begin_ns;
    }
}

static void test_the_programs_recording_outlives_the_trace(void **state) {
    (void)state;
    begin("late=1,seed=4");
    create_all();
    memset(&given, 0, sizeof given);
    ok(ds_activity_start(&(ds_activity_desc){ .fn = take }));
    run_program();
    start(NULL);
    run_program();
    ok(ds_activity_flush());
    ok(ds_trace_stop());
    run_program();
    ok(ds_activity_stop());
    assert_int_equal(given.work, 3 * ALL_WORK);
    assert_int_equal(given.without, 0);
    destroy_all();
    ok(ds_shutdown());
}

static void test_a_trace_starts_again_with_either_source(void **state) {
    (void)state;
    begin("late=2,seed=5");
    create_all();
    for (int i = 0; i < 6; i++) {
        ds_trace_stats stats;
        ok(ds_trace_start(&(ds_trace_desc){ .file = path_of("again.html"), .cupti = i % 3 != 2 }));
        run_program();
        ok(ds_trace_stop());
        ok(ds_trace_get_stats(&stats));
        trace_file t = read_trace_by(path_of("again.html"), i % 3 != 2);
        assert_int_equal(count_flag(&t, UNTIMED), 0);
        assert_int_equal(stats.operations, ALL);
    }
    destroy_all();
    ok(ds_shutdown());
}

static void test_the_option_selects_records(void **state) {
    (void)state;
    char options[200];
    snprintf(options, sizeof options, "%s,cupti", path_of("option.html"));
    setenv("DS_TEST_CUPTI", "zero=1", 1); /* so that they can be told apart */
    ok(ds_init(&(ds_init_desc){ .trace = options }));
    create_all();
    run_program();
    destroy_all();
    ok(ds_shutdown());
    trace_file t = read_trace(path_of("option.html"));
    assert_int_equal(count_flag(&t, UNTIMED), 2 * ROUNDS);
}

static void test_without_cupti_a_trace_is_refused(void **state) {
    (void)state;

    static const struct {
        const char *path, *mode;
        ds_result result;
        const char *sentence;
    } wrong[] = {
        { "/nonexistent/libcupti.so", "", DS_ERR_UNSUPPORTED, "cannot be loaded" },
        { "libm.so.6", "", DS_ERR_UNSUPPORTED, "lacks cuptiGetVersion" },
        { NULL, "old", DS_ERR_UNSUPPORTED, "has version 17; at least 18" },
        { NULL, "taken", DS_ERR_ILLEGAL_STATE, "another tool uses CUPTI in this process" },
        { NULL, "refuse=10", DS_ERR_DRIVER, "cuptiActivityEnable returned" },
        { NULL, "deny=15", DS_ERR_DRIVER, "cuptiSubscribe returned 15" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memset(&ds__cupti.l, 0, sizeof ds__cupti.l); /* as if it had not been loaded */
        setenv("DEVSTREAM_CUPTI", wrong[i].path ? wrong[i].path : library, 1);
        begin(wrong[i].mode);
        ds_result r = ds_trace_start(&(ds_trace_desc){ .cupti = 1 });
        assert_int_equal(r, wrong[i].result);
        if (!strstr(ds_error_get_last(), wrong[i].sentence))
            fail_msg("%s", ds_error_get_last());
        ok(ds_trace_start(NULL)); /* by events */
        ok(ds_trace_stop());
        ok(ds_shutdown());

        ds_stream s;
        ok(ds_init(&(ds_init_desc){ .trace = "1,cupti", .log_level = DS_LOG_ERROR }));
        assert_int_equal(ds_stream_create(NULL, &s), wrong[i].result);
        ok(ds_shutdown());
    }
    setenv("DEVSTREAM_CUPTI", library, 1);
    begin("");
    assert_int_equal(ds_trace_start(&(ds_trace_desc){ .cupti = 2 }), DS_ERR_INVALID_VALUE);
    start(NULL); /* a refused start leaves no subscription */
    ok(ds_trace_stop());
    ok(ds_shutdown());
}

/* In a process of its own, on a machine without a GPU. */
static int run_without_device(void) {
    ds_result r = ds_init(&(ds_init_desc){ .layers = "trace" });
    r = r < 0 ? r : ds_trace_start(&(ds_trace_desc){ .cupti = 1 });
    int refused = r == DS_ERR_UNSUPPORTED && strstr(ds_error_get_last(), "needs a CUDA device");
    return ds_shutdown() < 0 || !refused;
}

static void test_without_a_gpu_a_trace_is_refused(void **state) {
    (void)state;
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = 0;
    pid_t child = fork();
    if (child == 0) {
        setenv("STANDIN_ERROR", "100", 1);
        execl(path, path, "--no-device", (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void *run_threads(void *user) {
    ds_stream s = stream_on(ds_cuda(0), NULL);
    for (int i = 0; i < 200; i++) {
        ok(ds_fill((char *)user, 1, 1, 64, s));
        if (i % 16 == 0)
            ok(ds_stream_synchronize(s));
    }
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    return NULL;
}

static void test_threads_submit_while_records_come(void **state) {
    (void)state;
    ds_trace_stats stats;
    pthread_t threads[4];
    begin("thread,late=2,shuffle,small,seed=7");
    create_all();
    start(NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_threads, p.memory[0] + 64 * i), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ok(ds_trace_stop());
    ok(ds_trace_get_stats(&stats));
    assert_int_equal(stats.operations, 800);
    assert_int_equal(stats.untimed, 0);
    destroy_all();
    ok(ds_shutdown());
}

/* ---- many nodes, late records, little memory ---- */

/* Makes an executable of so many copies that do not depend on each other. */
static ds_graph_exec exec_of_copies(size_t count) {
    ds_graph graph;
    ds_graph_exec exec;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cuda(0) }, &graph));
    for (size_t i = 0; i < count; i++) {
        ds_node_desc d = { .kind = DS_NODE_COPY };
        d.u.copy = (ds_copy_node){ .dst = p.memory[0] + 128 * i,
                                   .src = p.pinned + 128 * i,
                                   .width = i + 1 };
        ok(ds_graph_add(graph, &d, NULL, 0, NULL));
    }
    ok(ds_graph_instantiate(graph, NULL, &exec));
    ok(ds_graph_destroy(graph));
    return exec;
}

/* Counts the nodes of the launch, and their bytes and lanes. */
static size_t count_nodes(const trace_file *t, size_t *out_bytes, size_t *out_lanes) {
    unsigned char lane[256] = { 0 };
    size_t nodes = 0;
    *out_bytes = *out_lanes = 0;
    for (size_t i = 0; i < t->records; i++) {
        const trace_record *r = &t->record[i];
        const trace_record *launch = r->kind == 9 ? trace_find(t, r->cause) : NULL;
        if (r->kind != 9)
            continue;
        assert_non_null(launch);
        assert_true(r->begin >= launch->begin && r->end <= launch->end);
        nodes++;
        *out_bytes += r->amount;
        *out_lanes += !lane[r->row & 255]++;
    }
    return nodes;
}

static void test_more_nodes_than_lanes_do_not_overlap(void **state) {
    enum { NODES = DS__CUDA_LANES + 6 };

    size_t bytes, lanes;
    (void)state;
    begin("");
    create_all();
    ds_graph_exec exec = exec_of_copies(NODES);
    start(path_of("lanes.html"));
    standin_work_delay(200, 0);
    ok(ds_graph_launch(exec, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    standin_work_delay(0, 0);
    ok(ds_trace_stop());
    trace_file t = read_trace(path_of("lanes.html")); /* which compares the records of a row */
    assert_int_equal(count_nodes(&t, &bytes, &lanes), NODES);
    assert_int_equal(bytes, NODES * (NODES + 1) / 2);
    assert_int_equal(lanes, DS__CUDA_LANES);
    ok(ds_graph_exec_destroy(exec));
    destroy_all();
    ok(ds_shutdown());
}

/* CUPTI's times of the nodes may be before the launch was enqueued. */
static void test_nodes_are_not_before_their_launch(void **state) {
    size_t bytes, lanes;
    (void)state;
    begin("early=50");
    create_all();
    ds_graph_exec exec = exec_of_copies(4);
    start(path_of("early.html"));
    ok(ds_graph_launch(exec, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_stop());
    trace_file t = read_trace(path_of("early.html"));
    assert_int_equal(count_nodes(&t, &bytes, &lanes), 4);
    ok(ds_graph_exec_destroy(exec));
    destroy_all();
    ok(ds_shutdown());
}

static void test_a_kernel_without_a_name_is_a_question_mark(void **state) {
    ds_graph graph;
    ds_graph_exec exec;
    size_t named = 0;
    (void)state;
    begin("nameless");
    create_all();
    ok(ds_capture_begin(p.stream[0], DS_CAPTURE_RELAXED));
    ok(ds_kernel_launch(p.kernel, 100, NULL, 0, p.stream[0]));
    ok(ds_capture_end(p.stream[0], &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    start(path_of("nameless.html"));
    ok(ds_graph_launch(exec, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_stop());
    trace_file t = read_trace(path_of("nameless.html"));
    for (size_t i = 0; i < t.records; i++)
        named += t.record[i].kind == 9 && strcmp(trace_text(&t, t.record[i].name), "?") == 0;
    assert_int_equal(named, 1);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    destroy_all();
    ok(ds_shutdown());
}

/* The clock has changed its rate since the operation. */
static void test_a_late_time_is_converted_by_the_clock_of_then(void **state) {
    const uint64_t apart = 20000000;
    (void)state;
    begin("late=1000000,drift,seed=3");
    create_all();
    start(path_of("drift.html"));
    usleep(20000);
    uint64_t from = ds__now_ns();
    ok(ds_copy(p.pinned, p.memory[0], SIZE, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    uint64_t to = ds__now_ns();
    usleep(1000000);
    uint64_t zero = ds__trace.zero_ns;
    ok(ds_trace_stop());
    trace_file t = read_trace(path_of("drift.html"));
    size_t i = 0;
    while (i < t.records && t.record[i].kind != 2)
        i++;
    assert_true(i < t.records);
    assert_true(t.record[i].begin + zero + apart >= from);
    assert_true(t.record[i].end + zero <= to + apart);
    destroy_all();
    ok(ds_shutdown());
}

/* Numbers of operations share the places of a table. */
static void test_many_operations_wait_for_their_records(void **state) {
    enum { COUNT = 2 * DS__CUPTI_BUCKETS };

    static const char *const modes[] = { "late=1000000,shuffle,seed=2", "late=6,shuffle,seed=3" };
    ds_trace_stats stats;
    (void)state;
    for (int k = 0; k < 2; k++) {
        begin(modes[k]);
        create_all();
        start(NULL);
        for (int i = 0; i < COUNT; i++) {
            ok(ds_fill(p.memory[0], 1, 1, 64, p.stream[0]));
            if (i % (COUNT / 2) == COUNT / 2 - 1)
                for (int n = 0; n < 4; n++) /* the first half ends while the other one waits */
                    ok(ds_trace_flush());
        }
        ok(ds_stream_synchronize(p.stream[0]));
        for (int n = 0; n < 8; n++)
            ok(ds_trace_flush());
        ok(ds_trace_stop());
        ok(ds_trace_get_stats(&stats));
        assert_int_equal(stats.operations, COUNT);
        assert_int_equal(stats.untimed, 0);
        assert_int_equal(stats.dropped, 0);
        destroy_all();
        ok(ds_shutdown());
    }
}

static void begin_scarce(const char *mode) {
    setenv("DS_TEST_CUPTI", mode, 1);
    atomic_store(&warnings, 0);
    scarce_begin(-1);
    ok(ds_init(&(ds_init_desc){ .layers = "trace", .allocator = SCARCE, .log_fn = count_warning }));
    create_all();
}

static void end_scarce(void) {
    scarce_large = 0;
    scarce_begin(-1);
    destroy_all();
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
}

static void test_a_launch_keeps_the_nodes_that_there_is_memory_for(void **state) {
    size_t bytes, lanes;
    (void)state;
    begin_scarce("");
    ds_graph_exec exec = exec_of_copies(40);
    start(path_of("few.html"));
    ok(ds_fill(p.memory[0], 1, 1, SIZE, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_flush());                       /* there is a buffer for CUPTI now */
    scarce_large = 32 * sizeof(ds__cupti_work); /* the room after that for 16 */
    ok(ds_graph_launch(exec, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_flush());
    scarce_large = 0;
    ok(ds_trace_stop());
    trace_file t = read_trace(path_of("few.html"));
    assert_int_equal(count_nodes(&t, &bytes, &lanes), 16);
    ok(ds_graph_exec_destroy(exec));
    end_scarce();
}

static void test_without_memory_for_a_buffer_records_are_dropped(void **state) {
    ds_trace_stats stats;
    (void)state;
    begin_scarce("");
    start(NULL);
    scarce_large = DS__CUPTI_BUFFER;
    ok(ds_fill(p.memory[0], 1, 1, SIZE, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_flush());
    scarce_large = 0;
    ok(ds_fill(p.memory[0], 1, 1, SIZE, p.stream[0])); /* CUPTI counts with the next buffer */
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_stop());
    ok(ds_trace_get_stats(&stats));
    assert_int_equal(stats.operations, 2);
    assert_int_equal(stats.untimed, 1);
    assert_int_equal(atomic_load(&warnings), 1);
    end_scarce();
}

static void test_without_memory_for_any_buffer_all_records_are_dropped(void **state) {
    ds_trace_stats stats;
    (void)state;
    begin_scarce("");
    start(NULL);
    scarce_large = DS__CUPTI_BUFFER;
    ok(ds_fill(p.memory[0], 1, 1, SIZE, p.stream[0]));
    ok(ds_stream_synchronize(p.stream[0]));
    ok(ds_trace_stop());
    scarce_large = 0;
    ok(ds_trace_get_stats(&stats));
    assert_int_equal(stats.operations, 1);
    assert_int_equal(stats.untimed, 1);
    assert_int_equal(atomic_load(&warnings), 1);
    end_scarce();
}

static void test_a_cupti_of_the_process_is_found(void **state) {
    (void)state;
    assert_non_null(dlopen(library, RTLD_NOW));
    memset(&ds__cupti.l, 0, sizeof ds__cupti.l);
    unsetenv("DEVSTREAM_CUPTI");
    begin("");
    start(NULL);
    assert_string_equal(ds__cupti.l.name, "libcupti.so.12");
    ok(ds_trace_stop());
    ok(ds_shutdown());
    setenv("DEVSTREAM_CUPTI", library, 1);
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
        cmocka_unit_test(test_both_sources_have_the_same_operations),
        cmocka_unit_test(test_times_are_those_of_the_hosts_clock),
        cmocka_unit_test(test_lost_records_leave_operations_without_times),
        cmocka_unit_test(test_a_lost_record_is_given_up_while_the_trace_runs),
        cmocka_unit_test(test_late_records_arrive_when_the_trace_stops),
        cmocka_unit_test(test_nodes_of_a_launch_have_records),
        cmocka_unit_test(test_a_launch_without_records_of_nodes_is_written),
        cmocka_unit_test(test_work_of_other_libraries_is_ignored),
        cmocka_unit_test(test_the_programs_recording_outlives_the_trace),
        cmocka_unit_test(test_a_trace_starts_again_with_either_source),
        cmocka_unit_test(test_the_option_selects_records),
        cmocka_unit_test(test_without_cupti_a_trace_is_refused),
        cmocka_unit_test(test_without_a_gpu_a_trace_is_refused),
        cmocka_unit_test(test_threads_submit_while_records_come),
        cmocka_unit_test(test_more_nodes_than_lanes_do_not_overlap),
        cmocka_unit_test(test_nodes_are_not_before_their_launch),
        cmocka_unit_test(test_a_kernel_without_a_name_is_a_question_mark),
        cmocka_unit_test(test_a_late_time_is_converted_by_the_clock_of_then),
        cmocka_unit_test(test_many_operations_wait_for_their_records),
        cmocka_unit_test(test_a_launch_keeps_the_nodes_that_there_is_memory_for),
        cmocka_unit_test(test_without_memory_for_a_buffer_records_are_dropped),
        cmocka_unit_test(test_without_memory_for_any_buffer_all_records_are_dropped),
        cmocka_unit_test(test_a_cupti_of_the_process_is_found),
    };
    const char *plugin = getenv("DS_TEST_PLUGIN");
    if (argc == 2 && strcmp(argv[1], "--no-device") == 0)
        return run_without_device();
    ssize_t n = readlink("/proc/self/exe", library, sizeof library - 20);
    if (n < 0)
        return 2;
    library[n] = 0;
    if (plugin && strlen(plugin) < sizeof library - 20)
        snprintf(library, sizeof library, "%s", plugin);
    for (int up = plugin ? 1 : 0; up < 2; up++)
        *strrchr(library, '/') = 0;
    strcat(library, "/cupti.so");
    setenv("DEVSTREAM_CUPTI", library, 1);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
