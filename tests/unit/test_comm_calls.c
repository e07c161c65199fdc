/* The calls of collectives with wrong arguments, from inside of user code, and of many tensors when
   host memory runs out: what each one returns and says, and that it works afterwards. On the CPU
   driver and, upon the stand-in, on the CUDA driver, with two devices each. And how long the
   kernels of collectives take on a virtual clock. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "comm/kernel.h"
#include "scarce.h"
#include "unit.h"
#include "both.h"

#include <stdio.h>
#include <string.h>

#define SHAPE(...)  \
    (int64_t[]) {   \
        __VA_ARGS__ \
    }
#define LIST(tensors) ((const ds_tensor *const *)(tensors))

enum { MOST = 40 }; /* tensors of a collective */

static ds_device device, second; /* of the driver under test */

static void start(const ds_cpu_desc *cpu) {
    static const ds_cpu_desc usual = { .devices = 2 };
    int count;
    ok(ds_init(&(ds_init_desc){ .cpu = cpu ? cpu : &usual, .allocator = SCARCE }));
    ok(ds_device_get_count(DS_DEVICE_CPU, &count)); /* starts the library */
}

static void stop(void) {
    ok(ds_shutdown());
    assert_int_equal(scarce_held, 0);
#ifdef DEVSTREAM_CUDA
    char report[200];
    if (standin_live(report, sizeof report) != 0)
        fail_msg("left behind: %s", report);
#endif
}

static int begin_cpu(void **state) {
    (void)state;
    device = ds_cpu(0);
    second = ds_cpu(1);
    start(NULL);
    return 0;
}
#ifdef DEVSTREAM_CUDA
static int begin_cuda(void **state) {
    (void)state;
    device = ds_cuda(0);
    second = ds_cuda(1);
    start(NULL);
    return 0;
}
#endif

static int end(void **state) {
    (void)state;
    stop();
    return 0;
}

/* ---- the tensors of a collective ---- */

/* `count` tensors on two devices by turns: inputs of 2 * count rows and 3 columns that are not
   contiguous, outputs of the same shape, parts of 2 rows, and wide ones of count times the rows. */
typedef struct crew {
    size_t count;
    ds_device to[MOST];
    ds_stream s[MOST];
    ds_tensor *base[MOST], *in[MOST], *out[MOST], *part[MOST], *wide[MOST];
    ds_tensor *own[3]; /* some of these on the first device, the last with gaps */
    ds_tensor *made[3 * MOST];
    ds_comm_options options;
    ds_topology *topology;
} crew;

static ds_tensor *tensor_on(ds_stream s, int64_t rows, int64_t columns) {
    ds_tensor *t;
    ok(ds_tensor_alloc(ds_float32(), 2, SHAPE(rows, columns), s, &t));
    return t;
}

static void open_crew(crew *c, size_t count) {
    memset(c, 0, sizeof *c);
    c->count = count;
    int64_t n = (int64_t)count;
    for (size_t i = 0; i < count; i++) {
        float x = (float)(i + 1);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        c->to[i] = i % 2 ? second : device;
        ok(ds_stream_create(&(ds_stream_desc){ .device = c->to[i] }, &c->s[i]));
        c->base[i] = tensor_on(c->s[i], 3, 2 * n);
        ok(ds_tensor_transpose(c->base[i], 0, 1, &c->in[i]));
        c->out[i] = tensor_on(c->s[i], 2 * n, 3);
        c->part[i] = tensor_on(c->s[i], 2, 3);
        c->wide[i] = tensor_on(c->s[i], 2 * n * n, 3);
        ok(ds_fill(c->base[i]->data, bits, 4, (size_t)(6 * n), c->s[i]));
        bits += 1; /* one number differs from all others */
        ok(ds_fill((float *)c->base[i]->data + i % 6, bits, 4, 1, c->s[i]));
    }
    c->own[0] = c->base[0];
    c->own[1] = c->part[0];
    c->own[2] = c->in[2];
    ok(ds_topology_create_of_devices(c->to, count < 8 ? count : 8, 0, &c->topology));
    c->options = (ds_comm_options){ .streams = c->s, .stream_count = count, .stream = c->s[0] };
}

static void free_made(crew *c) {
    for (size_t i = 0; i < sizeof c->made / sizeof *c->made; i++) {
        ok(ds_tensor_free(c->made[i]));
        c->made[i] = NULL;
    }
}

