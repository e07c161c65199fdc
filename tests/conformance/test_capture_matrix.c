/* Every public function, called while a stream captures: in each mode, on the capturing thread
   and on another one, with each mode of the calling thread. The table says what comes of it. */
#include "harness.h"
#include "locks.h"
#include "devstream_check.h"
#include "devstream_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the calls have to work with. origin captures, member was forked into the capture, outside
   has no part in it; inside and inside_timed were recorded in the capture, before and
   before_timed on outside, never was not. What is spare may be ended, what is fresh comes into
   being. */
typedef struct kit {
    ds_device device, other_device;
    ds_stream origin, member, outside, legacy, spare_stream, fresh_stream, previous;
    ds_event inside, inside_timed, before, before_timed, never, mark, spare_event, fresh_event;
    ds_kernel kernel, spare_kernel, fresh_kernel;
    ds_graph graph, same_graph, clone, spare_graph, fresh_graph, captured;
    ds_graph_node node, second, inner_node, fresh_node;
    ds_graph_exec exec, spare_exec, fresh_exec;
    ds_node_desc desc;
    uint64_t *h, *pinned, *words;
    void *spare_words, *spare_pinned, *fresh_words, *fresh_pinned;
    fold_args args;
    ds_stream_native native, unwrapped;
    ds_device_properties properties;
    ds_backend_info backend;
    ds_pointer_info pointer;
    ds_capture_info info;
    ds_capture_status status;
    ds_capture_mode mode;
    ds_scope scope;
    ds_domain domain;
    ds_range range;
    ds_range_scope range_scope;
    ds_cpu_stats stats;
    ds_check_point point;
    char text[500];
    int number;
    unsigned flags;
    size_t size;
    uint64_t id;
    int64_t attribute;
    double ms;
} kit;

static uint64_t ordinary[512]; /* not known to any driver */
static _Alignas(4096) unsigned char spare_registered[4096], fresh_registered[4096];
static unsigned char uuid[16];
static const ds_grid one_thread = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } };

static int no_work(void *user) {
    (void)user;
    return 0;
}

static void nothing(void *user) {
    expect_no_lock();
    (void)user;
}

static void no_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    (void)status;
    (void)user;
}

static void no_check(const ds_check_item *item, void *user) {
    (void)item;
    (void)user;
}

static ds_result put_nothing(ds_stream stream, void *user) {
    (void)stream;
    (void)user;
    return DS_OK;
}

static int write_nowhere(const char *text, size_t size, void *user) {
    (void)text;
    (void)size;
    (void)user;
    return 0;
}

