/* Settings, counts, errors and what a test controls; the functions that need no communicator. */
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    char last_error[512];
} texts = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Thread_local char thread_error[512];
static atomic_ulong calls[SN_FUNCTIONS];
static atomic_ulong fail_in;       /* calls until the one that fails; 0: off */
static atomic_ulong fail_async_in; /* the same for ncclCommGetAsyncError */
static atomic_int fail_code, fail_came;
static atomic_uint delay_ms;
static atomic_ulong ids_made;

static const char *const function_names[SN_FUNCTIONS] = {
#define X(result, name, parameters) #name,
    NCCL_FUNCTIONS(X)
#undef X
};

_Noreturn void sn_fail_test(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("standin: NCCL: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

static int reports(void) {
    const char *text = getenv("STANDIN_NCCL_REPORT");
    const char *debug = getenv("NCCL_DEBUG");
    return (text && *text && strcmp(text, "0") != 0) || (debug && *debug);
}

ncclResult_t sn_error(ncclResult_t result, const char *format, ...) {
    char text[sizeof texts.last_error];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    pthread_mutex_lock(&texts.lock);
    memcpy(texts.last_error, text, sizeof text);
    pthread_mutex_unlock(&texts.lock);
    if (reports())
        fprintf(stderr, "standin: NCCL: %s\n", text);
    return result;
}

void *sn_allocate(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p)
        sn_fail_test("out of memory");
    return p;
}

/* ---- the stand-in for cudart ---- */

extern __typeof__(standin_get_services) standin_get_services __attribute__((weak));

static const standin_services *services;
static pthread_once_t services_once = PTHREAD_ONCE_INIT;

#ifndef STANDIN_CUDART
#define STANDIN_CUDART "libcudart.so.13"
#endif

/* In the program or a library that it is linked with; or in one that it has loaded; or the one
   beside this library. */
static void find_services(void) {
    const standin_services *(*get)(void) = standin_get_services;
    void *library = NULL;
    if (!get)
        library = dlopen(STANDIN_CUDART, RTLD_NOW | RTLD_NOLOAD);
    if (!get && !library)
        library = dlopen(STANDIN_CUDART, RTLD_NOW);
    if (library)
        *(void **)&get = dlsym(library, "standin_get_services");
    if (!get)
        sn_fail_test("the program does not run on the stand-in for cudart: neither it nor %s has "
                     "standin_get_services",
                     STANDIN_CUDART);
    services = get();
}

const standin_services *sn_cuda(void) {
    pthread_once(&services_once, find_services);
    return services;
}

/* ---- settings ---- */

uint64_t sn_seed(void) {
    const char *text = getenv("STANDIN_NCCL_SEED");
    return text && *text ? strtoull(text, NULL, 0) : 1;
}

/* Of splitmix64. */
uint64_t sn_mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int sn_is_on(const char *setting) {
    const char *text = getenv(setting);
    return text && *text == '1';
}

int sn_mismatch_is_error(void) {
    const char *text = getenv("STANDIN_NCCL_MISMATCH");
    return text && !strcmp(text, "error");
}

void sn_mismatch(const char *text) {
    if (!sn_mismatch_is_error())
        sn_fail_test("%s", text);
    sn_error(ncclInvalidUsage, "%s", text);
}

void sn_nap(void) {
    unsigned ms = atomic_load(&delay_ms);
    if (ms)
        usleep(1000 * ms);
}

const char *sn_kind_name(int kind) {
    static const char *const names[] = { "Reduce",    "Broadcast", "AllReduce", "ReduceScatter",
                                         "AllGather", "AlltoAll",  "Gather",    "Scatter",
                                         "Send",      "Recv",      "Finalize",  "Split",
                                         "Grow" };
    return kind >= 0 && (size_t)kind < sizeof names / sizeof *names ? names[kind] : "?";
}

/* What NCCL has and the stand-in lacks. */
__attribute__((constructor)) static void say_what_lacks(void) {
    if (reports())
        fprintf(stderr,
                "standin: NCCL %d.%d.%d without pnccl*, ncclCommWindow*, ncclWin*, ncclDev*, "
                "ncclPutSignal, ncclSignal, ncclWaitSignal, ncclCommSuspend, ncclCommResume, "
                "ncclCommMemStats, ncclParam*, ncclSetEncryption, ncclResetDebugInit%s\n",
                STANDIN_NCCL_CODE / 10000, STANDIN_NCCL_CODE / 100 % 100, STANDIN_NCCL_CODE % 100,
                STANDIN_NCCL_CODE < 21900 ? ", and all that is newer" : "");
}

/* ---- calls ---- */

/* Whether this is the call that a test lets fail. */
static int counts_down(atomic_ulong *in) {
    unsigned long left = atomic_load(in);
    while (left && !atomic_compare_exchange_weak(in, &left, left - 1)) {
    }
    if (left == 1)
        atomic_store(&fail_came, 1);
    return left == 1;
}

static ncclResult_t injected_failure(sn_function f) {
    if (!counts_down(&fail_in))
        return ncclSuccess;
    return sn_error((ncclResult_t)atomic_load(&fail_code), "%s: a test lets it fail",
                    function_names[f]);
}

void sn_fail_async(sn_comm *comm) {
    if (counts_down(&fail_async_in))
        standin_nccl_async_error((struct ncclComm *)comm, atomic_load(&fail_code));
}

ncclResult_t sn_enter(sn_function f) {
    atomic_fetch_add(&calls[f], 1);
    if (f == SN_ncclCommGetAsyncError)
        return ncclSuccess;
    ncclResult_t result = injected_failure(f);
    sn_group_fails(result);
    return result;
}

void standin_nccl_fail(unsigned long nth, int code) {
    atomic_store(&fail_came, 0);
    atomic_store(&fail_code, code);
    atomic_store(&fail_in, nth);
}

void standin_nccl_fail_async(unsigned long nth, int code) {
    atomic_store(&fail_came, 0);
    atomic_store(&fail_code, code);
    atomic_store(&fail_async_in, nth);
}

int standin_nccl_failed(void) {
    return atomic_load(&fail_came);
}

unsigned long standin_nccl_calls(const char *name) {
    for (size_t i = 0; i < SN_FUNCTIONS; i++)
        if (!strcmp(function_names[i], name))
            return atomic_load(&calls[i]);
    sn_fail_test("standin_nccl_calls: there is no %s", name);
}

void standin_nccl_delay(unsigned ms) {
    atomic_store(&delay_ms, ms);
}

size_t standin_nccl_live(char *report, size_t size) {
    static const char *const kinds[] = { "communicator", "registration", "operation", "unique id" };
    size_t counts[4] = { 0 }, total = 0, at = 0;
    counts[0] = sn_comm_count(&counts[1], &counts[2]);
    counts[3] = sn_board_unused();
    if (report && size)
        *report = 0;
    for (int i = 0; i < 4; i++) {
        total += counts[i];
        if (counts[i] && report && at < size)
            at += (size_t)snprintf(report + at, size - at, "%s%zu %s%s", at ? ", " : "", counts[i],
                                   kinds[i], counts[i] > 1 ? "s" : "");
    }
    return total;
}

/* ---- functions without a communicator ---- */

ncclResult_t ncclGetVersion(int *version) {
    SN_ENTER(ncclGetVersion);
    if (!version)
        return sn_error(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    *version = STANDIN_NCCL_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    SN_ENTER(ncclGetUniqueId);
    if (!id)
        return sn_error(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL");
    memset(id, 0, sizeof *id);
    return sn_board_create(id->internal, sn_mix(1, atomic_fetch_add(&ids_made, 1)));
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const names[ncclNumResults] = {
        "success",
        "a call of CUDA has failed",
        "a call of the system has failed",
        "internal error",
        "invalid argument",
        "invalid usage",
        "another rank has failed, or the network",
        "the operation is in progress",
        "time is over",
    };
    atomic_fetch_add(&calls[SN_ncclGetErrorString], 1);
    return (unsigned)result < ncclNumResults ? names[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    atomic_fetch_add(&calls[SN_ncclGetLastError], 1);
    pthread_mutex_lock(&texts.lock);
    memcpy(thread_error, texts.last_error, sizeof thread_error);
    pthread_mutex_unlock(&texts.lock);
    return thread_error;
}
