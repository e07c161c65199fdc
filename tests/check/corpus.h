/* corpus.h - shared by the programs of the corpus of races (test_check_corpus.c).

   Each program is a function with two forms: `correct` is 0 for the form with a defect, and 1 for
   the corrected one. FIRST and SECOND mark the two calls that conflict; the harness compares their
   lines with those of the report. A marked call stands on one line, since compilers differ in the
   line of a macro that is longer.

   The harness destroys what stream(), event(), device_memory(), pinned() and the functions for
   kernels and graphs return, after it has waited for the devices. */
#ifndef CORPUS_H
#define CORPUS_H

enum { SIZE = 4096 }; /* bytes of most buffers */

enum {
    THREADS = 1,  /* with the option "threads"; the forms run DS_CHECK_RUNS times */
    POSSIBLE = 2, /* the report has an inexact access */
    VAGUE = 16,   /* the corrected form has possible reports */
    ANY = -1,     /* of pair.extra: any number */
    EITHER = 4,   /* threads decide which of the two calls comes first */
    CPU_ONLY = 8  /* kernels without a CUDA form */
};

/* A program with the report that its defect causes. */
typedef struct pair {
    const char *name;
    void (*run)(int correct);
    ds_hazard hazard;   /* DS_HAZARD_NONE: a defect that the layer cannot see */
    const char *source; /* of a published defect; NULL: none */
    const char *fix;    /* part of ds_hazard_report.fix; NULL: any */
    const char *label;  /* ds_hazard_report.label; NULL: any */
    int missed;         /* ds_hazard_report.missed; 0: any */
    int extra;          /* further reports that follow from the first one */
    int repeated;       /* ds_check_stats.repeated of the racy form */
    const char *order;  /* part of ds_hazard_report.order; NULL: any */
    unsigned flags;
} pair;

