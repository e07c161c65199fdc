/* Topologies and plans. Every plan is run symbolically: what a byte holds is the set of inputs
   that it is the sum of, and in which order; any two steps that touch the same bytes, one of
   them writing, must be in an order that the plan itself gives. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "plan/plan.h"

#include "unit.h"

typedef struct paper {
    char text[65536];
    size_t size;
} paper;

static int write_paper(const char *text, size_t size, void *user) {
    paper *p = user;
    if (size >= sizeof p->text - p->size)
        return 1;
    memcpy(p->text + p->size, text, size);
    p->text[p->size += size] = 0;
    return 0;
}

/* one thread plans, so that the thread sanitizer has little to see */
enum { FEWER = HARNESS_THIRD > 1, SLOW = HARNESS_SLOW };

/* ---- machines ---- */

#define PCIE8                                                                               \
    "device gpu0..7\nswitch sw0 sw1\nsocket cpu0\nlink gpu0..3 sw0 pcie\nlink gpu4..7 sw1 " \
    "pcie\nlink sw0..1 cpu0 pcie\nlink cpu0 host host\n"
#define SOCKETS8                                                                              \
    "device gpu0..7\nswitch sw0..3\nsocket cpu0..1\nlink gpu0..1 sw0 pcie\nlink gpu2..3 sw1 " \
    "pcie\nlink gpu4..5 sw2 pcie\nlink gpu6..7 sw3 pcie\n"                                    \
    "link sw0..1 cpu0 pcie\nlink sw2..3 cpu1 pcie\nlink cpu0 cpu1 socket\nlink cpu0..1 host " \
    "host\n"
#define NVSWITCH8 "device gpu0..7\nswitch nv\nlink gpu0..7 nv nvswitch\n"
#define RING6                                                                                    \
    "device gpu0..5\nlink gpu0 gpu1 nvlink\nlink gpu1 gpu2 nvlink\nlink gpu2 gpu3 nvlink\nlink " \
    "gpu3 gpu4 nvlink\nlink gpu4 gpu5 nvlink\nlink gpu5 gpu0 nvlink\n"                           \
    "socket cpu0\nlink gpu0..5 cpu0 pcie 12GB/s\nlink cpu0 host host\npeer gpu0..5 gpu0..5 "     \
    "nvlink\n"
#define DGX1                                                                                      \
    "engines 6\ndevice gpu0..7\nswitch plx0..3\nsocket cpu0..1\nlink gpu0..1 plx0 pcie "          \
    "12GB/s\nlink gpu2..3 plx1 pcie 12GB/s\nlink gpu4..5 plx2 pcie 12GB/s\n"                      \
    "link gpu6..7 plx3 pcie 12GB/s\nlink plx0..1 cpu0 pcie 12GB/s\nlink plx2..3 cpu1 pcie "       \
    "12GB/s\nlink cpu0 cpu1 socket 20GB/s\nlink cpu0..1 host host 50GB/s\n"                       \
    "link gpu0 gpu1 nvlink\nlink gpu0 gpu2 nvlink\nlink gpu0 gpu3 nvlink 50GB/s\nlink gpu0 gpu4 " \
    "nvlink 50GB/s\nlink gpu1 gpu2 nvlink 50GB/s\nlink gpu1 gpu3 nvlink\n"                        \
    "link gpu1 gpu5 nvlink 50GB/s\nlink gpu2 gpu3 nvlink 50GB/s\nlink gpu2 gpu6 nvlink\nlink "    \
    "gpu3 gpu7 nvlink\nlink gpu4 gpu5 nvlink\nlink gpu4 gpu6 nvlink\n"                            \
    "link gpu4 gpu7 nvlink 50GB/s\nlink gpu5 gpu6 nvlink 50GB/s\nlink gpu5 gpu7 nvlink\nlink "    \
    "gpu6 gpu7 nvlink 50GB/s\npeer gpu0..7 gpu0..7 nvlink\n"
#define NO_PEERS4                                                                             \
    "device gpu0..3\nsocket cpu0\nlink gpu0..3 cpu0 pcie\nlink cpu0 host host\npeer gpu0..3 " \
    "gpu0..3 off\n"
#define SLOW4                                                                                      \
    "device gpu0..3\nswitch sw\nsocket cpu0\nlink gpu0..2 sw pcie\nlink gpu3 sw pcie 6GB/s\nlink " \
    "sw cpu0 pcie\nlink cpu0 host host\n"

static ds_topology *machine(const char *text) {
    ds_topology *t;
    if (ds_topology_create_of_text(text, &t) < 0)
        fail_msg("%s", ds_error_get_last());
    return t;
}

/* ---- the checker ---- */

typedef struct value {
    uint64_t ranks;
    uint32_t element;
    /* listed: it is the sum of ranks 0, 1, 2... in this order, or one rank's */
    uint8_t sums, listed;
} value;

typedef struct checker {
    const ds_plan *plan;
    value *memory[3]; /* of all ranks and the host, one after the other */
    size_t base[3][80], item;
    uint64_t *before; /* bit i of row k: step i comes before step k */
    size_t words;
    char why[200];
} checker;

static size_t room_of(const ds_plan *p, int buffer, int rank) {
    if (buffer == DS_PLAN_SCRATCH)
        return p->scratch[rank];
    if (rank == p->ranks)
        return 0;
    size_t item = p->desc.item ? p->desc.item : 1, n = p->desc.bytes / item, of = (size_t)p->ranks,
           r = (size_t)rank;
    size_t block = (n * (r + 1) / of - n * r / of) * item;
    int parts = buffer == DS_PLAN_INPUT
                    ? p->desc.what == DS_GATHER || p->desc.what == DS_ALL_GATHER
                    : p->desc.what == DS_SCATTER || p->desc.what == DS_REDUCE_SCATTER;
    return parts ? block : p->desc.bytes;
}

static int overlap(const ds_plan_location *a, const ds_plan_location *b, size_t bytes_a,
                   size_t bytes_b) {
    return a->rank == b->rank && a->buffer == b->buffer && a->offset < b->offset + bytes_b &&
           b->offset < a->offset + bytes_a;
}

/* Two steps touch the same bytes, and one of them writes. */
static int meet(const ds_plan *p, const ds_plan_step *s, const ds_plan_step *o) {
    int yes = overlap(&s->to, &o->to, s->bytes, o->bytes);
    for (uint32_t k = 0; k < o->from_count; k++)
        yes |= overlap(&s->to, &p->location[o->from + k], s->bytes, o->bytes);
    for (uint32_t k = 0; k < s->from_count; k++)
        yes |= overlap(&o->to, &p->location[s->from + k], o->bytes, s->bytes);
    return yes;
}

static int wrong(checker *c, const char *what, size_t step) {
    snprintf(c->why, sizeof c->why, "step %zu: %s", step, what);
    return 0;
}

static value *at(checker *c, const ds_plan_location *s) {
    return c->memory[s->buffer] + c->base[s->buffer][s->rank] + s->offset / c->item;
}

