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
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = SCARCE, .layers = "fault" }));
    ok(ds_device_set_current(ds_cpu(0)));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
    return 0;
}

static int end(void **state) {
    (void)state;
    scarce_begin(-1);
    ok(ds__fault_parse(NULL));
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

static ds_stream another_stream(void) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    return s;
}

static void *block_in(ds_pool pool, size_t size, ds_stream s) {
    void *p = NULL;
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = size, .stream = s, .pool = pool }, &p));
    return p;
}

static int discard(const char *text, size_t size, void *user) {
    (void)text, (void)user;
    return size > (size_t)1 << 40;
}

static int no_shortage(ds_device device, size_t size, void *user) {
    (void)device, (void)size, (void)user;
    return 0;
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
        { "roundup_power2_divisions:[64,8]", "':' and the divisions" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused(ds_mem_configure_text(bad[i].text), DS_ERR_INVALID_VALUE, bad[i].words);
}

/* Each call that uses the allocator first reads the environment, and refuses a bad text. */
static void test_each_first_call_refuses_a_bad_environment(void **state) {
    static const char words[] = "(in the environment's DEVSTREAM_ALLOC_CONF)";
    ds_mem_config c;
    ds_ipc_mem_handle handle;
    ds_pool pool;
    ds_resource r;
    double fraction = 0;
    size_t bytes = 0;
    void *p = NULL;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool));
    ok(ds_mem_export(block_in(pool, MIB, stream), &handle));
    ok(ds_shutdown());
    assert_int_equal(begin(state), 0);
    assert_int_equal(setenv("DEVSTREAM_ALLOC_CONF", "no_such_option:1", 1), 0);

    refused(ds_mem_configure_text("debug:1"), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_get_config(ds_cpu(0), &c), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_set_limit(ds_cpu(0), MIB), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_get_limit(ds_cpu(0), &bytes), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_get_fraction(ds_cpu(0), &fraction), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_add_shortage_callback(no_shortage, NULL), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_history_start(NULL), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_pinned_set_limit(MIB), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_pinned_alloc(1000, &p), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_alloc(1000, stream, &p), DS_ERR_INVALID_VALUE, words);
    refused(ds_resource_create_device(ds_cpu(0), &r), DS_ERR_INVALID_VALUE, words);
    refused(ds_mem_import(ds_cpu(0), &handle, stream, &p), DS_ERR_INVALID_VALUE, words);

    assert_int_equal(unsetenv("DEVSTREAM_ALLOC_CONF"), 0);
    ok(ds_mem_alloc(1000, stream, &p)); /* a corrected environment is read */
    ok(ds_mem_free(p));
}

static void test_a_backend_stays_while_blocks_are_live(void **state) {
    ds_mem_config c;
    void *p;
    (void)state;
    ok(ds_mem_alloc(1000, stream, &p));
    refused(ds_mem_configure_text("debug:1,backend:cudaMallocAsync"), DS_ERR_ILLEGAL_STATE,
            "while blocks are allocated");
    ok(ds_mem_get_config(ds_cpu(0), &c));
    assert_int_equal(c.debug, 0); /* no option of the text was set */
    ok(ds_mem_free(p));
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
    ok(ds_resource_alloc(&r, 1000, 0, stream, &p));
    refused(ds_resource_free(&r, p, 1000, destroyed_stream()), DS_ERR_INVALID_HANDLE, "stream");
    ok(ds_resource_free(&r, p, 1000, stream)); /* the memory is still there */
    ok(ds_resource_destroy(&r));
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 1000, .stream = destroyed_stream() }, &p),
            DS_ERR_INVALID_HANDLE, "stream");
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

/* The text of a snapshot. */
typedef struct text {
    char *at;
    size_t size;
} text;

static int append(const char *from, size_t size, void *user) {
    text *t = user;
    t->at = realloc(t->at, t->size + size + 1);
    assert_non_null(t->at);
    memcpy(t->at + t->size, from, size);
    t->size += size;
    t->at[t->size] = 0;
    return 0;
}

static text snapshot(void) {
    text t = { 0 };
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, append, &t));
    return t;
}

