/* Collectives that follow plans: whatever way data takes, every byte is what the direct way
   makes of it. */
#include "comm.h"

enum { RANKS = 40, ROWS = 3, ROW = 37 };

static const char *const algorithms[] = { NULL,     "direct",  "binomial", "chain",
                                          "spread", "islands", "trees",    "staged" };

enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

/* One collective over so many ranks, with all tensors that any of them needs. */
typedef struct crew {
    int p;
    ds_device at[RANKS];
    ds_stream s[RANKS], others[RANKS];
    /* p * ROWS rows and ROWS of them; the same to be written */
    ds_tensor *large[RANKS], *small[RANKS], *out[RANKS], *piece[RANKS];
    ds_comm_options o;
    ds_collective what;
    ds_reduce_op op;
    int root;
} crew;

static void make_wide_crew(crew *c, int p, const ds_device *at, ds_dtype dtype, int row) {
    memset(c, 0, sizeof *c);
    c->p = p;
    for (int i = 0; i < p; i++) {
        c->at[i] = at[i];
        ok(ds_stream_create(&(ds_stream_desc){ .device = at[i] }, &c->s[i]));
        c->large[i] = painted(at[i], dtype, 2, SHAPE(p * ROWS, row), (uint32_t)i);
        c->small[i] = painted(at[i], dtype, 2, SHAPE(ROWS, row), (uint32_t)i + 20);
        c->out[i] = on(at[i], dtype, 2, SHAPE(p * ROWS, row));
        c->piece[i] = on(at[i], dtype, 2, SHAPE(ROWS, row));
    }
    wait_all();
}

static void make_crew(crew *c, int p, const ds_device *at, ds_dtype dtype) {
    make_wide_crew(c, p, at, dtype, ROW);
}

static void end_crew(crew *c) {
    /* The tensors were made on other streams than those that use them. */
    for (int i = 0; i < c->p; i++)
        ok(ds_stream_synchronize(c->s[i]));
    drop(c->large, (size_t)c->p);
    drop(c->small, (size_t)c->p);
    drop(c->out, (size_t)c->p);
    drop(c->piece, (size_t)c->p);
    for (int i = 0; i < c->p; i++)
        ok(ds_stream_destroy(c->s[i]));
}

static ds_tensor **results(crew *c) {
    return c->what == DS_SCATTER || c->what == DS_REDUCE_SCATTER ? c->piece : c->out;
}

static int is_result(const crew *c, int rank) {
    return c->what == DS_BROADCAST
               ? rank != c->root
               : (c->what != DS_GATHER && c->what != DS_REDUCE) || rank == c->root;
}

static size_t whole(const crew *c) {
    return ds_tensor_get_size(c->large[0]);
}

static ds_result perform(crew *c) {
    const ds_tensor *const *large = INPUTS(c->large), *const *small = INPUTS(c->small),
                           *const *out = INPUTS(c->out), *const *piece = INPUTS(c->piece);
    const ds_tensor *others[RANKS];
    size_t p = (size_t)c->p, root = (size_t)c->root, n = 0;
    c->o.stream = c->s[root];
    c->o.streams = c->s;
    c->o.stream_count = p;
    switch (c->what) {
    case DS_BROADCAST:
        for (size_t i = 0; i < p; i++) { /* the list lacks the root */
            if (i == root)
                continue;
            c->others[n] = c->s[i];
            others[n++] = out[i];
        }
        c->o.streams = c->others;
        c->o.stream_count = n;
        return ds_comm_broadcast_into(large[root], others, n, &c->o);
    case DS_SCATTER:
        return ds_comm_scatter_into(large[root], piece, p, 0, &c->o);
    case DS_GATHER:
        return ds_comm_gather_into(small, p, 0, out[root], &c->o);
    case DS_REDUCE:
        return ds_comm_reduce_into(large, p, c->op, out[root], &c->o);
    case DS_ALL_REDUCE:
        return ds_comm_all_reduce(large, out, p, c->op, &c->o);
    case DS_ALL_GATHER:
        return ds_comm_all_gather(small, out, p, &c->o);
    case DS_REDUCE_SCATTER:
        return ds_comm_reduce_scatter(large, piece, p, c->op, &c->o);
    default:
        return ds_comm_all_to_all(large, out, p, &c->o);
    }
}

/* The results' bytes, which are wiped out first. */
static unsigned char *outcome(crew *c, const char *how) {
    size_t n = ds_tensor_get_size(results(c)[0]);
    unsigned char *all = calloc((size_t)c->p, n);
    for (int i = 0; i < c->p; i++)
        ok(ds_fill(results(c)[i]->data, 0xEE, 1, n, c->s[i]));
    for (int i = 0; i < c->p; i++)
        ok(ds_stream_synchronize(c->s[i]));
    ds_result r = perform(c);
    if (r != DS_OK)
        fail_msg("%s, %s: %s", ds_collective_get_name(c->what), how, ds_error_get_last());
    for (int i = 0; i < c->p; i++) {
        unsigned char *one = contents(results(c)[i]);
        memcpy(all + (size_t)i * n, one, is_result(c, i) ? n : 0);
        free(one);
    }
    return all;
}

static ds_plan_order order_of(ds_dtype t, ds_reduce_op op) {
    return op == DS_REDUCE_AVERAGE                          ? DS_ORDER_AT_ONCE
           : op == DS_REDUCE_MAX || t.code != DS_CODE_FLOAT ? DS_ORDER_ANY
           : t.bits == 16                                   ? DS_ORDER_AT_ONCE
                                                            : DS_ORDER_LIST;
}

