/* The CPU driver's virtual clock: schedules that were computed by hand, from the model that
   devstream.h describes at ds_cpu_fabric. Most links move a byte in a nanosecond, a copy
   holds its engine for 100 ns more, and its latency is 50 ns. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "devstream_comm.h"
#include "cpu/clock.h"

#include "unit.h"

#include <unistd.h>

/* ---- a description that grows ---- */

enum { MOST = 144, ROUTES = (MOST + 1) * (MOST + 1), LINKS = ROUTES };

static ds_cpu_fabric fabric;
static ds_cpu_route routes[ROUTES];
static double rates[LINKS];
static int hops[ROUTES][2];
static ds_event zeros[MOST];

static void machine(int devices) {
    memset(routes, 0, sizeof routes);
    fabric = (ds_cpu_fabric){ .devices = devices,
                              .link_bytes_per_s = rates,
                              .route = routes,
                              .engine_ns = 100,
                              .memory_bytes_per_s = 1e9 };
}

static int add_link(double bytes_per_ns) {
    rates[fabric.links] = bytes_per_ns * 1e9;
    return (int)fabric.links++;
}

static ds_cpu_route *way(int from, int to, size_t count, int a, int b) {
    int at = from * (fabric.devices + 1) + to;
    hops[at][0] = a;
    hops[at][1] = b;
    routes[at] = (ds_cpu_route){ 50, 1, count, hops[at] };
    return &routes[at];
}

/* A link from each device to each, and from and to the host. */
static void full_mesh(int devices) {
    machine(devices);
    for (int i = 0; i <= devices; i++)
        for (int k = 0; k <= devices; k++)
            if (i != k)
                way(i, k, 1, add_link(1), 0);
}

static ds_stream stream_on(int device) {
    ds_stream s;
    ds_stream_desc desc = { .device = ds_cpu(device) };
    ok(ds_stream_create(&desc, &s));
    return s;
}

static char *memory_on(int device, size_t size) {
    void *at;
    ok(ds_device_alloc(ds_cpu(device), size, &at));
    return at;
}

static ds_event mark(ds_stream s) {
    ds_event e;
    ok(ds_stream_record_event(s, DS_EVENT_TIMING, &e));
    return e;
}

static void start(void) {
    ds_cpu_desc cpu = { .fabric = &fabric };
    ok(ds_init(&(ds_init_desc){ .cpu = &cpu }));
    for (int i = 0; i < fabric.devices; i++)
        zeros[i] = mark(stream_on(i));
}

/* When the event was passed: the time since one that was recorded on its device before anything
   else. */
static int64_t at(ds_event e) {
    ds_device d;
    double ms;
    ok(ds_event_get_device(e, &d));
    ok(ds_event_get_elapsed_ms(zeros[d.index], e, &ms));
    return (int64_t)(ms * 1e6 + 0.5);
}

static int64_t now(void) {
    int64_t ns;
    ok(ds_cpu_get_clock(&ns));
    return ns;
}

static int64_t finish(void) {
    for (int i = 0; i < fabric.devices; i++)
        ok(ds_device_synchronize(ds_cpu(i)));
    return now();
}

static int end(void **state) {
    (void)state;
    return ds_shutdown() != DS_OK;
}

/* ---- copies ---- */

static void test_pieces_go_down_a_chain(void **state) {
    enum { N = 10000, PIECES = 3 };

    ds_event sent[PIECES], there[PIECES];
    (void)state;
    full_mesh(3);
    start();
    ds_stream s0 = stream_on(0), s1 = stream_on(1);
    char *a = memory_on(0, N), *b = memory_on(1, N * PIECES), *c = memory_on(2, N * PIECES);
    for (int i = 0; i < PIECES; i++) {
        ok(ds_copy(b + i * N, a, N, s0));
        sent[i] = mark(s0);
        ok(ds_stream_wait_event(s1, sent[i]));
        ok(ds_copy(c + i * N, b + i * N, N, s1));
        there[i] = mark(s1);
    }
    assert_int_equal(now(), 0); /* nobody has waited yet */
    /* A copy is 100 + 10000 + 50. The first stream needs three of them; the second one is always
       one behind. */
    assert_int_equal(finish(), 40600);
    assert_int_equal(at(sent[0]), 10150);
    assert_int_equal(at(sent[2]), 30450);
    assert_int_equal(at(there[0]), 20300);
    assert_int_equal(at(there[2]), 40600);
}

/* A wait for a word ends at the time of the write; a loop takes the time of its runs. */
static void test_values_and_loops_take_the_time_of_what_they_wait_for(void **state) {
    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0), t = stream_on(1);
    char *a = memory_on(0, 10000), *b = memory_on(1, 10000);
    ds_graph body, loop;
    ds_graph_exec exec;
    void *p;
    ok(ds_pinned_alloc(64, &p));
    uint32_t *word = p;
    word[0] = word[1] = 0;
    ok(ds_copy(b, a, 10000, s));
    ok(ds_stream_write_value32(s, word, 1));
    ok(ds_stream_wait_value32(t, word, 1, DS_VALUE_WAIT_EQ));
    ds_event told = mark(t);
    assert_int_equal(finish(), 10150);
    assert_int_equal(at(told), 10150);

    /* the copy to the host takes 4 ns more than its latencies, and ends the loop */
    ds_node_desc copy = { .kind = DS_NODE_COPY, .u.copy = { .dst = b, .src = a, .width = 10000 } };
    ds_node_desc over = { .kind = DS_NODE_COPY,
                          .u.copy = { .dst = &word[1], .src = &a[0], .width = 4 } };
    ds_graph_node first;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &body));
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &loop));
    ok(ds_graph_add(body, &copy, NULL, 0, &first));
    ok(ds_graph_add(body, &over, &first, 1, NULL));
    ds_node_desc d = {
        .kind = DS_NODE_CONDITION,
        .u.condition = { .kind = DS_CONDITION_WHILE, .word = &word[1], .bodies = &body, .count = 1 }
    };
    ok(ds_graph_add(loop, &d, NULL, 0, NULL));
    ok(ds_graph_instantiate(loop, NULL, &exec));
    memset(a, 0, 10000);
    word[1] = 1;
    int64_t before = now();
    ok(ds_graph_launch(exec, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(word[1], 0);
    assert_int_equal(now() - before, 10150 + 154);
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(loop));
    ok(ds_graph_destroy(body));
}

