/* What the allocator refuses, with the sentence, and what it reports of memory that is short. On
   the CPU driver; some need a device of CUDA as well, the stand-in's. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "scarce.h"
#include "unit.h"

#define MIB ((size_t)1 << 20)

static ds_stream stream;

static int begin(void **state) {
    static ds_cpu_desc cpu;
    (void)state;
    alarm(120);
    cpu = (ds_cpu_desc){ .devices = 2, .memory_limit = 64 * MIB };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = SCARCE }));
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
    return 0;
}

static int end(void **state) {
    (void)state;
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
    return 0;
}

static ds_stream destroyed_stream(void) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_stream_destroy(s));
    return s;
}

static int discard(const char *text, size_t size, void *user) {
    (void)text, (void)user;
    return size > (size_t)1 << 40;
}

/* ---- options --------------------------------------------------------------------------------- */

static void test_options_that_contradict_each_other(void **state) {
    static const struct {
        const char *text, *words;
    } bad[] = {
        { "max_split_size_mb:32,large_segment_size_mb:64",
          "max_split_size_mb must be at least 64" },
        { "guard_bytes:many", "a number of bytes" },
        { "an_option_with_a_name_that_is_far_too_long_to_be_a_misspelling_of_any:1",
          "there is no option" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused(ds_mem_configure_text(bad[i].text), DS_ERR_INVALID_VALUE, bad[i].words);
}

/* ---- files and resources --------------------------------------------------------------------- */

static void test_a_snapshot_that_cannot_be_written(void **state) {
    (void)state;
    refused(ds_mem_write_snapshot_file(DS_SNAPSHOT_JSON, 0, "/no/such/folder/file"), DS_ERR_SYSTEM,
            "/no/such/folder/file cannot be written");
    refused(ds_mem_write_snapshot_file(DS_SNAPSHOT_JSON, 0, "/dev/full"), DS_ERR_SYSTEM,
            "/dev/full cannot be written");
}

static void *taken; /* the last memory of take_heap */

static ds_result take_heap(void *user, size_t size, size_t alignment, ds_stream s, void **out) {
    (void)user, (void)s, (void)alignment;
    *out = aligned_alloc(512, (size + 511) / 512 * 512);
    taken = *out;
    return *out ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

static ds_result give_heap(void *user, void *ptr, size_t size, ds_stream s) {
    (void)user, (void)size, (void)s;
    free(ptr);
    return DS_OK;
}

static void test_resources_refuse_streams_and_pools_that_are_gone(void **state) {
    ds_resource r, base;
    ds_pool pool;
    ds_resource_stats stats;
    void *p = NULL;
    (void)state;
    ok(ds_resource_create_driver_pool(&r));
    refused(ds_resource_alloc(&r, 1000, 0, destroyed_stream(), &p), DS_ERR_INVALID_HANDLE,
            "stream");
    ok(ds_resource_destroy(&r));
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool));
    ok(ds_pool_destroy(pool));
    refused(ds_resource_create_pool(pool, &r), DS_ERR_INVALID_HANDLE, "pool");
    refused(ds_pool_check_live(pool, NULL, 0), DS_ERR_INVALID_HANDLE, "pool");
    ok(ds_resource_create_functions(take_heap, give_heap, NULL, &base));
    refused(ds_resource_push_stats(&base), DS_ERR_INVALID_VALUE,
            "not created by ds_resource_create_stats");
    refused(ds_resource_pop_stats(&(ds_resource){ 0 }, &stats), DS_ERR_INVALID_VALUE, "resource");
    ok(ds_resource_destroy(&base));
}

/* Memory of an aligned resource that is never freed: the record of its place goes with devstream.
   The memory itself is the program's. */
static void test_an_aligned_block_that_is_never_freed(void **state) {
    ds_resource base, aligned;
    void *p = NULL, *q = NULL;
    (void)state;
    ok(ds_resource_create_functions(take_heap, give_heap, NULL, &base));
    ok(ds_resource_create_aligned(&base, 1 << 16, 0, &aligned));
    ok(ds_resource_alloc(&aligned, 2000, 0, stream, &q));
    ok(ds_resource_alloc(&aligned, 1000, 0, stream, &p));
    void *kept = taken;
    assert_int_equal((uintptr_t)p % (1 << 16), 0);
    ok(ds_resource_free(&aligned, q, 2000, stream));
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
    free(kept);
}

/* ---- pools ----------------------------------------------------------------------------------- */

static int64_t oversize(ds_pool pool) {
    ds_mem_stats stats;
    int64_t n = -1;
    ok(ds_pool_get_stats(pool, &stats));
    ok(ds_mem_stats_get_by_name(&stats, "oversize_allocations.current", &n));
    return n;
}

static void test_a_restore_counts_oversize_blocks(void **state) {
    ds_mem_config c = ds_mem_config_default();
    ds_pool pool;
    ds_pool_checkpoint *with, *without;
    void *p;
    (void)state;
    c.expandable_segments = 0;
    c.max_split_size = 20 * MIB;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .config = &c }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 30 * MIB, .stream = stream, .pool = pool },
                         &p));
    assert_int_equal(oversize(pool), 1);
    ok(ds_pool_save(pool, &with));
    ok(ds_mem_free(p));
    assert_int_equal(oversize(pool), 0);
    ok(ds_pool_save(pool, &without));
    ok(ds_pool_restore(pool, with, NULL, NULL));
    assert_int_equal(oversize(pool), 1);
    ok(ds_pool_restore(pool, without, NULL, NULL));
    assert_int_equal(oversize(pool), 0);
    ds_pool_checkpoint_destroy(with);
    ds_pool_checkpoint_destroy(without);
    ok(ds_mem_validate(ds_cpu(0)));
    ok(ds_pool_destroy(pool));
}