static int do_nothing(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

/* a write of a word that each test of the table has */
#define A_WRITE(k) (&(ds_value_op){ (k)->words, 1, DS_VALUE_WRITE, 8 })

static void no_records(const ds_activity_batch *batch, void *user) {
    (void)batch, (void)user;
}

static const ds_activity_desc a_recording = { .fn = no_records };

static const ds_range_desc a_range = { .text = "here", .color = 0xff0000ff };

/* where NVML is, and where it is not */
static int known_or_not(ds_result r) {
    return r == DS_OK || r == DS_ERR_UNSUPPORTED;
}

/* where the check layer is on, and where it is not */
static int point_or_off(ds_result r) {
    return r == DS_OK || r == DS_ERR_ILLEGAL_STATE;
}

static ds_result good(int yes) {
    return yes ? DS_OK : DS_ERR_DRIVER;
}

#define both(first, second) ((first) == DS_OK ? (second) : DS_ERR_DRIVER)
#define left(enter, leave) ((enter), (leave), DS_OK)
#define enter_device(k) ((k)->scope = ds_device_scope_enter((k)->other_device))
#define enter_stream(k) ((k)->scope = ds_stream_scope_enter((k)->origin, 0))
static const ds_kernel_desc no_kernel = { .name = "none", .cpu_fn = do_nothing };

static ds_kernel_desc kernel_desc(void) {
    return (
        ds_kernel_desc){ .name = "none", .cpu_fn = do_nothing, .cuda = harness_cuda_form("none") };
}

/* ---- the table ---- */

/* SAFE           DS_OK, and the capture goes on
   KEEPS(code)    refused with this code, and the capture goes on
   SPOILS(code)   refused with this code, and the capture is invalid
   UNSAFE         as the modes say: refused with DS_ERR_CAPTURE_UNSUPPORTED, and the capture is
                  invalid; or SAFE
   ENDS           DS_OK, and the capture is over. On another thread, unless the capture is relaxed:
                  refused, and the capture is over all the same
   BOTH, CPU, CUDA: the driver for which the row holds. P: a question that only a GPU answers, "" if
   there is none. */
/* clang-format off */
#define CALLS(X) \
    /* results, initialisation, devices */ \
    X(BOTH, SAFE, "", good(ds_result_get_name(DS_OK) != NULL)) \
    X(BOTH, SAFE, "", good(ds_result_get_text(DS_OK) != NULL)) \
    X(BOTH, SAFE, "", good(ds_error_get_last() != NULL)) \
    X(BOTH, SAFE, "", good((ds_site_set("here", 1), 1))) \
    X(BOTH, SAFE, "", good((ds_check_set_handler(no_check, NULL), 1))) \
    X(BOTH, SAFE, "", \
      good((ds_check_set_handler(no_check, NULL), ds_check_report(DS_ERR_DRIVER, "", "", 1), 1))) \
    X(BOTH, SAFE, "", good(ds_version_get() > 0)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "", ds_init(NULL)) \
    X(BOTH, KEEPS(CAPTURE_UNSUPPORTED), "", ds_quiesce()) \
    X(BOTH, SAFE, "", ds_backend_get_info(0, &k->backend)) \
    X(BOTH, SAFE, "", ds_backend_format(k->text, sizeof k->text)) \
    X(BOTH, SAFE, "", ds_sync_debug_set_mode(DS_SYNC_DEBUG_DEFAULT)) \
    X(BOTH, SAFE, "", ds_sync_debug_set_mode_text("default")) \
    X(BOTH, SAFE, "", ds_sync_debug_get_mode(&(ds_sync_debug_mode){ DS_SYNC_DEBUG_DEFAULT })) \
    X(BOTH, SAFE, "", good(ds_backend_is_available((ds_device_type)k->device.type))) \
    X(BOTH, SAFE, "", good(ds_is_initialized())) \
    X(BOTH, SAFE, "", ds_backend_format_arch_list(DS_DEVICE_CPU, k->text, sizeof k->text)) \
    X(BOTH, SAFE, "", \
      good(ds_dtype_get_size(ds_float32()) == 4 && ds_dtype_equal(ds_int8(), ds_int8()))) \
    X(BOTH, SAFE, "", \
      both(ds_dtype_format(ds_float16(), k->text, sizeof k->text), ds_dtype_parse("int32", \
        &(ds_dtype){ 0, 0, 0 }))) \
    X(BOTH, SAFE, "", ds_device_get_count(DS_DEVICE_CPU, &k->number)) \
    X(BOTH, SAFE, "", ds_device_parse("cpu:0", &k->device)) \
    X(BOTH, SAFE, "", ds_device_format(k->device, k->text, sizeof k->text)) \
    X(BOTH, SAFE, "", ds_device_get_current(&k->device)) \
    X(BOTH, SAFE, "", ds_device_set_current(k->device)) \
    X(BOTH, SAFE, "", ds_device_get_default(&k->device)) \
    X(BOTH, SAFE, "", ds_device_set_default(k->device)) \
    X(BOTH, SAFE, "", ds_device_set_current(ds_device_at(0))) \
    X(BOTH, SAFE, "", ds_device_push(k->other_device)) \
    X(BOTH, SAFE, "", both(ds_device_push(k->other_device), ds_device_pop())) \
    X(BOTH, SAFE, "", left(enter_device(k), ds_device_scope_leave(&k->scope))) \
    X(BOTH, SAFE, "", ds_device_get_properties(k->device, &k->properties)) \
    X(BOTH, SAFE, "", ds_device_get_name(k->device, k->text, sizeof k->text)) \
    X(BOTH, SAFE, "", ds_device_get_capability(k->device, &k->number, NULL)) \
    X(BOTH, SAFE, "", ds_device_get_attribute(k->device, DS_ATTR_MULTIPROCESSORS, &k->attribute)) \
    X(BOTH, SAFE, "", good(ds_attribute_get_name(DS_ATTR_MULTIPROCESSORS) != NULL)) \
    X(BOTH, SAFE, "", good(known_or_not(ds_device_get_utilization(k->device, &k->flags, NULL)))) \
    X(BOTH, SAFE, "", good(known_or_not(ds_device_get_temperature(k->device, &k->flags)))) \
    X(BOTH, SAFE, "", good(known_or_not(ds_device_get_power_draw(k->device, &k->flags)))) \
    X(BOTH, SAFE, "", good(known_or_not(ds_device_get_clock_rate(k->device, &k->flags, NULL)))) \
    X(BOTH, SAFE, "", ds_device_set_label(k->device, "captures")) \
    X(BOTH, SAFE, "", ds_device_get_label(k->device, k->text, sizeof k->text)) \
    X(BOTH, SAFE, "", ds_pointer_get_device(k->h, &k->device)) \
    X(BOTH, SAFE, "", \
      left((k->scope = ds_device_of_scope_enter(k->h)), ds_device_scope_leave(&k->scope))) \
    X(BOTH, SAFE, "", ds_uuid_format(uuid, k->text, sizeof k->text)) \
    X(BOTH, SAFE, "", ds_device_get_memory_info(k->device, &k->size, NULL)) \
    X(BOTH, SAFE, "", ds_device_can_access_peer(k->device, k->other_device, &k->number)) \
    X(BOTH, SAFE, "", ds_device_get_priority_range(k->device, &k->number, NULL)) \
    X(BOTH, SPOILS(CAPTURE_UNSUPPORTED), "P12", ds_device_synchronize(k->device)) \
    X(CPU, SPOILS(CAPTURE_UNSUPPORTED), "", ds_device_reset(k->device)) \
    X(CUDA, KEEPS(UNSUPPORTED), "", ds_device_reset(k->device)) \
    X(BOTH, SAFE, "", ds_cpu_get_stats(&k->stats)) \
    /* the check layer */ \
    X(BOTH, SAFE, "", good(ds_hazard_get_name(DS_HAZARD_REUSE) != NULL)) \
    X(BOTH, SAFE, "", good((ds_check_set_report_fn(NULL, NULL), 1))) \
    X(BOTH, SAFE, "", ds_check_get_stats(&(ds_check_stats){ 0 })) \
    X(BOTH, SAFE, "", both(ds_check_host_read(k->pinned, 8), ds_check_host_write(k->pinned, 8))) \
    X(BOTH, SAFE, "", both(ds_check_release(k), ds_check_acquire(k))) \
    X(BOTH, SAFE, "", ds_check_declare_order(k->outside, k->origin)) \
    X(BOTH, SAFE, "", \
      both(ds_check_declare_memory(ordinary, 8, "here"), ds_check_forget_memory(ordinary))) \
    X(BOTH, SAFE, "", ds_check_ignore(k->words, 8)) \
    X(BOTH, SAFE, "", ds_check_set_extents(NULL, 0)) \
    X(BOTH, SAFE, "", good(point_or_off(ds_check_get_point(k->origin, &(ds_check_point){ 0 })))) \
    X(BOTH, SAFE, "", \
      good(point_or_off(ds_check_get_point(k->outside, &k->point)) && \
           point_or_off(ds_check_why(k->point, k->point, k->text, sizeof k->text)))) \
    /* the trace layer, which is off */ \
    X(BOTH, SAFE, "", good(ds_trace_start(NULL) == DS_ERR_ILLEGAL_STATE)) \
    X(BOTH, SAFE, "", good(ds_trace_stop() == DS_ERR_ILLEGAL_STATE)) \
    X(BOTH, SAFE, "", good(ds_trace_flush() == DS_ERR_ILLEGAL_STATE)) \
    X(BOTH, SAFE, "", good(ds_trace_dump("x.html") == DS_ERR_ILLEGAL_STATE)) \
    X(BOTH, SAFE, "", good(ds_trace_summary(k->text, sizeof k->text) == DS_ERR_ILLEGAL_STATE)) \
    X(BOTH, SAFE, "", good(ds_trace_standing(k->text, sizeof k->text) == DS_ERR_ILLEGAL_STATE)) \
    X(BOTH, SAFE, "", good(ds_trace_get_stats(&(ds_trace_stats){ 0 }) == DS_ERR_ILLEGAL_STATE)) \
    X(BOTH, SAFE, "", ds_cpu_get_spin(&(int64_t){ 0 })) \
    X(BOTH, SAFE, "", ds_cpu_set_spin(20000)) \
    X(BOTH, SAFE, "", \
      good(ds_cpu_get_clock(&(int64_t){ 0 }) == (getenv("DS_TEST_FABRIC") \
        ? DS_OK : DS_ERR_UNSUPPORTED))) \
    /* streams */ \
    X(BOTH, SAFE, "", ds_stream_priority_from_paddle(1, &k->number)) \
    X(BOTH, SAFE, "P11", ds_stream_create(NULL, &k->fresh_stream)) \
    X(BOTH, SAFE, "", both(ds_stream_ref(k->origin), ds_stream_destroy(k->origin))) \
    X(BOTH, SAFE, "", ds_stream_destroy(k->spare_stream)) \
    X(BOTH, SAFE, "P14", ds_stream_destroy(k->member)) \
    X(BOTH, SPOILS(CAPTURE_UNSUPPORTED), "", ds_stream_query(k->origin)) \
    X(BOTH, SPOILS(CAPTURE_UNSUPPORTED), "", ds_stream_query(k->member)) \
    X(BOTH, SAFE, "", ds_stream_query(k->outside)) \
    X(BOTH, SAFE, "P10", ds_stream_query(k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_UNSUPPORTED), "", ds_stream_synchronize(k->origin)) \
    X(BOTH, SPOILS(CAPTURE_UNSUPPORTED), "", ds_stream_synchronize(k->member)) \
    X(BOTH, SAFE, "P11", ds_stream_synchronize(k->outside)) \
    X(BOTH, SAFE, "P10", ds_stream_synchronize(k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_UNSUPPORTED), "", ds_stream_synchronize_for(k->origin, 1000)) \
    X(BOTH, SAFE, "", ds_stream_synchronize_for(k->outside, 10000000000u)) \
    X(BOTH, SAFE, "", ds_stream_get_legacy(k->device, &k->previous)) \
    X(BOTH, SAFE, "", ds_stream_get_per_thread(k->device, &k->previous)) \
    X(BOTH, SAFE, "", ds_stream_get_default(k->device, &k->previous)) \
    X(BOTH, SAFE, "", ds_stream_wrap(&k->native, DS_BORROW, NULL, NULL, &k->fresh_stream)) \
    X(BOTH, SAFE, "", ds_stream_export(k->origin, &k->unwrapped)) \
    X(BOTH, SAFE, "", ds_stream_unwrap(k->spare_stream, &k->unwrapped)) \
    X(BOTH, SAFE, "", ds_stream_get_id(k->origin, &k->id)) \
    X(BOTH, SAFE, "", ds_stream_get_device(k->origin, &k->device)) \
    X(BOTH, SAFE, "", ds_stream_get_flags(k->origin, &k->flags)) \
    X(BOTH, SAFE, "", ds_stream_get_multiprocessors(k->origin, &k->number)) \
    X(BOTH, SAFE, "", ds_stream_get_priority(k->origin, &k->number, NULL)) \
    X(BOTH, SAFE, "", ds_stream_get_label(k->origin, k->text, sizeof k->text)) \
    X(BOTH, SAFE, "", ds_stream_set_label(k->origin, "captures")) \
    X(BOTH, SAFE, "", good(ds_stream_equal(k->origin, k->origin))) \
    X(BOTH, SAFE, "", ds_stream_get_current(k->device, &k->previous)) \
    X(BOTH, SAFE, "", ds_stream_set_current(k->origin, 0, NULL)) \
    X(BOTH, SAFE, "", ds_stream_push(k->origin, 0)) \
    X(BOTH, SAFE, "", both(ds_stream_push(k->origin, 0), ds_stream_pop())) \
    X(BOTH, SAFE, "", left(enter_stream(k), ds_stream_scope_leave(&k->scope))) \
    /* ranges */ \
    X(BOTH, SAFE, "", ds_domain_create("captured", &k->domain)) \
    X(BOTH, SAFE, "", ds_range_mark("here")) \
    X(BOTH, SAFE, "", ds_range_mark_with(&a_range)) \
    X(BOTH, SAFE, "", \
      good(ds_activity_push_id(1) == DS_OK && ds_activity_pop_id(NULL) == DS_OK)) \
    X(BOTH, SAFE, "", good(ds_activity_kind_get_name(DS_ACTIVITY_COPY) != NULL)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "", ds_activity_flush()) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "", ds_activity_stop()) \
    X(BOTH, SAFE, "", \
      good(ds_activity_start(&a_recording) == DS_OK && ds_activity_flush() == DS_OK && \
           ds_activity_stop() == DS_OK)) \
    X(BOTH, SAFE, "", good(ds_range_push("here") == 0 && ds_range_pop() == 0)) \
    X(BOTH, SAFE, "", \
      good(ds_range_push_with(&a_range) == 0 && ds_range_pop_in(a_range.domain) == 0)) \
    X(BOTH, SAFE, "", both(ds_range_start("here", &k->range), ds_range_end(k->range))) \
    X(BOTH, SAFE, "", both(ds_range_start_with(&a_range, &k->range), ds_range_end(k->range))) \
    X(BOTH, SAFE, "", ds_range_set_hook(NULL, NULL)) \
    X(BOTH, SAFE, "", ds_thread_set_label("capturing")) \
    X(BOTH, SAFE, "", \
      left((k->range_scope = ds_range_scope_enter("here")), \
        ds_range_scope_leave(&k->range_scope))) \
    X(BOTH, SAFE, "", \
      left((k->range_scope = ds_range_scope_enter_with(&a_range)), \
        ds_range_scope_leave(&k->range_scope))) \
    /* events */ \
    X(BOTH, SAFE, "P11", ds_event_create(0, NULL, &k->fresh_event)) \
    X(BOTH, SAFE, "P11", ds_event_create_on(k->device, 0, NULL, &k->fresh_event)) \
    X(BOTH, SAFE, "", ds_event_destroy(k->spare_event)) \
    X(BOTH, SAFE, "", ds_event_destroy(k->inside)) \
    X(BOTH, SAFE, "", ds_event_record(k->mark, k->origin)) \
    X(BOTH, SAFE, "", ds_event_record(k->mark, k->outside)) \
    X(BOTH, SAFE, "P10", ds_event_record(k->mark, k->legacy)) \
    X(BOTH, SAFE, "", ds_event_record(k->inside, k->outside)) \
    X(BOTH, SAFE, "", ds_stream_record_event(k->origin, 0, &k->fresh_event)) \
    X(BOTH, SAFE, "", ds_event_record_external(k->mark, k->origin)) \
    X(BOTH, SAFE, "", ds_event_record_external(k->mark, k->outside)) \
    X(BOTH, SAFE, "", ds_stream_wait_event(k->origin, k->inside)) \
    X(BOTH, SAFE, "P8", ds_stream_wait_event(k->outside, k->inside)) \
    X(BOTH, SAFE, "", ds_stream_wait_event(k->outside, k->before)) \
    X(BOTH, SAFE, "P5", ds_stream_wait_event(k->origin, k->never)) \
    X(BOTH, SPOILS(CAPTURE_ISOLATION), "P4", ds_stream_wait_event(k->origin, k->before)) \
    X(BOTH, SPOILS(CAPTURE_ISOLATION), "P4", ds_stream_wait_event(k->member, k->before)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT), "P24", ds_stream_wait_event(k->legacy, k->inside)) \
    X(BOTH, SAFE, "P10", ds_stream_wait_event(k->legacy, k->before)) \
    X(BOTH, SAFE, "", ds_stream_wait_event_external(k->origin, k->before)) \
    X(BOTH, SAFE, "", ds_stream_wait_event_external(k->origin, k->never)) \
    X(BOTH, SAFE, "", ds_stream_wait_event_external(k->outside, k->before)) \
    X(BOTH, SAFE, "", ds_stream_wait_stream(k->origin, k->member)) \
    X(BOTH, SAFE, "P8", ds_stream_wait_stream(k->outside, k->origin)) \
    X(BOTH, SAFE, "", ds_stream_wait_stream(k->outside, k->spare_stream)) \
    X(BOTH, SPOILS(CAPTURE_ISOLATION), "P4", ds_stream_wait_stream(k->origin, k->outside)) \
    X(BOTH, SPOILS(CAPTURED_EVENT), "P13", ds_event_query(k->inside)) \
    X(BOTH, SAFE, "P11", ds_event_query(k->before)) \
    X(BOTH, SAFE, "", ds_event_query(k->never)) \
    X(BOTH, SPOILS(CAPTURED_EVENT), "P13", ds_event_synchronize(k->inside)) \
    X(BOTH, SAFE, "P11", ds_event_synchronize(k->before)) \
    X(BOTH, SPOILS(CAPTURED_EVENT), "P13", ds_event_synchronize_for(k->inside, 1000)) \
    X(BOTH, SAFE, "", ds_event_synchronize_for(k->before, 10000000000u)) \
    X(BOTH, KEEPS(CAPTURED_EVENT), "b.5", \
      ds_event_get_elapsed_ms(k->before_timed, k->inside_timed, &k->ms)) \
    X(BOTH, SAFE, "", ds_event_get_elapsed_ms(k->before_timed, k->before_timed, &k->ms)) \
    X(BOTH, SAFE, "", ds_event_get_device(k->inside, &k->device)) \
    X(BOTH, SAFE, "", ds_event_get_flags(k->inside, &k->flags)) \
    /* memory */ \
    X(BOTH, UNSAFE, "P11", ds_device_alloc(k->device, 64, &k->fresh_words)) \
    X(BOTH, UNSAFE, "P11", ds_device_alloc_pitch(k->device, 16, 4, &k->fresh_words, &k->size)) \
    X(BOTH, UNSAFE, "P11", ds_device_free(k->spare_words)) \
    X(BOTH, SAFE, "", ds_device_free(NULL)) \
    X(BOTH, UNSAFE, "P11", ds_pinned_alloc(64, &k->fresh_pinned)) \
    X(BOTH, UNSAFE, "P11", \
      ds_pinned_alloc_with(64, &(ds_pinned_desc){ .flags = 0 }, &k->fresh_pinned)) \
    X(BOTH, UNSAFE, "P11", ds_pinned_free(k->spare_pinned)) \
    X(BOTH, SAFE, "", ds_pinned_free(NULL)) \
    X(BOTH, UNSAFE, "P11", ds_pinned_register(fresh_registered, sizeof fresh_registered)) \
    X(BOTH, UNSAFE, "P11", ds_pinned_unregister(spare_registered)) \
    X(BOTH, SAFE, "", ds_pointer_get_info(k->words, &k->pointer)) \
    /* copies, fills, functions, kernels */ \
    X(BOTH, SAFE, "", ds_copy(k->words, k->pinned, 64, k->origin)) \
    X(BOTH, SAFE, "", ds_copy(k->words, k->pinned, 64, k->outside)) \
    X(BOTH, SAFE, "P10", ds_copy(k->words, k->pinned, 64, k->legacy)) \
    X(BOTH, KEEPS(CAPTURE_UNSUPPORTED), "", ds_copy(k->words, ordinary, 64, k->origin)) \
    X(BOTH, KEEPS(CAPTURE_UNSUPPORTED), "", ds_copy(ordinary, k->words, 64, k->member)) \
    X(BOTH, SAFE, "", ds_copy(k->words, ordinary, 64, k->outside)) \
    X(BOTH, SAFE, "P19", ds_copy_with(k->words, ordinary, 64, DS_COPY_HOST_STABLE, k->origin)) \
    X(BOTH, SAFE, "", ds_copy_2d(k->words, 16, k->pinned, 16, 8, 4, k->origin)) \
    X(BOTH, KEEPS(CAPTURE_UNSUPPORTED), "", \
      ds_copy_2d(k->words, 16, ordinary, 16, 8, 4, k->origin)) \
    X(BOTH, SAFE, "", ds_copy_peer(k->words, k->device, k->words + 8, k->device, 64, k->origin)) \
    X(BOTH, SAFE, "", \
      ds_copy_batch((void *[]){ k->words }, (const void *[]){ k->pinned }, (size_t[]){ 64 }, 1, \
        k->origin)) \
    X(BOTH, SAFE, "P30", ds_stream_write_value32(k->origin, k->words, 1)) \
    X(BOTH, SAFE, "P30", ds_stream_write_value64(k->member, k->words, 1)) \
    X(BOTH, SAFE, "", ds_stream_write_value32(k->outside, k->pinned, 0)) \
    X(BOTH, SAFE, "P10", ds_stream_write_value32(k->legacy, k->pinned, 0)) \
    X(BOTH, SAFE, "P30", ds_stream_wait_value32(k->origin, k->words, 1, DS_VALUE_WAIT_NOR)) \
    X(BOTH, SAFE, "P30", ds_stream_wait_value64(k->origin, k->words, 1, DS_VALUE_WAIT_NOR)) \
    X(BOTH, KEEPS(INVALID_VALUE), "", ds_stream_write_value32(k->origin, ordinary, 1)) \
    X(BOTH, SAFE, "P30", ds_stream_batch_values(k->origin, A_WRITE(k), 1)) \
    X(BOTH, SAFE, "", ds_fill(k->words, 0, 4, 16, k->origin)) \
    X(BOTH, SAFE, "", ds_fill(k->pinned, 0, 4, 16, k->origin)) \
    X(BOTH, KEEPS(CAPTURE_UNSUPPORTED), "", ds_fill(ordinary, 0, 4, 16, k->origin)) \
    X(BOTH, SAFE, "", ds_fill(k->words, 0, 4, 16, k->outside)) \
    X(BOTH, SAFE, "", ds_fill_2d(k->words, 16, 0, 4, 2, 4, k->origin)) \
    X(BOTH, SAFE, "P10", ds_copy_sync(k->words, k->pinned, 64)) \
    X(BOTH, SAFE, "P10", ds_copy_sync(ordinary, k->words, 64)) \
    X(BOTH, SAFE, "P10", ds_fill_sync(k->words, 0, 4, 16)) \
    X(BOTH, SAFE, "", ds_stream_launch_host_func(k->origin, nothing, NULL, NULL)) \
    X(BOTH, SAFE, "", ds_stream_launch_host_func(k->outside, nothing, NULL, NULL)) \
    X(BOTH, SAFE, "", ds_stream_launch_closure(k->origin, no_work, NULL, 0, NULL)) \
    X(BOTH, SAFE, "", ds_stream_launch_closure(k->outside, no_work, NULL, 0, NULL)) \
    X(BOTH, SPOILS(CAPTURE_UNSUPPORTED), "b.5", \
      ds_stream_add_callback(k->origin, no_callback, NULL, NULL)) \
    X(BOTH, SAFE, "", ds_stream_add_callback(k->outside, no_callback, NULL, NULL)) \
    X(BOTH, SAFE, "", ds_kernel_create(&no_kernel, &k->fresh_kernel)) \
    X(BOTH, SAFE, "P11", ds_kernel_load(k->spare_kernel, k->device)) \
    X(BOTH, SAFE, "P11", ds_kernel_destroy(k->spare_kernel)) \
    X(BOTH, SAFE, "", ds_kernel_launch(k->kernel, 1, &k->args, sizeof k->args, k->origin)) \
    X(BOTH, SAFE, "P11", ds_kernel_launch(k->spare_kernel, 1, NULL, 0, k->origin)) \
    X(BOTH, SAFE, "", ds_kernel_launch(k->kernel, 1, &k->args, sizeof k->args, k->outside)) \
    X(BOTH, SAFE, "P10", ds_kernel_launch(k->kernel, 1, &k->args, sizeof k->args, k->legacy)) \
    X(BOTH, SAFE, "", ds_kernel_launch_grid(k->kernel, &one_thread, &k->args, sizeof k->args, k->member)) \
    /* graphs */ \
    X(BOTH, SAFE, "", ds_graph_create(NULL, &k->fresh_graph)) \
    X(BOTH, SAFE, "", ds_graph_destroy(k->spare_graph)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "", ds_graph_destroy(k->captured)) \
    X(BOTH, SAFE, "", ds_graph_clone(k->graph, &k->fresh_graph)) \
    X(BOTH, SAFE, "", ds_graph_find_in_clone(k->clone, k->node, &k->fresh_node)) \
    X(BOTH, SAFE, "", ds_graph_add(k->graph, &k->desc, NULL, 0, &k->fresh_node)) \
    X(BOTH, SAFE, "", ds_graph_add(k->captured, &k->desc, &k->inner_node, 1, &k->fresh_node)) \
    X(BOTH, SAFE, "", ds_graph_add_edges(k->graph, &k->node, &k->second, 1)) \
    X(BOTH, SAFE, "", ds_graph_get_nodes(k->captured, NULL, 0, &k->size)) \
    X(BOTH, SAFE, "", ds_graph_get_edges(k->captured, NULL, NULL, 0, &k->size)) \
    X(BOTH, SAFE, "", ds_graph_get_node(k->captured, k->inner_node, &k->desc, NULL)) \
    X(BOTH, SAFE, "", ds_graph_set_node(k->graph, k->node, &k->desc)) \
    X(BOTH, SAFE, "", ds_graph_attach(k->graph, NULL, nothing)) \
    X(BOTH, SAFE, "", ds_graph_write_dot(k->captured, DS_DOT_VERBOSE, write_nowhere, NULL)) \
    X(BOTH, SAFE, "", ds_graph_write_dot_file(k->graph, 0, "/dev/null")) \
    X(BOTH, SAFE, "", ds_graph_instantiate(k->graph, NULL, &k->fresh_exec)) \
    X(BOTH, KEEPS(CAPTURE_UNSUPPORTED), "", ds_graph_upload(k->exec, k->origin)) \
    X(BOTH, SAFE, "", ds_graph_upload(k->exec, k->outside)) \
    X(BOTH, SAFE, "", ds_graph_launch(k->exec, k->origin)) \
    X(BOTH, SAFE, "", ds_graph_launch(k->exec, k->outside)) \
    X(BOTH, SAFE, "P10", ds_graph_launch(k->exec, k->legacy)) \
    X(BOTH, SAFE, "", ds_graph_exec_destroy(k->spare_exec)) \
    X(BOTH, SAFE, "", ds_graph_exec_update(k->exec, k->same_graph, NULL)) \
    X(BOTH, SAFE, "", ds_graph_exec_set_node(k->exec, k->node, &k->desc)) \
    X(BOTH, SAFE, "", ds_graph_exec_set_node_enabled(k->exec, k->node, 0)) \
    X(BOTH, SAFE, "", ds_graph_exec_get_node_enabled(k->exec, k->node, &k->number)) \
    X(BOTH, SAFE, "", ds_graph_exec_replace_pointers(k->exec, NULL, NULL, 0, NULL)) \
    /* capture */ \
    X(BOTH, KEEPS(ILLEGAL_STATE), "P2", ds_capture_begin(k->origin, DS_CAPTURE_RELAXED)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "P2", ds_capture_begin(k->member, DS_CAPTURE_RELAXED)) \
    X(BOTH, KEEPS(CAPTURE_UNSUPPORTED), "P2", ds_capture_begin(k->legacy, DS_CAPTURE_RELAXED)) \
    X(BOTH, SAFE, "", ds_capture_begin(k->outside, DS_CAPTURE_RELAXED)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "P2", \
      ds_capture_begin_to_graph(k->origin, k->graph, NULL, 0, DS_CAPTURE_RELAXED)) \
    X(BOTH, ENDS, "P9", ds_capture_end(k->origin, &k->fresh_graph)) \
    X(BOTH, ENDS, "P9", ds_capture_end_recapture(k->origin, k->captured)) \
    X(BOTH, SAFE, "", good(ds_capture_end_recapture(k->origin, (ds_graph){ 0 }) < 0)) \
    X(BOTH, SPOILS(CAPTURE_UNMATCHED), "", ds_capture_end(k->member, &k->fresh_graph)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "", ds_capture_end(k->outside, &k->fresh_graph)) \
    X(BOTH, SAFE, "", ds_capture_get_status(k->member, &k->status)) \
    X(BOTH, SAFE, "", ds_capture_get_status(k->outside, &k->status)) \
    X(BOTH, SAFE, "", ds_capture_get_status(k->legacy, &k->status)) \
    X(BOTH, SAFE, "", ds_capture_get_info(k->origin, &k->info)) \
    X(BOTH, SAFE, "", ds_capture_get_dependencies(k->origin, NULL, 0, &k->size)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "", ds_capture_get_dependencies(k->outside, NULL, 0, &k->size)) \
    X(BOTH, SAFE, "", ds_capture_update_dependencies(k->origin, &k->inner_node, 1, 0)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "", \
      ds_capture_update_dependencies(k->outside, &k->inner_node, 1, 0)) \
    X(BOTH, SAFE, "", ds_capture_exchange_mode(&k->mode)) \
    X(BOTH, SAFE, "", ds_capture_function(k->outside, put_nothing, NULL, &k->fresh_graph)) \
    X(BOTH, KEEPS(ILLEGAL_STATE), "P2", \
      ds_capture_function(k->origin, put_nothing, NULL, &k->fresh_graph))
