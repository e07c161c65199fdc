/* Copies and fills around the caches (os/stream_copy.h): each way at all alignments, the choice by
   the size of the cache, and operations of the CPU driver with a cache that is made small. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"

enum { ROOM = 300 << 10, GUARD = 128 };

static unsigned char source[ROOM + 2 * GUARD];
static unsigned char target[ROOM + 2 * GUARD] __attribute__((aligned(4096)));

static const size_t sizes[] = { 0,   1,   63,   64,    65,    127,   128,   200,
                                255, 256, 4095, 16383, 16384, 16447, 20000, 40000 };

enum { SIZES = sizeof sizes / sizeof *sizes };

static void fill_source(void) {
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (unsigned char)(i * 167 + i / 251);
}

static void expect_copied(size_t to, size_t from, size_t n) {
    for (size_t i = 0; i < to + n + GUARD; i++) {
        unsigned char want = i >= to && i < to + n ? source[from + i - to] : 0xEE;
        if (target[i] != want)
            fail_msg("copy of %zu bytes from %zu to %zu: byte %td", n, from, to,
                     (ptrdiff_t)i - (ptrdiff_t)to);
    }
}

#if defined(__x86_64__) && !defined(DS__SANITIZED)
static void measured(uint64_t lines, uint64_t pages) {
    ds__stream_state.count = DS__STREAM_TRIALS;
    ds__stream_state.best[DS__STREAM_LINES] = lines;
    ds__stream_state.best[DS__STREAM_PAGES] = pages;
}

static void test_pages_must_be_a_tenth_faster(void **state) {
    (void)state;
    measured(UINT64_MAX, UINT64_MAX);
    assert_int_equal(ds__stream_way(), DS__STREAM_LINES);
    measured(1000, 950);
    assert_int_equal(ds__stream_way(), DS__STREAM_LINES);
    measured(1000, 890);
    assert_int_equal(ds__stream_way(), DS__STREAM_PAGES);
    measured(1000, 4500);
    assert_int_equal(ds__stream_way(), DS__STREAM_LINES);
}

static void test_first_large_copies_measure_both_ways(void **state) {
    (void)state;
    measured(UINT64_MAX, UINT64_MAX);
    ds__stream_state.count = 0;

    ds__stream_copy((char *)target, (const char *)source, DS__STREAM_MEASURED - 64);
    assert_true(ds__stream_state.best[0] == UINT64_MAX && ds__stream_state.count == 0);
    for (int i = 0; i < DS__STREAM_WAYS; i++)
        ds__stream_copy((char *)target, (const char *)source, DS__STREAM_MEASURED);

    assert_true(ds__stream_state.best[DS__STREAM_LINES] < UINT64_MAX);
    assert_true(ds__stream_state.best[DS__STREAM_PAGES] < UINT64_MAX);
}

static void test_later_copies_measure_seldom(void **state) {
    (void)state;
    int changes = 0;
    measured(UINT64_MAX, UINT64_MAX);

    for (int i = DS__STREAM_TRIALS; i < DS__STREAM_PERIOD; i++) {
        ds__stream_copy((char *)target, (const char *)source, DS__STREAM_MEASURED);
        changes += ds__stream_state.best[0] != UINT64_MAX || ds__stream_state.best[1] != UINT64_MAX;
    }
    assert_int_equal(changes, 0);

    ds__stream_copy((char *)target, (const char *)source, DS__STREAM_MEASURED);
    assert_true(ds__stream_state.best[DS__STREAM_LINES] < UINT64_MAX);
}
#else
static void measured(uint64_t lines, uint64_t pages) {
    (void)lines, (void)pages;
}
#endif

static void test_each_way_copies_at_all_alignments(void **state) {
    (void)state;
    fill_source();
    for (int pages = 0; pages < 2; pages++)
        for (size_t to = GUARD; to < GUARD + 64; to += to % 16 < 2 ? 1 : 7)
            for (size_t k = 0; k < SIZES; k++) {
                size_t from = GUARD + (to * 5 + k) % 64;
                measured(1000, pages ? 500 : 2000);
                memset(target, 0xEE, to + sizes[k] + GUARD);
                ds__stream_copy((char *)target + to, (const char *)source + from, sizes[k]);
                expect_copied(to, from, sizes[k]);
            }
}

static void test_fills_repeat_the_word_at_all_alignments(void **state) {
    (void)state;
    const uint64_t word = 0x0807060504030201u;
    for (size_t to = GUARD; to < GUARD + 64; to++)
        for (size_t k = 0; k < SIZES; k++) {
            memset(target, 0xEE, to + sizes[k] + GUARD);
            ds__stream_fill((char *)target + to, word, sizes[k]);
            for (size_t i = 0; i < to + sizes[k] + GUARD; i++) {
                unsigned char want = 0xEE;
                if (i >= to && i < to + sizes[k])
                    want = (unsigned char)((i - to) % 8 + 1);
                if (target[i] != want)
                    fail_msg("fill of %zu bytes at %zu: byte %td", sizes[k], to,
                             (ptrdiff_t)i - (ptrdiff_t)to);
            }
        }
}

/* ---- the choice ------------------------------------------------------------------------------ */

static const size_t MIB = 1 << 20;

