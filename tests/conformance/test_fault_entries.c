/* A fault at each entry of the driver: the call that needs the entry returns the fault, and the
   next one succeeds. The entries that programs of other groups reach are not in the list. */
#include <stdio.h>
#include <string.h>
#include "devstream_alloc.h"
#include "devstream_comm.h"
#include "harness.h"

static int write_nothing(const char *text, size_t size, void *user) {
    (void)text;
    (void)size;
    (void)user;
    return 0;
}

static ds_result get_properties(void) {
    ds_device_properties p;
    return ds_device_get_properties(harness_device(0), &p);
}

static ds_result get_memory(void) {
    size_t left;
    size_t total;
    return ds_device_get_memory_info(harness_device(0), &left, &total);
}

static ds_result get_attribute(void) {
    int64_t value;
    return ds_device_get_attribute(harness_device(0), (ds_attribute)1, &value);
}

static ds_result get_peer(void) {
    int access;
    return ds_device_can_access_peer(harness_device(0), harness_device(1), &access);
}

static ds_result get_priorities(void) {
    int least;
    int greatest;
    return ds_device_get_priority_range(harness_device(0), &least, &greatest);
}

static ds_result get_sensor(void) {
    unsigned degrees;
    return ds_device_get_temperature(harness_device(0), &degrees);
}

static ds_result get_processes(void) {
    return ds_mem_write_processes(harness_device(0), write_nothing, NULL);
}

static ds_result reset(void) {
    return ds_device_reset(harness_device(0));
}

static ds_result query_pointer(void) {
    int here = 0;
    ds_pointer_info info;
    return ds_pointer_get_info(&here, &info);
}

static ds_result query_stream(void) {
    ds_stream s;
    ds_result r = ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s);
    if (r < 0)
        return r;
    r = ds_stream_query(s);
    ok(ds_stream_destroy(s));
    return r;
}

static ds_result wrap_stream(void) {
    ds_stream s;
    ds_stream second;
    ds_stream_native native;
    ds_result r = ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s);
    if (r < 0)
        return r;
    r = ds_stream_export(s, &native);
    if (r == DS_OK)
        r = ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &second);
    if (r == DS_OK)
        ok(ds_stream_destroy(second));
    ok(ds_stream_destroy(s));
    return r;
}

static ds_result use_events(void) {
    ds_stream s;
    ds_event e[2];
    double ms;
    ds_result r = ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s);
    if (r < 0)
        return r;
    for (int i = 0; i < 2; i++) {
        ok(ds_event_create_on(harness_device(0), DS_EVENT_TIMING, NULL, &e[i]));
        ok(ds_event_record(e[i], s));
    }
    ok(ds_stream_synchronize(s));
    r = ds_event_query(e[0]);
    if (r == DS_OK)
        r = ds_event_get_elapsed_ms(e[0], e[1], &ms);
    for (int i = 0; i < 2; i++)
        ok(ds_event_destroy(e[i]));
    ok(ds_stream_destroy(s));
    return r;
}

static ds_result export_event(void) {
    ds_event e;
    ds_ipc_event_handle handle;
    ds_result r = ds_event_create_on(harness_device(0), DS_EVENT_INTERPROCESS, NULL, &e);
    if (r < 0)
        return r;
    r = ds_event_export(e, &handle);
    ok(ds_event_destroy(e));
    return r;
}

static ds_result share_memory(void) {
    ds_pool pool;
    ds_stream s;
    void *p = NULL;
    ds_ipc_mem_handle handle;
    ds_result r = ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s);
    if (r < 0)
        return r;
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .shareable = 1 }, &pool));
    r = ds_mem_alloc_with(&(ds_mem_request){ .size = 4096, .stream = s, .pool = pool }, &p);
    if (r == DS_OK)
        r = ds_mem_export(p, &handle);
    if (p)
        ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    return r;
}

