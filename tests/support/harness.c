#define _GNU_SOURCE /* the processors of this process */
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "devstream_check.h"
#include "harness.h"
#include "kernels_ptx.h"

extern char **environ;

#define FOLD_P 1099511628211u

enum { WORDS = 6144, GATES = 2048 };

static const char *running = "no test"; /* name and lines */
static pthread_t test_thread;
static int passed;
static ds_stream watched[64];
static size_t watched_count;
static _Atomic int gates_void; /* a failed test does not open its gates itself */

/* What word and gate_close hand out, the kernels' words last. On CUDA the whole is registered at
   its first use; on the CPU driver it is declared to the check layer, if that is on. */
static struct {
    _Alignas(4096) uint64_t words[WORDS];
    _Atomic uint32_t gates[GATES][2];
} pool;

static size_t words_taken, gates_taken;
static int pool_registered;
static int pool_declared;
static ds_kernel fold_kernel, gate_kernel;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all these */

static void timed_out(int signal_number) {
    static const char what[] = "\ntimed out: ";
    (void)signal_number;
    (void)!write(2, what, sizeof what - 1);
    (void)!write(2, running, strlen(running));
    (void)!write(2, "\n", 1);
    _exit(124);
}

static unsigned timeout_s(void) {
    const char *seconds = getenv("DS_TEST_TIMEOUT");
    return seconds ? (unsigned)atoi(seconds) : 300;
}

/* DS_TEST_FABRIC=1: the suite under a virtual clock, where it does not bring options of its own. */
static void use_fabric(void) {
    static const double rate = 1e9;
    static const int link = 0;
    ds_cpu_route routes[9];
    if (!getenv("DS_TEST_FABRIC") || !harness_is_cpu())
        return;
    for (int i = 0; i < 9; i++)
        routes[i] = (ds_cpu_route){ 1000, 1, 1, &link };
    ds_cpu_fabric fabric = { .devices = 2, .links = 1, .link_bytes_per_s = &rate, .route = routes };
    ds_cpu_desc cpu = { .fabric = &fabric };
    DS_IGNORE(ds_init(&(ds_init_desc){ .cpu = &cpu })); /* or it is in use already */
}

int harness_setup(void **state) {
    use_fabric();
    const struct harness_test *test = *state;
    running = test->name;
    passed = 0;
    test_thread = pthread_self();
    words_taken = gates_taken = 0; /* the devices are idle */
    watched_count = 0;
    signal(SIGALRM, timed_out);
    alarm(timeout_s());
    return 0;
}

/* ---- a process of its own ---- */

int harness_wants(const struct harness_test *test) {
    const char *alone = getenv("DS_TEST_ALONE");
    return test->where & (harness_is_cpu() ? HARNESS_CPU : HARNESS_CUDA) &&
           (!alone || !strcmp(alone, test->fn_name));
}

int harness_await(pid_t child) {
    /* before the deadline of the test that waits */
    uint64_t end = now_ns() + timeout_s() * 900000000ull;
    int status = -1;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (now_ns() > end) { /* a child that hangs must not outlive the test */
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -1;
        }
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return status;
}

char **harness_self(void) {
    static __thread char path[4096], runner[1000], *argv[20]; /* tests start processes on threads */
    char *rest;
    size_t n = 0;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(length > 0);
    path[length] = 0;
    snprintf(runner, sizeof runner, "%s", getenv("DS_TEST_RUNNER") ? getenv("DS_TEST_RUNNER") : "");
    for (char *w = strtok_r(runner, " ", &rest); w && n < sizeof argv / sizeof *argv - 2;
         w = strtok_r(NULL, " ", &rest))
        argv[n++] = w;
    argv[n++] = path;
    argv[n] = NULL;
    return argv;
}

pid_t harness_start(const char *const settings[], FILE *output) {
    static char no_log[] = "DS_TEST_LOG=";
    char **argv = harness_self();
    size_t n = 0, own = 0;
    while (environ[n])
        n++;
    char **env = malloc((n + 5) * sizeof *env);
    assert_non_null(env);
    /* the first of a name counts */
    for (; settings[own]; own++)
        env[own] = strdup(settings[own]);
    env[own] = no_log;
    memcpy(env + own + 1, environ, (n + 1) * sizeof *env);
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (output) {
        posix_spawn_file_actions_adddup2(&actions, fileno(output), 1);
        posix_spawn_file_actions_adddup2(&actions, fileno(output), 2);
    }
    if (posix_spawnp(&child, argv[0], &actions, NULL, argv, env))
        child = -1;
    posix_spawn_file_actions_destroy(&actions);
    for (size_t i = 0; i < own; i++)
        free(env[i]);
    free(env);
    return child;
}

