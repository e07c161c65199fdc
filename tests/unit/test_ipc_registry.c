/* The registry of events and memory in shared memory: what an importer takes from it. The other
   process is a child that is forked before devstream starts. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
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

/* What the child writes into its own registry before it sends a handle. */
enum { NOTHING, OFFSET, SIZE, SEGMENT, SEGMENT_SIZE, DEVICE_TYPE, LEASES, CHANGES };

enum { BLOCK = 1 << 16 };

/* Exports a block with a changed description, for each byte that comes. */
static void export_changed(ds_device device, int to, int from) {
    ds_ipc_mem_handle h;
    ds_pool pool;
    ds_stream s;
    void *p;
    unsigned char change;
    if (ds_stream_create(&(ds_stream_desc){ .device = device }, &s) < 0 ||
        ds_pool_create(&(ds_pool_desc){ .device = device, .shareable = 1 }, &pool) < 0)
        _exit(1);
    while (read(from, &change, 1) == 1) {
        if (ds_mem_alloc_with(&(ds_mem_request){ .size = BLOCK, .stream = s, .pool = pool }, &p) <
                0 ||
            ds_mem_export(p, &h) < 0)
            _exit(2);
        ds__ipc_memory m;
        memcpy(&m, &h, sizeof m);
        ds__export_slot *slots = ds__registries.own->page->slot;
        ds__export_slot_facts *block = &slots[m.slot].facts, was = *block;
        ds__export_slot_facts *segment = &slots[block->segment].facts, segment_was = *segment;
        if (change == OFFSET)
            block->offset = (uint64_t)1 << 40;
        if (change == SIZE)
            block->size = segment->size + 1;
        if (change == SEGMENT)
            block->segment = UINT32_MAX / 2;
        if (change == SEGMENT_SIZE)
            segment->size *= 16;
        if (change == DEVICE_TYPE)
            segment->device_type = DS_DEVICE_HOST;
        for (int i = 0; i < DS__LEASES && change == LEASES; i++) /* all of this process */
            atomic_store(&slots[m.slot].lease[i], 1 << 24 | ((uint64_t)getpid() & 0xffffff));
        if (write(to, &h, sizeof h) != (ssize_t)sizeof h || read(from, &change, 1) != 1)
            _exit(3);
        for (int i = 0; i < DS__LEASES && change == LEASES; i++)
            atomic_store(&slots[m.slot].lease[i], 0);
        *block = was;
        *segment = segment_was;
        if (ds_mem_free(p) < 0)
            _exit(4);
    }
    _exit(0);
}

static void import_changed(ds_device device) {
    int there[2], here[2], status = -1;
    ds_ipc_mem_handle h;
    ds_stream s;
    void *p;
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(here), 0);
    pid_t child = fork();
    if (child == 0) {
        close(here[1]);
        export_changed(device, there[1], here[0]);
    }
    close(here[0]);
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    for (unsigned char change = NOTHING; change < CHANGES; change++) {
        assert_int_equal(write(here[1], &change, 1), 1);
        assert_int_equal(read(there[0], &h, sizeof h), sizeof h);
        ds_result r = ds_mem_import(device, &h, s, &p);
        if (change == NOTHING) {
            ok(r);
            ok(ds_mem_import_close(p, s));
            ok(ds_stream_synchronize(s));
            ok(ds_shutdown()); /* the segment is opened anew */
            ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
        } else {
            /* the address of a segment far behind the last one may be readable, too */
            const char *says = change == SEGMENT       ? "names segment"
                               : change == DEVICE_TYPE ? "cannot be imported on one"
                               : change == LEASES      ? "62 processes use the block, the maximum"
                                                       : " ";
            if (r >= 0 || !strstr(ds_error_get_last(), says))
                fail_msg("change %d: %s: %s", change, ds_result_get_name(r), ds_error_get_last());
            assert_null(p);
            if (change == DEVICE_TYPE)
                assert_int_equal(r, DS_ERR_CROSS_DRIVER);
            if (change == LEASES)
                assert_int_equal(r, DS_ERR_LIMIT_EXCEEDED);
        }
        assert_int_equal(write(here[1], &change, 1), 1);
    }
    close(here[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ok(ds_stream_destroy(s));
    ok(ds_shutdown());
}

static void test_what_an_exporter_writes_is_checked_on_the_cpu(void **state) {
    (void)state;
    import_changed(ds_cpu(0));
}

/* Counts the lines of a text. */
static int count_lines(const char *from, size_t size, void *user) {
    for (size_t i = 0; i < size; i++)
        *(int *)user += from[i] == '\n';
    return 0;
}

/* More processes than a report has room for have a device's blocks. Those of another device do not
   count. */
static void test_a_report_has_256_processes_at_most(void **state) {
    enum { BLOCKS = 5 };

    ds_ipc_mem_handle h;
    ds_pool pool[2];
    ds_stream s[2];
    void *p[2][BLOCKS];
    int lines[2] = { 0, 0 };
    (void)state;
    ok(ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .devices = 2 } }));
    for (int d = 0; d < 2; d++) {
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(d) }, &s[d]));
        ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(d), .shareable = 1 }, &pool[d]));
        for (int i = 0; i < (d ? 1 : BLOCKS); i++) {
            ds__ipc_memory m;
            ok(ds_mem_alloc_with(
                &(ds_mem_request){ .size = BLOCK, .stream = s[d], .pool = pool[d] }, &p[d][i]));
            ok(ds_mem_export(p[d][i], &h));
            memcpy(&m, &h, sizeof m);
            for (int k = 0; k < DS__LEASES; k++) /* of processes with different ids */
                atomic_store(&ds__registries.own->page->slot[m.slot].lease[k],
                             1 << 24 | (uint64_t)(1 + i * DS__LEASES + k));
        }
    }

    for (int d = 0; d < 2; d++)
        ok(ds_mem_write_processes(ds_cpu(d), count_lines, &lines[d]));

    assert_int_equal(lines[0] - lines[1], 256 - DS__LEASES);
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < (d ? 1 : BLOCKS); i++)
            ok(ds_mem_free(p[d][i]));
    ok(ds_shutdown());
}

