/* Resources: where memory comes from, as tables of functions, and the adaptors that stand upon
   them. */
#include "alloc.h"
#include <stdatomic.h>

static ds_stream stream(int device) {
    return harness_stream(device, 0);
}

static void *from(const ds_resource *r, size_t size, ds_stream s) {
    void *p = NULL;
    ok_thread(ds_resource_alloc(r, size, 0, s, &p));
    if (!p)
        harness_die("ds_resource_alloc gave no address", DS_OK);
    return p;
}

/* A resource of the program's own: the heap. It notes what it was asked, and fails when it is
   told to. */
typedef struct heap {
    _Atomic int allocs, frees, fail; /* fail: so many calls from now on */
    ds_result code;
    _Atomic size_t size, alignment;
    _Atomic uint64_t stream;
    int empty; /* 1: success without memory */
} heap;

static ds_result heap_alloc(void *user, size_t size, size_t alignment, ds_stream s, void **out) {
    heap *h = user;
    h->size = size;
    h->alignment = alignment;
    h->stream = s.id;
    if (h->fail > 0) {
        h->fail--;
        return h->code;
    }
    h->allocs++;
    *out = h->empty ? NULL : aligned_alloc(512, (size + 511) & ~(size_t)511);
    return DS_OK;
}

static ds_result heap_free(void *user, void *ptr, size_t size, ds_stream s) {
    heap *h = user;
    h->size = size;
    h->stream = s.id;
    if (h->fail > 0) {
        h->fail--;
        return h->code;
    }
    h->frees++;
    free(ptr);
    return DS_OK;
}

static ds_resource heap_resource(heap *h) {
    return (ds_resource){ heap_alloc, heap_free, h };
}

/* Text that was written. */
typedef struct text {
    char all[4000];
    size_t n;
    int stop;
} text;

static int keep(const char *piece, size_t size, void *user) {
    text *t = user;
    if (t->stop)
        return 1;
    if (t->n + size >= sizeof t->all)
        return 1;
    memcpy(t->all + t->n, piece, size);
    t->n += size;
    t->all[t->n] = 0;
    return 0;
}

/* ---- what is at the bottom ---- */

static void works(ds_resource *r, ds_stream s) {
    unsigned char seen = 0;
    unsigned char *p = from(r, 5000, s), *q = from(r, 3 * MIB, s);
    assert_true((uintptr_t)p % 256 == 0 && (uintptr_t)q % 256 == 0);
    ok(ds_fill(p, 7, 1, 5000, s));
    ok(ds_fill(q, 8, 1, 3 * MIB, s));
    ok(ds_copy(&seen, p + 4999, 1, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(seen, 7);
    refused(ds_resource_destroy(r), DS_ERR_ILLEGAL_STATE);
    ok(ds_resource_free(r, p, 5000, s));
    ok(ds_resource_free(r, q, 3 * MIB, s));
    p = from(r, 100, s);
    ok(ds_resource_free(r, p, 100, (ds_stream){ 0 }));
    refused_any(ds_resource_free(r, &seen, 1, s)); /* none of its own */
    ok(ds_resource_destroy(r));
    assert_null(r->alloc_fn);
}

static void test_every_source_of_devices_memory_is_a_resource(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_stream s = stream(0);
    ds_resource r;
    ds_pool pool;
    size_t total;
    void *none = &r;
    ok(ds_resource_create_device(harness_device(0), &r));
    ok(ds_device_get_memory_info(harness_device(0), NULL, &total));
    refused(ds_resource_alloc(&r, total + 1, 0, s, &none), DS_ERR_OUT_OF_MEMORY);
    assert_null(none);
    works(&r, s);
    ok(ds_resource_create_pool((ds_pool){ 0 }, &r));
    works(&r, s);
    assert_int_equal(stat(0, "allocation.all.allocated"), 3);
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0) }, &pool));
    ok(ds_resource_create_pool(pool, &r));
    works(&r, s);
    assert_int_equal(pool_stat(pool, "allocation.all.allocated"), 3);
    ok(ds_pool_destroy(pool));
    ok(ds_resource_create_driver_pool(&r));
    refused(ds_resource_alloc(&r, total + 1, 0, s, &none), DS_ERR_OUT_OF_MEMORY);
    works(&r, s);
    ok(ds_stream_destroy(s));
    finish();
}

