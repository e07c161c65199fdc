/* What there is, what it can do, how warm it is: the small questions about devices. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ds_device with_index(int index) {
    return (ds_device){ harness_device(0).type, index };
}

static void test_drivers_with_devices_are_available(void **state) {
    (void)state;
    assert_int_equal(ds_backend_is_available((ds_device_type)harness_device(0).type), 1);
    assert_int_equal(ds_backend_is_available(DS_DEVICE_CURRENT), 1);
    for (int type = 0; type < 20; type++) {
        int count = 0;
        if (type == DS_DEVICE_CUDA || type == DS_DEVICE_CPU)
            ok(ds_device_get_count((ds_device_type)type, &count));
        if (type != DS_DEVICE_CURRENT)
            assert_int_equal(ds_backend_is_available((ds_device_type)type), count > 0);
    }
}

static void look(void *seen) {
    *(int *)seen = ds_is_initialized() + 2 * ds_backend_is_available(DS_DEVICE_CURRENT);
}

static void test_devstream_is_initialized_from_first_call_to_shutdown(void **state) {
    ds_device d;
    int seen = -1;
    (void)state;
    harness_shutdown();
    assert_int_equal(ds_is_initialized(), 0);
    assert_int_equal(ds_is_initialized(), 0); /* and asking starts nothing */
    ok(ds_init(NULL));
    assert_int_equal(ds_is_initialized(), 0);
    ok(ds_device_get_current(&d));
    assert_int_equal(ds_is_initialized(), 1);
    harness_restart(NULL);
    ds_stream s = harness_stream(0, 0);
    ok(ds_stream_launch_host_func(s, look, &seen, NULL));
    ok(ds_stream_synchronize(s));
    assert_int_equal(seen, 3); /* both are callable anywhere */
    ok(ds_stream_destroy(s));
}

static void test_architectures_are_words(void **state) {
    char text[300], small[8];
    (void)state;
    ok(ds_backend_format_arch_list(DS_DEVICE_CPU, text, sizeof text));
    assert_true(strncmp(text, "x86_64", 6) == 0 || strcmp(text, "aarch64") == 0);
    ok(ds_backend_format_arch_list(DS_DEVICE_CUDA, text, sizeof text));
    if (ds_backend_is_available(DS_DEVICE_CUDA)) {
        int major, minor;
        char word[16];
        assert_non_null(strstr(text, "compute_60"));
        assert_ptr_equal(strstr(text, "sm_60"), text); /* the oldest comes first */
        for (int i = 0; i < harness_device_count() && !harness_is_cpu(); i++) {
            ok(ds_device_get_capability(harness_device(i), &major, &minor));
            snprintf(word, sizeof word, "sm_%d%d ", major, minor);
            assert_non_null(strstr(text, word));
        }
        refused(ds_backend_format_arch_list(DS_DEVICE_CUDA, small, sizeof small),
                DS_ERR_INVALID_VALUE);
        assert_string_equal(small, "");
    }
    ok(ds_backend_format_arch_list(DS_DEVICE_CURRENT, text, sizeof text));
    assert_true(strlen(text) > 0);
    refused(ds_backend_format_arch_list(DS_DEVICE_HOST, text, sizeof text), DS_ERR_INVALID_DEVICE);
    refused(ds_backend_format_arch_list((ds_device_type)77, text, sizeof text),
            DS_ERR_INVALID_DEVICE);
    refused(ds_backend_format_arch_list(DS_DEVICE_CPU, NULL, 5), DS_ERR_INVALID_VALUE);
    refused(ds_backend_format_arch_list(DS_DEVICE_CPU, text, 0), DS_ERR_INVALID_VALUE);
}

static void test_name_and_capability_are_those_of_the_properties(void **state) {
    (void)state;
    for (int i = 0; i < harness_device_count(); i++) {
        ds_device_properties p;
        char name[128], small[4];
        int major = -1, minor = -1;
        ok(ds_device_get_properties(harness_device(i), &p));
        ok(ds_device_get_name(harness_device(i), name, sizeof name));
        assert_string_equal(name, p.name);
        ok(ds_device_get_name(harness_device(i), small, sizeof small));
        assert_true(strlen(small) == 3 && memcmp(small, p.name, 3) == 0);
        ok(ds_device_get_capability(harness_device(i), &major, &minor));
        assert_int_equal(major, p.major);
        assert_int_equal(minor, p.minor);
        assert_int_equal(major > 0, !harness_is_cpu());
        ok(ds_device_get_capability(harness_device(i), NULL, NULL));
    }
    char name[8] = "before";
    int major = 5;
    refused(ds_device_get_name(with_index(999), name, sizeof name), DS_ERR_DEVICE_RANGE);
    assert_string_equal(name, "");
    refused(ds_device_get_name(harness_device(0), NULL, 8), DS_ERR_INVALID_VALUE);
    refused(ds_device_get_capability(with_index(-1), &major, NULL), DS_ERR_DEVICE_RANGE);
    assert_int_equal(major, 0);
    refused(ds_device_get_capability((ds_device){ DS_DEVICE_HOST, 0 }, &major, NULL),
            DS_ERR_INVALID_DEVICE);
}