#ifdef DEVSTREAM_CUDA
static void test_what_an_exporter_writes_is_checked_on_a_gpu(void **state) {
    (void)state;
    import_changed(ds_cuda(0));
}
#endif

/* What the child writes into the page of its registry before it sends the handle of an event. */
enum { LAYOUT, PROCESS, NO_COUNTER, WORD, PAGE_CHANGES };

/* Exports an event, changes its page, and ends when the pipe is closed. */
static void export_from_a_changed_page(int change, int to, int from) {
    ds_event e;
    ds_ipc_event_handle h;
    char byte;
    if (ds_device_set_current(ds_cpu(0)) < 0 ||
        ds_event_create(DS_EVENT_INTERPROCESS, NULL, &e) < 0 || ds_event_export(e, &h) < 0)
        _exit(1);
    ds__registry_page *page = ds__registries.own->page;
    if (change == LAYOUT)
        page->layout++;
    if (change == PROCESS)
        page->pid++;
    if (change == NO_COUNTER)
        atomic_store(&page->progress_count, DS__PROGRESS_COUNTERS);
    if (change == WORD) /* a record by the last counter, which nobody has */
        for (uint32_t i = 0; i < atomic_load(&page->marks); i++)
            atomic_store(&page->mark[i].word, (uint64_t)DS__PROGRESS_COUNTERS << 40 | 1);
    if (write(to, &h, sizeof h) != (ssize_t)sizeof h)
        _exit(2);
    while (read(from, &byte, 1) > 0) {
    }
    _exit(0);
}

static void test_the_page_of_another_process_is_checked(void **state) {
    (void)state;
    for (int change = 0; change < PAGE_CHANGES; change++) {
        int there[2], here[2], status = -1;
        ds_ipc_event_handle h;
        ds_event e;
        ds_stream s;
        assert_int_equal(pipe(there), 0);
        assert_int_equal(pipe(here), 0);
        pid_t child = fork();
        if (child == 0) {
            close(here[1]);
            export_from_a_changed_page(change, there[1], here[0]);
        }
        close(here[0]);
        assert_int_equal(read(there[0], &h, sizeof h), sizeof h);
        ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
        if (change == LAYOUT) {
            refused(ds_event_import(ds_cpu(0), &h, &e), DS_ERR_UNSUPPORTED,
                    "has an incompatible version of devstream");
        } else if (change == PROCESS) {
            refused(ds_event_import(ds_cpu(0), &h, &e), DS_ERR_INVALID_VALUE,
                    "but the events and memory are of process");
        } else {
            ok(ds_event_import(ds_cpu(0), &h, &e));
            if (change == NO_COUNTER)
                refused(ds_event_record(e, s), DS_ERR_LIMIT_EXCEEDED, "the maximum");
            else
                refused(ds_stream_wait_event(s, e), DS_ERR_INVALID_HANDLE, "is damaged");
            ok(ds_stream_synchronize(s));
            ok(ds_event_destroy(e));
        }
        close(here[1]);
        close(there[0]);
        close(there[1]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        ok(ds_stream_destroy(s));
        ok(ds_shutdown());
    }
}

/* A child that is forked while registries of other processes are open has none of them: it would
   keep the locks that say that this process lives. */
static void test_a_forked_child_closes_registries(void **state) {
    int there[2], here[2], status = -1;
    ds_ipc_event_handle h;
    ds_event e;
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
    ok(ds_event_import(ds_cpu(0), &h, &e));
    assert_true(ds__registries.others->fd >= 0);
    int fd = ds__registries.others->fd;
    pid_t forked = fork();
    if (forked == 0)
        _exit(ds__registries.others->fd != -1 || fcntl(fd, F_GETFD) != -1);
    assert_int_equal(waitpid(forked, &status, 0), forked);
    assert_int_equal(status, 0);
    ok(ds_event_destroy(e));
    close(here[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_takes_one_lane_for_all_its_imports),
        cmocka_unit_test(test_another_file_at_the_descriptor_is_no_refusal),
#ifdef DEVSTREAM_CUDA
        cmocka_unit_test(test_what_an_exporter_writes_is_checked_on_a_gpu),
#endif
        cmocka_unit_test(test_what_an_exporter_writes_is_checked_on_the_cpu),
        cmocka_unit_test(test_the_page_of_another_process_is_checked),
        cmocka_unit_test(test_a_forked_child_closes_registries),
        cmocka_unit_test(test_a_report_has_256_processes_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