static void synchronize(const crew *c) {
    for (size_t i = 0; i < c->count; i++)
        ok(ds_stream_synchronize(c->s[i]));
}

static void close_crew(crew *c) {
    free_made(c);
    synchronize(c);
    for (size_t i = 0; i < c->count; i++) {
        ds_tensor *all[] = { c->in[i], c->base[i], c->out[i], c->part[i], c->wide[i] };
        for (int k = 0; k < 5; k++)
            ok(ds_tensor_free(all[k]));
        ok(ds_stream_destroy(c->s[i]));
    }
    ds_topology_destroy(c->topology);
}

/* Each collective with the tensors of a crew, whose arguments a test may change. */
#define PLAY(name, call)                        \
    static ds_result play_##name(crew *c) {     \
        const size_t n = c->count;              \
        const ds_comm_options *o = &c->options; \
        return call;                            \
    }
PLAY(broadcast, ds_comm_broadcast(c->in[0], c->to, n, o, c->made))
PLAY(broadcast_into, ds_comm_broadcast_into(c->in[0], LIST(c->out), n, o))
PLAY(broadcast_coalesced, ds_comm_broadcast_coalesced(LIST(c->own), 3, c->to, n, 200, o, c->made))
PLAY(scatter, ds_comm_scatter(c->in[0], c->to, n, NULL, 0, o, c->made, NULL))
PLAY(scatter_into, ds_comm_scatter_into(c->in[0], LIST(c->part), n, 0, o))
PLAY(gather, ds_comm_gather(LIST(c->in), n, 0, c->to[0], o, c->made))
PLAY(gather_into, ds_comm_gather_into(LIST(c->in), n, 0, c->wide[0], o))
PLAY(reduce, ds_comm_reduce(LIST(c->in), n, DS_REDUCE_MAX, c->to[0], o, c->made))
PLAY(reduce_into, ds_comm_reduce_into(LIST(c->in), n, DS_REDUCE_AVERAGE, c->out[0], o))
PLAY(reduce_add, ds_comm_reduce_add(LIST(c->in), n, c->to[0], o, c->made))
PLAY(reduce_add_coalesced,
     ds_comm_reduce_add_coalesced(LIST(c->base), n, 1, c->to[0], 0, o, c->made))
PLAY(all_reduce, ds_comm_all_reduce(LIST(c->in), LIST(c->out), n, DS_REDUCE_SUM, o))
PLAY(all_gather, ds_comm_all_gather(LIST(c->in), LIST(c->wide), n, o))
PLAY(reduce_scatter, ds_comm_reduce_scatter(LIST(c->in), LIST(c->part), n, DS_REDUCE_SUM, o))
PLAY(all_to_all, ds_comm_all_to_all(LIST(c->in), LIST(c->out), n, o))

/* The lists that a collective has: its inputs, outputs, and the single tensor. */
enum {
    IN = 1,
    ONE_IN = 2,
    OUT = 4,
    PART = 8,
    WIDE = 16,
    ONE_OUT = 32,
    ONE_WIDE = 64,
    BASE = 128,
    OWN = 256
};

static const struct {
    const char *name;
    ds_result (*run)(crew *c);
    int lists;
} plays[] = {
    { "broadcast", play_broadcast, ONE_IN },
    { "broadcast_into", play_broadcast_into, ONE_IN | OUT },
    { "broadcast_coalesced", play_broadcast_coalesced, OWN },
    { "scatter", play_scatter, ONE_IN },
    { "scatter_into", play_scatter_into, ONE_IN | PART },
    { "gather", play_gather, IN },
    { "gather_into", play_gather_into, IN | ONE_WIDE },
    { "reduce", play_reduce, IN },
    { "reduce_into", play_reduce_into, IN | ONE_OUT },
    { "reduce_add", play_reduce_add, IN },
    { "reduce_add_coalesced", play_reduce_add_coalesced, BASE },
    { "all_reduce", play_all_reduce, IN | OUT },
    { "all_gather", play_all_gather, IN | WIDE },
    { "reduce_scatter", play_reduce_scatter, IN | PART },
    { "all_to_all", play_all_to_all, IN | OUT },
};

enum { PLAYS = sizeof plays / sizeof *plays };

