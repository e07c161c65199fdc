/* What groups of the engine "nccl" can do: several devices of a rank, growth, registered memory,
   configuration of operations. On the stand-ins for NCCL and cudart; each rank is a thread. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "../ranks/nccl_threads.h"
#include "standin/standin.h"

#include <math.h>
#include <sys/wait.h>

static char grow_id[DS_RANKS_ID_SIZE];
static ds_ranks smaller[RANKS];

/* Runs a test with `devices` devices for each rank. */
static void run_with(size_t devices, void (*test_fn)(rank *me)) {
    own = devices;
    run(test_fn, 5000 * MS, 0);
    own = 1;
}

/* The calls of a function of NCCL by all ranks while they run a function. */
static unsigned long calls_of(const char *name, rank *me, void (*run_fn)(rank *me)) {
    pthread_barrier_wait(&all);
    unsigned long before = standin_nccl_calls(name);
    pthread_barrier_wait(&all);
    run_fn(me);
    synchronize(me);
    pthread_barrier_wait(&all);
    unsigned long calls = standin_nccl_calls(name) - before;
    pthread_barrier_wait(&all);
    return calls;
}

#define CHECK(condition) EXPECT((condition) ? DS_OK : DS_ERR_FAILED, DS_OK, "")

/* ---- several devices of a rank --------------------------------------------------------------- */

static void reduce_ones(rank *me) {
    set(me, 1);
    OK(reduce(me));
}

enum { TWO = 0x40000000, TWELVE = 0x41400000 }; /* as floats */

static void reduce_in_order(rank *me) {
    set(me, TWO);
    OK(all_reduce_with(me, me->world, COUNT, 0, NULL));
}

static void devices(rank *me) {
    CHECK(calls_of("ncclAllReduce", me, reduce_ones) == RANKS * own);
    expect_all(me, RANKS * (int)own);
    /* in fixed order, each device gets the tensors of all others */
    CHECK(calls_of("ncclAllGather", me, reduce_in_order) == RANKS * own);
    expect_all(me, TWELVE);
}

static void test_each_device_is_a_rank_of_nccl(void **state) {
    (void)state;
    run_with(2, devices);
}

/* Rank 0 sends its tensors to the other device of rank 1, which receives them in its own order. */
static void crossing(rank *me, ds_ranks group) {
    ds_ranks_transfer list[OWN];
    ds_comm_options o = { .streams = me->stream, .stream_count = OWN, .ranks = group };
    int32_t got = 0;
    for (size_t i = 0; i < OWN; i++) {
        OK(ds_fill(me->tensor[i]->data, (uint32_t)i + 5, 4, COUNT, me->stream[i]));
        list[i] = (ds_ranks_transfer){ .tensor = me->tensor[i],
                                       .kind = me->rank ? DS_RANKS_RECEIVE : DS_RANKS_SEND,
                                       .device = i,
                                       .peer = me->rank ? 1 - i : OWN + 1 - i };
    }
    if (me->rank > 1)
        return;
    OK(ds_ranks_exchange(list, OWN, &o));
    for (size_t i = 0; i < OWN && me->rank; i++) {
        OK(ds_copy(&got, me->tensor[i]->data, sizeof got, me->stream[i]));
        OK(ds_stream_synchronize(me->stream[i]));
        CHECK(got == 6 - (int)i);
    }
}

static void repeated(rank *me) {
    ds_ranks twice;
    ds_device list[2] = { me->device[0], me->device[0] };
    ds_ranks_desc desc = { .engine = "nccl",
                           .rank = me->rank,
                           .size = RANKS,
                           .id = grow_id,
                           .devices = me->rank == 1 ? list : me->device,
                           .device_count = 2,
                           .timeout_ns = limit_ns };
    if (me->rank == 0)
        OK(ds_ranks_id_create("nccl", grow_id, sizeof grow_id));
    unsigned long before = standin_nccl_calls("ncclCommInitRankConfig");
    pthread_barrier_wait(&all);
    OK(ds_ranks_init(&desc, &twice));
    pthread_barrier_wait(&all);
    if (me->rank == 0) /* and not again for each device */
        CHECK(standin_nccl_calls("ncclCommInitRankConfig") - before == RANKS);
    rank other = *me;
    for (int i = 0; i < OWN; i++)
        other.device[i] = desc.devices[i];
    rank_begin(&other);
    OK(all_reduce(&other, twice, COUNT));
    expect_all(&other, RANKS * OWN);
    crossing(&other, twice);
    rank_end(&other);
    OK(ds_ranks_finalize(twice));
}

/* NCCL refuses a device that repeats: the rank's first device is its rank of NCCL then. */
static void test_repeated_device(void **state) {
    (void)state;
    run_with(2, repeated);
}

static void reduce_shared(rank *me) {
    OK(all_reduce(me, smaller[me->rank], COUNT));
}

