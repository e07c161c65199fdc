/* DS_CHECK: its value, its handlers, and the default one, which ends the process. */
#include "harness.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

typedef struct heard {
    ds_check_item item;
    char error[500];
    int n;
} heard;

static void hear(const ds_check_item *item, void *user) {
    heard *h = user;
    h->item = *item;
    snprintf(h->error, sizeof h->error, "%s", item->error);
    h->n++;
}

static void count(const ds_check_item *item, void *user) {
    (void)item;
    ++*(int *)user;
}

static ds_result counted(int *calls, ds_result result) {
    ++*calls;
    return result;
}

static void test_a_check_evaluates_once_and_has_the_value(void **state) {
    int calls = 0, failed = 0;
    gate g = { 0 };
    (void)state;
    ds_check_set_handler(count, &failed);
    ds_stream s = harness_stream(0, 0);
    gate_close(s, &g);

    assert_int_equal(DS_CHECK(ds_stream_query(s)), DS_NOT_READY);
    assert_int_equal(DS_CHECK(counted(&calls, DS_OK)), DS_OK);
    assert_int_equal(DS_CHECK(counted(&calls, DS_ERR_DRIVER)), DS_ERR_DRIVER);
    if (calls == 2)
        DS_CHECK(counted(&calls, DS_NOT_READY));
    else
        fail_msg("%d calls", calls);

    assert_int_equal(calls, 3);
    assert_int_equal(failed, 1);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    ds_check_set_handler(NULL, NULL);
}

static void test_a_handler_is_told_the_failed_check(void **state) {
    heard h = { 0 };
    ds_stream none = { 0 };
    (void)state;
    ds_check_set_handler(hear, &h);

    int line = __LINE__ + 1;
    ds_result r = DS_CHECK(ds_stream_query(none));

    assert_int_equal(r, DS_ERR_INVALID_HANDLE);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.item.result, DS_ERR_INVALID_HANDLE);
    assert_string_equal(h.item.text, "ds_stream_query(none)");
    assert_string_equal(h.item.file, __FILE__);
    assert_int_equal(h.item.line, line);
    assert_string_equal(h.error, ds_error_get_last());
    assert_non_null(strstr(h.error, "ds_stream_query"));
    ds_check_set_handler(NULL, NULL);
}

static void test_a_check_handler_outlives_shutdown(void **state) {
    int failed = 0;
    (void)state;
    ds_check_set_handler(count, &failed);
    harness_restart(NULL);

    DS_CHECK(ds_stream_query((ds_stream){ 0 }));

    assert_int_equal(failed, 1);
    ds_check_set_handler(NULL, NULL);
}

/* Each handler has its own argument; a mixed pair ends the process. */
static _Atomic int over;
static int odd_user, even_user;

static void odd_handler(const ds_check_item *item, void *user) {
    (void)item;
    if (user != &odd_user)
        harness_die("odd_handler", DS_ERR_ILLEGAL_STATE);
}

static void even_handler(const ds_check_item *item, void *user) {
    (void)item;
    if (user != &even_user)
        harness_die("even_handler", DS_ERR_ILLEGAL_STATE);
}

static void *change_handlers(void *unused) {
    (void)unused;
    while (!over) {
        ds_check_set_handler(odd_handler, &odd_user);
        ds_check_set_handler(even_handler, &even_user);
    }
    return NULL;
}

static void test_a_handler_and_its_argument_stay_a_pair(void **state) {
    (void)state;
    over = 0;
    ds_check_set_handler(odd_handler, &odd_user);
    pthread_t other = spawn(change_handlers, NULL);

    for (int i = 0; i < 200000; i++)
        DS_CHECK(DS_ERR_DRIVER);

    over = 1;
    join(other);
    ds_check_set_handler(NULL, NULL);
}

/* The program starts again with this variable; the child ends in the check. */
__attribute__((constructor)) static void child_that_fails(void) {
    const char *what = getenv("DS_TEST_CHILD");
    int failed = 0;
    if (!what || strcmp(what, "failed_check") != 0)
        return;
    ds_check_set_handler(count, &failed);
    ds_check_set_handler(NULL, NULL);
    DS_CHECK(ds_stream_query((ds_stream){ 0 }));
    exit(failed ? 8 : 9);
}

static void test_the_default_handler_prints_a_line_and_exits(void **state) {
    char line[500] = "", more[10], site[300];
    FILE *output = tmpfile();
    (void)state;
    assert_non_null(output);

    int status =
        harness_respawn((const char *const[]){ "DS_TEST_CHILD=failed_check", NULL }, output);

    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    rewind(output);
    assert_non_null(fgets(line, sizeof line, output));
    assert_null(fgets(more, sizeof more, output));
    fclose(output);
    snprintf(site, sizeof site, "%s:", __FILE__);
    assert_int_equal(strncmp(line, site, strlen(site)), 0);
    assert_null(strstr(line + 1, site)); /* once only */
    assert_non_null(strstr(line, ": ds_stream_query((ds_stream){ 0 }) returned "
                                 "DS_ERR_INVALID_HANDLE: ds_stream_query: "));
}

#undef DS_CHECK_HANDLER
#define DS_CHECK_HANDLER(result, text, file, line) goto fail

static int leaves_at_a_failure(ds_stream s) {
    DS_CHECK(ds_stream_query(s));
    return 0;
fail:
    return 1;
}

static void test_a_program_defines_its_own_handler(void **state) {
    int failed = 0;
    (void)state;
    ds_check_set_handler(count, &failed);
    ds_stream s = harness_stream(0, 0);

    assert_int_equal(leaves_at_a_failure(s), 0);
    assert_int_equal(leaves_at_a_failure((ds_stream){ 0 }), 1);

    assert_int_equal(failed, 0);
    ok(ds_stream_destroy(s));
    ds_check_set_handler(NULL, NULL);
}

const struct CMUnitTest tests_checks[] = {
    DS_TEST(test_a_check_evaluates_once_and_has_the_value, "checks"),
    DS_TEST(test_a_handler_is_told_the_failed_check, "checks"),
    DS_TEST(test_a_check_handler_outlives_shutdown, "checks"),
    DS_TEST(test_a_handler_and_its_argument_stay_a_pair, "checks"),
    DS_TEST(test_the_default_handler_prints_a_line_and_exits, "checks"),
    DS_TEST(test_a_program_defines_its_own_handler, "checks"),
};
const size_t tests_checks_count = sizeof tests_checks / sizeof *tests_checks;
