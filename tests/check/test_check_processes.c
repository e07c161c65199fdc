/* Memory of another process under the check layer. The parent exports a block; the child, which is
   forked before devstream starts, imports the block and uses it on two streams. */
#include <sys/wait.h>
#include <unistd.h>

#define DEVSTREAM_IMPLEMENTATION
#include "devstream_check.h"
#include "devstream_alloc.h"
#include "unit.h"

enum { SIZE = 4096 };

static void begin(int is_cuda) {
    static ds_cpu_desc cpu = { .devices = 1 };
    ok(ds_init(
        &(ds_init_desc){ .cpu = &cpu, .check = "quiet", .flags = is_cuda ? 0 : DS_INIT_NO_CUDA }));
}

/* Fills the memory on one stream and then on the other one. Returns the number of reports. */
static uint64_t fill_on_both(void *p, ds_stream s, ds_stream t, int waits) {
    ds_check_stats stats;
    ok(ds_fill(p, 1, 1, SIZE, s));
    if (waits)
        ok(ds_stream_wait_stream(t, s));
    ok(ds_fill(p, 2, 1, SIZE, t));
    ok(ds_stream_synchronize(t));
    ok(ds_stream_synchronize(s));
    ok(ds_check_get_stats(&stats));
    assert_int_equal(stats.unchecked, 0);
    return stats.reports;
}

/* The process that imports the block. */
static void import_block(const ds_ipc_mem_handle *handle, int is_cuda) {
    ds_device device = is_cuda ? ds_cuda(0) : ds_cpu(0);
    ds_stream s;
    ds_stream t;
    void *p;
    begin(is_cuda);
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &t));
    ok(ds_mem_import(device, handle, s, &p));
    assert_int_equal(fill_on_both(p, s, t, 1), 0);
    assert_int_equal(fill_on_both(p, s, t, 0), 1);
    ok(ds_mem_import_close(p, s));
    ok(ds_shutdown());
}

/* The process that exports the block. */
static void export_block(ds_ipc_mem_handle *out, int is_cuda, ds_stream *s, void **p) {
    ds_device device = is_cuda ? ds_cuda(0) : ds_cpu(0);
    ds_pool pool;
    begin(is_cuda);
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, s));
    ok(ds_pool_create(&(ds_pool_desc){ .device = device, .shareable = 1 }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = SIZE, .stream = *s, .pool = pool }, p));
    ok(ds_fill(*p, 0, 1, SIZE, *s));
    ok(ds_mem_export(*p, out));
}

/* The second process is forked before the first one starts the driver. */
static void test_imported_memory_is_checked(void **state) {
    (void)state;
    for (int is_cuda = 0; is_cuda < 2; is_cuda++) {
        int ends[2];
        int status;
        ds_ipc_mem_handle handle;
        ds_stream s;
        void *p;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            assert_int_equal(read(ends[0], &handle, sizeof handle), sizeof handle);
            import_block(&handle, is_cuda);
            _exit(0);
        }
        export_block(&handle, is_cuda, &s, &p);
        assert_int_equal(write(ends[1], &handle, sizeof handle), sizeof handle);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        close(ends[0]);
        close(ends[1]);
        ok(ds_mem_free(p));
        ok(ds_shutdown());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_imported_memory_is_checked) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
