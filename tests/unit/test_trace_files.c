/* The trace layer: arguments of its calls, the formats with each kind of record, files and memory
   that end, ranges and collectives that a trace sees in part, and reports of blocking calls.

   Records that a driver writes seldom or at no certain time are handed to ds__trace_take and
   ds__trace_seen, as the recording of activity and the observers do. */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_trace.h"
#include "devstream_alloc.h"
#include "trace_file.h"
#include "unit.h"

static char folder[64];

/* Returns the path of a file in the folder of this process; a few are valid at once. */
static const char *path_of(const char *name) {
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Starts devstream with the layer; no trace runs. */
static void begin(void) {
    static ds_cpu_desc cpu = { .devices = 2 };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .layers = "trace" }));
}

static void start(const char *file, size_t ring) {
    ok(ds_trace_start(&(ds_trace_desc){ .file = file ? path_of(file) : NULL, .ring = ring }));
}

static ds_stream stream_on(ds_device device, const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device, .label = label }, &s));
    return s;
}

static uint64_t number_of(ds_stream s) {
    uint64_t number = 0;
    ok(ds_stream_get_id(s, &number));
    return number;
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

static void expect_no_text(const char *text, const char *unwanted) {
    if (strstr(text, unwanted))
        fail_msg("\"%s\" in: %s", unwanted, text);
}

static char *read_text(const char *name) {
    size_t size;
    char *text = trace_read_all(path_of(name), &size);
    if (!text)
        fail_msg("there is no file %s", name);
    return text;
}

static trace_file read_trace(const char *name) {
    trace_file t;
    if (!trace_read(path_of(name), &t))
        fail_msg("%s is not a trace", name);
    return t;
}

static json read_json(const char *name) {
    json list;
    char *text = read_text(name);
    size_t wrong = json_parse(text, strlen(text), &list);
    if (wrong)
        fail_msg("%s: wrong at byte %zu: %.40s", name, wrong, text + wrong - 1);
    assert_int_equal(list.kind, JSON_ARRAY);
    return list;
}

/* Returns the n-th event with this text as a member, or NULL. */
static const json *event_of(const json *list, const char *member, const char *text, size_t n) {
    for (size_t i = 0; i < list->count; i++)
        if (json_get(&list->item[i], member) &&
            strcmp(json_text(&list->item[i], member), text) == 0 && n-- == 0)
            return &list->item[i];
    return NULL;
}

static size_t count_kind(const trace_file *t, int kind) {
    size_t n = 0;
    for (size_t i = 0; i < t->records; i++)
        n += t->record[i].kind == kind;
    return n;
}

/* Redirects standard error to a file; returns the former one. */
static int errors_to(const char *name) {
    fflush(stderr);
    int before = dup(2);
    assert_non_null(freopen(path_of(name), "w", stderr));
    return before;
}

static void errors_back(int before) {
    fflush(stderr);
    dup2(before, 2);
    close(before);
}

static ds_trace_stats stats_now(void) {
    ds_trace_stats stats;
    ok(ds_trace_get_stats(&stats));
    return stats;
}

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

static void nothing(void *user) {
    (void)user;
}

/* ---- records that are handed over ---- */

static uint64_t next_id = 1000000; /* above those of the program's operations */

/* Returns the time of the host's clock at a time of the trace. */
static uint64_t at_ns(uint64_t ns) {
    return ds__trace.zero_ns + ns;
}

/* An operation on a stream, enqueued at 10, with times of the trace. */
static ds_activity operation(ds_activity_kind kind, ds_stream s, uint64_t from, uint64_t to) {
    return (ds_activity){ .kind = kind,
                          .stream = s,
                          .device = ds_cpu(0),
                          .enqueue_ns = at_ns(10),
                          .begin_ns = at_ns(from),
                          .end_ns = at_ns(to),
                          .correlation_id = next_id++,
                          .call = "ds_test_call",
                          .file = "folder/given.c",
                          .line = 7 };
}

static void give(const ds_activity *list, size_t count, uint64_t dropped) {
    ds_activity_batch batch = { .records = list, .count = count, .dropped = dropped };
    ds__trace_take(&batch);
}

/* ---- arguments ---- */

static void test_wrong_arguments_are_named(void **state) {
    (void)state;
    char text[8] = "kept";
    char name[500];
    memset(name, 'n', sizeof name);
    memcpy(name + 480, ".html", 6);
    begin();
    expect_error(ds_trace_dump(NULL), DS_ERR_INVALID_VALUE, "path is NULL");
    expect_error(ds_trace_get_stats(NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    expect_error(ds_trace_summary(text, 0), DS_ERR_INVALID_VALUE, "at least 1 byte");
    expect_error(ds_trace_standing(text, 0), DS_ERR_INVALID_VALUE, "at least 1 byte");
    assert_string_equal(text, "kept");
    expect_error(ds_trace_flush(), DS_ERR_ILLEGAL_STATE, "no trace runs");
    expect_error(ds_trace_start(&(ds_trace_desc){ .file = name }), DS_ERR_INVALID_VALUE,
                 "485 characters; at most 479");
    expect_error(ds_trace_start(&(ds_trace_desc){ .file = "x.json.gz" }), DS_ERR_UNSUPPORTED,
                 "compile with DEVSTREAM_ZLIB");
    expect_error(ds_trace_start(&(ds_trace_desc){ .dump = "d.html", .signal = -1 }),
                 DS_ERR_INVALID_VALUE, "signal -1; 1 to 64");
    expect_error(ds_trace_start(&(ds_trace_desc){ .dump = "d.html", .signal = 65 }),
                 DS_ERR_INVALID_VALUE, "signal 65; 1 to 64");
    expect_error(ds_trace_start(&(ds_trace_desc){ .ring = ((size_t)1 << 24) + 1 }),
                 DS_ERR_INVALID_VALUE, "256 to 16777216");
    expect_error(ds_trace_start(&(ds_trace_desc){ .cupti = 2 }), DS_ERR_INVALID_VALUE,
                 "cupti is 2");
    expect_error(ds_trace_start(&(ds_trace_desc){ .dump = path_of("d.html"), .signal = SIGKILL }),
                 DS_ERR_INVALID_VALUE, "no handler for signal 9");
    expect_error(ds_trace_stop(), DS_ERR_ILLEGAL_STATE, "no trace runs");

    start(NULL, 0);
    expect_error(ds_trace_dump("dump.xml"), DS_ERR_INVALID_VALUE, "must end with");
    expect_error(ds_trace_dump("/nowhere/at/all.json"), DS_ERR_INVALID_VALUE, "No such file");
    ok(ds_trace_stop());
    ok(ds_shutdown());
}

/* Text options that are read in part, and the values that they set. */
static void test_lists_of_options_are_read(void **state) {
    (void)state;
    char name[500];

    static const struct {
        const char *list, *sentence;
    } wrong[] = { { "ring=x", "use ring=256" },
                  { "ring=/", "use ring=256" },
                  { "ring=300x", "use ring=256" },
                  { "ring=16777217", "use ring=256" },
                  { "timeout=1000000001", "use timeout=1" },
                  { "ring=x,timeout=1", "use ring=256" },
                  { "ring=300,,signal=:", "use signal=1" } };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        expect_error(ds__trace_configure(wrong[i].list), DS_ERR_INVALID_VALUE, wrong[i].sentence);
        assert_int_equal(ds__trace.starts, 0);
        assert_int_equal(ds__trace.start.ring, 0);
    }
    memset(name, 'n', sizeof name);
    memcpy(name + 480, ".html", 6);
    expect_error(ds__trace_configure(name), DS_ERR_INVALID_VALUE, "at most 479");

    ok(ds__trace_configure(",1,,ring=300,timeout=7,"));
    assert_int_equal(ds__trace.starts, 1);
    assert_int_equal(ds__trace.start.ring, 300);
    assert_int_equal(ds__trace.start.timeout_ns, 7000000);
    ok(ds__trace_configure(",,"));
    assert_int_equal(ds__trace.starts, 0);
    ok(ds__trace_configure(NULL));
    assert_int_equal(ds__trace.start.ring, 0);
}

static void call_all(void *user) {
    char text[100];
    ds_trace_stats stats;
    ds_result *r = user;
    r[0] = ds_trace_start(NULL);
    r[1] = ds_trace_stop();
    r[2] = ds_trace_flush();
    r[3] = ds_trace_dump("never.html");
    r[4] = ds_trace_summary(text, sizeof text);
    r[5] = ds_trace_standing(text, sizeof text);
    r[6] = ds_trace_get_stats(&stats);
}

static void test_user_code_may_not_call_the_layer(void **state) {
    (void)state;
    ds_result r[7] = { 0 };
    begin();
    ds_stream s = stream_on(ds_cpu(0), NULL);
    ok(ds_stream_launch_host_func(s, call_all, r, NULL));
    ok(ds_stream_synchronize(s));
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(r[i], DS_ERR_NOT_PERMITTED);
    ok(ds_shutdown());
}

/* ---- texts ---- */

static void test_texts_can_be_printed(void **state) {
    (void)state;
    char text[4000], small[8] = "x";
    begin();
    start(NULL, 0);
    int before = errors_to("printed.txt");
    ds_result summary = ds_trace_summary(NULL, 0);
    ds_result standing = ds_trace_standing(NULL, 0);
    errors_back(before);
    ok(summary);
    ok(standing);
    const char *printed = read_text("printed.txt");
    expect_text(printed, "0 operations in 0.000 ms, 0 records lost\n");
    expect_text(printed, "no stream has pending operations with a record\n");

    ok(ds_trace_summary(text, sizeof text));
    expect_text(text, "0 operations in 0.000 ms");
    expect_no_text(text, "longest waits");
    expect_error(ds_trace_summary(small, sizeof small), DS_ERR_LIMIT_EXCEEDED,
                 "the buffer has 8, with the terminating zero");
    assert_string_equal(small, ""); /* not even the first line fits */
    ok(ds_trace_stop());
    ok(ds_shutdown());
}

/* A text trace has a summary at its end, and a dump as text also what stands. */
static void test_a_text_file_has_summary_and_standing_streams(void **state) {
    (void)state;
    gate g = { 0, 0 };
    begin();
    ds_stream s = stream_on(ds_cpu(0), "held");
    start("whole.txt", 0);
    ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
    while (!atomic_load(&g.entered))
        usleep(100);
    ok(ds_trace_flush());
    ok(ds_trace_dump(path_of("dump.txt")));
    assert_string_equal(read_text("whole.txt"), ""); /* only the end writes */
    atomic_store(&g.open, 1);
    ok(ds_stream_synchronize(s));
    ok(ds_trace_stop());

    const char *dump = read_text("dump.txt"), *whole = read_text("whole.txt");
    expect_text(dump, "0 operations in");
    expect_text(dump, "\nstream \"held\" stands at host function of ds_stream_launch_host_func at "
                      "test_trace_files.c:");
    expect_text(whole, "1 operations in");
    expect_text(whole, "held ");
    expect_text(whole, "\nno stream has pending operations with a record\n");
    ok(ds_shutdown());
}

static gate held;

static int held_kernel(size_t from, size_t count, const void *args) {
    (void)from, (void)count, (void)args;
    gate_fn(&held);
    return 0;
}

static void test_a_standing_kernel_has_its_name(void **state) {
    (void)state;
    char text[1000];
    ds_kernel kernel;
    begin();
    ds_stream s = stream_on(ds_cpu(0), NULL);
    atomic_store(&held.open, 0);
    atomic_store(&held.entered, 0);
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "held kernel", .cpu_fn = held_kernel },
                        &kernel));
    start(NULL, 0);
    ok(ds_kernel_launch(kernel, 1, NULL, 0, s));
    while (!atomic_load(&held.entered))
        usleep(100);
    ok(ds_trace_standing(text, sizeof text));
    atomic_store(&held.open, 1);
    ok(ds_stream_synchronize(s));
    expect_text(text, " (held kernel)");
    ok(ds_trace_stop());
    ok(ds_kernel_destroy(kernel));
    ok(ds_shutdown());
}