/* All collectives by all algorithms on a machine. How many plans were followed. */
static int try_machine(const ds_topology *t, const ds_device *at, const char *name) {
    static const struct {
        ds_dtype type;
        ds_reduce_op op;
    } kinds[] = {
        { { DS_CODE_FLOAT, 32, 1 }, DS_REDUCE_SUM },
        { { DS_CODE_FLOAT, 16, 1 }, DS_REDUCE_SUM },
        { { DS_CODE_INT, 16, 1 }, DS_REDUCE_SUM },
        { { DS_CODE_FLOAT, 64, 1 }, DS_REDUCE_AVERAGE },
        { { DS_CODE_BFLOAT, 16, 1 }, DS_REDUCE_MAX },
    };

    int followed = 0;
    char how[120];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        crew c;
        make_crew(&c, ds_topology_get_size(t), at, kinds[k].type);
        c.op = kinds[k].op;
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
            int sums = what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
            /* bytes are bytes */
            if (k && !sums && what != DS_BROADCAST)
                continue;
            c.what = (ds_collective)what;
            c.root = (int)(k + (size_t)what) % c.p;
            c.o.topology = NULL;
            c.o.plan = NULL;
            unsigned char *want = outcome(&c, "directly");
            for (int a = 0; a < ALGORITHMS; a++)
                for (size_t pieces = 0; pieces <= 3; pieces += 3) {
                    ds_plan_desc d = { .what = c.what,
                                       .bytes = whole(&c),
                                       .root = what <= DS_REDUCE ? c.root : 0,
                                       .item = ds_dtype_get_size(kinds[k].type),
                                       .algorithm = algorithms[a],
                                       .order = order_of(kinds[k].type, c.op),
                                       .pieces = pieces };
                    ds_result r = ds_plan_get(t, &d, &c.o.plan);
                    if (r == DS_ERR_UNSUPPORTED && a)
                        continue;
                    ok(r);
                    c.o.topology = t;
                    snprintf(how, sizeof how, "%s, %s, %zu pieces", name,
                             algorithms[a] ? algorithms[a] : "the fastest", pieces);
                    unsigned char *got = outcome(&c, how);
                    size_t n = (size_t)c.p * ds_tensor_get_size(results(&c)[0]);
                    for (size_t i = 0; i < n; i++)
                        if (got[i] != want[i])
                            fail_msg("%s, %s, type %zu: byte %zu of %zu is %02x, not %02x",
                                     ds_collective_get_name(c.what), how, k, i, n, got[i], want[i]);
                    free(got);
                    followed++;
                }
            free(want);
        }
        end_crew(&c);
    }
    return followed;
}

/* On the devices that are here, some of which are several ranks. */
static void test_plans_of_the_devices_that_are_here(void **state) {
    (void)state;
    ds_device at[5];
    ds_topology *t;
    for (int p = 2; p <= 5; p++) {
        for (int i = 0; i < p; i++)
            at[i] = harness_device(i);
        ok(ds_topology_create_of_devices(at, (size_t)p, 0, &t));
        assert_true(try_machine(t, at, "here") > 100);
        ds_topology_destroy(t);
    }
    finish_comm();
}

/* On machines that a text describes, for the first devices of the driver. */
static void test_plans_of_described_machines(void **state) {
    (void)state;

    static const struct {
        int p;
        const char *name, *text;
    } machines[] = {
        { 3, "no peers",
          "device g0..2\nsocket cpu\nlink g0..2 cpu pcie\nlink cpu host host\npeer g0..2 g0..2 "
          "off\n" },
        { 4, "two switches",
          "device g0..3\nswitch a b\nsocket cpu\nlink g0..1 a pcie\nlink g2..3 b pcie\nlink a cpu "
          "pcie\nlink b cpu pcie\nlink cpu host host\n" },
        { 4, "mesh",
          "device g0..3\nsocket cpu\nlink g0 g1..3 nvlink\nlink g1 g2..3 nvlink\nlink g2 g3 "
          "nvlink\nlink g0..3 cpu pcie\nlink cpu host host\npeer g0..3 g0..3 nvlink\n" },
        { 5, "ring",
          "device g0..4\nsocket cpu\nlink g0 g1 nvlink\nlink g1 g2 nvlink\nlink g2 g3 nvlink\nlink "
          "g3 g4 nvlink\nlink g4 g0 nvlink\nlink g0..4 cpu pcie\nlink cpu host host\n"
          "peer g0..4 g0..4 nvlink\n" },
    };

    ds_device at[RANKS];
    if (harness_is_cpu())
        harness_restart(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .devices = 5 } });
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        ds_topology *t;
        if (machines[m].p > harness_device_count())
            continue;
        for (int i = 0; i < machines[m].p; i++)
            at[i] = harness_device(i);
        ok(ds_topology_create_of_text(machines[m].text, &t));
        assert_true(try_machine(t, at, machines[m].name) > 100);
        ds_topology_destroy(t);
    }
    finish_comm();
    if (harness_is_cpu())
        harness_restart(NULL);
}

