/* The sync debug mode: calls that make the host wait for a device are told, or refused. */
#include "harness.h"
#include "devstream_alloc.h"
#include "devstream_comm.h"

#include <stdlib.h>
#include <string.h>

typedef struct heard {
    char text[400], file[80];
    int n, line, level, id;
} heard;

static void hear(const ds_log_item *item, void *user) {
    heard *h = user;
    if (item->id != DS_ERR_WOULD_SYNCHRONIZE)
        return;
    snprintf(h->text, sizeof h->text, "%s", item->text);
    snprintf(h->file, sizeof h->file, "%s", item->file ? item->file : "");
    h->line = item->line;
    h->level = (int)item->level;
    h->id = item->id;
    h->n++;
}

static heard log_heard;

static void begin(ds_sync_debug_mode mode) {
    memset(&log_heard, 0, sizeof log_heard);
    harness_restart(
        &(ds_init_desc){ .log_fn = hear, .log_user = &log_heard, .log_level = DS_LOG_WARNING });
    ok(ds_sync_debug_set_mode(mode));
}

static void finish(void) {
    harness_restart(NULL);
}

/* The call warns, once, of this. Each use stands on one line: compilers differ in the line of a
   macro that stands on several. */
#define warns(call, words)                                                             \
    do {                                                                               \
        int warns_before_ = log_heard.n, warns_line_ = __LINE__;                       \
        ok(call);                                                                      \
        if (log_heard.n != warns_before_ + 1)                                          \
            fail_msg("%s warned %d times", #call, log_heard.n - warns_before_);        \
        assert_non_null(strstr(log_heard.text, "called a synchronizing operation: ")); \
        if (!strstr(log_heard.text, words))                                            \
            fail_msg("%s: \"%s\"", #call, log_heard.text);                             \
        assert_int_equal(log_heard.level, DS_LOG_WARNING);                             \
        assert_non_null(strstr(log_heard.file, "test_sync_debug.c"));                  \
        assert_int_equal(log_heard.line, warns_line_);                                 \
    } while (0)
#define silent(call)                                   \
    do {                                               \
        int silent_before_ = log_heard.n;              \
        ok(call);                                      \
        if (log_heard.n != silent_before_)             \
            fail_msg("%s: %s", #call, log_heard.text); \
    } while (0)
/* It is refused. */
#define stops(call, words)                                      \
    do {                                                        \
        refused(call, DS_ERR_WOULD_SYNCHRONIZE);                \
        if (!strstr(ds_error_get_last(), words))                \
            fail_msg("%s: \"%s\"", #call, ds_error_get_last()); \
    } while (0)

static void test_the_mode_is_set_by_number_and_by_word(void **state) {
    ds_sync_debug_mode mode = DS_SYNC_DEBUG_ERROR;
    static const char *const words[] = { "default", "warn", "error" };
    (void)state;
    ok(ds_sync_debug_get_mode(&mode));
    assert_int_equal(mode, DS_SYNC_DEBUG_DEFAULT);
    for (int i = 2; i >= 0; i--) {
        char number[2] = { (char)('0' + i), 0 };
        ok(ds_sync_debug_set_mode((ds_sync_debug_mode)i));
        ok(ds_sync_debug_get_mode(&mode));
        assert_int_equal(mode, i);
        ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_WARN));
        ok(ds_sync_debug_set_mode_text(words[i]));
        ok(ds_sync_debug_get_mode(&mode));
        assert_int_equal(mode, i);
        ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_WARN));
        ok(ds_sync_debug_set_mode_text(number));
        ok(ds_sync_debug_get_mode(&mode));
        assert_int_equal(mode, i);
    }
    refused(ds_sync_debug_set_mode((ds_sync_debug_mode)3), DS_ERR_INVALID_VALUE);
    refused(ds_sync_debug_set_mode((ds_sync_debug_mode)-1), DS_ERR_INVALID_VALUE);
    static const char *const wrong[] = { "", "Warn", "warning", "3", "-1", "00", "default " };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(ds_sync_debug_set_mode_text(wrong[i]), DS_ERR_INVALID_VALUE);
    refused(ds_sync_debug_set_mode_text(NULL), DS_ERR_INVALID_VALUE);
    refused(ds_sync_debug_get_mode(NULL), DS_ERR_INVALID_VALUE);
    ok(ds_sync_debug_get_mode(&mode));
    assert_int_equal(mode, DS_SYNC_DEBUG_DEFAULT);
}

