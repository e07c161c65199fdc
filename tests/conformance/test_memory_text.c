/* The allocator's words: options and where they go wrong, names of statistics, the summary,
   processes, and what an error for lack of memory says. Internals and ranges are in
   tests/unit/test_memory_options.c. */
#include "alloc.h"

#include <unistd.h>

/* ---- options ---- */

/* The text must be refused with DS_ERR_INVALID_VALUE at this character, with these words, and
   change nothing. */
static void bad(const char *text, size_t character, const char *words) {
    ds_mem_config c = ds_mem_config_torch(), before = c;
    char where[40];
    snprintf(where, sizeof where, "character %zu,", character);
    refused(ds_mem_config_parse(text, &c), DS_ERR_INVALID_VALUE);
    if (!strstr(ds_error_get_last(), where) || !strstr(ds_error_get_last(), words))
        fail_msg("'%s': neither '%s' nor '%s' may be missing: %s", text, where, words,
                 ds_error_get_last());
    assert_memory_equal(&c, &before, sizeof c);
}

static ds_mem_config parsed(const char *text) {
    ds_mem_config c = ds_mem_config_torch();
    ok(ds_mem_config_parse(text, &c));
    return c;
}

static void test_a_wrong_option_is_an_error_that_names_the_character(void **state) {
    (void)state;
    bad("foo:1,bar:2", 1, "there is no option 'foo'");
    bad("expandable_segments:True,max_split_size_bm:64", 26, "is max_split_size_mb meant?");
    bad("garbage_collection_threshold:1.2", 30, "above 0 and below 1");
    bad("garbage_collection_threshold:0", 30, "above 0 and below 1");
    bad("garbage_collection_threshold:1", 30, "above 0 and below 1");
    bad("max_split_size_mb:2", 19, "at least 20");
    bad("max_split_size_mb:-1", 19, "expected a number");
    bad("max_split_size_mb:20.5", 19, "expected a number");
    bad("max_non_split_rounding_mb:19", 27, "at least 20");
    bad("large_segment_size_mb:40", 23, "at most 20");
    bad("large_segment_size_mb:5", 23, "even");
    bad("large_segment_size_mb:0", 23, "from 2 to");
    bad("release_lock_on_cudamalloc:False", 28, "must be True: the driver is always called");
    bad("pinned_use_background_threads:True", 31, "must be False: events are queried");
    bad("pinned_use_background_threads:no", 31, "must be False");
    bad("pinned_free_catch_all:True", 23, "must be False: an error");
    bad("expandable_segments:true", 21, "True or False");
    bad("throw_on_cudamalloc_oom:1", 25, "True or False");
    bad("pinned_use_cuda_host_register:none", 31, "True or False");
    bad("pinned_num_register_threads:none", 29, "from 1 to 128");
    bad("pinned_num_register_threads:1024", 29, "from 1 to 128");
    bad("pinned_num_register_threads:12", 29, "power of two");
    bad("pinned_reserve_segment_size_mb:0", 32, "from 1");
    bad("per_process_memory_fraction:1.5", 29, "from 0 to 1");
    bad("per_process_memory_fraction:-0.5", 29, "from 0 to 1");
    bad("backend:cuda", 9, "native|cudaMallocAsync");
    bad("reuse:sometimes", 7, "never|on_shortage|always");
    bad("statistics:none", 12, "full|current");
    bad("debug:3", 7, "0|1|2");
    bad("guard_bytes:100", 13, "512");
    bad("limit:110%", 7, "0% to 100%");
    bad("limit:many", 7, "number of bytes");
    bad("preset:tensorflow", 8, "default|torch|cupy");
    bad("poison:True,preset:torch", 13, "must be the first");
    bad("expandable_segments_reserve:0", 29, "fraction");
    bad("expandable_segments_reserve:9x", 29, "40G");
    bad("expandable_segments_reserve_by_class:[serving:0.5]", 38, "streams have no classes");
    bad("segment_growth:-1", 16, "from 0");
}

static void test_the_grammar_is_that_of_the_peer(void **state) {
    (void)state;
    bad("max_split_size_mb", 18, "':'");
    bad("max_split_size_mb=64", 1, "no option");
    bad("max_split_size_mb:", 19, "number");
    bad("max_split_size_mb:64,,poison:True", 22, "expected an option");
    bad(",max_split_size_mb:64", 1, "expected an option");
    bad("max_split_size_mb:64:65", 21, "','");
    bad("roundup_power2_divisions:3", 26, "power of two");
    bad("roundup_power2_divisions:0", 26, "power of two");
    bad("roundup_power2_divisions:[64:3]", 30, "power of two");
    bad("roundup_power2_divisions:[65:4]", 27, "interval");
    bad("roundup_power2_divisions:[0:4]", 27, "interval");
    bad("roundup_power2_divisions:[64:4", 31, "']'");
    bad("roundup_power2_divisions:[64:4]128:4", 32, "','");
    bad("roundup_power2_divisions:[64:4[", 31, "']'");
    bad("roundup_power2_divisions:[64:4],]", 33, "expected an option");
    ds_mem_config c = parsed(" max_split_size_mb : 6 4 ,\tpoison:True ,\n");
    assert_true(c.max_split_size == 64 * MIB && c.poison == 1);
    c = parsed("");
    assert_true(c.max_split_size == SIZE_MAX && c.poison == 0);
    c = parsed("max_split_size_mb:18446744073709551615");
    assert_true(c.max_split_size == SIZE_MAX / MIB * MIB);
    /* > is what comes behind the last interval, or behind the first one */
    c = parsed("roundup_power2_divisions:[>:4]");
    assert_true(c.roundup_power2_divisions[0] == 0 && c.roundup_power2_divisions[1] == 3 &&
                c.roundup_power2_divisions[15] == 3);
    c = parsed("roundup_power2_divisions:[64:8,256:4,>:1]");
    static const unsigned char coded[16] = { 4, 4, 4, 4, 4, 4, 4, 0, 3, 1, 1, 1, 1, 1, 1, 1 };
    assert_memory_equal(c.roundup_power2_divisions, coded, 16);
    c = parsed("roundup_power2_divisions:[1048576:2,]");
    for (int i = 0; i < 16; i++)
        assert_int_equal(c.roundup_power2_divisions[i], 2);
}

