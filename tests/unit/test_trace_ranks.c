/* test_trace_ranks.c - operations of process groups in recordings of activity and in traces.

   Two ranks are threads of this process (engine "local"). The second one is late, so that the
   records of the first one show when an operation began and when it was complete. Each test runs on
   the CPU driver and on the stand-in for CUDA. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "devstream_trace.h"
#include "trace_file.h"
#include "unit.h"

enum { COUNT = 32, BYTES = COUNT * (int)sizeof(float), LATE_MS = 60, RECORDS = 256 };

#define MS ((uint64_t)1000000)

static char path[96];

/* ---- ranks ----------------------------------------------------------------------------------- */

typedef struct side {
    int rank;
    ds_device device;
    ds_ranks group;
    ds_stream stream;
    float *data; /* pinned: two tensors of COUNT elements */
} side;

typedef void (*side_fn)(side *s);

static side_fn program; /* of all ranks */
static pthread_barrier_t both;

#define must(call)                                                                              \
    do {                                                                                        \
        ds_result must_result_ = (call);                                                        \
        if (must_result_ != DS_OK) {                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, ds_error_get_last()); \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* The groups and streams are there before the recording starts, and after it ends. */
static void *side_main(void *user) {
    side *s = user;
    void *data;
    ds_ranks_desc desc = { .engine = "local",
                           .rank = s->rank,
                           .size = 2,
                           .id = "trace",
                           .devices = &s->device,
                           .device_count = 1,
                           .timeout_ns = 30000 * MS,
                           .record = "" };
    must(ds_ranks_init(&desc, &s->group));
    must(ds_stream_create(
        &(ds_stream_desc){ .device = s->device, .label = s->rank ? "late" : "early" }, &s->stream));
    must(ds_pinned_alloc(2 * BYTES, &data));
    memset(data, 0, 2 * BYTES);
    s->data = data;
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    program(s);
    must(ds_stream_synchronize(s->stream));
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    must(ds_ranks_finalize(s->group));
    must(ds_stream_destroy(s->stream));
    must(ds_pinned_free(data));
    return NULL;
}

static void late(const side *s) {
    if (s->rank)
        usleep(LATE_MS * 1000);
}

/* ---- recordings ------------------------------------------------------------------------------ */

static struct {
    size_t count;
    ds_activity record[RECORDS];
} seen;

static void take(const ds_activity_batch *batch, void *user) {
    (void)user;
    for (size_t i = 0; i < batch->count && seen.count < RECORDS; i++)
        seen.record[seen.count++] = batch->records[i];
}

static void start_recording(void) {
    seen.count = 0;
    ok(ds_activity_start(&(ds_activity_desc){ .fn = take }));
}

static void stop_recording(void) {
    ok(ds_activity_stop());
}

static void start_trace(void) {
    ok(ds_trace_start(&(ds_trace_desc){ .file = path }));
}

static void stop_trace(void) {
    ok(ds_trace_stop());
}

/* Runs a program on two ranks, between two calls. */
static void run(ds_device_type type, side_fn fn, void (*start)(void), void (*stop)(void),
                side sides[2]) {
    pthread_t thread[2];
    program = fn;
    pthread_barrier_init(&both, NULL, 3);
    for (int i = 0; i < 2; i++) {
        sides[i] = (side){ .rank = i, .device = type == DS_DEVICE_CPU ? ds_cpu(i) : ds_cuda(i) };
        assert_int_equal(pthread_create(&thread[i], NULL, side_main, &sides[i]), 0);
    }
    pthread_barrier_wait(&both);
    start();
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    stop();
    pthread_barrier_wait(&both);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&both);
}

/* Returns the n-th record with this name on a stream, or NULL. */
static const ds_activity *find(const side *s, const char *name, size_t n) {
    for (size_t i = 0; i < seen.count; i++) {
        const ds_activity *a = &seen.record[i];
        if (a->stream.id == s->stream.id && a->name && strcmp(a->name, name) == 0 && n-- == 0)
            return a;
    }
    return NULL;
}

#define EACH_DRIVER(type)                                                                          \
    for (int cuda_ = 0; cuda_ < 2 && (!cuda_ || ds_backend_is_available(DS_DEVICE_CUDA)); cuda_++) \
        for (ds_device_type type = cuda_ ? DS_DEVICE_CUDA : DS_DEVICE_CPU, *once_ = &type; once_;  \
             once_ = NULL)

static void begin(void) {
    static ds_cpu_desc cpu = { .devices = 2 };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .layers = "trace" }));
}

/* ---- programs -------------------------------------------------------------------------------- */

