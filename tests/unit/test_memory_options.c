/* The allocator's options: presets, ranges, the grammar and where it goes wrong, the sizes that
   follow from them. And its texts: cells of the summary, sizes, hints. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_alloc.h"
#include "alloc/config_text.h"

#include <locale.h>
#include <setjmp.h>
#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static ds_mem_config torch_config;

static int begin(void **state) {
    (void)state;
    torch_config = ds_mem_config_torch();
    return 0;
}

/* ---- presets and ranges ---- */

static void test_presets_are_valid_and_as_documented(void **state) {
    ds_mem_config d = ds_mem_config_default(), t = ds_mem_config_torch(), c = ds_mem_config_cupy();
    (void)state;
    assert_int_equal(ds__config_check(&d), DS_OK);
    assert_int_equal(ds__config_check(&t), DS_OK);
    assert_int_equal(ds__config_check(&c), DS_OK);
    assert_true(d.expandable_segments && !t.expandable_segments && !c.expandable_segments);
    assert_true(!d.best_fit_by_address && t.best_fit_by_address && c.best_fit_by_address);
    assert_true(!d.single_pool && !t.single_pool && c.single_pool);
    assert_true(d.reuse == DS_REUSE_ON_SHORTAGE && t.reuse == DS_REUSE_NEVER &&
                c.reuse == DS_REUSE_NEVER);
    assert_true(!d.poll_on_alloc && t.poll_on_alloc && !c.poll_on_alloc);
    assert_int_equal(d.large_segment_size, 8 * MIB);
    assert_int_equal(t.large_segment_size, 20 * MIB);
    assert_int_equal(t.small_segment_size, 2 * MIB);
    assert_int_equal(t.max_non_split_rounding, 20 * MIB);
    assert_true(t.max_split_size == SIZE_MAX && t.memory_fraction == 1 && t.limit == 0 &&
                t.expandable_segments_reserve == 1.125);
    assert_true(d.pinned_max_round_threshold == 0 && t.pinned_max_round_threshold == SIZE_MAX &&
                t.pinned_max_cached_size == SIZE_MAX);
}