/* What is not row-major is packed before and unpacked behind. */
static void test_plans_of_tensors_with_strides(void **state) {
    (void)state;

    enum { P = 4, N = 5 };

    ds_device at[P];
    ds_tensor *base[P], *in[P], *out[P], *back[P], *want[P], *got[P];
    ds_topology *t;
    for (int i = 0; i < P; i++)
        at[i] = harness_device(i);
    ok(ds_topology_create_of_devices(at, P, 0, &t));
    for (int i = 0; i < P; i++) {
        base[i] = painted(at[i], ds_float32(), 2, SHAPE(N, 3 * P), (uint32_t)i);
        ok(ds_tensor_transpose(base[i], 0, 1, &in[i]));
        back[i] = on(at[i], ds_float32(), 2, SHAPE(2 * N, 3 * P));
        ok(ds_tensor_slice(back[i], 0, 0, INT64_MAX, 2, &want[i]));
        ok(ds_tensor_transpose(want[i], 0, 1, &out[i]));
        ok(ds_tensor_free(want[i]));
        want[i] = on(at[i], ds_float32(), 2, SHAPE(3 * P, N));
        got[i] = NULL;
    }
    ds_comm_options o = { .topology = t };
    wait_all();
    ok(ds_comm_all_reduce(INPUTS(in), INPUTS(want), P, DS_REDUCE_SUM, NULL));
    ok(ds_comm_all_reduce(INPUTS(in), INPUTS(out), P, DS_REDUCE_SUM, &o));
    for (int i = 0; i < P; i++)
        expect_equal(out[i], want[i]);
    ok(ds_comm_all_to_all(INPUTS(in), INPUTS(want), P, NULL));
    ok(ds_comm_all_to_all(INPUTS(in), INPUTS(out), P, &o));
    for (int i = 0; i < P; i++)
        expect_equal(out[i], want[i]);
    ok(ds_comm_broadcast_into(in[1], INPUTS(want), P, NULL));
    for (int i = 0; i < P; i++)
        looking(ds_fill(back[i]->data, 0, 1, ds_tensor_get_size(back[i]), current(at[i])));
    ok(ds_comm_broadcast_into(in[1], INPUTS(out), P, &o));
    for (int i = 0; i < P; i++)
        expect_equal(out[i], want[i]);
    /* Pieces that lie side by side in the rows. */
    size_t count;
    ds_tensor *pieces[2][P];
    ok(ds_comm_scatter(base[0], at, P, NULL, 1, NULL, pieces[0], NULL));
    ok(ds_comm_scatter(base[0], at, P, NULL, 1, &o, pieces[1], &count));
    assert_int_equal(count, P);
    for (int i = 0; i < P; i++)
        expect_equal(pieces[0][i], pieces[1][i]);
    ok(ds_comm_gather(INPUTS(pieces[1]), P, 1, at[0], &o, &got[0]));
    expect_equal(got[0], base[0]);
    drop(got, 1);
    drop(pieces[0], P);
    drop(pieces[1], P);
    /* Many tensors in a few buffers. */
    ds_tensor *flat[2][2 * P], *list[2] = { base[0], in[0] };
    for (int by = 0; by < 2; by++)
        ok(ds_comm_broadcast_coalesced(INPUTS(list), 2, at, P, 0, by ? &o : NULL, flat[by]));
    for (int i = 0; i < 2 * P; i++)
        expect_equal(flat[0][i], flat[1][i]);
    drop(flat[0], 2 * P);
    drop(flat[1], 2 * P);
    for (int i = 0; i < P; i++)
        drop((ds_tensor *[]){ base[i], in[i], out[i], back[i], want[i] }, 5);
    ds_topology_destroy(t);
    finish_comm();
}

/* What is captured is done again with what the tensors hold then, host memory on the way
   included. */
static void test_a_graph_has_the_steps_of_a_plan(void **state) {
    (void)state;
    static const char *const texts[] = {
        "device g0..1\nsocket cpu\nlink g0..1 cpu pcie\nlink cpu host host\n",
        "device g0..1\nsocket cpu\nlink g0..1 cpu pcie\nlink cpu host host\npeer g0..1 g0..1 off\n",
    };
    two_devices();
    ds_device at[2] = { harness_device(0), harness_device(1) };
    for (int m = 0; m < 2; m++)
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
            crew c;
            ds_topology *t;
            ds_graph g;
            ds_graph_exec x;
            ok(ds_topology_create_of_text(texts[m], &t));
            make_crew(&c, 2, at, ds_float32());
            c.what = (ds_collective)what;
            c.o.topology = t;
            c.root = what <= DS_REDUCE;
            int first = what <= DS_REDUCE ? c.root : 0;
            ok(ds_capture_begin(c.s[first], DS_CAPTURE_RELAXED));
            ok(perform(&c));
            ok(ds_capture_end(c.s[first], &g));
            ok(ds_graph_instantiate(g, 0, &x));
            ok(ds_graph_destroy(g));
            for (uint32_t round = 0; round < 3; round++) {
                for (int i = 0; i < 2; i++) {
                    color(c.large[i], round * 7 + (uint32_t)i);
                    color(c.small[i], round * 9 + (uint32_t)i);
                }
                size_t n = ds_tensor_get_size(results(&c)[0]);
                for (int i = 0; i < 2; i++)
                    ok(ds_fill(results(&c)[i]->data, 0xEE, 1, n, c.s[i]));
                wait_all();
                ok(ds_graph_launch(x, c.s[first]));
                ok(ds_stream_synchronize(c.s[first]));
                unsigned char *got[2], *want;
                for (int i = 0; i < 2; i++)
                    got[i] = contents(results(&c)[i]);
                c.o.topology = NULL;
                want = outcome(&c, "directly");
                c.o.topology = t;
                for (int i = 0; i < 2; i++) {
                    if (is_result(&c, i))
                        assert_memory_equal(got[i], want + (size_t)i * n, n);
                    free(got[i]);
                }
                free(want);
            }
            ok(ds_graph_exec_destroy(x));
            end_crew(&c);
            ds_topology_destroy(t);
        }
    wait_all();
    ds_mem_pinned_stats pinned = { 0 };
    ok(ds_mem_pinned_get_stats(&pinned));
    assert_int_equal(pinned.allocations.current, 0);
}

