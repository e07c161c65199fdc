/* Collectives whose driver or whose memory fails: a fault at every call of the driver, no memory
   at every allocation, a device that fails. */
#include "comm.h"

enum { CREW = 3, COLUMNS = 8400 /* so that no part is so small that the caller does it at once */ };

enum { EACH = HARNESS_SLOW ? 3 : 1 }; /* with sanitizers a fault at every third call */

/* All that the collectives below need, on two devices, one of which stands in the list twice. */
typedef struct cast {
    ds_device to[CREW + 1];
    ds_stream s[CREW];
    ds_comm_options o, by_plan;
    ds_topology *t;
    ds_tensor *base[CREW], *in[CREW], *out[CREW], *part[CREW], *wide[CREW]; /* in: not contiguous */
    ds_tensor *made[8];
} cast;

static ds_result open_cast(cast *c) {
    ds_result r = DS_OK;
    memset(c, 0, sizeof *c);
    for (int i = 0; i <= CREW; i++)
        c->to[i] = i < CREW ? harness_device(i % 2) : host();
    for (int i = 0; i < CREW && r == DS_OK; i++) {
        r = ds_stream_create(&(ds_stream_desc){ .device = c->to[i] }, &c->s[i]);
        if (r == DS_OK)
            r = ds_tensor_alloc(ds_float32(), 2, SHAPE(COLUMNS, 6), c->s[i], &c->base[i]);
        if (r == DS_OK)
            r = ds_tensor_transpose(c->base[i], 0, 1, &c->in[i]);
        if (r == DS_OK)
            r = ds_tensor_alloc(ds_float32(), 2, SHAPE(6, COLUMNS), c->s[i], &c->out[i]);
        if (r == DS_OK)
            r = ds_tensor_alloc(ds_float32(), 2, SHAPE(2, COLUMNS), c->s[i], &c->part[i]);
        if (r == DS_OK)
            r = ds_tensor_alloc(ds_float32(), 2, SHAPE(18, COLUMNS), c->s[i], &c->wide[i]);
        float x = (float)(i + 1);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        if (r == DS_OK)
            r = ds_fill(c->base[i]->data, bits, 4, 6 * COLUMNS, c->s[i]);
        bits += 1; /* one number differs from all others */
        if (r == DS_OK)
            r = ds_fill((float *)c->base[i]->data + 7 + i, bits, 4, 1, c->s[i]);
    }
    if (r == DS_OK)
        r = ds_topology_create_of_devices(c->to, CREW, 0, &c->t);
    c->o = c->by_plan =
        (ds_comm_options){ .streams = c->s, .stream_count = CREW, .stream = c->s[0] };
    c->by_plan.topology = c->t;
    return r;
}

/* 1: a tensor or stream could not be given back. */
static int close_cast(cast *c) {
    int failed = 0;
    ds_topology_destroy(c->t);
    for (int i = 0; i < CREW; i++) {
        ds_tensor *all[] = { c->base[i], c->in[i], c->out[i], c->part[i], c->wide[i] };
        for (int k = 0; k < 5; k++)
            failed |= ds_tensor_free(all[k]) < 0;
    }
    for (int i = 0; i < 8; i++)
        failed |= ds_tensor_free(c->made[i]) < 0;
    for (int i = 0; i < CREW; i++)
        failed |= c->s[i].id && ds_stream_destroy(c->s[i]) < 0;
    return failed;
}

#define PLAY(name, call)                    \
    static ds_result play_##name(cast *c) { \
        return call;                        \
    }
PLAY(broadcast, ds_comm_broadcast(c->in[0], c->to, CREW + 1, &c->o, c->made))
PLAY(broadcast_into, ds_comm_broadcast_into(c->in[0], INPUTS(c->out), CREW, &c->o))
PLAY(broadcast_coalesced,
     ds_comm_broadcast_coalesced(INPUTS((ds_tensor *[]){ c->in[0], c->base[2] }), 2, c->to, CREW, 0,
                                 &c->o, c->made))
PLAY(scatter, ds_comm_scatter(c->in[0], c->to, CREW, NULL, 0, &c->o, c->made, NULL))
PLAY(scatter_into, ds_comm_scatter_into(c->in[0], INPUTS(c->part), CREW, 0, &c->o))
PLAY(gather,
     ds_comm_gather(INPUTS(c->in), CREW, 0, c->to[1],
                    &(ds_comm_options){ .streams = c->s, .stream_count = CREW, .stream = c->s[1] },
                    c->made))
