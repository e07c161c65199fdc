/* Which launches of graphs their stream runs itself, and how nodes of an executable are set. The
   library's clock is replaced: each thread has one of its own, and the kernel sets how long it
   takes. */
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>
#define DEVSTREAM_IMPLEMENTATION
#include "os/os.h"

static _Thread_local uint64_t clock_ns;

static uint64_t read_clock(void) {
    return clock_ns += 10;
}

#define ds__now_ns read_clock
#include "devstream.h"
#include "unit.h"

enum { WORKERS = 2, BRANCHES = 4, CHAIN = 600 };

typedef struct step_args {
    uint64_t *word;
    uint64_t number;
    uint64_t ns; /* that the kernel takes */
} step_args;

typedef struct long_args {
    step_args step;
    uint64_t more[8];
} long_args;

static ds_kernel quick, slow, wide, wait_kernel, broken;
static ds_stream stream;
static uint64_t word[BRANCHES + 1];
static _Atomic int entered, opened;

static uint64_t fold(uint64_t h, uint64_t n) {
    return h * 31 + n;
}

static int step(size_t first, size_t count, const void *args) {
    const step_args *a = args;
    (void)first;
    (void)count;
    *a->word = fold(*a->word, a->number);
    clock_ns += a->ns;
    return 0;
}

/* Waits until the test opens it. */
static int wait_step(size_t first, size_t count, const void *args) {
    entered++;
    while (!opened)
        usleep(100);
    return step(first, count, args);
}

static int fail_step(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 7;
}

static ds_kernel made(const char *name, ds_kernel_fn fn, size_t size) {
    ds_kernel k;
    ok(ds_kernel_create(&(ds_kernel_desc){ .name = name, .cpu_fn = fn, .args_size = size }, &k));
    return k;
}

/* Runs a kernel until the time that it takes is known. */
static void learn(ds_kernel k, uint64_t ns) {
    uint64_t h = 0;
    long_args a = { { &h, 0, ns }, { 0 } };
    size_t size = k.id == wide.id ? sizeof(long_args) : sizeof(step_args);
    for (int i = 0; i < 5; i++)
        ok(ds_kernel_launch(k, 1, &a, size, stream));
    ok(ds_stream_synchronize(stream));
}

static int begin_with(int workers) {
    if (ds_init(&(ds_init_desc){ .cpu = &(ds_cpu_desc){ .devices = 2, .workers = workers } }) < 0)
        return 1;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &stream));
    quick = made("quick", step, sizeof(step_args));
    slow = made("slow", step, sizeof(step_args));
    wide = made("wide", step, sizeof(long_args));
    wait_kernel = made("wait", wait_step, sizeof(step_args));
    broken = made("broken", fail_step, sizeof(step_args));
    memset(word, 0, sizeof word);
    entered = opened = 0;
    return 0;
}

static int begin(void **state) {
    (void)state;
    return begin_with(WORKERS);
}

static int begin_one(void **state) {
    (void)state;
    return begin_with(1);
}

static int end(void **state) {
    ds_kernel *all[] = { &quick, &slow, &wide, &wait_kernel, &broken };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ok(ds_kernel_destroy(*all[i]));
    ok(ds_stream_destroy(stream));
    return ds_shutdown() < 0;
}

static ds_graph graph_on(int device) {
    ds_graph g;
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(device) }, &g));
    return g;
}

static ds_node_desc kernel_node(ds_kernel k, const void *args, size_t size) {
    return (
        ds_node_desc){ .kind = DS_NODE_KERNEL,
                       .u.kernel = { .kernel = k, .items = 1, .args = args, .args_size = size } };
}

static ds_graph_node add(ds_graph g, ds_kernel k, uint64_t *h, uint64_t number, uint64_t ns,
                         const ds_graph_node *deps, size_t count) {
    step_args a = { h, number, ns };
    ds_node_desc desc = kernel_node(k, &a, sizeof a);
    ds_graph_node node;
    ok(ds_graph_add(g, &desc, deps, count, &node));
    return node;
}

/* A node, branches of one node each, and a node after all of them; branch i folds into word i + 1,
   the others into word 0. */
static ds_graph fork_join(ds_kernel k, uint64_t ns, ds_graph_node branch[BRANCHES]) {
    ds_graph g = graph_on(0);
    ds_graph_node first = add(g, k, &word[0], 1, ns, NULL, 0);
    for (uint64_t i = 0; i < BRANCHES; i++)
        branch[i] = add(g, k, &word[i + 1], 10 + i, ns, &first, 1);
    add(g, k, &word[0], 2, ns, branch, BRANCHES);
    return g;
}