/* Sums, overlap and waits of known operations. */
static void test_the_summary_of_known_operations(void **state) {
    (void)state;
    char text[6000], want[200];
    begin();
    ds_stream named = stream_on(ds_cpu(0), "named");
    ds_stream plain = stream_on(ds_cpu(1), NULL);
    uint64_t number = number_of(plain);
    start(NULL, 256);
    ds_activity list[] = { operation(DS_ACTIVITY_COPY, named, 1000, 3000),
                           operation(DS_ACTIVITY_KERNEL, plain, 2000, 4000),
                           operation(DS_ACTIVITY_RECORD, named, 3000, 5000),
                           operation(DS_ACTIVITY_WAIT, plain, 4000, 900000),
                           operation(DS_ACTIVITY_WAIT, named, 5000, 800000),
                           operation(DS_ACTIVITY_WAIT, named, 800000, 1500000),
                           operation(DS_ACTIVITY_KERNEL, plain, 1500000, 1500000),
                           operation(DS_ACTIVITY_KERNEL, plain, 2000000, 2001000) };
    list[0].bytes = 4096;
    list[1].name = "a kernel";
    list[3].cause_id = list[0].correlation_id;
    list[4].cause_id = list[1].correlation_id + 256; /* the same place, no record */
    list[4].call = NULL;
    list[4].file = NULL;
    list[5].cause_id = list[1].correlation_id;
    give(list, sizeof list / sizeof list[0], 3);
    ok(ds_trace_summary(text, sizeof text));
    ok(ds_trace_stop());

    expect_text(text, "8 operations in 2.000 ms, 3 records lost\n");
    /* the span is 1000 to 2001000: 4000 busy, 1000 with the copy and the kernel at once */
    expect_text(text, "busy 0.2 % of the time; two operations at once 0.1 %; a copy and another "
                      "operation at once 0.1 %\n");
    snprintf(want, sizeof want,
             "0.896 ms  stream %llu, ds_test_call at given.c:7, waits for copy "
             "of stream \"named\", ds_test_call at given.c:7\n",
             (unsigned long long)number);
    expect_text(text, want);
    expect_text(text, "0.795 ms  stream \"named\", a call, waits for an operation that has no "
                      "record\n");
    snprintf(want, sizeof want,
             "0.700 ms  stream \"named\", ds_test_call at given.c:7, waits for "
             "kernel a kernel of stream %llu, ds_test_call at given.c:7\n",
             (unsigned long long)number);
    expect_text(text, want);
    snprintf(want, sizeof want, "\n%-30llu cpu:1 ", (unsigned long long)number);
    expect_text(text, want); /* the device of its creation */
    assert_int_equal(stats_now().dropped, 3);
    ok(ds_shutdown());
}

/* Operations that follow each other without a gap do not overlap; equally busy streams are in the
   order of their creation. */