PLAY(gather_into, ds_comm_gather_into(INPUTS(c->in), CREW, 0, c->wide[0], &c->o))
PLAY(reduce, ds_comm_reduce(INPUTS(c->in), CREW, DS_REDUCE_MAX, c->to[0], &c->o, c->made))
PLAY(reduce_into, ds_comm_reduce_into(INPUTS(c->in), CREW, DS_REDUCE_AVERAGE, c->out[0], &c->o))
PLAY(reduce_add, ds_comm_reduce_add(INPUTS(c->in), CREW, c->to[0], &c->o, c->made))
PLAY(reduce_add_coalesced,
     ds_comm_reduce_add_coalesced(INPUTS((ds_tensor *[]){ c->in[0], c->base[0], c->in[1],
                                                          c->base[1], c->in[2], c->base[2] }),
                                  CREW, 2, c->to[0], 0, &c->o, c->made))
PLAY(all_reduce, ds_comm_all_reduce(INPUTS(c->in), INPUTS(c->out), CREW, DS_REDUCE_SUM, &c->o))
PLAY(all_gather, ds_comm_all_gather(INPUTS(c->in), INPUTS(c->wide), CREW, &c->o))
PLAY(reduce_scatter,
     ds_comm_reduce_scatter(INPUTS(c->in), INPUTS(c->part), CREW, DS_REDUCE_SUM, &c->o))
PLAY(all_to_all, ds_comm_all_to_all(INPUTS(c->in), INPUTS(c->out), CREW, &c->o))
PLAY(barrier, ds_comm_barrier(c->s, CREW))
PLAY(planned_broadcast, ds_comm_broadcast_into(c->in[0], INPUTS(c->out), CREW, &c->by_plan))
PLAY(planned_reduce_add, ds_comm_reduce_add(INPUTS(c->in), CREW, c->to[0], &c->by_plan, c->made))
PLAY(planned_all_to_all, ds_comm_all_to_all(INPUTS(c->in), INPUTS(c->out), CREW, &c->by_plan))
/* clang-format off */
#define PLAYS(X) \
    X(broadcast) X(broadcast_into) X(broadcast_coalesced) X(scatter) X(scatter_into) X(gather) \
    X(gather_into) X(reduce) X(reduce_into) X(reduce_add) X(reduce_add_coalesced) X(all_reduce) \
    X(all_gather) X(reduce_scatter) X(all_to_all) X(barrier) X(planned_broadcast) \
    X(planned_reduce_add) X(planned_all_to_all)
/* clang-format on */
#define ENTRY(name) { #name, play_##name },

static const struct {
    const char *name;
    ds_result (*run)(cast *);
} plays[] = { PLAYS(ENTRY) };

enum { PLAY_COUNT = sizeof plays / sizeof *plays };

/* What the outputs hold: sums of words by their position. Their contents count only where the
   collective writes. */
static uint64_t result_of(cast *c) {
    uint64_t h = 7;
    ds_tensor *all[CREW * 3 + 8];
    for (int i = 0; i < CREW; i++) {
        all[3 * i] = c->out[i];
        all[3 * i + 1] = c->part[i];
        all[3 * i + 2] = c->wide[i];
    }
    memcpy(all + 3 * CREW, c->made, sizeof c->made);
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        if (!all[k])
            continue;
        uint32_t *p = (uint32_t *)(void *)contents(all[k]); /* all are of float32 */
        for (size_t i = 0; i < ds_tensor_get_size(all[k]) / 4; i++)
            h = fold_host(h, p[i]);
        free(p);
    }
    return h;
}

static void blank(cast *c) {
    for (int i = 0; i < CREW; i++) {
        looking(ds_fill(c->out[i]->data, 0, 4, 6 * COLUMNS, c->s[i]));
        looking(ds_fill(c->part[i]->data, 0, 4, 2 * COLUMNS, c->s[i]));
        looking(ds_fill(c->wide[i]->data, 0, 4, 18 * COLUMNS, c->s[i]));
    }
    wait_all();
}

