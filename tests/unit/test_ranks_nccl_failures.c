/* Failures of process groups with the engine "nccl", on the stand-ins for NCCL and cudart: each
   rank is a thread with a device of its own. */
#include <errno.h>
#include <pthread.h>

static int threads_refused; /* 1: the system has no threads for devstream */

static int thread_or_none(pthread_t *out, const pthread_attr_t *how, void *(*fn)(void *),
                          void *user) {
    return threads_refused ? EAGAIN : pthread_create(out, how, fn, user);
}

#define pthread_create thread_or_none
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_ranks.h"
#undef pthread_create
#include "../ranks/nccl_threads.h"
#include "scarce.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/wait.h>

/* ---- groups ---------------------------------------------------------------------------------- */

static void time_limit(rank *me) {
    if (me->rank == 1)
        return;
    uint64_t begin = ds__now_ns();
    OK(reduce(me));
    EXPECT(ds_stream_synchronize(me->stream[0]), DS_ERR_TIMEOUT, "not complete within 300 ms");
    EXPECT(reduce(me), DS_ERR_TIMEOUT, "not complete within 300 ms");
    if (ds__now_ns() - begin > 2000 * MS)
        EXPECT(DS_ERR_FAILED, DS_OK, "");
}

static void test_late_rank_is_a_timeout(void **state) {
    (void)state;
    run(time_limit, 300 * MS, 0);
}

/* NCCL enqueues late, from a thread: the stream, which CUDA destroys at once, is gone by then. */
static void slow(rank *me) {
    ds_stream kept = me->stream[0];
    ds_stream_desc desc = { .device = me->device[0], .flags = DS_STREAM_BLOCKING };
    OK(ds_stream_create(&desc, &me->stream[0]));
    ds_ranks_options more = { .timeout_ns = 50 * MS };
    EXPECT(all_reduce_with(me, me->world, COUNT, DS_COMM_ANY_ORDER, &more), DS_ERR_TIMEOUT,
           "within the time limit");
    OK(ds_stream_destroy(me->stream[0]));
    me->stream[0] = kept;
    usleep(400000);
}

static void test_no_stream_is_used_after_a_failure(void **state) {
    (void)state;
    slowness = 200;
    run(slow, 5000 * MS, 0);
    standin_nccl_delay(slowness = 0);
}

static void aborting(rank *me) {
    if (me->rank == 1) {
        usleep(20000);
        OK(ds_ranks_abort(me->world, "the test wants it"));
        EXPECT(reduce(me), DS_ERR_ABORTED, "the test wants it");
        return;
    }
    OK(reduce(me));
    EXPECT(ds_stream_synchronize(me->stream[0]), DS_ERR_TIMEOUT, "not complete");
}

/* The other ranks do not hear of it: NCCL carries no messages. */
static void test_abort_ends_the_rank(void **state) {
    (void)state;
    run(aborting, 400 * MS, 0);
}

static void *abort_by_a_thread(void *user) {
    rank *me = user;
    usleep(50000);
    OK(ds_ranks_abort(me->world, "another thread"));
    return NULL;
}

static void waiting(rank *me) {
    pthread_t thread;
    if (me->rank != 0)
        return;
    OK(reduce(me));
    uint64_t begin = ds__now_ns();
    pthread_create(&thread, NULL, abort_by_a_thread, me);
    EXPECT(ds_stream_synchronize(me->stream[0]), DS_ERR_ABORTED, "another thread");
    if (ds__now_ns() - begin > 150 * MS)
        EXPECT(DS_ERR_FAILED, DS_OK, "");
    pthread_join(thread, NULL);
}

static void test_abort_ends_a_wait_of_the_host(void **state) {
    (void)state;
    run(waiting, 20000 * MS, 0);
}

