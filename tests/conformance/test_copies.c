/* Copies, fills, plain memory and what a pointer points to. */
#define _GNU_SOURCE
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef enum kind { PAGEABLE, PINNED, REGISTERED, DEVICE0, DEVICE1, KINDS } kind;

static ds_device device(int i) {
    return harness_device(i % harness_device_count());
}

/* ---- memory of every kind ---- */

static unsigned char *host_bytes(size_t size) {
    unsigned char *p = malloc(size ? size : 1);
    assert_non_null(p);
    return p;
}

/* On pages of its own, which is what CUDA registers. */
static unsigned char *whole_pages(size_t size) {
    unsigned char *p = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    assert_non_null(p);
    return p;
}

static unsigned char *make(kind k, size_t size) {
    void *p = NULL;
    switch (k) {
    case PINNED:
        ok(ds_pinned_alloc(size, &p));
        break;
    case REGISTERED:
        p = whole_pages(size);
        ok(ds_pinned_register(p, size));
        break;
    case DEVICE0:
        ok(ds_device_alloc(device(0), size, &p));
        break;
    case DEVICE1:
        ok(ds_device_alloc(device(1), size, &p));
        break;
    case PAGEABLE:
    case KINDS:
        p = host_bytes(size);
        break;
    }
    assert_non_null(p);
    return p;
}

static void drop(kind k, unsigned char *p) {
    switch (k) {
    case PINNED:
        ok(ds_pinned_free(p));
        break;
    case REGISTERED:
        ok(ds_pinned_unregister(p));
        free(p);
        break;
    case DEVICE0:
    case DEVICE1:
        ok(ds_device_free(p));
        break;
    case PAGEABLE:
    case KINDS:
        free(p);
        break;
    }
}

static void pattern(unsigned char *p, size_t n, uint64_t seed) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1u;
    for (size_t i = 0; i < n; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(p + i, &x, n - i < 8 ? n - i : 8);
    }
}

/* Negative, with a sentence, where more than one code is reasonable. */
static void refused_somehow(ds_result r) {
    assert_true(r < 0);
    assert_true(ds_error_get_last()[0] != 0);
}

/* ---- one-dimensional ---- */

enum { FRONT = 61, BACK = 67, GUARD = 0xA5 }; /* odd, so that no buffer begins aligned */

static void copy_pair(ds_stream s, kind from, kind to, size_t n, uint64_t seed) {
    size_t total = FRONT + n + BACK;
    unsigned char *want = host_bytes(total), *got = host_bytes(total);
    unsigned char *src = make(from, total), *dst = make(to, total);
    memset(want, GUARD, total);
    memset(got, 0, total);
    pattern(want + FRONT, n, seed);
    ok(ds_copy(src, want, total, s));
    ok(ds_fill(dst, GUARD, 1, total, s));
    ok(ds_copy(dst + FRONT, src + FRONT, n, s));
    ok(ds_copy(got, dst, total, s));
    if (memcmp(want, got, total) != 0)
        fail_msg("kind %d to kind %d, %zu bytes: the content differs", (int)from, (int)to, n);
    drop(from, src);
    drop(to, dst);
    free(want);
    free(got);
}

static void test_copies_keep_the_data_between_all_kinds_of_memory(void **state) {
    (void)state;
    static const size_t sizes[] = { 0, 1, 15, 16, 4095, 16384, 16385, ((size_t)1 << 20) + 7 };
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device(0) }, &s));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int from = 0; from < KINDS; from++)
            for (int to = 0; to < KINDS; to++)
                copy_pair(s, (kind)from, (kind)to, sizes[i], i * 64 + (size_t)(from * 8 + to));
    ok(ds_stream_destroy(s));
}

static void test_large_copies_keep_the_data(void **state) {
    (void)state;
    static const kind pairs[][2] = { { PAGEABLE, DEVICE0 }, { PINNED, DEVICE0 },
                                     { DEVICE0, DEVICE1 },  { DEVICE1, PINNED },
                                     { DEVICE0, PAGEABLE }, { REGISTERED, DEVICE1 },
                                     { PINNED, PINNED } };
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device(1) }, &s));
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        copy_pair(s, pairs[i][0], pairs[i][1], ((size_t)40 << 20) + 3, 1000 + i);
    ok(ds_stream_destroy(s));
}

static void test_a_chain_of_copies_over_two_devices_keeps_the_data(void **state) {
    (void)state;

    enum { N = 100000 };

    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    unsigned char *a = make(PINNED, N), *b = make(PINNED, N);
    unsigned char *d0 = make(DEVICE0, N), *d1 = make(DEVICE1, N), *d2 = make(DEVICE0, N);
    pattern(a, N, 7);
    memset(b, 0, N);
    ok(ds_copy(d0, a, N, s));
    ok(ds_copy(d1, d0, N, s));
    ok(ds_copy(d2, d1, N, s));
    ok(ds_fill(d0, 0, 1, N, s)); /* behind the copies that read it */
    ok(ds_fill(d1, 0, 1, N, s));
    ok(ds_copy(b, d2, N, s));
    ok(ds_stream_synchronize(s));
    assert_memory_equal(a, b, N);
    drop(PINNED, a);
    drop(PINNED, b);
    drop(DEVICE0, d0);
    drop(DEVICE1, d1);
    drop(DEVICE0, d2);
    ok(ds_stream_destroy(s));
}

static void test_peer_copies_check_the_devices_that_they_are_told(void **state) {
    (void)state;

    enum { N = 70000 };

    two_devices();
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    unsigned char *host = make(PINNED, N), *back = make(PINNED, N), *d0 = make(DEVICE0, N),
                  *d1 = make(DEVICE1, N);
    pattern(host, N, 3);
    memset(back, 0, N);
    ok(ds_copy(d0, host, N, s));
    ok(ds_copy_peer(d1, device(1), d0, device(0), N, s));
    ok(ds_copy(back, d1, N, s));
    ok(ds_stream_synchronize(s));
    assert_memory_equal(host, back, N);
    refused(ds_copy_peer(d1, device(0), d0, device(0), N, s), DS_ERR_DEVICE_MISMATCH);
    refused(ds_copy_peer(d1, device(1), d0, device(1), N, s), DS_ERR_DEVICE_MISMATCH);
    refused(ds_copy_peer(d1, device(1), host, device(0), N, s), DS_ERR_DEVICE_MISMATCH);
    refused(ds_copy_peer(d1, device(1), d0, (ds_device){ device(0).type, 1000 }, N, s),
            DS_ERR_DEVICE_RANGE);
    refused(ds_copy_peer(d1, device(1), d0, device(0), N + 1, s), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_stream_query(s), DS_OK);
    drop(PINNED, host);
    drop(PINNED, back);
    drop(DEVICE0, d0);
    drop(DEVICE1, d1);
    ok(ds_stream_destroy(s));
}

/* ---- what blocks and what does not ---- */

static void test_pinned_and_device_copies_and_fills_do_not_block(void **state) {
    (void)state;

    enum { N = 50000 };

    gate g = { 0 };
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device(0) }, &s));
    unsigned char *pin = make(PINNED, N), *out = make(PINNED, N), *reg = make(REGISTERED, N);
    unsigned char *d0 = make(DEVICE0, N), *d1 = make(DEVICE1, N);
    pattern(pin, N, 11);
    memset(out, 0, N);
    memset(reg, 0, N);
    gate_close(s, &g);
    /* one of these that blocks never returns, since only this thread opens the gate */
    ok(ds_copy(d0, pin, N, s));
    ok(ds_copy(d1, d0, N, s));
    ok(ds_copy(reg, d1, N, s));
    ok(ds_fill(d0, 0x01020304u, 4, N / 4, s));
    ok(ds_fill_2d(d0, 100, 7, 1, 50, 10, s));
    ok(ds_copy_2d(d1, 100, d0, 100, 50, 10, s));
    ok(ds_copy(d0, reg, N, s));
    ok(ds_copy(out, d0, N, s));
    ok(ds_fill(out, 9, 1, 1, s));
    ok(ds_copy(out, pin, 1, s)); /* small ones are not done at once on a stream that is not idle */
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(out[i], 0);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    assert_memory_equal(out, pin, N);
    assert_memory_equal(reg, pin, N);
    drop(PINNED, pin);
    drop(PINNED, out);
    drop(REGISTERED, reg);
    drop(DEVICE0, d0);
    drop(DEVICE1, d1);
    ok(ds_stream_destroy(s));
}