/* What the outputs hold, after all streams: sums of words by their position. */
static uint64_t result_of(crew *c) {
    uint64_t h = 7;
    synchronize(c);
    for (size_t k = 0; k < 3 * c->count + 3 * MOST; k++) {
        ds_tensor *const *lists[] = { c->out, c->part, c->wide };
        const ds_tensor *t =
            k < 3 * c->count ? lists[k / c->count][k % c->count] : c->made[k - 3 * c->count];
        if (!t)
            continue;
        size_t size = ds_tensor_get_size(t);
        uint32_t *words = malloc(size + 1);
        assert_non_null(words);
        /* the collective has allocated it without gaps */
        ok(ds_copy(words, ds_tensor_address(t), size, c->s[t->device.index]));
        ok(ds_stream_synchronize(c->s[t->device.index]));
        for (size_t i = 0; i < size / 4; i++)
            h = (h ^ words[i]) * 1099511628211u + k;
        free(words);
    }
    return h;
}

static void blank(crew *c) {
    for (size_t i = 0; i < c->count; i++) {
        const ds_tensor *all[] = { c->out[i], c->part[i], c->wide[i] };
        for (int k = 0; k < 3; k++)
            ok(ds_fill(all[k]->data, 0, 4, ds_tensor_get_size(all[k]) / 4, c->s[i]));
    }
    synchronize(c);
}

static uint64_t good_result(crew *c, int play) {
    blank(c);
    ok(plays[play].run(c));
    uint64_t h = result_of(c);
    free_made(c);
    return h;
}

/* ---- wrong arguments ---- */

static void test_missing_lists_are_refused(void **state) {
    (void)state;
    static crew c;
    open_crew(&c, 3);
    const ds_tensor *const *in = LIST(c.in), *const *out = LIST(c.out), *one = c.in[0];
    ds_tensor **made = c.made;
    const ds_device *to = c.to;
    int64_t sizes[] = { 2, 2, 2 };
    size_t count = 7;
    const ds_result v = DS_ERR_INVALID_VALUE;
    refused(ds_comm_broadcast(one, NULL, 3, NULL, made), v, "devices is NULL");
    refused(ds_comm_broadcast(one, to, 3, NULL, NULL), v, "out is NULL");
    ok(ds_comm_broadcast(one, NULL, 0, NULL, NULL));
    refused(ds_comm_broadcast_into(one, NULL, 3, NULL), v, "outs is NULL");
    ok(ds_comm_broadcast_into(one, NULL, 0, NULL));
    refused(ds_comm_broadcast_coalesced(NULL, 3, to, 2, 0, NULL, made), v, "tensors is NULL");
    refused(ds_comm_broadcast_coalesced(in, 3, NULL, 2, 0, NULL, made), v, "devices is NULL");
    refused(ds_comm_broadcast_coalesced(in, 3, to, 2, 0, NULL, NULL), v, "out is NULL");
    refused(ds_comm_broadcast_coalesced(in, SIZE_MAX / 2, to, 3, 0, NULL, made), v, "");
    refused(ds_comm_broadcast_coalesced(in, SIZE_MAX / 8, to, 4, 0, NULL, made), v, "");
    ok(ds_comm_broadcast_coalesced(NULL, 0, to, 2, 0, NULL, NULL));
    refused(ds_comm_scatter(one, NULL, 3, sizes, 0, NULL, made, &count), v, "devices is NULL");
    assert_int_equal(count, 0);
    refused(ds_comm_scatter(one, to, 3, sizes, 0, NULL, NULL, &count), v, "out is NULL");
    refused(ds_comm_scatter(one, to, SIZE_MAX, NULL, 0, NULL, NULL, &count), v, "");
    refused(ds_comm_scatter_into(one, NULL, 3, 0, NULL), v, "no output tensors");
    refused(ds_comm_scatter_into(one, out, 0, 0, NULL), v, "no output tensors");
    refused(ds_comm_gather(NULL, 3, 0, to[0], NULL, made), v, "no tensors to gather");
    refused(ds_comm_gather(in, 0, 0, to[0], NULL, made), v, "no tensors to gather");
    refused(ds_comm_gather(in, 3, 0, to[0], NULL, NULL), v, "out is NULL");
    refused(ds_comm_gather_into(NULL, 3, 0, c.wide[0], NULL), v, "no tensors to gather");
    refused(ds_comm_reduce(NULL, 3, DS_REDUCE_SUM, to[0], NULL, made), v, "no tensors to reduce");
    refused(ds_comm_reduce(in, 0, DS_REDUCE_SUM, to[0], NULL, made), v, "no tensors to reduce");
    refused(ds_comm_reduce(in, 3, DS_REDUCE_SUM, to[0], NULL, NULL), v, "out is NULL");
    refused(ds_comm_reduce_into(NULL, 3, DS_REDUCE_SUM, c.out[0], NULL), v, "no tensors");
    refused(ds_comm_reduce_add(NULL, 3, to[0], NULL, made), v, "no tensors");
    refused(ds_comm_reduce_add(in, 3, to[0], NULL, NULL), v, "out is NULL");
    refused(ds_comm_reduce_add_coalesced(NULL, 3, 1, to[0], 0, NULL, made), v, "tensors is NULL");
    refused(ds_comm_reduce_add_coalesced(in, 3, 1, to[0], 0, NULL, NULL), v, "out is NULL");
    refused(ds_comm_reduce_add_coalesced(in, SIZE_MAX / 2, 2, to[0], 0, NULL, made), v, "lists of");
    for (int empty = 0; empty < 2; empty++) {
        const ds_tensor *const *a = empty ? in : NULL, *const *b = empty ? NULL : out;
        const char *words = empty ? "outs is NULL" : "tensors is NULL";
        refused(ds_comm_all_reduce(a, b, 3, DS_REDUCE_SUM, NULL), v, words);
        refused(ds_comm_all_gather(a, b, 3, NULL), v, words);
        refused(ds_comm_reduce_scatter(a, b, 3, DS_REDUCE_SUM, NULL), v, words);
        refused(ds_comm_all_to_all(a, b, 3, NULL), v, words);
    }
    refused(ds_comm_all_reduce(in, out, 0, DS_REDUCE_SUM, NULL), v, "count is 0");
    refused(ds_comm_all_reduce(in, out, INT32_MAX, DS_REDUCE_SUM, NULL), v, "2147483647 tensors");
    refused(ds_comm_barrier(NULL, 3), v, "streams is NULL");
    ok(ds_comm_barrier(NULL, 0));
    for (size_t i = 0; i < 3 * MOST; i++)
        assert_null(made[i]);
    close_crew(&c);
}

