/* A program without the CPU driver, on a machine without a GPU: every call that needs a device is
   refused with a sentence, and the others work. */
#undef DEVSTREAM_CUDA
#define DEVSTREAM_NO_CPU
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "devstream_rng.h"

#include <sys/wait.h>
#include <unistd.h>
#include "unit.h"

static void test_memory_of_the_host_needs_a_driver(void **state) {
    static char memory[4096];
    void *p = memory;
    ds_pointer_info info;
    (void)state;
    refused(ds_pinned_alloc(64, &p), DS_ERR_NO_DEVICE, "no driver is available");
    assert_null(p);
    refused(ds_pinned_alloc_with(64, &(ds_pinned_desc){ .flags = DS_PINNED_HUGE_PAGES }, &p),
            DS_ERR_NO_DEVICE, "no driver is available");
    refused(ds_pinned_register(memory, sizeof memory), DS_ERR_NO_DEVICE, "no driver is available");
    refused(ds_mem_pinned_alloc(64, &p), DS_ERR_NO_DEVICE, "no driver is available");
    refused(ds_pinned_unregister(memory), DS_ERR_INVALID_VALUE, "not the start of a registered");
    ok(ds_pointer_get_info(memory, &info)); /* ordinary memory */
    assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
}

static void test_devices_and_streams_are_refused(void **state) {
    int count = -1;
    ds_device device = ds_cpu(0);
    ds_stream s;
    ds_event e;
    ds_graph g;
    ds_rng rng;
    void *p;
    (void)state;
    ok(ds_device_get_count(DS_DEVICE_CPU, &count));
    assert_int_equal(count, 0);
    refused(ds_stream_create(NULL, &s), DS_ERR_NO_DEVICE, "there is no");
    refused(ds_event_create_on(device, 0, NULL, &e), DS_ERR_NO_DEVICE, "cpu");
    refused(ds_graph_create(NULL, &g), DS_ERR_NO_DEVICE, "there is no");
    refused(ds_device_alloc(device, 64, &p), DS_ERR_NO_DEVICE, "cpu");
    refused(ds_rng_create(NULL, &rng), DS_ERR_NO_DEVICE, "there is no");
    refused(ds_device_set_current(device), DS_ERR_NO_DEVICE, "cpu");
}

static void test_what_only_the_cpu_driver_has_is_refused(void **state) {
    ds_cpu_stats stats;
    int64_t ns = 1;
    (void)state;
    ok(ds_cpu_get_stats(&stats));
    refused(ds_cpu_get_clock(&ns), DS_ERR_UNSUPPORTED, "no virtual clock");
    refused(ds_cpu_set_spin(100), DS_ERR_UNSUPPORTED, "no CPU driver");
    refused(ds_cpu_get_spin(&ns), DS_ERR_UNSUPPORTED, "no CPU driver");
    assert_int_equal(ns, 0);
}

static void test_what_needs_no_device_works(void **state) {
    ds_mem_pinned_stats stats;
    size_t released = 1;
    (void)state;
    ok(ds_quiesce());
    ok(ds_mem_pinned_get_stats(&stats));
    ok(ds_mem_pinned_empty_cache(&released));
    assert_int_equal(released, 0);
    ok(ds_shutdown());
    ok(ds_quiesce());
}

/* DS_CHECK without a handler prints the call and ends the process. */
static void test_a_check_that_fails_ends_the_process(void **state) {
    char text[1000] = "";
    int to[2], status = 0;
    (void)state;
    ok(ds_shutdown()); /* the child may start it */
    assert_int_equal(pipe(to), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ds_stream s;
        dup2(to[1], 2);
        DS_CHECK(ds_stream_create(NULL, &s));
        _exit(0);
    }
    close(to[1]);
    size_t n = 0;
    ssize_t more;
    while ((more = read(to[0], text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)more;
    close(to[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    if (!strstr(text, "test_no_driver.c:") || !strstr(text, "ds_stream_create(NULL, &s)") ||
        !strstr(text, "DS_ERR_NO_DEVICE: ds_stream_create: there is no"))
        fail_msg("it says: %s", text);
    /* the place of the call is there once */
    assert_null(strstr(strstr(text, "test_no_driver.c:") + 1, "test_no_driver.c:"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_the_host_needs_a_driver),
        cmocka_unit_test(test_devices_and_streams_are_refused),
        cmocka_unit_test(test_what_only_the_cpu_driver_has_is_refused),
        cmocka_unit_test(test_what_needs_no_device_works),
        cmocka_unit_test(test_a_check_that_fails_ends_the_process),
    };
    return cmocka_run_group_tests_name("no driver", tests, NULL, NULL);
}