static void test_a_checkpoint_refuses_exported_memory(void **state) {
    ds_pool pool;
    ds_pool_checkpoint *saved;
    ds_ipc_mem_handle handle;
    void *p;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = MIB, .stream = stream, .pool = pool }, &p));
    ok(ds_mem_export(p, &handle));
    refused(ds_pool_save(pool, &saved), DS_ERR_ILLEGAL_STATE, "used by other processes");
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
}

/* More handles of one native stream than an arena keeps. */
static void test_a_native_stream_with_many_handles(void **state) {
    enum { HANDLES = 20 };

    ds_stream_native native;
    ds_stream handle[HANDLES];
    void *p[HANDLES], *again;
    (void)state;
    ok(ds_stream_export(stream, &native));
    for (int i = 0; i < HANDLES; i++) {
        ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &handle[i]));
        ok(ds_mem_alloc(1000, handle[i], &p[i]));
    }
    void *last = p[HANDLES - 1];
    ok(ds_mem_free(last));
    ok(ds_mem_alloc(1000, handle[0], &again)); /* the same native stream: no wait is necessary */
    assert_ptr_equal(again, last);
    p[HANDLES - 1] = again;
    for (int i = 0; i < HANDLES; i++) {
        ok(ds_mem_free(p[i]));
        ok(ds_stream_destroy(handle[i]));
    }
    ok(ds_mem_validate(ds_cpu(0)));
}

/* ---- captures -------------------------------------------------------------------------------- */

static void test_a_use_in_a_capture_of_ordinary_memory(void **state) {
    ds_stream other;
    ds_graph g;
    void *p, *q;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &other));
    ok(ds_mem_alloc(1000, stream, &p));
    ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
    ok(ds_mem_record_use(p, other)); /* orders nothing: the graph's launches are not known */
    ok(ds_capture_end(other, &g));
    ok(ds_mem_free(p));
    ok(ds_mem_alloc(1000, stream, &q));
    ok(ds_mem_free(q));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(other));
    ok(ds_mem_validate(ds_cpu(0)));
}