/* Two threads on streams of their own at once: each gets streams for its lanes. */
typedef struct side {
    ds_topology *t;
    ds_device at[4];
    int failed;
} side;

static void *play_alone(void *user) {
    side *s = user;
    for (int round = 0; round < 20; round++) {
        crew c;
        make_crew(&c, 4, s->at, ds_int32());
        c.what = DS_ALL_REDUCE;
        c.o.topology = NULL;
        unsigned char *want = outcome(&c, "directly"), *got;
        c.o.topology = s->t;
        got = outcome(&c, "by plan");
        s->failed |= memcmp(want, got, 4 * whole(&c)) != 0;
        free(want);
        free(got);
        end_crew(&c);
    }
    return NULL;
}

static void test_two_threads_follow_plans_at_once(void **state) {
    (void)state;
    side s[2];
    pthread_t other;
    memset(s, 0, sizeof s);
    for (int i = 0; i < 4; i++)
        s[0].at[i] = harness_device(i);
    ok(ds_topology_create_of_devices(s[0].at, 4, 0, &s[0].t));
    s[1] = s[0];
    assert_int_equal(pthread_create(&other, NULL, play_alone, &s[1]), 0);
    play_alone(&s[0]);
    pthread_join(other, NULL);
    assert_false(s[0].failed || s[1].failed);
    ds_topology_destroy(s[0].t);
    finish_comm();
}

/* Results in the place of the inputs, which are read more than once by some plans. On the CPU
   driver in many orders of what may be done in any. */
static void reduce_in_place(const ds_topology *t, const ds_device *at) {
    int p = ds_topology_get_size(t), twice = 0;
    crew c, d;
    make_crew(&c, p, at, ds_int32());
    make_crew(&d, p, at, ds_int32());
    for (int what = DS_REDUCE; what <= DS_REDUCE_SCATTER; what++)
        for (int a = 0; a < ALGORITHMS; a++)
            for (size_t pieces = 0; pieces <= 3; pieces += 3) {
                ds_plan_desc w = { .what = (ds_collective)what,
                                   .bytes = whole(&c),
                                   .item = 4,
                                   .order = DS_ORDER_ANY,
                                   .algorithm = algorithms[a],
                                   .pieces = pieces };
                if (what == DS_ALL_GATHER || ds_plan_get(t, &w, &c.o.plan) != DS_OK)
                    continue;
                d.what = c.what = (ds_collective)what;
                d.o.topology = NULL;
                c.o.topology = t;
                for (int i = 0; i < p; i++) {
                    color(c.large[i], (uint32_t)(i + a));
                    color(d.large[i], (uint32_t)(i + a));
                }
                ok(perform(&d));
                c.o.stream = c.s[0];
                c.o.streams = c.s;
                c.o.stream_count = (size_t)p;
                ds_tensor *block[RANKS];
                for (int i = 0; i < p; i++)
                    ok(ds_tensor_narrow(c.large[i], 0, i * ROWS, ROWS, &block[i]));
                gate g[RANKS]; /* so that all of it is there before the first of it is done */
                memset(g, 0, sizeof g);
                for (int i = 0; i < p && harness_is_cpu(); i++)
                    gate_close(c.s[i], &g[i]);
                if (what == DS_REDUCE)
                    ok(ds_comm_reduce_into(INPUTS(c.large), (size_t)p, DS_REDUCE_SUM, c.large[0],
                                           &c.o));
                else if (what == DS_ALL_REDUCE)
                    ok(ds_comm_all_reduce(INPUTS(c.large), INPUTS(c.large), (size_t)p,
                                          DS_REDUCE_SUM, &c.o));
                else
                    ok(ds_comm_reduce_scatter(INPUTS(c.large), INPUTS(block), (size_t)p,
                                              DS_REDUCE_SUM, &c.o));
                for (int i = 0; i < p && harness_is_cpu(); i++)
                    gate_open(&g[i]);
                for (int i = 0; i < (what == DS_REDUCE ? 1 : p); i++)
                    expect_equal(what == DS_REDUCE_SCATTER ? block[i] : c.large[i], results(&d)[i]);
                drop(block, (size_t)p);
                size_t read = 0;
                for (size_t i = 0; i < c.o.plan->steps; i++)
                    for (uint32_t k = 0; k < c.o.plan->step[i].from_count; k++) {
                        const ds_plan_location *from =
                            &c.o.plan->location[c.o.plan->step[i].from + k];
                        read += from->buffer == DS_PLAN_INPUT && from->rank == 0
                                    ? c.o.plan->step[i].bytes
                                    : 0;
                    }
                twice += read > whole(&c);
            }
    assert_true(twice > 0); /* else nothing would have to be kept */
    end_crew(&c);
    end_crew(&d);
}

static void test_plans_in_place(void **state) {
    (void)state;
    ds_device at[4];
    for (uint64_t seed = 0; seed < (harness_is_cpu() ? 6 : 1); seed++) {
        ds_topology *t;
        if (harness_is_cpu())
            harness_restart(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .devices = 4, .seed = seed } });
        for (int i = 0; i < 4; i++)
            at[i] = harness_device(i);
        ok(ds_topology_create_of_devices(at, 4, 0, &t));
        reduce_in_place(t, at);
        ds_topology_destroy(t);
    }
    if (harness_is_cpu())
        harness_restart(NULL);
}