static ds_graph_exec executable(ds_graph g) {
    ds_graph_exec x;
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_destroy(g));
    return x;
}

static void run(ds_graph_exec x) {
    ok(ds_graph_launch(x, stream));
    ok(ds_stream_synchronize(stream));
}

/* Returns the driver's executable. */
static const ds__cpu_exec *inside(ds_graph_exec exec) {
    ds__exec *x = ds__pin(&ds__g.execs, exec.id);
    const ds__cpu_exec *native = x->native;
    ds__unpin(&ds__g.execs, x);
    return native;
}

static void set(ds_graph_exec x, ds_graph_node node, ds_kernel k, uint64_t *h, uint64_t number) {
    long_args a = { { h, number, 0 }, { 0 } };
    ds_node_desc desc = kernel_node(k, &a, k.id == wide.id ? sizeof(long_args) : sizeof(step_args));
    ok(ds_graph_exec_set_node(x, node, &desc));
}

static void test_short_branches_run_on_the_launching_stream(void **state) {
    ds_graph_node branch[BRANCHES];
    (void)state;
    learn(quick, 100);
    ds_graph_exec x = executable(fork_join(quick, 100, branch));

    run(x);

    assert_int_equal(inside(x)->launches, 1);
    assert_int_equal(inside(x)->rounds, 0);
    assert_true(word[0] == fold(fold(0, 1), 2));
    for (uint64_t i = 0; i < BRANCHES; i++)
        assert_true(word[i + 1] == 10 + i);
    ok(ds_graph_exec_destroy(x));
}

static void test_long_branches_run_in_lanes(void **state) {
    ds_graph_node branch[BRANCHES];
    (void)state;
    learn(slow, 100000);
    ds_graph_exec x = executable(fork_join(slow, 100000, branch));

    run(x);

    assert_int_equal(inside(x)->rounds, 1);
    assert_true(word[0] == fold(fold(0, 1), 2));
    ok(ds_graph_exec_destroy(x));
}

/* The first launches use lanes, because the time of the kernel is not known. */
static void test_lanes_are_given_up_when_the_kernels_prove_short(void **state) {
    ds_graph_node branch[BRANCHES];
    uint64_t want = 0;
    (void)state;
    ds_graph_exec x = executable(fork_join(quick, 100, branch));

    for (int i = 0; i < 12; i++) {
        run(x);
        want = fold(fold(want, 1), 2);
    }

    assert_true(word[0] == want);
    assert_int_equal(inside(x)->launches, 12);
    assert_in_range(inside(x)->rounds, 1, 8);
    ok(ds_graph_exec_destroy(x));
}

static void test_a_set_node_is_written_in_place(void **state) {
    ds_graph_node branch[BRANCHES];
    (void)state;
    learn(quick, 100);
    ds_graph_exec x = executable(fork_join(quick, 100, branch));
    run(x);
    const ds__cpu_plan *plan = inside(x)->plan;
    word[2] = 0;

    set(x, branch[1], quick, &word[2], 77);
    run(x);

    assert_ptr_equal(inside(x)->plan, plan);
    assert_true(word[2] == 77);
    assert_true(word[1] == fold(10, 10));
    ok(ds_graph_exec_destroy(x));
}

static void test_a_set_node_is_written_in_place_for_lanes(void **state) {
    ds_graph_node branch[BRANCHES];
    (void)state;
    learn(slow, 100000);
    ds_graph_exec x = executable(fork_join(slow, 100000, branch));
    run(x);
    const ds__cpu_plan *plan = inside(x)->plan;
    word[2] = 0;

    set(x, branch[1], slow, &word[2], 77);
    run(x);

    assert_ptr_equal(inside(x)->plan, plan);
    assert_int_equal(inside(x)->rounds, 2);
    assert_true(word[2] == 77);
    ok(ds_graph_exec_destroy(x));
}

static void test_a_set_node_may_have_more_arguments(void **state) {
    ds_graph_node branch[BRANCHES];
    (void)state;
    learn(quick, 100);
    learn(wide, 100);
    ds_graph_exec x = executable(fork_join(quick, 100, branch));
    run(x);
    memset(word, 0, sizeof word);

    set(x, branch[1], wide, &word[2], 77);
    run(x);
    run(x);

    assert_true(word[2] == fold(77, 77));
    assert_true(word[1] == fold(10, 10) && word[3] == fold(12, 12) && word[4] == fold(13, 13));
    assert_true(word[0] == fold(fold(fold(fold(0, 1), 2), 1), 2));
    ok(ds_graph_exec_destroy(x));
}