static void test_latency_and_engine_time_overlap_copies_of_other_streams(void **state) {
    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0), t = stream_on(0);
    char *a = memory_on(0, 10000), *b = memory_on(1, 20000);
    ok(ds_copy(b, a, 10000, s));
    ok(ds_copy(b + 10000, a, 10000, t));
    ds_event first = mark(s), second = mark(t);
    /* The second one waits for the link alone, which is free at 10000. */
    assert_int_equal(finish(), 20150);
    assert_int_equal(at(first), 10150);
    assert_int_equal(at(second), 20150);
}

static void test_two_copies_share_a_fast_link_ahead_of_two_slow_ones(void **state) {
    (void)state;
    machine(4);
    int fast = add_link(4), slow = add_link(1), other = add_link(1);
    way(0, 1, 2, fast, slow);
    way(0, 2, 2, fast, other);
    way(0, 3, 2, other, fast);
    start();
    ds_stream s = stream_on(0), t = stream_on(0), u = stream_on(0);
    char *a = memory_on(0, 8000), *b = memory_on(1, 8000), *c = memory_on(2, 8000),
         *d = memory_on(3, 8000);
    ok(ds_copy(b, a, 8000, s));
    ok(ds_copy(c, a, 8000, t));
    ok(ds_copy(d, a, 8000, u));
    ds_event e0 = mark(s), e1 = mark(t), e2 = mark(u);
    finish();
    assert_int_equal(at(e0), 8150);
    assert_int_equal(at(e1), 2000 + 8150);  /* the fast link is free at 2000 */
    assert_int_equal(at(e2), 10000 + 8150); /* its slow one at 10000 */
}

static void test_a_device_has_so_many_engines(void **state) {
    (void)state;
    for (int engines = 1; engines <= 3; engines++) {
        full_mesh(4);
        fabric.engines = engines;
        start();
        ds_stream s[3];
        ds_event e[3];
        char *a = memory_on(0, 8000);
        for (int i = 0; i < 3; i++)
            s[i] = stream_on(0);
        for (int i = 0; i < 3; i++) {
            ok(ds_copy(memory_on(i + 1, 8000), a, 8000, s[i]));
            e[i] = mark(s[i]);
        }
        finish();
        /* Each holds an engine for 8100. */
        assert_int_equal(at(e[0]), 8150);
        assert_int_equal(at(e[1]), (engines == 1 ? 8100 : 0) + 8150);
        assert_int_equal(at(e[2]), (engines == 1 ? 16200 : engines == 2 ? 8100 : 0) + 8150);
        ok(ds_shutdown());
    }
}

static void test_the_streams_device_executes_a_copy_of_any_ends(void **state) {
    (void)state;
    full_mesh(3);
    fabric.engines = 1;
    start();
    ds_stream pull = stream_on(1), third = stream_on(2), push = stream_on(0);
    char *a = memory_on(0, 1000), *b = memory_on(1, 1000), *c = memory_on(2, 1000);
    ok(ds_copy(b, a, 1000, pull));
    ok(ds_copy(c, a, 1000, third));
    ok(ds_copy(a, c, 1000, push));
    ds_event e0 = mark(pull), e1 = mark(third), e2 = mark(push);
    finish();
    assert_int_equal(at(e0), 1150);
    assert_int_equal(at(e1), 1150);
    assert_int_equal(at(e2), 1150);
}

static void test_duplex_is_two_links_and_half_duplex_one(void **state) {
    (void)state;
    for (int duplex = 0; duplex < 2; duplex++) {
        machine(2);
        int there = add_link(1), back = duplex ? add_link(1) : there;
        way(0, 1, 1, there, 0);
        way(1, 0, 1, back, 0);
        start();
        ds_stream s = stream_on(0), t = stream_on(1);
        char *a = memory_on(0, 2000), *b = memory_on(1, 2000);
        ok(ds_copy(b, a, 1000, s));
        ok(ds_copy(a + 1000, b + 1000, 1000, t));
        ds_event e0 = mark(s), e1 = mark(t);
        finish();
        assert_int_equal(at(e0), 1150);
        assert_int_equal(at(e1), (duplex ? 0 : 1000) + 1150);
        ok(ds_shutdown());
    }
}

