/* streams.c - the rows of devstream but large copies. Argument: queues, calls, copies, pending or
   streams; one process each, because memory that one row has freed would hide what another takes.
   Linked with the library as an object of its own, so that nothing is inlined into the rows. */
#include "bench.h"
#include "../devstream.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define Q_OPS (bench_quick() ? 300000 : 1000000)
#define Q_HOPS 100000
#define Q_FORKS 10000
#define Q_HOT 50000

static void check(ds_result r) {
    if (r >= 0)
        return;
    fprintf(stderr, "devstream: %s: %s\n", ds_result_get_name(r), ds_error_get_last());
    exit(1);
}

/* ---- the tiny operations --------------------------------------------------------------------- */

typedef struct fold_args {
    uint64_t *h;
    uint64_t n;
} fold_args;

typedef struct gather_args {
    uint64_t *h;
    const uint64_t *from;
    uint64_t count;
} gather_args;

static int fold(size_t first, size_t count, const void *args) {
    const fold_args *a = args;
    (void)first, (void)count;
    bench_fold(a->h, a->n);
    return 0;
}

static int gather(size_t first, size_t count, const void *args) {
    const gather_args *a = args;
    (void)first, (void)count;
    bench_gather(a->h, a->from, a->count);
    return 0;
}

static ds_kernel kernel_fold, kernel_gather;
static ds_stream streams[8];
static ds_event events[8];

static void q_fold(unsigned q, uint64_t *h, uint64_t n) {
    fold_args a = { h, n };
    check(ds_kernel_launch(kernel_fold, 1, &a, sizeof a, streams[q]));
}

static void q_gather(unsigned q, uint64_t *h, const uint64_t *from, uint64_t count) {
    gather_args a = { h, from, count };
    check(ds_kernel_launch(kernel_gather, 1, &a, sizeof a, streams[q]));
}

static void q_record(unsigned q) {
    check(ds_event_record(events[q], streams[q]));
}

static void q_wait(unsigned q, unsigned p) {
    check(ds_stream_wait_event(streams[q], events[p]));
}

static void q_sync(unsigned q) {
    check(ds_stream_synchronize(streams[q]));
}

#define Q_HOST

typedef struct host_fold {
    uint64_t *h;
    uint64_t n;
} host_fold;

static void fold_host(void *user) {
    const host_fold *f = user;
    bench_fold(f->h, f->n);
}

/* The rounds of the row are one after the other, so one argument is enough. */
static void q_host(unsigned q, uint64_t *h, uint64_t n) {
    static host_fold f;
    f = (host_fold){ h, n };
    check(ds_stream_launch_host_func(streams[q], fold_host, &f, NULL));
}

#include "queues.h"

static void start(void) {
    ds_param f[] = { { DS_PARAM_READ_WRITE, offsetof(fold_args, h), sizeof(void *) },
                     { DS_PARAM_VALUE, offsetof(fold_args, n), 8 } };
    ds_param g[] = { { DS_PARAM_READ_WRITE, offsetof(gather_args, h), sizeof(void *) },
                     { DS_PARAM_READ, offsetof(gather_args, from), sizeof(void *) },
                     { DS_PARAM_VALUE, offsetof(gather_args, count), 8 } };
    ds_kernel_desc df = { .name = "fold",
                          .cpu_fn = fold,
                          .args_size = sizeof(fold_args),
                          .params = f,
                          .param_count = 2 };
    ds_kernel_desc dg = { .name = "gather",
                          .cpu_fn = gather,
                          .args_size = sizeof(gather_args),
                          .params = g,
                          .param_count = 3 };
    ds_stream_desc ds = { .device = ds_cpu(0) };
    void *memory;
    check(ds_device_set_current(ds_cpu(0)));
    check(ds_kernel_create(&df, &kernel_fold));
    check(ds_kernel_create(&dg, &kernel_gather));
    for (int i = 0; i < 8; i++) {
        check(ds_stream_create(&ds, &streams[i]));
        check(ds_event_create(0, NULL, &events[i]));
    }
    check(ds_pinned_alloc(64 * sizeof *q_hash, &memory));
    q_hash = memory;
    /* starts the threads */
    if (isnan(q_queue(8, 64)))
        bench_failed = 1;
}