static void test_a_pending_launch_keeps_its_arguments(void **state) {
    (void)state;
    ds_graph g = graph_on(0);
    ds_graph_node first = add(g, wait_kernel, &word[0], 1, 0, NULL, 0);
    ds_graph_node last = add(g, quick, &word[1], 2, 0, &first, 1);
    ds_graph_exec x = executable(g);
    ok(ds_graph_launch(x, stream));
    while (!entered)
        usleep(100);

    set(x, last, quick, &word[1], 3);
    ok(ds_graph_launch(x, stream));
    opened = 1;
    ok(ds_stream_synchronize(stream));

    assert_true(word[1] == fold(2, 3));
    ok(ds_graph_exec_destroy(x));
}

/* Each launch has another argument, and none has begun when the last one is submitted. */
static void pending_sets(ds_graph_exec x, ds_graph_node node, ds_kernel k) {
    uint64_t want = 0;
    step_args a = { &word[0], 0, 0 };
    const ds__cpu_plan *plan = inside(x)->plan;
    word[1] = 0;
    ok(ds_kernel_launch(wait_kernel, 1, &a, sizeof a, stream));
    while (!entered)
        usleep(100);

    for (uint64_t i = 0; i < 5; i++) {
        set(x, node, k, &word[1], 100 + i);
        ok(ds_graph_launch(x, stream));
        want = fold(want, 100 + i);
    }
    ok(ds_graph_launch(x, stream));
    want = fold(want, 104);
    opened = 1;
    ok(ds_stream_synchronize(stream));

    assert_true(word[1] == want);
    assert_ptr_equal(inside(x)->plan, plan);
    ok(ds_graph_exec_destroy(x));
}

static void test_pending_launches_have_arguments_of_their_own(void **state) {
    ds_graph_node branch[BRANCHES];
    (void)state;
    learn(quick, 100);
    ds_graph_exec x = executable(fork_join(quick, 100, branch));
    run(x);
    pending_sets(x, branch[0], quick);
}

static void test_pending_launches_with_lanes_have_arguments_of_their_own(void **state) {
    ds_graph_node branch[BRANCHES];
    (void)state;
    learn(slow, 100000);
    ds_graph_exec x = executable(fork_join(slow, 100000, branch));
    run(x);
    pending_sets(x, branch[0], slow);
}

/* The first launches use lanes and are pending when the times of the kernels become known. */
static void test_pending_launches_do_not_prevent_the_change_from_lanes(void **state) {
    ds_graph_node branch[BRANCHES];
    uint64_t want = 0;
    step_args a = { &word[0], 0, 0 };
    (void)state;
    ds_graph_exec x = executable(fork_join(quick, 100, branch));
    ok(ds_kernel_launch(wait_kernel, 1, &a, sizeof a, stream));
    while (!entered)
        usleep(100);
    ok(ds_graph_launch(x, stream));
    ds_stream other;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &other));
    uint64_t h = 0;
    step_args other_args = { &h, 0, 100 };
    for (int i = 0; i < 5; i++)
        ok(ds_kernel_launch(quick, 1, &other_args, sizeof other_args, other));
    ok(ds_stream_synchronize(other));

    set(x, branch[0], quick, &word[1], 50);
    ok(ds_graph_launch(x, stream));
    opened = 1;
    ok(ds_stream_synchronize(stream));

    want = fold(fold(fold(fold(fold(0, 0), 1), 2), 1), 2);
    assert_true(word[0] == want);
    assert_true(word[1] == fold(10, 50));
    assert_int_equal(inside(x)->launches, 2);
    assert_int_equal(inside(x)->rounds, 1);
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(other));
}

static void test_launches_on_two_streams_take_turns(void **state) {
    ds_stream other;
    (void)state;
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0) }, &other));
    ds_graph g = graph_on(0);
    add(g, wait_kernel, &word[0], 1, 0, NULL, 0);
    ds_graph_exec x = executable(g);
    ok(ds_graph_launch(x, stream));
    while (!entered)
        usleep(100);

    ok(ds_graph_launch(x, other));
    usleep(20000); /* time to do wrong */
    assert_int_equal(entered, 1);
    opened = 1;
    ok(ds_stream_synchronize(other));

    assert_int_equal(entered, 2);
    assert_true(word[0] == fold(1, 1));
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(other));
}

/* The one worker is in the first branch until the second one, which only the waiting thread can
   run, has run. */
static int open_step(size_t first, size_t count, const void *args) {
    opened = 1;
    return step(first, count, args);
}

