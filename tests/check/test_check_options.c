/* The options of the check layer, its output, and starts with other options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "output.h"
#include "data_races.h"
#include "unit.h"

enum { SIZE = 4096 };

/* ---- programs ---- */

static struct {
    int count;
    int is_json;
    char text[2000];
} last;

static void take(const ds_hazard_report *r, void *user) {
    (void)user;
    last.count++;
    last.is_json = r->text[0] == '{';
    snprintf(last.text, sizeof last.text, "%s", r->text);
}

/* Starts the layer with options, which may be followed by the output file. */
static ds_result begin_with(const char *options, const char *output) {
    static ds_cpu_desc cpu = { .devices = 1 };
    char list[300];
    memset(&last, 0, sizeof last);
    ds_check_set_report_fn(take, NULL);
    snprintf(list, sizeof list, "%s%s%s", options, output ? ",output=" : "", output ? output : "");
    return ds_init(&(ds_init_desc){ .cpu = &cpu, .check = list, .flags = DS_INIT_NO_CUDA });
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

static int nothing(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

/* A kernel without an extent. */
static ds_kernel opaque(const char *name) {
    static const ds_param param = { DS_PARAM_WRITE, 0, sizeof(void *) };
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = name,
                                           .cpu_fn = nothing,
                                           .args_size = sizeof(void *),
                                           .params = &param,
                                           .param_count = 1 },
                        &k));
    return k;
}

/* Two launches of a kernel without an extent: a possible race. */
static void possible_race(void) {
    ds_kernel k = opaque("opaque");
    char *p = pinned();
    ok(ds_kernel_launch(k, 1, &p, sizeof p, stream("first")));
    ok(ds_kernel_launch(k, 1, &p, sizeof p, stream("second")));
}

static void end(void) {
    ok(ds_device_synchronize(ds_cpu(0)));
    ok(ds_shutdown());
}

/* ---- output ---- */

static void test_reports_and_summary_are_printed(void **state) {
    const char *name = output_new();
    (void)state;
    ok(begin_with("1", name));
    race(pinned());
    end();

    const char *text = output_read(name);

    assert_int_equal(strncmp(text, "devstream check #1: write-after-write\n", 38), 0);
    assert_non_null(strstr(text,
                           "\ndevstream check: 1 reports (0 repeated), 0 possible, 0 suppressed; "
                           "2 operations; 0 accesses to unknown memory; 0 launches without a list "
                           "of parameters; 0 ranges given up\n"));
}

static void test_without_reports_nothing_is_printed(void **state) {
    const char *name = output_new();
    (void)state;
    ok(begin_with("1", name));
    ok(ds_fill(pinned(), 1, 1, SIZE, stream("only")));
    end();

    assert_string_equal(output_read(name), "");
}

static void test_quiet_prints_nothing(void **state) {
    const char *name = output_new();
    (void)state;
    ok(begin_with("quiet", name));
    race(pinned());
    end();

    assert_string_equal(output_read(name), "");
    assert_int_equal(last.count, 1);
}

static void test_possible_reports_are_printed_on_request(void **state) {
    const char *name = output_new();
    (void)state;
    ok(begin_with("possible", name));
    possible_race();
    end();

    const char *text = output_read(name);

    assert_int_equal(strncmp(text, "devstream check #1: possible write-after-write\n", 47), 0);
    assert_non_null(strstr(text, "devstream check: 0 reports (0 repeated), 1 possible, "));
}

static void test_possible_reports_are_counted_in_any_case(void **state) {
    const char *name = output_new();
    (void)state;
    ok(begin_with("1", name));
    possible_race();
    end();

    assert_int_equal(
        strncmp(output_read(name), "devstream check: 0 reports (0 repeated), 1 pos", 46), 0);
}