int harness_respawn(const char *const settings[], FILE *output) {
    pid_t child = harness_start(settings, output);
    return child < 0 ? -1 : harness_await(child);
}

static void run_alone(const struct harness_test *test) {
    char mark[200], line[1000];
    FILE *output = tmpfile();
    assert_non_null(output);
    snprintf(mark, sizeof mark, "DS_TEST_ALONE=%s", test->fn_name);
    int status = harness_respawn((const char *const[]){ mark, test->setting, NULL }, output),
        skipped = 0;
    rewind(output);
    while (fgets(line, sizeof line, output)) {
        skipped |= strstr(line, "SKIPPED") != NULL;
        if (status != 0)
            fprintf(stderr, "    | %s", line);
    }
    fclose(output);
    if (status == 0 && skipped)
        skip();
    if (status == -1)
        fail_msg("the process of this test did not end in time");
    if (status != 0)
        fail_msg("the process of this test ended with status 0x%x", (unsigned)status);
}

static int is_alone(void) {
    return getenv("DS_TEST_ALONE") != NULL;
}

/* ---- around a test ---- */

void harness_run(void **state) {
    /* A test that fails leaves work behind that points into its frame: no later call may be as
       deep before it is drained. */
    volatile char gap[256 << 10];
    const struct harness_test *test = *state;
    gap[0] = 1;
    if (test->where & HARNESS_ALONE && !harness_is_cpu() && !is_alone())
        run_alone(test);
    else
        test->fn(state);
    passed = gap[0]; /* not reached when it failed: cmocka jumps out */
}

static int type_under_test(void) {
    return harness_is_cpu() ? DS_DEVICE_CPU : DS_DEVICE_CUDA;
}

/* The last devices, which DS_TEST_UNUSED_DEVICES takes away from the tests. */
static int unused_devices(void) {
    const char *text = getenv("DS_TEST_UNUSED_DEVICES");
    return text && !harness_is_cpu() ? atoi(text) : 0;
}

/* Takes what the thread has pushed from its two stacks; 1 when there was something. */
static int pop_frames(void) {
    int popped = 0;
    while (ds_stream_pop() == DS_OK || ds_device_pop() == DS_OK)
        popped = 1;
    return popped;
}

static void open_all_gates(void) {
    gates_void = 1;
    for (size_t i = 0; i < gates_taken && i < GATES; i++)
        pool.gates[i][1] = 1;
}

/* Those of the test's thread, and relaxed ones. */
static void end_captures(void) {
    ds_capture_mode mode = DS_CAPTURE_GLOBAL;
    for (size_t i = 0; i < watched_count; i++) {
        ds_graph g;
        if (ds_capture_end(watched[i], &g) == DS_OK)
            DS_IGNORE(ds_graph_destroy(g));
    }
    DS_IGNORE(ds_capture_exchange_mode(&mode));
}

/* Drains the devices under test, and what a test has made current is so no longer; 1 when
   something of it failed. */
static int back_to_the_start(void) {
    int count = 0, bad = ds_device_get_count((ds_device_type)type_under_test(), &count) != DS_OK;
    count -= unused_devices();
    for (int i = count - 1; i >= 0; i--) { /* device 0 last: use makes the device current too */
        ds_device d = { type_under_test(), i };
        ds_stream s;
        bad |= (harness_is_cpu() ? ds_device_reset(d) : ds_device_synchronize(d)) != DS_OK;
        bad |= ds_stream_get_default(d, &s) != DS_OK || ds_stream_set_current(s, 0, NULL) != DS_OK;
    }
    return bad;
}

/* Of the stand-in: which devices have contexts. */
extern unsigned standin_contexts(void) __attribute__((weak));