static void test_without_a_direct_route_a_copy_goes_through_the_host(void **state) {
    (void)state;
    full_mesh(3);
    routes[0 * 4 + 1].direct = routes[1 * 4 + 0].direct = 0;
    int up = hops[0 * 4 + 3][0];
    rates[up] = 2e9;
    start();
    ds_stream s = stream_on(0), t = stream_on(0);
    char *a = memory_on(0, 8000), *b = memory_on(1, 8000);
    void *pinned;
    int can;
    ok(ds_pinned_alloc(8000, &pinned));
    for (int i = 0; i < 8000; i++)
        a[i] = (char)(i * 7);
    ok(ds_device_can_access_peer(ds_cpu(0), ds_cpu(1), &can));
    assert_false(can);
    ok(ds_device_can_access_peer(ds_cpu(0), ds_cpu(2), &can));
    assert_true(can);
    ok(ds_copy(b, a, 8000, s));
    ok(ds_copy(pinned, a, 8000, t));
    ds_event e0 = mark(s), e1 = mark(t);
    finish();
    /* Up in 4000 (from 0 to 4150), down in 8000 (8150 more). The other copy has the way up as
       soon as the first leg is over it. */
    assert_int_equal(at(e0), 4150 + 8150);
    assert_int_equal(at(e1), 4000 + 4150);
    assert_memory_equal(b, a, 8000);
    assert_memory_equal(pinned, a, 8000);
}

static void test_what_is_ready_first_goes_first(void **state) {
    (void)state;
    full_mesh(3);
    start();
    ds_stream late = stream_on(0), early = stream_on(0), other = stream_on(2);
    char *a = memory_on(0, 8000), *b = memory_on(1, 8000), *c = memory_on(2, 8000);
    ok(ds_copy(a, c, 1000, other)); /* over at 1150 */
    ok(ds_stream_wait_event(late, mark(other)));
    ok(ds_copy(b, a, 8000, late)); /* put in first, but ready at 1150 */
    ok(ds_copy(b, a, 3000, early));
    /* ready at 3150, after that: it comes behind although the link is free before */
    ok(ds_copy(b, a, 3000, early));
    ds_event e0 = mark(late), e1 = mark(early);
    finish();
    assert_int_equal(at(e0), 3000 + 8150);
    assert_int_equal(at(e1), 11000 + 3150);
}

static void test_a_tie_goes_to_the_stream_that_is_older(void **state) {
    (void)state;
    full_mesh(2);
    start();
    ds_stream old = stream_on(0), young = stream_on(0);
    char *a = memory_on(0, 1000), *b = memory_on(1, 1000);
    ok(ds_copy(b, a, 1000, young));
    ok(ds_copy(b, a, 1000, old));
    ds_event e0 = mark(old), e1 = mark(young);
    finish();
    assert_int_equal(at(e0), 1150);
    assert_int_equal(at(e1), 2150);
}

/* ---- memory, kernels, host ---- */

static _Atomic int ran;

static int count_items(size_t first, size_t count, const void *args) {
    (void)first;
    (void)args;
    ran += (int)count;
    return 0;
}

static uint64_t three_of_each(size_t items, const void *args) {
    return 3 * items * *(const uint64_t *)args;
}

static void count_host(void *user) {
    ++*(_Atomic int *)user;
}

static void test_sums_fills_and_copies_within_a_device_share_its_memory(void **state) {
    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0), t = stream_on(0), u = stream_on(1);
    float *x[2] = { (float *)(void *)memory_on(0, 4000), (float *)(void *)memory_on(1, 4000) },
          *in[3];
    for (int i = 0; i < 3; i++)
        in[i] = (float *)(void *)memory_on(0, 4000);
    for (int i = 0; i < 1000; i++) {
        in[0][i] = (float)i;
        in[1][i] = 2;
        in[2][i] = 0.5f;
    }
    const void *inputs[3] = { in[0], in[1], in[2] };
    /* reads 12000, writes 4000 */
    ds__reduction sum = { DS_REDUCE_SUM, { DS_CODE_FLOAT, 32, 1 } };
    ok(ds__comm_reduce(s, sum, x[0], inputs, 3, 1000));
    ok(ds_fill(in[0], 0, 4, 1000, s));  /* 4000, ready at 16000 */
    ok(ds_copy(in[1], in[2], 4000, t)); /* 8000, ready at 0, so before the fill */
    ok(ds_fill(x[1], 0, 4, 1000, u));   /* 4000 of the other device */
    ds_event e0 = mark(s), e1 = mark(t), e2 = mark(u);
    finish();
    assert_int_equal(at(e1), 16000 + 8000);
    assert_int_equal(at(e0), 24000 + 4000);
    assert_int_equal(at(e2), 4000);
    for (int i = 0; i < 1000; i++)
        assert_true(x[0][i] == (float)i + 2.5f);
}

static void test_kernels_take_the_time_that_they_say(void **state) {
    (void)state;
    full_mesh(1);
    start();
    ds_kernel plain, heavy;
    ds_kernel_desc desc = { .name = "plain", .cpu_fn = count_items, .args_size = 8 };
    ok(ds_kernel_create(&desc, &plain));
    desc.name = "heavy";
    desc.bytes_fn = three_of_each;
    ok(ds_kernel_create(&desc, &heavy));
    ds_stream s = stream_on(0);
    uint64_t bytes = 10;
    _Atomic int called = 0;
    ran = 0;
    for (int i = 0; i < 10; i++)
        ok(ds_kernel_launch(plain, 1000000, &bytes, 8, s));
    ds_event e0 = mark(s);
    ok(ds_kernel_launch(heavy, 100, &bytes, 8, s));
    ok(ds_stream_launch_host_func(s, count_host, &called, NULL));
    ds_event e1 = mark(s);
    assert_int_equal(finish(), 3000);
    assert_int_equal(at(e0), 0);
    assert_int_equal(at(e1), 3000);
    assert_int_equal(ran, 10000100);
    assert_int_equal(called, 1);
}

