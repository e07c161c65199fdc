/* Options of the CPU driver that change where its threads run, and what the program's threads may
   read. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "comm.h"
#include "devstream_rng.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- processors of the driver's threads ----------------------------------------------------- */

/* How many threads of the driver may run on the first listed processor only, on the second one
   only, and on both. */
typedef struct bound_threads {
    int first, second, both, other;
} bound_threads;

/* Two processors that this process may use. Returns 0 if there is one only. */
static int two_processors(int out[2]) {
    cpu_set_t mask;
    int n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET((size_t)i, &mask))
            out[n++] = i;
    return n == 2;
}

/* Returns 1 for a thread of the library that runs. */
static int is_library_thread(const char *task) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    int read = fgets(name, sizeof name, f) != NULL;
    fclose(f);
    return read && strcmp(name, "devstream\n") == 0;
}

static bound_threads read_bound_threads(const int list[2]) {
    bound_threads n = { 0 };
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *one; (one = readdir(folder)) != NULL;) {
        cpu_set_t mask;
        if (*one->d_name < '0' || *one->d_name > '9' || !is_library_thread(one->d_name) ||
            sched_getaffinity((pid_t)atoi(one->d_name), sizeof mask, &mask))
            continue;
        int a = CPU_ISSET((size_t)list[0], &mask) != 0;
        int b = CPU_ISSET((size_t)list[1], &mask) != 0;
        int *is = a && b ? &n.both : a ? &n.first : b ? &n.second : &n.other;
        ++*(CPU_COUNT(&mask) == a + b ? is : &n.other);
    }
    closedir(folder);
    return n;
}

/* The threads bind themselves when they begin to run. */
static void expect_bound_threads(const int list[2], bound_threads want) {
    bound_threads n = { 0 };
    for (int i = 0; i < 5000; i++) {
        n = read_bound_threads(list);
        /* the monitor may have started a second thread for host functions */
        if (n.first >= want.first && n.second == want.second && n.both == want.both &&
            n.other == want.other)
            return;
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    fail_msg("%d threads on %d, %d on %d, %d on both, %d others; expected are %d, %d, %d, %d",
             n.first, list[0], n.second, list[1], n.both, n.other, want.first, want.second,
             want.both, want.other);
}

static void read_own_mask(void *mask) {
    if (sched_getaffinity(0, sizeof(cpu_set_t), mask))
        CPU_ZERO((cpu_set_t *)mask);
}

static void test_workers_are_bound_in_the_order_of_the_list(void **state) {
    int cpu[2];
    char list[32];
    (void)state;
    if (!two_processors(cpu))
        skip();
    snprintf(list, sizeof list, "%d,%d", cpu[1], cpu[0]);
    ds_cpu_desc desc = { .workers = 3, .affinity = list };

    harness_restart(&(ds_init_desc){ .cpu = &desc });
    memset(list, 'x', sizeof list - 1); /* ds_init has copied it */
    ok(ds_device_synchronize(harness_device(0)));

    /* and the monitor on both */
    expect_bound_threads((int[]){ cpu[1], cpu[0] }, (bound_threads){ 2, 1, 1, 0 });
    harness_restart(NULL);
}

static void test_host_functions_may_use_each_listed_processor(void **state) {
    int cpu[2];
    char list[32];
    cpu_set_t own, seen;
    (void)state;
    if (!two_processors(cpu))
        skip();
    snprintf(list, sizeof list, "%d", cpu[1]);
    ds_cpu_desc desc = { .affinity = list };
    read_own_mask(&own);
    harness_restart(&(ds_init_desc){ .cpu = &desc });
    ds_stream s = harness_stream(0, 0);

    ok(ds_stream_launch_host_func(s, read_own_mask, &seen, NULL));
    ok(ds_stream_synchronize(s));

    assert_int_equal(CPU_COUNT(&seen), 1);
    assert_true(CPU_ISSET((size_t)cpu[1], &seen));
    /* one worker per processor, but at least two; the monitor and a thread for host functions */
    expect_bound_threads((int[]){ cpu[1], cpu[0] }, (bound_threads){ 4, 0, 0, 0 });
    read_own_mask(&seen);
    assert_true(CPU_EQUAL(&own, &seen));
    harness_restart(NULL);
}

static void test_the_environment_lists_processors(void **state) {
    int cpu[2];
    char list[32];
    cpu_set_t own, seen;
    (void)state;
    if (!two_processors(cpu))
        skip();
    read_own_mask(&own);
    snprintf(list, sizeof list, "%d-%d", cpu[0], cpu[0]);
    setenv("DEVSTREAM_CPU_AFFINITY", list, 1);

    harness_restart(NULL);
    ok(ds_device_synchronize(harness_device(0)));
    expect_bound_threads(cpu, (bound_threads){ 3, 0, 0, 0 });

    /* the options count more */
    ds_cpu_desc desc = { .affinity = "" };
    harness_restart(&(ds_init_desc){ .cpu = &desc });
    ds_stream s = harness_stream(0, 0);
    ok(ds_stream_launch_host_func(s, read_own_mask, &seen, NULL));
    ok(ds_stream_synchronize(s));
    assert_true(CPU_EQUAL(&own, &seen));

    harness_shutdown();
    setenv("DEVSTREAM_CPU_AFFINITY", "all", 1);
    refused(ds_device_synchronize(ds_cpu(0)), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "DEVSTREAM_CPU_AFFINITY is \"all\""));
    unsetenv("DEVSTREAM_CPU_AFFINITY");
    harness_restart(NULL);
}