static void test_a_block_that_another_stream_frees_waits_for_that(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    gate g = { 0 };
    ds_stream s = stream(0), t = stream(0);
    ds_resource r;
    ok(ds_resource_create_pool((ds_pool){ 0 }, &r));
    void *p = from(&r, 3 * MIB, s), *q;
    gate_close(t, &g);
    ok(ds_resource_free(&r, p, 3 * MIB, t)); /* t used it last */
    q = from(&r, 3 * MIB, s);
    assert_ptr_not_equal(p, q);
    ok(ds_resource_free(&r, q, 3 * MIB, s));
    assert_ptr_equal(from(&r, 3 * MIB, s), q); /* s is its own */
    ok(ds_resource_free(&r, q, 3 * MIB, s));
    gate_open(&g);
    ok(ds_stream_synchronize(t));
    ok(ds_resource_destroy(&r));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_the_programs_own_functions_are_a_resource(void **state) {
    (void)state;
    heap h = { 0 };
    ds_resource r;
    void *p;
    ds_stream s = stream(0);
    ok(ds_resource_create_functions(heap_alloc, heap_free, &h, &r));
    ok(ds_resource_alloc(&r, 1000, 256, s, &p));
    assert_true(h.size == 1000 && h.alignment == 256 && h.stream == s.id);
    memset(p, 1, 1000);
    ok(ds_resource_free(&r, p, 1000, s));
    assert_true(h.allocs == 1 && h.frees == 1);
    h.fail = 1;
    h.code = DS_ERR_OUT_OF_MEMORY;
    /* it says nothing: there is a sentence */
    refused(ds_resource_alloc(&r, 1000, 0, s, &p), DS_ERR_OUT_OF_MEMORY);
    assert_null(p);
    h.fail = 1;
    h.code = (ds_result)5;
    refused_any(ds_resource_alloc(&r, 1000, 0, s, &p));
    h.empty = 1;
    refused(ds_resource_alloc(&r, 1000, 0, s, &p), DS_ERR_OUT_OF_MEMORY);
    ok(ds_resource_destroy(&r));
    ok(ds_resource_alloc(&(ds_resource){ heap_alloc, heap_free, &h }, 0, 0, s, &p)); /* nothing */
    assert_null(p);
    ok(ds_stream_destroy(s));
}

/* ---- adaptors ---- */

static void test_a_limit_lets_so_many_bytes_through(void **state) {
    (void)state;
    heap h = { .code = DS_ERR_DRIVER };
    ds_resource own = heap_resource(&h), r;
    ds_stream s = stream(0);
    void *p, *q, *none;
    ok(ds_resource_create_limit(&own, 10000, &r));
    p = from(&r, 6000, s);
    refused(ds_resource_alloc(&r, 4001, 0, s, &none), DS_ERR_LIMIT_EXCEEDED);
    assert_null(none);
    refused(ds_resource_alloc(&r, SIZE_MAX, 0, s, &none), DS_ERR_LIMIT_EXCEEDED);
    assert_int_equal(h.allocs, 1); /* it was not even asked */
    q = from(&r, 4000, s);
    refused(ds_resource_alloc(&r, 1, 0, s, &none), DS_ERR_LIMIT_EXCEEDED);
    h.fail = 1;
    refused(ds_resource_free(&r, q, 4000, s), DS_ERR_DRIVER); /* which counts as not freed */
    refused(ds_resource_alloc(&r, 1, 0, s, &none), DS_ERR_LIMIT_EXCEEDED);
    ok(ds_resource_free(&r, q, 4000, s));
    h.fail = 1;
    /* which counts as not allocated */
    refused(ds_resource_alloc(&r, 4000, 0, s, &none), DS_ERR_DRIVER);
    q = from(&r, 4000, s);
    ok(ds_resource_free(&r, q, 4000, s));
    ok(ds_resource_free(&r, p, 6000, s));
    refused(ds_resource_free(&r, p, 6000, s), DS_ERR_INVALID_VALUE);
    assert_int_equal(h.frees, 3);
    ok(ds_resource_destroy(&r));
    ok(ds_stream_destroy(s));
}

static void check(const ds_mem_stat *s, int64_t current, int64_t peak, int64_t allocated,
                  int64_t freed) {
    assert_int_equal(s->current, current);
    assert_int_equal(s->peak, peak);
    assert_int_equal(s->allocated, allocated);
    assert_int_equal(s->freed, freed);
}

static void test_statistics_count_bytes_and_allocations(void **state) {
    (void)state;
    heap h = { .code = DS_ERR_OUT_OF_MEMORY };
    ds_resource own = heap_resource(&h), r;
    ds_resource_stats st = { 0 };
    ds_stream s = stream(0);
    void *p, *q, *none;
    ok(ds_resource_create_stats(&own, &r));
    p = from(&r, 100, s);
    q = from(&r, 1000, s);
    ok(ds_resource_free(&r, p, 100, s));
    h.fail = 1;
    refused(ds_resource_alloc(&r, 500, 0, s, &none), DS_ERR_OUT_OF_MEMORY);
    ok(ds_resource_get_stats(&r, &st));
    check(&st.bytes, 1000, 1100, 1100, 100);
    check(&st.allocations, 1, 2, 2, 1);
    ok(ds_resource_push_stats(&r));
    ok(ds_resource_get_stats(&r, &st));
    check(&st.bytes, 0, 0, 0, 0);
    p = from(&r, 400, s);
    ok(ds_resource_push_stats(&r));
    ok(ds_resource_free(&r, p, 400, s));
    ok(ds_resource_free(&r, q, 1000, s));
    p = from(&r, 50, s);
    ok(ds_resource_pop_stats(&r, &st));
    check(&st.bytes, -1350, 0, 50, 1400);
    check(&st.allocations, -1, 0, 1, 2);
    ok(ds_resource_pop_stats(&r, &st));
    check(&st.bytes, -950, 400, 450, 1400);
    ok(ds_resource_get_stats(&r, &st));
    check(&st.bytes, 50, 1400, 1550, 1500);
    check(&st.allocations, 1, 2, 4, 3);
    refused(ds_resource_pop_stats(&r, &st), DS_ERR_ILLEGAL_STATE);
    for (int i = 0; i < 16; i++)
        ok(ds_resource_push_stats(&r));
    refused(ds_resource_push_stats(&r), DS_ERR_ILLEGAL_STATE);
    for (int i = 0; i < 16; i++)
        ok(ds_resource_pop_stats(&r, NULL));
    refused(ds_resource_get_stats(&own, &st), DS_ERR_INVALID_VALUE);
    refused(ds_resource_get_stats(&r, NULL), DS_ERR_INVALID_VALUE);
    ok(ds_resource_free(&r, p, 50, s));
    ok(ds_resource_destroy(&r));
    ok(ds_stream_destroy(s));
}

static void test_a_log_has_a_line_for_each_call(void **state) {
    (void)state;
    heap h = { .code = DS_ERR_OUT_OF_MEMORY };
    static text t;
    ds_resource own = heap_resource(&h), r;
    ds_stream s = stream(0);
    uint64_t id, time[3], stream_id[3];
    void *p, *none, *at[3];
    size_t size[3];
    char action[3][20];
    memset(&t, 0, sizeof t);
    ok(ds_stream_get_id(s, &id));
    ok(ds_resource_create_log(&own, keep, &t, &r));
    p = from(&r, 4321, s);
    h.fail = 1;
    refused(ds_resource_alloc(&r, 99, 0, s, &none), DS_ERR_OUT_OF_MEMORY);
    ok(ds_resource_free(&r, p, 4321, (ds_stream){ 0 }));
    const char *head = "time_us,action,pointer,size,stream\n", *line = t.all + strlen(head);
    assert_memory_equal(t.all, head, strlen(head));
    for (int i = 0; i < 3; i++) {
        unsigned long long us, number;
        assert_int_equal(
            sscanf(line, "%llu,%19[^,],%p,%zu,%llu\n", &us, action[i], &at[i], &size[i], &number),
            5);
        time[i] = us;
        stream_id[i] = number;
        line = strchr(line, '\n') + 1;
    }
    assert_int_equal(*line, 0);
    assert_string_equal(action[0], "allocate");
    assert_string_equal(action[1], "allocate_failure");
    assert_string_equal(action[2], "free");
    assert_true(at[0] == p && at[1] == NULL && at[2] == p);
    assert_true(size[0] == 4321 && size[1] == 99 && size[2] == 4321);
    assert_true(stream_id[0] == id && stream_id[1] == id && stream_id[2] == 0);
    assert_true(time[0] <= time[1] && time[1] <= time[2]);
    t.stop = 1;
    p = from(&r, 10, s); /* a log that is full spoils nothing */
    size_t before = t.n;
    t.stop = 0;
    ok(ds_resource_free(&r, p, 10, s));
    assert_int_equal(t.n, before); /* and stays as it is */
    ok(ds_resource_destroy(&r));
    refused(ds_resource_create_log(&own, NULL, NULL, &r), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
}

typedef struct rescue {
    int calls, most;
    size_t size;
    ds_resource *r;
    void **spare;
} rescue;

static int to_the_rescue(size_t size, void *user) {
    rescue *c = user;
    c->calls++;
    c->size = size;
    if (c->spare && *c->spare) { /* it may call devstream */
        ok_thread(ds_resource_free(c->r, *c->spare, 6000, (ds_stream){ 0 }));
        *c->spare = NULL;
    }
    return c->calls <= c->most;
}

static void test_a_failure_callback_is_asked_until_it_gives_up(void **state) {
    (void)state;
    heap h = { .code = DS_ERR_OUT_OF_MEMORY };
    ds_resource own = heap_resource(&h), limit, r;
    rescue c = { 0, 5, 0, NULL, NULL };
    ds_stream s = stream(0);
    void *p, *spare;
    ok(ds_resource_create_on_failure(&own, to_the_rescue, &c, &r));
    h.fail = 3;
    p = from(&r, 700, s); /* at the fourth try */
    assert_true(c.calls == 3 && c.size == 700);
    ok(ds_resource_free(&r, p, 700, s));
    c = (rescue){ 0, 2, 0, NULL, NULL };
    h.fail = 100;
    refused(ds_resource_alloc(&r, 700, 0, s, &p), DS_ERR_OUT_OF_MEMORY);
    assert_int_equal(c.calls, 3);
    c.calls = 0;
    h.fail = 1;
    h.code = DS_ERR_DRIVER;
    refused(ds_resource_alloc(&r, 700, 0, s, &p), DS_ERR_DRIVER); /* is no shortage */
    assert_int_equal(c.calls, 0);
    ok(ds_resource_destroy(&r));
    ok(ds_resource_create_limit(&own, 10000, &limit));
    ok(ds_resource_create_on_failure(&limit, to_the_rescue, &c, &r));
    spare = from(&r, 6000, s);
    c = (rescue){ 0, 1, 0, &r, &spare };
    p = from(&r, 8000, s);
    assert_true(c.calls == 1 && !spare);
    ok(ds_resource_free(&r, p, 8000, s));
    ok(ds_resource_destroy(&r));
    ok(ds_resource_destroy(&limit));
    refused(ds_resource_create_on_failure(&own, NULL, NULL, &r), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
}

/* User code that the library calls, and whose calls fail: each must have its sentence there. */
static _Atomic int sentences;

static void fail_with_a_sentence(void) {
    char place[32];
    snprintf(place, sizeof place, ":%d: ", __LINE__ + 1);
    if (ds_mem_free(place) < 0 && strstr(ds_error_get_last(), place))
        sentences++;
}

static ds_result alloc_and_fail(void *user, size_t size, size_t alignment, ds_stream s,
                                void **out) {
    (void)user, (void)size, (void)alignment, (void)s, (void)out;
    fail_with_a_sentence();
    return DS_ERR_OUT_OF_MEMORY;
}

static ds_result never_free(void *user, void *ptr, size_t size, ds_stream s) {
    (void)user, (void)ptr, (void)size, (void)s;
    return DS_OK;
}

static int ask_and_fail(size_t size, void *user) {
    (void)size, (void)user;
    fail_with_a_sentence();
    return 0;
}

static int shortage_and_fail(ds_device device, size_t size, void *user) {
    (void)device, (void)size, (void)user;
    fail_with_a_sentence();
    return 0;
}

static void test_user_code_of_the_allocator_reads_its_errors(void **state) {
    (void)state;
    ds_stream s = stream(0);
    ds_resource own, asked;
    void *p;
    ok(ds_resource_create_functions(alloc_and_fail, never_free, NULL, &own));
    ok(ds_resource_create_on_failure(&own, ask_and_fail, NULL, &asked));
    sentences = 0;
    refused(ds_resource_alloc(&asked, 100, 0, s, &p), DS_ERR_OUT_OF_MEMORY);
    assert_int_equal(sentences, 2);

    ok(ds_mem_add_shortage_callback(shortage_and_fail, NULL));
    sentences = 0;
    refused(ds_mem_alloc((size_t)1 << 50, s, &p), DS_ERR_OUT_OF_MEMORY);
    assert_int_equal(sentences, 1);
    ok(ds_mem_remove_shortage_callback(shortage_and_fail, NULL));
    ok(ds_resource_destroy(&asked));
    ok(ds_stream_destroy(s));
}

/* devstream sets the capture mode around the function, which fails with the same code */
static void test_a_refused_mode_does_not_become_the_reason(void **state) {
    (void)state;
    for (int n = 1; n <= 4; n++) {
        heap h = { .fail = 1, .code = DS_ERR_DRIVER };
        ds_resource upstream = heap_resource(&h), counted;
        char fault[40];
        void *p;
        snprintf(fault, sizeof fault, "capture_mode:%d", n);
        harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });
        ok(ds_resource_create_stats(&upstream, &counted));

        refused(ds_resource_alloc(&counted, 64, 0, harness_stream(0, 0), &p), DS_ERR_DRIVER);

        if (!strstr(ds_error_get_last(), "the resource's alloc_fn returned DS_ERR_DRIVER"))
            fail_msg("the error is: %s", ds_error_get_last());
        ok(ds_resource_destroy(&counted));
        ds_capture_mode mode = DS_CAPTURE_GLOBAL; /* the fault may have kept it relaxed */
        if (ds_capture_exchange_mode(&mode) == DS_ERR_DRIVER)
            ok(ds_capture_exchange_mode(&mode));
    }
    harness_restart(NULL);
}

static void test_alignment_is_made_where_the_upstream_has_less(void **state) {
    (void)state;
    heap h = { .code = DS_ERR_DRIVER };
    ds_resource own = heap_resource(&h), device, r;
    ds_stream s = stream(0);
    void *p[40], *none;
    ok(ds_resource_create_device(harness_device(0), &device));
    refused(ds_resource_alloc(&device, 100, 4096, s, &none), DS_ERR_INVALID_VALUE);
    ok(ds_resource_create_aligned(&device, 1 << 16, 2000, &r));
    for (int i = 0; i < 40; i++) {
        size_t size = (size_t)i * 100 + 1, asked = i % 4 == 3 ? 4096 : 0;
        ok(ds_resource_alloc(&r, size, asked, s, &p[i]));
        assert_int_equal((uintptr_t)p[i] % (size >= 2000 ? 1 << 16 : asked ? asked : 256), 0);
        ok(ds_fill(p[i], 1, 1, size, s));
    }
    for (int i = 0; i < 40; i++)
        ok(ds_resource_free(&r, p[(i * 7) % 40], (size_t)((i * 7) % 40) * 100 + 1, s));
    ok(ds_resource_destroy(&r));
    ok(ds_resource_destroy(&device));
    ok(ds_resource_create_aligned(&own, 4096, 0, &r));
    p[0] = from(&r, 100, s);
    h.fail = 1;
    refused(ds_resource_free(&r, p[0], 100, s), DS_ERR_DRIVER); /* it is still there */
    ok(ds_resource_free(&r, p[0], 100, s));
    assert_true(h.allocs == 1 && h.frees == 1);
    refused(ds_resource_alloc(&r, SIZE_MAX, 0, s, &none), DS_ERR_INVALID_VALUE);
    ok(ds_resource_destroy(&r));
    refused(ds_resource_create_aligned(&own, 3, 0, &r), DS_ERR_INVALID_VALUE);
    refused(ds_resource_create_aligned(&own, 0, 0, &r), DS_ERR_INVALID_VALUE);
    ok(ds_stream_destroy(s));
}

/* All of them upon each other, three deep, in every order. */
typedef struct tower {
    ds_resource at[4];
    heap h;
    text t;
    rescue c;
} tower;

static void build(tower *t, const int kinds[3]) {
    memset(t, 0, sizeof *t);
    t->h.code = DS_ERR_OUT_OF_MEMORY;
    t->at[0] = heap_resource(&t->h);
    for (int i = 0; i < 3; i++) {
        ds_resource *up = &t->at[i], *out = &t->at[i + 1];
        switch (kinds[i]) {
        case 0:
            ok(ds_resource_create_limit(up, 20000, out));
            break;
        case 1:
            ok(ds_resource_create_stats(up, out));
            break;
        case 2:
            ok(ds_resource_create_log(up, keep, &t->t, out));
            break;
        case 3:
            ok(ds_resource_create_on_failure(up, to_the_rescue, &t->c, out));
            break;
        default:
            ok(ds_resource_create_aligned(up, 4096, 1000, out));
            break;
        }
    }
}

static void test_adaptors_stand_upon_each_other_in_any_order(void **state) {
    (void)state;
    static tower t;
    ds_stream s = stream(0);
    for (int n = 0; n < 125; n++) {
        const int kinds[3] = { n / 25, n / 5 % 5, n % 5 };
        int limits = kinds[0] == 0 || kinds[1] == 0 || kinds[2] == 0;
        void *p[3], *none = &s;
        build(&t, kinds);
        for (size_t i = 0; i < 3; i++)
            p[i] = from(&t.at[3], 500 + i * 600, s);
        for (int i = 0; i < 3; i++)
            memset(p[i], i, 500);
        ds_result r = ds_resource_alloc(&t.at[3], 19000, 0, s, &none);
        if (limits)
            assert_int_equal(r, DS_ERR_LIMIT_EXCEEDED);
        else {
            ok(r);
            ok(ds_resource_free(&t.at[3], none, 19000, s));
        }
        for (int k = 0; k < 3; k++)
            refused(ds_resource_destroy(&t.at[k + 1]), DS_ERR_ILLEGAL_STATE);
        for (int k = 0; k < 3; k++)
            if (kinds[k] == 1) {
                ds_resource_stats st = { 0 };
                ok(ds_resource_get_stats(&t.at[k + 1], &st));
                assert_int_equal(st.allocations.current, 3);
                assert_true(st.bytes.current >= 3300);
            }
        for (size_t i = 0; i < 3; i++)
            ok(ds_resource_free(&t.at[3], p[i], 500 + i * 600, s));
        assert_int_equal(t.h.allocs, t.h.frees);
        refused(ds_resource_destroy(&t.at[1]), DS_ERR_ILLEGAL_STATE); /* others stand upon it */
        refused(ds_resource_destroy(&t.at[2]), DS_ERR_ILLEGAL_STATE);
        for (int k = 2; k >= 0; k--)
            ok(ds_resource_destroy(&t.at[k + 1]));
    }
    ok(ds_stream_destroy(s));
}

static void test_a_fault_deep_down_passes_through_every_adaptor(void **state) {
    (void)state;
    static tower t;
    const int kinds[3] = { 2, 1, 4 };
    ds_stream s = stream(0);
    ds_resource_stats st = { 0 };
    void *p, *none;
    build(&t, kinds);
    t.h.code = DS_ERR_DRIVER;
    p = from(&t.at[3], 5000, s);
    t.h.fail = 1;
    refused(ds_resource_alloc(&t.at[3], 5000, 0, s, &none), DS_ERR_DRIVER);
    assert_null(none);
    t.h.fail = 1;
    refused(ds_resource_free(&t.at[3], p, 5000, s), DS_ERR_DRIVER);
    ok(ds_resource_get_stats(&t.at[2], &st));
    check(&st.allocations, 1, 1, 1, 0);
    ok(ds_resource_free(&t.at[3], p, 5000, s));
    ok(ds_resource_get_stats(&t.at[2], &st));
    check(&st.allocations, 0, 1, 1, 1);
    for (int k = 2; k >= 0; k--)
        ok(ds_resource_destroy(&t.at[k + 1]));
    ok(ds_stream_destroy(s));
}

static void test_a_resource_that_is_gone_says_so(void **state) {
    (void)state;
    heap h = { 0 };
    ds_resource own = heap_resource(&h), r, copy, upon, zero = { NULL, NULL, NULL };
    ds_resource_stats st = { 0 };
    ds_stream s = stream(0);
    void *p;
    ok(ds_resource_create_stats(&own, &r));
    copy = r;
    ok(ds_resource_destroy(&r));
    refused_any(ds_resource_alloc(&r, 5, 0, s, &p));
    refused_any(ds_resource_destroy(&r));
    refused(ds_resource_alloc(&copy, 5, 0, s, &p), DS_ERR_INVALID_HANDLE);
    refused(ds_resource_free(&copy, &h, 5, s), DS_ERR_INVALID_HANDLE);
    refused(ds_resource_get_stats(&copy, &st), DS_ERR_INVALID_HANDLE);
    refused(ds_resource_create_limit(&copy, 5, &upon), DS_ERR_INVALID_HANDLE);
    refused(ds_resource_destroy(&copy), DS_ERR_INVALID_HANDLE);
    ok(ds_resource_create_stats(&own, &r)); /* in its place */
    refused(ds_resource_alloc(&copy, 5, 0, s, &p), DS_ERR_INVALID_HANDLE);
    ok(ds_resource_destroy(&r));
    ok(ds_resource_destroy(NULL));
    refused(ds_resource_alloc(NULL, 5, 0, s, &p), DS_ERR_INVALID_VALUE);
    refused(ds_resource_alloc(&zero, 5, 0, s, &p), DS_ERR_INVALID_VALUE);
    refused(ds_resource_alloc(&own, 5, 3, s, &p), DS_ERR_INVALID_VALUE);
    refused(ds_resource_alloc(&own, 5, 0, s, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_resource_create_limit(NULL, 5, &r), DS_ERR_INVALID_VALUE);
    refused(ds_resource_create_limit(&zero, 5, &r), DS_ERR_INVALID_VALUE);
    refused(ds_resource_create_limit(&own, 5, NULL), DS_ERR_INVALID_VALUE);
    refused(ds_resource_create_functions(heap_alloc, NULL, NULL, &r), DS_ERR_INVALID_VALUE);
    refused(ds_resource_create_device((ds_device){ DS_DEVICE_HOST, 0 }, &r), DS_ERR_INVALID_DEVICE);
    refused(ds_resource_create_pool((ds_pool){ 12345 }, &r), DS_ERR_INVALID_HANDLE);
    assert_int_equal(h.allocs, 0);
    ok(ds_resource_create_stats(&own, &r));
    copy = r;
    harness_shutdown();
    s = stream(0);
    refused(ds_resource_alloc(&copy, 5, 0, s, &p), DS_ERR_INVALID_HANDLE); /* another life */
    ok(ds_stream_destroy(s));
}

/* ---- pools upon resources ---- */

static void test_a_pool_takes_its_segments_from_a_resource(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_resource device, count, copy;
    ds_resource_stats st = { 0 };
    ds_pool pool;
    ds_stream s = stream(0), t = stream(0);
    ds_pointer_info info;
    uint32_t seen = 0;
    void *p, *q;
    ok(ds_resource_create_device(harness_device(0), &device));
    ok(ds_resource_create_stats(&device, &count));
    copy = count;
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .upstream = &copy }, &pool));
    memset(&copy, 0, sizeof copy); /* it was copied */
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 5000, .stream = s, .pool = pool }, &p));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 30 * MIB, .stream = t, .pool = pool }, &q));
    ok(ds_resource_get_stats(&count, &st));
    assert_int_equal(st.allocations.current, 2);
    assert_int_equal(st.bytes.current, pool_stat(pool, "reserved_bytes.all.current"));
    ok(ds_pointer_get_info(p, &info));
    assert_int_equal(info.kind, DS_MEMORY_DEVICE);
    ok(ds_fill(q, 0x1234567, 4, 30 * MIB / 4, t));
    ok(ds_copy(&seen, (char *)q + 29 * MIB, 4, t));
    ok(ds_stream_synchronize(t));
    assert_int_equal(seen, 0x1234567);
    refused(ds_resource_destroy(&count), DS_ERR_ILLEGAL_STATE);
    ok(ds_mem_free(p));
    ok(ds_mem_validate(harness_device(0)));
    ok(ds_pool_destroy(pool));
    ok(ds_mem_free(q)); /* outlives the pool */
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_resource_get_stats(&count, &st));
    assert_int_equal(st.bytes.current, 0);
    assert_int_equal(st.bytes.freed, st.bytes.allocated);
    ok(ds_resource_destroy(&count));
    ok(ds_resource_destroy(&device));
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(t));
    finish();
}