/* ---- the clock ---- */

static void test_after_a_wait_the_clock_is_there_and_what_runs_goes_on(void **state) {
    (void)state;
    full_mesh(3);
    start();
    ds_stream s = stream_on(0), t = stream_on(0);
    ds_event last;
    char *a = memory_on(0, 100000), *b = memory_on(1, 100000), *c = memory_on(2, 100000);
    ok(ds_copy(b, a, 1000, s));
    ok(ds_copy(c, a, 100000, t));
    ok(ds_stream_record_event(t, 0, &last));
    ok(ds_stream_synchronize(s));
    assert_int_equal(now(), 1150);
    ok(ds_copy(b, a, 1000, s)); /* put in at 1150 */
    ok(ds_stream_synchronize(s));
    assert_int_equal(now(), 2300);
    ok(ds_stream_wait_event(s, last)); /* it has run, but the clock is not there yet */
    ok(ds_copy(b, a, 1000, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(now(), 100150 + 1150);
    ok(ds_stream_synchronize(t));
    ds_stream fresh = stream_on(1); /* begins now */
    ok(ds_copy(c, b, 1000, fresh));
    assert_int_equal(finish(), 101300 + 1150);
}

static void test_a_wait_for_a_word_lasts_until_the_write(void **state) {
    (void)state;
    full_mesh(3);
    start();
    ds_stream s = stream_on(0), t = stream_on(1), late = stream_on(2);
    char *a = memory_on(0, 1000), *b = memory_on(1, 1000), *c = memory_on(2, 5000);
    void *word;
    ok(ds_pinned_alloc(64, &word));
    memset(word, 0, 64);
    ok(ds_stream_wait_value32(t, word, 1, DS_VALUE_WAIT_EQ));
    ds_event waited = mark(t);
    ok(ds_copy(b, a, 1000, s));
    ok(ds_stream_write_value32(s, word, 1));
    ok(ds_copy(c, c + 2500, 2500, late)); /* ends later */
    finish();
    assert_int_equal(at(waited), 1150);
    ok(ds_pinned_free(word));
}

/* Each stream waits for the word of the other, HOPS times. A thread that looked at the words beside
   the streams could wake one of them without the time of the write. */
static void test_each_of_many_waits_lasts_until_the_write(void **state) {
    enum { HOPS = 500 };

    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0), t = stream_on(1);
    char *a = memory_on(0, 1000), *b = memory_on(1, 1000);
    void *p;
    ok(ds_pinned_alloc(64, &p));
    uint32_t *word = p;
    word[0] = word[1] = 0;
    for (uint32_t i = 1; i <= HOPS; i++) {
        ok(ds_copy(b, a, 1000, s));
        ok(ds_stream_write_value32(s, &word[0], i));
        ok(ds_stream_wait_value32(s, &word[1], i, DS_VALUE_WAIT_EQ));
        ok(ds_stream_wait_value32(t, &word[0], i, DS_VALUE_WAIT_EQ));
        ok(ds_copy(a, b, 1000, t));
        ok(ds_stream_write_value32(t, &word[1], i));
    }
    assert_int_equal(finish(), HOPS * 2 * 1150);
    ok(ds_pinned_free(p));
}

static void write_word(void *word) {
    __atomic_store_n((uint32_t *)word, 7, __ATOMIC_SEQ_CST);
}

/* Not only ds_stream_write_value32 ends a wait: the time is the end of what writes the word. */
static void test_a_wait_lasts_until_the_copy_or_host_function_that_writes(void **state) {
    enum { ROUNDS = 100 };

    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0), t = stream_on(1);
    char *a = memory_on(0, 1000), *b = memory_on(1, 1000);
    void *p;
    ok(ds_pinned_alloc(64, &p));
    uint32_t *word = p;
    int64_t begin = 0;
    uint32_t seven = 7;
    ok(ds_copy_sync(a, &seven, 4));
    begin = now();
    for (int i = 0; i < ROUNDS; i++) {
        word[0] = word[1] = 0;
        ok(ds_stream_wait_value32(t, &word[0], 7, DS_VALUE_WAIT_EQ));
        ds_event copied = mark(t);
        ok(ds_stream_wait_value32(t, &word[1], 7, DS_VALUE_WAIT_EQ));
        ds_event called = mark(t);
        ok(ds_copy(b, a, 1000, s));
        ok(ds_copy(&word[0], a, 4, s)); /* 154 ns */
        ok(ds_copy(b, a, 1000, s));
        ok(ds_stream_launch_host_func(s, write_word, &word[1], NULL));
        int64_t end_at = finish();
        assert_int_equal(at(copied) - begin, 1150 + 154);
        assert_int_equal(at(called) - begin, 1150 + 154 + 1150);
        assert_int_equal(end_at, at(called));
        begin = end_at;
    }
    ok(ds_pinned_free(p));
}

static void *write_word_later(void *word) {
    usleep(20000);
    write_word(word);
    return NULL;
}

