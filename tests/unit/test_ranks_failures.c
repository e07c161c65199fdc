/* Failures of process groups with the engine "local": each rank is a thread. tests/ranks/hangs.py
   has the same mistakes with processes. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#include "unit.h"
#include "../ranks/expect.h"

#include <pthread.h>
#include <sys/wait.h>

enum { RANKS = 3, COUNT = 4, WRONG = 1, ENTRIES_AT = 4096 + (1 << 18), ENTRY = 192 };

#define MS 1000000ull

typedef struct rank {
    int rank;
    void (*test_fn)(struct rank *me);
    ds_ranks world;
    ds_stream stream;
    ds_device device;
    float data[COUNT * RANKS];
    float sum[COUNT * RANKS];
} rank;

static unsigned flags;
static uint64_t limit_ns;
static char record[128];
static char folder[64];
static pthread_barrier_t all;

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "rank %d, line %d: %s\n", me->rank, __LINE__, #condition); \
            atomic_fetch_add(&failures, 1);                                            \
        }                                                                              \
    } while (0)

/* ---- calls ----------------------------------------------------------------------------------- */

static ds_result join(rank *me, const char *id, uint64_t timeout_ns, ds_ranks *out) {
    ds_ranks_desc desc = { .engine = "local",
                           .rank = me->rank,
                           .size = RANKS,
                           .id = id,
                           .devices = &me->device,
                           .device_count = 1,
                           .flags = flags,
                           .timeout_ns = timeout_ns,
                           .record = record };
    return ds_ranks_init(&desc, out);
}

static ds_result all_reduce(rank *me, ds_ranks group, ds_dtype dtype, int64_t count,
                            uint64_t timeout_ns) {
    ds_ranks_options more = { .timeout_ns = timeout_ns };
    ds_comm_options o = {
        .streams = &me->stream, .stream_count = 1, .ranks = group, .ranks_options = &more
    };
    ds_tensor in = ds_tensor_of(me->data, me->device, dtype, 1, &count);
    ds_tensor out = ds_tensor_of(me->sum, me->device, dtype, 1, &count);
    const ds_tensor *from = &in;
    const ds_tensor *to = &out;
    return ds_comm_all_reduce(&from, &to, 1, DS_REDUCE_SUM, &o);
}

static ds_result reduce(rank *me) {
    return all_reduce(me, me->world, ds_float32(), COUNT, 0);
}

static ds_result broadcast(rank *me, size_t root) {
    int64_t count = COUNT;
    ds_comm_options o = { .streams = &me->stream,
                          .stream_count = 1,
                          .stream = me->stream,
                          .ranks = me->world,
                          .root = root };
    ds_tensor t = ds_tensor_of(me->data, me->device, ds_float32(), 1, &count);
    const ds_tensor *one = &t;
    return ds_comm_broadcast_into((size_t)me->rank == root ? one : NULL, &one, 1, &o);
}

static ds_result barrier(rank *me) {
    ds_comm_options o = { .streams = &me->stream, .stream_count = 1, .ranks = me->world };
    return ds_ranks_barrier(&o);
}

static void *rank_main(void *user) {
    rank *me = user;
    ds_stream_desc desc = { .device = me->device };
    OK(join(me, "failures", limit_ns, &me->world));
    OK(ds_stream_create(&desc, &me->stream));
    for (int i = 0; i < COUNT * RANKS; i++)
        me->data[i] = (float)(me->rank + 1);
    OK(reduce(me));
    OK(ds_stream_synchronize(me->stream));
    memset(me->sum, 0, sizeof me->sum);
    pthread_barrier_wait(&all);

    me->test_fn(me);

    pthread_barrier_wait(&all);
    OK(ds_ranks_finalize(me->world));
    return NULL;
}

/* Runs a test on all ranks. A rank that waits for ever ends the program. */
static void run(void (*test_fn)(rank *me), uint64_t timeout_ns, unsigned test_flags) {
    static rank ranks[RANKS];
    pthread_t threads[RANKS];
    memset(ranks, 0, sizeof ranks);
    atomic_store(&failures, 0);
    flags = test_flags;
    limit_ns = timeout_ns;
    alarm(20);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].rank = i;
        ranks[i].device = (ds_device){ DS_DEVICE_CPU, i };
        ranks[i].test_fn = test_fn;
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
}

/* ---- time limits ----------------------------------------------------------------------------- */