/* ---- single calls ---------------------------------------------------------------------------- */

/* short batches: one that another process interrupts is an outlier, not the mean */
enum { CALLS = 2000 };

static volatile int sink;

__attribute__((noinline)) static ds_result nothing(ds_stream s, unsigned *out) {
    __asm__ volatile("" : : "r"(out) : "memory");
    return s.id ? DS_OK : DS_ERR_INVALID_HANDLE;
}

/* ns of a call, in a loop; the parenthesised name is the plain function without its macro. */
#define TIME(name, call)                \
    static double name(ds_stream s) {   \
        unsigned flags = 0;             \
        int sum = 0;                    \
        double t = bench_now_ns();      \
        for (int i = 0; i < CALLS; i++) \
            sum += (int)(call);         \
        t = bench_now_ns() - t;         \
        sink = sum + (int)flags;        \
        return t / CALLS;               \
    }
TIME(time_query, ((void)flags, ds_stream_query(s)))
TIME(time_query_plain, ((void)flags, (ds_stream_query)(s)))
TIME(time_flags, (ds_stream_get_flags)(s, &flags))
TIME(time_nothing, nothing(s, &flags))
TIME(time_range, ((void)flags, (void)s, ds_range_push("range") + ds_range_pop()))
TIME(time_two_nothings, (nothing(s, &flags) + nothing(s, &flags)))

/* Median over pairs of batches run one after the other. */
static double difference(double (*more)(ds_stream), double (*less)(ds_stream)) {
    enum { PAIRS = 2000 };

    static double v[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        v[i] = i % 2 ? more(streams[0]) : -less(streams[0]); /* either goes first as often */
        v[i] += i % 2 ? -less(streams[0]) : more(streams[0]);
    }
    return bench_median(v, PAIRS);
}

/* ---- closures -------------------------------------------------------------------------------- */

static int closure_fold(void *payload) {
    const fold_args *a = payload;
    bench_fold(a->h, a->n);
    return 0;
}

static void put_closure(unsigned q, uint64_t *h, uint64_t n) {
    fold_args a = { h, n };
    check(ds_stream_launch_closure(streams[q], closure_fold, &a, sizeof a, NULL));
}

/* ns of one of 1,000 operations and their wait; NaN: the result is wrong. */
static double time_thousand(void (*put_fn)(unsigned q, uint64_t *h, uint64_t n)) {
    enum { COUNT = 1000 };

    uint64_t want = 0;
    q_reset();
    double t = bench_now_ns();
    for (uint64_t i = 0; i < COUNT; i++)
        put_fn(0, Q_H(0), i);
    q_sync(0);
    t = bench_now_ns() - t;
    for (uint64_t i = 0; i < COUNT; i++)
        bench_fold(&want, i);
    return *Q_H(0) == want ? t / COUNT : NAN;
}

/* Kernels and closures take turns. */
static void closures(void) {
    enum { TURNS = 201 };

    static double kernel[TURNS], closure[TURNS];
    for (int i = 0; i < TURNS; i++) {
        kernel[i] = time_thousand(q_fold);
        closure[i] = time_thousand(put_closure);
    }
    bench_put("kernel_1000", "devstream", bench_median(kernel, TURNS));
    bench_put("closure_1000", "devstream", bench_median(closure, TURNS));
}

static void calls(void) {
    q_sync(0);
    closures();
    bench_put("call_site", "devstream", difference(time_query, time_query_plain));
    bench_put("handle_pin", "devstream", difference(time_flags, time_nothing));
    bench_put("range", "devstream", difference(time_range, time_two_nothings));
}

/* ---- small copies ---------------------------------------------------------------------------- */

/* ns of a copy of 256 bytes on an idle stream with its wait; NaN: the bytes did not arrive. */
static double time_copy(ds_stream s, char *memory) {
    enum { BATCH = 100 };

    memory[0]++;
    double t = bench_now_ns();
    for (int i = 0; i < BATCH; i++) {
        check(ds_copy(memory + 256, memory, 256, s));
        check(ds_stream_synchronize(s));
    }
    t = bench_now_ns() - t;
    return memcmp(memory, memory + 256, 256) ? NAN : t / BATCH;
}