static void test_a_word_that_the_host_writes_meanwhile_ends_a_wait(void **state) {
    (void)state;
    full_mesh(1);
    start();
    ds_stream s = stream_on(0);
    pthread_t thread;
    void *word;
    ok(ds_pinned_alloc(64, &word));
    memset(word, 0, 64);
    ok(ds_stream_wait_value32(s, word, 7, DS_VALUE_WAIT_EQ));
    alarm(20); /* a wait that never ends fails */
    assert_int_equal(pthread_create(&thread, NULL, write_word_later, word), 0);
    ok(ds_stream_synchronize(s));
    alarm(0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(now(), 0);
    ok(ds_pinned_free(word));
}

static void test_a_query_lets_run_what_can(void **state) {
    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0);
    ds_event e;
    char *a = memory_on(0, 1000), *b = memory_on(1, 1000);
    ok(ds_copy(b, a, 1000, s));
    while (ds_stream_query(s) == DS_NOT_READY) {
    }
    assert_int_equal(now(), 1150);
    ok(ds_copy(b, a, 1000, s));
    ok(ds_stream_record_event(s, 0, &e));
    while (ds_event_query(e) == DS_NOT_READY) {
    }
    assert_int_equal(now(), 2300);
}

static void test_a_copy_of_pageable_memory_is_waited_for(void **state) {
    char bytes[500] = "pageable";
    (void)state;
    full_mesh(1);
    start();
    ds_stream s = stream_on(0);
    char *a = memory_on(0, 500);
    ok(ds_copy(a, bytes, 500, s));
    assert_string_equal(a, "pageable");
    assert_int_equal(now(), 650);
}

static void test_work_that_nobody_waits_for_runs_too(void **state) {
    _Atomic int called = 0;
    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0);
    ok(ds_copy(memory_on(1, 1000), memory_on(0, 1000), 1000, s));
    ok(ds_stream_launch_host_func(s, count_host, &called, NULL));
    while (!called)
        sched_yield();
    ok(ds_stream_synchronize(s));
    assert_int_equal(now(), 1150);
}

typedef struct door {
    _Atomic int entered, open;
} door;

static void pass_door(void *user) {
    door *d = user;
    d->entered = 1;
    while (!d->open)
        sched_yield();
}

static void test_a_host_function_that_blocks_delays_its_own_stream_only(void **state) {
    door d = { 0, 0 };
    (void)state;
    full_mesh(2);
    start();
    ds_stream s = stream_on(0), t = stream_on(0);
    char *a = memory_on(0, 1000), *b = memory_on(1, 1000);
    ok(ds_stream_launch_host_func(s, pass_door, &d, NULL));
    ok(ds_copy(b, a, 1000, s));
    ok(ds_copy(b, a, 1000, t));
    ok(ds_stream_synchronize(t));
    assert_int_equal(now(), 1150);
    assert_int_equal(d.entered, 1);
    assert_int_equal(ds_stream_query(s), DS_NOT_READY);
    d.open = 1;
    ok(ds_stream_synchronize(s));
    assert_int_equal(now(), 2150); /* ready at 0; the link was taken until 1000 */
}

enum { THREADS = 4, ROUNDS = 100 };

static void *submit_and_wait(void *user) {
    int me = *(const int *)user, other = (me + 1) % THREADS;
    ds_stream s = stream_on(me), t = stream_on(other);
    char *a = memory_on(me, 64), *b = memory_on(other, 64);
    ds_event e;
    ok(ds_event_create(0, NULL, &e));
    for (int i = 0; i < ROUNDS; i++) {
        char got[64] = { 0 };
        ok(ds_fill(a, (uint32_t)(i + me) & 127, 1, 64, s));
        ok(ds_copy(b, a, 64, s));
        ok(ds_event_record(e, s));
        ok(ds_stream_wait_event(t, e));
        ok(ds_copy(got, b, 64, t)); /* waits */
        if (got[63] != ((i + me) & 127))
            return user;
        ok(ds_stream_wait_stream(s, t));
        while (i % 3 == 0 && ds_stream_query(t) == DS_NOT_READY) {
        }
        if (i % 3 == 1)
            ok(ds_event_synchronize(e));
        if (i % 7 == 0)
            ok(ds_device_synchronize(ds_cpu(other)));
    }
    return NULL;
}