/* Changes one member, expects a refusal whose sentence has these words, and changes it back. */
#define REFUSED(member, value, ...)                                              \
    do {                                                                         \
        ds_mem_config changed_ = ds_mem_config_torch();                          \
        const char *words_[] = { #member, __VA_ARGS__ };                         \
        changed_.member = (value);                                               \
        assert_int_equal(ds__config_check(&changed_), DS_ERR_INVALID_VALUE);     \
        for (size_t i_ = 0; i_ < sizeof words_ / sizeof words_[0]; i_++)         \
            if (!strstr(ds_error_get_last(), words_[i_]))                        \
                fail_msg("'%s' is not in: %s", words_[i_], ds_error_get_last()); \
    } while (0)
#define ACCEPTED(member, value)                         \
    do {                                                \
        ds_mem_config changed_ = ds_mem_config_torch(); \
        changed_.member = (value);                      \
        if (ds__config_check(&changed_) != DS_OK)       \
            fail_msg("%s", ds_error_get_last());        \
    } while (0)

static void test_every_member_has_a_range_and_the_sentence_names_it(void **state) {
    ds_mem_config zeroed;
    (void)state;
    memset(&zeroed, 0, sizeof zeroed);
    assert_int_equal(ds__config_check(&zeroed), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds__config_check(NULL), DS_ERR_INVALID_VALUE);
    REFUSED(backend, 3, "3");
    REFUSED(backend, -1, "-1");
    REFUSED(expandable_segments, 2, "2");
    REFUSED(best_fit_by_address, -1, "-1");
    REFUSED(single_pool, 7, "7");
    REFUSED(reuse, 3, "3");
    REFUSED(poll_on_alloc, 2, "2");
    REFUSED(statistics, 2, "2");
    REFUSED(debug, 3, "3");
    REFUSED(poison, 2, "2");
    REFUSED(throw_on_cudamalloc_oom, 2, "2");
    REFUSED(graph_capture_record_stream_reuse, 2, "2");
    REFUSED(pinned_use_cuda_host_register, 2, "2");
    REFUSED(guard_bytes, 100, "100", "512");
    REFUSED(guard_bytes, ((size_t)1 << 30) + 512, "1 GiB");
    REFUSED(small_segment_size, 0, "0");
    REFUSED(small_segment_size, MIB, "1048576");
    REFUSED(large_segment_size, 3 * MIB, "3145728");
    REFUSED(large_segment_size, 0, "0");
    REFUSED(max_split_size, 20 * MIB - 1, "20971519", "20971520");
    REFUSED(max_non_split_rounding, 18 * MIB, "18874368", "large_segment_size");
    REFUSED(pinned_reserve_segment_size, 4095, "4095");
    REFUSED(garbage_collection_threshold, 1, "1");
    REFUSED(garbage_collection_threshold, -0.1, "-0.1");
    REFUSED(garbage_collection_threshold, 0.0 / (double)torch_config.limit, "nan");
    REFUSED(memory_fraction, 1.001, "1.001");
    REFUSED(memory_fraction, -1, "-1");
    REFUSED(expandable_segments_reserve, 0, "0");
    REFUSED(expandable_segments_reserve, 1025, "1025");
    REFUSED(expandable_segments_reserve, 1e19, "1e+19");
    REFUSED(pinned_num_register_threads, 0, "0");
    REFUSED(pinned_num_register_threads, 3, "3", "128");
    REFUSED(pinned_num_register_threads, 256, "256");
    REFUSED(roundup_power2_divisions[15], 65, "65");
    ACCEPTED(max_split_size, 20 * MIB);
    ACCEPTED(memory_fraction, 0);
    ACCEPTED(garbage_collection_threshold, 0.999);
    ACCEPTED(guard_bytes, 512);
    ACCEPTED(expandable_segments_reserve, 40e9);
    ACCEPTED(limit, SIZE_MAX);
    ACCEPTED(segment_growth, UINT32_MAX);
    ACCEPTED(roundup_power2_divisions[0], 64);
}

/* ---- sizes ---- */

static ds_mem_config with_divisions(unsigned char coded) {
    ds_mem_config c = ds_mem_config_torch();
    memset(c.roundup_power2_divisions, coded, sizeof c.roundup_power2_divisions);
    return c;
}

static void test_sizes_are_rounded_to_512(void **state) {
    static const size_t pairs[][2] = { { 1, 512 },
                                       { 511, 512 },
                                       { 512, 512 },
                                       { 513, 1024 },
                                       { MIB, MIB },
                                       { MIB + 1, MIB + 512 },
                                       { SIZE_MAX - 511, SIZE_MAX - 511 },
                                       { SIZE_MAX - 510, SIZE_MAX - 511 },
                                       { SIZE_MAX, SIZE_MAX - 511 } };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        assert_int_equal(ds__config_round_size(&torch_config, pairs[i][0]), pairs[i][1]);
}

static void test_one_division_is_none(void **state) {
    ds_mem_config c = with_divisions(1);
    (void)state;
    for (size_t n = 1; n < 10 * MIB; n = n * 3 + 1)
        assert_int_equal(ds__config_round_size(&c, n), ds__config_round_size(&torch_config, n));
}

static void test_a_power_of_two_is_divided_into_equal_steps(void **state) {
    static const size_t steps[][2] = { { 1024, 1024 }, { 1025, 1280 }, { 1200, 1280 },
                                       { 1280, 1280 }, { 1281, 1536 }, { 1793, 2048 },
                                       { 2048, 2048 } };
    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        assert_int_equal(ds__round_by_power2(steps[i][0], 2), steps[i][1]);
    assert_int_equal(ds__round_by_power2(5, 3), 8); /* more divisions than bytes */
    assert_int_equal(ds__round_by_power2(5, 63), 8);
    assert_int_equal(ds__round_by_power2(((size_t)1 << 63) + 1, 1),
                     ((size_t)1 << 63) + ((size_t)1 << 62));
    assert_int_equal(ds__round_by_power2(SIZE_MAX, 1), SIZE_MAX - 511);
    assert_int_equal(ds__round_by_power2((size_t)1 << 63, 3), (size_t)1 << 63);
}

/* Adds up steps, as the definition says. */
static size_t divided(size_t n, size_t divisions) {
    size_t pow2 = 1, at;
    while (pow2 < n)
        pow2 *= 2;
    if (pow2 == n)
        return n;
    for (at = pow2 / 2; at < n; at += pow2 / 2 / divisions) {
    }
    return at;
}

static void test_divisions_follow_the_definition_where_they_apply(void **state) {
    uint64_t x = 88172645463325252u;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        unsigned coded = (unsigned)(x >> 32) % 10 + 1;
        size_t n = (x >> 8) % ((size_t)1 << (10 + x % 30)) + 1,
               divisions = (size_t)1 << (coded - 1);
        ds_mem_config c = with_divisions((unsigned char)coded);
        size_t want = coded > 1 && n > 512 * divisions ? divided(n, divisions)
                      : n < 512                        ? 512
                                                       : (n + 511) / 512 * 512;
        assert_int_equal(ds__config_round_size(&c, n), want);
    }
}

