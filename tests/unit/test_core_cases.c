/* Cases of the core and the CPU driver that the conformance suite does not reach: a thread without
   memory for its state, options without memory for their copies, captures of two drivers at once,
   calls that an open capture forbids, and texts that messages rarely have. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"

#include <pthread.h>
#include <unistd.h>
#include "scarce.h"
#include "unit.h"
#ifdef DEVSTREAM_CUDA
#include "standin/standin.h"
#endif

static ds_stream stream;
static ds_cpu_desc cpu;

static void start(void) {
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = SCARCE }));
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
}

static int begin(void **state) {
    (void)state;
    alarm(120);
    (void)scarce_end(); /* of a test that has failed */
    cpu = (ds_cpu_desc){ .devices = 2 };
    start();
    return 0;
}

static int end(void **state) {
    (void)state;
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
    return 0;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void test_values_outside_of_an_enumeration_have_a_text(void **state) {
    ds_device nowhere = { 9, 0 };
    (void)state;
    assert_string_equal(ds_result_get_name(DS_RESULT_FORCE_INT_), "DS_UNKNOWN_RESULT");
    assert_string_equal(ds_result_get_text(DS_RESULT_FORCE_INT_), "unknown result");
    assert_string_equal(ds_attribute_get_name(DS_ATTRIBUTE_FORCE_INT_), "unknown");
    refused(ds_device_set_current(nowhere), DS_ERR_INVALID_DEVICE, "9 is not a device type");
}

static char written[20000];

static int collect(const char *text, size_t size, void *user) {
    (void)user;
    size_t n = strlen(written);
    if (n + size >= sizeof written)
        return 1;
    memcpy(written + n, text, size);
    written[n + size] = 0;
    return 0;
}

static void test_an_annotation_may_have_any_character(void **state) {
    /* the first and last characters of three and four bytes, and bytes that are none */
    static const char *const texts[][2] = {
        { "a\xe0\xa0\x80z", "a\xe0\xa0\x80z" },         { "b\xe0\x9f\x80z", "b???z" },
        { "c\xed\x9f\xbfz", "c\xed\x9f\xbfz" },         { "d\xed\xa0\x80z", "d???z" },
        { "e\xf4\x8f\xbf\xbfz", "e\xf4\x8f\xbf\xbfz" }, { "f\xf4\x90\x80\x80z", "f????z" },
    };
    (void)state;
    ok(ds_mem_history_start(NULL));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        ok(ds_mem_annotate(ds_cpu(0), texts[i][0]));
    *written = 0;
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, collect, NULL));
    ok(ds_mem_history_stop());
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!strstr(written, texts[i][1]))
            fail_msg("%s is not in: %s", texts[i][1], written);
}

/* ---- memory of the host ---------------------------------------------------------------------- */

static ds_result set_current_stream(void) {
    return ds_stream_set_current(stream, 0, NULL);
}

static ds_result push_stream(void) {
    return ds_stream_push(stream, 0);
}

static ds_result pop_stream(void) {
    return ds_stream_pop();
}

static ds_result set_default_device(void) {
    return ds_device_set_default(ds_cpu(0));
}

static ds_result push_device(void) {
    return ds_device_push(ds_cpu(0));
}

static ds_result pop_device(void) {
    return ds_device_pop();
}

static ds_result get_per_thread(void) {
    ds_stream s;
    return ds_stream_get_per_thread(ds_cpu(0), &s);
}

static ds_result export_stream(void) {
    ds_stream_native native;
    return ds_stream_export(stream, &native);
}

typedef struct first_call {
    ds_result (*fn)(void);
    ds_result result;
} first_call;

static void *without_memory(void *user) {
    first_call *c = user;
    scarce_begin(0);
    c->result = c->fn();
    if (!scarce_end() || !*ds_error_get_last())
        c->result = DS_OK;
    return NULL;
}

static void test_a_new_thread_without_memory(void **state) {
    first_call calls[] = {
        { set_current_stream, DS_OK }, { push_stream, DS_OK },   { pop_stream, DS_OK },
        { set_default_device, DS_OK }, { push_device, DS_OK },   { pop_device, DS_OK },
        { get_per_thread, DS_OK },     { export_stream, DS_OK },
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, without_memory, &calls[i]), 0);
        pthread_join(thread, NULL);
        if (calls[i].result != DS_ERR_OUT_OF_MEMORY)
            fail_msg("call %zu: %s", i, ds_result_get_name(calls[i].result));
    }
}

