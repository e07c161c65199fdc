/* Kernels: descriptions, arguments, items and grids. */
#include "harness.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Counts how often every item is handled, and the calls: the argument struct itself. */
typedef struct tally {
    _Atomic uint32_t *seen; /* NULL, on the CPU only: just the sums */
    _Atomic uint64_t *sums;
    uint64_t items;
} tally;

enum { TOTAL, OUTSIDE, CALLS, SUMS }; /* calls: of the CPU form */

static int tally_kernel(size_t first, size_t count, const void *args) {
    const tally *t = args;
    t->sums[CALLS]++;
    t->sums[TOTAL] += count;
    if (count == 0 || first > t->items || count > t->items - first) {
        t->sums[OUTSIDE]++;
        return 0;
    }
    if (t->seen)
        for (size_t i = 0; i < count; i++)
            t->seen[first + i]++;
    return 0;
}

static ds_kernel make_tally(size_t grain) {
    static const ds_param params[] = { PARAM(READ_WRITE, tally, seen),
                                       PARAM(READ_WRITE, tally, sums), PARAM(VALUE, tally, items),
                                       PARAM_FIRST, PARAM_COUNT };
    return harness_kernel("tally", tally_kernel, sizeof(tally), params, 5, grain);
}

static tally sums_of(size_t items) {
    return (tally){ NULL, (_Atomic uint64_t *)zeroed_words(SUMS), items };
}

static tally tally_of(size_t items) {
    tally t = sums_of(items);
    void *seen;
    ok(ds_pinned_alloc(items * sizeof *t.seen, &seen));
    memset(seen, 0, items * sizeof *t.seen);
    t.seen = seen;
    return t;
}

static void drop(tally *t) {
    ok(ds_pinned_free((void *)t->seen));
}

static void expect_each_item_once(const tally *t) {
    assert_int_equal(t->sums[OUTSIDE], 0);
    assert_true(t->sums[TOTAL] == t->items);
    if (t->seen)
        for (size_t i = 0; i < t->items; i++)
            if (t->seen[i] != 1)
                fail_msg("item %zu was handled %d times", i, (int)t->seen[i]);
}

static void test_every_item_is_handled_exactly_once(void **state) {
    (void)state;
    static const size_t counts[] = { 1, 2, 3, 63, 64, 65, 1000, 100003 };
    static const size_t grains[] = { 0, 1, 7, 1000, 100003, SIZE_MAX };
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++) {
        ds_kernel k = make_tally(grains[g]);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            tally t = tally_of(counts[c]);
            ok(ds_kernel_launch(k, counts[c], &t, sizeof t, s));
            ok(ds_stream_synchronize(s));
            expect_each_item_once(&t);
            size_t grain = grains[g] ? grains[g] : 1;
            if (harness_is_cpu()) {
                assert_true(t.sums[CALLS] >= 1);
                /* only the last call may be smaller than the grain */
                assert_true(t.sums[CALLS] <= t.items / grain + 1);
                if (t.items == 1)
                    assert_int_equal(t.sums[CALLS], 1);
            }
            drop(&t);
        }
        ok(ds_kernel_destroy(k));
    }
    ok(ds_stream_destroy(s));
}

static void test_a_grain_of_size_max_never_splits(void **state) {
    (void)state;
    ds_stream s;
    ds_kernel k = make_tally(SIZE_MAX);
    ok(ds_stream_create(NULL, &s));
    static const size_t counts[] = { 1, 1000, (size_t)1 << 40, SIZE_MAX };
    for (size_t c = 0; c < 4; c++) {
        tally t = sums_of(counts[c]);
        ok(ds_kernel_launch(k, counts[c], &t, sizeof t, s));
        ok(ds_stream_synchronize(s));
        expect_each_item_once(&t);
        assert_int_equal(t.sums[CALLS], 1);
    }
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_item_counts_near_size_max_do_not_wrap(void **state) {
    (void)state;
    ds_stream s;
    ds_kernel k = make_tally(SIZE_MAX / 16);
    ok(ds_stream_create(NULL, &s));
    for (size_t less = 0; less < 3; less++) {
        tally t = sums_of(SIZE_MAX - less);
        ok(ds_kernel_launch(k, t.items, &t, sizeof t, s));
        ok(ds_stream_synchronize(s));
        expect_each_item_once(&t);
        assert_true(t.sums[CALLS] <= 17);
    }
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_no_items_do_nothing(void **state) {
    (void)state;
    tally t = sums_of(0);
    ds_kernel k = make_tally(0);
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    ok(ds_kernel_launch(k, 0, &t, sizeof t, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(t.sums[CALLS] + t.sums[TOTAL], 0);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* Items that take long: the host that waits has gone to sleep before there is anything to join. */
typedef struct slow_args {
    _Atomic(void *) *threads;
    size_t room;
} slow_args;

static _Thread_local int this_thread;

static int slow_kernel(size_t first, size_t count, const void *args) {
    const slow_args *a = args;
    (void)first;
    for (size_t i = 0; i < count; i++)
        harness_nap();
    for (size_t i = 0; i < a->room; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&a->threads[i], &none, (void *)&this_thread) ||
            none == (void *)&this_thread)
            break;
    }
    return 0;
}

/* The items of a vectorized kernel: several in a nanosecond. */
static int quick_items(size_t first, size_t count, const void *args) {
    const tally *t = args;
    (void)first;
    t->sums[CALLS]++;
    for (size_t i = 0; i < count / 8; i++)
        __asm__ volatile("" : : : "memory");
    return 0;
}

static void test_a_long_launch_of_very_short_items_is_split(void **state) {
    (void)state;
    const size_t items = (size_t)1 << 28;
    ds_stream s;
    tally t = sums_of(items);
    static const ds_param params[] = { PARAM(READ_WRITE, tally, seen),
                                       PARAM(READ_WRITE, tally, sums), PARAM(VALUE, tally, items) };
    ds_kernel k = harness_kernel("quick", quick_items, sizeof(tally), params, 3, 0);

    ok(ds_stream_create(NULL, &s));
    ok(ds_kernel_launch(k, items, &t, sizeof t, s));
    ok(ds_stream_synchronize(s));

    assert_true(t.sums[CALLS] > 2); /* the first items, and the rest in one call */
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_second_thread_joins_a_long_kernel_during_a_host_wait(void **state) {
    (void)state;
    if (harness_processors() < 2)
        skip();
    _Atomic(void *) threads[8];
    slow_args a = { threads, 8 };
    ds_kernel k;
    ds_stream s;
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "slow", .cpu_fn = slow_kernel, .args_size = sizeof a }, &k));
    ok(ds_stream_create(NULL, &s));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 8; i++)
            atomic_store(&threads[i], NULL);
        /* the workers sleep too */
        for (int i = 0; i < 40; i++)
            harness_nap();
        ok(ds_kernel_launch(k, 1000, &a, sizeof a, s));
        ok(ds_stream_synchronize(s));
        assert_non_null(threads[0]);
        assert_non_null(threads[1]);
    }
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* Launches of many kernels on one stream stay in order, although each is split. */
typedef struct step_args {
    uint32_t *v;
    uint32_t number;
} step_args;