static int gather_line;

/* Gathers two elements of each rank; the second rank is late. */
static void gather_late(side *s) {
    int64_t part[] = { COUNT / 2 };
    int64_t whole[] = { COUNT };
    ds_device host = { DS_DEVICE_HOST, 0 };
    ds_tensor in = ds_tensor_of(s->data, host, ds_float32(), 1, part);
    ds_tensor out = ds_tensor_of(s->data + COUNT, host, ds_float32(), 1, whole);
    const ds_tensor *ins[] = { &in };
    const ds_tensor *outs[] = { &out };
    ds_comm_options o = { .streams = &s->stream, .stream_count = 1, .ranks = s->group };
    late(s);
    if (s->rank == 0)
        gather_line = __LINE__ + 1;
    must(ds_comm_all_gather(ins, outs, 1, &o));
}

/* The rank sends to the other one, and receives; then both meet at a barrier. */
static void swap_and_meet(side *s) {
    int64_t shape[] = { COUNT };
    ds_device host = { DS_DEVICE_HOST, 0 };
    ds_tensor in = ds_tensor_of(s->data, host, ds_float32(), 1, shape);
    ds_tensor out = ds_tensor_of(s->data + COUNT, host, ds_float32(), 1, shape);
    size_t peer = (size_t)!s->rank;
    ds_ranks_transfer list[] = { { &in, DS_RANKS_SEND, 0, peer },
                                 { &out, DS_RANKS_RECEIVE, 0, peer } };
    ds_stream streams[] = { s->stream, s->stream };
    ds_comm_options o = { .streams = streams, .stream_count = 2, .ranks = s->group };
    must(ds_ranks_exchange(list, 2, &o));
    o.stream_count = 1;
    late(s);
    must(ds_ranks_barrier(&o));
}

/* Captures a gather, and launches it late on the second rank. */
static void launch_late(side *s) {
    ds_graph graph;
    ds_graph_exec exec;
    int rank = s->rank;
    must(ds_capture_begin(s->stream, DS_CAPTURE_RELAXED));
    s->rank = 0; /* the capture is not late */
    gather_late(s);
    s->rank = rank;
    must(ds_capture_end(s->stream, &graph));
    must(ds_graph_instantiate(graph, NULL, &exec));
    late(s);
    must(ds_graph_launch(exec, s->stream));
    must(ds_stream_synchronize(s->stream));
    must(ds_graph_exec_destroy(exec));
    must(ds_graph_destroy(graph));
}

/* ---- records --------------------------------------------------------------------------------- */

static void test_a_collective_has_a_record(void **state) {
    (void)state;
    begin();
    EACH_DRIVER(type) {
        side sides[2];

        run(type, gather_late, start_recording, stop_recording, sides);

        for (int i = 0; i < 2; i++) {
            const ds_activity *a = find(&sides[i], "all_gather", 0);
            assert_non_null(a);
            assert_null(find(&sides[i], "all_gather", 1));
            assert_int_equal(a->kind, DS_ACTIVITY_WAIT);
            assert_int_equal(a->result, DS_OK);
            assert_int_equal(a->bytes, BYTES);
            assert_string_equal(a->call, "ds_comm_all_gather");
            assert_non_null(strstr(a->file, "test_trace_ranks.c"));
            assert_int_equal(a->line, gather_line);
            assert_int_equal(a->device.type, type);
            assert_true(a->enqueue_ns <= a->begin_ns && a->begin_ns <= a->end_ns);
        }
    }
    ok(ds_shutdown());
}

/* On the idle stream of the first rank the caller begins the operation. */
static void test_a_record_contains_the_lateness_of_the_peer(void **state) {
    (void)state;
    begin();
    EACH_DRIVER(type) {
        side sides[2];

        run(type, gather_late, start_recording, stop_recording, sides);

        const ds_activity *early = find(&sides[0], "all_gather", 0);
        const ds_activity *last = find(&sides[1], "all_gather", 0);
        assert_non_null(early);
        assert_non_null(last);
        assert_true(early->end_ns - early->begin_ns >= (LATE_MS - 20) * MS);
        assert_true(last->begin_ns >= early->begin_ns + (LATE_MS - 20) * MS);
        assert_true(last->end_ns - last->begin_ns < (LATE_MS - 20) * MS);
        assert_true(early->end_ns + 5 * MS >= last->begin_ns);
    }
    ok(ds_shutdown());
}