/* Reports a test that has used a device which its test did not name: a context takes memory. */
static int found_unused_in_use(void) {
    static unsigned known;
    int unused = unused_devices();
    if (!unused || !standin_contexts)
        return 0;
    int count = 0;
    if (ds_device_get_count(DS_DEVICE_CUDA, &count) < 0)
        return 0;
    unsigned in_use = standin_contexts() & ~known & ~((1u << (count - unused)) - 1);
    known |= in_use;
    for (int i = 0; i < count; i++)
        if (in_use >> i & 1)
            fprintf(stderr, "after %s: cuda:%d has a context, but no test uses it\n", running, i);
    return in_use != 0;
}

/* Returns 1 if the check layer must be on, but has seen no stream. */
static int layer_is_missing(void) {
    ds_check_stats stats;
    if (!harness_is_checked())
        return 0;
    if (ds_check_get_stats(&stats) == DS_OK && stats.timelines)
        return 0;
    fprintf(stderr, "after %s: the check layer is not on\n", running);
    return 1;
}

int harness_teardown(void **state) {
    int bad = found_unused_in_use();
    (void)state;
    if (!passed) {
        open_all_gates();
        end_captures();
    }
    if (pop_frames() && passed) {
        fprintf(stderr, "after %s: a frame was left behind\n", running);
        bad = 1;
    }
    /* alone there is no next test, and perhaps no device */
    if (!is_alone())
        bad |= back_to_the_start() | layer_is_missing();
    if (bad)
        fprintf(stderr, "after %s: %s\n", running, ds_error_get_last());
    alarm(0);
    gates_void = 0;
    const char *path = getenv("DS_TEST_LOG");
    FILE *log = passed && !bad && path ? fopen(path, "a") : NULL;
    if (log) {
        fprintf(log, "%s %s\n", harness_is_cpu() ? "cpu" : "cuda", running);
        fclose(log);
    }
    running = "no test";
    return bad;
}

void harness_die(const char *call, ds_result result) {
    if (pthread_equal(pthread_self(), test_thread))
        fail_msg("%s is %s: %s", call, ds_result_get_name(result), ds_error_get_last());
    fprintf(stderr, "%s: %s is %s: %s\n", running, call, ds_result_get_name(result),
            ds_error_get_last());
    abort();
}

void harness_sentence(const char *text, const char *call) {
    if (!strchr(text, ' '))
        fail_msg("%s left no sentence: \"%s\"", call, text);
}

void harness_nap(void) {
    nanosleep(&(struct timespec){ 0, 50000 }, NULL);
}

/* ---- words and gates ---- */

/* The index of the first of `count` entries of the pool. */
static size_t take(size_t *taken, size_t count, size_t limit) {
    ds_result r = DS_OK;
    pthread_mutex_lock(&mutex);
    if (!pool_registered && !harness_is_cpu())
        pool_registered = (r = ds_pinned_register(&pool, sizeof pool)) == DS_OK;
    if (!pool_declared && harness_is_cpu() && harness_is_checked())
        pool_declared = (r = ds_check_declare_memory(&pool, sizeof pool, "words")) == DS_OK;
    size_t at = *taken;
    int fits = count <= limit - at;
    if (fits)
        *taken += count;
    pthread_mutex_unlock(&mutex);
    if (r != DS_OK)
        harness_die("ds_pinned_register or ds_check_declare_memory of the words", r);
    if (!fits)
        harness_die("the pool has too few words", DS_ERR_LIMIT_EXCEEDED);
    return at;
}

uint64_t *zeroed_words(size_t count) {
    uint64_t *p = &pool.words[take(&words_taken, count, WORDS)];
    memset(p, 0, count * sizeof *p);
    return p;
}

uint64_t *word(uint64_t value) {
    uint64_t *p = zeroed_words(1);
    *p = value;
    return p;
}

void gate_fn(void *pointer) {
    gate *g = pointer;
    if (gates_void)
        return;
    g->entered++;
    while (!gates_void && !g->open)
        harness_nap();
}

typedef struct gate_args {
    _Atomic uint32_t *entered, *open;
} gate_args;

static ds_kernel create_kernel(const ds_kernel_desc *desc);

