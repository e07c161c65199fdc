/* The engine "mpi", driven through its table: mpiexec -n N engine_mpi [MODE]. Without a mode: all
   tests that need no process of their own. Rank 0 prints a line for each test. A test has passed if
   it has passed on all ranks. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "ranks/mpi.h"

#include <pthread.h>
#include <signal.h>

#define LIMIT_NS 60000000000u

static ds_ranks_launch launch = { .rank = -1, .size = -1 };

/* The launcher, as a test wants it. */
DSDEF void(ds_ranks_launch_get)(ds_ranks_launch *out) {
    *out = launch;
}

static const ds__ranks_engine *const engine = &ds__mpi_engine;
static ds__net_comm world;
static unsigned flags; /* of all groups */
static int failures;   /* of the running test on this rank */

#define CHECK(condition, ...)                                                          \
    do {                                                                               \
        if (!(condition) && failures++ < 5) {                                          \
            fprintf(stderr, "rank %d, line %d: %s", world.rank, __LINE__, #condition); \
            fprintf(stderr, ": " __VA_ARGS__);                                         \
            fprintf(stderr, "\n");                                                     \
        }                                                                              \
    } while (0)

#define OK(call)                                                                     \
    do {                                                                             \
        ds_result ok_ = (call);                                                      \
        CHECK(ok_ == DS_OK, "%s: %s", ds_result_get_name(ok_), ds_error_get_last()); \
    } while (0)

/* ---- helpers --------------------------------------------------------------------------------- */

/* Waits for an operation. */
static ds_result finish(const ds__net_comm *c, ds__net_request *request) {
    uint64_t end = ds__now_ns() + LIMIT_NS;
    ds_result r;
    while ((r = engine->test(c->comm, request)) == DS_NOT_READY && ds__now_ns() < end)
        ds__os_yield();
    return r;
}

static ds_result run(const ds__net_comm *c, const ds__net_op *op) {
    ds__net_request request;
    ds_result r = engine->start(c->comm, op, &request);
    return r < 0 ? r : finish(c, &request);
}

static uint64_t deadline_after(uint64_t ns) {
    return ds__now_ns() + ns;
}

static int any_failed(int mine) {
    int32_t one = mine;
    int32_t all = 0;
    ds__net_op op = { .kind = DS__NET_ALL_REDUCE,
                      .in = &one,
                      .out = &all,
                      .count = 1,
                      .dtype = ds_int32(),
                      .reduce_op = DS_REDUCE_MAX };
    return run(&world, &op) < 0 || all != 0;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* Byte `i` of the part that goes from one rank to another one. */
static unsigned char pattern(int from, int to, size_t i) {
    return (unsigned char)mix((uint64_t)from << 48 ^ (uint64_t)to << 32 ^ i);
}

static void fill(unsigned char *at, size_t bytes, int from, int to) {
    for (size_t i = 0; i < bytes; i++)
        at[i] = pattern(from, to, i);
}

static int filled(const unsigned char *at, size_t bytes, int from, int to) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern(from, to, i))
            return 0;
    return 1;
}

/* Memory of a test, at least a byte. */
static void *take(size_t bytes) {
    void *at = malloc(bytes + 1);
    if (!at)
        abort();
    memset(at, 0xee, bytes + 1);
    return at;
}

/* Parts with a gap between them; varying: their sizes differ. */
typedef struct layout {
    size_t bytes[64];
    size_t at[64];
    size_t all;
    ds__net_parts parts;
} layout;

static void layout_make(layout *l, size_t bytes, int varying, size_t gap) {
    l->all = 0;
    for (int i = 0; i < world.size; i++) {
        l->bytes[i] = varying ? bytes + (size_t)i * 3 : bytes;
        l->at[i] = l->all;
        l->all += l->bytes[i] + gap;
    }
    l->parts = (ds__net_parts){ l->bytes, l->at };
}

static const size_t sizes[] = { 0, 1, 4099, 1 << 20 };

enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* ---- reductions ------------------------------------------------------------------------------ */

/* A number of any type. */
typedef struct number {
    uint64_t bits; /* integers */
    double re;
    double im;
} number;

static int is_integer(ds_dtype t) {
    return t.code == DS_CODE_INT || t.code == DS_CODE_UINT || t.code == DS_CODE_BOOL;
}

/* The element of a rank. Floats are small, so that the result does not depend on the order. */
static number element(ds_dtype t, ds_reduce_op op, int rank, size_t i) {
    uint64_t h = mix((uint64_t)rank << 40 ^ i);
    number n = { h, (double)(h % 17) - 8, (double)(h / 17 % 17) - 8 };
    if (t.code == DS_CODE_BOOL)
        n.bits = h % 3 == 0;
    if (op == DS_REDUCE_PRODUCT) {
        static const double factors[] = { 1, -1, 2, 0.5 };
        n.re = factors[h % 4];
        n.im = t.code == DS_CODE_COMPLEX && h % 3 == 0 ? 1 : 0;
    }
    return n;
}