/* Numbers of one magnitude, whose sums are rounded at every step. */
static void even(const ds_tensor *t) {
    size_t n = ds_tensor_get_size(t), item = t->dtype.code == DS_CODE_COMPLEX
                                                 ? ds_dtype_get_size(t->dtype) / 2
                                                 : ds_dtype_get_size(t->dtype);
    unsigned char *p = contents(t);
    for (size_t i = 0; i < n && t->dtype.code != DS_CODE_INT; i += item) {
        unsigned char *last = p + i + item - 1;
        *last = 0x3f;
        if (item == 2 && t->dtype.code == DS_CODE_FLOAT)
            *last = (unsigned char)(0x3c | (last[-1] & 3));
        else if (item == 8)
            last[-1] |= 0xf0;
        else
            last[-1] |= 0x80;
    }
    carry(t, p, 1);
    free(p);
}

/* Links so slow that plans sum on the way where that keeps the bits, and only there. */
static void test_planned_sums_have_the_bits_of_the_direct_way(void **state) {
    static const struct {
        ds_dtype type;
        ds_reduce_op op;
    } kinds[] = {
        { { DS_CODE_FLOAT, 32, 1 }, DS_REDUCE_SUM },
        { { DS_CODE_FLOAT, 64, 1 }, DS_REDUCE_PRODUCT },
        { { DS_CODE_COMPLEX, 64, 1 }, DS_REDUCE_PRODUCT },
        { { DS_CODE_FLOAT, 16, 1 }, DS_REDUCE_SUM },
        { { DS_CODE_BFLOAT, 16, 1 }, DS_REDUCE_PRODUCT },
        { { DS_CODE_FLOAT, 32, 1 }, DS_REDUCE_AVERAGE },
        { { DS_CODE_INT, 32, 1 }, DS_REDUCE_AVERAGE },
        { { DS_CODE_FLOAT, 16, 1 }, DS_REDUCE_MAX },
        { { DS_CODE_INT, 8, 1 }, DS_REDUCE_SUM },
    };

    (void)state;
    ds_topology *t;
    ds_device at[4];
    if (harness_is_cpu())
        harness_restart(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .devices = 4 } });
    if (harness_device_count() < 4)
        skip();
    for (int i = 0; i < 4; i++)
        at[i] = harness_device(i);
    ok(ds_topology_create_of_text(
        "device g0..3\nsocket cpu\nlink g0..3 cpu pcie 1MB/s\nlink cpu host host\nengines 4\n",
        &t));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        /* reduce twice: to a rank in the middle, and to the last one, where the chain in list order
           ends */
        for (int turn = DS_REDUCE; turn <= DS_REDUCE_SCATTER + 1; turn++) {
            crew c;
            int what = turn > DS_REDUCE_SCATTER ? DS_REDUCE : turn, last = turn > DS_REDUCE_SCATTER;
            if (what == DS_ALL_GATHER)
                continue;
            make_wide_crew(&c, 4, at, kinds[k].type, 8000);
            c.what = (ds_collective)what;
            c.op = kinds[k].op;
            c.root = last ? 3 : 1;
            c.o.topology = NULL;
            for (int i = 0; i < 4; i++)
                even(c.large[i]);
            unsigned char *want = outcome(&c, "directly"), *got;
            c.o.topology = t;
            got = outcome(&c, "by plan");
            size_t n = 4 * ds_tensor_get_size(results(&c)[0]);
            for (size_t i = 0; i < n; i++)
                if (got[i] != want[i])
                    fail_msg("%s, kind %zu: byte %zu is %02x, not %02x",
                             ds_collective_get_name(c.what), k, i, got[i], want[i]);
            free(got);
            free(want);
            end_crew(&c);
        }
    ds_topology_destroy(t);
    finish_comm();
    if (harness_is_cpu())
        harness_restart(NULL);
}

/* A plan with several lanes on a rank. */
static void spread_of(crew *c, const ds_topology *t) {
    c->what = DS_BROADCAST;
    c->root = 0;
    c->o.topology = t;
    for (int a = 1; a < ALGORITHMS; a++)
        for (size_t pieces = 1; pieces < 9; pieces++) {
            ds_plan_desc d = { .what = DS_BROADCAST,
                               .bytes = whole(c),
                               .item = 4,
                               .algorithm = algorithms[a],
                               .pieces = pieces };
            if (ds_plan_get(t, &d, &c->o.plan) == DS_OK && c->o.plan->lanes > 1)
                return;
        }
    fail_msg("one lane proves nothing");
}

/* One that is held up keeps its streams: another one on other streams takes others, and comes to
   its end. A GPU may have fewer queues than streams. */
static void test_a_collective_that_waits_holds_up_no_other(void **state) {
    (void)state;
    crew c[2];
    ds_device at[4];
    ds_topology *t;
    gate g = { 0 };
    for (int i = 0; i < 4; i++)
        at[i] = harness_device(i);
    ok(ds_topology_create_of_devices(at, 4, 0, &t));
    for (int i = 0; i < 2; i++) {
        make_crew(&c[i], 4, at, ds_float32());
        spread_of(&c[i], t);
        free(outcome(&c[i], "before")); /* its streams are there */
    }
    color(c[1].large[0], 99);
    gate_close(c[0].s[0], &g);
    ok(perform(&c[0]));
    ok(perform(&c[1]));
    for (int i = 0; i < 4; i++)
        ok(ds_stream_synchronize(c[1].s[i]));
    gate_open(&g);
    for (int i = 1; i < 4; i++)
        expect_equal(c[1].out[i], c[1].large[0]);
    for (int i = 0; i < 2; i++)
        end_crew(&c[i]);
    ds_topology_destroy(t);
    finish_comm();
}