/* A call that must block, made by a thread of its own. */
typedef struct blocker {
    ds_result (*run)(struct blocker *b);
    void *a, *b;
    size_t size;
    ds_stream s;
    ds_result result;
    _Atomic int entered, returned;
} blocker;

enum { BLOCK_N = 3000 };

static ds_result run_copy(blocker *b) {
    return ds_copy(b->a, b->b, BLOCK_N, b->s);
}

static ds_result run_fill(blocker *b) {
    return ds_fill(b->a, 5, 1, BLOCK_N, b->s);
}

static ds_result run_free(blocker *b) {
    return ds_device_free(b->a);
}

static ds_result run_host_free(blocker *b) {
    return ds_pinned_free(b->a);
}

static ds_result run_unregister(blocker *b) {
    return ds_pinned_unregister(b->a);
}

static void *blocker_main(void *user) {
    blocker *b = user;
    b->entered = 1;
    b->result = b->run(b);
    b->returned = 1;
    return NULL;
}

static void upload(void *to, const void *from) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device(0) }, &s));
    ok(ds_copy(to, from, BLOCK_N, s));
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
}

static void blocks_while_busy(ds_result (*run)(blocker *), void *a, void *p, ds_stream_desc desc) {
    gate g = { 0 };
    pthread_t thread;
    blocker b = { .run = run, .a = a, .b = p, .result = DS_ERR_SYSTEM };
    ok(ds_stream_create(&desc, &b.s));
    gate_close(b.s, &g);
    gate_wait_entered(&g);
    assert_int_equal(pthread_create(&thread, NULL, blocker_main, &b), 0);
    while (!b.entered)
        sched_yield();
    for (int i = 0; i < 5000; i++) { /* the chance to return wrongly */
        assert_int_equal(b.returned, 0);
        sched_yield();
    }
    gate_open(&g);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(b.result, DS_OK);
    /* a blocking call has waited for the gate, hence the stream is done */
    assert_int_equal(ds_stream_query(b.s), DS_OK);
    ok(ds_stream_destroy(b.s));
}

static void blocks_while_the_stream_is_busy(ds_result (*run)(blocker *), void *a, void *p) {
    blocks_while_busy(run, a, p, (ds_stream_desc){ .device = device(0) });
}

static void test_pageable_copies_and_fills_block(void **state) {
    (void)state;
    unsigned char *host = make(PAGEABLE, BLOCK_N), *back = make(PAGEABLE, BLOCK_N),
                  *d = make(DEVICE0, BLOCK_N);
    pattern(host, BLOCK_N, 21);
    if (harness_is_cpu())
        blocks_while_the_stream_is_busy(run_copy, d, host);
    else
        upload(d, host); /* CUDA may have taken the source aside and returned */
    memset(back, 0, BLOCK_N);
    blocks_while_the_stream_is_busy(run_copy, back, d);
    assert_memory_equal(host, back, BLOCK_N);
    memset(back, 0, BLOCK_N);
    blocks_while_the_stream_is_busy(run_copy, back, host);
    assert_memory_equal(host, back, BLOCK_N);
    blocks_while_the_stream_is_busy(run_fill, back, NULL);
    for (size_t i = 0; i < BLOCK_N; i++)
        assert_int_equal(back[i], 5);
    drop(DEVICE0, d);
    free(host);
    free(back);
}

/* ---- synchronous copies and fills ---- */

static ds_result run_copy_sync(blocker *b) {
    return ds_copy_sync(b->a, b->b, BLOCK_N);
}

static ds_result run_fill_sync(blocker *b) {
    return ds_fill_sync(b->a, 5, 1, BLOCK_N);
}

static void test_synchronous_copies_and_fills_are_done(void **state) {
    (void)state;
    for (int from = 0; from < KINDS; from++)
        for (int to = 0; to < KINDS; to++) {
            unsigned char *want = host_bytes(BLOCK_N), *got = host_bytes(BLOCK_N),
                          *a = make((kind)from, BLOCK_N), *b = make((kind)to, BLOCK_N);
            pattern(want, BLOCK_N, (uint64_t)(from * KINDS + to));
            ok(ds_copy_sync(a, want, BLOCK_N));
            ok(ds_copy_sync(b, a, BLOCK_N));
            ok(ds_copy_sync(got, b, BLOCK_N));
            assert_memory_equal(got, want, BLOCK_N);
            ok(ds_fill_sync(b, 0x01020304u, 4, BLOCK_N / 4));
            ok(ds_copy_sync(got, b, BLOCK_N));
            for (size_t i = 0; i < BLOCK_N; i++)
                assert_int_equal(got[i], 4 - i % 4);
            drop((kind)from, a);
            drop((kind)to, b);
            free(want);
            free(got);
        }
}

static void test_synchronous_copies_wait_for_blocking_streams(void **state) {
    const ds_stream_desc here = { .device = device(0), .flags = DS_STREAM_BLOCKING };
    const ds_stream_desc there = { .device = device(1), .flags = DS_STREAM_BLOCKING };
    unsigned char *pin = make(PINNED, BLOCK_N), *back = make(PINNED, BLOCK_N),
                  *d = make(DEVICE0, BLOCK_N), *far = make(DEVICE1, BLOCK_N);
    (void)state;
    pattern(pin, BLOCK_N, 31);

    blocks_while_busy(run_copy_sync, d, pin, here);
    blocks_while_busy(run_fill_sync, back, NULL, here);
    blocks_while_busy(run_copy_sync, far, d, there); /* the device of an operand */
    blocks_while_busy(run_copy_sync, back, far, there);

    assert_memory_equal(back, pin, BLOCK_N);
    drop(PINNED, pin);
    drop(PINNED, back);
    drop(DEVICE0, d);
    drop(DEVICE1, far);
}

static void test_a_synchronous_copy_ignores_non_blocking_streams(void **state) {
    gate g = { 0 };
    unsigned char *pin = make(PINNED, BLOCK_N), *d = make(DEVICE0, BLOCK_N);
    (void)state;
    ds_stream s = harness_stream(0, 0);
    gate_close(s, &g);

    ok(ds_copy_sync(d, pin, BLOCK_N));
    ok(ds_fill_sync(d, 1, 1, BLOCK_N));

    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    ok(ds_stream_destroy(s));
    drop(PINNED, pin);
    drop(DEVICE0, d);
}

static void test_synchronous_copies_refuse_wrong_arguments(void **state) {
    unsigned char *d = make(DEVICE0, 64), host[64] = { 0 };
    (void)state;

    refused(ds_copy_sync(NULL, host, 64), DS_ERR_INVALID_VALUE);
    refused(ds_copy_sync(d, NULL, 64), DS_ERR_INVALID_VALUE);
    refused(ds_copy_sync(d, host, SIZE_MAX), DS_ERR_INVALID_VALUE);
    refused(ds_copy_sync(d + 1, host, 64), DS_ERR_INVALID_VALUE);
    refused(ds_fill_sync(NULL, 0, 1, 64), DS_ERR_INVALID_VALUE);
    refused(ds_fill_sync(d, 0, 3, 8), DS_ERR_INVALID_VALUE);
    refused(ds_fill_sync(d, 0, 4, 17), DS_ERR_INVALID_VALUE);
    refused(ds_fill_sync(d + 1, 0, 4, 1), DS_ERR_INVALID_VALUE);

    ok(ds_copy_sync(NULL, NULL, 0));
    ok(ds_fill_sync(d, 0, 4, 0));
    drop(DEVICE0, d);
}

/* The per-thread stream may be the default stream, and may capture: no node is added. */
static void test_a_synchronous_copy_is_no_node_of_a_capture(void **state) {
    ds_stream mine;
    ds_graph g;
    (void)state;
    harness_restart(&(ds_init_desc){ .flags = DS_INIT_PER_THREAD_DEFAULT_STREAM });
    unsigned char host[64] = { 7 }, *d = make(DEVICE0, 64);
    ok(ds_stream_get_default(device(0), &mine));
    for (int fill = 0; fill < 2; fill++) {
        ok(ds_capture_begin(mine, DS_CAPTURE_RELAXED));
        harness_watch(mine);

        refused(fill ? ds_fill_sync(d, 0, 1, 64) : ds_copy_sync(d, host, 64),
                DS_ERR_CAPTURE_UNSUPPORTED);

        refused(ds_capture_end(mine, &g), DS_ERR_CAPTURE_INVALIDATED);
        ok(ds_copy_sync(d, host, 64));
    }
    drop(DEVICE0, d);
    harness_restart(NULL);
}

