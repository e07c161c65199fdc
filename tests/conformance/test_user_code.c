/* What host functions, callbacks, destructors, closures and kernels may call: releases, which are
   deferred, and queries. */
#include "harness.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "devstream_alloc.h"

static ds_stream new_stream(void) {
    ds_stream s;
    ok(ds_stream_create(NULL, &s));
    return s;
}

static void nothing(void *user) {
    (void)user;
}

/* ---- what is released ---- */

typedef struct owned {
    void *block, *pinned, *plain;
    ds_event event;
    ds_stream stream;
    ds_kernel kernel;
    ds_graph graph;
    ds_graph_exec exec;
    ds_result result[8];
    ds_result refused[4];
    char sentence[200];
    int queries;
    _Atomic int done; /* last */
} owned;

static int no_items(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

static void fill_owned(owned *o, ds_stream s) {
    memset(o, 0, sizeof *o);
    ok(ds_mem_alloc(1000, s, &o->block));
    ok(ds_mem_pinned_alloc(1000, &o->pinned));
    ok(ds_device_alloc(harness_device(0), 64, &o->plain));
    ok(ds_event_create(0, NULL, &o->event));
    ok(ds_stream_create(NULL, &o->stream));
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "k", .cpu_fn = no_items }, &o->kernel));
    ok(ds_graph_create(NULL, &o->graph));
    ok(ds_graph_instantiate(o->graph, NULL, &o->exec));
}

/* Counts the queries that gave a right answer. */
static void ask(owned *o) {
    int n = 0;
    ds_device d, e;
    char text[64], long_text[1000];
    ds_pointer_info info;
    ds_device_properties p;
    ds_backend_info backend;
    size_t limit = 1;
    int32_t type = harness_device(0).type;
    o->queries += ds_device_get_count((ds_device_type)type, &n) == DS_OK && n > 0;
    o->queries += ds_device_get_current(&d) == DS_OK && d.type == type;
    o->queries += ds_device_get_default(&e) == DS_OK && e.type == type;
    o->queries += ds_device_at(0).type == type;
    o->queries += ds_device_format(d, text, sizeof text) == DS_OK && text[0] == 'c';
    o->queries += ds_device_parse(text, &e) == DS_OK && e.index == d.index;
    o->queries += ds_device_get_properties(d, &p) == DS_OK && p.total_memory > 0;
    o->queries += ds_device_get_name(d, text, sizeof text) == DS_OK && text[0];
    o->queries += ds_device_get_capability(d, &n, NULL) == DS_OK;
    o->queries += ds_backend_get_info(0, &backend) == DS_OK;
    o->queries += ds_backend_format(long_text, sizeof long_text) == DS_OK && long_text[0];
    o->queries += ds_backend_is_available((ds_device_type)type) == 1;
    o->queries += ds_pointer_get_info(o->plain, &info) == DS_OK && info.base == o->plain;
    o->queries += ds_pointer_get_device(o->block, &e) == DS_OK && e.type == type;
    o->queries += ds_pointer_get_info(o->pinned, &info) == DS_OK && info.kind == DS_MEMORY_PINNED;
    o->queries += ds_mem_get_limit(harness_device(0), &limit) == DS_OK && limit == 0;
    o->queries += ds_version_get() == DEVSTREAM_VERSION;
    o->queries += ds_is_initialized() == 1;
}

enum { QUERIES = 18 };

/* Releases everything, and makes the calls that are refused. */
static void release_all(void *user) {
    owned *o = user;
    ds_event stale = o->event;
    int local;
    stale.id += (uint64_t)1 << 32;
    ask(o);
    o->refused[0] = ds_event_destroy(stale);
    o->refused[1] = ds_mem_free(&local);
    o->refused[2] = ds_mem_free(o->plain); /* not the allocator's */
    o->refused[3] = ds_device_free(o->plain);
    snprintf(o->sentence, sizeof o->sentence, "%s", ds_error_get_last());
    o->result[0] = ds_mem_free(o->block);
    o->result[1] = ds_mem_pinned_free(o->pinned);
    o->result[2] = ds_event_destroy(o->event);
    o->result[3] = ds_stream_destroy(o->stream);
    o->result[4] = ds_kernel_destroy(o->kernel);
    o->result[5] = ds_graph_destroy(o->graph);
    o->result[6] = ds_graph_exec_destroy(o->exec);
    o->result[7] = ds_mem_free(NULL);
    atomic_store(&o->done, 1);
}