static void no_results(cast *c, int play) {
    for (int i = 0; i < 8; i++)
        if (c->made[i])
            fail_msg("%s failed and left result %d", plays[play].name, i);
    if (!strchr(ds_error_get_last(), ' '))
        fail_msg("%s failed without a sentence", plays[play].name);
}

static void free_results(cast *c) {
    for (int i = 0; i < 8; i++) {
        ok(ds_tensor_free(c->made[i]));
        c->made[i] = NULL;
    }
}

/* What the collective makes when nothing fails. */
static uint64_t good_result(int play) {
    cast c;
    ok(open_cast(&c));
    blank(&c);
    ok(plays[play].run(&c));
    uint64_t want = result_of(&c);
    assert_int_equal(close_cast(&c), 0);
    return want;
}

/* Once more, when there are no faults any more. */
static void works_again(cast *c, int play, uint64_t want, int n) {
    blank(c);
    ds_result r = plays[play].run(c);
    if (r != DS_OK)
        fail_msg("%s after fault %d: %s: %s", plays[play].name, n, ds_result_get_name(r),
                 ds_error_get_last());
    if (result_of(c) != want)
        fail_msg("%s after fault %d has another result", plays[play].name, n);
    free_results(c);
}

static void devices_answer(int play, int n, int *reported) {
    /* at the second time there is no fault left */
    for (int i = 0; i < harness_device_count() && i < 2; i++) {
        ds_result r = ds_device_synchronize(harness_device(i));
        *reported |= r < 0;
        if (r < 0)
            r = ds_device_synchronize(harness_device(i));
        if (r < 0)
            fail_msg("%s, fault %d: device %d stays %s", plays[play].name, n, i,
                     ds_result_get_name(r));
    }
}

/* 1: something failed; *before: it was before the collective. */
static int attempt(int play, int n, uint64_t want, int *before) {
    cast c;
    ds_result r = open_cast(&c);
    *before = r < 0;
    int failed = r < 0, lost;
    if (r == DS_OK) {
        faulty = 1;
        blank(&c);
        r = plays[play].run(&c);
        failed = r < 0;
        if (getenv("DS_RANDOM_VERBOSE"))
            print_message("%s, fault %d: %s: %s\n", plays[play].name, n, ds_result_get_name(r),
                          r < 0 ? ds_error_get_last() : "");
        if (failed)
            no_results(&c, play);
        else if (result_of(&c) != want)
            fail_msg("%s, fault %d: a failure without a word", plays[play].name, n);
        devices_answer(play, n, &failed);
        faulty = 0;
        if (failed) {
            free_results(&c);
            works_again(&c, play, want, n);
        }
    }
    lost = close_cast(&c);
    if (!lost)
        for (int i = 0; i < harness_device_count() && i < 2; i++)
            if (ds_mem_get_allocated(harness_device(i)))
                fail_msg("%s, fault %d: %zu bytes are left", plays[play].name, n,
                         ds_mem_get_allocated(harness_device(i)));
    return failed || lost;
}

static void test_a_fault_at_every_driver_call_of_every_collective(void **state) {
    (void)state;
    int first = 1;
    for (int play = 0; play < PLAY_COUNT; play++) {
        uint64_t want = good_result(play);
        harness_shutdown();
        int calm = 0, n = first - 1, hits = 0, before, begun = 0;
        /* a fault that is mended, or not there yet, says nothing */
        while (calm < (hits ? 12 : 30) && (n += EACH) < 1000) {
            char fault[40];
            snprintf(fault, sizeof fault, "*:%d", n);
            ok(ds_init(&(ds_init_desc){ .layers = "fault",
                                        .fault = fault,
                                        .allocator = { count_alloc, count_free, NULL } }));
            int hit = attempt(play, n, want, &before);
            calm = hit ? 0 : calm + 1;
            hits += hit && !before;
            if (hit && !before && !begun)
                begun = n;
            DS_IGNORE(ds_shutdown()); /* which may come to the fault */
            harness_forget();
            if (kept_bytes)
                fail_msg("%s, fault %d: %zu bytes of bookkeeping are left", plays[play].name, n,
                         (size_t)kept_bytes);
        }
        if (n >= 1000)
            fail_msg("%s: fault %d is still met", plays[play].name, n);
        if (hits * EACH < 2)
            fail_msg("%s: only %d calls of the driver could fail", plays[play].name, hits);
        /* what comes before is the same for all */
        if (begun > 8)
            first = begun - 8;
    }
}