static void sharing(rank *me) {
    ds_device list[2] = { me->device[0], { DS_DEVICE_CUDA, 7 } };
    ds_ranks_desc desc = { .engine = "nccl",
                           .rank = me->rank,
                           .size = RANKS,
                           .id = grow_id,
                           .devices = list,
                           .device_count = 2,
                           .timeout_ns = limit_ns };
    if (me->rank == 0)
        OK(ds_ranks_id_create("nccl", grow_id, sizeof grow_id));
    pthread_barrier_wait(&all);
    OK(ds_ranks_init(&desc, &smaller[me->rank]));
    rank other = *me;
    other.device[1] = list[1];
    rank_begin(&other);
    CHECK(calls_of("ncclAllReduce", &other, reduce_shared) == RANKS);
    expect_all(&other, RANKS * OWN);
    rank_end(&other);
    OK(ds_ranks_finalize(smaller[me->rank]));
}

/* NCCL refuses a device that two ranks have: all ranks go on with their first devices. */
static void test_device_of_two_ranks(void **state) {
    (void)state;
    run_with(2, sharing);
}

static void late(rank *me) {
    if (me->rank == 1)
        return;
    OK(reduce(me));
    for (size_t i = 0; i < own; i++)
        EXPECT(ds_stream_synchronize(me->stream[i]), DS_ERR_TIMEOUT, "not complete within 300 ms");
    EXPECT(reduce(me), DS_ERR_TIMEOUT, "not complete within 300 ms");
}

static void test_time_limit_on_several_devices(void **state) {
    (void)state;
    own = 2;
    run(late, 300 * MS, 0);
    own = 1;
}

static void captured(rank *me) {
    ds_graph graph;
    ds_graph_exec exec;
    OK(ds_capture_begin(me->stream[0], DS_CAPTURE_THREAD_LOCAL));
    EXPECT(reduce(me), DS_ERR_ILLEGAL_STATE, "bring both into the capture");
    OK(ds_stream_wait_stream(me->stream[1], me->stream[0]));
    OK(reduce(me));
    OK(ds_stream_wait_stream(me->stream[0], me->stream[1]));
    OK(ds_capture_end(me->stream[0], &graph));
    OK(ds_graph_instantiate(graph, NULL, &exec));
    set(me, 1);
    synchronize(me);
    for (int i = 0; i < 2; i++)
        OK(ds_graph_launch(exec, me->stream[0]));
    OK(ds_stream_synchronize(me->stream[0]));
    expect_all(me, 36);
    OK(ds_graph_exec_destroy(exec));
    OK(ds_graph_destroy(graph));
}

static void test_capture_of_several_devices(void **state) {
    (void)state;
    run_with(2, captured);
}

/* NCCL does not say what a maximum with NaN is, so it does not compute it. */
static void not_a_number(rank *me) {
    int64_t count = 2;
    float data[2] = { me->rank == 1 ? NAN : 1.0f, (float)me->rank };
    ds_tensor *t;
    OK(ds_tensor_alloc(ds_float32(), 1, &count, me->stream[0], &t));
    OK(ds_copy(t->data, data, sizeof data, me->stream[0]));
    const ds_tensor *list = t;
    ds_comm_options o = {
        .streams = me->stream, .stream_count = 1, .ranks = me->world, .flags = DS_COMM_ANY_ORDER
    };
    unsigned long before = standin_nccl_calls("ncclAllReduce");
    OK(ds_comm_all_reduce(&list, &list, 1, DS_REDUCE_MAX, &o));
    OK(ds_copy(data, t->data, sizeof data, me->stream[0]));
    OK(ds_stream_synchronize(me->stream[0]));
    CHECK(isnan(data[0]) && data[1] == RANKS - 1);
    CHECK(standin_nccl_calls("ncclAllReduce") == before);
    OK(ds_tensor_free(t));
}

static void test_maximum_of_floats_is_not_nccls(void **state) {
    (void)state;
    run_with(1, not_a_number);
}

/* A collective is one call of NCCL and one batch of operations on words in the stream. */
static void counted(rank *me) {
    if (me->rank == 0) {
        unsigned long reductions = standin_nccl_calls("ncclAllReduce");
        unsigned long batches = standin_calls("cuStreamBatchMemOp");
        OK(reduce(me));
        CHECK(standin_nccl_calls("ncclAllReduce") == reductions + 1);
        CHECK(standin_calls("cuStreamBatchMemOp") == batches + 1);
    }
    pthread_barrier_wait(&all);
    if (me->rank > 0)
        OK(reduce(me));
    synchronize(me);
}