static void test_a_pool_upon_the_drivers_pool(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_resource driver;
    ds_pool pool;
    ds_stream s = stream(0);
    void *p[3];
    ok(ds_resource_create_driver_pool(&driver));
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .upstream = &driver }, &pool));
    for (size_t i = 0; i < 3; i++) {
        ok(ds_mem_alloc_with(
            &(ds_mem_request){ .size = (i * 7 + 1) * MIB, .stream = s, .pool = pool }, &p[i]));
        ok(ds_fill(p[i], 1, 1, (i * 7 + 1) * MIB, s));
    }
    for (size_t i = 0; i < 3; i++)
        ok(ds_mem_free(p[i]));
    ok(ds_stream_destroy(s)); /* before its memory goes */
    ok(ds_pool_destroy(pool));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    ok(ds_resource_destroy(&driver));
    finish();
}

static void test_a_limit_below_a_pool_makes_it_give_its_cache_back(void **state) {
    (void)state;
    begin(PRESET_TORCH);
    ds_resource device, limit;
    ds_pool pool;
    ds_stream s = stream(0);
    void *p, *q;
    ok(ds_resource_create_device(harness_device(0), &device));
    ok(ds_resource_create_limit(&device, 40 * MIB, &limit));
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .upstream = &limit }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 24 * MIB, .stream = s, .pool = pool }, &p));
    ok(ds_mem_free(p));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 36 * MIB, .stream = s, .pool = pool }, &p));
    no_memory(
        ds_mem_alloc_with(&(ds_mem_request){ .size = 24 * MIB, .stream = s, .pool = pool }, &q));
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_resource_destroy(&limit));
    ok(ds_resource_destroy(&device));
    ok(ds_stream_destroy(s));
    finish();
}