static int64_t as_signed(uint64_t bits, unsigned width) {
    return (int64_t)(bits << (64 - width)) >> (64 - width);
}

static uint64_t as_unsigned(uint64_t bits, unsigned width) {
    return bits << (64 - width) >> (64 - width);
}

static uint64_t combine_bits(ds_dtype t, ds_reduce_op op, uint64_t a, uint64_t b) {
    int less = t.code == DS_CODE_INT ? as_signed(a, t.bits) < as_signed(b, t.bits)
                                     : as_unsigned(a, t.bits) < as_unsigned(b, t.bits);
    if (t.code == DS_CODE_BOOL && op == DS_REDUCE_SUM)
        return a | b;
    if (t.code == DS_CODE_BOOL && op == DS_REDUCE_PRODUCT)
        return a & b;
    if (op == DS_REDUCE_SUM)
        return a + b;
    if (op == DS_REDUCE_PRODUCT)
        return a * b;
    return less == (op == DS_REDUCE_MAX) ? b : a;
}

static number combine(ds_dtype t, ds_reduce_op op, number a, number b) {
    number n = a;
    if (is_integer(t)) {
        n.bits = combine_bits(t, op, a.bits, b.bits);
    } else if (op == DS_REDUCE_SUM) {
        n.re = a.re + b.re;
        n.im = a.im + b.im;
    } else {
        n.re = a.re * b.re - a.im * b.im;
        n.im = a.re * b.im + a.im * b.re;
    }
    return n;
}

static void store(ds_dtype t, number n, unsigned char *at) {
    float parts[2] = { (float)n.re, (float)n.im };
    double wide[2] = { n.re, n.im };
    size_t size = ds_dtype_get_size(t);
    if (is_integer(t))
        memcpy(at, &n.bits, size); /* little endian */
    else if (t.code == DS_CODE_FLOAT ? t.bits == 32 : t.bits == 64)
        memcpy(at, parts, size);
    else
        memcpy(at, wide, size);
}

static void store_all(ds_dtype t, ds_reduce_op op, int rank, size_t count, unsigned char *at) {
    size_t size = ds_dtype_get_size(t);
    for (size_t i = 0; i < count; i++)
        store(t, element(t, op, rank, i), at + i * size);
}

static void store_result(ds_dtype t, ds_reduce_op op, size_t count, unsigned char *at) {
    size_t size = ds_dtype_get_size(t);
    for (size_t i = 0; i < count; i++) {
        number n = element(t, op, 0, i);
        for (int rank = 1; rank < world.size; rank++)
            n = combine(t, op, n, element(t, op, rank, i));
        store(t, n, at + i * size);
    }
}

/* Reads a float or double. */
static double load(const unsigned char *at, size_t size) {
    float narrow;
    double wide;
    memcpy(&narrow, at, sizeof narrow);
    if (size == sizeof narrow)
        return (double)narrow;
    memcpy(&wide, at, sizeof wide);
    return wide;
}

/* Compares elements. 0 and -0 are the same, since their product depends on the order. */
static int same(ds_dtype t, const unsigned char *a, const unsigned char *b, size_t bytes) {
    size_t size = t.code == DS_CODE_COMPLEX ? t.bits / 16u : t.bits / 8u;
    if (is_integer(t))
        return memcmp(a, b, bytes) == 0;
    for (size_t i = 0; i < bytes; i += size) {
        double difference = load(a + i, size) - load(b + i, size);
        if (!(difference >= 0 && difference <= 0))
            return 0;
    }
    return 1;
}