static int step_kernel(size_t first, size_t count, const void *args) {
    const step_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->v[i] = a->v[i] * 31u + a->number;
    return 0;
}

static void test_split_launches_of_a_stream_stay_in_order(void **state) {
    (void)state;

    enum { N = 5000, STEPS = 200 };

    static const ds_param params[] = { PARAM(READ_WRITE, step_args, v),
                                       PARAM(VALUE, step_args, number), PARAM_FIRST, PARAM_COUNT };
    void *p;
    ds_kernel k;
    ds_stream s;
    ok(ds_pinned_alloc(N * sizeof(uint32_t), &p));
    uint32_t *v = p, want = 1;
    for (int i = 0; i < N; i++)
        v[i] = 1;
    k = harness_kernel("step", step_kernel, sizeof(step_args), params, 4, 0);
    ok(ds_stream_create(NULL, &s));
    for (uint32_t i = 0; i < STEPS; i++) {
        step_args args = { v, i };
        ok(ds_kernel_launch(k, N, &args, sizeof args, s));
        want = want * 31u + i;
    }
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < N; i++)
        assert_int_equal(v[i], want);
    ok(ds_pinned_free(p));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* ---- arguments ---- */

typedef struct store_args {
    uint64_t *out;
    uint64_t value;
} store_args;

static int store_kernel(size_t first, size_t count, const void *args) {
    const store_args *a = args;
    (void)first;
    (void)count;
    *a->out = a->value;
    return 0;
}

static ds_kernel make_store(void) {
    static const ds_param params[] = { PARAM(WRITE, store_args, out),
                                       PARAM(VALUE, store_args, value) };
    return harness_kernel("store", store_kernel, sizeof(store_args), params, 2, 0);
}