static void test_wrong_lists_of_processors_are_refused(void **state) {
    static const char *const wrong[] = { "x",          "0,",     ",0",   "0-",   "-1",
                                         "0--0",       "1-0",    "0 ",   "0;0",  "4294967296",
                                         "0-99999999", "0-8191", "0,,0", "8191", "8192" };
    char many[8192] = "";
    int cpu[2];
    (void)state;
    (void)two_processors(cpu);
    harness_shutdown();

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ds_cpu_desc desc = { .affinity = wrong[i] };
        refused(ds_init(&(ds_init_desc){ .cpu = &desc }), DS_ERR_INVALID_VALUE);
        char part[64];
        snprintf(part, sizeof part, "ds_cpu_desc.affinity is \"%s\"", wrong[i]);
        assert_non_null(strstr(ds_error_get_last(), part));
        assert_non_null(strstr(ds_error_get_last(), "allowed"));
    }
    for (size_t at = 0, i = 0; i <= 1024; i++)
        at += (size_t)snprintf(many + at, sizeof many - at, "%s%d", i ? "," : "", cpu[0]);
    ds_cpu_desc desc = { .affinity = many };
    refused(ds_init(&(ds_init_desc){ .cpu = &desc }), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "at most 1024 processors are allowed"));
    harness_restart(NULL);
}

/* ---- device memory that the host cannot reach ----------------------------------------------- */

enum { PART = 4096 }; /* bytes of small blocks */

/* Returns 1 if this process may read the byte: the system reads it for a pipe, and reports EFAULT
   instead of a signal. */
static int reachable(const void *at) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
        return -1;
    ssize_t n = write(ends[1], at, 1);
    int error = errno;
    close(ends[0]);
    close(ends[1]);
    return n == 1 ? 1 : error == EFAULT ? 0 : -1;
}

static void restart_unreachable(void) {
    ds_cpu_desc desc = { .devices = 2, .flags = DS_CPU_UNREACHABLE };
    harness_restart(&(ds_init_desc){ .cpu = &desc });
}

static void *mem_block(size_t size, ds_stream s) {
    void *p = NULL;
    ok(ds_mem_alloc(size, s, &p));
    return p;
}

/* What a thread saw of a block. */
typedef struct sight {
    const void *at;
    int seen;
} sight;

static void look_fn(void *user) {
    sight *l = user;
    l->seen = reachable(l->at);
}

static void look_callback(ds_stream s, ds_result status, void *user) {
    (void)s;
    (void)status;
    look_fn(user);
}

static int look_closure(void *p) {
    look_fn(*(sight **)p);
    return 0;
}

/* The accesses of the test below, each in a process of its own. */
enum { READ_DEVICE, WRITE_DEVICE, READ_BLOCK, WRITE_BLOCK, READ_IN_HOST_FN, WRONG_ACCESSES };

static volatile unsigned char *volatile wrong_at;