static void test_the_environment_sets_the_mode_at_the_first_call(void **state) {
    ds_sync_debug_mode mode;
    (void)state;
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_ERROR));
    harness_restart(NULL); /* shutdown forgets it */
    ok(ds_sync_debug_get_mode(&mode));
    assert_int_equal(mode, DS_SYNC_DEBUG_DEFAULT);
    setenv("DEVSTREAM_SYNC_DEBUG", "warn", 1);
    harness_restart(NULL);
    ok(ds_sync_debug_get_mode(&mode));
    assert_int_equal(mode, DS_SYNC_DEBUG_WARN);
    setenv("DEVSTREAM_SYNC_DEBUG", "loud", 1);
    harness_restart(NULL);
    refused(ds_sync_debug_get_mode(&mode), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_SYNC_DEBUG"));
    unsetenv("DEVSTREAM_SYNC_DEBUG");
    harness_restart(NULL);
}

static void test_waits_of_the_host_warn_and_name_their_line(void **state) {
    enum { SIZE = 4096 };

    static char page[SIZE], registered[SIZE];
    void *dev, *pinned;
    ds_stream s;
    ds_event e;
    (void)state;
    begin(DS_SYNC_DEBUG_WARN);
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0), .label = "busy" }, &s));
    silent(ds_device_alloc(harness_device(0), SIZE, &dev));
    silent(ds_pinned_alloc(SIZE, &pinned));
    silent(ds_pinned_register(registered, SIZE));
    silent(ds_event_create(0, "end", &e));
    silent(ds_fill(dev, 5, 1, SIZE, s));
    silent(ds_copy(pinned, dev, SIZE, s));
    silent(ds_copy(dev, registered, SIZE, s));
    silent(ds_event_record(e, s));
    warns(ds_stream_synchronize(s), "ds_stream_synchronize waits for the stream \"busy\" of ");
    warns(ds_stream_synchronize_for(s, UINT64_MAX), "ds_stream_synchronize_for");
    warns(ds_event_synchronize(e), "ds_event_synchronize waits for the event \"end\"");
    warns(ds_event_synchronize_for(e, UINT64_MAX), "ds_event_synchronize_for");
    silent(ds_stream_synchronize_for(s, 0));
    silent(ds_event_synchronize_for(e, 0));
    silent(ds_stream_query(s));
    silent(ds_device_synchronize(harness_device(0)));
    const char *pageable = "ds_copy accesses pageable memory and waits for the stream \"busy\"";
    warns(ds_copy(page, dev, SIZE, s), pageable);
    assert_int_equal(page[7], 0); /* the registered page was copied there */
    warns(ds_copy(dev, page, SIZE, s), "ds_copy");
    warns(ds_copy_with(page, dev, SIZE, DS_COPY_HOST_STABLE, s), "ds_copy_with");
    warns(ds_copy_2d(page, 64, dev, 64, 32, 4, s), "ds_copy_2d");
    warns(ds_fill(page, 1, 1, SIZE, s), "ds_fill");
    warns(ds_fill_2d(page, 64, 1, 1, 32, 4, s), "ds_fill_2d");
    warns(ds_copy_sync(page, dev, SIZE), "ds_copy_sync waits for the stream of ");
    warns(ds_fill_sync(dev, 5, 1, SIZE), "ds_fill_sync waits for the stream of ");
    silent(ds_copy_sync(page, dev, 0));
    silent(ds_fill_sync(dev, 5, 1, 0));
    silent(ds_copy(page, dev, 0, s));
    silent(ds_fill(page, 1, 1, 0, s));
    const char *unregisters = "ds_pinned_unregister waits for all work of all devices";
    warns(ds_pinned_unregister(registered), unregisters);
    warns(ds_device_free(dev), "ds_device_free waits for all work of ");
    warns(ds_pinned_free(pinned), "ds_pinned_free");
    silent(ds_device_free(NULL));
    silent(ds_pinned_free(NULL));
    silent(ds_event_destroy(e));
    silent(ds_stream_destroy(s));
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_DEFAULT));
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));
    silent(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_waits_of_the_host_are_refused_before_anything_is_done(void **state) {
    enum { SIZE = 4096 };

    static char page[SIZE], registered[SIZE];
    static gate g;
    void *dev, *pinned;
    ds_event e;
    ds_pointer_info info;
    (void)state;
    begin(DS_SYNC_DEBUG_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    ok(ds_device_alloc(harness_device(0), SIZE, &dev));
    ok(ds_pinned_alloc(SIZE, &pinned));
    ok(ds_pinned_register(registered, SIZE));
    ok(ds_event_create(0, NULL, &e));
    memset(&g, 0, sizeof g);
    memset(page, 3, SIZE);
    harness_warm_up();
    gate_close(s, &g);
    ok(ds_event_record(e, s));
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_ERROR));
    /* none of these waits for the gate */
    stops(ds_stream_synchronize(s), "ds_stream_synchronize: called a synchronizing operation");
    assert_non_null(strstr(ds_error_get_last(), "test_sync_debug.c"));
    stops(ds_stream_synchronize_for(s, UINT64_MAX), "waits for the stream");
    stops(ds_event_synchronize(e), "waits for an event");
    stops(ds_event_synchronize_for(e, 5), "waits for an event");
    stops(ds_copy(page, dev, SIZE, s), "pageable");
    stops(ds_copy(dev, page, SIZE, s), "pageable");
    stops(ds_fill(page, 9, 1, SIZE, s), "pageable");
    stops(ds_copy_sync(page, dev, SIZE), "waits for the stream");
    stops(ds_fill_sync(page, 9, 1, SIZE), "waits for the stream");
    stops(ds_device_free(dev), "ds_device_free");
    stops(ds_pinned_free(pinned), "ds_pinned_free");
    stops(ds_pinned_unregister(registered), "ds_pinned_unregister");
    assert_int_equal(ds_stream_synchronize_for(s, 0), DS_NOT_READY);
    assert_int_equal(ds_event_synchronize_for(e, 0), DS_NOT_READY);
    ok(ds_pointer_get_info(dev, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    ok(ds_pointer_get_info(pinned, &info));
    assert_int_equal(info.kind, DS_MEMORY_PINNED);
    ok(ds_pointer_get_info(registered, &info));
    assert_int_equal(info.kind, DS_MEMORY_REGISTERED);
    assert_int_equal(page[0], 3);
    gate_open(&g);
    /* what is wrong in itself is told first */
    refused(ds_device_free((char *)dev + 8), DS_ERR_INVALID_VALUE);
    refused(ds_device_free(page), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_free(dev), DS_ERR_INVALID_VALUE);
    refused(ds_stream_synchronize((ds_stream){ 1ull << 50 }), DS_ERR_INVALID_HANDLE);
    refused(ds_event_synchronize((ds_event){ 1ull << 50 }), DS_ERR_INVALID_HANDLE);
    refused(ds_copy((char *)dev + 8, page, SIZE, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_sync((char *)dev + 8, page, SIZE), DS_ERR_INVALID_VALUE);
    ok(ds_device_synchronize(harness_device(0))); /* torch.cuda.synchronize works in every mode */
    assert_int_equal(log_heard.n, 12);            /* as errors */
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_DEFAULT));
    ok(ds_device_free(dev));
    ok(ds_pinned_free(pinned));
    ok(ds_pinned_unregister(registered));
    ok(ds_event_destroy(e));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_what_a_capture_takes_as_a_node_does_not_wait(void **state) {
    static char page[64];
    void *dev;
    ds_graph g;
    (void)state;
    begin(DS_SYNC_DEBUG_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    ok(ds_device_alloc(harness_device(0), sizeof page, &dev));
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_ERROR));
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    harness_watch(s);
    ok(ds_copy_with(page, dev, sizeof page, DS_COPY_HOST_STABLE, s));
    ok(ds_capture_end(s, &g));
    stops(ds_copy_with(page, dev, sizeof page, DS_COPY_HOST_STABLE, s), "pageable");
    ok(ds_graph_destroy(g));
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_DEFAULT));
    ok(ds_device_free(dev));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_the_allocators_own_waits_are_not_the_users(void **state) {
    size_t released = 1;
    ds_pool pool;
    void *p;
    (void)state;
    begin(DS_SYNC_DEBUG_ERROR);
    const ds_device d = harness_device(0);
    ds_stream s = harness_stream(0, 0);
    ok(ds_mem_alloc(1 << 20, s, &p));
    ok(ds_mem_free(p));
    stops(ds_mem_empty_cache(d, &released), "ds_mem_empty_cache");
    assert_int_equal(released, 0);
    stops(ds_mem_trim(d, 0, &released), "ds_mem_trim");
    assert_true(ds_mem_get_reserved(d) > 0);
    ok(ds_pool_create(&(ds_pool_desc){ .device = d }, &pool));
    stops(ds_pool_empty_cache(pool, NULL), "ds_pool_empty_cache");
    ok(ds_pool_destroy(pool));
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_WARN));
    warns(ds_mem_empty_cache(d, &released), "blocks in use by other streams");
    assert_true(released > 0);
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_ERROR));
    ok(ds_mem_alloc(1 << 20, s, &p)); /* shutdown waits and frees in this mode too */
    finish();
}

