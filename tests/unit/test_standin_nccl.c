/* The stand-in for NCCL: results, order in streams, groups, errors, and ranks that are threads or
   processes.

   Ranks that are threads run in the test's process. Ranks that are processes, and programs that
   the stand-in ends, are this program again with the name of a part of it. */
#include "nccl/nccl_api.h"
#include "nccl/nccl_standin.h"
#include "slow.h"
#include "standin/standin.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 4 };

/* Of any thread, where cmocka's assertions cannot be used. */
#define MUST(condition)                                                                      \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, \
                    #condition, ncclGetLastError(NULL));                                     \
            abort();                                                                         \
        }                                                                                    \
    } while (0)
#define GOOD(call) MUST((call) == 0)
#define CODE(code, call) MUST((call) == (code))

typedef struct rank {
    int rank, count;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    void (*body)(struct rank *r);
    int is_on_first; /* on device 0 whatever its rank is */
} rank;

static void nap(int ms) {
    usleep((useconds_t)ms * 1000);
}

static void expect_nothing_left(void) {
    char left[256];
    if (standin_nccl_live(left, sizeof left))
        fail_msg("NCCL has left %s", left);
    if (standin_live(left, sizeof left))
        fail_msg("CUDA has left %s", left);
}

/* ---- ranks as threads ---- */