static size_t occurrences(const text *t, const char *words) {
    size_t count = 0;
    for (const char *at = t->at; (at = strstr(at, words)); at++)
        count++;
    return count;
}

static size_t occurrences_of_bytes(const text *t, const char *bytes, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i + size <= t->size; i++)
        count += memcmp(t->at + i, bytes, size) == 0;
    return count;
}

/* The table of texts grows several times. A text that many blocks have is in it once, which the
   binary format shows. */
static void test_a_snapshot_has_every_label_once(void **state) {
    enum { LABELS = 3000 };

    static char label[LABELS][16];
    static void *p[2][LABELS];
    text t = { 0 };
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < LABELS; i++) {
            snprintf(label[i], sizeof label[i], "label %05d", i);
            ok(ds_mem_alloc_with(
                &(ds_mem_request){ .size = 500, .stream = stream, .label = label[i] }, &p[k][i]));
        }
    ok(ds_mem_write_snapshot(DS_SNAPSHOT_PICKLE, 0, (ds_pool){ 0 }, append, &t));
    for (int i = 0; i < LABELS; i += 17) {
        size_t count = occurrences_of_bytes(&t, label[i], strlen(label[i]));
        if (count != 1)
            fail_msg("%s occurs %zu times", label[i], count);
    }
    free(t.at);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < LABELS; i++)
            ok(ds_mem_free(p[k][i]));
}

/* The events of two pools that are gone keep two names, which are not the new pool's. */
static void test_a_snapshot_has_events_of_pools_that_are_gone(void **state) {
    ds_pool pool[3];
    char name[3][48];
    (void)state;
    ok(ds_mem_history_start(NULL));
    for (int i = 0; i < 3; i++) {
        ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool[i]));
        ok(ds_mem_free(block_in(pool[i], 1000, stream)));
        snprintf(name[i], sizeof name[i], "[0,%d]", (int)(pool[i].id >> 32));
        if (i == 2)
            break;
        ok(ds_pool_destroy(pool[i]));
        ok(ds_mem_empty_cache(ds_cpu(0), NULL));
    }
    assert_int_equal((uint32_t)pool[0].id, (uint32_t)pool[2].id); /* in the same object */
    text t = snapshot();
    for (int i = 0; i < 3; i++)
        if (occurrences(&t, name[i]) < 3) /* allocated, freed, and the segment's events */
            fail_msg("%s is not in: %s", name[i], t.at);
    for (long n = 0;; n++) {
        text again = { 0 };
        scarce_begin(n);
        ds_result r = ds_mem_write_snapshot(DS_SNAPSHOT_JSON, 0, (ds_pool){ 0 }, append, &again);
        int hit = scarce_end();
        free(again.at);
        if (!hit) {
            ok(r);
            break;
        }
        refused(r, DS_ERR_OUT_OF_MEMORY, "no memory for a snapshot");
    }
    free(t.at);
    ok(ds_pool_destroy(pool[2]));
}

static void count_block(const ds_mem_block *block, void *user) {
    (void)block;
    ++*(int *)user;
}

static void test_a_device_that_was_not_used_has_no_blocks(void **state) {
    int count = 0;
    void *p;
    (void)state;
    ok(ds_mem_for_each_block(ds_cpu(1), count_block, &count));
    assert_int_equal(count, 0);
    ok(ds_mem_alloc(1000, stream, &p));
    ok(ds_mem_for_each_block(ds_cpu(0), count_block, &count));
    assert_true(count > 0);
    ok(ds_mem_free(p));
}

/* ---- upstreams ---- */

static int taken_count, given_count;

static void *take_near(ptrdiff_t size, int device, void *native) {
    (void)device, (void)native;
    taken_count++;
    return aligned_alloc(512, (size_t)size);
}

static void give_near(void *ptr, ptrdiff_t size, int device, void *native) {
    (void)size, (void)device, (void)native;
    given_count++;
    free(ptr);
}

static char warned[400]; /* the last warning */