static int release_in_closure(void *user) {
    release_all(user);
    return 0;
}

static void release_in_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream, (void)status;
    release_all(user);
}

static int release_in_kernel(size_t first, size_t count, const void *args) {
    owned *o;
    (void)first, (void)count;
    memcpy(&o, args, sizeof o);
    release_all(o);
    return 0;
}

static void expect_released(owned *o, ds_stream s) {
    AWAIT(atomic_load(&o->done));
    ok(ds_stream_synchronize(s));
    for (int i = 0; i < 8; i++)
        if (o->result[i] != DS_OK)
            fail_msg("release %d is %s", i, ds_result_get_name(o->result[i]));
    assert_int_equal(o->refused[0], DS_ERR_INVALID_HANDLE);
    assert_int_equal(o->refused[1], DS_ERR_INVALID_VALUE);
    assert_int_equal(o->refused[2], DS_ERR_INVALID_VALUE);
    assert_int_equal(o->refused[3], DS_ERR_NOT_PERMITTED);
    assert_non_null(strstr(o->sentence, "ds_device_free"));
    assert_int_equal(o->queries, QUERIES);

    ds_mem_pinned_stats pinned;
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    ok(ds_mem_pinned_get_stats(&pinned));
    assert_int_equal(pinned.active_bytes.current, 0);
    refused(ds_mem_free(o->block), DS_ERR_INVALID_VALUE);
    refused(ds_event_destroy(o->event), DS_ERR_INVALID_HANDLE);
    refused(ds_stream_query(o->stream), DS_ERR_INVALID_HANDLE);
    refused(ds_kernel_destroy(o->kernel), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_destroy(o->graph), DS_ERR_INVALID_HANDLE);
    refused(ds_graph_exec_destroy(o->exec), DS_ERR_INVALID_HANDLE);
    ok(ds_device_free(o->plain));
}

static void test_what_a_host_function_releases_is_gone_at_the_next_call(void **state) {
    (void)state;
    static owned o;
    harness_restart(NULL);
    ds_stream s = new_stream();
    fill_owned(&o, s);
    ok(ds_stream_launch_host_func(s, release_all, &o, NULL));
    expect_released(&o, s);
    fill_owned(&o, s); /* a destructor */
    ok(ds_stream_launch_host_func(s, nothing, &o, release_all));
    expect_released(&o, s);
    fill_owned(&o, s);
    ok(ds_stream_add_callback(s, release_in_callback, &o, NULL));
    expect_released(&o, s);
    fill_owned(&o, s);
    ok(ds_stream_launch_closure(s, release_in_closure, &o, 0, NULL));
    expect_released(&o, s);
    fill_owned(&o, s); /* the destructor of a refused call runs on this thread */
    refused(ds_stream_launch_host_func((ds_stream){ 0 }, nothing, &o, release_all),
            DS_ERR_INVALID_HANDLE);
    expect_released(&o, s);
    ok(ds_stream_destroy(s));
}

static void test_what_a_kernel_releases_is_gone_at_the_next_call(void **state) {
    (void)state;
    static owned o;
    owned *args = &o;
    ds_kernel k;
    harness_restart(NULL);
    ds_stream s = new_stream();
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = "release",
                                           .cpu_fn = release_in_kernel,
                                           .args_size = sizeof args },
                        &k));
    fill_owned(&o, s);
    ok(ds_kernel_launch(k, 1, &args, sizeof args, s));
    expect_released(&o, s);
    ok(ds_kernel_destroy(k));
    ok(ds_stream_destroy(s));
}

/* ---- locks of the program ---- */

static pthread_mutex_t framework = PTHREAD_MUTEX_INITIALIZER;