static int same(ds_device a, ds_device b) {
    return a.type == b.type && a.index == b.index;
}

static void test_the_device_of_a_pointer_is_that_of_its_memory(void **state) {
    int on_stack = 0;
    void *p, *pinned;
    ds_device d;
    const ds_device host = { DS_DEVICE_HOST, 0 };
    (void)state;
    for (int i = 0; i < harness_device_count(); i++) {
        ok(ds_device_alloc(harness_device(i), 4096, &p));
        ok(ds_pointer_get_device(p, &d));
        assert_true(same(d, harness_device(i)));
        ok(ds_pointer_get_device((char *)p + 4095, &d));
        assert_true(same(d, harness_device(i)));
        ok(ds_device_free(p));
    }
    ok(ds_pinned_alloc(64, &pinned));
    ok(ds_pointer_get_device(pinned, &d));
    assert_true(same(d, host));
    ok(ds_pinned_free(pinned));
    ok(ds_pointer_get_device(&on_stack, &d));
    assert_true(same(d, host));
    ok(ds_pointer_get_device(NULL, &d));
    assert_true(same(d, host));
    refused(ds_pointer_get_device(&on_stack, NULL), DS_ERR_INVALID_VALUE);
}

static void test_the_scope_of_a_pointers_device_is_left_in_every_way(void **state) {
    int on_stack = 0, ran = 0;
    void *p;
    ds_device d, before;
    (void)state;
    two_devices();
    ok(ds_device_alloc(harness_device(1), 64, &p));
    ok(ds_device_set_current(harness_device(0)));
    DS_DEVICE_OF_SCOPE(p) {
        ok(ds_device_get_current(&d));
        assert_true(same(d, harness_device(1)));
        ran++;
        break;
    }
    ok(ds_device_get_current(&before));
    assert_true(same(before, harness_device(0)));
    DS_DEVICE_OF_SCOPE(&on_stack) { /* torch: nothing changes for what is not on a device */
        ok(ds_device_get_current(&d));
        assert_true(same(d, before));
        ran++;
    }
    assert_int_equal(ran, 2);
    refused(ds_device_pop(), DS_ERR_ILLEGAL_STATE);
    ok(ds_device_free(p));
}

/* ---- sensors ---- */

static void test_a_cpu_device_has_no_sensors(void **state) {
    unsigned a = 1, b = 1;
    (void)state;
    refused(ds_device_get_utilization(ds_cpu(0), &a, &b), DS_ERR_UNSUPPORTED);
    assert_true(a == 0 && b == 0);
    assert_non_null(strstr(ds_error_get_last(), "utilisation of cpu:0"));
    refused(ds_device_get_temperature(ds_cpu(0), &a), DS_ERR_UNSUPPORTED);
    refused(ds_device_get_power_draw(ds_cpu(0), &a), DS_ERR_UNSUPPORTED);
    refused(ds_device_get_clock_rate(ds_cpu(0), &a, &b), DS_ERR_UNSUPPORTED);
}

static void test_wrong_questions_to_sensors_are_refused(void **state) {
    unsigned a = 1;
    (void)state;
    refused(ds_device_get_utilization(with_index(999), &a, NULL), DS_ERR_DEVICE_RANGE);
    assert_int_equal(a, 0);
    refused(ds_device_get_temperature(harness_device(0), NULL), DS_ERR_INVALID_VALUE);
    refused(ds_device_get_power_draw(harness_device(0), NULL), DS_ERR_INVALID_VALUE);
    refused(ds_device_get_temperature((ds_device){ DS_DEVICE_HOST, 0 }, &a), DS_ERR_INVALID_DEVICE);
}

/* With a library that stands for NVML, tests/support/nvml.c; what was loaded before goes. */
static void use_nvml(const char *name, const char *mode) {
    char folder[3000], path[3100];
    /* it lies beside the suite */
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    assert_true(n > 0);
    folder[n] = 0;
    *strrchr(folder, '/') = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    setenv("DEVSTREAM_NVML", *name == '/' ? name : path, 1);
    setenv("DS_TEST_NVML_MODE", mode, 1);
    harness_restart(NULL);
}