static void test_calls_of_a_collective(void **state) {
    (void)state;
    run_with(1, counted);
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* The group of ranks 0 and 1 grows by rank 2. */
static void growing(rank *me) {
    ds_ranks grown;
    ds_ranks small;
    ds_ranks_info info;
    OK(ds_ranks_split(me->world, me->rank == 2, 0, &small));
    smaller[me->rank] = small;
    if (me->rank < 2) {
        EXPECT(ds_ranks_grow(small, 2, &grown), DS_ERR_INVALID_VALUE, "must be above 2");
        EXPECT(ds_ranks_grow(small, 3, &grown), DS_ERR_ILLEGAL_STATE, "ds_ranks_grow_id");
    }
    if (me->rank == 1)
        EXPECT(ds_ranks_grow_id(small, (char[DS_RANKS_ID_SIZE]){ "" }, DS_RANKS_ID_SIZE),
               DS_ERR_ILLEGAL_STATE, "rank 0 creates the id");
    if (me->rank == 0) {
        EXPECT(ds_ranks_grow_id(small, grow_id, 20), DS_ERR_INVALID_VALUE, "DS_RANKS_ID_SIZE");
        OK(ds_ranks_grow_id(small, grow_id, sizeof grow_id));
        EXPECT(ds_ranks_grow_id(small, (char[DS_RANKS_ID_SIZE]){ "" }, DS_RANKS_ID_SIZE),
               DS_ERR_ILLEGAL_STATE, "has an id already");
    }
    pthread_barrier_wait(&all);

    ds_ranks_desc desc = { .engine = "nccl",
                           .rank = me->rank,
                           .size = RANKS,
                           .id = grow_id,
                           .devices = me->device,
                           .device_count = own,
                           .timeout_ns = limit_ns };
    if (me->rank == 2)
        OK(ds_ranks_init(&desc, &grown));
    else
        OK(ds_ranks_grow(small, RANKS, &grown));
    OK(ds_ranks_get_info(grown, &info));
    CHECK(info.rank == me->rank && info.size == RANKS && info.device_count == RANKS * own);
    set(me, 1);
    OK(all_reduce(me, grown, COUNT));
    expect_all(me, RANKS * (int)own);
    OK(all_reduce(me, small, COUNT)); /* the group that grew works on */
    expect_all(me, RANKS * (int)own * (me->rank < 2 ? 2 : 1) * (int)own);
    OK(ds_ranks_finalize(grown));
    OK(ds_ranks_finalize(small));
}

static void test_group_grows(void **state) {
    (void)state;
    unsigned long before = standin_nccl_calls("ncclCommGrow");
    run_with(1, growing);
    assert_int_equal(standin_nccl_calls("ncclCommGrow") - before, RANKS);
    run_with(2, growing);
}

/* The rank that the group of ranks 0 and 1 waits for does not come. */
static void growing_alone(rank *me) {
    ds_ranks grown;
    ds_ranks small;
    OK(ds_ranks_split(me->world, me->rank == 2, 0, &small));
    if (me->rank == 0)
        OK(ds_ranks_grow_id(small, grow_id, sizeof grow_id));
    if (me->rank < 2)
        EXPECT(ds_ranks_grow(small, RANKS, &grown), DS_ERR_TIMEOUT, "CommGrow");
    OK(ds_ranks_finalize(small));
}

static void test_growth_that_times_out(void **state) {
    (void)state;
    run(growing_alone, 500 * MS, 0);
}

/* ---- registered memory ----------------------------------------------------------------------- */

static void registering(rank *me) {
    int32_t host = 0;
    void *at = me->tensor[0]->data;
    size_t bytes = COUNT * sizeof(int32_t);
    OK(ds_ranks_register(me->world, at, bytes));
    EXPECT(ds_ranks_register(me->world, at, bytes), DS_ERR_INVALID_VALUE, "registered already");
    EXPECT(ds_ranks_register(me->world, &host, 4), DS_ERR_INVALID_VALUE, "not memory of a device");
    EXPECT(ds_ranks_register(me->world, at, 0), DS_ERR_INVALID_VALUE, "size is 0");
    for (size_t i = 1; i < own; i++)
        OK(ds_ranks_register(me->world, me->tensor[i]->data, bytes));
    reduce_ones(me);
    expect_all(me, RANKS * (int)own);
    OK(ds_ranks_deregister(me->world, at));
    EXPECT(ds_ranks_deregister(me->world, at), DS_ERR_INVALID_VALUE, "is not registered");
    OK(ds_ranks_register(me->world, at, bytes)); /* it ends with the group */
}

static void test_registered_memory(void **state) {
    (void)state;
    unsigned long before = standin_nccl_calls("ncclCommRegister");
    run_with(1, registering);
    assert_int_equal(standin_nccl_calls("ncclCommRegister") - before, 2 * RANKS);
    before = standin_nccl_calls("ncclCommRegister");
    run_with(2, registering);
    /* the first device has two communicators */
    assert_int_equal(standin_nccl_calls("ncclCommRegister") - before, RANKS * (2 + 1 + 2));
    assert_int_equal(standin_nccl_calls("ncclCommRegister"),
                     standin_nccl_calls("ncclCommDeregister"));
}

/* ---- configuration --------------------------------------------------------------------------- */

static const ds_ranks_nccl few = { .max_ctas = 4 };

static void reduce_configured(rank *me) {
    set(me, 1);
    OK(all_reduce_with(me, me->world, COUNT, DS_COMM_ANY_ORDER,
                       &(ds_ranks_options){ .nccl = &few }));
}

static ds_result all_to_all_with(rank *me, const ds_ranks_options *more) {
    int64_t none = 0;
    ds_tensor t = *me->tensor[0];
    const ds_tensor *list = &t;
    t.shape = &none;
    ds_comm_options o = {
        .streams = me->stream, .stream_count = 1, .ranks = me->world, .ranks_options = more
    };
    return ds_comm_all_to_all(&list, &list, 1, &o);
}

static void configured(rank *me) {
    static const ds_ranks_nccl wrong = { .min_ctas = 8, .max_ctas = 4 };
    ds_ranks_options more = { .nccl = &few };
    CHECK(calls_of("ncclAllReduceConfig", me, reduce_configured) == RANKS);
    expect_all(me, RANKS);
    EXPECT(all_reduce_with(me, me->world, COUNT, 0, &more), DS_ERR_UNSUPPORTED,
           "DS_COMM_ANY_ORDER");
    EXPECT(all_to_all_with(me, &more), DS_ERR_UNSUPPORTED, "messages have no configuration");
    reduce_ones(me);
    expect_all(me, RANKS);
    more.nccl = &wrong;
    EXPECT(all_reduce_with(me, me->world, COUNT, DS_COMM_ANY_ORDER, &more), DS_ERR_FAILED,
           "AllReduceConfig");
}

/* A collective of the ranks, of one element for each of them or for all, with the configuration. */
static ds_result configured_collective(rank *me, const char *name) {
    static int64_t sizes[2] = { 1, RANKS };
    ds_ranks_options more = { .nccl = &few };
    ds_comm_options o = { .streams = me->stream,
                          .stream_count = 1,
                          .ranks = me->world,
                          .root = 1,
                          .flags = DS_COMM_ANY_ORDER,
                          .ranks_options = &more };
    int at_root = me->rank == 1;
    ds_tensor part = *me->tensor[0], whole = *me->tensor[0];
    const ds_tensor *one = &part, *all_parts = &whole;
    part.shape = &sizes[0];
    whole.shape = &sizes[1];
    part.data = (char *)whole.data + 4 * me->rank; /* in place */
    if (strcmp(name, "ncclBroadcastConfig") == 0)
        return ds_comm_broadcast_into(at_root ? all_parts : NULL, &all_parts, 1, &o);
    if (strcmp(name, "ncclReduceConfig") == 0)
        return ds_comm_reduce_into(&all_parts, 1, DS_REDUCE_SUM, at_root ? all_parts : NULL, &o);
    if (strcmp(name, "ncclAllGatherConfig") == 0)
        return ds_comm_all_gather(&one, &all_parts, 1, &o);
    return ds_comm_reduce_scatter(&all_parts, &one, 1, DS_REDUCE_SUM, &o);
}

/* Runs it on tensors of the rank's number plus 1, and checks the element of rank `of`. */
static void expect_configured(rank *me, const char *name, int of, int32_t wanted) {
    int32_t got[COUNT] = { 0 };
    pthread_barrier_wait(&all);
    unsigned long before = standin_nccl_calls(name);
    set(me, me->rank + 1);
    pthread_barrier_wait(&all);
    OK(configured_collective(me, name));
    OK(ds_copy(got, me->tensor[0]->data, sizeof got, me->stream[0]));
    synchronize(me);
    pthread_barrier_wait(&all);
    CHECK(standin_nccl_calls(name) - before == RANKS);
    CHECK(got[of] == wanted);
}

static void each_configured(rank *me) {
    expect_configured(me, "ncclBroadcastConfig", 0, 2);
    expect_configured(me, "ncclReduceConfig", 0, me->rank == 1 ? 6 : me->rank + 1);
    expect_configured(me, "ncclAllGatherConfig", 2, 3);
    expect_configured(me, "ncclReduceScatterConfig", me->rank, 6);
    configured(me);
}

static void test_operation_is_configured(void **state) {
    (void)state;
    run_with(1, each_configured);
}

static void test_other_engines_refuse(void **state) {
    (void)state;
    ds_ranks ranks;
    ds_stream stream;
    ds_tensor *t;
    int64_t count = COUNT;
    char text[DS_RANKS_ID_SIZE];
    rank one = { .rank = 0 }, *me = &one;
    ds_device cpu = ds_cpu(0);
    ds_ranks_options more = { .nccl = &few };
    atomic_store(&failures, 0);
    OK(ds_ranks_init(
        &(ds_ranks_desc){
            .engine = "local", .size = 1, .id = "refusals", .devices = &cpu, .device_count = 1 },
        &ranks));
    OK(ds_stream_create(&(ds_stream_desc){ .device = cpu }, &stream));
    OK(ds_tensor_alloc(ds_int32(), 1, &count, stream, &t));
    const ds_tensor *list = t;
    ds_comm_options o = {
        .streams = &stream, .stream_count = 1, .ranks = ranks, .ranks_options = &more
    };
    EXPECT(ds_comm_all_reduce(&list, &list, 1, DS_REDUCE_SUM, &o), DS_ERR_UNSUPPORTED,
           "is set for engine \"local\"");
    EXPECT(ds_ranks_register(ranks, t->data, 4), DS_ERR_UNSUPPORTED, "registers no memory");
    EXPECT(ds_ranks_deregister(ranks, t->data), DS_ERR_INVALID_VALUE, "is not registered");
    OK(ds_ranks_grow_id(ranks, text, sizeof text));
    OK(ds_tensor_free(t));
    OK(ds_stream_destroy(stream));
    OK(ds_ranks_finalize(ranks));
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

/* ---- one process ----------------------------------------------------------------------------- */

enum { GPUS = 4, PART = 3, WHOLE = GPUS * PART, RESULTS = 3 * GPUS + 1 };

/* A list of tensors on the GPUs, and a single one. */
typedef struct tensors {
    ds_stream stream[GPUS];
    ds_stream single_stream;
    ds_tensor *part[GPUS];
    ds_tensor *whole[GPUS];
    ds_tensor *other[GPUS];
    ds_tensor *single;
    ds_comm_options options;
} tensors;

/* Creates tensors of numbers; the single one is on GPU 1. */
static void tensors_make(tensors *t, ds_dtype dtype) {
    rank one = { .rank = 0 }, *me = &one;
    int64_t part = PART;
    int64_t whole = WHOLE;
    for (int i = 0; i < GPUS; i++) {
        OK(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(i) }, &t->stream[i]));
        OK(ds_tensor_alloc(dtype, 1, &part, t->stream[i], &t->part[i]));
        OK(ds_tensor_alloc(dtype, 1, &whole, t->stream[i], &t->whole[i]));
        OK(ds_tensor_alloc(dtype, 1, &whole, t->stream[i], &t->other[i]));
    }
    OK(ds_stream_create(&(ds_stream_desc){ .device = ds_cuda(1) }, &t->single_stream));
    OK(ds_tensor_alloc(dtype, 1, &whole, t->single_stream, &t->single));
    t->options = (ds_comm_options){ .streams = t->stream,
                                    .stream_count = GPUS,
                                    .stream = t->single_stream,
                                    .flags = DS_COMM_ANY_ORDER };
}