typedef struct guarded {
    void *block;
    ds_graph graph;
    _Atomic int began, ended, attached;
} guarded;

/* A new start, and a block of a new stream. */
static ds_stream begin_guarded(guarded *g) {
    memset(g, 0, sizeof *g);
    harness_restart(NULL);
    ds_stream s = new_stream();
    ok(ds_mem_alloc(1000, s, &g->block));
    return s;
}

static void free_under_the_lock(void *user) {
    guarded *g = user;
    atomic_store(&g->began, 1);
    pthread_mutex_lock(&framework);
    ok_thread(ds_mem_free(g->block));
    pthread_mutex_unlock(&framework);
    atomic_store(&g->ended, 1);
}

/* A framework frees under the lock of its allocator, and a destructor wants this lock. */
static void test_a_destructor_may_want_the_lock_held_around_a_free(void **state) {
    (void)state;
    static guarded g;
    ds_stream s = begin_guarded(&g), other = new_stream();
    pthread_mutex_lock(&framework);
    ok(ds_stream_launch_host_func(s, nothing, &g, free_under_the_lock));
    AWAIT(atomic_load(&g.began)); /* it waits for the lock from now on */
    for (int i = 0; i < 100; i++) {
        void *p;
        ok(ds_mem_alloc(1 << 20, other, &p));
        ok(ds_mem_free(p));
        ok(ds_mem_empty_cache(harness_device(0), NULL));
    }
    assert_int_equal(atomic_load(&g.ended), 0);
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 1024);
    pthread_mutex_unlock(&framework);
    ok(ds_stream_synchronize(s));
    AWAIT(atomic_load(&g.ended));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    ok(ds_stream_destroy(s));
    ok(ds_stream_destroy(other));
}

static void destroy_the_graph(void *user) {
    guarded *g = user;
    ok_thread(ds_graph_destroy(g->graph));
    ok_thread(ds_mem_free(g->block));
}

static void attached_to_a_graph(void *user) {
    guarded *g = user;
    pthread_mutex_lock(&framework);
    pthread_mutex_unlock(&framework);
    atomic_store(&g->attached, 1);
}

/* Calls of the allocator make the frees that were deferred, but run no destructor. */
static void test_the_allocator_runs_no_deferred_destructor(void **state) {
    (void)state;
    static guarded g;
    ds_stream s = begin_guarded(&g);
    ok(ds_graph_create(NULL, &g.graph));
    ok(ds_graph_attach(g.graph, &g, attached_to_a_graph));
    ok(ds_stream_launch_host_func(s, destroy_the_graph, &g, payload_destroy));
    while (ds_stream_query(s) == DS_NOT_READY) {
    }
    pthread_mutex_lock(&framework);
    void *p, *q;
    ok(ds_mem_alloc(1 << 20, s, &p));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 1 << 20);
    ok(ds_mem_pinned_alloc(100, &q));
    ok(ds_mem_pinned_free(q));
    ok(ds_mem_free(p));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    assert_int_equal(atomic_load(&g.attached), 0);
    pthread_mutex_unlock(&framework);
    ok(ds_stream_synchronize(s));
    AWAIT(atomic_load(&g.attached));
    assert_int_equal(atomic_load(&g.attached), 1);
    refused(ds_graph_destroy(g.graph), DS_ERR_INVALID_HANDLE);
    ok(ds_stream_destroy(s));
}

/* ---- when ---- */

static void free_block(void *user) {
    ok_thread(ds_mem_free(user));
}

static void test_a_request_finds_what_was_released_before_it_fails(void **state) {
    (void)state;
    harness_restart(NULL);
    ds_stream s = new_stream();
    ds_device d = harness_device(0);
    void *p, *q;
    ok(ds_mem_alloc(40 << 20, s, &p));
    ok(ds_mem_set_limit(d, ds_mem_get_reserved(d)));
    ok(ds_stream_launch_host_func(s, free_block, p, NULL));
    while (ds_stream_query(s) == DS_NOT_READY) {
    }
    ok(ds_mem_alloc(40 << 20, s, &q));
    assert_ptr_equal(p, q);
    ok(ds_mem_free(q));
    ok(ds_mem_set_limit(d, 0));
    ok(ds_stream_destroy(s));
}