static int copy_pays(size_t bytes) {
    return ds__stream_pays(bytes, bytes);
}

static void test_sizes_of_caches_are_read(void **state) {
    (void)state;
    assert_true(ds__os_cache_parse("32768K\n") == 32 * MIB);
    assert_true(ds__os_cache_parse("480M\n") == 480 * MIB);
    assert_true(ds__os_cache_parse("") == 0 && ds__os_cache_parse("12\n") == 0);
}

static void test_a_copy_that_fits_the_cache_stays_in_it(void **state) {
    (void)state;
    ds__os_cache_state = 32 * MIB;
    assert_false(copy_pays(16 * MIB - 1));
    assert_true(copy_pays(16 * MIB));
    ds__os_cache_state = 16 * MIB;
    assert_true(copy_pays(8 * MIB));
    ds__os_cache_state = 480 * MIB;
    assert_false(copy_pays(32 * MIB - 1));
    assert_true(copy_pays(32 * MIB));
    ds__os_cache_state = 0;
}

static void test_a_fill_must_be_twice_the_cache(void **state) {
    (void)state;
    ds__os_cache_state = 32 * MIB;
    assert_false(ds__stream_pays(0, 64 * MIB - 2));
    assert_true(ds__stream_pays(0, 64 * MIB));
    ds__os_cache_state = 480 * MIB;
    assert_false(ds__stream_pays(0, 64 * MIB));
    assert_true(ds__stream_pays(0, 960 * MIB));
    ds__os_cache_state = 0;
}

static void test_small_copies_do_not_ask_for_the_cache(void **state) {
    (void)state;
    ds__os_cache_state = 0;
    assert_false(copy_pays(MIB));
    assert_true(ds__os_cache_state == 0);
    (void)copy_pays(16 * MIB);
    assert_true(ds__os_cache_state > 0);
    ds__os_cache_state = 0;
}

/* ---- operations of the driver ---------------------------------------------------------------- */

static ds_stream stream;

static int begin(void **state) {
    (void)state;
    if (ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .workers = 2 } }) < 0)
        return 1;
    ds__os_cache_state = 1 * MIB;
    return ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream) < 0;
}

static int end(void **state) {
    (void)state;
    ds__os_cache_state = 0;
    return ds_stream_destroy(stream) < 0 || ds_shutdown() < 0;
}

static void test_large_copies_of_the_driver_are_right(void **state) {
    (void)state;
    const size_t n = 5 * MIB + 77;
    char *dst;
    char *src;
    ok(ds_device_alloc(ds_cpu(0), n + 64, (void **)&dst));
    ok(ds_device_alloc(ds_cpu(0), n + 64, (void **)&src));
    for (size_t i = 0; i < n + 64; i++)
        src[i] = (char)(i * 31 + i / 4099);

    for (size_t shift = 0; shift < 20; shift += 19) {
        memset(dst, 0x11, n + 64);
        ok(ds_copy(dst + shift, src + 3, n, stream));
        ok(ds_stream_synchronize(stream));
        assert_memory_equal(dst + shift, src + 3, n);
        assert_true(dst[shift + n] == 0x11 && (!shift || dst[shift - 1] == 0x11));
    }

    ok(ds_device_free(dst));
    ok(ds_device_free(src));
}

static void test_large_fills_of_the_driver_are_right(void **state) {
    (void)state;
    const size_t n = 5 * MIB + 72;
    const uint32_t value = 0x44332211u;
    unsigned char *dst;
    ok(ds_device_alloc(ds_cpu(0), n + 64, (void **)&dst));

    for (size_t size = 1; size <= 4; size *= 2) {
        size_t shift = size * 3;
        uint32_t one = size < 4 ? value & ((1u << 8 * size) - 1) : value;
        memset(dst, 0xEE, n + 64);
        ok(ds_fill(dst + shift, one, size, n / size, stream));
        ok(ds_stream_synchronize(stream));
        for (size_t i = 0; i < n + 64; i++) {
            unsigned char want = 0xEE;
            if (i >= shift && i < shift + n)
                want = (unsigned char)(value >> 8 * ((i - shift) % size));
            if (dst[i] != want)
                fail_msg("fill of %zu-byte values: byte %td", size,
                         (ptrdiff_t)i - (ptrdiff_t)shift);
        }
    }

    ok(ds_device_free(dst));
}

int main(void) {
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__) && !defined(DS__SANITIZED)
        cmocka_unit_test(test_pages_must_be_a_tenth_faster),
        cmocka_unit_test(test_first_large_copies_measure_both_ways),
        cmocka_unit_test(test_later_copies_measure_seldom),
#endif
        cmocka_unit_test(test_each_way_copies_at_all_alignments),
        cmocka_unit_test(test_fills_repeat_the_word_at_all_alignments),
        cmocka_unit_test(test_sizes_of_caches_are_read),
        cmocka_unit_test(test_a_copy_that_fits_the_cache_stays_in_it),
        cmocka_unit_test(test_a_fill_must_be_twice_the_cache),
        cmocka_unit_test(test_small_copies_do_not_ask_for_the_cache),
        cmocka_unit_test_setup_teardown(test_large_copies_of_the_driver_are_right, begin, end),
        cmocka_unit_test_setup_teardown(test_large_fills_of_the_driver_are_right, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
