/* probe.h - what probes.c and risks.c share: the objects and waits of a probe, the driver's
   functions and the kernels, and the runner. A probe is plain cudart, no devstream. Each one runs
   in a process of its own with a deadline, so that a device failure or a hang spoils no other, and
   becomes one row of a Markdown table. A probe reports observations only: no answer is a failure.

   A program includes this file, defines its probes and a table of them, and calls probe_main. */
#ifndef PROBE_H
#define PROBE_H

#define _GNU_SOURCE
#include "../support/cuda_headers.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))
#define SIZE ((size_t)1 << 20)
#define LEGACY cudaStreamLegacy

/* ---- what the probes share ---- */

static inline int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline void nap_us(long us) {
    nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL);
}

/* One observation. It is flushed at once: what was seen before a hang stays in the table. */
__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

/* The name of a result. Takes it from cudart's memory of the thread too, so that it does not
   turn up in a later answer. */
static inline const char *nm(cudaError_t e) {
    (void)cudaGetLastError();
    return cudaGetErrorName(e);
}

#define MUST(call) must(call, #call, __LINE__)

static inline void must(cudaError_t e, const char *what, int line) {
    if (e == cudaSuccess)
        return;
    note("setup failed in line %d: %s: %s", line, what, cudaGetErrorName(e));
    exit(3);
}

#define MUST_DRV(call) must_drv(call, #call, __LINE__)

static inline void must_drv(CUresult e, const char *what, int line) {
    if (e == CUDA_SUCCESS)
        return;
    note("setup failed in line %d: %s: %d", line, what, (int)e);
    exit(3);
}

/* A host function or callback that holds its stream until the gate is opened, and never longer than
   limit_ms. */
typedef struct gate {
    int limit_ms;
    _Atomic int open, entered, left;
    pthread_t thread;
} gate;

static inline void CUDART_CB gate_fn(void *pointer) {
    gate *g = pointer;
    int64_t end = now_us() + g->limit_ms * (int64_t)1000;
    g->thread = pthread_self();
    g->entered = 1;
    while (!g->open && now_us() < end)
        nap_us(100);
    g->left = 1;
}

static inline void CUDART_CB gate_callback(cudaStream_t s, cudaError_t status, void *pointer) {
    (void)s;
    (void)status;
    gate_fn(pointer);
}

/* Which call puts the gate into its stream. */
typedef enum gate_kind { GATE_HOST_FUNCTION, GATE_CALLBACK } gate_kind;

/* Enqueues the gate without waiting for the stream to reach it. */
static inline void gate_enqueue(gate *g, cudaStream_t s, int limit_ms, gate_kind kind) {
    g->limit_ms = limit_ms;
    g->open = g->entered = g->left = 0;
    if (kind == GATE_CALLBACK)
        MUST(cudaStreamAddCallback(s, gate_callback, g, 0));
    else
        MUST(cudaLaunchHostFunc(s, gate_fn, g));
}

static inline void gate_await(const gate *g) {
    for (int i = 0; i < 20000 && !g->entered; i++)
        nap_us(100);
    if (!g->entered) {
        note("setup failed: the gate was not reached in 2 s");
        exit(3);
    }
}

/* Enqueues the gate and waits until it holds the stream. */
static inline void gate_put_by(gate *g, cudaStream_t s, int limit_ms, gate_kind kind) {
    gate_enqueue(g, s, limit_ms, kind);
    gate_await(g);
}

static inline void gate_put(gate *g, cudaStream_t s, int limit_ms) {
    gate_put_by(g, s, limit_ms, GATE_HOST_FUNCTION);
}

/* Opens the gate and waits until its function has returned. */
static inline void gate_end(gate *g) {
    g->open = 1;
    for (int i = 0; i < 20000 && !g->left; i++)
        nap_us(100);
}

static inline cudaStream_t stream(unsigned flags) {
    cudaStream_t s;
    MUST(cudaStreamCreateWithFlags(&s, flags));
    return s;
}

static inline cudaEvent_t event(unsigned flags) {
    cudaEvent_t e;
    MUST(cudaEventCreateWithFlags(&e, flags));
    return e;
}

#define free_stream() stream(cudaStreamNonBlocking)
#define any_event() event(cudaEventDisableTiming)

static unsigned char *buf;    /* SIZE bytes of device memory */
static unsigned char *pinned; /* SIZE bytes of host memory */

static inline void start(void) {
    MUST(cudaFree(NULL));
    MUST(cudaMalloc((void **)&buf, SIZE));
    MUST(cudaHostAlloc((void **)&pinned, SIZE, cudaHostAllocDefault));
    memset(pinned, 0, SIZE);
    MUST(cudaDeviceSynchronize());
}

