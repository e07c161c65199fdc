/* The calls of topologies and plans with wrong arguments, from inside of user code, with writers
   that stop, and when host memory runs out: what each one returns and says, and that it works
   afterwards. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "plan/plan.h"
#include "scarce.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAIR "device a b\nlink a b pcie\n"
#define PCIE8                                                                               \
    "device gpu0..7\nswitch sw0 sw1\nsocket cpu0\nlink gpu0..3 sw0 pcie\nlink gpu4..7 sw1 " \
    "pcie\nlink sw0..1 cpu0 pcie\nlink cpu0 host host\n"
#define RING4                                                                                      \
    "device g0..3\nsocket c\nlink g0 g1 nvlink\nlink g1 g2 nvlink\nlink g2 g3 nvlink\nlink g3 g0 " \
    "nvlink\nlink g0..3 c pcie 12GB/s\nlink c host host\npeer g0..3 g0..3 nvlink\n"
#define ISLANDS                                                                          \
    "device d0..35\nswitch a b c net\nlink d0..11 a nvswitch\nlink d12..23 b nvswitch\n" \
    "link d24..35 c nvswitch\nlink a net network\nlink b net network\nlink c net network\n"
#define RATES                                                                                   \
    "device a b\nlink a b nvlink 10GB/s 20GB/s 1us half\npeer a b push 2.5GB/s\npeer b a pull " \
    "2GB/s\npeer a b both 3GB/s\npeer a b latency 3us\n"

static int begin(void **state) {
    static ds_cpu_desc cpu;
    int count;
    (void)state;
    cpu = (ds_cpu_desc){ .devices = 3 };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .flags = DS_INIT_NO_CUDA, .allocator = SCARCE }));
    ok(ds_device_get_count(DS_DEVICE_CPU, &count)); /* starts the library */
    return 0;
}

static int end(void **state) {
    (void)state;
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
    return 0;
}

static ds_topology *machine(const char *text) {
    ds_topology *t;
    ok(ds_topology_create_of_text(text, &t));
    return t;
}

static int count_text(const char *text, size_t size, void *user) {
    (void)text;
    *(size_t *)user += size;
    return 0;
}

static int stop_writing(const char *text, size_t size, void *user) {
    (void)text, (void)size;
    ++*(int *)user;
    return 5;
}

/* ---- wrong arguments ---- */