static void fill(const ds_tensor *t, ds_stream stream, int salt) {
    rank one = { .rank = 0 }, *me = &one;
    int32_t data[WHOLE];
    for (int k = 0; k < t->shape[0]; k++)
        data[k] = 100 * salt + k;
    OK(ds_copy(t->data, data, (size_t)t->shape[0] * 4, stream));
}

static void nap(void *unused) {
    (void)unused;
    usleep(10000);
}

/* The single tensor is filled late, on its own stream. */
static void tensors_fill(tensors *t) {
    rank one = { .rank = 0 }, *me = &one;
    OK(ds_stream_launch_host_func(t->single_stream, nap, NULL, NULL));
    for (int i = 0; i < GPUS; i++) {
        fill(t->part[i], t->stream[i], i + 1);
        fill(t->whole[i], t->stream[i], i + 11);
        fill(t->other[i], t->stream[i], i + 21);
    }
    fill(t->single, t->single_stream, 7);
}

static void tensors_read(tensors *t, int32_t out[RESULTS][WHOLE]) {
    rank one = { .rank = 0 }, *me = &one;
    memset(out, 0, sizeof(int32_t[RESULTS][WHOLE]));
    for (int i = 0; i < GPUS; i++) {
        OK(ds_copy(out[i], t->part[i]->data, PART * 4, t->stream[i]));
        OK(ds_copy(out[GPUS + i], t->whole[i]->data, WHOLE * 4, t->stream[i]));
        OK(ds_copy(out[2 * GPUS + i], t->other[i]->data, WHOLE * 4, t->stream[i]));
        OK(ds_stream_synchronize(t->stream[i]));
    }
    OK(ds_copy(out[3 * GPUS], t->single->data, WHOLE * 4, t->single_stream));
    OK(ds_stream_synchronize(t->single_stream));
}

