/* Pinned host memory: its cache, the streams and graphs that use its blocks, its statistics. */
#include "alloc.h"
#include <stdatomic.h>

#include <sys/mman.h>

static const ds_device host = { DS_DEVICE_HOST, 0 };

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

static ds_mem_pinned_stats stats(void) {
    ds_mem_pinned_stats s = { 0 };
    ok_thread(ds_mem_pinned_get_stats(&s));
    return s;
}

static void *pinned(size_t size) {
    void *p = NULL;
    ok_thread(ds_mem_pinned_alloc(size, &p));
    if (!p)
        harness_die("ds_mem_pinned_alloc gave no address", DS_OK);
    return p;
}

static int64_t active_after_emptying(void) {
    ok_thread(ds_mem_pinned_empty_cache(NULL));
    return stats().active_requests.current;
}

/* CUDA waits for all work of the device before it frees pinned memory (docs/gpu, R2). */
static void empty_cache_beside_gates(void) {
    if (harness_is_cpu())
        ok(ds_mem_pinned_empty_cache(NULL));
}

static int owns(const void *p) {
    int yes = 77;
    ok_thread(ds_mem_pinned_owns(p, &yes));
    return yes;
}

/* With this policy, and with nothing of tests before. */
static void start_with(const ds_mem_config *config) {
    DS_IGNORE(ds_mem_pinned_empty_cache(NULL));
    if (stats().allocated_bytes.current)
        harness_shutdown();
    begin_with(config);
    ok(ds_mem_pinned_reset_accumulated_stats());
    ok(ds_mem_pinned_reset_peak_stats());
}

static void start(int preset) {
    ds_mem_config c = config_of(preset);
    start_with(&c);
}

/* All blocks are freed and all streams synchronized: nothing may be left. */
static void over(void) {
    ok(ds_mem_validate(host));
    ok(ds_mem_pinned_empty_cache(NULL));
    ok(ds_mem_validate(host));
    ds_mem_pinned_stats s = stats();
    assert_int_equal(s.allocations.current, 0);
    assert_int_equal(s.active_requests.current, 0);
    assert_int_equal(s.active_bytes.current, 0);
    assert_int_equal(s.allocated_bytes.current, 0);
    assert_int_equal(s.num_host_alloc, s.num_host_free);
    assert_int_equal(s.active_bytes.allocated, s.active_bytes.freed);
    assert_int_equal(s.active_requests.allocated, s.active_requests.freed);
    assert_int_equal(s.allocated_bytes.allocated, s.allocated_bytes.freed);
    finish();
}

static const int presets[] = { PRESET_DEFAULT, PRESET_TORCH, PRESET_CUPY };
#define EACH_PRESET(i) for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)

/* ---- blocks ---- */

static void test_a_freed_block_is_used_again_at_once(void **state) {
    (void)state;
    static const size_t sizes[] = { 1, 700, 4096, 100 * KIB, 3 * MIB, 10 * MIB + 5 };
    EACH_PRESET(i) {
        start(presets[i]);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            void *p = pinned(sizes[k]);
            memset(p, 0x5a, sizes[k]); /* the host may use it now */
            ok(ds_mem_pinned_free(p));
            int64_t calls = stats().num_host_alloc;
            void *q = pinned(sizes[k]);
            assert_ptr_equal(p, q);
            assert_int_equal(stats().num_host_alloc, calls);
            ok(ds_mem_pinned_free(q));
        }
        over();
    }
}