static void test_arguments_are_copied_at_the_launch(void **state) {
    (void)state;
    gate g = { 0 };
    uint64_t *out = zeroed_words(10);
    ds_kernel k;
    ds_stream s;
    k = make_store();
    ok(ds_stream_create(NULL, &s));
    gate_close(s, &g);
    store_args args = { 0 };
    for (uint64_t i = 0; i < 10; i++) {
        args = (store_args){ &out[i], 100 + i };
        ok(ds_kernel_launch(k, 1, &args, sizeof args, s));
    }
    memset(&args, 0, sizeof args);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    for (uint64_t i = 0; i < 10; i++)
        assert_true(out[i] == 100 + i);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

typedef struct big_args {
    unsigned char *out;
    unsigned char bytes[DS_KERNEL_MAX_ARGS - sizeof(unsigned char *)];
} big_args;

static int big_kernel(size_t first, size_t count, const void *args) {
    const big_args *a = args;
    (void)first;
    (void)count;
    memcpy(a->out, a->bytes, sizeof a->bytes);
    return 0;
}

static void test_the_largest_argument_struct_arrives_whole(void **state) {
    (void)state;
    static big_args args;
    static const ds_param params[] = { PARAM(WRITE, big_args, out), PARAM(VALUE, big_args, bytes) };
    unsigned char *out[20];
    gate g = { 0 };
    ds_kernel k;
    ds_stream s;
    k = harness_kernel("big", big_kernel, sizeof args, params, 2, 0);
    void *all;
    ok(ds_pinned_alloc(20 * sizeof args.bytes, &all));
    for (size_t n = 0; n < 20; n++)
        out[n] = (unsigned char *)all + n * sizeof args.bytes;
    ok(ds_stream_create(NULL, &s));
    gate_close(s, &g); /* all are pending at once */
    for (size_t n = 0; n < 20; n++) {
        args.out = out[n];
        for (size_t i = 0; i < sizeof args.bytes; i++)
            args.bytes[i] = (unsigned char)(i * 7 + n);
        ok(ds_kernel_launch(k, 1, &args, sizeof args, s));
    }
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    for (size_t n = 0; n < 20; n++)
        for (size_t i = 0; i < sizeof args.bytes; i++)
            assert_int_equal(out[n][i], (unsigned char)(i * 7 + n));
    ok(ds_pinned_free(all));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* The argument struct must be usable as what it is, whatever came before it in the queue. */
typedef struct odd_args {
    _Atomic uint32_t *bad;
    unsigned char bytes[9];
} odd_args;

static int odd_kernel(size_t first, size_t count, const void *args) {
    const odd_args *a = args;
    (void)first;
    (void)count;
    if ((uintptr_t)args % _Alignof(max_align_t) != 0)
        (*a->bad)++;
    for (int i = 0; i < 9; i++)
        if (a->bytes[i] != i)
            (*a->bad)++;
    return 0;
}

static int no_args_kernel(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

static void test_arguments_are_aligned_for_every_type(void **state) {
    (void)state;
    static const ds_param params[] = { PARAM(READ_WRITE, odd_args, bad),
                                       PARAM(VALUE, odd_args, bytes) };
    ds_kernel k, none;
    ds_stream s;
    odd_args args = { (_Atomic uint32_t *)zeroed_words(1), { 0, 1, 2, 3, 4, 5, 6, 7, 8 } };
    k = harness_kernel("odd", odd_kernel, sizeof args, params, 2, 0);
    none = harness_kernel("none", no_args_kernel, 0, NULL, 0, 0);
    ok(ds_stream_create(NULL, &s));
    for (int i = 0; i < 500; i++) {
        ok(ds_kernel_launch(k, 1, &args, sizeof args, s));
        if (i % 3 == 0)
            ok(ds_kernel_launch(none, 1, NULL, 0, s));
    }
    ok(ds_stream_synchronize(s));
    assert_int_equal(*args.bad, 0);
    ok(ds_kernel_destroy(k));
    ok(ds_kernel_destroy(none));
    ok(ds_stream_destroy(s));
}

static void test_launches_refuse_wrong_arguments(void **state) {
    (void)state;
    uint64_t *out = word(0);
    store_args args = { out, 1 };
    ds_kernel k, none;
    ds_stream s, stale;
    ds_grid one = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } };
    k = make_store();
    none = harness_kernel("none", no_args_kernel, 0, NULL, 0, 0);
    ok(ds_stream_create(NULL, &s));
    refused(ds_kernel_launch(k, 1, &args, sizeof args - 1, s), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_launch(k, 1, &args, sizeof args + 1, s), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_launch(k, 1, &args, 0, s), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_launch(k, 1, NULL, sizeof args, s), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_launch(none, 1, &args, sizeof args, s), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_launch_grid(k, &one, &args, 0, s), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_launch_grid(k, NULL, &args, sizeof args, s), DS_ERR_INVALID_VALUE);
    refused(ds_kernel_launch((ds_kernel){ 0 }, 1, &args, sizeof args, s), DS_ERR_INVALID_HANDLE);
    refused(ds_kernel_launch((ds_kernel){ UINT64_MAX }, 1, &args, sizeof args, s),
            DS_ERR_INVALID_HANDLE);
    assert_int_equal(ds_stream_query(s), DS_OK);
    stale = s;
    ok(ds_stream_destroy(s));
    refused(ds_kernel_launch(k, 1, &args, sizeof args, stale), DS_ERR_INVALID_HANDLE);
    refused(ds_kernel_launch_grid(k, &one, &args, sizeof args, stale), DS_ERR_INVALID_HANDLE);
    ok(ds_kernel_destroy(k));
    ok(ds_kernel_destroy(none));
    ok(ds_device_synchronize(harness_device(0)));
    assert_true(*out == 0);
}

/* ---- descriptions ---- */

static void test_kernel_create_refuses_wrong_descriptions(void **state) {
    (void)state;
    ds_kernel k = { 1 };
    ds_param p = { DS_PARAM_VALUE, 0, 8 };
    ds_kernel_desc good = { .name = "good",
                            .cpu_fn = no_args_kernel,
                            .args_size = 16,
                            .params = &p,
                            .param_count = 1 },
                   d;
    refused(ds_kernel_create(NULL, &k), DS_ERR_INVALID_VALUE);
    assert_true(k.id == 0);
    refused(ds_kernel_create(&good, NULL), DS_ERR_INVALID_VALUE);
    d = good;
    d.name = NULL;
    refused(ds_kernel_create(&d, &k), DS_ERR_INVALID_VALUE);
    d = good;
    d.args_size = DS_KERNEL_MAX_ARGS + 1;
    refused(ds_kernel_create(&d, &k), DS_ERR_INVALID_VALUE);
    d = good;
    d.args_size = SIZE_MAX;
    refused(ds_kernel_create(&d, &k), DS_ERR_INVALID_VALUE);
    d = good;
    d.params = NULL;
    refused(ds_kernel_create(&d, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ DS_PARAM_VALUE, 9, 8 }; /* ends one byte behind the struct */
    refused(ds_kernel_create(&good, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ DS_PARAM_VALUE, 0, 17 };
    refused(ds_kernel_create(&good, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ DS_PARAM_VALUE, SIZE_MAX - 3, 8 }; /* wraps */
    refused(ds_kernel_create(&good, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ DS_PARAM_VALUE, 8, SIZE_MAX - 3 };
    refused(ds_kernel_create(&good, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ DS_PARAM_READ, 0, sizeof(void *) / 2 };
    refused(ds_kernel_create(&good, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ DS_PARAM_FIRST, 0, 3 };
    refused(ds_kernel_create(&good, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ (ds_param_kind)77, 0, 8 };
    refused(ds_kernel_create(&good, &k), DS_ERR_INVALID_VALUE);
    p = (ds_param){ DS_PARAM_VALUE, 8, 8 }; /* ends with the struct */
    ok(ds_kernel_create(&good, &k));
    ok(ds_kernel_destroy(k));
    p = (ds_param){ DS_PARAM_COUNT, 1000, 4 }; /* has no place in the struct */
    ok(ds_kernel_create(&good, &k));
    ok(ds_kernel_destroy(k));
    refused(ds_kernel_destroy(k), DS_ERR_INVALID_HANDLE);
    refused(ds_kernel_destroy((ds_kernel){ 0 }), DS_ERR_INVALID_HANDLE);
}

static void test_name_and_parameters_are_copied(void **state) {
    (void)state;
    char name[20] = "volatile";
    uint64_t *out = word(0);
    ds_param p[2] = { { DS_PARAM_WRITE, offsetof(store_args, out), sizeof(void *) },
                      { DS_PARAM_VALUE, offsetof(store_args, value), sizeof(uint64_t) } };
    ds_kernel k;
    ds_stream s;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = name,
                                           .cpu_fn = store_kernel,
                                           .args_size = sizeof(store_args),
                                           .params = p,
                                           .param_count = 2,
                                           .cuda = harness_cuda_form("store") },
                        &k));
    memset(name, 'x', sizeof name - 1);
    memset(p, 0xff, sizeof p);
    ok(ds_stream_create(NULL, &s));
    store_args args = { out, 77 };
    ok(ds_kernel_launch(k, 1, &args, sizeof args, s));
    ok(ds_stream_synchronize(s));
    assert_true(*out == 77);
    refused(ds_kernel_launch(k, 1, NULL, sizeof args, s), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "volatile"));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_destroyed_kernel_still_runs_its_pending_launches(void **state) {
    (void)state;
    gate g = { 0 };
    uint64_t *out = zeroed_words(3);
    ds_kernel k, other;
    ds_stream s;
    k = make_store();
    ok(ds_stream_create(NULL, &s));
    gate_close(s, &g);
    for (uint64_t i = 0; i < 3; i++)
        ok(ds_kernel_launch(k, 1, &(store_args){ &out[i], 5 + i }, sizeof(store_args), s));
    ok(ds_kernel_destroy(k));
    refused(ds_kernel_launch(k, 1, &(store_args){ &out[0], 9 }, sizeof(store_args), s),
            DS_ERR_INVALID_HANDLE);
    /* a kernel in the same place must not be taken for the old one */
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "other",
                                           .cpu_fn = no_args_kernel,
                                           .args_size = sizeof(store_args) },
                        &other));
    refused(ds_kernel_launch(k, 1, &(store_args){ &out[0], 9 }, sizeof(store_args), s),
            DS_ERR_INVALID_HANDLE);
    gate_open(&g);
    ok(ds_stream_synchronize(s));
    for (uint64_t i = 0; i < 3; i++)
        assert_true(out[i] == 5 + i);
    ok(ds_kernel_destroy(other));
    ok(ds_stream_destroy(s));
}

static void test_a_kernel_without_cpu_form_is_refused_at_launch(void **state) {
    (void)state;
    ds_kernel k;
    ds_stream s;
    ds_grid one = { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } };
    ok(ds_kernel_create(
        &(ds_kernel_desc){ .name = "gpu only", .cuda = { .image = "//", .entry = "f" } }, &k));
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    refused(ds_kernel_launch(k, 1, NULL, 0, s), DS_ERR_UNSUPPORTED);
    refused(ds_kernel_launch_grid(k, &one, NULL, 0, s), DS_ERR_UNSUPPORTED);
    assert_int_equal(ds_stream_query(s), DS_OK);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* ---- extents ---- */

static void expect_refused_with(const ds_kernel_desc *desc, const char *words) {
    ds_kernel k = { 1 };
    refused(ds_kernel_create(desc, &k), DS_ERR_INVALID_VALUE);
    assert_true(k.id == 0);
    if (!strstr(ds_error_get_last(), words))
        fail_msg("\"%s\" does not say \"%s\"", ds_error_get_last(), words);
}

static void expect_accepted(const ds_kernel_desc *desc) {
    ds_kernel k;
    ok(ds_kernel_create(desc, &k));
    ok(ds_kernel_destroy(k));
}

typedef struct extent_args {
    float *out;
    uint64_t count;
    uint16_t half;
} extent_args;

static const ds_param extent_params[] = { PARAM(WRITE, extent_args, out),
                                          PARAM(VALUE, extent_args, count),
                                          PARAM(VALUE, extent_args, half), PARAM_COUNT };

static ds_kernel_desc extent_desc(const ds_extent *extents) {
    return (ds_kernel_desc){ .name = "extent",
                             .cpu_fn = no_args_kernel,
                             .args_size = sizeof(extent_args),
                             .params = extent_params,
                             .param_count = 4,
                             .extents = extents };
}

static void test_wrong_extents_are_refused(void **state) {
    (void)state;

    static const struct {
        ds_extent extent;
        const char *words;
    } wrong[] = {
        { { .kind = (ds_extent_kind)4, .bytes = 8 }, "extent 0 has the kind 4; use a DS_EXTENT_*" },
        { { .kind = (ds_extent_kind)-1, .bytes = 8 }, "extent 0 has the kind -1" },
        { { .kind = DS_EXTENT_BYTES }, "extent 0 has 0 bytes" },
        { { .kind = DS_EXTENT_COUNT, .count_param = 1 }, "extent 0 has 0 bytes" },
        { { .kind = DS_EXTENT_ITEMS, .stride = 8 }, "extent 0 has 0 bytes" },
        { { .kind = DS_EXTENT_NONE, .bytes = 8 }, "8 bytes at offset 0, but the kind" },
        { { .kind = DS_EXTENT_NONE, .offset = 8 }, "0 bytes at offset 8, but the kind" },
        { { .kind = DS_EXTENT_BYTES, .bytes = 8, .atomic = 2 }, "atomic is 2; 0 or 1" },
        { { .kind = DS_EXTENT_BYTES, .bytes = 8, .atomic = -1 }, "atomic is -1; 0 or 1" },
        { { .kind = DS_EXTENT_ITEMS, .bytes = 8, .stride = 7 },
          "stride is 7; 0 or at least the 8" },
        { { .kind = DS_EXTENT_BYTES, .bytes = 8, .stride = 8 }, "only DS_EXTENT_ITEMS" },
        { { .kind = DS_EXTENT_NONE, .stride = 8 }, "only DS_EXTENT_ITEMS" },
        { { .kind = DS_EXTENT_BYTES, .bytes = 8, .count_param = 1 }, "only DS_EXTENT_COUNT" },
        { { .kind = DS_EXTENT_ITEMS, .bytes = 8, .count_param = 1 }, "only DS_EXTENT_COUNT" },
        { { .kind = DS_EXTENT_COUNT, .bytes = 4, .count_param = 4 },
          "count_param is 4, but the kernel has 4 parameters" },
        { { .kind = DS_EXTENT_COUNT, .bytes = 4, .count_param = 0 },
          "parameter 0, the number of elements, has the kind 2 and 8 bytes" },
        { { .kind = DS_EXTENT_COUNT, .bytes = 4, .count_param = 2 }, "the kind 0 and 2 bytes" },
        { { .kind = DS_EXTENT_COUNT, .bytes = 4, .count_param = 3 }, "the kind 5 and 8 bytes" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_extent extents[4] = { wrong[i].extent };
        ds_kernel_desc d = extent_desc(extents);

        expect_refused_with(&d, wrong[i].words);

        assert_non_null(strstr(ds_error_get_last(), "kernel extent"));
    }
}

static void test_an_extent_of_a_value_is_refused(void **state) {
    (void)state;
    for (size_t i = 1; i < 4; i++) {
        ds_extent bytes[4] = { [0] = { .kind = DS_EXTENT_BYTES, .bytes = 8 } };
        ds_extent atomic[4] = { [0] = { .atomic = 1 } };
        char words[80];
        snprintf(words, sizeof words, "parameter %zu is no pointer", i);
        bytes[i] = bytes[0];
        atomic[i] = atomic[0];
        ds_kernel_desc d = extent_desc(bytes);
        ds_kernel_desc e = extent_desc(atomic);

        expect_refused_with(&d, words);
        expect_refused_with(&e, words);
    }
}

static void state_no_extents(const void *args, size_t *out_bytes) {
    (void)args;
    out_bytes[0] = 0;
}

static void test_extents_are_given_as_a_list_or_by_a_function(void **state) {
    (void)state;
    ds_extent extents[4] = { { .kind = DS_EXTENT_NONE } };
    ds_kernel_desc d = extent_desc(extents);
    d.extents_fn = state_no_extents;

    expect_refused_with(&d, "kernel extent has extents and extents_fn");
    d.extents = NULL;
    expect_accepted(&d);
}

static void test_correct_extents_are_accepted(void **state) {
    (void)state;
    static const ds_extent right[] = {
        { .kind = DS_EXTENT_NONE },
        { .kind = DS_EXTENT_NONE, .atomic = 1 },
        { .kind = DS_EXTENT_BYTES, .bytes = SIZE_MAX, .offset = SIZE_MAX, .atomic = 1 },
        { .kind = DS_EXTENT_COUNT, .bytes = 4, .count_param = 1 },
        { .kind = DS_EXTENT_ITEMS, .bytes = 8 },
        { .kind = DS_EXTENT_ITEMS, .bytes = 8, .stride = 8 },
        { .kind = DS_EXTENT_ITEMS, .bytes = 8, .stride = 9, .offset = 3 },
    };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        ds_extent extents[4] = { right[i] };
        ds_kernel_desc d = extent_desc(extents);

        expect_accepted(&d);
    }
}

/* ---- the table of parameters and the image ---- */

/* Text as nvcc writes it. */
static const char vector_add_ptx[] =
    "//\n// Generated\n//\n\n.version 5.0\n.target sm_60\n.address_size 64\n\n"
    "\t// .globl\tvectorAdd\n\n.visible .entry vectorAdd(\n\t.param .u64 vectorAdd_param_0,\n"
    "\t.param .u64 vectorAdd_param_1,\n\t.param .u64 vectorAdd_param_2,\n"
    "\t.param .u32 vectorAdd_param_3\n)\n{\n\t.reg .pred \t%p<2>;\n\t.reg .f32 \t%f<4>;\n"
    "\t.reg .b32 \t%r<6>;\n\t.reg .b64 \t%rd<11>;\n\n"
    "\tld.param.u64 \t%rd1, [vectorAdd_param_0];\n\tld.param.u64 \t%rd2, [vectorAdd_param_1];\n"
    "\tld.param.u64 \t%rd3, [vectorAdd_param_2];\n\tld.param.u32 \t%r2, [vectorAdd_param_3];\n"
    "\tmov.u32 \t%r3, %ntid.x;\n\tmov.u32 \t%r4, %ctaid.x;\n\tmov.u32 \t%r5, %tid.x;\n"
    "\tmad.lo.s32 \t%r1, %r3, %r4, %r5;\n\tsetp.ge.s32 \t%p1, %r1, %r2;\n\t@%p1 bra \t$L_2;\n\n"
    "\tcvta.to.global.u64 \t%rd4, %rd1;\n\tmul.wide.s32 \t%rd5, %r1, 4;\n"
    "\tadd.s64 \t%rd6, %rd4, %rd5;\n\tcvta.to.global.u64 \t%rd7, %rd2;\n"
    "\tadd.s64 \t%rd8, %rd7, %rd5;\n\tld.global.f32 \t%f1, [%rd8];\n"
    "\tld.global.f32 \t%f2, [%rd6];\n\tadd.rn.f32 \t%f3, %f2, %f1;\n"
    "\tcvta.to.global.u64 \t%rd9, %rd3;\n\tadd.s64 \t%rd10, %rd9, %rd5;\n"
    "\tst.global.f32 \t[%rd10], %f3;\n\n$L_2:\n\tret;\n\n}\n";

typedef struct vector_args {
    const float *a, *b;
    float *c;
    int32_t n;
} vector_args;

static int vector_kernel(size_t first, size_t count, const void *args) {
    const vector_args *v = args;
    for (size_t i = first; i < first + count; i++)
        v->c[i] = v->a[i] + v->b[i];
    return 0;
}

#define TABLE_A PARAM(READ, vector_args, a)
#define TABLE_B PARAM(READ, vector_args, b)
#define TABLE_C PARAM(WRITE, vector_args, c)
#define TABLE_N PARAM(VALUE, vector_args, n)

static ds_kernel_desc vector_desc(const ds_param *params, size_t count) {
    return (ds_kernel_desc){ .name = "add",
                             .cpu_fn = vector_kernel,
                             .args_size = sizeof(vector_args),
                             .params = params,
                             .param_count = count,
                             .cuda = { .image = vector_add_ptx, .entry = "vectorAdd" } };
}

static void test_a_table_of_another_length_is_refused(void **state) {
    (void)state;
    static const ds_param params[] = { TABLE_A, TABLE_B, TABLE_C, TABLE_N, PARAM_COUNT };
    ds_kernel_desc d = vector_desc(params, 3);
    expect_refused_with(&d, "kernel add: the table has 3 parameters, function vectorAdd of the "
                            "image has 4 (vectorAdd_param_3 is missing)");
    d = vector_desc(params, 5);
    expect_refused_with(&d, "the table has 5 parameters, function vectorAdd of the image has 4 "
                            "(parameter 4 of the table has no place there)");
    d = vector_desc(NULL, 0);
    expect_refused_with(&d, "(vectorAdd_param_0 is missing)");
    d = vector_desc(params, 4);
    expect_accepted(&d);
}

static void test_a_parameter_of_another_size_is_refused(void **state) {
    (void)state;
    static const ds_param params[] = { TABLE_A, TABLE_B, TABLE_C, PARAM_COUNT };
    static const ds_param four[] = { TABLE_A, TABLE_B, TABLE_C, { DS_PARAM_COUNT, 0, 4 } };
    ds_kernel_desc d = vector_desc(params, 4);
    expect_refused_with(&d, "kernel add: parameter 3 (DS_PARAM_COUNT) has 8 bytes in the table, "
                            "but vectorAdd_param_3 of function vectorAdd has 4");
    d = vector_desc(four, 4);
    expect_accepted(&d);
}

static void test_swapped_parameters_are_refused(void **state) {
    (void)state;
    static const ds_param by_size[] = { TABLE_N, TABLE_A, TABLE_B, TABLE_C };
    static const ds_param by_kind[] = { TABLE_C, TABLE_B, TABLE_A, TABLE_N };
    static const ds_param unseen[] = { TABLE_B, TABLE_A, TABLE_C, TABLE_N };
    ds_kernel_desc d = vector_desc(by_size, 4);
    expect_refused_with(&d, "parameter 0 (DS_PARAM_VALUE) has 4 bytes in the table, "
                            "but vectorAdd_param_0 of function vectorAdd has 8");
    d = vector_desc(by_kind, 4);
    expect_refused_with(&d, "kernel add: parameter 2 is DS_PARAM_READ, but function vectorAdd "
                            "stores through vectorAdd_param_2");
    d = vector_desc(unseen, 4); /* nothing tells the two inputs apart */
    expect_accepted(&d);
}

static void test_an_address_that_the_table_calls_a_value_is_refused(void **state) {
    (void)state;
    static const ds_param_kind kinds[] = { DS_PARAM_VALUE, DS_PARAM_FIRST, DS_PARAM_COUNT };
    static const char *const names[] = { "DS_PARAM_VALUE", "DS_PARAM_FIRST", "DS_PARAM_COUNT" };
    for (int i = 0; i < 3; i++) {
        ds_param params[] = { TABLE_A, TABLE_B, TABLE_C, TABLE_N };
        char words[200];
        params[1].kind = kinds[i];
        ds_kernel_desc d = vector_desc(params, 4);
        snprintf(words, sizeof words,
                 "parameter 1 is %s, but function vectorAdd uses vectorAdd_param_1 as an address",
                 names[i]);
        expect_refused_with(&d, words);
        params[1].kind = DS_PARAM_READ_WRITE;
        expect_accepted(&d);
    }
    (void)state;
}

static void test_a_function_that_the_image_lacks_is_refused(void **state) {
    (void)state;
    static const ds_param params[] = { TABLE_A, TABLE_B, TABLE_C, TABLE_N };
    ds_kernel_desc d = vector_desc(params, 4);
    d.cuda.entry = "vectorSub";
    expect_refused_with(&d, "kernel add: the image has no function vectorSub; it has vectorAdd");
    d.cuda.entry = "vectorAd"; /* the beginning of one */
    expect_refused_with(&d, "no function vectorAd; it has vectorAdd");
    d.cuda.image = ".version 5.0\n.target sm_60\n";
    expect_refused_with(&d, "no function vectorAd; it has no functions");
}

static void test_images_that_are_not_ptx_text_are_not_compared(void **state) {
    (void)state;
    static const char cubin[64] = "\177ELF";
    static const char fatbin[64] = "\x50\xed\x55\xba";
    static const char *const images[] = { cubin, fatbin, "what no driver takes" };
    for (int i = 0; i < 3; i++) {
        ds_kernel_desc d = vector_desc(NULL, 0);
        d.cuda.image = images[i];
        expect_accepted(&d);
        d.cuda.image_size = i < 2 ? sizeof cubin : 5;
        expect_accepted(&d);
    }
}

/* Copies a text without its zero to the end of a page that another one without access follows. */
static char *without_end(const char *text, size_t *size, void **pages, size_t *pages_size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *size = strlen(text);
    *pages_size = (*size + page - 1) / page * page + page;
    *pages = mmap(NULL, *pages_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(*pages, MAP_FAILED);
    char *end = (char *)*pages + *pages_size - page;
    assert_int_equal(mprotect(end, page, PROT_NONE), 0);
    return memcpy(end - *size, text, *size);
}

static void expect_vector_add(const ds_kernel_desc *d) {
    enum { N = 100 };

    ds_kernel k;
    ds_stream s = harness_stream(0, 0);
    void *memory;
    ok(ds_pinned_alloc(3 * N * sizeof(float), &memory));
    float *v = memory;
    for (int i = 0; i < 2 * N; i++)
        v[i] = (float)i;
    ok(ds_kernel_create(d, &k));
    ok(ds_kernel_launch(k, N, &(vector_args){ v, v + N, v + 2 * N, N }, sizeof(vector_args), s));
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < N; i++)
        assert_true(v[2 * N + i] == (float)(2 * i + N));
    ok(ds_kernel_destroy(k));
    ok(ds_pinned_free(memory));
    ok(ds_stream_destroy(s));
}

static void test_text_of_a_given_size_is_compared_up_to_its_end(void **state) {
    (void)state;
    static const ds_param params[] = { TABLE_A, TABLE_B, TABLE_C, TABLE_N };
    void *pages;
    size_t pages_size;
    ds_kernel_desc d = vector_desc(params, 3);
    d.cuda.image = without_end(vector_add_ptx, &d.cuda.image_size, &pages, &pages_size);
    expect_refused_with(&d, "vectorAdd_param_3 is missing");
    d.param_count = 4;
    expect_vector_add(&d);
    munmap(pages, pages_size);
}

static void test_an_image_in_pieces_is_compared_and_runs(void **state) {
    (void)state;
    static const ds_param params[] = { TABLE_A, TABLE_B, TABLE_C, TABLE_N };
    static char text[sizeof vector_add_ptx + 4];
    static const char *pieces[5];
    static const size_t cuts[] = { 0, 30, 150, 155,
                                   sizeof vector_add_ptx - 1 }; /* inside of words */
    ds_kernel_desc d = vector_desc(params, 3);
    for (size_t i = 0; i < 4; i++) {
        char *to = text + cuts[i] + i;
        memcpy(to, vector_add_ptx + cuts[i], cuts[i + 1] - cuts[i]);
        pieces[i] = to;
    }
    d.cuda.image = NULL;
    d.cuda.image_pieces = pieces;
    expect_refused_with(&d, "vectorAdd_param_3 is missing");
    d.param_count = 4;
    expect_vector_add(&d);

    d.cuda.image = vector_add_ptx;
    expect_refused_with(&d, "2 of image, image_pieces and native_fn; at most one");
    d.cuda.image = NULL;
    d.cuda.image_size = 7;
    expect_refused_with(&d, "image_size is 7; with image_pieces 0 is allowed");
    d.cuda.image_size = 0;
    d.cuda.entry = NULL;
    expect_refused_with(&d, "needs the name of the function");
}

/* ---- grids ---- */

static void test_a_grid_hands_out_every_linear_index_once(void **state) {
    (void)state;

    static const struct {
        ds_grid g;
        size_t items;
    } cases[] = {
        { { .grid = { 3, 2, 2 }, .block = { 4, 2, 1 } }, 96 },
        { { .grid = { 5, 0, 0 }, .block = { 7, 0, 0 } }, 35 }, /* 0 counts as 1 */
        { { .grid = { 1, 1, 1 }, .block = { 1, 1, 1 } }, 1 },
        { { .grid = { 100, 3, 1 }, .block = { 8, 8, 8 }, .shared_bytes = 0 }, 153600 },
        { { .grid = { 1 }, .block = { 1024 } }, 1024 }, /* the limits */
        { { .grid = { 1 }, .block = { 4, 4, 64 } }, 1024 },
        { { .grid = { 1, 65535 }, .block = { 1 } }, 65535 },
        { { .grid = { 1, 1, 65535 }, .block = { 1 } }, 65535 },
    };

    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    for (size_t grain = 0; grain < 2000; grain += 999) {
        ds_kernel k = make_tally(grain);
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            tally t = tally_of(cases[c].items);
            ok(ds_kernel_launch_grid(k, &cases[c].g, &t, sizeof t, s));
            ok(ds_stream_synchronize(s));
            expect_each_item_once(&t);
            drop(&t);
        }
        ok(ds_kernel_destroy(k));
    }
    ok(ds_stream_destroy(s));
}

static void test_a_grid_that_no_gpu_takes_is_refused(void **state) {
    (void)state;

    static const struct {
        ds_grid grid;
        const char *words;
    } wrong[] = {
        { { .grid = { 1 }, .block = { 1025 } }, "a block of 1025 x 1 x 1 threads; at most 1024" },
        { { .grid = { 1 }, .block = { 1024, 2 } },
          "a block of 1024 x 2 x 1 threads; at most 1024" },
        { { .grid = { 1 }, .block = { 1u << 31, 1u << 31, 4 } }, "threads; at most 1024" },
        { { .grid = { 1 }, .block = { 1, 1, 65 } }, "block.z is 65; at most 64" },
        { { .grid = { 1, 65536 }, .block = { 1 } }, "grid.y is 65536 and grid.z 1; at most 65535" },
        { { .grid = { 1, 1, 65536 }, .block = { 1 } },
          "grid.y is 1 and grid.z 65536; at most 65535" },
        { { .grid = { 0 }, .block = { 32 } }, "grid.x is 0; 1 to 2147483647" },
        { { .grid = { 1u << 31 }, .block = { 1 } }, "grid.x is 2147483648; 1 to 2147483647" },
        { { .grid = { INT_MAX, 65535, 65535 }, .block = { 1024 } }, "exceeds size_t" },
        { { .grid = { 1 }, .block = { 32 }, .shared_bytes = 232449 },
          "232449 bytes of shared memory; at most 232448" },
    };

    tally t = sums_of(0);
    ds_kernel k = make_tally(0);
    ds_stream s = harness_stream(0, 0);
    ds_graph graph;
    ds_graph_node node;
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &graph));

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_node_desc d = {
            .kind = DS_NODE_KERNEL,
            .u.kernel = { .kernel = k, .grid = &wrong[i].grid, .args = &t, .args_size = sizeof t }
        };
        refused(ds_kernel_launch_grid(k, &wrong[i].grid, &t, sizeof t, s), DS_ERR_INVALID_VALUE);
        if (!strstr(ds_error_get_last(), wrong[i].words) ||
            !strstr(ds_error_get_last(), "(kernel "))
            fail_msg("grid %zu: \"%s\" does not say \"%s\"", i, ds_error_get_last(),
                     wrong[i].words);
        refused(ds_graph_add(graph, &d, NULL, 0, &node), DS_ERR_INVALID_VALUE);
        if (!strstr(ds_error_get_last(), wrong[i].words))
            fail_msg("node %zu: \"%s\" does not say \"%s\"", i, ds_error_get_last(),
                     wrong[i].words);
    }

    ok(ds_stream_synchronize(s));
    assert_int_equal(t.sums[CALLS] + t.sums[TOTAL], 0);
    ok(ds_graph_destroy(graph));
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