static void test_the_summary_of_operations_without_gaps(void **state) {
    (void)state;
    char text[4000];
    begin();
    ds_device device = ds_backend_is_available(DS_DEVICE_CUDA) ? ds_cuda(1) : ds_cpu(1);
    ds_stream first = stream_on(device, "first");
    ds_stream second = stream_on(ds_cpu(0), "second");
    start(NULL, 0);
    ds_activity list[] = { operation(DS_ACTIVITY_KERNEL, second, 2000, 3000),
                           operation(DS_ACTIVITY_COPY, first, 1000, 2000),
                           operation(DS_ACTIVITY_COPY, second, 3000, 3000) };
    list[0].call = NULL;
    give(list, 3, 0);
    ok(ds_trace_summary(text, sizeof text));
    expect_text(text, "busy 100.0 % of the time; two operations at once 0.0 %; a copy and another "
                      "operation at once 0.0 %\n");
    const char *row = strstr(text, "\nfirst ");
    assert_non_null(row);
    expect_text(row, device.type == DS_DEVICE_CUDA ? " cuda:1 " : " cpu:1 ");
    expect_text(row, "\nsecond ");
    expect_text(row, " cpu:0 ");
    ok(ds_trace_stop());
    ok(ds_shutdown());
}

/* A wait for a step of a collective names the step, as it names other operations. */
static void test_a_wait_can_be_for_a_step(void **state) {
    (void)state;
    char text[4000];
    begin();
    ds_stream first = stream_on(ds_cpu(0), "first");
    ds_stream second = stream_on(ds_cpu(0), "second");
    start(NULL, 0);
    ds_activity list[] = { operation(DS_ACTIVITY_COPY, first, 1000, 3000),
                           operation(DS_ACTIVITY_WAIT, second, 1000, 3000) };
    list[0].call = "ds_comm_broadcast";
    list[1].cause_id = list[0].correlation_id;
    give(list, 2, 0);
    ok(ds_trace_summary(text, sizeof text));
    expect_text(text, "waits for step copy of stream \"first\", ds_comm_broadcast at given.c:7\n");
    ok(ds_trace_stop());
    ok(ds_shutdown());
}

/* A record that the ring has lost is no cause any more, also if the record in its place has the
   same number: a race has that of its later operation. */
static void test_a_cause_that_was_overwritten_is_not_named(void **state) {
    (void)state;
    char text[4000];
    begin();
    ds_stream s = stream_on(ds_cpu(0), "s");
    start(NULL, 256);
    ds_activity first = operation(DS_ACTIVITY_COPY, s, 1000, 3000);
    ds_activity wait = operation(DS_ACTIVITY_WAIT, s, 3000, 9000);
    wait.cause_id = first.correlation_id;
    give(&first, 1, 0);
    for (int i = 0; i < 300; i++)
        ds__trace_seen(&(ds__seen){ .kind = DS__SEEN_RACE, .operation = first.correlation_id });
    give(&wait, 1, 0);
    ok(ds_trace_summary(text, sizeof text));
    expect_text(text, "waits for an operation that has no record\n");
    ok(ds_trace_stop());
    ok(ds_shutdown());
}

/* ---- JSON ---- */

static const char *argument(const json *event, const char *name) {
    return json_text(json_get(event, "args"), name);
}

static void test_json_has_blocks_ranges_and_marks(void **state) {
    (void)state;
    void *block, *other;
    ds_range range;
    begin();
    ds_stream s = stream_on(ds_cpu(1), "blocks");
    start("blocks.json", 0);
    ok(ds_thread_set_label("main <thread>"));
    assert_int_equal(ds_range_push("outer"), 0);
    ok(ds_range_mark("here"));
    ok(ds_range_start("free", &range));
    ok(ds_mem_alloc(1000, s, &block));
    ok(ds_mem_alloc(500, s, &other));
    ok(ds_mem_free(block));
    ok(ds_mem_free(other));
    assert_true(ds_mem_alloc((size_t)1 << 60, s, &block) < 0);
    ok(ds_range_end(range));
    assert_int_equal(ds_range_pop(), 0);
    ok(ds_trace_stop());

    json list = read_json("blocks.json");
    static const char *const alive[] = { "1000", "1500", "500", "0" };
    const json *e;
    for (size_t i = 0; i < 4; i++) {
        e = event_of(&list, "name", "allocated", i);
        assert_non_null(e);
        assert_string_equal(json_text(e, "ph"), "C");
        assert_string_equal(argument(e, "bytes"), alive[i]);
    }
    assert_null(event_of(&list, "name", "allocated", 4));
    e = event_of(&list, "name", "out of memory", 0);
    assert_non_null(e);
    assert_string_equal(json_text(e, "s"), "p");
    assert_string_equal(argument(e, "call"), "ds_mem_alloc");
    e = event_of(&list, "name", "here", 0);
    assert_non_null(e);
    assert_string_equal(json_text(e, "ph"), "i");
    assert_string_equal(json_text(e, "s"), "t");
    assert_string_equal(argument(e, "call"), "ds_range_mark");
    const char *thread = json_text(e, "tid");
    e = event_of(&list, "name", "outer", 0);
    assert_non_null(e);
    assert_string_equal(json_text(e, "ph"), "X");
    assert_string_equal(json_text(e, "tid"), thread);
    assert_non_null(event_of(&list, "name", "free", 0));
    int has_thread = 0;
    for (size_t i = 0; i < list.count; i++)
        has_thread |= strcmp(argument(&list.item[i], "name"), "main <thread>") == 0 &&
                      strcmp(json_text(&list.item[i], "name"), "thread_name") == 0 &&
                      strcmp(json_text(&list.item[i], "tid"), thread) == 0;
    assert_true(has_thread);
    ok(ds_shutdown());
}

/* A counter of bytes does not become negative by the free of an earlier block. A block of the host
   belongs to no device and no stream. */
static void test_json_of_blocks_from_before_the_trace(void **state) {
    (void)state;
    void *block;
    begin();
    ds_stream s = stream_on(ds_cpu(0), NULL);
    ok(ds_mem_alloc(1000, s, &block));
    start("earlier.json", 0);
    ok(ds_mem_free(block));
    ds__trace_seen(&(ds__seen){ .kind = DS__SEEN_OOM, .bytes = 77 });
    ds__trace_seen(&(ds__seen){ .kind = DS__SEEN_ALLOC, .bytes = 5, .stream = s });
    ok(ds_trace_stop());
    json list = read_json("earlier.json");
    const json *e = event_of(&list, "name", "allocated", 0);
    assert_non_null(e);
    assert_string_equal(argument(e, "bytes"), "0");
    e = event_of(&list, "cat", "out of memory", 0);
    assert_non_null(e);
    assert_string_equal(json_text(e, "pid"), "0");
    assert_string_equal(json_text(e, "tid"), "0");
    assert_string_equal(argument(e, "bytes"), "77");
    e = event_of(&list, "name", "allocated", 1);
    assert_non_null(e);
    assert_string_equal(json_text(e, "pid"), "0");
    ok(ds_shutdown());
}

static void test_json_has_races(void **state) {
    (void)state;
    begin();
    ds_stream s = stream_on(ds_cpu(1), "later");
    start("races.json", 0);
    ds__seen race = { .kind = DS__SEEN_RACE,
                      .hazard = "write-after-write",
                      .label = "a report \"of\" two lines\n",
                      .operation = 12,
                      .before = 11,
                      .stream = s };
    ds__trace_seen(&race);
    race.stream.id = 0; /* of the host */
    ds__trace_seen(&race);
    ok(ds_trace_stop());
    uint64_t before = stats_now().records;
    ds__trace_seen_race(&race); /* began before the end of the trace */
    race.stream = s;
    ds__trace_seen_race(&race);
    ds__trace_seen_block(&race, DS__TRACE_ALLOC);
    assert_int_equal(stats_now().records, before);

    json list = read_json("races.json");
    static const char *const scope[] = { "t", "g" };
    for (size_t i = 0; i < 2; i++) {
        const json *e = event_of(&list, "cat", "race", i);
        assert_non_null(e);
        assert_string_equal(json_text(e, "ph"), "i");
        assert_string_equal(json_text(e, "name"), "write-after-write");
        assert_string_equal(json_text(e, "s"), scope[i]);
        assert_string_equal(argument(e, "later"), "12");
        assert_string_equal(argument(e, "earlier"), "11");
        assert_string_equal(argument(e, "report"), "a report \"of\" two lines\n");
        assert_int_equal(strcmp(json_text(e, "tid"), "0") == 0, i == 1);
    }
    ok(ds_shutdown());
}