static void test_topologies_without_their_arguments(void **state) {
    (void)state;
    ds_topology *t = machine(PAIR), *made = t;
    ds_cpu_fabric fabric = { .devices = 7 };
    ds_device devices[2] = { ds_cpu(0), { DS_DEVICE_HOST, 0 } };
    size_t size = 0;
    refused(ds_topology_create_of_text(NULL, &made), DS_ERR_INVALID_VALUE, "text is NULL");
    assert_null(made);
    refused(ds_topology_create_of_text(PAIR, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    made = t;
    refused(ds_topology_create_of_file(NULL, &made), DS_ERR_INVALID_VALUE, "path is NULL");
    assert_null(made);
    refused(ds_topology_create_of_file("/dev/null", NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    made = t;
    refused(ds_topology_create_of_devices(NULL, 1, 0, &made), DS_ERR_INVALID_VALUE,
            "devices is NULL");
    assert_null(made);
    refused(ds_topology_create_of_devices(devices, 1, 0, NULL), DS_ERR_INVALID_VALUE,
            "out is NULL");
    refused(ds_topology_create_of_devices(devices, 0, 0, &made), DS_ERR_INVALID_VALUE,
            "0 devices are requested; 1 to 1021");
    refused(ds_topology_create_of_devices(devices, 1022, 0, &made), DS_ERR_INVALID_VALUE,
            "1022 devices are requested");
    refused(ds_topology_create_of_devices(devices, 1, 6, &made), DS_ERR_INVALID_VALUE,
            "unknown flags 0x6");
    refused(ds_topology_create_of_devices(devices, 2, 0, &made), DS_ERR_INVALID_DEVICE,
            "the host is not a device with streams and memory (device 1 of the list)");
    devices[1] = ds_cpu(77);
    refused(ds_topology_create_of_devices(devices, 2, 0, &made), DS_ERR_DEVICE_RANGE,
            "(device 1 of the list)");
    assert_null(made);
    refused(ds_topology_write(NULL, DS_TOPOLOGY_TEXT, count_text, &size), DS_ERR_INVALID_VALUE,
            "topology is NULL");
    refused(ds_topology_write(t, DS_TOPOLOGY_TEXT, NULL, &size), DS_ERR_INVALID_VALUE,
            "write_fn is NULL");
    refused(ds_topology_write(t, (ds_topology_format)7, count_text, &size), DS_ERR_INVALID_VALUE,
            "7");
    assert_int_equal(size, 0);
    refused(ds_topology_get_fabric(NULL, &fabric), DS_ERR_INVALID_VALUE, "topology is NULL");
    refused(ds_topology_get_fabric(t, NULL), DS_ERR_INVALID_VALUE, "out is NULL");
    assert_int_equal(ds_topology_get_size(NULL), 0);
    assert_int_equal(ds_topology_get_size(t), 2);
    ds_topology_destroy(NULL);
    ds_topology_destroy(t);
}

static void test_plans_without_their_arguments(void **state) {
    (void)state;
    ds_topology *t = machine(PAIR);
    const ds_plan *p = NULL, *usual;
    size_t size = 0;
    ok(ds_plan_get(t, NULL, &usual)); /* a broadcast of 0 bytes */
    assert_int_equal(usual->desc.what, DS_BROADCAST);
    assert_int_equal(usual->steps, 0);
    p = usual;
    refused(ds_plan_get(NULL, NULL, &p), DS_ERR_INVALID_VALUE, "topology is NULL");
    assert_null(p);
    refused(ds_plan_get(t, NULL, NULL), DS_ERR_INVALID_VALUE, "out is NULL");

    const struct {
        ds_plan_desc desc;
        const char *words;
    } wrong[] = { { { .reserved = { 1 } }, "ds_plan_desc.reserved is not 0" },
                  { { .bytes = ((size_t)1 << 50) + 1 }, "exceed the address space" },
                  { { .engine = "magic" }, "engine is \"magic\"; use NULL or \"nccl\"" },
                  { { .algorithm = "magic" }, "there is no algorithm \"magic\"" } };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        p = usual;
        refused(ds_plan_get(t, &wrong[i].desc, &p), DS_ERR_INVALID_VALUE, wrong[i].words);
        assert_null(p);
    }
    refused(ds_plan_write(NULL, usual, count_text, &size), DS_ERR_INVALID_VALUE,
            "topology is NULL");
    refused(ds_plan_write(t, NULL, count_text, &size), DS_ERR_INVALID_VALUE, "plan is NULL");
    refused(ds_plan_write(t, usual, NULL, &size), DS_ERR_INVALID_VALUE, "write_fn is NULL");
    assert_int_equal(size, 0);
    ds_topology_destroy(t);
}

/* Times are nanoseconds in 64 bits. */
static void test_a_plan_of_a_hundred_days_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {
        "device a b c\nlink a b pcie 1B/s\nlink b c pcie 1B/s\nlink a c pcie 1B/s\n",
        "device a b c\nlink a b pcie\nlink b c pcie\nlink a c pcie\nmemory 1B/s\n"
    };
    for (size_t m = 0; m < sizeof texts / sizeof texts[0]; m++) {
        ds_topology *t = machine(texts[m]);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
            const ds_plan *p;
            ds_plan_desc d = { .what = (ds_collective)what, .bytes = (size_t)3 << 48, .item = 1 };
            refused(ds_plan_get(t, &d, &p), DS_ERR_INVALID_VALUE,
                    "of each of 3 ranks take more than 100 days over the slowest link");
            assert_null(p);
            d.bytes = 2879997; /* seconds; of all three ranks just less than 100 days */
            ok(ds_plan_get(t, &d, &p));
            assert_true(p->predicted_ns > 0 && p->bound_ns > 0);
        }
        ds_topology_destroy(t);
    }
}

static void test_collectives_have_names(void **state) {
    (void)state;
    static const char *const names[DS_COLLECTIVE_COUNT] = { [DS_BROADCAST] = "broadcast",
                                                            [DS_SCATTER] = "scatter",
                                                            [DS_GATHER] = "gather",
                                                            [DS_REDUCE] = "reduce",
                                                            [DS_ALL_REDUCE] = "all_reduce",
                                                            [DS_ALL_GATHER] = "all_gather",
                                                            [DS_REDUCE_SCATTER] = "reduce_scatter",
                                                            [DS_ALL_TO_ALL] = "all_to_all" };
    for (int i = 0; i < DS_COLLECTIVE_COUNT; i++)
        assert_string_equal((ds_collective_get_name)((ds_collective)i), names[i]);
    assert_string_equal((ds_collective_get_name)(DS_COLLECTIVE_COUNT), "none");
    assert_string_equal((ds_collective_get_name)((ds_collective)-1), "none");
}

static void test_texts_that_exceed_a_limit(void **state) {
    (void)state;
    static char text[20000];
    ds_topology *t;
    snprintf(text, sizeof text, "device %060d\n", 1);
    refused(ds_topology_create_of_text(text, &t), DS_ERR_INVALID_VALUE, "line 1, word 2");
    snprintf(text, sizeof text, "device %050d..51\n", 1);
    refused(ds_topology_create_of_text(text, &t), DS_ERR_INVALID_VALUE, "line 1, word 2");
    snprintf(text, sizeof text, "device %045d\n", 1);
    refused(ds_topology_create_of_text(text, &t), DS_ERR_INVALID_VALUE,
            "is longer than 31 characters");
    refused(ds_topology_create_of_text("device d0..1023\n", &t), DS_ERR_INVALID_VALUE,
            "the topology has more than 1024 nodes (line 1, word 2)");
    refused(ds_topology_create_of_text("device a b c\nlink a b pcie\npeer a b off\ndevice d\n", &t),
            DS_ERR_INVALID_VALUE, "line 4: a device after the first peer line");
    refused(ds_topology_create_of_text("device a b\nlink a b pcie 1234567890123456B/s\n", &t),
            DS_ERR_INVALID_VALUE, "line 2, word 5");
    refused(ds_topology_create_of_text("device a b\nlink a b pcie .GB/s\n", &t),
            DS_ERR_INVALID_VALUE, "line 2, word 5");
    refused(ds_topology_create_of_text("device a b\nlink a b pcie 1.5.5GB/s\n", &t),
            DS_ERR_INVALID_VALUE, "line 2, word 5");
    refused(ds_topology_create_of_text("device a b\nlink a\n", &t), DS_ERR_INVALID_VALUE,
            "line 2, word 3");
    refused(ds_topology_create_of_text("device a b\nlink a b\n", &t), DS_ERR_INVALID_VALUE,
            "line 2, word 4");
    refused(ds_topology_create_of_text("device a b\nlink a b pcie\npeer a b\n", &t),
            DS_ERR_INVALID_VALUE, "line 3, word 4");
    static const char *const values[] = {
        "engines 65", "engines 1.5", "engines 2us", "engines",
        "start 0ns",  "start 5",     "memory 0B/s", "memory 5us"
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        snprintf(text, sizeof text, "device a\n%s\n", values[i]);
        refused(ds_topology_create_of_text(text, &t), DS_ERR_INVALID_VALUE,
                "engines 1 to 64, start TIME");
    }
    /* a line of 4,096 characters, and one of 513 words */
    memset(text, ' ', 4096);
    snprintf(text + 4096, sizeof text - 4096, "\ndevice a\n");
    refused(ds_topology_create_of_text(text, &t), DS_ERR_INVALID_VALUE,
            "line 1 is longer than 4095 characters");
    text[0] = 0;
    for (int i = 0; i < 513; i++)
        snprintf(text + 2 * i, sizeof text - 2 * (size_t)i, "a ");
    refused(ds_topology_create_of_text(text, &t), DS_ERR_INVALID_VALUE,
            "line 1 has more than 512 words");
    assert_null(t);
}

/* Writes a file of so many bytes: the text, and then `fill`. */
static void write_file(const char *path, const char *text, size_t size, int fill) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    size_t length = strlen(text);
    fwrite(text, 1, length, f);
    for (size_t i = length; i < size; i++)
        fputc(fill, f);
    fclose(f);
}

