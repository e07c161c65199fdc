/* The stand-in's cudaIpc functions: what they refuse, and that a handle leads to the same memory
   and the same event in another process. */
#include "standin/standin.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define GOOD(call) assert_int_equal(call, cudaSuccess)
#define CODE(code, call)                            \
    do {                                            \
        assert_int_equal(call, code);               \
        assert_int_equal(cudaGetLastError(), code); \
    } while (0)

enum { SIZE = 1 << 16 };

typedef struct handles {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
} handles;

/* The exporter: a process that was forked before the stand-in was used. It fills its memory,
   records its event behind that, and does what the bytes say that come: 'f' frees, 'd' destroys
   the event, anything else ends it. */
static void exporter(int from, int to) {
    handles h;
    void *p;
    cudaStream_t s;
    cudaEvent_t e;
    char order;
    if (cudaMalloc(&p, SIZE) || cudaStreamCreate(&s) ||
        cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventInterprocess) ||
        cudaMemsetAsync(p, 7, SIZE, s) || cudaEventRecord(e, s) ||
        cudaIpcGetMemHandle(&h.memory, p) || cudaIpcGetEventHandle(&h.event, e) ||
        write(to, &h, sizeof h) != (ssize_t)sizeof h)
        _exit(9);
    while (read(from, &order, 1) == 1) {
        if (order == 'f' && cudaDeviceSynchronize() == cudaSuccess)
            (void)cudaFree(p);
        else if (order == 'd')
            (void)cudaEventDestroy(e);
        else
            break;
        if (write(to, &order, 1) != 1)
            break;
    }
    _exit(0);
}

typedef struct other {
    pid_t pid;
    int to, from;
    handles h;
} other;

static other start_exporter(void) {
    int out[2], in[2];
    other o;
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(in), 0);
    o.pid = fork();
    if (o.pid == 0) {
        close(out[1]);
        close(in[0]);
        exporter(out[0], in[1]);
    }
    close(out[0]);
    close(in[1]);
    o.to = out[1];
    o.from = in[0];
    assert_int_equal(read(o.from, &o.h, sizeof o.h), sizeof o.h);
    return o;
}

static int end_exporter(other *o) {
    int status = 0;
    close(o->to);
    close(o->from);
    waitpid(o->pid, &status, 0);
    return status;
}

static void tell(const other *o, char order) {
    char answer;
    assert_int_equal(write(o->to, &order, 1), 1);
    assert_int_equal(read(o->from, &answer, 1), 1);
}

static other first, second; /* started before the stand-in is used here */

static void test_memory_of_another_process_is_the_same_memory(void **state) {
    static unsigned char copy[SIZE];
    (void)state;
    cudaStream_t s;
    cudaEvent_t e;
    char *p, *again;
    GOOD(cudaStreamCreate(&s));
    GOOD(cudaIpcOpenEventHandle(&e, first.h.event));
    GOOD(cudaIpcOpenMemHandle((void **)&p, first.h.memory, cudaIpcMemLazyEnablePeerAccess));
    GOOD(cudaIpcOpenMemHandle((void **)&again, first.h.memory, cudaIpcMemLazyEnablePeerAccess));
    assert_ptr_equal(again, p); /* "the existing device pointer is returned" */
    GOOD(cudaStreamWaitEvent(s, e, 0));
    GOOD(cudaMemcpyAsync(copy, p, SIZE, cudaMemcpyDeviceToHost, s));
    GOOD(cudaStreamSynchronize(s));
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(copy[i], 7);
    GOOD(cudaEventQuery(e));
    GOOD(cudaIpcCloseMemHandle(p));
    GOOD(cudaMemsetAsync(p, 8, SIZE, s)); /* still open once */
    GOOD(cudaStreamSynchronize(s));
    GOOD(cudaIpcCloseMemHandle(p));
    CODE(cudaErrorInvalidValue, cudaIpcCloseMemHandle(p));
    GOOD(cudaEventRecord(e, s));
    GOOD(cudaEventSynchronize(e));
    GOOD(cudaEventDestroy(e));
    GOOD(cudaStreamDestroy(s));
}

static void test_handles_that_cannot_be_made_or_opened_are_refused(void **state) {
    (void)state;
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
    cudaEvent_t e, plain, got;
    char *p, *q;
    /* with timing */
    CODE(cudaErrorInvalidValue, cudaEventCreateWithFlags(&e, cudaEventInterprocess));
    GOOD(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventInterprocess));
    GOOD(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    CODE(cudaErrorInvalidResourceHandle, cudaIpcGetEventHandle(&event, plain));
    GOOD(cudaIpcGetEventHandle(&event, e));
    CODE(cudaErrorDeviceUninitialized, cudaIpcOpenEventHandle(&got, event)); /* its own */
    GOOD(cudaMalloc((void **)&p, SIZE));
    CODE(cudaErrorInvalidValue, cudaIpcGetMemHandle(&memory, p + 1));
    GOOD(cudaIpcGetMemHandle(&memory, p));
    CODE(cudaErrorDeviceUninitialized,
         cudaIpcOpenMemHandle((void **)&q, memory, cudaIpcMemLazyEnablePeerAccess));
    /* "must be specified" */
    CODE(cudaErrorInvalidValue, cudaIpcOpenMemHandle((void **)&q, first.h.memory, 0));
    CODE(cudaErrorInvalidValue, cudaIpcCloseMemHandle(p));
    memset(&memory, 1, sizeof memory);
    CODE(cudaErrorInvalidValue,
         cudaIpcOpenMemHandle((void **)&q, memory, cudaIpcMemLazyEnablePeerAccess));
    GOOD(cudaFree(p));
    GOOD(cudaEventDestroy(e));
    GOOD(cudaEventDestroy(plain));
}

static void test_a_handle_of_freed_memory_or_a_destroyed_event_is_void(void **state) {
    (void)state;
    cudaEvent_t e;
    void *p;
    tell(&second, 'd');
    CODE(cudaErrorMapBufferObjectFailed, cudaIpcOpenEventHandle(&e, second.h.event));
    tell(&second, 'f');
    CODE(cudaErrorMapBufferObjectFailed,
         cudaIpcOpenMemHandle(&p, second.h.memory, cudaIpcMemLazyEnablePeerAccess));
    assert_int_equal(end_exporter(&second), 0);
}

static void test_freeing_what_another_process_has_open_fails_the_test(void **state) {
    (void)state;
    char order = 'f';
    void *p;
    GOOD(cudaIpcOpenMemHandle(&p, first.h.memory, cudaIpcMemLazyEnablePeerAccess));
    assert_int_equal(write(first.to, &order, 1), 1);
    int status = 0;
    waitpid(first.pid, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    GOOD(cudaIpcCloseMemHandle(p));
    close(first.to);
    close(first.from);
}

static int start_both(void **state) {
    (void)state;
    first = start_exporter();
    second = start_exporter();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_another_process_is_the_same_memory),
        cmocka_unit_test(test_handles_that_cannot_be_made_or_opened_are_refused),
        cmocka_unit_test(test_a_handle_of_freed_memory_or_a_destroyed_event_is_void),
        cmocka_unit_test(test_freeing_what_another_process_has_open_fails_the_test),
    };
    return cmocka_run_group_tests(tests, start_both, NULL);
}
