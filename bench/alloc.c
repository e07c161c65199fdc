/* alloc.c - the rows of the allocator on the CPU driver. alloc [CASE...]: only the cases whose
   names begin so; alloc limits: what a machine without devstream allows. Each case is a process
   of its own, because an allocator cannot be put back to its beginning. Linked with the library
   as an object of its own, as a program's other files are. */
#include "bench.h"
#include "../devstream_alloc.h"
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct heap {
    ds_stream stream;
    struct entry *list[2048]; /* the limit's, by size */
} heap;

/* ---- devstream, and the limit ---------------------------------------------------------------- */

static void check(ds_result r) {
    if (r >= 0)
        return;
    fprintf(stderr, "devstream: %s: %s\n", ds_result_get_name(r), ds_error_get_last());
    exit(1);
}

static int limit_wanted; /* the rows are the limit's */

typedef struct entry {
    struct entry *next;
    size_t list;
} entry;

__attribute__((noinline)) static void *list_get(heap *h, size_t bytes) {
    unsigned log = 63 - (unsigned)__builtin_clzll(bytes | 32);
    size_t list = (size_t)log * 32 + (bytes >> (log - 5) & 31);
    entry *e = h->list[list];
    if (e) {
        h->list[list] = e->next;
        return e;
    }
    if (!(e = malloc(64)))
        abort();
    e->list = list;
    return e;
}

__attribute__((noinline)) static void list_put(heap *h, void *p) {
    entry *e = p;
    e->next = h->list[e->list];
    h->list[e->list] = e;
}

static int may_run_out; /* the process ends with NO_MEMORY when it does */

enum { NO_MEMORY = 3 };

static void refused(ds_result r) {
    if (may_run_out && (r == DS_ERR_OUT_OF_MEMORY || r == DS_ERR_LIMIT_EXCEEDED))
        _exit(NO_MEMORY);
    check(r);
}

static inline void *heap_get(heap *h, size_t bytes) {
    void *p;
    if (limit_wanted)
        return list_get(h, bytes);
    ds_result r = ds_mem_alloc(bytes, h->stream, &p);
    if (r < 0)
        refused(r);
    return p;
}

static inline void heap_put(heap *h, void *p) {
    if (limit_wanted) {
        list_put(h, p);
        return;
    }
    ds_result r = ds_mem_free(p);
    if (r < 0)
        check(r);
}

#include "heaps.h"

static heap heaps[2];
static atomic_size_t hooked; /* bytes that devstream has for itself */

static void *hook_alloc(size_t size, void *user) {
    size_t *p = malloc(size + 16);
    (void)user;
    if (!p)
        return NULL;
    *p = size;
    atomic_fetch_add(&hooked, size);
    return p + 2;
}

static void hook_free(void *ptr, void *user) {
    size_t *p = ptr;
    (void)user;
    if (!p)
        return;
    atomic_fetch_sub(&hooked, p[-2]);
    free(p - 2);
}

/* The memory of a device may exceed the machine's: nothing is behind it before it is touched. */
static void start(int devices, size_t gib, const char *options) {
    ds_cpu_desc cpu = { .devices = devices, .memory_limit = gib << 30 };
    check(ds_init(&(ds_init_desc){ .cpu = &cpu, .allocator = { hook_alloc, hook_free, NULL } }));
    if (options)
        check(ds_mem_configure_text(options));
    for (int i = 0; i < 2; i++)
        check(
            ds_stream_create(&(ds_stream_desc){ .device = ds_cpu(i % devices) }, &heaps[i].stream));
}

/* Every block has been counted and given back. */
static void finish(const char *row, int totals) {
    ds_mem_stats s = { 0 };
    for (int i = 0, n = 0; !ds_device_get_count(DS_DEVICE_CPU, &n) && i < n; i++) {
        check(ds_mem_get_stats(ds_cpu(i), &s));
        if (s.allocation[DS_STAT_ALL].current || s.allocated_bytes[DS_STAT_ALL].current ||
            s.allocation[DS_STAT_ALL].allocated != s.allocation[DS_STAT_ALL].freed ||
            (totals && !s.allocation[DS_STAT_ALL].allocated))
            bench_put(row, "devstream", NAN);
    }
    check(ds_stream_destroy(heaps[0].stream));
    check(ds_stream_destroy(heaps[1].stream));
    check(ds_shutdown());
}

static int repetitions(void) {
    return bench_quick() ? 3 : 7;
}

/* ---- one block, 64 blocks, two threads ------------------------------------------------------- */

static void one(void) {
    start(1, 80, NULL);
    heap_rows(&heaps[0], "devstream");
    finish("alloc_pair", 1);
}

