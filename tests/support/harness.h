/* harness.h - what all conformance tests share: a deadline per test, a log of what was executed, gates, a kernel whose
   operations do not commute. */
#ifndef HARNESS_H
#define HARNESS_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include "devstream.h"

/* One test; `lines` names the lines of the checklists that it stands for. */
#define DS_TEST(fn, lines) \
    { #fn " [" lines "]", harness_run, harness_setup, harness_teardown, &(struct harness_test){ fn, #fn " " lines } }
struct harness_test {
    CMUnitTestFunction fn;
    const char *name; /* and its lines, as the log has it */
};
/* Runs the test; only here is it known that it came to its end. */
void harness_run(void **state);

/* Arms the deadline: a hang is a failure. */
int harness_setup(void **state);
/* Opens the gates of a test that failed, makes the devices usable again, looks for frames that were left behind, logs the
   test when it passed, and disarms the deadline. */
int harness_teardown(void **state);

/* On the test's own thread: the call must give DS_OK. */
#define ok(call) \
    do { \
        ds_result ok_result_ = (call); \
        if (ok_result_ != DS_OK) \
            fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_name(ok_result_), ds_last_error()); \
    } while (0)
/* On any other thread. */
#define ok_thread(call) \
    do { \
        ds_result ok_result_ = (call); \
        if (ok_result_ != DS_OK) harness_die(#call, ok_result_); \
    } while (0)
/* The call must be refused with this code and a sentence. */
#define refused(call, code) \
    do { \
        ds_result refused_result_ = (call); \
        if (refused_result_ != (code)) \
            fail_msg("%s: %s is %s, not %s: %s", __func__, #call, ds_result_name(refused_result_), #code, ds_last_error()); \
        harness_sentence(ds_last_error(), #call); \
    } while (0)
/* The call must be refused, with whatever code, and a sentence. */
#define refused_any(call) \
    do { \
        ds_result refused_result_ = (call); \
        if (refused_result_ >= 0) fail_msg("%s: %s is %s", __func__, #call, ds_result_name(refused_result_)); \
        harness_sentence(ds_last_error(), #call); \
    } while (0)
void harness_die(const char *call, ds_result result);
void harness_sentence(const char *text, const char *call);

/* What is handed to a host function or callback: counts its runs and its destructions, keeps the status. */
typedef struct payload { _Atomic int ran, destroyed, status; } payload;
void payload_run(void *user);
void payload_destroy(void *user);
void payload_callback(ds_stream stream, ds_result status, void *user);
/* Waits until each of them was destroyed, and checks that it was once. */
void await_destroyed(payload *p, int count);

/* Blocks a stream: ds_launch_host_func(s, gate_fn, &g, NULL) until gate_open(&g). */
typedef struct gate {
    _Atomic int entered;
    _Atomic int open;
} gate;
void gate_fn(void *gate);
void gate_open(gate *g);
void gate_wait_entered(gate *g);
/* The gate must not be reached yet, although whatever could run had its turn. */
void gate_expect_unentered(gate *g);

/* Waits for what happens soon after a call, not before its return. */
#define eventually(condition) \
    do { \
        uint64_t eventually_end_ = now_ns() + 10000000000u; \
        while (!(condition) && now_ns() < eventually_end_) harness_nap(); \
        assert_true(condition); \
    } while (0)
void harness_nap(void);

/* Threads of a test; on them ok_thread, not ok. */
pthread_t spawn(void *(*fn)(void *), void *arg);
void join(pthread_t thread);

/* The devices under test, counted modulo their number. */
ds_device harness_device(int i);
int harness_device_count(void);
int harness_is_cpu(void);
/* A stream on the i-th device; flags as in ds_stream_desc. */
ds_stream harness_stream(int device, unsigned flags);

uint64_t now_ns(void);

/* *h = *h * P + n on plain memory: two of them in another order, one lost or one doubled give another number. */
ds_kernel harness_fold_kernel(void);
void fold(ds_stream s, uint64_t *h, uint64_t n);
uint64_t fold_host(uint64_t h, uint64_t n);
/* To be called after ds_shutdown: handles kept here are void. */
void harness_forget(void);
/* Destroys what is kept here and calls ds_shutdown. */
void harness_shutdown(void);
#endif