/* The kind of the hazard without DS_HAZARD_, then other members. */
#define PAIR(function, ...) \
    { .name = #function, .run = function, .hazard = DS_HAZARD_##__VA_ARGS__ }

enum { KEPT = 32 };

/* What a program uses, until the harness ends it. */
static struct {
    ds_device device; /* under test */
    ds_device other;  /* a second one of its type */
    ds_stream stream[KEPT];
    size_t streams;
    ds_event event[KEPT];
    size_t events;
    ds_kernel kernel[KEPT];
    size_t kernels;
    ds_graph graph[KEPT];
    size_t graphs;
    ds_graph_exec exec[KEPT];
    size_t execs;
    void *device_memory[KEPT];
    size_t device_memories;
    void *pinned[KEPT];
    size_t pinneds;
    _Atomic int first;  /* line of the call that is marked FIRST */
    _Atomic int second; /* and SECOND */
} corpus;

static void corpus_die(const char *call, ds_result result, const char *file, int line) {
    fprintf(stderr, "%s:%d: %s is %s: %s\n", file, line, call, ds_result_get_name(result),
            ds_error_get_last());
    exit(1);
}

/* The call returns DS_OK; on any thread. */
#define must(call)                                               \
    do {                                                         \
        ds_result must_result_ = (call);                         \
        if (must_result_ != DS_OK)                               \
            corpus_die(#call, must_result_, __FILE__, __LINE__); \
    } while (0)

#define MARK(which, call)        \
    do {                         \
        corpus.which = __LINE__; \
        must(call);              \
    } while (0)
#define FIRST(call) MARK(first, call)
#define SECOND(call) MARK(second, call)

/* The same for the macros that declare accesses of host code. */
#define MARK_HOST(which, verb, ptr, bytes) \
    do {                                   \
        corpus.which = __LINE__;           \
        ds_host_##verb(ptr, bytes);        \
    } while (0)
#define FIRST_HOST(verb, ptr, bytes) MARK_HOST(first, verb, ptr, bytes)
#define SECOND_HOST(verb, ptr, bytes) MARK_HOST(second, verb, ptr, bytes)

/* ---- objects ---- */

static ds_stream stream_with(ds_device device, unsigned flags, const char *label) {
    ds_stream s;
    must(ds_stream_create(&(ds_stream_desc){ .device = device, .flags = flags, .label = label },
                          &s));
    corpus.stream[corpus.streams++] = s;
    return s;
}

/* A stream of the device under test that is not ordered with the legacy stream. */
static ds_stream stream(const char *label) {
    return stream_with(corpus.device, DS_STREAM_NON_BLOCKING, label);
}

static ds_stream blocking_stream(const char *label) {
    return stream_with(corpus.device, DS_STREAM_BLOCKING, label);
}

static ds_stream legacy_stream(void) {
    ds_stream s;
    must(ds_stream_get_legacy(corpus.device, &s));
    return s;
}

static ds_event event(void) {
    ds_event e;
    must(ds_event_create(0, NULL, &e));
    corpus.event[corpus.events++] = e;
    return e;
}

static void *memory_of(ds_device device, size_t bytes) {
    void *p;
    must(ds_device_alloc(device, bytes, &p));
    corpus.device_memory[corpus.device_memories++] = p;
    return p;
}

static char *device_memory(size_t bytes) {
    return memory_of(corpus.device, bytes);
}

static char *pinned(size_t bytes) {
    void *p;
    must(ds_pinned_alloc(bytes, &p));
    memset(p, 0, bytes);
    corpus.pinned[corpus.pinneds++] = p;
    return p;
}

static ds_graph graph_kept(ds_graph g) {
    corpus.graph[corpus.graphs++] = g;
    return g;
}

static ds_graph end_capture(ds_stream s) {
    ds_graph g;
    must(ds_capture_end(s, &g));
    return graph_kept(g);
}

static ds_graph_exec instantiate(ds_graph g) {
    ds_graph_exec e;
    must(ds_graph_instantiate(g, NULL, &e));
    corpus.exec[corpus.execs++] = e;
    return e;
}

/* ---- kernels ---- */

/* The arguments of all kernels. */
typedef struct work {
    void *x;
    uint64_t n;
} work;

/* The layer does not look into kernels, so they do nothing. */
static int work_fn(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

static const char work_ptx[] = ".version 5.0\n"
                               ".target sm_60\n"
                               ".address_size 64\n"
                               ".visible .entry work( .param .u64 p0, .param .u64 p1 ) { ret; }\n";

static ds_kernel kernel_of(const ds_kernel_desc *forms, ds_param_kind kind) {
    ds_param params[] = {
        { .kind = kind, .offset = offsetof(work, x), .size = sizeof(void *) },
        { .kind = DS_PARAM_VALUE, .offset = offsetof(work, n), .size = sizeof(uint64_t) },
    };
    ds_kernel_desc desc = *forms;
    ds_kernel k;
    desc.cpu_fn = work_fn;
    desc.args_size = sizeof(work);
    desc.params = params;
    desc.param_count = 2;
    desc.cuda.image = work_ptx;
    desc.cuda.entry = "work";
    must(ds_kernel_create(&desc, &k));
    corpus.kernel[corpus.kernels++] = k;
    return k;
}

/* A kernel that accesses x as the extent says; NULL: the extent is not known. */
static ds_kernel kernel_with(const char *name, ds_param_kind kind, const ds_extent *extent) {
    ds_extent extents[2] = { { .kind = DS_EXTENT_NONE } };
    if (extent)
        extents[0] = *extent;
    return kernel_of(&(ds_kernel_desc){ .name = name, .extents = extent ? extents : NULL }, kind);
}

/* Kernels that access n bytes at x. */
static const ds_extent extent_of_n = { .kind = DS_EXTENT_COUNT, .bytes = 1, .count_param = 1 };

static ds_kernel writing_kernel(void) {
    return kernel_with("store", DS_PARAM_WRITE, &extent_of_n);
}

static ds_kernel reading_kernel(void) {
    return kernel_with("load", DS_PARAM_READ, &extent_of_n);
}

#define LAUNCH(kernel, ptr, count, stream) \
    ds_kernel_launch(kernel, count, &(work){ ptr, count }, sizeof(work), stream)

/* ---- waits and threads ---- */

static void nap(void) {
    nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
}

/* Waits for a flag of another thread, about which the layer does not know. */
static void await(_Atomic int *flag) {
    while (!*flag)
        nap();
}

static void poll_event(ds_event e) {
    ds_result r;
    while ((r = ds_event_query(e)) == DS_NOT_READY)
        nap();
    must(r);
}

/* Makes so many accesses that the layer drops those which it does not need any more. */
static void access_often(void) {
    char *p = pinned(SIZE);
    for (int i = 0; i < 6000; i++)
        ds_host_write(p, 16);
}

/* A thread of a program. Its start and its end are declared, so that only the order between threads
   that run at the same time is in question. */
typedef struct runner {
    pthread_t thread;
    void (*fn)(void *user);
    void *user;
} runner;

static void *runner_main(void *self) {
    runner *r = self;
    must(ds_check_acquire(r));
    r->fn(r->user);
    must(ds_check_release(r));
    return NULL;
}

static void start(runner *r, void (*fn)(void *user), void *user) {
    r->fn = fn;
    r->user = user;
    must(ds_check_release(r));
    if (pthread_create(&r->thread, NULL, runner_main, r)) {
        fprintf(stderr, "no thread\n");
        exit(1);
    }
}

static void finish(runner *r) {
    pthread_join(r->thread, NULL);
    must(ds_check_acquire(r));
}

/* Calls the function on a thread of its own and waits for its end. */
static void on_thread(void (*fn)(void *user), void *user) {
    runner r;
    start(&r, fn, user);
    finish(&r);
}

#endif
