/* Traces that zlib compresses: the same records, files that are cut off, their size, and a lack of
   memory for the compression. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The compression takes memory from the C library, the rest of devstream from `plain` here. */
static _Atomic long allocations; /* until one fails; 0: none fails */

static void *calloc_or_fail(size_t count, size_t size) {
    return allocations && --allocations == 0 ? NULL : calloc(count, size);
}

static void *realloc_or_fail(void *ptr, size_t size) {
    return allocations && --allocations == 0 ? NULL : realloc(ptr, size);
}

#define calloc(count, size) calloc_or_fail(count, size)
#define realloc(ptr, size) realloc_or_fail(ptr, size)
#define DEVSTREAM_ZLIB
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_trace.h"
#undef calloc
#undef realloc
#include "trace_file.h"
#include "unit.h"

enum { SIZE = 64, OPERATIONS = 20000 };

static char path[64];

static void begin(const char *ending) {
    static ds_cpu_desc cpu = { .devices = 1 };
    snprintf(path, sizeof path, "/tmp/devstream-zlib-%d%s", (int)getpid(), ending);
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .flags = DS_INIT_NO_CUDA, .trace = path }));
}

/* Fills on two streams that wait for each other. */
static void fills(int n) {
    ds_stream s[2];
    void *memory;
    for (int i = 0; i < 2; i++)
        ok(ds_stream_create(NULL, &s[i]));
    ok(ds_device_alloc(ds_cpu(0), SIZE, &memory));
    for (int i = 0; i < n; i++) {
        ok(ds_fill(memory, (uint32_t)i, 1, SIZE, s[i & 1]));
        if (i % 16 == 15)
            ok(ds_stream_wait_stream(s[0], s[1]));
    }
    ok(ds_stream_synchronize(s[0]));
    ok(ds_stream_synchronize(s[1]));
    ok(ds_device_free(memory));
}

static void test_pages_are_compressed(void **state) {
    (void)state;
    trace_file t;
    struct stat info;
    size_t count = 0;
    begin(".html");
    fills(OPERATIONS);
    ok(ds_shutdown());

    assert_true(trace_read(path, &t));
    assert_int_equal(stat(path, &info), 0);
    for (size_t i = 0; i < t.records; i++)
        count += t.record[i].kind == 3;
    assert_true(count <= OPERATIONS &&
                count + t.dropped >= OPERATIONS); /* waits are dropped, too */
    assert_true(t.ended);
    size_t page = 0;
    for (size_t i = 0; i < sizeof ds__trace_page / sizeof ds__trace_page[0]; i++)
        page += strlen(ds__trace_page[i]);
    /* 10^6 operations in 60 MB */
    assert_true((size_t)info.st_size - page < 60 * t.records);
    unlink(path);
}

/* Returns the events of a compressed file, of which only the first bytes are there. */
static json read_events(const char *packed, size_t size, int cut) {
    json list;
    size_t length;
    char *text = trace_inflate(packed, size, &length, 1);
    assert_true(length != SIZE_MAX);
    if (cut) { /* as a viewer does */
        while (length && text[length - 1] != '\n')
            length--;
        while (length && (text[length - 1] == '\n' || text[length - 1] == ','))
            length--;
        text[length++] = ']';
    }
    size_t wrong = json_parse(text, length, &list);
    if (wrong)
        fail_msg("wrong at byte %zu of %zu", wrong, length);
    return list;
}

static void test_compressed_events_can_be_cut(void **state) {
    (void)state;
    size_t size;
    size_t count = 0;
    begin(".json.gz");
    fills(1000);
    ok(ds_trace_flush());
    char *half = trace_read_all(path, &size);
    json before = read_events(half, size, 1);
    fills(1000);
    ok(ds_shutdown());

    char *packed = trace_read_all(path, &size);
    json list = read_events(packed, size, 0);
    for (size_t i = 0; i < list.count; i++)
        count += strcmp(json_text(&list.item[i], "cat"), "fill") == 0;
    assert_int_equal(count, 2000);
    assert_true(before.count >= 1000 && before.count < list.count);
    unlink(path);
}

static void *plain_alloc(size_t size, void *user) {
    (void)user;
    return malloc(size);
}

static void plain_free(void *ptr, void *user) {
    (void)user;
    free(ptr);
}

/* Each allocation of the compression fails once. A page without a compressor has plain records;
   other failures are reported, and the next dump is complete. */
static void test_compression_survives_a_lack_of_memory(void **state) {
    (void)state;

    static const struct {
        const char *ending;
        ds_result want[3];
    } files[] = { { ".html", { DS_OK, DS_ERR_SYSTEM, DS_OK } },
                  { ".json.gz", { DS_ERR_OUT_OF_MEMORY, DS_ERR_SYSTEM, DS_OK } } };

    static ds_cpu_desc cpu = { .devices = 1 };
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        snprintf(path, sizeof path, "/tmp/devstream-zlib-%d%s", (int)getpid(), files[f].ending);
        ok(ds_init(&(ds_init_desc){ .cpu = &cpu,
                                    .allocator = { plain_alloc, plain_free, NULL },
                                    .flags = DS_INIT_NO_CUDA,
                                    .log_level = DS_LOG_ERROR,
                                    .trace = "1" }));
        fills(10);
        ok(ds_trace_flush());
        for (long n = 1; n <= 3; n++) {
            allocations = n;
            ds_result r = ds_trace_dump(path);
            int is_over = allocations > 0; /* none has failed */
            allocations = 0;
            assert_int_equal(r, files[f].want[n - 1]);
            assert_int_equal(is_over, n == 3);
        }
        trace_file t;
        size_t size;
        if (f == 0) {
            assert_true(trace_read(path, &t));
            assert_true(t.ended && t.records >= 10);
            allocations = 1;
            ok(ds_trace_dump(path));
            assert_true(trace_read(path, &t)); /* plain records */
            assert_true(t.ended && t.records >= 10);
        } else {
            char *packed = trace_read_all(path, &size);
            json list = read_events(packed, size, 0);
            assert_true(list.count >= 10);
        }
        ok(ds_shutdown());
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_compressed),
        cmocka_unit_test(test_compressed_events_can_be_cut),
        cmocka_unit_test(test_compression_survives_a_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