static void test_every_option_reaches_its_member(void **state) {
    (void)state;
    ds_mem_config c = parsed(
        "backend:cudaMallocAsync,max_split_size_mb:64,max_non_split_rounding_mb:32,large_segment_"
        "size_mb:24,"
        "garbage_collection_threshold:0.6,expandable_segments:True,expandable_segments_reserve:0.5,"
        "release_lock_on_cudamalloc:True,per_process_memory_fraction:0.4,throw_on_cudamalloc_oom:"
        "True,"
        "graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,pinned_num_"
        "register_threads:8,"
        "pinned_use_background_threads:False,pinned_reserve_segment_size_mb:16,pinned_max_round_"
        "threshold_mb:1,"
        "pinned_max_cached_size_mb:512,pinned_free_catch_all:False");
    assert_true(c.backend == DS_MEM_DRIVER_POOL && c.max_split_size == 64 * MIB &&
                c.max_non_split_rounding == 32 * MIB);
    assert_true(c.garbage_collection_threshold == 0.6 && c.expandable_segments &&
                c.expandable_segments_reserve == 0.5);
    assert_true(c.large_segment_size == 24 * MIB);
    assert_true(c.memory_fraction == 0.4 && c.throw_on_cudamalloc_oom &&
                c.graph_capture_record_stream_reuse && c.pinned_use_cuda_host_register);
    assert_true(c.pinned_num_register_threads == 8 && c.pinned_reserve_segment_size == 16 * MIB);
    assert_true(c.pinned_max_round_threshold == MIB && c.pinned_max_cached_size == 512 * MIB);
    c = parsed("preset:default,reuse:always,statistics:current,limit:123456789,debug:1,poison:True,"
               "guard_bytes:1024,segment_growth:4,"
               "single_pool:True,best_fit_by_address:True,poll_on_alloc:True,backend:uncached");
    assert_true(c.reuse == DS_REUSE_ALWAYS && c.statistics == DS_STATISTICS_CURRENT &&
                c.limit == 123456789 && c.debug == 1);
    assert_true(c.poison && c.guard_bytes == 1024);
    assert_true(c.segment_growth == 4 && c.single_pool && c.best_fit_by_address &&
                c.poll_on_alloc && c.backend == DS_MEM_UNCACHED);
    assert_true(c.large_segment_size == ds_mem_config_default().large_segment_size);
    assert_true(parsed("preset:cupy").single_pool && !parsed("preset:torch").single_pool);
}

static void test_a_limit_is_bytes_or_a_part_of_the_device(void **state) {
    static const struct {
        const char *text;
        size_t limit;
        double fraction;
    } limits[] = { { "limit:0", 0, 1 },         { "limit:1073741824", (size_t)1 << 30, 1 },
                   { "limit:0%", 0, 1 },        { "limit:40%", 0, 0.4 },
                   { "limit:70.5%", 0, 0.705 }, { "limit:100%", 0, 1 } };

    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        ds_mem_config c = parsed(limits[i].text);
        assert_int_equal(c.limit, limits[i].limit);
        assert_true(c.memory_fraction == limits[i].fraction);
        static const char *const before[] = {
            "limit:30%", "limit:77",
            "per_process_memory_fraction:0.3,limit:77,per_process_memory_fraction:0.3"
        };
        /* whatever was said before */
        for (size_t k = 0; k < sizeof before / sizeof before[0]; k++) {
            c = parsed(before[k]);
            ok(ds_mem_config_parse(limits[i].text, &c));
            assert_true(c.limit == limits[i].limit && c.memory_fraction == limits[i].fraction);
        }
    }
    /* torch's option says nothing of the other */
    ds_mem_config c = parsed("limit:77,per_process_memory_fraction:0.3");
    assert_true(c.limit == 77 && c.memory_fraction == 0.3);
}

static void test_a_text_forgets_three_options_and_keeps_the_others(void **state) {
    ds_mem_config c = ds_mem_config_torch();
    (void)state;
    ok(ds_mem_config_parse("max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_"
                           "threshold:0.5,expandable_segments:True,limit:5",
                           &c));
    ok(ds_mem_config_parse("poison:True", &c));
    assert_true(c.max_split_size == SIZE_MAX && c.garbage_collection_threshold == 0 &&
                c.roundup_power2_divisions[3] == 0);
    assert_true(c.expandable_segments && c.poison && c.limit == 5);
    ds_mem_config zeroed;
    memset(&zeroed, 0, sizeof zeroed);
    refused(ds_mem_config_parse("poison:True", &zeroed), DS_ERR_INVALID_VALUE);
    refused(ds_mem_config_parse("poison:True", NULL), DS_ERR_INVALID_VALUE);
    refused(ds_mem_config_parse(NULL, &c), DS_ERR_INVALID_VALUE);
}

/* What three texts one after another do to the sizes of blocks. */
static void test_allocations_follow_the_text_that_came_last(void **state) {
    ds_stream s;
    void *p;
    (void)state;
    begin(PRESET_TORCH);
    s = harness_stream(0, 0);
    const size_t size = 84 * MIB, big = 400 * MIB;
    p = block(size, s);
    assert_int_equal(size_of(p), size);
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_mem_configure_text("roundup_power2_divisions:4"));
    int64_t asked = stat(0, "requested_bytes.all.allocated"),
            active = stat(0, "active_bytes.all.allocated");
    p = block(size, s);
    assert_int_equal(stat(0, "active_bytes.all.allocated") - active, 96 * MIB);
    assert_int_equal(stat(0, "requested_bytes.all.allocated") - asked, size);
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_mem_configure_text("garbage_collection_threshold:0.5,max_split_size_mb:40"));
    p = block(size, s);
    assert_int_equal(size_of(p), size);
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_mem_configure_text("garbage_collection_threshold:0.5,roundup_power2_divisions:[64:8,128:"
                             "2,256:2,512:2,1024:1,>:1]"));
    p = block(size, s);
    assert_int_equal(size_of(p), 88 * MIB);
    ok(ds_mem_free(p));
    p = block(big, s);
    assert_int_equal(size_of(p), 512 * MIB);
    ok(ds_mem_free(p));
    refused(
        ds_mem_configure_text("garbage_collection_threshold:0.5,pinned_num_register_threads:1024"),
        DS_ERR_INVALID_VALUE);
    ds_mem_config c;
    ok(ds_mem_get_config(harness_device(0), &c));
    assert_true(c.roundup_power2_divisions[0] == 4 && c.pinned_num_register_threads == 1);
    ok(ds_mem_configure_text(""));
    ok(ds_stream_destroy(s));
    finish();
    ok(ds_mem_configure_text("preset:default"));
}