static void test_no_memory_at_every_allocation_of_every_collective(void **state) {
    (void)state;
    int refusals = 0; /* some collectives need none */
    for (int play = 0; play < PLAY_COUNT; play++) {
        harness_restart(&(ds_init_desc){ .allocator = { count_alloc, count_free, NULL } });
        uint64_t want = good_result(play);
        cast c;
        ok(open_cast(&c));
        size_t used[2] = { ds_mem_get_allocated(harness_device(0)),
                           ds_mem_get_allocated(harness_device(1)) };
        int done = 0, unused = 0;
        for (int n = 0; n < 200 && !done; n += EACH) {
            wait_all();
            allowance = n;
            ds_result r = plays[play].run(&c);
            done = allowance > 0;
            allowance = -1;
            if (r != DS_OK && r != DS_ERR_OUT_OF_MEMORY)
                fail_msg("%s, allocation %d: %s: %s", plays[play].name, n, ds_result_get_name(r),
                         ds_error_get_last());
            if (r < 0) {
                refusals++;
                no_results(&c, play);
            }
            devices_answer(play, n, &unused);
            free_results(&c);
            for (int i = 0; i < 2; i++)
                if (ds_mem_get_allocated(harness_device(i)) != used[i])
                    fail_msg("%s, allocation %d: device %d has lost memory", plays[play].name, n,
                             i);
            works_again(&c, play, want, n);
        }
        assert_true(done);
        assert_int_equal(unused, 0);
        assert_int_equal(close_cast(&c), 0);
        harness_shutdown();
        assert_int_equal(kept_bytes, 0);
    }
    assert_true(refusals > PLAY_COUNT / EACH);
    harness_restart(NULL);
}

/* ---- a device that fails ---- */

static int explode(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 7;
}

/* Whichever device it is, all streams report it, and nobody waits for ever. */
static void test_a_part_that_fails_is_reported_by_every_stream(void **state) {
    (void)state;
    two_devices();
    for (int play = 0; play < PLAY_COUNT; play++)
        for (int bad = 0; bad < CREW; bad++) {
            cast c;
            gate g = { 0 };
            ok(open_cast(&c));
            wait_all();
            ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
            gate_close(c.s[bad], &g);
            ok(ds_kernel_launch(k, 1, NULL, 0, c.s[bad]));
            ok(plays[play].run(&c));
            gate_open(&g);
            for (int i = 0; i < CREW; i++) {
                ds_result r = ds_stream_synchronize(c.s[i]);
                if (r != DS_ERR_FAILED)
                    fail_msg("%s, stream %d fails: stream %d is %s", plays[play].name, bad, i,
                             ds_result_get_name(r));
            }
            DS_IGNORE(close_cast(&c));
            ok(ds_kernel_destroy(k));
            harness_recover(0);
            harness_recover(1);
        }
}

/* On both drivers: CUDA may let streams of other devices go on without a word, but the one that
   failed says so, and all come to an end. */
static void test_after_a_failure_no_stream_waits_for_ever(void **state) {
    (void)state;
    cast c;
    ok(open_cast(&c));
    blank(&c);
    ok(play_all_reduce(&c)); /* kernels are loaded */
    wait_all();
    ds_kernel k = harness_kernel("explode", explode, 0, NULL, 0, 0);
    ok(ds_kernel_launch(k, 1, NULL, 0, c.s[1]));
    ds_result r = play_all_reduce(&c); /* may see it already */
    if (r != DS_OK && r != DS_ERR_FAILED)
        fail_msg("%s: %s", ds_result_get_name(r), ds_error_get_last());
    for (int i = 0; i < CREW; i++) {
        r = ds_stream_synchronize(c.s[i]);
        if (r != DS_ERR_FAILED && (i == 1 || r != DS_OK))
            fail_msg("stream %d: %s: %s", i, ds_result_get_name(r), ds_error_get_last());
    }
    r = play_broadcast(&c); /* which has no use for that device any more */
    if (r < 0)
        no_results(&c, 0);
    for (int i = 0; i < CREW; i++)
        DS_IGNORE(ds_stream_synchronize(c.s[i]));
    DS_IGNORE(close_cast(&c));
    ended(ds_kernel_destroy(k));
    harness_recover(1);
}