/* clang-format on */

/* The same while a stream captures that takes part in the legacy stream's order. */
/* clang-format off */
#define BLOCKING_CALLS(X) \
    X(BOTH, KEEPS(CAPTURE_IMPLICIT),     "",    ds_capture_get_status(k->legacy, &k->status)) \
    X(BOTH, KEEPS(CAPTURE_IMPLICIT),     "",    ds_capture_get_info(k->legacy, &k->info)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_stream_query(k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_stream_synchronize(k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_stream_synchronize_for(k->legacy, 1000)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_event_record(k->mark, k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT), "P10", ds_stream_record_event(k->legacy, 0, &k->fresh_event)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_stream_wait_event(k->legacy, k->before)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P24", ds_stream_wait_event(k->legacy, k->inside)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_stream_wait_stream(k->legacy, k->outside)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_stream_wait_stream(k->outside, k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_copy(k->words, k->pinned, 64, k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_fill(k->words, 0, 4, 16, k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_copy_sync(k->words, k->pinned, 64)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_fill_sync(k->words, 0, 4, 16)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT), "P10", ds_stream_launch_host_func(k->legacy, nothing, NULL, NULL)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT), "P10", ds_stream_launch_closure(k->legacy, no_work, NULL, 0, NULL)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT), "P10", ds_stream_add_callback(k->legacy, no_callback, NULL, NULL)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT), "P10", \
      ds_kernel_launch(k->kernel, 1, &k->args, sizeof k->args, k->legacy)) \
    X(BOTH, SPOILS(CAPTURE_IMPLICIT),    "P10", ds_graph_launch(k->exec, k->legacy)) \
    X(BOTH, SAFE, "", ds_kernel_launch(k->kernel, 1, &k->args, sizeof k->args, k->outside)) \
    X(BOTH, SAFE,                        "",    ds_stream_synchronize(k->outside)) \
    X(BOTH, SAFE,                        "",    ds_stream_get_legacy(k->device, &k->previous)) \
    X(BOTH, SAFE,                        "",    ds_stream_get_flags(k->legacy, &k->flags)) \
    X(BOTH, SAFE,                        "",    ds_event_query(k->before))
/* clang-format on */

/* Functions without a row, and the test that has them instead. */
static const char *const elsewhere[] = {
    "ds_device_scope_enter(",
    "ds_stream_scope_enter(", /* in the rows of the other half */
    "ds_shutdown(",           /* test_shutdown_ends_the_captures_that_are_open */
    /* test_handles_are_exported_and_opened_during_a_capture */
    "ds_event_export(",
    "ds_event_import(",
};

typedef enum verdict { SAFE, KEEPS, SPOILS, UNSAFE, ENDS } verdict;

typedef struct row {
    int driver;
    verdict verdict;
    ds_result code;
    const char *probe, *call;
} row;

enum { BOTH = HARNESS_CPU | HARNESS_CUDA, CPU = HARNESS_CPU, CUDA = HARNESS_CUDA };

#define ROW_SAFE SAFE, DS_OK
#define ROW_UNSAFE UNSAFE, DS_ERR_CAPTURE_UNSUPPORTED
#define ROW_ENDS ENDS, DS_ERR_CAPTURE_WRONG_THREAD
#define ROW_KEEPS(code) KEEPS, DS_ERR_##code
#define ROW_SPOILS(code) SPOILS, DS_ERR_##code
#define AS_ROW(driver, verdict, probe, call) { driver, ROW_##verdict, probe, #call },
#define AS_CALL(driver, verdict, probe, call) \
    if (number-- == 0)                        \
        return call;

static const row calls[] = { CALLS(AS_ROW) }, blocking_calls[] = { BLOCKING_CALLS(AS_ROW) };

enum {
    CALL_COUNT = sizeof calls / sizeof *calls,
    BLOCKING_COUNT = sizeof blocking_calls / sizeof *blocking_calls
};

static ds_result make_call(kit *k, int number) {
    CALLS(AS_CALL)
    return DS_ERR_DRIVER;
}

static ds_result make_blocking_call(kit *k, int number) {
    BLOCKING_CALLS(AS_CALL)
    return DS_ERR_DRIVER;
}

/* ---- a call in a situation ---- */

typedef struct situation {
    ds_capture_mode capture, caller; /* the capture's mode, the calling thread's */
    int elsewhere;                   /* the call is made on another thread */
} situation;

static const situation situations[] = {
    { DS_CAPTURE_GLOBAL, DS_CAPTURE_GLOBAL, 0 },
    { DS_CAPTURE_GLOBAL, DS_CAPTURE_GLOBAL, 1 },
    { DS_CAPTURE_THREAD_LOCAL, DS_CAPTURE_GLOBAL, 0 },
    { DS_CAPTURE_THREAD_LOCAL, DS_CAPTURE_GLOBAL, 1 },
    { DS_CAPTURE_RELAXED, DS_CAPTURE_GLOBAL, 0 },
    { DS_CAPTURE_RELAXED, DS_CAPTURE_GLOBAL, 1 },
    { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL, 0 },
    { DS_CAPTURE_GLOBAL, DS_CAPTURE_THREAD_LOCAL, 1 },
    { DS_CAPTURE_THREAD_LOCAL, DS_CAPTURE_RELAXED, 0 },
    { DS_CAPTURE_GLOBAL, DS_CAPTURE_RELAXED, 1 },
    { DS_CAPTURE_GLOBAL, DS_CAPTURE_RELAXED, 0 },
};
static const char *const mode_names[] = { "global", "thread-local", "relaxed" };

/* cudaThreadExchangeStreamCaptureMode */
static int forbidden(const situation *s) {
    if (s->caller == DS_CAPTURE_RELAXED)
        return 0;
    if (!s->elsewhere)
        return s->capture != DS_CAPTURE_RELAXED;
    return s->caller == DS_CAPTURE_GLOBAL && s->capture == DS_CAPTURE_GLOBAL;
}

static void expectation(const row *r, const situation *s, ds_result *out_result,
                        ds_capture_status *out_after) {
    int refused_here = r->verdict == KEEPS || r->verdict == SPOILS;
    *out_after = r->verdict == SPOILS ? DS_CAPTURE_INVALIDATED : DS_CAPTURE_ACTIVE;
    if (r->verdict == UNSAFE && (refused_here = forbidden(s)))
        *out_after = DS_CAPTURE_INVALIDATED;
    if (r->verdict == ENDS) {
        refused_here = s->elsewhere && s->capture != DS_CAPTURE_RELAXED;
        *out_after = DS_CAPTURE_NONE;
    }
    *out_result = refused_here ? r->code : DS_OK;
}

static ds_graph_node last_node(ds_stream s) {
    ds_graph_node n;
    size_t count;
    ok(ds_capture_get_dependencies(s, &n, 1, &count));
    assert_int_equal(count, 1);
    return n;
}

static void record(ds_event *e, unsigned flags, ds_stream s) {
    ok(ds_event_create(flags, NULL, e));
    ok(ds_event_record(*e, s));
}

/* All that is needed, and the capture begun. */
static void open_kit(kit *k, unsigned flags, const situation *s) {
    void *p;
    memset(k, 0, sizeof *k);
    k->device = harness_device(0);
    k->other_device = harness_device(1);
    k->h = word(1);
    k->args = (fold_args){ k->h, 2 };
    k->kernel = harness_fold_kernel();
    k->origin = harness_stream(0, flags);
    k->member = harness_stream(0, 0);
    k->outside = harness_stream(0, 0);
    k->spare_stream = harness_stream(0, 0);
    ok(ds_stream_export(k->outside, &k->native));
    ok(ds_stream_get_legacy(k->device, &k->legacy));
    ds_kernel_desc desc = kernel_desc();
    ok(ds_kernel_create(&desc, &k->spare_kernel)); /* not loaded */
    ok(ds_device_alloc(k->device, 256, &p));
    k->words = p;
    ok(ds_pinned_alloc(256, &p));
    k->pinned = p;
    ok(ds_device_alloc(k->device, 64, &k->spare_words));
    ok(ds_pinned_alloc(64, &k->spare_pinned));
    ok(ds_pinned_register(spare_registered, sizeof spare_registered));
    k->desc = fold_node(k->h, 3);
    ok(ds_graph_create(&(ds_graph_desc){ .device = k->device }, &k->graph));
    ok(ds_graph_add(k->graph, &k->desc, NULL, 0, &k->node));
    /* not the same word: they run side by side */
    ds_node_desc beside = fold_node(k->spare_words, 3);
    ok(ds_graph_add(k->graph, &beside, NULL, 0, &k->second));
    ok(ds_graph_clone(k->graph, &k->clone));
    ok(ds_graph_clone(k->graph, &k->same_graph));
    ok(ds_graph_create(&(ds_graph_desc){ .device = k->device }, &k->spare_graph));
    ok(ds_graph_instantiate(k->graph, &(ds_graph_exec_desc){ .flags = DS_GRAPH_REPLACE_POINTERS },
                            &k->exec));
    ok(ds_graph_instantiate(k->graph, NULL, &k->spare_exec));
    record(&k->before, 0, k->outside);
    record(&k->before_timed, DS_EVENT_TIMING, k->outside);
    ok(ds_event_create(0, NULL, &k->never));
    ok(ds_event_create(0, NULL, &k->mark));
    ok(ds_event_create(0, NULL, &k->spare_event));
    ok(ds_stream_synchronize(k->outside));
    ok(ds_capture_begin(k->origin, s->capture));
    fold(k->origin, k->h, 4);
    record(&k->inside, 0, k->origin);
    record(&k->inside_timed, DS_EVENT_TIMING, k->origin);
    ok(ds_stream_wait_event(k->member, k->inside));
    fold(k->member, k->h, 5);
    ok(ds_stream_wait_stream(k->origin, k->member));
    k->inner_node = last_node(k->member);
    ok(ds_capture_get_info(k->origin, &k->info));
    k->captured = k->info.graph;
}

#define END(handle, destroy)            \
    do {                                \
        if ((handle).id)                \
            DS_IGNORE(destroy(handle)); \
    } while (0)

/* Whatever the call has left. */
static void close_kit(kit *k) {
    ds_pointer_info info;
    ds_graph g = { 0 };
    DS_IGNORE(ds_capture_end(k->outside, &g)); /* it may capture too */
    END(g, ds_graph_destroy);
    if (k->unwrapped.handle && ds_stream_query(k->spare_stream) == DS_ERR_INVALID_HANDLE)
        ok(ds_stream_wrap(&k->unwrapped, DS_OWN, NULL, NULL, &k->spare_stream));
    END(k->fresh_stream, ds_stream_destroy);
    END(k->spare_stream, ds_stream_destroy);
    END(k->origin, ds_stream_destroy);
    END(k->member, ds_stream_destroy);
    ok(ds_stream_synchronize(k->legacy));
    ok(ds_stream_synchronize(k->outside));
    END(k->outside, ds_stream_destroy);
    ds_event events[] = { k->inside, k->inside_timed, k->before,      k->before_timed,
                          k->never,  k->mark,         k->spare_event, k->fresh_event };
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        END(events[i], ds_event_destroy);
    END(k->fresh_exec, ds_graph_exec_destroy);
    END(k->spare_exec, ds_graph_exec_destroy);
    END(k->exec, ds_graph_exec_destroy);
    ds_graph graphs[] = { k->graph, k->clone, k->same_graph, k->spare_graph, k->fresh_graph };
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++)
        END(graphs[i], ds_graph_destroy);
    END(k->spare_kernel, ds_kernel_destroy);
    END(k->fresh_kernel, ds_kernel_destroy);
    ok(ds_device_free(k->words));
    ok(ds_pinned_free(k->pinned));
    ok(ds_device_free(k->fresh_words));
    ok(ds_pinned_free(k->fresh_pinned));
    ok(ds_pointer_get_info(k->spare_words, &info));
    if (info.kind == DS_MEMORY_DEVICE)
        ok(ds_device_free(k->spare_words));
    ok(ds_pointer_get_info(k->spare_pinned, &info));
    if (info.kind == DS_MEMORY_PINNED)
        ok(ds_pinned_free(k->spare_pinned));
    ok(ds_pointer_get_info(spare_registered, &info));
    if (info.kind == DS_MEMORY_REGISTERED)
        ok(ds_pinned_unregister(spare_registered));
    ok(ds_pointer_get_info(fresh_registered, &info));
    if (info.kind == DS_MEMORY_REGISTERED)
        ok(ds_pinned_unregister(fresh_registered));
}

typedef struct attempt {
    kit *k;
    const situation *s;
    int number, blocking;
    ds_result result;
    char sentence[1000];
} attempt;

/* The call, on a thread with the mode that the situation wants; what it makes current is so no
   longer afterwards. */
static void *try_call(void *user) {
    attempt *a = user;
    ds_capture_mode mode = a->s->caller;
    ds_device device;
    ds_stream current;
    ok_thread(ds_device_get_current(&device));
    ok_thread(ds_stream_get_current(device, &current));
    ok_thread(ds_capture_exchange_mode(&mode));
    a->result = a->blocking ? make_blocking_call(a->k, a->number) : make_call(a->k, a->number);
    snprintf(a->sentence, sizeof a->sentence, "%s", ds_error_get_last());
    while (ds_stream_pop() == DS_OK || ds_device_pop() == DS_OK) {
    }
    ok_thread(ds_stream_set_current(current, 0, NULL));
    mode = DS_CAPTURE_GLOBAL;
    ok_thread(ds_capture_exchange_mode(&mode));
    return NULL;
}

static int differences;

static void differs(const row *r, const situation *s, const char *what, const char *got,
                    const char *wanted) {
    differences++;
    print_error("%s%s%s\n    in a %s capture, called on %s thread (%s): %s is %s, not %s\n",
                r->call, *r->probe ? "   to be probed: " : "", r->probe, mode_names[s->capture],
                s->elsewhere ? "another" : "its", mode_names[s->caller], what, got, wanted);
}

static const char *status_name(int status) {
    static const char *const names[] = { "NONE", "ACTIVE", "INVALIDATED" };
    return status >= 0 && status < 3 ? names[status] : "unknown";
}

static ds_capture_status status_of(ds_stream s) {
    ds_capture_status status = DS_CAPTURE_NONE;
    ok(ds_capture_get_status(s, &status));
    return status;
}

/* Ends the capture; one that was spoilt names the call. */
static void end_capture(const row *r, const situation *s, kit *k, ds_capture_status status) {
    char name[80];
    ds_graph g = { 0 };
    if (status == DS_CAPTURE_NONE)
        return;
    /* the call may have destroyed the member, which has joined */
    uint64_t id;
    if (status == DS_CAPTURE_ACTIVE && ds_stream_get_id(k->member, &id) == DS_OK)
        ok(ds_stream_wait_stream(k->origin, k->member));
    ds_result result = ds_capture_end(k->origin, &g),
              wanted = status == DS_CAPTURE_ACTIVE ? DS_OK : DS_ERR_CAPTURE_INVALIDATED;
    if (result != wanted)
        differs(r, s, "ds_capture_end afterwards", ds_result_get_name(result),
                ds_result_get_name(wanted));
    snprintf(name, sizeof name, "%.*s", (int)strcspn(r->call, "("), r->call);
    if (result == DS_ERR_CAPTURE_INVALIDATED && !strstr(ds_error_get_last(), name))
        differs(r, s, "the culprit", ds_error_get_last(), name);
    END(g, ds_graph_destroy);
}

static void try_row(const row *r, const situation *s, int number, unsigned flags) {
    kit k;
    ds_result wanted;
    ds_capture_status wanted_after;
    attempt a = { .k = &k, .s = s, .number = number, .blocking = flags == DS_STREAM_BLOCKING };
    expectation(r, s, &wanted, &wanted_after);
    open_kit(&k, flags, s);
    if (s->elsewhere)
        join(spawn(try_call, &a));
    else
        try_call(&a);
    if (a.result != wanted)
        differs(r, s, "the result", ds_result_get_name(a.result), ds_result_get_name(wanted));
    if (a.result < 0 && !strchr(a.sentence, ' '))
        differs(r, s, "the sentence", a.sentence, "one");
    ds_capture_status after = status_of(k.origin);
    if (after != wanted_after)
        differs(r, s, "the capture", status_name((int)after), status_name((int)wanted_after));
    end_capture(r, s, &k, after);
    assert_int_equal(status_of(k.origin), DS_CAPTURE_NONE);
    close_kit(&k);
}

static void try_rows(const row *rows, int count, unsigned flags) {
    differences = 0;
    harness_warm_up();
    for (int i = 0; i < count; i++)
        for (size_t s = 0; s < sizeof situations / sizeof *situations; s++) {
            if (!(rows[i].driver & (harness_is_cpu() ? HARNESS_CPU : HARNESS_CUDA)))
                continue;
            try_row(&rows[i], &situations[s], i, flags);
        }
    if (differences)
        fail_msg("%d answers differ from the table", differences);
}

static void test_every_call_during_a_capture_does_what_the_table_says(void **state) {
    (void)state;
    try_rows(calls, CALL_COUNT, DS_STREAM_NON_BLOCKING);
}

static void test_legacy_stream_calls_in_a_capture_follow_the_table(void **state) {
    (void)state;
    try_rows(blocking_calls, BLOCKING_COUNT, DS_STREAM_BLOCKING);
}

/* ---- is the table whole? ---- */

static int has_row(const char *name) { /* with its parenthesis */
    for (int i = 0; i < CALL_COUNT; i++)
        if (strstr(calls[i].call, name))
            return 1;
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (!strcmp(elsewhere[i], name))
            return 1;
    return 0;
}

/* Looks for the declarations, each of which begins a line with DSDEF. */
static int missing_rows(const char *path) {
    char line[1000], name[100];
    int functions = 0, missing = 0;
    FILE *f = fopen(path, "r");
    /* the tests run in another place */
    if (!f)
        skip();
    while (fgets(line, sizeof line, f)) {
        int declares = !strncmp(line, "DSDEF ", 6) && !strstr(line, ")(") && !strchr(line, '{');
        char *at = declares ? strstr(line, " ds_") : NULL;
        char *end = NULL;
        if (at && !strncmp(at, " ds_result ds_", 14))
            at = strstr(at + 1, " ds_");
        if (at && !strncmp(at, " ds_device ds_", 14))
            at = strstr(at + 1, " ds_");
        if (at && !strncmp(at, " ds_scope ds_", 13))
            at = strstr(at + 1, " ds_");
        if (at && !strncmp(at, " ds_range_scope ds_", 19))
            at = strstr(at + 1, " ds_");
        if (!at || !(end = strchr(at, '(')) || end - at > 90 || end[-1] == ' ')
            continue;
        snprintf(name, sizeof name, "%.*s(", (int)(end - at - 1), at + 1);
        functions++;
        if (has_row(name))
            continue;
        missing++;
        print_error("%s) has no row\n", name);
    }
    fclose(f);
    assert_true(functions > 0);
    return missing;
}

static void test_every_public_function_has_a_row(void **state) {
    (void)state;
    int missing = missing_rows("devstream.h");
    if (missing)
        fail_msg("%d functions have no row", missing);
}

const struct CMUnitTest tests_capture_matrix[] = {
    DS_TEST(test_every_call_during_a_capture_does_what_the_table_says,
            "peers 82 b.4 b.5 P4 P5 P8 P9 P10 P11 P12 P13 P14 P24, torch 79"),
    DS_TEST(test_legacy_stream_calls_in_a_capture_follow_the_table, "peers 65 b.4 b.5 P10 P24"),
    DS_TEST(test_every_public_function_has_a_row, "capture"),
};
const size_t tests_capture_matrix_count =
    sizeof tests_capture_matrix / sizeof *tests_capture_matrix;