/* ---- names of statistics ---- */

static void test_statistics_have_123_names_in_order_with_their_values(void **state) {
    ds_mem_stats s;
    int64_t value, seen = 0;
    size_t count = 0;
    const char *before = "";
    (void)state;
    memset(&s, 0, sizeof s);
    /* every member is found by exactly one name, but for the two that torch has not */
    int64_t all = (int64_t)(offsetof(ds_mem_stats, reserved) / 8);
    int64_t *words = (int64_t *)(void *)&s;
    for (int64_t i = 0; i < all; i++)
        words[i] = i + 1;
    for (const char *name; (name = ds_mem_stats_get_name(count)) != NULL; count++) {
        assert_true(strcmp(before, name) < 0);
        ok(ds_mem_stats_get_by_name(&s, name, &value));
        assert_true(value > 0);
        seen += value;
        before = name;
    }
    assert_int_equal(count, 123);
    assert_int_equal(seen, all * (all + 1) / 2 - s.peak_bound - s.peak_bound_count);
    assert_null(ds_mem_stats_get_name(count + 1));
    assert_null(ds_mem_stats_get_name(SIZE_MAX));
}

static void test_a_name_of_the_peers_list_gives_its_member(void **state) {
    static const char *const arrays[] = { "allocation",      "segment",
                                          "active",          "inactive_split",
                                          "allocated_bytes", "reserved_bytes",
                                          "active_bytes",    "inactive_split_bytes",
                                          "requested_bytes" };
    static const char *const kinds[] = { "all", "small_pool", "large_pool" }, *const metrics[] = {
        "current", "peak", "allocated", "freed"
    };
    ds_mem_stats s;
    int64_t value;
    char name[80];
    (void)state;
    memset(&s, 0, sizeof s);
    ds_mem_stat *const members[] = { s.allocation,      s.segment,
                                     s.active,          s.inactive_split,
                                     s.allocated_bytes, s.reserved_bytes,
                                     s.active_bytes,    s.inactive_split_bytes,
                                     s.requested_bytes };
    for (int a = 0; a < 9; a++)
        for (int k = 0; k < 3; k++)
            for (int m = 0; m < 4; m++) {
                ds_mem_stat *at = &members[a][k];
                int64_t *word_at = m == 0   ? &at->current
                                   : m == 1 ? &at->peak
                                   : m == 2 ? &at->allocated
                                            : &at->freed;
                snprintf(name, sizeof name, "%s.%s.%s", arrays[a], kinds[k], metrics[m]);
                *word_at = 7;
                ok(ds_mem_stats_get_by_name(&s, name, &value));
                assert_int_equal(value, 7);
                *word_at = 0;
            }
    s.allocation[DS_STAT_LARGE].peak = 5; /* the documents' spelling */
    ok(ds_mem_stats_get_by_name(&s, "allocated.large_pool.peak", &value));
    assert_int_equal(value, 5);
    s.oversize_segments.freed = 6;
    ok(ds_mem_stats_get_by_name(&s, "oversize_segments.freed", &value));
    assert_int_equal(value, 6);
    s.max_split_size = -1;
    ok(ds_mem_stats_get_by_name(&s, "max_split_size", &value));
    assert_int_equal(value, -1);
    static const char *const unknown[] = {
        "",
        "allocated",
        "allocated.",
        "allocation",
        "allocation.all",
        "allocation.all.currently",
        "Num_ooms",
        "num_ooms ",
        "allocated.all.current.allocated.all.current.allocated.all.current.allocated.all.current"
    };
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        value = 1;
        refused(ds_mem_stats_get_by_name(&s, unknown[i], &value), DS_ERR_INVALID_VALUE);
        assert_int_equal(value, 0);
    }
    refused(ds_mem_stats_get_by_name(NULL, "num_ooms", &value), DS_ERR_INVALID_VALUE);
    refused(ds_mem_stats_get_by_name(&s, NULL, &value), DS_ERR_INVALID_VALUE);
    refused(ds_mem_stats_get_by_name(&s, "num_ooms", NULL), DS_ERR_INVALID_VALUE);
}

/* ---- the summary ---- */

typedef struct sheet {
    char text[16384];
    size_t n;
    int stop_after;
} sheet;

static int write_sheet(const char *text, size_t size, void *user) {
    sheet *s = user;
    if (s->stop_after && --s->stop_after == 0)
        return 5;
    assert_true(s->n + size < sizeof s->text);
    memcpy(s->text + s->n, text, size);
    s->n += size;
    s->text[s->n] = 0;
    return 0;
}

