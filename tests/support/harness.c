#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "harness.h"

#define FOLD_P 1099511628211u

static const char *running = "no test"; /* name and lines */
static int passed;
static _Atomic int gates_void; /* a failed test does not open its gates itself */

static void timed_out(int signal_number) {
    static const char what[] = "\ntimed out: ";
    (void)signal_number;
    (void)!write(2, what, sizeof what - 1);
    (void)!write(2, running, strlen(running));
    (void)!write(2, "\n", 1);
    _exit(124);
}

int harness_setup(void **state) {
    const char *seconds = getenv("DS_TEST_TIMEOUT");
    const struct harness_test *test = *state;
    running = test->name;
    passed = 0;
    signal(SIGALRM, timed_out);
    alarm(seconds ? (unsigned)atoi(seconds) : 60);
    return 0;
}

void harness_run(void **state) {
    /* A test that fails leaves work behind that points into its frame: no later call may be as deep before it is drained. */
    volatile char gap[256 << 10];
    const struct harness_test *test = *state;
    gap[0] = 1;
    test->fn(state);
    passed = gap[0]; /* not reached when it failed: cmocka jumps out */
}

static int type_under_test(void) { return harness_is_cpu() ? DS_DEVICE_CPU : DS_DEVICE_CUDA; }

/* Takes what the thread has pushed from its two stacks; 1 when there was something. */
static int pop_frames(void) {
    int popped = 0;
    while (ds_stream_pop() == DS_OK || ds_device_pop() == DS_OK) popped = 1;
    return popped;
}

int harness_teardown(void **state) {
    int count = 0, bad = 0;
    (void)state;
    gates_void = !passed;
    if (ds_device_count((ds_device_type)type_under_test(), &count) != DS_OK) bad = 1;
    if (pop_frames() && passed) {
        fprintf(stderr, "after %s: a frame was left behind\n", running);
        bad = 1;
    }
    for (int i = 0; i < count && harness_is_cpu(); i++) bad |= ds_device_reset(ds_cpu(i)) != DS_OK;
    for (int i = count - 1; i >= 0; i--) { /* device 0 last: use makes the device current too */
        ds_stream s;
        bad |= ds_stream_default((ds_device){ type_under_test(), i }, &s) != DS_OK || ds_stream_use(s, 0, NULL) != DS_OK;
    }
    if (bad) fprintf(stderr, "after %s: %s\n", running, ds_last_error());
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
    fprintf(stderr, "%s: %s is %s: %s\n", running, call, ds_result_name(result), ds_last_error());
    abort();
}

void harness_sentence(const char *text, const char *call) {
    if (!strchr(text, ' ')) fail_msg("%s left no sentence: \"%s\"", call, text);
}

void harness_nap(void) { nanosleep(&(struct timespec){ 0, 50000 }, NULL); }

void gate_fn(void *pointer) {
    gate *g = pointer;
    if (gates_void) return;
    g->entered++;
    while (!gates_void && !g->open) harness_nap();
}

void gate_open(gate *g) { g->open = 1; }

void gate_wait_entered(gate *g) {
    while (!g->entered) harness_nap();
}

static void pass(void *user) { (void)user; }

void gate_expect_unentered(gate *g) {
    uint64_t h = 0;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < harness_device_count(); i++) {
            ds_stream s = harness_stream(i, DS_STREAM_NON_BLOCKING);
            ok(ds_launch_host_func(s, pass, NULL, NULL));
            fold(s, &h, 1);
            ok(ds_stream_synchronize(s));
            ok(ds_stream_destroy(s));
        }
    assert_int_equal(g->entered, 0);
}

pthread_t spawn(void *(*fn)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, fn, arg)) abort();
    return thread;
}

void join(pthread_t thread) { if (pthread_join(thread, NULL)) abort(); }

int harness_is_cpu(void) {
    const char *driver = getenv("DS_TEST_DRIVER");
    return !driver || !strcmp(driver, "cpu");
}

int harness_device_count(void) {
    int count = 0;
    ok(ds_device_count((ds_device_type)type_under_test(), &count));
    return count;
}

ds_device harness_device(int i) { return (ds_device){ type_under_test(), i % harness_device_count() }; }

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

typedef struct fold_args {
    uint64_t *h, n;
} fold_args;

static int fold_item(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first;
    (void)count;
    *a->h = fold_host(*a->h, a->n);
    return 0;
}

static pthread_mutex_t fold_mutex = PTHREAD_MUTEX_INITIALIZER;
static ds_kernel fold_kernel;

ds_kernel harness_fold_kernel(void) {
    static const ds_param params[] = {
        { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(uint64_t *) },
        { DS_PARAM_VALUE, offsetof(fold_args, n), sizeof(uint64_t) },
    };
    pthread_mutex_lock(&fold_mutex);
    if (!fold_kernel.id)
        ok_thread(ds_kernel_create(&(ds_kernel_desc){ .name = "fold", .cpu_fn = fold_item, .args_size = sizeof(fold_args),
                                                      .params = params, .param_count = 2 }, &fold_kernel));
    ds_kernel kernel = fold_kernel;
    pthread_mutex_unlock(&fold_mutex);
    return kernel;
}

void fold(ds_stream s, uint64_t *h, uint64_t n) {
    fold_args a = { h, n };
    ok_thread(ds_launch(harness_fold_kernel(), 1, &a, sizeof a, s));
}

uint64_t fold_host(uint64_t h, uint64_t n) { return h * FOLD_P + n; }

void harness_forget(void) { fold_kernel.id = 0; }

void harness_shutdown(void) {
    if (fold_kernel.id) ok(ds_kernel_destroy(fold_kernel));
    ok(ds_shutdown());
    harness_forget();
}

void payload_run(void *user) { ((payload *)user)->ran++; }
void payload_destroy(void *user) { ((payload *)user)->destroyed++; }
void payload_callback(ds_stream stream, ds_result status, void *user) {
    (void)stream;
    ((payload *)user)->status = status;
    ((payload *)user)->ran++;
}

void await_destroyed(payload *p, int count) {
    for (int i = 0; i < count; i++)
        while (!p[i].destroyed) sched_yield();
    for (int i = 0; i < 100; i++) sched_yield(); /* the chance to run twice */
    for (int i = 0; i < count; i++) assert_int_equal(p[i].destroyed, 1);
}