/* While one collective is being captured, another one runs: it takes no stream that captures. */
static void test_a_collective_runs_while_another_is_captured(void **state) {
    (void)state;
    crew c[2];
    ds_device at[4];
    ds_topology *t;
    ds_graph g;
    ds_graph_exec x;
    for (int i = 0; i < 4; i++)
        at[i] = harness_device(i);
    ok(ds_topology_create_of_devices(at, 4, 0, &t));
    for (int i = 0; i < 2; i++) {
        make_crew(&c[i], 4, at, ds_float32());
        spread_of(&c[i], t);
        free(outcome(&c[i], "before"));
    }
    ok(ds_fill(c[0].out[1]->data, 0, 1, whole(&c[0]), c[0].s[1]));
    wait_all();
    ok(ds_capture_begin(c[0].s[0], DS_CAPTURE_RELAXED));
    ok(perform(&c[0]));
    ok(perform(&c[1]));
    for (int i = 0; i < 4; i++)
        ok(ds_stream_synchronize(c[1].s[i]));
    ok(perform(&c[0]));
    ok(ds_capture_end(c[0].s[0], &g));
    ok(ds_graph_instantiate(g, 0, &x));
    ok(ds_graph_destroy(g));
    expect_equal(c[1].out[3], c[1].large[0]);
    ok(ds_graph_launch(x, c[0].s[0]));
    ok(ds_stream_synchronize(c[0].s[0]));
    expect_equal(c[0].out[1], c[0].large[0]);
    ok(ds_graph_exec_destroy(x));
    for (int i = 0; i < 2; i++)
        end_crew(&c[i]);
    ds_topology_destroy(t);
    wait_all();
}

/* More lanes than devstream has streams of its own on a device: some share one. */
static void test_more_lanes_than_streams(void **state) {
    (void)state;

    enum { MOST_STREAMS = 64 };

    ds_device at[RANKS];
    ds_topology *t;
    crew c;
    int lanes = 0;
    for (int i = 0; i < RANKS; i++)
        at[i] = harness_device(0);
    ok(ds_topology_create_of_devices(at, RANKS, 0, &t));
    make_wide_crew(&c, RANKS, at, ds_int16(), 8);
    c.what = DS_ALL_TO_ALL;
    unsigned char *want = outcome(&c, "directly"), *got;
    c.o.topology = t;
    ok(ds_plan_get(t, &(ds_plan_desc){ .what = c.what, .bytes = whole(&c), .item = 2 }, &c.o.plan));
    for (int r = 0; r < RANKS; r++) {
        int most = 0;
        for (size_t i = 0; i < c.o.plan->steps; i++)
            if (c.o.plan->step[i].rank == r && c.o.plan->step[i].lane > most)
                most = c.o.plan->step[i].lane;
        lanes += most;
    }
    if (lanes <= MOST_STREAMS)
        fail_msg("%d lanes prove nothing", lanes);
    got = outcome(&c, "by plan");
    assert_memory_equal(got, want, RANKS * whole(&c));
    free(got);
    free(want);
    end_crew(&c);
    ds_topology_destroy(t);
    finish_comm();
}