/* Returns a kernel of this file, which is created at its first use. */
static ds_kernel get_kernel(ds_kernel *kept, const ds_kernel_desc *desc) {
    pthread_mutex_lock(&mutex);
    ds_kernel kernel = *kept;
    pthread_mutex_unlock(&mutex);
    if (kernel.id)
        return kernel;
    ds_kernel_desc form = *desc;
    form.cuda = harness_cuda_form(desc->name);
    ds_kernel made = create_kernel(&form);
    pthread_mutex_lock(&mutex);
    if (!kept->id)
        *kept = made;
    kernel = *kept;
    pthread_mutex_unlock(&mutex);
    if (kernel.id != made.id)
        ok_thread(ds_kernel_destroy(made));
    return kernel;
}

/* Loads the other kernel first: CUDA loads no module while a gate is closed (docs/gpu, R2). */
static ds_kernel get_gate_kernel(void) {
    static const ds_param params[] = { PARAM(WRITE, gate_args, entered),
                                       PARAM(READ, gate_args, open) };
    static const ds_extent extents[] = { { .kind = DS_EXTENT_BYTES, .bytes = 4 },
                                         { .kind = DS_EXTENT_BYTES, .bytes = 4 } };
    (void)harness_fold_kernel();
    return get_kernel(&gate_kernel, &(ds_kernel_desc){ .name = "gate",
                                                       .args_size = sizeof(gate_args),
                                                       .params = params,
                                                       .param_count = 2,
                                                       .extents = extents });
}

static gate_args words_of(gate *g) {
    if (!g->words) { /* a gate may close several streams */
        _Atomic uint32_t *words = pool.gates[take(&gates_taken, 1, GATES)];
        words[0] = 0;
        words[1] = (uint32_t)g->open;
        g->words = words;
    }
    return (gate_args){ g->words, g->words + 1 };
}

void gate_close(ds_stream s, gate *g) {
    if (harness_is_cpu()) {
        ok_thread(ds_stream_launch_host_func(s, gate_fn, g, NULL));
        return;
    }
    gate_args a = words_of(g);
    ok_thread(ds_kernel_launch(get_gate_kernel(), 1, &a, sizeof a, s));
}

ds_node_desc gate_node(gate *g) {
    if (harness_is_cpu())
        return (ds_node_desc){ .kind = DS_NODE_HOST,
                               .label = "gate",
                               .u.host = { .fn = gate_fn, .user = g, .dtor_fn = NULL } };
    gate_args a = words_of(g);
    g->args[0] = a.entered;
    g->args[1] = a.open;
    return (ds_node_desc){ .kind = DS_NODE_KERNEL,
                           .label = "gate",
                           .u.kernel = { .kernel = get_gate_kernel(),
                                         .items = 1,
                                         .args = g->args,
                                         .args_size = sizeof a } };
}

void gate_open(gate *g) {
    _Atomic uint32_t *words = g->words;
    if (words)
        words[1] = 1;
    g->open = 1; /* last: the gate may be gone then */
}

static int entered(const gate *g) {
    const _Atomic uint32_t *words = g->words;
    return g->entered || (words && words[0]);
}

void gate_wait_entered(gate *g) {
    while (!entered(g))
        harness_nap();
}

static void pass(void *user) {
    (void)user;
}

void gate_expect_unentered(gate *g) {
    uint64_t *h = word(0);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < harness_device_count(); i++) {
            ds_stream s = harness_stream(i, DS_STREAM_NON_BLOCKING);
            ok(ds_stream_launch_host_func(s, pass, NULL, NULL));
            fold(s, h, 1);
            ok(ds_stream_synchronize(s));
            ok(ds_stream_destroy(s));
        }
    assert_int_equal(entered(g), 0);
}

pthread_t spawn(void *(*fn)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, fn, arg))
        abort();
    return thread;
}

void join(pthread_t thread) {
    if (pthread_join(thread, NULL))
        abort();
}

int harness_is_cpu(void) {
    const char *driver = getenv("DS_TEST_DRIVER");
    return !driver || !strcmp(driver, "cpu");
}

int harness_all_devices(void) {
    int count = 0;
    ok(ds_device_get_count((ds_device_type)type_under_test(), &count));
    return count;
}

int harness_device_count(void) {
    return harness_all_devices() - unused_devices();
}