static void keep_warning(const ds_log_item *item, void *user) {
    (void)user;
    if (item->level == DS_LOG_WARNING)
        snprintf(warned, sizeof warned, "%s", item->text);
}

static int keeps_memory; /* 1: give_or_keep fails */

static ds_result give_or_keep(void *user, void *ptr, size_t size, ds_stream s) {
    return keeps_memory ? DS_ERR_ILLEGAL_STATE : give_heap(user, ptr, size, s);
}

static void test_an_upstream_that_does_not_take_its_memory_back(void **state) {
    ds_resource base;
    ds_pool pool;
    size_t released = 0;
    (void)state;
    ok(ds_shutdown());
    ok(ds_init(&(ds_init_desc){
        .allocator = SCARCE, .log_fn = keep_warning, .log_level = DS_LOG_WARNING }));
    stream = another_stream();
    ok(ds_resource_create_functions(take_heap, give_or_keep, NULL, &base));
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .upstream = &base }, &pool));
    void *p = block_in(pool, 1000, stream);
    ok(ds_mem_free(p));
    void *kept = taken;
    keeps_memory = 1;

    ok(ds_pool_empty_cache(pool, &released));

    keeps_memory = 0;
    if (!strstr(warned, "could not be freed"))
        fail_msg("the warning is: %s", warned);
    assert_int_not_equal(released, 0);
    free(kept);
    p = block_in(pool, 1000, stream); /* the pool takes other memory */
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_mem_empty_cache(ds_cpu(0), NULL));
    ok(ds_resource_destroy(&base));
}

/* The bookkeeping of an upstream's memory fails: the upstream has its memory back. */
static void test_an_upstream_has_its_memory_back_without_host_memory(void **state) {
    ds_pool pool;
    void *p = NULL;
    int refusals = 0;
    (void)state;
    for (long n = 0;; n++) {
        taken_count = given_count = 0;
        ok(ds_pool_create(
            &(ds_pool_desc){ .device = ds_cpu(0), .alloc_fn = take_near, .free_fn = give_near },
            &pool));
        ds_mem_request request = { .size = 1000, .stream = stream, .pool = pool };
        scarce_begin(n);
        ds_result r = ds_mem_alloc_with(&request, &p);
        int hit = scarce_end();
        if (r < 0) {
            refused(r, DS_ERR_OUT_OF_MEMORY, "");
            assert_int_equal(given_count, taken_count);
            refusals++;
        } else {
            ok(ds_mem_free(p));
        }
        ok(ds_pool_destroy(pool));
        ok(ds_mem_empty_cache(ds_cpu(0), NULL));
        assert_int_equal(given_count, taken_count);
        ok(ds_shutdown());
        assert_int_equal(begin(state), 0);
        if (!hit)
            break;
    }
    assert_true(refusals > 1);
}

static void *native_seen;

static void *take_with_native(ptrdiff_t size, int device, void *native) {
    (void)device;
    native_seen = native;
    return aligned_alloc(512, (size_t)size);
}

static void test_an_upstream_without_the_drivers_stream(void **state) {
    ds_pool pool;
    (void)state;
    ok(ds_pool_create(
        &(ds_pool_desc){ .device = ds_cpu(0), .alloc_fn = take_with_native, .free_fn = give_near },
        &pool));
    void *p = block_in(pool, 1000, stream);
    assert_non_null(native_seen);
    ok(ds__fault_parse("stream_native:1"));
    void *q = block_in(pool, 100 * MIB, stream);
    assert_null(native_seen);
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_pool_destroy(pool));
}

/* ---- addresses ---- */

/* Gives the address of no process: the highest bits are set. */
static void *take_far(ptrdiff_t size, int device, void *native) {
    (void)size, (void)device, (void)native;
    taken_count++;
    return (void *)((uintptr_t)1 << 60);
}

static void give_far(void *ptr, ptrdiff_t size, int device, void *native) {
    (void)size, (void)device, (void)native;
    given_count += ptr == (void *)((uintptr_t)1 << 60);
}