static void test_options_that_contradict_each_other(void **state) {
    (void)state;
    static crew c;
    open_crew(&c, 3);
    const ds_comm_options good = c.options;

    const struct {
        ds_comm_options options;
        ds_result code;
        const char *words;
    } wrong[] = {
        { { .engine = "magic" }, DS_ERR_INVALID_VALUE, "options->engine is \"magic\"" },
        { { .engine = "nccl", .ranks = { 5 } },
          DS_ERR_INVALID_VALUE,
          "options->engine is set with options->ranks" },
        { { .topology = c.topology, .ranks = { 5 } },
          DS_ERR_INVALID_VALUE,
          "options->topology is set with options->ranks" },
        { { .root = 1 }, DS_ERR_INVALID_VALUE, "but no ranks" },
        { { .reserved = { 1 } }, DS_ERR_INVALID_VALUE, "ds_comm_options.reserved is not 0" },
        { { .flags = 64 }, DS_ERR_INVALID_VALUE, "unknown flags 0x40" },
        { { .stream_count = 2 }, DS_ERR_INVALID_VALUE, "but stream_count is 2" },
    };

    for (int play = 0; play < PLAYS; play++) {
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            c.options = wrong[i].options;
            refused(plays[play].run(&c), wrong[i].code, wrong[i].words);
        }
        /* without the layer of process groups */
        c.options = (ds_comm_options){ .ranks = { 5 } };
        ds_result r = plays[play].run(&c);
        if (r != DS_ERR_UNSUPPORTED && r != DS_ERR_INVALID_HANDLE)
            fail_msg("%s: %s", plays[play].name, ds_error_get_last());
        int creates = !(plays[play].lists & (OUT | PART | WIDE | ONE_OUT | ONE_WIDE));
        if (!strstr(ds_error_get_last(), creates ? "results are written into tensors of the caller"
                                                 : "not a process group; see ds_ranks_init"))
            fail_msg("%s: %s", plays[play].name, ds_error_get_last());
        for (size_t i = 0; i < 3 * MOST; i++)
            assert_null(c.made[i]);
        c.options = good;
        ok(plays[play].run(&c));
        free_made(&c);
    }
    close_crew(&c);
}

/* ---- a tensor that does not fit ---- */