/* A fault at another address, and a death by another cause, have other statuses. */
static void at_fault(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    (void)context;
    _exit(info->si_addr == (void *)wrong_at ? 77 : 78);
}

static void read_wrong(void *unused) {
    (void)unused;
    (void)*wrong_at;
}

static void access_wrongly(int kind) {
    struct sigaction on_fault = { .sa_sigaction = at_fault, .sa_flags = SA_SIGINFO };
    ds_stream s = harness_stream(0, 0);
    void *p;
    if (kind == READ_DEVICE || kind == WRITE_DEVICE)
        ok(ds_device_alloc(harness_device(0), PART, &p));
    else
        p = mem_block(PART, s);
    ok(ds_fill(p, 7, 1, PART, s));
    ok(ds_stream_synchronize(s));
    wrong_at = (volatile unsigned char *)p + 100;
    if (sigaction(SIGSEGV, &on_fault, NULL))
        _exit(79);

    if (kind == WRITE_DEVICE || kind == WRITE_BLOCK)
        *wrong_at = 1;
    else if (kind == READ_IN_HOST_FN)
        ok(ds_stream_launch_host_func(s, read_wrong, NULL, NULL));
    else
        read_wrong(NULL);
    ok(ds_stream_synchronize(s));
    _exit(80);
}

static void test_a_wrong_access_to_device_memory_is_a_fault(void **state) {
    const char *kind = getenv("DS_TEST_WRONG_ACCESS");
    (void)state;
    if (kind)
        access_wrongly(atoi(kind));

    for (int i = 0; i < WRONG_ACCESSES; i++) {
        char setting[40];
        snprintf(setting, sizeof setting, "DS_TEST_WRONG_ACCESS=%d", i);
        const char *const settings[] = {
            "DS_TEST_ALONE=test_a_wrong_access_to_device_memory_is_a_fault",
            "DEVSTREAM_CPU_UNREACHABLE=1", setting, NULL
        };
        FILE *output = tmpfile();
        assert_non_null(output);
        int status = harness_respawn(settings, output);
        fclose(output);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 77)
            fail_msg("the process with access %d ended with status %#x", i, (unsigned)status);
    }
}

static void test_device_memory_is_closed_when_a_wait_returns(void **state) {
    void *block[3];
    sight inside = { 0 }, at_host = { 0 }, at_callback = { 0 };
    (void)state;
    restart_unreachable();
    ds_device d = harness_device(0);
    ds_stream s = harness_stream(0, 0);
    ds_event e;
    ok(ds_event_create(0, NULL, &e));
    ok(ds_device_alloc(d, 100, &block[0]));
    block[1] = mem_block(PART, s);
    block[2] = mem_block((size_t)30 << 20, s);

    for (int i = 0; i < 600; i++) {
        void *p = block[i % 3];
        sight *in = &inside;
        inside.at = at_host.at = at_callback.at = p;
        inside.seen = at_host.seen = at_callback.seen = -1;
        ok(ds_fill(p, (uint32_t)i, 1, 100, s));
        if (i % 2)
            ok(ds_stream_launch_closure(s, look_closure, &in, sizeof in, NULL));
        if (i % 8 == 3) {
            ok(ds_stream_launch_host_func(s, look_fn, &at_host, NULL));
            ok(ds_stream_add_callback(s, look_callback, &at_callback, NULL));
        }
        if (i % 5 == 0) {
            ok(ds_event_record(e, s));
            ok(ds_event_synchronize(e));
        } else {
            ok(ds_stream_synchronize(s));
        }
        assert_int_equal(reachable(p), 0);
        assert_int_equal(reachable((char *)p + 99), 0);
        if (i % 2)
            assert_int_equal(inside.seen, 1);
        if (i % 8 == 3) {
            assert_int_equal(at_host.seen, 0);
            assert_int_equal(at_callback.seen, 0);
        }
    }
    ok(ds_device_free(block[0]));
    ok(ds_mem_free(block[1]));
    ok(ds_mem_free(block[2]));
    harness_restart(NULL);
}

typedef struct held_open {
    _Atomic int entered, leave;
} held_open;

static int hold_open(void *p) {
    held_open *h = *(held_open **)p;
    h->entered = 1;
    while (!h->leave)
        harness_nap();
    return 0;
}