static void test_addresses_outside_of_user_space(void **state) {
    void *far_off = (void *)((uintptr_t)1 << 60), *p = NULL;
    ds_pool pool;
    (void)state;
    taken_count = given_count = 0;
    refused(ds_mem_free(far_off), DS_ERR_INVALID_VALUE, "live");
    refused(ds_mem_record_use(far_off, stream), DS_ERR_INVALID_VALUE, "live");
    ok(ds_pool_create(
        &(ds_pool_desc){ .device = ds_cpu(0), .alloc_fn = take_far, .free_fn = give_far }, &pool));
    refused(
        ds_mem_alloc_with(&(ds_mem_request){ .size = 1000, .stream = stream, .pool = pool }, &p),
        DS_ERR_OUT_OF_MEMORY, "1000");
    assert_int_not_equal(taken_count, 0);
    assert_int_equal(given_count, taken_count); /* the upstream has its memory back */
    ok(ds_mem_validate(ds_cpu(0)));
    ok(ds_pool_destroy(pool));
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

/* A pool sees each handle of a native stream many times, and forgets each at its end. */
static void test_a_pool_and_two_handles_of_a_native_stream(void **state) {
    ds_stream_native native;
    ds_stream handle[2], other = another_stream();
    ds_mem_stats before, after;
    ds_pool pool;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool));
    ok(ds_stream_export(stream, &native));
    for (int i = 0; i < 2; i++)
        ok(ds_stream_wrap(&native, DS_BORROW, NULL, NULL, &handle[i]));
    for (int i = 0; i < 8; i++)
        ok(ds_mem_free(block_in(pool, 20 * MIB, handle[i % 2])));

    ok(ds_stream_destroy(handle[1]));
    ok(ds_stream_destroy(handle[0]));

    /* without handles the stream has ended, and any stream takes its memory */
    ok(ds_pool_get_stats(pool, &before));
    void *p = block_in(pool, 20 * MIB, other);
    ok(ds_pool_get_stats(pool, &after));
    assert_int_equal(after.num_device_alloc, before.num_device_alloc);
    ok(ds_mem_free(p));
    ok(ds_mem_validate(ds_cpu(0)));
    ok(ds_pool_destroy(pool));
}

/* A new pool takes the object of one that is gone. */
static void test_a_pool_is_not_created_without_host_memory(void **state) {
    ds_mem_config c = ds_mem_config_default();
    ds_pool pool;
    int refusals = 0;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool));
    ok(ds_pool_destroy(pool));
    for (long n = 0;; n++) {
        c.max_split_size = (size_t)(30 + n) * MIB; /* a policy that is not stored yet */
        scarce_begin(n);
        ds_result r = ds_pool_create(
            &(ds_pool_desc){ .device = ds_cpu(0), .config = &c, .label = "a label" }, &pool);
        if (!scarce_end()) {
            ok(r);
            break;
        }
        refused(r, DS_ERR_OUT_OF_MEMORY, "no memory for a pool");
        refusals++;
    }
    assert_true(refusals > 1);
    ok(ds_mem_free(block_in(pool, 1000, stream)));
    ok(ds_pool_destroy(pool));
}

static void test_a_checkpoint_in_a_capture_queries_nothing(void **state) {
    ds_stream other = another_stream();
    ds_pool_checkpoint *saved;
    ds_pool pool;
    ds_graph g;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool));
    void *p = block_in(pool, 1000, stream);
    ok(ds_mem_record_use(p, other));
    ok(ds_stream_synchronize(other));
    ok(ds_mem_free(p));
    ok(ds_capture_begin(other, DS_CAPTURE_GLOBAL));
    refused(ds_pool_save(pool, &saved), DS_ERR_ILLEGAL_STATE, "other streams may still use it");
    ok(ds_capture_end(other, &g)); /* the capture is valid */
    ok(ds_pool_save(pool, &saved));
    ds_pool_checkpoint_destroy(saved);
    ok(ds_graph_destroy(g));
    ok(ds_pool_destroy(pool));
}