static void test_a_waiting_thread_runs_a_lane(void **state) {
    (void)state;
    ds_kernel open_kernel = made("open", open_step, sizeof(step_args));
    ds_graph g = graph_on(0);
    add(g, wait_kernel, &word[0], 1, 0, NULL, 0);
    add(g, open_kernel, &word[1], 2, 0, NULL, 0);
    ds_graph_exec x = executable(g);
    ok(ds_graph_launch(x, stream));
    while (!entered)
        usleep(100);

    ok(ds_stream_synchronize(stream));

    assert_int_equal(inside(x)->rounds, 1);
    assert_true(word[0] == 1 && word[1] == 2);
    ok(ds_graph_exec_destroy(x));
    ok(ds_kernel_destroy(open_kernel));
}

/* The one worker runs the graph. It goes on with an urgent stream, then with the rest. */
static void test_a_launch_gives_way_and_goes_on(void **state) {
    ds_stream urgent;
    uint64_t want = 0;
    (void)state;
    learn(quick, 100);
    ok(ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(0), .priority = -3 }, &urgent));
    ds_graph g = graph_on(0);
    ds_graph_node node = add(g, wait_kernel, &word[0], 0, 0, NULL, 0);
    for (uint64_t i = 1; i < CHAIN; i++)
        node = add(g, quick, &word[0], i, 0, &node, 1);
    ds_graph_exec x = executable(g);
    ok(ds_graph_launch(x, stream));
    while (!entered)
        usleep(100);

    step_args a = { &word[0], 4711, 0 };
    ok(ds_kernel_launch(quick, 1, &a, sizeof a, urgent));
    opened = 1;
    while (ds_stream_query(stream) == DS_NOT_READY) /* a wait would run the work itself */
        usleep(100);

    want = fold(fold(0, 0), 4711);
    for (uint64_t i = 1; i < CHAIN; i++)
        want = fold(want, i);
    assert_true(word[0] == want);
    ok(ds_graph_exec_destroy(x));
    ok(ds_stream_destroy(urgent));
}

/* The graph of device 1 is launched on a stream of device 0. */
static void test_a_failed_kernel_fails_the_device_of_its_node(void **state) {
    (void)state;
    ds_graph g = graph_on(1);
    ds_graph_node node = add(g, broken, &word[0], 1, 0, NULL, 0);
    add(g, quick, &word[1], 1, 0, &node, 1);
    ds_graph_exec x = executable(g);

    ok(ds_graph_launch(x, stream));
    assert_true(ds_stream_synchronize(stream) < 0);

    assert_non_null(strstr(ds_error_get_last(), "failed on cpu:1"));
    assert_true(word[1] == 0);
    ok(ds_graph_exec_destroy(x));
    ok(ds_device_reset(ds_cpu(1)));
    ok(ds_device_reset(ds_cpu(0)));
}

static void test_nodes_behind_a_failed_one_do_not_run(void **state) {
    (void)state;
    ds_graph g = graph_on(0);
    ds_graph_node node = add(g, broken, &word[0], 1, 0, NULL, 0);
    add(g, quick, &word[1], 1, 0, &node, 1);
    ds_graph_exec x = executable(g);

    ok(ds_graph_launch(x, stream));
    assert_true(ds_stream_synchronize(stream) < 0);

    assert_non_null(strstr(ds_error_get_last(), "kernel broken"));
    assert_true(word[1] == 0);
    ok(ds_graph_exec_destroy(x));
    ok(ds_device_reset(ds_cpu(0)));
}

#define WITH(start, name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH(begin, test_short_branches_run_on_the_launching_stream),
        WITH(begin, test_long_branches_run_in_lanes),
        WITH(begin, test_lanes_are_given_up_when_the_kernels_prove_short),
        WITH(begin, test_a_set_node_is_written_in_place),
        WITH(begin, test_a_set_node_is_written_in_place_for_lanes),
        WITH(begin, test_a_set_node_may_have_more_arguments),
        WITH(begin, test_a_pending_launch_keeps_its_arguments),
        WITH(begin, test_pending_launches_have_arguments_of_their_own),
        WITH(begin, test_pending_launches_with_lanes_have_arguments_of_their_own),
        WITH(begin, test_pending_launches_do_not_prevent_the_change_from_lanes),
        WITH(begin, test_launches_on_two_streams_take_turns),
        WITH(begin_one, test_a_waiting_thread_runs_a_lane),
        WITH(begin_one, test_a_launch_gives_way_and_goes_on),
        WITH(begin, test_a_failed_kernel_fails_the_device_of_its_node),
        WITH(begin, test_nodes_behind_a_failed_one_do_not_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