static int check_steps(checker *c) {
    const ds_plan *p = c->plan;
    for (size_t i = 0; i < p->steps; i++) {
        const ds_plan_step *s = &p->step[i];
        if (s->rank < 0 || s->rank >= p->ranks || s->lane < 0 || s->lane >= p->lanes)
            return wrong(c, "no such lane", i);
        for (uint32_t k = 0; k <= s->from_count; k++) {
            const ds_plan_location *location = k ? &p->location[s->from + k - 1] : &s->to;
            if (location->rank < 0 || location->rank > p->ranks || location->buffer < 0 ||
                location->buffer > 2 || location->offset % c->item || s->bytes % c->item ||
                location->offset + s->bytes > room_of(p, location->buffer, location->rank))
                return wrong(c, "outside of its memory", i);
            if (k && s->from_count > 1 && (location->rank != s->rank || s->to.rank != s->rank))
                return wrong(c, "a sum of what is elsewhere", i);
            if (k && overlap(location, &s->to, s->bytes, s->bytes))
                return wrong(c, "writes what it reads", i);
        }
        if (!s->from_count || s->to.buffer == DS_PLAN_INPUT)
            return wrong(c, "writes an input", i);
        uint64_t *row = c->before + i * c->words;
        for (size_t k = 0; k < s->after_count + i; k++) {
            size_t b = k < s->after_count ? p->before[s->after + k] : k - s->after_count;
            if (k >= s->after_count && (p->step[b].rank != s->rank || p->step[b].lane != s->lane))
                continue;
            if (b >= i)
                return wrong(c, "comes after a later one", i);
            row[b / 64] |= (uint64_t)1 << b % 64;
            for (size_t w = 0; w < c->words; w++)
                row[w] |= c->before[b * c->words + w];
        }
        for (size_t b = 0; b < i; b++) {
            const ds_plan_step *o = &p->step[b];
            if (row[b / 64] >> b % 64 & 1)
                continue;
            if (meet(p, s, o))
                return wrong(c, "touches what another one does, in no order", i);
        }
        for (size_t e = 0; e < s->bytes / c->item; e++) {
            value sum = at(c, &p->location[s->from])[e];
            if (!sum.ranks)
                return wrong(c, "reads what nobody wrote", i);
            for (uint32_t k = 1; k < s->from_count; k++) {
                value one = at(c, &p->location[s->from + k])[e];
                if (one.element != sum.element || one.ranks & sum.ranks || !one.ranks)
                    return wrong(c, "sums what does not belong together", i);
                sum.listed &= one.ranks == sum.ranks + 1 && (sum.ranks & (sum.ranks + 1)) == 0 &&
                              !(one.ranks & (one.ranks - 1));
                sum.ranks |= one.ranks;
                sum.sums = (uint8_t)(sum.sums + one.sums);
            }
            if (s->from_count > 1)
                sum.sums++;
            at(c, &s->to)[e] = sum;
        }
    }
    return 1;
}

/* What every output must hold. */
static int check_outputs(checker *c) {
    const ds_plan *p = c->plan;
    size_t n = p->desc.bytes / c->item, of = (size_t)p->ranks;
    int what = (int)p->desc.what,
        sums = what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
    for (size_t r = 0; r < of; r++) {
        if ((what == DS_BROADCAST && (int)r == p->desc.root) ||
            ((what == DS_GATHER || what == DS_REDUCE) && (int)r != p->desc.root))
            continue;
        size_t count = room_of(p, DS_PLAN_OUTPUT, (int)r) / c->item;
        for (size_t e = 0; e < count; e++) {
            ds_plan_location s = { (int)r, DS_PLAN_OUTPUT, e * c->item };
            value v = *at(c, &s);
            size_t element = e, from = (size_t)p->desc.root, block = 0;
            if (what == DS_SCATTER || what == DS_REDUCE_SCATTER)
                element = n * r / of + e;
            if (what == DS_GATHER || what == DS_ALL_GATHER || what == DS_ALL_TO_ALL) {
                while (block + 1 < of && n * (block + 1) / of <= e)
                    block++;
                from = block;
                element = e - n * block / of + (what == DS_ALL_TO_ALL ? n * r / of : 0);
            }
            uint64_t ranks = sums ? ((uint64_t)1 << of) - 1 : (uint64_t)1 << from;
            if (v.ranks != ranks || v.element != element)
                return wrong(c, "(the end) an output does not hold what it must", r);
            if (sums && p->desc.order != DS_ORDER_ANY && !v.listed)
                return wrong(c, "(the end) not in the order of the list", r);
            if (sums && p->desc.order == DS_ORDER_AT_ONCE && v.sums != (of > 1))
                return wrong(c, "(the end) not summed at once", r);
        }
    }
    return 1;
}

static int check(const ds_plan *p, char *why) {
    checker c;
    memset(&c, 0, sizeof c);
    c.plan = p;
    c.item = p->desc.item ? p->desc.item : 1;
    c.words = p->steps / 64 + 1;
    c.before = calloc(p->steps + 1, c.words * sizeof *c.before);
    assert_true(p->ranks < 64);
    for (int b = 0; b < 3; b++) {
        size_t size = 0;
        for (int r = 0; r <= p->ranks; r++) {
            c.base[b][r] = size;
            size += room_of(p, b, r) / c.item;
        }
        c.memory[b] = calloc(size + 1, sizeof **c.memory);
        assert_non_null(c.memory[b]);
    }
    for (int r = 0; r < p->ranks; r++)
        for (size_t e = 0; e < room_of(p, DS_PLAN_INPUT, r) / c.item; e++)
            if ((p->desc.what != DS_BROADCAST && p->desc.what != DS_SCATTER) || r == p->desc.root)
                c.memory[DS_PLAN_INPUT][c.base[DS_PLAN_INPUT][r] + e] =
                    (value){ (uint64_t)1 << r, (uint32_t)e, 0, 1 };
    for (int r = 0; r < p->ranks; r++) /* x1 alone is no beginning of the list, but may follow */
        for (size_t e = 0; e < room_of(p, DS_PLAN_INPUT, r) / c.item; e++)
            c.memory[DS_PLAN_INPUT][c.base[DS_PLAN_INPUT][r] + e].listed = 1;
    int ok = check_steps(&c) && check_outputs(&c);
    snprintf(why, 200, "%s", c.why);
    for (int b = 0; b < 3; b++)
        free(c.memory[b]);
    free(c.before);
    return ok;
}

static const ds_plan *plan_of(const ds_topology *t, ds_plan_desc d) {
    const ds_plan *p;
    char why[200];
    if (ds_plan_get(t, &d, &p) < 0)
        fail_msg("%s", ds_error_get_last());
    if (!check(p, why))
        fail_msg("%s of %zu bytes, item %zu, root %d, order %d by %s in %zu pieces: %s",
                 ds_collective_get_name(d.what), d.bytes, d.item, d.root, (int)d.order,
                 p->desc.algorithm, p->pieces, why);
    return p;
}

/* ---- tests of topologies ---- */

static void says(const char *text, const char *word) {
    ds_topology *t = (ds_topology *)1;
    assert_int_equal(ds_topology_create_of_text(text, &t), DS_ERR_INVALID_VALUE);
    assert_null(t);
    if (!strstr(ds_error_get_last(), word))
        fail_msg("'%s' is not in: %s", word, ds_error_get_last());
}