/* Initialises and starts devstream with the N-th allocation failing, for all N. Returns how many
   were refused. */
static int start_with_little_memory(void) {
    int refusals = 0;
    ds_result r = DS_ERR_OUT_OF_MEMORY;
    for (long n = 0; n < 1000 && r < 0; n++) {
        int count;
        scarce_once = 1;
        scarce_begin(n);
        r = ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = SCARCE });
        if (r == DS_OK)
            r = ds_device_get_count(DS_DEVICE_CPU, &count);
        scarce_once = 0;
        assert_int_equal(r, scarce_end() ? DS_ERR_OUT_OF_MEMORY : DS_OK);
        refusals += r < 0;
        if (r < 0)
            ok(ds_shutdown());
        assert_true(r == DS_OK || scarce_held == 0);
    }
    return refusals;
}

static void test_options_without_memory_for_their_copies(void **state) {
    int reaches = 1;
    (void)state;
    ok(ds_shutdown());
    cpu.affinity = "0";
    int with = start_with_little_memory();
    ok(ds_shutdown());
    cpu.affinity = NULL;
    int without = start_with_little_memory();
    ok(ds_shutdown());
    assert_int_equal(with, without + 1);
    setenv("DEVSTREAM_CPU_PEERS", "none", 1);
    with = start_with_little_memory();
    unsetenv("DEVSTREAM_CPU_PEERS");
    assert_int_equal(with, without + 1);
    ok(ds_device_can_access_peer(ds_cpu(0), ds_cpu(1), &reaches));
    assert_int_equal(reaches, 0);
}

static int destroy_without_memory(void *user) {
    scarce_begin(0);
    ds_result r = ds_stream_destroy(*(ds_stream *)user);
    return scarce_end() && r == DS_ERR_OUT_OF_MEMORY &&
                   strstr(ds_error_get_last(), "no memory to postpone a release")
               ? 0
               : 1;
}

/* A destruction in user code is postponed; without memory it is refused, and the stream lives. */
static void test_a_postponed_release_without_memory(void **state) {
    ds_stream victim;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &victim));
    ok(ds_stream_launch_closure(stream, destroy_without_memory, &victim, sizeof victim, NULL));
    ok(ds_stream_synchronize(stream));
    ok(ds_stream_synchronize(victim));
    ok(ds_stream_destroy(victim));
}

/* ---- captures -------------------------------------------------------------------------------- */

static ds_kernel plain_kernel(const char *name, ds_kernel_fn fn) {
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = name, .cpu_fn = fn }, &k));
    return k;
}

static int refuse_if(size_t first, size_t last, const void *args) {
    (void)first, (void)last;
    return *(const int *)args ? 7 : 0;
}

static int refuse_items(size_t first, size_t last, const void *args) {
    (void)first, (void)last, (void)args;
    return 7;
}

/* A call without a call site: the sentence about the capture names only the function. */
static void test_a_capture_is_invalidated_by_a_call_without_a_site(void **state) {
    ds_graph g;
    (void)state;
    ok(ds_capture_begin(stream, DS_CAPTURE_GLOBAL));
    ds_site_set(NULL, 0);
    assert_int_equal((ds_stream_synchronize)(stream), DS_ERR_CAPTURE_UNSUPPORTED);
    refused(ds_capture_end(stream, &g), DS_ERR_CAPTURE_INVALIDATED, "ds_stream_synchronize");
    assert_null(strstr(ds_error_get_last(), "ds_stream_synchronize at"));
}

static void test_memory_for_processes_is_counted_too(void **state) {
    ds_pool pool;
    ds_ipc_mem_handle handle;
    void *p = NULL, *q;
    (void)state;
    ok(ds_shutdown());
    cpu.memory_limit = 64 << 20;
    start();
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool));
    ds_mem_request request = { .size = 1 << 20, .stream = stream, .pool = pool };
    ok(ds_mem_alloc_with(&request, &p));
    ok(ds_mem_export(p, &handle));
    refused(ds_mem_import(ds_cpu(0), &handle, stream, &q), DS_ERR_ILLEGAL_STATE, "this process");
    request.size = 100 << 20;
    refused(ds_mem_alloc_with(&request, &q), DS_ERR_OUT_OF_MEMORY, "cpu:0");
    assert_null(q);
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
}