static void test_a_restore_without_host_memory_changes_nothing(void **state) {
    enum { BLOCKS = 300 };

    static void *p[BLOCKS];
    ds_pool_checkpoint *saved;
    ds_pool pool;
    int refusals = 0;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool));
    for (int i = 0; i < BLOCKS; i++)
        p[i] = block_in(pool, 1000, stream);
    ok(ds_pool_save(pool, &saved));
    for (int i = 0; i < BLOCKS; i++)
        ok(ds_mem_free(p[i]));
    for (long n = 0;; n++) {
        scarce_begin(n);
        ds_result r = ds_pool_restore(pool, saved, NULL, NULL);
        if (!scarce_end()) {
            ok(r);
            break;
        }
        refused(r, DS_ERR_OUT_OF_MEMORY, "no memory to restore 300 blocks");
        ok(ds_pool_check_live(pool, NULL, 0));
        ok(ds_mem_validate(ds_cpu(0)));
        refusals++;
    }
    assert_true(refusals > 2); /* also for the descriptions of the blocks */
    ok(ds_pool_check_live(pool, p, BLOCKS));
    ds_pool_checkpoint_destroy(saved);
    for (int i = 0; i < BLOCKS; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_mem_validate(ds_cpu(0)));
    ok(ds_pool_destroy(pool));
}

/* An aligned block is cut out of a larger one, for which host memory is needed now and then. */
static void test_an_aligned_block_without_host_memory(void **state) {
    enum { BLOCKS = 300 };

    static void *p[BLOCKS];
    int refusals = 0;
    (void)state;
    ok(ds_mem_alloc(1000, stream, &p[0]));
    for (int i = 1; i < BLOCKS; i++) {
        ds_mem_request request = { .size = 1000, .stream = stream, .alignment = 4096 };
        size_t before = ds_mem_get_allocated(ds_cpu(0));
        scarce_begin(0);
        ds_result r = ds_mem_alloc_with(&request, &p[i]);
        if (!scarce_end())
            ok(r);
        if (r < 0) {
            refused(r, DS_ERR_OUT_OF_MEMORY, "no memory");
            assert_int_equal(ds_mem_get_allocated(ds_cpu(0)), before);
            ok(ds_mem_validate(ds_cpu(0)));
            ok(ds_mem_alloc_with(&request, &p[i]));
            refusals++;
        }
        assert_int_equal((uintptr_t)p[i] % 4096, 0);
    }
    assert_true(refusals > 0);
    for (int i = 0; i < BLOCKS; i++)
        ok(ds_mem_free(p[i]));
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

static void test_a_pool_in_a_capture_without_host_memory(void **state) {
    ds_pool pool;
    ds_graph g;
    void *p = NULL;
    int refusals = 0;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0) }, &pool));
    ok(ds_mem_free(block_in(pool, 1000, stream)));
    ds_mem_request request = { .size = 1000, .stream = stream, .pool = pool };
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    for (long n = 0;; n++) {
        scarce_begin(n);
        ds_result r = ds_mem_alloc_with(&request, &p);
        if (!scarce_end()) {
            ok(r);
            break;
        }
        refused(r, DS_ERR_OUT_OF_MEMORY, "memory");
        assert_null(p);
        refusals++;
    }
    assert_true(refusals > 0);
    ok(ds_mem_free(p));
    ok(ds_capture_end(stream, &g));
    ok(ds_graph_destroy(g));
    ok(ds_pool_destroy(pool));
}

static void test_pinned_memory_in_a_capture_without_host_memory(void **state) {
    ds_graph g;
    void *p;
    int refusals = 0;
    (void)state;
    ok(ds_mem_pinned_alloc(1000, &p));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    refused(ds_mem_pinned_record_use(p, destroyed_stream()), DS_ERR_INVALID_HANDLE, "stream");
    for (long n = 0;; n++) {
        DS_IGNORE(ds_mem_record_use(NULL, stream)); /* no error of an earlier call is left */
        scarce_begin(n);
        ds_result r = ds_mem_pinned_record_use(p, stream);
        if (!scarce_end()) {
            ok(r);
            break;
        }
        refused(r, DS_ERR_OUT_OF_MEMORY, "memory");
        assert_non_null(strstr(ds_error_get_last(), "ds_mem_pinned_record_use"));
        refusals++;
    }
    assert_true(refusals > 1);
    ok(ds_capture_end(stream, &g));
    ok(ds_mem_pinned_free(p));
    ok(ds_graph_destroy(g));
}

