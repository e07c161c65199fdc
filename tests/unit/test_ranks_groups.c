/* The public functions of process groups, with ranks as threads (engine "local"): properties,
   split, shrink, growth, barrier, send and receive, time limits and aborts. */
#define _GNU_SOURCE
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { SIZE = 4, N = 100 };

typedef struct member {
    pthread_t thread;
    int rank;
    ds_ranks ranks;
    ds_stream stream;
    ds_tensor *tensor; /* N times the number of the rank */
    ds_comm_options options;
    void (*fn)(struct member *m);
} member;

static _Atomic int failures;
static const char *group_id;

/* Counts a failed check: cmocka's assertions must not leave a thread. */
#define EXPECT(condition)                                                                         \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            atomic_fetch_add(&failures, 1);                                                       \
            fprintf(stderr, "rank %d, line %d: not so: %s (%s)\n", m->rank, __LINE__, #condition, \
                    ds_error_get_last());                                                         \
        }                                                                                         \
    } while (0)

static void open_member(member *m) {
    ds_device device = ds_device_current();
    EXPECT(ds_ranks_init(&(ds_ranks_desc){ .engine = "local",
                                           .rank = m->rank,
                                           .size = SIZE,
                                           .id = group_id,
                                           .label = "team",
                                           .devices = &device,
                                           .device_count = 1,
                                           .timeout_ns = 20000000000u },
                         &m->ranks) == DS_OK);
    EXPECT(ds_stream_create(NULL, &m->stream) == DS_OK);
    EXPECT(ds_tensor_alloc(ds_int32(), 1, (int64_t[]){ N }, m->stream, &m->tensor) == DS_OK);
    EXPECT(ds_fill(m->tensor->data, (uint32_t)m->rank, 4, N, m->stream) == DS_OK);
    m->options = (ds_comm_options){ .streams = &m->stream, .stream_count = 1, .ranks = m->ranks };
}

static void *run_member(void *user) {
    member *m = user;
    open_member(m);
    m->fn(m);
    EXPECT(ds_ranks_finalize(m->ranks) == DS_OK);
    EXPECT(ds_tensor_free(m->tensor) == DS_OK);
    EXPECT(ds_stream_destroy(m->stream) == DS_OK);
    return NULL;
}

/* Runs a function on all ranks. */
static void run_ranks(const char *id, void (*fn)(member *m)) {
    member members[SIZE];
    alarm(120);
    memset(members, 0, sizeof members);
    atomic_store(&failures, 0);
    group_id = id;
    for (int i = 0; i < SIZE; i++) {
        members[i].rank = i;
        members[i].fn = fn;
        assert_int_equal(pthread_create(&members[i].thread, NULL, run_member, &members[i]), 0);
    }
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(pthread_join(members[i].thread, NULL), 0);
    assert_int_equal(atomic_load(&failures), 0);
}

/* Adds the tensors of a group, and returns an element of the sum. */
static int32_t sum_of(member *m, ds_ranks ranks) {
    int32_t sum = -1;
    const ds_tensor *tensor = m->tensor;
    ds_comm_options options = m->options;
    options.ranks = ranks;
    EXPECT(ds_comm_all_reduce(&tensor, &tensor, 1, DS_REDUCE_SUM, &options) == DS_OK);
    EXPECT(ds_copy(&sum, m->tensor->data, sizeof sum, m->stream) == DS_OK);
    EXPECT(ds_stream_synchronize(m->stream) == DS_OK);
    return sum;
}

static void properties(member *m) {
    ds_ranks_info info;
    EXPECT(ds_ranks_get_status(m->ranks) == DS_OK);
    EXPECT(sum_of(m, m->ranks) == 6);
    EXPECT(ds_ranks_get_info(m->ranks, &info) == DS_OK);
    EXPECT(info.rank == m->rank && info.size == SIZE && info.own_devices == 1);
    EXPECT(info.device_count == SIZE && info.first_device == (size_t)m->rank);
    EXPECT(strcmp(info.engine, "local") == 0 && !*info.library);
    EXPECT(info.operations > 0 && info.pending == 0);
}

static void test_a_group_reports_its_properties(void **unused) {
    (void)unused;
    run_ranks("properties", properties);
}

/* Ranks 0 and 2, in reverse order, and rank 1; rank 3 is in no group. */
static void split(member *m) {
    ds_ranks part;
    ds_ranks_info info;
    int color = m->rank == 3 ? -1 : m->rank % 2;
    EXPECT(ds_ranks_split(m->ranks, color, -m->rank, &part) == DS_OK);
    if (m->rank == 3) {
        EXPECT(part.id == 0 && ds_ranks_get_status(part) == DS_ERR_INVALID_HANDLE);
        return;
    }
    EXPECT(ds_ranks_get_info(part, &info) == DS_OK);
    EXPECT(info.size == (m->rank == 1 ? 1 : 2) && info.rank == (m->rank == 0));
    EXPECT(sum_of(m, part) == (m->rank == 1 ? 1 : 2));
    EXPECT(ds_ranks_finalize(part) == DS_OK);
}

