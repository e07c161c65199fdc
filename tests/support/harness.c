#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "harness.h"

#define FOLD_P 1099511628211u

static const char *running = "no test";

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
    running = *state;
    signal(SIGALRM, timed_out);
    alarm(seconds ? (unsigned)atoi(seconds) : 60);
    return 0;
}

int harness_teardown(void **state) {
    int count = 0, bad = 0;
    if (ds_device_count(DS_DEVICE_CPU, &count) != DS_OK) bad = 1;
    for (int i = 0; i < count; i++) bad |= ds_device_reset(ds_cpu(i)) != DS_OK;
    if (count) bad |= ds_device_set(ds_cpu(0)) != DS_OK;
    if (bad) fprintf(stderr, "after %s: %s\n", running, ds_last_error());
    alarm(0);
    const char *path = getenv("DS_TEST_LOG"), *driver = getenv("DS_TEST_DRIVER");
    FILE *log = !bad && path ? fopen(path, "a") : NULL;
    if (log) {
        fprintf(log, "%s %s\n", driver ? driver : "cpu", running);
        fclose(log);
    }
    running = "no test";
    (void)state;
    return bad;
}

void harness_die(const char *call, ds_result result) {
    fprintf(stderr, "%s: %s is %s: %s\n", running, call, ds_result_name(result), ds_last_error());
    abort();
}

void harness_sentence(const char *text, const char *call) {
    if (!strchr(text, ' ')) fail_msg("%s left no sentence: \"%s\"", call, text);
}

void gate_fn(void *pointer) {
    gate *g = pointer;
    struct timespec nap = { 0, 50000 };
    g->entered++;
    while (!g->open) nanosleep(&nap, NULL);
}

void gate_open(gate *g) { g->open = 1; }

void gate_wait_entered(gate *g) {
    struct timespec nap = { 0, 50000 };
    while (!g->entered) nanosleep(&nap, NULL);
}

int harness_device_count(void) {
    int count = 0;
    ok(ds_device_count(DS_DEVICE_CPU, &count));
    return count;
}

ds_device harness_device(int i) { return ds_cpu(i % harness_device_count()); }

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