static void test_each_interval_has_divisions_of_its_own(void **state) {
    ds_mem_config c = ds_mem_config_torch();
    (void)state;
    assert_int_equal(ds_mem_config_parse("garbage_collection_threshold:0.5,roundup_power2_"
                                         "divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]",
                                         &c),
                     DS_OK);
    assert_int_equal(ds__config_round_size(&c, 84 * MIB), 88 * MIB); /* of 8 */
    /* the first counts for smaller ones too */
    assert_int_equal(ds__config_round_size(&c, 3 * MIB + 1), 3 * MIB + 256 * 1024);
    assert_int_equal(ds__config_round_size(&c, 300000), 327680);       /* below 1 MiB as well */
    assert_int_equal(ds__config_round_size(&c, 400 * MIB), 512 * MIB); /* of 2 */
    assert_int_equal(ds__config_round_size(&c, 1100 * MIB + 1), 1100 * MIB + 512);
    assert_int_equal(ds__config_round_size(&c, (size_t)100 << 30), (size_t)100 << 30);
    assert_int_equal(ds_mem_config_parse("roundup_power2_divisions:[32768:4]", &c), DS_OK);
    /* the last interval has no end */
    assert_int_equal(ds__config_round_size(&c, ((size_t)1 << 40) + 1),
                     ((size_t)1 << 40) + ((size_t)1 << 38));
}

static void test_segments_have_the_sizes_of_the_policy(void **state) {
    ds_mem_config d = ds_mem_config_default(), t = torch_config, c = ds_mem_config_cupy();
    (void)state;
    assert_int_equal(ds__config_segment_size(&t, DS__SMALL, 512), 2 * MIB);
    assert_int_equal(ds__config_segment_size(&t, DS__SMALL, MIB), 2 * MIB);
    assert_int_equal(ds__config_segment_size(&t, DS__LARGE, MIB + 512), 20 * MIB);
    assert_int_equal(ds__config_segment_size(&t, DS__LARGE, 10 * MIB - 512), 20 * MIB);
    assert_int_equal(ds__config_segment_size(&t, DS__LARGE, 10 * MIB), 10 * MIB);
    assert_int_equal(ds__config_segment_size(&t, DS__LARGE, 10 * MIB + 512), 12 * MIB);
    assert_int_equal(ds__config_segment_size(&d, DS__LARGE, 4 * MIB - 512), 8 * MIB);
    assert_int_equal(ds__config_segment_size(&d, DS__LARGE, 4 * MIB), 4 * MIB);
    assert_int_equal(ds__config_segment_size(&d, DS__LARGE, 5 * MIB), 6 * MIB);
    /* nothing is that large */
    assert_int_equal(ds__config_segment_size(&t, DS__LARGE, SIZE_MAX - 511), SIZE_MAX - 511);
    for (size_t n = 512; n < 100 * MIB; n = (n * 3 + 512) & ~(size_t)511)
        assert_int_equal(ds__config_segment_size(&c, n <= MIB ? DS__SMALL : DS__LARGE, n), n);
}

static void test_the_reserve_is_a_multiple_or_a_number_of_bytes(void **state) {
    ds_mem_config c = torch_config;
    const size_t total = (size_t)16 << 30;
    (void)state;
    assert_int_equal(ds__config_reserve_size(&c, total, 2 * MIB), (size_t)18 << 30);
    assert_int_equal(ds_mem_config_parse("expandable_segments_reserve:0.5", &c), DS_OK);
    assert_int_equal(ds__config_reserve_size(&c, total, 2 * MIB), (size_t)8 << 30);
    assert_int_equal(ds_mem_config_parse("expandable_segments_reserve:4G", &c), DS_OK);
    assert_int_equal(ds__config_reserve_size(&c, total, 2 * MIB), (size_t)4 << 30);
    assert_int_equal(ds_mem_config_parse("expandable_segments_reserve:40G", &c), DS_OK);
    /* more could never be used */
    assert_int_equal(ds__config_reserve_size(&c, total, 2 * MIB), (size_t)18 << 30);
    c.expandable_segments_reserve = 1e-9;
    assert_int_equal(ds__config_reserve_size(&c, total, 2 * MIB), 2 * MIB);
    c.expandable_segments_reserve = 1024;
    assert_true(ds__config_reserve_size(&c, SIZE_MAX, 2 * MIB) <= (size_t)1e18);
}