static void all_sensors_say(ds_result code, const char *words) {
    unsigned a = 1, b = 1;
    refused(ds_device_get_utilization(harness_device(0), &a, &b), code);
    assert_true(a == 0 && b == 0);
    assert_non_null(strstr(ds_error_get_last(), words));
    refused(ds_device_get_temperature(harness_device(0), &a), code);
    assert_non_null(strstr(ds_error_get_last(), words));
    refused(ds_device_get_power_draw(harness_device(0), &a), code);
    refused(ds_device_get_clock_rate(harness_device(0), &a, &b), code);
}

static void test_nvml_tells_how_busy_and_how_warm_a_gpu_is(void **state) {
    unsigned a, b;
    (void)state;
    static const char *const found[] = { "two", "by-pci" };
    for (int i = 0; i < 2; i++) {
        use_nvml("nvml.so", found[i]);
        ok(ds_device_get_utilization(harness_device(0), &a, &b));
        assert_true(a == 37 && b == 12);
        ok(ds_device_get_utilization(harness_device(0), NULL, &b));
        assert_int_equal(b, 12);
        ok(ds_device_get_temperature(harness_device(0), &a));
        assert_int_equal(a, 54);
        ok(ds_device_get_power_draw(harness_device(0), &a));
        assert_int_equal(a, 123456);
        ok(ds_device_get_clock_rate(harness_device(0), &a, &b));
        assert_true(a == 1410 && b == 1215);
        ok(ds_device_get_clock_rate(harness_device(0), &a, NULL));
    }
    use_nvml("nvml.so", "mig");
    all_sensors_say(DS_ERR_UNSUPPORTED, "NVML returned 3 (not supported)");
    use_nvml("nvml.so", "unavailable");
    all_sensors_say(DS_ERR_UNSUPPORTED, "NVML returned 3");
    use_nvml("nvml.so", "denied");
    all_sensors_say(DS_ERR_DRIVER, "NVML returned 4 (no permission)");
    use_nvml("nvml.so", "unknown-device");
    all_sensors_say(DS_ERR_DRIVER, "NVML returned 6 (not found)");
    use_nvml("nvml.so", "no-driver");
    all_sensors_say(DS_ERR_UNSUPPORTED, "cannot be initialised");
    use_nvml("nvml-old.so", "two");
    all_sensors_say(DS_ERR_UNSUPPORTED, "NVML returned 13");
    use_nvml("/nonexistent/libnvidia-ml.so.1", "two");
    all_sensors_say(DS_ERR_UNSUPPORTED,
                    "/nonexistent/libnvidia-ml.so.1) is needed, and it cannot be loaded");
    unsetenv("DEVSTREAM_NVML");
    unsetenv("DS_TEST_NVML_MODE");
    harness_restart(NULL);
}

static void *ask(void *arg) {
    unsigned a;
    for (int i = 0; i < 50; i++) {
        ok_thread(ds_device_get_temperature(harness_device(i), &a));
        if (a != 54)
            harness_die("ds_device_get_temperature", DS_ERR_FAILED);
    }
    return arg;
}

static void test_threads_ask_nvml_at_once(void **state) {
    pthread_t thread[3];
    (void)state;
    use_nvml("nvml.so", "two");
    for (int i = 0; i < 3; i++)
        thread[i] = spawn(ask, NULL);
    for (int i = 0; i < 3; i++)
        join(thread[i]);
    unsetenv("DEVSTREAM_NVML");
    harness_restart(NULL);
}

const struct CMUnitTest tests_device_functions[] = {
    DS_TEST(test_drivers_with_devices_are_available, "devices"),
    DS_TEST(test_devstream_is_initialized_from_first_call_to_shutdown, "initialisation"),
    DS_TEST(test_architectures_are_words, "devices"),
    DS_TEST(test_name_and_capability_are_those_of_the_properties, "devices"),
    DS_TEST(test_the_device_of_a_pointer_is_that_of_its_memory, "devices"),
    DS_TEST(test_the_scope_of_a_pointers_device_is_left_in_every_way, "devices"),
    DS_TEST(test_a_cpu_device_has_no_sensors, "sensors"),
    DS_TEST(test_wrong_questions_to_sensors_are_refused, "sensors"),
    DS_TEST_CUDA(test_nvml_tells_how_busy_and_how_warm_a_gpu_is, "sensors"),
    DS_TEST_CUDA(test_threads_ask_nvml_at_once, "sensors"),
};
const size_t tests_device_functions_count =
    sizeof tests_device_functions / sizeof *tests_device_functions;