static void one_current(void) {
    start(1, 80, "statistics:current");
    heap_pairs(&heaps[0], MIB);
    BENCH_REPEAT("alloc_pair_current", "devstream", repetitions(), heap_pairs(&heaps[0], MIB));
    finish("alloc_pair_current", 0);
}

static void two(int devices, const char *row) {
    start(devices, 80, NULL);
    heap_rows_two(&heaps[0], &heaps[1], row, "devstream");
    finish(row, 1);
}

static void two_streams(void) {
    two(1, "alloc_two_streams");
}

static void two_devices(void) {
    two(2, "alloc_two_devices");
}

/* ---- another stream -------------------------------------------------------------------------- */

static ds_event event;

static double pairs_used(int how) {
    int n = bench_quick() ? 100000 : 300000;
    heap *h = &heaps[0];
    ds_stream other = heaps[1].stream;
    double t = bench_now_ns();
    for (int i = 0; i < n; i++) {
        void *p = heap_get(h, MIB);
        if (how == 0)
            check(ds_mem_record_use(p, other));
        else if (how == 1)
            check(ds_mem_record_stream(p, other));
        else
            check(ds_event_record(event, other));
        heap_put(h, p);
    }
    return (bench_now_ns() - t) / n;
}

static void record(void) {
    start(1, 80, NULL);
    pairs_used(0);
    BENCH_REPEAT("alloc_record", "devstream", repetitions(), pairs_used(0));
    pairs_used(1);
    BENCH_REPEAT("alloc_record_stream", "devstream", repetitions(), pairs_used(1));
    finish("alloc_record", 1);
}

/* ---- traces ---------------------------------------------------------------------------------- */

static const struct config {
    const char *source, *options;
} configs[] = { { "devstream", NULL },
                { "plain conf", "expandable_segments:False" },
                { "torch conf", "preset:torch" },
                { "cupy conf", "preset:cupy" } };

enum { CONFIGS = sizeof configs / sizeof *configs };

static double fit(const trace *t, int device) {
    return (double)ds_mem_get_max_reserved(ds_cpu(device)) / (double)t->peak;
}

/* A config's rows of a trace: the fit of the first pass and of five, and the time of the later
   ones. */
static void replay(const char *name, const struct config *c) {
    char row[32];
    trace *t = trace_read(name);
    start(1, 80, c->options);
    int right = 1;
    if (bench_quick())
        trace_run(t, &heaps[0]);
    else
        right = trace_check(t, &heaps[0]);
    snprintf(row, sizeof row, "fit_%s", name);
    bench_put(row, c->source, right ? fit(t, 0) : NAN);
    if (c == &configs[1] && !strcmp(name, "train"))
        bench_put("fit_train_plain", "devstream", right ? fit(t, 0) : NAN);
    for (int i = 0; i < 4; i++)
        trace_run(t, &heaps[0]);
    if (c == &configs[0])
        bench_put(row, "five passes", right ? fit(t, 0) : NAN);
    snprintf(row, sizeof row, "alloc_%s", name);
    BENCH_REPEAT(row, c->source, repetitions(), right ? trace_run(t, &heaps[0]) : NAN);
    finish(row, 1);
}

/* The smallest device, in GiB, on which train runs twice. */
static void smallest(const char *name, const struct config *c) {
    (void)name;
    trace *t = trace_read("train");
    size_t gib = (size_t)(t->peak >> 30) + 1;
    for (int status = 0;; gib++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            exit(1);
        }
        if (!child) {
            alarm(40);
            may_run_out = 1;
            start(1, gib, c->options);
            trace_run(t, &heaps[0]);
            trace_run(t, &heaps[0]);
            finish("card_train", 1);
            exit(bench_failed);
        }
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
            (WEXITSTATUS(status) && WEXITSTATUS(status) != NO_MEMORY))
            exit(1);
        if (!WEXITSTATUS(status) || gib > 80)
            break;
    }
    bench_put("card_train", c->source, (double)gib);
    if (c == &configs[1])
        bench_put("card_train_plain", "devstream", (double)gib);
}

/* ---- history --------------------------------------------------------------------------------- */

static live *live_blocks;
static trace *train;

static double turn_live(void) {
    return live_run(live_blocks);
}

static double turn_train(void) {
    return trace_run(train, &heaps[0]);
}

static void history_row(const char *row, double (*turn)(void)) {
    double ratio[15];
    int n = bench_quick() ? 5 : 15;
    turn();
    for (int i = 0; i < n; i++) {
        double t[2] = { 0 };
        for (int k = 0; k < 2; k++) {
            int on = (i + k) & 1;
            if (on)
                check(ds_mem_history_start(NULL));
            t[on] = turn();
            if (on)
                check(ds_mem_history_stop());
        }
        ratio[i] = t[1] / t[0];
    }
    bench_put(row, "devstream", bench_median(ratio, n));
}