static const char *const whole_table =
    "|===========================================================================|\n"
    "|                  devstream memory summary, device ID 0                    |\n"
    "|---------------------------------------------------------------------------|\n"
    "|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |\n"
    "|===========================================================================|\n"
    "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Allocated memory      |   3073 KiB |  33793 KiB |  33793 KiB |  30720 KiB |\n"
    "|       from large pool |   3072 KiB |  33792 KiB |  33792 KiB |  30720 KiB |\n"
    "|       from small pool |      1 KiB |      1 KiB |      1 KiB |      0 KiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Active memory         |   3073 KiB |  33793 KiB |  33793 KiB |  30720 KiB |\n"
    "|       from large pool |   3072 KiB |  33792 KiB |  33792 KiB |  30720 KiB |\n"
    "|       from small pool |      1 KiB |      1 KiB |      1 KiB |      0 KiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Requested memory      |   3072 KiB |  33792 KiB |  33792 KiB |  30720 KiB |\n"
    "|       from large pool |   3072 KiB |  33792 KiB |  33792 KiB |  30720 KiB |\n"
    "|       from small pool |      0 KiB |      0 KiB |      0 KiB |      0 KiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| GPU reserved memory   |  53248 KiB |  53248 KiB |  53248 KiB |      0 B   |\n"
    "|       from large pool |  51200 KiB |  51200 KiB |  51200 KiB |      0 B   |\n"
    "|       from small pool |   2048 KiB |   2048 KiB |   2048 KiB |      0 B   |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Non-releasable memory |  19455 KiB |  19455 KiB |  19455 KiB |      0 B   |\n"
    "|       from large pool |  17408 KiB |  17408 KiB |  17408 KiB |      0 B   |\n"
    "|       from small pool |   2047 KiB |   2047 KiB |   2047 KiB |      0 B   |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Allocations           |       2    |       3    |       3    |       1    |\n"
    "|       from large pool |       1    |       2    |       2    |       1    |\n"
    "|       from small pool |       1    |       1    |       1    |       0    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Active allocs         |       2    |       3    |       3    |       1    |\n"
    "|       from large pool |       1    |       2    |       2    |       1    |\n"
    "|       from small pool |       1    |       1    |       1    |       0    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| GPU reserved segments |       3    |       3    |       3    |       0    |\n"
    "|       from large pool |       2    |       2    |       2    |       0    |\n"
    "|       from small pool |       1    |       1    |       1    |       0    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Non-releasable allocs |       2    |       2    |       2    |       0    |\n"
    "|       from large pool |       1    |       1    |       1    |       0    |\n"
    "|       from small pool |       1    |       1    |       1    |       0    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Oversize allocations  |       0    |       0    |       0    |       0    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Oversize GPU segments |       0    |       0    |       0    |       0    |\n"
    "|===========================================================================|\n";

static void test_the_summary_has_the_layout_of_the_peer(void **state) {
    static sheet got;
    static char want[16384];
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = harness_stream(0, 0);
    void *a = block(1000, s), *b = block(3 * MIB, s), *c = block(30 * MIB, s);
    ok(ds_mem_free(c));
    memset(&got, 0, sizeof got);
    ok(ds_mem_write_summary(harness_device(0), 0, write_sheet, &got));
    assert_string_equal(got.text, whole_table);
    memset(&got, 0, sizeof got);
    ok(ds_mem_write_summary(harness_device(0), 1, write_sheet, &got));
    want[0] = 0;
    /* the short one is the whole one without the rows of the pools */
    for (const char *line = whole_table, *end; *line; line = end) {
        end = strchr(line, '\n') + 1;
        if (!strstr(line, "pool |") || strstr(line, "pool |") > end)
            strncat(want, line, (size_t)(end - line));
    }
    assert_string_equal(got.text, want);
    memset(&got, 0, sizeof got);
    got.stop_after = 3;
    refused(ds_mem_write_summary(harness_device(0), 0, write_sheet, &got), DS_ERR_SYSTEM);
    assert_non_null(strstr(ds_error_get_last(), "ds_mem_write_summary"));
    refused(ds_mem_write_summary(harness_device(0), 0, NULL, NULL), DS_ERR_INVALID_VALUE);
    refused_any(
        ds_mem_write_summary((ds_device){ harness_device(0).type, 999 }, 0, write_sheet, &got));
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- processes ---- */

static void test_a_cpu_device_is_used_by_this_process(void **state) {
    static sheet got;
    unsigned pid;
    double mb;
    int index;
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = harness_stream(0, 0);
    void *p = block(64 * MIB, s);
    memset(&got, 0, sizeof got);
    ok(ds_mem_write_processes(harness_device(0), write_sheet, &got));
    assert_int_equal(
        sscanf(got.text, "CPU:%d\nprocess %10u uses %lf MB GPU memory\n", &index, &pid, &mb), 3);
    assert_int_equal(pid, (unsigned)getpid());
    assert_true(mb >= 64);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    finish();
    refused(ds_mem_write_processes(harness_device(0), NULL, NULL), DS_ERR_INVALID_VALUE);
    got.n = 0;
    got.stop_after = 1;
    refused(ds_mem_write_processes(harness_device(0), write_sheet, &got), DS_ERR_SYSTEM);
}

/* tests/support/nvml.c stands for NVML: `mode` says how it behaves. */
static const char *processes(const char *library, const char *mode) {
    static sheet got;
    setenv("DEVSTREAM_NVML", library, 1);
    setenv("DS_TEST_NVML_MODE", mode, 1);
    memset(&got, 0, sizeof got);
    harness_restart(NULL); /* what was loaded before goes */
    ok(ds_mem_write_processes(harness_device(0), write_sheet, &got));
    unsetenv("DEVSTREAM_NVML");
    assert_memory_equal(got.text, "GPU:0\n", 6);
    return got.text + 6;
}

static void test_nvml_tells_which_processes_use_a_gpu(void **state) {
    char folder[3000], library[3100], old[3100], line[80];
    /* they lie beside the suite */
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    (void)state;
    assert_true(n > 0);
    folder[n] = 0;
    *strrchr(folder, '/') = 0;
    snprintf(library, sizeof library, "%s/nvml.so", folder);
    snprintf(old, sizeof old, "%s/nvml-old.so", folder);
    static const char *const two = "process       4711 uses     1536.500 MB GPU memory\nprocess    "
                                   "      5 uses an unknown amount of GPU memory\n";
    assert_string_equal(processes(library, "two"), two);
    assert_string_equal(processes(library, "by-pci"), two);
    assert_string_equal(processes(library, "mig"), two);
    assert_string_equal(processes(library, "none"), "no processes are running\n");
    assert_string_equal(processes(old, "two"), two);
    const char *text = processes(library, "many");
    for (unsigned i = 0; i < 300; i++, text = strchr(text, '\n') + 1) {
        snprintf(line, sizeof line, "process %10u uses %12.3f MB GPU memory\n", 1000 + i, 1.0 + i);
        assert_memory_equal(text, line, strlen(line));
    }
    assert_string_equal(text, "");
    assert_string_equal(processes(library, "denied"),
                        "processes are unknown: NVML returned 4 (no permission)\n");
    assert_string_equal(processes(library, "unknown-device"),
                        "processes are unknown: NVML returned 6 (not found)\n");
    assert_non_null(strstr(processes(library, "no-driver"), "cannot be initialised"));
    assert_non_null(strstr(processes("/nonexistent/libnvidia-ml.so.1", "two"),
                           "/nonexistent/libnvidia-ml.so.1"));
    assert_non_null(strstr(processes("/nonexistent/libnvidia-ml.so.1", "two"), "cannot be loaded"));
    assert_non_null(strstr(processes("libc.so.6", "two"), "lacks functions"));
    unsetenv("DS_TEST_NVML_MODE");
    harness_restart(NULL);
}

/* ---- out of memory ---- */

static void has(const char *text, const char *words) {
    if (!strstr(text, words))
        fail_msg("'%s' is missing in:\n%s", words, text);
}

static void *labelled(const char *label, size_t size, ds_stream s) {
    void *p = NULL;
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = size, .stream = s, .label = label }, &p));
    return p;
}

