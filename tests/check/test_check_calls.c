/* The public functions of the check layer, one by one, and its options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "unit.h"

enum { SIZE = 4096 };

static struct {
    int count;
    ds_hazard hazard;
    int possible;
    char text[4096];
    char key[400];
    char fix[400];
} last;

static void take(const ds_hazard_report *r, void *user) {
    last.count++;
    last.hazard = r->hazard;
    last.possible = r->possible;
    snprintf(last.text, sizeof last.text, "%s", r->text);
    snprintf(last.key, sizeof last.key, "%s", r->key);
    snprintf(last.fix, sizeof last.fix, "%s", r->fix);
    assert_ptr_equal(user, &last);
}

static ds_result begin_with(const char *options) {
    static ds_cpu_desc cpu = { .devices = 1 };
    memset(&last, 0, sizeof last);
    ds_check_set_report_fn(take, &last);
    return ds_init(&(ds_init_desc){ .cpu = &cpu, .check = options, .flags = DS_INIT_NO_CUDA });
}

static ds_stream stream(const char *label) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .label = label }, &s));
    return s;
}

static char *pinned(void) {
    void *p;
    ok(ds_pinned_alloc(SIZE, &p));
    return p;
}

/* Two fills without a wait between them. */
static void race(char *p) {
    ok(ds_fill(p, 1, 1, SIZE, stream("first")));
    ok(ds_fill(p, 2, 1, SIZE, stream("second")));
}

static void end(void) {
    ok(ds_device_synchronize(ds_cpu(0)));
    ok(ds_shutdown());
}

static void test_a_report_has_text_key_and_fix(void **state) {
    ds_check_stats stats;
    (void)state;
    ok(begin_with("quiet"));

    race(pinned());

    ok(ds_check_get_stats(&stats));
    assert_int_equal(last.count, 1);
    assert_int_equal(last.hazard, DS_HAZARD_WRITE_AFTER_WRITE);
    assert_int_equal(stats.reports, 1);
    assert_int_equal(stats.accesses, 2);
    assert_non_null(strstr(last.text, "now      ds_fill at test_check_calls.c:"));
    assert_non_null(strstr(last.key, "hazard=write-after-write"));
    assert_non_null(strstr(last.fix, "ds_stream_wait_stream(second, first)"));
    end();
}

static void test_hazards_have_names(void **state) {
    (void)state;
    assert_string_equal(ds_hazard_get_name(DS_HAZARD_USE_AFTER_FREE), "use-after-free");
    assert_string_equal(ds_hazard_get_name((ds_hazard)99), "unknown");
}

static void test_host_accesses_belong_to_the_thread(void **state) {
    (void)state;
    ok(begin_with("quiet"));
    ds_stream s = stream("uploads");
    char *p = pinned();

    ok(ds_fill(p, 1, 1, SIZE, s));
    ok(ds_check_host_read(p, SIZE));
    assert_int_equal(last.hazard, DS_HAZARD_READ_AFTER_WRITE);
    ok(ds_stream_synchronize(s));
    ok(ds_check_host_write(p, SIZE));
    assert_int_equal(last.count, 1);
    end();
}

static void test_a_declared_order_is_an_order(void **state) {
    (void)state;
    ok(begin_with("quiet,threads"));
    ds_stream a = stream("a");
    ds_stream b = stream("b");
    char *p = pinned();

    ok(ds_fill(p, 1, 1, SIZE, a));
    ok(ds_check_declare_order(a, b));
    ok(ds_fill(p, 2, 1, SIZE, b));
    ok(ds_check_declare_order(b, (ds_stream){ 0 }));
    ok(ds_check_host_read(p, SIZE));
    ok(ds_check_release(p));
    ok(ds_check_acquire(p));
    assert_int_equal(last.count, 0);
    assert_int_equal(ds_check_declare_order(a, (ds_stream){ 12345 }), DS_ERR_INVALID_HANDLE);
    end();
}