static void test_a_kernel_whose_blocks_no_gpu_takes_is_refused(void **state) {
    (void)state;
    ds_kernel k;
    ds_kernel_desc d = { .name = "wide", .cpu_fn = tally_kernel };
    d.cuda = (ds_kernel_cuda){ .image = ".version 5.0\n.target sm_60\n.entry wide { ret; }",
                               .entry = "wide",
                               .block = 1025 };
    refused(ds_kernel_create(&d, &k), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "1025 threads; at most 1024"));
    d.cuda.block = 1024;
    d.cuda.shared_bytes = 232449;
    refused(ds_kernel_create(&d, &k), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "at most 232448"));
    d.cuda.shared_bytes = 232448;
    ok(ds_kernel_create(&d, &k));
    ok(ds_kernel_destroy(k));
}

/* A microsecond for each of a few items, so that the launch is split; the rest takes no time. */
static _Atomic size_t items_done;

static int count_many(size_t first, size_t count, const void *args) {
    (void)first;
    (void)args;
    uint64_t end = now_ns() + (count <= 1000000 ? count * 1000 : 0);
    while (now_ns() < end) {
    }
    items_done += count;
    return 0;
}

static void test_a_launch_of_all_items_that_a_number_holds_is_split(void **state) {
    (void)state;
    ds_stream s = harness_stream(0, 0);
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "many", .cpu_fn = count_many }, &k));
    for (int i = 0; i < 8; i++)
        ok(ds_kernel_launch(k, 200, NULL, 0, s));
    ok(ds_stream_synchronize(s));

    items_done = 0;
    ok(ds_kernel_launch(k, SIZE_MAX, NULL, 0, s));
    ok(ds_stream_synchronize(s));

    assert_true(items_done == SIZE_MAX);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