static void tensors_free(tensors *t) {
    rank one = { .rank = 0 }, *me = &one;
    for (int i = 0; i < GPUS; i++) {
        OK(ds_tensor_free(t->part[i]));
        OK(ds_tensor_free(t->whole[i]));
        OK(ds_tensor_free(t->other[i]));
        OK(ds_stream_destroy(t->stream[i]));
    }
    OK(ds_tensor_free(t->single));
    OK(ds_stream_destroy(t->single_stream));
}

enum {
    BROADCAST,
    BROADCAST_TO_OTHERS,
    SCATTER,
    GATHER,
    REDUCE,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    VERBS
};

static ds_result collective(tensors *t, int verb) {
    const ds_comm_options *o = &t->options;
    const ds_tensor *const *part = (const ds_tensor *const *)t->part;
    const ds_tensor *const *whole = (const ds_tensor *const *)t->whole;
    const ds_tensor *others[2] = { t->whole[0], t->whole[3] };
    ds_stream streams[2] = { t->stream[0], t->stream[3] };
    ds_comm_options some = *o;
    some.streams = streams;
    some.stream_count = 2;
    switch (verb) {
    case BROADCAST:
        return ds_comm_broadcast_into(t->single, whole, GPUS, o);
    case BROADCAST_TO_OTHERS:
        return ds_comm_broadcast_into(t->single, others, 2, &some);
    case SCATTER:
        return ds_comm_scatter_into(t->single, part, GPUS, 0, o);
    case GATHER:
        return ds_comm_gather_into(part, GPUS, -1, t->single, o);
    case REDUCE:
        return ds_comm_reduce_into(whole, GPUS, DS_REDUCE_SUM, t->single, o);
    case ALL_REDUCE:
        return ds_comm_all_reduce(whole, whole, GPUS, DS_REDUCE_MAX, o);
    case ALL_GATHER:
        return ds_comm_all_gather(part, whole, GPUS, o);
    case REDUCE_SCATTER:
        return ds_comm_reduce_scatter(whole, part, GPUS, DS_REDUCE_PRODUCT, o);
    default:
        return ds_comm_all_to_all(whole, (const ds_tensor *const *)t->other, GPUS, o);
    }
}