/* The failed kernel has failed its device, so devstream ends with the failure. */
static void restart_after_a_failure(void) {
    refused(ds_shutdown(), DS_ERR_FAILED, "refuses");
    start();
}

static void test_a_failed_stream_does_not_capture(void **state) {
    ds_kernel k = plain_kernel("refuses", refuse_items);
    (void)state;
    ok(ds_kernel_launch(k, 1, NULL, 0, stream));
    refused(ds_stream_synchronize(stream), DS_ERR_FAILED, "refuses");
    refused(ds_capture_begin(stream, DS_CAPTURE_RELAXED), DS_ERR_FAILED, "refuses");
    restart_after_a_failure();
}

static void test_a_captured_stream_may_wait_for_itself(void **state) {
    ds_graph g;
    size_t count = 1;
    (void)state;
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    ok(ds_stream_wait_stream(stream, stream));
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_get_nodes(g, NULL, 0, &count));
    assert_int_equal(count, 0);
    ok(ds_graph_destroy(g));
}

/* With a record of each operation, a short kernel that fails has its failure in the record. */
static ds_result recorded;

static void take(const ds_activity_batch *batch, void *user) {
    (void)user;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->records[i].kind == DS_ACTIVITY_KERNEL && batch->records[i].result < 0)
            recorded = batch->records[i].result;
}

/* Launches a kernel until it is known to be short, and then once with an argument it refuses. */
static void launch_until_it_fails(void) {
    ds_kernel k;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "refuses", .cpu_fn = refuse_if, .args_size = sizeof(int) }, &k));
    for (int i = 0, arg = 0; i < 2000; i++, arg = i == 1999)
        ok(ds_kernel_launch(k, 1, &arg, sizeof arg, stream));
}

static void test_the_record_of_a_kernel_that_fails(void **state) {
    (void)state;
    recorded = DS_OK;
    ok(ds_activity_start(&(ds_activity_desc){ .fn = take }));
    launch_until_it_fails();
    refused(ds_stream_synchronize(stream), DS_ERR_FAILED, "refuses");
    ok(ds_activity_stop());
    assert_int_equal(recorded, DS_ERR_FAILED);
    restart_after_a_failure();
}

static int refuse_without_memory(size_t first, size_t last, const void *args) {
    (void)first, (void)last, (void)args;
    scarce_begin(0);
    return 7;
}

static void test_a_failure_without_memory_for_its_sentence(void **state) {
    ds_kernel k = plain_kernel("refuses", refuse_without_memory);
    (void)state;
    ok(ds_kernel_launch(k, 1, NULL, 0, stream));
    ds_result r = ds_stream_synchronize(stream);
    assert_true(scarce_end());
    assert_int_equal(r, DS_ERR_FAILED);
    refused(ds_shutdown(), DS_ERR_FAILED, "out of memory while recording a failure");
    start();
}

static void test_a_graph_stops_at_a_kernel_that_fails(void **state) {
    ds_kernel k;
    ds_graph g;
    ds_graph_exec x;
    (void)state;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "refuses", .cpu_fn = refuse_if, .args_size = sizeof(int) }, &k));
    int arg = 0;
    for (int i = 0; i < 2000; i++) /* until it is known to be short */
        ok(ds_kernel_launch(k, 1, &arg, sizeof arg, stream));
    ok(ds_stream_synchronize(stream));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    for (int i = 0; i < 4; i++) {
        arg = i == 2;
        ok(ds_kernel_launch(k, 1, &arg, sizeof arg, stream));
    }
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, stream));
    refused(ds_stream_synchronize(stream), DS_ERR_FAILED, "refuses");
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    restart_after_a_failure();
}

static void test_a_capture_refuses_a_kernel_without_a_form_for_processors(void **state) {
    ds_kernel k;
    ds_graph g;
    (void)state;
    /* an image with directives of a preprocessor is not compared with the table */
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "gpu only",
                           .cuda = { .image = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                              "#if 1\n.entry f() { ret; }\n#endif",
                                     .entry = "other" } },
        &k));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    refused(ds_kernel_launch(k, 1, NULL, 0, stream), DS_ERR_UNSUPPORTED, "gpu only");
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
    ok(ds_kernel_destroy(k));
}