static void test_threads_may_submit_and_wait_side_by_side(void **state) {
    static const int number[THREADS] = { 0, 1, 2, 3 };
    pthread_t thread[THREADS];
    (void)state;
    full_mesh(THREADS);
    start();
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(
            pthread_create(&thread[i], NULL, submit_and_wait, (void *)(uintptr_t)&number[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(thread[i], &wrong);
        assert_null(wrong);
    }
    assert_true(finish() >= ROUNDS * (64 + 2 * (64 + 150)));
}

/* ---- the same every time ---- */

enum { STREAMS = 10, STEPS = 600, DEVICES = 4, PLACE = 4096 };

enum { COPY, FILL, SUM };

typedef struct step {
    int stream, kind, from, to, wait; /* wait: for this step, or -1 */
    size_t size;
} step;

static void random_machine(unsigned flags) {
    full_mesh(DEVICES);
    for (int i = 0; i < DEVICES; i++)
        routes[i * (DEVICES + 1) + (i + 1) % DEVICES].direct = i % 2;
    for (int i = 0; i < DEVICES; i++)
        rates[hops[i * (DEVICES + 1) + DEVICES][0]] = 3e8 * (i + 1);
    /* all from 0 begin with the same link */
    for (int i = 1; i < DEVICES; i++)
        way(0, i, 2, hops[i][0], hops[1][0])->hops = i == 1 ? 1 : 2;
    fabric.engines = 2;
    fabric.flags = flags;
}

static void random_steps(unsigned seed, step *out) {
    for (int i = 0; i < STEPS; i++) {
        unsigned r[6];
        for (int k = 0; k < 6; k++)
            r[k] = (seed = seed * 1103515245u + 12345u) >> 10;
        out[i] = (step){ (int)(r[0] % STREAMS),
                         r[2] % 5   ? COPY
                         : r[3] % 2 ? FILL
                                    : SUM,
                         (int)(r[1] % DEVICES),
                         (int)(r[3] % DEVICES),
                         i && r[5] % 3 == 0 ? (int)(r[4] % (unsigned)i) : -1,
                         r[4] % PLACE + 1 };
        if (out[i].kind == SUM)
            out[i].to = out[i].stream % DEVICES;
    }
}

/* Does the steps, waiting for the one in the middle before the later ones are put in; when each
   was done. */
static void run_steps(const step *steps, unsigned flags, int64_t *out) {
    ds_stream s[STREAMS];
    ds_event e[STEPS];
    char *place[DEVICES];
    ds_kernel sum;
    ds_kernel_desc desc = {
        .name = "sum", .cpu_fn = count_items, .args_size = 8, .bytes_fn = three_of_each
    };
    random_machine(flags);
    start();
    ok(ds_kernel_create(&desc, &sum));
    for (int i = 0; i < DEVICES; i++)
        place[i] = memory_on(i, PLACE);
    for (int i = 0; i < STREAMS; i++)
        s[i] = stream_on(i % DEVICES);
    for (int i = 0; i < STEPS; i++) {
        const step *p = &steps[i];
        uint64_t each = 2;
        if (p->wait >= 0)
            ok(ds_stream_wait_event(s[p->stream], e[p->wait]));
        if (p->kind == COPY)
            ok(ds_copy(place[p->to], place[p->from], p->size, s[p->stream]));
        if (p->kind == FILL)
            ok(ds_fill(place[p->to], 1, 1, p->size, s[p->stream]));
        if (p->kind == SUM)
            ok(ds_kernel_launch(sum, p->size, &each, 8, s[p->stream]));
        e[i] = mark(s[p->stream]);
        if (i == STEPS / 2)
            ok(ds_event_synchronize(e[i]));
    }
    finish();
    for (int i = 0; i < STEPS; i++)
        out[i] = at(e[i]);
    ok(ds_shutdown());
}

/* The model once more, step by step: the one that is ready first, of all that are. */
static int64_t later(int64_t a, int64_t b) {
    return a < b ? b : a;
}

static int64_t spend(size_t bytes, double rate) {
    return later(1, (int64_t)((double)bytes * 1e9 / rate + 0.5));
}

static int64_t transfer(int64_t ready, int from, int to, size_t size, int64_t *engines,
                        int64_t *links) {
    const ds_cpu_route *way_to = &routes[from * (DEVICES + 1) + to];
    int64_t *engine = engines[1] < engines[0] ? &engines[1] : engines,
            begin = later(ready, *engine), slowest = 0;
    for (size_t i = 0; i < way_to->hops; i++)
        begin = later(begin, links[way_to->link[i]]);
    for (size_t i = 0; i < way_to->hops; i++)
        links[way_to->link[i]] = begin + spend(size, rates[way_to->link[i]]);
    for (size_t i = 0; i < way_to->hops; i++)
        slowest = later(slowest, spend(size, rates[way_to->link[i]]));
    return (*engine = begin + 100 + slowest) + 50;
}

static void model(const step *steps, int64_t *out) {
    int64_t links[LINKS] = { 0 }, engines[DEVICES][2] = { { 0 } }, memory[DEVICES] = { 0 },
            half_way[STEPS];
    int last[STREAMS], before[STEPS];
    for (int i = 0; i < STREAMS; i++)
        last[i] = -1;
    for (int i = 0; i < STEPS; i++) {
        out[i] = half_way[i] = -1;
        before[i] = last[steps[i].stream];
        last[steps[i].stream] = i;
    }
    for (;;) {
        int best = -1;
        int64_t first = INT64_MAX;
        for (int i = 0; i < STEPS; i++) {
            int64_t ready = later(half_way[i], 0);
            int waits = out[i] >= 0;
            for (int k = 0; k < 3; k++) {
                int after = k == 0          ? before[i]
                            : k == 1        ? steps[i].wait
                            : i > STEPS / 2 ? STEPS / 2
                                            : -1;
                waits |= after >= 0 && out[after] < 0;
                ready = later(ready, after >= 0 ? out[after] : 0);
            }
            if (waits || ready > first || (ready == first && steps[i].stream >= steps[best].stream))
                continue;
            best = i;
            first = ready;
        }
        if (best < 0)
            return;
        const step *p = &steps[best];
        int device = p->stream % DEVICES, staged = !routes[p->from * (DEVICES + 1) + p->to].direct;
        if (p->kind != COPY || p->from == p->to) {
            size_t bytes = p->kind == SUM ? 6 * p->size : p->kind == FILL ? p->size : 2 * p->size;
            out[best] = memory[p->to] = later(memory[p->to], first) + spend(bytes, 1e9);
        } else if (staged && half_way[best] < 0) {
            half_way[best] = transfer(first, p->from, DEVICES, p->size, engines[p->from], links);
        } else {
            out[best] = transfer(first, staged ? DEVICES : p->from, p->to, p->size,
                                 engines[staged ? p->to : device], links);
        }
    }
}

static void test_random_schedules_are_as_the_model_says(void **state) {
    static int64_t got[STEPS], expected[STEPS];
    static step steps[STEPS];
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        random_steps(seed, steps);
        run_steps(steps, DS_CPU_DRY, got);
        random_machine(0);
        model(steps, expected);
        for (int i = 0; i < STEPS; i++)
            if (got[i] != expected[i])
                fail_msg("seed %u: step %d is done at %lld, not %lld", seed, i, (long long)got[i],
                         (long long)expected[i]);
    }
}

static void test_two_runs_have_the_same_times_dry_or_not(void **state) {
    static int64_t first[STEPS], second[STEPS];
    static step steps[STEPS];
    (void)state;
    for (unsigned seed = 1; seed <= 8; seed++) {
        random_steps(seed, steps);
        run_steps(steps, 0, first);
        for (unsigned flags = 0; flags <= DS_CPU_DRY; flags++) {
            run_steps(steps, flags, second);
            assert_memory_equal(first, second, sizeof first);
        }
        assert_true(first[STEPS - 1] > 0);
    }
}

static void test_a_graph_takes_the_time_of_what_it_was_captured_from(void **state) {
    (void)state;
    int64_t times[2];
    for (int captured = 0; captured < 2; captured++) {
        full_mesh(3);
        start();
        ds_stream s = stream_on(0), t = stream_on(1), u = stream_on(2);
        ds_event fork, join;
        ds_graph graph;
        ds_graph_exec exec;
        char *a = memory_on(0, 9000), *b = memory_on(1, 9000), *c = memory_on(2, 9000);
        ok(ds_event_create(0, NULL, &fork));
        ok(ds_event_create(0, NULL, &join));
        if (captured)
            ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
        for (int i = 0; i < 3; i++) {
            ok(ds_copy(b + 3000 * i, a, 3000, s));
            ok(ds_event_record(fork, s));
            ok(ds_stream_wait_event(t, fork));
            ok(ds_copy(c + 3000 * i, b + 3000 * i, 3000, t));
        }
        ok(ds_event_record(join, t));
        ok(ds_stream_wait_event(s, join));
        if (captured) {
            ok(ds_capture_end(s, &graph));
            ok(ds_graph_instantiate(graph, 0, &exec));
            ok(ds_graph_launch(exec, s));
            ok(ds_graph_launch(exec, u)); /* once more, after the first */
        }
        times[captured] = finish();
        ok(ds_shutdown());
    }
    assert_int_equal(times[0], 4 * 3150);
    assert_int_equal(times[1], 2 * 4 * 3150);
}

static void test_a_dry_gigabyte_over_sixteen_devices_costs_nothing(void **state) {
    enum { N = 16, PIECES = 256 };

    const size_t piece = (size_t)4 << 20;
    char *at_device[N];
    ds_stream s[N];
    (void)state;
    full_mesh(N);
    fabric.flags = DS_CPU_DRY;
    start();
    for (int i = 0; i < N; i++) {
        at_device[i] = memory_on(i, piece * PIECES);
        s[i] = stream_on(i);
    }
    for (size_t k = 0; k < PIECES; k++)
        for (int i = 0; i + 1 < N; i++) {
            ok(ds_copy(at_device[i + 1] + k * piece, at_device[i] + k * piece, piece, s[i]));
            ok(ds_stream_wait_stream(s[i + 1], s[i]));
        }
    /* 256 + 14 copies one after the other, each of which is 4 MiB + 150. */
    assert_int_equal(finish(), (PIECES + N - 2) * (int64_t)(piece + 150));
}

static void test_a_ring_of_144_devices(void **state) {
    enum { N = 144, PIECE = 1 << 20 };

    static char *at_device[N];
    static ds_stream s[N];
    (void)state;
    machine(N);
    for (int i = 0; i < N; i++)
        way(i, (i + 1) % N, 1, add_link(i == 77 ? 0.5 : 1), 0);
    fabric.flags = DS_CPU_DRY;
    start();
    for (int i = 0; i < N; i++) {
        at_device[i] = memory_on(i, PIECE);
        s[i] = stream_on(i);
    }
    for (int round = 0; round + 1 < N; round++) {
        for (int i = 0; i < N; i++)
            ok(ds_copy(at_device[(i + 1) % N], at_device[i], PIECE, s[i]));
        for (int i = 0; i < N; i++)
            ok(ds_stream_wait_stream(s[(i + 1) % N], s[i]));
    }
    /* In each round all wait for the one before them, so the slow link holds up one more at a
       time, itself from the first. */
    assert_int_equal(finish(), (N - 1) * (2 * (int64_t)PIECE + 150));
}

/* ---- what is refused ---- */

static void refuse(const char *what, ds_cpu_desc cpu) {
    cpu.fabric = &fabric;
    ds_result r = ds_init(&(ds_init_desc){ .cpu = &cpu });
    if (r != DS_ERR_INVALID_VALUE || !strstr(ds_error_get_last(), what))
        fail_msg("%s: %s, %s", what, ds_result_get_name(r), ds_error_get_last());
    full_mesh(2);
}

static void test_bad_fabrics_are_refused(void **state) {
    unsigned char peers[4] = { 1, 1, 1, 1 };
    int64_t ns = 7;
    (void)state;
    ok(ds_shutdown());
    full_mesh(2);
    fabric.devices = 0;
    refuse("the fabric has 0 devices", (ds_cpu_desc){ 0 });
    fabric.devices = DS_CPU_MAX_DEVICES + 1;
    refuse("devices", (ds_cpu_desc){ 0 });
    refuse("ds_cpu_desc.devices is 3, but the fabric has 2 devices", (ds_cpu_desc){ .devices = 3 });
    refuse("peer_access", (ds_cpu_desc){ .devices = 2, .peer_access = peers });
    refuse("workers is 2", (ds_cpu_desc){ .workers = 2 });
    refuse("INLINE", (ds_cpu_desc){ .flags = DS_CPU_INLINE });
    refuse("seed", (ds_cpu_desc){ .seed = 3 });
    fabric.route = NULL;
    refuse("routes", (ds_cpu_desc){ 0 });
    fabric.link_bytes_per_s = NULL;
    refuse("link_bytes_per_s is NULL", (ds_cpu_desc){ 0 });
    rates[1] = 0;
    refuse("link 1", (ds_cpu_desc){ 0 });
    rates[1] = 0.0 / 0.0;
    refuse("link 1", (ds_cpu_desc){ 0 });
    fabric.engines = 65;
    refuse("65 copy engines", (ds_cpu_desc){ 0 });
    fabric.engines = -1;
    refuse("-1 copy engines", (ds_cpu_desc){ 0 });
    fabric.engine_ns = -5;
    refuse("engine_ns is -5", (ds_cpu_desc){ 0 });
    fabric.memory_bytes_per_s = -1;
    refuse("memory_bytes_per_s is -1", (ds_cpu_desc){ 0 });
    fabric.flags = 6;
    refuse("flags 0x6", (ds_cpu_desc){ 0 });
    routes[1].latency_ns = -1;
    refuse("from 0 to 1 has a latency", (ds_cpu_desc){ 0 });
    routes[5].hops = 7;
    refuse("from 1 to 2 has 7 of 6 links", (ds_cpu_desc){ 0 });
    routes[5].link = NULL;
    refuse("from 1 to 2", (ds_cpu_desc){ 0 });
    hops[1][0] = 6;
    refuse("link 6 of 6", (ds_cpu_desc){ 0 });
    hops[1][0] = -1;
    refuse("link -1", (ds_cpu_desc){ 0 });
    way(0, 1, 2, 3, 3);
    refuse("link 3 twice", (ds_cpu_desc){ 0 });
    assert_int_equal(ds_cpu_get_clock(&ns), DS_ERR_UNSUPPORTED);
    assert_int_equal(ns, 0);
    assert_int_equal(ds_cpu_get_clock(NULL), DS_ERR_INVALID_VALUE);
}

static int live, left;

static void *scarce_alloc(size_t size, void *user) {
    (void)user;
    if (left-- <= 0)
        return NULL;
    live++;
    return malloc(size);
}

static void scarce_free(void *ptr, void *user) {
    (void)user;
    live--;
    free(ptr);
}

static void test_the_description_is_copied_and_given_back(void **state) {
    (void)state;
    int worked = 0;
    ok(ds_shutdown());
    for (int enough = 0; !worked; enough++) {
        full_mesh(2);
        live = 0;
        left = enough;
        ds_cpu_desc cpu = { .fabric = &fabric };
        ds_init_desc desc = { .cpu = &cpu, .allocator = { scarce_alloc, scarce_free, NULL } };
        ds_stream s = { 0 };
        ds_result r = ds_init(&desc);
        if (r == DS_OK) { /* a second one takes the place of the first */
            left++;
            r = ds_init(&desc);
        }
        memset(routes, 255, sizeof routes);
        memset(rates, 255, sizeof rates);
        memset(hops, 255, sizeof hops);
        if (r == DS_OK)
            r = ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s);
        if (r == DS_OK) {
            left = 1000;
            ok(ds_copy(memory_on(1, 1000), memory_on(0, 1000), 1000, s));
            assert_int_equal(finish(), 1150);
            worked = 1;
        } else if (r != DS_ERR_OUT_OF_MEMORY) {
            fail_msg("%s: %s", ds_result_get_name(r), ds_error_get_last());
        }
        left = 1000;
        ok(ds_shutdown());
        assert_int_equal(live, 0);
    }
}