/* All calls of NCCL that move data. */
static unsigned long data_calls(void) {
    static const char *const names[] = { "ncclAllReduce", "ncclReduce",        "ncclBroadcast",
                                         "ncclAllGather", "ncclReduceScatter", "ncclSend" };
    unsigned long calls = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        calls += standin_nccl_calls(names[i]);
    return calls;
}

static void test_collectives_of_one_process(void **state) {
    (void)state;
    rank one = { .rank = 0 }, *me = &one;
    tensors t;
    int32_t own_results[RESULTS][WHOLE];
    int32_t results[RESULTS][WHOLE];
    unsigned long ended = standin_nccl_calls("ncclCommFinalize");
    atomic_store(&failures, 0);
    alarm(30);
    tensors_make(&t, ds_int32());
    for (int verb = 0; verb < VERBS; verb++) {
        t.options.engine = NULL;
        tensors_fill(&t);
        OK(collective(&t, verb));
        tensors_read(&t, own_results);
        unsigned long before = data_calls();
        t.options.engine = "nccl";
        tensors_fill(&t);
        OK(collective(&t, verb));
        tensors_read(&t, results);
        CHECK(data_calls() > before);
        if (memcmp(results, own_results, sizeof results) != 0)
            fail_msg("verb %d differs", verb);
    }
    assert_int_equal(standin_nccl_calls("ncclCommFinalize"), ended); /* the groups are kept */
    tensors_free(&t);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
    assert_int_equal(standin_nccl_live(NULL, 0), 0);
}

/* Calls without streams are on the current ones, which are behind those that fill the tensors. */
static void test_collectives_of_one_process_on_current_streams(void **state) {
    (void)state;
    static const int verbs[] = { BROADCAST, SCATTER, GATHER, REDUCE };
    rank one = { .rank = 0 }, *me = &one;
    tensors t;
    int32_t own_results[RESULTS][WHOLE];
    int32_t results[RESULTS][WHOLE];
    atomic_store(&failures, 0);
    alarm(30);
    tensors_make(&t, ds_int32());
    ds_comm_options with_streams = t.options;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        for (int nccl = 0; nccl < 2; nccl++) {
            tensors_fill(&t);
            for (int k = 0; k < GPUS; k++)
                OK(ds_device_synchronize(ds_cuda(k)));
            unsigned long before = data_calls();
            t.options =
                (ds_comm_options){ .engine = nccl ? "nccl" : NULL, .flags = DS_COMM_ANY_ORDER };
            OK(collective(&t, verbs[i]));
            CHECK((data_calls() > before) == nccl);
            for (int k = 0; k < GPUS; k++)
                OK(ds_device_synchronize(ds_cuda(k)));
            t.options = with_streams;
            tensors_read(&t, nccl ? results : own_results);
        }
        if (memcmp(results, own_results, sizeof results) != 0)
            fail_msg("verb %d differs", verbs[i]);
    }
    tensors_free(&t);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