enum { BLOCKS = 10 };

static struct {
    void *block[BLOCKS];
    uint64_t freed[BLOCKS];
    int count;
} in_order;

static void note_free(ds_device device, const ds_mem_event *event, void *user) {
    (void)device, (void)user;
    if (event->action == DS_ACTION_FREE_REQUESTED && in_order.count < BLOCKS)
        in_order.freed[in_order.count++] = event->address;
}

static void free_all(void *user) {
    (void)user;
    for (int i = 0; i < BLOCKS; i++)
        ok_thread(ds_mem_free(in_order.block[(i * 7) % BLOCKS]));
}

static void test_releases_are_made_in_their_order(void **state) {
    (void)state;
    harness_restart(NULL);
    ds_stream s = new_stream();
    in_order.count = 0;
    for (int i = 0; i < BLOCKS; i++)
        ok(ds_mem_alloc(1000, s, &in_order.block[i]));
    ok(ds_mem_add_event_callback(note_free, NULL));
    ok(ds_stream_launch_host_func(s, free_all, NULL, NULL));
    ok(ds_stream_synchronize(s));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    assert_int_equal(in_order.count, BLOCKS);
    for (int i = 0; i < BLOCKS; i++)
        assert_int_equal(in_order.freed[i], (uintptr_t)in_order.block[(i * 7) % BLOCKS]);
    ok(ds_mem_remove_event_callback(note_free, NULL));
    ok(ds_stream_destroy(s));
}

static struct {
    _Atomic int count;
    char text[300];
} logged;

/* level: of the items that are kept. */
static void keep_item(const ds_log_item *item, void *level) {
    if (item->level != *(const ds_log_level *)level)
        return;
    snprintf(logged.text, sizeof logged.text, "%s", item->text);
    atomic_fetch_add(&logged.count, 1);
}

static void free_twice(void *user) {
    ok_thread(ds_mem_free(user));
    ok_thread(ds_mem_free(user));
}

static void test_a_release_that_fails_later_is_logged_with_its_site(void **state) {
    (void)state;
    static ds_log_level errors = DS_LOG_ERROR;
    ds_init_desc init = { .log_fn = keep_item, .log_user = &errors };
    harness_restart(&init);
    ds_stream s = new_stream();
    void *p;
    ok(ds_mem_alloc(1000, s, &p));
    refused(ds_event_query((ds_event){ 77 }), DS_ERR_INVALID_HANDLE);
    atomic_store(&logged.count, 0);
    ok(ds_stream_launch_host_func(s, free_twice, p, NULL));
    ok(ds_stream_synchronize(s));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
    assert_int_equal(atomic_load(&logged.count), 1);
    assert_non_null(strstr(logged.text, "test_user_code.c"));
    assert_non_null(strstr(logged.text, "ds_mem_free"));
    /* the last error of this thread is still its own */
    assert_non_null(strstr(ds_error_get_last(), "ds_event_query"));
    ok(ds_stream_destroy(s));
}

static void release_at_the_end(void *user) {
    owned *o = user;
    harness_sleep_ms(200); /* ds_shutdown waits meanwhile */
    release_all(o);
}

static void release_when_the_graph_ends(void *user) {
    owned *o = user;
    ok_thread(ds_event_destroy(o->event));
    ok_thread(ds_stream_destroy(o->stream));
}