static ds_tensor broken;
static int64_t broken_shape[4], broken_strides[4];

/* Changes a description. Returns the code of the refusal, or 0 if no collective refuses it. */
static ds_result break_tensor(int way, const ds_tensor *t, int written, const char **words) {
    broken = *t;
    broken.shape = broken_shape;
    broken.strides = t->strides ? broken_strides : NULL;
    memcpy(broken_shape, t->shape, sizeof(int64_t) * (size_t)t->ndim);
    if (t->strides)
        memcpy(broken_strides, t->strides, sizeof(int64_t) * (size_t)t->ndim);
    *words = "tensor";
    switch (way) {
    case 0:
        broken.dtype = ds_int32();
        return DS_ERR_INVALID_VALUE;
    case 1:
        broken.ndim = 3;
        broken_shape[2] = 1;
        broken_strides[2] = 1;
        return DS_ERR_INVALID_VALUE;
    case 2:
        broken.device.index = 77;
        *words = "77";
        return DS_ERR_DEVICE_RANGE;
    case 3:
        broken_shape[1]++;
        return DS_ERR_INVALID_VALUE;
    case 4:
        broken_shape[0] = INT64_MAX;
        return DS_ERR_INVALID_VALUE;
    case 5:
        broken.data = NULL;
        return DS_ERR_INVALID_VALUE;
    default:
        broken.strides = broken_strides;
        broken_strides[0] = 0;
        broken_strides[1] = 1;
        *words = "at one address";
        return written ? DS_ERR_INVALID_VALUE : DS_OK;
    }
}

enum { WAYS = 7 };

/* Runs a collective in which one tensor does not fit to the others; `at` points to the place of
   that tensor in the crew. */
static void expect_refused(crew *c, int play, ds_tensor **at, int written, int single) {
    ds_tensor *good = *at;
    const char *words;
    for (int way = -1; way < WAYS; way++) {
        ds_result code = DS_ERR_INVALID_VALUE;
        if (way < 0) {
            *at = NULL;
            words = "NULL";
        } else {
            code = break_tensor(way, good, written, &words);
            *at = &broken;
            /* nothing that the single tensor has to agree with */
            if (single && (way == 0 || way == 1 || way == 3))
                continue;
        }
        if (code == DS_OK) {
            *at = good;
            continue;
        }
        ds__fail(DS_ERR_SYSTEM, "a sentence that was not set by the call");
        ds_result r = plays[play].run(c);
        if (r >= 0 || strstr(ds_error_get_last(), "was not set") ||
            (way != 3 && way != 4 && !strstr(ds_error_get_last(), words)))
            fail_msg("%s, way %d: %s: %s", plays[play].name, way, ds_result_get_name(r),
                     ds_error_get_last());
        for (size_t i = 0; i < 3 * MOST; i++)
            if (c->made[i])
                fail_msg("%s, way %d: result %zu is left", plays[play].name, way, i);
    }
    *at = good;
}

static void test_a_tensor_that_does_not_fit_is_refused(void **state) {
    (void)state;
    static crew c;
    open_crew(&c, 3);
    for (int play = 0; play < PLAYS; play++) {
        int lists = plays[play].lists;
        uint64_t want = good_result(&c, play);
        blank(&c);
        uint64_t untouched = result_of(&c);
        for (size_t i = 0; i < 3; i++) {
            if (lists & IN)
                expect_refused(&c, play, &c.in[i], 0, 0);
            if (lists & OUT)
                expect_refused(&c, play, &c.out[i], 1, 0);
            if (lists & PART)
                expect_refused(&c, play, &c.part[i], 1, 0);
            if (lists & WIDE)
                expect_refused(&c, play, &c.wide[i], 1, 0);
            if (lists & BASE)
                expect_refused(&c, play, &c.base[i], 0, 0);
            if (lists & OWN)
                expect_refused(&c, play, &c.own[i], 0, 1);
        }
        if (lists & ONE_IN)
            expect_refused(&c, play, &c.in[0], 0, !(lists & (OUT | PART)));
        if (lists & ONE_OUT)
            expect_refused(&c, play, &c.out[0], 1, 0);
        if (lists & ONE_WIDE)
            expect_refused(&c, play, &c.wide[0], 1, 0);
        if (result_of(&c) != untouched)
            fail_msg("%s: a refused call has written", plays[play].name);
        if (good_result(&c, play) != want)
            fail_msg("%s has another result afterwards", plays[play].name);
    }
    close_crew(&c);
}