static void limit_to(size_t bytes) {
    ok(ds_mem_set_limit(harness_device(0), bytes));
}

static char *sized(char out[40], size_t mib) {
    snprintf(out, 40, "%zu.00 MiB", mib);
    return out;
}

static void test_an_error_for_lack_of_memory_names_sizes_and_the_device(void **state) {
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        char device[40], total[40], place[60];
        void *p, *q = &p, *kept;
        begin(preset);
        ds_stream s = harness_stream(0, 0);
        snprintf(device, sizeof device, "%s:%d", harness_is_cpu() ? "cpu" : "cuda",
                 harness_device(0).index);
        snprintf(total, sizeof total, "%.2f GiB", (double)device_memory(0) / 1073741824.0);
        kept = block(5 * MIB, s);
        limit_to(64 * MIB);
        refused(ds_mem_alloc(100 * MIB, s, &q), DS_ERR_LIMIT_EXCEEDED);
        snprintf(place, sizeof place, "test_memory_text.c:%d", __LINE__ - 1);
        assert_null(q);
        const char *texts[] = { ds_error_get_last(), ds_mem_get_last_report() };
        for (int i = 0; i < 2; i++) {
            has(texts[i], "100.00 MiB");
            has(texts[i], device);
            has(texts[i], total);
            has(texts[i], "64.00 MiB");
            has(texts[i], place);
            has(texts[i], "allocated");
            has(texts[i], "5.00 MiB");
            has(texts[i], "reserved");
            has(texts[i], "pending");
            has(texts[i], "largest free");
            has(texts[i], "fragmentation");
            has(texts[i], "hint: the request is larger than the limit of 64.00 MiB");
        }
        assert_int_equal(stat(0, "num_ooms"), 1);
        q = &p;
        refused(ds_mem_alloc((size_t)1 << 60, s, &q), DS_ERR_OUT_OF_MEMORY);
        assert_null(q);
        has(ds_error_get_last(), "2^60");
        refused(ds_mem_alloc(SIZE_MAX, s, &q), DS_ERR_OUT_OF_MEMORY);
        has(ds_error_get_last(), "2^60");
        limit_to(0);
        p = block(20 * MIB, s);
        ok(ds_mem_free(p));
        ok(ds_mem_free(kept));
        ok(ds_stream_destroy(s));
        finish();
    }
}

static void test_a_device_that_is_too_small_is_named_as_such(void **state) {
    void *p;
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    no_memory(ds_mem_alloc(device_memory(0) + MIB, s, &p));
    has(ds_error_get_last(), "hint: the device is smaller than the request");
    ok(ds_stream_destroy(s));
    finish();
}