/* ---- numbers ---- */

static void test_numbers_are_those_of_c_in_every_locale(void **state) {
    static const char *const texts[] = {
        "0.5",         "1",   "0",     ".25",    "5e-1",
        "1e2",         "0.1", "0.499", "3.0e+0", "0.333333333333333",
        "12345678.75", "1E1", "7.",    "0.3"
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        double got = -1;
        assert_int_equal(ds__config_real_parse(texts[i], &got), strlen(texts[i]));
        assert_true(got == strtod(texts[i], NULL));
    }
    static const char *const wrong[] = { "", ".", "x", "-1", "e5", "+1", "inf", "nan" };
    double ignored = 0;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(ds__config_real_parse(wrong[i], &ignored), 0);
    assert_int_equal(ds__config_real_parse("1e", &ignored), 1);
    assert_int_equal(ds__config_real_parse("1.2.3", &ignored), 3);
    assert_int_equal(ds__config_real_parse("123456789012345678901234567890", &ignored), 30);
    assert_true(ignored > 1.2345678e29 && ignored < 1.2345679e29);
    assert_int_equal(ds__config_real_parse("1e99999", &ignored), 7);
    assert_true(ignored > 1e299);
}

/* Every text of up to three of these pieces, and some of six, is read or refused; a refusal
   changes nothing and names a character of the text. */
static void test_no_text_breaks_the_parser(void **state) {
    static const char *const pieces[] = { "",
                                          "max_split_size_mb",
                                          "roundup_power2_divisions",
                                          "expandable_segments_reserve_by_class",
                                          "limit",
                                          ":",
                                          ",",
                                          "[",
                                          "]",
                                          "64",
                                          ">",
                                          "True",
                                          " ",
                                          "99999999999999999999",
                                          "0.5G",
                                          "%" };

    enum { COUNT = sizeof pieces / sizeof pieces[0] };

    uint64_t x = 88172645463325252u;
    (void)state;
    for (uint64_t i = 0; i < COUNT * COUNT * COUNT + 6000; i++) {
        char text[300] = "";
        ds_mem_config c = torch_config;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        for (uint64_t n = i < COUNT * COUNT * COUNT ? i : x >> 40; n; n /= COUNT)
            strcat(text, pieces[n % COUNT]);
        if (ds_mem_config_parse(text, &c) == DS_OK) {
            assert_int_equal(ds__config_check(&c), DS_OK);
        } else {
            const char *at = strstr(ds_error_get_last(), "character ");
            assert_memory_equal(&c, &torch_config, sizeof c);
            assert_non_null(at);
            long where = strtol(at + 10, NULL, 10);
            assert_true(where >= 1 && (size_t)where <= strlen(text) + 1);
        }
    }
}

/* ---- texts ---- */

static void test_cells_take_the_unit_of_their_first_row(void **state) {
    static const struct {
        int counts;
        int64_t value, unit_of;
        const char *want;
    } cells[] = { { 0, 0, 0, "     0 B  " },
                  { 0, 786431, 786431, "786431 B  " },
                  { 0, 786432, 786432, "   768 KiB" },
                  { 0, 512, 786432, "     0 KiB" },
                  { 0, 805306367, 805306367, "786431 KiB" },
                  { 0, 805306368, 805306368, "   768 MiB" },
                  { 0, (int64_t)768 << 30, (int64_t)768 << 30, "   768 GiB" },
                  { 0, (int64_t)768 << 40, (int64_t)768 << 40, "   768 TiB" },
                  { 0, (int64_t)768 << 50, (int64_t)768 << 50, "   768 PiB" },
                  { 0, INT64_MAX, INT64_MAX, "  8191 PiB" },
                  { 1, 0, 0, "      0   " },
                  { 1, 749999, 749999, " 749999   " },
                  { 1, 750000, 750000, "    750 K " },
                  { 1, 1999, 750000, "      1 K " },
                  { 1, 750000000, 750000000, "    750 M " },
                  { 1, 7500000000000, 7500000000000, "7500000 M " } };

    (void)state;
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        char got[32];
        ds__report_cell_format(got, cells[i].counts, cells[i].value, cells[i].unit_of);
        assert_string_equal(got, cells[i].want);
    }
}