/* Tensors without dimensions have one element and cannot be divided. */
static void test_tensors_without_dimensions(void **state) {
    (void)state;
    ds_stream s;
    ds_tensor *t[4], *made[2] = { NULL, NULL };
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    for (int i = 0; i < 4; i++) {
        ok(ds_tensor_alloc(ds_float32(), 0, NULL, s, &t[i]));
        ok(ds_fill(t[i]->data, 0x40000000, 4, 1, s)); /* 2.0 */
    }
    ds_comm_options o = { .stream = s, .streams = (ds_stream[]){ s, s }, .stream_count = 2 };
    ds_device to[2] = { device, device };
    const ds_result v = DS_ERR_INVALID_VALUE;
    refused(ds_comm_all_gather(LIST(t), LIST(t + 2), 2, &o), v, "cannot be split or concatenated");
    refused(ds_comm_reduce_scatter(LIST(t), LIST(t + 2), 2, DS_REDUCE_SUM, &o), v,
            "cannot be split or concatenated");
    refused(ds_comm_all_to_all(LIST(t), LIST(t + 2), 2, &o), v, "cannot be split");
    refused(ds_comm_scatter(t[0], to, 2, NULL, 0, &o, made, NULL), v, "dimension");
    refused(ds_comm_gather(LIST(t), 2, 0, device, &o, made), v, "dimension");
    assert_true(!made[0] && !made[1]);
    float x = 0;
    ok(ds_comm_all_reduce(LIST(t), LIST(t + 2), 2, DS_REDUCE_SUM, &o));
    ok(ds_copy(&x, t[2]->data, 4, s));
    ok(ds_stream_synchronize(s));
    assert_true(x == 4);
    for (int i = 0; i < 4; i++)
        ok(ds_tensor_free(t[i]));
    ok(ds_stream_destroy(s));
}

/* A copy with more dimensions than a launch of the kernel takes: ten, in reverse order, of elements
   of 4 and of 12 bytes. */
static void test_a_copy_of_ten_dimensions_in_reverse(void **state) {
    (void)state;

    enum { DIMS = 10, COUNT = 1 << DIMS, LANES = 3 };

    int64_t shape[DIMS];
    int order[DIMS];
    static uint32_t words[COUNT * LANES], got[COUNT * LANES];
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = device }, &s));
    for (int i = 0; i < DIMS; i++) {
        shape[i] = 2;
        order[i] = DIMS - 1 - i;
    }
    for (uint32_t i = 0; i < COUNT * LANES; i++)
        words[i] = i;
    for (uint32_t lanes = 1; lanes <= LANES; lanes += LANES - 1) {
        ds_tensor *base, *turned, *out;
        const ds_dtype type = { DS_CODE_INT, 32, (uint16_t)lanes };
        ok(ds_tensor_alloc(type, DIMS, shape, s, &base));
        ok(ds_tensor_alloc(type, DIMS, shape, s, &out));
        ok(ds_tensor_permute(base, order, &turned));
        ok(ds_copy(base->data, words, COUNT * lanes * 4, s));
        const ds_tensor *outs[] = { out };
        ok(ds_comm_broadcast_into(
            turned, outs, 1, &(ds_comm_options){ .stream = s, .streams = &s, .stream_count = 1 }));
        ok(ds_copy(got, out->data, COUNT * lanes * 4, s));
        ok(ds_stream_synchronize(s));
        for (uint32_t i = 0; i < COUNT * lanes; i++) {
            uint32_t reverse = 0;
            for (int k = 0; k < DIMS; k++)
                reverse |= (i / lanes >> k & 1) << (DIMS - 1 - k);
            assert_int_equal(got[i], reverse * lanes + i % lanes);
        }
        ok(ds_tensor_free(turned));
        ok(ds_tensor_free(base));
        ok(ds_tensor_free(out));
    }
    ok(ds_stream_destroy(s));
}

/* ---- calls from inside of user code ---- */

static ds_result inside[PLAYS + 1];

static void play_inside(void *user) {
    crew *c = user;
    for (int play = 0; play < PLAYS; play++)
        inside[play] = plays[play].run(c);
    inside[PLAYS] = ds_comm_barrier(c->s, c->count);
}