/* Operations that failed or have no times, and the arguments of each kind. */
static void test_json_has_the_members_of_operations(void **state) {
    (void)state;
    begin();
    ds_stream s = stream_on(ds_cpu(0), "s");
    ds_stream other = stream_on(ds_cpu(0), "other");
    start("members.json", 0);
    ds_activity list[] = { operation(DS_ACTIVITY_KERNEL, s, 1000, 2000),
                           operation(DS_ACTIVITY_COPY, s, 2000, 3000),
                           operation(DS_ACTIVITY_FILL, s, 3000, 3000),
                           operation(DS_ACTIVITY_VALUES, s, 4000, 4000),
                           operation(DS_ACTIVITY_KERNEL, s, 0, 0),
                           operation(DS_ACTIVITY_KERNEL, s, 0, 0),
                           operation(DS_ACTIVITY_WAIT, other, 1000, 1500),
                           operation(DS_ACTIVITY_WAIT, other, 1500, 1600),
                           operation(DS_ACTIVITY_WAIT, other, 1600, 1700),
                           operation(DS_ACTIVITY_KERNEL, other, 0, 0),
                           operation(DS_ACTIVITY_KERNEL, other, 9000, 9001) };
    list[0].count = 64;
    list[1].bytes = 4000;
    list[2].bytes = 10;
    list[3].count = 2;
    list[4].result = DS_ERR_FAILED;
    list[4].begin_ns = list[4].end_ns = 0;
    list[5].begin_ns = list[5].end_ns = 0;
    list[5].enqueue_ns = 1; /* before the trace */
    list[6].cause_id = list[0].correlation_id;
    list[7].cause_id = list[3].correlation_id + 131072; /* the same place, another operation */
    list[9].begin_ns = list[9].end_ns = 0;
    list[9].enqueue_ns = at_ns(8000); /* after the one before */
    list[10].file = NULL;
    give(list, sizeof list / sizeof list[0], 0);
    ok(ds_trace_stop());

    static const struct {
        size_t of;
        const char *name, *want;
    } args[] = { { 0, "count", "64" },     { 1, "bytes", "4000" },  { 1, "GB/s", "4.000" },
                 { 2, "bytes", "10" },     { 2, "GB/s", NULL },     { 3, "count", "2" },
                 { 0, "failed", NULL },    { 4, "failed", "true" }, { 4, "untimed", NULL },
                 { 5, "untimed", "true" }, { 5, "failed", NULL },   { 0, "file", "folder/given.c" },
                 { 10, "file", NULL },     { 8, "waits for", NULL } };

    json events = read_json("members.json");
    for (size_t i = 0; i < sizeof args / sizeof args[0]; i++) {
        char id[24];
        const json *event = NULL;
        snprintf(id, sizeof id, "%llu", (unsigned long long)list[args[i].of].correlation_id);
        for (size_t k = 0; k < events.count && !event; k++)
            if (strcmp(argument(&events.item[k], "id"), id) == 0)
                event = &events.item[k];
        assert_non_null(event);
        const json *v = json_get(json_get(event, "args"), args[i].name);
        assert_int_equal(v != NULL, args[i].want != NULL);
        if (v && v->kind == JSON_BOOL)
            assert_true(v->truth);
        else if (v)
            assert_string_equal(v->text, args[i].want);
    }
    /* the operation without times begins at the end of the one before */
    const json *untimed = event_of(&events, "cat", "kernel", 2);
    assert_non_null(untimed);
    assert_string_equal(json_text(untimed, "ts"), "4.000");
    assert_string_equal(json_text(untimed, "dur"), "0.000");
    untimed = event_of(&events, "cat", "kernel", 3);
    assert_non_null(untimed);
    assert_string_equal(json_text(untimed, "ts"), "8.000");
    assert_int_equal(stats_now().untimed, 2);
    /* one wait has an arrow, whose end is not before its begin */
    const json *from = event_of(&events, "ph", "s", 0), *to = event_of(&events, "ph", "f", 0);
    assert_true(from && to);
    assert_null(event_of(&events, "ph", "s", 1));
    assert_string_equal(json_text(from, "ts"), "1.999");
    assert_string_equal(json_text(to, "ts"), "1.999");
    ok(ds_shutdown());
}

/* A dump has open operations; the launch of a graph has nodes, whose lanes have no track of
   waits. */
static void test_json_has_nodes_and_open_operations(void **state) {
    (void)state;
    gate g = { 0, 0 };
    ds_graph graph;
    ds_graph_exec exec;
    begin();
    ds_stream s = stream_on(ds_cpu(0), NULL);
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    start(NULL, 0);
    ok(ds_graph_launch(exec, s));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
    while (!atomic_load(&g.entered))
        usleep(100);
    ok(ds_trace_dump(path_of("open.json")));
    atomic_store(&g.open, 1);
    ok(ds_stream_synchronize(s));
    ok(ds_trace_stop());

    json list = read_json("open.json");
    const json *node = event_of(&list, "cat", "node", 0);
    const json *launch = event_of(&list, "cat", "graph", 0);
    const json *open = event_of(&list, "cat", "host function", 0);
    assert_true(node && launch && open);
    assert_string_equal(argument(node, "launch"), argument(launch, "id"));
    assert_null(json_get(json_get(node, "args"), "id"));
    const json *is_open = json_get(json_get(open, "args"), "open");
    assert_true(is_open && is_open->truth);
    assert_null(json_get(json_get(launch, "args"), "open"));
    size_t waits = 0;
    for (size_t i = 0; i < list.count; i++) {
        const char *name = argument(&list.item[i], "name");
        waits += strstr(name, " lane 1 waits") != NULL;
    }
    assert_int_equal(waits, 0);
    char want[60];
    snprintf(want, sizeof want, "stream %llu lane ", (unsigned long long)number_of(s));
    expect_text(read_text("open.json"), want);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    ok(ds_shutdown());
}

/* The counter of a queue has the operations that were pending, up to its greatest length. */
static void test_json_counts_deep_queues(void **state) {
    (void)state;

    enum { COUNT = DS__TRACE_DEPTH + 50 };

    static ds_activity list[COUNT];
    long deepest = 0;
    begin();
    ds_stream s = stream_on(ds_cpu(0), "deep");
    start("deep.json", 0);
    for (uint64_t i = 0; i < COUNT; i++)
        list[i] = operation(DS_ACTIVITY_KERNEL, s, 1000 + i, 1001 + i);
    give(list, COUNT, 0);
    ok(ds_trace_stop());
    json events = read_json("deep.json");
    for (size_t i = 0; i < events.count; i++)
        if (strcmp(json_text(&events.item[i], "name"), "queue of deep") == 0) {
            long pending = atol(argument(&events.item[i], "pending"));
            deepest = pending > deepest ? pending : deepest;
        }
    assert_int_equal(deepest, DS__TRACE_DEPTH);
    ok(ds_shutdown());
}

static void test_an_empty_trace_is_an_empty_array(void **state) {
    (void)state;
    begin();
    start("empty.json", 0);
    ok(ds_trace_stop());
    json list = read_json("empty.json");
    assert_int_equal(list.count, 0);
    ok(ds_shutdown());
}

/* ---- texts of the tables ---- */