static void test_shutdown_makes_what_was_deferred(void **state) {
    (void)state;
    static ds_log_level warnings = DS_LOG_WARNING;
    ds_init_desc init = { .log_fn = keep_item, .log_user = &warnings };
    static owned o;
    harness_restart(&init);
    atomic_store(&logged.count, 0);
    ds_stream s = new_stream();
    fill_owned(&o, s);
    ok(ds_device_free(o.plain));
    ok(ds_stream_launch_host_func(s, release_at_the_end, &o, NULL));
    ok(ds_stream_destroy(s));
    harness_shutdown();
    assert_int_equal(o.done, 1);
    if (atomic_load(&logged.count))
        fail_msg("%s", logged.text);

    harness_restart(&init); /* by a destructor that ds_shutdown itself runs */
    ds_graph g;
    memset(&o, 0, sizeof o);
    ok(ds_event_create(0, NULL, &o.event));
    ok(ds_stream_create(NULL, &o.stream));
    ok(ds_graph_create(NULL, &g));
    ok(ds_graph_attach(g, &o, release_when_the_graph_ends));
    harness_shutdown();
    assert_int_equal(atomic_load(&logged.count), 1); /* the graph */
    assert_non_null(strstr(logged.text, "graph"));
}

static void destroy_the_event(void *user) {
    owned *o = user;
    ok_thread(ds_event_destroy(o->event));
    ok_thread(ds_mem_free(o->block));
}

static void destroy_its_graph(void *user) {
    owned *o = user;
    ok_thread(ds_graph_destroy(o->graph));
}

/* The destructor of a graph runs inside of a later call, and its own calls leave no trace there. */
static void test_a_call_keeps_its_site_while_destructors_release(void **state) {
    (void)state;
    static ds_log_level warnings = DS_LOG_WARNING;
    ds_init_desc init = { .log_fn = keep_item, .log_user = &warnings };
    static owned o;
    char site[60];
    ds_graph left;
    memset(&o, 0, sizeof o);
    harness_restart(&init);
    ds_stream s = new_stream();
    ok(ds_mem_alloc(1000, s, &o.block));
    ok(ds_event_create(0, NULL, &o.event));
    ok(ds_graph_create(NULL, &o.graph));
    ok(ds_graph_attach(o.graph, &o, destroy_the_event));
    ok(ds_stream_launch_host_func(s, destroy_its_graph, &o, NULL));
    while (ds_stream_query(s) == DS_NOT_READY) {
    }
    ok(ds_graph_create(NULL, &left)); /* makes the release */
    snprintf(site, sizeof site, "test_user_code.c:%d,", __LINE__ - 1);
    ok(ds_stream_destroy(s));
    atomic_store(&logged.count, 0);
    harness_shutdown();
    assert_int_equal(atomic_load(&logged.count), 1); /* the graph, and neither block nor event */
    if (!strstr(logged.text, site))
        fail_msg("%s does not name %s", logged.text, site);
}

static void test_shutdown_makes_what_destructors_release_meanwhile(void **state) {
    (void)state;
    static ds_log_level warnings = DS_LOG_WARNING;
    ds_init_desc init = { .log_fn = keep_item, .log_user = &warnings };
    static owned o;
    memset(&o, 0, sizeof o);
    harness_restart(&init);
    ds_stream s = new_stream();
    ok(ds_mem_alloc(1000, s, &o.block));
    ok(ds_event_create(0, NULL, &o.event));
    ok(ds_graph_create(NULL, &o.graph));
    ok(ds_graph_attach(o.graph, &o, destroy_the_event));
    gate g = { 0 };
    gate_close(s, &g);
    ok(ds_stream_launch_host_func(s, destroy_its_graph, &o, NULL));
    ok(ds_stream_destroy(s));
    atomic_store(&logged.count, 0);
    gate_open(&g);
    harness_shutdown();
    if (atomic_load(&logged.count))
        fail_msg("%s", logged.text);
}

/* ---- a hook that outlives ds_shutdown ---- */

static struct {
    _Atomic int step;
    _Atomic int asked;
} hooked;

static void ask_in_hook(const ds_range_event *event, void *user) {
    ds_device d;
    (void)event, (void)user;
    ds_result r = ds_device_get_current(&d);
    atomic_store(&hooked.asked, r == DS_OK && d.type == harness_device(0).type ? 1 : -1);
}

static void *mark_after_a_restart(void *unused) {
    ds_device d;
    (void)unused;
    ok_thread(ds_device_get_current(&d)); /* the thread has a state */
    atomic_store(&hooked.step, 1);
    AWAIT(atomic_load(&hooked.step) == 2);
    if (ds_range_mark("after a restart") < 0)
        harness_die("ds_range_mark", DS_ERR_SYSTEM);
    return NULL;
}