static void test_device_memory_is_open_while_any_operation_runs(void **state) {
    held_open hold = { 0 }, *at = &hold;
    void *p, *late;
    (void)state;
    restart_unreachable();
    ds_stream a = harness_stream(0, 0), b = harness_stream(1, 0);
    ok(ds_device_alloc(harness_device(0), PART, &p));
    assert_int_equal(reachable(p), 0);

    ok(ds_stream_launch_closure(b, hold_open, &at, sizeof at, NULL));
    eventually(hold.entered);
    assert_int_equal(reachable(p), 1);
    ok(ds_device_alloc(harness_device(0), PART, &late)); /* while an operation has access */
    assert_int_equal(reachable(late), 1);
    ok(ds_fill(p, 1, 1, PART, a));
    ok(ds_stream_synchronize(a)); /* the end of one access is not that of the other */
    assert_int_equal(reachable(p), 1);
    hold.leave = 1;
    ok(ds_stream_synchronize(b));

    assert_int_equal(reachable(p), 0);
    assert_int_equal(reachable(late), 0);
    ok(ds_device_free(p));
    ok(ds_device_free(late));
    harness_restart(NULL);
}

static void test_host_memory_stays_reachable(void **state) {
    static unsigned char registered[2 * PART];
    void *pinned, *device;
    (void)state;
    restart_unreachable();
    ds_stream s = harness_stream(0, 0);
    ok(ds_pinned_alloc(PART, &pinned));
    ok(ds_pinned_register(registered, sizeof registered));
    ok(ds_device_alloc(harness_device(0), PART, &device));

    ok(ds_copy(device, pinned, PART, s));
    ok(ds_copy(registered, device, PART, s));
    ok(ds_stream_synchronize(s));

    assert_int_equal(reachable(pinned), 1);
    assert_int_equal(reachable(registered), 1);
    ok(ds_pinned_unregister(registered));
    ok(ds_pinned_free(pinned));
    ok(ds_device_free(device));
    harness_restart(NULL);
}

/* Returns 1 if the process has no memory at the address, not even reserved addresses. */
static int is_unmapped(void *at) {
    unsigned char resident;
    return mincore(at, 1, &resident) != 0 && errno == ENOMEM;
}

static void test_freed_unreachable_memory_is_unmapped(void **state) {
    void *p[3];
    (void)state;
    restart_unreachable();
    ds_stream s = harness_stream(0, 0);
    for (int i = 0; i < 3; i++) {
        ok(ds_device_alloc(harness_device(0), (size_t)100 << 4 * i, &p[i]));
        assert_int_equal((uintptr_t)p[i] % PART, 0);
    }

    ok(ds_device_free(p[1]));

    assert_true(is_unmapped(p[1]));
    refused_any(ds_fill(p[1], 0, 1, 8, s));
    ok(ds_fill(p[0], 0, 1, 8, s)); /* the neighbours are opened and closed as before */
    ok(ds_fill(p[2], 0, 1, 8, s));
    ok(ds_stream_synchronize(s));
    assert_int_equal(reachable(p[0]), 0);
    assert_int_equal(reachable(p[2]), 0);
    ok(ds_device_free(p[0]));
    ok(ds_device_free(p[2]));
    assert_true(is_unmapped(p[0]));
    assert_true(is_unmapped(p[2]));

    void *block = mem_block((size_t)30 << 20, s);
    ok(ds_mem_free(block));
    ok(ds_stream_synchronize(s));
    ok(ds_mem_empty_cache(harness_device(0), NULL));
    sight inside = { block, -1 }, *at = &inside;
    ok(ds_stream_launch_closure(s, look_closure, &at, sizeof at, NULL));
    ok(ds_stream_synchronize(s));
    assert_int_equal(inside.seen, 0); /* the addresses stay reserved, but no operation opens them */
    harness_restart(NULL);
}

/* ---- all kinds of work on such memory ---- */

typedef struct add_args {
    uint32_t *at;
    uint32_t n;
} add_args;

static int add_cpu(size_t first, size_t count, const void *args) {
    const add_args *a = args;
    for (size_t i = first; i < first + count; i++)
        a->at[i] += a->n;
    return 0;
}

enum { WORDS = 1 << 20 };