static void test_a_split_groups_ranks_by_color_and_key(void **unused) {
    (void)unused;
    run_ranks("split", split);
}

static void shrink(member *m) {
    static const int excluded[] = { 1 };
    ds_ranks rest;
    ds_ranks_info info;
    if (m->rank == 1)
        return;
    EXPECT(ds_ranks_shrink(m->ranks, excluded, 1, &rest) == DS_OK);
    EXPECT(ds_ranks_get_info(rest, &info) == DS_OK);
    EXPECT(info.size == 3 && info.rank == (m->rank ? m->rank - 1 : 0));
    EXPECT(sum_of(m, rest) == 5);
    EXPECT(ds_ranks_finalize(rest) == DS_OK);
}

static void test_a_shrunk_group_has_the_other_ranks(void **unused) {
    (void)unused;
    run_ranks("shrink", shrink);
}

static char grow_id[DS_RANKS_ID_SIZE];
static pthread_barrier_t id_is_there;

/* Ranks 0 to 2 form a group, and rank 3 joins it. */
static void grow(member *m) {
    ds_ranks few;
    ds_ranks all;
    ds_ranks_info info;
    ds_device device = ds_device_current();
    EXPECT(ds_ranks_split(m->ranks, m->rank == 3 ? -1 : 0, m->rank, &few) == DS_OK);
    if (m->rank == 0)
        EXPECT(ds_ranks_grow_id(few, grow_id, sizeof grow_id) == DS_OK);
    pthread_barrier_wait(&id_is_there);
    if (m->rank == 3)
        EXPECT(ds_ranks_init(&(ds_ranks_desc){ .engine = "local",
                                               .rank = 3,
                                               .size = SIZE,
                                               .id = grow_id,
                                               .devices = &device,
                                               .device_count = 1 },
                             &all) == DS_OK);
    else
        EXPECT(ds_ranks_grow(few, SIZE, &all) == DS_OK);
    EXPECT(ds_ranks_get_info(all, &info) == DS_OK);
    EXPECT(info.size == SIZE && info.rank == m->rank);
    EXPECT(sum_of(m, all) == 6);
    EXPECT(ds_ranks_finalize(all) == DS_OK);
    EXPECT(ds_ranks_finalize(few) == DS_OK);
}

static void test_a_grown_group_has_a_new_rank(void **unused) {
    (void)unused;
    pthread_barrier_init(&id_is_there, NULL, SIZE);
    run_ranks("grow", grow);
    pthread_barrier_destroy(&id_is_there);
}

static _Atomic int arrived;

static void arrive(void *user) {
    usleep(*(unsigned *)user);
    atomic_fetch_add(&arrived, 1);
}

static void look(void *user) {
    *(int *)user = atomic_load(&arrived);
}

static void barrier(member *m) {
    unsigned delay = 10000u * (unsigned)m->rank;
    int seen = 0;
    EXPECT(ds_stream_launch_host_func(m->stream, arrive, &delay, NULL) == DS_OK);
    EXPECT(ds_ranks_barrier(&m->options) == DS_OK);
    EXPECT(ds_stream_launch_host_func(m->stream, look, &seen, NULL) == DS_OK);
    EXPECT(ds_stream_synchronize(m->stream) == DS_OK);
    EXPECT(seen == SIZE);
}

static void test_a_barrier_orders_the_streams_of_all_ranks(void **unused) {
    (void)unused;
    atomic_store(&arrived, 0);
    run_ranks("barrier", barrier);
}

/* Rank 0 passes its tensor to rank 1, and so on. */
static void chain(member *m) {
    int32_t number = -1;
    if (m->rank > 0)
        EXPECT(ds_ranks_receive(m->tensor, (size_t)m->rank - 1, &m->options) == DS_OK);
    if (m->rank < SIZE - 1)
        EXPECT(ds_ranks_send(m->tensor, (size_t)m->rank + 1, &m->options) == DS_OK);
    EXPECT(ds_copy(&number, m->tensor->data, sizeof number, m->stream) == DS_OK);
    EXPECT(ds_stream_synchronize(m->stream) == DS_OK);
    EXPECT(number == 0);
}

static void test_a_tensor_is_passed_from_rank_to_rank(void **unused) {
    (void)unused;
    run_ranks("chain", chain);
}