static void *plain_alloc(size_t size, void *user) {
    (void)user;
    return malloc(size);
}

/* What reads the memory later finds no device there. */
static void spoiling_free(void *ptr, void *user) {
    (void)user;
    if (ptr)
        memset(ptr, 0xee, malloc_usable_size(ptr));
    free(ptr);
}

static void test_a_hook_asks_on_a_thread_of_before_a_restart(void **state) {
    (void)state;
    pthread_t thread;
    int n;
    ds_init_desc init = { .allocator = { .alloc_fn = plain_alloc, .free_fn = spoiling_free } };
    harness_restart(&init);
    atomic_store(&hooked.step, 0);
    atomic_store(&hooked.asked, 0);
    assert_int_equal(pthread_create(&thread, NULL, mark_after_a_restart, NULL), 0);
    AWAIT(atomic_load(&hooked.step) == 1);
    harness_shutdown();
    ok(ds_device_get_count(DS_DEVICE_CPU, &n)); /* another epoch */
    ok(ds_range_set_hook(ask_in_hook, NULL));
    atomic_store(&hooked.step, 2);
    assert_int_equal(pthread_join(thread, NULL), 0);
    ok(ds_range_set_hook(NULL, NULL));
    assert_int_equal(atomic_load(&hooked.asked), 1);
    harness_restart(NULL);
}

/* ---- many threads ---- */

enum { ROUNDS = 300, STREAMS = 4 };

static int no_work(void *user) {
    (void)user;
    return 0;
}

static void release_block_and_event(void *user) {
    owned *o = user;
    ok_thread(ds_mem_free(o->block));
    ok_thread(ds_event_destroy(o->event));
    free(o);
}

static void *release_on_a_stream(void *unused) {
    ds_stream s;
    (void)unused;
    ok_thread(ds_stream_create(NULL, &s));
    for (int i = 0; i < ROUNDS; i++) {
        owned *o = calloc(1, sizeof *o);
        ok_thread(ds_mem_alloc((size_t)1000 * (size_t)(i % 7 + 1), s, &o->block));
        ok_thread(ds_event_create(0, NULL, &o->event));
        ok_thread(ds_stream_launch_closure(s, no_work, o, 0, release_block_and_event));
    }
    ok_thread(ds_stream_synchronize(s));
    ok_thread(ds_stream_destroy(s));
    return NULL;
}

static void test_many_threads_release_in_user_code(void **state) {
    (void)state;
    pthread_t thread[STREAMS];
    harness_restart(NULL);
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, release_on_a_stream, NULL), 0);
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    ok(ds_device_synchronize(harness_device(0)));
    assert_int_equal(ds_mem_get_allocated(harness_device(0)), 0);
}

const struct CMUnitTest tests_user_code[] = {
    DS_TEST(test_what_a_host_function_releases_is_gone_at_the_next_call, "openreg"),
    DS_TEST_CPU(test_what_a_kernel_releases_is_gone_at_the_next_call, "openreg"),
    DS_TEST(test_a_destructor_may_want_the_lock_held_around_a_free, "openreg"),
    DS_TEST(test_the_allocator_runs_no_deferred_destructor, "openreg"),
    DS_TEST(test_a_request_finds_what_was_released_before_it_fails, "openreg"),
    DS_TEST(test_releases_are_made_in_their_order, "openreg"),
    DS_TEST(test_a_release_that_fails_later_is_logged_with_its_site, "openreg"),
    DS_TEST(test_shutdown_makes_what_was_deferred, "openreg"),
    DS_TEST(test_a_call_keeps_its_site_while_destructors_release, "openreg"),
    DS_TEST(test_shutdown_makes_what_destructors_release_meanwhile, "openreg"),
    DS_TEST(test_a_hook_asks_on_a_thread_of_before_a_restart, "openreg"),
    DS_TEST(test_many_threads_release_in_user_code, "openreg"),
};
const size_t tests_user_code_count = sizeof tests_user_code / sizeof tests_user_code[0];