/* Each word of the block is `want`, as a copy to the host shows, and the block is closed. */
static void expect_words(const uint32_t *block, size_t count, uint32_t want, ds_stream s) {
    uint32_t *got = malloc(count * sizeof *got);
    assert_non_null(got);
    ok(ds_copy(got, block, count * sizeof *got, s));
    ok(ds_stream_synchronize(s));
    for (size_t i = 0; i < count; i++)
        if (got[i] != want)
            fail_msg("word %zu of %zu is %u, not %u", i, count, got[i], want);
    free(got);
    assert_int_equal(reachable(block), 0);
}

/* Large copies and kernels are split among threads; small ones and rows are not. */
static void run_copies_and_kernels(ds_stream s) {
    static const ds_kernel_desc desc = { .cpu_fn = add_cpu,
                                         .args_size = sizeof(add_args),
                                         .name = "add" };
    ds_kernel add;
    ok(ds_kernel_create(&desc, &add));
    uint32_t *a = mem_block(WORDS * 4, s), *b = mem_block(WORDS * 4, s), *pinned, small = 5;
    void *host;
    ok(ds_pinned_alloc(WORDS * 4, &host));
    pinned = host;

    ok(ds_fill(a, 3, 4, WORDS, s));
    ok(ds_copy(b, a, WORDS * 4, s));
    ok(ds_copy(pinned, b, WORDS * 4, s));
    ok(ds_fill(b, 0, 4, WORDS, s));
    ok(ds_copy(b, pinned, WORDS * 4, s));
    ok(ds_kernel_launch(add, WORDS, &(add_args){ b, 4 }, sizeof(add_args), s));
    expect_words(b, WORDS, 7, s);

    ok(ds_copy(a, &small, 4, s));
    ok(ds_kernel_launch(add, 1, &(add_args){ a, 1 }, sizeof(add_args), s));
    ok(ds_copy_2d(b, 8, a, 8, 4, 1, s));
    expect_words(b, 1, 6, s);
    ok(ds_mem_free(a));
    ok(ds_mem_free(b));
    ok(ds_pinned_free(host));
    ok(ds_kernel_destroy(add));
}

/* A node whose body runs if the word, which is in device memory, is not 0. */
static void run_condition(uint32_t *word_at, uint32_t *out, ds_stream s) {
    ds_graph body, g;
    ds_graph_exec x;
    ds_graph_node n;
    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_fill(out, 12, 4, 10, s));
    ok(ds_capture_end(s, &body));
    ds_node_desc node = {
        .kind = DS_NODE_CONDITION,
        .u.condition = { .kind = DS_CONDITION_IF, .word = word_at, .bodies = &body, .count = 1 }
    };
    ok(ds_graph_create(&(ds_graph_desc){ .device = harness_device(0) }, &g));
    ok(ds_graph_add(g, &node, NULL, 0, &n));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    expect_words(out, 10, 12, s);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
}

/* Captured copies, a condition, and a wait for a word of device memory. */
static void run_graphs_and_values(ds_stream s) {
    ds_graph g;
    ds_graph_exec x;
    ds_stream other = harness_stream(0, 0);
    uint32_t *a = mem_block(PART, s);
    ok(ds_fill(a, 0, 4, PART / 4, s));
    ok(ds_stream_synchronize(s));

    ok(ds_capture_begin(s, DS_CAPTURE_GLOBAL));
    ok(ds_fill(a, 9, 4, 100, s));
    ok(ds_copy(a + 100, a, 400, s));
    ok(ds_capture_end(s, &g));
    ok(ds_graph_instantiate(g, NULL, &x));
    ok(ds_graph_launch(x, s));
    expect_words(a, 200, 9, s);
    run_condition(a, a + 200, s);

    ok(ds_stream_wait_value32(other, a, 10, DS_VALUE_WAIT_EQ));
    ok(ds_fill(a + 1, 10, 4, 99, other));
    ok(ds_stream_write_value32(s, a, 10));
    expect_words(a, 100, 10, other);
    ok(ds_graph_exec_destroy(x));
    ok(ds_graph_destroy(g));
    ok(ds_stream_synchronize(s));
    ok(ds_mem_free(a));
}