/* Many texts stay different, a long one is cut, and "" stands for those beyond the limit. */
static void test_texts_have_numbers_up_to_a_limit(void **state) {
    (void)state;

    enum { LONG = 5000, KEPT = 4096, MANY = DS__TRACE_TEXT_BYTES / (KEPT + 1) + 20 };

    char text[LONG + 1];
    begin();
    start(NULL, 1024);
    for (int i = 0; i < 300; i++) {
        snprintf(text, sizeof text, "text %d", i);
        ok(ds_range_mark(text));
    }
    size_t known = ds__trace.texts;
    for (int i = 0; i < 300; i++) { /* found again after the table has grown */
        snprintf(text, sizeof text, "text %d", i);
        ok(ds_range_mark(text));
    }
    assert_int_equal(ds__trace.texts, known);
    memset(text, 'l', LONG);
    text[LONG] = 0;
    ok(ds_range_mark(text));
    ok(ds_range_mark("a \x7f < \x01 \" \\ \xc3\xa9 \xc3"));
    ok(ds_trace_dump(path_of("texts.json")));
    for (int i = 0; i < MANY; i++) {
        snprintf(text, sizeof text, "%d", i);
        memset(text + strlen(text), 'm', 8);
        ok(ds_range_mark(text));
    }
    ok(ds_trace_dump(path_of("many.json")));
    ok(ds_trace_stop());

    json list = read_json("texts.json");
    for (int i = 0; i < 300; i++) {
        snprintf(text, sizeof text, "text %d", i);
        assert_non_null(event_of(&list, "name", text, 1));
        assert_null(event_of(&list, "name", text, 2));
    }
    memset(text, 'l', KEPT);
    text[KEPT] = 0;
    assert_non_null(event_of(&list, "name", text, 0));
    assert_non_null(event_of(&list, "name", "a \x7f < \x01 \" \\ \xc3\xa9 ?", 0));
    list = read_json("many.json");
    size_t unnamed = 0;
    for (size_t i = 0; i < list.count; i++) {
        if (strcmp(json_text(&list.item[i], "cat"), "mark") != 0)
            continue;
        unnamed += strcmp(json_text(&list.item[i], "name"), "mark") == 0;
        assert_string_equal(argument(&list.item[i], "call"), "ds_range_mark");
    }
    assert_true(unnamed >= 20);
    ok(ds_shutdown());
}

/* ---- ranges and collectives that a trace sees in part ---- */

static void test_ranges_of_before_the_trace_have_no_record(void **state) {
    (void)state;
    ds_range before;
    begin();
    assert_int_equal(ds_range_push("before"), 0);
    ok(ds_range_mark("before"));
    ok(ds_range_start("before", &before));
    start("partly.html", 0);
    assert_int_equal(ds_range_pop(), 0); /* the thread has no state of this trace yet */
    assert_int_equal(ds_range_push("inside"), 0);
    assert_int_equal(ds_range_pop(), 0);
    ok(ds_range_end(before));
    ds__trace_seen(
        &(ds__seen){ .kind = DS__SEEN_RANGE, .range = &(ds_range_event){ .kind = DS_RANGE_POP } });
    ok(ds_trace_stop());
    trace_file t = read_trace("partly.html");
    assert_int_equal(t.records, 1);
    assert_int_equal(t.record[0].kind, 17);
    assert_string_equal(trace_text(&t, t.record[0].name), "inside");
    ok(ds_shutdown());
}

static void test_domains_have_ranges_of_their_own(void **state) {
    (void)state;
    ds_domain library;
    begin();
    ok(ds_domain_create("library", &library));
    start("domains.html", 0);
    assert_int_equal(ds_range_push("outer"), 0);
    assert_int_equal(ds_range_push_with(&(ds_range_desc){ .text = "inner", .domain = library }), 0);
    assert_int_equal(ds_range_pop(), 0); /* the outer range: the inner one is of the library */
    assert_int_equal(ds_range_pop_in(library), 0);
    ok(ds_trace_stop());
    trace_file t = read_trace("domains.html");
    assert_int_equal(count_kind(&t, 17), 2);
    assert_string_equal(trace_text(&t, t.record[0].name), "outer");
    assert_string_equal(trace_text(&t, t.record[1].name), "inner");
    ok(ds_shutdown());
}

/* The innermost 32 ranges of a thread have records, and 256 started ones. */
static void test_more_ranges_than_there_is_room_for(void **state) {
    (void)state;

    enum { NESTED = DS__TRACE_NESTED + 8, OPEN = DS__TRACE_OPEN_RANGES + 10 };

    static ds_range started[OPEN];
    char text[16];
    begin();
    start("deep.html", 0);
    for (int i = 0; i < NESTED; i++) {
        snprintf(text, sizeof text, "%d", i);
        assert_int_equal(ds_range_push(text), i);
    }
    for (int i = NESTED; i-- > 0;)
        assert_int_equal(ds_range_pop(), i);
    for (int i = 0; i < OPEN; i++)
        ok(ds_range_start("started", &started[i]));
    for (int i = 0; i < OPEN; i++)
        ok(ds_range_end(started[i]));
    ok(ds_trace_stop());

    trace_file t = read_trace("deep.html");
    assert_int_equal(t.records, DS__TRACE_NESTED + DS__TRACE_OPEN_RANGES);
    for (int i = 0; i < DS__TRACE_NESTED; i++)
        assert_string_equal(trace_text(&t, t.record[i].name),
                            (snprintf(text, sizeof text, "%d", NESTED - 1 - i), text));
    assert_string_equal(trace_text(&t, t.record[DS__TRACE_NESTED].name), "started");
    ok(ds_shutdown());
}

/* Collectives nest, up to a depth; one that began before the trace has no record. */
static void test_collectives_that_nest_have_records(void **state) {
    (void)state;
    begin();
    start("nested.html", 0);
    ds__trace_seen(&(ds__seen){ .kind = DS__SEEN_END });
    for (int i = 0; i < 10; i++)
        ds__trace_seen(&(ds__seen){ .kind = DS__SEEN_BEGIN });
    ds__seen_operand operands[2] = { { .bytes = 100 }, { .bytes = 20 } };
    for (int i = 0; i < 11; i++)
        ds__trace_seen(&(ds__seen){ .kind = DS__SEEN_END,
                                    .fn = "ds_comm_all_reduce",
                                    .operand = operands,
                                    .operands = 2,
                                    .result = i == 9 ? DS_ERR_FAILED : DS_OK });
    ok(ds_trace_stop());
    trace_file t = read_trace("nested.html");
    assert_int_equal(t.records, 8);
    assert_int_equal(count_kind(&t, 19), 8);
    assert_int_equal(t.record[0].amount, 120);
    assert_int_equal(t.record[0].flags & 1, 0);
    assert_int_equal(t.record[7].flags & 1, 1);
    assert_true(t.record[7].begin <= t.record[0].begin);
    ok(ds_shutdown());
}

/* A label of a stream is that of the stream alone, not of its lanes or of other streams. */
static void test_labels_of_streams_change(void **state) {
    (void)state;
    ds_graph graph;
    ds_graph_exec exec;
    begin();
    ds_stream other = stream_on(ds_cpu(0), "other");
    ds_stream s = stream_on(ds_cpu(0), "old");
    ds_stream third = stream_on(ds_cpu(0), "third");
    ok(ds_stream_set_label(s, "early")); /* no trace runs */
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    start(NULL, 0);
    ok(ds_graph_launch(exec, s));
    ok(ds_stream_launch_host_func(other, nothing, NULL, NULL));
    ok(ds_stream_synchronize(other));
    ok(ds_stream_synchronize(s));
    ok(ds_trace_flush());
    ok(ds_stream_set_label(s, "late"));
    ok(ds_stream_set_label(third, NULL));
    ok(ds_trace_dump(path_of("labels.json")));
    ds__trace_seen(&(ds__seen){
        .kind = DS__SEEN_RANGE,
        .range = &(ds_range_event){ .kind = DS_RANGE_DEVICE_LABEL, .text = "a device" } });
    ok(ds_trace_stop());
    const char *text = read_text("labels.json");
    expect_text(text, "\"late\"");
    expect_text(text, "\"late waits\"");
    expect_text(text, "\"early lane ");
    expect_text(text, "\"other\"");
    expect_no_text(text, "\"old\"");
    expect_no_text(text, "third");
    expect_no_text(text, "a device");
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    ok(ds_shutdown());
}