static void test_files_that_are_no_topology(void **state) {
    (void)state;
    char path[] = "/tmp/test_plans_calls.XXXXXX";
    ds_topology *t;
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    write_file(path, PAIR, 0, 0);
    ok(ds_topology_create_of_file(path, &t));
    assert_int_equal(ds_topology_get_size(t), 2);
    ds_topology_destroy(t);
    write_file(path, PAIR, ((size_t)1 << 20) - 2, '\n');
    ok(ds_topology_create_of_file(path, &t));
    ds_topology_destroy(t);
    write_file(path, PAIR, ((size_t)1 << 20) - 1, '\n');
    refused(ds_topology_create_of_file(path, &t), DS_ERR_INVALID_VALUE, "is longer than a MiB");
    write_file(path, PAIR, 100, 0);
    refused(ds_topology_create_of_file(path, &t), DS_ERR_INVALID_VALUE, "is not a text file");
    write_file(path, "device a b\nfoo\n", 0, 0);
    refused(ds_topology_create_of_file(path, &t), DS_ERR_INVALID_VALUE, "line 2, word 1");
    if (!strstr(ds_error_get_last(), path)) /* "(in FILE)" */
        fail_msg("%s", ds_error_get_last());
    unlink(path);
    refused(ds_topology_create_of_file(path, &t), DS_ERR_SYSTEM, "cannot be read");
    assert_int_equal(mkdir(path, 0700), 0); /* a folder opens, but has no text */
    refused(ds_topology_create_of_file(path, &t), DS_ERR_SYSTEM, "cannot be read");
    rmdir(path);
    assert_null(t);
}