static inline cudaError_t touch(cudaStream_t s) {
    return cudaMemsetAsync(buf, 1, 64, s);
}

/* Waits by asking; NotReady when it takes more than ms. */
static inline cudaError_t settle(cudaStream_t s, int ms) {
    int64_t end = now_us() + ms * (int64_t)1000;
    for (;;) {
        cudaError_t e = cudaStreamQuery(s);
        if (e != cudaErrorNotReady || now_us() > end) {
            (void)cudaGetLastError();
            return e;
        }
        nap_us(200);
    }
}

/* Does work put on the stream now get through in 200 ms? Not by a host function: those may share
   one thread. */
static inline const char *gets_through(cudaStream_t s) {
    cudaEvent_t e = any_event();
    cudaError_t r = touch(s);
    if (r == cudaSuccess)
        r = cudaEventRecord(e, s);
    if (r != cudaSuccess)
        return nm(r);
    for (int i = 0; i < 200; i++) {
        r = cudaEventQuery(e);
        if (r != cudaErrorNotReady)
            return r == cudaSuccess ? "runs" : nm(r);
        (void)cudaGetLastError();
        nap_us(1000);
    }
    return "waits";
}

static inline const char *state(cudaStream_t s) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t e = cudaStreamIsCapturing(s, &status);
    if (e != cudaSuccess)
        return nm(e);
    if (status == cudaStreamCaptureStatusNone)
        return "not capturing";
    return status == cudaStreamCaptureStatusActive ? "active" : "invalidated";
}

static inline void begin(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    MUST(cudaStreamBeginCapture(s, mode));
}

static inline cudaError_t end(cudaStream_t s) {
    cudaGraph_t g = NULL;
    cudaError_t e = cudaStreamEndCapture(s, &g);
    if (g)
        cudaGraphDestroy(g);
    (void)cudaGetLastError();
    return e;
}

static const enum cudaStreamCaptureMode modes[] = { cudaStreamCaptureModeGlobal,
                                                    cudaStreamCaptureModeThreadLocal,
                                                    cudaStreamCaptureModeRelaxed };

static const char *const mode_names[] = { "global", "thread-local", "relaxed" };
#define RELAXED cudaStreamCaptureModeRelaxed

typedef struct job {
    void (*fn)(void *);
    void *arg;
} job;

static inline void *job_main(void *pointer) {
    job *j = pointer;
    j->fn(j->arg);
    return NULL;
}

static inline void in_thread(void (*fn)(void *), void *arg) {
    pthread_t thread;
    job j = { fn, arg };
    if (pthread_create(&thread, NULL, job_main, &j))
        exit(3);
    pthread_join(thread, NULL);
}

/* Updates the executable from the graph and notes the result, then launches it. */
static inline void update(const char *what, cudaGraphExec_t exec, cudaGraph_t graph,
                          cudaStream_t s) {
#if CUDART_VERSION >= 12000
    cudaGraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    cudaError_t e = cudaGraphExecUpdate(exec, graph, &info);
    int result = (int)info.result;
#else
    cudaGraphNode_t node;
    enum cudaGraphExecUpdateResult found = cudaGraphExecUpdateSuccess;
    cudaError_t e = cudaGraphExecUpdate(exec, graph, &node, &found);
    int result = (int)found;
#endif
    note("%s: %s, result %d", what, nm(e), result);
    e = cudaGraphLaunch(exec, s);
    note("launch then %s, stream %s", nm(e), nm(settle(s, 2000)));
}

/* ---- the driver's functions, through cudart ---- */

/* Finds a driver function in the form that CUDA `version` had; 0: the driver has none. */
static inline int find_entry(const char *name, unsigned version, void *out_fn) {
    void *fn = NULL;
    cudaError_t e;
#if CUDART_VERSION >= 12050
    enum cudaDriverEntryPointQueryResult found;
    e = cudaGetDriverEntryPointByVersion(name, &fn, version, cudaEnableDefault, &found);
#elif CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found;
    (void)version;
    e = cudaGetDriverEntryPoint(name, &fn, cudaEnableDefault, &found);
#else
    (void)version;
    e = cudaGetDriverEntryPoint(name, &fn, cudaEnableDefault);
#endif
    (void)cudaGetLastError();
    memcpy(out_fn, &fn, sizeof fn);
    return e == cudaSuccess && fn;
}

static inline void entry(const char *name, void *out_fn) {
    if (find_entry(name, 11080, out_fn))
        return;
    note("setup failed: the driver has no %s", name);
    exit(3);
}