/* ---- calls that block ---- */

/* Waits for events and fills of pageable memory have records; a query of an event has none. */
static void test_blocking_calls_have_records(void **state) {
    (void)state;
    char pageable[4096] = "";
    begin();
    for (int cuda = 0; cuda < 2; cuda++) {
        ds_device device = cuda ? ds_cuda(0) : ds_cpu(0);
        if (cuda && !ds_backend_is_available(DS_DEVICE_CUDA))
            continue;
        gate g = { 0, 0 };
        ds_event e;
        ds_stream s = stream_on(device, "waits");
        ok(ds_event_create(0, NULL, &e));
        start("blocks.html", 0);
        ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
        ok(ds_event_record(e, s));
        assert_int_equal(ds_event_synchronize_for(e, 0), DS_NOT_READY);
        assert_int_equal(ds_stream_synchronize_for(s, 0), DS_NOT_READY);
        assert_int_equal(ds_event_synchronize_for(e, 1000), DS_NOT_READY);
        atomic_store(&g.open, 1);
        ok(ds_event_synchronize(e));
        ok(ds_fill(pageable, 1, 1, sizeof pageable, s));
        ok(ds_device_synchronize(device));
        ok(ds_trace_stop());

        trace_file t = read_trace("blocks.html");
        size_t timed = 0, whole = 0, fills = 0, queries = 0;
        uint32_t cause = 0, gated = 0;
        for (size_t i = 0; i < t.records; i++) {
            const trace_record *r = &t.record[i];
            const char *call = trace_text(&t, r->call);
            if (r->kind == 4)
                gated = r->id;
            if (r->kind != 16)
                continue;
            timed += strcmp(call, "ds_event_synchronize_for") == 0;
            whole += strcmp(call, "ds_event_synchronize") == 0;
            fills += strcmp(call, "ds_fill") == 0;
            queries += strcmp(call, "ds_stream_synchronize_for") == 0;
            if (strcmp(call, "ds_event_synchronize_for") == 0)
                cause = r->cause;
        }
        assert_int_equal(timed, 1);
        assert_true(whole <= 1); /* none if the event was complete by then */
        assert_int_equal(fills, 1);
        assert_int_equal(queries, 0);
        assert_true(gated != 0);
        assert_int_equal(cause, gated);

        atomic_store(&g.open, 0); /* no trace runs */
        ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
        ok(ds_event_record(e, s));
        assert_int_equal(ds_event_synchronize_for(e, 1000), DS_NOT_READY);
        atomic_store(&g.open, 1);
        ok(ds_event_synchronize(e));
        ok(ds_event_destroy(e));
        ok(ds_stream_destroy(s));
    }
    ok(ds_shutdown());
}

static void *open_later(void *user) {
    gate *g = user;
    for (;;) { /* until the wait was reported */
        ds__mutex_lock(&ds__trace.lock);
        int reported = ds__trace.waiting && ds__trace.waiting->reported;
        ds__mutex_unlock(&ds__trace.lock);
        if (reported)
            break;
        usleep(1000);
    }
    ok(ds_trace_flush()); /* the report is printed */
    atomic_store(&g->open, 1);
    return NULL;
}

static ds_log_item logged;
static char log_text[600];

static void keep_warning(const ds_log_item *item, void *user) {
    (void)user;
    logged = *item;
    snprintf(log_text, sizeof log_text, "%s", item->text);
}

/* A program may call without a call site. The dump that belongs to the report cannot be written,
   nor can the one at the end. */
static void test_a_report_needs_neither_site_nor_dump(void **state) {
    (void)state;
    static ds_cpu_desc cpu = { .devices = 1 };
    gate g = { 0, 0 };
    pthread_t thread;
    log_text[0] = 0;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                .flags = DS_INIT_NO_CUDA,
                                .log_fn = keep_warning,
                                .trace = "timeout=1,dump=/nowhere/at/all.html" }));
    ds_stream s = stream_on(ds_cpu(0), "stuck");
    int before = errors_to("report.txt");
    ok(ds_stream_launch_host_func(s, gate_fn, &g, NULL));
    assert_int_equal(pthread_create(&thread, NULL, open_later, &g), 0);
    ds_result r = (ds_stream_synchronize)(s);
    pthread_join(thread, NULL);
    errors_back(before);
    ok(r);
    expect_text(log_text, "/nowhere/at/all.html\": No such file");
    log_text[0] = 0;
    ok(ds_shutdown());
    expect_text(log_text, "/nowhere/at/all.html\": No such file");

    const char *text = read_text("report.txt");
    expect_text(text, "devstream: trace: ds_stream_synchronize has waited for ");
    expect_text(text, "stream \"stuck\" stands at host function");
}

/* Calls that block for long are reported once each, in one pass. */
static void test_each_call_that_blocks_is_reported_once(void **state) {
    (void)state;
    uint64_t now = ds__now_ns();
    uint64_t limit = 3600 * (uint64_t)1000000000;
    ds__trace_waiting first = { .fn = "ds_first", .site = { "a.c", 3 }, .begin = now - 2 * limit };
    ds__trace_waiting second = { .fn = NULL, .begin = now - 2 * limit };
    ds__trace_waiting third = { .fn = "ds_third", .begin = now };
    begin();
    ok(ds_trace_start(&(ds_trace_desc){ .timeout_ns = limit }));
    int before = errors_to("reports.txt");
    ds__mutex_lock(&ds__trace.lock);
    first.next = &second;
    second.next = &third;
    ds__trace.waiting = &first;
    ds__mutex_unlock(&ds__trace.lock);
    ok(ds_trace_flush());
    ok(ds_trace_flush());
    ds__mutex_lock(&ds__trace.lock);
    ds__trace.waiting = NULL;
    ds__mutex_unlock(&ds__trace.lock);
    ok(ds_trace_stop());
    errors_back(before);
    const char *text = read_text("reports.txt");
    const char *found = strstr(text, "ds_first at a.c:3 has waited for");
    assert_non_null(found);
    expect_no_text(found + 1, "ds_first");
    found = strstr(text, "a call has waited for");
    assert_non_null(found);
    expect_no_text(found + 1, "a call");
    expect_no_text(text, "ds_third"); /* waits not yet that long */
    ok(ds_shutdown());
}

static void name_nothing(void *stream, uint64_t handle) {
    (void)stream, (void)handle;
}

/* The stream may be destroyed by the time at which the driver has its handle. */
static void test_a_stream_may_be_gone_when_it_is_named(void **state) {
    (void)state;
    begin();
    ds_stream s = stream_on(ds_cpu(0), "gone");
    int b = ds__backend_of(ds_cpu(0));
    const ds__driver *next = ds__trace.next[b];
    ds__driver stub = *next;
    stub.stream_named = name_nothing;
    size_t streams = ds__trace.streams;
    ok(ds_stream_destroy(s));
    ds__trace.next[b] = &stub;
    ds__trace_stream_named(b, NULL, s.id);
    ds__trace.next[b] = next;
    assert_int_equal(ds__trace.streams, streams);
    assert_string_equal(ds__trace.stream[streams - 1].name, "gone");
    ok(ds_shutdown());
}