/* ---- pinned memory --------------------------------------------------------------------------- */

/* A request of a power of two takes a block of exactly this size, and leaves others that are in
   the same bin. */
static void test_a_power_of_two_takes_pinned_memory_of_its_size(void **state) {
    (void)state;
    for (int order = 0; order < 3; order++) { /* 2: there is no block of the size */
        void *p[2], *q;
        ok(ds_mem_configure_text("pinned_max_round_threshold_mb:1"));
        ok(ds_mem_pinned_alloc(8 * MIB, &p[0]));
        ok(ds_mem_pinned_alloc(8 * MIB + 4096, &p[1]));
        ok(ds_mem_pinned_free(p[order != 0]));
        if (order < 2)
            ok(ds_mem_pinned_free(p[!order]));
        ok(ds_mem_configure_text("pinned_max_round_threshold_mb:64"));

        ok(ds_mem_pinned_alloc(8 * MIB, &q));

        if (order < 2)
            assert_ptr_equal(q, p[0]);
        else
            assert_true(q != p[0] && q != p[1]);
        ok(ds_mem_pinned_free(q));
        if (order == 2)
            ok(ds_mem_pinned_free(p[0]));
        ok(ds_mem_pinned_empty_cache(NULL));
    }
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

/* ---- other processes ------------------------------------------------------------------------- */

static void test_exports_and_imports_with_a_stream_that_is_gone(void **state) {
    ds_stream s = another_stream();
    ds_ipc_mem_handle handle;
    ds_pool pool;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool));
    void *p = block_in(pool, MIB, s), *q = block_in(pool, MIB, s);
    ok(ds_mem_export(q, &handle));
    ok(ds_fill(p, 7, 1, MIB, s));
    ok(ds_stream_destroy(s));

    ok(ds_mem_export(p, &handle)); /* waits for the work of the stream */
    ok(ds_mem_export(q, &handle));

    assert_int_equal(((unsigned char *)p)[MIB - 1], 7);
    refused(ds_mem_import_close(p, s), DS_ERR_INVALID_HANDLE, "stream");
    ok(ds_mem_free(p));
    ok(ds_mem_free(q));
    ok(ds_pool_destroy(pool));
}

static void test_an_export_without_an_event_leaves_nothing(void **state) {
    ds_ipc_mem_handle handle;
    ds_pool pool;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool));
    void *p = block_in(pool, MIB, stream);
    ok(ds__fault_parse("event_create:1"));
    refused(ds_mem_export(p, &handle), DS_ERR_DRIVER, "injected fault");
    ok(ds_mem_free(p)); /* no other process can have it */
    assert_ptr_equal(block_in(pool, MIB, stream), p);
    int refusals = 0;
    for (long n = 0;; n++) {
        scarce_begin(n);
        ds_result r = ds_mem_export(p, &handle);
        if (!scarce_end()) {
            ok(r);
            break;
        }
        refused(r, DS_ERR_OUT_OF_MEMORY, "memory");
        ok(ds_mem_free(p));
        assert_ptr_equal(block_in(pool, MIB, stream), p);
        refusals++;
    }
    assert_true(refusals > 1);
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
}

/* ---- the driver fails ------------------------------------------------------------------------ */

static void test_a_shareable_segment_stays_if_its_device_fails(void **state) {
    ds_pool pool;
    size_t released = 1;
    (void)state;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .shareable = 1 }, &pool));
    void *p = block_in(pool, MIB, stream);
    ok(ds_mem_free(p));
    ok(ds__fault_parse("memory_wait:1"));
    ok(ds_pool_empty_cache(pool, &released));
    assert_int_equal(released, 0);
    ok(ds_mem_validate(ds_cpu(0)));
    assert_ptr_equal(block_in(pool, MIB, stream), p);
    ok(ds_mem_free(p));
    ok(ds_pool_empty_cache(pool, &released));
    assert_int_not_equal(released, 0);
    ok(ds_pool_destroy(pool));
}