static void test_a_captured_stream_does_not_wait_for_the_legacy_stream(void **state) {
    ds_stream blocking, legacy;
    ds_graph g;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0), .flags = DS_STREAM_BLOCKING },
                        &blocking));
    ok(ds_stream_get_legacy(ds_cpu(0), &legacy));
    ok(ds_capture_begin(blocking, DS_CAPTURE_RELAXED));
    refused(ds_stream_wait_stream(blocking, legacy), DS_ERR_CAPTURE_IMPLICIT, "legacy");
    refused(ds_capture_end(blocking, &g), DS_ERR_CAPTURE_INVALIDATED, "ds_stream_wait_stream");
    ok(ds_stream_destroy(blocking));
}

/* The others stay in the capture until it ends, and then they do not capture any more. */
static void test_a_stream_in_the_middle_leaves_its_capture(void **state) {
    ds_stream s[4];
    ds_graph g;
    (void)state;
    for (int i = 0; i < 4; i++)
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s[i]));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    for (int i = 0; i < 4; i++)
        ok(ds_stream_wait_stream(s[i], stream));
    for (int i = 0; i < 4; i++)
        ok(ds_stream_wait_stream(stream, s[i]));
    ok(ds_stream_destroy(s[1]));
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
    for (int i = 0; i < 4; i++)
        if (i != 1) {
            ok(ds_stream_synchronize(s[i]));
            ok(ds_stream_destroy(s[i]));
        }
}

static void test_an_executable_does_not_wait_for_captured_events(void **state) {
    ds_event e;
    ds_graph g, captured;
    ds_graph_exec x;
    ds_graph_node n;
    ds_stream other;
    (void)state;
    ok(ds_event_create(0, NULL, &e));
    ok(ds_event_record(e, stream));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &other));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &g));
    ok(ds_graph_add(g, &(ds_node_desc){ .kind = DS_NODE_EVENT_WAIT, .u.event = e }, NULL, 0, &n));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, other));
    ok(ds_stream_synchronize(other));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    ok(ds_event_record(e, stream));
    refused(ds_graph_launch(x, other), DS_ERR_CAPTURED_EVENT,
            "the executable waits for an event that was recorded in a capture");
    ok(ds_capture_end(stream, &captured));
    ok(ds_stream_synchronize(other));
    ok(ds_event_record(e, stream));
    ok(ds_graph_launch(x, other));
    ok(ds_stream_synchronize(other));
    ok(ds_graph_destroy(captured));
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(other));
}

/* ---- wrapped streams ------------------------------------------------------------------------- */

/* A stream that the driver does not give back is the caller's as before. */
static void test_a_stream_is_not_unwrapped_by_a_failed_call(void **state) {
    ds_stream s;
    ds_stream_native native;
    (void)state;
    ok(ds_shutdown());
    ok(ds_init(&(ds_init_desc){
        .cpu = &cpu, .allocator = SCARCE, .layers = "fault", .fault = "stream_native:1" }));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    refused(ds_stream_unwrap(s, &native), DS_ERR_DRIVER, "stream_native");
    ok(ds_stream_synchronize(s));
    ok(ds_stream_unwrap(s, &native));
    ok(ds_stream_wrap(&native, DS_OWN, NULL, NULL, &s));
    ok(ds_stream_destroy(s));
}

/* ---- other threads --------------------------------------------------------------------------- */

static _Atomic int let;

static void *let_go(void *word) {
    usleep(20000);
    atomic_store(&let, 1);
    atomic_store((_Atomic int *)word, 0);
    return NULL;
}

static _Atomic int unbound;

static void *unbind(void *user) {
    ds__event *event = user;
    usleep(20000);
    ds__spinlock_lock(&event->bind);
    atomic_store(&unbound, 1);
    event->binding = 0;
    ds__spinlock_unlock(&event->bind);
    return NULL;
}

static void test_a_recording_waits_for_another_thread(void **state) {
    pthread_t thread;
    (void)state;
    ok(ds_activity_start(&(ds_activity_desc){ .fn = take }));
    /* as while another thread starts or ends a recording */
    atomic_store(&ds__activity_run.busy, 1);
    refused(ds_activity_start(&(ds_activity_desc){ .fn = take }), DS_ERR_ILLEGAL_STATE,
            "a recording starts or ends on another thread");
    assert_int_equal(pthread_create(&thread, NULL, let_go, &ds__activity_run.busy), 0);
    ok(ds_activity_stop());
    assert_int_equal(atomic_load(&let), 1);
    pthread_join(thread, NULL);
}