/* A call inside of a callback is no wait of the program. */
static void test_waits_inside_of_callbacks_have_no_record(void **state) {
    (void)state;
    begin();
    start("inside.html", 0);
    int b = ds__backend_of(ds_cpu(0));
    ds__tls.in_callback = 1;
    ds_result r = ds__trace_device_synchronize(b, 0);
    ds__tls.in_callback = 0;
    ok(r);
    ok(ds_trace_stop());
    trace_file t = read_trace("inside.html");
    assert_int_equal(t.records, 0);
    ok(ds_shutdown());
}

/* ---- the ring and files that end ---- */

/* While the file cannot be written, records are overwritten; they are counted as lost, and the file
   has the number. */
static void test_records_that_were_overwritten_are_counted(void **state) {
    (void)state;
    begin();
    start("lost.html", 256);
    ok(ds_trace_flush());
    ds__mutex_lock(&ds__trace.file_lock);
    for (int i = 0; i < 1000; i++)
        ok(ds_range_mark("mark"));
    ds__mutex_unlock(&ds__trace.file_lock);
    ok(ds_trace_flush());
    ds_trace_stats stats = stats_now();
    ds__mutex_lock(&ds__trace.file_lock);
    ds__trace.output.format->write(&ds__trace.output, NULL, 0, 5); /* all were overwritten */
    ds__mutex_unlock(&ds__trace.file_lock);
    ok(ds_trace_stop());

    assert_int_equal(stats.records, 1000);
    assert_int_equal(stats.kept, 256);
    assert_int_equal(stats.written, 256);
    assert_int_equal(stats.dropped, 744);
    trace_file t = read_trace("lost.html");
    assert_int_equal(t.records, 256);
    assert_int_equal(t.dropped, 749);
    ok(ds_shutdown());
}

/* A disk that is full: at the first text, at a later record, or at the end. */
static void test_a_full_disk_ends_the_file_only(void **state) {
    (void)state;

    static const struct {
        const char *file, *warning;
    } files[] = { { "full.html", "takes no more: the disk is full" },
                  { "full.json", "takes no more: the disk is full" },
                  { "full.txt", "could not be completed" } };

    if (access("/dev/full", W_OK) != 0)
        skip();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        log_text[0] = 0;
        ok(ds_init(&(ds_init_desc){
            .flags = DS_INIT_NO_CUDA, .log_fn = keep_warning, .layers = "trace" }));
        assert_int_equal(symlink("/dev/full", path_of(files[i].file)), 0);
        start(files[i].file, 16384);
        ds_stream s = stream_on(ds_cpu(0), NULL);
        ds__mutex_lock(&ds__trace.file_lock);
        for (int k = 0; k < DS__TRACE_CHUNK + 10; k++) /* more than are written at once */
            ok(ds_range_mark("mark"));
        ds__mutex_unlock(&ds__trace.file_lock);
        ok(ds_stream_launch_host_func(s, nothing, NULL, NULL));
        ok(ds_stream_synchronize(s));
        ok(ds_trace_flush());
        ok(ds_trace_stop());
        ds_trace_stats stats = stats_now();
        assert_int_equal(stats.operations, 1);
        assert_int_equal(stats.bytes, 0);
        expect_text(log_text, files[i].warning);
        expect_text(log_text, files[i].file);
        assert_int_equal(logged.level, DS_LOG_WARNING);
        expect_error(ds_trace_dump(path_of(files[i].file)), DS_ERR_SYSTEM, "could not be written");
        ok(ds_shutdown());
    }
}

/* The second part of a long file cannot be created. */
static void test_a_part_that_cannot_be_created_ends_the_file(void **state) {
    (void)state;
    assert_int_equal(mkdir(path_of("long-2.json"), 0700), 0);
    log_text[0] = 0;
    ok(ds_init(
        &(ds_init_desc){ .flags = DS_INIT_NO_CUDA, .log_fn = keep_warning, .layers = "trace" }));
    ds__trace.part = 2000;
    start("long.json", 0);
    for (int k = 0; k < 100; k++)
        ok(ds_range_mark("mark"));
    ok(ds_trace_flush());
    ok(ds_range_mark("mark"));
    ok(ds_trace_stop());
    ds__trace.part = DS__TRACE_PART;
    expect_text(log_text, "takes no more");
    json list = read_json("long.json"); /* the first part is complete */
    assert_true(list.count > 2 && list.count < 100);
    assert_int_equal(stats_now().records, 101);
    ok(ds_shutdown());
}

/* ---- memory that ends ---- */

static _Atomic long allocations; /* until one fails */
static _Atomic long alive;
static int all_fail; /* 1: those behind it, too */

static void *fail_at(size_t size, void *user) {
    (void)user;
    long n = atomic_fetch_sub(&allocations, 1);
    if (n == 1 || (n <= 0 && all_fail))
        return NULL;
    atomic_fetch_add(&alive, 1);
    return malloc(size);
}

static void free_it(void *p, void *user) {
    (void)user;
    atomic_fetch_sub(&alive, p != NULL);
    free(p);
}

static ds_result dump_html(char *text, size_t size) {
    (void)text, (void)size;
    return ds_trace_dump(path_of("scarce.html"));
}

static ds_result dump_json(char *text, size_t size) {
    (void)text, (void)size;
    return ds_trace_dump(path_of("scarce.json"));
}

static ds_result dump_text(char *text, size_t size) {
    (void)text, (void)size;
    return ds_trace_dump(path_of("scarce.txt"));
}

/* Operations, waits and records of all kinds, of which some may be lost. */
static void small_program(ds_stream *s, gate *g, ds_graph_exec exec) {
    static const char *const texts[] = { "one", "two", "three", "four", "five" };
    DS_IGNORE(ds_thread_set_label("a thread"));
    for (size_t i = 0; i < 5; i++)
        DS_IGNORE(ds_range_mark(texts[i]));
    for (int i = 0; i < 2; i++)
        if (s[i].id)
            DS_IGNORE(ds_stream_launch_host_func(s[i], nothing, NULL, NULL));
    if (exec.id)
        DS_IGNORE(ds_graph_launch(exec, s[1]));
    DS_IGNORE(ds_stream_wait_stream(s[1], s[0]));
    DS_IGNORE(ds_stream_launch_host_func(s[0], gate_fn, g, NULL));
    DS_IGNORE(ds_stream_set_label(s[1], "renamed"));
}

/* The n-th allocation of a call fails: the call reports this, or succeeds without a part; no memory
   is lost, and the next call succeeds. `complete` is a text that each success has. */
static void run_out_in(ds_result (*call_fn)(char *text, size_t size), const char *complete) {
    char text[8000];
    int failed = 0, over = 0;
    for (long n = 1; !over; n++) {
        gate g = { 0, 0 };
        assert_true(n < 300);
        alive = 0;
        allocations = LONG_MAX;
        all_fail = (int)(n % 2);
        ok(ds_init(&(ds_init_desc){ .allocator = { fail_at, free_it, NULL },
                                    .layers = "trace",
                                    .flags = DS_INIT_NO_CUDA,
                                    .log_level = DS_LOG_ERROR }));
        ds_stream s[2] = { stream_on(ds_cpu(0), "first"), stream_on(ds_cpu(0), NULL) };
        start(NULL, 4096);
        for (int i = 0; i < 3000; i++) /* the records are longer than the page before them */
            ok(ds_range_mark("mark"));
        small_program(s, &g, (ds_graph_exec){ 0 });
        while (!atomic_load(&g.entered))
            usleep(100);
        ok(ds_trace_flush());
        allocations = (n + 1) / 2;
        text[0] = 0;
        ds_result r = call_fn(text, sizeof text);
        over = allocations > 0; /* none has failed */
        allocations = LONG_MAX;
        all_fail = 0;
        if (r != DS_OK && r != DS_ERR_OUT_OF_MEMORY && r != DS_ERR_SYSTEM)
            fail_msg("allocation %ld: %s", n, ds_error_get_last());
        failed += r != DS_OK;
        if (r == DS_OK && complete && !strstr(text, complete))
            fail_msg("allocation %ld: no \"%s\" in: %s", n, complete, text);
        ok(call_fn(text, sizeof text));
        atomic_store(&g.open, 1);
        ok(ds_stream_synchronize(s[0]));
        ok(ds_shutdown());
        assert_int_equal(alive, 0);
    }
    assert_true(failed > 0);
}

