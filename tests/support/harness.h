/* harness.h - what all conformance tests share: a deadline per test, a log of what was executed,
   gates, words that kernels reach, a kernel whose operations do not commute. DS_TEST_DRIVER says
   which devices are tested: cpu (the default) or cuda. */
#ifndef HARNESS_H
#define HARNESS_H
#include "slow.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>
#include <pthread.h>
#include "devstream.h"

/* One test; `lines` names the lines of the checklists that it stands for. What a driver does not
   promise is not a test of that driver: it is not registered there, rather than skipped. */
#define DS_TEST(fn, lines) HARNESS_TEST_(fn, lines, HARNESS_CPU | HARNESS_CUDA, NULL)
/* Of options and counters of the CPU driver, or of something that CUDA leaves open. */
#define DS_TEST_CPU(fn, lines) HARNESS_TEST_(fn, lines, HARNESS_CPU, NULL)
/* Of something that only CUDA has. */
#define DS_TEST_CUDA(fn, lines) HARNESS_TEST_(fn, lines, HARNESS_CUDA, NULL)
/* Makes a device fail: on CUDA that is for good, so the test gets a process of its own there. */
#define DS_TEST_ALONE(fn, lines) \
    HARNESS_TEST_(fn, lines, HARNESS_CPU | HARNESS_CUDA | HARNESS_ALONE, NULL)
/* CUDA only, in a process of its own with this in its environment, "NAME=value"; NULL: nothing. */
#define DS_TEST_CUDA_WITH(fn, lines, setting) \
    HARNESS_TEST_(fn, lines, HARNESS_CUDA | HARNESS_ALONE, setting)
#define HARNESS_TEST_(fn, lines, where, setting)                                                   \
    {                                                                                              \
#fn " [" lines "]", harness_run, harness_setup, harness_teardown, &(struct harness_test) { \
            fn, #fn, #fn " " lines, where, setting                                                 \
        }                                                                                          \
    }

enum { HARNESS_CPU = 1, HARNESS_CUDA = 2, HARNESS_ALONE = 4 };

struct harness_test {
    CMUnitTestFunction fn;
    const char *fn_name;
    const char *name;    /* and its lines, as the log has it */
    int where;           /* HARNESS_* */
    const char *setting; /* NULL: none */
};

/* 1 when this process is to run the test: it is one of the driver's, and the one that was asked
   for if one was. */
int harness_wants(const struct harness_test *test);
/* Runs the test; only here is it known that it came to its end. */
void harness_run(void **state);

/* Arms the deadline: a hang is a failure. */
int harness_setup(void **state);
/* Opens the gates of a test that failed, drains the devices and makes them usable again, looks
   for frames that were left behind, logs the test when it passed, and disarms the deadline. */
int harness_teardown(void **state);

/* On the test's own thread: the call must give DS_OK. */
#define ok(call)                                                                          \
    do {                                                                                  \
        ds_result ok_result_ = (call);                                                    \
        if (ok_result_ != DS_OK)                                                          \
            fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_get_name(ok_result_), \
                     ds_error_get_last());                                                \
    } while (0)