static void test_what_is_wrong_with_a_text_is_said_with_line_and_word(void **state) {
    (void)state;
    says("", "the topology has no devices");
    says("device a\nfoo b\n", "line 2, word 1 (\"foo\")");
    says("device\n", "line 1, word 2");
    says("device a a\n", "already");
    says("device a3..1\n", "line 1, word 2");
    says("device a0 b\nlink a0 b pcie\npeer a0..-2 b off\n", "line 3, word 2 (\"a0..-2\")");
    says("device a0..-9999 b\n", "line 1, word 2");
    says("device a0..+1\n", "line 1, word 2");
    says("device a0..4294967296\n", "line 1, word 2");
    says("device a0..\n", "line 1, word 2");
    says("device a\nlink a b pcie\n", "line 2, word 3 (\"b\")");
    says("device a b\nlink a b cable\n", "line 2, word 4 (\"cable\")");
    says("device a b\nlink a b pcie 12\n", "line 2, word 5 (\"12\")");
    says("device a b\nlink a b pcie 0GB/s\n", "line 2, word 5");
    says("device a b\nlink a b pcie 1GB/s 2GB/s 3GB/s\n", "line 2, word 7");
    says("device a b\nlink a a pcie\n", "itself");
    says("device a b\n", "there is no route from a to b");
    says("device a b\nlink a b pcie\npeer a b off\n", "there is no route from a to b");
    says("device a b\nlink a b pcie\npeer a b maybe\n", "line 3, word 4");
    says("device a b\nlink a b pcie\npeer a b push\n", "line 3, word 5");
    says("device a b\nlink a b pcie\npeer a b push 3us\n", "line 3, word 5");
    says("device a b\nlink a b pcie\npeer a b on more\n", "line 3, word 5");
    says("device a b\nlink a b pcie\npeer a b both 3us\n", "line 3, word 5");
    says("device a b\nlink a b pcie\npeer a b both 0GB/s\n", "line 3, word 5");
    says("device a b\nlink a b pcie\npeer a b latency 3GB/s\n",
         "line 3, word 5 (\"3GB/s\"): a time");
    says("device a b\nlink a b pcie\npeer a b latency 3us 4us\n", "line 3, word 6");
    says("device a b\nlink a b pcie\npeer a host off\n", "line 3, word 3 (\"host\")");
    says("device a b\nlink a b pcie\npeer host b on\n", "line 3, word 2 (\"host\")");
    says("device a b\nswitch s\nlink a..b s pcie\n", "line 3, word 2");
    says("device a b\nswitch s\nlink a b pcie\npeer a s off\n", "line 4, word 3");
    says("device a\nengines 0\n", "line 2, word 2");
    says("device a\nengines 2 3\n", "line 2, word 3");
    says("device a\nlatency 5\n", "line 2, word 2");
    says("device a\nlatency 1001000ms\n", "line 2, word 2");
    says("device a\nstart 999999999999999ms\n", "line 2, word 2");
    says("device a b\nlink a b pcie 1GB/s 999999999999999ms\n", "line 2, word 6");
    assert_int_equal(ds_topology_create_of_text(NULL, NULL), DS_ERR_INVALID_VALUE);
    ds_topology *t = (ds_topology *)1;
    assert_int_equal(ds_topology_create_of_file("/nowhere/at/all", &t), DS_ERR_SYSTEM);
    assert_null(t);
}

static void test_a_topology_written_as_text_is_the_same_when_it_is_read(void **state) {
    static paper first, second;
    (void)state;
    const char *texts[] = { PCIE8,
                            SOCKETS8,
                            NVSWITCH8,
                            RING6,
                            DGX1,
                            NO_PEERS4,
                            SLOW4,
                            "device a b # two\n\nlink a b nvlink 10GB/s 20GB/s 1us half\npeer a b "
                            "push 2.5GB/s\nengines 2\n",
                            "device a b#2\nlink a b#2 pcie\npeer b#2 a both 30GB/s #half\npeer a "
                            "b#2 latency 0us\npeer b#2 a latency 8.5us\npeer a b#2 pull 3GB/s\n" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        first.size = second.size = 0;
        ds_topology *a = machine(texts[i]);
        assert_int_equal(ds_topology_write(a, DS_TOPOLOGY_TEXT, write_paper, &first), DS_OK);
        ds_topology *b = machine(first.text);
        assert_int_equal(ds_topology_write(b, DS_TOPOLOGY_TEXT, write_paper, &second), DS_OK);
        assert_string_equal(first.text, second.text);
        first.size = second.size = 0;
        assert_int_equal(ds_topology_write(a, DS_TOPOLOGY_MATRIX, write_paper, &first), DS_OK);
        assert_int_equal(ds_topology_write(b, DS_TOPOLOGY_MATRIX, write_paper, &second), DS_OK);
        assert_string_equal(first.text, second.text);
        assert_int_equal(ds_topology_write(a, DS_TOPOLOGY_DOT, write_paper, &first), DS_OK);
        ds_topology_destroy(a);
        ds_topology_destroy(b);
    }
}

static void test_a_route_has_least_latency_then_most_bytes_and_no_device(void **state) {
    (void)state;
    ds_topology *t =
        machine("latency 1us\ndevice d0..2\nswitch s0..1\nlink d0..1 s0 pcie 10GB/s 100ns\nlink "
                "d0..1 s1 pcie 20GB/s 100ns\nlink d0 d2 nvlink 90GB/s 10ns\n"
                "link d2 d1 nvlink 80GB/s 20ns\n");
    const ds__troute *r = ds__route_of(t, 0, 1); /* two wires by s1; by d2 it would be faster */
    assert_int_equal(r->hops, 2);
    assert_int_equal(r->latency_ns, 1200);
    assert_true(r->rate == 20e9 && r->direct && r->only == DS_LINK_PCIE);
    assert_true(ds__route_of(t, 2, 1)->rate == 80e9 && ds__route_of(t, 2, 1)->latency_ns == 1020);
    assert_int_equal(ds__route_of(t, 0, 3)->hops, 0); /* no host */
    ds_topology_destroy(t);
    t = machine("device a b c\nlink a b pcie 10GB/s 5GB/s\nlink a c pcie\nlink b c pcie\npeer a b "
                "push 8GB/s\npeer b a pull 3GB/s\npeer a c push 2GB/s\npeer a c pull 3GB/s\n");
    assert_true(ds__route_of(t, 0, 1)->rate == 10e9 && !ds__route_of(t, 0, 1)->push);
    assert_true(ds__route_of(t, 1, 0)->rate == 5e9 && ds__route_of(t, 1, 0)->push);
    assert_true(ds__route_of(t, 0, 2)->rate == 3e9 && !ds__route_of(t, 0, 2)->push &&
                t->wire[ds__route_of(t, 0, 2)->wire[1]] == 3e9);
    ds_topology_destroy(t);
    /* 30 GB/s both ways: one wire more, the same for both; the last line counts; what is no
       limit is none, and alone a copy is as fast as without */
    t = machine("device a b c d\nlink a b pcie 20GB/s 15GB/s\nlink a c pcie 10GB/s\nlink b c "
                "pcie\nlink a d pcie 10GB/s\nlink b d pcie\nlink c d pcie\npeer b a both 12GB/s\n"
                "peer a b both 30GB/s\npeer a c both 20GB/s\npeer a d both 1GB/s\npeer a b latency "
                "9us\npeer a b latency 8us\n");
    const ds__troute *there = ds__route_of(t, 0, 1), *back = ds__route_of(t, 1, 0);
    assert_true(there->hops == 2 && back->hops == 2 && there->wire[1] == back->wire[1] &&
                t->wire[there->wire[1]] == 30e9);
    assert_true(there->rate == 20e9 && back->rate == 15e9);
    assert_true(there->latency_ns == 8000 && back->latency_ns == 6500);
    assert_int_equal(ds__route_of(t, 0, 2)->hops, 1);
    assert_true(ds__route_of(t, 3, 0)->hops == 2 && ds__route_of(t, 3, 0)->rate == 10e9 &&
                t->wire[ds__route_of(t, 3, 0)->wire[1]] == 10e9);
    ds_topology_destroy(t);
}

static void test_the_devices_that_are_here(void **state) {
    static paper text;
    ds_device two[3] = { { DS_DEVICE_CPU, 0 }, { DS_DEVICE_CPU, 0 }, { DS_DEVICE_HOST, 0 } };
    ds_topology *t;
    (void)state;
    assert_int_equal(ds_topology_create_of_devices(two, 2, 0, &t), DS_OK);
    assert_int_equal(ds_topology_get_size(t), 2);
    assert_int_equal(ds_topology_get_size(NULL), 0);
    assert_int_equal(ds_topology_write(t, DS_TOPOLOGY_TEXT, write_paper, &text), DS_OK);
    assert_non_null(strstr(text.text, "device cpu:0#2"));
    ds_topology_destroy(t);
    assert_int_equal(ds_topology_create_of_devices(two, 3, 0, &t), DS_ERR_INVALID_DEVICE);
    assert_null(t);
    assert_int_equal(ds_topology_create_of_devices(two, 0, 0, &t), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_topology_create_of_devices(two, 2, 8, &t), DS_ERR_INVALID_VALUE);
    ds_device four[4] = {
        { DS_DEVICE_CPU, 0 }, { DS_DEVICE_CPU, 1 }, { DS_DEVICE_CPU, 2 }, { DS_DEVICE_CPU, 3 }
    };
    /* a call measures for so long only, and the next one what is left */
    for (int more = 1; more;) {
        assert_int_equal(ds_topology_create_of_devices(four, 4, DS_TOPOLOGY_PROBE, &t), DS_OK);
        text.size = 0;
        assert_int_equal(ds_topology_write(t, DS_TOPOLOGY_TEXT, write_paper, &text), DS_OK);
        assert_non_null(strstr(text.text, "peer cpu:0 cpu:1 push "));
        more = !strstr(text.text, "peer cpu:1 cpu:3 push ");
        if (more)
            ds_topology_destroy(t);
    }
    const ds_plan *p = NULL;
    ds_plan_desc d = { .what = DS_ALL_REDUCE, .bytes = 4 << 20, .item = 4, .order = DS_ORDER_ANY };
    assert_int_equal(ds_plan_get(t, &d, &p), DS_OK);
    assert_true(p->steps > 0);
    ds_topology_destroy(t);
}