static void test_a_writer_that_stops_is_reported(void **state) {
    (void)state;
    ds_topology *t = machine(PCIE8);
    const ds_plan *p;
    ok(ds_plan_get(t, &(ds_plan_desc){ .what = DS_ALL_REDUCE, .bytes = 4096, .item = 4 }, &p));
    static const ds_topology_format formats[] = { DS_TOPOLOGY_MATRIX, DS_TOPOLOGY_DOT,
                                                  DS_TOPOLOGY_TEXT };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        int calls = 0;
        refused(ds_topology_write(t, formats[i], stop_writing, &calls), DS_ERR_SYSTEM,
                "the writer stopped with 5");
        assert_int_equal(calls, 1);
    }
    int calls = 0;
    refused(ds_plan_write(t, p, stop_writing, &calls), DS_ERR_SYSTEM, "the writer stopped with 5");
    assert_int_equal(calls, 1);
    ds_topology_destroy(t);
}

/* The words of a plan: one or several ways, pieces, lanes, and the engine. */
static char page[20000];
static size_t page_size;

static int write_page(const char *text, size_t size, void *user) {
    (void)user;
    if (page_size + size >= sizeof page)
        return 1;
    memcpy(page + page_size, text, size);
    page[page_size += size] = 0;
    return 0;
}

static const char *page_of(const ds_topology *t, ds_plan_desc d) {
    const ds_plan *p;
    page_size = 0;
    ok(ds_plan_get(t, &d, &p));
    ok(ds_plan_write(t, p, write_page, NULL));
    return page;
}

static void has(const char *text, const char *words) {
    if (!strstr(text, words))
        fail_msg("\"%s\" is not in: %s", words, text);
}

static void test_a_plan_in_words(void **state) {
    (void)state;
    ds_topology *t = machine(PCIE8);
    const char *text = page_of(t, (ds_plan_desc){ .what = DS_BROADCAST });
    has(text, "broadcast of 0 bytes over 8 ranks, root gpu0: direct, ");
    has(text, "predicted 0.0 us, bound 21.0 us: 100.0 % of it");
    assert_null(strstr(text, "NCCL"));
    text = page_of(t, (ds_plan_desc){ .what = DS_ALL_REDUCE, .bytes = 1 << 26, .item = 4 });
    has(text, "all_reduce of 67108864 bytes over 8 ranks: ");
    assert_null(strstr(text, "root"));
    has(text, " pieces of at most ");
    text = page_of(t, (ds_plan_desc){ .what = DS_GATHER, .bytes = 64, .engine = "nccl" });
    has(text, "1 piece of at most 8 bytes");
    has(text, "NCCL: not used: the implementation is not that of devstream_ranks.h");
    scarce_begin(0);
    text = page_of(t, (ds_plan_desc){ .what = DS_GATHER, .bytes = 64, .engine = "nccl" });
    assert_int_equal(scarce_end(), 1);
    has(text, "NCCL: not used: out of memory");
    ds_topology_destroy(t);
}

/* ---- calls from inside of user code ---- */

static ds_topology *inside_topology;
static const ds_plan *inside_plan;
static ds_result inside[7];