/* Another thread binds the event to a device: this one waits until it is bound. */
static void test_a_record_waits_for_the_binding_of_its_event(void **state) {
    pthread_t thread;
    ds_event e;
    (void)state;
    ok(ds_event_create(0, NULL, &e));
    ds__event *event = ds__event_pin(e);
    assert_non_null(event);
    event->binding = 1;
    assert_int_equal(pthread_create(&thread, NULL, unbind, event), 0);
    ok(ds_event_record(e, stream));
    assert_int_equal(atomic_load(&unbound), 1);
    pthread_join(thread, NULL);
    ds__event_unpin(event);
    ok(ds_event_synchronize(e));
    ok(ds_event_destroy(e));
}

static void test_a_graph_that_a_capture_is_about_to_extend(void **state) {
    ds_graph g;
    ds_graph_node n;
    (void)state;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &g));
    ds__graph *graph = ds__graph_lock(g);
    assert_non_null(graph);
    atomic_store(&graph->capturing, 1);
    ok(ds__graph_unlock(graph, DS_OK));
    refused(ds_graph_destroy(g), DS_ERR_ILLEGAL_STATE, "is beginning or ending; try again");
    atomic_store(&graph->capturing, 0);
    ok(ds_graph_add(g, &(ds_node_desc){ .kind = DS_NODE_EMPTY }, NULL, 0, &n));
    ok(ds_graph_destroy(g));
}

#ifdef DEVSTREAM_CUDA
/* Captures of the two drivers are independent, and each driver looks at its own. */
static void test_captures_of_two_drivers_at_once(void **state) {
    ds_stream gpu, legacy, blocking;
    ds_graph of_gpu, of_cpu;
    static char memory[64];
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &gpu));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0), .flags = DS_STREAM_BLOCKING },
                        &blocking));
    ok(ds_stream_get_legacy(ds_cpu(0), &legacy));
    ok(ds_capture_begin(gpu, DS_CAPTURE_RELAXED));
    ok(ds_capture_begin(blocking, DS_CAPTURE_RELAXED));
    refused(ds_fill(memory, 1, 1, sizeof memory, legacy), DS_ERR_CAPTURE_IMPLICIT, "legacy");
    refused(ds_capture_end(blocking, &of_cpu), DS_ERR_CAPTURE_INVALIDATED, "ds_fill");
    ok(ds_fill(memory, 1, 1, sizeof memory, legacy));
    ok(ds_stream_wait_stream(stream, legacy));
    ok(ds_stream_synchronize(legacy));
    ok(ds_capture_end(gpu, &of_gpu));
    ok(ds_graph_destroy(of_gpu));
    ok(ds_stream_destroy(gpu));
    ok(ds_stream_destroy(blocking));
}

static void test_a_graph_is_not_captured_anew_on_another_driver(void **state) {
    ds_stream gpu;
    ds_graph g;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &gpu));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &g));
    ok(ds_capture_begin(gpu, DS_CAPTURE_RELAXED));
    assert_true(ds_capture_end_recapture(gpu, g) < 0);
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(gpu));
}
#endif

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        T(values_outside_of_an_enumeration_have_a_text),
        T(an_annotation_may_have_any_character),
        T(a_new_thread_without_memory),
        T(options_without_memory_for_their_copies),
        T(a_postponed_release_without_memory),
        T(a_capture_is_invalidated_by_a_call_without_a_site),
        T(memory_for_processes_is_counted_too),
        T(a_failed_stream_does_not_capture),
        T(a_captured_stream_may_wait_for_itself),
        T(the_record_of_a_kernel_that_fails),
        T(a_recording_waits_for_another_thread),
        T(a_failure_without_memory_for_its_sentence),
        T(a_graph_stops_at_a_kernel_that_fails),
        T(a_capture_refuses_a_kernel_without_a_form_for_processors),
        T(a_captured_stream_does_not_wait_for_the_legacy_stream),
        T(a_stream_in_the_middle_leaves_its_capture),
        T(an_executable_does_not_wait_for_captured_events),
        T(a_stream_is_not_unwrapped_by_a_failed_call),
        T(a_record_waits_for_the_binding_of_its_event),
        T(a_graph_that_a_capture_is_about_to_extend),
#ifdef DEVSTREAM_CUDA
        T(captures_of_two_drivers_at_once),
        T(a_graph_is_not_captured_anew_on_another_driver),
#endif
    };
    return cmocka_run_group_tests_name("core cases", tests, NULL, NULL);
}
