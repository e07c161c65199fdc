/* How the CPU driver shortens collectives: small ones by the caller, one tensor to many places
   in one go, streams that only wait. */
#include "alloc.h"
#include "devstream_comm.h"

enum { DEVICES = 3, MOST = 5 };

typedef struct setting {
    ds_stream s[MOST];
    ds_comm_options o;
    int64_t shape[1], whole_shape[1];
    ds_tensor in[MOST], out[MOST], whole;
} setting;

static uint64_t inlined(void) {
    ds_cpu_stats stats;
    ok(ds_cpu_get_stats(&stats));
    return stats.inline_operations;
}

/* Five tensors of so many int32 for the inputs and as many for the outputs, each pair on a
   stream of its own; and one of all five. */
static void open_setting(setting *g, int64_t count) {
    begin(PRESET_DEFAULT);
    memset(g, 0, sizeof *g);
    g->shape[0] = count;
    g->whole_shape[0] = MOST * count;
    for (int i = 0; i < MOST; i++) {
        void *p;
        g->s[i] = harness_stream(i, 0);
        for (int k = 0; k < 2; k++) {
            ok(ds_mem_alloc((size_t)count * 4, g->s[i], &p));
            *(k ? &g->out[i] : &g->in[i]) =
                ds_tensor_of(p, harness_device(i), ds_int32(), 1, g->shape);
        }
    }
    void *p;
    ok(ds_mem_alloc((size_t)count * 4 * MOST, g->s[0], &p));
    g->whole = ds_tensor_of(p, harness_device(0), ds_int32(), 1, g->whole_shape);
    g->o = (ds_comm_options){ .streams = g->s, .stream_count = MOST, .stream = g->s[0] };
    for (int i = 0; i < MOST; i++)
        ok(ds_stream_synchronize(g->s[i]));
}

static void close_setting(setting *g) {
    for (int i = 0; i < MOST; i++)
        ok(ds_stream_synchronize(g->s[i]));
    for (int i = 0; i < MOST; i++) {
        ok(ds_mem_free(g->in[i].data));
        ok(ds_mem_free(g->out[i].data));
        if (i == 0)
            ok(ds_mem_free(g->whole.data));
        ok(ds_stream_destroy(g->s[i]));
    }
}

/* Devices of the CPU driver have memory that the test can reach. */
static void set_all(setting *g) {
    for (int i = 0; i < MOST; i++)
        for (int64_t k = 0; k < g->shape[0]; k++) {
            ((int32_t *)g->in[i].data)[k] = (int32_t)(k * 7 + i * 1000003);
            ((int32_t *)g->out[i].data)[k] = -1;
        }
    memset(g->whole.data, 255, (size_t)g->whole_shape[0] * 4);
}

#define LIST(array) \
    ((const ds_tensor *const[]){ &(array)[0], &(array)[1], &(array)[2], &(array)[3], &(array)[4] })

enum { BROADCAST, GATHER, SCATTER, SUM, AVERAGE, ALL_SUM, KINDS };

static void enqueue(setting *g, int kind) {
    switch (kind) {
    case BROADCAST:
        ok(ds_comm_broadcast_into(&g->in[0], LIST(g->out), MOST, &g->o));
        break;
    case GATHER:
        ok(ds_comm_gather_into(LIST(g->in), MOST, 0, &g->whole, &g->o));
        break;
    case SCATTER:
        ok(ds_comm_scatter_into(&g->whole, LIST(g->out), MOST, 0, &g->o));
        break;
    case SUM:
        ok(ds_comm_reduce_into(LIST(g->in), MOST, DS_REDUCE_SUM, &g->out[0], &g->o));
        break;
    case AVERAGE:
        ok(ds_comm_reduce_into(LIST(g->in), MOST, DS_REDUCE_AVERAGE, &g->out[0], &g->o));
        break;
    default:
        ok(ds_comm_all_reduce(LIST(g->in), LIST(g->out), MOST, DS_REDUCE_SUM, &g->o));
        break;
    }
}