static void test_lines_of_json_are_never_cut(void **state) {
    static char file[3000];
    const char *name = output_new();
    (void)state;
    memset(file, '"', sizeof file - 1);
    ok(begin_with("json", name));
    char *p = pinned();

    ok(ds_at_fill(file, 1, p, 1, 1, SIZE, stream("first")));
    ok(ds_at_fill(file, 2, p, 1, 1, SIZE, stream("second")));
    end();

    const char *text = output_read(name);

    assert_int_equal(json_lines(text), 2);
    assert_int_equal(strncmp(text, "{\"report\":1,\"hazard\":\"write-after-write\"", 40), 0);
    assert_true(strlen(text) > 2 * 2 * (sizeof file - 1));
}

static void test_texts_are_cut_between_characters(void **state) {
    /* bytes 40 and 47 of the label, 63 of the stream and 60 of the operation are in a character */
    static const char label[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\u00e9bbbbb\u00e9";
    static const char first[] =
        "ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss\u00e9";
    static const char kernel[] = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\u00e9";
    static char memory[SIZE];
    char *p = memory;
    const char *name = output_new();
    (void)state;
    ok(begin_with("json,possible", name));
    ds_kernel k = opaque(kernel);

    ok(ds_check_declare_memory(memory, SIZE, label));
    ok(ds_kernel_launch(k, 1, &p, sizeof p, stream(first)));
    ok(ds_kernel_launch(k, 1, &p, sizeof p, stream("second")));
    end();

    const char *text = output_read(name);

    assert_int_equal(json_lines(text), 2);
    assert_null(strchr(text, '?'));
    assert_non_null(
        strstr(text, "\"memory\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\u00e9bbbbb\""));
    assert_non_null(strstr(text, " memory=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa at="));
    assert_non_null(strstr(text, "kkk b=kernel "));
}

static void test_texts_that_are_not_utf8_are_replaced(void **state) {
    static char memory[SIZE];
    const char *name = output_new();
    (void)state;
    ok(begin_with("json", name));

    ok(ds_check_declare_memory(memory, SIZE, "caf\xe9 \xed\xa0\x80\xc3"));
    ok(ds_check_host_write(memory, SIZE));
    ok(ds_at_fill("dir/\xff.c", 1, memory, 1, 1, SIZE, stream("\x80")));
    ok(ds_at_fill("dir/\xfe.c", 1, memory, 1, 1, SIZE, stream("\x81\n")));
    end();

    const char *text = output_read(name);

    assert_true(json_lines(text) >= 2);
    assert_non_null(strstr(text, "\"memory\":\"caf? ????\""));
    assert_non_null(strstr(text, "\"file\":\"dir/?.c\""));
}

/* ---- suppressions and exit codes ---- */

/* Writes a file and returns its name. */
static const char *file_with(const char *text) {
    const char *name = output_new();
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
    return name;
}

static void test_patterns_suppress_reports(void **state) {
    char options[200];
    ds_check_stats stats;
    (void)state;
    const char *name = file_with("# comment\nhazard=write-after-?rite*\n");
    snprintf(options, sizeof options, "quiet,suppress=%s", name);
    ok(begin_with(options, NULL));

    race(pinned());

    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.suppressed, 1);
    assert_int_equal(stats.reports, 0);
    unlink(name);
    end();
}

static int code_of(const char *options, int races) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        ok(begin_with(options, NULL));
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

/* ---- the limit of memory ---- */

enum { RANGES = 320, RANGE = 1024, WRITES = 128 };

static char ranges[RANGES][RANGE];

/* Writes each range on a thread without a hand-over. */
static void *write_ranges(void *unused) {
    for (int i = 0; i < RANGES; i++) {
        ds_check_stats before;
        ds_check_stats after;
        if (ds_check_get_stats(&before) < 0 || ds_check_host_write(ranges[i], RANGE) < 0 ||
            ds_check_get_stats(&after) < 0)
            return "a call failed";
        /* ranges were declared from the last one on, so the last ones are the oldest */
        int is_checked = after.reports + after.repeated > before.reports + before.repeated;
        int expected = i < RANGES - (int)before.evicted;
        if (is_checked != expected)
            return "another range than the oldest one was given up";
    }
    return unused;
}