static void asynchronous(rank *me) {
    ds__group *g = ds__group_pin(me->world);
    ds__nccl_link *link = g->comm;
    if (me->rank == 2) {
        standin_nccl_async_error((struct ncclComm *)link->own.comm, 3);
        for (int i = 0; i < 1000 && ds_ranks_get_status(me->world) == DS_OK; i++)
            usleep(1000);
        EXPECT(ds_ranks_get_status(me->world), DS_ERR_FAILED, "NCCL reports an error");
        EXPECT(reduce(me), DS_ERR_FAILED, "NCCL reports an error");
    }
    ds__group_unpin(g);
}

static void test_asynchronous_error_fails_the_group(void **state) {
    (void)state;
    run(asynchronous, 5000 * MS, 0);
}

/* An error ends the operation in its stream, which then tells of the failure. */
static void ended(rank *me) {
    ds__group *g = ds__group_pin(me->world);
    ds__nccl_link *link = g->comm;
    ds_result r;
    if (me->rank != 1) {
        OK(reduce(me));
        standin_nccl_async_error((struct ncclComm *)link->own.comm, 6);
        if (me->rank == 0) {
            EXPECT(ds_stream_synchronize(me->stream[0]), DS_ERR_ABORTED, "NCCL reports an error");
        } else {
            while ((r = ds_stream_query(me->stream[0])) == DS_NOT_READY)
                sched_yield();
            EXPECT(r, DS_ERR_ABORTED, "NCCL reports an error");
        }
    }
    ds__group_unpin(g);
}

static void test_operation_that_an_error_ends_has_failed(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        run(ended, 5000 * MS, 0);
}

static void different_counts(rank *me) {
    EXPECT(all_reduce(me, me->world, me->rank == 1 ? 2 : COUNT), DS_ERR_MISMATCH,
           "rank 1 calls all_reduce of 2 int32");
}

static void test_comparison_names_both_calls(void **state) {
    (void)state;
    run(different_counts, 5000 * MS, DS_RANKS_COMPARE);
}

static void same_counts(rank *me) {
    for (int i = 0; i < 3; i++)
        OK(reduce(me));
    expect_all(me, 81);
}

static void test_comparison_accepts_equal_calls(void **state) {
    (void)state;
    run(same_counts, 5000 * MS, DS_RANKS_COMPARE);
}

/* Adds ones on a stream of its own: that of the rank may have failed. */
static void expect_sum(rank *me, ds_ranks group, int32_t wanted) {
    int32_t sum[COUNT] = { 0 };
    int64_t count = COUNT;
    ds_stream_desc desc = { .device = me->device[0] };
    ds_tensor *t = NULL;
    ds_stream s;
    OK(ds_stream_create(&desc, &s));
    OK(ds_tensor_alloc(ds_int32(), 1, &count, s, &t));
    OK(ds_fill(t->data, 1, 4, COUNT, s));
    const ds_tensor *one = t;
    ds_comm_options o = {
        .streams = &s, .stream_count = 1, .ranks = group, .flags = DS_COMM_ANY_ORDER
    };
    OK(ds_comm_all_reduce(&one, &one, 1, DS_REDUCE_SUM, &o));
    OK(ds_copy(sum, t->data, sizeof sum, s));
    OK(ds_stream_synchronize(s));
    if (sum[0] != wanted || sum[COUNT - 1] != wanted)
        EXPECT(DS_ERR_FAILED, DS_OK, "wrong sum");
    OK(ds_tensor_free(t));
    OK(ds_stream_destroy(s));
}

/* Rank 1 is gone; the others fail and go on without it. */
static void shrinking(rank *me) {
    int gone = 1;
    ds_ranks fewer;
    if (me->rank == gone)
        return;
    OK(reduce(me));
    EXPECT(ds_stream_synchronize(me->stream[0]), DS_ERR_TIMEOUT, "not complete");
    OK(ds_ranks_shrink(me->world, &gone, 1, &fewer));
    expect_sum(me, fewer, 2);
    OK(ds_ranks_finalize(fewer));
}