static CUresult (*drv_error_name)(CUresult, const char **);
static CUresult (*drv_module_load)(CUmodule *, const void *);
static CUresult (*drv_module_unload)(CUmodule);
static CUresult (*drv_module_function)(CUfunction *, CUmodule, const char *);
static CUresult (*drv_launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void **, void **);
static CUresult (*drv_stream_query)(CUstream);
static CUresult (*drv_event_query)(CUevent);

static inline const char *drv_nm(CUresult e) {
    const char *name = NULL;
    return drv_error_name(e, &name) == CUDA_SUCCESS && name ? name : "an unknown CUresult";
}

static const char ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry die() { trap; ret; }\n"
    ".visible .entry spin(.param .u64 ns) {\n"
    "  .reg .u64 %a, %b, %c; .reg .pred %p;\n"
    "  ld.param.u64 %a, [ns]; mov.u64 %b, %globaltimer;\n"
    "L: mov.u64 %c, %globaltimer; sub.u64 %c, %c, %b; setp.lt.u64 %p, %c, %a; @%p bra L; ret;\n}\n";
static CUmodule module;
static CUfunction die, spin;

static inline void entries(void) {
    entry("cuGetErrorName", &drv_error_name);
    entry("cuModuleLoadData", &drv_module_load);
    entry("cuModuleUnload", &drv_module_unload);
    entry("cuModuleGetFunction", &drv_module_function);
    entry("cuLaunchKernel", &drv_launch);
    entry("cuStreamQuery", &drv_stream_query);
    entry("cuEventQuery", &drv_event_query);
}

static inline void load(void) {
    entries();
    MUST_DRV(drv_module_load(&module, ptx));
    MUST_DRV(drv_module_function(&die, module, "die"));
    MUST_DRV(drv_module_function(&spin, module, "spin"));
}

static inline CUresult launch(CUfunction f, cudaStream_t s, uint64_t ns) {
    void *params[] = { &ns };
    return drv_launch(f, 1, 1, 1, 1, 1, 1, 0, s, f == spin ? params : NULL, NULL);
}

static inline void spin_for(cudaStream_t s, int ms) {
    MUST_DRV(launch(spin, s, (uint64_t)ms * 1000000u));
}

/* A callback and a host function that leave word. */
typedef struct seen_call {
    _Atomic int calls;
    cudaError_t status;
    pthread_t thread;
} seen_call;

static inline void CUDART_CB seen_callback(cudaStream_t s, cudaError_t status, void *user) {
    seen_call *c = user;
    (void)s;
    c->status = status;
    c->thread = pthread_self();
    c->calls++;
}

static inline void CUDART_CB seen_host_fn(void *user) {
    seen_callback(NULL, cudaSuccess, user);
}

/* ---- made-up probes, for the machinery ---- */

static inline void fake_good(void) {
    note("an answer");
    note("a | in another");
}

static inline void fake_hang(void) {
    note("seen before the hang");
    for (;;)
        pause();
}

static inline void fake_crash(void) {
    note("seen before the crash");
    raise(SIGKILL);
}

static inline void fake_setup(void) {
    must(cudaErrorInvalidValue, "a call", 7);
}

static inline void fake_silent(void) {
}

/* ---- the table ---- */

typedef struct probe {
    const char *id, *question;
    void (*fn)(void);
} probe;

typedef struct probe_table {
    const probe *rows;
    int count;
} probe_table;

static const probe fake_rows[] = {
    { "F1", "answers", fake_good },        { "F2", "hangs", fake_hang },
    { "F3", "crashes", fake_crash },       { "F4", "has no setup", fake_setup },
    { "F5", "says nothing", fake_silent },
};
static const probe_table fakes = { fake_rows, COUNT(fake_rows) };

static inline int show_device(void) {
    int count = 0, runtime = 0, driver = 0, major = 0, minor = 0;
    struct cudaDeviceProp properties;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0) {
        note("no CUDA device: cudaGetDeviceCount says %d (%s)", (int)e, cudaGetErrorName(e));
        return 77;
    }
    MUST(cudaRuntimeGetVersion(&runtime));
    MUST(cudaDriverGetVersion(&driver));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    MUST(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    MUST(cudaGetDeviceProperties(&properties, 0));
    note("%s, compute capability %d.%d, %d device(s); cudart %d, driver %d", properties.name, major,
         minor, count, runtime, driver);
    return 0;
}

static inline const probe *find_probe(const probe_table *table, const char *id) {
    for (int i = 0; i < table->count; i++)
        if (!strcmp(id, table->rows[i].id))
            return &table->rows[i];
    return NULL;
}

/* The process of one probe. */
static inline int child(const probe_table *table, const char *id) {
    const probe *p = find_probe(&fakes, id);
    if (!strcmp(id, "device"))
        return show_device();
    if (!p)
        p = find_probe(table, id);
    if (!p)
        return 2;
    p->fn();
    return 0;
}