/* The machine of a text as the CPU driver's: a copy of 10,240 bytes takes the time of its link,
   its engine and its latency. */
static void test_a_topology_is_the_cpu_drivers_machine(void **state) {
    (void)state;
    ds_topology *t =
        machine("latency 2us\nstart 1us\ndevice a b\nlink a b nvlink 10.24GB/s 100ns\n");
    ds_cpu_fabric fabric;
    ds_cpu_desc cpu;
    ds_init_desc desc;
    int64_t begin, end;
    void *from, *to;
    ds_stream stream;
    ds_stream_desc on = { .device = { DS_DEVICE_CPU, 1 } };
    assert_int_equal(ds_topology_get_fabric(t, NULL), DS_ERR_INVALID_VALUE);
    assert_int_equal(ds_topology_get_fabric(t, &fabric), DS_OK);
    assert_int_equal(ds_shutdown(), DS_OK);
    memset(&cpu, 0, sizeof cpu);
    memset(&desc, 0, sizeof desc);
    cpu.fabric = &fabric;
    desc.cpu = &cpu;
    assert_int_equal(ds_init(&desc), DS_OK);
    assert_int_equal(ds_stream_create(&on, &stream), DS_OK);
    assert_int_equal(ds_device_alloc(ds_cpu(0), 10240, &from), DS_OK);
    assert_int_equal(ds_device_alloc(ds_cpu(1), 10240, &to), DS_OK);
    assert_int_equal(ds_cpu_get_clock(&begin), DS_OK);
    assert_int_equal(ds_copy(to, from, 10240, stream), DS_OK);
    assert_int_equal(ds_stream_synchronize(stream), DS_OK);
    assert_int_equal(ds_cpu_get_clock(&end), DS_OK);
    assert_int_equal(end - begin, 1000 + 1000 + 2100);
    assert_int_equal(ds_device_free(from), DS_OK);
    assert_int_equal(ds_device_free(to), DS_OK);
    assert_int_equal(ds_stream_destroy(stream), DS_OK);
    assert_int_equal(ds_shutdown(), DS_OK);
    ds_topology_destroy(t);
}

/* ---- tests of plans ---- */

static const char *const algorithms[] = { NULL,     "direct",  "binomial", "chain",
                                          "spread", "islands", "trees",    "staged" };
static const char *const machines[] = { PCIE8, SOCKETS8,     NVSWITCH8,
                                        RING6, DGX1,         NO_PEERS4,
                                        SLOW4, "device a\n", "device a b\nlink a b nvlink\n" };

static void test_every_algorithm_is_right_for_each_collective_or_refuses(void **state) {
    size_t done[8] = { 0 };
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m += FEWER ? 5 : 1) {
        ds_topology *t = machine(machines[m]);
        size_t ranks = (size_t)ds_topology_get_size(t);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (size_t a = 0; a < 8; a++)
                for (int order = 0;
                     order <
                     (what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER ? 3
                                                                                              : 1);
                     order++) {
                    const ds_plan *p;
                    ds_plan_desc d = { .what = (ds_collective)what,
                                       .bytes = ranks * 512,
                                       .root = (int)(ranks / 2),
                                       .item = 4,
                                       .order = (ds_plan_order)order,
                                       .algorithm = algorithms[a] };
                    ds_result r = ds_plan_get(t, &d, &p);
                    if (r == DS_ERR_UNSUPPORTED && a > 1)
                        continue;
                    plan_of(t, d);
                    d.pieces = 3;
                    plan_of(t, d);
                    done[a]++;
                }
        ds_topology_destroy(t);
    }
    for (size_t a = 0; a < 8; a++)
        assert_true(done[a] > 0);
}

static uint64_t seed = 1;

static size_t any(size_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(seed >> 33) % below;
}

/* Devices on some switches, which hang on each other or on sockets, and some direct links. */
static void any_machine(char *text, size_t size) {
    int devices = 1 + (int)any(7), switches = 1 + (int)any(3), n;
    n = snprintf(
        text, size,
        "device d0..%d\nswitch s0..%d\nsocket c\nlink c host host\nlink s0..%d c pcie %zuGB/s\n",
        devices - 1, switches - 1, switches - 1, 1 + any(30));
    for (int i = 0; i < devices; i++)
        n += snprintf(text + n, size - (size_t)n, "link d%d s%zu pcie %zuGB/s%s\n", i,
                      any((size_t)switches), 1 + any(40), any(8) ? "" : " half");
    for (int i = 0; i < devices; i++)
        for (int k = 0; k < i; k++) {
            if (any(4) == 0)
                n += snprintf(text + n, size - (size_t)n, "link d%d d%d nvlink %zuGB/s\n", i, k,
                              10 + any(50));
            if (any(6) == 0)
                n += snprintf(text + n, size - (size_t)n, "peer d%d d%d %s\n", i, k,
                              any(2) ? "off" : "nvlink");
            if (any(10) == 0)
                n += snprintf(text + n, size - (size_t)n, "peer d%d d%d %s %zuGB/s\n", i, k,
                              any(2) ? "push" : "pull", 1 + any(30));
        }
}

static void test_random_machines_sizes_and_roots(void **state) {
    static char text[8192];
    (void)state;
    for (int round = 0; round < (FEWER ? 3 : 25); round++) {
        any_machine(text, sizeof text);
        ds_topology *t = machine(text);
        size_t ranks = (size_t)ds_topology_get_size(t), item = (size_t)1 << any(4);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
            size_t bytes = any(8) ? item * any(300) : 0;
            ds_plan_desc d = { .what = (ds_collective)what,
                               .bytes = what == DS_ALL_TO_ALL ? bytes * ranks : bytes,
                               .root = (int)any(ranks),
                               .item = item,
                               .order = (ds_plan_order)any(3),
                               .pieces = any(3) ? 0 : 1 + any(12) };
            const ds_plan *p = plan_of(t, d);
            if (d.pieces)
                continue;
            d.algorithm = "direct"; /* never slower than that */
            const ds_plan *naive = plan_of(t, d);
            if (p->predicted_ns > naive->predicted_ns)
                fail_msg("%s of %zu bytes: %s takes %lld ns, direct %lld\n%s",
                         ds_collective_get_name(d.what), d.bytes, p->desc.algorithm,
                         (long long)p->predicted_ns, (long long)naive->predicted_ns, text);
        }
        ds_topology_destroy(t);
    }
}

/* More than 32 ranks are planned in another way: one group, two with links of their own and with
   one link, three, groups of different sizes, a shared host. */
#define ISLANDS(more) \
    "device d0..39\nswitch a b net\nlink d0..19 a nvswitch\nlink d20..39 b nvswitch\n" more