static void late(rank *me) {
    if (me->rank == WRONG)
        ds__os_sleep(600 * MS);
    ds_result r = reduce(me);
    if (r < 0) {
        CHECK(me->rank == WRONG);
        CHECK(strstr(ds_error_get_last(), ": ds_comm_all_reduce: "));
    }
    EXPECT(ds_stream_synchronize(me->stream), DS_ERR_TIMEOUT, "not complete within 300 ms");
    EXPECT(reduce(me), DS_ERR_TIMEOUT, "ds_comm_all_reduce at ");
    CHECK(strstr(strstr(ds_error_get_last(), " at "), "test_ranks_failures.c:"));
    EXPECT(ds_ranks_get_status(me->world), DS_ERR_TIMEOUT, "ds_comm_all_reduce at ");
    for (int i = 0; i < COUNT; i++)
        CHECK(me->sum[i] <= 0); /* nothing was moved */
}

static void test_late_rank_gets_the_cause(void **state) {
    (void)state;
    run(late, 300 * MS, 0);
}

static void own_limit(rank *me) {
    if (me->rank == WRONG)
        ds__os_sleep(500 * MS);
    if (me->rank != WRONG) {
        OK(all_reduce(me, me->world, ds_float32(), COUNT, 200 * MS));
        EXPECT(ds_stream_synchronize(me->stream), DS_ERR_TIMEOUT, "not complete within 200 ms");
    }
    EXPECT(ds_ranks_get_status(me->world), DS_ERR_TIMEOUT, "not complete within 200 ms");
}

static void test_operation_has_a_limit_of_its_own(void **state) {
    (void)state;
    run(own_limit, 8000 * MS, 0);
}

static void hold(void *unused) {
    (void)unused;
    ds__os_sleep(700 * MS);
}

static void busy(rank *me) {
    ds_stream_desc desc = { .device = me->device };
    if (me->rank != WRONG) {
        ds__os_sleep(800 * MS);
        EXPECT(ds_ranks_get_status(me->world), DS_ERR_TIMEOUT, "not started within 300 ms");
        return;
    }
    OK(ds_stream_launch_host_func(me->stream, hold, NULL, NULL));
    OK(all_reduce(me, me->world, ds_float32(), COUNT, 9000 * MS));
    OK(ds_stream_create(&desc, &me->stream));
    OK(barrier(me));
    EXPECT(ds_stream_synchronize(me->stream), DS_ERR_TIMEOUT,
           "because operation 2, ds_comm_all_reduce at ");
}

static void test_stream_of_an_earlier_operation_is_late(void **state) {
    (void)state;
    run(busy, 300 * MS, 0);
}

static void late_split(rank *me) {
    ds_ranks other;
    if (me->rank == WRONG)
        ds__os_sleep(500 * MS);
    EXPECT(ds_ranks_split(me->world, 0, 0, &other), DS_ERR_TIMEOUT, "");
    EXPECT(ds_ranks_get_status(me->world), DS_ERR_TIMEOUT, "ds_ranks_split at ");
}

static void test_late_split_fails_the_group(void **state) {
    (void)state;
    run(late_split, 200 * MS, 0);
}

/* ---- differences ----------------------------------------------------------------------------- */

static int difference; /* the mistake of the rank */

static void differ(rank *me) {
    static const char *const words[] = { "all_reduce of 3 float32", "all_reduce of 4 int32",
                                         "(operator 0, root 1)", "rank 1 calls all_reduce" };
    int wrong = me->rank == WRONG;
    uint64_t since = ds__now_ns();
    OK(ds_stream_launch_host_func(me->stream, hold, NULL, NULL));
    if (difference == 0)
        OK(all_reduce(me, me->world, ds_float32(), wrong ? 3 : 4, 0));
    else if (difference == 1)
        OK(all_reduce(me, me->world, wrong ? ds_int32() : ds_float32(), 4, 0));
    else if (difference == 2)
        OK(broadcast(me, wrong ? 1 : 0));
    else if (wrong)
        OK(reduce(me));
    else
        OK(barrier(me));
    EXPECT(ds_stream_synchronize(me->stream), DS_ERR_MISMATCH, "rank 0 calls ");
    CHECK(strstr(ds_error_get_last(), words[difference]));
    CHECK(strstr(ds_error_get_last(), "test_ranks_failures.c:"));
    CHECK(ds__now_ns() - since < 3000ull * MS); /* at once: the limit is far */
    EXPECT(reduce(me), DS_ERR_MISMATCH, "but rank 1 calls ");
}