static void test_sizes_change_their_unit_above_a_whole_one(void **state) {
    static const struct {
        size_t size;
        const char *want;
    } sizes[] = { { 0, "0 bytes" },
                  { 1024, "1024 bytes" },
                  { 1025, "1.00 KiB" },
                  { MIB, "1024.00 KiB" },
                  { MIB + 1, "1.00 MiB" },
                  { 1024 * MIB, "1024.00 MiB" },
                  { 1024 * MIB + 1, "1.00 GiB" },
                  { (size_t)80 << 30, "80.00 GiB" },
                  { SIZE_MAX, "17179869184.00 GiB" } };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_string_equal(DS__SIZE(sizes[i].size), sizes[i].want);
}

/* A shortage of 100 MiB on a device of 1 GiB, of which the program has 900 MiB in live blocks. */
static ds__mem_dev device;

static ds__oom_facts shortage(void) {
    ds__oom_facts s;
    memset(&s, 0, sizeof s);
    device.main.config = ds_mem_config_torch();
    atomic_store(&device.main.policy, &device.main.config); /* what code without a lock reads */
    device.has_space = 0;
    device.device = ds_cpu(0);
    s.dev = &device;
    s.pool = &device.main;
    s.wanted = s.size = s.segment = 100 * MIB;
    s.kind = DS__LARGE;
    s.total = 1024 * MIB;
    s.known = 1;
    s.reserved = s.live = s.pool_reserved = 900 * MIB;
    s.live_count = 9;
    s.free = 50 * MIB;
    return s;
}

static void hint_of(ds__oom_facts *s, const char *words) {
    ds__oom_hint(s);
    if (!strstr(s->hint, words))
        fail_msg("'%s' is not in: %s", words, s->hint);
    assert_true(strlen(s->hint) < 160); /* ds_error_get_last() has room for it */
}