static void history(void) {
    start(1, 80, NULL);
    live_blocks = live_new(&heaps[0], 1);
    history_row("alloc_history_live", turn_live);
    live_delete(live_blocks);
    history_row("alloc_history_train", ((void)(train = trace_read("train")), turn_train));
    finish("alloc_history_train", 1);
}

/* ---- bookkeeping ----------------------------------------------------------------------------- */

static double resident(void) {
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void overhead_row(const char *row, const char *row_resident, double least, double most) {
    enum { COUNT = 100000 };

    static void *block[COUNT];
    uint64_t seed = 1, other = (uint64_t)getpid(); /* so that it is not drawn at compile time */
    /* pow()'s pages are not the allocator's */
    heap_put(&heaps[0], heap_get(&heaps[0], heap_random_size(&other, 512, 513)));
    memset(block, 1, sizeof block);
    double seen = resident();
    size_t before = hooked;
    for (int i = 0; i < COUNT; i++)
        block[i] = heap_get(&heaps[0], heap_random_size(&seed, least, most));
    bench_put(row, "devstream", (double)(hooked - before) / COUNT);
    if (row_resident)
        bench_put(row_resident, "devstream", (resident() - seen) / COUNT);
    for (int i = 0; i < COUNT; i++)
        heap_put(&heaps[0], block[i]);
}

static void overhead(void) {
    start(1, 80, NULL);
    overhead_row("alloc_overhead", "alloc_overhead_rss", 4096, 4096);
    finish("alloc_overhead", 1);
}

static void overhead_mixed(void) {
    start(1, 80, NULL);
    overhead_row("alloc_overhead_mixed", NULL, 512, MIB);
    finish("alloc_overhead_mixed", 1);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void limits(void) {
    start(1, 80, NULL);
    check(ds_event_create(0, NULL, &event));
    limit_wanted = 1;
    heap_rows(&heaps[0], "limit");
    BENCH_REPEAT("alloc_pair_current", "limit", repetitions(), heap_pairs(&heaps[0], MIB));
    heap_rows_traces(&heaps[0], "limit");
    heap_rows_two(&heaps[0], &heaps[1], "alloc_two_streams", "limit");
    heap_rows_two(&heaps[0], &heaps[1], "alloc_two_devices", "limit");
    BENCH_REPEAT("alloc_record", "limit", repetitions(), pairs_used(2));
    BENCH_REPEAT("alloc_record_stream", "limit", repetitions(), pairs_used(2));
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int case_count, case_names;
static char **case_name;

/* Runs a case in a process of its own; one that ends badly or not at all is a failure that the
   report shows. */
static int begin(const char *name) {
    int wanted = !case_names, status;
    for (int i = 0; i < case_names; i++)
        wanted |= !strncmp(name, case_name[i], strlen(case_name[i]));
    if (!wanted)
        return 0;
    case_count++;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (!child) {
        alarm(40);
        bench_failed = 0;
        return 1;
    }
    if (waitpid(child, &status, 0) != child || status) {
        char text[120];
        snprintf(text, sizeof text, "failed: case %.40s of alloc ended with %s %d", name,
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        bench_line("*", "devstream", text);
        bench_failed = 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = { { "pair", one },
                  { "current", one_current },
                  { "streams", two_streams },
                  { "devices", two_devices },
                  { "record", record },
                  { "history", history },
                  { "overhead", overhead },
                  { "overhead_mixed", overhead_mixed } };

    unsetenv("DEVSTREAM_ALLOC_CONF");
    case_names = argc - 1;
    case_name = argv + 1;
    if (argc == 2 && !strcmp(argv[1], "limits")) {
        limits();
        return bench_failed;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (begin(cases[i].name)) {
            cases[i].run();
            return bench_failed;
        }
    for (int i = 0; i <= TRACES; i++)
        for (int c = 0; c < (bench_quick() ? 2 : CONFIGS); c++) { /* default and plain; else all */
            char name[40];
            const char *first = i < TRACES ? trace_names[i] : "card";
            snprintf(name, sizeof name, "%.10s.%.10s", first, configs[c].source);
            if (begin(name)) {
                (i < TRACES ? replay : smallest)(first, &configs[c]);
                return bench_failed;
            }
        }
    if (!case_count) {
        fprintf(stderr, "alloc: no such case\n");
        return 2;
    }
    return bench_failed;
}