static void test_an_upstream_must_have_memory_that_is_nobody_elses(void **state) {
    (void)state;
    begin(PRESET_DEFAULT);
    ds_resource other, bad = { NULL, NULL, NULL };
    ds_pool pool;
    ds_stream s = stream(0);
    void *p = &p;
    ok(ds_resource_create_pool((ds_pool){ 0 }, &other));
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .upstream = &other }, &pool));
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 5000, .stream = s, .pool = pool }, &p),
            DS_ERR_INVALID_VALUE);
    assert_null(p);
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0); /* and gave it back */
    ok(ds_pool_destroy(pool));
    ok(ds_resource_destroy(&other));
    refused(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .upstream = &bad }, &pool),
            DS_ERR_INVALID_VALUE);
    ok(ds_resource_create_device(harness_device(0), &other));
    refused(ds_pool_create(
                &(ds_pool_desc){ .device = harness_device(0), .upstream = &other, .shareable = 1 },
                &pool),
            DS_ERR_INVALID_VALUE);
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0), .upstream = &other }, &pool));
    ok(ds_resource_destroy(&other)); /* the pool has nothing of it yet, and gets nothing */
    refused(ds_mem_alloc_with(&(ds_mem_request){ .size = 5000, .stream = s, .pool = pool }, &p),
            DS_ERR_INVALID_HANDLE);
    ok(ds_pool_destroy(pool));
    /* the next pool has no upstream */
    ok(ds_pool_create(&(ds_pool_desc){ .device = harness_device(0) }, &pool));
    ok(ds_mem_alloc_with(&(ds_mem_request){ .size = 5000, .stream = s, .pool = pool }, &p));
    ok(ds_mem_free(p));
    ok(ds_pool_destroy(pool));
    ok(ds_stream_destroy(s));
    finish();
}