/* One reduction: of all elements to all ranks or to one, or of a part to each. */
static void reduction(ds__net_kind kind, ds_dtype t, ds_reduce_op op, size_t count, int in_place) {
    char name[DS_DTYPE_NAME_SIZE];
    size_t size = ds_dtype_get_size(t);
    layout l;
    layout_make(&l, count * size, 0, 0);
    if (kind == DS__NET_REDUCE_SCATTER && count % 2)
        for (int i = 0; i < world.size; i++) /* parts of different sizes */
            l.bytes[i] += (size_t)i * size;
    size_t total = kind == DS__NET_REDUCE_SCATTER ? 0 : count;
    size_t first = 0;
    if (kind == DS__NET_REDUCE_SCATTER)
        for (int i = 0; i < world.size; i++) {
            first += i < world.rank ? l.bytes[i] : 0;
            total += l.bytes[i] / size;
        }

    unsigned char *in = take(total * size);
    unsigned char *out = in_place ? in : take(total * size);
    unsigned char *expected = take(total * size);
    store_all(t, op, world.rank, total, in);
    store_result(t, op, total, expected);
    ds__net_op o = { .kind = kind,
                     .root = world.size - 1,
                     .in = in,
                     .out = out,
                     .count = count,
                     .dtype = t,
                     .reduce_op = op,
                     .parts = l.parts };
    OK(run(&world, &o));

    OK(ds_dtype_format(t, name, sizeof name));
    size_t own = kind == DS__NET_REDUCE_SCATTER ? l.bytes[world.rank] : count * size;
    if (kind != DS__NET_REDUCE || world.rank == o.root)
        CHECK(same(t, out, expected + first, own), "kind %d, %s, operator %d, %zu, in place %d",
              kind, name, op, count, in_place);
    if (!in_place)
        free(out);
    free(in);
    free(expected);
}

static void reductions(ds__net_kind kind) {
    const ds_dtype types[] = { ds_bool(),      ds_int8(),    ds_int16(),   ds_int32(),
                               ds_int64(),     ds_uint8(),   ds_uint16(),  ds_uint32(),
                               ds_uint64(),    ds_float32(), ds_float64(), ds_complex64(),
                               ds_complex128() };
    static const size_t counts[] = { 0, 1, 7, 1030 };
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++)
        for (int op = DS_REDUCE_SUM; op <= DS_REDUCE_MIN; op++)
            for (size_t i = 0; i < 4; i++)
                for (int in_place = 0; in_place < 2; in_place++)
                    if (engine->reduces(types[k], (ds_reduce_op)op))
                        reduction(kind, types[k], (ds_reduce_op)op, counts[i], in_place);
    reduction(kind, ds_float32(), DS_REDUCE_SUM, 1 << 18, 0);
    reduction(kind, ds_int32(), DS_REDUCE_MAX, 1 << 18, 1);
}

static void test_all_reduce(void) {
    reductions(DS__NET_ALL_REDUCE);
}

static void test_reduce(void) {
    reductions(DS__NET_REDUCE);
}

static void test_reduce_scatter(void) {
    reductions(DS__NET_REDUCE_SCATTER);
}

static void test_reduces_no_other_type(void) {
    CHECK(!engine->reduces(ds_float32(), DS_REDUCE_MAX), "a NaN may be lost");
    CHECK(!engine->reduces(ds_float64(), DS_REDUCE_MIN), "a NaN may be lost");
    CHECK(!engine->reduces(ds_complex64(), DS_REDUCE_MAX), "no order");
    CHECK(!engine->reduces(ds_float16(), DS_REDUCE_SUM), "not in MPI");
    CHECK(!engine->reduces(ds_bfloat16(), DS_REDUCE_SUM), "not in MPI");
    CHECK(!engine->reduces(ds_complex32(), DS_REDUCE_SUM), "not in MPI");
    CHECK(!engine->reduces(ds_int32(), DS_REDUCE_AVERAGE), "not in MPI");
    CHECK(!engine->reduces(ds_int8(), DS_REDUCE_SUM), "Open MPI saturates");
    CHECK(!engine->reduces(ds_uint16(), DS_REDUCE_SUM), "Open MPI saturates");
    CHECK(engine->reduces(ds_uint16(), DS_REDUCE_PRODUCT), "wraps around");
    CHECK(engine->reduces(ds_bool(), DS_REDUCE_SUM), "a maximum of bytes");
}

/* ---- collectives that move bytes ------------------------------------------------------------- */

static void test_broadcast(void) {
    for (int root = 0; root < world.size; root++)
        for (int i = 0; i < SIZES; i++) {
            unsigned char *at = take(sizes[i]);
            if (world.rank == root)
                fill(at, sizes[i], root, 0);
            ds__net_op op = {
                .kind = DS__NET_BROADCAST, .root = root, .out = at, .count = sizes[i]
            };
            OK(run(&world, &op));
            CHECK(filled(at, sizes[i], root, 0), "%zu bytes of rank %d", sizes[i], root);
            free(at);
        }
}

static void gather(ds__net_kind kind, size_t bytes, int varying, int in_place) {
    layout l;
    layout_make(&l, bytes, varying, 5);
    int root = world.size / 2;
    int writes = kind == DS__NET_ALL_GATHER || world.rank == root;
    size_t own = l.bytes[world.rank];
    unsigned char *out = take(l.all);
    unsigned char *in = in_place && writes ? out + l.at[world.rank] : take(own);
    fill(in, own, world.rank, 0);
    ds__net_op op = {
        .kind = kind, .root = root, .in = in, .out = out, .count = own, .parts = l.parts
    };
    OK(run(&world, &op));

    for (int i = 0; i < world.size && writes; i++) {
        CHECK(filled(out + l.at[i], l.bytes[i], i, 0), "part %d, %zu bytes", i, l.bytes[i]);
        CHECK(out[l.at[i] + l.bytes[i]] == 0xee, "written behind part %d", i);
    }
    if (in != out + l.at[world.rank])
        free(in);
    free(out);
}