/* 17 groups of two */
#define ISLANDS_OF_TWO                                                                   \
    "device d0..33\nswitch s0..16 net\nlink d0..1 s0 nvswitch\nlink d2..3 s1 nvswitch\n" \
    "link d4..5 s2 nvswitch\nlink d6..7 s3 nvswitch\nlink d8..9 s4 nvswitch\n"           \
    "link d10..11 s5 nvswitch\nlink d12..13 s6 nvswitch\nlink d14..15 s7 nvswitch\n"     \
    "link d16..17 s8 nvswitch\nlink d18..19 s9 nvswitch\nlink d20..21 s10 nvswitch\n"    \
    "link d22..23 s11 nvswitch\nlink d24..25 s12 nvswitch\nlink d26..27 s13 nvswitch\n"  \
    "link d28..29 s14 nvswitch\nlink d30..31 s15 nvswitch\nlink d32..33 s16 nvswitch\n"  \
    "link s0..16 net network\n"
static const char *const large[] = {
    "device d0..35\nswitch nv\nlink d0..35 nv nvswitch\n",
    ISLANDS("link d0..39 net network\n"),
    ISLANDS("link a b network\n"),
    "device d0..35\nswitch a b c net\nlink d0..11 a nvswitch\nlink d12..23 b nvswitch\nlink "
    "d24..35 c nvswitch\nlink a net network\nlink b net network\nlink c net network\n",
    "device d0..39\nswitch a b net\nlink d0..24 a nvswitch\nlink d25..39 b nvswitch\nlink a net "
    "network\nlink b net network\n",
    "device d0..32\nsocket c\nlink d0..32 c pcie\nlink c host host\npeer d3 d4 off\npeer d30 d2 "
    "off\n"
};

static void test_many_ranks(void **state) {
    static const size_t items[] = { 0, 7, 40, 1000 };
    (void)state;
    for (size_t m = FEWER ? 3 : 0; m < (FEWER ? 4 : sizeof large / sizeof large[0]); m++) {
        ds_topology *t = machine(large[m]);
        size_t ranks = (size_t)ds_topology_get_size(t);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (size_t i = 0; i < sizeof items / sizeof items[0]; i++)
                (void)plan_of(
                    t, (ds_plan_desc){ .what = (ds_collective)what,
                                       .bytes = items[i] * 4 * (what == DS_ALL_TO_ALL ? ranks : 1),
                                       .root = (int)any(ranks),
                                       .item = 4,
                                       .order = (ds_plan_order)any(3),
                                       .pieces = i == 3 ? any(4) : 0 });
        ds_topology_destroy(t);
    }
}

/* Algorithms that are asked for do every collective that they can do with more than 32 ranks. Of
   sums, "islands" must be there, also for a reduce, whose root leads nothing. (Of the orders, the
   first does not scatter a reduction by "islands".) */
static void test_algorithms_asked_for_with_many_ranks(void **state) {
    static const char *const texts[] = { ISLANDS("link a b network\n"), ISLANDS_OF_TWO };
    size_t sums[DS_COLLECTIVE_COUNT] = { 0 };
    (void)state;
    for (size_t m = FEWER ? 1 : 0; m < sizeof texts / sizeof texts[0]; m++) {
        ds_topology *t = machine(texts[m]);
        size_t ranks = (size_t)ds_topology_get_size(t);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (size_t a = 1; a < sizeof algorithms / sizeof algorithms[0]; a++)
                for (int order = FEWER; order < (FEWER ? 2 : 3); order++) {
                    const ds_plan *p;
                    ds_plan_desc d = { .what = (ds_collective)what,
                                       .bytes = ranks * ranks * 4,
                                       .root = (int)(ranks / 2),
                                       .item = 4,
                                       .order = (ds_plan_order)order,
                                       .algorithm = algorithms[a],
                                       .pieces = 1 };
                    ds_result r = ds_plan_get(t, &d, &p);
                    if (r == DS_ERR_UNSUPPORTED)
                        continue;
                    plan_of(t, d);
                    sums[what] += strcmp(algorithms[a], "islands") == 0;
                }
        ds_topology_destroy(t);
    }
    assert_true(sums[DS_REDUCE] > 0);
    assert_true(sums[DS_ALL_REDUCE] > 0);
    assert_true(sums[DS_REDUCE_SCATTER] > 0);
}

/* The ways that only much data takes: blocks of several ranks in one sum, leads that are not the
   root, pieces. */
static void test_many_ranks_and_much_data(void **state) {
    (void)state;
    for (size_t m = FEWER ? 2 : 0; m < 3; m++) {
        ds_topology *t = machine(large[m]);
        size_t ranks = (size_t)ds_topology_get_size(t);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (int order = 1; order < (what == DS_REDUCE || what == DS_REDUCE_SCATTER ? 3 : 2);
                 order++) {
                /* elements of 64 KiB, so that few have to be looked at */
                size_t item = (size_t)1 << 16;
                (void)plan_of(t, (ds_plan_desc){ .what = (ds_collective)what,
                                                 .bytes = ranks * 4 * item,
                                                 .root = (int)any(ranks),
                                                 .item = item,
                                                 .order = (ds_plan_order)order,
                                                 .pieces = 1 + any(2) });
            }
        ds_topology_destroy(t);
    }
}

/* Ranks in rows and columns, for every length of a row: what is chosen would be a few of them
   only. */
static const ds_plan *grid_of(ds_topology *t, const ds_plan_desc *d, int leads, int run,
                              ds__planned **out) {
    ds__search s;
    size_t n = (size_t)t->devices + 1;
    ds__guess g = {
        { "islands", DS__WITH_GRID, DS__ROOTED, 1, leads, run, 0, 0 }, d->pieces, 0, 0
    };
    memset(&s, 0, sizeof s);
    s.now.t = t;
    s.now.want = d;
    s.now.p = t->devices;
    for (int i = 0; i < t->devices; i++)
        if (t->seat[i] >= s.now.largest)
            s.now.largest = t->seat[i] + 1;
    s.now.slots = DS__PLAN_SLOTS;
    s.now.scratch = calloc(n, sizeof *s.now.scratch);
    s.best.scratch = calloc(n, sizeof *s.best.scratch);
    s.now.place = calloc(DS__PLACES * n, sizeof *s.now.place);
    s.out = *out = calloc(1, sizeof *s.out);
    const ds_plan *p = NULL;
    if (ds__flows_build(&s.now, &g.algo)) {
        assert_true(ds__search_this(&s, &g));
        s.out->plan.desc = *d;
        s.out->plan.desc.algorithm = "islands";
        s.best.p = t->devices;
        assert_int_equal(ds__plan_fill(&s.best, s.out), DS_OK);
        p = &s.out->plan;
    }
    ds__draft_end(&s.now);
    ds__draft_end(&s.best);
    return p;
}