static void test_comparison_names_both_calls(void **state) {
    (void)state;
    for (difference = 0; difference < 4; difference++)
        run(differ, 8000 * MS, DS_RANKS_COMPARE);
}

/* ---- aborts ---------------------------------------------------------------------------------- */

static _Atomic uint64_t aborted;

static void *aborter(void *user) {
    rank *me = user;
    ds__os_sleep(100 * MS);
    atomic_store(&aborted, ds__now_ns());
    OK(ds_ranks_abort(me->world, "the disk is full"));
    OK(ds_ranks_abort(me->world, "another reason"));
    return NULL;
}

/* Rank 2 has no operation, and hears of the abort when it asks. */
static void abort_by_a_thread(rank *me) {
    pthread_t thread;
    if (me->rank == WRONG)
        CHECK(pthread_create(&thread, NULL, aborter, me) == 0);
    if (me->rank < 2) {
        OK(reduce(me));
        EXPECT(ds_stream_synchronize(me->stream), DS_ERR_ABORTED, "the disk is full");
        CHECK(ds__now_ns() - atomic_load(&aborted) < 100ull * MS);
    }
    if (me->rank == WRONG)
        pthread_join(thread, NULL);
    pthread_barrier_wait(&all);
    EXPECT(ds_ranks_get_status(me->world), DS_ERR_ABORTED,
           "rank 1 has aborted group \"world\" at ");
    EXPECT(reduce(me), DS_ERR_ABORTED, "the disk is full");
    if (me->rank != WRONG)
        CHECK(strstr(ds_error_get_last(), ": rank 1: "));
}

static void test_abort_by_a_thread_ends_all_waits(void **state) {
    (void)state;
    run(abort_by_a_thread, 5000 * MS, 0);
}

/* ---- streams, processes, ranks --------------------------------------------------------------- */

static int fails(void *unused) {
    (void)unused;
    return 5;
}

static void failed_stream(rank *me) {
    if (me->rank == WRONG)
        OK(ds_stream_launch_closure(me->stream, fails, NULL, 0, NULL));
    ds_result r = reduce(me);
    CHECK(r == DS_OK || r == DS_ERR_FAILED);
    if (me->rank != WRONG)
        EXPECT(ds_stream_synchronize(me->stream), DS_ERR_FAILED, "on rank 1 of 3: ");
    pthread_barrier_wait(&all); /* the others have waited, so the stream of the rank got there */
    EXPECT(ds_ranks_get_status(me->world), DS_ERR_FAILED, "on rank 1 of 3: ");
}

static void test_stream_that_has_failed_fails_the_group(void **state) {
    (void)state;
    run(failed_stream, 5000 * MS, 0);
    for (int i = 0; i < RANKS; i++)
        DS_IGNORE(ds_device_reset((ds_device){ DS_DEVICE_CPU, i }));
}

/* The group of the ranks that are left computes; the rank that is gone does nothing. */
static void shrink(rank *me) {
    int gone = WRONG;
    ds_ranks rest;
    ds_stream_desc desc = { .device = me->device };
    if (me->rank == WRONG)
        return;
    OK(reduce(me));
    EXPECT(ds_stream_synchronize(me->stream), DS_ERR_TIMEOUT, "on rank ");
    EXPECT(ds_ranks_shrink(me->world, &me->rank, 1, &rest), DS_ERR_INVALID_VALUE, "another rank");
    OK(ds_ranks_shrink(me->world, &gone, 1, &rest));
    OK(ds_stream_create(&desc, &me->stream));
    OK(all_reduce(me, rest, ds_float32(), COUNT, 0));
    OK(ds_stream_synchronize(me->stream));
    CHECK((int)me->sum[0] == 1 + 3);
    OK(ds_ranks_finalize(rest));
}

static void test_shrink_after_a_rank_is_gone(void **state) {
    (void)state;
    run(shrink, 300 * MS, 0);
}

static void second_join(rank *me) {
    ds_ranks other;
    rank as = *me;
    as.rank = me->rank == 2 ? 1 : me->rank;
    ds__os_sleep(me->rank == 2 ? 100 * MS : 0);
    EXPECT(
        join(&as, "twice", 400 * MS, &other), me->rank == 2 ? DS_ERR_ILLEGAL_STATE : DS_ERR_TIMEOUT,
        me->rank == 2 ? "rank 1 has joined group \"twice\" already" : "2 of 3 ranks have joined");
    OK(ds_ranks_get_status(me->world));
}

static void test_second_join_is_refused(void **state) {
    (void)state;
    run(second_join, 5000 * MS, 0);
}