/* What is missing is refused as without the engine. */
static void test_missing_tensors_are_refused_with_the_engine(void **state) {
    (void)state;
    rank one = { .rank = 0 }, *me = &one;
    tensors t;
    atomic_store(&failures, 0);
    tensors_make(&t, ds_int32());
    t.options.engine = "nccl";
    const ds_comm_options *o = &t.options;
    const ds_tensor *const *whole = (const ds_tensor *const *)t.whole;
    const ds_tensor *const *part = (const ds_tensor *const *)t.part;
    const ds_tensor *gap[GPUS] = { t.whole[0], NULL, t.whole[2], t.whole[3] };
    unsigned long before = data_calls();
    EXPECT(ds_comm_all_reduce(whole, NULL, GPUS, DS_REDUCE_SUM, o), DS_ERR_INVALID_VALUE, "NULL");
    EXPECT(ds_comm_all_reduce(NULL, whole, GPUS, DS_REDUCE_SUM, o), DS_ERR_INVALID_VALUE, "NULL");
    EXPECT(ds_comm_all_reduce(gap, whole, GPUS, DS_REDUCE_SUM, o), DS_ERR_INVALID_VALUE,
           "input tensor at index 1 is NULL");
    EXPECT(ds_comm_broadcast_into(NULL, whole, GPUS, o), DS_ERR_INVALID_VALUE, "NULL");
    EXPECT(ds_comm_reduce_into(whole, GPUS, DS_REDUCE_SUM, NULL, o), DS_ERR_INVALID_VALUE, "NULL");
    EXPECT(ds_comm_gather_into(part, GPUS, 3, t.single, o), DS_ERR_INVALID_VALUE, "dim");
    EXPECT(ds_comm_scatter_into(t.single, part, GPUS, -4, o), DS_ERR_INVALID_VALUE, "dim");
    CHECK(data_calls() == before);
    tensors_free(&t);
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

/* Runs a collective with the engine, of which NCCL must do nothing. */
static void expect_own(tensors *t, int verb) {
    rank one = { .rank = 0 }, *me = &one;
    unsigned long before = data_calls();
    t->options.engine = "nccl";
    OK(collective(t, verb));
    CHECK(data_calls() == before);
    tensors_read(t, (int32_t[RESULTS][WHOLE]){ { 0 } });
}

static void test_own_collectives_where_nccl_cannot(void **state) {
    (void)state;
    rank one = { .rank = 0 }, *me = &one;
    tensors t;
    atomic_store(&failures, 0);
    tensors_make(&t, ds_float32());
    tensors_fill(&t);
    expect_own(&t, ALL_REDUCE); /* a maximum of floats */
    t.options.flags = 0;
    expect_own(&t, REDUCE); /* a sum in fixed order */
    const ds_tensor *twice[2] = { t.whole[0], t.whole[0] };
    unsigned long before = data_calls();
    EXPECT(ds_comm_all_gather(twice, twice, 2, &t.options), DS_ERR_DEVICE_MISMATCH, "");
    CHECK(data_calls() == before);

    ds_tensor *host;
    OK(ds_comm_gather((const ds_tensor *const *)t.part, GPUS, 0, (ds_device){ DS_DEVICE_HOST, 0 },
                      &(ds_comm_options){ .streams = t.stream, .stream_count = GPUS }, &host));
    OK(ds_comm_gather_into((const ds_tensor *const *)t.part, GPUS, 0, host, &t.options));
    CHECK(data_calls() == before);
    OK(ds_stream_synchronize(t.stream[0]));
    OK(ds_tensor_free(host));

    t.options.engine = "mpi";
    EXPECT(collective(&t, ALL_GATHER), DS_ERR_INVALID_VALUE, "options->engine is \"mpi\"");
    tensors_free(&t);
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

static void test_ids_that_are_no_ids(void **state) {
    static char far[1200];
    rank one = { .rank = 0 }, *me = &one;
    ds_device gpu = ds_cuda(0);
    ds_ranks group;
    ds_ranks_desc desc = { .engine = "nccl", .size = 2, .devices = &gpu, .device_count = 1 };
    (void)state;
    atomic_store(&failures, 0);
    desc.timeout_ns = 1000 * MS;
    desc.id = "nonsense";
    EXPECT(ds_ranks_init(&desc, &group), DS_ERR_INVALID_VALUE, "is not of ds_ranks_id_create");
    desc.id = "file:/no/such/folder/id";
    EXPECT(ds_ranks_init(&desc, &group), DS_ERR_SYSTEM, "/no/such/folder/id cannot be written");
    memset(far, 'x', sizeof far - 1);
    memcpy(far, "file:/", 6);
    desc.id = far;
    EXPECT(ds_ranks_init(&desc, &group), DS_ERR_INVALID_VALUE, "more than 1000 characters");
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

/* Collectives that name NCCL, but have no devices for it, are computed by devstream. */
static void test_devices_that_nccl_cannot_use(void **state) {
    rank one = { .rank = 0 }, *me = &one;
    static float from[2][4] = { { 1, 2, 3, 4 }, { 10, 20, 30, 40 } }, to[2][4];
    int64_t shape = 4;
    (void)state;
    atomic_store(&failures, 0);
    for (int cpus = 0; cpus < 2; cpus++) {
        ds_tensor in[2], out[2];
        const ds_tensor *list[2] = { &in[0], &in[1] }, *outs[2] = { &out[0], &out[1] };
        size_t count = cpus ? 2 : 1;
        for (size_t i = 0; i < count; i++) {
            ds_device d = ds_cpu(0);
            in[i] = ds_tensor_of(from[i], d, ds_float32(), 1, &shape);
            out[i] = ds_tensor_of(to[i], d, ds_float32(), 1, &shape);
        }
        unsigned long before = data_calls();
        OK(ds_comm_all_reduce(list, outs, count, DS_REDUCE_SUM,
                              &(ds_comm_options){ .engine = "nccl", .flags = DS_COMM_ANY_ORDER }));
        OK(ds_device_synchronize(ds_cpu(0)));
        CHECK(data_calls() == before);
        CHECK(to[0][3] == (cpus ? 44 : 4));
    }
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

static int collect(const char *text, size_t size, void *user) {
    char *to = user;
    strncat(to, text, size);
    return 0;
}

static void plan_text(ds_collective what, ds_plan_order order, char *out) {
    rank one = { .rank = 0 }, *me = &one;
    ds_topology *t;
    const ds_plan *plan;
    ds_device gpus[GPUS] = { ds_cuda(0), ds_cuda(1), ds_cuda(2), ds_cuda(3) };
    *out = '\0';
    OK(ds_topology_create_of_devices(gpus, GPUS, 0, &t));
    OK(ds_plan_get(t,
                   &(ds_plan_desc){ .what = what, .bytes = 1024, .order = order, .engine = "nccl" },
                   &plan));
    OK(ds_plan_write(t, plan, collect, out));
    ds_topology_destroy(t);
}

static void test_plan_tells_the_engine(void **state) {
    (void)state;
    static char text[4000];
    atomic_store(&failures, 0);
    plan_text(DS_ALL_REDUCE, DS_ORDER_ANY, text);
    assert_non_null(strstr(text, "NCCL: used, NCCL 2.32.3: each of the 4 GPUs is a rank"));
    plan_text(DS_ALL_REDUCE, DS_ORDER_LIST, text);
    assert_non_null(strstr(text, "NCCL: not used: devstream computes this reduction"));
    plan_text(DS_BROADCAST, DS_ORDER_LIST, text);
    assert_non_null(strstr(text, "NCCL: used"));
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

/* ---- an old library -------------------------------------------------------------------------- */

static void old(rank *me) {
    EXPECT(ds_ranks_register(me->world, me->tensor[0]->data, 4), DS_ERR_UNSUPPORTED,
           "NCCL 2.18.3 cannot register memory; 2.19 or newer can");
    EXPECT(all_reduce_with(me, me->world, COUNT, DS_COMM_ANY_ORDER,
                           &(ds_ranks_options){ .nccl = &few }),
           DS_ERR_UNSUPPORTED, "NCCL 2.18.3 cannot configure an operation; 2.31 or newer can");
    growing(me);
}

static int old_main(void) {
    own = 1;
    run(old, 5000 * MS, 0);
    own = 2;
    run(growing, 5000 * MS, 0);
    return atomic_load(&failures) != 0;
}

static void test_old_library(void **state) {
    (void)state;
    char path[1024];
    int status = -1;
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 64);
    assert_true(size > 0);
    path[size] = '\0';
    strcpy(strrchr(path, '/'), "/../lib-nccl-old/libnccl.so.2");
    const char *other = getenv("DS_TEST_NCCL_OLD"); /* for tests/defects/run.sh */
    pid_t child = fork();
    if (!child) {
        setenv("DEVSTREAM_NCCL_LIBRARY", other ? other : path, 1);
        execl("/proc/self/exe", "test_ranks_nccl_groups", "--old", (char *)NULL);
        _exit(9);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_device_is_a_rank_of_nccl),
        cmocka_unit_test(test_repeated_device),
        cmocka_unit_test(test_device_of_two_ranks),
        cmocka_unit_test(test_time_limit_on_several_devices),
        cmocka_unit_test(test_capture_of_several_devices),
        cmocka_unit_test(test_maximum_of_floats_is_not_nccls),
        cmocka_unit_test(test_calls_of_a_collective),
        cmocka_unit_test(test_group_grows),
        cmocka_unit_test(test_growth_that_times_out),
        cmocka_unit_test(test_registered_memory),
        cmocka_unit_test(test_operation_is_configured),
        cmocka_unit_test(test_other_engines_refuse),
        cmocka_unit_test(test_collectives_of_one_process),
        cmocka_unit_test(test_collectives_of_one_process_on_current_streams),
        cmocka_unit_test(test_missing_tensors_are_refused_with_the_engine),
        cmocka_unit_test(test_own_collectives_where_nccl_cannot),
        cmocka_unit_test(test_ids_that_are_no_ids),
        cmocka_unit_test(test_devices_that_nccl_cannot_use),
        cmocka_unit_test(test_plan_tells_the_engine),
        cmocka_unit_test(test_old_library),
    };
    setenv("STANDIN_DEVICES", "8", 1);
    pthread_barrier_init(&all, NULL, RANKS);
    if (argc > 1 && strcmp(argv[1], "--old") == 0)
        return old_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