static void test_the_ten_biggest_owners_are_listed_in_order(void **state) {
    static const char *const names[] = { "one",   "two",   "three", "four", "five",   "six",
                                         "seven", "eight", "nine",  "ten",  "eleven", "twelve" };
    void *p, *blocks[40];
    size_t count = 0;
    char line[120], size[40];
    (void)state;
    begin(PRESET_PLAIN);
    ds_stream s = harness_stream(0, 0);
    /* owner i has i + 1 MiB in two blocks; a copy of the label is the same owner */
    for (size_t i = 0; i < 12; i++) {
        char *copy = strdup(names[i]);
        blocks[count++] = labelled(copy, (i + 1) * MIB / 2, s);
        blocks[count++] = labelled(names[i], (i + 1) * MIB / 2, s);
        ok(ds_mem_free(blocks[count - 2]));
        free(copy);
        blocks[count - 2] = labelled(names[i], (i + 1) * MIB / 2, s);
    }
    ds_mem_label_push("pushed");
    blocks[count++] = block(20 * MIB, s);
    ds_mem_label_pop();
    ok(ds_mem_alloc(30 * MIB, s, &blocks[count++]));
    int where = __LINE__ - 1;
    limit_to(ds_mem_get_reserved(harness_device(0)));
    no_memory(ds_mem_alloc(200 * MIB, s, &p));
    const char *text = ds_mem_get_last_report(), *at = strstr(text, "biggest owners\n");
    assert_non_null(at);
    snprintf(line, sizeof line, "test_memory_text.c:%d\n", where);
    char *first = strstr(at, line), *end = strchr(at + 15, '\n') + 1;
    assert_true(first && first < end);
    at = end;
    assert_memory_equal(at, "  20.00 MiB        in      1 block  pushed\n", 43);
    at = strchr(at, '\n') + 1;
    for (size_t i = 11; i >= 4; i--) {
        snprintf(line, sizeof line, "  %-16s in      2 blocks %s\n", sized(size, i + 1), names[i]);
        if (strncmp(at, line, strlen(line)))
            fail_msg("'%s' is not what '%s' begins with", line, at);
        at = strchr(at, '\n') + 1;
    }
    assert_memory_equal(at, "hint: ", 6);
    has(ds_error_get_last(), "most: ");
    has(ds_error_get_last(), "pushed 20.00 MiB");
    for (size_t i = 0; i < count; i++)
        ok(ds_mem_free(blocks[i]));
    limit_to(0);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_thousand_owners_do_not_hide_the_biggest(void **state) {
    enum { OWNERS = 1500 };

    static char names[OWNERS][24];
    void *p, **blocks = calloc(OWNERS + 1, sizeof *blocks);
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = harness_stream(0, 0);
    blocks[OWNERS] = labelled("weights", 40 * MIB, s);
    for (int i = 0; i < OWNERS; i++) {
        snprintf(names[i], sizeof names[i], "owner %d", i);
        blocks[i] = labelled(names[i], 512, s);
    }
    limit_to(ds_mem_get_reserved(harness_device(0)));
    no_memory(ds_mem_alloc(30 * MIB, s, &p));
    has(ds_mem_get_last_report(), "in      1 block  weights\n");
    for (int i = 0; i <= OWNERS; i++)
        ok(ds_mem_free(blocks[i]));
    free(blocks);
    limit_to(0);
    ok(ds_stream_destroy(s));
    finish();
}

/* Fragments 40 MiB of one stream so that 1.5 MiB pieces are free between live ones. */
static size_t fragment(ds_stream s, void **live) {
    void *all[26];
    size_t count = 0;
    for (int i = 0; i < 26; i++)
        all[i] = block(3 * MIB / 2, s);
    for (int i = 0; i < 26; i++)
        if (i % 2)
            ok(ds_mem_free(all[i]));
        else
            live[count++] = all[i];
    return count;
}

static void test_the_hint_fits_what_is_in_the_way(void **state) {
    void *live[26], *p, *q;
    ds_pool pool;
    (void)state;
    begin(PRESET_TORCH);
    ds_stream s = harness_stream(0, 0), other = harness_stream(0, 0);
    /* pieces */
    size_t count = fragment(s, live);
    limit_to(ds_mem_get_reserved(harness_device(0)));
    no_memory(ds_mem_alloc(4 * MIB, s, &p));
    has(ds_error_get_last(), "cached in pieces too small; with expandable_segments:True");
    has(ds_mem_get_last_report(), "fragmentation   ");
    while (count)
        ok(ds_mem_free(live[--count]));
    limit_to(0);
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    /* another stream's: its segment is in use, so it is not given back */
    p = block(3 * MIB, other);
    limit_to(ds_mem_get_reserved(harness_device(0)));
    no_memory(ds_mem_alloc(4 * MIB, s, &q));
    has(ds_error_get_last(),
        "a free block of 17.00 MiB belongs to another stream; with reuse:on_shortage");
    ok(ds_mem_free(p));
    limit_to(0);
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    /* a private pool's */
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .label = "private" }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 3 * MIB, .stream = s, .pool = pool }, &p));
    limit_to(ds_mem_get_reserved(harness_device(0)));
    no_memory(ds_mem_alloc(4 * MIB, s, &q));
    has(ds_error_get_last(), "free in private pools");
    has(ds_mem_get_last_report(),
        "20.00 MiB of it by private pools, of which 17.00 MiB are cached");
    limit_to(0);
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    /* the pool's own limit */
    ok(ds_pool_create(
        &(ds_pool_desc){ .device = harness_device(0), .label = "narrow", .limit = 40 * MIB },
        &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 30 * MIB, .stream = s, .pool = pool }, &p));
    no_memory(
        ds_mem_alloc_with(&(ds_mem_request){ .size = 15 * MIB, .stream = s, .pool = pool }, &q));
    has(ds_error_get_last(), "only the pool's limit of 40.00 MiB prevents the allocation");
    has(ds_mem_get_last_report(), "from the pool narrow");
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    /* the limit */
    p = labelled("weights", 30 * MIB, s);
    limit_to(40 * MIB);
    no_memory(ds_mem_alloc(15 * MIB, s, &q));
    has(ds_error_get_last(), "only the limit of 40.00 MiB prevents the allocation");
    limit_to(0);
    ok(ds_mem_free(p));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
}

/* A free block that is large enough for what was asked, and not what the request needs. */
static void test_the_hint_fits_what_the_request_needs(void **state) {
    static const int presets[] = { PRESET_TORCH, PRESET_TORCH_GROWING, PRESET_PLAIN,
                                   PRESET_DEFAULT };
    void *p, *q, *r;
    (void)state;
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        begin(presets[i]);
        ds_stream s = harness_stream(0, 0);
        p = block(3 * MIB / 2, s);
        limit_to(ds_mem_get_reserved(harness_device(0)));
        no_memory(ds_mem_alloc(512, s, &q));
        has(ds_error_get_last(), "is in segments for large requests; single_pool:True");
        assert_null(strstr(ds_error_get_last(), "another stream"));
        ds_mem_config c;
        ok(ds_mem_get_config(harness_device(0), &c));
        c.single_pool = 1; /* as it says */
        ok(ds_mem_configure(harness_device(0), &c));
        ok(ds_mem_alloc(512, s, &q));
        ok(ds_mem_free(q));
        ok(ds_mem_free(p));
        limit_to(0);
        ok(ds_stream_destroy(s));
        finish();
    }
    ds_mem_config c = config_of(PRESET_TORCH);
    c.small_segment_size = 16 * MIB;
    begin_with(&c);
    ds_stream s = harness_stream(0, 0);
    p = block(512, s);
    limit_to(16 * MIB);
    no_memory(ds_mem_alloc(4 * MIB, s, &q));
    has(ds_error_get_last(),
        "a free block of 16.00 MiB is in segments for small requests; single_pool:True");
    ok(ds_mem_free(p));
    limit_to(0);
    finish();
    begin(PRESET_TORCH); /* alignment */
    p = block(3 * MIB / 2, s);
    q = block(15 * MIB, s);
    limit_to(20 * MIB);
    no_memory(ds_mem_alloc_with(
        &(ds_mem_request){ .size = 3 * MIB, .stream = s, .alignment = 2 * MIB }, &r));
    has(ds_error_get_last(),
        "a free block of 3.50 MiB would fit, but the alignment enlarges the request to 5.00 MiB");
    ok(ds_mem_alloc(3 * MIB, s, &r));
    ok(ds_mem_free(r));
    ok(ds_mem_free(q));
    ok(ds_mem_free(p));
    limit_to(0);
    finish();
    c = config_of(PRESET_TORCH);
    ok(ds_mem_config_parse("roundup_power2_divisions:2", &c));
    begin_with(&c);
    p = block(8 * MIB, s);
    q = block(3 * MIB / 2, s);
    limit_to(20 * MIB);
    no_memory(ds_mem_alloc(9 * MIB, s, &r));
    has(ds_error_get_last(), "a free block of 10.50 MiB would fit, but roundup_power2_divisions "
                             "enlarges the request to 12.00 MiB");
    ok(ds_mem_free(q));
    ok(ds_mem_free(p));
    limit_to(0);
    finish();
    c = config_of(PRESET_TORCH);
    c.guard_bytes = 512;
    begin_with(&c);
    p = block(3 * MIB / 2 - 512, s);
    limit_to(20 * MIB);
    no_memory(ds_mem_alloc(20 * MIB - 3 * MIB / 2, s, &r));
    has(ds_error_get_last(),
        "a free block of 18.50 MiB would fit, but guard_bytes enlarges the request to 18.50 MiB");
    ok(ds_mem_free(p));
    limit_to(0);
    ok(ds_stream_destroy(s));
    finish();
}