static void test_texts_and_dumps_survive_a_lack_of_memory(void **state) {
    (void)state;
    run_out_in(ds_trace_summary, "\nfirst ");
    run_out_in(ds_trace_standing, "stream \"first\" stands at host function of ds_stream_launch");
    run_out_in(dump_html, NULL);
    run_out_in(dump_json, NULL);
    run_out_in(dump_text, NULL);
}

/* From the n-th allocation of a trace on, all fail, or this one only: streams, threads and texts
   may have no entries then. */
static void test_a_trace_without_room_for_its_tables(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++)
        for (long n = 1, over = 0; !over; n++) {
            gate g = { 0, 0 };
            ds_graph graph = { 0 };
            ds_graph_exec exec = { 0 };
            char text[8000];
            assert_true(n < 400);
            alive = 0;
            allocations = LONG_MAX;
            all_fail = round;
            ok(ds_init(&(ds_init_desc){ .allocator = { fail_at, free_it, NULL },
                                        .layers = "trace",
                                        .flags = DS_INIT_NO_CUDA,
                                        .log_level = DS_LOG_ERROR }));
            allocations = LONG_MAX;
            ds_stream s[2] = { stream_on(ds_cpu(0), "first"), { 0 } };
            ok(ds_capture_begin(s[0], DS_CAPTURE_RELAXED));
            ok(ds_stream_launch_host_func(s[0], nothing, NULL, NULL));
            ok(ds_capture_end(s[0], &graph));
            ok(ds_graph_instantiate(graph, NULL, &exec));
            allocations = n;
            DS_IGNORE(
                ds_trace_start(&(ds_trace_desc){ .file = path_of("tables.json"), .ring = 256 }));
            DS_IGNORE(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s[1]));
            if (!s[1].id)
                s[1] = s[0];
            small_program(s, &g, exec);
            atomic_store(&g.open, 1);
            DS_IGNORE(ds_trace_flush());
            DS_IGNORE(ds_trace_summary(text, sizeof text));
            DS_IGNORE(ds_trace_standing(text, sizeof text));
            DS_IGNORE(ds_trace_stop());
            over = allocations > 0;
            allocations = LONG_MAX;
            ok(ds_graph_exec_destroy(exec));
            ok(ds_graph_destroy(graph));
            ok(ds_shutdown());
            assert_int_equal(alive, 0);
        }
}

/* No memory for the entry of a stream: its operations have records without a stream, and no place
   in the sums. The same for a text, which is "" then. */
static void test_operations_of_a_stream_without_an_entry(void **state) {
    (void)state;
    char text[4000];
    alive = 0;
    allocations = LONG_MAX;
    all_fail = 1;
    ok(ds_init(&(ds_init_desc){
        .allocator = { fail_at, free_it, NULL }, .layers = "trace", .flags = DS_INIT_NO_CUDA }));
    ds_stream s = stream_on(ds_cpu(0), "known");
    while (ds__trace.streams < ds__trace.stream_room)
        s = stream_on(ds_cpu(0), "known");
    start("nowhere.json", 0);
    while (2 * (ds__trace.texts + 1) <= ds__trace.text_map.size) {
        snprintf(text, sizeof text, "text %zu", ds__trace.texts);
        ok(ds_range_mark(text));
    }
    ds_stream unknown = { UINT64_MAX };
    ds_activity list[] = { operation(DS_ACTIVITY_KERNEL, unknown, 1000, 2000),
                           operation(DS_ACTIVITY_KERNEL, unknown, 0, 0),
                           operation((ds_activity_kind)DS__ACTIVITY_NODE, unknown, 1000, 2000),
                           operation(DS_ACTIVITY_KERNEL, s, 1000, 2000) };
    list[1].begin_ns = list[1].end_ns = 0;
    list[2].external_id = 1; /* its lane */
    list[3].name = "a text without room";
    allocations = 0;
    give(list, 4, 0);
    allocations = LONG_MAX;
    ok(ds_trace_summary(text, sizeof text));
    ok(ds_trace_stop());

    expect_text(text, "3 operations in 0.001 ms");
    expect_text(text, "\nknown ");
    json events = read_json("nowhere.json");
    size_t nowhere = 0;
    for (size_t i = 0; i < events.count; i++) {
        const json *e = &events.item[i];
        if (*json_text(e, "ph") != 'X')
            continue;
        assert_string_not_equal(json_text(e, "name"), "a text without room");
        nowhere += strcmp(json_text(e, "pid"), "0") == 0;
    }
    assert_int_equal(nowhere, 3);
    ok(ds_shutdown());
    assert_int_equal(alive, 0);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/devstream-trace-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char command[128];
    (void)state;
    json_free_all();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_arguments_are_named),
        cmocka_unit_test(test_lists_of_options_are_read),
        cmocka_unit_test(test_user_code_may_not_call_the_layer),
        cmocka_unit_test(test_texts_can_be_printed),
        cmocka_unit_test(test_a_text_file_has_summary_and_standing_streams),
        cmocka_unit_test(test_a_standing_kernel_has_its_name),
        cmocka_unit_test(test_the_summary_of_known_operations),
        cmocka_unit_test(test_the_summary_of_operations_without_gaps),
        cmocka_unit_test(test_a_wait_can_be_for_a_step),
        cmocka_unit_test(test_a_cause_that_was_overwritten_is_not_named),
        cmocka_unit_test(test_json_has_blocks_ranges_and_marks),
        cmocka_unit_test(test_json_of_blocks_from_before_the_trace),
        cmocka_unit_test(test_json_has_races),
        cmocka_unit_test(test_json_has_the_members_of_operations),
        cmocka_unit_test(test_json_has_nodes_and_open_operations),
        cmocka_unit_test(test_json_counts_deep_queues),
        cmocka_unit_test(test_an_empty_trace_is_an_empty_array),
        cmocka_unit_test(test_texts_have_numbers_up_to_a_limit),
        cmocka_unit_test(test_ranges_of_before_the_trace_have_no_record),
        cmocka_unit_test(test_domains_have_ranges_of_their_own),
        cmocka_unit_test(test_more_ranges_than_there_is_room_for),
        cmocka_unit_test(test_collectives_that_nest_have_records),
        cmocka_unit_test(test_labels_of_streams_change),
        cmocka_unit_test(test_blocking_calls_have_records),
        cmocka_unit_test(test_a_report_needs_neither_site_nor_dump),
        cmocka_unit_test(test_each_call_that_blocks_is_reported_once),
        cmocka_unit_test(test_a_stream_may_be_gone_when_it_is_named),
        cmocka_unit_test(test_waits_inside_of_callbacks_have_no_record),
        cmocka_unit_test(test_records_that_were_overwritten_are_counted),
        cmocka_unit_test(test_a_full_disk_ends_the_file_only),
        cmocka_unit_test(test_a_part_that_cannot_be_created_ends_the_file),
        cmocka_unit_test(test_texts_and_dumps_survive_a_lack_of_memory),
        cmocka_unit_test(test_a_trace_without_room_for_its_tables),
        cmocka_unit_test(test_operations_of_a_stream_without_an_entry),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