/* The kinds of streams take turns. */
static void small_copies(void) {
    enum { TURNS = 1001 };

    static const char *const rows[] = { "copy_256", "copy_256_blocking", "copy_256_legacy" };
    static double v[3][TURNS];
    ds_stream_desc blocking = { .device = ds_cpu(0), .flags = DS_STREAM_BLOCKING };
    ds_stream s[3] = { streams[0] };
    void *memory;
    int wrong = 0;
    check(ds_device_alloc(ds_cpu(0), 512, &memory));
    memset(memory, 1, 512);
    check(ds_stream_create(&blocking, &s[1]));
    check(ds_stream_get_legacy(ds_cpu(0), &s[2]));
    for (int i = 0; i < TURNS; i++)
        for (int k = 0; k < 3; k++) {
            v[k][i] = time_copy(s[k], memory);
            wrong |= isnan(v[k][i]);
        }
    for (int k = 0; k < 3; k++)
        bench_put(rows[k], "devstream", wrong ? NAN : bench_median(v[k], TURNS));
    check(ds_device_free(memory));
    check(ds_stream_destroy(s[1]));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static double resident(void) {
    unsigned long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu %lu", &size, &pages) != 2) {
        perror("/proc/self/statm");
        exit(1);
    }
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static atomic_int gate; /* 1: a host function stands in it; 2: open */

static void stand(void *user) {
    (void)user;
    atomic_store(&gate, 1);
    while (atomic_load(&gate) != 2)
        bench_sleep_us(200);
}

static void pending(void) {
    enum { COUNT = 100000 };

    ds_cpu_stats stats;
    uint64_t want = 0;
    q_reset();
    check(ds_stream_launch_host_func(streams[0], stand, NULL, NULL));
    while (atomic_load(&gate) != 1)
        bench_sleep_us(200);
    double before = resident();
    for (uint64_t i = 0; i < COUNT; i++) {
        q_fold(0, Q_H(0), i);
        bench_fold(&want, i);
    }
    double grown = resident() - before;
    check(ds_cpu_get_stats(&stats));
    atomic_store(&gate, 2);
    q_sync(0);
    int right = *Q_H(0) == want;
    bench_put("pending_bytes", "devstream", right ? (double)stats.queue_bytes / COUNT : NAN);
    bench_put("pending_rss", "devstream", right ? grown / COUNT : NAN);
}

static void many_streams(void) {
    enum { COUNT = 10000 };

    ds_stream *many = malloc(COUNT * sizeof *many);
    ds_stream_desc desc = { .device = ds_cpu(0) };
    uint64_t want = 0;
    if (!many)
        exit(1);
    memset(many, 1, COUNT * sizeof *many); /* our own pages are not the row's */
    q_reset();
    double before = resident();
    for (int i = 0; i < COUNT; i++)
        check(ds_stream_create(&desc, &many[i]));
    bench_put("streams_new", "devstream", (resident() - before) / 1048576);
    for (uint64_t i = 0; i < COUNT; i++) { /* one after the other: all fold into one hash */
        fold_args a = { Q_H(0), i };
        check(ds_kernel_launch(kernel_fold, 1, &a, sizeof a, many[i]));
        check(ds_stream_synchronize(many[i]));
        bench_fold(&want, i);
    }
    bench_put("streams_used", "devstream", *Q_H(0) == want ? (resident() - before) / 1048576 : NAN);
    for (int i = 0; i < COUNT; i++)
        check(ds_stream_destroy(many[i]));
    free(many);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    start();
    if (!strcmp(what, "queues"))
        q_run("devstream");
    else if (!strcmp(what, "calls"))
        calls();
    else if (!strcmp(what, "copies"))
        small_copies();
    else if (!strcmp(what, "pending"))
        pending();
    else if (!strcmp(what, "streams"))
        many_streams();
    else {
        fprintf(stderr, "usage: %s queues | calls | copies | pending | streams\n", argv[0]);
        return 2;
    }
    return bench_failed;
}