/* All ranks are there, but the group has failed: it shrinks to all of them. */
static void shrinking_to_all(rank *me) {
    ds_ranks again;
    OK(ds_ranks_abort(me->world, "the test wants it"));
    pthread_barrier_wait(&all);
    OK(ds_ranks_shrink(me->world, NULL, 0, &again));
    expect_sum(me, again, RANKS);
    OK(ds_ranks_finalize(again));
}

static void test_shrink_to_all_ranks_after_an_abort(void **state) {
    (void)state;
    run(shrinking_to_all, 5000 * MS, 0);
}

/* A call that has begun before another thread's abort meets the end of the group in the engine. */
static void ending(rank *me) {
    ds__net_comm made;
    char text[DS_RANKS_ID_SIZE];
    ds__group *g = ds__group_pin(me->world);
    EXPECT(g->engine->grow(g->comm, "no id", RANKS + 1, UINT64_MAX, &made), DS_ERR_INVALID_VALUE,
           "has sent no id");
    OK(ds_ranks_abort(me->world, "the test wants it"));
    pthread_barrier_wait(&all);
    EXPECT(g->engine->split(g->comm, 0, 0, UINT64_MAX, &made), DS_ERR_ABORTED, "has failed");
    EXPECT(g->engine->grow_id(g->comm, text), DS_ERR_ABORTED, "has failed");
    EXPECT(g->engine->grow(g->comm, id, RANKS + 1, UINT64_MAX, &made), DS_ERR_ABORTED,
           "has failed");
    ds__group_unpin(g);
}

static void test_engine_refuses_calls_of_a_failed_group(void **state) {
    (void)state;
    run(ending, 5000 * MS, 0);
}

/* The graph is destroyed after the group. */
static void capturing(rank *me) {
    ds_ranks other;
    ds_graph graph;
    ds_graph_exec exec;
    OK(ds_ranks_split(me->world, 0, me->rank, &other));
    OK(ds_capture_begin(me->stream[0], DS_CAPTURE_THREAD_LOCAL));
    OK(all_reduce(me, other, COUNT));
    OK(ds_capture_end(me->stream[0], &graph));
    OK(ds_graph_instantiate(graph, NULL, &exec));
    OK(ds_graph_launch(exec, me->stream[0]));
    OK(ds_stream_synchronize(me->stream[0]));
    OK(ds_ranks_finalize(other));
    OK(ds_graph_exec_destroy(exec));
    OK(ds_graph_destroy(graph));
}

static void test_group_lives_as_long_as_its_graphs(void **state) {
    (void)state;
    run(capturing, 5000 * MS, 0);
}

static ds_result all_to_all_of_nothing(rank *me, ds_stream stream) {
    int64_t none = 0;
    ds_tensor t = *me->tensor[0];
    const ds_tensor *one = &t;
    t.shape = &none;
    ds_comm_options o = { .streams = &stream, .stream_count = 1, .ranks = me->world };
    return ds_comm_all_to_all(&one, &one, 1, &o);
}

static void gate_wait(void *open) {
    while (!atomic_load((_Atomic int *)open))
        usleep(1000);
}