static void test_grids(void **state) {
    static const char *const texts[] = {
        "device d0..36\nswitch a\nlink d0..36 a nvswitch\n", ISLANDS("link d0..39 net network\n"),
        "device d0..35\nswitch a b c net\nlink d0..11 a nvswitch\nlink d12..23 b nvswitch\nlink "
        "d24..35 c nvswitch\nlink a net network\nlink b net network\nlink c net network\n",
        "device d0..35\nswitch a b net\nlink d0..8 a nvswitch\nlink d18..26 a nvswitch\nlink "
        "d9..17 b nvswitch\nlink d27..35 b nvswitch\nlink a net network\nlink b net network\n"
    };
    static const size_t items[] = { 4, 16, 1 << 16 };
    (void)state;
    for (size_t m = FEWER ? 2 : 0; m < (FEWER ? 3 : sizeof texts / sizeof texts[0]); m++) {
        ds_topology *t = machine(texts[m]);
        size_t ranks = (size_t)ds_topology_get_size(t),
               size = m ? m > 1 ? m > 2 ? 18 : 12 : 20 : 37, made[DS_COLLECTIVE_COUNT] = { 0 };
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (int run = 2; run < 8; run++)
                for (size_t rows = 2; rows * (size_t)run <= size; rows += FEWER ? 3 : 1) {
                    size_t item = items[any(3)],
                           pieces = rows * (size_t)run + 4 < size ? 1 : 1 + any(5),
                           least = ranks * (item < 256 ? 256 / item + 1 : 1) * (pieces + 1);
                    ds_plan_desc d = { .what = (ds_collective)what,
                                       .bytes = (least + any(4 * ranks)) * item,
                                       .root = (int)any(ranks),
                                       .item = item,
                                       .order = DS_ORDER_ANY,
                                       .pieces = pieces };
                    ds__planned *kept;
                    char why[200] = "";
                    const ds_plan *p = grid_of(t, &d, (int)rows * run, run, &kept);
                    made[what] += p != NULL;
                    if (p && !check(p, why))
                        fail_msg("machine %zu, %s of %zu bytes, item %zu, root %d, %zu rows of %d, "
                                 "%zu pieces: %s",
                                 m, ds_collective_get_name(d.what), d.bytes, item, d.root, rows,
                                 run, pieces, why);
                    ds__planned_free(kept);
                }
        assert_true(made[DS_BROADCAST] && made[DS_REDUCE] && made[DS_ALL_REDUCE] &&
                    !made[DS_SCATTER] && !made[DS_GATHER] && !made[DS_ALL_TO_ALL]);
        /* 37 ranks are no whole rows; blocks of a group that are not side by side */
        assert_true(!made[DS_ALL_GATHER] == (m == 0 || m == 3) &&
                    !made[DS_REDUCE_SCATTER] == (m == 0 || m == 3));
        ds_topology_destroy(t);
    }
}

static void test_the_checker_catches_changed_plans(void **state) {
    (void)state;
    ds_topology *t = machine(PCIE8);
    size_t caught[5] = { 0 }, tried[5] = { 0 };
    for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
        ds_plan_desc d = { .what = (ds_collective)what,
                           .bytes = 8 * 512,
                           .root = 1,
                           .item = 4,
                           .order = DS_ORDER_ANY,
                           .algorithm = what == DS_BROADCAST || what == DS_REDUCE ? "chain" : NULL,
                           .pieces = 4 };
        const ds_plan *p = plan_of(t, d);
        /* each check goes through all steps */
        for (size_t i = (size_t)what % 5; i < p->steps; i += FEWER ? 80 : 5)
            for (int kind = 0; kind < 5; kind++) {
                char why[200];
                ds_plan other = *p;
                ds_plan_step *step = calloc(p->steps, sizeof *step);
                ds_plan_location *location = calloc(p->steps * 9, sizeof *location);
                uint32_t locations = p->step[p->steps - 1].from + p->step[p->steps - 1].from_count;
                for (size_t k = 0; k < p->steps; k++)
                    if (p->step[k].from + p->step[k].from_count > locations)
                        locations = p->step[k].from + p->step[k].from_count;
                memcpy(step, p->step, p->steps * sizeof *step);
                memcpy(location, p->location, locations * sizeof *location);
                other.step = step;
                other.location = location;
                if (kind == 0)
                    step[i].bytes -= 4;
                if (kind == 1)
                    step[i].to.offset += 4;
                if (kind == 2)
                    location[step[i].from].offset += 4;
                if (kind == 3)
                    location[step[i].from].rank = (location[step[i].from].rank + 1) % 8;
                int needed = 0; /* others it comes after only to keep the turns */
                for (uint32_t k = 0; k < step[i].after_count; k++)
                    needed |= meet(p, &p->step[i], &p->step[p->before[p->step[i].after + k]]);
                if (kind == 4 && !needed) {
                    free(step);
                    free(location);
                    continue;
                }
                if (kind == 4)
                    step[i].after_count = 0;
                tried[kind]++;
                caught[kind] += !check(&other, why);
                free(step);
                free(location);
            }
    }
    for (int kind = 0; kind < 4; kind++)
        assert_int_equal(caught[kind], tried[kind]);
    /* some come after the same one by way of others, too */
    assert_true(tried[4] > (FEWER ? 1 : 20) && caught[4] * 10 > tried[4] * 9);
    ds_topology_destroy(t);
}

/* ---- how near to the bound ---- */

/* Max-flow by shortest paths on a matrix: nodes of the topology, and one that all sources (or
   sinks) are joined with. Nothing of it is the planner's. */
static double flow_between(const ds_topology *t, unsigned sources, unsigned sinks) {
    static double cap[40][40];
    double sum = 0;
    int n = t->nodes + 2, from = n - 2, to = n - 1;
    memset(cap, 0, sizeof cap);
    assert_true(n <= 40);
    for (int l = 0; l < t->links; l++) {
        cap[t->link[l].a][t->link[l].b] += t->link[l].rate[0];
        cap[t->link[l].b][t->link[l].a] += t->link[l].rate[1];
    }
    for (int i = 0; i < t->devices; i++) {
        if (sources >> i & 1)
            cap[from][t->rank[i]] = 1e18;
        if (sinks >> i & 1)
            cap[t->rank[i]][to] = 1e18;
    }
    for (;;) {
        int back[40], queue[40], first = 0, last = 0;
        double least = 1e18;
        for (int i = 0; i < n; i++)
            back[i] = -1;
        back[from] = from;
        queue[last++] = from;
        while (first < last && back[to] < 0)
            for (int u = queue[first++], v = 0; v < n; v++)
                if (back[v] < 0 && cap[u][v] > 1) {
                    back[v] = u;
                    queue[last++] = v;
                }
        if (back[to] < 0)
            return sum;
        for (int v = to; v != from; v = back[v])
            if (cap[back[v]][v] < least)
                least = cap[back[v]][v];
        for (int v = to; v != from; v = back[v]) {
            cap[back[v]][v] -= least;
            cap[v][back[v]] += least;
        }
        sum += least;
    }
}

/* Seconds: over all ways to part the ranks, what must go across / what can.
   all_reduce: what reduce_scatter and all_gather take. */
static double cut_seconds(const ds_topology *t, const ds_plan_desc *d) {
    double worst = 0;
    int p = t->devices;
    for (unsigned side = 1; side + 1 < 1u << p; side++) {
        int in = __builtin_popcount(side), out = p - in,
            whole = d->what == DS_BROADCAST || d->what == DS_REDUCE, rooted = d->what <= DS_REDUCE;
        double across = whole ? (double)d->bytes
                        : d->what == DS_ALL_GATHER
                            ? (double)d->bytes * in / p
                            : (double)d->bytes * out / p * (d->what == DS_ALL_TO_ALL ? in : 1);
        if (rooted && !(side >> d->root & 1))
            continue;
        unsigned other = ((1u << p) - 1) & ~side;
        if (d->what == DS_GATHER || d->what == DS_REDUCE) {
            unsigned s = other;
            other = side;
            side = s;
        }
        double time = across / flow_between(t, side, other);
        if (d->what == DS_GATHER || d->what == DS_REDUCE) {
            unsigned s = other;
            other = side;
            side = s;
        }
        if (time > worst)
            worst = time;
    }
    return worst;
}

/* The shortest latency between two ranks, in ns, by the links (Floyd and Warshall; all machines
   here let nothing through a rank). */
static double shortest_latency(const ds_topology *t) {
    static double far[40][40];
    int n = t->nodes;
    double least = 1e18;
    assert_true(n <= 40);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            far[i][k] = 1e18;
    for (int l = 0; l < t->links; l++)
        far[t->link[l].a][t->link[l].b] = far[t->link[l].b][t->link[l].a] =
            (double)t->link[l].latency;
    for (int m = 0; m < n; m++)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < n; k++)
                if (far[i][m] + far[m][k] < far[i][k])
                    far[i][k] = far[i][m] + far[m][k];
    for (int i = 0; i < t->devices; i++)
        for (int k = 0; k < t->devices; k++)
            if (i != k && far[t->rank[i]][t->rank[k]] < least)
                least = far[t->rank[i]][t->rank[k]];
    return least + (double)t->latency_ns;
}