/* ---- what a failure may not do to memory ---- */

static void doze(void *user) {
    (void)user;
    harness_sleep_ms(60);
}

/* Two inputs, and a place with gaps in pinned memory, so that there is memory of the way that is
   freed after it. A fault at every event that could be made: pinned memory that is freed at once
   is given out when the collective has written there, not before. */
static void test_pinned_memory_is_kept_when_there_is_no_event_for_it(void **state) {
    (void)state;
    for (int n = 1; n < 12; n++) {
        char fault[40];
        snprintf(fault, sizeof fault, "event_create:%d", n);
        harness_restart(&(ds_init_desc){ .layers = "fault", .fault = fault });
        faulty = 1;
        ds_stream s[2];
        ds_tensor *in[2] = { NULL, NULL }, *wide = NULL, *out = NULL, *again = NULL;
        ds_result r = DS_OK;
        for (int i = 0; i < 2; i++) {
            s[i] = harness_stream(i, 0);
            looking(ds_tensor_alloc(ds_float32(), 2, SHAPE(600, 500), s[i], &in[i]));
            looking(ds_fill(in[i]->data, 0x3f800000, 4, 300000, s[i]));
            looking(ds_stream_synchronize(s[i]));
        }
        looking(ds_tensor_alloc_pinned(ds_float32(), 2, SHAPE(600, 700), &wide));
        looking(ds_tensor_narrow(wide, 1, 0, 500, &out));
        looking(ds_stream_launch_host_func(s[0], doze, NULL, NULL));
        r = ds_comm_reduce_into(
            INPUTS(in), 2, DS_REDUCE_SUM, out,
            &(ds_comm_options){ .streams = s, .stream_count = 2, .stream = s[0] });
        if (r < 0 && r != DS_ERR_DRIVER)
            fail_msg("event %d: %s", n, ds_error_get_last());
        looking(ds_tensor_free(out));
        looking(ds_tensor_free(wide));
        looking(ds_tensor_alloc_pinned(ds_float32(), 2, SHAPE(600, 700), &again));
        float *p = again->data;
        memset(p, 0, 600 * 700 * 4);
        wait_all();
        for (int k = 0; k < 600 * 700; k++)
            if (p[k] > 0)
                fail_msg("no event %d: pinned memory was given away before it was written", n);
        looking(ds_tensor_free(again));
        for (int i = 0; i < 2; i++) {
            looking(ds_tensor_free(in[i]));
            looking(ds_stream_destroy(s[i]));
        }
        wait_all();
        faulty = 0;
    }
    harness_restart(NULL);
}

/* A fault at every call of the driver: the result of a gather that failed is given out when no
   stream writes there any more. */
static void test_a_result_that_is_dropped_is_not_written_later(void **state) {
    (void)state;

    enum { NUMBERS = 100000 };

    int calm = 0;
    harness_shutdown();
    for (int n = 1; n < 400 && calm < 20; n++) {
        char fault[40];
        snprintf(fault, sizeof fault, "*:%d", n);
        ok(ds_init(&(ds_init_desc){ .layers = "fault", .fault = fault }));
        faulty = 1;
        ds_stream s[CREW] = { { 0 }, { 0 }, { 0 } };
        ds_tensor *in[CREW] = { NULL, NULL, NULL }, *out = NULL, *again = NULL;
        for (int i = 0; i < CREW; i++) {
            looking(ds_stream_create(&(ds_stream_desc){ .device = harness_device(i % 2) }, &s[i]));
            looking(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), s[i], &in[i]));
            looking(ds_fill(in[i]->data, 0x3f800000, 4, NUMBERS, s[i]));
            looking(ds_stream_synchronize(s[i]));
        }
        looking(ds_stream_launch_host_func(s[1], doze, NULL, NULL));
        ds_result r = ds_comm_gather(
            INPUTS(in), CREW, 0, harness_device(0),
            &(ds_comm_options){ .streams = s, .stream_count = CREW, .stream = s[0] }, &out);
        calm = r < 0 ? 0 : calm + 1;
        looking(ds_tensor_free(out));
        looking(ds_tensor_alloc(ds_float32(), 1, SHAPE(CREW * NUMBERS), s[0], &again));
        looking(ds_fill(again->data, 0, 4, CREW * NUMBERS, s[0]));
        wait_all();
        float *p = (float *)(void *)contents(again);
        for (int k = 0; k < CREW * NUMBERS; k++)
            if (p[k] > 0)
                fail_msg("fault %d: the memory of a result that was dropped is written", n);
        free(p);
        looking(ds_tensor_free(again));
        for (int i = 0; i < CREW; i++) {
            looking(ds_tensor_free(in[i]));
            looking(ds_stream_destroy(s[i]));
        }
        wait_all();
        faulty = 0;
        DS_IGNORE(ds_shutdown()); /* which may come to the fault */
        harness_forget();
    }
    assert_int_equal(calm, 20);
    harness_restart(NULL);
}