/* Makes more accesses than 4 MiB can keep beside the ring of waits. */
static void fill_memory(void) {
    ds_stream s = stream("waits");
    for (int i = RANGES - 1; i >= 0; i--)
        ok(ds_check_declare_memory(ranges[i], RANGE, "range"));
    ok(ds_fill(pinned(), 1, 1, SIZE, s));
    ok(ds_stream_synchronize(s));
    for (int i = RANGES - 1; i >= 0; i--)
        for (int k = 0; k < WRITES; k++)
            ok(ds_check_host_write(&ranges[i][2 * k], 1));
}

static void test_at_the_limit_the_oldest_ranges_go_first(void **state) {
    ds_check_stats stats;
    pthread_t thread;
    void *wrong = NULL;
    (void)state;
    ok(begin_with("threads,quiet,memory=4", NULL));

    fill_memory();

    ok(ds_check_get_stats(&stats));
    assert_in_range(stats.evicted, 1, RANGES - 1);
    assert_true(stats.bytes <= 4 << 20);
    assert_int_equal(pthread_create(&thread, NULL, write_ranges, NULL), 0);
    pthread_join(thread, &wrong);
    if (wrong)
        fail_msg("%s", (const char *)wrong);
    end();
}

static void test_the_limit_of_memory_is_told_once(void **state) {
    const char *name = output_new();
    (void)state;
    ok(begin_with("threads,memory=4", name));
    fill_memory();
    end();

    const char *text = output_read(name);
    const char *notice = strstr(text, "the limit of memory=4 is reached; \"range\" 0x");

    assert_non_null(notice);
    assert_null(strstr(notice + 1, "the limit of memory"));
    assert_non_null(strstr(text, " ranges given up\n"));
    assert_null(strstr(text, "; 0 ranges given up\n"));
}

static void test_the_limit_of_memory_is_told_as_json(void **state) {
    const char *name = output_new();
    (void)state;
    ok(begin_with("threads,json,memory=4", name));
    fill_memory();
    end();

    const char *text = output_read(name);

    assert_int_equal(json_lines(text), 2);
    assert_int_equal(strncmp(text, "{\"notice\":\"the limit of memory=4 is reached", 43), 0);
}

/* ---- starts ---- */

/* Returns the result of the first call. */
static ds_result first_result(const char *options) {
    ds_stream s;
    ds_result r = begin_with(options, NULL);
    return r == DS_OK ? ds_stream_create(NULL, &s) : r;
}

static void test_wrong_options_are_refused(void **state) {
    static const char *const wrong[] = { "fast",     "exit=0",   "exit=x",
                                         "memory=0", "memory=3", "suppress=/nowhere/at/all" };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(first_result(wrong[i]), DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_error_get_last(), "check: "));
        DS_IGNORE(ds_shutdown());
    }
    assert_int_equal(first_result("memory=3"), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "\"memory=3\"; use memory=4 to memory=1048576"));
    DS_IGNORE(ds_shutdown());
}

static void test_the_list_of_layers_turns_the_layer_on(void **state) {
    ds_check_stats stats;
    (void)state;
    memset(&last, 0, sizeof last);
    ds_check_set_report_fn(take, NULL);
    setenv("DEVSTREAM_LAYERS", "check", 1);
    setenv("DEVSTREAM_CHECK", "quiet", 1);
    race(pinned());
    ok(ds_check_get_stats(&stats));
    end();
    unsetenv("DEVSTREAM_LAYERS");
    unsetenv("DEVSTREAM_CHECK");

    assert_int_equal(stats.reports, 1);
    assert_int_equal(last.count, 1);
}

static void test_a_list_of_layers_needs_no_options(void **state) {
    static ds_cpu_desc cpu = { .devices = 1 };
    ds_check_stats stats;
    (void)state;
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .layers = "check", .flags = DS_INIT_NO_CUDA }));

    ok(ds_fill(pinned(), 1, 1, SIZE, stream("only")));

    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.operations, 1);
    end();
}

/* Memory of a program. */
static struct {
    _Atomic long count;
    _Atomic int fails;
} heap;

static void *heap_alloc(size_t size, void *user) {
    assert_ptr_equal(user, &heap);
    if (heap.fails)
        return NULL;
    heap.count++;
    return malloc(size);
}