/* Captures one allocation of 40 MiB on the stream. */
static ds_result ask_in_a_capture(ds_stream s, char words[512]) {
    ds_graph g;
    void *p;
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ds_result r = ds_mem_alloc(40 * MIB, s, &p);
    snprintf(words, 512, "%s", ds_error_get_last());
    if (r == DS_OK)
        ok(ds_mem_free(p));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_destroy(g));
    return r;
}

static void test_the_hint_fits_what_an_open_capture_forbids(void **state) {
    char words[512];
    void *p;
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        gate g = { 0 };
        begin(preset);
        harness_warm_up();
        ds_stream s = harness_stream(0, 0), user = harness_stream(0, 0);
        limit_to(100 * MIB);
        p = block(80 * MIB, s);
        ok(ds_mem_free(p));
        ok(ds_stream_synchronize(s));
        refused(ask_in_a_capture(s, words), DS_ERR_LIMIT_EXCEEDED);
        has(words, "80.00 MiB are cached, but cannot be freed while a capture is open; call "
                   "ds_mem_empty_cache before the capture");
        ok(ds_mem_empty_cache(harness_device(0), NULL)); /* as it says */
        ok(ask_in_a_capture(s, words));
        p = block(80 * MIB, s);
        gate_close(user, &g);
        ok(ds_mem_record_use(p, user));
        ok(ds_mem_free(p));
        refused(ask_in_a_capture(s, words), DS_ERR_LIMIT_EXCEEDED);
        has(words, "80.00 MiB are freed but in use by other streams, which are not polled while a "
                   "capture is open; empty the cache before the capture");
        gate_open(&g);
        ok(ds_mem_empty_cache(harness_device(0), NULL));
        ok(ask_in_a_capture(s, words));
        limit_to(0);
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(user));
        finish();
    }
}

static void test_the_hint_tells_streams_of_a_capture_from_others(void **state) {
    ds_graph g;
    void *p, *q;
    (void)state;
    begin(PRESET_TORCH);
    harness_warm_up();
    ds_stream s = harness_stream(0, 0), other = harness_stream(0, 0);
    p = block(3 * MIB, other); /* its segment is in use, so emptying the cache would not help */
    limit_to(20 * MIB);
    ok(ds_capture_begin(other, DS_CAPTURE_RELAXED));
    no_memory(ds_mem_alloc(4 * MIB, s, &q));
    has(ds_error_get_last(), "a free block of 17.00 MiB belongs to another stream, and this stream "
                             "cannot wait for it while a capture is open");
    ok(ds_capture_end(other, &g));
    ok(ds_graph_destroy(g));
    no_memory(ds_mem_alloc(4 * MIB, s, &q));
    has(ds_error_get_last(), "with reuse:on_shortage this stream may wait for it");
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    /* two streams of one capture */
    limit_to(60 * MIB);
    ok(ds_capture_begin(s, DS_CAPTURE_RELAXED));
    ok(ds_mem_alloc(40 * MIB, s, &p));
    ok(ds_stream_wait_stream(other, s));
    ok(ds_fill(p, 1, 1, MIB, other));
    ok(ds_mem_record_use(p, other));
    ok(ds_mem_free(p));
    ok(ds_stream_wait_stream(s, other));
    no_memory(ds_mem_alloc(40 * MIB, s, &q));
    has(ds_error_get_last(),
        "40.00 MiB are freed, and other streams of the capture have used them; "
        "graph_capture_record_stream_reuse:True");
    has(ds_mem_get_last_report(), ", from the capture's own pool\n");
    limit_to(0);
    ok(ds_capture_end(s, &g));
    ok(ds_graph_destroy(g));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
    finish();
}

static void test_a_report_names_the_big_owner_and_other_processes(void **state) {
    scarce sc;
    void *p, *q, *rest;
    (void)state;
    ds_mem_config c = ds_mem_config_torch();
    scarce_begin(&sc, 256 * MIB, &c);
    ds_stream s = harness_stream(0, 0);
    size_t avail;
    ok(ds_device_get_memory_info(harness_device(0), &avail, NULL));
    p = labelled("weights", avail / 4 * 3, s);
    no_memory(ds_mem_alloc(avail / 2, s, &q));
    /* on CUDA others have most of the device */
    if (harness_is_cpu())
        has(ds_error_get_last(), "hint: weights has");
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_device_alloc(harness_device(0), avail / 4 * 3, &rest));
    no_memory(ds_mem_alloc(avail / 2, s, &q));
    has(ds_error_get_last(), "are used outside the allocator");
    ok(ds_device_free(rest));
    ok(ds_stream_destroy(s));
    finish();
    scarce_end(&sc);
}