static void forked(rank *me) {
    if (me->rank == WRONG) {
        int status = -1;
        pid_t child = fork();
        if (child == 0)
            _exit(reduce(me) == DS_ERR_FORKED && ds_ranks_get_status(me->world) == DS_ERR_FORKED &&
                          ds_ranks_abort(me->world, "") == DS_ERR_FORKED
                      ? 7
                      : 1);
        (void)waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    OK(reduce(me));
    OK(ds_stream_synchronize(me->stream));
    CHECK((int)me->sum[0] == 1 + 2 + 3);
}

static void test_forked_child_is_refused(void **state) {
    (void)state;
    run(forked, 5000 * MS, 0);
}

/* ---- flight recorder ------------------------------------------------------------------------- */

static void record_an_abort(rank *me) {
    ds_ranks sub;
    OK(ds_ranks_split(me->world, me->rank == 0 ? -1 : 0, -me->rank, &sub));
    if (me->rank == WRONG) {
        OK(all_reduce(me, sub, ds_float32(), COUNT, 0));
        OK(ds_ranks_abort(sub, "the first group"));
        DS_IGNORE(ds_stream_synchronize(me->stream));
    }
    ds_result r = reduce(me);
    CHECK(r == DS_OK || r == DS_ERR_ABORTED || r == DS_ERR_FAILED);
    CHECK(ds_stream_synchronize(me->stream) < 0);
    OK(ds_ranks_finalize(sub));
}

static size_t read_file(int number, unsigned char *to, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/rank%d", folder, number);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(to, 1, size, f);
    fclose(f);
    (void)unlink(path);
    return n;
}

/* All operations have ended in the file. A split group lists its ranks by those of the files. */
static void test_failures_end_operations_in_the_recorder(void **state) {
    static unsigned char file[ENTRIES_AT + 16 * ENTRY];
    (void)state;
    strcpy(folder, "/tmp/ds-failures-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(record, sizeof record, "%s/rank%%r", folder);

    run(record_an_abort, 5000 * MS, 0);

    record[0] = 0;
    for (int i = 0; i < RANKS; i++) {
        int32_t world[2];
        int entries = 0;
        uint32_t size;
        assert_int_equal(read_file(i, file, sizeof file), sizeof file);
        for (const unsigned char *e = file + ENTRIES_AT; e[0] || e[1]; e += ENTRY, entries++)
            assert_true(e[0] >= 3 && e[0] <= 5); /* complete, failed, abandoned */
        assert_true(entries >= 2);
        memcpy(&size, file + 4096 + 4, sizeof size);
        memcpy(world, file + 4096 + size + 120, sizeof world);
        if (i) {
            assert_int_equal(world[0], 2); /* by their keys */
            assert_int_equal(world[1], 1);
            assert_string_equal(file + 4096 + size + 56, "world, split 1, color 0");
        }
    }
    (void)rmdir(folder);
}

/* ---- parts of failures ----------------------------------------------------------------------- */

static void hold_shortly(void *unused) {
    (void)unused;
    ds__os_sleep(200 * MS);
}

/* Two operations end at the same time, the second one with a failure: the stream of the first has
   not failed. */
static void one_of_two(rank *me) {
    ds_stream_desc desc = { .device = me->device };
    ds_stream first = me->stream;
    if (me->rank == WRONG)
        OK(ds_stream_launch_host_func(first, hold_shortly, NULL, NULL));
    OK(reduce(me));
    OK(ds_stream_create(&desc, &me->stream));
    OK(me->rank == WRONG ? barrier(me) : broadcast(me, 0));
    EXPECT(ds_stream_synchronize(me->stream), DS_ERR_MISMATCH, "differ in kind");
    OK(ds_stream_synchronize(first));
    for (int i = 0; i < COUNT; i++)
        CHECK(me->sum[i] == 6);
}

static void test_operation_before_a_failed_one_is_complete(void **state) {
    (void)state;
    run(one_of_two, 8000 * MS, 0);
}

/* The memory for the rest of a collective is missing on a rank. */
static void in_part(rank *me) {
    int64_t count = 3 << 20;
    int64_t stride = 2;
    ds_comm_options o = { .streams = &me->stream, .stream_count = 1, .ranks = me->world };
    float *in = calloc((size_t)count, sizeof *in);
    float *out = calloc((size_t)(count * stride), sizeof *out);
    ds_tensor from = ds_tensor_of(in, me->device, ds_float32(), 1, &count);
    ds_tensor to = ds_tensor_of(out, me->device, ds_float32(), 1, &count);
    const ds_tensor *ins = &from;
    const ds_tensor *outs = &to;
    to.strides = &stride;
    if (me->rank == WRONG) {
        OK(ds_mem_empty_cache(me->device, NULL));
        size_t reserved = ds_mem_get_reserved(me->device);
        OK(ds_mem_set_limit(me->device, reserved + (14 << 20)));
        EXPECT(ds_comm_all_reduce(&ins, &outs, 1, DS_REDUCE_SUM, &o), DS_ERR_LIMIT_EXCEEDED, "");
        OK(ds_mem_set_limit(me->device, 0));
        DS_IGNORE(ds_stream_synchronize(me->stream));
    } else {
        ds_result r = ds_comm_all_reduce(&ins, &outs, 1, DS_REDUCE_SUM, &o);
        CHECK(ds_stream_synchronize(me->stream) < 0 || r < 0);
    }
    EXPECT(ds_ranks_get_status(me->world), DS_ERR_LIMIT_EXCEEDED, "was enqueued in part");
    pthread_barrier_wait(&all);
    free(in);
    free(out);
}

static void test_collective_that_is_enqueued_in_part_fails_the_group(void **state) {
    (void)state;
    run(in_part, 8000 * MS, 0);
}

/* An exchange with two other ranks: the transfer that fits does not hide the one that does not. */
static void two_transfers(rank *me) {
    static void *comms[RANKS];
    float box[2 * COUNT] = { 0 };
    ds__net_comm comm;
    ds__net_request request;
    const ds__ranks_engine *e = &ds__local_engine;
    ds_ranks_desc desc = { .rank = me->rank, .size = RANKS, .id = "transfers" };
    OK(e->init(&desc, DS__FOREVER, &comm));
    comms[me->rank] = comm.comm;
    pthread_barrier_wait(&all);
    if (me->rank == 0) {
        ds__net_transfer in[] = { { box, 16, 1, 0, 1 }, { box + COUNT, 16, 2, 0, 1 } };
        ds__net_transfer wrong = { me->data, 8, 0, 0, 0 };
        ds__net_transfer right = { me->data, 16, 0, 0, 0 };
        ds__net_op op = { .kind = DS__NET_EXCHANGE, .transfers = in, .transfer_count = 2 };
        ds__net_op send = { .kind = DS__NET_EXCHANGE, .transfers = &wrong, .transfer_count = 1 };
        ds__net_request other;
        OK(e->start(comms[0], &op, &request));
        EXPECT(e->start(comms[1], &send, &other), DS_ERR_MISMATCH, "rank 1 sends 8 bytes");
        send.transfers = &right;
        OK(e->start(comms[2], &send, &other));
        OK(e->test(comms[2], &other));
        EXPECT(e->test(comms[0], &request), DS_ERR_MISMATCH, "differ in size");
    }
    pthread_barrier_wait(&all);
    e->destroy(comm.comm, 0);
}

static void test_failure_of_a_transfer_is_kept(void **state) {
    (void)state;
    run(two_transfers, 8000 * MS, 0);
}

static int begin(void **state) {
    (void)state;
    setenv("DEVSTREAM_CPU_DEVICES", "3", 1);
    return pthread_barrier_init(&all, NULL, RANKS);
}

static int end(void **state) {
    (void)state;
    pthread_barrier_destroy(&all);
    DS_IGNORE(ds_shutdown()); /* returns the failure of a stream */
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_rank_gets_the_cause),
        cmocka_unit_test(test_operation_has_a_limit_of_its_own),
        cmocka_unit_test(test_stream_of_an_earlier_operation_is_late),
        cmocka_unit_test(test_late_split_fails_the_group),
        cmocka_unit_test(test_comparison_names_both_calls),
        cmocka_unit_test(test_abort_by_a_thread_ends_all_waits),
        cmocka_unit_test(test_shrink_after_a_rank_is_gone),
        cmocka_unit_test(test_second_join_is_refused),
        cmocka_unit_test(test_forked_child_is_refused),
        cmocka_unit_test(test_failures_end_operations_in_the_recorder),
        cmocka_unit_test(test_stream_that_has_failed_fails_the_group),
        cmocka_unit_test(test_operation_before_a_failed_one_is_complete),
        cmocka_unit_test(test_collective_that_is_enqueued_in_part_fails_the_group),
        cmocka_unit_test(test_failure_of_a_transfer_is_kept),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