static void test_large_plans_are_near_the_bound_and_the_bound_is_right(void **state) {
    static const struct {
        const char *text;
        int what, order;
        double share;
    } rows[] = { { PCIE8, DS_BROADCAST, 0, 0.95 },
                 { PCIE8, DS_SCATTER, 0, 0.95 },
                 { PCIE8, DS_GATHER, 0, 0.95 },
                 { PCIE8, DS_REDUCE, DS_ORDER_LIST, 0.95 },
                 { PCIE8, DS_ALL_GATHER, 0, 0.9 },
                 { SOCKETS8, DS_BROADCAST, 0, 0.95 },
                 { SOCKETS8, DS_SCATTER, 0, 0.95 },
                 { SOCKETS8, DS_GATHER, 0, 0.95 },
                 { SOCKETS8, DS_REDUCE, DS_ORDER_LIST, 0.95 },
                 { NVSWITCH8, DS_BROADCAST, 0, 0.95 },
                 { NVSWITCH8, DS_REDUCE, DS_ORDER_ANY, 0.9 },
                 { NVSWITCH8, DS_SCATTER, 0, 0.95 },
                 { NVSWITCH8, DS_ALL_GATHER, 0, 0.95 },
                 { NVSWITCH8, DS_REDUCE_SCATTER, DS_ORDER_AT_ONCE, 0.95 },
                 { NVSWITCH8, DS_GATHER, 0, 0.95 },
                 { SLOW4, DS_BROADCAST, 0, 0.95 },
                 { NO_PEERS4, DS_BROADCAST, 0, 0.95 },
                 { DGX1, DS_BROADCAST, 0, 0.9 },
                 { DGX1, DS_REDUCE, DS_ORDER_ANY, 0.9 },
                 { PCIE8, DS_ALL_REDUCE, DS_ORDER_ANY, 0.95 },
                 { PCIE8, DS_REDUCE_SCATTER, DS_ORDER_ANY, 0.95 },
                 { PCIE8, DS_ALL_TO_ALL, 0, 0.95 },
                 { SOCKETS8, DS_ALL_REDUCE, DS_ORDER_ANY, 0.9 },
                 { SOCKETS8, DS_ALL_GATHER, 0, 0.9 },
                 { SOCKETS8, DS_REDUCE_SCATTER, DS_ORDER_ANY, 0.9 },
                 { SOCKETS8, DS_ALL_TO_ALL, 0, 0.9 },
                 { NO_PEERS4, DS_REDUCE_SCATTER, DS_ORDER_ANY, 0.95 },
                 { NO_PEERS4, DS_ALL_TO_ALL, 0, 0.95 },
                 { NO_PEERS4, DS_ALL_GATHER, 0, 0.95 },
                 { DGX1, DS_ALL_GATHER, 0, 0.9 },
                 { DGX1, DS_ALL_REDUCE, DS_ORDER_ANY, 0.9 } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i += FEWER ? 15 : SLOW ? 4 : 1) {
        const ds_plan *p;
        ds_topology *t = machine(rows[i].text);
        ds_plan_desc d = { .what = (ds_collective)rows[i].what,
                           .bytes = (size_t)1 << 30,
                           .item = 4,
                           .order = (ds_plan_order)rows[i].order };
        double ns = 0;
        /* little data shows the latency's part */
        for (d.bytes = 65536; d.bytes <= (size_t)1 << 30; d.bytes <<= 14) {
            assert_int_equal(ds_plan_get(t, &d, &p), DS_OK);
            ns = 0;
            for (int half = 0; half < (d.what == DS_ALL_REDUCE ? 2 : 1); half++) {
                ds_plan_desc part = d;
                if (d.what == DS_ALL_REDUCE)
                    part.what = half ? DS_ALL_GATHER : DS_REDUCE_SCATTER;
                ns += cut_seconds(t, &part) * 1e9;
            }
            ns += (double)(3 - (t->devices == 4)) * shortest_latency(t) *
                  (d.what == DS_ALL_REDUCE ? 2 : 1);
            if (ns < 0.999 * (double)p->bound_ns || ns > 1.001 * (double)p->bound_ns)
                fail_msg("row %zu, %s of %zu bytes: the bound is %.0f ns, not %lld", i,
                         ds_collective_get_name(d.what), d.bytes, ns, (long long)p->bound_ns);
        }
        if (ns < rows[i].share * (double)p->predicted_ns)
            fail_msg("row %zu: %s by %s takes %lld ns, the bound is %.0f", i,
                     ds_collective_get_name(d.what), p->desc.algorithm, (long long)p->predicted_ns,
                     ns);
        ds_topology_destroy(t);
    }
}

/* 72 ranks in one group, and two such groups whose ranks have a link each into the network, or
   have one link: at most the bound over 0.8, but for what docs/plans.md names. */
static void test_plans_for_many_ranks_stay_near_the_bound(void **state) {
    static const char *const texts[] = {
        "device d0..71\nswitch a\nsocket c\nlink d0..71 a nvswitch 900GB/s\nlink d0..71 c pcie "
        "50GB/s\nlink c host host\n",
        "device d0..143\nswitch a b net\nlink d0..71 a nvswitch 900GB/s\nlink d72..143 b nvswitch "
        "900GB/s\nlink d0..143 net network\n",
        "device d0..143\nswitch a b net\nlink d0..71 a nvswitch 900GB/s\nlink d72..143 b nvswitch "
        "900GB/s\nlink a net network 800GB/s\nlink b net network 800GB/s\n"
    };
    (void)state;
    for (size_t m = 0, turn = 0; m < sizeof texts / sizeof texts[0]; m++) {
        ds_topology *t = machine(texts[m]);
        size_t whole = 4 * (size_t)ds_topology_get_size(t);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (size_t kib = 4; kib <= (size_t)1 << 20; kib *= kib < 64 ? 16 : 4, turn++) {
                const ds_plan *p;
                ds_plan_desc d = { .what = (ds_collective)what,
                                   .bytes = (kib * 1024 + whole - 1) / whole * whole,
                                   .root = 5,
                                   .item = 4,
                                   .order = DS_ORDER_ANY };
                double share = m && what == DS_ALL_TO_ALL && kib < 1024 ? 0.5 : 0.79;
                /* all of them take a minute */
                if (turn % (FEWER ? 20 : SLOW ? 10 : 4))
                    continue;
                assert_int_equal(ds_plan_get(t, &d, &p), DS_OK);
                if ((double)p->bound_ns < share * (double)p->predicted_ns)
                    fail_msg("%s of %zu KiB over %d ranks, machine %zu, by %s takes %lld ns, the "
                             "bound is %lld",
                             ds_collective_get_name(d.what), kib, t->devices, m, p->desc.algorithm,
                             (long long)p->predicted_ns, (long long)p->bound_ns);
            }
        ds_topology_destroy(t);
    }
}

static void test_no_plan_is_slower_than_whole_copies_one_after_the_other(void **state) {
    static const size_t sizes[] = { 4096, 1 << 20, 1 << 28 };
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m += FEWER ? 9 : SLOW ? 5 : 1) {
        ds_topology *t = machine(machines[m]);
        size_t whole = 4 * (size_t)ds_topology_get_size(t);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (int order = 0;
                 order <
                 (what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER ? 3 : 1);
                 order++)
                for (size_t i = 0; i < (FEWER           ? 1
                                        : SLOW || m % 3 ? 2
                                                        : sizeof sizes / sizeof sizes[0]);
                     i++) /* much data takes long to plan */ {
                    const ds_plan *p, *naive;
                    ds_plan_desc d = { .what = (ds_collective)what,
                                       .bytes = sizes[i] / whole * whole,
                                       .item = 4,
                                       .order = (ds_plan_order)order };
                    assert_int_equal(ds_plan_get(t, &d, &p), DS_OK);
                    d.algorithm = "direct";
                    d.pieces = 1;
                    assert_int_equal(ds_plan_get(t, &d, &naive), DS_OK);
                    if (p->predicted_ns > naive->predicted_ns)
                        fail_msg(
                            "machine %zu, %s of %zu bytes, order %d: %s takes %lld ns, direct %lld",
                            m, ds_collective_get_name(d.what), d.bytes, order, p->desc.algorithm,
                            (long long)p->predicted_ns, (long long)naive->predicted_ns);
                }
        ds_topology_destroy(t);
    }
}