/* What it is handed is free again when the copy returns: overwrites it. */
static ds_result run_upload_and_reuse(blocker *b) {
    ds_result r = ds_copy(b->a, b->b, b->size, b->s);
    memset(b->b, 0xee, b->size);
    return r;
}

static void test_the_source_of_a_pageable_copy_may_be_used_again_at_once(void **state) {
    (void)state;
    static const size_t sizes[] = { 100, 16384, 65536, 65537, 1 << 20 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        unsigned char *host = make(PAGEABLE, n), *want = make(PAGEABLE, n),
                      *back = make(PAGEABLE, n), *d = make(DEVICE0, n);
        gate g = { 0 };
        blocker b = {
            .run = run_upload_and_reuse, .a = d, .b = host, .size = n, .result = DS_ERR_SYSTEM
        };
        pattern(want, n, i);
        memcpy(host, want, n);
        ok(ds_stream_create(&(ds_stream_desc){ .device = device(0) }, &b.s));
        gate_close(b.s, &g);
        pthread_t thread = spawn(blocker_main, &b);
        while (!b.entered)
            sched_yield();
        /* it may be back, or wait for the gate */
        for (int k = 0; k < 1000; k++)
            sched_yield();
        gate_open(&g);
        join(thread);
        ok(b.result);
        ok(ds_copy(back, d, n, b.s));
        assert_memory_equal(back, want, n);
        ok(ds_stream_destroy(b.s));
        drop(DEVICE0, d);
        free(host);
        free(want);
        free(back);
    }
}

static void test_free_host_free_and_unregister_wait_for_the_device(void **state) {
    (void)state;
    blocks_while_the_stream_is_busy(run_free, make(DEVICE0, 100), NULL);
    blocks_while_the_stream_is_busy(run_host_free, make(PINNED, 100), NULL);
    unsigned char *reg = make(REGISTERED, 100);
    blocks_while_the_stream_is_busy(run_unregister, reg, NULL);
    free(reg);
}

static void test_alloc_does_not_wait_for_the_device(void **state) {
    (void)state;
    gate g = { 0 };
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device(0) }, &s));
    gate_close(s, &g);
    unsigned char *d = make(DEVICE0, 4096), *pin = make(PINNED, 4096),
                  *reg = make(REGISTERED, 4096);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&g);
    drop(DEVICE0, d);
    drop(PINNED, pin);
    drop(REGISTERED, reg);
    ok(ds_stream_destroy(s));
}

static void test_a_full_device_is_out_of_memory(void **state) {
    size_t total;
    void *d = &total;
    (void)state;
    ok(ds_device_get_memory_info(device(0), NULL, &total));
    refused(ds_device_alloc(device(0), total + 1, &d), DS_ERR_OUT_OF_MEMORY);
    assert_null(d);
    refused(ds_device_alloc_pitch(device(0), total / 2, 3, &(void *){ NULL }, &(size_t){ 0 }),
            DS_ERR_OUT_OF_MEMORY);
}

/* ---- two-dimensional ---- */

/* Both buffers end with the last row's last byte: the padding behind it is not theirs. */
static void copy_rows(ds_stream s, kind from, kind to, size_t width, size_t height,
                      size_t src_pitch, size_t dst_pitch) {
    size_t src_size = src_pitch * (height - 1) + width, dst_size = dst_pitch * (height - 1) + width;
    unsigned char *image = host_bytes(src_size), *want = host_bytes(dst_size),
                  *got = host_bytes(dst_size);
    unsigned char *src = make(from, src_size), *dst = make(to, dst_size);
    pattern(image, src_size, width * 31 + height);
    memset(want, GUARD, dst_size);
    for (size_t y = 0; y < height; y++)
        memcpy(want + y * dst_pitch, image + y * src_pitch, width);
    ok(ds_copy(src, image, src_size, s));
    ok(ds_fill(dst, GUARD, 1, dst_size, s));
    ok(ds_copy_2d(dst, dst_pitch, src, src_pitch, width, height, s));
    ok(ds_copy(got, dst, dst_size, s));
    if (memcmp(want, got, dst_size) != 0)
        fail_msg("%zu x %zu, pitches %zu and %zu, kind %d to %d: the content differs", width,
                 height, src_pitch, dst_pitch, (int)from, (int)to);
    drop(from, src);
    drop(to, dst);
    free(image);
    free(want);
    free(got);
}

static void test_pitched_copies_touch_only_their_rows(void **state) {
    (void)state;
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    for (int from = 0; from < KINDS; from++)
        for (int to = 0; to < KINDS; to++) {
            copy_rows(s, (kind)from, (kind)to, 33, 17, 40, 64);
            copy_rows(s, (kind)from, (kind)to, 16, 5, 16, 16);
            copy_rows(s, (kind)from, (kind)to, 1, 100, 3, 1);
            copy_rows(s, (kind)from, (kind)to, 77, 1, 77, 1000);
        }
    copy_rows(s, PINNED, DEVICE0, 5001, 700, 5001, 5120); /* large enough to be split */
    copy_rows(s, DEVICE1, PINNED, 3, 100000, 8, 5);
    copy_rows(s, DEVICE0, DEVICE1, 1500000, 3, 1500001, 1500007);
    ok(ds_stream_destroy(s));
}

/* Copies between two GPUs name both then. */
static void test_pitched_copies_without_peer_access_touch_their_rows(void **state) {
    test_pitched_copies_touch_only_their_rows(state);
}