static void *run_rank(void *of) {
    rank *r = of;
    GOOD(cudaSetDevice(r->is_on_first ? 0 : r->rank));
    GOOD(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    GOOD(ncclCommInitRank(&r->comm, r->count, r->id, r->rank));
    r->body(r);
    if (r->comm)
        GOOD(ncclCommDestroy(r->comm));
    GOOD(cudaStreamDestroy(r->stream));
    return NULL;
}

static void start_ranks(int count, void (*body)(rank *r), void *(*run)(void *of)) {
    pthread_t threads[MOST];
    rank ranks[MOST];
    ncclUniqueId id;
    GOOD(ncclGetUniqueId(&id));
    for (int i = 0; i < count; i++) {
        ranks[i] = (rank){ i, count, id, NULL, NULL, body, 0 };
        MUST(!pthread_create(&threads[i], NULL, run, &ranks[i]));
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    expect_nothing_left();
}

static void with_ranks(int count, void (*body)(rank *r)) {
    start_ranks(count, body, run_rank);
}

static void *device_memory(size_t size) {
    void *p;
    GOOD(cudaMalloc(&p, size));
    return p;
}

static void to_device(void *to, const void *from, size_t size) {
    GOOD(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice));
    GOOD(cudaStreamSynchronize(NULL)); /* a small copy may still be under way */
}

static void from_device(void *to, const void *from, size_t size) {
    GOOD(cudaMemcpy(to, from, size, cudaMemcpyDeviceToHost));
}

/* Ranks of one process meet here. */
static pthread_barrier_t meeting;

static void meet(void) {
    pthread_barrier_wait(&meeting);
}

static void with_meeting(int count, void (*body)(rank *r)) {
    pthread_barrier_init(&meeting, NULL, (unsigned)count);
    with_ranks(count, body);
    pthread_barrier_destroy(&meeting);
}

/* ---- results ---- */

enum { BLOCK = 70001 }; /* elements of a block: more than one piece */

static int value_of(int of_rank, size_t index) {
    return (int)(index % 1000) * 7 + of_rank * 13 + 1;
}

/* `out` in units of BLOCK: block b has what rank from(b) has in its block of(b). */
static int32_t *filled(int of_rank, size_t blocks) {
    int32_t *host = malloc(blocks * BLOCK * sizeof *host);
    for (size_t i = 0; i < blocks * BLOCK; i++)
        host[i] = value_of(of_rank, i);
    int32_t *device = device_memory(blocks * BLOCK * sizeof *host);
    to_device(device, host, blocks * BLOCK * sizeof *host);
    free(host);
    return device;
}

static int sum_of(int count, size_t index) {
    int sum = 0;
    for (int i = 0; i < count; i++)
        sum += value_of(i, index);
    return sum;
}

/* Block `at` of device memory: the sum of all ranks if of_rank is negative. */
static void expect_block(const rank *r, const int32_t *device, int at, int of_rank, int its_block) {
    int32_t *host = malloc(BLOCK * sizeof *host);
    GOOD(cudaStreamSynchronize(r->stream));
    from_device(host, device + (size_t)at * BLOCK, BLOCK * sizeof *host);
    for (size_t i = 0; i < BLOCK; i++) {
        size_t index = (size_t)its_block * BLOCK + i;
        MUST(host[i] == (of_rank < 0 ? sum_of(r->count, index) : value_of(of_rank, index)));
    }
    free(host);
}

static void reduce_to_all(rank *r) {
    int32_t *send = filled(r->rank, 1), *recv = filled(99, 1);
    GOOD(ncclAllReduce(send, recv, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    expect_block(r, recv, 0, -1, 0);
    expect_block(r, send, 0, r->rank, 0);
    GOOD(ncclAllReduce(send, send, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    expect_block(r, send, 0, -1, 0);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_all_reduce(void **state) {
    (void)state;
    for (int count = 1; count <= MOST; count++)
        with_ranks(count, reduce_to_all);
}

static void reduce_to_root(rank *r) {
    int root = r->count - 1;
    int32_t *send = filled(r->rank, 1), *recv = filled(50, 1);
    GOOD(ncclReduce(send, r->rank == root ? recv : NULL, BLOCK, ncclInt32, ncclSum, root, r->comm,
                    r->stream));
    expect_block(r, recv, 0, r->rank == root ? -1 : 50, 0);
    GOOD(ncclReduce(send, send, BLOCK, ncclInt32, ncclSum, 0, r->comm, r->stream));
    expect_block(r, send, 0, r->rank == 0 ? -1 : r->rank, 0);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_reduce_gives_the_result_to_the_root_alone(void **state) {
    (void)state;
    with_ranks(3, reduce_to_root);
}

static void broadcast(rank *r) {
    int32_t *send = filled(r->rank, 1), *recv = filled(50, 1);
    GOOD(ncclBroadcast(r->rank == 1 ? send : NULL, recv, BLOCK, ncclInt32, 1, r->comm, r->stream));
    expect_block(r, recv, 0, 1, 0);
    GOOD(ncclBcast(send, BLOCK, ncclInt32, 2, r->comm, r->stream));
    expect_block(r, send, 0, 2, 0);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_broadcast(void **state) {
    (void)state;
    with_ranks(3, broadcast);
}

static void gather_to_all(rank *r) {
    int32_t *send = filled(r->rank, 1), *recv = filled(50, (size_t)r->count);
    GOOD(ncclAllGather(send, recv, BLOCK, ncclInt32, r->comm, r->stream));
    for (int i = 0; i < r->count; i++)
        expect_block(r, recv, i, i, 0);
    /* in place, of what is there: rank k has block k of it */
    int32_t *place = filled(r->rank, (size_t)r->count);
    GOOD(ncclAllGather(place + (size_t)r->rank * BLOCK, place, BLOCK, ncclInt32, r->comm,
                       r->stream));
    for (int i = 0; i < r->count; i++)
        expect_block(r, place, i, i, i);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
    GOOD(cudaFree(place));
}

static void test_all_gather(void **state) {
    (void)state;
    with_ranks(3, gather_to_all);
}

static void reduce_and_scatter(rank *r) {
    int32_t *send = filled(r->rank, (size_t)r->count), *recv = filled(50, 1);
    GOOD(ncclReduceScatter(send, recv, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    expect_block(r, recv, 0, -1, r->rank);
    GOOD(ncclReduceScatter(send, send + (size_t)r->rank * BLOCK, BLOCK, ncclInt32, ncclSum, r->comm,
                           r->stream));
    for (int i = 0; i < r->count; i++)
        expect_block(r, send, i, i == r->rank ? -1 : r->rank, i);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_reduce_scatter(void **state) {
    (void)state;
    with_ranks(4, reduce_and_scatter);
}

static void exchange_all(rank *r) {
    int32_t *send = filled(r->rank, (size_t)r->count), *recv = filled(50, (size_t)r->count);
    GOOD(ncclAlltoAll(send, recv, BLOCK, ncclInt32, r->comm, r->stream));
    for (int i = 0; i < r->count; i++)
        expect_block(r, recv, i, i, r->rank);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_all_to_all(void **state) {
    (void)state;
    with_ranks(3, exchange_all);
}

static void gather_and_scatter(rank *r) {
    int32_t *all = filled(r->rank, (size_t)r->count), *one = filled(r->rank, 1);
    int is_root = r->rank == 1;
    GOOD(ncclGather(one, is_root ? all : NULL, BLOCK, ncclInt32, 1, r->comm, r->stream));
    for (int i = 0; i < r->count; i++)
        expect_block(r, all, i, is_root ? i : r->rank, is_root ? 0 : i);
    GOOD(cudaFree(all));
    all = filled(r->rank, (size_t)r->count);
    GOOD(ncclScatter(is_root ? all : NULL, one, BLOCK, ncclInt32, 1, r->comm, r->stream));
    expect_block(r, one, 0, 1, r->rank);
    /* in place */
    int32_t *mine = all + (size_t)r->rank * BLOCK;
    GOOD(ncclScatter(all, is_root ? mine : one, BLOCK, ncclInt32, 1, r->comm, r->stream));
    GOOD(ncclGather(is_root ? mine : one, all, BLOCK, ncclInt32, 1, r->comm, r->stream));
    for (int i = 0; i < r->count && is_root; i++)
        expect_block(r, all, i, 1, i);
    GOOD(cudaStreamSynchronize(r->stream));
    GOOD(cudaFree(all));
    GOOD(cudaFree(one));
}

static void test_gather_and_scatter(void **state) {
    (void)state;
    with_ranks(3, gather_and_scatter);
}

static void forms_with_config(rank *r) {
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER, bad = NCCL_COLLCONFIG_INITIALIZER;
    int32_t *a = filled(r->rank, 4), *b = filled(50, 4);
    ncclComm_t c = r->comm;
    cudaStream_t s = r->stream;
    bad.magic = 0;
    CODE(ncclInvalidArgument, ncclAllReduceConfig(a, b, BLOCK, ncclInt32, ncclSum, c, s, &bad));
    GOOD(ncclAllReduceConfig(a, b, BLOCK, ncclInt32, ncclSum, c, s, &config));
    expect_block(r, b, 0, -1, 0);
    GOOD(ncclReduceConfig(a, b, BLOCK, ncclInt32, ncclSum, 0, c, s, &config));
    GOOD(ncclBroadcastConfig(a, b, BLOCK, ncclInt32, 0, c, s, NULL));
    expect_block(r, b, 0, 0, 0);
    GOOD(ncclReduceScatterConfig(a, b, BLOCK, ncclInt32, ncclSum, c, s, &config));
    expect_block(r, b, 0, -1, r->rank);
    GOOD(ncclAllGatherConfig(a, b, BLOCK, ncclInt32, c, s, &config));
    expect_block(r, b, 1, 1, 0);
    GOOD(ncclAlltoAllConfig(a, b, BLOCK, ncclInt32, c, s, &config));
    expect_block(r, b, 0, 0, r->rank);
    GOOD(ncclGatherConfig(a, b, BLOCK, ncclInt32, 0, c, s, &config));
    GOOD(ncclScatterConfig(a, b, BLOCK, ncclInt32, 0, c, s, &config));
    expect_block(r, b, 0, 0, r->rank);
    GOOD(cudaFree(a));
    GOOD(cudaFree(b));
}

static void test_the_forms_with_a_configuration(void **state) {
    (void)state;
    with_ranks(2, forms_with_config);
}

/* ---- arithmetic ---- */

/* 1 + rank in each type, and what comes out for three ranks. */
static const struct {
    ncclDataType_t type;
    size_t size;
    uint64_t one, two, three, six, minus_one;
} numbers[] = {
    { ncclInt8, 1, 1, 2, 3, 6, 0xff },
    { ncclUint8, 1, 1, 2, 3, 6, 0xff },
    { ncclInt32, 4, 1, 2, 3, 6, 0xffffffff },
    { ncclUint32, 4, 1, 2, 3, 6, 0xffffffff },
    { ncclInt64, 8, 1, 2, 3, 6, UINT64_MAX },
    { ncclUint64, 8, 1, 2, 3, 6, UINT64_MAX },
    { ncclFloat16, 2, 0x3c00, 0x4000, 0x4200, 0x4600, 0xbc00 },
    { ncclFloat32, 4, 0x3f800000, 0x40000000, 0x40400000, 0x40c00000, 0xbf800000 },
    { ncclFloat64, 8, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000,
      0x4018000000000000, 0xbff0000000000000 },
    { ncclBfloat16, 2, 0x3f80, 0x4000, 0x4040, 0x40c0, 0xbf80 },
    { ncclFloat8e4m3, 1, 0x38, 0x40, 0x44, 0x4c, 0xb8 },
    { ncclFloat8e5m2, 1, 0x3c, 0x40, 0x42, 0x46, 0xbc },
};

/* One element of the type goes in on this rank; the result. */
static uint64_t reduced(const rank *r, ncclDataType_t type, size_t size, uint64_t in,
                        ncclRedOp_t op) {
    uint64_t out = 0;
    void *device = device_memory(8);
    to_device(device, &in, size);
    GOOD(ncclAllReduce(device, device, 1, type, op, r->comm, r->stream));
    GOOD(cudaStreamSynchronize(r->stream));
    from_device(&out, device, size);
    GOOD(cudaFree(device));
    return out;
}

static void all_types(rank *r) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        ncclDataType_t type = numbers[i].type;
        size_t size = numbers[i].size;
        uint64_t mine = r->rank == 0   ? numbers[i].one
                        : r->rank == 1 ? numbers[i].two
                                       : numbers[i].three;
        MUST(reduced(r, type, size, mine, ncclSum) == numbers[i].six);
        MUST(reduced(r, type, size, mine, ncclProd) == numbers[i].six);
        MUST(reduced(r, type, size, mine, ncclMax) == numbers[i].three);
        MUST(reduced(r, type, size, mine, ncclMin) == numbers[i].one);
        /* for the unsigned types this is their largest number */
        int is_unsigned = type == ncclUint8 || type == ncclUint32 || type == ncclUint64;
        uint64_t least = r->rank == 1 ? numbers[i].minus_one : numbers[i].one;
        MUST(reduced(r, type, size, least, ncclMin) ==
             (is_unsigned ? numbers[i].one : numbers[i].minus_one));
        MUST(reduced(r, type, size, numbers[i].six, ncclMax) == numbers[i].six);
    }
}

static void test_all_types_and_operations(void **state) {
    (void)state;
    with_ranks(3, all_types);
}

static void averages(rank *r) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uint64_t mine = r->rank == 0 ? numbers[i].one : numbers[i].three;
        MUST(reduced(r, numbers[i].type, numbers[i].size, mine, ncclAvg) == numbers[i].two);
    }
    MUST((int8_t)reduced(r, ncclInt8, 1, (uint8_t)(r->rank ? -4 : -3), ncclAvg) == -3);
    MUST(reduced(r, ncclUint8, 1, 200, ncclAvg) == 72); /* the sum wraps first */
}

static void test_averages(void **state) {
    (void)state;
    with_ranks(2, averages);
}

static void roundings(rank *r) {
    /* 2048 + 1 in float16 lies between two numbers, and the even one is 2048; 2050 + 1 is 2052 */
    MUST(reduced(r, ncclFloat16, 2, r->rank ? 0x3c00 : 0x6800, ncclSum) == 0x6800);
    MUST(reduced(r, ncclFloat16, 2, r->rank ? 0x3c00 : 0x6801, ncclSum) == 0x6802);
    MUST(reduced(r, ncclFloat16, 2, 0x7bff, ncclSum) == 0x7c00); /* infinity */
    MUST(reduced(r, ncclFloat16, 2, 1, ncclSum) == 2);           /* the smallest */
    MUST(reduced(r, ncclFloat16, 2, r->rank ? 0x8001 : 1, ncclSum) == 0);
    MUST(reduced(r, ncclFloat16, 2, 0x03ff, ncclSum) == 0x07fe); /* to a normal number */
    MUST(reduced(r, ncclBfloat16, 2, r->rank ? 0x3f80 : 0x4380, ncclSum) == 0x4380); /* 256 + 1 */
    MUST(reduced(r, ncclBfloat16, 2, r->rank ? 0x3f80 : 0x4381, ncclSum) == 0x4382);
    MUST(reduced(r, ncclFloat8e4m3, 1, 0x7e, ncclSum) == 0x7e);                  /* 448 stays */
    MUST(reduced(r, ncclFloat8e5m2, 1, 0x7b, ncclSum) == 0x7b);                  /* 57344 stays */
    MUST(reduced(r, ncclFloat8e4m3, 1, r->rank ? 0x38 : 0x58, ncclSum) == 0x58); /* 16 + 1 */
    MUST(reduced(r, ncclFloat8e4m3, 1, r->rank ? 0x7f : 0x38, ncclSum) == 0x7f); /* not a number */
    MUST(reduced(r, ncclUint8, 1, 200, ncclSum) == 144);
}

static void test_small_types_are_rounded_to_nearest_even(void **state) {
    (void)state;
    with_ranks(2, roundings);
}

static void scaled_sums(rank *r) {
    ncclRedOp_t by_host, by_device, none;
    float factor = r->rank ? 10 : 100, one;
    float *device = device_memory(4);
    GOOD(
        ncclRedOpCreatePreMulSum(&by_host, &factor, ncclFloat32, ncclScalarHostImmediate, r->comm));
    GOOD(ncclRedOpCreatePreMulSum(&by_device, device, ncclFloat32, ncclScalarDevice, r->comm));
    MUST(by_host != by_device && by_host >= ncclNumOps);
    CODE(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&none, &factor, ncclFloat32,
                                                       ncclScalarDevice, r->comm)); /* no memory */
    CODE(ncclInvalidArgument,
         ncclRedOpCreatePreMulSum(NULL, &factor, ncclFloat32, ncclScalarHostImmediate, r->comm));
    factor = 2; /* has been taken */
    to_device(device, &factor, sizeof factor);
    uint64_t sum = reduced(r, ncclFloat32, 4, r->rank ? 0x40400000 : 0x3f800000, by_host);
    memcpy(&one, &sum, sizeof one);
    MUST(one == 130); /* 1 * 100 + 3 * 10 */
    sum = reduced(r, ncclFloat32, 4, r->rank ? 0x40400000 : 0x3f800000, by_device);
    memcpy(&one, &sum, sizeof one);
    MUST(one == 8);
    CODE(ncclInvalidArgument,
         ncclAllReduce(device, device, 1, ncclInt32, by_host, r->comm, r->stream));
    GOOD(ncclRedOpDestroy(by_host, r->comm));
    CODE(ncclInvalidArgument, ncclRedOpDestroy(by_host, r->comm));
    CODE(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, r->comm));
    CODE(ncclInvalidArgument,
         ncclAllReduce(device, device, 1, ncclFloat32, by_host, r->comm, r->stream));
    GOOD(ncclRedOpDestroy(by_device, r->comm));
    GOOD(cudaFree(device));
}

static void test_sums_of_scaled_values(void **state) {
    (void)state;
    with_ranks(2, scaled_sums);
}

static float sums[MOST][40];

static void order_of_ranks(rank *r) {
    static const float parts[MOST] = { 1e8F, 1, -1e8F, 1 };
    float *device = device_memory(4);
    for (int i = 0; i < 40; i++) {
        to_device(device, &parts[r->rank], sizeof parts[0]);
        GOOD(ncclAllReduce(device, device, 1, ncclFloat32, ncclSum, r->comm, r->stream));
        GOOD(cudaStreamSynchronize(r->stream));
        from_device(&sums[r->rank][i], device, sizeof(float));
    }
    GOOD(cudaFree(device));
}

static void test_the_order_of_a_sum_differs_between_operations(void **state) {
    (void)state;
    int different = 0;
    with_ranks(4, order_of_ranks);
    for (int i = 0; i < 40; i++) {
        for (int k = 1; k < MOST; k++)
            assert_true(sums[k][i] == sums[0][i]);
        different += sums[0][i] != sums[0][0];
    }
    assert_true(different > 0);
}

/* ---- send and receive ---- */

static void ring(rank *r) {
    int next = (r->rank + 1) % r->count, last = (r->rank + r->count - 1) % r->count;
    int32_t *send = filled(r->rank, 2), *recv = filled(50, 2);
    GOOD(ncclGroupStart());
    GOOD(ncclSend(send, BLOCK, ncclInt32, next, r->comm, r->stream));
    GOOD(ncclRecv(recv, BLOCK, ncclInt32, last, r->comm, r->stream));
    /* a second one to the same rank comes second */
    GOOD(ncclRecv(recv + BLOCK, BLOCK, ncclInt32, last, r->comm, r->stream));
    GOOD(ncclSend(send + BLOCK, BLOCK, ncclInt32, next, r->comm, r->stream));
    GOOD(ncclGroupEnd());
    expect_block(r, recv, 0, last, 0);
    expect_block(r, recv, 1, last, 1);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_messages_of_a_group_go_side_by_side(void **state) {
    (void)state;
    with_ranks(4, ring);
    with_ranks(1, ring);
}

static void own_messages(rank *r) {
    int32_t *send = filled(r->rank, 1), *recv = filled(50, 1);
    CODE(ncclInvalidUsage, ncclSend(send, BLOCK, ncclInt32, r->rank, r->comm, r->stream));
    CODE(ncclInvalidUsage, ncclRecv(recv, BLOCK, ncclInt32, r->rank, r->comm, r->stream));
    GOOD(ncclGroupStart());
    GOOD(ncclRecv(recv, BLOCK, ncclInt32, r->rank, r->comm, r->stream));
    GOOD(ncclSend(send, BLOCK, ncclInt32, r->rank, r->comm, r->stream));
    GOOD(ncclGroupEnd());
    expect_block(r, recv, 0, r->rank, 0);
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_a_message_to_itself_needs_both_calls_in_a_group(void **state) {
    (void)state;
    with_ranks(2, own_messages);
}

static void crossed_messages(rank *r) {
    int other = 1 - r->rank;
    int32_t *send = filled(r->rank, 1), *recv = filled(50, 1);
    GOOD(ncclSend(send, 1, ncclInt32, other, r->comm, r->stream));
    GOOD(ncclRecv(recv, 1, ncclInt32, other, r->comm, r->stream));
    nap(100);
    CODE(cudaErrorNotReady, cudaStreamQuery(r->stream));
    meet();
    GOOD(ncclCommAbort(r->comm));
    r->comm = NULL;
    GOOD(cudaStreamSynchronize(r->stream));
    GOOD(cudaFree(send));
    GOOD(cudaFree(recv));
}

static void test_crossed_messages_without_a_group_hang(void **state) {
    (void)state;
    with_meeting(2, crossed_messages);
}

static void empty_messages(rank *r) {
    int32_t *device = filled(r->rank, 1);
    GOOD(ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, r->comm, r->stream));
    GOOD(cudaStreamQuery(r->stream)); /* is nothing */
    if (r->rank) {
        GOOD(ncclRecv(NULL, 0, ncclInt32, 0, r->comm, r->stream));
        nap(50);
        CODE(cudaErrorNotReady, cudaStreamQuery(r->stream)); /* is a message all the same */
    }
    meet();
    if (!r->rank)
        GOOD(ncclSend(NULL, 0, ncclInt32, 1, r->comm, r->stream));
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 1, r->comm, r->stream));
    expect_block(r, device, 0, 1, 0);
    GOOD(cudaFree(device));
}

static void test_calls_without_elements(void **state) {
    (void)state;
    with_meeting(2, empty_messages);
}

/* ---- streams ---- */

static atomic_int gate;

static void wait_at_gate(void *unused) {
    (void)unused;
    while (!atomic_load(&gate))
        nap(1);
}

static void behind_other_work(rank *r) {
    int32_t *device = filled(r->rank, 1);
    if (r->rank == 0)
        GOOD(cudaLaunchHostFunc(r->stream, wait_at_gate, NULL));
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    nap(100);
    CODE(cudaErrorNotReady, cudaStreamQuery(r->stream)); /* the call has returned at once */
    meet();
    if (r->rank == 0)
        atomic_store(&gate, 1);
    expect_block(r, device, 0, -1, 0);
    GOOD(cudaFree(device));
}

static void test_an_operation_begins_when_all_streams_have_come_to_it(void **state) {
    (void)state;
    atomic_store(&gate, 0);
    with_meeting(2, behind_other_work);
}

static void count_up(void *of) {
    atomic_fetch_add((atomic_int *)of, 1);
}

static void many_waiting(rank *r) {
    cudaStream_t other, more[20];
    atomic_int done = 0;
    int32_t *device = filled(r->rank, 1);
    GOOD(cudaStreamCreate(&other));
    meet();
    size_t threads = standin_threads();
    for (int i = 0; i < 20 && r->rank == 0; i++) {
        GOOD(cudaStreamCreateWithFlags(&more[i], cudaStreamNonBlocking));
        GOOD(ncclSend(device, 1, ncclInt32, 1, r->comm, more[i]));
    }
    meet();
    /* neither the thread of host functions nor one of the others is held */
    MUST(standin_threads() <= threads + 3);
    GOOD(cudaLaunchHostFunc(other, count_up, &done));
    GOOD(cudaMemsetAsync(device + 8, 0, 4, other));
    GOOD(cudaStreamSynchronize(other));
    MUST(atomic_load(&done) == 1);
    meet();
    for (int i = 0; i < 20 && r->rank == 1; i++)
        GOOD(ncclRecv(device, 1, ncclInt32, 0, r->comm, r->stream));
    for (int i = 0; i < 20 && r->rank == 0; i++) {
        GOOD(cudaStreamSynchronize(more[i]));
        GOOD(cudaStreamDestroy(more[i]));
    }
    GOOD(cudaStreamSynchronize(r->stream));
    GOOD(cudaStreamDestroy(other));
    GOOD(cudaFree(device));
}

static void test_waiting_operations_hold_no_thread_of_the_device(void **state) {
    (void)state;
    with_meeting(2, many_waiting);
}

/* The operations of a communicator are ordered also if their streams are not. */
static void in_two_streams(rank *r) {
    cudaStream_t second;
    int32_t *a = filled(r->rank, 1), *b = filled(r->rank, 1);
    GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    if (r->rank == 0)
        GOOD(cudaLaunchHostFunc(r->stream, wait_at_gate, NULL));
    GOOD(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, r->comm, r->stream));
    GOOD(ncclAllReduce(b, b, 1, ncclInt32, ncclSum, r->comm, second));
    nap(100);
    CODE(cudaErrorNotReady, cudaStreamQuery(second));
    meet();
    atomic_store(&gate, 1);
    GOOD(cudaStreamSynchronize(second));
    GOOD(cudaStreamQuery(r->stream)); /* which was before */
    GOOD(cudaStreamDestroy(second));
    GOOD(cudaFree(a));
    GOOD(cudaFree(b));
}

static void test_operations_in_two_streams_keep_their_order(void **state) {
    (void)state;
    atomic_store(&gate, 0);
    with_meeting(2, in_two_streams);
}

static void streams_of_a_group(rank *r) {
    cudaStream_t second;
    int32_t *a = filled(r->rank, 1), *b = filled(r->rank, 1);
    GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    GOOD(cudaLaunchHostFunc(second, wait_at_gate, NULL));
    GOOD(ncclGroupStart());
    GOOD(ncclAllReduce(a, a, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    GOOD(ncclAllReduce(b, b, BLOCK, ncclInt32, ncclSum, r->comm, second));
    GOOD(ncclGroupEnd());
    nap(100);
    CODE(cudaErrorNotReady, cudaStreamQuery(r->stream)); /* waits for the second one, too */
    meet();
    atomic_store(&gate, 1);
    expect_block(r, a, 0, -1, 0);
    GOOD(cudaStreamSynchronize(second));
    expect_block(r, b, 0, -1, 0);
    GOOD(cudaStreamDestroy(second));
    GOOD(cudaFree(a));
    GOOD(cudaFree(b));
}

static void test_the_streams_of_a_group_wait_for_each_other(void **state) {
    (void)state;
    atomic_store(&gate, 0);
    with_meeting(2, streams_of_a_group);
}

static void late_operation(rank *r) {
    int32_t *device = filled(r->rank, 1);
    standin_nccl_delay(500);
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    nap(50);
    CODE(cudaErrorNotReady, cudaStreamQuery(r->stream));
    expect_block(r, device, 0, -1, 0);
    standin_nccl_delay(0);
    GOOD(cudaFree(device));
}

static void test_operations_can_be_made_to_take_longer(void **state) {
    (void)state;
    with_ranks(1, late_operation);
}

static void held_devices(rank *r) {
    int32_t *device = filled(r->rank, 1);
    meet();
    standin_hold(1);
    meet();
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    nap(100);
    CODE(cudaErrorNotReady, cudaStreamQuery(r->stream));
    meet();
    standin_hold(0);
    expect_block(r, device, 0, -1, 0);
    GOOD(cudaFree(device));
}

static void test_held_devices_begin_no_operation(void **state) {
    (void)state;
    with_meeting(2, held_devices);
}

static void legacy_stream(rank *r) {
    int32_t *device = filled(r->rank, 1);
    cudaStream_t wrong;
    GOOD(cudaSetDevice(1 -
                       r->rank)); /* the stream is one of the communicator's device all the same */
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, NULL));
    GOOD(cudaStreamCreate(&wrong));
    CODE(ncclUnhandledCudaError, ncclBcast(device, 1, ncclInt32, 0, r->comm, wrong));
    GOOD(cudaStreamDestroy(wrong));
    GOOD(cudaSetDevice(r->rank));
    GOOD(cudaStreamSynchronize(NULL));
    expect_block(r, device, 0, -1, 0);
    GOOD(cudaFree(device));
}

static void test_the_device_is_that_of_the_communicator(void **state) {
    (void)state;
    with_ranks(2, legacy_stream);
}

/* ---- groups ---- */

static void test_one_thread_has_all_ranks_in_a_group(void **state) {
    (void)state;
    ncclComm_t comms[3];
    cudaStream_t streams[3];
    int32_t *memory[3];
    ncclUniqueId id;
    GOOD(ncclGetUniqueId(&id));
    GOOD(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
        GOOD(cudaSetDevice(i));
        GOOD(ncclCommInitRank(&comms[i], 3, id, i));
        GOOD(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        memory[i] = filled(i, 1);
    }
    GOOD(ncclGroupEnd());
    GOOD(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
        GOOD(ncclGroupStart());
        GOOD(ncclAllReduce(memory[i], memory[i], BLOCK, ncclInt32, ncclSum, comms[i], streams[i]));
        GOOD(ncclGroupEnd());
        GOOD(cudaStreamQuery(streams[i])); /* nothing is enqueued before the outer end */
    }
    GOOD(ncclGroupEnd());
    for (int i = 0; i < 3; i++) {
        rank r = { i, 3, id, comms[i], streams[i], NULL, 0 };
        int seen, device, count;
        GOOD(cudaSetDevice(i));
        expect_block(&r, memory[i], 0, -1, 0);
        GOOD(ncclCommUserRank(comms[i], &seen));
        GOOD(ncclCommCuDevice(comms[i], &device));
        GOOD(ncclCommCount(comms[i], &count));
        assert_true(seen == i && device == i && count == 3);
    }
    for (int i = 0; i < 3; i++) { /* one after the other: no rank waits for another */
        GOOD(ncclCommDestroy(comms[i]));
        GOOD(cudaStreamDestroy(streams[i]));
        GOOD(cudaFree(memory[i]));
    }
    expect_nothing_left();
}

static void failed_groups(rank *r) {
    int32_t *device = filled(r->rank, 1);
    ncclComm_t made = NULL;
    ncclUniqueId id;
    GOOD(ncclGroupStart());
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
    CODE(ncclInvalidArgument, ncclBcast(device, BLOCK, ncclInt32, 7, r->comm, r->stream));
    CODE(ncclInvalidArgument, ncclGroupEnd());
    GOOD(cudaStreamQuery(r->stream));
    expect_block(r, device, 0, r->rank, 0); /* nothing has been done */
    CODE(ncclInvalidUsage, ncclGroupEnd());
    GOOD(ncclGetUniqueId(&id));
    GOOD(ncclGroupStart());
    GOOD(ncclCommInitRank(&made, 1, id, 0));
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
    CODE(ncclInvalidUsage, ncclGroupEnd()); /* one or the other */
    MUST(!made);
    GOOD(ncclCommInitRank(&made, 1, id, 0)); /* the unique id was not used */
    GOOD(ncclCommDestroy(made));
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    GOOD(ncclGroupStart());
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 1, r->comm, r->stream));
    GOOD(ncclGroupSimulateEnd(&info));
    MUST(info.estimatedTime >= 0);
    expect_block(r, device, 0, r->rank, 0);
    GOOD(cudaFree(device));
}

static void test_a_failed_group_does_nothing(void **state) {
    (void)state;
    with_ranks(2, failed_groups);
}

static void mixed_group(rank *r) {
    int32_t *device = filled(r->rank, 3);
    int other = 1 - r->rank;
    GOOD(ncclGroupStart());
    GOOD(ncclSend(device + BLOCK, BLOCK, ncclInt32, other, r->comm, r->stream));
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    GOOD(ncclRecv(device + 2 * BLOCK, BLOCK, ncclInt32, other, r->comm, r->stream));
    GOOD(ncclGroupEnd());
    expect_block(r, device, 0, -1, 0);
    expect_block(r, device, 2, other, 1);
    GOOD(cudaFree(device));
}

static void test_collectives_and_messages_in_one_group(void **state) {
    (void)state;
    with_ranks(2, mixed_group);
}

/* ---- graphs ---- */

static cudaGraphExec_t captured(rank *r, cudaGraph_t *graph, int32_t *device) {
    cudaGraphExec_t exec;
    GOOD(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclMax, r->comm, r->stream));
    GOOD(cudaStreamEndCapture(r->stream, graph));
    GOOD(cudaGraphInstantiateWithFlags(&exec, *graph, 0));
    return exec;
}

static void graph_launches(rank *r) {
    int32_t *device = filled(r->rank, 1);
    cudaGraph_t graph;
    cudaGraphNode_t nodes[4];
    size_t count = 4;
    enum cudaGraphNodeType type;
    cudaGraphExec_t exec = captured(r, &graph, device);
    GOOD(cudaGraphGetNodes(graph, nodes, &count));
    MUST(count == 2);
    GOOD(cudaGraphNodeGetType(nodes[0], &type));
    MUST(type == cudaGraphNodeTypeKernel);
    expect_block(r, device, 0, r->rank, 0); /* nothing has run */
    GOOD(cudaGraphLaunch(exec, r->stream));
    expect_block(r, device, 0, -1, 0);
    for (int i = 0; i < 3; i++) { /* each adds the same numbers of all ranks */
        GOOD(cudaGraphLaunch(exec, r->stream));
        GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclMin, r->comm, r->stream));
    }
    int32_t first;
    GOOD(cudaStreamSynchronize(r->stream));
    from_device(&first, device, sizeof first);
    MUST(first == sum_of(r->count, 0) * 27);
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaFree(device));
}