/* ---- threads ---- */

enum { CREW = 4, TURNS = 200 };

typedef struct hand {
    ds_resource *r;
    ds_stream s;
    unsigned seed;
} hand;

static void *turns(void *user) {
    hand *h = user;
    void *p[4] = { NULL };
    size_t size[4] = { 0 };
    for (int i = 0; i < TURNS; i++) {
        int at = i % 4;
        if (p[at])
            ok_thread(ds_resource_free(h->r, p[at], size[at], h->s));
        h->seed = h->seed * 1103515245 + 12345;
        size[at] = (h->seed >> 8) % 3000 + 1;
        p[at] = from(h->r, size[at], h->s);
        memset(p[at], i, size[at]);
    }
    for (int at = 0; at < 4; at++)
        ok_thread(ds_resource_free(h->r, p[at], size[at], h->s));
    return NULL;
}

static void test_adaptors_are_used_by_threads_at_the_same_time(void **state) {
    (void)state;
    static tower t;
    static const int kinds[3] = { 1, 4, 0 };
    hand h[CREW];
    pthread_t thread[CREW];
    ds_resource_stats st = { 0 };
    build(&t, kinds);
    ok(ds_resource_destroy(&t.at[3]));
    ok(ds_resource_create_limit(&t.at[2], MIB, &t.at[3]));
    for (int i = 0; i < CREW; i++)
        h[i] = (hand){ &t.at[3], stream(i), 5u + (unsigned)i };
    for (int i = 0; i < CREW; i++)
        thread[i] = spawn(turns, &h[i]);
    for (int i = 0; i < CREW; i++)
        join(thread[i]);
    ok(ds_resource_get_stats(&t.at[1], &st));
    assert_int_equal(st.allocations.current, 0);
    assert_int_equal(st.allocations.allocated, CREW * TURNS);
    assert_int_equal(st.bytes.current, 0);
    for (int k = 2; k >= 0; k--)
        ok(ds_resource_destroy(&t.at[k + 1]));
    for (int i = 0; i < CREW; i++)
        ok(ds_stream_destroy(h[i].s));
}