static void test_pitched_copies_refuse_wrong_arguments(void **state) {
    (void)state;

    enum { N = 1000 };

    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    unsigned char *a = make(DEVICE0, N), *b = make(DEVICE0, N), *got = make(PAGEABLE, N);
    ok(ds_fill(a, 1, 1, N, s));
    ok(ds_fill(b, 2, 1, N, s));
    ok(ds_stream_synchronize(s));
    refused(ds_copy_2d(a, 9, b, 20, 10, 5, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_2d(a, 20, b, 9, 10, 5, s), DS_ERR_INVALID_VALUE);
    /* dst would need 1100 bytes */
    refused(ds_copy_2d(a, 200, b, 100, 100, 6, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_2d(a, 100, b, 200, 100, 6, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_2d(a, SIZE_MAX, b, 10, 10, 2, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_2d(a, 10, b, SIZE_MAX, 10, 2, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_2d(a, 10, b, 10, 10, SIZE_MAX, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_2d(a, SIZE_MAX, b, SIZE_MAX, SIZE_MAX, SIZE_MAX, s), DS_ERR_INVALID_VALUE);
    /* pitch * (height - 1) wraps to 0 here */
    refused(ds_copy_2d(a, SIZE_MAX / 2 + 1, b, SIZE_MAX / 2 + 1, 10, 3, s), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_stream_query(s), DS_OK);
    ok(ds_copy_2d(a, 10, b, 10, 10, 0, s));
    ok(ds_copy_2d(a, 10, b, 10, 0, 10, s));
    ok(ds_copy(got, a, N, s));
    for (size_t i = 0; i < N; i++)
        assert_int_equal(got[i], 1);
    ok(ds_copy_2d(a, 200, b, 200, 200, 5, s)); /* exactly the whole */
    ok(ds_copy(got, a, N, s));
    for (size_t i = 0; i < N; i++)
        assert_int_equal(got[i], 2);
    drop(DEVICE0, a);
    drop(DEVICE0, b);
    free(got);
    ok(ds_stream_destroy(s));
}

static void test_pitched_memory_is_wide_enough_and_aligned(void **state) {
    (void)state;
    void *p = NULL;
    size_t pitch = 0;
    ds_pointer_info info;
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device(1) }, &s));
    ok(ds_device_alloc_pitch(device(1), 1001, 20, &p, &pitch));
    assert_non_null(p);
    assert_true(pitch >= 1001);
    assert_int_equal((uintptr_t)p % 512, 0);
    ok(ds_pointer_get_info((char *)p + 19 * pitch + 1000, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    assert_ptr_equal(info.base, p);
    assert_int_equal(info.device.index, device(1).index);
    ok(ds_fill_2d(p, pitch, 3, 1, 1001, 20, s));
    ok(ds_stream_synchronize(s));
    ok(ds_device_free(p));
    void *none = (void *)&pitch;
    refused_somehow(ds_device_alloc_pitch(device(0), SIZE_MAX, 2, &none, &pitch));
    assert_null(none);
    none = (void *)&pitch;
    refused_somehow(ds_device_alloc_pitch(device(0), SIZE_MAX / 2 + 1, 2, &none, &pitch));
    assert_null(none);
    refused_somehow(ds_device_alloc_pitch(device(0), 2, SIZE_MAX, &none, &pitch));
    refused(ds_device_alloc_pitch(device(0), 10, 10, NULL, &pitch), DS_ERR_INVALID_VALUE);
    refused(ds_device_alloc_pitch(device(0), 10, 10, &none, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
}

/* ---- fills ---- */

static void put(unsigned char *p, uint32_t value, size_t value_size) {
    for (size_t i = 0; i < value_size; i++)
        p[i] = (unsigned char)(value >> (8 * i));
}

static void test_fills_set_every_element_and_nothing_else(void **state) {
    (void)state;
    static const size_t counts[] = { 0, 1, 3, 5, 17, 1000, 4097, 300001 };
    static const size_t value_sizes[] = { 1, 2, 4 };
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    for (int k = 0; k < KINDS; k++)
        for (size_t v = 0; v < 3; v++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                size_t bytes = counts[c] * value_sizes[v], total = 12 + bytes + 20;
                unsigned char *p = make((kind)k, total), *want = host_bytes(total),
                              *got = host_bytes(total);
                memset(want, GUARD, total);
                for (size_t i = 0; i < counts[c]; i++)
                    put(want + 12 + i * value_sizes[v], 0xdeadbeefu, value_sizes[v]);
                ok(ds_fill(p, GUARD, 1, total, s));
                ok(ds_fill(p + 12, 0xdeadbeefu, value_sizes[v], counts[c], s));
                ok(ds_copy(got, p, total, s));
                if (memcmp(want, got, total) != 0)
                    fail_msg("fill of %zu elements of %zu bytes differs", counts[c],
                             value_sizes[v]);
                drop((kind)k, p);
                free(want);
                free(got);
            }
    ok(ds_stream_destroy(s));
}

static void test_pitched_fills_touch_only_their_rows(void **state) {
    (void)state;
    /* width height pitch */
    static const size_t shapes[][3] = {
        { 7, 5, 32 }, { 8, 3, 32 }, { 1, 1000, 4 }, { 30001, 20, 120008 }
    };
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    for (size_t v = 1; v <= 4; v *= 2)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            size_t width = shapes[i][0], height = shapes[i][1], pitch = shapes[i][2];
            size_t total = pitch * (height - 1) + width * v; /* ends with the last row */
            unsigned char *p = make(DEVICE0, total), *want = host_bytes(total),
                          *got = host_bytes(total);
            memset(want, GUARD, total);
            for (size_t y = 0; y < height; y++)
                for (size_t x = 0; x < width; x++)
                    put(want + y * pitch + x * v, 0x87654321u, v);
            ok(ds_fill(p, GUARD, 1, total, s));
            ok(ds_fill_2d(p, pitch, 0x87654321u, v, width, height, s));
            ok(ds_copy(got, p, total, s));
            if (memcmp(want, got, total) != 0)
                fail_msg("fill of %zu x %zu elements of %zu bytes differs", width, height, v);
            drop(DEVICE0, p);
            free(want);
            free(got);
        }
    ok(ds_stream_destroy(s));
}

static void test_fills_refuse_wrong_arguments(void **state) {
    (void)state;

    enum { N = 1000 };

    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    unsigned char *d = make(DEVICE0, N), *got = make(PAGEABLE, N);
    ok(ds_fill(d, 1, 1, N, s));
    ok(ds_stream_synchronize(s));
    refused(ds_fill(d, 0, 0, 10, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d, 0, 3, 10, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d, 0, 8, 10, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d + 1, 0, 2, 10, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d + 2, 0, 4, 10, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d, 0, 1, N + 1, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d + N - 4, 0, 4, 2, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d, 0, 1, SIZE_MAX, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d, 0, 4, SIZE_MAX / 4 + 2, s), DS_ERR_INVALID_VALUE); /* wraps to 4 bytes */
    refused(ds_fill_2d(d, 20, 0, 3, 5, 5, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill_2d(d, 19, 0, 4, 5, 5, s), DS_ERR_INVALID_VALUE);
    /* wide enough, not a multiple of 4 */
    refused(ds_fill_2d(d, 22, 0, 4, 5, 5, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill_2d(d + 2, 20, 0, 4, 5, 5, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill_2d(d, 500, 0, 4, 5, 3, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill_2d(d, SIZE_MAX - 3, 0, 4, 5, 3, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill_2d(d, 20, 0, 4, SIZE_MAX / 4 + 2, 1, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill_2d(d, 20, 0, 4, 5, SIZE_MAX, s), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_stream_query(s), DS_OK);
    ok(ds_copy(got, d, N, s));
    for (size_t i = 0; i < N; i++)
        assert_int_equal(got[i], 1);
    drop(DEVICE0, d);
    free(got);
    ok(ds_stream_destroy(s));
}

static void test_copies_refuse_wrong_ranges_and_enqueue_nothing(void **state) {
    (void)state;

    enum { N = 1000 };

    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    unsigned char *d = make(DEVICE0, N), *e = make(DEVICE1, N), *pin = make(PINNED, N),
                  *host = make(PAGEABLE, 2 * N);
    memset(host, 9, 2 * N);
    memset(pin, 9, N);
    ok(ds_fill(d, 1, 1, N, s));
    ok(ds_fill(e, 1, 1, N, s));
    ok(ds_stream_synchronize(s));
    refused(ds_copy(d, host, N + 1, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(d + 1, host, N, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(d + N - 1, host, 2, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(host, d + 1, N, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(d, e + 1, N, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(d + 1, e, N, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(d, pin + 1, N, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(pin, host, N + 1, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(d, host, SIZE_MAX, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(NULL, d, 16, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy(d, NULL, 16, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(NULL, 0, 1, 16, s), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_stream_query(s), DS_OK);
    ok(ds_copy(d, host, 0, s));
    ok(ds_copy(host, d, N, s));
    for (size_t i = 0; i < N; i++)
        assert_int_equal(host[i], 1);
    ok(ds_copy(host, e, N, s));
    for (size_t i = 0; i < N; i++)
        assert_int_equal(host[i], 1);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(pin[i], 9);
    ds_stream stale = s;
    ok(ds_stream_destroy(s));
    refused(ds_copy(d, e, N, stale), DS_ERR_INVALID_HANDLE);
    refused(ds_copy_2d(d, 10, e, 10, 10, 10, stale), DS_ERR_INVALID_HANDLE);
    refused(ds_copy_peer(d, device(0), e, device(1), N, stale), DS_ERR_INVALID_HANDLE);
    refused(ds_fill(d, 0, 1, N, stale), DS_ERR_INVALID_HANDLE);
    refused(ds_fill_2d(d, 10, 0, 1, 10, 10, stale), DS_ERR_INVALID_HANDLE);
    refused(ds_copy(d, e, N, (ds_stream){ 0 }), DS_ERR_INVALID_HANDLE);
    drop(DEVICE0, d);
    drop(DEVICE1, e);
    drop(PINNED, pin);
    free(host);
}

/* ---- batches ---- */

enum { BATCH = 64, ROW = 100 };

/* Copies of a batch between two ranges of BATCH rows; the rows are copied in reverse. */
typedef struct rows {
    void *dst[BATCH];
    const void *src[BATCH];
    size_t sizes[BATCH];
} rows;

static rows rows_between(unsigned char *to, const unsigned char *from) {
    rows r;
    for (size_t i = 0; i < BATCH; i++) {
        r.dst[i] = to + (BATCH - 1 - i) * ROW;
        r.src[i] = from + i * ROW;
        r.sizes[i] = ROW - i % 3;
    }
    return r;
}

static void expect_reversed_rows(const unsigned char *got, unsigned char untouched) {
    for (size_t i = 0; i < BATCH; i++)
        for (size_t x = 0; x < ROW; x++) {
            unsigned char want = x < ROW - i % 3 ? (unsigned char)(i + x) : untouched;
            assert_int_equal(got[(BATCH - 1 - i) * ROW + x], want);
        }
}

static ds_stream batch_stream(int which) {
    ds_stream s;
    if (which == 1)
        ok(ds_stream_get_legacy(device(0), &s));
    else if (which == 2)
        ok(ds_stream_get_per_thread(device(0), &s));
    else
        s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    return s;
}

/* Between all kinds of memory, on all kinds of streams: the arrays may change after the call. */
static void test_a_batch_copies_all_its_rows(void **state) {
    (void)state;
    unsigned char *host = host_bytes(BATCH * ROW);
    for (int k = 0; k < KINDS * KINDS * 3; k++) {
        kind to = (kind)(k / 3 % KINDS), from = (kind)(k / 3 / KINDS);
        ds_stream s = batch_stream(k % 3);
        unsigned char *dst = make(to, BATCH * ROW), *src = make(from, BATCH * ROW);
        for (size_t i = 0; i < BATCH * ROW; i++)
            host[i] = (unsigned char)(i / ROW + i % ROW);
        ok(ds_copy(src, host, BATCH * ROW, s));
        ok(ds_fill(dst, 9, 1, BATCH * ROW, s));
        rows r = rows_between(dst, src);
        ok(ds_copy_batch(r.dst, r.src, r.sizes, BATCH, s));
        memset(&r, 0, sizeof r);
        ok(ds_copy(host, dst, BATCH * ROW, s));
        ok(ds_stream_synchronize(s));
        expect_reversed_rows(host, 9);
        drop(to, dst);
        drop(from, src);
        if (k % 3 == 0)
            ok(ds_stream_destroy(s));
    }
    free(host);
}

/* Work before the batch is done when its copies begin, and work after it sees all of them. */
static void test_a_batch_runs_in_stream_order(void **state) {
    gate g = { 0 };
    (void)state;
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    unsigned char *d = make(DEVICE0, BATCH * ROW), *e = make(DEVICE0, BATCH * ROW);
    unsigned char *pin = make(PINNED, BATCH * ROW);
    for (size_t i = 0; i < BATCH * ROW; i++)
        pin[i] = (unsigned char)(i / ROW + i % ROW);
    ok(ds_fill(d, 1, 1, BATCH * ROW, s));
    ok(ds_fill(e, 9, 1, BATCH * ROW, s));
    gate_close(s, &g);
    ok(ds_copy(d, pin, BATCH * ROW, s));
    rows r = rows_between(e, d);
    ok(ds_copy_batch(r.dst, r.src, r.sizes, BATCH, s));
    ok(ds_copy(pin, e, BATCH * ROW, s));
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    expect_reversed_rows(pin, 9);
    drop(DEVICE0, d);
    drop(DEVICE0, e);
    drop(PINNED, pin);
    ok(ds_stream_destroy(s));
}

static void test_sizes_of_zero_in_a_batch_do_nothing(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    unsigned char *d = make(DEVICE0, 8), *pin = make(PINNED, 8);
    void *dst[3] = { NULL, d, d + 4 };
    const void *src[3] = { pin, pin, NULL };
    size_t sizes[3] = { 0, 4, 0 };
    memset(pin, 3, 8);
    ok(ds_fill(d, 1, 1, 8, s));
    ok(ds_copy_batch(dst, src, sizes, 3, s));
    ok(ds_copy_batch(NULL, NULL, NULL, 0, s));
    ok(ds_copy(pin, d, 8, s));
    ok(ds_stream_synchronize(s));
    assert_memory_equal(pin, "\3\3\3\3\1\1\1\1", 8);
    drop(DEVICE0, d);
    drop(PINNED, pin);
    ok(ds_stream_destroy(s));
}

/* The copies before the wrong one are not enqueued either. */
static void test_a_batch_with_a_wrong_copy_enqueues_nothing(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    unsigned char *d = make(DEVICE0, 8), *pin = make(PINNED, 8);
    memset(pin, 3, 8);
    ok(ds_fill(d, 1, 1, 8, s));
    void *dst[3] = { d, d + 4, d + 6 };
    const void *src[3] = { pin, pin + 4, pin };
    size_t sizes[3] = { 4, 2, 3 };
    refused(ds_copy_batch(dst, src, sizes, 3, s), DS_ERR_INVALID_VALUE); /* past the end of d */
    assert_non_null(strstr(ds_error_get_last(), "copy 2 of 3"));
    dst[2] = NULL;
    refused(ds_copy_batch(dst, src, sizes, 3, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_batch(NULL, src, sizes, 3, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_batch(dst, NULL, sizes, 3, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_batch(dst, src, NULL, 3, s), DS_ERR_INVALID_VALUE);
    refused(ds_copy_batch(dst, src, sizes, 3, (ds_stream){ 77 }), DS_ERR_INVALID_HANDLE);
    ok(ds_copy(pin, d, 8, s));
    ok(ds_stream_synchronize(s));
    assert_memory_equal(pin, "\1\1\1\1\1\1\1\1", 8);
    drop(DEVICE0, d);
    drop(PINNED, pin);
    ok(ds_stream_destroy(s));
}

/* Each copy is a node, and launches copy again. */
static void test_a_captured_batch_is_copied_by_each_launch(void **state) {
    ds_graph graph;
    ds_graph_exec exec;
    size_t nodes = 0;
    (void)state;
    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    unsigned char *d = make(DEVICE0, BATCH * ROW), *pin = make(PINNED, BATCH * ROW);
    unsigned char *out = make(PINNED, BATCH * ROW);
    rows r = rows_between(d, pin);
    ok(ds_capture_begin(s, DS_CAPTURE_THREAD_LOCAL));
    ok(ds_copy_batch(r.dst, r.src, r.sizes, BATCH, s));
    ok(ds_capture_end(s, &graph));
    ok(ds_graph_get_nodes(graph, NULL, 0, &nodes));
    assert_int_equal(nodes, BATCH);
    ok(ds_graph_instantiate(graph, NULL, &exec));
    for (size_t i = 0; i < BATCH * ROW; i++)
        pin[i] = (unsigned char)(i / ROW + i % ROW);
    ok(ds_fill(d, 9, 1, BATCH * ROW, s));
    ok(ds_graph_launch(exec, s));
    ok(ds_copy(out, d, BATCH * ROW, s));
    ok(ds_stream_synchronize(s));
    expect_reversed_rows(out, 9);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    drop(DEVICE0, d);
    drop(PINNED, pin);
    drop(PINNED, out);
    ok(ds_stream_destroy(s));
}

/* ---- memory ---- */

static void expect_pointer(const void *p, ds_memory_kind k, void *base, size_t size) {
    ds_pointer_info info;
    memset(&info, 0x5a, sizeof info);
    ok(ds_pointer_get_info(p, &info));
    assert_int_equal(info.kind, k);
    assert_ptr_equal(info.base, base);
    assert_int_equal(info.size, size);
    if (k != DS_MEMORY_DEVICE)
        assert_int_equal(info.device.type, DS_DEVICE_HOST);
}

static void test_pointer_query_tells_kind_device_and_range(void **state) {
    (void)state;

    /* no multiple of the alignment: something lies between this allocation and the next */
    enum { N = 1000 };

    unsigned char *d0 = make(DEVICE0, N), *d1 = make(DEVICE1, N), *pin = make(PINNED, N),
                  *reg = whole_pages(3 * N);
    ok(ds_pinned_register(reg + N, N));
    expect_pointer(d0, DS_MEMORY_DEVICE, d0, N);
    expect_pointer(d0 + 1, DS_MEMORY_DEVICE, d0, N);
    expect_pointer(d0 + N - 1, DS_MEMORY_DEVICE, d0, N);
    expect_pointer(d0 + N, DS_MEMORY_PAGEABLE, NULL, 0);
    expect_pointer(d1 + 500, DS_MEMORY_DEVICE, d1, N);
    expect_pointer(pin, DS_MEMORY_PINNED, pin, N);
    expect_pointer(pin + N - 1, DS_MEMORY_PINNED, pin, N);
    expect_pointer(pin + N, DS_MEMORY_PAGEABLE, NULL, 0);
    expect_pointer(reg + N, DS_MEMORY_REGISTERED, reg + N, N);
    expect_pointer(reg + 2 * N - 1, DS_MEMORY_REGISTERED, reg + N, N);
    expect_pointer(reg + 2 * N, DS_MEMORY_PAGEABLE, NULL, 0);
    expect_pointer(reg + N - 1, DS_MEMORY_PAGEABLE, NULL, 0);
    expect_pointer(&state, DS_MEMORY_PAGEABLE, NULL, 0);
    expect_pointer(NULL, DS_MEMORY_PAGEABLE, NULL, 0);
    ds_pointer_info info;
    ok(ds_pointer_get_info(d1, &info));
    assert_int_equal(info.device.type, device(1).type);
    assert_int_equal(info.device.index, device(1).index);
    refused(ds_pointer_get_info(d0, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_pinned_unregister(reg + N));
    expect_pointer(reg + N, DS_MEMORY_PAGEABLE, NULL, 0);
    drop(DEVICE0, d0);
    drop(DEVICE1, d1);
    drop(PINNED, pin);
    free(reg);
    expect_pointer(d0, DS_MEMORY_PAGEABLE, NULL, 0);
    expect_pointer(pin, DS_MEMORY_PAGEABLE, NULL, 0);
}

static void test_memory_is_aligned_and_sizes_of_zero_give_null(void **state) {
    (void)state;
    void *p[64];
    for (size_t i = 0; i < 64; i++) {
        ok(i % 2 ? ds_device_alloc(device((int)i / 2), i * 37 + 1, &p[i])
                 : ds_pinned_alloc(i * 37 + 1, &p[i]));
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 512, 0);
        for (size_t j = 0; j < i; j++)
            assert_true(p[j] != p[i]);
    }
    for (size_t i = 0; i < 64; i++)
        ok(i % 2 ? ds_device_free(p[i]) : ds_pinned_free(p[i]));
    p[0] = p;
    ok(ds_device_alloc(device(0), 0, &p[0]));
    assert_null(p[0]);
    p[0] = p;
    ok(ds_pinned_alloc(0, &p[0]));
    assert_null(p[0]);
    ok(ds_device_free(NULL));
    ok(ds_pinned_free(NULL));
    refused(ds_device_alloc(device(0), 10, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_alloc(10, NULL), DS_ERR_INVALID_VALUE);
    p[0] = p;
    refused(ds_device_alloc((ds_device){ device(0).type, 1000 }, 10, &p[0]), DS_ERR_DEVICE_RANGE);
    assert_null(p[0]);
    p[0] = p;
    refused_somehow(ds_device_alloc(device(0), SIZE_MAX, &p[0]));
    assert_null(p[0]);
    p[0] = p;
    refused_somehow(ds_device_alloc(device(0), SIZE_MAX - 511, &p[0]));
    assert_null(p[0]);
    p[0] = p;
    refused_somehow(ds_pinned_alloc(SIZE_MAX - 100, &p[0]));
    assert_null(p[0]);
}

static void test_free_refuses_what_is_not_the_start_of_an_allocation(void **state) {
    (void)state;

    enum { N = 1000 };

    unsigned char *d = make(DEVICE0, N), *pin = make(PINNED, N), *reg = make(REGISTERED, N),
                  *plain = host_bytes(N);
    refused(ds_device_free(d + 1), DS_ERR_INVALID_VALUE);
    refused(ds_device_free(d + N), DS_ERR_INVALID_VALUE);
    refused(ds_device_free(pin), DS_ERR_INVALID_VALUE);
    refused(ds_device_free(reg), DS_ERR_INVALID_VALUE);
    refused(ds_device_free(plain), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_free(pin + 1), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_free(d), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_free(reg), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_free(plain), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_unregister(reg + 1), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_unregister(pin), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_unregister(d), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_unregister(plain), DS_ERR_INVALID_VALUE);
    /* all are still what they were */
    expect_pointer(d, DS_MEMORY_DEVICE, d, N);
    expect_pointer(pin, DS_MEMORY_PINNED, pin, N);
    expect_pointer(reg, DS_MEMORY_REGISTERED, reg, N);
    ok(ds_device_free(d));
    refused(ds_device_free(d), DS_ERR_INVALID_VALUE);
    ok(ds_pinned_free(pin));
    refused(ds_pinned_free(pin), DS_ERR_INVALID_VALUE);
    ok(ds_pinned_unregister(reg));
    refused(ds_pinned_unregister(reg), DS_ERR_INVALID_VALUE);
    free(reg);
    free(plain);
}

static void test_register_refuses_what_overlaps_a_known_range(void **state) {
    (void)state;
    const size_t N = harness_is_cpu() ? 1000 : 4096; /* CUDA counts in pages */
    unsigned char *p = whole_pages(4 * N), *pin = make(PINNED, N), *d = make(DEVICE0, N);
    ok(ds_pinned_register(p + N, N));
    refused(ds_pinned_register(p + N, N), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(p + N + 10, 10), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(p, N + 1), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(p + 2 * N - 1, N), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(p, 4 * N), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(pin + 5, 5), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(d, N), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(NULL, N), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(p + 3 * N, 0), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_register(p + 3 * N, SIZE_MAX), DS_ERR_INVALID_VALUE);
    ok(ds_pinned_register(p + 3 * N, N));
    ok(ds_pinned_unregister(p + N));
    ok(ds_pinned_register(p, 3 * N - 1)); /* free again */
    ok(ds_pinned_unregister(p));
    ok(ds_pinned_unregister(p + 3 * N));
    drop(PINNED, pin);
    drop(DEVICE0, d);
    free(p);
}

/* ---- pinned memory in a place of choice ---- */

/* The node of the page at the address, or -1 if the system does not tell. */
static int node_of(void *ptr) {
    int node = -1;
    long r = syscall(SYS_get_mempolicy, &node, NULL, 0ul, ptr, 3ul /* MPOL_F_NODE | MPOL_F_ADDR */);
    return r == 0 ? node : -1;
}

/* 1: /proc/self/smaps has a flag for the mapping of the address. */
static int mapping_has(const void *ptr, const char *flag) {
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    int inside = 0, found = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = (uintptr_t)ptr >= from && (uintptr_t)ptr < to;
        if (inside && !strncmp(line, "VmFlags:", 8) && strstr(line, flag))
            found = 1;
    }
    fclose(f);
    return found;
}

static int is_mapped(void *page) {
    return msync(page, 1, MS_ASYNC) == 0;
}

/* What the system itself offers: an emulator of processors may have no nodes, and may ignore the
   wish for huge pages. */
static void look_at_pages(int *out_nodes, int *out_huge) {
    const size_t size = 4 << 20;
    unsigned long first[16] = { 1 };
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    *out_nodes = syscall(SYS_mbind, p, size, 1 /* MPOL_PREFERRED */, first, 1025ul, 0u) == 0;
    *out_huge = madvise(p, size, MADV_HUGEPAGE) == 0 && mapping_has(p, " hg");
    *p = 1;
    *out_nodes = *out_nodes && node_of(p) == 0;
    munmap(p, size);
}

/* mbind(2), madvise(2). Every machine with Linux has node 0. */
static void test_pinned_memory_of_a_node_and_of_huge_pages(void **state) {
    (void)state;
    not_on_windows("huge pages without a privilege");

    enum { SIZE = (3 << 20) + 5 };

    ds_stream s = harness_stream(0, DS_STREAM_NON_BLOCKING);
    unsigned char *d = make(DEVICE0, SIZE);
    int nodes, huge;
    look_at_pages(&nodes, &huge);
    for (unsigned flags = 0; flags < 4; flags++) {
        size_t page = flags & DS_PINNED_HUGE_PAGES ? 2 << 20 : 4096;
        ds_pointer_info info;
        void *p;
        if (flags & DS_PINNED_NUMA_NODE && !nodes) {
            print_message("          the system has no NUMA nodes\n");
            continue;
        }
        ok(ds_pinned_alloc_with(SIZE, &(ds_pinned_desc){ .flags = flags }, &p));
        assert_int_equal((uintptr_t)p % page, 0);
        ok(ds_pointer_get_info((char *)p + SIZE - 1, &info));
        assert_int_equal(info.kind, DS_MEMORY_PINNED);
        assert_ptr_equal(info.base, p);
        assert_int_equal(info.size, (SIZE + page - 1) / page * page);
        if (flags & DS_PINNED_NUMA_NODE)
            assert_int_equal(node_of((char *)p + SIZE - 1), 0);
        if (flags & DS_PINNED_HUGE_PAGES && huge)
            assert_true(mapping_has(p, " hg"));
        memset(p, (int)flags + 1, SIZE);
        ok(ds_copy(d, p, SIZE, s));
        ok(ds_fill(p, 0, 1, SIZE, s));
        ok(ds_copy(p, d, SIZE, s));
        ok(ds_stream_synchronize(s));
        for (size_t i = 0; i < SIZE; i++)
            if (((unsigned char *)p)[i] != flags + 1)
                fail_msg("byte %zu is %d", i, ((unsigned char *)p)[i]);
        refused(ds_pinned_unregister(p), DS_ERR_INVALID_VALUE);
        refused(ds_pinned_free((char *)p + 4096), DS_ERR_INVALID_VALUE);
        ok(ds_pinned_free(p));
        assert_false(is_mapped(p));
        ok(ds_pointer_get_info(p, &info));
        assert_int_equal(info.kind, DS_MEMORY_PAGEABLE);
    }
    drop(DEVICE0, d);
    ok(ds_stream_destroy(s));
}

static void test_wrong_descriptions_of_pinned_memory_are_refused(void **state) {
    static const struct {
        ds_pinned_desc desc;
        size_t size;
        ds_result result;
        const char *says;
    } wrong[] = {
        { { .flags = 4 }, 1, DS_ERR_INVALID_VALUE, "0x4 has unknown bits" },
        { { .flags = 1, .numa_node = -1 }, 1, DS_ERR_INVALID_VALUE, "-1; allowed are 0 to 1023" },
        { { .flags = 1, .numa_node = 1024 }, 1, DS_ERR_INVALID_VALUE, "allowed are 0 to 1023" },
        { { .flags = 1, .numa_node = 1023 }, 1, DS_ERR_INVALID_VALUE, "node 1023 does not exist" },
        { { .flags = 0 }, SIZE_MAX, DS_ERR_INVALID_VALUE, "too many" },
        { { .flags = 2 }, SIZE_MAX / 4, DS_ERR_OUT_OF_MEMORY, "cannot pin" },
    };

    (void)state;
    void *p;
    int nodes, huge;
    look_at_pages(&nodes, &huge);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (wrong[i].desc.numa_node == 1023 && !nodes)
            continue;
        p = &p;
        refused(ds_pinned_alloc_with(wrong[i].size, &wrong[i].desc, &p), wrong[i].result);
        assert_null(p);
        if (!strstr(ds_error_get_last(), wrong[i].says))
            fail_msg("\"%s\" does not say \"%s\"", ds_error_get_last(), wrong[i].says);
    }
    refused(ds_pinned_alloc_with(1, NULL, &p), DS_ERR_INVALID_VALUE);
    refused(ds_pinned_alloc_with(1, &wrong[0].desc, NULL), DS_ERR_INVALID_VALUE);
    p = &p;
    ok(ds_pinned_alloc_with(0, &(ds_pinned_desc){ .flags = 3 }, &p));
    assert_null(p);
}

static void test_pinned_pages_that_are_left_end_at_the_shutdown(void **state) {
    void *p;
    (void)state;
    not_on_windows("huge pages without a privilege");
    harness_restart(NULL);
    ok(ds_pinned_alloc_with(1, &(ds_pinned_desc){ .flags = DS_PINNED_HUGE_PAGES }, &p));
    assert_true(is_mapped(p));
    ok(ds_shutdown());
    harness_forget();
    assert_false(is_mapped(p));
    harness_restart(NULL);
}

static void memory_is_limited(const ds_init_desc *init, size_t limit) {
    size_t free0 = 0, free1 = 0, total = 0;
    void *a = NULL, *b = NULL, *c = &a;
    harness_restart(init);
    ok(ds_device_get_memory_info(ds_cpu(0), &free0, &total));
    assert_int_equal(total, limit);
    assert_int_equal(free0, limit);
    ok(ds_device_alloc(ds_cpu(0), (size_t)5 << 20, &a));
    ok(ds_device_get_memory_info(ds_cpu(0), &free1, NULL));
    assert_true(free1 <= free0 - ((size_t)5 << 20));
    ok(ds_device_get_memory_info(ds_cpu(1), &free1, &total));
    assert_int_equal(free1, limit); /* each device has its own */
    refused(ds_device_alloc(ds_cpu(0), (size_t)5 << 20, &c), DS_ERR_OUT_OF_MEMORY);
    assert_null(c);
    refused(ds_device_alloc(ds_cpu(0), limit + 1, &c), DS_ERR_OUT_OF_MEMORY);
    ok(ds_device_alloc(ds_cpu(1), (size_t)5 << 20, &b));
    ok(ds_device_free(a));
    ok(ds_device_get_memory_info(ds_cpu(0), &free1, NULL));
    assert_int_equal(free1, free0);
    ok(ds_device_alloc(ds_cpu(0), (size_t)5 << 20, &a)); /* there is room again */
    ok(ds_device_free(a));
    ok(ds_device_free(b));
    harness_shutdown();
}

static void test_memory_limit_is_kept_and_memory_info_moves(void **state) {
    (void)state;
    const size_t limit = (size_t)8 << 20;
    ds_cpu_desc cpu = { .devices = 2, .memory_limit = limit };
    ds_init_desc init = { .cpu = &cpu };
    const char *was = getenv("DEVSTREAM_CPU_MEMORY");
    char before[24];
    snprintf(before, sizeof before, "%s", was ? was : "");
    memory_is_limited(&init, limit);
    setenv("DEVSTREAM_CPU_MEMORY", "8388608", 1);
    memory_is_limited(&(ds_init_desc){ 0 }, limit);
    setenv("DEVSTREAM_CPU_MEMORY", "1", 1); /* the program's word comes first */
    memory_is_limited(&init, limit);
    if (was)
        setenv("DEVSTREAM_CPU_MEMORY", before, 1);
    else
        unsetenv("DEVSTREAM_CPU_MEMORY");
    harness_restart(NULL);
}

static void test_copies_are_staged_where_peer_access_is_off(void **state) {
    (void)state;

    enum { N = (5 << 20) + 1 };

    static const unsigned char peers[4] = { 1, 0, 0, 1 };
    ds_cpu_desc cpu = { .devices = 2, .peer_access = peers };
    ds_init_desc init = { .cpu = &cpu };
    ds_cpu_stats stats;
    ds_stream s;
    void *p0 = NULL, *p1 = NULL, *p2 = NULL, *pin = NULL;
    int can = -1;
    harness_restart(&init);
    ok(ds_device_can_access_peer(ds_cpu(0), ds_cpu(1), &can));
    assert_int_equal(can, 0);
    ok(ds_device_can_access_peer(ds_cpu(1), ds_cpu(1), &can));
    assert_int_equal(can, 1);
    ok(ds_stream_create(NULL, &s));
    ok(ds_device_alloc(ds_cpu(0), N, &p0));
    ok(ds_device_alloc(ds_cpu(1), N, &p1));
    ok(ds_device_alloc(ds_cpu(1), N, &p2));
    ok(ds_pinned_alloc(N, &pin));
    unsigned char *want = host_bytes(N), *got = pin;
    pattern(want, N, 99);
    ok(ds_copy(p0, want, N, s));
    ok(ds_copy(p2, p1, 100, s)); /* within a device */
    ok(ds_stream_synchronize(s));
    ok(ds_cpu_get_stats(&stats));
    assert_int_equal(stats.staged_copies, 0);
    ok(ds_copy(p1, p0, N, s));
    ok(ds_fill(p0, 0, 1, N, s)); /* the order of the stream holds for staged copies */
    ok(ds_copy_2d(p0, 1000, p1, 1000, 900, 1000, s));
    ok(ds_copy_peer((char *)p0 + N - 100, ds_cpu(0), (char *)p1 + N - 100, ds_cpu(1), 100, s));
    ok(ds_copy(got, p1, N, s));
    ok(ds_stream_synchronize(s));
    assert_memory_equal(got, want, N);
    ok(ds_copy(got, p0, N, s));
    ok(ds_stream_synchronize(s));
    for (size_t i = 0; i < N; i++) {
        int copied = (i < 1000 * 1000 && i % 1000 < 900) || i >= N - 100;
        if (got[i] != (copied ? want[i] : 0))
            fail_msg("byte %zu is %d", i, got[i]);
    }
    ok(ds_cpu_get_stats(&stats));
    assert_int_equal(stats.staged_copies, 3);
    ok(ds_device_free(p0));
    ok(ds_device_free(p1));
    ok(ds_device_free(p2));
    ok(ds_pinned_free(pin));
    ok(ds_stream_destroy(s));
    free(want);
    harness_restart(NULL);
}

/* all 1, none 0, half 1 within each half of four devices. */
static int access_of(const char *word, int from, int to) {
    if (from == to || !*word || strcmp(word, "all") == 0)
        return 1;
    return strcmp(word, "half") == 0 && from / 2 == to / 2;
}

static void test_the_environment_selects_peer_access(void **state) {
    static const char *const words[] = { "", "all", "none", "half" };
    static const unsigned char peers[4] = { 1, 1, 0, 1 };
    ds_cpu_desc four = { .devices = 4 }, two = { .devices = 2, .peer_access = peers };
    int can = -1;
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        setenv("DEVSTREAM_CPU_PEERS", words[i], 1);
        harness_restart(&(ds_init_desc){ .cpu = &four });
        for (int from = 0; from < 4; from++)
            for (int to = 0; to < 4; to++) {
                ok(ds_device_can_access_peer(ds_cpu(from), ds_cpu(to), &can));
                assert_int_equal(can, access_of(words[i], from, to));
            }
    }

    /* the options count more */
    setenv("DEVSTREAM_CPU_PEERS", "none", 1);
    harness_restart(&(ds_init_desc){ .cpu = &two });
    ok(ds_device_can_access_peer(ds_cpu(0), ds_cpu(1), &can));
    assert_int_equal(can, 1);
    harness_shutdown();

    setenv("DEVSTREAM_CPU_PEERS", "some", 1);
    refused(ds_device_can_access_peer(ds_cpu(0), ds_cpu(1), &can), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_CPU_PEERS is \"some\""));
    unsetenv("DEVSTREAM_CPU_PEERS");
    harness_restart(NULL);
}

static void test_peer_access_may_be_one_way(void **state) {
    (void)state;
    static const unsigned char peers[4] = { 1, 1, 0, 1 };
    ds_cpu_desc cpu = { .devices = 2, .peer_access = peers };
    ds_init_desc init = { .cpu = &cpu };
    int can = -1;
    harness_restart(&init);
    ok(ds_device_can_access_peer(ds_cpu(0), ds_cpu(1), &can));
    assert_int_equal(can, 1);
    ok(ds_device_can_access_peer(ds_cpu(1), ds_cpu(0), &can));
    assert_int_equal(can, 0);
    harness_restart(NULL);
}

/* Large memory goes back to the system at once, small memory later. */
static void expect_freed_memory_is_refused(size_t size) {
    void *d, *live, *h;
    ds_stream s = harness_stream(0, 0);
    ok(ds_device_alloc(harness_device(0), size, &d));
    ok(ds_device_alloc(harness_device(0), size, &live));
    ok(ds_pinned_alloc(size, &h));
    ok(ds_device_free(d));

    refused(ds_copy(d, live, 4096, s), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "was freed (dst, 4096 bytes)"));
    refused(ds_copy(live, (char *)d + size - 4096, 4096, s), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "was freed (src, 4096 bytes)"));
    refused(ds_copy_2d(live, 128, d, 128, 64, 10, s), DS_ERR_INVALID_VALUE);
    refused(ds_fill(d, 0, 4, 1024, s), DS_ERR_INVALID_VALUE);
    ok(ds_pinned_free(h));
    refused(ds_copy(live, h, 4096, s), DS_ERR_INVALID_VALUE);

    ok(ds_stream_synchronize(s)); /* nothing was put on the stream */
    ok(ds_device_free(live));
    ok(ds_stream_destroy(s));
}

static void test_work_on_freed_memory_is_refused(void **state) {
    (void)state;
    if (HARNESS_SLOW)
        skip(); /* a sanitizer keeps freed memory and reports its use */
    expect_freed_memory_is_refused(4096);
    expect_freed_memory_is_refused(64 << 20);
}

/* The program's own memory may come to stand where a device's was. */
static void test_memory_of_the_program_where_a_devices_was_is_copied(void **state) {
    enum { SIZE = 64 << 20 };

    void *d, *live;
    (void)state;
    ds_stream s = harness_stream(0, 0);
    ok(ds_device_alloc(harness_device(0), 4096, &live));
    ok(ds_device_alloc(harness_device(0), SIZE, &d));
    ok(ds_device_free(d));
    char *whole = malloc(SIZE);
    assert_non_null(whole);
    char *own = whole + 8192; /* a malloc may put its own bytes in front of what it gives */
    memset(own, 7, 4096);
    if (own < (char *)d || own >= (char *)d + SIZE)
        print_message("the addresses differ\n");

    ok(ds_copy(live, own, 4096, s));
    memset(own, 0, 4096);
    ok(ds_copy(own, live, 4096, s));

    ok(ds_stream_synchronize(s));
    assert_int_equal(own[0], 7);
    assert_int_equal(own[4095], 7);
    free(whole);
    ok(ds_device_free(live));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_copies[] = {
    DS_TEST(test_copies_keep_the_data_between_all_kinds_of_memory, "peers 47"),
    DS_TEST(test_large_copies_keep_the_data, "peers 47"),
    DS_TEST(test_a_chain_of_copies_over_two_devices_keeps_the_data, "peers 47"),
    DS_TEST(test_peer_copies_check_the_devices_that_they_are_told, "peers 47"),
    DS_TEST(test_pinned_and_device_copies_and_fills_do_not_block, "peers b.1"),
    DS_TEST(test_pageable_copies_and_fills_block, "peers b.1"),
    DS_TEST(test_the_source_of_a_pageable_copy_may_be_used_again_at_once, "peers b.1"),
    DS_TEST(test_free_host_free_and_unregister_wait_for_the_device, "peers b.1"),
    DS_TEST(test_alloc_does_not_wait_for_the_device, "peers b.1"),
    DS_TEST(test_synchronous_copies_and_fills_are_done, "copies"),
    DS_TEST(test_synchronous_copies_wait_for_blocking_streams, "copies"),
    DS_TEST(test_a_synchronous_copy_ignores_non_blocking_streams, "copies"),
    DS_TEST(test_synchronous_copies_refuse_wrong_arguments, "copies"),
    DS_TEST(test_a_synchronous_copy_is_no_node_of_a_capture, "copies"),
    DS_TEST(test_a_full_device_is_out_of_memory, "memory"),
    DS_TEST(test_pitched_copies_touch_only_their_rows, "copies"),
    DS_TEST_CUDA_WITH(test_pitched_copies_without_peer_access_touch_their_rows, "copies",
                      "STANDIN_PEERS=none"),
    DS_TEST(test_pitched_copies_refuse_wrong_arguments, "copies"),
    DS_TEST(test_pitched_memory_is_wide_enough_and_aligned, "memory"),
    DS_TEST(test_fills_set_every_element_and_nothing_else, "fills"),
    DS_TEST(test_pitched_fills_touch_only_their_rows, "fills"),
    DS_TEST(test_fills_refuse_wrong_arguments, "fills"),
    DS_TEST(test_copies_refuse_wrong_ranges_and_enqueue_nothing, "copies"),
    DS_TEST(test_a_batch_copies_all_its_rows, "copies"),
    DS_TEST(test_a_batch_runs_in_stream_order, "copies"),
    DS_TEST(test_sizes_of_zero_in_a_batch_do_nothing, "copies"),
    DS_TEST(test_a_batch_with_a_wrong_copy_enqueues_nothing, "copies"),
    DS_TEST(test_a_captured_batch_is_copied_by_each_launch, "copies"),
    DS_TEST(test_pointer_query_tells_kind_device_and_range, "memory"),
    DS_TEST(test_memory_is_aligned_and_sizes_of_zero_give_null, "memory"),
    DS_TEST(test_free_refuses_what_is_not_the_start_of_an_allocation, "memory"),
    DS_TEST(test_register_refuses_what_overlaps_a_known_range, "memory"),
    DS_TEST(test_pinned_memory_of_a_node_and_of_huge_pages, "users 10"),
    DS_TEST(test_wrong_descriptions_of_pinned_memory_are_refused, "users 10"),
    DS_TEST(test_pinned_pages_that_are_left_end_at_the_shutdown, "users 10"),
    DS_TEST_CPU(test_work_on_freed_memory_is_refused, "memory"),
    DS_TEST_CPU(test_memory_of_the_program_where_a_devices_was_is_copied, "memory"),
    DS_TEST_CPU(test_memory_limit_is_kept_and_memory_info_moves, "peers 25"),
    DS_TEST_CPU(test_copies_are_staged_where_peer_access_is_off, "copies"),
    DS_TEST_CPU(test_the_environment_selects_peer_access, "copies"),
    DS_TEST_CPU(test_peer_access_may_be_one_way, "copies"),
};
const size_t tests_copies_count = sizeof tests_copies / sizeof tests_copies[0];