static void heap_free(void *ptr, void *user) {
    (void)user;
    heap.count -= ptr != NULL;
    free(ptr);
}

static ds_result begin_on_heap(const char *options, const char *output) {
    static ds_cpu_desc cpu = { .devices = 1 };
    char list[300];
    heap.fails = 0;
    snprintf(list, sizeof list, "%s,output=%s", options, output);
    return ds_init(&(ds_init_desc){ .cpu = &cpu,
                                    .check = list,
                                    .allocator = { heap_alloc, heap_free, &heap },
                                    .flags = DS_INIT_NO_CUDA });
}

/* Everything that the layer keeps. */
static void many_kinds_of_records(void) {
    static char memory[SIZE];
    ds_event e;
    ds_check_point p;
    void *block;
    ds_stream s = stream("heap");
    ok(ds_check_declare_memory(memory, SIZE, "declared"));
    ok(ds_check_ignore(memory, 8));
    ok(ds_check_release(memory));
    ok(ds_event_create(0, NULL, &e));
    ok(ds_event_record(e, s));
    ok(ds_mem_alloc(SIZE, s, &block));
    ok(ds_mem_record_use(block, stream("user")));
    ok(ds_check_get_point(s, &p));
    assert_int_equal(ds_check_why(p, p, (char[8]){ 0 }, 8), DS_OK);
    race(pinned());
}

static void test_a_restart_takes_other_options_and_memory(void **state) {
    const char *first = output_new();
    (void)state;
    ok(begin_on_heap("threads,json", first));
    many_kinds_of_records();
    assert_true(heap.count > 0);
    end();
    assert_int_equal(heap.count, 0);
    assert_int_equal(json_lines(output_read(first)), 2);

    const char *second = output_new();
    ok(begin_with("1", second));
    race(pinned());
    assert_int_equal(last.count, 1);
    assert_int_equal(last.is_json, 0);
    assert_non_null(strstr(last.text, "now      ds_fill at test_check_options.c:"));
    assert_non_null(strstr(last.text, "before   ds_fill at test_check_options.c:"));
    end();
    assert_non_null(strstr(output_read(second), "devstream check #1: write-after-write\n"));
    assert_int_equal(heap.count, 0);
}

static void test_a_lack_of_memory_is_told_once(void **state) {
    static char memory[SIZE];
    const char *name = output_new();
    (void)state;
    ok(begin_on_heap("json", name));
    ok(ds_check_declare_memory(memory, 8, "first"));

    heap.fails = 1;
    ok(ds_check_declare_memory(memory + 8, 8, "second"));
    ok(ds_check_declare_memory(memory + 16, 8, "third"));
    heap.fails = 0;
    end();

    assert_string_equal(output_read(name),
                        "{\"notice\":\"no host memory; nothing is checked any more\"}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_report_sets_the_exit_code_or_aborts), /* before threads exist */
        cmocka_unit_test(test_patterns_suppress_reports),
        cmocka_unit_test(test_reports_and_summary_are_printed),
        cmocka_unit_test(test_without_reports_nothing_is_printed),
        cmocka_unit_test(test_quiet_prints_nothing),
        cmocka_unit_test(test_possible_reports_are_printed_on_request),
        cmocka_unit_test(test_possible_reports_are_counted_in_any_case),
        cmocka_unit_test(test_lines_of_json_are_never_cut),
        cmocka_unit_test(test_texts_are_cut_between_characters),
        cmocka_unit_test(test_texts_that_are_not_utf8_are_replaced),
        cmocka_unit_test(test_at_the_limit_the_oldest_ranges_go_first),
        cmocka_unit_test(test_the_limit_of_memory_is_told_once),
        cmocka_unit_test(test_the_limit_of_memory_is_told_as_json),
        cmocka_unit_test(test_wrong_options_are_refused),
        cmocka_unit_test(test_the_list_of_layers_turns_the_layer_on),
        cmocka_unit_test(test_a_list_of_layers_needs_no_options),
        cmocka_unit_test(test_a_restart_takes_other_options_and_memory),
        cmocka_unit_test(test_a_lack_of_memory_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