static void test_a_block_without_its_guard_is_not_given(void **state) {
    void *p = NULL;
    (void)state;
    ok(ds_mem_configure_text("backend:uncached,guard_bytes:512"));
    ok(ds__fault_parse("submit:1"));
    refused(ds_mem_alloc(1000, stream, &p), DS_ERR_DRIVER, "injected fault");
    assert_null(p);
    assert_int_equal(ds_mem_get_allocated(ds_cpu(0)), 0);
    ok(ds_mem_validate(ds_cpu(0)));
    ok(ds_mem_alloc(1000, stream, &p));
    ok(ds_mem_free(p));
    ok(ds_mem_configure_text("backend:native"));
}

/* Memory of a stream that has ended goes back on the allocator's own stream. */
static void test_memory_stays_without_the_allocators_own_stream(void **state) {
    ds_stream s = another_stream();
    void *p;
    (void)state;
    ok(ds_mem_configure_text("backend:cudaMallocAsync"));
    ok(ds_mem_alloc(MIB, s, &p));
    ok(ds_stream_destroy(s));
    ok(ds__fault_parse("stream_create:1"));
    ok(ds_mem_free(p));
    assert_int_equal(ds_mem_get_reserved(ds_cpu(0)), MIB);
    ok(ds_mem_validate(ds_cpu(0)));
    ok(ds_mem_empty_cache(ds_cpu(0), NULL));
    assert_int_equal(ds_mem_get_reserved(ds_cpu(0)), 0);
    ok(ds_mem_configure_text("backend:native"));
}

static void test_the_drivers_pool_that_tells_nothing(void **state) {
    size_t reserved = 1, used = 1;
    (void)state;
    ok(ds__fault_parse("async_info:1"));
    refused(ds_mem_get_driver_pool_info(ds_cpu(0), &reserved, &used), DS_ERR_DRIVER,
            "injected fault");
    assert_int_equal(reserved + used, 0);
}

#ifdef DEVSTREAM_CUDA
/* Memory that the driver's pool keeps counts for the limit. */
static void test_a_limit_covers_what_the_drivers_pool_keeps(void **state) {
    ds_mem_config c = ds_mem_config_default();
    ds_stream gpu;
    size_t reserved = 0, used = 0;
    void *p, *q = NULL;
    (void)state;
    c.backend = DS_MEM_DRIVER_POOL;
    ok(ds_mem_configure(ds_cuda(0), &c));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(0) }, &gpu));
    ok(ds_mem_alloc(20 * MIB, gpu, &p));
    ok(ds_mem_free(p));
    ok(ds_mem_get_driver_pool_info(ds_cuda(0), &reserved, &used));
    assert_int_equal(reserved, 20 * MIB);
    ok(ds_mem_set_limit(ds_cuda(0), 10 * MIB));
    refused(ds_mem_alloc(30 * MIB, gpu, &q), DS_ERR_LIMIT_EXCEEDED, "limit");
    ok(ds_mem_alloc(4 * MIB, gpu, &q));
    ok(ds_mem_get_driver_pool_info(ds_cuda(0), &reserved, &used));
    if (reserved > 10 * MIB)
        fail_msg("the driver's pool has %zu bytes", reserved);
    ok(ds_mem_free(q));
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

static void test_a_report_names_blocks_without_an_owner(void **state) {
    void *p, *q = NULL;
    (void)state;
    ok((ds_mem_alloc)(40 * MIB, stream, &p)); /* by a function, which has no call site */
    refused(ds_mem_alloc(60 * MIB, stream, &q), DS_ERR_OUT_OF_MEMORY, "60");
    const char *report = ds_mem_get_last_report();
    if (!strstr(report, "(unknown)"))
        fail_msg("the report is: %s", report);
    ok(ds_mem_free(p));
}