/* A plan that is given and does not fit is an error; a topology that does not fit is none. */
static void test_what_cannot_follow_a_plan(void **state) {
    (void)state;
    crew c;
    ds_device at[3];
    ds_topology *t, *other;
    ds_plan_desc d = { .what = DS_BROADCAST };
    for (int i = 0; i < 3; i++)
        at[i] = harness_device(i);
    make_crew(&c, 3, at, ds_float32());
    d.bytes = whole(&c);
    d.item = 4;
    ok(ds_topology_create_of_devices(at, 3, 0, &t));
    ok(ds_topology_create_of_devices(at, 2, 0, &other));
    c.what = DS_BROADCAST;
    ok(ds_plan_get(t, &d, &c.o.plan));
#define REFUSED(sentence)                                    \
    do {                                                     \
        assert_int_equal(perform(&c), DS_ERR_INVALID_VALUE); \
        says(sentence);                                      \
    } while (0)
    REFUSED("without options->topology");
    c.o.topology = other;
    REFUSED("another topology");
    c.o.topology = t;
    ok(perform(&c));
    c.what = DS_ALL_REDUCE;
    REFUSED("it is for broadcast");
    d.what = DS_ALL_REDUCE;
    d.order = DS_ORDER_ANY;
    ok(ds_plan_get(t, &d, &c.o.plan));
    REFUSED("not in the order of the list");
    c.o.flags = DS_COMM_ANY_ORDER;
    ok(perform(&c));
    c.o.flags = 8;
    REFUSED("unknown flags");
    c.o.flags = 0;
    d.order = DS_ORDER_LIST;
    d.item = 2;
    ok(ds_plan_get(t, &d, &c.o.plan));
    REFUSED("elements of 4 bytes");
    d.item = 4;
    d.bytes -= 12;
    ok(ds_plan_get(t, &d, &c.o.plan));
    REFUSED("bytes, not ");
    d = (ds_plan_desc){ .what = DS_GATHER, .bytes = whole(&c), .item = 4, .root = 2 };
    ok(ds_plan_get(t, &d, &c.o.plan));
    ds_tensor *made = NULL, *two[3] = { c.small[0], c.small[1], c.large[2] };
    c.o.streams = NULL;
    c.o.stream_count = 0;
    c.o.stream = (ds_stream){ 0 };
    assert_int_equal(ds_comm_gather(INPUTS(c.small), 2, 0, at[0], &c.o, &made),
                     DS_ERR_INVALID_VALUE);
    says("2 tensors on 3 ranks");
    assert_int_equal(ds_comm_gather(INPUTS(two), 3, 0, at[0], &c.o, &made), DS_ERR_INVALID_VALUE);
    says("another size");
    assert_int_equal(ds_comm_gather(INPUTS(c.small), 3, 0, host(), &c.o, &made),
                     DS_ERR_INVALID_VALUE);
    says("not a rank");
    assert_null(made);
    c.o.plan = NULL; /* the direct way */
    ok(ds_comm_gather(INPUTS(c.small), 2, 0, at[0], &c.o, &made));
    drop(&made, 1);
    ok(ds_comm_gather(INPUTS(two), 3, 0, at[0], &c.o, &made));
    drop(&made, 1);
    ok(ds_comm_gather(INPUTS(c.small), 3, 0, host(), &c.o, &made));
    wait_all();
    drop(&made, 1);
    if (harness_device_count() > 1) {
        d = (ds_plan_desc){ .what = DS_GATHER, .bytes = whole(&c), .item = 4, .root = 1 };
        ok(ds_plan_get(t, &d, &c.o.plan));
        assert_int_equal(ds_comm_gather(INPUTS(c.small), 3, 0, at[0], &c.o, &made),
                         DS_ERR_INVALID_VALUE);
        says("its root is rank 1, not 0");
        ds_tensor *swapped[3] = { c.small[1], c.small[0], c.small[2] };
        assert_int_equal(ds_comm_gather(INPUTS(swapped), 3, 0, at[1], &c.o, &made),
                         DS_ERR_INVALID_VALUE);
        says("is not rank 0");
    }
    end_crew(&c);

    /* Which order a sum may have is up to its type. */
    static const struct {
        ds_dtype type;
        ds_reduce_op op;
        ds_plan_order most;
    } kinds[] = {
        { { DS_CODE_FLOAT, 16, 1 }, DS_REDUCE_SUM, DS_ORDER_AT_ONCE },
        { { DS_CODE_BFLOAT, 16, 1 }, DS_REDUCE_PRODUCT, DS_ORDER_AT_ONCE },
        { { DS_CODE_FLOAT, 32, 1 }, DS_REDUCE_AVERAGE, DS_ORDER_AT_ONCE },
        { { DS_CODE_INT, 32, 1 }, DS_REDUCE_AVERAGE, DS_ORDER_AT_ONCE },
        { { DS_CODE_FLOAT, 32, 1 }, DS_REDUCE_SUM, DS_ORDER_LIST },
        { { DS_CODE_COMPLEX, 128, 1 }, DS_REDUCE_PRODUCT, DS_ORDER_LIST },
        { { DS_CODE_INT, 8, 1 }, DS_REDUCE_PRODUCT, DS_ORDER_ANY },
        { { DS_CODE_BOOL, 8, 1 }, DS_REDUCE_SUM, DS_ORDER_ANY },
        { { DS_CODE_FLOAT, 16, 1 }, DS_REDUCE_MAX, DS_ORDER_ANY },
    };

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int order = DS_ORDER_AT_ONCE; order <= DS_ORDER_ANY; order++) {
            make_crew(&c, 3, at, kinds[k].type);
            c.what = DS_ALL_REDUCE;
            c.op = kinds[k].op;
            c.o.topology = t;
            ok(ds_plan_get(t,
                           &(ds_plan_desc){ .what = c.what,
                                            .bytes = whole(&c),
                                            .item = ds_dtype_get_size(kinds[k].type),
                                            .order = (ds_plan_order)order },
                           &c.o.plan));
            if (order <= (int)kinds[k].most)
                ok(perform(&c));
            else
                REFUSED("not in the order of the list");
            end_crew(&c);
        }
    ds_topology_destroy(t);
    ds_topology_destroy(other);
    finish_comm();
}

/* What an earlier call has left on the stack. */
__attribute__((noinline)) static void leave_behind(void *address) {
    void *volatile a[16000];
    for (int i = 0; i < 16000; i++) {
        a[i] = address;
        (void)a[i];
    }
}

/* A buffer that is packed has no tensor: no result is taken for the tensor itself. */
static void test_many_tensors_by_plan_reach_every_result_of_one_device(void **state) {
    (void)state;

    enum { NUMBERS = 300000 };

    two_devices();
    ds_device at[2] = { harness_device(0), harness_device(1) }, to[3] = { at[0], at[0], at[1] };
    ds_stream s[3] = { harness_stream(0, 0), harness_stream(0, 0), harness_stream(1, 0) };
    ds_tensor *in[2], *out[6], *before;
    ds_topology *t;
    ok(ds_topology_create_of_devices(at, 2, 0, &t));
    for (int i = 0; i < 2; i++) {
        ok(ds_tensor_alloc(ds_float32(), 1, SHAPE(NUMBERS), s[0], &in[i]));
        color(in[i], (uint32_t)i);
    }
    ok(ds_tensor_alloc(ds_uint8(), 1, SHAPE(2 * 4 * NUMBERS), s[1], &before));
    void *address = before->data; /* where the second result will be */
    ok(ds_fill(address, 0, 1, 2 * 4 * NUMBERS, s[1]));
    ok(ds_stream_synchronize(s[1]));
    ok(ds_tensor_free(before));
    leave_behind(address);
    ok(ds_comm_broadcast_coalesced(
        INPUTS(in), 2, to, 3, 0,
        &(ds_comm_options){ .streams = s, .stream_count = 3, .stream = s[0], .topology = t }, out));
    for (int i = 0; i < 6; i++)
        expect_equal(in[i % 2], out[i]);
    drop(out, 6);
    drop(in, 2);
    ds_topology_destroy(t);
    for (int i = 0; i < 3; i++)
        ok(ds_stream_destroy(s[i]));
    finish_comm();
}