static void test_no_collective_is_permitted_inside_of_a_host_function(void **state) {
    (void)state;
    static crew c;
    open_crew(&c, 3);
    blank(&c);
    uint64_t untouched = result_of(&c);
    ok(ds_stream_launch_host_func(c.s[0], play_inside, &c, NULL));
    ok(ds_stream_synchronize(c.s[0]));
    for (int i = 0; i <= PLAYS; i++)
        assert_int_equal(inside[i], DS_ERR_NOT_PERMITTED);
    assert_true(result_of(&c) == untouched);
    for (size_t i = 0; i < 3 * MOST; i++)
        assert_null(c.made[i]);
    close_crew(&c);
}

/* ---- host memory that runs out ---- */

/* Runs a collective with every number of blocks. */
static int play_without_memory(crew *c, int play, int once, const char *how) {
    uint64_t want = good_result(c, play);
    int failures = 0, hit = 1;
    for (long n = harness_first(); hit; n += harness_every()) {
        blank(c);
        ds__fail(DS_ERR_SYSTEM, "a sentence that was not set by the call");
        scarce_once = once;
        scarce_begin(n);
        ds_result r = plays[play].run(c);
        hit = scarce_end();
        if (r < 0) {
            if (r != DS_ERR_OUT_OF_MEMORY || strstr(ds_error_get_last(), "was not set"))
                fail_msg("%s%s, %ld blocks: %s: %s", plays[play].name, how, n,
                         ds_result_get_name(r), ds_error_get_last());
            for (size_t i = 0; i < 3 * MOST; i++)
                if (c->made[i])
                    fail_msg("%s%s, %ld blocks: result %zu is left", plays[play].name, how, n, i);
            failures++;
        } else if (r != DS_OK || result_of(c) != want) {
            fail_msg("%s%s, %ld blocks: a failure without a word", plays[play].name, how, n);
        }
        free_made(c);
        if (n > 2000)
            fail_msg("%s%s takes more than 2,000 blocks", plays[play].name, how);
    }
    if (good_result(c, play) != want)
        fail_msg("%s%s has another result afterwards", plays[play].name, how);
    return failures;
}

/* So many tensors that the lists of steps, regions, links and lanes have to grow. */
static void test_collectives_of_many_tensors_without_memory(void **state) {
    (void)state;
    static crew c;
    int failures = 0;
    open_crew(&c, HARNESS_SLOW ? 10 : 20);
    for (int play = 0; play < PLAYS; play++)
        for (int once = 0; once < 2; once++)
            failures += play_without_memory(&c, play, once, "");
    assert_true(failures * harness_every() > 4 * PLAYS);
    close_crew(&c);
}

static void test_collectives_by_plan_without_memory(void **state) {
    (void)state;
    static crew c;
    int failures = 0;
    open_crew(&c, 8);
    c.options.topology = c.topology;
    for (int play = 0; play < PLAYS; play++)
        for (int once = 0; once < 2; once++)
            failures += play_without_memory(&c, play, once, " by plan");
    assert_true(failures * harness_every() > PLAYS);
    close_crew(&c);
}

/* The first collective of a library that was just started allocates what later ones find. */
static void test_first_collectives_without_memory(void **state) {
    (void)state;
    static crew c;
    int failures = 0;
    for (int play = 0; play < PLAYS; play += HARNESS_SLOW ? 4 : 1)
        for (int planned = 0; planned < 2; planned++) {
            int hit = 1;
            for (long n = harness_first(); hit; n += harness_every()) {
                stop();
                start(NULL);
                open_crew(&c, 3);
                if (planned)
                    c.options.topology = c.topology;
                ds__fail(DS_ERR_SYSTEM, "a sentence that was not set by the call");
                scarce_begin(n);
                ds_result r = plays[play].run(&c);
                hit = scarce_end();
                if (r < 0) {
                    if (r != DS_ERR_OUT_OF_MEMORY || strstr(ds_error_get_last(), "was not set"))
                        fail_msg("%s, %ld blocks: %s: %s", plays[play].name, n,
                                 ds_result_get_name(r), ds_error_get_last());
                    failures++;
                } else if (!hit && r != DS_OK) {
                    fail_msg("%s: %s", plays[play].name, ds_error_get_last());
                }
                synchronize(&c);
                free_made(&c);
                ok(plays[play].run(&c));
                close_crew(&c);
            }
        }
    assert_true(failures * harness_every() > PLAYS);
}