static void test_a_shortage_in_a_file_with_a_long_name_has_its_hint(void **state) {
    char file[sizeof ds__tls.error - 300]; /* the hint needs 200 characters behind it */
    void *p, *q = NULL;
    (void)state;
    ok(ds_mem_alloc(40 * MIB, stream, &p));
    for (size_t size = 50; size < sizeof file; size += 90) {
        memset(file, 'f', size);
        file[size] = 0;
        refused(ds_at_mem_alloc(file, 7, 60 * MIB, stream, &q), DS_ERR_OUT_OF_MEMORY,
                "; check this owner first");
    }
    ok(ds_mem_free(p));
}

/* A pool that a graph uses keeps its memory, also a block that is too large to be split. */
static void test_a_large_block_of_a_graphs_pool_is_not_split(void **state) {
    ds_mem_config c = ds_mem_config_default();
    ds_pool pool;
    ds_graph g;
    void *p = NULL;
    (void)state;
    c.expandable_segments = 0;
    c.max_split_size = 20 * MIB;
    ok(ds_pool_create(&(ds_pool_desc){ .device = ds_cpu(0), .config = &c, .limit = 32 * MIB },
                      &pool));
    ok(ds_mem_free(block_in(pool, 30 * MIB, stream)));
    ok(ds_capture_begin(stream, DS_CAPTURE_RELAXED));
    ok(ds_capture_set_pool(stream, pool));
    ok(ds_capture_end(stream, &g));
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 10 * MIB, .stream = stream, .pool = pool },
                              &p),
            DS_ERR_LIMIT_EXCEEDED, "is not split because of max_split_size");
    ok(ds_graph_destroy(g));
    p = block_in(pool, 10 * MIB, stream); /* now the large block goes back */
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        T(options_that_contradict_each_other),
        T(each_first_call_refuses_a_bad_environment),
        T(a_backend_stays_while_blocks_are_live),
        T(a_snapshot_that_cannot_be_written),
        T(resources_refuse_streams_and_pools_that_are_gone),
        T(an_aligned_block_that_is_never_freed),
        T(an_upstream_that_does_not_take_its_memory_back),
        T(an_upstream_has_its_memory_back_without_host_memory),
        T(an_upstream_without_the_drivers_stream),
        T(addresses_outside_of_user_space),
        T(a_restore_counts_oversize_blocks),
        T(a_checkpoint_refuses_exported_memory),
        T(a_native_stream_with_many_handles),
        T(a_pool_and_two_handles_of_a_native_stream),
        T(a_pool_is_not_created_without_host_memory),
        T(a_checkpoint_in_a_capture_queries_nothing),
        T(a_restore_without_host_memory_changes_nothing),
        T(an_aligned_block_without_host_memory),
        T(a_use_in_a_capture_of_ordinary_memory),
        T(pinned_memory_in_captures_is_refused_where_it_must_be),
        T(the_first_use_of_a_device_in_user_code),
        T(waits_that_the_program_forbids),
#ifdef DEVSTREAM_CUDA
        T(memory_and_streams_of_two_drivers),
#endif
        T(a_report_with_very_many_owners),
        T(a_snapshot_has_every_label_once),
        T(a_snapshot_has_events_of_pools_that_are_gone),
        T(a_device_that_was_not_used_has_no_blocks),
        T(a_pool_in_a_capture_without_host_memory),
        T(pinned_memory_in_a_capture_without_host_memory),
        T(a_power_of_two_takes_pinned_memory_of_its_size),
        T(exports_and_imports_with_a_stream_that_is_gone),
        T(an_export_without_an_event_leaves_nothing),
        T(a_shareable_segment_stays_if_its_device_fails),
        T(a_block_without_its_guard_is_not_given),
        T(memory_stays_without_the_allocators_own_stream),
        T(the_drivers_pool_that_tells_nothing),
#ifdef DEVSTREAM_CUDA
        T(a_limit_covers_what_the_drivers_pool_keeps),
#endif
        T(a_report_names_blocks_without_an_owner),
        T(a_shortage_in_a_file_with_a_long_name_has_its_hint),
        T(a_large_block_of_a_graphs_pool_is_not_split),
    };
    return cmocka_run_group_tests_name("memory that is refused", tests, NULL, NULL);
}