static void call_inside(void *user) {
    ds_topology *t = inside_topology, *made[3] = { t, t, t };
    const ds_plan *p = inside_plan;
    ds_cpu_fabric fabric;
    ds_device d = ds_cpu(0);
    size_t size = 0;
    inside[0] = ds_topology_create_of_text(PAIR, &made[0]);
    inside[1] = ds_topology_create_of_file("/dev/null", &made[1]);
    inside[2] = ds_topology_create_of_devices(&d, 1, 0, &made[2]);
    inside[3] = ds_topology_write(t, DS_TOPOLOGY_TEXT, count_text, &size);
    inside[4] = ds_topology_get_fabric(t, &fabric);
    inside[5] = ds_plan_write(t, p, count_text, &size);
    inside[6] = ds_plan_get(t, NULL, &p);
    *(int *)user = !made[0] && !made[1] && !made[2] && !p && size == 0;
}

static void test_no_call_is_permitted_inside_of_a_host_function(void **state) {
    (void)state;
    ds_stream s;
    int empty = 0;
    inside_topology = machine(PAIR);
    ok(ds_plan_get(inside_topology, NULL, &inside_plan));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    ok(ds_stream_launch_host_func(s, call_inside, &empty, NULL));
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < 7; i++)
        assert_int_equal(inside[i], DS_ERR_NOT_PERMITTED);
    assert_int_equal(empty, 1);
    ok(ds_stream_destroy(s));
    ds_topology_destroy(inside_topology);
}

/* ---- host memory that runs out ---- */

/* The number of blocks after which memory ends in round i, when the whole takes `all`: each of the
   first ones, and then larger and larger steps. */
static long blocks_of(long i, long all) {
    long n = i;
    for (long k = 48; k < i; k++)
        n += n / 24;
    return n < all ? n : all;
}

/* Refuses a block of the call after n blocks, and if `once` only this one. */
static ds_result out_of_memory(const char *what, long n, ds_result r) {
    if (r != DS_ERR_OUT_OF_MEMORY || strstr(ds_error_get_last(), "was not set"))
        fail_msg("%s, %ld blocks: %s: %s", what, n, ds_result_get_name(r), ds_error_get_last());
    return r;
}

/* Sets a sentence that no failed call may leave. */
static void forget_sentence(void) {
    ds__fail(DS_ERR_SYSTEM, "a sentence that was not set by the call");
}

static void test_topologies_of_texts_without_memory(void **state) {
    (void)state;
    static const char *const texts[] = { PAIR, RATES, RING4, PCIE8, ISLANDS };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (int once = 0; once < 2; once++) {
            int hit = 1, failures = 0;
            for (long n = 0; hit; n++) {
                ds_topology *t = (ds_topology *)1;
                long before = scarce_held;
                forget_sentence();
                scarce_once = once;
                scarce_begin(n);
                ds_result r = ds_topology_create_of_text(texts[i], &t);
                hit = scarce_end();
                if (!hit)
                    ok(r);
                if (r < 0) {
                    out_of_memory(texts[i], n, r);
                    assert_null(t);
                    failures++;
                }
                ds_topology_destroy(t);
                assert_int_equal(scarce_held, before);
            }
            assert_true(failures >= 10);
        }
}

static void test_topologies_of_files_without_memory(void **state) {
    (void)state;
    char path[] = "/tmp/test_plans_calls.XXXXXX";
    int file = mkstemp(path), hit = 1;
    assert_true(file >= 0);
    close(file);
    write_file(path, PAIR, 0, 0);
    for (long n = 0; hit; n++) {
        ds_topology *t = (ds_topology *)1;
        forget_sentence();
        scarce_begin(n);
        ds_result r = ds_topology_create_of_file(path, &t);
        hit = scarce_end();
        if (r < 0) {
            out_of_memory("file", n, r);
            assert_null(t);
        }
        ds_topology_destroy(t);
    }
    unlink(path);
}

