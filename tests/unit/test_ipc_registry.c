/* The registry of events and memory in shared memory: what an importer takes from it. The other
   process is a child that is forked before devstream starts. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"

#include <sys/wait.h>

/* Exports an event and ends when the pipe is closed. */
static void export_event(int to, int from) {
    ds_event e;
    ds_ipc_event_handle h;
    char byte;
    if (ds_device_set_current(ds_cpu(0)) < 0 ||
        ds_event_create(DS_EVENT_INTERPROCESS, NULL, &e) < 0 || ds_event_export(e, &h) < 0 ||
        write(to, &h, sizeof h) != (ssize_t)sizeof h)
        _exit(1);
    while (read(from, &byte, 1) > 0) {
    }
    _exit(0);
}

static void test_a_stream_takes_one_lane_for_all_its_imports(void **state) {
    int there[2], here[2], status = -1;
    ds_ipc_event_handle h;
    ds_event e;
    ds_stream s;
    (void)state;
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(here), 0);
    pid_t child = fork();
    if (child == 0) {
        close(here[1]);
        export_event(there[1], here[0]);
    }
    close(here[0]);
    assert_int_equal(read(there[0], &h, sizeof h), sizeof h);
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));

    for (int i = 0; i < 3; i++) {
        ok(ds_event_import(ds_cpu(0), &h, &e));
        ok(ds_event_record(e, s));
        ok(ds_stream_synchronize(s));
        ok(ds_event_destroy(e));
    }
    ok(ds_event_import(ds_cpu(0), &h, &e));

    assert_non_null(ds__registries.others);
    assert_int_equal(atomic_load(&ds__registries.others->page->progress_count), 1);
    ok(ds_event_destroy(e));
    close(here[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

/* The exporter has closed its memory and has the descriptor for another file now. An earlier error
   of the thread must not look like a missing permission. */
static void test_another_file_at_the_descriptor_is_no_refusal(void **state) {
    (void)state;
    int fd = open("/dev/null", O_RDWR);
    assert_true(fd >= 0);
    errno = EACCES;

    int got = ds__os_memfd_open((int)getpid(), fd, 1, 4096);

    int error = errno;
    close(fd);
    assert_int_equal(got, -1);
    assert_int_equal(error, ENOENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_takes_one_lane_for_all_its_imports),
        cmocka_unit_test(test_another_file_at_the_descriptor_is_no_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