int main(void) {
#define T(name) cmocka_unit_test_teardown(test_##name, end)
    const struct CMUnitTest tests[] = {
        T(pieces_go_down_a_chain),
        T(values_and_loops_take_the_time_of_what_they_wait_for),
        T(latency_and_engine_time_overlap_copies_of_other_streams),
        T(two_copies_share_a_fast_link_ahead_of_two_slow_ones),
        T(a_device_has_so_many_engines),
        T(the_streams_device_executes_a_copy_of_any_ends),
        T(duplex_is_two_links_and_half_duplex_one),
        T(without_a_direct_route_a_copy_goes_through_the_host),
        T(what_is_ready_first_goes_first),
        T(a_tie_goes_to_the_stream_that_is_older),
        T(sums_fills_and_copies_within_a_device_share_its_memory),
        T(kernels_take_the_time_that_they_say),
        T(after_a_wait_the_clock_is_there_and_what_runs_goes_on),
        T(a_wait_for_a_word_lasts_until_the_write),
        T(each_of_many_waits_lasts_until_the_write),
        T(a_wait_lasts_until_the_copy_or_host_function_that_writes),
        T(a_word_that_the_host_writes_meanwhile_ends_a_wait),
        T(a_query_lets_run_what_can),
        T(a_copy_of_pageable_memory_is_waited_for),
        T(work_that_nobody_waits_for_runs_too),
        T(a_host_function_that_blocks_delays_its_own_stream_only),
        T(threads_may_submit_and_wait_side_by_side),
        T(random_schedules_are_as_the_model_says),
        T(two_runs_have_the_same_times_dry_or_not),
        T(a_graph_takes_the_time_of_what_it_was_captured_from),
        T(a_dry_gigabyte_over_sixteen_devices_costs_nothing),
        T(a_ring_of_144_devices),
        T(bad_fabrics_are_refused),
        T(the_description_is_copied_and_given_back),
    };
    return cmocka_run_group_tests_name("fabric", tests, NULL, NULL);
}