const struct CMUnitTest tests_kernels[] = {
    DS_TEST(test_every_item_is_handled_exactly_once, "kernels"),
    DS_TEST_CPU(test_a_grain_of_size_max_never_splits, "kernels"),
    DS_TEST_CPU(test_item_counts_near_size_max_do_not_wrap, "kernels"),
    DS_TEST(test_no_items_do_nothing, "kernels"),
    DS_TEST_CPU(test_a_long_launch_of_very_short_items_is_split, "kernels"),
    DS_TEST_CPU(test_a_second_thread_joins_a_long_kernel_during_a_host_wait, "kernels"),
    DS_TEST(test_split_launches_of_a_stream_stay_in_order, "peers b.1"),
    DS_TEST(test_arguments_are_copied_at_the_launch, "kernels"),
    DS_TEST(test_the_largest_argument_struct_arrives_whole, "kernels"),
    DS_TEST(test_arguments_are_aligned_for_every_type, "kernels"),
    DS_TEST(test_launches_refuse_wrong_arguments, "kernels"),
    DS_TEST(test_kernel_create_refuses_wrong_descriptions, "kernels"),
    DS_TEST(test_name_and_parameters_are_copied, "kernels"),
    DS_TEST(test_a_destroyed_kernel_still_runs_its_pending_launches, "kernels"),
    DS_TEST(test_a_kernel_without_cpu_form_is_refused_at_launch, "kernels"),
    DS_TEST(test_wrong_extents_are_refused, "kernels"),
    DS_TEST(test_an_extent_of_a_value_is_refused, "kernels"),
    DS_TEST(test_extents_are_given_as_a_list_or_by_a_function, "kernels"),
    DS_TEST(test_correct_extents_are_accepted, "kernels"),
    DS_TEST(test_a_table_of_another_length_is_refused, "kernels"),
    DS_TEST(test_a_parameter_of_another_size_is_refused, "kernels"),
    DS_TEST(test_swapped_parameters_are_refused, "kernels"),
    DS_TEST(test_an_address_that_the_table_calls_a_value_is_refused, "kernels"),
    DS_TEST(test_a_function_that_the_image_lacks_is_refused, "kernels"),
    DS_TEST(test_images_that_are_not_ptx_text_are_not_compared, "kernels"),
    DS_TEST(test_text_of_a_given_size_is_compared_up_to_its_end, "kernels"),
    DS_TEST(test_an_image_in_pieces_is_compared_and_runs, "kernels"),
    DS_TEST(test_a_grid_hands_out_every_linear_index_once, "kernels"),
    DS_TEST(test_a_grid_that_no_gpu_takes_is_refused, "review"),
    DS_TEST(test_a_kernel_whose_blocks_no_gpu_takes_is_refused, "review"),
    DS_TEST_CPU(test_a_launch_of_all_items_that_a_number_holds_is_split, "kernels"),
};
const size_t tests_kernels_count = sizeof tests_kernels / sizeof tests_kernels[0];