/* While a capture is open on one of the streams, the collective becomes a part of it. */
static void test_captured_collectives_without_memory(void **state) {
    (void)state;
    static crew c;
    open_crew(&c, 4);
    for (int play = 0; play < PLAYS; play++) {
        uint64_t want = good_result(&c, play);
        int hit = 1;
        for (long n = 0; hit && n < 400; n++) {
            ds_graph g = { 0 };
            ok(ds_capture_begin(c.s[0], DS_CAPTURE_THREAD_LOCAL));
            ds__fail(DS_ERR_SYSTEM, "a sentence that was not set by the call");
            scarce_begin(n);
            ds_result r = plays[play].run(&c);
            hit = scarce_end();
            if (r < 0 && (r != DS_ERR_OUT_OF_MEMORY || strstr(ds_error_get_last(), "was not set")))
                fail_msg("%s in a capture, %ld blocks: %s: %s", plays[play].name, n,
                         ds_result_get_name(r), ds_error_get_last());
            if (!hit && r != DS_OK)
                fail_msg("%s in a capture: %s", plays[play].name, ds_error_get_last());
            free_made(&c);
            DS_IGNORE(ds_capture_end(c.s[0], &g)); /* a failed call may have invalidated it */
            if (g.id)
                ok(ds_graph_destroy(g));
        }
        if (hit)
            fail_msg("%s in a capture takes more than 400 blocks", plays[play].name);
        if (good_result(&c, play) != want)
            fail_msg("%s has another result afterwards", plays[play].name);
    }
    close_crew(&c);
}

/* ---- the time of kernels on a virtual clock ---- */

/* A device whose memory has 1 byte in each nanosecond: the time is the bytes that are read and
   written. */
static void test_kernels_take_the_time_of_their_bytes(void **state) {
    (void)state;

    enum { COUNT = 1 << 16 };

    static const ds_cpu_route route[4];
    static const ds_cpu_fabric fabric = {
        .devices = 1, .route = route, .engines = 1, .memory_bytes_per_s = 1e9
    };
    ds_stream s;
    ds_tensor *t[3], *turned;
    int64_t begun, ended;
    stop();
    start(&(ds_cpu_desc){ .fabric = &fabric });
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &s));
    for (int i = 0; i < 3; i++)
        ok(ds_tensor_alloc(ds_int32(), 2, SHAPE(COUNT / 256, 256), s, &t[i]));
    ok(ds_tensor_transpose(t[1], 0, 1, &turned));
    ds_comm_options o = { .stream = s, .streams = (ds_stream[]){ s, s }, .stream_count = 2 };
    ok(ds_stream_synchronize(s));

    /* a sum of two tensors reads two and writes one; the division reads and writes this one */
    ok(ds_cpu_get_clock(&begun));
    ok(ds_comm_reduce_into(LIST(t), 2, DS_REDUCE_AVERAGE, t[2], &o));
    ok(ds_stream_synchronize(s));
    ok(ds_cpu_get_clock(&ended));
    assert_int_equal(ended - begun, (3 + 2) * 4 * COUNT);

    /* a strided copy reads and writes each element */
    const ds_tensor *outs[] = { t[2] };
    ok(ds_cpu_get_clock(&begun));
    ok(ds_comm_broadcast_into(turned, outs, 1, &o));
    ok(ds_stream_synchronize(s));
    ok(ds_cpu_get_clock(&ended));
    assert_int_equal(ended - begun, 2 * 4 * COUNT);

    ok(ds_tensor_free(turned));
    for (int i = 0; i < 3; i++)
        ok(ds_tensor_free(t[i]));
    ok(ds_stream_destroy(s));
}

int main(void) {
    setenv("STANDIN_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        /* clang-format off */
        ON_BOTH(test_missing_lists_are_refused)
        ON_BOTH(test_options_that_contradict_each_other)
        ON_BOTH(test_a_tensor_that_does_not_fit_is_refused)
        ON_BOTH(test_tensors_without_dimensions)
        ON_BOTH(test_a_copy_of_ten_dimensions_in_reverse)
        ON_BOTH(test_no_collective_is_permitted_inside_of_a_host_function)
        ON_BOTH(test_collectives_of_many_tensors_without_memory)
        ON_BOTH(test_collectives_by_plan_without_memory)
        ON_BOTH(test_first_collectives_without_memory)
        ON_BOTH(test_captured_collectives_without_memory)
        ON_CPU(test_kernels_take_the_time_of_their_bytes)
        /* clang-format on */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