static void run_random_fill(ds_stream s) {
    ds_rng r;
    float *a = mem_block(PART, s), got[PART / 4];
    ok(ds_rng_create(&(ds_rng_desc){ .device = harness_device(0) }, &r));
    memset(got, 0xff, sizeof got);
    ok(ds_rng_fill(
        r, &(ds_rng_fill_desc){ .out = a, .count = PART / 4, .dtype = ds_float32(), .b = 1 }, s));
    ok(ds_copy(got, a, PART, s));
    ok(ds_stream_synchronize(s));
    for (size_t i = 0; i < PART / 4; i++)
        assert_true(got[i] >= 0 && got[i] < 1);
    ok(ds_rng_destroy(r));
    ok(ds_mem_free(a));
}

static void run_collective(void) {
    ds_device to[] = { harness_device(0), harness_device(1) };
    ds_tensor *t = painted(harness_device(0), ds_float32(), 2, SHAPE(33, 7), 5), *out[2];
    ok(ds_comm_broadcast(t, to, 2, NULL, out));
    expect_equal(t, out[0]);
    expect_equal(t, out[1]);
    drop(out, 2);
    ok(ds_tensor_free(t));
}

static void test_all_kinds_of_work_reach_unreachable_memory(void **state) {
    static const double rate = 1e9;
    static const int link = 0;
    ds_cpu_route routes[9];
    (void)state;
    for (int i = 0; i < 9; i++)
        routes[i] = (ds_cpu_route){ 1000, 1, 1, &link };
    ds_cpu_fabric fabric = { .devices = 2, .links = 1, .link_bytes_per_s = &rate, .route = routes };
    const ds_cpu_desc ways[] = { { .devices = 2 },
                                 { .devices = 2, .flags = DS_CPU_INLINE },
                                 { .devices = 2, .seed = 5 },
                                 { .devices = 2, .flags = DS_CPU_NO_SPIN },
                                 { .fabric = &fabric } };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        ds_cpu_desc desc = ways[i];
        desc.flags |= DS_CPU_UNREACHABLE;
        harness_restart(&(ds_init_desc){ .cpu = &desc });
        ok(ds_mem_configure_text("poison:True,guard_bytes:512"));
        ds_stream s = harness_stream(0, 0);
        run_copies_and_kernels(s);
        if (!(desc.flags & DS_CPU_INLINE))
            run_graphs_and_values(s);
        run_random_fill(s);
        run_collective();
        ok(ds_stream_synchronize(s));
        ok(ds_mem_validate(harness_device(0)));
    }
    harness_restart(NULL);
}

static void test_unknown_cpu_flags_are_refused(void **state) {
    ds_cpu_desc desc = { .flags = 2 * DS_CPU_UNREACHABLE };
    (void)state;
    harness_shutdown();
    refused(ds_init(&(ds_init_desc){ .cpu = &desc }), DS_ERR_INVALID_VALUE);
    assert_non_null(strstr(ds_error_get_last(), "unknown CPU flags 0x10"));
    harness_restart(NULL);
}

const struct CMUnitTest tests_cpu_options[] = {
    DS_TEST_CPU(test_workers_are_bound_in_the_order_of_the_list, "cpu driver"),
    DS_TEST_CPU(test_host_functions_may_use_each_listed_processor, "cpu driver"),
    DS_TEST_CPU(test_the_environment_lists_processors, "cpu driver"),
    DS_TEST_CPU(test_wrong_lists_of_processors_are_refused, "cpu driver"),
    DS_TEST_CPU(test_a_wrong_access_to_device_memory_is_a_fault, "cpu driver"),
    DS_TEST_CPU(test_device_memory_is_closed_when_a_wait_returns, "cpu driver"),
    DS_TEST_CPU(test_device_memory_is_open_while_any_operation_runs, "cpu driver"),
    DS_TEST_CPU(test_host_memory_stays_reachable, "cpu driver"),
    DS_TEST_CPU(test_freed_unreachable_memory_is_unmapped, "cpu driver"),
    DS_TEST_CPU(test_all_kinds_of_work_reach_unreachable_memory, "cpu driver"),
    DS_TEST_CPU(test_unknown_cpu_flags_are_refused, "cpu driver"),
};
const size_t tests_cpu_options_count = sizeof tests_cpu_options / sizeof tests_cpu_options[0];