/* Rates that are not a few units of the slowest link: the unit becomes coarser, or the links of
   more units than are counted have the most. */
static void test_meshes_of_links_of_very_different_rates(void **state) {
#define FOUR                                                                                   \
    "device a b c d\nlink a b nvlink 90GB/s\nlink b c nvlink 90GB/s\nlink c d nvlink 90GB/s\n" \
    "link d a nvlink 90GB/s\nlink a c nvlink 1GB/s\nlink b d nvlink 7GB/s\n"
    static const char *const texts[] = {
        "device a b c\nlink a b nvlink 30GB/s\nlink b c nvlink 30GB/s\nlink a c nvlink 1GB/s\n",
        "device a b c\nlink a b nvlink 100TB/s\nlink b c nvlink 100TB/s\nlink a c nvlink 1KB/s\n",
        FOUR
    };
    static ds__mesh mesh;
    (void)state;
    for (size_t m = 0; m < sizeof texts / sizeof texts[0]; m++) {
        ds_topology *t = machine(texts[m]);
        size_t ranks = (size_t)ds_topology_get_size(t);
        for (int most = 1; most <= DS__MESH; most++) {
            int trees = ds__mesh_init(t, &mesh, most);
            assert_in_range(trees, 0, most);
            for (size_t i = 0; i < ranks; i++)
                for (size_t k = 0; k < ranks; k++)
                    assert_in_range(mesh.cap[i][k], 0, 1000);
            assert_true(trees == 0 || mesh.cap[0][1] >= 1); /* one of the fast links */
        }
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (int order = 0; order < 3; order++)
                (void)plan_of(t, (ds_plan_desc){ .what = (ds_collective)what,
                                                 .bytes = ranks * (SLOW ? 1000 : 5000) * 4,
                                                 .root = (int)any(ranks),
                                                 .item = 4,
                                                 .order = (ds_plan_order)order });
        ds_topology_destroy(t);
    }
}

static void test_eight_devices_on_a_pcie_tree_are_five_times_faster(void **state) {
    const ds_plan *p;
    ds_plan_desc d = {
        .what = DS_BROADCAST, .bytes = (size_t)1 << 30, .item = 4, .order = DS_ORDER_LIST
    };
    ds_topology *t = machine(PCIE8);
    (void)state;
    for (d.what = DS_BROADCAST; d.what <= DS_REDUCE; d.what = (ds_collective)(d.what + DS_REDUCE)) {
        assert_int_equal(ds_plan_get(t, &d, &p), DS_OK);
        /* seven whole copies at 25 bytes/ns */
        assert_true((double)p->predicted_ns * 5 <= 7 * (double)d.bytes / 25);
    }
    ds_topology_destroy(t);
}

/* Computed by hand: start 1000 ns, latency 2000 + 100 ns, 10 bytes/ns, pieces of 10,000 bytes.
   Piece k leaves a at 1000k, since two engines take turns, and is at b at 1000k + 4100; b passes
   it on then. */
static void test_the_prediction_of_a_chain_is_as_computed_by_hand(void **state) {
    const ds_plan *p;
    ds_plan_desc d = { .what = DS_BROADCAST,
                       .bytes = 40960,
                       .item = 4,
                       .order = DS_ORDER_LIST,
                       .algorithm = "chain",
                       .pieces = 4 };
    ds_topology *t =
        machine("latency 2us\nstart 1us\ndevice a b c\nlink a b nvlink 10.24GB/s 100ns\nlink b c "
                "nvlink 10.24GB/s 100ns\nlink a c nvlink 1GB/s 100ns\n");
    (void)state;
    assert_int_equal(ds_plan_get(t, &d, &p), DS_OK);
    assert_int_equal(p->steps, 8);
    assert_int_equal(p->predicted_ns, 3000 + 2 * 4100);
    ds_topology_destroy(t);
}

static void test_plans_are_kept_and_bad_wishes_refused(void **state) {
    static paper text;
    const ds_plan *p, *q;
    ds_plan_desc d = { .what = DS_ALL_REDUCE, .bytes = 4096, .item = 4, .order = DS_ORDER_LIST };
    ds_topology *t = machine(PCIE8);
    (void)state;
    assert_int_equal(ds_plan_get(t, &d, &p), DS_OK);
    assert_int_equal(ds_plan_get(t, &d, &q), DS_OK);
    assert_ptr_equal(p, q);
    assert_int_equal(ds_plan_write(t, p, write_paper, &text), DS_OK);
    assert_non_null(strstr(text.text, "all_reduce of 4096 bytes over 8 ranks"));
    assert_non_null(strstr(text.text, "predicted"));
#define REFUSED(member, value, code, word)                             \
    do {                                                               \
        ds_plan_desc bad_ = d;                                         \
        bad_.member = (value);                                         \
        q = p;                                                         \
        assert_int_equal(ds_plan_get(t, &bad_, &q), code);             \
        assert_null(q);                                                \
        if (!strstr(ds_error_get_last(), word))                        \
            fail_msg("'%s' is not in: %s", word, ds_error_get_last()); \
    } while (0)
    REFUSED(what, (ds_collective)9, DS_ERR_INVALID_VALUE, "9");
    REFUSED(order, (ds_plan_order)3, DS_ERR_INVALID_VALUE, "3");
    REFUSED(root, 8, DS_ERR_INVALID_VALUE, "8");
    REFUSED(root, -1, DS_ERR_INVALID_VALUE, "-1");
    REFUSED(item, 3, DS_ERR_INVALID_VALUE, "3");
    REFUSED(pieces, 1025, DS_ERR_INVALID_VALUE, "1025");
    REFUSED(algorithm, "magic", DS_ERR_INVALID_VALUE, "magic");
    REFUSED(algorithm, "trees", DS_ERR_UNSUPPORTED, "trees");
    d.what = DS_ALL_TO_ALL;
    REFUSED(bytes, 4100, DS_ERR_INVALID_VALUE, "4100");
    ds_topology_destroy(t);
}

int main(void) {
    setenv("DEVSTREAM_CPU_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_wrong_with_a_text_is_said_with_line_and_word),
        cmocka_unit_test(test_a_topology_written_as_text_is_the_same_when_it_is_read),
        cmocka_unit_test(test_a_route_has_least_latency_then_most_bytes_and_no_device),
        cmocka_unit_test(test_the_devices_that_are_here),
        cmocka_unit_test(test_a_topology_is_the_cpu_drivers_machine),
        cmocka_unit_test(test_every_algorithm_is_right_for_each_collective_or_refuses),
        cmocka_unit_test(test_random_machines_sizes_and_roots),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_algorithms_asked_for_with_many_ranks),
        cmocka_unit_test(test_many_ranks_and_much_data),
        cmocka_unit_test(test_grids),
        cmocka_unit_test(test_the_checker_catches_changed_plans),
        cmocka_unit_test(test_large_plans_are_near_the_bound_and_the_bound_is_right),
        cmocka_unit_test(test_plans_for_many_ranks_stay_near_the_bound),
        cmocka_unit_test(test_no_plan_is_slower_than_whole_copies_one_after_the_other),
        cmocka_unit_test(test_meshes_of_links_of_very_different_rates),
        cmocka_unit_test(test_eight_devices_on_a_pcie_tree_are_five_times_faster),
        cmocka_unit_test(test_the_prediction_of_a_chain_is_as_computed_by_hand),
        cmocka_unit_test(test_plans_are_kept_and_bad_wishes_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