static void test_declared_memory_is_checked_until_it_is_forgotten(void **state) {
    static char memory[SIZE];
    (void)state;
    ok(begin_with("quiet"));

    ok(ds_check_declare_memory(memory, SIZE, "foreign"));
    assert_int_equal(ds_check_declare_memory(memory + 8, 8, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_check_host_write(memory, SIZE));
    ok(ds_check_forget_memory(memory));
    assert_int_equal(ds_check_forget_memory(memory), DS_ERR_INVALID_VALUE);
    assert_int_equal(last.count, 0);
    end();
}

static void test_ignored_bytes_have_no_race(void **state) {
    (void)state;
    ok(begin_with("quiet"));
    char *p = pinned();

    ok(ds_check_ignore(p, SIZE));
    race(p);
    assert_int_equal(last.count, 0);
    assert_int_equal(ds_check_ignore(NULL, 8), DS_ERR_INVALID_VALUE);
    end();
}

static int nothing(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

static void test_extents_of_one_launch_replace_the_kernels(void **state) {
    static const ds_param param = { DS_PARAM_WRITE, 0, sizeof(void *) };
    static const ds_extent half = { .kind = DS_EXTENT_BYTES, .bytes = SIZE / 2 };
    ds_extent wrong = { .kind = DS_EXTENT_BYTES };
    ds_kernel k;
    (void)state;
    ok(begin_with("quiet"));
    char *p = pinned();
    char *q = p + SIZE / 2;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "store",
                                           .cpu_fn = nothing,
                                           .args_size = sizeof p,
                                           .params = &param,
                                           .param_count = 1 },
                        &k));

    ok(ds_check_set_extents(&half, 1));
    ok(ds_kernel_launch(k, 1, &p, sizeof p, stream("low")));
    ok(ds_check_set_extents(&half, 1));
    ok(ds_kernel_launch(k, 1, &q, sizeof q, stream("high")));
    assert_int_equal(last.count, 0);
    ok(ds_kernel_launch(k, 1, &q, sizeof q, stream("all")));
    assert_int_equal(last.possible, 1);
    assert_int_equal(ds_check_set_extents(&wrong, 1), DS_ERR_INVALID_VALUE);
    end();
}

/* Their arguments may be pointers, of which the layer knows nothing. */
static void test_launches_without_a_list_of_parameters_are_counted(void **state) {
    ds_check_stats stats;
    ds_graph g;
    ds_graph_exec e;
    ds_kernel k[2];
    (void)state;
    ok(begin_with("quiet"));
    char *p = pinned();
    for (size_t i = 0; i < 2; i++)
        ok(ds_kernel_create(
            &(ds_kernel_desc){ .name = "store", .cpu_fn = nothing, .args_size = i * sizeof p },
            &k[i]));
    ds_stream s = stream("s");
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_kernel_launch(k[1], 1, &p, sizeof p, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &e));

    ok(ds_kernel_launch(k[0], 1, NULL, 0, s));
    ok(ds_kernel_launch(k[1], 1, &p, sizeof p, s));
    ok(ds_graph_launch(e, s));
    ok(ds_graph_launch(e, s));

    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.undeclared, 3);
    end();
}

static void test_why_prints_the_chain_of_waits(void **state) {
    ds_check_point p;
    ds_check_point q;
    char text[1000];
    (void)state;
    ok(begin_with("quiet"));
    ds_stream a = stream("a");
    ds_stream b = stream("b");
    char *memory = pinned();

    ok(ds_fill(memory, 1, 1, SIZE, a));
    ok(ds_check_get_point(a, &p));
    ok(ds_fill(memory, 1, 1, 0, b));
    ok(ds_check_get_point(b, &q));
    assert_int_equal(ds_check_why(p, q, text, sizeof text), DS_NOT_READY);
    assert_non_null(strstr(text, "no wait orders operation 1 of a before"));
    ok(ds_stream_wait_stream(b, a));
    ok(ds_check_get_point(b, &q));
    ok(ds_check_why(p, q, text, sizeof text));
    assert_non_null(strstr(text, "operation 1 of a comes before operation"));
    assert_non_null(strstr(text, "ds_stream_wait_stream at test_check_calls.c:"));
    end();
}