static void test_gather(void) {
    for (int i = 0; i < SIZES * 4; i++)
        gather(DS__NET_GATHER, sizes[i / 4], i / 2 % 2, i % 2);
}

static void test_all_gather(void) {
    for (int i = 0; i < SIZES * 4; i++)
        gather(DS__NET_ALL_GATHER, sizes[i / 4], i / 2 % 2, i % 2);
}

static void test_scatter(void) {
    for (int i = 0; i < SIZES * 4; i++) {
        layout l;
        layout_make(&l, sizes[i / 4], i / 2 % 2, 5);
        int root = world.size - 1;
        int in_place = i % 2 && world.rank == root;
        size_t own = l.bytes[world.rank];
        unsigned char *in = take(l.all);
        unsigned char *out = in_place ? in + l.at[world.rank] : take(own);
        for (int k = 0; k < world.size; k++)
            fill(in + l.at[k], l.bytes[k], root, k);
        ds__net_op op = { .kind = DS__NET_SCATTER,
                          .root = root,
                          .in = in,
                          .out = out,
                          .count = own,
                          .parts = l.parts };
        OK(run(&world, &op));

        CHECK(filled(out, own, root, world.rank), "%zu bytes", own);
        if (!in_place)
            free(out);
        free(in);
    }
}

static void test_all_to_all(void) {
    for (int i = 0; i < SIZES * 2; i++) {
        int varies = i % 2;
        size_t bytes = sizes[i / 2] / (size_t)world.size;
        layout to;
        layout from;
        layout_make(&to, bytes, varies, 5); /* rank k receives the same size from all */
        layout_make(&from, varies ? to.bytes[world.rank] : bytes, 0, 5);
        unsigned char *in = take(to.all);
        unsigned char *out = take(from.all);
        for (int k = 0; k < world.size; k++)
            fill(in + to.at[k], to.bytes[k], world.rank, k);
        ds__net_op op = { .kind = DS__NET_ALL_TO_ALL,
                          .in = in,
                          .out = out,
                          .parts = to.parts,
                          .out_parts = from.parts };
        OK(run(&world, &op));

        for (int k = 0; k < world.size; k++)
            CHECK(filled(out + from.at[k], from.bytes[k], k, world.rank), "from %d, varies %d", k,
                  varies);
        free(out);
        free(in);
    }
}