static void test_each_hint_has_its_case(void **state) {
    ds__oom_facts s = shortage();
    (void)state;
    hint_of(&s, "live blocks use all memory");
    s.tops = 1;
    snprintf(s.top[0].name, sizeof s.top[0].name, "cache");
    s.top[0].bytes = 500 * MIB;
    hint_of(&s, "cache has 500.00 MiB of the 900.00 MiB allocated bytes");
    s.reserved = s.live = 300 * MIB;
    s.outside = 700 * MIB;
    hint_of(&s, "700.00 MiB of the device are used outside the allocator");
    s = shortage();
    s.limit = 950 * MIB;
    hint_of(&s, "only the limit of 950.00 MiB prevents the allocation");
    s.pool_limit = 920 * MIB;
    hint_of(&s, "only the pool's limit of 920.00 MiB prevents the allocation");
    s.private_cached = 120 * MIB;
    hint_of(&s, "120.00 MiB are free in private pools");
    s.pool_cached = 130 * MIB;
    hint_of(&s, "130.00 MiB are cached in pieces too small; allocate long-lived blocks first");
    device.has_space = 1;
    hint_of(&s, "with expandable_segments:True");
    device.main.config.expandable_segments = 1;
    hint_of(&s, "roundup_power2_divisions");
    s.mine = 90 * MIB;
    s.wanted = 80 * MIB;
    hint_of(&s,
            "a free block of 90.00 MiB would fit, but rounding enlarges the request to 100.00 MiB");
    device.main.config.roundup_power2_divisions[6] = 2;
    hint_of(&s, "but roundup_power2_divisions enlarges the request to 100.00 MiB");
    device.main.config.guard_bytes = 512;
    hint_of(&s, "but guard_bytes enlarges");
    s.aligned = 1;
    hint_of(&s, "but the alignment enlarges");
    s.wanted = s.size;
    s.elsewhere = 100 * MIB;
    hint_of(&s, "a free block of 100.00 MiB is in segments for small requests; single_pool:True");
    s.kind = DS__SMALL;
    hint_of(&s, "in segments for large requests");
    s.theirs = 110 * MIB;
    hint_of(&s, "a free block of 110.00 MiB belongs to another stream; with reuse:on_shortage");
    device.main.config.reuse = DS_REUSE_ON_SHORTAGE;
    hint_of(&s, "wait for that stream");
    s.apart = 1;
    hint_of(&s, "and this stream cannot wait for it while a capture is open");
    device.main.config.max_split_size = 105 * MIB;
    s.kept = 110 * MIB;
    hint_of(&s, "is not split because of max_split_size, 105.00 MiB");
    s.mine = 100 * MIB;
    hint_of(&s, "100.00 MiB was freed during the call");
    s.pool_pending = 100 * MIB;
    hint_of(&s, "100.00 MiB are freed but in use by other streams; synchronize");
    s.capturing = 1; /* but nothing that would go back is enough, or what there is is enough */
    s.back = s.pool_back = 40 * MIB;
    hint_of(&s, "was freed during the call");
    s.awaited = s.pool_awaited = 60 * MIB;
    hint_of(&s, "60.00 MiB are freed but in use by other streams, which are not polled while a "
                "capture is open");
    s.back = s.pool_back = 110 * MIB;
    hint_of(&s, "110.00 MiB are cached, but cannot be freed while a capture is open; call "
                "ds_mem_empty_cache before the capture");
    s.limit = 850 * MIB; /* that alone is not enough */
    hint_of(&s, "60.00 MiB are freed but in use by other streams, which");
    s.limit = 800 * MIB;
    hint_of(&s, "was freed during the call");
    s.limit = 0;
    s.pool_limit = 880 * MIB; /* 900 MiB are reserved in the pool */
    hint_of(&s, "60.00 MiB are freed but in use by other streams, which");
    s.pool_limit = 0;
    s.free = 100 * MIB;
    hint_of(&s, "was freed during the call");
    s.capturing = 0;
    s.pool_limit = 90 * MIB;
    hint_of(&s, "larger than the pool's limit of 90.00 MiB");
    s.limit = 80 * MIB;
    hint_of(&s, "larger than the limit of 80.00 MiB");
    s.wanted = 1025 * MIB;
    hint_of(&s, "the device is smaller");
    s.wanted = (size_t)1 << 60;
    hint_of(&s, "2^60");
}

static void test_the_short_text_ends_with_the_hint_whatever_the_names(void **state) {
    (void)state;
    for (size_t letters = 1; letters < 79; letters += 7) {
        char line[450];
        ds__oom_page page = { line, sizeof line, 0 };
        ds__oom_facts s = shortage();
        s.limit = s.pool_limit = 950 * MIB;
        s.total = (size_t)123456 << 30;
        s.pending = s.private_cached = s.cached = 99 * MIB;
        s.largest = 20 * MIB;
        for (s.tops = 0; s.tops < DS__TOP; s.tops++) {
            memset(s.top[s.tops].name, 'a' + (int)s.tops, letters);
            s.top[s.tops].bytes = (100 - s.tops) * MIB;
        }
        ds__oom_hint(&s);
        ds__oom_line(&s, &page);
        assert_true(page.n < sizeof line && strlen(line) == page.n &&
                    strlen(line) > strlen(s.hint));
        assert_string_equal(line + page.n - strlen(s.hint), s.hint);
        assert_non_null(strstr(line, "fragmentation 80 %"));
        assert_non_null(strstr(line, "; most: a"));
    }
}

/* ---- debug ---- */

/* 1: what asks the driver for memory or gives it back sees that something is damaged; 2: every
   call. Told by the result, but by a free. */
static char warned[400];

static void keep_warning(const ds_log_item *item, void *user) {
    (void)user;
    if (item->level == DS_LOG_WARNING)
        snprintf(warned, sizeof warned, "%s", item->text);
}