static ds_result look_into_a_capture(void) {
    ds_stream s;
    ds_graph graph;
    size_t count = 0;
    ds_result r = ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s);
    if (r < 0)
        return r;
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    r = ds_capture_get_dependencies(s, NULL, 0, &count);
    if (r == DS_OK)
        r = ds_capture_update_dependencies(s, NULL, 0, DS_CAPTURE_SET_DEPENDENCIES);
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_destroy(graph));
    ok(ds_stream_destroy(s));
    return r;
}

static void nothing(void *user) {
    (void)user;
}

static ds_result set_node(void) {
    ds_graph graph;
    ds_graph_node node;
    ds_node_desc desc = { .kind = DS_NODE_HOST, .u.host = { .fn = nothing } };
    ds_result r = ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &graph);
    if (r < 0)
        return r;
    ok(ds_graph_add(graph, &desc, NULL, 0, &node));
    r = ds_graph_set_node(graph, node, &desc);
    ok(ds_graph_destroy(graph));
    return r;
}

static ds_result find_topology(void) {
    const ds_device devices[2] = { harness_device(0), harness_device(1) };
    ds_topology *t = NULL;
    ds_result r = ds_topology_create_of_devices(devices, 2, 0, &t);
    ds_topology_destroy(t);
    return r;
}

static const struct {
    const char *entry;
    ds_result (*call)(void);
    int cuda_only; /* 1: only the CUDA driver is asked */
} entries[] = {
    { "device_properties", get_properties, 0 },
    { "device_memory", get_memory, 0 },
    { "device_attribute", get_attribute, 0 },
    { "device_peer", get_peer, 0 },
    { "device_reset", reset, 0 },
    { "device_sensor", get_sensor, 0 },
    { "device_processes", get_processes, 0 },
    { "device_link", find_topology, 0 },
    { "device_speed", find_topology, 0 },
    { "priority_range", get_priorities, 0 },
    { "pointer_query", query_pointer, 1 },
    { "stream_query", query_stream, 0 },
    { "stream_native", wrap_stream, 0 },
    { "stream_wrap", wrap_stream, 0 },
    { "event_query", use_events, 0 },
    { "event_elapsed", use_events, 0 },
    { "event_export", export_event, 0 },
    { "share_alloc", share_memory, 0 },
    { "share_export", share_memory, 0 },
    { "capture_dependencies", look_into_a_capture, 0 },
    { "capture_update", look_into_a_capture, 0 },
    { "graph_set", set_node, 0 },
};

/* Returns 1 if the call has returned the fault at the n-th call of the entry. */
static int fails(size_t i, int n) {
    char fault[60];
    char sentence[80];
    snprintf(fault, sizeof fault, "%s:%d", entries[i].entry, n);
    snprintf(sentence, sizeof sentence, "injected fault in the driver's %s", entries[i].entry);
    harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });
    ds_result r = entries[i].call();
    if (r != DS_ERR_DRIVER || !strstr(ds_error_get_last(), sentence))
        return 0;
    r = entries[i].call();
    if (r == DS_ERR_DRIVER)
        fail_msg("%s: a second failure: %s", fault, ds_error_get_last());
    return 1;
}

static void test_a_fault_at_each_entry_reaches_its_caller(void **state) {
    int lost = 0;
    (void)state;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        int n = 1;
        if (entries[i].cuda_only && harness_is_cpu())
            continue;
        while (n <= 4 && !fails(i, n))
            n++;
        if (n > 4) {
            print_message("          %s: the fault did not reach the caller\n", entries[i].entry);
            lost++;
        }
    }
    harness_restart(NULL);
    assert_int_equal(lost, 0);
}

const struct CMUnitTest tests_fault_entries[] = {
    DS_TEST(test_a_fault_at_each_entry_reaches_its_caller, "failure"),
};
const size_t tests_fault_entries_count = sizeof tests_fault_entries / sizeof tests_fault_entries[0];