ds_device harness_device(int i) {
    return (ds_device){ type_under_test(), i % harness_device_count() };
}

int harness_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

void not_on_windows(const char *what) {
#ifdef _WIN32
    printf("          skipped: Windows does not have %s\n", what);
    skip();
#else
    (void)what;
#endif
}

int harness_has_full_device(void) {
#ifdef _WIN32
    printf("          left out: Windows does not have /dev/full\n");
    return 0;
#else
    return 1;
#endif
}

void not_emulated(const char *what) {
#ifdef HARNESS_EMULATED
    printf("          skipped: the emulator does not have %s\n", what);
    skip();
#else
    (void)what;
#endif
}

int harness_is_checked(void) {
    const char *options = getenv("DEVSTREAM_CHECK");
    return options && *options && strcmp(options, "0") != 0;
}

void not_checked(const char *why) {
    if (!harness_is_checked())
        return;
    printf("          skipped: under the check layer, %s\n", why);
    skip();
}

void two_devices(void) {
    if (harness_device_count() < 2)
        skip();
}

ds_stream harness_stream(int device, unsigned flags) {
    ds_stream s;
    ok(ds_stream_create(&(ds_stream_desc){ .device = harness_device(device), .flags = flags }, &s));
    return s;
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- kernels ---- */

/* Those of one item have a block of one thread. */
/* clang-format off */
#define KERNELS(X) \
    X(fold, 1) X(gate, 1) X(spin, 1) X(store, 1) X(add, 1) X(thrice, 1) X(count, 1) X(explode, 0) \
    X(none, 0) X(big, 1) X(odd, 1) X(tally, 0) X(step, 0) X(step4, 0) X(mix, 0) X(whereabouts, 0) \
    X(turn_around, 0) X(rows, 0) X(meet, 0) X(matmul, 0) X(add_floats, 0) X(multiply_floats, 0)

/* clang-format on */

static const struct {
    const char *name, *image;
    unsigned block;
} cuda_forms[] = {

#define CUDA_FORM(name, block) { #name, ptx_##name, block },
    KERNELS(CUDA_FORM)
};

ds_kernel_cuda harness_cuda_form(const char *name) {
    for (size_t i = 0; i < sizeof cuda_forms / sizeof *cuda_forms; i++)
        if (!strcmp(cuda_forms[i].name, name))
            return (ds_kernel_cuda){ .image = cuda_forms[i].image,
                                     .entry = cuda_forms[i].name,
                                     .block = cuda_forms[i].block };
    return (ds_kernel_cuda){ 0 };
}

static ds_kernel create_kernel(const ds_kernel_desc *desc) {
    ds_kernel kernel;
    ok_thread(ds_kernel_create(desc, &kernel));
#ifdef ds_kernel_load
    for (int i = 0; i < harness_device_count() && desc->cuda.image && !harness_is_cpu(); i++)
        ok_thread(ds_kernel_load(kernel, harness_device(i)));
#endif
    return kernel;
}

ds_kernel harness_kernel(const char *name, ds_kernel_fn cpu_fn, size_t args_size,
                         const ds_param *params, size_t param_count, size_t grain) {
    return create_kernel(&(ds_kernel_desc){ .name = name,
                                            .cpu_fn = cpu_fn,
                                            .args_size = args_size,
                                            .params = params,
                                            .param_count = param_count,
                                            .grain = grain,
                                            .cuda = harness_cuda_form(name) });
}

static int fold_item(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    *a->h = fold_host(*a->h, a->n);
    return 0;
}

ds_kernel harness_fold_kernel(void) {
    static const ds_param params[] = { PARAM(READ_WRITE, fold_args, h),
                                       PARAM(VALUE, fold_args, n) };
    static const ds_extent extents[] = { { .kind = DS_EXTENT_BYTES, .bytes = 8 }, { 0 } };
    return get_kernel(&fold_kernel, &(ds_kernel_desc){ .name = "fold",
                                                       .cpu_fn = fold_item,
                                                       .args_size = sizeof(fold_args),
                                                       .params = params,
                                                       .param_count = 2,
                                                       .extents = extents });
}

void fold(ds_stream s, uint64_t *h, uint64_t n) {
    fold_args a = { h, n };
    ok_thread(ds_kernel_launch(harness_fold_kernel(), 1, &a, sizeof a, s));
}

ds_node_desc fold_node(uint64_t *h, uint64_t n) {
    static __thread fold_args kept[8];
    static __thread unsigned next;
    fold_args *a = &kept[next++ % 8];
    *a = (fold_args){ h, n };
    return (ds_node_desc){ .kind = DS_NODE_KERNEL,
                           .u.kernel = { .kernel = harness_fold_kernel(),
                                         .items = 1,
                                         .args = a,
                                         .args_size = sizeof *a } };
}

void harness_warm_up(void) {
    (void)harness_fold_kernel();
    if (!harness_is_cpu())
        (void)get_gate_kernel();
    take(&words_taken, 0, WORDS);
}

int harness_has_conditions(const uint32_t *word) {
    ds_graph g = { 0 }, body = { 0 };
    ds_graph_desc on = { .device = harness_device(0) };
    ok(ds_graph_create(&on, &g));
    ok(ds_graph_create(&on, &body));
    ds_node_desc d = { .kind = DS_NODE_CONDITION,
                       .u.condition = { .word = word, .bodies = &body, .count = 1 } };
    ds_result r = ds_graph_add(g, &d, NULL, 0, NULL);
    int has = r != DS_ERR_UNSUPPORTED || !strstr(ds_error_get_last(), "CUDA 12.8");
    if (has)
        ok(r);
    else
        puts("needs a driver of CUDA 12.8");
    ok(ds_graph_destroy(g));
    ok(ds_graph_destroy(body));
    return has;
}

void harness_watch(ds_stream s) {
    if (watched_count < sizeof watched / sizeof *watched)
        watched[watched_count++] = s;
}

uint64_t fold_host(uint64_t h, uint64_t n) {
    return h * FOLD_P + n;
}

void harness_reuse(void) {
    words_taken = gates_taken = watched_count = 0;
}

void harness_forget(void) {
    fold_kernel.id = gate_kernel.id = 0;
    pool_registered = pool_declared = 0;
}

void harness_shutdown(void) {
    if (fold_kernel.id)
        ok(ds_kernel_destroy(fold_kernel));
    if (gate_kernel.id)
        ok(ds_kernel_destroy(gate_kernel));
    if (pool_registered)
        ok(ds_pinned_unregister(&pool));
    ok(ds_shutdown());
    harness_forget();
}

void harness_recover(int device) {
    if (harness_is_cpu()) {
        ok(ds_device_reset(harness_device(device)));
        return;
    }
    refused(ds_device_reset(harness_device(device)), DS_ERR_UNSUPPORTED);
    refused(ds_shutdown(), DS_ERR_FAILED);
    harness_forget();
}

void harness_restart(const ds_init_desc *desc) {
    harness_shutdown();
    if (desc)
        ok(ds_init(desc));
    else
        use_fabric();
}

void harness_in_every_way(void (*fn)(void)) {
    static const double rate = 1e9;
    static const int link = 0;
    static const ds_cpu_route route[4] = {
        [1] = { .hops = 1, .link = &link }, [2] = { .hops = 1, .link = &link }
    };
    static const ds_cpu_fabric fabric = {
        .devices = 1, .links = 1, .link_bytes_per_s = &rate, .route = route
    };
    static const ds_cpu_desc ways[] = { { .flags = DS_CPU_INLINE },
                                        { .seed = 77 },
                                        { .workers = 1 },
                                        { .flags = DS_CPU_NO_SPIN },
                                        { .fabric = &fabric } };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        harness_restart(&(ds_init_desc){ .cpu = &ways[i] });
        fn();
    }
    harness_restart(NULL);
}

void payload_run(void *user) {
    ((payload *)user)->ran++;
}

void payload_destroy(void *user) {
    ((payload *)user)->destroyed++;
}

void payload_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    ((payload *)user)->status = status;
    ((payload *)user)->ran++;
}

void harness_sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

void await_destroyed(payload *p, int count) {
    for (int i = 0; i < count; i++)
        while (!p[i].destroyed)
            sched_yield();
    /* the chance to run twice */
    for (int i = 0; i < 100; i++)
        sched_yield();
    for (int i = 0; i < count; i++)
        assert_int_equal(p[i].destroyed, 1);
}