/* On any thread. */
#define ok_thread(call)                     \
    do {                                    \
        ds_result ok_result_ = (call);      \
        if (ok_result_ != DS_OK)            \
            harness_die(#call, ok_result_); \
    } while (0)
/* The call must be refused with this code and a sentence. */
#define refused(call, code)                                                            \
    do {                                                                               \
        ds_result refused_result_ = (call);                                            \
        if (refused_result_ != (code))                                                 \
            fail_msg("%s: %s is %s, not %s: %s", __func__, #call,                      \
                     ds_result_get_name(refused_result_), #code, ds_error_get_last()); \
        harness_sentence(ds_error_get_last(), #call);                                  \
    } while (0)
/* The call must be refused, with whatever code, and a sentence. */
#define refused_any(call)                                                                   \
    do {                                                                                    \
        ds_result refused_result_ = (call);                                                 \
        if (refused_result_ >= 0)                                                           \
            fail_msg("%s: %s is %s", __func__, #call, ds_result_get_name(refused_result_)); \
        harness_sentence(ds_error_get_last(), #call);                                       \
    } while (0)
/* Ends an object of a device that has failed; CUDA's own functions report the failure and end it
   all the same. */
#define ended(call)                                                                          \
    do {                                                                                     \
        ds_result ended_result_ = (call);                                                    \
        if (ended_result_ != DS_OK && (harness_is_cpu() || ended_result_ != DS_ERR_FAILED))  \
            fail_msg("%s: %s is %s: %s", __func__, #call, ds_result_get_name(ended_result_), \
                     ds_error_get_last());                                                   \
    } while (0)
void harness_die(const char *call, ds_result result);
void harness_sentence(const char *text, const char *call);

/* What is handed to a host function or callback: counts its runs and its destructions, keeps the
   status. */
typedef struct payload {
    _Atomic int ran, destroyed, status;
} payload;

void payload_run(void *user);
void payload_destroy(void *user);
void payload_callback(ds_stream stream, ds_result status, void *user);
/* Waits until each of them was destroyed, and checks that it was once. */
void await_destroyed(payload *p, int count);
/* Until it holds, or a minute is over: what CUDA ends on a thread of its own may end after
   ds_shutdown. */
#define AWAIT(condition)                                               \
    do {                                                               \
        for (int await_ = 0; !(condition) && await_ < 60000; await_++) \
            harness_sleep_ms(1);                                       \
    } while (0)
void harness_sleep_ms(int ms);

/* Blocks a stream from gate_close until gate_open: with a host function on the CPU driver; with
   a kernel on CUDA, which may run all host functions of a device on one thread, so that one of
   them would hold up those of other streams. */
typedef struct gate {
    _Atomic int entered;
    _Atomic int open;
    /* the two for the kernel; they stay the test's until it ends */
    _Atomic(_Atomic uint32_t *) words;
    _Atomic uint32_t *args[2]; /* of the kernel as a node */
} gate;

void gate_close(ds_stream s, gate *g);
void gate_open(gate *g);
void gate_wait_entered(gate *g);
/* The gate must not be reached yet, although whatever could run had its turn. */
void gate_expect_unentered(gate *g);
/* The gate as a host function, for tests of those. */
void gate_fn(void *gate);

/* Memory that kernels reach, the test's until it ends: a word with this value, or zeroed ones. */
uint64_t *word(uint64_t value);
uint64_t *zeroed_words(size_t count);

/* Waits for what happens soon after a call, not before its return. */
#define eventually(condition)                               \
    do {                                                    \
        uint64_t eventually_end_ = now_ns() + 10000000000u; \
        while (!(condition) && now_ns() < eventually_end_)  \
            harness_nap();                                  \
        assert_true(condition);                             \
    } while (0)
void harness_nap(void);

/* Starts this program again with some "NAME=value" (up to three, NULL-terminated) in its
   environment; its output goes to `output`. Returns the process, or -1. */
pid_t harness_start(const char *const settings[], FILE *output);
/* Waits for that process. Returns what waitpid reports, or -1 when it did not end in time. */
int harness_await(pid_t child);
/* Both. */
int harness_respawn(const char *const settings[], FILE *output);
/* The words that start this program again, with DS_TEST_RUNNER (an emulator, say) before its
   path; the thread's until its next call. */
char **harness_self(void);
/* Skips the rest of the test, and says so, in a build for an emulator (HARNESS_EMULATED) that
   does not do `what`. */
void not_emulated(const char *what);
/* Skips the test on Windows, which does not have WHAT. */
void not_on_windows(const char *what);
/* Returns 1 if the system has /dev/full; else says that this part of the test is left out. */
int harness_has_full_device(void);
/* 1 if the check layer is on: DEVSTREAM_CHECK. */
int harness_is_checked(void);
/* Skips the rest of the test, and says so, under the check layer, where `why` holds. */
void not_checked(const char *why);
/* Processors that this process may use. */
int harness_processors(void);

/* Threads of a test; on them ok_thread, not ok. */
pthread_t spawn(void *(*fn)(void *), void *arg);
void join(pthread_t thread);

/* The devices under test, counted modulo their number. */
ds_device harness_device(int i);
int harness_device_count(void);
/* With those that DS_TEST_UNUSED_DEVICES takes away from the tests. */
int harness_all_devices(void);
int harness_is_cpu(void);
/* After a failure of the i-th device. The CPU driver resets it; CUDA, where only the process can
   start afresh, refuses that and shuts down. */
void harness_recover(int device);
/* Skips the rest of the test where there is only one device. */
void two_devices(void);
/* A stream on the i-th device; flags as in ds_stream_desc. */
ds_stream harness_stream(int device, unsigned flags);

uint64_t now_ns(void);

/* A kernel of the suite: its CUDA form is the one of this name in kernels.cu (zeroed: there is
   none), loaded at once because loading may have to wait for kernels that run. */
ds_kernel_cuda harness_cuda_form(const char *name);
ds_kernel harness_kernel(const char *name, ds_kernel_fn cpu_fn, size_t args_size,
                         const ds_param *params, size_t param_count, size_t grain);
#define PARAM(kind, type, member) \
    { DS_PARAM_##kind, offsetof(type, member), sizeof((type *)0)->member }
#define PARAM_FIRST \
    { DS_PARAM_FIRST, 0, 8 }
#define PARAM_COUNT \
    { DS_PARAM_COUNT, 0, 8 }

/* *h = *h * P + n on plain memory: two of them in another order, one lost or one doubled give
   another number. */
ds_kernel harness_fold_kernel(void);
void fold(ds_stream s, uint64_t *h, uint64_t n);
uint64_t fold_host(uint64_t h, uint64_t n);

typedef struct fold_args {
    uint64_t *h, n;
} fold_args;

/* ---- for captures and graphs ---- */

/* Both as a node, which is to be added before the eighth fold_node after this one: the arguments
   are kept that long. */
ds_node_desc fold_node(uint64_t *h, uint64_t n);
ds_node_desc gate_node(gate *g);
/* Makes what the helpers above make at their first use; while a stream captures that may be
   forbidden. */
void harness_warm_up(void);
/* Returns 0, and says so, if the driver has no conditional nodes (before CUDA 12.8). word: any
   that a condition may be. */
int harness_has_conditions(const uint32_t *word);
/* A capture on this stream is ended when the test fails before it comes to that. */
void harness_watch(ds_stream s);

/* Words and gates that were handed out are free again: for a test of many programs, between two
   of them. The devices are idle. */
void harness_reuse(void);
/* To be called after ds_shutdown: handles kept here are void. */
void harness_forget(void);
/* Destroys what is kept here and calls ds_shutdown. */
void harness_shutdown(void);
/* And initialises anew with these options; NULL: with those of the suite, at the next call. */
void harness_restart(const ds_init_desc *desc);
/* On the CPU driver: calls the function with the work run by the caller, in a random order, by one
   worker, by workers that do not spin, and on a virtual clock, and restores the suite's options. */
void harness_in_every_way(void (*fn)(void));
#endif