static void test_operations_are_in_the_order_of_the_stream(void **state) {
    (void)state;
    begin();
    EACH_DRIVER(type) {
        side sides[2];

        run(type, swap_and_meet, start_recording, stop_recording, sides);

        for (int i = 0; i < 2; i++) {
            const ds_activity *swap = find(&sides[i], "exchange", 0);
            const ds_activity *meet = find(&sides[i], "barrier", 0);
            assert_non_null(swap);
            assert_non_null(meet);
            assert_true(swap < meet);
            assert_true(swap->end_ns <= meet->begin_ns);
            assert_int_equal(swap->bytes, 2 * BYTES);
            assert_string_equal(swap->call, "ds_ranks_exchange");
            assert_string_equal(meet->call, "ds_ranks_barrier");
        }
        const ds_activity *meet = find(&sides[0], "barrier", 0);
        assert_true(meet->end_ns - meet->begin_ns >= (LATE_MS - 20) * MS);
    }
    ok(ds_shutdown());
}

/* ---- traces ---------------------------------------------------------------------------------- */

static trace_file read_trace(void) {
    trace_file t;
    if (!trace_read(path, &t))
        fail_msg("%s is not a trace", path);
    const char *wrong = trace_wrong(&t);
    if (wrong)
        fail_msg("%s: %s", path, wrong);
    return t;
}

/* Returns the record with this name on the stream with a label, or NULL. */
static const trace_record *find_slice(const trace_file *t, const char *label, const char *name) {
    for (size_t i = 0; i < t->records; i++) {
        const trace_record *r = &t->record[i];
        if (r->kind < 16 && strcmp(trace_text(t, r->name), name) == 0 &&
            strcmp(trace_text(t, t->stream[r->row].label), label) == 0)
            return r;
    }
    return NULL;
}

static void test_a_trace_has_a_slice_of_a_collective(void **state) {
    enum { STEP = 10 };

    (void)state;
    begin();
    EACH_DRIVER(type) {
        side sides[2];
        snprintf(path, sizeof path, "/tmp/devstream-%ld.html", (long)getpid());

        run(type, gather_late, start_trace, stop_trace, sides);

        trace_file t = read_trace();
        const trace_record *early = find_slice(&t, "early", "all_gather");
        const trace_record *last = find_slice(&t, "late", "all_gather");
        assert_non_null(early);
        assert_non_null(last);
        assert_int_equal(early->kind, STEP);
        assert_int_equal(early->amount, BYTES);
        assert_string_equal(trace_text(&t, early->call), "ds_comm_all_gather");
        assert_int_equal(early->line, gather_line);
        assert_true(early->end - early->begin >= (LATE_MS - 20) * MS);
        assert_true(last->end - last->begin < (LATE_MS - 20) * MS);
        unlink(path);
    }
    ok(ds_shutdown());
}

/* The nodes of a launch are those by which the operation was captured, at the line of its call. */
static void test_a_launch_has_nodes_of_a_collective(void **state) {
    enum { NODE = 9 };

    (void)state;
    begin();
    side sides[2];
    snprintf(path, sizeof path, "/tmp/devstream-%ld.html", (long)getpid());

    run(DS_DEVICE_CPU, launch_late, start_trace, stop_trace, sides);

    trace_file t = read_trace();
    const trace_record *wait = find_slice(&t, "early lane 1", "values");
    assert_non_null(wait);
    assert_int_equal(wait->kind, NODE);
    assert_int_equal(wait->line, gather_line);
    assert_true(wait->end - wait->begin >= (LATE_MS - 20) * MS);
    unlink(path);
    ok(ds_shutdown());
}

static void test_a_json_trace_has_a_slice_of_a_collective(void **state) {
    (void)state;
    begin();
    EACH_DRIVER(type) {
        side sides[2];
        size_t size;
        snprintf(path, sizeof path, "/tmp/devstream-%ld.json", (long)getpid());

        run(type, gather_late, start_trace, stop_trace, sides);

        char *text = trace_read_all(path, &size);
        assert_non_null(text);
        assert_non_null(strstr(text, "\"cat\":\"step\",\"name\":\"all_gather\""));
        assert_non_null(strstr(text, "\"call\":\"ds_comm_all_gather\""));
        unlink(path);
    }
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_collective_has_a_record),
        cmocka_unit_test(test_a_record_contains_the_lateness_of_the_peer),
        cmocka_unit_test(test_operations_are_in_the_order_of_the_stream),
        cmocka_unit_test(test_a_trace_has_a_slice_of_a_collective),
        cmocka_unit_test(test_a_launch_has_nodes_of_a_collective),
        cmocka_unit_test(test_a_json_trace_has_a_slice_of_a_collective),
    };
    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