static void test_collectives_wait_for_pageable_tensors_only(void **state) {
    static float page[256];
    const int64_t shape[] = { 256 };
    ds_tensor *on_device, *out[2];
    (void)state;
    begin(DS_SYNC_DEBUG_ERROR);
    const ds_tensor host = { .data = page,
                             .device = { DS_DEVICE_HOST, 0 },
                             .ndim = 1,
                             .dtype = { 2, 32, 1 },
                             .shape = (int64_t *)(uintptr_t)shape };
    ds_stream s = harness_stream(0, 0);
    const ds_device to[] = { harness_device(0), harness_device(1) };
    ok(ds_tensor_alloc(host.dtype, 1, shape, s, &on_device));
    ok(ds_fill(on_device->data, 0, 4, 256, s));
    ds_stream current;
    ok(ds_stream_get_current(harness_device(0), &current));
    ok(ds_stream_wait_stream(current, s));
    ok(ds_comm_broadcast(on_device, to, 2, NULL, out));
    for (int i = 0; i < 2; i++)
        ok(ds_tensor_free(out[i]));
    stops(ds_comm_broadcast(&host, to, 2, NULL, out), "a tensor in pageable memory");
    assert_null(out[0]);
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_WARN));
    const char *pageable = "ds_comm_broadcast waits for a tensor in pageable memory";
    warns(ds_comm_broadcast(&host, to, 2, NULL, out), pageable);
    for (int i = 0; i < 2; i++)
        ok(ds_tensor_free(out[i]));
    ok(ds_tensor_free(on_device));
    ok(ds_stream_destroy(s));
    finish();
}

const struct CMUnitTest tests_sync_debug[] = {
    DS_TEST(test_the_mode_is_set_by_number_and_by_word, "torch 1.2"),
    DS_TEST(test_the_environment_sets_the_mode_at_the_first_call, "torch 1.2"),
    DS_TEST(test_waits_of_the_host_warn_and_name_their_line, "torch 1.2"),
    DS_TEST(test_waits_of_the_host_are_refused_before_anything_is_done, "torch 1.2"),
    DS_TEST(test_what_a_capture_takes_as_a_node_does_not_wait, "torch 1.2"),
    DS_TEST(test_the_allocators_own_waits_are_not_the_users, "torch 1.2"),
    DS_TEST(test_collectives_wait_for_pageable_tensors_only, "torch 1.2"),
};
const size_t tests_sync_debug_count = sizeof tests_sync_debug / sizeof *tests_sync_debug;