static void test_each_launch_of_a_graph_runs_its_collectives(void **state) {
    (void)state;
    with_ranks(3, graph_launches);
}

static void half_captured(rank *r) {
    cudaStream_t second;
    cudaGraph_t graph;
    int32_t *device = filled(r->rank, 2);
    GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    GOOD(cudaStreamBeginCapture(second, cudaStreamCaptureModeThreadLocal));
    GOOD(ncclGroupStart());
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
    GOOD(ncclBcast(device + BLOCK, BLOCK, ncclInt32, 0, r->comm, second));
    CODE(ncclInvalidUsage, ncclGroupEnd());
    GOOD(cudaStreamEndCapture(second, &graph));
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaStreamDestroy(second));
    GOOD(cudaFree(device));
}

static void test_a_group_is_captured_whole_or_not_at_all(void **state) {
    (void)state;
    with_ranks(2, half_captured);
}

static void two_captured_streams(rank *r) {
    cudaStream_t second;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int32_t *device = filled(r->rank, 2);
    GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    GOOD(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GOOD(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    GOOD(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    GOOD(cudaEventRecord(fork, r->stream));
    GOOD(cudaStreamWaitEvent(second, fork, 0));
    GOOD(ncclGroupStart());
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
    GOOD(ncclBcast(device + BLOCK, BLOCK, ncclInt32, 1, r->comm, second));
    GOOD(ncclGroupEnd());
    GOOD(cudaEventRecord(join, second));
    GOOD(cudaStreamWaitEvent(r->stream, join, 0));
    GOOD(cudaStreamEndCapture(r->stream, &graph));
    GOOD(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    GOOD(cudaGraphDestroy(graph)); /* the executable has its own */
    GOOD(cudaGraphLaunch(exec, r->stream));
    GOOD(cudaGraphLaunch(exec, r->stream));
    expect_block(r, device, 0, 0, 0);
    expect_block(r, device, 1, 1, 1);
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaEventDestroy(fork));
    GOOD(cudaEventDestroy(join));
    GOOD(cudaStreamDestroy(second));
    GOOD(cudaFree(device));
}

static void test_a_group_in_two_captured_streams(void **state) {
    (void)state;
    with_ranks(2, two_captured_streams);
}

/* ---- calls that wait ---- */

static atomic_int has_called;

static void waiting_call(rank *r) {
    int32_t *device = filled(r->rank, 1);
    int waits = getenv("STANDIN_NCCL_CALLS_WAIT") != NULL;
    meet();
    if (r->rank == 1) {
        nap(400);
        atomic_store(&has_called, 1);
    }
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    if (r->rank == 0)
        MUST(atomic_load(&has_called) == waits);
    expect_block(r, device, 0, -1, 0);
    GOOD(cudaFree(device));
}

static void test_calls_may_wait_for_those_of_other_ranks(void **state) {
    atomic_store(&has_called, 0);
    with_meeting(2, waiting_call);
    setenv("STANDIN_NCCL_CALLS_WAIT", "1", 1);
    atomic_store(&has_called, 0);
    with_meeting(2, waiting_call);
    with_ranks(3, graph_launches);
    test_one_thread_has_all_ranks_in_a_group(state);
    unsetenv("STANDIN_NCCL_CALLS_WAIT");
}

/* ---- arguments ---- */

static void wrong_arguments(rank *r) {
    int32_t *mine = filled(r->rank, 2), *of_another;
    static int32_t host[BLOCK];
    ncclComm_t c = r->comm;
    cudaStream_t s = r->stream;
    int number;
    GOOD(cudaSetDevice(1 - r->rank));
    of_another = device_memory(BLOCK * 4);
    GOOD(cudaSetDevice(r->rank));
    CODE(ncclInvalidArgument, ncclAllReduce(NULL, mine, 1, ncclInt32, ncclSum, c, s));
    MUST(strstr(ncclGetLastError(c), "sendbuff is NULL"));
    CODE(ncclInvalidArgument, ncclAllReduce(mine, NULL, 1, ncclInt32, ncclSum, c, s));
    CODE(ncclInvalidArgument, ncclAllReduce(host, host, 1, ncclInt32, ncclSum, c, s));
    CODE(ncclInvalidArgument, ncclAllReduce(of_another, mine, 1, ncclInt32, ncclSum, c, s));
    CODE(ncclInvalidArgument,
         ncclAllReduce(mine, mine, 2 * BLOCK + 1, ncclInt32, ncclSum, c, s)); /* too short */
    CODE(ncclInvalidArgument, ncclAllReduce(mine, mine, SIZE_MAX / 4, ncclInt32, ncclSum, c, s));
    CODE(ncclInvalidArgument, ncclAllReduce(mine, mine, 1, ncclNumTypes, ncclSum, c, s));
    CODE(ncclInvalidArgument, ncclAllReduce(mine, mine, 1, ncclInt32, ncclNumOps, c, s));
    CODE(ncclInvalidArgument, ncclAllReduce(mine, mine, 1, ncclInt32, ncclSum, NULL, s));
    CODE(ncclInvalidArgument, ncclBcast(mine, 1, ncclInt32, -1, c, s));
    CODE(ncclInvalidArgument, ncclReduce(mine, mine, 1, ncclInt32, ncclSum, 2, c, s));
    CODE(ncclInvalidArgument, ncclSend(mine, 1, ncclInt32, 2, c, s));
    CODE(ncclInvalidArgument, ncclRecv(NULL, 1, ncclInt32, 1 - r->rank, c, s));
    CODE(ncclInvalidArgument, ncclCommCount(NULL, &number));
    CODE(ncclInvalidArgument, ncclCommUserRank(c, NULL));
    CODE(ncclInvalidArgument, ncclCommCuDevice(NULL, &number));
    CODE(ncclInvalidArgument, ncclCommGetAsyncError(c, NULL));
    /* host memory that the device reaches will do */
    void *pinned;
    GOOD(cudaHostAlloc(&pinned, 4, cudaHostAllocPortable));
    memcpy(pinned, &r->rank, 4);
    GOOD(ncclAllReduce(pinned, pinned, 1, ncclInt32, ncclSum, c, s));
    GOOD(cudaStreamSynchronize(s));
    MUST(*(int32_t *)pinned == 1);
    GOOD(cudaFreeHost(pinned));
    GOOD(cudaFree(of_another));
    GOOD(cudaFree(mine));
}

static void test_wrong_arguments_are_refused(void **state) {
    (void)state;
    with_ranks(2, wrong_arguments);
}

static void test_wrong_initialisations_are_refused(void **state) {
    (void)state;
    ncclUniqueId id, other, none;
    ncclComm_t comms[2];
    const int twice[] = { 1, 1 }, wild[] = { 0, 99 };
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    char text[200];
    GOOD(cudaSetDevice(0));
    CODE(ncclInvalidArgument, ncclGetUniqueId(NULL));
    GOOD(ncclGetUniqueId(&id));
    GOOD(ncclGetUniqueId(&other));
    assert_int_equal(standin_nccl_live(text, sizeof text), 2);
    assert_string_equal(text, "2 unique ids");
    memset(&none, 7, sizeof none);
    CODE(ncclInvalidArgument, ncclCommInitRank(NULL, 1, id, 0));
    CODE(ncclInvalidArgument, ncclCommInitRank(comms, 1, none, 0));
    CODE(ncclInvalidArgument, ncclCommInitRank(comms, 1, id, 1));
    CODE(ncclInvalidArgument, ncclCommInitRank(comms, 0, id, 0));
    CODE(ncclInvalidUsage, ncclCommInitAll(comms, 2, twice));
    CODE(ncclUnhandledCudaError, ncclCommInitAll(comms, 2, wild));
    CODE(ncclInvalidArgument, ncclCommInitAll(NULL, 2, NULL));
    config.blocking = 7;
    CODE(ncclInvalidArgument, ncclCommInitRankConfig(comms, 1, id, 0, &config));
    config.blocking = 1;
    config.minCTAs = 5, config.maxCTAs = 4;
    CODE(ncclInvalidArgument, ncclCommInitRankConfig(comms, 1, id, 0, &config));
    memset(&config, 0, sizeof config);
    CODE(ncclInvalidArgument, ncclCommInitRankConfig(comms, 1, id, 0, &config));
    GOOD(ncclGroupStart()); /* two ranks on one device */
    GOOD(ncclCommInitRank(&comms[0], 2, other, 0));
    GOOD(ncclCommInitRank(&comms[1], 2, other, 1));
    CODE(ncclInvalidUsage, ncclGroupEnd());
    assert_true(!comms[0] && !comms[1]);
    GOOD(ncclCommInitRank(comms, 1, id, 0));
    GOOD(ncclCommDestroy(comms[0]));
    CODE(ncclSystemError, ncclCommInitRank(comms, 1, id, 0)); /* an id is good for once */
    assert_null(comms[0]);
    GOOD(ncclCommDestroy(NULL));
    expect_nothing_left();
}

static void by_many_ids(rank *r) {
    static ncclUniqueId ids[2];
    ncclComm_t made;
    int count;
    if (r->rank == 0) {
        GOOD(ncclGetUniqueId(&ids[0]));
        GOOD(ncclGetUniqueId(&ids[1]));
    }
    meet();
    CODE(ncclInvalidArgument, ncclCommInitRankScalable(&made, 3, r->rank, 0, ids, NULL));
    GOOD(ncclCommInitRankScalable(&made, 3, r->rank, 2, ids, NULL));
    GOOD(ncclCommCount(made, &count));
    MUST(count == 3);
    GOOD(ncclCommDestroy(made));
    meet();
}

static void test_several_unique_ids(void **state) {
    (void)state;
    with_meeting(3, by_many_ids);
}

static void test_names_and_version(void **state) {
    (void)state;
    int version;
    CODE(ncclInvalidArgument, ncclGetVersion(NULL));
    unsigned long before = standin_nccl_calls("ncclGetVersion");
    GOOD(ncclGetVersion(&version));
    assert_int_equal(version, 23203);
    assert_int_equal(standin_nccl_calls("ncclGetVersion"), before + 1);
    for (int i = 0; i < ncclNumResults; i++)
        assert_true(strlen(ncclGetErrorString((ncclResult_t)i)) > 0);
    assert_string_equal(ncclGetErrorString((ncclResult_t)99), "unknown result code");
}

static void registrations(rank *r) {
    void *handle, *memory;
    char text[200];
    CODE(ncclInvalidArgument, ncclMemAlloc(NULL, 8));
    GOOD(ncclMemAlloc(&memory, 4096));
    CODE(ncclInvalidArgument, ncclCommRegister(r->comm, memory, 4096, NULL));
    CODE(ncclInvalidArgument, ncclCommRegister(r->comm, &handle, 8, &handle));
    GOOD(ncclCommRegister(r->comm, memory, 4096, &handle));
    MUST(standin_nccl_live(text, sizeof text) == 2);
    MUST(!strcmp(text, "1 communicator, 1 registration"));
    GOOD(ncclCommDeregister(r->comm, handle));
    CODE(ncclInvalidArgument, ncclCommDeregister(r->comm, handle));
    GOOD(ncclMemFree(memory));
    GOOD(ncclMemFree(NULL));
}

static void test_registrations_and_memory(void **state) {
    (void)state;
    with_ranks(1, registrations);
}

static void injected_failures(rank *r) {
    int32_t *device = filled(r->rank, 1);
    ncclResult_t state;
    standin_nccl_fail(2, ncclSystemError);
    GOOD(ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    MUST(!standin_nccl_failed());
    GOOD(ncclCommGetAsyncError(r->comm, &state)); /* does not count */
    CODE(ncclSystemError, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    MUST(standin_nccl_failed());
    GOOD(ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    GOOD(ncclGroupStart());
    standin_nccl_fail(1, ncclInternalError);
    CODE(ncclInternalError, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    CODE(ncclInternalError, ncclGroupEnd());
    standin_nccl_fail(1, ncclInternalError);
    GOOD(cudaStreamSynchronize(r->stream));
    CODE(ncclInternalError, ncclCommDestroy(r->comm)); /* all the same */
    r->comm = NULL;
    GOOD(cudaFree(device));
}

static void test_a_call_can_be_made_to_fail(void **state) {
    (void)state;
    with_ranks(1, injected_failures);
}

/* ---- communicators that do not block ---- */

static ncclResult_t settled(ncclComm_t comm) {
    ncclResult_t state;
    do {
        GOOD(ncclCommGetAsyncError(comm, &state));
        nap(1);
    } while (state == ncclInProgress);
    return state;
}

static void *run_without_blocking(void *of) {
    rank *r = of;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state;
    int number;
    config.blocking = 0;
    GOOD(cudaSetDevice(r->rank));
    GOOD(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    int32_t *device = filled(r->rank, 1);
    CODE(ncclInProgress, ncclCommInitRankConfig(&r->comm, r->count, r->id, r->rank, &config));
    GOOD(ncclCommGetAsyncError(r->comm, &state));
    MUST(state == ncclInProgress);
    CODE(ncclInvalidArgument, ncclCommCount(r->comm, &number));
    CODE(ncclInvalidArgument, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    MUST(settled(r->comm) == ncclSuccess);
    CODE(ncclInProgress,
         ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    CODE(ncclInvalidArgument, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    GOOD(cudaStreamQuery(r->stream)); /* it is not in its stream yet */
    MUST(settled(r->comm) == ncclSuccess);
    expect_block(r, device, 0, -1, 0);
    CODE(ncclInProgress, ncclCommFinalize(r->comm));
    MUST(settled(r->comm) == ncclSuccess);
    CODE(ncclInvalidUsage, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    GOOD(ncclCommDestroy(r->comm));
    GOOD(cudaFree(device));
    GOOD(cudaStreamDestroy(r->stream));
    return NULL;
}

static void test_communicators_that_do_not_block(void **state) {
    (void)state;
    standin_nccl_delay(300);
    start_ranks(2, NULL, run_without_blocking);
    standin_nccl_delay(0);
}

static void *run_mixed(void *of) {
    rank *r = of;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t other;
    config.blocking = 0;
    GOOD(ncclGetUniqueId(&id));
    int32_t *device = filled(0, 1);
    GOOD(ncclCommInitRank(&r->comm, 1, r->id, 0));
    CODE(ncclInProgress, ncclCommInitRankConfig(&other, 1, id, 0, &config));
    MUST(settled(other) == ncclSuccess);
    GOOD(ncclGroupStart());
    GOOD(ncclBcast(device, 1, ncclInt32, 0, r->comm, NULL));
    GOOD(ncclBcast(device, 1, ncclInt32, 0, other, NULL));
    CODE(ncclInvalidArgument, ncclGroupEnd());
    GOOD(ncclCommDestroy(r->comm));
    GOOD(ncclCommDestroy(other));
    GOOD(cudaFree(device));
    return NULL;
}

static void test_a_group_of_both_kinds_of_communicators_is_refused(void **state) {
    (void)state;
    start_ranks(1, NULL, run_mixed);
}

static void test_an_initialisation_that_lacks_a_rank_can_be_aborted(void **state) {
    (void)state;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comm;
    ncclResult_t now;
    config.blocking = 0;
    GOOD(cudaSetDevice(0));
    GOOD(ncclGetUniqueId(&id));
    CODE(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
    nap(50);
    GOOD(ncclCommGetAsyncError(comm, &now));
    assert_int_equal(now, ncclInProgress);
    ncclComm_t other;
    GOOD(cudaSetDevice(1));
    CODE(ncclInvalidArgument, ncclCommInitRank(&other, 3, id, 1)); /* another number of ranks */
    CODE(ncclInvalidUsage, ncclCommInitRank(&other, 2, id, 0));    /* the same rank again */
    GOOD(ncclCommAbort(comm));
    CODE(ncclSystemError, ncclCommInitRank(&comm, 2, id, 1)); /* nobody answers */
    expect_nothing_left();
}

/* ---- the end of communicators ---- */

static atomic_int finalized;

static void finalize_alone(rank *r) {
    while (r->rank == 1 && !atomic_load(&finalized))
        nap(1);
    GOOD(ncclCommFinalize(r->comm));
    atomic_store(&finalized, 1);
    CODE(ncclInvalidArgument, ncclCommFinalize(r->comm));
    CODE(ncclInvalidUsage, ncclBcast(&finalized, 1, ncclInt32, 0, r->comm, r->stream));
}

static void test_finalize_waits_for_no_other_rank(void **state) {
    (void)state;
    atomic_store(&finalized, 0);
    with_ranks(2, finalize_alone);
}

static void abort_alone(rank *r) {
    int32_t *device = filled(r->rank, 1);
    if (r->rank < 2)
        GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    meet();
    if (r->rank == 0) {
        GOOD(ncclCommAbort(r->comm));
        r->comm = NULL;
        GOOD(cudaStreamSynchronize(r->stream));
    }
    meet();
    nap(100);
    if (r->rank == 1) {
        CODE(cudaErrorNotReady, cudaStreamQuery(r->stream)); /* waits on */
        GOOD(ncclCommAbort(r->comm));
        r->comm = NULL;
        GOOD(cudaStreamSynchronize(r->stream));
    }
    GOOD(cudaFree(device));
}

static void test_abort_ends_the_operations_of_one_rank(void **state) {
    (void)state;
    with_meeting(3, abort_alone);
}

static void abort_behind_other_work(rank *r) {
    int32_t *device = filled(r->rank, 1);
    GOOD(cudaLaunchHostFunc(r->stream, wait_at_gate, NULL));
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
    GOOD(ncclCommAbort(r->comm)); /* before the stream has come to the operation */
    r->comm = NULL;
    CODE(cudaErrorNotReady, cudaStreamQuery(r->stream));
    meet();
    atomic_store(&gate, 1);
    GOOD(cudaStreamSynchronize(r->stream));
    expect_block(r, device, 0, r->rank, 0);
    GOOD(cudaFree(device));
}

static void test_an_aborted_operation_that_waits_does_nothing(void **state) {
    (void)state;
    atomic_store(&gate, 0);
    with_meeting(2, abort_behind_other_work);
}

static void revoke_and_split(rank *r) {
    int32_t *device = filled(r->rank, 1);
    ncclComm_t child;
    if (r->rank == 0)
        GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    nap(50);
    CODE(ncclInvalidArgument, ncclCommRevoke(r->comm, 1));
    GOOD(ncclCommRevoke(NULL, 0));
    GOOD(ncclCommRevoke(r->comm, NCCL_REVOKE_DEFAULT));
    GOOD(cudaStreamSynchronize(r->stream));
    MUST(settled(r->comm) == ncclSuccess);
    CODE(ncclInvalidArgument, ncclCommRevoke(r->comm, NCCL_REVOKE_DEFAULT));
    CODE(ncclInvalidUsage, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    CODE(ncclInvalidArgument, ncclCommFinalize(r->comm));
    GOOD(ncclCommSplit(r->comm, 0, 0, &child, NULL)); /* management goes on */
    ncclComm_t parent = r->comm;
    r->comm = child;
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, child, r->stream));
    expect_block(r, device, 0, -1, 0);
    GOOD(ncclCommDestroy(parent));
    GOOD(cudaFree(device));
}

static void test_revoke_stops_operations_and_refuses_more(void **state) {
    (void)state;
    with_ranks(2, revoke_and_split);
}

static void asynchronous_errors(rank *r) {
    int32_t *device = filled(r->rank, 1);
    ncclResult_t state;
    if (r->rank == 0) {
        GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
        nap(20);
        GOOD(ncclCommGetAsyncError(r->comm, &state));
        MUST(state == ncclSuccess);
        standin_nccl_async_error(r->comm, ncclRemoteError);
        GOOD(cudaStreamSynchronize(r->stream)); /* its operations end */
        GOOD(ncclCommGetAsyncError(r->comm, &state));
        MUST(state == ncclRemoteError);
        CODE(ncclRemoteError, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
        GOOD(ncclCommAbort(r->comm));
        r->comm = NULL;
    } else {
        GOOD(ncclCommGetAsyncError(r->comm, &state));
        MUST(state == ncclSuccess);
    }
    GOOD(cudaFree(device));
}

static void test_an_asynchronous_error_ends_the_operations(void **state) {
    (void)state;
    with_ranks(2, asynchronous_errors);
}

static const char trap_text[] = ".version 7.0\n"
                                ".target sm_70\n"
                                ".address_size 64\n"
                                ".visible .entry fails()\n"
                                "{\n"
                                "    trap;\n"
                                "}\n";

static void failing_kernel(void) {
}

/* A program of its own, for a device does not recover. */
static void failed_device(rank *r) {
    cudaStream_t second;
    ncclResult_t state;
    int32_t *device = filled(r->rank, 1);
    const void *kernel = (const void *)(uintptr_t)failing_kernel;
    dim3 one = { 1, 1, 1 };
    if (r->rank)
        pause();
    GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 1, r->comm, r->stream));
    nap(200);
    GOOD(ncclCommGetAsyncError(r->comm, &state));
    MUST(state == ncclSuccess);
    standin_register_function(kernel, trap_text, "fails");
    GOOD(cudaLaunchKernel(kernel, one, one, NULL, 0, second));
    CODE(cudaErrorLaunchFailure, cudaStreamSynchronize(second));
    while (state == ncclSuccess)
        GOOD(ncclCommGetAsyncError(r->comm, &state));
    MUST(state == ncclUnhandledCudaError);
    CODE(ncclUnhandledCudaError, ncclBcast(device, 1, ncclInt32, 1, r->comm, r->stream));
    GOOD(ncclCommAbort(r->comm));
    _exit(0);
}

/* ---- communicators made of others ---- */

static void expect_place(ncclComm_t comm, int rank_in_it, int count) {
    int seen, all;
    GOOD(ncclCommUserRank(comm, &seen));
    GOOD(ncclCommCount(comm, &all));
    MUST(seen == rank_in_it && all == count);
}

/* The sum of the ranks in the parent. */
static void expect_sum(const rank *r, ncclComm_t comm, int sum) {
    int32_t value = r->rank, *device = device_memory(4);
    to_device(device, &value, 4);
    GOOD(ncclAllReduce(device, device, 1, ncclInt32, ncclSum, comm, r->stream));
    GOOD(cudaStreamSynchronize(r->stream));
    from_device(&value, device, 4);
    MUST(value == sum);
    GOOD(cudaFree(device));
}

static void split(rank *r) {
    ncclComm_t half, again, none = r->comm;
    CODE(ncclInvalidArgument, ncclCommSplit(r->comm, -7, 0, &half, NULL));
    CODE(ncclInvalidArgument, ncclCommSplit(r->comm, 0, 0, NULL, NULL));
    GOOD(ncclCommSplit(r->comm, r->rank % 2, -r->rank, &half, NULL)); /* in reverse */
    expect_place(half, r->rank < 2, 2);
    expect_sum(r, half, r->rank % 2 ? 4 : 2);
    GOOD(ncclCommSplit(r->comm, r->rank == 3 ? NCCL_SPLIT_NOCOLOR : 5, 0, &none, NULL));
    MUST(!none == (r->rank == 3));
    if (none)
        expect_sum(r, none, 3);
    GOOD(ncclCommSplit(half, 0, 0, &again, NULL));
    expect_place(again, r->rank < 2, 2);
    expect_sum(r, r->comm, 6);
    expect_sum(r, again, r->rank % 2 ? 4 : 2);
    GOOD(ncclCommDestroy(half));
    GOOD(ncclCommDestroy(again));
    if (none)
        GOOD(ncclCommDestroy(none));
}

static void test_split(void **state) {
    (void)state;
    with_ranks(4, split);
}

static void shrink(rank *r) {
    int gone[] = { 1 }, wrong[] = { 9 }, all[] = { 0, 1, 2 };
    ncclComm_t less = NULL;
    CODE(ncclInvalidArgument, ncclCommShrink(r->comm, wrong, 1, &less, NULL, 0));
    CODE(ncclInvalidArgument, ncclCommShrink(r->comm, all, 3, &less, NULL, 0));
    CODE(ncclInvalidArgument, ncclCommShrink(r->comm, gone, 1, &less, NULL, 8));
    CODE(ncclInvalidArgument, ncclCommShrink(r->comm, gone, 1, NULL, NULL, 0));
    if (r->rank == 1) {
        CODE(ncclInvalidArgument, ncclCommShrink(r->comm, gone, 1, &less, NULL, 0));
        return;
    }
    GOOD(ncclCommShrink(r->comm, gone, 1, &less, NULL, NCCL_SHRINK_DEFAULT));
    expect_place(less, r->rank / 2, 2);
    expect_sum(r, less, 2);
    GOOD(ncclCommDestroy(less));
    /* an operation that waits for a rank which does not come */
    int32_t *device = filled(r->rank, 1);
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
    GOOD(ncclCommShrink(r->comm, gone, 1, &less, NULL, NCCL_SHRINK_ABORT));
    GOOD(cudaStreamSynchronize(r->stream));
    expect_sum(r, less, 2);
    GOOD(ncclCommDestroy(less));
    GOOD(cudaFree(device));
}

static void test_shrink(void **state) {
    (void)state;
    with_ranks(3, shrink);
}

static ncclUniqueId growth;

static void *run_newcomer(void *of) {
    rank *r = of;
    ncclComm_t comm;
    GOOD(cudaSetDevice(2));
    CODE(ncclInvalidArgument, ncclCommGrow(NULL, 3, NULL, 2, &comm, NULL));
    GOOD(ncclCommGrow(NULL, 3, &growth, 2, &comm, NULL));
    expect_place(comm, 2, 3);
    rank own = { 2, 3, r->id, comm, NULL, NULL, 0 };
    expect_sum(&own, comm, 3);
    GOOD(ncclCommDestroy(comm));
    return NULL;
}

static void grow(rank *r) {
    ncclComm_t more;
    pthread_t newcomer;
    if (r->rank == 1) {
        GOOD(ncclCommGetUniqueId(r->comm, &growth));
        CODE(ncclInvalidUsage, ncclCommGetUniqueId(r->comm, &growth));
        MUST(!pthread_create(&newcomer, NULL, run_newcomer, r));
    }
    CODE(ncclInvalidArgument, ncclCommGrow(r->comm, 2, NULL, -1, &more, NULL));
    CODE(ncclInvalidArgument, ncclCommGrow(r->comm, 3, NULL, 0, &more, NULL));
    GOOD(ncclCommGrow(r->comm, 3, r->rank == 1 ? &growth : NULL, -1, &more, NULL));
    expect_place(more, r->rank, 3);
    expect_sum(r, more, 3);
    GOOD(ncclCommDestroy(more));
    if (r->rank != 1)
        return;
    pthread_join(newcomer, NULL);
    GOOD(ncclCommGetUniqueId(r->comm, &growth)); /* and goes with the communicator */
}

static void test_grow(void **state) {
    (void)state;
    with_ranks(2, grow);
}

/* ---- two communicators of a device ---- */

static void crossed_communicators(rank *r) {
    cudaStream_t second;
    ncclComm_t other;
    int32_t *a = filled(r->rank, 1), *b = filled(r->rank, 1);
    GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    GOOD(ncclCommSplit(r->comm, 0, 0, &other, NULL));
    ncclComm_t first = r->rank ? r->comm : other, last = r->rank ? other : r->comm;
    GOOD(ncclBcast(a, BLOCK, ncclInt32, 0, first, r->stream));
    nap(50);
    meet();
    GOOD(ncclBcast(b, BLOCK, ncclInt32, 0, last, second));
    nap(100);
    int hangs = cudaStreamQuery(second) == cudaErrorNotReady;
    MUST(hangs == (getenv("STANDIN_NCCL_ONE_AT_A_TIME") != NULL));
    meet();
    GOOD(ncclCommAbort(other));
    GOOD(ncclCommAbort(r->comm));
    r->comm = NULL;
    GOOD(cudaStreamSynchronize(r->stream));
    GOOD(cudaStreamSynchronize(second));
    GOOD(cudaStreamDestroy(second));
    GOOD(cudaFree(a));
    GOOD(cudaFree(b));
}

static void test_a_device_may_run_one_operation_at_a_time(void **state) {
    (void)state;
    with_meeting(2, crossed_communicators);
    setenv("STANDIN_NCCL_ONE_AT_A_TIME", "1", 1);
    with_meeting(2, crossed_communicators);
    with_ranks(3, reduce_to_all);
    unsetenv("STANDIN_NCCL_ONE_AT_A_TIME");
}

/* ---- ranks as processes ---- */

/* A part of this program in a process of its own. */
typedef struct process {
    pid_t pid;
    int to, from; /* its standard input, and its two outputs */
} process;

static process start_part(const char *part, int number, int count, const ncclUniqueId *id) {
    int in[2], out[2];
    char number_text[16], count_text[16];
    process p;
    MUST(!pipe(in) && !pipe(out));
    snprintf(number_text, sizeof number_text, "%d", number);
    snprintf(count_text, sizeof count_text, "%d", count);
    p.pid = fork();
    if (!p.pid) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        for (int i = 3; i < 256; i++)
            close(i);
        execl("/proc/self/exe", "test_standin_nccl", part, number_text, count_text,
              id ? id->internal : "none", (char *)NULL);
        _exit(98);
    }
    close(in[0]);
    close(out[1]);
    p.to = in[1];
    p.from = out[0];
    return p;
}

/* Reads what it writes until it ends. Returns the status of waitpid. */
static int end_part(process *p, char *text, size_t size) {
    size_t length = 0;
    ssize_t got;
    int status;
    char rest[256];
    close(p->to);
    while ((got = length + 1 < size ? read(p->from, text + length, size - 1 - length)
                                    : read(p->from, rest, sizeof rest)) > 0)
        if (length + 1 < size)
            length += (size_t)got;
    text[length] = 0;
    close(p->from);
    waitpid(p->pid, &status, 0);
    return status;
}

static void expect_success(process *p) {
    char text[2000];
    int status = end_part(p, text, sizeof text);
    if (status)
        fail_msg("a rank ended with status %x: %s", (unsigned)status, text);
}

/* A program that the stand-in ends with this sentence. */
static void expect_death(const char *part, int number, int count, const char *sentence) {
    char text[2000];
    process p = start_part(part, number, count, NULL);
    int status = end_part(&p, text, sizeof text);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("%s ended with status %x: %s", part, (unsigned)status, text);
    if (!strstr(text, sentence))
        fail_msg("%s says: %s", part, text);
}

static void say(char c) {
    MUST(write(1, &c, 1) == 1);
}

static void listen_to(const process *p, char expected) {
    char c = 0;
    if (read(p->from, &c, 1) != 1 || c != expected) {
        char text[1000];
        ssize_t got = read(p->from, text, sizeof text - 1);
        text[got > 0 ? got : 0] = 0;
        fail_msg("a rank says %c%s", c, text);
    }
}

static void rank_of_processes(rank *r) {
    if (r->rank == 1)
        nap(300); /* the others look for it meanwhile, and it is alive */
    reduce_to_all(r);
    broadcast(r);
    gather_to_all(r);
    ring(r);
    ncclComm_t child;
    GOOD(ncclCommSplit(r->comm, 0, -r->rank, &child, NULL));
    expect_place(child, r->count - 1 - r->rank, r->count);
    expect_sum(r, child, r->count * (r->count - 1) / 2);
    GOOD(ncclCommDestroy(child));
    GOOD(ncclCommFinalize(r->comm));
}

static void survivor(rank *r) {
    int gone[] = { 1 };
    ncclComm_t less;
    int32_t *device = filled(r->rank, 1);
    say('r');
    if (r->rank == 1) {
        for (;;)
            pause(); /* until it is killed */
    }
    GOOD(ncclAllReduce(device, device, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    GOOD(cudaStreamSynchronize(r->stream));
    MUST(settled(r->comm) == ncclRemoteError);
    CODE(ncclRemoteError, ncclBcast(device, 1, ncclInt32, 0, r->comm, r->stream));
    GOOD(ncclCommShrink(r->comm, gone, 1, &less, NULL, NCCL_SHRINK_ABORT));
    expect_sum(r, less, 2);
    GOOD(ncclCommDestroy(less));
    GOOD(ncclCommAbort(r->comm));
    r->comm = NULL;
    GOOD(cudaFree(device));
}

static void test_ranks_that_are_processes(void **state) {
    (void)state;
    process all[3];
    ncclUniqueId id;
    GOOD(ncclGetUniqueId(&id));
    for (int i = 0; i < 3; i++)
        all[i] = start_part("processes", i, 3, &id);
    for (int i = 0; i < 3; i++)
        expect_success(&all[i]);
    expect_nothing_left();
}

static void test_a_failed_device_fails_its_communicator(void **state) {
    (void)state;
    process p = start_part("device", 0, 2, NULL);
    expect_success(&p);
}

static void test_a_device_has_one_rank_for_each_host(void **state) {
    (void)state;
    process all[2];
    ncclUniqueId id;
    GOOD(ncclGetUniqueId(&id));
    for (int i = 0; i < 2; i++) {
        setenv("NCCL_HOSTID", i ? "a" : "b", 1);
        all[i] = start_part("hosts", i, 2, &id);
    }
    unsetenv("NCCL_HOSTID");
    expect_success(&all[0]);
    expect_success(&all[1]);
}

static void test_a_killed_process_is_noticed(void **state) {
    (void)state;
    process all[3];
    ncclUniqueId id;
    char text[200];
    GOOD(ncclGetUniqueId(&id));
    for (int i = 0; i < 3; i++)
        all[i] = start_part("survivor", i, 3, &id);
    for (int i = 0; i < 3; i++)
        listen_to(&all[i], 'r');
    nap(100);
    kill(all[1].pid, SIGKILL);
    expect_success(&all[0]);
    expect_success(&all[2]);
    (void)end_part(&all[1], text, sizeof text);
}

static void test_a_process_that_is_killed_while_others_join_is_noticed(void **state) {
    (void)state;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comm;
    ncclResult_t now;
    char text[200];
    GOOD(ncclGetUniqueId(&id));
    process p = start_part("survivor", 1, 3, &id);
    GOOD(cudaSetDevice(0));
    config.blocking = 0;
    CODE(ncclInProgress, ncclCommInitRankConfig(&comm, 3, id, 0, &config));
    nap(300); /* it has joined */
    GOOD(ncclCommGetAsyncError(comm, &now));
    assert_int_equal(now, ncclInProgress);
    kill(p.pid, SIGKILL);
    (void)end_part(&p, text, sizeof text);
    assert_int_equal(settled(comm), ncclRemoteError);
    GOOD(ncclCommAbort(comm));
    expect_nothing_left();
}

static void print_sums(rank *r) {
    order_of_ranks(r);
    for (int i = 0; i < 40 && r->rank == 0; i++)
        printf("%g ", (double)sums[0][i]);
    fflush(stdout);
}

static void sums_with_seed(const char *seed, char *text, size_t size) {
    setenv("STANDIN_NCCL_SEED", seed, 1);
    process p = start_part("sums", 0, 4, NULL);
    unsetenv("STANDIN_NCCL_SEED");
    assert_int_equal(end_part(&p, text, size), 0);
}

static void test_the_seed_chooses_the_orders_of_sums(void **state) {
    (void)state;
    char first[1000], again[1000], other[1000];
    sums_with_seed("1", first, sizeof first);
    sums_with_seed("", again, sizeof again); /* 1 without a value */
    sums_with_seed("2", other, sizeof other);
    assert_string_equal(first, again);
    assert_string_not_equal(first, other);
}

/* ---- programs that the stand-in ends ---- */

static void mismatched(rank *r, int how) {
    int32_t *device = filled(r->rank, 3);
    size_t count = how == 0 ? BLOCK + (size_t)r->rank : BLOCK;
    ncclRedOp_t op = how == 2 && r->rank ? ncclMax : ncclSum;
    ncclDataType_t type = how == 1 && r->rank ? ncclFloat32 : ncclInt32;
    if (how == 3)
        GOOD(ncclBcast(device, BLOCK, ncclInt32, r->rank, r->comm, r->stream));
    else if (how == 4 && r->rank)
        GOOD(ncclAllGather(device, device + BLOCK, BLOCK, ncclInt32, r->comm, r->stream));
    else if (how == 5 && r->rank)
        GOOD(ncclRecv(device, BLOCK - 1, ncclInt32, 0, r->comm, r->stream));
    else if (how == 5)
        GOOD(ncclSend(device, BLOCK, ncclInt32, 1, r->comm, r->stream));
    else
        GOOD(ncclAllReduce(device, device, count, type, op, r->comm, r->stream));
    GOOD(cudaStreamSynchronize(r->stream));
    MUST(settled(r->comm) == ncclInvalidUsage); /* STANDIN_NCCL_MISMATCH=error */
    MUST(strstr(ncclGetLastError(r->comm), "but rank"));
    GOOD(ncclCommAbort(r->comm));
    r->comm = NULL;
    GOOD(cudaFree(device));
}

static int mismatch_number;

static void mismatch(rank *r) {
    mismatched(r, mismatch_number);
}

static void test_ranks_that_call_different_things_fail_the_test(void **state) {
    (void)state;
    expect_death("mismatch", 0, 0,
                 "rank 0 calls AllReduce(count 70001, type 2, op 0, root 0), but "
                 "rank 1 calls AllReduce(count 70002,");
    expect_death("mismatch", 1, 0, "but rank 1 calls AllReduce(count 70001, type 7");
    expect_death("mismatch", 2, 0, "but rank 1 calls AllReduce(count 70001, type 2, op 2");
    expect_death("mismatch", 3, 0, "but rank 1 calls Broadcast(count 70001, type 2, op 0, root 1)");
    expect_death("mismatch", 4, 0, "but rank 1 calls AllGather");
    expect_death("mismatch", 5, 0,
                 "rank 0 calls Send(count 70001, type 2, op 0, root 0), but rank 1 "
                 "calls Recv(count 70000");
}

static void test_or_they_get_an_asynchronous_error(void **state) {
    (void)state;
    setenv("STANDIN_NCCL_MISMATCH", "error", 1);
    for (int i = 0; i < 5; i++) {
        mismatch_number = i;
        with_ranks(2, mismatch);
    }
    unsetenv("STANDIN_NCCL_MISMATCH");
}

static void overlapping(rank *r) {
    int32_t *device = filled(r->rank, 3);
    setenv("STANDIN_NCCL_MISMATCH", "error", 1);
    CODE(ncclInvalidUsage,
         ncclAllReduce(device, device + 1, BLOCK, ncclInt32, ncclSum, r->comm, r->stream));
    CODE(ncclInvalidUsage, ncclAlltoAll(device, device, BLOCK, ncclInt32, r->comm, r->stream));
    unsetenv("STANDIN_NCCL_MISMATCH");
    (void)ncclAllGather(device + 1, device, BLOCK, ncclInt32, r->comm, r->stream);
}

static void free_in_use(rank *r) {
    int32_t *device = filled(r->rank, 1);
    if (r->rank)
        pause();
    GOOD(ncclBcast(device, BLOCK, ncclInt32, 0, r->comm, r->stream));
    (void)cudaFree(device);
}

static void freed_before_launch(rank *r) {
    cudaGraph_t graph;
    int32_t *device = filled(r->rank, 1);
    cudaGraphExec_t exec = captured(r, &graph, device);
    GOOD(cudaFree(device));
    (void)cudaGraphLaunch(exec, r->stream);
}

static void destroyed_under_graph(rank *r) {
    cudaGraph_t graph;
    int32_t *device = filled(r->rank, 1);
    (void)captured(r, &graph, device);
    (void)ncclCommDestroy(r->comm);
}

static void aborted_under_graph(rank *r) {
    cudaGraph_t graph;
    int32_t *device = filled(r->rank, 1);
    cudaGraphExec_t exec = captured(r, &graph, device);
    GOOD(ncclCommAbort(r->comm));
    (void)cudaGraphLaunch(exec, r->stream);
}

static void used_after_end(rank *r) {
    GOOD(ncclCommDestroy(r->comm));
    (void)ncclCommAbort(r->comm);
}

static void two_threads(rank *r) {
    (void)r;
    (void)standin_nccl_calls("ncclNothing");
}

static void test_what_nccl_leaves_undefined_fails_the_test(void **state) {
    (void)state;
    expect_death("overlap", 0, 1, "AllGather of rank 0: the buffers overlap, and are not in place");
    expect_death("free", 0, 2, "is in use by a pending collective on device 0");
    expect_death("freed", 0, 1, "memory of a collective");
    expect_death("destroyed", 0, 1, "graphs still have 4 nodes of the communicator");
    expect_death("aborted", 0, 1, "with a communicator that is destroyed or aborted");
    expect_death("used", 0, 1, "is no communicator, or it is destroyed");
    expect_death("calls", 0, 1, "there is no ncclNothing");
}

/* ---- the libraries ---- */

static void *opened(const char *folder) {
    char path[4096];
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 100);
    MUST(size > 0);
    path[size] = 0;
    *strrchr(path, '/') = 0; /* unit */
    snprintf(strrchr(path, '/'), 90, "/%s/libnccl.so.2", folder);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    return library;
}

static void test_the_library_and_the_old_one(void **state) {
    (void)state;
    static const char *const folders[] = { "lib", "lib-nccl-old" };
    static const int versions[] = { 23203, 21803 };
    for (int i = 0; i < 2; i++) {
        void *library = opened(folders[i]);
        ncclResult_t (*get_version)(int *version);
        ncclResult_t (*init_all)(ncclComm_t * comms, int count, const int *devices);
        ncclResult_t (*destroy)(ncclComm_t comm);
        ncclComm_t comms[2];
        int version;
        *(void **)&get_version = dlsym(library, "ncclGetVersion");
        *(void **)&init_all = dlsym(library, "ncclCommInitAll");
        *(void **)&destroy = dlsym(library, "ncclCommDestroy");
        GOOD(get_version(&version));
        assert_int_equal(version, versions[i]);
        assert_true(!dlsym(library, "ncclCommShrink") == (i == 1));
        assert_true(!dlsym(library, "ncclCommRegister") == (i == 1));
        assert_non_null(dlsym(library, "ncclCommSplit"));
        assert_null(dlsym(library, "ncclCommWindowRegister"));
        assert_null(dlsym(library, "sn_fail_test"));
        GOOD(init_all(comms, 2, NULL)); /* on the stand-in of this program */
        GOOD(destroy(comms[0]));
        GOOD(destroy(comms[1]));
    }
}

static void test_it_says_what_it_lacks(void **state) {
    (void)state;
    char text[2000];
    setenv("STANDIN_NCCL_REPORT", "1", 1);
    process p = start_part("nothing", 0, 0, NULL);
    unsetenv("STANDIN_NCCL_REPORT");
    assert_int_equal(end_part(&p, text, sizeof text), 0);
    assert_non_null(strstr(text, "ncclCommWindow"));
    p = start_part("nothing", 0, 0, NULL);
    assert_int_equal(end_part(&p, text, sizeof text), 0);
    assert_string_equal(text, "");
}

/* A part of the program: rank `number` of `count`, or both ranks as threads. */
static int run_part(char **argv) {
    static const struct {
        const char *name;
        void (*body)(rank *r);
    } parts[] = { { "processes", rank_of_processes },
                  { "survivor", survivor },
                  { "sums", print_sums },
                  { "hosts", reduce_to_all },
                  { "device", failed_device },
                  { "mismatch", mismatch },
                  { "overlap", overlapping },
                  { "free", free_in_use },
                  { "freed", freed_before_launch },
                  { "destroyed", destroyed_under_graph },
                  { "aborted", aborted_under_graph },
                  { "used", used_after_end },
                  { "calls", two_threads } };

    int number = atoi(argv[2]), count = atoi(argv[3]), has_id = strcmp(argv[4], "none") != 0;
    alarm(60);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(parts[i].name, argv[1]) != 0)
            continue;
        if (has_id) {
            rank r = { .rank = number, .count = count, .body = parts[i].body };
            r.is_on_first = !strcmp(argv[1], "hosts");
            memcpy(r.id.internal, argv[4], strlen(argv[4]) + 1);
            run_rank(&r);
        } else {
            mismatch_number = number;
            with_ranks(count ? count : 2, parts[i].body);
        }
    }
    return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_all_reduce),
    cmocka_unit_test(test_reduce_gives_the_result_to_the_root_alone),
    cmocka_unit_test(test_broadcast),
    cmocka_unit_test(test_all_gather),
    cmocka_unit_test(test_reduce_scatter),
    cmocka_unit_test(test_all_to_all),
    cmocka_unit_test(test_gather_and_scatter),
    cmocka_unit_test(test_the_forms_with_a_configuration),
    cmocka_unit_test(test_all_types_and_operations),
    cmocka_unit_test(test_averages),
    cmocka_unit_test(test_small_types_are_rounded_to_nearest_even),
    cmocka_unit_test(test_sums_of_scaled_values),
    cmocka_unit_test(test_the_order_of_a_sum_differs_between_operations),
    cmocka_unit_test(test_messages_of_a_group_go_side_by_side),
    cmocka_unit_test(test_a_message_to_itself_needs_both_calls_in_a_group),
    cmocka_unit_test(test_crossed_messages_without_a_group_hang),
    cmocka_unit_test(test_calls_without_elements),
    cmocka_unit_test(test_an_operation_begins_when_all_streams_have_come_to_it),
    cmocka_unit_test(test_waiting_operations_hold_no_thread_of_the_device),
    cmocka_unit_test(test_operations_in_two_streams_keep_their_order),
    cmocka_unit_test(test_the_streams_of_a_group_wait_for_each_other),
    cmocka_unit_test(test_operations_can_be_made_to_take_longer),
    cmocka_unit_test(test_held_devices_begin_no_operation),
    cmocka_unit_test(test_the_device_is_that_of_the_communicator),
    cmocka_unit_test(test_one_thread_has_all_ranks_in_a_group),
    cmocka_unit_test(test_a_failed_group_does_nothing),
    cmocka_unit_test(test_collectives_and_messages_in_one_group),
    cmocka_unit_test(test_each_launch_of_a_graph_runs_its_collectives),
    cmocka_unit_test(test_a_group_is_captured_whole_or_not_at_all),
    cmocka_unit_test(test_a_group_in_two_captured_streams),
    cmocka_unit_test(test_calls_may_wait_for_those_of_other_ranks),
    cmocka_unit_test(test_wrong_arguments_are_refused),
    cmocka_unit_test(test_wrong_initialisations_are_refused),
    cmocka_unit_test(test_several_unique_ids),
    cmocka_unit_test(test_names_and_version),
    cmocka_unit_test(test_registrations_and_memory),
    cmocka_unit_test(test_a_call_can_be_made_to_fail),
    cmocka_unit_test(test_communicators_that_do_not_block),
    cmocka_unit_test(test_a_group_of_both_kinds_of_communicators_is_refused),
    cmocka_unit_test(test_an_initialisation_that_lacks_a_rank_can_be_aborted),
    cmocka_unit_test(test_finalize_waits_for_no_other_rank),
    cmocka_unit_test(test_abort_ends_the_operations_of_one_rank),
    cmocka_unit_test(test_an_aborted_operation_that_waits_does_nothing),
    cmocka_unit_test(test_revoke_stops_operations_and_refuses_more),
    cmocka_unit_test(test_an_asynchronous_error_ends_the_operations),
    cmocka_unit_test(test_split),
    cmocka_unit_test(test_shrink),
    cmocka_unit_test(test_grow),
    cmocka_unit_test(test_a_device_may_run_one_operation_at_a_time),
    cmocka_unit_test(test_ranks_that_are_processes),
    cmocka_unit_test(test_a_failed_device_fails_its_communicator),
    cmocka_unit_test(test_a_device_has_one_rank_for_each_host),
    cmocka_unit_test(test_a_killed_process_is_noticed),
    cmocka_unit_test(test_a_process_that_is_killed_while_others_join_is_noticed),
    cmocka_unit_test(test_the_seed_chooses_the_orders_of_sums),
    cmocka_unit_test(test_ranks_that_call_different_things_fail_the_test),
    cmocka_unit_test(test_or_they_get_an_asynchronous_error),
    cmocka_unit_test(test_what_nccl_leaves_undefined_fails_the_test),
    cmocka_unit_test(test_the_library_and_the_old_one),
    cmocka_unit_test(test_it_says_what_it_lacks),
};

int main(int argc, char **argv) {
    if (argc == 5)
        return run_part(argv);
    alarm(600);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