static int32_t wanted(int kind, int i, int64_t k) {
    int64_t sum = 0;
    for (int n = 0; n < MOST; n++)
        sum += k * 7 + n * 1000003;
    if (kind == BROADCAST)
        return (int32_t)(k * 7);
    if (kind == SCATTER)
        return -1;
    return i && kind != ALL_SUM ? -1 : (int32_t)(kind == AVERAGE ? sum / MOST : sum);
}

static int done(const setting *g, int kind) {
    if (kind == GATHER) {
        for (int i = 0; i < MOST; i++)
            if (memcmp((const char *)g->whole.data + (size_t)i * (size_t)g->shape[0] * 4,
                       g->in[i].data, (size_t)g->shape[0] * 4))
                return 0;
        return 1;
    }
    for (int i = 0; i < MOST; i++)
        for (int64_t k = 0; k < g->shape[0]; k++)
            if (((const int32_t *)g->out[i].data)[k] != wanted(kind, i, k))
                return 0;
    return 1;
}

static void test_a_small_collective_on_idle_streams_returns_when_done(void **state) {
    (void)state;
    not_checked("all work is enqueued");
    setting g;
    open_setting(&g, 1000);
    for (int kind = 0; kind < KINDS; kind++) {
        set_all(&g);
        uint64_t before = inlined();
        enqueue(&g, kind);
        assert_int_equal(inlined(), before + 1);
        assert_true(done(&g, kind));
        for (int i = 0; i < MOST; i++)
            assert_int_equal(ds_stream_query(g.s[i]), DS_OK);
    }
    close_setting(&g);
}

static void test_a_small_collective_waits_for_work_of_all_its_streams(void **state) {
    (void)state;
    setting g;
    open_setting(&g, 1000);
    for (int kind = 0; kind < KINDS; kind++)
        for (int busy = 0; busy < MOST; busy += 2) {
            gate h = { 0 }, late = { 0 };
            set_all(&g);
            if (kind == SCATTER)
                memset(g.out[0].data, 0, 4000);
            gate_close(g.s[busy], &h);
            enqueue(&g, kind);
            gate_close(g.s[3], &late); /* every stream goes on when all of it is done */
            gate_expect_unentered(&late);
            enqueue(&g, BROADCAST); /* while that one is pending: it comes after it */
            /* it takes part in each of them */
            if (busy == 0)
                assert_false(done(&g, kind));
            gate_open(&h);
            gate_wait_entered(&late);
            gate_open(&late);
            for (int i = 0; i < MOST; i++)
                ok(ds_stream_synchronize(g.s[i]));
            assert_true(done(&g, BROADCAST));
            enqueue(&g, kind);
            for (int i = 0; i < MOST; i++)
                ok(ds_stream_synchronize(g.s[i]));
            if (kind == GATHER)
                assert_true(done(&g, kind));
        }
    close_setting(&g);
}

static void test_what_is_large_or_many_is_not_done_by_the_caller(void **state) {
    (void)state;
    setting g;
    open_setting(&g, 16385); /* more than 64 KiB */
    for (int kind = 0; kind < KINDS; kind++) {
        /* in slices */
        if (kind == ALL_SUM)
            continue;
        set_all(&g);
        uint64_t before = inlined();
        enqueue(&g, kind);
        assert_int_equal(inlined(), before);
        for (int i = 0; i < MOST; i++)
            ok(ds_stream_synchronize(g.s[i]));
        assert_true(done(&g, kind));
    }
    close_setting(&g);
}