/* Rank 2 never calls, and aborts the group. */
static void aborted(member *m) {
    const ds_tensor *tensor = m->tensor;
    if (m->rank == 2) {
        usleep(20000);
        EXPECT(ds_ranks_abort(m->ranks, "the disk is full") == DS_OK);
        EXPECT(ds_ranks_abort(m->ranks, "a second reason") == DS_OK);
        EXPECT(ds_ranks_get_status(m->ranks) == DS_ERR_ABORTED);
        return;
    }
    EXPECT(ds_comm_all_reduce(&tensor, &tensor, 1, DS_REDUCE_SUM, &m->options) == DS_OK);
    EXPECT(ds_stream_synchronize(m->stream) == DS_ERR_ABORTED);
    EXPECT(strstr(ds_error_get_last(), "the disk is full"));
    EXPECT(ds_ranks_get_status(m->ranks) == DS_ERR_ABORTED);
    EXPECT(ds_ranks_barrier(&m->options) == DS_ERR_ABORTED);
}

static void test_an_abort_ends_operations_of_all_ranks(void **unused) {
    (void)unused;
    run_ranks("aborted", aborted);
}

/* Rank 2 never calls. */
static void late(member *m) {
    ds_ranks_options limit = { .timeout_ns = 50000000 };
    ds_comm_options options = m->options;
    options.ranks_options = &limit;
    if (m->rank == 2)
        return;
    EXPECT(ds_ranks_barrier(&options) == DS_OK);
    EXPECT(ds_stream_synchronize(m->stream) == DS_ERR_TIMEOUT);
    EXPECT(ds_ranks_get_status(m->ranks) == DS_ERR_TIMEOUT);
}

static void test_an_operation_has_a_time_limit(void **unused) {
    (void)unused;
    run_ranks("late", late);
}

/* CUDA loads a module when all work of the device is complete, so that a kernel that is loaded
   behind the operation of another rank would wait for that rank. */
static void test_a_group_loads_the_kernels_of_its_gpus(void **unused) {
    static const ds_dtype types[] = { { DS_CODE_FLOAT, 32, 1 }, { DS_CODE_INT, 32, 1 } };
    ds_device gpu = { DS_DEVICE_CUDA, 0 };
    ds_ranks ranks;
    ds_stream waits, adds;
    uint32_t *word;
    (void)unused;
    if (ds_shutdown() < 0 || !ds_backend_is_available(DS_DEVICE_CUDA))
        skip();
    assert_int_equal(
        ds_ranks_init(
            &(ds_ranks_desc){
                .engine = "local", .size = 1, .id = "loads", .devices = &gpu, .device_count = 1 },
            &ranks),
        DS_OK);
    assert_int_equal(ds_mem_pinned_alloc(sizeof *word, (void **)&word), DS_OK);
    *word = 0;
    assert_int_equal(ds_stream_create(&(ds_stream_desc){ .device = gpu }, &waits), DS_OK);
    assert_int_equal(ds_stream_create(&(ds_stream_desc){ .device = gpu }, &adds), DS_OK);
    assert_int_equal(ds_stream_wait_value32(waits, word, 1, DS_VALUE_WAIT_EQ), DS_OK);
    for (int i = 0; i < 2; i++) {
        ds_comm_options options = { .streams = &adds, .stream_count = 1 };
        ds_tensor *in, *out;
        assert_int_equal(ds_tensor_alloc(types[i], 1, (int64_t[]){ N }, adds, &in), DS_OK);
        assert_int_equal(ds_tensor_alloc(types[i], 1, (int64_t[]){ N }, adds, &out), DS_OK);
        assert_int_equal(ds_comm_reduce_into((const ds_tensor *const[]){ in, in }, 2, DS_REDUCE_SUM,
                                             out, &options),
                         DS_OK);
        assert_int_equal(ds_stream_synchronize(adds), DS_OK);
        assert_int_equal(ds_tensor_free(in), DS_OK);
        assert_int_equal(ds_tensor_free(out), DS_OK);
    }
    assert_int_equal(ds_stream_query(waits), DS_NOT_READY);
    *(volatile uint32_t *)word = 1;
    assert_int_equal(ds_stream_synchronize(waits), DS_OK);
    assert_int_equal(ds_ranks_finalize(ranks), DS_OK);
    assert_int_equal(ds_stream_destroy(waits), DS_OK);
    assert_int_equal(ds_stream_destroy(adds), DS_OK);
    assert_int_equal(ds_mem_pinned_free(word), DS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_group_reports_its_properties),
        cmocka_unit_test(test_a_split_groups_ranks_by_color_and_key),
        cmocka_unit_test(test_a_shrunk_group_has_the_other_ranks),
        cmocka_unit_test(test_a_grown_group_has_a_new_rank),
        cmocka_unit_test(test_a_barrier_orders_the_streams_of_all_ranks),
        cmocka_unit_test(test_a_tensor_is_passed_from_rank_to_rank),
        cmocka_unit_test(test_an_abort_ends_operations_of_all_ranks),
        cmocka_unit_test(test_an_operation_has_a_time_limit),
        cmocka_unit_test(test_a_group_loads_the_kernels_of_its_gpus),
    };
    int failed = cmocka_run_group_tests_name("ranks_groups", tests, NULL, NULL);
    return ds_shutdown() < 0 ? 1 : failed;
}