static void test_topologies_of_devices_without_memory(void **state) {
    (void)state;
    const ds_device devices[3] = { ds_cpu(0), ds_cpu(1), ds_cpu(2) };
    for (unsigned flags = 0; flags <= DS_TOPOLOGY_PROBE; flags += DS_TOPOLOGY_PROBE) {
        int hit = 1, failures = 0;
        for (long n = 0; hit; n++) {
            ds_topology *t = (ds_topology *)1;
            ok(ds_shutdown()); /* forgets what was measured */
            assert_int_equal(scarce_held, 0);
            begin(NULL);
            forget_sentence();
            scarce_begin(n);
            ds_result r = ds_topology_create_of_devices(devices, 3, flags, &t);
            hit = scarce_end();
            if (r < 0) {
                out_of_memory(flags ? "measured" : "devices", n, r);
                assert_null(t);
                failures++;
                ok(ds_topology_create_of_devices(devices, 3, flags, &t));
            }
            assert_int_equal(ds_topology_get_size(t), 3);
            ds_topology_destroy(t);
        }
        assert_true(failures >= 10);
    }
}

static void plan_without_memory(ds_topology *t, ds_plan_desc d) {
    const ds_plan *p;
    char name[100], want[400];
    snprintf(name, sizeof name, "%s of %zu bytes by %s", ds_collective_get_name(d.what), d.bytes,
             d.algorithm ? d.algorithm : "any");
    long all = scarce_taken;
    ds_result first = ds_plan_get(t, &d, &p);
    all = scarce_taken - all;
    if (first == DS_ERR_UNSUPPORTED)
        return;
    ok(first);
    page_size = 0;
    ok(ds_plan_write(t, p, write_page, NULL));
    snprintf(want, sizeof want, "%.399s", page);
    for (int once = 0; once < 2; once++) {
        int failures = 0;
        for (long i = harness_first(), n = -1; n < all; i += harness_every()) {
            n = blocks_of(i, all);
            ds__plans_forget(t);
            long before = scarce_held;
            p = (const ds_plan *)1;
            forget_sentence();
            scarce_once = once;
            scarce_begin(n);
            ds_result r = ds_plan_get(t, &d, &p);
            int hit = scarce_end();
            if (n >= all && hit)
                fail_msg("%s takes more than %ld blocks", name, all);
            if (r < 0) {
                out_of_memory(name, n, r);
                assert_null(p);
                assert_int_equal(scarce_held, before);
                failures++;
            } else { /* the search went on without a draft: but the plan is as good as it was */
                page_size = 0;
                ok(ds_plan_write(t, p, write_page, NULL));
                page[sizeof want - 1] = 0;
                if (!hit && strcmp(page, want) != 0)
                    fail_msg("%s: %s\n%s", name, page, want);
            }
        }
        if (failures * harness_every() < 10)
            fail_msg("%s: %d failures", name, failures);
    }
}

static void test_plans_without_memory(void **state) {
    (void)state;
    static const char *const texts[] = { PAIR, RING4, PCIE8 };
    for (size_t m = 0; m < (HARNESS_SLOW ? 1 : sizeof texts / sizeof texts[0]); m++) {
        ds_topology *t = machine(texts[m]);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            plan_without_memory(t, (ds_plan_desc){ .what = (ds_collective)what,
                                                   .bytes = m == 1 ? 1 << 20 : 4096,
                                                   .item = 4,
                                                   .root = 1,
                                                   .order = (ds_plan_order)(what % 3) });
        ds_topology_destroy(t);
    }
}

static void test_plans_for_many_ranks_without_memory(void **state) {
    (void)state;
    ds_topology *t = machine(ISLANDS);
    for (int what = 0; what < (HARNESS_SLOW ? 1 : DS_COLLECTIVE_COUNT); what++)
        plan_without_memory(t, (ds_plan_desc){ .what = (ds_collective)what,
                                               .bytes = 36 * 36 * 64,
                                               .item = 4,
                                               .root = 1,
                                               .order = DS_ORDER_ANY });
    ds_topology_destroy(t);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
    const struct CMUnitTest tests[] = {
        T(topologies_without_their_arguments),
        T(plans_without_their_arguments),
        T(a_plan_of_a_hundred_days_is_refused),
        T(collectives_have_names),
        T(texts_that_exceed_a_limit),
        T(files_that_are_no_topology),
        T(a_writer_that_stops_is_reported),
        T(a_plan_in_words),
        T(no_call_is_permitted_inside_of_a_host_function),
        T(topologies_of_texts_without_memory),
        T(topologies_of_files_without_memory),
        T(topologies_of_devices_without_memory),
        T(plans_without_memory),
        T(plans_for_many_ranks_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