static void test_without_the_layer_the_calls_do_nothing(void **state) {
    ds_check_point p;
    ds_check_stats stats;
    (void)state;
    ok(begin_with(NULL));

    race(pinned());

    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.operations, 0);
    assert_int_equal(last.count, 0);
    assert_int_equal(ds_check_get_point((ds_stream){ 0 }, &p), DS_ERR_ILLEGAL_STATE);
    end();
}

static void test_wrong_options_are_refused(void **state) {
    static const char *const wrong[] = { "fast", "exit=0", "exit=x", "memory=-1",
                                         "suppress=/nowhere/at/all" };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ds_stream s;
        ds_result r = begin_with(wrong[i]);
        if (r == DS_OK)
            r = ds_stream_create(NULL, &s);
        assert_int_equal(r, DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_error_get_last(), "check: "));
        DS_IGNORE(ds_shutdown());
    }
}

/* Writes a file and returns its name. */
static const char *file_with(const char *text) {
    static char name[] = "/tmp/devstream-check-XXXXXX";
    snprintf(name, sizeof name, "%s", "/tmp/devstream-check-XXXXXX");
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return name;
}

static void test_patterns_suppress_reports(void **state) {
    char options[200];
    ds_check_stats stats;
    (void)state;
    const char *name = file_with("# comment\nhazard=write-after-?rite*\n");
    snprintf(options, sizeof options, "quiet,suppress=%s", name);
    ok(begin_with(options));

    race(pinned());

    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.suppressed, 1);
    assert_int_equal(stats.reports, 0);
    unlink(name);
    end();
}

static void test_reports_go_to_a_file_as_json(void **state) {
    char options[200];
    char text[4096] = "";
    (void)state;
    const char *name = file_with("");
    snprintf(options, sizeof options, "json,output=%s", name);
    ok(begin_with(options));

    race(pinned());
    end();

    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    unlink(name);
    assert_int_equal(strncmp(text, "{\"report\":1,\"hazard\":\"write-after-write\"", 40), 0);
    assert_string_equal(text + strlen(text) - 2, "}\n");
}

static int code_of(const char *options, int races) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        ok(begin_with(options));
        char *p = pinned();
        if (races)
            race(p);
        end();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_a_report_sets_the_exit_code_or_aborts(void **state) {
    (void)state;
    assert_int_equal(code_of("quiet,exit=7", 1), 7);
    assert_int_equal(code_of("quiet,exit=7", 0), 0);
    assert_int_equal(code_of("quiet,abort", 1), -6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_report_sets_the_exit_code_or_aborts),
        cmocka_unit_test(test_a_report_has_text_key_and_fix),
        cmocka_unit_test(test_hazards_have_names),
        cmocka_unit_test(test_host_accesses_belong_to_the_thread),
        cmocka_unit_test(test_a_declared_order_is_an_order),
        cmocka_unit_test(test_declared_memory_is_checked_until_it_is_forgotten),
        cmocka_unit_test(test_ignored_bytes_have_no_race),
        cmocka_unit_test(test_extents_of_one_launch_replace_the_kernels),
        cmocka_unit_test(test_launches_without_a_list_of_parameters_are_counted),
        cmocka_unit_test(test_why_prints_the_chain_of_waits),
        cmocka_unit_test(test_without_the_layer_the_calls_do_nothing),
        cmocka_unit_test(test_wrong_options_are_refused),
        cmocka_unit_test(test_patterns_suppress_reports),
        cmocka_unit_test(test_reports_go_to_a_file_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