/* One tensor is copied, which no plan of a sum says. */
static void test_a_plan_for_one_tensor_is_refused(void **state) {
    (void)state;
    two_devices();
    ds_device at[2] = { harness_device(0), harness_device(1) };
    ds_topology *t;
    const ds_plan *plan;
    ok(ds_topology_create_of_devices(at, 2, 0, &t));
    ok(ds_plan_get(t, &(ds_plan_desc){ .what = DS_REDUCE, .bytes = 400 }, &plan));
    ds_comm_options o = { .topology = t, .plan = plan },
                    alias = { .flags = DS_COMM_ALIAS, .topology = t, .plan = plan };
    ds_tensor *in = painted(at[0], ds_float32(), 1, SHAPE(100), 3),
              *out = on(at[0], ds_float32(), 1, SHAPE(100)), *made;
    refused(ds_comm_reduce(INPUTS(&in), 1, DS_REDUCE_SUM, at[0], &o, &made), DS_ERR_INVALID_VALUE);
    says("the plan does not fit");
    refused(ds_comm_reduce(INPUTS(&in), 1, DS_REDUCE_SUM, at[0], &alias, &made),
            DS_ERR_INVALID_VALUE);
    refused(ds_comm_reduce_into(INPUTS(&in), 1, DS_REDUCE_SUM, out, &o), DS_ERR_INVALID_VALUE);
    o.plan = NULL;
    ok(ds_comm_reduce_into(INPUTS(&in), 1, DS_REDUCE_SUM, out, &o));
    expect_equal(in, out);
    drop(&in, 1);
    drop(&out, 1);
    ds_topology_destroy(t);
    finish_comm();
}

/* A topology outlives ds_shutdown, and the next start may have another allocator: each piece of
   memory goes back where it came from. */
static void test_topologies_return_memory_to_their_allocator(void **state) {
    (void)state;
    ds_init_desc counted = { .allocator = { count_alloc, count_free, NULL } };
    ds_plan_desc first = { .what = DS_ALL_REDUCE, .bytes = 4096 };
    ds_plan_desc second = { .what = DS_BROADCAST, .bytes = 4096 };
    ds_topology *of_malloc, *of_counted;
    const ds_plan *plan;

    harness_restart(NULL);
    ok(ds_topology_create_of_text("device a b\nlink a b nvlink\n", &of_malloc));
    ok(ds_plan_get(of_malloc, &first, &plan));
    harness_restart(&counted);
    ok(ds_topology_create_of_text("device a b\nlink a b nvlink\n", &of_counted));
    ok(ds_plan_get(of_counted, &first, &plan));
    ok(ds_plan_get(of_malloc, &second, &plan));
    ds_topology_destroy(of_malloc);
    harness_restart(NULL);
    assert_true(kept_bytes > 0);
    ok(ds_plan_get(of_counted, &second, &plan));
    ds_topology_destroy(of_counted);

    assert_int_equal(kept_bytes, 0);
}

/* A route has room for as many wires as it can have, not for one of each device. The peer lines
   name every pair three times. */
static void test_the_memory_of_a_topology_grows_with_its_pairs(void **state) {
    (void)state;
    ds_init_desc counted = { .allocator = { count_alloc, count_free, NULL } };
    ds_topology *t;

    harness_restart(&counted);
    ok(ds_topology_create_of_text(
        "device d0..199\nswitch s\nlink d0..199 s pcie\npeer d0..199 d0..199 on\n"
        "peer d0..199 d0..199 push 5GB/s\npeer d0..199 d0..199 both 6GB/s\n",
        &t));
    size_t bytes = kept_bytes;
    ds_topology_destroy(t);
    bytes -= kept_bytes;
    harness_restart(NULL);

    assert_in_range(bytes, 1, 500 * 200 * 200);
}

const struct CMUnitTest tests_comm_plans[] = {
    DS_TEST(test_plans_of_the_devices_that_are_here, "comm: plans"),
    DS_TEST(test_plans_of_described_machines, "comm: plans"),
    DS_TEST(test_plans_of_tensors_with_strides, "comm: plans"),
    DS_TEST(test_a_graph_has_the_steps_of_a_plan, "comm: plans"),
    DS_TEST(test_plans_in_place, "comm: plans"),
    DS_TEST(test_planned_sums_have_the_bits_of_the_direct_way, "comm: plans"),
    DS_TEST(test_two_threads_follow_plans_at_once, "comm: plans"),
    DS_TEST_CPU(test_a_collective_that_waits_holds_up_no_other, "comm: plans"),
    DS_TEST(test_a_collective_runs_while_another_is_captured, "comm: plans"),
    DS_TEST(test_more_lanes_than_streams, "comm: plans"),
    DS_TEST(test_what_cannot_follow_a_plan, "comm: plans"),
    DS_TEST(test_many_tensors_by_plan_reach_every_result_of_one_device, "comm: plans"),
    DS_TEST(test_a_plan_for_one_tensor_is_refused, "comm: plans"),
    DS_TEST(test_topologies_return_memory_to_their_allocator, "comm: plans"),
    DS_TEST(test_the_memory_of_a_topology_grows_with_its_pairs, "comm: plans"),
};
const size_t tests_comm_plans_count = sizeof tests_comm_plans / sizeof *tests_comm_plans;