static void test_pinned_memory_in_captures_is_refused_where_it_must_be(void **state) {
    char stack[8];
    ds_graph g;
    void *p[2], *q = NULL;
    (void)state;
    ok(ds_mem_pinned_set_limit(4 * MIB));
    for (int i = 0; i < 2; i++)
        ok(ds_mem_pinned_alloc(2 * MIB, &p[i]));
    refused(ds_mem_pinned_record_use(p[0], destroyed_stream()), DS_ERR_INVALID_HANDLE, "stream");
    refused(ds_mem_pinned_record_use(stack, stream), DS_ERR_INVALID_VALUE, "not inside a live");
    for (int i = 0; i < 2; i++)
        ok(ds_mem_pinned_free(p[i]));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    refused(ds_mem_pinned_record_use(stack, stream), DS_ERR_INVALID_VALUE, "live pinned block");
    refused(ds_mem_pinned_alloc(4 * MIB, &q), DS_ERR_LIMIT_EXCEEDED,
            "cached memory is not freed while a capture is open");
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
    ok(ds_mem_pinned_alloc(4 * MIB, &q));
    ok(ds_mem_pinned_free(q));
}

/* ---- calls at the wrong place ---------------------------------------------------------------- */

static ds_result in_user_code;
static char said[400];

static void ask_limit(void *user) {
    size_t limit;
    (void)user;
    in_user_code = ds_mem_get_limit(ds_cpu(1), &limit);
    snprintf(said, sizeof said, "%s", ds_error_get_last());
}

static void test_the_first_use_of_a_device_in_user_code(void **state) {
    size_t limit;
    (void)state;
    ok(ds_stream_launch_host_func(stream, ask_limit, NULL, NULL));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(in_user_code, DS_ERR_NOT_PERMITTED);
    assert_non_null(strstr(said, "has not been used on cpu:1"));
    ok(ds_mem_get_limit(ds_cpu(1), &limit));
    ok(ds_stream_launch_host_func(stream, ask_limit, NULL, NULL));
    ok(ds_stream_synchronize(stream));
    assert_int_equal(in_user_code, DS_OK);
}

static void test_waits_that_the_program_forbids(void **state) {
    size_t released;
    (void)state;
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_ERROR));
    refused(ds_mem_empty_stream_cache(stream, &released), DS_ERR_WOULD_SYNCHRONIZE,
            "waits for blocks");
    ok(ds_sync_debug_set_mode(DS_SYNC_DEBUG_DEFAULT));
    ok(ds_mem_empty_stream_cache(stream, &released));
}

#ifdef DEVSTREAM_CUDA
static void test_memory_and_streams_of_two_drivers(void **state) {
    ds_stream gpu;
    void *p;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &gpu));
    ok(ds_mem_alloc(1000, stream, &p));
    refused(ds_mem_record_use(p, gpu), DS_ERR_CROSS_DRIVER, "different drivers");
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(gpu));
}
#endif

/* ---- the report of a shortage ---------------------------------------------------------------- */

static void test_a_report_with_very_many_owners(void **state) {
    enum { OWNERS = 100000 };

    static char label[OWNERS][16];
    static void *p[OWNERS];
    void *q = NULL;
    (void)state;
    for (int i = 0; i < OWNERS; i++) {
        snprintf(label[i], sizeof label[i], "owner %d", i);
        ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 500, .stream = stream, .label = label[i] },
                             &p[i]));
    }
    refused(ds_mem_alloc(60 * MIB, stream, &q), DS_ERR_OUT_OF_MEMORY, "60");
    const char *report = ds_mem_get_last_report();
    if (!strstr(report, "(many others)"))
        fail_msg("the report is: %s", report);
    for (int i = 0; i < OWNERS; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_mem_write_summary(ds_cpu(0), 0, discard, NULL));
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        T(options_that_contradict_each_other),
        T(a_snapshot_that_cannot_be_written),
        T(resources_refuse_streams_and_pools_that_are_gone),
        T(an_aligned_block_that_is_never_freed),
        T(a_restore_counts_oversize_blocks),
        T(a_checkpoint_refuses_exported_memory),
        T(a_native_stream_with_many_handles),
        T(a_use_in_a_capture_of_ordinary_memory),
        T(pinned_memory_in_captures_is_refused_where_it_must_be),
        T(the_first_use_of_a_device_in_user_code),
        T(waits_that_the_program_forbids),
#ifdef DEVSTREAM_CUDA
        T(memory_and_streams_of_two_drivers),
#endif
        T(a_report_with_very_many_owners),
    };
    return cmocka_run_group_tests_name("memory that is refused", tests, NULL, NULL);
}