/* Runs itself with --child ID and collects what it prints, one answer a line. Returns its wait
   status, or -1 after a kill. */
static inline int run_child(const char *id, int deadline_ms, char *out, size_t size) {
    int ends[2], status = 0, killed = 0;
    size_t used = 0;
    if (pipe(ends)) {
        perror("pipe");
        exit(2);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "probes", "--child", id, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    for (int64_t end_us = now_us() + deadline_ms * (int64_t)1000;;) {
        char block[4096];
        int64_t left = (end_us - now_us()) / 1000;
        int ready =
            left > 0 ? poll(&(struct pollfd){ .fd = ends[0], .events = POLLIN }, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0) {
            /* a process held by a driver ends late: it is waited for all the same */
            kill(pid, SIGKILL);
            killed = 1;
            break;
        }
        ssize_t n = read(ends[0], block, sizeof block);
        if (n <= 0)
            break;
        for (ssize_t i = 0; i < n && used + 1 < size; i++)
            out[used++] = block[i];
    }
    out[used] = 0;
    close(ends[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return killed ? -1 : status;
}

static inline void put_cell(const char *text) { /* lines become one cell */
    size_t length = strlen(text);
    while (length && text[length - 1] == '\n')
        length--;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\n')
            fputs(i && text[i - 1] == ':' ? " " : "; ", stdout);
        else {
            if (text[i] == '|')
                putchar('\\');
            putchar(text[i]);
        }
    }
}

static inline int row(const probe *p, int deadline_ms) {
    static char out[1 << 16];
    int status = run_child(p->id, deadline_ms, out, sizeof out), bad = 1;
    printf("| %s | %s | ", p->id, p->question);
    put_cell(out);
    const char *gap = out[0] ? "; " : "";
    if (status == -1)
        printf("%s**timed out after %d ms**", gap, deadline_ms);
    else if (WIFSIGNALED(status))
        printf("%s**died by signal %d (%s)**", gap, WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        printf("%s**ended with %d**", gap, WEXITSTATUS(status));
    else if (!out[0])
        printf("**no answer**");
    else
        bad = 0;
    printf(" |\n");
    fflush(stdout);
    return bad;
}

/* 1 if an argument names the probe or the family that it belongs to: R3 names "R3 small". */
static inline int is_chosen(const probe *p, int argc, char **argv) {
    for (int k = 1; k < argc; k++) {
        size_t length = strlen(argv[k]);
        if (!strncmp(p->id, argv[k], length) && (p->id[length] == 0 || p->id[length] == ' '))
            return 1;
    }
    return argc == 1;
}

static inline int env_int(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* Runs the chosen probes and prints the table. A probe whose deadline lies beyond the time for all
   of them is not begun, and its row says so. */
static inline int run_table(const probe_table *table, int argc, char **argv) {
    int deadline_ms = env_int("PROBES_DEADLINE_MS", 20000), bad = 0, chosen = 0;
    int64_t seconds = env_int("PROBES_SECONDS", 0), stop = now_us() + seconds * 1000000;

    puts("| probe | question | observed |\n|---|---|---|");
    for (int i = 0; i < table->count; i++) {
        const probe *p = &table->rows[i];
        if (!is_chosen(p, argc, argv))
            continue;
        chosen++;
        if (seconds && now_us() + deadline_ms * (int64_t)1000 > stop) {
            printf("| %s | %s | **not run**: the time was over |\n", p->id, p->question);
            bad++;
        } else {
            bad += row(p, deadline_ms);
        }
    }
    if (chosen)
        return bad ? 1 : 0;
    fprintf(stderr, "there is no such probe; --list prints their names\n");
    return 2;
}

static inline int probe_main(int argc, char **argv, const probe *rows, int count) {
    const probe_table table = { rows, count };
    char device[1000];

    if (argc == 3 && !strcmp(argv[1], "--child"))
        return child(&table, argv[2]);
    if (argc == 2 && !strcmp(argv[1], "--device"))
        return show_device();
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (int i = 0; i < count; i++)
            puts(rows[i].id);
        return 0;
    }
    if (env_int("PROBES_SELFTEST", 0))
        return run_table(&fakes, argc, argv);

    /* the first call on a machine can be slow */
    int status = run_child("device", 60000, device, sizeof device);
    fputs(device, stdout);
    if (status == -1 || !WIFEXITED(status)) {
        puts("asking for the device hung or died");
        return 1;
    }
    if (WEXITSTATUS(status))
        return WEXITSTATUS(status);
    putchar('\n');
    return run_table(&table, argc, argv);
}

#endif