static void test_each_level_of_debug_looks_at_its_calls(void **state) {
    (void)state;
    for (int level = 0; level <= 2; level++) {
        const ds_result slow = level >= 1 ? DS_ERR_ILLEGAL_STATE : DS_OK,
                        any = level >= 2 ? DS_ERR_ILLEGAL_STATE : DS_OK;
        const ds_cpu_desc cpu = { .devices = 1 };
        const ds_device d = ds_cpu(0);
        ds_mem_config c = ds_mem_config_default();
        ds_stream s, t;
        ds_pool pool;
        void *p, *q, *pinned;
        c.debug = level;
        assert_int_equal(ds_init(&(ds_init_desc){
                             .cpu = &cpu, .log_fn = keep_warning, .log_level = DS_LOG_WARNING }),
                         DS_OK);
        assert_int_equal(ds_mem_configure(d, &c), DS_OK);
        assert_int_equal(ds_stream_create(&(ds_stream_desc){ .device = d }, &s), DS_OK);
        assert_int_equal(ds_stream_create(&(ds_stream_desc){ .device = d }, &t), DS_OK);
        assert_int_equal(ds_pool_create(&(ds_pool_desc){ .device = d }, &pool), DS_OK);
        assert_int_equal(ds_mem_alloc(4096, s, &p), DS_OK);
        assert_int_equal(ds_mem_alloc(4096, s, &q), DS_OK);
        assert_int_equal(ds_mem_free(q), DS_OK); /* cached */
        assert_int_equal(ds_mem_pinned_alloc(4096, &pinned), DS_OK);
        ds__arena *a = ds__mem_device_at(ds__backend_of(d), 0)->main.arenas,
                  *host = ds__host.arena[0];
        a->pending_bytes += 512;
        host->pending_bytes += 512;
        warned[0] = 0;
        assert_int_equal(ds_mem_trim(d, SIZE_MAX, NULL), slow);
        assert_int_equal(ds_mem_alloc(32 * MIB, s, &q), slow);
        if (level == 0)
            assert_int_equal(ds_mem_free(q), DS_OK);
        assert_int_equal(ds_mem_empty_cache(d, NULL), slow);
        assert_int_equal(ds_pool_empty_cache(pool, NULL), slow);
        assert_int_equal(ds_mem_alloc(4096, s, &q), any); /* cached */
        if (!any)
            assert_int_equal(ds_mem_free(q), DS_OK);
        assert_string_equal(warned, "");
        assert_int_equal(ds_mem_record_use(p, t), any);
        assert_int_equal(ds_mem_record_stream(p, t), any);
        assert_int_equal(ds_mem_free(p), DS_OK);
        assert_int_equal(strstr(warned, "bytes are pending") != NULL, level == 2);
        assert_int_equal(ds_mem_pinned_alloc(32 * MIB, &q), slow);
        if (!slow)
            assert_int_equal(ds_mem_pinned_free(q), DS_OK);
        assert_int_equal(ds_mem_pinned_alloc(4096, &q), any);
        if (!any)
            assert_int_equal(ds_mem_pinned_free(q), DS_OK);
        assert_int_equal(ds_mem_pinned_record_use(pinned, s), any);
        assert_int_equal(ds_mem_pinned_empty_cache(NULL), slow);
        assert_int_equal(ds_mem_pinned_free(pinned), any);
        a->pending_bytes -= 512;
        host->pending_bytes -= 512;
        assert_int_equal(ds_mem_validate(d), DS_OK);
        assert_int_equal(ds_shutdown(), DS_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_are_valid_and_as_documented),
        cmocka_unit_test(test_every_member_has_a_range_and_the_sentence_names_it),
        cmocka_unit_test(test_sizes_are_rounded_to_512),
        cmocka_unit_test(test_one_division_is_none),
        cmocka_unit_test(test_a_power_of_two_is_divided_into_equal_steps),
        cmocka_unit_test(test_divisions_follow_the_definition_where_they_apply),
        cmocka_unit_test(test_each_interval_has_divisions_of_its_own),
        cmocka_unit_test(test_segments_have_the_sizes_of_the_policy),
        cmocka_unit_test(test_the_reserve_is_a_multiple_or_a_number_of_bytes),
        cmocka_unit_test(test_numbers_are_those_of_c_in_every_locale),
        cmocka_unit_test(test_no_text_breaks_the_parser),
        cmocka_unit_test(test_cells_take_the_unit_of_their_first_row),
        cmocka_unit_test(test_sizes_change_their_unit_above_a_whole_one),
        cmocka_unit_test(test_each_hint_has_its_case),
        cmocka_unit_test(test_the_short_text_ends_with_the_hint_whatever_the_names),
        cmocka_unit_test(test_each_level_of_debug_looks_at_its_calls)
    };
    return _cmocka_run_group_tests("memory options", tests, sizeof tests / sizeof tests[0], begin,
                                   NULL);
}