/* NCCL does not order an operation without data behind those of other streams. */
static void test_operations_of_two_streams_pass_in_order(void **state) {
    (void)state;
    rank one = { .device = { { DS_DEVICE_CUDA, 0 } } }, *me = &one;
    ds_stream second;
    ds_ranks_info info;
    static _Atomic int open;
    atomic_store(&failures, 0);
    alarm(30);
    rank_begin(me);
    OK(ds_stream_create(&(ds_stream_desc){ .device = me->device[0] }, &second));
    OK(ds_ranks_id_create("nccl", id, sizeof id));
    ds_ranks_desc desc = {
        .engine = "nccl", .size = 1, .id = id, .devices = &me->device[0], .device_count = 1
    };
    OK(ds_ranks_init(&desc, &me->world));
    ds_stream first = me->stream[0];
    OK(ds_stream_launch_host_func(first, gate_wait, (void *)&open, NULL));
    OK(reduce(me));
    OK(all_to_all_of_nothing(me, second));
    usleep(50000);
    OK(ds_ranks_get_info(me->world, &info));
    assert_int_equal(info.pending, 2);
    atomic_store(&open, 1);
    OK(ds_stream_synchronize(first));
    OK(ds_stream_synchronize(second));
    OK(ds_ranks_get_info(me->world, &info));
    assert_int_equal(info.pending, 0);
    OK(ds_ranks_finalize(me->world));
    OK(ds_stream_destroy(second));
    rank_end(me);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

static void test_shrink_after_a_rank_is_gone(void **state) {
    (void)state;
    run(shrinking, 300 * MS, 0);
}

/* ---- creation -------------------------------------------------------------------------------- */

static void *join_by_file(void *user) {
    rank *me = user;
    rank_begin(me);
    OK(join(me, &me->world));
    OK(reduce(me));
    OK(ds_stream_synchronize(me->stream[0]));
    OK(ds_ranks_finalize(me->world));
    rank_end(me);
    return NULL;
}

static void test_ranks_meet_by_a_file(void **state) {
    (void)state;
    char folder[] = "/tmp/devstream-nccl-XXXXXX";
    assert_non_null(mkdtemp(folder));
    limit_ns = 5000 * MS;
    flags = 0;
    snprintf(id, sizeof id, "file:%s/id", folder);

    threads(join_by_file, NULL);

    rank one = { .device = { { DS_DEVICE_CUDA, 0 } } }, *me = &one;
    assert_int_not_equal(access(id + 5, F_OK), 0);
    FILE *old = fopen(id + 5, "w");
    fputs("old", old);
    fclose(old);
    EXPECT(join(me, &me->world), DS_ERR_ILLEGAL_STATE, "exists");
    me->rank = 1;
    EXPECT(join(me, &me->world), DS_ERR_INVALID_VALUE, "does not have an id of NCCL");
    assert_int_equal(remove(id + 5), 0);
    limit_ns = 10 * MS;
    EXPECT(join(me, &me->world), DS_ERR_TIMEOUT, "rank 0 has not written");
    assert_int_equal(atomic_load(&failures), 0);
    assert_int_equal(rmdir(folder), 0);
    ok(ds_shutdown());
}

static void test_wrong_descriptions(void **state) {
    (void)state;
    char text[DS_RANKS_ID_SIZE];
    rank one = { .device = { { DS_DEVICE_CPU, 0 } } }, *me = &one;
    atomic_store(&failures, 0);
    limit_ns = 1000 * MS;
    ok(ds_ranks_id_create("nccl", id, sizeof id));
    EXPECT(join(me, &me->world), DS_ERR_UNSUPPORTED, "needs CUDA devices");
    me->device[0].type = DS_DEVICE_CUDA;
    me->rank = RANKS;
    EXPECT(join(me, &me->world), DS_ERR_INVALID_VALUE, "rank 3 of 3 ranks");
    me->rank = 0;
    EXPECT(join(me, &me->world), DS_ERR_TIMEOUT, "not all ranks have called");
    id[7] = 'x';
    EXPECT(join(me, &me->world), DS_ERR_INVALID_VALUE, "is not of ds_ranks_id_create");
    ds_ranks_desc none = {
        .engine = "nccl", .size = 1, .devices = &me->device[0], .device_count = 1
    };
    EXPECT(ds_ranks_init(&none, &me->world), DS_ERR_INVALID_VALUE, "id is NULL");

    EXPECT(ds_ranks_id_create("nccl", text, 10), DS_ERR_INVALID_VALUE, "DS_RANKS_ID_SIZE");
    EXPECT(ds_ranks_id_create("mpi", text, sizeof text), DS_ERR_UNSUPPORTED, "needs no id");
    EXPECT(ds_ranks_id_create(NULL, text, sizeof text), DS_ERR_INVALID_VALUE, "engine or out");
    assert_int_equal(atomic_load(&failures), 0);
    ok(ds_shutdown());
}

static void *join_or_fail(void *user) {
    rank *me = user;
    rank_begin(me);
    if (join(me, &me->world) == DS_OK && reduce(me) == DS_OK)
        for (size_t i = 0; i < own; i++)
            DS_IGNORE(ds_stream_synchronize(me->stream[i]));
    DS_IGNORE(ds_ranks_finalize(me->world));
    rank_end(me);
    return NULL;
}

/* Each call of NCCL fails once: a result, no hang, nothing is left. */
static void test_each_call_may_fail(void **state) {
    (void)state;
    flags = 0;
    limit_ns = 200 * MS;
    for (own = 1; own <= OWN; own++) {
        unsigned long nth = 1 + (unsigned long)harness_first();
        do {
            ok(ds_ranks_id_create("nccl", id, sizeof id));
            standin_nccl_fail(nth, 3);
            threads(join_or_fail, NULL);
            nth += (unsigned long)harness_every();
        } while (standin_nccl_failed());
        standin_nccl_fail(0, 0);
        assert_true(nth > 8);
    }
    own = 1;
}

/* After each call of NCCL its communicator has an asynchronous error once. How often devstream asks
   for it depends on the time: the first questions are all taken, later ones with growing gaps. */
static void test_each_call_may_have_an_asynchronous_error(void **state) {
    (void)state;
    static const int codes[] = { 1, 3, 6 };
    flags = 0;
    limit_ns = (HARNESS_SLOW ? 300 : 60) * MS; /* else a busy machine ends groups before */
    for (own = 1; own <= OWN; own++) {
        unsigned long nth = 1 + (unsigned long)harness_first();
        do {
            ok(ds_ranks_id_create("nccl", id, sizeof id));
            standin_nccl_fail_async(nth, codes[nth % 3]);
            threads(join_or_fail, NULL);
            nth += (unsigned long)harness_every() + nth / 12;
        } while (standin_nccl_failed());
        standin_nccl_fail_async(0, 0);
        assert_true(nth > 16);
    }
    own = 1;
}

/* ---- libraries ------------------------------------------------------------------------------- */

/* Runs this program again with another library of NCCL; NULL: the same. Returns its exit status. */
static int run_with(const char *library, const char *test) {
    pid_t child = fork();
    if (!child) {
        if (library)
            setenv("DEVSTREAM_NCCL_LIBRARY", library, 1);
        execl("/proc/self/exe", "test_ranks_nccl_failures", "--child", test, (char *)NULL);
        _exit(9);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static char warned[1024]; /* the warnings */

static void keep_warning(const ds_log_item *item, void *user) {
    (void)user;
    if (item->level == DS_LOG_WARNING)
        snprintf(warned + strlen(warned), sizeof warned - strlen(warned), "%s\n", item->text);
}

/* A graph with an operation outlives devstream: NCCL does not end the communicator. */
static void leave_graph(rank *me) {
    ds_graph graph;
    own = 1;
    OK(ds_init(&(ds_init_desc){ .log_fn = keep_warning, .log_level = DS_LOG_WARNING }));
    OK(ds_ranks_id_create("nccl", id, sizeof id));
    ds_ranks_desc desc = { .engine = "nccl",
                           .size = 1,
                           .id = id,
                           .devices = &me->device[0],
                           .device_count = 1,
                           .label = "left" };
    rank_begin(me);
    OK(ds_ranks_init(&desc, &me->world));
    OK(ds_capture_begin(me->stream[0], DS_CAPTURE_THREAD_LOCAL));
    OK(reduce(me));
    OK(ds_capture_end(me->stream[0], &graph));
    OK(ds_ranks_finalize(me->world));
    rank_end(me);
    OK(ds_shutdown());
    if (!strstr(warned, "graphs still have operations of process group \"left\""))
        EXPECT(DS_ERR_FAILED, DS_OK, warned);
    _exit(atomic_load(&failures) != 0); /* ASan reports the communicator, which is leaked */
}

/* Without CommRevoke, an abort needs memory and a thread; else the end of the group aborts. */
static void abort_with_less(rank *me) {
    void *library = dlopen(getenv("DEVSTREAM_NCCL_LIBRARY"), RTLD_NOW);
    size_t (*live_fn)(char *, size_t) = NULL; /* the library's own */
    void *found = library ? dlsym(library, "standin_nccl_live") : NULL;
    memcpy(&live_fn, &found, sizeof live_fn);
    EXPECT(live_fn ? DS_OK : DS_ERR_FAILED, DS_OK, "");
    for (int less = 0; less < 3; less++) {
        OK(ds_init(&(ds_init_desc){ .allocator = SCARCE }));
        OK(ds_ranks_id_create("nccl", id, sizeof id));
        ds_ranks_desc desc = {
            .engine = "nccl", .size = 1, .id = id, .devices = &me->device[0], .device_count = 1
        };
        OK(ds_ranks_init(&desc, &me->world));
        scarce_begin(less == 1 ? 0 : -1);
        threads_refused = less == 2;
        OK(ds_ranks_abort(me->world, "the test wants it"));
        threads_refused = 0;
        EXPECT(scarce_end() == (less == 1) ? DS_OK : DS_ERR_FAILED, DS_OK, "");
        EXPECT(ds_ranks_get_status(me->world), DS_ERR_ABORTED, "the test wants it");
        OK(ds_ranks_finalize(me->world));
        OK(ds_shutdown());
        EXPECT(scarce_held || !live_fn || live_fn(NULL, 0) ? DS_ERR_FAILED : DS_OK, DS_OK, "");
    }
}

static int child_main(const char *test) {
    rank one = { .device = { { DS_DEVICE_CUDA, 0 } } }, *me = &one;
    limit_ns = 1000 * MS;
    if (strcmp(test, "missing") == 0) {
        EXPECT(ds_ranks_id_create("nccl", id, sizeof id), DS_ERR_UNSUPPORTED, "pip install");
    } else if (strcmp(test, "another") == 0) {
        EXPECT(ds_ranks_id_create("nccl", id, sizeof id), DS_ERR_UNSUPPORTED,
               "libm.so.6 has no function nccl");
    } else if (strcmp(test, "no version") == 0) {
        standin_nccl_fail(1, 3);
        EXPECT(ds_ranks_id_create("nccl", id, sizeof id), DS_ERR_FAILED, "ncclGetVersion of");
        OK(ds_ranks_id_create("nccl", id, sizeof id));
    } else if (strcmp(test, "graph") == 0) {
        leave_graph(me);
    } else if (strcmp(test, "abort") == 0) {
        abort_with_less(me);
    } else {
        ds_ranks fewer;
        ds__net_comm made;
        int gone = 0;
        ds_ranks_desc desc = {
            .engine = "nccl", .size = 1, .id = id, .devices = &me->device[0], .device_count = 1
        };
        ds_ranks_info info;
        char newer[DS_RANKS_ID_SIZE] = "grow:"; /* an id that a newer NCCL has made */
        OK(ds_ranks_id_create("nccl", id, sizeof id));
        strcat(newer, id);
        desc.id = newer;
        EXPECT(ds_ranks_init(&desc, &me->world), DS_ERR_UNSUPPORTED,
               "NCCL 2.18.3 cannot grow a communicator; 2.29 or newer can");
        desc.id = id;
        OK(ds_ranks_init(&desc, &me->world));
        OK(ds_ranks_get_info(me->world, &info));
        if (strcmp(info.library, "NCCL 2.18.3") != 0)
            EXPECT(DS_ERR_FAILED, DS_OK, info.library);
        OK(ds_ranks_shrink(me->world, NULL, 0, &fewer));
        OK(ds_ranks_finalize(fewer));
        ds__group *g = ds__group_pin(me->world);
        EXPECT(g->engine->shrink(g->comm, &gone, 1, 0, &made), DS_ERR_UNSUPPORTED,
               "cannot shrink a communicator");
        ds__group_unpin(g);
        OK(ds_ranks_abort(me->world, "the test wants it"));
        EXPECT(ds_ranks_shrink(me->world, NULL, 0, &fewer), DS_ERR_UNSUPPORTED,
               "cannot revoke the communicator");
        OK(ds_ranks_finalize(me->world));
    }
    OK(ds_shutdown());
    return atomic_load(&failures) != 0;
}

static void test_library_is_missing(void **state) {
    (void)state;
    assert_int_equal(run_with("/nothing/libnccl.so.2", "missing"), 0);
}

static void test_library_is_another_one(void **state) {
    (void)state;
    assert_int_equal(run_with("libm.so.6", "another"), 0);
}

static void test_library_does_not_tell_its_version(void **state) {
    (void)state;
    assert_int_equal(run_with(NULL, "no version"), 0);
}

static void test_communicator_of_a_graph_that_is_left(void **state) {
    (void)state;
    assert_int_equal(run_with(NULL, "graph"), 0);
}

/* Returns the status of a test with the old library. */
static int run_with_old(const char *test) {
    char path[1024];
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 64);
    assert_true(size > 0);
    path[size] = '\0';
    strcpy(strrchr(path, '/'), "/../lib-nccl-old/libnccl.so.2");
    const char *other = getenv("DS_TEST_NCCL_OLD"); /* for tests/defects/run.sh */
    return run_with(other ? other : path, test);
}

static void test_old_library_cannot_shrink(void **state) {
    (void)state;
    assert_int_equal(run_with_old("old"), 0);
}

static void test_abort_without_memory_or_threads(void **state) {
    (void)state;
    assert_int_equal(run_with_old("abort"), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_rank_is_a_timeout),
        cmocka_unit_test(test_no_stream_is_used_after_a_failure),
        cmocka_unit_test(test_abort_ends_the_rank),
        cmocka_unit_test(test_abort_ends_a_wait_of_the_host),
        cmocka_unit_test(test_asynchronous_error_fails_the_group),
        cmocka_unit_test(test_operation_that_an_error_ends_has_failed),
        cmocka_unit_test(test_comparison_names_both_calls),
        cmocka_unit_test(test_comparison_accepts_equal_calls),
        cmocka_unit_test(test_shrink_after_a_rank_is_gone),
        cmocka_unit_test(test_shrink_to_all_ranks_after_an_abort),
        cmocka_unit_test(test_engine_refuses_calls_of_a_failed_group),
        cmocka_unit_test(test_group_lives_as_long_as_its_graphs),
        cmocka_unit_test(test_operations_of_two_streams_pass_in_order),
        cmocka_unit_test(test_ranks_meet_by_a_file),
        cmocka_unit_test(test_wrong_descriptions),
        cmocka_unit_test(test_each_call_may_fail),
        cmocka_unit_test(test_each_call_may_have_an_asynchronous_error),
        cmocka_unit_test(test_library_is_missing),
        cmocka_unit_test(test_library_is_another_one),
        cmocka_unit_test(test_library_does_not_tell_its_version),
        cmocka_unit_test(test_communicator_of_a_graph_that_is_left),
        cmocka_unit_test(test_old_library_cannot_shrink),
        cmocka_unit_test(test_abort_without_memory_or_threads),
    };
    setenv("STANDIN_DEVICES", "8", 1);
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child_main(argv[2]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    pthread_barrier_init(&all, NULL, RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