static void *has_no_report(void *arg) {
    (void)arg;
    if (ds_mem_get_last_report()[0])
        abort();
    ok_thread(ds_device_set_current(harness_device(0)));
    if (ds_mem_get_last_report()[0])
        abort();
    void *p;
    ds_stream s;
    ok_thread(ds_stream_create(NULL, &s));
    if (ds_mem_alloc((size_t)1 << 61, s, &p) != DS_ERR_OUT_OF_MEMORY ||
        !ds_mem_get_last_report()[0])
        abort();
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_a_report_belongs_to_its_thread_and_stays_until_the_next(void **state) {
    char kept[8000];
    void *p;
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = harness_stream(0, 0);
    limit_to(64 * MIB);
    no_memory(ds_mem_alloc(100 * MIB, s, &p));
    snprintf(kept, sizeof kept, "%s", ds_mem_get_last_report());
    assert_true(strlen(kept) > 300 && strlen(ds_error_get_last()) < 511);
    join(spawn(has_no_report, NULL));
    refused(ds_mem_alloc(1, s, NULL), DS_ERR_INVALID_VALUE);
    assert_string_equal(ds_mem_get_last_report(), kept);
    no_memory(ds_mem_alloc(200 * MIB, s, &p));
    assert_non_null(strstr(ds_mem_get_last_report(), "200.00 MiB"));
    limit_to(0);
    ok(ds_stream_destroy(s));
    finish();
    harness_shutdown();
    assert_string_equal(ds_mem_get_last_report(), "");
}

/* Runs out of memory again and again, and has blocks of its own. */
static void *keep_failing(void *label) {
    ds_stream s;
    void *p, *q;
    ok_thread(ds_device_set_current(harness_device(0)));
    ok_thread(ds_stream_create(NULL, &s));
    for (int i = 0; i < 30; i++) {
        ok_thread(ds_mem_alloc_with(
            &(ds_mem_request){ .size = MIB / 2, .stream = s, .label = label }, &p));
        if (ds_mem_alloc((size_t)900 << 20, s, &q) >= 0 ||
            !strstr(ds_mem_get_last_report(), "900.00 MiB") ||
            !strstr(ds_mem_get_last_report(), label))
            abort();
        ok_thread(ds_mem_free(p));
    }
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_threads_that_fail_at_once_have_a_report_each(void **state) {
    static char labels[4][8] = { "north", "east", "south", "west" };
    pthread_t threads[4];
    (void)state;
    begin(PRESET_DEFAULT);
    limit_to(512 * MIB);
    for (int i = 0; i < 4; i++)
        threads[i] = spawn(keep_failing, labels[i]);
    for (int i = 0; i < 4; i++)
        join(threads[i]);
    assert_int_equal(stat(0, "num_ooms"), 120);
    limit_to(0);
    finish();
}

static void test_a_report_does_not_break_an_open_capture(void **state) {
    ds_graph g;
    void *p;
    (void)state;
    for (int preset = 0; preset < PRESETS; preset++) {
        begin(preset);
        harness_warm_up();
        ds_stream s = harness_stream(0, 0);
        limit_to(64 * MIB);
        ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
        harness_watch(s);
        no_memory(ds_mem_alloc(100 * MIB, s, &p));
        has(ds_error_get_last(), "larger than the limit");
        has(ds_mem_get_last_report(), "hint: ");
        ok(ds_capture_end(s, &g));
        ok(ds_graph_destroy(g));
        limit_to(0);
        ok(ds_stream_destroy(s));
        finish();
    }
}

/* ---- leaks ---- */

static char told[4000];

static void keep_log(const ds_log_item *item, void *user) {
    (void)user;
    size_t n = strlen(told);
    if (item->level == DS_LOG_WARNING)
        snprintf(told + n, sizeof told - n, "%s\n", item->text);
}

static void test_shutdown_tells_blocks_that_were_not_freed_by_owner(void **state) {
    ds_init_desc desc = { .log_fn = keep_log, .log_level = DS_LOG_WARNING };
    char line[200];
    void *p;
    (void)state;
    harness_restart(&desc);
    told[0] = 0;
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(0) }, &s));
    p = labelled("leaky", 3 * MIB, s);
    p = labelled("leaky", MIB, s);
    p = block(100, s);
    ok(ds_mem_free(p));
    ok(ds_mem_alloc(2048, s, &p));
    int where = __LINE__ - 1;
    ok(ds_stream_destroy(s));
    harness_shutdown();
    snprintf(line, sizeof line, "2 blocks of leaky on %s:%d, 4.00 MiB, were not freed\n",
             harness_is_cpu() ? "cpu" : "cuda", harness_device(0).index);
    has(told, line);
    snprintf(line, sizeof line, "test_memory_text.c:%d on %s:%d, 2.00 KiB, was not freed\n", where,
             harness_is_cpu() ? "cpu" : "cuda", harness_device(0).index);
    has(told, line);
    has(told, "1 block of ");
    harness_restart(NULL);
}

const struct CMUnitTest tests_memory_text[] = {
    DS_TEST(test_a_wrong_option_is_an_error_that_names_the_character, "torch 56"),
    DS_TEST(test_the_grammar_is_that_of_the_peer, "torch 56"),
    DS_TEST(test_every_option_reaches_its_member, "torch 56"),
    DS_TEST(test_a_limit_is_bytes_or_a_part_of_the_device, "peers 93"),
    DS_TEST(test_a_text_forgets_three_options_and_keeps_the_others, "torch 56"),
    DS_TEST(test_allocations_follow_the_text_that_came_last, "torch 56"),
    DS_TEST(test_statistics_have_123_names_in_order_with_their_values, "torch 45"),
    DS_TEST(test_a_name_of_the_peers_list_gives_its_member, "torch 45"),
    DS_TEST(test_the_summary_has_the_layout_of_the_peer, "torch 4.4"),
    DS_TEST_CPU(test_a_cpu_device_is_used_by_this_process, "torch 4.4"),
    DS_TEST_CUDA(test_nvml_tells_which_processes_use_a_gpu, "torch 4.4"),
    DS_TEST(test_an_error_for_lack_of_memory_names_sizes_and_the_device, "torch 49, peers e.4"),
    DS_TEST(test_a_device_that_is_too_small_is_named_as_such, "torch 49"),
    DS_TEST(test_the_ten_biggest_owners_are_listed_in_order, "torch 49, peers e.4"),
    DS_TEST(test_a_thousand_owners_do_not_hide_the_biggest, "review"),
    DS_TEST(test_the_hint_fits_what_is_in_the_way, "torch 49, peers e.4"),
    DS_TEST(test_the_hint_fits_what_the_request_needs, "torch 49, peers e.4"),
    DS_TEST(test_the_hint_fits_what_an_open_capture_forbids, "torch 49, 75, peers e.4"),
    DS_TEST(test_the_hint_tells_streams_of_a_capture_from_others, "torch 49, 75, peers e.4"),
    DS_TEST(test_a_report_names_the_big_owner_and_other_processes, "torch 49"),
    DS_TEST(test_a_report_belongs_to_its_thread_and_stays_until_the_next, "torch 49"),
    DS_TEST(test_threads_that_fail_at_once_have_a_report_each, "torch 49"),
    DS_TEST(test_a_report_does_not_break_an_open_capture, "torch 75"),
    DS_TEST(test_shutdown_tells_blocks_that_were_not_freed_by_owner, "torch 49")
};
const size_t tests_memory_text_count = sizeof tests_memory_text / sizeof tests_memory_text[0];