static void test_barrier(void) {
    ds__net_request request;
    ds__net_op op = { .kind = DS__NET_BARRIER };
    OK(run(&world, &op));
    if (world.size == 1)
        return;

    /* not complete before the last rank has come */
    uint64_t begin = ds__now_ns();
    if (world.rank == 0)
        ds__os_sleep(200000000);
    OK(engine->start(world.comm, &op, &request));
    OK(finish(&world, &request));
    if (world.rank > 0)
        CHECK(ds__now_ns() - begin > 100000000, "complete without rank 0");
    OK(run(&world, &op));
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static void test_exchange_ring(void) {
    for (int i = 0; i < SIZES; i++) {
        int next = (world.rank + 1) % world.size;
        int before = (world.rank + world.size - 1) % world.size;
        unsigned char *to = take(sizes[i]);
        unsigned char *from = take(sizes[i]);
        fill(to, sizes[i], world.rank, next);
        const ds__net_transfer transfers[] = { { to, sizes[i], next, 7, 0 },
                                               { from, sizes[i], before, 7, 1 } };
        ds__net_op op = { .kind = DS__NET_EXCHANGE, .transfers = transfers, .transfer_count = 2 };
        OK(run(&world, &op));
        CHECK(filled(from, sizes[i], before, world.rank), "%zu bytes", sizes[i]);
        free(to);
        free(from);
    }
}

static void test_exchange_order_and_tags(void) {
    int next = (world.rank + 1) % world.size;
    int before = (world.rank + world.size - 1) % world.size;
    int sent[3] = { 10, 20, 30 };
    int got[3] = { 0, 0, 0 };
    const ds__net_transfer transfers[] = {
        { &sent[0], 4, next, 1, 0 },     { &sent[1], 4, next, 1, 0 },
        { &sent[2], 4, next, 32767, 0 }, { &got[2], 4, before, 32767, 1 },
        { &got[0], 4, before, 1, 1 },    { &got[1], 4, before, 1, 1 }
    };
    ds__net_op op = { .kind = DS__NET_EXCHANGE, .transfers = transfers, .transfer_count = 6 };
    OK(run(&world, &op));
    CHECK(got[0] == 10 && got[1] == 20 && got[2] == 30, "%d %d %d", got[0], got[1], got[2]);
}

static void test_exchange_of_nothing(void) {
    ds__net_op op = { .kind = DS__NET_EXCHANGE };
    OK(run(&world, &op));
}

static void test_exchange_sizes_differ(void) {
    char to[8] = "1234567";
    char from[16];
    int next = (world.rank + 1) % world.size;
    int before = (world.rank + world.size - 1) % world.size;
    const ds__net_transfer shorter[] = { { to, 8, next, 3, 0 }, { from, 16, before, 3, 1 } };
    ds__net_op op = { .kind = DS__NET_EXCHANGE, .transfers = shorter, .transfer_count = 2 };
    CHECK(run(&world, &op) == DS_ERR_MISMATCH, "a short message");
    CHECK(strstr(ds_error_get_last(), "has sent 8 bytes where 16"), "%s", ds_error_get_last());

    const ds__net_transfer longer[] = { { to, 8, next, 3, 0 }, { from, 4, before, 3, 1 } };
    op.transfers = longer;
    CHECK(run(&world, &op) == DS_ERR_FAILED, "a long message");
    CHECK(strstr(ds_error_get_last(), "MPI_Test failed: "), "%s", ds_error_get_last());
    atomic_store(&ds__mpi_state.unfinished, 0); /* both requests are complete */
}

static void test_many_operations_at_once(void) {
    enum { COUNT = 50 };

    int64_t values[COUNT];
    ds__net_request requests[COUNT];
    for (int i = 0; i < COUNT; i++) {
        values[i] = world.rank + i;
        ds__net_op op = { .kind = DS__NET_ALL_REDUCE,
                          .in = &values[i],
                          .out = &values[i],
                          .count = 1,
                          .dtype = ds_int64(),
                          .reduce_op = DS_REDUCE_SUM };
        OK(engine->start(world.comm, &op, &requests[i]));
    }
    for (int i = COUNT - 1; i >= 0; i--)
        OK(finish(&world, &requests[i]));
    for (int i = 0; i < COUNT; i++)
        CHECK(values[i] == world.size * (world.size - 1) / 2 + world.size * i, "value %d", i);
}

/* ---- communicators --------------------------------------------------------------------------- */

/* The sum of the ranks of `world`. */
static int sum_of_ranks(const ds__net_comm *c) {
    int32_t sum = -1;
    int32_t mine = world.rank;
    ds__net_op op = { .kind = DS__NET_ALL_REDUCE,
                      .in = &mine,
                      .out = &sum,
                      .count = 1,
                      .dtype = ds_int32(),
                      .reduce_op = DS_REDUCE_SUM };
    OK(run(c, &op));
    return sum;
}

static ds_result create(uint64_t timeout_ns, ds__net_comm *out) {
    ds_ranks_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.flags = flags;
    return engine->init(&desc, deadline_after(timeout_ns), out);
}

static void test_split(void) {
    ds__net_comm c;
    int odd = world.rank % 2;
    int members = (world.size + 1 - odd) / 2;
    OK(engine->split(world.comm, odd, -world.rank, deadline_after(LIMIT_NS), &c));
    CHECK(c.comm && c.size == members, "%d ranks", c.size);
    CHECK(c.rank == members - 1 - world.rank / 2, "rank %d", c.rank);
    int expected = 0;
    for (int i = odd; i < world.size; i += 2)
        expected += i;
    CHECK(sum_of_ranks(&c) == expected, "sum");
    engine->destroy(c.comm, 0);
}

static void test_split_without_a_color(void) {
    ds__net_comm c;
    OK(engine->split(world.comm, world.rank == 0 ? -5 : 1, 0, deadline_after(LIMIT_NS), &c));
    if (world.rank == 0) {
        CHECK(!c.comm, "rank 0 is in no group");
        return;
    }
    CHECK(c.size == world.size - 1 && c.rank == world.rank - 1, "rank %d of %d", c.rank, c.size);
    CHECK(sum_of_ranks(&c) == world.size * (world.size - 1) / 2, "sum");
    engine->destroy(c.comm, 0);
}

static void test_split_while_operations_run(void) {
    ds__net_comm c;
    ds__net_request request;
    ds__net_op op = { .kind = DS__NET_BARRIER };
    if (world.rank != 0)
        OK(engine->start(world.comm, &op, &request));
    OK(engine->split(world.comm, 0, 0, deadline_after(LIMIT_NS), &c));
    if (world.rank == 0)
        OK(engine->start(world.comm, &op, &request));
    OK(finish(&world, &request));
    engine->destroy(c.comm, 0);
}

static void test_shrink(void) {
    ds__net_comm c;
    int excluded = world.size / 2;
    if (world.size == 1 || world.rank == excluded)
        return;
    OK(engine->shrink(world.comm, &excluded, 1, deadline_after(LIMIT_NS), &c));
    CHECK(c.size == world.size - 1, "%d ranks", c.size);
    CHECK(sum_of_ranks(&c) == world.size * (world.size - 1) / 2 - excluded, "sum");
    engine->destroy(c.comm, 0);
}

static void *drive(void *user) {
    const ds__net_comm *c = user;
    for (int i = 0; i < 300; i++)
        if (sum_of_ranks(c) != world.size * (world.size - 1) / 2)
            return user;
    return NULL;
}

static void test_two_threads(void) {
    ds__net_comm a;
    ds__net_comm b;
    pthread_t thread;
    void *wrong = NULL;
    OK(create(LIMIT_NS, &a));
    OK(create(LIMIT_NS, &b));
    CHECK(pthread_create(&thread, NULL, drive, &a) == 0, "pthread_create");
    CHECK(!drive(&b), "sums of the first thread");
    pthread_join(thread, &wrong);
    CHECK(!wrong, "sums of the second thread");
    engine->destroy(a.comm, 0);
    engine->destroy(b.comm, 0);
}

static void test_numbers_of_the_program(void) {
    ds__net_comm c;
    ds_ranks_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.rank = world.rank;
    desc.size = world.size;
    OK(engine->init(&desc, deadline_after(LIMIT_NS), &c));
    engine->destroy(c.comm, 0);

    desc.size = world.size + 1;
    CHECK(engine->init(&desc, deadline_after(LIMIT_NS), &c) == DS_ERR_INVALID_VALUE,
          "a wrong size");
    CHECK(strstr(ds_error_get_last(), "but MPI has rank"), "%s", ds_error_get_last());
}

static void test_communicator_of_the_program(void) {
    ds__net_comm c;
    ds_ranks_desc desc;
    ds__mpi_comm given = ((ds__mpi_link *)world.comm)->comm;
    memset(&desc, 0, sizeof desc);
    memcpy(&desc.mpi_comm, &given, sizeof given);
    OK(engine->init(&desc, deadline_after(LIMIT_NS), &c));
    CHECK(c.rank == world.rank && c.size == world.size, "rank %d of %d", c.rank, c.size);
    CHECK(sum_of_ranks(&c) == world.size * (world.size - 1) / 2, "sum");
    engine->destroy(c.comm, 0);
}

static void test_launcher_with_other_ranks(void) {
    ds__net_comm c;
    char expected[80];
    strcpy(launch.launcher, "torchrun");
    launch.size = world.size + 3;
    CHECK(create(LIMIT_NS, &c) == DS_ERR_INVALID_VALUE, "torchrun is not connected with MPI");
    snprintf(expected, sizeof expected, "torchrun started %d processes, but MPI_COMM_WORLD has %d",
             world.size + 3, world.size);
    CHECK(strstr(ds_error_get_last(), expected), "%s", ds_error_get_last());
    launch.size = -1;
}

static void test_library(void) {
    char text[128];
    engine->library(text, sizeof text);
    CHECK(strstr(text, "MPI"), "%s", text);
    CHECK(!strchr(text, '\n') && !strchr(text, '\t'), "%s", text);
}

/* ---- failures: these tests leave requests behind --------------------------------------------- */

static void test_tell_and_hear(void) {
    char reason[DS__RANKS_REASON] = "";
    int rank = -2;
    ds_result r;
    ds__net_comm c;
    OK(create(LIMIT_NS, &c));
    OK(engine->hear(c.comm, reason, &rank));
    CHECK(!any_failed(failures), "other ranks");
    int teller = world.size - 1;
    if (world.rank == teller)
        engine->tell(c.comm, DS_ERR_ABORTED, "out of coffee");

    uint64_t begin = ds__now_ns();
    while ((r = engine->hear(c.comm, reason, &rank)) == DS_OK && world.rank != teller &&
           ds__now_ns() - begin < LIMIT_NS)
        ds__os_sleep(100000);
    if (world.rank != teller) {
        CHECK(r == DS_ERR_ABORTED && rank == teller, "%s of %d", ds_result_get_name(r), rank);
        CHECK(strcmp(reason, "out of coffee") == 0, "%s", reason);
        CHECK(engine->hear(c.comm, reason, &rank) == DS_ERR_ABORTED, "the second time");
    }
    engine->destroy(c.comm, world.rank == teller);
}

static void test_abandon(void) {
    static ds__net_op op = { .kind = DS__NET_BARRIER };
    static int numbers[2];
    ds__net_request requests[2];
    ds__net_comm c;
    OK(create(LIMIT_NS, &c));
    if (world.size > 1 && world.rank > 0) {
        static const ds__net_transfer never[] = { { numbers, 8, 0, 5, 1 } };
        static const ds__net_op exchange = { .kind = DS__NET_EXCHANGE,
                                             .transfers = never,
                                             .transfer_count = 1 };
        OK(engine->start(c.comm, &op, &requests[0]));
        OK(engine->start(c.comm, &exchange, &requests[1]));
        for (int i = 0; i < 2; i++) {
            CHECK(engine->test(c.comm, &requests[i]) == DS_NOT_READY, "rank 0 does not take part");
            atomic_store(&ds__mpi_state.unfinished, 0);
            engine->abandon(c.comm, &requests[i]);
            CHECK(atomic_load(&ds__mpi_state.unfinished), "MPI_Finalize would wait");
        }
    }
    engine->destroy(c.comm, 1);
}

static void test_split_with_a_rank_late(void) {
    ds__net_comm c;
    if (world.size == 1)
        return;
    if (world.rank > 0) {
        uint64_t begin = ds__now_ns();
        ds_result r = engine->split(world.comm, 0, 0, deadline_after(200000000), &c);
        CHECK(r == DS_ERR_TIMEOUT && !c.comm, "%s", ds_result_get_name(r));
        CHECK(ds__now_ns() - begin < 5000000000u, "too late");
        CHECK(strstr(ds_error_get_last(), "split: not all ranks"), "%s", ds_error_get_last());
    }
}

static void test_init_with_a_rank_late(void) {
    ds__net_comm c;
    if (world.size > 1 && world.rank > 0) {
        ds_result r = create(200000000, &c);
        CHECK(r == DS_ERR_TIMEOUT && !c.comm, "%s", ds_result_get_name(r));
        CHECK(strstr(ds_error_get_last(), "not all ranks have called within the time limit"), "%s",
              ds_error_get_last());
    }
}

/* ---- modes: a process of its own for each ---------------------------------------------------- */

static void initialize(int level) {
    int granted = -1;
    OK(ds__mpi_load());
    CHECK(ds__mpi.Init_thread(NULL, NULL, level, &granted) == 0, "MPI_Init_thread");
    CHECK(granted == level, "level %d", granted);
}

static void mode_single(void) {
    int flag = 1;
    initialize(DS__MPI_THREAD_SINGLE);
    ds_result r = create(LIMIT_NS, &world);
    CHECK(r == DS_ERR_UNSUPPORTED && strstr(ds_error_get_last(), "MPI_THREAD_SINGLE"), "%s",
          ds_error_get_last());

    flags = DS_RANKS_NO_OTHER_MPI;
    OK(create(LIMIT_NS, &world));
    CHECK(atomic_load(&ds__mpi_state.serialized), "calls are in order");
    test_two_threads();
    engine->destroy(world.comm, 0);
    engine->shutdown();
    CHECK(ds__mpi.Finalized(&flag) == 0 && !flag, "the program finalizes MPI");
    ds__mpi.Finalize();
}

static void mode_multiple(void) {
    int flag = 1;
    initialize(DS__MPI_THREAD_MULTIPLE);
    OK(create(LIMIT_NS, &world));
    CHECK(!atomic_load(&ds__mpi_state.serialized), "calls need no order");
    engine->destroy(world.comm, 0);
    engine->shutdown();
    CHECK(ds__mpi.Finalized(&flag) == 0 && !flag, "the program finalizes MPI");
    ds__mpi.Finalize();
}

static void mode_finalized(void) {
    int flag = 0;
    OK(create(LIMIT_NS, &world));
    engine->destroy(world.comm, 0);
    engine->shutdown();
    CHECK(ds__mpi.Finalized(&flag) == 0 && flag, "devstream finalizes MPI");
    CHECK(create(LIMIT_NS, &world) == DS_ERR_ILLEGAL_STATE, "after MPI_Finalize");
    CHECK(strstr(ds_error_get_last(), "MPI was finalized by ds_shutdown"), "%s",
          ds_error_get_last());
    engine->shutdown();
}

static void mode_refused(void) {
    CHECK(create(LIMIT_NS, &world) == DS_ERR_UNSUPPORTED, "MPI is available");
    printf("%s\n", ds_error_get_last());
}

/* A library that the program has loaded without making its symbols visible, like Python. */
static void mode_loaded(void) {
    CHECK(ds__os_library_open("libmpi.so.12"), "libmpi.so.12");
    mode_refused();
}

/* The last rank is killed; the others go on without it: mpiexec -disable-auto-cleanup, which sends
   SIGUSR1 to them. */
static void mode_killed(void) {
    ds__net_comm c;
    char reason[DS__RANKS_REASON] = "";
    int rank = -2;
    (void)signal(SIGUSR1, SIG_IGN);
    OK(create(LIMIT_NS, &world));
    (void)sum_of_ranks(&world);
    int last = world.size - 1;
    if (world.rank == last)
        (void)raise(SIGKILL);
    ds__os_sleep(500000000);
    (void)engine->hear(world.comm, reason, &rank); /* MPI may know it, but need not */

    OK(engine->shrink(world.comm, &last, 1, deadline_after(10000000000u), &c));
    if (!failures)
        CHECK(sum_of_ranks(&c) == last * (last - 1) / 2, "sum");
    engine->destroy(world.comm, 1);
    engine->shutdown();
}

/* More bytes than an int can count. */
static void mode_large(void) {
    size_t bytes = ((size_t)1 << 31) + 4096;
    OK(create(LIMIT_NS, &world));
    unsigned char *at = calloc(1, bytes);
    CHECK(at, "memory");
    if (world.rank == 0)
        fill(at + bytes - 64, 64, 0, 0);
    ds__net_op op = { .kind = DS__NET_BROADCAST, .out = at, .count = bytes };
    if (sizeof(ds__mpi_count) > sizeof(int)) {
        OK(run(&world, &op));
        CHECK(filled(at + bytes - 64, 64, 0, 0), "the end");
    } else {
        CHECK(run(&world, &op) == DS_ERR_UNSUPPORTED, "counts of int");
    }
    free(at);
    engine->destroy(world.comm, 0);
    engine->shutdown();
}

static const struct {
    const char *name;
    void (*fn)(void);
} modes[] = { { "single", mode_single },       { "multiple", mode_multiple },
              { "finalized", mode_finalized }, { "refused", mode_refused },
              { "loaded", mode_loaded },       { "killed", mode_killed },
              { "large", mode_large } };

static const struct {
    const char *name;
    void (*fn)(void);
} tests[] = { { "all_reduce", test_all_reduce },
              { "reduce", test_reduce },
              { "reduce_scatter", test_reduce_scatter },
              { "reduces_no_other_type", test_reduces_no_other_type },
              { "broadcast", test_broadcast },
              { "gather", test_gather },
              { "all_gather", test_all_gather },
              { "scatter", test_scatter },
              { "all_to_all", test_all_to_all },
              { "barrier", test_barrier },
              { "exchange_ring", test_exchange_ring },
              { "exchange_order_and_tags", test_exchange_order_and_tags },
              { "exchange_of_nothing", test_exchange_of_nothing },
              { "exchange_sizes_differ", test_exchange_sizes_differ },
              { "many_operations_at_once", test_many_operations_at_once },
              { "split", test_split },
              { "split_without_a_color", test_split_without_a_color },
              { "split_while_operations_run", test_split_while_operations_run },
              { "shrink", test_shrink },
              { "two_threads", test_two_threads },
              { "numbers_of_the_program", test_numbers_of_the_program },
              { "communicator_of_the_program", test_communicator_of_the_program },
              { "launcher_with_other_ranks", test_launcher_with_other_ranks },
              { "library", test_library },
              { "tell_and_hear", test_tell_and_hear },
              { "abandon", test_abandon },
              { "split_with_a_rank_late", test_split_with_a_rank_late },
              { "init_with_a_rank_late", test_init_with_a_rank_late } };

static int run_all(void) {
    int passed = 0;
    int failed = 0;
    if (create(LIMIT_NS, &world) < 0) {
        fprintf(stderr, "init: %s\n", ds_error_get_last());
        return 1;
    }
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (world.rank == 0)
            printf("run   engine_mpi %s\n", tests[i].name);
        fflush(stdout);
        failures = 0;
        tests[i].fn();
        int bad = any_failed(failures != 0);
        passed += !bad;
        failed += bad;
        if (world.rank == 0)
            printf("%s  engine_mpi %s\n", bad ? "FAIL" : "ok  ", tests[i].name);
    }
    if (world.rank == 0)
        printf("engine_mpi, %d ranks: %d passed, %d failed\n", world.size, passed, failed);
    engine->destroy(world.comm, 1);
    engine->shutdown();
    return failed > 0;
}

int main(int argc, char **argv) {
    alarm(300);
    if (argc < 2)
        return run_all();
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].fn();
            printf("engine_mpi %s: %d passed, %d failed\n", argv[1], !failures, failures != 0);
            return failures > 0;
        }
    fprintf(stderr, "engine_mpi: there is no mode %s\n", argv[1]);
    return 2;
}