/* A fault at every call of the driver: the sentence says whether something was written. */
static void test_a_failure_halfway_is_told_as_one(void **state) {
    (void)state;

    enum { NUMBERS = 30000 };

    int calm = 0, halfway = 0;
    harness_shutdown();
    for (int n = 1; n < 400 && calm < 20; n++) {
        char fault[40], text[400];
        snprintf(fault, sizeof fault, "*:%d", n);
        ok(ds_init(&(ds_init_desc){ .layers = "fault", .fault = fault }));
        faulty = 1;
        ds_stream s[2] = { { 0 }, { 0 } };
        ds_tensor *in[2] = { NULL, NULL }, *out[2] = { NULL, NULL };
        for (int i = 0; i < 2; i++) {
            looking(ds_stream_create(&(ds_stream_desc){ .device = harness_device(i) }, &s[i]));
            looking(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), s[i], &in[i]));
            looking(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), s[i], &out[i]));
            looking(ds_fill(in[i]->data, 0x3f800000, 4, NUMBERS, s[i]));
            looking(ds_fill(out[i]->data, 0, 4, NUMBERS, s[i]));
            looking(ds_stream_synchronize(s[i]));
        }
        ds_result r = ds_comm_all_reduce(
            INPUTS(in), INPUTS(out), 2, DS_REDUCE_SUM,
            &(ds_comm_options){ .streams = s, .stream_count = 2, .stream = s[0] });
        snprintf(text, sizeof text, "%s", ds_error_get_last());
        if (r < 0 && !strstr(text, "test_comm_faults.c:"))
            fail_msg("fault %d: the sentence does not name the line of the call: %s", n, text);
        calm = r < 0 ? 0 : calm + 1;
        int wrote = 0;
        wait_all();
        for (int i = 0; i < 2; i++) {
            float *p = (float *)(void *)contents(out[i]);
            for (int k = 0; k < NUMBERS; k++)
                wrote += p[k] > 0;
            free(p);
        }
        if (r == DS_OK && wrote < 2 * NUMBERS)
            fail_msg("fault %d: a failure without a word", n);
        if (r < 0 && wrote && !strstr(text, "(part of the collective was enqueued)"))
            fail_msg("fault %d: something was written, and that is not said: %s", n, text);
        halfway += r < 0 && wrote;
        for (int i = 0; i < 2; i++) {
            looking(ds_tensor_free(in[i]));
            looking(ds_tensor_free(out[i]));
            looking(ds_stream_destroy(s[i]));
        }
        wait_all();
        faulty = 0;
        DS_IGNORE(ds_shutdown()); /* which may come to the fault */
        harness_forget();
    }
    assert_int_equal(calm, 20);
    assert_true(halfway);
    harness_restart(NULL);
}

const struct CMUnitTest tests_comm_faults[] = {
    DS_TEST(test_a_fault_at_every_driver_call_of_every_collective, "comm: faults"),
    DS_TEST(test_no_memory_at_every_allocation_of_every_collective, "comm: faults"),
    DS_TEST_CPU(test_a_part_that_fails_is_reported_by_every_stream, "comm: failure"),
    DS_TEST_ALONE(test_after_a_failure_no_stream_waits_for_ever, "comm: failure"),
    DS_TEST(test_pinned_memory_is_kept_when_there_is_no_event_for_it, "comm: faults"),
    DS_TEST(test_a_result_that_is_dropped_is_not_written_later, "comm: faults"),
    DS_TEST(test_a_failure_halfway_is_told_as_one, "comm: faults"),
};
const size_t tests_comm_faults_count = sizeof tests_comm_faults / sizeof *tests_comm_faults;