static void test_a_large_broadcast_reads_its_tensor_once_it_is_there(void **state) {
    (void)state;
    static const int64_t counts[] = { 4097, 100003, 300000, ((int64_t)9 << 20) + 5 };
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int busy = 0; busy < MOST; busy += 4) {
            setting g;
            gate h = { 0 }, late = { 0 };
            open_setting(&g, counts[c]);
            set_all(&g);
            gate_close(g.s[busy], &h);
            if (!busy)
                ok(ds_fill(g.in[0].data, 77, 4, 1, g.s[0]));
            enqueue(&g, BROADCAST);
            /* which only waits for the broadcast, on whatever stream that runs */
            gate_close(g.s[3], &late);
            gate_expect_unentered(&late);
            for (int i = 0; i < MOST; i++)
                assert_int_equal(((int32_t *)g.out[i].data)[1], -1);
            gate_open(&h);
            gate_wait_entered(&late);
            assert_int_equal(((int32_t *)g.out[2].data)[0], busy ? 0 : 77);
            for (int i = 0; i < MOST; i++)
                assert_memory_equal((char *)g.out[i].data + 4, (char *)g.in[0].data + 4,
                                    (size_t)counts[c] * 4 - 4);
            gate_open(&late);
            close_setting(&g);
        }
}

static void test_streams_that_only_wait_go_on_in_their_turn(void **state) {
    (void)state;

    enum { CHAIN = 12 };

    ds_stream s[CHAIN];
    uint64_t *h = word(0), want = 0;
    for (int i = 0; i < CHAIN; i++)
        s[i] = harness_stream(i, 0);
    harness_warm_up();
    for (int round = 0; round < 20; round++) {
        gate g = { 0 };
        gate_close(s[0], &g);
        for (int i = 0; i < CHAIN; i++) {
            /* nothing else is on it */
            if (i)
                ok(ds_stream_wait_stream(s[i], s[i - 1]));
            fold(s[i], h, (uint64_t)(i + round));
            want = fold_host(want, (uint64_t)(i + round));
        }
        ok(ds_stream_wait_stream(s[0], s[CHAIN - 1]));
        if (round % 2)
            gate_wait_entered(&g);
        gate_open(&g);
        ok(ds_stream_synchronize(s[round % 3 ? 0 : CHAIN - 1]));
        ok(ds_stream_synchronize(s[0]));
        assert_int_equal(*h, want);
    }
    for (int i = 0; i < CHAIN; i++)
        ok(ds_stream_destroy(s[i]));
}

static void test_the_seeded_scheduler_does_nothing_at_once(void **state) {
    (void)state;
    harness_shutdown();
    for (uint64_t seed = 1; seed < 6; seed++) {
        ok(ds_init(&(ds_init_desc){
            .cpu = &(ds_cpu_desc){ .devices = DEVICES, .workers = 2, .seed = seed } }));
        setting g;
        open_setting(&g, 500);
        for (int kind = 0; kind < KINDS; kind++) {
            set_all(&g);
            enqueue(&g, kind);
            for (int i = 0; i < MOST; i++)
                ok(ds_stream_synchronize(g.s[i]));
            assert_true(done(&g, kind));
        }
        assert_int_equal(inlined(), 0);
        close_setting(&g);
        ok(ds_shutdown());
        harness_forget();
    }
}

const struct CMUnitTest tests_comm_once[] = {
    DS_TEST_CPU(test_a_small_collective_on_idle_streams_returns_when_done, "comm: at once"),
    DS_TEST_CPU(test_a_small_collective_waits_for_work_of_all_its_streams, "comm: at once"),
    DS_TEST_CPU(test_what_is_large_or_many_is_not_done_by_the_caller, "comm: at once"),
    DS_TEST_CPU(test_a_large_broadcast_reads_its_tensor_once_it_is_there, "comm: at once"),
    DS_TEST_CPU(test_streams_that_only_wait_go_on_in_their_turn, "comm: at once"),
    DS_TEST_CPU(test_the_seeded_scheduler_does_nothing_at_once, "comm: at once"),
};
const size_t tests_comm_once_count = sizeof tests_comm_once / sizeof *tests_comm_once;