static void test_nothing_is_allocated_for_size_zero(void **state) {
    (void)state;
    EACH_PRESET(i) {
        int here, yes = 77;
        void *p = &here;
        start(presets[i]);
        ds_stream s = stream(0);
        ok(ds_mem_pinned_alloc(0, &p));
        assert_null(p);
        ok(ds_mem_pinned_free(NULL));
        ok(ds_mem_pinned_record_use(NULL, s));
        ok(ds_mem_pinned_owns(NULL, &yes));
        assert_int_equal(yes, 0);
        assert_int_equal(stats().allocations.allocated, 0);
        assert_int_equal(stats().num_host_alloc, 0);
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_blocks_are_aligned_to_512_and_from_4_kib_on_to_that(void **state) {
    (void)state;
    EACH_PRESET(i) {
        void *p[60];
        size_t n = 0;
        start(presets[i]);
        for (size_t size = 1; size < 20 * MIB && n < 60; size = size * 3 / 2 + 1) {
            p[n] = pinned(size);
            assert_int_equal((uintptr_t)p[n] % (size < 4096 ? 512 : 4096), 0);
            memset(p[n], (int)n, size);
            n++;
        }
        ok(ds_mem_validate(host));
        /* nobody wrote over another's */
        for (size_t k = 0; k < n; k++)
            assert_int_equal(*(unsigned char *)p[k], k);
        for (size_t k = 0; k < n; k++)
            ok(ds_mem_pinned_free(p[k]));
        over();
    }
}

static void test_large_blocks_are_not_rounded_to_powers_of_two(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    void *p = pinned(5 * MIB + 1), *q = pinned(33 * MIB);
    assert_int_equal(stats().active_bytes.current, 38 * MIB + 4096);
    assert_int_equal(stats().allocated_bytes.current, 38 * MIB + 4096);
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_free(q));
    over();
}

static void test_small_blocks_share_segments(void **state) {
    (void)state;
    void *p[200];
    ds_mem_config c = config_of(PRESET_DEFAULT);
    start_with(&c);
    for (int i = 0; i < 200; i++)
        p[i] = pinned(5000);
    assert_int_equal(stats().num_host_alloc, 2); /* of 1 MiB, 128 blocks in each */
    assert_int_equal(stats().allocated_bytes.current, 2 * MIB);
    assert_int_equal(stats().active_bytes.current, 200 * 8192);
    for (int i = 0; i < 200; i++)
        ok(ds_mem_pinned_free(p[i]));
    over();
    c.pinned_reserve_segment_size = 16 * MIB;
    start_with(&c);
    for (int i = 0; i < 4; i++)
        p[i] = pinned(4 * MIB);
    assert_int_equal(stats().num_host_alloc, 1);
    assert_int_equal(stats().allocated_bytes.current, 16 * MIB);
    for (int i = 0; i < 4; i++)
        ok(ds_mem_pinned_free(p[i]));
    over();
}

static void test_blocks_are_split_and_merge_again(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    char *whole = pinned(12 * MIB), *a, *b, *c;
    ok(ds_mem_pinned_free(whole));
    a = pinned(3 * MIB);
    b = pinned(4 * MIB);
    c = pinned(5 * MIB);
    assert_ptr_equal(a, whole);
    assert_ptr_equal(b, whole + 3 * MIB);
    assert_ptr_equal(c, whole + 7 * MIB);
    assert_int_equal(stats().num_host_alloc, 1);
    ok(ds_mem_pinned_free(b));
    ok(ds_mem_pinned_free(a));
    ok(ds_mem_pinned_free(c));
    assert_ptr_equal(pinned(12 * MIB), whole);
    ok(ds_mem_pinned_free(whole));
    over();
}

static void test_the_smallest_block_that_fits_is_taken(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    void *large = pinned(20 * MIB), *middle = pinned(9 * MIB), *least = pinned(5 * MIB);
    ok(ds_mem_pinned_free(middle));
    ok(ds_mem_pinned_free(least));
    ok(ds_mem_pinned_free(large));
    assert_ptr_equal(pinned(8 * MIB), middle);
    assert_ptr_equal(pinned(4 * MIB), least);
    assert_ptr_equal(pinned(15 * MIB), large);
    ok(ds_mem_pinned_free(middle));
    ok(ds_mem_pinned_free(least));
    ok(ds_mem_pinned_free(large));
    over();
}

static void test_a_block_serves_only_its_size_if_sizes_are_rounded(void **state) {
    (void)state;
    for (size_t i = 1; i < sizeof presets / sizeof *presets; i++) {
        start(presets[i]);
        void *p = pinned(16 * KIB), *q, *r;
        ok(ds_mem_pinned_free(p));
        q = pinned(32 * KIB); /* larger */
        assert_ptr_not_equal(p, q);
        r = pinned(8 * KIB);
        assert_ptr_not_equal(p, r);
        assert_int_equal(stats().num_host_alloc, 3);
        assert_ptr_equal(pinned(9 * KIB), p);
        ok(ds_mem_pinned_free(p));
        ok(ds_mem_pinned_free(q));
        ok(ds_mem_pinned_free(r));
        over();
    }
}

static void test_wrong_calls_are_refused_and_change_nothing(void **state) {
    (void)state;
    EACH_PRESET(i) {
        int here;
        void *p = &here, *d;
        start(presets[i]);
        ds_stream s = stream(0), gone = stream(0);
        ok(ds_stream_destroy(gone));
        refused(ds_mem_pinned_alloc(100, NULL), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_free(&here), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_owns(&here, NULL), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_record_use(&here, s), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_get_stats(NULL), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_alloc(SIZE_MAX, &p), DS_ERR_OUT_OF_MEMORY);
        assert_null(p);
        refused(ds_mem_pinned_alloc(SIZE_MAX / 2, &p), DS_ERR_OUT_OF_MEMORY);
        p = pinned(5000);
        d = block(5000, s);
        refused(ds_mem_pinned_free((char *)p + 512), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_free(d), DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_error_get_last(), "ds_mem_free"));
        refused(ds_mem_free(p), DS_ERR_INVALID_VALUE);
        assert_non_null(strstr(ds_error_get_last(), "ds_mem_pinned_free"));
        refused(ds_pinned_free(p), DS_ERR_INVALID_VALUE);
        refused(ds_mem_record_use(p, s), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_record_use(d, s), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_record_use(p, gone), DS_ERR_INVALID_HANDLE);
        assert_int_equal(stats().allocations.current, 1);
        ok(ds_mem_pinned_free(p));
        refused(ds_mem_pinned_free(p), DS_ERR_INVALID_VALUE);
        refused(ds_mem_pinned_record_use(p, s), DS_ERR_INVALID_VALUE);
        assert_int_equal(stats().allocations.current, 0);
        ok(ds_mem_free(d));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_blocks_are_found_by_any_address_in_them(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    ds_mem_label_push("input");
    char *p = pinned(3 * MIB + 1000);
    ds_mem_label_pop();
    ds_mem_block b = find(p + 3 * MIB);
    assert_ptr_equal(b.ptr, p);
    assert_int_equal(b.requested, 3 * MIB + 1000);
    assert_int_equal(b.device.type, DS_DEVICE_HOST);
    assert_int_equal(b.state, DS_BLOCK_LIVE);
    assert_string_equal(b.label, "input");
    ds_pointer_info info;
    ok(ds_pointer_get_info(p + 5, &info));
    assert_int_equal(info.kind, DS_MEMORY_PINNED);
    ok(ds_mem_pinned_free(p));
    over();
}

static void test_the_cache_knows_its_blocks_and_nothing_else(void **state) {
    (void)state;
    EACH_PRESET(i) {
        int here = 0;
        void *raw;
        start(presets[i]);
        char *p = pinned(100 * KIB);
        ds_stream s = stream(0);
        assert_int_equal(owns(p), 1);
        assert_int_equal(owns(p + 5000), 1);
        ok(ds_pinned_alloc(100, &raw));
        assert_int_equal(owns(raw), 0);
        assert_int_equal(owns(&here), 0);
        void *d = block(100, s);
        assert_int_equal(owns(d), 0);
        ok(ds_mem_pinned_record_use(p + 5000, s));
        ok(ds_mem_pinned_free(p));
        assert_int_equal(owns(p), 0);
        ok(ds_stream_synchronize(s));
        ok(ds_mem_pinned_empty_cache(NULL));
        assert_int_equal(owns(p), 0);
        ok(ds_pinned_free(raw));
        ok(ds_mem_free(d));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_the_largest_segment_stays_until_the_cache_is_emptied(void **state) {
    (void)state;
    EACH_PRESET(i) {
        size_t released = 77;
        start(presets[i]);
        ok(ds_mem_pinned_empty_cache(&released)); /* before any allocation */
        assert_int_equal(released, 0);
        void *p = pinned(64 * MIB);
        ok(ds_mem_pinned_empty_cache(&released));
        assert_int_equal(released, 0);
        ok(ds_mem_pinned_free(p));
        assert_int_equal(stats().allocated_bytes.current, 64 * MIB);
        assert_int_equal(stats().num_host_free, 0);
        ok(ds_mem_pinned_empty_cache(&released));
        assert_int_equal(released, 64 * MIB);
        assert_int_equal(stats().num_host_free, 1);
        over();
    }
}

/* ---- streams ---- */

static void test_a_block_is_not_used_again_while_a_copy_is_in_flight(void **state) {
    (void)state;
    EACH_PRESET(i) {
        gate g = { 0 };
        unsigned char seen = 0;
        start(presets[i]);
        ds_stream s = stream(0);
        unsigned char *p = pinned(2 * MIB), *q, *r, *d = block(2 * MIB, s);
        memset(p, 1, 2 * MIB);
        ok(ds_stream_synchronize(s));
        gate_close(s, &g);
        ok(ds_copy(d, p, 2 * MIB, s));
        ok(ds_mem_pinned_record_use(p, s));
        ok(ds_mem_pinned_free(p));
        assert_int_equal(stats().allocations.current, 0);
        assert_int_equal(stats().active_requests.current, 1);
        assert_int_equal(stats().active_bytes.current, 2 * MIB);
        q = pinned(2 * MIB);
        assert_ptr_not_equal(p, q);
        memset(q, 2, 2 * MIB);
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        r = pinned(2 * MIB);
        assert_ptr_equal(r, p);
        ok(ds_copy(&seen, d + MIB, 1, s));
        ok(ds_stream_synchronize(s));
        assert_int_equal(seen, 1);
        ok(ds_mem_pinned_free(q));
        ok(ds_mem_pinned_free(r));
        ok(ds_mem_free(d));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_a_block_waits_for_every_stream_that_used_it(void **state) {
    (void)state;
    EACH_PRESET(i) {
        gate g[3] = { { 0 } };
        ds_stream s[3];
        start(presets[i]);
        char *p = pinned(2 * MIB), *q;
        for (int k = 0; k < 3; k++) {
            s[k] = stream(k);
            gate_close(s[k], &g[k]);
            ok(ds_mem_pinned_record_use(p + k * 1000, s[k])); /* inside of it */
            ok(ds_mem_pinned_record_use(p, s[k]));
        }
        ok(ds_mem_pinned_free(p));
        for (int k = 2; k >= 0; k--) {
            q = pinned(2 * MIB);
            assert_ptr_not_equal(p, q);
            ok(ds_mem_pinned_free(q));
            empty_cache_beside_gates(); /* only what is done */
            assert_int_equal(stats().active_requests.current, 1);
            gate_open(&g[k]);
            ok(ds_stream_synchronize(s[k]));
        }
        q = pinned(2 * MIB);
        char *other = harness_is_cpu() ? NULL : pinned(2 * MIB);
        assert_true(q == p || other == p);
        ok(ds_mem_pinned_free(q));
        ok(ds_mem_pinned_free(other));
        for (int k = 0; k < 3; k++)
            ok(ds_stream_destroy(s[k]));
        over();
    }
}

static void test_a_use_is_noted_on_the_device_of_its_stream(void **state) {
    (void)state;
    two_devices();
    EACH_PRESET(i) {
        start(presets[i]);
        /* what notes a use is used again on the other device */
        for (int round = 0; round < 4; round++) {
            gate g = { 0 };
            ds_stream busy = stream(round % 2), other = stream(1 - round % 2);
            ds_device before;
            ok(ds_device_set_current(harness_device(1 - round % 2)));
            void *p = pinned(2 * MIB), *q;
            gate_close(busy, &g);
            ok(ds_mem_pinned_record_use(p, busy));
            ok(ds_mem_pinned_free(p));
            ok(ds_stream_synchronize(other));
            q = pinned(2 * MIB);
            assert_ptr_not_equal(p, q);
            gate_open(&g);
            ok(ds_stream_synchronize(busy));
            ok(ds_device_get_current(&before));
            assert_int_equal(before.index, harness_device(1 - round % 2).index);
            ok(ds_mem_pinned_free(q));
            ok(ds_mem_pinned_empty_cache(NULL));
            assert_int_equal(stats().allocated_bytes.current, 0);
            ok(ds_stream_destroy(busy));
            ok(ds_stream_destroy(other));
        }
        ok(ds_device_set_current(harness_device(0)));
        over();
    }
}

static void test_a_use_counts_as_it_was_when_it_was_noted(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    gate g = { 0 };
    ds_stream s = stream(0);
    void *p = pinned(2 * MIB);
    ok(ds_mem_pinned_record_use(p, s));
    ok(ds_stream_synchronize(s));
    gate_close(s, &g); /* later work is not of the block */
    ok(ds_mem_pinned_free(p));
    assert_ptr_equal(pinned(2 * MIB), p);
    ok(ds_mem_pinned_free(p));
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    over();
}

static void test_a_use_of_a_stream_that_has_ended_is_waited_for(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    gate g = { 0 };
    ds_stream s = stream(0);
    void *p = pinned(2 * MIB), *q;
    gate_close(s, &g);
    ok(ds_mem_pinned_record_use(p, s));
    ok(ds_stream_destroy(s));
    ok(ds_mem_pinned_free(p));
    q = pinned(2 * MIB);
    assert_ptr_not_equal(p, q);
    gate_open(&g);
    ok(ds_device_synchronize(harness_device(0)));
    assert_ptr_equal(pinned(2 * MIB), p);
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_free(q));
    over();
}

static void test_a_stream_that_hangs_does_not_keep_the_blocks_of_others(void **state) {
    (void)state;

    enum { N = 150 };

    void *p[N];
    start(PRESET_TORCH);
    gate g = { 0 };
    ds_stream slow = stream(0), fast = stream(0);
    gate_close(slow, &g);
    for (int i = 0; i < N; i++) { /* of sizes of their own */
        p[i] = pinned(16 * KIB);
        ok(ds_mem_pinned_record_use(p[i], slow));
    }
    void *last = pinned(64 * KIB);
    ok(ds_mem_pinned_record_use(last, fast));
    for (int i = 0; i < N; i++)
        ok(ds_mem_pinned_free(p[i]));
    ok(ds_mem_pinned_free(last));
    ok(ds_stream_synchronize(fast));
    void *q = NULL;
    for (int i = 0; i < 10 && q != last; i++) { /* some are asked for at each allocation */
        q = pinned(64 * KIB);
        if (q != last) {
            ok(ds_mem_pinned_record_use(q, slow));
            ok(ds_mem_pinned_free(q));
        }
    }
    assert_ptr_equal(q, last);
    ok(ds_mem_pinned_free(last));
    gate_open(&g);
    ok(ds_stream_synchronize(slow));
    ok(ds_stream_destroy(slow));
    ok(ds_stream_destroy(fast));
    over();
}

static void test_copies_of_pinned_memory_never_block(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    gate g = { 0 };
    ds_stream s = stream(0);
    unsigned char *p = pinned(2 * MIB), *d = block(2 * MIB, s);
    memset(p, 1, 2 * MIB);
    ok(ds_stream_synchronize(s));
    gate_close(s, &g);
    ok(ds_copy(d, p + MIB + 3, MIB - 3, s)); /* from inside of the block */
    ok(ds_copy(p + 7, d + 5, 1000, s));      /* and back */
    p[MIB + 3 + 5] = 9;                      /* it is read when the stream comes there */
    assert_int_equal(p[7], 1);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    assert_int_equal(p[7], 9);
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_free(d));
    ok(ds_stream_destroy(s));
    over();
}

/* ---- captures ---- */

static ds_graph ended_capture(ds_stream s) {
    ds_graph g;
    ok(ds_capture_end(s, &g));
    return g;
}

/* A stream that captures. */
static ds_stream capturing(ds_capture_mode mode) {
    ds_stream s = stream(0);
    harness_warm_up();
    harness_watch(s);
    ok(ds_capture_begin(s, mode));
    return s;
}

static void test_a_block_that_a_capture_did_not_use_is_used_again_in_it(void **state) {
    (void)state;
    EACH_PRESET(i)
    for (ds_capture_mode mode = DS_CAPTURE_GLOBAL; mode <= DS_CAPTURE_RELAXED; mode++) {
        start(presets[i]);
        ds_stream s = capturing(mode);
        void *p = pinned(2 * MIB); /* from the driver, while the capture is open */
        ok(ds_mem_pinned_free(p));
        assert_ptr_equal(pinned(2 * MIB), p);
        ok(ds_mem_pinned_free(p));
        ds_graph g = ended_capture(s);
        ok(ds_graph_destroy(g));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_what_a_capture_used_stays_until_its_graphs_are_gone(void **state) {
    (void)state;
    EACH_PRESET(i)
    for (ds_capture_mode mode = DS_CAPTURE_GLOBAL; mode <= DS_CAPTURE_RELAXED; mode++) {
        unsigned char seen = 0;
        void *q[3];
        start(presets[i]);
        ds_stream s = stream(0);
        unsigned char *d = block(2 * MIB, s), *p = pinned(2 * MIB);
        memset(p, 7, 2 * MIB);
        ok(ds_stream_synchronize(s));
        harness_warm_up();
        harness_watch(s);
        ok(ds_capture_begin(s, mode));
        ok(ds_copy(d, p, 2 * MIB, s));
        ok(ds_mem_pinned_record_use(p + MIB, s));
        ok(ds_mem_pinned_record_use(p, s));
        ok(ds_mem_pinned_free(p));
        q[0] = pinned(2 * MIB); /* not in the capture */
        assert_ptr_not_equal(p, q[0]);
        ds_graph g = ended_capture(s);
        q[1] = pinned(2 * MIB); /* and not afterwards */
        assert_ptr_not_equal(p, q[1]);
        memset(q[1], 9, 2 * MIB);
        ds_graph_exec exec = instantiate_graph(g);
        ok(ds_graph_destroy(g));
        ok(ds_mem_pinned_empty_cache(NULL));
        q[2] = pinned(2 * MIB);
        assert_ptr_not_equal(p, q[2]);
        ok(ds_graph_launch(exec, s));
        ok(ds_copy(&seen, d + 5, 1, s));
        ok(ds_stream_synchronize(s));
        assert_int_equal(seen, 7);
        ok(ds_graph_exec_destroy(exec));
        eventually(active_after_emptying() == 3);
        for (int k = 0; k < 3; k++)
            ok(ds_mem_pinned_free(q[k]));
        ok(ds_mem_free(d));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_two_graphs_keep_a_block_that_both_use(void **state) {
    (void)state;
    EACH_PRESET(i) {
        ds_graph g[2];
        start(presets[i]);
        ds_stream s = stream(0);
        void *d = block(2 * MIB, s), *p = pinned(2 * MIB), *q;
        ok(ds_stream_synchronize(s));
        harness_warm_up();
        harness_watch(s);
        for (int k = 0; k < 2; k++) {
            ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
            ok(ds_copy(d, p, 2 * MIB, s));
            ok(ds_mem_pinned_record_use(p, s));
            g[k] = ended_capture(s);
        }
        ok(ds_mem_pinned_record_use(p, s)); /* and the stream itself */
        ok(ds_mem_pinned_free(p));
        ok(ds_stream_synchronize(s));
        for (int k = 0; k < 2; k++) {
            q = pinned(2 * MIB);
            assert_ptr_not_equal(p, q);
            ok(ds_mem_pinned_free(q));
            ok(ds_mem_pinned_empty_cache(NULL));
            ok(ds_graph_destroy(g[k]));
        }
        q = pinned(2 * MIB);
        assert_ptr_equal(p, q);
        ok(ds_mem_pinned_free(q));
        ok(ds_mem_free(d));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_uses_of_other_streams_are_not_asked_for_in_a_capture(void **state) {
    (void)state;
    EACH_PRESET(i) {
        start(presets[i]);
        ds_stream t = stream(0);
        void *p = pinned(2 * MIB), *q;
        ok(ds_mem_pinned_record_use(p, t));
        ok(ds_stream_synchronize(t));
        ok(ds_mem_pinned_free(p));
        ds_stream s = capturing(DS_CAPTURE_GLOBAL);
        q = pinned(2 * MIB); /* the event is done, but asking would spoil the capture */
        assert_ptr_not_equal(p, q);
        refused(ds_mem_pinned_empty_cache(NULL), DS_ERR_CAPTURE_UNSUPPORTED);
        ds_graph g = ended_capture(s);
        assert_ptr_equal(pinned(2 * MIB), p);
        ok(ds_mem_pinned_free(p));
        ok(ds_mem_pinned_free(q));
        ok(ds_graph_destroy(g));
        ok(ds_stream_destroy(s));
        ok(ds_stream_destroy(t));
        over();
    }
}

static void test_a_graph_that_is_left_at_shutdown_keeps_nobody_from_it(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    ds_stream s = capturing(DS_CAPTURE_THREAD_LOCAL);
    void *p = pinned(2 * MIB);
    ok(ds_mem_pinned_record_use(p, s));
    ok(ds_mem_pinned_free(p));
    ds_graph g = ended_capture(s);
    (void)instantiate_graph(g);
    harness_shutdown();
    start(PRESET_DEFAULT);
    ok(ds_mem_pinned_free(pinned(100)));
    over();
}

/* ---- policy ---- */

static void test_a_threshold_ends_the_rounding(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_TORCH);
    c.pinned_max_round_threshold = 4 * MIB;
    start_with(&c);
    void *p = pinned(3 * MIB), *q = pinned(5 * MIB);
    assert_int_equal(stats().active_bytes.current, 9 * MIB);
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_free(q));
    assert_ptr_equal(pinned(4 * MIB), p);
    assert_ptr_equal(pinned(5 * MIB), q);
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_free(q));
    p = pinned(6 * MIB); /* the free one of 5 MiB is in the same class, but too small */
    assert_ptr_not_equal(p, q);
    memset(p, 1, 6 * MIB);
    ok(ds_mem_pinned_free(p));
    over();
}

static void test_blocks_above_the_cached_size_are_released_when_freed(void **state) {
    (void)state;
    static const size_t thresholds[] = { 0, SIZE_MAX };
    for (size_t i = 0; i < 2; i++) {
        gate g = { 0 };
        ds_mem_config c = config_of(PRESET_DEFAULT);
        c.pinned_max_round_threshold = thresholds[i];
        c.pinned_max_cached_size = 4 * MIB;
        start_with(&c);
        ds_stream s = stream(0);
        void *p = pinned(4 * MIB);
        ok(ds_mem_pinned_free(p));
        assert_int_equal(stats().num_host_free, 0);
        void *q = pinned(8 * MIB);
        assert_int_equal(stats().allocated_bytes.current, 12 * MIB);
        ok(ds_mem_pinned_free(q));
        assert_int_equal(stats().num_host_free, 1);
        assert_int_equal(stats().allocated_bytes.current, 4 * MIB);
        q = pinned(8 * MIB);
        gate_close(s, &g);
        ok(ds_mem_pinned_record_use(q, s));
        ok(ds_mem_pinned_free(q)); /* one that is in use goes when that is over */
        assert_int_equal(stats().num_host_free, 1);
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        p = pinned(2 * MIB);
        void *more = pinned(16 * MIB); /* which nothing fits */
        assert_int_equal(stats().num_host_free, 2);
        ok(ds_mem_pinned_free(p));
        ok(ds_mem_pinned_free(more));
        assert_int_equal(stats().num_host_free, 3);
        ok(ds_stream_destroy(s));
        over();
    }
    ds_mem_config none = config_of(PRESET_DEFAULT); /* no cache at all */
    none.pinned_max_cached_size = 0;
    start_with(&none);
    void *p = pinned(100), *q = pinned(100);
    ok(ds_mem_pinned_free(p));
    assert_int_equal(stats().num_host_free, 0); /* they share a segment */
    ok(ds_mem_pinned_free(q));
    assert_int_equal(stats().num_host_free, 1);
    assert_int_equal(stats().allocated_bytes.current, 0);
    over();
}

static void test_pinned_memory_may_be_memory_that_is_registered(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 8; threads *= 8) {
        ds_pointer_info info;
        unsigned char seen = 0;
        ds_mem_config c = config_of(PRESET_DEFAULT);
        start_with(&c);
        ds_stream s = stream(0);
        unsigned char *plain = pinned(3 * MIB), *d = block(20 * MIB, s);
        c.pinned_use_cuda_host_register = 1;
        c.pinned_num_register_threads = threads;
        ok(ds_mem_configure(harness_device(0), &c));
        unsigned char *p = pinned(20 * MIB), *small = pinned(100);
        ok(ds_pointer_get_info(p + 5, &info));
        assert_int_equal(info.kind, DS_MEMORY_REGISTERED);
        ok(ds_pointer_get_info(plain, &info));
        assert_int_equal(info.kind, DS_MEMORY_PINNED);
        memset(p, 3, 20 * MIB);
        memset(small, 4, 100);
        ok(ds_copy(d, p, 20 * MIB, s));
        ok(ds_copy(d, small, 100, s));
        ok(ds_copy(&seen, d + 20 * MIB - 1, 1, s));
        ok(ds_stream_synchronize(s));
        assert_int_equal(seen, 3);
        refused(ds_pinned_unregister(p), DS_ERR_INVALID_VALUE);
        ok(ds_mem_pinned_free(p));
        ok(ds_mem_pinned_free(small));
        ok(ds_mem_pinned_free(plain));
        c.pinned_use_cuda_host_register = 0; /* each goes back as it came */
        ok(ds_mem_configure(harness_device(0), &c));
        ok(ds_mem_pinned_empty_cache(NULL));
        ok(ds_pointer_get_info(p, &info));
        assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
        ok(ds_mem_free(d));
        ok(ds_stream_destroy(s));
        over();
    }
}

static size_t pages_without_memory(void *p, size_t size) {
    static unsigned char resident[(64 * MIB) / 4096];
    size_t missing = 0, pages = (size + 4095) / 4096;
    assert_int_equal((uintptr_t)p % 4096, 0);
    assert_true(pages <= sizeof resident);
    assert_int_equal(mincore(p, size, resident), 0);
    for (size_t i = 0; i < pages; i++)
        missing += !(resident[i] & 1);
    return missing;
}

/* One that is a whole number of pages and threads, one that is not, and one page. */
static void test_pinned_memory_has_its_pages_when_it_is_allocated(void **state) {
    (void)state;
    not_on_windows("mincore");
    static const size_t sizes[] = { 48 * MIB, 33 * MIB + 4096 * 7 + 5, 4096 };
    ds_mem_config c = ds_mem_config_default();
    start_with(&c);
    for (int i = 0; i < 3; i++) {
        void *p = NULL;
        ok(ds_pinned_alloc(sizes[i], &p));
        assert_int_equal(pages_without_memory(p, sizes[i]), 0);
        ok(ds_pinned_free(p));
        p = pinned(sizes[i]);
        assert_int_equal(pages_without_memory(p, sizes[i]), 0);
        ok(ds_mem_pinned_free(p));
        ok(ds_mem_pinned_empty_cache(NULL));
    }
}

static void test_registered_memory_is_had_while_a_stream_captures(void **state) {
    (void)state;
    ds_mem_config c = config_of(PRESET_DEFAULT);
    c.pinned_use_cuda_host_register = 1;
    for (ds_capture_mode mode = DS_CAPTURE_GLOBAL; mode <= DS_CAPTURE_RELAXED; mode++) {
        start_with(&c);
        ds_stream s = capturing(mode);
        void *p = pinned(2 * MIB);
        ok(ds_mem_pinned_free(p));
        ds_graph g = ended_capture(s);
        ok(ds_graph_destroy(g));
        ok(ds_stream_destroy(s));
        over();
    }
}

static void test_the_policy_that_was_set_last_counts(void **state) {
    (void)state;
    harness_shutdown(); /* texts are for later devices as well */
    ds_mem_config c = ds_mem_config_torch();
    ok(ds_mem_configure(harness_device(0), &c));
    ok(ds_mem_configure_text("pinned_max_cached_size_mb:2")); /* what a struct has set stays */
    void *p = pinned(5 * MIB);
    assert_int_equal(stats().active_bytes.current, 8 * MIB);
    ok(ds_mem_pinned_free(p));
    start(PRESET_DEFAULT);
    ok(ds_mem_configure_text("pinned_max_round_threshold_mb:64"));
    p = pinned(3 * MIB);
    assert_int_equal(stats().active_bytes.current, 4 * MIB);
    ok(ds_mem_configure_text("pinned_max_cached_size_mb:1")); /* the rest stays */
    ok(ds_mem_pinned_free(p));
    assert_int_equal(stats().allocated_bytes.current, 0);
    p = pinned(3 * MIB);
    assert_int_equal(stats().active_bytes.current, 4 * MIB);
    ok(ds_mem_pinned_free(p));
    refused(ds_mem_configure_text("pinned_max_round_threshold_mb:0,nonsense:1"),
            DS_ERR_INVALID_VALUE);
    p = pinned(3 * MIB);
    assert_int_equal(stats().active_bytes.current, 4 * MIB);
    ok(ds_mem_pinned_free(p));
    c = ds_mem_config_default();
    ok(ds_mem_configure(harness_device(0), &c));
    p = pinned(3 * MIB);
    assert_int_equal(stats().active_bytes.current, 3 * MIB);
    ok(ds_mem_set_limit(harness_device(1), (size_t)4 << 30)); /* says nothing of pinned memory */
    ok(ds_mem_pinned_free(p));
    assert_int_equal(stats().allocated_bytes.current, 3 * MIB);
    ok(ds_mem_set_limit(harness_device(1), 0));
    ok(ds_mem_configure_text("preset:torch"));
    p = pinned(5 * MIB);
    assert_int_equal(stats().active_bytes.current, 8 * MIB);
    ok(ds_mem_pinned_free(p));
    over();
    harness_shutdown();
}

static void test_the_environment_sets_the_policy(void **state) {
    (void)state;
    harness_shutdown();
    setenv("DEVSTREAM_ALLOC_CONF", "pinned_max_round_threshold_mb:64", 1);
    void *p = pinned(3 * MIB);
    assert_int_equal(stats().active_bytes.current, 4 * MIB);
    ok(ds_mem_pinned_free(p));
    harness_shutdown();
    setenv("DEVSTREAM_ALLOC_CONF", "pinned_max_round:64", 1);
    p = &p;
    refused(ds_mem_pinned_alloc(100, &p), DS_ERR_INVALID_VALUE);
    assert_null(p);
    unsetenv("DEVSTREAM_ALLOC_CONF");
    harness_shutdown();
    p = pinned(3 * MIB);
    assert_int_equal(stats().active_bytes.current, 3 * MIB);
    ok(ds_mem_pinned_free(p));
}

/* ---- shortage ---- */

static void test_a_limit_counts_reserved_bytes_after_a_cache_flush(void **state) {
    (void)state;
    EACH_PRESET(i) {
        void *p, *q, *r = &r;
        start(presets[i]);
        ok(ds_mem_pinned_set_limit(16 * MIB));
        p = pinned(4 * MIB);
        q = pinned(8 * MIB);
        ok(ds_mem_pinned_free(p));
        p = pinned(4 * MIB);
        ok(ds_mem_pinned_free(q));
        q = pinned(6 * MIB); /* fits or makes the other go */
        ok(ds_mem_pinned_free(q));
        /* only without the cache */
        q = pinned(12 * MIB - (presets[i] == PRESET_DEFAULT ? 0 : 4 * MIB));
        assert_true(stats().allocated_bytes.current <= (int64_t)(16 * MIB));
        refused(ds_mem_pinned_alloc(8 * MIB, &r), DS_ERR_LIMIT_EXCEEDED);
        assert_null(r);
        assert_non_null(strstr(ds_error_get_last(), "8.00 MiB"));
        assert_non_null(strstr(ds_error_get_last(), "16.00 MiB"));
        ok(ds_mem_pinned_set_limit(0));
        r = pinned(8 * MIB);
        ok(ds_mem_pinned_free(p));
        ok(ds_mem_pinned_free(q));
        ok(ds_mem_pinned_free(r));
        over();
    }
}

static void test_a_limit_that_is_set_first_is_kept(void **state) {
    (void)state;
    void *p;
    harness_shutdown();
    ok(ds_mem_pinned_set_limit(MIB));
    p = pinned(700 * KIB);
    refused(ds_mem_pinned_alloc(700 * KIB, &p), DS_ERR_LIMIT_EXCEEDED);
    harness_shutdown();  /* with a block that is not freed */
    p = pinned(3 * MIB); /* another life, no limit */
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_empty_cache(NULL));
}

static void test_a_shortage_waits_for_no_stream(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    gate g = { 0 };
    ds_stream s = stream(0);
    void *q;
    ok(ds_mem_pinned_set_limit(8 * MIB));
    void *p = pinned(8 * MIB);
    gate_close(s, &g);
    ok(ds_mem_pinned_record_use(p, s));
    ok(ds_mem_pinned_free(p));
    refused(ds_mem_pinned_alloc(5 * MIB, &q), DS_ERR_LIMIT_EXCEEDED);
    assert_non_null(strstr(ds_error_get_last(), "synchronize"));
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    q = pinned(5 * MIB);
    assert_ptr_equal(q, p);
    ok(ds_mem_pinned_free(q));
    ok(ds_mem_pinned_set_limit(0));
    ok(ds_stream_destroy(s));
    over();
}

static void test_small_requests_take_less_than_a_segment_in_a_shortage(void **state) {
    (void)state;
    start(PRESET_DEFAULT);
    ok(ds_mem_pinned_set_limit(64 * KIB));
    void *p = pinned(10 * KIB), *q;
    assert_int_equal(stats().allocated_bytes.current, 12 * KIB);
    refused(ds_mem_pinned_alloc(64 * KIB, &q), DS_ERR_LIMIT_EXCEEDED);
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_set_limit(0));
    over();
}

/* ---- statistics ---- */

static void test_statistics_count_as_torch_does(void **state) {
    (void)state;
    start(PRESET_TORCH);
    void *p = pinned(10 * KIB * 4), *q;
    ds_mem_pinned_stats s = stats();
    assert_int_equal(s.active_bytes.current, 64 * KIB);
    assert_int_equal(s.active_requests.current, 1);
    assert_int_equal(s.allocated_bytes.current, 64 * KIB);
    assert_int_equal(s.allocations.current, 1);
    assert_int_equal(s.num_host_alloc, 1);
    assert_int_equal(s.num_host_free, 0);
    assert_int_equal(s.host_alloc_time.count, 1);
    assert_true(s.host_alloc_time.total >= s.host_alloc_time.max &&
                s.host_alloc_time.max >= s.host_alloc_time.avg);
    assert_true(s.host_alloc_time.avg >= s.host_alloc_time.min && s.host_alloc_time.min >= 0);
    ok(ds_mem_pinned_free(p));
    s = stats();
    assert_int_equal(s.active_bytes.current, 0);
    assert_int_equal(s.active_bytes.freed, 64 * KIB);
    assert_int_equal(s.active_bytes.peak, 64 * KIB);
    assert_int_equal(s.active_requests.current, 0);
    assert_int_equal(s.allocated_bytes.current, 64 * KIB);
    p = pinned(64 * KIB);
    q = pinned(1000);
    s = stats();
    assert_int_equal(s.active_bytes.current, 65 * KIB);
    assert_int_equal(s.active_bytes.allocated, 129 * KIB);
    assert_int_equal(s.active_requests.allocated, 3);
    assert_int_equal(s.num_host_alloc, 2);
    ok(ds_mem_pinned_free(q));
    ok(ds_mem_pinned_reset_peak_stats());
    ok(ds_mem_pinned_reset_accumulated_stats());
    s = stats();
    assert_int_equal(s.active_bytes.peak, 64 * KIB);
    assert_int_equal(s.active_bytes.allocated, 0);
    assert_int_equal(s.active_bytes.freed, 0);
    assert_int_equal(s.allocated_bytes.peak, 65 * KIB);
    assert_int_equal(s.num_host_alloc, 0);
    assert_int_equal(s.host_alloc_time.count, 0);
    assert_int_equal(s.host_alloc_time.total, 0);
    assert_int_equal(s.host_alloc_time.max, 0);
    ok(ds_mem_pinned_free(p));
    ok(ds_mem_pinned_empty_cache(NULL));
    s = stats();
    assert_int_equal(s.num_host_free, 2);
    assert_int_equal(s.host_free_time.count, 2);
    assert_int_equal(s.allocated_bytes.freed, 65 * KIB);
    assert_int_equal(s.allocated_bytes.current, 0);
    finish();
}

static void test_statistics_before_the_first_use_are_zero(void **state) {
    (void)state;
    harness_shutdown();
    size_t released = 77;
    ds_mem_pinned_stats s = stats(), zero;
    memset(&zero, 0, sizeof zero);
    assert_memory_equal(&s, &zero, sizeof s);
    ok(ds_mem_pinned_reset_peak_stats());
    ok(ds_mem_pinned_reset_accumulated_stats());
    ok(ds_mem_pinned_empty_cache(&released));
    assert_int_equal(released, 0);
    ok(ds_mem_validate(host));
}

typedef struct sums {
    int64_t live, pending, free, live_bytes, pending_bytes, free_bytes;
    const char *last;
    int disorder;
} sums;

static void add_up(const ds_mem_block *b, void *user) {
    sums *s = user;
    int64_t size = (int64_t)b->size;
    if (s->last && (const char *)b->ptr < s->last)
        s->disorder = 1;
    s->last = (const char *)b->ptr + b->size;
    if (b->device.type != DS_DEVICE_HOST)
        s->disorder = 2;
    if (b->state == DS_BLOCK_LIVE) {
        s->live++;
        s->live_bytes += size;
    } else if (b->state == DS_BLOCK_PENDING) {
        s->pending++;
        s->pending_bytes += size;
    } else {
        s->free++;
        s->free_bytes += size;
    }
}

static void test_blocks_add_up_to_the_statistics(void **state) {
    (void)state;
    EACH_PRESET(i) {
        void *p[20];
        sums sum = { 0 };
        start(presets[i]);
        ds_stream s = stream(0);
        gate g = { 0 };
        gate_close(s, &g);
        for (int k = 0; k < 20; k++)
            p[k] = pinned((size_t)(k * k) * 9999 + 1);
        for (int k = 0; k < 20; k += 3)
            ok(ds_mem_pinned_record_use(p[k], s));
        for (int k = 0; k < 20; k += 2)
            ok(ds_mem_pinned_free(p[k]));
        ok(ds_mem_for_each_block(host, add_up, &sum));
        ds_mem_pinned_stats now = stats();
        assert_int_equal(sum.disorder, 0);
        assert_int_equal(sum.live, now.allocations.current);
        assert_int_equal(sum.live, 10);
        assert_int_equal(sum.live + sum.pending, now.active_requests.current);
        assert_int_equal(sum.pending, 4);
        assert_int_equal(sum.live_bytes + sum.pending_bytes, now.active_bytes.current);
        assert_int_equal(sum.live_bytes + sum.pending_bytes + sum.free_bytes,
                         now.allocated_bytes.current);
        gate_open(&g);
        ok(ds_stream_synchronize(s));
        for (int k = 1; k < 20; k += 2)
            ok(ds_mem_pinned_free(p[k]));
        ok(ds_stream_destroy(s));
        over();
    }
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 300 };

typedef struct crew {
    ds_stream s;
    unsigned seed;
    _Atomic(void *) *shelf;
} crew;

static void *work(void *user) { /* frees what others have left, too */
    crew *c = user;
    for (int i = 0; i < ROUNDS; i++) {
        c->seed = c->seed * 1103515245 + 12345;
        size_t size =
            (c->seed >> 16) % 10 ? (c->seed >> 8) % 9000 + 1 : (c->seed >> 8) % 900000 + 1;
        unsigned char *p = pinned(size);
        p[0] = p[size - 1] = (unsigned char)i;
        if (i % 3 == 0)
            ok_thread(ds_mem_pinned_record_use(p, c->s));
        if (p[0] != (unsigned char)i && size > 1)
            harness_die("somebody else wrote into the block", DS_OK);
        void *old = atomic_exchange(&c->shelf[(c->seed >> 4) % 16], p);
        ok_thread(ds_mem_pinned_free(old));
        if (i % 100 == 99)
            ok_thread(ds_mem_pinned_empty_cache(NULL));
    }
    return NULL;
}

static void test_threads_share_the_cache_and_its_statistics_stay_exact(void **state) {
    (void)state;
    EACH_PRESET(k) {
        static _Atomic(void *) shelf[16];
        ds_mem_config config = config_of(presets[k]);
        crew c[THREADS];
        pthread_t t[THREADS];
        config.debug = 0;
        start_with(&config);
        for (int i = 0; i < THREADS; i++)
            c[i] = (crew){ stream(i), 77u + (unsigned)i, shelf };
        for (int i = 0; i < THREADS; i++)
            t[i] = spawn(work, &c[i]);
        for (int i = 0; i < THREADS; i++)
            join(t[i]);
        for (int i = 0; i < 16; i++)
            ok(ds_mem_pinned_free(atomic_exchange(&shelf[i], NULL)));
        for (int i = 0; i < THREADS; i++) {
            ok(ds_stream_synchronize(c[i].s));
            ok(ds_stream_destroy(c[i].s));
        }
        assert_int_equal(stats().allocations.allocated, THREADS * ROUNDS);
        assert_int_equal(stats().allocations.freed, THREADS * ROUNDS);
        over();
    }
}

static void *one_more(void *user) {
    (void)user;
    return pinned(3 * MIB);
}

static void test_peaks_are_exact_with_any_number_of_threads(void **state) {
    (void)state;
    void *p[5];
    start(PRESET_DEFAULT);
    for (int i = 0; i < 5; i++) {
        pthread_t t = spawn(one_more, NULL);
        assert_int_equal(pthread_join(t, &p[i]), 0);
        assert_int_equal(stats().active_bytes.peak, (i + 1) * (int64_t)(3 * MIB));
    }
    for (int i = 0; i < 5; i++)
        ok(ds_mem_pinned_free(p[i]));
    assert_int_equal(stats().active_bytes.peak, 15 * MIB);
    assert_int_equal(stats().active_requests.peak, 5);
    over();
}

/* ---- random programs ---- */

enum { SLOTS = 24, STREAMS = 3, STEPS = 400 };

/* Each block's contents go to a place of their own on a device, on streams that are held up at
   times; a block that is used again too early leaves the wrong contents there. */
static void random_program(int preset, uint32_t seed) {
    struct {
        unsigned char *p;
        size_t size;
    } live[SLOTS] = { { 0 } };

    static uint32_t expected[STEPS];
    ds_mem_config c = config_of(preset);
    gate g[STREAMS] = { { 0 } };
    int held[STREAMS] = { 0 }, closed = 0;
    /* CUDA waits for all work of the device when memory beyond the limit is freed */
    const int gates = harness_is_cpu() || seed % 3 != 1;
    ds_stream s[STREAMS];
    size_t copies = 0;
    c.debug = 2;
    if (seed % 3 == 1)
        c.pinned_max_cached_size = 200 * KIB;
    if (seed % 4 == 1)
        c.pinned_reserve_segment_size = 256 * KIB;
    if (seed % 5 == 1)
        c.pinned_use_cuda_host_register = 1;
    start_with(&c);
    for (int i = 0; i < STREAMS; i++)
        s[i] = stream(i);
    uint32_t *d = block(STEPS * 2 * sizeof *d, s[0]), n = seed;
    ok(ds_stream_synchronize(s[0]));
#define DICE(sides) ((n = n * 1664525u + 1013904223u) >> 8) % (sides)
    for (int step = 0; step < STEPS; step++) {
        uint32_t at = DICE(SLOTS), k = DICE(STREAMS), what = DICE(100);
        if (!live[at].p && what < 60) {
            live[at].size = DICE(4) ? DICE(20000) + 8 : DICE(1500000) + 8;
            live[at].p = pinned(live[at].size);
            memset(live[at].p, (int)step, 8);
            memset(live[at].p + live[at].size - 8, (int)step, 8);
        } else if (live[at].p && what < 40) { /* it is read at both ends */
            memcpy(&expected[copies], live[at].p, 4);
            ok(ds_copy(d + 2 * copies, live[at].p, 4, s[k]));
            ok(ds_copy(d + 2 * copies + 1, live[at].p + live[at].size - 4, 4, s[k]));
            ok(ds_mem_pinned_record_use(live[at].p + DICE((uint32_t)live[at].size), s[k]));
            copies++;
        } else if (live[at].p) {
            ok(ds_mem_pinned_free(live[at].p));
            live[at].p = NULL;
        } else if (what < 80 && gates) {
            if (held[k])
                gate_open(&g[k]);
            else
                gate_close(s[k], &g[k]);
            if (held[k]) {
                ok(ds_stream_synchronize(s[k]));
                g[k] = (gate){ 0 };
            }
            held[k] = !held[k];
            closed += held[k] ? 1 : -1;
        } else if (what >= 80 && what < 83 && (harness_is_cpu() || !closed)) {
            ok(ds_mem_pinned_empty_cache(NULL));
        }
    }
#undef DICE
    for (int i = 0; i < STREAMS; i++)
        if (held[i])
            gate_open(&g[i]);
    for (int i = 0; i < SLOTS; i++)
        ok(ds_mem_pinned_free(live[i].p));
    for (int i = 0; i < STREAMS; i++) {
        ok(ds_stream_synchronize(s[i]));
        if (i)
            ok(ds_stream_destroy(s[i]));
    }
    static uint32_t seen[2 * STEPS];
    if (copies)
        ok(ds_copy(seen, d, copies * 2 * sizeof *d, s[0]));
    ok(ds_stream_synchronize(s[0]));
    for (size_t i = 0; i < copies; i++)
        if (seen[2 * i] != expected[i] || seen[2 * i + 1] != expected[i])
            fail_msg("seed %u: copy %zu found %#x and %#x, not %#x", (unsigned)seed, i,
                     (unsigned)seen[2 * i], (unsigned)seen[2 * i + 1], (unsigned)expected[i]);
    ok(ds_mem_free(d));
    ok(ds_stream_destroy(s[0]));
    over();
}

static void test_random_programs_find_in_every_copy_its_block(void **state) {
    (void)state;
    for (uint32_t seed = 1; seed <= 12; seed++)
        random_program(presets[seed % 3], seed);
}

/* ---- faults ---- */

static struct {
    _Atomic long live, calls;
    long fail_at;
} books;

static void *book_alloc(size_t size, void *user) {
    (void)user;
    if (++books.calls == books.fail_at)
        return NULL;
    void *p = malloc(size);
    if (p)
        books.live++;
    return p;
}

static void book_free(void *p, void *user) {
    (void)user;
    if (p)
        books.live--;
    free(p);
}

static int failures;
#define WENT(call) ((call) == DS_OK ? 1 : (failures++, 0))
/* What must end is tried again. */
#define ENDS(call)                                            \
    do {                                                      \
        if ((call) != DS_OK && (failures++, (call) != DS_OK)) \
            fail_msg("%s: %s", #call, ds_error_get_last());   \
    } while (0)

static void little_program(const ds_mem_config *c) {
    ds_stream s = { 0 };
    ds_graph g = { 0 };
    void *p[4] = { NULL };
    static const size_t sizes[] = { 100, 9000, 3 << 20, 5 << 20 };
    failures = 0;
    if (!WENT(ds_mem_configure(harness_device(0), c)) &&
        !WENT(ds_mem_configure(harness_device(0), c)))
        fail_msg("%s", ds_error_get_last());
    if (!WENT(ds_stream_create(NULL, &s)))
        ok(ds_stream_create(NULL, &s));
    for (int i = 0; i < 4; i++)
        if (WENT(ds_mem_pinned_alloc(sizes[i], &p[i]))) {
            memset(p[i], i, sizes[i]);
            (void)WENT(ds_mem_pinned_record_use(p[i], s));
        } else
            assert_null(p[i]);
    for (int i = 0; i < 4; i++)
        if (p[i])
            ENDS(ds_mem_pinned_free(p[i]));
    (void)WENT(ds_stream_synchronize(s));
    if (WENT(ds_mem_pinned_alloc(6 << 20, &p[0]))) {
        if (WENT(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL))) {
            (void)WENT(ds_mem_pinned_record_use(p[0], s));
            if (!WENT(ds_capture_end(s, &g)))
                DS_IGNORE(ds_capture_end(s, &g));
        }
        ENDS(ds_mem_pinned_free(p[0]));
    }
    if (g.id)
        ENDS(ds_graph_destroy(g));
    (void)WENT(ds_stream_synchronize(s));
    ENDS(ds_mem_pinned_empty_cache(NULL));
    if (failures) { /* uses that were not noted, or not asked for */
        DS_IGNORE(ds_stream_synchronize(s));
        DS_IGNORE(ds_mem_pinned_empty_cache(NULL));
    }
    ok(ds_mem_validate(host));
    assert_int_equal(stats().allocations.current, 0);
    ENDS(ds_stream_destroy(s));
}

/* 1 when the fault was met. */
static int with_a_fault(const char *fault, long book_fault, int registers) {
    ds_cpu_desc cpu = { .devices = 2, .workers = 2 };
    ds_mem_config c = config_of(PRESET_DEFAULT);
    ds_init_desc init = { .cpu = &cpu,
                          .layers = fault ? "fault" : NULL,
                          .fault = fault,
                          .allocator = { book_alloc, book_free, NULL } };
    c.debug = 2;
    c.pinned_use_cuda_host_register = registers;
    c.pinned_max_cached_size = 4 * MIB;
    harness_shutdown();
    memset(&books, 0, sizeof books);
    ok(ds_init(&init));
    (void)harness_device_count(); /* devstream has started */
    books.fail_at = book_fault ? books.calls + book_fault : 0;
    long last = books.fail_at;
    little_program(&c);
    int met = failures > 0 || (last && books.calls >= last);
    books.fail_at = 0;
    if (met)
        little_program(&c);
    if (met && failures)
        fail_msg("%s %ld: the second run fails %d times: %s", fault ? fault : "bookkeeping",
                 book_fault, failures, ds_error_get_last());
    if (met)
        assert_int_equal(stats().allocated_bytes.current, 0);
    ds_result r = ds_shutdown();
    if (r != DS_OK && !(fault && r == DS_ERR_DRIVER))
        fail_msg("ds_shutdown is %s: %s", ds_result_get_name(r), ds_error_get_last());
    harness_forget();
    AWAIT(!books.live);
    if (books.live)
        fail_msg("%s %ld: %ld pieces of bookkeeping are left", fault ? fault : "bookkeeping",
                 book_fault, (long)books.live);
    return met;
}

static void test_a_fault_at_any_driver_call_spoils_no_pinned_memory(void **state) {
    (void)state;
    for (int registers = 0; registers < 2; registers++)
        for (int n = 1, quiet = 0; quiet < 12; n++) {
            char fault[32];
            snprintf(fault, sizeof fault, "*:%d", n);
            quiet = with_a_fault(fault, 0, registers) ? 0 : quiet + 1;
        }
}

static void test_a_shortage_of_bookkeeping_spoils_no_pinned_memory(void **state) {
    (void)state;
    for (int registers = 0; registers < 2; registers++)
        for (long n = 1; with_a_fault(NULL, n, registers); n++) {
        }
}

static char told[2000];

static void listen(const ds_log_item *item, void *user) {
    (void)user;
    size_t n = strlen(told);
    if (item->level == DS_LOG_WARNING)
        snprintf(told + n, sizeof told - n, "%s\n", item->text);
}

static void test_what_was_not_freed_is_told_at_shutdown(void **state) {
    (void)state;
    ds_init_desc init = { .log_fn = listen, .log_level = DS_LOG_WARNING };
    told[0] = 0;
    harness_restart(&init);
    ds_stream s = stream(0);
    ds_mem_label_push("batch");
    void *p = pinned(3 * MIB), *q = pinned(100);
    ds_mem_label_pop();
    (void)p;
    ok(ds_mem_pinned_record_use(q, s));
    ok(ds_mem_pinned_free(q));
    ok(ds_stream_destroy(s));
    harness_shutdown();
    assert_non_null(strstr(told, "1 block of batch on host:0, 3.00 MiB, was not freed"));
    harness_restart(NULL);
}

/* An answer that says nothing of the work is no "done". */
static void test_an_event_that_cannot_be_asked_for_is_not_done(void **state) {
    (void)state;
    ds_init_desc init = { .layers = "fault", .fault = "event_query:1" };
    gate g = { 0 };
    unsigned char *h, *other = NULL, seen = 0;
    void *p;
    harness_restart(&init);
    ds_stream s = stream(0);
    ok(ds_mem_pinned_set_limit(4 * MIB));
    ok(ds_device_alloc(harness_device(0), 4 * MIB, &p));
    h = pinned(4 * MIB);
    memset(h, 5, 4 * MIB);
    gate_close(s, &g);
    ok(ds_copy(p, h, 4 * MIB, s));
    ok(ds_mem_pinned_record_use(h, s));
    ok(ds_mem_pinned_free(h));
    no_memory(ds_mem_pinned_alloc(4 * MIB, (void **)&other));
    assert_null(other);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    ok(ds_copy(&seen, p, 1, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(seen, 5);
    assert_ptr_equal(other = pinned(4 * MIB), h);
    ok(ds_mem_pinned_free(other));
    ok(ds_device_free(p));
    ok(ds_stream_destroy(s));
    harness_restart(NULL);
}

const struct CMUnitTest tests_pinned[] = {
    DS_TEST(test_a_freed_block_is_used_again_at_once,
            "torch: test_caching_pinned_memory, check_reuse, cupy: pinned test_free, test_malloc"),
    DS_TEST(test_nothing_is_allocated_for_size_zero, "cupy: pinned test_zero_size"),
    DS_TEST(test_blocks_are_aligned_to_512_and_from_4_kib_on_to_that, "pinned"),
    DS_TEST(test_large_blocks_are_not_rounded_to_powers_of_two, "torch: larger_than"),
    DS_TEST(test_small_blocks_share_segments, "pinned"),
    DS_TEST(test_blocks_are_split_and_merge_again, "pinned"),
    DS_TEST(test_the_smallest_block_that_fits_is_taken, "pinned"),
    DS_TEST(test_a_block_serves_only_its_size_if_sizes_are_rounded,
            "cupy: pinned test_free_different_size"),
    DS_TEST(test_wrong_calls_are_refused_and_change_nothing, "cupy: pinned test_double_free"),
    DS_TEST(test_blocks_are_found_by_any_address_in_them, "torch: test_cudart_register"),
    DS_TEST(test_the_cache_knows_its_blocks_and_nothing_else,
            "torch: pinned_alias_slice, check_raw_allocation, check_unknown, check_empty_cache"),
    DS_TEST(test_the_largest_segment_stays_until_the_cache_is_emptied,
            "torch: test_pinned_memory_empty_cache, test_empty_host_cache, cupy: pinned "
            "test_free_all_blocks, paddle: TestEmptyPinnedCache"),
    DS_TEST(test_a_block_is_not_used_again_while_a_copy_is_in_flight,
            "torch: test_caching_pinned_memory"),
    DS_TEST(test_a_block_waits_for_every_stream_that_used_it, "pinned"),
    DS_TEST(test_a_use_is_noted_on_the_device_of_its_stream,
            "torch: test_caching_pinned_memory_multi_gpu"),
    DS_TEST(test_a_use_counts_as_it_was_when_it_was_noted, "pinned"),
    DS_TEST(test_a_use_of_a_stream_that_has_ended_is_waited_for, "pinned"),
    DS_TEST(test_a_stream_that_hangs_does_not_keep_the_blocks_of_others, "pinned"),
    DS_TEST(test_copies_of_pinned_memory_never_block, "torch: test_copy_non_blocking"),
    DS_TEST(test_a_block_that_a_capture_did_not_use_is_used_again_in_it,
            "torch: TestCachingHostAllocatorCudaGraph no_use"),
    DS_TEST(test_what_a_capture_used_stays_until_its_graphs_are_gone,
            "torch: TestCachingHostAllocatorCudaGraph use"),
    DS_TEST(test_two_graphs_keep_a_block_that_both_use,
            "torch: TestCachingHostAllocatorCudaGraph two_graphs"),
    DS_TEST(test_uses_of_other_streams_are_not_asked_for_in_a_capture,
            "torch: TestCachingHostAllocatorCudaGraph"),
    DS_TEST(test_a_graph_that_is_left_at_shutdown_keeps_nobody_from_it, "pinned"),
    DS_TEST(test_a_threshold_ends_the_rounding,
            "torch: test_max_round_threshold, unrounded_bucket_no_undersized_reuse"),
    DS_TEST(test_blocks_above_the_cached_size_are_released_when_freed,
            "torch: test_max_cached_size, both"),
    DS_TEST(test_pinned_memory_may_be_memory_that_is_registered,
            "torch: test_pinned_memory_with_cudaregister, multithread"),
    DS_TEST_CPU(test_pinned_memory_has_its_pages_when_it_is_allocated, "pinned"),
    DS_TEST(test_registered_memory_is_had_while_a_stream_captures, "pinned"),
    DS_TEST(test_the_policy_that_was_set_last_counts, "pinned"),
    DS_TEST(test_the_environment_sets_the_policy, "pinned"),
    DS_TEST(test_a_limit_counts_reserved_bytes_after_a_cache_flush, "pinned"),
    DS_TEST(test_a_limit_that_is_set_first_is_kept, "pinned"),
    DS_TEST(test_a_shortage_waits_for_no_stream, "pinned"),
    DS_TEST(test_small_requests_take_less_than_a_segment_in_a_shortage, "pinned"),
    DS_TEST(test_statistics_count_as_torch_does,
            "torch: test_host_memory_stats, cupy: pinned counters"),
    DS_TEST(test_statistics_before_the_first_use_are_zero, "torch: test_empty_host_cache"),
    DS_TEST(test_blocks_add_up_to_the_statistics, "pinned"),
    DS_TEST(test_threads_share_the_cache_and_its_statistics_stay_exact, "pinned"),
    DS_TEST(test_peaks_are_exact_with_any_number_of_threads, "pinned"),
    DS_TEST(test_random_programs_find_in_every_copy_its_block, "pinned"),
    DS_TEST(test_a_fault_at_any_driver_call_spoils_no_pinned_memory, "pinned"),
    DS_TEST(test_a_shortage_of_bookkeeping_spoils_no_pinned_memory, "pinned"),
    DS_TEST(test_what_was_not_freed_is_told_at_shutdown, "pinned"),
    DS_TEST(test_an_event_that_cannot_be_asked_for_is_not_done, "pinned"),
};
const size_t tests_pinned_count = sizeof tests_pinned / sizeof *tests_pinned;