const struct CMUnitTest tests_resources[] = {
    DS_TEST(test_every_source_of_devices_memory_is_a_resource, "resources, peers 99"),
    DS_TEST(test_a_block_that_another_stream_frees_waits_for_that, "resources"),
    DS_TEST(test_the_programs_own_functions_are_a_resource, "cupy: TestPythonFunctionAllocator"),
    DS_TEST(test_a_limit_lets_so_many_bytes_through, "resources"),
    DS_TEST(test_statistics_count_bytes_and_allocations, "resources"),
    DS_TEST(test_a_log_has_a_line_for_each_call, "alloc"),
    DS_TEST(test_a_failure_callback_is_asked_until_it_gives_up, "resources"),
    DS_TEST(test_user_code_of_the_allocator_reads_its_errors, "resources"),
    DS_TEST(test_a_refused_mode_does_not_become_the_reason, "resources"),
    DS_TEST(test_alignment_is_made_where_the_upstream_has_less, "resources"),
    DS_TEST(test_adaptors_stand_upon_each_other_in_any_order, "resources"),
    DS_TEST(test_a_fault_deep_down_passes_through_every_adaptor, "resources"),
    DS_TEST(test_a_resource_that_is_gone_says_so, "resources"),
    DS_TEST(test_a_pool_takes_its_segments_from_a_resource, "resources"),
    DS_TEST(test_a_pool_upon_the_drivers_pool, "resources"),
    DS_TEST(test_a_limit_below_a_pool_makes_it_give_its_cache_back, "resources"),
    DS_TEST(test_an_upstream_must_have_memory_that_is_nobody_elses, "resources"),
    DS_TEST(test_adaptors_are_used_by_threads_at_the_same_time, "resources"),
};
const size_t tests_resources_count = sizeof tests_resources / sizeof *tests_resources;
